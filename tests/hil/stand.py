"""A whole system under test: real processes, real ADS/TCP, and an eye on the ring."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from controller import schema
from controller.datagram import ask
from controller.recording import read
from controller.records import Fault, Link, Mode, Quality
from controller.ring import RingReader
from controller.service.mailbox import Message, send
from controller.settings import parse
from drivers.ads_link import split_address
from drivers.virtual.faults import Reply, Switching
from tests.machines import own_site

PATIENCE_S = 60.0


class System:
    """A `pkm` command with a site of its own."""

    def __init__(self, folder: Path, *arguments: str, command: str = "run", site: str | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.site = folder / "site.toml"
        if site is not None:
            self.site.write_text(site)
        self.folder = folder
        self.log = folder / f"{command}.log"
        line = [sys.executable, "-m", "controller", command, str(self.site), *arguments]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, text=True)

    def said(self, pattern: str) -> re.Match[str]:
        """Wait until the log has a line like this."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if found := re.search(pattern, self.log.read_text()):
                return found
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        raise AssertionError(f"{pattern!r} was never said:\n{self.log.read_text()}")

    def pid(self, name: str) -> int:
        return int(self.said(rf"{name} started as process (\d+)")[1])

    def ends(self) -> int:
        self.out, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads(self.out)

    def recording(self) -> tuple[dict[str, Any], dict[str, np.ndarray], np.ndarray]:
        first = next(path for path in (self.folder / "recordings").glob("*.mcap") if ".part" not in path.name)
        meta, columns, rows = read(first)
        return meta, {name: rows[:, k] for k, name in enumerate(columns)}, rows


Row = dict[str, float]


class Stand:
    """A running `pkm run` with its virtual cell, whose operator and saboteur is the test."""

    def __init__(self, folder: Path, site: Path, amplitude: dict[str, float]) -> None:
        text = own_site(folder, site).replace("[broker]\nstart = true\n", "")
        self.system = System(folder, "--json", site=text)
        self.system.said("start → OFF")
        found = parse(text, schema.Site, folder)
        self._requests, self._control = Path(found.requests.path), Path(found.virtual_cell.control)
        self.address = split_address(found.ads.address)
        self._amplitude = amplitude
        self._ring = RingReader(Path(found.ring.path))
        self.columns = [channel[0] for channel in self._ring.meta["channels"]]
        self.sensors: list[str] = self._ring.meta["sensors"]
        self._started_s = self._ring.meta["started_monotonic_s"]
        self._next = 0
        self._ids = time.time_ns() // 1000
        self.seen: list[np.ndarray] = []  # every row since `mark`

    def end(self) -> int:
        """Ask for an orderly end, after a fault too; its exit code."""
        if self.latest()["mode"] == Mode.FAULT:
            self.ask("acknowledge")
            self.watch(0.1)
        self.system.process.terminate()
        return self.system.ends()

    # -------------------------------------------------------------- look

    def mark(self) -> float:
        """Forget the rows so far; the time (s, monotonic)."""
        self.seen, self._next = [], max(self._ring.written - 1, 0)  # one to compare with
        return time.monotonic()

    def wait(self, what: Callable[[Row], bool], seconds: float, saying: str = "it") -> Row:
        """The first row from now on of which it is true."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            for row in self.rows():
                if what(row):
                    return row
            assert self.system.process.poll() is None, self.system.log.read_text()[-3000:]
            time.sleep(0.005)
        last = self.seen[-1] if self.seen else self._ring.read(max(self._next - 1, 0), 1)[1][0]
        mode, faults = (last[self.columns.index(name)] for name in ("mode", "faults"))
        raise AssertionError(
            f"{saying}: not within {seconds} s, mode {mode}, {names(faults)}\n{self.system.log.read_text()[-3000:]}"
        )

    def rows(self) -> Any:
        """The rows that came since they were asked for, one after the other."""
        while True:
            first, rows = self._ring.read(self._next, 50)
            assert first == self._next, "the test was too slow for the ring"
            if not len(rows):
                return
            for row in rows:
                self._next += 1
                self.seen.append(row)
                yield dict(zip(self.columns, row.tolist(), strict=True))

    def latest(self) -> Row:
        """The newest row, of this or the next tick."""
        *_, row = (self.wait(lambda _: True, 2.0), *self.rows())
        return row

    def dicts(self) -> Any:
        """The rows since `mark` once more."""
        for row in self.seen[1:]:
            yield dict(zip(self.columns, row.tolist(), strict=True))

    def watch(self, seconds: float) -> list[Row]:
        """All rows of the next seconds."""
        end_s, found = time.monotonic() + seconds, list[Row]()
        while time.monotonic() < end_s:
            found += self.rows()
            time.sleep(0.01)
        return found

    def since_ms(self, row: Row, mark_s: float) -> float:
        """How long after a time the tick of a row began."""
        return 1e3 * (self._started_s + row["t_s"] - mark_s)

    def healthy(self, row: Row) -> bool:
        """Link up, status fresh, every sensor good."""
        return (
            row["link"] == Link.UP
            and row["age_s"] < 0.045
            and all(row[f"{name}_quality"] == Quality.GOOD for name in self.sensors)
        )

    # -------------------------------------------------------------- act

    def ask(self, kind: str, **numbers: Any) -> str:
        """An operator request; the verdict."""
        self._ids += 1
        return send(self._requests, Message(self._ids, kind, **numbers)).verdict

    def fault(self, name: str, value: str = "") -> None:
        """Switch a fault of the virtual cell."""
        switch(self._control, name, value)

    def move(self) -> None:
        """Into motion, from whatever mode, as an operator does it."""
        end_s = time.monotonic() + 12.0
        while time.monotonic() < end_s:
            row = self.latest()
            if row["mode"] == Mode.FAULT:
                self.ask("acknowledge")
            elif row["mode"] == Mode.OFF:
                self.ask("ready")
            elif row["mode"] == Mode.READY:
                self.ask("sine", pose=self._amplitude, frequency_hz=0.5)
            elif row["mode"] == Mode.ACTIVE:
                return
            time.sleep(0.02)
        raise AssertionError(f"no way into motion:\n{self.system.log.read_text()[-3000:]}")

    def array(self, name: str) -> np.ndarray:
        """A column, or all columns with a number in {}, of the rows seen."""
        pattern = re.compile(re.escape(name).replace(r"\{\}", r"\d+"))
        at = [k for k, column in enumerate(self.columns) if pattern.fullmatch(column)]
        return np.array(self.seen)[:, at if "{}" in name else at[0]]


def switch(control: Path, name: str, value: str = "") -> None:
    """Switch a fault of the virtual cell whose socket is `control`."""
    reply = msgspec.json.decode(ask(control, msgspec.json.encode(Switching(name, value)), 3.0), type=Reply)
    assert reply.done, reply.text


def names(bits: float) -> set[str]:
    """The names of a set of faults."""
    return {str(fault.name) for fault in Fault(int(bits))}
