"""Warnings about keys that have no effect and values that cannot be read: on their object, and once."""

from __future__ import annotations

from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.declaration_warnings import DeclarationWarnings
from penstock.backends.kube.settings import KubeSettings
from penstock.kube.types import KubeObject
from penstock.protocol.facts import WorkloadSet
from tests.backends.kube_caches import NOW, put
from tests.backends.kube_objects import deployment, job, node, owned_by, pod, replica_set

LIMIT = "unknown key penstock.dev/limt has no effect; did you mean penstock.dev/limit?"
QUEUE = "unknown key penstock.dev/queu has no effect; did you mean penstock.dev/queue?"


def warnings_of(warnings: DeclarationWarnings, *objects: KubeObject) -> list[tuple[str, str, str]]:
    """Fills a cache, as after each list of everything, and returns the warnings that are new."""
    cache = ClusterCache(KubeSettings(), warnings)
    for one in (node(), *objects):
        put(cache, one)
    cache.facts(NOW)
    events = warnings.take_events()
    assert all(one.reason == "UnknownKey" and one.is_warning for one in events)
    return [(one.regarding.kind, one.regarding.name, one.note) for one in events]


def test_a_pod_is_warned_once_about_each_unknown_key() -> None:
    warnings = DeclarationWarnings()
    one = pod("a", annotations={"penstock.dev/limt": "1h"}, labels={"penstock.dev/limt": "1h"})
    assert warnings_of(warnings, one, one) == [("Pod", "a", LIMIT)]
    assert warnings_of(warnings, one) == []  # Everything was listed again.
    more = pod("a", annotations={"penstock.dev/limt": "1h", "penstock.dev/queu": "x"})
    assert warnings_of(warnings, more) == [("Pod", "a", QUEUE)]
    assert warnings_of(warnings, pod("b", annotations={"penstock.dev/limt": "1h"})) == [("Pod", "b", LIMIT)]


def test_controllers_are_warned_once_for_all_of_their_pods() -> None:
    train = job("train", annotations={"penstock.dev/limt": "1h"})
    pods = [pod(name, owner=owned_by("Job", "train")) for name in ("a", "b")]
    assert warnings_of(DeclarationWarnings(), train, *pods) == [("Job", "train", LIMIT)]
    web = deployment(annotations={"penstock.dev/queu": "x"})
    replica = pod("c", owner=owned_by("ReplicaSet", "web-1"))
    found = warnings_of(DeclarationWarnings(), web, replica_set(deployment="web"), replica)
    assert found == [("Deployment", "web", QUEUE)]


def test_a_key_that_is_added_to_the_job_of_a_running_pod_is_noticed() -> None:
    warnings = DeclarationWarnings()
    running = pod("a", node="n1", placed=True, phase="Running", owner=owned_by("Job", "train"))
    cache = ClusterCache(KubeSettings(), warnings)
    for one in (node(), job("train"), running):
        put(cache, one)
    cache.facts(NOW)
    assert warnings.take_events() == []
    put(cache, job("train", annotations={"penstock.dev/limt": "2h"}))
    cache.facts(NOW)
    assert [one.note for one in warnings.take_events()] == [LIMIT]


def test_pods_of_other_schedulers_and_known_keys_cause_no_warning() -> None:
    theirs = pod("a", ours=False, annotations={"penstock.dev/limt": "1h"})
    idle = job("idle", annotations={"penstock.dev/limt": "1h"})  # It has no pod of ours.
    assert (
        warnings_of(DeclarationWarnings(), theirs, idle, pod("b", annotations={"penstock.dev/limit": "1h"}))
        == []
    )


def test_an_invalid_value_on_a_running_pod_is_reported_once() -> None:
    warnings = DeclarationWarnings()
    cache = ClusterCache(KubeSettings(), warnings)
    put(cache, node())

    def reported(limit: str) -> list[tuple[int | None, bool]]:
        keys = {"penstock.dev/limit": limit}
        put(cache, pod("a", node="n1", placed=True, phase="Running", annotations=keys))
        facts = [fact for fact in cache.facts(NOW) if isinstance(fact, WorkloadSet)]
        return [(fact.limit_s, fact.keeps_limit) for fact in facts]

    assert reported("1h") == [(3600, False)]
    assert reported("2 hours") == [(None, True)]
    assert reported("2 hours") == []
    (event,) = warnings.take_events()
    assert event.reason == "InvalidSpec"
    assert event.note.startswith("invalid penstock.dev/limit on the pod: found '2 hours', expected")
    assert event.note.endswith("; its job keeps its time limit")
    assert reported("2h") == [(7200, False)]
