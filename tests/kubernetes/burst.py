"""Measures how far a burst of two schedulers over-commits nodes: `python -m tests.kubernetes.burst [ROUNDS]`.

In each round kube-scheduler and Penstock each get, at the same moment, as many single pods as fill all nodes.
Counted are nodes with more bound pods than they have cores; simulated kubelets reject none of them.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from penstock.devcluster.settings import NodeShape
from tests.kubernetes.manifests import bare_pod
from tests.kubernetes.namespaces import Namespace, SharedCluster
from tests.kubernetes.site import wait_for

NODES, PODS_PER_NODE = 20, 4


def over_committed(namespace: Namespace) -> int:
    """Nodes with more pods of one core each than they have cores."""
    counts: dict[str, int] = {}
    for pod in namespace.bound():
        node = pod["spec"]["nodeName"]
        counts[node] = counts.get(node, 0) + 1
    return sum(count > PODS_PER_NODE for count in counts.values())


def measure(namespace: Namespace) -> tuple[int, int]:
    pods = [
        bare_pod(f"{name}-{number}", "1", app=name, scheduler=scheduler)
        for number in range(NODES * PODS_PER_NODE)
        for name, scheduler in (("theirs", "default-scheduler"), ("ours", "penstock"))
    ]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(namespace.create, pods))
    wait_for(lambda: len(namespace.bound()) >= NODES * PODS_PER_NODE, "all nodes to be filled", 120)
    return over_committed(namespace), len(namespace.bound("ours"))


def main() -> None:
    shared = SharedCluster()
    try:
        shared.site()
        shared.ensure_nodes(NODES, NodeShape(cpu=str(PODS_PER_NODE), memory="16Gi"))
        for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
            with shared.namespace(shared.penstock()) as namespace:
                nodes, ours = measure(namespace)
                namespace.clear()
            sys.stdout.write(
                f"round {number}: {nodes} of {NODES} nodes over-committed; Penstock bound {ours} pods\n"
            )
    finally:
        shared.close()


if __name__ == "__main__":
    main()
