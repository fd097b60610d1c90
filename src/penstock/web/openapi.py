"""`openapi.json` (OpenAPI 3.2), generated from the table of endpoints and the types that they name.

Requests, responses, errors and the items of streams all have schemas. OpenAPI 3.2 describes a stream of
server-sent events by `itemSchema`: an object with the fields of an event, whose `data` is JSON text
with a schema of its own (`contentSchema`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from penstock.api.responses import ErrorResponse, InstanceEvent, ResponseBody
from penstock.web.routes import Endpoint

__all__ = ["describe"]

_Schema: TypeAlias = dict[str, Any]

_REF: Final = "#/components/schemas/{name}"
_IN_PATH: Final = re.compile(r"\{(\w+)\}")
_PATH_PARAMETERS: Final = {
    "job": "a job id in any form: ƒTSfi3Sf, fTSfi3Sf, decimal, hex or dotted hex",
    "queue": "the name of a queue; - for all queues",
}
_ERRORS: Final = {
    400: "the request is not valid",
    401: "the bearer token is missing or wrong (TCP only)",
    404: "the job, node or queue does not exist",
    409: "the current state does not allow the request",
    413: "the request is too large",
    422: "the job can never run on this cluster",
    500: "internal error",
    503: "the instance is not ready, or its database is not available: retry later",
}
_ALWAYS: Final = (400, 401, 413, 500, 503)


def describe(endpoints: Sequence[Endpoint]) -> _Schema:
    paths: dict[str, _Schema] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    _, schemas = msgspec.json.schema_components(_types(endpoints), ref_template=_REF)
    return {
        "openapi": "3.2.0",
        "info": {
            "title": "Penstock",
            "version": "1",
            "description": "The API of one instance. Job ids are F58 text, times are seconds since 1970.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _types(endpoints: Iterable[Endpoint]) -> list[type[msgspec.Struct]]:
    """All types that the endpoints refer to, each once."""
    found: dict[type[msgspec.Struct], None] = {ErrorResponse: None}
    for endpoint in endpoints:
        named = (endpoint.request, endpoint.response, *endpoint.stream)
        found.update(dict.fromkeys(one for one in named if one is not None))
    return list(found)


def _operation(endpoint: Endpoint) -> _Schema:
    parameters: list[_Schema] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PATH_PARAMETERS[name],
            "schema": {"type": "string"},
        }
        for name in _IN_PATH.findall(endpoint.path)
    ]
    parameters += [
        {"name": known.name, "in": "query", "description": known.description, "schema": dict(known.schema)}
        for known in endpoint.query
    ]
    errors = {str(status): _error(status) for status in sorted({*_ALWAYS, *endpoint.errors})}
    operation: _Schema = {
        "summary": endpoint.summary,
        "operationId": _operation_id(endpoint),
        "parameters": parameters,
        "responses": {str(endpoint.status): _success(endpoint), **errors},
    }
    if endpoint.request is not None:
        operation["requestBody"] = {"content": _json(_reference(endpoint.request))}
    return operation


def _operation_id(endpoint: Endpoint) -> str:
    words = re.findall(r"[a-z]+", endpoint.path.removeprefix("/v1"))
    return "_".join([endpoint.method.lower(), *words])


def _success(endpoint: Endpoint) -> _Schema:
    content: _Schema = {}
    if endpoint.response is not None:
        content |= _json(_reference(endpoint.response))
    if endpoint.stream:
        items = [_event(item_type, name) for item_type, name in endpoint.stream.items()]
        items.append(_event(ErrorResponse, "error"))
        content["text/event-stream"] = {"itemSchema": {"oneOf": items}}
    if not content:
        media_type = endpoint.media_type.partition(";")[0]
        schema = {"type": "object" if media_type == "application/json" else "string"}
        content[media_type] = {"schema": schema}
    return {"description": endpoint.summary, "content": content}


def _event(item_type: type[ResponseBody], name: str) -> _Schema:
    """One server-sent event. An event without a name has no `event` field."""
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": _reference(item_type),
    }
    properties: _Schema = {"data": data}
    if name:
        properties["event"] = {"const": name}
    if item_type is InstanceEvent:
        properties["id"] = {"type": "string", "description": "the sequence number of the event"}
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(properties),
        "additionalProperties": False,
    }


def _error(status: int) -> _Schema:
    return {"description": _ERRORS[status], "content": _json(_reference(ErrorResponse))}


def _json(schema: _Schema) -> _Schema:
    return {"application/json": {"schema": schema}}


def _reference(struct: type[msgspec.Struct]) -> _Schema:
    return {"$ref": _REF.format(name=struct.__name__)}
