"""The recording: every row of the ring, bit for bit, in MCAP files that survive kill -9.

A run is `<site>-<session>.mcap`, continued in `.part2.mcap` … when the gateway was restarted or a part is full.
Channel `tick` (ros2msg, cdr): 4 bytes of CDR header, then the row as it stands in the ring; sequence = row index.
Channel `event` (jsonschema, json). The meta of the session is a metadata record ahead of all data;
its entry `crc32` is over the others, because MCAP itself protects chunks only.
"""

import contextlib
import fcntl
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np
from mcap.records import Channel, Chunk, Footer, McapRecord, Message, Metadata, Schema
from mcap.stream_reader import StreamReader, breakup_chunk
from mcap.writer import MCAP0_MAGIC, CompressionType, Writer

from controller.gateway.events import Event, unix_s
from controller.records import Array
from controller.schema import Site

CHUNK_BYTES = 64 * 1024
PART_BYTES = 512 * 1024 * 1024  # bounds what a restart has to read through, and the writer's index in memory
FLUSH_S = 0.5  # no more than this is lost to kill -9
CDR_HEADER = b"\x00\x01\x00\x00"  # little endian
_LONGEST_RECORD = 256 * 1024 * 1024  # bytes; anything longer is rubbish after a crash


class Holds(NamedTuple):
    """What a part of a recording holds."""

    rows: int
    rows_before: int  # in the parts before this one
    next_index: int  # of the first row that is not in it
    finished: bool


def parts(path: Path) -> list[Path]:
    """The files of a recording that exist, in order; `path` is any of them."""
    stem = re.sub(r"(\.part\d+)?\.mcap$", "", path.name)
    found = [first] if (first := path.with_name(f"{stem}.mcap")).exists() else []
    while (part := path.with_name(f"{stem}.part{len(found) + 1}.mcap")).exists():
        found.append(part)
    return found


def recording_path(site: Site, meta: dict[str, Any]) -> Path:
    """Where the first part of a session's recording is."""
    session = re.sub(r"[^A-Za-z0-9_.-]", "_", meta["session"])
    return Path(site.recording.folder) / f"{site.name}-{session}.mcap"


def _stored(file: IO[bytes]) -> Iterator[McapRecord]:
    """The records that can be read, without chunks that are damaged: after a crash the tail may hold anything."""
    with contextlib.suppress(Exception):
        for record in StreamReader(file, emit_chunks=True, record_size_limit=_LONGEST_RECORD).records:
            if isinstance(record, Chunk):
                with contextlib.suppress(Exception):
                    yield from breakup_chunk(record, validate_crc=True)
            else:
                yield record


def _guarded(texts: dict[str, str]) -> dict[str, str]:
    """Texts for a metadata record, which MCAP protects with no checksum, with one of their own."""
    return {**texts, "crc32": f"{zlib.crc32(repr(sorted(texts.items())).encode()):08x}"}


def _texts(record: Metadata) -> dict[str, str] | None:
    """What stands in a metadata record; None if it is damaged."""
    texts = {key: text for key, text in record.metadata.items() if key != "crc32"}
    return texts if _guarded(texts) == record.metadata else None


def _meta_of(record: Metadata) -> dict[str, Any]:
    """The meta of a session; empty if it is damaged or of something else."""
    with contextlib.suppress(KeyError, ValueError, TypeError, RecursionError):
        if texts := _texts(record):
            rest = json.loads(texts.pop("meta"))
            return texts | rest
    return {}


def _is_tick(record: McapRecord, channels: dict[int, str]) -> bool:
    if isinstance(record, Channel):
        channels[record.id] = record.topic
    return isinstance(record, Message) and channels.get(record.channel_id) == "tick"


