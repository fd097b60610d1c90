"""The default profile draws the same examples whatever else the process has loaded."""

from __future__ import annotations

import os
import subprocess
import sys

_DRAW = """
import tests.conftest
{imports}
from hypothesis import given, settings, strategies as st
drawn = []
@settings(max_examples=300)
@given(st.lists(st.integers(1, 150)), st.text())
def draw(numbers, text):
    drawn.append((numbers, text))
draw()
print(ascii(drawn))
"""


def _drawn(imports: str) -> str:
    code = _DRAW.format(imports=imports)
    environment = {**os.environ, "HYPOTHESIS_PROFILE": "default"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_examples_do_not_depend_on_the_modules_that_are_loaded() -> None:
    assert _drawn("") == _drawn("import penstock.sched.scheduler, tests.sched.workloads")
