"""The ring: what is written is read, bit for bit; what is gone is told."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.ring import RingReader, RingWriter

COLUMNS, CAPACITY = 5, 16


def row(index: int) -> np.ndarray:
    return np.array([index, -index, np.nan, 0.5 * index, -0.0])


@settings(max_examples=60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_a_reader_gets_every_row_once_or_is_told_how_many_are_gone(bursts: list[int]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ring"
        writer = RingWriter(path, COLUMNS, CAPACITY, {"session": "s"})
        reader = RingReader(path)
        at, seen, lost = 0, 0, 0
        for burst in bursts:
            for _ in range(burst):
                writer.push(row(writer.written))
            first, rows = reader.read(at)
            lost += first - at
            expected = np.array([row(first + k) for k in range(len(rows))]).reshape(-1, COLUMNS)
            np.testing.assert_array_equal(rows.view(np.uint64), expected.view(np.uint64))
            at, seen = first + len(rows), seen + len(rows)
        assert at == writer.written == seen + lost
        assert (lost == 0) == all(burst < CAPACITY for burst in bursts)
        reader.close()
        writer.close()


def test_the_file_outlives_its_writer(tmp_path: Path) -> None:
    writer = RingWriter(tmp_path / "ring", COLUMNS, CAPACITY, {"session": "one", "text": "ü" * 5000})
    writer.push(row(0))
    reader = RingReader(tmp_path / "ring")
    assert not reader.closed
    writer.close()
    assert reader.closed
    assert reader.meta == {"session": "one", "text": "ü" * 5000}
    assert len(RingReader(tmp_path / "ring").read(0)[1]) == 1


def test_a_new_session_leaves_readers_of_the_old_one_alone(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    old = RingWriter(path, COLUMNS, CAPACITY, {"session": "old"})
    old.push(row(3))
    reader = RingReader(path)
    new = RingWriter(path, COLUMNS, CAPACITY, {"session": "new"})
    new.push(row(7))
    assert reader.meta["session"] == "old"
    assert reader.read(0)[1][0, 0] == 3
    assert RingReader(path).read(0)[1][0, 0] == 7


def test_what_is_no_ring_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    path.write_bytes(b"x" * 4096)
    with pytest.raises(ValueError, match="not a ring"):
        RingReader(path)
