"""Reflections against servers that misbehave: at the end, what was reflected is what is there."""

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
from tests.kube.fake_api import FakeApi, spoil, status, thing
from tests.kube.raw_server import Answer, Request, eventually, quick_client, raw_server, running

QUICK = WatchBackoff(first_s=0.002, pause_s_max=0.01, slow_s=0.02)


class RecordedObjects:
    """What a receiver makes of the changes. It refuses what cannot be: news of a version that it has seen."""

    def __init__(self) -> None:
        self.pods: dict[str, str] = {}
        self.changes: list[WatchEvent[Pod]] = []
        self.newest = 0
        self.state = WatchState()

    def on(self, change: WatchEvent[Pod]) -> None:
        self.changes.append(change)
        match change:
            case Relisted(items):
                self.pods = {pod.metadata.name: pod.metadata.resource_version for pod in items}
                assert len(self.pods) == len(items), "an object stands in a list twice"
                return
            case Upserted(pod):
                self.pods[pod.metadata.name] = pod.metadata.resource_version
            case Deleted(pod):
                assert self.pods.pop(pod.metadata.name, None) is not None, "deleted, but never seen"
        version = int(pod.metadata.resource_version)
        assert version > self.newest, "an event came twice, or too late"
        self.newest = version

    def reflect(self, client: KubeClient, **settings: object) -> asyncio.Future[None]:
        given = {"stall_s": 5.0, "pace": QUICK, "state": self.state, **settings}
        return asyncio.ensure_future(reflect(client, PODS, Pod, self.on, **given))  # type: ignore[arg-type]

    def kinds(self) -> list[str]:
        return [type(change).__name__ for change in self.changes]


def truth(api: FakeApi) -> dict[str, str]:
    return {name: found["metadata"]["resourceVersion"] for name, found in api.objects.items()}


def faults_at(where: str, *faults: str) -> Callable[[str], str]:
    """These, one after the other, then no more."""
    left = list(faults)

    def mischief(place: str) -> str:
        return left.pop(0) if place == where and left else ""

    return mischief


def test_lists_and_then_follows() -> None:
    async def scenario() -> None:
        api = FakeApi()
        for number in range(7):
            api.put(f"old-{number}")
        cache = RecordedObjects()
        async with (
            raw_server(api) as server,
            quick_client(server.url) as client,
            running(cache.reflect(client, page=3)),
        ):
            await eventually(lambda: cache.state.is_synced)
            api.put("new")
            api.put("old-1")
            api.drop("old-2")
            await eventually(lambda: cache.pods == truth(api))
        assert cache.kinds() == ["Relisted", "Upserted", "Upserted", "Deleted"]
        assert api.lists == 3  # pages
        watch = next(request for request in server.requests if request.query.get("watch"))
        assert watch.query["resourceVersion"] == "107"
        assert watch.query["allowWatchBookmarks"] == "true"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "fault", ["cut", "end in a line", "end", "garbled", "binary", "long", "stall", "expired", "error"]
)
def test_nothing_is_lost_or_doubled_when_a_stream_has(fault: str) -> None:
    async def scenario() -> None:
        api = FakeApi(faults_at("line", "", fault, fault))
        api.put("first")
        cache = RecordedObjects()
        async with (
            raw_server(api) as server,
            quick_client(server.url) as client,
            running(cache.reflect(client, stall_s=0.15, line_max_bytes=50_000)),
        ):
            await eventually(lambda: cache.state.is_synced)
            for number in range(5):
                api.put(f"pod-{number}")
            api.drop("first")
            await eventually(lambda: cache.pods == truth(api))
        assert api.watches >= 2
        if fault in ("expired", "error"):
            assert cache.state.relists == 2
        elif fault in ("cut", "end", "end in a line"):
            assert cache.state.relists <= 2  # a position is given up only after two streams without a word

    asyncio.run(scenario())


