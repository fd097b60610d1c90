"""A second set of books: who has what, written down from the engine's answers alone.

Everything is told by paths and looked through from beginning to end. The ledger knows nothing of
planners, filters or states; what it says about an answer is what the rules say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.engine import Allocation, AllocationKind, Engine, Graph, Request, Vertex
from penstock.engine.planner import FOREVER
from penstock.model.exclusion_key import ExclusionKey
from penstock.model.jobspec import Resource

__all__ = ["Booker", "HeldPart", "dump"]


@dataclass(slots=True)
class HeldPart:
    """What was given at once: units by path, which of them alone, and the grants of every slot."""

    start: int
    end: int
    live: bool
    units: dict[str, int]
    alone: set[str]
    slots: list[dict[str, int]]
    nodes: list[str | None]  # by slot
    brings: list[tuple[ExclusionKey, ...]]  # by slot
    forbids: list[tuple[ExclusionKey, ...]]  # by slot

    def lasts_until(self, now: int) -> int:
        return max(self.end, now + 1) if self.live else self.end


@dataclass(slots=True)
class ExternalUsage:
    at: str
    amounts: dict[str, int]
    standing: bool
    brings: tuple[ExclusionKey, ...] = ()
    units: dict[str, int] = field(default_factory=dict)  # where the engine has put them


def is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top + "/")


def asked_alone(resources: Iterable[Resource]) -> set[str]:
    """The types that a request wants exclusively."""
    kinds: set[str] = set()
    for resource in resources:
        if resource.exclusive is True:
            kinds.add(resource.type)
        kinds |= asked_alone(resource.with_)
    return kinds


def part_of(answer: Allocation, request: Request | None = None) -> HeldPart:
    """Whole vertices are had alone; a divisible one only if its type was asked for so."""
    alone = asked_alone(outer for group in request.groups for outer in group.resources) if request else set()
    kept = [pick for pick in answer.picks if pick.exclusive]
    return HeldPart(
        start=answer.start_s,
        end=FOREVER if answer.end_s is None else answer.end_s,
        live=answer.kind is AllocationKind.ALLOCATED,
        units={pick.vertex.path(): pick.units for pick in kept},
        alone={pick.vertex.path() for pick in kept if not pick.vertex.divisible or pick.vertex.type in alone},
        slots=[{grant.vertex.path(): grant.units for grant in slot.grants} for slot in answer.slots],
        nodes=[slot.node.path() if slot.node is not None else None for slot in answer.slots],
        brings=[slot.brings for slot in answer.slots],
        forbids=[request.groups[slot.group].forbids if request else () for slot in answer.slots],
    )


@dataclass(slots=True)
class Booker:
    graph: Graph
    jobs: dict[int, list[HeldPart]] = field(default_factory=dict)
    holds: dict[str, ExternalUsage] = field(default_factory=dict)

    def vertices(self) -> dict[str, Vertex]:
        return {vertex.path(): vertex for vertex in self.graph.vertices.values()}

    def held_by_others(self, path: str) -> int:
        return sum(hold.units.get(path, 0) for hold in self.holds.values())

    def used(self, path: str, at: int, now: int) -> int:
        """Units of a vertex that jobs have at an instant, as seen from `now`."""
        parts = (part for parts in self.jobs.values() for part in parts)
        return sum(part.units.get(path, 0) for part in parts if part.start <= at < part.lasts_until(now))

    def conflict(self, part: HeldPart, now: int) -> str | None:
        """Why this part cannot be booked beside all that is: the first contradiction."""
        end = part.lasts_until(now)
        vertices = self.vertices()
        others = [other for parts in self.jobs.values() for other in parts]
        others = [other for other in others if other.start < end and part.start < other.lasts_until(now)]
        instants = {part.start, *(other.start for other in others if other.start > part.start)}
        for path, units in part.units.items():
            free = vertices[path].size - self.held_by_others(path)
            for instant in sorted(instants):
                if units and self.used(path, instant, now) + units > free:
                    return f"{path} is over-committed at {instant}"
        for path in part.alone:
            for other in others:
                if any(is_below(theirs, path) for theirs in other.units):
                    return f"{path} is to be had alone, and somebody is on it"
            for name, hold in self.holds.items():
                if not hold.standing and (
                    is_below(hold.at, path) or any(is_below(p, path) for p in hold.units)
                ):
                    return f"{path} is to be had alone, and {name} is on it"
        for path in part.units:
            for other in others:
                if any(is_below(path, theirs) for theirs in other.alone):
                    return f"{path} lies in what somebody has alone"
        return None

    def holders(self, slot: dict[str, int], key: ExclusionKey) -> list[str]:
        """The vertices of the key's level that contain something of a slot."""
        vertices = [path for path, vertex in self.vertices().items() if vertex.type == key.level]
        return [path for path in vertices if any(is_below(granted, path) for granted in slot)]

    def bringers(self, path: str, key: ExclusionKey) -> list[HeldPart]:
        """Every part that brings a key at a vertex, once for each slot that does."""
        return [
            part
            for parts in self.jobs.values()
            for part in parts
            for slot, keys in zip(part.slots, part.brings, strict=True)
            if key in keys and path in self.holders(slot, key)
        ]

    def outside_bringers(self, path: str, key: ExclusionKey) -> list[bool]:
        """Whether each external usage that brings a key at a vertex is standing."""
        vertices = self.vertices()
        return [
            hold.standing
            for hold in self.holds.values()
            if key in hold.brings and vertices[path].type == key.level and is_below(hold.at, path)
        ]

    def is_key_in_use(self, path: str, key: ExclusionKey, start: int, end: int, now: int) -> bool:
        bringers = self.bringers(path, key)
        return bool(self.outside_bringers(path, key)) or any(
            part.start < end and start < part.lasts_until(now) for part in bringers
        )

    def key_conflict(self, part: HeldPart, now: int) -> str | None:
        """Where a slot of this part meets a key that it forbids, brought by another slot or by others."""
        for place, (slot, forbidden) in enumerate(zip(part.slots, part.forbids, strict=True)):
            for key in forbidden:
                for path in self.holders(slot, key):
                    if self.is_key_in_use(path, key, part.start, part.lasts_until(now), now):
                        return f"{key} is in use at {path}"
                    for other, (theirs, keys) in enumerate(zip(part.slots, part.brings, strict=True)):
                        if other != place and key in keys and path in self.holders(theirs, key):
                            return f"two slots have {key} at {path}"
        return None

    def read_holds(self) -> list[str]:
        """Where the engine has put others' use; all of it, and on what is ours only if need be."""
        wrong: list[str] = []
        vertices = self.vertices()
        for name, hold in self.holds.items():
            hold.units = {}
            for path, vertex in vertices.items():
                if (
                    vertex.state is not None
                    and name in vertex.state.external
                    and vertex.state.external[name].units
                ):
                    hold.units[path] = vertex.state.external[name].units
            for kind, amount in hold.amounts.items():
                pools = [v for path, v in vertices.items() if v.type == kind and is_below(path, hold.at)]
                found = sum(hold.units.get(vertex.path(), 0) for vertex in pools)
                if pools and found != amount:
                    wrong.append(f"{name} holds {found} {kind}, not {amount}")
        return wrong

    def drop_slots(self, job: int, gone: set[int]) -> None:
        """A vertex that is held whole stays as long as one slot on or below it does."""
        number = 0
        for part in list(self.jobs[job]):
            paths = [place for place in range(len(part.slots)) if number + place in gone]
            number += len(part.slots)
            if paths:
                _drop(part, paths)
            if not part.units:
                self.jobs[job].remove(part)
        if not self.jobs[job]:
            del self.jobs[job]

    def drop_paths(self, job: int, gone: set[str]) -> None:
        for part in list(self.jobs[job]):
            part.units = {path: units for path, units in part.units.items() if path not in gone}
            part.alone -= gone
            left = [{path: units for path, units in slot.items() if path not in gone} for slot in part.slots]
            part.nodes = [node for node, slot in zip(part.nodes, left, strict=True) if slot]
            part.brings = [keys for keys, slot in zip(part.brings, left, strict=True) if slot]
            part.forbids = [keys for keys, slot in zip(part.forbids, left, strict=True) if slot]
            part.slots = [slot for slot in left if slot]
            if not part.units:
                self.jobs[job].remove(part)
        if not self.jobs[job]:
            del self.jobs[job]

    def differences(self, engine: Engine) -> list[str]:
        """Where the planners at the vertices say something else than these books."""
        wrong = self.read_holds()
        parts = [part for parts in self.jobs.values() for part in parts]
        instants = sorted({0, *(t for part in parts for t in (part.start, part.end) if t < FOREVER)})
        for path, vertex in self.vertices().items():
            here = [part for part in parts if any(is_below(theirs, path) for theirs in part.units)]
            held = [h for h in self.holds.values() if any(is_below(p, path) for p in (h.at, *h.units))]
            state = vertex.state
            if state is None:
                if here or held:
                    wrong.append(f"{path} forgot a booking or a hold")
                continue
            if not here and not held:
                wrong.append(f"{path} remembers what is gone")
            if len(state.bookings) != len(here):
                wrong.append(f"{path} has {len(state.bookings)} bookings, not {len(here)}")
            if sum(state.external_units) != self.held_by_others(path):
                wrong.append(f"{path} is held with {state.external_units}, not {self.held_by_others(path)}")
            for instant in instants:
                booked = sum(p.units.get(path, 0) for p in here if p.start <= instant < p.end)
                visits = sum(1 for p in here if p.start <= instant < p.end)
                if state.plan.booked_at(instant) != booked or state.presence.booked_at(instant) != visits:
                    wrong.append(f"{path} has other units or visits at {instant}")
            for planner in (state.plan, state.presence, *state.below.values()):
                planner.check()
            wrong += self._key_differences(path, vertex, instants)
        if set(engine.jobs) != set(self.jobs):
            wrong.append(f"jobs {sorted(engine.jobs)}, not {sorted(self.jobs)}")
        return wrong

    def _key_differences(self, path: str, vertex: Vertex, instants: list[int]) -> list[str]:
        assert vertex.state is not None
        uses = vertex.state.keys if vertex.state.keys is not None else {}
        if vertex.state.keys == {}:
            return [f"{path} keeps an empty table of keys"]
        wrong: list[str] = []
        slots = [keys for parts in self.jobs.values() for part in parts for keys in part.brings]
        for key in {*uses, *(key for keys in slots for key in keys)}:
            bringers, others = self.bringers(path, key), self.outside_bringers(path, key)
            if (key in uses) != bool(bringers or others):
                wrong.append(f"{path} forgot or remembers {key}")
            if key in uses:
                uses[key].plan.check()
                if uses[key].external != [others.count(False), others.count(True)]:
                    wrong.append(f"{path} has other external usage of {key}")
                for instant in instants:
                    count = sum(1 for part in bringers if part.start <= instant < part.end)
                    if uses[key].plan.booked_at(instant) != count:
                        wrong.append(f"{path} has other uses of {key} at {instant}")
        return wrong


