"""Leader election in virtual time: at no instant do two candidates consider themselves leader."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import BadRequest
from penstock.kube.lease import LeaderElector, LeaseLost
from tests.kube.fake_lease import REQUEST_S_MAX, FakeLease, FakeLeaseClient, candidate, now, run, task


def test_the_first_candidate_creates_the_lease_and_renews_it() -> None:
    async def scenario() -> None:
        server = FakeLease()
        one = candidate(FakeLeaseClient(server), "one")
        assert not one.is_leader()
        await one.acquire()
        assert one.is_leader()
        assert one.is_leader(margin_s=14)
        assert not one.is_leader(margin_s=15)
        with task(one.renew()):
            await asyncio.sleep(100)
            assert one.is_leader(margin_s=12)
        assert server.spec["holderIdentity"] == "one"
        assert server.spec["leaseTransitions"] == 0
        assert server.spec["leaseDurationSeconds"] == 15
        assert server.spec["acquireTime"] == "1970-01-01T00:16:40.010000Z"  # MicroTime, as the API requires.
        assert 45 <= len(server.written) <= 65
        assert (one.holder, one.transitions) == ("one", 0)

    run(scenario())


@pytest.mark.parametrize("is_new", [True, False])
def test_the_lease_duration_counts_from_before_the_renewal_was_sent(is_new: bool) -> None:
    """Other candidates may read the Lease as soon as it is stored, however late the response arrives."""

    async def scenario() -> None:
        server = FakeLease()
        if not is_new:
            server.write({"metadata": {"name": "penstock"}, "spec": {"holderIdentity": ""}})
        one = candidate(FakeLeaseClient(server, lambda: "late"), "one", renew_interval_s=1.0)
        started_at = now()
        await one.acquire()
        assert now() > started_at + 3  # A read and a write.
        assert one.expires_at <= now() - 1.8 + 15

    run(scenario())


def test_the_second_candidate_waits_and_acquires_at_once_after_a_release() -> None:
    async def scenario() -> None:
        server = FakeLease()
        one, two = candidate(FakeLeaseClient(server), "one"), candidate(FakeLeaseClient(server), "two")
        await one.acquire()
        renewing = asyncio.ensure_future(one.renew())
        with task(two.acquire()) as acquiring:
            await asyncio.sleep(200)
            assert not acquiring.done()
            assert two.holder == "one"
            renewing.cancel()
            await one.release()
            assert not one.is_leader()
            assert server.spec["holderIdentity"] == ""
            assert server.spec["leaseDurationSeconds"] == 1
            released_at = now()
            await acquiring
            assert now() - released_at < 2.5
        assert two.is_leader()
        assert server.spec["leaseTransitions"] == 1
        with pytest.raises(LeaseLost):
            await one.renew()
        assert not one.is_leader()
        assert server.spec["holderIdentity"] == "two"

    run(scenario())


def test_after_the_death_of_a_leader_a_candidate_waits_for_its_requests_in_flight() -> None:
    async def scenario() -> None:
        server = FakeLease()
        one, two = candidate(FakeLeaseClient(server), "one"), candidate(FakeLeaseClient(server), "two")
        await one.acquire()
        last_renewal_at = now()
        await two.acquire()
        assert last_renewal_at + 15 + REQUEST_S_MAX <= now() < last_renewal_at + 15 + REQUEST_S_MAX + 2.5
        assert not one.is_leader()

    run(scenario())


def test_a_successor_waits_only_for_the_requests_of_its_predecessor() -> None:
    async def scenario() -> None:
        server = FakeLease()
        one = candidate(FakeLeaseClient(server), "instance_1")
        successor = candidate(FakeLeaseClient(server), "instance_2", predecessor_prefix="instance_")
        await one.acquire()
        last_renewal_at = now()
        await successor.acquire()
        assert last_renewal_at + REQUEST_S_MAX <= now() < last_renewal_at + REQUEST_S_MAX + 2.5

    run(scenario())


def test_a_paused_leader_notices_that_its_lease_expired() -> None:
    async def scenario() -> None:
        server = FakeLease()
        client = FakeLeaseClient(server)
        one, two = candidate(client, "one"), candidate(FakeLeaseClient(server), "two")
        await one.acquire()
        with task(one.renew()) as renewing:
            await asyncio.sleep(20)
            client.connected.clear()
            await two.acquire()
            assert not one.is_leader()
            assert two.is_leader()
            client.connected.set()
            with pytest.raises(LeaseLost):
                await renewing
            assert not one.is_leader()
            assert server.spec["holderIdentity"] == "two"

    run(scenario())


@pytest.mark.skipif(
    not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock of this platform advances during a suspension"
)
def test_a_leader_on_a_suspended_host_notices_that_its_lease_expired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`time.monotonic` does not advance during a suspension."""
    suspended_s, read = 0.0, time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda which: read(which) + suspended_s)

    async def scenario() -> None:
        nonlocal suspended_s
        elector = LeaderElector(FakeLeaseClient(FakeLease()), "ns", "penstock", "a")  # type: ignore[arg-type]
        await elector.acquire()
        assert elector.is_leader(5.0)
        suspended_s = 60.0
        assert not elector.is_leader()

    run(scenario())


