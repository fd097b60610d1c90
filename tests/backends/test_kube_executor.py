"""Intents carried out on a server that says no, says nothing, or says it too late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from penstock import failpoints
from penstock.backends.kube import action_queue, executor
from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.executor import IntentExecutor
from penstock.backends.kube.settings import KubeSettings
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
from penstock.kube.types import Pod, UnstructuredObject
from penstock.model.jobid import encode_jobid
from penstock.podspec.keys import JOB_ANNOTATION
from penstock.protocol.facts import Fact, IntentResult, MemberGone, MemberStatus, Outcome, Phase
from penstock.protocol.intents import Assignment, End, EndReason, Intent, Place, Retract, RetractMode
from tests.backends.kube_client import FakeClient
from tests.backends.kube_objects import as_controller, job, native_group, node, owned_by, pod

NOW = 2000.0
PLACE = Place(1, 77, "default/pod/uid-a", (Assignment("uid-a", 0, "n1"),))
BOUND = pod(node="n1", placed=True)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_BIND_PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(executor, "_EVICT_PAUSE_S", 0.001)
    monkeypatch.setattr(executor, "_RETRY_S", 0.001)
    monkeypatch.setattr(action_queue, "_FAULT_PAUSE_S", 0.001)


class Around:
    def __init__(
        self, *objects: Pod | UnstructuredObject, is_in_office: Callable[[], bool] = lambda: True
    ) -> None:
        self.cache = ClusterCache(KubeSettings())
        self.cache.set_node(node("n1", cpu="2"))
        for one in objects:
            if isinstance(one, Pod):
                self.cache.set_pod(one)
            else:
                self.cache.set_controller(as_controller(one))
        self.cache.facts(NOW)
        self.is_in_office = is_in_office
        self.facts: list[Fact] = []
        self.bound: list[tuple[str, str]] = []

    def may_act(self) -> bool:
        return self.is_in_office()

    def report(self, fact: Fact) -> None:
        self.facts.append(fact)

    def scheduled(self, found: Pod, on: str) -> None:
        self.bound.append((found.metadata.name, on))


def carry_out(
    context: Around,
    client: FakeClient,
    *intents: Intent,
    probe: str = "",
    want: int = 1,
    until: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = lambda: NOW,
) -> list[Fact]:
    """Until so many facts were told, and something else is so."""

    async def scenario() -> None:
        actions = IntentExecutor(client, context, clock)  # type: ignore[arg-type]
        for intent in intents:
            actions.put(intent)
        if probe:
            actions.put_probe(probe)
        workers = [asyncio.create_task(actions.run_worker()) for _ in range(2)]
        try:
            async with asyncio.timeout(5):
                while len(context.facts) < want or not until():
                    for worker in workers:
                        if worker.done():
                            worker.result()
                    await asyncio.sleep(0.001)
            await asyncio.sleep(0.005)  # Nothing more comes.
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            actions.clear()

    asyncio.run(scenario())
    return context.facts


def outcomes(facts: list[Fact]) -> list[Outcome]:
    assert all(isinstance(fact, IntentResult) for fact in facts)
    return [fact.outcome for fact in facts if isinstance(fact, IntentResult)]


# Binding


def test_a_pod_is_bound_with_the_id_of_its_job() -> None:
    context, client = Around(pod()), FakeClient()
    assert outcomes(carry_out(context, client, PLACE)) == [Outcome.APPLIED]
    assert client.asked == [("bind", ("default/a", "uid-a", "n1", {JOB_ANNOTATION: encode_jobid(77)}))]
    assert context.bound == [("a", "n1")]


def test_a_pod_that_is_not_known_is_gone_without_a_question() -> None:
    client = FakeClient()
    assert outcomes(carry_out(Around(), client, PLACE)) == [Outcome.GONE]
    assert client.asked == []


def test_a_pod_that_the_server_does_not_know_is_gone() -> None:
    client = FakeClient(bind=[NotFound(404)])
    assert outcomes(carry_out(Around(pod()), client, PLACE)) == [Outcome.GONE]


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
@pytest.mark.parametrize("error", [ApiConflict(409), OutcomeUnknown("it broke")])
def test_a_refusal_and_a_silence_are_looked_up(found: object, outcome: Outcome, error: Exception) -> None:
    client = FakeClient(bind=[error], get=[found])
    assert outcomes(carry_out(Around(pod()), client, PLACE)) == [outcome]
    assert client.verbs() == ["bind", "get"]


def test_what_was_looked_up_takes_room_at_once() -> None:
    """A binding that was done after all is not heard of otherwise until a watch brings it."""
    context = Around(pod("a", cpu="1500m"), pod("b", cpu="1500m"))
    client = FakeClient(
        bind=[OutcomeUnknown("it broke")], get=[pod("a", cpu="1500m", node="n1", placed=True)]
    )
    carry_out(context, client, PLACE)
    other = Place(2, 78, "default/pod/uid-b", (Assignment("uid-b", 0, "n1"),))
    assert outcomes(carry_out(context, client, other, want=2)) == [Outcome.APPLIED, Outcome.CONFLICT]


def test_one_that_others_have_placed_is_no_member_any_more() -> None:
    """The mirror tells what it uses; a second account of it would stay when the pod is gone."""
    client = FakeClient(bind=[ApiConflict(409)], get=[pod(node="n2")])
    assert carry_out(Around(pod()), client, PLACE) == [MemberGone("uid-a")]
    assert carry_out(Around(pod(node="n2")), FakeClient(), PLACE) == [MemberGone("uid-a")]


def test_one_that_an_earlier_life_of_ours_has_placed_elsewhere_is_observed() -> None:
    client = FakeClient(bind=[ApiConflict(409)], get=[pod(node="n2", placed=True, phase="Running")])
    (found,) = carry_out(Around(pod()), client, PLACE)
    assert isinstance(found, MemberStatus)
    assert (found.phase, found.node) == (Phase.RUNNING, "n2")
    assert dict(found.usage) == {"cpu": 1000, "pods": 1}


@pytest.mark.parametrize(
    "error",
    [
        OutcomeUnknown("it broke"),
        Unreachable("no way"),
        TooManyRequests(429),
        ServerError(503),
        ApiConflict(409),
    ],
)
def test_what_was_not_done_is_done_again(error: Exception) -> None:
    client = FakeClient(bind=[error], get=[pod()])
    assert outcomes(carry_out(Around(pod()), client, PLACE)) == [Outcome.APPLIED]
    assert client.verbs().count("bind") == 2


def test_what_cannot_be_found_out_is_told_as_unknown() -> None:
    client = FakeClient(bind=[Unreachable("no way")] * 9)
    facts = carry_out(Around(pod()), client, PLACE)
    assert facts == [IntentResult(1, "uid-a", Outcome.UNKNOWN, "no way")]
    assert client.verbs() == ["bind"] * 4


def test_nothing_is_done_out_of_office() -> None:
    context, client = Around(pod(), is_in_office=lambda: False), FakeClient()
    assert outcomes(carry_out(context, client, PLACE)) == [Outcome.UNKNOWN]
    assert client.asked == []


def test_who_is_in_office_again_in_time_goes_on() -> None:
    answers = iter([False, True])
    context, client = Around(pod(), is_in_office=lambda: next(answers, True)), FakeClient()
    assert outcomes(carry_out(context, client, PLACE)) == [Outcome.APPLIED]


def test_a_node_that_is_gone_and_one_without_room_are_conflicts() -> None:
    client = FakeClient()
    gone = replace(PLACE, assignments=(Assignment("uid-a", 0, "n9"),))
    (first,) = carry_out(Around(pod()), client, gone)
    assert isinstance(first, IntentResult)
    assert (first.outcome, first.detail == "node n9 does not exist") == (Outcome.CONFLICT, True)
    (second,) = carry_out(Around(pod(), pod("b", ours=False, node="n1", cpu="1500m")), client, PLACE)
    assert isinstance(second, IntentResult)
    assert second.outcome is Outcome.CONFLICT
    assert second.detail == "node n1 no longer has the requested resources"
    assert client.asked == []


def test_a_pod_that_is_over_takes_no_room() -> None:
    context = Around(pod(), pod("b", ours=False, node="n1", cpu="2", phase="Succeeded"))
    assert outcomes(carry_out(context, FakeClient(), PLACE)) == [Outcome.APPLIED]


def test_a_pod_takes_room_as_it_is_and_no_longer_as_it_was() -> None:
    context = Around(pod(), pod("b", ours=False, node="n1", cpu="2"))
    for version in "234":
        context.cache.set_pod(pod("b", ours=False, node="n1", cpu="1", resourceVersion=version))
    assert outcomes(carry_out(context, FakeClient(), PLACE)) == [Outcome.APPLIED]


def test_a_pod_that_is_gone_takes_no_room() -> None:
    other = pod("b", ours=False, node="n1", cpu="2")
    context = Around(pod(), other)
    context.cache.remove_pod(other)
    assert outcomes(carry_out(context, FakeClient(), PLACE)) == [Outcome.APPLIED]


def test_seats_that_are_settled_are_left_alone() -> None:
    assignments = (Assignment("uid-a", 0, "n1", already_placed=True), Assignment("uid-b", 1, "n1"))
    client = FakeClient()
    carry_out(Around(pod(), pod("b")), client, replace(PLACE, assignments=assignments))
    assert [what[1] for _, what in client.asked] == ["uid-b"]


def test_a_native_pod_group_is_told_once_all_are_there() -> None:
    spec = {"schedulingGroup": {"podGroupName": "ring"}}
    context = Around(pod("a", spec=spec), pod("b", spec=spec))
    context.cache.set_native_group(native_group("ring"))
    assignments = (Assignment("uid-a", 0, "n1"), Assignment("uid-b", 1, "n1"))
    client = FakeClient()
    carry_out(
        context, client, replace(PLACE, workload="default/podgroup/ring", assignments=assignments), want=2
    )
    assert client.verbs() == ["bind", "bind", "patch"]
    path, body, kind = client.asked[-1][1]
    assert path.endswith("/namespaces/default/podgroups/ring/status")
    assert kind is PatchType.STRATEGIC, "other conditions stay"
    assert body["status"]["conditions"][0]["type"] == "PodGroupInitiallyScheduled"


def test_a_native_pod_group_is_not_told_out_of_office() -> None:
    answers = iter([True])
    context = Around(pod("a", spec={"schedulingGroup": {"podGroupName": "ring"}}))
    context.is_in_office = lambda: next(answers, False)
    context.cache.set_native_group(native_group("ring"))
    client = FakeClient()
    carry_out(context, client, replace(PLACE, workload="default/podgroup/ring"))
    assert client.verbs() == ["bind"]


# Limits


def limited(name: str = "a") -> Pod:
    return pod(name, owner=owned_by("Job", "train"), notes={"penstock.dev/limit": "60"})


def test_a_limit_of_ours_becomes_the_deadline_of_the_job_once() -> None:
    context = Around(job(started=1900.0), limited("a"), limited("b"))
    assignments = (Assignment("uid-a", 0, "n1"), Assignment("uid-b", 1, "n1"))
    client = FakeClient()
    carry_out(context, client, replace(PLACE, assignments=assignments, end_at=2060.5), want=2)
    patches = [what for verb, what in client.asked if verb == "patch"]
    notes = {"penstock.dev/deadline-set": "161", "penstock.dev/deadline-original": None}
    body = {
        "metadata": {"uid": "uid-train", "annotations": notes},
        "spec": {"activeDeadlineSeconds": 161},
    }
    assert patches == [("/apis/batch/v1/namespaces/default/jobs/train", body, PatchType.MERGE)]


def test_an_earlier_deadline_of_the_job_stays() -> None:
    context = Around(job(started=1900.0, activeDeadlineSeconds=100), limited())
    client = FakeClient()
    carry_out(context, client, replace(PLACE, end_at=2060.0))
    assert client.verbs() == ["bind"]


def deadline(client: FakeClient) -> tuple[object, object, object]:
    """What was set, last: the deadline, and whose it is noted to be."""
    body = [what[1] for verb, what in client.asked if verb == "patch"][-1]
    notes = body["metadata"]["annotations"]
    found = (notes["penstock.dev/deadline-set"], notes["penstock.dev/deadline-original"])
    return body["spec"]["activeDeadlineSeconds"], *found


def had_limit(seconds: int, asked: str = "") -> UnstructuredObject:
    """A Job in its next attempt: its deadline was set by us, in the place of what its owner has asked for."""
    notes = {"penstock.dev/deadline-set": str(seconds)}
    if asked:
        notes["penstock.dev/deadline-original"] = asked
    return job(started=1000.0, activeDeadlineSeconds=seconds, notes=notes)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (had_limit(1010), (1060, "1060", None)),
        (had_limit(1010, asked="5000"), (1060, "1060", "5000")),
        (had_limit(1010, asked="1030"), (1030, None, None)),
        (job(started=1000.0, activeDeadlineSeconds=5000), (1060, "1060", "5000")),
    ],
)
def test_each_attempt_has_its_whole_limit(
    made: UnstructuredObject, expected: tuple[object, object, object]
) -> None:
    client = FakeClient()
    carry_out(Around(made, limited()), client, replace(PLACE, end_at=2060.0))
    assert client.verbs().count("patch") == 1
    assert deadline(client) == expected


def test_a_deadline_that_stands_already_is_not_set_again() -> None:
    client = FakeClient()
    carry_out(Around(had_limit(1060), limited()), client, replace(PLACE, end_at=2060.0))
    assert client.verbs() == ["bind"]


def test_a_deadline_of_ours_goes_when_the_group_has_no_limit_any_more() -> None:
    made, client = pod(owner=owned_by("Job", "train")), FakeClient()
    carry_out(Around(had_limit(1010, asked="5000"), made), client, replace(PLACE, end_at=None))
    assert deadline(client) == (5000, None, None)


def test_a_group_that_begins_anew_waits_without_a_deadline_of_ours() -> None:
    client = FakeClient()
    context = Around(had_limit(1010), pod(owner=owned_by("Job", "train"), node="n1", placed=True))
    carry_out(context, client, Retract(2, 77, ("uid-a",), RetractMode.EVICT))
    assert sorted(client.verbs()) == ["evict", "patch"]
    assert deadline(client) == (None, None, None)


def test_a_deadline_of_the_owner_stays_when_a_group_begins_anew() -> None:
    client = FakeClient()
    made = job(started=1000.0, activeDeadlineSeconds=5000)
    context = Around(made, pod(owner=owned_by("Job", "train"), node="n1", placed=True))
    carry_out(context, client, Retract(2, 77, ("uid-a",), RetractMode.EVICT))
    assert client.verbs() == ["evict"]


@pytest.mark.parametrize("error", [Unreachable("no way"), OutcomeUnknown("it broke"), Forbidden(403)])
def test_a_deadline_that_was_not_set_is_set_later(error: Exception) -> None:
    client = FakeClient(patch=[error, error])
    context = Around(job(started=1900.0), limited())
    carry_out(
        context, client, replace(PLACE, end_at=2060.0), until=lambda: client.verbs().count("patch") == 3
    )
    assert deadline(client) == (160, "160", None)


def test_the_deadline_of_a_job_that_has_not_started_is_set_when_it_has() -> None:
    context, client = Around(job(), limited()), FakeClient()

    def until() -> bool:
        if context.facts:
            context.cache.set_controller(as_controller(job(started=1900.0)))
            context.cache.facts(NOW)
        return "patch" in client.verbs()

    carry_out(context, client, replace(PLACE, end_at=2060.0), until=until)
    assert deadline(client) == (160, "160", None)


@pytest.mark.parametrize("end", ["the pod is gone", "the Job is over", "the limit has passed"])
def test_a_deadline_is_not_tried_for_ever(end: str) -> None:
    context, now = Around(job(started=1900.0), limited()), NOW
    client = FakeClient(patch=[Forbidden(403)] * 100)
    seen = 0

    def until() -> bool:
        nonlocal now, seen
        if client.verbs().count("patch") < 3:
            return False
        match end:
            case "the pod is gone":
                context.cache.remove_pod(limited())
            case "the Job is over":
                context.cache.set_controller(as_controller(job(started=1900.0, over="Failed")))
                context.cache.facts(NOW)
            case "the limit has passed":
                now = 2060.0
        seen += 1
        return seen > 50

    carry_out(context, client, replace(PLACE, end_at=2060.0), until=until, clock=lambda: now)
    assert client.verbs().count("patch") <= 4


def test_a_job_that_is_to_end_at_once_gets_no_later_deadline() -> None:
    context, client = Around(job(started=1900.0), limited()), FakeClient()
    end = End(3, 77, ("uid-a",), 15, 30.0, EndReason.CANCEL)
    carry_out(context, client, replace(PLACE, end_at=2060.0), end, want=2)
    patches = [what[1]["spec"] for verb, what in client.asked if verb == "patch"]
    assert patches == [{"activeDeadlineSeconds": 100}]


def test_a_deadline_is_not_set_out_of_office() -> None:
    context, client = Around(job(started=1900.0), limited(), is_in_office=lambda: False), FakeClient()
    carry_out(context, client, replace(PLACE, end_at=2060.0))
    assert client.asked == []


def test_a_busy_server_is_given_the_time_that_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_RETRY_AFTER_S_MAX", 0.05)
    client = FakeClient(bind=[TooManyRequests(429, retry_after_s=600.0)])
    began = time.monotonic()
    assert outcomes(carry_out(Around(pod()), client, PLACE)) == [Outcome.APPLIED]
    assert time.monotonic() - began >= 0.05


# Taking away


def test_a_disruption_budget_is_waited_for_without_holding_anybody_up() -> None:
    budget = TooManyRequests(429, causes=("DisruptionBudget",))
    client = FakeClient(evict=[budget, budget, Unreachable("no way")])
    context = Around(BOUND, pod("b"))
    evict = Retract(2, 77, ("uid-a",), RetractMode.EVICT)
    place = Place(1, 78, "default/pod/uid-b", (Assignment("uid-b", 0, "n1"),))
    facts = carry_out(context, client, evict, place, want=2)
    assert facts == [IntentResult(1, "uid-b", Outcome.APPLIED), IntentResult(2, "uid-a", Outcome.APPLIED)]
    assert client.verbs().count("evict") == 4


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ({"evict": [NotFound(404)]}, Outcome.GONE),
        ({"evict": [ApiConflict(409)], "get": [pod(uid="another")]}, Outcome.GONE),
        ({"evict": [ApiConflict(409)], "get": [BOUND]}, Outcome.APPLIED),
    ],
)
def test_evictions(answers: dict[str, list[object]], outcome: Outcome) -> None:
    client = FakeClient(**answers)
    assert outcomes(carry_out(Around(BOUND), client, Retract(2, 77, ("uid-a",), RetractMode.EVICT))) == [
        outcome
    ]


def test_to_forget_is_possible_until_a_pod_is_on_its_node() -> None:
    forget = Retract(2, 77, ("uid-a", "uid-b", "uid-c"), RetractMode.FORGET)
    client = FakeClient()
    facts = carry_out(Around(pod("a"), pod("b", node="n1")), client, forget, want=3)
    assert outcomes(facts) == [Outcome.APPLIED, Outcome.CONFLICT, Outcome.GONE]
    assert client.asked == []


def test_what_was_put_off_is_dropped_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later life does nothing that an earlier one wanted."""
    monkeypatch.setattr(executor, "_EVICT_PAUSE_S", 0.05)

    async def scenario() -> None:
        client = FakeClient(evict=[TooManyRequests(429, causes=("DisruptionBudget",))])
        context = Around(BOUND)
        actions = IntentExecutor(client, context, lambda: NOW)  # type: ignore[arg-type]
        actions.put(Retract(2, 77, ("uid-a",), RetractMode.EVICT))
        for pause_s in (0.01, 0.1):  # a life each
            worker = asyncio.create_task(actions.run_worker())
            await asyncio.sleep(pause_s)
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
            actions.clear()
        assert client.verbs() == ["evict"]
        assert context.facts == []

    asyncio.run(scenario())


