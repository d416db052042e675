"""The recording of one session kept going in a thread of its own: full disks, old runs, flight recordings.

The thread has a cursor of its own into the ring, which bridges what a disk that is full or hangs cannot take. A flight
recording is cut from the ring for every fault that stops: a minute before to a few seconds after, in a file of its own.
"""

import logging
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np

from controller.gateway.events import Event, code_name, events, now_t, unix_s, whole
from controller.gateway.recording.recorder import CHANNELS, Recorder, begun, recording_path, recover
from controller.gateway.recording.shelf import flight_path, removed_flights, removed_runs
from controller.recording import CDR_HEADER, SEQUENCE_BITS, guarded, parts, survey
from controller.records import Array, Fault, Mode
from controller.ring import RingReader, left_behind
from controller.safety.faults import FAULTS, Effect
from controller.schema import Site

BEFORE_S = 60.0  # a flight recording begins so long before its fault
AFTER_S = 5.0  # and goes on so long after it, or after the last of several ...
LONGEST_AFTER_S = 15.0  # ... that follow each other
SLICE_ROWS = 200
POLL_S = 0.02
RETRY_S = 1.0  # between attempts to record again
ROOM_BYTES = 16 * 1024 * 1024  # free on the disk before it is tried
TIDY_S = 10.0  # between looks for what is to be removed
WAITING_EVENTS = 1000  # kept while nothing is recorded
PATIENCE_S = 15.0  # for a disk that hangs at the end
STOPPING = sum(fault.value for fault, row in FAULTS.items() if row.effect >= Effect.STOP)

log = logging.getLogger("pkm.gateway")


class Flight(NamedTuple):
    """A flight recording to be cut."""

    at: int  # index of the row with its first fault
    cause: str
    last_index: int  # it ends ahead of this row


