"""Matching, restated from its rules and not from the walker.

What is free is found by looking through all parts that anybody has (`ledger`), vertex by vertex and
instant by instant. There are no planners, no totals and no shortcuts, so it is slow; it is meant
for graphs of a few dozen vertices.

The rules: a vertex of a wanted type hands the inner list to its children; above the first match any
level may be left out, below it none. A slot is bundled where all its types are direct children.
Vertices are whole unless divisible. The best are taken by score, equals as they were found. Nothing
is taken below a vertex at which a forbidden key is in use, and a group that brings a key which it
forbids takes its best slot from each vertex of the key's level. `first` looks at untouched children
first, the youngest first, then at those with most free, and stops when it has enough.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from ledger import Booker, is_below

from penstock.engine import Group, Policy, Vertex
from penstock.engine.planner import FOREVER
from penstock.model.constraint import matches
from penstock.model.exclusion_key import ExclusionKey
from penstock.model.jobspec import UINT_MAX, Count, Resource

__all__ = ["Match", "Oracle", "allowed_count", "fits_somehow", "own_levels"]

NODE_TYPES = ("node", "storage_node")

Standing = tuple[str, ExclusionKey]  # a vertex, and a key that is in use there for good


@dataclass(slots=True)
class Taken:
    """A vertex that was chosen, with what was chosen below it."""

    vertex: Vertex
    units: int
    alone: bool  # in a slot, or at or below something asked for exclusively
    whole: bool  # asked for exclusively itself
    inner: list[Taken]

    @property
    def divisible(self) -> bool:
        return self.vertex.divisible and not self.whole


@dataclass(slots=True)
class Offer:
    score: int
    units: int
    taken: list[Taken]
    slots: list[list[Taken]]  # complete slots in it, outer vertices of each


@dataclass(slots=True)
class Match:
    """Units by path of all that is held, and the grants of every slot."""

    held: dict[str, int] = field(default_factory=dict)
    slots: list[dict[str, int]] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)  # also what is only named, and shared


def allowed_count(count: Count, available: int) -> int:
    """The largest of min, min+k, min*k, min^k ... that is neither above max nor above what there is."""
    best, current = 0, count.min
    while current <= min(count.max, available):
        best = current
        if count.operator == "+":
            if count.operand == 1:  # No need to count up to four thousand million.
                return min(count.max, available)
            current += count.operand
        elif count.operator == "*":
            current *= count.operand
        else:
            current **= count.operand
    return best


def own_levels(group: Group) -> set[str]:
    """The levels of keys by which the slots of a group exclude each other."""
    return {key.level for key in group.brings if key in group.forbids}


@dataclass(slots=True)
class Oracle:
    ledger: Booker
    policy: Policy
    group: Group
    now: int
    start: int
    end: int

    def match(self) -> Match | None:
        root = self.ledger.graph.root
        found: dict[str, list[Offer]] = {}
        own = self._offers(root, self.group.resources, False, False, None, found)
        if own is None:
            return None
        found.setdefault(root.type, []).append(own)
        result = Match()
        for resource in self.group.resources:
            chosen = self._choose(found.get(resource.type, []), resource.count)
            if not chosen:
                return None
            for offer in chosen:
                for taken in offer.taken:
                    self._collect(taken, result)
                result.slots.extend(_grants(slot) for slot in offer.slots)
        if self.policy.node_exclusive:
            for node in self.ledger.graph.of_type("node"):
                if any(is_below(path, node.path()) for path in result.touched):
                    self._collect_whole(node, result)
        return result if result.held else None

    def _collect(self, taken: Taken, result: Match) -> None:
        path = taken.vertex.path()
        result.touched.add(path)
        if taken.alone:
            before = result.held.get(path, 0) if taken.divisible else 0
            result.held[path] = before + taken.units
        for inner in taken.inner:
            self._collect(inner, result)
        if taken.whole:  # All of it, whatever part of what is below was asked for.
            self._collect_whole(taken.vertex, result)

    def _collect_whole(self, top: Vertex, result: Match) -> None:
        result.held[top.path()] = max(top.size - self.ledger.held_by_others(top.path()), 0)
        for child in top.below():
            self._collect_whole(child, result)

    # What there is

    def _free(self, vertex: Vertex) -> int:
        path = vertex.path()
        parts = [part for parts in self.ledger.jobs.values() for part in parts]
        instants = {self.start, *(part.start for part in parts if self.start < part.start < self.end)}
        most = max(self.ledger.used(path, instant, self.now) for instant in instants)
        return vertex.size - most - self.ledger.held_by_others(path)

    def _is_untouched(self, vertex: Vertex) -> bool:
        for hold in self.ledger.holds.values():
            if not hold.standing and any(is_below(path, vertex.path()) for path in (hold.at, *hold.units)):
                return False
        for parts in self.ledger.jobs.values():
            for part in parts:
                overlaps = part.start < self.end and self.start < part.lasts_until(self.now)
                if overlaps and any(is_below(path, vertex.path()) for path in part.units):
                    return False
        return True

    def _may_be_used(self, vertex: Vertex, alone: bool) -> bool:
        if not vertex.up or self._free(vertex) <= 0:
            return False
        constraint = self.group.constraint
        if vertex.type in NODE_TYPES and constraint is not None and not matches(constraint, vertex):
            return False
        for key in self.group.forbids:
            if key.level == vertex.type and self.ledger.is_key_in_use(
                vertex.path(), key, self.start, self.end, self.now
            ):
                return False
        if vertex.type == "node" and self.policy.node_exclusive:
            alone = True
        return not alone or self._is_untouched(vertex)

    # The walk

    def _offers(
        self,
        vertex: Vertex,
        wanted: tuple[Resource, ...],
        matched_above: bool,
        alone: bool,
        node: Vertex | None,
        upwards: dict[str, list[Offer]],
    ) -> Offer | None:
        """What the vertex itself is good for; what was found below it goes upwards if it only passes."""
        match = next((resource for resource in wanted if resource.type == vertex.type), None)
        slot = self._slot_here(
            vertex, wanted if match is None and not matched_above else (match.with_ if match else ())
        )
        if match is None and slot is None and matched_above:
            return None
        whole = match is not None and match.exclusive is True
        alone = alone or whole
        must_be_alone = match is not None and alone and (whole or not vertex.divisible)
        if not self._may_be_used(vertex, must_be_alone):
            return None
        if vertex.type == "node":
            node = vertex
        found: dict[str, list[Offer]] = {}
        if slot is not None:
            found["slot"] = self._bundle(vertex, slot, node)
        else:
            inner = match.with_ if match is not None else wanted
            self._look_below(vertex, inner, matched_above or match is not None, alone, node, found, 1)
        below: list[Taken] = []
        slots: list[list[Taken]] = []
        if match is not None and match.with_:
            for resource in match.with_:
                chosen = self._choose(found.get(resource.type, []), resource.count)
                if not chosen:
                    return None
                below.extend(taken for offer in chosen for taken in offer.taken)
                slots.extend(held for offer in chosen for held in offer.slots)
        else:
            if vertex.type in own_levels(self.group) and "slot" in found:
                found["slot"] = self._by_score(found["slot"])[:1]
            for kind, offers in found.items():
                upwards.setdefault(kind, []).extend(offers)
        free = self._free(vertex)
        return Offer(self._score(vertex, node), free, [Taken(vertex, free, alone, whole, below)], slots)

    def _slot_here(self, vertex: Vertex, listed: tuple[Resource, ...]) -> Resource | None:
        here = {child.type for child in vertex.below()}
        for resource in listed:
            if resource.type == "slot" and all(inner.type in here for inner in resource.with_):
                return resource
        return None

    def _look_below(
        self,
        vertex: Vertex,
        wanted: tuple[Resource, ...],
        matched_above: bool,
        alone: bool,
        node: Vertex | None,
        found: dict[str, list[Offer]],
        portions: int,
    ) -> None:
        if not wanted:
            return
        kinds = {resource.type: allowed_count(resource.count, UINT_MAX) for resource in wanted}
        for child in self._children(vertex):
            enough = {
                kind for kind, size in kinds.items() if _portions(found.get(kind, []), size) >= portions
            }
            if self.policy.stop_on_first and (len(enough) == len(kinds) or child.type in enough):
                continue
            offer = self._offers(child, wanted, matched_above, alone, node, found)
            if offer is not None and child.type in kinds:
                found.setdefault(child.type, []).append(offer)

    def _children(self, vertex: Vertex) -> list[Vertex]:
        if not self.policy.stop_on_first:
            return vertex.below()
        return sorted(vertex.below(), key=lambda child: (self._weight(child), child.uniq_id), reverse=True)

    def _weight(self, child: Vertex) -> int:
        """How much is free of the last type that is counted there: nodes, or the cores of a node."""
        parts = [part for parts in self.ledger.jobs.values() for part in parts]
        touched = any(is_below(path, child.path()) for part in parts for path in part.units)
        if not touched or not child.below():
            return FOREVER
        kind = "core" if child.type == "node" else "node"
        below = [
            vertex for vertex in self.ledger.graph.walk(child) if vertex is not child and vertex.type == kind
        ]
        return sum(vertex.size - self.ledger.used(vertex.path(), self.now, self.now) for vertex in below)

    def _bundle(self, vertex: Vertex, slot: Resource, node: Vertex | None) -> list[Offer]:
        members: dict[str, list[Offer]] = {}
        self._look_below(vertex, slot.with_, True, True, node, members, allowed_count(slot.count, UINT_MAX))
        piles: list[list[list[tuple[Offer, int]]]] = []
        for resource in slot.with_:
            offers = self._by_score(members.get(resource.type, []))
            per_slot = allowed_count(resource.count, sum(offer.units for offer in offers))
            piles.append(_cut(offers, per_slot) if per_slot else [])
        made: list[Offer] = []
        for place in range(min(len(pile) for pile in piles)):
            taken: list[Taken] = []
            score = 1
            for pile in piles:
                for offer, units in pile[place]:
                    score += offer.score
                    top = offer.taken[0]
                    taken.append(Taken(top.vertex, units, True, top.whole, top.inner))
            made.append(Offer(score, 1, taken, [taken]))
        return made

    def _choose(self, offers: list[Offer], count: Count) -> list[Offer]:
        missing = allowed_count(count, sum(offer.units for offer in offers))
        chosen: list[Offer] = []
        for offer in self._by_score(offers):
            if missing <= 0:
                break
            if offer.taken[0].divisible and not offer.slots and offer.units > missing:
                top = offer.taken[0]
                part = Taken(top.vertex, missing, top.alone, top.whole, top.inner)
                offer = Offer(offer.score, missing, [part], [])
            chosen.append(offer)
            missing -= offer.units
        return chosen

    def _by_score(self, offers: list[Offer]) -> list[Offer]:
        ranked = sorted(
            enumerate(offers), key=lambda item: (item[1].score * (-1) ** self.policy.high_first, item[0])
        )
        return [offer for _, offer in ranked]

    def _score(self, vertex: Vertex, node: Vertex | None) -> int:
        score = 2 + vertex.id
        if self.policy.node_centric and node is not None and vertex is not node:
            score += (node.id + 2) * 10_000 + abs(node.uniq_id % 10_000 - 1)
        return score


def _portions(offers: list[Offer], size: int) -> int:
    """How many times `size` units are there, if only divisible vertices can be split between two."""
    full, filled = 0, 0
    for offer in offers:
        filled += offer.units
        if size and filled >= size:
            if offer.taken[0].divisible:
                full, filled = full + filled // size, filled % size
            else:
                full, filled = full + 1, 0
    return full


def _cut(offers: list[Offer], per_slot: int) -> list[list[tuple[Offer, int]]]:
    piles: list[list[tuple[Offer, int]]] = [[]]
    missing = per_slot
    for offer in offers:
        left = offer.units
        while left > 0:
            units = min(left, missing) if offer.taken[0].divisible else left
            piles[-1].append((offer, units))
            left, missing = left - units, missing - units
            if missing <= 0:
                piles.append([])
                missing = per_slot
    return piles[:-1]


def _grants(slot: list[Taken]) -> dict[str, int]:
    grants: dict[str, int] = {}
    for taken in slot:
        grants[taken.vertex.path()] = taken.units
        grants.update(_grants(taken.inner))
    return grants


# Whether a packing exists at all, in the best of all worlds


def fits_somehow(
    top: Vertex, group: Group, distinct_nodes: bool = False, standing: Container[Standing] = ()
) -> bool:
    """Tries every way to put whole vertices together; everything is up and free of all but standing keys."""
    ideal = _Ideal(group, own_levels(group) | ({"node"} if distinct_nodes else set()), standing)
    if any(ideal.is_forbidden(above) for above in top.ancestors()):
        return False
    found = _most(top, group.resources, False, ideal)
    if "slot" in found and any(above.type in ideal.one_slot_per for above in top.ancestors()):
        found["slot"] = min(found["slot"], 1)
    return all(found.get(resource.type, 0) >= resource.count.min for resource in group.resources)


@dataclass(slots=True)
class _Ideal:
    group: Group
    one_slot_per: set[str]
    standing: Container[Standing]

    def is_forbidden(self, vertex: Vertex) -> bool:
        keys = [key for key in self.group.forbids if key.level == vertex.type]
        return any((vertex.path(), key) in self.standing for key in keys)


def _most(vertex: Vertex, wanted: tuple[Resource, ...], matched_above: bool, ideal: _Ideal) -> dict[str, int]:
    """The most units of each wanted type at or below a vertex."""
    group = ideal.group
    match = next((resource for resource in wanted if resource.type == vertex.type), None)
    listed = match.with_ if match is not None else (() if matched_above else wanted)
    here = {child.type for child in vertex.below()}
    slot = next((r for r in listed if r.type == "slot" and all(i.type in here for i in r.with_)), None)
    if (match is None and slot is None and matched_above) or vertex.size < 1:
        return {}
    if vertex.type in NODE_TYPES and group.constraint is not None and not matches(group.constraint, vertex):
        return {}
    if ideal.is_forbidden(vertex):
        return {}
    found: dict[str, int] = {}
    if slot is not None:
        most = [_most_bundles(vertex, inner, ideal) for inner in slot.with_]
        found["slot"] = min(most)
    else:
        inner = match.with_ if match is not None else wanted
        for child in vertex.below() if inner else ():
            for kind, units in _most(child, inner, matched_above or match is not None, ideal).items():
                found[kind] = found.get(kind, 0) + units
    if vertex.type in ideal.one_slot_per and "slot" in found:
        found["slot"] = min(found["slot"], 1)
    if match is not None and match.with_:
        if any(found.get(resource.type, 0) < resource.count.min for resource in match.with_):
            return {}
        found = {}
    if match is not None:
        found[match.type] = found.get(match.type, 0) + vertex.size
    return found


def _most_bundles(vertex: Vertex, inner: Resource, ideal: _Ideal) -> int:
    sizes: list[int] = []
    divisible = 0
    for child in vertex.below():
        if child.type == inner.type and _most(child, (inner,), True, ideal).get(inner.type):
            if child.divisible and inner.exclusive is not True:
                divisible += child.size
            else:
                sizes.append(child.size)
    return _cover(tuple(sorted(sizes)), divisible, inner.count.min)


def _cover(sizes: tuple[int, ...], divisible: int, need: int) -> int:
    """The most bundles of at least `need` units from whole sizes, topped up from what can be divided."""
    best = divisible // need
    for chosen in range(1, 1 << len(sizes)):
        bundle = [size for place, size in enumerate(sizes) if chosen >> place & 1]
        lacking = max(need - sum(bundle), 0)
        if lacking <= divisible and sum(bundle[1:]) < need:  # Without its smallest it would not do.
            rest = tuple(size for place, size in enumerate(sizes) if not chosen >> place & 1)
            best = max(best, 1 + _cover(rest, divisible - lacking, need))
    return best
