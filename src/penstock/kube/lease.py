"""Leader election by Lease.

Uses only the local monotonic clock, so clock skew between hosts cannot produce two leaders; the times in the
Lease are informational. A candidate acquires the Lease only after it has observed it unchanged for the lease
duration plus `request_s_max`, the time that a request of the previous leader can still be in flight. The
leader counts from before it sent the last accepted renewal, so its `expires_at` precedes every takeover; it
gives up at `renew_deadline_s`, earlier still. A process that was paused, or whose host was suspended, learns
from its own clock that its term has ended before it writes.

Every write carries the resourceVersion that was read, so one of two concurrent writers gets a conflict. After
a write with unknown outcome, the Lease is read before the next decision. `identity` is unique per process: a
candidate that finds its own identity in a Lease that it did not write waits like any other. A candidate that
knows, by a lock of its own, that its predecessors are dead waits only `request_s_max` after a holder whose
identity starts with `predecessor_prefix`.

An elector may run in a thread of its own (`election_thread`), so that a busy process keeps its Lease. A stuck
one must not: the Lease is renewed only while `progress_age_s`, the time since the process last made progress,
is at most `progress_timeout_s`. After that it is not the leader, at once, and another candidate takes over
when the Lease has expired. `is_leader`, `holder`, `transitions` and `problem` may be read from any thread.
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
_DEFAULT_DURATION_S: Final = 15  # Of a Lease without leaseDurationSeconds.
_COMPARED_FIELDS: Final = (
    "holderIdentity",
    "leaseDurationSeconds",
    "acquireTime",
    "renewTime",
    "leaseTransitions",
)


def _monotonic_s() -> float:
    """A monotonic clock, which on Linux also advances while the host is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class LeaseLost(Unavailable):
    """This process is not the leader any more, or cannot prove that it is."""


