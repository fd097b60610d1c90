"""Failpoints: named points at which a test can kill the process, to check recovery from a crash there.

Every transaction, every type of intent and every durable file registers a point before and a point after. A
point has no effect unless a test arms it: in-process with `armed`, or in a child process with
`PENSTOCK_FAILPOINTS=name[:nth][,name...]`, which sends SIGKILL at the nth pass. With
`PENSTOCK_FAILPOINTS=@DIR` a file in DIR with the name of a point arms that point at any time; the first
process that reaches the point removes the file and dies.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["REGISTRY", "Crash", "armed", "reach", "register"]

REGISTRY: Final[dict[str, str]] = {}  # name -> description


class Crash(BaseException):
    """A simulated crash. Derives from `BaseException`, so that no handler continues after it."""


_hook: Callable[[str], None] | None = None


def register(name: str, about: str) -> str:
    """Registers a point; returns its name."""
    REGISTRY[name] = about
    return name


def reach(name: str) -> None:
    """Passes a point; does nothing unless the point is armed."""
    if _hook is not None:
        _hook(name)


@contextmanager
def armed(hook: Callable[[str], None]) -> Iterator[None]:
    """Calls `hook` at every point that is reached inside the block; it may raise `Crash`."""
    global _hook
    before, _hook = _hook, hook
    try:
        yield
    finally:
        _hook = before


def _kill_at(text: str) -> Callable[[str], None]:
    remaining: dict[str, int] = {}
    for part in text.split(","):
        name, _, nth = part.strip().partition(":")
        remaining[name] = int(nth or 1)

    def kill(name: str) -> None:
        if name in remaining:
            remaining[name] -= 1
            if remaining[name] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return kill


def _kill_by_files(directory: str) -> Callable[[str], None]:
    def kill(name: str) -> None:
        try:
            os.unlink(f"{directory}/{name}")
        except OSError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    return kill


_setting = os.environ.get("PENSTOCK_FAILPOINTS", "")
if _setting:
    _hook = _kill_by_files(_setting[1:]) if _setting.startswith("@") else _kill_at(_setting)
