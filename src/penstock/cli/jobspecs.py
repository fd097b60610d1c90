"""Builds a version 1 jobspec from the options of `submit` and `run`, exactly as Flux builds it. Pure.

The resources are described in one of two ways. By task: a number of tasks, the cores and GPUs of each, and
optionally the number of nodes. By resource: a number of nodes or cores, and the tasks on each. Nodes without
a number of tasks mean one task per node and exclusive nodes.
"""

from __future__ import annotations

import fnmatch
import math
import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from penstock.cli.times import parse_span, parse_when
from penstock.errors import BadRequest
from penstock.model.duration import BadDuration, parse_duration
from penstock.model.idset import BadIdset, parse_idset

__all__ = [
    "JobRequest",
    "JobSize",
    "build_jobspec",
    "parse_dependency",
    "parse_input",
    "parse_signal",
    "parse_time_limit",
    "parse_urgency",
    "select_environment",
    "signal_number",
    "substitute",
]

_URGENCIES: Final = {"hold": 0, "default": 16, "expedite": 31}
_SIGNAL_DEFAULT_S: Final = 60.0
# days-hours[:minutes[:seconds]], or [hours:]minutes:seconds. As in Slurm, a part may exceed 59.
_SLURM_TIME: Final = re.compile(
    r"([0-9]{1,6})-([0-9]{1,6})(?::([0-9]{1,6})(?::([0-9]{1,6}))?)?|(?:([0-9]{1,6}):)?([0-9]{1,6}):([0-9]{1,6})"
)
_TIME_FORMS: Final = "minutes such as 30, MM:SS, HH:MM:SS, D-HH, D-HH:MM:SS, or 90s, 1.5h, 2d"
# A jobspec is stored, and every caller of the API can read it. `--env` submits them nevertheless.
_SECRET_VARIABLES: Final = ("PENSTOCK_DATABASE", "PENSTOCK_TOKEN")


