"""`penstock job`: everything about one job, each question a command of its own."""

from __future__ import annotations

import json
import time
from textwrap import wrap
from typing import Any, Final

import click

from penstock.cli import exits
from penstock.cli.client import ApiClient, Doc, job_path
from penstock.cli.eventlogs import EventLines
from penstock.cli.group import SETTINGS, json_option, with_client
from penstock.cli.terminal import complain, has_colours, is_terminal, say, say_facts, say_json, shown, width
from penstock.cli.times import clock, day_and_time, span
from penstock.model.duration import parse_duration
from penstock.model.jobid import ENCODINGS, encode_jobid, parse_jobid

__all__ = ["job"]

_WAIT_STEP_S: Final = 30.0
_MEMBERS_MAX: Final = 32


@click.group(context_settings=SETTINGS)
def job() -> None:
    """One job: what it is, what happened to it, why it waits, when it starts."""


@job.command(context_settings=SETTINGS)
@with_client
@json_option
@click.argument("id_", metavar="ID")
def show(client: ApiClient, id_: str, output_format: str) -> None:
    """Show all about a job."""
    found = _fetch(client, id_)
    if output_format == "json":
        say_json(found)
        return
    say_facts((label, text) for label, text in _facts(found, time.time()) if text)


def _fetch(client: ApiClient, id_: str, *rest: str) -> Doc:
    parse_jobid(id_)
    client.meant("job", id_)
    return client.get(job_path(id_, *rest))


def _facts(found: Doc, now: float) -> list[tuple[str, str]]:
    exception = found.get("exception") or {}
    trouble = ": ".join(str(exception[key]) for key in ("type", "note") if exception.get(key))
    forecast = found.get("forecast") or {}
    starts = "" if forecast.get("start_at") is None else _start_text(forecast, now)
    times = [(name, found.get(key)) for name, key in (("submitted", "t_submit"), ("started", "t_run"))]
    times.append(("ended", found.get("t_inactive")))
    command = " ".join(_command(found))
    sizes = [(found[f"n{word}s"], word) for word in ("task", "core", "node")]
    shape = ", ".join(f"{count} {word if count == 1 else f'{word}s'}" for count, word in sizes if count)
    limit = span(found["duration_s"]) if found.get("duration_s") else "none"
    return [
        ("job", f"{found['id']}  {found['name']}"),
        ("state", found["state"] + (f", {found['result']}" if found.get("result") else "")),
        ("command", command),
        ("owner", found.get("owner", "")),
        ("queue", found.get("queue", "")),
        ("urgency", f"{found['urgency']} (priority {found['priority']})"),
        ("size", shape),
        ("time limit", limit),
        ("nodes", found.get("nodelist") or ""),
        *((name, "" if at is None else day_and_time(at)) for name, at in times),
        ("begins after", "" if found.get("begin_at") is None else day_and_time(found["begin_at"])),
        ("waits for", ",".join(found.get("dependencies") or ()) if found["state"] == "DEPEND" else ""),
        ("starts", starts if found["state"] != "INACTIVE" and found.get("t_run") is None else ""),
        ("reason", found.get("reason", "")),
        ("exception", trouble),
        ("exit code", "" if found.get("returncode") is None else str(found["returncode"])),
        ("attempt", str(found["attempt"]) if found.get("attempt", 1) > 1 else ""),
        *((f"task {part['index']}", _files(part)) for part in found.get("output") or ()),
        *_members(found),
    ]


def _members(found: Doc) -> list[tuple[str, str]]:
    """Those that have names of their own, in the world that they come from."""
    named = [member for member in found.get("members") or () if member.get("name")]
    told = [("member", _member(member)) for member in named[:_MEMBERS_MAX]]
    more = len(named) - len(told)
    return [*told, ("", f"... and {more} more")] if more else told


