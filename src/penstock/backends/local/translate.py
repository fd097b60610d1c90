"""Turns a placement into task specs: ranks, local ids, and the expansion of the user's templates.

Tags are those of Flux (`{{id}}`, `{{task.rank}}`, `{{node.name}}` ...), in output paths and arguments;
unknown tags stay as they are. Without a template every task has its own two files in the job's output
directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from penstock.agent.records import TaskSpec, WarningSignal
from penstock.errors import BadRequest
from penstock.model.idset import encode_idset, parse_idset
from penstock.paths import InstancePaths
from penstock.protocol.intents import Assignment, Place

__all__ = [
    "LaunchSpec",
    "attempt_of",
    "default_outputs",
    "expand",
    "input_position",
    "input_spool",
    "outputs_of",
    "read_spec",
    "reads_spool",
    "tags_of",
    "tasks_of",
]

_TAG: Final = re.compile(r"\{\{([a-z0-9_.]+)\}\}")
_MEMBER: Final = re.compile(r"\d+/(\d+)/\d+")
_USER_FILE_MODE: Final = 0o644


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `Place.spec` for a submitted job."""

    id_f58: str
    command: tuple[str, ...]
    cwd: str = "/"
    name: str = ""
    environment: dict[str, str] = {}
    output: str = ""
    error: str = ""
    label_io: bool = False
    input: str = ""
    stdin: str = ""  # the ranks that read what a client sends: an idset or `all`
    signal: WarningSignal | None = None
    owner: str = ""
    # What the job holds on each node: ids of whole units, a count of others. More than its slots have, if it
    # has the node exclusively.
    resources_by_node: dict[str, dict[str, str]] = {}


@dataclass(frozen=True, slots=True)
class _TaskPlacement:
    """An assignment with its position in the job."""

    assignment: Assignment
    node_index: int
    node_rank: int
    local_id: int
    nnodes: int
    size: int
    cores: tuple[int, ...]  # of the task
    node_cores: tuple[int, ...]  # of the job, on this node
    node_gpus: tuple[int, ...]


def read_spec(spec: Mapping[str, object]) -> LaunchSpec:
    try:
        return msgspec.convert(spec, LaunchSpec)
    except (msgspec.ValidationError, TypeError) as error:
        raise BadRequest("invalid launch spec", where="spec", found=str(error)) from error


def attempt_of(member: str) -> int:
    """Parses the attempt from `job/attempt/rank`, the key of a submitted job's member; 1 for other keys."""
    match = _MEMBER.fullmatch(member)
    return int(match[1]) if match else 1


def default_outputs(paths: InstancePaths, job: int, attempt: int, index: int) -> tuple[Path, Path]:
    directory = paths.output / str(job)
    return directory / f"{attempt}-{index}.out", directory / f"{attempt}-{index}.err"


def input_spool(paths: InstancePaths, job: int) -> Path:
    """The directory of a job's spooled input. Nothing else changes in it: supervisors watch it."""
    return paths.output / str(job) / "input"


def input_position(paths: InstancePaths, job: int, member: str, index: int) -> Path:
    return paths.output / str(job) / f"{attempt_of(member)}-{index}.in"


def reads_spool(ranks: str, index: int) -> bool:
    return ranks == "all" or (ranks != "" and index in parse_idset(ranks))


def tasks_of(place: Place, paths: InstancePaths, ranks: Mapping[str, int], *, bind: bool) -> list[TaskSpec]:
    """Returns one task per assignment, in the same order. Raises `BadRequest` for invalid input."""
    spec = read_spec(place.spec)
    if not spec.command:
        raise BadRequest("the command is empty", where="spec.command")
    placements = _placements(place, spec, ranks)
    return [_task(place, spec, placement, paths, bind=bind) for placement in placements]


def _placements(place: Place, spec: LaunchSpec, ranks: Mapping[str, int]) -> list[_TaskPlacement]:
    by_node: dict[str, list[Assignment]] = {}
    for assignment in sorted(place.assignments, key=lambda assignment: assignment.index):
        by_node.setdefault(assignment.node, []).append(assignment)
    unknown = sorted(set(by_node) - set(ranks))
    if unknown:
        raise BadRequest(
            "no such node", where="assignments", found=unknown[0], expected=f"{len(ranks)} nodes"
        )
    ordered = sorted(by_node, key=lambda node: ranks[node])
    placements: dict[str, _TaskPlacement] = {}
    for node_index, node in enumerate(ordered):
        assignments = by_node[node]
        held = spec.resources_by_node.get(node, {})
        cores_of_tasks = _cores_of_tasks(assignments, held)
        for local_id, assignment in enumerate(assignments):
            placements[assignment.member] = _TaskPlacement(
                assignment=assignment,
                node_index=node_index,
                node_rank=ranks[node],
                local_id=local_id,
                nnodes=len(ordered),
                size=place.size or len(place.assignments),
                cores=cores_of_tasks[local_id],
                node_cores=_units_held(assignments, held, "core"),
                node_gpus=_units_held(assignments, held, "gpu"),
            )
    return [placements[assignment.member] for assignment in place.assignments]


