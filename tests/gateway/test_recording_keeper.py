"""A session is recorded to the end whatever the disk does, and every fault that stops has its flight recording."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from controller.gateway.events import Event, events
from controller.gateway.recording import keeper as module
from controller.gateway.recording.keeper import Keeper, salvage_left
from controller.gateway.recording.shelf import listing, set_note
from controller.recording import events as recorded_events
from controller.recording import read
from controller.records import Array, Fault, Mode
from controller.ring import RingReader, RingWriter, left_behind
from tests.gateway.bench import AT, COLUMNS, STARTED_UNIX_S, make_meta, make_rows, make_site, wait_until


class Session:
    """A control process and the tail of a gateway, both played by the test."""

    def __init__(self, folder: Path, session: str = "boot1", capacity: int = 12000, **recording: int) -> None:
        self.site = make_site(folder)
        self.site = msgspec.structs.replace(
            self.site, recording=msgspec.structs.replace(self.site.recording, **recording)
        )
        self.writer = RingWriter(folder / "ring", len(COLUMNS), capacity, make_meta(session))
        self.ring = RingReader(folder / "ring")
        self.told: list[Event] = []
        self.begin()

    def begin(self) -> None:
        self.keeper = Keeper(self.site, self.ring)
        self.index = self.keeper.open()

    def push(self, rows: Array) -> None:
        for row in rows:
            self.writer.push(row)
        self.tail()

    def tail(self) -> None:
        """What the gateway does: look at all rows, tell, allow them to be recorded."""
        while self.index < self.ring.written:
            first, rows = self.ring.read(self.index, 1000)
            self.index = first + len(rows)
            self.told += self.keeper.step(self.index, [])

    def wait(self, what: Callable[[], object]) -> None:
        def looked() -> object:
            self.told += self.keeper.step(self.index, [])
            return what()

        wait_until(looked, 60.0)

    def recorded(self, count: int) -> None:
        self.wait(lambda: self.keeper.recorded >= count)

    def close(self, died: bool = False) -> None:
        self.told += self.keeper.close([], died)

    def kill(self) -> None:
        """Leave everything as it is, as if the gateway's process were gone."""
        self.keeper._turn, self.keeper._finish = lambda: False, lambda: None
        self.keeper._ending.set()
        self.keeper._thread.join()
        self.keeper._recorder._abandon()

    def codes(self) -> list[str]:
        return [event.code for event in self.told]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


def flights(folder: Path) -> list[Path]:
    return sorted((folder / "recordings").glob("*.flight-*.mcap"), key=lambda path: int(path.stem.rpartition("-")[2]))


def test_every_row_and_event_once(session: Session):
    rows, told = make_rows(3000), Event(STARTED_UNIX_S, "mode", "READY", "The mode is READY.", {})
    session.push(rows[:1000])
    session.keeper.step(1000, [told])
    session.push(rows[1000:])
    session.close()
    assert session.codes() == []
    meta, _, back = read(session.keeper.path)
    assert back.tobytes() == rows.tobytes()
    assert (meta["recording"]["gaps"], session.keeper.lost, session.keeper.recorded) == ([], 0, 3000)
    assert [event["code"] for event in recorded_events(session.keeper.path)] == ["READY"]


def test_no_row_is_recorded_ahead_of_its_events(session: Session):
    for row in make_rows(300):
        session.writer.push(row)
    session.keeper.step(100, [])
    session.recorded(100)
    time.sleep(0.1)
    assert session.keeper.recorded == 100
    session.close()
    assert session.keeper.recorded == 300


def test_a_killed_keeper_is_taken_over_without_a_row_lost_or_doubled(tmp_path: Path):
    rows = make_rows(900)
    session = Session(tmp_path)
    session.push(rows[:400])
    session.recorded(400)
    session.kill()
    session.begin()
    assert 400 - 50 <= session.index <= 400
    session.push(rows[400:])
    session.close()
    meta, _, back = read(session.keeper.path)
    assert back.tobytes() == rows.tobytes()
    assert len(meta["recording"]["parts"]) == 2


# ---------------------------------------------------------------- full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "recordings"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> Path:
    """Leave no byte free."""
    filler = folder / "other.bin"
    with filler.open("wb", 0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))
    return filler


