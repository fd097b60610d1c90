"""`penstock demo`: runs a mixed workload on a temporary instance with four nodes.

The demo uses only commands that a user would type, in a temporary directory below /tmp; the user's instance
is not touched. While the jobs run, the table with forecasts and reasons is refreshed on a terminal, or
printed a few times into a pipe. At the end the demo draws the timeline, compares each promised start with the
actual one, and stops and removes the instance, also after ctrl-C.

The workload shows each decision of the scheduler within seconds: a gang that waits and gets a reservation,
small jobs that are backfilled before it, a job that would fit but is not started because it would delay the
gang, a job that is terminated at its time limit, and a job that can never run.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from penstock.cli import exits
from penstock.cli.client import ApiClient, Doc
from penstock.cli.daemon_process import DATABASE_VARIABLE
from penstock.cli.fields import HEADINGS
from penstock.cli.formats import parse_format
from penstock.cli.gantt import ASCII_FILLS, BLOCK_FILLS, draw
from penstock.cli.jobs import job_table
from penstock.cli.server_address import SERVER_VARIABLE
from penstock.cli.terminal import (
    command_name,
    is_terminal,
    print_error,
    print_line,
    printable,
    shows_unicode,
    styled,
    width,
)
from penstock.cli.timeline import styled_lines
from penstock.cli.times import clock
from penstock.errors import PenstockError
from penstock.paths import paths_of

__all__ = ["WORKLOAD", "run_demo"]

NODES: Final = 4
CORES: Final = 2
WORKLOAD: Final = (
    "submit --name=solver -N2 -t7s sleep 6.5",
    "submit --name=render -n2 -t5s sleep 4",
    "submit --name=gang -N4 -t6s sleep 3",
    "submit --name=small-{cc} --cc=1-3 -n1 -t3s sleep 2",
    "submit --name=stuck -n1 -t2s sleep 60",
    "submit --name=patient -n1 -t30s sleep 1",
    "submit --name=giant -N9 -t1m sleep 1",
)
_COMMENTS: Final = {
    "gang": "needs four whole nodes: it waits, and gets a reservation",
    "small-{cc}": "backfilled before the gang starts",
    "stuck": "runs longer than its time limit",
    "patient": "would fit now, but would delay the gang",
    "giant": "can never run on four nodes",
}
_TABLE: Final = (
    "{id.f58:>9} {name:<8.8+} {status_abbrev:>2.2} {ntasks:>6} {nodelist:<9.9h} {forecast:>8h} {reason}"
)
_OF_ANOTHER_INSTANCE: Final = (DATABASE_VARIABLE, SERVER_VARIABLE)
_POLL_S: Final = 0.25
_LIMIT_S: Final = 40.0
_STOP_S: Final = 40.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PIPE_COLUMNS: Final = 100


class _Interrupted(Exception):
    """Ctrl-C, SIGTERM or SIGHUP."""


def run_demo() -> int:
    began = time.monotonic()
    try:
        with _interruptible(), _instance() as (client, environment):
            refused = _submit(environment)
            _show_progress(client)
            _show_results(client, refused)
    except _Interrupted:
        print_error("interrupted; the instance was stopped and its directory removed")
        return 128 + int(signal.SIGINT)
    except (PenstockError, exits.CommandExit) as error:
        print_error(str(error))
        return exits.FAILED
    print_line()
    print_line(
        f"Stopped and removed after {time.monotonic() - began:.0f} s. To try it on an instance of your own:"
    )
    name = command_name()
    print_line(f"  {name} start --nodes 4; {name} run -n2 hostname; {name} submit -N4 -t5m sleep 60")
    print_line(f"  {name} jobs --watch; {name} job why ID; {name} timeline; {name} stop")
    return exits.OK


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turns termination signals into an exception, so that the instance is stopped and removed."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise _Interrupted

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Handles a signal that arrives inside the block at its end."""
    received: list[tuple[int, FrameType | None]] = []
    before = {number: signal.signal(number, lambda *args: received.append(args)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for first, frame in received[:1]:
        handler = before[signal.Signals(first)]
        if callable(handler):
            handler(first, frame)


@contextmanager
def _instance() -> Iterator[tuple[ApiClient, dict[str, str]]]:
    """A temporary instance. Its commands run in their own sessions, so that ctrl-C reaches only the demo."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-demo-", dir="/tmp"))
    directory.chmod(0o711)  # PostgreSQL may run as another user.
    environment = {
        **{name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_INSTANCE},
        "PENSTOCK_STATE": str(directory / "state"),
        "PENSTOCK_RUNTIME": str(directory),
    }
    shape = f"--nodes {NODES} --cores {CORES}"
    starting: subprocess.Popen[str] | None = None
    try:
        print_line(styled(f"$ penstock start {shape}", "bold"))
        with _signals_deferred():  # An interrupt between fork and assignment would leave an instance behind.
            starting = _begin(f"start {shape}", environment)
        out, err = starting.communicate()
        if starting.returncode != 0:
            raise exits.CommandExit(exits.FAILED, err.strip().removeprefix("penstock: "))
        print_line(out.splitlines()[0].removeprefix("penstock: "))
        yield ApiClient(paths_of(None, environment)), environment
    finally:
        _take_down(starting, directory, environment)


def _take_down(starting: subprocess.Popen[str] | None, directory: Path, environment: dict[str, str]) -> None:
    """Stops the instance, also a partly started one. Signals are ignored meanwhile."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        if starting is not None:
            with suppress(subprocess.TimeoutExpired):
                starting.communicate(timeout=_STOP_S)
            with suppress(subprocess.TimeoutExpired):
                _begin("stop", environment).communicate(timeout=_STOP_S)
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _begin(command: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", *shlex.split(command)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=environment,
        start_new_session=True,
    )


@dataclass(frozen=True, slots=True)
class _Refusal:
    name: str
    message: str


def _submit(environment: dict[str, str]) -> list[_Refusal]:
    """Submits the workload with `penstock submit`; returns the jobs that were refused."""
    refused = []
    for command in WORKLOAD:
        name = command.split()[1].removeprefix("--name=")
        if name in _COMMENTS:
            print_line(styled(f"# {_COMMENTS[name]}", "dim"))
        print_line(styled(f"$ penstock {command}", "bold"))
        process = _begin(command, environment)
        _, err = process.communicate()
        if process.returncode != 0:
            refused.append(_Refusal(name, printable(err.strip())))
            print_line(styled(refused[-1].message, "red"))
    print_line()
    return refused


def _show_progress(client: ApiClient) -> None:
    """Shows the job table until all jobs are inactive: live on a terminal, three times in a pipe."""
    table = parse_format(_TABLE, HEADINGS)
    began = time.time()

    def render(found: list[Doc], columns: int) -> list[str]:
        now = time.time()
        counts = {word: sum(job["state"] in states for job in found) for word, states in _STATES.items()}
        title = f"{now - began:4.1f} s  " + ", ".join(f"{count} {word}" for word, count in counts.items())
        return [title, *job_table(table, found, now, columns=columns)]

    if is_terminal():
        _show_live(client, render, began)
        return
    conditions = [lambda _: True, _has_backfill_refusal, _does_gang_run]
    for found in _poll(client, began):
        if any(condition(found) for condition in conditions):
            conditions = [condition for condition in conditions if not condition(found)]
            for line in render(found, _PIPE_COLUMNS):
                print_line(line)
            print_line()


def _has_backfill_refusal(found: list[Doc]) -> bool:
    return any(job["reason_kind"] == "behind" for job in found)


def _does_gang_run(found: list[Doc]) -> bool:
    return any(job["name"] == "gang" and job["state"] == "RUN" for job in found)


_STATES: Final = {
    "pending": ("DEPEND", "PRIORITY", "SCHED"),
    "running": ("RUN", "CLEANUP"),
    "inactive": ("INACTIVE",),
}


def _poll(client: ApiClient, began: float) -> Iterator[list[Doc]]:
    """Yields the jobs in order of submission until all are inactive, or the demo takes too long."""
    while True:
        found = sorted(_jobs(client), key=lambda job: int(job["id_dec"]))
        yield found
        if all(job["state"] == "INACTIVE" for job in found) or time.time() - began > _LIMIT_S:
            return
        time.sleep(_POLL_S)


def _jobs(client: ApiClient) -> list[Doc]:
    found: list[Doc] = client.get("/v1/jobs", states="active,inactive")["jobs"]
    return found


def _show_live(client: ApiClient, render: Callable[[list[Doc], int], list[str]], began: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False) as live:
        for found in _poll(client, began):
            lines = render(found, console.width)
            live.update(Text.from_ansi("\n".join(lines), no_wrap=True), refresh=True)


def _show_results(client: ApiClient, refused: list[_Refusal]) -> None:
    now = time.time()
    jobs = _jobs(client)
    since = now - min(job["t_submit"] for job in jobs)
    document = client.get("/v1/timeline", since_s=since + 0.5, until_s=0.1)
    has_blocks = is_terminal() and shows_unicode()
    columns = min(width(), 120) if is_terminal() else _PIPE_COLUMNS
    print_line()
    print_line(styled("Timeline", "bold"))
    for line in styled_lines(draw(document, columns, BLOCK_FILLS if has_blocks else ASCII_FILLS)):
        print_line(line)
    print_line()
    print_line(styled(f"{'STARTS':<24} {'PROMISED':>9} {'ACTUAL':>9} {'ERROR':>7}", "bold"))
    for start in sorted(document["starts"], key=lambda start: start["promised_first"]):
        actual = start["started_at"]
        words = ["-", "-"] if actual is None else [clock(actual, now), f"{start['error_s']:+.1f}s"]
        name = f"{start['job']:<9} {start['name']}"
        print_line(
            printable(f"{name:<24} {clock(start['promised_first'], now):>9} {words[0]:>9} {words[1]:>7}")
        )
    failed = [job for job in jobs if job["result"] not in ("COMPLETED", None)]
    for job in failed:
        note = job["exception"]["note"] or job["exception"]["type"]
        print_line(printable(f"{job['id']:<9} {job['name']}: {job['result'].lower()}, {note}"))
    for refusal in refused:
        reason = refusal.message.partition("request: ")[2] or refusal.message
        print_line(f"{'-':<9} {refusal.name}: refused; {reason}")
