"""The verbs of an API server, and what they answer.

Bodies go out as plain values, answers come back as the types that a caller names. How requests travel, and
which of them are tried again, is in `transport`.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Callable, Mapping, MutableSequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Generic, TypeVar, overload

import aiohttp
import msgspec

from penstock.kube.access import Access
from penstock.kube.errors import BadResponse, Gone, NotFound, OutcomeUnknown, Status
from penstock.kube.resources import EVENTS, PODS, group_path
from penstock.kube.transport import READS, RetryPolicy, Transport
from penstock.kube.types import KubeObject, ObjectMeta

__all__ = [
    "KubeClient",
    "ListResult",
    "ObjectReference",
    "PatchType",
    "decode_metadata",
    "micro_time",
    "object_name",
]

_LOG: Final = logging.getLogger(__name__)
_NOTE_MAX_BYTES: Final = 1024
_WORD_MAX: Final = 128  # characters of the reason, action and controller of an event
_RETRIES: Final = RetryPolicy()

T = TypeVar("T")


class PatchType(Enum):
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"


@dataclass(frozen=True, slots=True)
class ListResult(Generic[T]):
    """`consistent`: all items stood so at `resource_version`. If not, no watch may start there.

    `undecodable` are there too, as the server wrote them: they are not of the type.
    """

    items: tuple[T, ...]
    resource_version: str
    consistent: bool = True
    undecodable: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """What an event is about."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class _ListMetadata(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    resource_version: str = ""
    continuation: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    metadata: _ListMetadata = _ListMetadata()
    items: list[T] | None = None


