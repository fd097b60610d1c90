"""TLS contexts from certificate files that may be rotated while the process runs.

A context is kept until one of its files changes. An open connection keeps its context; the next connection
gets the new one. If the files are unusable, as they can be in the middle of a rotation, the old context stays
in use.
"""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.errors import BadRequest
from penstock.kube.credentials import ClientIdentity

__all__ = ["TlsConfig", "TlsContexts"]

_LOG: Final = logging.getLogger(__name__)
_CHECK_S: Final = 1.0  # Minimum interval between checks of the files.

_Stamps = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """CA, certificate and key are each a file or PEM data, not both. Default CAs: those of the system."""

    verify: bool = True
    ca_file: Path | None = None
    ca_data: bytes = b""
    certificate_file: Path | None = None
    key_file: Path | None = None
    certificate_data: bytes = field(default=b"", repr=False)
    key_data: bytes = field(default=b"", repr=False)
    server_name: str = ""

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(
            path for path in (self.ca_file, self.certificate_file, self.key_file) if path is not None
        )


class TlsContexts:
    """Provides the context for the next connection."""

    def __init__(self, tls: TlsConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tls = tls
        self._clock = clock
        self._context: ssl.SSLContext | None = None
        self._key_pair: tuple[bytes, bytes] = (b"", b"")
        self._stamps: _Stamps = ()
        self._next_check_at = 0.0

    def context(self, identity: ClientIdentity) -> ssl.SSLContext:
        """Raises `BadRequest` if there is no usable context, not even an old one."""
        key_pair = (identity.certificate, identity.key)
        if self._context is not None and key_pair == self._key_pair:
            if not self._tls.files or self._clock() < self._next_check_at:
                return self._context
            self._next_check_at = self._clock() + _CHECK_S
            if _stamps(self._tls.files) == self._stamps:
                return self._context
        try:
            stamps = _stamps(self._tls.files)
            context = _make_context(self._tls, identity)
        except BadRequest as error:
            if self._context is None or key_pair != self._key_pair:
                raise
            _LOG.warning("the changed TLS files are unusable, the previous ones stay in use: %s", error)
            return self._context
        self._context, self._key_pair, self._stamps = context, key_pair, stamps
        self._next_check_at = self._clock() + _CHECK_S
        return context


def _stamps(paths: tuple[Path, ...]) -> _Stamps:
    stamps = []
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            stamps.append((0, 0, 0))
        else:
            stamps.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
    return tuple(stamps)


def _make_context(tls: TlsConfig, identity: ClientIdentity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca_file is None and not tls.ca_data:
        context.load_default_certs()
    else:
        _load_ca(context, tls)
    if identity.certificate:
        _load_key_pair_data(context, identity.certificate, identity.key)
    elif tls.certificate_file is not None or tls.certificate_data:
        _load_key_pair(context, tls)
    return context


def _load_ca(context: ssl.SSLContext, tls: TlsConfig) -> None:
    where = str(tls.ca_file or "certificate-authority-data")
    try:
        data = tls.ca_data if tls.ca_file is None else tls.ca_file.read_bytes()
        # Bundles have comments between the certificates, in any encoding; OpenSSL ignores them.
        context.load_verify_locations(cadata=_ascii(data))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise BadRequest(
            "unusable certificate authority",
            where=where,
            found=str(error),
            expected="PEM certificates",
        ) from error


def _ascii(data: bytes) -> str:
    """PEM as a text that `ssl` accepts: a byte that is not ASCII is a question mark."""
    return bytes(byte if byte < 128 else ord("?") for byte in data).decode("ascii")


def _load_key_pair(context: ssl.SSLContext, tls: TlsConfig) -> None:
    """Loads two files directly; any other combination is loaded as data."""
    if tls.certificate_file is not None and tls.key_file is not None:
        _load_key_pair_files(context, tls.certificate_file, tls.key_file)
        return
    try:
        certificate = tls.certificate_data or (tls.certificate_file or Path()).read_bytes()
        key = tls.key_data or (tls.key_file or Path()).read_bytes()
    except OSError as error:
        raise BadRequest(
            "cannot read the client certificate", where=str(error.filename), found=error.strerror or ""
        ) from error
    _load_key_pair_data(context, certificate, key)


def _load_key_pair_files(context: ssl.SSLContext, certificate: Path, key: Path, where: str = "") -> None:
    try:
        context.load_cert_chain(certificate, key, password=_reject_password)
    except (OSError, ValueError) as error:
        raise BadRequest(
            "unusable client certificate or key",
            where=where or f"{certificate}, {key}",
            found=str(error),
            expected="a PEM certificate and its private key",
        ) from error


def _load_key_pair_data(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """`ssl` loads only files: writes a temporary one, readable by this user alone, and deletes it."""
    descriptor, name = tempfile.mkstemp(prefix="penstock-", suffix=".pem")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(certificate.rstrip() + b"\n" + key.rstrip() + b"\n")
        _load_key_pair_files(
            context, Path(name), Path(name), where="client-certificate-data, client-key-data"
        )
    finally:
        os.unlink(name)


def _reject_password() -> str:
    raise ValueError("the key is encrypted")  # Otherwise OpenSSL prompts on the terminal.
