"""Requests: groups of resources that start together or not at all.

A `Group` is a tree of resources as in a jobspec, with its own constraint; a request has one or more groups, a
duration, and placement rules for all of them. A jobspec is one source of a request (`request_of`); a gang of
different pods is another. `compile_demands` validates the tree and adds to each resource what one unit of it
needs below, so that the walker can prune early.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from math import ceil
from typing import Final

from penstock.engine.graph import DEPTH_MAX
from penstock.errors import BadRequest
from penstock.model.constraint import Constraint
from penstock.model.exclusion_key import ExclusionKey
from penstock.model.jobspec import Count, Jobspec, Resource

__all__ = [
    "SLOT",
    "SLOTS_MAX",
    "Demand",
    "Group",
    "InvalidResources",
    "NodeOrder",
    "NothingAllocated",
    "Placement",
    "Preference",
    "Request",
    "check_rules",
    "compile_demands",
    "request_of",
    "slot_request",
]

SLOT: Final = "slot"
SLOTS_MAX: Final = 1 << 16  # in one request


class InvalidResources(BadRequest):
    """Resources that contradict each other on every graph."""


class NothingAllocated(InvalidResources):
    """A request without a slot and without an exclusive resource: it would allocate nothing."""

    def __init__(self) -> None:
        super().__init__(
            "the request allocates nothing",
            where="resources",
            expected="a slot, or a resource with exclusive: true",
        )


class NodeOrder(enum.Enum):
    """Which of the nodes with equal preference get slots first, before the match policy decides."""

    POLICY = ""  # the match policy alone
    PACK = "pack"  # the fullest node first
    SPREAD = "spread"  # the node with fewest slots of the job first, then the emptiest


@dataclass(frozen=True, slots=True)
class Preference:
    """Nodes that a group prefers. The weights of all that a node satisfies are added up."""

    constraint: Constraint
    weight: int  # 1 or more


@dataclass(frozen=True, slots=True)
class Group:
    resources: tuple[Resource, ...]
    constraint: Constraint | None = None
    brings: tuple[ExclusionKey, ...] = ()  # in use at the vertices of their levels that contain a slot
    forbids: tuple[ExclusionKey, ...] = ()  # no slot is below a vertex at which one of them is in use
    prefers: tuple[Preference, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the slots of a request may be relative to each other."""

    distinct_nodes: bool = False  # no two slots on one node
    within: str = ""  # the type of a vertex that contains all slots; "": no such rule


_ANYWHERE: Final = Placement()


@dataclass(frozen=True, slots=True)
class Request:
    groups: tuple[Group, ...]
    duration_s: int | None = None  # None: until it is released
    placement: Placement = _ANYWHERE
    order: NodeOrder = NodeOrder.POLICY  # of the nodes for its slots (see `ranking`)


class Demand:
    """One resource of a group, with the units of filter types that one unit of it needs below."""

    __slots__ = ("count", "exclusive", "label", "needs", "slot", "type", "with_")

    def __init__(self, resource: Resource, with_: tuple[Demand, ...], needs: dict[str, int]) -> None:
        self.type = resource.type
        self.count: Count = resource.count
        self.exclusive = resource.exclusive
        self.label = resource.label
        self.with_ = with_
        self.needs = needs
        self.slot: Demand | None = next((demand for demand in with_ if demand.type == SLOT), None)


def request_of(jobspec: Jobspec, placement: Placement = _ANYWHERE) -> Request:
    """The request of a jobspec. A fraction of a second is rounded up."""
    duration_s = ceil(jobspec.duration_s) or None
    return Request((Group(jobspec.resources, jobspec.constraint),), duration_s, placement)


def slot_request(
    requests: dict[str, int],
    *,
    slots: int = 1,
    duration_s: int | None = None,
    constraint: Constraint | None = None,
    placement: Placement = _ANYWHERE,
    brings: tuple[ExclusionKey, ...] = (),
    forbids: tuple[ExclusionKey, ...] = (),
    prefers: tuple[Preference, ...] = (),
    order: NodeOrder = NodeOrder.POLICY,
) -> Request:
    """Equal slots with the same resource requests: the form of most jobs."""
    inner = tuple(Resource(resource_type, Count(units, units)) for resource_type, units in requests.items())
    slot = Resource(SLOT, Count(slots, slots), with_=inner, label="default")
    return Request((Group((slot,), constraint, brings, forbids, prefers),), duration_s, placement, order)


