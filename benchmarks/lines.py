"""Sensors on Modbus and serial lines: values a second, and their age where they are read, beside what the line allows.

    python -m benchmarks.lines [SECONDS]

The instruments live in a process of their own and send their clock as the measured value, so that the age is that of
the measurement, whatever the driver says of it. Their answers take the time of the line. The limits come from the bits
on the line: an exchange takes `bits / baudrate`, a value is one exchange old when it arrives and is replaced one round
of the line later, so at a random moment exchange + round / 2. With Modbus TCP the exchange of a bare socket with the
same server takes the place of the bits.
"""

import itertools
import math
import multiprocessing
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from controller.records import Quality
from controller.schema import RtuLine, TcpLine
from drivers.modbus import ModbusLine, Unit
from drivers.profile import ConditionerProfile, InclinometerProfile, ModbusProfile, Register, load
from drivers.reading import Reading
from drivers.serial_line import PERIOD_S as CONDITIONER_PERIOD_S
from drivers.serial_line import SerialSensor
from drivers.virtual.instruments import Conditioner, Inclinometer, PtyLine, RtuBus, Slave, TcpServer

DEVICES = Path(__file__).parents[1] / "config" / "devices"
LOOK_S = 0.002  # mean time between two looks of the reader
TICK_S = 0.01  # of the control loop
FAST_S = 1e-6  # as fast as the line allows
CHARACTERS = 8 + 9 + 7  # request, answer with two registers, two pauses of 3.5
CHARACTER_BITS = 11  # 8N2, as the Modbus standard has it for a line without parity, which a pty refuses
PATIENCE_S = 10.0  # until the first values
PAIR_BITS = 22 * 11  # an inclinometer's X and Y at 8E1
VALUE_BITS = (10 + 9) * 10  # `!001:SYS?` and `+123.456`, each with its end of line, at 8N1
CLOCK = ModbusProfile(
    name="clock", source="this benchmark", verified=False, slowest_answer_s=0.2,
    channels={"clock": Register(address=7, type="int32", scale=1e-6, unit="s", range=(0.0, 2000.0))},
)  # fmt: skip


# ---------------------------------------------------------------- the instruments' process


class Clock(Slave):
    """A slave whose 32 bit number is the microseconds since start_s at the moment of the request."""

    start_s = 0.0

    def answer(self, request: bytes) -> bytes:
        self.registers[7], self.registers[8] = divmod(round(1e6 * (time.monotonic() - self.start_s)), 1 << 16)
        return super().answer(request)


def instruments(kind: str, path: Path, baudrate: float, units: int, start_s: float, bound: Connection) -> None:
    """Serve one line for ever; tells the TCP port, or 0."""
    Clock.start_s = start_s
    slaves = [Clock(unit, {7: 0, 8: 0}) for unit in range(1, units + 1)]
    conditioner, inclinometer = Conditioner(baudrate=baudrate), Inclinometer(baudrate=baudrate)
    inclinometer.period_s = PAIR_BITS / baudrate

    def weigh(data: bytes, now_s: float) -> list[tuple[float, bytes]]:
        conditioner.value = now_s - start_s
        return conditioner(data, now_s)

    def tilt(data: bytes, now_s: float) -> list[tuple[float, bytes]]:
        inclinometer.x_deg = inclinometer.y_deg = now_s - start_s
        return inclinometer(data, now_s)

    if kind == "tcp":
        server = TcpServer(slaves)
        server.open()
        bound.send(server.port)
    else:
        bus = RtuBus(slaves, baudrate, CHARACTER_BITS)
        PtyLine(path, {"rtu": bus, "conditioner": weigh, "inclinometer": tilt}[kind]).open()
        bound.send(0)
    threading.Event().wait()


@contextmanager
def served(kind: str, path: Path, baudrate: float, units: int, start_s: float) -> Iterator[int]:
    """The process with one line; gives its TCP port."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=instruments, args=(kind, path, baudrate, units, start_s, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()
        ours.close()


# ---------------------------------------------------------------- the readers


class Found(NamedTuple):
    """What a reader saw."""

    rate: float  # values a second, of all devices of the line
    age_s: np.ndarray  # of the measurement, at each look
    believed_s: np.ndarray  # what the driver says of it
    held: int  # looks at something else than a good value


def look(seconds: float, start_s: float, read: Callable[[], list[tuple[float, Reading]]]) -> Found:
    """Look at random times; `read` gives the instrument's clock and the reading, for each device."""
    dice = np.random.default_rng(1)
    end_s = time.monotonic() + PATIENCE_S
    while messages := [reading.message for _, reading in read() if reading.quality is not Quality.GOOD]:
        if time.monotonic() > end_s:
            sys.exit("\n".join(messages))
        time.sleep(0.01)
    time.sleep(0.5)  # until it runs evenly
    stamps: set[tuple[int, float]] = set()
    age_s: list[float] = []
    believed_s: list[float] = []
    held = 0
    begin_s = time.monotonic()
    while (now_s := time.monotonic()) < begin_s + seconds:
        for k, (clock_s, reading) in enumerate(read()):
            stamps.add((k, reading.stamp_s))
            age_s.append(now_s - start_s - clock_s)
            believed_s.append(reading.age_s(now_s))
            held += reading.quality is not Quality.GOOD
        time.sleep(dice.uniform(0.0, 2.0 * LOOK_S))
    return Found(len(stamps) / (now_s - begin_s), np.array(age_s), np.array(believed_s), held)


