"""Bindings without a scheduler: the maximum rate of the API server. A separate process, like a scheduler.

`python -m bench.kube.binder KUBECONFIG NAMESPACE SCHEDULER NODES` binds all pods with that schedulerName
round-robin to `node-0`, `node-1` and so on, with 64 requests in flight. It then waits to be stopped, so that
its CPU time can still be read.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from penstock.kube.access import from_kubeconfig
from penstock.kube.client import KubeClient
from penstock.kube.resources import PODS
from penstock.kube.types import Pod

_IN_FLIGHT: Final = 64


async def _bind_all(kubeconfig: str, namespace: str, scheduler: str, nodes: int) -> None:
    print("up", flush=True)
    async with KubeClient(
        from_kubeconfig(Path(kubeconfig)), in_flight_max=_IN_FLIGHT, timeout_s=60.0
    ) as client:
        selector = f"spec.nodeName=,spec.schedulerName={scheduler}"
        listed = await client.list(PODS.path(namespace), Pod, field_selector=selector)
        left = iter(enumerate(listed.items))

        async def bind_next() -> None:
            for index, pod in left:
                await client.bind(namespace, pod.metadata.name, pod.metadata.uid, f"node-{index % nodes}")

        async with asyncio.TaskGroup() as tasks:
            for _ in range(_IN_FLIGHT):
                tasks.create_task(bind_next())
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_bind_all(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