def test_a_full_disk_stops_recording_and_room_lets_it_go_on(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "ROOM_BYTES", 1 << 20)
    monkeypatch.setattr(module, "RETRY_S", 0.2)
    session, rows = Session(tmp_path), make_rows(1500)
    session.push(rows[:300])
    session.recorded(300)
    filler = fill(small_disk)
    told = Event(STARTED_UNIX_S, "mode", "READY", "The mode is READY.", {})
    session.keeper.step(300, [told])
    session.push(rows[300:700])
    session.wait(lambda: "stopped" in session.codes())
    assert session.keeper.name is None
    session.push(rows[700:1000])
    time.sleep(0.5)
    filler.unlink()
    session.wait(lambda: "resumed" in session.codes())
    session.push(rows[1000:])
    session.close()
    assert session.codes() == ["stopped", "resumed"]
    assert "No space left" in session.told[0].text
    meta, _, back = read(session.keeper.path)
    assert back.tobytes() == rows.tobytes()  # the ring bridged it
    assert session.keeper.lost == 0
    assert len(meta["recording"]["parts"]) == 2
    codes = [event["code"] for event in recorded_events(session.keeper.path)]
    assert sorted(codes) == ["READY", "resumed", "stopped"]
    [found] = listing(small_disk)
    assert (found.finished, found.running, found.rows) == (True, False, 1500)


def test_what_the_ring_cannot_bridge_is_counted(small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "ROOM_BYTES", 1 << 20)
    monkeypatch.setattr(module, "RETRY_S", 0.2)
    session, rows = Session(tmp_path, capacity=400), make_rows(1500)
    session.push(rows[:100])
    session.recorded(100)
    filler = fill(small_disk)
    for first in range(100, 1400, 100):
        session.push(rows[first : first + 100])
        time.sleep(0.05)
    session.wait(lambda: "stopped" in session.codes())
    filler.unlink()
    session.wait(lambda: "gap" in session.codes())
    session.push(rows[1400:])
    session.close()
    meta, _, back = read(session.keeper.path)
    assert meta["recording"]["gaps"] == [[1400 - 399 - session.keeper.lost, session.keeper.lost]]
    [gap] = [event for event in session.told if event.code == "gap"]
    assert gap.values == {"lost": session.keeper.lost}
    assert len(back) == 1500 - session.keeper.lost == session.keeper.recorded
    assert back[-499:].tobytes() == rows[-499:].tobytes()


def test_a_disk_that_stays_full_costs_the_recording_only(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "RETRY_S", 0.2)
    fill(small_disk)
    session = Session(tmp_path)
    assert session.index == 0
    session.push(make_rows(300))
    session.wait(lambda: "stopped" in session.codes())
    session.close()
    assert session.codes() == ["stopped"]
    assert session.keeper.lost == 300
    assert listing(small_disk) == []


# ---------------------------------------------------------------- flight recordings


def with_fault(rows: Array, at: int, fault: Fault, last: int) -> Array:
    rows[at:last, AT["faults"]] = fault
    rows[at:, AT["mode"]] = Mode.FAULT
    return rows


def test_a_fault_leaves_a_minute_before_and_seconds_after_it(session: Session):
    rows = with_fault(make_rows(9000), 7000, Fault.FOLLOWING_ERROR, 7100)
    rows[2000:2100, AT["faults"]] = Fault.SENSOR_DEGRADED  # stops nothing
    session.push(rows)
    session.wait(lambda: "flight" in session.codes())
    session.close()
    [flight] = flights(session.keeper.path.parents[1])
    meta, columns, back = read(flight)
    assert back.tobytes() == rows[1000:7500].tobytes()
    assert meta["recording"]["first_index"] == 1000
    assert (meta["kind"], meta["cause"], meta["machine_toml"]) == ("flight", "FOLLOWING_ERROR", 'name = "märchen"\n')
    own = [event for k in range(1001, 7500) for event in events(rows[k - 1], rows[k], columns)]
    assert [event["text"] for event in recorded_events(flight)] == [event.text for event in own]
    assert [(found.kind, found.finished, found.rows) for found in listing(flight.parent)] == [
        ("flight", True, 6500), ("run", True, 9000)
    ]  # fmt: skip


def test_faults_with_the_drives_off_are_recorded_but_cut_no_flight(session: Session):
    rows = make_rows(3000)
    rows[:, AT["mode"]] = Mode.OFF
    rows[1000:1100, AT["faults"]] = Fault.LINK_LOST
    session.push(rows)
    session.recorded(3000)
    session.close()
    assert flights(session.keeper.path.parents[1]) == []


def test_faults_that_follow_each_other_share_one_flight(session: Session):
    rows = make_rows(5000)
    for at in (1000, 1400, 1800, 2900):
        rows[at : at + 100, AT["faults"]] = Fault.OVERRUN
    session.push(rows)
    session.wait(lambda: session.codes().count("flight") == 2)
    session.close()
    spans = [
        (int(t[0] * 100 + 0.5), len(t))
        for t in (read(path)[2][:, AT["t_s"]] for path in flights(session.keeper.path.parents[1]))
    ]
    assert spans == [(0, 2300), (0, 3400)]


