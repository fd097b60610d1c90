"""Every command against a real server with canned responses: requests, output and exit codes."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len

from penstock.api.requests import CancelSelection
from penstock.model.jobid import encode_jobid
from penstock.paths import paths_of
from tests.cli.terminal import Terminal, environment, on_terminal, piped, runtime
from tests.web.canned import DONE, NOW, Canned, job, served

SNAPSHOTS = Path(__file__).parent / "snapshots"
FIRST = 5000  # the id that the canned service gives
ID = encode_jobid(FIRST)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    state = tmp_path_factory.mktemp("state")
    paths = paths_of(str(state), environment(state))
    paths.socket.parent.mkdir(parents=True)
    service = Canned()
    with served(service, paths.socket):
        yield SimpleNamespace(state=state, service=service, paths=paths)
    shutil.rmtree(runtime(state))


@pytest.fixture
def at(running: SimpleNamespace) -> Path:
    running.service.calls.clear()
    running.service.scripts.clear()
    state: Path = running.state
    return state


SCREENS = {
    "jobs": ["jobs"],
    "jobs-a": ["jobs", "-a"],
    "jobs-why": ["jobs", "-o", "why"],
    "jobs-long": ["jobs", "-o", "long"],
    "job-show": ["job", "show", "ƒTSfi3Sf"],
    "job-why": ["job", "why", "ƒTSfi3Sf"],
    "eventlog": ["job", "eventlog", "-H", "ƒTSfi3Sf"],
    "resource-list": ["resource", "list"],
    "queue-list": ["queue", "list"],
    "status": ["status"],
    "timeline": ["timeline"],
}


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize("name", SCREENS)
def test_screens(at: Path, name: str, columns: int) -> None:
    found = on_terminal(at, *SCREENS[name], columns=columns)
    assert max(map(len, found.text.splitlines())) <= columns
    path = SNAPSHOTS / f"{name}-{columns}.txt"
    if os.environ.get("PENSTOCK_SNAPSHOTS") == "write":
        path.write_text(found.text)
    assert found.text == path.read_text()


def test_colours_only_on_a_terminal_and_not_under_no_color(at: Path) -> None:
    assert "\x1b[" in on_terminal(at, "jobs").raw
    assert "\x1b[" not in on_terminal(at, "jobs", NO_COLOR="1").raw
    assert "\x1b[" not in piped(at, "jobs").stdout


def test_a_pipe_gets_whole_lines_and_plain_letters(at: Path) -> None:
    assert "depends:after-success=ƒSZYcoq" in piped(at, "jobs").stdout
    ascii_only = piped(at, "jobs", LC_ALL="C").stdout
    assert "fTSfi3Sf" in ascii_only
    assert ascii_only.isascii()
    assert "C###" in piped(at, "timeline").stdout


JSON_COMMANDS = [
    ["jobs", "-o", "json"],
    ["job", "show", "fNH", "-o", "json"],
    ["job", "why", "fNH", "-o", "json"],
    ["job", "when", "fNH", "-o", "json"],
    ["job", "wait", "fNH", "-o", "json"],
    ["cancel", "fNH", "-o", "json"],
    ["hold", "fNH", "-o", "json"],
    ["resource", "list", "-o", "json"],
    ["resource", "drain", "node3", "-o", "json"],
    ["queue", "list", "-o", "json"],
    ["queue", "stop", "--all", "-o", "json"],
    ["timeline", "-o", "json"],
    ["status", "-o", "json"],
    ["submit", "-o", "json", "app"],
    ["job", "kill", "fSZYcoq", "-o", "json"],
    ["completion", "bash", "-o", "json"],
]


@pytest.mark.parametrize("arguments", JSON_COMMANDS, ids=" ".join)
def test_json_is_json(at: Path, arguments: list[str]) -> None:
    done = piped(at, *arguments)
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)


def test_submit_prints_one_id_per_line_and_sends_the_jobspec(at: Path, running: SimpleNamespace) -> None:
    done = piped(at, "submit", "--cc=1-3", "-n2", "--urgency=hold", "--requeue=always", "app", "-x", "{cc}")
    assert done.stdout.splitlines() == [encode_jobid(FIRST + index) for index in range(3)]
    (call,) = running.service.calls
    specs = [json.loads(bytes(each.jobspec)) for each in call[1]]
    assert [spec["tasks"][0]["command"] for spec in specs] == [["app", "-x", str(n)] for n in (1, 2, 3)]
    assert [spec["attributes"]["system"]["environment"]["FLUX_JOB_CC"] for spec in specs] == ["1", "2", "3"]
    assert {(each.urgency, each.requeue.value) for each in call[1]} == {(0, "always")}


def test_many_jobs_are_sent_in_batches_of_a_thousand_with_a_key_each(
    at: Path, running: SimpleNamespace
) -> None:
    done = piped(at, "submit", "--bcc=1-2500", "--env-remove=*", "app")
    assert len(done.stdout.splitlines()) == 2500
    assert [len(call[1]) for call in running.service.calls] == [1000, 1000, 500]
    assert len({call[2] for call in running.service.calls}) == 3


def test_a_dry_run_prints_and_sends_nothing(at: Path, running: SimpleNamespace) -> None:
    done = piped(at, "submit", "--dry-run", "-N2", "app")
    assert json.loads(done.stdout)["resources"][0]["exclusive"] is True
    assert running.service.calls == []


def test_a_jobspec_can_come_from_a_file_or_from_input(
    at: Path, tmp_path: Path, running: SimpleNamespace
) -> None:
    spec = json.loads(piped(at, "submit", "--dry-run", "app").stdout)
    assert piped(at, "submit", "--jobspec", "-", stdin=json.dumps(spec)).stdout == f"{ID}\n"
    (tmp_path / "j.yaml").write_text("version: 1\nresources: [{type: slot, count: 1}]\n"
                                     "tasks: [{command: [a]}]\nattributes: {system: {}}\n")  # fmt: skip
    assert piped(at, "submit", "--jobspec", str(tmp_path / "j.yaml")).returncode == 0
    assert json.loads(bytes(running.service.calls[0][1][0].jobspec)) == spec


REFUSALS = [
    (["submit", "-q", "bacth", "app"], 1, "did you mean 'batch'?"),
    (["submit", "-n1001", "app"], 1, "asks 1001 nodes"),
    (["submit", "--nods=2", "app"], 2, "--nodes"),
    (["submit"], 2, "penstock: no command (expected COMMAND [ARGUMENTS...], or --jobspec FILE)"),
    (["submit", "-t", "inf", "app"], 2, "finite"),
    (["submit", "--cc=1", "--bcc=1", "app"], 2, "give either --cc or --bcc"),
    (["jobs", "-f", "runing"], 2, "did you mean running?"),
    (["jobs", "-o", "logn"], 2, "did you mean long?"),
    (["jobs", "--sort", "nam"], 2, "unknown field"),
    (["jobs", "--watch"], 2, "needs a terminal"),
    (["jobs", "fNK"], 1, "did you mean 'ƒN"),
    (["job", "show", "fNK"], 1, "did you mean 'ƒN"),
    (["job", "show", "f0"], 2, "not a job id"),
    (["job", "wait", "fNJ"], 3, "fNJ: Exit 3"),
    (["job", "kill", "-s", "NOPE", "fNH"], 2, "--signal: unknown signal (found 'NOPE'; "),
    (["submit", "-t", "", "app"], 2, "--time-limit: the value is empty (found ''; expected TIME)"),
    (["submit", "--cc", "", "app"], 2, "--cc: the value is empty (found ''; expected IDSET)"),
    (["submit", "-q", "", "app"], 2, "--queue: the value is empty (found ''; expected NAME)"),
    (["run", "--dependency", "", "app"], 2, "--dependency: the value is empty"),
    (["cancel", "fNK"], 1, "ƒNK: unknown job id; did you mean"),
    (["cancel"], 2, "--all"),
    (["stop", "--timeout", "abc"], 2, "'abc' is not a valid number of seconds"),
    (["submit", "-N", "two", "app"], 2, "'two' is not a valid number"),
    (["urgency", "fSZYcoq", "3"], 1, "once resources are allocated"),
    (["urgency", "fNH", "99"], 2, "invalid urgency"),
    (["queue", "stop", "bacth"], 1, "no such queue 'bacth'; did you mean 'batch'?"),
    (["queue", "stop"], 2, "Named queues are defined. Specify queues or use --all."),
    (["resource", "drain", "nod3"], 1, "did you mean 'node3'?"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), REFUSALS, ids=lambda value: str(value)[:40])
def test_errors_have_an_exit_code_and_a_hint(at: Path, arguments: list[str], code: int, words: str) -> None:
    done = piped(at, *arguments)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert done.stderr.startswith("penstock: ")


def test_without_an_instance_every_command_says_how_to_start_one(tmp_path: Path) -> None:
    done = piped(tmp_path, "jobs")
    assert done.returncode == 3
    assert "no instance runs in" in done.stderr
    assert "`penstock start`" in done.stderr


def test_changes_reach_the_instance(at: Path, running: SimpleNamespace) -> None:
    assert piped(at, "cancel", "--all", "--states", "running", "-m", "n").stderr.endswith(
        "Canceled 1 job (0 errors)\n"
    )
    assert piped(at, "release", "fNH").returncode == 0
    assert piped(at, "urgency", "-v", "fNH", "expedite").stdout == "job expedited\n"
    assert piped(at, "resource", "drain", "node3", "bad", "DIMM").stdout == ""
    assert piped(at, "resource", "undrain", "3").returncode == 0
    assert piped(at, "queue", "disable", "batch").stdout == (
        "batch: Job submission is disabled: disabled by administrator\n"
    )
    calls = [call for call in running.service.calls if call[0] != "jobs"]
    assert isinstance(calls[0][1], CancelSelection)
    assert calls[1:] == [
        ("urgency", 1234, 16),
        ("urgency", 1234, 31),
        ("drain", "node3", "bad DIMM", False),
        ("undrain", "3"),
        ("change_queue", "batch", "disable", "disabled by administrator"),
    ]


def test_a_followed_eventlog_ends_by_itself(at: Path) -> None:
    assert piped(at, "job", "eventlog", "-F", "fNH").stdout.splitlines()[-1].endswith(" clean")


def test_the_svg_image_is_written_to_a_file(at: Path, tmp_path: Path) -> None:
    assert piped(at, "timeline", "--svg", str(tmp_path / "t.svg")).returncode == 0
    assert (tmp_path / "t.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(at: Path, shell: str) -> None:
    assert "_PENSTOCK_COMPLETE" in piped(at, "completion", shell).stdout


def test_completion_knows_commands_and_options(at: Path) -> None:
    extra = {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_CWORD": "1", "COMP_WORDS": "penstock ti"}
    assert "timeline" in piped(at, **extra).stdout
    extra = {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_CWORD": "2", "COMP_WORDS": "penstock jobs --wa"}
    assert "--watch" in piped(at, **extra).stdout


# run


def output(text: str, stream: str = "stdout", index: int = 0) -> tuple[str, dict[str, Any]]:
    return "output", {"index": index, "stream": stream, "data": text}


def event(name: str, **context: Any) -> tuple[str, dict[str, Any]]:
    return "job", {"timestamp": 100.5 if name == "submit" else 102.0, "name": name, "context": context}


def end(status: int | None, **changes: Any) -> tuple[str, dict[str, Any]]:
    return "end", {**DONE, "waitstatus": status, **changes}


def test_run_shows_output_and_exits_with_the_job_code(at: Path, running: SimpleNamespace) -> None:
    running.service.scripts[FIRST] = [
        event("submit"), event("start"), output("one\n"), output("two\nthree\n", index=1),
        output("oops\n", "stderr"),
        ("output", {"index": 0, "stream": "stdout", "base64": "/wo="}), end(3 << 8),
    ]  # fmt: skip
    done = piped(at, "run", "--label-io", "--env", "A=1", "app")
    assert done.stdout == "0: one\n1: two\n1: three\n0: \udcff\n"
    assert done.stderr == "0: oops\npenstock: task(s) exited with exit code 3\n"
    assert done.returncode == 3


def test_run_labels_lines_and_prints_the_exit_code(at: Path, running: SimpleNamespace) -> None:
    running.service.scripts[FIRST] = [output("one\ntw"), output("o\n"), output("x\n", index=1), end(3 << 8)]
    done = piped(at, "run", "-l", "app")
    assert done.stdout == "0: one\n0: two\n1: x\n"
    assert done.stderr == "penstock: task(s) exited with exit code 3\n"


@pytest.mark.parametrize("command", [["run", "-o", "json", "app"], ["job", "attach", "-o", "json", "f2TR"]])
def test_the_events_of_a_job_can_be_printed_as_json_lines(
    at: Path, running: SimpleNamespace, command: list[str]
) -> None:
    running.service.table[FIRST] = job(FIRST, "app", "RUN")
    chunks = [output("one\n"), ("output", {"index": 1, "stream": "stderr", "base64": "/wo="})]
    running.service.scripts[FIRST] = [event("submit"), *chunks, end(3 << 8)]
    done = piped(at, *[word.replace("f2TR", ID) for word in command])
    del running.service.table[FIRST]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (3, "")
    if command[0] == "run":
        assert lines.pop(0) == {"event": "submitted", "data": {"id": ID}}
    assert [line["event"] for line in lines] == ["job", "output", "output", "end"]
    assert [line["data"] for line in lines[1:3]] == [chunk for _, chunk in chunks]
    assert lines[-1]["data"]["waitstatus"] == 3 << 8


def test_standard_input_is_sent_with_its_positions(at: Path, running: SimpleNamespace) -> None:
    running.service.scripts[FIRST] = [("pause", {"s": 1.0}), end(0)]
    assert piped(at, "run", "app", stdin="one\n").returncode == 0
    sent = [call for call in running.service.calls if call[0] == "input"]
    assert sent == [("input", FIRST, 0, b"one\n", False), ("input", FIRST, 4, b"", True)]


EXITS = [
    (end(0), 0, ""),
    (end(11), 139, "penstock: task(s) Segmentation fault\n"),
    (
        end(142 << 8, exception={"occurred": True, "type": "timeout", "severity": 0, "note": ""}),
        142,
        "task(s) Alarm clock",
    ),
    (end(None), 1, ""),
]


@pytest.mark.parametrize(("last", "code", "words"), EXITS, ids=["ok", "signal", "timeout", "never ran"])
def test_run_exit_codes(
    at: Path, running: SimpleNamespace, last: tuple[str, dict[str, Any]], code: int, words: str
) -> None:
    running.service.scripts[FIRST] = [last]
    done = piped(at, "run", "app")
    assert (done.returncode, words in done.stderr) == (code, True)


def test_run_shows_exceptions(at: Path, running: SimpleNamespace) -> None:
    running.service.scripts[FIRST] = [
        event("submit"), event("exception", type="cancel", severity=0, note="no more"), end(None),
    ]  # fmt: skip
    done = piped(at, "run", "app")
    assert done.stderr == f"1.500s: job.exception {ID} type=cancel severity=0 no more\n"
    assert done.returncode == 1


def test_the_reason_of_a_pending_job_is_shown_on_a_terminal(at: Path, running: SimpleNamespace) -> None:
    waiting = job(FIRST, "app", "SCHED", reason="waits for 8 cores",
                  forecast={"start_at": NOW + 795, "kind": "reservation", "made_at": NOW})  # fmt: skip
    running.service.table[FIRST] = waiting
    running.service.scripts[FIRST] = [("pause", {"s": 2.7}), event("start"), output("hi\n"), end(0)]
    found = on_terminal(at, "run", "app")
    del running.service.table[FIRST]
    assert f"{ID} starts in about 13m15s (22:26:35): waits for 8 cores  00:00:0" in found.raw
    assert found.text == "hi\n"
    assert found.code == 0


def test_one_ctrl_c_warns_and_a_second_cancels(at: Path, running: SimpleNamespace) -> None:
    running.service.scripts[FIRST] = [output("up\n"), ("pause", {"s": 1.5}), end(143 << 8)]
    terminal = Terminal(at, "run", "app")
    terminal.until("up")
    terminal.press("\x03")
    terminal.until("one more ctrl-C within 2s to cancel or ctrl-Z to detach")
    terminal.press("\x03")
    assert terminal.end().code == 143
    assert ("cancel", CancelSelection((FIRST,)), "interrupted by ctrl-C") in running.service.calls


def test_ctrl_z_after_ctrl_c_detaches(at: Path, running: SimpleNamespace) -> None:
    running.service.scripts[FIRST] = [output("up\n"), ("pause", {"s": 30}), end(0)]
    terminal = Terminal(at, "run", "app")
    terminal.until("up")
    terminal.press("\x03")
    terminal.until("ctrl-Z to detach")
    terminal.press("\x1a")
    found = terminal.end()
    assert found.text.endswith("detaching...\n")
    assert found.code == 0


def test_signals_are_passed_on(at: Path, running: SimpleNamespace) -> None:
    running.service.scripts[FIRST] = [output("up\n"), ("pause", {"s": 1.0}), end(0)]
    terminal = Terminal(at, "run", "app")
    terminal.until("up")
    terminal._process.send_signal(10)
    assert terminal.end().code == 0
    assert ("signal", FIRST, 10) in running.service.calls


def test_the_watched_table_keeps_wide_characters_whole(at: Path, running: SimpleNamespace) -> None:
    reason = "等待八个核 " * 30
    running.service.table[1] = job(1, "模拟仿真计算任务名很长", "SCHED", reason=reason)
    terminal = Terminal(at, "jobs", "--watch", columns=80)
    terminal.until("hostname")
    terminal.press("\x03")
    found = terminal.end()
    del running.service.table[1]
    screen = found.text.split("(ctrl-C to quit)")[1]
    (row,) = [line for line in screen.splitlines() if "模拟" in line]
    (other,) = [line for line in screen.splitlines() if "hostname" in line]
    assert cell_len(row.partition(" S ")[0]) == cell_len(other.partition(" R ")[0])
    assert screen.count("等待八个核") == 30
    assert max(map(cell_len, screen.splitlines()[:-1])) <= 80  # The last one runs into the next frame.


@pytest.mark.parametrize("ignores", [(), (signal.SIGINT,)])
def test_the_watched_table_is_drawn_until_ctrl_c(at: Path, ignores: tuple[signal.Signals, ...]) -> None:
    terminal = Terminal(at, "jobs", "--watch", columns=100, still=False, ignores=ignores)
    terminal.until("FORECAST")
    terminal.until("sim-longname")
    terminal.press("\x03")
    assert terminal.end().code == 0


def test_stop_waits_until_the_socket_and_the_process_are_gone(tmp_path: Path) -> None:
    import subprocess
    import sys

    paths = paths_of(str(tmp_path), environment(tmp_path))
    paths.socket.parent.mkdir(parents=True)
    service = Canned()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        service.pid = other.pid
        with served(service, paths.socket):
            service.calls.clear()
            before = service.on_shutdown
            service.on_shutdown = lambda: (before(), other.kill())
            done = piped(tmp_path, "stop", "--keep-tasks", still=False)
    assert done.returncode == 0, done.stderr
    assert ("shutdown", True) in service.calls
    assert not paths.socket.exists()
    shutil.rmtree(runtime(tmp_path))
