"""The mirror: whatever comes in, in whatever order, what was told adds up to what is there."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec
import pytest

from penstock.drivers.kube.groups import maker_of
from penstock.drivers.kube.mirror import GIVEN_UP, Mirror, Problem
from penstock.drivers.kube.settings import KubeSettings
from penstock.kube.types import (
    Deployment,
    Job,
    Node,
    Object,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodGroup,
    ReplicaSet,
    StatefulSet,
)
from penstock.sched.records import Recorded
from penstock.sched.recovery import scheduler_from
from penstock.sched.settings import QueueSettings, Settings, parse_backfill
from penstock.sched.state import Scheduler
from penstock.world.facts import (
    Fact,
    HoldGone,
    HoldSet,
    MemberGone,
    MemberSet,
    NodeGone,
    NodeSet,
    Observed,
    Outcome,
    Phase,
    Settled,
    Snapshot,
    WorkGone,
    WorkSet,
)
from penstock.world.intents import Intent, Place, Seat, Tell
from tests.drivers.kube_objects import (
    claim,
    deployment,
    job,
    native_group,
    node,
    owned_by,
    pod,
    pod_group,
    replica_set,
    stateful_set,
    time_text,
    volume,
)

T = TypeVar("T", bound=msgspec.Struct)

NOW = 2000.0
GROUP = "penstock.dev/group"
SIZE = "penstock.dev/group-size"
KILLED = {"exitCode": 137, "reason": "OOMKilled"}


def mirror_of(*objects: Object) -> Mirror:
    mirror = Mirror(KubeSettings())
    for one in objects:
        put(mirror, one)
    return mirror


def put(mirror: Mirror, one: Object, *, gone: bool = False) -> None:
    """What a watch of the object's kind does."""
    match one:
        case Pod():
            (mirror.pod_gone if gone else mirror.pod_set)(one)
        case Node():
            (mirror.node_gone if gone else mirror.node_set)(one)
        case Job() | ReplicaSet() | StatefulSet() | Deployment():
            if gone:
                mirror.maker_gone(one.metadata.uid)
            else:
                mirror.maker_set(maker_of(one))
        case PodGroup():
            mirror.pod_group_set(one, gone=gone)
        case PersistentVolumeClaim():
            mirror.claim_set(one, gone=gone)
        case PersistentVolume():
            mirror.volume_set(one, gone=gone)
        case _:
            raise AssertionError(one)


@dataclass
class Folded:
    """What somebody knows who has heard all facts. Taking one that could not be taken is an error."""

    nodes: dict[str, NodeSet] = field(default_factory=dict)
    holds: dict[str, HoldSet] = field(default_factory=dict)
    works: dict[str, WorkSet] = field(default_factory=dict)
    members: dict[str, MemberSet] = field(default_factory=dict)
    seen: dict[str, Observed] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)  # nodes that were there: if they are back, all is told again

    def _forget_those_on(self, node: str) -> None:
        self.seen = {uid: one for uid, one in self.seen.items() if one.node != node}

    def take(self, fact: Fact) -> None:
        match fact:
            case NodeSet():
                assert self.nodes.get(fact.node) != fact
                self.nodes[fact.node] = fact
                if fact.node in self.gone:
                    self.gone.discard(fact.node)
                    self._forget_those_on(fact.node)
            case NodeGone():
                del self.nodes[fact.node]
                self.gone.add(fact.node)
                self._forget_those_on(fact.node)
            case HoldSet():
                assert self.holds.get(fact.hold) != fact
                self.holds[fact.hold] = fact
            case HoldGone():
                del self.holds[fact.hold]
            case WorkSet():
                assert self.works.get(fact.work) != fact
                self.works[fact.work] = fact
            case WorkGone():
                del self.works[fact.work]
                assert not any(one.work == fact.work for one in self.members.values())
            case MemberSet():
                assert fact.work in self.works, "a member's work is told before it"
                assert self.members.get(fact.member) != fact
                assert fact.member not in self.members or self.members[fact.member].work == fact.work
                self.members[fact.member] = fact
            case MemberGone():
                self.members.pop(fact.member, None)
                self.seen.pop(fact.member, None)
            case Observed():
                fact = replace(fact, at=0.0)
                assert self.seen.get(fact.member) != fact
                self.members.pop(fact.member, None)
                self.seen[fact.member] = fact
            case _:
                raise AssertionError(fact)

    def assert_equals(self, snapshot: Snapshot) -> None:
        assert self.nodes == {one.node: one for one in snapshot.nodes}
        assert self.holds == {one.hold: one for one in snapshot.holds}
        assert self.members == {one.member: one for one in snapshot.members}
        assert self.works == {one.work: one for one in snapshot.works}
        present = {one.member: replace(one, at=0.0) for one in snapshot.observations}
        # What ran on a node that is gone went with it, and is told again only if the node is back.
        kept = {uid: one for uid, one in present.items() if one.node in self.nodes or uid in self.seen}
        assert {uid: one for uid, one in self.seen.items() if uid in kept} == kept
        assert set(self.seen) <= set(present)


