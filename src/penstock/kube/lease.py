"""Who is in office: one holder of a Lease, by clocks that nobody compares.

A candidate takes a lease only after the record stood unchanged, as it saw it, for the whole duration written
there and for the time that the longest request of the old holder can still be under way. Times in the record
are for people. The holder in turn counts from before it sent a renewal that was accepted, so its `until` is
always earlier than any taker's; it stops at `deadline_s`, earlier still. A holder that was paused, or whose
machine was suspended, finds that out by its own clock, before it acts.

Every write carries the version that was read, so of two writers one loses. A write whose outcome is unknown
is looked up before anything else is believed. `identity` is of one process: who finds its own name in a
record that it has not written waits like everybody. Only an heir waits less: whoever knows, by a lock of
its own, that processes whose names begin with `predecessor_prefix` are dead, need not wait until their lease
runs out.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from penstock.errors import BadRequest, Unavailable
from penstock.kube.client import KubeClient, micro_time
from penstock.kube.errors import AlreadyExists, ApiConflict, ApiError, Forbidden, NotFound, OutcomeUnknown
from penstock.kube.resources import LEASES

__all__ = ["LeaderElector", "LeaseLost"]

_LOG: Final = logging.getLogger(__name__)
_DURATION_S: Final = 15  # of a record that does not say
_TERMS: Final = ("holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions")


def _seconds() -> float:
    """A clock that nobody sets, and that goes on while the machine is suspended where there is such a one."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class LeaseLost(Unavailable):
    """We are no longer in office, or cannot know that we are."""


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """A Lease with all that others may have put there, which a replacement has to bring back."""

    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    spec: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def holder(self) -> str:
        return str(self.spec.get("holderIdentity") or "")

    @property
    def duration_s(self) -> float:
        found = self.spec.get("leaseDurationSeconds")
        return float(found) if isinstance(found, int) and found > 0 else float(_DURATION_S)

    @property
    def transitions(self) -> int:
        found = self.spec.get("leaseTransitions")
        return found if isinstance(found, int) else 0


