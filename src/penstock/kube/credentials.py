"""Credentials for the API server, which may change while the process runs.

`Credential.identity` is called before every request, so a rotated token file or an expired token of an exec
plugin needs no background task. While a plugin that runs before the expiry of its token fails, that token
stays in use. After a 401, the transport calls `invalidate` once: the file is read again or
the plugin runs again. A second 401 is final.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

import msgspec

from penstock.errors import BadRequest
from penstock.kube.errors import Unreachable

__all__ = [
    "Anonymous",
    "ClientIdentity",
    "Credential",
    "ExecCommand",
    "ExecPlugin",
    "StaticToken",
    "TokenFile",
    "check_api_version",
]

_LOG: Final = logging.getLogger(__name__)
_TOKEN_MAX_BYTES: Final = 1 << 20
_PLUGIN_TIMEOUT_S: Final = 60.0
_PLUGIN_OUTPUT_MAX_BYTES: Final = 1 << 20
_RENEW_EARLY_S: Final = 30.0  # Before expiry; a tenth of the lifetime for short-lived credentials.
_RENEW_PAUSE_S: Final = 5.0  # After a failed renewal, if the credential is still valid.


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """What authenticates a request. `certificate` is of an exec plugin; a kubeconfig's is in `TlsConfig`."""

    token: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)


class Credential(Protocol):
    async def identity(self) -> ClientIdentity:
        """Raises `Unreachable` if no credential can be obtained: then no request is sent."""
        ...

    def invalidate(self, identity: ClientIdentity) -> bool:
        """The server rejected `identity` with 401. Returns whether a new one may be obtained."""
        ...


class Anonymous:
    """No token. `TlsConfig` may have a client certificate."""

    async def identity(self) -> ClientIdentity:
        return ClientIdentity()

    def invalidate(self, identity: ClientIdentity) -> bool:  # noqa: ARG002
        return False


class StaticToken:
    def __init__(self, token: str) -> None:
        self._identity = ClientIdentity(token)

    async def identity(self) -> ClientIdentity:
        return self._identity

    def invalidate(self, identity: ClientIdentity) -> bool:  # noqa: ARG002
        return False


