"""One measurement: pods wait, a contender starts, and time and CPU are measured until all pods are bound.

Before it, the same contender runs once with a few pods, which warms up the control plane and creates
Penstock's database. Time and CPU are counted from the moment at which the contender logs that it is up: it
has loaded its code, opened its database and acquired its lease, and has not yet read the cluster. CPU time
after the last binding (events are still written) is counted separately.

A measurement fails if a node has more pods than fit, so that wrong bindings do not count as fast ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from bench.kube.binds import Binds, watched_binds
from bench.kube.contenders import Contender, KubeScheduler, Penstock, log_since
from bench.kube.plane import NAMESPACE, NODE_CPUS, Group, Plane
from bench.kube.usage import Meter, UsageDelta, memory_mb, usage_between
from penstock.errors import Corrupt, Unavailable

__all__ = ["Case", "MemoryComparison", "MemoryUsage", "Run", "gangs", "measure", "measure_memory", "singles"]

_WARM_UP: Final = 5
_QUIET_SHARE: Final = 0.05  # of one core: a scheduler that uses less is idle
_QUIET_S_MAX: Final = 120.0
_POLL_S: Final = 0.01
_CHECK_EVERY_S: Final = 1.0

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Case:
    key: str
    title: str
    groups: tuple[Group, ...]

    @property
    def pods(self) -> int:
        return sum(group.size for group in self.groups)


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one contender in one case. Times are seconds from the start of its process."""

    case: str
    title: str
    contender: str
    nodes: int
    pods: int
    bound: int
    up_s: float  # until it began to read the cluster
    ready_s: float | None  # until it had read everything; only Penstock logs it
    first_s: float
    last_s: float
    first_group_s: float | None  # until all pods of one group were bound
    cpu_s: dict[str, float]  # from up until the last binding
    after_cpu_s: dict[str, float]  # from the last binding until it was idle
    after_s: float
    foreign_share: float
    create_s: float  # how long it took to create the pods
    transactions: int | None = None
    rows: int | None = None
    samples: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Pods per second, from when the contender is up until the last pod is bound."""
        return self.bound / (self.last_s - self.up_s)

    @property
    def rate_with_start(self) -> float:
        return self.bound / self.last_s

    @property
    def cpu_ms_per_pod(self) -> dict[str, float]:
        return {name: cpu_s * 1000 / max(self.bound, 1) for name, cpu_s in self.cpu_s.items()}


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """A scheduler that has bound one pod in a cluster with many running pods."""

    contender: str
    rss_mb: dict[str, float]  # when it is idle
    peak_mb: float  # of the scheduler process
    ready_s: float | None  # only Penstock logs it
    bound_s: float  # from the start of the process until it has bound a pod


@dataclass(frozen=True, slots=True)
class MemoryComparison:
    nodes: int
    pods: int
    nodes_create_s: float
    pods_create_s: float
    usages: tuple[MemoryUsage, ...]


def singles(pods: int) -> tuple[Group, ...]:
    return tuple(Group(f"single-{number}", 1) for number in range(pods))


def gangs(count: int, size: int, grouping: str) -> tuple[Group, ...]:
    """`grouping`: `none` for the same pods without groups, `labels` for Penstock's labels, or `native`."""
    groups = []
    for number in range(count):
        name = f"gang-{number}"
        labels = {"penstock.dev/group": name, "penstock.dev/group-size": str(size)}
        groups.append(Group(name, size, grouping == "native", labels if grouping == "labels" else {}))
    return tuple(groups)


async def measure(plane: Plane, case: Case, contender: Contender, limit_s: float, log: Log) -> Run:
    try:
        await _warm_up(plane, contender, limit_s)
        written = contender.written() if isinstance(contender, Penstock) else None
        await asyncio.to_thread(contender.stop)
        await plane.clear()
        began = time.monotonic()
        await plane.create(case.groups, contender.scheduler)
        create_s = time.monotonic() - began
        log(f"{case.title}, {contender.name}: created {case.pods} pods in {create_s:.0f} s")
        run = await _measured(plane, case, contender, limit_s, create_s, written)
        await _check(plane)
    finally:
        await asyncio.to_thread(contender.stop)
        await plane.clear()
    log(
        f"{case.title}, {run.contender}: {run.rate:,.0f} pods/s; up after {run.up_s:.1f} s, "
        f"first bound after {run.first_s:.1f} s, last after {run.last_s:.1f} s; "
        f"unrelated processes {run.foreign_share:.0%}"
    )
    return run


