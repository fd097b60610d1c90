"""From a placement to tasks: who is the how-manieth on which node, and what the templates of a user mean.

Tags are those of Flux (`{{id}}`, `{{task.rank}}`, `{{node.name}}` ...), in output files and in arguments;
what is no tag stays as it is. Without a template a task has two files of its own in the job's directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from penstock.agent.records import TaskSpec, Warn
from penstock.errors import BadRequest
from penstock.model.idset import encode_idset, parse_idset
from penstock.paths import InstancePaths
from penstock.protocol.intents import Assignment, Place

__all__ = [
    "LaunchSpec",
    "attempt_of",
    "default_outputs",
    "expand",
    "outputs_of",
    "read_spec",
    "tags_of",
    "tasks_of",
]

_TAG: Final = re.compile(r"\{\{([a-z0-9_.]+)\}\}")
_MEMBER: Final = re.compile(r"\d+/(\d+)/\d+")
_USER_FILE_MODE: Final = 0o644


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What `Place.spec` holds for a submitted job."""

    id_f58: str
    command: tuple[str, ...]
    cwd: str = "/"
    name: str = ""
    environment: dict[str, str] = {}
    output: str = ""
    error: str = ""
    label_io: bool = False
    signal: Warn | None = None
    owner: str = ""


@dataclass(frozen=True, slots=True)
class _Spot:
    """One seat in its job."""

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
        raise BadRequest("what is to be run cannot be read", where="spec", found=str(error)) from error


def attempt_of(member: str) -> int:
    """Members of submitted jobs are `job/attempt/rank`; of others there is one attempt."""
    match = _MEMBER.fullmatch(member)
    return int(match[1]) if match else 1


def default_outputs(paths: InstancePaths, job: int, attempt: int, index: int) -> tuple[Path, Path]:
    directory = paths.output / str(job)
    return directory / f"{attempt}-{index}.out", directory / f"{attempt}-{index}.err"


def tasks_of(place: Place, paths: InstancePaths, ranks: Mapping[str, int], *, bind: bool) -> list[TaskSpec]:
    """One task for each seat, in their order. Bad input is a `BadRequest`."""
    spec = read_spec(place.spec)
    if not spec.command:
        raise BadRequest("the command is empty", where="spec.command")
    return [_task(place, spec, spot, paths, bind=bind) for spot in _spots(place, ranks)]


def _spots(place: Place, ranks: Mapping[str, int]) -> list[_Spot]:
    by_node: dict[str, list[Assignment]] = {}
    for assignment in sorted(place.assignments, key=lambda assignment: assignment.index):
        by_node.setdefault(assignment.node, []).append(assignment)
    unknown = sorted(set(by_node) - set(ranks))
    if unknown:
        raise BadRequest("no such node", where="seats", found=unknown[0], expected=f"{len(ranks)} nodes")
    ordered = sorted(by_node, key=lambda node: ranks[node])
    spots: dict[str, _Spot] = {}
    for node_index, node in enumerate(ordered):
        assignments = by_node[node]
        for local_id, assignment in enumerate(assignments):
            spots[assignment.member] = _Spot(
                assignment=assignment,
                node_index=node_index,
                node_rank=ranks[node],
                local_id=local_id,
                nnodes=len(ordered),
                size=place.size or len(place.assignments),
                cores=_units((assignment,), "core"),
                node_cores=_units(assignments, "core"),
                node_gpus=_units(assignments, "gpu"),
            )
    return [spots[assignment.member] for assignment in place.assignments]


def _units(assignments: Sequence[Assignment], kind: str) -> tuple[int, ...]:
    found: set[int] = set()
    for assignment in assignments:
        for name, idset, _ in assignment.grants:
            if name == kind:
                found.update(parse_idset(idset))
    return tuple(sorted(found))


def _task(place: Place, spec: LaunchSpec, spot: _Spot, paths: InstancePaths, *, bind: bool) -> TaskSpec:
    assignment = spot.assignment
    plain = spec.id_f58.replace("ƒ", "f")
    tmpdir = str(paths.agent(assignment.node) / "tmp" / f"jobtmp-{spot.node_index}-{plain}")
    tags = tags_of(place.job, spec, assignment.index) | _placed_tags(spot, tmpdir)
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
        size=spot.size,
        nnodes=spot.nnodes,
        local_id=spot.local_id,
        stdout=stdout,
        stderr=stderr,
        marks=str(default_out.parent) if spec.output or spec.error else "",
        attempt=attempt,
        file_mode=_USER_FILE_MODE if spec.output or spec.error else 0o600,
        label_io=spec.label_io,
        end_at=place.end_at,
        warn=spec.signal,
        tmpdir=tmpdir,
        gpus=",".join(map(str, spot.node_gpus)) or "-1",
        cores=spot.cores if bind else (),
        node=assignment.node,
        granted=spot.cores,
        uses={kind: units for kind, _, units in assignment.grants},
    )


def tags_of(job: int, spec: LaunchSpec, index: int) -> dict[str, str]:
    """What can be said of a task wherever it is placed."""
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


def _placed_tags(spot: _Spot, tmpdir: str) -> dict[str, str]:
    return {
        "nnodes": str(spot.nnodes),
        "size": str(spot.size),
        "ntasks": str(spot.size),
        "tmpdir": tmpdir,
        "task.index": str(spot.local_id),
        "task.localid": str(spot.local_id),
        "node.id": str(spot.node_index),
        "node.name": spot.assignment.node,
        "node.broker_rank": str(spot.node_rank),
        "node.cores": encode_idset(spot.node_cores),
        "node.gpus": encode_idset(spot.node_gpus),
        "node.ncores": str(len(spot.node_cores)),
    }


def outputs_of(spec: LaunchSpec, tags: Mapping[str, str], default: tuple[Path, Path]) -> tuple[str, str]:
    """Paths of stdout and stderr, relative to the job's directory; stderr follows a file that was named."""
    stdout = expand(spec.output, tags) if spec.output else str(default[0])
    if spec.error:
        return stdout, expand(spec.error, tags)
    return stdout, stdout if spec.output else str(default[1])


def expand(template: str, tags: Mapping[str, str]) -> str:
    return _TAG.sub(lambda match: tags.get(match[1], match[0]), template)
