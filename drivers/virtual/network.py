"""What goes wrong between the virtual CX5130 and its clients; every fault is switched while the server runs.

    Network(server)     takes over the server's three hooks: connections, received bytes, answers
    latency_s ...       standing conditions: hold until they are changed back
    lost_answers ...    how many of the next connections, requests or answers a fault hits: 3 is the next three,
                        math.inf all until it is set back to 0
    cut() ...           things that happen once

All of it belongs to the event loop in which the server runs: switch it from there. Faults of the PLC itself (ADS
error codes, ADS states, online change, the content of the blocks) are those of `ams.Device`.
"""

import asyncio
import math
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from drivers.virtual import ams

_HEADER = struct.Struct("<HI6sH6sHHHIII")  # AMS/TCP header and AMS header
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST


@dataclass(slots=True, eq=False)
class Network:
    """Cables, switches and the TCP/IP of the far side; without a fault switched on it changes nothing.

    Only answers to the AMS commands in `commands` are hit by the faults of answers; empty means all of them. Of
    several faults that are due for one answer the first in the order below happens.
    """

    server: ams.Server
    seed: int = 0  # of jitter and garbage

    latency_s: float = 0.0  # of every answer
    jitter_s: float = 0.0  # up to so much more, evenly spread; answers keep their order
    lose_every: int = 0  # every n-th answer is lost; 0: none
    piece_bytes: int = 0  # answers travel in pieces of this size ...
    piece_pause_s: float = 0.0  # ... with this time between two pieces; 0 bytes: whole
    gather: int = 1  # so many answers travel together, as soon as the last of them is there

    closed_connections: float = 0.0  # closed as soon as they are accepted, as TwinCAT does without a route

    ignored_requests: float = 0.0  # received, never executed, never answered
    cut_requests: float = 0.0  # the connection is reset before they are executed

    commands: frozenset[ams.Command] = frozenset()
    cut_answers: float = 0.0  # executed, then the connection is reset
    lost_answers: float = 0.0  # executed, no answer
    late_answers: float = 0.0  # executed, answered `late_s` later; what follows waits behind it
    late_s: float = 0.1
    truncated_answers: float = 0.0  # the first half (header complete), then the connection is closed
    garbled_answers: float = 0.0  # as many random bytes instead
    noisy_answers: float = 0.0  # random bytes before the answer
    wrong_ids: float = 0.0  # answered under the next invoke id
    stale_answers: float = 0.0  # data of the previous answer to the same command, under the present invoke id
    repeated_answers: float = 0.0  # the previous answer to the same command once more, then the right one
    long_answers: float = 0.0  # eight bytes more than asked for
    short_answers: float = 0.0  # eight bytes fewer than asked for, down to none

    _random: random.Random = field(init=False)
    _previous: dict[int, bytes] = field(init=False, default_factory=dict[int, bytes])  # by AMS command
    _counted: int = field(init=False, default=0)
    _gathered: list[bytes] = field(init=False, default_factory=list[bytes])
    _due_s: float = field(init=False, default=-math.inf)  # when the last piece leaves
    _unplugged: bool = field(init=False, default=False)
    _held: list[Callable[[], None]] = field(init=False, default_factory=list["Callable[[], None]"])
    _hole: list[socket.socket] = field(init=False, default_factory=list[socket.socket])

    def __post_init__(self) -> None:
        """Stand between the server and its clients."""
        self._random = random.Random(self.seed)  # noqa: S311 - repeatable faults
        self.server.deliver, self.server.admit, self.server.hear = self._deliver, self._admit, self._hear

    # -------------------------------------------------------------- happens once

    def cut(self) -> None:
        """Reset every connection, as a second client of the same host or a restarted router does."""
        for link in list(self.server.links.values()):
            _reset(link.transport)

    def unplug(self) -> None:
        """Swallow every packet: connections stay and hear nothing, a new one is never accepted nor refused.

        What clients send meanwhile is not lost: TCP delivers it after `plug_in`, as it does on a real cable.
        """
        self._unplugged = True
        for link in self.server.links.values():
            link.transport.pause_reading()
        self.server.deafen()
        # The kernel drops new connections to a listener whose queue is full.
        hole = socket.create_server(self.server.address, backlog=0)
        self._hole = [hole, *(socket.socket() for _ in range(3))]
        for client in self._hole[1:]:
            client.setblocking(False)
            client.connect_ex(self.server.address)

    async def plug_in(self) -> None:
        """End of `unplug`."""
        self._fill_hole()
        await self.server.open(*self.server.address)
        for link in self.server.links.values():
            link.transport.resume_reading()
        held, self._held = self._held, []
        for act in held:
            act()

    async def power_off(self) -> None:
        """Reset every connection and stop listening: the router is gone, its computer still answers."""
        self._fill_hole()
        self._held.clear()
        self.cut()
        await self.server.close()

    async def power_on(self) -> None:
        """End of `power_off`: listen again at the same address; the memory of the Device is what it was."""
        await self.server.open(*self.server.address)

    def _fill_hole(self) -> None:
        for part in self._hole:
            part.close()
        self._hole = []
        self._unplugged = False

    # -------------------------------------------------------------- hooks of the server

    def _admit(self, transport: asyncio.Transport) -> bool:
        self._previous.clear()
        self._gathered.clear()
        if self._hits("closed_connections"):
            transport.close()
            return False
        return True

    def _hear(self, transport: asyncio.Transport, data: bytes) -> bytes:
        if self._hits("ignored_requests"):
            return b""
        if self._hits("cut_requests"):
            _reset(transport)
            return b""
        return data

    def _deliver(self, transport: asyncio.Transport, answer: bytes) -> None:
        command, invoke = _HEADER.unpack_from(answer)[6], _HEADER.unpack_from(answer)[-1]
        previous = self._previous.get(command, answer)
        self._previous[command] = answer
        self._counted += 1
        if self.lose_every and self._counted % self.lose_every == 0:
            return
        delay_s, then = 0.0, None
        if self.commands and command not in self.commands:
            pass
        elif self._hits("cut_answers"):
            _reset(transport)
            return
        elif self._hits("lost_answers"):
            return
        elif self._hits("late_answers"):
            delay_s = self.late_s
        elif self._hits("truncated_answers"):
            answer, then = answer[: _HEADER.size + (len(answer) - _HEADER.size) // 2], transport.close
        elif self._hits("garbled_answers"):
            answer = self._random.randbytes(len(answer))
        elif self._hits("noisy_answers"):
            answer = self._random.randbytes(20) + answer
        elif self._hits("wrong_ids"):
            answer = _changed(answer, invoke=invoke + 1 & 0xFFFFFFFF)
        elif self._hits("stale_answers"):
            answer = _changed(previous, invoke=invoke)
        elif self._hits("repeated_answers"):
            answer = previous + answer
        elif self._hits("long_answers"):
            answer = _changed(answer, more=8)
        elif self._hits("short_answers"):
            answer = _changed(answer, more=-8)
        self._gathered.append(answer)
        if len(self._gathered) >= self.gather:
            data, self._gathered = b"".join(self._gathered), []
            self._send(transport, data, delay_s, then)

    # -------------------------------------------------------------- how bytes travel

    def _hits(self, fault: str) -> bool:
        """Whether a counted fault is due now; counts it down."""
        left: float = getattr(self, fault)
        if left > 0:
            setattr(self, fault, left - 1)
        return left > 0

    def _send(self, transport: asyncio.Transport, data: bytes, delay_s: float, then: Callable[[], None] | None) -> None:
        size = self.piece_bytes or len(data)
        delay_s += self.latency_s + self.jitter_s * self._random.random()
        for start in range(0, len(data), size):
            self._after(delay_s, lambda piece=data[start : start + size]: _write(transport, piece))
            delay_s += self.piece_pause_s
        if then is not None:
            self._after(delay_s, then)

    def _after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do it so much later, but not before what was to be done earlier."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if delay_s <= 0.0 and self._due_s < now_s:
            self._do(act)
            return
        self._due_s = max(now_s + delay_s, math.nextafter(self._due_s, math.inf))  # timers of one instant have no order
        loop.call_at(self._due_s, self._do, act)

    def _do(self, act: Callable[[], None]) -> None:
        if self._unplugged:
            self._held.append(act)
        else:
            act()


def _changed(answer: bytes, invoke: int | None = None, more: int = 0) -> bytes:
    """The answer with another invoke id, or with `more` bytes of data and lengths that agree with it."""
    fields = list(_HEADER.unpack_from(answer))
    data = answer[_HEADER.size :]
    if invoke is not None:
        fields[-1] = invoke
    data = data.ljust(len(data) + more, b"\0") if more > 0 else data[: max(len(data) + more, 0)]
    if more and len(data) >= 8:  # result, length, data: the answer to a read
        data = data[:4] + struct.pack("<I", len(data) - 8) + data[8:]
    fields[1], fields[8] = _HEADER.size - 6 + len(data), len(data)
    return _HEADER.pack(*fields) + data


def _write(transport: asyncio.Transport, data: bytes) -> None:
    if not transport.is_closing():
        transport.write(data)


def _reset(transport: asyncio.Transport) -> None:
    """Close the connection with RST, whatever is still under way."""
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
