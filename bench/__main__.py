"""`python -m bench`: runs every matcher case in its own process, then whole instances, and prints tables.

Processes run one after another: in parallel on few cores they would slow each other down, which even CPU time
shows. Each phase has a budget of CPU time. A cell that fails or takes too long is listed as left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from bench import matrix, peer
from bench.inputs import CASES, Variant
from bench.instance import InstanceReport, measure_long_queue, measure_mock, measure_processes
from bench.matrix import Cell
from bench.report import MatcherReport
from bench.run import Measurement, PhaseResult
from penstock.engine.policies import NAMED_POLICIES

_ROOT: Final = Path(__file__).resolve().parent.parent
_SIZES: Final = (100, 1_000)
_CELL_MAX_S: Final = 600.0
_BUDGET_S: Final = 1.5
_QUICK_BUDGET_S: Final = 0.3


class _LeftOut(Exception):
    """A cell was not measured; the text is the reason."""


def main() -> int:
    options = _arguments()
    cells = _cells(options)
    budget_s = options.budget_s or (_QUICK_BUDGET_S if options.quick else _BUDGET_S)
    began = time.monotonic()
    measurements: list[Measurement] = []
    left_out: list[str] = []
    with _progress(len(cells)) as advance:
        for cell in cells:
            try:
                one = _measure_in_process(cell, budget_s)
            except _LeftOut as error:
                left_out.append(f"{cell}: {error}")
                advance(f"{cell}: {error}")
                continue
            measurements.append(one)
            rates = ", ".join(f"{phase.name} {phase.rate:,.1f}/s" for phase in one.phases)
            advance(f"{cell}: {rates or 'load'}; load {one.load_cpu_s:.2f} s")
    report = MatcherReport(measurements, left_out, time.monotonic() - began, budget_s)
    jobs = 0 if options.quick else options.instance_jobs
    instance = _measure_instance(jobs) if jobs else None
    document = json.loads(report.json())
    if instance is not None:
        document["instance"] = instance.plain()
    if options.directory:
        _write(options.directory, document, report.cost_svg())
    if options.output == "json":
        print(json.dumps(document, indent=1))
    else:
        print(report.markdown() + (f"\n{instance.markdown()}" if instance is not None else ""))
    return 1 if left_out else 0


def _cells(options: argparse.Namespace) -> list[Cell]:
    if not (options.cases or options.sizes or options.policies or options.variants):
        return matrix.quick() if options.quick else matrix.complete()
    return list(
        matrix.product(
            options.cases or tuple(CASES),
            options.sizes or _SIZES,
            options.policies or peer.POLICIES,
            [Variant(name) for name in options.variants or ("plain",)],
        )
    )


def _measure_instance(jobs: int) -> InstanceReport:
    _log(f"instance: {jobs} no-op jobs on 1,000 simulated nodes")
    mock = measure_mock(jobs, 1000)
    _log(f"instance: {mock.rate:,.1f} jobs/s; next: {jobs // 10} real processes")
    real = measure_processes(max(jobs // 10, 1))
    _log(f"instance: {real.rate:,.1f} jobs/s; next: a scheduling cycle over {jobs * 10} pending jobs")
    return InstanceReport((mock, real), measure_long_queue(jobs * 10, 50))


def _measure_in_process(cell: Cell, budget_s: float) -> Measurement:
    arguments = [cell.case, str(cell.nodes), cell.policy, cell.variant.value, str(budget_s)]
    command = [sys.executable, "-m", "bench.run", *arguments]
    try:
        ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=_CELL_MAX_S)
    except subprocess.TimeoutExpired:
        raise _LeftOut(f"not finished after {_CELL_MAX_S:.0f} s") from None
    if ended.returncode != 0:
        last = ended.stderr.strip().splitlines()[-1:] or [f"exit {ended.returncode}"]
        raise _LeftOut(f"failed: {last[0]}")
    fields = json.loads(ended.stdout)
    fields["phases"] = tuple(PhaseResult(**phase) for phase in fields["phases"])
    return Measurement(**fields)


def _write(directory: Path, document: object, svg: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (directory / "cost.svg").write_text(svg, encoding="utf-8")
    _log(f"raw results: {directory / 'results.json'}, plot: {directory / 'cost.svg'}")


# Progress


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal, otherwise a line per cell. Call the result with the text of each finished cell."""
    if not sys.stderr.isatty():
        done = 0

        def say(text: str) -> None:
            nonlocal done
            done += 1
            _log(f"[{done}/{total}] {text}")

        yield say
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield lambda text: bar.update(task, advance=1, description=text)


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    cases = "\n".join(f"  {letter}  {title}" for letter, title in CASES.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures the matcher and a whole instance, and compares them with Fluxion and Flux.",
        epilog="Any of --cases, --sizes, --policies and --variants selects all combinations of what is given "
        f"instead of the complete matrix.\n\ncases:\n{cases}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("-o", "--output", choices=("markdown", "json"), default="markdown", help="format (%(default)s)")
    add("--quick", action="store_true", help="a few cells with short budgets, no instance: two minutes")
    add("--cases", nargs="+", choices=tuple(CASES), help="cases to run (all)")
    add("--sizes", nargs="+", type=int, metavar="NODES", help="cluster sizes (100 1000)")
    add("--policies", nargs="+", choices=tuple(NAMED_POLICIES), help="match policies (those of the peer)")
    add("--variants", nargs="+", choices=[one.value for one in Variant], help="clusters (plain)")
    add("--instance-jobs", type=int, default=10_000, help="no-op jobs, 0: none (%(default)s)")
    add("--budget-s", type=float, help=f"CPU seconds per phase ({_BUDGET_S:g})")
    add("--directory", type=Path, help="also write results.json and cost.svg there")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
