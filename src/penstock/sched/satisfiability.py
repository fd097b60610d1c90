"""Requests that the present nodes can never satisfy.

Jobs whose requests are equal but for their duration share a *shape*, which is proven once. A proof visits
every node, so no fact and no command makes one: changed nodes are noted by the cluster, and `advance` does a
bounded amount of work each time that it is called:

1. It compares changed nodes with the proven shapes. Only a shape that the change of one node could make
   satisfiable, or unsatisfiable, has to be proven again (`effect_of`).
2. It proves one shape.
3. It returns the verdict of a shape for some of its jobs.

Until its shape is proven, a job keeps the verdict that it has; the first is that it may run. Only a request
that is invalid on every graph is known at once. A submitted job is refused if it can never run, so its shape
is proven by the command (`reason_of`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.engine.plain_slots import NodeChange, PlainRequest, effect_of
from penstock.engine.request import Request
from penstock.errors import BadRequest
from penstock.sched.cluster import Cluster

__all__ = ["Satisfiability", "Verdict"]

_UNUSED_MAX: Final = 10_000  # shapes without a job that are kept, for jobs with the same request
_COMPARISONS_MAX: Final = 2_000  # of a changed node and a shape, in one call of `advance`
_VERDICTS_MAX: Final = 500  # in one call of `advance`


@dataclass(frozen=True, slots=True)
class Verdict:
    job: int
    reason: str  # why the cluster can never satisfy its request; "": it can, as far as is known


@dataclass(slots=True, eq=False)
class _Shape:
    request: Request  # without a duration
    plain: PlainRequest | None
    is_invalid: bool = False
    reason: str | None = None  # None: not proven yet
    jobs: dict[int, None] = field(default_factory=dict)


class Satisfiability:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._shapes: dict[Request, _Shape] = {}
        self._shape_of: dict[int, _Shape] = {}  # by job
        self._unused: dict[_Shape, None] = {}  # shapes without a job
        self._changes: list[NodeChange] = []  # that are being compared
        self._to_compare: deque[_Shape] = deque()  # proven shapes to compare them with
        self._to_prove: dict[_Shape, None] = {}
        self._to_report: deque[tuple[int, _Shape]] = deque()  # jobs whose shape was proven

    def copy(self, cluster: Cluster) -> Satisfiability:
        made = Satisfiability(cluster)
        made._shapes = {
            request: replace(shape, jobs=dict(shape.jobs)) for request, shape in self._shapes.items()
        }
        copies = {shape: made._shapes[request] for request, shape in self._shapes.items()}
        made._shape_of = {job: copies[shape] for job, shape in self._shape_of.items()}
        made._unused = {copies[shape]: None for shape in self._unused}
        made._changes = list(self._changes)
        made._to_compare = deque(copies[shape] for shape in self._to_compare if shape in copies)
        made._to_prove = {copies[shape]: None for shape in self._to_prove}
        made._to_report = deque((job, copies[shape]) for job, shape in self._to_report if shape in copies)
        return made

    # Jobs

    def track(self, job: int, request: Request) -> str | None:
        """Keeps the verdict on a job up to date from here on. Returns the present one; None: not proven."""
        shape = self._shape(request)
        if self._shape_of.get(job) is not shape:
            self.forget(job)
            self._shape_of[job] = shape
            shape.jobs[job] = None
            self._unused.pop(shape, None)
        if shape.reason is None:
            self._to_prove[shape] = None
        return shape.reason

    def forget(self, job: int) -> None:
        """The job does not wait any more, or asks for something else."""
        shape = self._shape_of.pop(job, None)
        if shape is not None:
            del shape.jobs[job]
            if not shape.jobs:
                self._note_unused(shape)

    def tracked(self) -> dict[int, str | None]:
        """The verdict on each job, also if it is not reported yet; None: its shape is not proven."""
        return {job: shape.reason for job, shape in self._shape_of.items()}

    def reason_of(self, request: Request) -> str:
        """Why the cluster can never satisfy a valid request; "" if it can. Proves it if that is not known."""
        shape = self._shape(request)
        if shape.is_invalid:
            self._cluster.engine.plain(request)  # raises the error
        is_current = not (self._cluster.has_node_changes or self._to_compare or shape in self._to_prove)
        if shape.reason is None or not is_current:
            self._prove(shape)
        if not shape.jobs:
            self._note_unused(shape)
        return shape.reason or ""

    def _shape(self, request: Request) -> _Shape:
        key = replace(request, duration_s=None)
        found = self._shapes.get(key)
        if found is None:
            try:
                found = _Shape(key, self._cluster.engine.plain(key))
            except BadRequest as error:  # A workload was not submitted by a command that could fail.
                found = _Shape(key, None, True, f"invalid request: {error}")
            self._shapes[key] = found
        return found

    def _note_unused(self, shape: _Shape) -> None:
        self._unused[shape] = None
        if len(self._unused) > _UNUSED_MAX:
            self._drop(next(iter(self._unused)))

    def _drop(self, shape: _Shape) -> None:
        del self._unused[shape], self._shapes[shape.request]
        self._to_prove.pop(shape, None)

    # Proofs

    @property
    def is_pending(self) -> bool:
        """Whether `advance` has something to do."""
        if not self._cluster.is_synced:
            return False  # Nodes may be missing, so no request counts as unsatisfiable.
        is_changed = self._cluster.has_node_changes and bool(self._shapes)
        return is_changed or bool(self._to_compare or self._to_prove or self._to_report)

    def next_job(self) -> int | None:
        """A job whose shape `advance` would prove, if it proves one."""
        shape = next(iter(self._to_prove), None)
        return None if shape is None else next(iter(shape.jobs), None)

    def advance(self) -> list[Verdict]:
        """Does a part of what is pending. Returns verdicts that have become known or may have changed."""
        if self._to_report:
            return self._report()
        if not self._to_compare and self._cluster.has_node_changes:
            self._begin_comparison()
        if self._to_compare:
            self._compare()
            return []
        self._changes = []
        if self._to_prove:
            shape = next(iter(self._to_prove))
            if shape.jobs:
                self._prove(shape)
            else:
                self._drop(shape)
        return self._report()

    def _report(self) -> list[Verdict]:
        verdicts: list[Verdict] = []
        while self._to_report and len(verdicts) < _VERDICTS_MAX:
            job, shape = self._to_report.popleft()
            if self._shape_of.get(job) is shape and shape.reason is not None:
                verdicts.append(Verdict(job, shape.reason))
        return verdicts

    def _begin_comparison(self) -> None:
        """Takes the changed nodes. Shapes that nobody waits for are dropped instead of kept valid."""
        for shape in list(self._unused):
            self._drop(shape)
        self._changes = self._cluster.take_node_changes()
        if self._changes:
            self._to_compare.extend(
                shape
                for shape in self._shapes.values()
                if shape.reason is not None and not shape.is_invalid and shape not in self._to_prove
            )

    def _compare(self) -> None:
        shapes_max = max(1, _COMPARISONS_MAX // len(self._changes))
        for _ in range(min(shapes_max, len(self._to_compare))):
            shape = self._to_compare.popleft()
            which = 0 if shape.reason else 1  # It could become satisfiable, or unsatisfiable.
            if shape in self._unused:
                self._drop(shape)
            elif shape.jobs and any(effect_of(shape.plain, change)[which] for change in self._changes):
                self._to_prove[shape] = None

    def _prove(self, shape: _Shape) -> None:
        self._to_prove.pop(shape, None)
        if shape.is_invalid:
            return
        before, shape.reason = shape.reason, self._cluster.engine.never(shape.request)
        if shape.reason != before:
            self._to_report.extend((job, shape) for job in shape.jobs)
