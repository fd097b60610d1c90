"""Measures the speed of this machine, so that figures from two machines can be compared.

The measure is steps per CPU second of a fixed loop of the operations that dominate an engine in Python:
integer arithmetic, reading and writing a dictionary, indexing a list. Fluxion's figures come with the
same measure (`peer.CALIBRATION`), taken with an equivalent loop: each step is one congruential step, one
`get` and one store in a dictionary of 4,096 keys, and one access to a list of 64 items. On the same
machine both loops give the same number within a few percent.

A rate is scaled to the peer's machine as `rate * peer.CALIBRATION / here`. The scaling also cancels the
speed of the interpreter: one that runs everything twice as fast doubles both the rate and `here`. Use
unscaled figures to compare interpreters.
"""

from __future__ import annotations

import time
from typing import Final

__all__ = ["steps_per_cpu_s"]

_STEPS: Final = 200_000
_TRIES: Final = 3


def steps_per_cpu_s() -> float:
    """The best of a few tries: disturbances can only make a try slower."""
    return max(_one_try() for _ in range(_TRIES))


def _one_try() -> float:
    began = time.process_time()
    _workload(_STEPS)
    return _STEPS / (time.process_time() - began)


def _workload(steps: int) -> dict[int, int]:
    sums: dict[int, int] = {}
    weights = list(range(64))
    state = 1
    for step in range(steps):
        state = (state * 1_664_525_421 + 1_013_904_223) & 0x7FFF_FFFF
        key = state & 0xFFF
        sums[key] = sums.get(key, 0) + weights[step & 0x3F]
    return sums


if __name__ == "__main__":
    print(f"{steps_per_cpu_s():,.0f} steps per CPU second")
