"""Matches one group with the help of the node index, or says that the index does not cover it.

The index covers groups whose resources are all on nodes: slots of resources that only nodes have, slots of
whole nodes, and nodes with slots or resources in them. It gives the walker a set of nodes to visit. If the
policy stops at the first match, the walker takes the nodes of the set in its order and stops by itself.
Otherwise it is given the best nodes, as many as can be needed, and more of them while it finds too few or a
node outside could still do better (`_is_proven`). At the latest with all candidates its result is that of a
walk over the whole graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final

from penstock.engine.candidates import Selection
from penstock.engine.exclusion import Exclusion
from penstock.engine.graph import Graph, Vertex
from penstock.engine.node_index import Needs, NodeIndex
from penstock.engine.node_sets import bits_of, highest_bits
from penstock.engine.policies import Policy, SearchOrder, Usage
from penstock.engine.ranking import Ranking
from penstock.engine.request import SLOT, Demand, NodeOrder, Preference
from penstock.engine.vertex_state import TimeView, Window
from penstock.engine.walker import CONSTRAINED_TYPES, NODE, Walk
from penstock.model.constraint import Constraint

__all__ = ["AnswerCounts", "GroupQuery", "IndexedSearch", "Pattern", "pattern_of"]

_GROWTH: Final = 4


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a group needs of each node that it uses."""

    needs: Needs  # of one slot, or of one node
    needs_idle: bool
    count: int  # slots or nodes
    is_slots: bool  # several slots can be on one node
    per_slot: int = 1  # nodes of one slot, if slots contain nodes

    @property
    def nodes_min(self) -> int:
        """The least number of nodes, if each has at most one slot."""
        return self.count * self.per_slot


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """One group of a request, and where it may be placed."""

    demands: tuple[Demand, ...]
    constraint: Constraint | None
    exclusion: Exclusion
    window: Window
    top: Vertex
    excluded_nodes: Set[int]
    prefers: tuple[Preference, ...]
    order: NodeOrder
    own_slots: Mapping[int, int]
    ranking: Ranking | None


def pattern_of(demands: tuple[Demand, ...], tracked: frozenset[str], whole_nodes: bool) -> Pattern | None:
    """The pattern of a group; None if it is of another form."""
    if len(demands) != 1 or demands[0].count.min != demands[0].count.max:
        return None
    outer = demands[0]
    if outer.type == NODE:
        if _names(outer.with_, NODE):
            return None
        return Pattern(_sorted(outer.needs), whole_nodes or outer.exclusive is True, outer.count.min, False)
    if outer.type != SLOT:
        return None
    if len(outer.with_) == 1 and outer.with_[0].type == NODE:
        node = outer.with_[0]
        if node.count.min != node.count.max or _names(node.with_, NODE):
            return None
        return Pattern(_sorted(node.needs), True, outer.count.min, False, node.count.min)
    if _names(outer.with_, NODE) or not any(inner.type in tracked for inner in outer.with_):
        return None
    return Pattern(_sorted(outer.needs), whole_nodes, outer.count.min, True)


def _sorted(needs: dict[str, int]) -> Needs:
    return tuple(sorted((resource_type, units) for resource_type, units in needs.items() if units > 0))


def _names(demands: Iterable[Demand], resource_type: str) -> bool:
    return any(demand.type == resource_type or _names(demand.with_, resource_type) for demand in demands)


@dataclass(frozen=True, slots=True)
class AnswerCounts:
    """How many groups were matched by whom."""

    index: int
    walker: int


class NodeRestriction:
    """A set of nodes for a walk."""

    __slots__ = ("_index", "_nodes", "_weighed_at")

    def __init__(self, index: NodeIndex, nodes: int, weighed_at: int | None) -> None:
        self._index = index
        self._nodes = nodes
        self._weighed_at = weighed_at

    def children(self, vertex: Vertex) -> Iterable[Vertex] | None:
        return self._index.visited(vertex, self._nodes, self._weighed_at)

    def types_below(self, vertex: Vertex) -> Set[str] | None:
        return self._index.numbering.types_below(vertex)


