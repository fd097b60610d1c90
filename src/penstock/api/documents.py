"""Jobs and other things as the API shows them: one document for a job, whether it is active or long over.

Everything here is a function of recorded rows, so that a job looks the same before and after a restart.
What only the running scheduler knows (a forecast, a reason, a place in the queue) is given beside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from penstock.api.amounts import cores, held_milli
from penstock.model.hostlist import encode_hostlist
from penstock.model.idset import encode_idset
from penstock.model.job import JobState, Result
from penstock.model.jobid import encode_jobid
from penstock.sched.job import Forecast
from penstock.sched.reasons import WaitCause, WaitReason
from penstock.sched.records import JobLive, JobNew

__all__ = ["Beside", "Size", "job_doc", "members_doc", "rset_doc", "spans_of", "why_doc"]

Doc = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Beside:
    """What the scheduler knows of a pending job, beyond what is recorded."""

    forecast: Forecast | None = None
    why: WaitReason | None = None
    jobs_ahead: int | None = None
    dependencies: tuple[str, ...] = ()
    begin_at: float | None = None
    size: Size | None = None  # of a work that is pending: what its members ask for


@dataclass(frozen=True, slots=True)
class Size:
    tasks: int
    cores_milli: int
    nodes: int | None  # None: any number
    limit_s: int | None  # None: no limit


def job_doc(new: JobNew, live: JobLive, ranks: Mapping[str, int], beside: Beside = Beside()) -> Doc:  # noqa: B008
    detail, spec = live.detail, new.spec
    held = _held(new, live)
    times = cast(dict[str, float], detail.get("times", {}))
    nodes = sorted(held, key=lambda node: (ranks.get(node, 1 << 30), node))
    state, result = live.state, live.result
    return {
        "id": encode_jobid(new.id),
        "id_dec": str(new.id),
        "name": new.name,
        "owner": new.owner,
        "queue": live.queue,
        "state": state.value,
        "state_single": state.letter,
        "status": result if state is JobState.INACTIVE else state.value,
        "result": result,
        "urgency": live.urgency,
        "priority": live.priority,
        **_sizes(new, live, held, beside.size),
        "ranks": encode_idset(ranks[node] for node in nodes if node in ranks),
        "nodelist": encode_hostlist(nodes),
        "duration_s": _duration_s(new, live, beside.size),
        "t_submit": new.seen_at,
        "t_depend": times.get("DEPEND"),
        "t_run": times.get("RUN"),
        "t_start": live.started_at,
        "t_cleanup": times.get("CLEANUP"),
        "t_inactive": live.ended_at,
        "expiration": detail.get("end_at"),
        "waitstatus": live.status,
        "returncode": _returncode(live),
        "exception": _exception(detail),
        "dependencies": list(beside.dependencies),
        "begin_at": beside.begin_at,
        "requeue": spec.get("requeue", "never"),
        "attempt": detail.get("attempt", 1),
        "forecast": _forecast(beside.forecast),
        "promise": _promise(detail),
        "reason": beside.why.message if beside.why is not None else "",
        "reason_kind": beside.why.cause.value if beside.why is not None else "",
        "jobs_ahead": beside.jobs_ahead,
        "incomplete_reason": detail.get("incomplete_reason", ""),
    }


def _held(new: JobNew, live: JobLive) -> dict[str, dict[str, str]]:
    """What a job holds, or held, by node; of a work only where a member is or was.

    A node that refused a member of a work stays written down, although nothing of the work was there.
    """
    held = cast(dict[str, dict[str, str]], live.detail.get("resources_by_node", {}))
    if not new.workload:
        return held
    seen = {member["node"] for member in _members(live)}
    return {node: kinds for node, kinds in held.items() if node in seen}


def _members(live: JobLive) -> list[Doc]:
    return cast(list[Doc], live.detail.get("members", []))


def _sizes(new: JobNew, live: JobLive, held: Mapping[str, Mapping[str, str]], asked: Size | None) -> Doc:
    """Tasks, cores and nodes: of what it holds, or else of what it asks for."""
    if asked is not None and not held:
        return {"ntasks": asked.tasks, "ncores": cores(asked.cores_milli), "nnodes": asked.nodes}
    return {
        "ntasks": len(_members(live)) or new.spec.get("ntasks", 0),
        "ncores": cores(sum(map(held_milli, held.values()))) if held else new.spec.get("ncores", 0),
        "nnodes": len(held) or new.spec.get("nnodes"),
    }


def _duration_s(new: JobNew, live: JobLive, asked: Size | None) -> float:
    """The time limit; 0 without one. A work's is as long as it was given when it was placed."""
    if not new.workload:
        return cast(float, new.spec.get("duration_s", 0))
    begun, end = live.detail.get("placed_at"), live.detail.get("end_at")
    if begun is not None and end is not None:
        return cast(float, end) - cast(float, begun)
    return asked.limit_s or 0 if asked is not None else 0


def _returncode(live: JobLive) -> int | None:
    if live.state is not JobState.INACTIVE or live.status is None:
        return None
    if live.result == Result.CANCELED.value and live.started_at is None:
        return -128
    return live.status >> 8 if not live.status & 0x7F else -(live.status & 0x7F)