def test_without_boottime_the_monotonic_clock_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)

    async def scenario() -> None:
        elector = LeaderElector(FakeLeaseClient(FakeLease()), "ns", "penstock", "a")  # type: ignore[arg-type]
        await elector.acquire()
        assert elector.is_leader(5.0)

    run(scenario())


def test_a_leader_without_connection_gives_up_at_the_renew_deadline() -> None:
    async def scenario() -> None:
        server = FakeLease()
        faults = ""
        one = candidate(FakeLeaseClient(server, lambda: faults), "one")
        await one.acquire()
        with task(one.renew()) as renewing:
            await asyncio.sleep(20)
            faults = "unreachable"
            last_at = server.written[-1][0]
            with pytest.raises(LeaseLost, match="not renewed for 10 s"):
                await renewing
            assert last_at + 9 < now() <= last_at + 11
            assert not one.is_leader()

    run(scenario())


def test_a_lease_that_can_be_read_but_not_written_is_lost() -> None:
    """It still names this process as holder, but for other candidates it expires."""

    async def scenario() -> None:
        server = FakeLease()
        faults: Iterator[str] = iter(())
        one, two = (
            candidate(FakeLeaseClient(server, lambda: next(faults, "")), "one"),
            candidate(FakeLeaseClient(server), "two"),
        )
        await one.acquire()
        with task(two.acquire()) as acquiring:
            faults = itertools.cycle(["request lost", ""])  # Each write fails, each read after it succeeds.
            last_at = now()
            with pytest.raises(LeaseLost, match="not renewed for 10 s"):
                async with asyncio.timeout(60):
                    await one.renew()
            assert now() <= last_at + 11
            await acquiring
            assert not one.is_leader()

    run(scenario())


@pytest.mark.parametrize("fault", ["unreachable", "request lost", "response lost", "late"])
def test_a_short_disturbance_does_not_cost_the_lease(fault: str) -> None:
    async def scenario() -> None:
        server = FakeLease()
        faults: list[str] = []
        one = candidate(FakeLeaseClient(server, lambda: faults.pop() if faults else ""), "one")
        await one.acquire()
        with task(one.renew()) as renewing:
            for _ in range(20):
                faults[:] = [fault] * 2
                await asyncio.sleep(15)
                assert one.is_leader(margin_s=5)
            assert not renewing.done()

    run(scenario())


def test_a_first_write_is_recognised_after_its_response_was_lost() -> None:
    async def scenario() -> None:
        for prior in (None, {"holderIdentity": "", "leaseDurationSeconds": 1}):
            server = FakeLease()
            if prior is not None:
                server.write({"metadata": {"name": "penstock"}, "spec": prior})
            faults = ["response lost", ""]
            client = FakeLeaseClient(server, lambda faults=faults: faults.pop() if faults else "")  # type: ignore[misc]
            one = candidate(client, "one")
            faults.insert(0, "")
            started_at = now()
            await one.acquire()
            assert now() - started_at < 10
            assert one.is_leader(margin_s=10)

    run(scenario())