# Ending

END = End(3, 77, ("uid-a",), 15, 30.2, EndReason.CANCEL)


def test_a_job_is_ended_by_its_deadline_once() -> None:
    owner = owned_by("Job", "train")
    pods = [pod(name, owner=owner, node="n1", placed=True) for name in "ab"]
    client = FakeClient()
    context = Around(job(started=1900.0), *pods)
    facts = carry_out(context, client, replace(END, members=("uid-a", "uid-b")), want=2)
    assert outcomes(facts) == [Outcome.APPLIED] * 2
    (patch,) = client.asked
    assert patch[1][1] == {"metadata": {"uid": "uid-train"}, "spec": {"activeDeadlineSeconds": 100}}


@pytest.mark.parametrize("made", [job(over="Failed"), job(started=1900.0, activeDeadlineSeconds=100)])
def test_a_job_that_is_ending_already_is_let_be(made: UnstructuredObject) -> None:
    client = FakeClient()
    context = Around(made, pod(owner=owned_by("Job", "train"), node="n1", placed=True))
    assert outcomes(carry_out(context, client, END)) == [Outcome.APPLIED]
    assert client.asked == []


@pytest.mark.parametrize("error", [Unreachable("no way"), OutcomeUnknown("it broke"), Forbidden(403)])
def test_an_end_is_tried_until_it_is_done(error: Exception) -> None:
    client = FakeClient(patch=[error, error])
    context = Around(job(started=1900.0), pod(owner=owned_by("Job", "train"), node="n1", placed=True))
    assert outcomes(carry_out(context, client, END)) == [Outcome.APPLIED]
    assert client.verbs() == ["patch"] * 3
    client = FakeClient(delete=[error, error])
    assert outcomes(carry_out(Around(BOUND), client, END)) == [Outcome.APPLIED]
    assert client.verbs() == ["delete"] * 3


