"""Job ids in the format of Flux (FLUID, RFC 19): 64 bits of time, generator and sequence.

The upper 40 bits are milliseconds since the creation of the instance, the next 14 bits the generator (always
0, because one process generates ids), the last 10 bits a sequence number within the millisecond. `JobIds`
never issues an id twice, even if the clock goes back or the instance restarts, because it continues from the
highest existing id.

Every encoding of an id can be parsed. The default for display is F58: base 58 digits after `ƒ`, or after `f`
where `ƒ` cannot be displayed. The word encodings of Flux (mnemonics and emoji) are not supported.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from penstock.errors import BadRequest, Corrupt

__all__ = ["ENCODINGS", "ID_MAX", "BadJobId", "JobIds", "encode_jobid", "parse_jobid"]

ID_MAX: Final = 2**64 - 1  # All ones mean "any job", so it is never issued.
ENCODINGS: Final = ("dec", "hex", "dothex", "kvs", "f58", "f58plain")

_TIME_SHIFT: Final = 24
_TIME_MAX: Final = 2**40 - 1
_SEQUENCE_MAX: Final = 1023
_LOW_BITS: Final = 2**_TIME_SHIFT - 1
_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUES: Final = {digit: value for value, digit in enumerate(_ALPHABET)}
_DIGITS_MAX: Final = 12
_TEXT_MAX: Final = 64
_DOTHEX: Final = re.compile(r"([0-9a-fA-F]{1,4})\.([0-9a-fA-F]{1,4})\.([0-9a-fA-F]{1,4})\.([0-9a-fA-F]{1,4})")
_HEX: Final = re.compile(r"0[xX]([0-9a-fA-F]{1,32})")
_DECIMAL: Final = re.compile(r"[0-9]{1,32}")


class BadJobId(BadRequest):
    """The text is not a job id."""


class JobIds:
    """Issues strictly increasing ids. `highest` is the largest id issued so far, 0 before the first."""

    def __init__(self, began_at: float, highest: int = 0) -> None:
        self._began_at = began_at
        self.highest = highest

    def copy(self) -> JobIds:
        return JobIds(self._began_at, self.highest)

    def next(self, now: float) -> int:
        time_ms = max(1, int((now - self._began_at) * 1000))
        given = time_ms << _TIME_SHIFT
        if given <= self.highest:
            # The clock did not advance or went back: continue the last millisecond, or begin the next.
            if self.highest & _LOW_BITS < _SEQUENCE_MAX:
                given = self.highest + 1
            else:
                given = ((self.highest >> _TIME_SHIFT) + 1) << _TIME_SHIFT
        if given >> _TIME_SHIFT > _TIME_MAX:
            raise Corrupt(f"no job id is left after {self.highest}: 40 bits of milliseconds are used up")
        self.highest = given
        return given


def encode_jobid(number: int, encoding: str = "f58") -> str:
    """The id in one of `ENCODINGS`."""
    if not 0 <= number <= ID_MAX:
        _fail("job id out of range", str(number)[:_TEXT_MAX])
    if encoding == "f58":
        return "ƒ" + _f58(number)
    if encoding == "f58plain":
        return "f" + _f58(number)
    if encoding == "dec":
        return str(number)
    if encoding == "hex":
        return f"0x{number:x}"
    groups = f"{number:016x}"
    dothex = f"{groups[:4]}.{groups[4:8]}.{groups[8:12]}.{groups[12:]}"
    if encoding == "dothex":
        return dothex
    if encoding == "kvs":
        return "job." + dothex
    raise BadJobId(
        "not a way to write job ids", where="encoding", found=repr(encoding), expected=", ".join(ENCODINGS)
    )


def parse_jobid(text: str) -> int:
    """Parses every encoding of `encode_jobid`. Surrounding blanks are ignored."""
    body = text.strip() if len(text) <= _TEXT_MAX else ""
    body = body.removeprefix("job.")
    if "." in body:
        match = _DOTHEX.fullmatch(body)
        if match is None:
            _fail("not a job id", text)
        number = 0
        for group in match.groups():
            number = number << 16 | int(group, 16)
        return number
    if body[:1] in ("ƒ", "f"):
        return _in_range(_from_f58(body[1:], text), text)
    if match := _HEX.fullmatch(body):
        return _in_range(int(match[1], 16), text)
    if _DECIMAL.fullmatch(body) is None:
        _fail("not a job id", text)
    return _in_range(int(body), text)


def _f58(number: int) -> str:
    digits = ""
    while number >= 58:
        number, value = divmod(number, 58)
        digits = _ALPHABET[value] + digits
    return _ALPHABET[number] + digits


def _from_f58(digits: str, text: str) -> int:
    if not 1 <= len(digits) <= _DIGITS_MAX:
        _fail("not a job id", text)
    number = 0
    for digit in digits:
        value = _VALUES.get(digit)
        if value is None:
            _fail("not a job id", text)
        number = number * 58 + value
    return number


def _in_range(number: int, text: str) -> int:
    if number > ID_MAX:
        _fail("job id out of range", text)
    return number


def _fail(summary: str, text: str) -> NoReturn:
    raise BadJobId(
        summary,
        where="job id",
        found=repr(text[:80]),
        expected="an id such as ƒTSfi3Sf, fTSfi3Sf, 1006632960000, 0xea60000000 or 0000.00ea.6000.0000",
    )
