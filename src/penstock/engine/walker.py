"""The exact walker: which vertices a group gets.

The walk is depth first from a top vertex, with the list of demands that apply to the current children:

* A vertex of a demanded type passes the inner demands to its children. If the inner demand is a slot, and
  every type in the slot is among the children, slots are bundled at this vertex.
* While no demand has matched on the way down (`pristine`), a vertex of another type is passed through: a
  request need not name the resources above its outermost one. After a match, a vertex of a type that the
  request does not name ends the branch.

On the way back the policy scores every vertex. A vertex that matched keeps the best candidates for its inner
demands; a vertex that was passed through passes all candidates on to its parent. At the top the best
candidates of each outer demand are selected. Vertices are allocated whole, except divisible ones.

A request for slots alone under a policy that prefers low scores need not visit every node: the best score
that a node can reach is known in advance, and once enough slots score at least as well, the node is skipped
(`_ScoreCutoff`). The result is the same.

The walker books nothing and keeps no state between walks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Set
from typing import Final, Protocol

from penstock.engine.candidates import Candidate, Choice, Found, Selection, bundles, reduced
from penstock.engine.exclusion import Exclusion
from penstock.engine.graph import Graph, Vertex
from penstock.engine.policies import NODE_FACTOR, Policy, SearchOrder, Usage
from penstock.engine.ranking import Ranking
from penstock.engine.request import SLOT, SLOTS_MAX, Demand
from penstock.engine.vertex_state import (
    TimeView,
    Window,
    expected_free_below,
    free_below,
    free_units,
    is_idle,
)
from penstock.model.constraint import Constraint, matches
from penstock.model.jobspec import UINT_MAX

__all__ = ["CONSTRAINED_TYPES", "NODE", "Restriction", "Walk"]

NODE: Final = "node"
CONSTRAINED_TYPES: Final = frozenset({"node", "storage_node"})  # the types that constraints apply to

_MET: Final = 1  # the score of a vertex before its id
_USAGE_SHIFT: Final = 104  # usage outweighs the position of a node, which outweighs every id
_PLACE_SHIFT: Final = 64
_PPM: Final = 1_000_000
_NO_SCORE: Final = 1 << 256  # above any score


class Restriction(Protocol):
    """The nodes that a walk visits, if not all of them."""

    def children(self, vertex: Vertex) -> Iterable[Vertex] | None:
        """The children of a vertex that lead to these nodes, in the order of the walk; None inside a node."""

    def types_below(self, vertex: Vertex) -> Set[str] | None:
        """Types of the children of a vertex that lead to any nodes; None inside a node."""


class Walk:
    """One walk over the graph for one group, window and policy."""

    def __init__(
        self,
        graph: Graph,
        policy: Policy,
        order: SearchOrder,
        window: Window,
        demands: tuple[Demand, ...],
        constraint: Constraint | None,
        exclusion: Exclusion,
        excluded_nodes: Set[int] = frozenset(),
        full_nodes: set[int] | None = None,
        ranking: Ranking | None = None,
        restriction: Restriction | None = None,
    ) -> None:
        self._graph = graph
        self._policy = policy
        self._order = order
        self._window = window
        self._wants = demands
        self._constraint = constraint
        self._blocking_key = exclusion.blocking_key if exclusion.forbids else None
        self._one_slot_per = exclusion.one_slot_per
        self._excluded_nodes = excluded_nodes  # already used by a placement on distinct nodes
        self._full_nodes = full_nodes  # nodes known to fit no slot; None: not recorded
        self._ranking = ranking
        self._restriction = restriction  # None: the walk visits all nodes
        # A ranking compares all nodes.
        self._stops_on_first = policy.stop_on_first and ranking is None
        self._cutoff = _cutoff(policy, order, demands)
        if graph.has_shared and any(level != NODE for level in exclusion.one_slot_per):
            self._cutoff = None  # Which vertices can discard a slot depends on the path to it.
        self._slots_made = 0
        self._entered: set[int] = set()
        self.worst: int | None = None  # the score of the last candidate that was selected
        self.has_ties = False  # an order that is not stable has sorted candidates of equal score
        self.preorder = 0
        self.postorder = 0

    def select(self, top: Vertex) -> Selection | None:
        """The best match below `top`, or None."""
        found: Found = {}
        node_score = 0
        for above in top.ancestors():
            if self._is_pruned(above, (), None, False) or free_units(above, self._window) <= 0:
                return None
            if above.type == NODE:
                node_score = self._node_score(above, self._wants)
        whole = self._visit(top, None, self._wants, True, False, node_score, found)
        if whole is None:
            return None
        found.setdefault(top.type, []).append(whole)
        if found.get(SLOT) and any(above.type in self._one_slot_per for above in top.ancestors()):
            found[SLOT] = self._sorted(found[SLOT])[:1]
        chosen: list[Choice] = []
        for demand in self._wants:
            best = self._best(found.get(demand.type, []), demand)
            if best is None:
                return None
            self.worst = best[-1].score
            for candidate in best:
                chosen.extend(candidate.choices)
        return Selection(top, tuple(chosen))

    def select_on(self, node: Vertex) -> Choice | None:
        """What a group of whole nodes, one per slot, takes of a node; None if the node does not fit."""
        outer = self._wants[0]
        is_slot = outer.type == SLOT
        demands = outer.with_ if is_slot else self._wants
        found = self._visit(node, node.parent(), demands, not is_slot, is_slot, 0, {})
        one = found.choices[0] if found is not None else None
        if one is None or not is_slot:
            return one
        return Choice(node, one.above, one.units, True, one.inner, one.label, one.whole, slot=0)

    def slots_on(self, node: Vertex) -> list[Candidate]:
        """The slots that a group could have on a node, as found by a walk over the whole graph."""
        found: Found = {}
        self._visit(node, node.parent(), self._wants, True, False, 0, found)
        return found.get(SLOT, [])

    def _visit(
        self,
        vertex: Vertex,
        above: Vertex | None,
        demands: tuple[Demand, ...],
        pristine: bool,
        excl: bool,
        node_score: int,
        to_parent: Found,
    ) -> Candidate | None:
        if self._graph.has_shared and vertex.index in self._entered:
            return None
        self.preorder += 1
        matched: Demand | None = None
        slot: Demand | None = None
        for demand in demands:
            if demand.type == vertex.type:
                matched = demand
                slot = demand.slot
            elif demand.type == SLOT and pristine:
                slot = demand
        if vertex.type == NODE and self._cutoff is not None and slot is not None:
            node_score = self._node_score(vertex, demands)
            if self._cutoff.excludes(node_score, self._ranking.score(vertex) if self._ranking else 0):
                return None
        if matched is None and slot is None and not pristine:
            return None
        excl = excl or (matched is not None and matched.exclusive is True)
        if self._is_pruned(vertex, demands, matched, excl):
            self._note_full_node(vertex, matched)
            return None
        free = free_units(vertex, self._window)
        if free <= 0:
            self._note_full_node(vertex, matched)
            return None
        if slot is not None and not self._can_bundle(vertex, slot):
            slot = None
            if matched is None and not pristine:
                return None
        if self._graph.has_shared:
            self._entered.add(vertex.index)
        found: Found = {}
        if vertex.type == NODE:
            node_score = self._node_score(vertex, demands)
        if slot is not None:
            self._bundle(vertex, slot, node_score, found)
            if not found.get(SLOT):
                self._note_full_node(vertex, matched)
        elif matched is not None:
            self._explore(vertex, matched.with_, False, excl, node_score, found, 1)
        else:
            self._explore(vertex, demands, pristine, excl, node_score, found, 1)
        inner: list[Choice] = []
        if matched is not None and matched.with_:
            for demand in matched.with_:
                best = self._best(found.get(demand.type, []), demand)
                if best is None:
                    return None
                for candidate in best:
                    inner.extend(candidate.choices)
        else:
            self._pass_up(vertex, found, to_parent)
        self.postorder += 1
        label = matched.label if matched is not None else ""
        score = _MET + vertex.id + 1
        if vertex.type != NODE or self._policy.usage is not Usage.IGNORED:
            score += node_score
        whole = matched is not None and matched.exclusive is True
        choice = Choice(vertex, above, free, excl, inner, label, whole)
        return Candidate(score, free, [choice], vertex.divisible and not whole)

    def _can_bundle(self, vertex: Vertex, slot: Demand) -> bool:
        types = self._restriction.types_below(vertex) if self._restriction is not None else None
        if types is None:
            types = {child.type for child in vertex.below()}
        return all(demand.type in types for demand in slot.with_)

    def _note_full_node(self, vertex: Vertex, matched: Demand | None) -> None:
        """Records that a node fits no slot; further bookings cannot change that."""
        if (
            self._full_nodes is not None
            and vertex.type == NODE
            and matched is None
            and vertex.index not in self._excluded_nodes
        ):
            self._full_nodes.add(vertex.index)

    def _is_pruned(
        self, vertex: Vertex, demands: tuple[Demand, ...], matched: Demand | None, excl: bool
    ) -> bool:
        window = self._window
        if not vertex.up and window.view is not TimeView.IDEAL:
            return True
        if vertex.type in CONSTRAINED_TYPES:
            if self._constraint is not None and not matches(
                self._constraint, vertex, ideal=window.view is TimeView.IDEAL
            ):
                return True
            if vertex.index in self._excluded_nodes:
                return True
            if vertex.type == NODE and self._policy.node_exclusive and not is_idle(vertex, window):
                return True
        if self._blocking_key is not None and self._blocking_key(vertex, window) is not None:
            return True
        # A divisible vertex can be shared, unless it is requested as exclusive.
        alone = matched is not None and excl and (not vertex.divisible or matched.exclusive is True)
        if alone and not is_idle(vertex, window):
            return True
        if alone and self._graph.has_shared and not all(is_idle(v, window) for v in self._graph.walk(vertex)):
            return True  # A job holds a shared vertex below, reached through another parent.
        totals = vertex.totals
        if totals is None:
            return False
        for demand in demands:
            if demand is matched or demand.type == SLOT:
                for resource_type, units in demand.needs.items():
                    if resource_type in totals and free_below(vertex, resource_type, window) < units:
                        return True
        return False

    def _explore(
        self,
        vertex: Vertex,
        demands: tuple[Demand, ...],
        pristine: bool,
        excl: bool,
        node_score: int,
        found: Found,
        shares: int,
    ) -> None:
        """Visits the children; `shares` is how many times the demands are needed at this vertex."""
        if not demands:
            return
        restricted = self._restriction.children(vertex) if self._restriction is not None else None
        children: Iterable[Vertex] = vertex.below() if restricted is None else restricted
        tallies: dict[str, _Tally] | None = None
        if self._stops_on_first:
            if restricted is None:
                children = self._order.ordered(children, self._window.now)
            tallies = {demand.type: _Tally(demand.count.pick(UINT_MAX), shares) for demand in demands}
        named = {demand.type for demand in demands}
        is_slot_wanted = SLOT in named
        # On a large cluster most nodes are skipped here, at the cost of one comparison each.
        cutoff = self._cutoff if is_slot_wanted and self._policy.node_centric and not self._ranking else None
        for child in children:
            if child.type == NODE:
                if cutoff is not None and (child.id + 2) * NODE_FACTOR >= cutoff.beyond:
                    continue
                if self._full_nodes is not None and child.index in self._full_nodes:
                    continue
            if not pristine and not is_slot_wanted and child.type not in named:
                self.preorder += 1
                continue  # After the first match, a type that is not named ends the branch.
            if tallies is not None and child.type in tallies and tallies[child.type].is_enough():
                continue
            candidate = self._visit(child, vertex, demands, pristine, excl, node_score, found)
            if candidate is None:
                continue
            if child.type in named:
                found.setdefault(child.type, []).append(candidate)
            if tallies is not None:
                for resource_type, tally in tallies.items():
                    tally.add(found.get(resource_type, []))
                if all(tally.is_enough() for tally in tallies.values()):
                    break

    def _bundle(self, vertex: Vertex, slot: Demand, node_score: int, found: Found) -> None:
        """Bundles as many slots as the children allow, the best first."""
        members: Found = {}
        self._explore(vertex, slot.with_, False, True, node_score, members, slot.count.pick(UINT_MAX))
        most = SLOTS_MAX
        piles: list[Iterator[list[tuple[Candidate, int]]]] = []
        for demand in slot.with_:
            candidates = self._sorted(members.get(demand.type, []))
            per_slot = demand.count.pick(sum(candidate.count for candidate in candidates))
            if per_slot == 0:
                return
            if any(candidate.divisible for candidate in candidates):
                most = min(most, slot.count.pick(UINT_MAX))  # A large pool would yield too many slots.
            piles.append(bundles(candidates, per_slot))
        rank, step = 0, self._slot_step(vertex, slot)
        if self._ranking is not None:
            rank = self._ranking.score(_node_of(vertex))
            step += self._ranking.step()
        # Usage counts once per slot, independent of the number of its vertices.
        shared = node_score if self._policy.usage is not Usage.IGNORED else 0
        slots = found.setdefault(SLOT, [])
        for place, parts in zip(range(most), zip(*piles, strict=False), strict=False):
            score = _MET + rank + shared + place * step
            choices: list[Choice] = []
            for bundle in parts:
                for candidate, units in bundle:
                    score += candidate.score - shared
                    picked = candidate.choices[0]
                    choices.append(
                        Choice(
                            picked.vertex,
                            vertex,
                            units,
                            True,
                            picked.inner,
                            picked.label,
                            picked.whole,
                            self._slots_made,
                        )
                    )
            slots.append(Candidate(score, 1, choices))
            self._slots_made += 1
            if self._cutoff is not None and not self._one_slot_per:
                self._cutoff.note(score)

    def _pass_up(self, vertex: Vertex, found: Found, to_parent: Found) -> None:
        limited = self._one_slot_per
        if vertex.type in limited and found.get(SLOT):
            found[SLOT] = self._sorted(found[SLOT])[:1]
            # A slot counts for the cutoff once no vertex above can discard it in favour of another one.
            if self._cutoff is not None and not any(above.type in limited for above in vertex.ancestors()):
                self._cutoff.note(found[SLOT][0].score)
        for resource_type, candidates in found.items():
            to_parent.setdefault(resource_type, []).extend(candidates)

    def _best(self, candidates: list[Candidate], demand: Demand) -> list[Candidate] | None:
        """The best candidates for the largest count that the demand allows."""
        left = demand.count.pick(sum(candidate.count for candidate in candidates))
        if left == 0:
            return None
        best: list[Candidate] = []
        for candidate in self._sorted(candidates):
            best.append(reduced(candidate, left))
            left -= candidate.count
            if left <= 0:
                break
        return best

    def _sorted(self, candidates: list[Candidate]) -> list[Candidate]:
        sign = -1 if self._policy.high_first else 1
        keys = [sign * candidate.score for candidate in candidates]
        if not self._order.is_stable and len(set(keys)) < len(keys):
            self.has_ties = True
        ranking = self._order.ranking(keys)
        return [candidates[place] for place in ranking]

    def _node_score(self, node: Vertex, demands: tuple[Demand, ...]) -> int:
        if self._policy.usage is Usage.IGNORED:
            return self._policy.node_score(node)
        used = self._usage_ppm(node, demands)
        rank = used if self._policy.usage is Usage.SPREAD else _PPM - used
        return (rank << _USAGE_SHIFT) + (node.order << _PLACE_SHIFT)

    def _usage_ppm(self, node: Vertex, demands: tuple[Demand, ...]) -> int:
        """Usage of a node, averaged over the filter types of the request (over all, if it names none)."""
        totals = {resource_type: total for resource_type, total in (node.totals or {}).items() if total > 0}
        named = {
            resource_type
            for demand in demands
            for resource_type in (*demand.needs, demand.type)
            if resource_type in totals
        }
        resource_types = [resource_type for resource_type in totals if resource_type in named] or list(totals)
        if not resource_types:
            return 0 if is_idle(node, self._window) else _PPM
        used = sum(
            (totals[resource_type] - expected_free_below(node, resource_type, self._window))
            * _PPM
            // totals[resource_type]
            for resource_type in resource_types
        )
        return used // len(resource_types)

    def _slot_step(self, vertex: Vertex, slot: Demand) -> int:
        """The score penalty of each further slot on a node, so that `spread` alternates between nodes."""
        if self._policy.usage is not Usage.SPREAD or not vertex.totals:
            return 0
        shares = [
            units * _PPM // vertex.totals[resource_type]
            for resource_type, units in slot.needs.items()
            if vertex.totals.get(resource_type, 0) > 0
        ]
        return ((sum(shares) // len(shares)) << _USAGE_SHIFT) if shares else 0


class _ScoreCutoff:
    """The best scores found so far, as many as slots are needed."""

    __slots__ = ("_base", "_best", "_count", "_weight", "_worst", "beyond")

    def __init__(self, count: int, base: int, weight: int) -> None:
        self._best: list[int] = []  # negated: the worst is first
        self._worst = _NO_SCORE  # of the best scores, once there are enough
        self._count = count
        self._base = base  # the least score of a slot on any node
        self._weight = weight  # how often the score of the node counts in it
        # Nodes with at least this score are skipped: of equal scores, the first found wins.
        self.beyond = _NO_SCORE

    def note(self, score: int) -> None:
        if len(self._best) < self._count:
            heapq.heappush(self._best, -score)
        elif score < -self._best[0]:
            heapq.heapreplace(self._best, -score)
        if len(self._best) == self._count:
            self._worst = -self._best[0]
            self.beyond = -((self._base + self._best[0]) // self._weight)

    def excludes(self, node_score: int, rank: int) -> bool:
        """Whether no slot on a node with this score and rank can be among the best."""
        return rank + self._base + self._weight * node_score >= self._worst


def _cutoff(policy: Policy, order: SearchOrder, demands: tuple[Demand, ...]) -> _ScoreCutoff | None:
    """A cutoff applies only if low scores win and the request is for a fixed number of equal slots."""
    if policy.high_first or policy.stop_on_first or not order.is_stable:
        return None
    if len(demands) != 1 or demands[0].type != SLOT:
        return None
    count, parts = demands[0].count, len(demands[0].with_)
    if count.min != count.max or not parts:
        return None
    # Each resource of the slot adds at least one vertex, and every vertex scores at least `_MET`.
    return _ScoreCutoff(count.min, _MET + parts * _MET, parts if policy.usage is Usage.IGNORED else 1)


class _Tally:
    """Progress of a walk that stops early, for one type, in complete shares."""

    __slots__ = ("_missing", "_open", "_per_share", "_seen")

    def __init__(self, per_share: int, shares: int) -> None:
        self._per_share = per_share
        self._missing = shares
        self._open = 0  # found for the share that is incomplete
        self._seen = 0  # candidates already counted

    def add(self, candidates: list[Candidate]) -> None:
        """Counts further candidates. Only a divisible candidate can be split between two shares."""
        if len(candidates) == self._seen:
            return
        fresh = candidates[self._seen :]
        self._seen = len(candidates)
        self._open += sum(candidate.count for candidate in fresh)
        if self._open >= self._per_share:
            split = fresh[-1].divisible and self._per_share > 0
            self._missing -= self._open // self._per_share if split else 1
            self._open = self._open % self._per_share if split else 0

    def is_enough(self) -> bool:
        return self._missing <= 0


def _node_of(vertex: Vertex) -> Vertex | None:
    return next((one for one in (vertex, *vertex.ancestors()) if one.type == NODE), None)
