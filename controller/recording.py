"""Reading recordings: whole or in blocks of rows, finished or broken off, all parts of a run.

A run is `<site>-<session>.mcap`, continued in `.part2.mcap` … when the gateway was restarted or a part is full.
Channel `tick` (ros2msg, cdr): 4 bytes of CDR header, then the row as it stood in the ring; sequence = row index,
its lower 32 bits. Channel `event` (jsonschema, json). The meta of the session is a metadata record ahead of all data,
and so is what the parts before hold; their entry `crc32` is over the others, because MCAP itself protects chunks only.
"""

import contextlib
import json
import math
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np
from mcap.data_stream import ReadDataStream
from mcap.opcode import Opcode
from mcap.reader import make_reader
from mcap.records import Chunk, Footer, MessageIndex, Metadata
from mcap.stream_reader import get_chunk_data_stream
from mcap.writer import MCAP0_MAGIC
from numpy.typing import NDArray

from controller.records import Array

CDR_HEADER = b"\x00\x01\x00\x00"  # little endian
TOPICS = {1: "tick", 2: "event"}  # by channel id, always: the chunk that tells them may be the damaged one
TICK = 1
BLOCK_ROWS = 4096
SEQUENCE_BITS = 0xFFFFFFFF  # MCAP has 32 bits for a sequence number, 49 days of rows at 1 kHz
_LONGEST_RECORD = 256 * 1024 * 1024  # bytes; anything longer is rubbish after a crash
_RECORD = struct.Struct("<BQ")  # opcode and length, ahead of every record
_MESSAGE = struct.Struct("<HIQQ")  # channel, sequence, log time, publish time, ahead of the data of a message


class Messages(NamedTuple):
    """Messages that follow each other in one chunk, of one topic and of one length."""

    topic: str
    sequence: NDArray[np.uint32]  # (k,)
    log_time_ns: NDArray[np.uint64]  # (k,)
    data: NDArray[np.uint8]  # (k, bytes)


class Block(NamedTuple):
    """Rows that follow each other in a recording."""

    indices: NDArray[np.int64]  # (k,) of the rows in the session, ascending; a gap is where rows are missing
    rows: Array  # (k, columns)


class Holds(NamedTuple):
    """What a part of a recording holds."""

    rows: int
    rows_before: int  # in the parts before this one
    next_index: int  # of the first row that is not in it
    finished: bool


class Glance(NamedTuple):
    """What can be told of a part without reading its rows."""

    rows: int
    first_ns: int  # Unix time of its first and last row, 0 without any
    last_ns: int
    finished: bool


def parts(path: Path) -> list[Path]:
    """The files of a recording that exist, in order; `path` is any of them."""
    stem = re.sub(r"(\.part\d+)?\.mcap$", "", path.name)
    found = [first] if (first := path.with_name(f"{stem}.mcap")).exists() else []
    while (part := path.with_name(f"{stem}.part{len(found) + 1}.mcap")).exists():
        found.append(part)
    return found


def description(path: Path) -> dict[str, Any]:
    """The meta of a recording's session, without reading its rows.

    FileNotFoundError; ValueError if it is not such a recording.
    """
    for part in _existing(path):
        with part.open("rb") as file:
            for record in stored(file):
                if isinstance(record, Metadata) and record.name == "session" and (meta := _meta_of(record)):
                    return meta
                if isinstance(record, Messages):
                    break
    raise ValueError(f"{path}: not a recording of this controller, or its beginning is damaged")


def blocks(
    path: Path,
    names: Sequence[str] | None = None,
    *,
    first_s: float = -math.inf,
    last_s: float = math.inf,
    most_rows: int = BLOCK_ROWS,
) -> Iterator[Block]:
    """The rows of a recording in blocks of `most_rows` or little more, in bounded memory however long it is.

    `names` are the columns wanted, None for all; only rows with first_s <= t_s <= last_s. Every row comes once.
    FileNotFoundError; ValueError if it is not such a recording or has no such column.
    """
    columns = [str(channel[0]) for channel in description(path)["channels"]]
    if unknown := set(names or ()) - set(columns):
        raise ValueError(f"{path}: no channel {', '.join(sorted(unknown))} in this recording")
    chosen = slice(None) if names is None else [columns.index(name) for name in names]
    t_s, timed = columns.index("t_s"), (first_s, last_s) != (-math.inf, math.inf)
    held, count, newest = list[Block](), 0, -1
    for indices, rows in _ticks(path, len(columns)):
        wanted = indices > newest  # a row that stands in two parts is the same in both
        newest = max(newest, int(indices[-1]))
        if timed:
            wanted &= (rows[:, t_s] >= first_s) & (rows[:, t_s] <= last_s)
        held.append(Block(indices[wanted], rows[wanted][:, chosen]))
        count += len(held[-1].indices)
        if count >= most_rows:
            yield _joined(held)
            held, count = [], 0
    if count:
        yield _joined(held)