def _exception(detail: Mapping[str, object]) -> Doc:
    found = cast(Doc, detail.get("exception", {}))
    return {
        "occurred": bool(found),
        "type": found.get("type", ""),
        "severity": found.get("severity"),
        "note": found.get("note", ""),
    }


def _forecast(found: Forecast | None) -> Doc:
    if found is None:
        return {"start_at": None, "kind": "none", "made_at": None}
    kind = "reservation" if found.is_reservation else "forecast"
    return {"start_at": found.start_at, "kind": kind, "made_at": found.made_at}


def _promise(detail: Mapping[str, object]) -> Doc:
    found = cast(list[float] | None, detail.get("promise"))
    return {"first": found[0], "last": found[1]} if found else {"first": None, "last": None}


def members_doc(live: JobLive) -> list[Doc]:
    return [
        {
            "member": member["key"],
            "name": member.get("name", ""),
            "index": member["index"],
            "node": member["node"],
            "phase": member["phase"],
            "status": member.get("status", 0) if member["phase"] == "ended" else None,
            "cause": member.get("cause", ""),
            "started_at": member.get("started_at"),
            "ended_at": member.get("ended_at"),
        }
        for member in _members(live)
    ]


def rset_doc(new: JobNew, live: JobLive, ranks: Mapping[str, int]) -> Doc | None:
    """R version 1 (RFC 20) of what a job holds, or held. It has no words for shares of a pool."""
    held = cast(dict[str, dict[str, str]], live.detail.get("resources_by_node", {}))
    nodes = sorted((node for node in held if node in ranks), key=lambda node: ranks[node])
    if not nodes or not any(kind in kinds for kinds in held.values() for kind in ("core", "gpu")):
        return None
    alike: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for node in nodes:
        children = tuple(sorted((kind, ids) for kind, ids in held[node].items() if kind in ("core", "gpu")))
        alike.setdefault(children, []).append(ranks[node])
    lite = [{"rank": encode_idset(ids), "children": dict(children)} for children, ids in alike.items()]
    execution: Doc = {
        "R_lite": lite,
        "nodelist": [encode_hostlist(nodes)],
        "nslots": len(_members(live)) or new.spec.get("ntasks", 1),
        "starttime": live.detail.get("placed_at", 0),
        "expiration": live.detail.get("end_at", 0) or 0,
    }
    return {"version": 1, "execution": execution}


def why_doc(number: int, state: JobState, why: WaitReason, beside: Beside, ahead: Iterable[int]) -> Doc:
    return {
        "id": encode_jobid(number),
        "state": state.value,
        "kind": why.cause.value,
        "sentence": why.message,
        "clause": why.clause,
        "steps": [{"name": step.name, "passed": step.passed, "needed": step.needed} for step in why.stages],
        "blockers": [
            {
                "who": blocker.name,
                "job": encode_jobid(blocker.job) if blocker.job is not None else None,
                "until": blocker.until,
            }
            for blocker in why.blockers
        ],
        "jobs_ahead": beside.jobs_ahead,
        "ahead": [encode_jobid(job) for job in ahead],
        "forecast": _forecast(beside.forecast),
        "suggestion": _suggestion(why),
    }


def _suggestion(why: WaitReason) -> str:
    """What would change it, where that can be said."""
    if why.cause is WaitCause.HELD:
        return "`penstock release` lets it go"
    if why.cause is WaitCause.PRIORITY:
        return "a shorter time limit (-t) may let it fit before the job that it must not delay"
    if why.cause is WaitCause.QUEUE_STOPPED:
        return "`penstock queue start` starts the queue again"
    is_resources = why.cause is WaitCause.RESOURCES
    if is_resources and why.blockers and all(blocker.until is None for blocker in why.blockers):
        return "what is in its way has no known end: nothing can be promised until that ends"
    return ""


def spans_of(new: JobNew, live: JobLive, now: float) -> dict[str, Doc]:
    """By node, when a job was or is there, and with how many cores."""
    begun = cast(float | None, live.detail.get("placed_at"))
    if begun is None:
        return {}
    end: float | None = live.ended_at
    kind = "ran"
    if end is None:
        planned = cast(float | None, live.detail.get("end_at"))
        kind = "overrun" if planned is not None and planned <= now else "running"
        end = None if planned is None or planned <= now else planned
    left = _left(live) if new.workload and live.ended_at is None else {}
    return {
        node: {
            "job": encode_jobid(new.id),
            "name": new.name,
            "from": begun,
            "to": left.get(node, end),
            "kind": "ran" if node in left else kind,
            "cores": cores(held_milli(kinds)),
        }
        for node, kinds in _held(new, live).items()
    }


def _left(live: JobLive) -> dict[str, float]:
    """Nodes that all members there have left, and when: what they had is free, though the job goes on."""
    ends: dict[str, float] = {}
    stays: set[str] = set()
    for member in _members(live):
        ended_at = member.get("ended_at")
        if member["phase"] != "ended" or ended_at is None:
            stays.add(member["node"])
        else:
            ends[member["node"]] = max(ends.get(member["node"], 0.0), ended_at)
    return {node: ended_at for node, ended_at in ends.items() if node not in stays}
