"""Claims on the timeline and in the metrics."""

from __future__ import annotations

from penstock.api.claims import claim_metrics
from penstock.api.timeline import live_timeline
from penstock.cli.gantt import ASCII_FILLS, draw
from penstock.model.jobid import encode_jobid
from tests.sched.pod_driver import Pods


def metrics(driver: Pods) -> dict[str, float]:
    lines = claim_metrics(driver.scheduler, driver.now).decode().splitlines()
    return {name: float(value) for name, value in (line.split() for line in lines if line[0] != "#")}


def test_claims_and_what_they_keep_idle_are_shown_until_there_is_a_reservation() -> None:
    driver = Pods(4)
    for number in range(4):
        driver.pod(f"on{number}", 1000)
    job = driver.gang()
    driver.run_until(600)
    driver.end("on1")
    timeline = live_timeline(driver.scheduler, driver.now, 0.0)
    spans = {
        node.name: [
            (span.job, span.from_, span.to, span.cores) for span in node.spans if span.kind == "claimed"
        ]
        for node in timeline.nodes
    }
    claimer = encode_jobid(job)
    assert spans["node0"] == [(claimer, 600.0, None, 0)]
    assert spans["node1"] == [(claimer, 600.0, None, 1)]
    assert spans["node2"] == []
    assert metrics(driver) == {
        "penstock_claims": 1,
        "penstock_claimed_nodes": 2,
        "penstock_claimed_idle_cores": 1,
    }
    driver.pod("ends", 1000, limit_s=500)
    driver.settle()
    driver.end("on0")
    assert job in driver.scheduler.reservations()
    assert metrics(driver)["penstock_claims"] == 1
    assert metrics(driver)["penstock_claimed_nodes"] == 0
    kinds = {
        span.kind for node in live_timeline(driver.scheduler, driver.now, 0.0).nodes for span in node.spans
    }
    assert kinds == {"running", "reserved"}
    driver.run_until(700)
    driver.pod("urgent", class_value=10)  # It takes what was reserved, and has no end.
    driver.settle()
    again = [
        span
        for node in live_timeline(driver.scheduler, driver.now, 0.0).nodes
        for span in node.spans
        if span.kind == "claimed"
    ]
    assert {(span.job, span.from_) for span in again} == {(claimer, 700.0)}


def test_the_chart_draws_a_claim_beside_the_jobs_of_its_node() -> None:
    runs = {"job": "f1", "name": "runs", "from": 0.0, "to": None, "kind": "running", "cores": 1}
    waits = {"job": "f2", "name": "waits", "from": 50.0, "to": None, "kind": "claimed", "cores": 0}
    document = {"now": 50.0, "from": 0.0, "to": 100.0, "nodes": [{"name": "n0", "spans": [runs, waits]}]}
    lines = draw(document, 60, ASCII_FILLS).lines
    assert any("B~~~" in line for line in lines)
    assert any("~~~ claimed" in line for line in lines)
