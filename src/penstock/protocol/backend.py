"""What a driver must be able to do, and what it is given to speak into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.protocol.facts import Fact
from penstock.protocol.intents import Intent, StatusUpdate

__all__ = ["Backend", "Sink"]


class Sink(Protocol):
    def __call__(self, fact: Fact) -> None:
        """Takes a fact. It never blocks and never fails."""


class Backend(Protocol):
    async def run(self, epoch: int, sink: Sink) -> None:
        """Reports a `Snapshot`, then facts as they happen, until it is cancelled."""

    async def apply(self, epoch: int, intents: Sequence[Intent]) -> None:
        """Carries out committed intents; answers come as `IntentResult`. Returns without waiting for them."""

    async def probe(self, members: Sequence[str]) -> None:
        """Asks what became of members; answers come as `MemberStatus`, `WAITING` if it knows none."""

    def forget(self, members: Sequence[str]) -> None:
        """The end of these is recorded: the world need not remember them any longer."""

    def publish_status(self, status_updates: Sequence[StatusUpdate]) -> None:
        """Passes on what people should know, some time; what is newer replaces what is older."""
