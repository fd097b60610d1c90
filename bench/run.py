"""Runs one case through `resource-query` in this process and measures it.

The command runs as for a user, with options, and reads its commands from a standard input that this module
provides: whenever it reads the next line, the CPU clock is read, so everything between two lines is measured
(splitting the command, reading and parsing the jobspec, the match, the booking, and writing the answer to the
file of `-t`). A phase ends after its last command, or when its budget of CPU time is used up; the rate then
covers only the commands that were run.

The answers are counted afterwards, so that commands that fail fast are not measured as fast commands.

`python -m bench.run CASE NODES POLICY VARIANT BUDGET_S` prints one measurement as JSON.
"""

from __future__ import annotations

import gc
import io
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Final

from bench.calibrate import steps_per_cpu_s
from bench.inputs import Case, Inputs, Phase, Variant
from penstock.cli.resource_query import main as resource_query

__all__ = ["Failed", "Measurement", "PhaseResult", "measure"]

_PREPARATION_MAX_S: Final = 20.0  # minimum budget of a phase that prepares another
_RULES_PER_ANSWER: Final = 2
_RULE: Final = b"INFO: =============================\n"


class Failed(Exception):
    """`resource-query` failed or did not answer every command."""


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """Times of single commands are CPU time in microseconds; those of the tenths are means."""

    name: str
    done: int
    total: int
    cpu_s: float
    median_us: float = 0.0
    p99_us: float = 0.0
    first_tenth_us: float = 0.0
    last_tenth_us: float = 0.0

    @property
    def rate(self) -> float:
        return self.done / self.cpu_s if self.cpu_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Measurement:
    case: str
    nodes: int
    policy: str
    variant: str
    calibration: float  # steps per CPU second, before and after this measurement
    load_cpu_s: float
    loaded_rss_mb: float  # 0: the system does not report it
    loaded_peak_mb: float
    peak_mb: float
    phases: tuple[PhaseResult, ...]


def measure(
    case: str, nodes: int, policy: str, budget_s: float, variant: Variant = Variant.PLAIN
) -> Measurement:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        inputs = Inputs(folder, nodes, variant).case(case)
        before = steps_per_cpu_s()
        feed, began = _run_case(inputs, policy, budget_s, folder / "answers")
        peak_mb = _memory_mb("VmHWM")
        gc.collect()
        calibration = (before + steps_per_cpu_s()) / 2
    return Measurement(
        case=case,
        nodes=nodes,
        policy=policy,
        variant=variant.value,
        calibration=calibration,
        load_cpu_s=feed.loaded_at_s - began,
        loaded_rss_mb=feed.loaded_rss_mb,
        loaded_peak_mb=feed.loaded_peak_mb,
        peak_mb=peak_mb,
        phases=tuple(feed.results),
    )


def _run_case(case: Case, policy: str, budget_s: float, answers: Path) -> tuple[_Feed, float]:
    """Runs `resource-query` on a case. Returns the measurements and the CPU time at the start."""
    feed = _Feed(case.phases, budget_s)
    errors = io.StringIO()
    options = ["-L", str(case.graph_file), "-P", policy, "-F", "simple", "-d", "-t", str(answers)]
    stdin = sys.stdin
    sys.stdin = io.TextIOWrapper(feed)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(errors):
            began = time.process_time()
            code = resource_query(options)
    finally:
        sys.stdin = stdin
    if code != 0 or errors.getvalue():
        raise Failed(f"exit {code}: {errors.getvalue()[:500]}")
    rules = answers.read_bytes().count(_RULE)
    if rules != _RULES_PER_ANSWER * feed.matches:
        raise Failed(f"{feed.matches} matches, but {rules} separator lines in the answers")
    return feed, began


class _Feed(io.RawIOBase):
    """Standard input that reads the CPU clock whenever a command is read from it."""

    def __init__(self, phases: tuple[Phase, ...], budget_s: float) -> None:
        self._lines = self._commands(phases, budget_s)
        self.loaded_at_s = 0.0
        self.loaded_rss_mb = 0.0
        self.loaded_peak_mb = 0.0
        self.matches = 0
        self.results: list[PhaseResult] = []

    def readable(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> bytes:  # noqa: ARG002 (always returns a complete line)
        return next(self._lines, b"")

    def _commands(self, phases: tuple[Phase, ...], budget_s: float) -> Iterator[bytes]:
        self.loaded_at_s = time.process_time()  # The first line is read after the graph is loaded.
        self.loaded_rss_mb = _memory_mb("VmRSS")
        self.loaded_peak_mb = _memory_mb("VmHWM")
        for phase in phases:
            lines = [f"{command}\n".encode() for command in phase.commands]
            limit_s = max(budget_s, _PREPARATION_MAX_S) if phase.prepares else budget_s
            ends_s = [time.process_time()]
            for line in lines:
                yield line
                ends_s.append(time.process_time())
                if ends_s[-1] - ends_s[0] > limit_s:
                    break
            done = len(ends_s) - 1
            self.matches += sum(line.startswith(b"match") for line in lines[:done])
            self.results.append(_phase_result(phase.name, ends_s, len(lines)))
            if phase.prepares and done < len(lines):
                return


def _phase_result(name: str, ends_s: list[float], total: int) -> PhaseResult:
    """`ends_s`: the CPU clock at the start of the phase and after each command."""
    costs_us = [(end - begin) * 1e6 for begin, end in pairwise(ends_s)]
    tenth = max(len(costs_us) // 10, 1)
    in_order = sorted(costs_us)
    return PhaseResult(
        name,
        len(costs_us),
        total,
        ends_s[-1] - ends_s[0],
        median_us=median(costs_us),
        p99_us=in_order[len(in_order) * 99 // 100],
        first_tenth_us=fmean(costs_us[:tenth]),
        last_tenth_us=fmean(costs_us[-tenth:]),
    )


def _memory_mb(field: str) -> float:
    """A field of /proc/self/status in MiB. `getrusage` is unsuitable: its peak survives an exec."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return 0.0
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) / 1024
    return 0.0


def main() -> None:
    case, nodes, policy, variant, budget_s = sys.argv[1:]
    print(json.dumps(asdict(measure(case, int(nodes), policy, float(budget_s), Variant(variant)))))


if __name__ == "__main__":
    main()