def test_the_end_of_a_job_is_not_tried_for_ever_when_its_pods_are_gone() -> None:
    context = Around(job(started=1900.0), pod(owner=owned_by("Job", "train"), node="n1", placed=True))

    def gone() -> None:
        context.cache.remove_pod(pod())
        raise ApiConflict(409, message="the uid is another")

    client = FakeClient(patch=[gone, *[ApiConflict(409)] * 50])
    assert outcomes(carry_out(context, client, END)) == [Outcome.GONE]
    assert client.verbs() == ["patch"]


def test_a_pod_by_itself_is_deleted_with_its_grace() -> None:
    client = FakeClient()
    assert outcomes(carry_out(Around(BOUND), client, END)) == [Outcome.APPLIED]
    assert client.asked == [("delete", ("/api/v1/namespaces/default/pods/a", "uid-a", 31))]


@pytest.mark.parametrize("error", [NotFound(404), ApiConflict(409)])
def test_a_pod_that_is_gone_needs_no_end(error: Exception) -> None:
    assert outcomes(carry_out(Around(BOUND), FakeClient(delete=[error]), END)) == [Outcome.GONE]
    assert outcomes(carry_out(Around(), FakeClient(), END)) == [Outcome.GONE]


def test_a_signal_alone_is_refused_politely(caplog: pytest.LogCaptureFixture) -> None:
    client = FakeClient()
    assert outcomes(carry_out(Around(BOUND), client, replace(END, grace_s=None))) == [Outcome.APPLIED]
    assert client.asked == []
    assert "cannot signal pod default/a" in caplog.text


