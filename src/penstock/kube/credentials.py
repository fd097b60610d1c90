"""Who we are to a server, as it may change while we run.

A credential is asked before every request, so that a token file that was rotated, or a plugin's token that
ran out, is seen without anybody watching. What a server refused with 401 is given back once: files are read
and plugins run again, and if the answer stays 401, it stands.
"""

from __future__ import annotations

import asyncio
import contextlib
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
    "FixedToken",
    "TokenFile",
    "checked_api_version",
]

_TOKEN_MAX_BYTES: Final = 1 << 20
_PLUGIN_TIMEOUT_S: Final = 60.0
_PLUGIN_OUTPUT_MAX_BYTES: Final = 1 << 20
_EARLY_S: Final = 30.0  # a token that has less than this, and less than a tenth of its life, is renewed


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """Credentials of a request. `certificate` comes from an exec plugin; a kubeconfig's is in `TlsConfig`."""

    token: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)


class Credential(Protocol):
    async def identity(self) -> ClientIdentity:
        """May raise `Unreachable`: without it nothing is sent."""
        ...

    def refused(self, identity: ClientIdentity) -> bool:
        """The server said 401 to it. True if another one may be had."""
        ...


class Anonymous:
    """No credential of its own; the TLS material may have a client certificate."""

    async def identity(self) -> ClientIdentity:
        return ClientIdentity()

    def refused(self, identity: ClientIdentity) -> bool:  # noqa: ARG002
        return False


class FixedToken:
    def __init__(self, token: str) -> None:
        self._identity = ClientIdentity(token)

    async def identity(self) -> ClientIdentity:
        return self._identity

    def refused(self, identity: ClientIdentity) -> bool:  # noqa: ARG002
        return False


class TokenFile:
    """A token that somebody else replaces in time: the projected one of a service account."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark: tuple[int, int, int] | None = None
        self._identity = ClientIdentity()

    async def identity(self) -> ClientIdentity:
        try:
            found = self._path.stat()
            mark = (found.st_ino, found.st_mtime_ns, found.st_size)
            if mark != self._mark:
                with self._path.open("rb") as file:
                    token = file.read(_TOKEN_MAX_BYTES).decode().strip()
                if not token:
                    raise ValueError("the file is empty")
                self._mark = mark
                if token != self._identity.token:
                    self._identity = ClientIdentity(token)
        except (OSError, ValueError) as error:
            if self._identity.token:
                return self._identity  # in the middle of a rotation; the old one serves a while longer
            raise Unreachable(f"{self._path}: the token cannot be read: {error}") from error
        return self._identity

    def refused(self, identity: ClientIdentity) -> bool:
        if identity is self._identity:
            self._mark = None
        return True


class _ExecStatus(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str | None = None


class _ExecAnswer(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    kind: str = ""
    api_version: str = ""
    status: _ExecStatus | None = None


@dataclass(frozen=True, slots=True)
class ExecCommand:
    """A stanza `exec` of a kubeconfig; `cluster` is what it is told of the cluster, if it wants to be."""

    api_version: str
    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    install_hint: str = ""
    cluster: Mapping[str, object] | None = None
    where: str = ""


class ExecPlugin:
    """A program that prints a credential (`client.authentication.k8s.io`), run again when it runs out."""

    def __init__(
        self,
        command: ExecCommand,
        *,
        wall: Callable[[], float] = time.time,
        timeout_s: float = _PLUGIN_TIMEOUT_S,
    ) -> None:
        self._command = command
        self._wall = wall
        self._timeout_s = timeout_s
        self._identity: ClientIdentity | None = None
        self._renew_at: float | None = None
        self._running = asyncio.Lock()

    async def identity(self) -> ClientIdentity:
        if (held := self._held()) is not None:
            return held
        async with self._running:
            if (held := self._held()) is not None:
                return held
            began = self._wall()
            status = await self._run()
            identity = ClientIdentity(
                status.token, status.client_certificate_data.encode(), status.client_key_data.encode()
            )
            self._identity = identity
            self._renew_at = self._time_to_renew(status.expiration_timestamp, began)
            return identity

    def refused(self, identity: ClientIdentity) -> bool:
        if identity is self._identity:
            self._identity = None
        return True

    def _held(self) -> ClientIdentity | None:
        if self._identity is None or (self._renew_at is not None and self._wall() >= self._renew_at):
            return None
        return self._identity

    def _time_to_renew(self, expiry: str | None, began: float) -> float | None:
        if not expiry:
            return None
        try:
            ends = datetime.fromisoformat(expiry).timestamp()
        except ValueError as error:
            raise self._fault(f"printed the expiry {expiry[:40]!r}, which is no time") from error
        return ends - min(_EARLY_S, max(0.0, ends - began) / 10)

    async def _run(self) -> _ExecStatus:
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
            raise self._fault(f"cannot be run: {error.strerror or error}.{hint}") from error
        try:
            async with asyncio.timeout(self._timeout_s):
                said, complaint = await asyncio.gather(_drain(process.stdout), _drain(process.stderr))
                code = await process.wait()
        except TimeoutError as error:
            raise self._fault(f"took longer than {self._timeout_s:g} s") from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError, TimeoutError):
                    process.kill()
                    async with asyncio.timeout(1.0):  # dead, but what it left behind may keep its pipes open
                        await process.wait()
        if code != 0:
            last = complaint.decode(errors="replace").strip()[-500:]
            raise self._fault(f"ended with {code}: {last or '(no text)'}")
        return self._read(said)

    def _read(self, said: bytes) -> _ExecStatus:
        try:
            answer = msgspec.json.decode(said, type=_ExecAnswer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._fault(f"printed no ExecCredential: {error}") from error
        if answer.kind != "ExecCredential" or answer.api_version != self._command.api_version:
            raise self._fault(
                f"printed {answer.kind or 'no kind'} of {answer.api_version or 'no version'}, "
                f"expected ExecCredential of {self._command.api_version}"
            )
        status = answer.status
        if status is None or not (status.token or status.client_certificate_data):
            raise self._fault("printed neither a token nor a certificate")
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise self._fault("printed a certificate without its key, or a key alone")
        return status

    def _fault(self, what: str) -> Unreachable:
        where = f"{self._command.where}: " if self._command.where else ""
        return Unreachable(f"{where}the plugin {self._command.command} {what}")


async def _drain(stream: asyncio.StreamReader | None) -> bytes:
    """All that a plugin prints, up to a bound; the rest is read and dropped, so that it does not block."""
    assert stream is not None
    kept = bytearray()
    while chunk := await stream.read(1 << 16):
        if len(kept) < _PLUGIN_OUTPUT_MAX_BYTES:
            kept += chunk
    return bytes(kept)


def checked_api_version(found: str, where: str) -> str:
    known = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
    if found not in known:
        raise BadRequest(
            "the plugin speaks a version that we do not",
            where=where,
            found=found,
            expected=" or ".join(known),
        )
    return found
