"""Property: records of an allocation, written as it grows and shrinks, restore the same engine state."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine import Allocation, Engine, Group, Placement, Request
from penstock.engine.booking import VertexClaim
from penstock.engine.request import InvalidResources
from penstock.model.exclusion_key import ExclusionKey
from penstock.model.jobspec import Count, Resource
from penstock.protocol.facts import Capacity, NodeSet
from penstock.sched.allocation_records import allocation_record
from penstock.sched.cluster import Cluster
from penstock.sched.records import AllocationNew

NODES = tuple(
    NodeSet(
        f"n{number}",
        (Capacity("core", 3), Capacity("cpu", 3000, divisible=True), Capacity("memory", 8, divisible=True)),
        (("rack", f"r{number % 2}"),),
    )
    for number in range(4)
)
ENDS = (1, 50, 10**6)
KEY = ExclusionKey("node", "host port 80/TCP")


def _cluster() -> Cluster:
    cluster = Cluster("lonode")
    for rank, node in enumerate(NODES):
        cluster.set_node(node, rank, False)
    cluster.apply_updates()
    return cluster


def _resource(resource: str, count: int, *inner: Resource, **more: Any) -> Resource:
    return Resource(resource, Count(count, count), with_=inner, **more)


def _group(shape: str, count: int, units: int) -> Group:
    label = "labelled" if shape == "labels" else ""
    leaf = (
        _resource("core", units, label=label)
        if shape in ("nodes", "whole nodes", "labels")
        else _resource("cpu", 700 * units)
    )
    slot = _resource("slot", count, leaf, _resource("memory", units), label="task")
    if shape == "whole nodes":
        return Group((_resource("node", 1, slot, exclusive=True),))
    if shape == "nodes":
        return Group((_resource("node", count, replace(slot, count=Count(1, 1))),))
    if shape == "slots of nodes":
        return Group((_resource("slot", count, _resource("node", 1), label="task"),))
    return Group((slot,), brings=(KEY,) if shape == "keys" else ())


_SHAPES = st.sampled_from(["pools", "nodes", "whole nodes", "slots of nodes", "labels", "keys"])
_PLACEMENTS = st.sampled_from([Placement(), Placement(True), Placement(False, "rack")])
_GROUPS = st.builds(_group, _SHAPES, st.integers(1, 3), st.integers(1, 2))
_STEPS = st.lists(
    st.tuples(st.just("start"), st.integers(1, 3), _GROUPS, _PLACEMENTS)
    | st.tuples(st.just("extend"), st.integers(1, 3), _GROUPS, st.none())
    | st.tuples(st.just("release"), st.integers(1, 3), st.sets(st.integers(0, 5), min_size=1), st.none()),
    min_size=1,
    max_size=10,
)


class _Recorder:
    """An engine, and the records that a store keeps for it."""

    def __init__(self) -> None:
        self.cluster = _cluster()
        self.parts: dict[tuple[int, int], AllocationNew] = {}
        self.made: dict[int, tuple[int, int]] = {}

    def grow(self, job: int, found: object) -> None:
        if isinstance(found, Allocation):
            holder = self.cluster.engine.jobs[job]
            key = holder.parts_made - 1
            self.parts[(job, key)] = allocation_record(job, key, holder.parts[key], holder.placement)
            self.made[job] = (holder.parts_made, holder.slots_made)

    def release(self, job: int, slots: set[int]) -> None:
        """As the scheduler records it: rows of slots are deleted, and those of parts that end with them."""
        engine = self.cluster.engine
        is_over = engine.release_slots(job, slots)
        held = {} if is_over else engine.jobs[job].parts
        for key in [key for key in self.parts if key[0] == job]:
            record = self.parts[key]
            if key[1] not in held:
                del self.parts[key]
            else:
                left = tuple(slot for slot in record.slots if slot.number not in slots)
                self.parts[key] = replace(record, slots=left)

    def restored(self) -> Cluster:
        cluster = _cluster()
        jobs = dict.fromkeys(job for job, _ in sorted(self.parts))
        for job in jobs:
            parts_made, slots_made = self.made[job]
            records = [self.parts[key] for key in sorted(self.parts) if key[0] == job]
            cluster.restore_later(job, records, parts_made=parts_made, slots_made=slots_made)
        lost = [cluster.restore(one) for one in cluster.take_recorded() if one.job in jobs]
        assert not [one for one in lost if one.lost_slots or one.lost_parts]
        return cluster


def _kind(claim: VertexClaim) -> tuple[bool, str, bool]:
    return claim.exclusive, claim.label, claim.whole


def _described(engine: Engine) -> dict[str, object]:
    """All that bookings consist of: planners, claims and slots, with vertices by their path."""
    vertices: dict[str, object] = {}
    for vertex in engine.graph.vertices.values():
        if vertex.state is None:
            continue
        state = vertex.state
        vertices[vertex.path()] = (
            state.bookings,
            state.exclusive_bookings,
            state.live_end_min,
            [state.plan.booked_most(0, end) for end in ENDS],
            [state.presence.booked_most(0, end) for end in ENDS],
            {kind: [plan.booked_most(0, end) for end in ENDS] for kind, plan in state.below.items()},
            {key: [use.plan.booked_most(0, end) for end in ENDS] for key, use in (state.keys or {}).items()},
        )
    holders = {
        job: (
            (holder.kind, holder.placement, holder.top.path(), holder.parts_made, holder.slots_made),
            {
                key: (
                    part.span,
                    {
                        claim.vertex.path(): (claim.units, claim.booked, _kind(claim))
                        for claim in part.claims.values()
                    },
                    {
                        slot.number: (
                            slot.group,
                            slot.node and slot.node.name,
                            [(grant.vertex.path(), grant.units) for grant in slot.grants],
                            slot.brings,
                        )
                        for slot in part.slots
                    },
                )
                for key, part in sorted(holder.parts.items())
            },
        )
        for job, holder in sorted(engine.jobs.items())
    }
    return {"vertices": vertices, "holders": holders, "instants": engine.instants(0)}


@settings(max_examples=150)
@given(steps=_STEPS)
def test_records_restore_the_engine_after_any_history(steps: list[tuple[str, int, Any, Any]]) -> None:
    recorder = _Recorder()
    engine = recorder.cluster.engine
    for now, (action, job, what, placement) in enumerate(steps):
        with suppress(InvalidResources):  # Several slots on one node contradict distinct nodes.
            if action == "start" and job not in engine.jobs:
                request = Request((what,), 60 + now, placement=placement)
                recorder.grow(job, engine.match(job, request, now))
            elif action == "extend" and job in engine.jobs:
                recorder.grow(job, engine.extend(job, Request((what,), None), now))
            elif action == "release" and job in engine.jobs:
                recorder.release(job, what)
        assert _described(recorder.restored().engine) == _described(engine)
