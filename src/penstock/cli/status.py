"""`penstock status`: is the instance well? One screen."""

from __future__ import annotations

import time

import click

from penstock.cli import exits
from penstock.cli.client import Client, Doc
from penstock.cli.formats import Cell, parse_format
from penstock.cli.group import SETTINGS, json_option, with_client
from penstock.cli.screen import paint, say, say_facts, say_json
from penstock.cli.times import span

__all__ = ["status"]

_AGENTS = "+:{node:<8} {rank:>4} {state:>6} {pid:>8} {tasks:>6}"
_HEADINGS = {name: name.upper() for name in ("node", "rank", "state", "pid", "tasks")}


@click.command(context_settings=SETTINGS)
@with_client
@json_option
def status(client: Client, output_format: str) -> int:
    """Show the instance, its database, its jobs and nodes, and its agents.

    Exit 0 if all is up, 1 if something is away.
    """
    found = client.get("/v1/status")
    if output_format == "json":
        say_json(found)
        return exits.OK
    for label, text, is_well in _facts(found, time.time()):
        say_facts([(label, text)], *(() if is_well else ("red",)), label=10)
    if found["agents"]:
        say()
        for index, pieces in enumerate(parse_format(_AGENTS, _HEADINGS).lines(found["agents"], _cell)):
            line = "".join(pieces)
            is_up = index == 0 or found["agents"][index - 1]["state"] == "up"
            say(paint(line, "bold") if index == 0 else line if is_up else paint(line, "red"))
    is_well = found["instance"]["ready"] and found["database"]["state"] == "up"
    return exits.OK if is_well and all(agent["state"] == "up" for agent in found["agents"]) else exits.FAILED


def _facts(found: Doc, now: float) -> list[tuple[str, str, bool]]:
    instance, database, settings = found["instance"], found["database"], found["settings"]
    nodes = found["nodes"]
    counts = [f"{found['jobs'][name]} {name}" for name in ("running", "pending", "inactive")
              if found["jobs"].get(name) is not None]  # fmt: skip
    word = "ready" if instance["ready"] else "not ready"
    if not instance["ready"] and instance.get("why_not_ready"):
        word += f" ({instance['why_not_ready']})"
    up = span(max(0.0, now - instance["started_at"]))
    kind = "embedded" if database["embedded"] else "external"
    server = f" {database['server_version']}" if database.get("server_version") else ""
    pid = f", pid {database['pid']}" if database.get("pid") else ""
    depth = "all" if settings["queue_depth"] is None else settings["queue_depth"]
    up_down = "not known yet" if nodes["up"] is None else f"{nodes['up']} up, {nodes['down']} down"
    oversubscribed = ", oversubscribed" if settings["oversubscribed"] else ""
    return [
        ("instance", f"{word}, pid {instance['pid']}, up {up}, version {instance['version']}",
         instance["ready"]),
        ("state", instance["state"], True),
        ("database", f"{database['state']}, {kind}, PostgreSQL{server}{pid}",
         database["state"] == "up"),
        ("jobs", ", ".join(counts) or "not known yet", True),
        ("nodes", up_down, not nodes["down"]),
        ("policy", f"{settings['policy']}, match {settings['match_policy']}, "
         f"depth {depth}, forecast {settings['forecast_depth']}{oversubscribed}", True),
    ]  # fmt: skip


def _cell(row: Doc, name: str) -> Cell:
    found = row.get(name)
    return found if isinstance(found, (str, int)) else None
