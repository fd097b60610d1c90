"""A set of objects, kept up to date: list, then watch from the version of the list, for as long as it takes.

The stream of a watch has a position, the version of the last thing it brought (bookmarks bring nothing else).
A stream that ends, stalls or breaks is opened again at that position, so nothing is lost and nothing comes
twice. If the position itself is lost (the server has forgotten it: 410), everything is listed again, and the
receiver is told so: what is absent from a `Relisted` is gone.

Every new attempt waits first, a little longer each time that nothing came of it, with jitter, so that neither
a server that accepts and hangs up nor one that is down is hammered. Silence is not trusted: a server sends
a bookmark about once a minute, so a stream without a word for `stall_s` is dead, whatever TCP thinks.

An object that does not decode does not hide the others: it is skipped, unless `decode_partial` can decode
part of it. A running pod must not count as deleted because one of its fields has an unknown form.

| what happens | position | wait |
|---|---|---|
| the stream ends, breaks, stalls, is garbled or has an endless line | kept | short, growing |
| two streams in a row that stalled or were garbled, with nothing readable between | lost | growing |
| HTTP 410, or an ERROR event of code 410 | lost | short, growing |
| any other ERROR event | lost | growing |
| 429 | kept | what the server says, at least |
| no connection, 5xx, 403 | kept | growing |
| 404: the kind is not served | lost; all are gone | `slow_s` |
| 400, 401 | kept | `slow_s` |
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
    status_error,
)
from penstock.kube.resources import ApiResource
from penstock.kube.types import KubeObject

__all__ = ["Deleted", "Relisted", "Upserted", "WatchBackoff", "WatchEvent", "WatchState", "reflect"]

_LOG: Final = logging.getLogger(__name__)
_FRUITLESS_MAX: Final = 2

T = TypeVar("T", bound=KubeObject)


@dataclass(frozen=True, slots=True)
class Relisted(Generic[T]):
    """All that there is. What was there before and is absent here is gone."""

    items: tuple[T, ...]


@dataclass(frozen=True, slots=True)
class Upserted(Generic[T]):
    item: T


@dataclass(frozen=True, slots=True)
class Deleted(Generic[T]):
    """Its last state, as far as it could be read: the metadata at least."""

    item: T


WatchEvent = Relisted[T] | Upserted[T] | Deleted[T]


@dataclass(frozen=True, slots=True)
class WatchBackoff:
    """How long to wait. Pauses double from `first_s` to `pause_s_max`; half of each is left to `jitter`."""

    first_s: float = 0.25
    pause_s_max: float = 30.0
    slow_s: float = 30.0
    steady_s: float = 10.0  # after a stream that lived so long, the pauses start over
    jitter: Callable[[], float] = random.random


_PACE: Final = WatchBackoff()


@dataclass(slots=True)
class WatchState:
    """How a reflection is doing, for health and metrics. Times are `time.monotonic`."""

    is_synced: bool = False  # something was delivered, and the position has not been lost since
    is_unserved: bool = False  # the kind is not served: there are none, and that was delivered
    last_received_at: float | None = None  # anything of the server: a list, an event, a bookmark
    resource_version: str = ""
    problem: str = ""  # why it is not up to date, empty while it is
    relists: int = 0
    streams: int = 0
    skipped: int = 0  # objects that could not be read


class _Broken(Unavailable):
    """The stream cannot be read on, but its position is good."""


class _Odd(_Broken):
    """Silence, or what no server writes: not the network's doing. If it repeats, the position is to blame."""


class _ReceiverFault(Exception):
    """What the receiver raised, lest it be taken for a fault of the server."""

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
# As API servers write them. Anything else is read with more care and more time.
_PLAIN: Final = (
    b'{"type":"ADDED","object":',
    b'{"type":"MODIFIED","object":',
    b'{"type":"DELETED","object":',
)


