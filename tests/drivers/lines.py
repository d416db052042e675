"""Lines with virtual instruments on them: real sockets and ptys, and patience instead of time limits."""

import math
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from controller.schema import RtuLine, TcpLine
from drivers.modbus import ModbusLine, Unit
from drivers.profile import ConditionerProfile, InclinometerProfile, ModbusProfile, Register
from drivers.serial_line import SerialSensor
from drivers.virtual.instruments import Due, PtyLine, RtuBus, Slave, TcpServer
from tests.machines import ROOT

DEVICES = ROOT / "config" / "devices"
ENDS_S = 15.0  # how long anything may take that only has to happen
FORCE = Register(address=7, type="int32", scale=0.5, unit="N", range=(-5000.0, 5000.0))


def until(condition: Callable[[], object], what: str = "it") -> None:
    end_s = time.monotonic() + ENDS_S
    while not condition():
        assert time.monotonic() < end_s, f"{what} never happened"
        time.sleep(0.002)


def transmitter(**changes: object) -> ModbusProfile:
    """A Modbus transmitter with a 32 bit number of half newtons at register 7."""
    plain = ModbusProfile(name="cell", source="test", verified=False, slowest_answer_s=0.2, channels={"force": FORCE})
    return msgspec.structs.replace(plain, **changes)


def unit(unit_id: int = 1, **changes: object) -> Unit:
    return Unit(unit_id, transmitter(**changes))


def holding(value: int, unit_id: int = 1) -> Slave:
    """A slave with a 32 bit number at register 7."""
    high, low = struct.unpack(">HH", struct.pack(">i", value))
    return Slave(unit_id, {6: 0, 7: high, 8: low, 9: 0x7777})


@contextmanager
def tcp(
    slaves: Sequence[Slave], devices: Mapping[str, Unit], timeout_s: float = 0.1, period_s: float = 0.005
) -> Iterator[tuple[ModbusLine, TcpServer]]:
    server = TcpServer(slaves)
    driver = ModbusLine(TcpLine(host="127.0.0.1", port=server.port, timeout_s=timeout_s), devices, period_s)
    with _plugged(server, driver):
        yield driver, server


@contextmanager
def rtu(
    folder: Path,
    slaves: Sequence[Slave],
    devices: Mapping[str, Unit],
    timeout_s: float = 0.1,
    period_s: float = 0.001,
    baudrate: float = math.inf,
) -> Iterator[tuple[ModbusLine, PtyLine]]:
    bus = PtyLine(folder / "usb-converter", RtuBus(slaves, baudrate))
    driver = ModbusLine(RtuLine(path=str(bus.path), timeout_s=timeout_s), devices, period_s)
    with _plugged(bus, driver):
        yield driver, bus


@contextmanager
def instrument(
    folder: Path, device: Callable[[bytes, float], list[Due]], profile: ConditionerProfile | InclinometerProfile
) -> Iterator[tuple[SerialSensor, PtyLine]]:
    line = PtyLine(folder / "usb-instrument", device)
    driver = SerialSensor(str(line.path), profile)
    with _plugged(line, driver):
        yield driver, line


@contextmanager
def _plugged(line: TcpServer | PtyLine, driver: ModbusLine | SerialSensor) -> Iterator[None]:
    line.open()
    driver.open()
    try:
        yield
    finally:
        driver.close()
        line.close()
