"""Named places at which a process can be made to die, so that tests can ask: what if we die here?

Every transaction, every kind of intent and every file that must survive registers a point before and one
after. Nothing happens there unless a test armed a point: in-process with `armed`, or in a child process by
`PENSTOCK_FAILPOINTS=name[:nth][,name...]`, which kills the process with SIGKILL at the nth time. With
`PENSTOCK_FAILPOINTS=@DIR` a point is armed by a file of its name in that directory, at any time and for
whichever process passes there first: that one takes the file away and dies.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["REGISTRY", "Crash", "armed", "reach", "register"]

REGISTRY: Final[dict[str, str]] = {}  # name -> what it stands for


class Crash(BaseException):
    """A simulated death. Not an `Exception`: nothing may catch it and go on."""


_hook: Callable[[str], None] | None = None


def register(name: str, about: str) -> str:
    """Makes a point known; returns its name."""
    REGISTRY[name] = about
    return name


def reach(name: str) -> None:
    """Passes a point. Almost always this does nothing."""
    if _hook is not None:
        _hook(name)


@contextmanager
def armed(hook: Callable[[str], None]) -> Iterator[None]:
    """Calls `hook` at every point inside the block; it may raise `Crash`."""
    global _hook
    before, _hook = _hook, hook
    try:
        yield
    finally:
        _hook = before


def _arm_from(text: str) -> Callable[[str], None]:
    left: dict[str, int] = {}
    for part in text.split(","):
        name, _, nth = part.strip().partition(":")
        left[name] = int(nth or 1)

    def die(name: str) -> None:
        if name in left:
            left[name] -= 1
            if left[name] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return die


def _arm_by_files(directory: str) -> Callable[[str], None]:
    def die(name: str) -> None:
        try:
            os.unlink(f"{directory}/{name}")
        except OSError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    return die


_armed_by = os.environ.get("PENSTOCK_FAILPOINTS", "")
if _armed_by:
    _hook = _arm_by_files(_armed_by[1:]) if _armed_by.startswith("@") else _arm_from(_armed_by)