async def _warm_up(plane: Plane, contender: Contender, limit_s: float) -> None:
    await plane.create((Group("warm-up", _WARM_UP),), contender.scheduler)
    async with watched_binds(plane.client, NAMESPACE) as binds:
        await asyncio.to_thread(contender.start)
        await _until_bound(binds, _WARM_UP, contender, limit_s)


async def _measured(
    plane: Plane,
    case: Case,
    contender: Contender,
    limit_s: float,
    create_s: float,
    written: tuple[int, int] | None,
) -> Run:
    async with watched_binds(plane.client, NAMESPACE) as binds:
        watcher = _LogWatcher(contender, limit_s)
        began_s = time.monotonic()
        await asyncio.to_thread(contender.start)
        up_s = await watcher.wait_for(contender.up)
        meter = Meter({**plane.processes(), **contender.processes()})
        at_up = meter.read()
        own: dict[str, Any] = {"ready_s": None}
        samples_before: dict[str, dict[str, int]] = {}
        if isinstance(contender, Penstock):
            own["ready_s"] = await watcher.wait_for(contender.ready) - began_s
            samples_before = contender.samples()
        await _until_bound(binds, case.pods, contender, limit_s, must_reach=False)
        spent = usage_between(at_up, meter.read())
        after = await _until_quiet(meter)
        if isinstance(contender, Penstock) and written is not None:
            now = await asyncio.to_thread(contender.written)
            own["transactions"], own["rows"] = now[0] - written[0], now[1] - written[1]
            own["samples"] = _difference(contender.samples(), samples_before)
    times = list(binds.at_s.values())
    return Run(
        case=case.key,
        title=case.title,
        contender=_name(contender, case),
        nodes=plane.nodes,
        pods=case.pods,
        bound=len(times),
        up_s=min(up_s, *times) - began_s,  # Its log is read now and then, and a pod may be bound before.
        first_s=min(times) - began_s,
        last_s=max(times) - began_s,
        first_group_s=_first_group(case, binds, began_s),
        cpu_s=spent.cpu_s,
        after_cpu_s=after.cpu_s,
        after_s=after.wall_s,
        foreign_share=spent.foreign_share,
        create_s=create_s,
        **own,
    )


async def _until_bound(
    binds: Binds, count: int, contender: Contender, limit_s: float, *, must_reach: bool = True
) -> None:
    """Waits for `count` bound pods. Without `must_reach`, some bound pods are enough at the time limit."""
    deadline = time.monotonic() + limit_s
    while not await binds.wait(count, _CHECK_EVERY_S):
        if not contender.is_alive():
            raise Unavailable(f"{contender.name} exited after binding {len(binds.at_s)} of {count} pods")
        if time.monotonic() > deadline:
            if must_reach or not binds.at_s:
                raise Unavailable(
                    f"{contender.name} bound only {len(binds.at_s)} of {count} pods in {limit_s:g} s"
                )
            return


def _difference(
    after: dict[str, dict[str, int]], before: dict[str, dict[str, int]]
) -> dict[str, dict[str, int]]:
    """The sample counts of the time between two readings."""
    return {
        key: {name: count - before.get(key, {}).get(name, 0) for name, count in counts.items()}
        for key, counts in after.items()
    }


class _LogWatcher:
    """Waits for messages in a contender's log that are written after this object is created."""

    def __init__(self, contender: Contender, limit_s: float) -> None:
        self._contender = contender
        self._offset = contender.log.stat().st_size if contender.log.exists() else 0
        self._deadline = time.monotonic() + limit_s

    async def wait_for(self, message: bytes) -> float:
        """Returns the monotonic time at which the message appears."""
        while message not in log_since(self._contender.log, self._offset):
            if time.monotonic() > self._deadline or not self._contender.is_alive():
                raise Unavailable(
                    f"{self._contender.name} did not log {message.decode()!r}; its last line: {self._last()}"
                )
            await asyncio.sleep(_POLL_S)
        return time.monotonic()

    def _last(self) -> str:
        lines = log_since(self._contender.log, self._offset).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "none"


