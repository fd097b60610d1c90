"""Fluxion's checks around a match: known resource types, enough nodes, satisfiability.

The engine does the matching. These checks determine which message Fluxion prints for a refusal, and which
requests it refuses without searching.
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

__all__ = ["HORIZON_S", "NOW", "check_types", "has_enough_nodes", "is_satisfiable"]

HORIZON_S: Final = 3_153_600_000  # The planning horizon of a session: a hundred years.
NOW: Final = 0  # The time of every command: the clock of a session does not advance.

_BUILT_IN_TYPES: Final = frozenset(
    {"cluster", "core", "socket", "gpu", "node", "rack", "slot", "storage_node", "ssd"}
)


def check_types(types: frozenset[str], resources: tuple[Resource, ...]) -> None:
    """Raises `BadRequest` for a resource type that is neither among these types nor built into Fluxion."""
    for resource in resources:
        if resource.type not in types and resource.type not in _BUILT_IN_TYPES:
            raise BadRequest(
                'Value of "type" must be a resource type known to fluxion',
                found=resource.type,
                expected=", ".join(sorted(types | _BUILT_IN_TYPES)),
            )
        check_types(types, resource.with_)


def has_enough_nodes(engine: Engine, request: Request, op: MatchOp) -> bool:
    """Whether as many nodes as requested are up and satisfy the constraint. Fluxion checks this first."""
    if "node" not in engine.filters.tracked:
        return True
    group = request.groups[0]
    requested: dict[str, int] = {}
    _count_requested(group.resources, 1, requested)
    needed = requested.get("node", 0)
    if needed == 0 and group.constraint is None:
        return True
    graph = engine.graph
    nodes = graph.each_of_type("node")
    up = (node for node in nodes if node.up and all(above.up for above in node.ancestors()))
    if group.constraint is None:
        return sum(1 for _ in islice(up, needed)) == needed
    ideal = op is MatchOp.ALLOCATE_WITH_SATISFIABILITY
    start = NOW if op is MatchOp.ALLOCATE else HORIZON_S - 1
    window = Window(start, start + (request.duration_s or HORIZON_S), NOW, TimeView.LATER)
    constraint = group.constraint
    fit = (n for n in (nodes if ideal else up) if matches(constraint, n) and free_units(n, window) == 1)
    return sum(1 for _ in islice(fit, needed)) == needed


def is_satisfiable(engine: Engine, request: Request) -> bool:
    """Whether Fluxion reports the request as satisfiable."""
    graph = engine.graph
    if _has_slot_below_unnamed(graph, request):
        requested: dict[str, int] = {}
        _count_requested(request.groups[0].resources, 1, requested)
        return all(units <= sum(v.size for v in graph.of_type(name)) for name, units in requested.items())
    return engine.could_ever(request)


def _count_requested(resources: tuple[Resource, ...], times: int, requested: dict[str, int]) -> None:
    """Adds the minimum counts of a request to `requested`, by resource type."""
    for resource in resources:
        least = times * resource.count.min
        if resource.type != SLOT:
            requested[resource.type] = requested.get(resource.type, 0) + least
        _count_requested(resource.with_, least, requested)


def _has_slot_below_unnamed(graph: Graph, request: Request) -> bool:
    """Whether the resources of a slot are grandchildren of the vertex that contains the slot.

    Fluxion finds such a request (node->slot->core on node->socket->core) and then books nothing: every
    match fails, and none is reported as unsatisfiable.
    """
    pending = [resource for group in request.groups for resource in group.resources]
    while pending:
        resource = pending.pop()
        pending.extend(resource.with_)
        slot = next((inner for inner in resource.with_ if inner.type == SLOT), None)
        if slot is None or resource.type == SLOT:
            continue
        types = {inner.type for inner in slot.with_}
        tops = graph.of_type(resource.type)
        direct = any(types <= {child.type for child in top.below()} for top in tops)
        below = any(types <= {c.type for c in child.below()} for top in tops for child in top.below())
        if below and not direct:
            return True
    return False
