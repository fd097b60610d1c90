"""A service with canned answers, and a real server for it: uvicorn in a thread, on a Unix socket."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.api.errors import CanNeverRun, UnknownJobId, UnknownNode, UnknownObject
from penstock.errors import Conflict, Unavailable
from penstock.model.job import JobState, Result
from penstock.model.jobid import encode_jobid, parse_jobid
from penstock.web import CancelSelection, Doc, JobsQuery, Stream, Submission, create_app, make_socket, serve

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
    "blockers": [{"who": "ƒSZYcoq hostname", "job": "ƒSZYcoq", "until": NOW + 795, "node": "node0"}],
    "jobs_ahead": 1, "ahead": ["ƒSZYcoq"], "forecast": WAITING["forecast"],
    "suggestion": "with 4 cores it would start at once",
}  # fmt: skip


def node(rank: int, **changes: Any) -> Doc:
    made: Doc = {
        "name": f"node{rank}", "rank": rank, "state": "free", "up": True, "drained": False,
        "drain_reason": "", "drained_at": None, "why": "", "cores": 8, "gpus": 2, "cores_free": 8,
        "gpus_free": 2, "properties": [], "jobs": [],
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
     "constraint": None, "pending": 3, "running": 1},
    {"name": "debug", "default": False, "enabled": False, "started": False, "reason_disabled": "closed",
     "reason_stopped": "maintenance", "policy": "easy", "duration_default_s": 0, "duration_max_s": 3600.0,
     "constraint": None, "pending": 0, "running": 0},
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


class Canned:
    """Answers from the tables above; `calls` keeps what was asked."""

    def __init__(self) -> None:
        self.table = {
            parse_jobid(each["id"]): each for each in (WAITING, HELD, DEPENDING, RUNNING, DONE, FAILED)
        }
        self.calls: list[tuple[Any, ...]] = []
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

    async def status(self) -> Doc:
        if self.error:
            raise self.error
        return {
            "instance": {"id": "i", "pid": self.pid or 4242, "version": "0.2.0", "state": "/var/lib/penstock",
                         "started_at": NOW - 7200, "epoch": 3, "ready": True, "backend": "local"},
            "agents": [{"node": "node0", "rank": 0, "pid": 101, "state": "up", "tasks": 2},
                       {"node": "node1", "rank": 1, "pid": 102, "state": "away", "tasks": 2}],
            "database": {"pid": 99, "embedded": True, "state": "up", "server_version": "16.4"},
            "jobs": {"pending": 3, "running": 1, "inactive": 2},
            "nodes": {"up": 4, "down": 1},
            "settings": {"policy": "easy", "match_policy": "first", "queue_depth": 32, "forecast_depth": 64,
                         "oversubscribed": False},
        }  # fmt: skip

    async def metrics(self) -> bytes:
        return b""

    async def submit(self, jobs: list[Submission], key: str, owner: str) -> list[Doc]:
        self.calls.append(("submit", jobs, key, owner))
        names = []
        for index, each in enumerate(jobs):
            spec = json.loads(each.jobspec)
            system = spec["attributes"]["system"]
            if system.get("queue", "batch") not in ("batch", "debug"):
                raise UnknownQueue(f"jobs[{index}]: Invalid queue '{system['queue']}' specified")
            if spec["resources"][0]["count"] > 1000:
                raise CanNeverRun("asks 1001 nodes, there are 5", where=f"jobs[{index}].resources[0]")
            names.append(system.get("job", {}).get("name", spec["tasks"][0]["command"][0]))
        return [{"id": encode_jobid(5000 + index), "name": name} for index, name in enumerate(names)]

    async def jobs(self, query: JobsQuery) -> list[Doc]:
        self.calls.append(("jobs", query))
        found = []
        for number, each in self.table.items():
            result = Result(each["result"]) if each["result"] else None
            if query.ids is not None and number not in query.ids:
                continue
            if query.wants(JobState(each["state"]), result) and query.queue in ("", each["queue"]):
                found.append(each)
        return found[: query.limit]

    async def job(self, number: int) -> Doc:
        found = self._find(number)
        return {**found, "jobspec": {"tasks": [{"command": ["app", "-x"]}]}, "R": None, "members": [],
                "output": [{"index": 0, "stdout": "/o/0.out", "stderr": "/o/0.err"}]}  # fmt: skip

    async def eventlog(self, number: int) -> list[Doc]:
        self._find(number)
        return EVENTS

    async def follow_eventlog(self, number: int) -> Stream:
        self._find(number)
        return self._docs(EVENTS)

    async def why(self, number: int) -> Doc:
        self._find(number)
        return WHY

    async def cancel(self, selection: CancelSelection, note: str) -> Doc:
        self.calls.append(("cancel", selection, note))
        numbers = selection.ids
        if numbers is None:
            states = {state.value for state in selection.states}
            numbers = tuple(number for number, each in self.table.items() if each["state"] in states)
        known = [encode_jobid(number) for number in numbers if number in self.table]
        errors = [
            {"id": encode_jobid(n), "message": "unknown job id"} for n in numbers if n not in self.table
        ]
        return {"canceled": known, "errors": errors}

    async def urgency(self, number: int, urgency: int) -> Doc:
        if self._find(number)["state"] == "RUN":
            raise Conflict("urgency cannot be changed once resources are allocated")
        self.calls.append(("urgency", number, urgency))
        return {"old": 16, "urgency": urgency}

    async def signal(self, number: int, signum: int) -> None:
        self.calls.append(("signal", number, signum))

    async def wait(self, number: int, timeout_s: float) -> Doc:
        self.calls.append(("wait", number, timeout_s))
        return self._find(number)

    async def output(self, number: int, follow: bool) -> AsyncGenerator[tuple[str, Doc], None]:
        self.calls.append(("output", number, follow))
        if number not in self.scripts:
            self._find(number)
        return self._pairs(self.scripts.get(number, [("end", self.table.get(number, DONE))]))

    async def _pairs(self, script: list[tuple[str, Doc]]) -> AsyncGenerator[tuple[str, Doc], None]:
        for name, document in script:
            if name == "pause":
                await asyncio.sleep(document["s"])
            elif name == "break":
                raise Unavailable("the store is away")
            else:
                yield name, document

    async def _docs(self, documents: list[Doc]) -> Stream:
        try:
            for document in documents:
                yield document
            if self.endless:
                await asyncio.sleep(3600)
        finally:
            self.closed.set()

    async def events(self, since: int | None) -> Stream:
        self.calls.append(("events", since))
        numbered = [
            {"seq": 7 + index, "id": "ƒNH", "state": "RUN", **event} for index, event in enumerate(EVENTS)
        ]
        return self._docs(numbered)

    async def resources(self) -> list[Doc]:
        return NODES

    async def drain(self, targets: str, reason: str, overwrite: bool) -> list[Doc]:
        if "nod3" in targets:
            raise UnknownNode("nod3", [each["name"] for each in NODES])
        self.calls.append(("drain", targets, reason, overwrite))
        return NODES[3:4]

    async def undrain(self, targets: str) -> list[Doc]:
        self.calls.append(("undrain", targets))
        return NODES[2:3]

    async def queues(self) -> list[Doc]:
        return QUEUES

    async def change_queue(self, name: str, verb: str, reason: str) -> list[Doc]:
        self.calls.append(("change_queue", name, verb, reason))
        changed = {
            "enable": {"enabled": True},
            "disable": {"enabled": False, "reason_disabled": reason},
            "start": {"started": True},
            "stop": {"started": False, "reason_stopped": reason},
        }[verb]
        return [{**each, **changed} for each in QUEUES if name in ("-", each["name"])]

    async def timeline(self, since_s: float | None, until_s: float | None) -> Doc:
        self.calls.append(("timeline", since_s, until_s))
        return TIMELINE

    async def shutdown(self, keep_tasks: bool) -> None:
        self.calls.append(("shutdown", keep_tasks))
        if self.on_shutdown:
            asyncio.get_running_loop().call_later(0.05, self.on_shutdown)


@contextmanager
def served(
    service: Canned, path: Path, *, tcp: socket.socket | None = None, token: str = ""
) -> Iterator[None]:
    """The API of `service` at `path` while the block runs."""
    listening = [make_socket(path)] + ([tcp] if tcp else [])
    loop = asyncio.new_event_loop()
    main = loop.create_task(serve(create_app(service, owner="alice"), listening, token))
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
