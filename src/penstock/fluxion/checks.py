"""What Fluxion decides before and after a walk: known types, nodes enough, could it ever be.

The walk itself is the engine's. These checks only decide which of its words Fluxion would use for a
refusal, and when it would not even look.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from penstock.engine.engine import Engine, MatchOp
from penstock.engine.graph import Graph
from penstock.engine.request import SLOT, Request
from penstock.engine.vertex_state import TimeView, Window, free_units
from penstock.errors import BadRequest
from penstock.model.constraint import matches
from penstock.model.jobspec import Resource

__all__ = ["HORIZON_S", "NOW", "check_types", "could_ever", "has_enough_nodes"]

HORIZON_S: Final = 3_153_600_000  # a hundred years: nothing is planned beyond
NOW: Final = 0  # the clock of a session stands still

_BUILT_IN_TYPES: Final = frozenset(
    {"cluster", "core", "socket", "gpu", "node", "rack", "slot", "storage_node", "ssd"}
)


def check_types(graph: Graph, resources: tuple[Resource, ...]) -> None:
    """A type that neither the graph nor Fluxion itself knows makes a jobspec invalid."""
    known = graph.types() | _BUILT_IN_TYPES
    for resource in resources:
        if resource.type not in known:
            raise BadRequest(
                'Value of "type" must be a resource type known to fluxion',
                found=resource.type,
                expected=", ".join(sorted(known)),
            )
        check_types(graph, resource.with_)


def has_enough_nodes(engine: Engine, request: Request, op: MatchOp) -> bool:
    """The check before the walk: are there nodes enough that are up and fit at all?"""
    if "node" not in engine.filters.tracked:
        return True
    group = request.groups[0]
    asked: dict[str, int] = {}
    _count_asked(group.resources, 1, asked)
    needed = asked.get("node", 0)
    if needed == 0 and group.constraint is None:
        return True
    graph = engine.graph
    nodes = graph.of_type("node")
    up = (node for node in nodes if node.up and all(above.up for above in graph.ancestors(node)))
    if group.constraint is None:
        return sum(1 for _ in islice(up, needed)) == needed
    ideal = op is MatchOp.ALLOCATE_WITH_SATISFIABILITY
    start = NOW if op is MatchOp.ALLOCATE else HORIZON_S - 1
    window = Window(start, start + (request.duration_s or HORIZON_S), NOW, TimeView.LATER)
    constraint = group.constraint
    fit = (n for n in (nodes if ideal else up) if matches(constraint, n) and free_units(n, window) == 1)
    return sum(1 for _ in islice(fit, needed)) == needed


def could_ever(engine: Engine, request: Request) -> bool:
    """Whether Fluxion would call the request satisfiable."""
    graph = engine.graph
    if _has_slot_below_unnamed(graph, request):
        asked: dict[str, int] = {}
        _count_asked(request.groups[0].resources, 1, asked)
        return all(units <= sum(v.size for v in graph.of_type(kind)) for kind, units in asked.items())
    return engine.could_ever(request)


def _count_asked(resources: tuple[Resource, ...], times: int, asked: dict[str, int]) -> None:
    """Adds up what a request asks for at least, by type."""
    for resource in resources:
        least = times * resource.count.min
        if resource.type != SLOT:
            asked[resource.type] = asked.get(resource.type, 0) + least
        _count_asked(resource.with_, least, asked)


def _has_slot_below_unnamed(graph: Graph, request: Request) -> bool:
    """A slot whose parts lie one level below the vertex that it is asked for in.

    Fluxion finds such a shape (node->slot->core on node->socket->core) and then books nothing: every
    match fails, and none is called unsatisfiable.
    """
    pending = [resource for group in request.groups for resource in group.resources]
    while pending:
        resource = pending.pop()
        pending.extend(resource.with_)
        slot = next((inner for inner in resource.with_ if inner.type == SLOT), None)
        if slot is None or resource.type == SLOT:
            continue
        kinds = {inner.type for inner in slot.with_}
        tops = graph.of_type(resource.type)
        direct = any(kinds <= {child.type for child in top.below()} for top in tops)
        below = any(kinds <= {c.type for c in child.below()} for top in tops for child in top.below())
        if below and not direct:
            return True
    return False
