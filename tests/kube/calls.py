"""Calls of a client, and servers with prepared responses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.kube.client import KubeClient
from penstock.kube.resources import PODS
from penstock.kube.types import Pod
from tests.kube.fake_api import make_object
from tests.kube.raw_server import Handler, Request, ResponseWriter, quick_client, raw_server

Call = Callable[[KubeClient], Awaitable[object]]

READ: Call = lambda client: client.get(PODS.path("default", "a"), Pod)  # noqa: E731
BIND: Call = lambda client: client.bind("default", "a", "uid-a", "node-1")  # noqa: E731
WRITES: dict[str, Call] = {
    "create": lambda client: client.create(PODS.path("default"), make_object("a"), Pod),
    "replace": lambda client: client.replace(PODS.path("default", "a"), make_object("a"), Pod),
    "patch": lambda client: client.patch(PODS.path("default", "a"), {}, type=Pod),
    "delete": lambda client: client.delete(PODS.path("default", "a")),
    "bind": BIND,
    "evict": lambda client: client.evict("default", "a", "uid-a"),
}


def call_server(handler: Handler, call: Call, **settings: object) -> tuple[object, list[Request]]:
    """Makes one call to a server; returns its result or error, and the requests that the server received."""

    async def scenario() -> tuple[object, list[Request]]:
        async with raw_server(handler) as server, quick_client(server.url, **settings) as client:
            try:
                return await call(client), server.requests
            except Exception as error:
                return error, server.requests

    return asyncio.run(scenario())


def responding(*responses: tuple[int, object, dict[str, str]]) -> Handler:
    """Sends these responses in order, and repeats the last one."""
    left = list(responses)

    async def handler(_: Request, response: ResponseWriter) -> None:
        response.send(*(left.pop(0) if len(left) > 1 else left[0]))

    return handler


POD = (200, make_object("a", 7, spec={"nodeName": "n"}), {})


DONE = (201, {"kind": "Status", "status": "Success"}, {})
