"""The instance benchmark submits and runs jobs and counts their events."""

from __future__ import annotations

from bench.instance import InstanceReport, measure_long_queue, measure_mock


def test_jobs_are_submitted_through_the_socket_and_every_event_is_a_row() -> None:
    figure = measure_mock(20, nodes=4)
    assert figure.jobs == 20
    assert figure.events >= 20 * 10  # submit validate depend priority alloc start finish release free clean
    assert "| no-op jobs | 20 |" in InstanceReport((figure,), measure_long_queue(60, 5, nodes=4)).markdown()


def test_a_long_queue_fills_the_cluster_once_and_then_starts_nothing() -> None:
    queue = measure_long_queue(200, 4, nodes=5, cores=4)
    assert 5 <= queue.started <= 20
    assert queue.jobs == 200
