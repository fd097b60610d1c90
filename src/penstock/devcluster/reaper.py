"""The process whose children the parts of a cluster are, so that nothing outlives who wanted the cluster.

The owner talks to it over a socket, a line of JSON each way: start a part, end a part, ask how it is. When
the owner's end closes, however the owner died and whichever of its threads started what, the guardian ends
all parts and removes what it was told to remove. If the guardian itself is killed, the kernel kills the parts
and the owner removes. It is of a session of its own, so a Ctrl-C at the owner's terminal does not reach the
parts before the owner.

It is one thread that answers one request after another, and imports little, because it starts with every
cluster. Parts are reaped when they are asked for or ended.
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

__all__ = ["Leaves", "PartState", "Reaper"]

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_FAREWELL_S: Final = 60.0
_LINE_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Leaves:
    """What goes when the cluster goes, in this order: files, directories with all in them, empty ones."""

    trees: tuple[Path, ...]
    if_empty: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class PartState:
    pid: int
    exit_code: int | None  # None: it runs


class Reaper:
    """The owner's side. Any thread may use it; requests wait for each other."""

    def __init__(self, leaves: Leaves, pass_fds: tuple[int, ...] = ()) -> None:
        """Starts the process. At the end it removes what it `leaves`; until then `pass_fds` stay open."""
        self._leaves = leaves
        removes = {"trees": [*map(str, leaves.trees)], "if_empty": [*map(str, leaves.if_empty)]}
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

    def start(self, name: str, argv: list[str], log: Path, farewell: int = signal.SIGKILL) -> PartState:
        """Starts a part; `farewell` is the signal that ends it with the cluster."""
        return self._state(do="start", name=name, argv=argv, log=str(log), farewell=int(farewell))

    def ask(self, name: str) -> PartState:
        return self._state(do="ask", name=name)

    def end(self, name: str, signal_number: int, wait_s: float) -> PartState:
        """Sends a signal and waits; what still runs after `wait_s` is killed."""
        return self._state(do="end", name=name, signal=int(signal_number), wait_s=wait_s)

    def close(self) -> None:
        """Everything is ended and removed when this returns. Can be called again."""
        with self._lock:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._lines.close()
            self._socket.close()
        if self._process.wait() != 0:  # Somebody killed it before it could remove anything.
            _remove(self._leaves)

    def _state(self, **request: object) -> PartState:
        with self._lock:
            try:
                self._socket.sendall(json.dumps(request).encode() + b"\n")
                line = self._lines.readline(_LINE_MAX)
            except (OSError, ValueError) as error:
                raise Unavailable("the guardian of the development cluster is gone") from error
        if not line:
            raise Unavailable("the guardian of the development cluster is gone")
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise Unavailable(told["error"])
        return PartState(told["pid"], told["exit_code"])


class _Parts:
    """The guardian's own side."""

    def __init__(self) -> None:
        self._parts: dict[str, subprocess.Popen[bytes]] = {}
        self._farewells: dict[str, int] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, object]:
        name = request["name"]
        if request["do"] == "start":
            if name in self._parts and self._parts[name].poll() is None:
                return {"error": f"{name} runs already"}
            try:
                self._parts[name] = _spawn(request["argv"], request["log"])
            except OSError as error:
                return {"error": f"cannot start {name}: {error.strerror}"}
            self._farewells[name] = request["farewell"]
        part = self._parts.get(name)
        if part is None:
            return {"error": f"{name} was never started"}
        if request["do"] == "end":
            _end(part, request["signal"], request["wait_s"])
        return {"pid": part.pid, "exit_code": part.poll()}

    def end_all(self) -> None:
        """In the opposite order of their first starts, so that nobody misses whom it needs."""
        for name, part in reversed(self._parts.items()):
            _end(part, self._farewells[name], _FAREWELL_S)


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


def _end(part: subprocess.Popen[bytes], signal_number: int, wait_s: float) -> None:
    part.send_signal(signal_number)
    try:
        part.wait(wait_s)
    except subprocess.TimeoutExpired:
        part.kill()
        part.wait()


def _remove(leaves: Leaves) -> None:
    for path in leaves.trees:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    for path in leaves.if_empty:
        with contextlib.suppress(OSError):
            path.rmdir()


def main(descriptor: int, leaves: Leaves) -> None:
    parts = _Parts()
    # The owner decides when it is over, by closing its end; nothing else may leave things behind.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, lambda *_: None)
    with socket.socket(fileno=descriptor) as owner, contextlib.suppress(OSError):
        for line in owner.makefile("rb"):
            owner.sendall(json.dumps(parts.answer(json.loads(line))).encode() + b"\n")
    parts.end_all()
    _remove(leaves)


if __name__ == "__main__":
    told: dict[str, list[str]] = json.loads(sys.argv[2])
    main(int(sys.argv[1]), Leaves(tuple(map(Path, told["trees"])), tuple(map(Path, told["if_empty"]))))
