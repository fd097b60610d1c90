"""`python -m bench`: runs every matcher case in its own process, then whole instances, and prints tables.

Processes run one after another: in parallel on few cores they would slow each other down, which even CPU time
shows. The matcher cases end within five minutes: each phase has a budget of CPU time, and cases for which no
time is left are listed as left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from bench import peer
from bench.inputs import CASES
from bench.instance import InstanceReport, measure_long_queue, measure_mock, measure_processes
from bench.report import MatcherReport
from bench.run import Measurement, PhaseResult

_ROOT: Final = Path(__file__).resolve().parent.parent
_SIZES: Final = (100, 1_000)
_WALL_MAX_S: Final = 290.0
_BUDGET_S: Final = 1.5
_ONE_POLICY_ONLY: Final = frozenset("eg")  # cases in which the policy makes no difference


class _LeftOut(Exception):
    """A case was not measured; the text is the reason."""


def main() -> int:
    options = _arguments()
    began = time.monotonic()
    jobs = [
        (case, nodes, policy)
        for case in options.cases
        for nodes in options.sizes
        for policy in options.policies
        if policy == peer.POLICIES[0] or case not in _ONE_POLICY_ONLY
    ]
    measurements: list[Measurement] = []
    left_out: list[str] = []
    for number, (case, nodes, policy) in enumerate(jobs, 1):
        label = f"{case} {nodes} {policy}"
        left_s = _WALL_MAX_S - (time.monotonic() - began)
        try:
            one = _measure_in_process(case, nodes, policy, options.budget_s, left_s)
        except _LeftOut as error:
            left_out.append(f"{label}: {error}")
            _log(f"[{number}/{len(jobs)}] {label}: {error}")
            continue
        measurements.append(one)
        rates = ", ".join(f"{phase.name} {phase.rate:,.1f}/s" for phase in one.phases)
        _log(f"[{number}/{len(jobs)}] {label}: {rates or 'load'}; load {one.load_cpu_s:.2f} s")
    report = MatcherReport(measurements, left_out, time.monotonic() - began, options.budget_s)
    instance = _measure_instance(options.instance_jobs)
    if options.output == "json":
        document = json.loads(report.json())
        print(json.dumps({**document, "instance": instance.plain()}, indent=1))
    else:
        print(report.markdown() + "\n" + instance.markdown())
    return 1 if left_out else 0


def _measure_instance(jobs: int) -> InstanceReport:
    _log(f"instance: {jobs} no-op jobs on 1,000 simulated nodes")
    mock = measure_mock(jobs, 1000)
    _log(f"instance: {mock.rate:,.1f} jobs/s; next: {jobs // 10} real processes")
    real = measure_processes(max(jobs // 10, 1))
    _log(f"instance: {real.rate:,.1f} jobs/s; next: a scheduling cycle over {jobs * 10} pending jobs")
    return InstanceReport((mock, real), measure_long_queue(jobs * 10, 50))


def _measure_in_process(case: str, nodes: int, policy: str, budget_s: float, left_s: float) -> Measurement:
    if left_s <= 0:
        raise _LeftOut("no time left")
    command = [sys.executable, "-m", "bench.run", case, str(nodes), policy, str(budget_s)]
    try:
        ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=left_s)
    except subprocess.TimeoutExpired:
        raise _LeftOut("no time left; stopped before it finished") from None
    if ended.returncode != 0:
        last = ended.stderr.strip().splitlines()[-1:] or [f"exit {ended.returncode}"]
        raise _LeftOut(f"failed: {last[0]}")
    fields = json.loads(ended.stdout)
    fields["phases"] = tuple(PhaseResult(**phase) for phase in fields["phases"])
    return Measurement(**fields)


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    cases = "\n".join(f"  {letter}  {title}" for letter, title in CASES.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures the matcher and a whole instance, and compares them with Fluxion and Flux.",
        epilog=f"cases:\n{cases}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-o", "--output", choices=("markdown", "json"), default="markdown", help="format (%(default)s)"
    )
    parser.add_argument(
        "--cases", nargs="+", choices=tuple(CASES), default=tuple(CASES), help="cases to run (all)"
    )
    parser.add_argument(
        "--sizes", nargs="+", type=int, default=_SIZES, metavar="NODES", help="cluster sizes (100 1000)"
    )
    parser.add_argument(
        "--policies", nargs="+", choices=peer.POLICIES, default=peer.POLICIES, help="match policies (all)"
    )
    parser.add_argument(
        "--instance-jobs", type=int, default=10_000, help="no-op jobs for the instance (%(default)s)"
    )
    parser.add_argument(
        "--budget-s", type=float, default=_BUDGET_S, help="CPU seconds per phase (%(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
