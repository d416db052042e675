"""Recordings by command: what is listed, exported and recovered, and what the exit code says of it."""

import csv
import io
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest

from controller.commands import runs
from controller.gateway.events import Event
from controller.gateway.recording.recorder import Recorder
from controller.gateway.recording.shelf import listing, set_note, snapshot
from controller.recording import parts, read
from controller.ring import RingWriter
from tests.gateway.bench import COLUMNS, ROOT, STARTED_UNIX_S, make_meta, make_rows, make_site
from tests.machines import SIMULATION, own_site
from tests.shell import pkm, refused


def record(folder: Path, rows: np.ndarray, first: int = 0, session: str = "boot1") -> Path:
    made = Recorder(make_site(folder), make_meta(session))
    for k in range(0, len(rows), 100):
        made.append(first + k, rows[k : k + 100])
    made.close()
    return made.path


# ---------------------------------------------------------------- list


def test_list_tells_of_every_recording(tmp_path: Path):
    folder = tmp_path / "recordings"
    record(tmp_path, make_rows(250))
    record(tmp_path, make_rows(150, 250), 250)  # a second part
    broken = record(tmp_path, make_rows(300), session="boot2")
    broken.write_bytes(broken.read_bytes()[:-300])
    running = Recorder(make_site(tmp_path), make_meta("boot3"))
    running.append(0, make_rows(100))
    set_note(folder, "bench-boot1.mcap", "keep\nfirst motion")
    found = {recorded["name"]: recorded for recorded in json.loads(pkm("runs", "list", folder, "--json").out)}
    running.close()
    assert [(r["rows"], r["parts"], r["running"], r["finished"], r["kind"], r["note"]) for r in found.values()] == [
        (400, 2, False, True, "run", "keep\nfirst motion"),
        (300, 1, False, False, "run", ""),
        (100, 1, True, False, "run", ""),
    ]
    whole = found["bench-boot1"]
    assert whole["started_unix_s"] == pytest.approx(STARTED_UNIX_S, abs=1e-6)
    assert whole["duration_s"] == pytest.approx(3.99, abs=1e-6)
    assert whole["bytes"] == sum(part.stat().st_size for part in parts(folder / "bench-boot1.mcap"))
    lines = pkm("runs", "list", folder).out.splitlines()
    assert lines[0].split()[0] == "recording"
    assert "2023-11-14 22:13:20  0:00:04.0  400   2" in lines[1] and "keep first motion" in lines[1]
    assert "broken off" in lines[2] and "finished" in lines[3]


def test_list_of_a_site_and_of_nothing(tmp_path: Path):
    site = tmp_path / "site.toml"
    site.write_text(own_site(tmp_path, SIMULATION))
    refused(pkm("runs", "list", site), 2, f"{tmp_path}/recordings: no such folder")
    (tmp_path / "recordings").mkdir()
    assert pkm("runs", "list", site, "--json").out == "[]\n"


# ---------------------------------------------------------------- export


def test_csv_holds_every_number_to_the_last_bit(tmp_path: Path):
    rows = make_rows(300)
    rows[17, 30:33] = np.nan, np.inf, -0.0
    path = record(tmp_path, rows[:200])
    record(tmp_path, rows[200:], 200)
    header, *lines = csv.reader(io.StringIO(pkm("runs", "export", path).out))
    assert header == COLUMNS
    assert np.array(lines, float).tobytes() == rows.tobytes()


def test_columns_and_span_are_chosen(tmp_path: Path):
    path, rows = record(tmp_path, make_rows(300)), make_rows(300)
    out = pkm("runs", "export", path, "--channels", "t_s,z_m", "--from", "0.5", "--to", "1.25").out
    header, *lines = csv.reader(io.StringIO(out))
    assert header == ["t_s", "z_m"]
    at = [COLUMNS.index(name) for name in header]
    assert np.array(lines, float).tobytes() == rows[50:126, at].tobytes()


