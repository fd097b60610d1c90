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
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from penstock.engine.booking import Booker
from penstock.engine.candidates import Selection
from penstock.engine.exclusion import Exclusion
from penstock.engine.graph import Graph, Vertex
from penstock.engine.node_blocks import Block
from penstock.engine.node_fits import UNKNOWN, NodeFits, Unknown, signature_of
from penstock.engine.node_index import Needs, NodeIndex
from penstock.engine.node_sets import bits_of, highest_bits, set_of_bits
from penstock.engine.policies import Policy, SearchOrder, Usage
from penstock.engine.prepared_request import KEPT_MAX
from penstock.engine.ranking import Ranking
from penstock.engine.request import SLOT, Demand, NodeOrder, Preference
from penstock.engine.slot_scores import SlotScores
from penstock.engine.vertex_state import TimeView, Window, free_units
from penstock.engine.walker import CONSTRAINED_TYPES, NODE, Walk
from penstock.model.constraint import Constraint

__all__ = ["AnswerCounts", "GroupQuery", "IndexedSearch", "Pattern", "pattern_of"]

_GROWTH: Final = 4
_SCORES_MAX: Final = 8  # kinds of slots whose scores are kept


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a group needs of each node that it uses."""

    needs: Needs  # of one slot, or of one node
    needs_idle: bool
    count: int  # slots or nodes
    is_slots: bool  # several slots can be on one node
    per_slot: int = 1  # nodes of one slot, if slots contain nodes
    # Of a group of whole nodes, one by one: equal for groups that take the same of a node
    signature: tuple[object, ...] | None = None

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
    is_alone: bool  # the only group of its request, without keys


def pattern_of(demands: tuple[Demand, ...], tracked: frozenset[str], whole_nodes: bool) -> Pattern | None:
    """The pattern of a group; None if it is of another form."""
    if len(demands) != 1 or demands[0].count.min != demands[0].count.max:
        return None
    outer = demands[0]
    if outer.type == NODE:
        if _names(outer.with_, NODE):
            return None
        is_whole = whole_nodes or outer.exclusive is True
        signature = (NODE, signature_of(outer, is_counted=False)) if is_whole else None
        return Pattern(_sorted(outer.needs), is_whole, outer.count.min, False, 1, signature)
    if outer.type != SLOT:
        return None
    if len(outer.with_) == 1 and outer.with_[0].type == NODE:
        node = outer.with_[0]
        if node.count.min != node.count.max or _names(node.with_, NODE):
            return None
        signature = (SLOT, signature_of(node)) if node.count.min == 1 else None
        return Pattern(_sorted(node.needs), True, outer.count.min, False, node.count.min, signature)
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
    def __init__(self, graph: Graph, policy: Policy, order: SearchOrder, booker: Booker) -> None:
        self._graph = graph
        self._policy = policy
        self._order = order
        self.fits = NodeFits(graph, order, booker, by_weight=policy.stop_on_first)
        self.index = NodeIndex(graph, order, booker.changed, self.fits, by_weight=policy.stop_on_first)
        # Cost of the last match, as in `Search`
        self.preorder = 0
        self.postorder = 0
        self.answered = 0  # groups that the index has answered
        self.passed_on = 0  # groups that were left to the walker
        self._scores: dict[tuple[object, ...], SlotScores] = {}
        # By the id of compiled demands, which are kept here
        self._patterns: dict[int, tuple[tuple[Demand, ...], frozenset[str], Pattern | None]] = {}

    def prepare(self) -> None:
        """Does what depends on the graph alone ahead of the first request, as a part of loading it."""
        if self.index.refresh(None):
            self.fits.prepare()

    def pattern(self, demands: tuple[Demand, ...], tracked: frozenset[str], window: Window) -> Pattern | None:
        """Refreshes the index; the pattern of a group, or None if the index does not cover it."""
        pattern = self._pattern_of(demands, tracked)
        is_timed = window.view is not TimeView.IDEAL and window.now >= 0
        if pattern is None or not self.index.refresh(window.now if is_timed else None):
            return None
        if pattern.is_slots and any(inner.type in self.index.numbering.outside for inner in demands[0].with_):
            return None  # Slots could be outside of nodes.
        if any(resource_type in CONSTRAINED_TYPES for resource_type, _ in pattern.needs):
            return None
        self.index.watch(resource_type for resource_type, _ in pattern.needs)
        return pattern

    def _pattern_of(self, demands: tuple[Demand, ...], tracked: frozenset[str]) -> Pattern | None:
        known = self._patterns.get(id(demands))
        if known is not None and known[1] is tracked:
            return known[2]
        pattern = pattern_of(demands, tracked, self._policy.node_exclusive)
        if len(self._patterns) >= KEPT_MAX:
            self._patterns.clear()
        self._patterns[id(demands)] = (demands, tracked, pattern)
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
        if query.window.view is TimeView.IDEAL and not self._stops_on_first(query):
            return self._select_any(query, pattern, nodes)
        if pattern.signature is not None and self._has_blocks(query):
            blocks = self._select_blocks(query, pattern, pattern.signature, nodes)
            if not isinstance(blocks, Unknown):
                return Selection(query.top, (), blocks) if blocks is not None else None
        if pattern.is_slots and self._has_scores(query):
            return self._select_by_scores(query, pattern, nodes)
        if self._stops_on_first(query) or not self._is_ordered(query, pattern):
            return self._walk(query, nodes)[0]
        return self._select_best(query, pattern, nodes)

    def _has_blocks(self, query: GroupQuery) -> bool:
        """Whether the group is of a kind that takes nodes one by one, in an order that is known."""
        window = query.window
        if not query.is_alone or query.ranking is not None or window.view is TimeView.IDEAL or window.now < 0:
            return False
        if query.exclusion.forbids or query.exclusion.one_slot_per or self._policy.usage is not Usage.IGNORED:
            return False
        if self.index.numbering.is_mixed or self.index.numbering.types_below(query.top) is None:
            return False  # Slots of nodes are made at the outermost vertex that has nodes as children.
        return not self._policy.stop_on_first or self._has_one_parent(query.top)

    def _select_blocks(
        self, query: GroupQuery, pattern: Pattern, signature: tuple[object, ...], nodes: int
    ) -> tuple[Block, ...] | Unknown | None:
        """Whole nodes out of a set of idle ones; None if too few fit, and unknown if a walk must tell."""
        window, index = query.window, self.index
        if self._policy.stop_on_first:
            ordered: Iterator[int] = (bit for _, bit in index.weights.descending(nodes))
        else:
            ordered = highest_bits(nodes) if self._policy.high_first else bits_of(nodes)
        chosen: list[Block] = []
        last = None
        for bit in ordered:
            node = index.nodes[bit]
            if node.id == last and not self._policy.stop_on_first:
                return UNKNOWN  # Which of two nodes with one id is better, their edges decide.
            last = node.id
            if len(chosen) == pattern.count:
                break
            block = self.fits.block(
                node,
                signature,
                window.now,
                is_now=window.view is TimeView.NOW,
                whole_nodes=self._policy.node_exclusive,
                select_on=lambda node: self._walk_of(query, 0).select_on(node),
            )
            if isinstance(block, Unknown):
                return UNKNOWN
            if block is not None:
                chosen.append(block)
                if len(chosen) == pattern.count and self._policy.stop_on_first:
                    break
        if len(chosen) < pattern.count:
            return None
        if not self._are_open(chosen, window):
            return UNKNOWN
        chosen.sort(key=lambda block: block.node.id, reverse=self._policy.high_first)
        if len({block.node.id for block in chosen}) < len(chosen):
            return UNKNOWN
        return tuple(chosen)

    def _has_scores(self, query: GroupQuery) -> bool:
        """Whether slots are compared over all nodes, by scores that depend on nothing but their vertices."""
        policy, numbering = self._policy, self.index.numbering
        if policy.stop_on_first or policy.node_centric or policy.usage is not Usage.IGNORED:
            return False
        if query.window.view is not TimeView.NOW or query.ranking is not None:
            return False
        if query.exclusion.forbids or query.exclusion.one_slot_per or not numbering.has_places:
            return False
        if numbering.types_below(query.top) is None:
            return False
        return all(free_units(above, query.window) > 0 for above in numbering.above)

    def _select_by_scores(self, query: GroupQuery, pattern: Pattern, nodes: int) -> Selection | None:
        key = tuple(signature_of(demand) for demand in query.demands)
        scores = self._scores.get(key)
        if scores is None:
            if len(self._scores) >= _SCORES_MAX:
                dropped = self._scores.pop(next(iter(self._scores)))
                self.index.listeners.remove(dropped.stale)
            scores = SlotScores(self.index, self.fits, self._order, high_first=self._policy.high_first)
            self._scores[key] = scores
            self.index.listeners.append(scores.stale)
        everywhere = replace(query, constraint=None, excluded_nodes=frozenset())
        choices = scores.select(
            nodes, pattern.count, lambda node: self._walk_of(everywhere, 0).slots_on(node)
        )
        return Selection(query.top, tuple(choices)) if choices is not None else None

    def _are_open(self, blocks: list[Block], window: Window) -> bool:
        """Whether no job has one of the vertices above exclusively."""
        above: dict[int, Vertex] = {}
        for block in blocks:
            parent = block.node.parent()
            if parent is not None and parent.index not in above:
                above.update((vertex.index, vertex) for vertex in block.node.ancestors())
        return all(free_units(vertex, window) > 0 for vertex in above.values())

    def _select_any(self, query: GroupQuery, pattern: Pattern, nodes: int) -> Selection | None:
        """Some selection: whether a request could ever fit does not depend on which nodes are best."""
        wanted = pattern.nodes_min
        while True:
            chosen = set_of_bits(islice(bits_of(nodes), wanted), nodes.bit_length())
            found, _ = self._walk(query, chosen)
            if found is not None or chosen == nodes:
                return found
            wanted *= _GROWTH

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
        walk = self._walk_of(query, nodes)
        found = walk.select(query.top)
        self.preorder += walk.preorder
        self.postorder += walk.postorder
        return found, walk

    def _walk_of(self, query: GroupQuery, nodes: int) -> Walk:
        return Walk(
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