# A small cluster in which anything happens


class Happenings:
    """Random changes of objects, each told to a receiver as a watch would."""

    def __init__(self, seed: int, tell: Callable[[Object, bool], None]) -> None:
        self.random = random.Random(seed)
        self.objects: dict[tuple[type, str], Object] = {}
        self._tell = tell
        self._count = 0

    def put(self, one: Object) -> None:
        self.objects[(type(one), one.metadata.uid)] = one
        self._tell(one, False)

    def drop(self, one: Object) -> None:
        del self.objects[(type(one), one.metadata.uid)]
        self._tell(one, True)

    def of(self, *kinds: type) -> list[Object]:
        return [one for (kind, _), one in self.objects.items() if kind in kinds]

    def happen(self) -> None:
        chance = self.random.random()
        if chance < 0.08:
            self._node()
        elif chance < 0.25:
            self._maker()
        elif chance < 0.32:
            self._group_or_claim()
        elif chance < 0.55:
            self._new_pod()
        else:
            self._change_pod()

    def _node(self) -> None:
        name = f"n{self.random.randrange(4)}"
        found = self.objects.get((Node, f"uid-{name}"))
        if found is not None and self.random.random() < 0.3:
            self.drop(found)
        else:
            self.put(node(name, cpu=self.random.choice("48"), ready=self.random.random() < 0.9))

    def _maker(self) -> None:
        name = f"m{self.random.randrange(5)}"
        made = {
            "m0": lambda: job("m0", wants=self.random.randrange(4), started=1500.0),
            "m1": lambda: replica_set("m1", wants=self.random.randrange(3), deployment="m2"),
            "m2": lambda: deployment("m2", labels=self.random.choice([None, {"fluxnetes.group-size": "2"}])),
            "m3": lambda: stateful_set("m3", parallel=self.random.random() < 0.5),
            "m4": lambda: job("m4", over=self.random.choice(["", "Complete"]), labels={GROUP: "g0"}),
        }[name]()
        found = self.objects.get((type(made), made.metadata.uid))
        if found is not None and self.random.random() < 0.4:
            self.drop(found)
        else:
            self.put(made)

    def _group_or_claim(self) -> None:
        made: Object = self.random.choice(
            [pod_group("g0", self.random.randrange(1, 4)), claim("c", volume="v"), claim("c"), volume("v")]
        )
        found = self.objects.get((type(made), made.metadata.uid))
        if found is not None and self.random.random() < 0.4:
            self.drop(found)
        else:
            self.put(made)

    def _new_pod(self) -> None:
        self._count += 1
        choose = self.random.choice
        owner = choose(
            [None, owned_by("Job", "m0"), owned_by("ReplicaSet", "m1"), owned_by("StatefulSet", "m3"),
             owned_by("Job", "m4"), owned_by("Thing", "x")]
        )  # fmt: skip
        labels = choose(
            [None, {GROUP: "g0"}, {"scheduling.x-k8s.io/pod-group": "g0"}, {SIZE: "2"}, {SIZE: "x"}]
        )
        self.put(
            pod(
                f"p{self._count}",
                created=1000.0 + self._count,
                owner=owner,
                labels=labels,
                ours=self.random.random() < 0.8,
                gated=self.random.random() < 0.1,
                claim="c" if self.random.random() < 0.1 else "",
                cpu=choose(["1", "500m", "2", "bad"]),
            )
        )

    def _change_pod(self) -> None:
        pods = self.of(Pod)
        if not pods:
            return
        found = self.random.choice(pods)
        assert isinstance(found, Pod)
        spec, metadata, status = found.spec, found.metadata, found.status
        change = self.random.randrange(7)
        if change == 0:
            self.drop(found)
        elif change == 1 and not spec.node_name and not spec.scheduling_gates:
            notes = {**(metadata.annotations or {}), "penstock.dev/job": "f1"}
            on = _changed(spec, node_name=f"n{self.random.randrange(4)}")
            self.put(_changed(found, spec=on, metadata=_changed(metadata, annotations=notes)))
        elif change == 2 and not spec.node_name:
            self.put(_changed(found, spec=_changed(spec, node_name=f"n{self.random.randrange(4)}")))
        elif change == 3 and spec.node_name and status.phase == "Pending":
            self.put(_changed(found, status=_changed(status, phase="Running", start_time=time_text(1800))))
        elif change == 4 and status.phase in ("Running", "Pending"):
            phase = self.random.choice(["Succeeded", "Failed"]) if spec.node_name else "Failed"
            self.put(_changed(found, status=_changed(status, phase=phase)))
        elif change == 5:
            labels = self.random.choice([None, {GROUP: "g0"}, {GROUP: "g1"}, {SIZE: "3"}])
            self.put(_changed(found, metadata=_changed(metadata, labels=labels)))
        elif change == 6 and spec.scheduling_gates:
            self.put(_changed(found, spec=_changed(spec, scheduling_gates=None)))
        else:
            self.put(_changed(found, metadata=_changed(metadata, deletion_timestamp=time_text(1900))))


