"""Suggestions for a request that can never run: the nearest request that fits.

One count at a time is reduced by bisection until the engine can satisfy the request: the outermost resource
first, then slots, then the content of a slot. The first count that helps is suggested.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.engine import Engine
from penstock.engine.request import Request
from penstock.model.jobspec import Count, Resource
from penstock.model.resource_types import format_count, format_units

__all__ = ["nearest_fit"]


def nearest_fit(engine: Engine, request: Request) -> str:
    """A clause such as "with 2 nodes instead of 4 it would fit"; "" if no single change helps."""
    if len(request.groups) != 1:
        return ""
    group = request.groups[0]
    for path in _paths(group.resources):
        requested = _at(group.resources, path).count
        most = _largest(engine, request, path, requested.min)
        if most:
            resource = _at(group.resources, path).type
            wanted = format_units(requested.min, resource)
            return f"with {format_count(most, resource)} instead of {wanted} it would fit"
    bare = replace(request, groups=(replace(group, constraint=None),))
    if group.constraint is not None and _fits(engine, bare):
        return "without its constraint it would fit"
    return ""


Path = tuple[int, ...]


def _paths(resources: tuple[Resource, ...], above: Path = ()) -> list[Path]:
    paths: list[Path] = []
    for index, resource in enumerate(resources):
        paths.append((*above, index))
        paths.extend(_paths(resource.with_, (*above, index)))
    return paths


def _at(resources: tuple[Resource, ...], path: Path) -> Resource:
    found = resources[path[0]]
    return found if len(path) == 1 else _at(found.with_, path[1:])


def _with(resources: tuple[Resource, ...], path: Path, count: Count) -> tuple[Resource, ...]:
    """The resources with another count at one path."""
    found = resources[path[0]]
    is_here = len(path) == 1
    changed = (
        replace(found, count=count) if is_here else replace(found, with_=_with(found.with_, path[1:], count))
    )
    return (*resources[: path[0]], changed, *resources[path[0] + 1 :])


def _largest(engine: Engine, request: Request, path: Path, requested: int) -> int:
    """The largest count below the requested one that fits; 0 if none does."""
    low, high = 0, requested
    while high - low > 1:
        middle = (low + high) // 2
        group = request.groups[0]
        resources = _with(group.resources, path, Count(middle, middle))
        if _fits(engine, replace(request, groups=(replace(group, resources=resources),))):
            low = middle
        else:
            high = middle
    return low


def _fits(engine: Engine, request: Request) -> bool:
    return not engine.never(request) and engine.could_ever(request)
