"""Writers: allocations and search results in Fluxion's output formats."""

from __future__ import annotations

from penstock.fluxion.writers.formats import FORMATS, Writer, writer_of

__all__ = ["FORMATS", "Writer", "writer_of"]
