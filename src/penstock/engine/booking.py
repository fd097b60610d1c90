"""From a selection to bookings at vertices, and back.

`marks_of` turns what the walks picked into marks: every vertex that will be held, with its units.
A vertex that is taken whole (asked for as exclusive, or a node under a `...nodex` policy) brings
all that is below it: its shadow. `Ledger` books marks under a key and unbooks them; the
ancestors of a mark are passed through, so that nobody else can have them alone, and keep count of
what is used below. Releasing part of a job is unbooking all of it and booking what is left, so that
there is one way to book and one way back, and together they are the identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from penstock.engine.allocation import Grant, Pick, Slot
from penstock.engine.graph import Vertex
from penstock.engine.vertex_state import (
    Booking,
    BookingKey,
    TimeView,
    VertexState,
    Window,
    free_units,
    is_untouched,
    refresh_excess,
)
from penstock.engine.walker import NODE, Choice, Selection
from penstock.errors import BadRequest, Conflict

__all__ = [
    "Ledger",
    "Mark",
    "Marks",
    "Span",
    "collected",
    "marks_of",
    "parents",
    "picks_of",
    "slots_of",
    "with_wholes",
    "without_slots",
]


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertex of a job: held with so many units, or (not booked) named and shared."""

    vertex: Vertex
    units: int
    booked: bool
    exclusive: bool
    label: str = ""
    above: Vertex | None = None  # the vertex it was reached from; None: its parent
    whole: bool = False  # all that is below is held with it


Marks = dict[int, Mark]  # by the index of the vertex


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    end: int
    live: bool


def marks_of(selections: Iterable[Selection], nodes_whole: bool) -> Marks:
    """What the selections hold, shadows included; with `nodes_whole`, every node that they touch."""
    marks: Marks = {}
    for selection in selections:
        pending: list[Choice] = list(selection.choices)
        while pending:
            choice = pending.pop()
            _add(marks, choice)
            pending.extend(choice.inner)
    for mark in list(marks.values()):
        if mark.whole:
            _add_shadow(marks, mark.vertex)
    if nodes_whole:
        for vertex in _with_ancestors(marks, marks):
            if vertex.type == NODE:
                _add_shadow(marks, vertex)
    return marks


def _add(marks: Marks, choice: Choice) -> None:
    vertex = choice.vertex
    units = choice.units
    before = marks.get(vertex.index)
    if before is not None and before.booked:
        if not choice.booked:
            return  # Another group passes through what this one has.
        if vertex.divisible:
            units += before.units  # several slots can have parts of one pool
    exclusive = choice.booked and (choice.whole or not vertex.divisible)
    marks[vertex.index] = Mark(
        vertex, units, choice.booked, exclusive, choice.label, choice.above, choice.whole
    )


def _add_shadow(marks: Marks, top: Vertex) -> None:
    seen: set[int] = set()
    pending = [(top, _above(marks, top))]
    while pending:
        vertex, above = pending.pop()
        if vertex.index in seen:
            continue
        seen.add(vertex.index)
        before = marks.get(vertex.index)
        held = vertex.state.held[1] if vertex.state is not None else 0
        label = before.label if before is not None else ""
        whole = vertex is top or (before is not None and before.whole)
        marks[vertex.index] = Mark(vertex, max(vertex.size - held, 0), True, True, label, above, whole)
        pending.extend((child, vertex) for child in reversed(vertex.below()))


def _above(marks: Marks, vertex: Vertex) -> Vertex | None:
    """The next vertex on the way up: the one it was reached from, if that is known."""
    mark = marks.get(vertex.index)
    if mark is not None and mark.above is not None:
        return mark.above
    return vertex.parent()


def _ancestors(marks: Marks, vertex: Vertex) -> Iterator[Vertex]:
    above = _above(marks, vertex)
    while above is not None:
        yield above
        above = _above(marks, above)


def _with_ancestors(chosen: Marks, marks: Marks) -> list[Vertex]:
    """The vertices of some marks and all above them, once each."""
    seen: dict[int, Vertex] = {}
    for mark in chosen.values():
        vertex: Vertex | None = mark.vertex
        while vertex is not None and vertex.index not in seen:
            seen[vertex.index] = vertex
            vertex = _above(marks, vertex)
    return list(seen.values())


def picks_of(marks: Marks, root: Vertex) -> tuple[Pick, ...]:
    """Marks and the way down to them, children before parents, in edge order."""
    held = {index: mark for index, mark in marks.items() if mark.booked}
    needed = {vertex.index: vertex for vertex in _with_ancestors(held, marks)}
    if not needed:
        return ()
    children: dict[int, list[Vertex]] = {}
    for vertex in needed.values():
        above = _above(marks, vertex)
        if above is not None:
            children.setdefault(above.index, []).append(vertex)
    picks: list[Pick] = []
    pending: list[tuple[Vertex, int, bool]] = [(root, 1, False)]
    while pending:
        vertex, depth, is_done = pending.pop()
        if is_done:
            picks.append(_pick(marks, vertex, depth))
            continue
        pending.append((vertex, depth, True))
        below = sorted(children.get(vertex.index, ()), key=lambda child: child.order, reverse=True)
        pending.extend((child, depth + 1, False) for child in below)
    return tuple(picks)


