"""Allocations of the engine as records, and back.

A part of an allocation has one record, and one for each of its slots, so that releasing a slot deletes one
row. A slot implies the claims on what it grants. The record of the part has the claims that its slots do not
imply: `claims` hold as long as a slot uses them (a whole node, or a node that the request names and shares,
ends with its last slot), `fixed` as long as the part exists.

Records locate units by node, because topology levels may change before they are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from penstock.engine import Placement, Slot, Vertex
from penstock.engine.allocation import Grant
from penstock.engine.booking import Claims, Span, VertexClaim
from penstock.engine.job_allocation import AllocationPart
from penstock.engine.planner import FOREVER
from penstock.model.exclusion_key import ExclusionKey
from penstock.sched.former_pools import keys_of_pool, split_grants
from penstock.sched.records import AllocationNew, JsonObject, SlotRecord

__all__ = ["VertexAt", "allocation_record", "part_of", "placement_of_record", "slot_record"]

VertexAt = Callable[[str], Vertex | None]  # from a location; None: it does not exist any more

_NODE: Final = "node"


def allocation_record(job: int, key: int, part: AllocationPart, placement: Placement) -> AllocationNew:
    """A part of an allocation as a record."""
    end_s = None if part.span.end >= FOREVER else part.span.end
    implied = _implied_claims(part.slots)
    used = _used_vertices(part.slots)
    claims: list[object] = []
    fixed: list[object] = []
    for index, claim in part.claims.items():
        tops = _whole_tops(part.claims, claim)
        if tops or not _is_implied(claim, implied.get(index)):
            ends_with_slot = index in used or any(top in used for top in tops)
            (claims if ends_with_slot else fixed).append(_claim_document(claim))
    data: dict[str, object] = {}
    if claims:
        data["claims"] = claims
    if fixed:
        data["fixed"] = fixed
    if placement != Placement():
        data["placement"] = [placement.distinct_nodes, placement.within]
    return AllocationNew(job, key, part.span.start, end_s, data, tuple(map(slot_record, part.slots)))


def slot_record(slot: Slot) -> SlotRecord:
    return SlotRecord(slot.number, _slot_document(slot))


def part_of(record: AllocationNew, vertex_at: VertexAt) -> AllocationPart:
    """A recorded part, without what is on vertices that do not exist any more."""
    slots = tuple(slot for slot in (_slot_of(one, vertex_at) for one in record.slots) if slot.grants)
    claims = _implied_claims(slots)
    used = _used_vertices(slots)
    recorded = {claim.vertex.index: claim for claim in _claims_of(record.data.get("claims"), vertex_at)}
    for index, claim in recorded.items():
        own = claims.get(index)
        if not claim.booked:
            if own is None and index in used:
                claims[index] = claim
        elif any(top in used for top in _whole_tops(recorded, claim)):
            claims[index] = claim
        elif own is not None:
            units = own.units if claim.vertex.divisible else claim.units
            claims[index] = VertexClaim(
                claim.vertex, units, True, claim.exclusive, claim.label, None, claim.whole
            )
    for claim in _claims_of(record.data.get("fixed"), vertex_at):
        claims.setdefault(claim.vertex.index, claim)
    span = Span(record.start_s, FOREVER if record.end_s is None else record.end_s, live=True)
    return AllocationPart(claims, span, slots)


def placement_of_record(record: AllocationNew) -> Placement:
    rules = record.data.get("placement")
    return Placement(bool(rules[0]), str(rules[1])) if isinstance(rules, list) else Placement()


def _implied_claims(slots: Iterable[Slot]) -> Claims:
    """The claims that follow from the grants of slots alone: units of pools, and whole units."""
    claims: Claims = {}
    for slot in slots:
        for grant in slot.grants:
            vertex, units = grant.vertex, grant.units
            if vertex.divisible and vertex.index in claims:
                units += claims[vertex.index].units
            claims[vertex.index] = VertexClaim(vertex, units, True, not vertex.divisible)
    return claims


def _is_implied(claim: VertexClaim, implied: VertexClaim | None) -> bool:
    return (
        implied is not None
        and claim.booked
        and not claim.whole
        and not claim.label
        and (claim.units, claim.exclusive) == (implied.units, implied.exclusive)
    )


def _used_vertices(slots: Iterable[Slot]) -> set[int]:
    """Vertices that a slot grants, and their ancestors."""
    used: set[int] = set()
    for slot in slots:
        for grant in slot.grants:
            vertex: Vertex | None = grant.vertex
            while vertex is not None and vertex.index not in used:
                used.add(vertex.index)
                vertex = vertex.parent()
    return used


def _whole_tops(claims: Claims, claim: VertexClaim) -> list[int]:
    """The vertices claimed as a whole that contain a claim, itself included."""
    return [
        vertex.index
        for vertex in (claim.vertex, *claim.vertex.ancestors())
        if (above := claims.get(vertex.index)) is not None and above.whole
    ]


# Values


def _slot_document(slot: Slot) -> JsonObject:
    document: dict[str, object] = {
        "group": slot.group,
        "node": _location_of(slot.node) if slot.node is not None else "",
        "grants": [[_location_of(grant.vertex), grant.units] for grant in slot.grants],
    }
    if slot.brings:
        document["brings"] = [[key.level, key.name, key.scope] for key in slot.brings]
    return document


def _slot_of(record: SlotRecord, vertex_at: VertexAt) -> Slot:
    data: Mapping[str, object] = record.data
    group, node, found = data.get("group"), data.get("node"), data.get("grants")
    real, of_pools = split_grants(found if isinstance(found, list) else ())
    grants = ((vertex_at(location), units) for location, units in real)
    kept = tuple(Grant(vertex, units) for vertex, units in grants if vertex is not None)
    brings = data.get("brings")
    keys = tuple(ExclusionKey(*key) for key in (brings if isinstance(brings, list) else ()))
    return Slot(
        group if isinstance(group, int) else 0,
        vertex_at(node) if isinstance(node, str) and node else None,
        kept,
        record.number,
        (*of_pools, *keys),
    )


def _claim_document(claim: VertexClaim) -> list[object]:
    return [_location_of(claim.vertex), claim.units, claim.booked, claim.exclusive, claim.label, claim.whole]


def _claims_of(found: object, vertex_at: VertexAt) -> list[VertexClaim]:
    claims: list[VertexClaim] = []
    for location, units, booked, exclusive, label, whole in found if isinstance(found, list) else ():
        vertex = vertex_at(location) if not keys_of_pool(location, units) else None
        if vertex is not None:
            claims.append(VertexClaim(vertex, units, bool(booked), bool(exclusive), label, None, bool(whole)))
    return claims


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
