"""A Penstock that looks at itself: `python -m bench.kube.sampled FILE ARGUMENT...` runs the daemon.

A thread looks a hundred times a second at what the others do, and counts it for the innermost function of
Penstock's that it finds, and for the part of Penstock that this is in. Waiting is not counted. Calls that
keep the interpreter to themselves are seen when they return, so shares are good to a few percent, and the
looking costs one or two. The counts so far are in FILE, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final

_EVERY_S: Final = 0.01
_WRITE_EVERY: Final = 50
_WAITS: Final = frozenset({"select", "wait", "_worker", "get", "acquire", "poll"})
_HTTP: Final = ("aiohttp", "asyncio", "ssl.py", "yarl", "multidict")
_OURS: Final = f"{os.sep}penstock{os.sep}"


def _look(file: Path, looker: threading.Event) -> None:
    parts: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    looks = 0
    while not looker.is_set():
        time.sleep(_EVERY_S)
        looks += 1
        for thread, frame in sys._current_frames().items():
            if thread == threading.get_ident() or frame.f_code.co_name in _WAITS:
                continue
            part, function = _place(frame)
            parts[part] += 1
            functions[function] += 1
        if looks % _WRITE_EVERY == 0:
            told = {"looks": looks, "parts": dict(parts), "functions": dict(functions.most_common(40))}
            beside = file.with_suffix(".new")
            beside.write_text(json.dumps(told), "utf-8")
            beside.replace(file)


def _place(frame: FrameType) -> tuple[str, str]:
    """The part of Penstock, and the innermost function of it; what is under the loop is a library's."""
    file = frame.f_code.co_filename
    innermost = f"{Path(file).name}:{frame.f_code.co_name}"
    found: FrameType | None = frame
    while found is not None:
        _, ours, path = found.f_code.co_filename.rpartition(_OURS)
        if ours and not path.startswith(("cli", "app")):
            part = ".".join(Path(path).parts[:2]).removesuffix(".py")
            return part, f"{path}:{found.f_code.co_name}"
        found = found.f_back
    return "HTTP and TLS" if any(claim in file for claim in _HTTP) else "libraries", innermost


def main() -> None:
    file = Path(sys.argv[1])
    from penstock.app.__main__ import main as daemon

    threading.Thread(target=_look, args=(file, threading.Event()), daemon=True).start()
    sys.exit(daemon(sys.argv[2:]))


if __name__ == "__main__":
    main()
