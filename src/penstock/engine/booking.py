"""Claims of a job on vertices: from a selection to bookings, and back.

`claims_of` turns selections into claims: every vertex that the job will hold, with its units. A claim on a
whole vertex (requested as exclusive, or a node under a `...nodex` policy) includes its subtree. `Booker`
books claims under a key and unbooks them. The ancestors of a claim get a booking without units, so that no
other job can have them exclusively, and they count what is used below; the keys that a slot brings are in use
at the vertices of their levels among them. Booking and unbooking are the identity. A partial release reduces
the bookings to what booking the remaining claims would give; with shared vertices it unbooks all claims and
books the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from penstock.engine.allocation import Pick, Slot
from penstock.engine.candidates import Choice, Selection
from penstock.engine.graph import Vertex
from penstock.engine.vertex_state import (
    Booking,
    BookingKey,
    TimeView,
    VertexState,
    Window,
    free_units,
    is_idle,
    is_key_in_use,
    refresh_excess,
)
from penstock.engine.walker import NODE
from penstock.errors import BadRequest, Conflict
from penstock.model.exclusion_key import ExclusionKey

__all__ = [
    "Booker",
    "Claims",
    "Release",
    "Span",
    "VertexClaim",
    "booked_claims",
    "claims_of",
    "claims_without_slots",
    "is_in_whole",
    "mark_whole_claims",
    "merge_claims",
    "picks_of",
]


@dataclass(frozen=True, slots=True)
class VertexClaim:
    """A vertex of a job: booked with its units, or (not booked) named in the request and shared."""

    vertex: Vertex
    units: int
    booked: bool
    exclusive: bool
    label: str = ""
    above: Vertex | None = None  # the parent on the path by which it was reached; None: its first parent
    whole: bool = False  # includes the whole subtree

    def on_copies(self, copies: Mapping[int, Vertex]) -> VertexClaim:
        """The same claim on copies of the vertices, given by index."""
        vertex = copies.get(self.vertex.index, self.vertex)
        above = copies.get(self.above.index, self.above) if self.above is not None else None
        return VertexClaim(vertex, self.units, self.booked, self.exclusive, self.label, above, self.whole)


Claims = dict[int, VertexClaim]  # by the index of the vertex


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    end: int
    live: bool


class Release:
    """What leaves the claims of a part, see `claim_counts`."""

    __slots__ = ("left", "units", "unlisted")

    def __init__(self) -> None:
        self.units: dict[int, tuple[Vertex, int]] = {}  # released units of booked claims
        self.left: dict[int, Vertex] = {}  # nothing booked on or below them any more
        self.unlisted: dict[int, set[str]] = {}  # by vertex: types of which nothing below is booked any more

    def reduce(self, claims: Claims, claim: VertexClaim, units: int) -> None:
        """Takes units from a claim."""
        claims[claim.vertex.index] = replace(claim, units=claim.units - units)
        self._note(claim, units)

    def remove(self, claims: Claims, claim: VertexClaim) -> None:
        del claims[claim.vertex.index]
        self._note(claim, claim.units)

    def _note(self, claim: VertexClaim, units: int) -> None:
        if claim.booked:
            _, before = self.units.get(claim.vertex.index, (claim.vertex, 0))
            self.units[claim.vertex.index] = (claim.vertex, before + units)


def claims_of(selections: Iterable[Selection], whole_nodes: bool) -> Claims:
    """The claims of selections, with whole subtrees; with `whole_nodes`, of every node they touch."""
    claims: Claims = {}
    for selection in selections:
        pending: list[Choice] = list(selection.choices)
        while pending:
            choice = pending.pop()
            _add(claims, choice)
            pending.extend(choice.inner)
    for claim in list(claims.values()):
        if claim.whole:
            _add_subtree(claims, claim.vertex)
    if whole_nodes:
        for vertex in _with_ancestors(claims, claims):
            if vertex.type == NODE:
                _add_subtree(claims, vertex)
    return claims


def _add(claims: Claims, choice: Choice) -> None:
    vertex = choice.vertex
    units = choice.units
    before = claims.get(vertex.index)
    if before is not None and before.booked:
        if not choice.booked:
            return  # Another group passes through a vertex that this group claims.
        if vertex.divisible:
            units += before.units  # several slots can share one pool
    exclusive = choice.booked and (choice.whole or not vertex.divisible)
    claims[vertex.index] = VertexClaim(
        vertex, units, choice.booked, exclusive, choice.label, choice.above, choice.whole
    )


def _add_subtree(claims: Claims, top: Vertex) -> None:
    seen: set[int] = set()
    pending = [(top, _above(claims, top))]
    while pending:
        vertex, above = pending.pop()
        if vertex.index in seen:
            continue
        seen.add(vertex.index)
        before = claims.get(vertex.index)
        external_units = vertex.state.external_units[1] if vertex.state is not None else 0
        label = before.label if before is not None else ""
        whole = vertex is top or (before is not None and before.whole)
        claims[vertex.index] = VertexClaim(
            vertex, max(vertex.size - external_units, 0), True, True, label, above, whole
        )
        pending.extend((child, vertex) for child in reversed(vertex.below()))


def _above(claims: Claims, vertex: Vertex) -> Vertex | None:
    """The next vertex upwards: the parent on the path taken, if it is known."""
    claim = claims.get(vertex.index)
    if claim is not None and claim.above is not None:
        return claim.above
    return vertex.parent()


def _claimed_ancestors(claims: Claims, vertex: Vertex) -> Iterator[Vertex]:
    above = _above(claims, vertex)
    while above is not None:
        yield above
        above = _above(claims, above)


def _with_ancestors(chosen: Claims, claims: Claims) -> list[Vertex]:
    """The vertices of some claims and their ancestors, once each."""
    seen: dict[int, Vertex] = {}
    for claim in chosen.values():
        vertex: Vertex | None = claim.vertex
        while vertex is not None and vertex.index not in seen:
            seen[vertex.index] = vertex
            vertex = _above(claims, vertex)
    return list(seen.values())


def picks_of(claims: Claims, root: Vertex) -> tuple[Pick, ...]:
    """The booked vertices and their ancestors, children before parents, in edge order."""
    booked = {index: claim for index, claim in claims.items() if claim.booked}
    needed = {vertex.index: vertex for vertex in _with_ancestors(booked, claims)}
    if not needed:
        return ()
    children: dict[int, list[Vertex]] = {}
    for vertex in needed.values():
        above = _above(claims, vertex)
        if above is not None:
            children.setdefault(above.index, []).append(vertex)
    picks: list[Pick] = []
    pending: list[tuple[Vertex, int, bool]] = [(root, 1, False)]
    while pending:
        vertex, depth, is_done = pending.pop()
        if is_done:
            picks.append(_pick(claims, vertex, depth))
            continue
        pending.append((vertex, depth, True))
        below = sorted(children.get(vertex.index, ()), key=lambda child: child.order, reverse=True)
        pending.extend((child, depth + 1, False) for child in below)
    return tuple(picks)


def _pick(claims: Claims, vertex: Vertex, depth: int) -> Pick:
    claim = claims.get(vertex.index)
    above = _above(claims, vertex)
    if claim is None:
        return Pick(vertex, vertex.size, False, depth, above)
    return Pick(vertex, claim.units, claim.booked, depth, above, claim.label)


def merge_claims(claims: Iterable[VertexClaim]) -> Claims:
    """Claims by vertex; several claims on one pool are added up."""
    merged: Claims = {}
    for claim in claims:
        before = merged.get(claim.vertex.index)
        if before is None or not before.booked:
            merged[claim.vertex.index] = claim
        elif claim.booked:
            if claim.exclusive or before.exclusive:
                raise BadRequest(
                    "a vertex is listed twice", where=claim.vertex.path(), expected="each vertex once"
                )
            merged[claim.vertex.index] = replace(claim, units=claim.units + before.units)
    return merged


def claims_without_slots(external_units: Claims, kept: list[Slot], dropped: list[Slot]) -> Claims:
    """The claims without those of the dropped slots. A whole claim is dropped with its last slot."""
    claims = dict(external_units)
    for slot in dropped:
        for grant in slot.grants:
            claim = claims.get(grant.vertex.index)
            if claim is None:
                continue
            if not claim.exclusive and claim.units > grant.units:
                claims[grant.vertex.index] = replace(claim, units=claim.units - grant.units)
            elif not is_in_whole(claims, grant.vertex):
                del claims[grant.vertex.index]
    in_use: set[int] = set()
    for slot in kept:
        for grant in slot.grants:
            in_use.update(vertex.index for vertex in (grant.vertex, *grant.vertex.ancestors()))
    left: set[int] = set()
    for slot in dropped:
        for grant in slot.grants:
            left.update(vertex.index for vertex in (grant.vertex, *grant.vertex.ancestors()))
    over = [claim for claim in external_units.values() if claim.whole and claim.vertex.index in left - in_use]
    for claim in sorted(over, key=lambda claim: len(list(claim.vertex.ancestors()))):
        if is_in_whole(claims, claim.vertex):
            continue
        pending = [claim.vertex]
        while pending:
            vertex = pending.pop()
            if vertex.index not in in_use:
                claims.pop(vertex.index, None)
                pending.extend(vertex.below())
    return claims


def booked_claims(claims: Claims) -> Claims:
    """The booked claims, and those that name a vertex above them."""
    booked = {index: claim for index, claim in claims.items() if claim.booked}
    needed = {vertex.index for vertex in _with_ancestors(booked, claims)}
    return {index: claim for index, claim in claims.items() if index in needed}


def mark_whole_claims(claims: Claims) -> Claims:
    """Marks as whole each exclusive claim whose entire subtree is claimed, for sets from outside."""
    marked = dict(claims)
    for index, claim in claims.items():
        below = claim.vertex.below()
        if claim.exclusive and below:
            pending = list(below)
            while pending and (inner := claims.get(pending[-1].index)) is not None and inner.exclusive:
                pending.extend(pending.pop().below())
            if not pending:
                marked[index] = replace(claim, whole=True)
    return marked


def is_in_whole(claims: Claims, vertex: Vertex) -> bool:
    """Whether an ancestor is claimed as a whole; then this vertex stays claimed with it."""
    return any((claim := claims.get(above.index)) is not None and claim.whole for above in vertex.ancestors())


def _keys_of(slots: Iterable[Slot], claims: Claims) -> dict[int, dict[ExclusionKey, int]]:
    """By vertex: the keys that slots bring there, with the number of slots that bring each."""
    found: dict[int, dict[ExclusionKey, int]] = {}
    for slot in slots:
        if not slot.brings:
            continue
        levels = {key.level for key in slot.brings}
        holders: dict[int, str] = {}
        for grant in slot.grants:
            for vertex in (grant.vertex, *_claimed_ancestors(claims, grant.vertex)):
                if vertex.type in levels:
                    holders[vertex.index] = vertex.type
        for index, level in holders.items():
            counts = found.setdefault(index, {})
            for key in slot.brings:
                if key.level == level:
                    counts[key] = counts.get(key, 0) + 1
    return found


def _less(below: dict[str, int], released: dict[str, int], unlisted: set[str]) -> dict[str, int]:
    if not released and not unlisted:
        return below
    return {
        resource_type: units - released.get(resource_type, 0)
        for resource_type, units in below.items()
        if resource_type not in unlisted
    }


def _fewer_keys(
    keys: dict[ExclusionKey, int] | None, had: dict[ExclusionKey, int], has: dict[ExclusionKey, int]
) -> dict[ExclusionKey, int] | None:
    if keys is None or not had:
        return keys
    counts = {key: count - had.get(key, 0) + has.get(key, 0) for key, count in keys.items()}
    return {key: count for key, count in counts.items() if count} or None


class Booker:
    """Books and unbooks claims. Bookings are kept at the vertices; `changed` gets the nodes among them."""

    def __init__(self, tracked: frozenset[str], changed: set[int]) -> None:
        self.tracked = tracked
        self.changed = changed

    def check_free(self, claims: Claims, span: Span, now: int, forbids: Iterable[ExclusionKey] = ()) -> None:
        """Raises `Conflict` with the first vertex that is not free, or at which a forbidden key is in use."""
        # A live booking lasts at least until the next instant, also past its planned end.
        end = max(span.end, now + 1) if span.live else span.end
        window = Window(span.start, end, now, TimeView.NOW if span.live else TimeView.LATER)
        for claim in claims.values():
            if not claim.booked:
                continue
            # A vertex that standing usage fills belongs to a whole claim without units of its own.
            if claim.units > max(free_units(claim.vertex, window), 0):
                raise Conflict(f"{claim.vertex.path() or claim.vertex.name} is not free from {span.start}")
            if claim.exclusive and not is_idle(claim.vertex, window):
                raise Conflict(f"{claim.vertex.path() or claim.vertex.name} is in use from {span.start}")
            for above in _claimed_ancestors(claims, claim.vertex):
                if free_units(above, window) <= 0:
                    raise Conflict(
                        f"{above.path() or above.name} is held exclusively by another job from {span.start}"
                    )
        keys = tuple(forbids)
        for vertex in _with_ancestors(claims, claims) if keys else ():
            for key in keys:
                if key.level == vertex.type and is_key_in_use(vertex, key, window):
                    raise Conflict(f"{key.name} is in use at {vertex.path() or vertex.name}")

    def book(self, key: BookingKey, claims: Claims, span: Span, slots: Iterable[Slot] = ()) -> None:
        """Books claims, and the keys that the slots in them bring."""
        below = self.units_below(claims)
        keys = _keys_of(slots, claims)
        for index, (vertex, units) in below.items():
            claim = claims.get(index)
            own = claim.units if claim is not None and claim.booked else 0
            exclusive = claim is not None and claim.booked and claim.exclusive
            if vertex.state is None:
                vertex.state = VertexState()
            booking = Booking(span.start, span.end, span.live, own, exclusive, units, keys.get(index))
            vertex.state.book(key, booking)
            if vertex.type == NODE:
                self.changed.add(index)
        for vertex, _ in below.values():
            refresh_excess(vertex)

    def unbook(self, key: BookingKey, claims: Claims) -> None:
        touched = _with_ancestors(claims, claims)
        for vertex in touched:
            if vertex.state is not None and key in vertex.state.bookings:
                vertex.state.unbook(key)
                refresh_excess(vertex)
            if vertex.type == NODE:
                self.changed.add(vertex.index)
        for vertex in touched:
            if vertex.state is not None and vertex.state.is_empty():
                vertex.state = None

    def release(
        self, key: BookingKey, claims: Claims, release: Release, before: list[Slot], after: list[Slot]
    ) -> None:
        """Reduces bookings in a tree by what has left the claims, as if only the rest had been booked.

        `before` and `after` are the slots that have lost something, without those that have lost everything.
        """
        below: dict[int, dict[str, int]] = {}
        touched: dict[int, Vertex] = {}
        for vertex, units in release.units.values():
            touched[vertex.index] = vertex
            for above in vertex.ancestors():
                touched[above.index] = above
                if vertex.type in self.tracked:
                    used = below.setdefault(above.index, {})
                    used[vertex.type] = used.get(vertex.type, 0) + units
        for slot in before:
            # Its keys leave with it, also if its units stay because other slots hold the vertex as a whole.
            for grant in slot.grants if slot.brings else ():
                touched.update((vertex.index, vertex) for vertex in (grant.vertex, *grant.vertex.ancestors()))
        had, has = _keys_of(before, claims), _keys_of(after, claims)
        for index, vertex in touched.items():
            state = vertex.state
            if vertex.type == NODE:
                self.changed.add(index)
            if state is None or key not in state.bookings:
                continue
            if index in release.left:
                state.unbook(key)
                continue
            booking = state.bookings[key]
            claim = claims.get(index)
            _, own = release.units.get(index, (vertex, 0))
            state.shrink(
                key,
                replace(
                    booking,
                    units=booking.units - own,
                    exclusive=claim is not None and claim.booked and claim.exclusive,
                    below=_less(booking.below, below.get(index, {}), release.unlisted.get(index, set())),
                    keys=_fewer_keys(booking.keys, had.get(index, {}), has.get(index, {})),
                ),
            )
        for vertex, _ in release.units.values():
            refresh_excess(vertex)
        for vertex in touched.values():
            if vertex.state is not None and vertex.state.is_empty():
                vertex.state = None

    def set_keys(self, key: BookingKey, claims: Claims, before: Slot, after: Slot) -> None:
        """Books other keys for a slot, at the vertices that contain what it grants."""
        had, has = _keys_of([before], claims), _keys_of([after], claims)
        touched: dict[int, Vertex] = {}
        for grant in after.grants:
            touched.update((v.index, v) for v in (grant.vertex, *_claimed_ancestors(claims, grant.vertex)))
        for index, vertex in touched.items():
            if vertex.state is not None and (index in had or index in has):
                vertex.state.shift_keys(key, had.get(index, {}), has.get(index, {}))
                if vertex.type == NODE:
                    self.changed.add(index)

    def units_below(self, claims: Claims) -> dict[int, tuple[Vertex, dict[str, int]]]:
        """Every claimed vertex and ancestor, with the units of filter types used below it."""
        below: dict[int, tuple[Vertex, dict[str, int]]] = {}
        order = self._upward(claims)
        for vertex in order:
            below[vertex.index] = (vertex, {})
        for vertex in order:  # children come before parents, so the counts below are complete
            above = _above(claims, vertex)
            if above is None:
                continue
            used = below[above.index][1]
            claim = claims.get(vertex.index)
            if vertex.type in self.tracked:
                # An ancestor uses no units, but its type is listed.
                own = claim.units if claim is not None and claim.booked else 0
                used[vertex.type] = used.get(vertex.type, 0) + own
            for resource_type, units in below[vertex.index][1].items():
                used[resource_type] = used.get(resource_type, 0) + units
        return below

    def _upward(self, claims: Claims) -> list[Vertex]:
        """Every claimed vertex and ancestor, children before parents."""
        waiting: dict[int, int] = {}
        vertices = _with_ancestors({index: claim for index, claim in claims.items() if claim.booked}, claims)
        for vertex in vertices:
            above = _above(claims, vertex)
            if above is not None:
                waiting[above.index] = waiting.get(above.index, 0) + 1
        order = [vertex for vertex in vertices if vertex.index not in waiting]
        for vertex in order:  # grows during the iteration
            above = _above(claims, vertex)
            if above is not None:
                waiting[above.index] -= 1
                if waiting[above.index] == 0:
                    order.append(above)
        return order