class IndexedSearch:
    def __init__(self, graph: Graph, policy: Policy, order: SearchOrder) -> None:
        self._graph = graph
        self._policy = policy
        self._order = order
        self.index = NodeIndex(graph, order, by_weight=policy.stop_on_first)
        # Cost of the last match, as in `Search`
        self.preorder = 0
        self.postorder = 0
        self.answered = 0  # groups that the index has answered
        self.passed_on = 0  # groups that were left to the walker

    def pattern(self, demands: tuple[Demand, ...], tracked: frozenset[str], window: Window) -> Pattern | None:
        """Refreshes the index; the pattern of a group, or None if the index does not cover it."""
        pattern = pattern_of(demands, tracked, self._policy.node_exclusive)
        is_timed = window.view is not TimeView.IDEAL and window.now >= 0
        if pattern is None or not self.index.refresh(window.now if is_timed else None):
            return None
        if pattern.is_slots and any(inner.type in self.index.numbering.outside for inner in demands[0].with_):
            return None  # Slots could be outside of nodes.
        if any(resource_type in CONSTRAINED_TYPES for resource_type, _ in pattern.needs):
            return None
        self.index.watch(resource_type for resource_type, _ in pattern.needs)
        return pattern

    def candidates(self, query: GroupQuery, pattern: Pattern) -> int:
        """The nodes that a walk could use."""
        index = self.index
        inside = index.numbering.below(query.top)
        if query.excluded_nodes:
            inside &= ~index.numbering.set_of(query.excluded_nodes)
        return index.candidates(
            *(pattern.needs, pattern.needs_idle, query.constraint, query.exclusion, query.window, inside)
        )

    def has_enough(self, query: GroupQuery, pattern: Pattern, nodes: int) -> bool:
        """Whether a set of nodes could hold all slots, as far as totals tell."""
        count = nodes.bit_count()
        if not pattern.is_slots or NODE in query.exclusion.one_slot_per:
            return count >= pattern.nodes_min
        if count >= pattern.count or not pattern.needs:
            return True
        left = pattern.count
        for bit in bits_of(nodes):
            left -= self.index.slots(bit, pattern.needs, query.window)
            if left <= 0:
                return True
        return False

    def select(self, query: GroupQuery, pattern: Pattern) -> Selection | None:
        """The same selection as that of a walk over the whole graph."""
        nodes = self.candidates(query, pattern)
        if not nodes or not self.has_enough(query, pattern, nodes):
            return None
        if self._stops_on_first(query) or not self._is_ordered(query, pattern):
            return self._walk(query, nodes)[0]
        return self._select_best(query, pattern, nodes)

    def _stops_on_first(self, query: GroupQuery) -> bool:
        return self._policy.stop_on_first and query.ranking is None

    def _is_ordered(self, query: GroupQuery, pattern: Pattern) -> bool:
        """Whether the order of nodes is known before a walk."""
        if self._policy.usage is not Usage.IGNORED:
            return False
        if not pattern.is_slots:
            return query.ranking is None and (pattern.per_slot == 1 or self._has_one_parent(query.top))
        return self._policy.node_centric and self._vertices_per_slot(query) is not None

    def _has_one_parent(self, top: Vertex) -> bool:
        return self.index.numbering.types_below(top) == {NODE}

    def _select_best(self, query: GroupQuery, pattern: Pattern, nodes: int) -> Selection | None:
        ordered = self._best_first(query, nodes)
        chosen, size = 0, 0
        wanted = pattern.nodes_min
        following = next(ordered, None)
        while True:
            # Nodes of one id belong together: which of them is better, their edges decide.
            last = None
            while following is not None and (size < wanted or self.index.nodes[following].id == last):
                chosen |= 1 << following
                last = self.index.nodes[following].id
                size += 1
                following = next(ordered, None)
            found, walk = self._walk(query, chosen)
            if following is None:
                return found
            if found is not None and self._is_proven(query, pattern, walk, following):
                return found
            wanted = size * _GROWTH

    def _is_proven(self, query: GroupQuery, pattern: Pattern, walk: Walk, following: int) -> bool:
        """Whether neither the node that follows, nor one after it, changes what a walk has selected."""
        if walk.has_ties:
            return False  # Their order depends on all candidates.
        if not pattern.is_slots:
            return True
        best = self._best_score(query, self.index.nodes[following])
        assert walk.worst is not None, "a walk that has selected something has scores"
        return best < walk.worst if self._policy.high_first else best > walk.worst

    def _best_score(self, query: GroupQuery, node: Vertex) -> int:
        """A bound of the score of a slot on a node."""
        least, most = self._vertices_per_slot(query) or (0, 0)
        rank = query.ranking.score(node) if query.ranking is not None else 0
        slot = query.demands[0]
        facts = [self.index.facts(inner.type) for inner in slot.with_]
        # Each vertex scores 1, its id, 1, and the score of its node.
        if self._policy.high_first:
            return 1 + rank + most * (2 + max(one.id_max for one in facts) + self._policy.node_score(node))
        return 1 + rank + least * (2 + min(one.id_min for one in facts) + self._policy.node_score(node))

    def _vertices_per_slot(self, query: GroupQuery) -> tuple[int, int] | None:
        """The least and the greatest number of outermost vertices of one slot, if the nodes tell it."""
        least = most = 0
        for inner in query.demands[0].with_:
            facts = self.index.facts(inner.type)
            if facts.id_min < 0:
                return None
            if facts.is_unit and inner.count.min == inner.count.max:
                least, most = least + inner.count.min, most + inner.count.min
            elif facts.is_one_per_node:
                least, most = least + 1, most + 1
            elif self._policy.high_first:
                return None
            else:
                least += 1
        return least, most

    def _best_first(self, query: GroupQuery, nodes: int) -> Iterator[int]:
        """The nodes of a set in the order of ranking and policy."""
        if query.ranking is None:
            return highest_bits(nodes) if self._policy.high_first else bits_of(nodes)
        return self._ranked(query, nodes)

    def _ranked(self, query: GroupQuery, nodes: int) -> Iterator[int]:
        levels: dict[int, int] = {0: nodes}
        for preference in query.prefers:
            liked = self.index.nodes_matching(preference.constraint)
            split: dict[int, int] = {}
            for weight, members in levels.items():
                for added, part in ((preference.weight, members & liked), (0, members & ~liked)):
                    if part:
                        split[weight + added] = split.get(weight + added, 0) | part
            levels = split
        for weight in sorted(levels, reverse=True):
            yield from self._by_order(query, levels[weight])

    def _by_order(self, query: GroupQuery, nodes: int) -> Iterator[int]:
        order = query.order
        if order is NodeOrder.POLICY:
            yield from highest_bits(nodes) if self._policy.high_first else bits_of(nodes)
            return
        if order is NodeOrder.PACK:
            yield from self._by_usage(nodes, fullest_first=True)
            return
        own: dict[int, int] = {0: nodes}  # by slots of the job on a node
        for index, slots in query.own_slots.items():
            number = self.index.numbering.bit(index)
            bit = 1 << number if number is not None else 0
            if bit & nodes:
                own[0] ^= bit
                own[slots] = own.get(slots, 0) | bit
        for slots in sorted(own):
            yield from self._by_usage(own[slots], fullest_first=False)

    def _by_usage(self, nodes: int, fullest_first: bool) -> Iterator[int]:
        """The nodes of a set by usage; of equal usage in the order of the policy."""
        usage = self.index.watch_usage()
        for members in usage.levels(nodes, is_descending=fullest_first):
            yield from highest_bits(members) if self._policy.high_first else bits_of(members)

    def _walk(self, query: GroupQuery, nodes: int) -> tuple[Selection | None, Walk]:
        walk = Walk(
            self._graph,
            self._policy,
            self._order,
            query.window,
            query.demands,
            query.constraint,
            query.exclusion,
            query.excluded_nodes,
            None,
            query.ranking,
            NodeRestriction(self.index, nodes, query.window.now if self._stops_on_first(query) else None),
        )
        found = walk.select(query.top)
        self.preorder += walk.preorder
        self.postorder += walk.postorder
        return found, walk
