"""The Kubernetes benchmark: a small run on a real control plane, and its arithmetic."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time

import pytest

from bench.kube.__main__ import arguments, measure_all
from bench.kube.cases import Case, Run, gangs, singles
from bench.kube.report import KubeReport
from bench.kube.usage import Meter, UsageReading, usage_between
from tests.clusters import needs_controlplane

SMOKE = ["--nodes", "10", "--pods", "30", "--cases", "singles", "--no-native", "--limit-s", "30"]


def run_of(contender: str, last_s: float) -> Run:
    return Run(
        case="singles",
        title="100 single pods",
        contender=contender,
        nodes=10,
        pods=100,
        bound=100,
        up_s=1.0,
        ready_s=1.5 if contender == "Penstock" else None,
        first_s=2.0,
        last_s=last_s,
        first_group_s=None,
        cpu_s={"scheduler": 0.2, "API server": 0.5},
        after_cpu_s={"scheduler": 0.1},
        after_s=3.0,
        foreign_share=0.25,
        create_s=1.0,
        transactions=10,
        rows=100,
    )


@pytest.mark.slow
def test_every_contender_binds_all_pods_on_a_real_control_plane() -> None:
    needs_controlplane()
    log: list[str] = []
    report = asyncio.run(measure_all(arguments(SMOKE), log.append))
    assert not report.left_out, log
    assert [run.contender for run in report.runs] == ["kube-scheduler", "Penstock", "bare binds"]
    for run in report.runs:
        assert run.bound == run.pods == 30
        assert 0 < run.up_s <= run.first_s <= run.last_s
        assert run.cpu_s["API server"] > 0
        assert ("database" in run.cpu_s) == (run.contender == "Penstock")
    ours = report.runs[1]
    assert ours.transactions is not None
    assert ours.transactions > 0
    assert "| 30 single pods | Penstock | 10 | 30 |" in report.markdown()
    assert len(json.loads(json.dumps(report.plain()))["ratios"]) == 2


def test_rates_count_from_up_and_are_compared_within_a_case() -> None:
    report = KubeReport([run_of("Penstock", 3.0), run_of("bare binds", 2.0)], None, (), 2, is_native=True)
    assert [run.rate for run in report.runs] == [50.0, 100.0]
    assert "| 100 single pods | bare binds | 50 | 100 | 0.50 | 0.67 |" in report.markdown()
    assert report.plain()["ratios"][0]["ratio"] == 0.5


def test_cpu_time_of_named_and_unrelated_processes_is_separated() -> None:
    workload = "import time\nwhile time.process_time() < 0.5: pass\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", workload]) as process:
        try:
            meter = Meter({"scheduler": process.pid})
            deadline = time.monotonic() + 30
            while meter.read().cpu_s["scheduler"] < 0.3:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            process.kill()
    spent = usage_between(
        UsageReading(10.0, {"a": 1.0}, 5.0, 50.0), UsageReading(12.0, {"a": 2.5}, 7.0, 52.0)
    )
    assert (spent.wall_s, spent.cpu_s, spent.foreign_share) == (2.0, {"a": 1.5}, 0.0)


def test_gangs_have_the_same_pods_for_every_grouping() -> None:
    names = {
        grouping: [pod["metadata"]["name"] for group in gangs(2, 3, grouping) for pod in group.pods("x")]
        for grouping in ("none", "labels", "native")
    }
    assert names["none"] == names["labels"] == names["native"]
    assert Case("s", "", singles(7)).pods == 7


def test_too_many_pods_are_rejected_before_the_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        arguments(["--nodes", "1", "--pods", "33", "--cases", "singles"])
    assert "33 pods of 1 CPU do not fit on 1 nodes of 32 CPUs" in capsys.readouterr().err
    assert arguments(["--nodes", "1", "--pods", "32", "--cases", "singles"]).pods == 32
