"""A recording holds every row bit for bit, whatever happens to the process, the disk or the end of the file."""

import json
import os
import resource
import signal
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from mcap.reader import make_reader

from controller.gateway.events import Event
from controller.gateway.recording import recorder
from controller.gateway.recording.recorder import Recorder, recover
from controller.recording import parts, read
from tests.gateway.bench import AT, COLUMNS, ROOT, STARTED_UNIX_S, make_meta, make_rows, make_site

SPECIAL = np.array(
    [0x7FF8DEADBEEF0001, 0x8000000000000000, 0x7FF0000000000000, 0xFFF0000000000000, 1, 0x7FEFFFFFFFFFFFFF], np.uint64
).view(np.float64)  # NaN with a payload, -0.0, +-inf, smallest, largest


def record(folder: Path, rows: np.ndarray, first: int = 0, close: bool = True) -> Path:
    made = Recorder(make_site(folder), make_meta())
    for k in range(0, len(rows), 7):
        made.append(first + k, rows[k : k + 7])
    if close:
        made.close()
    else:
        made._writer.flush()
        made._abandon()
    return made.path


def ticks(path: Path) -> list[tuple[int, int, bytes]]:
    with path.open("rb") as file:
        messages = make_reader(file, validate_crcs=True).iter_messages(topics="tick", log_time_order=False)
        return [(message.sequence, message.log_time, message.data) for _, _, message in messages]


def test_bit_identical_with_everything_a_float_can_be(tmp_path: Path):
    rows = make_rows(300)
    rows[17, 20:26] = SPECIAL
    rows[18, AT["t_s"]] = np.nan
    rows[19, AT["t_s"]] = 1e308
    meta, columns, back = read(record(tmp_path, rows))
    assert columns == COLUMNS
    assert back.tobytes() == rows.tobytes()
    assert meta.pop("recording") == {
        "parts": [str(tmp_path / "recordings/bench-boot1.mcap")], "first_index": 0, "gaps": [], "duplicates": 0,
    }  # fmt: skip
    assert meta | {"started_monotonic_s": 0} == make_meta() | {"started_monotonic_s": 0}


def test_others_can_read_it(tmp_path: Path):
    rows = make_rows(150)
    path = record(tmp_path, rows)
    with path.open("rb") as file:
        schema, channel, _ = next(make_reader(file).iter_messages(topics="tick"))
    assert (schema.name, schema.encoding, channel.message_encoding) == ("pkm/msg/Tick", "ros2msg", "cdr")
    fields = [line.split() for line in schema.data.decode().splitlines() if not line.startswith("#")]
    assert fields == [["float64", name] for name in COLUMNS]
    assert "# m/s: leg 1: measured rate" in schema.data.decode()
    for k, (sequence, log_time, data) in enumerate(ticks(path)):
        assert sequence == k
        assert abs(log_time - (STARTED_UNIX_S + 0.01 * k) * 1e9) < 1000
        assert data[:4] == b"\x00\x01\x00\x00"
        assert [struct.unpack_from("<d", data, 4 + 8 * i)[0] for i in range(len(COLUMNS))] == rows[k].tolist()


def test_events_are_in_it_with_a_schema(tmp_path: Path):
    made = Recorder(make_site(tmp_path), make_meta())
    event = Event(STARTED_UNIX_S, "mode", "READY", "The mode is READY.", {"mode": 1.0, "x_m": None})
    made.append(0, make_rows(3), [event])
    made.close()
    with made.path.open("rb") as file:
        [(schema, channel, message)] = list(make_reader(file).iter_messages(topics="event"))
    assert (schema.encoding, channel.message_encoding) == ("jsonschema", "json")
    assert json.loads(schema.data)["type"] == "object"
    assert msgspec.json.decode(message.data, type=Event) == event


def whole_chunks(path: Path, size: int) -> int:
    """Rows in the chunks that end before `size`."""
    with path.open("rb") as file:
        reader = make_reader(file)
        summary = reader.get_summary()
        ends = [index.chunk_start_offset + index.chunk_length for index in summary.chunk_indexes]
        starts = [index.message_start_time for index in summary.chunk_indexes]
    times = np.array([time for _, time, _ in ticks(path)])
    complete = sum(end <= size for end in ends)
    return int((times < starts[complete]).sum()) if complete < len(starts) else len(times)


def test_truncated_anywhere_it_gives_all_but_the_last_chunk_and_goes_on(tmp_path: Path):
    rows = make_rows(400)
    whole = record(tmp_path / "whole", rows)
    data = whole.read_bytes()
    rng = np.random.default_rng(5)
    for cut in [*rng.integers(9, len(data), 20).tolist(), len(data) - 4, len(data) - 200]:
        folder = tmp_path / str(cut)
        path = folder / "recordings" / whole.name
        path.parent.mkdir(parents=True)
        path.write_bytes(data[:cut] + rng.bytes(cut % 3 * 50) + bytes(cut % 5 * 100))  # rubbish as after a power cut
        expected = whole_chunks(whole, cut)
        if expected:
            _, _, salvaged = read(path)
            assert salvaged.tobytes() == rows[:expected].tobytes()
        made = Recorder(make_site(folder), make_meta())
        assert (made.next_index, made.recorded) == (expected, expected)
        made.append(made.next_index, rows[made.next_index :])
        made.close()
        assert made.recorded == len(rows)
        assert len(parts(path)) == (2 if expected else 1)
        assert sum(len(ticks(part)) for part in parts(path)) == len(rows)  # every part is a valid file
        meta, _, joined = read(path)
        assert joined.tobytes() == rows.tobytes()
        assert (meta["recording"]["gaps"], meta["recording"]["duplicates"]) == ([], 0)
        assert not list(path.parent.glob("*.tmp"))


