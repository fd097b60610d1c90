"""Elections on a virtual clock: at no instant are there two that believe to be in office."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import random
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from penstock.errors import BadRequest
from penstock.kube.errors import AlreadyExists, ApiConflict, NotFound, OutcomeUnknown, Unreachable
from penstock.kube.lease import LeaderElector, LeaseLost

LONGEST_S = 3.0


class _Jump(selectors.SelectSelector):
    """Nothing here waits for the outside: where a loop would sleep, the clock is set forward."""

    now = 1_000.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everybody waits for everybody"
        self.now += timeout
        return super().select(0)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    selector = _Jump()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        loop.run_until_complete(scenario)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(1))
    finally:
        loop.close()


class Leases:
    """The one lease, as a server keeps it."""

    timeout_s = 2.0

    def __init__(self) -> None:
        self.record: dict[str, Any] | None = None
        self.version = 0
        self.written: list[tuple[float, dict[str, Any]]] = []

    def write(self, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.record = copy.deepcopy(body)
        self.record["metadata"]["resourceVersion"] = str(self.version)
        self.written.append((asyncio.get_running_loop().time(), self.record["spec"]))
        return copy.deepcopy(self.record)

    @property
    def spec(self) -> dict[str, Any]:
        assert self.record is not None
        return self.record["spec"]


class Road:
    """One candidate's way to the server. `fault` is asked before each request; `open` closes it."""

    timeout_s = 2.0

    def __init__(self, leases: Leases, fault: Callable[[], str] = lambda: "") -> None:
        self.leases = leases
        self.fault = fault
        self.open = asyncio.Event()
        self.open.set()

    async def get(self, _path: str, type: Any, **_: object) -> Any:  # noqa: A002
        async with self._travel(is_write=False):
            if self.leases.record is None:
                raise NotFound(404)
            return msgspec.convert(copy.deepcopy(self.leases.record), type)

    async def create(self, _path: str, body: dict[str, Any], type: Any, **_: object) -> Any:  # noqa: A002
        async with self._travel(is_write=True):
            if self.leases.record is not None:
                raise AlreadyExists(409)
            return msgspec.convert(self.leases.write(body), type)

    async def replace(self, _path: str, body: dict[str, Any], type: Any, **_: object) -> Any:  # noqa: A002
        async with self._travel(is_write=True):
            if self.leases.record is None:
                raise NotFound(404)
            if body["metadata"]["resourceVersion"] != self.leases.record["metadata"]["resourceVersion"]:
                raise ApiConflict(409)
            return msgspec.convert(self.leases.write(body), type)

    @contextlib.asynccontextmanager
    async def _travel(self, *, is_write: bool) -> Any:
        fault = self.fault()
        await asyncio.sleep(0.01)
        await self.open.wait()
        if fault == "unreachable":
            raise Unreachable("no way")
        if fault == "lost on the way":
            await asyncio.sleep(self.timeout_s)
            raise OutcomeUnknown("?") if is_write else Unreachable("?")
        if fault == "late":
            await asyncio.sleep(self.timeout_s * 0.9)
        yield
        if fault == "answer lost":
            await asyncio.sleep(self.timeout_s)
            raise OutcomeUnknown("?") if is_write else Unreachable("?")
        await self.open.wait()


def candidate(
    road: Road,
    identity: str,
    *,
    offset_s: float = 0.0,
    rate: float = 1.0,
    jitter: float = 0.5,
    **settings: Any,
) -> LeaderElector:
    loop = asyncio.get_running_loop()

    def clock() -> float:
        return offset_s + loop.time() * rate

    given = {"request_s_max": LONGEST_S, **settings}
    return LeaderElector(
        road,  # type: ignore[arg-type]
        "ns",
        "penstock",
        identity,
        clock=clock,
        wall=lambda: datetime.fromtimestamp(clock(), UTC),
        jitter=lambda: jitter,
        **given,
    )


@contextmanager
def task(work: Coroutine[Any, Any, None]) -> Iterator[asyncio.Task[None]]:
    started = asyncio.ensure_future(work)
    try:
        yield started
    finally:
        started.cancel()


def now() -> float:
    return asyncio.get_running_loop().time()


