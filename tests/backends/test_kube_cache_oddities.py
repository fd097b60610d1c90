"""The mirror: pods that look like something else, lists after a silence, pods that speak for each other."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.volumes import VolumeTracker
from penstock.protocol.facts import ExternalUsageSet, MemberGone, MemberSet, NodeSet, WorkloadSet
from tests.backends.kube_caches import GROUP, NOW, cache_of, put, told
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
    return [fact for fact in told(cache) if isinstance(fact, WorkloadSet)]


# Pods


def test_the_mark_of_a_binding_on_a_pod_of_others_means_nothing() -> None:
    """Whoever copies a pod copies its annotations."""
    (fact,) = told(cache_of(pod("a", ours=False, node="n1", placed=True)))
    assert isinstance(fact, ExternalUsageSet)
    assert fact.usage == (("cpu", 1000), ("pods", 1))


def test_one_that_lost_the_mark_of_our_binding_is_gone_once() -> None:
    cache = cache_of(pod("a", node="n1", placed=True))
    told(cache)
    put(cache, pod("a", node="n1"))
    assert MemberGone("uid-a") in told(cache)
    put(cache, pod("a", node="n1", resourceVersion="2"))
    assert told(cache) == []


@pytest.mark.parametrize(("kind", "standing"), [("DaemonSet", True), ("Node", True), ("ReplicaSet", False)])
def test_what_comes_back_on_its_node_stands(kind: str, standing: bool) -> None:
    (fact,) = told(cache_of(pod("a", ours=False, node="n1", owner=owned_by(kind, "x"))))
    assert isinstance(fact, ExternalUsageSet)
    assert fact.standing is standing


def test_a_pod_that_cannot_be_read_takes_one_place() -> None:
    (fact,) = told(cache_of(pod("a", ours=False, node="n1", cpu="bad")))
    assert isinstance(fact, ExternalUsageSet)
    assert fact.usage == (("pods", 1),)


def test_a_waiting_pod_that_is_being_deleted_is_no_member_any_more() -> None:
    cache = cache_of(pod("a"))
    told(cache)
    put(cache, pod("a", deletionTimestamp=time_text(1900.0)))
    assert told(cache) == [MemberGone("uid-a")]


def test_a_pod_with_gates_is_a_member_that_is_not_ready() -> None:
    cache = cache_of(pod("a", gated=True))
    assert [fact.ready for fact in told(cache) if isinstance(fact, MemberSet)] == [False]
    put(cache, pod("a"))
    assert [fact.ready for fact in told(cache) if isinstance(fact, MemberSet)] == [True]


@pytest.mark.parametrize(("owner", "recreated"), [(None, False), (owned_by("Thing", "x"), True)])
def test_a_pod_with_a_controller_is_made_again(owner: Any, recreated: bool) -> None:
    (member,) = cache_of(pod("a", owner=owner)).snapshot(NOW).members
    assert member.recreated is recreated


def test_a_node_that_cannot_be_read_is_down_and_says_why() -> None:
    (found,) = cache_of(node("n1", cpu="bad")).snapshot(NOW).nodes
    assert (found.up, found.capacity) == (False, ())
    assert "status.allocatable[cpu]" in found.why


def test_a_node_has_a_host_port_as_soon_as_somebody_asks_for_it() -> None:
    cache = cache_of(node("n1"))
    told(cache)
    ports = [{"name": "main", "ports": [{"hostPort": 80}]}]
    put(cache, pod("a", spec={"containers": ports}))
    (found,) = [fact for fact in told(cache) if isinstance(fact, NodeSet)]
    assert [one.units for one in found.capacity if one.resource == "hostport/TCP/80"] == [1]


def test_a_pod_that_has_run_was_not_refused_whatever_its_reason() -> None:
    """A node that shuts down refuses pods that come, and fails those that run."""
    ran = [{"name": "main", "state": {"terminated": {"exitCode": 143}}}]
    status = {"phase": "Failed", "reason": "NodeShutdown", "containerStatuses": ran}
    found = cache_of().member_status(pod("a", node="n1", placed=True, status=status), NOW)
    assert (found.started, found.status, found.message) == (True, 143 << 8, "NodeShutdown")


def test_a_pod_has_ended_when_the_last_of_its_containers_has() -> None:
    ends = [{"state": {"terminated": {"exitCode": 0, "finishedAt": time_text(at)}}} for at in (1700, 1800)]
    status = {"phase": "Succeeded", "containerStatuses": ends}
    assert cache_of().member_status(pod("a", node="n1", placed=True, status=status), NOW).at == 1800.0


# Claims and volumes


def test_a_claim_that_goes_sets_those_aside_who_have_it() -> None:
    cache = cache_of(claim("c", volume="v"), volume("v"), pod("a", claim="c"))
    assert any(isinstance(fact, MemberSet) for fact in told(cache))
    put(cache, claim("c", volume="v"), gone=True)
    assert told(cache) == [MemberGone("uid-a")]
    assert cache.problems["uid-a"].message == "PersistentVolumeClaim c does not exist"


@pytest.mark.parametrize("lost", ["the claim", "the volume"])
def test_what_is_missing_from_a_list_of_claims_or_volumes_is_gone(lost: str) -> None:
    cache = cache_of(claim("c", volume="v"), volume("v"), pod("a", claim="c"))
    told(cache)
    if lost == "the claim":
        cache.replace_claims([])
    else:
        cache.replace_volumes([])
    assert told(cache) == [MemberGone("uid-a")]


def test_who_does_not_wait_any_more_is_not_woken_by_a_claim() -> None:
    volumes = VolumeTracker()
    volumes.track_pod("uid-a", pod("a", claim="c"))
    assert volumes.set_claim(claim("c")) == ["uid-a"]
    volumes.untrack_pod("uid-a")
    assert volumes.set_claim(claim("c", volume="v")) == []


# Works


def test_a_job_that_wants_more_is_a_larger_work_however_many_of_its_pods_came_at_once() -> None:
    owner = owned_by("Job", "train")
    cache = cache_of(job("train", wants=2), *(pod(name, owner=owner, created=1000.0) for name in "ab"))
    assert [workload.size for workload in workloads(cache)] == [2]
    put(cache, job("train", wants=3))
    assert [workload.size for workload in workloads(cache)] == [3]


def test_a_work_is_as_its_first_pod_says_in_whatever_order_they_were_heard_of() -> None:
    night = {"penstock.dev/urgency": "16", "penstock.dev/requeue": "always"}
    cache = cache_of(
        pod("c", created=30.0, labels={GROUP: "ring"}, notes=night),
        pod("a", created=10.0, labels={GROUP: "ring"}, notes=night),
        pod("b", created=20.0, labels={GROUP: "ring"}),
    )
    (workload,) = cache.snapshot(NOW).workloads
    assert workload.requeue.value == "always"


def test_a_work_without_pods_waits_for_no_time() -> None:
    """When it may begin counts from the creation of pods, and there are none."""
    later = template(notes={"penstock.dev/begin": "+10m"})
    (workload,) = cache_of(job("train", of=later)).snapshot(NOW).workloads
    assert workload.begin_at is None


def test_makers_of_pods_that_others_schedule_are_no_works() -> None:
    foreign = template(scheduler="default-scheduler")
    assert cache_of(job("train", of=foreign)).snapshot(NOW).workloads == ()


def test_a_maker_that_was_heard_of_is_not_as_an_older_reading_has_it() -> None:
    owner = owned_by("Job", "train")
    cache = cache_of(pod("a", owner=owner))
    told(cache)
    assert list(cache.missing_controllers()) == ["uid-train"]
    put(cache, job("train", wants=3))
    cache.set_controller_from_read(as_controller(job("train", wants=2)))
    assert [workload.size for workload in workloads(cache)] == [3]


def test_a_pod_that_was_disowned_is_a_work_of_its_own() -> None:
    owner = owned_by("Job", "train")
    cache = cache_of(job("train", wants=1), pod("a", owner=owner))
    told(cache)
    put(cache, pod("a"))
    assert [fact.workload for fact in told(cache) if isinstance(fact, MemberSet)] == ["default/pod/uid-a"]


def test_an_owner_that_is_not_there_is_asked_for_once() -> None:
    cache = cache_of(pod("a", owner=owned_by("Job", "train")))
    told(cache)
    assert list(cache.missing_controllers()) == ["uid-train"]
    cache.mark_controller_absent("uid-train")
    told(cache)
    assert cache.missing_controllers() == {}


def test_an_owner_that_was_not_there_is_asked_for_again_when_somebody_else_names_it() -> None:
    """Nothing is kept of owners that nobody names any more."""
    owner = owned_by("Job", "train")
    cache = cache_of(pod("a", owner=owner))
    told(cache)
    cache.mark_controller_absent("uid-train")
    told(cache)
    put(cache, pod("a"), gone=True)
    put(cache, pod("b", owner=owner))
    told(cache)
    assert list(cache.missing_controllers()) == ["uid-train"]
