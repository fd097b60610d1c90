"""The output of tasks, read from the files that they write to, in chunks while the files grow."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, TypeAlias

from penstock.api.responses import OutputChunk

__all__ = ["OutputReader", "TaskOutput"]

TaskOutput: TypeAlias = tuple[int, Path, Path]  # index of the task, stdout, stderr
_Stream: TypeAlias = Literal["stdout", "stderr"]

_CHUNK_BYTES: Final = 64 << 10


class _OutputFile:
    """One file of one task, and how far it has been read."""

    def __init__(self, index: int, stream: _Stream, path: Path) -> None:
        self.path = path
        self._index = index
        self._stream: _Stream = stream
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def read(self, final: bool = False) -> Iterator[OutputChunk]:
        """What was written since the last read; `final` also returns an incomplete character at the end."""
        while True:
            try:
                with self.path.open("rb") as stream:
                    stream.seek(self._offset)
                    data = stream.read(_CHUNK_BYTES)
            except OSError:
                return
            if not data and not final:
                return
            self._offset += len(data)
            try:
                text = self._decoder.decode(data, final and not data)
                if text:
                    yield OutputChunk(self._index, self._stream, data=text)
            except UnicodeDecodeError:
                self._decoder.reset()
                yield OutputChunk(self._index, self._stream, base64=base64.b64encode(data).decode("ascii"))
            if not data:
                return


class OutputReader:
    """Reads the output files of one job; each file is read once, from where the last read stopped."""

    poll_s: Final = 0.1

    def __init__(self) -> None:
        self._files: dict[tuple[int, _Stream], _OutputFile] = {}

    def read(self, outputs: list[TaskOutput]) -> Iterator[OutputChunk]:
        first_use: dict[Path, tuple[int, _Stream]] = {}
        for index, stdout, stderr in outputs:
            streams: tuple[tuple[_Stream, Path], ...] = (("stdout", stdout), ("stderr", stderr))
            for stream, path in streams:
                # Several tasks, or both streams of one, can write to the same file: it is read once.
                key = first_use.setdefault(path, (index, stream))
                found = self._files.get(key)
                if found is None or found.path != path:
                    self._files[key] = _OutputFile(*key, path)
        for file in self._files.values():
            yield from file.read()

    def finish(self) -> Iterator[OutputChunk]:
        """What is left when no task writes any more."""
        for file in self._files.values():
            yield from file.read(final=True)
