"""`penstock submit`: what every option does to a real job."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from tests.e2e.instances import Running, kill_supervisors, wait_until

SHOW = ["sh", "-c", 'echo "$FLUX_TASK_RANK $FLUX_TASK_LOCAL_ID $FLUX_JOB_SIZE $FLUX_JOB_NNODES"']


def test_ids_are_printed_one_per_line_as_f58(instance: Running) -> None:
    text = instance.ok("submit", "--cc=0-2", "true")
    ids = text.splitlines()
    assert len(set(ids)) == 3
    assert all(re.fullmatch("ƒ[1-9A-HJ-NP-Za-km-z]+", job) for job in ids)
    assert [job["result"] for job in instance.end(*ids)] == ["COMPLETED"] * 3


@pytest.mark.parametrize(
    ("options", "ntasks", "nnodes", "ncores"),
    [
        (["-n3"], 3, 2, 3),
        (["-n2", "-c2"], 2, 2, 4),
        (["-N2"], 2, 2, 4),
        (["-N2", "-n4"], 4, 2, 4),
        (["-N3", "-n4"], 4, 3, 6),
        (["-N2", "-n2", "-x"], 2, 2, 4),
        (["-N2", "--tasks-per-node=3"], 6, 2, 4),
        (["--cores=5"], 5, 3, 5),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_allocation_matches_the_request(
    instance: Running, options: list[str], ntasks: int, nnodes: int, ncores: int
) -> None:
    job = instance.submit(*options, *SHOW)
    (ended,) = instance.end(job)
    assert ended["result"] == "COMPLETED"
    assert (ended["ntasks"], ended["nnodes"], ended["ncores"]) == (ntasks, nnodes, ncores)
    lines = sorted(instance.output(job).splitlines(), key=lambda line: int(line.split()[0]))
    assert [int(line.split()[0]) for line in lines] == list(range(ntasks))
    assert {tuple(line.split()[2:]) for line in lines} == {(str(ntasks), str(nnodes))}


def test_tasks_get_the_environment_of_flux(instance: Running) -> None:
    job = instance.submit("-N2", "-n4", "--env=COLOUR=blue", "--env-remove=TZ", "env")
    instance.end(job)
    first = {}
    for line in instance.output(job).splitlines():
        name, _, value = line.partition("=")
        first.setdefault(name, value)
    assert first["FLUX_JOB_ID"] == job
    assert first["FLUX_JOB_SIZE"] == "4"
    assert first["FLUX_JOB_NNODES"] == "2"
    assert first["FLUX_TASK_RANK"] == "0"
    assert first["FLUX_TASK_LOCAL_ID"] == "0"
    assert "jobtmp-0-" in first["FLUX_JOB_TMPDIR"]
    assert not Path(first["FLUX_JOB_TMPDIR"]).exists()  # It is removed at the end.
    assert first["CUDA_VISIBLE_DEVICES"] == "-1"
    assert first["COLOUR"] == "blue"
    assert "TZ" not in first
    assert "FLUX_JOB_CC" not in first


def test_copies_know_their_number(instance: Running) -> None:
    ids = instance.ok("submit", "--cc=4-5", "--name=copy-{cc}", "sh", "-c", "echo {cc} $FLUX_JOB_CC").split()
    ended = instance.end(*ids)
    assert [job["name"] for job in ended] == ["copy-4", "copy-5"]
    assert [instance.output(job) for job in ids] == ["4 4\n", "5 5\n"]
    (quiet,) = instance.ok("submit", "--bcc=7", "sh", "-c", "echo {cc}-$FLUX_JOB_CC-").split()
    instance.end(quiet)
    assert instance.output(quiet) == "7--\n"


def test_output_is_written_to_the_given_files(instance: Running, tmp_path: Path) -> None:
    job = instance.submit(
        *("-n2", "--name=writer", f"--cwd={tmp_path}", "--output={{name}}-{{id}}.{{taskid}}.out"),
        *("--error=err-{{id.dec}}.txt", "sh", "-c", "echo out $FLUX_TASK_RANK; echo bad >&2"),
    )
    (ended,) = instance.end(job)
    assert (tmp_path / f"writer-{job}.0.out").read_text() == "out 0\n"
    assert (tmp_path / f"writer-{job}.1.out").read_text() == "out 1\n"
    assert (tmp_path / f"err-{ended['id_dec']}.txt").read_text() == "bad\nbad\n"


def test_the_working_directory_is_the_submitters_or_the_given_one(instance: Running, tmp_path: Path) -> None:
    here, there = instance.submit("pwd"), instance.submit(f"--cwd={tmp_path}", "pwd")
    instance.end(here, there)
    assert instance.output(here) == f"{instance.directory}\n"
    assert instance.output(there) == f"{tmp_path}\n"


def test_labels_go_before_each_line_of_a_file(instance: Running, tmp_path: Path) -> None:
    job = instance.submit("-n2", "-l", f"--output={tmp_path}/all", "sh", "-c", "echo a; echo b")
    instance.end(job)
    assert sorted((tmp_path / "all").read_text().splitlines()) == ["0: a", "0: b", "1: a", "1: b"]


def test_a_time_limit_ends_a_job_after_a_warning_signal(instance: Running) -> None:
    trap = "trap 'echo warned' USR1; trap 'echo over; exit 9' ALRM; while :; do sleep 0.05; done"
    job = instance.submit("-t", "2s", "--signal=USR1@1s", "sh", "-c", trap)
    (ended,) = instance.end(job)
    assert ended["result"] == "TIMEOUT"
    assert instance.output(job) == "warned\nover\n"
    assert 1.9 <= ended["t_inactive"] - ended["t_start"] < 6.0
    assert ended["exception"]["note"] == "resource allocation expired"


def test_nodes_can_be_chosen_by_rank_and_by_name(instance: Running) -> None:
    ids = [
        instance.submit("--requires=rank:3", "true"),
        instance.submit("--requires=host:node[1-2]", "true"),
        instance.submit("--requires=-host:node[0-2]", "true"),
    ]
    nodes = [job["nodelist"] for job in instance.end(*ids)]
    assert nodes[0] == nodes[2] == "node3"
    assert nodes[1] in ("node1", "node2")


def test_a_jobspec_can_be_written_out_and_given_back(instance: Running, tmp_path: Path) -> None:
    spec = json.loads(instance.ok("submit", "--dry-run", "-n2", "echo", "from a file"))
    assert instance.ok("jobs", "-n") == ""  # Nothing was submitted.
    (tmp_path / "job.json").write_text(json.dumps(spec))
    job = instance.submit("--jobspec", str(tmp_path / "job.json"))
    instance.end(job)
    assert instance.output(job) == "from a file\n" * 2
    done = instance.call("submit", "--jobspec", "-", stdin=json.dumps(spec))
    assert done.returncode == 0, done


def test_the_more_urgent_job_starts_first(instance: Running) -> None:
    blocker = instance.submit("-N4", "-t1m", "sleep", "60")
    low = instance.submit("-N4", "-t1m", "--urgency=1", "true")
    high = instance.submit("-N4", "-t1m", "--urgency=31", "true")
    instance.ok("cancel", blocker)
    first, second = instance.end(high, low)
    assert first["t_run"] < second["t_run"]


def test_a_held_job_waits_for_its_release(instance: Running) -> None:
    job = instance.submit("--urgency=hold", "true")
    assert "held" in instance.ok("jobs", job)
    assert instance.job(job)["reason"] == f"held; `penstock release {job}` releases it"
    instance.ok("release", job)
    assert instance.end(job)[0]["result"] == "COMPLETED"


def test_a_begin_time_is_waited_for(instance: Running) -> None:
    began = time.time()
    job = instance.submit("--begin-time=+1.5s", "true")
    assert "begin@" in instance.ok("jobs", job)
    (ended,) = instance.end(job)
    assert ended["t_run"] >= began + 1.4


def test_a_job_before_its_begin_time_says_that_time(instance: Running) -> None:
    job = instance.submit("--begin-time=2031-05-06T07:08", "true")
    reason = "starts no earlier than its begin time, 2031-05-06 07:08"
    assert instance.ok("job", "why", job) == f"{job}: {reason}\n"
    assert instance.ok("job", "when", job) == f"{job} {reason}\n"
    assert instance.ok("jobs", "-no", "{reason}", job) == f"{reason}\n"
    assert reason in instance.ok("job", "show", job)
    instance.ok("cancel", job)


def test_dependencies_of_each_scheme(instance: Running) -> None:
    bad = instance.submit("--urgency=hold", "false")
    good = instance.submit("--urgency=hold", "sleep", "0.3")
    waiting = {
        scheme: instance.submit(f"--dependency={scheme}:{target}", f"--name={scheme}", "true")
        for scheme, target in (
            ("afterstart", good), ("afterok", good), ("afterany", bad), ("afternotok", bad),
        )
    }  # fmt: skip
    spoilt = instance.submit(f"--dependency=afterok:{bad}", "true")
    spared = instance.submit(f"--dependency=afternotok:{good}", "true")
    shown = instance.ok("jobs", "-no", "{name} {state} {contextual_info}")
    assert f"afterok DEPEND depends:after-success={good}" in shown
    assert f"afternotok DEPEND depends:after-failure={bad}" in shown
    instance.ok("release", good, bad)
    done = {scheme: instance.end(job)[0] for scheme, job in waiting.items()}
    assert {scheme: job["result"] for scheme, job in done.items()} == dict.fromkeys(waiting, "COMPLETED")
    over = instance.job(good)
    assert over["t_run"] < done["afterstart"]["t_run"] < over["t_inactive"] <= done["afterok"]["t_run"]
    for job, about in ((spoilt, f"after-success={bad}"), (spared, f"after-failure={good}")):
        (ended,) = instance.end(job)
        assert (ended["result"], ended["exception"]["type"]) == ("FAILED", "dependency")
        assert ended["exception"]["note"] == f"dependency {about} can never be satisfied"


def test_an_exception_of_the_target_satisfies_afterexcept(instance: Running) -> None:
    target = instance.submit("sleep", "60")
    waiting = instance.submit(f"--dependency=afterexcept:{target}", "true")
    instance.started(target)
    instance.ok("cancel", target)
    assert instance.end(waiting)[0]["result"] == "COMPLETED"


def test_singletons_of_one_name_run_one_after_the_other(instance: Running) -> None:
    ids = instance.ok("submit", "--cc=1-3", "--name=alone", "--dependency=singleton", "sleep", "0.2").split()
    first, second, third = instance.end(*ids)
    assert first["t_inactive"] <= second["t_run"]
    assert second["t_inactive"] <= third["t_run"]


def test_a_dependency_on_an_inactive_job_is_decided_at_once(instance: Running) -> None:
    good, bad = instance.submit("true"), instance.submit("false")
    instance.end(good, bad)
    after = instance.submit(f"--dependency=afterok:{good}", f"--dependency=afternotok:{bad}", "true")
    assert instance.end(after)[0]["result"] == "COMPLETED"
    message = instance.refused("submit", f"--dependency=afterok:{bad}", "true", code=1)
    assert f"--dependency afterok:{bad}: the job failed or was canceled" in message


def test_a_job_whose_task_was_lost_is_requeued_if_allowed(instance: Running) -> None:
    again = instance.submit("--requeue=always", "sleep", "60")
    never = instance.submit("sleep", "60")
    for job in (again, never):
        instance.started(job)
        kill_supervisors(instance, job)
    (ended,) = instance.end(never)
    assert (ended["result"], ended["attempt"]) == ("FAILED", 1)
    wait_until(lambda: instance.job(again)["attempt"] == 2)
    shown = instance.started(again)
    assert (shown["state"], shown["requeue"]) == ("RUN", "always")
    assert "requeue attempt=2" in instance.ok("job", "eventlog", again)


def test_a_job_that_fails_by_itself_is_not_requeued(instance: Running) -> None:
    job = instance.submit("--requeue=always", "sh", "-c", "kill -9 $$")
    (ended,) = instance.end(job)
    assert (ended["result"], ended["attempt"], ended["waitstatus"]) == ("FAILED", 1, 137 << 8)


def test_a_queue_applies_its_default_and_maximum_duration(instance: Running) -> None:
    job = instance.submit("-q", "debug", "true")
    assert instance.job(job)["duration_s"] == 300
    message = instance.refused("submit", "-q", "debug", "-t2h", "true", code=2)
    assert "1h" in message


def test_json_names_the_jobs(instance: Running) -> None:
    (job,) = instance.json("submit", "-o", "json", "true")["jobs"]
    assert instance.end(job["id"])[0]["result"] == "COMPLETED"