def _drop(part: HeldPart, paths: list[int]) -> None:
    dropped = {path for place in paths for path in part.slots[place]}
    part.slots = [slot for place, slot in enumerate(part.slots) if place not in paths]
    part.nodes = [node for place, node in enumerate(part.nodes) if place not in paths]
    part.brings = [keys for place, keys in enumerate(part.brings) if place not in paths]
    part.forbids = [keys for place, keys in enumerate(part.forbids) if place not in paths]
    kept = {path for slot in part.slots for path in slot}
    for path in list(part.units):
        top = min((above for above in part.alone if is_below(path, above)), key=len, default=None)
        if top is None:
            if path in dropped:
                part.units[path] = sum(slot.get(path, 0) for slot in part.slots)
                if part.units[path] == 0:
                    del part.units[path]
        elif any(is_below(theirs, top) for theirs in dropped) and not any(
            is_below(ours, top) for ours in kept
        ):
            del part.units[path]
    part.alone &= set(part.units)


def dump(engine: Engine) -> dict[str, object]:
    """Every vertex's whole state, as values that compare."""
    states: dict[str, object] = {}
    for vertex in engine.graph.vertices.values():
        state = vertex.state
        states[vertex.path()] = (
            None
            if state is None
            else (
                dict(state.bookings),
                dict(state.external),
                list(state.plan.changes()),
                list(state.presence.changes()),
                {kind: list(planner.changes()) for kind, planner in state.below.items()},
                {
                    key: (list(use.plan.changes()), list(use.external))
                    for key, use in (state.keys or {}).items()
                },
                list(state.external_units),
                {kind: list(held) for kind, held in state.external_below.items()},
                state.transient_shares,
                state.live_end_min,
                state.excess,
                dict(state.excess_below),
            )
        )
    return states
