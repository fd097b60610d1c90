"""What is asked of the engine: groups of resources that all start together, or not at all.

A `Group` is a tree of resources as a jobspec writes it, with its own constraint; a request has one
or more of them, a limit, and rules of placement that hold for all. A jobspec is one way to make a
request (`request_of`); a group of unlike pods is another. `compile_wants` checks the shape and adds
to every level what one of it needs below, so that a walk can turn back early.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from penstock.engine.graph import LEVELS_MAX
from penstock.errors import BadRequest
from penstock.model.constraint import Constraint
from penstock.model.jobspec import Count, Jobspec, Resource

__all__ = [
    "SLOT",
    "SLOTS_MAX",
    "BadShape",
    "Group",
    "HoldsNothing",
    "Placement",
    "Request",
    "Want",
    "check_distinct",
    "compile_wants",
    "request_of",
    "slot_request",
]

SLOT: Final = "slot"
SLOTS_MAX: Final = 1 << 16  # in one request


class BadShape(BadRequest):
    """Resources that contradict each other, whatever the graph."""


class HoldsNothing(BadShape):
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


class Want:
    """A level of a group: the resource, and what one of it needs below in units of filter types."""

    __slots__ = ("count", "exclusive", "label", "needs", "slot", "type", "with_")

    def __init__(self, resource: Resource, with_: tuple[Want, ...], needs: dict[str, int]) -> None:
        self.type = resource.type
        self.count: Count = resource.count
        self.exclusive = resource.exclusive
        self.label = resource.label
        self.with_ = with_
        self.needs = needs
        self.slot: Want | None = next((want for want in with_ if want.type == SLOT), None)


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
    inner = tuple(Resource(kind, Count(units, units)) for kind, units in amounts.items())
    slot = Resource(SLOT, Count(slots, slots), with_=inner, label="default")
    return Request((Group((slot,), constraint),), duration_s, placement)


def compile_wants(
    resources: tuple[Resource, ...], tracked: frozenset[str], *, nodes_whole: bool = False
) -> tuple[Want, ...]:
    """Checks the shape of a group and prepares it for the walk.

    With `nodes_whole` every node that is touched is held, so a request may do without a slot.
    """
    if not resources:
        raise BadShape("nothing is asked for", where="resources", expected="at least one resource")
    wants = _compile(resources, tracked, "resources", under_exclusive=False)
    if not nodes_whole and not _books_something(wants):
        raise HoldsNothing
    return wants


def _compile(
    resources: tuple[Resource, ...], tracked: frozenset[str], where: str, under_exclusive: bool
) -> tuple[Want, ...]:
    seen: set[str] = set()
    wants: list[Want] = []
    for place, resource in enumerate(resources):
        here = f"{where}[{place}]"
        if resource.type in seen:
            raise BadShape(
                f"siblings in jobspec request same resource type : {resource.type}",
                where=here,
                expected="one entry per type at a level",
            )
        if SLOT in seen or (resource.type == SLOT and seen):
            raise BadShape("a slot has siblings", where=here, expected="a slot alone at its level")
        seen.add(resource.type)
        if resource.count.min < 1:
            raise BadShape(
                "nothing of it is asked for", where=f"{here}.count", found="0", expected="1 or more"
            )
        if resource.type == SLOT and resource.count.min > SLOTS_MAX:
            found = str(resource.count.min)
            raise BadShape(
                "too many slots", where=f"{here}.count", found=found, expected=f"at most {SLOTS_MAX}"
            )
        if where.count(".with") >= LEVELS_MAX:
            raise BadShape("nested too deep", where=here, expected=f"at most {LEVELS_MAX} levels")
        if resource.type == SLOT and not resource.with_:
            raise BadShape("a slot holds nothing", where=here, expected="`with` and at least one resource")
        if under_exclusive and resource.exclusive is False:
            raise BadShape(
                "exclusivity conflicts",
                where=here,
                found="exclusive: false",
                expected="no exclusive below a slot",
            )
        inside = under_exclusive or resource.type == SLOT or resource.exclusive is True
        inner = _compile(resource.with_, tracked, f"{here}.with", inside) if resource.with_ else ()
        wants.append(Want(resource, inner, _needs(inner, tracked)))
    return tuple(wants)


def check_distinct(wants: tuple[Want, ...]) -> None:
    """No two slots of a request on one node: slots are outermost, or one in each named node."""
    for want in wants:
        if want.type != SLOT:
            _check_one_slot(want, inside_node=False)


def _check_one_slot(want: Want, inside_node: bool) -> None:
    one = (want.count.min, want.count.max) == (1, 1)
    is_loose = want.type == SLOT and not inside_node
    if is_loose or (inside_node and want.with_ and not one):
        raise BadShape(
            "distinct nodes, and maybe several slots in one node",
            where="placement",
            found=f"{want.count.min} {want.type} {'outside any' if is_loose else 'below a'} node",
            expected="one slot in each named node, or slots without anything around them",
        )
    for inner in want.with_ if want.type != SLOT else ():
        _check_one_slot(inner, inside_node or want.type == "node")


def _needs(inner: tuple[Want, ...], tracked: frozenset[str]) -> dict[str, int]:
    needs: dict[str, int] = {}
    for want in inner:
        least = want.count.min
        if want.type in tracked:
            needs[want.type] = needs.get(want.type, 0) + least
        for kind, units in want.needs.items():
            needs[kind] = needs.get(kind, 0) + least * units
    return needs


def _books_something(wants: tuple[Want, ...]) -> bool:
    return any(want.type == SLOT or want.exclusive is True or _books_something(want.with_) for want in wants)