def modbus(seconds: float, start_s: float, line: RtuLine | TcpLine, units: int, period_s: float) -> Found:
    driver = ModbusLine(line, {str(k): Unit(k, CLOCK) for k in range(1, units + 1)}, period_s)
    driver.open()
    try:

        def read() -> list[tuple[float, Reading]]:
            readings = [driver.read(str(k), "clock") for k in range(1, units + 1)]
            return [(reading.value, reading) for reading in readings]

        def count() -> int:
            return sum(driver.counters(str(k)).valid for k in range(1, units + 1))

        look(0.1, start_s, read)
        before, begin_s = count(), time.monotonic()
        found = look(seconds, start_s, read)
        # More values may come than looks; the driver counts them all.
        return found._replace(rate=(count() - before) / (time.monotonic() - begin_s))
    finally:
        driver.close()


def serial(
    seconds: float, start_s: float, path: str, profile: ConditionerProfile | InclinometerProfile, channel: str
) -> Found:
    driver = SerialSensor(path, profile)
    driver.open()
    try:

        def read() -> list[tuple[float, Reading]]:
            reading = driver.read(channel)
            return [(reading.value / profile.scale, reading)]

        return look(seconds, start_s, read)
    finally:
        driver.close()


def bare(seconds: float, port: int) -> float:
    """Median duration of the same exchange over a socket, s."""
    times_s: list[float] = []
    request = struct.pack(">HHHBBHH", 1, 0, 6, 1, 3, 7, 2)
    with socket.create_connection(("127.0.0.1", port)) as tcp:
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end_s = time.monotonic() + seconds
        while (begin_s := time.monotonic()) < end_s:
            tcp.sendall(request)
            assert len(tcp.recv(64)) == 13
            times_s.append(time.monotonic() - begin_s)
    return float(np.median(times_s))


# ---------------------------------------------------------------- the table


def show(name: str, found: Found, exchange_s: float, round_s: float, units: int) -> None:
    limit, limit_age_s = units / round_s, exchange_s + round_s / 2
    p50_s, p99_s = np.quantile(found.age_s, (0.5, 0.99))
    hidden_s = np.median(found.age_s - found.believed_s)
    print(
        f"{name:<42} {found.rate:8.1f} {limit:8.1f} {found.rate / limit:6.2f}   "
        f"{1e3 * p50_s:7.2f} {1e3 * p99_s:7.2f} {1e3 * limit_age_s:7.2f} {p50_s / limit_age_s:6.2f}   "
        f"{1e3 * hidden_s:7.2f} {found.held:5d}",
        flush=True,
    )


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    print(
        f"{'':<42} {'values/s':>8} {'limit':>8} {'ratio':>6}   {'age ms':>7} {'p99':>7} {'limit':>7} {'ratio':>6}   "
        f"{'hidden':>7} {'held':>5}"
    )
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pkm-bench-") as name:
        paths = (Path(name) / f"usb-{k}" for k in itertools.count(1))
        for baudrate, units in itertools.product((9600, 38400, 115200), (1, 3)):
            path, exchange_s = next(paths), CHARACTERS * CHARACTER_BITS / baudrate
            with served("rtu", path, baudrate, units, start_s):
                found = modbus(seconds, start_s, RtuLine(path=str(path), baudrate=baudrate, stopbits=2), units, FAST_S)
            show(f"Modbus RTU {baudrate} 8N2, devices: {units}", found, exchange_s, units * exchange_s, units)
        with served("tcp", next(paths), math.inf, 1, start_s) as port:
            exchange_s = bare(seconds / 5, port)
            line = TcpLine(host="127.0.0.1", port=port)
            show("Modbus TCP, every tick", modbus(seconds, start_s, line, 1, TICK_S), exchange_s, TICK_S, 1)
            found = modbus(seconds, start_s, line, 1, FAST_S)
            show("Modbus TCP, as fast as it goes", found, exchange_s, exchange_s, 1)
        for kind, file, bits, shortest_s, channel in (
            ("conditioner", "dscusb", VALUE_BITS, CONDITIONER_PERIOD_S, "value"),
            ("inclinometer", "ags-inclinometer", PAIR_BITS, 0.0, "y"),
        ):
            profile, path = load(DEVICES / f"{file}.toml"), next(paths)
            assert isinstance(profile, ConditionerProfile | InclinometerProfile)
            exchange_s = bits / profile.line.baudrate
            clock_s = time.monotonic()  # anew: an inclinometer's clock ends at 90 degrees
            with served(kind, path, profile.line.baudrate, 1, clock_s):
                found = serial(seconds, clock_s, str(path), profile, channel)
            show(f"{file} {profile.line.baudrate}", found, exchange_s, max(exchange_s, shortest_s), 1)
    print("limit: from the bits on the line (Modbus TCP: from a bare socket; conditioner: values from its 10 ms)")
    print(
        "hidden: median of what the driver's time stamp leaves out of the age, ms; held: looks that found no good value"
    )


if __name__ == "__main__":
    main()