class LeaderElector:
    """One candidate: `acquire`, `hold` beside the work, `release` when nothing of the work is left."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        *,
        duration_s: int = 15,
        renew_s: float = 2.0,
        deadline_s: float = 10.0,
        request_s_max: float = 15.0,
        predecessor_prefix: str = "",
        clock: Callable[[], float] = _seconds,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        jitter: Callable[[], float] = random.random,
    ) -> None:
        if not 0 < renew_s < deadline_s < duration_s:
            raise BadRequest(
                "a holder must try to renew, and give up, before others may take over",
                where=f"lease {namespace}/{name}",
                found=f"renewal {renew_s:g} s, deadline {deadline_s:g} s, duration {duration_s:g} s",
                expected="each longer than the one before",
            )
        if not identity:
            raise BadRequest("nobody has no identity", where=f"lease {namespace}/{name}", expected="a name")
        self.identity = identity
        self.problem = ""  # why the office could not be taken, last
        self.lost = asyncio.Event()
        self._client = client
        self._namespace = namespace
        self._name = name
        self._duration_s = duration_s
        self._renew_s = renew_s
        self._deadline_s = deadline_s
        self._request_s_max = request_s_max
        self._predecessor_prefix = predecessor_prefix
        self._clock = clock
        self._wall = wall
        self._jitter = jitter
        self._request_s = min(client.timeout_s, deadline_s / 2)  # a renewal that hangs is tried again in time
        self._path = LEASES.path(namespace, name)
        self._record: _Record | None = None  # as last seen or written
        self._record_at = 0.0  # when it was first seen so
        self._tried: tuple[dict[str, Any], float] | None = None  # what was last sent, and when
        self._renewed_at: float | None = None  # before the last accepted write was sent; None: not in office

    @property
    def until(self) -> float:
        """Of the clock: until then nobody else can be in office. Minus infinity if we are not."""
        return float("-inf") if self._renewed_at is None else self._renewed_at + self._duration_s

    @property
    def holder(self) -> str:
        """Who is in office, as last seen."""
        return self._record.holder if self._record is not None else ""

    @property
    def transitions(self) -> int:
        """How often the office changed hands: grows with every holder."""
        return self._record.transitions if self._record is not None else 0

    def is_leader(self, margin_s: float = 0.0) -> bool:
        """And surely will be for `margin_s`: ask with the time that what you are about to send can take."""
        return self._clock() + margin_s < self.until

    async def acquire(self) -> None:
        """Returns when we are in office. Faults of the server are waited out."""
        self.lost = asyncio.Event()
        while True:
            try:
                is_taken = await self._try_acquire()
                self.problem = ""
                if is_taken:
                    _LOG.info("%s holds lease %s/%s", self.identity, self._namespace, self._name)
                    return
            except Forbidden as error:
                self.problem = f"we are not allowed to get, create and update leases: {error}"
                _LOG.error("%s", self.problem)
            except (ApiError, Unavailable) as error:
                self.problem = str(error)
                _LOG.warning("lease %s/%s: %s", self._namespace, self._name, error)
            await asyncio.sleep(self._renew_s * (0.5 + 0.5 * self._jitter()))

    async def hold(self) -> None:
        """Renews for ever. Raises `LeaseLost`, and sets `lost`, when we cannot be sure to stay in office."""
        try:
            while True:
                await asyncio.sleep(self._renew_s * (0.75 + 0.25 * self._jitter()))
                await self._renew()
        except LeaseLost:
            self._renewed_at = None
            self.lost.set()
            raise

    async def release(self) -> None:
        """Lets the next one in at once. To be called when nothing that we sent is under way any more."""
        record, self._record = self._record, None
        held, self._renewed_at = self._renewed_at, None
        self.lost.set()
        if record is None or held is None:
            return
        now = micro_time(self._wall())
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": now, "acquireTime": now}
        with suppress(ApiError, Unavailable):  # it runs out by itself
            await self._put(record, spec)

    async def close(self) -> None:
        await self.release()

    async def _try_acquire(self) -> bool:
        try:
            record = await self._client.get(self._path, _Record, urgent=True, timeout_s=self._request_s)
        except NotFound:
            # Somebody deleted it, and its holder may not know yet.
            return False if self._is_held() else await self._create()
        self._see(record)
        if self._tried is not None and _is_same(record.spec, self._tried[0]):
            return await self._take(record, self._renewal())
        if self._is_held():
            return False
        now = micro_time(self._wall())
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._duration_s,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": record.transitions + 1,
        }
        return await self._take(record, spec)

    def _is_held(self) -> bool:
        """By somebody who may still be at work, as far as we saw."""
        if self._record is None or not self._record.holder:
            return False
        is_dead = bool(self._predecessor_prefix) and self._record.holder.startswith(self._predecessor_prefix)
        lasts_s = 0.0 if is_dead else self._record.duration_s
        return self._clock() < self._record_at + lasts_s + self._request_s_max

    async def _take(self, record: _Record, spec: dict[str, Any]) -> bool:
        try:
            await self._write(record, spec)
        except ApiConflict:
            return False
        return self.is_leader()

    async def _create(self) -> bool:
        now = micro_time(self._wall())
        spec: dict[str, Any] = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._duration_s,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0 if self._record is None else self._record.transitions + 1,
        }
        body = {
            "apiVersion": LEASES.group_version,
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": spec,
        }
        sent_at = self._clock()
        self._tried = (spec, sent_at)
        path = LEASES.path(self._namespace)
        try:
            record = await self._client.create(path, body, _Record, urgent=True, timeout_s=self._request_s)
        except AlreadyExists:
            return False
        self._accepted(record, sent_at)
        return self.is_leader()

    async def _renew(self) -> None:
        """One renewal, tried until the deadline."""
        while True:
            if self._renewed_at is None or self._record is None:
                raise LeaseLost("not in office")
            left_s = self._renewed_at + self._deadline_s - self._clock()
            if left_s <= 0:
                raise LeaseLost(f"not renewed for {self._deadline_s:g} s")
            try:
                async with asyncio.timeout(left_s):
                    await self._write(self._record, self._renewal())
                return
            except ApiConflict:
                await self._look(left_s)
            except NotFound as error:
                raise LeaseLost("the lease was deleted") from error
            except TimeoutError:
                continue
            except (ApiError, Unavailable) as error:
                _LOG.warning("lease %s/%s was not renewed: %s", self._namespace, self._name, error)
                await asyncio.sleep(min(self._renew_s, left_s) * (0.25 + 0.25 * self._jitter()))
                if isinstance(error, OutcomeUnknown):
                    await self._look(left_s)

    def _renewal(self) -> dict[str, Any]:
        return {"renewTime": micro_time(self._wall()), "leaseDurationSeconds": self._duration_s}

    async def _look(self, left_s: float) -> None:
        """Reads the record again: somebody may have touched it, or a renewal may have been done after all."""
        try:
            async with asyncio.timeout(left_s):
                record = await self._client.get(self._path, _Record, urgent=True, timeout_s=self._request_s)
        except NotFound as error:
            raise LeaseLost("the lease was deleted") from error
        except (ApiError, Unavailable, TimeoutError):
            return
        if record.holder != self.identity:
            raise LeaseLost(f"{record.holder or 'nobody'} holds the lease")
        if self._tried is not None and _is_same(record.spec, self._tried[0]):
            self._renewed_at = self._tried[1]
        self._see(record)

    async def _write(self, record: _Record, spec: dict[str, Any]) -> None:
        sent_at = self._clock()
        self._tried = ({**record.spec, **spec}, sent_at)
        self._accepted(await self._put(record, spec), sent_at)

    async def _put(self, record: _Record, spec: dict[str, Any]) -> _Record:
        body = {
            "apiVersion": LEASES.group_version,
            "kind": "Lease",
            "metadata": record.metadata,
            "spec": {**record.spec, **spec},
        }
        return await self._client.replace(self._path, body, _Record, urgent=True, timeout_s=self._request_s)

    def _accepted(self, record: _Record, sent_at: float) -> None:
        self._see(record)
        self._renewed_at = sent_at

    def _see(self, record: _Record) -> None:
        """A record that says the same, whoever touched its labels, is as old as it was."""
        if self._record is None or not _is_same(record.spec, self._record.spec):
            self._record_at = self._clock()
        self._record = record


def _is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one.get(key) == other.get(key) for key in _TERMS)
