"""The scores of the slots that every node could hold, for policies that compare them over all nodes.

Under `low` and `high` the score of a slot does not tell its node: the best slot can be anywhere, so a walk
visits every node that fits. Here the scores of one kind of slot are kept node by node, and a node is counted
again only after something on it has changed. Nodes of one shape on which the same is in use share their
scores, so that few of them are ever visited. Nodes are kept in the order of their best slot, the slots of
equal score in the order of a walk.

Scores are kept for nodes on which no booking begins later: there, what is free now stays free. On the other
nodes the slots depend on the end of the window, and they are visited for each request.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from penstock.engine.candidates import Candidate, Choice
from penstock.engine.graph import Vertex
from penstock.engine.node_fits import NodeFits
from penstock.engine.node_index import NodeIndex
from penstock.engine.node_sets import NodeBlocks, bits_of
from penstock.engine.policies import SearchOrder
from penstock.engine.vertex_state import TimeView, Window, free_units, is_idle

__all__ = ["SlotScores"]

_PLACE_BITS: Final = 40
_SHARED_MAX: Final = 1024

_Visit = Callable[[Vertex], list[Candidate]]


class _Keys:
    """The keys of the slots of a node, the best one lowest: as found by a walk, and in order."""

    __slots__ = ("_choices", "found", "ordered")

    def __init__(self, found: list[int], candidates: list[Candidate], members: tuple[Vertex, ...]) -> None:
        self.found = found
        self.ordered = sorted((key, number) for number, key in enumerate(found))
        # By slot: its choices, with their positions and those of what is above them; None: not known
        self._choices: list[list[tuple[Choice, int, int]]] | None = None
        is_flat = all(not choice.inner for candidate in candidates for choice in candidate.choices)
        if is_flat and members:
            at = {vertex.index: position for position, vertex in enumerate(members)}
            self._choices = [
                [(one, at[one.vertex.index], at[one.above.index]) for one in candidate.choices if one.above]
                for candidate in candidates
            ]

    def choices(self, number: int, members: tuple[Vertex, ...], slot: int) -> list[Choice] | None:
        """The vertices of a slot on a node that has these keys; None: a walk must tell."""
        if self._choices is None or not members:
            return None
        return [
            Choice(members[at], members[above], one.units, True, [], one.label, one.whole, slot)
            for one, at, above in self._choices[number]
        ]


class SlotScores:
    def __init__(self, index: NodeIndex, fits: NodeFits, order: SearchOrder, *, high_first: bool) -> None:
        self._index = index
        self._fits = fits
        self._order = order
        self._sign = -1 if high_first else 1
        self.stale: set[int] = set()  # nodes that were counted again; the index adds to it
        self._numbered = -1
        self._keys: dict[int, _Keys] = {}
        self._best = NodeBlocks()
        self._shared: dict[tuple[object, ...], _Keys] = {}  # by shape and what is in use
        self._slots = 0
        self._with = 0  # nodes that have keys here
        self._later = 0  # nodes on which a booking begins later

    def select(self, nodes: int, count: int, visit: _Visit) -> list[Choice] | None:
        """The vertices of the best slots on a set of nodes; None if there are too few slots."""
        self._refresh(visit)
        fresh = {
            bit: self._keys_of(visit(self._index.nodes[bit]), ()) for bit in bits_of(nodes & self._later)
        }
        kept = nodes & ~self._later
        if kept & self._with == self._with:
            available = self._slots
        else:
            available = sum(len(self._keys[bit].found) for bit in bits_of(kept & self._with))
        available += sum(len(keys.found) for keys in fresh.values())
        if available < count:
            return None
        if self._order.keeps_ties(available):
            chosen = self._lowest(kept, fresh, count)
        else:
            chosen = self._ranked(kept, fresh, count)
        choices: list[Choice] = []
        visited: dict[int, list[Candidate]] = {}
        for slot, (bit, number) in enumerate(chosen):
            node = self._index.nodes[bit]
            shape = self._fits.shape(node)
            known = self._keys[bit].choices(number, shape[1], slot) if bit in self._keys and shape else None
            if known is not None:
                choices += known
                continue
            if bit not in visited:
                visited[bit] = visit(node)
            choices.extend(
                Choice(one.vertex, one.above, one.units, True, one.inner, one.label, one.whole, slot)
                for one in visited[bit][number].choices
            )
        return choices

    def _lowest(self, kept: int, fresh: dict[int, _Keys], count: int) -> list[tuple[int, int]]:
        """(node, number of the slot there) of the lowest keys; equal keys in the order of a walk."""
        places = self._index.numbering.places
        following = self._best.ascending(kept)
        heap: list[tuple[int, int, int, int, int]] = []  # key, place and number on the node; rank there, node
        for bit, keys in fresh.items():
            if keys.ordered:
                heap.append((keys.ordered[0][0], places[bit], keys.ordered[0][1], 0, bit))
        heapq.heapify(heap)
        chosen: list[tuple[int, int]] = []
        coming = next(following, None)
        while len(chosen) < count:
            while coming is not None and (not heap or coming[0] <= (heap[0][0] << _PLACE_BITS) + heap[0][1]):
                bit = coming[1]
                key, number = self._keys[bit].ordered[0]
                heapq.heappush(heap, (key, places[bit], number, 0, bit))
                coming = next(following, None)
            _, place, number, rank, bit = heapq.heappop(heap)
            chosen.append((bit, number))
            ordered = (fresh.get(bit) or self._keys[bit]).ordered
            if rank + 1 < len(ordered):
                key, number = ordered[rank + 1]
                heapq.heappush(heap, (key, place, number, rank + 1, bit))
        return chosen

    def _ranked(self, kept: int, fresh: dict[int, _Keys], count: int) -> list[tuple[int, int]]:
        """As `_lowest` for an order that mixes equal keys, which depends on all of them."""
        places = self._index.numbering.places
        bits = [*bits_of(kept & self._with), *fresh]
        bits.sort(key=lambda bit: places[bit])
        keys: list[int] = []
        origins: list[tuple[int, int]] = []  # of each node: position of its first key, node
        for bit in bits:
            origins.append((len(keys), bit))
            keys += (fresh.get(bit) or self._keys[bit]).found
        chosen: list[tuple[int, int]] = []
        for position in self._order.lowest(keys, count):
            start, bit = _last_before(origins, position)
            chosen.append((bit, position - start))
        return chosen

    def _refresh(self, visit: _Visit) -> None:
        index = self._index
        if self._numbered != index.numbered:
            self._numbered = index.numbered
            self._keys, self._best, self._slots, self._shared = {}, NodeBlocks(), 0, {}
            self._with = self._later = 0
            self.stale.clear()
            values: dict[int, int] = {}
            for bit, node in enumerate(index.nodes):
                keys = self._count(bit, node, visit)
                if keys is not None:
                    values[bit] = self._note(bit, keys)
            self._best.fill(values)
            return
        for bit in self.stale:
            before = self._keys.pop(bit, None)
            if before is not None:
                self._slots -= len(before.found)
                self._with ^= 1 << bit
            keys = self._count(bit, index.nodes[bit], visit)
            self._best.put(bit, self._note(bit, keys) if keys is not None else None)
        self.stale.clear()

    def _note(self, bit: int, keys: _Keys) -> int:
        self._keys[bit] = keys
        self._slots += len(keys.found)
        self._with |= 1 << bit
        return (keys.ordered[0][0] << _PLACE_BITS) + self._index.numbering.places[bit]

    def _count(self, bit: int, node: Vertex, visit: _Visit) -> _Keys | None:
        """The keys of a node; None if it has no slot, or they cannot be kept."""
        index = self._index
        self._later &= ~(1 << bit)
        if not index.is_present(node):
            return None
        state = node.state
        if state is not None and any(booking.start > index.now for booking in state.bookings.values()):
            self._later |= 1 << bit
            return None
        shape = self._fits.shape(node) if node.up else None
        used = self._in_use(node, shape[1]) if shape is not None else None
        if shape is None or used is None:
            keys = self._keys_of(visit(node), ())
            return keys if keys.found else None
        key = (shape[0], used)
        shared = self._shared.get(key)
        if shared is None:
            if len(self._shared) >= _SHARED_MAX:
                self._shared.clear()
            shared = self._shared[key] = self._keys_of(visit(node), shape[1])
        return shared if shared.found else None

    def _in_use(self, node: Vertex, members: tuple[Vertex, ...]) -> tuple[tuple[int, int, bool], ...] | None:
        """Equal for nodes of one shape that a walk treats alike; None if only a walk can tell."""
        state = node.state
        if state is None:
            return ()
        if state.external or state.excess or state.excess_below:
            return None
        now = self._index.now
        window = Window(now, now + 1, now, TimeView.NOW)
        return tuple(
            [
                (position, free_units(vertex, window), is_idle(vertex, window))
                for position, vertex in enumerate(members)
                if vertex.state is not None
            ]
        )

    def _keys_of(self, candidates: list[Candidate], members: tuple[Vertex, ...]) -> _Keys:
        return _Keys([self._sign * candidate.score for candidate in candidates], candidates, members)


def _last_before(origins: list[tuple[int, int]], position: int) -> tuple[int, int]:
    low, high = 0, len(origins)
    while high - low > 1:
        middle = (low + high) // 2
        if origins[middle][0] <= position:
            low = middle
        else:
            high = middle
    return origins[low]
