"""One measurement: pods that wait, a contender that starts, and what it took until all are bound.

Before each, the same contender starts with a few pods, which warms the control plane and makes Penstock's
database. Time and costs count from when the contender is up, by its own word: before it reads anything of the
cluster, and after it has loaded its code, opened its database and got its lease. What is still written after
the last binding (events) is counted apart.

A scheduler that binds fast and wrong must not look fast: nodes with more than fits end the measurement.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from bench.kube.binds import Binds, watched_binds
from bench.kube.contenders import Contender, KubeScheduler, Penstock, said_since
from bench.kube.plane import NAMESPACE, NODE_CPUS, Group, Plane
from bench.kube.usage import Meter, Spent, memory_mb, spent_between
from penstock.errors import Corrupt, Unavailable

__all__ = ["Case", "Load", "Memory", "Run", "gangs", "measure", "measure_memory", "singles"]

_WARM_UP: Final = 5
_QUIET_SHARE: Final = 0.05  # of one core: a scheduler that uses less has nothing more to do
_QUIET_S_MAX: Final = 120.0
_POLL_S: Final = 0.01
_LOOK_EVERY_S: Final = 1.0

StatusUpdate = Callable[[str], None]


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
    """Times are seconds from the start of the contender's process."""

    case: str
    title: str
    contender: str
    nodes: int
    pods: int
    bound: int
    up_s: float  # until it began to look at the cluster
    ready_s: float | None  # until it had seen everything; Penstock says so
    first_s: float
    last_s: float
    first_group_s: float | None  # until the first whole group was bound
    cpu_s: dict[str, float]  # from when it was up until the last binding
    after_cpu_s: dict[str, float]  # from then on until it was quiet
    after_s: float
    others: float
    create_s: float  # how long it took to make the pods
    transactions: int | None = None
    rows: int | None = None
    samples: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Pods a second, from when the contender is up until the last is bound."""
        return self.bound / (self.last_s - self.up_s)

    @property
    def rate_with_start(self) -> float:
        return self.bound / self.last_s

    @property
    def cpu_ms_per_pod(self) -> dict[str, float]:
        return {name: spent * 1000 / max(self.bound, 1) for name, spent in self.cpu_s.items()}


@dataclass(frozen=True, slots=True)
class Memory:
    """Of a scheduler that is up and has bound one pod, among many that others have placed."""

    contender: str
    rss_mb: dict[str, float]  # when it has nothing more to do
    peak_mb: float  # of the scheduler
    ready_s: float | None  # Penstock's own word
    bound_s: float  # from the start of the process until it had bound a pod


@dataclass(frozen=True, slots=True)
class Load:
    nodes: int
    pods: int
    nodes_made_s: float
    pods_made_s: float
    memories: tuple[Memory, ...]


def singles(pods: int) -> tuple[Group, ...]:
    return tuple(Group(f"single-{number}", 1) for number in range(pods))


def gangs(count: int, size: int, kind: str) -> tuple[Group, ...]:
    """`kind`: `none` for the same pods without groups, `labels` as Penstock reads them, or `native`."""
    found = []
    for number in range(count):
        name = f"gang-{number}"
        labels = {"penstock.dev/group": name, "penstock.dev/group-size": str(size)}
        found.append(Group(name, size, kind == "native", labels if kind == "labels" else {}))
    return tuple(found)


async def measure(plane: Plane, case: Case, contender: Contender, limit_s: float, tell: StatusUpdate) -> Run:
    try:
        await _warm_up(plane, contender, limit_s)
        written = contender.written() if isinstance(contender, Penstock) else None
        await asyncio.to_thread(contender.stop)
        await plane.clear()
        began = time.monotonic()
        await plane.create(case.groups, contender.scheduler)
        create_s = time.monotonic() - began
        tell(f"{case.title}, {contender.name}: {case.pods} pods made in {create_s:.0f} s")
        run = await _measured(plane, case, contender, limit_s, create_s, written)
        await _check(plane)
    finally:
        await asyncio.to_thread(contender.stop)
        await plane.clear()
    tell(
        f"{case.title}, {run.contender}: {run.rate:,.0f} pods/s; up after {run.up_s:.1f} s, "
        f"first bound after {run.first_s:.1f} s, last after {run.last_s:.1f} s; others {run.others:.0%}"
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
        listener = _Listener(contender, limit_s)
        began_s = time.monotonic()
        await asyncio.to_thread(contender.start)
        up_s = await listener.hear(contender.up)
        meter = Meter({**plane.processes(), **contender.processes()})
        at_up = meter.read()
        own: dict[str, Any] = {"ready_s": None}
        seen: dict[str, dict[str, int]] = {}
        if isinstance(contender, Penstock):
            own["ready_s"] = await listener.hear(contender.ready) - began_s
            seen = contender.samples()
        await _until_bound(binds, case.pods, contender, limit_s, must_reach=False)
        spent = spent_between(at_up, meter.read())
        after = await _until_quiet(meter)
        if isinstance(contender, Penstock) and written is not None:
            now = await asyncio.to_thread(contender.written)
            own["transactions"], own["rows"] = now[0] - written[0], now[1] - written[1]
            own["samples"] = _more(contender.samples(), seen)
    times = list(binds.at_s.values())
    return Run(
        case=case.key,
        title=case.title,
        contender=_name(contender, case),
        nodes=plane.nodes,
        pods=case.pods,
        bound=len(times),
        up_s=up_s - began_s,
        first_s=min(times) - began_s,
        last_s=max(times) - began_s,
        first_group_s=_first_whole(case, binds, began_s),
        cpu_s=spent.cpu_s,
        after_cpu_s=after.cpu_s,
        after_s=after.wall_s,
        others=spent.others,
        create_s=create_s,
        **own,
    )


async def _until_bound(
    binds: Binds, count: int, contender: Contender, limit_s: float, *, must_reach: bool = True
) -> None:
    """Some are enough, unless all must be; whoever ends before that has failed."""
    deadline = time.monotonic() + limit_s
    while not await binds.wait(count, _LOOK_EVERY_S):
        if not contender.is_alive():
            raise Unavailable(f"{contender.name} has ended; it had bound {len(binds.at_s)} of {count} pods")
        if time.monotonic() > deadline:
            if must_reach or not binds.at_s:
                raise Unavailable(f"{contender.name} bound {len(binds.at_s)} of {count} in {limit_s:g} s")
            return


def _more(after: dict[str, dict[str, int]], before: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """What was seen after something else had been seen."""
    return {
        what: {name: count - before.get(what, {}).get(name, 0) for name, count in counts.items()}
        for what, counts in after.items()
    }


class _Listener:
    """Hears what a contender says from now on."""

    def __init__(self, contender: Contender, limit_s: float) -> None:
        self._contender = contender
        self._offset = contender.log.stat().st_size if contender.log.exists() else 0
        self._deadline = time.monotonic() + limit_s

    async def hear(self, word: bytes) -> float:
        """The time at which it says it."""
        while word not in said_since(self._contender.log, self._offset):
            if time.monotonic() > self._deadline or not self._contender.is_alive():
                raise Unavailable(f"{self._contender.name} did not say {word.decode()!r}: {self._last()}")
            await asyncio.sleep(_POLL_S)
        return time.monotonic()

    def _last(self) -> str:
        lines = said_since(self._contender.log, self._offset).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "its log is empty"


def _name(contender: Contender, case: Case) -> str:
    if contender.name != KubeScheduler.name or max(group.size for group in case.groups) == 1:
        return contender.name
    return f"{contender.name}, {'native gangs' if case.groups[0].is_native else 'no gangs'}"


def _first_whole(case: Case, binds: Binds, began_s: float) -> float | None:
    """When the first group had all of its pods bound; nothing for pods without groups."""
    whole: dict[str, float] = {}
    counts: dict[str, int] = {}
    sizes = {group.name: group.size for group in case.groups if group.labels or group.is_native}
    for pod, at_s in binds.at_s.items():  # in the order of their times
        name = pod.rpartition("-")[0]
        counts[name] = counts.get(name, 0) + 1
        if counts[name] == sizes.get(name):
            whole[name] = at_s
    return min(whole.values()) - began_s if whole else None


async def _until_quiet(meter: Meter) -> Spent:
    """Until the contender has nothing more to do, or takes too long over it."""
    first = last = meter.read()
    while last.at_s - first.at_s < _QUIET_S_MAX:
        await asyncio.sleep(1.0)
        before, last = last, meter.read()
        spent = spent_between(before, last)
        busy_s = spent.cpu_s.get("scheduler", 0.0) + spent.cpu_s.get("database", 0.0)
        if busy_s < _QUIET_SHARE * spent.wall_s:
            break
    return spent_between(first, last)


async def _check(plane: Plane) -> None:
    over = {node: count for node, count in (await plane.placed()).items() if count > NODE_CPUS}
    if over:
        raise Corrupt(f"{len(over)} nodes have more pods than they have CPUs: {over}")


async def measure_memory(
    plane: Plane, nodes: int, pods: int, contenders: tuple[Contender, ...], limit_s: float, tell: StatusUpdate
) -> Load:
    """Among `pods` that others have placed, evenly."""
    began = time.monotonic()
    await plane.grow(nodes)
    nodes_made_s = time.monotonic() - began
    began = time.monotonic()
    documents = []
    for node in range(nodes):
        there = Group(f"foreign-{node}", pods // nodes + (node < pods % nodes))
        documents += there.pods("somebody", f"node-{node}")
    await plane.create_pods(documents)
    pods_made_s = time.monotonic() - began
    tell(f"memory: {len(documents)} pods on {nodes} nodes were made in {pods_made_s:.0f} s")
    memories = []
    for place, contender in enumerate(contenders):
        try:
            memories.append(await _remembered(plane, contender, f"probe-{place}", limit_s))
        finally:
            await asyncio.to_thread(contender.stop)
        told = ", ".join(f"{name} {size:,.0f} MB" for name, size in memories[-1].rss_mb.items())
        tell(f"memory: {contender.name}: {told}; a pod bound after {memories[-1].bound_s:.1f} s")
    return Load(nodes, len(documents), nodes_made_s, pods_made_s, tuple(memories))


async def _remembered(plane: Plane, contender: Contender, probe: str, limit_s: float) -> Memory:
    """Started twice: the first time makes Penstock's database."""
    await plane.create((Group(f"{probe}-first", 1),), contender.scheduler)
    async with watched_binds(plane.client, NAMESPACE) as binds:
        there = len(binds.at_s)
        await asyncio.to_thread(contender.start)
        await _until_bound(binds, there + 1, contender, limit_s)
        await asyncio.to_thread(contender.stop)
        await plane.create((Group(probe, 1),), contender.scheduler)
        listener = _Listener(contender, limit_s)
        began_s = time.monotonic()
        await asyncio.to_thread(contender.start)
        ready_s = None
        if isinstance(contender, Penstock):
            ready_s = await listener.hear(contender.ready) - began_s
        await _until_bound(binds, there + 2, contender, limit_s)
        bound_s = max(binds.at_s.values()) - began_s
        processes = contender.processes()
        await _until_quiet(Meter(processes))
    sizes = {name: memory_mb(pid) for name, pid in processes.items()}
    peak = memory_mb(processes["scheduler"], "VmHWM")
    return Memory(contender.name, sizes, peak, ready_s, bound_s)
