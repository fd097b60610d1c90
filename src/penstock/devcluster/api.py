"""A small speaker of the Kubernetes API: one connection per thread, JSON, one answer per question.

For setting up a cluster and for tests that look at it. It knows no watch, no retry and no rate; what Penstock
itself speaks with is another thing. A kubeconfig of ours carries the certificate and the key in itself.
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

__all__ = ["Api", "ApiRefused"]

_TIMEOUT_S: Final = 30.0
_TEXT_MAX: Final = 400


class ApiRefused(Conflict):
    """The API server understood and said no."""

    def __init__(self, method: str, path: str, status: int, text: str) -> None:
        self.status = status
        super().__init__(f"{method} {path}: {status} {text[:_TEXT_MAX]}")


class Api:
    """Speaks to the server of a kubeconfig as its user."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text("utf-8"))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._address = urlsplit(cluster["server"])
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._context = ssl.create_default_context(cadata=authority)
        pair = [base64.b64decode(user[f"client-{what}-data"]) for what in ("certificate", "key")]
        # The ssl module takes a client's certificate from a file only; this one is gone after the line below.
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
        """The answer as a document. `ApiRefused` for an answer of 400 and above, `Unavailable` for none."""
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
            raise ApiRefused(method, path, answer.status, text)
        try:
            document = json.loads(text)
        except ValueError:  # /readyz and the like answer in words
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
