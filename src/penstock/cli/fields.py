"""The fields of a job that a format can use, computed from the job's JSON document. Pure."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import datetime
from typing import Final

from penstock.cli.client import Doc
from penstock.cli.formats import Cell
from penstock.cli.times import clock, moment
from penstock.model.duration import format_duration
from penstock.model.jobid import ENCODINGS, encode_jobid, parse_jobid

__all__ = ["HEADINGS", "PRESETS", "job_field", "reason_text"]

PRESETS: Final = {
    "default": "{id.f58:>12} ?:{queue:<8.8} ?+:{username:<8} ?+:{namespace:<9} {name:<10.10+} "
    "{status_abbrev:>2.2} {ntasks:>6} {nnodes:>6h} {contextual_time!F:>8h} {contextual_info}",
    "long": "{id.f58:>12} ?:{queue:<8.8} ?+:{username:<8} ?+:{namespace:<9} {name:<10.10+} {status:>9.9} "
    "{ntasks:>6} {nnodes:>6h} {t_submit!d:%b%d %R::>12} {t_remaining!F:>12h} {contextual_time!F:>8h} "
    "{contextual_info}",
    "deps": "{id.f58:>12} ?:{queue:<8.8} {name:<10.10+} {urgency:<3} {priority:<12} {state:<8.8} "
    "{dependencies}",
    "endreason": "{id.f58:>12} ?:{queue:<8.8} ?+:{username:<8} ?+:{namespace:<9} {name:<10.10+} "
    "{status_abbrev:>2.2} {t_inactive!d:%b%d %R::>12h} {inactive_reason}",
    "why": "{id.f58:>12} ?:{queue:<8.8} ?+:{namespace:<9} {name:<10.10+} {status_abbrev:>2.2} "
    "{ntasks:>6} {nnodes:>6h} {forecast:>12h} {reason}",
}

_ABBREVIATIONS: Final = {"COMPLETED": "CD", "FAILED": "F", "CANCELED": "CA", "TIMEOUT": "TO"}
_PENDING: Final = ("DEPEND", "PRIORITY", "SCHED")

HEADINGS: Final[dict[str, str]] = {
    "id": "JOBID",
    **{f"id.{encoding}": "JOBID" for encoding in ENCODINGS},
    "username": "USER",
    "namespace": "NAMESPACE",
    "urgency": "URG",
    "priority": "PRI",
    "state": "STATE",
    "state_single": "S",
    "status": "STATUS",
    "status_abbrev": "ST",
    "result": "RESULT",
    "result_abbrev": "RS",
    "name": "NAME",
    "queue": "QUEUE",
    "ntasks": "NTASKS",
    "ncores": "NCORES",
    "nnodes": "NNODES",
    "ranks": "RANKS",
    "nodelist": "NODELIST",
    "duration": "DURATION",
    "expiration": "EXPIRATION",
    "t_remaining": "T_REMAINING",
    "t_submit": "T_SUBMIT",
    "t_depend": "T_DEPEND",
    "t_run": "T_RUN",
    "t_cleanup": "T_CLEANUP",
    "t_inactive": "T_INACTIVE",
    "runtime": "RUNTIME",
    "success": "SUCCESS",
    "waitstatus": "WSTATUS",
    "returncode": "RC",
    "exception.occurred": "EXCEPTION-OCCURRED",
    "exception.severity": "EXCEPTION-SEVERITY",
    "exception.type": "EXCEPTION-TYPE",
    "exception.note": "EXCEPTION-NOTE",
    "dependencies": "DEPENDENCIES",
    "contextual_info": "INFO",
    "contextual_time": "TIME",
    "inactive_reason": "INACTIVE-REASON",
    "sched.t_estimate": "T_ESTIMATE",
    "sched.reason_pending": "REASON",
    "sched.jobs_ahead": "AHEAD",
    "forecast": "FORECAST",
    "reason": "REASON",
    "requeue": "REQUEUE",
    "attempt": "ATTEMPT",
    "begin_at": "BEGIN",
}

_DERIVED: Final[dict[str, Callable[[Doc], Cell]]] = {
    "username": lambda job: "" if job.get("namespace") else _plain(job.get("owner")),
    "duration": lambda job: _plain(job.get("duration_s")),
    "status_abbrev": lambda job: _status_abbrev(job),
    "result_abbrev": lambda job: _ABBREVIATIONS.get(job.get("result") or "", ""),
    "success": lambda job: job.get("result") == "COMPLETED" if job.get("result") else "",
    "dependencies": lambda job: ",".join(job.get("dependencies") or ()),
    "inactive_reason": lambda job: _inactive_reason(job),
    "sched.t_estimate": lambda job: _plain((job.get("forecast") or {}).get("start_at")),
    "sched.jobs_ahead": lambda job: _plain(job.get("jobs_ahead")),
}
_TIMED: Final[dict[str, Callable[[Doc, float], Cell]]] = {
    "t_remaining": lambda job, now: _remaining(job, now),
    "runtime": lambda job, now: _runtime(job, now),
    "contextual_info": lambda job, now: _info(job, now),
    "contextual_time": lambda job, now: _time(job, now),
    "forecast": lambda job, now: _forecast(job, now),
    "reason": lambda job, now: _reason(job, now),
    "sched.reason_pending": lambda job, now: _reason(job, now),
}


def job_field(job: Doc, name: str, now: float) -> Cell:
    if name == "id":
        return _plain(job["id"])
    if name.startswith("id."):
        return encode_jobid(parse_jobid(job["id"]), name.removeprefix("id."))
    if name.startswith("exception."):
        return _plain((job.get("exception") or {}).get(name.removeprefix("exception.")))
    if name in _TIMED:
        return _TIMED[name](job, now)
    return _DERIVED[name](job) if name in _DERIVED else _plain(job.get(name))


def _plain(value: object) -> Cell:
    return value if isinstance(value, (str, int, float)) else None


def _status_abbrev(job: Doc) -> str:
    if job["state"] == "INACTIVE":
        return _ABBREVIATIONS.get(job.get("result") or "", "I")
    if job["state"] == "RUN" and job.get("incomplete_reason"):
        return "RI"  # It runs without some of its members.
    return str(job["state_single"])


def _runtime(job: Doc, now: float) -> float:
    began = job.get("t_run")
    if began is None:
        return 0.0
    ended = job.get("t_cleanup") or job.get("t_inactive")
    return max(0.0, float((now if ended is None else ended) - began))


def _remaining(job: Doc, now: float) -> float | None:
    expiration = job.get("expiration")
    if job["state"] != "RUN" or not expiration:
        return None
    return max(0.0, float(expiration) - now)


def _time(job: Doc, now: float) -> float:
    return float(job.get("duration_s") or 0.0) if job["state"] in _PENDING else _runtime(job, now)


def _info(job: Doc, now: float) -> str:
    state = job["state"]
    if state == "DEPEND":
        begin_time = [] if job.get("begin_at") is None else [f"begin-time={job['begin_at']}"]
        texts = [_dependency(text, now) for text in [*begin_time, *(job.get("dependencies") or ())]]
        begins = [text for text in texts if text.startswith("begin@")]
        others = [text for text in texts if not text.startswith("begin@")]
        info = " ".join(begins + ([f"depends:{','.join(others)}"] if others else []))
        return info or (str(job.get("reason") or "") if job.get("reason_kind") == "assembling" else "")
    if state == "PRIORITY":
        return "priority-wait"
    if state == "SCHED":
        start_at = (job.get("forecast") or {}).get("start_at")
        if start_at is not None:
            left = start_at - now
            return "eta:now" if left <= 0 else f"eta:{format_duration(left)}"
        if job.get("urgency") == 0:
            return "held"
        return "priority-hold" if job.get("priority") == 0 else str(job.get("reason") or "")
    return str(job.get("nodelist") or "")


def _dependency(text: str, now: float) -> str:
    name, _, value = text.partition("=")
    if name != "begin-time":
        return text
    try:
        at = datetime.fromtimestamp(float(value))
    except (ValueError, OverflowError, OSError):
        return text
    time = at.strftime("%H:%M:%S" if at.second else "%H:%M")
    is_today = at.date() == datetime.fromtimestamp(now).date()
    return f"begin@{time}" if is_today else f"begin@{at.strftime('%b%d')}-{time}"


def _forecast(job: Doc, now: float) -> str:
    start_at = (job.get("forecast") or {}).get("start_at")
    if job["state"] not in _PENDING or start_at is None:
        return ""
    return "now" if start_at <= now else clock(start_at, now)


def reason_text(reason: str, kind: str, begin_at: float | None, now: float) -> str:
    """The reason of a pending job; if it waits for its begin time, with that time on the local clock."""
    return f"{reason}, {moment(begin_at, now)}" if kind == "begin-time" and begin_at is not None else reason


def _reason(job: Doc, now: float) -> str:
    return reason_text(job.get("reason") or "", job.get("reason_kind") or "", job.get("begin_at"), now)


def _inactive_reason(job: Doc) -> str:
    if job["state"] != "INACTIVE":
        return ""
    exception = job.get("exception") or {}
    note = str(exception.get("note") or "")
    result = job.get("result")
    if result == "CANCELED":
        return f"Canceled: {note}" if note else "Canceled"
    if result == "TIMEOUT":
        return "Timeout"
    status = job.get("waitstatus")
    code = None if status is None else (status & 0x7F) + 128 if status & 0x7F else status >> 8
    if exception.get("occurred") and exception.get("type") != "exec":
        return f"Exception: type={exception.get('type')} note={note}"
    if code == 127:
        return "command not found"
    if code is not None and 128 < code < 193:
        return signal.strsignal(code - 128) or f"Signal {code - 128}"
    return f"Exit {code}" if code is not None else f"Exception: type={exception.get('type')} note={note}"
