"""Reproduces the order in which Fluxion leaves candidates of equal score.

Fluxion sorts its candidates with libstdc++'s `std::sort`, which is not stable for more than 16 elements. It
is an introsort: it partitions around the median of three until ranges are small, falls back to heapsort when
the recursion gets too deep, and finishes with an insertion sort. `ranking` runs the same algorithm over
positions, so that equal keys end in the same order as in Fluxion. For more than `CANDIDATES_MAX` candidates
the sort is stable instead.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CANDIDATES_MAX", "keeps_ties", "lowest", "ranking"]

CANDIDATES_MAX: Final = 4096
_SMALL: Final = 16  # ranges of at most this size are left to the insertion sort


def ranking(keys: list[int]) -> list[int]:
    """Positions in ascending order of their keys."""
    positions = list(range(len(keys)))
    if not keeps_ties(len(keys)):
        _split(positions, keys, 0, len(keys), 2 * (len(keys).bit_length() - 1), len(keys))
    # The final insertion sort is stable, as is `sorted`.
    return sorted(positions, key=lambda position: keys[position])


def keeps_ties(count: int) -> bool:
    """Whether equal keys keep their order among so many."""
    return not _SMALL < count <= CANDIDATES_MAX


def lowest(keys: list[int], count: int) -> list[int]:
    """The first positions of `ranking`, without sorting the rest.

    What is partitioned to the right stays there: of equal keys, the final sort keeps the left ones first.
    """
    if keeps_ties(len(keys)):
        return sorted(range(len(keys)), key=lambda position: keys[position])[:count]
    positions = list(range(len(keys)))
    end = _split(positions, keys, 0, len(keys), 2 * (len(keys).bit_length() - 1), count)
    return sorted(positions[:end], key=lambda position: keys[position])[:count]


def _split(positions: list[int], keys: list[int], first: int, last: int, depth: int, needed: int) -> int:
    """Partitions until ranges are small, without those beyond the first `needed` positions.

    Returns how many positions from the start have their final range.
    """
    end = last
    while last - first > _SMALL:
        if depth == 0:
            positions[first:last] = _heap_sorted(positions[first:last], keys)
            return end
        depth -= 1
        cut = _partition(positions, keys, first, last)
        if cut >= needed:
            end = cut
        else:
            reached = _split(positions, keys, cut, last, depth, needed)
            end = reached if end == last else end
        last = cut
    return end


def _partition(positions: list[int], keys: list[int], first: int, last: int) -> int:
    """Moves the median of three to the front, then partitions the rest around it."""
    low, middle, high = first + 1, first + (last - first) // 2, last - 1
    median = _median(positions, keys, low, middle, high)
    positions[first], positions[median] = positions[median], positions[first]
    pivot = keys[positions[first]]
    left, right = first + 1, last
    while True:
        while keys[positions[left]] < pivot:
            left += 1
        right -= 1
        while pivot < keys[positions[right]]:
            right -= 1
        if left >= right:
            return left
        positions[left], positions[right] = positions[right], positions[left]
        left += 1


def _median(positions: list[int], keys: list[int], a: int, b: int, c: int) -> int:
    """The position of the median of three keys; among equal keys, the one that libstdc++ takes."""
    key_a, key_b, key_c = keys[positions[a]], keys[positions[b]], keys[positions[c]]
    if key_a < key_b:
        if key_b < key_c:
            return b
        return c if key_a < key_c else a
    if key_a < key_c:
        return a
    return c if key_b < key_c else b


def _heap_sorted(positions: list[int], keys: list[int]) -> list[int]:
    """Heapsort as in libstdc++: the hole sinks to a leaf first, then the value rises from there."""
    heap = list(positions)
    for top in range((len(heap) - 2) // 2, -1, -1):
        _sink(heap, keys, top, len(heap), heap[top])
    for end in range(len(heap) - 1, 0, -1):
        value = heap[end]
        heap[end] = heap[0]
        _sink(heap, keys, 0, end, value)
    return heap


def _sink(heap: list[int], keys: list[int], hole: int, size: int, value: int) -> None:
    top = hole
    child = hole
    while child < (size - 1) // 2:
        child = 2 * (child + 1)
        if keys[heap[child]] < keys[heap[child - 1]]:
            child -= 1
        heap[hole] = heap[child]
        hole = child
    if size % 2 == 0 and child == (size - 2) // 2:
        child = 2 * (child + 1)
        heap[hole] = heap[child - 1]
        hole = child - 1
    parent = (hole - 1) // 2
    while hole > top and keys[heap[parent]] < keys[value]:
        heap[hole] = heap[parent]
        hole = parent
        parent = (hole - 1) // 2
    heap[hole] = value
