"""The type of `--mem`: a size of memory, in MiB if it has no unit, as in Slurm."""

from __future__ import annotations

import click

from penstock.model.memory_size import parse_memory_mib

__all__ = ["MemorySize"]


class MemorySize(click.ParamType):  # type: ignore[type-arg]
    """Converts `4G` to a number of MiB."""

    name = "size"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        del param, ctx
        return value if isinstance(value, int) else parse_memory_mib(value, "--mem")