def read(path: Path) -> tuple[dict[str, Any], list[str], Array]:
    """A whole recording, unfinished and truncated parts included: (meta, names of the columns, rows).

    Rows stand in the order of their index, each once. meta["recording"] tells {"parts": files, "first_index",
    "gaps": [[first missing index, how many], …], "duplicates": rows left out}.
    FileNotFoundError; ValueError if it is not such a recording.
    """
    meta = description(path)
    columns = [str(channel[0]) for channel in meta["channels"]]
    found = _joined([Block(np.empty(0, np.int64), np.empty((0, len(columns)))), *_ticks(path, len(columns))])
    rows = found.rows
    index, first_of = np.unique(found.indices, return_index=True)
    if not np.array_equal(first_of, np.arange(len(rows))):
        rows = rows[first_of]
    step = np.diff(index, prepend=-1)
    meta["recording"] = {
        "parts": [str(part) for part in parts(path)],
        "first_index": int(index[0]) if len(index) else 0,
        "gaps": [[int(index[k] - step[k] + 1), int(step[k] - 1)] for k in np.flatnonzero(step > 1)],
        "duplicates": len(found.indices) - len(index),
    }
    return meta, columns, rows


def events(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a recording in the order in which they were told, as docs/reference/commands.md describes them.

    FileNotFoundError.
    """
    for part in _existing(path):
        with part.open("rb") as file:
            for record in stored(file):
                if isinstance(record, Messages) and record.topic == "event":
                    for data in record.data:
                        with contextlib.suppress(msgspec.DecodeError):
                            yield msgspec.json.decode(data.tobytes(), type=dict[str, Any])


def survey(path: Path) -> Holds | None:
    """What one part holds; None if not even its beginning can be read."""
    rows = rows_before = next_index = 0
    found = ended = False
    with path.open("rb") as file:
        for record in stored(file):
            if isinstance(record, Messages) and record.topic == "tick":
                rows, next_index = rows + len(record.sequence), int(_unwrapped(record.sequence, next_index)[-1]) + 1
            elif isinstance(record, Metadata) and record.name == "part" and (texts := texts_of(record)):
                with contextlib.suppress(KeyError, ValueError):
                    rows_before, next_index = int(texts["rows_before"]), int(texts["first_index"])
                    found = True
            ended = isinstance(record, Footer)
        file.seek(-min(len(MCAP0_MAGIC), path.stat().st_size), os.SEEK_END)
        return Holds(rows, rows_before, next_index, ended and file.read() == MCAP0_MAGIC) if found else None


def glance(path: Path) -> Glance:
    """What a part holds, from its summary, or else from the indices behind its chunks."""
    with contextlib.suppress(Exception), path.open("rb") as file:
        if summary := make_reader(file).get_summary():  # only a finished file has one
            told = summary.statistics
            assert told  # noqa: S101
            places = [chunk.message_index_offsets.get(TICK) for chunk in summary.chunk_indexes]
            ticks = [_index_at(file, place) for place in _ends([place for place in places if place])]
            times = [t_ns for index in ticks for t_ns, _ in index.records]
            rows = told.channel_message_counts.get(TICK, 0)
            return Glance(rows, min(times, default=0), max(times, default=0), True)
    rows, times = 0, list[int]()  # of first and last row
    with contextlib.suppress(Exception), path.open("rb") as file:
        size, at = path.stat().st_size, len(MCAP0_MAGIC)
        while at + _RECORD.size < size:
            file.seek(at)
            opcode, length = _RECORD.unpack(file.read(_RECORD.size))
            if opcode == Opcode.MESSAGE_INDEX and at + _RECORD.size + length <= size:
                index = _index_at(file, at)
                if index.channel_id == TICK:
                    rows += len(index.records)
                    times = [min(found := [*times, *(t_ns for t_ns, _ in index.records)]), max(found)]
            at += _RECORD.size + length
    return Glance(rows, min(times, default=0), max(times, default=0), False)


def _index_at(file: IO[bytes], place: int) -> MessageIndex:
    file.seek(place + _RECORD.size)
    return MessageIndex.read(ReadDataStream(file))


def _ends(places: Sequence[int]) -> Sequence[int]:
    return [*places[:1], *places[-1:]]


def stored(file: IO[bytes]) -> Iterator[Metadata | Messages | Footer]:
    """What can be read of metadata and of whole chunks, and the end: after a crash the tail may hold anything."""
    if file.read(len(MCAP0_MAGIC)) != MCAP0_MAGIC:
        return
    while len(head := file.read(_RECORD.size)) == _RECORD.size:
        opcode, length = _RECORD.unpack(head)
        if length > _LONGEST_RECORD:
            return
        if opcode not in (Opcode.CHUNK, Opcode.METADATA, Opcode.FOOTER):  # indices are for others
            file.seek(length, os.SEEK_CUR)
            continue
        content = ReadDataStream(BytesIO(file.read(length)))
        with contextlib.suppress(Exception):
            if opcode == Opcode.METADATA:
                yield Metadata.read(content)
            elif opcode == Opcode.FOOTER:
                yield Footer.read(content)
                return
            elif (chunk := Chunk.read(content)).uncompressed_crc:  # never written without one
                stream, size = get_chunk_data_stream(chunk, validate_crc=True)
                yield from _messages(stream.read(size))


def guarded(texts: dict[str, str]) -> dict[str, str]:
    """Texts for a metadata record, which MCAP protects with no checksum, with one of their own."""
    return {**texts, "crc32": f"{zlib.crc32(repr(sorted(texts.items())).encode()):08x}"}


def texts_of(record: Metadata) -> dict[str, str] | None:
    """What stands in a metadata record; None if it is damaged."""
    texts = {key: text for key, text in record.metadata.items() if key != "crc32"}
    return texts if guarded(texts) == record.metadata else None


def _existing(path: Path) -> list[Path]:
    if files := parts(path):
        return files
    raise FileNotFoundError(f"{path}: no such recording")


def _meta_of(record: Metadata) -> dict[str, Any]:
    """The meta of a session; empty if it is damaged or of something else."""
    with contextlib.suppress(KeyError, ValueError, TypeError, RecursionError):
        if texts := texts_of(record):
            rest = json.loads(texts.pop("meta"))
            return texts | rest if rest["channels"] else {}
    return {}


def _ticks(path: Path, width: int) -> Iterator[Block]:
    """Rows (k, width) as they stand in the parts, one after the other."""
    for part in _existing(path):
        near = 0
        with part.open("rb") as file:
            for record in stored(file):
                if isinstance(record, Metadata) and record.name == "part" and (texts := texts_of(record)):
                    near = int(texts.get("first_index", 0))
                elif isinstance(record, Messages) and record.topic == "tick":
                    if record.data.shape[1] != len(CDR_HEADER) + 8 * width:
                        raise ValueError(f"{path}: not a recording of this controller, its rows have another length")
                    index = _unwrapped(record.sequence, near)
                    near = int(index[-1])
                    yield Block(index, record.data[:, len(CDR_HEADER) :].copy().view(np.float64))


def _unwrapped(sequence: NDArray[np.uint32], near: int) -> NDArray[np.int64]:
    """The row indices (k,) with these lower 32 bits, the first that are not below `near`."""
    return near + ((sequence.astype(np.int64) - near) & SEQUENCE_BITS)


def _messages(data: bytes) -> Iterator[Messages]:
    """The messages of a chunk; those alike at once, because there are millions of them."""
    at = 0
    while at < len(data):
        opcode, length = _RECORD.unpack_from(data, at)
        if opcode == Opcode.MESSAGE:
            like = np.frombuffer(data, np.uint8, _RECORD.size + 2, at)  # opcode, length, channel
            stride = _RECORD.size + length
            grid = np.frombuffer(data, np.uint8, (len(data) - at) // stride * stride, at).reshape(-1, stride)
            other = np.flatnonzero((grid[:, : len(like)] != like).any(axis=1))
            grid = grid[: other[0]] if len(other) else grid
            head = grid[:, _RECORD.size :]
            yield Messages(
                TOPICS.get(int(head[0, 0]) + 256 * int(head[0, 1]), ""),
                head[:, 2:6].copy().view(np.uint32)[:, 0],
                head[:, 6:14].copy().view(np.uint64)[:, 0],
                head[:, _MESSAGE.size :],
            )
            length = len(grid) * stride - _RECORD.size
        at += _RECORD.size + length


def _joined(pieces: Sequence[Block]) -> Block:
    return Block(np.concatenate([piece.indices for piece in pieces]), np.concatenate([piece.rows for piece in pieces]))
