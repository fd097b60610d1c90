"""`penstock jobs`: lists pending, running and inactive jobs, with the columns and formats of `flux jobs`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

import click

from penstock.cli import exits
from penstock.cli.cells import cell_width, cut_cells, wrap_cells
from penstock.cli.client import ApiClient, Doc
from penstock.cli.fields import HEADINGS, PRESETS, job_field
from penstock.cli.formats import Cell, Table, parse_format
from penstock.cli.group import SETTINGS, with_client
from penstock.cli.job_names import job_ids
from penstock.cli.terminal import is_terminal, print_error, print_json, print_line, styled, width
from penstock.cli.times import parse_when
from penstock.errors import BadRequest
from penstock.model.jobid import parse_jobid
from penstock.model.text import count_of

__all__ = ["job_table", "jobs"]

_STATES = ("depend", "priority", "sched", "run", "cleanup", "inactive", "pending", "running", "active")
_RESULTS = ("completed", "failed", "canceled", "timeout")
_COUNT_DEFAULT: Final = 1000
_QUEUE_DEFAULT: Final = "default"
_USUAL_WIDTH: Final = 80
_LAST_COLUMN_MIN: Final = 40  # a last column narrower than this moves to the next line
_COLOURS = {"R": "green", "C": "green", "S": "yellow", "D": "blue", "P": "blue", "F": "red", "TO": "red"}


@click.command(context_settings=SETTINGS)
@with_client
@click.argument("ids", nargs=-1)
@click.option("-a", "with_inactive", is_flag=True, help="Include inactive jobs.")
@click.option(
    "-A", "all_users", is_flag=True, help="Jobs of all users (no effect: an instance has one user)."
)
@click.option("-u", "--user", metavar="NAME", help="Jobs of this user.")
@click.option(
    "-f",
    "--filter",
    "filters",
    metavar="STATE|RESULT,...",
    help="Only jobs in these states or with these results.",
)
@click.option("-q", "--queue", metavar="NAME", help="Jobs of this queue.")
@click.option("--name", metavar="NAME", help="Jobs with this name.")
@click.option("--since", metavar="WHEN", help="Inactive jobs that ended after WHEN (-2h, 14:30, a date).")
@click.option(
    "-c",
    "--count",
    type=click.IntRange(1, 1_000_000),
    default=_COUNT_DEFAULT,
    metavar="N",
    help="Maximum number of jobs.",
)
@click.option("-n", "--no-header", is_flag=True, help="Omit the header line.")
@click.option("-o", "--format", "form", metavar="FORMAT", default="default",
              help="Format string, json, or one of: " + ", ".join(PRESETS) + ".")  # fmt: skip
@click.option("--sort", metavar="FIELD,...", help="Sort by fields; -FIELD sorts in descending order.")
@click.option("--watch", is_flag=True, help="Refresh the table every second until ctrl-C.")
def jobs(client: ApiClient, ids: tuple[str, ...], **options: Any) -> int:
    """List pending and running jobs, or the jobs with the given IDs.

    INFO shows the expected start of a pending job (eta), or why it is pending. `-o why` and `--watch` show
    the forecast start and the reason in separate columns.
    """
    client.remember("queue", options["queue"] or "")
    ids = job_ids(client, ids)
    query = _query(ids, options)
    form = options["form"]
    if options["watch"]:
        from penstock.cli.watch import watch

        watch(client, query, PRESETS["why"] if form == "default" else _format(form))
        return exits.OK
    found = client.get("/v1/jobs", **query)["jobs"]
    code = exits.FAILED if _report_missing(client, ids, found) else exits.OK
    if len(found) >= options["count"] == _COUNT_DEFAULT:  # An explicit --count needs no hint.
        print_error(f"only the first {count_of(len(found), 'job')} listed; use --count to list more")
    if options["sort"]:
        found = _sorted(found, options["sort"])
    if form == "json":
        print_json({"jobs": found})
        return code
    table = parse_format(_format(form), HEADINGS)
    for line in job_table(table, found, time.time(), header=not options["no_header"]):
        print_line(line)
    return code


def job_table(
    table: Table, found: list[Doc], now: float, *, header: bool = True, columns: int | None = None
) -> list[str]:
    """The lines of the table; on a terminal they fit its width, and states are coloured.

    The queue column is left out on a terminal if all jobs are in the default queue.
    """
    if columns is None and is_terminal():
        columns = width()
    is_default_queue = columns is not None and all(job.get("queue") == _QUEUE_DEFAULT for job in found)

    def value(job: Doc, name: str) -> Cell:
        return None if is_default_queue and name == "queue" else job_field(job, name, now)

    lines = table.widened("name", _name_width(table, found, columns)).lines(found, value, header=header)
    table_lines = (
        [styled(line, "bold") for line in _folded(lines.pop(0), columns)] if header and lines else []
    )
    for job, pieces in zip(found, lines, strict=True):
        table_lines += [_coloured(line, job) for line in _fitted(pieces, columns)]
    return table_lines


def _name_width(table: Table, found: list[Doc], columns: int | None) -> int:
    """What the longest name needs, as far as a wider terminal than usual has room for it.

    In a pipe the widths are those of Flux, since scripts read them.
    """
    longest = max((len(str(job.get("name") or "")) for job in found), default=0)
    least = table.width_of("name")
    return least if columns is None else min(longest, least + max(0, columns - _USUAL_WIDTH) // 2)


def _cut(text: str, columns: int | None) -> str:
    return text if columns is None else cut_cells(text, columns, "+")


def _folded(pieces: list[str], columns: int | None) -> list[str]:
    """The row as one line, or as two: columns that do not fit move to a second, indented line."""
    if columns is None or cell_width("".join(pieces)) <= columns or len(pieces) < 3:
        return [_cut("".join(pieces), columns)]
    count = len(pieces) - 1
    while count > 1 and cell_width("".join(pieces[:count])) > columns:
        count -= 1
    if count == len(pieces) - 1:
        return [_cut("".join(pieces), columns)]  # The heading of the last column may be cut.
    below = " " * cell_width(pieces[0]) + "".join(pieces[count:])
    return ["".join(pieces[:count]), _cut(below.rstrip(), columns)]


def _fitted(pieces: list[str], columns: int | None) -> list[str]:
    """The row as lines: a long last column is wrapped in place, or moved below the others if too narrow."""
    text, head = "".join(pieces), "".join(pieces[:-1])
    if columns is None or cell_width(text) <= columns or cell_width(head) > columns or len(pieces) < 2:
        return _folded(pieces, columns)
    indent = cell_width(head) + 1
    if columns - indent >= _LAST_COLUMN_MIN:
        first, *more = wrap_cells(pieces[-1].strip(), columns - indent)
        return [f"{head} {first}", *(" " * indent + line for line in more)]
    indent = cell_width(pieces[0]) + 1
    more = wrap_cells(pieces[-1].strip(), max(20, columns - indent))
    return [head.rstrip(), *(" " * indent + line for line in more)]


def _coloured(text: str, job: Doc) -> str:
    mark = job_field(job, "status_abbrev", 0.0)
    if job["state"] == "INACTIVE" and mark == "CD":
        return styled(text, "dim")
    style = _COLOURS.get(str(mark), "magenta")
    return (
        styled(text, style)
        if style in ("red", "magenta")
        else text.replace(f" {mark} ", f" {styled(str(mark), style)} ", 1)
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
                "neither a job state nor a result", where="--filter", found=repr(word), expected=hint
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
        "since": parse_when(since, time.time(), "--since", past=True) if since else None,
        "limit": options["count"],
    }


def _format(form: str) -> str:
    if form in PRESETS:
        return PRESETS[form]
    if "{" in form:
        return form
    near = get_close_matches(form, [*PRESETS, "json"], n=1)
    hint = f"did you mean {near[0]}?" if near else "a format string, json, " + ", ".join(PRESETS)
    raise BadRequest("unknown format", where="-o", found=repr(form), expected=hint)


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


def _report_missing(client: ApiClient, ids: Iterable[str], found: list[Doc]) -> bool:
    """Prints an error for each id without a job; returns whether there was one."""
    known = {parse_jobid(job["id"]) for job in found}
    missing = [text for text in ids if parse_jobid(text) not in known]
    for text in missing:
        hint = client.did_you_mean()
        print_error(f"{text}: no such job" + (f"; {hint}" if hint else ""))
    return bool(missing)
