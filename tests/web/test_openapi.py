"""Real instances answer what `openapi.json` says: every endpoint, and every status at least once."""

from __future__ import annotations

import asyncio
import http.client
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from jsonschema import ValidationError

from penstock.api.responses import DatabaseInfo
from penstock.api.service import InstanceService
from penstock.backends.sim.mock import MockBackend
from penstock.instance.loop import Instance
from penstock.protocol.facts import IntentResult, MemberStatus, Outcome, Phase
from penstock.protocol.intents import End, Intent, Place
from penstock.sched.settings import Settings
from penstock.store.memory import MemoryStore
from penstock.web.app import create_app
from penstock.web.bodies import BODY_BYTES_MAX
from penstock.web.errors import STATUS_BY_ERROR
from penstock.web.openapi import describe
from penstock.web.routes import ENDPOINTS
from penstock.web.server import listen_tcp, make_socket, serve
from tests.api.contexts import context
from tests.e2e.instances import running_instance
from tests.store.servers import wait_until
from tests.web.canned import ask
from tests.web.conformance import Checker

NODES, CORES = 4, 2
UNKNOWN = "f1"


class RunningBackend(MockBackend):
    """Imagined nodes on which tasks run until they are ended."""

    async def apply(self, epoch: int, intents: Sequence[Intent]) -> None:
        sink, now = self._sink, time.time()
        assert sink is not None
        for intent in intents:
            if isinstance(intent, Place):
                for assignment in intent.assignments:
                    sink(IntentResult(intent.intent, assignment.member, Outcome.APPLIED))
                    sink(MemberStatus(assignment.member, Phase.RUNNING, now, assignment.node))
            elif isinstance(intent, End) and intent.grace_s is not None:
                for member in intent.members:
                    sink(IntentResult(intent.intent, member, Outcome.APPLIED))
                    sink(MemberStatus(member, Phase.ENDED, now, status=15))
            else:
                await super().apply(epoch, [intent])


@dataclass
class Simulated:
    """A running API; its instance starts when `may_run` is set, and its status fails while `is_broken`."""

    socket: Path
    port: int
    may_run: threading.Event = field(default_factory=threading.Event)
    is_broken: bool = False

    def database(self) -> DatabaseInfo:
        if self.is_broken:
            raise ZeroDivisionError
        return DatabaseInfo(None, embedded=False, state="up")


@contextmanager
def simulated_instance(path: Path) -> Iterator[Simulated]:
    tcp = listen_tcp("127.0.0.1:0")
    sockets = [make_socket(path), tcp]
    simulated = Simulated(path, tcp.getsockname()[1])
    instance = Instance(Settings(), MemoryStore(), RunningBackend(NODES, CORES))
    service = InstanceService(
        instance, context(database=simulated.database, input_paths=lambda *_: (path.parent / "input", []))
    )

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(serve(create_app(service, user="alice"), sockets, "secret"))
            await asyncio.to_thread(simulated.may_run.wait)
            group.create_task(instance.run())

    loop = asyncio.new_event_loop()
    task = loop.create_task(main())

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield simulated
    finally:
        simulated.may_run.set()
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)


def jobspec(slots: int, *command: str) -> dict[str, Any]:
    slot = {"type": "slot", "count": slots, "label": "task", "with": [{"type": "core", "count": 1}]}
    system = {
        "duration": 3600,
        "cwd": "/",
        "environment": {"PATH": "/usr/bin:/bin"},
        "shell": {"options": {"input": {"stdin": {"type": "service"}}}},
    }
    return {
        "version": 1,
        "resources": [slot],
        "tasks": [{"command": list(command), "slot": "task", "count": {"per_slot": 1}}],
        "attributes": {"system": system},
    }


