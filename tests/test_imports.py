"""Commands start quickly because they import little: only modules on a list, and what these import."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

ALLOWED = (
    "__future__",
    "bisect",
    "collections.abc",
    "contextlib",
    "dataclasses",
    "enum",
    "functools",
    "gc",
    "getopt",
    "heapq",
    "json",
    "math",
    "os",
    "re",
    "sys",
    "time",
    "typing",
    "xml.parsers.expat",
    "yaml",
)
FORBIDDEN = (
    "asyncio",
    "click",
    "hypothesis",
    "logging",
    "multiprocessing",
    "rich",
    "socket",
    "subprocess",
    "threading",
)
TIMEOUT_S = 30

LIST_MODULES = "import json, sys; sys.stdout = sys.__stdout__; print(json.dumps(sorted(sys.modules)))"
RUN_COMMAND = """
import io, sys
sys.stdout = io.StringIO()
sys.argv[0] = "penstock"
from penstock.cli.main import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
"""


def modules_after(script: str, *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{script}\n{LIST_MODULES}", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    return set(json.loads(done.stdout))


def loaded_by(*arguments: str) -> set[str]:
    """The modules outside Penstock that a command imports beyond the list."""
    allowed = modules_after("import " + ", ".join(ALLOWED))
    loaded = modules_after(RUN_COMMAND, *arguments)
    return {name for name in loaded - allowed if name.partition(".")[0] not in ("io", "penstock")}


@pytest.mark.parametrize("command", ["resource-query", "jobspec-validate"])
def test_help_imports_no_module_off_the_list(command: str) -> None:
    assert loaded_by(command, "--help") == set()


def test_the_list_of_commands_imports_no_module_off_the_list() -> None:
    assert loaded_by("--help") == set()


@pytest.mark.parametrize("command", ["start", "stop", "dev"])
def test_commands_that_launch_the_daemon_do_not_import_it(command: str) -> None:
    loaded = modules_after(RUN_COMMAND, command, "--help")
    heavy = ("penstock.app", "penstock.engine", "penstock.sched", "penstock.store", "asyncio", "psycopg")
    assert [name for name in loaded if name.startswith(heavy)] == []


def test_the_list_itself_is_short() -> None:
    """Guards the test above: no allowed module may import a heavy one."""
    allowed = modules_after("import " + ", ".join(ALLOWED))
    assert [name for name in FORBIDDEN if name in allowed] == []


def test_a_demo_that_is_not_drawn_on_a_terminal_loads_no_colours() -> None:
    assert loaded_by("demo", "--plan", "-o", "json") <= {"string", "_string", "textwrap"}
