"""The nearest thing that would fit, for a request that can never run.

One dimension at a time is made smaller, by halving, until the engine finds a place: fewer of the outermost
resource, fewer slots, less in a slot. What is told is the first of them that helps.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.engine import Engine, Satisfiable
from penstock.engine.engine import MatchOp
from penstock.engine.request import Request
from penstock.model.jobspec import Count, Resource

__all__ = ["nearest_fit"]


def nearest_fit(engine: Engine, request: Request) -> str:
    """One sentence, or "" if no single change makes it fit."""
    if len(request.groups) != 1:
        return ""
    group = request.groups[0]
    for path in _paths(group.resources):
        asked = _at(group.resources, path).count
        most = _largest(engine, request, path, asked.min)
        if most:
            kind = _at(group.resources, path).type
            return f"with {most} {kind if most == 1 else f'{kind}s'} instead of {asked.min} it would fit"
    bare = replace(request, groups=(replace(group, constraint=None),))
    if group.constraint is not None and _fits(engine, bare):
        return "without its constraint it would fit"
    return ""


Path = tuple[int, ...]


def _paths(resources: tuple[Resource, ...], above: Path = ()) -> list[Path]:
    paths: list[Path] = []
    for place, resource in enumerate(resources):
        paths.append((*above, place))
        paths.extend(_paths(resource.with_, (*above, place)))
    return paths


def _at(resources: tuple[Resource, ...], path: Path) -> Resource:
    found = resources[path[0]]
    return found if len(path) == 1 else _at(found.with_, path[1:])


def _with(resources: tuple[Resource, ...], path: Path, count: Count) -> tuple[Resource, ...]:
    """The same resources, with another count at one place."""
    found = resources[path[0]]
    is_here = len(path) == 1
    told = (
        replace(found, count=count) if is_here else replace(found, with_=_with(found.with_, path[1:], count))
    )
    return (*resources[: path[0]], told, *resources[path[0] + 1 :])


def _largest(engine: Engine, request: Request, path: Path, asked: int) -> int:
    """The largest count below what was asked for that fits; 0 if none does."""
    low, high = 0, asked
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
    return isinstance(engine.match(0, request, 0, MatchOp.SATISFIABILITY, explain=False), Satisfiable)