def test_a_candidate_waits_for_a_lease_that_it_did_not_write_itself() -> None:
    """A restarted process with the same identity cannot know which requests are still in flight."""

    async def scenario() -> None:
        server = FakeLease()
        first = candidate(FakeLeaseClient(server), "same")
        await first.acquire()
        second = candidate(FakeLeaseClient(server), "same")
        started_at = now()
        await second.acquire()
        assert now() - started_at > 15 + REQUEST_S_MAX - 1

    run(scenario())


def test_a_change_of_labels_neither_ends_nor_prolongs_the_lease() -> None:
    async def scenario() -> None:
        server = FakeLease()
        one, two = candidate(FakeLeaseClient(server), "one"), candidate(FakeLeaseClient(server), "two")
        await one.acquire()

        async def label() -> None:
            while True:
                await asyncio.sleep(0.7)
                assert server.lease is not None
                body = copy.deepcopy(server.lease)
                body["metadata"]["labels"] = {"touched": str(now())}
                server.write(body)

        with task(label()):
            with task(one.renew()) as renewing:
                await asyncio.sleep(60)
                assert not renewing.done()
                assert one.is_leader(margin_s=8)
            stopped_at = now()
            await two.acquire()
            assert now() < stopped_at + 15 + REQUEST_S_MAX + 3
        assert server.lease is not None
        assert "touched" in server.lease["metadata"]["labels"], "an update keeps the fields of other writers"

    run(scenario())


def test_a_lease_with_another_holder_is_lost_at_once() -> None:
    async def scenario() -> None:
        server = FakeLease()
        one = candidate(FakeLeaseClient(server), "one")
        await one.acquire()
        assert server.lease is not None
        server.write({**server.lease, "spec": {**server.spec, "holderIdentity": "two"}})
        started_at = now()
        with pytest.raises(LeaseLost, match="two holds the lease"):
            await one.renew()
        assert now() < started_at + 3
        assert not one.is_leader()
        assert server.spec["holderIdentity"] == "two"

    run(scenario())


def test_a_deleted_lease_is_lost() -> None:
    async def scenario() -> None:
        server = FakeLease()
        one = candidate(FakeLeaseClient(server), "one")
        await one.acquire()
        server.lease = None
        with pytest.raises(LeaseLost, match="deleted"):
            await one.renew()

    run(scenario())


def test_a_deleted_lease_is_not_recreated_while_the_leader_may_not_know() -> None:
    async def scenario() -> None:
        server = FakeLease()
        one, two = candidate(FakeLeaseClient(server), "one"), candidate(FakeLeaseClient(server), "two")
        await one.acquire()
        with task(two.acquire()) as acquiring:
            await asyncio.sleep(5)
            server.lease = None
            deleted_at = now()
            await acquiring
            assert now() >= deleted_at + 10
        assert not one.is_leader()
        assert server.spec["leaseTransitions"] == 1

    run(scenario())


@pytest.mark.parametrize(
    "wrong",
    [
        {"renew_interval_s": 10.0},
        {"renew_deadline_s": 15.0},
        {"lease_duration_s": 5},
        {"renew_interval_s": 0},
    ],
)
def test_durations_that_allow_two_leaders_are_rejected(wrong: dict[str, Any]) -> None:
    async def scenario() -> None:
        with pytest.raises(BadRequest, match="before another candidate may take over"):
            candidate(FakeLeaseClient(FakeLease()), "one", **wrong)

    run(scenario())


