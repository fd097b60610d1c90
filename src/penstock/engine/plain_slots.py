"""Plain requests: equal slots of resources that nodes have, which is what pods ask for.

For such a request the bound of `bounds` is a sum over the nodes, and what one node adds to it follows from
the node alone: its units less standing usage, its properties, the keys of its standing usage. So a request
that could be satisfied is recognised without a walk, and a change of one node is compared with a request at
the cost of that node: a sum that no node increases stays too small, one that no node decreases stays large
enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final

from penstock.engine.bounds import IDEAL
from penstock.engine.exclusion import Exclusion
from penstock.engine.external_usage import ExternalUsageTable
from penstock.engine.graph import Graph, Vertex
from penstock.engine.request import SLOT, Demand, Request
from penstock.engine.vertex_state import free_units
from penstock.engine.walker import NODE
from penstock.model.constraint import Constraint, matches
from penstock.model.exclusion_key import ExclusionKey

__all__ = ["NodeChange", "NodeOffer", "PlainRequest", "effect_of", "has_enough", "offer_of", "plain_request"]


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """What a node has when it is up and idle. It is a subject of constraints, like the node's vertex."""

    name: str
    rank: int
    properties: Mapping[str, str]
    levels: tuple[tuple[str, str], ...]  # types and names of the vertices above it, the nearest first
    units: Mapping[str, int]  # by type of its children, less standing usage
    keys: frozenset[ExclusionKey]  # brought by standing usage on it, of any level


@dataclass(frozen=True, slots=True)
class NodeChange:
    before: NodeOffer | None  # None: the node was added
    after: NodeOffer | None  # None: it was removed


