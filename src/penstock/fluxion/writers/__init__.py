"""Writers: what is shown of an allocation, in the formats that Flux users and scripts know."""

from __future__ import annotations

from penstock.fluxion.writers.formats import FORMATS, Writer, writer_of

__all__ = ["FORMATS", "Writer", "writer_of"]