def test_the_first_one_makes_the_lease_and_renews_it() -> None:
    async def scenario() -> None:
        leases = Leases()
        one = candidate(Road(leases), "one")
        assert not one.is_leader()
        await one.acquire()
        assert one.is_leader()
        assert one.is_leader(margin_s=14)
        assert not one.is_leader(margin_s=15)
        with task(one.hold()):
            await asyncio.sleep(100)
            assert one.is_leader(margin_s=12)
        assert leases.spec["holderIdentity"] == "one"
        assert leases.spec["leaseTransitions"] == 0
        assert leases.spec["leaseDurationSeconds"] == 15
        assert leases.spec["acquireTime"] == "1970-01-01T00:16:40.010000Z"  # µs, as the API wants them
        assert 45 <= len(leases.written) <= 65
        assert (one.holder, one.transitions) == ("one", 0)

    run(scenario())


@pytest.mark.parametrize("is_new", [True, False])
def test_a_term_counts_from_before_its_renewal_was_sent(is_new: bool) -> None:
    """Others may see the record as soon as the server has it, however long its answer takes to come back."""

    async def scenario() -> None:
        leases = Leases()
        if not is_new:
            leases.write({"metadata": {"name": "penstock"}, "spec": {"holderIdentity": ""}})
        one = candidate(Road(leases, lambda: "late"), "one", renew_s=1.0)
        began = now()
        await one.acquire()
        assert now() > began + 3  # a read and a write
        assert one.until <= now() - 1.8 + 15

    run(scenario())


def test_the_second_one_waits_and_is_let_in_at_once_after_a_release() -> None:
    async def scenario() -> None:
        leases = Leases()
        one, two = candidate(Road(leases), "one"), candidate(Road(leases), "two")
        await one.acquire()
        holding = asyncio.ensure_future(one.hold())
        with task(two.acquire()) as taking:
            await asyncio.sleep(200)
            assert not taking.done()
            assert two.holder == "one"
            holding.cancel()
            await one.release()
            assert not one.is_leader()
            assert one.lost.is_set()
            assert leases.spec["holderIdentity"] == ""
            assert leases.spec["leaseDurationSeconds"] == 1
            released = now()
            await taking
            assert now() - released < 2.5
        assert two.is_leader()
        assert leases.spec["leaseTransitions"] == 1

    run(scenario())


def test_a_holder_that_died_is_waited_for_as_long_as_its_requests_may_live() -> None:
    async def scenario() -> None:
        leases = Leases()
        one, two = candidate(Road(leases), "one"), candidate(Road(leases), "two")
        await one.acquire()
        died = now()
        await two.acquire()
        assert died + 15 + LONGEST_S <= now() < died + 15 + LONGEST_S + 2.5
        assert not one.is_leader()

    run(scenario())


def test_an_heir_waits_only_for_the_requests_of_the_dead() -> None:
    async def scenario() -> None:
        leases = Leases()
        one = candidate(Road(leases), "place_1")
        heir = candidate(Road(leases), "place_2", predecessor_prefix="place_")
        await one.acquire()
        died = now()
        await heir.acquire()
        assert died + LONGEST_S <= now() < died + LONGEST_S + 2.5

    run(scenario())


