"""The CX5130 over ADS: one thread owns the link, the control loop only leaves commands and picks up status.

    loop:    write(command)  ──mailbox, newest wins──►  thread: struct write, struct read, by handle
    loop:    read()          ◄──one frozen reading────  thread: checks layout, symbol version, ADS state

AdsLib, under pyads, dictates the rest (all of it measured):
two threads on one connection fail, so one thread does everything; its open() has no timeout, so a plain socket asks
first; the timeout falls back to 5 s at every open(); once broken, a connection never heals; close() with a live
notification crashes the process, so there are none. TwinCAT keeps one TCP connection per client host: whoever opens
a second one, `check` included, takes the link away from the first.
"""

import ctypes
import logging
import math
import queue
import socket
import statistics
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pyads  # pyright: ignore[reportMissingTypeStubs]
from pyads import ADSError  # pyright: ignore[reportMissingTypeStubs]
from pyads.structs import SAdsSymbolEntry  # pyright: ignore[reportMissingTypeStubs]

from controller.errors import DeviceError
from controller.records import Command, Link, Sample
from controller.schema import Ads
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
ANSWER_LIMIT = 4096  # bytes in an answer to the probe, which has 40
TIMEOUTS_TO_GIVE_UP = 8  # in a row; at 20 ms and 100 Hz an outlier of 100 ms is bridged

_ENABLED, _FAULT = int(DriveStatus.ENABLED), int(DriveStatus.FAULT)  # plain: an IntFlag costs 1 us an operation
_QUICK_STOP = int(PlcState.QUICK_STOP)
_ADS_RUN = 5
_STATE_NAMES = {0: "INVALID", 2: "RESET", 6: "STOP", 11: "ERROR", 15: "CONFIG", 16: "RECONFIG", 19: "EXCEPTION"}
_TIMEOUT = 1861
_BROKEN = -1  # AdsLib: the TCP connection is gone
_VALUE_BY_HANDLE = 0xF005
_SYMBOL_VERSION = 0xF008
_INFO_BY_NAME = 0xF009
_LAYOUT = struct.Struct("<II")
_TCP = struct.Struct("<HI")
_AMS = struct.Struct("<6sH6sHHHIII")
_READ_STATE = 4
_PROBE_PORT = 32000  # AMS port of the asking side: any that no AdsLib port uses

