"""List and watch: keeps a receiver up to date with all objects of a resource.

`reflect` lists the objects and then watches from the resourceVersion of the list. It keeps the
resourceVersion of the last event (bookmarks carry nothing else) and reopens a stream that ended, stalled or
broke from there, so no event is lost or delivered twice. When the server no longer has that resourceVersion
(410), `reflect` relists: objects absent from a `Relisted` are deleted.

Every attempt is preceded by a delay that doubles while attempts fail, with jitter, so that a server that is
down, or one that accepts and closes connections, is not overloaded. Servers send a bookmark about once a
minute: a stream without data for `stall_s` counts as dead even if its TCP connection is open.

An object that does not decode does not hide the others: it is skipped, unless `decode_partial` can decode
part of it. A running pod must not count as deleted because one of its fields has an unknown form.

| event | resourceVersion | delay |
|---|---|---|
| the stream ends, breaks, stalls, has an invalid line or one that is too long | kept | backoff |
| two streams in a row that stalled or were invalid, without a valid line | dropped | backoff |
| HTTP 410, or an ERROR event with code 410 | dropped | backoff |
| any other ERROR event | dropped | backoff |
| 429 | kept | backoff, at least Retry-After |
| no connection, 5xx, 403 | kept | backoff |
| 404: the resource is not served | dropped; all objects are deleted | `persistent_error_s` |
| 400, 401 | kept | `persistent_error_s` |
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import aiohttp
import msgspec

from penstock.errors import Unavailable
from penstock.kube.client import KubeClient, object_name
from penstock.kube.errors import (
    ApiError,
    BadResponse,
    Forbidden,
    Gone,
    NotFound,
    Status,
    Unreachable,
    error_from_status,
)
from penstock.kube.resources import ApiResource
from penstock.kube.types import KubeObject

__all__ = ["Deleted", "Relisted", "Upserted", "WatchBackoff", "WatchEvent", "WatchState", "reflect"]

_LOG: Final = logging.getLogger(__name__)
_INVALID_STREAMS_MAX: Final = 2

T = TypeVar("T", bound=KubeObject)


@dataclass(frozen=True, slots=True)
class Relisted(Generic[T]):
    """All objects. An object that was delivered before and is absent here is deleted."""

    items: tuple[T, ...]


@dataclass(frozen=True, slots=True)
class Upserted(Generic[T]):
    item: T


@dataclass(frozen=True, slots=True)
class Deleted(Generic[T]):
    """The last state of the object; only its metadata if the rest does not decode."""

    item: T


WatchEvent = Relisted[T] | Upserted[T] | Deleted[T]


@dataclass(frozen=True, slots=True)
class WatchBackoff:
    """Delays between attempts: exponential from `min_s` to `max_s`; half of each delay is jitter."""

    min_s: float = 0.25
    max_s: float = 30.0
    persistent_error_s: float = 30.0  # After errors that a quick retry cannot cure.
    reset_after_s: float = 10.0  # A stream that lasted this long resets the backoff.
    jitter: Callable[[], float] = random.random


_BACKOFF: Final = WatchBackoff()


@dataclass(slots=True)
class WatchState:
    """State of one `reflect`, for health checks and metrics. Times are of `time.monotonic`."""

    is_synced: bool = False  # Listed, and the resourceVersion has not been dropped since.
    is_unserved: bool = False  # The server does not serve the resource; an empty `Relisted` was delivered.
    last_received_at: float | None = None  # A list, an event or a bookmark.
    resource_version: str = ""
    problem: str = ""  # Why the objects are not up to date; empty while they are.
    relists: int = 0
    streams: int = 0
    undecodable: int = 0  # Objects in events that did not decode.


class _StreamBroken(Unavailable):
    """The stream failed; the watch can resume from its resourceVersion."""


class _StreamInvalid(_StreamBroken):
    """The stream was silent or invalid, which no network fault explains.

    If that repeats, the resourceVersion is dropped as the likely cause.
    """


class _ReceiverError(Exception):
    """Wraps what the receiver raised, to tell it from an error of the server."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(str(error))


class _Event(msgspec.Struct, Generic[T], frozen=True, gc=False):
    type: str
    object: T


class _RawEvent(msgspec.Struct, frozen=True, gc=False):
    type: str
    object: msgspec.Raw


_STATUS_DECODER: Final = msgspec.json.Decoder(Status)
_OBJECT_DECODER: Final = msgspec.json.Decoder(KubeObject)
_RAW_DECODER: Final = msgspec.json.Decoder(_RawEvent)
# The form in which API servers write events: decoded in one step. Other lines take the slow path.
_FAST_PREFIXES: Final = (
    b'{"type":"ADDED","object":',
    b'{"type":"MODIFIED","object":',
    b'{"type":"DELETED","object":',
)


