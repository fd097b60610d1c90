"""The mirror: what one change of the objects is told as."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.kube.types import Pod
from penstock.podspec.problems import GROUP_INADMISSIBLE, PodProblem
from penstock.protocol.facts import (
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
from tests.backends.kube_caches import GROUP, NOW, SIZE, cache_of, put, told
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


def test_a_heartbeat_is_no_fact() -> None:
    cache = cache_of(node("n1"), pod("a"))
    assert len(told(cache)) == 3
    put(cache, node("n1", resourceVersion="2"))
    put(cache, pod("a", resourceVersion="2"))
    assert told(cache) == []


def test_a_pod_that_others_have_bound_is_a_hold_and_no_member() -> None:
    cache = cache_of(pod("a"))
    told(cache)
    put(cache, pod("a", node="n1"))
    hold = ExternalUsageSet("uid-a", "n1", (("cpu", 1000), ("pods", 1)), name="default/a")
    assert told(cache) == [hold, MemberGone("uid-a"), WorkloadGone("default/pod/uid-a")]
    put(cache, pod("a", node="n1", phase="Succeeded"))
    assert told(cache) == [ExternalUsageGone("uid-a")]


def test_a_pod_that_we_have_bound_is_observed_until_it_is_gone() -> None:
    cache = cache_of(pod("a"))
    told(cache)
    put(cache, pod("a", node="n1", placed=True))
    (placed,) = told(cache)
    assert isinstance(placed, MemberStatus)
    assert (placed.phase, placed.node, placed.has_owner) == (Phase.PLACED, "n1", True)
    put(cache, pod("a", node="n1", placed=True, phase="Running"))
    assert [fact.phase for fact in told(cache) if isinstance(fact, MemberStatus)] == [Phase.RUNNING]
    put(cache, pod("a"), gone=True)
    assert told(cache) == [MemberGone("uid-a"), WorkloadGone("default/pod/uid-a")]


def test_one_that_loses_the_mark_of_our_binding_becomes_a_hold() -> None:
    cache = cache_of(pod("a", node="n1", placed=True))
    told(cache)
    put(cache, pod("a", node="n1"))
    assert {type(fact) for fact in told(cache)} == {ExternalUsageSet, MemberGone, WorkloadGone}


def test_what_runs_on_a_node_that_is_back_is_told_again() -> None:
    """With the node all that ran there was over for the scheduler: it would give its units away twice."""
    cache = cache_of(
        node("n1"), node("n2"), pod("a", node="n1", placed=True), pod("b", node="n2", placed=True)
    )
    told(cache)
    put(cache, node("n1"), gone=True)
    assert told(cache) == [NodeGone("n1")]
    put(cache, node("n1"))
    again = told(cache)
    assert [type(fact) for fact in again] == [NodeSet, MemberStatus]
    assert [fact.member for fact in again if isinstance(fact, MemberStatus)] == ["uid-a"]


def test_pods_of_a_job_that_was_deleted_are_not_started_one_by_one() -> None:
    owner = owned_by("Job", "train")
    cache = cache_of(job("train"), pod("a", owner=owner), pod("b", owner=owner))
    assert [fact.workload for fact in told(cache) if isinstance(fact, MemberSet)] == [
        "default/job/train/uid-train"
    ] * 2
    put(cache, job("train"), gone=True)
    facts = told(cache)
    assert not any(isinstance(fact, MemberSet) for fact in facts)
    assert MemberGone("uid-a") in facts
    assert facts[-1] == WorkloadGone("default/job/train/uid-train")
    assert cache.problems["uid-a"].reason == "OwnerNotFound"
    assert cache.missing_controllers() == {}, "nobody is asked for who is known not to be there"


def test_labels_that_change_do_not_bring_a_lost_owner_back() -> None:
    cache = cache_of(pod("a", owner=owned_by("Job", "train")))
    told(cache)
    cache.mark_controller_absent("uid-train")
    told(cache)
    put(cache, pod("a", owner=owned_by("Job", "train"), labels={GROUP: "ring"}))
    told(cache)
    assert cache.problems["uid-a"].reason == "OwnerNotFound"


def test_a_maker_that_is_read_late_does_not_come_back_to_life() -> None:
    cache = cache_of(pod("a", owner=owned_by("Job", "train")))
    told(cache)
    put(cache, job("train"), gone=True)  # It was never heard of, and its end was.
    cache.set_controller_from_read(as_controller(job("train")))
    told(cache)
    assert cache.problems["uid-a"].reason == "OwnerNotFound"
    cache.set_controller_from_read(as_controller(job("nobody-asked")))
    assert told(cache) == []


def test_a_work_lives_while_somebody_wants_to_make_pods_for_it() -> None:
    """Between two pods of a Job there are none: also a new life has to know that more will come."""
    owner = owned_by("Job", "train")
    cache = cache_of(job("train", wants=1), pod("a", owner=owner, node="n1", placed=True, phase="Running"))
    told(cache)
    put(cache, pod("a", owner=owner, node="n1", placed=True, phase="Failed"))
    put(cache, pod("a"), gone=True)
    facts = told(cache)
    assert not any(isinstance(fact, WorkloadGone) for fact in facts)
    (workload,) = cache.snapshot(NOW).workloads
    assert (workload.workload, workload.size) == ("default/job/train/uid-train", 1)
    put(cache, job("train", over="Failed"))
    assert told(cache) == [WorkloadGone(workload.workload)]


def test_an_ordered_stateful_set_keeps_no_work_alive() -> None:
    assert cache_of(stateful_set("db")).snapshot(NOW).workloads == ()
    assert len(cache_of(stateful_set("db", parallel=True)).snapshot(NOW).workloads) == 1


def test_a_group_that_was_given_up_is_tried_again_when_somebody_comes() -> None:
    owner = owned_by("Job", "train")
    cache = cache_of(job("train"), pod("a", owner=owner), pod("b", owner=owner))
    told(cache)
    cache.mark_inadmissible(
        "default/job/train/uid-train", PodProblem(GROUP_INADMISSIBLE, "they did not come")
    )
    assert told(cache) == [MemberGone("uid-a"), MemberGone("uid-b")]
    assert cache.take_problem_changes()["uid-a"] == PodProblem(GROUP_INADMISSIBLE, "they did not come")
    other = cache_of(job("train"), pod("a", owner=owner), pod("b", owner=owner))
    other.inherit(cache)
    assert other.snapshot(NOW).members == ()
    put(cache, pod("c", owner=owner))
    assert [fact.member for fact in told(cache) if isinstance(fact, MemberSet)] == [
        "uid-c",
        "uid-a",
        "uid-b",
    ]


def test_a_group_that_was_given_up_says_so_after_a_restart() -> None:
    said = {
        "type": "PodScheduled",
        "status": "False",
        "reason": GROUP_INADMISSIBLE,
        "message": "they did not come",
    }
    labels = {GROUP: "ring", SIZE: "2"}
    pods = [pod(name, labels=labels, status={"conditions": [said]}) for name in "ab"]
    assert cache_of(*pods).snapshot(NOW).members == ()
    assert len(cache_of(*pods, pod("c", labels=labels)).snapshot(NOW).members) == 3


def test_a_claim_and_its_volume_wake_those_who_wait_for_them() -> None:
    cache = cache_of(pod("a", claim="c"))
    told(cache)
    assert cache.problems["uid-a"].message == "PersistentVolumeClaim c does not exist"
    put(cache, claim("c", volume="v"))
    assert told(cache) == []
    put(cache, volume("v", zone="z1"))
    assert [type(fact) for fact in told(cache)] == [MemberSet]
    put(cache, volume("v"), gone=True)
    assert told(cache) == [MemberGone("uid-a")]


def test_a_pod_group_wakes_those_who_wait_for_it() -> None:
    spec = {"schedulingGroup": {"podGroupName": "ring"}}
    cache = cache_of(pod("a", spec=spec), pod("b", labels={"scheduling.x-k8s.io/pod-group": "ring"}))
    told(cache)
    assert cache.problems["uid-a"].reason == "PodGroupNotFound"
    put(cache, pod_group("ring", 3))
    facts = told(cache)
    assert [fact.member for fact in facts if isinstance(fact, MemberSet)] == ["uid-b"]
    assert [fact.size for fact in facts if isinstance(fact, WorkloadSet)] == [3]
    cache.set_native_group(native_group("ring", 4))
    facts = told(cache)
    assert [fact.member for fact in facts if isinstance(fact, MemberSet)] == ["uid-a"]
    assert cache.native_group("default/podgroup/ring") == "default/ring"


def test_apart_from_its_like_means_distinct_nodes_for_the_work() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    spec = {"affinity": {"podAntiAffinity": required}}
    (workload,) = cache_of(pod("a", labels={"app": "x"}, spec=spec)).snapshot(NOW).workloads
    assert workload.distinct_nodes


def test_a_node_has_a_host_port_while_somebody_asks_for_it() -> None:
    """What one asks for is there before it, and goes after it: what it has must not be in the way."""

    def asks(name: str, **more: Any) -> Pod:
        container = {"name": "main", "ports": [{"containerPort": 80, "hostPort": 80}]}
        return pod(name, spec={"containers": [container]}, **more)

    cache = cache_of(node("n1"), asks("a"), asks("b"))
    kinds = [
        capacity.resource for fact in told(cache) if isinstance(fact, NodeSet) for capacity in fact.capacity
    ]
    assert kinds == ["cpu", "hostport/TCP/80", "pods"]
    put(cache, asks("a", node="n1", placed=True))
    put(cache, asks("b"), gone=True)
    assert not any(isinstance(fact, NodeSet) for fact in told(cache))
    put(cache, asks("a", node="n1", placed=True, phase="Succeeded"))
    ended, _, without = told(cache)
    assert isinstance(ended, MemberStatus)
    assert isinstance(without, NodeSet)
    assert [capacity.resource for capacity in without.capacity] == ["cpu", "pods"]
    put(cache, asks("c"))
    assert [type(fact) for fact in told(cache)] == [NodeSet, WorkloadSet, MemberSet]


def test_problems_are_news_once() -> None:
    cache = cache_of(pod("a", labels={SIZE: "x"}))
    told(cache)
    assert list(cache.take_problem_changes()) == ["uid-a"]
    put(cache, pod("a", labels={SIZE: "x"}, resourceVersion="2"))
    told(cache)
    assert cache.take_problem_changes() == {}
    put(cache, pod("a", labels={SIZE: "1"}))
    told(cache)
    assert cache.take_problem_changes() == {"uid-a": None}


def test_an_older_reading_of_a_pod_is_no_news() -> None:
    cache = cache_of(pod("a", node="n1", placed=True, resourceVersion="10"))
    told(cache)
    cache.set_pod_from_read(pod("a", resourceVersion="9"))
    cache.set_pod_from_read(pod("b", resourceVersion="99"))
    assert told(cache) == []
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
            for code, status in ((-1, 255), (3221225786, 58), (256, 1))  # of runtimes, and of Windows
        ),
    ],
)
def test_ends(status: dict[str, object], expected: tuple[int, str, bool]) -> None:
    found = cache_of().member_status(pod("a", node="n1", placed=True, status=status), NOW)
    assert found.phase is Phase.ENDED
    assert (found.status, found.message, found.started) == expected