def test_a_fault_just_before_the_end_and_a_dead_control_process_have_theirs(tmp_path: Path):
    for name, died, cause in (("end", False, "STROKE"), ("dead", True, "the control process died")):
        session, rows = Session(tmp_path, name), make_rows(800)
        if not died:
            rows = with_fault(rows, 700, Fault.STROKE, 750)
        session.push(rows)
        session.close(died)
        [flight] = (tmp_path / "recordings").glob(f"*-{name}.flight-*.mcap")
        meta, _, back = read(flight)
        assert meta["cause"] == cause
        assert back.tobytes() == rows.tobytes()


def test_a_gateway_that_died_with_the_control_process_left_its_flight_to_the_next(tmp_path: Path):
    rows = with_fault(make_rows(3000), 2000, Fault.OVERFORCE, 2100)
    session = Session(tmp_path)
    session.kill()
    for row in rows:
        session.writer.push(row)
    assert flights(tmp_path) == []
    session.begin()  # the ring is all that is left
    session.tail()
    session.wait(lambda: "flight" in session.codes())
    session.close(died=True)
    assert [read(path)[0]["cause"] for path in flights(tmp_path)] == ["OVERFORCE", "the control process died"]
    assert read(session.keeper.path)[2].tobytes() == rows.tobytes()
    session.begin()  # once more: what is there is not cut again
    session.close()
    assert len(flights(tmp_path)) == 2


def test_control_and_gateway_killed_together_lose_nothing_to_the_next_session(tmp_path: Path):
    rows = make_rows(900)
    child = subprocess.Popen([sys.executable, "-c", ""])  # whose number no process has any more
    child.wait()
    with mock.patch("os.getpid", return_value=child.pid):
        session = Session(tmp_path, "old")
    session.push(rows[:300])
    session.recorded(300)
    session.kill()
    for row in rows[300:]:
        session.writer.push(row)
    new = Session(tmp_path, "new")  # in its place
    salvage_left(session.site)
    assert not left_behind(tmp_path / "ring").exists()
    [run, flight] = sorted((tmp_path / "recordings").glob("*old*.mcap"), key=lambda path: len(path.name))[::2]
    assert read(run)[2].tobytes() == rows.tobytes()
    assert read(flight)[0]["cause"] == "the control process died"
    salvage_left(session.site)  # nothing to do
    new.close()


def test_the_first_and_the_newest_flights_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "BEFORE_S", 1.0)
    session, rows = Session(tmp_path, flights=2), make_rows(12000)
    for k in range(10):
        rows[1000 * k + 900 : 1000 * k + 950, AT["faults"]] = Fault.OVERRUN
    session.push(rows)
    session.wait(lambda: session.codes().count("flight") == 10)
    session.close()
    assert [int(path.stem.rpartition("-")[2]) for path in flights(tmp_path)] == [
        900,
        1900,
        2900,
        3900,
        4900,
        8900,
        9900,
    ]
    assert session.codes().count("removed") == 3


# ---------------------------------------------------------------- what is removed


def test_the_oldest_finished_runs_make_room(tmp_path: Path):
    folder = tmp_path / "recordings"
    for k in range(5):
        session = Session(tmp_path, f"run{k}")
        rows = make_rows(700)
        session.push(with_fault(rows, 600, Fault.STROKE, 650) if k == 0 else rows)
        session.close()
        for path in folder.glob(f"*-run{k}.*"):
            os.utime(path, (1000 + k, 1000 + k))
    set_note(folder, "bench-run1", "Keep: first motion of the new legs")
    busy = Session(tmp_path, "busy")  # another gateway in the same folder
    for path in folder.glob("*-busy.*"):
        os.utime(path, (500, 500))
    size = sum(path.stat().st_size for path in folder.glob("bench-run4*.mcap"))
    session = Session(tmp_path, "run5", keep_bytes=round(3.5 * size))
    session.push(make_rows(100))
    session.wait(lambda: session.codes().count("removed") == 3)
    session.close()
    busy.close()
    assert [path.name for path in sorted(folder.glob("*.mcap"))] == [
        "bench-busy.mcap", "bench-run0.flight-600.mcap", "bench-run1.mcap", "bench-run4.mcap", "bench-run5.mcap",
    ]  # fmt: skip
    assert [event.text for event in session.told] == [
        f"The recording bench-run{k} is removed: the site keeps no more." for k in (0, 2, 3)
    ]
