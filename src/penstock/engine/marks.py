"""Marks as sets: put together, taken apart by slots, and told what is held whole.

Pure functions between what callers say (a set that is known, slots that end) and what the ledger books.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from penstock.engine.allocation import Slot
from penstock.engine.booking import Mark, Marks
from penstock.engine.graph import Vertex
from penstock.errors import BadRequest

__all__ = ["collected", "parents", "with_wholes", "without_slots"]


def collected(marks: Iterable[Mark]) -> Marks:
    """Marks by vertex; parts of one pool are added up."""
    collected: Marks = {}
    for mark in marks:
        before = collected.get(mark.vertex.index)
        if before is None or not before.booked:
            collected[mark.vertex.index] = mark
        elif mark.booked:
            if mark.exclusive or before.exclusive:
                raise BadRequest("a vertex twice in one set", where=mark.vertex.path(), expected="each once")
            collected[mark.vertex.index] = replace(mark, units=mark.units + before.units)
    return collected


def without_slots(held: Marks, kept: list[Slot], dropped: list[Slot]) -> Marks:
    """The marks of a part less what the dropped slots had; what is held whole goes with its last slot."""
    marks = dict(held)
    for slot in dropped:
        for grant in slot.grants:
            mark = marks.get(grant.vertex.index)
            if mark is None:
                continue
            if not mark.exclusive and mark.units > grant.units:
                marks[grant.vertex.index] = replace(mark, units=mark.units - grant.units)
            elif not _lies_in_whole(marks, grant.vertex):
                del marks[grant.vertex.index]
    in_use: set[int] = set()
    for slot in kept:
        for grant in slot.grants:
            in_use.update(vertex.index for vertex in (grant.vertex, *parents(grant.vertex)))
    left: set[int] = set()
    for slot in dropped:
        for grant in slot.grants:
            left.update(vertex.index for vertex in (grant.vertex, *parents(grant.vertex)))
    over = [mark for mark in held.values() if mark.whole and mark.vertex.index in left - in_use]
    for mark in sorted(over, key=lambda mark: len(list(parents(mark.vertex)))):
        if _lies_in_whole(marks, mark.vertex):
            continue
        pending = [mark.vertex]
        while pending:
            vertex = pending.pop()
            if vertex.index not in in_use:
                marks.pop(vertex.index, None)
                pending.extend(vertex.below())
    return marks


def parents(vertex: Vertex) -> Iterator[Vertex]:
    above = vertex.parent()
    while above is not None:
        yield above
        above = above.parent()


def with_wholes(marks: Marks) -> Marks:
    """Marks that came from outside do not say what is held whole; what is held with all below is."""
    told = dict(marks)
    for index, mark in marks.items():
        below = mark.vertex.below()
        if mark.exclusive and below:
            pending = list(below)
            while pending and (inner := marks.get(pending[-1].index)) is not None and inner.exclusive:
                pending.extend(pending.pop().below())
            if not pending:
                told[index] = replace(mark, whole=True)
    return told


def _lies_in_whole(marks: Marks, vertex: Vertex) -> bool:
    """Whether a vertex above is held as a whole: then this one stays with it."""
    return any((mark := marks.get(above.index)) is not None and mark.whole for above in parents(vertex))
