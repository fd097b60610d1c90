"""Where the three readings contradict each other. Pure: the same readings give the same differences.

Whatever is wrong is told once, by the kind that leads to its repair: of a member on which store and graph
disagree nothing else is said until they agree, and a pod that should not be counted twice is a hold too many.
Amounts are compared only in kinds that the node has: nothing else can be given away there. Kinds that the
graph alone knows are left out: a node has none of them to give, the graph only keeps pods apart by them.

A pod counts for its node from the moment it is bound until it is terminal or gone, whoever it belongs to. If
it is a member it has a seat; otherwise there is a hold for it. What the cluster itself is about to clean up
(pods of a node that is gone) and what cannot be known (pods of ours on a node that is silent) is left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.audit.differences import Difference, DifferenceKind
from penstock.audit.readings import (
    GRAPH_ALONE,
    LEFT_OVER,
    MORE,
    PLACING,
    ApiPod,
    ApiReading,
    GraphExternalUsage,
    GraphReading,
    ResourceUsage,
    StoreReading,
)

__all__ = ["HALF_GANG_S", "compare"]

HALF_GANG_S: Final = 120.0  # how long a group may be half placed before somebody must have been told


def compare(
    api: ApiReading,
    store: StoreReading,
    graph: GraphReading,
    scheduler_names: Collection[str],
    *,
    now: float,
    grace: Collection[Difference] | None = None,
) -> tuple[Difference, ...]:
    """All differences; with `grace`, only those that were among them: what the previous readings showed."""
    uses = _uses(api, store, graph, scheduler_names)
    found = (
        *_nodes(api, graph),
        *_members(api, store, graph),
        *_pods_and_external_usage(api, graph, uses),
        *_held(graph),
        *_empty_slots(graph),
        *_overcommitted(api, graph, uses),
        *_half_gangs(store, graph, now),
    )
    if grace is None:
        return found
    seen = {difference.identity for difference in grace}
    return tuple(difference for difference in found if difference.identity in seen)


# Nodes


def _nodes(api: ApiReading, graph: GraphReading) -> Iterator[Difference]:
    for name, node in sorted(api.nodes.items()):
        known = graph.nodes.get(name)
        if known is None:
            yield Difference(DifferenceKind.NODE_MISSING, name, "the graph does not have it")
            continue
        kinds = {kind for kind in (*node.allocatable, *known.capacity) if not kind.startswith(GRAPH_ALONE)}
        if wrong := _unlike(node.allocatable, known.capacity, kinds):
            yield Difference(DifferenceKind.NODE_CAPACITY, name, wrong)
        if known.up is not node.ready:
            says = "ready, and down in the graph" if node.ready else "not ready, and up in the graph"
            yield Difference(DifferenceKind.NODE_STATE, name, f"it is {says}")
    for name in sorted(graph.nodes.keys() - api.nodes.keys()):
        yield Difference(DifferenceKind.NODE_SURPLUS, name, "the cluster does not have it")


# Members


def _members(api: ApiReading, store: StoreReading, graph: GraphReading) -> Iterator[Difference]:
    for uid in sorted(store.members.keys() | graph.members.keys()):
        recorded, seated = store.members.get(uid), graph.members.get(uid)
        if recorded is None or seated is None:
            where = "the graph" if recorded is None else "the store"
            yield Difference(
                DifferenceKind.MEMBER_DISAGREED, uid, f"it has a place in {where} alone", way=where
            )
            continue
        if (recorded.job, recorded.node) != (seated.job, seated.node):
            in_store = f"of job {recorded.job} on {recorded.node} in the store"
            in_graph = f"of job {seated.job} on {seated.node} in the graph"
            both = f"{in_store}, {in_graph}"
            yield Difference(DifferenceKind.MEMBER_DISAGREED, uid, both, way=both)
            continue
        pod = api.pods.get(uid)
        of = f"a member of job {seated.job} on {seated.node}"
        if pod is None:
            yield Difference(DifferenceKind.MEMBER_LEAKED, uid, f"{of}, whose pod is gone")
        elif pod.terminal:
            yield Difference(DifferenceKind.MEMBER_LEAKED, uid, f"{of}, whose pod {_named(pod)} is terminal")
        elif not pod.node:
            if PLACING not in (recorded.phase, seated.phase):
                yield Difference(
                    DifferenceKind.MEMBER_UNBOUND, uid, f"{of}, whose pod {_named(pod)} is on no node"
                )
        elif pod.node != seated.node:
            yield Difference(
                DifferenceKind.MEMBER_ELSEWHERE, uid, f"{of}, whose pod {_named(pod)} is on {pod.node}"
            )


# Pods, and what is held for them


@dataclass(slots=True)
class _Uses:
    """What pods use beside the seats of members, as the cluster has it."""

    holds: dict[str, tuple[str, ResourceUsage]] = field(
        default_factory=dict
    )  # name -> node, amounts: must be there
    allowed: set[str] = field(default_factory=set)  # names that may be there, for reasons of their own
    unknown: dict[str, ApiPod] = field(default_factory=dict)  # pods of ours that nobody knows of
    others: dict[str, dict[str, int]] = field(default_factory=dict)  # by node, all of it


def _uses(
    api: ApiReading, store: StoreReading, graph: GraphReading, scheduler_names: Collection[str]
) -> _Uses:
    # Of a member that is not where it should be, that is enough to say.
    uses = _Uses(allowed={MORE + uid for uid in (*store.members, *graph.members)})
    for uid, pod in sorted(api.pods.items()):
        if not pod.is_counted:
            continue
        assignment = graph.members.get(uid)
        if assignment is not None:
            if assignment.node == pod.node:
                beyond = {
                    kind: units - assignment.amounts.get(kind, 0) for kind, units in pod.amounts.items()
                }
                more = {kind: units for kind, units in beyond.items() if units > 0}
                uses.allowed.discard(MORE + uid)
                _use(api, uses, pod.node, MORE + uid, more)
            continue
        if uid in store.members:
            uses.allowed.update((uid, LEFT_OVER + uid))
            continue
        name = LEFT_OVER + uid if LEFT_OVER + uid in graph.holds and uid not in graph.holds else uid
        if pod.scheduler_name in scheduler_names and name not in graph.holds:
            node = api.nodes.get(pod.node)
            if node is not None and node.ready:
                uses.unknown[uid] = pod
            continue
        _use(api, uses, pod.node, name, pod.amounts)
    return uses


def _use(api: ApiReading, uses: _Uses, node: str, name: str, amounts: ResourceUsage) -> None:
    known = api.nodes.get(node)
    if known is None:
        uses.allowed.add(name)  # Its pods will be cleaned up: they are held or not, it does not matter.
        return
    given = {kind: units for kind, units in amounts.items() if known.allocatable.get(kind)}
    if not given:
        return
    uses.holds[name] = (node, given)
    there = uses.others.setdefault(node, {})
    for kind, units in given.items():
        there[kind] = there.get(kind, 0) + units


def _pods_and_external_usage(api: ApiReading, graph: GraphReading, uses: _Uses) -> Iterator[Difference]:
    for uid, pod in uses.unknown.items():
        what = f"{_named(pod)} is on {pod.node}, and neither store nor graph know of it"
        yield Difference(DifferenceKind.POD_UNKNOWN, uid, what)
    for name, (node, amounts) in sorted(uses.holds.items()):
        hold = graph.holds.get(name)
        if hold is None:
            what = f"{_pod_of(api, name)} uses {_listed(amounts)} of {node}"
            yield Difference(DifferenceKind.EXTERNAL_USAGE_MISSING, name, what)
        elif hold.node != node:
            what = f"{_pod_of(api, name)} is on {node}, its hold on {hold.node}"
            yield Difference(DifferenceKind.EXTERNAL_USAGE_DIFFERS, name, what)
        elif wrong := _unlike(amounts, hold.amounts, api.nodes[node].allocatable.keys()):
            yield Difference(
                DifferenceKind.EXTERNAL_USAGE_DIFFERS, name, f"{_pod_of(api, name)} on {node}: {wrong}"
            )
    for name, hold in sorted(graph.holds.items()):
        if name not in uses.holds and name not in uses.allowed and _takes_anything(hold, graph):
            what = f"{_listed(hold.amounts)} of {hold.node} for {_pod_of(api, name)}"
            yield Difference(DifferenceKind.EXTERNAL_USAGE_SURPLUS, name, what)


def _takes_anything(hold: GraphExternalUsage, graph: GraphReading) -> bool:
    """Whether something is less for it. On a node that is not there it would be, once the node comes."""
    node = graph.nodes.get(hold.node)
    return node is None or any(
        units and node.capacity.get(kind) and not kind.startswith(GRAPH_ALONE)
        for kind, units in hold.amounts.items()
    )


# Sums


def _held(graph: GraphReading) -> Iterator[Difference]:
    sums: dict[str, dict[str, int]] = {}
    for hold in graph.holds.values():
        there = sums.setdefault(hold.node, {})
        for kind, units in hold.amounts.items():
            there[kind] = there.get(kind, 0) + units
    for name, node in sorted(graph.nodes.items()):
        kinds = {kind for kind, units in node.capacity.items() if units}
        if wrong := _unlike(sums.get(name, {}), node.held, kinds, ("holds add up to", "booked are")):
            yield Difference(DifferenceKind.ALLOCATION_DIFFERS, name, wrong)


def _empty_slots(graph: GraphReading) -> Iterator[Difference]:
    for assignment, node in sorted(graph.empty_slots.items()):
        yield Difference(
            DifferenceKind.SLOT_EMPTY, assignment, f"units of {node} are booked, and no member has them"
        )


def _overcommitted(api: ApiReading, graph: GraphReading, uses: _Uses) -> Iterator[Difference]:
    for name, node in sorted(api.nodes.items()):
        known, others = graph.nodes.get(name), uses.others.get(name, {})
        if known is None:
            continue
        wrong = [
            f"{kind}: we use {ours}, others {others.get(kind, 0)}, of {node.allocatable.get(kind, 0)}"
            for kind, ours in sorted(known.used.items())
            if ours > 0
            and not kind.startswith(GRAPH_ALONE)
            and ours + others.get(kind, 0) > node.allocatable.get(kind, 0)
        ]
        if wrong:
            yield Difference(DifferenceKind.OVERCOMMITTED, name, "; ".join(wrong))


def _half_gangs(store: StoreReading, graph: GraphReading, now: float) -> Iterator[Difference]:
    for job in sorted(store.jobs.keys() | graph.jobs.keys()):
        for places in (store.jobs.get(job), graph.jobs.get(job)):
            if places is None or places.since is None or places.broken or not places.placed:
                continue
            if now - places.since > HALF_GANG_S:
                since_s = int(now - places.since)
                what = f"{places.placed} of {places.size} members are in their places, for {since_s} s"
                yield Difference(DifferenceKind.HALF_GANG, str(job), what)
                break


# Words


def _unlike(
    right: ResourceUsage,
    found: ResourceUsage,
    kinds: Collection[str],
    says: tuple[str, str] = ("cluster", "graph"),
) -> str:
    """In which kinds two amounts differ; "" if in none."""
    wrong = [kind for kind in sorted(kinds) if right.get(kind, 0) != found.get(kind, 0)]
    return "; ".join(
        f"{kind}: {says[0]} {right.get(kind, 0)}, {says[1]} {found.get(kind, 0)}" for kind in wrong
    )


def _listed(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{units} {kind}" for kind, units in sorted(amounts.items()))


def _named(pod: ApiPod) -> str:
    return f"{pod.namespace}/{pod.name}"


def _pod_of(api: ApiReading, hold: str) -> str:
    pod = api.pods.get(hold.removeprefix(LEFT_OVER).removeprefix(MORE))
    return _named(pod) if pod is not None else "no pod that is there"
