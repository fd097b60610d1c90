"""`python -m bench`: every case in a process of its own, one after the other, then a table.

Processes do not run side by side: on few cores they would slow each other down, and even CPU time
would tell of it. The matcher's part ends within five minutes: each phase has its budget, and what cannot
begin in time is left out and named. The part of the whole instance comes last.
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
from bench.report import Report
from bench.run import Measurement, PhaseResult

_ROOT: Final = Path(__file__).resolve().parent.parent
_SIZES: Final = (100, 1_000)
_WALL_MAX_S: Final = 290.0
_BUDGET_S: Final = 1.5
_ONE_POLICY_ONLY: Final = frozenset("eg")  # the policy makes no difference there


class _LeftOut(Exception):
    """A case without a measurement; the text says why."""


def main() -> int:
    asked = _arguments()
    began = time.monotonic()
    jobs = [
        (case, nodes, policy)
        for case in asked.cases
        for nodes in asked.sizes
        for policy in asked.policies
        if policy == peer.POLICIES[0] or case not in _ONE_POLICY_ONLY
    ]
    measurements: list[Measurement] = []
    left_out: list[str] = []
    for place, (case, nodes, policy) in enumerate(jobs, 1):
        label = f"{case} {nodes} {policy}"
        left_s = _WALL_MAX_S - (time.monotonic() - began)
        try:
            one = _measure_apart(case, nodes, policy, asked.budget_s, left_s)
        except _LeftOut as error:
            left_out.append(f"{label}: {error}")
            _tell(f"[{place}/{len(jobs)}] {label}: {error}")
            continue
        measurements.append(one)
        rates = ", ".join(f"{phase.name} {phase.rate:,.1f}/s" for phase in one.phases)
        _tell(f"[{place}/{len(jobs)}] {label}: {rates or 'load'}; load {one.load_cpu_s:.2f} s")
    report = Report(measurements, left_out, time.monotonic() - began, asked.budget_s)
    whole = _measure_instance(asked.instance_jobs)
    if asked.output == "json":
        told = json.loads(report.json())
        print(json.dumps({**told, "instance": whole.plain()}, indent=1))
    else:
        print(report.markdown() + "\n" + whole.markdown())
    return 1 if left_out else 0


def _measure_instance(jobs: int) -> InstanceReport:
    _tell(f"instance: {jobs} no-op jobs on 1,000 imagined nodes")
    mock = measure_mock(jobs, 1000)
    _tell(f"instance: {mock.rate:,.1f} jobs/s; now {jobs // 10} real processes")
    real = measure_processes(max(jobs // 10, 1))
    _tell(f"instance: {real.rate:,.1f} jobs/s; now a pass over {jobs * 10} pending jobs")
    return InstanceReport((mock, real), measure_long_queue(jobs * 10, 50))


def _measure_apart(case: str, nodes: int, policy: str, budget_s: float, left_s: float) -> Measurement:
    if left_s <= 0:
        raise _LeftOut("no time left")
    command = [sys.executable, "-m", "bench.run", case, str(nodes), policy, str(budget_s)]
    try:
        ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=left_s)
    except subprocess.TimeoutExpired:
        raise _LeftOut("no time left to finish it") from None
    if ended.returncode != 0:
        last = ended.stderr.strip().splitlines()[-1:] or [f"exit {ended.returncode}"]
        raise _LeftOut(f"failed: {last[0]}")
    told = json.loads(ended.stdout)
    told["phases"] = tuple(PhaseResult(**phase) for phase in told["phases"])
    return Measurement(**told)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    cases = "\n".join(f"  {letter}  {what}" for letter, what in CASES.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures the matcher and compares it with Fluxion.",
        epilog=f"cases:\n{cases}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--output", choices=("markdown", "json"), default="markdown")
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=tuple(CASES))
    parser.add_argument("--sizes", nargs="+", type=int, default=_SIZES, metavar="NODES")
    parser.add_argument("--policies", nargs="+", choices=peer.POLICIES, default=peer.POLICIES)
    parser.add_argument("--instance-jobs", type=int, default=10_000, help="no-op jobs (%(default)s)")
    parser.add_argument("--budget-s", type=float, default=_BUDGET_S, help="CPU s per phase (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
