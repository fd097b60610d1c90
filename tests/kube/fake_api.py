"""A small API server for one kind of object: versions, pages, history that is forgotten, watches, bookmarks.

It has the rules that a client depends on and no others. `mischief` is asked before every answer and every
line of a stream, and may name a fault to commit there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from tests.kube.raw_server import Answer, Request

Thing = dict[str, Any]


def thing(name: str, version: int = 0, **more: Any) -> Thing:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, **more}


def status(code: int, reason: str = "", message: str = "", **more: Any) -> Thing:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message, **more}


EXPIRED = status(410, "Expired", "too old resource version")


class FakeApi:
    def __init__(self, mischief: Callable[[str], str] = lambda _: "") -> None:
        self.version = 100
        self.objects: dict[str, Thing] = {}
        self.history: list[tuple[int, str, Thing]] = []
        self.forgotten = 0  # events up to this version are no longer there
        self.mischief = mischief
        self.news = asyncio.Event()
        self.bookmark_s = 0.02
        self.lists = 0
        self.watches = 0

    # What happens to the objects.

    def put(self, name: str, also: Thing | None = None, **more: Any) -> None:
        """`also`: what its metadata has besides."""
        self.version += 1
        kind = "MODIFIED" if name in self.objects else "ADDED"
        self.objects[name] = thing(name, self.version, **more)
        self.objects[name]["metadata"].update(also or {})
        self._tell(kind, self.objects[name])

    def drop(self, name: str) -> None:
        self.version += 1
        gone = self.objects.pop(name)
        gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
        self._tell("DELETED", gone)

    def forget(self) -> None:
        """Compaction: older positions are lost, and so are lists that are under way."""
        self.forgotten = self.version

    def _tell(self, kind: str, what: Thing) -> None:
        self.history.append((self.version, kind, what))
        self.news.set()
        self.news = asyncio.Event()

    # What a client sees of them.

    async def __call__(self, request: Request, answer: Answer) -> None:
        if request.verb == "GET" and request.query.get("watch"):
            self.watches += 1
            await self._watch(request, answer)
        elif request.verb == "GET":
            self.lists += 1
            await self._list(request, answer)
        else:
            answer.send(405, status(405))

    async def _list(self, request: Request, answer: Answer) -> None:
        if await commit(self.mischief("list"), answer):
            return
        after, version = "", self.version
        if token := request.query.get("continue"):
            at, after = token.split("/")
            if at == "any":
                version = self.version
            elif int(at) < self.forgotten:
                answer.send(410, {**EXPIRED, "metadata": {"continue": f"any/{after}"}})
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
        answer.send(200, {"metadata": metadata, "items": [items[name] for name in page]})

    def _at(self, version: int) -> dict[str, Thing]:
        if version == self.version:
            return self.objects
        found: dict[str, Thing] = {}
        for at, kind, what in self.history:
            if at <= version:
                name = what["metadata"]["name"]
                if kind == "DELETED":
                    found.pop(name, None)
                else:
                    found[name] = what
        return found

    async def _watch(self, request: Request, answer: Answer) -> None:
        if await commit(self.mischief("watch"), answer):
            return
        position = int(request.query["resourceVersion"])
        answer.begin()
        if position < self.forgotten:
            answer.event("ERROR", EXPIRED)
            answer.end()
            return
        index = 0
        while not answer.writer.is_closing():
            news = self.news
            while index < len(self.history):
                at, kind, what = self.history[index]
                index += 1
                if at <= position:
                    continue
                fault = self.mischief("line")
                line = json.dumps({"type": kind, "object": what}, separators=(",", ":")).encode() + b"\n"
                if await spoil(fault, line, answer):
                    return
                answer.chunk(line)
                position = at
            await answer.writer.drain()
            try:
                async with asyncio.timeout(self.bookmark_s):
                    await news.wait()
            except TimeoutError:
                position = self.version if index == len(self.history) else position
                answer.event("BOOKMARK", {"metadata": {"resourceVersion": str(position)}})


async def commit(fault: str, answer: Answer) -> bool:
    """Instead of an answer. True if something was done."""
    match fault:
        case "":
            return False
        case "410":
            answer.send(410, EXPIRED)
        case "429":
            answer.send(429, b"Too many requests, please try again later.\n", {"Retry-After": "0"})
        case "500":
            answer.send(500, status(500, "InternalError", "etcdserver: request timed out"))
        case "garbage":
            answer.send(200, b'{"metadata": {')
        case "stall":
            await answer.never()
        case "reset":
            answer.reset()
        case _:
            raise AssertionError(fault)
    return True


async def spoil(fault: str, line: bytes, answer: Answer) -> bool:
    """Instead of a line of a stream. True if the stream is over."""
    match fault:
        case "":
            return False
        case "cut":
            answer.chunk(line[: len(line) // 2])
            answer.reset()
        case "end in a line":
            answer.chunk(line[: len(line) // 2])
            answer.end()
        case "end":
            answer.end()
        case "garbled":
            answer.chunk(b'{"type":"ADDED","object":{"metadata":{"name":\n')
            await answer.never()
        case "binary":
            answer.chunk(b"\xff\xfe\x00\x01\n")
            await answer.never()
        case "long":
            answer.chunk(b'{"type":"ADDED","object":' + b" " * 70_000)
            await answer.never()
        case "stall":
            await answer.never()
        case "expired":
            answer.event("ERROR", EXPIRED)
            answer.end()
        case "error":
            answer.event("ERROR", status(500, "InternalError", "something"))
            answer.end()
        case _:
            raise AssertionError(fault)
    return True