async def reflect(
    client: KubeClient,
    resource: ApiResource,
    type: type[T],  # noqa: A002
    receive: Callable[[WatchEvent[T]], None],
    *,
    namespace: str = "",
    field_selector: str = "",
    label_selector: str = "",
    stall_s: float = 90.0,
    page: int = 500,
    line_max_bytes: int = 16 << 20,
    backoff: WatchBackoff = _BACKOFF,
    state: WatchState | None = None,
    decode_partial: Callable[[bytes], T | None] = lambda _: None,
) -> None:
    """Calls `receive` with every change, in order, until cancelled or until `receive` raises.

    `decode_partial` gets the JSON of an object that does not decode; None skips the object.
    """
    reflection = _Reflection(
        client=client,
        resource=resource,
        type=type,
        receive=receive,
        path=resource.path(namespace),
        selectors={"fieldSelector": field_selector, "labelSelector": label_selector},
        stall_s=stall_s,
        page=page,
        line_max_bytes=line_max_bytes,
        backoff=backoff,
        state=WatchState() if state is None else state,
        decode_partial=decode_partial,
        decoder=msgspec.json.Decoder(_Event[type]),  # type: ignore[valid-type]
    )
    try:
        await reflection.run()
    except _ReceiverError as wrapper:
        raise wrapper.error from None


