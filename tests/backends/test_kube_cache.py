"""The mirror: what one change of the objects is told as."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.backends.kube.cache import GIVEN_UP, Problem
from penstock.kube.types import Pod
from penstock.podspec.grouping import maker_of
from penstock.protocol.facts import (
    HoldGone,
    HoldSet,
    MemberGone,
    MemberSet,
    NodeGone,
    NodeSet,
    Observed,
    Phase,
    WorkGone,
    WorkSet,
)
from tests.backends.kube_caches import GROUP, NOW, SIZE, mirror_of, put, told
from tests.backends.kube_objects import (
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
    mirror = mirror_of(node("n1"), pod("a"))
    assert len(told(mirror)) == 3
    put(mirror, node("n1", resourceVersion="2"))
    put(mirror, pod("a", resourceVersion="2"))
    assert told(mirror) == []


def test_a_pod_that_others_have_bound_is_a_hold_and_no_member() -> None:
    mirror = mirror_of(pod("a"))
    told(mirror)
    put(mirror, pod("a", node="n1"))
    hold = HoldSet("uid-a", "n1", (("cpu", 1000), ("pods", 1)), name="default/a")
    assert told(mirror) == [hold, MemberGone("uid-a"), WorkGone("default/pod/uid-a")]
    put(mirror, pod("a", node="n1", phase="Succeeded"))
    assert told(mirror) == [HoldGone("uid-a")]


def test_a_pod_that_we_have_bound_is_observed_until_it_is_gone() -> None:
    mirror = mirror_of(pod("a"))
    told(mirror)
    put(mirror, pod("a", node="n1", placed=True))
    (placed,) = told(mirror)
    assert isinstance(placed, Observed)
    assert (placed.phase, placed.node, placed.is_kept) == (Phase.PLACED, "n1", True)
    put(mirror, pod("a", node="n1", placed=True, phase="Running"))
    assert [fact.phase for fact in told(mirror) if isinstance(fact, Observed)] == [Phase.RUNNING]
    put(mirror, pod("a"), gone=True)
    assert told(mirror) == [MemberGone("uid-a"), WorkGone("default/pod/uid-a")]


def test_one_that_loses_the_mark_of_our_binding_becomes_a_hold() -> None:
    mirror = mirror_of(pod("a", node="n1", placed=True))
    told(mirror)
    put(mirror, pod("a", node="n1"))
    assert {type(fact) for fact in told(mirror)} == {HoldSet, MemberGone, WorkGone}


def test_what_runs_on_a_node_that_is_back_is_told_again() -> None:
    """With the node all that ran there was over for the scheduler: it would give its units away twice."""
    mirror = mirror_of(
        node("n1"), node("n2"), pod("a", node="n1", placed=True), pod("b", node="n2", placed=True)
    )
    told(mirror)
    put(mirror, node("n1"), gone=True)
    assert told(mirror) == [NodeGone("n1")]
    put(mirror, node("n1"))
    again = told(mirror)
    assert [type(fact) for fact in again] == [NodeSet, Observed]
    assert [fact.member for fact in again if isinstance(fact, Observed)] == ["uid-a"]


def test_pods_of_a_job_that_was_deleted_are_not_started_one_by_one() -> None:
    owner = owned_by("Job", "train")
    mirror = mirror_of(job("train"), pod("a", owner=owner), pod("b", owner=owner))
    assert [fact.work for fact in told(mirror) if isinstance(fact, MemberSet)] == [
        "default/job/train/uid-train"
    ] * 2
    put(mirror, job("train"), gone=True)
    facts = told(mirror)
    assert not any(isinstance(fact, MemberSet) for fact in facts)
    assert MemberGone("uid-a") in facts
    assert facts[-1] == WorkGone("default/job/train/uid-train")
    assert mirror.problems["uid-a"].reason == "OwnerGone"
    assert mirror.missing_makers() == {}, "nobody is asked for who is known not to be there"


def test_labels_that_change_do_not_bring_a_lost_owner_back() -> None:
    mirror = mirror_of(pod("a", owner=owned_by("Job", "train")))
    told(mirror)
    mirror.maker_absent("uid-train")
    told(mirror)
    put(mirror, pod("a", owner=owned_by("Job", "train"), labels={GROUP: "ring"}))
    told(mirror)
    assert mirror.problems["uid-a"].reason == "OwnerGone"


def test_a_maker_that_is_read_late_does_not_come_back_to_life() -> None:
    mirror = mirror_of(pod("a", owner=owned_by("Job", "train")))
    told(mirror)
    put(mirror, job("train"), gone=True)  # It was never heard of, and its end was.
    mirror.maker_read(maker_of(job("train")))
    told(mirror)
    assert mirror.problems["uid-a"].reason == "OwnerGone"
    mirror.maker_read(maker_of(job("nobody-asked")))
    assert told(mirror) == []


def test_a_work_lives_while_somebody_wants_to_make_pods_for_it() -> None:
    """Between two pods of a Job there are none: also a new life has to know that more will come."""
    owner = owned_by("Job", "train")
    mirror = mirror_of(job("train", wants=1), pod("a", owner=owner, node="n1", placed=True, phase="Running"))
    told(mirror)
    put(mirror, pod("a", owner=owner, node="n1", placed=True, phase="Failed"))
    put(mirror, pod("a"), gone=True)
    facts = told(mirror)
    assert not any(isinstance(fact, WorkGone) for fact in facts)
    (work,) = mirror.snapshot(NOW).works
    assert (work.work, work.size) == ("default/job/train/uid-train", 1)
    put(mirror, job("train", over="Failed"))
    assert told(mirror) == [WorkGone(work.work)]


def test_an_ordered_stateful_set_keeps_no_work_alive() -> None:
    assert mirror_of(stateful_set("db")).snapshot(NOW).works == ()
    assert len(mirror_of(stateful_set("db", parallel=True)).snapshot(NOW).works) == 1


def test_a_group_that_was_given_up_is_tried_again_when_somebody_comes() -> None:
    owner = owned_by("Job", "train")
    mirror = mirror_of(job("train"), pod("a", owner=owner), pod("b", owner=owner))
    told(mirror)
    mirror.give_up("default/job/train/uid-train", Problem(GIVEN_UP, "they did not come"))
    assert told(mirror) == [MemberGone("uid-a"), MemberGone("uid-b")]
    assert mirror.take_news()["uid-a"] == Problem(GIVEN_UP, "they did not come")
    other = mirror_of(job("train"), pod("a", owner=owner), pod("b", owner=owner))
    other.inherit(mirror)
    assert other.snapshot(NOW).members == ()
    put(mirror, pod("c", owner=owner))
    assert [fact.member for fact in told(mirror) if isinstance(fact, MemberSet)] == [
        "uid-c",
        "uid-a",
        "uid-b",
    ]


def test_a_group_that_was_given_up_says_so_after_a_restart() -> None:
    said = {"type": "PodScheduled", "status": "False", "reason": GIVEN_UP, "message": "they did not come"}
    labels = {GROUP: "ring", SIZE: "2"}
    pods = [pod(name, labels=labels, status={"conditions": [said]}) for name in "ab"]
    assert mirror_of(*pods).snapshot(NOW).members == ()
    assert len(mirror_of(*pods, pod("c", labels=labels)).snapshot(NOW).members) == 3


def test_a_claim_and_its_volume_wake_those_who_wait_for_them() -> None:
    mirror = mirror_of(pod("a", claim="c"))
    told(mirror)
    assert mirror.problems["uid-a"].text == "volume claim c does not exist"
    put(mirror, claim("c", volume="v"))
    assert told(mirror) == []
    put(mirror, volume("v", zone="z1"))
    assert [type(fact) for fact in told(mirror)] == [MemberSet]
    put(mirror, volume("v"), gone=True)
    assert told(mirror) == [MemberGone("uid-a")]


def test_a_pod_group_wakes_those_who_wait_for_it() -> None:
    spec = {"schedulingGroup": {"podGroupName": "ring"}}
    mirror = mirror_of(pod("a", spec=spec), pod("b", labels={"scheduling.x-k8s.io/pod-group": "ring"}))
    told(mirror)
    assert mirror.problems["uid-a"].reason == "NoPodGroup"
    put(mirror, pod_group("ring", 3))
    facts = told(mirror)
    assert [fact.member for fact in facts if isinstance(fact, MemberSet)] == ["uid-b"]
    assert [fact.size for fact in facts if isinstance(fact, WorkSet)] == [3]
    mirror.native_group_set(native_group("ring", 4))
    facts = told(mirror)
    assert [fact.member for fact in facts if isinstance(fact, MemberSet)] == ["uid-a"]
    assert mirror.native_group("default/podgroup/ring") == "default/ring"


def test_apart_from_its_like_means_distinct_nodes_for_the_work() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    spec = {"affinity": {"podAntiAffinity": required}}
    (work,) = mirror_of(pod("a", labels={"app": "x"}, spec=spec)).snapshot(NOW).works
    assert work.distinct_nodes


def test_a_node_has_a_host_port_while_somebody_asks_for_it() -> None:
    """What one asks for is there before it, and goes after it: what it has must not be in the way."""

    def asks(name: str, **more: Any) -> Pod:
        container = {"name": "main", "ports": [{"containerPort": 80, "hostPort": 80}]}
        return pod(name, spec={"containers": [container]}, **more)

    mirror = mirror_of(node("n1"), asks("a"), asks("b"))
    kinds = [
        capacity.kind for fact in told(mirror) if isinstance(fact, NodeSet) for capacity in fact.capacity
    ]
    assert kinds == ["cpu", "hostport/TCP/80", "pods"]
    put(mirror, asks("a", node="n1", placed=True))
    put(mirror, asks("b"), gone=True)
    assert not any(isinstance(fact, NodeSet) for fact in told(mirror))
    put(mirror, asks("a", node="n1", placed=True, phase="Succeeded"))
    ended, _, without = told(mirror)
    assert isinstance(ended, Observed)
    assert isinstance(without, NodeSet)
    assert [capacity.kind for capacity in without.capacity] == ["cpu", "pods"]
    put(mirror, asks("c"))
    assert [type(fact) for fact in told(mirror)] == [NodeSet, WorkSet, MemberSet]


def test_problems_are_news_once() -> None:
    mirror = mirror_of(pod("a", labels={SIZE: "x"}))
    told(mirror)
    assert list(mirror.take_news()) == ["uid-a"]
    put(mirror, pod("a", labels={SIZE: "x"}, resourceVersion="2"))
    told(mirror)
    assert mirror.take_news() == {}
    put(mirror, pod("a", labels={SIZE: "1"}))
    told(mirror)
    assert mirror.take_news() == {"uid-a": None}


def test_an_older_reading_of_a_pod_is_no_news() -> None:
    mirror = mirror_of(pod("a", node="n1", placed=True, resourceVersion="10"))
    told(mirror)
    mirror.pod_read(pod("a", resourceVersion="9"))
    mirror.pod_read(pod("b", resourceVersion="99"))
    assert told(mirror) == []
    assert mirror.pod("uid-b") is None


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
    found = mirror_of().seen(pod("a", node="n1", placed=True, status=status), NOW)
    assert found.phase is Phase.ENDED
    assert (found.status, found.cause, found.started) == expected
