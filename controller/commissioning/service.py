"""The running service as a commissioning sees it: rows of the ring, and requests by the way that every request goes.

Nothing here moves by itself: what is asked for goes through the gateway to the control process, whose limits hold.
"""

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from controller.errors import ConfigurationError, DeviceError, RunError
from controller.records import POSE, Array, Fault, Mode
from controller.ring import RingReader
from controller.safety.faults import describe
from controller.settings import SiteFiles

Ask = Callable[[str, dict[str, Any]], tuple[int, dict[str, Any]]]  # route, question -> HTTP status, answer

LOOK_S = 0.01
NEW_ROW_S = 2.0  # a service that writes none for so long is none
PATIENCE_S = 20.0  # for drives that come on, legs that come to rest
ASK_AGAIN_S = 0.3  # the gateway takes five requests a second
TRIES = 3  # of a move that a late tick stopped on its way
NEAR = 1e-6  # m, rad: the reference is at its target


@dataclass(frozen=True)
class Rows:
    """Ticks (k, columns)."""

    columns: list[str]
    rows: Array

    def __getitem__(self, name: str) -> Array:
        """A column (k,)."""
        return self.rows[:, self.columns.index(name)]

    def legs(self, pattern: str) -> Array:
        """The columns with the number of a leg in {}: (k, n)."""
        wanted = re.compile(re.escape(pattern).replace(r"\{\}", r"\d+"))
        return self.rows[:, [k for k, name in enumerate(self.columns) if wanted.fullmatch(name)]]

    def pose(self, prefix: str = "", suffix: str = "") -> Array:
        """Six columns (k, 6)."""
        return np.stack([self[f"{prefix}{name}{suffix}"] for name in POSE], 1)


