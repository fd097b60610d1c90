"""All endpoints in one table. The routes and `openapi.json` are both generated from it.

An `Endpoint` names its query parameters, its request type, its response type or the types of its stream
items, and the method of the service that it calls. Parameters and body are parsed before that method is
called, so an endpoint contains nothing but the mapping from HTTP to the call.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from penstock.api.identity import Caller
from penstock.api.interface import Service
from penstock.api.requests import (
    WAIT_DEFAULT_S,
    WAIT_MAX_S,
    CancelRequest,
    DrainRequest,
    InputRequest,
    QueueAction,
    QueueRequest,
    RequestBody,
    ShutdownRequest,
    SignalRequest,
    SubmitRequest,
    TimelineQuery,
    UndrainRequest,
    UrgencyRequest,
)
from penstock.api.responses import (
    CancelResult,
    EmptyResponse,
    EventLog,
    EventLogEntry,
    InputResult,
    InstanceEvent,
    InstanceStatus,
    JobDetail,
    JobList,
    JobSummary,
    NodeList,
    OutputChunk,
    QueueList,
    ResponseBody,
    SubmitResult,
    Timeline,
    UrgencyResult,
    WaitExplanation,
)
from penstock.model.jobid import parse_jobid
from penstock.web.bodies import BODY_BYTES_MAX, SUBMIT_BYTES_MAX
from penstock.web.queries import JOBS_QUERY, Parameter, flag, jobs_query, number

__all__ = ["ENDPOINTS", "Call", "CallResult", "Endpoint", "StreamTypes"]

# A JSON document, a stream of server-sent events, or the content of the response as it is sent.
CallResult: TypeAlias = ResponseBody | AsyncGenerator[ResponseBody, None] | bytes
# The name of the server-sent event by the type of its data; "" sends no name.
StreamTypes: TypeAlias = Mapping[type[ResponseBody], str]

_R = TypeVar("_R", bound=RequestBody)


@dataclass(frozen=True, slots=True)
class Call:
    """One parsed request."""

    service: Service
    caller: Caller
    path: dict[str, str]
    query: dict[str, Any]
    body: RequestBody | None

    @property
    def job(self) -> int:
        return parse_jobid(self.path["job"])

    @property
    def follow(self) -> bool:
        return bool(self.query.get("follow"))

    def request(self, request_type: type[_R]) -> _R:
        assert isinstance(self.body, request_type)
        return self.body


@dataclass(frozen=True, slots=True)
class Endpoint:
    method: str
    path: str
    summary: str
    call: Callable[[Call], Awaitable[CallResult]]
    query: tuple[Parameter, ...] = ()
    request: type[RequestBody] | None = None
    response: type[ResponseBody] | None = None  # None: a stream only, or content of `media_type`
    stream: StreamTypes = field(default_factory=dict)
    status: int = 200
    media_type: str = "application/json"
    errors: tuple[int, ...] = ()  # beyond those that every endpoint can answer
    body_bytes_max: int = BODY_BYTES_MAX


async def _eventlog(call: Call) -> CallResult:
    if call.follow:
        return await call.service.follow_eventlog(call.caller, call.job)
    return await call.service.get_eventlog(call.caller, call.job)


async def _timeline(call: Call) -> CallResult:
    query = TimelineQuery(call.query.get("since_s"), call.query.get("until_s"))
    return await call.service.get_timeline(call.caller, query)


def _queue_endpoint(action: QueueAction, summary: str) -> Endpoint:
    return Endpoint(
        "POST",
        f"/v1/queues/{{queue}}/{action.value}",
        summary,
        lambda call: call.service.change_queue(
            call.caller, call.path["queue"], action, call.request(QueueRequest)
        ),
        request=QueueRequest,
        response=QueueList,
        errors=(404,),
    )


async def _openapi(call: Call) -> CallResult:
    from penstock.web.openapi import describe  # It describes the table in this module.

    del call
    return msgspec.json.encode(describe(ENDPOINTS))


_FOLLOW: Final = flag("follow", "1: continue with new events as server-sent events")

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        "GET",
        "/v1/status",
        "the instance, its agents, its database, and counts of jobs and nodes",
        lambda call: call.service.get_status(call.caller),
        response=InstanceStatus,
    ),
    Endpoint(
        "GET",
        "/metrics",
        "metrics in the text format of Prometheus",
        lambda call: call.service.get_metrics(call.caller),
        media_type="text/plain; version=0.0.4; charset=utf-8",
    ),
    Endpoint(
        "POST",
        "/v1/jobs",
        "submit jobs, all or none; a repeated key returns the same ids",
        lambda call: call.service.submit_jobs(call.caller, call.request(SubmitRequest)),
        request=SubmitRequest,
        response=SubmitResult,
        status=201,
        errors=(409, 422),
        body_bytes_max=SUBMIT_BYTES_MAX,
    ),
    Endpoint(
        "GET",
        "/v1/jobs",
        "list jobs",
        lambda call: call.service.list_jobs(call.caller, jobs_query(call.query)),
        query=JOBS_QUERY,
        response=JobList,
    ),
    Endpoint(
        "POST",
        "/v1/jobs/cancel",
        "cancel jobs",
        lambda call: call.service.cancel_jobs(call.caller, call.request(CancelRequest)),
        request=CancelRequest,
        response=CancelResult,
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}",
        "one job in detail",
        lambda call: call.service.get_job(call.caller, call.job),
        response=JobDetail,
        errors=(404,),
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/eventlog",
        "the events of a job",
        _eventlog,
        query=(_FOLLOW,),
        response=EventLog,
        stream={EventLogEntry: "job"},
        errors=(404,),
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/why",
        "why a job waits, and its forecast",
        lambda call: call.service.explain_wait(call.caller, call.job),
        response=WaitExplanation,
        errors=(404,),
    ),
    Endpoint(
        "POST",
        "/v1/jobs/{job}/urgency",
        "change the urgency of a job",
        lambda call: call.service.set_urgency(call.caller, call.job, call.request(UrgencyRequest)),
        request=UrgencyRequest,
        response=UrgencyResult,
        errors=(404, 409),
    ),
    Endpoint(
        "POST",
        "/v1/jobs/{job}/signal",
        "send a signal to the tasks of a job",
        lambda call: call.service.signal_job(call.caller, call.job, call.request(SignalRequest)),
        request=SignalRequest,
        response=EmptyResponse,
        errors=(404, 409),
    ),
    Endpoint(
        "POST",
        "/v1/jobs/{job}/input",
        "send standard input to the tasks of a job",
        lambda call: call.service.write_input(call.caller, call.job, call.request(InputRequest)),
        request=InputRequest,
        response=InputResult,
        errors=(404, 409),
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/wait",
        "wait until a job is inactive",
        lambda call: call.service.wait_for_job(
            call.caller, call.job, call.query.get("timeout_s", WAIT_DEFAULT_S)
        ),
        query=(number("timeout_s", "the maximum time to wait for the state INACTIVE", most=WAIT_MAX_S),),
        response=JobSummary,
        errors=(404,),
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/output",
        "the output of the tasks of a job, and with follow=1 its events",
        lambda call: call.service.stream_output(call.caller, call.job, call.follow),
        query=(_FOLLOW,),
        stream={OutputChunk: "output", EventLogEntry: "job", JobSummary: "end"},
        errors=(404, 409),
    ),
    Endpoint(
        "GET",
        "/v1/events",
        "the events of all jobs",
        lambda call: call.service.stream_events(call.caller, call.query.get("since")),
        query=(number("since", "the sequence number after which to begin", whole=True),),
        stream={InstanceEvent: ""},
    ),
    Endpoint(
        "GET",
        "/v1/resources",
        "the nodes",
        lambda call: call.service.list_nodes(call.caller),
        response=NodeList,
    ),
    Endpoint(
        "POST",
        "/v1/resources/drain",
        "drain nodes: start no jobs on them",
        lambda call: call.service.drain_nodes(call.caller, call.request(DrainRequest)),
        request=DrainRequest,
        response=NodeList,
        errors=(404, 409),
    ),
    Endpoint(
        "POST",
        "/v1/resources/undrain",
        "undrain nodes: start jobs on them again",
        lambda call: call.service.undrain_nodes(call.caller, call.request(UndrainRequest)),
        request=UndrainRequest,
        response=NodeList,
        errors=(404, 409),
    ),
    Endpoint(
        "GET",
        "/v1/queues",
        "the queues",
        lambda call: call.service.list_queues(call.caller),
        response=QueueList,
    ),
    _queue_endpoint(QueueAction.ENABLE, "accept submissions to the queue"),
    _queue_endpoint(QueueAction.DISABLE, "reject submissions to the queue"),
    _queue_endpoint(QueueAction.START, "start jobs of the queue"),
    _queue_endpoint(QueueAction.STOP, "start no jobs of the queue"),
    Endpoint(
        "GET",
        "/v1/timeline",
        "which job occupies which node from when to when: past, present, reserved, forecast, claimed",
        _timeline,
        query=(
            number("since_s", "begin this many seconds before the present"),
            number("until_s", "end this many seconds after the present"),
        ),
        response=Timeline,
    ),
    Endpoint(
        "POST",
        "/v1/shutdown",
        "stop the instance",
        lambda call: call.service.shutdown(call.caller, call.request(ShutdownRequest)),
        request=ShutdownRequest,
        response=EmptyResponse,
    ),
    Endpoint("GET", "/v1/openapi.json", "this description (OpenAPI 3.2)", _openapi),
)
