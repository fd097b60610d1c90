"""A queue of actions that a bounded number of workers run, again after a pause until they are done.

There is at most one action per key at any time, whether it is queued, paused or running: a repeated request
for it is dropped. A paused action occupies no worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Action", "ActionKey", "ActionQueue"]

_LOG: Final = logging.getLogger("penstock.kube")
_FAULT_PAUSE_S: Final = 2.0

ActionKey = tuple[int, str]  # intent (0: none), and the member or Job that the action is about


@dataclass(frozen=True, slots=True)
class Action:
    key: ActionKey
    run: Callable[[], Awaitable[float | None]]  # returns the pause before the next run; None: done
    members: tuple[str, ...] = ()  # whose result it reports


class ActionQueue:
    """`after_fault` returns the action to run in place of one that has raised an exception."""

    def __init__(self, after_fault: Callable[[Action, Exception], Action]) -> None:
        self._after_fault = after_fault
        self._open: set[ActionKey] = set()  # queued, paused or running
        self._queue: asyncio.Queue[Action] = asyncio.Queue()
        self._paused: set[asyncio.TimerHandle] = set()

    def put(
        self, key: ActionKey, run: Callable[[], Awaitable[float | None]], members: Sequence[str] = ()
    ) -> None:
        if key not in self._open:
            self._open.add(key)
            self._queue.put_nowait(Action(key, run, tuple(members)))

    def open_targets(self) -> set[str]:
        """Members and Jobs for which an action is queued, paused or running."""
        return {target for _, target in self._open}

    async def run_worker(self) -> None:
        """Runs actions until it is cancelled. An exception in an action does not end the worker."""
        while True:
            action = await self._queue.get()
            try:
                pause_s = await action.run()
            except Exception as error:
                _LOG.exception("action for %s failed with an unexpected error", action.key[1])
                action = self._after_fault(action, error)
                pause_s = _FAULT_PAUSE_S
            if pause_s is None:
                self._open.discard(action.key)
            else:
                self._run_later(action, pause_s)

    def clear(self) -> None:
        """Drops all actions; called while no worker runs."""
        for handle in self._paused:
            handle.cancel()
        self._paused.clear()
        while not self._queue.empty():
            self._queue.get_nowait()
        self._open.clear()

    def _run_later(self, action: Action, pause_s: float) -> None:
        def put() -> None:
            self._paused.discard(handle)
            self._queue.put_nowait(action)

        handle = asyncio.get_running_loop().call_later(pause_s, put)
        self._paused.add(handle)
