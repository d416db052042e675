"""An ADS device on AMS/TCP: what a TwinCAT router and one PLC run-time show to a client.

Three layers, the upper two without any I/O:

    Device    named byte buffers, ADS state, symbol version          shared by all clients
    Session   bytes in -> answers out, handles                       one per TCP connection
    Server    asyncio sockets, one connection per client host        as TwinCAT does

A Device plays the faults of a PLC (`refuse`, `state`, `online_change`), `network.Network` those of everything between
Server and client.

Frames are little endian and packed (Beckhoff InfoSys, "AMS/TCP"):

    u16 0 | u32 length | target NetId[6] port u16 | source NetId[6] port u16
        | command u16 | flags u16 | data length u32 | error u32 | invoke id u32 | data

A refusal of the router stands in the error field of the header, one of the PLC in the result of the data.
Notifications are refused: pyads crashes the process when one is alive at close().
"""

import asyncio
import itertools
import logging
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import cast

log = logging.getLogger(__name__)

FRAME_LIMIT = 1 << 16  # bytes in one frame; the largest honest request here is a struct write of a few hundred
BACKLOG_LIMIT = 1 << 20  # bytes of answers that a client may leave unread
HANDLE_LIMIT = 4096  # handles that one client may hold

_TCP = struct.Struct("<HI")
_AMS = struct.Struct("<6sH6sHHHIII")
_U32 = struct.Struct("<I")
_ADDRESS = struct.Struct("<III")
_WRITE_CONTROL = struct.Struct("<HHI")
_READ_WRITE = struct.Struct("<IIII")
_SYMBOL_ENTRY = struct.Struct("<IIIIIIHHH")

_FLAG_RESPONSE = 0x0001
_FLAGS_ANSWER = 0x0005  # response to an ADS command
_GROUP_MEMORY = 0x4040  # where TwinCAT 3 keeps PLC variables
_MEMORY_START = 0x1000
_SYMBOL_FLAGS = 0x0008  # as TwinCAT sets it for a variable with a type of its own

# ADST_*; everything that is no elementary type is BIGTYPE
_BIGTYPE = 65
_DATA_TYPES = {
    "INT": 2, "DINT": 3, "REAL": 4, "LREAL": 5, "SINT": 16, "USINT": 17, "BYTE": 17, "UINT": 18, "WORD": 18,
    "UDINT": 19, "DWORD": 19, "LINT": 20, "ULINT": 21, "STRING": 30, "BOOL": 33,
}  # fmt: skip


class Command(IntEnum):
    """AMS command ids."""

    READ_DEVICE_INFO = 1
    READ = 2
    WRITE = 3
    READ_STATE = 4
    WRITE_CONTROL = 5
    ADD_NOTIFICATION = 6
    DELETE_NOTIFICATION = 7
    NOTIFICATION = 8
    READ_WRITE = 9


class Group(IntEnum):
    """Index groups of the symbol services."""

    HANDLE_BY_NAME = 0xF003
    VALUE_BY_HANDLE = 0xF005
    RELEASE_HANDLE = 0xF006
    INFO_BY_NAME = 0xF007
    VERSION = 0xF008
    INFO_BY_NAME_EX = 0xF009
    UPLOAD = 0xF00B
    UPLOAD_INFO = 0xF00C
    UPLOAD_INFO_2 = 0xF00F
    SUM_READ = 0xF080
    SUM_WRITE = 0xF081


class AdsState(IntEnum):
    """ADS states that a PLC run-time shows."""

    RUN = 5
    STOP = 6
    CONFIG = 15
    EXCEPTION = 19


class Error(IntEnum):
    """ADS return codes used here."""

    NONE = 0
    PORT_NOT_FOUND = 6
    MACHINE_NOT_FOUND = 7
    UNKNOWN_COMMAND = 8
    INVALID_AMS_LENGTH = 14
    UNSUPPORTED = 0x701
    INVALID_GROUP = 0x702
    INVALID_OFFSET = 0x703
    INVALID_SIZE = 0x705
    NO_MEMORY = 0x70A
    SYMBOL_NOT_FOUND = 0x710  # 1808
    SYMBOL_VERSION = 0x711  # 1809: handle unknown, or older than an online change


