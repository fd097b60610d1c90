"""Measures how far a burst of two schedulers over-commits nodes: `python -m tests.kubernetes.burst [ROUNDS]`.

In each round kube-scheduler and Penstock each get, at the same moment, as many single pods as fill all nodes.
Simulated kubelets reject none of them. A watch delivers the bindings in the order in which the API server has
accepted them, so each binding to a node that was already full has one author. For those of Penstock, the lead
is the time by which another's last binding to that node came before it: a scheduler cannot know of a
binding sooner than its watch delivers it, nor withdraw one that it has sent.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from penstock.devcluster.settings import NodeShape
from penstock.kube.access import from_kubeconfig
from penstock.kube.client import KubeClient
from penstock.kube.resources import PODS
from penstock.kube.types import Pod
from penstock.kube.watch import Upserted, WatchEvent, WatchState, reflect
from tests.kubernetes.manifests import bare_pod
from tests.kubernetes.namespaces import Namespace, SharedCluster
from tests.kubernetes.site import Site, wait_for

NODES, PODS_PER_NODE = 20, 4


@dataclass(frozen=True)
class Bind:
    node: str
    is_ours: bool
    at_s: float


@dataclass(frozen=True)
class Round:
    """`leads_s`: of each binding of Penstock to a full node. None: only Penstock had bound pods there."""

    over_committed: int
    theirs: int  # bindings of kube-scheduler to full nodes
    leads_s: tuple[float | None, ...]
    bound: int  # pods that Penstock has bound

    def __str__(self) -> str:
        known = sorted(lead_s for lead_s in self.leads_s if lead_s is not None)
        leads = f", leads {known[0]:.3f} to {known[-1]:.3f} s, median {median(known):.3f} s" if known else ""
        return (
            f"{self.over_committed} of {NODES} nodes over-committed; bindings to full nodes: kube-scheduler "
            f"{self.theirs}, Penstock {len(self.leads_s)}{leads}; Penstock bound {self.bound} pods"
        )


def assess(binds: Sequence[Bind]) -> Round:
    """Attributes each binding to a full node; `binds` are in the order of the API server."""
    counts: dict[str, int] = {}
    foreign_s: dict[str, float] = {}  # by node: the last binding of kube-scheduler
    leads_s: list[float | None] = []
    theirs = 0
    for bind in binds:
        counts[bind.node] = counts.get(bind.node, 0) + 1
        is_over = counts[bind.node] > PODS_PER_NODE
        if not bind.is_ours:
            theirs += is_over
            foreign_s[bind.node] = bind.at_s
        elif is_over:
            before = foreign_s.get(bind.node)
            leads_s.append(None if before is None else bind.at_s - before)
    over = sum(count > PODS_PER_NODE for count in counts.values())
    return Round(over, theirs, tuple(leads_s), sum(bind.is_ours for bind in binds))


@contextmanager
def recorded_binds(site: Site, namespace: str) -> Iterator[list[Bind]]:
    """All bindings in the namespace during the block."""
    binds: list[Bind] = []
    seen: set[str] = set()
    state = WatchState()

    def on(change: WatchEvent[Pod]) -> None:
        if isinstance(change, Upserted) and change.item.spec.node_name:
            pod = change.item
            if pod.metadata.uid not in seen:
                seen.add(pod.metadata.uid)
                is_ours = pod.spec.scheduler_name == "penstock"
                binds.append(Bind(pod.spec.node_name, is_ours, time.monotonic()))

    async def watch() -> None:
        async with KubeClient(from_kubeconfig(site.kubeconfig)) as client:
            watching = asyncio.create_task(reflect(client, PODS, Pod, on, namespace=namespace, state=state))
            while not is_over.is_set():
                await asyncio.sleep(0.05)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    is_over = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(watch()))
    thread.start()
    try:
        wait_for(lambda: state.is_synced, "the watch")
        yield binds
    finally:
        is_over.set()
        thread.join()


def measure(namespace: Namespace) -> Round:
    pods = [
        bare_pod(f"{name}-{number}", "1", app=name, scheduler=scheduler)
        for number in range(NODES * PODS_PER_NODE)
        for name, scheduler in (("theirs", "default-scheduler"), ("ours", "penstock"))
    ]
    with recorded_binds(namespace.site, namespace.name) as binds:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(namespace.create, pods))
        wait_for(lambda: len(namespace.bound()) >= NODES * PODS_PER_NODE, "all nodes to be filled", 120)
        wait_for(lambda: len(binds) == len(namespace.bound()), "the watch to deliver all bindings", 60)
    return assess(binds)


def main() -> None:
    shared = SharedCluster()
    try:
        shared.site()
        shared.ensure_nodes(NODES, NodeShape(cpu=str(PODS_PER_NODE), memory="16Gi"))
        for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
            with shared.namespace(shared.penstock()) as namespace:
                found = measure(namespace)
                namespace.clear()
            sys.stdout.write(f"round {number}: {found}\n")
            sys.stdout.flush()
    finally:
        shared.close()


if __name__ == "__main__":
    main()
