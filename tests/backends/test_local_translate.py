"""The translation of placements to task specs, without any process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.backends.local import LocalBackend, LocalSettings
from penstock.backends.local.translate import attempt_of, tasks_of
from penstock.errors import BadRequest
from penstock.paths import InstancePaths
from penstock.protocol.intents import Assignment, Place

PATHS = InstancePaths(Path("/state"), Path("/run/p"))
RANKS = {f"node{rank}": rank for rank in range(12)}
JOB = 6731191091817518


def placement(*assignments: Assignment, **spec: object) -> Place:
    base = {"id_f58": "ƒuZZybuNNy", "name": "lmp", "command": ["/bin/app", "x"], "cwd": "/project"}
    return Place(1, JOB, "", assignments, end_at=99.0, size=len(assignments), spec={**base, **spec})


def assignments() -> tuple[Assignment, ...]:
    return (
        Assignment("7/2/0", 0, "node10", (("core", "0-1", 2), ("gpu", "3", 1))),
        Assignment("7/2/1", 1, "node10", (("core", "2-3", 2), ("gpu", "1", 1))),
        Assignment("7/2/2", 2, "node2", (("core", "5", 1), ("memory", "", 9))),
    )


def test_local_ids_and_node_ids_follow_the_ranks_of_the_nodes() -> None:
    tasks = tasks_of(placement(*assignments()), PATHS, RANKS, bind=True)
    assert [(task.rank, task.local_id, task.nnodes, task.size) for task in tasks] == [
        (0, 0, 2, 3),
        (1, 1, 2, 3),
        (2, 0, 2, 3),
    ]
    assert [task.gpus for task in tasks] == ["1,3", "1,3", "-1"]
    assert [task.cores for task in tasks] == [(0, 1), (2, 3), (5,)]
    assert [
        (task.node, task.granted) for task in tasks_of(placement(*assignments()), PATHS, RANKS, bind=False)
    ] == [
        ("node10", (0, 1)),
        ("node10", (2, 3)),
        ("node2", (5,)),
    ]
    assert tasks[0].tmpdir == "/state/agents/node10/tmp/jobtmp-1-fuZZybuNNy"
    assert {task.end_at for task in tasks} == {99.0}
    assert {task.cores for task in tasks_of(placement(*assignments()), PATHS, RANKS, bind=False)} == {()}


def test_the_rest_of_an_exclusive_node_is_dealt_to_its_slots() -> None:
    held = {"node10": {"core": "0-7", "gpu": "0-3"}, "node2": {"core": "0-2,5"}}
    tasks = tasks_of(placement(*assignments(), resources_by_node=held), PATHS, RANKS, bind=True)
    assert [task.granted for task in tasks] == [(0, 1, 4, 6), (2, 3, 5, 7), (0, 1, 2, 5)]
    assert [task.cores for task in tasks] == [task.granted for task in tasks]
    assert [task.gpus for task in tasks] == ["0,1,2,3", "0,1,2,3", "-1"]
    shared = tuple(Assignment(f"7/2/{index}", index, "node2", (("core", "0", 1),)) for index in range(3))
    tasks = tasks_of(placement(*shared, resources_by_node=held), PATHS, RANKS, bind=False)
    assert [task.granted for task in tasks] == [(0, 1, 2, 5)] * 3


def test_without_a_template_each_task_has_its_own_files() -> None:
    task = tasks_of(placement(*assignments()), PATHS, RANKS, bind=False)[1]
    assert (task.stdout, task.stderr) == (f"/state/output/{JOB}/2-1.out", f"/state/output/{JOB}/2-1.err")
    assert (task.markers, task.file_mode) == ("", 0o600)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{id}}|{{jobid}}|{{id.f58}}", "ƒuZZybuNNy|ƒuZZybuNNy|ƒuZZybuNNy"),
        ("{{id.dec}}|{{jobid.dec}}|{{id.hex}}", f"{JOB}|{JOB}|0x17e9fb8df16c2e"),
        ("{{id.dothex}}", "0017.e9fb.8df1.6c2e"),
        ("{{name}}-{{nnodes}}-{{size}}-{{ntasks}}", "lmp-2-3-3"),
        ("{{taskid}}{{task.id}}{{task.rank}}-{{task.index}}{{task.localid}}", "111-11"),
        ("{{node.id}} {{node.name}} {{node.broker_rank}}", "1 node10 10"),
        ("{{node.cores}} {{node.gpus}} {{node.ncores}}", "0-3 1,3 4"),
        ("{{nonsense}} {{ id }} {{id", "{{nonsense}} {{ id }} {{id"),
    ],
)
def test_tags_expand_as_in_flux(template: str, expected: str) -> None:
    task = tasks_of(
        placement(*assignments(), output=template, command=["a", template]), PATHS, RANKS, bind=False
    )[1]
    assert task.stdout == task.stderr == expected
    assert task.command == ("a", expected)
    assert (task.markers, task.file_mode, task.attempt) == (f"/state/output/{JOB}", 0o644, 2)


def test_stderr_goes_to_the_named_file() -> None:
    task = tasks_of(placement(*assignments(), error="{{id.dec}}.err"), PATHS, RANKS, bind=False)[0]
    assert (task.stdout, task.stderr) == (f"/state/output/{JOB}/2-0.out", f"{JOB}.err")


def test_the_backend_returns_the_output_paths_of_a_task() -> None:
    async def paths_for(**spec: object) -> tuple[Path, Path]:
        backend = LocalBackend(PATHS, LocalSettings())
        return backend.output_paths(JOB, 1, placement(*assignments(), **spec).spec, 2)

    assert asyncio.run(paths_for())[1] == Path(f"/state/output/{JOB}/2-1.err")
    assert asyncio.run(paths_for(output="o.{{taskid}}")) == (Path("/project/o.1"), Path("/project/o.1"))


def test_the_attempt_is_part_of_the_member_key() -> None:
    assert [attempt_of(member) for member in ("7/12/0", "pod-a", "7/x/0")] == [12, 1, 1]


@pytest.mark.parametrize(
    "spec", [{"command": []}, {"command": "x"}, {"environment": {"A": 1}}, {"signal": {"signum": "x"}}]
)
def test_an_invalid_launch_spec_is_refused(spec: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        tasks_of(placement(*assignments(), **spec), PATHS, RANKS, bind=False)


def test_invalid_settings_are_refused() -> None:
    for settings in ({"nodes": 0}, {"nodes": 10**6}, {"cores_per_node": 0}, {"gpus_per_node": -1}):
        with pytest.raises(BadRequest):
            LocalSettings(**settings)
