"""What the scheduler needs to know of a job, read from a jobspec or built from a workload and its members.

A `SchedulingSpec` has a request for the engine, the number of members, dependencies, and the payload that a
backend needs to start members. It is read again from the recorded jobspec after a restart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Final

from penstock.engine.request import SLOT, Group, NodeOrder, Placement, Preference, Request
from penstock.errors import BadRequest
from penstock.model.constraint import And, Constraint
from penstock.model.duration import format_duration
from penstock.model.exclusion_key import ExclusionKey
from penstock.model.idset import BadIdset, parse_idset
from penstock.model.jobspec import Count, Jobspec, Resource, parse_jobspec
from penstock.model.memory_size import MEMORY, unit_bytes
from penstock.model.text import escape_controls
from penstock.protocol.commands import Submission
from penstock.protocol.facts import Requeue, WorkloadSet
from penstock.sched.dependencies import Dependency, parse_dependencies
from penstock.sched.settings import QueueSettings, Settings

__all__ = [
    "ALL_RANKS",
    "MemberRequest",
    "SchedulingSpec",
    "counts_of",
    "group_of",
    "member_request",
    "order_of",
    "payload_of",
    "placement_of",
    "spec_of_submission",
    "spec_of_workload",
    "tasks_on_slots",
    "with_queue_constraint",
]

ALL_RANKS: Final = "all"

_NAME_MAX: Final = 256
_MEMBERS_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class MemberRequest:
    """The request of one member."""

    requests: tuple[tuple[str, int], ...]
    constraint: Constraint | None = None
    brings: tuple[ExclusionKey, ...] = ()
    forbids: tuple[ExclusionKey, ...] = ()
    prefers: tuple[tuple[Constraint, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulingSpec:
    name: str
    queue: str
    request: Request
    size: int  # members; 0: as many as slots
    per_slot: int = 1  # members per slot; 0: `size` members are distributed over the slots
    limit_s: int | None = None
    is_limit_enforced: bool = True  # False: the limit is only planned with
    depends: tuple[Dependency, ...] = ()
    begin_at: float | None = None
    requeue: Requeue = Requeue.NEVER
    nodes_requested: int | None = None  # for display


def spec_of_submission(
    submission: Submission, settings: Settings, *, is_recorded: bool = False
) -> SchedulingSpec:
    """Reads a submission. An invalid one raises `BadRequest` with the location.

    One that was accepted before (`is_recorded`) stays valid if the queue has a shorter limit by now, or if it
    is gone: such a job is held, see `Settings.refusal`.
    """
    jobspec = parse_jobspec(submission.jobspec)
    if len(jobspec.tasks) != 1:
        raise BadRequest(
            "a job has one task", where="tasks", found=str(len(jobspec.tasks)), expected="exactly one"
        )
    if not jobspec.resources:
        raise BadRequest(
            "no resources are requested", where="resources", found="[]", expected="at least one resource"
        )
    task = jobspec.tasks[0]
    labels = _labels(jobspec.resources)
    if task.slot not in labels:
        raise BadRequest(
            "no such slot",
            where="tasks[0].slot",
            found=repr(task.slot),
            expected=" or ".join(map(repr, labels)),
        )
    if not task.command:
        raise BadRequest(
            "job command and arguments are missing", where="tasks[0].command", expected="a command"
        )
    system = _system_of(submission.jobspec)
    queue = settings.queue_of_job(jobspec.queue) if is_recorded else settings.queue(jobspec.queue)
    if is_recorded:
        queue = replace(queue, name=jobspec.queue or queue.name, duration_max_s=None)
    limit_s = _limit(jobspec.duration_s, queue)
    name = _name(task.command, system)
    if len(name) > _NAME_MAX:
        raise BadRequest(
            "the name is too long", where="attributes.system.job.name", expected=f"{_NAME_MAX} characters"
        )
    depends, begin_at = parse_dependencies(system.get("dependencies"))
    constraint = _both(jobspec.constraint, queue.constraint)
    resources = tuple(_in_bytes(one, f"resources[{at}]") for at, one in enumerate(jobspec.resources))
    request = Request((Group(resources, constraint),), limit_s, Placement())
    per_slot, size = _per_node(jobspec, system) or _task_count(jobspec)
    return SchedulingSpec(
        name=name,
        queue=queue.name,
        request=request,
        size=size,
        per_slot=per_slot,
        limit_s=limit_s,
        depends=depends,
        begin_at=begin_at,
        requeue=submission.requeue,
        nodes_requested=_nodes_requested(jobspec),
    )


def _labels(resources: tuple[Resource, ...]) -> list[str]:
    """The labels of slots, which tasks refer to."""
    found: list[str] = []
    for resource in resources:
        found += [resource.label] if resource.label else []
        found += _labels(resource.with_)
    return found


def _in_bytes(resource: Resource, where: str) -> Resource:
    """The resource with all memory in bytes, which nodes have it in."""
    if resource.type == MEMORY:
        if resource.count.min != resource.count.max:
            raise BadRequest("memory has no range", where=f"{where}.count", expected="a whole number")
        units = resource.count.min * unit_bytes(resource.unit, f"{where}.unit")
        return replace(resource, count=Count(units, units), unit="")
    if not resource.with_:
        return resource
    inner = (_in_bytes(one, f"{where}.with[{at}]") for at, one in enumerate(resource.with_))
    return replace(resource, with_=tuple(inner))


def counts_of(spec: SchedulingSpec) -> dict[str, object]:
    """Tasks, cores, nodes and time limit, for display."""
    resources = spec.request.groups[0].resources
    slots, cores = _slots_and_cores(resources, 1)
    tasks = spec.size if not spec.per_slot else slots * spec.per_slot
    return {"ntasks": tasks, "ncores": cores, "nnodes": spec.nodes_requested, "duration_s": spec.limit_s or 0}


def _slots_and_cores(resources: tuple[Resource, ...], times: int) -> tuple[int, int]:
    slots = cores = 0
    for resource in resources:
        count = times * resource.count.min
        inner_slots, inner_cores = _slots_and_cores(resource.with_, count)
        slots += count if resource.type == SLOT else inner_slots
        cores += count if resource.type == "core" else inner_cores
    return slots, cores


def _limit(duration_s: float, queue: QueueSettings) -> int | None:
    limit_s = ceil(duration_s) or queue.duration_default_s
    most = queue.duration_max_s
    if most is not None and (limit_s is None or limit_s > most):
        raise BadRequest(
            "the time limit is longer than the queue allows",
            where="attributes.system.duration",
            found="no limit" if limit_s is None else format_duration(limit_s),
            expected=f"at most {format_duration(most)} in queue {queue.name}",
        )
    return limit_s


def _both(own: Constraint | None, of_queue: Constraint | None) -> Constraint | None:
    if own is None or of_queue is None:
        return own or of_queue
    return And((own, of_queue))


def _task_count(jobspec: Jobspec) -> tuple[int, int]:
    count = dict(jobspec.tasks[0].count)
    try:
        if "total" in count:
            total = int(count["total"])
            if not 1 <= total <= _MEMBERS_MAX:
                raise ValueError
            return 0, total
        per_slot = int(count.get("per_slot", "1"))
        if not 1 <= per_slot <= _MEMBERS_MAX:
            raise ValueError
    except ValueError:
        raise BadRequest(
            "not a number of tasks", where="tasks[0].count", found=str(count), expected=f"1 to {_MEMBERS_MAX}"
        ) from None
    return per_slot, 0


def _per_node(jobspec: Jobspec, system: Mapping[str, object]) -> tuple[int, int] | None:
    """`--tasks-per-node`: the shell option `per-resource` overrides the task count."""
    options = _under(_under(system, "shell"), "options")
    if "per-resource" not in options:
        return None
    per_resource = _under(options, "per-resource")
    count, outer = per_resource.get("count", 1), jobspec.resources[0]
    is_slot_a_node = outer.type == "node" and [(one.type, one.count.max) for one in outer.with_] == [
        (SLOT, 1)
    ]
    is_count = type(count) is int and 1 <= count <= _MEMBERS_MAX
    if per_resource.get("type", "node") != "node" or not is_slot_a_node or not is_count:
        raise BadRequest(
            "not a number of tasks",
            where="attributes.system.shell.options.per-resource",
            found=repr(options["per-resource"])[:80],
            expected=f"type node, a count from 1 to {_MEMBERS_MAX}, and one slot on each node",
        )
    assert isinstance(count, int)
    return count, 0


def _nodes_requested(jobspec: Jobspec) -> int | None:
    return jobspec.resources[0].count.min if jobspec.resources[0].type == "node" else None


@lru_cache(maxsize=16)
def _document(text: str) -> Mapping[str, object]:
    found = json.loads(text)
    return found if isinstance(found, dict) else {}


def _system_of(text: str) -> Mapping[str, object]:
    return _under(_under(_document(text), "attributes"), "system")


def _under(values: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def _text(values: Mapping[str, object], key: str, where: str) -> str:
    found = values.get(key, "")
    if not isinstance(found, str):
        raise BadRequest("not a text", where=f"{where}.{key}", found=repr(found)[:80], expected="a text")
    return found


def payload_of(text: str) -> dict[str, object]:
    """What a backend needs to start a task of a valid jobspec; not interpreted here.

    Pending jobs do not keep it, because it is several times as large as the text.
    """
    system = _system_of(text)
    command, environment, cwd = _launch_texts(text, system)
    options = _under(_under(system, "shell"), "options")
    output = _under(options, "output")
    stdout, stderr = _under(output, "stdout"), _under(output, "stderr")
    label = bool(stdout.get("label") or stderr.get("label"))
    input_file, stdin_ranks = _input(_under(_under(options, "input"), "stdin"))
    return {
        "name": _name(command, system),
        "command": command,
        "cwd": cwd,
        "environment": environment,
        "output": _text(stdout, "path", "shell.options.output.stdout"),
        "error": _text(stderr, "path", "shell.options.output.stderr"),
        "label_io": label,
        "input": input_file,
        "stdin": stdin_ranks,
        "signal": options.get("signal"),
    }


def _launch_texts(text: str, system: Mapping[str, object]) -> tuple[list[str], dict[str, str], str]:
    """Command, environment and directory. Values that are no texts in JSON are converted by the parser."""
    tasks = _document(text).get("tasks")
    command = tasks[0].get("command") if isinstance(tasks, list) and isinstance(tasks[0], dict) else None
    environment, cwd = system.get("environment", {}), system.get("cwd", "")
    if (
        isinstance(command, list)
        and isinstance(environment, dict)
        and all(isinstance(one, str) for one in (*command, *environment.values(), cwd))
    ):
        return list(command), dict(environment), str(cwd)
    jobspec = parse_jobspec(text)
    return list(jobspec.tasks[0].command), dict(jobspec.environment), jobspec.cwd


def _name(command: Sequence[str], system: Mapping[str, object]) -> str:
    """The name of a job: its own, or that of its program."""
    own = _text(_under(system, "job"), "name", "attributes.system.job")
    return own or escape_controls(command[0].rpartition("/")[2])


def _input(stdin: Mapping[str, object]) -> tuple[str, str]:
    """The file that every task reads, or the ranks (an idset or `all`) that read what a client sends."""
    where = "attributes.system.shell.options.input.stdin"
    kind = _text(stdin, "type", where)
    if not kind:
        return "", ""
    if kind == "file":
        return _text(stdin, "path", where), ""
    if kind != "service":
        raise BadRequest("unknown type", where=f"{where}.type", found=repr(kind), expected="file or service")
    ranks = _text(stdin, "ranks", where) or ALL_RANKS
    if ranks != ALL_RANKS:
        try:
            parse_idset(ranks, ids_max=_MEMBERS_MAX)
        except BadIdset as error:
            raise error.at(f"{where}.ranks") from None
    return "", ranks


def spec_of_workload(
    workload: WorkloadSet,
    requests: Sequence[tuple[MemberRequest, int]],
    settings: Settings,
    limit_s: int | None,
) -> SchedulingSpec:
    """The spec of a workload. `requests`: the distinct ones of its members, and how many have each."""
    queue = settings.queue_of_job(workload.queue)
    groups = tuple(group_of(with_queue_constraint(request, queue), count) for request, count in requests)
    request = Request(groups, limit_s, placement_of(workload), order_of(workload))
    return SchedulingSpec(
        name=workload.name,
        queue=workload.queue or queue.name,
        request=request,
        size=workload.size,
        limit_s=limit_s,
        # Another limit than its own follows from the deadline of its controller, which is enforced.
        is_limit_enforced=workload.is_limit_enforced or limit_s != workload.limit_s,
        begin_at=workload.begin_at,
        requeue=workload.requeue,
    )


def with_queue_constraint(request: MemberRequest, queue: QueueSettings) -> MemberRequest:
    """A member's request, restricted to the nodes of its queue."""
    return replace(request, constraint=_both(request.constraint, queue.constraint))