@dataclass(slots=True, kw_only=True)
class _Reflection(Generic[T]):
    client: KubeClient
    resource: ApiResource
    type: type[T]
    receive: Callable[[WatchEvent[T]], None]
    path: str
    selectors: dict[str, str]
    stall_s: float
    page: int
    line_max_bytes: int
    backoff: WatchBackoff
    state: WatchState
    decode_partial: Callable[[bytes], T | None]
    decoder: msgspec.json.Decoder[_Event[T]]
    resource_version: str = ""  # Empty: list first.
    delay_s: float = 0.0
    invalid_streams: int = 0  # In a row, without a valid line.
    last_problem: str = ""  # Not logged again at the same level.

    async def run(self) -> None:
        while True:
            try:
                if not self.resource_version:
                    await self._list()
                await self._watch()
                wait_s = self._next_delay_s()  # Servers end a stream after some minutes.
            except NotFound as error:
                was_listing = not self.resource_version
                self._drop_resource_version()
                if was_listing and not self.state.is_unserved:
                    self.state.is_unserved = True
                    self._deliver(Relisted(()))
                self._report(
                    f"the server does not serve {self.resource}; checking again later", error, quiet=True
                )
                wait_s = self.backoff.persistent_error_s
            except Gone as error:
                self._drop_resource_version()
                self._report(f"the resourceVersion of {self.resource} expired, relisting", error)
                wait_s = self._next_delay_s()
            except (ApiError, Unavailable) as error:
                wait_s = self._handle_error(error)
            await asyncio.sleep(wait_s)

    def _handle_error(self, error: ApiError | Unavailable) -> float:
        """Returns the delay before the next attempt."""
        if isinstance(error, Forbidden):
            verb = "watch" if self.resource_version else "list"
            self._report(f"not allowed to {verb} {self.resource}, RBAC must grant it", error)
            return self._next_delay_s()  # A server that has just started responds with 403 for a moment.
        self._report(f"the watch of {self.resource} was interrupted", error)
        if isinstance(error, ApiError):
            if error.status in (400, 401):
                return self.backoff.persistent_error_s
            return max(self._next_delay_s(), error.retry_after_s or 0.0)
        if isinstance(error, _StreamInvalid):
            self.invalid_streams += 1
            if self.invalid_streams >= _INVALID_STREAMS_MAX:
                self._drop_resource_version()
        return self._next_delay_s()

    async def _list(self) -> None:
        selectors = {
            "field_selector": self.selectors["fieldSelector"],
            "label_selector": self.selectors["labelSelector"],
        }
        listed = await self.client.list(self.path, self.type, page=self.page, **selectors)
        if not listed.consistent:
            # Its first pages are older than its resourceVersion: a watch from there would miss events.
            listed = await self.client.list(self.path, self.type, page=0, **selectors)
        if not listed.resource_version:
            raise BadResponse(
                200, "NoResourceVersion", "the list has no resourceVersion", request=f"GET {self.path}"
            )
        self.resource_version = listed.resource_version
        self.state.is_unserved = False
        self.state.relists += 1
        delay_s = self.delay_s
        self._mark_received()
        self.delay_s = delay_s  # A list does not reset the backoff: the watch may fail every time.
        self.state.is_synced = True
        partial = [item for raw in listed.undecodable if (item := self.decode_partial(raw)) is not None]
        self._deliver(Relisted((*listed.items, *partial) if partial else listed.items))

    async def _watch(self) -> None:
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.resource_version,
            **self.selectors,
        }
        async with self.client.stream(self.path, query, open_s=self.stall_s) as content:
            self.state.streams += 1
            self.state.problem = ""
            opened_at = time.monotonic()
            rest = b""  # An incomplete line; dropped when the stream ends, since the server sends it again.
            while chunk := await self._next_chunk(content, opened_at):
                *lines, rest = (rest + chunk).split(b"\n") if b"\n" in chunk else (rest + chunk,)
                for line in lines:
                    if line:
                        self._process_line(line)
                        self._mark_received()
                if len(rest) > self.line_max_bytes:
                    raise _StreamInvalid(f"a line is longer than {self.line_max_bytes} bytes")

    async def _next_chunk(self, content: aiohttp.StreamReader, opened_at: float) -> bytes:
        """Returns empty bytes at the end. A stream that lasted `reset_after_s` resets the backoff."""
        try:
            async with asyncio.timeout(self.stall_s):
                chunk = await content.readany()
            if not chunk and time.monotonic() > opened_at + self.backoff.reset_after_s:
                self.delay_s = 0.0
            return chunk
        except TimeoutError as error:
            raise _StreamInvalid(f"no data for {self.stall_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _StreamBroken(f"the stream broke: {error or error.__class__.__name__}") from error

    def _process_line(self, line: bytes) -> None:
        if line.startswith(_FAST_PREFIXES):
            try:
                event = self.decoder.decode(line)
            except msgspec.ValidationError:
                pass  # The object, or the line, has another form: the slow path finds out.
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise _StreamInvalid(f"a line is invalid: {error}") from error
            else:
                self._deliver_change(event.type, event.object)
                return
        self._process_line_slowly(line)

    def _process_line_slowly(self, line: bytes) -> None:
        try:
            event = _RAW_DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _StreamInvalid(f"a line is invalid: {error}") from error
        if event.type == "ERROR":
            raise self._error_of_event(event.object)
        try:
            metadata_only = _OBJECT_DECODER.decode(event.object)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _StreamInvalid(f"the object of an event does not decode: {error}") from error
        if event.type == "BOOKMARK":
            self.resource_version = metadata_only.metadata.resource_version or self.resource_version
            return
        if event.type not in ("ADDED", "MODIFIED", "DELETED"):
            raise _StreamInvalid(f"unknown event type {event.type[:40]!r}")
        try:
            item = msgspec.json.decode(event.object, type=self.type)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.state.undecodable += 1
            name = object_name(event.object)
            _LOG.error("%s %s does not decode: %s", self.resource, name, error)
            if event.type == "DELETED":
                self._deliver_change(event.type, self.type(metadata=metadata_only.metadata))
                return
            partial = self.decode_partial(bytes(event.object))
            if partial is not None:
                self._deliver(Upserted(partial))
            self.resource_version = metadata_only.metadata.resource_version or self.resource_version
            return
        self._deliver_change(event.type, item)

    def _deliver_change(self, event_type: str, item: T) -> None:
        if not item.metadata.resource_version or not item.metadata.name:
            raise _StreamInvalid("the object of an event has no name or no resourceVersion")
        self._deliver(Deleted(item) if event_type == "DELETED" else Upserted(item))
        self.resource_version = item.metadata.resource_version

    def _deliver(self, event: WatchEvent[T]) -> None:
        try:
            self.receive(event)
        except Exception as error:
            raise _ReceiverError(error) from error

    def _error_of_event(self, raw: msgspec.Raw) -> ApiError | Unavailable:
        try:
            status = _STATUS_DECODER.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            status = Status(message=bytes(raw)[:200].decode(errors="replace"))
        if status.code != 410:
            self._drop_resource_version()
        if status.code in (401, 403, 404):
            return Unreachable(f"ERROR event: {status.code} {status.reason}: {status.message}")
        return error_from_status(status, status.code, request=f"watch {self.path}")

    def _drop_resource_version(self) -> None:
        self.resource_version = ""
        self.state.is_synced = False
        self.invalid_streams = 0

    def _mark_received(self) -> None:
        self.invalid_streams = 0
        self.delay_s = 0.0
        self.last_problem = self.state.problem = ""
        self.state.last_received_at = time.monotonic()
        self.state.resource_version = self.resource_version

    def _next_delay_s(self) -> float:
        self.delay_s = min(2 * self.delay_s, self.backoff.max_s) if self.delay_s else self.backoff.min_s
        return self.delay_s * (0.5 + 0.5 * self.backoff.jitter())

    def _report(self, summary: str, error: Exception, *, quiet: bool = False) -> None:
        """Logs a problem; a repetition of the last one only at debug level."""
        text = f"{summary}: {error}"
        level = logging.DEBUG if text == self.last_problem else logging.INFO if quiet else logging.WARNING
        _LOG.log(level, "%s", text)
        self.last_problem = self.state.problem = text
