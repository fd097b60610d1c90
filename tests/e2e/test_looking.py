"""Commands that show state: `jobs`, `job show|eventlog|why|when|wait`, `timeline`, `completion`."""

from __future__ import annotations

import json
import re
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.e2e.instances import Running


def names(text: str) -> list[str]:
    return text.split()


_made: dict[str, str] = {}  # by this worker; used again by every test that finds it as it was


@pytest.fixture
def instance(shared: Running) -> Running:
    return shared


@pytest.fixture
def mixed(instance: Running) -> dict[str, str]:
    """Jobs in every state, by name."""
    active = {job["id"] for job in instance.client.get("/v1/jobs", states="active")["jobs"]}
    if not _made or active != {_made[name] for name in ("runs", "gang", "held", "after", "debug")}:
        instance.clear()
        _made.update(_one_of_each(instance))
    return _made


def _one_of_each(instance: Running) -> dict[str, str]:
    made = {
        "good": instance.submit("--name=good", "true"),
        "bad": instance.submit("--name=bad", "sh", "-c", "exit 3"),
        "late": instance.submit("--name=late", "-t1s", "sleep", "60"),
    }
    instance.end(*made.values())
    made["runs"] = instance.submit("--name=runs", "-N2", "-t5m", "sleep", "600")
    instance.started(made["runs"])
    made["gang"] = instance.submit("--name=gang", "-N4", "-t5m", "true")
    made["held"] = instance.submit("--name=held", "--urgency=hold", "true")
    made["after"] = instance.submit("--name=after", f"--dependency=afterok:{made['gang']}", "true")
    made["debug"] = instance.submit("--name=debug", "-q", "debug", "--urgency=hold", "true")
    return made


def test_jobs_are_filtered_by_state_result_queue_name_and_id(
    instance: Running, mixed: dict[str, str]
) -> None:
    def listed(*options: str) -> set[str]:
        return set(instance.ok("jobs", "-no", "{name}", *options).split()) & set(mixed)

    began = instance.job(mixed["good"])["t_submit"]
    assert listed() == {"runs", "gang", "held", "after", "debug"}
    assert listed("-a") == set(mixed)
    assert listed("-f", "running") == {"runs"}
    assert listed("-f", "pending") == {"gang", "held", "after", "debug"}
    assert listed("-f", "depend") == {"after"}
    assert listed("-f", "failed,timeout") == {"bad", "late"}
    assert listed("-f", "completed,run", f"--since={time.strftime('%FT%T', time.localtime(began - 1))}") == {
        "good",
        "runs",
    }
    assert listed("-q", "debug") == {"debug"}
    assert listed("-a", "--name", "late") == {"late"}
    assert listed(mixed["bad"], mixed["gang"]) == {"bad", "gang"}
    assert listed("-u", "nobody-else") == set()
    assert len(instance.ok("jobs", "-n", "-c", "2").splitlines()) == 2
    assert names(instance.ok("jobs", "-no", "{name}", "--sort=-name"))[:2] == ["runs", "held"]


def test_the_default_table_reads_as_in_flux(instance: Running, mixed: dict[str, str]) -> None:
    lines = instance.ok("jobs", *mixed.values()).splitlines()
    assert re.sub(" +", " ", lines[0]) == " JOBID QUEUE USER NAME ST NTASKS NNODES TIME INFO"
    rows = {line.split()[3]: line.split() for line in lines[1:]}
    assert rows["runs"][4:7] == ["R", "2", "2"]
    assert rows["runs"][8] == "node[0-1]"
    assert rows["gang"][4:8] == ["S", "4", "4", "5m"]
    assert rows["gang"][8].startswith("eta:")
    assert rows["held"][8] == "held"
    assert rows["after"][8] == f"depends:after-success={mixed['gang']}"
    assert [rows[name][4] for name in ("good", "bad", "late")] == ["CD", "F", "TO"]


def test_other_formats_and_fields(instance: Running, mixed: dict[str, str]) -> None:
    reasons = dict(
        line.split(maxsplit=1)
        for line in instance.ok("jobs", "-no", "{name} {inactive_reason}", *mixed.values()).splitlines()
        if len(line.split()) > 1
    )
    assert (reasons["bad"], reasons["late"], reasons["good"]) == ("Exit 3", "Timeout", "Exit 0")
    table = instance.ok("jobs", "-o", "why")
    assert "held by " + mixed["runs"] in table
    assert f"held; `penstock release {mixed['held']}` releases it" in table
    assert instance.ok("jobs", "-no", "{id.dec}", mixed["runs"]).strip().isdecimal()
    for preset in ("long", "deps", "endreason", "why"):
        assert len(instance.ok("jobs", "-a", "-o", preset).splitlines()) > len(mixed)