class Refusable(StrEnum):
    """Requests that a Device can be told to refuse."""

    ALL = "all"  # by the router, with the code in the header
    HANDLE = "handle"  # handle by name
    READ = "read"  # value by handle
    WRITE = "write"  # value by handle


class Refused(Exception):  # noqa: N818 - an answer, not a failure
    """A request that the PLC answers with an error code.

    Inside this module only: it never leaves a Session.
    """

    def __init__(self, error: int) -> None:
        """Refuse with this code."""
        super().__init__(f"ADS error {error:#x}")
        self.error = error


class MalformedError(Exception):
    """Bytes that are no AMS/TCP frame: the stream cannot be followed any further, close the connection."""


@dataclass(slots=True, eq=False)
class Symbol:
    """A PLC variable: `data` is its memory and never changes size; `on_write` gets the new bytes after a write."""

    name: str
    type_name: str
    data: bytearray
    on_write: Callable[[bytes], None] | None = None
    comment: str = ""
    offset: int = 0  # in the PLC's memory, set by the Device

    def entry(self) -> bytes:
        """The symbol as the services F009 and F00B describe it."""
        texts = [text.encode("cp1252", "replace") for text in (self.name, self.type_name, self.comment)]
        data_type = _DATA_TYPES.get(self.type_name.split("(")[0], _BIGTYPE)
        tail = b"".join(text + b"\0" for text in texts)
        return (
            _SYMBOL_ENTRY.pack(
                _SYMBOL_ENTRY.size + len(tail), _GROUP_MEMORY, self.offset, len(self.data), data_type, _SYMBOL_FLAGS,
                *(len(text) for text in texts),
            )
            + tail
        )  # fmt: skip

    def read(self, length: int) -> bytes:
        """The value; only a STRING may be asked for with a longer buffer, as TwinCAT does."""
        if length != len(self.data) and not (self.type_name.startswith("STRING") and length > len(self.data)):
            raise Refused(Error.INVALID_SIZE)
        return bytes(self.data)

    def write(self, value: bytes) -> None:
        """Replace the value; only a STRING may be written short."""
        if len(value) != len(self.data) and not (self.type_name.startswith("STRING") and len(value) < len(self.data)):
            raise Refused(Error.INVALID_SIZE)
        self.data[: len(value)] = value
        if self.on_write is not None:
            self.on_write(value)


@dataclass(slots=True, eq=False)
class Device:
    """A PLC run-time behind an AMS address."""

    net_id: str
    port: int
    symbols: list[Symbol]
    state: AdsState = AdsState.RUN
    name: str = "Plc30 App"
    version: int = 1  # symbol version, F008
    by_name: dict[bytes, Symbol] = field(init=False)  # key: upper-case cp1252, PLC names ignore case
    net_id_bytes: bytes = field(init=False)
    handles: "itertools.count[int]" = field(init=False, default_factory=lambda: itertools.count(0x1001))
    refusals: dict[Refusable, tuple[int, float]] = field(init=False, default_factory=dict[Refusable, tuple[int, float]])

    def __post_init__(self) -> None:
        """Lay out the memory."""
        self.net_id_bytes = bytes(int(part) for part in self.net_id.split("."))
        self._place(_MEMORY_START)

    def refuse(self, what: Refusable, error: int, requests: float = math.inf) -> None:
        """Answer the next so many requests of this kind with an error code and do not execute them; 0 ends it."""
        self.refusals[what] = error, requests

    def admit(self, what: Refusable) -> None:
        """Raise Refused if requests of this kind are to be refused now."""
        error, requests = self.refusals.get(what, (0, 0))
        if requests > 0:
            self.refusals[what] = error, requests - 1
            raise Refused(error)

    def online_change(self, symbols: list[Symbol], memory_start: int = _MEMORY_START) -> None:
        """A new program without a restart: variables move, old handles die, the symbol version changes.

        A variable that was put before the others stands where the first one was: an access by address would hit it.
        """
        self.symbols = symbols
        self.version = self.version % 255 + 1
        self._place(memory_start)

    def _place(self, offset: int) -> None:
        for symbol in self.symbols:
            symbol.offset = offset
            offset += (len(symbol.data) + 7) // 8 * 8
        self.by_name = {symbol.name.encode("cp1252").upper(): symbol for symbol in self.symbols}

    def named(self, name: bytes) -> Symbol:
        """The symbol of a NUL-terminated name."""
        try:
            return self.by_name[name.split(b"\0", 1)[0].upper()]
        except KeyError:
            raise Refused(Error.SYMBOL_NOT_FOUND) from None

    def placed(self, offset: int) -> Symbol:
        """The symbol that starts at a memory offset."""
        for symbol in self.symbols:
            if symbol.offset == offset:
                return symbol
        raise Refused(Error.INVALID_OFFSET)


