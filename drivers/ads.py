"""The CX5130 over ADS: one thread owns the link, the control loop only leaves commands and picks up status.

    loop:    write(command)  ──mailbox, newest wins──►  thread: struct write, struct read, by handle
    loop:    read()          ◄──one frozen reading────  thread: checks layout, symbol version, ADS state

What a faulty network or PLC can do to it is played by `drivers/virtual/network.py`. A request that was not answered in
time is never sent again: the next tick brings a newer command. `check` takes the link away from a controller that runs.
"""

import logging
import math
import queue
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from controller.records import Command, Link, Sample
from controller.schema import Ads
from drivers.ads_link import HANGS, AdsLink, LinkError, stuck
from drivers.exchange import COMMAND, LAYOUT_VERSION, DriveStatus, PlcState

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1  # before the first reconnect, doubled up to ...
LONGEST_PAUSE_S = 2.0
STABLE_S = 5.0  # a link that lived this long starts again at FIRST_PAUSE_S: no ping-pong of two programs
IDLE_S = 0.05  # without commands the status is still read this often
RECHECK_EXCHANGES = 10  # then one more request, in the slack of the tick: symbol version and ADS state by turns
TIMEOUTS_TO_GIVE_UP = 8  # in a row; at 20 ms and 100 Hz an outlier of 100 ms is bridged
# Plain, because an IntFlag costs 1 us an operation.
_ENABLED, _FAULT, _HOMED = int(DriveStatus.ENABLED), int(DriveStatus.FAULT), int(DriveStatus.HOMED)
_OBEYS = frozenset(map(int, PlcState)) - {int(PlcState.QUICK_STOP)}  # an unknown state is none of these


@dataclass(frozen=True, slots=True)
class AdsReading:
    """What is known about the PLC now. `status` is read-only and stays the last one while the link is down."""

    status: np.void | None = None  # STATUS record
    stamp_s: float = -math.inf  # host monotonic time at which that status was asked for
    link: Link = Link.DOWN
    message: str = "not connected yet"  # why the link is not up; empty when it is
    exchanges: int = 0  # commands written with the status read after it
    timeouts: int = 0
    reconnects: int = 0  # links after the first one
    exchange_s: float = math.nan  # duration of the last exchange


@dataclass(frozen=True, slots=True)
class LinkReport:
    """What `check` found: times of status reads, and the last status."""

    reads: int
    timeouts: int
    median_s: float
    p99_s: float
    worst_s: float
    symbol_version: int
    status: np.void