def test_json_has_all_fields(instance: Running, mixed: dict[str, str]) -> None:
    found = {job["name"]: job for job in instance.json("jobs", *mixed.values(), "-o", "json")["jobs"]}
    gang = found["gang"]
    assert gang["forecast"]["kind"] == "reservation"
    assert gang["forecast"]["start_at"] == pytest.approx(found["runs"]["expiration"], abs=3)
    assert gang["promise"]["first"] is not None
    assert gang["jobs_ahead"] == 0
    assert found["bad"]["returncode"] == 3
    assert found["late"]["exception"]["type"] == "timeout"
    assert found["runs"]["ranks"] == "0-1"


def test_show_prints_all_fields_of_a_job(instance: Running, mixed: dict[str, str]) -> None:
    shown = instance.ok("job", "show", mixed["gang"])
    for text in ("gang", "SCHED", "4 tasks, 4 cores, 4 nodes", "5m", "(reserved)", "held by"):
        assert text in shown
    shown = instance.ok("job", "show", mixed["late"])
    assert "timeout: resource allocation expired" in shown
    assert "1 task, 1 core, 1 node" in shown
    document = instance.json("job", "show", "-o", "json", mixed["runs"])
    assert document["R"]["execution"]["nodelist"] == ["node[0-1]"]
    assert document["jobspec"]["tasks"][0]["command"] == ["sleep", "600"]
    assert [member["node"] for member in document["members"]] == ["node0", "node1"]


def test_the_eventlog_has_the_events_of_flux_in_order(instance: Running, mixed: dict[str, str]) -> None:
    lines = instance.ok("job", "eventlog", mixed["good"]).splitlines()
    events = [line.split()[1] for line in lines]
    assert " ".join(events) == "submit validate depend priority alloc start finish release free clean"
    times = [float(line.split()[0]) for line in lines]
    assert times == sorted(times)
    late = [
        json.loads(line) for line in instance.ok("job", "eventlog", "-f", "json", mixed["late"]).splitlines()
    ]
    (exception,) = [event for event in late if event["name"] == "exception"]
    assert exception["context"]["type"] == "timeout"
    offsets = instance.ok("job", "eventlog", "-T", "offset", mixed["late"]).splitlines()
    assert offsets[0].startswith("0.000000 submit")


def test_an_eventlog_can_be_followed_to_the_end(instance: Running) -> None:
    job = instance.submit("-t5s", "sleep", "0.4")
    events = [line.split()[1] for line in instance.ok("job", "eventlog", "-F", job).splitlines()]
    assert (events[0], events[-1]) == ("submit", "clean")


def test_why_names_the_missing_resources_and_the_jobs_that_hold_them(
    instance: Running, mixed: dict[str, str]
) -> None:
    shown = instance.ok("job", "why", mixed["gang"])
    assert f"{mixed['gang']}: needs 4 idle nodes with 1 core each, 2 of 4 qualify" in shown
    assert f"; held by {mixed['runs']} (runs, ends " in shown
    assert shown.count("2 found, 4 needed") == 2
    assert shown.count("<- too few") == 1  # Only the stage that fails first is marked.
    assert "enough free  2 found, 4 needed  <- too few" in shown
    held = mixed["held"]
    assert instance.ok("job", "why", held) == f"{held}: held; `penstock release {held}` releases it\n"
    assert f": depends on after-success={mixed['gang']}" in instance.ok("job", "why", mixed["after"])
    assert instance.ok("job", "why", mixed["runs"]) == f"{mixed['runs']}: not pending: it is running\n"
    assert "has ended: FAILED" in instance.ok("job", "why", mixed["bad"])
    document = instance.json("job", "why", "-o", "json", mixed["gang"])
    assert document["kind"] == "resources"
    assert [blocker["job"] for blocker in document["blockers"]] == [mixed["runs"]]


