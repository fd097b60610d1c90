"""Attaches to a job: prints its output and exceptions, forwards signals, and returns its exit code.

The main thread reads the event stream of the instance, so that signals interrupt the read. If the connection
breaks, the job continues; the command reconnects and skips the output that it has already printed, counted
per task and stream. While the job is pending, a thread shows the reason on one line of the terminal.

A signal handler may write while the main thread is writing. Python's buffered streams do not allow that, so
this module writes to the file descriptors directly.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Final

from penstock.cli import exits
from penstock.cli.client import ApiClient, Doc, NoInstance, RequestRefused, StreamBroken, job_path
from penstock.cli.fields import job_field
from penstock.cli.input_sender import InputSender
from penstock.cli.terminal import SLOW_S, is_terminal, print_error, printable, shows_unicode, styled, width
from penstock.cli.times import clock, span
from penstock.cli.waiting import exit_code
from penstock.errors import Unavailable

__all__ = ["attach_to", "report_failure"]

_FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)
_TWICE_S: Final = 2.0
_RETRY_S: Final = 1.0
_RETRIES_MAX: Final = 120


class _Detached(Exception):
    """The user detached from the job, which continues."""


def attach_to(
    client: ApiClient,
    job: str,
    *,
    label: bool = False,
    sender: InputSender | None = None,
    as_json: bool = False,
) -> int:
    """Follows the job until it is inactive; returns the exit code for the shell."""
    following = _Following(client, job, label, as_json)
    before = following.install_handlers()
    try:
        if sender is not None:
            sender.start()
        end = following.follow()
    except _Detached:
        print_error("detaching...")
        return exits.OK
    finally:
        following.line.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
    if not as_json:
        report_failure(end)
    return exit_code(end)


def report_failure(job: Doc) -> None:
    """Prints one line about a failed job, unless its exceptions have been printed."""
    status = job.get("waitstatus")
    if not status or (job.get("exception") or {}).get("type") == "cancel":
        return
    code = exit_code(job)
    if 128 < code < 128 + 65:
        print_error(f"task(s) {signal.strsignal(code - 128) or f'signal {code - 128}'}")
    else:
        print_error(f"task(s) exited with exit code {code}")


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]


def _warn(text: str) -> None:
    """Like `print_error`, but safe in a signal handler."""
    _write(
        sys.stderr.fileno(), f"{styled('penstock:', 'red', stream=sys.stderr)} {printable(text)}\n".encode()
    )


class _Following:
    def __init__(self, client: ApiClient, job: str, label: bool, as_json: bool) -> None:
        self._client = client
        self._job = job
        self._label = label
        self._as_json = as_json
        self._printed: dict[tuple[int, str], int] = {}  # bytes printed so far
        self._events_printed = 0
        self._at_line_start: dict[tuple[int, str], bool] = {}
        self._submitted_at = 0.0
        self._interrupted_at = self._suspended_at = -_TWICE_S
        self.line = _WaitingLine(client, job)

    def follow(self) -> Doc:
        self.line.start()
        tries = 0
        while True:
            try:
                end = self._read_once()
                if end is not None:
                    return end
            except (StreamBroken, NoInstance, RequestRefused) as error:
                if isinstance(error, RequestRefused) and not error.is_temporary:
                    raise
                if tries == 0:
                    self.line.stop()
                    _warn(f"{error}; the job continues, waiting for the instance")
                tries += 1
                if tries > _RETRIES_MAX:
                    raise
            time.sleep(_RETRY_S)

    def _read_once(self) -> Doc | None:
        skip = dict(self._printed)
        events = 0
        for event in self._client.stream(job_path(self._job, "output"), follow=1):
            if event.name == "end":
                self._print_json(event.name, event.data)
                return event.data
            if event.name == "output":
                self._show_output(event.data, skip)
            elif event.name == "job":
                events += 1
                if events > self._events_printed:
                    self._events_printed = events
                    self._show_event(event.data)
            elif event.name == "error":
                # The instance stops, or its database is away.
                raise StreamBroken(str(event.data.get("error", {}).get("message", "the stream failed")))
        return None

    def _show_output(self, data: Doc, skip: dict[tuple[int, str], int]) -> None:
        target = sys.stderr if data["stream"] == "stderr" else sys.stdout
        key = (int(data["index"]), str(data["stream"]))
        raw = base64.b64decode(data["base64"]) if "base64" in data else str(data["data"]).encode()
        known = skip.get(key, 0)
        skip[key] = max(0, known - len(raw))
        raw = raw[known:]
        self._printed[key] = self._printed.get(key, 0) + len(raw)
        if not raw:
            return
        self.line.stop()
        if self._as_json:
            if known:  # After a reconnection a chunk may be cut within a character.
                rest = base64.b64encode(raw).decode("ascii")
                data = {"index": data["index"], "stream": data["stream"], "base64": rest}
            self._print_json("output", data)
            return
        if self._label:
            raw = self._labelled(key, raw)
        _write(target.fileno(), raw)

    def _print_json(self, name: str, data: Doc) -> None:
        if self._as_json:
            text = json.dumps({"event": name, "data": data}, ensure_ascii=not shows_unicode())
            _write(sys.stdout.fileno(), text.encode() + b"\n")

    def _labelled(self, key: tuple[int, str], raw: bytes) -> bytes:
        mark = f"{key[0]}: ".encode()
        start = mark if self._at_line_start.get(key, True) else b""
        self._at_line_start[key] = raw.endswith(b"\n")
        body = raw[:-1].replace(b"\n", b"\n" + mark) + raw[-1:]
        return start + body

    def _show_event(self, event: Doc) -> None:
        name, context = event["name"], event.get("context") or {}
        if name == "submit":
            self._submitted_at = float(event["timestamp"])
        if name in ("start", "finish", "clean") or (name == "exception" and context.get("severity") == 0):
            self.line.stop()
        if self._as_json:
            self._print_json("job", event)
        elif name == "exception":
            offset = max(0.0, float(event["timestamp"]) - self._submitted_at)
            text = f"{offset:.3f}s: job.exception {self._job} type={context.get('type')} "
            text += f"severity={context.get('severity')} {context.get('note', '')}"
            _write(sys.stderr.fileno(), (printable(text.rstrip()) + "\n").encode())

    def install_handlers(self) -> dict[signal.Signals, Any]:
        before: dict[signal.Signals, Any] = {}
        for number in _FORWARDED:
            before[number] = signal.signal(number, self._forward)
        # A read from the terminal in the background fails then, instead of stopping this process.
        before[signal.SIGTTIN] = signal.signal(signal.SIGTTIN, signal.SIG_IGN)
        before[signal.SIGINT] = signal.signal(signal.SIGINT, self._interrupt)
        before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._suspend)
        return before

    def _forward(self, number: int, frame: FrameType | None) -> None:
        del frame
        try:
            self._client.post(job_path(self._job, "signal"), {"signal": number})
        except RequestRefused:
            # The job is not running. A user who terminates this command does not want it to start later.
            if number in (signal.SIGTERM, signal.SIGHUP):
                self._cancel(f"{signal.Signals(number).name} while pending")
        except Unavailable as error:
            _warn(str(error))

    def _cancel(self, note: str) -> None:
        try:
            self._client.post("/v1/jobs/cancel", {"ids": [self._job], "note": note})
        except (RequestRefused, Unavailable) as error:
            _warn(str(error))

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        now = time.monotonic()
        if now - self._interrupted_at >= _TWICE_S:
            self._interrupted_at = now
            self.line.pause()
            _warn("one more ctrl-C within 2s to cancel or ctrl-Z to detach")
            return
        self._cancel("interrupted by ctrl-C")

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        now = time.monotonic()
        if now - self._interrupted_at < _TWICE_S:
            raise _Detached
        if now - self._suspended_at >= _TWICE_S:
            self._suspended_at = now
            self.line.pause()
            _warn("one more ctrl-Z to suspend")
            return
        os.kill(os.getpid(), signal.SIGSTOP)


class _WaitingLine:
    """The line with the reason why the job is pending: after two seconds, only on a terminal."""

    def __init__(self, client: ApiClient, job: str) -> None:
        self._client = client
        self._job = job
        self._ended = threading.Event()
        self._lock = threading.RLock()  # A signal handler may run in the thread that holds it.
        self._visible = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None and is_terminal(sys.stderr):
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def pause(self) -> None:
        """Clears the line for other output; it is drawn again within a second."""
        with self._lock:
            self._clear()

    def stop(self) -> None:
        self._ended.set()
        self.pause()

    def _run(self) -> None:
        began = time.monotonic()
        wait_s = SLOW_S
        while not self._ended.wait(wait_s):
            wait_s = 1.0
            try:
                job = self._client.get(job_path(self._job))
            except (RequestRefused, Unavailable):
                continue
            if job.get("state") not in ("DEPEND", "PRIORITY", "SCHED"):
                self.pause()
                continue
            text = waiting_text(job, time.time())
            elapsed = time.strftime("%H:%M:%S", time.gmtime(time.monotonic() - began))
            with self._lock:
                if not self._ended.is_set():
                    columns = max(10, width() - len(elapsed) - 3)
                    line = printable(f"penstock: {text}")
                    line = line if len(line) <= columns else line[: columns - 3] + "..."
                    _write(sys.stderr.fileno(), f"\r\x1b[K{line}  {elapsed}".encode())
                    self._visible = True

    def _clear(self) -> None:
        if self._visible:
            _write(sys.stderr.fileno(), b"\r\x1b[K")
            self._visible = False


def waiting_text(job: Doc, now: float) -> str:
    """`ƒX starts in about 5m (14:05:10): REASON`."""
    start_at = (job.get("forecast") or {}).get("start_at")
    reason = job_field(job, "reason", now) or "waiting for resources"
    if start_at is None:
        return f"{job['id']} {reason}"
    left = max(0.0, start_at - now)
    return f"{job['id']} starts in about {span(left)} ({clock(start_at, now)}): {reason}"
