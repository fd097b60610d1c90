"""The claims of one part of an allocation counted by vertex, so that some of them can be released alone.

A booking covers the claimed vertices and all their ancestors. Releasing some slots must leave what booking
the remaining claims alone would give, so it must know which vertices have nothing left on or below them.
These counts say so, at the cost of the released claims and their ancestors. They hold for a tree only: with
shared vertices the path to a claim can change with other claims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from penstock.engine.allocation import Slot
from penstock.engine.booking import Claims, Release, VertexClaim, is_in_whole
from penstock.engine.graph import Vertex

__all__ = ["ClaimCounts"]


class ClaimCounts:
    __slots__ = ("_children", "_slots_at", "_types_below", "_users")

    def __init__(self, claims: Claims, slots: Iterable[Slot]) -> None:
        self._children: dict[int, int] = {}  # children that are booked
        self._types_below: dict[int, dict[str, int]] = {}  # booked vertices below, by type
        self._users: dict[int, int] = {}  # grants to slots on the vertex or below
        self._slots_at: dict[int, dict[int, None]] = {}  # slots with a grant on the vertex
        booked: set[int] = set()
        for claim in claims.values():
            at: Vertex | None = claim.vertex if claim.booked else None
            while at is not None and at.index not in booked:
                booked.add(at.index)
                above = at.parent()
                if above is not None:
                    self._children[above.index] = self._children.get(above.index, 0) + 1
                self._shift_types(at, 1)
                at = above
        for slot in slots:
            self.add_grants(slot)

    def drop_slots(self, claims: Claims, slots: Collection[Slot]) -> Release:
        """Removes the claims of slots. A whole claim is removed with its last slot."""
        release = Release()
        whole: dict[int, VertexClaim] = {}
        for slot in slots:
            self.remove_grants(slot)
            for grant in slot.grants:
                for vertex in (grant.vertex, *grant.vertex.ancestors()):
                    claim = claims.get(vertex.index)
                    if claim is not None and claim.whole:
                        whole[vertex.index] = claim
        for slot in slots:
            for grant in slot.grants:
                claim = claims.get(grant.vertex.index)
                if claim is None:
                    continue
                if not claim.exclusive and claim.units > grant.units:
                    release.reduce(claims, claim, grant.units)
                elif not is_in_whole(claims, grant.vertex):
                    release.remove(claims, claim)
        unused = [claim for index, claim in whole.items() if not self._users.get(index)]
        for claim in sorted(unused, key=lambda claim: len(list(claim.vertex.ancestors()))):
            pending = [claim.vertex] if not is_in_whole(claims, claim.vertex) else []
            while pending:
                vertex = pending.pop()
                inner = claims.get(vertex.index)
                if inner is not None:
                    release.remove(claims, inner)
                pending.extend(vertex.below())
        self._leave(claims, release)
        return release

    def drop_vertices(self, claims: Claims, vertices: Iterable[Vertex]) -> Release:
        """Removes the claims on vertices."""
        release = Release()
        for vertex in vertices:
            claim = claims.get(vertex.index)
            if claim is not None:
                release.remove(claims, claim)
        self._leave(claims, release)
        return release

    def slots_at(self, vertices: Iterable[Vertex]) -> list[int]:
        """The slots with a grant on one of these vertices."""
        return list(
            dict.fromkeys(number for vertex in vertices for number in self._slots_at.get(vertex.index, ()))
        )

    def add_grants(self, slot: Slot) -> None:
        for grant in slot.grants:
            self._slots_at.setdefault(grant.vertex.index, {})[slot.number] = None
            for vertex in (grant.vertex, *grant.vertex.ancestors()):
                self._users[vertex.index] = self._users.get(vertex.index, 0) + 1

    def remove_grants(self, slot: Slot) -> None:
        for grant in slot.grants:
            here = self._slots_at.get(grant.vertex.index, {})
            here.pop(slot.number, None)
            if not here:
                self._slots_at.pop(grant.vertex.index, None)
            for vertex in (grant.vertex, *grant.vertex.ancestors()):
                self._users[vertex.index] -= 1
                if not self._users[vertex.index]:
                    del self._users[vertex.index]

    def _leave(self, claims: Claims, release: Release) -> None:
        """Notes the vertices that have nothing left on or below them, and the types that are gone below."""
        pending = [vertex for vertex, _ in release.units.values()]
        while pending:
            vertex = pending.pop()
            claim = claims.get(vertex.index)
            if vertex.index in release.left or (claim is not None and claim.booked):
                continue
            if self._children.get(vertex.index):
                continue
            release.left[vertex.index] = vertex
            claims.pop(vertex.index, None)  # It was named in the request for what is below it.
            self._shift_types(vertex, -1, release)
            above = vertex.parent()
            if above is not None:
                self._children[above.index] -= 1
                if not self._children[above.index]:
                    del self._children[above.index]
                pending.append(above)

    def _shift_types(self, vertex: Vertex, sign: int, release: Release | None = None) -> None:
        for above in vertex.ancestors():
            types = self._types_below.setdefault(above.index, {})
            types[vertex.type] = types.get(vertex.type, 0) + sign
            if types[vertex.type] == 0 and release is not None:
                del types[vertex.type]
                release.unlisted.setdefault(above.index, set()).add(vertex.type)
                if not types:
                    del self._types_below[above.index]