class Exercise:
    """Calls every endpoint of an idle instance except shutdown, on its Unix socket."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.checker = Checker(ask(socket, "GET", "/v1/openapi.json")[1])

    def get(self, target: str, events: int = 0) -> Any:
        return self.checker.ask(self.socket, "GET", target, events=events)

    def post(self, target: str, body: object) -> Any:
        return self.checker.ask(self.socket, "POST", target, body)

    def submit(self, slots: int, *command: str) -> str:
        (job,) = self.post("/v1/jobs", {"jobs": [{"jobspec": jobspec(slots, *command)}]})["jobs"]
        return quote(job["id"])

    def run(self) -> None:
        ended, running, waiting = self.prepare_jobs()
        for job in (ended, running, waiting):
            for rest in ("", "/eventlog", "/why", "/wait?timeout_s=0", "/output"):
                self.get(f"/v1/jobs/{job}{rest}")
        self.get(f"/v1/jobs/{ended}/eventlog?follow=1")
        self.get(f"/v1/jobs/{ended}/output?follow=1")
        self.get("/v1/events?since=0", events=3)
        self.get("/v1/jobs?states=active,inactive&results=failed")
        self.get("/v1/timeline?since_s=3600")
        for target in ("/v1/status", "/metrics", "/v1/resources", "/v1/queues", "/v1/openapi.json"):
            self.get(target)
        self.post(f"/v1/jobs/{waiting}/urgency", {"urgency": 20})
        self.post(f"/v1/jobs/{running}/input", {"offset": 0, "data": "YWJj", "end": True})
        self.post(f"/v1/jobs/{running}/signal", {"signal": 18})
        self.post("/v1/resources/drain", {"targets": "0-1", "reason": "test"})
        self.post("/v1/resources/undrain", {"targets": "node[0-1]"})
        for action in ("stop", "start", "disable", "enable"):
            self.post(f"/v1/queues/-/{action}", {"reason": "test"})
            self.get(f"/v1/jobs/{waiting}/why")
        self.fail(ended, running)
        self.post("/v1/jobs/cancel", {"all": True})

    def prepare_jobs(self) -> tuple[str, str, str]:
        """An inactive job, a running one that holds all cores, and one that waits for it."""
        ended = self.submit(1, "echo", "hello")
        wait_until(lambda: self.get(f"/v1/jobs/{ended}")["t_start"] is not None, 20.0)
        self.post("/v1/jobs/cancel", {"ids": [UNKNOWN, unquote(ended)]})
        wait_until(lambda: self.get(f"/v1/jobs/{ended}/wait")["state"] == "INACTIVE", 20.0)
        running = self.submit(NODES * CORES, "sleep", "3600")
        wait_until(lambda: self.get(f"/v1/jobs/{running}")["t_start"] is not None, 20.0)
        waiting = self.submit(1, "true")
        wait_until(lambda: self.get(f"/v1/jobs/{waiting}")["forecast"]["start_at"] is not None, 20.0)
        return ended, running, waiting

    def fail(self, ended: str, running: str) -> None:
        """Every error that a client can cause on this socket has the status that the reference gives."""
        unknown, too_large = f"/v1/jobs/{UNKNOWN}", jobspec(NODES * CORES + 1, "true")
        self.post("/v1/queues/-/disable", {"reason": "test"})
        self.post("/v1/resources/drain", {"targets": "node2", "reason": "test"})
        for rest in ("", "/eventlog", "/eventlog?follow=1", "/why", "/wait", "/output"):
            self.refused(404, "GET", f"{unknown}{rest}")
        for status, target, body in (
            (404, f"{unknown}/urgency", {"urgency": 3}),
            (404, f"{unknown}/signal", {"signal": 15}),
            (404, "/v1/resources/drain", {"targets": "nowhere"}),
            (404, "/v1/resources/drain", {"targets": str(NODES)}),
            (404, "/v1/resources/undrain", {"targets": str(NODES)}),
            (404, "/v1/queues/nothing/stop", {}),
            (400, "/v1/queues/-/stop", {"why": "unknown field"}),
            (400, f"/v1/jobs/{running}/urgency", {"urgency": 99}),
            (400, f"/v1/jobs/{running}/signal", {"signal": 999}),
            (400, "/v1/jobs", {"jobs": [{"jobspec": {}}]}),
            (409, f"/v1/jobs/{running}/urgency", {"urgency": 3}),
            (409, f"/v1/jobs/{ended}/urgency", {"urgency": 3}),
            (409, f"/v1/jobs/{ended}/signal", {"signal": 15}),
            (409, "/v1/resources/undrain", {"targets": "node1"}),
            (409, "/v1/resources/drain", {"targets": "node2", "reason": "another"}),
            (409, "/v1/jobs", {"jobs": [{"jobspec": jobspec(1, "true")}]}),
            (413, "/v1/jobs/cancel", b" " * (BODY_BYTES_MAX + 1)),
        ):
            self.refused(status, "POST", target, body)
        self.refused(400, "GET", "/v1/jobs?states=nothing")
        self.post("/v1/queues/-/enable", {})
        self.post("/v1/resources/undrain", {"targets": "node2"})
        self.refused(422, "POST", "/v1/jobs", {"jobs": [{"jobspec": too_large}]})

    def refused(self, status: int, method: str, target: str, body: object = None) -> None:
        reply = self.checker.reply(self.socket, method, target, body)
        assert reply.status == status, (method, target, body, reply)


SHUTDOWN = ("POST", "/v1/shutdown", "200", "application/json")


def test_a_simulated_instance_answers_as_described(tmp_path: Path) -> None:
    with simulated_instance(tmp_path / "s") as simulated:
        exercise = Exercise(simulated.socket)
        exercise.get("/v1/jobs")  # 503: not ready
        simulated.may_run.set()
        wait_until(lambda: exercise.get("/v1/status")["instance"]["ready"], 20.0)
        exercise.run()
        exercise.post("/v1/shutdown", {"keep_tasks": True})
        simulated.is_broken = True
        exercise.get("/v1/status")  # 500
        connection = http.client.HTTPConnection("127.0.0.1", simulated.port, timeout=10)
        connection.request("GET", "/v1/status")
        exercise.checker.check("GET", "/v1/status", connection.getresponse())  # 401
        connection.close()
    assert exercise.checker.unchecked_successes() == set()
    assert exercise.checker.unchecked_errors() == set()


def test_a_started_instance_answers_as_described() -> None:
    with running_instance() as running:
        exercise = Exercise(running.paths.socket)
        exercise.run()
        assert exercise.checker.unchecked_successes() == {SHUTDOWN}
        exercise.post("/v1/shutdown", {})
        wait_until(lambda: not running.paths.socket.exists(), 30.0)
    assert exercise.checker.unchecked_successes() == set()


def test_the_check_notices_an_undeclared_field_a_missing_one_and_an_undescribed_endpoint(
    tmp_path: Path,
) -> None:
    checker = Checker(describe(ENDPOINTS))
    reference = {"$ref": "#/components/schemas/QueueList"}
    with simulated_instance(tmp_path / "s") as simulated:
        simulated.may_run.set()
        wait_until(lambda: ask(simulated.socket, "GET", "/v1/queues")[0] == 200, 20.0)
        _, document = ask(simulated.socket, "GET", "/v1/queues")
    (queue,) = document["queues"]
    checker.validate(document, reference)
    with pytest.raises(ValidationError, match="undeclared"):
        checker.validate({"queues": [{**queue, "undeclared": 1}]}, reference)
    del queue["policy"]
    with pytest.raises(ValidationError, match="policy"):
        checker.validate({"queues": [queue]}, reference)
    with pytest.raises(AssertionError, match="not described"):
        checker._path("GET", "/v1/nothing")


def test_the_reference_lists_the_statuses_of_all_errors() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "http-api.md").read_text(encoding="utf-8")
    listed = {int(number) for number in re.findall(r"^\| (4\d\d|5\d\d) \|", text, re.MULTILINE)}
    assert listed == set(STATUS_BY_ERROR.values())


def test_no_described_object_admits_undeclared_fields() -> None:
    schemas = describe(ENDPOINTS)["components"]["schemas"]
    objects = {name: schema for name, schema in schemas.items() if schema.get("type") == "object"}
    assert len(objects) > 30
    assert [name for name, schema in objects.items() if schema["additionalProperties"] is not False] == []
