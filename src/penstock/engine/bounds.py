"""Upper bounds: what could be found at most, if packing were no problem.

The walker gives whole vertices in the order of its policy, so it can miss a packing that exists.
`Bounds` goes the same way but only adds up units: a vertex can give no more slots than its units
of each type allow, whatever the order. Where even that is too little, no packing can exist; that,
and nothing else, makes a `Never`. With a real window instead of the ideal one, the same sums tell
how many nodes have room at a time, which is what an explanation needs.
"""

from __future__ import annotations

from penstock.engine.graph import Graph, Vertex
from penstock.engine.request import SLOT, Placement, Request, Want
from penstock.engine.vertex_state import TimeView, Window, free_units, is_untouched
from penstock.engine.walker import CONSTRAINED_TYPES, NODE
from penstock.model.constraint import Constraint, matches
from penstock.model.quantity import format_quantity

__all__ = ["IDEAL", "Bounds", "amount", "cannot_ever_fit", "counted"]

IDEAL = Window(0, 1, 0, TimeView.IDEAL)

_Sums = dict[str, int]
# Types that are counted in things, not in units.
_COUNTED = frozenset({"slot", "node", "core", "gpu", "socket", "rack", "cluster"})


# Pools of a Kubernetes node are in millicores and in bytes, and people read them as quantities.
_MILLI = frozenset({"cpu"})
_BYTES = frozenset({"memory", "ephemeral-storage"})
_BYTES_LEAST = 1 << 20  # below that it is no number of bytes, but of larger units


def amount(units: int, kind: str) -> str:
    """Units as people read them: 500m of cpu, 64Mi of memory, 3 of anything else."""
    if kind in _MILLI:
        return format_quantity(units, scale=1000)
    if kind in _BYTES and abs(units) >= _BYTES_LEAST:
        return format_quantity(units, binary=True)
    return str(units)


def counted(number: int, kind: str) -> str:
    """A number with what it counts: 1 node, 4 cores, 16 memory."""
    return f"{amount(number, kind)} {kind}{'s' if kind in _COUNTED and number != 1 else ''}"


class Bounds:
    """The most that one group can find in a window; also node by node."""

    def __init__(
        self,
        wants: tuple[Want, ...],
        constraint: Constraint | None,
        placement: Placement,
        window: Window,
        avoid: frozenset[int] = frozenset(),
        nodes_whole: bool = False,
    ) -> None:
        self._nodes_whole = nodes_whole
        self._wants = wants
        self._constraint = constraint
        self._placement = placement
        self._window = window
        self.avoid = avoid  # nodes that a distinct placement has used already
        self._known: dict[tuple[int, int, bool, bool], tuple[int, _Sums]] = {}
        self.per_node: dict[int, int] = {}  # slots, or 1 for a node that qualifies as such
        self.most: dict[int, int] = {}  # the most that was found in one place, by the id of a want

    def below(self, top: Vertex) -> _Sums:
        """Units of each outer want below a vertex, at most."""
        sums: _Sums = {}
        own = self._visit(top, self._wants, True, False, sums)
        if own > 0:
            sums[top.type] = sums.get(top.type, 0) + own
        return sums

    def _visit(self, u: Vertex, wants: tuple[Want, ...], pristine: bool, excl: bool, to_parent: _Sums) -> int:
        """Adds what a vertex hands on to the sums of its parent; returns its own units."""
        # A vertex that several contain counts below each of them: more than there is, never less.
        # Looked at once, though: there can be more ways to it than vertices.
        key = (u.index, id(wants), pristine, excl)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._look(u, wants, pristine, excl)
        own, handed = known
        for kind, units in handed.items():
            to_parent[kind] = to_parent.get(kind, 0) + units
        return own

    def _look(self, u: Vertex, wants: tuple[Want, ...], pristine: bool, excl: bool) -> tuple[int, _Sums]:
        matched: Want | None = None
        slot: Want | None = None
        for want in wants:
            if want.type == u.type:
                matched, slot = want, want.slot
            elif want.type == SLOT and pristine:
                slot = want
        kinds = {child.type for child in u.below()}
        if slot is not None and any(want.type not in kinds for want in slot.with_):
            slot = None
        excl = excl or (matched is not None and matched.exclusive is True)
        if (matched is None and slot is None and not pristine) or self._is_out(u, matched, excl):
            return 0, {}
        sums: _Sums = {}
        if slot is not None:
            self._slots(u, slot, sums)
        else:
            inner = matched.with_ if matched is not None else wants
            for child in u.below() if inner else ():
                self._child(child, inner, pristine and matched is None, excl, sums)
        fits = all(self._note(want, sums) for want in matched.with_) if matched is not None else True
        if u.type == NODE and self._placement.distinct_nodes and sums.get(SLOT, 0) > 1:
            sums[SLOT] = 1
        if u.type == NODE:
            self.per_node[u.index] = sums.get(SLOT, 0) if matched is None else int(fits)
        is_counted_here = matched is not None and bool(matched.with_)
        return free_units(u, self._window) if fits else 0, {} if is_counted_here else sums

    def _child(self, child: Vertex, wants: tuple[Want, ...], pristine: bool, excl: bool, sums: _Sums) -> None:
        own = self._visit(child, wants, pristine, excl, sums)
        if own > 0 and any(want.type == child.type for want in wants):
            sums[child.type] = sums.get(child.type, 0) + own

    def _slots(self, u: Vertex, slot: Want, sums: _Sums) -> None:
        members: _Sums = {}
        for child in u.below():
            self._child(child, slot.with_, False, True, members)
        fit = [
            members.get(want.type, 0) // want.count.min for want in slot.with_ if self._note(want, members)
        ]
        sums[SLOT] = min(fit) if len(fit) == len(slot.with_) else 0

    def _note(self, want: Want, sums: _Sums) -> bool:
        found = sums.get(want.type, 0)
        self.most[id(want)] = max(self.most.get(id(want), 0), found)
        return found >= want.count.min

    def _is_out(self, u: Vertex, matched: Want | None, excl: bool) -> bool:
        window = self._window
        if (not u.up and window.view is not TimeView.IDEAL) or free_units(u, window) <= 0:
            return True
        if u.type in CONSTRAINED_TYPES:
            if u.index in self.avoid or (
                self._nodes_whole and u.type == NODE and not is_untouched(u, window)
            ):
                return True
            if self._constraint is not None and not matches(self._constraint, u):
                return True
        alone = matched is not None and excl and (not u.divisible or matched.exclusive is True)
        return alone and not is_untouched(u, window)