@dataclass(frozen=True, slots=True)
class _PlainGroup:
    needs: tuple[tuple[str, int], ...]  # units of one slot
    count: int
    constraint: Constraint | None
    exclusion: Exclusion
    forbids: frozenset[ExclusionKey]

    def slots_on(self, node: NodeOffer | None) -> int:
        """The slots that fit on a node, as far as the node alone decides it."""
        if node is None:
            return 0
        slots = min(node.units.get(resource_type, 0) // units for resource_type, units in self.needs)
        if slots <= 0 or (self.constraint is not None and not matches(self.constraint, node, ideal=True)):
            return 0
        if self.forbids and any(key.level == NODE and key in self.forbids for key in node.keys):
            return 0
        return 1 if NODE in self.exclusion.one_slot_per else slots

    def reads_levels(self) -> bool:
        """Whether it matters below which vertices a node is."""
        return any(level != NODE for level in (*self.exclusion.one_slot_per, *self.exclusion.forbids))


@dataclass(frozen=True, slots=True)
class PlainRequest:
    groups: tuple[_PlainGroup, ...]
    within: str

    @property
    def resource_types(self) -> Set[str]:
        return {resource_type for group in self.groups for resource_type, _ in group.needs}


_NONE: Final[tuple[bool, bool]] = (False, False)


def plain_request(
    request: Request, demands: tuple[tuple[Demand, ...], ...], exclusions: tuple[Exclusion, ...]
) -> PlainRequest | None:
    """The request if all its groups are plain slots; None if it names nodes, or nests resources."""
    groups: list[_PlainGroup] = []
    for group, outer, exclusion in zip(request.groups, demands, exclusions, strict=True):
        slot = outer[0]
        if len(outer) != 1 or slot.type != SLOT:
            return None
        if any(inner.with_ or inner.type in (NODE, SLOT) for inner in slot.with_):
            return None
        needs = tuple((inner.type, inner.count.min) for inner in slot.with_)
        groups.append(
            _PlainGroup(needs, slot.count.min, group.constraint, exclusion, frozenset(group.forbids))
        )
    return PlainRequest(tuple(groups), request.placement.within)


def has_enough(graph: Graph, request: PlainRequest) -> bool:
    """Whether the nodes together surely fit the slots of a request; False if that is not clear."""
    if len(request.groups) != 1 or request.within or not graph.is_tree or request.groups[0].reads_levels():
        return False
    group = request.groups[0]
    left = group.count
    usable: dict[int, bool] = {}  # vertices above nodes
    for node in graph.of_type(NODE):
        if group.constraint is not None and not matches(group.constraint, node, ideal=True):
            continue
        above = node.parent()
        if above is not None and above.index not in usable:
            usable[above.index] = all(free_units(one, IDEAL) > 0 for one in (above, *above.ancestors()))
        if (above is not None and not usable[above.index]) or free_units(node, IDEAL) <= 0:
            continue
        units = _idle_units(node)
        slots = min(units.get(resource_type, 0) // needed for resource_type, needed in group.needs)
        if slots <= 0 or group.exclusion.blocking_key(node, IDEAL) is not None:
            continue
        left -= 1 if group.exclusion.one_slot_per else slots
        if left <= 0:
            return True
    return False


def _idle_units(node: Vertex) -> dict[str, int]:
    """The units of each type right below a vertex, less standing usage."""
    units: dict[str, int] = {}
    for child in node.below():
        free = free_units(child, IDEAL)
        if free > 0:
            units[child.type] = units.get(child.type, 0) + free
    return units


def offer_of(node: Vertex, usage: ExternalUsageTable) -> NodeOffer:
    levels = tuple((above.type, above.name) for above in node.ancestors())
    keys = usage.standing_keys(node)
    return NodeOffer(node.name, node.rank, node.properties, levels, _idle_units(node), keys)


def effect_of(request: PlainRequest | None, change: NodeChange) -> tuple[bool, bool]:
    """Whether a change can make a request satisfiable, and whether it can make it unsatisfiable.

    Never false where it should be true. Of a request that is not plain (None) nothing is known.
    """
    before, after = change.before, change.after
    if before == after:
        return _NONE
    if request is None:
        return True, True
    levels = {level for offer in (before, after) if offer is not None for level, _ in offer.levels}
    if not levels.isdisjoint(request.resource_types):
        return True, True  # A vertex above nodes has the type of a resource.
    is_moved = before is not None and after is not None and before.levels != after.levels
    gains = loses = False
    for group in request.groups:
        had, has = group.slots_on(before), group.slots_on(after)
        if is_moved and (request.within or group.reads_levels()):
            gains, loses = gains or has > 0, loses or had > 0
        gains, loses = gains or has > had, loses or has < had
        if group.forbids:
            more, fewer = _forbidden_above(group, before), _forbidden_above(group, after)
            gains, loses = gains or not more <= fewer, loses or not fewer <= more
    if len(request.groups) > 1 and not (gains and loses):
        more_total, less_total = _totals_changed(request, change, is_moved)
        gains, loses = gains or more_total, loses or less_total
    return gains, loses


def _forbidden_above(group: _PlainGroup, node: NodeOffer | None) -> Set[tuple[object, ...]]:
    """Keys that a group forbids and that usage on a node brings to vertices above it, with their places."""
    if node is None:
        return frozenset()
    return {
        (key, *node.levels[place:])
        for key in node.keys & group.forbids
        for place, (level, _) in enumerate(node.levels)
        if level == key.level
    }


def _totals_changed(request: PlainRequest, change: NodeChange, is_moved: bool) -> tuple[bool, bool]:
    """Groups that fit one by one are also compared with totals, in which every node counts."""
    before, after = change.before, change.after
    if is_moved or before is None or after is None:
        return after is not None, before is not None
    deltas = [
        after.units.get(resource_type, 0) - before.units.get(resource_type, 0)
        for resource_type in request.resource_types
    ]
    forbids = frozenset().union(*(group.forbids for group in request.groups))
    used, uses = before.keys & forbids, after.keys & forbids
    return (
        any(delta > 0 for delta in deltas) or not used <= uses,
        any(delta < 0 for delta in deltas) or not uses <= used,
    )
