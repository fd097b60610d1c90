"""The cadence of the loop: what is done next, by a table of cases and on simulated loops."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.instance.cadence import (
    Action,
    Cadence,
    CadenceSettings,
    HandleInputs,
    Observation,
    Pause,
    ProveRequests,
    PruneHistory,
    RunCycle,
    SendHeartbeat,
)

SETTINGS = CadenceSettings()
ONLY_STEPS = CadenceSettings(deep_every_s=None, prune_every_s=None, heartbeat_every_s=None)
IDLE = Observation(has_inputs=False, may_plan=True, is_dirty=False, has_pending=False)
DIRTY = replace(IDLE, is_dirty=True)
INPUTS = replace(IDLE, has_inputs=True)
QUEUE = replace(IDLE, has_pending=True)


def cadence(settings: CadenceSettings = SETTINGS, now: float = 100.0) -> Cadence:
    """A cadence after its first step at a time; pruning and heartbeat have just been done."""
    made = Cadence(settings)
    made.step_done(now)
    made.pruning_begun(now)
    made.heartbeat_sent(now)
    return made


def after_cycle(*, deep: bool, took_s: float = 0.0, was_cut: bool = False) -> Cadence:
    made = cadence(now=100.0 - took_s)
    made.cycle_done(RunCycle(deep), 100.0 - took_s, 100.0, was_cut=was_cut)
    made.step_done(100.0)
    return made


@pytest.mark.parametrize(
    ("seen", "action"),
    [
        (IDLE, Pause(102.0)),
        (replace(IDLE, timer_at=101.0), Pause(101.0)),
        (replace(IDLE, timer_at=100.0), HandleInputs()),
        (replace(IDLE, timer_at=-5.0), HandleInputs()),
        (INPUTS, HandleInputs()),
        (DIRTY, RunCycle(deep=False)),
        (replace(DIRTY, has_inputs=True), RunCycle(deep=False)),
        (replace(DIRTY, has_pending=True), RunCycle(deep=False)),
        (QUEUE, RunCycle(deep=True)),
        (replace(QUEUE, has_inputs=True), HandleInputs()),
        (replace(QUEUE, may_plan=False), Pause(102.0)),
        (replace(DIRTY, may_plan=False), Pause(102.0)),
        (replace(DIRTY, may_plan=False, has_inputs=True), HandleInputs()),
        (replace(DIRTY, may_plan=False, timer_at=99.0), HandleInputs()),
    ],
)
def test_what_follows_a_step(seen: Observation, action: Action) -> None:
    assert cadence().next_action(seen, 100.0) == action


@pytest.mark.parametrize("seen", [DIRTY, QUEUE, replace(DIRTY, has_inputs=True), INPUTS])
def test_a_step_follows_a_cycle_before_the_next_one(seen: Observation) -> None:
    made = cadence()
    made.cycle_done(RunCycle(deep=False), 100.0, 100.5)
    assert made.next_action(seen, 100.5) == HandleInputs()


@pytest.mark.parametrize("seen", [IDLE, DIRTY, QUEUE, INPUTS, replace(IDLE, may_plan=False)])
def test_proofs_follow_a_step_and_a_step_follows_them(seen: Observation) -> None:
    made = cadence()
    unproven = replace(seen, has_unproven=True)
    assert made.next_action(unproven, 100.0) == ProveRequests()
    is_over = made.proofs_begun(100.0)
    assert (is_over(100.04), is_over(100.06)) == (False, True)
    following = made.next_action(unproven, 100.1)
    assert following != ProveRequests()
    if isinstance(following, RunCycle):
        made.cycle_done(following, 100.1, 100.2)
        assert made.next_action(unproven, 100.2) == HandleInputs()
    else:
        assert following == HandleInputs()
    made.step_done(100.3)
    assert made.next_action(unproven, 100.3) == ProveRequests()


def test_the_first_action_is_a_step_then_what_is_due_from_the_start() -> None:
    made = Cadence()
    assert made.next_action(replace(IDLE, may_plan=False), 0.0) == HandleInputs()
    made.step_done(0.0)
    assert made.next_action(IDLE, 0.0) == PruneHistory()
    made.pruning_begun(0.0)
    assert made.next_action(IDLE, 0.0) == SendHeartbeat()
    made.heartbeat_sent(0.0)
    assert made.next_action(IDLE, 0.0) == Pause(2.0)


def test_a_heartbeat_that_is_due_follows_a_step() -> None:
    made = cadence(replace(ONLY_STEPS, heartbeat_every_s=2.0))
    assert made.next_action(IDLE, 101.9) == Pause(102.0)
    assert made.next_action(IDLE, 102.0) == HandleInputs()
    made.step_done(102.1)
    assert made.next_action(IDLE, 102.1) == SendHeartbeat()


def test_pruning_alone_is_a_reason_to_wake_up() -> None:
    made = cadence(replace(ONLY_STEPS, prune_every_s=600.0))
    assert made.next_action(IDLE, 699.0) == Pause(700.0)
    made.step_done(700.0)
    assert made.next_action(IDLE, 700.0) == PruneHistory()


def test_with_everything_off_only_inputs_and_timers_matter() -> None:
    made = cadence(ONLY_STEPS)
    assert made.next_action(QUEUE, 1e9) == Pause(None)
    assert made.next_action(replace(QUEUE, timer_at=2e9), 1e9) == Pause(2e9)


@pytest.mark.parametrize(
    ("took_s", "next_at"),
    [(0.0, 100.5), (0.1, 100.5), (0.125, 100.5), (1.0, 104.0), (30.0, 220.0)],
)
def test_a_deep_cycle_that_took_long_is_not_repeated_soon(took_s: float, next_at: float) -> None:
    made = after_cycle(deep=True, took_s=took_s, was_cut=True)
    made.heartbeat_sent(1e6)
    made.pruning_begun(1e6)
    assert made.next_action(QUEUE, 100.0) == Pause(next_at)
    made.step_done(next_at)
    assert made.next_action(QUEUE, next_at) == RunCycle(deep=True)


def test_a_complete_deep_cycle_is_repeated_when_its_forecasts_have_aged_or_something_changed() -> None:
    made = after_cycle(deep=True)
    made.heartbeat_sent(1e6)
    made.pruning_begun(1e6)
    assert made.next_action(QUEUE, 100.0) == Pause(130.5)
    made.cycle_done(RunCycle(deep=False), 101.0, 101.0)
    made.step_done(101.0)
    assert made.next_action(QUEUE, 101.0) == RunCycle(deep=True)


def test_matches_run_in_a_thread_after_a_slow_one_and_before_the_first_is_measured() -> None:
    made = Cadence()
    assert made.match_in_thread()
    made.match_done(1.0, 1.009)
    assert not made.match_in_thread()
    made.match_done(1.0, 1.02)
    assert made.match_in_thread()
    assert made.snapshot_in_thread()
    alone = Cadence(CadenceSettings(slow_match_s=None))
    alone.match_done(1.0, 9.0)
    assert not alone.match_in_thread()
    assert not alone.snapshot_in_thread()


def test_a_cycle_lets_other_tasks_run_every_20_ms() -> None:
    made = Cadence()
    made.cycle_begun(1.0)
    assert [made.is_yield_due(now) for now in (1.0, 1.01, 1.02, 1.5)] == [False, False, True, True]
    made.yielded(1.5)
    assert not made.is_yield_due(1.51)


# Simulated loops


@dataclass
class SimulatedLoop:
    """Does what a cadence says. Actions take time; inputs arrive, make the queue dirty and set timers."""

    settings: CadenceSettings
    arrivals: list[float]  # ascending
    costs: list[float]  # of actions, in turn
    shutdown_at: float = float("inf")
    now: float = 0.0
    waiting: int = 0
    is_dirty: bool = True
    timers: list[float] = field(default_factory=list)
    done: list[tuple[float, Action, float, Observation]] = field(default_factory=list)  # began, ended

    def run(self, until: float) -> None:
        made = Cadence(self.settings)
        while self.now < until:
            self._arrive()
            seen = self._observe()
            action = made.next_action(seen, self.now)
            assert made.next_action(seen, self.now) == action  # Asking changes nothing.
            began = self.now
            if isinstance(action, Pause):
                assert not seen.has_inputs
                wake_at = until if action.until is None else action.until
                assert wake_at > self.now
                self.now = min(wake_at, *self.arrivals[:1], until) if self.arrivals else min(wake_at, until)
            else:
                self.now += self.costs[len(self.done) % len(self.costs)]
                self._arrive()
                self._report(made, action, began)
            self.done.append((began, action, self.now, seen))

    def _arrive(self) -> None:
        while self.arrivals and self.arrivals[0] <= self.now:
            self.timers.append(self.arrivals.pop(0) + 3.0)
            self.waiting += 1

    def _observe(self) -> Observation:
        return Observation(
            has_inputs=self.waiting > 0,
            may_plan=self.now < self.shutdown_at,
            is_dirty=self.is_dirty,
            has_pending=True,
            timer_at=min(self.timers, default=None),
        )

    def _report(self, made: Cadence, action: Action, began: float) -> None:
        match action:
            case HandleInputs():
                self.is_dirty = self.is_dirty or self.waiting > 0
                self.waiting = 0
                self.timers = [at for at in self.timers if at > began]
                made.step_done(self.now)
            case RunCycle():
                self.is_dirty = False
                made.cycle_done(action, began, self.now, was_cut=self.waiting > 0)
            case PruneHistory():
                made.pruning_begun(began)
            case SendHeartbeat():
                made.heartbeat_sent(self.now)


UNTIL_S = 120.0
loops = st.builds(
    SimulatedLoop,
    st.sampled_from(
        [SETTINGS, replace(SETTINGS, prune_every_s=None), replace(SETTINGS, refresh_after_s=7.0)]
    ),
    st.lists(st.floats(0.0, UNTIL_S), max_size=300).map(sorted),
    st.lists(st.sampled_from([0.001, 0.01, 0.1, 0.7]), min_size=1, max_size=7),
    st.sampled_from([float("inf"), 50.0]),
)


def actions(loop: SimulatedLoop) -> list[tuple[float, Action, float, Observation]]:
    loop.run(UNTIL_S)
    return [one for one in loop.done if not isinstance(one[1], Pause)]


@given(loop=loops)
def test_inputs_wait_for_one_cycle_at_most_and_a_cycle_for_one_step(loop: SimulatedLoop) -> None:
    done = actions(loop)
    turns = [action for _, action, _, _ in done if isinstance(action, HandleInputs | RunCycle)]
    for first, second in pairwise(turns):
        assert not (isinstance(first, RunCycle) and isinstance(second, RunCycle))
    for (_, action, _, _), (_, following, _, seen) in pairwise(done):
        if isinstance(action, HandleInputs) and seen.is_dirty and seen.may_plan:
            assert isinstance(following, RunCycle)


@given(loop=loops)
def test_a_deep_cycle_gives_way_to_inputs_for_a_second(loop: SimulatedLoop) -> None:
    settings = loop.settings
    assert settings.deep_every_s is not None
    assert settings.deep_late_s is not None
    possible_from = 0.0
    for began, action, ended, seen in actions(loop):
        if action == RunCycle(deep=True):
            assert began >= possible_from + settings.deep_late_s - 1e-9 or not (
                seen.has_inputs or seen.is_dirty
            )
            possible_from = ended + settings.deep_every_s


def test_deep_cycles_run_although_inputs_arrive_all_the_time() -> None:
    """As while thousands of pods are created: their owners are told meanwhile why they wait."""
    arrivals = [number / 100 for number in range(2000)]
    loop = SimulatedLoop(SETTINGS, arrivals, [0.01, 0.02])
    loop.run(20.0)
    deep = [began for began, action, _, _ in loop.done if action == RunCycle(deep=True)]
    assert all(following - one <= 2.0 for one, following in pairwise([0.0, *deep, 20.0]))


@given(loop=loops)
def test_deep_cycles_take_at_most_their_share_and_forecasts_are_refreshed(loop: SimulatedLoop) -> None:
    settings, arrivals = loop.settings, list(loop.arrivals)
    assert settings.deep_every_s is not None
    assert settings.refresh_after_s is not None
    deep = [(began, ended) for began, action, ended, _ in actions(loop) if action == RunCycle(deep=True)]
    for (began, ended), (following, _) in pairwise(deep):
        assert following - ended >= settings.deep_every_s - 1e-9
        assert following - began >= settings.deep_share * (ended - began) - 1e-9
    for (began, ended), (following, _) in pairwise(
        [(0.0, 0.0), *deep, (min(UNTIL_S, loop.shutdown_at), UNTIL_S)]
    ):
        earliest = ended + max(settings.deep_every_s, (settings.deep_share - 1) * (ended - began))
        # Afterwards, a step and whatever else is due come first. Inputs postpone it.
        latest = earliest + settings.refresh_after_s + 4 * max(loop.costs)
        assert following <= latest or any(began <= at <= latest for at in arrivals)


@given(loop=loops)
def test_nothing_that_was_due_is_forgotten(loop: SimulatedLoop) -> None:
    done = actions(loop)
    # At worst a step, a cycle, another step, a cycle and pruning come first, and the action takes as long.
    slack_s = 6 * max(loop.costs)
    heartbeats = [ended for _, action, ended, _ in done if isinstance(action, SendHeartbeat)]
    for one, following in pairwise([0.0, *heartbeats, UNTIL_S]):
        assert following - one <= (loop.settings.heartbeat_every_s or 0.0) + slack_s
    for began, _, _, seen in loop.done:
        assert seen.timer_at is None or began - seen.timer_at <= slack_s
    pruned = [began for began, action, _, _ in done if isinstance(action, PruneHistory)]
    assert len(pruned) == (0 if loop.settings.prune_every_s is None else 1)


@given(loop=loops)
def test_nothing_is_planned_while_no_job_may_start(loop: SimulatedLoop) -> None:
    for began, action, _, _ in actions(loop):
        assert not isinstance(action, RunCycle) or began < loop.shutdown_at
