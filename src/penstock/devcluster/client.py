"""A minimal synchronous Kubernetes API client: JSON requests, one connection per thread.

It sets up development clusters and inspects them in tests. It has no watch, no retry and no rate limit;
Penstock itself uses `penstock.kube`. It reads kubeconfigs with embedded certificates and keys only, as
`certificates` writes them.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import tempfile
import threading
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from penstock.errors import Conflict, Unavailable

__all__ = ["StatusError", "SyncClient"]

_TIMEOUT_S: Final = 30.0
_TEXT_MAX: Final = 400


class StatusError(Conflict):
    """The API server answered with a status of 400 or above."""

    def __init__(self, method: str, path: str, status: int, text: str) -> None:
        self.status = status
        super().__init__(f"{method} {path}: {status} {text[:_TEXT_MAX]}")


class SyncClient:
    """Sends requests to the server of a kubeconfig, as its user."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text("utf-8"))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._address = urlsplit(cluster["server"])
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._context = ssl.create_default_context(cadata=authority)
        pair = [base64.b64decode(user[f"client-{name}-data"]) for name in ("certificate", "key")]
        # The ssl module loads a client certificate from a file only. The file is removed at once.
        with tempfile.NamedTemporaryFile(dir=kubeconfig.parent) as file:
            file.write(b"".join(pair))
            file.flush()
            self._context.load_cert_chain(os.fspath(file.name))
        self._local = threading.local()

    def get(self, path: str) -> dict[str, Any]:
        return self.request("GET", path)

    def post(self, path: str, body: object) -> dict[str, Any]:
        return self.request("POST", path, body)

    def delete(self, path: str, body: object = None) -> dict[str, Any]:
        return self.request("DELETE", path, body)

    def request(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> dict[str, Any]:
        """The answer as a document. Raises `StatusError` for an error answer, `Unavailable` without one."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json", "Content-Type": content_type}
        connection = self._connection()
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            connection.close()  # the next request connects again
            raise Unavailable(f"the API server does not answer: {error}") from error
        if answer.status >= http.client.BAD_REQUEST:
            raise StatusError(method, path, answer.status, text)
        try:
            document = json.loads(text)
        except ValueError:  # /readyz and similar endpoints answer in plain text
            return {"text": text}
        return document if isinstance(document, dict) else {"value": document}

    def close(self) -> None:
        """Closes the connection of this thread."""
        self._connection().close()

    def _connection(self) -> http.client.HTTPSConnection:
        found: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        if found is None:
            found = http.client.HTTPSConnection(
                str(self._address.hostname), self._address.port, context=self._context, timeout=_TIMEOUT_S
            )
            self._local.connection = found
        return found
