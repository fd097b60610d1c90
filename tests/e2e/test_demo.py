"""`penstock demo`: a real instance, a mixed workload, and nothing left behind."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.instances import temporary_sandbox, wait_until


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Runs one demo at a time, also across test processes: each test checks the leftovers of all demos."""
    with Path(tempfile.gettempdir(), "penstock-tests-demo.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def demos() -> set[str]:
    """Directories of demos, and those that processes refer to."""
    made = {str(path) for path in Path("/tmp").glob("penstock-demo-*")}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            made |= {found.decode() for found in re.findall(rb"/tmp/penstock-demo-\w+", text)}
    return made


def test_the_demo_runs_a_real_workload_and_removes_everything() -> None:
    with temporary_sandbox() as sandbox:
        before = demos()
        done = sandbox.call("demo")
        assert (done.returncode, done.stderr) == (0, "")
        assert demos() <= before
        assert not sandbox.state.exists()  # The user's own instance is not touched.
    shown = done.stdout
    assert "ready: 4 nodes with 2 cores each" in shown
    assert re.search(r" gang +S +4 -         \d\d:\d\d:\d\d needs 4 idle nodes with ", shown)
    assert "starting it now would delay" in shown
    assert re.search(r" stuck +TO ", shown)
    assert "giant: refused; needs 9 nodes with 1 core each, the cluster fits at most 4" in shown
    assert "stuck: timeout, resource allocation expired" in shown
    starts = shown[shown.index("STARTS  ") :]
    assert re.search(r"gang +\d\d:\d\d:\d\d +\d\d:\d\d:\d\d +[+-]\d+\.\d", starts)
    assert "Stopped and removed" in shown
    rows = [line for line in shown.splitlines() if re.match(r"node[0-3] ", line)]
    assert len(rows) == 4
    assert max(map(len, shown[: shown.index("STARTS  ")].splitlines())) < 160


def test_ctrl_c_stops_the_demo_and_removes_everything() -> None:
    with temporary_sandbox() as sandbox:
        before = demos()
        terminal = sandbox.terminal("demo")
        terminal.until("--name=giant")
        terminal.press("\x03")
        screen = terminal.end()
        assert screen.code == 130
        assert "interrupted; the instance was stopped and its directory removed" in screen.text
        assert "Traceback" not in screen.text
        wait_until(lambda: demos() <= before, 30.0)


def test_ctrl_c_while_the_instance_starts_removes_everything() -> None:
    with temporary_sandbox() as sandbox:
        before = demos()
        terminal = sandbox.terminal("demo")
        terminal.until("$ penstock start")
        wait_until(lambda: bool(demos() - before))
        terminal.press("\x03")
        assert terminal.end().code == 130
        wait_until(lambda: demos() <= before, 30.0)
