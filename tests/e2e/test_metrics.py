"""`GET /metrics` of an instance on one machine."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.instances import Running
from tests.web.canned import UnixConnection


def metrics(instance: Running) -> dict[tuple[str, str], float]:
    """The samples by name and the values of their labels."""
    connection = UnixConnection(instance.paths.socket)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, ",".join(sample.labels.values())): sample.value for sample in samples}


def test_queues_cycles_starts_and_the_store_are_measured(instance: Running) -> None:
    before = metrics(instance)
    instance.call("run", "false")
    running = instance.submit("-N4", "-t10m", "sleep", "60")
    instance.started(running)
    instance.submit("-qdebug", "-N4", "-t1m", "true")
    instance.submit("--urgency=hold", "true")
    found = metrics(instance)
    assert found["penstock_jobs", "batch,RUN"] == 1
    assert found["penstock_jobs", "debug,SCHED"] == 1
    assert found["penstock_jobs", "batch,SCHED"] == 1
    assert found["penstock_jobs", "debug,DEPEND"] == 0
    assert found["penstock_nodes", "up"] == 4
    more = {key: value - before[key] for key, value in found.items() if key in before}
    assert more["penstock_jobs_submitted_total", ""] == 4
    assert more["penstock_jobs_started_total", ""] == 2
    assert more["penstock_jobs_ended_total", "FAILED"] == 1
    assert more["penstock_jobs_ended_total", "COMPLETED"] == 0
    assert more["penstock_cycle_seconds_count", "shallow"] + more["penstock_cycle_seconds_count", "deep"] >= 2
    assert more["penstock_store_transaction_seconds_count", ""] >= 4
