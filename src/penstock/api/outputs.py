"""What tasks print, read from the files they print into, piece by piece while they grow."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

__all__ = ["Follower", "follow_files"]

_PIECE_BYTES: Final = 64 << 10
_PAUSE_S: Final = 0.1


class _File:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def read(self, final: bool = False) -> Iterator[dict[str, str]]:
        while True:
            try:
                with self.path.open("rb") as stream:
                    stream.seek(self._offset)
                    piece = stream.read(_PIECE_BYTES)
            except OSError:
                return
            if not piece and not final:
                return
            self._offset += len(piece)
            try:
                text = self._decoder.decode(piece, final and not piece)
                if text:
                    yield {"data": text}
            except UnicodeDecodeError:
                self._decoder.reset()
                yield {"base64": base64.b64encode(piece).decode("ascii")}
            if not piece:
                return


class Follower:
    """The output of one job: every file once, from where it was read last."""

    pause_s: Final = _PAUSE_S

    def __init__(self) -> None:
        self._files: dict[tuple[int, str], _File] = {}

    def read(self, outputs: list[tuple[int, Path, Path]]) -> Iterator[dict[str, Any]]:
        shared: dict[Path, tuple[int, str]] = {}
        for index, stdout, stderr in outputs:
            for stream, path in (("stdout", stdout), ("stderr", stderr)):
                # Several tasks, or both streams, can go to one file: it is shown once.
                key = shared.setdefault(path, (index, stream))
                found = self._files.get(key)
                if found is None or found.path != path:
                    self._files[key] = _File(path)
        for (index, stream), file in self._files.items():
            for piece in file.read():
                yield {"index": index, "stream": stream, **piece}

    def rest(self) -> Iterator[dict[str, Any]]:
        for (index, stream), file in self._files.items():
            for piece in file.read(final=True):
                yield {"index": index, "stream": stream, **piece}


def follow_files() -> Follower:
    return Follower()