class Service:
    """A service that runs with these very files.

    Raises:
        DeviceError: none runs.
        ConfigurationError: it runs with other files.
    """

    def __init__(self, files: SiteFiles, ask: Ask) -> None:
        """Look at its ring."""
        self._ask, self._path, self._rate_hz = ask, Path(files.site.ring.path), files.site.rate_hz
        try:
            self._ring = RingReader(self._path)
        except (OSError, ValueError):
            raise self._nobody() from None
        meta = self._ring.meta
        self.columns = [str(channel[0]) for channel in meta["channels"]]
        self.powered = False  # by a request of this program
        self.latest()
        if (meta["site_toml"], meta["machine_toml"]) != (files.site_text, files.machine_text):
            raise ConfigurationError(f"{files.path}: the running service was started with other files: start it again")

    def _nobody(self) -> DeviceError:
        return DeviceError(f"no service writes to {self._path}: start `pkm run` in another terminal, then go on")

    # -------------------------------------------------------------- look

    def latest(self) -> Rows:
        """The newest row, not yet there when this is called."""
        return self._read(self._ring.written, 1)

    def watch(self, seconds: float) -> Rows:
        """The rows of the next seconds."""
        return self._read(self._ring.written, max(round(seconds * self._rate_hz), 1))

    def mode(self) -> Mode:
        """Of now."""
        return Mode(int(self.latest()["mode"][-1]))

    def _read(self, first: int, count: int) -> Rows:
        seen, changed_s = self._ring.written, time.monotonic()
        while self._ring.written < first + count:
            if self._ring.written != seen:
                seen, changed_s = self._ring.written, time.monotonic()
            if self._ring.closed or time.monotonic() - changed_s > NEW_ROW_S:
                raise self._nobody()
            time.sleep(LOOK_S)
        start, rows = self._ring.read(first, count)
        if start != first or len(rows) < count:
            raise RunError("the ring went round before it was read: this computer is too busy")
        return Rows(self.columns, rows)

    def until(self, wanted: Callable[[Rows], bool], seconds: float, saying: str) -> Rows:
        """Every row from now on to the first of which it is true.

        Raises:
            RunError: a fault came, or it was never so.
        """
        first, end_s = self._ring.written, time.monotonic() + seconds
        while time.monotonic() < end_s:
            rows = self._read(first, max(self._ring.written - first, 1))
            last = Rows(rows.columns, rows.rows[-1:])
            self._no_fault(last)
            if wanted(last):
                return rows
            time.sleep(LOOK_S)
        raise RunError(f"{saying}: not within {seconds:.0f} s")

    def _no_fault(self, row: Rows) -> None:
        if Mode(int(row["mode"][-1])) is Mode.FAULT:
            raise RunError(
                f"the machine stopped: {describe(Fault(int(row['faults'][-1])))}. Mend it, `pkm request acknowledge`"
            )

    def since(self) -> Callable[[], Rows]:
        """A function for all rows from here on."""
        first = self._ring.written
        return lambda: self._read(first, max(self._ring.written - first, 1))

    # -------------------------------------------------------------- ask

    def request(self, kind: str, **numbers: Any) -> tuple[str, str]:
        """A request, once: verdict and sentence.

        Raises:
            DeviceError: nobody answers.
        """
        question = {"id": f"commission-{time.time_ns()}", "kind": kind, "deadline_t": time.time() + 5.0} | numbers
        status, told = self._ask("/api/request", question)
        if status == 503:
            raise DeviceError(f"the control process does not answer: {told.get('text') or told.get('error', '')}")
        return str(told.get("verdict", "")), str(told.get("text") or told.get("error", ""))

    def insist(self, kind: str, **numbers: Any) -> None:
        """A request, again while it is too early for it.

        Raises:
            RunError: it is refused.
        """
        end_s = time.monotonic() + PATIENCE_S
        while True:
            verdict, text = self.request(kind, **numbers)
            if verdict == "ACCEPTED":
                return
            early = verdict in ("NOT_READY", "FAULT_STANDS", "TOO_MANY", "WRONG_MODE", "NO_LINK")
            if not early or time.monotonic() > end_s:
                raise RunError(f"{kind} is refused: {text}")
            self._no_fault(self.latest())
            time.sleep(ASK_AGAIN_S)

    def ready(self) -> None:
        """Drives on, held, the legs at their set-points."""
        if self.mode() is not Mode.READY:
            self.powered = True
            self.insist("ready")
        self.at_rest()

    def at_rest(self) -> None:
        """Wait until the motion is over."""

        def rests(row: Rows) -> bool:
            lag_m = float(np.abs(row.legs("following_error_{}_m")).max())
            return row["mode"][0] == Mode.READY and row["drives_enabled"][0] == 1.0 and lag_m < 2e-4

        self.until(rests, PATIENCE_S, "the machine does not come to rest")

    def move(self, pose: Array, speed_share: float) -> str:
        """Move to pose (6,) and wait for the end; why it is refused as unreachable, or nothing."""
        target = dict(zip(POSE, pose.tolist(), strict=True))
        for _ in range(TRIES):
            self.at_rest()
            verdict, text = self.request("move", pose=target, speed_share=speed_share)
            if verdict == "UNREACHABLE":
                return text
            if verdict != "ACCEPTED":
                self.insist("move", pose=target, speed_share=speed_share)
            self.watch(0.05)
            self.at_rest()
            if np.abs(self.latest().pose("reference_")[0] - pose).max() < NEAR:
                return ""
        raise RunError("the move was stopped on its way again and again: see the faults of the service")

    def off(self) -> None:
        """Drives off, if this program had them on; patient, and silent where nobody answers."""
        if not self.powered:
            return
        with contextlib.suppress(DeviceError, RunError):
            if self.mode() is not Mode.FAULT:
                self.insist("off")
                self.until(lambda row: row["mode"][0] == Mode.OFF, PATIENCE_S, "the drives do not go off")
            self.powered = False

    def stop(self) -> None:
        """A stop, now; whoever asks for it has no use for an error."""
        with contextlib.suppress(DeviceError, RunError):
            self.request("stop")
