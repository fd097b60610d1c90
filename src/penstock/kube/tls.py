"""TLS material that may be replaced under us.

Contexts are made from files and kept until a file changes; a connection that exists keeps the context that it
was opened with, the next one gets the new one. A file that is unreadable in the middle of a rotation leaves
the old context in use.
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
_LOOK_S: Final = 1.0  # how often files are looked at, at most

_Marks = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Files and data exclude each other, pairwise; data are PEM. No CA means those of the system."""

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
    """The context for the next connection."""

    def __init__(self, tls: TlsConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tls = tls
        self._clock = clock
        self._context: ssl.SSLContext | None = None
        self._identity: tuple[bytes, bytes] = (b"", b"")
        self._marks: _Marks = ()
        self._look_at = 0.0

    def context(self, identity: ClientIdentity) -> ssl.SSLContext:
        """Raises `BadRequest` if the first one cannot be made."""
        wanted = (identity.certificate, identity.key)
        if self._context is not None and wanted == self._identity:
            if not self._tls.files or self._clock() < self._look_at:
                return self._context
            self._look_at = self._clock() + _LOOK_S
            if _marks(self._tls.files) == self._marks:
                return self._context
        try:
            marks = _marks(self._tls.files)
            context = _make(self._tls, identity)
        except BadRequest as error:
            if self._context is None or wanted != self._identity:
                raise
            _LOG.warning("TLS files changed and cannot be used, the old ones stay in use: %s", error)
            return self._context
        self._context, self._identity, self._marks = context, wanted, marks
        self._look_at = self._clock() + _LOOK_S
        return context


def _marks(paths: tuple[Path, ...]) -> _Marks:
    marks = []
    for path in paths:
        try:
            found = path.stat()
        except OSError:
            marks.append((0, 0, 0))
        else:
            marks.append((found.st_ino, found.st_mtime_ns, found.st_size))
    return tuple(marks)


def _make(tls: TlsConfig, identity: ClientIdentity) -> ssl.SSLContext:
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
        _load_pair_data(context, identity.certificate, identity.key)
    elif tls.certificate_file is not None or tls.certificate_data:
        _load_pair(context, tls)
    return context


def _load_ca(context: ssl.SSLContext, tls: TlsConfig) -> None:
    where = str(tls.ca_file or "certificate-authority-data")
    try:
        data = tls.ca_data if tls.ca_file is None else tls.ca_file.read_bytes()
        context.load_verify_locations(cadata=data.decode("ascii"))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise BadRequest(
            "the certificate authority cannot be used",
            where=where,
            found=str(error),
            expected="certificates in PEM",
        ) from error


def _load_pair(context: ssl.SSLContext, tls: TlsConfig) -> None:
    """From files as they are, or from data; a mixture goes through data."""
    if tls.certificate_file is not None and tls.key_file is not None:
        _load_pair_files(context, tls.certificate_file, tls.key_file)
        return
    try:
        certificate = tls.certificate_data or (tls.certificate_file or Path()).read_bytes()
        key = tls.key_data or (tls.key_file or Path()).read_bytes()
    except OSError as error:
        raise BadRequest(
            "the client certificate cannot be read", where=str(error.filename), found=error.strerror or ""
        ) from error
    _load_pair_data(context, certificate, key)


def _load_pair_files(context: ssl.SSLContext, certificate: Path, key: Path, where: str = "") -> None:
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise BadRequest(
            "the client certificate and its key cannot be used",
            where=where or f"{certificate}, {key}",
            found=str(error),
            expected="a certificate and the key that belongs to it, in PEM",
        ) from error


def _load_pair_data(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """The library reads files alone: it gets one that only we can read, for as long as it reads."""
    descriptor, name = tempfile.mkstemp(prefix="penstock-", suffix=".pem")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(certificate.rstrip() + b"\n" + key.rstrip() + b"\n")
        _load_pair_files(context, Path(name), Path(name), where="client-certificate-data, client-key-data")
    finally:
        os.unlink(name)


def _no_password() -> str:
    raise ValueError("the key is encrypted")  # without this, the library asks on the terminal