def read(path: Path) -> tuple[dict[str, Any], list[str], Array]:
    """A whole recording, unfinished and truncated parts included: (meta, names of the columns, rows).

    Rows stand in the order of their index, each once. meta["recording"] tells {"parts": files, "first_index",
    "gaps": [[first missing index, how many], …], "duplicates": rows left out}.
    FileNotFoundError; ValueError if it is not such a recording.
    """
    files = parts(path)
    if not files:
        raise FileNotFoundError(f"{path}: no such recording")
    meta: dict[str, Any] = {}
    payload, indices = bytearray(), list[int]()
    for part in files:
        channels: dict[int, str] = {}
        with part.open("rb") as file:
            for record in _stored(file):
                if _is_tick(record, channels) and isinstance(record, Message):
                    payload += record.data[len(CDR_HEADER) :]
                    indices.append(record.sequence)
                elif isinstance(record, Metadata) and record.name == "session":
                    meta = meta or _meta_of(record)  # the same in all parts
    columns = [str(channel[0]) for channel in meta.get("channels", ())]
    if not columns or len(payload) != len(indices) * len(columns) * 8:
        raise ValueError(f"{path}: not a recording of this controller, or its beginning is damaged")
    rows = np.frombuffer(payload, np.float64).reshape(-1, len(columns))
    index, first_of = np.unique(np.asarray(indices, np.int64), return_index=True)
    if not np.array_equal(first_of, np.arange(len(rows))):
        rows = rows[first_of]
    step = np.diff(index, prepend=-1)
    meta["recording"] = {
        "parts": [str(part) for part in files],
        "first_index": int(index[0]) if len(index) else 0,
        "gaps": [[int(index[k] - step[k] + 1), int(step[k] - 1)] for k in np.flatnonzero(step > 1)],
        "duplicates": len(indices) - len(index),
    }
    return meta, columns, rows


def survey(path: Path) -> Holds | None:
    """What one part holds; None if not even its beginning can be read."""
    rows = rows_before = next_index = 0
    found = ended = False
    channels: dict[int, str] = {}
    with path.open("rb") as file:
        for record in _stored(file):
            if _is_tick(record, channels) and isinstance(record, Message):
                rows, next_index = rows + 1, record.sequence + 1
            elif isinstance(record, Metadata) and record.name == "part" and (texts := _texts(record)):
                with contextlib.suppress(KeyError, ValueError):
                    rows_before, next_index = int(texts["rows_before"]), int(texts["first_index"])
                    found = True
            ended = isinstance(record, Footer)
        file.seek(-min(len(MCAP0_MAGIC), path.stat().st_size), os.SEEK_END)
        return Holds(rows, rows_before, next_index, ended and file.read() == MCAP0_MAGIC) if found else None


def recover(path: Path) -> Holds | None:
    """Make one part that was not finished (kill, full disk, power cut) a valid file; None if nothing is left of it.

    The old file stays in place until the new one is complete. BlockingIOError while a recorder still writes it,
    other OSErrors of the disk.
    """
    with path.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holds = survey(path)
        if holds and not holds.finished:
            fresh = path.with_name(path.name + ".tmp")
            try:
                with fresh.open("wb") as target:
                    _copy(file, target)
                    os.fsync(target.fileno())
                fresh.replace(path)
            finally:
                fresh.unlink(missing_ok=True)
    return holds


def _copy(source: IO[bytes], target: IO[bytes]) -> None:
    """What can be read of a recording, as a finished file."""
    writer = Writer(target, CHUNK_BYTES, CompressionType.ZSTD)
    writer.start()
    schemas, channels = dict[int, int](), dict[int, int]()  # old to new id; a summary repeats them
    for record in _stored(source):
        if isinstance(record, Metadata):
            writer.add_metadata(record.name, record.metadata)
        elif isinstance(record, Schema) and record.id not in schemas:
            schemas[record.id] = writer.register_schema(record.name, record.encoding, record.data)
        elif isinstance(record, Channel) and record.id not in channels and record.schema_id in schemas:
            schema = schemas[record.schema_id]
            channels[record.id] = writer.register_channel(record.topic, record.message_encoding, schema)
        elif isinstance(record, Message) and record.channel_id in channels:
            writer.add_message(
                channels[record.channel_id], record.log_time, record.data, record.publish_time, record.sequence
            )
    writer.finish()
    target.flush()


