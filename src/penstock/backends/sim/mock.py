"""A backend with simulated nodes on the real clock: members start and end as soon as they are placed.

It measures the cost of an instance itself. Nothing runs; queue, store and API are real.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from penstock.protocol.backend import Sink
from penstock.protocol.facts import Capacity, IntentResult, MemberStatus, NodeSet, Outcome, Phase, Snapshot
from penstock.protocol.intents import End, Evict, Intent, Place, StatusUpdate

__all__ = ["MockBackend"]


class MockBackend:
    def __init__(self, nodes: int, cores: int) -> None:
        capacity = (Capacity("core", cores),)
        self._nodes = tuple(NodeSet(f"node{number}", capacity) for number in range(nodes))
        self._sink: Sink | None = None

    async def run(self, epoch: int, sink: Sink) -> None:
        del epoch
        self._sink = sink
        sink(Snapshot(nodes=self._nodes))
        await asyncio.Event().wait()

    async def apply(self, epoch: int, intents: Sequence[Intent]) -> None:
        del epoch
        sink, now = self._sink, time.time()
        assert sink is not None, "`run` has not been called"
        for intent in intents:
            match intent:
                case Place():
                    for assignment in (
                        assignment for assignment in intent.assignments if not assignment.already_placed
                    ):
                        sink(IntentResult(intent.intent, assignment.member, Outcome.APPLIED))
                        sink(MemberStatus(assignment.member, Phase.RUNNING, now, assignment.node))
                        sink(MemberStatus(assignment.member, Phase.ENDED, now, assignment.node))
                case End() | Evict():
                    for member in intent.members:
                        sink(IntentResult(intent.intent, member, Outcome.GONE))

    async def probe(self, members: Sequence[str]) -> None:
        assert self._sink is not None, "`run` has not been called"
        for member in members:
            self._sink(MemberStatus(member, Phase.WAITING, time.time()))

    def forget(self, members: Sequence[str]) -> None:
        """Does nothing: no member is kept."""

    def publish_status(self, status_updates: Sequence[StatusUpdate]) -> None:
        """Does nothing: there is no status to publish."""
