"""A service with canned responses, and a real server for it: uvicorn in a thread, on a Unix socket.

The tables are JSON documents, as a client receives them. The service converts them to response structs, so a
document that a real instance could not send fails the test that uses it.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from penstock.api.errors import CanNeverRun, UnknownJobId, UnknownNode, UnknownObject
from penstock.api.identity import Caller
from penstock.api.requests import (
    CancelRequest,
    DrainRequest,
    InputRequest,
    JobsQuery,
    QueueAction,
    QueueRequest,
    ShutdownRequest,
    SignalRequest,
    SubmitRequest,
    TimelineQuery,
    UndrainRequest,
    UrgencyRequest,
)
from penstock.api.responses import (
    CancelResult,
    EmptyResponse,
    EventLog,
    EventLogEntry,
    InputResult,
    InstanceEvent,
    InstanceStatus,
    JobDetail,
    JobList,
    JobSummary,
    NodeList,
    OutputChunk,
    OutputItem,
    QueueList,
    SubmitResult,
    Timeline,
    UrgencyResult,
    WaitExplanation,
)
from penstock.errors import Conflict, Unavailable
from penstock.model.job import JobState, Result
from penstock.model.jobid import encode_jobid, parse_jobid
from penstock.web.app import create_app
from penstock.web.server import make_socket, serve

Doc: TypeAlias = dict[str, Any]
T = TypeVar("T")

NOW = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC


class UnknownQueue(UnknownObject):
    pass


def job(number: int, name: str, state: str, **changes: Any) -> Doc:
    """A JOB of the API; `number` is its id."""
    made: Doc = {
        "id": encode_jobid(number),
        "id_dec": str(number),
        "name": name,
        "owner": "alice",
        "queue": "",
        "state": state,
        "state_single": state[0],
        "status": state,
        "result": "",
        "urgency": 16,
        "priority": 16,
        "ntasks": 4,
        "ncores": 4,
        "nnodes": None,
        "ranks": "",
        "nodelist": "",
        "duration_s": 7200.0,
        "t_submit": NOW - 100,
        "t_depend": NOW - 100,
        "t_run": None,
        "t_start": None,
        "t_cleanup": None,
        "t_inactive": None,
        "expiration": None,
        "waitstatus": None,
        "returncode": None,
        "exception": {"occurred": False, "type": "", "severity": None, "note": ""},
        "dependencies": [],
        "begin_at": None,
        "requeue": "never",
        "attempt": 1,
        "forecast": {"start_at": None, "kind": "none", "made_at": NOW},
        "promise": {"first": None, "last": None},
        "reason": "",
        "reason_kind": "",
        "jobs_ahead": None,
        "incomplete_reason": "",
        "namespace": "",
    }
    return {**made, **changes}


RUNNING = job(
    16777216000, "hostname", "RUN", nnodes=2, ranks="0-1", nodelist="node[0-1]", t_run=NOW - 5.217,
    expiration=NOW + 7194.8,
)  # fmt: skip
WAITING = job(
    1006632960000, "sim-longname", "SCHED", ntasks=8, ncores=8,
    forecast={"start_at": NOW + 795, "kind": "reservation", "made_at": NOW - 1},
    promise={"first": NOW + 700, "last": NOW + 795},
    reason="waits for 8 cores: ƒSZYcoq holds node[0-1] until 22:26:35", reason_kind="resources", jobs_ahead=1,
)  # fmt: skip
HELD = job(
    1006632960001, "held", "SCHED", urgency=0, priority=0, reason="held by its owner", reason_kind="held"
)
DEPENDING = job(
    1006632960002, "after", "DEPEND", dependencies=["after-success=ƒSZYcoq", f"begin-time={NOW + 3600:.3f}"],
    reason="waits for ƒSZYcoq to succeed", reason_kind="depends",
)  # fmt: skip
DONE = job(
    1234, "done", "INACTIVE", result="COMPLETED", status="COMPLETED", t_run=NOW - 90, t_cleanup=NOW - 30,
    t_inactive=NOW - 30, waitstatus=0, returncode=0, nodelist="node2", nnodes=1,
)  # fmt: skip
FAILED = job(
    1235, "broken", "INACTIVE", result="FAILED", status="FAILED", t_run=NOW - 80, t_cleanup=NOW - 40,
    t_inactive=NOW - 40, waitstatus=3 << 8, returncode=3, nodelist="node3", nnodes=1,
)  # fmt: skip

EVENTS: list[Doc] = [
    {"timestamp": NOW + 0.073045, "name": "submit",
     "context": {"userid": 1000, "urgency": 16, "flags": 0, "version": 1}},
    {"timestamp": NOW + 0.08631, "name": "validate"},
    {"timestamp": NOW + 5.33, "name": "release", "context": {"ranks": "all", "final": True}},
    {"timestamp": NOW + 65.5, "name": "clean", "context": {}},
]  # fmt: skip

WHY: Doc = {
    "id": WAITING["id"], "state": "SCHED", "kind": "resources", "sentence": WAITING["reason"],
    "clause": "needs 8 free cores, 4 are free",
    "steps": [{"name": "node", "passed": 4, "needed": 1}, {"name": "core", "passed": 4, "needed": 8}],
    "blockers": [{"who": "ƒSZYcoq hostname on node0", "job": "ƒSZYcoq", "until": NOW + 795,
                  "overrun": False, "name": ""},
                 {"who": "ƒNJ", "job": "ƒNJ", "until": NOW + 100, "overrun": True, "name": "late"}],
    "jobs_ahead": 1, "ahead": ["ƒSZYcoq"], "forecast": WAITING["forecast"],
    "suggestion": "with 4 cores it would start at once",
}  # fmt: skip


def node(rank: int, **changes: Any) -> Doc:
    made: Doc = {
        "name": f"node{rank}", "rank": rank, "state": "free", "up": True, "drained": False,
        "drain_reason": "", "drained_at": None, "why": "", "closed": "", "closed_why": "",
        "cores": 8, "gpus": 2, "memory_bytes": None, "cores_free": 8, "gpus_free": 2,
        "memory_free_bytes": None, "cores_external": 0, "gpus_external": 0, "memory_external_bytes": None,
        "properties": [], "jobs": [],
    }  # fmt: skip
    return {**made, **changes}


NODES = [
    node(0, state="allocated", cores_free=6, jobs=["ƒSZYcoq"]),
    node(1, state="allocated", cores_free=6, jobs=["ƒSZYcoq"]),
    node(2),
    node(3, state="down", drained=True, drain_reason="bad DIMM", drained_at=NOW - 8200),
    node(4, state="down", up=False, why="the agent is away"),
]

QUEUES: list[Doc] = [
    {"name": "batch", "default": True, "enabled": True, "started": True, "reason_disabled": "",
     "reason_stopped": "", "policy": "easy", "duration_default_s": 1800.0, "duration_max_s": 86400.0,
     "constraint": "", "namespaces": ["*"], "urgency_max": 16, "pending_max": 9, "pending": 3, "running": 1},
    {"name": "debug", "default": False, "enabled": False, "started": False, "reason_disabled": "closed",
     "reason_stopped": "maintenance", "policy": "easy", "duration_default_s": 0, "duration_max_s": 3600.0,
     "constraint": "", "namespaces": ["*"], "urgency_max": 31, "pending_max": 9, "pending": 0, "running": 0},
]  # fmt: skip

TIMELINE: Doc = {
    "now": NOW, "from": NOW - 900, "to": NOW + 3600,
    "nodes": [
        {"name": "node0", "cores": 8, "spans": [
            {"job": "ƒNH", "name": "done", "from": NOW - 800, "to": NOW - 300, "kind": "ran", "cores": 8},
            {"job": "ƒSZYcoq", "name": "hostname", "from": NOW - 200, "to": NOW + 795, "kind": "running",
             "cores": 4},
            {"job": "ƒTSfi3Sf", "name": "sim-longname", "from": NOW + 795, "to": NOW + 2000,
             "kind": "reserved", "cores": 8},
        ]},
        {"name": "node1", "cores": 8, "spans": [
            {"job": "ƒSZYcoq", "name": "hostname", "from": NOW - 200, "to": NOW + 795, "kind": "running",
             "cores": 4},
            {"job": "ƒNJ", "name": "late", "from": NOW - 600, "to": None, "kind": "overrun", "cores": 4},
            {"job": "ƒTSfi3Sg", "name": "later", "from": NOW + 2000, "to": NOW + 3000, "kind": "forecast",
             "cores": 8},
        ]},
        {"name": "node2", "cores": 8, "spans": []},
    ],
    "starts": [],
}  # fmt: skip


def typed(document: object, response_type: type[T]) -> T:
    return msgspec.convert(document, response_type)


class Canned:
    """Responds from the tables above; `calls` keeps the calls and `callers` who made them."""

    def __init__(self) -> None:
        self.table = {
            parse_jobid(each["id"]): each for each in (WAITING, HELD, DEPENDING, RUNNING, DONE, FAILED)
        }
        self.nodes = NODES
        self.calls: list[tuple[Any, ...]] = []
        self.callers: list[Caller] = []
        self.scripts: dict[int, list[tuple[str, Doc]]] = {}  # what `output` yields
        self.closed = threading.Event()  # an endless stream was closed
        self.error: Exception | None = None
        self.endless = False
        self.pid = 0
        self.on_shutdown: Any = None

    def _find(self, number: int) -> Doc:
        if number not in self.table:
            raise UnknownJobId(number)
        return self.table[number]

    def status_document(self) -> Doc:
        return {
            "instance": {"id": "i", "pid": self.pid or 4242, "version": "0.2.0", "state": "/var/lib/penstock",
                         "started_at": NOW - 7200, "epoch": 3, "ready": True, "backend": "local"},
            "agents": [{"node": "node0", "rank": 0, "pid": 101, "state": "up", "why": "", "tasks": 2},
                       {"node": "node1", "rank": 1, "pid": 102, "state": "away", "why": "gone", "tasks": 2}],
            "database": {"pid": 99, "embedded": True, "state": "up", "server_version": "16.4",
                         "why": "", "address": ""},
            "jobs": {"pending": 3, "running": 1, "inactive": 2},
            "nodes": {"up": 4, "down": 1},
            "settings": {"policy": "easy", "match_policy": "first", "queue_depth": 32, "forecast_depth": 64,
                         "oversubscribed": False},
        }  # fmt: skip

    async def get_status(self, caller: Caller) -> InstanceStatus:
        self.callers.append(caller)
        if self.error:
            raise self.error
        return typed(self.status_document(), InstanceStatus)

    async def get_metrics(self, caller: Caller) -> bytes:
        del caller
        return b""

    async def submit_jobs(self, caller: Caller, request: SubmitRequest) -> SubmitResult:
        self.calls.append(("submit", request.jobs, request.key, caller.user))
        for index, each in enumerate(request.jobs):
            spec = json.loads(bytes(each.jobspec))
            system = spec["attributes"]["system"]
            if system.get("queue", "batch") not in ("batch", "debug"):
                raise UnknownQueue(f"jobs[{index}]: Invalid queue '{system['queue']}' specified")
            if spec["resources"][0]["count"] > 1000:
                raise CanNeverRun("asks 1001 nodes, there are 5", where=f"jobs[{index}].resources[0]")
        ids = [{"id": encode_jobid(5000 + index)} for index in range(len(request.jobs))]
        return typed({"jobs": ids}, SubmitResult)

    async def list_jobs(self, caller: Caller, query: JobsQuery) -> JobList:
        del caller
        self.calls.append(("jobs", query))
        found = []
        for number, each in self.table.items():
            state, result = JobState(each["state"]), Result(each["result"]) if each["result"] else None
            is_wanted = state in query.states or (state is JobState.INACTIVE and result in query.results)
            if query.ids is not None and number not in query.ids:
                continue
            is_named = query.name in ("", each["name"]) and query.owner in ("", each["owner"])
            if is_wanted and is_named and query.queue in ("", each["queue"]):
                found.append(each)
        return typed({"jobs": found[: query.limit]}, JobList)

    def detail(self) -> Doc:
        return {"jobspec": {"tasks": [{"command": ["app", "-x"]}]}, "R": None, "members": [],
                "output": [{"index": 0, "stdout": "/o/0.out", "stderr": "/o/0.err"}]}  # fmt: skip

    async def get_job(self, caller: Caller, job: int) -> JobDetail:
        del caller
        document = {**self._find(job), **self.detail()}
        return msgspec.json.decode(msgspec.json.encode(document), type=JobDetail)  # It contains raw JSON.

    async def get_eventlog(self, caller: Caller, job: int) -> EventLog:
        del caller
        self._find(job)
        return typed({"events": [{"context": {}, **event} for event in EVENTS]}, EventLog)

    async def follow_eventlog(self, caller: Caller, job: int) -> AsyncGenerator[EventLogEntry, None]:
        log = await self.get_eventlog(caller, job)
        return self._items(log.events)

    async def explain_wait(self, caller: Caller, job: int) -> WaitExplanation:
        del caller
        self._find(job)
        return typed(WHY, WaitExplanation)

    async def cancel_jobs(self, caller: Caller, request: CancelRequest) -> CancelResult:
        del caller
        selection = request.selection()
        self.calls.append(("cancel", selection, request.note))
        numbers = selection.ids
        if numbers is None:
            states = {state.value for state in selection.states}
            numbers = tuple(number for number, each in self.table.items() if each["state"] in states)
        known = [encode_jobid(number) for number in numbers if number in self.table]
        errors = [
            {"id": encode_jobid(n), "message": "unknown job id"} for n in numbers if n not in self.table
        ]
        return typed({"canceled": known, "errors": errors}, CancelResult)

    async def set_urgency(self, caller: Caller, job: int, request: UrgencyRequest) -> UrgencyResult:
        del caller
        if self._find(job)["state"] == "RUN":
            raise Conflict("urgency cannot be changed once resources are allocated")
        self.calls.append(("urgency", job, request.urgency))
        return UrgencyResult(16, request.urgency)

    async def signal_job(self, caller: Caller, job: int, request: SignalRequest) -> EmptyResponse:
        del caller
        self.calls.append(("signal", job, request.signal))
        return EmptyResponse()

    async def write_input(self, caller: Caller, job: int, request: InputRequest) -> InputResult:
        del caller
        self.calls.append(("input", job, request.offset, request.data, request.end))
        return InputResult(request.offset + len(request.data), request.end)

    async def wait_for_job(self, caller: Caller, job: int, timeout_s: float) -> JobSummary:
        del caller
        self.calls.append(("wait", job, timeout_s))
        return typed(self._find(job), JobSummary)

    async def stream_output(self, caller: Caller, job: int, follow: bool) -> AsyncGenerator[OutputItem, None]:
        del caller
        self.calls.append(("output", job, follow))
        if job not in self.scripts:
            self._find(job)
        return self._script(self.scripts.get(job, [("end", self.table.get(job, DONE))]))

    async def _script(self, script: list[tuple[str, Doc]]) -> AsyncGenerator[OutputItem, None]:
        for name, document in script:
            if name == "pause":
                await asyncio.sleep(document["s"])
            elif name == "break":
                raise Unavailable("the store is away")
            elif name == "output":
                yield typed(document, OutputChunk)
            elif name == "job":
                yield typed({"context": {}, **document}, EventLogEntry)
            else:
                yield typed(document, JobSummary)

    async def _items(self, items: list[T]) -> AsyncGenerator[T, None]:
        try:
            for item in items:
                yield item
            if self.endless:
                await asyncio.sleep(3600)
        finally:
            self.closed.set()

    async def stream_events(self, caller: Caller, since: int | None) -> AsyncGenerator[InstanceEvent, None]:
        del caller
        self.calls.append(("events", since))
        numbered = [
            {"seq": 7 + index, "id": "ƒNH", "state": "RUN", "context": {}, **event}
            for index, event in enumerate(EVENTS)
        ]
        return self._items(typed(numbered, list[InstanceEvent]))

    async def list_nodes(self, caller: Caller) -> NodeList:
        del caller
        return typed({"nodes": self.nodes}, NodeList)

    async def drain_nodes(self, caller: Caller, request: DrainRequest) -> NodeList:
        del caller
        if "nod3" in request.targets:
            raise UnknownNode("nod3", [each["name"] for each in NODES])
        self.calls.append(("drain", request.targets, request.reason, request.overwrite))
        return typed({"nodes": NODES[3:4]}, NodeList)

    async def undrain_nodes(self, caller: Caller, request: UndrainRequest) -> NodeList:
        del caller
        self.calls.append(("undrain", request.targets))
        return typed({"nodes": NODES[2:3]}, NodeList)

    async def list_queues(self, caller: Caller) -> QueueList:
        del caller
        return typed({"queues": QUEUES}, QueueList)

    async def change_queue(
        self, caller: Caller, queue: str, action: QueueAction, request: QueueRequest
    ) -> QueueList:
        del caller
        self.calls.append(("change_queue", queue, action.value, request.reason))
        changed = {
            QueueAction.ENABLE: {"enabled": True},
            QueueAction.DISABLE: {"enabled": False, "reason_disabled": request.reason},
            QueueAction.START: {"started": True},
            QueueAction.STOP: {"started": False, "reason_stopped": request.reason},
        }[action]
        queues = [{**each, **changed} for each in QUEUES if queue in ("-", each["name"])]
        return typed({"queues": queues}, QueueList)

    async def get_timeline(self, caller: Caller, query: TimelineQuery) -> Timeline:
        del caller
        self.calls.append(("timeline", query.since_s, query.until_s))
        return typed(TIMELINE, Timeline)

    async def shutdown(self, caller: Caller, request: ShutdownRequest) -> EmptyResponse:
        del caller
        self.calls.append(("shutdown", request.keep_tasks))
        if self.on_shutdown:
            asyncio.get_running_loop().call_later(0.05, self.on_shutdown)
        return EmptyResponse()


@contextmanager
def served(
    service: Canned, path: Path, *, tcp: socket.socket | None = None, token: str = ""
) -> Iterator[None]:
    """The API of `service` at `path` while the block runs."""
    listening = [make_socket(path)] + ([tcp] if tcp else [])
    loop = asyncio.new_event_loop()
    main = loop.create_task(serve(create_app(service, user="alice"), listening, token))
    service.on_shutdown = main.cancel

    def run() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(main)
        except asyncio.CancelledError:
            pass
        finally:
            loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        if thread.is_alive() and not main.cancelling():  # It may be stopping already.
            loop.call_soon_threadsafe(main.cancel)
        thread.join(10)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(10)
        self.sock.connect(str(self._path))


def ask(path: Path, method: str, target: str, body: object = None) -> tuple[int, Any]:
    """Status and document of one request; `body` is bytes, or a value that is sent as JSON."""
    connection = UnixConnection(path)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    try:
        with suppress(BrokenPipeError):  # a refusal may come before all is sent
            connection.request(method, target, data)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    finally:
        connection.close()