_SENTENCES: dict[int | None, str] = {
    6: "no AMS port {ads.ams_port} at {ads.address}: the PLC is not started or in CONFIG, or ads.ams_port is wrong",
    7: "{ads.address} is not AMS NetId {ads.ams_net_id}: ads.ams_net_id is wrong",
    0x506: "AMS NetId {ads.ams_net_id} is already in use in this process for another address",
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


class _CommandBytes(ctypes.Structure):
    """The command block as pyads takes it without looking inside."""

    _fields_ = [("data", ctypes.c_ubyte * COMMAND.itemsize)]


class _StatusBytes(ctypes.Structure):
    _fields_ = [("data", ctypes.c_ubyte * STATUS.itemsize)]


class AdsDriver:
    """The link to one CX5130. No call waits for the network, except `close`, for at most 1 s."""

    def __init__(self, ads: Ads, legs: int, period_s: float, velocity_feedforward: float = 1.0) -> None:
        """Prepare the link to the CX5130 of a site for commands every `period_s`; `open` starts it."""
        self._ads = ads
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
        # A daemon, because nothing can interrupt AdsLib: a process that ends does not wait for it.
        self._thread = threading.Thread(target=self._run, name="ads", daemon=True)

    @property
    def reading(self) -> AdsReading:
        """The newest reading, with the counters of the link."""
        return self._reading

    @property
    def is_up(self) -> bool:
        """There is a link, even if the last answer was late."""
        return self._reading.link is not Link.DOWN

    @property
    def message(self) -> str:
        """Why the link is not up, for the operator."""
        return self._reading.message

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
        reading, n = self._reading, self._legs
        status, t_s = reading.status, now_s - start_s
        if status is None:
            nan = self._unknown
            return Sample(tick, t_s, reading.link, math.inf, 0, 0, 0, 0, False, False, False, nan, nan, nan, nan, nan)
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
            plc_stopped=state == _QUICK_STOP,
            drives_enabled=all(bits & _ENABLED for bits in drives),
            drives_fault=any(bits & _FAULT for bits in drives),
            # Copies, because compiled kernels take no arrays on read-only memory.
            length_m=status["position_m"][:n].copy(),
            length_m_s=status["velocity_m_s"][:n].copy(),
            setpoint_m=status["setpoint_m"][:n].copy(),
            drive_n=status["force_n"][:n].copy(),
            cell_n=status["cell_n"][:n].copy(),
        )

    def close(self) -> None:
        """Send the last command if there is a link, close it; returns within 1 s even if AdsLib hangs."""
        self._closing.set()
        self._mailbox.put(b"")
        if self._thread.is_alive():
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
                    link.close()
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
            return self._mailbox.get(timeout=IDLE_S)
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
        probe(ads)
        self._ads = ads
        self._connection: Any = pyads.Connection(ads.ams_net_id, ads.ams_port, ads.address)
        try:
            self._open()
            self._connection.set_timeout(round(1e3 * max(HANDSHAKE_S, ads.timeout_s)))
            self._command_handle = self._handle(SYMBOL_COMMAND, COMMAND.itemsize)
            self._status_handle = self._handle(SYMBOL_STATUS, STATUS.itemsize)
            self.symbol_version = self._read_version()
            self.first_stamp_s = time.monotonic()
            self.first_status = self.read()
            self._connection.set_timeout(round(1e3 * ads.timeout_s))
        except TimeoutError:
            self.close()
            raise LinkError(f"{ads.address} accepts the connection, but does not answer ADS requests") from None
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        try:
            self._connection.open()
        except ADSError as error:
            code = cast("int | None", getattr(error, "err_code", None))
            if code == 6:  # from AdsLib itself, whatever kept it from connecting
                raise LinkError(f"{self._ads.address} went away while connecting") from error
            raise LinkError(_sentence(self._ads, code, "the connection")) from error

    def close(self) -> None:
        """Close the connection; AdsLib must forget it before another one to the same AMS NetId is opened."""
        with suppress(ADSError):
            self._connection.close()

    def write(self, command: bytes) -> None:
        """Write the command block."""
        block = _CommandBytes.from_buffer_copy(command)
        self._request(
            "write", self._connection.write, _VALUE_BY_HANDLE, self._command_handle, block, _CommandBytes
        )  # fmt: skip

    def read(self) -> np.void:
        """Read the status block; size and version in it prove the layout every time."""
        block = self._request(
            "read", self._connection.read, _VALUE_BY_HANDLE, self._status_handle, _StatusBytes, True
        )  # fmt: skip
        data = bytes(block)
        size, version = _LAYOUT.unpack_from(data)
        if (size, version) != (STATUS.itemsize, LAYOUT_VERSION):
            raise LinkError(
                f"the PLC program fills {SYMBOL_STATUS} in layout version {version} with {size} bytes, this controller "
                f"knows version {LAYOUT_VERSION} with {STATUS.itemsize} bytes: they are of different releases"
            )
        return np.frombuffer(data, STATUS)[0]

    def check_version(self) -> None:
        """Refuse to go on with handles from before an online change."""
        version = self._read_version()
        if version != self.symbol_version:
            raise LinkError(f"the PLC program was changed (symbol version {self.symbol_version} → {version})")

    def check_state(self) -> None:
        """Refuse to go on with a PLC that is not in RUN: its last values would be read for ever."""
        state, _ = self._request("ADS state", self._connection.read_state)
        _require_run(self._ads, state)

    def _read_version(self) -> int:
        return self._request("symbol version", self._connection.read, _SYMBOL_VERSION, 0, pyads.PLCTYPE_USINT)

    def _handle(self, name: str, size: int) -> int:
        entry = self._request(
            name, self._connection.read_write, _INFO_BY_NAME, 0, SAdsSymbolEntry, name, pyads.PLCTYPE_STRING
        )  # fmt: skip
        if entry.size != size:
            raise LinkError(
                f"{name} has {entry.size} bytes in the PLC and {size} here: PLC program and controller are of "
                f"different releases"
            )
        return self._request(name, self._connection.get_handle, name)

    def _request(self, what: str, call: Any, *arguments: Any) -> Any:
        """One call of pyads, its errors translated."""
        try:
            return call(*arguments)
        except ADSError as error:
            code = cast("int | None", getattr(error, "err_code", None))
            if code == _TIMEOUT:
                raise TimeoutError from None
            raise LinkError(_sentence(self._ads, code, what)) from error
        except RuntimeError as error:  # pyads: fewer bytes than asked for, or no port left
            raise LinkError(f"{self._ads.address}: unusable answer to {what}: {error}") from error


