"""`penstock run` and `penstock job attach`: live output, forwarded signals, the job's exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.instances import Running, tasks_of, wait_until


def only_job(instance: Running) -> str:
    """The job that a command has just submitted."""
    found: list[str] = []

    def holds() -> bool:
        found[:] = [job["id"] for job in instance.client.get("/v1/jobs", states="active")["jobs"]]
        return len(found) == 1

    wait_until(holds)
    return found[0]


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def test_output_and_errors_come_through_their_own_streams(instance: Running) -> None:
    done = instance.call("run", "sh", "-c", "echo out; echo err >&2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "err\n")


def test_output_comes_while_the_job_runs(instance: Running) -> None:
    process = instance.launch("run", "sh", "-c", "echo first; read line < /dev/zero; sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == "first\n"
    instance.ok("cancel", only_job(instance))
    assert finished(process)[0] == 143


def test_any_bytes_come_through(instance: Running) -> None:
    done = instance.call("run", "sh", "-c", r"printf '\377\000x'")
    assert os.fsencode(done.stdout) == b"\xff\x00x"


def test_a_task_on_an_exclusive_node_has_all_its_cores(instance: Running) -> None:
    script = 'echo "$PENSTOCK_CORES"'
    assert instance.ok("run", "-N1", "sh", "-c", script) == "0,1\n"
    assert instance.ok("run", "-n1", "sh", "-c", script) == "0\n"
    assert sorted(instance.ok("run", "-N1", "-n2", "-x", "sh", "-c", script).split()) == ["0", "1"]


def test_lines_can_be_labelled_with_the_rank(instance: Running) -> None:
    done = instance.call("run", "-n2", "-l", "sh", "-c", "echo a; echo b")
    assert sorted(done.stdout.splitlines()) == ["0: a", "0: b", "1: a", "1: b"]


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["true"], 0, ""),
        (["sh", "-c", "exit 3"], 3, "penstock: task(s) exited with exit code 3\n"),
        (["sh", "-c", "kill -TERM $$"], 143, "penstock: task(s) Terminated\n"),
        (["sh", "-c", "kill -KILL $$"], 137, "penstock: task(s) Killed\n"),
    ],
    ids=["0", "3", "TERM", "KILL"],
)
def test_the_exit_code_is_the_jobs(instance: Running, command: list[str], code: int, message: str) -> None:
    done = instance.call("run", *command)
    assert (done.returncode, done.stderr) == (code, message)


def test_the_largest_code_of_all_tasks_counts(instance: Running) -> None:
    assert instance.call("run", "-n3", "sh", "-c", "exit $FLUX_TASK_RANK").returncode == 2


def test_a_command_that_does_not_exist_is_127(instance: Running) -> None:
    done = instance.call("run", "no-such-command")
    assert done.returncode == 127
    assert re.search(r"start failed: no-such-command: No such file or directory", done.stderr)


def test_a_command_that_is_not_executable_is_126(instance: Running, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a program\n")
    done = instance.call("run", str(tmp_path / "text"))
    assert done.returncode == 126
    assert f"{tmp_path}/text: Permission denied" in done.stderr


def test_a_time_limit_is_142(instance: Running) -> None:
    done = instance.call("run", "-t1s", "sleep", "60")
    assert done.returncode == 142
    assert "type=timeout severity=0 resource allocation expired" in done.stderr


def test_a_cancelled_job_is_143(instance: Running) -> None:
    process = instance.launch("run", "sleep", "60")
    job = only_job(instance)
    instance.started(job)
    instance.ok("cancel", "-m", "not today", job)
    code, _, err = finished(process)
    assert code == 143
    assert f"job.exception {job} type=cancel severity=0 not today" in err


def test_a_job_that_is_cancelled_before_it_runs_is_1(instance: Running) -> None:
    process = instance.launch("run", "--urgency=hold", "true")
    instance.ok("cancel", only_job(instance))
    assert finished(process)[0] == 1


@pytest.mark.parametrize("name", ["TERM", "HUP", "ALRM", "USR1", "USR2"])
def test_signals_are_passed_on(instance: Running, name: str) -> None:
    trap = f"trap 'echo got {name}; exit 7' {name}; echo ready; while :; do sleep 0.02; done"
    process = instance.launch("run", "sh", "-c", trap)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(getattr(signal, f"SIG{name}"))
    code, out, _ = finished(process)
    assert (code, out) == (7, f"got {name}\n")


def test_one_ctrl_c_warns_and_the_second_cancels(instance: Running) -> None:
    terminal = instance.terminal("run", "sh", "-c", "echo ready; sleep 60")
    terminal.until("ready")
    job = only_job(instance)
    terminal.press("\x03")
    terminal.until("one more ctrl-C within 2s to cancel or ctrl-Z to detach")
    assert instance.job(job)["state"] == "RUN"
    terminal.press("\x03")
    screen = terminal.end()
    assert screen.code == 143
    assert f"job.exception {job} type=cancel severity=0 interrupted by ctrl-C" in screen.text
    assert not tasks_of(instance, job)


def test_ctrl_z_after_ctrl_c_detaches_from_the_job(instance: Running) -> None:
    terminal = instance.terminal("run", "sh", "-c", "echo ready; sleep 60")
    terminal.until("ready")
    terminal.press("\x03")
    terminal.until("one more ctrl-C")
    terminal.press("\x1a")
    screen = terminal.end()
    assert screen.code == 0
    assert "detaching..." in screen.text
    assert instance.job(only_job(instance))["state"] == "RUN"


def test_a_pending_job_shows_its_reason_and_start(instance: Running) -> None:
    first = instance.submit("-N4", "-t1m", "sleep", "60")
    terminal = instance.terminal("run", "-N4", "-t1m", "echo", "at last")
    terminal.until("starts in about ")
    instance.ok("cancel", first)
    screen = terminal.end()
    assert (screen.code, screen.text) == (0, "at last\n" * 4)  # The line is gone when the job runs.


def test_attach_shows_everything_from_the_beginning(instance: Running) -> None:
    job = instance.submit("sh", "-c", "echo one; sleep 0.5; echo two; exit 4")
    done = instance.call("job", "attach", job)
    assert (done.returncode, done.stdout) == (4, "one\ntwo\n")
    again = instance.call("job", "attach", "-l", job)
    assert (again.returncode, again.stdout) == (4, "0: one\n0: two\n")


def test_two_can_attach_to_one_job(instance: Running) -> None:
    job = instance.submit("sh", "-c", "sleep 0.5; echo both")
    readers = [instance.launch("job", "attach", job) for _ in range(2)]
    assert [finished(reader)[:2] for reader in readers] == [(0, "both\n")] * 2


def test_much_output_is_complete_and_in_order(instance: Running) -> None:
    done = instance.call("run", "seq", "100000")
    assert done.stdout == "".join(f"{number}\n" for number in range(1, 100_001))


def test_run_starts_one_job_only(instance: Running) -> None:
    assert "run starts one job" in instance.refused("run", "--cc=1-2", "true", code=2)


# submit --wait and job kill


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["true"], 0, ""),
        (["sh", "-c", "exit 3"], 3, "Exit 3"),
        (["sh", "-c", "kill -KILL $$"], 137, "Killed"),
        (["no-such-command"], 127, "command not found"),
    ],
    ids=["0", "3", "KILL", "127"],
)
def test_submit_waits_for_the_job_and_exits_with_its_code(
    instance: Running, command: list[str], code: int, message: str
) -> None:
    done = instance.call("submit", "--wait", *command)
    job = done.stdout.strip()
    assert done.returncode == code
    assert done.stderr == (f"penstock: {job}: {message}\n" if code else "")
    assert instance.job(job)["state"] == "INACTIVE"
    assert instance.call("job", "wait", job).returncode == code


def test_the_largest_code_of_all_jobs_counts(instance: Running) -> None:
    done = instance.call("submit", "--wait", "--cc=0-3", "sh", "-c", "exit {cc}")
    assert (done.returncode, len(done.stdout.splitlines())) == (3, 4)
    shown = instance.call("submit", "--wait", "-o", "json", "--cc=0-1", "sh", "-c", "exit {cc}")
    assert (shown.returncode, shown.stderr) == (1, "")
    assert [job["returncode"] for job in json.loads(shown.stdout)["jobs"]] == [0, 1]


def test_a_signal_is_sent_to_all_tasks_of_running_jobs(instance: Running, tmp_path: Path) -> None:
    trap = f"trap 'echo got' USR1; trap 'exit 5' TERM; echo > {tmp_path}/{{cc}}.$FLUX_TASK_RANK; "
    jobs = instance.ok(
        "submit", "--cc=1-2", "-n2", "sh", "-c", f"{trap} while :; do sleep 0.02; done"
    ).split()
    wait_until(lambda: len(list(tmp_path.iterdir())) == 4)
    assert instance.ok("job", "kill", "-s", "usr1", *jobs) == ""
    for job in jobs:
        reader = instance.launch("job", "attach", job)
        assert reader.stdout is not None
        assert [reader.stdout.readline() for _ in range(2)] == ["got\n"] * 2  # The job goes on.
        instance.ok("job", "kill", job)
        assert finished(reader)[0] == 5


def test_only_running_jobs_can_be_signaled(instance: Running) -> None:
    held = instance.submit("--urgency=hold", "true")
    assert instance.refused("job", "kill", held, code=1) == f"penstock: {held} is not running\n"
    both = instance.refused("job", "kill", held, "f1", code=1)
    assert both.splitlines()[0] == f"penstock: {held} is not running"
    assert len(both.splitlines()) == 2
