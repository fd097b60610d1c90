"""A client without a server: it returns prepared responses and records the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.kube.client import ObjectReference, PatchType
from penstock.kube.errors import NotFound, WriteFenced

__all__ = ["FakeClient"]

Response = object  # an exception is raised, anything callable is called, the rest is returned


class FakeClient:
    """`responses` by verb, used in order; after the last one every request succeeds."""

    def __init__(self, **responses: list[Response]) -> None:
        self.responses = responses
        self.requests: list[tuple[str, Any]] = []

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.requests]

    async def _respond(self, verb: str, what: Any, otherwise: Response = None) -> Any:
        self.requests.append((verb, what))
        await asyncio.sleep(0)  # Other tasks run, as during a real request.
        left = self.responses.get(verb)
        found = left.pop(0) if left else otherwise
        if isinstance(found, BaseException):
            raise found
        return found() if isinstance(found, Callable) else found  # type: ignore[arg-type]

    async def get(self, path: str, type: type[Any]) -> Any:  # noqa: A002, ARG002
        return await self._respond("get", path, NotFound(404))

    async def bind(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Any = None,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        for waited in self.responses.pop("before_bind", ()):  # what happens while the request waits
            assert isinstance(waited, Callable)  # type: ignore[arg-type]
            waited()
        if not may_send():
            raise WriteFenced("not sent")
        await self._respond("bind", (f"{namespace}/{name}", uid, node, annotations))

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        await self._respond("evict", (f"{namespace}/{name}", uid))

    async def delete(self, path: str, *, uid: str = "", grace_s: int | None = None) -> None:
        await self._respond("delete", (path, uid, grace_s))

    async def patch(self, path: str, body: Any, *, patch_type: PatchType) -> None:
        await self._respond("patch", (path, body, patch_type))

    async def post_event(self, regarding: ObjectReference, **more: Any) -> None:
        await self._respond("event", (regarding.name, more["reason"], more["note"]))
