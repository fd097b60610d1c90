"""The reaper: the parent process of all processes of a cluster, which cleans up when the owner is gone.

The owner sends requests over a socket, one line of JSON each way: start a process, stop it, query its state.
When the owner's end of the socket closes, for whatever reason the owner died, the reaper stops all processes
and removes the cluster's files. If the reaper itself is killed, the kernel kills its children
(PR_SET_PDEATHSIG) and the owner removes the files. The reaper runs in its own session, so a Ctrl-C in the
owner's terminal does not reach the processes before the owner.

It is a single thread that handles one request after another, and it imports little because it starts with
every cluster. It waits for an exited child when that child is queried or stopped.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.errors import Unavailable

__all__ = ["CleanupPaths", "ProcessState", "Reaper"]

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_STOP_S: Final = 60.0
_LINE_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class CleanupPaths:
    """What to remove with the cluster: first `trees` (files, directories with content), then `if_empty`."""

    trees: tuple[Path, ...]
    if_empty: tuple[Path, ...] = ()  # directories that are removed only if they are empty


@dataclass(frozen=True, slots=True)
class ProcessState:
    pid: int
    exit_code: int | None  # None while the process runs


class Reaper:
    """The owner's handle on the reaper process. Thread-safe: requests are serialized."""

    def __init__(self, cleanup: CleanupPaths, pass_fds: tuple[int, ...] = ()) -> None:
        """Starts the reaper process. It keeps `pass_fds` open until it has removed the files of `cleanup`."""
        self._cleanup = cleanup
        removes = {"trees": [*map(str, cleanup.trees)], "if_empty": [*map(str, cleanup.if_empty)]}
        ours, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(its.fileno()), json.dumps(removes)],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(its.fileno(), *pass_fds),
                cwd="/",
            )
        self._socket = ours
        self._lines = ours.makefile("rb")
        self._lock = threading.Lock()

    def start(self, name: str, argv: list[str], log: Path, stop_signal: int = signal.SIGKILL) -> ProcessState:
        """Starts a process; `stop_signal` stops it when the cluster ends."""
        return self._request(do="start", name=name, argv=argv, log=str(log), stop_signal=int(stop_signal))

    def state(self, name: str) -> ProcessState:
        return self._request(do="state", name=name)

    def stop(self, name: str, signal_number: int, wait_s: float) -> ProcessState:
        """Sends a signal and waits for the process to exit; kills it after `wait_s`."""
        return self._request(do="stop", name=name, signal=int(signal_number), wait_s=wait_s)

    def close(self) -> None:
        """Stops all processes and removes all files before it returns. Idempotent."""
        with self._lock:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._lines.close()
            self._socket.close()
        if self._process.wait() != 0:  # It was killed before it could remove the files.
            _remove(self._cleanup)

    def _request(self, **request: object) -> ProcessState:
        with self._lock:
            try:
                self._socket.sendall(json.dumps(request).encode() + b"\n")
                line = self._lines.readline(_LINE_MAX)
            except (OSError, ValueError) as error:
                raise Unavailable("the reaper process of the development cluster has exited") from error
        if not line:
            raise Unavailable("the reaper process of the development cluster has exited")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Unavailable(answer["error"])
        return ProcessState(answer["pid"], answer["exit_code"])


class _Processes:
    """The processes of the cluster, in the reaper process."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stop_signals: dict[str, int] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, object]:
        name = request["name"]
        if request["do"] == "start":
            if name in self._processes and self._processes[name].poll() is None:
                return {"error": f"{name} is already running"}
            try:
                self._processes[name] = _spawn(request["argv"], request["log"])
            except OSError as error:
                return {"error": f"cannot start {name}: {error.strerror}"}
            self._stop_signals[name] = request["stop_signal"]
        process = self._processes.get(name)
        if process is None:
            return {"error": f"{name} was never started"}
        if request["do"] == "stop":
            _stop(process, request["signal"], request["wait_s"])
        return {"pid": process.pid, "exit_code": process.poll()}

    def stop_all(self) -> None:
        """Stops the processes in the reverse order of their first start: each before what it depends on."""
        for name, process in reversed(self._processes.items()):
            _stop(process, self._stop_signals[name], _STOP_S)


def _spawn(argv: list[str], log: str) -> subprocess.Popen[bytes]:
    reaper = os.getpid()

    def die_with_reaper() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != reaper:
            os._exit(1)

    with open(log, "ab") as file:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd="/",
            preexec_fn=die_with_reaper,
        )


def _stop(process: subprocess.Popen[bytes], signal_number: int, wait_s: float) -> None:
    process.send_signal(signal_number)
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _remove(cleanup: CleanupPaths) -> None:
    for path in cleanup.trees:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    for path in cleanup.if_empty:
        with contextlib.suppress(OSError):
            path.rmdir()


def main(descriptor: int, cleanup: CleanupPaths) -> None:
    processes = _Processes()
    # Only the owner ends the reaper, by closing the socket: a signal would leave files behind.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, lambda *_: None)
    with socket.socket(fileno=descriptor) as owner, contextlib.suppress(OSError):
        for line in owner.makefile("rb"):
            owner.sendall(json.dumps(processes.answer(json.loads(line))).encode() + b"\n")
    processes.stop_all()
    _remove(cleanup)


if __name__ == "__main__":
    fields: dict[str, list[str]] = json.loads(sys.argv[2])
    main(
        int(sys.argv[1]),
        CleanupPaths(tuple(map(Path, fields["trees"])), tuple(map(Path, fields["if_empty"]))),
    )
