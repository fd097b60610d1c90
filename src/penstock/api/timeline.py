"""The timeline: which job has which node from when to when: in the past, now, reserved, forecast, claimed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.api.claims import claim_spans
from penstock.api.documents import job_start, timeline_spans
from penstock.api.identity import Namespaces, sees
from penstock.api.live_jobs import members_of, overview_of
from penstock.api.nodes import node_cores
from penstock.api.requests import TimelineQuery
from penstock.api.resource_counts import cores
from penstock.api.responses import JobStartInfo, Timeline, TimelineNode, TimelineSpan
from penstock.model.job import JobState
from penstock.model.jobid import encode_jobid
from penstock.sched.records import JobOverview, MemberRecord
from penstock.sched.scheduler import Scheduler

__all__ = ["begin_of", "live_timeline", "with_history"]

_PAST_S: Final = 60.0
_FUTURE_S: Final = 60.0  # the least that is shown
_FUTURE_S_MAX: Final = 60_000.0


def begin_of(query: TimelineQuery, now: float) -> float:
    return now - (query.since_s if query.since_s is not None else _PAST_S)


def _end_of(query: TimelineQuery, nodes: Iterable[TimelineNode], now: float) -> float:
    """The end that the query names, else the last known end of a span, within bounds."""
    if query.until_s is not None:
        return now + query.until_s
    ends = [span.to for node in nodes for span in node.spans if span.to is not None]
    return min(max([*ends, now + _FUTURE_S]), now + _FUTURE_S_MAX)


def live_timeline(scheduler: Scheduler, now: float, begin: float, namespaces: Namespaces = None) -> Timeline:
    """The spans of active jobs; to be called through `Instance.query`.

    Spans of other namespaces than these have neither id nor name.
    """
    state = scheduler.state
    known = sorted(state.cluster.nodes.items(), key=lambda item: item[1].rank)
    nodes = {name: TimelineNode(name, node_cores(node), []) for name, node in known}
    starts: list[JobStartInfo] = []
    for job in state.jobs.values():
        members = members_of(job) if job.workload else ()
        _add(nodes, starts, overview_of(job), members, now, namespaces)
    for job_id, planned in state.plans.planned_starts.items():
        pending = state.jobs.get(job_id)
        if pending is None or pending.state is not JobState.SCHED:
            continue
        for name, milli in planned.cores_milli:
            if name in nodes:
                is_named = sees(namespaces, pending.owner)
                span = TimelineSpan(
                    job=encode_jobid(job_id) if is_named else "",
                    name=pending.spec.name if is_named else "",
                    from_=float(planned.start_s),
                    to=None if planned.end_s is None else float(planned.end_s),
                    kind="reserved" if planned.is_reservation else "forecast",
                    cores=cores(milli),
                )
                nodes[name].spans.append(span)
    for name, span in claim_spans(scheduler, now, namespaces).items():
        nodes[name].spans.append(span)
    return Timeline(now, begin, now, list(nodes.values()), starts)


def with_history(
    timeline: Timeline,
    history: Iterable[JobOverview],
    query: TimelineQuery,
    now: float,
    namespaces: Namespaces = None,
) -> Timeline:
    """A live timeline with the spans of inactive jobs added."""
    nodes = {node.name: node for node in timeline.nodes}
    for job in history:
        _add(nodes, timeline.starts, job, (), now, namespaces)
    end = _end_of(query, timeline.nodes, now)
    return Timeline(timeline.now, timeline.from_, end, timeline.nodes, timeline.starts)


def _add(
    nodes: dict[str, TimelineNode],
    starts: list[JobStartInfo],
    job: JobOverview,
    members: Iterable[MemberRecord],
    now: float,
    namespaces: Namespaces,
) -> None:
    is_named = sees(namespaces, job.new.owner)
    for name, span in timeline_spans(job, members, now).items():
        if name in nodes:
            nodes[name].spans.append(span if is_named else msgspec.structs.replace(span, job="", name=""))
    start = job_start(job)
    if start is not None and is_named:
        starts.append(start)
