"""The commands against an instance that schedules pods: a real server with canned responses."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.api.identity import Caller
from penstock.api.responses import OutputItem
from penstock.cli.fields import job_field
from penstock.errors import Conflict
from penstock.paths import paths_of
from tests.cli.terminal import environment, on_terminal, piped, runtime
from tests.web.canned import NOW, Canned, Doc, job, node, served

GIB = 1 << 30
LEADER = "host-a_1_beef"


def pod_node(rank: int, **changes: Any) -> Doc:
    memory = {"memory_bytes": 32 * GIB, "memory_free_bytes": 32 * GIB, "memory_external_bytes": 0}
    closed = {"closed": "", "closed_why": "", "cores_external": 0, "gpus_external": 0}
    return node(rank, **{**memory, **closed, "gpus": 0, "gpus_free": 0, **changes})


NODES = [
    pod_node(0, state="allocated", cores_free=4.4, cores_external=0.1, memory_free_bytes=30 * GIB,
             memory_external_bytes=GIB // 2, jobs=["ƒNH"]),
    pod_node(1, cores_free=7.9, cores_external=0.1, memory_external_bytes=GIB // 2,
             memory_free_bytes=63 * GIB // 2),
    pod_node(2, closed="cordoned", closed_why="cordoned", why="cordoned"),
    pod_node(3, closed="tainted", closed_why="dedicated=ml:NoSchedule"),
    pod_node(4, state="drained", drained=True, drain_reason="disk", drained_at=NOW - 60),
    pod_node(5, state="down", up=False, why="not ready: KubeletStopped"),
]  # fmt: skip
ASSEMBLING = job(
    5000, "g1", "DEPEND", ntasks=3, ncores=0.5, reason="1 of 3 members are ready", reason_kind="assembling"
)
NEVER = job(
    5001, "never", "SCHED", ntasks=1, ncores=70, reason="it can never run here: too large",
    reason_kind="never",
)  # fmt: skip
RUNNING = job(
    5002, "gang", "RUN", ntasks=2, ncores=3.5, nnodes=2, nodelist="node-[0-1]", t_run=NOW - 5,
    owner="team", namespace="team",
)  # fmt: skip
MEMBERS: list[Doc] = [
    {"member": "0b5c", "name": "gang-0-x7", "index": 0, "node": "node-0", "phase": "running", "status": None,
     "cause": "", "started_at": None, "ended_at": None},
    {"member": "77aa", "name": "gang-1-q2", "index": 1, "node": "node-1", "phase": "ended", "status": 256,
     "cause": "Error", "started_at": None, "ended_at": None},
    {"member": "1234", "name": "gang-2-zz", "index": 2, "node": "", "phase": "waiting", "status": None,
     "cause": "", "started_at": None, "ended_at": None},
]  # fmt: skip


class Pods(Canned):
    def __init__(self) -> None:
        super().__init__()
        self.table = {5000: ASSEMBLING, 5001: NEVER, 5002: RUNNING}
        self.nodes = NODES
        self.leader, self.is_leader, self.ready = LEADER, True, True
        self.problem = ""

    def status_document(self) -> Doc:
        found = super().status_document()
        found["instance"] |= {"backend": "kubernetes", "ready": self.ready}
        if not self.ready:
            found["instance"]["why_not_ready"] = "standing by: another instance is the leader, or none is yet"
            found |= {"jobs": dict.fromkeys(found["jobs"]), "nodes": {"up": None, "down": None}}
        found["agents"] = []
        del found["settings"]["oversubscribed"]
        found["settings"] |= {
            "server": "https://10.0.0.1:6443",
            "schedulers": ["penstock", "fluence"],
            "leader": self.leader,
            "is_leader": self.is_leader,
            "problem": self.problem,
        }
        return found

    def detail(self) -> Doc:
        return {"jobspec": None, "R": None, "members": MEMBERS, "output": []}

    async def stream_output(self, caller: Caller, job: int, follow: bool) -> AsyncGenerator[OutputItem, None]:
        del caller, job, follow
        raise Conflict("this instance does not keep the output of pods; use `kubectl logs gang-0-x7 -n team`")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    state = tmp_path_factory.mktemp("state")
    paths = paths_of(str(state), environment(state))
    paths.socket.parent.mkdir(parents=True)
    service = Pods()
    with served(service, paths.socket):
        yield SimpleNamespace(state=state, service=service)
    shutil.rmtree(runtime(state))


@pytest.fixture
def at(running: SimpleNamespace) -> Path:
    running.service.leader, running.service.is_leader, running.service.ready = LEADER, True, True
    running.service.problem = ""
    state: Path = running.state
    return state


def test_status_shows_the_cluster_and_its_leader(at: Path) -> None:
    done = piped(at, "status")
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert lines[0][1].startswith("ready, pid")
    assert lines[1:4] == [
        ["backend", "kubernetes, https://10.0.0.1:6443"],
        ["leader", f"{LEADER} (this instance)"],
        ["schedulers", "penstock, fluence"],
    ]


def test_a_standby_is_reported_and_healthy_if_there_is_a_leader(at: Path, running: SimpleNamespace) -> None:
    running.service.is_leader = running.service.ready = False
    done = piped(at, "status")
    assert done.returncode == 0, done.stderr
    assert "instance  standby, pid" in done.stdout
    assert f"{LEADER}; this instance is a standby and schedules nothing" in done.stdout
    running.service.leader, running.service.problem = "", "cannot connect to 10.0.0.1:6443: refused"
    done = piped(at, "status")
    assert done.returncode == 1
    assert "problem  cannot connect to 10.0.0.1:6443: refused" in done.stdout
    assert "none known; this instance is a standby" in done.stdout


def test_an_instance_that_takes_over_is_not_ready_and_reports_the_reason(
    at: Path, running: SimpleNamespace
) -> None:
    running.service.ready = False
    done = piped(at, "status")
    assert done.returncode == 1
    assert "not ready (standing by: another" in done.stdout  # the canned reason


def test_nodes_are_listed_with_fractions_of_cores_and_exact_sums(at: Path) -> None:
    done = piped(at, "resource", "list")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["STATE", "NNODES", "NCORES", "MEMORY", "REASON", "NODELIST"],
        ["free", "2", "12.3", "61.5Gi", "node[0-1]"],
        ["allocated", "1", "3.5", "1.5Gi", "node0"],
        ["external", "2", "0.2", "1Gi", "node[0-1]"],
        ["cordoned", "1", "8", "32Gi", "cordoned", "node2"],
        ["tainted", "1", "8", "32Gi", "dedicated=ml:NoSchedule", "node3"],
        ["drained", "1", "8", "32Gi", "disk", "node4"],
        ["down", "1", "8", "32Gi", "not", "ready:", "KubeletStopped", "node5"],
    ]
    assert not any(line.endswith(" ") for line in done.stdout.splitlines())


def test_a_node_with_free_gpus_is_free_and_an_unreadable_node_has_a_reason(
    at: Path, running: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = {"cores": 0, "cores_free": 0, "memory_bytes": None, "memory_free_bytes": None}
    why = "it cannot be read"
    nodes = [
        pod_node(0, state="allocated", cores_free=0, gpus=4, gpus_free=1, jobs=["ƒNH"]),
        pod_node(1, **nothing, memory_external_bytes=None, state="down", up=False, why=why),
    ]
    monkeypatch.setattr(running.service, "nodes", nodes)
    assert [line.split() for line in piped(at, "resource", "list", "-n").stdout.splitlines()] == [
        ["free", "1", "0", "1", "32Gi", "node0"],
        ["allocated", "1", "8", "3", "0", "node0"],
        ["down", "1", "0", "0", "it", "cannot", "be", "read", "node1"],
    ]


def test_the_list_fits_a_narrow_terminal(at: Path) -> None:
    found = on_terminal(at, "resource", "list", columns=80)
    assert max(map(len, found.text.splitlines())) <= 80


def test_the_status_of_nodes_shows_cordoned_and_tainted_nodes_with_reasons(at: Path) -> None:
    done = piped(at, "resource", "status", "--long")
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [
        ["avail", "✔", "2", "node[0-1]"],
        ["avail*", "✗", "1", "not", "ready:", "KubeletStopped", "node5"],
        ["cordoned", "✔", "1", "cordoned", "node2"],
        ["drained", "✔", "1", "disk", "node4"],
        ["tainted", "✔", "1", "dedicated=ml:NoSchedule", "node3"],
    ]


def test_jobs_show_their_nodes_or_why_they_are_pending(at: Path) -> None:
    done = piped(at, "jobs", "-no", "{name} {ntasks} {ncores} {contextual_info}")
    assert done.stdout.splitlines() == [
        "g1 3 0.5 1 of 3 members are ready",
        "never 1 70 it can never run here: too large",
        "gang 2 3.5 node-[0-1]",
    ]


def test_a_forecast_start_takes_precedence_over_the_reason() -> None:
    waiting = {**NEVER, "forecast": {"start_at": NOW + 60, "kind": "forecast", "made_at": NOW}}
    assert job_field(waiting, "contextual_info", NOW) == "eta:1m"
    assert job_field({**NEVER, "urgency": 0}, "contextual_info", NOW) == "held"


def test_a_job_is_found_by_its_namespace_and_name(at: Path) -> None:
    assert RUNNING["id"] in piped(at, "job", "show", "team/gang").stdout
    assert piped(at, "jobs", "-no", "{name}", "team/gang").stdout == "gang\n"
    assert piped(at, "cancel", "team/gang").returncode == 0
    done = piped(at, "job", "why", "team/ganf")
    assert done.returncode == 2
    assert "no such job" in done.stderr
    assert "NAMESPACE/NAME" in piped(at, "hold", "/gang").stderr


def test_the_namespace_of_a_workload_has_its_own_column(at: Path) -> None:
    header, *rows = piped(at, "jobs", "team/gang").stdout.splitlines()
    assert "NAMESPACE" in header
    assert "USER" not in header
    assert " team " in rows[0]


def test_a_start_in_another_year_is_shown_with_the_year() -> None:
    waiting = {**NEVER, "forecast": {"start_at": NOW + 300 * 86400, "kind": "forecast", "made_at": NOW}}
    assert str(job_field(waiting, "forecast", NOW)).startswith("2024-")


def test_an_incomplete_group_has_a_state_of_its_own() -> None:
    assert job_field(RUNNING, "status_abbrev", NOW) == "R"
    assert job_field({**RUNNING, "incomplete_reason": "n1 refused c"}, "status_abbrev", NOW) == "RI"


def test_members_are_shown_by_their_names(at: Path) -> None:
    text = piped(at, "job", "show", RUNNING["id"]).stdout
    assert "2 tasks, 3.5 cores, 2 nodes" in text
    members = [line.split(maxsplit=1)[1] for line in text.splitlines() if line.split()[0] == "member"]
    assert members == [
        "gang-0-x7  running on node-0",
        "gang-1-q2  ended on node-1, exit 1 (Error)",
        "gang-2-zz  waiting",
    ]


def test_attach_to_pods_refers_to_kubectl(at: Path) -> None:
    done = piped(at, "job", "attach", RUNNING["id"])
    assert done.returncode == 1
    assert "`kubectl logs gang-0-x7 -n team`" in done.stderr
    assert done.stdout == ""


def test_stop_with_kubernetes_does_not_count_running_jobs(tmp_path: Path) -> None:
    paths = paths_of(str(tmp_path), environment(tmp_path))
    paths.socket.parent.mkdir(parents=True)
    service = Pods()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        service.pid = other.pid
        with served(service, paths.socket):
            before = service.on_shutdown

            def end() -> None:
                before()
                other.kill()

            service.on_shutdown = end
            found = on_terminal(tmp_path, "stop", still=False)
    assert found.code == 0, found.raw
    assert "jobs" not in found.raw
    shutil.rmtree(runtime(tmp_path))