def _changed(one: T, **changes: object) -> T:
    return msgspec.structs.replace(one, **changes)


@pytest.mark.parametrize("seed", range(60))
def test_what_was_told_bit_by_bit_is_what_is_there(seed: int) -> None:
    mirror = Mirror(KubeSettings())
    happenings = Happenings(seed, lambda one, gone: put(mirror, one, gone=gone))
    folded = Folded()
    for _ in range(120):
        happenings.happen()
        if happenings.random.random() < 0.4:
            for fact in mirror.facts(NOW):
                folded.take(fact)
            assert mirror.facts(NOW) == [], "nothing is told twice"
    for fact in mirror.facts(NOW):
        folded.take(fact)
    objects = list(happenings.objects.values())
    happenings.random.shuffle(objects)
    folded.assert_equals(mirror_of(*objects).snapshot(NOW))
    folded.assert_equals(mirror.snapshot(NOW))
    for one in happenings.of(Pod):
        put(mirror, one, gone=True)
    mirror.facts(NOW)
    assert not mirror.problems
    assert not mirror.missing_makers()


@pytest.mark.parametrize("seed", range(20))
def test_a_list_says_the_same_as_the_changes_before_it(seed: int) -> None:
    """A relist of each kind, in any order, brings a stale mirror to what is there."""
    stale, mirror = Mirror(KubeSettings()), Mirror(KubeSettings())
    is_heard = True

    def tell(one: Object, gone: bool) -> None:
        if is_heard:
            put(stale, one, gone=gone)
        put(mirror, one, gone=gone)

    happenings = Happenings(seed, tell)
    folded = Folded()
    for turn in range(120):
        is_heard = turn < 60
        happenings.happen()
        for fact in stale.facts(NOW):
            folded.take(fact)
    lists: list[Callable[[], None]] = [
        lambda: stale.nodes_listed(happenings.of(Node)),  # type: ignore[arg-type]
        lambda: stale.pods_listed(happenings.of(Pod)),  # type: ignore[arg-type]
        lambda: stale.pod_groups_listed(happenings.of(PodGroup)),  # type: ignore[arg-type]
        lambda: stale.claims_listed(happenings.of(PersistentVolumeClaim)),  # type: ignore[arg-type]
        lambda: stale.volumes_listed(happenings.of(PersistentVolume)),  # type: ignore[arg-type]
    ]
    for kind in (Job, ReplicaSet, StatefulSet, Deployment):
        lists.append(
            lambda kind=kind: stale.makers_listed(  # type: ignore[misc]
                kind.__name__,
                map(maker_of, happenings.of(kind)),  # type: ignore[arg-type]
            )
        )
    happenings.random.shuffle(lists)
    for listed in lists:
        listed()
        for fact in stale.facts(NOW):
            folded.take(fact)
    folded.assert_equals(mirror.snapshot(NOW))


# With a scheduler


