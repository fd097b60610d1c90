"""Upper bounds: what could be found at most, if packing were no problem.

The walker gives whole vertices in the order of its policy, so it can miss a packing that exists.
`Bounds` goes the same way but only adds up units: a vertex can give no more slots than its units
of each type allow, whatever the order. Where even that is too little, no packing can exist; that,
and nothing else, makes a `Never`. With a real window instead of the ideal one, the same sums tell
how many nodes have room at a time, which is what an explanation needs.
"""

from __future__ import annotations

from penstock.engine.graph import Graph, Vertex
from penstock.engine.request import SLOT, Demand, Placement, Request
from penstock.engine.vertex_state import TimeView, Window, free_units, is_idle
from penstock.engine.walker import CONSTRAINED_TYPES, NODE
from penstock.model.constraint import Constraint, matches
from penstock.model.quantity import format_quantity

__all__ = ["IDEAL", "Bounds", "cannot_ever_fit", "format_count", "format_units"]

IDEAL = Window(0, 1, 0, TimeView.IDEAL)

_Sums = dict[str, int]
# Types that are counted in things, not in units.
_COUNTED = frozenset({"slot", "node", "core", "gpu", "socket", "rack", "cluster"})


# Pools of a Kubernetes node are in millicores and in bytes, and people read them as quantities.
_MILLI = frozenset({"cpu"})
_BYTES = frozenset({"memory", "ephemeral-storage"})
_BYTES_LEAST = 1 << 20  # below that it is no number of bytes, but of larger units


def format_units(units: int, resource_type: str) -> str:
    """Units as people read them: 500m of cpu, 64Mi of memory, 3 of anything else."""
    if resource_type in _MILLI:
        return format_quantity(units, scale=1000)
    if resource_type in _BYTES and abs(units) >= _BYTES_LEAST:
        return format_quantity(units, binary=True)
    return str(units)


def format_count(number: int, resource_type: str) -> str:
    """A number with what it counts: 1 node, 4 cores, 16 memory."""
    plural = "s" if resource_type in _COUNTED and number != 1 else ""
    return f"{format_units(number, resource_type)} {resource_type}{plural}"


class Bounds:
    """The most that one group can find in a window; also node by node."""

    def __init__(
        self,
        demands: tuple[Demand, ...],
        constraint: Constraint | None,
        placement: Placement,
        window: Window,
        excluded_nodes: frozenset[int] = frozenset(),
        whole_nodes: bool = False,
    ) -> None:
        self._whole_nodes = whole_nodes
        self._wants = demands
        self._constraint = constraint
        self._placement = placement
        self._window = window
        self.excluded_nodes = excluded_nodes  # nodes that a distinct placement has used already
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

    def _visit(
        self, vertex: Vertex, demands: tuple[Demand, ...], pristine: bool, excl: bool, to_parent: _Sums
    ) -> int:
        """Adds what a vertex hands on to the sums of its parent; returns its own units."""
        # A vertex that several contain counts below each of them: more than there is, never less.
        # Looked at once, though: there can be more ways to it than vertices.
        key = (vertex.index, id(demands), pristine, excl)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._look(vertex, demands, pristine, excl)
        own, handed = known
        for resource_type, units in handed.items():
            to_parent[resource_type] = to_parent.get(resource_type, 0) + units
        return own

    def _look(
        self, vertex: Vertex, demands: tuple[Demand, ...], pristine: bool, excl: bool
    ) -> tuple[int, _Sums]:
        matched: Demand | None = None
        slot: Demand | None = None
        for demand in demands:
            if demand.type == vertex.type:
                matched, slot = demand, demand.slot
            elif demand.type == SLOT and pristine:
                slot = demand
        resource_types = {child.type for child in vertex.below()}
        if slot is not None and any(demand.type not in resource_types for demand in slot.with_):
            slot = None
        excl = excl or (matched is not None and matched.exclusive is True)
        if (matched is None and slot is None and not pristine) or self._is_out(vertex, matched, excl):
            return 0, {}
        sums: _Sums = {}
        if slot is not None:
            self._slots(vertex, slot, sums)
        else:
            inner = matched.with_ if matched is not None else demands
            for child in vertex.below() if inner else ():
                self._child(child, inner, pristine and matched is None, excl, sums)
        fits = all(self._note(demand, sums) for demand in matched.with_) if matched is not None else True
        if vertex.type == NODE and self._placement.distinct_nodes and sums.get(SLOT, 0) > 1:
            sums[SLOT] = 1
        if vertex.type == NODE:
            self.per_node[vertex.index] = sums.get(SLOT, 0) if matched is None else int(fits)
        is_counted_here = matched is not None and bool(matched.with_)
        return free_units(vertex, self._window) if fits else 0, {} if is_counted_here else sums

    def _child(
        self, child: Vertex, demands: tuple[Demand, ...], pristine: bool, excl: bool, sums: _Sums
    ) -> None:
        own = self._visit(child, demands, pristine, excl, sums)
        if own > 0 and any(demand.type == child.type for demand in demands):
            sums[child.type] = sums.get(child.type, 0) + own

    def _slots(self, vertex: Vertex, slot: Demand, sums: _Sums) -> None:
        members: _Sums = {}
        for child in vertex.below():
            self._child(child, slot.with_, False, True, members)
        fit = [
            members.get(demand.type, 0) // demand.count.min
            for demand in slot.with_
            if self._note(demand, members)
        ]
        sums[SLOT] = min(fit) if len(fit) == len(slot.with_) else 0

    def _note(self, demand: Demand, sums: _Sums) -> bool:
        found = sums.get(demand.type, 0)
        self.most[id(demand)] = max(self.most.get(id(demand), 0), found)
        return found >= demand.count.min

    def _is_out(self, vertex: Vertex, matched: Demand | None, excl: bool) -> bool:
        window = self._window
        if (not vertex.up and window.view is not TimeView.IDEAL) or free_units(vertex, window) <= 0:
            return True
        if vertex.type in CONSTRAINED_TYPES:
            if vertex.index in self.excluded_nodes or (
                self._whole_nodes and vertex.type == NODE and not is_idle(vertex, window)
            ):
                return True
            if self._constraint is not None and not matches(self._constraint, vertex):
                return True
        alone = matched is not None and excl and (not vertex.divisible or matched.exclusive is True)
        return alone and not is_idle(vertex, window)


