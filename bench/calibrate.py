"""How fast this machine is, so that figures from two machines can be compared.

The measure is steps per CPU second of a fixed loop that does what an engine in Python does most:
integer arithmetic, reading and writing a dictionary, indexing a list. Fluxion's figures come with
the same kind of number (see `peer.CALIBRATION`), taken with a loop of the same make-up: one
congruential step, one `get` and one store in a dictionary of 4,096 keys, and one of 64 list items,
per step. The two loops give the same number on the same machine, to within a few percent.

A rate is scaled as `rate * peer.CALIBRATION / here`: what it would be on the peer's machine. That
holds for the interpreter's version too: an interpreter that runs everything twice as fast doubles
both the rate and `here`, so compare unscaled figures when you compare interpreters.
"""

from __future__ import annotations

import time
from typing import Final

__all__ = ["steps_per_cpu_s"]

_STEPS: Final = 200_000
_TRIES: Final = 3


def steps_per_cpu_s() -> float:
    """The best of a few tries: whatever disturbs a try makes it slower, never faster."""
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