class Cluster:
    """Objects, a mirror and a scheduler; what it wants is done at once."""

    def __init__(self, seed: int = 0) -> None:
        self.now = NOW
        self.mirror = Mirror(KubeSettings())
        self.happenings = Happenings(seed, lambda one, gone: put(self.mirror, one, gone=gone))
        queue = QueueSettings("default", parse_backfill("easy"))
        self.scheduler: Scheduler = scheduler_from(Settings(queues=(queue,)), Recorded(), self.now)
        self.feed(self.mirror.snapshot(self.now))

    def feed(self, *facts: Fact) -> None:
        step = self.scheduler.handle(facts, self.now)
        self.carry_out(step.intents)
        self.tell(step.tidings)

    def tell(self, tidings: tuple[Tell, ...]) -> None:
        for tiding in tidings:
            if tiding.verdict == "given-up":
                self.mirror.give_up(tiding.work, Problem(GIVEN_UP, tiding.reason))

    def carry_out(self, intents: tuple[Intent, ...]) -> None:
        for intent in intents:
            if isinstance(intent, Place):
                for seat in intent.seats:
                    if not seat.is_settled:
                        self._bind(intent.intent, seat)
                continue
            for member in intent.members:
                found = self.happenings.objects.get((Pod, member))
                if found is not None:
                    self.happenings.drop(found)
                self.feed(Settled(intent.intent, member, Outcome.APPLIED if found else Outcome.GONE))

    def _bind(self, intent: int, seat: Seat) -> None:
        found = self.happenings.objects.get((Pod, seat.member))
        outcome = Outcome.GONE
        if isinstance(found, Pod) and not found.metadata.deletion_timestamp:
            outcome = Outcome.CONFLICT
            if not found.spec.node_name:
                outcome = Outcome.APPLIED
                notes = {**(found.metadata.annotations or {}), "penstock.dev/job": "f1"}
                metadata = _changed(found.metadata, annotations=notes)
                spec = _changed(found.spec, node_name=seat.node)
                self.happenings.put(_changed(found, metadata=metadata, spec=spec))
        self.feed(Settled(intent, seat.member, outcome))

    def settle(self) -> None:
        for _ in range(50):
            facts = self.mirror.facts(self.now)
            if self.happenings.random.random() < 0.5:
                self.feed(*facts)
            for fact in facts:
                self.feed(fact)  # One by one is as good as all at once, and twice as good as once.
            if self.scheduler.is_dirty:
                self.plan()
            elif not facts:
                return
        raise AssertionError("it does not come to rest")

    def plan(self) -> None:
        passing = self.scheduler.plan(self.now)
        try:
            while True:
                next(passing)
        except StopIteration as done:
            self.carry_out(done.value.intents)
            self.tell(done.value.tidings)


@pytest.mark.parametrize("seed", range(25))
def test_nothing_is_left_when_all_objects_are_gone(seed: int) -> None:
    cluster = Cluster(seed)
    for number in range(3):
        cluster.happenings.put(node(f"n{number}"))
    for _ in range(120):
        cluster.now += 1.0
        cluster.happenings.happen()
        if cluster.happenings.random.random() < 0.5:
            cluster.settle()
    cluster.settle()
    for one in list(cluster.happenings.objects.values()):
        if not isinstance(one, Node):
            cluster.happenings.drop(one)
    cluster.settle()
    cluster.now += 10_000.0
    cluster.settle()
    core = cluster.scheduler.core
    assert not core.jobs
    assert not core.works
    assert not core.intents
    assert not list(core.cluster.engine.jobs)
    assert not core.cluster.holds()
    assert not core.members_on or not any(core.members_on.values())
    assert not core.deferred or not any(core.deferred.values())


# One by one


def told(mirror: Mirror) -> list[Fact]:
    return mirror.facts(NOW)


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
    ],
)
def test_ends(status: dict[str, object], expected: tuple[int, str, bool]) -> None:
    found = mirror_of().seen(pod("a", node="n1", placed=True, status=status), NOW)
    assert found.phase is Phase.ENDED
    assert (found.status, found.cause, found.started) == expected


# Costs


def test_a_large_cluster_is_told_in_seconds_and_a_change_in_microseconds() -> None:
    """Bounds are ten times what was measured: only what grows with the cluster squared fails."""
    nodes = [node(f"n{number}", cpu="64") for number in range(5_000)]
    jobs = [job(f"j{number}", wants=1_000) for number in range(50)]
    pods = [
        pod(f"p{number}", owner=owned_by("Job", f"j{number // 1_000}"), created=1000.0 + number // 100)
        for number in range(50_000)
    ]
    mirror = Mirror(KubeSettings())
    began = time.perf_counter()
    mirror.pods_listed(pods)
    mirror.nodes_listed(nodes)
    mirror.makers_listed("Job", map(maker_of, jobs))
    snapshot = mirror.snapshot(NOW)
    snapshot_s = time.perf_counter() - began
    assert (len(snapshot.nodes), len(snapshot.members), len(snapshot.works)) == (5_000, 50_000, 50)
    began = time.perf_counter()
    for one in pods[:1_000]:
        mirror.pod_set(_changed(one, status=_changed(one.status, reason="x")))
        assert mirror.facts(NOW) == []
    update_s = time.perf_counter() - began
    began = time.perf_counter()
    for one in pods[:1_000]:
        on = _changed(one, spec=_changed(one.spec, node_name="n1"))
        mirror.pod_set(on)
        assert len(mirror.facts(NOW)) <= 3
    taken_s = time.perf_counter() - began
    began = time.perf_counter()
    for number in range(1_000):
        mirror.pod_set(pod(f"q{number}", owner=owned_by("Job", "j0"), created=1000.0))
        assert len(mirror.facts(NOW)) <= 2
    coming_s = time.perf_counter() - began
    took = {"snapshot": snapshot_s, "updates": update_s, "taken": taken_s, "coming": coming_s}
    assert snapshot_s < 60.0, took
    assert max(update_s, taken_s, coming_s) < 5.0, took
