"""`penstock dev` as a command: a cluster in the foreground, kubectl, and cleanup at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.client import ApiClient
from penstock.errors import PenstockError
from penstock.paths import paths_of
from tests.clusters import needs_controlplane, wait_for

PENSTOCK = Path(sys.executable).parent / "penstock"
TIMEOUT_S = 60


class User:
    """A user with a separate state directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {**os.environ, "PENSTOCK_STATE": str(folder / "state" / "penstock")}

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PENSTOCK, "dev", *arguments],
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def start(self, *arguments: str, ignores_sigint: bool = False) -> subprocess.Popen[str]:
        """Starts a cluster; returns when it has printed its usage hints."""

        def ignore_sigint() -> None:  # as a shell without job control does for a background process
            signal.signal(signal.SIGINT, signal.SIG_IGN)

        running = subprocess.Popen(
            [PENSTOCK, "dev", "cluster", "--nodes", "1", *arguments],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=ignore_sigint if ignores_sigint else None,
        )
        assert running.stdout is not None
        for line in running.stdout:
            if "Ctrl-C" in line:
                return running
        raise AssertionError(running.communicate()[1])

    def left(self) -> list[Path]:
        state = self.folder / "state"
        return sorted(state.iterdir()) if state.exists() else []


@pytest.fixture
def user() -> Iterator[User]:
    with tempfile.TemporaryDirectory(prefix="penstock-dev-") as folder:
        Path(folder).chmod(0o711)  # The account that runs the database for root must be able to enter it.
        yield User(Path(folder))


def test_kubectl_without_a_cluster_explains_how_to_start_one(user: User) -> None:
    done = user.run("kubectl", "get", "nodes")
    assert (done.returncode, done.stdout) == (3, "")
    assert "penstock dev cluster" in done.stderr


def test_missing_programs_are_reported_with_advice(user: User) -> None:
    done = user.run("cluster", XDG_CACHE_HOME=str(user.folder / "cache"))
    assert done.returncode == 3
    assert "make controlplane" in done.stderr
    assert user.left() == []


def test_wrong_usage_is_rejected_before_any_file_is_created(user: User) -> None:
    done = user.run("cluster", "--memory", "much")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--memory" in done.stderr
    assert user.left() == []


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
def test_kubectl_works_while_a_cluster_runs_in_the_foreground(
    user: User, stop_signal: signal.Signals
) -> None:
    needs_controlplane()
    running = user.start("--no-penstock", ignores_sigint=True)
    done = user.run("kubectl", "get", "nodes", "-o", "json")
    assert [node["metadata"]["name"] for node in json.loads(done.stdout)["items"]] == ["node-0"]
    assert user.run("kubectl", "get", "nobody").returncode == 1
    printed = user.folder / "state" / "penstock-dev" / "cluster" / "penstock"
    assert user.run("kubectl", "get", "nodes", PENSTOCK_STATE=str(printed)).returncode == 0
    second = user.run("cluster", "--no-penstock")
    assert second.returncode == 1
    assert "a development cluster is already running in" in second.stderr
    assert "stop it or use another --directory" in second.stderr
    running.send_signal(stop_signal)
    _, err = running.communicate(timeout=TIMEOUT_S)
    assert (running.returncode, err.splitlines()[-1]) == (0, "stopped and removed")
    assert user.left() == []


def test_two_clusters_in_two_directories(user: User) -> None:
    needs_controlplane()
    other = user.folder / "other"
    first, second = user.start("--no-penstock"), user.start("--no-penstock", "--directory", str(other))
    done = user.run("kubectl", "get", "nodes")
    assert done.returncode == 1
    assert str(other) in done.stderr
    assert user.run("kubectl", "--directory", str(other), "get", "nodes").returncode == 0
    for running in (first, second):
        running.terminate()
        running.communicate(timeout=TIMEOUT_S)
        assert running.returncode == 0
    assert not other.exists()
    assert user.left() == []


def test_a_killed_cluster_leaves_no_files(user: User) -> None:
    needs_controlplane()
    running = user.start("--no-penstock")
    running.kill()
    running.communicate(timeout=TIMEOUT_S)
    wait_for(lambda: user.left() == [], "everything to be removed")
    again = user.start("--no-penstock")
    again.terminate()
    again.communicate(timeout=TIMEOUT_S)
    assert again.returncode == 0


def test_penstock_runs_in_the_cluster_and_ends_with_it(user: User) -> None:
    needs_controlplane()
    running = user.start()
    inside = paths_of(str(user.folder / "state" / "penstock-dev" / "cluster" / "penstock"), user.environ)
    ours = json.dumps({"spec": {"schedulerName": "penstock"}})
    options = ("--image=busybox", "--restart=Never", f"--overrides={ours}", "--", "sleep", "1")
    assert user.run("kubectl", "run", "hello", *options).returncode == 0
    done = user.run(
        "kubectl", "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/hello", "--timeout=30s"
    )
    assert done.returncode == 0, done.stderr
    assert inside.socket.exists()
    running.kill()
    running.communicate(timeout=TIMEOUT_S)
    wait_for(lambda: user.left() == [], "everything to be removed")
    assert not inside.runtime.exists()


def test_a_killed_penstock_is_restarted_with_its_state(user: User) -> None:
    needs_controlplane()
    running = user.start()
    inside = ApiClient(
        paths_of(str(user.folder / "state" / "penstock-dev" / "cluster" / "penstock"), user.environ)
    )
    ours = json.dumps({"spec": {"schedulerName": "penstock"}})
    options = ("--image=busybox", "--restart=Never", f"--overrides={ours}", "--", "sleep", "inf")
    assert user.run("kubectl", "run", "hello", *options).returncode == 0
    wait_for(lambda: states(inside) == ["RUN"], "the pod to run")
    (job,) = inside.get("/v1/jobs", states="active")["jobs"]
    pid = inside.get("/v1/status")["instance"]["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: pid_of(inside) not in (None, pid), "another Penstock to be ready")
    assert inside.get("/v1/jobs", states="active")["jobs"][0]["id"] == job["id"]
    running.terminate()
    _, err = running.communicate(timeout=TIMEOUT_S)
    assert "Penstock exited with -9; restarting it" in err
    assert user.left() == []


def states(inside: ApiClient) -> list[str]:
    return [job["state"] for job in inside.get("/v1/jobs", states="active")["jobs"]]


def pid_of(inside: ApiClient) -> int | None:
    """The PID of the instance, None unless it is ready."""
    try:
        instance = inside.get("/v1/status")["instance"]
    except PenstockError:
        return None
    return int(instance["pid"]) if instance["ready"] else None


def test_a_directory_that_is_not_empty_is_rejected(user: User) -> None:
    needs_controlplane()
    full = user.folder / "full"
    full.mkdir()
    (full / "mine").touch()
    done = user.run("cluster", "--directory", str(full))
    assert done.returncode == 1
    assert "not empty" in done.stderr
    assert (full / "mine").exists()
    assert user.left() == []
    assert not paths_of(str(full / "penstock"), user.environ).runtime.exists()