class _Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A Lease with all its fields, also those of other writers: an update has to send them back."""

    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    spec: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def holder(self) -> str:
        return str(self.spec.get("holderIdentity") or "")

    @property
    def duration_s(self) -> float:
        found = self.spec.get("leaseDurationSeconds")
        return float(found) if isinstance(found, int) and found > 0 else float(_DEFAULT_DURATION_S)

    @property
    def transitions(self) -> int:
        found = self.spec.get("leaseTransitions")
        return found if isinstance(found, int) else 0


class LeaderElector:
    """One candidate: `acquire`, then `renew` while leading, then `release` when no request is in flight."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        *,
        lease_duration_s: int = 15,
        renew_interval_s: float = 2.0,
        renew_deadline_s: float = 10.0,
        request_s_max: float = 15.0,
        predecessor_prefix: str = "",
        progress_age_s: Callable[[], float] = lambda: 0.0,
        progress_timeout_s: float = 60.0,
        clock: Callable[[], float] = _monotonic_s,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        jitter: Callable[[], float] = random.random,
    ) -> None:
        if not 0 < renew_interval_s < renew_deadline_s < lease_duration_s:
            raise BadRequest(
                "a leader must renew, and give up, before another candidate may take over",
                where=f"lease {namespace}/{name}",
                found=f"renewal interval {renew_interval_s:g} s, renewal deadline {renew_deadline_s:g} s, "
                f"lease duration {lease_duration_s:g} s",
                expected="interval < deadline < duration",
            )
        if not identity:
            raise BadRequest(
                "empty identity", where=f"lease {namespace}/{name}", expected="a name unique to this process"
            )
        self.identity = identity
        self.problem = ""  # Why the last attempt to acquire the Lease failed.
        self._client = client
        self._namespace = namespace
        self._name = name
        self._lease_duration_s = lease_duration_s
        self._renew_interval_s = renew_interval_s
        self._renew_deadline_s = renew_deadline_s
        self._request_s_max = request_s_max
        self._predecessor_prefix = predecessor_prefix
        self._progress_age_s = progress_age_s
        self._progress_timeout_s = progress_timeout_s
        self._clock = clock
        self._wall_clock = wall_clock
        self._jitter = jitter
        # A renewal that hangs is retried before the deadline.
        self._request_timeout_s = min(client.timeout_s, renew_deadline_s / 2)
        self._path = LEASES.path(namespace, name)
        self._lease: _Lease | None = None  # As last read or written.
        self._unchanged_since = 0.0  # When this state of the Lease was first observed.
        self._last_write: tuple[dict[str, Any], float] | None = None  # The spec sent, and when.
        # Taken before the last accepted write was sent. None: not the leader.
        self._renewed_at: float | None = None

    @property
    def expires_at(self) -> float:
        """Before this time of the clock no other process can be leader. -inf if this one is not."""
        renewed_at = self._renewed_at  # Another thread may change it.
        return float("-inf") if renewed_at is None else renewed_at + self._lease_duration_s

    @property
    def holder(self) -> str:
        """The identity of the leader, as last observed."""
        lease = self._lease
        return lease.holder if lease is not None else ""

    @property
    def transitions(self) -> int:
        """`leaseTransitions`: incremented with every change of the leader."""
        lease = self._lease
        return lease.transitions if lease is not None else 0

    def is_leader(self, margin_s: float = 0.0) -> bool:
        """Whether this process stays leader for `margin_s`, the timeout of the request to be sent."""
        return self._clock() + margin_s < self.expires_at

    async def acquire(self) -> None:
        """Returns when this process is the leader. Retries on errors of the server."""
        while True:
            try:
                is_acquired = await self._try_acquire()
                self.problem = ""
                if is_acquired:
                    _LOG.info("%s acquired lease %s/%s", self.identity, self._namespace, self._name)
                    return
            except Forbidden as error:
                self.problem = f"not allowed to get, create and update leases, RBAC must grant it: {error}"
                _LOG.error("%s", self.problem)
            except (ApiError, Unavailable) as error:
                self.problem = str(error)
                _LOG.warning("lease %s/%s: %s", self._namespace, self._name, error)
            await asyncio.sleep(self._renew_interval_s * (0.5 + 0.5 * self._jitter()))

    async def renew(self) -> None:
        """Renews the Lease until it is lost, then raises `LeaseLost`."""
        try:
            while True:
                await asyncio.sleep(self._renew_interval_s * (0.75 + 0.25 * self._jitter()))
                await self._renew_once()
        except LeaseLost as error:
            self._renewed_at = None
            _LOG.warning("%s lost lease %s/%s: %s", self.identity, self._namespace, self._name, error)
            raise

    async def release(self) -> None:
        """Clears the holder, so that another candidate need not wait. Call with no request in flight."""
        lease, self._lease = self._lease, None
        renewed_at, self._renewed_at = self._renewed_at, None
        if lease is None or renewed_at is None:
            return
        now = micro_time(self._wall_clock())
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": now, "acquireTime": now}
        with suppress(ApiError, Unavailable):  # The Lease expires anyway.
            await self._put(lease, spec)

    async def _try_acquire(self) -> bool:
        try:
            lease = await self._client.get(self._path, _Lease, urgent=True, timeout_s=self._request_timeout_s)
        except NotFound:
            # The Lease was deleted, and the leader may not have noticed yet.
            return False if self._is_held() else await self._create()
        self._observe(lease)
        if self._last_write is not None and _specs_equal(lease.spec, self._last_write[0]):
            return await self._take(lease, self._renewal_spec())
        if self._is_held():
            return False
        now = micro_time(self._wall_clock())
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._lease_duration_s,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": lease.transitions + 1,
        }
        return await self._take(lease, spec)

    def _is_held(self) -> bool:
        """Whether the observed holder may still be leading."""
        if self._lease is None or not self._lease.holder:
            return False
        is_predecessor = bool(self._predecessor_prefix) and self._lease.holder.startswith(
            self._predecessor_prefix
        )
        duration_s = 0.0 if is_predecessor else self._lease.duration_s
        return self._clock() < self._unchanged_since + duration_s + self._request_s_max

    async def _take(self, lease: _Lease, spec: dict[str, Any]) -> bool:
        try:
            await self._write(lease, spec)
        except ApiConflict:
            return False
        return self.is_leader()

    async def _create(self) -> bool:
        now = micro_time(self._wall_clock())
        spec: dict[str, Any] = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._lease_duration_s,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0 if self._lease is None else self._lease.transitions + 1,
        }
        body = {
            "apiVersion": LEASES.group_version,
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": spec,
        }
        sent_at = self._clock()
        self._last_write = (spec, sent_at)
        path = LEASES.path(self._namespace)
        try:
            lease = await self._client.create(
                path, body, _Lease, urgent=True, timeout_s=self._request_timeout_s
            )
        except AlreadyExists:
            return False
        self._accepted(lease, sent_at)
        return self.is_leader()

    async def _renew_once(self) -> None:
        """Renews the Lease once, with retries until the deadline."""
        while True:
            if self._renewed_at is None or self._lease is None:
                raise LeaseLost("this process is not the leader")
            age_s = self._progress_age_s()
            if age_s > self._progress_timeout_s:
                raise LeaseLost(
                    f"the instance is stuck: its loop has made no progress for {age_s:.0f} s,"
                    f" more than {self._progress_timeout_s:g} s"
                )
            remaining_s = self._renewed_at + self._renew_deadline_s - self._clock()
            if remaining_s <= 0:
                raise LeaseLost(f"the lease was not renewed for {self._renew_deadline_s:g} s")
            try:
                async with asyncio.timeout(remaining_s):
                    await self._write(self._lease, self._renewal_spec())
                return
            except ApiConflict:
                await self._read_again(remaining_s)
            except NotFound as error:
                raise LeaseLost("the lease was deleted") from error
            except TimeoutError:
                continue
            except (ApiError, Unavailable) as error:
                _LOG.warning("renewal of lease %s/%s failed: %s", self._namespace, self._name, error)
                await asyncio.sleep(min(self._renew_interval_s, remaining_s) * (0.25 + 0.25 * self._jitter()))
                if isinstance(error, OutcomeUnknown):
                    await self._read_again(remaining_s)

    def _renewal_spec(self) -> dict[str, Any]:
        return {"renewTime": micro_time(self._wall_clock()), "leaseDurationSeconds": self._lease_duration_s}

    async def _read_again(self, remaining_s: float) -> None:
        """Checks whether another process wrote the Lease, or whether a renewal was applied after all."""
        try:
            async with asyncio.timeout(remaining_s):
                lease = await self._client.get(
                    self._path, _Lease, urgent=True, timeout_s=self._request_timeout_s
                )
        except NotFound as error:
            raise LeaseLost("the lease was deleted") from error
        except (ApiError, Unavailable, TimeoutError):
            return
        if lease.holder != self.identity:
            raise LeaseLost(f"{lease.holder or 'no process'} holds the lease")
        if self._last_write is not None and _specs_equal(lease.spec, self._last_write[0]):
            self._renewed_at = self._last_write[1]
        self._observe(lease)

    async def _write(self, lease: _Lease, spec: dict[str, Any]) -> None:
        sent_at = self._clock()
        self._last_write = ({**lease.spec, **spec}, sent_at)
        self._accepted(await self._put(lease, spec), sent_at)

    async def _put(self, lease: _Lease, spec: dict[str, Any]) -> _Lease:
        body = {
            "apiVersion": LEASES.group_version,
            "kind": "Lease",
            "metadata": lease.metadata,
            "spec": {**lease.spec, **spec},
        }
        return await self._client.replace(
            self._path, body, _Lease, urgent=True, timeout_s=self._request_timeout_s
        )

    def _accepted(self, lease: _Lease, sent_at: float) -> None:
        self._observe(lease)
        self._renewed_at = sent_at

    def _observe(self, lease: _Lease) -> None:
        """Only a change of the compared fields restarts the wait, not one of the metadata."""
        if self._lease is None or not _specs_equal(lease.spec, self._lease.spec):
            self._unchanged_since = self._clock()
        self._lease = lease


def _specs_equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one.get(key) == other.get(key) for key in _COMPARED_FIELDS)
