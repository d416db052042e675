"""`pkm runs list`, `export`, `recover`: what was recorded, as tables for others, and what a crash left of it."""

import csv
import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import IO, Any, TextIO

import msgspec
import numpy as np

from controller import schema
from controller.errors import ConfigurationError
from controller.gateway.recording.keeper import salvage
from controller.gateway.recording.recorder import FLUSH_S, recover
from controller.gateway.recording.shelf import Recorded, listing
from controller.recording import blocks, description, glance, parts
from controller.ring import RingReader
from controller.settings import load_site, parse

BLOCK_ROWS = 5000  # of a Parquet row group
MISSING = 1  # exit code: recovered, but rows are known to be missing


# ---------------------------------------------------------------- list


def show(place: Path, as_json: bool, target: TextIO) -> None:
    """The recordings of a folder, or of the one that a site file names, newest first."""
    folder = Path(load_site(place).site.recording.folder) if place.suffix == ".toml" else place
    if not folder.is_dir():
        raise ConfigurationError(f"{folder}: no such folder, so there are no recordings")
    found = listing(folder)
    if as_json:
        target.write(json.dumps(msgspec.to_builtins(found)) + "\n")
        return
    lines = [("recording", "start (UTC)", "duration", "rows", "parts", "MB", "state", "note")]
    lines += [_line(recorded) for recorded in found]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        target.write("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() + "\n")


def _line(recorded: Recorded) -> tuple[str, ...]:
    started = datetime.fromtimestamp(recorded.started_unix_s, UTC)
    state = "running" if recorded.running else "finished" if recorded.finished else "broken off"
    return (
        recorded.name,
        f"{started:%Y-%m-%d %H:%M:%S}",
        _duration(recorded.duration_s),
        str(recorded.rows),
        str(recorded.parts),
        f"{recorded.bytes / 1e6:.1f}",
        state + (", flight" if recorded.kind == "flight" else ""),
        " ".join(recorded.note.split())[:60],
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60.0)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02d}:{rest:04.1f}"


# ---------------------------------------------------------------- export


def export(
    path: Path,
    kind: str,
    names: Sequence[str] | None,
    span_s: tuple[float, float],
    target: Path | None,
    standard: TextIO,
) -> None:
    """Rows of a recording as CSV or Parquet, in bounded memory; without `target` CSV to `standard`.

    Raises:
        ConfigurationError: naming what is wrong; nothing is written then.
    """
    with _sentences():
        meta = description(path)
        channels = {str(name): (str(unit), str(meaning)) for name, unit, meaning in meta["channels"]}
        chosen = list(channels) if names is None else list(names)
        found = blocks(path, chosen, first_s=span_s[0], last_s=span_s[1], most_rows=BLOCK_ROWS)
        first = next(found, None)
    if first is None:
        raise ConfigurationError(f"{path}: found no rows between {span_s[0]:g} and {span_s[1]:g} s, {_span(path)}")
    tables = (block.rows for block in chain([first], found))
    if kind == "csv" and target is None:
        _csv(chosen, tables, standard)
        return
    if target is None:
        raise ConfigurationError("Parquet is no text for standard output: name a file with -o FILE")
    fresh = target.with_name(target.name + ".tmp")
    try:
        if kind == "csv":
            with fresh.open("w", encoding="utf-8", newline="") as file:
                _csv(chosen, tables, file)
        else:
            with fresh.open("wb") as file:
                _parquet({name: channels[name] for name in chosen}, meta, tables, file)
        fresh.replace(target)
    except OSError as error:
        raise ConfigurationError(f"{target}: {error.strerror}") from None
    finally:
        fresh.unlink(missing_ok=True)


def _span(path: Path) -> str:
    started_unix_s = float(description(path)["started_unix_s"])
    told = [glance(part) for part in parts(path)]
    first_s, last_s = (max(0.0, found / 1e9 - started_unix_s) for found in (told[0].first_ns, told[-1].last_ns))
    return f"this recording has t_s from {first_s:.2f} to {last_s:.2f} s"


def _csv(names: Sequence[str], tables: Iterator[Any], target: TextIO) -> None:
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(names)
    for rows in tables:
        writer.writerows(map(repr, row) for row in rows.tolist())


