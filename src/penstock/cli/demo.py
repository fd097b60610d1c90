"""`penstock demo`: a real instance with four nodes, a mixed workload, and what became of every promise.

Everything is done with the commands that a user would type, in a directory of its own below /tmp; the user's
instance is not touched. While the jobs run, the table with forecasts and reasons is kept up to date on a
terminal, and printed a few times into a pipe. At the end the nodes are drawn over time, each promised start
is held against the real one, and everything is stopped and removed, also after ctrl-C.

The workload is made so that each answer of a scheduler that knows time can be seen within seconds: a gang
that must wait and gets a promise, small jobs that fill the gap before it, one that fits and still waits
because it would delay the gang, one that is ended at its limit, and one that can never run.
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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from penstock.cli import exits
from penstock.cli.client import ApiClient, Doc
from penstock.cli.fields import HEADINGS
from penstock.cli.formats import parse_format
from penstock.cli.gantt import BLOCKS, SIGNS, draw
from penstock.cli.jobs import job_table
from penstock.cli.terminal import command_name, complain, is_terminal, paint, say, shown, shows_unicode, width
from penstock.cli.timeline import painted
from penstock.cli.times import clock
from penstock.errors import PenstockError
from penstock.paths import paths_of

__all__ = ["WORKLOAD", "tour"]

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
_ABOUT: Final = {
    "gang": "four whole nodes at once: it must wait, and is promised a start",
    "small-{cc}": "fit into the gap before the gang",
    "stuck": "sleeps longer than its limit allows",
    "patient": "would fit now, but would delay the gang",
    "giant": "can never run here",
}
_TABLE: Final = (
    "{id.f58:>9} {name:<8.8+} {status_abbrev:>2.2} {ntasks:>6} {nodelist:<9.9h} {forecast:>8h} {reason}"
)
_STEP_S: Final = 0.25
_LIMIT_S: Final = 40.0
_STOP_S: Final = 40.0
_PIPE_COLUMNS: Final = 100


class _Interrupted(Exception):
    """Ctrl-C, or a signal that means the same."""


def tour() -> int:
    began = time.monotonic()
    try:
        with _interruptible(), _instance() as (client, environment):
            refused = _submit(environment)
            _show_progress(client)
            _show_end(client, refused)
    except _Interrupted:
        complain("interrupted; the instance is stopped and its directory removed")
        return 128 + int(signal.SIGINT)
    except (PenstockError, exits.Ended) as error:
        complain(str(error))
        return exits.FAILED
    say()
    say(f"Stopped and removed, after {time.monotonic() - began:.0f} s. Now with your own:")
    us = command_name()
    say(f"  {us} start --nodes 4; {us} run -n2 hostname; {us} submit -N4 -t5m sleep 60")
    say(f"  {us} jobs --watch; {us} job why ID; {us} timeline; {us} stop")
    return exits.OK


@contextmanager
def _interruptible() -> Iterator[None]:
    """Every signal that wants us to end becomes an exception, so that what was started is taken down."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise _Interrupted

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A signal that comes inside the block is acted upon at its end; what is started knows nothing of it."""
    came: list[tuple[int, FrameType | None]] = []
    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *told: came.append(told)) for number in ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for told, frame in came[:1]:
        act = before[signal.Signals(told)]
        if callable(act):
            act(told, frame)


@contextmanager
def _instance() -> Iterator[tuple[ApiClient, dict[str, str]]]:
    """A real instance in a directory of its own. Commands get sessions of their own: ctrl-C is for us."""
    above = Path(tempfile.mkdtemp(prefix="penstock-demo-", dir="/tmp"))
    above.chmod(0o711)  # PostgreSQL may run as somebody else.
    environment = {**os.environ, "PENSTOCK_STATE": str(above / "state"), "PENSTOCK_RUNTIME": str(above)}
    shape = f"--nodes {NODES} --cores {CORES}"
    starting: subprocess.Popen[str] | None = None
    try:
        say(paint(f"$ penstock start {shape}", "bold"))
        with _undisturbed():  # Once it is begun it must be known, or nobody would stop it.
            starting = _begin(f"start {shape}", environment)
        out, err = starting.communicate()
        if starting.returncode != 0:
            raise exits.Ended(exits.FAILED, err.strip().removeprefix("penstock: "))
        say(out.splitlines()[0].removeprefix("penstock: "))
        yield ApiClient(paths_of(None, environment)), environment
    finally:
        _take_down(starting, above, environment)


def _take_down(starting: subprocess.Popen[str] | None, above: Path, environment: dict[str, str]) -> None:
    """Stops the instance, however far it has come. Nobody may interrupt this."""
    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ours}
    try:
        if starting is not None:
            with suppress(subprocess.TimeoutExpired):
                starting.communicate(timeout=_STOP_S)
            with suppress(subprocess.TimeoutExpired):
                _begin("stop", environment).communicate(timeout=_STOP_S)
        shutil.rmtree(above, ignore_errors=True)
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
    told: str


def _submit(environment: dict[str, str]) -> list[_Refusal]:
    """Submits the workload as a user would; what was refused comes back with the reason."""
    refused = []
    for command in WORKLOAD:
        name = command.split()[1].removeprefix("--name=")
        if name in _ABOUT:
            say(paint(f"# {_ABOUT[name]}", "dim"))
        say(paint(f"$ penstock {command}", "bold"))
        process = _begin(command, environment)
        _, err = process.communicate()
        if process.returncode != 0:
            refused.append(_Refusal(name, shown(err.strip())))
            say(paint(refused[-1].told, "red"))
    say()
    return refused


def _show_progress(client: ApiClient) -> None:
    """The table until all jobs are over: moving on a terminal, and at three points in a pipe."""
    table = parse_format(_TABLE, HEADINGS)
    began = time.time()

    def picture(found: list[Doc], columns: int) -> list[str]:
        now = time.time()
        counts = {word: sum(job["state"] in states for job in found) for word, states in _STATES.items()}
        title = f"{now - began:4.1f} s  " + ", ".join(f"{count} {word}" for word, count in counts.items())
        return [title, *job_table(table, found, now, columns=columns)]

    if is_terminal():
        _show_live(client, picture, began)
        return
    moments = [lambda _: True, _is_somebody_behind, _does_gang_run]
    for found in _looks(client, began):
        if any(is_come(found) for is_come in moments):
            moments = [is_come for is_come in moments if not is_come(found)]
            for line in picture(found, _PIPE_COLUMNS):
                say(line)
            say()


def _is_somebody_behind(found: list[Doc]) -> bool:
    return any(job["reason_kind"] == "behind" for job in found)


def _does_gang_run(found: list[Doc]) -> bool:
    return any(job["name"] == "gang" and job["state"] == "RUN" for job in found)


_STATES: Final = {
    "waiting": ("DEPEND", "PRIORITY", "SCHED"),
    "running": ("RUN", "CLEANUP"),
    "over": ("INACTIVE",),
}


def _looks(client: ApiClient, began: float) -> Iterator[list[Doc]]:
    """The jobs in the order of their submission, again and again, until all are over."""
    while True:
        found = sorted(_jobs(client), key=lambda job: int(job["id_dec"]))
        yield found
        if all(job["state"] == "INACTIVE" for job in found) or time.time() - began > _LIMIT_S:
            return
        time.sleep(_STEP_S)


def _jobs(client: ApiClient) -> list[Doc]:
    found: list[Doc] = client.get("/v1/jobs", states="active,inactive")["jobs"]
    return found


def _show_live(client: ApiClient, picture: Any, began: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False) as live:
        for found in _looks(client, began):
            lines = picture(found, console.width)
            live.update(Text.from_ansi("\n".join(lines), no_wrap=True), refresh=True)


def _show_end(client: ApiClient, refused: list[_Refusal]) -> None:
    now = time.time()
    jobs = _jobs(client)
    since = now - min(job["t_submit"] for job in jobs)
    document = client.get("/v1/timeline", since_s=since + 0.5, until_s=0.1)
    fancy = is_terminal() and shows_unicode()
    columns = min(width(), 120) if is_terminal() else _PIPE_COLUMNS
    say()
    say(paint("What ran where", "bold"))
    for line in painted(draw(document, columns, BLOCKS if fancy else SIGNS)):
        say(line)
    say()
    say(paint(f"{'PROMISED AND REAL STARTS':<24} {'PROMISED':>9} {'REAL':>9} {'ERROR':>7}", "bold"))
    for start in sorted(document["starts"], key=lambda start: start["promised_first"]):
        real = start["started_at"]
        words = ["-", "-"] if real is None else [clock(real, now), f"{start['error_s']:+.1f}s"]
        name = f"{start['job']:<9} {start['name']}"
        say(shown(f"{name:<24} {clock(start['promised_first'], now):>9} {words[0]:>9} {words[1]:>7}"))
    ended = [job for job in jobs if job["result"] not in ("COMPLETED", None)]
    for job in ended:
        note = job["exception"]["note"] or job["exception"]["type"]
        say(shown(f"{job['id']:<9} {job['name']}: {job['result'].lower()}, {note}"))
    for refusal in refused:
        say(f"{'-':<9} {refusal.name}: refused; {refusal.told.partition('request: ')[2] or refusal.told}")
