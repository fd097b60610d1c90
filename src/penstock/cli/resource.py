"""`penstock resource`: lists, drains and undrains nodes, with the tables of `flux resource`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

import click

from penstock.cli.client import ApiClient, Doc
from penstock.cli.formats import Cell, parse_format
from penstock.cli.group import SETTINGS, json_option, with_client
from penstock.cli.terminal import print_json, print_line, styled
from penstock.errors import BadRequest
from penstock.model.hostlist import BadHostlist, encode_hostlist, parse_hostlist

__all__ = ["resource"]

_LIST = (
    "{state:>10} ?:{properties:<10.10+} {nnodes:>6} +:{ncores:>6} ?+:{ngpus:>5} ?+:{memory:>8} "
    "?+:{reason:<6} {nodelist}"
)
# Kubernetes nodes have few properties, but long ones: their labels.
_LABELS = ("?:{properties:<10.10+}", "?+:{properties:<10}")
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
    """List, drain and undrain the nodes of the cluster."""


@resource.command("list", context_settings=SETTINGS)
@with_client
@json_option
@click.option("-n", "--no-header", is_flag=True, help="Omit the header line.")
def list_(client: ApiClient, no_header: bool, output_format: str) -> None:
    """List resources by state: free, allocated, drained, down.

    A partly used node appears under both free and allocated. For a Kubernetes cluster, external is what pods
    of other schedulers use, and the free resources of cordoned or tainted nodes are listed separately.
    """
    response = client.get("/v1/resources")
    if output_format == "json":
        print_json(response)
        return
    nodes = response["nodes"]
    up = [each for each in nodes if each["state"] in ("free", "allocated")]
    schedulable = [each for each in up if not each.get("closed")]
    rows = [
        *_rows("free", [each for each in schedulable if _can_start_jobs(each)], _free),
        *_rows("allocated", [each for each in up if each["state"] == "allocated"], _allocated),
        *_rows("external", [each for each in up if _external(each)], _external, is_optional=True),
        *(row for word in ("cordoned", "tainted") for row in _closed_rows(word, up)),
        *_rows(
            "drained", [each for each in nodes if each["state"] == "drained"], _capacity, is_optional=True
        ),
        *_rows("down", [each for each in nodes if each["state"] == "down"], _capacity),
    ]
    has_gpus = any(each["gpus"] for each in nodes)
    form = _LIST if has_gpus else _LIST_NO_GPUS
    if any(each.get("memory_bytes") for each in nodes):
        form = form.replace(*_LABELS)
    _print(form, rows, header=not no_header)


@dataclass(frozen=True, slots=True)
class _NodeResources:
    """Resources of a node or a sum over nodes. Cores are in thousandths, so that sums are exact."""

    cores_milli: int
    gpus: int
    memory_bytes: int | None  # None: the backend does not track memory

    def __bool__(self) -> bool:
        return bool(self.cores_milli or self.gpus or self.memory_bytes)


def _resources(node: Doc, part: str) -> _NodeResources:
    """`part` is "" for the capacity, "_free" for what is free, "_external" for external usage."""
    return _NodeResources(
        round(node.get(f"cores{part}", 0) * 1000),
        int(node.get(f"gpus{part}", 0)),
        node.get(f"memory{part}_bytes"),
    )


def _capacity(node: Doc) -> _NodeResources:
    return _resources(node, "")


def _free(node: Doc) -> _NodeResources:
    return _resources(node, "_free")


def _external(node: Doc) -> _NodeResources:
    return _resources(node, "_external")


def _allocated(node: Doc) -> _NodeResources:
    capacity, free, external = _capacity(node), _free(node), _external(node)
    memory = capacity.memory_bytes
    return _NodeResources(
        capacity.cores_milli - free.cores_milli - external.cores_milli,
        capacity.gpus - free.gpus - external.gpus,
        None if memory is None else memory - (free.memory_bytes or 0) - (external.memory_bytes or 0),
    )


def _can_start_jobs(node: Doc) -> bool:
    """Whether a job could start on the node. A task needs a core; a pod may request a GPU without a core."""
    return bool(node["cores_free"] or (node.get("memory_bytes") and node["gpus_free"]))


def _closed_rows(word: str, up: list[Doc]) -> list[Doc]:
    """Free resources of nodes that accept only pods with a toleration."""
    return _rows(word, [each for each in up if each.get("closed") == word], _free, is_optional=True)


def _rows(
    state: str, nodes: list[Doc], count: Callable[[Doc], _NodeResources], *, is_optional: bool = False
) -> list[Doc]:
    """One row per group of nodes with equal properties and reason. Without nodes: an empty row, or none."""
    groups: dict[tuple[str, str], list[Doc]] = {}
    for node in nodes:
        key = (",".join(node.get("properties") or ()), _list_reason(state, node))
        groups.setdefault(key, []).append(node)
    if not groups and not is_optional:
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
    # A local node is down only if its agent is, which needs no reason column.
    is_kubernetes = bool(node.get("memory_bytes")) or not node["cores"]
    return str(node.get("why") or "") if state == "down" and is_kubernetes else ""


def _memory_text(memory_bytes: int) -> str:
    """`251.5Gi`, `64Mi`, `0`."""
    for unit, size in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if memory_bytes >= size:
            return f"{round(memory_bytes / size, 1):.15g}{unit}"
    return str(memory_bytes)


@resource.command(context_settings=SETTINGS, short_help="List nodes by administrative state.")
@with_client
@json_option
@click.option("-n", "--no-header", is_flag=True, help="Omit the header line.")
@click.option("--long", "is_long", is_flag=True, help="Include the reasons.")
def status(client: ApiClient, no_header: bool, is_long: bool, output_format: str) -> None:
    """List nodes by administrative state: avail, draining, drained; * marks nodes that are down.

    Nodes of a Kubernetes cluster can also be cordoned or tainted.
    """
    response = client.get("/v1/resources")
    if output_format == "json":
        print_json(response)
        return
    groups: dict[tuple[str, bool, str], list[Doc]] = {}
    for node in response["nodes"]:
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


@resource.command(context_settings=SETTINGS, short_help="Drain nodes, or list drained nodes.")
@with_client
@json_option
@click.argument("targets", required=False)
@click.argument("reason", nargs=-1)
@click.option("-f", "--force", is_flag=True, help="Replace the reason of nodes that are already drained.")
def drain(
    client: ApiClient, targets: str | None, reason: tuple[str, ...], force: bool, output_format: str
) -> None:
    """Drain TARGETS (node names or ranks) with a REASON; without TARGETS, list drained nodes.

    Running jobs continue on a drained node; no job starts there.
    """
    if targets is None:
        response = client.get("/v1/resources")
        nodes = [node for node in response["nodes"] if node["drained"]]
        if output_format == "json":
            print_json({"nodes": nodes})
        else:
            _print_drained(nodes)
        return
    _remember_nodes(client, targets)
    body: Doc = {"targets": targets, "reason": " ".join(reason), "overwrite": force}
    response = client.post("/v1/resources/drain", body)
    _print_response(response, output_format)


@resource.command(context_settings=SETTINGS, short_help="Undrain nodes.")
@with_client
@json_option
@click.argument("targets")
def undrain(client: ApiClient, targets: str, output_format: str) -> None:
    """Undrain TARGETS (node names or ranks): jobs may start there again."""
    _remember_nodes(client, targets)
    _print_response(client.post("/v1/resources/undrain", {"targets": targets}), output_format)


def _print_response(response: Doc, output_format: str) -> None:
    if output_format == "json":
        print_json(response)


def _remember_nodes(client: ApiClient, targets: str) -> None:
    if targets[:1].isdigit():
        return
    try:
        client.remember("node", *parse_hostlist(targets))
    except BadHostlist as error:
        raise BadRequest(
            "invalid node list", where="TARGETS", found=error.found, expected=error.expected
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
        print_line(styled(lines.pop(0), "bold"))
    for line, row in zip(lines, rows, strict=True):
        style = styles.get(str(row["state"]).rstrip("*"))
        print_line(styled(line, style) if style and row.get("nnodes", 1) else line)
