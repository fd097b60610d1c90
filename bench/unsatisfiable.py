"""How long pods that can never run hold the event loop when one node changes.

Each case has some shapes of unsatisfiable pods and a number of nodes. One node reports another label, which
can matter to none of them; then a node is added that could host one member of each, so all are proven again.
`held` is the longest part that runs in one piece: the handling of a fact, or a part of the proofs between two
yields, which runs in a thread if it is long. `total` is all CPU time of the change. `before` is what the same
fact cost at commit 59bee73, where it proved every shape on the event loop.

`python -m bench.unsatisfiable` prints a table.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, replace
from typing import Final

from penstock.protocol.facts import Capacity, Fact, MemberSet, NodeSet, Snapshot, WorkloadSet
from penstock.sched.records import Recorded
from penstock.sched.recovery import scheduler_from
from penstock.sched.scheduler import Scheduler
from penstock.sched.settings import Settings

__all__ = ["CASES", "Case", "Cost", "measure_node_change"]

_NOW: Final = 1_000_000.0
_LABELS: Final = 12


@dataclass(frozen=True, slots=True)
class Case:
    nodes: int
    shapes: int
    before_label_s: float  # held, which is the total as well
    before_added_s: float


@dataclass(frozen=True, slots=True)
class Cost:
    held_s: float
    total_s: float


CASES: Final = (Case(1_500, 120, 13.6, 14.5), Case(5_000, 50, 23.0, 23.0))


def measure_node_change(nodes: int, shapes: int) -> tuple[Cost, Cost]:
    """The cost of a label that matters to no shape, and of a node that may matter to all."""
    scheduler = scheduler_from(Settings(forecast_depth=0), Recorded(), _NOW)
    reported = tuple(_node(number) for number in range(nodes))
    scheduler.handle([Snapshot(nodes=reported)], _NOW)
    scheduler.handle([fact for shape in range(shapes) for fact in _pods(shape)], _NOW)
    _cost(scheduler, [])
    assert sum(bool(job.unsatisfiable_reason) for job in scheduler.jobs.values()) == shapes
    labels = (*reported[0].labels[:-1], ("rack", "moved"))
    label = _cost(scheduler, [replace(reported[0], labels=labels)])
    added = _cost(scheduler, [_node(nodes, cpu_milli=128_000)])
    return label, added


def _cost(scheduler: Scheduler, facts: list[Fact]) -> Cost:
    gc.collect()
    parts: list[float] = []
    began = time.process_time()
    scheduler.handle(facts, _NOW)
    parts.append(time.process_time() - began)
    proofs = scheduler.prove(_NOW)
    is_over = False
    while not is_over:
        began = time.process_time()
        is_over = next(proofs, _OVER) is _OVER
        parts.append(time.process_time() - began)
    return Cost(max(parts), sum(parts))


_OVER: Final = object()


def _node(number: int, cpu_milli: int = 32_000) -> NodeSet:
    units = {"cpu": cpu_milli, "memory": 128 << 30, "pods": 110, "ephemeral-storage": 1 << 40}
    capacity = tuple(Capacity(resource, count, divisible=True) for resource, count in units.items())
    labels = tuple((f"example.com/label{place}", f"value{number % 50}") for place in range(_LABELS))
    return NodeSet(f"node{number}", capacity, (("zone", f"zone{number % 3}"),), (*labels, ("rack", "r")))


def _pods(shape: int) -> list[Fact]:
    """Two pods that need a large node each."""
    name = f"w{shape}"
    requests = (("cpu", 64_000 + shape), ("memory", 1 << 30), ("pods", 1))
    members = [MemberSet(name, f"{name}-{index}", index, requests) for index in range(2)]
    return [WorkloadSet(name, name, 2, distinct_nodes=True), *members]


def main() -> None:
    print(f"{'case':<42}{'before':>10}  {'held':>10}  {'total':>10}")
    for case in CASES:
        costs = zip(("label", "added"), measure_node_change(case.nodes, case.shapes), strict=True)
        for change, cost in costs:
            name = f"{case.shapes} shapes, {case.nodes} nodes, {change}"
            before_s = case.before_label_s if change == "label" else case.before_added_s
            figures = (before_s, cost.held_s, cost.total_s)
            print(f"{name:<42}" + "  ".join(f"{1e3 * figure:>7.1f} ms" for figure in figures))


if __name__ == "__main__":
    main()
