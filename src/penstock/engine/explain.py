"""Why not: the steps from all nodes to the ones that would do, and who has the rest.

Every refusal can be told as a funnel: so many nodes there are, so many are up, match the
constraint, are large enough, have room at the time asked for. The clause names the first step
after which too few are left. What stands in the way is read off the bookings of the nodes that
would do if they were free.
"""

from __future__ import annotations

from typing import Final

from penstock.engine.allocation import Blocker, FunnelStage, Reason
from penstock.engine.bounds import IDEAL, Bounds, format_count, format_units
from penstock.engine.graph import Graph, Vertex
from penstock.engine.planner import FOREVER
from penstock.engine.request import SLOT, Demand, Request
from penstock.engine.vertex_state import Window
from penstock.engine.walker import NODE
from penstock.model.constraint import matches

__all__ = ["Explainer"]

_BLOCKERS_MAX: Final = 8


class Explainer:
    def __init__(
        self,
        graph: Graph,
        request: Request,
        demands: tuple[tuple[Demand, ...], ...],
        excluded_nodes: frozenset[int] = frozenset(),
        whole_nodes: bool = False,
    ) -> None:
        self._whole_nodes = whole_nodes
        self._graph = graph
        self._request = request
        self._wants = demands
        self._excluded_nodes = excluded_nodes  # nodes that a distinct placement has used already
        self._short: list[tuple[Demand, int]] = []  # what is short in the best place, with how much there is

    def never(self, proof: str) -> Reason:
        stages, _ = self._stages(0, IDEAL)
        return Reason(proof, tuple(stages))

    def not_now(self, window: Window) -> Reason:
        """The first group that does not fit by itself; if all do, they are in each other's way."""
        for group in range(len(self._wants)):
            stages, busy = self._stages(group, window)
            needed = self._needed(group)
            for step in stages:
                if step.passed < step.needed:
                    short = self._told_short() if step.name == "with room" else ""
                    clause = f"asks for {needed}; {_told(step, short)}"
                    return Reason(clause, tuple(stages), self._blockers(busy, window))
        stages, busy = self._stages(0, window)
        if len(self._wants) > 1:
            clause = f"asks for {len(self._wants)} groups together; each fits alone, not all at once"
        elif self._request.placement.within:
            within = self._request.placement.within
            clause = f"asks for {self._needed(0)} inside one {within}; none has room for all"
        else:
            clause = f"asks for {self._needed(0)}; what is free does not add up to whole ones"
        return Reason(clause, tuple(stages), self._blockers(busy, window))

    def _told_short(self) -> str:
        """Which resource is short, where that is known: the most that is free in one place."""
        told = [
            f"{level.type}: {format_units(most, level.type)} of {format_units(level.count.min, level.type)}"
            for level, most in self._short
        ]
        return f" ({', '.join(told)})" if told else ""

    def _needed(self, group: int) -> str:
        return ", ".join(format_count(demand.count.min, demand.type) for demand in self._wants[group])

    def _stages(self, group: int, window: Window) -> tuple[list[FunnelStage], list[Vertex]]:
        """The funnel over nodes, and the nodes that only lack room."""
        demands = self._wants[group]
        constraint = self._request.groups[group].constraint
        placement = self._request.placement
        ideal = Bounds(demands, constraint, placement, IDEAL, self._excluded_nodes)
        ideal.below(self._graph.root)
        real = Bounds(demands, constraint, placement, window, self._excluded_nodes, self._whole_nodes)
        sums = real.below(self._graph.root)
        nodes = self._graph.of_type(NODE)
        fitting = [node for node in nodes if constraint is None or matches(constraint, node)]
        up = [node for node in fitting if node.up and all(above.up for above in self._graph.ancestors(node))]
        large = [node for node in up if ideal.per_node.get(node.index, 0) > 0]
        free = [node for node in large if real.per_node.get(node.index, 0) > 0]
        least = self._nodes_needed(demands, ideal)
        stages: list[FunnelStage] = []
        if nodes:
            stages.append(FunnelStage("nodes", len(nodes), least))
            if constraint is not None:
                stages.append(FunnelStage("match the constraint", len(fitting), least))
            stages.append(FunnelStage("up", len(up), least))
            stages.append(FunnelStage("large enough", len(large), least))
            stages.append(FunnelStage("with room", len(free), least))
        for demand in demands:
            unit = f"{format_count(2, demand.type).removeprefix('2 ')} that fit"
            stages.append(FunnelStage(unit, sums.get(demand.type, 0), demand.count.min))
        taken = {node.index for node in free}
        crowded = [
            node for node in large if real.per_node.get(node.index, 0) < ideal.per_node.get(node.index, 0)
        ]
        busy = [node for node in large if node.index not in taken] or crowded
        self._short = [(level, real.most.get(id(level), 0)) for level in _leaf_demands(demands)]
        self._short = [(level, most) for level, most in self._short if most < level.count.min]
        return stages, busy if nodes else [self._graph.root]

    def _nodes_needed(self, demands: tuple[Demand, ...], ideal: Bounds) -> int:
        """How many nodes it takes at least, if every node gave its most."""
        for demand in demands:
            if demand.type == NODE:
                return demand.count.min
            if demand.type == SLOT:
                if self._request.placement.distinct_nodes:
                    return demand.count.min
                most = max(ideal.per_node.values(), default=0)
                return -(-demand.count.min // most) if most else 1
        return 1

    def _blockers(self, nodes: list[Vertex], window: Window) -> tuple[Blocker, ...]:
        """Who has what is short there, and until when; those without an end first: waiting won't help."""
        short = {level.type for level, _ in self._short}
        job_ends: dict[int, int] = {}
        external: set[str] = set()
        for node in nodes:
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


def _leaf_demands(demands: tuple[Demand, ...]) -> list[Demand]:
    """What lies in slots, at any level."""
    inner = list(demands)
    for demand in inner:  # grows while it is walked
        inner.extend(demand.with_)
    return [level for level in inner if not level.with_ and level not in demands]


def _told(step: FunnelStage, short: str) -> str:
    if step.name == "nodes":
        return f"there are {step.passed}, it takes {step.needed}"
    if step.name.endswith("that fit"):
        resource_type = step.name.removesuffix(" that fit")
        return f"{step.passed} {resource_type} fit now"
    verb = ("is " if step.passed == 1 else "are ") if step.name in ("up", "large enough") else ""
    return f"{format_count(step.passed, NODE)} {verb}{step.name}{short}, it takes {step.needed}"
