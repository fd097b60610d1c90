"""What the engine answers: an allocation, or a refusal that says why.

Every answer is a value. `Allocation` lists the vertices in the order in which Flux writes them
(children before parents, in edge order) and the same by slot. `NotNow` and `Never` differ in type,
because they differ in what the caller has to do.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from penstock.engine.graph import Vertex

__all__ = [
    "Allocation",
    "AllocationKind",
    "Blocker",
    "FunnelStage",
    "Grant",
    "MatchResult",
    "Never",
    "NotNow",
    "Pick",
    "Reason",
    "Satisfiable",
    "Slot",
]


class AllocationKind(enum.Enum):
    ALLOCATED = "ALLOCATED"  # live: holds its units until it is released
    RESERVED = "RESERVED"  # planned: a later start
    MATCHED = "MATCHED"  # only looked up: nothing is booked


@dataclass(frozen=True, slots=True)
class Pick:
    """A vertex of an allocation: one that it has, or one that lies above such a one."""

    vertex: Vertex
    units: int
    exclusive: bool
    depth: int  # 1 at the root
    above: Vertex | None = None  # the vertex it was reached from
    label: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    vertex: Vertex
    units: int


@dataclass(frozen=True, slots=True)
class Slot:
    """What one member gets, and on which node (none if the slot lies above nodes)."""

    group: int
    node: Vertex | None
    grants: tuple[Grant, ...]
    number: int = -1  # unique in its job, never used again; -1: of nothing that is booked


@dataclass(frozen=True, slots=True)
class Allocation:
    job: int
    kind: AllocationKind
    start_s: int
    end_s: int | None  # None: until it is released
    picks: tuple[Pick, ...]
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class FunnelStage:
    """One step of the way to a match: how many vertices were left after it."""

    name: str
    passed: int
    needed: int


@dataclass(frozen=True, slots=True)
class Blocker:
    """A job or an external usage that occupies what the request lacks."""

    job: int | None = None  # None: an external usage
    external_usage: str = ""  # its name; "": a job
    until_s: int | None = None  # None: no known end

    def __str__(self) -> str:
        return self.external_usage if self.job is None else f"job {self.job}"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why not: the clause that failed, the steps up to it, and what stands in the way."""

    clause: str
    stages: tuple[FunnelStage, ...] = ()
    blockers: tuple[Blocker, ...] = ()

    def __str__(self) -> str:
        return self.clause


@dataclass(frozen=True, slots=True)
class NotNow:
    earliest_s: int | None  # None: waits for something that has no known end
    reason: Reason


@dataclass(frozen=True, slots=True)
class Never:
    reason: Reason


@dataclass(frozen=True, slots=True)
class Satisfiable:
    """It could run on these resources, if they were all up and free."""


MatchResult = Allocation | NotNow | Never | Satisfiable
