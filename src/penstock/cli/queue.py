"""`penstock queue`: lists and controls queues, with the commands and messages of `flux queue`."""

from __future__ import annotations

import math

import click

from penstock.cli import exits
from penstock.cli.client import ApiClient, Doc
from penstock.cli.formats import Cell, parse_format
from penstock.cli.group import SETTINGS, json_option, with_client
from penstock.cli.terminal import print_json, print_line, printable, styled
from penstock.model.duration import format_duration
from penstock.model.text import count_of

__all__ = ["queue"]

_LIST = "+:{queue:<8} {en:>2} {st:>2} {tdefault:>8} {tlimit:>8} {pending:>8} {running:>8} ?:{policy:<10}"
_HEADINGS = {
    name: name.upper() for name in ("queue", "en", "st", "tdefault", "tlimit", "pending", "running", "policy")
}


@click.group(context_settings=SETTINGS)
def queue() -> None:
    """List queues, and enable, disable, start or stop them."""


@queue.command("list", context_settings=SETTINGS, short_help="List queues; * marks the default queue.")
@with_client
@json_option
@click.option("-n", "--no-header", is_flag=True, help="Omit the header line.")
def list_(client: ApiClient, no_header: bool, output_format: str) -> None:
    """List queues; * marks the default queue.

    EN: job submission is enabled. ST: scheduling is started.
    """
    response = client.get("/v1/queues")
    if output_format == "json":
        print_json(response)
        return
    lines = parse_format(_LIST, _HEADINGS).lines(response["queues"], _cell, header=not no_header)
    for index, pieces in enumerate(lines):
        text = "".join(pieces)
        print_line(styled(text, "bold") if index == 0 and not no_header else text)


def _cell(row: Doc, name: str) -> Cell:
    if name == "queue":
        return f"{row['name'] or '(all)'}{'*' if row['default'] else ''}"
    if name in ("en", "st"):
        return "✔" if row["enabled" if name == "en" else "started"] else "✗"
    if name in ("tdefault", "tlimit"):
        seconds = row["duration_default_s" if name == "tdefault" else "duration_max_s"]
        return format_duration(seconds if seconds else math.inf)
    found = row.get(name)
    return found if isinstance(found, (str, int)) else None


@queue.command(context_settings=SETTINGS)
@with_client
@json_option
@click.argument("names", nargs=-1)
@click.option("-v", "--verbose", is_flag=True, help="Include the number of pending and running jobs.")
def status(client: ApiClient, names: tuple[str, ...], verbose: bool, output_format: str) -> None:
    """Show whether job submission is enabled and scheduling is started."""
    found = _chosen(client, names)
    if output_format == "json":
        print_json({"queues": found})
        return
    for each in found:
        print_line(_submission(each))
        print_line(_scheduling(each))
        if verbose:
            prefix = _prefix(each)
            print_line(printable(f"{prefix}{count_of(each['pending'], 'job')} pending"))
            print_line(printable(f"{prefix}{count_of(each['running'], 'running job')}"))


def _chosen(client: ApiClient, names: tuple[str, ...]) -> list[Doc]:
    found: list[Doc] = client.get("/v1/queues")["queues"]
    client.remember("queue", *names)
    known = {each["name"] for each in found}
    for name in names:
        if name not in known:
            hint = client.did_you_mean()
            raise exits.CommandExit(exits.FAILED, f"no such queue '{name}'" + (f"; {hint}" if hint else ""))
    return [each for each in found if not names or each["name"] in names]


def _prefix(each: Doc) -> str:
    return f"{each['name']}: " if each["name"] else ""


def _submission(each: Doc) -> str:
    if each["enabled"]:
        return printable(f"{_prefix(each)}Job submission is enabled")
    reason = each["reason_disabled"]
    return printable(f"{_prefix(each)}Job submission is disabled" + (f": {reason}" if reason else ""))


def _scheduling(each: Doc) -> str:
    if each["started"]:
        return printable(f"{_prefix(each)}Scheduling is started")
    reason = each["reason_stopped"]
    return printable(f"{_prefix(each)}Scheduling is stopped" + (f": {reason}" if reason else ""))


def _verb(verb: str, about: str) -> None:
    @queue.command(verb, context_settings=SETTINGS, help=about)
    @with_client
    @json_option
    @click.argument("names", nargs=-1)
    @click.option("-a", "--all", "all_queues", is_flag=True, help="All queues.")
    @click.option(
        "-m", "--message", metavar="REASON", default="", help="Reason, shown by `penstock queue status`."
    )
    def change(
        client: ApiClient, names: tuple[str, ...], all_queues: bool, message: str, output_format: str
    ) -> None:
        found = _chosen(client, names)
        if not names and not all_queues and len(found) > 1:
            raise exits.CommandExit(exits.USAGE, "Named queues are defined. Specify queues or use --all.")
        reason = message or ("disabled by administrator" if verb == "disable" else "")
        targets = [each["name"] for each in found] if names else ["-"]
        changed: list[Doc] = []
        for name in targets:
            changed += client.post(f"/v1/queues/{name or '-'}/{verb}", {"reason": reason})["queues"]
        if output_format == "json":
            print_json({"queues": changed})
            return
        for each in changed:
            print_line(_submission(each) if verb in ("enable", "disable") else _scheduling(each))


_verb("enable", "Enable job submission.")
_verb("disable", "Disable job submission.")
_verb("start", "Start scheduling: pending jobs may start.")
_verb("stop", "Stop scheduling: no job starts; running jobs continue.")
