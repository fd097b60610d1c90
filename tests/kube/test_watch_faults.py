"""`reflect` against faulty servers: in the end, the receiver has the state of the server."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock.kube.watch import Relisted, WatchBackoff
from tests.kube.fake_api import FakeApi, make_object, status, write_fault
from tests.kube.raw_server import Request, ResponseWriter, eventually, quick_client, raw_server, running
from tests.kube.recorder import RecordedObjects, current_versions, faults_at


@pytest.mark.parametrize(
    "fault", ["cut", "end in a line", "end", "garbled", "binary", "long", "stall", "expired", "error"]
)
def test_no_event_is_lost_or_doubled_after_a_fault_of_the_stream(fault: str) -> None:
    async def scenario() -> None:
        api = FakeApi(faults_at("line", "", fault, fault))
        api.put("first")
        recorded = RecordedObjects()
        async with (
            raw_server(api) as server,
            quick_client(server.url) as client,
            running(recorded.reflect(client, stall_s=0.15, line_max_bytes=50_000)),
        ):
            await eventually(lambda: recorded.state.is_synced)
            for number in range(5):
                api.put(f"pod-{number}")
            api.delete("first")
            await eventually(lambda: recorded.pods == current_versions(api))
        assert api.watches >= 2
        if fault in ("expired", "error"):
            assert recorded.state.relists == 2
        elif fault in ("cut", "end", "end in a line"):
            # The resourceVersion is dropped only after two streams without a valid line.
            assert recorded.state.relists <= 2

    asyncio.run(scenario())


@pytest.mark.parametrize("place", ["list", "watch"])
@pytest.mark.parametrize("fault", ["410", "429", "500", "garbage", "stall", "reset"])
def test_recovers_from_a_failed_list_or_watch(fault: str, place: str) -> None:
    async def scenario() -> None:
        api = FakeApi(faults_at(place, *[fault] * 2))
        api.put("first")
        recorded = RecordedObjects()
        async with (
            raw_server(api) as server,
            quick_client(server.url, timeout_s=0.1) as client,
            running(recorded.reflect(client, stall_s=0.1)),
        ):
            await eventually(lambda: recorded.state.is_synced)
            api.put("second")
            await eventually(lambda: recorded.pods == current_versions(api))

    asyncio.run(scenario())


def test_a_resource_version_from_the_future_is_dropped_after_silence() -> None:
    """A server restored from a backup sends nothing for versions that it has not reached."""

    async def scenario() -> None:
        versions = iter([900, 5, 5, 5])
        version = 0

        async def handler(request: Request, response: ResponseWriter) -> None:
            nonlocal version
            if not request.query.get("watch"):
                version = next(versions)
                response.send(200, {"metadata": {"resourceVersion": str(version)}, "items": []})
                return
            response.begin()
            if request.query["resourceVersion"] == "5":
                response.event("ADDED", make_object("here", 6))
            await response.hang()

        recorded = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(recorded.reflect(client, stall_s=0.05)),
        ):
            await eventually(lambda: recorded.pods == {"here": "6"})

    asyncio.run(scenario())


def test_a_server_that_expires_every_watch_is_not_overloaded() -> None:
    """List, 410, list, 410: the backoff grows although every list succeeds."""

    async def scenario() -> None:
        api = FakeApi(lambda place: "410" if place == "watch" else "")
        recorded = RecordedObjects()
        backoff = WatchBackoff(min_s=0.02, max_s=10.0, jitter=lambda: 1.0)
        async with (
            raw_server(api) as server,
            quick_client(server.url) as client,
            running(recorded.reflect(client, backoff=backoff)),
        ):
            await asyncio.sleep(0.25)  # 0.02 + 0.04 + 0.08 + 0.16 = 0.3
        assert 3 <= api.lists <= 4

    asyncio.run(scenario())


@pytest.mark.parametrize(("reset_after_s", "least"), [(0.02, 12), (10.0, 0)])
def test_a_stream_that_lasted_resets_the_backoff(reset_after_s: float, least: int) -> None:
    """A proxy that closes idle connections must not make the backoff grow."""

    async def scenario() -> None:
        async def handler(request: Request, response: ResponseWriter) -> None:
            if not request.query.get("watch"):
                response.send(200, {"metadata": {"resourceVersion": "5"}, "items": []})
                return
            response.begin()
            await asyncio.sleep(0.03)
            response.end()

        recorded = RecordedObjects()
        backoff = WatchBackoff(min_s=0.01, max_s=10.0, reset_after_s=reset_after_s)
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(recorded.reflect(client, backoff=backoff)),
        ):
            if least:
                await eventually(lambda: recorded.state.streams >= least)
            else:
                await asyncio.sleep(0.5)
                assert recorded.state.streams <= 6
        assert recorded.state.relists == 1

    asyncio.run(scenario())


def test_retry_after_is_respected() -> None:
    async def scenario() -> None:
        requests: list[float] = []

        async def handler(request: Request, response: ResponseWriter) -> None:
            if not request.query.get("watch"):
                response.send(200, {"metadata": {"resourceVersion": "5"}, "items": []})
                return
            requests.append(asyncio.get_running_loop().time())
            if len(requests) == 1:
                response.send(429, b"Too many requests\n", {"Retry-After": "1"})
                return
            response.begin()
            await response.hang()

        recorded = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(recorded.reflect(client)),
        ):
            await eventually(lambda: len(requests) == 2)
        assert requests[1] - requests[0] >= 0.99
        assert recorded.state.relists == 1

    asyncio.run(scenario())


def test_a_404_to_a_watch_does_not_delete_the_objects() -> None:
    """A server that is not ready yet responds so; only a 404 to a list means that there are no objects."""

    async def scenario() -> None:
        api = FakeApi()
        api.put("one")
        refusals = 1

        async def handler(request: Request, response: ResponseWriter) -> None:
            nonlocal refusals
            if request.query.get("watch") and refusals:
                refusals -= 1
                response.send(404, b"404 page not found\n", {"Content-Type": "text/plain"})
            else:
                await api(request, response)

        recorded = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(recorded.reflect(client)),
        ):
            await eventually(lambda: recorded.state.relists == 2 and api.watches == 1)
            api.put("two")
            await eventually(lambda: recorded.pods == current_versions(api))
        assert all(event != Relisted(()) for event in recorded.events)

    asyncio.run(scenario())


@pytest.mark.parametrize("code", [401, 403, 404])
def test_an_error_event_does_not_delete_the_objects(code: int) -> None:
    async def scenario() -> None:
        api = FakeApi()
        api.put("one")
        errors = 1

        async def handler(request: Request, response: ResponseWriter) -> None:
            nonlocal errors
            if request.query.get("watch") and errors:
                errors -= 1
                response.begin()
                response.event("ERROR", status(code, "Odd", "something"))
                response.end()
            else:
                await api(request, response)

        recorded = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(
                recorded.reflect(
                    client, backoff=WatchBackoff(min_s=0.002, max_s=0.01, persistent_error_s=60.0)
                )
            ),
        ):
            await eventually(
                lambda: recorded.state.relists == 2,
                "an ERROR event is retried without the long delay of a refused request",
            )
        assert all(event != Relisted(()) for event in recorded.events)

    asyncio.run(scenario())


@pytest.mark.parametrize("code", [400, 401])
def test_a_rejected_request_is_retried_only_after_a_long_delay(code: int) -> None:
    async def scenario() -> None:
        async def handler(_request: Request, response: ResponseWriter) -> None:
            response.send(code, status(code, "Refused", "no"))

        recorded = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(
                recorded.reflect(
                    client, backoff=WatchBackoff(min_s=0.001, max_s=0.002, persistent_error_s=60.0)
                )
            ),
        ):
            await eventually(lambda: recorded.state.problem != "")
            await asyncio.sleep(0.05)
            assert len(server.requests) == 1
        assert recorded.events == []

    asyncio.run(scenario())


def test_a_line_without_an_end_is_not_buffered() -> None:
    async def scenario() -> None:
        async def handler(request: Request, response: ResponseWriter) -> None:
            if not request.query.get("watch"):
                response.send(200, {"metadata": {"resourceVersion": "5"}, "items": []})
                return
            response.begin()
            while not response.writer.is_closing():
                response.chunk(b" " * 5_000)
                await response.writer.drain()
                await asyncio.sleep(0.001)

        recorded = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(recorded.reflect(client, line_max_bytes=50_000)),
        ):
            await eventually(lambda: recorded.state.streams >= 3)

    asyncio.run(scenario())


FAULTS = {
    "list": ["410", "429", "500", "garbage", "reset", "stall"],
    "watch": ["410", "429", "500", "garbage", "reset", "stall"],
    "line": ["cut", "end in a line", "end", "garbled", "binary", "long", "stall", "expired", "error"],
}


@pytest.mark.parametrize("seed", range(8))
def test_after_random_faults_the_receiver_has_the_state_of_the_server(seed: int) -> None:
    async def scenario() -> None:
        rng = random.Random(seed)
        stop_faults = False

        def inject_fault(place: str) -> str:
            return "" if stop_faults or rng.random() > 0.15 else rng.choice(FAULTS[place])

        api = FakeApi(inject_fault)
        recorded = RecordedObjects()
        async with (
            raw_server(api) as server,
            quick_client(server.url, timeout_s=0.05) as client,
            running(recorded.reflect(client, stall_s=0.06, page=5, line_max_bytes=50_000)) as task,
        ):
            for _ in range(200):
                name = f"pod-{rng.randrange(25)}"
                if name in api.objects and rng.random() < 0.4:
                    api.delete(name)
                else:
                    api.put(name)
                if rng.random() < 0.01:
                    api.compact()
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.random() * 0.01)
                assert not task.done()
            stop_faults = True
            await eventually(lambda: recorded.pods == current_versions(api))
            api.put("afterwards")
            await eventually(lambda: recorded.pods == current_versions(api))
        assert api.watches > 3

    asyncio.run(scenario())


def test_an_unknown_fault_is_an_error() -> None:
    """Guards the fault lists above: a misspelt fault would not be injected."""
    with pytest.raises(AssertionError):
        asyncio.run(write_fault("no such fault", b"", None))  # type: ignore[arg-type]