@pytest.mark.parametrize("place", ["list", "watch"])
@pytest.mark.parametrize("fault", ["410", "429", "500", "garbage", "stall", "reset"])
def test_recovers_from_answers_that_are(fault: str, place: str) -> None:
    async def scenario() -> None:
        api = FakeApi(faults_at(place, *[fault] * 2))
        api.put("first")
        cache = RecordedObjects()
        async with (
            raw_server(api) as server,
            quick_client(server.url, timeout_s=0.1) as client,
            running(cache.reflect(client, stall_s=0.1)),
        ):
            await eventually(lambda: cache.state.is_synced)
            api.put("second")
            await eventually(lambda: cache.pods == truth(api))

    asyncio.run(scenario())


def test_bookmarks_alone_move_the_position_and_keep_a_stream_alive() -> None:
    async def scenario() -> None:
        api = FakeApi()
        api.put("only")
        cache = RecordedObjects()
        async with (
            raw_server(api) as server,
            quick_client(server.url) as client,
            running(cache.reflect(client, stall_s=0.1)),
        ):
            await eventually(lambda: cache.state.is_synced)
            api.version += 50  # other objects changed, of which this watch sees nothing
            await eventually(lambda: cache.state.resource_version == "151")
            heard = cache.state.last_received_at
            await eventually(lambda: (cache.state.last_received_at or 0) > (heard or 0) + 0.15)
        assert (api.watches, cache.state.relists, cache.kinds()) == (1, 1, ["Relisted"])

    asyncio.run(scenario())


def test_a_position_from_the_future_is_given_up_after_silence() -> None:
    """A server that was restored from a backup is silent on versions that it has not reached."""

    async def scenario() -> None:
        versions = iter([900, 5, 5, 5])
        position = 0

        async def handler(request: Request, answer: Answer) -> None:
            nonlocal position
            if not request.query.get("watch"):
                position = next(versions)
                answer.send(200, {"metadata": {"resourceVersion": str(position)}, "items": []})
                return
            answer.begin()
            if request.query["resourceVersion"] == "5":
                answer.event("ADDED", thing("here", 6))
            await answer.never()

        cache = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(cache.reflect(client, stall_s=0.05)),
        ):
            await eventually(lambda: cache.pods == {"here": "6"})

    asyncio.run(scenario())


def test_a_server_that_forgets_at_once_is_not_hammered() -> None:
    """List, 410, list, 410: the pauses grow although every list succeeds."""

    async def scenario() -> None:
        api = FakeApi(lambda place: "410" if place == "watch" else "")
        cache = RecordedObjects()
        pace = WatchBackoff(first_s=0.02, pause_s_max=10.0, jitter=lambda: 1.0)
        async with (
            raw_server(api) as server,
            quick_client(server.url) as client,
            running(cache.reflect(client, pace=pace)),
        ):
            await asyncio.sleep(0.25)  # 0.02 + 0.04 + 0.08 + 0.16 = 0.3
        assert 3 <= api.lists <= 4

    asyncio.run(scenario())


@pytest.mark.parametrize(("steady_s", "least"), [(0.02, 12), (10.0, 0)])
def test_streams_that_lived_for_a_while_were_a_success(steady_s: float, least: int) -> None:
    """Something on the way closes what is silent: that must not make the pauses grow."""

    async def scenario() -> None:
        async def handler(request: Request, answer: Answer) -> None:
            if not request.query.get("watch"):
                answer.send(200, {"metadata": {"resourceVersion": "5"}, "items": []})
                return
            answer.begin()
            await asyncio.sleep(0.03)
            answer.end()

        cache = RecordedObjects()
        pace = WatchBackoff(first_s=0.01, pause_s_max=10.0, steady_s=steady_s)
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(cache.reflect(client, pace=pace)),
        ):
            if least:
                await eventually(lambda: cache.state.streams >= least)
            else:
                await asyncio.sleep(0.5)
                assert cache.state.streams <= 6
        assert cache.state.relists == 1

    asyncio.run(scenario())


