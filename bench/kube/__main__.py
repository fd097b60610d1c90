"""`python -m bench.kube`: measures every contender of every case, one after another, on one control plane.

Sizes are options; small sizes make a smoke test. A failed measurement is listed and the others continue.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Final

from bench.kube.cases import Case, MemoryComparison, Run, gangs, measure, measure_memory, singles
from bench.kube.contenders import Binder, Contender, KubeScheduler, Penstock
from bench.kube.plane import NODE_CPUS, Plane, control_plane
from bench.kube.report import KubeReport
from penstock.errors import PenstockError

__all__ = ["main", "measure_all"]

CASES: Final = {
    "singles": "single pods: kube-scheduler, Penstock, bare binds",
    "small-gangs": "many gangs of three: Penstock, kube-scheduler without and with native gangs",
    "large-gangs": "three large gangs: Penstock, kube-scheduler without and with native gangs",
    "memory": "memory and start-up time in a cluster with many running pods",
}
_SMALL: Final = 3
_PROBES: Final = 2
_INTERRUPTED: Final = 130

Entry = tuple[Case, Callable[[], Contender]]


def main() -> int:
    options = arguments()
    try:
        report = asyncio.run(measure_all(options, _log))
    except PenstockError as error:
        _log(str(error))
        return 1
    except KeyboardInterrupt:
        _log("interrupted")
        return _INTERRUPTED
    print(json.dumps(report.plain(), indent=1) if options.output == "json" else report.markdown())
    return 1 if report.left_out else 0


async def measure_all(options: argparse.Namespace, log: Callable[[str], None]) -> KubeReport:
    runs: list[Run] = []
    left_out: list[str] = []
    load: MemoryComparison | None = None
    async with control_plane(is_native=options.native, log=log) as plane:
        log(f"creating {options.nodes} nodes")
        await plane.grow(options.nodes)
        for case, contender in _entries(options, plane):
            started = contender()
            try:
                runs.append(await measure(plane, case, started, options.limit_s, log))
            except PenstockError as error:
                left_out.append(f"{case.title}, {started.name}: {error}")
                log(left_out[-1])
        if "memory" in options.cases:
            try:
                load = await measure_memory(
                    plane,
                    options.memory_nodes,
                    options.memory_pods,
                    (Penstock(plane, 0), KubeScheduler(plane)),
                    options.limit_s,
                    log,
                )
            except PenstockError as error:
                left_out.append(f"memory: {error}")
                log(left_out[-1])
    return KubeReport(runs, load, left_out, os.cpu_count() or 1, options.native)


def _entries(options: argparse.Namespace, plane: Plane) -> Iterator[Entry]:
    """The measurements in order. Each contender is constructed when its measurement begins."""
    numbers = iter(range(1, 100))

    def penstock() -> Contender:
        return Penstock(plane, next(numbers), is_sampled=options.sample)

    if "singles" in options.cases:
        case = Case("singles", f"{options.pods:,} single pods", singles(options.pods))
        yield case, lambda: KubeScheduler(plane)
        yield case, penstock
        yield case, lambda: Binder(plane)
    for key, count, size in (
        ("small-gangs", options.small_gangs, _SMALL),
        ("large-gangs", options.large_gangs, options.large_size),
    ):
        if key not in options.cases:
            continue
        title = f"{count:,} gangs of {size:,}"
        yield Case(key, title, gangs(count, size, "labels")), penstock
        for grouping in ("none", "native") if options.native else ("none",):
            yield Case(key, title, gangs(count, size, grouping)), lambda: KubeScheduler(plane)


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    cases = "\n".join(f"  {name:12} {title}" for name, title in CASES.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench.kube",
        description="Compares Penstock with kube-scheduler on one control plane.",
        epilog=f"cases:\n{cases}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-o", "--output", choices=("markdown", "json"), default="markdown", help="format (%(default)s)"
    )
    parser.add_argument(
        "--cases", nargs="+", choices=tuple(CASES), default=tuple(CASES), help="cases to run (all)"
    )
    for option, default, about in (
        ("--nodes", 1_000, "nodes in all cases except memory"),
        ("--pods", 10_000, "single pods"),
        ("--small-gangs", 1_000, "gangs of three pods"),
        ("--large-gangs", 3, "large gangs"),
        ("--large-size", 1_000, "pods per large gang"),
        ("--memory-nodes", 5_000, "nodes in the memory case"),
        ("--memory-pods", 50_000, "running pods in the memory case"),
    ):
        parser.add_argument(option, type=int, default=default, metavar="N", help=f"{about} (%(default)s)")
    parser.add_argument(
        "--limit-s", type=float, default=900.0, help="time limit per measurement in seconds (%(default)s)"
    )
    parser.add_argument(
        "--no-native", dest="native", action="store_false", help="disable Kubernetes' native gang scheduling"
    )
    parser.add_argument(
        "--sample", action="store_true", help="profile Penstock and report where it spends its time"
    )
    options = parser.parse_args(argv)
    sizes = {
        "singles": (options.pods, options.nodes),
        "small-gangs": (options.small_gangs * _SMALL, options.nodes),
        "large-gangs": (options.large_gangs * options.large_size, options.nodes),
        "memory": (options.memory_pods + _PROBES, options.memory_nodes),
    }
    for case in options.cases:
        pods, nodes = sizes[case]
        if pods > nodes * NODE_CPUS:
            parser.error(f"{case}: {pods} pods of 1 CPU do not fit on {nodes} nodes of {NODE_CPUS} CPUs")
    return options


if __name__ == "__main__":
    sys.exit(main())
