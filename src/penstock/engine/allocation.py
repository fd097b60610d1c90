"""Results of a match: an allocation, or a refusal with its reason.

Every result is an immutable value. `Allocation` lists its vertices in the order in which Flux writes them
(children before parents, in edge order), and again by slot. `NotNow` and `Never` are separate types because
the caller must react differently.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.engine.graph import Vertex
from penstock.model.exclusion_key import ExclusionKey

if TYPE_CHECKING:
    from penstock.engine.node_blocks import Block

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
    ALLOCATED = "ALLOCATED"  # running: holds its units until it is released
    RESERVED = "RESERVED"  # planned: starts later
    MATCHED = "MATCHED"  # a query: nothing is booked


@dataclass(frozen=True, slots=True)
class Pick:
    """A vertex of an allocation: a booked one, or an ancestor of a booked one."""

    vertex: Vertex
    units: int
    exclusive: bool
    depth: int  # 1 at the root
    above: Vertex | None = None  # the parent on the path by which the walker reached it
    label: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    vertex: Vertex
    units: int


@dataclass(frozen=True, slots=True)
class Slot:
    """The resources of one member, and their node (None if the slot contains whole nodes)."""

    group: int
    node: Vertex | None
    grants: tuple[Grant, ...]
    number: int = -1  # unique in its job and never reused; -1: not booked
    brings: tuple[ExclusionKey, ...] = ()

    def on_copies(self, copies: Mapping[int, Vertex]) -> Slot:
        """The same slot on copies of the vertices, given by index."""
        node = copies.get(self.node.index, self.node) if self.node is not None else None
        grants = tuple(
            Grant(copies.get(grant.vertex.index, grant.vertex), grant.units) for grant in self.grants
        )
        return Slot(self.group, node, grants, self.number, self.brings)


class Allocation:
    """What a job gets. Picks and slots of whole nodes are made when they are first read."""

    __slots__ = ("_picks", "_slots", "blocks", "end_s", "job", "kind", "start_s")

    def __init__(
        self,
        job: int,
        kind: AllocationKind,
        start_s: int,
        end_s: int | None,
        picks: tuple[Pick, ...] | Callable[[], tuple[Pick, ...]],
        slots: tuple[Slot, ...] | Callable[[], tuple[Slot, ...]],
        blocks: tuple[Block, ...] = (),
    ) -> None:
        self.job = job
        self.kind = kind
        self.start_s = start_s
        self.end_s = end_s  # None: until it is released
        self._picks = picks
        self._slots = slots
        self.blocks = blocks  # the whole nodes that it consists of; (): it is described by its picks alone

    @property
    def picks(self) -> tuple[Pick, ...]:
        if not isinstance(self._picks, tuple):
            self._picks = self._picks()
        return self._picks

    @property
    def slots(self) -> tuple[Slot, ...]:
        if not isinstance(self._slots, tuple):
            self._slots = self._slots()
        return self._slots

    def with_picks(self, picks: tuple[Pick, ...]) -> Allocation:
        return Allocation(self.job, self.kind, self.start_s, self.end_s, picks, self._slots)

    def _fields(self) -> tuple[object, ...]:
        return self.job, self.kind, self.start_s, self.end_s, self.picks, self.slots

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Allocation) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        return f"Allocation{self._fields()}"


@dataclass(frozen=True, slots=True)
class FunnelStage:
    """One stage of a funnel: how many nodes or units pass it, and how many are needed."""

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
    """Why a request is refused: the clause that failed, the stages of the funnel, and the blockers."""

    clause: str
    stages: tuple[FunnelStage, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    down: tuple[str, ...] = ()  # nodes that would do if they were up

    def __str__(self) -> str:
        return self.clause


@dataclass(frozen=True, slots=True)
class NotNow:
    earliest_s: int | None  # None: no start is known
    reason: Reason


@dataclass(frozen=True, slots=True)
class Never:
    reason: Reason


@dataclass(frozen=True, slots=True)
class Satisfiable:
    """The request could run if all resources were up and free."""


MatchResult = Allocation | NotNow | Never | Satisfiable
