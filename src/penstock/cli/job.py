"""`penstock job`: one job in detail, with one subcommand per question."""

from __future__ import annotations

import json
import time
from textwrap import wrap
from typing import Any, Final

import click

from penstock.cli import exits
from penstock.cli.client import ApiClient, Doc, RequestRefused, job_path
from penstock.cli.eventlogs import EventLines
from penstock.cli.fields import job_field, reason_text
from penstock.cli.group import SETTINGS, json_lines_option, json_option, with_client
from penstock.cli.job_names import job_id, job_ids
from penstock.cli.jobspecs import signal_number
from penstock.cli.terminal import (
    has_colours,
    is_terminal,
    print_error,
    print_fields,
    print_json,
    print_line,
    printable,
    width,
)
from penstock.cli.times import clock, day_and_time, parse_span, span
from penstock.model.jobid import ENCODINGS, encode_jobid, parse_jobid

__all__ = ["job"]

_MEMBERS_MAX: Final = 32
_BLOCKERS_MAX: Final = 3


@click.group(context_settings=SETTINGS)
def job() -> None:
    """Inspect one job: its description, its eventlog, why it is pending, when it starts."""


@job.command(context_settings=SETTINGS)
@with_client
@json_option
@click.argument("id_", metavar="ID")
def show(client: ApiClient, id_: str, output_format: str) -> None:
    """Show a job: state, size, time limit, nodes, forecast, tasks."""
    found = _fetch(client, id_)
    if output_format == "json":
        print_json(found)
        return
    print_fields((label, text) for label, text in _job_fields(found, time.time()) if text)


def _fetch(client: ApiClient, id_: str, *rest: str) -> Doc:
    return client.get(job_path(job_id(client, id_), *rest))


def _job_fields(found: Doc, now: float) -> list[tuple[str, str]]:
    exception = found.get("exception") or {}
    error = ": ".join(str(exception[key]) for key in ("type", "note") if exception.get(key))
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
        ("namespace" if found.get("namespace") else "owner", found.get("owner", "")),
        ("queue", found.get("queue", "")),
        ("urgency", f"{found['urgency']} (priority {found['priority']})"),
        ("size", shape),
        ("time limit", limit),
        ("nodes", found.get("nodelist") or ""),
        *((name, "" if at is None else day_and_time(at)) for name, at in times),
        ("begins after", "" if found.get("begin_at") is None else day_and_time(found["begin_at"])),
        ("depends on", ",".join(found.get("dependencies") or ()) if found["state"] == "DEPEND" else ""),
        ("starts", starts if found["state"] != "INACTIVE" and found.get("t_run") is None else ""),
        ("reason", str(job_field(found, "reason", now))),
        ("exception", error),
        ("exit code", "" if found.get("returncode") is None else str(found["returncode"])),
        ("attempt", str(found["attempt"]) if found.get("attempt", 1) > 1 else ""),
        *((f"task {part['index']}", _files(part)) for part in found.get("output") or ()),
        *_members(found),
    ]


def _members(found: Doc) -> list[tuple[str, str]]:
    """The members that have a name in the backend (pods), up to a limit."""
    named = [member for member in found.get("members") or () if member.get("name")]
    rows = [("member", _member(member)) for member in named[:_MEMBERS_MAX]]
    more = len(named) - len(rows)
    return [*rows, ("", f"... and {more} more")] if more else rows


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
@click.option(
    "-f", "--format", "form", type=click.Choice(["text", "json"]), default="text", help="Output format."
)
@click.option("-o", "also_format", type=click.Choice(["text", "json"]), help="Same as -f.")
@click.option(
    "-T",
    "--time-format",
    type=click.Choice(["raw", "iso", "offset", "human"]),
    default="raw",
    help="Format of times.",
)
@click.option("-H", "--human", is_flag=True, help="Human-readable times, and colours: -T human.")
@click.option("-F", "--follow", is_flag=True, help="Print events as they occur, until the last one.")
def eventlog(
    client: ApiClient,
    id_: str,
    form: str,
    also_format: str | None,
    time_format: str,
    human: bool,
    follow: bool,
) -> None:
    """Show the eventlog of a job, one event per line."""
    as_json = (also_format or form) == "json"
    lines = EventLines("human" if human else time_format, as_json=as_json, colours=human and has_colours())
    path = job_path(job_id(client, id_), "eventlog")
    if follow:
        for event in client.stream(path, follow=1):
            if event.name == "job":
                print(lines.line(event.data), flush=True)
        return
    for found in client.get(path)["events"]:
        print_line(lines.line(found))


