from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from penstock.api.requests import ACTIVE, JOBS_MAX, CancelSelection, JobSubmission
from penstock.errors import Corrupt, Unavailable
from penstock.model.job import JobState, Result
from penstock.protocol.facts import Requeue
from penstock.web.bodies import BODY_BYTES_MAX
from tests.web.canned import Canned, UnixConnection, ask, served

SPEC = {
    "version": 1,
    "resources": [{"count": 1}],
    "tasks": [{"command": ["a"]}],
    "attributes": {"system": {}},
}
ID = quote("ƒTSfi3Sf")


@pytest.fixture
def service() -> Canned:
    return Canned()


@pytest.fixture
def at(service: Canned, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "s"
    with served(service, path):
        yield path


def error(answer: tuple[int, Any]) -> tuple[int, str, str]:
    return answer[0], answer[1]["error"]["kind"], answer[1]["error"]["where"]


GETS = [
    ("/v1/status", "instance"),
    ("/v1/jobs", "jobs"),
    (f"/v1/jobs/{ID}", "jobspec"),
    (f"/v1/jobs/{ID}/eventlog", "events"),
    (f"/v1/jobs/{ID}/why", "sentence"),
    (f"/v1/jobs/{ID}/wait?timeout_s=0", "state"),
    ("/v1/resources", "nodes"),
    ("/v1/queues", "queues"),
    ("/v1/timeline?since_s=60&until_s=3600", "nodes"),
    ("/v1/openapi.json", "paths"),
]


@pytest.mark.parametrize(("target", "key"), GETS)
def test_every_query_returns_its_document(at: Path, target: str, key: str) -> None:
    status, answer = ask(at, "GET", target)
    assert status == 200
    assert key in answer


def test_every_change_is_passed_to_the_service_with_its_arguments(at: Path, service: Canned) -> None:
    assert ask(at, "POST", "/v1/jobs/cancel", {"ids": ["ƒNH", "0x1"], "note": "n"})[0] == 200
    assert ask(at, "POST", "/v1/jobs/cancel", {"all": True, "states": ["pending"]})[0] == 200
    assert ask(at, "POST", f"/v1/jobs/{ID}/urgency", {"urgency": 31})[1] == {"old": 16, "urgency": 31}
    assert ask(at, "POST", f"/v1/jobs/{ID}/signal", {"signal": 15}) == (200, {})
    assert ask(at, "POST", f"/v1/jobs/{ID}/input", {"offset": 2, "data": "AP8="})[1]["size"] == 4
    assert ask(at, "POST", "/v1/resources/drain", {"targets": "node3", "reason": "r"})[0] == 200
    assert ask(at, "POST", "/v1/resources/undrain", {"targets": "3"})[0] == 200
    assert len(ask(at, "POST", "/v1/queues/-/stop", {"reason": "r"})[1]["queues"]) == 2
    pending = frozenset([JobState.DEPEND, JobState.PRIORITY, JobState.SCHED])
    assert service.calls == [
        ("cancel", CancelSelection((1234, 1)), "n"),
        ("cancel", CancelSelection(None, pending), ""),
        ("urgency", 1006632960000, 31),
        ("signal", 1006632960000, 15),
        ("input", 1006632960000, 2, b"\x00\xff", False),
        ("drain", "node3", "r", False),
        ("undrain", "3"),
        ("change_queue", "-", "stop", "r"),
    ]


def test_jobspecs_are_passed_on_as_text_and_missing_fields_have_defaults(at: Path, service: Canned) -> None:
    body = {"jobs": [{"jobspec": SPEC}, {"jobspec": SPEC, "urgency": 0, "requeue": "always"}], "key": "k"}
    assert ask(at, "POST", "/v1/jobs", body)[0] == 201
    text = json.dumps(SPEC).encode()
    sent = [
        JobSubmission(msgspec.Raw(text), 16, Requeue.NEVER),
        JobSubmission(msgspec.Raw(text), 0, Requeue.ALWAYS),
    ]
    assert service.calls == [("submit", sent, "k", "alice")]


def test_query_parameters_become_a_jobs_query(at: Path, service: Canned) -> None:
    ask(at, "GET", "/v1/jobs?states=running&results=failed&queue=q&name=n&since=5.5&limit=3")
    ask(at, "GET", "/v1/jobs?ids=0x1,2")
    ask(at, "GET", "/v1/jobs")
    first, second, third = (call[1] for call in service.calls)
    assert first.states == {JobState.RUN, JobState.CLEANUP}
    assert first.results == {Result.FAILED}
    assert (first.queue, first.name, first.since, first.limit) == ("q", "n", 5.5, 3)
    assert second.ids == (1, 2)
    assert JobState.INACTIVE in second.states
    assert third.states == ACTIVE


REFUSED = [
    ("GET", "/v1/jobs?state=run", None, (400, "BadRequest", "query")),
    ("GET", "/v1/jobs?limit=1&limit=2", None, (400, "BadRequest", "query limit")),
    ("GET", "/v1/jobs?limit=x", None, (400, "BadRequest", "query limit")),
    ("GET", "/v1/jobs?since=inf", None, (400, "BadRequest", "query since")),
    ("GET", "/v1/jobs?states=runing", None, (400, "BadRequest", "query states")),
    ("GET", "/v1/status", b"{}", (400, "BadRequest", "body")),
    ("GET", "/v1/jobs/f0", None, (400, "BadJobId", "job id")),
    ("GET", "/v1/jobs/99", None, (404, "UnknownJobId", "")),
    ("GET", "/v1/jobs/99/eventlog?follow=1", None, (404, "UnknownJobId", "")),
    ("GET", "/v1/nothing", None, (404, "UnknownPath", "")),
    ("PUT", "/v1/jobs", None, (405, "WrongMethod", "/v1/jobs")),
    ("POST", "/v1/jobs/16777216000/urgency", {"urgency": 1}, (409, "Conflict", "")),
    ("POST", "/v1/jobs/1234/urgency", {"urgency": 32}, (400, "BadRequest", "urgency")),
    ("POST", "/v1/jobs/1234/urgency", {"urgencey": 3}, (400, "BadRequest", "body")),
    ("POST", "/v1/jobs/1234/urgency", {}, (400, "BadRequest", "body")),
    ("POST", "/v1/jobs/1234/urgency", b"{", (400, "BadRequest", "body")),
    ("POST", "/v1/jobs/1234/urgency", b"\xff", (400, "BadRequest", "body")),
    ("POST", "/v1/jobs/cancel", {}, (400, "BadRequest", "body")),
    ("POST", "/v1/jobs/cancel", {"ids": [], "all": True}, (400, "BadRequest", "body")),
    ("POST", "/v1/jobs", {"jobs": []}, (400, "BadRequest", "jobs")),
    ("POST", "/v1/jobs", {"jobs": [{"jobspec": 1}]}, (400, "BadRequest", "jobs[0].jobspec")),
    ("POST", "/v1/jobs", {"jobs": [{"jobspec": {}, "urgency": "x"}]}, (400, "BadRequest", "jobs[0].urgency")),
    ("POST", "/v1/jobs", {"jobs": [{"jobspec": {}, "requeue": "x"}]}, (400, "BadRequest", "jobs[0].requeue")),
    (
        "POST",
        "/v1/jobs",
        {"jobs": [{"jobspec": {**SPEC, "resources": [{"count": 1001}]}}]},
        (422, "CanNeverRun", "jobs[0].resources[0]"),
    ),
    ("POST", "/v1/jobs/cancel", b" " * (BODY_BYTES_MAX + 1), (413, "TooLarge", "body")),
    ("POST", "/v1/jobs", b'{"jobs":[' + b"{}," * JOBS_MAX + b"{}]}", (413, "TooLarge", "jobs")),
]


@pytest.mark.parametrize(("method", "target", "body", "expected"), REFUSED)
def test_an_error_has_a_status_a_kind_and_a_place(
    at: Path, method: str, target: str, body: object, expected: tuple[int, str, str]
) -> None:
    answer = ask(at, method, target, body)
    assert error(answer) == expected
    assert set(answer[1]["error"]) == {"kind", "summary", "where", "found", "expected", "message"}
    assert answer[1]["error"]["message"]


def test_an_unknown_parameter_is_rejected_with_the_known_ones(at: Path) -> None:
    _, answer = ask(at, "GET", "/v1/jobs?state=run")
    assert "states, results, queue" in answer["error"]["expected"]


def test_unavailable_is_503_and_a_defect_is_500_without_its_message(at: Path, service: Canned) -> None:
    service.error = Unavailable("the store is away")
    assert error(ask(at, "GET", "/v1/status")) == (503, "Unavailable", "")
    service.error = Corrupt("two owners")
    assert error(ask(at, "GET", "/v1/status"))[:2] == (500, "Corrupt")
    service.error = ZeroDivisionError("secret")
    status, answer = ask(at, "GET", "/v1/status")
    assert status == 500
    assert "secret" not in json.dumps(answer)


def test_a_long_list_is_sent_in_slices_and_complete(at: Path, service: Canned) -> None:
    one = service.table[1234]
    service.table = {number: {**one, "id_dec": str(number)} for number in range(2001)}
    status, answer = ask(at, "GET", "/v1/jobs?states=inactive&limit=2001")
    assert status == 200
    assert [each["id_dec"] for each in answer["jobs"]] == [str(number) for number in range(2001)]


def lines_of(at: Path, target: str, count: int) -> list[str]:
    connection = UnixConnection(at)
    connection.request("GET", target)
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = [answer.readline().decode().rstrip("\n") for _ in range(count)]
    connection.close()
    return found


def test_events_have_their_sequence_number_as_id(at: Path, service: Canned) -> None:
    found = lines_of(at, "/v1/events?since=6", 6)
    assert found[0].startswith(":")
    assert found[2] == "id: 7"
    assert json.loads(found[3].removeprefix("data: "))["name"] == "submit"
    assert service.calls == [("events", 6)]


def test_a_followed_eventlog_ends_after_the_last_event(at: Path) -> None:
    connection = UnixConnection(at)
    connection.request("GET", "/v1/jobs/1234/eventlog?follow=1")
    text = connection.getresponse().read().decode()
    assert text.count("event: job\n") == 4
    assert '"name":"clean"' in text.rstrip().splitlines()[-1]


def test_output_events_have_names_and_an_error_ends_the_stream(at: Path, service: Canned) -> None:
    service.scripts[1] = [("output", {"index": 0, "stream": "stdout", "data": "ä"}), ("break", {})]
    connection = UnixConnection(at)
    connection.request("GET", "/v1/jobs/1/output?follow=1")
    text = connection.getresponse().read().decode()
    assert 'event: output\ndata: {"index":0,"stream":"stdout","data":"ä"}\n\n' in text
    assert "the store is away" in text.split("event: error\ndata: ")[1]


def test_a_stream_is_closed_when_the_client_disconnects(at: Path, service: Canned) -> None:
    service.endless = True
    lines_of(at, "/v1/events", 4)
    assert service.closed.wait(5)


def test_openapi_and_the_routes_have_the_same_endpoints(at: Path) -> None:
    from penstock.web.app import create_app
    from penstock.web.routes import ENDPOINTS

    _, found = ask(at, "GET", "/v1/openapi.json")
    described = {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}
    routed = {
        (method, route.path)  # type: ignore[attr-defined]
        for route in create_app(Canned()).routes
        for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
    }
    assert described == routed == {(each.method, each.path) for each in ENDPOINTS}
    names = [each["operationId"] for methods in found["paths"].values() for each in methods.values()]
    assert len(names) == len(set(names))
    text = json.dumps(found)
    for name in {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}:
        assert name in found["components"]["schemas"]