def test_a_damaged_chunk_does_not_spoil_the_others(tmp_path: Path):
    rows = make_rows(300)
    path = record(tmp_path, rows)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    good = whole_chunks(path, len(data) // 2)
    path.write_bytes(data)
    for _ in range(2):
        meta, _, back = read(path)
        [[first, missing]] = meta["recording"]["gaps"]
        assert first == good > 0
        assert missing < 100
        assert back.tobytes() == np.delete(rows, range(first, first + missing), axis=0).tobytes()
        path.write_bytes(path.read_bytes()[:-30])
        assert recover(path).rows == 300 - missing


def test_half_a_second_of_rows_is_handed_to_the_system(tmp_path: Path):
    made, rows = Recorder(make_site(tmp_path), make_meta()), make_rows(50)
    made.append(0, rows[:25])
    made.append(25, rows[25:])
    assert read(made.path)[2].tobytes() == rows.tobytes()
    made.close()


def test_kill_loses_no_more_than_what_was_not_flushed(tmp_path: Path):
    code = (
        "import sys; from pathlib import Path; from tests.gateway.bench import *\n"
        "from controller.gateway.recording.recorder import Recorder\n"
        "made, rows = Recorder(make_site(Path(sys.argv[1])), make_meta()), make_rows(4000)\n"
        "for k in range(4000): made.append(k, rows[k : k + 1]); print(made.next_index, flush=True)\n"
        "sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    with child:
        while (written := int(child.stdout.readline())) < 1234:
            pass
        with pytest.raises(BlockingIOError):  # nobody salvages a file that is being written
            Recorder(make_site(tmp_path), make_meta())
        os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read().split()
        written = int(rest[-1]) if rest else written
    path = tmp_path / "recordings/bench-boot1.mcap"
    made = Recorder(make_site(tmp_path), make_meta())
    assert written - 1 - recorder.FLUSH_S * 100 <= made.next_index <= written + 1
    rows = make_rows(4000)
    made.append(made.next_index - 20, rows[made.next_index - 20 :])  # what overlaps is left out
    made.close()
    meta, _, back = read(path)
    assert back.tobytes() == rows.tobytes()
    assert meta["recording"]["duplicates"] == 0
    assert len(parts(path)) == 2


def test_killed_again_and_again(tmp_path: Path):
    rows = make_rows(500)
    for end in (1, 130, 131, 380, 500):
        made = Recorder(make_site(tmp_path), make_meta())
        made.append(made.next_index, rows[made.next_index : end])
        made._abandon()  # closes the file without what the writer still holds, like a kill
    made = Recorder(make_site(tmp_path), make_meta())
    made.append(made.next_index, rows[made.next_index :])
    made.close()
    assert made.recorded == 500
    meta, _, back = read(made.path)
    assert back.tobytes() == rows.tobytes()
    assert (meta["recording"]["gaps"], meta["recording"]["duplicates"]) == ([], 0)


@pytest.mark.parametrize("left", [b"", b"\x89MCAP0\r\n", b"rubbish" * 9])
def test_a_file_with_nothing_in_it_is_begun_again(tmp_path: Path, left: bytes):
    path = tmp_path / "recordings/bench-boot1.mcap"
    path.parent.mkdir()
    path.write_bytes(left)
    with pytest.raises(ValueError, match="not a recording"):
        read(path)
    record(tmp_path, make_rows(20))
    assert read(path)[2].tobytes() == make_rows(20).tobytes()
    assert parts(path) == [path]


def test_a_finished_recording_of_the_same_session_is_continued(tmp_path: Path):
    rows = make_rows(90)
    path = record(tmp_path, rows[:40])
    before = path.read_bytes()
    record(tmp_path, rows[40:], first=40)
    assert path.read_bytes() == before
    assert read(parts(path)[1])[2].tobytes() == rows.tobytes()


def test_gaps_and_duplicates_are_reported(tmp_path: Path):
    rows = make_rows(100)
    path = record(tmp_path, rows[10:40], first=10)
    record(tmp_path, rows[60:80], first=60)
    twin = path.with_name("bench-boot1.part3.mcap")
    twin.write_bytes(path.read_bytes())
    meta, _, back = read(path)
    assert back.tobytes() == np.concatenate([rows[10:40], rows[60:80]]).tobytes()
    assert meta["recording"] | {"parts": 3} == {
        "parts": 3, "first_index": 10, "gaps": [[0, 10], [40, 20]], "duplicates": 30,
    }  # fmt: skip


def test_a_full_part_is_followed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorder, "PART_BYTES", 120_000)
    rows = make_rows(600)
    path = record(tmp_path, rows, close=False)
    assert len(parts(path)) >= 4
    made = Recorder(make_site(tmp_path), make_meta())
    assert made.recorded == made.next_index == 600
    made.close()
    assert read(path)[2].tobytes() == rows.tobytes()


def test_full_disk_ends_recording_and_leaves_what_is_written(tmp_path: Path):
    rows = make_rows(600)
    made = Recorder(make_site(tmp_path), make_meta())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            for k in range(600):
                made.append(k, rows[k : k + 1])
        _, _, left = read(made.path)
        assert len(left) > 100
        before = made.path.read_bytes()
        with pytest.raises(OSError, match="too large"):
            recover_bigger(made.path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert made.path.read_bytes() == before  # nothing half written took its place
    assert not list(made.path.parent.glob("*.tmp"))
    holds = recover(made.path)
    assert holds.rows == len(left)
    assert read(made.path)[2].tobytes() == left.tobytes() == rows[: len(left)].tobytes()


def recover_bigger(path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    recover(path)


def test_read_says_what_is_wrong(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="no such recording"):
        read(tmp_path / "none.mcap")