def _parquet(
    channels: dict[str, tuple[str, str]], meta: dict[str, Any], tables: Iterator[Any], target: IO[bytes]
) -> None:
    """Columns with unit and meaning as metadata of their field; the meta of the session as that of the file."""
    try:
        pa: Any = import_module("pyarrow")  # has no types
        pq: Any = import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigurationError('Parquet needs pyarrow: pip install "pkm-controller[report]"') from None
    fields: list[Any] = [
        pa.field(name, pa.float64(), metadata={"unit": unit, "meaning": meaning})
        for name, (unit, meaning) in channels.items()
    ]
    told = {key: text if isinstance(text, str) else json.dumps(text) for key, text in meta.items()}
    layout: Any = pa.schema(fields, metadata=told)
    with pq.ParquetWriter(target, layout) as writer:
        for rows in tables:
            columns: list[Any] = [pa.array(column) for column in np.ascontiguousarray(rows.T)]
            writer.write_table(pa.table(columns, schema=layout))


# ---------------------------------------------------------------- recover


def recover_all(paths: Sequence[Path], target: TextIO) -> int:
    """Make recordings whole; a line each. A path is a part of a run, a folder of recordings, or the ring of a run.

    Returns the exit code: 0 all are whole now, 1 rows are known to be missing, 2 some path is no recording, holds
    nothing any more or is being written.
    """
    worst = 0
    for path in paths:
        runs = sorted({parts(file)[0] for file in path.glob("*.mcap") if parts(file)}) if path.is_dir() else [path]
        if not runs:
            target.write(f"{path}: no recordings in this folder\n")
            worst = max(worst, 2)
        for run in runs:
            code, text = _recovered_ring(run) if _is_ring(run) else _recovered(run)
            target.write(f"{run}: {text}\n")
            worst = max(worst, code)
    return worst


def _recovered(path: Path) -> tuple[int, str]:
    files = parts(path)
    if not files:
        return 2, "no such recording"
    broken, empty = 0, 0
    for part in files:
        if glance(part).finished:
            continue
        try:
            holds = recover(part)
        except BlockingIOError:
            return 2, "it is being written, so there is nothing to recover yet"
        except OSError as error:
            return 2, f"{part.name} stays as it is: {error.strerror}"
        empty += holds is None
        broken += holds is not None and not holds.finished
    if empty == len(files):
        return 2, "not a recording of this controller, or nothing is left of it"
    rows, missing, span_s, rate_hz = _gaps(path)
    if not rows:
        return 2, "no rows are left of it"
    state = "recovered" if broken else "not complete" if missing or empty else "whole"
    text = f"{state}, {rows} rows, {span_s:.1f} s"
    if broken:
        text += f"; of what was written when it broke off at most {FLUSH_S} s are lost"
    if empty:
        text += f"; nothing is left of {empty} of {len(files)} parts"
    if missing:
        text += f"; {sum(missing.values())} rows ({sum(missing.values()) / rate_hz:.2f} s) are missing: "
        text += ", ".join(f"{count} from t = {t_s:.2f} s" for t_s, count in list(missing.items())[:5])
        text += f" and in {len(missing) - 5} more places" if len(missing) > 5 else ""
    return (MISSING if missing or empty else 0), text


def _gaps(path: Path) -> tuple[int, dict[float, int], float, float]:
    """Rows, how many are missing ahead of which time (s), time from the first row to the last (s), rate."""
    rate_hz = float(description(path)["rate_hz"])
    rows, following, times, missing = 0, 0, list[float](), dict[float, int]()
    for block in blocks(path, ["t_s"]):
        for at in np.flatnonzero(np.diff(block.indices, prepend=following - 1) > 1):
            before = following - 1 if not at else int(block.indices[at - 1])
            missing[float(block.rows[at, 0])] = int(block.indices[at]) - before - 1
        rows, following = rows + len(block.indices), int(block.indices[-1]) + 1
        times = [times[0] if times else float(block.rows[0, 0]), float(block.rows[-1, 0])]
    return rows, missing, times[-1] - times[0] if times else 0.0, rate_hz


def _is_ring(path: Path) -> bool:
    try:
        RingReader(path).close()
    except (OSError, ValueError):
        return False
    return True


def _recovered_ring(path: Path) -> tuple[int, str]:
    """Record what a ring holds that no gateway recorded."""
    ring = RingReader(path)
    site = parse(ring.meta["site_toml"], schema.Site, path)
    rows = ring.written
    ring.close()
    run = salvage(site, path)
    if run is None:
        return 2, "it is being recorded, or its recording cannot be written"
    code, text = _recovered(run)
    return code, f"{rows} rows were written to this ring, {run}: {text}"


@contextmanager
def _sentences() -> Generator[None]:
    """What reading a recording may raise, as the sentence for the user."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise ConfigurationError(str(error)) from None
