"""What a backend implements.

The instance calls `run` once per term and passes a sink for facts. Intents arrive in `apply` after their
commit. After a restart the instance sends open intents again, so a backend must apply each one idempotently.
Every call carries the epoch of the term; a backend must not act for an older epoch than it has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.protocol.facts import Fact
from penstock.protocol.intents import Intent, StatusUpdate

__all__ = ["Backend", "Sink"]


class Sink(Protocol):
    def __call__(self, fact: Fact) -> None:
        """Enqueues a fact. Never blocks and never raises."""


class Backend(Protocol):
    async def run(self, epoch: int, sink: Sink) -> None:
        """Reports one `Snapshot`, then facts as they happen, until it is cancelled."""

    async def apply(self, epoch: int, intents: Sequence[Intent]) -> None:
        """Starts to apply committed intents and returns. Each member is confirmed by an `IntentResult`."""

    async def probe(self, members: Sequence[str]) -> None:
        """Reports a `MemberStatus` for each of these members; `Phase.WAITING` for an unknown one."""

    def forget(self, members: Sequence[str]) -> None:
        """The end of these members is recorded: the backend may drop what it keeps about them."""

    def publish_status(self, status_updates: Sequence[StatusUpdate]) -> None:
        """Shows updates to the owners of workloads, eventually. A newer update replaces an older one."""