def test_retry_after_is_waited_for() -> None:
    async def scenario() -> None:
        asked: list[float] = []

        async def handler(request: Request, answer: Answer) -> None:
            if not request.query.get("watch"):
                answer.send(200, {"metadata": {"resourceVersion": "5"}, "items": []})
                return
            asked.append(asyncio.get_running_loop().time())
            if len(asked) == 1:
                answer.send(429, b"Too many requests\n", {"Retry-After": "1"})
                return
            answer.begin()
            await answer.never()

        cache = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(cache.reflect(client)),
        ):
            await eventually(lambda: len(asked) == 2)
        assert asked[1] - asked[0] >= 0.99
        assert cache.state.relists == 1

    asyncio.run(scenario())


def test_what_is_not_served_is_empty_until_it_is() -> None:
    async def scenario() -> None:
        api = FakeApi()
        is_served = False

        async def handler(request: Request, answer: Answer) -> None:
            if is_served:
                await api(request, answer)
            else:
                answer.send(404, b"404 page not found\n", {"Content-Type": "text/plain"})

        cache = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(cache.reflect(client)),
        ):
            await eventually(lambda: len(server.requests) >= 4)
            assert cache.changes == [Relisted(())]
            assert not cache.state.is_synced
            assert "not served" in cache.state.problem
            api.put("one")
            is_served = True
            await eventually(lambda: cache.pods == truth(api))
            assert cache.state.problem == ""
            is_served = False  # its definition was deleted: the stream ends, and so do the objects
            api.mischief = faults_at("line", "end")
            api.put("two")
            await eventually(lambda: cache.pods == {})
        assert cache.kinds() == ["Relisted", "Relisted", "Relisted"]

    asyncio.run(scenario())


def test_a_watch_that_is_not_found_says_nothing_of_the_objects() -> None:
    """As of a server that is not ready yet: whether there are any is for a list to say."""

    async def scenario() -> None:
        api = FakeApi()
        api.put("one")
        refusals = 1

        async def handler(request: Request, answer: Answer) -> None:
            nonlocal refusals
            if request.query.get("watch") and refusals:
                refusals -= 1
                answer.send(404, b"404 page not found\n", {"Content-Type": "text/plain"})
            else:
                await api(request, answer)

        cache = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(cache.reflect(client)),
        ):
            await eventually(lambda: cache.state.relists == 2 and api.watches == 1)
            api.put("two")
            await eventually(lambda: cache.pods == truth(api))
        assert all(change != Relisted(()) for change in cache.changes)

    asyncio.run(scenario())


@pytest.mark.parametrize("code", [401, 403, 404])
def test_an_error_within_a_stream_says_nothing_of_the_objects(code: int) -> None:
    async def scenario() -> None:
        api = FakeApi()
        api.put("one")
        errors = 1

        async def handler(request: Request, answer: Answer) -> None:
            nonlocal errors
            if request.query.get("watch") and errors:
                errors -= 1
                answer.begin()
                answer.event("ERROR", status(code, "Odd", "something"))
                answer.end()
            else:
                await api(request, answer)

        cache = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(cache.reflect(client, pace=WatchBackoff(first_s=0.002, pause_s_max=0.01, slow_s=60.0))),
        ):
            await eventually(lambda: cache.state.relists == 2, "it is no refusal, so it is not waited out")
        assert all(change != Relisted(()) for change in cache.changes)

    asyncio.run(scenario())


@pytest.mark.parametrize("code", [400, 401])
def test_who_is_refused_does_not_ask_again_soon(code: int) -> None:
    async def scenario() -> None:
        async def handler(_request: Request, answer: Answer) -> None:
            answer.send(code, status(code, "Refused", "no"))

        cache = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(cache.reflect(client, pace=WatchBackoff(first_s=0.001, pause_s_max=0.002, slow_s=60.0))),
        ):
            await eventually(lambda: cache.state.problem != "")
            await asyncio.sleep(0.05)
            assert len(server.requests) == 1
        assert cache.changes == []

    asyncio.run(scenario())


