"""`penstock resource` and `penstock queue`: draining nodes, stopping and disabling queues."""

from __future__ import annotations

from typing import Any

from tests.e2e.instances import Running, wait_until


def rows(text: str) -> dict[str, list[str]]:
    """The lines of a table by their first word, without the headings."""
    return {line.split()[0]: line.split()[1:] for line in text.splitlines()[1:]}


def test_the_list_counts_cores_one_by_one(instance: Running) -> None:
    assert rows(instance.ok("resource", "list")) == {
        "free": ["4", "8", "32Gi", "node[0-3]"],
        "allocated": ["0", "0"],
        "down": ["0", "0"],
    }
    instance.started(instance.submit("-n3", "sleep", "60"))
    assert rows(instance.ok("resource", "list")) == {
        "free": ["3", "5", "24Gi", "node[1-3]"],
        "allocated": ["2", "3", "0", "node[0-1]"],
        "down": ["0", "0"],
    }


def test_memory_is_shared_as_it_was_requested(instance: Running) -> None:
    on_node0 = ("--requires=host:node0", "-t5m")
    first = instance.submit("--mem=5G", *on_node0, "sleep", "600")
    instance.started(first)
    second = instance.submit("--mem=4097", *on_node0, "true")
    fits = instance.submit("--mem=3072M", *on_node0, "true")
    assert instance.end(fits)[0]["result"] == "COMPLETED"
    short = "memory: needs 4097Mi, the largest free node has 3Gi; held by"
    wait_until(lambda: short in instance.ok("job", "why", second))
    (node0, *_) = instance.client.get("/v1/resources")["nodes"]
    assert (node0["memory_bytes"], node0["memory_free_bytes"]) == (8 << 30, 3 << 30)
    refused = instance.refused("submit", "--mem=9G", "true", code=1)
    assert "the largest node has 8Gi; with 8Gi memory instead of 9Gi it would fit" in refused
    instance.ok("cancel", first)
    assert instance.end(second)[0]["result"] == "COMPLETED"


def test_a_drained_node_starts_no_job_and_running_jobs_continue(instance: Running) -> None:
    there = instance.submit("--requires=rank:0", "sleep", "60")
    instance.started(there)
    assert instance.ok("resource", "drain", "node0", "bad", "DIMM") == ""
    elsewhere = instance.end(*instance.ok("submit", "--cc=1-6", "true").split())
    assert {job["nodelist"] for job in elsewhere} <= {"node1", "node2", "node3"}
    assert instance.job(there)["state"] == "RUN"
    assert rows(instance.ok("resource", "list"))["down"] == ["1", "2", "8Gi", "node0"]
    assert rows(instance.ok("resource", "status", "--long"))["draining"] == ["✔", "1", "bad", "DIMM", "node0"]
    message = instance.ok("resource", "drain").splitlines()[1]
    assert message.split()[2:] == ["draining", "bad", "DIMM", "node0"]
    waiting = instance.submit("--requires=rank:0", "true")
    instance.ok("cancel", there)
    instance.end(there)
    assert "drained" in instance.ok("resource", "status")
    assert instance.job(waiting)["state"] == "SCHED"
    assert "up" in instance.ok("job", "why", waiting)
    assert instance.ok("resource", "undrain", "0") == ""
    assert instance.end(waiting)[0]["nodelist"] == "node0"


def test_another_reason_is_refused_unless_it_is_forced(instance: Running) -> None:
    instance.ok("resource", "drain", "2-3", "first")
    assert instance.refused("resource", "drain", "node[1-3]", "second", code=1) == (
        "penstock: already drained with another reason: node2 (first), node3 (first); "
        "--force (`overwrite` in the API) replaces the reason\n"
    )
    assert "node1" not in instance.ok("resource", "drain")  # Refused for all, so that nothing is half done.
    instance.ok("resource", "drain", "node[1-3]")  # Without a reason, as with the same one: done already.
    instance.ok("resource", "undrain", "node1")
    instance.ok("resource", "drain", "node[2-3]", "first")
    assert "first" in instance.ok("resource", "drain")
    instance.ok("resource", "drain", "--force", "node[2-3]", "second")
    assert "second" in instance.ok("resource", "drain")
    assert rows(instance.ok("resource", "list"))["down"] == ["2", "4", "16Gi", "node[2-3]"]
    instance.ok("resource", "undrain", "node[2-3]")
    assert "node2 not drained" in instance.refused("resource", "undrain", "node2", code=1)