def test_the_table_is_one_that_the_other_commands_read(tmp_path: Path):
    rows = make_rows(100)
    rows[:, [COLUMNS.index(name) for name in ("x_m", "y_m", "yaw_rad", "pitch_rad", "roll_rad")]] = 0.0
    rows[:, COLUMNS.index("z_m")] = 0.85
    out = pkm("runs", "export", record(tmp_path, rows), "--channels", "t_s,x_m,y_m,z_m,yaw_rad,pitch_rad,roll_rad").out
    legs = pkm("legs", ROOT / "config/machines/6-upru.toml", given=out)
    assert (legs.code, len(legs.out.splitlines())) == (0, 101)


def test_parquet_carries_units_meanings_and_configuration(tmp_path: Path):
    rows, target = make_rows(300), tmp_path / "out.parquet"
    assert pkm("runs", "export", record(tmp_path, rows), "--format", "parquet", "-o", target).code == 0
    table = pq.read_table(target)
    assert table.column_names == COLUMNS
    assert np.column_stack([table.column(name).to_numpy() for name in COLUMNS]).tobytes() == rows.tobytes()
    assert table.schema.field("length_1_m_s").metadata == {b"unit": b"m/s", b"meaning": b"leg 1: measured rate"}
    assert table.schema.metadata[b"machine_toml"].decode() == 'name = "märchen"\n'
    assert float(table.schema.metadata[b"started_unix_s"]) == STARTED_UNIX_S


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_memory_does_not_grow_with_the_recording(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch):
    def peak(count: int) -> int:
        path, chosen = record(tmp_path, make_rows(count), session=f"run{count}"), ",".join(COLUMNS[:60])
        tracemalloc.start()
        try:
            assert pkm("runs", "export", path, "--channels", chosen, "--format", kind, "-o", tmp_path / "out").code == 0
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    monkeypatch.setattr(runs, "BLOCK_ROWS", 500)
    peak(600)  # what is loaded once
    assert peak(3600) - peak(1200) < 0.5 * 2400 * 60 * 8


def test_what_cannot_be_exported_is_one_sentence_and_no_file(tmp_path: Path):
    path, target = record(tmp_path, make_rows(300)), tmp_path / "out.csv"
    target.write_text("mine")
    for arguments, words in (
        ([path, "--channels", "t_s,nope"], "no channel nope in this recording"),
        ([path, "--from", "7"], "found no rows between 7 and inf s, this recording has t_s from"),
        ([tmp_path / "none.mcap"], "no such recording"),
        ([SIMULATION], "no such recording"),
        ([path, "--format", "parquet"], "-o FILE"),
    ):
        refused(pkm("runs", "export", *arguments), 2, words)
        if "--format" not in arguments:
            refused(pkm("runs", "export", *arguments, "-o", target), 2, words)
    assert target.read_text() == "mine"
    refused(pkm("runs", "export", path, "-o", tmp_path / "no" / "out.csv"), 2, "No such file or directory")
    with mock.patch.object(runs, "import_module", side_effect=ImportError):
        refused(pkm("runs", "export", path, "--format", "parquet", "-o", target), 2, "pyarrow")


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path):
    path = record(tmp_path, make_rows(3000))
    line = [sys.executable, "-m", "controller", "runs", "export", str(path)]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == ""
        assert child.wait(60) == 1


# ---------------------------------------------------------------- recover


def test_whole_and_broken_off(tmp_path: Path):
    rows, path = make_rows(400), record(tmp_path, make_rows(400))
    result = pkm("runs", "recover", path)
    assert (result.code, result.out) == (0, f"{path}: whole, 400 rows, 4.0 s\n")
    path.write_bytes(path.read_bytes()[:-100])
    result = pkm("runs", "recover", path)
    assert result.code == 0
    assert "recovered, 400 rows, 4.0 s; of what was written when it broke off at most 0.5 s are lost" in result.out
    assert listing(path.parent)[0].finished
    assert read(path)[2].tobytes() == rows.tobytes()


def test_rows_known_to_be_missing_are_told(tmp_path: Path):
    path = record(tmp_path, make_rows(200))
    record(tmp_path, make_rows(100, 240), 240)
    result = pkm("runs", "recover", tmp_path / "recordings")
    assert result.code == 1
    assert result.out == f"{path}: not complete, 300 rows, 3.4 s; 40 rows (0.40 s) are missing: 40 from t = 2.40 s\n"


