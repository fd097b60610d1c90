"""What is asked of the engine: groups of resources that all start together, or not at all.

A `Group` is a tree of resources as a jobspec writes it, with its own constraint; a request has one
or more of them, a limit, and rules of placement that hold for all. A jobspec is one way to make a
request (`request_of`); a group of unlike pods is another. `compile_demands` checks the shape and adds
to every level what one of it needs below, so that a walk can turn back early.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from penstock.engine.graph import DEPTH_MAX
from penstock.errors import BadRequest
from penstock.model.constraint import Constraint
from penstock.model.jobspec import Count, Jobspec, Resource

__all__ = [
    "SLOT",
    "SLOTS_MAX",
    "Demand",
    "Group",
    "InvalidResources",
    "NothingAllocated",
    "Placement",
    "Request",
    "check_distinct",
    "compile_demands",
    "request_of",
    "slot_request",
]

SLOT: Final = "slot"
SLOTS_MAX: Final = 1 << 16  # in one request


class InvalidResources(BadRequest):
    """Resources that contradict each other, whatever the graph."""


class NothingAllocated(InvalidResources):
    """Resources that would only be passed through: no slot, and nothing exclusive."""

    def __init__(self) -> None:
        super().__init__(
            "nothing would be held", where="resources", expected="a slot, or a resource with exclusive: true"
        )


@dataclass(frozen=True, slots=True)
class Group:
    resources: tuple[Resource, ...]
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the parts of a request may be in relation to each other."""

    distinct_nodes: bool = False  # no two slots on one node
    within: str = ""  # the type of a vertex that everything must lie below; "": anywhere


_ANYWHERE: Final = Placement()


@dataclass(frozen=True, slots=True)
class Request:
    groups: tuple[Group, ...]
    duration_s: int | None = None  # None: until it is released
    placement: Placement = _ANYWHERE


class Demand:
    """A level of a group: the resource, and what one of it needs below in units of filter types."""

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
    """The request that a jobspec stands for. Parts of a second count as a whole one."""
    duration_s = ceil(jobspec.duration_s) or None
    return Request((Group(jobspec.resources, jobspec.constraint),), duration_s, placement)


def slot_request(
    amounts: dict[str, int],
    *,
    slots: int = 1,
    duration_s: int | None = None,
    constraint: Constraint | None = None,
    placement: Placement = _ANYWHERE,
) -> Request:
    """So many equal slots, each with these amounts: the shape of most jobs."""
    inner = tuple(Resource(resource_type, Count(units, units)) for resource_type, units in amounts.items())
    slot = Resource(SLOT, Count(slots, slots), with_=inner, label="default")
    return Request((Group((slot,), constraint),), duration_s, placement)


def compile_demands(
    resources: tuple[Resource, ...], tracked: frozenset[str], *, whole_nodes: bool = False
) -> tuple[Demand, ...]:
    """Checks the shape of a group and prepares it for the walk.

    With `whole_nodes` every node that is touched is held, so a request may do without a slot.
    """
    if not resources:
        raise InvalidResources("nothing is asked for", where="resources", expected="at least one resource")
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
                expected="one entry per type at a level",
            )
        if SLOT in seen or (resource.type == SLOT and seen):
            raise InvalidResources("a slot has siblings", where=here, expected="a slot alone at its level")
        seen.add(resource.type)
        if resource.count.min < 1:
            raise InvalidResources(
                "nothing of it is asked for", where=f"{here}.count", found="0", expected="1 or more"
            )
        if resource.type == SLOT and resource.count.min > SLOTS_MAX:
            found = str(resource.count.min)
            raise InvalidResources(
                "too many slots", where=f"{here}.count", found=found, expected=f"at most {SLOTS_MAX}"
            )
        if where.count(".with") >= DEPTH_MAX:
            raise InvalidResources("nested too deep", where=here, expected=f"at most {DEPTH_MAX} levels")
        if resource.type == SLOT and not resource.with_:
            raise InvalidResources(
                "a slot holds nothing", where=here, expected="`with` and at least one resource"
            )
        if under_exclusive and resource.exclusive is False:
            raise InvalidResources(
                "exclusivity conflicts",
                where=here,
                found="exclusive: false",
                expected="no exclusive below a slot",
            )
        inside = under_exclusive or resource.type == SLOT or resource.exclusive is True
        inner = _compile(resource.with_, tracked, f"{here}.with", inside) if resource.with_ else ()
        demands.append(Demand(resource, inner, _needs(inner, tracked)))
    return tuple(demands)


def check_distinct(demands: tuple[Demand, ...]) -> None:
    """No two slots of a request on one node: slots are outermost, or one in each named node."""
    for demand in demands:
        if demand.type != SLOT:
            _check_one_slot(demand, inside_node=False)


def _check_one_slot(demand: Demand, inside_node: bool) -> None:
    one = (demand.count.min, demand.count.max) == (1, 1)
    is_loose = demand.type == SLOT and not inside_node
    if is_loose or (inside_node and demand.with_ and not one):
        raise InvalidResources(
            "distinct nodes, and maybe several slots in one node",
            where="placement",
            found=f"{demand.count.min} {demand.type} {'outside any' if is_loose else 'below a'} node",
            expected="one slot in each named node, or slots without anything around them",
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
