"""Run a recording through the cycle again and find the bits that differ."""

import hashlib
import math
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from controller import schema
from controller.cycle import cycle
from controller.errors import ConfigurationError
from controller.recording import blocks, description
from controller.records import Array, Timing, channels, pack, timing_width, unpack_inputs
from controller.settings import parse
from controller.state import initial_state, prepare
from drivers.replayed import require_known


class Difference(NamedTuple):
    """The first value that came out otherwise."""

    row: int
    t_s: float
    channel: str
    recorded: float
    replayed: float


class Column(NamedTuple):
    """How often a column came out otherwise, from when on, and by how much at most where both are numbers."""

    ticks: int
    first_t_s: float
    largest: float


class Comparison(NamedTuple):
    """What came out of a recording."""

    ticks: int
    sha256: str  # of every bit that came out
    first: Difference | None
    columns: dict[str, Column]  # those that came out otherwise


def replay(meta: dict[str, Any], rows: Array, source: Path) -> Difference | None:
    """Replay all rows of a recording from its start; None when every bit is the same.

    Raises:
        ConfigurationError: if the recording cannot be replayed by this version.
    """
    found = meta["recording"]
    if found["first_index"] or found["gaps"]:
        raise _incomplete(source, found["first_index"] or found["gaps"][0][0])
    return _compared(meta, [rows], source).first


def compare(path: Path, last_s: float = math.inf) -> Comparison:
    """Replay a recording from its start to t_s = `last_s`, in bounded memory.

    Raises:
        ConfigurationError: if there is no such recording, or this version cannot replay it.
    """
    with _sentences(path):
        meta = description(path)
    return _compared(meta, _whole(path, last_s), path)


def _whole(path: Path, last_s: float) -> Iterator[Array]:
    following = 0
    with _sentences(path):
        for block in blocks(path, last_s=last_s):
            missing = np.flatnonzero(block.indices != np.arange(following, following + len(block.indices)))
            if len(missing):
                raise _incomplete(path, following + int(missing[0]))
            following += len(block.indices)
            yield block.rows


@contextmanager
def _sentences(path: Path) -> Generator[None]:
    """What reading a recording may raise, as the sentence for the user."""
    try:
        yield
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such recording") from None
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _incomplete(source: Path, at: int) -> ConfigurationError:
    return ConfigurationError(f"{source}: ticks are missing at {at}, so it cannot be replayed from its first tick")


def _compared(meta: dict[str, Any], tables: Iterable[Array], source: Path) -> Comparison:
    names, ticks, hashed = [str(channel[0]) for channel in meta["channels"]], 0, hashlib.sha256()
    produced = len(names) - timing_width()
    first: Difference | None = None
    columns: dict[str, Column] = {}
    for rows, again in _replayed(meta, tables, source):
        hashed.update(np.ascontiguousarray(again[:, :produced]).tobytes())
        # compared as bits: NaN equals itself, 0.0 and -0.0 differ
        other = again[:, :produced].view(np.uint64) != rows[:, :produced].view(np.uint64)
        if first is None and other.any():
            at, k = (int(index) for index in np.argwhere(other)[0])
            first = Difference(ticks + at, float(rows[at, 1]), names[k], float(rows[at, k]), float(again[at, k]))
        for k in np.flatnonzero(other.any(axis=0)):
            with np.errstate(invalid="ignore"):
                off = np.abs(again[:, k] - rows[:, k])
            largest = float(off[np.isfinite(off)].max(initial=0.0))
            at = np.flatnonzero(other[:, k])
            before = columns.get(names[k], Column(0, float(rows[at[0], 1]), 0.0))
            columns[names[k]] = Column(before.ticks + len(at), before.first_t_s, max(before.largest, largest))
        ticks += len(rows)
    return Comparison(ticks, hashed.hexdigest(), first, {name: columns[name] for name in names if name in columns})


def _replayed(meta: dict[str, Any], tables: Iterable[Array], source: Path) -> Iterator[tuple[Array, Array]]:
    """Tables of rows, and what comes out of them in their place; its columns of timing mean nothing."""
    machine = parse(meta["machine_toml"], schema.Machine, source)
    site = parse(meta["site_toml"], schema.Site, source)
    sensors = list(site.sensors)
    columns = channels(len(machine.leg), sensors, site.stream is not None)
    require_known(meta, columns, source)
    setup = prepare(machine, site, meta.get("tracks"))
    state = initial_state(setup)
    unused = Timing(0.0, 0.0, 0.0, 0, 0)
    for rows in tables:
        again = np.empty((len(rows), len(columns)))
        for row, out in zip(rows, again, strict=True):
            sample, request = unpack_inputs(row, len(machine.leg), len(sensors), site.stream is not None)
            state, output = cycle(setup, state, sample, request)
            pack(out, sample, request, output, unused)
        yield rows, again
