"""Fluxion's figures for comparison: flux-sched 0.54.0, measured by us.

Fluxion (C++, its default optimised build) ran the same inputs with its `resource-query`. A rate is commands
per CPU second of the whole process: reading the command, parsing the jobspec, matching, booking and writing
the answer. Slow phases were stopped after 8 to 20 CPU seconds. Repeated runs varied by up to 2x on that
machine, so a ratio between 0.67 and 1.5 is noise.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "CALIBRATION",
    "CALIBRATION_RANGE",
    "GOAL_LOAD_CPU_S",
    "GOAL_LOAD_RSS_MB",
    "LOAD_CPU_S",
    "LOAD_RSS_MB",
    "POLICIES",
    "goal",
    "rate",
]

# Steps per CPU second of a loop like that of `calibrate`, on the machine of these figures. The value varied
# between these bounds while the figures were taken; their mean is used for scaling.
CALIBRATION_RANGE: Final = (3_000_000, 4_100_000)
CALIBRATION: Final = sum(CALIBRATION_RANGE) / 2

POLICIES: Final = ("first", "lonode", "low", "high")

# Commands per CPU second in the order of POLICIES, by case, phase and number of nodes.
_RATES: Final[dict[tuple[str, str, int], tuple[float, ...]]] = {
    ("a", "allocate", 100): (5_015, 3_674, 3_709, 4_110),
    ("a", "allocate", 1_000): (4_123, 1_312, 975, 774),
    ("a", "allocate", 10_000): (2_005, 57, 66, 47),
    ("a", "allocate", 50_000): (348,),
    ("b", "allocate", 100): (3_884, 257, 150, 169),
    ("b", "allocate", 1_000): (2_938, 19, 18, 16),
    ("b", "allocate", 10_000): (1_686, 1.4, 1.2, 1.5),
    ("c", "allocate", 100): (1_033, 570, 310, 410),
    ("c", "allocate", 1_000): (949, 57, 55, 40),
    ("c", "allocate", 10_000): (741, 2.9, 2.9, 2.5),
    ("d", "fill", 100): (1_154, 376, 375, 482),
    ("d", "fill", 1_000): (894, 51, 46, 45),
    ("d", "fill", 10_000): (604, 2.5, 2.6, 2.6),
    ("d", "reserve", 100): (86, 85, 81, 83),
    ("d", "reserve", 1_000): (120, 111, 102, 103),
    ("d", "reserve", 10_000): (73,),
    ("e", "cancel", 100): (64_879,),
    ("e", "cancel", 1_000): (28_266,),
    ("e", "cancel", 10_000): (3_076,),
    ("f", "node1", 100): (5_488, 3_569, 3_347, 3_254),
    ("f", "node1", 1_000): (6_228, 656, 1_029, 667),
    ("f", "node1", 10_000): (5_919,),
    ("f", "gang8", 100): (2_360, 215, 329, 217),
    ("f", "gang8", 1_000): (2_682, 27, 27, 26),
    ("f", "gang8", 10_000): (2_636,),
    ("f", "core1", 100): (5_800, 152, 158, 145),
    ("f", "core1", 1_000): (5_774, 18, 16, 17),
    ("f", "core1", 10_000): (4_378,),
    ("f", "unsat", 100): (3_460, 3_643, 4_044, 3_174),
    ("f", "unsat", 1_000): (2_290, 2_496, 2_285, 1_596),
    ("f", "unsat", 10_000): (142,),
}

# Loading the cluster from GRUG, by number of nodes.
LOAD_CPU_S: Final[dict[int, float]] = {100: 0.07, 1_000: 0.67, 10_000: 6.8, 50_000: 81}
LOAD_RSS_MB: Final[dict[int, float]] = {100: 36, 1_000: 244, 10_000: 2_289, 50_000: 14_200}


# What Penstock aims at, for every policy, at the calibration of the peer: by case, phase and number of nodes.
_GOALS: Final[dict[tuple[str, str, int], float]] = {
    ("a", "allocate", 10_000): 20_000,
    ("a", "allocate", 50_000): 10_000,
    ("b", "allocate", 1_000): 25_000,
    ("b", "allocate", 10_000): 25_000,
    ("c", "allocate", 10_000): 15_000,
    ("d", "reserve", 1_000): 5_000,
    ("d", "reserve", 10_000): 5_000,
    ("e", "cancel", 10_000): 60_000,
    ("f", "node1", 10_000): 30_000,
    ("f", "gang8", 10_000): 30_000,
    ("f", "core1", 10_000): 30_000,
    ("f", "unsat", 10_000): 30_000,
}
GOAL_LOAD_CPU_S: Final[dict[int, float]] = {10_000: 1.0, 50_000: 5.0}
GOAL_LOAD_RSS_MB: Final[dict[int, float]] = {10_000: 250, 50_000: 1_200}


def goal(case: str, phase: str, nodes: int) -> float | None:
    return _GOALS.get((case, phase, nodes))


def rate(case: str, phase: str, nodes: int, policy: str) -> float | None:
    """Commands per CPU second, None where it was not measured."""
    rates = _RATES.get((case, phase, nodes), ())
    if policy not in POLICIES:
        return None
    index = POLICIES.index(policy)
    return rates[index] if index < len(rates) else None
