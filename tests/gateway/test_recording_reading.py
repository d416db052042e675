"""What is read of a recording, whole and in blocks, here and by readers that know nothing of this project."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from mcap.reader import NonSeekingReader, make_reader
from mcap_ros2.decoder import DecoderFactory

from controller.gateway.events import Event
from controller.gateway.recording.recorder import Recorder
from controller.recording import blocks, description, events, glance, parts, read
from tests.gateway.bench import AT, COLUMNS, STARTED_UNIX_S, make_meta, make_rows, make_site


def record(folder: Path, rows: np.ndarray, first: int = 0, told: tuple[str, ...] = ()) -> Path:
    made = Recorder(make_site(folder), make_meta())
    made.append(first, rows, [Event(STARTED_UNIX_S, "mode", code, "x", {"mode": 1.0}) for code in told])
    made.close()
    return made.path


def test_an_independent_decoder_reads_every_number_by_its_name(tmp_path: Path):
    rows = make_rows(200)
    with record(tmp_path, rows).open("rb") as file:
        reader = make_reader(file, validate_crcs=True, decoder_factories=[DecoderFactory()])
        decoded = [(message, said) for _, _, message, said in reader.iter_decoded_messages("tick")]
    assert len(decoded) == 200
    for k, (message, said) in enumerate(decoded):
        assert [getattr(said, name) for name in COLUMNS] == rows[k].tolist()
        assert message.log_time == pytest.approx((STARTED_UNIX_S + 0.01 * k) * 1e9, abs=500)


def test_units_meanings_and_configuration_are_visible_to_others(tmp_path: Path):
    with record(tmp_path, make_rows(50), told=("READY",)).open("rb") as file:
        reader = make_reader(file)
        texts = {metadata.name: metadata.metadata for metadata in reader.iter_metadata()}
        [schema] = [schema for schema in reader.get_summary().schemas.values() if schema.name == "pkm/msg/Tick"]
        file.seek(0)
        strict = NonSeekingReader(file, validate_crcs=True)
        assert sum(1 for _ in strict.iter_messages()) == 51
    lines = schema.data.decode().splitlines()
    for name, unit, meaning in make_meta()["channels"]:
        assert lines[lines.index(f"float64 {name}") - 1] == f"# {unit}: {meaning}"
    session = texts["session"]
    assert session["machine_toml"] == 'name = "märchen"\n'
    assert session["site_toml"] == 'name = "bench"\n'
    assert session["version"] == "0.1.0"
    assert f'"started_unix_s": {STARTED_UNIX_S}' in session["meta"]
    assert '"started_monotonic_s": ' in session["meta"]


def test_blocks_are_the_rows_of_all_parts(tmp_path: Path):
    rows = make_rows(900)
    path = record(tmp_path, rows[:300])
    record(tmp_path, rows[300:500], 300)
    record(tmp_path, rows[600:], 600)
    found = list(blocks(parts(path)[1], ["z_m", "t_s"], most_rows=200))
    assert max(len(block.indices) for block in found) < 200 + 50
    indices, back = (np.concatenate(pieces) for pieces in zip(*found, strict=True))
    np.testing.assert_array_equal(indices, [*range(500), *range(600, 900)])
    np.testing.assert_array_equal(back, rows[indices][:, [AT["z_m"], AT["t_s"]]])
    some = list(blocks(path, first_s=2.5, last_s=6.5))
    assert (
        np.concatenate([block.rows for block in some]).tobytes() == rows[[*range(250, 500), *range(600, 651)]].tobytes()
    )
    assert list(blocks(path, first_s=100.0)) == []


def test_a_row_that_stands_in_two_parts_comes_once(tmp_path: Path):
    rows = make_rows(300)
    path = record(tmp_path, rows[:200])
    path.with_name("bench-boot1.part2.mcap").write_bytes(path.read_bytes())
    record(tmp_path, rows[200:], 200)
    assert np.concatenate([block.rows for block in blocks(path)]).tobytes() == rows.tobytes()
    assert read(path)[0]["recording"]["duplicates"] == 200


def test_memory_for_blocks_is_bounded(tmp_path: Path):
    def peak(count: int) -> int:
        path = record(tmp_path / str(count), make_rows(count))
        tracemalloc.start()
        try:
            assert sum(len(block.indices) for block in blocks(path, most_rows=200)) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(3000) < 1.3 * peak(1000)


def test_more_rows_than_a_sequence_number_has_bits(tmp_path: Path):
    rows, first = make_rows(300), 2**32 - 100
    path = record(tmp_path, rows[:200], first)
    record(tmp_path, rows[200:], first + 200)
    meta, _, back = read(path)
    assert back.tobytes() == rows.tobytes()
    assert meta["recording"]["first_index"] == first
    assert meta["recording"]["gaps"] == [[0, first]]
    assert [int(block.indices[-1]) for block in blocks(path)] == [first + 299]


def test_events_of_all_parts_in_their_order(tmp_path: Path):
    path = record(tmp_path, make_rows(10), told=("OFF", "READY"))
    record(tmp_path, make_rows(10, 10), 10, told=("ACTIVE",))
    assert [event["code"] for event in events(path)] == ["OFF", "READY", "ACTIVE"]
    assert next(events(path))["values"] == {"mode": 1.0}


def test_a_glance_tells_the_rows_without_reading_them(tmp_path: Path):
    path = record(tmp_path, make_rows(500), told=("READY",))
    told = glance(path)
    assert (told.rows, told.finished) == (500, True)
    assert (told.last_ns - told.first_ns) / 1e9 == pytest.approx(4.99, abs=1e-6)
    data = path.read_bytes()
    rng = np.random.default_rng(11)
    for at in rng.integers(0, len(data), 40).tolist():
        path.write_bytes(data[:at])
        told = glance(path)
        assert not told.finished
        try:
            known = len(read(path)[2])
        except ValueError:
            known = 0
        assert told.rows in (known, known - 46, known - 45, known - 50)  # the last chunk may be there without its index


def test_the_first_chunk_may_be_the_damaged_one(tmp_path: Path):
    rows, path = make_rows(300), record(tmp_path, make_rows(300))
    data = bytearray(path.read_bytes())
    data[25_000] ^= 0xFF
    path.write_bytes(data)
    meta, _, back = read(path)
    [[first, missing]] = meta["recording"]["gaps"]
    assert (first, back.tobytes()) == (0, rows[missing:].tobytes())


def test_what_is_no_recording_is_said(tmp_path: Path):
    other = tmp_path / "other.mcap"
    other.write_bytes(b"x" * 1000)
    for reading in (read, description, lambda path: list(blocks(path))):
        with pytest.raises(ValueError, match="not a recording of this controller"):
            reading(other)
        with pytest.raises(FileNotFoundError, match="no such recording"):
            reading(tmp_path / "none.mcap")
    with pytest.raises(ValueError, match="no channel nope, other in"):
        list(blocks(record(tmp_path, make_rows(5)), ["t_s", "other", "nope"]))
