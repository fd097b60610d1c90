"""Intents on a server that refuses, does not respond, or responds late."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from penstock import failpoints
from penstock.backends.kube import executor
from penstock.backends.kube.executor import IntentExecutor
from penstock.kube.client import PatchType
from penstock.kube.errors import (
    ApiConflict,
    Forbidden,
    NotFound,
    OutcomeUnknown,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from penstock.kube.types import NodeTaint, Pod, UnstructuredObject
from penstock.model.jobid import encode_jobid
from penstock.podspec.keys import JOB_ANNOTATION
from penstock.protocol.facts import IntentResult, MemberGone, MemberStatus, Outcome, Phase
from penstock.protocol.intents import Assignment, End, EndReason, Evict, Intent, Place
from tests.backends.kube_client import FakeClient
from tests.backends.kube_execution import BOUND, NOW, PLACE, FakeContext, execute, outcomes, quick
from tests.backends.kube_objects import job, native_group, node, owned_by, pod

__all__ = ["quick"]  # a fixture

pytestmark = pytest.mark.usefixtures("quick")


# Binding


def test_a_pod_is_bound_with_the_id_of_its_job() -> None:
    context, client = FakeContext(pod()), FakeClient()
    assert outcomes(execute(context, client, PLACE)) == [Outcome.APPLIED]
    assert client.requests == [("bind", ("default/a", "uid-a", "n1", {JOB_ANNOTATION: encode_jobid(77)}))]
    assert context.bound == [("a", "n1")]


def test_a_pod_that_is_not_in_the_cache_is_gone_without_a_request() -> None:
    client = FakeClient()
    assert outcomes(execute(FakeContext(), client, PLACE)) == [Outcome.GONE]
    assert client.requests == []


def test_a_pod_that_the_server_does_not_have_is_gone() -> None:
    client = FakeClient(bind=[NotFound(404)])
    assert outcomes(execute(FakeContext(pod()), client, PLACE)) == [Outcome.GONE]


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (BOUND, Outcome.APPLIED),
        (pod(node="n1"), Outcome.APPLIED),
        (pod(uid="another"), Outcome.GONE),
        (NotFound(404), Outcome.GONE),
        (pod(gated=True), Outcome.CONFLICT),
        (pod(deletionTimestamp="2026-01-01T00:00:00Z"), Outcome.GONE),
        (pod(phase="Failed"), Outcome.GONE),
    ],
)
@pytest.mark.parametrize("error", [ApiConflict(409), OutcomeUnknown("reset")])
def test_a_conflict_and_an_unknown_outcome_are_resolved_by_a_read(
    found: object, outcome: Outcome, error: Exception
) -> None:
    client = FakeClient(bind=[error], get=[found])
    assert outcomes(execute(FakeContext(pod()), client, PLACE)) == [outcome]
    assert client.verbs() == ["bind", "get"]


def test_a_binding_found_by_a_read_counts_at_once() -> None:
    """The watch may deliver the binding much later."""
    context = FakeContext(pod("a", cpu="1500m"), pod("b", cpu="1500m"))
    client = FakeClient(bind=[OutcomeUnknown("reset")], get=[pod("a", cpu="1500m", node="n1", placed=True)])
    execute(context, client, PLACE)
    other = Place(2, 78, "default/pod/uid-b", (Assignment("uid-b", 0, "n1"),))
    assert outcomes(execute(context, client, other, want=2)) == [Outcome.APPLIED, Outcome.CONFLICT]


def test_a_pod_bound_by_another_scheduler_is_no_member() -> None:
    """The cache reports its usage; a second report would outlive the pod."""
    client = FakeClient(bind=[ApiConflict(409)], get=[pod(node="n2")])
    assert execute(FakeContext(pod()), client, PLACE) == [MemberGone("uid-a")]
    assert execute(FakeContext(pod(node="n2")), FakeClient(), PLACE) == [MemberGone("uid-a")]


def test_a_pod_that_an_earlier_term_has_bound_elsewhere_is_reported() -> None:
    client = FakeClient(bind=[ApiConflict(409)], get=[pod(node="n2", placed=True, phase="Running")])
    (found,) = execute(FakeContext(pod()), client, PLACE)
    assert isinstance(found, MemberStatus)
    assert (found.phase, found.node) == (Phase.RUNNING, "n2")
    assert dict(found.usage) == {"cpu": 1000, "pods": 1}


@pytest.mark.parametrize(
    "error",
    [
        OutcomeUnknown("reset"),
        Unreachable("no route"),
        TooManyRequests(429),
        ServerError(503),
        ApiConflict(409),
    ],
)
def test_a_binding_that_was_not_done_is_retried(error: Exception) -> None:
    client = FakeClient(bind=[error], get=[pod()])
    assert outcomes(execute(FakeContext(pod()), client, PLACE)) == [Outcome.APPLIED]
    assert client.verbs().count("bind") == 2


def test_a_binding_that_stays_undecided_is_reported_as_unknown() -> None:
    client = FakeClient(bind=[Unreachable("no route")] * 9)
    facts = execute(FakeContext(pod()), client, PLACE)
    assert facts == [IntentResult(1, "uid-a", Outcome.UNKNOWN, "no route")]
    assert client.verbs() == ["bind"] * 4


def test_nothing_is_bound_without_leadership() -> None:
    context, client = FakeContext(pod(), is_leader=lambda: False), FakeClient()
    assert outcomes(execute(context, client, PLACE)) == [Outcome.UNKNOWN]
    assert client.requests == []


def test_a_leader_that_is_confirmed_in_time_binds() -> None:
    responses = iter([False, True])
    context, client = FakeContext(pod(), is_leader=lambda: next(responses, True)), FakeClient()
    assert outcomes(execute(context, client, PLACE)) == [Outcome.APPLIED]


def test_a_missing_node_and_a_full_node_are_conflicts() -> None:
    client = FakeClient()
    gone = replace(PLACE, assignments=(Assignment("uid-a", 0, "n9"),))
    (first,) = execute(FakeContext(pod()), client, gone)
    assert isinstance(first, IntentResult)
    assert (first.outcome, first.detail == "node n9 does not exist") == (Outcome.CONFLICT, True)
    (second,) = execute(FakeContext(pod(), pod("b", ours=False, node="n1", cpu="1500m")), client, PLACE)
    assert isinstance(second, IntentResult)
    assert second.outcome is Outcome.CONFLICT
    assert second.detail == "node n1 no longer has the requested resources"
    assert client.requests == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"unschedulable": True}, "cordoned"),
        ({"taints": (NodeTaint("maintenance", "", "NoSchedule"),)}, "taints or labels have changed"),
    ],
)
def test_the_state_of_the_node_is_checked_again_before_a_binding(change: dict[str, Any], words: str) -> None:
    """The watch has delivered it, and the scheduler does not know of it yet."""
    context = FakeContext(pod())
    before = node("n1", cpu="2")
    spec = msgspec.structs.replace(before.spec, **change)
    context.cache.set_node(msgspec.structs.replace(before, spec=spec))
    client = FakeClient()
    (found,) = execute(context, client, PLACE)
    assert isinstance(found, IntentResult)
    assert found.outcome is Outcome.CONFLICT
    assert words in found.detail
    assert client.requests == []


def test_bindings_in_flight_count_until_the_watch_shows_them() -> None:
    """Two of ours and one of another scheduler on a node of two cores: the last one is not bound."""
    ours, other = pod(cpu="1"), pod("x", cpu="1", ours=False, node="n1")
    context = FakeContext(ours, pod("b", cpu="1"))
    execute(context, FakeClient(), PLACE)
    assert context.bound == [("a", "n1")]
    context.cache.set_pod(other)
    second = Place(2, 78, "default/pod/uid-b", (Assignment("uid-b", 0, "n1"),))
    found = execute(context, FakeClient(), second, want=2)[-1]
    assert context.bound == [("a", "n1")]
    assert isinstance(found, IntentResult)
    assert found.detail == "node n1 no longer has the requested resources"
    context.cache.remove_pod(ours)
    assert context.cache.bind_problem("n1", pod("b", cpu="1")) == ""


def test_a_pod_that_another_scheduler_binds_while_a_request_waits_withdraws_it() -> None:
    context = FakeContext(pod(cpu="1"))
    other = pod("x", cpu="2", ours=False, node="n1")
    client = FakeClient(before_bind=[lambda: context.cache.set_pod(other)])
    (found,) = execute(context, client, PLACE)
    assert isinstance(found, IntentResult)
    assert (found.outcome, context.bound, client.requests) == (Outcome.CONFLICT, [], [])
    assert found.detail == "node n1 no longer has the requested resources"
    context.cache.remove_pod(other)
    assert context.cache.bind_problem("n1", pod("b", cpu="2")) == "", "the withdrawn binding does not count"


def test_a_binding_that_fails_is_not_counted() -> None:
    context = FakeContext(pod(cpu="2"))
    execute(context, FakeClient(bind=[NotFound(404)]), PLACE)
    assert context.cache.bind_problem("n1", pod("b", cpu="2")) == ""


def test_a_terminated_pod_uses_nothing() -> None:
    context = FakeContext(pod(), pod("b", ours=False, node="n1", cpu="2", phase="Succeeded"))
    assert outcomes(execute(context, FakeClient(), PLACE)) == [Outcome.APPLIED]


def test_only_the_last_version_of_a_pod_counts_as_usage() -> None:
    context = FakeContext(pod(), pod("b", ours=False, node="n1", cpu="2"))
    for version in "234":
        context.cache.set_pod(pod("b", ours=False, node="n1", cpu="1", resourceVersion=version))
    assert outcomes(execute(context, FakeClient(), PLACE)) == [Outcome.APPLIED]


def test_a_deleted_pod_uses_nothing() -> None:
    other = pod("b", ours=False, node="n1", cpu="2")
    context = FakeContext(pod(), other)
    context.cache.remove_pod(other)
    assert outcomes(execute(context, FakeClient(), PLACE)) == [Outcome.APPLIED]


def test_assignments_that_are_placed_already_are_skipped() -> None:
    assignments = (Assignment("uid-a", 0, "n1", already_placed=True), Assignment("uid-b", 1, "n1"))
    client = FakeClient()
    execute(FakeContext(pod(), pod("b")), client, replace(PLACE, assignments=assignments))
    assert [what[1] for _, what in client.requests] == ["uid-b"]


def test_a_native_pod_group_gets_its_condition_when_all_pods_are_bound() -> None:
    spec = {"schedulingGroup": {"podGroupName": "ring"}}
    context = FakeContext(pod("a", spec=spec), pod("b", spec=spec))
    context.cache.set_native_group(native_group("ring"))
    assignments = (Assignment("uid-a", 0, "n1"), Assignment("uid-b", 1, "n1"))
    client = FakeClient()
    execute(
        context, client, replace(PLACE, workload="default/podgroup/ring", assignments=assignments), want=2
    )
    assert client.verbs() == ["bind", "bind", "patch"]
    path, body, kind = client.requests[-1][1]
    assert path.endswith("/namespaces/default/podgroups/ring/status")
    assert kind is PatchType.STRATEGIC, "other conditions stay"
    assert body["status"]["conditions"][0]["type"] == "PodGroupInitiallyScheduled"


def test_a_native_pod_group_gets_no_condition_without_leadership() -> None:
    responses = iter([True])
    context = FakeContext(pod("a", spec={"schedulingGroup": {"podGroupName": "ring"}}))
    context.is_leader = lambda: next(responses, False)
    context.cache.set_native_group(native_group("ring"))
    client = FakeClient()
    execute(context, client, replace(PLACE, workload="default/podgroup/ring"))
    assert client.verbs() == ["bind"]


# Evicting


def test_an_eviction_that_a_disruption_budget_refuses_occupies_no_worker() -> None:
    budget = TooManyRequests(429, causes=("DisruptionBudget",))
    client = FakeClient(evict=[budget, budget, Unreachable("no route")])
    context = FakeContext(BOUND, pod("b"))
    evict = Evict(2, 77, ("uid-a",))
    place = Place(1, 78, "default/pod/uid-b", (Assignment("uid-b", 0, "n1"),))
    facts = execute(context, client, evict, place, want=2)
    assert facts == [IntentResult(1, "uid-b", Outcome.APPLIED), IntentResult(2, "uid-a", Outcome.APPLIED)]
    assert client.verbs().count("evict") == 4
    (event,) = context.events
    assert (event.regarding.name, event.reason) == ("a", "EvictionBlocked"), "it is told once"
    assert "PodDisruptionBudget" in event.note


@pytest.mark.parametrize(
    ("responses", "outcome"),
    [
        ({"evict": [NotFound(404)]}, Outcome.GONE),
        ({"evict": [ApiConflict(409)], "get": [pod(uid="another")]}, Outcome.GONE),
        ({"evict": [ApiConflict(409)], "get": [BOUND]}, Outcome.APPLIED),
    ],
)
def test_evictions(responses: dict[str, list[object]], outcome: Outcome) -> None:
    client = FakeClient(**responses)
    assert outcomes(execute(FakeContext(BOUND), client, Evict(2, 77, ("uid-a",)))) == [outcome]


def test_paused_actions_are_dropped_with_the_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """A term executes nothing of an earlier one."""
    monkeypatch.setattr(executor, "_EVICT_PAUSE_S", 0.05)

    async def scenario() -> None:
        client = FakeClient(evict=[TooManyRequests(429, causes=("DisruptionBudget",))])
        context = FakeContext(BOUND)
        queue = IntentExecutor(client, context, lambda: NOW)  # type: ignore[arg-type]
        queue.put(Evict(2, 77, ("uid-a",)))
        for pause_s in (0.01, 0.1):  # one term each
            worker = asyncio.create_task(queue.run_worker())
            await asyncio.sleep(pause_s)
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
            queue.clear()
        assert client.verbs() == ["evict"]
        assert context.facts == []

    asyncio.run(scenario())


# Ending

END = End(3, 77, ("uid-a",), 15, 30.2, EndReason.CANCEL)


def test_a_job_is_ended_by_its_deadline_once() -> None:
    owner = owned_by("Job", "train")
    pods = [pod(name, owner=owner, node="n1", placed=True) for name in "ab"]
    client = FakeClient()
    context = FakeContext(job(started=1900.0), *pods)
    end = replace(END, members=("uid-a", "uid-b"), note="wrong data set")
    facts = execute(context, client, end, want=2)
    assert outcomes(facts) == [Outcome.APPLIED] * 2
    (patch,) = client.requests
    assert patch[1][1] == {"metadata": {"uid": "uid-train"}, "spec": {"activeDeadlineSeconds": 100}}
    (event,) = context.events
    assert (event.regarding.kind, event.regarding.name, event.reason) == ("Job", "train", "Canceled")
    assert event.note == "Penstock ends it: job ƒ2L was canceled: wrong data set"


@pytest.mark.parametrize("job_object", [job(over="Failed"), job(started=1900.0, activeDeadlineSeconds=100)])
def test_a_job_that_is_ending_already_is_not_patched(job_object: UnstructuredObject) -> None:
    client = FakeClient()
    context = FakeContext(job_object, pod(owner=owned_by("Job", "train"), node="n1", placed=True))
    assert outcomes(execute(context, client, END)) == [Outcome.APPLIED]
    assert client.requests == []


@pytest.mark.parametrize("error", [Unreachable("no route"), OutcomeUnknown("reset"), Forbidden(403)])
def test_an_end_is_retried_until_it_is_done(error: Exception) -> None:
    client = FakeClient(patch=[error, error])
    context = FakeContext(job(started=1900.0), pod(owner=owned_by("Job", "train"), node="n1", placed=True))
    assert outcomes(execute(context, client, END)) == [Outcome.APPLIED]
    assert client.verbs() == ["patch"] * 3
    client = FakeClient(delete=[error, error])
    assert outcomes(execute(FakeContext(BOUND), client, END)) == [Outcome.APPLIED]
    assert client.verbs() == ["delete"] * 3


def test_the_end_of_a_job_is_not_retried_when_its_pods_are_gone() -> None:
    context = FakeContext(job(started=1900.0), pod(owner=owned_by("Job", "train"), node="n1", placed=True))

    def gone() -> None:
        context.cache.remove_pod(pod())
        raise ApiConflict(409, message="the uid is another")

    client = FakeClient(patch=[gone, *[ApiConflict(409)] * 50])
    assert outcomes(execute(context, client, END)) == [Outcome.GONE]
    assert client.verbs() == ["patch"]
    other = FakeContext(*OF_A_JOB)
    ended = execute(other, FakeClient(patch=[lambda: other.cache.remove_pod(pod())]), END)
    assert outcomes(ended) == [Outcome.APPLIED]
    assert [event.reason for event in other.events] == ["Canceled"]


def test_a_pod_without_a_job_is_deleted_with_its_grace_period() -> None:
    client = FakeClient()
    context = FakeContext(BOUND)
    assert outcomes(execute(context, client, replace(END, reason=EndReason.TIMEOUT))) == [Outcome.APPLIED]
    assert client.requests == [("delete", ("/api/v1/namespaces/default/pods/a", "uid-a", 31))]
    (event,) = context.events
    assert (event.regarding.kind, event.reason) == ("Pod", "DeadlineExceeded")
    assert "has reached its time limit" in event.note


@pytest.mark.parametrize("error", [NotFound(404), ApiConflict(409)])
def test_ending_a_pod_that_is_gone_reports_gone(error: Exception) -> None:
    assert outcomes(execute(FakeContext(BOUND), FakeClient(delete=[error]), END)) == [Outcome.GONE]
    assert outcomes(execute(FakeContext(), FakeClient(), END)) == [Outcome.GONE]


def test_a_signal_without_an_end_is_logged_and_applied(caplog: pytest.LogCaptureFixture) -> None:
    client = FakeClient()
    assert outcomes(execute(FakeContext(BOUND), client, replace(END, grace_s=None))) == [Outcome.APPLIED]
    assert client.requests == []
    assert "cannot signal pod default/a" in caplog.text


OF_A_JOB = (job(started=1900.0), pod(owner=owned_by("Job", "train"), node="n1", placed=True))


@pytest.mark.parametrize("known", [(BOUND,), OF_A_JOB], ids=["by itself", "of a job"])
@pytest.mark.parametrize("intent", [END, Evict(2, 77, ("uid-a",))], ids=["end", "evict"])
def test_nothing_is_ended_or_evicted_without_leadership(
    known: tuple[Pod | UnstructuredObject, ...], intent: Intent
) -> None:
    client = FakeClient()
    assert execute(FakeContext(*known, is_leader=lambda: False), client, intent, want=0) == []
    assert client.requests == []
    responses = iter([False, False])
    context = FakeContext(*known, is_leader=lambda: next(responses, True))
    assert outcomes(execute(context, client, intent)) == [Outcome.APPLIED]
    assert len(client.requests) == 1


# Internal errors


@pytest.mark.parametrize(
    ("intent", "verb"),
    [(PLACE, "bind"), (Evict(2, 77, ("uid-a",)), "evict"), (END, "delete")],
)
def test_an_internal_error_in_an_action_is_reported_as_unknown(
    intent: Intent, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    context = FakeContext(pod() if intent is PLACE else BOUND, pod("b"))
    client = FakeClient(**{verb: [ZeroDivisionError("unexpected")]})
    other = Place(9, 78, "default/pod/uid-b", (Assignment("uid-b", 0, "n1"),))
    facts = execute(context, client, intent, other, want=2)
    why = "internal error: unexpected"
    assert IntentResult(intent.intent, "uid-a", Outcome.UNKNOWN, why) in facts
    assert IntentResult(9, "uid-b", Outcome.APPLIED) in facts
    assert "Traceback" in caplog.text


def test_a_probe_is_retried_after_an_internal_error() -> None:
    (found,) = execute(FakeContext(BOUND), FakeClient(get=[ZeroDivisionError(), BOUND]), probe="uid-a")
    assert isinstance(found, MemberStatus)


def test_a_crash_and_a_cancellation_end_the_worker() -> None:
    for death in (failpoints.Crash(), asyncio.CancelledError()):
        with pytest.raises(type(death)):
            execute(FakeContext(pod()), FakeClient(bind=[death]), PLACE)


def test_a_pod_that_requests_more_than_can_be_counted_fits_nowhere() -> None:
    context, client = FakeContext(pod(cpu="9223372036854775807")), FakeClient()
    assert outcomes(execute(context, client, PLACE)) == [Outcome.CONFLICT]
    assert client.requests == []


# Repeated intents


@pytest.mark.parametrize(
    ("intent", "verb"),
    [(END, "delete"), (Evict(2, 77, ("uid-a",)), "evict"), (PLACE, "bind")],
)
def test_an_intent_that_is_repeated_while_it_is_open_is_executed_once(intent: Intent, verb: str) -> None:
    """As after every snapshot, when the scheduler repeats all open intents."""
    context = FakeContext(pod() if intent is PLACE else BOUND)
    client = FakeClient(**{verb: [Unreachable("no route")] * 3})
    facts = execute(context, client, *[intent] * 5)
    assert outcomes(facts) == [Outcome.APPLIED]
    assert client.verbs() == [verb] * 4


def test_an_intent_that_is_done_can_be_repeated() -> None:
    """The pod has its node on the server, and the cache does not know it yet."""
    context, client = FakeContext(pod()), FakeClient(bind=[None, ApiConflict(409)], get=[BOUND])
    execute(context, client, PLACE)
    assert outcomes(execute(context, client, PLACE, want=2)) == [Outcome.APPLIED] * 2


def test_a_native_pod_group_gets_one_condition_for_a_repeated_intent() -> None:
    spec = {"schedulingGroup": {"podGroupName": "ring"}}
    context = FakeContext(pod("a", spec=spec), pod("b", spec=spec))
    context.cache.set_native_group(native_group("ring"))
    assignments = (Assignment("uid-a", 0, "n1"), Assignment("uid-b", 1, "n1"))
    client = FakeClient(bind=[None, Unreachable("no route")])
    place = replace(PLACE, workload="default/podgroup/ring", assignments=assignments)
    execute(context, client, place, place, want=2)
    assert client.verbs() == ["bind", "bind", "bind", "patch"]


# Probes


def test_a_probe_reports_what_the_server_has() -> None:
    context = FakeContext(pod())
    running = msgspec.structs.replace(BOUND, status=msgspec.structs.replace(BOUND.status, phase="Running"))
    (found,) = execute(context, FakeClient(get=[running]), probe="uid-a")
    assert isinstance(found, MemberStatus)
    assert (found.phase, found.node) == (Phase.RUNNING, "n1")
    (waiting,) = execute(FakeContext(pod()), FakeClient(get=[pod()]), probe="uid-a")
    assert waiting == MemberStatus("uid-a", Phase.WAITING, NOW)


def test_a_probe_of_a_deleted_pod_reports_gone() -> None:
    assert execute(FakeContext(), FakeClient(), probe="uid-a") == [MemberGone("uid-a")]
    assert execute(FakeContext(pod()), FakeClient(get=[NotFound(404)]), probe="uid-a") == [
        MemberGone("uid-a")
    ]
    assert execute(FakeContext(pod()), FakeClient(get=[pod(uid="other")]), probe="uid-a") == [
        MemberGone("uid-a")
    ]


def test_a_pod_that_a_probe_finds_deleted_uses_nothing() -> None:
    context = FakeContext(pod("a", cpu="2", node="n1", placed=True), pod("b", cpu="2"))
    execute(context, FakeClient(get=[NotFound(404)]), probe="uid-a")
    other = Place(2, 78, "default/pod/uid-b", (Assignment("uid-b", 0, "n1"),))
    facts = execute(context, FakeClient(), other, want=2)
    assert facts == [MemberGone("uid-a"), IntentResult(2, "uid-b", Outcome.APPLIED)]


def test_a_probe_is_retried_while_the_server_does_not_respond() -> None:
    client = FakeClient(get=[Unreachable("no route"), ServerError(503), BOUND])
    (found,) = execute(FakeContext(BOUND), client, probe="uid-a")
    assert isinstance(found, MemberStatus)
    assert found.phase is Phase.PLACED