def _pick(marks: Marks, vertex: Vertex, depth: int) -> Pick:
    mark = marks.get(vertex.index)
    above = _above(marks, vertex)
    if mark is None:
        return Pick(vertex, vertex.size, False, depth, above)
    return Pick(vertex, mark.units, mark.booked, depth, above, mark.label)


def slots_of(selections: Iterable[Selection]) -> tuple[Slot, ...]:
    slots: list[Slot] = []
    for group, selection in enumerate(selections):
        for outer in selection.slots():
            grants = [Grant(choice.vertex, choice.units) for choice in _flatten(outer)]
            slots.append(Slot(group, _node_of(outer[0].vertex), tuple(grants)))
    return tuple(slots)


def _flatten(choices: list[Choice]) -> list[Choice]:
    flat: list[Choice] = []
    pending = list(reversed(choices))
    while pending:
        choice = pending.pop()
        flat.append(choice)
        pending.extend(reversed(choice.inner))
    return flat


def _node_of(vertex: Vertex) -> Vertex | None:
    at: Vertex | None = vertex
    while at is not None and at.type != NODE:
        at = at.parent()
    return at


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


class Ledger:
    """Books and unbooks marks. It keeps nothing itself: everything stands at the vertices."""

    def __init__(self, tracked: frozenset[str]) -> None:
        self.tracked = tracked

    def check_free(self, marks: Marks, span: Span, now: int) -> None:
        """Raises `Conflict`, naming the first vertex that somebody else has."""
        # What is live holds on at least until the next instant, whatever was planned.
        end = max(span.end, now + 1) if span.live else span.end
        window = Window(span.start, end, now, TimeView.NOW if span.live else TimeView.LATER)
        for mark in marks.values():
            if not mark.booked:
                continue
            # A vertex that others use up by standing holds is part of a whole, with no units of its own.
            if mark.units > max(free_units(mark.vertex, window), 0):
                raise Conflict(f"{mark.vertex.path() or mark.vertex.name} is not free from {span.start}")
            if mark.exclusive and not is_untouched(mark.vertex, window):
                raise Conflict(f"{mark.vertex.path() or mark.vertex.name} is in use from {span.start}")
            for above in _ancestors(marks, mark.vertex):
                if free_units(above, window) <= 0:
                    raise Conflict(f"{above.path() or above.name} is held by somebody else from {span.start}")

    def book(self, key: BookingKey, marks: Marks, span: Span) -> None:
        below = self._units_below(marks)
        for index, (vertex, units) in below.items():
            mark = marks.get(index)
            own = mark.units if mark is not None and mark.booked else 0
            exclusive = mark is not None and mark.booked and mark.exclusive
            if vertex.state is None:
                vertex.state = VertexState()
            vertex.state.book(key, Booking(span.start, span.end, span.live, own, exclusive, units))
        for vertex, _ in below.values():
            refresh_excess(vertex)

    def unbook(self, key: BookingKey, marks: Marks) -> None:
        touched = _with_ancestors(marks, marks)
        for vertex in touched:
            if vertex.state is not None and key in vertex.state.bookings:
                vertex.state.unbook(key)
                refresh_excess(vertex)
        for vertex in touched:
            if vertex.state is not None and vertex.state.is_empty():
                vertex.state = None

    def _units_below(self, marks: Marks) -> dict[int, tuple[Vertex, dict[str, int]]]:
        """Every vertex that is held or passed, with the units of filter types used below it."""
        below: dict[int, tuple[Vertex, dict[str, int]]] = {}
        order = self._upward(marks)
        for vertex in order:
            below[vertex.index] = (vertex, {})
        for vertex in order:  # children stand before parents, so what is below is complete
            above = _above(marks, vertex)
            if above is None:
                continue
            used = below[above.index][1]
            mark = marks.get(vertex.index)
            if vertex.type in self.tracked:
                # A vertex that is only passed uses nothing, but it is seen to be part of the job.
                own = mark.units if mark is not None and mark.booked else 0
                used[vertex.type] = used.get(vertex.type, 0) + own
            for kind, units in below[vertex.index][1].items():
                used[kind] = used.get(kind, 0) + units
        return below

    def _upward(self, marks: Marks) -> list[Vertex]:
        """Every vertex that is held or passed, children before parents."""
        waiting: dict[int, int] = {}
        vertices = _with_ancestors({index: mark for index, mark in marks.items() if mark.booked}, marks)
        for vertex in vertices:
            above = _above(marks, vertex)
            if above is not None:
                waiting[above.index] = waiting.get(above.index, 0) + 1
        order = [vertex for vertex in vertices if vertex.index not in waiting]
        for vertex in order:  # grows while it is walked
            above = _above(marks, vertex)
            if above is not None:
                waiting[above.index] -= 1
                if waiting[above.index] == 0:
                    order.append(above)
        return order
