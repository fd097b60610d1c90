"""The nodes that a backend reports, as a graph under an engine.

Facts change the graph through the engine, each at the cost of its node alone. A node's rank is its
position in the order of all nodes: assigned once, kept over restarts, never reused. Recorded allocations
are booked again when their nodes are known. What a node offered before a change is kept until
`take_node_changes`, which returns each changed node once, however often it has changed.

A unit that its node does not report any more is removed; if a job holds it, it is retired: down, so that
nothing else is placed there, and removed when the job releases it. If it is reported again, it is the same
unit, and still in use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
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
from penstock.engine.booking import VertexClaim
from penstock.engine.graph_updates import Removal
from penstock.engine.job_allocation import AllocationPart, JobAllocation
from penstock.engine.plain_slots import NodeChange, NodeOffer, offer_of
from penstock.model.idset import encode_idset
from penstock.protocol.facts import Capacity, ExternalUsageSet, NodeSet
from penstock.sched.allocation_records import part_of, placement_of_record
from penstock.sched.records import AllocationNew

__all__ = ["Cluster", "ClusterNode", "RecordedAllocation", "Restored", "grants_of"]

_ROOT: Final = VertexSpec("cluster", 0, basename="cluster")
_FILTERS: Final = "ALL:core,ALL:cpu,ALL:node"
_NODE: Final = "node"
_LOCATION: Final = re.compile(r"([^/:]+)([/:]?)(.*)", re.DOTALL)
_UNIT: Final = re.compile(r"(.*?)(0|[1-9][0-9]*)", re.DOTALL)
_NUMBER: Final = re.compile(r"0|[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class RecordedAllocation:
    job: int
    parts: list[AllocationNew]
    parts_made: int
    slots_made: int


@dataclass(frozen=True, slots=True)
class Restored:
    """A job whose recorded allocation was booked again, and what is gone with its nodes."""

    job: int
    lost_slots: tuple[int, ...]
    lost_parts: tuple[int, ...]


@dataclass(slots=True)
class ClusterNode:
    fact: NodeSet
    rank: int
    vertex: Vertex
    is_drained: bool = False
    is_blocked: bool = False  # what uses it is not known, so it gets nothing new


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
        self._offers_before: dict[str, NodeOffer | None] = {}  # of nodes that have changed
        # By job: units (indexes) that it held when they were retired. They may be back, or gone with a node.
        self._retired: dict[int, dict[int, None]] = {}
        self._recorded: list[RecordedAllocation] = []  # until the first snapshot

    def copy(self) -> Cluster:
        """An independent cluster with a copy of the engine, for forecasts and what-if."""
        other = Cluster.__new__(Cluster)
        other.engine = self.engine.copy()
        vertices = other.engine.graph.vertices
        other.nodes = {
            name: replace(known, vertex=vertices[known.vertex.index]) for name, known in self.nodes.items()
        }
        other.is_synced = self.is_synced
        other._external_usage = dict(self._external_usage)
        other._external_usage_on = {node: dict(keys) for node, keys in self._external_usage_on.items()}
        other._to_move = dict(self._to_move)
        other._retired = {job: dict(units) for job, units in self._retired.items()}
        other._offers_before = dict(self._offers_before)
        other._recorded = list(self._recorded)
        return other

    # Nodes

    def set_node(self, fact: NodeSet, rank: int, is_drained: bool) -> bool:
        """Adds or updates a node. Returns whether anything has changed."""
        known = self.nodes.get(fact.node)
        if known is not None and known.fact == fact:
            return False
        self._note_change(fact.node)
        if known is None:
            self._add(fact, rank, is_drained)
            return True
        before, known.fact = known.fact, fact
        if before.topology_levels != fact.topology_levels:
            self._to_move[fact.node] = None
        if before.capacity != fact.capacity:
            # Each unit that comes or goes would distribute the external usage over all of them again.
            usage = [self._external_usage[key] for key in self._external_usage_on.get(fact.node, ())]
            for one in usage:
                self.engine.external_usage.remove(one.key)
            self._change_capacity(known, before.capacity, fact.capacity)
            for one in usage:
                self._book_external_usage(one)
        if before.labels != fact.labels:
            old, new = dict(before.labels), dict(fact.labels)
            for key in old:
                if key not in new:
                    self.engine.remove_property(known.vertex, key)
            for key, value in new.items():
                if old.get(key) != value:
                    self.engine.set_property(known.vertex, key, value)
        self._update_vertex(known)
        return True

    def remove_node(self, node: str) -> Removal:
        """Removes a known node. Returns the jobs that had something on it."""
        self._note_change(node)
        return self._remove_vertices(self.nodes.pop(node))

    def drain(self, node: str, is_drained: bool) -> None:
        known = self.nodes.get(node)
        if known is not None:
            known.is_drained = is_drained
            self._update_vertex(known)

    def block(self, node: str, is_blocked: bool) -> None:
        """Keeps everything off a node whose usage is not known."""
        known = self.nodes.get(node)
        if known is not None:
            self._note_change(node)
            known.is_blocked = is_blocked
            self._update_vertex(known)

    def remove_retired(self, job: int) -> None:
        """Removes the retired units that a job has released."""
        graph = self.engine.graph
        for index in list(self._retired.get(job, ())):
            unit = graph.vertices.get(index)
            is_retired = unit is not None and not unit.up
            if unit is not None and is_retired and job in _holders(unit):
                continue
            del self._retired[job][index]
            if unit is not None and is_retired and not _holders(unit):
                node = unit.parent()
                if node is not None:
                    self._note_change(node.name)
                self.engine.remove(unit)
        if not self._retired.get(job, True):
            del self._retired[job]

    def apply_updates(self) -> None:
        """Moves the nodes whose topology has changed. Must be called before a match."""
        for name in list(self._to_move):
            known = self.nodes.get(name)
            if known is not None and self.engine.is_booked(known.vertex):
                continue  # It moves when its jobs have ended.
            del self._to_move[name]
            if known is not None:
                self._note_change(name)
                self._remove_vertices(known)
                self._add(known.fact, known.rank, known.is_drained)
                if known.is_blocked:
                    self.block(name, True)

    # Changes of nodes

    def _note_change(self, node: str) -> None:
        """Must be called before a change of what a node offers: of its fact, place or standing usage."""
        if node not in self._offers_before:
            self._offers_before[node] = self._offer(node)

    def _offer(self, node: str) -> NodeOffer | None:
        known = self.nodes.get(node)
        return offer_of(known.vertex, self.engine.external_usage) if known is not None else None

    @property
    def has_node_changes(self) -> bool:
        return bool(self._offers_before)

    def take_node_changes(self) -> list[NodeChange]:
        """The nodes that offer something else than at the last call, in the order of their first change."""
        taken, self._offers_before = self._offers_before, {}
        changes = (NodeChange(before, self._offer(node)) for node, before in taken.items())
        return [change for change in changes if change.before != change.after]

    # External usage

    def set_external_usage(self, fact: ExternalUsageSet) -> None:
        before = self._external_usage.get(fact.key)
        if before == fact:
            return
        if before is not None:
            self.remove_external_usage(fact.key)
        if fact.standing:
            self._note_change(fact.node)
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
            if fact.standing:
                self._note_change(fact.node)
            del self._external_usage_on[fact.node][key]
            if not self._external_usage_on[fact.node]:
                del self._external_usage_on[fact.node]
        self.engine.external_usage.remove(key)

    def all_external_usage(self) -> dict[str, ExternalUsageSet]:
        return dict(self._external_usage)

    def external_usage_keys(self) -> list[str]:
        return list(self._external_usage)

    def external_usage(self, key: str) -> ExternalUsageSet | None:
        return self._external_usage.get(key)

    def is_overcommitted(self, node: str) -> bool:
        """Whether jobs and external usage together have more of a node than it provides."""
        known = self.nodes.get(node)
        for vertex in known.vertex.below() if known is not None else ():
            if vertex.state is not None:
                booked = sum(one.units for one in vertex.state.bookings.values() if one.live)
                if booked + sum(vertex.state.external_units) > vertex.size:
                    return True
        return False

    # Allocations

    def assignments(self, job: int) -> dict[int, str]:
        """The slots of a job, and the node of each."""
        holder = self.engine.jobs.get(job)
        slots = () if holder is None else (slot for part in holder.parts.values() for slot in part.slots)
        return {slot.number: slot.node.name for slot in slots if slot.node is not None}

    def restore_later(
        self, job: int, parts: list[AllocationNew], *, parts_made: int = 0, slots_made: int = 0
    ) -> None:
        """Keeps a recorded allocation until its nodes are known."""
        self._recorded.append(RecordedAllocation(job, parts, parts_made, slots_made))

    def take_recorded(self) -> list[RecordedAllocation]:
        """The recorded allocations that are not booked yet."""
        recorded, self._recorded = self._recorded, []
        return recorded

    def restore(self, recorded: RecordedAllocation) -> Restored:
        """Books a recorded allocation, except on nodes that are gone."""
        job = recorded.job
        parts: dict[int, AllocationPart] = {}
        placement = Placement()
        down: list[Vertex] = []  # units that their node does not report
        for record in recorded.parts:
            part = part_of(record, lambda location: self._vertex_at(location, down))
            if any(claim.booked for claim in part.claims.values()):
                parts[record.part] = part
            placement = placement_of_record(record)
        kept = {slot.number: key for key, part in parts.items() for slot in part.slots}
        lost = tuple(
            slot.number for record in recorded.parts for slot in record.slots if slot.number not in kept
        )
        lost_parts = tuple(record.part for record in recorded.parts if record.part not in parts)
        if parts:
            claims = [claim for part in parts.values() for claim in part.claims.values()]
            top = self._domain(claims, placement)
            if top is None:
                placement, top = Placement(placement.distinct_nodes), self.engine.graph.root
            parts_made = max(recorded.parts_made, *(key + 1 for key in parts))
            slots_made = max(recorded.slots_made, *(number + 1 for number in kept), 0)
            self.engine.rebook_job(
                JobAllocation(job, AllocationKind.ALLOCATED, placement, top, parts, parts_made, slots_made)
            )
        for unit in {unit.index: unit for unit in down}.values():
            self._retire(unit)
        return Restored(job, lost, lost_parts)

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

    def _vertex_at(self, location: str, down: list[Vertex]) -> Vertex | None:
        """The vertex at a recorded location; None if its node is gone.

        A pool that the node does not report at present (a device plugin may be late) is created with size 0,
        so that its recorded bookings are not free when it returns. For the same reason a unit that is not
        reported is created, to be retired; it is appended to `down`.
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
        if not found[3]:
            return known.vertex
        unit = next(iter(graph.at_path(f"{known.vertex.path()}/{found[3]}")), None)
        if unit is None:
            unit = self._missing_unit(known, found[3])
        if unit is not None and not unit.up:
            down.append(unit)
        return unit

    def _missing_unit(self, known: ClusterNode, name: str) -> Vertex | None:
        """Adds a unit that the node does not report, by its name: a resource and a number."""
        found = _UNIT.fullmatch(name)
        if found is None:
            return None
        resource = max(
            (one for one in self.engine.graph.types() if _is_unit_of(one, name)), key=len, default=found[1]
        )
        number = int(name[len(resource) :])
        return self.engine.add(
            known.vertex, VertexTree(VertexSpec(resource, number, rank=known.rank, up=False))
        )

    def _pool(self, known: ClusterNode, resource: str) -> Vertex:
        for vertex in known.vertex.below(CONTAINMENT):
            if vertex.type == resource and vertex.divisible:
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
        units = (unit for capacity in fact.capacity for unit in _unit_specs(capacity, rank))
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
            vertices = [vertex for vertex in known.vertex.below(CONTAINMENT) if vertex.type == resource]
            for pool in (vertex for vertex in vertices if vertex.divisible):
                self.engine.resize(pool, new.units if new.divisible else 0)
            for unit in (vertex for vertex in vertices if not vertex.divisible):
                if new.divisible or unit.id >= new.units:
                    self._retire(unit)
                else:
                    self.engine.set_status(unit, True)
            have = {vertex.id for vertex in vertices if vertex.divisible is new.divisible}
            for spec in _unit_specs(new, known.rank):
                if spec.id not in have:
                    self.engine.add(known.vertex, VertexTree(spec))
        for vertex in list(known.vertex.below(CONTAINMENT)):
            # A pool with bookings stays until a later change.
            is_booked = vertex.state is not None and vertex.state.bookings
            is_reported = vertex.type in wanted and wanted[vertex.type].divisible
            if vertex.divisible and not is_reported and not is_booked:
                self.engine.remove(vertex)

    def _retire(self, unit: Vertex) -> None:
        """Removes a unit, at once or with its release."""
        holders = _holders(unit)
        if holders:
            self.engine.set_status(unit, False)
        else:
            self.engine.remove(unit)
        for job in holders:
            self._retired.setdefault(job, {})[unit.index] = None

    def _remove_vertices(self, known: ClusterNode) -> Removal:
        """Removes the vertices of a node. Returns the jobs that had something on it."""
        for key in self._external_usage_on.get(known.fact.node, ()):
            self.engine.external_usage.remove(key)
        return self.engine.remove(known.vertex)

    def _update_vertex(self, known: ClusterNode) -> None:
        is_usable = known.fact.up and not known.is_drained and not known.is_blocked
        self.engine.set_status(known.vertex, is_usable)


def _unit_specs(capacity: Capacity, rank: int) -> list[VertexSpec]:
    """The vertices of a resource on a node: one pool, or one per unit."""
    if capacity.divisible:
        return [VertexSpec(capacity.resource, 0, rank=rank, size=capacity.units, divisible=True)]
    return [VertexSpec(capacity.resource, number, rank=rank) for number in range(capacity.units)]


def _is_unit_of(resource: str, name: str) -> bool:
    """Whether a unit of this resource can have this name. The name of a resource can end with digits."""
    return name.startswith(resource) and _NUMBER.fullmatch(name, len(resource)) is not None


def _holders(unit: Vertex) -> list[int]:
    """The jobs that have booked a unit."""
    return [job for job, _ in unit.state.bookings] if unit.state is not None else []


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
