"""Which cells the benchmark of the matcher measures: case, number of nodes, policy, variant of the cluster.

The complete matrix has every case under the policies of the peer's figures at all sizes that the peer has
figures for, every other policy at one size, and every variant at one size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bench import peer
from bench.inputs import CASES, Variant
from penstock.engine.policies import NAMED_POLICIES

__all__ = ["Cell", "complete", "product", "quick"]

_ONE_POLICY_ONLY: Final = frozenset("eg")  # cases in which the policy makes no difference
_SIZES: Final = (100, 1_000, 10_000)
_LARGEST: Final = 50_000
_AT_LARGEST: Final = frozenset("ag")
_ONE_SIZE: Final = 1_000
_FILLS: Final = "abcd"


@dataclass(frozen=True, slots=True)
class Cell:
    case: str
    nodes: int
    policy: str
    variant: Variant = Variant.PLAIN

    def __str__(self) -> str:
        variant = "" if self.variant is Variant.PLAIN else f" {self.variant.value}"
        return f"{self.case} {self.nodes:,} {self.policy}{variant}"


def product(
    cases: Sequence[str], sizes: Sequence[int], policies: Sequence[str], variants: Sequence[Variant]
) -> Iterator[Cell]:
    """All combinations; a case in which the policy makes no difference has the first policy only."""
    for variant in variants:
        for case in cases:
            for nodes in sizes:
                for policy in policies[:1] if case in _ONE_POLICY_ONLY else policies:
                    yield Cell(case, nodes, policy, variant)


def complete() -> list[Cell]:
    plain = (Variant.PLAIN,)
    others = [policy for policy in NAMED_POLICIES if policy not in peer.POLICIES]
    variants = [variant for variant in Variant if variant is not Variant.PLAIN]
    return [
        *product(tuple(CASES), _SIZES, peer.POLICIES, plain),
        *product([case for case in CASES if case in _AT_LARGEST], [_LARGEST], peer.POLICIES, plain),
        *product(_FILLS, [_ONE_SIZE], others, plain),
        *product(_FILLS, [_ONE_SIZE], peer.POLICIES, variants),
    ]


def quick() -> list[Cell]:
    """A look at every case and every variant within two minutes."""
    variants = [variant for variant in Variant if variant is not Variant.PLAIN]
    return [
        *product(tuple(CASES), _SIZES[:2], ["first", "lonode"], [Variant.PLAIN]),
        *product("bc", _SIZES[:1], ["lonode"], variants),
    ]
