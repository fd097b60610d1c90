"""The spool of standard input: every reader gets every byte once, in order, and what all have read goes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock.agent.input_spool import SEGMENT_BYTES, InputReader, InputSpool, PositionFile, read_position

SIZES = st.one_of(st.integers(0, 20), st.integers(SEGMENT_BYTES - 10, 2 * SEGMENT_BYTES + 10))


@given(st.lists(st.tuples(SIZES, SIZES, SIZES), max_size=6))
def test_readers_get_all_bytes_in_order_whatever_is_discarded(steps: list[tuple[int, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "input"
        readers = [InputReader(str(path)), InputReader(str(path))]
        sent, got = b"", [b"", b""]
        for step, (size, first, second) in enumerate(steps):
            data = bytes([step]) * size
            InputSpool(path).append(data)  # Each time as after a restart.
            sent += data
            assert InputSpool(path).size == len(sent)
            for number, size_max in enumerate((first, second)):
                got[number] += readers[number].read(size_max)
            InputSpool(path).discard(min(map(len, got)))
        InputSpool(path).end()
        for number, reader in enumerate(readers):
            assert reader.has_ended()
            while data := reader.read(SEGMENT_BYTES):
                got[number] += data
            assert got[number] == sent
        InputSpool(path).discard(len(sent))
        assert sum(file.stat().st_size for file in path.iterdir()) <= SEGMENT_BYTES


def test_the_slowest_task_counts_and_finished_ones_do_not(tmp_path: Path) -> None:
    spool = InputSpool(tmp_path / "input")
    spool.append(b"x" * 100)
    files = [tmp_path / name for name in "abc"]
    assert [spool.position(files), spool.position([])] == [0, None]
    positions = [PositionFile(str(path)) for path in files]
    for file, position in zip(positions, (70, 30, 50), strict=True):
        file.write(position)
    assert spool.position(files) == 30
    positions[1].finish()
    assert spool.position(files) == 50
    for file in (positions[0], positions[2]):
        file.finish()
    assert spool.position(files) == 100
    assert read_position(tmp_path / "nobody") == 0
