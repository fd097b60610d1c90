"""Replays recorded sessions of Fluxion's resource-query and compares the output byte by byte.

The recordings are not part of the repository; without them these tests are skipped with a message. Sessions
that use unsupported options (other subsystems, hwloc, shorthand formats, the flexible traverser, the policies
locality and variation) are not replayed. docs/reference/fluxion-differences.md lists intended differences.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.cli.jobspec_validate import main as validate
from penstock.cli.resource_query import Streams
from penstock.cli.resource_query import main as resource_query

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT.parent / "shared" / "data" / "fluxion-corpus" / "visible"
UNSUPPORTED = {"hwloc", "jgf_shorthand", "rv1_shorthand", "flexible", "locality", "variation"}
SUITE_TOPICS = (
    [f"t30{number:02}" for number in (0, 1, 2, 3, 4, 5, 8, 9, 11, 12, 13, 15)]
    + [f"t30{number}" for number in (*range(18, 26), *range(27, 32), *range(33, 38), 39, 42)]
    + ["t6001"]
)
MASKS = [
    (re.compile(rb"(?m)^(INFO: ELAPSE=).*$"), rb"\1"),
    (re.compile(rb"(?m)^(INFO: Graph Load Time: ).*$"), rb"\1"),
    (re.compile(rb"(?m)^(INFO: (?:Min|Max|Avg)\. Match Time: ).*$"), rb"\1"),
    (re.compile(rb"(?m)^(INFO: \d+, [A-Z]+, -?\d+, .*, )[-+.0-9a-z<>]+$"), rb"\1"),
    (re.compile(rb"(?m)^(INFO: (?:PRE|POST)ORDER VISIT COUNT=)\d+$"), rb"\1"),
    (re.compile(rb'(?m)^(INFO: (?:PARTIAL )?CANCEL (?:PRE|POST)ORDER COUNT=")\d+"$'), rb"\1"),
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no recordings of Fluxion at {CORPUS}"),
]


@dataclass(frozen=True)
class Case:
    folder: Path
    topic: str
    program: str
    argv: list[str]
    compare: list[str]
    exit: int

    def is_supported(self) -> bool:
        subsystem = self.argv[self.argv.index("-S") + 1] if "-S" in self.argv else "CA"
        commands = (self.folder / "stdin").read_bytes() if (self.folder / "stdin").exists() else b""
        return (
            not UNSUPPORTED & set(self.argv)
            and subsystem in ("CA", "ca")
            and b"jgf_shorthand" not in commands
        )

    def expected(self, stream: str) -> bytes:
        recorded = self.folder / f"expected.{stream}"
        return _masked(recorded.read_bytes()) if recorded.exists() else b""


def cases_of(pattern: str) -> list[Case]:
    cases = []
    for spec_file in sorted(CORPUS.glob(f"cases/{pattern}/*/case.json")):
        spec = json.loads(spec_file.read_text("utf-8"))
        case = Case(
            spec_file.parent, spec["topic"], spec["program"], spec["argv"], spec["compare"], spec["exit"]
        )
        if case.is_supported():
            cases.append(case)
    return cases


def differences(case: Case, scratch: Path) -> list[str]:
    """The differences from the recording. The program runs in this process, in the recordings' directory."""
    out_file = scratch / "t.out"
    out_file.write_bytes(b"")
    argv = [word.replace("@OUT@", str(out_file)).replace("@TMP@", str(scratch)) for word in case.argv]
    if case.program == "jobspec-validate":
        code = validate(argv)
        return [] if code == case.exit else [f"exit {code}, recorded {case.exit}"]
    stdout, stderr = io.StringIO(), io.StringIO()
    commands = (case.folder / "stdin").read_bytes().splitlines(keepends=True)
    code = resource_query(argv, Streams(commands, stdout, stderr))
    actual = {
        "t": _masked(out_file.read_bytes()),
        "stdout": _masked(stdout.getvalue().encode()),
        "stderr": _masked(stderr.getvalue().encode()),
    }
    found = [f"{stream} differs" for stream in case.compare if actual[stream] != case.expected(stream)]
    return found + ([f"exit {code}, recorded {case.exit}"] if code != case.exit else [])


def _masked(data: bytes) -> bytes:
    for pattern, replacement in MASKS:
        data = pattern.sub(replacement, data)
    return data


@pytest.mark.parametrize("topic", SUITE_TOPICS)
def test_every_recorded_run_of_the_test_suite_has_the_same_output(
    topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CORPUS)
    cases = cases_of(f"suite/{topic}-*")
    assert cases, f"no recorded cases of {topic}"
    failed = {case.folder.name: found for case in cases if (found := differences(case, tmp_path))}
    assert failed == {}


@pytest.mark.parametrize("part", range(4))
def test_at_least_95_percent_of_random_sessions_have_the_same_output(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CORPUS)
    cases = cases_of("random/*")[part::4]
    assert len(cases) > 50
    failed = [str(case.folder.relative_to(CORPUS)) for case in cases if differences(case, tmp_path)]
    assert len(failed) <= len(cases) * 0.05, failed
