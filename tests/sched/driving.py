"""A scheduler with the simulated backend on a virtual clock, driven as the loop of an instance does."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.backends.sim.backend import MemberScript, SimBackend, uniform_nodes
from penstock.model.job import JobEvent
from penstock.protocol.commands import Command, Submission, Submit
from penstock.protocol.facts import Capacity, Fact, Requeue
from penstock.protocol.intents import Assignment, Place, StatusUpdate
from penstock.sched.records import AllocationNew, Change, JobLogged, Recorded
from penstock.sched.recovery import scheduler_from
from penstock.sched.scheduler import Scheduler, Step
from penstock.sched.settings import QueueSettings, Settings, parse_backfill

__all__ = ["Driver", "jobspec", "nodes_of", "pool_of", "submission"]


def jobspec(
    *,
    nodes: int = 0,
    slots: int = 1,
    cores: int = 1,
    duration_s: float = 60,
    kind: str = "core",
    command: Sequence[str] = ("true",),
    exclusive: bool = False,
    **system: object,
) -> str:
    slot = {"type": "slot", "count": slots, "label": "task", "with": [{"type": kind, "count": cores}]}
    node: dict[str, object] = {"type": "node", "count": nodes, "with": [slot]}
    if exclusive:
        node["exclusive"] = True
    return json.dumps(
        {
            "version": 1,
            "resources": [node] if nodes else [slot],
            "tasks": [{"command": list(command), "slot": "task", "count": {"per_slot": 1}}],
            "attributes": {"system": {"duration": duration_s, **system}},
        }
    )


def submission(
    urgency: int = 16, requeue: Requeue = Requeue.NEVER, owner: str = "me", **asked: object
) -> Submission:
    return Submission(jobspec(**asked), owner, urgency, requeue)  # type: ignore[arg-type]


def nodes_of(count: int, cores: int) -> SimBackend:
    return SimBackend({node.node: node for node in uniform_nodes(count, [Capacity("core", cores)])})


def pool_of(units: int) -> SimBackend:
    """One node that is one divisible pool: only amounts matter."""
    return SimBackend(
        {node.node: node for node in uniform_nodes(1, [Capacity("core", units, divisible=True)])}
    )


def settings_of(policy: str = "easy", **more: object) -> Settings:
    queue = QueueSettings("default", parse_backfill(policy))
    return Settings(queues=(queue,), **more)  # type: ignore[arg-type]


@dataclass
class Driver:
    backend: SimBackend
    settings: Settings = field(default_factory=settings_of)
    runs_s: Callable[[int], float] | None = None
    deep: bool = True
    scheduler: Scheduler = field(init=False)
    changes: list[Change] = field(default_factory=list)
    logs: dict[int, list[JobEvent]] = field(default_factory=dict)
    inputs: list[tuple[float, tuple[Fact | Command, ...]]] = field(default_factory=list)
    starts: dict[int, float] = field(default_factory=dict)
    statuses: dict[str, StatusUpdate] = field(default_factory=dict)  # by workload: the last published

    def __post_init__(self) -> None:
        self.scheduler = scheduler_from(self.settings, Recorded(), 0.0)
        if self.runs_s is not None:
            runs_s = self.runs_s

            def script(place: Place, _assignment: Assignment) -> MemberScript:
                return MemberScript(runs_s=runs_s(place.job))

            self.backend.script_for = script
        self.feed(self.backend.snapshot())

    @property
    def now(self) -> float:
        return self.backend.now

    def feed(self, *inputs: Fact | Command) -> Step:
        self.inputs.append((self.now, inputs))
        step = self.scheduler.handle(inputs, self.now)
        self._act(step)
        return step

    def submit(self, *submissions: Submission) -> tuple[int, ...]:
        reply = self.feed(Submit(submissions)).replies[0]
        if reply.error is not None:
            raise reply.error
        assert isinstance(reply.value, tuple)
        return reply.value

    def plan(self) -> Step:
        passing = self.scheduler.plan(self.now, deep=self.deep)
        while True:
            try:
                next(passing)
            except StopIteration as done:
                step: Step = done.value
                break
        self._act(step)
        return step

    def _act(self, step: Step) -> None:
        self.changes.extend(step.changes)
        for change in step.changes:
            if isinstance(change, JobLogged):
                self.logs.setdefault(change.id, []).append(change.event)
            elif isinstance(change, AllocationNew) and change.job not in self.starts:
                self.starts[change.job] = self.now
        self.backend.apply(1, step.intents)
        self.backend.probe(step.probes)
        self.backend.forget(step.forgotten)
        self.statuses.update({update.workload: update for update in step.status_updates})

    def settle(self) -> None:
        """Passes and facts of this instant, until nothing more happens in it."""
        while True:
            facts = self.backend.advance(self.now)
            if facts:
                self.feed(*facts)
            elif self.scheduler.is_dirty:
                self.plan()
            else:
                return

    def run_until(self, at: float) -> None:
        while True:
            self.settle()
            times = [time for time in (self.backend.next_at(), self.scheduler.wake_at()) if time is not None]
            soon = min(times, default=None)
            if soon is None or soon > at:
                break
            facts = self.backend.advance(max(soon, self.now))
            self.feed(*facts)
        self.backend.advance(at)
        self.feed()

    def run(self, limit: float = 1e9) -> None:
        """Until nothing is left to happen."""
        while True:
            self.settle()
            times = [time for time in (self.backend.next_at(), self.scheduler.wake_at()) if time is not None]
            soon = min(times, default=None)
            if soon is None or soon > limit:
                return
            facts = self.backend.advance(max(soon, self.now))
            self.feed(*facts)

    def names(self, job: int) -> list[str]:
        return [event.name for event in self.logs[job]]
