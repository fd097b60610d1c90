"""Runs `penstock` in a pseudo-terminal of a fixed size, or in a pipe, and returns what a user would see.

The clock stands still at `NOW` of the canned service and the zone is UTC, so that screens can be compared
with files. The terminal keeps what was printed; a line that was cleared or overwritten is not on it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass
from pathlib import Path

from tests.web.canned import NOW

TIMEOUT_S = 20
_STILL = f"import time; time.time = lambda: {NOW}; import sys; sys.argv[0] = 'penstock'; "
_CODE = _STILL + "from penstock.cli.main import main; main()"
_MOVING = "import sys; sys.argv[0] = 'penstock'; from penstock.cli.main import main; main()"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Screen:
    text: str  # as a user sees it: no codes
    raw: str
    code: int


def environment(state: Path, **extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "PYTHONPATH")}
    own = {"LANG": "C.UTF-8", "TZ": "UTC", "TERM": "xterm-256color", "PENSTOCK_STATE": str(state)}
    return {**kept, **own, "PENSTOCK_RUNTIME": str(runtime(state)), **extra}


def runtime(state: Path) -> Path:
    """The directory of the socket: a short path, because those of pytest are too long for a socket."""
    return Path(tempfile.gettempdir()) / f"pt-{hashlib.sha256(str(state).encode()).hexdigest()[:8]}"


def piped(
    state: Path, *arguments: str, still: bool = True, stdin: str = "", **extra: str
) -> subprocess.CompletedProcess[str]:
    """The command with its output in a pipe."""
    return subprocess.run(
        [sys.executable, "-c", _CODE if still else _MOVING, *arguments],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",  # Jobs may print any bytes.
        timeout=TIMEOUT_S,
        check=False,
        env=environment(state, **extra),
    )


class Terminal:
    """A command that runs in a terminal; keys can be sent while it does."""

    def __init__(
        self,
        state: Path,
        *arguments: str,
        columns: int = 80,
        still: bool = True,
        ignores: tuple[signal.Signals, ...] = (),  # as `nohup` does
        **extra: str,
    ) -> None:
        def prepare() -> None:
            _own_terminal()
            for number in ignores:
                signal.signal(number, signal.SIG_IGN)

        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE if still else _MOVING, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(state, **extra),
            preexec_fn=prepare,
        )
        os.close(slave)
        self.raw = ""

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, text: str) -> str:
        """Reads until the text has been printed."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.raw:
            if time.monotonic() > deadline or not self._read(deadline):
                raise AssertionError(f"{text!r} never came; there is {self.raw!r}")
        return self.raw

    def end(self) -> Screen:
        deadline = time.monotonic() + TIMEOUT_S
        while self._read(deadline):
            pass
        code = self._process.wait(max(0.1, deadline - time.monotonic()))
        os.close(self._master)
        return Screen(_seen(self.raw), self.raw, code)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            self._process.kill()
            raise AssertionError(f"no end within {TIMEOUT_S} s; there is {self.raw!r}")
        try:
            data = os.read(self._master, 65536)
        except OSError:  # The other end is closed: Linux says EIO.
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)


def on_terminal(state: Path, *arguments: str, columns: int = 80, still: bool = True, **extra: str) -> Screen:
    return Terminal(state, *arguments, columns=columns, still=still, **extra).end()


def _own_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _seen(raw: str) -> str:
    lines = []
    for line in raw.replace("\r\n", "\n").split("\n"):
        shown = ""
        for part in re.split(r"(\r|\x1b\[[0-9;?]*[A-Za-z])", line):
            if part == "\r" or part.endswith("[2K"):
                shown = "" if part != "\r" else shown
            elif part == "\x1b[K":
                shown = ""
            elif not _ESCAPE.fullmatch(part):
                shown += part
        lines.append(shown.rstrip())
    return "\n".join(lines).rstrip("\n") + "\n"