def cannot_ever_fit(
    graph: Graph,
    request: Request,
    wants: tuple[tuple[Want, ...], ...],
    tops: list[Vertex] | None = None,
    avoid: frozenset[int] = frozenset(),
) -> str | None:
    """The clause that no state of these resources could meet; nothing if that is not proven."""
    within = request.placement.within
    if tops is None:
        tops = graph.of_type(within) if within else [graph.root]
    for group, outer in zip(request.groups, wants, strict=True):
        told: list[tuple[int, str]] = []  # how much was found below each top, and what is missing there
        for top in tops:
            bounds = Bounds(outer, group.constraint, request.placement, IDEAL, avoid)
            shortage = _shortage(graph, bounds, top, outer, group.constraint)
            if shortage is None:
                break
            told.append(shortage)
        else:
            if not told:
                return f"asks to lie inside one {within}, and no node lies in any"
            clause = max(told, key=lambda shortage: shortage[0])[1]
            return clause + (f" inside one {within}" if within and len(tops) > 1 else "")
    return _too_much_together(graph, tops, request, wants) if len(wants) > 1 else None


def _too_much_together(
    graph: Graph, tops: list[Vertex], request: Request, wants: tuple[tuple[Want, ...], ...]
) -> str | None:
    """Groups that fit alone can be more than there is when they are added up."""
    needs: dict[str, int] = {}
    for group in wants:
        for want in group:
            _add_held(want, 1, False, needs)
    slots = needs.pop(SLOT, 0)
    if request.placement.distinct_nodes:
        needs[NODE] = max(needs.get(NODE, 0), slots)
    short: str | None = None
    for top in tops:
        short = None
        for kind, units in needs.items():
            there = [vertex for vertex in graph.walk(top) if vertex.type == kind]
            most = sum(max(free_units(vertex, IDEAL), 0) for vertex in there)
            if most < units:
                asked, there_are = counted(units, kind), amount(most, kind)
                short = f"asks for {asked} in {len(wants)} groups together, there are {there_are}"
        if short is None:
            return None
    return short


def _add_held(want: Want, times: int, inside: bool, needs: dict[str, int]) -> None:
    """Adds what a want holds at least: slots, what lies in them, and what is asked for alone."""
    inside = inside or want.exclusive is True
    least = times * want.count.min
    if inside or want.type == SLOT:
        needs[want.type] = needs.get(want.type, 0) + least
    for inner in want.with_:
        _add_held(inner, least, inside or want.type == SLOT, needs)


def _shortage(
    graph: Graph, bounds: Bounds, top: Vertex, wants: tuple[Want, ...], constraint: Constraint | None
) -> tuple[int, str] | None:
    """What is missing below a top, with how much of it there is."""
    sums = bounds.below(top)
    for want in wants:
        found = sums.get(want.type, 0)
        if found < want.count.min:
            return found, _clause(graph, bounds, want, found, constraint)
    return None


def _clause(graph: Graph, bounds: Bounds, want: Want, found: int, constraint: Constraint | None) -> str:
    known = graph.types()
    for level in _levels(want):
        if level.type != SLOT and level.type not in known:
            return f"asks for {level.type}, and there is no {level.type} here"
    if constraint is not None and not any(
        matches(constraint, vertex) for kind in CONSTRAINED_TYPES for vertex in graph.of_type(kind)
    ):
        nodes = sum(len(graph.of_type(kind)) for kind in CONSTRAINED_TYPES)
        return f"asks for nodes with a constraint that none of {nodes} meets"
    if bounds.avoid:
        asked = counted(want.count.min, want.type)
        return f"asks for {asked} on nodes that this job is not on, {found} fit there"
    for level in reversed(_levels(want)):
        most = bounds.most.get(id(level))
        if level is not want and most is not None and most < level.count.min:
            if most == 0:
                return f"asks for {level.type} in a place that has none"
            has = amount(most, level.type)
            return f"asks for {counted(level.count.min, level.type)} together, the largest place has {has}"
    if any(id(level) not in bounds.most for level in _levels(want)[1:]):
        return "asks for levels in an order that these resources do not have: " + "->".join(
            level.type for level in _levels(want)
        )
    return f"asks for {counted(want.count.min, want.type)}, at most {found} fit when everything is free"


def _levels(want: Want) -> list[Want]:
    levels = [want]
    for level in levels:  # grows while it is walked: outer levels stand before inner ones
        levels.extend(level.with_)
    return levels
