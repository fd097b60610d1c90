"""What an operator decides: queues, their policies, and the limits of patience.

Every bound has a unit in its name. Nothing here changes while a scheduler runs; what people change at run
time (a queue stopped, a node drained) is state, and recorded.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from penstock.errors import BadRequest
from penstock.model.constraint import Constraint

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
    """How many jobs that cannot start get a reservation, before later ones may fill the holes."""

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
    duration_default_s: int | None = None  # None: without an end
    duration_max_s: int | None = None  # None: any
    constraint: Constraint | None = None  # which nodes it may use
    constraint_text: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    queues: tuple[QueueSettings, ...] = (QueueSettings(DEFAULT_QUEUE),)  # the first one is the default
    match_policy: str = "lonode"
    queue_depth: int | None = None  # jobs of a queue that a pass looks at; None: all
    starts_max: int = 500  # of one pass: facts and questions wait meanwhile
    forecast_depth: int = 100  # jobs that get an expected start
    forecast_matches_max: int = 2000  # tries that one forecast may cost
    lost_timeout_s: float = 30.0  # how long a member may be silent
    gang_repair_timeout_s: float = 120.0  # how long a group that has begun may stay incomplete
    grace_s: float = 5.0  # between asking a member to end and ending it
    attempts_max: int = 10  # runs of one job that is queued again by itself
    pending_max: int = 1_000_000

    def queue(self, name: str) -> QueueSettings:
        """The queue of that name; "" is the default one."""
        if not name:
            return self.queues[0]
        for queue in self.queues:
            if queue.name == name:
                return queue
        known = ", ".join(queue.name for queue in self.queues)
        raise BadRequest(
            f"Invalid queue '{name}' specified", where="attributes.system.queue", found=name, expected=known
        )
