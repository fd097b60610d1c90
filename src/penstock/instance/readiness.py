"""Whether an instance accepts commands and queries, and if not, why not: one value with one writer.

Whoever learns something that matters (the loop, the leader election, the store, the daemon) reports it to the
`ReadinessMonitor`, which alone decides what follows from it. Everybody else reads `current` or waits for it.
A shutdown is remembered: an instance that loses the store while it shuts down continues to do so later.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from typing import Final

__all__ = ["Readiness", "ReadinessMonitor", "ReadinessState"]


class ReadinessState(enum.Enum):
    """The values begin the reason that users see."""

    STARTING = "starting"
    STANDBY = "standing by"  # another instance is the leader
    TAKING_OVER = "taking over"  # leader, and the first snapshot of this term is not complete
    UNAVAILABLE = ""  # the message says what is unavailable
    READY = "ready"
    SHUTTING_DOWN = "shutting down"  # running jobs are being ended, and no other job may start


_SERVING: Final = (ReadinessState.READY, ReadinessState.SHUTTING_DOWN)


@dataclass(frozen=True, slots=True)
class Readiness:
    state: ReadinessState
    message: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether commands and queries are accepted."""
        return self.state in _SERVING

    @property
    def may_start_jobs(self) -> bool:
        return self.state is ReadinessState.READY

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.state.value, self.message)))


class ReadinessMonitor:
    """The only writer of the readiness."""

    def __init__(self) -> None:
        self._current = Readiness(ReadinessState.STARTING)
        self._is_shutting_down = False
        self._ready = asyncio.Event()

    @property
    def current(self) -> Readiness:
        return self._current

    async def until_ready(self) -> None:
        await self._ready.wait()

    # What others report

    def leader_is_another(self, message: str) -> None:
        """The instance has run no term yet, or its last one has ended."""
        self._set(ReadinessState.STANDBY, message)

    def became_leader(self) -> None:
        self._set(ReadinessState.TAKING_OVER)

    def cluster_unverified(self, message: str) -> None:
        """The leader cannot verify yet that the records belong to its cluster."""
        self._set(ReadinessState.TAKING_OVER, message)

    def takeover_waits(self, message: str) -> None:
        """Says what a leader waits for. Has no effect unless it is taking over."""
        if self._current.state is ReadinessState.TAKING_OVER:
            self._set(ReadinessState.TAKING_OVER, message)

    def nodes_known(self) -> None:
        """The first snapshot of the term has been handled."""
        self._set(ReadinessState.SHUTTING_DOWN if self._is_shutting_down else ReadinessState.READY)

    def store_waits(self, message: str) -> None:
        """The store does not answer. While an instance is ready this has no effect: its next step fails."""
        if not self._current.is_ready:
            self._set(ReadinessState.UNAVAILABLE, message)

    def term_ended(self, message: str) -> None:
        self._set(ReadinessState.UNAVAILABLE, message)

    def shutdown_begun(self) -> None:
        self._is_shutting_down = True
        if self._current.is_ready:
            self._set(ReadinessState.SHUTTING_DOWN)

    def _set(self, state: ReadinessState, message: str = "") -> None:
        self._current = Readiness(state, message)
        if self._current.is_ready:
            self._ready.set()
        else:
            self._ready.clear()
