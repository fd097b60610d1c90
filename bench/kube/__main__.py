"""`python -m bench.kube`: every contender of every case, one after the other on one control plane.

Sizes are options, and small ones make a smoke test. What fails is named, and the rest is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Final

from bench.kube.cases import Case, Load, Run, gangs, measure, measure_memory, singles
from bench.kube.contenders import Binder, Contender, KubeScheduler, Penstock
from bench.kube.plane import NODE_CPUS, Plane, control_plane
from bench.kube.report import KubeReport
from penstock.errors import PenstockError

__all__ = ["main", "measure_all"]

CASES: Final = {
    "singles": "single pods: kube-scheduler, Penstock, bare binds",
    "small-gangs": "many gangs of three: Penstock, kube-scheduler without and with native gangs",
    "large-gangs": "three large gangs: the same",
    "memory": "memory and start among many pods that others have placed",
}
_SMALL: Final = 3
_PROBES: Final = 2
_INTERRUPTED: Final = 130

Entry = tuple[Case, Callable[[], Contender]]


def main() -> int:
    asked = arguments()
    try:
        report = asyncio.run(measure_all(asked, _tell))
    except PenstockError as error:
        _tell(str(error))
        return 1
    except KeyboardInterrupt:
        _tell("interrupted")
        return _INTERRUPTED
    print(json.dumps(report.plain(), indent=1) if asked.output == "json" else report.markdown())
    return 1 if report.left_out else 0


async def measure_all(asked: argparse.Namespace, tell: Callable[[str], None]) -> KubeReport:
    runs: list[Run] = []
    left_out: list[str] = []
    load: Load | None = None
    async with control_plane(is_native=asked.native, tell=tell) as plane:
        tell(f"making {asked.nodes} nodes")
        await plane.grow(asked.nodes)
        for case, contender in _entries(asked, plane):
            made = contender()
            try:
                runs.append(await measure(plane, case, made, asked.limit_s, tell))
            except PenstockError as error:
                left_out.append(f"{case.title}, {made.name}: {error}")
                tell(left_out[-1])
        if "memory" in asked.cases:
            try:
                load = await measure_memory(
                    plane,
                    asked.memory_nodes,
                    asked.memory_pods,
                    (Penstock(plane, 0), KubeScheduler(plane)),
                    asked.limit_s,
                    tell,
                )
            except PenstockError as error:
                left_out.append(f"memory: {error}")
                tell(left_out[-1])
    return KubeReport(runs, load, left_out, os.cpu_count() or 1, asked.native)


def _entries(asked: argparse.Namespace, plane: Plane) -> Iterator[Entry]:
    """What is measured, in order; a contender is made when its turn comes."""
    numbers = iter(range(1, 100))

    def penstock() -> Contender:
        return Penstock(plane, next(numbers), is_sampled=asked.sample)

    if "singles" in asked.cases:
        case = Case("singles", f"{asked.pods:,} single pods", singles(asked.pods))
        yield case, lambda: KubeScheduler(plane)
        yield case, penstock
        yield case, lambda: Binder(plane)
    for key, count, size in (
        ("small-gangs", asked.small_gangs, _SMALL),
        ("large-gangs", asked.large_gangs, asked.large_size),
    ):
        if key not in asked.cases:
            continue
        title = f"{count:,} gangs of {size:,}"
        yield Case(key, title, gangs(count, size, "labels")), penstock
        for kind in ("none", "native") if asked.native else ("none",):
            yield Case(key, title, gangs(count, size, kind)), lambda: KubeScheduler(plane)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    cases = "\n".join(f"  {name:12} {what}" for name, what in CASES.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench.kube",
        description="Measures Penstock beside kube-scheduler on one control plane.",
        epilog=f"cases:\n{cases}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--output", choices=("markdown", "json"), default="markdown")
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=tuple(CASES))
    for option, default, about in (
        ("--nodes", 1_000, "nodes of all cases but the last"),
        ("--pods", 10_000, "single pods"),
        ("--small-gangs", 1_000, "gangs of three"),
        ("--large-gangs", 3, "large gangs"),
        ("--large-size", 1_000, "pods of each"),
        ("--memory-nodes", 5_000, "nodes of the last case"),
        ("--memory-pods", 50_000, "pods on them"),
    ):
        parser.add_argument(option, type=int, default=default, metavar="N", help=f"{about} (%(default)s)")
    parser.add_argument("--limit-s", type=float, default=900.0, help="for one contender (%(default)s)")
    parser.add_argument(
        "--no-native", dest="native", action="store_false", help="a control plane without native gangs"
    )
    parser.add_argument("--sample", action="store_true", help="tell where Penstock's time goes")
    asked = parser.parse_args(argv)
    sizes = {
        "singles": (asked.pods, asked.nodes),
        "small-gangs": (asked.small_gangs * _SMALL, asked.nodes),
        "large-gangs": (asked.large_gangs * asked.large_size, asked.nodes),
        "memory": (asked.memory_pods + _PROBES, asked.memory_nodes),
    }
    for case in asked.cases:
        pods, nodes = sizes[case]
        if pods > nodes * NODE_CPUS:
            parser.error(f"{case}: {pods} pods have no room on {nodes} nodes of {NODE_CPUS} CPUs")
    return asked


if __name__ == "__main__":
    sys.exit(main())
