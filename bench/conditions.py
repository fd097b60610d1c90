"""Measures how soon pending pods say why they wait: `python -m bench.conditions [PODS] [NODES]`.

All nodes of a simulated cluster are full, and the pods wait: single pods and gangs of eight. In the first
case Penstock starts when they exist; in the second it runs, and they are created. Counted is, for each pod,
the time from then, or from its creation, to its first true condition, as a watch sees it. True is a condition
that says what the group waits for; that its members are still being created, or that no cycle has considered
it yet, is not. The members of a gang count from the creation of its last one. The first jobs in the queue, as
many as get a forecast, are its head.

It prints tables with the CPU time of each process and the share of the machine that unrelated ones used.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from bench.kube.contenders import Penstock, log_since
from bench.kube.plane import NAMESPACE, NODE_CPUS, Group, Plane, control_plane
from bench.kube.usage import Meter, UsageDelta, usage_between
from penstock.errors import Unavailable
from penstock.kube.client import KubeClient
from penstock.kube.resources import PODS
from penstock.kube.types import Pod
from penstock.kube.watch import Relisted, Upserted, WatchEvent, WatchState, reflect
from penstock.sched.settings import Settings

__all__ = ["main", "queue_of", "report"]

_GANG: Final = 8
_HEAD_LIMIT_S, _LIMIT_S = 5.0, 30.0  # what a user may expect
_STARTED_S: Final = 120.0
_WAIT_S: Final = 600.0
_UNDECIDED: Final = "the next scheduling cycle will consider it"


class Conditions:
    """When each pod was created, and when it had a true condition."""

    def __init__(self) -> None:
        self.created_s: dict[str, float] = {}
        self.told_s: dict[str, float] = {}

    def handle(self, change: WatchEvent[Pod]) -> None:
        now_s = time.monotonic()
        match change:
            case Relisted(items):
                for item in items:
                    self._see(item, now_s)
            case Upserted(item):
                self._see(item, now_s)

    def _see(self, pod: Pod, now_s: float) -> None:
        name = pod.metadata.name
        self.created_s.setdefault(name, now_s)
        if any(
            one.type == "PodScheduled"
            and one.status == "False"
            and one.reason == "Unschedulable"
            and one.message
            and _UNDECIDED not in one.message
            for one in pod.status.conditions or ()
        ):
            self.told_s.setdefault(name, now_s)


@asynccontextmanager
async def _watched(client: KubeClient) -> AsyncIterator[Conditions]:
    seen, state = Conditions(), WatchState()
    watching = asyncio.create_task(reflect(client, PODS, Pod, seen.handle, namespace=NAMESPACE, state=state))
    try:
        while not state.is_synced:
            if watching.done():
                watching.result()
            await asyncio.sleep(0.02)
        yield seen
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


def queue_of(pods: int) -> list[Group]:
    """Groups with that many pods: gangs, with a single pod after each."""
    groups: list[Group] = []
    left = pods
    while left:
        size = min(left, _GANG if len(groups) % 2 == 0 else 1)
        name = f"group-{len(groups)}"
        labels = {"penstock.dev/group": name, "penstock.dev/group-size": str(size)} if size > 1 else {}
        groups.append(Group(name, size, labels=labels))
        left -= size
    return groups


def delays(groups: Sequence[Group], seen: Conditions) -> list[float | None]:
    """For each pod, from the creation of its whole group to its first true condition; None: it has none."""
    found: list[float | None] = []
    for group in groups:
        names = [f"{group.name}-{index}" for index in range(group.size)]
        complete_s = max(seen.created_s.get(name, 0.0) for name in names)
        told_s = (seen.told_s.get(name) for name in names)
        found += [None if at_s is None else max(at_s - complete_s, 0.0) for at_s in told_s]
    return found


def report(
    groups: Sequence[Group], head: Sequence[Group], seen: Conditions, spent: UsageDelta, create_s: float
) -> list[str]:
    lines = [
        f"{'pods':<22} {'count':>6} {'with':>6} {'median s':>9} {'99 % s':>7} {'last s':>7} {'limit s':>8}"
    ]
    for title, part, limit_s in (
        (f"head ({len(head)} jobs)", head, _HEAD_LIMIT_S),
        ("all", groups, _LIMIT_S),
    ):
        of_part = delays(part, seen)
        known = sorted(one for one in of_part if one is not None)
        figures = [known[int(share * (len(known) - 1))] if known else 0.0 for share in (0.5, 0.99, 1.0)]
        shown = " ".join(f"{figure:>{width}.1f}" for figure, width in zip(figures, (9, 7, 7), strict=True))
        lines.append(f"{title:<22} {len(of_part):>6} {len(known):>6} {shown} {limit_s:>8.0f}")
    told = sorted(seen.told_s.values())
    rate = (len(told) - 1) / (told[-1] - told[0]) if len(told) > 1 and told[-1] > told[0] else 0.0
    cpu = ", ".join(f"{name} {cpu_s:.1f} s" for name, cpu_s in spent.cpu_s.items())
    lines.append(f"created in {create_s:.1f} s; first conditions: {rate:,.0f}/s")
    lines.append(f"CPU in {spent.wall_s:.1f} s: {cpu}; unrelated processes {spent.foreign_share:.0%}")
    return lines


async def _start(penstock: Penstock) -> None:
    """Starts Penstock and waits until it is ready."""
    offset = penstock.log.stat().st_size if penstock.log.exists() else 0
    await asyncio.to_thread(penstock.start)
    deadline = time.monotonic() + _STARTED_S
    while penstock.ready not in log_since(penstock.log, offset):
        if time.monotonic() > deadline or not penstock.is_alive():
            raise Unavailable(f"Penstock is not ready: {log_since(penstock.log, offset)[-500:]!r}")
        await asyncio.sleep(0.05)


async def _fill(plane: Plane) -> None:
    """One pod of another scheduler on each node, with all of its CPUs."""
    full = [Group(f"full-{node}", 1).pods("nobody", f"node-{node}")[0] for node in range(plane.nodes)]
    for pod in full:
        container = {**pod["spec"]["containers"][0], "resources": {"requests": {"cpu": str(NODE_CPUS)}}}
        pod["spec"] = {**pod["spec"], "containers": [container]}
    await plane.create_pods(full)


async def _until_told(seen: Conditions, pods: int, penstock: Penstock) -> None:
    deadline = time.monotonic() + _WAIT_S
    while len(seen.told_s) < pods and time.monotonic() < deadline and penstock.is_alive():
        await asyncio.sleep(0.1)


def _head(groups: Sequence[Group], penstock: Penstock) -> list[Group]:
    """The groups at the head of the queue. A single pod is a job with the name of the pod."""
    names = {group.name if group.size > 1 else f"{group.name}-0": group for group in groups}
    return [names[name] for name in penstock.queue(Settings().forecast_depth) if name in names]


async def _measure_start(plane: Plane, groups: Sequence[Group], penstock: Penstock) -> list[str]:
    """The pods wait, then Penstock starts. They count from the moment at which it is ready."""
    await _start(penstock)  # It creates its database.
    await asyncio.to_thread(penstock.stop)
    began_s = time.monotonic()
    pods = await plane.create(groups, penstock.scheduler)
    create_s = time.monotonic() - began_s
    async with _watched(plane.client) as seen:
        await _start(penstock)
        seen.created_s = dict.fromkeys(seen.created_s, time.monotonic())
        meter = Meter({**plane.processes(), **penstock.processes()})
        before = meter.read()
        await _until_told(seen, pods, penstock)
        spent = usage_between(before, meter.read())
        head = await asyncio.to_thread(_head, groups, penstock)
        return report(groups, head, seen, spent, create_s)


async def _measure_creation(plane: Plane, groups: Sequence[Group], penstock: Penstock) -> list[str]:
    """Penstock runs, and the pods are created."""
    async with _watched(plane.client) as seen:
        meter = Meter({**plane.processes(), **penstock.processes()})
        before = meter.read()
        began_s = time.monotonic()
        pods = await plane.create(groups, penstock.scheduler)
        create_s = time.monotonic() - began_s
        await _until_told(seen, pods, penstock)
        spent = usage_between(before, meter.read())
        head = await asyncio.to_thread(_head, groups, penstock)
        return report(groups, head, seen, spent, create_s)


async def _measure(plane: Plane, pods: int, nodes: int) -> None:
    penstock, groups = Penstock(plane, 0), queue_of(pods)
    try:
        await plane.grow(nodes)
        await _fill(plane)
        _write("Penstock starts while the pods wait:")
        for line in await _measure_start(plane, groups, penstock):
            _write(line)
        await plane.clear()
        await _fill(plane)
        _write("The pods are created while Penstock runs:")
        for line in await _measure_creation(plane, groups, penstock):
            _write(line)
    finally:
        await asyncio.to_thread(penstock.stop)


async def _run(pods: int, nodes: int) -> None:
    async with control_plane(is_native=False, log=lambda text: _write(f"# {text}")) as plane:
        await _measure(plane, pods, nodes)


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> None:
    pods, nodes = (*(int(one) for one in arguments), *(4000, 500)[len(arguments) :])
    _write(f"{pods} pending pods, {nodes} nodes")
    asyncio.run(_run(pods, nodes))


if __name__ == "__main__":
    main(sys.argv[1:])
