"""Whether the loop of an instance moves: a mark that it sets after every action and every slice of a cycle.

Another thread reads the age of the mark. A leader whose loop is stuck is recognised by it, and gives up.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["LoopProgress"]


class LoopProgress:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marked_at = clock()

    def mark(self) -> None:
        self._marked_at = self._clock()

    def age_s(self) -> float:
        """The time since the last mark. Any thread may call it."""
        return self._clock() - self._marked_at
