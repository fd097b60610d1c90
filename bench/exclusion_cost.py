"""The cost of an exclusion rule that becomes shared, from the watch event to the state of the scheduler.

A pod with an anti-affinity rule waits. Another one, of another group, arrives with the same rule: from then
on the rule holds across groups, and both pods are reported with it. Measured is the CPU time from the watch
event to the end of `Scheduler.handle`, and the same for the pod's deletion, which ends the rule. What depends
on the number of nodes is the check that the new request can ever run.

`python -m bench.exclusion_cost [NODES ...]` prints one line for each number of nodes.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.settings import KubeSettings
from penstock.kube.types import Node, Pod
from penstock.sched.records import Recorded
from penstock.sched.recovery import scheduler_from
from penstock.sched.settings import DEFAULT_QUEUE, QueueSettings, Settings, parse_backfill

__all__ = ["ExclusionCost", "measure_exclusion_rule"]

_SIZES: Final = (500, 5_000)
_NOW: Final = 1_000_000.0
_ROUNDS: Final = 7


@dataclass(frozen=True, slots=True)
class ExclusionCost:
    nodes: int
    shared_ms: float  # CPU time, median: a rule becomes shared
    ended_ms: float  # CPU time, median: it ceases to be
    facts: int  # reported when it becomes shared


def measure_exclusion_rule(nodes: int, rounds: int = _ROUNDS) -> ExclusionCost:
    queue = QueueSettings(DEFAULT_QUEUE, parse_backfill("easy"))
    scheduler = scheduler_from(Settings(queues=(queue,)), Recorded(), _NOW)
    cache = ClusterCache(KubeSettings())
    cache.replace_nodes([_node(f"node{number:05d}") for number in range(nodes)])
    scheduler.handle([cache.snapshot(_NOW)], _NOW)
    shared: list[float] = []
    ended: list[float] = []
    facts = 0
    for number in range(rounds + 1):
        app = f"app{number}"
        cache.set_pod(_pod(f"first-{app}", app))
        scheduler.handle(cache.facts(_NOW), _NOW)
        second = _pod(f"second-{app}", app)
        gc.collect()
        began = time.process_time()
        cache.set_pod(second)
        reported = cache.facts(_NOW)
        scheduler.handle(reported, _NOW)
        shared.append(time.process_time() - began)
        facts = len(reported)
        began = time.process_time()
        cache.remove_pod(second)
        scheduler.handle(cache.facts(_NOW), _NOW)
        ended.append(time.process_time() - began)
    # The first round is a warm-up.
    return ExclusionCost(
        nodes, 1e3 * statistics.median(shared[1:]), 1e3 * statistics.median(ended[1:]), facts
    )


def _node(name: str) -> Node:
    raw: dict[str, Any] = {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"},
        "status": {
            "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    return msgspec.convert(raw, Node)


def _pod(name: str, app: str) -> Pod:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}
    raw: dict[str, Any] = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "labels": {"app": app},
        },
        "spec": {
            "schedulerName": "penstock",
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
        },
        "status": {"phase": "Pending"},
    }
    return msgspec.convert(raw, Pod)


def main() -> None:
    for nodes in [int(one) for one in sys.argv[1:]] or _SIZES:
        cost = measure_exclusion_rule(nodes)
        print(
            f"{cost.nodes:>6,} nodes: a rule becomes shared {cost.shared_ms:.2f} ms,"
            f" ceases {cost.ended_ms:.2f} ms, {cost.facts} facts"
        )


if __name__ == "__main__":
    main()