class AdsDriver:
    """The link to one CX5130. No call waits for the network, except `close`, for at most 1 s."""

    def __init__(
        self,
        ads: Ads,
        legs: int,
        period_s: float,
        velocity_feedforward: float = 1.0,
        status_lead_s: float | None = None,
        first: Callable[[], object] = lambda: None,
    ) -> None:
        """Prepare the link to the CX5130 of a site for commands every `period_s`; `open` starts it.

        With `status_lead_s` the status is read once more so long before the next command is due: a law that acts on
        the measurement gets a young one. Where that answer is late, the tick takes the one from after the command.
        `first` is called in the link's own thread before anything else.
        """
        self._ads, self._first = ads, first
        self._second_s = math.inf if status_lead_s is None else period_s - status_lead_s  # after a command
        self._second_at_s = math.inf
        self._legs = legs
        self._period_s = period_s
        self._tick = 0
        self._block = np.zeros(1, COMMAND)
        self._block["size"], self._block["version"] = COMMAND.itemsize, LAYOUT_VERSION
        self._block["period_s"], self._block["velocity_feedforward"] = period_s, velocity_feedforward
        self._unknown = np.full(legs, np.nan)
        self._mailbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()  # one command at most; empty bytes only wake
        self._reading = AdsReading()
        self._replaced = 0  # counted by the caller's thread
        self._unsendable = 0  # counted by the link's thread
        self._closing = threading.Event()
        # A daemon: a process that ends waits neither for AdsLib nor for the look-up of a host name.
        self._thread = threading.Thread(target=self._run, name="ads", daemon=True)

    @property
    def reading(self) -> AdsReading:
        """The newest reading, with the counters of the link."""
        if self.hung:  # its thread cannot tell
            return replace(self._reading, link=Link.DOWN, message=HANGS)
        return self._reading

    @property
    def hung(self) -> bool:
        """The link's thread is in a call that should have returned long ago: there is no link any more, for good."""
        return stuck(self._thread)

    @property
    def is_up(self) -> bool:
        """There is a link, even if the last answer was late."""
        return self.reading.link is not Link.DOWN

    @property
    def message(self) -> str:
        """Why the link is not up, for the operator."""
        return self.reading.message

    @property
    def exchange_s(self) -> float:
        """Duration of the last exchange, s; NaN before the first."""
        return self._reading.exchange_s

    @property
    def dropped(self) -> int:
        """Commands that were never sent: replaced by newer ones, or older than the link."""
        return self._replaced + self._unsendable

    def open(self) -> None:
        """Start connecting in the background."""
        self._thread.start()

    def write(self, command: Command) -> None:
        """Hand over a command of the tick last read; an older one that is still unsent is dropped and counted."""
        block, n = self._block, self._legs
        block["seq"] = command.seq & 0xFFFFFFFF
        block["mode"] = command.axis_mode
        # Nominal, so that the PLC can space set-points evenly whenever the commands happen to arrive.
        block["host_time_s"] = self._tick * self._period_s
        block["position_m"][0, :n] = command.position_m
        block["velocity_m_s"][0, :n] = command.velocity_m_s
        block["force_n"][0, :n] = command.force_n
        if not self._mailbox.empty():
            with suppress(queue.Empty):
                self._mailbox.get_nowait()
                self._replaced += 1
        self._mailbox.put(block.tobytes())

    def read(self, tick: int, now_s: float, start_s: float) -> Sample:
        """The newest measurement as seen at monotonic time now_s; sample times count from start_s."""
        self._tick = tick
        reading, n = self.reading, self._legs
        status, t_s = reading.status, now_s - start_s
        if status is None:
            nan = self._unknown
            return Sample(
                tick, t_s, reading.link, math.inf, 0, 0, 0, 0, False, False, False, nan, nan, nan, nan, axes_homed=False
            )
        drives: list[int] = status["drive_status"].tolist()[:n]
        state = int(status["plc_state"])
        return Sample(
            tick=tick,
            t_s=t_s,
            link=reading.link,
            age_s=now_s - reading.stamp_s,
            plc_cycle=int(status["plc_cycle"]),
            seq_echo=int(status["seq_echo"]),
            plc_state=state,
            plc_error=int(status["plc_error"]),
            plc_stopped=state not in _OBEYS,
            drives_enabled=all(bits & _ENABLED for bits in drives),
            drives_fault=any(bits & _FAULT for bits in drives),
            axes_homed=all(bits & _HOMED for bits in drives),
            # Copies, because compiled kernels take no arrays on read-only memory.
            length_m=status["position_m"][:n].copy(),
            length_m_s=status["velocity_m_s"][:n].copy(),
            setpoint_m=status["setpoint_m"][:n].copy(),
            drive_n=status["force_n"][:n].copy(),
        )

    def poll(self) -> None:
        """Have the status read without a command."""
        if self._mailbox.empty():
            self._mailbox.put(b"")

    def close(self) -> None:
        """Send the last command if there is a link, close it; returns within 1 s even if AdsLib hangs."""
        self._closing.set()
        self._mailbox.put(b"")
        if self._thread.is_alive() and not self.hung:
            self._thread.join(timeout=0.9)

    # -------------------------------------------------------------- the link's own thread

    def _run(self) -> None:
        self._first()
        pause_s = 0.0
        links = 0
        while not self._closing.wait(pause_s):
            since_s = math.inf
            try:
                link = AdsLink(self._ads)
                try:
                    since_s = time.monotonic()
                    self._up(link, reconnects=links)
                    links += 1
                    self._serve(link)
                finally:
                    link.close(orderly=self._closing.is_set())
            except LinkError as reason:
                self._down(str(reason))
            except Exception:  # the last resort: a link that tries again is better than a dead thread
                log.exception("ADS link to %s: unexpected error", self._ads.address)
                self._down("unexpected error in the ADS link, see the log")
            stable = time.monotonic() - since_s > STABLE_S
            pause_s = FIRST_PAUSE_S if stable or pause_s == 0.0 else min(2.0 * pause_s, LONGEST_PAUSE_S)
        self._publish(link=Link.DOWN, message="closed")

    def _serve(self, link: "AdsLink") -> None:
        """Exchange until `close` or until the link fails."""
        timeouts_in_row = 0
        for turn in range(1, 1 << 62):
            command = self._next_command()
            if self._closing.is_set() and not command:
                return
            begin_s = time.monotonic()
            try:
                if command:
                    link.write(command)
                asked_s = time.monotonic()
                status = link.read()
                end_s = time.monotonic()
            except TimeoutError:
                timeouts_in_row += 1
                message = f"{self._ads.address} did not answer within {1e3 * self._ads.timeout_s:.0f} ms"
                self._publish(link=Link.LATE, message=message, timeouts=self._reading.timeouts + 1)
                if timeouts_in_row >= TIMEOUTS_TO_GIVE_UP:
                    raise LinkError(f"{message}, {timeouts_in_row} times in a row") from None
                continue
            timeouts_in_row = 0
            news: dict[str, Any] = {"status": status, "stamp_s": asked_s, "link": Link.UP, "message": ""}
            if command:
                news |= {"exchanges": self._reading.exchanges + 1, "exchange_s": end_s - begin_s}
            self._publish(**news)
            if turn % RECHECK_EXCHANGES == 0:
                with suppress(TimeoutError):  # the next exchange will tell
                    link.check_version() if turn // RECHECK_EXCHANGES % 2 else link.check_state()

    def _next_command(self) -> bytes:
        with suppress(queue.Empty):
            command = self._mailbox.get(timeout=min(max(self._second_at_s - time.monotonic(), 0.0), IDLE_S))
            if command:
                self._second_at_s = time.monotonic() + self._second_s
            return command
        if time.monotonic() >= self._second_at_s:
            self._second_at_s = math.inf
        return b""

    def _up(self, link: "AdsLink", reconnects: int) -> None:
        """Publish the status of the handshake; what was commanded before there was a link is never sent."""
        with suppress(queue.Empty):
            while True:
                self._unsendable += bool(self._mailbox.get_nowait())
        self._publish(
            status=link.first_status, stamp_s=link.first_stamp_s, link=Link.UP, message="", reconnects=reconnects
        )
        log.info("ADS link to %s (%s) is up", self._ads.address, self._ads.ams_net_id)

    def _down(self, message: str) -> None:
        if message != self._reading.message:
            log.warning("ADS link: %s", message)
        self._publish(link=Link.DOWN, message=message)

    def _publish(self, **changes: Any) -> None:
        self._reading = replace(self._reading, **changes)


