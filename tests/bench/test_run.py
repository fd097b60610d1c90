"""The matcher benchmark runs every command, respects budgets, and reports missing answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.inputs import CASES, Inputs, Variant
from bench.matrix import complete, quick
from bench.peer import CALIBRATION, goal
from bench.report import MatcherReport
from bench.run import Failed, Measurement, PhaseResult, measure
from penstock.engine.policies import NAMED_POLICIES

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


@pytest.mark.parametrize("variant", [one for one in Variant if one is not Variant.PLAIN])
@pytest.mark.parametrize("case", ["b", "c", "d"])
def test_every_match_of_a_variant_is_answered(case: str, variant: Variant) -> None:
    """`measure` fails if an answer is missing."""
    one = measure(case, 8, "lonode", 0.2, variant)
    assert one.variant == variant.value
    for phase in one.phases:
        assert 0 < phase.done <= phase.total
        assert 0 < phase.median_us <= phase.p99_us


@pytest.mark.parametrize("variant", Variant)
def test_a_fill_allocates_all_jobs_but_the_last_one(variant: Variant, tmp_path: Path) -> None:
    inputs = Inputs(tmp_path, 8, variant).case("a")
    answers = tmp_path / "answers"
    options = ["-L", str(inputs.graph_file), "-P", "low", "-F", "simple", "-t", str(answers)]
    commands = "\n".join([*inputs.commands(), "quit", ""])
    subprocess.run(
        [sys.executable, "-c", "from penstock.cli.main import main; main()", "resource-query", *options],
        input=commands,
        text=True,
        check=True,
    )
    text = answers.read_text()
    assert text.count("RESOURCES=ALLOCATED") == len(inputs.commands()) - 1


def test_the_matrix_has_every_policy_variant_and_size_and_the_quick_one_every_case_and_variant() -> None:
    cells = complete()
    assert len(cells) == len(set(cells))
    assert {cell.policy for cell in cells} == set(NAMED_POLICIES)
    assert {cell.variant for cell in cells} == {cell.variant for cell in quick()} == set(Variant)
    assert {cell.nodes for cell in cells} == {100, 1_000, 10_000, 50_000}
    assert {cell.case for cell in cells} == {cell.case for cell in quick()} == set(CASES)
    goals = {(case, nodes) for case in CASES for nodes in (1_000, 10_000, 50_000) if _has_goal(case, nodes)}
    assert goals <= {(cell.case, cell.nodes) for cell in cells}


def _has_goal(case: str, nodes: int) -> bool:
    return any(goal(case, phase, nodes) for phase in ("allocate", "reserve", "cancel", "node1", "unsat"))


def test_the_plot_has_a_line_for_each_policy_and_one_for_the_peer() -> None:
    def at(nodes: int) -> Measurement:
        phases = (PhaseResult("allocate", 10, 10, 0.1, 100.0, 100.0, 100.0, 100.0),)
        return Measurement("a", nodes, "low", "plain", CALIBRATION, 1.0, 30.0, 31.0, 32.0, phases)

    svg = ElementTree.fromstring(MatcherReport([at(100), at(1_000)], [], 1.0, 2.5).cost_svg())
    paths = [path.get("class") for path in svg.iter("{http://www.w3.org/2000/svg}path")]
    assert (paths.count("ours"), paths.count("peer")) == (1, 1)
    (line,) = (path for path in svg.iter("{http://www.w3.org/2000/svg}path") if path.get("class") == "ours")
    heights = {point.split()[1] for point in str(line.get("d"))[1:].split("L")}
    assert len(heights) == 1  # Equal costs are a flat line.


def test_rates_are_scaled_to_the_calibration_of_the_peer() -> None:
    phases = (PhaseResult("allocate", 50, 101, 0.5, 9_000, 20_000, 8_000, 12_000),)
    twice = Measurement("a", 100, "first", "plain", 2 * CALIBRATION, 1.0, 30.0, 31.0, 32.0, phases)
    report = MatcherReport([twice], [], 1.0, 2.5)
    (rate,) = json.loads(report.json())["rates"]
    assert (rate["per_cpu_s"], rate["per_cpu_s_scaled"], rate["peer_per_cpu_s"]) == (100, 50, 5_015)
    row = "| a allocate | 100 | first | plain | 50 | 100 [50 of 101] | 5,015 | 0.01 | - |"
    assert f"{row} 9,000 / 20,000 | 8,000 / 12,000 |" in report.markdown()
    assert "| 100 | 10,301 | 2.00 | 1.00 |" in report.markdown()
