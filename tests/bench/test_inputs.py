"""The benchmark inputs are reproducible and produce the output that Fluxion produced."""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bench.inputs import CASES, Draws, Inputs, Phase, durations_s, graph, vertices
from penstock.engine.graph import Graph
from penstock.fluxion.readers.grug import read_grug
from penstock.model.jobspec import Jobspec, parse_jobspec

_ROOT = Path(__file__).resolve().parents[2]
# Output recorded from Fluxion, as `<case>-100-<policy>.simple.gz`; not part of this repository.
_ANSWERS = Path(os.environ.get("FLUXION_ANSWERS", _ROOT / "../shared/bench/expected"))
_POLICIES = ("first", "lonode", "low", "high")
_RESERVATIONS_COMPARED = 150  # all 1,000 take some 25 CPU seconds per policy
_RUN_S_MAX = 300
_PENSTOCK = "from penstock.cli.main import main; main()"


@pytest.fixture(scope="module")
def hundred() -> Graph:
    return read_grug(graph(100))


def test_a_hundred_nodes_are_ten_thousand_vertices(hundred: Graph) -> None:
    types = Counter(vertex.type for vertex in hundred.vertices.values())
    assert len(hundred) == vertices(100) == 10_301
    assert types == {"cluster": 1, "node": 100, "socket": 200, "core": 3_200, "gpu": 400, "memory": 6_400}


def test_resources_are_numbered_across_the_sockets_of_a_node(hundred: Graph) -> None:
    socket = hundred.one_at("/cluster0/node99/socket1")
    names = [child.name for child in socket.below()]
    assert names[:16] == [f"core{number}" for number in range(16, 32)]
    assert names[16:18] == ["gpu2", "gpu3"]
    assert names[18:] == [f"memory{number}" for number in range(32, 64)]
    assert {child.size for child in socket.below()} == {1}
    assert {child.unit for child in socket.below() if child.type == "memory"} == {"chunk"}


def test_the_generator_is_mmix() -> None:
    draws = Draws(1)
    # The first three states from seed 1, shifted by hand.
    first = 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407
    second = (first * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
    assert [draws.below(2**31) for _ in range(2)] == [first >> 33, second >> 33]


def test_limits_are_whole_minutes_between_ten_minutes_and_four_hours() -> None:
    limits_s = durations_s()
    assert len(limits_s) == 128
    assert all(600 <= limit_s <= 600 + 60 * 239 and limit_s % 60 == 0 for limit_s in limits_s)


@pytest.mark.parametrize("case", CASES)
def test_a_case_is_reproducible(case: str, tmp_path: Path) -> None:
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
    one = _as_text(tmp_path / "one", case)
    assert one == _as_text(tmp_path / "two", case)
    assert hashlib.sha256(one.encode()).hexdigest()[:16] == _DIGESTS[case]


def test_reservations_have_the_documented_sizes_and_limits(tmp_path: Path) -> None:
    fill, reserve = Inputs(tmp_path, 100).case("d").phases
    assert len(fill.commands) == 12 + 4
    assert fill.prepares
    assert [jobspec.resources[0].count.min for jobspec in _jobspecs(fill)] == [8] * 12 + [1] * 4
    reserved = _jobspecs(reserve)
    assert len(reserved) == 1_000
    assert {jobspec.resources[0].count.min for jobspec in reserved} == {1, 2, 4, 8, 16, 32, 64}
    assert {jobspec.duration_s for jobspec in reserved} <= set(durations_s())


def test_no_reservation_requests_more_nodes_than_exist(tmp_path: Path) -> None:
    _, reserve = Inputs(tmp_path, 10).case("d").phases
    assert {jobspec.resources[0].count.min for jobspec in _jobspecs(reserve)} == {1, 2, 4, 8}


@pytest.mark.slow
@pytest.mark.parametrize("policy", _POLICIES)
@pytest.mark.parametrize("case", ["a", "c", "d"])
def test_the_output_equals_that_of_fluxion(case: str, policy: str, tmp_path: Path) -> None:
    recorded = _ANSWERS / f"{case}-100-{policy}.simple.gz"
    if not recorded.exists():
        pytest.skip(f"no recorded output: FLUXION_ANSWERS names no directory with {recorded.name}")
    inputs = Inputs(tmp_path, 100).case(case)
    *fill, last = inputs.phases
    commands = [*(command for phase in fill for command in phase.commands), *last.commands]
    compared = commands[: len(commands) - len(last.commands) + _RESERVATIONS_COMPARED]
    expected = gzip.decompress(recorded.read_bytes()).decode()
    ours = _answers(inputs.graph_file, policy, compared, tmp_path / "answers")
    if len(compared) < len(commands):
        expected = expected[: len(ours)]
    # Compared answer by answer, so that a difference shows the job it is about.
    for number, (our, their) in enumerate(zip(_split(ours), _split(expected), strict=False), 1):
        assert our == their, f"answer {number}"
    assert len(ours) == len(expected)


def _answers(graph_file: Path, policy: str, commands: list[str], to: Path) -> str:
    """The output of `resource-query` for these commands."""
    options = ["-L", str(graph_file), "-P", policy, "-F", "simple", "-d", "-t", str(to)]
    subprocess.run(
        [sys.executable, "-c", _PENSTOCK, "resource-query", *options],
        input="\n".join([*commands, "quit", ""]),
        text=True,
        check=True,
        timeout=_RUN_S_MAX,
    )
    return to.read_text(encoding="utf-8")


def _split(text: str) -> list[str]:
    return text.split("INFO: =============================\n")


def _as_text(folder: Path, case: str) -> str:
    """A case as one text: its commands, with each jobspec file replaced by its content."""
    lines: list[str] = []
    for command in Inputs(folder, 100).case(case).commands():
        head, _, file = command.rpartition(" ")
        lines.append(command if head == "cancel" else f"{head}\n{Path(file).read_text(encoding='utf-8')}")
    return "\n".join(lines)


def _jobspecs(phase: Phase) -> list[Jobspec]:
    return [parse_jobspec(Path(command.rpartition(" ")[2]).read_bytes()) for command in phase.commands]


# If these change, the inputs have changed, and earlier figures and recorded output no longer apply.
_DIGESTS = {
    "a": "17d07b78d6802f83",
    "b": "bdbdbfb5435ff763",
    "c": "f3bd0e3b39af21da",
    "d": "714c2b8f614452df",
    "e": "e07c58c3eb56a878",
    "f": "f958d550800dd5c2",
    "g": "e3b0c44298fc1c14",
}