class Session:
    """One client's conversation: bytes in, answers out."""

    def __init__(self, device: Device) -> None:
        """Begin a conversation with `device`."""
        self._device = device
        self._buffer = bytearray()
        self._handles: dict[int, tuple[Symbol, int]] = {}  # handle -> symbol, symbol version it was given out for

    def receive(self, data: bytes) -> list[bytes]:
        """The answers to every frame that `data` completes.

        Raises:
            MalformedError: the stream is no AMS/TCP; the connection is lost, and with it the answers before.
        """
        self._buffer += data
        answers: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= _TCP.size:
            reserved, length = _TCP.unpack_from(self._buffer, start)
            if reserved != 0 or not _AMS.size <= length <= FRAME_LIMIT:
                raise MalformedError(f"AMS/TCP header {reserved:#06x}, length {length}")
            end = start + _TCP.size + length
            if len(self._buffer) < end:
                break
            answer = self._answer(bytes(self._buffer[start + _TCP.size : end]))
            if answer is not None:
                answers.append(answer)
            start = end
        del self._buffer[:start]
        return answers

    def _answer(self, frame: bytes) -> bytes | None:
        target, port, source, source_port, command, flags, length, _, invoke = _AMS.unpack_from(frame)
        data = frame[_AMS.size :]
        if length != len(data):
            raise MalformedError(f"AMS data length {length} in a frame with {len(data)} bytes of data")
        if flags & _FLAG_RESPONSE:
            return None  # answers nothing that was asked here
        error, body = int(Error.NONE), b""
        if target != self._device.net_id_bytes:
            error = Error.MACHINE_NOT_FOUND
        elif port != self._device.port:
            error = Error.PORT_NOT_FOUND
        else:
            try:
                self._device.admit(Refusable.ALL)
                body = self._execute(command, data)
            except struct.error:  # shorter than the fields of its command
                error = Error.INVALID_AMS_LENGTH
            except Refused as refusal:
                error = refusal.error
        header = _AMS.pack(source, source_port, target, port, command, _FLAGS_ANSWER, len(body), error, invoke)
        return _TCP.pack(0, len(header) + len(body)) + header + body

    def _execute(self, command: int, data: bytes) -> bytes:  # noqa: PLR0911 - one answer for each command
        """The data of the answer; Refused only for what has no result field of its own."""
        match command:
            case Command.READ_DEVICE_INFO:
                return struct.pack("<IBBH16s", 0, 3, 1, 4024, self._device.name.encode("cp1252"))
            case Command.READ_STATE:
                return struct.pack("<IHH", 0, self._device.state, 0)
            case Command.READ:
                group, offset, length = _ADDRESS.unpack(data)
                return _with_length(lambda: self._read(group, offset, length))
            case Command.WRITE:
                group, offset, length = _ADDRESS.unpack_from(data)
                return _U32.pack(self._result_of_write(group, offset, _exactly(length, data[_ADDRESS.size :])))
            case Command.WRITE_CONTROL:
                state, _, length = _WRITE_CONTROL.unpack_from(data)
                _exactly(length, data[_WRITE_CONTROL.size :])
                if state not in (AdsState.RUN, AdsState.STOP):
                    return _U32.pack(Error.UNSUPPORTED)
                self._device.state = AdsState(state)
                return _U32.pack(0)
            case Command.READ_WRITE:
                group, offset, length, write_length = _READ_WRITE.unpack_from(data)
                value = _exactly(write_length, data[_READ_WRITE.size :])
                return _with_length(lambda: self._read_write(group, offset, length, value))
            case Command.ADD_NOTIFICATION | Command.DELETE_NOTIFICATION:
                return _U32.pack(Error.UNSUPPORTED)
            case _:
                raise Refused(Error.UNKNOWN_COMMAND)

    def _read(self, group: int, offset: int, length: int) -> bytes:
        device = self._device
        match group:
            case Group.VALUE_BY_HANDLE:
                device.admit(Refusable.READ)
                return self._by_handle(offset).read(length)
            case _ if group == _GROUP_MEMORY:
                return device.placed(offset).read(length)
            case Group.VERSION:
                return _fitting(bytes([device.version]), length)
            case Group.UPLOAD:
                return _fitting(b"".join(symbol.entry() for symbol in device.symbols), length)
            case Group.UPLOAD_INFO | Group.UPLOAD_INFO_2:
                size = sum(len(symbol.entry()) for symbol in device.symbols)
                info = struct.pack("<II", len(device.symbols), size)
                # data types and dynamic symbols: none here
                return _fitting(info if group == Group.UPLOAD_INFO else info + bytes(16), length)
            case _:
                raise Refused(Error.INVALID_GROUP)

    def _result_of_write(self, group: int, offset: int, value: bytes) -> int:
        try:
            if group == Group.VALUE_BY_HANDLE:
                self._device.admit(Refusable.WRITE)
                self._by_handle(offset).write(value)
            elif group == _GROUP_MEMORY:
                self._device.placed(offset).write(value)
            elif group == Group.RELEASE_HANDLE:
                if len(value) != _U32.size:
                    return Error.INVALID_SIZE
                if self._handles.pop(_U32.unpack(value)[0], None) is None:
                    return Error.SYMBOL_VERSION
            else:
                return Error.INVALID_GROUP
        except Refused as refusal:
            return refusal.error
        return Error.NONE

    def _read_write(self, group: int, offset: int, length: int, value: bytes) -> bytes:
        match group:
            case Group.HANDLE_BY_NAME:
                self._device.admit(Refusable.HANDLE)
                symbol = self._device.named(value)
                if len(self._handles) >= HANDLE_LIMIT:
                    raise Refused(Error.NO_MEMORY)
                handle = next(self._device.handles)
                self._handles[handle] = symbol, self._device.version
                return _fitting(_U32.pack(handle), length)
            case Group.INFO_BY_NAME:
                symbol = self._device.named(value)
                return _fitting(_ADDRESS.pack(_GROUP_MEMORY, symbol.offset, len(symbol.data)), length)
            case Group.INFO_BY_NAME_EX:
                return _fitting(self._device.named(value).entry(), length)
            case Group.SUM_READ:
                return _fitting(self._sum_read(offset, value, length), length)
            case Group.SUM_WRITE:
                return _fitting(self._sum_write(offset, value), length)
            case _:
                raise Refused(Error.INVALID_GROUP)

    def _sum_read(self, count: int, value: bytes, limit: int) -> bytes:
        """All results, then all data; a refused item keeps its place, filled with zeros."""
        if count * _ADDRESS.size != len(value):
            raise Refused(Error.INVALID_SIZE)
        requests = list(_ADDRESS.iter_unpack(value))
        if count * _U32.size + sum(length for _, _, length in requests) > min(limit, FRAME_LIMIT):
            raise Refused(Error.INVALID_SIZE)
        results, values = bytearray(), bytearray()
        for group, offset, length in requests:
            try:
                part, error = self._read(group, offset, length), 0
            except Refused as refusal:
                part, error = b"", refusal.error
            results += _U32.pack(error)
            values += part.ljust(length, b"\0")
        return bytes(results + values)

    def _sum_write(self, count: int, value: bytes) -> bytes:
        start = count * _ADDRESS.size
        if start > len(value):
            raise Refused(Error.INVALID_SIZE)
        requests = list(_ADDRESS.iter_unpack(value[:start]))
        if start + sum(length for _, _, length in requests) != len(value):
            raise Refused(Error.INVALID_SIZE)
        results = bytearray()
        for group, offset, length in requests:
            results += _U32.pack(self._result_of_write(group, offset, value[start : start + length]))
            start += length
        return bytes(results)

    def _by_handle(self, handle: int) -> Symbol:
        symbol, version = self._handles.get(handle, (None, 0))
        if symbol is None or version != self._device.version:
            raise Refused(Error.SYMBOL_VERSION)
        return symbol