def test_nothing_left_no_recording_or_not_yet(tmp_path: Path):
    whole = record(tmp_path, make_rows(100))
    other = tmp_path / "other.mcap"
    other.write_bytes(b"rubbish" * 100)
    empty = tmp_path / "empty"
    empty.mkdir()
    running = Recorder(make_site(tmp_path), make_meta("boot2"))
    running.append(0, make_rows(100))
    result = pkm("runs", "recover", whole, other, tmp_path / "none.mcap", empty, running.path)
    running.close()
    assert result.code == 2
    for found, words in zip(
        result.out.splitlines(),
        ("whole", "not a recording", "no such recording", "no recordings", "being written"),
        strict=True,
    ):
        assert words in found
    assert other.read_bytes() == b"rubbish" * 100


def test_a_ring_that_nobody_recorded(tmp_path: Path):
    rows, meta = make_rows(700), make_meta()
    site = own_site(tmp_path, SIMULATION)
    child = subprocess.Popen([sys.executable, "-c", ""])  # whose number no process has any more
    child.wait()
    with mock.patch("os.getpid", return_value=child.pid):
        writer = RingWriter(tmp_path / "ring", len(COLUMNS), 12000, meta | {"site_toml": site})
    for row in rows:
        writer.push(row)
    result = pkm("runs", "recover", tmp_path / "ring")
    assert result.code == 0, result.out
    assert "700 rows were written to this ring" in result.out
    [run, flight] = sorted((tmp_path / "recordings").glob("*.mcap"), key=lambda path: len(path.name))
    assert read(run)[2].tobytes() == read(flight)[2].tobytes() == rows.tobytes()
    assert pkm("runs", "recover", tmp_path / "ring").code == 0
    assert len(list((tmp_path / "recordings").glob("*.mcap"))) == 2


def test_a_ring_in_use_is_left_alone(tmp_path: Path):
    writer = RingWriter(
        tmp_path / "ring", len(COLUMNS), 100, make_meta() | {"site_toml": own_site(tmp_path, SIMULATION)}
    )
    assert pkm("runs", "recover", tmp_path / "ring").code == 2
    writer.close()


# ---------------------------------------------------------------- downloads and notes


def test_a_snapshot_is_one_finished_file_also_while_it_is_written(tmp_path: Path):
    rows, folder = make_rows(500), tmp_path / "recordings"
    record(tmp_path, rows[:200])
    made = Recorder(make_site(tmp_path), make_meta())
    made.append(200, rows[200:450], [Event(STARTED_UNIX_S, "mode", "READY", "x", {})])
    copy = tmp_path / "copy.mcap"
    with copy.open("wb") as file:
        snapshot(folder, "bench-boot1", file)
    assert read(copy)[2].tobytes() == rows[:450].tobytes()
    made.append(450, rows[450:])
    made.close()
    assert read(folder / "bench-boot1.mcap")[2].tobytes() == rows.tobytes()
    assert pkm("runs", "recover", copy).out.endswith("whole, 450 rows, 4.5 s\n")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", "", "a/b", "secret\0", "*", "bench-boot1.part2"])
def test_names_lead_nowhere_else(tmp_path: Path, name: str):
    record(tmp_path, make_rows(10))
    (tmp_path / "secret.mcap").write_bytes(b"secret")
    with pytest.raises(FileNotFoundError):
        snapshot(tmp_path / "recordings", name, io.BytesIO())
    with pytest.raises(FileNotFoundError):
        set_note(tmp_path / "recordings", name, "x")


def test_a_note_is_bounded_and_can_be_taken_back(tmp_path: Path):
    record(tmp_path, make_rows(10))
    folder = tmp_path / "recordings"
    with pytest.raises(ValueError, match="2001 characters"):
        set_note(folder, "bench-boot1", "x" * 2001)
    set_note(folder, "bench-boot1", "ü" * 2000)
    assert listing(folder)[0].note == "ü" * 2000
    set_note(folder, "bench-boot1", "")
    assert listing(folder)[0].note == ""
    assert len(list(folder.iterdir())) == 1
