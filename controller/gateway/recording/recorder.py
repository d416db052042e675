"""Writing recordings: every row of the ring, bit for bit, in MCAP files that survive kill -9.

How they are laid out stands in `controller.recording`, which reads them.
"""

import fcntl
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from mcap.records import Metadata
from mcap.writer import CompressionType, Writer

from controller.gateway.events import Event, unix_s
from controller.recording import (
    CDR_HEADER,
    SEQUENCE_BITS,
    TOPICS,
    Holds,
    Messages,
    description,
    guarded,
    parts,
    stored,
    survey,
)  # fmt: skip
from controller.records import Array
from controller.schema import Site

CHUNK_BYTES = 64 * 1024
PART_BYTES = 512 * 1024 * 1024  # bounds what a restart has to read through, and the writer's index in memory
FLUSH_S = 0.5  # no more than this is lost to kill -9
CHANNELS = {topic: channel for channel, topic in TOPICS.items()}


def recording_path(site: Site, meta: dict[str, Any]) -> Path:
    """Where the first part of a session's recording is."""
    session = re.sub(r"[^A-Za-z0-9_.-]", "_", meta["session"])
    return Path(site.recording.folder) / f"{site.name}-{session}.mcap"


def recover(path: Path) -> Holds | None:
    """Make one part that was not finished (kill, full disk, power cut) a valid file; None if nothing is left of it.

    The old file stays in place until the new one is complete. BlockingIOError while a recorder still writes it,
    other OSErrors of the disk.
    """
    with path.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holds, before = survey(path), path.stat()
        if holds and not holds.finished:
            fresh = path.with_name(path.name + ".tmp")
            try:
                with fresh.open("wb") as target:
                    copy([path], target)
                    os.fsync(target.fileno())
                os.utime(fresh, ns=(before.st_atime_ns, before.st_mtime_ns))  # the age of what it holds
                fresh.replace(path)
            except ValueError:  # no part tells what the columns mean
                return None
            finally:
                fresh.unlink(missing_ok=True)
    return holds


def copy(files: Sequence[Path], target: IO[bytes]) -> None:
    """What can be read of these parts of a recording, as one finished file. ValueError if nothing can."""
    writer, is_first = begun(target, description(files[0])), True
    for path in files:
        with path.open("rb") as file:
            for record in stored(file):
                if isinstance(record, Metadata) and record.name != "session" and is_first:
                    writer.add_metadata(record.name, record.metadata)
                elif isinstance(record, Messages) and record.topic in CHANNELS:
                    channel, times = CHANNELS[record.topic], record.log_time_ns.tolist()
                    for t_ns, sequence, data in zip(times, record.sequence.tolist(), record.data, strict=True):
                        writer.add_message(channel, t_ns, data.tobytes(), t_ns, sequence)
        is_first = False
    writer.finish()
    target.flush()


def begun(target: IO[bytes], meta: dict[str, Any]) -> Writer:
    """A recording of the session with this meta, before its first message; the channels are those of TOPICS."""
    writer = Writer(target, CHUNK_BYTES, CompressionType.ZSTD)
    writer.start()
    texts = {key: value for key, value in meta.items() if isinstance(value, str)}
    rest = {key: value for key, value in meta.items() if key not in texts}
    writer.add_metadata("session", guarded({**texts, "meta": json.dumps(rest)}))
    fields = "".join(f"# {unit}: {meaning}\nfloat64 {name}\n" for name, unit, meaning in meta["channels"])
    event = json.dumps(msgspec.json.schema_components([Event])[1]["Event"])
    for topic, encoding, schema in (
        ("tick", "cdr", writer.register_schema("pkm/msg/Tick", "ros2msg", fields.encode())),
        ("event", "json", writer.register_schema("pkm.Event", "jsonschema", event.encode())),
    ):
        assert writer.register_channel(topic, encoding, schema) == CHANNELS[topic]  # noqa: S101
    return writer


class Recorder:
    """Records one session, going on after whatever an earlier gateway left of it.

    After an OSError of `append` or `close` what is on disk stays, `next_index` is the first row that may not be there,
    and `resume` goes on in a new part.
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
        self._events = list[Event]()  # that the disk may not have yet
        self._open()

    def _open(self) -> None:
        number = len(parts(self.path)) + 1
        self.part = self.path.with_suffix(f".part{number}.mcap") if number > 1 else self.path
        self._file = self.part.open("xb")
        self._safe = self._begins = self.recorded, self.next_index  # what the disk has
        try:
            fcntl.flock(
                self._file, fcntl.LOCK_EX | fcntl.LOCK_NB
            )  # until closed or killed: nobody salvages it meanwhile
            self._writer = begun(self._file, self._meta)
            self._unflushed = 0
            part = {"rows_before": str(self.recorded), "first_index": str(self.next_index)}
            self._writer.add_metadata("part", guarded(part))
            self._file.flush()
        except Exception:
            self._abandon()
            raise

    def resume(self) -> None:
        """Go on in a new part after an error, from `next_index`."""
        self._open()
        self.append(self.next_index, np.empty((0, len(self._meta["channels"]))), self._events)

    def append(self, first_index: int, rows: Array, events: Sequence[Event] = ()) -> None:
        """Append rows (k, columns) with the indices first_index, …; those recorded already are left out.

        Events go first: after a kill in between, the next gateway tells one twice rather than never.
        """
        rows = rows[max(0, self.next_index - first_index) :]
        first_index = max(first_index, self.next_index)
        if events is not self._events:
            self._events.extend(events)
        try:
            for event in events:
                self._add("event", event.t, msgspec.json.encode(event), 0)
            for index, row in enumerate(rows, first_index):
                t = unix_s(self._meta["started_unix_s"], float(row[self._t_column]))
                self._add("tick", t, CDR_HEADER + row.tobytes(), index)
            self._unflushed += len(rows)
            self.recorded += len(rows)
            self.next_index = first_index + len(rows)
            if self._unflushed >= self._flush_rows:
                self._writer.flush()
                self._settle()
            if self._file.tell() > PART_BYTES:
                self.close()
                self._open()
        except Exception:
            self._abandon()
            raise

    def _add(self, topic: str, t: float, data: bytes, sequence: int) -> None:
        t_ns = round(t * 1e9)
        self._writer.add_message(CHANNELS[topic], t_ns, data, t_ns, sequence & SEQUENCE_BITS)

    def close(self) -> None:
        """Write the index and finish the file."""
        try:
            self._writer.finish()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._settle()
        except Exception:
            self._abandon()
            raise

    def _settle(self) -> None:
        self._safe, self._unflushed = (self.recorded, self.next_index), 0
        self._events.clear()

    def _abandon(self) -> None:
        # closing the buffered file would try to write the rest once more
        self._file.raw.close()
        self.recorded, self.next_index = self._safe
        if self._safe == self._begins:
            self.part.unlink(missing_ok=True)  # nothing in it that will not come again
