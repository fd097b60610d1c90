"""`reflect`: lists, events, bookmarks, and objects that do not decode."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from penstock.errors import Unavailable
from penstock.kube.resources import PODS
from penstock.kube.types import KubeObject, Pod
from penstock.kube.watch import Relisted, WatchBackoff, WatchEvent, reflect
from tests.kube.fake_api import FakeApi, status
from tests.kube.raw_server import Request, ResponseWriter, eventually, quick_client, raw_server, running
from tests.kube.recorder import RecordedObjects, current_versions, faults_at


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
