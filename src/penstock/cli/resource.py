"""`penstock resource`: the nodes, in the tables of `flux resource`, and taking them out and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

import click

from penstock.cli.client import ApiClient, Doc
from penstock.cli.formats import Cell, parse_format
from penstock.cli.group import SETTINGS, json_option, with_client
from penstock.cli.terminal import paint, say, say_json
from penstock.errors import BadRequest
from penstock.model.hostlist import BadHostlist, encode_hostlist, parse_hostlist

__all__ = ["resource"]

_LIST = (
    "{state:>10} ?:{properties:<10.10+} {nnodes:>6} +:{ncores:>6} ?+:{ngpus:>5} ?+:{memory:>8} "
    "?+:{reason:<6} {nodelist}"
)
_LABELS = ("?:{properties:<10.10+}", "?+:{properties:<10}")  # few, but long where they are labels
_LIST_NO_GPUS = _LIST.replace("?+:{ngpus:>5} ", "")
_STATUS = "{state:>12} {up:>2} {nnodes:>6} {nodelist}"
_STATUS_LONG = "{state:>12} {up:>2} {nnodes:>6} +:{reason:<30} {nodelist}"
_DRAINED = "{time:<12} {state:<8} {reason:<30} {nodelist}"
_HEADINGS = {
    name: name.upper()
    for name in (
        "state",
        "properties",
        "nnodes",
        "ncores",
        "ngpus",
        "memory",
        "nodelist",
        "up",
        "reason",
        "time",
    )
}


@click.group(context_settings=SETTINGS)
def resource() -> None:
    """The nodes of the cluster."""


@resource.command("list", context_settings=SETTINGS)
@with_client
@json_option
@click.option("-n", "--no-header", is_flag=True, help="Without the line of headings.")
def list_(client: ApiClient, no_header: bool, output_format: str) -> None:
    """List nodes as the scheduler sees them: free, allocated, down.

    Cores are counted one by one, so a node that is used in part stands in two rows. Of the nodes of a
    Kubernetes cluster, held is what others use, and those that are cordoned or tainted stand apart.
    """
    answer = client.get("/v1/resources")
    if output_format == "json":
        say_json(answer)
        return
    nodes = answer["nodes"]
    up = [each for each in nodes if each["state"] in ("free", "allocated")]
    is_open = [each for each in up if not each.get("closed")]
    rows = [
        *_rows("free", [each for each in is_open if _has_room(each)], _free),
        *_rows("allocated", [each for each in up if each["state"] == "allocated"], _used),
        *_rows("held", [each for each in up if _held(each)], _held, may_miss=True),
        *(row for word in ("cordoned", "tainted") for row in _closed_rows(word, up)),
        *_rows("drained", [each for each in nodes if each["state"] == "drained"], _all, may_miss=True),
        *_rows("down", [each for each in nodes if each["state"] == "down"], _all),
    ]
    has_gpus = any(each["gpus"] for each in nodes)
    form = _LIST if has_gpus else _LIST_NO_GPUS
    if any(each.get("memory_bytes") for each in nodes):
        form = form.replace(*_LABELS)
    _print(form, rows, header=not no_header)


@dataclass(frozen=True, slots=True)
class _Amounts:
    """Sums are exact: cores are added up in thousandths."""

    cores_milli: int
    gpus: int
    memory_bytes: int | None  # None: memory is not counted here

    def __bool__(self) -> bool:
        return bool(self.cores_milli or self.gpus or self.memory_bytes)


def _amounts(node: Doc, part: str) -> _Amounts:
    """`part` is "" for all that a node has, "_free" for what is free, "_held" for what others use."""
    return _Amounts(
        round(node.get(f"cores{part}", 0) * 1000),
        int(node.get(f"gpus{part}", 0)),
        node.get(f"memory{part}_bytes"),
    )


def _all(node: Doc) -> _Amounts:
    return _amounts(node, "")


def _free(node: Doc) -> _Amounts:
    return _amounts(node, "_free")


def _held(node: Doc) -> _Amounts:
    return _amounts(node, "_held")


def _used(node: Doc) -> _Amounts:
    whole, free, held = _all(node), _free(node), _held(node)
    memory = whole.memory_bytes
    return _Amounts(
        whole.cores_milli - free.cores_milli - held.cores_milli,
        whole.gpus - free.gpus - held.gpus,
        None if memory is None else memory - (free.memory_bytes or 0) - (held.memory_bytes or 0),
    )


def _has_room(node: Doc) -> bool:
    """Something could start there. A task takes a core at least; a pod may ask for a GPU alone."""
    return bool(node["cores_free"] or (node.get("memory_bytes") and node["gpus_free"]))


def _closed_rows(word: str, up: list[Doc]) -> list[Doc]:
    """What is free on nodes that take only pods which tolerate it."""
    return _rows(word, [each for each in up if each.get("closed") == word], _free, may_miss=True)


def _rows(
    state: str, nodes: list[Doc], count: Callable[[Doc], _Amounts], *, may_miss: bool = False
) -> list[Doc]:
    """One row for nodes with equal properties and reasons; if there are none, an empty row or none."""
    groups: dict[tuple[str, str], list[Doc]] = {}
    for node in nodes:
        key = (",".join(node.get("properties") or ()), _list_reason(state, node))
        groups.setdefault(key, []).append(node)
    if not groups and not may_miss:
        groups[("", "")] = []
    rows: list[Doc] = []
    for (properties, reason), members in groups.items():
        counts = [count(node) for node in members]
        milli = sum(one.cores_milli for one in counts)
        memories = [one.memory_bytes for one in counts if one.memory_bytes is not None]
        rows.append(
            {
                "state": state,
                "properties": properties,
                "nnodes": len(members),
                "ncores": milli / 1000 if milli % 1000 else milli // 1000,
                "ngpus": sum(one.gpus for one in counts),
                "memory": _memory_text(sum(memories)) if memories else "",
                "reason": reason,
                "nodelist": _names(members),
            }
        )
    return rows


def _list_reason(state: str, node: Doc) -> str:
    if state in ("cordoned", "tainted"):
        return str(node["closed_why"])
    if state == "drained":
        return str(node.get("drain_reason") or "")
    # A node of processes is down when its agent is: that needs no column.
    is_of_pods = bool(node.get("memory_bytes")) or not node["cores"]
    return str(node.get("why") or "") if state == "down" and is_of_pods else ""


def _memory_text(memory_bytes: int) -> str:
    """`251.5Gi`, `64Mi`, `0`."""
    for unit, size in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if memory_bytes >= size:
            return f"{round(memory_bytes / size, 1):.15g}{unit}"
    return str(memory_bytes)


@resource.command(context_settings=SETTINGS)
@with_client
@json_option
@click.option("-n", "--no-header", is_flag=True, help="Without the line of headings.")
@click.option("--long", "is_long", is_flag=True, help="With the reasons.")
def status(client: ApiClient, no_header: bool, is_long: bool, output_format: str) -> None:
    """List nodes as the administrator sees them: avail, draining, drained; * means away.

    Of the nodes of a Kubernetes cluster, some are cordoned or tainted.
    """
    answer = client.get("/v1/resources")
    if output_format == "json":
        say_json(answer)
        return
    groups: dict[tuple[str, bool, str], list[Doc]] = {}
    for node in answer["nodes"]:
        reason = node.get("drain_reason") or node.get("closed_why") or node.get("why") or ""
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
    client: ApiClient, targets: str | None, reason: tuple[str, ...], force: bool, output_format: str
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
def undrain(client: ApiClient, targets: str, output_format: str) -> None:
    """Take TARGETS (names or ranks) back in."""
    _meant(client, targets)
    _told(client.post("/v1/resources/undrain", {"targets": targets}), output_format)


def _told(answer: Doc, output_format: str) -> None:
    if output_format == "json":
        say_json(answer)


def _meant(client: ApiClient, targets: str) -> None:
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
        return str(node.get("closed") or "avail")
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
    styles.update(dict.fromkeys(("cordoned", "tainted"), "yellow"))
    lines = [
        "".join(pieces).rstrip() for pieces in parse_format(form, _HEADINGS).lines(rows, value, header=header)
    ]
    if header and lines:
        say(paint(lines.pop(0), "bold"))
    for line, row in zip(lines, rows, strict=True):
        style = styles.get(str(row["state"]).rstrip("*"))
        say(paint(line, style) if style and row.get("nnodes", 1) else line)
