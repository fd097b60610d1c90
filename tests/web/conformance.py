"""Checks real HTTP responses against `openapi.json`, and remembers which of its responses were checked."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jsonschema import Draft202012Validator

from tests.web.canned import UnixConnection

__all__ = ["Checker", "Reply"]

JSON = "application/json"
EVENTS = "text/event-stream"


@dataclass(frozen=True)
class Reply:
    """A checked response: its JSON document, its server-sent events, or its text."""

    status: int
    document: Any


class Checker:
    """Sends requests and validates every response against its schema in the description."""

    def __init__(self, description: dict[str, Any]) -> None:
        self.description = description
        self.checked: set[tuple[str, str, str, str]] = set()  # method, path, status, media type

    def ask(self, socket_path: Path, method: str, target: str, body: object = None, events: int = 0) -> Any:
        """The document of one response. A stream is read to its end, or until `events` events have come."""
        return self.reply(socket_path, method, target, body, events).document

    def reply(
        self, socket_path: Path, method: str, target: str, body: object = None, events: int = 0
    ) -> Reply:
        connection = UnixConnection(socket_path)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            with suppress(BrokenPipeError):  # The server may respond before it has read the whole body.
                connection.request(method, target, data)
            return self.check(method, target, connection.getresponse(), events)
        finally:
            connection.close()

    def check(self, method: str, target: str, response: http.client.HTTPResponse, events: int = 0) -> Reply:
        status = response.status
        media_type = response.headers["content-type"].partition(";")[0]
        path = self._path(method, urlsplit(target).path)
        declared = self.description["paths"][path][method.lower()]["responses"]
        assert str(status) in declared, f"{method} {path} answers {status}, which is not declared"
        content = declared[str(status)]["content"]
        assert media_type in content, f"{method} {path} answers {media_type}, which is not declared"
        if media_type == EVENTS:
            document: Any = list(_events(response, events))
            for event in document:
                self._check_event(event, content[media_type]["itemSchema"])
            assert document, f"{method} {path} sends no event"
        elif media_type == JSON:
            document = json.loads(response.read())
            self.validate(document, content[media_type]["schema"])
        else:
            document = response.read().decode()
            self.validate(document, content[media_type]["schema"])
        self.checked.add((method, path, str(status), media_type))
        return Reply(status, document)

    def validate(self, document: object, schema: dict[str, Any]) -> None:
        root = {**schema, "components": self.description["components"]}
        Draft202012Validator(root).validate(document)

    def _check_event(self, event: dict[str, str], schema: dict[str, Any]) -> None:
        self.validate(event, schema)
        matching = [
            each
            for each in schema["oneOf"]
            if each["properties"].get("event", {}).get("const") == event.get("event")
        ]
        assert len(matching) == 1
        self.validate(json.loads(event["data"]), matching[0]["properties"]["data"]["contentSchema"])

    def _path(self, method: str, path: str) -> str:
        """The path template of the description; a literal segment wins over a parameter."""
        parts = path.split("/")
        found = [
            template
            for template, methods in self.description["paths"].items()
            if method.lower() in methods and _is_match(template.split("/"), parts)
        ]
        assert found, f"{method} {path} is not described"
        return min(found, key=lambda template: template.count("{"))

    def unchecked_successes(self) -> set[tuple[str, str, str, str]]:
        """Successful responses that are described and were not checked."""
        return {response for response in self._described() if response[2] < "400"} - self.checked

    def unchecked_errors(self) -> set[str]:
        """Error statuses that are described and were not checked for any endpoint."""
        described = {status for _, _, status, _ in self._described() if status >= "400"}
        return described - {status for _, _, status, _ in self.checked}

    def _described(self) -> Iterator[tuple[str, str, str, str]]:
        for path, methods in self.description["paths"].items():
            for method, operation in methods.items():
                for status, response in operation["responses"].items():
                    for media_type in response["content"]:
                        yield method.upper(), path, status, media_type


def _is_match(template: list[str], parts: list[str]) -> bool:
    return len(template) == len(parts) and all(
        known == part or known.startswith("{") for known, part in zip(template, parts, strict=True)
    )


def _events(response: http.client.HTTPResponse, count: int) -> Iterator[dict[str, str]]:
    """Server-sent events as objects with the fields `event`, `id` and `data`; 0: all."""
    found = 0
    event: dict[str, str] = {}
    while line := response.readline().decode():
        key, _, value = line.rstrip("\n").partition(": ")
        if key in ("event", "id", "data"):
            event[key] = value
        elif not key and event:
            yield event
            event = {}
            found += 1
            if found == count:
                return
