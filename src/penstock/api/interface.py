"""What the HTTP API asks of an instance: one method an endpoint, values in, JSON-ready values out.

Every method may raise a `PenstockError`; `penstock.api.errors` names the specific types, and
`penstock.web.errors` relates types to HTTP statuses.

A stream is a coroutine that returns an iterator: what can be refused (an unknown job, say) is refused
before it returns, while a status can still be sent. The iterator ends by itself where there is an end, and
is closed (`aclose`) when the reader has left or the server stops.

Documents are dicts, lists, strings, numbers, booleans and None; the API writes them as they are.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from penstock.model.job import JobState, Result

__all__ = [
    "ACTIVE",
    "LIMIT_DEFAULT",
    "CancelSelection",
    "Doc",
    "JobsQuery",
    "Service",
    "Stream",
    "Submission",
]

Doc: TypeAlias = dict[str, Any]
Stream: TypeAlias = AsyncGenerator[Doc, None]

LIMIT_DEFAULT: Final = 1000
ACTIVE: Final = frozenset(state for state in JobState if state.is_active)


@dataclass(frozen=True, slots=True)
class Submission:
    """One job as it was sent. The form around the jobspec is checked, the jobspec itself is not."""

    jobspec: bytes  # the JSON text of an object, ready for `parse_jobspec`
    urgency: int  # 0..31
    requeue: str  # never, node-failure or always


@dataclass(frozen=True, slots=True)
class JobsQuery:
    """Which jobs to list. `states` and `results` are a union; all the rest narrows."""

    states: frozenset[JobState] = ACTIVE
    results: frozenset[Result] = frozenset()
    queue: str = ""  # "": any
    name: str = ""
    owner: str = ""
    since: float | None = None  # inactive jobs only if they ended after this time; others are not affected
    limit: int = LIMIT_DEFAULT
    ids: tuple[int, ...] | None = None  # None: any

    def wants(self, state: JobState, result: Result | None) -> bool:
        return state in self.states or (state is JobState.INACTIVE and result in self.results)


@dataclass(frozen=True, slots=True)
class CancelSelection:
    """Either `ids`, or (`ids` is None) every job in `states`, of `queue` if one is given."""

    ids: tuple[int, ...] | None
    states: frozenset[JobState] = ACTIVE
    queue: str = ""


class Service(Protocol):
    async def status(self) -> Doc: ...

    async def metrics(self) -> bytes:
        """In the text format of Prometheus."""
        ...

    async def submit(self, jobs: list[Submission], key: str, owner: str) -> list[Doc]:
        """All or none; `[{"id", "name"}]` in order. A refusal's `where` begins with `jobs[INDEX]`."""
        ...

    async def jobs(self, query: JobsQuery) -> list[Doc]: ...

    async def job(self, job: int) -> Doc: ...

    async def eventlog(self, job: int) -> list[Doc]: ...

    async def follow_eventlog(self, job: int) -> Stream:
        """All events from the first on, then each as it comes; ends after `clean`."""
        ...

    async def why(self, job: int) -> Doc: ...

    async def cancel(self, selection: CancelSelection, note: str) -> Doc:
        """`{"canceled": [ids], "errors": [{"id", "message"}]}`; an unknown id is an entry in `errors`."""
        ...

    async def urgency(self, job: int, urgency: int) -> Doc: ...

    async def signal(self, job: int, signum: int) -> None: ...

    async def wait(self, job: int, timeout_s: float) -> Doc:
        """The job when it is INACTIVE, or as it is after `timeout_s`."""
        ...

    async def output(self, job: int, follow: bool) -> AsyncGenerator[tuple[str, Doc], None]:
        """Pairs of `output`, `job` or `end` and the document; `end` comes last and carries the JOB."""
        ...

    async def events(self, since: int | None) -> Stream:
        """Events of all jobs after the sequence number `since` (None: from now on); each has `seq`."""
        ...

    async def resources(self) -> list[Doc]: ...

    async def drain(self, targets: str, reason: str, overwrite: bool) -> list[Doc]:
        """`targets` is a hostlist of names or an idset of ranks, as typed."""
        ...

    async def undrain(self, targets: str) -> list[Doc]: ...

    async def queues(self) -> list[Doc]: ...

    async def change_queue(self, name: str, verb: str, reason: str) -> list[Doc]:
        """`verb` is enable, disable, start or stop; the name `-` means all queues."""
        ...

    async def timeline(self, since_s: float | None, until_s: float | None) -> Doc:
        """From `since_s` seconds before the present to `until_s` after it; None: the service chooses."""
        ...

    async def shutdown(self, keep_tasks: bool) -> None:
        """Returns at once; the instance stops after the answer is on its way."""
        ...
