"""Every endpoint of the API in one table: the routes are made from it, and so is its description.

An `Endpoint` says which query parameters and which body it takes; both are read before its function is
called, so the function holds nothing but the call of the service. Long lists are written in slices with a
pause between, so that one large answer does not hold up the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
from starlette.responses import Response, StreamingResponse

from penstock.api.interface import ACTIVE, CancelSelection, Doc, Service
from penstock.errors import BadRequest
from penstock.model.jobid import parse_jobid
from penstock.web.bodies import (
    BODY_BYTES_MAX,
    SUBMIT_BYTES_MAX,
    Body,
    CancelBody,
    DrainBody,
    NoBody,
    QueueBody,
    ShutdownBody,
    SignalBody,
    SubmitBody,
    UndrainBody,
    UrgencyBody,
    submissions,
)
from penstock.web.errors import json_response
from penstock.web.queries import JOBS_QUERY, Parameter, flag, jobs_query, number, parse_states
from penstock.web.streams import EventStream, Frame

__all__ = ["ENDPOINTS", "Answer", "Call", "Endpoint"]

_SLICE: Final = 500
_WAIT_MAX_S: Final = 600.0
_WAIT_DEFAULT_S: Final = 30.0

Answer: TypeAlias = Response | EventStream


@dataclass(frozen=True, slots=True)
class Call:
    """One request, read."""

    service: Service
    owner: str
    path: dict[str, str]
    query: dict[str, Any]
    body: Any  # the struct that the endpoint names

    @property
    def job(self) -> int:
        return parse_jobid(self.path["job"])


@dataclass(frozen=True, slots=True)
class Endpoint:
    method: str
    path: str
    about: str
    answer: Callable[[Call], Awaitable[Answer]]
    query: tuple[Parameter, ...] = ()
    body: type[Body] = NoBody
    body_bytes_max: int = BODY_BYTES_MAX
    streams: str = ""  # when the answer is a stream: "always", or the flag that asks for it
    status: int = 200


async def _status(call: Call) -> Answer:
    return json_response(await call.service.status())


async def _metrics(call: Call) -> Answer:
    return Response(await call.service.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _submit(call: Call) -> Answer:
    body: SubmitBody = call.body
    jobs = await submissions(body)
    return _listing("jobs", await call.service.submit(jobs, body.key, call.owner), 201)


async def _jobs(call: Call) -> Answer:
    return _listing("jobs", await call.service.jobs(jobs_query(call.query)))


async def _job(call: Call) -> Answer:
    return json_response(await call.service.job(call.job))


async def _eventlog(call: Call) -> Answer:
    if call.query.get("follow"):
        return EventStream(_named("job", await call.service.follow_eventlog(call.job)))
    return _listing("events", await call.service.eventlog(call.job))


async def _why(call: Call) -> Answer:
    return json_response(await call.service.why(call.job))


async def _cancel(call: Call) -> Answer:
    body: CancelBody = call.body
    if (body.ids is None) == (not body.all):
        raise BadRequest(
            "which jobs is not clear",
            where="body",
            found="both ids and all" if body.all else "neither ids nor all",
            expected='either "ids" or "all": true',
        )
    if body.ids is not None:
        if body.states is not None or body.queue:
            raise BadRequest(
                "states and queue go with all", where="body", expected='"all": true instead of ids'
            )
        selection = CancelSelection(tuple(parse_jobid(text) for text in body.ids))
    else:
        states = ACTIVE if body.states is None else parse_states(body.states, "states") & ACTIVE
        selection = CancelSelection(None, states, body.queue)
    return json_response(await call.service.cancel(selection, body.note))


async def _urgency(call: Call) -> Answer:
    body: UrgencyBody = call.body
    return json_response(await call.service.urgency(call.job, body.urgency))


async def _signal(call: Call) -> Answer:
    body: SignalBody = call.body
    await call.service.signal(call.job, body.signal)
    return json_response({})


async def _wait(call: Call) -> Answer:
    return json_response(await call.service.wait(call.job, call.query.get("timeout_s", _WAIT_DEFAULT_S)))


async def _output(call: Call) -> Answer:
    follow = bool(call.query.get("follow"))
    return EventStream(_paired(await call.service.output(call.job, follow)))


async def _events(call: Call) -> Answer:
    return EventStream(_numbered(await call.service.events(call.query.get("since"))))


async def _resources(call: Call) -> Answer:
    return _listing("nodes", await call.service.resources())


async def _drain(call: Call) -> Answer:
    body: DrainBody = call.body
    return _listing("nodes", await call.service.drain(body.targets, body.reason, body.overwrite))


async def _undrain(call: Call) -> Answer:
    body: UndrainBody = call.body
    return _listing("nodes", await call.service.undrain(body.targets))


async def _queues(call: Call) -> Answer:
    return _listing("queues", await call.service.queues())


def _change_queue(verb: str) -> Callable[[Call], Awaitable[Answer]]:
    async def change(call: Call) -> Answer:
        body: QueueBody = call.body
        return _listing("queues", await call.service.change_queue(call.path["queue"], verb, body.reason))

    return change


async def _timeline(call: Call) -> Answer:
    since_s, until_s = call.query.get("since_s"), call.query.get("until_s")
    return json_response(await call.service.timeline(since_s, until_s))


async def _shutdown(call: Call) -> Answer:
    body: ShutdownBody = call.body
    await call.service.shutdown(body.keep_tasks)
    return json_response({})


async def _openapi(call: Call) -> Answer:
    from penstock.web.openapi import describe

    del call
    return json_response(describe(ENDPOINTS))


_FOLLOW: Final = flag("follow", "1: go on with what comes, as server-sent events")
_QUEUE_VERBS: Final = {
    "enable": "jobs may be submitted to the queue",
    "disable": "no jobs may be submitted to the queue",
    "start": "jobs of the queue may start",
    "stop": "jobs of the queue do not start",
}

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        "GET", "/v1/status", "the instance, its agents, its database, and how many of everything", _status
    ),
    Endpoint("GET", "/metrics", "figures for Prometheus, as text", _metrics),
    Endpoint(
        "POST",
        "/v1/jobs",
        "submit jobs, all or none; the same key gives the same ids",
        _submit,
        body=SubmitBody,
        body_bytes_max=SUBMIT_BYTES_MAX,
        status=201,
    ),
    Endpoint("GET", "/v1/jobs", "list jobs", _jobs, query=JOBS_QUERY),
    Endpoint("POST", "/v1/jobs/cancel", "cancel jobs", _cancel, body=CancelBody),
    Endpoint("GET", "/v1/jobs/{job}", "all about one job", _job),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/eventlog",
        "what happened to a job",
        _eventlog,
        query=(_FOLLOW,),
        streams="follow",
    ),
    Endpoint("GET", "/v1/jobs/{job}/why", "why a job waits, and until when", _why),
    Endpoint("POST", "/v1/jobs/{job}/urgency", "change the urgency of a job", _urgency, body=UrgencyBody),
    Endpoint(
        "POST", "/v1/jobs/{job}/signal", "send a signal to the tasks of a job", _signal, body=SignalBody
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/wait",
        "wait until a job is inactive",
        _wait,
        query=(number("timeout_s", "answer after so many seconds in any case", most=_WAIT_MAX_S),),
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/output",
        "what the tasks of a job print, and the events of the job",
        _output,
        query=(_FOLLOW,),
        streams="always",
    ),
    Endpoint(
        "GET",
        "/v1/events",
        "the events of all jobs",
        _events,
        query=(number("since", "the sequence number after which to begin", whole=True),),
        streams="always",
    ),
    Endpoint("GET", "/v1/resources", "the nodes", _resources),
    Endpoint("POST", "/v1/resources/drain", "no new jobs on these nodes", _drain, body=DrainBody),
    Endpoint("POST", "/v1/resources/undrain", "jobs on these nodes again", _undrain, body=UndrainBody),
    Endpoint("GET", "/v1/queues", "the queues", _queues),
    *(
        Endpoint("POST", f"/v1/queues/{{queue}}/{verb}", about, _change_queue(verb), body=QueueBody)
        for verb, about in _QUEUE_VERBS.items()
    ),
    Endpoint(
        "GET",
        "/v1/timeline",
        "what runs where and when: past, present, reserved and forecast",
        _timeline,
        query=(
            number("since_s", "begin so many seconds before the present"),
            number("until_s", "end so many seconds after the present"),
        ),
    ),
    Endpoint("POST", "/v1/shutdown", "stop the instance", _shutdown, body=ShutdownBody),
    Endpoint("GET", "/v1/openapi.json", "this description", _openapi),
)


def _listing(key: str, rows: list[Doc], status: int = 200) -> Answer:
    if len(rows) <= _SLICE:
        return json_response({key: rows}, status)
    return StreamingResponse(_slices(key, rows), status, media_type="application/json")


async def _slices(key: str, rows: list[Doc]) -> AsyncIterator[bytes]:
    yield b'{"%s":[' % key.encode()
    for start in range(0, len(rows), _SLICE):
        body = msgspec.json.encode(rows[start : start + _SLICE])[1:-1]
        yield b"," + body if start else body
        await asyncio.sleep(0)
    yield b"]}"


async def _named(name: str, documents: AsyncGenerator[Doc, None]) -> AsyncGenerator[Frame, None]:
    try:
        async for document in documents:
            yield name, "", document
    finally:
        await documents.aclose()


async def _paired(pairs: AsyncGenerator[tuple[str, Doc], None]) -> AsyncGenerator[Frame, None]:
    try:
        async for name, document in pairs:
            yield name, "", document
    finally:
        await pairs.aclose()


async def _numbered(documents: AsyncGenerator[Doc, None]) -> AsyncGenerator[Frame, None]:
    try:
        async for document in documents:
            yield "", str(document["seq"]), document
    finally:
        await documents.aclose()
