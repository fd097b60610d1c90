"""Crashes at every failpoint: after a restart the instance continues as if it had not crashed."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.backends.sim.backend import MemberScript, SimBackend, uniform_nodes
from penstock.protocol.commands import Cancel
from penstock.protocol.facts import Capacity, ExternalUsageGone, ExternalUsageSet, Outcome, Requeue
from penstock.protocol.intents import Assignment, Place
from penstock.sched.commands import CanNeverRun
from penstock.store.memory import MemoryStore
from penstock.store.memory_tables import MemoryTables
from penstock.store.postgres import PostgresStore
from tests.instance.restarts import RestartingInstance, with_loop
from tests.sched.driving import settings_of, submission
from tests.store.servers import fresh_database, started_server

CORES = 2


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[str, dict[str, object]]]:
    """Events in order: jobs, waits, cancellations, nodes and external usage that appear and disappear."""
    events: list[tuple[str, dict[str, object]]] = []
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(
            st.sampled_from(
                ["job"] * 5 + ["wait"] * 3 + ["cancel", "node-gone", "node-back", "usage", "usage-gone"]
            )
        )
        events.append(
            (
                kind,
                {
                    "nodes": draw(st.integers(0, 3)),
                    "cores": draw(st.integers(1, 2)),
                    "limit_s": draw(st.integers(1, 30)),
                    "which": draw(st.integers(0, 8)),
                    "requeue": draw(st.sampled_from(list(Requeue))),
                    "urgency": draw(st.sampled_from([16, 16, 16, 31, 5])),
                },
            )
        )
    return events


@st.composite
def member_scripts(draw: st.DrawFn) -> list[MemberScript]:
    """How members run and end, in the order in which they are placed."""
    return [
        MemberScript(
            runs_s=draw(st.integers(0, 25)),
            status=draw(st.sampled_from([0, 0, 0, 256, 15])),
            place_delay_s=draw(st.sampled_from([0.0, 0.0, 1.0])),
            outcome=draw(st.sampled_from([Outcome.APPLIED] * 6 + [Outcome.CONFLICT, Outcome.UNKNOWN])),
            refused=draw(st.sampled_from(["", "", "", "", "OutOfcpu"])),
            cause="",
            end_delay_s=draw(st.sampled_from([0.0, 2.0])),
        )
        for _ in range(6)
    ]


def sim(scripts: list[MemberScript]) -> SimBackend:
    backend = SimBackend({node.node: node for node in uniform_nodes(3, [Capacity("core", CORES)])})
    placed: dict[str, int] = {}

    def script(_place: Place, assignment: Assignment) -> MemberScript:
        attempt = placed[assignment.member] = placed.get(assignment.member, 0) + 1
        found = scripts[(hash_of(assignment.member) + attempt) % len(scripts)]
        # No member is refused forever: otherwise its group would never be complete.
        return found if attempt < 4 else replace(found, outcome=Outcome.APPLIED, refused="")

    backend.script_for = script
    return backend


def hash_of(text: str) -> int:
    return sum(ord(letter) * (position + 1) for position, letter in enumerate(text))


def play(instance: RestartingInstance, story: list[tuple[str, dict[str, object]]]) -> list[int]:
    """Plays the events of a story, and waits until all jobs are inactive."""
    backend = instance.backend
    nodes = dict(backend.nodes)
    numbers: list[int] = []
    for index, (kind, what) in enumerate(story):
        which = int(str(what["which"]))
        names = sorted(nodes)
        name = names[which % len(names)]
        if kind == "job":
            requested = submission(
                nodes=what["nodes"],
                cores=what["cores"],
                duration_s=what["limit_s"],
                requeue=what["requeue"],  # type: ignore[arg-type]
                urgency=what["urgency"],  # type: ignore[arg-type]
            )
            with contextlib.suppress(CanNeverRun):  # Nodes may be gone for the moment.
                numbers.extend(instance.submit(requested, key=f"key{index}"))
        elif kind == "wait":
            instance.run_until(backend.now + which * 3)
        elif kind == "cancel" and numbers:
            instance.feed(Cancel((numbers[which % len(numbers)],), "enough"))
        elif kind == "node-gone" and len(backend.nodes) > 2 and name in backend.nodes:
            instance.feed(backend.remove_node(name))
        elif kind == "node-back" and name not in backend.nodes:
            backend.nodes[name] = nodes[name]
            instance.feed(nodes[name])
        elif kind == "usage" and name in backend.nodes:
            usage = ExternalUsageSet(f"other{which}", name, (("core", 1),))
            backend.external_usage[usage.key] = usage
            instance.feed(usage)
        elif kind == "usage-gone" and f"other{which}" in backend.external_usage:
            del backend.external_usage[f"other{which}"]
            instance.feed(ExternalUsageGone(f"other{which}"))
        instance.settle()
    for usage_key in list(backend.external_usage):
        del backend.external_usage[usage_key]
        instance.feed(ExternalUsageGone(usage_key))
    for name in sorted(nodes):
        if name not in backend.nodes:
            backend.nodes[name] = nodes[name]
            instance.feed(nodes[name])
    instance.run_until(backend.now + 10_000)
    return numbers


def instance_in_memory(scripts: list[MemberScript], crash_points: set[int]) -> RestartingInstance:
    tables = MemoryTables()
    backend = sim(scripts)
    backend.applies_immediately = not crash_points
    return RestartingInstance(
        backend,
        settings_of("easy", lost_timeout_s=5.0),
        lambda: MemoryStore(tables),
        crash_points=crash_points,
    )


@settings(max_examples=700)
@given(story=stories(), scripts=member_scripts(), crash_points=st.sets(st.integers(1, 150), max_size=6))
def test_no_death_loses_doubles_or_keeps_anything(
    story: list[tuple[str, dict[str, object]]], scripts: list[MemberScript], crash_points: set[int]
) -> None:
    instance = instance_in_memory(scripts, crash_points)
    instance.check_all_inactive(play(instance, story))


@settings(max_examples=60)
@given(story=stories(), scripts=member_scripts())
def test_death_at_each_single_point_of_a_story(
    story: list[tuple[str, dict[str, object]]], scripts: list[MemberScript]
) -> None:
    first = instance_in_memory(scripts, set())
    first.check_all_inactive(play(first, story))
    for point in range(1, first.failpoints_passed + 1):
        instance = instance_in_memory(scripts, {point})
        instance.check_all_inactive(play(instance, story))
        assert instance.starts == 2


@pytest.mark.slow
def test_the_same_with_postgresql() -> None:
    run = with_loop()
    with started_server() as server:

        @settings(max_examples=20, deadline=None)
        @given(
            story=stories(), scripts=member_scripts(), crash_points=st.sets(st.integers(1, 60), max_size=4)
        )
        def all_of_them(
            story: list[tuple[str, dict[str, object]]], scripts: list[MemberScript], crash_points: set[int]
        ) -> None:
            url = fresh_database(server)
            opened: list[PostgresStore] = []

            def store() -> PostgresStore:
                while opened:  # A crashed process has no connections.
                    run(opened.pop().close())
                made = PostgresStore(url)
                run(made.open())
                opened.append(made)
                return made

            try:
                backend = sim(scripts)
                backend.applies_immediately = not crash_points
                instance = RestartingInstance(
                    backend, settings_of("easy", lost_timeout_s=5.0), store, run, crash_points
                )
                instance.check_all_inactive(play(instance, story))
            finally:
                for one in opened:
                    run(one.close())

        all_of_them()


def test_an_older_epoch_has_no_effect() -> None:
    tables = MemoryTables()
    old = RestartingInstance(sim([MemberScript(runs_s=5)]), settings_of("easy"), lambda: MemoryStore(tables))
    new = RestartingInstance(old.backend, old.settings, lambda: MemoryStore(tables))
    numbers = new.submit(submission(nodes=1), key="a")
    with pytest.raises(Exception, match="has taken over"):
        old.submit(submission(nodes=1), key="b")
    new.run_until(100)
    new.check_all_inactive(numbers)
