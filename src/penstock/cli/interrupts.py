"""Ctrl-C for commands that run until it.

`nohup`, and a shell without job control for a command in the background, start it with SIGINT ignored, and
Python then installs no handler. A command that only a signal ends must react to it nevertheless.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["interruptible"]


@contextmanager
def interruptible(*others: signal.Signals) -> Iterator[None]:
    """Raises `KeyboardInterrupt` on SIGINT and on these signals, whatever was inherited for them."""
    numbers = (signal.SIGINT, *others)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
