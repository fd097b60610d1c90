"""What something costs, counted and not timed: the same on every machine, however busy it is."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["instructions"]


def instructions(call: Callable[[], object]) -> int:
    """The instructions of the interpreter that a call takes; what is done in C counts as one."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    is_collecting = gc.isenabled()
    gc.disable()  # a collection runs callbacks of the test tools, which would be counted
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        if is_collecting:
            gc.enable()
    return count