def probe(ads: Ads) -> None:
    """Ask for the ADS state over a plain socket, in bounded time, and see whether AdsLib is worth calling.

    AdsLib's open() blocks without limit on an address that swallows packets, and reports "nothing listens", "no route"
    and "wrong AMS port" alike.

    Raises:
        LinkError: with the sentence for the operator.
    """
    host, port = split_address(ads.address)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp:
            tcp.settimeout(PROBE_S)
            tcp.connect((host, port))
            own_net_id = bytes(int(part) for part in tcp.getsockname()[0].split(".")) + b"\1\1"  # as AdsLib has it
            target = bytes(int(part) for part in ads.ams_net_id.split("."))
            request = _AMS.pack(target, ads.ams_port, own_net_id, _PROBE_PORT, _READ_STATE, 4, 0, 0, 1)
            answer = _ask(ads, tcp, _TCP.pack(0, len(request)) + request)
    except socket.gaierror as error:
        raise LinkError(f"this computer knows no address for {host!r} (ads.address)") from error
    except TimeoutError as error:
        raise LinkError(
            f"{ads.address} does not react at all: switched off, unplugged, or behind a firewall"
        ) from error
    except ConnectionRefusedError as error:
        raise LinkError(
            f"nothing listens at {ads.address}: TwinCAT is not running there, or ads.address is wrong"
        ) from error
    except OSError as error:
        raise LinkError(f"{ads.address} is out of reach: {error.strerror}") from error
    command, error_code, data = _AMS.unpack_from(answer)[4], _AMS.unpack_from(answer)[7], answer[_AMS.size :]
    if error_code:
        raise LinkError(_sentence(ads, error_code, "the ADS state"))
    if command != _READ_STATE or len(data) != 8:
        raise LinkError(f"{ads.address} does not speak AMS/TCP: another service has this port")
    _require_run(ads, struct.unpack("<IHH", data)[1])


def _ask(ads: Ads, tcp: socket.socket, request: bytes) -> bytes:
    """The AMS frame (without the TCP header) that answers `request`."""
    deadline_s = time.monotonic() + PROBE_S
    received, wanted = b"", _TCP.size
    try:
        tcp.sendall(request)
        while len(received) < wanted:
            tcp.settimeout(max(deadline_s - time.monotonic(), 1e-3))
            part = tcp.recv(wanted - len(received))
            if not part:
                break
            received += part
            if len(received) == wanted == _TCP.size:
                reserved, length = _TCP.unpack(received)
                if reserved != 0 or not _AMS.size <= length <= ANSWER_LIMIT:
                    raise LinkError(f"{ads.address} does not speak AMS/TCP: another service has this port")
                wanted += length
    except TimeoutError:
        raise LinkError(f"{ads.address} accepts the connection, but does not answer ADS requests") from None
    except (ConnectionResetError, BrokenPipeError):
        received = b""
    if len(received) < wanted:
        own = tcp.getsockname()[0]
        raise LinkError(
            f"{ads.address} accepts the connection and closes it at once: the CX5130 has no ADS route to this computer "
            f"({own}, AMS NetId {own}.1.1)"
        )
    return received[_TCP.size :]


def split_address(address: str) -> tuple[str, int]:
    """Host and TCP port of `host` or `host:port`."""
    host, _, port = address.partition(":")
    return host, int(port) if port else DEFAULT_TCP_PORT


def _require_run(ads: Ads, state: int) -> None:
    if state != _ADS_RUN:
        name = _STATE_NAMES.get(state, f"state {state}")
        raise LinkError(f"the PLC at {ads.address} is in {name}, not in RUN")


def _sentence(ads: Ads, code: int | None, what: str) -> str:
    """What an ADS error code means here, for the operator."""
    return _SENTENCES.get(code, "{ads.address} refused {what} with ADS error {code}").format(
        ads=ads, what=what, code=code
    )
