"""Instruments on Modbus and serial lines, with the faults of real ones: attributes switch them while they run.

    Slave, RtuBus, Conditioner, Inclinometer    bytes in -> bytes out with the time they are due, no I/O
    TcpServer, PtyLine                          a thread each that carries the bytes over a socket or a pty

A pty has no speed: with a `baudrate` an answer comes when its last byte would have come over a real line.
"""

import errno
import heapq
import itertools
import math
import os
import pty
import select
import selectors
import socket
import struct
import termios
import threading
import time
import tty
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np
from pymodbus.framer.rtu import FramerRTU

FORGET_S = 0.2  # how often a pty forgets the settings of whoever opened it
TURN_S = 0.002  # how often a line looks for new bytes and bytes that are due

Due = tuple[float, bytes]  # monotonic time, what to send then

_MBAP = struct.Struct(">HHHB")
_READ = struct.Struct(">BHH")


class Behaviour(Enum):
    """How a Modbus slave treats a request."""

    HONEST = "answers"
    SILENT = "answers nothing"
    LATE = "answers after delay_s"
    SHORT = "answers with one register too few"
    LONG = "answers with one register too many"
    WRONG_FUNCTION = "answers with the other reading function"
    WRONG_UNIT = "answers with the address of another unit"
    WRONG_TRANSACTION = "answers with transaction id 0"
    ECHO = "sends the request back"
    NOISE = "answers with random bytes"
    EXCEPTION = "answers with the exception code"


@dataclass(slots=True)
class Slave:
    """A Modbus slave that can be read."""

    unit_id: int
    registers: dict[int, int]
    behaviour: Behaviour = Behaviour.HONEST
    delay_s: float = 0.0  # of LATE
    exception: int = 2  # of EXCEPTION
    requests: int = 0
    status: int = 0  # further bits of its status word

    def answer(self, request: bytes) -> bytes:
        """The answer, both without address and checksum."""
        if len(request) != _READ.size or request[0] not in (3, 4):
            return bytes([request[0] | 0x80, 1])
        function, first, count = _READ.unpack(request)
        if self.behaviour is Behaviour.EXCEPTION:
            return bytes([function | 0x80, self.exception])
        if any(address not in self.registers for address in range(first, first + count)):
            return bytes([function | 0x80, 2])
        count += {Behaviour.SHORT: -1, Behaviour.LONG: 1}.get(self.behaviour, 0)
        if self.behaviour is Behaviour.WRONG_FUNCTION:
            function = 7 - function
        values = [self.registers.get(address, 0) for address in range(first, first + count)]
        return struct.pack(f">BB{count}H", function, 2 * count, *values)


@dataclass(slots=True)
class RtuBus:
    """Slaves on one RTU line."""

    slaves: Sequence[Slave]
    baudrate: float = math.inf
    character_bits: int = 10  # 8N1; 11 with parity or a second stop bit
    dice: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))
    received: bytes = b""

    def __call__(self, data: bytes, now_s: float) -> list[Due]:
        """Answers to the requests that are complete with these bytes."""
        self.received += data
        due: list[Due] = []
        while len(self.received) >= 8:
            frame, rest = self.received[:8], self.received[8:]
            if not FramerRTU.check_CRC(frame[:6], int.from_bytes(frame[6:], "big")):
                self.received = self.received[1:]
                continue
            self.received = rest
            due += [
                item for slave in self.slaves if slave.unit_id == frame[0] for item in self._answer(slave, frame, now_s)
            ]
        return due

    def _answer(self, slave: Slave, frame: bytes, now_s: float) -> list[Due]:
        slave.requests += 1
        behaviour = slave.behaviour
        if behaviour is Behaviour.SILENT:
            return []
        if behaviour is Behaviour.ECHO:
            answer = frame
        elif behaviour is Behaviour.NOISE:
            answer = self.dice.bytes(40)
        else:
            unit_id = slave.unit_id + 1 if behaviour is Behaviour.WRONG_UNIT else slave.unit_id
            answer = bytes([unit_id]) + slave.answer(frame[1:6])
            answer += FramerRTU.compute_CRC(answer).to_bytes(2, "big")
        bits = self.character_bits * (len(frame) + len(answer) + 7)  # two pauses of 3.5 characters
        return [(now_s + bits / self.baudrate + (slave.delay_s if behaviour is Behaviour.LATE else 0.0), answer)]


