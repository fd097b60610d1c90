"""The cluster cache: unusual pods, lists that lack objects, pods of one equivalence class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from penstock.backends.kube import cache as cache_module
from penstock.backends.kube import object_faults
from penstock.backends.kube import workloads as workloads_module
from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.volumes import VolumeTracker
from penstock.protocol.facts import ExternalUsageSet, MemberGone, MemberSet, NodeSet, WorkloadSet
from tests.backends.kube_caches import GROUP, NOW, cache_of, new_facts, put
from tests.backends.kube_objects import (
    as_controller,
    claim,
    job,
    node,
    owned_by,
    pod,
    template,
    time_text,
    volume,
)


def workloads(cache: ClusterCache) -> list[WorkloadSet]:
    return [fact for fact in new_facts(cache) if isinstance(fact, WorkloadSet)]


# Pods


def test_the_annotation_of_our_binding_on_an_external_pod_is_ignored() -> None:
    """A copy of a pod has its annotations."""
    (fact,) = new_facts(cache_of(pod("a", ours=False, node="n1", placed=True)))
    assert isinstance(fact, ExternalUsageSet)
    assert fact.usage == (("cpu", 1000), ("pods", 1))


def test_a_pod_that_lost_the_annotation_of_our_binding_is_gone_once() -> None:
    cache = cache_of(pod("a", node="n1", placed=True))
    new_facts(cache)
    put(cache, pod("a", node="n1"))
    assert MemberGone("uid-a") in new_facts(cache)
    put(cache, pod("a", node="n1", resourceVersion="2"))
    assert new_facts(cache) == []


@pytest.mark.parametrize(("kind", "standing"), [("DaemonSet", True), ("Node", True), ("ReplicaSet", False)])
def test_pods_that_return_to_their_node_are_standing_usage(kind: str, standing: bool) -> None:
    (fact,) = new_facts(cache_of(pod("a", ours=False, node="n1", owner=owned_by(kind, "x"))))
    assert isinstance(fact, ExternalUsageSet)
    assert fact.standing is standing


def test_a_pod_with_unreadable_requests_counts_as_one_pod() -> None:
    (fact,) = new_facts(cache_of(pod("a", ours=False, node="n1", cpu="bad")))
    assert isinstance(fact, ExternalUsageSet)
    assert fact.usage == (("pods", 1),)


def test_a_waiting_pod_that_is_being_deleted_is_no_member() -> None:
    cache = cache_of(pod("a"))
    new_facts(cache)
    put(cache, pod("a", deletionTimestamp=time_text(1900.0)))
    assert new_facts(cache) == [MemberGone("uid-a")]


def test_a_pod_with_gates_is_a_member_that_is_not_ready() -> None:
    cache = cache_of(pod("a", gated=True))
    assert [fact.ready for fact in new_facts(cache) if isinstance(fact, MemberSet)] == [False]
    put(cache, pod("a"))
    assert [fact.ready for fact in new_facts(cache) if isinstance(fact, MemberSet)] == [True]


@pytest.mark.parametrize(("owner", "recreated"), [(None, False), (owned_by("Thing", "x"), True)])
def test_a_pod_with_a_controller_is_recreated(owner: Any, recreated: bool) -> None:
    (member,) = cache_of(pod("a", owner=owner)).snapshot(NOW).members
    assert member.recreated is recreated


def test_a_node_that_cannot_be_read_is_down_with_a_reason() -> None:
    (found,) = cache_of(node("n1", cpu="bad")).snapshot(NOW).nodes
    assert (found.up, found.capacity) == (False, ())
    assert "status.allocatable[cpu]" in found.why


def test_a_host_port_is_reported_with_the_first_pod_that_has_it() -> None:
    cache = cache_of(node("n1"))
    new_facts(cache)
    ports = [{"name": "main", "ports": [{"hostPort": 80}]}]
    put(cache, pod("a", spec={"containers": ports}))
    facts = new_facts(cache)
    assert not any(isinstance(fact, NodeSet) for fact in facts)
    (found,) = [fact for fact in facts if isinstance(fact, MemberSet)]
    assert [key.name for key in found.brings] == [key.name for key in found.forbids] == ["host port 80/TCP"]


def test_a_pod_with_terminated_containers_has_started() -> None:
    """NodeShutdown is the reason of pods that the kubelet rejects and of pods that it ends."""
    ran = [{"name": "main", "state": {"terminated": {"exitCode": 143}}}]
    status = {"phase": "Failed", "reason": "NodeShutdown", "containerStatuses": ran}
    found = cache_of().member_status(pod("a", node="n1", placed=True, status=status), NOW)
    assert (found.started, found.status, found.message) == (True, 143 << 8, "NodeShutdown")


def test_a_pod_ends_with_the_last_of_its_containers() -> None:
    ends = [{"state": {"terminated": {"exitCode": 0, "finishedAt": time_text(at)}}} for at in (1700, 1800)]
    status = {"phase": "Succeeded", "containerStatuses": ends}
    assert cache_of().member_status(pod("a", node="n1", placed=True, status=status), NOW).at == 1800.0


# Claims and volumes


def test_pods_of_a_deleted_claim_are_not_schedulable() -> None:
    cache = cache_of(claim("c", volume="v"), volume("v"), pod("a", claim="c"))
    assert any(isinstance(fact, MemberSet) for fact in new_facts(cache))
    put(cache, claim("c", volume="v"), gone=True)
    assert new_facts(cache) == [MemberGone("uid-a")]
    assert cache.problems["uid-a"].message == "PersistentVolumeClaim c does not exist"


@pytest.mark.parametrize("lost", ["the claim", "the volume"])
def test_claims_and_volumes_that_a_list_lacks_are_deleted(lost: str) -> None:
    cache = cache_of(claim("c", volume="v"), volume("v"), pod("a", claim="c"))
    new_facts(cache)
    if lost == "the claim":
        cache.replace_claims([])
    else:
        cache.replace_volumes([])
    assert new_facts(cache) == [MemberGone("uid-a")]


def test_untracked_pods_are_not_affected_by_a_claim() -> None:
    volumes = VolumeTracker()
    volumes.track_pod("uid-a", pod("a", claim="c"))
    assert volumes.set_claim(claim("c")) == ["uid-a"]
    volumes.untrack_pod("uid-a")
    assert volumes.set_claim(claim("c", volume="v")) == []


# Workloads


def test_a_job_with_more_parallelism_is_a_larger_workload() -> None:
    owner = owned_by("Job", "train")
    cache = cache_of(job("train", wants=2), *(pod(name, owner=owner, created=1000.0) for name in "ab"))
    assert [workload.size for workload in workloads(cache)] == [2]
    put(cache, job("train", wants=3))
    assert [workload.size for workload in workloads(cache)] == [3]


def test_the_first_created_pod_decides_in_any_order_of_arrival() -> None:
    night = {"penstock.dev/urgency": "16", "penstock.dev/requeue": "always"}
    cache = cache_of(
        pod("c", created=30.0, labels={GROUP: "ring"}, annotations=night),
        pod("a", created=10.0, labels={GROUP: "ring"}, annotations=night),
        pod("b", created=20.0, labels={GROUP: "ring"}),
    )
    (workload,) = cache.snapshot(NOW).workloads
    assert workload.requeue.value == "always"


def test_a_workload_without_pods_has_no_begin_time() -> None:
    """A relative begin time counts from the creation of a pod."""
    later = template(annotations={"penstock.dev/begin": "+10m"})
    (workload,) = cache_of(job("train", of=later)).snapshot(NOW).workloads
    assert workload.begin_at is None


def test_controllers_of_external_pods_are_no_workloads() -> None:
    foreign = template(scheduler="default-scheduler")
    assert cache_of(job("train", of=foreign)).snapshot(NOW).workloads == ()


def test_a_read_does_not_override_a_controller_from_the_watch() -> None:
    owner = owned_by("Job", "train")
    cache = cache_of(pod("a", owner=owner))
    new_facts(cache)
    assert list(cache.missing_controllers()) == ["uid-train"]
    put(cache, job("train", wants=3))
    cache.set_controller_from_read(as_controller(job("train", wants=2)))
    assert [workload.size for workload in workloads(cache)] == [3]


def test_an_orphaned_pod_is_a_workload_by_itself() -> None:
    owner = owned_by("Job", "train")
    cache = cache_of(job("train", wants=1), pod("a", owner=owner))
    new_facts(cache)
    put(cache, pod("a"))
    assert [fact.workload for fact in new_facts(cache) if isinstance(fact, MemberSet)] == [
        "default/pod/uid-a"
    ]


def test_an_absent_owner_is_not_missing_any_more() -> None:
    cache = cache_of(pod("a", owner=owned_by("Job", "train")))
    new_facts(cache)
    assert list(cache.missing_controllers()) == ["uid-train"]
    cache.mark_controller_absent("uid-train")
    new_facts(cache)
    assert cache.missing_controllers() == {}


def test_an_absent_owner_is_missing_again_when_another_pod_names_it() -> None:
    """Owners that no pod names are forgotten."""
    owner = owned_by("Job", "train")
    cache = cache_of(pod("a", owner=owner))
    new_facts(cache)
    cache.mark_controller_absent("uid-train")
    new_facts(cache)
    put(cache, pod("a"), gone=True)
    put(cache, pod("b", owner=owner))
    new_facts(cache)
    assert list(cache.missing_controllers()) == ["uid-train"]


# Unexpected exceptions: they concern one object


def failing(function: Callable[..., Any], is_culprit: Callable[..., bool]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        if is_culprit(*args):
            raise ZeroDivisionError("unexpected")
        return function(*args)

    return call


def members(cache: ClusterCache) -> list[str]:
    return [fact.member for fact in new_facts(cache) if isinstance(fact, MemberSet)]


@pytest.mark.parametrize("stage", ["membership_of", "member_of"])
def test_a_pod_that_cannot_be_read_has_a_problem_and_the_others_are_reported(stage: str) -> None:
    original = getattr(cache_module, stage)
    with patch.object(cache_module, stage, failing(original, lambda one, *_: one.metadata.name == "odd")):
        cache = cache_of(pod("odd"), pod("usual"))
        assert members(cache) == ["uid-usual"]
        problem = cache.problems["uid-odd"]
        assert problem.reason == "InternalError"
        assert "ZeroDivisionError: unexpected" in problem.message
    put(cache, pod("odd", cpu="2"))
    assert members(cache) == ["uid-odd"]
    assert cache.problems == {}


def test_a_workload_that_cannot_be_read_is_a_problem_of_its_pods() -> None:
    original = workloads_module.workload_fact
    with patch.object(
        workloads_module, "workload_fact", failing(original, lambda found, *_: found[0].name == "odd")
    ):
        cache = cache_of(pod("odd"), pod("usual"))
        assert members(cache) == ["uid-usual"]
        assert cache.problems["uid-odd"].reason == "InternalError"
    put(cache, pod("odd", annotations={"penstock.dev/urgency": "3"}))
    assert members(cache) == ["uid-odd"]


def test_a_pod_of_ours_on_a_node_stays_as_it_was_if_it_cannot_be_read() -> None:
    cache = cache_of(pod("a", node="n1", placed=True))
    new_facts(cache)
    with patch.object(cache_module, "member_status_of", failing(lambda *_: None, lambda *_: True)):
        put(cache, pod("a", node="n1", placed=True, phase="Running"))
        assert new_facts(cache) == []


def test_a_node_that_cannot_be_read_is_not_up() -> None:
    with patch.object(object_faults, "node_fact", failing(lambda *_: None, lambda *_: True)):
        (fact,) = new_facts(cache_of(node("n1")))
    assert isinstance(fact, NodeSet)
    assert not fact.up
    assert "unexpected" in fact.why