def test_when_shows_the_promise_before_and_the_start_after(instance: Running, mixed: dict[str, str]) -> None:
    shown = instance.ok("job", "when", mixed["gang"])
    assert "(reserved)" in shown
    assert "first promise" in shown
    assert "started at" in instance.ok("job", "when", mixed["runs"])
    instance.ok("cancel", mixed["held"])
    assert "never started" in instance.ok("job", "when", mixed["held"])


def test_wait_ends_with_the_jobs_and_fails_with_them(instance: Running, mixed: dict[str, str]) -> None:
    assert instance.ok("job", "wait", mixed["good"]) == ""
    message = instance.refused("job", "wait", mixed["good"], mixed["bad"], code=3)
    assert f"{mixed['bad']}: Exit 3" in message
    message = instance.refused("job", "wait", "-t", "0.2s", mixed["runs"], code=1)
    assert "still RUN after 0.2s" in message
    slow = instance.submit("--requires=rank:2", "-t5s", "sleep", "0.5")
    assert instance.ok("job", "wait", slow) == ""
    assert instance.job(slow)["state"] == "INACTIVE"


def test_the_timeline_shows_running_and_planned_jobs(
    instance: Running, mixed: dict[str, str], tmp_path: Path
) -> None:
    text = instance.ok("timeline")
    for node in ("node0", "node1", "node2", "node3"):
        assert f"\n{node} " in text
    assert "### running" in text
    assert "=== reserved" in text
    assert mixed["gang"] in text
    picture = tmp_path / "plan.svg"
    assert instance.ok("timeline", "--svg", str(picture)) == ""
    root = ElementTree.parse(picture).getroot()
    assert root.tag.endswith("svg")
    assert "gang" in picture.read_text()
    document = instance.json("timeline", "-o", "json")
    kinds = {span["job"]: span["kind"] for node in document["nodes"] for span in node["spans"]}
    assert (kinds[mixed["runs"]], kinds[mixed["gang"]]) == ("running", "reserved")


def test_cancel_by_id_by_state_and_all(instance: Running, mixed: dict[str, str]) -> None:
    assert instance.ok("cancel", mixed["held"], mixed["debug"]) == ""
    message = instance.refused("cancel", mixed["good"], code=1)
    assert "job is inactive" in message
    done = instance.call("cancel", "--all", "--states=pending", "--wait")
    assert (done.returncode, done.stderr) == (0, "penstock: Canceled 2 jobs (0 errors)\n")
    assert names(instance.ok("jobs", "-no", "{name}")) == ["runs"]
    done = instance.call("cancel", "--all", "--wait")
    assert "Canceled 1 job (0 errors)" in done.stderr
    assert instance.ok("jobs", "-n") == ""


def test_hold_release_and_urgency(instance: Running, mixed: dict[str, str]) -> None:
    gang = mixed["gang"]
    assert instance.ok("hold", gang) == ""
    assert "held" in instance.ok("jobs", gang)
    assert instance.ok("urgency", "-v", gang, "20") == "old urgency: 0\n"
    assert instance.job(gang)["priority"] == 20
    assert instance.ok("urgency", "-v", gang, "expedite") == "job expedited\n"
    assert instance.ok("release", gang) == ""
    assert instance.job(gang)["urgency"] == 16
    message = instance.refused("urgency", mixed["runs"], "3", code=1)
    assert "urgency cannot be changed once resources are allocated" in message


def test_ids_can_be_typed_in_every_form(instance: Running, mixed: dict[str, str]) -> None:
    job = mixed["runs"]
    for form in ("dec", "hex", "dothex", "f58", "f58plain", "kvs"):
        typed = instance.ok("job", "id", f"--to={form}", job).strip()
        assert instance.job(job)["id"] == instance.json("job", "show", "-o", "json", typed)["id"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_command(instance: Running, shell: str) -> None:
    assert "_PENSTOCK_COMPLETE" in instance.ok("completion", shell)


def test_completion_completes(instance: Running) -> None:
    words = instance.ok(
        "job", "--help", _PENSTOCK_COMPLETE="bash_complete", COMP_WORDS="penstock job w", COMP_CWORD="2"
    )
    assert {line.split(",")[1] for line in words.splitlines()} == {"wait", "when", "why"}


def test_the_bash_script_is_accepted_by_bash(instance: Running) -> None:
    script = instance.ok("completion", "bash")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
