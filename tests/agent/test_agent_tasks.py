"""Tasks under a real agent: environment, output, limits and signals, checked by what the tasks themselves
write."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from penstock.agent.processes import processes_with_token
from penstock.agent.records import TaskStage, WarningSignal
from penstock.agent.task_dirs import AgentDirectory
from penstock.agent.wire import CommandOutcome, Shutdown
from tests.agent.rig import Rig, processes_with, small_disk, until

FOREVER = "while :; do sleep 0.05; done"


def test_a_task_gets_its_environment_and_its_output_and_status_are_kept() -> None:
    with Rig() as rig:
        client = rig.agent()
        script = 'pwd; env; echo oops >&2; [ -d "$FLUX_JOB_TMPDIR" ] && : > "$FLUX_JOB_TMPDIR/x"; exit 3'
        tmpdir = str(rig.directory / "tmp" / "jobtmp-0-f2")
        fields = {"attempt": 2, "node": "node7", "granted": (1, 3)}
        spec = rig.spec(script, rank=1, size=4, nnodes=2, local_id=1, tmpdir=tmpdir, gpus="0,2", **fields)
        assert client.start(spec).outcome is CommandOutcome.APPLIED
        ended = client.wait("1/1/0")
        assert (ended.status, ended.cause) == (3 << 8, "")
        lines = rig.stdout().splitlines()
        assert lines[0] == str(rig.work)
        for line in (
            "FLUX_JOB_ID=ƒ2",
            "FLUX_JOB_SIZE=4",
            "FLUX_JOB_NNODES=2",
            "FLUX_TASK_RANK=1",
            "FLUX_TASK_LOCAL_ID=1",
            f"FLUX_JOB_TMPDIR={tmpdir}",
            "CUDA_VISIBLE_DEVICES=0,2",
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
            "PENSTOCK_JOB_ID=1",
            "PENSTOCK_ATTEMPT=2",
            "PENSTOCK_NODE=node7",
            "PENSTOCK_CORES=1,3",
            f"WORK={rig.work}",
        ):
            assert line in lines
        assert not any(line.startswith(("HOME=", "PYTEST")) for line in lines)
        assert rig.stderr() == "oops\n"
        assert os.stat(rig.base / "out" / "out").st_mode & 0o777 == 0o600
        until(lambda: not os.path.exists(tmpdir), "the job's directory is removed")


def test_a_task_ignores_no_signal_that_its_agent_inherited_as_ignored() -> None:
    with Rig() as rig:
        rig.launch(ignores=(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM))
        client = rig.connect()
        client.start(rig.spec("grep SigIgn /proc/self/status"))
        assert client.wait("1/1/0").status == 0
        ignored = int(rig.stdout().removeprefix("SigIgn:"), 16)
        assert ignored & 0x7FFF_FFFF == 0  # Signals above 31 belong to the C library.


def test_labelled_output_loses_no_line() -> None:
    with Rig() as rig:
        client = rig.agent()
        client.start(rig.spec("seq 1 3000; printf end; echo err >&2", rank=7, label_io=True))
        assert client.wait("1/1/0").status == 0
        assert rig.stdout().splitlines() == [f"7: {n}" for n in range(1, 3001)] + ["7: end"]
        assert rig.stderr() == "7: err\n"


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        (("nosuch-command",), 127 << 8, "start failed: nosuch-command: No such file or directory"),
        (("/etc/passwd",), 126 << 8, "start failed: /etc/passwd: Permission denied"),
        (("a\0b",), 126 << 8, "start failed"),
    ],
)
def test_a_command_that_cannot_start_ends_with_the_cause(
    command: tuple[str, ...], status: int, text: str
) -> None:
    with Rig() as rig:
        client = rig.agent()
        client.start(rig.spec("", command=command))
        ended = client.wait("1/1/0")
        assert ended.status == status
        assert text in ended.cause


def test_without_its_directory_a_task_runs_in_tmp_and_stderr_says_so() -> None:
    with Rig() as rig:
        client = rig.agent()
        client.start(rig.spec("pwd", cwd="/no/such/place"))
        assert client.wait("1/1/0").status == 0
        assert rig.stdout() == "/tmp\n"
        expected = (
            "Could not change dir to /no/such/place: No such file or directory. Going to /tmp instead\n"
        )
        assert rig.stderr().endswith(expected)


def test_an_output_file_that_cannot_be_opened_ends_the_task_with_the_cause() -> None:
    with Rig() as rig:
        client = rig.agent()
        client.start(rig.spec("echo ran >> ran", stdout="/proc/no/out", markers=str(rig.base / "markers")))
        ended = client.wait("1/1/0")
        assert ended.status == 126 << 8
        assert ended.cause == "could not open output file /proc/no/out: No such file or directory"
        assert rig.lines("ran") == []


def test_a_named_file_is_truncated_once_per_attempt_by_the_first_task() -> None:
    with Rig() as rig:
        client = rig.agent()
        shared = rig.work / "shared"
        shared.write_text("old\n")
        markers = str(rig.base / "markers")
        for attempt, members in ((1, ("a", "b")), (2, ("c",))):
            for member in members:
                spec = rig.spec(
                    f"echo {member}", member, stdout="shared", stderr="", markers=markers, attempt=attempt
                )
                client.start(spec)
                assert client.wait(member).status == 0
            assert shared.read_text().split() == list(members)


def test_a_task_gets_sigalrm_at_its_limit() -> None:
    with Rig() as rig:
        client = rig.agent()
        client.start(rig.spec("exec sleep 1000", end_at=time.time() + 0.3))
        ended = client.wait("1/1/0")
        assert (ended.status, ended.cause) == (signal.SIGALRM, "timeout")


def test_a_task_that_ignores_its_limit_is_killed_with_its_descendants() -> None:
    with Rig() as rig:
        client = rig.agent()
        script = f"trap 'echo alarm >> seen' ALRM; trap 'echo warned >> seen' USR1; sleep 4321.5 & {FOREVER}"
        warning = WarningSignal(signal.SIGUSR1, 0.6)
        began = time.monotonic()
        client.start(rig.spec(script, end_at=time.time() + 1.0, grace_s=0.4, warn=warning))
        ended = client.wait("1/1/0")
        assert (ended.status, ended.cause) == (signal.SIGKILL, "timeout")
        assert time.monotonic() - began > 1.3  # limit and grace
        assert rig.lines("seen") == ["warned", "alarm"]
        assert processes_with("4321.5") == []


def test_a_task_whose_limit_has_passed_is_not_started() -> None:
    with Rig() as rig:
        client = rig.agent()
        client.start(rig.spec("echo ran >> ran", end_at=time.time() - 1))
        ended = client.wait("1/1/0")
        assert (ended.status, ended.cause) == (signal.SIGALRM, "timeout")
        assert rig.lines("ran") == []


def test_daemonized_descendants_are_killed_before_the_end_is_reported() -> None:
    with Rig() as rig:
        client = rig.agent()
        hide = (
            "(setsid sh -c 'env -i sleep 5432.1 & echo up >> up' &) ; while [ ! -s up ]; do sleep 0.01; done"
        )
        client.start(rig.spec(hide))
        assert client.wait("1/1/0").status == 0
        assert rig.lines("up") == ["up"]
        assert processes_with("5432.1") == []


def test_a_signal_without_grace_does_not_end_a_task_and_is_sent_once() -> None:
    with Rig() as rig:
        client = rig.agent()
        client.start(rig.spec(f"trap 'echo usr >> seen' USR1; trap 'exit 5' TERM; echo up >> up; {FOREVER}"))
        until(lambda: rig.lines("up"), "the task runs")
        for _ in range(3):
            assert client.end("1/1/0", signal.SIGUSR1, None, key="7").outcome is CommandOutcome.APPLIED
        until(lambda: rig.lines("seen"), "the signal is seen")
        assert (
            client.end("1/1/0", signal.SIGTERM, 5.0, key="8", why="cancel").outcome is CommandOutcome.APPLIED
        )
        ended = client.wait("1/1/0")
        assert (ended.status, ended.cause) == (5 << 8, "cancel")
        assert rig.lines("seen") == ["usr"]
        assert client.end("1/1/0", key="9").outcome is CommandOutcome.GONE


def test_a_task_is_killed_after_its_grace_period() -> None:
    with Rig() as rig:
        client = rig.agent()
        client.start(rig.spec(f"trap 'echo term >> seen' TERM; echo up >> up; {FOREVER}"))
        until(lambda: rig.lines("up"), "the task runs")
        client.end("1/1/0", signal.SIGTERM, 0.3)
        assert client.wait("1/1/0").status == signal.SIGKILL
        assert rig.lines("seen") == ["term"]


def test_a_member_that_was_ended_first_never_starts_even_after_a_restart() -> None:
    with Rig() as rig:
        client = rig.agent()
        assert client.end("a").outcome is CommandOutcome.GONE
        for _ in range(2):
            assert client.start(rig.spec("echo ran >> ran", "a")).outcome is CommandOutcome.GONE
            rig.kill_agent()
            client = rig.agent()
        assert rig.lines("ran") == []
        client.release("a")
        assert client.start(rig.spec("echo ran >> ran", "a")).outcome is CommandOutcome.APPLIED
        client.wait("a")


def test_a_repeated_start_runs_the_task_once() -> None:
    with Rig() as rig:
        client = rig.agent()
        for _ in range(3):
            assert client.start(rig.spec("echo ran >> ran")).outcome is CommandOutcome.APPLIED
        client.wait("1/1/0")
        assert client.start(rig.spec("echo ran >> ran")).outcome is CommandOutcome.APPLIED
        assert rig.lines("ran") == ["ran"]
        client.release("1/1/0")
        until(lambda: rig.files_of("1/1/0") == [], "its directory is removed")
        assert client.probe("1/1/0").outcome is CommandOutcome.GONE


def test_the_number_of_tasks_is_bounded() -> None:
    with Rig() as rig:
        client = rig.agent("", "--tasks-max", "1")
        assert client.start(rig.spec("sleep 1000", "a")).outcome is CommandOutcome.APPLIED
        refused = client.start(rig.spec("true", "b"))
        assert refused.outcome is CommandOutcome.CONFLICT
        assert "the maximum" in refused.detail


def test_tasks_survive_the_termination_of_an_agent_and_the_next_one_adopts_them() -> None:
    with Rig() as rig:
        client = rig.agent()
        client.start(rig.spec("echo up >> up; while [ ! -e go ]; do sleep 0.02; done; exit 4"))
        until(lambda: rig.lines("up"), "the task runs")
        agent = rig.agents[-1]
        agent.terminate()
        assert agent.wait(10) == 0
        (rig.work / "go").touch()
        until(lambda: "exit.json" in rig.files_of("1/1/0"), "the exit is written without an agent")
        client = rig.agent()
        assert client.wait("1/1/0").status == 4 << 8
        assert rig.lines("up") == ["up"]


def test_a_shutdown_with_kill_ends_every_task_first() -> None:
    with Rig() as rig:
        client = rig.agent()
        for member in ("a", "b"):
            client.start(rig.spec("exec sleep 1000", member))
            client.wait(member, TaskStage.RUNNING)
        client.send(Shutdown(1, kill=True))
        assert {client.wait(member).cause for member in ("a", "b")} == {"shutdown"}
        assert rig.agents[-1].wait(10) == 0


def test_a_full_disk_refuses_a_start_and_delays_an_exit_without_loss() -> None:
    with Rig() as rig, small_disk(rig.directory, "256k") as is_mounted:
        if not is_mounted:
            pytest.skip("this user cannot mount a small file system")
        client = rig.agent()
        client.start(rig.spec("echo up >> up; while [ ! -e go ]; do sleep 0.02; done; exit 6", "a"))
        until(lambda: rig.lines("up"), "the task runs")
        ballast = _fill(rig.directory)
        refused = client.start(rig.spec("echo ran >> ran", "b"))
        assert refused.outcome is CommandOutcome.CONFLICT
        assert refused.detail == f"no space left on {rig.directory}"
        assert rig.files_of("b") == []
        (rig.work / "go").touch()
        token = rig.tokens()[0]
        until(lambda: not processes_with_token(token), "the command has ended")
        assert "exit.json" not in rig.files_of("a")
        ballast.unlink()
        assert client.wait("a").status == 6 << 8
        assert client.start(rig.spec("echo ran >> ran", "b")).outcome is CommandOutcome.APPLIED
        client.wait("b")
        assert rig.lines("ran") == ["ran"]
        rig.kill_agent()


def _fill(path: Path) -> Path:
    ballast = path / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        size = 1 << 16
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2
    return ballast


def test_a_running_supervisor_holds_the_task_lock() -> None:
    with Rig() as rig:
        client = rig.agent()
        client.start(rig.spec("sleep 1000"))
        client.wait("1/1/0", TaskStage.RUNNING)
        assert AgentDirectory(rig.directory).task("1/1/0").try_lock() is None