def test_an_unknown_node_is_reported_with_a_suggestion(instance: Running) -> None:
    message = instance.refused("resource", "drain", "nod3", "x", code=1)
    assert "did you mean 'node3'?" in message
    assert "no such rank 7; there are 0-3" in instance.refused("resource", "drain", "7", code=1)
    assert not any(node["drained"] for node in instance.json("resource", "list", "-o", "json")["nodes"])


def test_queues_are_listed_with_their_limits(instance: Running) -> None:
    found = rows(instance.ok("queue", "list"))
    assert found["batch*"] == ["✔", "✔", "inf", "inf", "0", "0", "easy"]
    assert found["debug"] == ["✔", "✔", "5m", "1h", "0", "0", "fcfs"]


def test_a_stopped_queue_accepts_jobs_and_starts_none(instance: Running) -> None:
    running = instance.submit("-q", "debug", "sleep", "60")
    instance.started(running)
    message = instance.ok("queue", "stop", "-m", "maintenance", "debug")
    assert message == "debug: Scheduling is stopped: maintenance\n"
    waiting = instance.submit("-q", "debug", "true")
    other = instance.submit("-q", "batch", "true")
    assert instance.end(other)[0]["result"] == "COMPLETED"
    assert instance.job(waiting)["state"] == "SCHED"
    assert "queue debug is stopped: maintenance" in instance.ok("job", "why", waiting)
    assert instance.job(waiting)["forecast"]["start_at"] is None
    assert instance.job(running)["state"] == "RUN"
    assert "1 job pending" in instance.ok("queue", "status", "-v", "debug")
    assert instance.ok("queue", "start", "debug") == "debug: Scheduling is started\n"
    assert instance.end(waiting)[0]["result"] == "COMPLETED"


def test_a_disabled_queue_rejects_jobs(instance: Running) -> None:
    message = instance.ok("queue", "disable", "-m", "closed for today", "batch")
    assert message == "batch: Job submission is disabled: closed for today\n"
    message = instance.refused("submit", "true", code=1)
    assert "job submission to batch is disabled: closed for today" in message
    assert instance.submit("-q", "debug", "true")
    assert instance.ok("queue", "enable", "batch") == "batch: Job submission is enabled\n"
    assert instance.submit("true")


def test_named_queues_need_a_name_or_all(instance: Running) -> None:
    assert "Specify queues or use --all." in instance.refused("queue", "stop", code=2)
    assert instance.ok("queue", "stop", "--all").count("Scheduling is stopped") == 2
    assert instance.ok("queue", "start", "--all").count("Scheduling is started") == 2
    assert "did you mean 'batch'?" in instance.refused("queue", "stop", "bacth", code=1)


def test_status_names_living_processes(instance: Running) -> None:
    found = instance.json("status", "-o", "json")
    pids = [found["instance"]["pid"], found["database"]["pid"], *(agent["pid"] for agent in found["agents"])]
    assert len(set(pids)) == 6
    for pid in pids:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8") as stream:
            assert stream.read()
    assert [agent["state"] for agent in found["agents"]] == ["up"] * 4
    assert (found["nodes"], found["instance"]["ready"]) == ({"up": 4, "down": 0}, True)
    instance.started(instance.submit("-n3", "sleep", "60"))
    wait_until(lambda: sum(_tasks(instance)) == 3)
    shown = instance.ok("status")
    assert "ready, pid" in shown
    assert "1 running, 0 pending" in shown
    assert "None" not in shown


def _tasks(instance: Running) -> list[Any]:
    return [agent["tasks"] for agent in instance.client.get("/v1/status")["agents"]]
