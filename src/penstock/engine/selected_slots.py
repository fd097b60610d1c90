"""The slots of a selection: what each member gets, and on which node."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.engine.allocation import Grant, Slot
from penstock.engine.candidates import Choice, Selection
from penstock.engine.graph import Vertex
from penstock.engine.request import Group
from penstock.engine.walker import NODE

__all__ = ["slots_of"]


def slots_of(selections: Iterable[Selection], groups: Iterable[Group]) -> tuple[Slot, ...]:
    """The slots of selections, one for each group."""
    slots: list[Slot] = []
    for number, (selection, group) in enumerate(zip(selections, groups, strict=True)):
        for outer in selection.slots():
            grants = [Grant(choice.vertex, choice.units) for choice in _flatten(outer)]
            slots.append(Slot(number, _node_of(outer[0].vertex), tuple(grants), brings=group.brings))
    return tuple(slots)


def _flatten(choices: list[Choice]) -> list[Choice]:
    flat: list[Choice] = []
    pending = list(reversed(choices))
    while pending:
        choice = pending.pop()
        flat.append(choice)
        pending.extend(reversed(choice.inner))
    return flat


def _node_of(vertex: Vertex) -> Vertex | None:
    at: Vertex | None = vertex
    while at is not None and at.type != NODE:
        at = at.parent()
    return at
