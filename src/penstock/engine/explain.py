"""Why a request cannot start: a funnel over the nodes, and what occupies the missing resources.

A funnel counts the nodes that are left after each stage: all nodes, nodes that match the constraint, that are
up, that are large enough, that have enough free at the requested time and no forbidden key in use. The clause
describes the first stage that leaves too few. The blockers are read from the bookings and external usage of
the nodes that would do if they were free.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from typing import Final

from penstock.engine.allocation import Blocker, FunnelStage, Reason
from penstock.engine.bounds import IDEAL, Bounds
from penstock.engine.exclusion import Exclusion
from penstock.engine.graph import Graph, Vertex
from penstock.engine.mismatches import describe_mismatches
from penstock.engine.planner import FOREVER
from penstock.engine.request import SLOT, Demand, Request
from penstock.engine.vertex_state import Booking, TimeView, Window
from penstock.engine.walker import NODE
from penstock.engine.wording import contents, describe, excluding, flatten, has_one_item, join, shortage
from penstock.model.constraint import matches
from penstock.model.exclusion_key import ExclusionKey
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
    # nodes that have enough free but a forbidden key in use, by index, with that key
    excluded: dict[int, ExclusionKey]
    down: tuple[str, ...]  # nodes that would do if they were up

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
        exclusions: tuple[Exclusion, ...],
        excluded_nodes: Set[int] = frozenset(),
        whole_nodes: bool = False,
    ) -> None:
        self._graph = graph
        self._request = request
        self._demands = demands
        self._exclusions = exclusions
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
                clause = self._clause(group, *failed, funnel)
                return Reason(clause, funnel.stages, self._blockers(group, funnel, window), funnel.down)
            first = first or funnel
        assert first is not None, "a request has at least one group"
        within = self._request.placement.within
        needed = self._describe(0, free=True)
        if len(self._demands) > 1:
            clause = f"needs {len(self._demands)} groups at once, each fits alone but not together"
        elif within:
            clause = f"needs {needed}, no {within} has enough free"
        else:
            clause = f"needs {needed}, the free units are too scattered"
        return Reason(clause, first.stages, self._blockers(0, first, window), first.down)

    def _describe(self, group: int, *, free: bool = False) -> str:
        within = self._request.placement.within
        return describe(self._demands[group], within, self._exclusions[group], free=free)

    def _clause(self, group: int, stage: FunnelStage, before: int, funnel: _Funnel) -> str:
        needed = self._describe(group)
        count = stage.passed
        still = f"{stage.needed} {'is' if stage.needed == 1 else 'are'} needed"
        be = "is" if count == 1 else "are"
        if stage.name == _FREE:
            return self._free_clause(group, stage, before, funnel)
        if stage.name == _ALL:
            return f"needs {needed}, the cluster has {format_count(count, NODE)} and {still}"
        if stage.name == _MATCH:
            verb = "matches" if count == 1 else "match"
            constraint = self._request.groups[group].constraint
            nodes = self._graph.of_type(NODE)
            details = describe_mismatches(constraint, nodes) if constraint is not None else ""
            return f"needs {needed}; {count} of {before} nodes {verb}, {still}; {details}"
        if stage.name in (_UP, _LARGE):
            return f"needs {needed}; {count} of {before} nodes {be} {stage.name}, {still}"
        details = "".join(f"; {reason}" for reason in excluding(funnel.excluded.values()))
        return f"needs {needed}, {count} of {stage.needed} {'fits' if count == 1 else 'fit'} now{details}"

    def _free_clause(self, group: int, stage: FunnelStage, before: int, funnel: _Funnel) -> str:
        """The nodes that have enough free; then, where the first part does not say it, what is short."""
        outer = self._demands[group][0]
        short = funnel.short
        of_nodes = f"{stage.passed} of {before}" + ("" if outer.type == NODE else " nodes")
        is_one = stage.passed == 1
        is_rule_broken = bool(funnel.excluded) or any(
            demand.type not in contents(outer) for demand, _ in short
        )
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
        ] + excluding(funnel.excluded.values())
        detail = f"; {join(details)}" if details else ""
        return f"needs {self._describe(group, free=True)}{result}{detail}"

    def _funnel(self, group: int, window: Window) -> _Funnel:
        demands = self._demands[group]
        constraint = self._request.groups[group].constraint
        exclusion = self._exclusions[group]
        no_keys = replace(exclusion, forbids={})
        ideal = Bounds(demands, constraint, no_keys, IDEAL, self._excluded_nodes)
        ideal.below(self._graph.root)
        real = Bounds(demands, constraint, exclusion, window, self._excluded_nodes, self._whole_nodes)
        sums = real.below(self._graph.root)
        keyless = real  # as if no key were in use
        if exclusion.forbids:
            keyless = Bounds(demands, constraint, no_keys, window, self._excluded_nodes, self._whole_nodes)
            keyless.below(self._graph.root)
        nodes = self._graph.of_type(NODE)
        is_ideal = window.view is TimeView.IDEAL
        eligible = [node for node in nodes if constraint is None or matches(constraint, node, ideal=is_ideal)]
        up = [node for node in eligible if node.up and all(above.up for above in node.ancestors())]
        large = [node for node in up if ideal.per_node.get(node.index, 0) > 0]
        free = [node for node in large if real.per_node.get(node.index, 0) > 0]
        needed = self._nodes_needed(group, ideal)
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
        found = [(demand, keyless.most.get(id(demand), (0, ""))[0]) for demand in leaves]
        short = [(demand, most) for demand, most in found if most < demand.count.min]
        excluded = {
            node.index: key
            for node in large
            if keyless.per_node.get(node.index, 0) > real.per_node.get(node.index, 0)
            and (key := exclusion.blocking_key_around(node, window)) is not None
        }
        up_indexes = {node.index for node in up}
        down = tuple(
            node.name
            for node in eligible
            if node.index not in up_indexes and ideal.per_node.get(node.index, 0) > 0
        )
        busy_or_root = tuple(busy) if nodes else (self._graph.root,)
        return _Funnel(tuple(stages), busy_or_root, tuple(short), excluded, down)

    def _nodes_needed(self, group: int, ideal: Bounds) -> int:
        """The least number of nodes, if every node held as many slots as it can."""
        for demand in self._demands[group]:
            if demand.type == NODE:
                return demand.count.min
            if demand.type == SLOT:
                if self._exclusions[group].one_slot_per:
                    return demand.count.min
                most = max(ideal.per_node.values(), default=0)
                return -(-demand.count.min // most) if most else 1
        return 1

    def _blockers(self, group: int, funnel: _Funnel, window: Window) -> tuple[Blocker, ...]:
        """What occupies the short resources. Those without an end come first: waiting does not help there."""
        short = {demand.type for demand, _ in funnel.short}
        found = _Occupants(window)
        for node in funnel.busy:
            if node.index in funnel.excluded:
                exclusion = self._exclusions[group]
                for vertex in exclusion.vertices_around(node):
                    found.add_users(vertex, exclusion.forbids.get(vertex.type, ()))
                continue
            for vertex in self._graph.walk(node):
                if not short or vertex.type in short or vertex.type == NODE:
                    found.add_holders(vertex)
        return found.blockers()


class _Occupants:
    """The jobs and external usage that are in the way during a window."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._job_ends: dict[int, int] = {}
        self._external: set[str] = set()

    def add_holders(self, vertex: Vertex) -> None:
        """Adds what has units of a vertex."""
        state = vertex.state
        if state is not None:
            self._add(
                ((job, booking) for (job, _), booking in state.bookings.items() if booking.units),
                (name for name, share in state.external.items() if share.units and not share.standing),
            )

    def add_users(self, vertex: Vertex, keys: tuple[ExclusionKey, ...]) -> None:
        """Adds what uses one of the keys at a vertex."""
        state = vertex.state
        if state is not None and state.keys is not None and keys:
            wanted = set(keys)
            self._add(
                (
                    (job, booking)
                    for (job, _), booking in state.bookings.items()
                    if booking.keys and not wanted.isdisjoint(booking.keys)
                ),
                (
                    name
                    for name, share in state.external.items()
                    if not share.standing and not wanted.isdisjoint(share.keys)
                ),
            )

    def _add(self, bookings: Iterable[tuple[int, Booking]], external: Iterable[str]) -> None:
        for job, booking in bookings:
            end = max(booking.end, self._window.now + 1) if booking.live else booking.end
            if booking.start < self._window.end and self._window.start < end:
                self._job_ends[job] = max(self._job_ends.get(job, 0), end)
        self._external.update(external)

    def blockers(self) -> tuple[Blocker, ...]:
        found = [Blocker(external_usage=name) for name in self._external]
        found += [
            Blocker(job, until_s=None if end >= FOREVER else end) for job, end in self._job_ends.items()
        ]
        found.sort(key=lambda blocker: (blocker.until_s is not None, blocker.until_s or 0, str(blocker)))
        return tuple(found[:_BLOCKERS_MAX])
