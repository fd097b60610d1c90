"""Bookings and external usage at one vertex, and the free units that follow from them.

A `Booking` is what one part of a job's allocation has at one vertex: its own units (0 if the job only has
something below), and the units of filter types below. It lasts from `start` to `end`. A *live* booking
belongs to a running job: it keeps its units until it is released, so at any `now` it counts as ending at
max(end, now + 1). A booking that is not live is a reservation and ends as planned.

External usage has no end. Transient usage counts now and in every plan, but not in whether a request could
ever fit. Standing usage (present permanently, like the daemons of a node) reduces the capacity of the vertex,
and does not prevent exclusive use.

Exclusion keys are booked like units: a key is in use while at least one booking or external usage brings it.

A `Window` is the time span of a query, the current time, and the view (`TimeView`).
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from penstock.engine.graph import Vertex
from penstock.engine.planner import FOREVER, Planner
from penstock.model.exclusion_key import ExclusionKey

__all__ = [
    "USAGE_MAX_PPM",
    "Booking",
    "BookingKey",
    "ExternalShare",
    "TimeView",
    "VertexState",
    "Window",
    "expected_free_below",
    "forget_usage",
    "free_below",
    "free_units",
    "is_idle",
    "is_key_in_use",
    "refresh_excess",
    "usage_ppm",
]

USAGE_MAX_PPM: Final = 1_000_000
_NOT_COUNTED: Final = -1
_FEW: Final = 8  # bookings that are looked at one by one


class TimeView(enum.Enum):
    """Which bookings and which external usage a query takes into account."""

    NOW = "now"  # a start at this instant: an overdue job still holds its units
    LATER = "later"  # a start in the future: running jobs end as planned
    IDEAL = "ideal"  # could it ever fit: all up, nothing booked, standing usage only


@dataclass(frozen=True, slots=True)
class Window:
    start: int
    end: int
    now: int
    view: TimeView


BookingKey = tuple[int, int]  # job, part of the job


@dataclass(frozen=True, slots=True)
class Booking:
    start: int
    end: int
    live: bool
    units: int  # of the vertex itself; 0 if the job only has something below
    exclusive: bool
    below: dict[str, int]  # units of filter types below the vertex; immutable
    keys: dict[ExclusionKey, int] | None = (
        None  # keys of the vertex, and how many slots bring each; immutable
    )


@dataclass(frozen=True, slots=True)
class ExternalShare:
    """What one external usage takes at one vertex: own units, units of filter types below, and keys."""

    units: int
    below: dict[str, int]
    standing: bool
    keys: tuple[ExclusionKey, ...] = ()


class KeyUse:
    """How often one key is in use at one vertex: by bookings over time, and by external usage."""

    __slots__ = ("external", "plan")

    def __init__(self) -> None:
        self.plan = Planner()
        self.external = [0, 0]  # transient, standing

    def copy(self) -> KeyUse:
        other = KeyUse()
        other.plan = self.plan.copy()
        other.external = list(self.external)
        return other

    def is_empty(self) -> bool:
        return self.plan.is_empty() and self.external == [0, 0]


class _LiveEnds:
    """The planned ends of many live bookings, to find the earliest without looking at all of them."""

    __slots__ = ("_counts", "_heap")

    def __init__(self, ends: Iterable[int]) -> None:
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []  # may have ends that are gone
        for end in ends:
            self.add(end)

    def add(self, end: int) -> None:
        if end not in self._counts:
            heapq.heappush(self._heap, end)
        self._counts[end] = self._counts.get(end, 0) + 1

    def remove(self, end: int) -> None:
        self._counts[end] -= 1
        if not self._counts[end]:
            del self._counts[end]
            if len(self._heap) > 2 * len(self._counts) + _FEW:
                self._heap = sorted(self._counts)  # Beside one that stays, those that are gone would pile up.

    def earliest(self) -> int:
        while self._heap and self._heap[0] not in self._counts:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else FOREVER


class VertexState:
    """Bookings and external usage of one vertex. Created with the first, dropped with the last."""

    __slots__ = (
        "_live_ends",
        "below",
        "bookings",
        "excess",
        "excess_below",
        "exclusive_bookings",
        "external",
        "external_below",
        "external_units",
        "keys",
        "live_end_min",
        "plan",
        "presence",
        "standing_excess",
        "standing_excess_below",
        "transient_shares",
        "usage_ppm",
    )

    def __init__(self) -> None:
        self.bookings: dict[BookingKey, Booking] = {}
        self.external: dict[str, ExternalShare] = {}
        self.plan = Planner()  # own units
        self.presence = Planner()  # job parts on the vertex or below
        self.below: dict[str, Planner] = {}
        self.external_units = [0, 0]  # own units: transient, standing
        self.external_below: dict[str, list[int]] = {}
        self.keys: dict[ExclusionKey, KeyUse] | None = None  # keys in use; None: none
        self.transient_shares = 0  # transient external usage on the vertex or below
        self.live_end_min = FOREVER  # the earliest planned end of a live booking
        self._live_ends: _LiveEnds | None = None  # kept once there were many bookings
        self.exclusive_bookings = 0  # number of exclusive bookings
        self.excess = 0  # own units booked beyond the size, at the worst instant
        self.excess_below: dict[str, int] = {}
        self.standing_excess = 0  # the same for standing usage alone
        self.standing_excess_below: dict[str, int] = {}
        self.usage_ppm = _NOT_COUNTED  # see the function `usage_ppm`

    def copy(self) -> VertexState:
        other = VertexState.__new__(VertexState)
        other.bookings = dict(self.bookings)
        other.external = dict(self.external)
        other.plan = self.plan.copy()
        other.presence = self.presence.copy()
        other.below = {resource_type: planner.copy() for resource_type, planner in self.below.items()}
        other.external_units = list(self.external_units)
        other.external_below = {name: list(units) for name, units in self.external_below.items()}
        other.keys = None if self.keys is None else {key: use.copy() for key, use in self.keys.items()}
        other.transient_shares = self.transient_shares
        other.live_end_min = self.live_end_min
        other._live_ends = None
        other.exclusive_bookings = self.exclusive_bookings
        other.excess = self.excess
        other.excess_below = dict(self.excess_below)
        other.standing_excess = self.standing_excess
        other.standing_excess_below = dict(self.standing_excess_below)
        other.usage_ppm = self.usage_ppm
        return other

    def is_empty(self) -> bool:
        return not self.bookings and not self.external

    def book(self, key: BookingKey, booking: Booking) -> None:
        self.bookings[key] = booking
        self.usage_ppm = _NOT_COUNTED
        self.exclusive_bookings += 1 if booking.exclusive else 0
        self.plan.add(booking.start, booking.end, booking.units)
        self.presence.add(booking.start, booking.end, 1)
        for resource_type, units in booking.below.items():
            if units == 0:
                continue
            planner = self.below.get(resource_type)
            if planner is None:
                planner = self.below[resource_type] = Planner()
            planner.add(booking.start, booking.end, units)
        for exclusion_key, count in booking.keys.items() if booking.keys else ():
            self._key_use(exclusion_key).plan.add(booking.start, booking.end, count)
        if booking.live:
            self.live_end_min = min(self.live_end_min, booking.end)
            if self._live_ends is not None:
                self._live_ends.add(booking.end)

    def unbook(self, key: BookingKey) -> None:
        booking = self.bookings.pop(key)
        self.usage_ppm = _NOT_COUNTED
        self.exclusive_bookings -= 1 if booking.exclusive else 0
        self.plan.remove(booking.start, booking.end, booking.units)
        self.presence.remove(booking.start, booking.end, 1)
        for resource_type, units in booking.below.items():
            if units == 0:
                continue
            planner = self.below[resource_type]
            planner.remove(booking.start, booking.end, units)
            if planner.is_empty():
                del self.below[resource_type]
        for exclusion_key, count in booking.keys.items() if booking.keys else ():
            self._key_use(exclusion_key).plan.remove(booking.start, booking.end, count)
            self._drop_unused_key(exclusion_key)
        if booking.live:
            self._drop_live_end(booking.end)

    def _drop_live_end(self, end: int) -> None:
        if self._live_ends is not None:
            self._live_ends.remove(end)
        if end != self.live_end_min or end >= FOREVER:
            return
        ends = (booking.end for booking in self.bookings.values() if booking.live)
        if self._live_ends is None and len(self.bookings) <= _FEW:
            self.live_end_min = min(ends, default=FOREVER)
            return
        if self._live_ends is None:
            self._live_ends = _LiveEnds(ends)
        self.live_end_min = self._live_ends.earliest()

    def shrink(self, key: BookingKey, booking: Booking) -> None:
        """Replaces a booking by one for the same time with fewer units, types or keys."""
        before = self.bookings[key]
        self.bookings[key] = booking
        self.usage_ppm = _NOT_COUNTED
        start, end = booking.start, booking.end
        self.exclusive_bookings += booking.exclusive - before.exclusive
        self.plan.remove(start, end, before.units - booking.units)
        for resource_type, units in before.below.items():
            released = units - booking.below.get(resource_type, 0)
            if released:
                planner = self.below[resource_type]
                planner.remove(start, end, released)
                if planner.is_empty():
                    del self.below[resource_type]
        for exclusion_key, count in before.keys.items() if before.keys else ():
            released = count - (booking.keys.get(exclusion_key, 0) if booking.keys else 0)
            self._key_use(exclusion_key).plan.remove(start, end, released)
            self._drop_unused_key(exclusion_key)

    def shift_keys(
        self, key: BookingKey, less: dict[ExclusionKey, int], more: dict[ExclusionKey, int]
    ) -> None:
        """Changes how many slots of a booking bring which keys."""
        booking = self.bookings[key]
        counts = dict(booking.keys or {})
        for exclusion_key in {**less, **more}:
            shift = more.get(exclusion_key, 0) - less.get(exclusion_key, 0)
            counts[exclusion_key] = counts.get(exclusion_key, 0) + shift
            self._key_use(exclusion_key).plan.add(booking.start, booking.end, shift)
            self._drop_unused_key(exclusion_key)
        counts = {exclusion_key: count for exclusion_key, count in counts.items() if count}
        self.bookings[key] = replace(booking, keys=counts or None)

    def add_external(self, name: str, share: ExternalShare) -> None:
        self.external[name] = share
        self._shift_external_usage(share, 1)

    def remove_external(self, name: str) -> None:
        self._shift_external_usage(self.external.pop(name), -1)

    def _shift_external_usage(self, share: ExternalShare, sign: int) -> None:
        which = 1 if share.standing else 0
        self.usage_ppm = _NOT_COUNTED
        self.external_units[which] += sign * share.units
        for resource_type, units in share.below.items():
            external_units = self.external_below.setdefault(resource_type, [0, 0])
            external_units[which] += sign * units
            if external_units == [0, 0]:
                del self.external_below[resource_type]
        for exclusion_key in share.keys:
            self._key_use(exclusion_key).external[which] += sign
            self._drop_unused_key(exclusion_key)
        if not share.standing:
            self.transient_shares += sign

    def _key_use(self, key: ExclusionKey) -> KeyUse:
        if self.keys is None:
            self.keys = {}
        use = self.keys.get(key)
        if use is None:
            use = self.keys[key] = KeyUse()
        return use

    def _drop_unused_key(self, key: ExclusionKey) -> None:
        if self.keys is not None and self.keys[key].is_empty():
            del self.keys[key]
            self.keys = self.keys or None

    def overdue(self, now: int) -> list[Booking]:
        """Live bookings whose planned end has passed. They keep their units until they are released."""
        if self.live_end_min > now:
            return []
        return [b for b in self.bookings.values() if b.live and b.end <= now]


def free_units(vertex: Vertex, window: Window) -> int:
    """Units of the vertex that are free during the whole window. Can be negative."""
    state = vertex.state
    if state is None:
        return vertex.size
    if window.view is TimeView.IDEAL:
        return vertex.size - state.external_units[1]
    booked = state.plan.booked_most(window.start, window.end)
    if window.start <= window.now and state.live_end_min <= window.now:
        overdue = sum(b.units for b in state.overdue(window.now))
        booked = max(booked, state.plan.booked_at(window.now) + overdue)
    free = vertex.size - booked - state.external_units[0] - state.external_units[1]
    if (
        free > 0
        and state.exclusive_bookings > 0
        and any(_is_exclusive(b, window) for b in state.bookings.values())
    ):
        return 0  # An exclusive booking also covers units that were added later.
    return free


def _is_exclusive(booking: Booking, window: Window) -> bool:
    if not booking.exclusive:
        return False
    end = max(booking.end, window.now + 1) if booking.live else booking.end
    return booking.start < window.end and window.start < end


def free_below(vertex: Vertex, resource_type: str, window: Window) -> int:
    """An upper bound of the units of a filter type below the vertex that are free during the window.

    Never below the true value: overdue jobs are left out, and units booked beyond the size of one vertex are
    not subtracted from the others.
    """
    totals = vertex.totals
    total = totals.get(resource_type, 0) if totals is not None else 0
    state = vertex.state
    if state is None:
        return total
    external_units = state.external_below.get(resource_type)
    if window.view is TimeView.IDEAL:
        return (
            total
            - (external_units[1] if external_units is not None else 0)
            + state.standing_excess_below.get(resource_type, 0)
        )
    planner = state.below.get(resource_type)
    booked = planner.booked_most(window.start, window.end) if planner is not None else 0
    excess = state.excess_below.get(resource_type, 0)
    return (
        total - booked - (external_units[0] + external_units[1] if external_units is not None else 0) + excess
    )


def expected_free_below(vertex: Vertex, resource_type: str, window: Window) -> int:
    """As `free_below`, less what overdue jobs hold: the expected value, used to rank vertices."""
    free = free_below(vertex, resource_type, window)
    state = vertex.state
    if state is None or window.start > window.now or state.live_end_min > window.now:
        return free
    planner = state.below.get(resource_type)
    overdue = sum(booking.below.get(resource_type, 0) for booking in state.overdue(window.now))
    booked = planner.booked_most(window.start, window.end) if planner is not None else 0
    at_once = planner.booked_at(window.now) if planner is not None else 0
    return free + booked - max(booked, at_once + overdue)


def is_idle(vertex: Vertex, window: Window) -> bool:
    """Whether no job and no transient usage is on the vertex or below during the window."""
    state = vertex.state
    if state is None or window.view is TimeView.IDEAL:
        return True
    if state.transient_shares > 0 or state.presence.booked_most(window.start, window.end) > 0:
        return False
    if window.start > window.now:
        return True
    # A live booking lasts until it is released, also past its planned end.
    return state.live_end_min > window.now and not any(b.live and b.units for b in state.bookings.values())


def is_key_in_use(vertex: Vertex, key: ExclusionKey, window: Window) -> bool:
    """Whether a key is in use at the vertex at any instant of the window."""
    state = vertex.state
    use = state.keys.get(key) if state is not None and state.keys is not None else None
    if state is None or use is None:
        return False
    if use.external[1] > 0 or window.view is TimeView.IDEAL:
        return use.external[1] > 0
    if use.external[0] > 0 or use.plan.booked_most(window.start, window.end) > 0:
        return True
    if window.start > window.now:
        return False
    return any(booking.keys and key in booking.keys for booking in state.overdue(window.now))


def usage_ppm(node: Vertex) -> int:
    """The part of a node that is in use at present: of the resource of which most is in use.

    Running jobs and external usage count, reservations do not. Counted once after each change.
    """
    state = node.state
    if state is None:
        return 0
    if state.usage_ppm == _NOT_COUNTED:
        sizes: dict[str, int] = {}
        pending = list(node.below())
        for vertex in pending:  # grows during the iteration
            sizes[vertex.type] = sizes.get(vertex.type, 0) + vertex.size
            pending.extend(vertex.below())
        used = {name: sum(units) for name, units in state.external_below.items()}
        for booking in state.bookings.values():
            for resource_type, units in booking.below.items() if booking.live else ():
                used[resource_type] = used.get(resource_type, 0) + units
        shares = (
            units * USAGE_MAX_PPM // sizes[name] for name, units in used.items() if sizes.get(name, 0) > 0
        )
        state.usage_ppm = min(max(shares, default=0), USAGE_MAX_PPM)
    return state.usage_ppm


def forget_usage(vertices: Iterable[Vertex]) -> None:
    """Must be called for the vertices above a change of the graph."""
    for vertex in vertices:
        if vertex.state is not None:
            vertex.state.usage_ppm = _NOT_COUNTED


def refresh_excess(vertex: Vertex) -> None:
    """Passes to the ancestors by how much this vertex is booked beyond its size.

    External usage can exceed the size, a pool can shrink below its bookings, and a set can be booked by
    force. Must be called after every such change, while the vertex still has its state.
    """
    state = vertex.state
    if state is None:
        return
    external_units = state.external_units[0] + state.external_units[1]
    excess = max(0, state.plan.booked_most(0, FOREVER) + external_units - vertex.size)
    standing = max(0, state.external_units[1] - vertex.size)
    delta, standing_delta = excess - state.excess, standing - state.standing_excess
    state.excess, state.standing_excess = excess, standing
    if delta == 0 and standing_delta == 0:
        return
    above = vertex.parent()
    while above is not None:
        if above.state is not None:
            _shift(above.state.excess_below, vertex.type, delta)
            _shift(above.state.standing_excess_below, vertex.type, standing_delta)
        above = above.parent()


def _shift(units: dict[str, int], resource_type: str, delta: int) -> None:
    units[resource_type] = units.get(resource_type, 0) + delta
    if units[resource_type] <= 0:
        del units[resource_type]
