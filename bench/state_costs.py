"""What single events cost at 5,000 nodes, in CPU time, compared with the engine that recounted everything.

Each case is a function that builds its state, causes the event some times, and returns the CPU seconds of one
event (the median). `before` is what the same function measured at commit 3a9de8e, on the machine on which the
cases were last compared; only the ratio of the two columns says something on another machine.

`python -m bench.state_costs [WORD ...]` prints a table of the cases whose names contain one of the words.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from bench.exclusion_cost import measure_exclusion_rule
from bench.member_costs import measure_member_event, measure_restore
from penstock.engine import Engine, cluster_of, slot_request
from penstock.protocol.facts import Capacity, NodeSet
from penstock.sched.records import Recorded
from penstock.sched.recovery import scheduler_from
from penstock.sched.scheduler import Scheduler
from penstock.sched.settings import Settings

__all__ = ["CASES", "Case"]

_NODES: Final = 5_000
_MEMBERS: Final = 5_000
_ROUNDS: Final = 15
_NOW: Final = 1_000_000.0
_LABELS: Final = 12
_ZONES: Final = 3


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    before_s: float
    measure: Callable[[], float]  # CPU seconds per event


def changed_label() -> float:
    """A node reports another value of one label."""
    scheduler, nodes = _scheduler()
    return _per_event(
        lambda fact=fact: scheduler.handle([fact], _NOW)  # type: ignore[misc]
        for node in nodes[:_ROUNDS]
        for fact in [replace(node, labels=(*node.labels[:-1], ("rack", "moved")))]
    )


def changed_capacity() -> float:
    """A node reports less of one resource, and one resource more than before."""
    scheduler, nodes = _scheduler()
    gpu = Capacity("nvidia.com/gpu", 8, divisible=True)
    return _per_event(
        lambda fact=fact: scheduler.handle([fact], _NOW)  # type: ignore[misc]
        for node in nodes[:_ROUNDS]
        for fact in [
            replace(node, capacity=(replace(node.capacity[0], units=30_000), *node.capacity[1:], gpu))
        ]
    )


def ended_member() -> float:
    """The engine releases one slot of a gang."""
    engine = Engine(
        cluster_of(nodes=_MEMBERS, pools={"cpu": 8_000, "memory": 64 << 30, "pods": 110}), "lonode"
    )
    request = slot_request({"cpu": 1_000, "memory": 1 << 30, "pods": 1}, slots=_MEMBERS, duration_s=3_600)
    engine.match(1, request, 0)
    return _per_event(lambda slot=slot: engine.release_slots(1, [slot]) for slot in range(_ROUNDS))  # type: ignore[misc]


def shared_exclusion_rule() -> float:
    """An anti-affinity rule begins to hold across groups."""
    return measure_exclusion_rule(_NODES).shared_ms / 1e3


def recorded_member_end() -> float:
    """A member of a gang ends: from the fact to the statements for the database."""
    return measure_member_event(_MEMBERS).cpu_s


def restored_workload() -> float:
    """A running workload with 100 live members is restored after many were replaced."""
    return measure_restore(4_000).cpu_s


CASES: Final = (
    Case("one node with another label", 0.000_01, changed_label),
    Case("one node with another capacity", 0.050_3, changed_capacity),
    Case("one member's end in a gang of 5,000, engine alone", 0.086_6, ended_member),
    Case("one member's end in a gang of 5,000, to the store", 0.070, recorded_member_end),
    Case("restore of a workload after 4,000 replaced members", 0.707, restored_workload),
    Case("one more exclusion rule", 0.202, shared_exclusion_rule),
)


def _scheduler() -> tuple[Scheduler, list[NodeSet]]:
    scheduler = scheduler_from(Settings(), Recorded(), _NOW)
    nodes = [_node(number) for number in range(_NODES)]
    scheduler.handle(nodes, _NOW)
    return scheduler, nodes


def _node(number: int) -> NodeSet:
    units = {"cpu": 32_000, "memory": 128 << 30, "pods": 110, "ephemeral-storage": 1 << 40}
    capacity = tuple(Capacity(resource, count, divisible=True) for resource, count in units.items())
    labels = tuple((f"example.com/label{place}", f"value{number % 50}") for place in range(_LABELS))
    levels = (("zone", f"zone{number % _ZONES}"),)
    return NodeSet(f"node{number}", capacity, levels, (*labels, ("rack", f"rack{number // 40}")))


def _per_event(events: Iterable[Callable[[], object]]) -> float:
    """The median CPU time of an event, without the first, which may prepare something."""
    spent: list[float] = []
    gc.collect()
    for event in events:
        began = time.process_time()
        event()
        spent.append(time.process_time() - began)
    return statistics.median(spent[1:])


def main() -> None:
    chosen = [case for case in CASES if not sys.argv[1:] or any(word in case.name for word in sys.argv[1:])]
    width = max((len(case.name) for case in chosen), default=0)
    print(f"{'case':<{width}}  {'before':>10}  {'after':>10}")
    for case in chosen:
        after_s = case.measure()
        print(f"{case.name:<{width}}  {1e3 * case.before_s:>7.2f} ms  {1e3 * after_s:>7.2f} ms")


if __name__ == "__main__":
    main()