def _member(member: Doc) -> str:
    text = f"{member['name']}  {member['phase']}" + (f" on {member['node']}" if member["node"] else "")
    status = member.get("status")
    if status:
        text += f", signal {status & 0x7F}" if status & 0x7F else f", exit {status >> 8}"
    return text + (f" ({member['cause']})" if member.get("cause") else "")


def _command(found: Doc) -> list[str]:
    tasks = (found.get("jobspec") or {}).get("tasks") or [{}]
    command = tasks[0].get("command", [])
    return [str(word) for word in command] if isinstance(command, list) else []


def _files(part: Doc) -> str:
    paths = dict.fromkeys(str(part[stream]) for stream in ("stdout", "stderr") if part.get(stream))
    return "  ".join(paths)


def _start_text(forecast: Doc, now: float) -> str:
    start_at = forecast["start_at"]
    if start_at <= now:
        return "now"
    word = "reserved" if forecast.get("kind") == "reservation" else "forecast"
    return f"{clock(start_at, now)}, in about {span(start_at - now)} ({word})"


@job.command(context_settings=SETTINGS)
@with_client
@click.argument("id_", metavar="ID")
@click.option("-f", "--format", "form", type=click.Choice(["text", "json"]), default="text")
@click.option("-o", "also_format", type=click.Choice(["text", "json"]), help="The same as -f.")
@click.option(
    "-T",
    "--time-format",
    type=click.Choice(["raw", "iso", "offset", "human"]),
    default="raw",
    help="How times are written.",
)
@click.option("-H", "--human", is_flag=True, help="Times for people, and colours: -T human.")
@click.option("-F", "--follow", is_flag=True, help="Go on with events as they come, until the last.")
def eventlog(
    client: ApiClient,
    id_: str,
    form: str,
    also_format: str | None,
    time_format: str,
    human: bool,
    follow: bool,
) -> None:
    """Show what happened to a job, one event a line."""
    as_json = (also_format or form) == "json"
    lines = EventLines("human" if human else time_format, as_json=as_json, colours=human and has_colours())
    parse_jobid(id_)
    client.meant("job", id_)
    path = job_path(id_, "eventlog")
    if follow:
        for event in client.stream(path, follow=1):
            if event.name == "job":
                print(lines.line(event.data), flush=True)
        return
    for found in client.get(path)["events"]:
        say(lines.line(found))


@job.command(context_settings=SETTINGS)
@with_client
@json_option
@click.argument("id_", metavar="ID")
def why(client: ApiClient, id_: str, output_format: str) -> None:
    """Say why a job waits, who is before it, and what would start sooner."""
    found = _fetch(client, id_, "why")
    if output_format == "json":
        say_json(found)
        return
    now = time.time()
    told = shown(f"{found['id']}: {found['sentence'] or 'it does not wait'}")
    lines = wrap(told, width(), break_long_words=False, break_on_hyphens=False) if is_terminal() else [told]
    for line in lines:
        say(line)
    say_facts(_why_facts(found, now))


def _why_facts(found: Doc, now: float) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    for step in found.get("steps") or ():
        fails = "" if step["passed"] >= step["needed"] else "  <- too few"
        facts.append((str(step["name"]), f"{step['passed']} found, {step['needed']} needed{fails}"))
    for blocker in found.get("blockers") or ():
        until = blocker.get("until")
        text = str(blocker.get("who") or blocker.get("job") or "")
        if blocker.get("node"):
            text += f" on {blocker['node']}"
        if found.get("kind") == "behind":
            facts.append(("goes first", text + ("" if until is None else f", starts {clock(until, now)}")))
            continue
        text += "" if until is None else f" until {clock(until, now)}"
        facts.append(("in the way", text))
    if found.get("jobs_ahead"):
        first = ", ".join(found.get("ahead") or ())
        word = "job" if found["jobs_ahead"] == 1 else "jobs"
        facts.append(("ahead", f"{found['jobs_ahead']} {word}" + (f": {first}" if first else "")))
    if (found.get("forecast") or {}).get("start_at") is not None:
        facts.append(("starts", _start_text(found["forecast"], now)))
    if found.get("suggestion"):
        facts.append(("sooner", found["suggestion"]))
    return facts


