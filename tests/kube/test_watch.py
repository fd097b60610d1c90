"""`reflect` against faulty servers: in the end, the receiver has the state of the server."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

import msgspec
import pytest

from penstock.errors import Unavailable
from penstock.kube.client import KubeClient
from penstock.kube.resources import PODS
from penstock.kube.types import KubeObject, Pod
from penstock.kube.watch import Deleted, Relisted, Upserted, WatchBackoff, WatchEvent, WatchState, reflect
from tests.kube.fake_api import FakeApi, make_object, status, write_fault
from tests.kube.raw_server import Request, ResponseWriter, eventually, quick_client, raw_server, running

QUICK = WatchBackoff(min_s=0.002, max_s=0.01, persistent_error_s=0.02)


class RecordedObjects:
    """A receiver that applies the events. It fails on an event whose version it has already received."""

    def __init__(self) -> None:
        self.pods: dict[str, str] = {}
        self.events: list[WatchEvent[Pod]] = []
        self.newest = 0
        self.state = WatchState()

    def receive(self, event: WatchEvent[Pod]) -> None:
        self.events.append(event)
        match event:
            case Relisted(items):
                self.pods = {pod.metadata.name: pod.metadata.resource_version for pod in items}
                assert len(self.pods) == len(items), "an object is in a list twice"
                return
            case Upserted(pod):
                self.pods[pod.metadata.name] = pod.metadata.resource_version
            case Deleted(pod):
                assert self.pods.pop(pod.metadata.name, None) is not None, "deleted, but never received"
        version = int(pod.metadata.resource_version)
        assert version > self.newest, "an event was delivered twice or out of order"
        self.newest = version

    def reflect(self, client: KubeClient, **settings: object) -> asyncio.Future[None]:
        given = {"stall_s": 5.0, "backoff": QUICK, "state": self.state, **settings}
        return asyncio.ensure_future(reflect(client, PODS, Pod, self.receive, **given))  # type: ignore[arg-type]

    def event_types(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


def current_versions(api: FakeApi) -> dict[str, str]:
    return {name: found["metadata"]["resourceVersion"] for name, found in api.objects.items()}


def faults_at(where: str, *faults: str) -> Callable[[str], str]:
    """Injects these faults, one after the other."""
    left = list(faults)

    def inject_fault(place: str) -> str:
        return left.pop(0) if place == where and left else ""

    return inject_fault


def test_lists_and_then_watches() -> None:
    async def scenario() -> None:
        api = FakeApi()
        for number in range(7):
            api.put(f"old-{number}")
        recorded = RecordedObjects()
        async with (
            raw_server(api) as server,
            quick_client(server.url) as client,
            running(recorded.reflect(client, page=3)),
        ):
            await eventually(lambda: recorded.state.is_synced)
            api.put("new")
            api.put("old-1")
            api.delete("old-2")
            await eventually(lambda: recorded.pods == current_versions(api))
        assert recorded.event_types() == ["Relisted", "Upserted", "Upserted", "Deleted"]
        assert api.lists == 3  # One per page.
        watch = next(request for request in server.requests if request.query.get("watch"))
        assert watch.query["resourceVersion"] == "107"
        assert watch.query["allowWatchBookmarks"] == "true"

    asyncio.run(scenario())


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


def test_bookmarks_advance_the_resource_version_and_keep_a_stream_alive() -> None:
    async def scenario() -> None:
        api = FakeApi()
        api.put("only")
        recorded = RecordedObjects()
        async with (
            raw_server(api) as server,
            quick_client(server.url) as client,
            running(recorded.reflect(client, stall_s=0.1)),
        ):
            await eventually(lambda: recorded.state.is_synced)
            api.version += 50  # Objects changed that this watch does not select.
            await eventually(lambda: recorded.state.resource_version == "151")
            received = recorded.state.last_received_at
            await eventually(lambda: (recorded.state.last_received_at or 0) > (received or 0) + 0.15)
        assert (api.watches, recorded.state.relists, recorded.event_types()) == (1, 1, ["Relisted"])

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


def test_a_resource_that_is_not_served_counts_as_empty() -> None:
    async def scenario() -> None:
        api = FakeApi()
        is_served = False

        async def handler(request: Request, response: ResponseWriter) -> None:
            if is_served:
                await api(request, response)
            else:
                response.send(404, b"404 page not found\n", {"Content-Type": "text/plain"})

        recorded = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(recorded.reflect(client)),
        ):
            await eventually(lambda: len(server.requests) >= 4)
            assert recorded.events == [Relisted(())]
            assert not recorded.state.is_synced
            assert "does not serve" in recorded.state.problem
            api.put("one")
            is_served = True
            await eventually(lambda: recorded.pods == current_versions(api))
            assert recorded.state.problem == ""
            is_served = False  # Its CRD was deleted: the stream ends, and the objects are gone.
            api.inject_fault = faults_at("line", "end")
            api.put("two")
            await eventually(lambda: recorded.pods == {})
        assert recorded.event_types() == ["Relisted", "Relisted", "Relisted"]

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


def test_a_missing_permission_is_logged_once_with_verb_and_resource(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        api = FakeApi()
        refused = True

        async def handler(request: Request, response: ResponseWriter) -> None:
            if refused:
                response.send(403, status(403, "Forbidden", "pods is forbidden: User cannot list"))
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
            await eventually(lambda: len(server.requests) >= 4)
            assert "not allowed to list pods" in recorded.state.problem
            refused = False
            await eventually(lambda: recorded.state.is_synced)

    with caplog.at_level(logging.WARNING, logger="penstock.kube.watch"):
        asyncio.run(scenario())
    assert len([record for record in caplog.records if "not allowed to list pods" in record.message]) == 1


def test_an_object_that_does_not_decode_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        api = FakeApi()
        api.put("odd-in-list", spec={"containers": "none"})
        api.put("good")
        recorded = RecordedObjects()
        async with (
            raw_server(api) as server,
            quick_client(server.url) as client,
            running(recorded.reflect(client)),
        ):
            await eventually(lambda: recorded.state.is_synced)
            assert set(recorded.pods) == {"good"}
            api.put("odd", status=["no", "status"])
            api.put("fine")
            await eventually(lambda: set(recorded.pods) == {"good", "fine"})
            api.put("good", spec={"containers": 7})
            api.delete("good")  # Its last state does not decode either; the deletion still counts.
            await eventually(lambda: set(recorded.pods) == {"fine"})
        assert (recorded.state.relists, api.watches, recorded.state.undecodable) == (1, 1, 3)

    asyncio.run(scenario())
    assert "default/odd-in-list" in caplog.text
    assert "default/odd " in caplog.text


def test_an_object_that_decodes_in_part_is_delivered() -> None:
    def decode_partial(raw: bytes) -> Pod | None:
        found = msgspec.json.decode(raw, type=KubeObject).metadata
        return Pod(metadata=found) if found.name.startswith("odd") else None

    async def scenario() -> None:
        api = FakeApi()
        api.put("odd-in-list", spec={"containers": "none"})
        api.put("lost", spec={"containers": "none"})
        api.put("good")
        recorded = RecordedObjects()
        async with (
            raw_server(api) as server,
            quick_client(server.url) as client,
            running(recorded.reflect(client, decode_partial=decode_partial)),
        ):
            await eventually(lambda: recorded.state.is_synced)
            assert set(recorded.pods) == {"odd-in-list", "good"}
            api.put("odd", status=["no", "status"])
            api.put("lost", status=["no", "status"])
            api.put("fine")
            await eventually(lambda: set(recorded.pods) == {"odd-in-list", "good", "odd", "fine"})
        assert (recorded.state.relists, api.watches) == (1, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [TimeoutError("of the receiver"), Unavailable("of the receiver")])
def test_an_exception_of_the_receiver_ends_reflect(error: Exception) -> None:
    async def scenario() -> None:
        api = FakeApi()

        def receive(_: WatchEvent[Pod]) -> None:
            raise error

        async with raw_server(api) as server, quick_client(server.url) as client:
            with pytest.raises(type(error), match="of the receiver"):
                await asyncio.wait_for(reflect(client, PODS, Pod, receive), 5.0)

    asyncio.run(scenario())


def test_events_with_another_order_of_keys_and_split_anywhere_are_decoded() -> None:
    async def scenario() -> None:
        whole = (
            b'{ "object": {"metadata":{"name":"a","resourceVersion":"6"}}, "type": "ADDED" }\n\n'
            b'{"type":"ADDED","object":{"metadata":{"name":"\xc3\xa4","resourceVersion":"7"}}}\r\n'
            b'{"type":"DELETED","object":{"metadata":{"name":"a","resourceVersion":"8"}}}\n'
        )

        async def handler(request: Request, response: ResponseWriter) -> None:
            if not request.query.get("watch"):
                response.send(200, {"metadata": {"resourceVersion": "5"}, "items": None})
                return
            response.begin()
            for index in range(len(whole)):
                response.chunk(whole[index : index + 1])
                await response.writer.drain()
                await asyncio.sleep(0)
            await response.hang()

        recorded = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(recorded.reflect(client)),
        ):
            await eventually(lambda: recorded.newest == 8)
        assert recorded.pods == {"ä": "7"}

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


def test_a_list_that_expires_twice_is_requested_without_pages() -> None:
    """A watch must not start from pages of two versions: it would miss the events between them."""

    async def scenario() -> None:
        api = FakeApi()
        for number in range(6):
            api.put(f"pod-{number}")

        async def handler(request: Request, response: ResponseWriter) -> None:
            if request.query.get("continue", "any").split("/")[0] != "any":
                api.put("pod-0")  # In a page that was already read.
                api.compact()
            await api(request, response)

        recorded = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(recorded.reflect(client, page=2)),
        ):
            await eventually(lambda: recorded.state.is_synced)
            assert recorded.pods == current_versions(api)
        assert [r.query.get("limit") for r in server.requests if not r.query.get("watch")][-1] is None

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