async def reflect(
    client: KubeClient,
    resource: ApiResource,
    type: type[T],  # noqa: A002
    on: Callable[[WatchEvent[T]], None],
    *,
    namespace: str = "",
    field_selector: str = "",
    label_selector: str = "",
    stall_s: float = 90.0,
    page: int = 500,
    line_max_bytes: int = 16 << 20,
    pace: WatchBackoff = _PACE,
    state: WatchState | None = None,
    decode_partial: Callable[[bytes], T | None] = lambda _: None,
) -> None:
    """Tells `on` all that happens to the objects, in order, until it is cancelled or `on` raises.

    `decode_partial` gets the JSON of an object that does not decode; None skips the object.
    """
    reflection = _Reflection(
        client=client,
        resource=resource,
        type=type,
        on=on,
        path=resource.path(namespace),
        selectors={"fieldSelector": field_selector, "labelSelector": label_selector},
        stall_s=stall_s,
        page=page,
        line_max_bytes=line_max_bytes,
        pace=pace,
        state=WatchState() if state is None else state,
        decode_partial=decode_partial,
        decoder=msgspec.json.Decoder(_Event[type]),  # type: ignore[valid-type]
    )
    try:
        await reflection.run()
    except _ReceiverFault as fault:
        raise fault.error from None


