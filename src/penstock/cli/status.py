"""`penstock status`: the health of the instance on one screen."""

from __future__ import annotations

import time

import click

from penstock.cli import exits
from penstock.cli.client import KUBERNETES, ApiClient, Doc
from penstock.cli.formats import Cell, parse_format
from penstock.cli.group import SETTINGS, json_option, with_client
from penstock.cli.terminal import print_fields, print_json, print_line, styled
from penstock.cli.times import span

__all__ = ["status"]

_AGENTS = "+:{node:<8} {rank:>4} {state:>6} {pid:>8} {tasks:>6}"
_HEADINGS = {name: name.upper() for name in ("node", "rank", "state", "pid", "tasks")}


@click.command(context_settings=SETTINGS)
@with_client
@json_option
def status(client: ApiClient, output_format: str) -> int:
    """Show the instance, its database, its jobs and nodes, and its agents or its Kubernetes cluster.

    Exit 0 if everything is up, or if the instance is a standby and a leader exists; 1 if something is down.
    """
    found = client.get("/v1/status")
    if output_format == "json":
        print_json(found)
        return exits.OK
    for label, text, is_ok in _status_fields(found, time.time()):
        print_fields([(label, text)], *(() if is_ok else ("red",)), label=10)
    if found["agents"]:
        print_line()
        for index, pieces in enumerate(parse_format(_AGENTS, _HEADINGS).lines(found["agents"], _cell)):
            line = "".join(pieces)
            is_up = index == 0 or found["agents"][index - 1]["state"] == "up"
            print_line(styled(line, "bold") if index == 0 else line if is_up else styled(line, "red"))
    is_serving = found["instance"]["ready"] or (_is_standby(found) and found["settings"]["leader"])
    is_up = is_serving and found["database"]["state"] == "up"
    return exits.OK if is_up and all(agent["state"] == "up" for agent in found["agents"]) else exits.FAILED


def _status_fields(found: Doc, now: float) -> list[tuple[str, str, bool]]:
    instance, database, settings = found["instance"], found["database"], found["settings"]
    nodes = found["nodes"]
    counts = [f"{found['jobs'][name]} {name}" for name in ("running", "pending", "inactive")
              if found["jobs"].get(name) is not None]  # fmt: skip
    word = "ready" if instance["ready"] else "standby" if _is_standby(found) else "not ready"
    if word == "not ready" and instance.get("why_not_ready"):
        word += f" ({instance['why_not_ready']})"
    up = span(max(0.0, now - instance["started_at"]))
    kind = "embedded" if database["embedded"] else f"external, {database['address']}"
    away = f" ({database['why']})" if database["why"] else ""
    server = f", PostgreSQL {database['server_version']}" if database.get("server_version") else ""
    pid = f", pid {database['pid']}" if database.get("pid") else ""
    depth = "unlimited" if settings["queue_depth"] is None else settings["queue_depth"]
    up_down = "unknown" if nodes["up"] is None else f"{nodes['up']} up, {nodes['down']} down"
    oversubscribed = ", oversubscribed" if settings.get("oversubscribed") else ""
    return [
        ("instance", f"{word}, pid {instance['pid']}, up {up}, version {instance['version']}",
         word != "not ready"),
        *(_cluster_fields(found) if instance.get("backend") == KUBERNETES else ()),
        ("state", instance["state"], True),
        ("database", f"{database['state']}{away}, {kind}{server}{pid}",
         database["state"] == "up"),
        ("jobs", ", ".join(counts) or "unknown", True),
        ("nodes", up_down + oversubscribed, not nodes["down"]),
        ("policy", f"{settings['policy']}, match policy {settings['match_policy']}, "
         f"queue depth {depth}, {settings['forecast_depth']} forecasts", True),
    ]  # fmt: skip


def _is_standby(found: Doc) -> bool:
    """Whether another instance is the leader, or none is yet."""
    instance = found["instance"]
    is_kubernetes = instance.get("backend") == KUBERNETES
    return is_kubernetes and not instance["ready"] and not found["settings"]["is_leader"]


def _cluster_fields(found: Doc) -> list[tuple[str, str, bool]]:
    settings = found["settings"]
    leader = settings["leader"] or "none known"
    if settings["is_leader"]:
        leader += " (this instance)"
    elif _is_standby(found):
        leader += "; this instance is a standby and schedules nothing"
    problem = [("problem", settings["problem"], False)] if settings.get("problem") else []
    return [
        ("backend", f"{KUBERNETES}, {settings['server']}", True),
        ("leader", leader, bool(settings["leader"])),
        *problem,
        ("schedulers", ", ".join(settings["schedulers"]), True),
    ]


def _cell(row: Doc, name: str) -> Cell:
    found = row.get(name)
    return found if isinstance(found, (str, int)) else None
