"""The CX5130 over ADS: one thread owns the link, the control loop only leaves commands and picks up status.

    loop:    write(command)  ──mailbox, newest wins──►  thread: struct write, struct read, by handle
    loop:    read()          ◄──one frozen reading────  thread: checks layout, symbol version, ADS state

What a faulty network or PLC can do to it is played by `drivers/virtual/network.py`. A request that was not answered in
time is never sent again: the next tick brings a newer command. Values are taken by handle only, never by address,
which after an online change would be another variable's. TwinCAT keeps one TCP connection per client host: whoever
opens a second one, `check` included, takes the link away from the first.

AdsLib, under pyads, dictates the rest (all of it measured, decision 0005): two threads on one connection fail, so one
thread does everything; its open() has no timeout, so a plain socket asks first; the timeout falls back to 5 s at every
open(); once broken, a connection never heals; close() with a live notification crashes the process, so there are none.
A call whose answer breaks off behind its header never returns, and nothing frees it, in this process: see `hanging`.
"""

import ctypes
import logging
import math
import os
import queue
import socket
import stat
import statistics
import struct
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pyads  # pyright: ignore[reportMissingTypeStubs]
from pyads import ADSError, pyads_ex  # pyright: ignore[reportMissingTypeStubs]
from pyads.structs import SAdsSymbolEntry  # pyright: ignore[reportMissingTypeStubs]

from controller.errors import DeviceError
from controller.records import Command, Link, Sample
from controller.schema import Ads
from drivers import ams_client
from drivers.exchange import (
    COMMAND,
    LAYOUT_VERSION,
    STATUS,
    SYMBOL_COMMAND,
    SYMBOL_STATUS,
    DriveStatus,
    PlcState,
)

log = logging.getLogger(__name__)

DEFAULT_TCP_PORT = 48898  # of the TwinCAT router
PROBE_S = 0.4  # for each of connect and answer; twice this is less than the second that close() may take
HANDSHAKE_S = 0.25  # timeout of the requests at connect: symbol look-ups are slower than values
FIRST_PAUSE_S = 0.1  # before the first reconnect, doubled up to ...
LONGEST_PAUSE_S = 2.0
STABLE_S = 5.0  # a link that lived this long starts again at FIRST_PAUSE_S: no ping-pong of two programs
IDLE_S = 0.05  # without commands the status is still read this often
RECHECK_EXCHANGES = 10  # then one more request, in the slack of the tick: symbol version and ADS state by turns
TIMEOUTS_TO_GIVE_UP = 8  # in a row; at 20 ms and 100 Hz an outlier of 100 ms is bridged
HANG_S = 1.0  # a call that returns so long after its timeout is one that never will
HANGS = (
    "the ADS library does not return from a call any more, as when an answer of the PLC breaks off: "
    "this program must be started again"
)

# Plain, because an IntFlag costs 1 us an operation.
_ENABLED, _FAULT, _HOMED = int(DriveStatus.ENABLED), int(DriveStatus.FAULT), int(DriveStatus.HOMED)
_OBEYS = frozenset(map(int, PlcState)) - {int(PlcState.QUICK_STOP)}  # an unknown state is none of these
_ADS_RUN = 5
_STATE_NAMES = {0: "INVALID", 2: "RESET", 6: "STOP", 11: "ERROR", 15: "CONFIG", 16: "RECONFIG", 19: "EXCEPTION"}
_TIMEOUT = 1861
_BROKEN = -1  # AdsLib: the TCP connection is gone
_NO_PORT = 6  # also AdsLib's own word for whatever kept it from connecting
_VALUE_BY_HANDLE = 0xF005
_SYMBOL_VERSION = 0xF008
_INFO_BY_NAME = 0xF009
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST
_LAYOUT = struct.Struct("<II")
_HALF = 1 << 31  # half the range of the PLC's cycle counter

_overdue_s: dict[int, float] = {}  # by thread that is inside AdsLib now: when it should long have come out

