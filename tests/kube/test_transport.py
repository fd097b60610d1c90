"""Retries, limits and fencing of requests: which error a write raises when the connection fails."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from penstock.errors import Conflict, Unavailable
from penstock.kube import transport
from penstock.kube.access import Access
from penstock.kube.client import KubeClient
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
from penstock.kube.transport import RetryPolicy
from penstock.kube.types import Pod
from tests.kube.calls import BIND, DONE, POD, READ, WRITES, Call, call_server, responding
from tests.kube.fake_api import status
from tests.kube.raw_server import (
    QUICK,
    Request,
    ResponseWriter,
    eventually,
    quick_client,
    raw_server,
    running,
)


@pytest.mark.parametrize(
    ("code", "reason", "error_class"),
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
def test_an_error_status_has_its_class_and_is_not_retried(
    code: int, reason: str, error_class: type[ApiError]
) -> None:
    error, requests = call_server(responding((code, status(code, reason, "because"), {})), BIND)
    assert type(error) is error_class
    assert (error.status, error.reason, error.message) == (code, reason, "because")
    assert "POST /api/v1/namespaces/default/pods/a/binding" in str(error)
    assert len(requests) == 1
    assert isinstance(error, Conflict) == (code == 409)


def test_an_error_in_plain_text_is_kept_as_the_message() -> None:
    error, _ = call_server(responding((404, b"404 page not found\n", {})), READ)
    assert isinstance(error, NotFound)
    assert error.message == "404 page not found"


@pytest.mark.parametrize("call", [READ, BIND])
def test_reads_and_writes_are_retried_after_429(call: Call) -> None:
    busy = (429, b"Too many requests, please try again later.\n", {"Retry-After": "0"})
    done = POD if call is READ else (201, {"kind": "Status", "status": "Success"}, {})
    result, requests = call_server(responding(busy, busy, done), call)
    assert not isinstance(result, Exception)
    assert len(requests) == 3


def test_retry_after_is_respected_or_passed_to_the_caller() -> None:
    loop_s: list[float] = []

    async def handler(_: Request, response: ResponseWriter) -> None:
        loop_s.append(asyncio.get_running_loop().time())
        response.send(*(POD if len(loop_s) > 1 else (429, b"busy", {"Retry-After": "1"})))

    call_server(handler, READ)
    assert loop_s[1] - loop_s[0] >= 0.99
    error, requests = call_server(responding((429, b"busy", {"Retry-After": "30"})), READ)
    assert isinstance(error, TooManyRequests)
    assert isinstance(error, Unavailable)
    assert (error.retry_after_s, len(requests)) == (30.0, 1)  # Longer than the total time for retries.


def test_an_exhausted_disruption_budget_is_not_retried() -> None:
    causes = {"causes": [{"reason": "DisruptionBudget", "message": "needs 3 healthy"}]}
    refusal = status(429, "TooManyRequests", "Cannot evict pod", details=causes)
    error, requests = call_server(responding((429, refusal, {})), WRITES["evict"])
    assert isinstance(error, TooManyRequests)
    assert error.is_disruption_budget
    assert len(requests) == 1
    assert requests[0].json()["deleteOptions"] == {"preconditions": {"uid": "uid-a"}}


@pytest.mark.parametrize("code", [500, 502, 503, 504])
def test_reads_are_retried_after_server_errors(code: int) -> None:
    result, requests = call_server(responding((code, status(code), {}), POD), READ)
    assert isinstance(result, Pod)
    assert len(requests) == 2
    error, requests = call_server(responding((code, b"<html>", {})), READ)
    assert isinstance(error, ServerError)
    assert len(requests) == QUICK.attempts


@pytest.mark.parametrize("code", [500, 504])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_has_an_unknown_outcome_after_a_server_error(write: str, code: int) -> None:
    error, requests = call_server(
        responding((code, status(code, "Timeout", "request timed out"), {})), WRITES[write]
    )
    assert isinstance(error, OutcomeUnknown)
    assert (error.status, error.reason, error.message) == (code, "Timeout", "request timed out")
    assert len(requests) == 1


@pytest.mark.parametrize("how", ["reset", "close", "never", "half a header", "half a body"])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_has_an_unknown_outcome_if_its_response_is_lost(write: str, how: str) -> None:
    """Also on a reused connection, where aiohttp by itself would send PUT and DELETE twice."""
    served = 0

    async def handler(_: Request, response: ResponseWriter) -> None:
        nonlocal served
        served += 1
        if served == 1:
            response.send(*POD)
        elif how == "reset":
            response.reset()
        elif how == "never":
            await response.hang()
        elif how == "half a header":
            response.writer.write(b"HTTP/1.1 200 OK\r\nContent-")
        elif how == "half a body":
            response.writer.write(b"HTTP/1.1 201 OK\r\nContent-Length: 100\r\n\r\n{")

    async def call(client: KubeClient) -> object:
        await READ(client)
        return await WRITES[write](client)

    error, requests = call_server(handler, call, timeout_s=0.05 if how == "never" else 5.0)
    assert type(error) is OutcomeUnknown
    assert error.status == 0
    assert len(requests) == 2, "it was sent twice"


@pytest.mark.parametrize("how", ["reset", "close", "never"])
def test_a_read_is_retried_if_its_response_is_lost(how: str) -> None:
    served = 0

    async def handler(_: Request, response: ResponseWriter) -> None:
        nonlocal served
        served += 1
        if served > 1:
            response.send(*POD)
        elif how == "reset":
            response.reset()
        elif how == "never":
            await response.hang()

    result, requests = call_server(handler, READ, timeout_s=0.05 if how == "never" else 5.0)
    assert isinstance(result, Pod)
    assert len(requests) == 2


@pytest.mark.parametrize("call", [READ, BIND])
def test_a_refused_connection_is_retried_and_then_unreachable(call: Call) -> None:
    async def scenario() -> None:
        held = socket.socket()
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]  # Bound, but not listening.
        async with quick_client(f"http://127.0.0.1:{port}") as client:
            with pytest.raises(Unreachable, match=f"cannot connect to 127.0.0.1:{port}: Connection refused"):
                await call(client)
        patient = RetryPolicy(attempts=200, backoff_s_min=0.01, backoff_s_max=0.01)
        async with quick_client(f"http://127.0.0.1:{port}", retries=patient) as client:
            waiting = asyncio.ensure_future(call(client))
            await asyncio.sleep(0.03)
            held.close()

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readuntil(b"\r\n\r\n")
                ResponseWriter(writer).send(*POD)

            server = await asyncio.start_server(serve, "127.0.0.1", port, reuse_address=True)
            async with server:
                assert not isinstance(await waiting, Exception)

    asyncio.run(scenario())


@pytest.mark.parametrize("call", [READ, WRITES["create"]], ids=["read", "write"])
def test_a_response_without_an_end_is_not_read_to_the_end(call: Call) -> None:
    async def handler(_: Request, response: ResponseWriter) -> None:
        response.begin()
        for _ in range(200):
            response.chunk(b" " * 1_000)
            await asyncio.sleep(0.001)
        await response.hang()

    error, requests = call_server(handler, call, body_max_bytes=5_000)
    assert isinstance(error, BadResponse if call is READ else OutcomeUnknown)
    assert "larger than 5000 bytes" in str(error)
    assert len(requests) == 1


@pytest.mark.parametrize("call", [READ, BIND], ids=["read", "write"])
def test_redirects_are_not_followed(call: Call) -> None:
    error, requests = call_server(responding((307, b"", {"Location": "/elsewhere"})), call)
    assert isinstance(error, ApiError)
    assert error.status == 307
    assert len(requests) == 1


def test_requests_in_flight_are_bounded_except_urgent_ones() -> None:
    async def scenario() -> None:
        in_flight = peak = 0
        gate = asyncio.Event()

        async def handler(request: Request, response: ResponseWriter) -> None:
            nonlocal in_flight, peak
            if request.path == "/version":
                response.send(200, {"gitVersion": "v1"})
                return
            in_flight += 1
            peak = max(peak, in_flight)
            await gate.wait()
            in_flight -= 1
            response.send(201, {"kind": "Status", "status": "Success"})

        async with raw_server(handler) as server, quick_client(server.url, in_flight_max=3) as client:
            calls = [
                asyncio.ensure_future(client.bind("default", str(number), "", "n")) for number in range(10)
            ]
            await eventually(lambda: in_flight == 3)
            assert await client.get("/version", dict[str, str], urgent=True) == {"gitVersion": "v1"}
            gate.set()
            await asyncio.gather(*calls)
            assert peak == 3
            assert server.connections <= 4, "connections are reused"

    asyncio.run(scenario())


def test_waiting_for_the_in_flight_limit_has_no_timeout() -> None:
    async def scenario() -> None:
        async def handler(_: Request, response: ResponseWriter) -> None:
            await asyncio.sleep(0.03)
            response.send(201, {"kind": "Status", "status": "Success"})

        async with (
            raw_server(handler) as server,
            quick_client(server.url, in_flight_max=1, timeout_s=0.1) as client,
        ):
            await asyncio.gather(*(client.bind("d", str(number), "", "n") for number in range(8)))

    asyncio.run(scenario())


def test_a_retried_write_is_not_sent_after_leadership_ended() -> None:
    busy = (429, b"Too many requests, please try again later.\n", {"Retry-After": "0"})
    responses = iter([True, True, False])
    error, requests = call_server(responding(busy, busy, busy, DONE), BIND, may_write=lambda: next(responses))
    assert type(error) is WriteFenced
    assert len(requests) == 2


def test_a_write_that_waits_for_the_in_flight_limit_is_not_sent_after_leadership_ended() -> None:
    async def scenario() -> None:
        is_leader, gate = True, asyncio.Event()

        async def handler(_: Request, response: ResponseWriter) -> None:
            await gate.wait()
            response.send(*DONE)

        async with (
            raw_server(handler) as server,
            quick_client(server.url, in_flight_max=1, may_write=lambda: is_leader) as client,
        ):
            first, second = (asyncio.ensure_future(BIND(client)) for _ in range(2))
            await eventually(lambda: len(server.requests) == 1)
            is_leader = False
            gate.set()
            await first
            with pytest.raises(WriteFenced, match="no longer the leader"):
                await second
            assert len(server.requests) == 1

    asyncio.run(scenario())


def test_a_write_that_its_caller_withdraws_while_it_waits_is_not_sent() -> None:
    async def scenario() -> None:
        is_wanted, gate = True, asyncio.Event()

        async def handler(_: Request, response: ResponseWriter) -> None:
            await gate.wait()
            response.send(*DONE)

        async with raw_server(handler) as server, quick_client(server.url, in_flight_max=1) as client:
            first = asyncio.ensure_future(BIND(client))
            second = asyncio.ensure_future(client.bind("d", "b", "", "n", may_send=lambda: is_wanted))
            await eventually(lambda: len(server.requests) == 1)
            is_wanted = False
            gate.set()
            await first
            with pytest.raises(WriteFenced, match="withdrawn"):
                await second
            await client.bind("d", "c", "", "n", may_send=lambda: True)
            assert len(server.requests) == 2
            await asyncio.wait_for(client.get("/version", dict[str, str]), 5)  # Reads are always allowed.

    asyncio.run(scenario())


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_write_that_waits_for_a_credential_is_not_sent_after_leadership_ended(is_refused: bool) -> None:
    """For its first credential, or for another one after a 401."""

    async def scenario() -> None:
        is_leader = True

        class Slow:
            calls = 0

            async def identity(self) -> ClientIdentity:
                nonlocal is_leader
                self.calls += 1
                if self.calls == 1 + is_refused:
                    is_leader = False
                return ClientIdentity(f"token-{self.calls}")

            def invalidate(self, _: ClientIdentity) -> bool:
                return True

        async with raw_server(responding((401, b"", {}), DONE)) as server:
            access = Access(server.url, credential=Slow())
            async with KubeClient(access, retries=QUICK, may_write=lambda: is_leader) as client:
                with pytest.raises(WriteFenced):
                    await BIND(client)
            assert len(server.requests) == int(is_refused)

    asyncio.run(scenario())


def test_a_write_that_waits_for_a_connection_is_not_sent_after_leadership_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_leader, make = True, transport._make_socket

    def late(address: Any) -> socket.socket:
        nonlocal is_leader
        is_leader = False
        return make(address)

    monkeypatch.setattr(transport, "_make_socket", late)
    error, requests = call_server(responding(DONE), BIND, may_write=lambda: is_leader)
    assert (type(error), requests) == (WriteFenced, [])


def test_write_attempts_limits_writes_but_not_reads() -> None:
    busy = (429, b"busy", {"Retry-After": "0"})
    once = RetryPolicy(backoff_s_min=0.001, write_attempts=1)
    error, requests = call_server(responding(busy, DONE), BIND, retries=once)
    assert (type(error), len(requests)) == (TooManyRequests, 1)
    pod, requests = call_server(responding(busy, POD), READ, retries=once)
    assert (type(pod), len(requests)) == (Pod, 2)


def test_a_cancelled_request_frees_its_in_flight_slot() -> None:
    async def scenario() -> None:
        async def handler(request: Request, response: ResponseWriter) -> None:
            if request.verb == "POST":
                await response.hang()
            response.send(*POD)

        async with raw_server(handler) as server, quick_client(server.url, in_flight_max=1) as client:
            async with running(BIND(client)):
                await eventually(lambda: len(server.requests) == 1)
            assert isinstance(await READ(client), Pod)

    asyncio.run(scenario())
