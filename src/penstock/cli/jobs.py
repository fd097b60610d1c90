"""`penstock jobs`: the queue, what runs and what ended, in the columns that Flux users know."""

from __future__ import annotations

import time
from collections.abc import Iterable
from difflib import get_close_matches
from textwrap import wrap
from typing import Any, Final

import click

from penstock.cli import exits
from penstock.cli.client import ApiClient, Doc
from penstock.cli.fields import HEADINGS, PRESETS, job_field
from penstock.cli.formats import Cell, Table, parse_format
from penstock.cli.group import SETTINGS, with_client
from penstock.cli.terminal import complain, is_terminal, paint, say, say_json, width
from penstock.cli.times import parse_when
from penstock.errors import BadRequest
from penstock.model.jobid import parse_jobid

__all__ = ["job_table", "jobs"]

_STATES = ("depend", "priority", "sched", "run", "cleanup", "inactive", "pending", "running", "active")
_RESULTS = ("completed", "failed", "canceled", "timeout")
_COUNT_DEFAULT: Final = 1000
_QUEUE_DEFAULT: Final = "default"
_ROOM_MIN: Final = 40  # a last column with less room than this moves to the next line
_COLOURS = {"R": "green", "C": "green", "S": "yellow", "D": "blue", "P": "blue", "F": "red", "TO": "red"}


@click.command(context_settings=SETTINGS)
@with_client
@click.argument("ids", nargs=-1)
@click.option("-a", "with_inactive", is_flag=True, help="Inactive jobs as well.")
@click.option(
    "-A", "everybody", is_flag=True, help="Jobs of all users (an instance has one user: no change)."
)
@click.option("-u", "--user", metavar="NAME", help="Jobs of this user.")
@click.option("-f", "--filter", "filters", metavar="STATE|RESULT,...", help="Only such jobs.")
@click.option("-q", "--queue", metavar="NAME", help="Jobs of this queue.")
@click.option("--name", metavar="NAME", help="Jobs of this name.")
@click.option("--since", metavar="WHEN", help="Inactive jobs that ended after WHEN (-2h, 14:30, a date).")
@click.option(
    "-c",
    "--count",
    type=click.IntRange(1, 1_000_000),
    default=_COUNT_DEFAULT,
    metavar="N",
    help="At most so many jobs.",
)
@click.option("-n", "--no-header", is_flag=True, help="Without the line of headings.")
@click.option("-o", "--format", "form", metavar="FORMAT", default="default",
              help="A format string, json, or one of: " + ", ".join(PRESETS) + ".")  # fmt: skip
@click.option("--sort", metavar="FIELD,...", help="Sort by fields; -FIELD for the other way round.")
@click.option("--watch", is_flag=True, help="Keep the table up to date until ctrl-C.")
def jobs(client: ApiClient, ids: tuple[str, ...], **options: Any) -> int:
    """List jobs: pending and running ones, or those with the given IDs.

    Pending jobs show in INFO when they are expected to start. `-o why` and `--watch` show the forecast and
    the reason for waiting in columns of their own.
    """
    query = _query(ids, options)
    client.meant("queue", options["queue"] or "")
    client.meant("job", *ids)
    form = options["form"]
    if options["watch"]:
        from penstock.cli.watch import watch

        watch(client, query, PRESETS["why"] if form == "default" else _format(form))
        return exits.OK
    found = client.get("/v1/jobs", **query)["jobs"]
    code = exits.FAILED if _complain_missing(client, ids, found) else exits.OK
    if len(found) >= options["count"] == _COUNT_DEFAULT:  # Whoever names a count wants no more.
        complain(f"only the first {len(found)} are shown; --count shows more")
    if options["sort"]:
        found = _sorted(found, options["sort"])
    if form == "json":
        say_json({"jobs": found})
        return code
    table = parse_format(_format(form), HEADINGS)
    for line in job_table(table, found, time.time(), header=not options["no_header"]):
        say(line)
    return code


def job_table(
    table: Table, found: list[Doc], now: float, *, header: bool = True, columns: int | None = None
) -> list[str]:
    """Lines for the screen; on a terminal no wider than it, with the state in colour.

    Where everything is in the one queue that an instance has by itself, its name tells nothing.
    """
    if columns is None and is_terminal():
        columns = width()
    plain = columns is not None and all(job.get("queue") == _QUEUE_DEFAULT for job in found)

    def value(job: Doc, name: str) -> Cell:
        return None if plain and name == "queue" else job_field(job, name, now)

    lines = table.lines(found, value, header=header)
    made = [paint(line, "bold") for line in _folded(lines.pop(0), columns)] if header and lines else []
    for job, pieces in zip(found, lines, strict=True):
        made += [_coloured(line, job) for line in _fitted(pieces, columns)]
    return made


