"""Finds the differences between the three snapshots. Pure: equal snapshots give equal differences.

Every error is reported once, with the kind that leads to its repair: a member on which store and graph
disagree has no further differences, and a pod that is counted twice is surplus external usage. Usage is
compared only for resources that the node has, because only those can be allocated. Exclusion keys are not
compared: they are no resource of a node.

A pod counts for its node from its binding until it is terminal or gone, independent of its owner. A member
has a slot; any other pod has external usage. Ignored are pods that the cluster is about to remove (on a
deleted node) and pods whose state cannot be known (of this scheduler, on a node that is not ready).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.audit.differences import Difference, DifferenceKind
from penstock.audit.snapshots import (
    EXCESS_PREFIX,
    ORPHAN_PREFIX,
    PLACING,
    ApiPod,
    ApiSnapshot,
    GraphExternalUsage,
    GraphSnapshot,
    ResourceUsage,
    StoreSnapshot,
)

__all__ = ["HALF_GANG_S", "compare"]

HALF_GANG_S: Final = 120.0  # how long a group may be partly placed without a report


def compare(
    api: ApiSnapshot,
    store: StoreSnapshot,
    graph: GraphSnapshot,
    scheduler_names: Collection[str],
    *,
    now: float,
    previous: Collection[Difference] | None = None,
) -> tuple[Difference, ...]:
    """Returns all differences. With `previous`, only those that the previous comparison showed too."""
    external = _external_usage(api, store, graph, scheduler_names)
    found = (
        *_nodes(api, graph),
        *_members(api, store, graph),
        *_pods_and_external_usage(api, graph, external),
        *_booked_external_usage(graph),
        *_empty_slots(graph),
        *_overcommitted(api, graph, external),
        *_half_gangs(store, graph, now),
    )
    if previous is None:
        return found
    identities = {difference.identity for difference in previous}
    return tuple(difference for difference in found if difference.identity in identities)


# Nodes


def _nodes(api: ApiSnapshot, graph: GraphSnapshot) -> Iterator[Difference]:
    for name, node in sorted(api.nodes.items()):
        known = graph.nodes.get(name)
        if known is None:
            yield Difference(DifferenceKind.NODE_MISSING, name, "missing in the graph")
            continue
        resources = {*node.allocatable, *known.capacity}
        if wrong := _compare_units(node.allocatable, known.capacity, resources):
            yield Difference(DifferenceKind.NODE_CAPACITY, name, wrong)
        if known.up is not node.ready:
            detail = "ready, but down in the graph" if node.ready else "not ready, but up in the graph"
            yield Difference(DifferenceKind.NODE_STATE, name, detail)
    for name in sorted(graph.nodes.keys() - api.nodes.keys()):
        yield Difference(DifferenceKind.NODE_SURPLUS, name, "missing in the cluster")


# Members


def _members(api: ApiSnapshot, store: StoreSnapshot, graph: GraphSnapshot) -> Iterator[Difference]:
    for uid in sorted(store.members.keys() | graph.members.keys()):
        recorded, assigned = store.members.get(uid), graph.members.get(uid)
        if recorded is None or assigned is None:
            where = "the graph" if recorded is None else "the store"
            yield Difference(DifferenceKind.MEMBER_DISAGREED, uid, f"placed in {where} only", variant=where)
            continue
        if (recorded.job, recorded.node) != (assigned.job, assigned.node):
            in_store = f"of job {recorded.job} on {recorded.node} in the store"
            in_graph = f"of job {assigned.job} on {assigned.node} in the graph"
            both = f"{in_store}, {in_graph}"
            yield Difference(DifferenceKind.MEMBER_DISAGREED, uid, both, variant=both)
            continue
        pod = api.pods.get(uid)
        of = f"a member of job {assigned.job} on {assigned.node}"
        if pod is None:
            yield Difference(DifferenceKind.MEMBER_LEAKED, uid, f"{of}, whose pod is gone")
        elif pod.terminal:
            yield Difference(
                DifferenceKind.MEMBER_LEAKED, uid, f"{of}, whose pod {_pod_name(pod)} is terminal"
            )
        elif not pod.node:
            if PLACING not in (recorded.phase, assigned.phase):
                yield Difference(
                    DifferenceKind.MEMBER_UNBOUND, uid, f"{of}, whose pod {_pod_name(pod)} is on no node"
                )
        elif pod.node != assigned.node:
            yield Difference(
                DifferenceKind.MEMBER_ELSEWHERE, uid, f"{of}, whose pod {_pod_name(pod)} is on {pod.node}"
            )


# Pods and external usage


@dataclass(slots=True)
class _ExternalUsage:
    """The usage of pods outside the slots of members, according to the cluster."""

    required: dict[str, tuple[str, ResourceUsage]] = field(default_factory=dict)  # key -> node, usage
    allowed: set[str] = field(default_factory=set)  # keys that may exist in the graph
    # Pods of this scheduler that store and graph do not know.
    unknown: dict[str, ApiPod] = field(default_factory=dict)
    by_node: dict[str, dict[str, int]] = field(default_factory=dict)


def _external_usage(
    api: ApiSnapshot, store: StoreSnapshot, graph: GraphSnapshot, scheduler_names: Collection[str]
) -> _ExternalUsage:
    # A member on the wrong node has its own difference, so excess usage of members is allowed.
    external = _ExternalUsage(allowed={EXCESS_PREFIX + uid for uid in (*store.members, *graph.members)})
    for uid, pod in sorted(api.pods.items()):
        if not pod.is_counted:
            continue
        assignment = graph.members.get(uid)
        if assignment is not None:
            if assignment.node == pod.node:
                beyond = {
                    resource: units - assignment.usage.get(resource, 0)
                    for resource, units in pod.usage.items()
                }
                more = {resource: units for resource, units in beyond.items() if units > 0}
                external.allowed.discard(EXCESS_PREFIX + uid)
                _add_usage(api, external, pod.node, EXCESS_PREFIX + uid, more)
            continue
        if uid in store.members:
            external.allowed.update((uid, ORPHAN_PREFIX + uid))
            continue
        name = (
            ORPHAN_PREFIX + uid
            if ORPHAN_PREFIX + uid in graph.external_usage and uid not in graph.external_usage
            else uid
        )
        if pod.scheduler_name in scheduler_names and name not in graph.external_usage:
            node = api.nodes.get(pod.node)
            if node is not None and node.ready:
                external.unknown[uid] = pod
            continue
        _add_usage(api, external, pod.node, name, pod.usage)
    return external


def _add_usage(
    api: ApiSnapshot, external: _ExternalUsage, node: str, name: str, usage: ResourceUsage
) -> None:
    known = api.nodes.get(node)
    if known is None:
        external.allowed.add(name)  # The cluster will remove the pods of this node, so both states are right.
        return
    provided = {resource: units for resource, units in usage.items() if known.allocatable.get(resource)}
    if not provided:
        return
    external.required[name] = (node, provided)
    total = external.by_node.setdefault(node, {})
    for resource, units in provided.items():
        total[resource] = total.get(resource, 0) + units


def _pods_and_external_usage(
    api: ApiSnapshot, graph: GraphSnapshot, external: _ExternalUsage
) -> Iterator[Difference]:
    for uid, pod in external.unknown.items():
        what = f"{_pod_name(pod)} is on {pod.node} and unknown to store and graph"
        yield Difference(DifferenceKind.POD_UNKNOWN, uid, what)
    for name, (node, usage) in sorted(external.required.items()):
        entry = graph.external_usage.get(name)
        if entry is None:
            what = f"{_format_pod(api, name)} uses {_format_units(usage)} of {node}"
            yield Difference(DifferenceKind.EXTERNAL_USAGE_MISSING, name, what)
        elif entry.node != node:
            what = f"{_format_pod(api, name)} is on {node}, its external usage on {entry.node}"
            yield Difference(DifferenceKind.EXTERNAL_USAGE_DIFFERS, name, what)
        elif wrong := _compare_units(usage, entry.usage, api.nodes[node].allocatable.keys()):
            yield Difference(
                DifferenceKind.EXTERNAL_USAGE_DIFFERS, name, f"{_format_pod(api, name)} on {node}: {wrong}"
            )
    for name, entry in sorted(graph.external_usage.items()):
        if name not in external.required and name not in external.allowed and _reduces_capacity(entry, graph):
            what = f"{_format_units(entry.usage)} of {entry.node} for {_format_pod(api, name)}"
            yield Difference(DifferenceKind.EXTERNAL_USAGE_SURPLUS, name, what)


def _reduces_capacity(entry: GraphExternalUsage, graph: GraphSnapshot) -> bool:
    """Whether the usage reduces the free units of a node. A missing node may appear later, so it counts."""
    node = graph.nodes.get(entry.node)
    return node is None or any(
        units and node.capacity.get(resource) for resource, units in entry.usage.items()
    )


# Sums


def _booked_external_usage(graph: GraphSnapshot) -> Iterator[Difference]:
    sums: dict[str, dict[str, int]] = {}
    for entry in graph.external_usage.values():
        total = sums.setdefault(entry.node, {})
        for resource, units in entry.usage.items():
            total[resource] = total.get(resource, 0) + units
    for name, node in sorted(graph.nodes.items()):
        resources = {resource for resource, units in node.capacity.items() if units}
        if wrong := _compare_units(
            sums.get(name, {}), node.external, resources, ("sum of external usage", "booked")
        ):
            yield Difference(DifferenceKind.EXTERNAL_BOOKING_DIFFERS, name, wrong)


def _empty_slots(graph: GraphSnapshot) -> Iterator[Difference]:
    for assignment, node in sorted(graph.empty_slots.items()):
        yield Difference(
            DifferenceKind.SLOT_EMPTY, assignment, f"units of {node} are booked without a member"
        )


def _overcommitted(api: ApiSnapshot, graph: GraphSnapshot, external: _ExternalUsage) -> Iterator[Difference]:
    for name, node in sorted(api.nodes.items()):
        known, others = graph.nodes.get(name), external.by_node.get(name, {})
        if known is None:
            continue
        wrong = [
            f"{resource}: jobs use {ours}, external usage {others.get(resource, 0)},"
            f" capacity {node.allocatable.get(resource, 0)}"
            for resource, ours in sorted(known.used.items())
            if ours > 0 and ours + others.get(resource, 0) > node.allocatable.get(resource, 0)
        ]
        if wrong:
            yield Difference(DifferenceKind.OVERCOMMITTED, name, "; ".join(wrong))


def _half_gangs(store: StoreSnapshot, graph: GraphSnapshot, now: float) -> Iterator[Difference]:
    for job in sorted(store.jobs.keys() | graph.jobs.keys()):
        for assignments in (store.jobs.get(job), graph.jobs.get(job)):
            if (
                assignments is None
                or assignments.since is None
                or assignments.is_marked_incomplete
                or not assignments.placed
            ):
                continue
            if now - assignments.since > HALF_GANG_S:
                since_s = int(now - assignments.since)
                what = f"{assignments.placed} of {assignments.size} members are placed, for {since_s} s"
                yield Difference(DifferenceKind.HALF_GANG, str(job), what)
                break


# Formatting


def _compare_units(
    expected: ResourceUsage,
    found: ResourceUsage,
    resources: Collection[str],
    labels: tuple[str, str] = ("cluster", "graph"),
) -> str:
    """Formats the resources in which two usages differ; "" if they are equal."""
    wrong = [
        resource for resource in sorted(resources) if expected.get(resource, 0) != found.get(resource, 0)
    ]
    return "; ".join(
        f"{resource}: {labels[0]} {expected.get(resource, 0)}, {labels[1]} {found.get(resource, 0)}"
        for resource in wrong
    )


def _format_units(usage: Mapping[str, int]) -> str:
    return ", ".join(f"{units} {resource}" for resource, units in sorted(usage.items()))


def _pod_name(pod: ApiPod) -> str:
    return f"{pod.namespace}/{pod.name}"


def _format_pod(api: ApiSnapshot, key: str) -> str:
    pod = api.pods.get(key.removeprefix(ORPHAN_PREFIX).removeprefix(EXCESS_PREFIX))
    return _pod_name(pod) if pod is not None else "a missing pod"
