"""The folder of recordings: what is in it, notes, one file to download, and what is removed to make room.

A run is all its parts. `<run>.flight-<row>.mcap` is a flight recording, cut from the ring around a fault.
`<name>.note.txt` holds what somebody wrote about a recording; with the word "keep" in it, it is never removed.
"""

import glob
import re
import shutil
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import IO, Literal, NamedTuple

import msgspec

from controller.gateway.recording.recorder import copy
from controller.recording import Glance, glance, parts

LONGEST_NOTE = 2000
FIRST_FLIGHTS = 5  # kept for ever, as a rule they tell how it began
_PART = re.compile(r"(?P<run>.+?)(\.part\d+)?\.mcap")
_FLIGHT = re.compile(r".+\.flight-\d+")


class Recorded(msgspec.Struct, frozen=True):
    """One recording, all parts together."""

    name: str
    bytes: int
    started_unix_s: float  # of its first row
    duration_s: float
    rows: int
    parts: int
    running: bool  # it is being written
    finished: bool  # every part has its index
    note: str
    kind: Literal["run", "flight"]


class _Run(NamedTuple):
    """The files of a recording."""

    name: str
    files: list[Path]

    @property
    def is_flight(self) -> bool:
        return bool(_FLIGHT.fullmatch(self.name))

    @property
    def bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    @property
    def ended_ns(self) -> int:
        return max(file.stat().st_mtime_ns for file in self.files)


def flight_path(run: Path, index: int) -> Path:
    """Where the flight recording of a run about row `index` is."""
    return run.with_name(f"{run.name.removesuffix('.mcap')}.flight-{index}.mcap")


def listing(folder: Path) -> list[Recorded]:
    """All recordings of a folder, newest first; no row is read."""
    locked = _locked()
    found = list[Recorded]()
    for run in _runs(folder):
        try:
            told = [_glance(file, (status := file.stat()).st_size, status.st_mtime_ns) for file in run.files]
            first_s = min((part.first_ns for part in told if part.first_ns), default=0) / 1e9
            last_s = max(part.last_ns for part in told) / 1e9
            found.append(Recorded(
                name=run.name,
                bytes=run.bytes,
                started_unix_s=first_s or run.ended_ns / 1e9,
                duration_s=max(0.0, last_s - first_s),
                rows=sum(part.rows for part in told),
                parts=len(run.files),
                running=_is_written(run, locked),
                finished=all(part.finished for part in told),
                note=_note(folder, run.name),
                kind="flight" if run.is_flight else "run",
            ))  # fmt: skip
        except FileNotFoundError:  # removed meanwhile
            continue
    return sorted(found, key=lambda recorded: recorded.started_unix_s, reverse=True)


def set_note(folder: Path, name: str, text: str) -> None:
    """Write a note about a recording, an empty one removes it. FileNotFoundError; ValueError for a text too long."""
    run = _found(folder, name)
    if len(text) > LONGEST_NOTE:
        raise ValueError(f"found a note of {len(text)} characters, expected at most {LONGEST_NOTE}")
    path = _note_path(folder, run.name)
    if not text:
        path.unlink(missing_ok=True)
        return
    fresh = path.with_name(path.name + ".tmp")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def snapshot(folder: Path, name: str, target: IO[bytes]) -> None:
    """All parts of a recording as one finished MCAP file, also while it is written. FileNotFoundError."""
    run = _found(folder, name)
    if len(run.files) == 1 and glance(run.files[0]).finished:
        with run.files[0].open("rb") as file:
            shutil.copyfileobj(file, target)
        return
    copy(run.files, target)


def removed_runs(folder: Path, keep_bytes: int, free_bytes: int, own: Path) -> list[str]:
    """Remove the oldest runs until the folder holds no more and the disk has room; 0 for no bound. Their names.

    Never one that is written, by whatever gateway, nor `own`, one marked keep, or a flight recording.
    """
    runs = sorted(_runs(folder), key=lambda run: run.ended_ns)
    held = sum(run.bytes for run in runs)
    locked, names = _locked(), list[str]()
    for run in runs:
        enough = (not keep_bytes or held <= keep_bytes) and shutil.disk_usage(folder).free >= free_bytes
        if enough:
            break
        if run.is_flight or run.files[0] == own or _is_written(run, locked) or _is_kept(folder, run.name):
            continue
        held -= run.bytes
        _remove(folder, run)
        names.append(run.name)
    return names


def removed_flights(folder: Path, most: int) -> list[str]:
    """Remove flight recordings but for the first few and the newest `most`; their names."""
    flights = sorted((run for run in _runs(folder) if run.is_flight), key=lambda run: run.ended_ns)
    removed = [run for run in flights[FIRST_FLIGHTS : max(FIRST_FLIGHTS, len(flights) - most)] if
               not _is_kept(folder, run.name)]  # fmt: skip
    for run in removed:
        _remove(folder, run)
    return [run.name for run in removed]


def _runs(folder: Path) -> list[_Run]:
    names = {found["run"] for path in folder.glob("*.mcap") if (found := _PART.fullmatch(path.name))}
    found = [_Run(name, parts(folder / f"{name}.mcap")) for name in sorted(names)]
    return [run for run in found if run.files]


def _found(folder: Path, name: str) -> _Run:
    """A recording by its name, with or without .mcap; what comes from outside cannot lead out of the folder."""
    name = name.removesuffix(".mcap")
    for run in _runs(folder):
        if run.name == name:
            return run
    raise FileNotFoundError(f"{folder}: no recording {name!r}")


def _remove(folder: Path, run: _Run) -> None:
    left: Iterable[Path] = () if run.is_flight else folder.glob(f"{glob.escape(run.name)}.*.damaged")
    for path in [*reversed(run.files), *left, _note_path(folder, run.name)]:
        path.unlink(missing_ok=True)


@lru_cache(maxsize=10_000)
def _glance(path: Path, size: int, mtime_ns: int) -> Glance:
    del size, mtime_ns  # another file under that name
    return glance(path)


def _note_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.note.txt"


def _note(folder: Path, name: str) -> str:
    try:
        return _note_path(folder, name).read_text(encoding="utf-8", errors="replace")[:LONGEST_NOTE]
    except OSError:
        return ""


def _is_kept(folder: Path, name: str) -> bool:
    return bool(re.search(r"\bkeep\b", _note(folder, name), re.IGNORECASE))


def _locked() -> set[int]:
    """Inodes of the files that some process holds a lock on, without asking for the lock oneself."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return set()
    return {int(found[1]) for line in lines if (found := re.search(r"FLOCK .* \S+:\S+:(\d+) ", line))}


def _is_written(run: _Run, locked: set[int]) -> bool:
    return any(file.stat().st_ino in locked for file in run.files)
