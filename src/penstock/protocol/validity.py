"""Which facts can be handled and recorded: bounds on texts and numbers that every backend keeps to.

The bounds are far beyond what a cluster has. They exist so that a defect of a backend, or a value that
somebody chose to do harm, is refused in words before it reaches the engine or a store. `/` and `:` separate
the parts of recorded locations, so the name of a node contains neither.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import isfinite
from typing import Final

from penstock.model.exclusion_key import ExclusionKey
from penstock.model.text import find_control
from penstock.protocol.facts import Capacity, ExternalUsageSet, MemberSet, MemberStatus, NodeSet, WorkloadSet

__all__ = ["TEXT_MAX", "bounded_status", "bounded_usage", "is_key", "problem_of"]

TEXT_MAX: Final = 512  # characters; a store indexes keys
_UNITS_MAX: Final = 1 << 60
_WHOLE_UNITS_MAX: Final = 1 << 13  # each is a vertex
_SIZE_MAX: Final = 1 << 20
_INDEX_MAX: Final = 1 << 53
_CLASS_MAX: Final = 1 << 53
_TIME_MAX: Final = 1e11
_URGENCY_MAX: Final = 31
_STATUS_MAX: Final = 1 << 31
_LEVELS_MAX: Final = 16
_WEIGHT_MAX: Final = 1 << 16


def is_key(text: str) -> bool:
    """Whether a text can identify an object."""
    return 0 < len(text) <= TEXT_MAX and not find_control(text)


def problem_of(fact: NodeSet | WorkloadSet | MemberSet) -> str:
    """What is wrong with a fact, in words; empty if nothing is."""
    match fact:
        case NodeSet():
            return _node(fact)
        case WorkloadSet():
            return _workload(fact)
        case MemberSet():
            return _member(fact)


# Reports of what exists cannot be refused. Their numbers are moved into their bounds.


def bounded_usage(fact: ExternalUsageSet) -> ExternalUsageSet | None:
    """None if no node can be meant. Usage beyond the bounds counts as the most that there can be."""
    if not is_key(fact.node):
        return None
    usage, brings = _bounded_units(fact.usage), _bounded_keys(fact.brings)
    return fact if (usage, brings) == (fact.usage, fact.brings) else replace(fact, usage=usage, brings=brings)


def bounded_status(fact: MemberStatus, now: float) -> MemberStatus | None:
    """None if no member or node can be meant."""
    if not is_key(fact.member) or (fact.node and not is_key(fact.node)):
        return None
    at = fact.at if isfinite(fact.at) and 0 <= fact.at <= _TIME_MAX else now
    status = fact.status if 0 <= fact.status <= _STATUS_MAX else _STATUS_MAX
    usage, brings = _bounded_units(fact.usage), _bounded_keys(fact.brings)
    is_bounded = (at, status, usage, brings) == (fact.at, fact.status, fact.usage, fact.brings)
    return fact if is_bounded else replace(fact, usage=usage, brings=brings, at=at, status=status)


@lru_cache(maxsize=4096)
def _bounded_units(usage: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    summed: dict[str, int] = {}
    for resource, units in usage:
        if is_key(resource):
            summed[resource] = min(summed.get(resource, 0) + max(units, 0), _UNITS_MAX)
    return tuple(summed.items())


def _bounded_keys(brings: tuple[ExclusionKey, ...]) -> tuple[ExclusionKey, ...]:
    return brings if not any(map(_is_bad, brings)) else tuple(key for key in brings if not _is_bad(key))


# Facts that can be refused


def _node(fact: NodeSet) -> str:
    if "/" in fact.node or ":" in fact.node:
        return f"the name of the node contains / or : (found {fact.node[:80]!r})"
    resources = [capacity.resource for capacity in fact.capacity]
    level_names = [level for level, _ in fact.topology_levels]
    domains = [name for _, name in fact.topology_levels]
    if len(set(resources)) != len(resources):
        return "its capacity names a resource twice"
    if any("/" in name for name in domains):
        return "the name of a topology domain contains /"
    if (
        len(set(level_names)) != len(level_names)
        or len(level_names) > _LEVELS_MAX
        or {"node", "cluster"} & set(level_names)
    ):
        return f"its topology levels are not at most {_LEVELS_MAX} different ones above the node"
    return (
        _text("the name of the node", fact.node)
        or _text("the name of a resource", *resources)
        or _text("the name of a topology level", *level_names)
        or _text("the name of a topology domain", *domains)
        or next(filter(None, map(_capacity, fact.capacity)), "")
    )


def _capacity(capacity: Capacity) -> str:
    if not capacity.divisible and "/" in capacity.resource:
        return f"the name of a resource of whole units contains / (found {capacity.resource[:80]!r})"
    most = _UNITS_MAX if capacity.divisible else _WHOLE_UNITS_MAX
    return _number(f"its capacity of {capacity.resource}", capacity.units, 0, most)


def _workload(fact: WorkloadSet) -> str:
    return (
        _text("the key of the workload", fact.workload)
        or _text("its name", fact.name or "-")
        or _text("its owner", fact.owner or "-")
        or _text("its topology level", fact.within or "-")
        or _number("its size", fact.size, 0, _SIZE_MAX)
        or _number("its assembly timeout", fact.assembly_timeout_s, 0, _TIME_MAX)
        or _number("its begin time", fact.begin_at, 0, _TIME_MAX)
        or _number("its time limit", fact.limit_s, 1, _TIME_MAX)
        or _number("its deadline", fact.deadline_at, 0, _TIME_MAX)
        or _number("its class value", fact.class_value, -_CLASS_MAX, _CLASS_MAX)
        or _number("its urgency", fact.urgency, 0, _URGENCY_MAX)
    )


def _member(fact: MemberSet) -> str:
    return (
        _text("the key of the member", fact.member, fact.workload)
        or _text("its name", fact.name or "-")
        or _number("its index", fact.index, 0, _INDEX_MAX)
        or _requests(fact.requests)
        or _exclusion_keys(fact.brings, fact.forbids)
        or next(filter(None, (_weight(weight) for _, weight in fact.prefers)), "")
    )


def _weight(weight: int) -> str:
    return _number("the weight of a preference", weight, 1, _WEIGHT_MAX)


@lru_cache(maxsize=4096)
def _requests(requests: tuple[tuple[str, int], ...]) -> str:
    if len({resource for resource, _ in requests}) != len(requests):
        return "it requests a resource twice"
    if not any(units > 0 for _, units in requests):
        return "it requests nothing"
    named = _text("the name of a resource", *(resource for resource, _ in requests))
    counted = (_number(f"its request of {resource}", units, 0, _UNITS_MAX) for resource, units in requests)
    return named or next(filter(None, counted), "")


@lru_cache(maxsize=4096)
def _exclusion_keys(brings: tuple[ExclusionKey, ...], forbids: tuple[ExclusionKey, ...]) -> str:
    bad = next((key for key in (*brings, *forbids) if _is_bad(key)), None)
    return "" if bad is None else f"an exclusion key cannot be recorded (found {bad.name[:80]!r})"


def _is_bad(key: ExclusionKey) -> bool:
    return not is_key(key.level) or not is_key(key.name) or (bool(key.scope) and not is_key(key.scope))


def _text(what: str, *texts: str) -> str:
    for text in texts:
        if not is_key(text):
            expected = f"1 to {TEXT_MAX} printable characters"
            return f"{what} is not valid (found {text[:80]!r}, expected {expected})"
    return ""


def _number(what: str, value: float | None, least: float, most: float) -> str:
    if value is None or (isfinite(value) and least <= value <= most):
        return ""
    return f"{what} is not valid (found {value}, expected {least:g} to {most:g})"
