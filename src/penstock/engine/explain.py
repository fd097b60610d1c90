"""Why a request cannot start: a funnel over the nodes, and what occupies the missing resources.

A funnel counts the nodes that are left after each stage: all nodes, nodes that match the constraint, that are
up, that are large enough, that have enough free at the requested time. The clause describes the first stage
that leaves too few. The blockers are read from the bookings and external usage of the nodes that would do if
they were free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.engine.allocation import Blocker, FunnelStage, Reason
from penstock.engine.bounds import IDEAL, Bounds
from penstock.engine.graph import Graph, Vertex
from penstock.engine.planner import FOREVER
from penstock.engine.request import SLOT, Demand, Request
from penstock.engine.vertex_state import Window
from penstock.engine.walker import NODE
from penstock.engine.wording import contents, describe, flatten, has_one_item, join, shortage
from penstock.model.constraint import matches
from penstock.model.resource_types import format_count

__all__ = ["Explainer"]

_BLOCKERS_MAX: Final = 8

_ALL: Final = "nodes"
_MATCH: Final = "match the constraint"
_UP: Final = "up"
_LARGE: Final = "large enough"
_FREE: Final = "enough free"


@dataclass(frozen=True, slots=True)
class _Funnel:
    stages: tuple[FunnelStage, ...]
    busy: tuple[Vertex, ...]  # nodes that would do if they were free
    short: tuple[tuple[Demand, int], ...]  # inner demands that no place can meet, with the most that is free

    def failed(self) -> tuple[FunnelStage, int] | None:
        """The first stage that leaves too few, and how many the stage before it left."""
        before = 0
        for stage in self.stages:
            if stage.passed < stage.needed:
                return stage, before
            before = stage.passed
        return None


class Explainer:
    """Builds the reason of one refused request."""

    def __init__(
        self,
        graph: Graph,
        request: Request,
        demands: tuple[tuple[Demand, ...], ...],
        excluded_nodes: frozenset[int] = frozenset(),
        whole_nodes: bool = False,
    ) -> None:
        self._graph = graph
        self._request = request
        self._demands = demands
        self._excluded_nodes = excluded_nodes  # already used by a placement on distinct nodes
        self._whole_nodes = whole_nodes  # the policy allocates whole nodes

    def never(self, proof: str) -> Reason:
        return Reason(proof, self._funnel(0, IDEAL).stages)

    def not_now(self, window: Window) -> Reason:
        """Explains the first group that does not fit alone; if each does, that they do not fit together."""
        first: _Funnel | None = None
        for group in range(len(self._demands)):
            funnel = self._funnel(group, window)
            failed = funnel.failed()
            if failed is not None:
                clause = self._clause(group, *failed, funnel.short)
                return Reason(clause, funnel.stages, self._blockers(funnel, window))
            first = first or funnel
        assert first is not None, "a request has at least one group"
        within = self._request.placement.within
        needed = describe(self._demands[0], self._request.placement, free=True)
        if len(self._demands) > 1:
            clause = f"needs {len(self._demands)} groups at once, each fits alone but not together"
        elif within:
            clause = f"needs {needed}, no {within} has enough free"
        else:
            clause = f"needs {needed}, the free units are too scattered"
        return Reason(clause, first.stages, self._blockers(first, window))

    def _clause(
        self, group: int, stage: FunnelStage, before: int, short: tuple[tuple[Demand, int], ...]
    ) -> str:
        demands, placement = self._demands[group], self._request.placement
        needed = describe(demands, placement)
        count = stage.passed
        still = f"{stage.needed} {'is' if stage.needed == 1 else 'are'} needed"
        be = "is" if count == 1 else "are"
        if stage.name == _FREE:
            return self._free_clause(group, stage, before, short)
        if stage.name == _ALL:
            return f"needs {needed}, the cluster has {format_count(count, NODE)} and {still}"
        if stage.name == _MATCH:
            verb = "matches" if count == 1 else "match"
            return f"needs {needed}; {count} of {before} nodes {verb} the constraint, {still}"
        if stage.name in (_UP, _LARGE):
            return f"needs {needed}; {count} of {before} nodes {be} {stage.name}, {still}"
        return f"needs {needed}, {count} of {stage.needed} {'fits' if count == 1 else 'fit'} now"

    def _free_clause(
        self, group: int, stage: FunnelStage, before: int, short: tuple[tuple[Demand, int], ...]
    ) -> str:
        """The nodes that have enough free; then, where the first part does not say it, what is short."""
        demands, placement = self._demands[group], self._request.placement
        outer = demands[0]
        of_nodes = f"{stage.passed} of {before}" + ("" if outer.type == NODE else " nodes")
        is_one = stage.passed == 1
        is_rule_broken = any(demand.type not in contents(outer) for demand, _ in short)
        if outer.type == SLOT and stage.needed < outer.count.min:
            fits = f"{of_nodes} {'fits' if is_one else 'fit'} a slot"
            result = f"; {fits}, at least {format_count(stage.needed, NODE)} are needed"
        elif self._whole_nodes or outer.exclusive or not contents(outer) or is_rule_broken:
            result = f", {of_nodes} {'qualifies' if is_one else 'qualify'}"
        else:
            pronoun = "it" if has_one_item(outer) else "them"
            result = f", {of_nodes} {'has' if is_one else 'have'} {pronoun}"
        details = [
            shortage(demand, most)
            for demand, most in short
            if most > 0 or len(contents(outer)) > 1 or demand.type not in contents(outer)
        ]
        detail = f"; {join(details)}" if details else ""
        return f"needs {describe(demands, placement, free=True)}{result}{detail}"

    def _funnel(self, group: int, window: Window) -> _Funnel:
        demands = self._demands[group]
        constraint = self._request.groups[group].constraint
        placement = self._request.placement
        ideal = Bounds(demands, constraint, placement, IDEAL, self._excluded_nodes)
        ideal.below(self._graph.root)
        real = Bounds(demands, constraint, placement, window, self._excluded_nodes, self._whole_nodes)
        sums = real.below(self._graph.root)
        nodes = self._graph.of_type(NODE)
        eligible = [node for node in nodes if constraint is None or matches(constraint, node)]
        up = [node for node in eligible if node.up and all(above.up for above in node.ancestors())]
        large = [node for node in up if ideal.per_node.get(node.index, 0) > 0]
        free = [node for node in large if real.per_node.get(node.index, 0) > 0]
        needed = self._nodes_needed(demands, ideal)
        stages: list[FunnelStage] = []
        if nodes:
            stages.append(FunnelStage(_ALL, len(nodes), needed))
            if constraint is not None:
                stages.append(FunnelStage(_MATCH, len(eligible), needed))
            stages.append(FunnelStage(_UP, len(up), needed))
            stages.append(FunnelStage(_LARGE, len(large), needed))
            stages.append(FunnelStage(_FREE, len(free), needed))
        for demand in demands:
            name = f"{format_count(2, demand.type).removeprefix('2 ')} that fit"
            stages.append(FunnelStage(name, sums.get(demand.type, 0), demand.count.min))
        free_indexes = {node.index for node in free}
        partly_free = [
            node for node in large if real.per_node.get(node.index, 0) < ideal.per_node.get(node.index, 0)
        ]
        busy = [node for node in large if node.index not in free_indexes] or partly_free
        leaves = [demand for demand in flatten(demands) if not demand.with_ and demand not in demands]
        found = [(demand, real.most.get(id(demand), (0, ""))[0]) for demand in leaves]
        short = [(demand, most) for demand, most in found if most < demand.count.min]
        return _Funnel(tuple(stages), tuple(busy) if nodes else (self._graph.root,), tuple(short))

    def _nodes_needed(self, demands: tuple[Demand, ...], ideal: Bounds) -> int:
        """The least number of nodes, if every node held as many slots as it can."""
        for demand in demands:
            if demand.type == NODE:
                return demand.count.min
            if demand.type == SLOT:
                if self._request.placement.distinct_nodes:
                    return demand.count.min
                most = max(ideal.per_node.values(), default=0)
                return -(-demand.count.min // most) if most else 1
        return 1

    def _blockers(self, funnel: _Funnel, window: Window) -> tuple[Blocker, ...]:
        """What occupies the short resources. Those without an end come first: waiting does not help there."""
        short = {demand.type for demand, _ in funnel.short}
        job_ends: dict[int, int] = {}
        external: set[str] = set()
        for node in funnel.busy:
            for vertex in self._graph.walk(node):
                state = vertex.state
                if state is None or (short and vertex.type not in short and vertex.type != NODE):
                    continue
                for (job, _), booking in state.bookings.items():
                    end = max(booking.end, window.now + 1) if booking.live else booking.end
                    if booking.units and booking.start < window.end and window.start < end:
                        job_ends[job] = max(job_ends.get(job, 0), end)
                external.update(
                    name for name, share in state.external.items() if share.units and not share.standing
                )
        blockers = [Blocker(external_usage=name) for name in external]
        blockers += [Blocker(job, until_s=None if end >= FOREVER else end) for job, end in job_ends.items()]
        blockers.sort(key=lambda blocker: (blocker.until_s is not None, blocker.until_s or 0, str(blocker)))
        return tuple(blockers[:_BLOCKERS_MAX])
