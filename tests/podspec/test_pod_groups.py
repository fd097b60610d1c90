"""The phase of a coscheduling PodGroup, from its pods."""

from __future__ import annotations

import pytest

from penstock.podspec.pod_groups import PodCounts, PodProgress, pod_group_status, pod_progress
from tests.backends.kube_objects import pod


@pytest.mark.parametrize(
    ("before", "counts", "phase"),
    [
        ("", PodCounts(waiting=2), "Pending"),  # pods are missing
        ("Pending", PodCounts(waiting=3), "Scheduling"),
        ("Scheduling", PodCounts(waiting=1, running=2), "Scheduling"),
        ("Scheduling", PodCounts(running=3), "Running"),
        ("Running", PodCounts(waiting=5, running=3), "Running"),  # further pods wait to join
        ("Running", PodCounts(running=1, succeeded=2), "Running"),
        ("Running", PodCounts(succeeded=3), "Finished"),
        ("Running", PodCounts(succeeded=3, failed=1), "Finished"),
        ("Running", PodCounts(running=2, failed=1), "Failed"),
        ("Running", PodCounts(succeeded=2, failed=1), "Failed"),
        ("Failed", PodCounts(waiting=1, running=2, failed=1), "Scheduling"),  # a replacement waits
        ("Failed", PodCounts(running=3, failed=1), "Running"),  # and runs
        ("Running", PodCounts(running=2), "Running"),  # one that has succeeded was deleted
        ("Finished", PodCounts(succeeded=1), "Finished"),  # its pods are deleted one by one
        ("Failed", PodCounts(succeeded=1), "Failed"),
        ("Finished", PodCounts(waiting=1), "Pending"),  # it is used again
        ("Running", PodCounts(), "Pending"),
    ],
)
def test_the_phase_of_a_group_that_needs_three_pods(before: str, counts: PodCounts, phase: str) -> None:
    found = pod_group_status(before, 3, counts)
    assert (found.phase, found.running, found.succeeded, found.failed) == (
        phase,
        counts.running,
        counts.succeeded,
        counts.failed,
    )


def test_a_bound_pod_waits_until_it_runs() -> None:
    assert pod_progress(pod(node="n1")) is PodProgress.WAITING
    assert pod_progress(pod(node="n1", phase="Running")) is PodProgress.RUNNING