class Keeper:
    """Records the session of `ring`. Nothing here raises or waits for the disk, but `open` and `close`."""

    def __init__(self, site: Site, ring: RingReader) -> None:
        self.path: Path = recording_path(site, ring.meta)  # of the first part
        self.name: str | None = None  # of the first part, while it is recorded
        self.recorded = 0  # rows in all parts
        self.lost = 0  # rows that the ring no longer had
        self._site, self._ring, self._meta = site, ring, ring.meta
        self._columns = _columns(ring.meta)
        self._rate_hz = float(ring.meta["rate_hz"])
        self._recorder: Recorder | None = None
        self._events = deque[Event](maxlen=WAITING_EVENTS)  # to be recorded
        self._told = deque[Event](maxlen=WAITING_EVENTS)  # to be shown
        self._index = 0  # rows from here on are not recorded yet
        self._allowed = 0  # rows from here on have to wait for their events
        self._seen = 0  # rows from here on are not searched for faults yet
        self._before: tuple[int, int] | None = None  # faults and mode of the row before that
        self._flight: Flight | None = None
        self._problem: str | None = None  # why nothing is recorded
        self._retry_s = self._tidy_s = 0.0
        self._since_s = 0.0  # since when nothing is recorded
        self._unfinished = set[Path]()  # parts that a full disk broke off
        self._died = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)

    def open(self) -> int:
        """Salvage what is there of this session and start to record; the first row that is not recorded yet."""
        self._attempt()
        self._index = self._allowed = self._recorder.next_index if self._recorder else 0
        self._thread.start()
        return self._index

    def step(self, index: int, found: Sequence[Event]) -> list[Event]:
        """Record the rows ahead of `index` and these events; returns what became of the recording since.

        The events returned are recorded already.
        """
        self._events.extend(found)  # first: no row is recorded ahead of what is told of it
        self._allowed = max(self._allowed, index)
        return [self._told.popleft() for _ in range(len(self._told))]

    @property
    def trouble(self) -> str | None:
        """Why nothing is recorded at present, if so."""
        return self._problem

    def close(self, found: Sequence[Event] = (), died: bool = False) -> list[Event]:
        """Record the rest, finish the file; `died` when the control process did: its last minute is kept, too."""
        self._died = died
        self.step(self._ring.written, found)
        self._ending.set()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            log.error("the recording does not end: its disk hangs")
        self.name = None
        return self.step(self._allowed, ())

    # -------------------------------------------------------------- the thread

    def _run(self) -> None:
        more = True
        while True:
            if ending := self._ending.is_set():  # asked before looking: nothing follows then
                self._retry_s = 0.0 if more else self._retry_s  # once more
            more = self._guarded_turn()
            if ending and not more:
                return self._finish()
            if not more:
                self._ending.wait(POLL_S)

    def _guarded_turn(self) -> bool:
        try:
            return self._turn()
        except Exception as error:
            self._stopped(error)
            return False

    def _turn(self) -> bool:
        """Record what is there; whether there is more."""
        now_s = time.monotonic()
        if self._recorder is None or self._problem:
            if now_s < self._retry_s:
                return self._look_for_faults()
            self._attempt()
            if self._problem:
                return self._look_for_faults()
        if now_s >= self._tidy_s:
            self._tidy_s = now_s + TIDY_S
            self._tidy()
        assert self._recorder  # noqa: S101
        allowed = self._allowed  # ahead of the events: those of rows that come later may be among them
        found = [self._events.popleft() for _ in range(len(self._events))]
        first, rows = self._ring.read(self._index, min(SLICE_ROWS, max(0, allowed - self._index)))
        try:
            self._recorder.append(first, rows, found)
        except Exception:
            self._index = self._recorder.next_index  # what was not on the disk yet is still in the ring
            raise
        if first > self._index and len(rows):
            gone = first - self._index
            self.lost += gone
            self._tell(
                "gap", f"{gone} samples are missing in the recording: the ring no longer had them.", {"lost": gone}
            )
        self._index = first + len(rows)
        self.recorded = self._recorder.recorded
        return self._look_for_faults() or self._index < allowed

    def _attempt(self) -> None:
        """Begin to record, or go on."""
        self._retry_s = time.monotonic() + RETRY_S
        try:
            if self._problem and shutil.disk_usage(self.path.parent).free < self._room():
                return
            if self._recorder:
                self._recorder.resume()
            else:
                self._recorder = Recorder(self._site, self._meta)
                self.recorded, self._index = self._recorder.recorded, self._recorder.next_index
        except Exception as error:
            self._stopped(error)
            return
        if self._problem:
            self._problem = None
            pause_s = time.monotonic() - self._since_s
            self._tell("resumed", f"Recording goes on in {self._recorder.part.name} after {pause_s:.1f} s.")
        self.name = self.path.name

    def _room(self) -> int:
        """What the disk must have before it is tried again, in bytes: salvage makes a copy of the last part."""
        found = [] if self._recorder else parts(self.path)
        return ROOM_BYTES + (found[-1].stat().st_size if found else 0)

    def _stopped(self, error: Exception) -> None:
        log.error("recording stopped: %s", error, exc_info=not isinstance(error, OSError))
        self.name = None
        self._retry_s = time.monotonic() + RETRY_S
        if self._recorder and self._recorder.part.exists():
            self._unfinished.add(self._recorder.part)
        if self._problem is None:
            self._since_s = time.monotonic()
            text = f"Recording stopped: {error}. All else goes on; it is tried again every second."
            self._tell("stopped", text)
        self._problem = str(error)

    def _tell(self, code: str, text: str, values: dict[str, float | None] | None = None) -> None:
        event = Event(now_t(self._meta), "recording", code, text, values or {})
        self._told.append(event)
        self._events.append(event)

    def _tidy(self) -> None:
        """Remove what the site does not want to keep."""
        folder, wanted = self.path.parent, self._site.recording
        try:
            names = removed_flights(folder, wanted.flights)
            names += removed_runs(folder, wanted.keep_bytes, wanted.free_bytes, self.path)
        except OSError as error:
            log.error("old recordings cannot be removed: %s", error)
            return
        for name in names:
            self._tell("removed", f"The recording {name} is removed: the site keeps no more.")

    def _finish(self) -> None:
        try:
            if self._died and self._ring.written:
                self._flight = self._flight or Flight(self._ring.written - 1, "the control process died", 0)
            if self._flight:
                self._cut(self._flight)
            if self._recorder and not self._problem:
                found = [self._events.popleft() for _ in range(len(self._events))]
                self._recorder.append(self._index, np.empty((0, len(self._columns))), found)
                self._recorder.close()
            self.lost += max(0, self._allowed - self._index)
            for part in self._unfinished:
                recover(part)
        except Exception as error:
            self._stopped(error)

    # -------------------------------------------------------------- flight recordings

    def _look_for_faults(self) -> bool:
        """Search the next rows for faults, cut what is due; whether there is more to search."""
        first, rows = self._ring.read(self._seen, SLICE_ROWS)
        faults_at, mode_at = self._columns.index("faults"), self._columns.index("mode")
        for index, row in enumerate(rows, first):
            faults, mode = whole(row[faults_at]), whole(row[mode_at])
            old_faults, old_mode = self._before or (faults, mode)
            fresh = faults & ~old_faults & STOPPING
            # with the drives off nothing moved, and a PLC that is away would push out what matters
            if fresh and old_mode != Mode.OFF:
                self._fault(index, fresh)
            self._before = faults, mode
        if len(rows):
            self._seen = first + len(rows)
        if self._flight and self._seen >= self._flight.last_index:
            self._cut(self._flight)
            self._flight = None
        return len(rows) == SLICE_ROWS

    def _fault(self, index: int, fresh: int) -> None:
        cause = ", ".join(code_name(Fault, 1 << k) for k in range(fresh.bit_length()) if fresh >> k & 1)
        after, longest = (round(seconds * self._rate_hz) for seconds in (AFTER_S, LONGEST_AFTER_S))
        if self._flight and index < self._flight.last_index:
            last = min(index + after, self._flight.at + longest)
            self._flight = self._flight._replace(last_index=max(last, self._flight.last_index))
            return
        if self._flight:
            self._cut(self._flight)
        self._flight = Flight(index, cause, index + after)

    def _cut(self, flight: Flight) -> None:
        """Save a flight recording; trouble is told and costs this one only."""
        path = flight_path(self.path, flight.at)
        if path.exists():  # an earlier gateway did it
            return
        fresh = path.with_name(path.name + ".tmp")
        try:
            with fresh.open("wb") as file:
                rows = self._write(flight, file)
                os.fsync(file.fileno())
            fresh.replace(path)
        except Exception as error:
            log.error("no flight recording: %s", error, exc_info=not isinstance(error, OSError))
            self._tell("flight_failed", f"The flight recording of {flight.cause} could not be saved: {error}.")
        else:
            self._tell("flight", f"Flight recording {path.name} saved ({flight.cause}).", {"rows": float(rows)})
        finally:
            fresh.unlink(missing_ok=True)
        self._tidy()

    def _write(self, flight: Flight, target: IO[bytes]) -> int:
        """The rows of a flight with their events; how many."""
        started_unix_s = float(self._meta["started_unix_s"])
        t_column = self._columns.index("t_s")
        index, count, previous = max(0, flight.at - round(BEFORE_S * self._rate_hz)), 0, None
        last = flight.last_index or self._ring.written
        index, _ = self._ring.read(index, 1)
        writer = begun(target, self._meta | {"kind": "flight", "cause": flight.cause})
        writer.add_metadata("part", guarded({"rows_before": "0", "first_index": str(index)}))
        while index < last:
            first, rows = self._ring.read(index, min(SLICE_ROWS, last - index))
            if not len(rows):
                break
            lost = first - index
            for number, row in enumerate(rows, first):
                t_ns = round(1e9 * unix_s(started_unix_s, float(row[t_column])))
                for event in _between(previous, row, self._columns, started_unix_s, lost):
                    writer.add_message(CHANNELS["event"], t_ns, msgspec.json.encode(event), t_ns)
                writer.add_message(CHANNELS["tick"], t_ns, CDR_HEADER + row.tobytes(), t_ns, number & SEQUENCE_BITS)
                previous, lost = row, 0
            index, count = first + len(rows), count + len(rows)
        writer.finish()
        target.flush()
        return count