@job.command(context_settings=SETTINGS, short_help="Explain why a job is pending.")
@with_client
@json_option
@click.argument("id_", metavar="ID")
def why(client: ApiClient, id_: str, output_format: str) -> None:
    """Explain why a job is pending, which jobs are ahead of it, and how it could start sooner."""
    found = _fetch(client, id_, "why")
    if output_format == "json":
        print_json(found)
        return
    now = time.time()
    text = printable(f"{found['id']}: {_why_sentence(found, now)}")
    lines = wrap(text, width(), break_long_words=False, break_on_hyphens=False) if is_terminal() else [text]
    for line in lines:
        print_line(line)
    print_fields(_why_fields(found, now))


def _why_sentence(found: Doc, now: float) -> str:
    """`needs 4 nodes with 2 free cores each, 0 of 4 have them; held by ƒA (ends 14:05:10) and 3 more`."""
    if not _names_blockers(found):
        reason = reason_text(found["sentence"], found["kind"], found.get("begin_at"), now)
        return reason or _not_pending(found)
    blockers = found["blockers"]
    names = ", ".join(_blocker(blocker, now) for blocker in blockers[:_BLOCKERS_MAX])
    more = len(blockers) - _BLOCKERS_MAX
    return f"{found['clause']}; held by {names}" + (f" and {more} more" if more > 0 else "")


def _not_pending(found: Doc) -> str:
    return {"RUN": "not pending: it is running", "CLEANUP": "not pending: it is ending"}.get(
        found["state"], "not pending"
    )


def _names_blockers(found: Doc) -> bool:
    """Whether the sentence names the jobs that hold the resources."""
    return bool(found.get("kind") == "resources" and found.get("clause") and found.get("blockers"))


def _blocker(blocker: Doc, now: float) -> str:
    name = str(blocker.get("who") or blocker.get("job") or "")
    until = blocker.get("until")
    details = [blocker["name"]] if blocker.get("name") else []
    if blocker.get("overrun"):
        details.append("past its limit")
    if until is not None:
        word = "expected to end" if blocker.get("overrun") else "ends"
        details.append(f"{word} {clock(until, now)}")
    return f"{name} ({', '.join(details)})" if details else name


def _why_fields(found: Doc, now: float) -> list[tuple[str, str]]:
    fields: list[tuple[str, str]] = []
    has_failed = False
    for step in found.get("steps") or ():
        # Only the first stage that leaves too few is the reason; those after it have fewer to choose from.
        mark = "" if has_failed or step["passed"] >= step["needed"] else "  <- too few"
        has_failed = has_failed or bool(mark)
        fields.append((str(step["name"]), f"{step['passed']} found, {step['needed']} needed{mark}"))
    blockers = found.get("blockers") or ()
    if found.get("kind") == "queue-order" or (_names_blockers(found) and len(blockers) <= _BLOCKERS_MAX):
        blockers = ()  # The sentence names them.
    for blocker in blockers:
        if found.get("kind") == "behind":
            until = blocker.get("until")
            start = "" if until is None else f", starts {clock(until, now)}"
            fields.append(("must not delay", f"{blocker.get('who') or blocker.get('job') or ''}{start}"))
        else:
            fields.append(("held by", _blocker(blocker, now)))
    is_said = found.get("kind") == "behind" and found.get("ahead") == [each.get("job") for each in blockers]
    if found.get("jobs_ahead") and not is_said:
        first = ", ".join(found.get("ahead") or ())
        word = "job" if found["jobs_ahead"] == 1 else "jobs"
        fields.append(("ahead", f"{found['jobs_ahead']} {word}" + (f": {first}" if first else "")))
    if (found.get("forecast") or {}).get("start_at") is not None:
        fields.append(("starts", _start_text(found["forecast"], now)))
    if found.get("suggestion"):
        fields.append(("hint", found["suggestion"]))
    return fields


