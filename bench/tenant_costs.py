"""What one namespace costs the others: a cycle for a pod of another namespace, with and without limits.

Three namespaces that hurt: 2,000 pods with distinct cpu requests that do not fit, two pods with 400 anti-
affinity terms each, and 10,000 groups that never complete. Measured is the CPU time from the watch event of a
pod of another namespace to the end of the scheduling cycle after it, on a cluster that is full. "before" is
without limits, "after" with the default ones.

`python -m bench.tenant_costs [NODES]` prints one line for each case.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.settings import KubeSettings
from penstock.kube.types import Node, Pod
from penstock.sched.records import Recorded
from penstock.sched.recovery import scheduler_from
from penstock.sched.scheduler import Scheduler
from penstock.sched.settings import DEFAULT_QUEUE, QueueSettings, Settings, parse_backfill

__all__ = ["measure"]

_NOW: Final = 1_000_000.0
_UNLIMITED: Final = 1_000_000
_SHAPES: Final = 2_000
_TERMS: Final = 400
_GROUPS: Final = 10_000


def measure(nodes: int, hostile: Iterable[Pod], *, is_limited: bool) -> float:
    """CPU time in ms for a pod of another namespace, while these pods wait."""
    queue = QueueSettings(DEFAULT_QUEUE, parse_backfill("easy"))
    settings, kube = Settings(queues=(queue,)), KubeSettings()
    if not is_limited:
        queue = QueueSettings(DEFAULT_QUEUE, parse_backfill("easy"), pending_max=_UNLIMITED)
        settings = Settings(queues=(queue,), shapes_max=_UNLIMITED)
        kube = KubeSettings(exclusion_keys_max=_UNLIMITED)
    scheduler = scheduler_from(settings, Recorded(), _NOW)
    cache = ClusterCache(kube)
    cache.replace_nodes([_node(f"node{number:05d}") for number in range(nodes)])
    cache.replace_pods([_pod(f"full-{number}", "other", node=f"node{number:05d}") for number in range(nodes)])
    scheduler.handle([cache.snapshot(_NOW)], _NOW)
    for pod in hostile:
        cache.set_pod(pod)
    scheduler.handle(cache.facts(_NOW), _NOW)
    _plan(scheduler)
    gc.collect()
    began = time.process_time()
    cache.set_pod(_pod("mine", "other"))
    scheduler.handle(cache.facts(_NOW), _NOW)
    _plan(scheduler)
    return 1000 * (time.process_time() - began)


def _plan(scheduler: Scheduler) -> None:
    for _ in scheduler.plan(_NOW, deep=False):
        pass


def distinct_requests() -> list[Pod]:
    return [_pod(f"shape-{number}", "hostile", cpu=f"{7000 + number}m") for number in range(_SHAPES)]


def many_terms() -> list[Pod]:
    return [_pod(f"apart-{number}", "hostile", terms=_TERMS) for number in range(2)]


def incomplete_groups() -> list[Pod]:
    keys = ("penstock.dev/group", "penstock.dev/group-size")
    return [
        _pod(f"group-{number}", "hostile", annotations={keys[0]: f"g{number}", keys[1]: "2"})
        for number in range(_GROUPS)
    ]


def _node(name: str) -> Node:
    resources = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"capacity": resources, "allocatable": resources, "conditions": conditions}
    return msgspec.convert({"metadata": {"name": name, "uid": f"uid-{name}"}, "status": status}, Node)


def _pod(name: str, namespace: str, *, cpu: str = "7", node: str = "", terms: int = 0, **more: Any) -> Pod:
    labels = {f"term-{number}": "x" for number in range(terms)}
    affinity = [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {label: "x"}}}
        for label in labels
    ]
    spec: dict[str, object] = {
        "schedulerName": "default-scheduler" if node else "penstock",
        "nodeName": node,
        "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": affinity}},
    }
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels, **more}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


_CASES: Final[dict[str, Callable[[], list[Pod]]]] = {
    "nothing": list,
    f"{_SHAPES} distinct requests": distinct_requests,
    f"{_TERMS} anti-affinity terms": many_terms,
    f"{_GROUPS} incomplete groups": incomplete_groups,
}


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    for name, hostile in _CASES.items():
        before, after = (measure(count, hostile(), is_limited=limited) for limited in (False, True))
        print(f"{count} nodes, {name}: {before:.1f} ms before, {after:.1f} ms after", flush=True)