def _cut(text: str, columns: int | None) -> str:
    return text if columns is None or len(text) <= columns else text[: columns - 1] + "+"


def _folded(pieces: list[str], columns: int | None) -> list[str]:
    """The line, or two of them: the columns that do not fit stand below, where those of other lines do."""
    if columns is None or len("".join(pieces)) <= columns or len(pieces) < 3:
        return [_cut("".join(pieces), columns)]
    count = len(pieces) - 1
    while count > 1 and len("".join(pieces[:count])) > columns:
        count -= 1
    if count == len(pieces) - 1:
        return [_cut("".join(pieces), columns)]  # The heading of the last column may be cut.
    below = " " * len(pieces[0]) + "".join(pieces[count:])
    return ["".join(pieces[:count]), _cut(below.rstrip(), columns)]


def _fitted(pieces: list[str], columns: int | None) -> list[str]:
    """The line; if it is too long, its last column goes on below itself, or all of it on the next lines."""
    text, head = "".join(pieces), "".join(pieces[:-1])
    if columns is None or len(text) <= columns or len(head) > columns or len(pieces) < 2:
        return _folded(pieces, columns)
    indent = len(head) + 1
    if columns - indent >= _ROOM_MIN:
        first, *more = wrap(pieces[-1].strip(), columns - indent, break_on_hyphens=False)
        return [f"{head} {first}", *(" " * indent + line for line in more)]
    indent = len(pieces[0]) + 1
    more = wrap(pieces[-1].strip(), max(20, columns - indent), break_on_hyphens=False)
    return [head.rstrip(), *(" " * indent + line for line in more)]


def _coloured(text: str, job: Doc) -> str:
    mark = job_field(job, "status_abbrev", 0.0)
    if job["state"] == "INACTIVE" and mark == "CD":
        return paint(text, "dim")
    style = _COLOURS.get(str(mark), "magenta")
    return (
        paint(text, style)
        if style in ("red", "magenta")
        else text.replace(f" {mark} ", f" {paint(str(mark), style)} ", 1)
    )


def _query(ids: tuple[str, ...], options: dict[str, Any]) -> dict[str, object]:
    states: list[str] = []
    results: list[str] = []
    for word in (options["filters"] or "").lower().split(","):
        if word in _STATES:
            states.append(word)
        elif word in _RESULTS:
            results.append(word)
        elif word:
            near = get_close_matches(word, _STATES + _RESULTS, n=1)
            hint = f"did you mean {near[0]}?" if near else ", ".join(_STATES + _RESULTS)
            raise BadRequest(
                "neither a state nor a result", where="--filter", found=repr(word), expected=hint
            )
    if options["with_inactive"] and not states and not results:
        states = ["active", "inactive"]
    since = options["since"]
    if since and not (states or results):
        states = ["active", "inactive"]
    return {
        "ids": ",".join(ids),
        "states": ",".join(states),
        "results": ",".join(results),
        "queue": options["queue"],
        "name": options["name"],
        "owner": options["user"],
        "since": parse_when(since, time.time(), past=True) if since else None,
        "limit": options["count"],
    }


def _format(form: str) -> str:
    if form in PRESETS:
        return PRESETS[form]
    if "{" in form:
        return form
    near = get_close_matches(form, [*PRESETS, "json"], n=1)
    hint = f"did you mean {near[0]}?" if near else "a format string, json, " + ", ".join(PRESETS)
    raise BadRequest("no such format", where="-o", found=repr(form), expected=hint)


def _sorted(found: list[Doc], keys: str) -> list[Doc]:
    now = time.time()
    for key in reversed(keys.split(",")):
        name = key.removeprefix("-")
        if name not in HEADINGS:
            expected = "one of " + ", ".join(HEADINGS)
            raise BadRequest("unknown field", where="--sort", found=repr(name), expected=expected)

        def rank(job: Doc, name: str = name) -> tuple[bool, float, str]:
            value = job_field(job, name, now)
            number = float(value) if isinstance(value, (int, float)) else 0.0
            return (value is None, number, value if isinstance(value, str) else "")

        found = sorted(found, key=rank, reverse=key.startswith("-"))
    return found


def _complain_missing(client: ApiClient, ids: Iterable[str], found: list[Doc]) -> bool:
    """Names the ids that are not among what was found; whether there were any."""
    known = {parse_jobid(job["id"]) for job in found}
    missing = [text for text in ids if parse_jobid(text) not in known]
    for text in missing:
        hint = client.did_you_mean()
        complain(f"{text}: unknown job id" + (f"; {hint}" if hint else ""))
    return bool(missing)
