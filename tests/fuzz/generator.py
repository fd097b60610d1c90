"""A seeded generator of facts and commands: plausible ones, and hostile texts, numbers and orders.

Keys come from small pools, so that inputs meet: members of one workload, nodes that come and go, intents that
are open. Nodes whose name begins with `safe` and the queue `safe` are left alone, see `witness`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.backends.sim.backend import SimBackend
from penstock.model.constraint import HostIn, Not, Value, ValueOperator
from penstock.model.exclusion_key import ExclusionKey
from penstock.protocol.commands import (
    Cancel,
    Command,
    Drain,
    QueueChange,
    SetUrgency,
    Signal,
    Submission,
    Submit,
    Undrain,
)
from penstock.protocol.facts import (
    Capacity,
    EndCause,
    ExternalUsageGone,
    ExternalUsageSet,
    Fact,
    IntentResult,
    MemberGone,
    MemberSet,
    MemberStatus,
    NodeGone,
    NodeSet,
    Outcome,
    Phase,
    Requeue,
    Snapshot,
    WorkloadGone,
    WorkloadSet,
)
from penstock.sched.scheduler import Scheduler

__all__ = ["Generator"]

_TEXTS = (
    "", " ", "a\x00b", "\x00", "a\nb", "\x1b[2J", "\x7f", "\ud800", "é" * 600, "x" * 5000, "a/b", "a:b",
    "../..", "{{id}}", "%s", "'; DROP TABLE jobs; --", "\\N", "\\", "\t", "\u202e", "😀", "node0", "cluster",
    "null", "0",
)  # fmt: skip
_NUMBERS = (
    0, 1, -1, 2, 31, 32, 255, 65_536, 2**31, 2**31 - 1, 2**32, 2**53, 2**60, 2**63 - 1, 2**63, 2**64, 10**30,
    -(2**63),
)  # fmt: skip
_TIMES = (0.0, -1.0, 1e300, float("inf"), float("-inf"), float("nan"), 1e11, 1e12, 0.5, 5e-324)
_RESOURCES = ("cpu", "memory", "core", "gpu", "example.com/fpga", "pods")
_LEVELS = ("zone", "rack", "region")


class Generator:
    def __init__(self, seed: int, backend: SimBackend, scheduler: Callable[[], Scheduler]) -> None:
        self._random = random.Random(seed)
        self._backend = backend
        self._scheduler = scheduler
        self._makers: list[Callable[[], Fact | Command]] = []
        for weight, make in (
            (8, self._node_set),
            (2, self._node_gone),
            (6, self._usage_set),
            (4, self._usage_gone),
            (14, self._workload_set),
            (3, self._workload_gone),
            (24, self._member_set),
            (6, self._member_gone),
            (14, self._member_status),
            (8, self._intent_result),
            (1, self._snapshot),
            (8, self._submit),
            (5, self._cancel),
            (3, lambda: SetUrgency(self._job(), self._number(0, 31))),
            (2, lambda: Signal(self._job(), self._number(1, 64))),
            (2, self._queue_change),
            (2, self._drain),
            (3, lambda: Undrain(tuple(self._node() for _ in range(self._random.randint(0, 2))))),
        ):
            self._makers += [make] * weight

    def batch(self, size: int) -> list[Fact | Command]:
        return [self._random.choice(self._makers)() for _ in range(size)]

    def pause_s(self) -> float:
        return self._random.choice((0.0, 0.0, 0.1, 1.0, 30.0, 700.0, 4000.0))

    # Values

    def _is_hostile(self, share: float = 0.06) -> bool:
        return self._random.random() < share

    def _text(self, usual: str) -> str:
        if not self._is_hostile(0.03):
            return usual
        if self._random.random() < 0.5:
            return self._random.choice(_TEXTS)
        letters = (
            chr(self._random.choice((self._random.randint(0, 127), self._random.randint(0, 0x10FFFF))))
            for _ in range(8)
        )
        return "".join(letters)

    def _number(self, least: int, most: int) -> int:
        return self._random.choice(_NUMBERS) if self._is_hostile() else self._random.randint(least, most)

    def _time(self, usual: float | None) -> float | None:
        return self._random.choice(_TIMES) if self._is_hostile() else usual

    def _flag(self, share: float = 0.5) -> bool:
        return self._random.random() < share

    def _node(self) -> str:
        return self._text(f"n{self._random.randint(0, 7)}")

    def _workload(self) -> str:
        return self._text(f"w{self._random.randint(0, 19)}")

    def _member(self) -> str:
        known = list(self._backend.runs) + [
            key for job in self._scheduler().jobs.values() if job.queue != "safe" for key in job.members
        ]
        safe = {key for key in known if self._is_safe(key)}
        fuzzed = [key for key in known if key not in safe]
        if fuzzed and self._flag(0.7):
            return self._random.choice(fuzzed)
        return self._text(f"w{self._random.randint(0, 19)}-{self._random.randint(0, 5)}")

    def _is_safe(self, member: str) -> bool:
        run = self._backend.runs.get(member)
        return run is not None and run.assignment.node.startswith("safe")

    def _job(self) -> int:
        jobs = [job.id for job in self._scheduler().jobs.values() if job.queue != "safe"]
        return self._random.choice(jobs) if jobs and self._flag(0.9) else self._random.choice(_NUMBERS)

    def _units(self) -> tuple[tuple[str, int], ...]:
        names = self._random.sample(_RESOURCES, self._random.randint(0, 3))
        if self._is_hostile():
            names = [*names, *names, self._text("cpu")]
        return tuple((self._text(name), self._number(0, 600)) for name in names)

    def _keys(self) -> tuple[ExclusionKey, ...]:
        if self._flag(0.85):
            return ()
        level = self._text(self._random.choice(("node", "node", "zone")))
        return tuple(
            sorted(
                {
                    ExclusionKey(level, self._text(f"port {number}"))
                    for number in range(self._random.randint(1, 3))
                }
            )
        )

    # Facts

    def _node_set(self) -> NodeSet:
        divisible = self._flag(0.7)
        names = self._random.sample(_RESOURCES, self._random.randint(0, 4))
        if self._is_hostile():
            names = [*names, *names[:1], self._text("cpu")]
        capacity = tuple(Capacity(self._text(name), self._capacity(divisible), divisible) for name in names)
        levels = tuple(
            (self._text(level), self._text(f"{level}{self._random.randint(0, 2)}"))
            for level in _LEVELS[: self._random.randint(0, 3)]
        )
        labels = tuple(
            (self._text(f"l{number}"), self._text("v")) for number in range(self._random.randint(0, 2))
        )
        fact = NodeSet(self._node(), capacity, levels, labels, self._flag(0.9), self._text(""))
        if not fact.node.startswith("safe") and self._flag(0.8):
            self._backend.nodes[fact.node] = fact
        return fact

    def _capacity(self, divisible: bool) -> int:
        return self._number(0, 1000) if divisible else self._number(0, 8)

    def _node_gone(self) -> NodeGone:
        node = self._node()
        if node in self._backend.nodes:
            return self._backend.remove_node(node)
        return NodeGone(node)

    def _usage_set(self) -> ExternalUsageSet:
        key = self._text(f"u{self._random.randint(0, 9)}")
        return ExternalUsageSet(
            key, self._node(), self._units(), self._flag(0.3), self._text(""), self._keys()
        )

    def _usage_gone(self) -> ExternalUsageGone:
        return ExternalUsageGone(self._text(f"u{self._random.randint(0, 9)}"))

    def _workload_set(self) -> WorkloadSet:
        now = self._backend.now
        limit_s = self._number(1, 5000) if self._flag() else None
        return WorkloadSet(
            self._workload(),
            self._text("name"),
            self._number(1, 4),
            assembly_timeout_s=self._time(self._random.choice((None, 10.0, 600.0))),
            begin_at=self._time(self._random.choice((None, None, now, now + 100.0))),
            limit_s=limit_s,
            deadline_at=self._time(self._random.choice((None, None, now - 5.0, now + 1000.0))),
            enforced_by_backend=self._flag(),
            class_value=self._number(-5, 5),
            urgency=self._number(0, 31),
            queue=self._text(self._random.choice(("", "default"))),
            distinct_nodes=self._flag(0.3),
            within=self._text(self._random.choice(("", "", "zone", "rack", "planet"))),
            requeue=self._random.choice(list(Requeue)),
            owner=self._text("team"),
        )

    def _workload_gone(self) -> WorkloadGone:
        return WorkloadGone(self._workload())

    def _member_set(self) -> MemberSet:
        workload, number = self._workload(), self._number(0, 5)
        constraint = self._random.choice(
            (None, None, None, HostIn(frozenset({self._node()})), Not((HostIn(frozenset({self._node()})),)),
             Value(self._text("l0"), ValueOperator.IN, (self._text("v"),)))
        )  # fmt: skip
        requests = (("cpu", self._number(1, 400)),) if self._flag(0.8) else self._units()
        brings = self._keys()
        return MemberSet(
            workload,
            self._text(f"{workload}-{number}"),
            number,
            requests,
            constraint,
            self._flag(0.9),
            self._flag(),
            self._text(""),
            brings,
            brings if self._flag() else self._keys(),
        )

    def _member_gone(self) -> MemberGone:
        return MemberGone(self._member())

    def _member_status(self) -> MemberStatus:
        member = self._member()
        run = self._backend.runs.get(member)
        node = run.assignment.node if run is not None and self._flag(0.8) else self._node()
        return MemberStatus(
            member,
            self._random.choice(list(Phase)),
            self._time(self._backend.now) or 0.0,
            self._random.choice((node, node, "")),
            self._number(0, 512),
            self._random.choice(list(EndCause)),
            self._text("message"),
            self._flag(),
            self._units(),
            self._flag(),
            self._keys(),
        )

    def _intent_result(self) -> IntentResult:
        scheduler = self._scheduler()
        numbers = scheduler.open_intents()
        number = (
            self._random.choice(numbers) if numbers and self._flag(0.9) else self._random.choice(_NUMBERS)
        )
        waits_for = scheduler.members_of_intent(number)
        member = self._random.choice(waits_for) if waits_for and self._flag(0.9) else self._member()
        job = scheduler.job_of_member(member)
        if job is not None and job.queue == "safe":
            member = self._text("nobody")
        return IntentResult(number, member, self._random.choice(list(Outcome)), self._text("detail"))

    def _snapshot(self) -> Snapshot:
        """What the backend has, and more or less of what does not concern it."""
        found = self._backend.snapshot()
        workloads = tuple(self._workload_set() for _ in range(self._random.randint(0, 8)))
        members = tuple(self._member_set() for _ in range(self._random.randint(0, 16)))
        usage = tuple(self._usage_set() for _ in range(self._random.randint(0, 4)))
        statuses = tuple(one for one in found.statuses if self._is_safe(one.member) or self._flag(0.9))
        return replace(found, workloads=workloads, members=members, external_usage=usage, statuses=statuses)

    # Commands

    def _submit(self) -> Submit:
        jobs = tuple(self._submission() for _ in range(self._random.choice((1, 1, 1, 2, 0))))
        return Submit(jobs, self._text(self._random.choice(("", "", f"k{self._random.randint(0, 3)}"))))

    def _submission(self) -> Submission:
        kind = self._text(self._random.choice(("core", "cpu", "gpu", "node", "slot")))
        inner: list[object] = [{"type": kind, "count": self._number(1, 4)}]
        slot: dict[str, object] = {
            "type": "slot",
            "count": self._number(1, 3),
            "label": self._text("task"),
            "with": inner,
        }
        resources: list[object] = [slot]
        if self._flag(0.4):
            node: dict[str, object] = {"type": "node", "count": self._number(1, 3), "with": [slot]}
            if self._flag(0.3):
                node["exclusive"] = True
            resources = [node]
        system: dict[str, object] = {
            "duration": self._time(float(self._random.choice((0, 1, 60, 3600)))),
            "queue": self._text("default"),
            "job": {"name": self._text("job")},
            "cwd": self._text("/"),
            "environment": {self._text("A"): self._text("b")},
        }
        if self._flag(0.2):
            value = self._random.choice((str(self._job()), self._text("f1"), str(self._backend.now + 50)))
            scheme = self._text(
                self._random.choice(("afterok", "afterany", "after", "begin-time", "singleton"))
            )
            system["dependencies"] = [{"scheme": scheme, "value": value}]
        count = {self._random.choice(("per_slot", "total", "x")): self._number(1, 4)}
        document: dict[str, object] = {
            "version": self._number(1, 1) if self._is_hostile() else 1,
            "resources": resources,
            "tasks": [
                {"command": [self._text("true"), self._text("x")], "slot": self._text("task"), "count": count}
            ],
            "attributes": {"system": system},
        }
        if self._is_hostile(0.03):
            document[self._random.choice(("version", "resources", "tasks", "attributes"))] = (
                self._random.choice((None, [], {}, "x", 1e400, [[]], [None]))
            )
        text = json.dumps(document) if not self._is_hostile(0.02) else self._text("{")
        return Submission(text, self._text("me"), self._number(0, 31), self._random.choice(list(Requeue)))

    def _cancel(self) -> Cancel:
        return Cancel(tuple(self._job() for _ in range(self._random.randint(0, 4))), self._text("note"))

    def _queue_change(self) -> QueueChange:
        states: Sequence[bool | None] = (None, True, True, False)
        return QueueChange(
            self._text("default"), self._random.choice(states), self._random.choice(states), self._text("why")
        )

    def _drain(self) -> Drain:
        nodes = tuple(self._node() for _ in range(self._random.randint(0, 2)))
        return Drain(nodes, self._text("reason"), self._text("me"), self._flag(0.3))
