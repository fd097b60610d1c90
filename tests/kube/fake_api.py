"""A fake API server for one resource: resourceVersions, pages, compaction, watches and bookmarks.

It implements only the rules that a client depends on. `inject_fault` is called before every response and
every line of a watch, and may return the name of a fault to produce there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from tests.kube.raw_server import Request, ResponseWriter

Json = dict[str, Any]


def make_object(name: str, version: int = 0, **more: Any) -> Json:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, **more}


def status(code: int, reason: str = "", message: str = "", **more: Any) -> Json:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message, **more}


EXPIRED = status(410, "Expired", "too old resource version")


class FakeApi:
    def __init__(self, inject_fault: Callable[[str], str] = lambda _: "") -> None:
        self.version = 100
        self.objects: dict[str, Json] = {}
        self.history: list[tuple[int, str, Json]] = []
        self.compacted = 0  # Events up to this version have been compacted.
        self.inject_fault = inject_fault
        self.changed = asyncio.Event()
        self.bookmark_s = 0.02
        self.lists = 0
        self.watches = 0

    # Changes of the objects

    def put(self, name: str, more_metadata: Json | None = None, **more: Any) -> None:
        """Creates or modifies an object; `more_metadata` is added to its metadata."""
        self.version += 1
        event_type = "MODIFIED" if name in self.objects else "ADDED"
        self.objects[name] = make_object(name, self.version, **more)
        self.objects[name]["metadata"].update(more_metadata or {})
        self._record_event(event_type, self.objects[name])

    def delete(self, name: str) -> None:
        self.version += 1
        last = self.objects.pop(name)
        last = {**last, "metadata": {**last["metadata"], "resourceVersion": str(self.version)}}
        self._record_event("DELETED", last)

    def compact(self) -> None:
        """Expires all older resourceVersions, and with them the lists in progress."""
        self.compacted = self.version

    def _record_event(self, event_type: str, body: Json) -> None:
        self.history.append((self.version, event_type, body))
        self.changed.set()
        self.changed = asyncio.Event()

    # Requests

    async def __call__(self, request: Request, response: ResponseWriter) -> None:
        if request.verb == "GET" and request.query.get("watch"):
            self.watches += 1
            await self._watch(request, response)
        elif request.verb == "GET":
            self.lists += 1
            await self._list(request, response)
        else:
            response.send(405, status(405))

    async def _list(self, request: Request, response: ResponseWriter) -> None:
        if await respond_with_fault(self.inject_fault("list"), response):
            return
        after, version = "", self.version
        if token := request.query.get("continue"):
            at, after = token.split("/")
            if at == "any":
                version = self.version
            elif int(at) < self.compacted:
                response.send(410, {**EXPIRED, "metadata": {"continue": f"any/{after}"}})
                return
            else:
                version = int(at)
        names = sorted(name for name in self._at(version) if name > after)
        limit = int(request.query.get("limit", "0")) or len(names)
        page, more = names[:limit], names[limit:]
        metadata = {"resourceVersion": str(version)}
        if more:
            metadata["continue"] = f"{version}/{page[-1]}"
        items = self._at(version)
        response.send(200, {"metadata": metadata, "items": [items[name] for name in page]})

    def _at(self, version: int) -> dict[str, Json]:
        if version == self.version:
            return self.objects
        objects: dict[str, Json] = {}
        for at, event_type, body in self.history:
            if at <= version:
                name = body["metadata"]["name"]
                if event_type == "DELETED":
                    objects.pop(name, None)
                else:
                    objects[name] = body
        return objects

    async def _watch(self, request: Request, response: ResponseWriter) -> None:
        if await respond_with_fault(self.inject_fault("watch"), response):
            return
        version = int(request.query["resourceVersion"])
        response.begin()
        if version < self.compacted:
            response.event("ERROR", EXPIRED)
            response.end()
            return
        index = 0
        while not response.writer.is_closing():
            changed = self.changed
            while index < len(self.history):
                at, event_type, body = self.history[index]
                index += 1
                if at <= version:
                    continue
                fault = self.inject_fault("line")
                line = (
                    json.dumps({"type": event_type, "object": body}, separators=(",", ":")).encode() + b"\n"
                )
                if await write_fault(fault, line, response):
                    return
                response.chunk(line)
                version = at
            await response.writer.drain()
            try:
                async with asyncio.timeout(self.bookmark_s):
                    await changed.wait()
            except TimeoutError:
                version = self.version if index == len(self.history) else version
                response.event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


async def respond_with_fault(fault: str, response: ResponseWriter) -> bool:
    """Produces a fault instead of a response. Returns whether it did."""
    match fault:
        case "":
            return False
        case "410":
            response.send(410, EXPIRED)
        case "429":
            response.send(429, b"Too many requests, please try again later.\n", {"Retry-After": "0"})
        case "500":
            response.send(500, status(500, "InternalError", "etcdserver: request timed out"))
        case "garbage":
            response.send(200, b'{"metadata": {')
        case "stall":
            await response.hang()
        case "reset":
            response.reset()
        case _:
            raise AssertionError(fault)
    return True


async def write_fault(fault: str, line: bytes, response: ResponseWriter) -> bool:
    """Produces a fault instead of a line of a watch. Returns whether the stream is over."""
    match fault:
        case "":
            return False
        case "cut":
            response.chunk(line[: len(line) // 2])
            response.reset()
        case "end in a line":
            response.chunk(line[: len(line) // 2])
            response.end()
        case "end":
            response.end()
        case "garbled":
            response.chunk(b'{"type":"ADDED","object":{"metadata":{"name":\n')
            await response.hang()
        case "binary":
            response.chunk(b"\xff\xfe\x00\x01\n")
            await response.hang()
        case "long":
            response.chunk(b'{"type":"ADDED","object":' + b" " * 70_000)
            await response.hang()
        case "stall":
            await response.hang()
        case "expired":
            response.event("ERROR", EXPIRED)
            response.end()
        case "error":
            response.event("ERROR", status(500, "InternalError", "something"))
            response.end()
        case _:
            raise AssertionError(fault)
    return True
