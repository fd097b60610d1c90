"""Sets of nodes as integers, one bit per node, and nodes ordered by a number in blocks of such sets.

Python runs the loops over an integer in C, so that an intersection of two sets of ten thousand nodes takes a
tenth of a microsecond. `NodeBlocks` keeps nodes in the order of a value (free units, for instance) in blocks
of about `_BLOCK_MAX` nodes with one set each: all nodes with at least a given value are the union of some
blocks and a part of one, and a change of one value costs one block.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Final

__all__ = ["NodeBlocks", "bits_of", "highest_bits", "set_of_bits"]

_BLOCK_MAX: Final = 128
_CHUNK: Final = 64
_CHUNK_MASK: Final = (1 << _CHUNK) - 1


def bits_of(nodes: int) -> Iterator[int]:
    """The members of a set, in ascending order."""
    base = 0
    while nodes:
        # Skipping a stretch of zeros costs one operation on the whole integer, a member one on a small one.
        lowest = (nodes & -nodes).bit_length() - 1
        nodes >>= lowest
        base += lowest
        chunk = nodes & _CHUNK_MASK
        nodes >>= _CHUNK
        while chunk:
            bit = chunk & -chunk
            yield base + bit.bit_length() - 1
            chunk ^= bit
        base += _CHUNK


def highest_bits(nodes: int) -> Iterator[int]:
    """The members of a set, in descending order."""
    while nodes:
        top = nodes.bit_length()
        floor = max(top - _CHUNK, 0)
        chunk = nodes >> floor
        nodes ^= chunk << floor
        while chunk:
            bit = chunk.bit_length() - 1
            yield floor + bit
            chunk ^= 1 << bit


def set_of_bits(bits: Iterable[int], size: int) -> int:
    """The set with these members, all below `size`."""
    members = bytearray(size // 8 + 1)
    for bit in bits:
        members[bit >> 3] |= 1 << (bit & 7)
    return int.from_bytes(members, "little")


class NodeBlocks:
    """Nodes in ascending order of a value."""

    __slots__ = ("_blocks", "_lasts", "_sets", "_values")

    def __init__(self) -> None:
        self._values: dict[int, int] = {}
        self._blocks: list[list[tuple[int, int]]] = []  # (value, node)
        self._sets: list[int] = []
        self._lasts: list[tuple[int, int]] = []  # the last entry of each block

    def fill(self, values: dict[int, int]) -> None:
        """Replaces everything."""
        self._values = values
        entries = sorted((value, node) for node, value in values.items())
        size = _BLOCK_MAX // 2
        self._blocks = [entries[at : at + size] for at in range(0, len(entries), size)]
        self._lasts = [block[-1] for block in self._blocks]
        self._sets = [_set_of(block) for block in self._blocks]

    def value(self, node: int) -> int | None:
        return self._values.get(node)

    def put(self, node: int, value: int | None) -> None:
        """Sets the value of a node. None: the node is not listed."""
        before = self._values.get(node)
        if before == value:
            return
        if before is not None:
            self._remove(node, before)
        if value is not None:
            self._insert(node, value)

    def at_least(self, value: int) -> int:
        """The set of the nodes with this value or more."""
        place = bisect_left(self._lasts, (value, -1))
        if place == len(self._blocks):
            return 0
        block = self._blocks[place]
        if block[0][0] >= value:
            nodes = self._sets[place]
        else:
            nodes = _set_of(block[bisect_left(block, (value, -1)) :])
        for further in self._sets[place + 1 :]:
            nodes |= further
        return nodes

    def ascending(self, nodes: int) -> Iterator[tuple[int, int]]:
        """(value, node) of the members of a set, the lowest value first."""
        for block, members in zip(self._blocks, self._sets, strict=True):
            if members & nodes:
                for value, node in block:
                    if nodes >> node & 1:
                        yield value, node

    def descending(self, nodes: int) -> Iterator[tuple[int, int]]:
        """(value, node) of the members of a set, the highest value first; equal values by descending node."""
        for place in range(len(self._blocks) - 1, -1, -1):
            if self._sets[place] & nodes:
                for value, node in reversed(self._blocks[place]):
                    if nodes >> node & 1:
                        yield value, node

    def levels(self, nodes: int, is_descending: bool) -> Iterator[int]:
        """The members of a set that have one value, value by value."""
        places = range(len(self._blocks))
        level, value = 0, 0
        for place in reversed(places) if is_descending else places:
            if not self._sets[place] & nodes:
                continue
            block = self._blocks[place]
            for here, node in reversed(block) if is_descending else block:
                if nodes >> node & 1:
                    if level and here != value:
                        yield level
                        level = 0
                    level |= 1 << node
                    value = here
        if level:
            yield level

    def _insert(self, node: int, value: int) -> None:
        self._values[node] = value
        entry = (value, node)
        if not self._blocks:
            self._blocks.append([])
            self._sets.append(0)
            self._lasts.append(entry)
        place = min(bisect_left(self._lasts, entry), len(self._blocks) - 1)
        block = self._blocks[place]
        insort(block, entry)
        self._sets[place] |= 1 << node
        self._lasts[place] = block[-1]
        if len(block) > _BLOCK_MAX:
            upper = block[_BLOCK_MAX // 2 :]
            del block[_BLOCK_MAX // 2 :]
            self._lasts[place] = block[-1]
            self._sets[place] = _set_of(block)
            self._blocks.insert(place + 1, upper)
            self._sets.insert(place + 1, _set_of(upper))
            self._lasts.insert(place + 1, upper[-1])

    def _remove(self, node: int, value: int) -> None:
        del self._values[node]
        entry = (value, node)
        place = bisect_left(self._lasts, entry)
        block = self._blocks[place]
        del block[bisect_left(block, entry)]
        if block:
            self._sets[place] ^= 1 << node
            self._lasts[place] = block[-1]
        else:
            del self._blocks[place]
            del self._sets[place]
            del self._lasts[place]


def _set_of(block: list[tuple[int, int]]) -> int:
    nodes = 0
    for _, node in block:
        nodes |= 1 << node
    return nodes
