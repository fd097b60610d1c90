"""Kubernetes quantities as integers: `500m`, `1.5Gi`, `2e3`.

A quantity is an integer number of the units that the scheduler allocates (millicores, bytes), never a float.
`scale` is the number of units in 1, so `parse_quantity("500m", scale=1000)` is 500. A fraction of a unit is
rounded away from zero, as in Kubernetes, so that a request is never counted as less than it is.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NoReturn

from penstock.errors import BadRequest

__all__ = ["QUANTITY_MAX", "BadQuantity", "format_quantity", "parse_quantity"]

QUANTITY_MAX = 2**63 - 1

_LENGTH_MAX = 64
_NANO = 10**9
_QUANTITY = re.compile(
    r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,3})|(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei))?"
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


class BadQuantity(BadRequest):
    """The text is not a quantity, or the value exceeds 63 bits."""


@lru_cache(maxsize=4096)
def parse_quantity(text: str, *, scale: int = 1) -> int:
    """The value times `scale`, rounded away from zero to an integer."""
    match = _QUANTITY.fullmatch(text) if len(text) <= _LENGTH_MAX else None
    if match is None or not (match[2] or match[3]):
        _fail("not a quantity", text)
    whole, fraction, suffix = match[2], match[3] or "", match[5] or ""
    exponent = (int(match[4]) if match[4] else _DECIMAL.get(suffix, 0)) - len(fraction)
    numerator = int(whole + fraction) * scale << _BINARY.get(suffix, 0)
    power: int = 10 ** abs(exponent)
    value = numerator * power if exponent >= 0 else -(-numerator // power)
    if value > QUANTITY_MAX:
        _fail("quantity out of range", text, f"at most {QUANTITY_MAX} after scaling by {scale}")
    return -value if match[1] == "-" else value


def format_quantity(value: int, *, scale: int = 1, binary: bool = False) -> str:
    """The canonical text of `value / scale`: no fraction, and the largest suffix that stays exact.

    `scale` must divide 10^9, because the smallest suffix is nano. With `binary` the suffixes are powers of
    1024, except for values below 1024 and for fractions.
    """
    if scale < 1 or _NANO % scale:
        raise ValueError(f"scale {scale} is not a divisor of {_NANO}")
    if value == 0:
        return "0"
    nano = value * (_NANO // scale)
    if binary and abs(nano) >= 1024 * _NANO and nano % _NANO == 0:
        whole = nano // _NANO
        for suffix, bits in reversed(_BINARY.items()):
            if whole % (1 << bits) == 0:
                return f"{whole >> bits}{suffix}"
        return str(whole)
    for suffix, exponent in reversed(_DECIMAL.items()):
        unit = 10 ** (exponent + 9)
        if nano % unit == 0:
            return f"{nano // unit}{suffix}"
    raise AssertionError("every integer is a whole number of nano")


def _fail(summary: str, text: str, expected: str = "") -> NoReturn:
    raise BadQuantity(
        summary,
        where="quantity",
        found=repr(text[:80]),
        expected=expected
        or f"a number of at most {_LENGTH_MAX} characters with one of {' '.join(filter(None, _DECIMAL))} "
        f"{' '.join(_BINARY)} or an exponent",
    )
