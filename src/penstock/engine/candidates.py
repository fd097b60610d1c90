"""What a walk finds and selects: choices of vertices, candidates with a score, and the resulting selection.

A `Candidate` is one possibility that the policy ranks: one vertex, or the vertices of one slot. A `Selection`
is the result of a walk. Choices and candidates are created for every vertex that a walk visits, so they are
plain slotted classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.engine.graph import Vertex

if TYPE_CHECKING:
    from penstock.engine.node_blocks import Block

__all__ = ["Candidate", "Choice", "Found", "Selection", "bundles", "nodes_of", "reduced"]

_NODE: Final = "node"


class Choice:
    """A selected vertex, its units, and what is selected below it."""

    __slots__ = ("above", "booked", "inner", "label", "slot", "units", "vertex", "whole")

    def __init__(
        self,
        vertex: Vertex,
        above: Vertex | None,
        units: int,
        booked: bool,
        inner: list[Choice],
        label: str,
        whole: bool,
        slot: int = -1,
    ) -> None:
        self.vertex = vertex
        self.above = above  # the parent on the path taken; a shared vertex has several
        self.units = units
        self.booked = booked  # in a slot or requested as exclusive; otherwise only passed through
        self.inner = inner
        self.label = label
        self.whole = whole  # requested as exclusive: includes its whole subtree
        self.slot = slot  # the slot that this is an outermost vertex of; -1: none


class Candidate:
    """A possible selection: one vertex, or the vertices of one slot."""

    __slots__ = ("choices", "count", "divisible", "score")

    def __init__(self, score: int, count: int, choices: list[Choice], divisible: bool = False) -> None:
        self.score = score
        self.count = count
        self.choices = choices
        self.divisible = divisible  # any number of its units can be allocated


Found = dict[str, list[Candidate]]


@dataclass(frozen=True, slots=True)
class Selection:
    """The result of a walk, or whole nodes that the index has selected without one."""

    top: Vertex
    choices: tuple[Choice, ...]
    blocks: tuple[Block, ...] = ()

    def slots(self) -> list[list[Choice]]:
        """The outermost vertices of each slot."""
        slots: dict[int, list[Choice]] = {}
        pending = list(reversed(self.choices))
        while pending:
            choice = pending.pop()
            if choice.slot >= 0:
                slots.setdefault(choice.slot, []).append(choice)
            else:
                pending.extend(reversed(choice.inner))
        return list(slots.values())


def nodes_of(selections: Iterable[Selection]) -> tuple[Vertex, ...]:
    """The nodes that contain what is selected."""
    nodes: dict[int, Vertex] = {}
    pending = [choice for selection in selections for choice in selection.choices]
    while pending:
        choice = pending.pop()
        pending.extend(choice.inner)
        for vertex in (choice.vertex, *choice.vertex.ancestors()) if choice.booked else ():
            if vertex.type == _NODE:
                nodes[vertex.index] = vertex
    return tuple(nodes.values())


def bundles(candidates: list[Candidate], per_slot: int) -> Iterator[list[tuple[Candidate, int]]]:
    """Groups candidates in order; each group has what one slot needs."""
    pile: list[tuple[Candidate, int]] = []
    missing = per_slot
    for candidate in candidates:
        left = candidate.count
        while left > 0:
            units = min(left, missing) if candidate.divisible else left
            pile.append((candidate, units))
            left -= units
            missing -= units
            if missing <= 0:
                yield pile
                pile = []
                missing = per_slot


def reduced(candidate: Candidate, units: int) -> Candidate:
    """Reduces a divisible candidate to the units that are needed."""
    picked = candidate.choices[0]
    if not candidate.divisible or candidate.count <= units:
        return candidate
    part = Choice(
        picked.vertex, picked.above, units, picked.booked, picked.inner, picked.label, False, picked.slot
    )
    return Candidate(candidate.score, units, [part], True)
