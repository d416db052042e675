"""Modbus instruments, TCP or RTU: one thread a line with an event loop of its own and a latest-value mailbox.

    loop:    read(device, channel)  ◄──one frozen reading────  thread: ask, check, decode, one device after the other

The asynchronous client of pymodbus, because its synchronous serial one polls in sleeps of 1 ms: 2.4 ms a request on a
pty, where the asynchronous one takes 0.22 ms (TCP: 0.04 and 0.07 ms). pymodbus dictates the rest (all of it measured):
it accepts any function, any count and transaction id 0, so every answer is checked here; its retry of an RTU request
leaves the line one answer out of step for ever, so the client retries nothing and a line with a time-out is drained;
its reconnect hammers a server that accepts and closes, so the supervisor is here.
A device is read in one request. A late answer of the same device is therefore never taken for another channel.
"""

import asyncio
import logging
import math
import struct
import termios
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from pymodbus.client import AsyncModbusSerialClient, AsyncModbusTcpClient
from pymodbus.exceptions import ModbusException
from pymodbus.pdu import ModbusPDU

from controller.records import Quality
from controller.schema import RtuLine, TcpLine
from drivers.profile import ModbusProfile, block
from drivers.reading import Reading, newest
from drivers.registers import decode

log = logging.getLogger(__name__)
logging.getLogger("pymodbus").setLevel(logging.CRITICAL)  # it reports every time-out; here only changes are

FIRST_PAUSE_S = 1.0  # before the line is opened again, doubled up to ...
LONGEST_PAUSE_S = 8.0
STABLE_S = 5.0  # a line that lived this long starts again at FIRST_PAUSE_S
SILENT_IN_ROW = 2  # failures in a row until a device waits, if it has company on the line
SHARE_OF_LINE = 0.05  # of the time of the line that a silent device may cost the others
REFUSED_PAUSE_S = 2.0  # after an answer that only another configuration can change
HEARD_LIMIT = 1024  # bytes kept to compare an answer with, and to say what came instead

_REFUSALS = {
    1: "does not know function {profile.function}: the profile is of another kind of device",
    2: "has no registers {first} to {last}: the profile is of another kind or version of device",
    3: "refuses {count} registers in one request: the profile is of another kind of device",
}
_ECHO = "sends back what is sent to it: switch off the echo of the adapter"
_BUSY = {5: "works on an earlier request", 6: "is busy", 10: "has no way to the unit", 11: "gets no answer of the unit"}


class Unit(NamedTuple):
    """A device of a line: its address there and what it is."""

    id: int
    profile: ModbusProfile


class LineError(Exception):
    """Why the line is of no further use: one plain sentence for the operator."""


class _NoAnswerError(Exception):
    """Nothing that is an answer to the request."""


class _RefusedError(Exception):
    """The device answered with an exception code that stands until someone changes the configuration."""


class _BusyError(Exception):
    """The device answered that it cannot now."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What became of the requests to one device."""

    valid: int = 0
    failed: int = 0  # not answered in time, or with something that is no answer
    refused: int = 0  # exception codes


@dataclass(slots=True)
class _Device:
    """Written by the thread of the line only; readings and counters are replaced as a whole."""

    name: str
    unit: Unit
    readings: dict[str, Reading]
    counters: Counters = field(default_factory=Counters)
    exchange_s: float = math.nan  # duration of the last valid one
    failed_in_row: int = 0
    resume_s: float = 0.0  # monotonic time before which it is left alone
    checked: bool = False  # its expected registers were seen on this connection


