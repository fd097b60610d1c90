"""The matcher benchmark runs every command, respects budgets, and reports missing answers."""

from __future__ import annotations

import json

import pytest

from bench.peer import CALIBRATION
from bench.report import MatcherReport
from bench.run import Failed, Measurement, PhaseResult, measure

_UNLIMITED_S = 60.0


def test_every_command_of_a_case_is_run() -> None:
    one = measure("a", 4, "first", _UNLIMITED_S)
    (phase,) = one.phases
    assert (phase.name, phase.done, phase.total) == ("allocate", 5, 5)
    assert phase.rate > 0
    assert one.load_cpu_s > 0


def test_a_phase_stops_after_its_budget_and_the_next_one_begins() -> None:
    one = measure("f", 4, "low", 0.0)
    assert [(phase.name, phase.done) for phase in one.phases] == [
        ("node1", 1),
        ("gang8", 1),
        ("core1", 1),
        ("unsat", 1),
    ]


def test_no_phase_is_measured_after_an_incomplete_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.run._PREPARATION_MAX_S", 0.0)
    one = measure("e", 4, "first", 0.0)
    assert [(phase.name, phase.done) for phase in one.phases] == [("allocate", 1)]


def test_a_command_without_an_answer_fails_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.run._RULES_PER_ANSWER", 3)
    with pytest.raises(Failed, match="5 matches"):
        measure("a", 4, "first", _UNLIMITED_S)


def test_rates_are_scaled_to_the_calibration_of_the_peer() -> None:
    phases = (PhaseResult("allocate", 50, 101, 0.5),)
    twice = Measurement("a", 100, "first", 2 * CALIBRATION, 1.0, 30.0, 31.0, 32.0, phases)
    report = MatcherReport([twice], [], 1.0, 2.5)
    (rate,) = json.loads(report.json())["rates"]
    assert (rate["per_cpu_s"], rate["per_cpu_s_scaled"], rate["peer_per_cpu_s"]) == (100, 50, 5_015)
    assert "| a allocate | 100 | first | 50 | 100 [50 of 101] | 5,015 | 0.01 |" in report.markdown()
    assert "| 100 | 10,301 | 2.00 | 1.00 |" in report.markdown()