def _exactly(length: int, data: bytes) -> bytes:
    """`data`, if its announced length is true."""
    if length != len(data):
        raise Refused(Error.INVALID_AMS_LENGTH)
    return data


def _fitting(data: bytes, length: int) -> bytes:
    """`data`, if the client's buffer can hold it."""
    if len(data) > length:
        raise Refused(Error.INVALID_SIZE)
    return data


def _with_length(read: Callable[[], bytes]) -> bytes:
    """Result, length and data, as Read and ReadWrite answer."""
    try:
        data = read()
    except Refused as refusal:
        return struct.pack("<II", refusal.error, 0)
    return struct.pack("<II", 0, len(data)) + data


# ---------------------------------------------------------------- asyncio

Deliver = Callable[[asyncio.Transport, bytes], None]
Admit = Callable[[asyncio.Transport], bool]
Hear = Callable[[asyncio.Transport, bytes], bytes]


def at_once(transport: asyncio.Transport, answer: bytes) -> None:
    """Send an answer; a network fault is another function in its place, which delays, drops, cuts or closes."""
    transport.write(answer)


def everyone(_transport: asyncio.Transport) -> bool:
    """Accept a connection; a network fault is another function in its place, which may also close it."""
    return True


def everything(_transport: asyncio.Transport, data: bytes) -> bytes:
    """What of the received bytes reaches the PLC; a network fault is another function in its place."""
    return data