@dataclass(slots=True, kw_only=True)
class _Reflection(Generic[T]):
    client: KubeClient
    resource: ApiResource
    type: type[T]
    on: Callable[[WatchEvent[T]], None]
    path: str
    selectors: dict[str, str]
    stall_s: float
    page: int
    line_max_bytes: int
    pace: WatchBackoff
    state: WatchState
    decode_partial: Callable[[bytes], T | None]
    decoder: msgspec.json.Decoder[_Event[T]]
    position: str = ""  # empty: lost, or never had
    pause_s: float = 0.0
    fruitless: int = 0  # odd streams in a row, with nothing readable in between
    complaint: str = ""  # the last one, so that it is not repeated

    async def run(self) -> None:
        while True:
            try:
                if not self.position:
                    await self._list()
                await self._watch()
                wait_s = self._next_pause_s()  # the server ended the stream, as it does after a while
            except NotFound as error:
                was_listing = not self.position
                self._fail_waiters()
                if was_listing and not self.state.is_unserved:
                    self.state.is_unserved = True
                    self._tell(Relisted(()))
                self._complain(
                    f"{self.resource} is not served; looked for again in a while", error, quiet=True
                )
                wait_s = self.pace.slow_s
            except Gone as error:
                self._fail_waiters()
                self._complain(f"the position in {self.resource} is lost, everything is listed again", error)
                wait_s = self._next_pause_s()
            except (ApiError, Unavailable) as error:
                wait_s = self._after(error)
            await asyncio.sleep(wait_s)

    def _after(self, error: ApiError | Unavailable) -> float:
        if isinstance(error, Forbidden):
            verbs = "watch" if self.position else "list"
            self._complain(f"we are not allowed to {verbs} {self.resource}; grant it", error)
            return self._next_pause_s()  # A server that has just begun says so for a moment, to anybody.
        self._complain(f"watching {self.resource} was interrupted", error)
        if isinstance(error, ApiError):
            if error.status in (400, 401):
                return self.pace.slow_s
            return max(self._next_pause_s(), error.retry_after_s or 0.0)
        if isinstance(error, _Odd):
            self.fruitless += 1
            if self.fruitless >= _FRUITLESS_MAX:
                self._fail_waiters()
        return self._next_pause_s()

    async def _list(self) -> None:
        selectors = {
            "field_selector": self.selectors["fieldSelector"],
            "label_selector": self.selectors["labelSelector"],
        }
        listed = await self.client.list(self.path, self.type, page=self.page, **selectors)
        if not listed.consistent:
            # Its first pages are older than its version: a watch from there would miss what happened between.
            listed = await self.client.list(self.path, self.type, page=0, **selectors)
        if not listed.resource_version:
            raise BadResponse(200, "NoVersion", "the list has no version", asked=f"GET {self.path}")
        self.position = listed.resource_version
        self.state.is_unserved = False
        self.state.relists += 1
        pause_s = self.pause_s
        self._heard()
        self.pause_s = pause_s  # a list alone is no success: the watch may be refused each time
        self.state.is_synced = True
        salvaged = [found for raw in listed.undecodable if (found := self.decode_partial(raw)) is not None]
        self._tell(Relisted((*listed.items, *salvaged) if salvaged else listed.items))

    async def _watch(self) -> None:
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.position,
            **self.selectors,
        }
        async with self.client.stream(self.path, query, open_s=self.stall_s) as content:
            self.state.streams += 1
            self.state.problem = ""
            opened_at = time.monotonic()
            rest = b""  # of a line; dropped when the stream ends, as the line will come again
            while chunk := await self._next_chunk(content, opened_at):
                *lines, rest = (rest + chunk).split(b"\n") if b"\n" in chunk else (rest + chunk,)
                for line in lines:
                    if line:
                        self._take(line)
                        self._heard()
                if len(rest) > self.line_max_bytes:
                    raise _Odd(f"a line is longer than {self.line_max_bytes} bytes")

    async def _next_chunk(self, content: aiohttp.StreamReader, opened_at: float) -> bytes:
        """Empty at the end of the stream. One that lived for a while was a success, even if it was silent."""
        try:
            async with asyncio.timeout(self.stall_s):
                chunk = await content.readany()
            if not chunk and time.monotonic() > opened_at + self.pace.steady_s:
                self.pause_s = 0.0
            return chunk
        except TimeoutError as error:
            raise _Odd(f"not a word for {self.stall_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _Broken(f"the stream broke: {error or error.__class__.__name__}") from error

    def _take(self, line: bytes) -> None:
        if line.startswith(_PLAIN):
            try:
                event = self.decoder.decode(line)
            except msgspec.ValidationError:
                pass  # one object is odd, or the line is: looked at below
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise _Odd(f"a line is garbled: {error}") from error
            else:
                self._deliver(event.type, event.object)
                return
        self._take_slowly(line)

    def _take_slowly(self, line: bytes) -> None:
        try:
            event = _RAW_DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _Odd(f"a line is garbled: {error}") from error
        if event.type == "ERROR":
            raise self._error(event.object)
        try:
            bare = _OBJECT_DECODER.decode(event.object)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _Odd(f"an event has no readable object: {error}") from error
        if event.type == "BOOKMARK":
            self.position = bare.metadata.resource_version or self.position
            return
        if event.type not in ("ADDED", "MODIFIED", "DELETED"):
            raise _Odd(f"an event of the unknown type {event.type[:40]!r}")
        try:
            item = msgspec.json.decode(event.object, type=self.type)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.state.skipped += 1
            name = object_name(event.object)
            _LOG.error("%s %s cannot be read: %s", self.resource, name, error)
            if event.type == "DELETED":
                self._deliver(event.type, self.type(metadata=bare.metadata))
                return
            salvaged = self.decode_partial(bytes(event.object))
            if salvaged is not None:
                self._tell(Upserted(salvaged))
            self.position = bare.metadata.resource_version or self.position
            return
        self._deliver(event.type, item)

    def _deliver(self, kind: str, item: T) -> None:
        if not item.metadata.resource_version or not item.metadata.name:
            raise _Odd("an event about an object without a name or a version")
        self._tell(Deleted(item) if kind == "DELETED" else Upserted(item))
        self.position = item.metadata.resource_version

    def _tell(self, change: WatchEvent[T]) -> None:
        try:
            self.on(change)
        except Exception as error:
            raise _ReceiverFault(error) from error

    def _error(self, raw: msgspec.Raw) -> ApiError | Unavailable:
        try:
            status = _STATUS_DECODER.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            status = Status(message=bytes(raw)[:200].decode(errors="replace"))
        if status.code != 410:
            self._fail_waiters()
        if status.code in (401, 403, 404):
            return Unreachable(f"ERROR event: {status.code} {status.reason}: {status.message}")
        return status_error(status, status.code, asked=f"watch {self.path}")

    def _fail_waiters(self) -> None:
        self.position = ""
        self.state.is_synced = False
        self.fruitless = 0

    def _heard(self) -> None:
        self.fruitless = 0
        self.pause_s = 0.0
        self.complaint = self.state.problem = ""
        self.state.last_received_at = time.monotonic()
        self.state.resource_version = self.position

    def _next_pause_s(self) -> float:
        self.pause_s = min(2 * self.pause_s, self.pace.pause_s_max) if self.pause_s else self.pace.first_s
        return self.pause_s * (0.5 + 0.5 * self.pace.jitter())

    def _complain(self, summary: str, error: Exception, *, quiet: bool = False) -> None:
        """Once per problem: what repeats is for those who debug."""
        text = f"{summary}: {error}"
        level = logging.DEBUG if text == self.complaint else logging.INFO if quiet else logging.WARNING
        _LOG.log(level, "%s", text)
        self.complaint = self.state.problem = text
