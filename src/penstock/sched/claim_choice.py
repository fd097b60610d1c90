"""Which nodes a job claims: the smallest set of the nodes that are closest to being free for it.

Nodes are ranked: first those without work of unknown end, by the latest known end of their jobs, then the
others by the amount of such work. The claim is the match of the engine on the shortest prefix of this ranking
on which the request fits once all jobs have ended; the length of the prefix is found by bisection. The engine
observes constraints, placement rules, exclusion keys and external usage, which counts as staying.
"""

from __future__ import annotations

from collections.abc import Generator, Set
from typing import Final

from penstock.engine.graph import Vertex
from penstock.engine.planner import FOREVER
from penstock.engine.request import Request
from penstock.model.constraint import matches
from penstock.sched.cluster import Cluster, ClusterNode

__all__ = ["can_hold", "choose_nodes", "nodes_up"]

_NODES_PER_STEP: Final = 200
_MILLI: Final = {"core": 1000, "cpu": 1}  # thousandths of a core in a unit


def choose_nodes(
    cluster: Cluster, request: Request, excluded_nodes: Set[int]
) -> Generator[None, None, tuple[str, ...] | None]:
    """Names of the nodes to claim, by rank; None if the request fits nowhere. Yields between matches.

    Nodes in `excluded_nodes` (indexes of vertices) are left out.
    """
    ranking = yield from _ranking(cluster, request, excluded_nodes)
    everything = frozenset(known.vertex.index for known in cluster.nodes.values())

    def match(count: int) -> tuple[Vertex, ...] | None:
        chosen = frozenset(vertex.index for vertex in ranking[:count])
        return cluster.engine.nodes_without_jobs(request, everything - chosen)

    too_few, enough = 0, 1
    while (found := match(enough)) is None:
        if enough >= len(ranking):
            return None
        too_few, enough = enough, 2 * enough
        yield
    while enough - too_few > 1:
        yield
        middle = (too_few + enough) // 2
        fewer = match(middle)
        if fewer is None:
            too_few = middle
        else:
            found, enough = fewer, middle
    return tuple(vertex.name for vertex in sorted(found, key=lambda vertex: vertex.rank))


def can_hold(cluster: Cluster, request: Request, nodes: tuple[str, ...]) -> bool:
    """Whether a request fits on these nodes once all jobs have ended."""
    known = [cluster.nodes[node].vertex.index for node in nodes if node in cluster.nodes]
    if len(known) < len(nodes):
        return False
    everything = frozenset(node.vertex.index for node in cluster.nodes.values())
    return cluster.engine.nodes_without_jobs(request, everything.difference(known)) is not None


def nodes_up(cluster: Cluster) -> int:
    return sum(node.vertex.up for node in cluster.nodes.values())


def _ranking(
    cluster: Cluster, request: Request, excluded_nodes: Set[int]
) -> Generator[None, None, list[Vertex]]:
    """The nodes that the request may use, the ones closest to being free first."""
    constraints = [group.constraint for group in request.groups]
    ranked: list[tuple[tuple[bool, int, int, int], Vertex]] = []
    for place, known in enumerate(cluster.nodes.values()):
        if place % _NODES_PER_STEP == _NODES_PER_STEP - 1:
            yield
        vertex = known.vertex
        if not vertex.up or vertex.index in excluded_nodes:
            continue
        if any(constraint is None or matches(constraint, vertex) for constraint in constraints):
            ranked.append((_distance(known), vertex))
    ranked.sort(key=lambda one: one[0])
    return [vertex for _, vertex in ranked]


def _distance(known: ClusterNode) -> tuple[bool, int, int, int]:
    """How far a node is from being free: has work without an end, latest end, amount without an end, rank."""
    has_endless, latest, milli = False, 0, 0
    state = known.vertex.state
    for booking in state.bookings.values() if state is not None else ():
        if booking.end < FOREVER:
            latest = max(latest, booking.end)
        else:
            has_endless = True
            milli += sum(units * _MILLI.get(name, 0) for name, units in booking.below.items())
    return has_endless, latest, milli, known.rank