@job.command(context_settings=SETTINGS)
@with_client
@json_option
@click.argument("id_", metavar="ID")
def when(client: ApiClient, id_: str, output_format: str) -> None:
    """Say when a job starts, or started, and what was promised."""
    found = _fetch(client, id_)
    forecast, promise = found.get("forecast") or {}, found.get("promise") or {}
    if output_format == "json":
        keys = ("id", "state", "t_run", "forecast", "promise", "reason")
        say_json({key: found.get(key) for key in keys})
        return
    now = time.time()
    if found.get("t_run") is not None:
        text = f"started at {day_and_time(found['t_run'])}"
    elif found["state"] == "INACTIVE":
        text = "never started"
    elif forecast.get("start_at") is not None:
        text = f"starts: {_start_text(forecast, now)}"
    else:
        text = f"has no known start: {found.get('reason') or 'not planned yet'}"
    say(shown(f"{found['id']} {text}"))
    told = [(label, promise.get(key)) for label, key in (("first told", "first"), ("last told", "last"))]
    say_facts((label, day_and_time(at)) for label, at in told if at is not None)


@job.command(context_settings=SETTINGS)
@with_client
@json_option
@click.argument("ids", nargs=-1, required=True)
@click.option("-t", "--timeout", metavar="FSD", help="Give up after this.")
def wait(client: ApiClient, ids: tuple[str, ...], timeout: str | None, output_format: str) -> int:
    """Wait until jobs have ended; exit 1 if one of them did not complete."""
    from penstock.cli.fields import job_field

    deadline = None if timeout is None else time.monotonic() + parse_duration(timeout)
    ended: list[Doc] = []
    code = exits.OK
    for id_ in ids:
        parse_jobid(id_)
        client.meant("job", id_)
        found = _wait_for(client, id_, deadline)
        ended.append(found)
        if found["state"] != "INACTIVE":
            complain(f"{id_}: still {found['state']} after {timeout}")
            code = exits.FAILED
        elif found["result"] != "COMPLETED":
            if output_format != "json":
                complain(f"{id_}: {job_field(found, 'inactive_reason', 0.0)}")
            code = exits.FAILED
    if output_format == "json":
        say_json({"jobs": ended})
    return code


def _wait_for(client: ApiClient, id_: str, deadline: float | None) -> Doc:
    while True:
        left = _WAIT_STEP_S if deadline is None else max(0.0, deadline - time.monotonic())
        found = client.get(job_path(id_, "wait"), timeout_s=min(left, _WAIT_STEP_S))
        if found["state"] == "INACTIVE" or (deadline is not None and time.monotonic() >= deadline):
            return found


@job.command(context_settings=SETTINGS)
@with_client
@click.argument("id_", metavar="ID")
@click.option("-l", "--label-io", is_flag=True, help="Put the task's rank before each line.")
def attach(client: ApiClient, id_: str, label_io: bool) -> int:
    """Show the output of a job from the beginning, stay to its end, exit as it does."""
    from penstock.cli.attach import attach_to

    found = _fetch(client, id_)
    return attach_to(client, found["id"], label=label_io)


@job.command("id", context_settings=SETTINGS)
@click.argument("ids", nargs=-1, required=True)
@click.option("--to", "encoding", type=click.Choice(ENCODINGS), default="dec", help="How to write them.")
@click.option("-o", "output_format", type=click.Choice(["table", "json"]), default="table")
def id_(ids: tuple[str, ...], encoding: str, output_format: str) -> None:
    """Write job ids in another form."""
    texts: list[Any] = [encode_jobid(parse_jobid(text), encoding) for text in ids]
    if output_format == "json":
        say(json.dumps(texts))
        return
    for text in texts:
        say(shown(text))