def _cores_of_tasks(assignments: Sequence[Assignment], held: Mapping[str, str]) -> list[tuple[int, ...]]:
    """The cores of each task: those of its slot, and a share of what the job holds on the node besides.

    Tasks of one slot have the same cores, so the rest is dealt to slots.
    """
    of_tasks = [_units((assignment,), "core") for assignment in assignments]
    slots: dict[tuple[int, ...], list[int]] = {cores: list(cores) for cores in of_tasks}
    rest = sorted(set(_units_held(assignments, held, "core")) - {core for cores in slots for core in cores})
    for position, core in enumerate(rest):
        slots[list(slots)[position % len(slots)]].append(core)
    return [tuple(sorted(slots[cores])) for cores in of_tasks]


def _units_held(assignments: Sequence[Assignment], held: Mapping[str, str], resource: str) -> tuple[int, ...]:
    units = {*_units(assignments, resource), *parse_idset(held.get(resource, ""))}
    return tuple(sorted(units))


def _units(assignments: Sequence[Assignment], resource: str) -> tuple[int, ...]:
    found: set[int] = set()
    for assignment in assignments:
        for name, idset, _ in assignment.grants:
            if name == resource:
                found.update(parse_idset(idset))
    return tuple(sorted(found))


def _task(
    place: Place, spec: LaunchSpec, placement: _TaskPlacement, paths: InstancePaths, *, bind: bool
) -> TaskSpec:
    assignment = placement.assignment
    plain = spec.id_f58.replace("ƒ", "f")
    tmpdir = str(paths.agent(assignment.node) / "tmp" / f"jobtmp-{placement.node_index}-{plain}")
    tags = tags_of(place.job, spec, assignment.index) | _placement_tags(placement, tmpdir)
    attempt = attempt_of(assignment.member)
    default_out, default_err = default_outputs(paths, place.job, attempt, assignment.index)
    stdout, stderr = outputs_of(spec, tags, (default_out, default_err))
    return TaskSpec(
        member=assignment.member,
        job=place.job,
        job_f58=spec.id_f58,
        rank=assignment.index,
        command=tuple(expand(word, tags) for word in spec.command),
        cwd=spec.cwd,
        environment=spec.environment,
        size=placement.size,
        nnodes=placement.nnodes,
        local_id=placement.local_id,
        stdout=stdout,
        stderr=stderr,
        markers=str(default_out.parent) if spec.output or spec.error else "",
        attempt=attempt,
        file_mode=_USER_FILE_MODE if spec.output or spec.error else 0o600,
        label_io=spec.label_io,
        input=expand(spec.input, tags),
        spool=str(input_spool(paths, place.job)) if reads_spool(spec.stdin, assignment.index) else "",
        position=str(input_position(paths, place.job, assignment.member, assignment.index)),
        end_at=place.end_at,
        warn=spec.signal,
        tmpdir=tmpdir,
        gpus=",".join(map(str, placement.node_gpus)) or "-1",
        cores=placement.cores if bind else (),
        node=assignment.node,
        granted=placement.cores,
        usage={resource: units for resource, _, units in assignment.grants},
    )


def tags_of(job: int, spec: LaunchSpec, index: int) -> dict[str, str]:
    """Returns the tags that do not depend on the placement."""
    digits = f"{job:016x}"
    found = {
        "id": spec.id_f58,
        "id.f58": spec.id_f58,
        "id.f58plain": spec.id_f58.replace("ƒ", "f"),
        "id.dec": str(job),
        "id.hex": f"{job:#x}",
        "id.dothex": ".".join(digits[at : at + 4] for at in range(0, 16, 4)),
        "name": spec.name or os.path.basename(spec.command[0]),
        "taskid": str(index),
        "task.id": str(index),
        "task.rank": str(index),
    }
    return found | {f"job{tag}": value for tag, value in found.items() if tag.partition(".")[0] == "id"}


def _placement_tags(placement: _TaskPlacement, tmpdir: str) -> dict[str, str]:
    return {
        "nnodes": str(placement.nnodes),
        "size": str(placement.size),
        "ntasks": str(placement.size),
        "tmpdir": tmpdir,
        "task.index": str(placement.local_id),
        "task.localid": str(placement.local_id),
        "node.id": str(placement.node_index),
        "node.name": placement.assignment.node,
        "node.broker_rank": str(placement.node_rank),
        "node.cores": encode_idset(placement.node_cores),
        "node.gpus": encode_idset(placement.node_gpus),
        "node.ncores": str(len(placement.node_cores)),
    }


def outputs_of(spec: LaunchSpec, tags: Mapping[str, str], default: tuple[Path, Path]) -> tuple[str, str]:
    """Returns the paths of stdout and stderr, relative to the job's directory. Without an error template,
    stderr goes to the file that the output template names."""
    stdout = expand(spec.output, tags) if spec.output else str(default[0])
    if spec.error:
        return stdout, expand(spec.error, tags)
    return stdout, stdout if spec.output else str(default[1])


def expand(template: str, tags: Mapping[str, str]) -> str:
    return _TAG.sub(lambda match: tags.get(match[1], match[0]), template)
