from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PENSTOCK = Path(sys.executable).parent / "penstock"
TIMEOUT_S = 30
COMMANDS = ("demo", "resource-query", "jobspec-validate")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PENSTOCK, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_names_every_command_and_succeeds(flag: str) -> None:
    done = run(flag)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("usage: penstock COMMAND")
    assert [name for name in COMMANDS if name not in done.stdout] == []


def test_no_command_shows_the_usage_as_an_error() -> None:
    done = run()
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("usage: penstock COMMAND")


def test_an_unknown_command_is_named_in_the_error() -> None:
    done = run("schedule")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "penstock: no command 'schedule'\nTry `penstock --help`.\n"


def test_an_unknown_command_suggests_the_nearest_one() -> None:
    done = run("timelime")
    assert done.returncode == 2
    assert (
        done.stderr == "penstock: no command 'timelime'; did you mean 'timeline'?\nTry `penstock --help`.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stat", "x"], "penstock: no option '--stat'; did you mean '--state'?"),
        (["--state"], "penstock: --state: the value is missing"),
        (["--server"], "penstock: --server: the value is missing"),
        (["completion"], "penstock: Missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish"),
        (["jobs", "--wacth"], "penstock: No such option '--wacth'. Did you mean '--watch'?"),
        (["demo", "--plam"], "penstock demo: option --plam not recognized"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_option_is_explained_in_one_line(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0].removesuffix(".") == message
    assert len(done.stderr.splitlines()) == 2


def test_the_address_of_an_instance_can_precede_the_command() -> None:
    done = run("--server", "http://192.0.2.1:1", "jobs")
    assert done.returncode == 2
    assert "PENSTOCK_SERVER: the token would be readable" in done.stderr


@pytest.mark.parametrize("group", ["job", "queue", "resource", "dev"])
def test_a_group_without_a_subcommand_shows_its_help_as_an_error(group: str) -> None:
    done = run(group)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == run(group, "--help").stdout
    assert len(done.stderr.splitlines()) > 5


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_its_usage(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert f"usage: penstock {command}" in done.stdout + done.stderr


def test_a_closed_pipe_is_not_an_error() -> None:
    # The JSON of a large plan is more than a pipe holds, so the command is cut off while it writes.
    with subprocess.Popen(
        [PENSTOCK, "demo", "--plan", "--nodes", "32", "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == "{\n"
        running.stdout.close()
        assert running.stderr.read() == ""
        assert running.wait(TIMEOUT_S) == 0


HELP = [
    "",
    "submit",
    "run",
    "jobs",
    "job",
    "job attach",
    "job kill",
    "job wait",
    "timeline",
    "start",
    "resource",
]


@pytest.mark.parametrize("command", HELP)
def test_help_fits_into_80_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert [line for line in run(*command.split(), "--help").stdout.splitlines() if len(line) > 80] == []
