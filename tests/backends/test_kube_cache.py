"""The cluster cache: the facts that follow from one change."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.kube.types import Pod
from penstock.model.exclusion_key import ExclusionKey
from penstock.protocol.facts import (
    EndCause,
    ExternalUsageGone,
    ExternalUsageSet,
    MemberGone,
    MemberSet,
    MemberStatus,
    NodeGone,
    NodeSet,
    Phase,
    WorkloadGone,
    WorkloadSet,
)
from tests.backends.kube_caches import GROUP, NOW, SIZE, cache_of, new_facts, put
from tests.backends.kube_objects import (
    as_controller,
    claim,
    job,
    native_group,
    node,
    owned_by,
    pod,
    pod_group,
    stateful_set,
    volume,
)

KILLED = {"exitCode": 137, "reason": "OOMKilled"}


def test_a_heartbeat_yields_no_fact() -> None:
    cache = cache_of(node("n1"), pod("a"))
    assert len(new_facts(cache)) == 3
    put(cache, node("n1", resourceVersion="2"))
    put(cache, pod("a", resourceVersion="2"))
    assert new_facts(cache) == []


def test_a_pod_that_another_scheduler_has_bound_is_external_usage() -> None:
    cache = cache_of(pod("a"))
    new_facts(cache)
    put(cache, pod("a", node="n1"))
    usage = ExternalUsageSet("uid-a", "n1", (("cpu", 1000), ("pods", 1)), name="default/a", owner="default")
    assert new_facts(cache) == [usage, MemberGone("uid-a"), WorkloadGone("default/pod/uid-a")]
    put(cache, pod("a", node="n1", phase="Succeeded"))
    assert new_facts(cache) == [ExternalUsageGone("uid-a")]


def test_the_status_of_a_pod_that_we_have_bound_is_reported_until_it_is_deleted() -> None:
    cache = cache_of(pod("a"))
    new_facts(cache)
    put(cache, pod("a", node="n1", placed=True))
    (placed,) = new_facts(cache)
    assert isinstance(placed, MemberStatus)
    assert (placed.phase, placed.node, placed.has_owner) == (Phase.PLACED, "n1", True)
    put(cache, pod("a", node="n1", placed=True, phase="Running"))
    assert [fact.phase for fact in new_facts(cache) if isinstance(fact, MemberStatus)] == [Phase.RUNNING]
    put(cache, pod("a"), gone=True)
    assert new_facts(cache) == [MemberGone("uid-a"), WorkloadGone("default/pod/uid-a")]


def test_a_pod_that_loses_the_annotation_of_our_binding_becomes_external() -> None:
    cache = cache_of(pod("a", node="n1", placed=True))
    new_facts(cache)
    put(cache, pod("a", node="n1"))
    assert {type(fact) for fact in new_facts(cache)} == {ExternalUsageSet, MemberGone, WorkloadGone}


def test_statuses_on_a_node_that_returns_are_reported_again() -> None:
    """For the scheduler they ended with the node: it would allocate their resources twice."""
    cache = cache_of(
        node("n1"), node("n2"), pod("a", node="n1", placed=True), pod("b", node="n2", placed=True)
    )
    new_facts(cache)
    put(cache, node("n1"), gone=True)
    assert new_facts(cache) == [NodeGone("n1")]
    put(cache, node("n1"))
    again = new_facts(cache)
    assert [type(fact) for fact in again] == [NodeSet, MemberStatus]
    assert [fact.member for fact in again if isinstance(fact, MemberStatus)] == ["uid-a"]


def test_pods_of_a_deleted_job_are_not_scheduled() -> None:
    owner = owned_by("Job", "train")
    cache = cache_of(job("train"), pod("a", owner=owner), pod("b", owner=owner))
    assert [fact.workload for fact in new_facts(cache) if isinstance(fact, MemberSet)] == [
        "default/job/train/uid-train"
    ] * 2
    put(cache, job("train"), gone=True)
    facts = new_facts(cache)
    assert not any(isinstance(fact, MemberSet) for fact in facts)
    assert MemberGone("uid-a") in facts
    assert facts[-1] == WorkloadGone("default/job/train/uid-train")
    assert cache.problems["uid-a"].reason == "OwnerNotFound"
    assert cache.missing_controllers() == {}, "an absent controller is not missing"


def test_a_change_of_labels_does_not_revive_an_absent_owner() -> None:
    cache = cache_of(pod("a", owner=owned_by("Job", "train")))
    new_facts(cache)
    cache.mark_controller_absent("uid-train")
    new_facts(cache)
    put(cache, pod("a", owner=owned_by("Job", "train"), labels={GROUP: "ring"}))
    new_facts(cache)
    assert cache.problems["uid-a"].reason == "OwnerNotFound"


def test_a_late_read_does_not_revive_a_deleted_controller() -> None:
    cache = cache_of(pod("a", owner=owned_by("Job", "train")))
    new_facts(cache)
    put(cache, job("train"), gone=True)  # The watch delivers only its deletion.
    cache.set_controller_from_read(as_controller(job("train")))
    new_facts(cache)
    assert cache.problems["uid-a"].reason == "OwnerNotFound"
    cache.set_controller_from_read(as_controller(job("nobody-asked")))
    assert new_facts(cache) == []


def test_a_workload_lives_while_a_controller_wants_to_create_pods() -> None:
    """Between two pods a Job has none, and the next term has to know that more will follow."""
    owner = owned_by("Job", "train")
    cache = cache_of(job("train", wants=1), pod("a", owner=owner, node="n1", placed=True, phase="Running"))
    new_facts(cache)
    put(cache, pod("a", owner=owner, node="n1", placed=True, phase="Failed"))
    put(cache, pod("a"), gone=True)
    facts = new_facts(cache)
    assert not any(isinstance(fact, WorkloadGone) for fact in facts)
    (workload,) = cache.snapshot(NOW).workloads
    assert (workload.workload, workload.size) == ("default/job/train/uid-train", 1)
    put(cache, job("train", over="Failed"))
    assert new_facts(cache) == [WorkloadGone(workload.workload)]


def test_an_ordered_stateful_set_keeps_no_workload_alive() -> None:
    assert cache_of(stateful_set("db")).snapshot(NOW).workloads == ()
    assert len(cache_of(stateful_set("db", parallel=True)).snapshot(NOW).workloads) == 1


def test_a_claim_and_its_volume_make_waiting_pods_schedulable() -> None:
    cache = cache_of(pod("a", claim="c"))
    new_facts(cache)
    assert cache.problems["uid-a"].message == "PersistentVolumeClaim c does not exist"
    put(cache, claim("c", volume="v"))
    assert new_facts(cache) == []
    put(cache, volume("v", zone="z1"))
    assert [type(fact) for fact in new_facts(cache)] == [MemberSet]
    put(cache, volume("v"), gone=True)
    assert new_facts(cache) == [MemberGone("uid-a")]


def test_a_pod_group_makes_waiting_pods_schedulable() -> None:
    spec = {"schedulingGroup": {"podGroupName": "ring"}}
    cache = cache_of(pod("a", spec=spec), pod("b", labels={"scheduling.x-k8s.io/pod-group": "ring"}))
    new_facts(cache)
    assert cache.problems["uid-a"].reason == "PodGroupNotFound"
    put(cache, pod_group("ring", 3))
    facts = new_facts(cache)
    assert [fact.member for fact in facts if isinstance(fact, MemberSet)] == ["uid-b"]
    assert [fact.size for fact in facts if isinstance(fact, WorkloadSet)] == [3]
    cache.set_native_group(native_group("ring", 4))
    facts = new_facts(cache)
    assert [fact.member for fact in facts if isinstance(fact, MemberSet)] == ["uid-a"]
    assert cache.native_group("default/podgroup/ring") == "default/ring"


def test_anti_affinity_to_its_own_labels_means_distinct_nodes_for_the_workload() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    spec = {"affinity": {"podAntiAffinity": required}}
    (workload,) = cache_of(pod("a", labels={"app": "x"}, spec=spec)).snapshot(NOW).workloads
    assert workload.distinct_nodes


def test_host_ports_are_keys_of_pods_and_change_no_node() -> None:
    def with_port(name: str, **more: Any) -> Pod:
        container = {"name": "main", "ports": [{"containerPort": 80, "hostPort": 80}]}
        return pod(name, spec={"containers": [container]}, **more)

    port = (ExclusionKey("node", "host port 80/TCP"),)
    cache = cache_of(node("n1"), with_port("a"), with_port("b"), with_port("c", node="n1", ours=False))
    found = cache.snapshot(NOW)
    assert [capacity.resource for one in found.nodes for capacity in one.capacity] == ["cpu", "pods"]
    assert [(one.brings, one.forbids) for one in found.members] == [(port, port), (port, port)]
    assert [(one.brings, dict(one.usage)) for one in found.external_usage] == [(port, {"pods": 1})]
    put(cache, with_port("a", node="n1", placed=True))
    put(cache, with_port("b"), gone=True)
    facts = new_facts(cache)
    assert not any(isinstance(fact, NodeSet) for fact in facts)
    assert [fact.brings for fact in facts if isinstance(fact, MemberStatus)] == [port]
    put(cache, with_port("a", node="n1", placed=True, phase="Succeeded"))
    ended, _ = new_facts(cache)
    assert isinstance(ended, MemberStatus)
    assert ended.brings == ()
    put(cache, with_port("d"))
    assert [type(fact) for fact in new_facts(cache)] == [WorkloadSet, MemberSet]


def test_a_pod_fits_where_its_host_port_is_free() -> None:
    """The last check before a binding counts every pod, of whatever scheduler."""

    def with_port(name: str, port: int, **more: Any) -> Pod:
        return pod(name, spec={"containers": [{"name": "main", "ports": [{"hostPort": port}]}]}, **more)

    cache = cache_of(node("n1"), node("n2"), with_port("a", 80, node="n1", ours=False))
    new_facts(cache)
    assert "no longer has" in cache.bind_problem("n1", with_port("b", 80))
    assert cache.bind_problem("n1", with_port("b", 81)) == ""
    assert cache.bind_problem("n2", with_port("b", 80)) == ""
    put(cache, with_port("a", 80, node="n1", ours=False, phase="Succeeded"))
    assert cache.bind_problem("n1", with_port("b", 80)) == ""


def test_a_problem_is_a_change_once() -> None:
    cache = cache_of(pod("a", labels={SIZE: "x"}))
    new_facts(cache)
    assert list(cache.take_problem_changes()) == ["uid-a"]
    put(cache, pod("a", labels={SIZE: "x"}, resourceVersion="2"))
    new_facts(cache)
    assert cache.take_problem_changes() == {}
    put(cache, pod("a", labels={SIZE: "1"}))
    new_facts(cache)
    assert cache.take_problem_changes() == {"uid-a": None}


def test_an_older_read_of_a_pod_is_ignored() -> None:
    cache = cache_of(pod("a", node="n1", placed=True, resourceVersion="10"))
    new_facts(cache)
    cache.set_pod_from_read(pod("a", resourceVersion="9"))
    cache.set_pod_from_read(pod("b", resourceVersion="99"))
    assert new_facts(cache) == []
    assert cache.pod("uid-b") is None


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"phase": "Failed", "reason": "OutOfcpu"}, (1 << 8, "OutOfcpu", False)),
        ({"phase": "Failed", "reason": "NodeAffinity"}, (1 << 8, "NodeAffinity", False)),
        ({"phase": "Failed", "reason": "Evicted"}, (1 << 8, "Evicted", True)),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, (1 << 8, "DeadlineExceeded", True)),
        (
            {"phase": "Failed", "containerStatuses": [{"state": {"terminated": KILLED}}]},
            (137 << 8, "OOMKilled", True),
        ),
        ({"phase": "Succeeded"}, (0, "", True)),
        *(
            (
                {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": code}}}]},
                (status << 8, "", True),
            )
            for code, status in ((-1, 255), (3221225786, 58), (256, 1))  # from runtimes, and from Windows
        ),
    ],
)
def test_terminal_phases(status: dict[str, object], expected: tuple[int, str, bool]) -> None:
    found = cache_of().member_status(pod("a", node="n1", placed=True, status=status), NOW)
    assert found.phase is Phase.ENDED
    assert (found.status, found.message, found.started) == expected


def test_a_pod_that_its_deletion_has_ended_was_deleted_and_did_not_fail_by_itself() -> None:
    stopped = {"terminated": {**KILLED, "exitCode": 143}}
    status = {"phase": "Failed", "containerStatuses": [{"state": stopped}]}
    ended = pod("a", node="n1", placed=True, status=status, deletionTimestamp="2026-01-01T00:00:00Z")
    found = cache_of().member_status(ended, NOW)
    assert (found.phase, found.cause, found.message) == (Phase.ENDED, EndCause.GONE, "")