def test_what_is_forbidden_is_said_with_verb_and_kind_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        api = FakeApi()
        refused = True

        async def handler(request: Request, answer: Answer) -> None:
            if refused:
                answer.send(403, status(403, "Forbidden", "pods is forbidden: User cannot list"))
            else:
                await api(request, answer)

        cache = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(cache.reflect(client, pace=WatchBackoff(first_s=0.002, pause_s_max=0.01, slow_s=60.0))),
        ):
            await eventually(lambda: len(server.requests) >= 4)
            assert "not allowed to list pods" in cache.state.problem
            refused = False
            await eventually(lambda: cache.state.is_synced)

    with caplog.at_level(logging.WARNING, logger="penstock.kube.watch"):
        asyncio.run(scenario())
    assert len([record for record in caplog.records if "not allowed to list pods" in record.message]) == 1


def test_an_object_that_cannot_be_read_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        api = FakeApi()
        api.put("odd-in-list", spec={"containers": "none"})
        api.put("good")
        cache = RecordedObjects()
        async with (
            raw_server(api) as server,
            quick_client(server.url) as client,
            running(cache.reflect(client)),
        ):
            await eventually(lambda: cache.state.is_synced)
            assert set(cache.pods) == {"good"}
            api.put("odd", status=["no", "status"])
            api.put("fine")
            await eventually(lambda: set(cache.pods) == {"good", "fine"})
            api.put("good", spec={"containers": 7})
            api.drop("good")  # its last state is odd as well, but gone is gone
            await eventually(lambda: set(cache.pods) == {"fine"})
        assert (cache.state.relists, api.watches, cache.state.skipped) == (1, 1, 3)

    asyncio.run(scenario())
    said = caplog.text
    assert "default/odd-in-list" in said
    assert "default/odd " in said


def test_what_can_be_salvaged_of_an_object_that_cannot_be_read_is_told() -> None:
    def decode_partial(raw: bytes) -> Pod | None:
        found = msgspec.json.decode(raw, type=KubeObject).metadata
        return Pod(metadata=found) if found.name.startswith("odd") else None

    async def scenario() -> None:
        api = FakeApi()
        api.put("odd-in-list", spec={"containers": "none"})
        api.put("lost", spec={"containers": "none"})
        api.put("good")
        cache = RecordedObjects()
        async with (
            raw_server(api) as server,
            quick_client(server.url) as client,
            running(cache.reflect(client, decode_partial=decode_partial)),
        ):
            await eventually(lambda: cache.state.is_synced)
            assert set(cache.pods) == {"odd-in-list", "good"}
            api.put("odd", status=["no", "status"])
            api.put("lost", status=["no", "status"])
            api.put("fine")
            await eventually(lambda: set(cache.pods) == {"odd-in-list", "good", "odd", "fine"})
        assert (cache.state.relists, api.watches) == (1, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [TimeoutError("of the receiver"), Unavailable("of the receiver")])
def test_what_the_receiver_raises_ends_it(error: Exception) -> None:
    async def scenario() -> None:
        api = FakeApi()

        def on(_: WatchEvent[Pod]) -> None:
            raise error

        async with raw_server(api) as server, quick_client(server.url) as client:
            with pytest.raises(type(error), match="of the receiver"):
                await asyncio.wait_for(reflect(client, PODS, Pod, on), 5.0)

    asyncio.run(scenario())