def group_of(request: MemberRequest, count: int) -> Group:
    inner = tuple(Resource(name, Count(units, units)) for name, units in request.requests if units > 0)
    slot = Resource(SLOT, Count(count, count), with_=inner, label="member")
    prefers = tuple(Preference(constraint, weight) for constraint, weight in request.prefers)
    return Group((slot,), request.constraint, request.brings, request.forbids, prefers)


def member_request(
    group: Group,
    placement: Placement,
    extra: Constraint | None = None,
    order: NodeOrder = NodeOrder.POLICY,
) -> Request:
    """A request for one more member of a group."""
    resources = tuple(_single(resource) for resource in group.resources)
    single = replace(group, resources=resources, constraint=_both(group.constraint, extra))
    return Request((single,), None, placement, order)


def placement_of(workload: WorkloadSet) -> Placement:
    return Placement(workload.distinct_nodes, workload.within)


def order_of(workload: WorkloadSet) -> NodeOrder:
    """Gangs are packed, so that large ones find whole nodes; replicas survive the failure of a node."""
    return NodeOrder.PACK if workload.is_gang else NodeOrder.SPREAD


def _single(resource: Resource) -> Resource:
    """Sets the counts to 1 down to the slot; the content of the slot stays."""
    one = Count(1, 1)
    if resource.type == SLOT:
        return replace(resource, count=one)
    return replace(resource, count=one, with_=tuple(_single(inner) for inner in resource.with_))


def tasks_on_slots(spec: SchedulingSpec, nodes_of_slots: list[str]) -> list[int]:
    """For every member by index, the position of its slot in a list of slots that is sorted by node.

    Members are numbered in blocks by node. If there are fewer members than slots, they are distributed over
    the nodes round-robin.
    """
    if spec.per_slot:
        return [position for position in range(len(nodes_of_slots)) for _ in range(spec.per_slot)]
    positions: dict[str, list[int]] = {}
    for position, node in enumerate(nodes_of_slots):
        positions.setdefault(node, []).append(position)
    share = dict.fromkeys(positions, 0)
    left = spec.size
    while left:
        # If there are more members than slots, slots get several members.
        for node in positions:
            if left and (share[node] < len(positions[node]) or spec.size > len(nodes_of_slots)):
                share[node] += 1
                left -= 1
    return [
        positions[node][round_ % len(positions[node])] for node in positions for round_ in range(share[node])
    ]
