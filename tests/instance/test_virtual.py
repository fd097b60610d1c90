"""The loop of an instance on a virtual clock."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.backends.sim.backend import MemberScript, SimBackend, uniform_nodes
from penstock.instance.cadence import CadenceSettings
from penstock.instance.virtual import VIRTUAL_CADENCE, VirtualInstance, run_without_loop
from penstock.protocol.commands import Submit
from penstock.protocol.facts import Capacity, MemberStatus, Phase
from penstock.sched.member_states import MemberPhase
from penstock.sched.records import Change
from penstock.sched.scheduler import Scheduler, Step
from penstock.sched.settings import Settings
from penstock.store.memory import MemoryStore
from penstock.store.memory_tables import MemoryTables
from penstock.store.port import Retention
from tests.instance.restarts import RestartingInstance
from tests.sched.driving import settings_of, submission


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.heartbeats: list[float] = []
        self.prunings: list[float] = []
        self.clock: SimBackend | None = None

    @property
    def now(self) -> float:
        assert self.clock is not None
        return self.clock.now

    async def record(self, epoch: int, changes: Sequence[Change]) -> None:
        if not changes:
            self.heartbeats.append(self.now)
        await super().record(epoch, changes)

    async def prune(self, epoch: int, now: float, retention: Retention) -> tuple[int, ...]:
        self.prunings.append(self.now)
        return await super().prune(epoch, now, retention)


def sim(runs_s: float = 10.0) -> SimBackend:
    backend = SimBackend({node.node: node for node in uniform_nodes(2, [Capacity("core", 2)])})
    backend.script_for = lambda _place, _assignment: MemberScript(runs_s=runs_s)
    return backend


def instance(
    backend: SimBackend, cadence: CadenceSettings = VIRTUAL_CADENCE, steps: list[Step] | None = None
) -> tuple[VirtualInstance, CountingStore]:
    store = CountingStore()
    store.clock = backend

    def note(scheduler: Scheduler, step: Step) -> None:
        assert scheduler is made.scheduler
        if steps is not None:
            steps.append(step)

    made = VirtualInstance(settings_of("easy"), store, backend, cadence=cadence, after_step=note)
    made.begin()
    return made, store


def forecasts(made: VirtualInstance) -> list[float]:
    found = (job.forecast for job in made.scheduler.jobs.values())
    return [forecast.made_at for forecast in found if forecast is not None]


def test_a_virtual_instance_is_ready_after_its_first_snapshot_and_runs_jobs_one_after_another() -> None:
    made, store = instance(sim())
    assert made.readiness.current.is_ready
    made.feed(Submit((submission(nodes=2, cores=2, duration_s=60),) * 3))
    made.run_until(29.0)
    assert len(made.scheduler.jobs) == 1
    made.run_until(30.0)
    assert not made.scheduler.jobs
    assert (store.heartbeats, store.prunings) == ([], [])


def test_equal_inputs_give_equal_steps() -> None:
    def steps() -> list[Step]:
        found: list[Step] = []
        made, _ = instance(sim(), steps=found)
        for cores in (1, 2, 1, 2, 2, 1):
            made.feed(Submit((submission(nodes=1, cores=cores, duration_s=30 + cores),)))
            made.run_until(made.now + 3.0)
        made.run()
        return found

    first = steps()
    assert len(first) > 20
    assert steps() == first


def test_heartbeats_pruning_and_forecasts_follow_the_settings() -> None:
    cadence = CadenceSettings(slow_match_s=None, prune_every_s=60.0)
    made, store = instance(sim(runs_s=95.0), cadence)
    made.feed(Submit((submission(nodes=2, cores=2, duration_s=100),) * 2))
    made.run_until(0.25)
    (made_at,) = forecasts(made)
    assert made_at == 0.0
    made.run_until(90.0)
    assert store.heartbeats == [float(at) for at in range(0, 91, 2)]
    assert store.prunings == [0.0, 60.0]
    (made_at,) = forecasts(made)
    assert 60.0 <= made_at <= 62.0  # Computed at 0, and again when they were 30.5 s old.


def test_nothing_starts_while_an_instance_shuts_down() -> None:
    made, _ = instance(sim())
    made.readiness.shutdown_begun()
    made.feed(Submit((submission(nodes=1, duration_s=60),)))
    made.run_until(100.0)
    (job,) = made.scheduler.jobs.values()
    assert job.state.is_pending
    assert forecasts(made) == []


def test_more_inputs_than_one_batch_are_handled_in_several_steps() -> None:
    steps: list[Step] = []
    made, _ = instance(sim(), steps=steps)
    before = len(steps)
    last = made.feed(*(Submit((submission(nodes=1, urgency=0),)) for _ in range(5_001)))
    assert len(steps) == before + 2
    assert last is steps[-1]
    assert [len(step.replies) for step in steps[before:]] == [5_000, 1]


def test_a_cycle_can_be_run_at_any_time() -> None:
    made, _ = instance(sim(), replace(VIRTUAL_CADENCE, deep_every_s=None))
    made.feed(Submit((submission(nodes=2, cores=2, duration_s=60),) * 2))
    made.settle()
    assert made.settle() == 10.0
    assert made.plan(deep=True).changes == ()


def test_a_coroutine_that_waits_cannot_run_without_an_event_loop() -> None:
    class Never:
        def __await__(self) -> Any:
            yield self

    async def wait() -> None:
        await Never()

    async def yield_once() -> int:
        class Once:
            def __await__(self) -> Any:
                yield None

        await Once()
        return 7

    coroutine: Coroutine[Any, Any, int] = yield_once()
    assert run_without_loop(coroutine) == 7
    with pytest.raises(AssertionError, match="waits for something"):
        run_without_loop(wait())


def test_a_lost_member_that_runs_again_when_its_instance_restarts_runs_on() -> None:
    """Its timeout has passed while nobody looked. The report counts, not the age of the record."""
    backend = SimBackend({node.node: node for node in uniform_nodes(1, (Capacity("core", 1),))})
    backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    tables = MemoryTables()
    instance = RestartingInstance(backend, Settings(), lambda: MemoryStore(tables))
    (number,) = instance.submit(submission(duration_s=1e6), key="k")
    instance.settle()
    (member,) = instance.scheduler.jobs[number].members.values()
    instance.feed(MemberStatus(member.key, Phase.LOST, backend.now, member.node))
    backend.advance(backend.now + 10 * Settings().lost_timeout_s)
    instance.restart()
    instance.run_until(backend.now + 10 * Settings().lost_timeout_s)
    job = instance.scheduler.jobs[number]
    assert [one.phase for one in job.members.values()] == [MemberPhase.RUNNING]
    assert not instance.scheduler.external_usage()