def test_events_in_another_order_of_keys_and_split_anywhere_are_read() -> None:
    async def scenario() -> None:
        whole = (
            b'{ "object": {"metadata":{"name":"a","resourceVersion":"6"}}, "type": "ADDED" }\n\n'
            b'{"type":"ADDED","object":{"metadata":{"name":"\xc3\xa4","resourceVersion":"7"}}}\r\n'
            b'{"type":"DELETED","object":{"metadata":{"name":"a","resourceVersion":"8"}}}\n'
        )

        async def handler(request: Request, answer: Answer) -> None:
            if not request.query.get("watch"):
                answer.send(200, {"metadata": {"resourceVersion": "5"}, "items": None})
                return
            answer.begin()
            for index in range(len(whole)):
                answer.chunk(whole[index : index + 1])
                await answer.writer.drain()
                await asyncio.sleep(0)
            await answer.never()

        cache = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(cache.reflect(client)),
        ):
            await eventually(lambda: cache.newest == 8)
        assert cache.pods == {"ä": "7"}

    asyncio.run(scenario())


def test_a_line_without_an_end_is_not_kept() -> None:
    async def scenario() -> None:
        async def handler(request: Request, answer: Answer) -> None:
            if not request.query.get("watch"):
                answer.send(200, {"metadata": {"resourceVersion": "5"}, "items": []})
                return
            answer.begin()
            while not answer.writer.is_closing():
                answer.chunk(b" " * 5_000)
                await answer.writer.drain()
                await asyncio.sleep(0.001)

        cache = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(cache.reflect(client, line_max_bytes=50_000)),
        ):
            await eventually(lambda: cache.state.streams >= 3)

    asyncio.run(scenario())


def test_a_list_that_expires_twice_is_made_in_one_piece() -> None:
    """Pages of two versions are no place to watch from: what changed between them would be missed."""

    async def scenario() -> None:
        api = FakeApi()
        for number in range(6):
            api.put(f"pod-{number}")

        async def handler(request: Request, answer: Answer) -> None:
            if request.query.get("continue", "any").split("/")[0] != "any":
                api.put("pod-0")  # in a page that was read already
                api.forget()
            await api(request, answer)

        cache = RecordedObjects()
        async with (
            raw_server(handler) as server,
            quick_client(server.url) as client,
            running(cache.reflect(client, page=2)),
        ):
            await eventually(lambda: cache.state.is_synced)
            assert cache.pods == truth(api)
        assert [r.query.get("limit") for r in server.requests if not r.query.get("watch")][-1] is None

    asyncio.run(scenario())


FAULTS = {
    "list": ["410", "429", "500", "garbage", "reset", "stall"],
    "watch": ["410", "429", "500", "garbage", "reset", "stall"],
    "line": ["cut", "end in a line", "end", "garbled", "binary", "long", "stall", "expired", "error"],
}


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_the_reflection_is_the_truth_in_the_end(seed: int) -> None:
    async def scenario() -> None:
        chance = random.Random(seed)
        is_calm = False

        def mischief(place: str) -> str:
            return "" if is_calm or chance.random() > 0.15 else chance.choice(FAULTS[place])

        api = FakeApi(mischief)
        cache = RecordedObjects()
        async with (
            raw_server(api) as server,
            quick_client(server.url, timeout_s=0.05) as client,
            running(cache.reflect(client, stall_s=0.06, page=5, line_max_bytes=50_000)) as task,
        ):
            for _ in range(200):
                name = f"pod-{chance.randrange(25)}"
                if name in api.objects and chance.random() < 0.4:
                    api.drop(name)
                else:
                    api.put(name)
                if chance.random() < 0.01:
                    api.forget()
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.random() * 0.01)
                assert not task.done()
            is_calm = True
            await eventually(lambda: cache.pods == truth(api))
            api.put("afterwards")
            await eventually(lambda: cache.pods == truth(api))
        assert api.watches > 3

    asyncio.run(scenario())


def test_spoiling_is_named() -> None:
    """Guards the fault lists above: a name that nobody knows would be no fault."""
    with pytest.raises(AssertionError):
        asyncio.run(spoil("no such fault", b"", None))  # type: ignore[arg-type]
