"""Options and the jobspecs that Flux builds from them, and the syntaxes of option values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.jobspecs import (
    JobRequest,
    JobSize,
    build_jobspec,
    parse_dependency,
    parse_signal,
    parse_time_limit,
    parse_urgency,
    select_environment,
    substitute,
)
from penstock.cli.requires import parse_requires
from penstock.cli.times import parse_when
from penstock.errors import BadRequest
from penstock.model.jobspec import parse_jobspec
from tests.web.canned import NOW


def slot(count: int, cores: int, gpus: int = 0) -> dict[str, Any]:
    inside: list[dict[str, Any]] = [{"type": "core", "count": cores}]
    if gpus:
        inside.append({"type": "gpu", "count": gpus})
    return {"type": "slot", "count": count, "with": inside, "label": "task"}


def node(count: int, inside: dict[str, Any], exclusive: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "node", "count": count, "with": [inside]}
    return {**made, "exclusive": True} if exclusive else made


def with_memory(made: dict[str, Any], count: int) -> dict[str, Any]:
    return {**made, "with": [*made["with"], {"type": "memory", "count": count}]}


PER_SLOT = {"per_slot": 1}
TABLE = [
    (JobSize(ntasks=4), slot(4, 1), PER_SLOT),
    (JobSize(ntasks=4, cores_per_task=2, gpus_per_task=1), slot(4, 2, 1), PER_SLOT),
    (JobSize(nodes=2, ntasks=4), node(2, slot(2, 1)), PER_SLOT),
    (JobSize(nodes=4, ntasks=5), node(4, slot(2, 1)), {"total": 5}),
    (JobSize(nodes=2), node(2, slot(1, 1), exclusive=True), PER_SLOT),
    (JobSize(nodes=2, ntasks=4, exclusive=True), node(2, slot(2, 1), exclusive=True), PER_SLOT),
    (JobSize(nodes=2, tasks_per_node=3), node(2, slot(1, 1), exclusive=True), PER_SLOT),
    (JobSize(nodes=2, cores=8), node(2, slot(1, 4)), PER_SLOT),
    (JobSize(nodes=2, gpus_per_node=4), node(2, slot(1, 1, 4), exclusive=True), PER_SLOT),
    (JobSize(cores=8), slot(8, 1), PER_SLOT),
    (JobSize(), slot(1, 1), PER_SLOT),
    # Memory is per node: the slots of a node share it.
    (JobSize(mem=4096), with_memory(slot(1, 1), 4096), PER_SLOT),
    (JobSize(nodes=2, ntasks=6, mem=4096), node(2, with_memory(slot(3, 1), 1366)), PER_SLOT),
    (JobSize(nodes=2, cores=8, mem=4096), node(2, with_memory(slot(1, 4), 4096)), PER_SLOT),
]


@pytest.mark.parametrize("size", [JobSize(ntasks=2, mem=1), JobSize(cores=2, mem=1)])
def test_memory_per_node_needs_a_number_of_nodes_for_several_tasks(size: JobSize) -> None:
    with pytest.raises(BadRequest, match=r"memory is per node .*expected -N NODES as well"):
        build_jobspec(JobRequest(("true",), size), NOW)


@pytest.mark.parametrize(("size", "resource", "count"), TABLE)
def test_options_become_resources_as_in_flux(
    size: JobSize, resource: dict[str, Any], count: dict[str, int]
) -> None:
    spec = build_jobspec(JobRequest(("app",), size, cwd="/tmp"), NOW)
    assert spec["resources"] == [resource]
    assert spec["tasks"] == [{"command": ["app"], "slot": "task", "count": count}]
    assert list(spec) == ["resources", "tasks", "attributes", "version"]
    assert parse_jobspec(json.dumps(spec)).version == 1


def test_tasks_on_each_node_are_an_option_of_the_shell() -> None:
    spec = build_jobspec(JobRequest(("app",), JobSize(nodes=2, tasks_per_node=3)), NOW)
    options = spec["attributes"]["system"]["shell"]["options"]
    assert options == {"per-resource": {"type": "node", "count": 3}}


def test_the_flat_example_byte_for_byte() -> None:
    request = JobRequest(
        ("app",), JobSize(ntasks=4, cores_per_task=2, gpus_per_task=1), time_limit="10", cwd="/tmp"
    )
    assert json.dumps(build_jobspec(request, NOW), separators=(",", ":")) == (
        '{"resources":[{"type":"slot","count":4,"with":[{"type":"core","count":2},{"type":"gpu","count":1}],'
        '"label":"task"}],"tasks":[{"command":["app"],"slot":"task","count":{"per_slot":1}}],'
        '"attributes":{"system":{"duration":600.0,"environment":{},"cwd":"/tmp"}},"version":1}'
    )


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (JobSize(nodes=3, ntasks=2), "node count must not be greater than task count"),
        (JobSize(exclusive=True), "it needs a number of nodes"),
        (JobSize(ntasks=1, cores=2), "do not mix"),
        (JobSize(nodes=3, cores=8), "not a multiple of the number of nodes"),
        (JobSize(tasks_per_node=2), "node count is required"),
    ],
)
def test_contradicting_sizes_are_refused(size: JobSize, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        build_jobspec(JobRequest(("app",), size), NOW)


def test_a_command_is_required() -> None:
    with pytest.raises(BadRequest, match="no command"):
        build_jobspec(JobRequest(()), NOW)


def test_all_other_options_are_attributes() -> None:
    request = JobRequest(
        ("app",), time_limit="1.5h", queue="q", name="n", dependencies=("afterok:f1?x=y", "singleton"),
        begin_time="+1h", requires="a", output="o", error="e", label_io=True, signal="TERM@2m", cwd="/w",
        environment={"A": "1"},
    )  # fmt: skip
    assert build_jobspec(request, NOW)["attributes"]["system"] == {
        "duration": 5400.0,
        "environment": {"A": "1"},
        "cwd": "/w",
        "job": {"name": "n"},
        "queue": "q",
        "dependencies": [
            {"scheme": "afterok", "value": "f1", "x": "y"},
            {"scheme": "singleton", "value": ""},
            {"scheme": "begin-time", "value": str(NOW + 3600)},
        ],
        "constraints": {"properties": ["a"]},
        "shell": {
            "options": {
                "output": {
                    "stdout": {"type": "file", "path": "o", "label": True},
                    "stderr": {"type": "file", "path": "e", "label": True},
                },
                "signal": {"signum": 15, "timeleft": 120.0},
            }
        },
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b", {"properties": ["a", "b"]}),
        ("a|b", {"or": [{"properties": ["a"]}, {"properties": ["b"]}]}),
        ("-host:n7", {"not": [{"hostlist": ["n7"]}]}),
        ("rank:0", {"ranks": ["0"]}),
        ("a host:n[1-2,5]", {"and": [{"properties": ["a"]}, {"hostlist": ["n[1-2,5]"]}]}),
        ("not (a or b) & c", {"and": [{"not": [{"or": [{"properties": ["a"]}, {"properties": ["b"]}]}]},
                                      {"properties": ["c"]}]}),
    ],
)  # fmt: skip
def test_constraints(text: str, expected: dict[str, Any]) -> None:
    assert parse_requires(text) == expected


@pytest.mark.parametrize("text", ["", "a|", "(a", "a)", "x:y", "host:", "|", "(" * 40 + "a"])
def test_invalid_constraints_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="--requires"):
        parse_requires(text)


def test_time_limits_and_urgencies() -> None:
    assert [parse_time_limit(text) for text in ("30", "1.5", "90s", "2h")] == [1800, 90, 90, 7200]
    assert [parse_urgency(text) for text in ("hold", "default", "expedite", "7")] == [0, 16, 31, 7]
    for bad in ("32", "-1", "fast", "٣"):
        with pytest.raises(BadRequest):
            parse_urgency(bad)


SLURM_TIMES = {
    "00:30": 30,
    "90:00": 5400,
    "01:30:00": 5400,
    "1-0": 86_400,
    "2-12": 2 * 86_400 + 12 * 3600,
    "1-02:30": 86_400 + 2 * 3600 + 30 * 60,
    "1-02:03:04": 86_400 + 2 * 3600 + 3 * 60 + 4,
    "0:90:00": 5400,
}


@pytest.mark.parametrize("text", SLURM_TIMES)
def test_time_limits_can_be_written_as_in_slurm(text: str) -> None:
    assert parse_time_limit(text) == SLURM_TIMES[text]


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_a_slurm_time_is_the_sum_of_its_parts(days: int, hours: int, minutes: int, seconds: int) -> None:
    of_day = 3600 * hours + 60 * minutes + seconds
    assert parse_time_limit(f"{hours}:{minutes:02}:{seconds:02}") == of_day
    assert parse_time_limit(f"{days}-{hours:02}:{minutes:02}:{seconds:02}") == 86_400 * days + of_day
    assert parse_time_limit(f"{days}-{hours}:{minutes}") == 86_400 * days + of_day - seconds
    assert parse_time_limit(f"{minutes}:{seconds}") == 60 * minutes + seconds
    assert parse_time_limit(str(minutes)) == 60 * minutes


@pytest.mark.parametrize(
    "text",
    ["", "x", "inf", "UNLIMITED", ":", "1:", ":30", "1:2:3:4", "1-", "-1", "1-2-3", "1:2h", "1:-2", "٣:٠٠"],
)
def test_other_time_limits_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="--time-limit"):
        parse_time_limit(text)


def test_signals() -> None:
    assert parse_signal("") == {"signum": 10, "timeleft": 60.0}
    assert parse_signal("@10s") == {"signum": 10, "timeleft": 10.0}
    assert parse_signal("SIGTERM") == parse_signal("term") == parse_signal("15")
    for bad in ("NONE", "99", "TERM@x"):
        with pytest.raises(BadRequest):
            parse_signal(bad)


@pytest.mark.parametrize("text", ["afterok", ":f1", "afterok:f1?x", "afterok:f1?value=2"])
def test_invalid_dependencies_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="dependency"):
        parse_dependency(text)


def test_points_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert parse_when("now", NOW, "--since") == NOW
    assert parse_when("+90s", NOW, "--since") == NOW + 90
    assert parse_when("-1h", NOW, "--since") == NOW - 3600
    assert parse_when("23:13:20", NOW, "--since") == NOW + 3600
    assert parse_when("21:13:20", NOW, "--since") == NOW + 23 * 3600
    assert parse_when("21:13:20", NOW, "--since", past=True) == NOW - 3600
    assert parse_when("2023-11-14T22:13:20", NOW, "--since") == NOW
    for bad in ("soon", "25:00", "+inf", ""):
        with pytest.raises(BadRequest):
            parse_when(bad, NOW, "--since")


def test_the_environment_is_chosen_by_rules() -> None:
    own = {"HOME": "/h", "A_1": "x", "A_2": "y", "BAD": "\udcff"}
    assert select_environment(own, ["A_2", "NEW=1=2", "NONE"], ["A_*"]) == (
        {"HOME": "/h", "A_2": "y", "NEW": "1=2"},
        ["BAD"],
    )


def test_secrets_of_penstock_are_submitted_only_on_request() -> None:
    own = {"HOME": "/h", "PENSTOCK_DATABASE": "postgresql://u:p@h/d", "PENSTOCK_TOKEN": "t"}
    assert select_environment(own, [], []) == ({"HOME": "/h"}, [])
    assert select_environment(own, ["PENSTOCK_TOKEN"], []) == ({"HOME": "/h", "PENSTOCK_TOKEN": "t"}, [])


def test_a_copy_has_its_own_id_in_every_text() -> None:
    request = substitute(
        JobRequest(("app", "{cc}"), name="n{cc}", output="o{cc}", dependencies=("afterok:{cc}",)), "7"
    )
    assert (request.command, request.name, request.output, request.dependencies) == (
        ("app", "7"),
        "n7",
        "o7",
        ("afterok:7",),
    )