_SENTENCES: dict[int | None, str] = {
    _NO_PORT: "no AMS port {ads.ams_port} at {ads.address}: the PLC is not started or in CONFIG, or ads.ams_port is "
    "wrong",
    7: "{ads.address} is not AMS NetId {ads.ams_net_id}: ads.ams_net_id is wrong",
    0x506: "AMS NetId {ads.ams_net_id} is already in use for another address",
    0x705: "the PLC refuses the size of {what}: PLC program and controller are of different releases",
    0x710: "the PLC program has no variable {what}: it is another program, or of another release",
    0x711: "the PLC program was changed: its handles are no longer valid",
    0x723: "the PLC denies access to {what}",
    _BROKEN: "the connection to {ads.address} broke: another program on this computer has opened one "
    "(TwinCAT keeps one per computer), or the PLC went away",
}


class LinkError(DeviceError):
    """Why there is no link: one plain sentence for the operator."""


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


def hanging() -> bool:
    """Whether a call into AdsLib will never return, once that is known: a process can then only end by os._exit."""
    while calls := list(_overdue_s.values()):
        if time.monotonic() > min(calls):
            return True
        time.sleep(0.01)
    return False


def _stuck(thread: threading.Thread) -> bool:
    ident = thread.ident  # None before it is started
    return ident is not None and time.monotonic() > _overdue_s.get(ident, math.inf)


class AdsDriver:
    """The link to one CX5130. No call waits for the network, except `close`, for at most 1 s."""

    def __init__(
        self,
        ads: Ads,
        legs: int,
        period_s: float,
        velocity_feedforward: float = 1.0,
        status_lead_s: float | None = None,
    ) -> None:
        """Prepare the link to the CX5130 of a site for commands every `period_s`; `open` starts it.

        With `status_lead_s` the status is read once more so long before the next command is due: a law that acts on
        the measurement gets a young one. Where that answer is late, the tick takes the one from after the command.
        """
        self._ads = ads
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
        return _stuck(self._thread)

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
        pause_s = 0.0
        links = 0
        while not self._closing.wait(pause_s):
            since_s = math.inf
            try:
                link = _Link(self._ads)
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

    def _serve(self, link: "_Link") -> None:
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

    def _up(self, link: "_Link", reconnects: int) -> None:
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
        if _stuck(thread):
            raise LinkError(HANGS)
    return report.result()


def _measure(ads: Ads, reads: int) -> LinkReport:
    link = _Link(ads)
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


