"""The order in which Fluxion leaves candidates of equal score.

Fluxion sorts its candidates with the C++ library's `std::sort`, which does not keep the order of
equals once there are more than 16. What becomes of them follows from how that sort works: it splits
around the median of three until parts are small (or, should that go badly, makes a heap), and ends
with an insertion sort. `ranking` goes the same way over positions, so that equals end up where
Fluxion has them. Beyond `CANDIDATES_MAX` equals keep the order in which they were found.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CANDIDATES_MAX", "ranking"]

CANDIDATES_MAX: Final = 4096
_SMALL: Final = 16  # a part of this size is left to the insertion sort


def ranking(keys: list[int]) -> list[int]:
    """Positions in ascending order of their keys."""
    places = list(range(len(keys)))
    if _SMALL < len(keys) <= CANDIDATES_MAX:
        _split(places, keys, 0, len(keys), 2 * (len(keys).bit_length() - 1))
    # An insertion sort keeps the order of equals, as does this one.
    return sorted(places, key=lambda place: keys[place])


def _split(places: list[int], keys: list[int], first: int, last: int, depth: int) -> None:
    while last - first > _SMALL:
        if depth == 0:
            places[first:last] = _heap_sorted(places[first:last], keys)
            return
        depth -= 1
        cut = _partition(places, keys, first, last)
        _split(places, keys, cut, last, depth)
        last = cut


def _partition(places: list[int], keys: list[int], first: int, last: int) -> int:
    """Moves the median of three to the front, then parts the rest around it."""
    low, middle, high = first + 1, first + (last - first) // 2, last - 1
    median = _median(places, keys, low, middle, high)
    places[first], places[median] = places[median], places[first]
    pivot = keys[places[first]]
    left, right = first + 1, last
    while True:
        while keys[places[left]] < pivot:
            left += 1
        right -= 1
        while pivot < keys[places[right]]:
            right -= 1
        if left >= right:
            return left
        places[left], places[right] = places[right], places[left]
        left += 1


def _median(places: list[int], keys: list[int], a: int, b: int, c: int) -> int:
    """Which of three is the median; of equals, the one that the C++ library takes."""
    key_a, key_b, key_c = keys[places[a]], keys[places[b]], keys[places[c]]
    if key_a < key_b:
        if key_b < key_c:
            return b
        return c if key_a < key_c else a
    if key_a < key_c:
        return a
    return c if key_b < key_c else b


def _heap_sorted(places: list[int], keys: list[int]) -> list[int]:
    """A heap sort as the C++ library does it: holes sink to the bottom, then values rise."""
    heap = list(places)
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
