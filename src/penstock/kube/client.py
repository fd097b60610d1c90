"""The API server's verbs as methods.

Request bodies are plain values; responses are decoded into the type that the caller passes. `transport` sends
the requests and decides which of them to retry.
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
from penstock.kube.errors import BadResponse, Gone, OutcomeUnknown, Status
from penstock.kube.resources import EVENTS, PODS
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
_EVENT_FIELD_MAX: Final = 128  # Characters: the API's limit for an event's reason, action and controller.
_RETRIES: Final = RetryPolicy()

T = TypeVar("T")


class PatchType(Enum):
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"


@dataclass(frozen=True, slots=True)
class ListResult(Generic[T]):
    """The objects of a list.

    `consistent`: all items are of `resource_version`. Otherwise a watch must not start there. `undecodable`:
    the JSON of the objects that do not decode as the requested type.
    """

    items: tuple[T, ...]
    resource_version: str
    consistent: bool = True
    undecodable: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """The object that an event regards."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class _ListMetadata(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    metadata: _ListMetadata = _ListMetadata()
    items: list[T] | None = None


class KubeClient:
    """Client of one API server. Use it and close it within one event loop."""

    def __init__(
        self,
        access: Access,
        *,
        in_flight_max: int = 64,
        timeout_s: float = 15.0,
        user_agent: str = "penstock",
        body_max_bytes: int = 128 << 20,
        retries: RetryPolicy = _RETRIES,
        may_write: Callable[[], bool] = lambda: True,  # called right before each write is sent
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
        self._request = self._transport.request
        self._event_number = itertools.count()
        self._decoders: dict[Any, msgspec.json.Decoder[Any]] = {}

    async def __aenter__(self) -> KubeClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    def stream(
        self, path: str, query: Mapping[str, str], *, open_s: float
    ) -> AbstractAsyncContextManager[aiohttp.StreamReader]:
        """The body of a watch. Not retried; the reader has to detect a silent connection."""
        return self._transport.stream(path, query, open_s=open_s)

    # Reads

    async def get(
        self,
        path: str,
        type: type[T],  # noqa: A002
        *,
        urgent: bool = False,
        timeout_s: float | None = None,
    ) -> T:
        body = await self._request("GET", path, urgent=urgent, timeout_s=timeout_s)
        return self._decode("GET", path, body, type)

    async def list(
        self,
        path: str,
        type: type[T],  # noqa: A002
        *,
        page: int = 500,
        field_selector: str = "",
        label_selector: str = "",
    ) -> ListResult[T]:
        """Lists all objects, `page` per request (0: all in one request).

        All pages are of one resourceVersion. If it expires between two pages, the list restarts once; the
        second time it continues at a newer resourceVersion, and the result is not `consistent`.
        """
        query = {"fieldSelector": field_selector, "labelSelector": label_selector}
        items: list[T] = []
        undecodable: list[bytes] = []
        restarted = False
        consistent = True
        limit, continue_token = page, ""
        while True:
            page_query = {**query, "limit": str(limit) if limit else "", "continue": continue_token}
            try:
                body = await self._request("GET", path, query=page_query)
            except Gone as error:
                if not continue_token:
                    raise
                if not restarted:
                    restarted, continue_token = True, ""
                    items.clear()
                    undecodable.clear()
                elif error.continue_token:
                    consistent, continue_token = False, error.continue_token
                else:
                    raise
                continue
            except BadResponse as error:
                if error.reason == "TooLarge" and limit > 1:
                    limit = max(1, limit // 8)
                    continue
                raise
            decoded = self._decode_page(path, body, type, undecodable)
            items.extend(decoded.items or ())
            continue_token = decoded.metadata.continue_token
            if not continue_token:
                return ListResult(
                    tuple(items), decoded.metadata.resource_version, consistent, tuple(undecodable)
                )

    # Writes

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
        response = await self._request("POST", path, body=body, urgent=urgent, timeout_s=timeout_s)
        return None if type is None else self._decode("POST", path, response, type)

    async def replace(
        self,
        path: str,
        body: object,
        type: type[T],  # noqa: A002
        *,
        urgent: bool = False,
        timeout_s: float | None = None,
    ) -> T:
        """Without `metadata.resourceVersion` in the body, concurrent changes are overwritten."""
        response = await self._request("PUT", path, body=body, urgent=urgent, timeout_s=timeout_s)
        return self._decode("PUT", path, response, type)

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
        response = await self._request("PATCH", path, query=query, body=body, content_type=patch_type.value)
        return None if type is None else self._decode("PATCH", path, response, type)

    async def delete(
        self, path: str, *, uid: str = "", grace_s: int | None = None, propagation: str = ""
    ) -> None:
        """`uid` is a precondition: `ApiConflict` if another object has the name by now."""
        options = _delete_options(uid, grace_s)
        if propagation:
            options["propagationPolicy"] = propagation
        await self._request("DELETE", path, body=options)

    async def bind(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str] | None = None,
        may_send: Callable[[], bool] | None = None,
    ) -> None:
        """Assigns a pod to a node. `may_send` is called when the request leaves; if false, `WriteFenced`.

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
        response = await self._request("POST", path, body=body, may_send=may_send)
        status = self._decode("POST", path, response, Status)
        if status.status == "Failure":
            failure = f"{status.reason}: {status.message}"
            raise OutcomeUnknown(f"outcome unknown: POST {path}: 2xx with status Failure: {failure}")

    async def evict(self, namespace: str, name: str, uid: str, grace_s: int | None = None) -> None:
        """Deletes a pod if its PodDisruptionBudget allows it.

        If not, `TooManyRequests` with `is_disruption_budget`, without retries. `ApiConflict` if another pod
        has the name; if that pod has no node, the server takes 10 s to respond.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": _delete_options(uid, grace_s),
        }
        await self._request("POST", PODS.path(namespace, name, "eviction"), body=body)

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
        """Creates an event. Fields over the API's limits are truncated, as the server would reject them."""
        namespace = regarding.namespace or "default"
        suffix = f"{time.time_ns():x}{next(self._event_number) % 0x1000:03x}"
        reference = {
            "apiVersion": regarding.api_version,
            "kind": regarding.kind,
            "name": regarding.name,
            "namespace": regarding.namespace,
            "uid": regarding.uid,
        }
        body = {
            "apiVersion": EVENTS.group_version,
            "kind": "Event",
            "metadata": {"name": f"{regarding.name[:220].rstrip('.-')}.{suffix}", "namespace": namespace},
            "eventTime": micro_time(at or datetime.now(UTC)),
            "reportingController": controller[:_EVENT_FIELD_MAX],
            "reportingInstance": (instance or controller)[:_EVENT_FIELD_MAX],
            "action": action[:_EVENT_FIELD_MAX],
            "reason": reason[:_EVENT_FIELD_MAX],
            "type": "Warning" if warning else "Normal",
            "regarding": {key: value for key, value in reference.items() if value},
            "note": _truncate_bytes(note, _NOTE_MAX_BYTES),
        }
        await self._request("POST", EVENTS.path(namespace), body=body)

    # Decoding

    def _decoder(self, type: Any) -> msgspec.json.Decoder[Any]:  # noqa: A002
        decoder = self._decoders.get(type)
        if decoder is None:
            decoder = self._decoders[type] = msgspec.json.Decoder(type)
        return decoder

    def _decode(self, verb: str, path: str, body: bytes, type: type[T]) -> T:  # noqa: A002
        try:
            decoded: T = self._decoder(type).decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            text = f"the response does not decode as {type.__name__}: {error}"
            if verb in READS:
                raise BadResponse(200, "Undecodable", text, request=f"{verb} {path}") from error
            raise OutcomeUnknown(f"outcome unknown: {verb} {path}: {text}", status=200) from error
        return decoded

    def _decode_page(
        self,
        path: str,
        body: bytes,
        type: type[T],  # noqa: A002
        undecodable: MutableSequence[bytes],
    ) -> _Page[T]:
        """Items that do not decode are logged and collected: one of them must not hide the others."""
        try:
            page: _Page[T] = self._decoder(_Page[type]).decode(body)  # type: ignore[valid-type]
        except msgspec.ValidationError:
            raw = self._decode("GET", path, body, _Page[msgspec.Raw])
            decoder, items = self._decoder(type), []
            for item in raw.items or ():
                try:
                    items.append(decoder.decode(item))
                except (msgspec.ValidationError, UnicodeDecodeError) as error:
                    _LOG.error("%s: %s does not decode: %s", path, object_name(item), error)
                    undecodable.append(bytes(item))
            return _Page(metadata=raw.metadata, items=items)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            text = f"the response does not decode as a list: {error}"
            raise BadResponse(200, "Undecodable", text, request=f"GET {path}") from error
        return page


_OBJECT_DECODER = msgspec.json.Decoder(KubeObject)


def decode_metadata(raw: msgspec.Raw | bytes) -> ObjectMeta:
    """The metadata of an object that may not decode otherwise; empty if the metadata does not decode."""
    try:
        return _OBJECT_DECODER.decode(raw).metadata
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ObjectMeta()


def object_name(raw: msgspec.Raw | bytes) -> str:
    """`namespace/name` of an object that does not decode, for messages."""
    metadata = decode_metadata(raw)
    return (
        f"{metadata.namespace}/{metadata.name}"
        if metadata.namespace
        else metadata.name or "an object without a name"
    )


def micro_time(at: datetime) -> str:
    """A timestamp in the form of the API's MicroTime."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _delete_options(uid: str, grace_s: int | None) -> dict[str, object]:
    options: dict[str, object] = {}
    if uid:
        options["preconditions"] = {"uid": uid}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    return options


def _truncate_bytes(text: str, bytes_max: int) -> str:
    """Truncates to a number of bytes without splitting a character."""
    data = text.encode(errors="replace")
    return text if len(data) <= bytes_max else data[: bytes_max - 3].decode(errors="ignore") + "..."