def test_times_in_the_lease_have_no_effect() -> None:
    """With clocks one hour apart, a renewTime in the past does not expire, one in the future does."""

    async def scenario() -> None:
        for offset_s in (-3600.0, 3600.0):
            server = FakeLease()
            one, two = (
                candidate(FakeLeaseClient(server), "one", offset_s=offset_s),
                candidate(FakeLeaseClient(server), "two"),
            )
            await one.acquire()
            renewing = asyncio.ensure_future(one.renew())
            with task(two.acquire()) as acquiring:
                await asyncio.sleep(100)
                assert not acquiring.done()
                renewing.cancel()
                stopped_at = now()
                await acquiring
                assert stopped_at + 15 <= now() < stopped_at + 15 + REQUEST_S_MAX + 3

    run(scenario())


def test_a_leader_that_makes_no_progress_gives_up_and_another_takes_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        server = FakeLease()
        progress_at = now()
        one = candidate(FakeLeaseClient(server), "one", progress_age_s=lambda: now() - progress_at)
        two = candidate(FakeLeaseClient(server), "two")
        await one.acquire()
        with task(one.renew()) as renewing, task(two.acquire()) as acquiring:
            for _ in range(10):
                await asyncio.sleep(55)
                progress_at = now()
            assert one.is_leader()
            assert not acquiring.done()
            with pytest.raises(LeaseLost, match=r"no progress for 6[0-3] s, more than 60 s"):
                async with asyncio.timeout(100):
                    await renewing
            assert progress_at + 60 < now() < progress_at + 63
            assert not one.is_leader()
            assert not two.is_leader(), "requests of the former leader may be in flight"
            await acquiring
            assert now() < progress_at + 63 + 15 + REQUEST_S_MAX + 3
            assert two.is_leader()
        assert "one lost lease ns/penstock: the instance is stuck" in caplog.text

    run(scenario())


@pytest.mark.parametrize("seed", range(6))
def test_there_are_never_two_leaders(seed: int) -> None:
    """Three candidates with network faults, pauses, releases and clock rates up to 2 % apart."""

    async def scenario() -> None:
        rng = random.Random(seed)
        server = FakeLease()
        fault_rate = 0.0
        faults = ["unreachable", "request lost", "response lost", "late"]

        def fault() -> str:
            return rng.choice(faults) if rng.random() < fault_rate else ""

        clients = [FakeLeaseClient(server, fault) for _ in range(3)]
        electors = [
            candidate(
                client,
                f"candidate-{number}",
                offset_s=rng.uniform(0, 1e6),
                rate=rng.uniform(0.99, 1.01),
                jitter=rng.random(),
            )
            for number, client in enumerate(clients)
        ]

        async def campaign(elector: LeaderElector, client: FakeLeaseClient) -> None:
            while True:
                await elector.acquire()
                renewing = asyncio.ensure_future(elector.renew())
                try:
                    async with asyncio.timeout(rng.uniform(5, 120)):
                        await asyncio.shield(renewing)
                except LeaseLost:
                    pass
                except TimeoutError:
                    renewing.cancel()
                    if rng.random() < 0.5:
                        await elector.release()
                    elif rng.random() < 0.5:
                        client.connected.clear()
                        await asyncio.sleep(rng.uniform(1, 40))
                        client.connected.set()
                finally:
                    renewing.cancel()
                    with contextlib.suppress(LeaseLost, asyncio.CancelledError):
                        await renewing
                await asyncio.sleep(rng.uniform(0, 3))

        with contextlib.ExitStack() as stack:
            candidates = [
                stack.enter_context(task(campaign(elector, client)))
                for elector, client in zip(electors, clients, strict=True)
            ]
            leaders_seen: set[str] = set()
            for step in range(4_000):
                if step % 100 == 0:
                    fault_rate = rng.choice([0.0, 0.0, 0.1, 0.5, 0.9])
                    for client in clients:
                        if rng.random() < 0.1:
                            client.connected.clear()
                        else:
                            client.connected.set()
                await asyncio.sleep(rng.uniform(0.05, 0.5))
                leaders = [elector.identity for elector in electors if elector.is_leader()]
                assert len(leaders) <= 1, leaders
                leaders_seen.update(leaders)
                assert not any(candidate_task.done() for candidate_task in candidates)
            assert len(leaders_seen) == 3, "every candidate was leader at some time"

    run(scenario())
