"""The inside of a scheduler, for tests that corrupt it on purpose or compare it with an oracle.

All other tests ask the scheduler (`jobs`, `queued`, `allocation`, ...); `test_internals.py` looks for those
that do not.
"""

from __future__ import annotations

from penstock.engine.engine import Engine
from penstock.sched.scheduler import Scheduler
from penstock.sched.state import SchedulerState
from penstock.sched.validate import violations

__all__ = ["check_invariants", "corruptible_state", "engine_of", "violations_of"]


def corruptible_state(scheduler: Scheduler) -> SchedulerState:
    """The state of a scheduler, to be changed in a way that no fact or command could."""
    return scheduler.state


def engine_of(scheduler: Scheduler) -> Engine:
    """The engine of a scheduler, to ask it what the scheduler has asked."""
    return scheduler.state.cluster.engine


def violations_of(scheduler: Scheduler) -> list[str]:
    """What does not hold between the parts of the state."""
    return violations(scheduler.state)


def check_invariants(scheduler: Scheduler, _step: object = None) -> None:
    """Fails unless all parts of the state agree; to be called after every step."""
    found = violations_of(scheduler)
    assert found == [], found
