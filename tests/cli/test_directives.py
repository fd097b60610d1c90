"""Warnings about directives of Slurm and Flux in a submitted script."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.directives import warnings_of
from tests.cli.terminal import piped

OPTIONS = (
    "-N", "--nodes", "-n", "--ntasks", "-c", "--cores-per-task", "-t", "--time-limit", "-q", "--queue",
    "--cc", "--job-name", "--name", "--output", "--urgency", "--wait",
)  # fmt: skip

ADVICE = [
    ("#SBATCH --ntasks=4", "use --ntasks=4"),
    ("#SBATCH -n 4", "use --ntasks=4"),
    ("#SBATCH -n4", "use --ntasks=4"),
    ("#SBATCH --time 01:30:00", "use --time-limit=01:30:00"),
    ("#SBATCH -p debug # the fast one", "use --queue=debug"),
    ("#SBATCH --job-name='my job'", "use --job-name='my job'"),
    ("#SBATCH --output=slurm-%j.out", "use --output='slurm-{{id}}.out'"),
    ("#SBATCH --array=1-10", "use --cc=1-10"),
    ("#SBATCH --hold", "use --urgency=hold"),
    ("#SBATCH --mail-user=a@example.org", "there is no such option here"),
    ("#SBATCH --comment='unbalanced", "there is no such option here"),
    ("#FLUX: -N4", "use -N 4"),
    ("# flux: --queue=debug", "use --queue=debug"),
]


@pytest.mark.parametrize(("line", "advice"), ADVICE, ids=[line for line, _ in ADVICE])
def test_a_directive_is_named_with_the_option_to_use(tmp_path: Path, line: str, advice: str) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n{line}\necho\n")
    expected = [f"{script}, line 2: {line!r} is not read; {advice}"]
    assert warnings_of((str(script), "argument"), OPTIONS) == expected
    assert warnings_of(("bash", str(script)), OPTIONS) == expected


@pytest.mark.parametrize(
    "text", ["#!/bin/sh\n# SBATCH is a word\n", "echo '#SBATCH -n4'\n", "# influx: -1\n", "\0\xff", ""]
)
def test_other_files_are_not_warned_about(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.sh").write_text(text, encoding="latin-1")
    assert warnings_of((str(tmp_path / "job.sh"),), OPTIONS) == []
    assert warnings_of((str(tmp_path),), OPTIONS) == []
    assert warnings_of(("sh", "-c", "true"), OPTIONS) == []
    assert warnings_of(("/nonexistent",), OPTIONS) == []


def test_submit_warns_about_the_first_directives_and_counts_the_rest(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n" + "".join(f"#SBATCH -n{count}\n" for count in range(1, 6)))
    done = piped(tmp_path, "submit", "--dry-run", str(script))
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert lines[0] == f"penstock: warning: {script}, line 2: '#SBATCH -n1' is not read; use --ntasks=1"
    assert lines[3:] == [f"penstock: warning: {script}: 2 more directives are not read"]
