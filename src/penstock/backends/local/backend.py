"""Implements the `Backend` protocol with agents on this machine.

Facts follow the reports of the agents, never the commands: a member is running because its agent reports so.
While an agent is disconnected, its node is down and its members are lost. When it reconnects, they are
reported again, and a member that it does not know is reported as waiting. An intent for a node whose agent is
disconnected has the outcome `UNKNOWN`, not `CONFLICT`: an earlier instance may have placed the member there.

A node beyond the configured number that still has the directory of an agent leaves: nothing is placed there,
its tasks run on, and `remove_node` removes it when nothing is left on it. An interrupted removal is made
again by the next start, because the directory goes last.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.agent import wire
from penstock.agent.durable import FailpointPair, register_pair
from penstock.agent.records import TaskSpec, TaskStage
from penstock.backends.local.agent_connection import AgentConnection
from penstock.backends.local.settings import NODES_MAX, LocalSettings
from penstock.backends.local.translate import (
    default_outputs,
    input_position,
    input_spool,
    outputs_of,
    read_spec,
    tags_of,
    tasks_of,
)
from penstock.errors import BadRequest
from penstock.failpoints import reach
from penstock.paths import InstancePaths, make_paths, make_private
from penstock.protocol.backend import Sink
from penstock.protocol.facts import (
    Capacity,
    Fact,
    IntentResult,
    MemberStatus,
    NodeGone,
    NodeSet,
    Outcome,
    Phase,
    Snapshot,
    end_cause_of,
)
from penstock.protocol.intents import End, Evict, Intent, Place, StatusUpdate

__all__ = ["INTENTS", "LocalBackend", "NodeStatus"]

INTENTS: Final[Mapping[type[Intent], FailpointPair]] = {
    Place: register_pair("local.place", "the local backend sends a placement to its agents"),
    End: register_pair("local.end", "the local backend asks agents to end members"),
}

_PHASES: Final = {
    TaskStage.ACCEPTED: Phase.PLACED,
    TaskStage.RUNNING: Phase.RUNNING,
    TaskStage.ENDED: Phase.ENDED,
}
_OUTCOMES: Final = {
    wire.CommandOutcome.APPLIED: Outcome.APPLIED,
    wire.CommandOutcome.CONFLICT: Outcome.CONFLICT,
    wire.CommandOutcome.GONE: Outcome.GONE,
}
# With several results for one member, the first outcome in this order is reported.
_PRECEDENCE: Final = (Outcome.APPLIED, Outcome.UNKNOWN, Outcome.CONFLICT, Outcome.GONE)

_LOG: Final = logging.getLogger("penstock.local")
_RELEASE_BATCH: Final = 1000  # members per message
_LEAVES: Final = "it leaves the instance when its jobs have ended"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    node: str
    rank: int
    pid: int  # of the agent; 0 if it has never connected
    state: str  # "up", or the reason why it is down
    tasks: int  # not ended


class LocalBackend:
    def __init__(self, paths: InstancePaths, settings: LocalSettings) -> None:
        self._paths = paths
        self._settings = settings
        leaving = (
            rank for rank in range(settings.nodes, NODES_MAX) if paths.agent(settings.node(rank)).is_dir()
        )
        self._agents = [
            AgentConnection(rank, paths.agent(settings.node(rank)), paths.agent_socket(rank), settings, self)
            for rank in (*range(settings.nodes), *leaving)
        ]
        self._connecting: dict[AgentConnection, asyncio.Task[None]] = {}
        self._removed: list[AgentConnection] = []  # whose processes have not ended yet
        self._agents_by_node = {agent.node: agent for agent in self._agents}
        self._ranks = {agent.node: agent.rank for agent in self._agents}
        self._agent_of_member: dict[str, AgentConnection] = {}  # the agent that has, or may have, the member
        # Members that a probe found on no connected agent; a disconnected agent may have them.
        self._unlocated: dict[str, None] = {}
        self._sink: Sink | None = None
        self._snapshot_sent = False
        self._epoch = 0
        machine = os.cpu_count() or 1
        self._bind = settings.bind and settings.nodes * settings.cores_per_node <= machine

    # Backend protocol

    async def run(self, epoch: int, sink: Sink) -> None:
        self._epoch, self._sink, self._snapshot_sent = epoch, sink, False
        make_paths(self._paths)
        for path in (self._paths.agents, self._paths.output):
            make_private(path)
        for agent in self._agents:
            agent.synced.clear()
        try:
            async with asyncio.TaskGroup() as group:
                for agent in self._agents:
                    self._connecting[agent] = group.create_task(agent.run(epoch))
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.snapshot_timeout_s):
                        for agent in self._agents:
                            await agent.synced.wait()
                disconnected = {
                    agent: await agent.read_task_files()
                    for agent in self._agents
                    if not agent.synced.is_set()
                }
                self._emit_snapshot(disconnected)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        finally:
            self._snapshot_sent = False
            self._connecting.clear()

    async def apply(self, epoch: int, intents: Sequence[Intent]) -> None:
        for intent in intents:
            if isinstance(intent, Evict):
                self._refuse_eviction(intent)
                continue
            points = INTENTS[type(intent)]
            reach(points.before)
            try:
                self._start(epoch, intent)
            except Exception as error:
                _LOG.exception("cannot execute intent %d", intent.intent)
                self._refuse(intent, f"internal error: {error}")
            reach(points.after)
            await asyncio.sleep(0)

    def _start(self, epoch: int, intent: Place | End) -> None:
        match intent:
            case Place():
                self._place(epoch, intent)
            case End():
                self._end(epoch, intent)

    def _refuse(self, intent: Place | End, why: str) -> None:
        members = intent.members if isinstance(intent, End) else [one.member for one in intent.assignments]
        for member in members:
            self._report_result(intent.intent, member, Outcome.CONFLICT, why)

    async def probe(self, members: Sequence[str]) -> None:
        for member in members:
            agent = self._agent_of_member.get(member)
            if agent is not None and agent.up:
                self._probe_agent(agent, member)
            elif agent is None and all(agent.up for agent in self._agents):
                self._report_status(member, Phase.WAITING)
            else:
                if agent is None:
                    self._unlocated[member] = None
                self._report_status(member, Phase.LOST, agent)

    def publish_status(self, status_updates: Sequence[StatusUpdate]) -> None:
        """Does nothing: processes have no status to publish."""

    def forget(self, members: Sequence[str]) -> None:
        """Releases members whose end is recorded durably: their agents may remove them."""
        by_agent: dict[AgentConnection, list[str]] = {}
        for member in members:
            known = self._agent_of_member.pop(member, None)
            self._unlocated.pop(member, None)
            # Any agent may have a tombstone of a member that no agent runs.
            for agent in self._agents if known is None else (known,):
                agent.members.pop(member, None)
                by_agent.setdefault(agent, []).append(member)
        for agent, released in by_agent.items():
            for at in range(0, len(released), _RELEASE_BATCH):
                batch = tuple(released[at : at + _RELEASE_BATCH])
                agent.notify(wire.ReleaseTasks(self._epoch, batch))

    # For the instance's other users

    def status(self) -> list[NodeStatus]:
        return [
            NodeStatus(
                agent.node,
                agent.rank,
                agent.pid,
                "up" if agent.up else agent.why,
                sum(report.stage is not TaskStage.ENDED for report in agent.members.values()),
            )
            for agent in self._agents
        ]

    def output_paths(
        self, job: int, index: int, spec: Mapping[str, object], attempt: int | None = None
    ) -> tuple[Path, Path]:
        """Returns the paths of a task's stdout and stderr; `attempt` defaults to the last one.

        In a path that the user named, tags that depend on the placement are not expanded.
        """
        if attempt is None:
            outputs = (self._paths.output / str(job)).glob(f"*-{index}.out")
            attempt = max((int(path.name.partition("-")[0]) for path in outputs), default=1)
        launch = read_spec(spec)
        default = default_outputs(self._paths, job, attempt, index)
        stdout, stderr = outputs_of(launch, tags_of(job, launch, index), default)
        return Path(launch.cwd, stdout), Path(launch.cwd, stderr)

    def input_paths(self, job: int, members: Iterable[tuple[str, int]]) -> tuple[Path, list[Path]]:
        """Returns the spool of a job's input, and the position file of each member (key and index)."""
        positions = [input_position(self._paths, job, member, index) for member, index in members]
        return input_spool(self._paths, job), positions

    async def stop(self, *, keep_tasks: bool) -> None:
        """Ends the agents, after `run` was cancelled. With `keep_tasks` the next agents adopt the tasks."""
        async with asyncio.TaskGroup() as group:
            for agent in (*self._agents, *self._removed):
                group.create_task(agent.stop(self._epoch, keep_tasks=keep_tasks))

    # Nodes that leave

    def leaving(self) -> list[str]:
        return [agent.node for agent in self._agents if self._is_leaving(agent)]

    def _is_leaving(self, agent: AgentConnection) -> bool:
        return agent.rank >= self._settings.nodes

    async def probe_unknown(self, node: str, members: Sequence[str]) -> bool:
        """Probes members that the scheduler has on a node and that the agent there does not know.

        Returns whether the agent has a task that has not ended, or cannot be asked.
        """
        agent = self._agents_by_node[node]
        if not agent.up:
            return True
        await self.probe([member for member in members if member not in agent.members])
        return any(report.stage is not TaskStage.ENDED for report in agent.members.values())

    async def remove_node(self, node: str) -> None:
        """Ends the agent of a node that leaves and on which nothing is left, and removes its directory."""
        agent = self._agents_by_node.pop(node)
        self._agents.remove(agent)
        self._removed.append(agent)
        del self._ranks[node]
        connecting = self._connecting.pop(agent, None)
        if connecting is not None:
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
        self._emit(NodeGone(node))
        await agent.stop(self._epoch, keep_tasks=False)
        self._removed.remove(agent)
        await asyncio.to_thread(shutil.rmtree, self._paths.agent(node), ignore_errors=True)

    # Events of agents

    def agent_connected(self, agent: AgentConnection) -> None:
        missing = [
            m for m, where in self._agent_of_member.items() if where is agent and m not in agent.members
        ]
        self._emit(self._node(agent))
        for report in agent.members.values():
            self.reported(agent, report)
        for member in missing:
            del self._agent_of_member[member]
            self._report_status(member, Phase.WAITING)
        if self._unlocated and all(agent.up for agent in self._agents):
            unlocated, self._unlocated = self._unlocated, {}
            for member in unlocated:
                if member not in self._agent_of_member:
                    self._report_status(member, Phase.WAITING)

    def agent_disconnected(self, agent: AgentConnection) -> None:
        self._emit(self._node(agent))
        for member, holder in self._agent_of_member.items():
            report = agent.members.get(member)
            if holder is agent and (report is None or report.stage is not TaskStage.ENDED):
                self._report_status(member, Phase.LOST, agent)

    def reported(self, agent: AgentConnection, report: wire.TaskReport) -> None:
        self._agent_of_member[report.member] = agent
        self._emit(_member_status(agent, report))

    # Place

    def _place(self, epoch: int, place: Place) -> None:
        try:
            tasks = tasks_of(place, self._paths, self._ranks, bind=self._bind)
        except BadRequest as error:
            for assignment in place.assignments:
                self._report_result(place.intent, assignment.member, Outcome.CONFLICT, str(error))
            return
        for assignment, task in zip(place.assignments, tasks, strict=True):
            if assignment.already_placed:
                continue
            agent = self._agents_by_node[assignment.node]
            elsewhere = self._agent_of_member.get(assignment.member)
            if elsewhere is not None and elsewhere is not agent:
                detail = f"the member is on {elsewhere.node}"
                self._report_result(place.intent, assignment.member, Outcome.CONFLICT, detail)
                continue
            self._agent_of_member[assignment.member] = agent

            def start(number: int, task: TaskSpec = task) -> wire.AgentCommand:
                return wire.StartTask(number, epoch, task)

            try:
                agent.send(
                    assignment.member,
                    start,
                    self._result_handler(place.intent, assignment.member, agent, is_placement=True),
                )
            except BadRequest as error:
                del self._agent_of_member[assignment.member]
                self._report_result(place.intent, assignment.member, Outcome.CONFLICT, str(error))

    def _result_handler(
        self, intent: int, member: str, agent: AgentConnection, *, is_placement: bool
    ) -> Callable[[wire.CommandResult | None], None]:
        """Returns a callback that reports the outcome of an intent for a member.

        A member whose placement is not applied is not on that agent.
        """

        def report(result: wire.CommandResult | None) -> None:
            if result is None:
                self._report_result(
                    intent, member, Outcome.UNKNOWN, f"{agent.node}: {agent.why or 'disconnected'}"
                )
                return
            outcome = _OUTCOMES[result.outcome]
            if is_placement and outcome is not Outcome.APPLIED:
                self._agent_of_member.pop(member, None)
                agent.members.pop(member, None)
            self._report_result(intent, member, outcome, result.detail)

        return report

    # End

    def _end(self, epoch: int, end: End) -> None:
        key = f"{end.intent}"
        for member in end.members:

            def command(number: int, member: str = member) -> wire.AgentCommand:
                return wire.EndTask(number, epoch, member, key, end.signal, end.grace_s, end.reason.value)

            self._send_to_member(end.intent, member, command)

    def _refuse_eviction(self, evict: Evict) -> None:
        """Refuses what the scheduler orders for members with a controller only; a task has none."""
        for member in evict.members:
            detail = "a task has no controller that would replace it"
            self._report_result(evict.intent, member, Outcome.CONFLICT, detail)

    def _send_to_member(self, intent: int, member: str, command: Callable[[int], wire.AgentCommand]) -> None:
        """Sends a command to the member's agent; if none is known, to all, so that none starts it later."""
        agent = self._agent_of_member.get(member)
        if agent is not None:
            agent.send(member, command, self._result_handler(intent, member, agent, is_placement=False))
            return
        results: list[tuple[Outcome, str]] = []
        asked = list(self._agents)

        def collect(result: wire.CommandResult | None) -> None:
            outcome = Outcome.UNKNOWN if result is None else _OUTCOMES[result.outcome]
            results.append((outcome, result.detail if result else "an agent is disconnected"))
            if len(results) == len(asked):
                reported = min(results, key=lambda pair: _PRECEDENCE.index(pair[0]))
                if any(outcome is Outcome.UNKNOWN for outcome, _ in results):
                    reported = (Outcome.UNKNOWN, "an agent is disconnected")
                self._report_result(intent, member, *reported)

        for agent in asked:
            agent.send(member, command, collect)

    def _probe_agent(self, agent: AgentConnection, member: str) -> None:
        def on_result(result: wire.CommandResult | None) -> None:
            if result is None:
                self._report_status(member, Phase.LOST, agent)
            elif result.outcome is wire.CommandOutcome.GONE:
                self._agent_of_member.pop(member, None)
                self._report_status(member, Phase.WAITING)

        agent.send(member, lambda number: wire.ProbeTask(number, self._epoch, member), on_result)

    # Facts

    def _emit(self, fact: Fact) -> None:
        """Emits a fact. Suppressed before the snapshot, which contains everything."""
        if self._snapshot_sent and self._sink is not None:
            self._sink(fact)

    def _report_result(self, intent: int, member: str, outcome: Outcome, detail: str = "") -> None:
        if self._sink is not None:
            self._sink(IntentResult(intent, member, outcome, detail))

    def _report_status(self, member: str, phase: Phase, agent: AgentConnection | None = None) -> None:
        self._emit(MemberStatus(member, phase, time.time(), agent.node if agent else ""))

    def _emit_snapshot(self, disconnected: Mapping[AgentConnection, Sequence[wire.TaskReport]]) -> None:
        """Emits the snapshot. For an agent that has not connected it uses the files: absence would mean
        gone."""
        statuses = []
        for agent in self._agents:
            reports = agent.members.values() if agent.synced.is_set() else disconnected.get(agent, ())
            for report in reports:
                self._agent_of_member[report.member] = agent
                lost = not agent.up and report.stage is not TaskStage.ENDED
                statuses.append(_member_status(agent, report, lost=lost))
        self._snapshot_sent = True
        nodes = tuple(self._node(agent) for agent in self._agents)
        self._emit(Snapshot(nodes=nodes, statuses=tuple(statuses)))

    def _node(self, agent: AgentConnection) -> NodeSet:
        capacity = [Capacity("core", self._settings.cores_per_node)]
        if self._settings.gpus_per_node:
            capacity.append(Capacity("gpu", self._settings.gpus_per_node))
        if self._settings.memory_per_node_bytes:
            capacity.append(Capacity("memory", self._settings.memory_per_node_bytes, divisible=True))
        why = _LEAVES if self._is_leaving(agent) else "" if agent.up else agent.why
        return NodeSet(agent.node, tuple(capacity), up=not why, why=why)


def _member_status(agent: AgentConnection, report: wire.TaskReport, *, lost: bool = False) -> MemberStatus:
    phase = Phase.LOST if lost else _PHASES[report.stage]
    cause, message = end_cause_of(report.cause)
    return MemberStatus(
        report.member,
        phase,
        report.at,
        agent.node,
        report.status,
        cause,
        message,
        usage=tuple(report.usage.items()),
    )
