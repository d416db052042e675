"""One connection to a CX5130 through AdsLib, with its handles and layouts checked, and the calls that never return.

Values are taken by handle only, never by address, which after an online change would be another variable's. TwinCAT
keeps one TCP connection per client host: whoever opens a second one takes the link away from the first.

AdsLib, under pyads, dictates the rest (all of it measured, decision 0005): two threads on one connection fail; its
open() has no timeout, so a plain socket asks first; the timeout falls back to 5 s at every open(); once broken, a
connection never heals; close() with a live notification crashes the process, so there are none. A call whose answer
breaks off behind its header never returns, and nothing frees it, in this process: see `hanging`.
"""

import ctypes
import math
import os
import socket
import stat
import struct
import threading
import time
from contextlib import suppress
from typing import Any, cast

import numpy as np
import pyads  # pyright: ignore[reportMissingTypeStubs]
from pyads import ADSError, pyads_ex  # pyright: ignore[reportMissingTypeStubs]
from pyads.structs import SAdsSymbolEntry  # pyright: ignore[reportMissingTypeStubs]

from controller.errors import DeviceError
from controller.schema import Ads
from drivers import ams_client
from drivers.exchange import COMMAND, LAYOUT_VERSION, STATUS, SYMBOL_COMMAND, SYMBOL_STATUS

DEFAULT_TCP_PORT = 48898  # of the TwinCAT router
PROBE_S = 0.4  # for each of connect and answer; twice this is less than the second that close() may take
HANDSHAKE_S = 0.25  # timeout of the requests at connect: symbol look-ups are slower than values
HANG_S = 1.0  # a call that returns so long after its timeout is one that never will
HANGS = (
    "the ADS library does not return from a call any more, as when an answer of the PLC breaks off: "
    "this program must be started again"
)
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


def hanging() -> bool:
    """Whether a call into AdsLib will never return, once that is known: a process can then only end by os._exit."""
    while calls := list(_overdue_s.values()):
        if time.monotonic() > min(calls):
            return True
        time.sleep(0.01)
    return False


def stuck(thread: threading.Thread) -> bool:
    """Whether this thread is in such a call."""
    ident = thread.ident  # None before it is started
    return ident is not None and time.monotonic() > _overdue_s.get(ident, math.inf)


class AdsLink:
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
