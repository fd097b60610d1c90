from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import demo_plan, plan_demo

PENSTOCK = Path(sys.executable).parent / "penstock"
TIMEOUT_S = 30
POLICIES = ("first", "firstnodex", "low", "hinode", "pack", "spread")
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def facts_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert plan_demo.main(["--plan", *arguments, "-o", "json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return json.loads(shown.out)


def text_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert plan_demo.main(["--plan", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("nodes", [1, 2, 8, 17])
def test_no_core_or_gpu_is_allocated_twice_at_any_time(
    capsys: pytest.CaptureFixture[str], policy: str, nodes: int
) -> None:
    facts = facts_of(capsys, "--nodes", str(nodes), "--policy", policy)
    placed = [job for job in facts["jobs"] if job["start_s"] is not None]
    # Use only grows where a job starts, so these are the instants to look at.
    for instant in sorted({job["start_s"] for job in placed}):
        running = [job for job in placed if job["start_s"] <= instant < job["end_s"]]
        for node in facts["cluster"]["nodes"]:
            parts = [part for job in running for part in job["nodes"] if part["node"] == node]
            for kind, capacity in (("cores", demo_plan.CORES), ("gpus", demo_plan.GPUS)):
                ids = [number for part in parts for number in part[kind]]
                assert len(ids) == len(set(ids)) <= capacity, (node, instant, kind)


def test_the_cluster_is_full_at_the_start_and_some_jobs_wait(capsys: pytest.CaptureFixture[str]) -> None:
    facts = facts_of(capsys)
    now = [job for job in facts["jobs"] if job["start_s"] == 0]
    assert sum(len(place["cores"]) for job in now for place in job["nodes"]) == 8 * demo_plan.CORES
    assert {job["outcome"] for job in facts["jobs"]} == {"allocated", "reserved", "never"}


def test_jobs_get_the_resources_that_they_request(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = {job["name"]: job for job in facts_of(capsys)["jobs"]}
    climate, train, fold = (jobs[name]["nodes"] for name in ("climate", "train", "fold"))
    assert [len(place["cores"]) for place in climate] == [4, 4, 4, 4]
    assert {int(place["node"].removeprefix("node")) // 4 for place in climate} in ({0}, {1})
    assert [(len(place["cores"]), len(place["gpus"])) for place in train] == [(4, 2), (4, 2)]
    assert [len(place["cores"]) for place in fold] == [8, 8]
    for job in jobs.values():
        assert job["start_s"] is None or job["end_s"] - job["start_s"] == job["duration_s"]


def test_the_json_has_one_shape(capsys: pytest.CaptureFixture[str]) -> None:
    facts = facts_of(capsys, "--nodes", "4")
    assert set(facts) == {"cluster", "policy", "jobs"}
    assert facts["cluster"] == {
        "nodes": ["node0", "node1", "node2", "node3"],
        "cores_per_node": demo_plan.CORES,
        "gpus_per_node": demo_plan.GPUS,
    }
    keys = {
        "job",
        "letter",
        "name",
        "request",
        "duration_s",
        "outcome",
        "start_s",
        "end_s",
        "nodes",
        "reason",
    }
    for job in facts["jobs"]:
        assert set(job) == keys
        assert (job["start_s"] is None) == (job["end_s"] is None) == (job["outcome"] == "never")
        assert bool(job["nodes"]) == (job["outcome"] != "never")
        assert (job["reason"] is None) == (job["start_s"] == 0)
        for place in job["nodes"]:
            assert set(place) == {"node", "cores", "gpus"}
        if job["reason"] is not None:
            assert set(job["reason"]) == {"clause", "steps", "blockers"}
            assert all(set(step) == {"name", "passed", "needed"} for step in job["reason"]["steps"])
            assert all(set(blocker) == {"who", "until_s"} for blocker in job["reason"]["blockers"])


def test_an_unsatisfiable_job_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    giant = facts_of(capsys)["jobs"][-1]
    assert giant["outcome"] == "never"
    assert giant["reason"]["clause"] == "needs 16 cores per slot, the largest node has 8"
    assert giant["reason"]["blockers"] == []
    text = text_of(capsys)
    section = text[text.index("Jobs that can never start") :]
    assert giant["reason"]["clause"] in section
    assert re.search(r"0 large enough +1 needed  <- fails here", section)
    assert "waiting does not help" in section


def test_every_pending_job_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = [job for job in facts_of(capsys)["jobs"] if job["outcome"] == "reserved"]
    text = " ".join(text_of(capsys).split())  # long lines are wrapped
    assert len(waiting) >= 3
    for job in waiting:
        hours, seconds = divmod(job["start_s"], 3600)
        start = f"{hours}:{seconds // 60:02}:00"
        assert f" {job['letter']} starts at {start}: {job['reason']['clause']}" in text
        assert job["reason"]["blockers"]


def test_the_drawing_shows_the_same_cores_as_the_facts(capsys: pytest.CaptureFixture[str]) -> None:
    facts = facts_of(capsys)
    rows = [
        line[13:]
        for line in text_of(capsys).splitlines()
        if re.match(r"(rack\d|     ).{8}[A-Z.]{10,}$", line)
    ]
    assert len(rows) == 8 * demo_plan.CORES // 4
    for job in facts["jobs"]:
        cores = sum(len(place["cores"]) for place in job["nodes"])
        drawn = sum(row.count(job["letter"]) for row in rows)
        assert drawn == cores // 4 * job["duration_s"] // 300  # a column is five minutes


@pytest.mark.parametrize("nodes", ["1", "8", "32"])
def test_the_drawing_fits_a_hundred_columns(capsys: pytest.CaptureFixture[str], nodes: str) -> None:
    text = text_of(capsys, "--nodes", nodes)
    assert text.isascii()
    assert max(len(line) for line in text.splitlines()) <= 100


def test_the_same_options_give_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert text_of(capsys, "--nodes", "8") == text_of(capsys, "--nodes", "8") == text_of(capsys)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--colour"],
        ["extra"],
        ["-o", "xml"],
        ["-o"],
        ["--nodes", "0"],
        ["--nodes", "33"],
        ["--nodes", "-1"],
        ["--nodes", "four"],
        ["--policy", "fastest"],
    ],
)
def test_invalid_options_are_explained_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert plan_demo.main(["--plan", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    error, hint = shown.err.splitlines()
    assert error.startswith("penstock demo: ")
    assert hint == "Try `penstock demo --help`."


@pytest.mark.parametrize("arguments", [["--nodes", "4"], ["-o", "json"], ["--policy=low"]])
def test_options_of_the_plan_are_refused_without_it(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert plan_demo.main(arguments) == 2
    assert "needs --plan" in capsys.readouterr().err


def test_help_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_demo.main(["--help"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.startswith("usage: penstock demo")


def on_a_terminal(**environment: str) -> str:
    """What the command prints where standard output is a terminal."""
    ours, theirs = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    running = subprocess.Popen(
        [PENSTOCK, "demo", "--plan"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        env={**plain, "TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": "100", **environment},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:  # How Linux says that the other end is closed.
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    assert running.wait(TIMEOUT_S) == 0
    return shown.decode().replace("\r\n", "\n")


def test_a_terminal_shows_colours_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    shown = on_a_terminal()
    assert ESCAPE.search(shown)
    bare = ESCAPE.sub("", shown)
    assert " A climate " in bare
    # Beside the bars and the axis it says the same as plain text.
    assert bare[bare.index("    job") :].split() == (text := text_of(capsys))[text.index("    job") :].split()


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_refused(capsys: pytest.CaptureFixture[str], environment: dict[str, str]) -> None:
    assert on_a_terminal(**environment) == text_of(capsys)