class ModbusLine:
    """All devices of one line. No call waits for the line, except `close`, for at most 1 s."""

    def __init__(self, line: TcpLine | RtuLine, devices: Mapping[str, Unit], period_s: float) -> None:
        """Prepare to read every device each period_s, or as fast as the line allows; `open` starts it.

        Raises:
            ValueError: two devices of a line have the same unit id, or there are none.
        """
        if not devices or len({unit.id for unit in devices.values()}) < len(devices):
            raise ValueError("a line needs devices, each with an address of its own")
        self._line = line
        self._period_s = period_s
        self._where = line.path if isinstance(line, RtuLine) else f"{line.host}:{line.port}"
        self._devices = {
            name: _Device(name, unit, {key: Reading(unit=r.unit) for key, r in unit.profile.channels.items()})
            for name, unit in devices.items()
        }
        self._message = "not connected yet"
        self._connects = 0
        self._sent = b""
        self._heard = bytearray()  # since the last request
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"modbus {self._where}", daemon=True)

    @property
    def message(self) -> str:
        """Why the line is not open, for the operator; empty when it is."""
        return self._message

    @property
    def connects(self) -> int:
        """Attempts to open the line so far."""
        return self._connects

    def open(self) -> None:
        """Start connecting in the background."""
        self._thread.start()

    def read(self, device: str, channel: str) -> Reading:
        """The newest reading of a channel; KeyError for names that the line was not made with."""
        return self._devices[device].readings[channel]

    def counters(self, device: str) -> Counters:
        """What became of the requests to a device so far."""
        return self._devices[device].counters

    def exchange_s(self, device: str) -> float:
        """Duration of the exchange that brought the newest readings of a device, s; NaN before the first."""
        return self._devices[device].exchange_s

    def close(self) -> None:
        """Close the line; returns within 1 s. Also for a line that was never opened."""
        if self._thread.is_alive():
            with suppress(RuntimeError):  # the loop has just ended by itself
                self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(timeout=0.9)
        elif not self._loop.is_closed():
            self._loop.close()

    # -------------------------------------------------------------- the line's own thread

    def _run(self) -> None:
        self._loop.set_exception_handler(lambda _, context: log.debug("modbus %s: %s", self._where, context))
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        supervisor = asyncio.create_task(self._supervise())
        await self._closing.wait()
        while not supervisor.done():  # again: wait_for in Python 3.11 loses a cancellation that meets its result
            supervisor.cancel()
            await asyncio.wait([supervisor], timeout=0.02)
        self._down("closed")

    async def _supervise(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            begin_s = time.monotonic()
            try:
                await self._session()
            except LineError as reason:
                self._down(str(reason))
            except Exception:  # the last resort: a line that tries again is better than a dead thread
                log.exception("modbus %s: unexpected error", self._where)
                self._down(f"unexpected error on {self._where}, see the log")
            if time.monotonic() - begin_s > STABLE_S:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2.0 * pause_s, LONGEST_PAUSE_S)

    async def _session(self) -> None:
        """Open the line and read until it breaks."""
        self._connects += 1
        client = self._client()
        try:
            if not await client.connect():
                raise LineError(f"{self._where} cannot be opened: switched off, unplugged, in use, or a wrong address")
            self._message = ""
            for device in self._devices.values():
                device.checked, device.resume_s = False, 0.0
            tick_s = time.monotonic()
            while client.connected:
                for device in self._devices.values():
                    if client.connected and device.resume_s <= time.monotonic():
                        await self._poll(client, device)
                now_s = time.monotonic()
                tick_s = max(tick_s + self._period_s, now_s)  # late: skip, never catch up
                await asyncio.sleep(tick_s - now_s)
            raise LineError(f"{self._where} closed the connection")
        except termios.error as error:  # pymodbus lets it pass
            raise LineError(f"{self._where} refuses this speed, parity or number of stop bits ({error})") from error
        finally:
            client.close()

    def _client(self) -> AsyncModbusTcpClient | AsyncModbusSerialClient:
        line = self._line
        if isinstance(line, TcpLine):
            return AsyncModbusTcpClient(
                line.host,
                port=line.port,
                timeout=line.timeout_s,
                retries=0,
                reconnect_delay=0,
                trace_packet=self._trace,
            )
        return AsyncModbusSerialClient(
            line.path, baudrate=line.baudrate, parity=line.parity, stopbits=line.stopbits, timeout=line.timeout_s,
            retries=0, reconnect_delay=0, trace_packet=self._trace,
        )  # fmt: skip

    def _trace(self, sending: bool, data: bytes) -> bytes:
        """See the bytes pass, to be able to say what came instead of an answer."""
        if sending:
            self._sent = data
            self._heard.clear()
        elif len(self._heard) < HEARD_LIMIT:
            self._heard += data
        return data

    async def _poll(self, client: AsyncModbusTcpClient | AsyncModbusSerialClient, device: _Device) -> None:
        """One exchange with one device, and the consequences."""
        unit, count = device.unit, device.counters
        asked_s = time.monotonic()
        try:
            if not device.checked:
                await self._check(client, unit)
                device.checked = True
                asked_s = time.monotonic()
            first, length = block(unit.profile)
            fresh = decode(unit.profile, await self._ask(client, unit, first, length), asked_s)
        except _NoAnswerError as reason:
            device.counters = Counters(count.valid, count.failed + 1, count.refused)
            self._report(device, str(reason), Quality.HELD)
            device.failed_in_row += 1
            device.checked = False  # perhaps it was exchanged for another one
            await self._drain(unit.profile)
            if device.failed_in_row >= SILENT_IN_ROW and len(self._devices) > 1:
                now_s = time.monotonic()
                device.resume_s = now_s + (now_s - asked_s) / SHARE_OF_LINE
            return
        except _RefusedError as reason:
            device.counters = Counters(count.valid, count.failed, count.refused + 1)
            device.resume_s = time.monotonic() + REFUSED_PAUSE_S
            self._report(device, str(reason), Quality.BAD)
        except _BusyError as reason:
            device.counters = Counters(count.valid, count.failed, count.refused + 1)
            self._report(device, str(reason), Quality.HELD)
        else:
            device.counters = Counters(count.valid + 1, count.failed, count.refused)
            device.exchange_s = time.monotonic() - asked_s
            device.readings = {name: newest(device.readings[name], reading) for name, reading in fresh.items()}
        device.failed_in_row = 0

    async def _check(self, client: AsyncModbusTcpClient | AsyncModbusSerialClient, unit: Unit) -> None:
        for expected in unit.profile.expect:
            (found,) = await self._ask(client, unit, expected.address, 1)
            if found != expected.value:
                raise _RefusedError(
                    f"{self._where}, unit {unit.id}: register {expected.address} holds {found}, "
                    f"expected {expected.value}: {expected.message}"
                )

    async def _ask(
        self, client: AsyncModbusTcpClient | AsyncModbusSerialClient, unit: Unit, first: int, count: int
    ) -> list[int]:
        """The registers asked for, from an answer that is one in every respect."""
        who = f"{self._where}, unit {unit.id}:"
        read = client.read_holding_registers if unit.profile.function == 3 else client.read_input_registers
        try:
            answer = await read(first, count=count, device_id=unit.id)
        except ModbusException:
            raise _NoAnswerError(f"{who} {self._instead()}") from None
        problem = self._mismatch(answer, unit, client.ctx.next_tid)
        if not problem and answer.isError():
            code = answer.exception_code
            if code in _REFUSALS:
                text = _REFUSALS[code].format(profile=unit.profile, first=first, last=first + count - 1, count=count)
                raise _RefusedError(f"{who} {text}")
            raise _BusyError(f"{who} {_BUSY.get(code, 'answers that it failed')} (exception {code})")
        registers = list(answer.registers)
        if not problem and len(registers) != count:
            problem = f"answered with {len(registers)} registers instead of {count}"
        # pymodbus reads on behind a wrong count of bytes: the answer has to have come as it would be written
        plain = struct.pack(f">BBB{len(registers)}H", unit.id, unit.profile.function, 2 * len(registers), *registers)
        if isinstance(self._line, TcpLine):
            plain = struct.pack(">HHH", answer.transaction_id, 0, len(plain)) + plain
        if not problem and plain not in self._heard:
            problem = "answered with a wrong count of bytes"
        if problem:
            raise _NoAnswerError(f"{who} {problem}")
        return registers

    def _mismatch(self, answer: ModbusPDU, unit: Unit, transaction: int) -> str:
        function = answer.function_code & 0x7F
        if self._heard.startswith(self._sent):
            return _ECHO
        if function != unit.profile.function:
            return f"answered function {function} instead of {unit.profile.function}"
        if answer.dev_id != unit.id:
            return f"unit {answer.dev_id} answered"
        if answer.transaction_id != transaction:  # 0 on a serial line
            return f"answered transaction {answer.transaction_id} instead of {transaction}"
        return ""

    def _instead(self) -> str:
        if not self._heard:
            return f"no answer within {1e3 * self._line.timeout_s:.0f} ms"
        if self._heard.startswith(self._sent):
            return _ECHO
        return "sends bytes that are no answer: noise, another speed or parity, or two masters"

    async def _drain(self, profile: ModbusProfile) -> None:
        """Let a late answer pass, which RTU could not tell from the next one; on TCP the transaction id tells."""
        if isinstance(self._line, RtuLine):
            await asyncio.sleep(profile.slowest_answer_s)

    def _report(self, device: _Device, message: str, quality: Quality) -> None:
        """Keep the values of a device, with the reason why there are no new ones."""
        if not self._closing.is_set() and all(reading.message != message for reading in device.readings.values()):
            log.warning("modbus %s: %s", device.name, message)
        device.readings = {
            name: reading.bad(message) if quality is Quality.BAD else reading.held(message)
            for name, reading in device.readings.items()
        }

    def _down(self, message: str) -> None:
        self._message = message
        for device in self._devices.values():
            self._report(device, message, Quality.HELD)