@job.command(context_settings=SETTINGS, short_help="Show when a job starts, or started.")
@with_client
@json_option
@click.argument("id_", metavar="ID")
def when(client: ApiClient, id_: str, output_format: str) -> None:
    """Show when a job starts or started, and the start that was promised."""
    found = _fetch(client, id_)
    forecast, promise = found.get("forecast") or {}, found.get("promise") or {}
    if output_format == "json":
        keys = ("id", "state", "t_run", "forecast", "promise", "reason")
        print_json({key: found.get(key) for key in keys})
        return
    now = time.time()
    if found.get("t_run") is not None:
        text = f"started at {day_and_time(found['t_run'])}"
    elif found["state"] == "INACTIVE":
        text = "never started"
    elif forecast.get("start_at") is not None:
        start = _start_text(forecast, now)
        text = "starts now" if start == "now" else f"starts at {start}"
    elif found.get("reason_kind") == "begin-time":
        text = str(job_field(found, "reason", now))
    else:
        text = f"has no forecast start: {found.get('reason') or 'not planned yet'}"
    print_line(printable(f"{found['id']} {text}"))
    promises = [
        (label, promise.get(key)) for label, key in (("first promise", "first"), ("last promise", "last"))
    ]
    print_fields((label, day_and_time(at)) for label, at in promises if at is not None)


@job.command(context_settings=SETTINGS, short_help="Wait until jobs are inactive.")
@with_client
@json_option
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("-t", "--timeout", metavar="DURATION", help="Stop waiting after this: 30 (seconds), 5m.")
def wait(client: ApiClient, ids: tuple[str, ...], timeout: str | None, output_format: str) -> int:
    """Wait until jobs are inactive; exit with the largest of their exit codes.

    A job that was canceled before it ran, or that is still active after the timeout, counts as 1.
    """
    from penstock.cli.waiting import wait_for_jobs

    timeout_s = None if timeout is None else parse_span(timeout, "--timeout")
    ids = job_ids(client, ids)
    code, inactive = wait_for_jobs(client, ids, timeout_s, quiet=output_format == "json")
    if output_format == "json":
        print_json({"jobs": inactive})
    return code


@job.command(context_settings=SETTINGS, short_help="Send a signal to the tasks of running jobs.")
@with_client
@json_option
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option(
    "-s", "--signal", "name", metavar="SIG", default="TERM", help="Name or number of the signal (TERM)."
)
def kill(client: ApiClient, ids: tuple[str, ...], name: str, output_format: str) -> int:
    """Send a signal to all tasks of running jobs: to each task and the processes in its process group.

    The job goes on if its tasks survive the signal; `penstock cancel` ends a job in any state.
    """
    number = signal_number(name, "--signal")
    ids = job_ids(client, ids)
    signaled: list[str] = []
    errors: list[Doc] = []
    for id_ in ids:
        try:
            client.post(job_path(id_, "signal"), {"signal": number})
            signaled.append(id_)
        except RequestRefused as error:
            if len(ids) == 1 and output_format != "json":
                raise
            errors.append({"id": id_, "message": str(error)})
    if output_format == "json":
        print_json({"signaled": signaled, "errors": errors})
    else:
        for failed in errors:
            print_error(str(failed["message"]))
    return exits.FAILED if errors else exits.OK


@job.command(context_settings=SETTINGS, short_help="Show the output of a job until it ends.")
@with_client
@click.argument("id_", metavar="ID")
@click.option("-l", "--label-io", is_flag=True, help="Prefix each line with the task rank.")
@click.option("--stdin", "with_input", is_flag=True, help="Also send standard input to the tasks.")
@json_lines_option
def attach(client: ApiClient, id_: str, label_io: bool, with_input: bool, output_format: str) -> int:
    """Show the output of a job from the beginning until it ends, and exit with its exit code.

    With --stdin, continue the input of a job that `penstock run` has detached from.
    """
    from penstock.cli.attach import attach_to
    from penstock.cli.input_sender import InputSender

    found = _fetch(client, id_)
    sender = None
    if with_input:
        known = client.post(job_path(found["id"], "input"), {"offset": 0})
        sender = None if known["ended"] else InputSender(client, found["id"], int(known["size"]))
    return attach_to(client, found["id"], label=label_io, sender=sender, as_json=output_format == "json")


@job.command("id", context_settings=SETTINGS)
@click.argument("ids", nargs=-1, required=True)
@click.option(
    "--to", "encoding", type=click.Choice(ENCODINGS), default="dec", help="Encoding of the printed ids."
)
@click.option("-o", "output_format", type=click.Choice(["table", "json"]), default="table")
def id_(ids: tuple[str, ...], encoding: str, output_format: str) -> None:
    """Convert job ids to another encoding."""
    texts: list[Any] = [encode_jobid(parse_jobid(text), encoding) for text in ids]
    if output_format == "json":
        print_line(json.dumps(texts))
        return
    for text in texts:
        print_line(printable(text))
