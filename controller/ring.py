"""The memory-mapped ring between the control process and the gateway: the flight recorder.

One writer, any number of readers, no lock: the writer stores a row, then publishes the count; a reader copies
rows, then looks at the count again and drops what may have been overwritten meanwhile. Killing either process
leaves the file readable. Rows are float64, one column a channel (`controller.records.channels`).

File: magic 8 bytes | header bytes u64 | columns u64 | capacity u64 | rows written u64 | closed u64 | writer pid u64
| JSON meta | padding to a page | capacity rows.
"""

import json
import mmap
import os
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from controller.records import Array

MAGIC = b"PKMRING1"
_FIXED = struct.Struct("<8sQQQQQQ")
_WRITTEN, _CLOSED = 4, 5  # index of the 8-byte words that change
_MOST_ROWS = 2**53  # more than can be written in a million years: such a count is damaged


def left_behind(path: Path) -> Path:
    """Where the ring of a session goes that never ended in order, when the next one takes its place."""
    return path.with_name(path.name + ".left")


class RingWriter:
    """Owns the file. `meta` is any JSON object; it carries at least the names of the columns."""

    def __init__(self, path: Path, columns: int, capacity: int, meta: dict[str, Any]) -> None:
        text = json.dumps(meta).encode()
        header = -(-(_FIXED.size + len(text)) // mmap.PAGESIZE) * mmap.PAGESIZE
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + ".new")
        with fresh.open("wb+") as file:
            # posix_fallocate: a full disk is refused here and not by a SIGBUS in the loop
            os.posix_fallocate(file.fileno(), 0, header + capacity * columns * 8)
            file.write(_FIXED.pack(MAGIC, header, columns, capacity, 0, 0, os.getpid()))
            file.write(text)
            file.flush()
            self._map = mmap.mmap(file.fileno(), 0)
        self._words = np.frombuffer(self._map, np.uint64, 7)
        self._rows = np.frombuffer(self._map, np.float64, capacity * columns, header).reshape(capacity, columns)
        self._capacity = capacity
        self.columns = columns
        self.written = 0
        _save_unfinished(path)
        fresh.replace(path)  # readers of the previous session keep their own file

    def push(self, row: Array) -> None:
        """Append one row (columns,)."""
        self._rows[self.written % self._capacity] = row
        self.written += 1
        self._words[_WRITTEN] = self.written

    def close(self) -> None:
        """Say that no row will follow; the file stays."""
        self._words[_CLOSED] = 1
        del self._words, self._rows
        self._map.close()


class RingReader:
    """Reads a ring while it is written or afterwards. ValueError if the file is not a ring."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < _FIXED.size:
                raise ValueError(f"{path}: not a ring file")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        magic, header, columns, capacity, written, _, self.writer_pid = _FIXED.unpack_from(self._map)
        if (
            magic != MAGIC
            or not (header >= _FIXED.size and columns and capacity and written < _MOST_ROWS)
            or header + capacity * columns * 8 != len(self._map)
        ):
            raise ValueError(f"{path}: not a ring file, or a damaged one")
        try:
            self.meta = msgspec.json.decode(self._map[_FIXED.size : header].rstrip(b"\0"), type=dict[str, Any])
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise ValueError(f"{path}: the description in this ring file is damaged") from None
        self.capacity = int(capacity)
        self._words = np.frombuffer(self._map, np.uint64, 7)
        self._rows = np.frombuffer(self._map, np.float64, capacity * columns, header).reshape(capacity, columns)

    @property
    def written(self) -> int:
        """Rows published so far."""
        return int(self._words[_WRITTEN])

    @property
    def closed(self) -> bool:
        """True when the writer said that no row will follow."""
        return bool(self._words[_CLOSED])

    def read(self, start: int, most: int = 1000) -> tuple[int, Array]:
        """Copy rows from `start` on: (index of the first row returned, rows (k, columns)).

        The first index is larger than `start` when the writer has lapped the reader: the difference is lost.
        """
        # the slot after the newest row may be half written: it counts as gone
        first = max(start, self.written - self.capacity + 1)
        rows = self._rows[np.arange(first, max(first, min(self.written, first + most))) % self.capacity]
        gone = max(0, self.written - self.capacity + 1 - first)
        return first + min(gone, len(rows)), rows[gone:]

    def close(self) -> None:
        """Unmap the file."""
        del self._words, self._rows
        self._map.close()


def _save_unfinished(path: Path) -> None:
    """Put a ring aside whose writer died: a gateway that died with it has not recorded the last of it."""
    try:
        ring = RingReader(path)
    except (OSError, ValueError):
        return
    if ring.written and not ring.closed:
        path.replace(left_behind(path))
    ring.close()
