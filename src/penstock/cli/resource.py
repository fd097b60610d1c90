"""`penstock resource`: the nodes, in the tables of `flux resource`, and taking them out and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

import click

from penstock.cli.client import Client, Doc
from penstock.cli.formats import Cell, parse_format
from penstock.cli.group import SETTINGS, json_option, with_client
from penstock.cli.screen import paint, say, say_json
from penstock.errors import BadRequest
from penstock.model.hostlist import BadHostlist, encode_hostlist, parse_hostlist

__all__ = ["resource"]

_LIST = "{state:>10} ?:{properties:<10.10+} {nnodes:>6} +:{ncores:>6} ?+:{ngpus:>5} {nodelist}"
_LIST_NO_GPUS = _LIST.replace("?+:{ngpus:>5} ", "")
_STATUS = "{state:>12} {up:>2} {nnodes:>6} {nodelist}"
_STATUS_LONG = "{state:>12} {up:>2} {nnodes:>6} +:{reason:<30} {nodelist}"
_DRAINED = "{time:<12} {state:<8} {reason:<30} {nodelist}"
_HEADINGS = {
    name: name.upper()
    for name in ("state", "properties", "nnodes", "ncores", "ngpus", "nodelist", "up", "reason", "time")
}


@click.group(context_settings=SETTINGS)
def resource() -> None:
    """The nodes of the cluster."""


@resource.command("list", context_settings=SETTINGS)
@with_client
@json_option
@click.option("-n", "--no-header", is_flag=True, help="Without the line of headings.")
def list_(client: Client, no_header: bool, output_format: str) -> None:
    """List nodes as the scheduler sees them: free, allocated, down.

    Cores are counted one by one, so a node that is used in part stands in two rows.
    """
    answer = client.get("/v1/resources")
    if output_format == "json":
        say_json(answer)
        return
    up = [each for each in answer["nodes"] if each["state"] != "down"]
    down = [each for each in answer["nodes"] if each["state"] == "down"]
    rows = [
        *_rows("free", [each for each in up if each["cores_free"]], _free),
        *_rows("allocated", [each for each in up if each["state"] == "allocated"], _used),
        *_rows("down", down, _all),
    ]
    has_gpus = any(each["gpus"] for each in answer["nodes"])
    _print(_LIST if has_gpus else _LIST_NO_GPUS, rows, header=not no_header)


def _free(node: Doc) -> tuple[int, int]:
    return int(node["cores_free"]), int(node["gpus_free"])


def _used(node: Doc) -> tuple[int, int]:
    return int(node["cores"] - node["cores_free"]), int(node["gpus"] - node["gpus_free"])


def _all(node: Doc) -> tuple[int, int]:
    return int(node["cores"]), int(node["gpus"])


def _rows(state: str, nodes: list[Doc], count: Callable[[Doc], tuple[int, int]]) -> list[Doc]:
    """One row for nodes with equal properties; an empty row if there are none."""
    groups: dict[str, list[Doc]] = {}
    for node in nodes:
        groups.setdefault(",".join(node.get("properties") or ()), []).append(node)
    rows = []
    empty: dict[str, list[Doc]] = {"": []}
    for properties, members in (groups or empty).items():
        counts = [count(node) for node in members]
        rows.append(
            {
                "state": state,
                "properties": properties,
                "nnodes": len(members),
                "ncores": sum(cores for cores, _ in counts),
                "ngpus": sum(gpus for _, gpus in counts),
                "nodelist": _names(members),
            }
        )
    return rows


@resource.command(context_settings=SETTINGS)
@with_client
@json_option
@click.option("-n", "--no-header", is_flag=True, help="Without the line of headings.")
@click.option("--long", "is_long", is_flag=True, help="With the reasons.")
def status(client: Client, no_header: bool, is_long: bool, output_format: str) -> None:
    """List nodes as the administrator sees them: avail, draining, drained; * means away."""
    answer = client.get("/v1/resources")
    if output_format == "json":
        say_json(answer)
        return
    groups: dict[tuple[str, bool, str], list[Doc]] = {}
    for node in answer["nodes"]:
        reason = node.get("drain_reason") or node.get("why") or ""
        key = (_drain_state(node), bool(node["up"]), reason if is_long else "")
        groups.setdefault(key, []).append(node)
    rows: list[Doc] = [
        {
            "state": state if up else f"{state}*",
            "up": "✔" if up else "✗",
            "nnodes": len(nodes),
            "reason": reason,
            "nodelist": _names(nodes),
        }
        for (state, up, reason), nodes in sorted(
            groups.items(), key=lambda item: (item[0][0], not item[0][1])
        )
    ]
    _print(_STATUS_LONG if is_long else _STATUS, rows, header=not no_header)


@resource.command(context_settings=SETTINGS)
@with_client
@json_option
@click.argument("targets", required=False)
@click.argument("reason", nargs=-1)
@click.option("-f", "--force", is_flag=True, help="Replace the reason of nodes that are drained already.")
def drain(
    client: Client, targets: str | None, reason: tuple[str, ...], force: bool, output_format: str
) -> None:
    """Take TARGETS (names or ranks) out, with a REASON; without TARGETS list what is out.

    Jobs that run there go on; no other job starts.
    """
    if targets is None:
        answer = client.get("/v1/resources")
        nodes = [node for node in answer["nodes"] if node["drained"]]
        if output_format == "json":
            say_json({"nodes": nodes})
        else:
            _print_drained(nodes)
        return
    _meant(client, targets)
    body = {"targets": targets, "reason": " ".join(reason), "overwrite": force}
    _told(client.post("/v1/resources/drain", body), output_format)


@resource.command(context_settings=SETTINGS)
@with_client
@json_option
@click.argument("targets")
def undrain(client: Client, targets: str, output_format: str) -> None:
    """Take TARGETS (names or ranks) back in."""
    _meant(client, targets)
    _told(client.post("/v1/resources/undrain", {"targets": targets}), output_format)


def _told(answer: Doc, output_format: str) -> None:
    if output_format == "json":
        say_json(answer)


def _meant(client: Client, targets: str) -> None:
    if targets[:1].isdigit():
        return
    try:
        client.meant("node", *parse_hostlist(targets))
    except BadHostlist as error:
        raise BadRequest(
            "not a list of nodes", where="TARGETS", found=error.found, expected=error.expected
        ) from error


def _drain_state(node: Doc) -> str:
    if not node["drained"]:
        return "avail"
    return "draining" if node.get("jobs") else "drained"


def _print_drained(nodes: list[Doc]) -> None:
    groups: dict[tuple[float, str, str], list[Doc]] = {}
    for node in nodes:
        key = (float(node.get("drained_at") or 0.0), _drain_state(node), node.get("drain_reason") or "")
        groups.setdefault(key, []).append(node)
    rows: list[Doc] = [
        {
            "time": datetime.fromtimestamp(at).strftime("%b%d %H:%M") if at else "",
            "state": state,
            "reason": reason,
            "nodelist": _names(members),
        }
        for (at, state, reason), members in sorted(groups.items(), reverse=True)
    ]
    _print(_DRAINED, rows)


def _names(nodes: Iterable[Doc]) -> str:
    return encode_hostlist(node["name"] for node in sorted(nodes, key=lambda node: int(node["rank"])))


def _print(form: str, rows: list[Doc], *, header: bool = True) -> None:
    def value(row: Doc, name: str) -> Cell:
        found = row[name]
        return found if isinstance(found, (str, int, float)) else None

    styles = {"down": "red", "allocated": "green", "drained": "red", "draining": "yellow"}
    lines = ["".join(pieces) for pieces in parse_format(form, _HEADINGS).lines(rows, value, header=header)]
    if header and lines:
        say(paint(lines.pop(0), "bold"))
    for line, row in zip(lines, rows, strict=True):
        style = styles.get(str(row["state"]).rstrip("*"))
        say(paint(line, style) if style and row.get("nnodes", 1) else line)
