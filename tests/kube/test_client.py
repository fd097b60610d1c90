"""Requests and what becomes of them: above all, what a writer is told when the way to the server breaks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.errors import Conflict, Unavailable
from penstock.kube import transport
from penstock.kube.access import Access
from penstock.kube.client import KubeClient, ObjectReference, PatchType
from penstock.kube.credentials import ClientIdentity
from penstock.kube.errors import (
    AlreadyExists,
    ApiConflict,
    ApiError,
    BadResponse,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    OutcomeUnknown,
    ServerError,
    TooManyRequests,
    Unreachable,
    WriteFenced,
)
from penstock.kube.resources import JOBS, PODS
from penstock.kube.transport import RetryPolicy
from penstock.kube.types import Pod
from tests.kube.fake_api import FakeApi, status, thing
from tests.kube.raw_server import (
    QUICK,
    Answer,
    Handler,
    Request,
    eventually,
    quick_client,
    raw_server,
    running,
)

Call = Callable[[KubeClient], Awaitable[object]]

READ: Call = lambda client: client.get(PODS.path("default", "a"), Pod)  # noqa: E731
BIND: Call = lambda client: client.bind("default", "a", "uid-a", "node-1")  # noqa: E731
WRITES: dict[str, Call] = {
    "create": lambda client: client.create(PODS.path("default"), thing("a"), Pod),
    "replace": lambda client: client.replace(PODS.path("default", "a"), thing("a"), Pod),
    "patch": lambda client: client.patch(PODS.path("default", "a"), {}, type=Pod),
    "delete": lambda client: client.delete(PODS.path("default", "a")),
    "bind": BIND,
    "evict": lambda client: client.evict("default", "a", "uid-a"),
}


def ask(handler: Handler, call: Call, **settings: object) -> tuple[object, list[Request]]:
    """One call to a server; the answer, and what the server was asked."""

    async def scenario() -> tuple[object, list[Request]]:
        async with raw_server(handler) as server, quick_client(server.url, **settings) as client:
            try:
                return await call(client), server.requests
            except Exception as error:
                return error, server.requests

    return asyncio.run(scenario())


def answering(*answers: tuple[int, object, dict[str, str]]) -> Handler:
    """These, one after the other; the last again and again."""
    left = list(answers)

    async def handler(_: Request, answer: Answer) -> None:
        answer.send(*(left.pop(0) if len(left) > 1 else left[0]))

    return handler


POD = (200, thing("a", 7, spec={"nodeName": "n"}), {})


def test_paths() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("ns", "a", "binding") == "/api/v1/namespaces/ns/pods/a/binding"
    assert JOBS.path("ns") == "/apis/batch/v1/namespaces/ns/jobs"
    assert PODS.path("ns", "a/../b") == "/api/v1/namespaces/ns/pods/a%2F..%2Fb"
    assert str(JOBS) == "jobs.batch"


def test_what_is_read_is_of_the_type_that_was_asked_for() -> None:
    pod, asked = ask(answering(POD), READ)
    assert isinstance(pod, Pod)
    assert (pod.metadata.name, pod.spec.node_name) == ("a", "n")
    assert asked[0].headers["user-agent"] == "penstock"
    assert asked[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("code", "reason", "family"),
    [
        (404, "NotFound", NotFound),
        (409, "Conflict", ApiConflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (403, "Forbidden", Forbidden),
        (422, "Invalid", Invalid),
        (400, "BadRequest", ApiError),
    ],
)
def test_refusals_are_told_apart_and_not_repeated(code: int, reason: str, family: type[ApiError]) -> None:
    error, asked = ask(answering((code, status(code, reason, "because"), {})), BIND)
    assert type(error) is family
    assert (error.status, error.reason, error.message) == (code, reason, "because")
    assert "POST /api/v1/namespaces/default/pods/a/binding" in str(error)
    assert len(asked) == 1
    assert isinstance(error, Conflict) == (code == 409)


def test_a_refusal_in_plain_text_is_kept_as_it_is() -> None:
    error, _ = ask(answering((404, b"404 page not found\n", {})), READ)
    assert isinstance(error, NotFound)
    assert error.message == "404 page not found"


@pytest.mark.parametrize("call", [READ, BIND])
def test_too_many_is_waited_out_by_reads_and_writes(call: Call) -> None:
    busy = (429, b"Too many requests, please try again later.\n", {"Retry-After": "0"})
    done = POD if call is READ else (201, {"kind": "Status", "status": "Success"}, {})
    result, asked = ask(answering(busy, busy, done), call)
    assert not isinstance(result, Exception)
    assert len(asked) == 3


def test_retry_after_is_honoured_or_handed_on() -> None:
    loop_s: list[float] = []

    async def handler(_: Request, answer: Answer) -> None:
        loop_s.append(asyncio.get_running_loop().time())
        answer.send(*(POD if len(loop_s) > 1 else (429, b"busy", {"Retry-After": "1"})))

    ask(handler, READ)
    assert loop_s[1] - loop_s[0] >= 0.99
    error, asked = ask(answering((429, b"busy", {"Retry-After": "30"})), READ)
    assert isinstance(error, TooManyRequests)
    assert isinstance(error, Unavailable)
    assert (error.retry_after_s, len(asked)) == (30.0, 1)  # longer than a request may take in all


def test_a_spent_disruption_budget_is_told_at_once() -> None:
    causes = {"causes": [{"reason": "DisruptionBudget", "message": "needs 3 healthy"}]}
    refusal = status(429, "TooManyRequests", "Cannot evict pod", details=causes)
    error, asked = ask(answering((429, refusal, {})), WRITES["evict"])
    assert isinstance(error, TooManyRequests)
    assert error.is_budget
    assert len(asked) == 1
    assert asked[0].json()["deleteOptions"] == {"preconditions": {"uid": "uid-a"}}


@pytest.mark.parametrize("code", [500, 502, 503, 504])
def test_faults_of_the_server_are_waited_out_by_reads(code: int) -> None:
    result, asked = ask(answering((code, status(code), {}), POD), READ)
    assert isinstance(result, Pod)
    assert len(asked) == 2
    error, asked = ask(answering((code, b"<html>", {})), READ)
    assert isinstance(error, ServerError)
    assert len(asked) == QUICK.tries


@pytest.mark.parametrize("code", [500, 504])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_that_a_server_failed_at_may_have_been_done(write: str, code: int) -> None:
    error, asked = ask(answering((code, status(code, "Timeout", "request timed out"), {})), WRITES[write])
    assert isinstance(error, OutcomeUnknown)
    assert (error.status, error.reason, error.message) == (code, "Timeout", "request timed out")
    assert len(asked) == 1


@pytest.mark.parametrize("how", ["reset", "close", "never", "half an answer", "half a body"])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_whose_answer_is_lost_may_have_been_done(write: str, how: str) -> None:
    """On a connection that was used before, too, where the library would send PUT and DELETE twice."""
    served = 0

    async def handler(_: Request, answer: Answer) -> None:
        nonlocal served
        served += 1
        if served == 1:
            answer.send(*POD)
        elif how == "reset":
            answer.reset()
        elif how == "never":
            await answer.never()
        elif how == "half an answer":
            answer.writer.write(b"HTTP/1.1 200 OK\r\nContent-")
        elif how == "half a body":
            answer.writer.write(b"HTTP/1.1 201 OK\r\nContent-Length: 100\r\n\r\n{")

    async def call(client: KubeClient) -> object:
        await READ(client)
        return await WRITES[write](client)

    error, asked = ask(handler, call, timeout_s=0.05 if how == "never" else 5.0)
    assert type(error) is OutcomeUnknown
    assert error.status == 0
    assert len(asked) == 2, "it was sent twice"


@pytest.mark.parametrize("how", ["reset", "close", "never"])
def test_a_read_whose_answer_is_lost_is_asked_again(how: str) -> None:
    served = 0

    async def handler(_: Request, answer: Answer) -> None:
        nonlocal served
        served += 1
        if served > 1:
            answer.send(*POD)
        elif how == "reset":
            answer.reset()
        elif how == "never":
            await answer.never()

    result, asked = ask(handler, READ, timeout_s=0.05 if how == "never" else 5.0)
    assert isinstance(result, Pod)
    assert len(asked) == 2


@pytest.mark.parametrize("call", [READ, BIND])
def test_a_server_that_is_away_is_tried_again_and_then_unreachable(call: Call) -> None:
    async def scenario() -> None:
        held = socket.socket()
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]  # bound, but nobody listens
        async with quick_client(f"http://127.0.0.1:{port}") as client:
            with pytest.raises(Unreachable, match=f"cannot connect to 127.0.0.1:{port}: Connection refused"):
                await call(client)
        patient = RetryPolicy(tries=200, first_s=0.01, pause_s_max=0.01)
        async with quick_client(f"http://127.0.0.1:{port}", retries=patient) as client:
            waiting = asyncio.ensure_future(call(client))
            await asyncio.sleep(0.03)
            held.close()

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readuntil(b"\r\n\r\n")
                Answer(writer).send(*POD)

            server = await asyncio.start_server(serve, "127.0.0.1", port, reuse_address=True)
            async with server:
                assert not isinstance(await waiting, Exception)

    asyncio.run(scenario())


def test_an_answer_that_is_none() -> None:
    error, asked = ask(answering((200, b"<html>login</html>", {})), READ)
    assert isinstance(error, BadResponse)
    assert len(asked) == 1
    error, _ = ask(answering((201, b"<html>login</html>", {})), WRITES["create"])
    assert isinstance(error, OutcomeUnknown)
    assert error.status == 200


def test_bodies_are_bounded_and_a_list_asks_for_less() -> None:
    async def scenario() -> None:
        api = FakeApi()
        for number in range(20):
            api.put(f"pod-{number:02}", padding="x" * 1_000)
        async with raw_server(api) as server, quick_client(server.url, body_max_bytes=5_000) as client:
            listed = await client.list(PODS.path(), Pod)
            assert len(listed.items) == 20
            assert server.requests[-1].query["limit"] == "1"
            with pytest.raises(BadResponse, match="longer than 5000 bytes"):
                await client.list(PODS.path(), Pod, page=0)

    asyncio.run(scenario())


@pytest.mark.parametrize("call", [READ, WRITES["create"]], ids=["read", "write"])
def test_an_answer_without_an_end_is_not_read_to_the_end(call: Call) -> None:
    async def handler(_: Request, answer: Answer) -> None:
        answer.begin()
        for _turn in range(200):
            answer.chunk(b" " * 1_000)
            await asyncio.sleep(0.001)
        await answer.never()

    error, asked = ask(handler, call, body_max_bytes=5_000)
    assert isinstance(error, BadResponse if call is READ else OutcomeUnknown)
    assert "longer than 5000 bytes" in str(error)
    assert len(asked) == 1


@pytest.mark.parametrize("call", [READ, BIND], ids=["read", "write"])
def test_nobody_is_sent_elsewhere_with_our_credential(call: Call) -> None:
    error, asked = ask(answering((307, b"", {"Location": "/elsewhere"})), call)
    assert isinstance(error, ApiError)
    assert error.status == 307
    assert len(asked) == 1


def test_lists_are_paged_and_consistent() -> None:
    async def scenario() -> None:
        api = FakeApi()
        for number in range(11):
            api.put(f"pod-{number:02}")
        async with raw_server(api) as server, quick_client(server.url) as client:
            listed = await client.list(
                PODS.path(), Pod, page=4, label_selector="a in (b, c)", field_selector="x=y"
            )
        assert [pod.metadata.name for pod in listed.items] == sorted(api.objects)
        assert (listed.resource_version, listed.consistent) == ("111", True)
        assert [request.query["labelSelector"] for request in server.requests] == ["a in (b, c)"] * 3
        assert server.requests[0].query["fieldSelector"] == "x=y"

    asyncio.run(scenario())


@pytest.mark.parametrize("expiries", [1, 2, 3])
def test_a_list_that_expires_midway_starts_over_once_and_then_goes_on(expiries: int) -> None:
    async def scenario() -> None:
        api = FakeApi()
        for number in range(6):
            api.put(f"pod-{number}")
        left = expiries

        async def handler(request: Request, answer: Answer) -> None:
            nonlocal left
            if left and request.query.get("continue", "any").split("/")[0] != "any":
                left -= 1
                api.put("pod-9")
                api.forget()
            await api(request, answer)

        async with raw_server(handler) as server, quick_client(server.url) as client:
            listed = await client.list(PODS.path(), Pod, page=2)
        assert [pod.metadata.name for pod in listed.items] == sorted(api.objects)
        assert listed.consistent == (expiries == 1)
        assert listed.resource_version == str(api.version)
        starts = [request for request in server.requests if "continue" not in request.query]
        assert len(starts) == 2

    asyncio.run(scenario())


def test_requests_in_flight_are_bounded_and_what_is_urgent_passes() -> None:
    async def scenario() -> None:
        here = most = 0
        gate = asyncio.Event()

        async def handler(request: Request, answer: Answer) -> None:
            nonlocal here, most
            if request.path == "/version":
                answer.send(200, {"gitVersion": "v1"})
                return
            here += 1
            most = max(most, here)
            await gate.wait()
            here -= 1
            answer.send(201, {"kind": "Status", "status": "Success"})

        async with raw_server(handler) as server, quick_client(server.url, in_flight_max=3) as client:
            calls = [
                asyncio.ensure_future(client.bind("default", str(number), "", "n")) for number in range(10)
            ]
            await eventually(lambda: here == 3)
            assert await client.get("/version", dict[str, str], urgent=True) == {"gitVersion": "v1"}
            gate.set()
            await asyncio.gather(*calls)
            assert most == 3
            assert server.connections <= 4, "connections are kept"

    asyncio.run(scenario())


def test_waiting_for_a_place_is_not_timed() -> None:
    async def scenario() -> None:
        async def handler(_: Request, answer: Answer) -> None:
            await asyncio.sleep(0.03)
            answer.send(201, {"kind": "Status", "status": "Success"})

        async with (
            raw_server(handler) as server,
            quick_client(server.url, in_flight_max=1, timeout_s=0.1) as client,
        ):
            await asyncio.gather(*(client.bind("d", str(number), "", "n") for number in range(8)))

    asyncio.run(scenario())


DONE = (201, {"kind": "Status", "status": "Success"}, {})


def test_a_write_that_is_tried_again_is_not_sent_once_we_may_not_write() -> None:
    busy = (429, b"Too many requests, please try again later.\n", {"Retry-After": "0"})
    answers = iter([True, True, False])
    error, asked = ask(answering(busy, busy, busy, DONE), BIND, may_write=lambda: next(answers))
    assert type(error) is WriteFenced
    assert len(asked) == 2


def test_a_write_that_waits_for_a_place_is_not_sent_once_we_may_not_write() -> None:
    async def scenario() -> None:
        is_in_office, gate = True, asyncio.Event()

        async def handler(_: Request, answer: Answer) -> None:
            await gate.wait()
            answer.send(*DONE)

        async with (
            raw_server(handler) as server,
            quick_client(server.url, in_flight_max=1, may_write=lambda: is_in_office) as client,
        ):
            first, second = (asyncio.ensure_future(BIND(client)) for _ in range(2))
            await eventually(lambda: len(server.requests) == 1)
            is_in_office = False
            gate.set()
            await first
            with pytest.raises(WriteFenced, match="may not write"):
                await second
            assert len(server.requests) == 1
            await asyncio.wait_for(client.get("/version", dict[str, str]), 5)  # Reads are always allowed.

    asyncio.run(scenario())


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_write_that_waits_for_a_credential_is_not_sent_once_we_may_not_write(is_refused: bool) -> None:
    """The first one, or another after the server has refused that."""

    async def scenario() -> None:
        is_in_office = True

        class Slow:
            asked = 0

            async def identity(self) -> ClientIdentity:
                nonlocal is_in_office
                self.asked += 1
                if self.asked == 1 + is_refused:
                    is_in_office = False
                return ClientIdentity(f"token-{self.asked}")

            def refused(self, _: ClientIdentity) -> bool:
                return True

        async with raw_server(answering((401, b"", {}), DONE)) as server:
            access = Access(server.url, credential=Slow())
            async with KubeClient(access, retries=QUICK, may_write=lambda: is_in_office) as client:
                with pytest.raises(WriteFenced):
                    await BIND(client)
            assert len(server.requests) == int(is_refused)

    asyncio.run(scenario())


def test_a_write_that_waits_for_a_connection_is_not_sent_once_we_may_not_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_in_office, make = True, transport._make_socket

    def late(address: Any) -> socket.socket:
        nonlocal is_in_office
        is_in_office = False
        return make(address)

    monkeypatch.setattr(transport, "_make_socket", late)
    error, asked = ask(answering(DONE), BIND, may_write=lambda: is_in_office)
    assert (type(error), asked) == (WriteFenced, [])


def test_writes_of_who_looks_again_by_itself_are_sent_once() -> None:
    busy = (429, b"busy", {"Retry-After": "0"})
    once = RetryPolicy(first_s=0.001, write_attempts=1)
    error, asked = ask(answering(busy, DONE), BIND, retries=once)
    assert (type(error), len(asked)) == (TooManyRequests, 1)
    pod, asked = ask(answering(busy, POD), READ, retries=once)
    assert (type(pod), len(asked)) == (Pod, 2)


def test_what_is_sent() -> None:
    async def call(client: KubeClient) -> object:
        await client.bind("ns", "a", "uid-a", "node-1", {"k": "v"})
        await client.delete(PODS.path("ns", "a"), uid="uid-a", grace_s=0, propagation="Background")
        await client.patch(
            PODS.path("ns", "a", "status"), {"x": 1}, patch_type=PatchType.STRATEGIC, field_manager="me"
        )
        await client.patch(PODS.path("ns", "a"), [{"op": "test"}], patch_type=PatchType.JSON)
        return await client.evict("ns", "a", "uid-a", 5)

    error, asked = ask(answering((201, {"kind": "Status", "status": "Success"}, {})), call)
    assert error is None
    bind, delete, patch, json_patch, evict = asked
    assert bind.json()["metadata"] == {
        "name": "a",
        "namespace": "ns",
        "uid": "uid-a",
        "annotations": {"k": "v"},
    }
    assert bind.json()["target"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1"}
    assert delete.json() == {
        "preconditions": {"uid": "uid-a"},
        "gracePeriodSeconds": 0,
        "propagationPolicy": "Background",
    }
    assert patch.headers["content-type"] == "application/strategic-merge-patch+json"
    assert patch.query == {"fieldManager": "me"}
    assert json_patch.headers["content-type"] == "application/json-patch+json"
    assert json_patch.body == b'[{"op":"test"}]'
    assert evict.path.endswith("/pods/a/eviction")
    assert evict.json()["deleteOptions"] == {"preconditions": {"uid": "uid-a"}, "gracePeriodSeconds": 5}


@pytest.mark.parametrize(
    ("note", "bytes_expected"),
    [("short", 5), ("x" * 1024, 1024), ("x" * 1025, 1024), ("ä" * 600, 1023), ("🚰" * 300, 1023)],
)
def test_a_note_is_cut_at_a_character(note: str, bytes_expected: int) -> None:
    def call(client: KubeClient) -> Awaitable[object]:
        about = ObjectReference("v1", "Pod", "a" * 253, "ns", "uid-a")
        return client.post_event(about, reason="R" * 200, note=note, action="Binding", warning=True)

    error, asked = ask(answering((201, {}, {})), call)
    assert error is None
    event = asked[0].json()
    sent = event["note"]
    assert isinstance(sent, str)
    assert len(sent.encode()) == bytes_expected
    assert sent == note or (sent.endswith("...") and note.startswith(sent[:-3]))
    assert len(str(event["reason"])) == 128
    metadata = event["metadata"]
    assert isinstance(metadata, dict)
    assert len(metadata["name"]) <= 253
    assert asked[0].path == "/apis/events.k8s.io/v1/namespaces/ns/events"


def test_discovery() -> None:
    served = {"resources": [{"name": "podgroups"}, {"name": "podgroups/status"}]}
    found, asked = ask(
        answering((200, served, {})), lambda client: client.discover("scheduling.x-k8s.io/v1alpha1")
    )
    assert found == {"podgroups", "podgroups/status"}
    assert asked[0].path == "/apis/scheduling.x-k8s.io/v1alpha1"
    found, _ = ask(answering((404, b"404 page not found", {})), lambda client: client.discover("no/v1"))
    assert found == frozenset()


def test_cancelling_leaves_a_place_for_others() -> None:
    async def scenario() -> None:
        async def handler(request: Request, answer: Answer) -> None:
            if request.verb == "POST":
                await answer.never()
            answer.send(*POD)

        async with raw_server(handler) as server, quick_client(server.url, in_flight_max=1) as client:
            async with running(BIND(client)):
                await eventually(lambda: len(server.requests) == 1)
            assert isinstance(await READ(client), Pod)

    asyncio.run(scenario())
