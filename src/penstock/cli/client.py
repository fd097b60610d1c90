"""Client of an instance's API: HTTP over its Unix socket or over TCP, one connection per request.

An error response raises `RequestRefused` with the server's message. `NoInstance` means that no process
listens on the socket; its message names the command that starts one. `remember` stores the names that the
user typed (queues, nodes, jobs), so that after an error `did_you_mean` can suggest the closest existing name.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import quote, urlencode

from penstock.cli.server_address import ServerAddress, find_server
from penstock.errors import BadRequest, Conflict, Unavailable
from penstock.model.jobid import encode_jobid, parse_jobid
from penstock.paths import InstancePaths, paths_of

__all__ = [
    "KUBERNETES",
    "ApiClient",
    "Doc",
    "NoInstance",
    "RequestRefused",
    "ServerEvent",
    "StreamBroken",
    "client_of",
    "job_path",
]

Doc: TypeAlias = dict[str, Any]

KUBERNETES: Final = "kubernetes"  # the backend of an instance that schedules pods

_CONNECT_S: Final = 10.0
_RESPONSE_S: Final = 660.0  # longer than the longest wait of the API
_SUGGESTIONS_JOBS_MAX: Final = 10_000


class NoInstance(Unavailable):
    """No process listens on the socket of this state directory."""


class StreamBroken(Unavailable):
    """The connection closed before the response was complete."""


class RequestRefused(Conflict):
    """The instance responded with an error."""

    def __init__(self, status: int, error: Mapping[str, Any]) -> None:
        self.status = status
        self.kind = str(error.get("kind", ""))
        self.where = str(error.get("where", ""))
        self.error = error
        super().__init__(str(error.get("message") or error.get("summary") or f"status {status}"))

    @property
    def is_temporary(self) -> bool:
        """The instance starts or stops, or its database does not answer: a later request may succeed."""
        return self.status == 503

    def at(self, where: str) -> RequestRefused:
        """The same error at another position, for example at the option that the user typed."""
        summary, found, expected = (str(self.error.get(key, "")) for key in ("summary", "found", "expected"))
        message = str(BadRequest(summary, where=where, found=found, expected=expected))
        return RequestRefused(self.status, {**self.error, "where": where, "message": message})


@dataclass(frozen=True, slots=True)
class ServerEvent:
    name: str
    number: str
    data: Doc


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_RESPONSE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_CONNECT_S)
        self.sock.connect(self._path)
        self.sock.settimeout(_RESPONSE_S)


class ApiClient:
    """`server` is the address of an instance on TCP; without it, the client uses the socket in `paths`."""

    def __init__(self, paths: InstancePaths, server: ServerAddress | None = None) -> None:
        self.paths = paths
        self.server = server
        self._names: dict[str, list[str]] = {}

    def get(self, path: str, **query: object) -> Doc:
        return self._request("GET", path, query, None)

    def post(self, path: str, body: object) -> Doc:
        return self._request("POST", path, {}, body)

    def stream(self, path: str, **query: object) -> Iterator[ServerEvent]:
        """Server-sent events until the server ends the stream; `StreamBroken` if the connection breaks."""
        connection = self._connect("GET", path, query, None)
        try:
            response = connection.getresponse()
            if response.status >= 400:
                raise _refused(response.status, response.read())
            if connection.sock is not None:
                connection.sock.settimeout(60.0)  # Four missed keep-alives: the server is gone.
            yield from _events(response)
        except (OSError, http.client.HTTPException) as error:
            raise StreamBroken(f"the connection to the instance was lost: {error}") from error
        finally:
            connection.close()

    def remember(self, kind: str, *names: str) -> None:
        """Stores names that the user typed; `kind` is queue, node or job. Job ids are compared as F58."""
        for name in names:
            if name:
                known_as = encode_jobid(parse_jobid(name)) if kind == "job" else name
                self._names.setdefault(kind, []).append(known_as)

    def did_you_mean(self) -> str:
        """A suggestion for the first remembered name that does not exist, or an empty string."""
        for kind, names in self._names.items():
            try:
                known = self._known(kind)
            except (RequestRefused, Unavailable):
                continue
            for name in names:
                if hint := _nearest(name, known):
                    return hint
        return ""

    def _known(self, kind: str) -> list[str]:
        if kind == "queue":
            return [queue["name"] for queue in self.get("/v1/queues")["queues"]]
        if kind == "node":
            return [node["name"] for node in self.get("/v1/resources")["nodes"]]
        states = "active,inactive"
        return [job["id"] for job in self.get("/v1/jobs", states=states, limit=_SUGGESTIONS_JOBS_MAX)["jobs"]]

    def _request(self, method: str, path: str, query: Mapping[str, object], body: object) -> Doc:
        connection = self._connect(method, path, query, body)
        try:
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise StreamBroken(f"the instance closed the connection before it responded: {error}") from error
        finally:
            connection.close()
        if response.status >= 400:
            raise _refused(response.status, text)
        found = json.loads(text)
        if not isinstance(found, dict):
            raise Unavailable("the instance did not respond with a JSON object")
        return found

    def _connect(
        self, method: str, path: str, query: Mapping[str, object], body: object
    ) -> http.client.HTTPConnection:
        _check_utf8({**query}, "")
        _check_utf8(body, "")
        parameters = {name: str(value) for name, value in query.items() if value is not None and value != ""}
        target = f"{path}?{urlencode(parameters)}" if parameters else path
        text = None if body is None else json.dumps(body).encode()
        headers = {} if text is None else {"Content-Type": "application/json"}
        if self.server is not None:
            headers["Authorization"] = f"Bearer {self.server.token}"
        try:
            connection = self._new_connection()
            connection.request(method, target, text, headers)
        except (FileNotFoundError, ConnectionRefusedError):
            raise NoInstance(self._no_instance()) from None
        except ssl.SSLCertVerificationError as error:
            raise Unavailable(
                f"the certificate of {self.server.url if self.server else ''} is not trusted:"
                f" {error.verify_message}; SSL_CERT_FILE=FILE names the certificate of its authority"
            ) from None
        except PermissionError:
            raise NoInstance(f"{self.paths.socket} belongs to another user") from None
        except BrokenPipeError:
            # The server rejected the request before it had read all of it; its response says why.
            return connection
        except OSError as error:
            raise StreamBroken(f"the instance does not respond: {error}") from error
        return connection

    def _new_connection(self) -> http.client.HTTPConnection:
        if self.server is None:
            return _UnixConnection(str(self.paths.socket))
        connection = self.server.connection(_CONNECT_S)
        connection.connect()
        connection.sock.settimeout(_RESPONSE_S)
        return connection

    def _no_instance(self) -> str:
        if self.server is not None:
            return f"no instance listens at {self.server.url}"
        return f"no instance runs in {self.paths.state}; start one with `penstock start`"


def client_of(state: str | None, server: str | None = None) -> ApiClient:
    """The client of the instance that `--state`, `--server` or their environment variables select."""
    if state and server:
        raise BadRequest("not allowed with --state", where="--server")
    return ApiClient(paths_of(state, os.environ), None if state else find_server(server, os.environ))


def _check_utf8(value: object, where: str) -> None:
    """Refuses an argument with other bytes than UTF-8, which Python holds as surrogates: JSON has none."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            typed = "".join(
                f"\\x{ord(one) - 0xDC00:02x}" if "\udc80" <= one <= "\udcff" else one for one in value
            )
            raise BadRequest(
                "not UTF-8",
                where=where,
                found=f"'{typed.encode(errors='backslashreplace').decode()}'",
                expected="UTF-8 text, because requests are JSON",
            ) from None
    elif isinstance(value, dict):
        for key, inner in value.items():
            _check_utf8(inner, str(key))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            _check_utf8(inner, f"{where}[{index}]")


def job_path(job: str, *rest: str) -> str:
    return "/".join(["/v1/jobs", quote(job, safe=""), *rest])


def _refused(status: int, text: bytes) -> RequestRefused:
    try:
        error = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        error = {"message": f"the instance responded with status {status}"}
    return RequestRefused(status, error)


def _events(response: http.client.HTTPResponse) -> Iterator[ServerEvent]:
    name, number, data = "", "", ""
    while line := response.readline():
        text = line.decode().rstrip("\r\n")
        key, _, value = text.partition(": ")
        if not text:
            if data:
                yield ServerEvent(name, number, json.loads(data))
            name, number, data = "", "", ""
        elif key == "event":
            name = value
        elif key == "id":
            number = value
        elif key == "data":
            data += value
    if not response.isclosed():
        raise StreamBroken("the connection to the instance was lost")


def _nearest(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    if name in known:
        return ""
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else ""