class Server:
    """Listens for AMS/TCP clients of one Device; a newer connection from the same host closes the older one."""

    def __init__(self, device: Device, deliver: Deliver = at_once) -> None:
        """Serve `device`; every answer goes through `deliver`."""
        self.device = device
        self.deliver = deliver
        self.admit: Admit = everyone
        self.hear: Hear = everything
        self.address: tuple[str, int] = ("", 0)  # where it listens, or did last
        self.links: dict[str, _Link] = {}  # client host -> its connection
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the address really bound (port 0: a free one).

        Raises:
            OSError: the address is in use or not of this computer.
        """
        self._server = await asyncio.get_running_loop().create_server(lambda: _Link(self), host, port)
        self.address = self._server.sockets[0].getsockname()[:2]
        return self.address

    def deafen(self) -> None:
        """Stop listening; the clients stay."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Stop listening and drop every client."""
        if self._server is not None:
            self._server.close()
            for link in list(self.links.values()):
                link.transport.abort()
            await self._server.wait_closed()
            self._server = None


class _Link(asyncio.Protocol):
    """One TCP connection."""

    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self._server = server
        self._session = Session(server.device)
        self._host = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if not self._server.admit(self.transport):
            return
        self.transport.set_write_buffer_limits(high=BACKLOG_LIMIT)
        self._host, port = (transport.get_extra_info("peername") or ("?", 0))[:2]
        older = self._server.links.get(self._host)
        self._server.links[self._host] = self
        if older is None:
            log.info("client connected: %s:%d", self._host, port)
        else:
            log.warning("client connected: %s:%d, its host's older connection is closed", self._host, port)
            older.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._server.links.get(self._host) is self:
            del self._server.links[self._host]
            log.info("client disconnected: %s", self._host)

    def data_received(self, data: bytes) -> None:
        try:
            answers = self._session.receive(self._server.hear(self.transport, data))
        except MalformedError as reason:
            log.warning("connection of %s closed, not AMS/TCP: %s", self._host, reason)
            self.transport.abort()
            return
        for answer in answers:
            self._server.deliver(self.transport, answer)

    def pause_writing(self) -> None:
        """A client that asks without reading the answers would fill the memory."""
        log.warning("connection of %s closed: it does not read its answers", self._host)
        self.transport.abort()