def cannot_ever_fit(
    graph: Graph,
    request: Request,
    demands: tuple[tuple[Demand, ...], ...],
    tops: list[Vertex] | None = None,
    excluded_nodes: frozenset[int] = frozenset(),
) -> str | None:
    """The clause that no state of these resources could meet; nothing if that is not proven."""
    within = request.placement.within
    if tops is None:
        tops = graph.of_type(within) if within else [graph.root]
    for group, outer in zip(request.groups, demands, strict=True):
        told: list[tuple[int, str]] = []  # how much was found below each top, and what is missing there
        for top in tops:
            bounds = Bounds(outer, group.constraint, request.placement, IDEAL, excluded_nodes)
            shortage = _shortage(graph, bounds, top, outer, group.constraint)
            if shortage is None:
                break
            told.append(shortage)
        else:
            if not told:
                return f"asks to lie inside one {within}, and no node lies in any"
            clause = max(told, key=lambda shortage: shortage[0])[1]
            return clause + (f" inside one {within}" if within and len(tops) > 1 else "")
    return _too_much_together(graph, tops, request, demands) if len(demands) > 1 else None


def _too_much_together(
    graph: Graph, tops: list[Vertex], request: Request, demands: tuple[tuple[Demand, ...], ...]
) -> str | None:
    """Groups that fit alone can be more than there is when they are added up."""
    needs: dict[str, int] = {}
    for group in demands:
        for demand in group:
            _add_held(demand, 1, False, needs)
    slots = needs.pop(SLOT, 0)
    if request.placement.distinct_nodes:
        needs[NODE] = max(needs.get(NODE, 0), slots)
    short: str | None = None
    for top in tops:
        short = None
        for resource_type, units in needs.items():
            there = [vertex for vertex in graph.walk(top) if vertex.type == resource_type]
            most = sum(max(free_units(vertex, IDEAL), 0) for vertex in there)
            if most < units:
                requested, there_are = format_count(units, resource_type), format_units(most, resource_type)
                short = f"asks for {requested} in {len(demands)} groups together, there are {there_are}"
        if short is None:
            return None
    return short


def _add_held(demand: Demand, times: int, inside: bool, needs: dict[str, int]) -> None:
    """Adds what a want holds at least: slots, what lies in them, and what is asked for alone."""
    inside = inside or demand.exclusive is True
    least = times * demand.count.min
    if inside or demand.type == SLOT:
        needs[demand.type] = needs.get(demand.type, 0) + least
    for inner in demand.with_:
        _add_held(inner, least, inside or demand.type == SLOT, needs)


def _shortage(
    graph: Graph, bounds: Bounds, top: Vertex, demands: tuple[Demand, ...], constraint: Constraint | None
) -> tuple[int, str] | None:
    """What is missing below a top, with how much of it there is."""
    sums = bounds.below(top)
    for demand in demands:
        found = sums.get(demand.type, 0)
        if found < demand.count.min:
            return found, _clause(graph, bounds, demand, found, constraint)
    return None


def _clause(graph: Graph, bounds: Bounds, demand: Demand, found: int, constraint: Constraint | None) -> str:
    known = graph.types()
    for level in _levels(demand):
        if level.type != SLOT and level.type not in known:
            return f"asks for {level.type}, and there is no {level.type} here"
    if constraint is not None and not any(
        matches(constraint, vertex)
        for resource_type in CONSTRAINED_TYPES
        for vertex in graph.of_type(resource_type)
    ):
        nodes = sum(len(graph.of_type(resource_type)) for resource_type in CONSTRAINED_TYPES)
        return f"asks for nodes with a constraint that none of {nodes} meets"
    if bounds.excluded_nodes:
        requested = format_count(demand.count.min, demand.type)
        return f"asks for {requested} on nodes that this job is not on, {found} fit there"
    for level in reversed(_levels(demand)):
        most = bounds.most.get(id(level))
        if level is not demand and most is not None and most < level.count.min:
            if most == 0:
                return f"asks for {level.type} in a place that has none"
            has = format_units(most, level.type)
            return (
                f"asks for {format_count(level.count.min, level.type)} together, the largest place has {has}"
            )
    if any(id(level) not in bounds.most for level in _levels(demand)[1:]):
        return "asks for levels in an order that these resources do not have: " + "->".join(
            level.type for level in _levels(demand)
        )
    return (
        f"asks for {format_count(demand.count.min, demand.type)}, at most {found} fit when everything is free"
    )


def _levels(demand: Demand) -> list[Demand]:
    levels = [demand]
    for level in levels:  # grows while it is walked: outer levels stand before inner ones
        levels.extend(level.with_)
    return levels
