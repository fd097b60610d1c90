"""The description of the API (OpenAPI 3.1), made from the table of endpoints and the bodies they name.

Answers are described by their kind only: their documents belong to the instance, and a second description
of them would be wrong sooner or later. What can be checked by a machine, namely what may be sent, is exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from penstock.web.bodies import JOBS_MAX, NoBody, SubmissionBody, SubmitBody
from penstock.web.routes import Endpoint

__all__ = ["describe"]

_IN_PATH = re.compile(r"\{(\w+)\}")
_PATH_ABOUT = {
    "job": "a job id in any form: ƒTSfi3Sf, fTSfi3Sf, decimal, hex or dotted hex",
    "queue": "a queue; - means all",
}
_REFUSALS = {
    "400": "the request is not well formed",
    "401": "a token is needed (TCP only)",
    "404": "no such job, queue or node",
    "409": "the present state does not allow it",
    "413": "too large",
    "422": "the job can never run here",
    "503": "not ready, or the store is away: try again",
}
_ERROR_KEYS = ("kind", "summary", "where", "found", "expected", "message")


def describe(endpoints: Iterable[Endpoint]) -> dict[str, object]:
    endpoints = tuple(endpoints)
    bodies = sorted({endpoint.body for endpoint in endpoints if endpoint.body is not NoBody}, key=str)
    _, schemas = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    _, inner = msgspec.json.schema_components([SubmissionBody], ref_template="#/components/schemas/{name}")
    schemas = {**schemas, **inner, "Error": _error_schema()}
    _fill_raw(schemas)
    paths: dict[str, dict[str, object]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": "1",
            "description": "The API of one instance. Job ids are F58 strings, times are seconds since 1970.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, object]:
    parameters: list[dict[str, object]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PATH_ABOUT[name],
            "schema": {"type": "string"},
        }
        for name in _IN_PATH.findall(endpoint.path)
    ]
    parameters += [
        {"name": known.name, "in": "query", "description": known.about, "schema": dict(known.schema)}
        for known in endpoint.query
    ]
    operation: dict[str, object] = {
        "summary": endpoint.about,
        "operationId": _operation_id(endpoint),
        "parameters": parameters,
        "responses": {str(endpoint.status): _answer(endpoint), **_refusals()},
    }
    if endpoint.body is not NoBody:
        reference = {"$ref": f"#/components/schemas/{endpoint.body.__name__}"}
        operation["requestBody"] = {"content": {"application/json": {"schema": reference}}}
    return operation


def _operation_id(endpoint: Endpoint) -> str:
    words = re.findall(r"[a-z]+", endpoint.path.removeprefix("/v1"))
    return "_".join([endpoint.method.lower(), *words])


def _answer(endpoint: Endpoint) -> dict[str, object]:
    content: dict[str, object] = {}
    if endpoint.streams != "always":
        content["application/json"] = {"schema": {"type": "object"}}
    if endpoint.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": endpoint.about, "content": content}


def _refusals() -> dict[str, object]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": about, "content": content} for status, about in _REFUSALS.items()}


def _error_schema() -> dict[str, object]:
    keys = {key: {"type": "string"} for key in _ERROR_KEYS}
    error = {"type": "object", "properties": keys, "required": list(_ERROR_KEYS)}
    return {"type": "object", "properties": {"error": error}, "required": ["error"]}


def _fill_raw(schemas: dict[str, dict[str, object]]) -> None:
    """What is read as text has no schema of its own: say what it is."""
    jobs = {"type": "array", "items": {"$ref": "#/components/schemas/SubmissionBody"}, "maxItems": JOBS_MAX}
    jobspec = {"type": "object", "description": "a jobspec, version 1 (RFC 25) or higher (RFC 14)"}
    for name, key, schema in ((SubmitBody, "jobs", jobs), (SubmissionBody, "jobspec", jobspec)):
        properties = schemas[name.__name__]["properties"]
        assert isinstance(properties, dict)
        properties[key] = schema
