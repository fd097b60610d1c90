"""`penstock start` and `penstock stop`: done when they return, no job lost, no process left."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.e2e.instances import (
    NODE_OPTIONS,
    Running,
    left_behind,
    running_instance,
    tasks_of,
    temporary_sandbox,
    wait_until,
)


def test_a_second_start_is_refused_and_disturbs_nothing(instance: Running) -> None:
    pid = instance.json("status", "-o", "json")["instance"]["pid"]
    message = instance.refused("start", code=1)
    assert message == f"penstock: an instance already runs in {instance.state} (pid {pid})\n"
    assert instance.json("status", "-o", "json")["instance"]["pid"] == pid
    assert instance.call("run", "true").returncode == 0


def test_pending_jobs_survive_a_stop_and_running_jobs_are_cancelled(tmp_path: Path) -> None:
    with running_instance() as instance:
        first = instance.submit("-N4", "-t10m", "sleep", "600")
        instance.started(first)
        gang = instance.submit("-N4", "-t1m", f"--output={tmp_path}/gang", "echo", "ran")
        held = instance.submit("--urgency=hold", "--name=held", "true")
        after = instance.submit(f"--dependency=afterok:{gang}", "true")
        instance.ok("resource", "drain", "node3", "kept")
        instance.ok("queue", "stop")
        assert instance.ok("stop") == ""
        assert not left_behind(instance)
        assert not instance.paths.socket.exists()
        assert "no instance runs in" in instance.refused("jobs", code=3)

        assert "ready: 4 nodes with 2 cores each" in instance.ok("start")  # It knows its shape.
        ended = instance.job(first)
        assert (ended["result"], ended["exception"]["note"]) == ("CANCELED", "the instance was stopped")
        assert instance.job(gang)["state"] == "SCHED"
        assert "kept" in instance.ok("resource", "drain")
        assert "Scheduling is stopped" in instance.ok("queue", "status")
        instance.ok("resource", "undrain", "node3")
        instance.ok("queue", "start")
        assert [job["result"] for job in instance.end(gang, after)] == ["COMPLETED"] * 2
        assert (tmp_path / "gang").read_text() == "ran\n" * 4
        assert instance.job(held)["urgency"] == 0
        log = instance.ok("job", "eventlog", gang)
        assert log.count(" alloc") == 1


def test_kept_tasks_continue_and_are_resumed(tmp_path: Path) -> None:
    with running_instance() as instance:
        job = instance.submit(
            *("-n2", "-t10m", f"--output={tmp_path}/out"),
            *("sh", "-c", f"while ! test -e {tmp_path}/go; do sleep 0.05; done; echo done"),
        )
        instance.started(job)
        tasks = set(tasks_of(instance, job))
        instance.ok("stop", "--keep-tasks")
        left = left_behind(instance)
        assert tasks & set(left)
        assert not any("postgres" in command for command in left.values())
        instance.ok("start")
        assert instance.job(job)["state"] == "RUN"
        assert tasks & set(tasks_of(instance, job))
        (tmp_path / "go").touch()
        (ended,) = instance.end(job)
        assert (ended["result"], ended["attempt"]) == ("COMPLETED", 1)
        assert (tmp_path / "out").read_text() == "done\n" * 2


def test_an_instance_in_the_foreground_ends_on_ctrl_c() -> None:
    with temporary_sandbox() as sandbox:
        process = sandbox.launch("start", *NODE_OPTIONS, "--foreground")
        running = Running(sandbox.directory, sandbox.state)
        wait_until(lambda: running.call("status").returncode == 0, 60.0)
        job = running.submit("sleep", "600")
        running.started(job)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, "")
        assert "Traceback" not in err
        wait_until(lambda: not left_behind(sandbox), 5.0)


def test_an_instance_can_grow(tmp_path: Path) -> None:
    with running_instance() as instance:
        instance.started(instance.submit("-N4", "-t10m", "sleep", "600"))
        waiting = instance.submit("-N4", "-t1m", f"--output={tmp_path}/ran", "echo", "ran")
        pid = instance.json("status", "-o", "json")["instance"]["pid"]
        assert instance.json("stop", "-o", "json")["stopped"] == pid
        assert not (tmp_path / "ran").exists()  # It did not start when the stop made room for it.
        assert "no instance runs in" in instance.refused("stop", code=3)
        started = instance.json("start", "--nodes", "5", "-o", "json")
        assert started["instance"]["ready"] is True
        assert (started["settings"]["nodes"], started["settings"]["cores"]) == (5, 2)
        assert instance.end(waiting)[0]["result"] == "COMPLETED"
        assert instance.ok("job", "eventlog", waiting).count(" alloc") == 1
        assert instance.call("run", "-N5", "true").returncode == 0


def _nodes(instance: Running) -> dict[str, tuple[str, str]]:
    """State and reason by node."""
    return {
        node["name"]: (node["state"], node["why"]) for node in instance.client.get("/v1/resources")["nodes"]
    }


def test_an_instance_can_shrink_and_nodes_leave_when_their_jobs_have_ended(tmp_path: Path) -> None:
    with running_instance() as instance:
        kept = instance.submit(
            *("-N1", "--requires=host:node3", "-t10m", f"--output={tmp_path}/kept"),
            *("sh", "-c", f"while ! test -e {tmp_path}/go; do sleep 0.05; done; echo done"),
        )
        instance.started(kept)
        wide = instance.submit("-N4", "-t1m", "true")
        instance.ok("stop", "--keep-tasks")
        lines = instance.ok("start", "--nodes", "2").splitlines()
        assert lines[0].startswith("penstock: ready: 2 nodes with 2 cores each")
        assert lines[2:] == [
            "changed since the last start: nodes: 4 -> 2",
            f"node3 leaves when its jobs have ended: {kept}",
        ]
        leaves = "it leaves the instance when its jobs have ended"
        assert _nodes(instance) == {"node0": ("free", ""), "node1": ("free", ""), "node3": ("down", leaves)}
        assert "node3" not in instance.ok("run", "-N2", "sh", "-c", "echo $PENSTOCK_NODE")
        assert instance.job(wide)["state"] == "SCHED"
        (tmp_path / "go").touch()
        (ended,) = instance.end(kept)
        assert (ended["result"], ended["attempt"]) == ("COMPLETED", 1)
        assert (tmp_path / "kept").read_text() == "done\n"
        wait_until(lambda: list(_nodes(instance)) == ["node0", "node1"])
        assert [agent["node"] for agent in instance.json("status", "-o", "json")["agents"]] == [
            "node0",
            "node1",
        ]
        wait_until(lambda: not (instance.paths.agents / "node3").exists())
        wait_until(lambda: "node" in instance.ok("job", "why", wide))
        instance.ok("stop")
        assert "nodes: 2 -> 4" in instance.ok("start", "--nodes", "4")
        assert instance.end(wide)[0]["result"] == "COMPLETED"


def test_a_placement_that_was_not_sent_to_a_node_that_leaves_is_carried_out(tmp_path: Path) -> None:
    """Nodes are removed when nothing is left on them, whatever happened between the commit and the act."""
    with running_instance() as instance:
        instance.ok("stop")
        killed = instance.call("start", PENSTOCK_FAILPOINTS="local.place.before")
        assert killed.returncode == 0, killed
        job = instance.submit("-N1", "--requires=host:node3", f"--output={tmp_path}/ran", "echo", "ran")
        wait_until(lambda: instance.call("status").returncode == 3)
        instance.call("stop")
        assert instance.call("start", "--nodes", "3").returncode == 0
        assert instance.end(job)[0]["result"] == "COMPLETED"
        assert (tmp_path / "ran").read_text() == "ran\n"
        wait_until(lambda: "node3" not in _nodes(instance))


def test_the_configuration_is_remembered_and_jobs_that_it_excludes_are_held(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text('[[queues]]\nname = "batch"\nduration_max = "1d"\n[[queues]]\nname = "debug"\n')
    with running_instance("--config", str(config), "--policy", "conservative") as instance:
        instance.ok("queue", "stop", "--all")
        long = instance.submit("-t2h", "true")
        gone = instance.submit("-qdebug", "true")
        instance.ok("stop")
        assert "changed" not in instance.ok("start")
        assert instance.json("status", "-o", "json")["settings"]["policy"] == "conservative"
        instance.ok("stop")
        before = config.read_text()
        config.write_text('[[queues]]\nname = "batch"\nduration_max = "1h"\n')
        done = instance.call("start")
        held = {
            long: "its time limit is 2h, and queue batch allows at most 1h",
            gone: "the configuration has no queue debug any more, only batch",
        }
        warnings = [f"penstock: warning: {job} is held: {reason}" for job, reason in held.items()]
        assert (done.returncode, done.stderr.splitlines()) == (0, warnings)
        assert done.stdout.splitlines()[2:] == [
            "changed since the last start: queue debug is removed",
            "changed since the last start: queues.batch.duration_max: 1d -> 1h",
        ]
        assert "held: its time limit is 2h" in instance.ok("job", "why", long)
        instance.ok("queue", "start", "--all")
        assert instance.call("run", "-t1m", "true").returncode == 0
        assert instance.job(long)["state"] == instance.job(gone)["state"] == "SCHED"
        instance.ok("stop")
        config.write_text(before)
        instance.ok("start")
        instance.ok("queue", "start", "--all")
        assert [job["result"] for job in instance.end(long, gone)] == ["COMPLETED"] * 2
        instance.ok("stop")
        config.write_text('policy = "fcfs"\n' + before)
        assert "changed" not in instance.ok("start")  # `--policy` overrides the file, as it did before.
        instance.ok("stop")
        changed = instance.ok("start", "--config", str(config)).splitlines()[2:]
        assert changed == [
            f"changed since the last start: queues.{name}.backfill: conservative -> fcfs"
            for name in ("batch", "debug")
        ]
        kept = tmp_path / "kept"
        instance.ok("run", "-t1m", f"--output={kept}", "echo", "mine")
        assert instance.end(instance.submit("-t1m", "echo", "yours"))[0]["result"] == "COMPLETED"
        assert any(instance.paths.output.iterdir())
        instance.ok("stop")
        config.write_text("[retention]\njobs = 0\n" + before)
        instance.ok("start", "--config", str(config))
        wait_until(lambda: not any(instance.paths.output.iterdir()))
        assert kept.read_text() == "mine\n"
        instance.ok("stop")
        config.unlink()
        assert "configuration of the last start" in instance.refused("start", code=2)
        assert "queue batch is removed" in instance.ok("start", "--defaults")


def test_an_instance_in_the_background_outlives_its_database() -> None:
    with running_instance() as instance:
        before = instance.json("status", "-o", "json")["database"]["pid"]
        os.kill(before, signal.SIGKILL)

        def is_back() -> bool:
            done = instance.call("status", "-o", "json")
            found = json.loads(done.stdout) if done.stdout else {"instance": {}, "database": {}}
            return bool(found["instance"].get("ready")) and found["database"].get("pid") not in (None, before)

        wait_until(is_back, 60.0)
        assert instance.ok("run", "echo", "again") == "again\n"


def test_terminating_a_pending_run_cancels_its_job() -> None:
    with running_instance() as instance:
        instance.ok("queue", "stop")
        waiting = instance.launch("run", "--name=waits", "true")
        wait_until(lambda: bool(instance.json("jobs", "-o", "json")["jobs"]))
        waiting.terminate()
        assert waiting.wait(30) != 0
        waiting.communicate()
        assert [job["result"] for job in instance.json("jobs", "-a", "-o", "json")["jobs"]] == ["CANCELED"]


def test_stop_stops_the_database_that_a_killed_instance_left_running() -> None:
    with temporary_sandbox() as sandbox:
        done = sandbox.call("start", *NODE_OPTIONS)
        assert done.returncode == 0, done
        running = Running(sandbox.directory, sandbox.state)
        status = running.json("status", "-o", "json")
        os.kill(status["instance"]["pid"], signal.SIGKILL)
        wait_until(lambda: "no instance runs in" in running.refused("jobs", code=3))
        assert "was stopped" in running.ok("stop")
        assert "no instance runs in" in running.refused("stop", code=3)
        wait_until(lambda: not Path(f"/proc/{status['database']['pid']}").exists())
        for agent in status["agents"]:
            os.kill(agent["pid"], signal.SIGKILL)
        wait_until(lambda: not left_behind(sandbox))