def compile_demands(
    resources: tuple[Resource, ...], tracked: frozenset[str], *, whole_nodes: bool = False
) -> tuple[Demand, ...]:
    """Validates the resources of a group and prepares them for the walker.

    With `whole_nodes` every node on the way is allocated, so the request needs no slot.
    """
    if not resources:
        raise InvalidResources("the request is empty", where="resources", expected="at least one resource")
    demands = _compile(resources, tracked, "resources", under_exclusive=False)
    if not whole_nodes and not _books_something(demands):
        raise NothingAllocated
    return demands


def _compile(
    resources: tuple[Resource, ...], tracked: frozenset[str], where: str, under_exclusive: bool
) -> tuple[Demand, ...]:
    seen: set[str] = set()
    demands: list[Demand] = []
    for place, resource in enumerate(resources):
        here = f"{where}[{place}]"
        if resource.type in seen:
            raise InvalidResources(
                f"siblings in jobspec request same resource type : {resource.type}",
                where=here,
                expected="one entry per type in a list",
            )
        if SLOT in seen or (resource.type == SLOT and seen):
            raise InvalidResources(
                "a slot has siblings", where=here, expected="a slot as the only entry of its list"
            )
        seen.add(resource.type)
        if resource.count.min < 1:
            raise InvalidResources(
                "the count is zero", where=f"{here}.count", found="0", expected="1 or more"
            )
        if resource.type == SLOT and resource.count.min > SLOTS_MAX:
            found = str(resource.count.min)
            raise InvalidResources(
                "too many slots", where=f"{here}.count", found=found, expected=f"at most {SLOTS_MAX}"
            )
        if where.count(".with") >= DEPTH_MAX:
            raise InvalidResources("nested too deep", where=here, expected=f"a depth of at most {DEPTH_MAX}")
        if resource.type == SLOT and not resource.with_:
            raise InvalidResources("a slot is empty", where=here, expected="`with` and at least one resource")
        if under_exclusive and resource.exclusive is False:
            raise InvalidResources(
                "exclusivity conflicts",
                where=here,
                found="exclusive: false",
                expected="no `exclusive: false` below a slot or an exclusive resource",
            )
        inside = under_exclusive or resource.type == SLOT or resource.exclusive is True
        inner = _compile(resource.with_, tracked, f"{here}.with", inside) if resource.with_ else ()
        demands.append(Demand(resource, inner, _needs(inner, tracked)))
    return tuple(demands)


def check_rules(request: Request, demands: tuple[tuple[Demand, ...], ...]) -> None:
    """Checks that the rules of a request apply to its compiled groups."""
    if not demands:
        raise BadRequest("the request has no groups", expected="at least one group")
    for group, compiled in zip(request.groups, demands, strict=True):
        if request.placement.distinct_nodes:
            _check_distinct(compiled)
        if group.brings or group.forbids:
            _check_slots(compiled, "exclusion keys")
        if group.prefers or request.order is not NodeOrder.POLICY:
            _check_slots(compiled, "an order of nodes")


def _check_distinct(demands: tuple[Demand, ...]) -> None:
    """Checks that slots can be on distinct nodes: they are outermost, or one in each named node."""
    for demand in demands:
        if demand.type != SLOT:
            _check_one_slot(demand, inside_node=False)


def _check_slots(demands: tuple[Demand, ...], what: str) -> None:
    """Checks that exclusion keys or an order apply: they belong to slots as the outermost resource."""
    if len(demands) != 1 or demands[0].type != SLOT:
        raise InvalidResources(
            f"{what} without slots",
            where="resources",
            found=", ".join(demand.type for demand in demands),
            expected="slots as the outermost resource",
        )


def _check_one_slot(demand: Demand, inside_node: bool) -> None:
    one = (demand.count.min, demand.count.max) == (1, 1)
    is_loose = demand.type == SLOT and not inside_node
    if is_loose or (inside_node and demand.with_ and not one):
        raise InvalidResources(
            "slots on distinct nodes, but one node can contain several slots",
            where="placement",
            found=f"{demand.count.min} {demand.type} {'outside any' if is_loose else 'below a'} node",
            expected="one slot per node resource, or slots as the outermost resources",
        )
    for inner in demand.with_ if demand.type != SLOT else ():
        _check_one_slot(inner, inside_node or demand.type == "node")


def _needs(inner: tuple[Demand, ...], tracked: frozenset[str]) -> dict[str, int]:
    needs: dict[str, int] = {}
    for demand in inner:
        least = demand.count.min
        if demand.type in tracked:
            needs[demand.type] = needs.get(demand.type, 0) + least
        for resource_type, units in demand.needs.items():
            needs[resource_type] = needs.get(resource_type, 0) + least * units
    return needs


def _books_something(demands: tuple[Demand, ...]) -> bool:
    return any(
        demand.type == SLOT or demand.exclusive is True or _books_something(demand.with_)
        for demand in demands
    )
