"""Logs behind stderr: a process that logs for years needs a bounded space."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_WRITE = """
import sys
from pathlib import Path
from penstock.log_files import bound_log
for number in range(int(sys.argv[2])):
    sys.stderr.write(f"line {number}\\n")
    sys.stderr.flush()
    bound_log(Path(sys.argv[1]), size_max=100)
"""


def _log(path: Path, lines: int, stderr: Path | None = None) -> None:
    with open(stderr or path, "ab") as log:
        command = [sys.executable, "-c", _WRITE, str(path), str(lines)]
        subprocess.run(command, stdout=log, stderr=log, check=True)


def test_a_log_that_becomes_too_large_is_renamed_and_the_oldest_is_removed(tmp_path: Path) -> None:
    _log(tmp_path / "instance.log", 150)
    names = ["instance.log", "instance.log.1", "instance.log.2", "instance.log.3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    texts = [(tmp_path / name).read_text() for name in reversed(names)]
    assert all(len(text) < 120 for text in texts)
    lines = "".join(texts).splitlines()
    assert lines == [f"line {number}" for number in range(150 - len(lines), 150)]


def test_a_log_that_goes_elsewhere_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "instance.log").write_text("of an earlier start\n" * 100)
    _log(tmp_path / "instance.log", 150, stderr=tmp_path / "terminal")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["instance.log", "terminal"]
