"""Scheduling decisions as a user sees them: gangs, backfill, promises, early release of nodes."""

from __future__ import annotations

from tests.e2e.instances import Running, wait_until


def test_a_small_job_overtakes_a_gang_only_if_it_does_not_delay_it(instance: Running) -> None:
    blocker = instance.submit("--name=blocker", "-N2", "-t4s", "sleep", "60")
    gang = instance.submit("--name=gang", "-N4", "-t10s", "true")
    short = instance.submit("--name=short", "-n1", "-t1s", "true")
    long = instance.submit("--name=long", "-n1", "-t10s", "true")
    assert instance.end(short)[0]["t_run"] < instance.job(blocker)["expiration"] - 1
    assert instance.job(gang)["state"] == "SCHED"
    assert instance.job(long)["state"] == "SCHED"
    message = instance.ok("job", "why", long)
    assert f"starting it now would delay {gang}" in message
    assert f"must not delay  {gang}, starts " in message
    first, second = instance.end(gang, long)
    promised = first["promise"]["first"]
    assert abs(first["t_run"] - promised) < 2.0
    assert second["t_run"] >= first["t_run"]


def test_a_gang_starts_as_one_or_not_at_all(instance: Running) -> None:
    blocker = instance.submit("-N1", "-t1m", "sleep", "60")
    gang = instance.submit("-N4", "-t1m", "sleep", "60")
    assert all(not member["node"] for member in instance.job(gang)["members"])
    instance.ok("cancel", blocker)
    instance.started(gang)
    assert {member["phase"] for member in instance.job(gang)["members"]} == {"running"}


def test_a_finished_member_frees_its_node_while_the_others_run(instance: Running) -> None:
    job = instance.submit("-N4", "sh", "-c", "test $FLUX_TASK_RANK -gt 0 || exec sleep 60")
    wait_until(lambda: "node[1-3]" in instance.ok("resource", "list").splitlines()[1])
    lines = instance.ok("resource", "list").splitlines()
    assert lines[1].split() == ["free", "3", "6", "24Gi", "node[1-3]"]
    assert lines[2].split() == ["allocated", "1", "2", "8Gi", "node0"]
    assert instance.job(job)["state"] == "RUN"
    other = instance.submit("-N3", "true")
    assert instance.end(other)[0]["nodelist"] == "node[1-3]"


def test_a_promised_start_is_kept_when_other_jobs_are_submitted_later(instance: Running) -> None:
    instance.submit("-N4", "-t3s", "sleep", "60")
    gang = instance.submit("-N4", "-t2s", "true")
    promised = instance.job(gang)["forecast"]["start_at"]
    for _ in range(3):
        instance.submit("-n1", "-t1m", "true")
    assert instance.job(gang)["forecast"]["start_at"] == promised
    (ended,) = instance.end(gang)
    assert ended["promise"]["first"] == promised
    assert abs(ended["t_run"] - promised) < 2.0


def test_a_job_behind_one_without_a_time_limit_has_no_forecast(instance: Running) -> None:
    instance.submit("-N4", "sleep", "60")
    waiting = instance.submit("-N4", "-t1m", "true")
    assert instance.job(waiting)["forecast"]["start_at"] is None
    assert "has no known end" in instance.ok("job", "why", waiting)
    assert "has no forecast start" in instance.ok("job", "when", waiting)


def test_jobs_with_dependencies_run_in_order(instance: Running) -> None:
    first = instance.submit("-N2", "sh", "-c", "sleep 0.2")
    second = instance.submit(f"--dependency=afterok:{first}", "-n4", "true")
    third = instance.submit(f"--dependency=afterany:{second}", "true")
    done = instance.end(first, second, third)
    assert [job["result"] for job in done] == ["COMPLETED"] * 3
    assert done[0]["t_inactive"] <= done[1]["t_run"] <= done[1]["t_inactive"] <= done[2]["t_run"]
