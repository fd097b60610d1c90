"""Paths, bodies and lists of the client, and how responses are decoded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from penstock.kube.client import KubeClient, ObjectReference, PatchType
from penstock.kube.errors import (
    BadResponse,
    OutcomeUnknown,
)
from penstock.kube.resources import JOBS, PODS
from penstock.kube.types import Pod
from tests.kube.calls import POD, READ, WRITES, call_server, responding
from tests.kube.fake_api import FakeApi
from tests.kube.raw_server import (
    Request,
    ResponseWriter,
    quick_client,
    raw_server,
)


def test_paths() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("ns", "a", "binding") == "/api/v1/namespaces/ns/pods/a/binding"
    assert JOBS.path("ns") == "/apis/batch/v1/namespaces/ns/jobs"
    assert PODS.path("ns", "a/../b") == "/api/v1/namespaces/ns/pods/a%2F..%2Fb"
    assert str(JOBS) == "jobs.batch"


def test_a_response_is_decoded_as_the_requested_type() -> None:
    pod, requests = call_server(responding(POD), READ)
    assert isinstance(pod, Pod)
    assert (pod.metadata.name, pod.spec.node_name) == ("a", "n")
    assert requests[0].headers["user-agent"] == "penstock"
    assert requests[0].headers["accept-encoding"] == "identity"


def test_a_response_that_is_not_json() -> None:
    error, requests = call_server(responding((200, b"<html>login</html>", {})), READ)
    assert isinstance(error, BadResponse)
    assert len(requests) == 1
    error, _ = call_server(responding((201, b"<html>login</html>", {})), WRITES["create"])
    assert isinstance(error, OutcomeUnknown)
    assert error.status == 200


def test_bodies_are_bounded_and_a_list_reduces_its_pages() -> None:
    async def scenario() -> None:
        api = FakeApi()
        for number in range(20):
            api.put(f"pod-{number:02}", padding="x" * 1_000)
        async with raw_server(api) as server, quick_client(server.url, body_max_bytes=5_000) as client:
            listed = await client.list(PODS.path(), Pod)
            assert len(listed.items) == 20
            assert server.requests[-1].query["limit"] == "1"
            with pytest.raises(BadResponse, match="larger than 5000 bytes"):
                await client.list(PODS.path(), Pod, page=0)

    asyncio.run(scenario())


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
def test_a_list_that_expires_midway_restarts_once_and_then_continues(expiries: int) -> None:
    async def scenario() -> None:
        api = FakeApi()
        for number in range(6):
            api.put(f"pod-{number}")
        left = expiries

        async def handler(request: Request, response: ResponseWriter) -> None:
            nonlocal left
            if left and request.query.get("continue", "any").split("/")[0] != "any":
                left -= 1
                api.put("pod-9")
                api.compact()
            await api(request, response)

        async with raw_server(handler) as server, quick_client(server.url) as client:
            listed = await client.list(PODS.path(), Pod, page=2)
        assert [pod.metadata.name for pod in listed.items] == sorted(api.objects)
        assert listed.consistent == (expiries == 1)
        assert listed.resource_version == str(api.version)
        starts = [request for request in server.requests if "continue" not in request.query]
        assert len(starts) == 2

    asyncio.run(scenario())


def test_bodies_and_parameters_of_requests() -> None:
    async def call(client: KubeClient) -> object:
        await client.bind("ns", "a", "uid-a", "node-1", {"k": "v"})
        await client.delete(PODS.path("ns", "a"), uid="uid-a", grace_s=0, propagation="Background")
        await client.patch(
            PODS.path("ns", "a", "status"), {"x": 1}, patch_type=PatchType.STRATEGIC, field_manager="me"
        )
        await client.patch(PODS.path("ns", "a"), [{"op": "test"}], patch_type=PatchType.JSON)
        return await client.evict("ns", "a", "uid-a", 5)

    error, requests = call_server(responding((201, {"kind": "Status", "status": "Success"}, {})), call)
    assert error is None
    bind, delete, patch, json_patch, evict = requests
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
def test_a_note_is_truncated_between_characters(note: str, bytes_expected: int) -> None:
    def call(client: KubeClient) -> Awaitable[object]:
        about = ObjectReference("v1", "Pod", "a" * 253, "ns", "uid-a")
        return client.post_event(about, reason="R" * 200, note=note, action="Binding", warning=True)

    error, requests = call_server(responding((201, {}, {})), call)
    assert error is None
    event = requests[0].json()
    sent = event["note"]
    assert isinstance(sent, str)
    assert len(sent.encode()) == bytes_expected
    assert sent == note or (sent.endswith("...") and note.startswith(sent[:-3]))
    assert len(str(event["reason"])) == 128
    metadata = event["metadata"]
    assert isinstance(metadata, dict)
    assert len(metadata["name"]) <= 253
    assert requests[0].path == "/apis/events.k8s.io/v1/namespaces/ns/events"
