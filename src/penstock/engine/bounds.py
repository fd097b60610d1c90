"""Upper bounds: the most that a group could find, ignoring how the units are packed.

The walker gives whole vertices in the order of its policy, so it can miss a packing that exists. `Bounds`
descends the graph in the same way but only adds units: a vertex offers no more slots than its units of each
type allow, in any order. Where that sum is too small no packing exists, and this alone proves a `Never`.
With a real window instead of the ideal one, the same sums say how many nodes have enough free at a time,
which an explanation needs.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from penstock.engine.exclusion import Exclusion
from penstock.engine.graph import Graph, Vertex
from penstock.engine.mismatches import describe_mismatches
from penstock.engine.request import SLOT, Demand, Request
from penstock.engine.vertex_state import TimeView, Window, free_units, is_idle, is_key_in_use
from penstock.engine.walker import CONSTRAINED_TYPES, NODE
from penstock.engine.wording import describe, excluding, flatten, join
from penstock.model.constraint import Constraint, matches
from penstock.model.exclusion_key import ExclusionKey
from penstock.model.resource_types import format_count, format_units

__all__ = ["IDEAL", "Bounds", "cannot_ever_fit"]

IDEAL = Window(0, 1, 0, TimeView.IDEAL)

_Sums = dict[str, int]


class Bounds:
    """The most that one group can find in a window, in total and node by node."""

    def __init__(
        self,
        demands: tuple[Demand, ...],
        constraint: Constraint | None,
        exclusion: Exclusion,
        window: Window,
        excluded_nodes: Set[int] = frozenset(),
        whole_nodes: bool = False,
    ) -> None:
        self._whole_nodes = whole_nodes
        self._demands = demands
        self._constraint = constraint
        self._exclusion = exclusion
        self._window = window
        self.excluded_nodes = excluded_nodes  # already used by a placement on distinct nodes
        self._known: dict[tuple[int, int, bool, bool], tuple[int, _Sums]] = {}
        # By node: the slots that fit there, or 1 if the node itself is requested and qualifies.
        self.per_node: dict[int, int] = {}
        # By the id of an inner demand: the most units found below one vertex, and the type of that vertex.
        self.most: dict[int, tuple[int, str]] = {}

    def below(self, top: Vertex) -> _Sums:
        """The most units of each outer demand below a vertex."""
        sums: _Sums = {}
        above = list(top.ancestors())
        if any(self._exclusion.blocking_key(vertex, self._window) is not None for vertex in above):
            return sums
        own = self._visit(top, self._demands, True, False, sums)
        if sums.get(SLOT, 0) > 1 and any(vertex.type in self._exclusion.one_slot_per for vertex in above):
            sums[SLOT] = 1
        if own > 0:
            sums[top.type] = sums.get(top.type, 0) + own
        return sums

    def _visit(
        self, vertex: Vertex, demands: tuple[Demand, ...], pristine: bool, excl: bool, to_parent: _Sums
    ) -> int:
        """Adds what a vertex passes up to the sums of its parent; returns its own units."""
        # A vertex with several parents counts below each of them: the bound may be too high, never too low.
        # The result is kept, because the number of paths to a vertex can exceed the number of vertices.
        key = (vertex.index, id(demands), pristine, excl)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._bound(vertex, demands, pristine, excl)
        own, passed_up = known
        for resource_type, units in passed_up.items():
            to_parent[resource_type] = to_parent.get(resource_type, 0) + units
        return own

    def _bound(
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
        if (matched is None and slot is None and not pristine) or self._is_excluded(vertex, matched, excl):
            return 0, {}
        sums: _Sums = {}
        if slot is not None:
            self._slots(vertex, slot, sums)
        else:
            inner = matched.with_ if matched is not None else demands
            for child in vertex.below() if inner else ():
                self._child(child, inner, pristine and matched is None, excl, sums)
        fits = matched is None or all(self._note(vertex, demand, sums) for demand in matched.with_)
        if vertex.type in self._exclusion.one_slot_per and sums.get(SLOT, 0) > 1:
            sums[SLOT] = 1
        if vertex.type == NODE:
            self.per_node[vertex.index] = sums.get(SLOT, 0) if matched is None else int(fits)
        is_counted_here = matched is not None and bool(matched.with_)
        return free_units(vertex, self._window) if fits else 0, {} if is_counted_here else sums

    def _child(
        self, child: Vertex, demands: tuple[Demand, ...], pristine: bool, excl: bool, sums: _Sums
    ) -> None:
        matched = next((demand for demand in demands if demand.type == child.type), None)
        if not child.children and child.type not in CONSTRAINED_TYPES:
            # Most vertices are leaves: they pass nothing up, and have what is asked for or not.
            if matched is None:
                return
            if not matched.with_:
                if not self._is_excluded(child, matched, excl or matched.exclusive is True):
                    sums[child.type] = sums.get(child.type, 0) + free_units(child, self._window)
                return
        own = self._visit(child, demands, pristine, excl, sums)
        if own > 0 and matched is not None:
            sums[child.type] = sums.get(child.type, 0) + own

    def _slots(self, vertex: Vertex, slot: Demand, sums: _Sums) -> None:
        members: _Sums = {}
        for child in vertex.below():
            self._child(child, slot.with_, False, True, members)
        fit = [
            members.get(demand.type, 0) // demand.count.min
            for demand in slot.with_
            if self._note(vertex, demand, members)
        ]
        sums[SLOT] = min(fit) if len(fit) == len(slot.with_) else 0

    def _note(self, vertex: Vertex, demand: Demand, sums: _Sums) -> bool:
        """Records what was found for an inner demand below a vertex; true if that is enough."""
        found = sums.get(demand.type, 0)
        if id(demand) not in self.most or found > self.most[id(demand)][0]:
            self.most[id(demand)] = found, vertex.type
        return found >= demand.count.min

    def _is_excluded(self, vertex: Vertex, matched: Demand | None, excl: bool) -> bool:
        window = self._window
        if (not vertex.up and window.view is not TimeView.IDEAL) or free_units(vertex, window) <= 0:
            return True
        if vertex.type in CONSTRAINED_TYPES:
            if vertex.index in self.excluded_nodes or (
                self._whole_nodes and vertex.type == NODE and not is_idle(vertex, window)
            ):
                return True
            ideal = window.view is TimeView.IDEAL
            if self._constraint is not None and not matches(self._constraint, vertex, ideal=ideal):
                return True
        if self._exclusion.forbids and self._exclusion.blocking_key(vertex, window) is not None:
            return True
        alone = matched is not None and excl and (not vertex.divisible or matched.exclusive is True)
        return alone and not is_idle(vertex, window)


def cannot_ever_fit(
    graph: Graph,
    request: Request,
    demands: tuple[tuple[Demand, ...], ...],
    exclusions: tuple[Exclusion, ...],
    tops: list[Vertex] | None = None,
    excluded_nodes: Set[int] = frozenset(),
) -> str | None:
    """The clause that no state of these resources could satisfy; None if that is not proven."""
    placement = request.placement
    if tops is None:
        tops = graph.of_type(placement.within) if placement.within else [graph.root]
    if not tops:
        return f"needs one {placement.within} for all slots, the cluster has no {placement.within}"
    for group, outer, exclusion in zip(request.groups, demands, exclusions, strict=True):
        needs = _GroupNeeds(outer, group.constraint, exclusion, placement.within, excluded_nodes)
        shortages: list[tuple[int, str]] = []  # below each top: the units found, and the clause that fails
        for top in tops:
            shortage = _shortage(graph, needs, top)
            if shortage is None:
                break
            shortages.append(shortage)
        else:
            return max(shortages, key=lambda shortage: shortage[0])[1]
    return _too_much_together(graph, tops, request, demands) if len(demands) > 1 else None


@dataclass(frozen=True, slots=True)
class _GroupNeeds:
    """What one group needs, and where."""

    demands: tuple[Demand, ...]
    constraint: Constraint | None
    exclusion: Exclusion
    within: str
    excluded_nodes: Set[int]

    def ideal_bounds(self) -> Bounds:
        return Bounds(self.demands, self.constraint, self.exclusion, IDEAL, self.excluded_nodes)

    def describe(self, demand: Demand) -> str:
        return describe((demand,), self.within, self.exclusion)


def _too_much_together(
    graph: Graph, tops: list[Vertex], request: Request, demands: tuple[tuple[Demand, ...], ...]
) -> str | None:
    """Groups that fit one by one can need more in total than the graph has."""
    needs: dict[str, int] = {}
    for group in demands:
        for demand in group:
            _add_needs(demand, 1, False, needs)
    slots = needs.pop(SLOT, 0)
    if request.placement.distinct_nodes:
        needs[NODE] = max(needs.get(NODE, 0), slots)
    alone = _slots_alone(request, demands)
    clause: str | None = None
    for top in tops:
        clause = None
        owner = "the cluster" if top is graph.root else top.name
        for resource_type, units in needs.items():
            vertices = [vertex for vertex in graph.walk(top) if vertex.type == resource_type]
            most = sum(max(free_units(vertex, IDEAL), 0) for vertex in vertices)
            if most < units:
                clause = (
                    f"needs {format_count(units, resource_type)} in {len(demands)} groups, "
                    f"{owner} has {format_units(most, resource_type)}"
                )
        for key, count in alone.items():
            places = [node for node in graph.walk(top) if node.type == NODE]
            most = sum(not is_key_in_use(node, key, IDEAL) for node in places)
            if most < count:
                clause = (
                    f"needs {format_count(count, NODE)} in {len(demands)} groups for {key.name}, "
                    f"{owner} has {most}"
                )
        if clause is None:
            return None
    return clause


def _slots_alone(request: Request, demands: tuple[tuple[Demand, ...], ...]) -> dict[ExclusionKey, int]:
    """By key of nodes: the slots of all groups that bring and forbid it, each of which needs its own node."""
    alone: dict[ExclusionKey, int] = {}
    for group, outer in zip(request.groups, demands, strict=True):
        for key in sorted(set(group.brings).intersection(group.forbids)):
            if key.level == NODE:
                alone[key] = alone.get(key, 0) + outer[0].count.min
    return alone


def _add_needs(demand: Demand, times: int, inside: bool, needs: dict[str, int]) -> None:
    """Adds the units that a demand books at least: slots, their contents, and exclusive resources."""
    inside = inside or demand.exclusive is True
    least = times * demand.count.min
    if inside or demand.type == SLOT:
        needs[demand.type] = needs.get(demand.type, 0) + least
    for inner in demand.with_:
        _add_needs(inner, least, inside or demand.type == SLOT, needs)


def _shortage(graph: Graph, needs: _GroupNeeds, top: Vertex) -> tuple[int, str] | None:
    """The first demand that cannot be met below a top: the units found, and the clause."""
    bounds = needs.ideal_bounds()
    sums = bounds.below(top)
    for demand in needs.demands:
        found = sums.get(demand.type, 0)
        if found < demand.count.min:
            clause = _exclusion_clause(graph, needs, top, demand)
            return found, clause or _clause(graph, needs, bounds, demand, found)
    return None


def _exclusion_clause(graph: Graph, needs: _GroupNeeds, top: Vertex, demand: Demand) -> str | None:
    """That standing usage brings keys which the group forbids; None if that is not why it does not fit."""
    if not needs.exclusion.forbids:
        return None
    without_keys = replace(needs, exclusion=replace(needs.exclusion, forbids={}))
    if without_keys.ideal_bounds().below(top).get(demand.type, 0) < demand.count.min:
        return None
    nodes = [node for node in graph.walk(top) if node.type == NODE]
    keys = [needs.exclusion.blocking_key_around(node, IDEAL) for node in nodes]
    reasons = excluding([key for key in keys if key is not None])
    if not reasons:
        return None  # The vertices of its level are outside nodes.
    of_nodes = format_count(len(nodes), NODE)
    return f"needs {needs.describe(demand)}; of {of_nodes}, {join(reasons)} permanently"


def _clause(graph: Graph, needs: _GroupNeeds, bounds: Bounds, demand: Demand, found: int) -> str:
    tree = flatten([demand])
    known = graph.types()
    constraint = needs.constraint
    for inner in tree:
        if inner.type != SLOT and inner.type not in known:
            return f"needs {format_count(inner.count.min, inner.type)}, the cluster has no {inner.type}"
    if constraint is not None:
        nodes = [vertex for name in CONSTRAINED_TYPES for vertex in graph.of_type(name)]
        if not any(matches(constraint, node, ideal=True) for node in nodes):
            details = describe_mismatches(constraint, nodes, ideal=True)
            return f"0 of {len(nodes)} nodes match; {details}" if details else "the cluster has no nodes"
    fit = f"{found} {'fits' if found == 1 else 'fit'}"
    if needs.excluded_nodes:
        return f"needs {needs.describe(demand)} on nodes without a slot of this job, {fit} there"
    for inner in reversed(tree):
        if inner is not demand and id(inner) in bounds.most:
            most, place = bounds.most[id(inner)]
            if most == 0 and not _is_child_of(graph, inner.type, place):
                break
            if most < inner.count.min:
                owner = f"{place} that matches the constraint" if constraint is not None else place
                return _inner_clause(inner, _parent(tree, inner), most, owner)
    if any(bounds.most.get(id(inner), (0, ""))[0] == 0 for inner in tree[1:]):
        path = "->".join(inner.type for inner in tree)
        return f"needs resources nested as {path}, the cluster does not nest them so"
    owner = f"a {needs.within}" if needs.within else "the cluster"
    return f"needs {needs.describe(demand)}, {owner} fits at most {found}"


def _inner_clause(demand: Demand, parent: Demand, most: int, owner: str) -> str:
    """That no single vertex has what one unit of the parent needs."""
    needed = f"needs {format_count(demand.count.min, demand.type)} per {parent.type}"
    if most == 0:
        return f"{needed}, no {owner} has any"
    verb = "fits" if demand.type == SLOT else "has"
    return f"{needed}, the largest {owner} {verb} {format_units(most, demand.type)}"


def _is_child_of(graph: Graph, resource_type: str, parent_type: str) -> bool:
    """Whether some vertex of a type is a direct child of a vertex of the other type."""
    parents = (vertex.parent() for vertex in graph.of_type(resource_type))
    return any(parent is not None and parent.type == parent_type for parent in parents)


def _parent(tree: list[Demand], inner: Demand) -> Demand:
    return next(demand for demand in tree if any(child is inner for child in demand.with_))