class Recorder:
    """Records one session, going on after whatever an earlier gateway left of it.

    An OSError from the constructor, `append` or `close` means that recording has ended; what is on disk stays.
    """

    def __init__(self, site: Site, meta: dict[str, Any]) -> None:
        """Salvage what is there of this session, then open the next part; `meta` is the ring's."""
        self.path = recording_path(site, meta)  # of the first part
        self.recorded = 0  # rows in all parts
        self.next_index = 0  # of the first row that is not recorded
        self._meta = meta
        self._t_column = [channel[0] for channel in meta["channels"]].index("t_s")
        self._flush_rows = max(1, int(FLUSH_S * meta["rate_hz"]))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for part in reversed(parts(self.path)):
            holds = recover(part)
            if holds and holds.rows:
                self.recorded, self.next_index = holds.rows_before + holds.rows, holds.next_index
                break
            part.replace(part.with_name(part.name + ".damaged"))  # as a rule killed before its first chunk
        self._open()

    def _open(self) -> None:
        number = len(parts(self.path)) + 1
        self._file = (self.path.with_suffix(f".part{number}.mcap") if number > 1 else self.path).open("xb")
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until closed or killed: nobody salvages it meanwhile
        self._writer = writer = Writer(self._file, CHUNK_BYTES, CompressionType.ZSTD)
        self._unflushed = 0
        texts = {key: value for key, value in self._meta.items() if isinstance(value, str)}
        rest = {key: value for key, value in self._meta.items() if key not in texts}
        writer.start()
        part = {"rows_before": str(self.recorded), "first_index": str(self.next_index)}
        writer.add_metadata("session", _guarded({**texts, "meta": json.dumps(rest)}))
        writer.add_metadata("part", _guarded(part))
        fields = "".join(f"# {unit}: {meaning}\nfloat64 {name}\n" for name, unit, meaning in self._meta["channels"])
        event = json.dumps(msgspec.json.schema_components([Event])[1]["Event"])
        self._tick = writer.register_channel(
            "tick", "cdr", writer.register_schema("pkm/msg/Tick", "ros2msg", fields.encode())
        )
        self._event = writer.register_channel(
            "event", "json", writer.register_schema("pkm.Event", "jsonschema", event.encode())
        )
        self._file.flush()

    def append(self, first_index: int, rows: Array, events: Sequence[Event] = ()) -> None:
        """Append rows (k, columns) with the indices first_index, …; those recorded already are left out.

        Events go first: after a kill in between, the next gateway tells one twice rather than never.
        """
        rows = rows[max(0, self.next_index - first_index) :]
        first_index = max(first_index, self.next_index)
        try:
            for event in events:
                self._add(self._event, event.t, msgspec.json.encode(event), 0)
            for index, row in enumerate(rows, first_index):
                t = unix_s(self._meta["started_unix_s"], float(row[self._t_column]))
                self._add(self._tick, t, CDR_HEADER + row.tobytes(), index)
            self._unflushed += len(rows)
            if self._unflushed >= self._flush_rows:
                self._writer.flush()
                self._unflushed = 0
            self.recorded += len(rows)
            self.next_index = first_index + len(rows)
            if self._file.tell() > PART_BYTES:
                self.close()
                self._open()
        except Exception:
            self._abandon()
            raise

    def _add(self, channel: int, t: float, data: bytes, sequence: int) -> None:
        t_ns = round(t * 1e9)
        self._writer.add_message(channel, t_ns, data, t_ns, sequence)

    def close(self) -> None:
        """Write the index and finish the file."""
        try:
            self._writer.finish()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        except Exception:
            self._abandon()
            raise

    def _abandon(self) -> None:
        # closing the buffered file would try to write the rest once more
        self._file.raw.close()