def check(ads: Ads, reads: int = 200) -> LinkReport:
    """Connect once and time `reads` reads of the status; commands nothing.

    Raises:
        LinkError: with the sentence for the operator.
    """
    report: Future[LinkReport] = Future()

    def work() -> None:
        try:
            report.set_result(_measure(ads, reads))
        except BaseException as error:
            report.set_exception(error)

    thread = threading.Thread(target=work, name="ads check", daemon=True)  # so that a hang is not the caller's
    thread.start()
    while thread.is_alive():
        thread.join(IDLE_S)
        if stuck(thread):
            raise LinkError(HANGS)
    return report.result()


def _measure(ads: Ads, reads: int) -> LinkReport:
    link = AdsLink(ads)
    try:
        times_s: list[float] = []
        status = link.first_status
        for _ in range(reads):
            begin_s = time.perf_counter()
            with suppress(TimeoutError):
                status = link.read()
                times_s.append(time.perf_counter() - begin_s)
        if len(times_s) < 2:
            raise LinkError(f"{ads.address} connects, but answers none of {reads} reads within {ads.timeout_s} s")
        p99_s = statistics.quantiles(times_s, n=100)[-1]
        return LinkReport(
            len(times_s), reads - len(times_s), statistics.median(times_s), min(p99_s, max(times_s)), max(times_s),
            link.symbol_version, status,
        )  # fmt: skip
    finally:
        link.close()