def _columns(meta: dict[str, Any]) -> list[str]:
    return [str(channel[0]) for channel in meta["channels"]]


def _between(
    previous: Array | None, row: Array, columns: Sequence[str], started_unix_s: float, lost: int = 0
) -> list[Event]:
    """What changed from one row to the next; nothing ahead of the first."""
    if previous is None:
        return []
    return events(previous, row, columns, started_unix_s=started_unix_s, lost=lost)


def alive(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def is_recorded(site: Site, ring: RingReader) -> bool:
    """Whether an earlier gateway finished with this ring."""
    files = parts(recording_path(site, ring.meta))
    holds = survey(files[-1]) if files else None
    return holds is not None and holds.finished and holds.next_index >= ring.written


def salvage(site: Site, path: Path) -> Path | None:
    """Record what a ring holds whose session ended without a gateway, with a flight recording of its last minute.

    The recording's path; None if the session is still alive or recorded by another, or cannot be written.
    FileNotFoundError; ValueError if it is not a ring.
    """
    ring = RingReader(path)
    try:
        if not ring.closed and alive(ring.writer_pid):
            return None
        run = recording_path(site, ring.meta)
        if is_recorded(site, ring):
            return run
        keeper = Keeper(site, ring)
        columns, started_unix_s = _columns(ring.meta), float(ring.meta["started_unix_s"])
        index, previous = keeper.open(), None
        while index < ring.written:
            first, rows = ring.read(index, SLICE_ROWS)
            found = list[Event]()
            for row in rows:
                found += _between(previous, row, columns, started_unix_s)
                previous = row
            index = first + len(rows)
            keeper.step(index, found)
        keeper.close(died=not ring.closed)
        return run if keeper.recorded and not keeper.trouble else None
    finally:
        ring.close()


def salvage_left(site: Site) -> None:
    """Record what the session before left in its ring, if control and gateway died together; then the ring goes."""
    left = left_behind(Path(site.ring.path))
    try:
        run = salvage(site, left)
    except FileNotFoundError:
        return
    except Exception as error:
        log.error("%s cannot be salvaged: %s", left, error, exc_info=not isinstance(error, OSError | ValueError))
        return
    if run:
        log.warning("the last session did not end in order: what its ring still held is in %s", run)
        left.unlink(missing_ok=True)