class _ServedResource(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""


class _Served(msgspec.Struct, frozen=True, kw_only=True):
    resources: tuple[_ServedResource, ...] | None = None


class KubeClient:
    """One API server. Make it anywhere, use it within one running loop, close it there."""

    def __init__(
        self,
        access: Access,
        *,
        in_flight_max: int = 64,
        timeout_s: float = 15.0,
        user_agent: str = "penstock",
        body_max_bytes: int = 128 << 20,
        retries: RetryPolicy = _RETRIES,
        may_write: Callable[[], bool] = lambda: True,  # asked right before each sending of a write
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.access = access
        self.timeout_s = timeout_s
        self._transport = Transport(
            access,
            in_flight_max=in_flight_max,
            timeout_s=timeout_s,
            user_agent=user_agent,
            body_max_bytes=body_max_bytes,
            retries=retries,
            may_write=may_write,
            jitter=jitter,
        )
        self._ask = self._transport.ask
        self._event_number = itertools.count()
        self._decoders: dict[Any, msgspec.json.Decoder[Any]] = {}

    async def __aenter__(self) -> KubeClient:
        return self

    async def __aexit__(self, *ended: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    def stream(
        self, path: str, query: Mapping[str, str], *, open_s: float
    ) -> AbstractAsyncContextManager[aiohttp.StreamReader]:
        """An answer without an end, for watches. Tried once; whoever reads it minds the silence."""
        return self._transport.stream(path, query, open_s=open_s)

    # Reads.

    async def get(
        self,
        path: str,
        type: type[T],  # noqa: A002
        *,
        urgent: bool = False,
        timeout_s: float | None = None,
    ) -> T:
        body = await self._ask("GET", path, urgent=urgent, timeout_s=timeout_s)
        return self._decode("GET", path, body, type)

    async def list(
        self,
        path: str,
        type: type[T],  # noqa: A002
        *,
        page: int = 500,
        field_selector: str = "",
        label_selector: str = "",
        resource_version: str = "",
    ) -> ListResult[T]:
        """All of them, page by page (`page=0`: in one piece).

        Pages show one version of the world. If the server forgets it midway, the list starts over, once; the
        second time it goes on with what the server has by then, and is not `consistent`.
        """
        query = {"fieldSelector": field_selector, "labelSelector": label_selector}
        items: list[T] = []
        undecodable: list[bytes] = []
        restarted = False
        consistent = True
        limit, continuation = page, ""
        while True:
            asked = {**query, "limit": str(limit) if limit else "", "continue": continuation}
            if not continuation:
                asked["resourceVersion"] = resource_version
            try:
                body = await self._ask("GET", path, query=asked)
            except Gone as error:
                if not continuation:
                    raise
                if not restarted:
                    restarted, continuation = True, ""
                    items.clear()
                    undecodable.clear()
                elif error.continuation:
                    consistent, continuation = False, error.continuation
                else:
                    raise
                continue
            except BadResponse as error:
                if error.reason == "TooLarge" and limit > 1:
                    limit = max(1, limit // 8)
                    continue
                raise
            found = self._decode_page(path, body, type, undecodable)
            items.extend(found.items or ())
            continuation = found.metadata.continuation
            if not continuation:
                return ListResult(
                    tuple(items), found.metadata.resource_version, consistent, tuple(undecodable)
                )

    async def discover(self, group_version: str) -> frozenset[str]:
        """Names of the resources that the server has in a group (`batch/v1`); none if it has no such."""
        path = group_path(group_version)
        try:
            body = await self._ask("GET", path)
        except NotFound:
            return frozenset()
        served = self._decode("GET", path, body, _Served)
        return frozenset(resource.name for resource in served.resources or ())

    # Writes.

    @overload
    async def create(
        self,
        path: str,
        body: object,
        type: None = None,
        *,
        urgent: bool = False,
        timeout_s: float | None = None,
    ) -> None: ...

    @overload
    async def create(
        self, path: str, body: object, type: type[T], *, urgent: bool = False, timeout_s: float | None = None
    ) -> T: ...

    async def create(
        self,
        path: str,
        body: object,
        type: type[T] | None = None,  # noqa: A002
        *,
        urgent: bool = False,
        timeout_s: float | None = None,
    ) -> T | None:
        answer = await self._ask("POST", path, body=body, urgent=urgent, timeout_s=timeout_s)
        return None if type is None else self._decode("POST", path, answer, type)

    async def replace(
        self,
        path: str,
        body: object,
        type: type[T],  # noqa: A002
        *,
        urgent: bool = False,
        timeout_s: float | None = None,
    ) -> T:
        """The body should have a `metadata.resourceVersion`, else it overwrites whatever is there."""
        answer = await self._ask("PUT", path, body=body, urgent=urgent, timeout_s=timeout_s)
        return self._decode("PUT", path, answer, type)

    @overload
    async def patch(
        self,
        path: str,
        body: object,
        *,
        patch_type: PatchType = ...,
        type: None = None,
        field_manager: str = "",
    ) -> None: ...

    @overload
    async def patch(
        self, path: str, body: object, *, patch_type: PatchType = ..., type: type[T], field_manager: str = ""
    ) -> T: ...

    async def patch(
        self,
        path: str,
        body: object,
        *,
        patch_type: PatchType = PatchType.MERGE,
        type: type[T] | None = None,  # noqa: A002
        field_manager: str = "",
    ) -> T | None:
        query = {"fieldManager": field_manager}
        answer = await self._ask("PATCH", path, query=query, body=body, content_type=patch_type.value)
        return None if type is None else self._decode("PATCH", path, answer, type)

    async def delete(
        self, path: str, *, uid: str = "", grace_s: int | None = None, propagation: str = ""
    ) -> None:
        """`uid`: this one, and not (409) another that has its name by now. `NotFound` if there is none."""
        options = _delete_options(uid, grace_s)
        if propagation:
            options["propagationPolicy"] = propagation
        await self._ask("DELETE", path, body=options)

    async def bind(
        self, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str] | None = None
    ) -> None:
        """Assigns a pod to a node.

        `ApiConflict`: the pod has a node, is gated, is being deleted, or was replaced by another of its name.
        """
        metadata: dict[str, object] = {"name": name, "namespace": namespace, "uid": uid}
        if annotations:
            metadata["annotations"] = dict(annotations)
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = PODS.path(namespace, name, "binding")
        status = self._decode("POST", path, await self._ask("POST", path, body=body), Status)
        if status.status == "Failure":
            raise OutcomeUnknown(f"POST {path}: accepted, but says {status.reason}: {status.message}")

    async def evict(self, namespace: str, name: str, uid: str, grace_s: int | None = None) -> None:
        """Deletes a pod if its disruption budget allows; if not, `TooManyRequests` with `is_budget`, at once.

        `ApiConflict` if it is another pod by now; if that one is not placed, the server says so after 10 s.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": _delete_options(uid, grace_s),
        }
        await self._ask("POST", PODS.path(namespace, name, "eviction"), body=body)

    async def post_event(
        self,
        regarding: ObjectReference,
        *,
        reason: str,
        note: str,
        action: str,
        warning: bool = False,
        controller: str = "penstock",
        instance: str = "",
        at: datetime | None = None,
    ) -> None:
        """Tells whoever looks at an object something. What is too long is cut: a server would refuse it."""
        namespace = regarding.namespace or "default"
        unique = f"{time.time_ns():x}{next(self._event_number) % 0x1000:03x}"
        about = {
            "apiVersion": regarding.api_version,
            "kind": regarding.kind,
            "name": regarding.name,
            "namespace": regarding.namespace,
            "uid": regarding.uid,
        }
        body = {
            "apiVersion": EVENTS.group_version,
            "kind": "Event",
            "metadata": {"name": f"{regarding.name[:220].rstrip('.-')}.{unique}", "namespace": namespace},
            "eventTime": micro_time(at or datetime.now(UTC)),
            "reportingController": controller[:_WORD_MAX],
            "reportingInstance": (instance or controller)[:_WORD_MAX],
            "action": action[:_WORD_MAX],
            "reason": reason[:_WORD_MAX],
            "type": "Warning" if warning else "Normal",
            "regarding": {key: value for key, value in about.items() if value},
            "note": _cut_bytes(note, _NOTE_MAX_BYTES),
        }
        await self._ask("POST", EVENTS.path(namespace), body=body)

    # Answers.

    def _decoder(self, type: Any) -> msgspec.json.Decoder[Any]:  # noqa: A002
        decoder = self._decoders.get(type)
        if decoder is None:
            decoder = self._decoders[type] = msgspec.json.Decoder(type)
        return decoder

    def _decode(self, verb: str, path: str, body: bytes, type: type[T]) -> T:  # noqa: A002
        try:
            decoded: T = self._decoder(type).decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            text = f"the answer is no {type.__name__}: {error}"
            if verb in READS:
                raise BadResponse(200, "Undecodable", text, asked=f"{verb} {path}") from error
            raise OutcomeUnknown(f"outcome unknown: {verb} {path}: {text}", status=200) from error
        return decoded

    def _decode_page(
        self,
        path: str,
        body: bytes,
        type: type[T],  # noqa: A002
        undecodable: MutableSequence[bytes],
    ) -> _Page[T]:
        """Items that cannot be read are set aside and named in the log: one must not hide the others."""
        try:
            page: _Page[T] = self._decoder(_Page[type]).decode(body)  # type: ignore[valid-type]
        except msgspec.ValidationError:
            raw = self._decode("GET", path, body, _Page[msgspec.Raw])
            decoder, items = self._decoder(type), []
            for item in raw.items or ():
                try:
                    items.append(decoder.decode(item))
                except (msgspec.ValidationError, UnicodeDecodeError) as error:
                    _LOG.error("%s: %s cannot be read: %s", path, object_name(item), error)
                    undecodable.append(bytes(item))
            return _Page(metadata=raw.metadata, items=items)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            text = f"the answer is no list: {error}"
            raise BadResponse(200, "Undecodable", text, asked=f"GET {path}") from error
        return page


_OBJECT_DECODER = msgspec.json.Decoder(KubeObject)


def decode_metadata(raw: msgspec.Raw | bytes) -> ObjectMeta:
    """Who an object is of which nothing else may be readable; nobody, if not even that is."""
    try:
        return _OBJECT_DECODER.decode(raw).metadata
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ObjectMeta()


def object_name(raw: msgspec.Raw | bytes) -> str:
    metadata = decode_metadata(raw)
    return (
        f"{metadata.namespace}/{metadata.name}"
        if metadata.namespace
        else metadata.name or "an object without a readable name"
    )


def micro_time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _delete_options(uid: str, grace_s: int | None) -> dict[str, object]:
    options: dict[str, object] = {}
    if uid:
        options["preconditions"] = {"uid": uid}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    return options


def _cut_bytes(text: str, bytes_max: int) -> str:
    """The longest beginning that fits, with no character cut in two."""
    data = text.encode(errors="replace")
    return text if len(data) <= bytes_max else data[: bytes_max - 3].decode(errors="ignore") + "..."