def _name(contender: Contender, case: Case) -> str:
    if contender.name != KubeScheduler.name or max(group.size for group in case.groups) == 1:
        return contender.name
    return f"{contender.name}, {'native gangs' if case.groups[0].is_native else 'no gangs'}"


def _first_group(case: Case, binds: Binds, began_s: float) -> float | None:
    """The time at which the first group had all its pods bound, None for pods without groups."""
    complete: dict[str, float] = {}
    counts: dict[str, int] = {}
    sizes = {group.name: group.size for group in case.groups if group.labels or group.is_native}
    for pod, at_s in binds.at_s.items():  # in the order of binding
        name = pod.rpartition("-")[0]
        counts[name] = counts.get(name, 0) + 1
        if counts[name] == sizes.get(name):
            complete[name] = at_s
    return min(complete.values()) - began_s if complete else None


async def _until_quiet(meter: Meter) -> UsageDelta:
    """Waits until the contender is idle, at most `_QUIET_S_MAX`."""
    first = last = meter.read()
    while last.at_s - first.at_s < _QUIET_S_MAX:
        await asyncio.sleep(1.0)
        before, last = last, meter.read()
        spent = usage_between(before, last)
        busy_s = spent.cpu_s.get("scheduler", 0.0) + spent.cpu_s.get("database", 0.0)
        if busy_s < _QUIET_SHARE * spent.wall_s:
            break
    return usage_between(first, last)


async def _check(plane: Plane) -> None:
    over = {node: count for node, count in (await plane.placed()).items() if count > NODE_CPUS}
    if over:
        raise Corrupt(f"{len(over)} nodes have more pods of 1 CPU than CPUs: {over}")


async def measure_memory(
    plane: Plane, nodes: int, pods: int, contenders: tuple[Contender, ...], limit_s: float, log: Log
) -> MemoryComparison:
    """Measures the contenders in a cluster with `pods` pods of another scheduler, evenly distributed."""
    began = time.monotonic()
    await plane.grow(nodes)
    nodes_create_s = time.monotonic() - began
    began = time.monotonic()
    documents = []
    for node in range(nodes):
        foreign = Group(f"foreign-{node}", pods // nodes + (node < pods % nodes))
        documents += foreign.pods("another-scheduler", f"node-{node}")
    await plane.create_pods(documents)
    pods_create_s = time.monotonic() - began
    log(f"memory: created {len(documents)} pods on {nodes} nodes in {pods_create_s:.0f} s")
    usages = []
    for index, contender in enumerate(contenders):
        try:
            usages.append(await _memory_usage(plane, contender, f"probe-{index}", limit_s))
        finally:
            await asyncio.to_thread(contender.stop)
        sizes = ", ".join(f"{name} {size:,.0f} MB" for name, size in usages[-1].rss_mb.items())
        log(f"memory: {contender.name}: {sizes}; a pod bound after {usages[-1].bound_s:.1f} s")
    return MemoryComparison(nodes, len(documents), nodes_create_s, pods_create_s, tuple(usages))


async def _memory_usage(plane: Plane, contender: Contender, probe: str, limit_s: float) -> MemoryUsage:
    """Starts the contender twice: the first start creates Penstock's database."""
    await plane.create((Group(f"{probe}-first", 1),), contender.scheduler)
    async with watched_binds(plane.client, NAMESPACE) as binds:
        bound_before = len(binds.at_s)
        await asyncio.to_thread(contender.start)
        await _until_bound(binds, bound_before + 1, contender, limit_s)
        await asyncio.to_thread(contender.stop)
        await plane.create((Group(probe, 1),), contender.scheduler)
        watcher = _LogWatcher(contender, limit_s)
        began_s = time.monotonic()
        await asyncio.to_thread(contender.start)
        ready_s = None
        if isinstance(contender, Penstock):
            ready_s = await watcher.wait_for(contender.ready) - began_s
        await _until_bound(binds, bound_before + 2, contender, limit_s)
        bound_s = max(binds.at_s.values()) - began_s
        processes = contender.processes()
        await _until_quiet(Meter(processes))
    sizes = {name: memory_mb(pid) for name, pid in processes.items()}
    peak = memory_mb(processes["scheduler"], "VmHWM")
    return MemoryUsage(contender.name, sizes, peak, ready_s, bound_s)