class _Link:
    """One open connection with handles and layouts checked.

    Every method raises LinkError when the link is of no further use; `write`, `read` and the checks raise TimeoutError
    when one request was not answered in time, which leaves open whether the PLC has executed it.
    """

    def __init__(self, ads: Ads) -> None:
        self._peer = probe(ads)
        self._ads = ads
        self._connection: Any = pyads.Connection(ads.ams_net_id, ads.ams_port, ads.address)
        self._command = (ctypes.c_ubyte * COMMAND.itemsize)()
        self._status = (ctypes.c_ubyte * STATUS.itemsize)()
        self._received = ctypes.c_ulong()  # bytes in it
        self._plc_cycle: int | None = None
        self._timeout_s = max(HANDSHAKE_S, ads.timeout_s)
        try:
            self._open()
            # AdsLib means to do so and does the opposite: one lost answer would hold up the next request by 40 ms.
            self._set(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._call("the timeout", self._connection.set_timeout, round(1e3 * self._timeout_s))
            self._write = self._prepared("AdsSyncWriteReqEx", SYMBOL_COMMAND, self._command)
            self._read = self._prepared("AdsSyncReadReqEx2", SYMBOL_STATUS, self._status, ctypes.byref(self._received))
            self.symbol_version = self._read_version()
            self.first_stamp_s = time.monotonic()
            self.first_status = self.read()
            self._timeout_s = ads.timeout_s
            self._call("the timeout", self._connection.set_timeout, round(1e3 * self._timeout_s))
        except TimeoutError:
            self.close()
            raise LinkError(f"{ads.address} accepts the connection, but does not answer ADS requests") from None
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        try:
            self._call("the connection", self._connection.open)
        except LinkError as error:
            if isinstance(error.__cause__, ADSError) and _code(error.__cause__) == _NO_PORT:
                raise LinkError(f"{self._ads.address} went away while connecting") from error
            raise

    def _set(self, level: int, option: int, value: "int | bytes") -> None:
        """Set an option of AdsLib's socket, which it hands out to nobody: the one of this process with that peer."""
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
            with suppress(OSError):  # it was closed meanwhile, or has no peer
                if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    continue
                with socket.socket(fileno=os.dup(int(name))) as tcp:
                    if tcp.getpeername() == self._peer:
                        tcp.setsockopt(level, option, value)

    def close(self, orderly: bool = True) -> None:
        """Close the connection; AdsLib must forget it before another one to the same AMS NetId is opened.

        If not orderly, what the kernel has not delivered yet is thrown away: no command arrives later.
        """
        if not orderly:
            self._set(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        with suppress(LinkError):
            self._call("the end", self._connection.close)

    def write(self, command: bytes) -> None:
        """Write the command block."""
        ctypes.memmove(self._command, command, COMMAND.itemsize)
        self._call(SYMBOL_COMMAND, self._write)

    def read(self) -> np.void:
        """Read the status block; size and version in it prove the layout, the PLC's counter the order, every time."""
        self._call(SYMBOL_STATUS, self._read)
        if self._received.value != STATUS.itemsize:
            raise LinkError(f"{self._ads.address}: unusable answer to {SYMBOL_STATUS}: {self._received.value} bytes")
        data = bytes(self._status)
        size, version = _LAYOUT.unpack_from(data)
        if (size, version) != (STATUS.itemsize, LAYOUT_VERSION):
            raise LinkError(
                f"the PLC program fills {SYMBOL_STATUS} in layout version {version} with {size} bytes, this controller "
                f"knows version {LAYOUT_VERSION} with {STATUS.itemsize} bytes: they are of different releases"
            )
        status = np.frombuffer(data, STATUS)[0]
        before, self._plc_cycle = self._plc_cycle, int(status["plc_cycle"])
        if before is not None and (self._plc_cycle - before) % (2 * _HALF) >= _HALF:
            raise LinkError(
                f"the PLC's cycle counter went back from {before} to {self._plc_cycle}: its program was started again, "
                f"or its answers are out of order"
            )
        return status

    def check_version(self) -> None:
        """Refuse to go on with handles from before an online change."""
        version = self._read_version()
        if version != self.symbol_version:
            raise LinkError(f"the PLC program was changed (symbol version {self.symbol_version} → {version})")

    def check_state(self) -> None:
        """Refuse to go on with a PLC that is not in RUN: its last values would be read for ever."""
        state, _ = self._call("the ADS state", self._connection.read_state)
        _require_run(self._ads, state)

    def _read_version(self) -> int:
        return self._call("the symbol version", self._connection.read, _SYMBOL_VERSION, 0, pyads.PLCTYPE_USINT)

    def _prepared(self, function: str, name: str, block: "ctypes.Array[ctypes.c_ubyte]", *more: Any) -> Any:
        """What pyads does for a value by handle, but with the arguments made once: a tenth of the exchange."""
        plc, library = self._connection, cast("Any", pyads_ex)
        call = getattr(library._adsDLL, function)
        size = ctypes.sizeof(block)
        arguments = (
            plc._port, ctypes.byref(plc._adr.amsAddrStruct()), ctypes.c_ulong(_VALUE_BY_HANDLE),
            ctypes.c_ulong(self._handle(name, size)), ctypes.c_ulong(size), block, *more,
        )  # fmt: skip

        def request() -> None:
            if code := call(*arguments):
                raise ADSError(code)

        return request

    def _handle(self, name: str, size: int) -> int:
        entry = self._call(
            name, self._connection.read_write, _INFO_BY_NAME, 0, SAdsSymbolEntry, name, pyads.PLCTYPE_STRING
        )
        if entry.size != size:
            raise LinkError(
                f"{name} has {entry.size} bytes in the PLC and {size} here: PLC program and controller are of "
                f"different releases"
            )
        return self._call(name, self._connection.get_handle, name)

    def _call(self, what: str, call: Any, *arguments: Any) -> Any:
        """One call of pyads, watched, its errors translated."""
        thread = threading.get_ident()
        _overdue_s[thread] = time.monotonic() + self._timeout_s + HANG_S
        try:
            return call(*arguments)
        except ADSError as error:
            if _code(error) == _TIMEOUT:
                raise TimeoutError from None
            raise LinkError(_sentence(self._ads, _code(error), what)) from error
        except RuntimeError as error:  # pyads: another number of bytes than asked for, or no port left
            raise LinkError(f"{self._ads.address}: unusable answer to {what}: {error}") from error
        finally:
            del _overdue_s[thread]


def probe(ads: Ads) -> tuple[str, int]:
    """Ask for the ADS state over a plain socket, in bounded time, and see whether AdsLib is worth calling.

    Returns the IP address and TCP port that answered.

    AdsLib's open() blocks without limit on an address that swallows packets, and reports "nothing listens", "no route"
    and "wrong AMS port" alike.

    Raises:
        LinkError: with the sentence for the operator.
    """
    with _connect(ads) as tcp:
        _require_run(ads, _first_state(ads, tcp))
        return tcp.getpeername()


def _connect(ads: Ads) -> socket.socket:
    """A connection, or LinkError: each way not to get there has its own sentence."""
    host, port = split_address(ads.address)
    tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        tcp.settimeout(PROBE_S)
        tcp.connect((host, port))
    except (OSError, UnicodeError) as error:
        tcp.close()
        if isinstance(error, socket.gaierror | UnicodeError):  # UnicodeError: no possible name, such as a..b
            raise LinkError(f"this computer knows no address for {host!r} (ads.address)") from error
        if isinstance(error, TimeoutError):
            reason = f"{ads.address} does not react at all: switched off, unplugged, or behind a firewall"
        elif isinstance(error, ConnectionRefusedError):
            reason = f"nothing listens at {ads.address}: TwinCAT is not running there, or ads.address is wrong"
        else:
            reason = f"{ads.address} is out of reach: {error.strerror}"
        raise LinkError(reason) from error
    return tcp


def _first_state(ads: Ads, tcp: socket.socket) -> int:
    """The answer to the first request, which tells what kind of thing is at that address."""
    try:
        return ams_client.state(tcp, ads.ams_net_id, ads.ams_port, PROBE_S)
    except ams_client.AdsError as error:
        raise LinkError(_sentence(ads, error.code, "the ADS state")) from error
    except ams_client.MalformedError as error:
        raise LinkError(f"{ads.address} does not speak AMS/TCP: another service has this port") from error
    except TimeoutError as error:
        raise LinkError(f"{ads.address} accepts the connection, but does not answer ADS requests") from error
    except ConnectionError as error:
        own = tcp.getsockname()[0]
        raise LinkError(
            f"{ads.address} accepts the connection and closes it at once: the CX5130 has no ADS route to this computer "
            f"({own}, AMS NetId {own}.1.1)"
        ) from error
    except OSError as error:
        raise LinkError(f"{ads.address} is out of reach: {error.strerror}") from error


def split_address(address: str) -> tuple[str, int]:
    """Host and TCP port of `host` or `host:port`."""
    host, _, port = address.partition(":")
    return host, int(port) if port else DEFAULT_TCP_PORT


def _require_run(ads: Ads, state: int) -> None:
    if state != _ADS_RUN:
        name = _STATE_NAMES.get(state, f"state {state}")
        raise LinkError(f"the PLC at {ads.address} is in {name}, not in RUN")


def _code(error: ADSError) -> int | None:
    return cast("int | None", getattr(error, "err_code", None))


def _sentence(ads: Ads, code: int | None, what: str) -> str:
    """What an ADS error code means here, for the operator."""
    return _SENTENCES.get(code, "{ads.address} refused {what} with ADS error {code}").format(
        ads=ads, what=what, code=code
    )
