"""Settings of the scheduler: queues, their policies, bounds and timeouts.

Every bound has its unit in its name. Settings do not change while a scheduler runs. What users change at run
time (a stopped queue, a drained node) is part of the recorded state.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from penstock.errors import BadRequest
from penstock.model.constraint import Constraint
from penstock.model.duration import format_duration
from penstock.model.job import URGENCY_DEFAULT
from penstock.model.queue_rules import QueueRules

__all__ = ["DEFAULT_QUEUE", "Backfill", "BackfillKind", "QueueSettings", "Settings", "parse_backfill"]

DEFAULT_QUEUE: Final = "default"


class BackfillKind(enum.Enum):
    FCFS = "fcfs"
    EASY = "easy"
    HYBRID = "hybrid"
    CONSERVATIVE = "conservative"


_DEPTHS: Final = {
    BackfillKind.FCFS: 0,
    BackfillKind.EASY: 1,
    BackfillKind.HYBRID: 64,
    BackfillKind.CONSERVATIVE: 100_000,
}


@dataclass(frozen=True, slots=True)
class Backfill:
    """How many waiting jobs of a queue get a reservation before later jobs are backfilled."""

    kind: BackfillKind = BackfillKind.EASY
    depth: int = 1

    def __str__(self) -> str:
        is_usual = self.depth == _DEPTHS[self.kind]
        return self.kind.value if is_usual else f"{self.kind.value}:{self.depth}"


def parse_backfill(text: str) -> Backfill:
    """`fcfs`, `easy`, `hybrid`, `hybrid:8`, `conservative`."""
    name, colon, depth = text.partition(":")
    kinds = {kind.value: kind for kind in BackfillKind}
    kind = kinds.get(name)
    has_depth = kind in (BackfillKind.HYBRID, BackfillKind.CONSERVATIVE)
    is_number = depth.isascii() and depth.isdigit() and 1 <= int(depth) <= _DEPTHS[BackfillKind.CONSERVATIVE]
    if kind is None or (colon and not (has_depth and is_number)):
        raise BadRequest(
            "no such queue policy",
            where="policy",
            found=repr(text),
            expected="fcfs, easy, hybrid, hybrid:DEPTH, conservative or conservative:DEPTH",
        )
    return Backfill(kind, int(depth) if colon else _DEPTHS[kind])


@dataclass(frozen=True, slots=True)
class QueueSettings:
    name: str
    backfill: Backfill = Backfill()
    duration_default_s: int | None = None  # None: no limit
    duration_max_s: int | None = None  # None: unlimited
    constraint: Constraint | None = None  # nodes that it may use
    constraint_text: str = ""
    namespaces: tuple[str, ...] = ("*",)  # shell patterns: whose jobs it admits
    urgency_max: int = URGENCY_DEFAULT  # of users; operators may use any
    pending_max: int = 10_000  # pending jobs of workloads of one namespace; more wait outside the queue

    @property
    def rules(self) -> QueueRules:
        return QueueRules(self.name, self.namespaces, self.urgency_max, self.duration_max_s)


@dataclass(frozen=True, slots=True)
class Settings:
    queues: tuple[QueueSettings, ...] = (QueueSettings(DEFAULT_QUEUE),)  # the first one is the default
    match_policy: str = "lonode"
    queue_depth: int | None = None  # entries of a queue that one cycle considers; None: all
    starts_max: int = 500  # starts in one cycle; inputs wait until it ends
    forecast_depth: int = 100  # jobs that get a forecast
    forecast_matches_max: int = 2000  # matches that one forecast may cost
    reservation_horizon_s: float = 7 * 86400.0  # a start later than this is a forecast, not a reservation
    lost_timeout_s: float = 30.0  # how long a lost member may be unreachable before its node counts as failed
    gang_repair_timeout_s: float = 120.0  # how long members of a started group may wait for a node
    # How long a slot is kept for a replacement: the longest back-off of a Job is ten minutes.
    replacement_timeout_s: float = 660.0
    starvation_after_s: float = 600.0  # wait without a start time after which a job may claim nodes
    claim_backfill_max_s: float = 600.0  # longest enforced limit with which others may use claimed nodes
    grace_s: float = 5.0  # between the signal that ends a member and SIGKILL
    attempts_max: int = 10  # attempts of a job that is requeued automatically
    pending_max: int = 1_000_000  # active jobs; a submission beyond it is refused
    shapes_max: int = 500  # distinct requests of the pending jobs of one namespace
    group_size_max: int = 16_384  # members of a job

    def queue(self, name: str) -> QueueSettings:
        """The queue of that name; "" is the default one."""
        if not name:
            return self.queues[0]
        for queue in self.queues:
            if queue.name == name:
                return queue
        known = ", ".join(queue.name for queue in self.queues)
        raise BadRequest("no such queue", where="attributes.system.queue", found=repr(name), expected=known)

    def queue_of_job(self, name: str) -> QueueSettings:
        """The queue of a job that was accepted before; the default one if the queue has been removed."""
        return next((queue for queue in self.queues if queue.name == name), self.queues[0])

    def refusal(self, queue: str, limit_s: int | None) -> str:
        """Why a job that was accepted before is not admitted by these settings; "" if it is."""
        known = [one.name for one in self.queues]
        if queue not in known:
            return f"the configuration has no queue {queue} any more, only {', '.join(known)}"
        most = self.queue(queue).duration_max_s
        if most is None or (limit_s is not None and limit_s <= most):
            return ""
        found = "it has no time limit" if limit_s is None else f"its time limit is {format_duration(limit_s)}"
        return f"{found}, and queue {queue} allows at most {format_duration(most)}"