OF_A_JOB = (job(started=1900.0), pod(owner=owned_by("Job", "train"), node="n1", placed=True))


@pytest.mark.parametrize("known", [(BOUND,), OF_A_JOB], ids=["by itself", "of a job"])
@pytest.mark.parametrize("intent", [END, Retract(2, 77, ("uid-a",), RetractMode.EVICT)], ids=["end", "evict"])
def test_nothing_is_taken_away_out_of_office(
    known: tuple[Pod | UnstructuredObject, ...], intent: Intent
) -> None:
    client = FakeClient()
    assert carry_out(Around(*known, is_in_office=lambda: False), client, intent, want=0) == []
    assert client.asked == []
    answers = iter([False, False])
    context = Around(*known, is_in_office=lambda: next(answers, True))
    assert outcomes(carry_out(context, client, intent)) == [Outcome.APPLIED]
    assert len(client.asked) == 1


# Faults of ours


@pytest.mark.parametrize(
    ("intent", "verb"),
    [(PLACE, "bind"), (Retract(2, 77, ("uid-a",), RetractMode.EVICT), "evict"), (END, "delete")],
)
def test_a_fault_in_an_action_is_told_as_unknown_and_ends_nothing(
    intent: Intent, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    context = Around(pod() if intent is PLACE else BOUND, pod("b"))
    client = FakeClient(**{verb: [ZeroDivisionError("who thought of that")]})
    other = Place(9, 78, "default/pod/uid-b", (Assignment("uid-b", 0, "n1"),))
    facts = carry_out(context, client, intent, other, want=2)
    why = "internal error: who thought of that"
    assert IntentResult(intent.intent, "uid-a", Outcome.UNKNOWN, why) in facts
    assert IntentResult(9, "uid-b", Outcome.APPLIED) in facts
    assert "Traceback" in caplog.text


def test_a_fault_in_a_probe_is_followed_by_another() -> None:
    (found,) = carry_out(Around(BOUND), FakeClient(get=[ZeroDivisionError(), BOUND]), probe="uid-a")
    assert isinstance(found, MemberStatus)


def test_a_death_and_a_cancellation_are_not_survived() -> None:
    for death in (failpoints.Crash(), asyncio.CancelledError()):
        with pytest.raises(type(death)):
            carry_out(Around(pod()), FakeClient(bind=[death]), PLACE)


def test_a_pod_that_asks_for_more_than_can_be_counted_has_no_room() -> None:
    context, client = Around(pod(cpu="9223372036854775807")), FakeClient()
    assert outcomes(carry_out(context, client, PLACE)) == [Outcome.CONFLICT]
    assert client.asked == []


# Wanted again


@pytest.mark.parametrize(
    ("intent", "verb"),
    [(END, "delete"), (Retract(2, 77, ("uid-a",), RetractMode.EVICT), "evict"), (PLACE, "bind")],
)
def test_what_is_wanted_again_while_it_is_open_is_done_once(intent: Intent, verb: str) -> None:
    """As after every snapshot: whatever is open is wanted again."""
    context = Around(pod() if intent is PLACE else BOUND)
    client = FakeClient(**{verb: [Unreachable("no way")] * 3})
    facts = carry_out(context, client, *[intent] * 5)
    assert outcomes(facts) == [Outcome.APPLIED]
    assert client.verbs() == [verb] * 4


def test_what_was_done_can_be_wanted_again() -> None:
    """The server says that it has a node; what the pod was known to be like is older."""
    context, client = Around(pod()), FakeClient(bind=[None, ApiConflict(409)], get=[BOUND])
    carry_out(context, client, PLACE)
    assert outcomes(carry_out(context, client, PLACE, want=2)) == [Outcome.APPLIED] * 2


def test_a_native_pod_group_is_told_once_though_all_was_wanted_again() -> None:
    spec = {"schedulingGroup": {"podGroupName": "ring"}}
    context = Around(pod("a", spec=spec), pod("b", spec=spec))
    context.cache.set_native_group(native_group("ring"))
    assignments = (Assignment("uid-a", 0, "n1"), Assignment("uid-b", 1, "n1"))
    client = FakeClient(bind=[None, Unreachable("no way")])
    place = replace(PLACE, workload="default/podgroup/ring", assignments=assignments)
    carry_out(context, client, place, place, want=2)
    assert client.verbs() == ["bind", "bind", "bind", "patch"]


# Finding out


def test_a_probe_says_what_the_server_says() -> None:
    context = Around(pod())
    running = msgspec.structs.replace(BOUND, status=msgspec.structs.replace(BOUND.status, phase="Running"))
    (found,) = carry_out(context, FakeClient(get=[running]), probe="uid-a")
    assert isinstance(found, MemberStatus)
    assert (found.phase, found.node) == (Phase.RUNNING, "n1")
    (waiting,) = carry_out(Around(pod()), FakeClient(get=[pod()]), probe="uid-a")
    assert waiting == MemberStatus("uid-a", Phase.WAITING, NOW)


def test_a_probe_of_who_is_gone() -> None:
    assert carry_out(Around(), FakeClient(), probe="uid-a") == [MemberGone("uid-a")]
    assert carry_out(Around(pod()), FakeClient(get=[NotFound(404)]), probe="uid-a") == [MemberGone("uid-a")]
    assert carry_out(Around(pod()), FakeClient(get=[pod(uid="other")]), probe="uid-a") == [
        MemberGone("uid-a")
    ]


def test_one_that_was_found_to_be_gone_takes_no_room() -> None:
    context = Around(pod("a", cpu="2", node="n1", placed=True), pod("b", cpu="2"))
    carry_out(context, FakeClient(get=[NotFound(404)]), probe="uid-a")
    other = Place(2, 78, "default/pod/uid-b", (Assignment("uid-b", 0, "n1"),))
    facts = carry_out(context, FakeClient(), other, want=2)
    assert facts == [MemberGone("uid-a"), IntentResult(2, "uid-b", Outcome.APPLIED)]


def test_a_server_that_does_not_answer_is_asked_again_and_nobody_is_declared_gone() -> None:
    client = FakeClient(get=[Unreachable("no way"), ServerError(503), BOUND])
    (found,) = carry_out(Around(BOUND), client, probe="uid-a")
    assert isinstance(found, MemberStatus)
    assert found.phase is Phase.PLACED
