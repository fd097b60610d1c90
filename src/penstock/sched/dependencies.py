"""Dependencies that a job waits for before it is queued (RFC 26): other jobs, a time, or a singleton.

Whether a dependency on a job is pending, satisfied or unsatisfiable is a pure function of the progress of
that job (`JobProgress`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.errors import BadRequest, Conflict
from penstock.model.job import JobEvent
from penstock.model.jobid import encode_jobid, parse_jobid

__all__ = [
    "Dependency",
    "DependencyRefused",
    "DependencyState",
    "JobProgress",
    "Scheme",
    "begin_time_of",
    "begin_time_text",
    "dependency_error",
    "dependency_state",
    "parse_dependencies",
]

_DEPENDENCIES_MAX: Final = 1000
_BEGIN_TIME: Final = "begin-time"


class Scheme(enum.Enum):
    AFTER_START = "afterstart"
    AFTER_ANY = "afterany"
    AFTER_OK = "afterok"
    AFTER_NOT_OK = "afternotok"
    AFTER_EXCEPT = "afterexcept"
    SINGLETON = "singleton"


_DESCRIBED: Final = {
    Scheme.AFTER_START: "after-start",
    Scheme.AFTER_ANY: "after-finish",
    Scheme.AFTER_OK: "after-success",
    Scheme.AFTER_NOT_OK: "after-failure",
    Scheme.AFTER_EXCEPT: "after-except",
}
_ALIASES: Final = {"after": "afterstart"}
_KNOWN: Final = "afterstart, afterany, afterok, afternotok, afterexcept, begin-time, singleton"


@dataclass(frozen=True, slots=True)
class Dependency:
    scheme: Scheme
    job: int = 0  # id of the job it depends on
    typed: str = ""  # the job id as the user wrote it

    @property
    def description(self) -> str:
        return "singleton" if self.scheme is Scheme.SINGLETON else f"{_DESCRIBED[self.scheme]}={self.typed}"


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of a job, as far as its dependents need it."""

    had_alloc: bool = False
    started: bool = False
    is_over: bool = False
    is_completed: bool = False  # over, and successful
    had_exception: bool = False  # a fatal one


class DependencyState(enum.Enum):
    PENDING = "pending"
    SATISFIED = "satisfied"
    UNSATISFIABLE = "unsatisfiable"


def dependency_state(scheme: Scheme, progress: JobProgress) -> DependencyState:
    if scheme is Scheme.AFTER_START:
        met = progress.started
    elif scheme is Scheme.AFTER_ANY:
        met = progress.is_over
    elif scheme is Scheme.AFTER_OK:
        met = progress.is_over and progress.is_completed
    elif scheme is Scheme.AFTER_NOT_OK:
        met = progress.is_over and progress.had_alloc and not progress.is_completed
    else:
        met = progress.is_over and progress.had_alloc and progress.had_exception
    if met:
        return DependencyState.SATISFIED
    return DependencyState.UNSATISFIABLE if progress.is_over else DependencyState.PENDING


def parse_dependencies(found: object) -> tuple[tuple[Dependency, ...], float | None]:
    """Reads the dependencies of a jobspec, and the latest begin time among them."""
    where = "attributes.system.dependencies"
    if found is None:
        return (), None
    if not isinstance(found, list) or len(found) > _DEPENDENCIES_MAX:
        raise BadRequest(
            "invalid list of dependencies", where=where, expected=f"a list of at most {_DEPENDENCIES_MAX}"
        )
    depends: dict[Dependency, None] = {}
    begin_at: float | None = None
    for index, one in enumerate(found):
        here = f"{where}[{index}]"
        scheme = one.get("scheme") if isinstance(one, dict) else None
        value = one.get("value", "") if isinstance(one, dict) else ""
        if not isinstance(scheme, str) or not isinstance(value, str):
            raise BadRequest(
                "invalid dependency",
                where=here,
                found=repr(one)[:80],
                expected="scheme and value, both texts",
            )
        if scheme == _BEGIN_TIME:
            at = _begin_time(value, here)
            begin_at = at if begin_at is None else max(begin_at, at)
            continue
        name = _ALIASES.get(scheme, scheme)
        known = {known.value: known for known in Scheme}
        if name not in known:
            raise BadRequest("unknown dependency scheme", where=here, found=repr(scheme), expected=_KNOWN)
        if name == Scheme.SINGLETON.value:
            depends[Dependency(Scheme.SINGLETON)] = None
            continue
        try:
            target = parse_jobid(value)
        except BadRequest as error:
            raise BadRequest(
                "invalid job id",
                where=here,
                found=repr(f"{scheme}:{value}"),
                expected=f"a job id, for example {scheme}:ƒ1 or {scheme}:1234",
            ) from error
        depends[Dependency(known[name], target, value)] = None
    return tuple(depends), begin_at


def _begin_time(value: str, where: str) -> float:
    try:
        at = float(value)
    except ValueError:
        at = -1.0
    if not 0 <= at < 1e11:
        raise BadRequest("invalid begin-time", where=where, found=repr(value), expected="seconds since 1970")
    return at


def begin_time_text(at: float) -> str:
    """A begin time as eventlogs describe it."""
    return f"{_BEGIN_TIME}={at:.3f}"


def begin_time_of(log: Iterable[JobEvent]) -> float | None:
    """The begin time that an eventlog says the job waits for; None: it waits for none."""
    open_text = ""
    for event in log:
        text = str(event.context.get("description", ""))
        if text.startswith(f"{_BEGIN_TIME}="):
            open_text = text if event.name == "dependency-add" else ""
    return float(open_text.partition("=")[2]) if open_text else None


class DependencyRefused(Conflict):
    """A dependency that can never be satisfied, found at submission."""

    def __init__(self, dependency: Dependency, why: str) -> None:
        super().__init__(why)
        self.dependency = dependency


def dependency_error(dependency: Dependency, progress: JobProgress | None) -> DependencyRefused | None:
    """The error that refuses a submission with this dependency; None if it is pending or satisfied."""
    described = f"dependency {dependency.scheme.value}:{dependency.typed or encode_jobid(dependency.job)}"
    if progress is None:
        return DependencyRefused(dependency, f"{described}: no such job")
    if dependency_state(dependency.scheme, progress) is not DependencyState.UNSATISFIABLE:
        return None
    why = {
        Scheme.AFTER_OK: "the job failed or was canceled",
        Scheme.AFTER_NOT_OK: "the job succeeded" if progress.is_completed else "the job never started",
        Scheme.AFTER_START: "the job never started",
        Scheme.AFTER_EXCEPT: "the job had no exception",
    }
    return DependencyRefused(dependency, f"{described}: {why[dependency.scheme]}")
