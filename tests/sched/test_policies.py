"""Queue policies: equal start times with an oracle that only counts, and what each policy promises."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.backends.sim.backend import MemberScript
from penstock.model.job import JobState
from penstock.protocol.facts import ExternalUsageSet
from tests.sched.driving import Driver, nodes_of, pool_of, settings_of, submission
from tests.sched.oracle import OracleJob, oracle_starts

DEPTHS = {"fcfs": 0, "easy": 1, "hybrid:3": 3, "conservative": 1 << 30}
SHARED = Path(__file__).resolve().parents[3] / "shared"


@st.composite
def workloads(draw: st.DrawFn) -> list[OracleJob]:
    jobs: list[OracleJob] = []
    at = 0
    for _ in range(draw(st.integers(1, 14))):
        at += draw(st.integers(0, 20))
        limit_s = draw(st.integers(1, 40))
        jobs.append(OracleJob(at, draw(st.integers(1, 9)), limit_s, draw(st.integers(1, limit_s))))
    return jobs


def starts_of(
    jobs: list[OracleJob], units: int, policy: str, driver: Driver | None = None
) -> dict[int, float]:
    """The starts that a scheduler gives on one divisible pool, on a virtual clock."""
    runs: dict[int, float] = {}
    driver = driver or Driver(pool_of(units), settings_of(policy), runs_s=lambda job: runs[job], deep=False)
    paths: dict[int, int] = {}
    for place, job in enumerate(jobs):
        driver.run_until(job.arrives)
        if job.units > units:
            continue
        (number,) = driver.submit(submission(cores=job.units, duration_s=job.limit_s))
        runs[number], paths[number] = job.runs_s, place
    driver.run()
    return {paths[number]: start for number, start in driver.starts.items()}


@pytest.mark.parametrize("policy", DEPTHS)
@given(jobs=workloads())
def test_starts_are_those_of_an_oracle_that_only_counts(policy: str, jobs: list[OracleJob]) -> None:
    assert starts_of(jobs, 8, policy) == oracle_starts(jobs, 8, DEPTHS[policy])


@pytest.mark.parametrize("policy", DEPTHS)
@given(jobs=workloads(), cores=st.integers(1, 3))
def test_every_policy_drains_the_queue_and_commits_no_core_twice(
    policy: str, jobs: list[OracleJob], cores: int
) -> None:
    runs: dict[int, float] = {}
    driver = Driver(nodes_of(3, cores), settings_of(policy), runs_s=lambda job: runs[job])
    numbers = []
    for job in jobs:
        driver.run_until(job.arrives)
        asked = submission(nodes=min(job.units, 3), cores=1, duration_s=job.limit_s)
        (number,) = driver.submit(asked)
        runs[number] = job.runs_s
        numbers.append(number)
    driver.run()
    assert not driver.scheduler.jobs
    assert not driver.scheduler.allocated_jobs()
    assert driver.backend.violations == []
    assert sorted(driver.starts) == sorted(numbers)


@given(jobs=workloads())
def test_fcfs_never_overtakes(jobs: list[OracleJob]) -> None:
    starts = starts_of(jobs, 8, "fcfs")
    in_order = [starts[place] for place in sorted(starts)]
    assert in_order == sorted(in_order)


@pytest.mark.parametrize("policy", DEPTHS)
@given(jobs=workloads(), shape=st.sampled_from(["pool", "nodes"]))
def test_forecasts_are_exact_when_durations_are_and_nothing_arrives_later(
    policy: str, jobs: list[OracleJob], shape: str
) -> None:
    runs: dict[int, float] = {}
    backend = pool_of(8) if shape == "pool" else nodes_of(4, 2)
    driver = Driver(backend, settings_of(policy), runs_s=lambda job: runs[job])
    numbers = []
    for job in jobs:
        asked = {"cores": min(job.units, 8)} if shape == "pool" else {"nodes": min(job.units, 4), "cores": 1}
        (number,) = driver.submit(submission(duration_s=job.limit_s, **asked))
        runs[number] = job.limit_s
        numbers.append(number)
    driver.settle()
    told = {
        number: job.forecast.start_at
        for number in numbers
        if (job := driver.scheduler.jobs[number]).state is JobState.SCHED and job.forecast is not None
    }
    waiting = [number for number in numbers if driver.scheduler.jobs[number].state is JobState.SCHED]
    assert sorted(told) == waiting
    driver.run()
    assert {number: driver.starts[number] for number in told} == told


@given(
    jobs=workloads(),
    policy=st.sampled_from(sorted(DEPTHS)),
    external=st.integers(0, 2),
    horizon_s=st.sampled_from([1.0, 10.0, 1e9]),
)
def test_a_forecast_leaves_everything_booked_as_it_was(
    jobs: list[OracleJob], policy: str, external: int, horizon_s: float
) -> None:
    driver = Driver(nodes_of(3, 2), settings_of(policy, reservation_horizon_s=horizon_s), deep=False)
    driver.backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e6)
    for job in jobs:
        driver.submit(submission(slots=min(job.units, 6), duration_s=job.limit_s))
    driver.settle()
    # What appears on units of running jobs finds a place of its own only when they end.
    usage = [ExternalUsageSet(f"u{number}", f"node{number}", (("core", 2),)) for number in range(external)]
    driver.backend.external_usage.update({one.key: one for one in usage})
    driver.feed(*usage)
    driver.plan()  # A job may start because the usage has moved a reservation.
    driver.settle()
    before = booked(driver)
    driver.deep = True
    driver.plan()
    assert booked(driver) == before


def test_no_job_starts_on_external_usage_that_shares_a_node_with_a_running_job() -> None:
    driver = Driver(nodes_of(1, 4), settings_of("easy"))
    driver.backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    driver.submit(submission(cores=2, duration_s=100))
    driver.settle()
    usage = ExternalUsageSet("u", "node0", (("core", 3),))
    driver.backend.external_usage["u"] = usage
    driver.feed(usage)
    driver.submit(submission(cores=1, duration_s=50), submission(cores=2, duration_s=50))
    driver.settle()
    driver.submit(submission(cores=1, duration_s=50))
    driver.settle()
    assert driver.backend.violations == []
    assert len(driver.scheduler.allocated_jobs()) == 1


def test_a_forecast_beyond_the_horizon_leaves_external_usage_where_it_is() -> None:
    driver = Driver(nodes_of(1, 5), settings_of("easy", reservation_horizon_s=1.0), deep=False)
    driver.backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    driver.submit(submission(cores=2, duration_s=100), submission(cores=1, duration_s=200))
    driver.settle()
    usage = ExternalUsageSet("u", "node0", (("core", 3),))
    driver.backend.external_usage["u"] = usage
    driver.feed(usage)
    driver.submit(submission(cores=2, duration_s=50))
    driver.settle()
    before = booked(driver)
    driver.instance.plan(deep=True)
    assert booked(driver) == before


def booked(driver: Driver) -> dict[str, object]:
    """All that is booked at every vertex."""
    graph = driver.scheduler.graph
    told: dict[str, object] = {}
    for vertex in graph.vertices.values():
        state = vertex.state
        if state is not None:
            planners = {kind: list(planner.changes()) for kind, planner in sorted(state.below.items())}
            plan = (list(state.plan.changes()), list(state.presence.changes()), planners)
            told[vertex.path()] = (
                sorted(state.bookings.items(), key=lambda item: item[0]),
                list(state.external_units),
                plan,
                state.live_end_min,
                state.exclusive_bookings,
            )
    return told


def _refsim() -> ModuleType:
    path = SHARED / "bench" / "refsim.py"
    if not path.exists():
        pytest.skip(f"no reference simulator: {path} is not there")
    spec = importlib.util.spec_from_file_location("refsim", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["refsim"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("policy", DEPTHS)
@pytest.mark.parametrize(
    ("trace", "units", "first", "count"),
    [
        ("HPC2N-2002-alea-excerpt.swf", 240, 0, 4000),
        ("NASA-iPSC-1993-3.1-cln.swf.gz", 128, 0, 4000),
    ],
)
def test_starts_on_real_traces_are_those_of_the_reference_simulator(
    policy: str, trace: str, units: int, first: int, count: int
) -> None:
    refsim = _refsim()
    path = SHARED / "data" / "traces" / trace
    if not path.exists():
        pytest.skip(f"no trace: {path} is not there")
    rows, _ = refsim.read(str(path), first + count)
    rows = rows[first:]
    epoch = rows[0][0]
    jobs = [
        OracleJob(int(at - epoch), asked, int(limit), min(int(run), int(limit)))
        for at, run, asked, limit in rows
    ]
    told = [[float(job.arrives), float(job.runs_s), job.units, float(job.limit_s)] for job in jobs]
    starts, _ = refsim.sim(told, units, DEPTHS[policy])
    assert starts_of(jobs, units, policy) == starts
