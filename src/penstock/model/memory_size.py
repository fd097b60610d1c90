"""Sizes of memory as users write them: as in Slurm, a number without a unit is in MiB.

`4G`, `4Gi` and `4GiB` are the same: powers of 1024. A jobspec has the number in `count` and may have a unit
in `unit`. The engine counts bytes, as Kubernetes does.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import BadRequest

__all__ = ["MEMORY", "MIB", "parse_memory_mib", "unit_bytes"]

MEMORY: Final = "memory"  # the type of the resource
MIB: Final = 1 << 20
_UNITS: Final = {"K": 1 << 10, "M": MIB, "G": 1 << 30, "T": 1 << 40}
_SIZE: Final = re.compile(r"([0-9]{1,12})(?:([KMGTkmgt])(?:i?[Bb]|i)?)?")
_FORMS: Final = "a size such as 4000 (MiB), 512M, 4G or 1T"
_MIB_MAX: Final = 2**32 - 1  # the largest count in a jobspec


def parse_memory_mib(text: str, where: str) -> int:
    """A size in MiB, rounded up."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise BadRequest("invalid memory size", where=where, found=repr(text[:40]), expected=_FORMS)
    size_mib = -(-int(match[1]) * _UNITS[(match[2] or "M").upper()] // MIB)
    if size_mib > _MIB_MAX:
        raise BadRequest("the memory size is too large", where=where, found=text, expected="less than 4096T")
    return size_mib


def unit_bytes(unit: str, where: str) -> int:
    """The bytes of one unit of memory in a jobspec."""
    if unit in ("B", "bytes"):
        return 1
    match = _SIZE.fullmatch(f"1{unit}")
    if match is None or (unit and match[2] is None):
        expected = "B, K, M, G or T (KiB to TiB); without a unit: MiB"
        raise BadRequest("unknown unit of memory", where=where, found=repr(unit[:40]), expected=expected)
    return _UNITS[(match[2] or "M").upper()]