class TokenFile:
    """A token file that is rotated by others, as the kubelet does for a service account."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._identity = ClientIdentity()

    async def identity(self) -> ClientIdentity:
        try:
            stat = self._path.stat()
            stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if stamp != self._stamp:
                with self._path.open("rb") as file:
                    token = file.read(_TOKEN_MAX_BYTES).decode().strip()
                if not token:
                    raise ValueError("the file is empty")
                self._stamp = stamp
                if token != self._identity.token:
                    self._identity = ClientIdentity(token)
        except (OSError, ValueError) as error:
            if self._identity.token:
                return self._identity  # A rotation may be in progress; the old token remains valid.
            raise Unreachable(f"{self._path}: cannot read the token: {error}") from error
        return self._identity

    def invalidate(self, identity: ClientIdentity) -> bool:
        if identity is self._identity:
            self._stamp = None
        return True


class _ExecCredentialStatus(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str | None = None


class _ExecCredential(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    kind: str = ""
    api_version: str = ""
    status: _ExecCredentialStatus | None = None


@dataclass(frozen=True, slots=True)
class ExecCommand:
    """The `exec` of a kubeconfig user. `cluster` is set if `provideClusterInfo` is."""

    api_version: str
    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    install_hint: str = ""
    cluster: Mapping[str, object] | None = None
    where: str = ""


class ExecPlugin:
    """A `client.authentication.k8s.io` plugin: prints a credential, and runs again before it expires."""

    def __init__(
        self,
        command: ExecCommand,
        *,
        wall_clock: Callable[[], float] = time.time,
        timeout_s: float = _PLUGIN_TIMEOUT_S,
    ) -> None:
        self._command = command
        self._wall_clock = wall_clock
        self._timeout_s = timeout_s
        self._identity: ClientIdentity | None = None
        self._renew_at: float | None = None
        self._expires_at: float | None = None
        self._running = asyncio.Lock()

    async def identity(self) -> ClientIdentity:
        if (cached := self._cached()) is not None:
            return cached
        if self._running.locked() and self._identity is not None and self._valid_s() > 0:
            return self._identity
        async with self._running:
            if (cached := self._cached()) is not None:
                return cached
            try:
                return await self._renew()
            except Unreachable as error:
                valid_s = self._valid_s()
                if self._identity is None or valid_s <= 0:
                    raise
                self._renew_at = self._wall_clock() + min(valid_s, _RENEW_PAUSE_S)
                _LOG.warning("%s; its last credential is valid for another %.0f s", error, valid_s)
                return self._identity

    def _valid_s(self) -> float:
        """How long the last credential is still valid; 0 without one, or without a known expiry."""
        is_known = self._identity is not None and self._expires_at is not None
        return max(0.0, (self._expires_at or 0.0) - self._wall_clock()) if is_known else 0.0

    async def _renew(self) -> ClientIdentity:
        """Runs the plugin; with little patience while the last credential is valid, as a request waits."""
        started_at = self._wall_clock()
        timeout_s = min(self._timeout_s, self._valid_s() / 4) if self._valid_s() > 4.0 else self._timeout_s
        status = await self._run(timeout_s)
        expires_at = self._expiry(status.expiration_timestamp)
        self._identity = ClientIdentity(
            status.token, status.client_certificate_data.encode(), status.client_key_data.encode()
        )
        self._expires_at = self._renew_at = expires_at
        if expires_at is not None:
            self._renew_at = expires_at - min(_RENEW_EARLY_S, max(0.0, expires_at - started_at) / 10)
        return self._identity

    def invalidate(self, identity: ClientIdentity) -> bool:
        if identity is self._identity:
            self._identity = None
        return True

    def _cached(self) -> ClientIdentity | None:
        if self._identity is None or (self._renew_at is not None and self._wall_clock() >= self._renew_at):
            return None
        return self._identity

    def _expiry(self, expiry: str | None) -> float | None:
        if not expiry:
            return None
        try:
            return datetime.fromisoformat(expiry).timestamp()
        except ValueError as error:
            raise self._error(
                f"printed the expirationTimestamp {expiry[:40]!r}, expected RFC 3339"
            ) from error

    async def _run(self, timeout_s: float) -> _ExecCredentialStatus:
        spec: dict[str, object] = {"interactive": False}
        if self._command.cluster is not None:
            spec["cluster"] = dict(self._command.cluster)
        info = {"apiVersion": self._command.api_version, "kind": "ExecCredential", "spec": spec}
        env = {**os.environ, **dict(self._command.env)}
        env["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(info).decode()
        try:
            process = await asyncio.create_subprocess_exec(
                self._command.command,
                *self._command.args,
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            hint = f" {self._command.install_hint.strip()}" if self._command.install_hint else ""
            raise self._error(f"cannot be executed: {error.strerror or error}.{hint}") from error
        try:
            async with asyncio.timeout(timeout_s):
                stdout, stderr = await asyncio.gather(_drain(process.stdout), _drain(process.stderr))
                code = await process.wait()
        except TimeoutError as error:
            raise self._error(f"took longer than {timeout_s:.2g} s") from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError, TimeoutError):
                    process.kill()
                    async with asyncio.timeout(1.0):  # Its children may still hold the pipes open.
                        await process.wait()
        if code != 0:
            tail = stderr.decode(errors="replace").strip()[-500:]
            raise self._error(f"exited with {code}: {tail or '(no text)'}")
        return self._parse(stdout)

    def _parse(self, stdout: bytes) -> _ExecCredentialStatus:
        try:
            credential = msgspec.json.decode(stdout, type=_ExecCredential)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._error(f"did not print an ExecCredential: {error}") from error
        if credential.kind != "ExecCredential" or credential.api_version != self._command.api_version:
            raise self._error(
                f"printed {credential.kind or 'no kind'} of {credential.api_version or 'no version'}, "
                f"expected ExecCredential of {self._command.api_version}"
            )
        status = credential.status
        if status is None or not (status.token or status.client_certificate_data):
            raise self._error("printed neither a token nor a certificate")
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise self._error("printed a certificate without a key, or a key without a certificate")
        return status

    def _error(self, problem: str) -> Unreachable:
        where = f"{self._command.where}: " if self._command.where else ""
        return Unreachable(f"{where}the exec plugin {self._command.command} {problem}")


async def _drain(stream: asyncio.StreamReader | None) -> bytes:
    """Reads to the end, keeping up to a limit: a plugin must not block on a full pipe."""
    assert stream is not None
    kept = bytearray()
    while chunk := await stream.read(1 << 16):
        if len(kept) < _PLUGIN_OUTPUT_MAX_BYTES:
            kept += chunk
    return bytes(kept)


def check_api_version(found: str, where: str) -> str:
    supported = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
    if found not in supported:
        raise BadRequest(
            "unsupported version of the exec plugin protocol",
            where=where,
            found=found,
            expected=" or ".join(supported),
        )
    return found
