"""The four Kubernetes commands of the README, run as in two terminals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.clusters import needs_controlplane
from tests.kubernetes.site import ROOT, wait_for

SECTION = re.compile(r"^## On Kubernetes\n.*?^```\n(.*?)^```$", re.M | re.S)


def commands() -> list[str]:
    found = SECTION.search((ROOT / "README.md").read_text("utf-8"))
    assert found is not None
    return [line.removeprefix("$ ") for line in found[1].splitlines()]


def test_the_commands_of_the_readme_show_one_gang_that_runs_and_one_that_waits() -> None:
    needs_controlplane()
    build, cluster, apply, show = commands()
    with tempfile.TemporaryDirectory(prefix="penstock-readme-") as directory:
        Path(directory).chmod(0o755)
        environ = {**os.environ, "PENSTOCK_STATE": f"{directory}/state"}
        environ.pop("KUBECONFIG", None)

        def run(command: str) -> str:
            done = subprocess.run(
                command.split(), cwd=ROOT, env=environ, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            return done.stdout

        def pods() -> list[dict[str, Any]]:
            found = json.loads(run(".venv/bin/penstock dev kubectl get pods -o json"))
            return list(found["items"])

        run(build)
        log = Path(directory) / "cluster.log"
        with log.open("wb") as stream:
            running = subprocess.Popen(
                cluster.split(), cwd=ROOT, env=environ, stdout=stream, stderr=subprocess.STDOUT
            )
        try:
            wait_for(
                lambda: "Ctrl-C stops the cluster" in log.read_text(), f"the cluster: {log.read_text()}", 90
            )
            run(apply)
            wait_for(lambda: sum(map(on_node, pods())) == 3, "one gang to run")
            wait_for(
                lambda: "expected to start at" in pending_messages(pods()), "the start time of the other gang"
            )
            assert "held by" in pending_messages(pods())
            first = {job_of(pod) for pod in pods() if on_node(pod)}
            assert len(first) == 1
            shown = run(show)
            assert (shown.count("Running"), shown.count("Pending")) == (3, 3)
            wait_for(lambda: sum(map(on_node, pods())) == 6, "the other gang to run", 60)
        finally:
            running.send_signal(signal.SIGINT)
            code = running.wait(60)
        assert code == 0, log.read_text()
        assert not (Path(directory) / "state").exists()


def on_node(pod: dict[str, Any]) -> bool:
    return bool(pod["spec"].get("nodeName"))


def job_of(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"]["job-name"])


def pending_messages(pods: list[dict[str, Any]]) -> str:
    """The messages of all conditions of the pods without a node."""
    return " ".join(
        condition.get("message", "")
        for pod in pods
        if not on_node(pod)
        for condition in pod["status"].get("conditions", [])
    )
