"""Standard input of `penstock run`, and files as the input of tasks."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
from pathlib import Path

import pytest

from penstock.agent.input_spool import SEGMENT_BYTES, WINDOW_BYTES
from penstock.cli.client import RequestRefused
from penstock.cli.waiting import exit_code
from penstock.model.jobid import parse_jobid
from tests.e2e.instances import PENSTOCK, TIMEOUT_S, Running, running_instance, wait_until
from tests.e2e.test_running import only_job

ANY_BYTES = random.Random(7).randbytes(300_000)


def run(instance: Running, data: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [PENSTOCK, "run", *arguments],
        input=data,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=instance.directory,
        env=instance.environment(),
    )


def launch(instance: Running, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [PENSTOCK, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        cwd=instance.directory,
        env=instance.environment(),
        start_new_session=True,
    )


def stored_bytes(instance: Running, job: str) -> int:
    spool = instance.state / "output" / str(parse_jobid(job)) / "input"
    return sum(path.stat().st_size for path in spool.iterdir()) if spool.exists() else 0


def test_any_bytes_reach_the_task_up_to_the_end(instance: Running) -> None:
    done = run(instance, ANY_BYTES, "cat")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == ANY_BYTES


def test_every_task_reads_the_whole_input(instance: Running) -> None:
    done = run(instance, ANY_BYTES, "-n3", "sha256sum")
    digest = hashlib.sha256(ANY_BYTES).hexdigest().encode()
    assert [line.split()[0] for line in done.stdout.splitlines()] == [digest] * 3


def test_only_the_chosen_ranks_read_it(instance: Running) -> None:
    done = run(instance, b"one\n", "-n3", "--input=1", "sh", "-c", "echo $FLUX_TASK_RANK:$(cat)")
    assert sorted(done.stdout.splitlines()) == [b"0:", b"1:one", b"2:"]


@pytest.mark.parametrize("arguments", [["--input=none"], ["--input=/dev/null"]], ids=["none", "null"])
def test_tasks_can_be_run_without_input(instance: Running, arguments: list[str]) -> None:
    done = run(instance, b"not for the task\n", *arguments, "cat")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_input_is_typed_while_the_job_runs(instance: Running) -> None:
    process = launch(instance, "run", "sh", "-c", "while read line; do echo got $line; done")
    assert process.stdin is not None
    assert process.stdout is not None
    for word in (b"one", b"two"):
        process.stdin.write(word + b"\n")
        assert process.stdout.readline() == b"got " + word + b"\n"
    process.stdin.close()
    assert process.wait(TIMEOUT_S) == 0


def test_input_from_a_terminal_ends_with_ctrl_d(instance: Running) -> None:
    terminal = instance.terminal("run", "sh", "-c", "read line; echo got $line; cat; echo over")
    terminal.press("hello\n")
    terminal.until("got hello")
    terminal.press("\x04")
    screen = terminal.end()
    assert (screen.code, screen.text.splitlines()[-1]) == (0, "over")


def test_no_more_is_stored_than_the_window_while_the_task_does_not_read(
    instance: Running, tmp_path: Path
) -> None:
    data = ANY_BYTES * (3 * WINDOW_BYTES // len(ANY_BYTES))
    command = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; sha256sum"
    process = launch(instance, "run", "sh", "-c", command)
    assert process.stdin is not None
    feeder = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=process.stdin)
    process.stdin.close()
    process.stdin = None
    assert feeder.stdin is not None
    os.set_blocking(feeder.stdin.fileno(), True)
    job = only_job(instance)
    sent = 0
    while sent < WINDOW_BYTES:
        sent += os.write(feeder.stdin.fileno(), data[sent : sent + 65536])
    # The pipe of the task and those on the way hold something as well.
    wait_until(lambda: stored_bytes(instance, job) >= WINDOW_BYTES - 4 * SEGMENT_BYTES)
    (tmp_path / "go").touch()
    feeder.communicate(data[sent:], timeout=TIMEOUT_S)
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert out.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert stored_bytes(instance, job) <= WINDOW_BYTES


def test_a_task_that_stops_reading_does_not_block_the_command(instance: Running) -> None:
    done = run(instance, ANY_BYTES * 40, "head", "-c", "3")
    assert (done.returncode, done.stdout) == (0, ANY_BYTES[:3])
    both = run(instance, ANY_BYTES * 40, "-n2", "sh", "-c", "[ $FLUX_TASK_RANK = 0 ] || wc -c")
    assert both.stdout.split() == [str(len(ANY_BYTES) * 40).encode()]


def test_what_nobody_reads_any_more_is_not_stored(instance: Running, tmp_path: Path) -> None:
    command = f"[ $FLUX_TASK_RANK = 0 ] || while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    process = launch(instance, "run", "-n2", "--input=0", "sh", "-c", command)
    assert process.stdin is not None
    job = only_job(instance)
    for _ in range(3 * WINDOW_BYTES // len(ANY_BYTES)):
        process.stdin.write(ANY_BYTES)
    assert stored_bytes(instance, job) <= WINDOW_BYTES
    (tmp_path / "go").touch()
    process.stdin.close()
    assert process.wait(TIMEOUT_S) == 0


def test_the_rest_can_be_sent_after_the_command_was_killed(instance: Running) -> None:
    process = launch(instance, "run", "--job-name=reader", "cat")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"one\n")
    assert process.stdout.readline() == b"one\n"
    process.kill()
    process.wait()
    (owner,) = {job["owner"] for job in instance.client.get("/v1/jobs")["jobs"]}
    again = launch(instance, "job", "attach", "--stdin", f"{owner}/reader")
    out, err = again.communicate(b"two\n", timeout=TIMEOUT_S)
    assert (again.returncode, out, err) == (0, b"one\ntwo\n", b"")


def test_input_survives_a_restart_of_the_instance() -> None:
    with running_instance() as instance:
        process = launch(instance, "run", "cat")
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\n")
        assert process.stdout.readline() == b"one\n"
        instance.ok("stop", "--keep-tasks")
        process.stdin.write(b"two\n")
        assert instance.call("start").returncode == 0
        assert process.stdout.readline() == b"two\n"
        process.stdin.write(ANY_BYTES)
        process.stdin.close()
        assert process.stdout.read() == ANY_BYTES
        assert process.wait(TIMEOUT_S) == 0


def test_a_repeated_request_is_stored_once_and_a_gap_is_refused(instance: Running) -> None:
    process = launch(instance, "run", "sh", "-c", "cat; sleep 60")
    job = only_job(instance)
    path = f"/v1/jobs/{job.replace('ƒ', 'f')}/input"
    for offset, data, size in ((0, "YWJj", 3), (0, "YWJj", 3), (1, "YmNk", 4)):  # abc, abc, bcd
        assert instance.client.post(path, {"offset": offset, "data": data}) == {"size": size, "ended": False}
    with pytest.raises(RequestRefused, match="some were lost"):
        instance.client.post(path, {"offset": 7, "data": "YWJj"})
    instance.client.post(path, {"offset": 4, "data": "ZWY=", "end": True})
    assert instance.client.post(path, {"offset": 4, "data": "ZWY=", "end": True})["ended"]
    assert process.stdout is not None
    assert b"".join(process.stdout.read(1) for _ in range(6)) == b"abcdef"
    instance.ok("cancel", job)
    assert (process.stdout.read(), process.wait(TIMEOUT_S)) == (b"", 143)


def test_a_requeueable_job_reads_no_more_than_can_be_kept_for_its_next_attempt(instance: Running) -> None:
    small = run(instance, ANY_BYTES, "--requeue=always", "sha256sum")
    assert small.stdout.split()[0].decode() == hashlib.sha256(ANY_BYTES).hexdigest()
    process = launch(instance, "run", "--requeue=node-failure", "sh", "-c", "cat > /dev/null")
    assert process.stdin is not None
    assert process.stderr is not None
    job = only_job(instance)
    process.stdin.write(bytes(WINDOW_BYTES + 1))
    assert b"reads at most 4 MiB from its client; use --input FILE" in process.stderr.readline()
    assert stored_bytes(instance, job) == WINDOW_BYTES
    instance.ok("cancel", job)
    assert process.wait(TIMEOUT_S) == 143


def test_a_job_that_reads_no_input_refuses_it(instance: Running) -> None:
    job = instance.submit("sleep", "60")
    message = instance.refused("job", "attach", "--stdin", job, code=1)
    assert "does not read standard input from its client" in message


def test_a_file_is_the_input_of_every_task(instance: Running, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(ANY_BYTES)
    job = instance.submit("-n2", f"--input={tmp_path}/data", "sha256sum")
    instance.end(job)
    digest = hashlib.sha256(ANY_BYTES).hexdigest()
    assert [line.split()[0] for line in instance.output(job).splitlines()] == [digest] * 2


def test_the_name_of_an_input_file_can_depend_on_the_task(instance: Running, tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"part.{rank}").write_text(f"part {rank}\n")
    done = instance.call("run", "-n2", f"--input={tmp_path}/part.{{{{task.rank}}}}", "cat")
    assert sorted(done.stdout.splitlines()) == ["part 0", "part 1"]


def test_an_input_file_that_does_not_exist_fails_the_job(instance: Running) -> None:
    job = instance.submit("--input=/nonexistent", "cat")
    (ended,) = instance.end(job)
    assert exit_code(ended) == 126
    assert "could not open input file /nonexistent: No such file" in ended["exception"]["note"]
    assert "forwards no input" in instance.refused("submit", "--input=0-3", "cat", code=2)
