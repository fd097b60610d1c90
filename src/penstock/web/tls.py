"""The certificate of the TCP socket. Checked before anything is created, so without the server's imports."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import BadRequest

__all__ = ["TlsFiles", "check_tls"]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    certificate: Path  # with the chain, in PEM
    key: Path


def check_tls(files: TlsFiles) -> None:
    """Raises `BadRequest` if the files are not a certificate and its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An encrypted key is an error and not a prompt: nobody may be at the terminal.
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
    except OSError as error:  # SSLError is one.
        raise BadRequest(
            "cannot use the certificate or its key",
            where="--tls-cert, --tls-key",
            found=f"{files.certificate}, {files.key}: {error.strerror or error}",
            expected="a certificate and its unencrypted key in PEM",
        ) from None
