"""Which vertices the slots of a group must not share, with each other or with anybody else.

A group forbids keys (`ExclusionKey`): none of its slots is below a vertex at which one of them is in use. A
group that brings and forbids the same key excludes itself, so that it gets one slot per vertex of the key's
level; slots on distinct nodes are the same rule without a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.engine.graph import Vertex
from penstock.engine.request import Group, Placement
from penstock.engine.vertex_state import Window, is_key_in_use
from penstock.model.exclusion_key import ExclusionKey

__all__ = ["NO_EXCLUSION", "Exclusion", "exclusion_of"]

_NODE: Final = "node"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The rules of one group, by the type of the vertices that they apply to."""

    forbids: Mapping[str, tuple[ExclusionKey, ...]] = field(default_factory=dict)
    one_slot_per: tuple[str, ...] = ()  # types of vertices with at most one slot of the group; sorted
    because_of: tuple[str, ...] = ()  # names of the keys by which the group excludes itself; sorted

    def blocking_key(self, vertex: Vertex, window: Window) -> ExclusionKey | None:
        """A forbidden key that is in use at a vertex during the window."""
        for key in self.forbids.get(vertex.type, ()):
            if is_key_in_use(vertex, key, window):
                return key
        return None

    def blocking_key_around(self, node: Vertex, window: Window) -> ExclusionKey | None:
        """As `blocking_key`, at a node, one of its ancestors, or below it if keys have a level there."""
        keys = (self.blocking_key(at, window) for at in self.vertices_around(node))
        return next((key for key in keys if key is not None), None)

    def vertices_around(self, node: Vertex) -> list[Vertex]:
        """A node, its ancestors, and the vertices below it of the levels that are not among these."""
        found = [node, *node.ancestors()]
        inner = self.forbids.keys() - {vertex.type for vertex in found}
        pending = list(node.below()) if inner else []
        while pending:
            vertex = pending.pop()
            if vertex.type in inner:
                found.append(vertex)
            pending.extend(vertex.below())
        return found


NO_EXCLUSION: Final = Exclusion()
_DISTINCT_NODES: Final = Exclusion(one_slot_per=(_NODE,))


def exclusion_of(group: Group, placement: Placement) -> Exclusion:
    if not group.brings and not group.forbids:
        return _DISTINCT_NODES if placement.distinct_nodes else NO_EXCLUSION
    own = set(group.brings).intersection(group.forbids)
    levels = {key.level for key in own} | ({_NODE} if placement.distinct_nodes else set())
    return Exclusion(
        _by_level(group.forbids), tuple(sorted(levels)), tuple(sorted({key.name for key in own}))
    )


def _by_level(keys: Iterable[ExclusionKey]) -> dict[str, tuple[ExclusionKey, ...]]:
    levels: dict[str, tuple[ExclusionKey, ...]] = {}
    for key in sorted(keys):
        levels[key.level] = (*levels.get(key.level, ()), key)
    return levels
