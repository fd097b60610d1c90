"""Returns free memory to the system.

The jobs of a long queue are many small objects. When they have ended, the C library keeps most of the pages
they were on, for later use: an instance would hold the memory of its longest queue for good.
"""

from __future__ import annotations

import asyncio
import ctypes
from typing import Final

__all__ = ["trim_memory"]

_EVERY_S: Final = 30.0


async def trim_memory() -> None:
    """Trims the heap now and then, until cancelled. A C library without such a function is left alone."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(_EVERY_S)
        await asyncio.to_thread(trim, 0)
