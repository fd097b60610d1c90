"""The service interface of an instance: one method for each call, typed requests in, typed responses out.

HTTP (`penstock.web`) maps onto this interface and adds nothing to it; another protocol, such as gRPC, does
the same. Every method takes the `Caller` first. Ids of jobs are integers here and F58 text in responses.

Every method may raise a `PenstockError`: a family of `penstock.errors`, or one of the specific types in
`penstock.api.errors`.

A method that returns a stream is a coroutine that returns an async generator. It raises (for an unknown
job, say) before it returns the generator, while the adapter can still send an error status. The generator
ends by itself where the stream has an end; the adapter closes it (`aclose`) when the client disconnects
or the server stops.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from penstock.api.identity import Caller
from penstock.api.requests import (
    CancelRequest,
    DrainRequest,
    InputRequest,
    JobsQuery,
    QueueAction,
    QueueRequest,
    ShutdownRequest,
    SignalRequest,
    SubmitRequest,
    TimelineQuery,
    UndrainRequest,
    UrgencyRequest,
)
from penstock.api.responses import (
    CancelResult,
    EmptyResponse,
    EventLog,
    EventLogEntry,
    InputResult,
    InstanceEvent,
    InstanceStatus,
    JobDetail,
    JobList,
    JobSummary,
    NodeList,
    OutputItem,
    QueueList,
    SubmitResult,
    Timeline,
    UrgencyResult,
    WaitExplanation,
)

__all__ = ["ALL_QUEUES", "Service"]

ALL_QUEUES = "-"


class Service(Protocol):
    async def get_status(self, caller: Caller) -> InstanceStatus: ...

    async def get_metrics(self, caller: Caller) -> bytes:
        """In the text format of Prometheus."""
        ...

    async def submit_jobs(self, caller: Caller, request: SubmitRequest) -> SubmitResult:
        """Submits all jobs or none, owned by the caller. An error's `where` begins with `jobs[INDEX]`."""
        ...

    async def list_jobs(self, caller: Caller, query: JobsQuery) -> JobList: ...

    async def get_job(self, caller: Caller, job: int) -> JobDetail: ...

    async def get_eventlog(self, caller: Caller, job: int) -> EventLog: ...

    async def follow_eventlog(self, caller: Caller, job: int) -> AsyncGenerator[EventLogEntry, None]:
        """All events from the first one, then each as it is committed; ends after `clean`."""
        ...

    async def explain_wait(self, caller: Caller, job: int) -> WaitExplanation: ...

    async def cancel_jobs(self, caller: Caller, request: CancelRequest) -> CancelResult:
        """An unknown or inactive job is an entry in `errors`; the other jobs are canceled."""
        ...

    async def set_urgency(self, caller: Caller, job: int, request: UrgencyRequest) -> UrgencyResult: ...

    async def signal_job(self, caller: Caller, job: int, request: SignalRequest) -> EmptyResponse: ...

    async def write_input(self, caller: Caller, job: int, request: InputRequest) -> InputResult:
        """Waits up to ten seconds for room; may accept a part of the bytes, or none."""
        ...

    async def wait_for_job(self, caller: Caller, job: int, timeout_s: float) -> JobSummary:
        """Returns when the job is INACTIVE, or after `timeout_s` with the job in its current state."""
        ...

    async def stream_output(self, caller: Caller, job: int, follow: bool) -> AsyncGenerator[OutputItem, None]:
        """Output of the tasks and, with `follow`, events of the job; the last item is the `JobSummary`."""
        ...

    async def stream_events(self, caller: Caller, since: int | None) -> AsyncGenerator[InstanceEvent, None]:
        """Events of all jobs after the sequence number `since`; None: from the time of the call."""
        ...

    async def list_nodes(self, caller: Caller) -> NodeList: ...

    async def drain_nodes(self, caller: Caller, request: DrainRequest) -> NodeList:
        """Returns the nodes that the request names, as do the other changes of nodes and queues."""
        ...

    async def undrain_nodes(self, caller: Caller, request: UndrainRequest) -> NodeList: ...

    async def list_queues(self, caller: Caller) -> QueueList: ...

    async def change_queue(
        self, caller: Caller, queue: str, action: QueueAction, request: QueueRequest
    ) -> QueueList:
        """`queue` is a name, or `ALL_QUEUES`."""
        ...

    async def get_timeline(self, caller: Caller, query: TimelineQuery) -> Timeline: ...

    async def shutdown(self, caller: Caller, request: ShutdownRequest) -> EmptyResponse:
        """Returns at once; the instance stops after the response is sent."""
        ...