@dataclass(slots=True)
class Conditioner:
    """An ASCII load-cell conditioner, `!001:SYS?` -> `+123.456`."""

    value: float = 0.0
    status: int = 0
    station: int = 1
    silent: bool = False
    refuses: bool = False
    halves: bool = False  # answers break off in the middle
    noise: bool = False  # sends random bytes all the time, also instead of answers
    baudrate: float = math.inf
    dice: np.random.Generator = field(default_factory=lambda: np.random.default_rng(2))
    received: bytes = b""

    def __call__(self, data: bytes, now_s: float) -> list[Due]:
        """Answers to the requests that are complete with these bytes."""
        *requests, self.received = (self.received + data).split(b"\r")
        if self.noise:
            return [(now_s, self.dice.bytes(8))]
        due: list[Due] = []
        for request in requests if not self.silent else []:
            answer = self._answer(request)
            now_s += 10 * (len(request) + 1 + len(answer)) / self.baudrate  # 8N1
            due.append((now_s, answer[: len(answer) // 2] if self.halves else answer))
        return due

    def _answer(self, request: bytes) -> bytes:
        words = {b"!%03d:SYS?" % self.station: self.value, b"!%03d:STAT?" % self.station: float(self.status)}
        return b"?\r" if self.refuses or request not in words else b"%+08.3f\r" % words[request]


@dataclass(slots=True)
class Inclinometer:
    """A dual-axis inclinometer that sends a pair of lines each period."""

    x_deg: float = 0.0
    y_deg: float = 0.0
    period_s: float = 0.05
    gap_s: float = 0.0  # from the line of X to that of Y
    baudrate: float = math.inf
    silent: bool = False
    noise: bool = False
    without_y: bool = False
    halves: bool = False  # the first half of each line is lost
    next_s: float = 0.0
    dice: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))

    def __call__(self, data: bytes, now_s: float) -> list[Due]:
        """The pair, when it is time; what is sent to it does not matter."""
        if self.noise:
            return [(now_s, self.dice.bytes(8))]
        if self.silent or now_s < self.next_s:
            return []
        self.next_s = now_s + self.period_s - (now_s - self.next_s) % self.period_s  # late: skip, but do not drift
        lines = [b"%s=%+07.3f\r\n" % item for item in ((b"X", self.x_deg), (b"Y", self.y_deg))]
        if self.halves:
            lines = [line[len(line) // 2 :] for line in lines]
        line_s = 121 / self.baudrate  # 11 characters, 8E1
        due = [(now_s + line_s, lines[0]), (now_s + 2 * line_s + self.gap_s, lines[1])]
        return due[:1] if self.without_y else due


class PtyLine:
    """A serial line to a device, at a path that stays the same while the pty behind it changes at each plugging."""

    def __init__(self, path: Path, device: Callable[[bytes, float], list[Due]]) -> None:
        self.path = path
        self.plugged = True  # switched at any time, obeyed within TURN_S
        self._device = device
        self._ends: tuple[int, int] | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="virtual line", daemon=True)

    def open(self) -> None:
        """Plug it in."""
        self._plug()
        self._thread.start()

    def close(self) -> None:
        """Unplug it for good."""
        self._closing.set()
        self._thread.join()
        self._unplug()

    @property
    def is_plugged(self) -> bool:
        """There is something at `path`."""
        return self._ends is not None

    def _plug(self) -> None:
        master, slave = pty.openpty()
        tty.setraw(slave)
        os.set_blocking(master, False)
        self.path.symlink_to(os.ttyname(slave))
        self._ends = master, slave

    def _forget_speed(self) -> None:
        """A pty has neither speed nor parity, and refuses settings that change nothing: an opener must find others."""
        if self._ends:
            attributes = termios.tcgetattr(self._ends[1])
            attributes[4] = attributes[5] = termios.B50
            termios.tcsetattr(self._ends[1], termios.TCSANOW, attributes)

    def _unplug(self) -> None:
        if self._ends:
            self.path.unlink()
            for end in self._ends:
                os.close(end)
            self._ends = None

    def _run(self) -> None:
        pending: list[Due] = []
        forget_s = 0.0
        while not self._closing.is_set():
            if self.plugged != self.is_plugged:
                self._plug() if self.plugged else self._unplug()
                pending.clear()
            if self._ends is None:
                time.sleep(TURN_S)
                continue
            master = self._ends[0]
            now_s = time.monotonic()
            if now_s > forget_s:
                self._forget_speed()
                forget_s = now_s + FORGET_S
            wait_s = min(max(pending[0][0] - now_s, 0.0), TURN_S) if pending else TURN_S
            data = b""
            if select.select([master], [], [], wait_s)[0]:
                with suppress(OSError):
                    data = os.read(master, 4096)
            now_s = time.monotonic()
            for due in self._device(data, now_s):
                heapq.heappush(pending, due)
            while pending and pending[0][0] <= now_s:
                try:
                    os.write(master, heapq.heappop(pending)[1])
                except OSError as error:
                    if error.errno != errno.EAGAIN:  # nobody reads: a real line would lose the bytes, too
                        raise
                    termios.tcflush(master, termios.TCIOFLUSH)


class TcpServer:
    """A Modbus TCP server, or a gateway when it has several slaves."""

    def __init__(self, slaves: Sequence[Slave], port: int = 0, host: str = "127.0.0.1") -> None:
        self.slaves = slaves
        self.hangs_up = False  # accepts and closes at once
        self.connections = 0
        self._listener = socket.create_server((host, port))
        self.port: int = self._listener.getsockname()[1]
        self._dice = np.random.default_rng(4)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="virtual modbus", daemon=True)

    def open(self) -> None:
        """Start to accept connections."""
        self._thread.start()

    def close(self) -> None:
        """Close all connections."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        pending: list[tuple[float, int, socket.socket, bytes]] = []
        order = itertools.count()  # so that equal times never compare sockets
        with self._listener, selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._closing.is_set():
                for key, _ in selector.select(TURN_S):
                    peer = key.fileobj
                    if peer is self._listener:
                        self._accept(selector)
                    elif isinstance(peer, socket.socket):
                        due = self._receive(peer, selector)
                        for due_s, answer in due:
                            heapq.heappush(pending, (due_s, next(order), peer, answer))
                while pending and pending[0][0] <= time.monotonic():
                    _, _, peer, answer = heapq.heappop(pending)
                    with suppress(OSError):  # the client has gone
                        peer.sendall(answer)
            for key in list(selector.get_map().values()):
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        peer, _ = self._listener.accept()
        self.connections += 1
        if self.hangs_up:
            peer.close()
            return
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(peer, selectors.EVENT_READ)

    def _receive(self, peer: socket.socket, selector: selectors.BaseSelector) -> list[Due]:
        """Answers to what a client sent; one request at a time is all that the protocol allows to most devices."""
        try:
            frame = b"" if self.hangs_up else peer.recv(260)
        except OSError:
            frame = b""
        if len(frame) <= _MBAP.size:
            selector.unregister(peer)
            peer.close()
            return []
        transaction, protocol, _, unit_id = _MBAP.unpack_from(frame)
        slave = next((slave for slave in self.slaves if slave.unit_id == unit_id), None)
        if slave is None or slave.behaviour is Behaviour.SILENT:
            return []
        slave.requests += 1
        if slave.behaviour is Behaviour.ECHO:
            return [(0.0, frame)]
        if slave.behaviour is Behaviour.NOISE:
            return [(0.0, self._dice.bytes(40))]
        answer = slave.answer(frame[_MBAP.size :])
        if slave.behaviour is Behaviour.WRONG_TRANSACTION:
            transaction = 0
        if slave.behaviour is Behaviour.WRONG_UNIT:
            unit_id += 1
        delay_s = slave.delay_s if slave.behaviour is Behaviour.LATE else 0.0
        return [(time.monotonic() + delay_s, _MBAP.pack(transaction, protocol, len(answer) + 1, unit_id) + answer)]
