"""A small cluster with random changes of its objects, alone and with a scheduler."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

import msgspec

from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.settings import KubeSettings
from penstock.kube.types import KubeObject, Node, Pod
from penstock.protocol.facts import Fact, IntentResult, Outcome
from penstock.protocol.intents import Assignment, Intent, Place
from penstock.sched.records import Recorded
from penstock.sched.recovery import scheduler_from
from penstock.sched.scheduler import Scheduler
from penstock.sched.settings import QueueSettings, Settings, parse_backfill
from tests.backends.kube_caches import GROUP, NOW, SIZE, put
from tests.backends.kube_objects import (
    anti_affinity_to,
    claim,
    deployment,
    job,
    node,
    owned_by,
    pod,
    pod_group,
    replica_set,
    stateful_set,
    time_text,
    volume,
)
from tests.sched.internals import check_invariants

APP = {"app": "a"}
TIER = {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}
T = TypeVar("T", bound=msgspec.Struct)


class RandomChanges:
    """Random changes of objects, each delivered as by a watch."""

    def __init__(self, seed: int, deliver: Callable[[KubeObject, bool], None]) -> None:
        self.random = random.Random(seed)
        self.objects: dict[tuple[type, str], KubeObject] = {}
        self._deliver = deliver
        self._count = 0

    def put(self, one: KubeObject) -> None:
        self.objects[(type(one), one.metadata.uid)] = one
        self._deliver(one, False)

    def drop(self, one: KubeObject) -> None:
        del self.objects[(type(one), one.metadata.uid)]
        self._deliver(one, True)

    def of(self, *kinds: type) -> list[KubeObject]:
        return [one for (kind, _), one in self.objects.items() if kind in kinds]

    def apply_random(self) -> None:
        chance = self.random.random()
        if chance < 0.08:
            self._node()
        elif chance < 0.25:
            self._change_controller()
        elif chance < 0.32:
            self._group_or_claim()
        elif chance < 0.55:
            self._add_pod()
        else:
            self._change_pod()

    def _node(self) -> None:
        name = f"n{self.random.randrange(4)}"
        found = self.objects.get((Node, f"uid-{name}"))
        if found is not None and self.random.random() < 0.3:
            self.drop(found)
        else:
            self.put(node(name, cpu=self.random.choice("48"), ready=self.random.random() < 0.9))

    def _change_controller(self) -> None:
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
        made: KubeObject = self.random.choice(
            [pod_group("g0", self.random.randrange(1, 4)), claim("c", volume="v"), claim("c"), volume("v")]
        )
        found = self.objects.get((type(made), made.metadata.uid))
        if found is not None and self.random.random() < 0.4:
            self.drop(found)
        else:
            self.put(made)

    def _add_pod(self) -> None:
        self._count += 1
        choose = self.random.choice
        owner = choose(
            [None, owned_by("Job", "m0"), owned_by("ReplicaSet", "m1"), owned_by("StatefulSet", "m3"),
             owned_by("Job", "m4"), owned_by("Thing", "x")]
        )  # fmt: skip
        labels = choose(
            [None, {GROUP: "g0"}, {"scheduling.x-k8s.io/pod-group": "g0"}, {SIZE: "2"}, {SIZE: "x"},
             APP, APP, APP, {**APP, "tier": "x"}, {"app": "b"}]
        )  # fmt: skip
        affinity = choose(
            [None, None, anti_affinity_to(APP), anti_affinity_to({"app": "b"}), anti_affinity_to(APP, TIER)]
        )
        port = self.random.choice([0, 0, 0, 80, 443])
        containers = [
            {
                "name": "main",
                "resources": {"requests": {"cpu": choose(["1", "500m", "2", "bad"])}},
                "ports": [{"hostPort": port}],
            }
        ]
        self.put(
            pod(
                f"p{self._count}",
                created=1000.0 + self._count,
                owner=owner,
                labels=labels,
                ours=self.random.random() < 0.8,
                gated=self.random.random() < 0.1,
                claim="c" if self.random.random() < 0.1 else "",
                spec={"containers": containers, "affinity": affinity},
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
            annotations = {**(metadata.annotations or {}), "penstock.dev/job": "f1"}
            on = changed(spec, node_name=f"n{self.random.randrange(4)}")
            self.put(changed(found, spec=on, metadata=changed(metadata, annotations=annotations)))
        elif change == 2 and not spec.node_name:
            self.put(changed(found, spec=changed(spec, node_name=f"n{self.random.randrange(4)}")))
        elif change == 3 and spec.node_name and status.phase == "Pending":
            self.put(changed(found, status=changed(status, phase="Running", start_time=time_text(1800))))
        elif change == 4 and status.phase in ("Running", "Pending"):
            phase = self.random.choice(["Succeeded", "Failed"]) if spec.node_name else "Failed"
            self.put(changed(found, status=changed(status, phase=phase)))
        elif change == 5:
            labels = self.random.choice([None, {GROUP: "g0"}, {GROUP: "g1"}, {SIZE: "3"}, APP, {"app": "b"}])
            self.put(changed(found, metadata=changed(metadata, labels=labels)))
        elif change == 6 and spec.scheduling_gates:
            self.put(changed(found, spec=changed(spec, scheduling_gates=None)))
        else:
            self.put(changed(found, metadata=changed(metadata, deletion_timestamp=time_text(1900))))


class Cluster:
    """Objects, a cache and a scheduler. Intents are executed at once, or later while `is_slow`."""

    is_slow = False

    def __init__(self, seed: int = 0) -> None:
        self.now = NOW
        self.delayed: list[Intent] = []
        self.cache = ClusterCache(KubeSettings())
        self.changes = RandomChanges(seed, lambda one, gone: put(self.cache, one, gone=gone))
        queue = QueueSettings("default", parse_backfill("easy"))
        self.scheduler: Scheduler = scheduler_from(Settings(queues=(queue,)), Recorded(), self.now)
        self.feed(self.cache.snapshot(self.now))

    def feed(self, *facts: Fact) -> None:
        step = self.scheduler.handle(facts, self.now)
        check_invariants(self.scheduler)
        self.execute(step.intents)

    def execute(self, intents: tuple[Intent, ...]) -> None:
        if self.is_slow:
            self.delayed.extend(intents)
            return
        for intent in intents:
            if isinstance(intent, Place):
                for assignment in intent.assignments:
                    if not assignment.already_placed:
                        self._bind(intent.intent, assignment)
                continue
            for member in intent.members:
                found = self.changes.objects.get((Pod, member))
                if found is not None:
                    self.changes.drop(found)
                self.feed(IntentResult(intent.intent, member, Outcome.APPLIED if found else Outcome.GONE))

    def execute_delayed(self) -> None:
        self.is_slow = False
        delayed, self.delayed = self.delayed, []
        self.execute(tuple(delayed))

    def _bind(self, intent: int, assignment: Assignment) -> None:
        found = self.changes.objects.get((Pod, assignment.member))
        outcome = Outcome.GONE
        if isinstance(found, Pod) and not found.metadata.deletion_timestamp:
            outcome = Outcome.CONFLICT
            if not found.spec.node_name:
                outcome = Outcome.APPLIED
                annotations = {**(found.metadata.annotations or {}), "penstock.dev/job": "f1"}
                metadata = changed(found.metadata, annotations=annotations)
                spec = changed(found.spec, node_name=assignment.node)
                self.changes.put(changed(found, metadata=metadata, spec=spec))
        self.feed(IntentResult(intent, assignment.member, outcome))

    def settle(self) -> None:
        for _ in range(50):
            facts = self.cache.facts(self.now)
            if self.changes.random.random() < 0.5:
                self.feed(*facts)
            for fact in facts:
                self.feed(fact)  # Facts can be applied one by one, and twice.
            if self.scheduler.is_dirty:
                self.plan()
            elif not facts:
                return
        raise AssertionError("facts and plans do not converge")

    def plan(self) -> None:
        passing = self.scheduler.plan(self.now)
        try:
            while True:
                next(passing)
        except StopIteration as done:
            check_invariants(self.scheduler)
            self.execute(done.value.intents)


def changed(one: T, **changes: object) -> T:
    return msgspec.structs.replace(one, **changes)
