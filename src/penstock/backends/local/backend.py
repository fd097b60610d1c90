"""The port, over agents on this machine.

A fact is told from what the links know, never from what was asked: a member is running because its agent says
so. While an agent is away its node is down and its members are lost; when it is back they are told anew, and
a member that it does not know after all is told as waiting. An intent for a node whose agent is away
is answered `UNKNOWN` and not `CONFLICT`: an earlier life of ours may have placed the member there.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.agent import wire
from penstock.agent.durable import Points, register_pair
from penstock.agent.records import Stage, TaskSpec
from penstock.backends.local.agent_connection import AgentConnection
from penstock.backends.local.settings import LocalSettings
from penstock.backends.local.translate import default_outputs, outputs_of, read_spec, tags_of, tasks_of
from penstock.errors import BadRequest
from penstock.failpoints import reach
from penstock.paths import InstancePaths, make_paths
from penstock.protocol.backend import Sink
from penstock.protocol.facts import (
    Capacity,
    Fact,
    IntentResult,
    MemberStatus,
    NodeSet,
    Outcome,
    Phase,
    Snapshot,
    end_cause_of,
)
from penstock.protocol.intents import End, Intent, Place, Retract, StatusUpdate

__all__ = ["INTENTS", "LocalBackend", "NodeStatus"]

INTENTS: Final[Mapping[type[Intent], Points]] = {
    Place: register_pair("local.place", "the local driver sends a placement to its agents"),
    Retract: register_pair("local.retract", "the local driver takes a placement back"),
    End: register_pair("local.end", "the local driver asks agents to end members"),
}

_PHASES: Final = {Stage.ACCEPTED: Phase.PLACED, Stage.RUNNING: Phase.RUNNING, Stage.ENDED: Phase.ENDED}
_OUTCOMES: Final = {
    wire.Answered.APPLIED: Outcome.APPLIED,
    wire.Answered.CONFLICT: Outcome.CONFLICT,
    wire.Answered.GONE: Outcome.GONE,
}
# Of several answers about one member the first of these counts.
_GRAVITY: Final = (Outcome.APPLIED, Outcome.UNKNOWN, Outcome.CONFLICT, Outcome.GONE)


@dataclass(frozen=True, slots=True)
class NodeStatus:
    node: str
    rank: int
    pid: int  # of the agent; 0 if it has never answered
    state: str  # "up", or why it is not
    tasks: int  # that have not ended


class LocalBackend:
    def __init__(self, paths: InstancePaths, settings: LocalSettings) -> None:
        self._paths = paths
        self._settings = settings
        self._links = [
            AgentConnection(rank, paths.agent(settings.node(rank)), paths.agent_socket(rank), settings, self)
            for rank in range(settings.nodes)
        ]
        self._by_node = {link.node: link for link in self._links}
        self._ranks = {link.node: link.rank for link in self._links}
        self._where: dict[str, AgentConnection] = {}  # where a member is, or may be
        self._sought: dict[str, None] = {}  # asked for in vain; an agent that is away may have them
        self._sink: Sink | None = None
        self._streaming = False
        self._epoch = 0
        machine = os.cpu_count() or 1
        self._bind = settings.bind and settings.nodes * settings.cores_per_node <= machine

    # The port

    async def run(self, epoch: int, sink: Sink) -> None:
        self._epoch, self._sink, self._streaming = epoch, sink, False
        make_paths(self._paths)
        for link in self._links:
            link.first.clear()
        try:
            async with asyncio.TaskGroup() as group:
                for link in self._links:
                    group.create_task(link.run(epoch))
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.snapshot_within_s):
                        for link in self._links:
                            await link.first.wait()
                found = [
                    (link, await link.look_at_files()) for link in self._links if not link.first.is_set()
                ]
                self._tell_snapshot(dict(found))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        finally:
            self._streaming = False

    async def apply(self, epoch: int, intents: Sequence[Intent]) -> None:
        for intent in intents:
            points = INTENTS[type(intent)]
            reach(points.before)
            match intent:
                case Place():
                    self._place(epoch, intent)
                case End():
                    self._end(epoch, intent)
                case Retract():
                    self._retract(epoch, intent)
            reach(points.after)
            await asyncio.sleep(0)

    async def probe(self, members: Sequence[str]) -> None:
        for member in members:
            link = self._where.get(member)
            if link is not None and link.up:
                self._probe_at(link, member)
            elif link is None and all(one.up for one in self._links):
                self._observe(member, Phase.WAITING)
            else:
                if link is None:
                    self._sought[member] = None
                self._observe(member, Phase.LOST, link)

    def publish_status(self, status_updates: Sequence[StatusUpdate]) -> None:
        """Processes have nobody to be told."""

    def forget(self, members: Sequence[str]) -> None:
        """The end of these members is durably recorded: their agents may forget them."""
        by_link: dict[int, list[str]] = {}
        for member in members:
            known = self._where.pop(member, None)
            self._sought.pop(member, None)
            # Of one that is nowhere, any agent may remember that it must not start.
            for link in self._links if known is None else (known,):
                link.members.pop(member, None)
                by_link.setdefault(link.rank, []).append(member)
        for rank, ours in by_link.items():
            for at in range(0, len(ours), 1000):
                self._links[rank].tell(wire.Release(self._epoch, tuple(ours[at : at + 1000])))

    # Beside the port

    def status(self) -> list[NodeStatus]:
        return [
            NodeStatus(
                link.node,
                link.rank,
                link.pid,
                "up" if link.up else link.why,
                sum(report.stage is not Stage.ENDED for report in link.members.values()),
            )
            for link in self._links
        ]

    def output_paths(
        self, job: int, index: int, spec: Mapping[str, object], attempt: int | None = None
    ) -> tuple[Path, Path]:
        """Where a task's stdout and stderr go. Without an attempt: the last one.

        In a file that the user has named, tags that depend on where the task was placed stay as they are.
        """
        if attempt is None:
            there = (self._paths.output / str(job)).glob(f"*-{index}.out")
            attempt = max((int(path.name.partition("-")[0]) for path in there), default=1)
        read = read_spec(spec)
        default = default_outputs(self._paths, job, attempt, index)
        stdout, stderr = outputs_of(read, tags_of(job, read, index), default)
        return Path(read.cwd, stdout), Path(read.cwd, stderr)

    async def stop(self, *, keep_tasks: bool) -> None:
        """Ends the agents, after `run` was cancelled. Tasks that are kept are adopted by the next ones."""
        async with asyncio.TaskGroup() as group:
            for link in self._links:
                group.create_task(link.stop(self._epoch, keep_tasks=keep_tasks))

    # What links tell

    def link_up(self, link: AgentConnection) -> None:
        missing = [m for m, where in self._where.items() if where is link and m not in link.members]
        self._tell(self._node(link))
        for report in link.members.values():
            self.reported(link, report)
        for member in missing:
            del self._where[member]
            self._observe(member, Phase.WAITING)
        if self._sought and all(one.up for one in self._links):
            sought, self._sought = self._sought, {}
            for member in sought:
                if member not in self._where:
                    self._observe(member, Phase.WAITING)

    def link_down(self, link: AgentConnection) -> None:
        self._tell(self._node(link))
        for member, where in self._where.items():
            report = link.members.get(member)
            if where is link and (report is None or report.stage is not Stage.ENDED):
                self._observe(member, Phase.LOST, link)

    def reported(self, link: AgentConnection, report: wire.TaskReport) -> None:
        self._where[report.member] = link
        self._tell(_observed(link, report))

    # Placing

    def _place(self, epoch: int, place: Place) -> None:
        try:
            tasks = tasks_of(place, self._paths, self._ranks, bind=self._bind)
        except BadRequest as error:
            for assignment in place.assignments:
                self._settle(place.intent, assignment.member, Outcome.CONFLICT, str(error))
            return
        for assignment, task in zip(place.assignments, tasks, strict=True):
            if assignment.is_settled:
                continue
            link = self._by_node[assignment.node]
            elsewhere = self._where.get(assignment.member)
            if elsewhere is not None and elsewhere is not link:
                detail = f"it is on {elsewhere.node}"
                self._settle(place.intent, assignment.member, Outcome.CONFLICT, detail)
                continue
            self._where[assignment.member] = link

            def start(number: int, task: TaskSpec = task) -> wire.Command:
                return wire.Start(number, epoch, task)

            try:
                link.ask(
                    assignment.member,
                    start,
                    self._settler(place.intent, assignment.member, link, forgets=False),
                )
            except BadRequest as error:
                del self._where[assignment.member]
                self._settle(place.intent, assignment.member, Outcome.CONFLICT, str(error))

    def _settler(
        self, intent: int, member: str, link: AgentConnection, *, forgets: bool | None = None
    ) -> Callable[[wire.TaskAnswer | None], None]:
        """Settles by the answer. The member is on no node after it is applied, or only if it is not."""

        def settle(answer: wire.TaskAnswer | None) -> None:
            if answer is None:
                self._settle(intent, member, Outcome.UNKNOWN, f"{link.node}: {link.why or 'it went away'}")
                return
            outcome = _OUTCOMES[answer.outcome]
            if forgets is (outcome is Outcome.APPLIED):
                self._where.pop(member, None)
                link.members.pop(member, None)
            self._settle(intent, member, outcome, answer.detail)

        return settle

    # Ending and taking back

    def _end(self, epoch: int, end: End) -> None:
        key = f"{end.intent}"
        for member in end.members:

            def command(number: int, member: str = member) -> wire.Command:
                return wire.EndTask(number, epoch, member, key, end.signal, end.grace_s, end.reason.value)

            self._ask_where_it_is(end.intent, member, command, forgets=None)

    def _retract(self, epoch: int, retract: Retract) -> None:
        for member in retract.members:

            def command(number: int, member: str = member) -> wire.Command:
                return wire.Forget(number, epoch, member)

            self._ask_where_it_is(retract.intent, member, command, forgets=True)

    def _ask_where_it_is(
        self, intent: int, member: str, command: Callable[[int], wire.Command], *, forgets: bool | None
    ) -> None:
        """Asks the agent that has the member; if nobody is known to have it, all: none may start it later."""
        link = self._where.get(member)
        if link is not None:
            link.ask(member, command, self._settler(intent, member, link, forgets=forgets))
            return
        answers: list[tuple[Outcome, str]] = []

        def collect(answer: wire.TaskAnswer | None) -> None:
            outcome = Outcome.UNKNOWN if answer is None else _OUTCOMES[answer.outcome]
            answers.append((outcome, answer.detail if answer else "an agent is away"))
            if len(answers) == len(self._links):
                gravest = min(answers, key=lambda pair: _GRAVITY.index(pair[0]))
                if any(outcome is Outcome.UNKNOWN for outcome, _ in answers):
                    gravest = (Outcome.UNKNOWN, "an agent is away")
                self._settle(intent, member, *gravest)

        for one in self._links:
            one.ask(member, command, collect)

    def _probe_at(self, link: AgentConnection, member: str) -> None:
        def answered(answer: wire.TaskAnswer | None) -> None:
            if answer is None:
                self._observe(member, Phase.LOST, link)
            elif answer.outcome is wire.Answered.GONE:
                self._where.pop(member, None)
                self._observe(member, Phase.WAITING)

        link.ask(member, lambda number: wire.Probe(number, self._epoch, member), answered)

    # Telling

    def _tell(self, fact: Fact) -> None:
        """Before the snapshot nothing is told: it has everything."""
        if self._streaming and self._sink is not None:
            self._sink(fact)

    def _settle(self, intent: int, member: str, outcome: Outcome, detail: str = "") -> None:
        if self._sink is not None:
            self._sink(IntentResult(intent, member, outcome, detail))

    def _observe(self, member: str, phase: Phase, link: AgentConnection | None = None) -> None:
        self._tell(MemberStatus(member, phase, time.time(), link.node if link else ""))

    def _tell_snapshot(self, silent: Mapping[AgentConnection, Sequence[wire.TaskReport]]) -> None:
        """Of an agent that has not answered it has what its files say: absent would mean gone."""
        observations = []
        for link in self._links:
            reports = link.members.values() if link.first.is_set() else silent.get(link, ())
            for report in reports:
                self._where[report.member] = link
                lost = not link.up and report.stage is not Stage.ENDED
                observations.append(_observed(link, report, lost=lost))
        self._streaming = True
        nodes = tuple(self._node(link) for link in self._links)
        self._tell(Snapshot(nodes=nodes, statuses=tuple(observations)))

    def _node(self, link: AgentConnection) -> NodeSet:
        capacity = [Capacity("core", self._settings.cores_per_node)]
        if self._settings.gpus_per_node:
            capacity.append(Capacity("gpu", self._settings.gpus_per_node))
        return NodeSet(link.node, tuple(capacity), up=link.up, why="" if link.up else link.why)


def _observed(link: AgentConnection, report: wire.TaskReport, *, lost: bool = False) -> MemberStatus:
    phase = Phase.LOST if lost else _PHASES[report.stage]
    amounts = tuple(report.uses.items())
    cause, message = end_cause_of(report.cause)
    return MemberStatus(
        report.member, phase, report.at, link.node, report.status, cause, message, usage=amounts
    )
