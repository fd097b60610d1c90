"""A local backend with real agents, driven like an instance drives it. No process outlives a test."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

from penstock.agent.processes import processes_with_token
from penstock.agent.task_dirs import AgentDirectory
from penstock.backends.local import LocalBackend, LocalSettings
from penstock.errors import PenstockError
from penstock.paths import InstancePaths
from penstock.protocol.facts import Fact, IntentResult, MemberStatus, NodeSet, Outcome, Phase, Snapshot
from penstock.protocol.intents import Assignment, Intent, Place

__all__ = ["DEADLINE_S", "Instance", "Site", "assignment", "eventually", "instance", "place", "run"]

DEADLINE_S = 15.0

FactT = TypeVar("FactT")


def assignment(member: str, node: str = "node0", index: int = 0, cores: str = "0") -> Assignment:
    return Assignment(member, index, node, (("core", cores, 1),))


def place(site: Site, script: str, *assignments: Assignment, intent: int = 1, **more: object) -> Place:
    spec: dict[str, object] = {
        "id_f58": "ƒ2",
        "name": "test",
        "command": ["/bin/sh", "-c", script],
        "cwd": str(site.workdir),
        "environment": {"PATH": "/usr/bin:/bin"},
        "output": "",
        "error": "",
        "label_io": False,
        "signal": None,
        "owner": "me",
        **more,
    }
    return Place(intent, 1, "", assignments or (assignment("1/1/0"),), size=len(assignments) or 1, spec=spec)


class Site:
    """The directories of a test."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="pd-", dir="/tmp"))
        self.paths = InstancePaths(self.base / "state", self.base / "run")
        self.workdir = self.base / "work"
        self.workdir.mkdir()

    def lines(self, name: str) -> list[str]:
        path = self.workdir / name
        return path.read_text().split() if path.exists() else []

    def tokens(self) -> list[str]:
        found = []
        for directory in (self.paths.state / "agents").glob("*"):
            for task in AgentDirectory(directory).tasks():
                accepted = task.accepted()
                if accepted is not None:
                    found.append(accepted.token)
        return found


class Instance:
    """Runs a backend and collects its facts in order."""

    def __init__(self, site: Site, settings: LocalSettings, epoch: int = 1) -> None:
        self.site = site
        self.backend = LocalBackend(site.paths, settings)
        self.epoch = epoch
        self.facts: list[Fact] = []
        self._arrived = asyncio.Event()
        self._run: asyncio.Task[None] | None = None

    def _sink(self, fact: Fact) -> None:
        self.facts.append(fact)
        self._arrived.set()

    async def start(self) -> Snapshot:
        self._run = asyncio.create_task(self.backend.run(self.epoch, self._sink))
        return await self.fact(Snapshot, lambda _: True)

    async def leave(self) -> None:
        """Cancels the backend without a shutdown of its agents, like a kill of the instance."""
        if self._run is not None:
            self._run.cancel()
            with suppress(asyncio.CancelledError, PenstockError):
                await self._run
            self._run = None

    async def fact(self, fact_type: type[FactT], matches: Callable[[FactT], bool], since: int = 0) -> FactT:
        """Waits for the first matching fact of a type at or after index `since`."""
        async with asyncio.timeout(DEADLINE_S):
            at = since
            while True:
                while at < len(self.facts):
                    fact = self.facts[at]
                    at += 1
                    if isinstance(fact, fact_type) and matches(fact):
                        return fact
                self._arrived.clear()
                running = self._run
                assert running is not None
                arrival = asyncio.create_task(self._arrived.wait())
                await asyncio.wait((arrival, running), return_when=asyncio.FIRST_COMPLETED)
                arrival.cancel()
                if running.done():
                    await running

    async def member_status(self, member: str, phase: Phase, since: int = 0) -> MemberStatus:
        return await self.fact(
            MemberStatus, lambda fact: fact.member == member and fact.phase is phase, since
        )

    async def intent_result(self, intent: int, member: str = "1/1/0") -> tuple[Outcome, str]:
        fact = await self.fact(IntentResult, lambda fact: fact.intent == intent and fact.member == member)
        return fact.outcome, fact.detail

    async def node(self, node: str, *, up: bool, since: int = 0) -> NodeSet:
        return await self.fact(NodeSet, lambda fact: fact.node == node and fact.up is up, since)

    async def apply(self, *intents: Intent) -> None:
        await self.backend.apply(self.epoch, intents)


@asynccontextmanager
async def instance(site: Site, epoch: int = 1, **settings: object) -> AsyncIterator[Instance]:
    """One term of an instance; its agents keep running afterwards."""
    one = Instance(site, LocalSettings(**settings), epoch)  # type: ignore[arg-type]
    try:
        yield one
    finally:
        await one.leave()


async def eventually(condition: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(what) from None


def run(test: Callable[[Site], Coroutine[object, object, None]]) -> None:
    """Runs a test in its own directories, then ends every agent and checks that no process is left."""
    site = Site()

    async def run_and_clean_up() -> None:
        try:
            await test(site)
        finally:
            nodes = len(list((site.paths.state / "agents").glob("*"))) or 1
            last = LocalBackend(site.paths, LocalSettings(nodes=nodes))
            last._epoch = 1 << 30  # newer than any
            tokens = site.tokens()
            await last.stop(keep_tasks=False)
            assert [pid for token in tokens for pid in processes_with_token(token)] == []

    try:
        asyncio.run(run_and_clean_up())
    finally:
        shutil.rmtree(site.base, ignore_errors=True)