def test_a_paused_holder_finds_out_before_it_acts() -> None:
    async def scenario() -> None:
        leases = Leases()
        road = Road(leases)
        one, two = candidate(road, "one"), candidate(Road(leases), "two")
        await one.acquire()
        with task(one.hold()) as holding:
            await asyncio.sleep(20)
            road.open.clear()
            await two.acquire()
            assert not one.is_leader()
            assert two.is_leader()
            road.open.set()
            with pytest.raises(LeaseLost):
                await holding
            assert one.lost.is_set()
            assert leases.spec["holderIdentity"] == "two"

    run(scenario())


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock here counts a suspension")
def test_a_holder_whose_machine_was_suspended_finds_out_before_it_acts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`time.monotonic` stands still meanwhile."""
    suspended_s, read = 0.0, time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda which: read(which) + suspended_s)

    async def scenario() -> None:
        nonlocal suspended_s
        election = LeaderElector(Road(Leases()), "ns", "penstock", "a")  # type: ignore[arg-type]
        await election.acquire()
        assert election.is_leader(5.0)
        suspended_s = 60.0
        assert not election.is_leader()

    run(scenario())


def test_where_no_clock_counts_a_suspension_another_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)

    async def scenario() -> None:
        election = LeaderElector(Road(Leases()), "ns", "penstock", "a")  # type: ignore[arg-type]
        await election.acquire()
        assert election.is_leader(5.0)

    run(scenario())


def test_a_holder_without_a_way_to_the_server_gives_up_at_its_deadline() -> None:
    async def scenario() -> None:
        leases = Leases()
        faults = ""
        one = candidate(Road(leases, lambda: faults), "one")
        await one.acquire()
        with task(one.hold()) as holding:
            await asyncio.sleep(20)
            faults = "unreachable"
            last_at = leases.written[-1][0]
            with pytest.raises(LeaseLost, match="not renewed for 10 s"):
                await holding
            assert last_at + 9 < now() <= last_at + 11
            assert not one.is_leader()

    run(scenario())


def test_a_record_that_can_be_read_and_not_written_is_not_renewed() -> None:
    """It still has our name, but for the others it runs out."""

    async def scenario() -> None:
        leases = Leases()
        faults: Iterator[str] = iter(())
        one, two = candidate(Road(leases, lambda: next(faults, "")), "one"), candidate(Road(leases), "two")
        await one.acquire()
        with task(two.acquire()) as taking:
            faults = itertools.cycle(["lost on the way", ""])  # each write, and each look after it
            last_at = now()
            with pytest.raises(LeaseLost, match="not renewed for 10 s"):
                async with asyncio.timeout(60):
                    await one.hold()
            assert now() <= last_at + 11
            await taking
            assert not one.is_leader()

    run(scenario())


@pytest.mark.parametrize("fault", ["unreachable", "lost on the way", "answer lost", "late"])
def test_a_short_disturbance_costs_nothing(fault: str) -> None:
    async def scenario() -> None:
        leases = Leases()
        faults: list[str] = []
        one = candidate(Road(leases, lambda: faults.pop() if faults else ""), "one")
        await one.acquire()
        with task(one.hold()) as holding:
            for _ in range(20):
                faults[:] = [fault] * 2
                await asyncio.sleep(15)
                assert one.is_leader(margin_s=5)
            assert not holding.done()

    run(scenario())


def test_a_first_write_whose_answer_is_lost_is_recognised() -> None:
    async def scenario() -> None:
        for prior in (None, {"holderIdentity": "", "leaseDurationSeconds": 1}):
            leases = Leases()
            if prior is not None:
                leases.write({"metadata": {"name": "penstock"}, "spec": prior})
            faults = ["answer lost", ""]
            one = candidate(Road(leases, lambda faults=faults: faults.pop() if faults else ""), "one")  # type: ignore[misc]
            faults.insert(0, "")
            began = now()
            await one.acquire()
            assert now() - began < 10
            assert one.is_leader(margin_s=10)

    run(scenario())


def test_own_name_in_a_record_of_somebody_else_is_waited_out() -> None:
    """A process that was started again under its old name cannot know what its former self has under way."""

    async def scenario() -> None:
        leases = Leases()
        first = candidate(Road(leases), "same")
        await first.acquire()
        second = candidate(Road(leases), "same")
        began = now()
        await second.acquire()
        assert now() - began > 15 + LONGEST_S - 1

    run(scenario())


def test_somebody_who_only_labels_the_lease_neither_ends_nor_prolongs_it() -> None:
    async def scenario() -> None:
        leases = Leases()
        one, two = candidate(Road(leases), "one"), candidate(Road(leases), "two")
        await one.acquire()

        async def label() -> None:
            while True:
                await asyncio.sleep(0.7)
                assert leases.record is not None
                body = copy.deepcopy(leases.record)
                body["metadata"]["labels"] = {"touched": str(now())}
                leases.write(body)

        with task(label()):
            with task(one.hold()) as holding:
                await asyncio.sleep(60)
                assert not holding.done()
                assert one.is_leader(margin_s=8)
            stopped = now()
            await two.acquire()
            assert now() < stopped + 15 + LONGEST_S + 3
        assert leases.record is not None
        assert "touched" in leases.record["metadata"]["labels"], "a replacement keeps what others put there"

    run(scenario())


def test_a_lease_that_somebody_wrote_over_is_lost_at_once() -> None:
    async def scenario() -> None:
        leases = Leases()
        one = candidate(Road(leases), "one")
        await one.acquire()
        assert leases.record is not None
        leases.write({**leases.record, "spec": {**leases.spec, "holderIdentity": "two"}})
        began = now()
        with pytest.raises(LeaseLost, match="two holds the lease"):
            await one.hold()
        assert now() < began + 3
        assert not one.is_leader()
        assert leases.spec["holderIdentity"] == "two"

    run(scenario())


def test_a_lease_that_is_deleted_is_lost() -> None:
    async def scenario() -> None:
        leases = Leases()
        one = candidate(Road(leases), "one")
        await one.acquire()
        leases.record = None
        with pytest.raises(LeaseLost, match="deleted"):
            await one.hold()

    run(scenario())


def test_a_lease_that_is_deleted_is_not_made_again_while_its_holder_may_not_know() -> None:
    async def scenario() -> None:
        leases = Leases()
        one, two = candidate(Road(leases), "one"), candidate(Road(leases), "two")
        await one.acquire()
        with task(two.acquire()) as taking:
            await asyncio.sleep(5)
            leases.record = None
            deleted = now()
            await taking
            assert now() >= deleted + 10
        assert not one.is_leader()
        assert leases.spec["leaseTransitions"] == 1

    run(scenario())


@pytest.mark.parametrize(
    "wrong", [{"renew_s": 10.0}, {"deadline_s": 15.0}, {"duration_s": 5}, {"renew_s": 0}]
)
def test_times_that_let_two_in_are_refused(wrong: dict[str, Any]) -> None:
    async def scenario() -> None:
        with pytest.raises(BadRequest, match="before others may take over"):
            candidate(Road(Leases()), "one", **wrong)

    run(scenario())


def test_times_in_the_record_mean_nothing() -> None:
    """Clocks an hour apart: neither a renewal in the past lets others in, nor does one in the future hold."""

    async def scenario() -> None:
        for offset_s in (-3600.0, 3600.0):
            leases = Leases()
            one, two = candidate(Road(leases), "one", offset_s=offset_s), candidate(Road(leases), "two")
            await one.acquire()
            holding = asyncio.ensure_future(one.hold())
            with task(two.acquire()) as taking:
                await asyncio.sleep(100)
                assert not taking.done()
                holding.cancel()
                stopped = now()
                await taking
                assert stopped + 15 <= now() < stopped + 15 + LONGEST_S + 3

    run(scenario())


@pytest.mark.parametrize("seed", range(6))
def test_there_are_never_two_in_office(seed: int) -> None:
    """Three candidates with bad roads, pauses, releases and clocks that go up to 2 % wrong."""

    async def scenario() -> None:
        chance = random.Random(seed)
        leases = Leases()
        trouble = 0.0
        kinds = ["unreachable", "lost on the way", "answer lost", "late"]

        def fault() -> str:
            return chance.choice(kinds) if chance.random() < trouble else ""

        roads = [Road(leases, fault) for _ in range(3)]
        elections = [
            candidate(
                road,
                f"candidate-{number}",
                offset_s=chance.uniform(0, 1e6),
                rate=chance.uniform(0.99, 1.01),
                jitter=chance.random(),
            )
            for number, road in enumerate(roads)
        ]

        async def live(election: LeaderElector, road: Road) -> None:
            while True:
                await election.acquire()
                holding = asyncio.ensure_future(election.hold())
                try:
                    async with asyncio.timeout(chance.uniform(5, 120)):
                        await asyncio.shield(holding)
                except LeaseLost:
                    pass
                except TimeoutError:
                    holding.cancel()
                    if chance.random() < 0.5:
                        await election.release()
                    elif chance.random() < 0.5:
                        road.open.clear()
                        await asyncio.sleep(chance.uniform(1, 40))
                        road.open.set()
                finally:
                    holding.cancel()
                    with contextlib.suppress(LeaseLost, asyncio.CancelledError):
                        await holding
                await asyncio.sleep(chance.uniform(0, 3))

        with contextlib.ExitStack() as stack:
            lives = [
                stack.enter_context(task(live(election, road)))
                for election, road in zip(elections, roads, strict=True)
            ]
            in_office: set[str] = set()
            for step in range(4_000):
                if step % 100 == 0:
                    trouble = chance.choice([0.0, 0.0, 0.1, 0.5, 0.9])
                    for road in roads:
                        if chance.random() < 0.1:
                            road.open.clear()
                        else:
                            road.open.set()
                await asyncio.sleep(chance.uniform(0.05, 0.5))
                leaders = [election.identity for election in elections if election.is_leader()]
                assert len(leaders) <= 1, leaders
                in_office.update(leaders)
                assert not any(life.done() for life in lives)
            assert len(in_office) == 3, "the office changed hands"

    run(scenario())
