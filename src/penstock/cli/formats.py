"""Tables from Flux format strings: `{id.f58:>12} ?:{queue:<8.8} {name:<10.10+}`.

A field has an optional conversion (`!F` duration, `!H` h:m:s, `!D` ISO, `!d` strftime with its format before
`::`, `!P` percent) and a width. Before a field, `?:` drops the column if it is empty in every row and `+:`
widens it to fit. `h` prints `-` for an empty or zero value; a trailing `+` marks a truncated value. Text
between fields is kept.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from penstock.cli.cells import aligned, cell_width, cut_cells
from penstock.cli.terminal import printable
from penstock.errors import BadRequest
from penstock.model.duration import format_duration

__all__ = ["Cell", "Column", "Table", "parse_format"]

Cell: TypeAlias = str | int | float | bool | None

_SPEC: Final = re.compile(r"([<>^]?)(0?)([0-9]{0,4})(?:\.([0-9]{1,4}))?([dsfg]?)(h?)(\+?)")
_PREFIX: Final = re.compile(r"([?+]{1,2}):$")
_CONVERSIONS: Final = "DdFHP"


@dataclass(frozen=True, slots=True)
class Column:
    before: str  # literal text before the field
    field: str
    conversion: str
    align: str
    width: int
    width_max: int | None
    dash_if_empty: bool
    marks_truncation: bool
    drops_if_empty: bool
    widens: bool
    date_format: str = ""
    precision: int | None = None  # for numbers with f or g
    number_format: str = ""  # d, s, f or g, as in Python's format specs


class Table:
    """A parsed format, which renders rows."""

    def __init__(self, columns: Sequence[Column], after: str, headings: Mapping[str, str]) -> None:
        self.columns = tuple(columns)
        self._after = after
        self._headings = headings

    def width_of(self, field: str) -> int:
        """The width of the first column of a field; 0 if there is none."""
        return next((column.width for column in self.columns if column.field == field), 0)

    def widened(self, field: str, width: int) -> Table:
        """The same table, with more room for a field that would be truncated."""
        columns = [
            replace(column, width=max(column.width, width), width_max=max(column.width_max, width))
            if column.field == field and column.width_max is not None
            else column
            for column in self.columns
        ]
        return Table(columns, self._after, self._headings)

    def lines(
        self, rows: Sequence[Any], value: Callable[[Any, str], Cell], *, header: bool = True
    ) -> list[list[str]]:
        """Each line as a list of cells: the text of a column with the literal text before it."""
        texts = [[_text(column, value(row, column.field)) for column in self.columns] for row in rows]
        kept = [
            index
            for index, column in enumerate(self.columns)
            if not column.drops_if_empty or any(row[index] not in ("", "-") for row in texts)
        ]
        widths: dict[int, int] = {}
        for index in kept:
            column = self.columns[index]
            heading = self._headings[column.field]
            widths[index] = column.width
            if column.widens:
                fitting = [cell_width(row[index]) for row in texts] + [cell_width(heading) if header else 0]
                widths[index] = max([column.width, *fitting])
        made: list[list[str]] = []
        if header:
            made.append(
                [self._cell(index, self._headings[self.columns[index].field], widths) for index in kept]
            )
        for row in texts:
            made.append([self._cell(index, row[index], widths) for index in kept])
        for line in made:
            if line:
                line[0] = (
                    line[0]
                    if self.columns[kept[0]].before.strip()
                    else line[0].removeprefix(self.columns[kept[0]].before)
                )
                line[-1] = (line[-1] + self._after).rstrip()
        return made

    def _cell(self, index: int, text: str, widths: Mapping[int, int]) -> str:
        column = self.columns[index]
        if column.width_max is not None and not column.widens:
            is_marked = column.marks_truncation and column.width_max > 1
            text = cut_cells(text, column.width_max, "+" if is_marked else "")
        return column.before + aligned(text, column.align, widths[index])


def parse_format(text: str, headings: Mapping[str, str]) -> Table:
    """Parses a format; `headings` maps every valid field to its heading."""
    columns: list[Column] = []
    after = ""
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise BadRequest(
            "invalid format", where="-o", found=str(error), expected="such as {id.f58:>12}"
        ) from error
    for literal, field, spec, conversion in parts:
        if field is None:
            after += literal
            continue
        if field not in headings:
            raise BadRequest(
                "unknown field", where="-o", found=repr(field), expected="one of " + ", ".join(headings)
            )
        columns.append(_column(after + literal, field, spec or "", conversion or ""))
        after = ""
    if not columns:
        raise BadRequest(
            "the format has no fields", where="-o", found=repr(text), expected="such as {id.f58:>12}"
        )
    return Table(columns, after, headings)


def _column(before: str, field: str, spec: str, conversion: str) -> Column:
    prefix = _PREFIX.search(before)
    flags = prefix[1] if prefix else ""
    date_format = ""
    if conversion == "d":
        date_format, _, spec = spec.partition("::")
    if conversion and conversion not in _CONVERSIONS:
        raise BadRequest(
            "unknown conversion", where="-o", found=f"!{conversion}", expected="one of !D !d !F !H !P"
        )
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise BadRequest(
            "invalid width", where="-o", found=repr(spec), expected="such as >12, <10.10+ or >8h"
        )
    align, _, width, width_max, number_format, dash, mark = match.groups()
    is_number = number_format in ("f", "g", "d")
    return Column(
        before=before[: prefix.start()] if prefix else before,
        field=field,
        conversion=conversion,
        align=align or "<",
        width=int(width or 0),
        width_max=int(width_max) if width_max and not is_number else None,
        dash_if_empty=bool(dash),
        marks_truncation=bool(mark),
        drops_if_empty="?" in flags,
        widens="+" in flags,
        date_format=date_format,
        precision=int(width_max) if width_max and is_number else None,
        number_format=number_format,
    )


def _text(column: Column, value: Cell) -> str:
    text = printable(_converted(column, value))
    if column.dash_if_empty and text in ("", "0s", "0", "0:00:00"):
        return "-"
    return text


def _converted(column: Column, value: Cell) -> str:
    if value is None or value == "":
        return ""
    if column.conversion and isinstance(value, (int, float)):
        return _time(column, float(value))
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        if column.number_format in ("f", "g"):
            precision = 6 if column.precision is None else column.precision
            return format(value, f".{precision}{column.number_format}")
        return f"{value:.15g}"
    return str(value)


def _time(column: Column, value: float) -> str:
    if column.conversion == "F":
        return format_duration(max(0.0, value))
    if column.conversion == "H":
        return str(timedelta(seconds=round(max(0.0, value))))
    if column.conversion == "P":
        return f"{value * 100:.3g}%"
    if value <= 0:
        return ""
    when = datetime.fromtimestamp(value)
    if column.conversion == "D":
        return when.strftime("%Y-%m-%dT%H:%M:%S")
    return when.strftime(column.date_format or "%Y-%m-%dT%H:%M:%S")
