"""Penstock with a sampling profiler: `python -m bench.kube.sampled FILE ARGUMENT...` runs the daemon.

The arguments are those of `python -m penstock.app`. A thread samples the stacks of the other threads a
hundred times a second and counts the innermost function of Penstock on each stack, and its package. Waiting
is not counted. A call that holds the GIL is sampled only when it returns, so shares are accurate to a few
percent; the sampling costs one or two percent. FILE contains the counts so far, as JSON.
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


def _sample(file: Path) -> None:
    packages: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    rounds = 0
    while True:
        time.sleep(_EVERY_S)
        rounds += 1
        for thread, frame in sys._current_frames().items():
            if thread == threading.get_ident() or frame.f_code.co_name in _WAITS:
                continue
            package, function = _location(frame)
            packages[package] += 1
            functions[function] += 1
        if rounds % _WRITE_EVERY == 0:
            counts = {
                "rounds": rounds,
                "packages": dict(packages),
                "functions": dict(functions.most_common(40)),
            }
            temporary = file.with_suffix(".new")
            temporary.write_text(json.dumps(counts), "utf-8")
            temporary.replace(file)


def _location(frame: FrameType) -> tuple[str, str]:
    """The package and innermost function of Penstock on a stack; the library if the event loop called it."""
    file = frame.f_code.co_filename
    innermost = f"{Path(file).name}:{frame.f_code.co_name}"
    found: FrameType | None = frame
    while found is not None:
        _, ours, path = found.f_code.co_filename.rpartition(_OURS)
        if ours and not path.startswith(("cli", "app")):
            package = ".".join(Path(path).parts[:2]).removesuffix(".py")
            return package, f"{path}:{found.f_code.co_name}"
        found = found.f_back
    return "HTTP and TLS" if any(claim in file for claim in _HTTP) else "libraries", innermost


def main() -> None:
    file = Path(sys.argv[1])
    from penstock.app.__main__ import main as daemon

    threading.Thread(target=_sample, args=(file,), daemon=True).start()
    sys.exit(daemon(sys.argv[2:]))


if __name__ == "__main__":
    main()
