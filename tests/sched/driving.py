"""A scheduler with the simulated backend on a virtual clock, driven as the loop of an instance does."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from penstock.backends.sim.backend import MemberScript, SimBackend, uniform_nodes
from penstock.instance.cadence import CadenceSettings
from penstock.instance.virtual import VIRTUAL_CADENCE, VirtualInstance
from penstock.model.job import JobEvent
from penstock.protocol.commands import Command, Submission, Submit
from penstock.protocol.facts import Capacity, Fact, Requeue
from penstock.protocol.intents import Assignment, Place, StatusUpdate
from penstock.sched.records import AllocationNew, Change, JobLogged
from penstock.sched.scheduler import Scheduler, Step
from penstock.sched.settings import QueueSettings, Settings, parse_backfill
from penstock.store.memory import MemoryStore
from tests.sched.internals import check_invariants

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
    """The loop of an instance on the clock of a simulated backend; see `VirtualInstance`."""

    backend: SimBackend
    settings: Settings = field(default_factory=settings_of)
    runs_s: Callable[[int], float] | None = None
    deep: bool = True
    cadence: CadenceSettings = VIRTUAL_CADENCE
    changes: list[Change] = field(default_factory=list)
    logs: dict[int, list[JobEvent]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    starts: dict[int, float] = field(default_factory=dict)
    statuses: dict[str, StatusUpdate] = field(default_factory=dict)  # by workload or member: the last one
    store: MemoryStore = field(default_factory=MemoryStore)
    instance: VirtualInstance = field(init=False)

    def __post_init__(self) -> None:
        if self.runs_s is not None:
            runs_s = self.runs_s

            def script(place: Place, _assignment: Assignment) -> MemberScript:
                return MemberScript(runs_s=runs_s(place.job))

            self.backend.script_for = script
        cadence = self.cadence if self.deep else replace(self.cadence, deep_every_s=None)
        self.instance = VirtualInstance(
            self.settings,
            self.store,
            self.backend,
            cadence=cadence,
            listener=self._note_changes,
            after_step=self._note_step,
        )
        self.instance.begin()

    @property
    def now(self) -> float:
        return self.backend.now

    @property
    def scheduler(self) -> Scheduler:
        return self.instance.scheduler

    def _note_changes(self, changes: Sequence[Change]) -> None:
        self.changes.extend(changes)
        for change in changes:
            if isinstance(change, JobLogged):
                self.logs.setdefault(change.id, []).append(change.event)
            elif isinstance(change, AllocationNew) and change.job not in self.starts:
                self.starts[change.job] = self.now

    def _note_step(self, scheduler: Scheduler, step: Step) -> None:
        check_invariants(scheduler, step)
        self.steps.append(step)
        self.statuses.update({update.member or update.workload: update for update in step.status_updates})

    def feed(self, *inputs: Fact | Command) -> Step:
        return self.instance.feed(*inputs)

    def submit(self, *submissions: Submission) -> tuple[int, ...]:
        reply = self.feed(Submit(submissions)).replies[0]
        if reply.error is not None:
            raise reply.error
        assert isinstance(reply.value, tuple)
        return reply.value

    def plan(self) -> Step:
        return self.instance.plan(deep=self.deep)

    def settle(self) -> None:
        """Cycles and facts of this instant, until nothing more happens in it."""
        self.instance.settle()

    def run_until(self, at: float) -> None:
        self.instance.run_until(at)

    def run(self, limit: float = 1e9) -> None:
        """Until nothing is left to happen."""
        self.instance.run(limit)

    def names(self, job: int) -> list[str]:
        return [event.name for event in self.logs[job]]
