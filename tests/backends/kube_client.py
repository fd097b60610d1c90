"""A client without a server: it answers as it is told to, and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.kube.client import ObjectReference, PatchType
from penstock.kube.errors import NotFound

__all__ = ["FakeClient"]

Answer = object  # an exception is raised, anything callable is called, the rest is returned


class FakeClient:
    """`answers` by verb: taken one after the other, and then all is well."""

    def __init__(self, **answers: list[Answer]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.asked]

    async def _answer(self, verb: str, what: Any, otherwise: Answer = None) -> Any:
        self.asked.append((verb, what))
        await asyncio.sleep(0)  # Others go on meanwhile, as they do while a server is asked.
        left = self.answers.get(verb)
        found = left.pop(0) if left else otherwise
        if isinstance(found, BaseException):
            raise found
        return found() if isinstance(found, Callable) else found  # type: ignore[arg-type]

    async def get(self, path: str, type: type[Any]) -> Any:  # noqa: A002, ARG002
        return await self._answer("get", path, NotFound(404))

    async def bind(self, namespace: str, name: str, uid: str, node: str, annotations: Any = None) -> None:
        await self._answer("bind", (f"{namespace}/{name}", uid, node, annotations))

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        await self._answer("evict", (f"{namespace}/{name}", uid))

    async def delete(self, path: str, *, uid: str = "", grace_s: int | None = None) -> None:
        await self._answer("delete", (path, uid, grace_s))

    async def patch(self, path: str, body: Any, *, patch_type: PatchType) -> None:
        await self._answer("patch", (path, body, patch_type))

    async def post_event(self, regarding: ObjectReference, **more: Any) -> None:
        await self._answer("event", (regarding.name, more["reason"], more["note"]))
