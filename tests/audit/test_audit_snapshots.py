"""Snapshots of the cluster and of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pytest

from penstock.audit.api import read_api
from penstock.audit.snapshots import ApiNode, ApiPod, JobAssignments, StoreMember
from penstock.audit.store import read_store
from penstock.errors import Unavailable
from penstock.kube.client import KubeClient, ListResult
from penstock.model.job import JobState
from penstock.sched.member_states import MemberPhase
from penstock.sched.records import (
    ExceptionRecord,
    JobLive,
    JobNew,
    JobRecord,
    MemberRecord,
    MemberRecorded,
)
from penstock.store.memory import MemoryStore

POD = {
    "metadata": {
        "name": "a-0",
        "namespace": "team",
        "uid": "u0",
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    },
    "spec": {
        "schedulerName": "penstock",
        "nodeName": "n0",
        "containers": [{"name": "a", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}],
    },
    "status": {"phase": "Running"},
}


def node(name: str, *conditions: tuple[str, str]) -> dict[str, object]:
    told = [{"type": resource, "status": status} for resource, status in conditions]
    return {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4"}, "conditions": told}}


class CannedClient:
    """Lists what it was given, as a server would write it."""

    def __init__(self, lists: Mapping[str, list[Any]], consistent: bool = True) -> None:
        self._lists = lists
        self._consistent = consistent

    async def list(self, path: str, resource: type[Any], *, page: int) -> ListResult[Any]:
        assert page > 0
        items, unread = [], []
        for raw in map(msgspec.json.encode, self._lists[path]):
            try:
                items.append(msgspec.json.decode(raw, type=resource))
            except msgspec.ValidationError:
                unread.append(raw)
        return ListResult(tuple(items), "7", self._consistent, tuple(unread))


def read(lists: Mapping[str, list[Any]], consistent: bool = True) -> Any:
    return asyncio.run(read_api(cast(KubeClient, CannedClient(lists, consistent))))


def test_the_api_snapshot_has_every_node_and_pod() -> None:
    unbound = {"metadata": {"uid": "u1"}, "spec": {}, "status": {"phase": "Failed"}}
    nodes = [node("n0", ("Ready", "True")), node("n1", ("Ready", "Unknown")), node("n2", ("Odd", "True"))]
    found = read({"/api/v1/nodes": nodes, "/api/v1/pods": [POD, unbound]})
    four = {"cpu": 4000}
    assert found.nodes == {"n0": ApiNode(four), "n1": ApiNode(four, False), "n2": ApiNode(four, False)}
    usage = {"cpu": 500, "memory": 1 << 30, "pods": 1}
    assert found.pods["u0"] == ApiPod("team", "a-0", "n0", "penstock", False, True, usage)
    assert found.pods["u1"].terminal
    assert not found.pods["u1"].is_counted


def test_a_partly_decodable_pod_is_in_the_snapshot() -> None:
    """A pod that were missing in the snapshot would count as gone, and its slot would be released."""
    odd = {**POD, "spec": {**POD["spec"], "containers": "none"}}  # type: ignore[dict-item]
    found = read({"/api/v1/nodes": [], "/api/v1/pods": [odd]})
    assert found.pods["u0"] == ApiPod("team", "a-0", "n0", "penstock", False, True, {"pods": 1})


@pytest.mark.parametrize("place", ["/api/v1/nodes", "/api/v1/pods"])
def test_an_undecodable_object_fails_the_snapshot(place: str) -> None:
    odd = {"metadata": {"name": "odd"}, "spec": 7, "status": 7}
    with pytest.raises(Unavailable, match=r"cannot decode (node|pod) odd"):
        read({"/api/v1/nodes": [], "/api/v1/pods": [], place: [odd]})


def test_an_inconsistent_list_fails_the_snapshot() -> None:
    with pytest.raises(Unavailable):
        read({"/api/v1/nodes": [], "/api/v1/pods": []}, consistent=False)


def assignment(key: str, phase: str, node: str = "", seen_at: float = 0.0) -> MemberRecord:
    return MemberRecord(key, 0, 0, MemberPhase(phase), node, seen_at=seen_at)


CANCELED = ExceptionRecord("cancel", 0, "")
PLACES = [
    (
        [assignment("a", "running", "n0"), assignment("b", "ended", "n0")],
        JobRecord(),
        JobAssignments(1, 1, False, None),
    ),
    (
        [assignment("a", "lost", "n0"), assignment("b", "waiting")],
        JobRecord(),
        JobAssignments(2, 1, False, None),
    ),
    (
        [assignment("a", "placed", "n0"), assignment("b", "waiting")],
        JobRecord(incomplete_since=5.0, incomplete_reason="so"),
        JobAssignments(2, 1, True, 5.0),
    ),
    (
        [assignment("a", "placed", "n0"), assignment("b", "placing", "n1", 9.0)],
        JobRecord(placed_at=7.0),
        JobAssignments(2, 1, False, 9.0),
    ),
    (
        [assignment("a", "placing", "n0", 1.0)],
        JobRecord(placed_at=7.0),
        JobAssignments(1, 0, False, 7.0),
    ),
    (
        [assignment("a", "placed", "n0")],
        JobRecord(incomplete_since=5.0, exception=CANCELED),
        JobAssignments(1, 1, False, None),
    ),
]


@pytest.mark.parametrize(("members", "record", "expected"), PLACES, ids=range(len(PLACES)))
def test_the_store_snapshot_counts_placed_members(
    members: list[MemberRecord], record: JobRecord, expected: JobAssignments
) -> None:
    async def workload() -> None:
        store = MemoryStore()
        epoch, _ = await store.take_over(0.0)
        live = JobLive(1, JobState.RUN, "", 16, 0, "", None, None, None, record)
        recorded = [MemberRecorded(1, member) for member in members]
        await store.record(epoch, [JobNew(1, "ada", "job", 0.0, {}), live, *recorded])
        found = await read_store(store)
        assert found.jobs == {1: expected}
        assert found.members == {
            one.key: StoreMember(1, one.node, one.phase.value) for one in members if one.phase.is_live
        }

    asyncio.run(workload())
