"""Why not: the steps from all nodes to the ones that would do, and who has the rest.

Every refusal can be told as a funnel: so many nodes there are, so many are up, match the
constraint, are large enough, have room at the time asked for. The clause names the first step
after which too few are left. What stands in the way is read off the bookings of the nodes that
would do if they were free.
"""

from __future__ import annotations

from typing import Final

from penstock.engine.allocation import Blocker, Reason, Step
from penstock.engine.graph import Graph, Vertex
from penstock.engine.planner import FOREVER
from penstock.engine.relaxation import IDEAL, Bounds, counted
from penstock.engine.request import SLOT, Request, Want
from penstock.engine.state import Window
from penstock.engine.walker import NODE
from penstock.model.constraint import matches

__all__ = ["Explainer"]

_BLOCKERS_MAX: Final = 8


class Explainer:
    def __init__(
        self,
        graph: Graph,
        request: Request,
        wants: tuple[tuple[Want, ...], ...],
        avoid: frozenset[int] = frozenset(),
    ) -> None:
        self._graph = graph
        self._request = request
        self._wants = wants
        self._avoid = avoid  # nodes that a distinct placement has used already

    def never(self, proof: str) -> Reason:
        steps, _ = self._steps(0, IDEAL)
        return Reason(proof, tuple(steps))

    def not_now(self, window: Window) -> Reason:
        """The first group that does not fit by itself; if all do, they are in each other's way."""
        for group in range(len(self._wants)):
            steps, busy = self._steps(group, window)
            needed = self._needed(group)
            for step in steps:
                if step.passed < step.needed:
                    clause = f"asks for {needed}; {_told(step)}"
                    return Reason(clause, tuple(steps), self._blockers(busy, window))
        steps, busy = self._steps(0, window)
        if len(self._wants) > 1:
            clause = f"asks for {len(self._wants)} groups together; each fits alone, not all at once"
        elif self._request.placement.within:
            within = self._request.placement.within
            clause = f"asks for {self._needed(0)} inside one {within}; none has room for all"
        else:
            clause = f"asks for {self._needed(0)}; what is free does not add up to whole ones"
        return Reason(clause, tuple(steps), self._blockers(busy, window))

    def _needed(self, group: int) -> str:
        return ", ".join(counted(want.count.min, want.type) for want in self._wants[group])

    def _steps(self, group: int, window: Window) -> tuple[list[Step], list[Vertex]]:
        """The funnel over nodes, and the nodes that only lack room."""
        wants = self._wants[group]
        constraint = self._request.groups[group].constraint
        placement = self._request.placement
        ideal = Bounds(wants, constraint, placement, IDEAL, self._avoid)
        ideal.below(self._graph.root)
        real = Bounds(wants, constraint, placement, window, self._avoid)
        sums = real.below(self._graph.root)
        nodes = self._graph.of_type(NODE)
        up = [node for node in nodes if node.up and all(above.up for above in self._graph.ancestors(node))]
        fitting = [node for node in up if constraint is None or matches(constraint, node)]
        large = [node for node in fitting if ideal.per_node.get(node.index, 0) > 0]
        free = [node for node in large if real.per_node.get(node.index, 0) > 0]
        least = self._nodes_needed(wants, ideal)
        steps = [Step("nodes", len(nodes), least), Step("up", len(up), least)]
        if constraint is not None:
            steps.append(Step("match the constraint", len(fitting), least))
        steps.append(Step("large enough", len(large), least))
        steps.append(Step("with room", len(free), least))
        for want in wants:
            unit = f"{counted(2, want.type).removeprefix('2 ')} that fit"
            steps.append(Step(unit, sums.get(want.type, 0), want.count.min))
        taken = {node.index for node in free}
        crowded = [
            node for node in large if real.per_node.get(node.index, 0) < ideal.per_node.get(node.index, 0)
        ]
        return steps, [node for node in large if node.index not in taken] or crowded

    def _nodes_needed(self, wants: tuple[Want, ...], ideal: Bounds) -> int:
        """How many nodes it takes at least, if every node gave its most."""
        for want in wants:
            if want.type == NODE:
                return want.count.min
            if want.type == SLOT:
                if self._request.placement.distinct_nodes:
                    return want.count.min
                most = max(ideal.per_node.values(), default=0)
                return -(-want.count.min // most) if most else 1
        return 1

    def _blockers(self, nodes: list[Vertex], window: Window) -> tuple[Blocker, ...]:
        until: dict[str, int | None] = {}
        for node in nodes:
            for vertex in self._graph.walk(node):
                state = vertex.state
                if state is None:
                    continue
                for (job, _), booking in state.bookings.items():
                    if booking.end > window.start or booking.live:
                        end = None if booking.end >= FOREVER else max(booking.end, window.now + 1)
                        until[f"job {job}"] = end
                for name in state.holds:
                    until[name] = None
        told = sorted(until.items(), key=lambda item: (item[1] is None, item[1] or 0, item[0]))
        return tuple(Blocker(who, end) for who, end in told[:_BLOCKERS_MAX])


def _told(step: Step) -> str:
    if step.name == "nodes":
        return f"there are {step.passed}, it takes {step.needed}"
    if step.name.endswith("that fit"):
        kind = step.name.removesuffix(" that fit")
        return f"{step.passed} {kind} fit now"
    verb = ("is " if step.passed == 1 else "are ") if step.name in ("up", "large enough") else ""
    return f"{counted(step.passed, NODE)} {verb}{step.name}, it takes {step.needed}"