@dataclass(frozen=True, slots=True)
class JobSize:
    """The resource options of `submit` and `run`; None: not given."""

    nodes: int | None = None
    ntasks: int | None = None
    cores_per_task: int | None = None
    gpus_per_task: int | None = None
    tasks_per_node: int | None = None
    cores: int | None = None
    gpus_per_node: int | None = None
    exclusive: bool = False
    mem: int | None = None  # MiB per node


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One job as the command line describes it. Texts may contain `{cc}`."""

    command: tuple[str, ...]
    size: JobSize = JobSize()
    time_limit: str = ""
    queue: str = ""
    name: str = ""
    dependencies: tuple[str, ...] = ()
    begin_time: str = ""
    requires: str = ""
    output: str = ""
    error: str = ""
    input: str = ""  # a file, none, or the ranks that read from the client: an idset or `all`
    label_io: bool = False
    signal: str | None = None  # None: no signal; "": default signal and time
    cwd: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def build_jobspec(request: JobRequest, now: float) -> dict[str, Any]:
    if not request.command:
        _refuse("no command", "", expected="COMMAND [ARGUMENTS...], or --jobspec FILE")
    resources, count, per_resource = _resources(request.size)
    system: dict[str, Any] = {
        "duration": parse_time_limit(request.time_limit) if request.time_limit else 0.0,
        "environment": dict(request.environment),
        "cwd": request.cwd,
    }
    if request.name:
        system["job"] = {"name": request.name}
    if request.queue:
        system["queue"] = request.queue
    dependencies = [parse_dependency(text) for text in request.dependencies]
    if request.begin_time:
        begin_at = parse_when(request.begin_time, now, "--begin-time")
        dependencies.append({"scheme": "begin-time", "value": str(begin_at)})
    if dependencies:
        system["dependencies"] = dependencies
    if request.requires:
        from penstock.cli.requires import parse_requires

        system["constraints"] = parse_requires(request.requires)
    options = _shell_options(request)
    if per_resource:
        options["per-resource"] = per_resource
    if options:
        system["shell"] = {"options": options}
    return {
        "resources": resources,
        "tasks": [{"command": list(request.command), "slot": "task", "count": count}],
        "attributes": {"system": system},
        "version": 1,
    }


def _resources(size: JobSize) -> tuple[list[dict[str, Any]], dict[str, int], dict[str, Any] | None]:
    by_resource = (size.tasks_per_node, size.cores, size.gpus_per_node)
    if any(value is not None for value in by_resource):
        if any(value is not None for value in (size.ntasks, size.cores_per_task, size.gpus_per_task)):
            _refuse(
                "per-task and per-resource options do not mix",
                "options",
                expected="-n -c -g, or --cores --tasks-per-node --gpus-per-node",
            )
        return _by_resource(size)
    return _by_task(size)


def _by_task(size: JobSize) -> tuple[list[dict[str, Any]], dict[str, int], None]:
    exclusive = size.exclusive
    ntasks = size.ntasks
    if ntasks is None:
        ntasks = size.nodes or 1
        exclusive = exclusive or size.nodes is not None
    children = _children(size.cores_per_task or 1, size.gpus_per_task)
    if size.nodes is None:
        _check_one_slot(size, ntasks)
        children += _memory(size, 1)
        if exclusive:
            _refuse("it needs a number of nodes", "--exclusive", expected="-N NODES as well")
        return [_slot(ntasks, children)], {"per_slot": 1}, None
    if size.nodes > ntasks:
        _refuse(
            "node count must not be greater than task count",
            "--nodes",
            found=f"{size.nodes} nodes, {ntasks} tasks",
        )
    slots = math.ceil(ntasks / size.nodes)
    children += _memory(size, slots)
    count = {"per_slot": 1} if ntasks % size.nodes == 0 else {"total": ntasks}
    return [_node(size.nodes, exclusive, _slot(slots, children))], count, None


def _by_resource(size: JobSize) -> tuple[list[dict[str, Any]], dict[str, int], dict[str, Any] | None]:
    count = size.tasks_per_node
    per_resource = None if count is None else {"type": "node", "count": count}
    if size.nodes is None:
        if size.tasks_per_node is not None or size.gpus_per_node is not None or size.exclusive:
            _refuse("a node count is required", "--nodes", found="none", expected="-N NODES")
        assert size.cores is not None
        _check_one_slot(size, size.cores)
        return [_slot(size.cores, [*_children(1, None), *_memory(size, 1)])], {"per_slot": 1}, None
    exclusive, cores_each = size.exclusive, 1
    if size.cores is None:
        exclusive = True
    elif size.cores % size.nodes:
        _refuse(
            "the number of cores is not a multiple of the number of nodes",
            "--cores",
            found=f"{size.cores} cores, {size.nodes} nodes",
        )
    else:
        cores_each = size.cores // size.nodes
    slot = _slot(1, [*_children(cores_each, size.gpus_per_node), *_memory(size, 1)])
    return [_node(size.nodes, exclusive, slot)], {"per_slot": 1}, per_resource


def _children(cores: int, gpus: int | None) -> list[dict[str, Any]]:
    core = {"type": "core", "count": cores}
    return [core, {"type": "gpu", "count": gpus}] if gpus else [core]


def _memory(size: JobSize, slots: int) -> list[dict[str, Any]]:
    """The memory of one of so many slots on a node, in MiB."""
    if size.mem is None:
        return []
    if not size.mem:
        _refuse("memory must be positive", "--mem", "0", "a size; -N without -n has all memory of its nodes")
    return [{"type": "memory", "count": math.ceil(size.mem / slots)}]


def _check_one_slot(size: JobSize, slots: int) -> None:
    """Without a number of nodes, how many tasks share the memory of a node is open."""
    if size.mem is not None and slots > 1:
        _refuse("memory is per node", "--mem", f"{slots} tasks on any number of nodes", "-N NODES as well")


def _slot(count: int, children: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "slot", "count": count, "with": children, "label": "task"}


def _node(count: int, exclusive: bool, slot: dict[str, Any]) -> dict[str, Any]:
    node: dict[str, Any] = {"type": "node", "count": count}
    return {**node, "exclusive": True, "with": [slot]} if exclusive else {**node, "with": [slot]}


def _shell_options(request: JobRequest) -> dict[str, Any]:
    options: dict[str, Any] = {}
    output: dict[str, Any] = {}
    for stream, path in (("stdout", request.output), ("stderr", request.error)):
        if path:
            output[stream] = {"type": "file", "path": path}
            if request.label_io:
                output[stream]["label"] = True
    if output:
        options["output"] = output
    if stdin := parse_input(request.input):
        options["input"] = {"stdin": stdin}
    if request.signal is not None:
        options["signal"] = parse_signal(request.signal)
    return options


def parse_input(text: str) -> dict[str, str]:
    """Where the tasks read their standard input from. As in Flux, what looks like ranks is no file name."""
    if text in ("", "none"):
        return {}
    if text == "all":
        return {"type": "service", "ranks": text}
    try:
        parse_idset(text)
    except BadIdset:
        return {"type": "file", "path": text}
    return {"type": "service", "ranks": text}


def parse_time_limit(text: str) -> float:
    """A time limit in seconds, in the forms of Slurm and Flux. A number without a unit is in minutes."""
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?", text):
        return float(text) * 60
    if match := _SLURM_TIME.fullmatch(text):
        days, day_hours, day_minutes, day_seconds, hours, minutes, seconds = (
            int(part or 0) for part in match.groups()
        )
        if match[1] is not None:
            return float(86_400 * days + 3600 * day_hours + 60 * day_minutes + day_seconds)
        return float(3600 * hours + 60 * minutes + seconds)
    if text.lower() in ("unlimited", "infinite", "inf", "infinity"):
        raise BadDuration(
            "a time limit must be finite",
            where="--time-limit",
            found=repr(text),
            expected="a time such as 2h, or no -t for the limit of the queue",
        )
    try:
        return parse_duration(text)
    except BadDuration as error:
        raise BadDuration(
            "invalid time limit", where="--time-limit", found=error.found, expected=_TIME_FORMS
        ) from None


def parse_urgency(text: str) -> int:
    if text in _URGENCIES:
        return _URGENCIES[text]
    if not (text.isdecimal() and text.isascii() and int(text) <= 31):
        _refuse("invalid urgency", "--urgency", repr(text), "0 to 31, hold, default or expedite")
    return int(text)


def parse_dependency(text: str) -> dict[str, Any]:
    body, _, query = text.partition("?")
    scheme, colon, value = body.partition(":")
    if not scheme or (not colon and scheme != "singleton"):
        _refuse("invalid dependency", "--dependency", repr(text), "SCHEME:VALUE[?KEY=VALUE[&KEY=VALUE]]")
    found: dict[str, Any] = {"scheme": scheme, "value": value}
    for pair in query.split("&") if query else ():
        key, equals, setting = pair.partition("=")
        if not key or not equals or key in found:
            _refuse("invalid dependency option", "--dependency", repr(pair), "KEY=VALUE, each key once")
        found[key] = setting
    return found


def parse_signal(text: str) -> dict[str, Any]:
    """`[SIG][@TIME]`: by default USR1, 60 seconds before the time limit."""
    name, at, time_left = text.partition("@")
    seconds = parse_span(time_left, "--signal") if at and time_left else _SIGNAL_DEFAULT_S
    return {"signum": signal_number(name, "--signal") if name else int(signal.SIGUSR1), "timeleft": seconds}


def signal_number(name: str, option: str) -> int:
    """The number of a signal that the user named with `option`: `USR1`, `SIGTERM` or `15`."""
    if name.isdecimal() and name.isascii() and 1 <= int(name) <= 64:
        return int(name)
    word = name.upper()
    found = getattr(signal, word if word.startswith("SIG") else f"SIG{word}", None)
    if not isinstance(found, signal.Signals):
        _refuse("unknown signal", option, repr(name), "a number or a name such as USR1 or SIGTERM")
    return int(found)


def select_environment(
    own: Mapping[str, str], rules: Iterable[str], removed: Iterable[str]
) -> tuple[dict[str, str], list[str]]:
    """The job's environment, and the names of variables that JSON cannot carry because they are not UTF-8."""
    chosen = {name: value for name, value in own.items() if name not in _SECRET_VARIABLES}
    for pattern in removed:
        chosen = {name: value for name, value in chosen.items() if not fnmatch.fnmatchcase(name, pattern)}
    for rule in rules:
        name, equals, value = rule.partition("=")
        if not name:
            _refuse("invalid variable", "--env", repr(rule), "NAME or NAME=VALUE")
        if equals:
            chosen[name] = value
        elif name in own:
            chosen[name] = own[name]
    unsendable = [name for name, value in chosen.items() if not _is_text(name + value)]
    for name in unsendable:
        del chosen[name]
    return chosen, unsendable


def substitute(request: JobRequest, cc: str) -> JobRequest:
    """The job of one `--cc` id: replaces `{cc}` in the command and in all other texts."""
    from dataclasses import replace

    def expand(text: str) -> str:
        return text.replace("{cc}", cc)

    return replace(
        request,
        command=tuple(expand(word) for word in request.command),
        name=expand(request.name),
        output=expand(request.output),
        error=expand(request.error),
        input=expand(request.input),
        cwd=expand(request.cwd),
        dependencies=tuple(expand(text) for text in request.dependencies),
        requires=expand(request.requires),
    )


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse(summary: str, where: str, found: str = "", expected: str = "") -> NoReturn:
    raise BadRequest(summary, where=where, found=found, expected=expected)
