"""The nodes that a backend reports, as a graph under an engine, and allocations as JSON values.

Facts change the graph through the engine, each at the cost of its node alone. A node's rank is its
position in the order of all nodes: assigned once, kept over restarts, never reused. `booking_of`
converts an allocation of the engine to JSON values, and `restore` books it again from them, so a store needs
to keep nothing else. These values locate units by node, because topology levels may change in between.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.engine import (
    CONTAINMENT,
    AllocationKind,
    Engine,
    Graph,
    Placement,
    Slot,
    Vertex,
    VertexSpec,
    VertexTree,
)
from penstock.engine.allocation import Grant
from penstock.engine.booking import Span, VertexClaim
from penstock.engine.job_allocation import AllocationPart, JobAllocation
from penstock.engine.planner import FOREVER
from penstock.model.exclusion_key import ExclusionKey
from penstock.model.idset import encode_idset
from penstock.protocol.facts import Capacity, ExternalUsageSet, NodeSet
from penstock.sched.former_pools import keys_of_pool, split_grants
from penstock.sched.records import JsonObject

__all__ = ["Cluster", "ClusterNode", "booking_of", "grants_of"]

_ROOT: Final = VertexSpec("cluster", 0, basename="cluster")
_FILTERS: Final = "ALL:core,ALL:cpu,ALL:node"
_NODE: Final = "node"
_LOCATION: Final = re.compile(r"([^/:]+)([/:]?)(.*)", re.DOTALL)


_RecordedAllocation = tuple[int, list[tuple[int, JsonObject, int, int | None]], tuple[int, ...]]


@dataclass(slots=True)
class ClusterNode:
    fact: NodeSet
    rank: int
    vertex: Vertex
    is_drained: bool = False


class Cluster:
    def __init__(self, match_policy: str) -> None:
        graph = Graph()
        graph.add_root(_ROOT)
        self.engine = Engine(graph, policy=match_policy, filters=_FILTERS)
        self.nodes: dict[str, ClusterNode] = {}
        self.is_synced = False  # a snapshot was handled: before that no request counts as unsatisfiable
        self._external_usage: dict[str, ExternalUsageSet] = {}  # also on nodes that are not known yet
        self._external_usage_on: dict[str, dict[str, None]] = {}  # by node
        # nodes whose topology has changed, still at their old position in the graph
        self._to_move: dict[str, None] = {}
        # job, parts, freed slots; until the first snapshot
        self._recorded: list[_RecordedAllocation] = []

    # Nodes

    def set_node(self, fact: NodeSet, rank: int, is_drained: bool) -> bool:
        """Adds or updates a node. Returns whether anything has changed."""
        known = self.nodes.get(fact.node)
        if known is None:
            self._add(fact, rank, is_drained)
            return True
        if known.fact == fact:
            return False
        before, known.fact = known.fact, fact
        if before.topology_levels != fact.topology_levels:
            self._to_move[fact.node] = None
        if before.capacity != fact.capacity:
            self._change_capacity(known, before.capacity, fact.capacity)
        if before.labels != fact.labels:
            for key, _ in before.labels:
                self.engine.remove_property(known.vertex, key)
            for key, value in fact.labels:
                self.engine.set_property(known.vertex, key, value)
        self._update_vertex(known)
        return True

    def remove_node(self, node: str) -> tuple[int, ...]:
        """Removes a node. Returns the jobs that hold nothing any more."""
        known = self.nodes.pop(node, None)
        return self._remove_vertices(known) if known is not None else ()

    def drain(self, node: str, is_drained: bool) -> None:
        known = self.nodes.get(node)
        if known is not None:
            known.is_drained = is_drained
            self._update_vertex(known)

    def apply_updates(self) -> None:
        """Moves the nodes whose topology has changed. Must be called before a match."""
        for name in list(self._to_move):
            known = self.nodes.get(name)
            if known is not None and self.engine.is_booked(known.vertex):
                continue  # It moves when its jobs have ended.
            del self._to_move[name]
            if known is not None:
                self._remove_vertices(known)
                self._add(known.fact, known.rank, known.is_drained)

    # External usage

    def set_external_usage(self, fact: ExternalUsageSet) -> None:
        before = self._external_usage.get(fact.key)
        if before == fact:
            return
        if before is not None:
            self.remove_external_usage(fact.key)
        self._external_usage[fact.key] = fact
        self._external_usage_on.setdefault(fact.node, {})[fact.key] = None
        self._book_external_usage(fact)

    def _book_external_usage(self, fact: ExternalUsageSet) -> None:
        known = self.nodes.get(fact.node)
        if known is not None:
            usage = {resource: units for resource, units in fact.usage if units > 0}
            self.engine.external_usage.set(
                fact.key, known.vertex, usage, standing=fact.standing, brings=fact.brings
            )

    def remove_external_usage(self, key: str) -> None:
        fact = self._external_usage.pop(key, None)
        if fact is not None:
            del self._external_usage_on[fact.node][key]
            if not self._external_usage_on[fact.node]:
                del self._external_usage_on[fact.node]
        self.engine.external_usage.remove(key)

    def external_usage_keys(self) -> list[str]:
        return list(self._external_usage)

    def external_usage(self, key: str) -> ExternalUsageSet | None:
        return self._external_usage.get(key)

    # Allocations

    def assignments(self, job: int) -> dict[int, str]:
        """The slots of a job, and the node of each."""
        holder = self.engine.jobs.get(job)
        slots = () if holder is None else (slot for part in holder.parts.values() for slot in part.slots)
        return {slot.number: slot.node.name for slot in slots if slot.node is not None}

    def restore_later(
        self, job: int, rows: list[tuple[int, JsonObject, int, int | None]], freed: tuple[int, ...]
    ) -> None:
        """Keeps a recorded allocation until its nodes are known."""
        self._recorded.append((job, rows, freed))

    def restore_recorded(self, active: Collection[int]) -> list[int]:
        """Books the recorded allocations of active jobs. Returns the jobs whose allocation is lost."""
        recorded, self._recorded = self._recorded, []
        jobs = [number for number, _, _ in recorded if number in active]
        for number, rows, freed in recorded:
            if number in active:
                self.restore(number, rows, freed)
        return [number for number in jobs if number not in self.engine.jobs]

    def restore(
        self, job: int, rows: Iterable[tuple[int, JsonObject, int, int | None]], freed: Iterable[int]
    ) -> None:
        """Books a recorded allocation, except on nodes that are gone."""
        parts: dict[int, AllocationPart] = {}
        placement = Placement()
        for key, data, start_s, end_s in rows:
            claims = {claim.vertex.index: claim for claim in self._claims(data)}
            rules = data.get("placement")
            if isinstance(rules, list):
                placement = Placement(bool(rules[0]), str(rules[1]))
            span = Span(start_s, FOREVER if end_s is None else end_s, live=True)
            parts[key] = AllocationPart(claims, span, tuple(self._slots(data)))
        made = 1 + max((slot.number for part in parts.values() for slot in part.slots), default=-1)
        last = max(parts, default=0)
        kept = {
            key: part for key, part in parts.items() if any(claim.booked for claim in part.claims.values())
        }
        if not kept:
            return
        top = self._domain([claim for part in kept.values() for claim in part.claims.values()], placement)
        if top is None:
            placement, top = Placement(placement.distinct_nodes), self.engine.graph.root
        self.engine.rebook_job(
            JobAllocation(job, AllocationKind.ALLOCATED, placement, top, kept, last + 1, made)
        )
        gone = list(freed)
        if gone:
            self.engine.release_slots(job, gone)

    def _domain(self, claims: list[VertexClaim], placement: Placement) -> Vertex | None:
        """The domain that contains the whole allocation; None if it is not one domain any more."""
        graph = self.engine.graph
        if not placement.within:
            return graph.root
        domains = {
            above.index: above
            for claim in claims
            if claim.booked
            for above in (claim.vertex, *claim.vertex.ancestors())
            if above.type == placement.within
        }
        return next(iter(domains.values())) if len(domains) == 1 else None

    def _claims(self, data: Mapping[str, object]) -> list[VertexClaim]:
        found = data.get("marks")
        claims: list[VertexClaim] = []
        for location, units, booked, exclusive, label, whole in found if isinstance(found, list) else ():
            vertex = self._vertex_at(location) if not keys_of_pool(location, units) else None
            if vertex is not None:
                claims.append(
                    VertexClaim(vertex, units, bool(booked), bool(exclusive), label, None, bool(whole))
                )
        return claims

    def _slots(self, data: Mapping[str, object]) -> list[Slot]:
        found = data.get("slots")
        slots: list[Slot] = []
        for number, group, node, recorded, *keys in found if isinstance(found, list) else ():
            grants_data, brings = split_grants(recorded)
            grants = ((self._vertex_at(location), units) for location, units in grants_data)
            kept = tuple(Grant(vertex, units) for vertex, units in grants if vertex is not None)
            brings += tuple(ExclusionKey(*key) for key in (keys[0] if keys else ()))
            slots.append(Slot(group, self._vertex_at(node) if node else None, kept, number, brings))
        return slots

    def _vertex_at(self, location: str) -> Vertex | None:
        """The vertex at a recorded location; None if its node is gone.

        A pool that the node does not report at present (a device plugin may be late) is created with size 0,
        so that its recorded bookings are not free when it returns.
        """
        graph = self.engine.graph
        if location.startswith("/"):
            return next(iter(graph.at_path(location)), None)
        found = _LOCATION.fullmatch(location)
        known = self.nodes.get(found[1]) if found is not None else None
        if found is None or known is None:
            return None
        if found[2] == ":":
            return self._pool(known, found[3])
        return next(iter(graph.at_path(known.vertex.path() + location[len(found[1]) :])), None)

    def _pool(self, known: ClusterNode, resource: str) -> Vertex:
        for vertex in known.vertex.below(CONTAINMENT):
            if vertex.type == resource:
                return vertex
        spec = VertexSpec(resource, 0, rank=known.rank, size=0, divisible=True)
        return self.engine.add(known.vertex, VertexTree(spec))

    # Graph

    def _add(self, fact: NodeSet, rank: int, is_drained: bool) -> None:
        graph = self.engine.graph
        parent = graph.root
        missing = list(fact.topology_levels)
        while missing:
            level, name = missing[0]
            found = [v for v in graph.at_path(f"{parent.path()}/{name}") if v.type == level]
            if not found:
                break
            parent = found[0]
            del missing[0]
        spec = VertexSpec(_NODE, rank, name=fact.node, rank=rank, properties=dict(fact.labels))
        units = (unit for capacity in fact.capacity for unit in _unit_specs(capacity, 0, rank))
        tree = VertexTree(spec, tuple(VertexTree(unit) for unit in units))
        for level, name in reversed(missing):
            tree = VertexTree(VertexSpec(level, -1, name=name), (tree,))
        vertex = self.engine.add(parent, tree)
        for _ in missing:
            vertex = next(iter(vertex.below()))
        known = self.nodes[fact.node] = ClusterNode(fact, rank, vertex, is_drained)
        self._update_vertex(known)
        for key in self._external_usage_on.get(fact.node, ()):
            self._book_external_usage(self._external_usage[key])

    def _change_capacity(
        self, known: ClusterNode, before: tuple[Capacity, ...], after: tuple[Capacity, ...]
    ) -> None:
        had = {capacity.resource: capacity for capacity in before}
        wanted = {capacity.resource: capacity for capacity in after}
        for resource in [*had, *(resource for resource in wanted if resource not in had)]:
            old, new = (
                had.get(resource),
                wanted.get(resource, Capacity(resource, 0, resource in had and had[resource].divisible)),
            )
            if old == new:
                continue
            units = [vertex for vertex in known.vertex.below(CONTAINMENT) if vertex.type == resource]
            if new.divisible and units:
                self.engine.resize(units[0], new.units)
            else:
                for vertex in units[new.units :] if not new.divisible else ():
                    self.engine.remove(vertex)
                for spec in _unit_specs(new, len(units), known.rank):
                    self.engine.add(known.vertex, VertexTree(spec))
        for vertex in list(known.vertex.below(CONTAINMENT)):
            # A pool with bookings stays until a later change.
            is_booked = vertex.state is not None and vertex.state.bookings
            if vertex.divisible and vertex.type not in wanted and not is_booked:
                self.engine.remove(vertex)

    def _remove_vertices(self, known: ClusterNode) -> tuple[int, ...]:
        """Removes the vertices of a node. Returns the jobs that hold nothing any more."""
        for key in self._external_usage_on.get(known.fact.node, ()):
            self.engine.external_usage.remove(key)
        return self.engine.remove(known.vertex).emptied

    def _update_vertex(self, known: ClusterNode) -> None:
        self.engine.set_status(known.vertex, known.fact.up and not known.is_drained)


def _unit_specs(capacity: Capacity, have: int, rank: int) -> list[VertexSpec]:
    """The vertices of a resource on a node that has the first `have` of them: one pool, or one per unit."""
    if capacity.divisible:
        return [VertexSpec(capacity.resource, 0, rank=rank, size=capacity.units, divisible=True)]
    return [VertexSpec(capacity.resource, number, rank=rank) for number in range(have, capacity.units)]


def booking_of(part: AllocationPart, placement: Placement) -> dict[str, object]:
    """A part of an allocation as JSON values."""
    claims = [
        [_location_of(claim.vertex), claim.units, claim.booked, claim.exclusive, claim.label, claim.whole]
        for claim in part.claims.values()
    ]
    slots = [
        [
            slot.number,
            slot.group,
            _location_of(slot.node) if slot.node is not None else "",
            [[_location_of(grant.vertex), grant.units] for grant in slot.grants],
            *([[[key.level, key.name, key.scope] for key in slot.brings]] if slot.brings else ()),
        ]
        for slot in part.slots
    ]
    document: dict[str, object] = {"marks": claims, "slots": slots}
    if placement != Placement():
        document["placement"] = [placement.distinct_nodes, placement.within]
    return document


def _location_of(vertex: Vertex) -> str:
    """`NODE`, `NODE/UNIT`, or `NODE:RESOURCE` for a pool; above the nodes, the path of the vertex."""
    node: Vertex | None = vertex
    while node is not None and node.type != _NODE:
        node = node.parent()
    if node is None:
        return vertex.path()
    if vertex.divisible:
        return f"{node.name}:{vertex.type}"
    return node.name + vertex.path()[len(node.path()) :]


def grants_of(slot: Slot) -> tuple[tuple[str, str, int], ...]:
    """The units of a slot by resource: the ids of whole units, and the count."""
    ids: dict[str, list[int]] = {}
    units: dict[str, int] = {}
    for grant in slot.grants:
        resource = grant.vertex.type
        units[resource] = units.get(resource, 0) + grant.units
        if not grant.vertex.divisible:
            ids.setdefault(resource, []).append(grant.vertex.id)
    return tuple(
        (resource, encode_idset(ids[resource]) if resource in ids else "", count)
        for resource, count in units.items()
    )
