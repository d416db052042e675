"""The sensors of the virtual cell: what the plant really does, through terminals and instruments, as a cabinet does.

    plant ──► true quantities ──► Input: electrical value, counts, status bits ──► status block of the CX5130
                              └─► registers, lines of text ──► virtual instruments on TCP, ptys

The true calibration of a sensor is that of the site file, unless a fault changes it while the cell runs.
"""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeAlias

import numpy as np

from controller import schema
from controller.errors import ConfigurationError
from drivers.exchange import INPUTS, InputStatus
from drivers.fitting import Fitted, Fittings, address
from drivers.profile import (
    BridgeTerminalProfile,
    ConditionerProfile,
    CurrentTerminalProfile,
    InclinometerProfile,
    ModbusProfile,
    TerminalProfile,
)
from drivers.registers import encode as registers_of
from drivers.terminal import encode as counts_of
from drivers.virtual.instruments import Conditioner, Inclinometer, PtyLine, RtuBus, Slave, TcpServer

Quantities: TypeAlias = dict[str, float]  # by name of sensor, in its unit


class InputFault(Enum):
    """What can be wrong at an analogue input; the value says it."""

    NONE = "none"
    WIRE_BREAK = "wire-break"
    SHORT_CIRCUIT = "short-circuit"
    OVERRANGE = "overrange"
    INVALID = "invalid"
    CALIBRATING = "calibrating"
    NO_DATA = "no-data"


_SAID = {
    InputFault.INVALID: InputStatus.INVALID,
    InputFault.CALIBRATING: InputStatus.CALIBRATING,
    InputFault.NO_DATA: InputStatus.NO_DATA,
}


@dataclass(slots=True)
class Input:
    """One input of an analogue terminal."""

    profile: TerminalProfile
    fault: InputFault = InputFault.NONE
    _shown: tuple[int, int] = (0, 0)

    def show(self, value: float) -> tuple[int, int]:
        """Raw value and status while `value` (A or V/V) stands at the input."""
        match self.fault:
            case InputFault.INVALID | InputFault.CALIBRATING | InputFault.NO_DATA:  # the last value stays
                return self._shown[0], int(_SAID[self.fault])
            case InputFault.NONE:
                shown = counts_of(self.profile, value)
            case _:
                shown = self._broken()
        self._shown = shown
        return shown

    def _broken(self) -> tuple[int, int]:
        if isinstance(self.profile, CurrentTerminalProfile):
            current_a = {InputFault.WIRE_BREAK: 0.0, InputFault.SHORT_CIRCUIT: 0.025}.get(self.fault, 0.0215)
            return counts_of(self.profile, current_a)
        sign = -1.0 if self.fault is InputFault.SHORT_CIRCUIT else 1.0  # an open bridge floats to one end
        raw, status = counts_of(self.profile, sign * 2.0 * self.profile.range_v_v)
        wires = self.fault is not InputFault.OVERRANGE
        return raw, int(status | InputStatus.ERROR * wires)


@dataclass(slots=True)
class Sensing:
    """All sensors of a cell; `show` is called after the plant has moved."""

    fittings: Fittings
    inputs: dict[str, Input] = field(default_factory=dict[str, Input])  # by sensor
    slaves: dict[str, Slave] = field(default_factory=dict[str, Slave])  # by device
    conditioners: dict[str, Conditioner] = field(default_factory=dict[str, Conditioner])
    inclinometers: dict[str, Inclinometer] = field(default_factory=dict[str, Inclinometer])
    lines: dict[str, PtyLine | TcpServer] = field(default_factory=dict[str, "PtyLine | TcpServer"])  # by device
    offset: Quantities = field(default_factory=dict[str, float])  # what a sensor really shows too much
    turned: set[str] = field(default_factory=set[str])  # sensors wired the wrong way round
    drift_per_s: Quantities = field(default_factory=dict[str, float])
    input_raw: np.ndarray = field(default_factory=lambda: np.zeros(INPUTS, np.int32))
    input_status: np.ndarray = field(default_factory=lambda: np.full(INPUTS, int(InputStatus.NO_DATA), np.uint32))

    @property
    def tilts(self) -> bool:
        """Some sensor wants to know how the platform is inclined."""
        return any(sensor.name.startswith("tilt") for sensor in self.fittings.sensors)

    def show(self, quantities: Quantities, elapsed_s: float) -> None:
        """Let every terminal and instrument show these true quantities, `elapsed_s` after the last ones."""
        channels: dict[str, dict[str, float]] = {name: {} for name in self.fittings.profiles}
        for sensor in self.fittings.sensors:
            if rate := self.drift_per_s.get(sensor.name):
                self.offset[sensor.name] = self.offset.get(sensor.name, 0.0) + rate * elapsed_s
            value = quantities[sensor.name] + self.offset.get(sensor.name, 0.0)
            value = (-value if sensor.name in self.turned else value) - sensor.offset
            channels[sensor.device][sensor.channel] = value / sensor.gain
            if sensor.name in self.inputs:
                index = int(sensor.channel) - 1
                shown = self.inputs[sensor.name].show(value / sensor.gain)
                self.input_raw[index], self.input_status[index] = shown
        for name, slave in self.slaves.items():
            profile = self.fittings.profiles[name]
            if isinstance(profile, ModbusProfile):
                registers = registers_of(profile, dict.fromkeys(profile.channels, 0.0) | channels[name])
                if profile.status:
                    registers[profile.status.address] |= slave.status
                slave.registers = registers
        for name, conditioner in self.conditioners.items():
            profile = self.fittings.profiles[name]
            if isinstance(profile, ConditionerProfile):
                conditioner.value = channels[name].get("value", 0.0) / profile.scale
        for name, inclinometer in self.inclinometers.items():
            profile = self.fittings.profiles[name]
            if isinstance(profile, InclinometerProfile):
                inclinometer.x_deg = channels[name].get("x", 0.0) / profile.scale
                inclinometer.y_deg = channels[name].get("y", 0.0) / profile.scale

    def open(self) -> None:
        """Plug all instruments in."""
        for line in set(self.lines.values()):
            line.open()

    def close(self) -> None:
        """Unplug all of them."""
        for line in set(self.lines.values()):
            line.close()


def build(site: schema.Site, fittings: Fittings) -> Sensing:
    """The terminals and instruments of a site, at the addresses and paths where the controller looks for them.

    Raises:
        ConfigurationError: an address or a path cannot be had.
    """
    sensing = Sensing(fittings)
    for sensor in fittings.sensors:
        profile = fittings.profiles[sensor.device]
        if isinstance(profile, CurrentTerminalProfile | BridgeTerminalProfile):
            sensing.inputs[sensor.name] = Input(profile)
    groups: dict[str, list[str]] = {}
    for name, device in site.devices.items():
        groups.setdefault(address(device.line), []).append(name)
    for where, names in groups.items():
        if not where:
            continue
        line = site.devices[names[0]].line
        try:
            plugged = _line(line, names, site, sensing)
        except OSError as error:
            raise ConfigurationError(
                f"devices.{names[0]}.line: the virtual cell cannot put an instrument at {where}: {error.strerror}"
            ) from None
        sensing.lines |= dict.fromkeys(names, plugged)
    return sensing


def _line(
    line: schema.PlcLine | schema.TcpLine | schema.RtuLine | schema.SerialLine,
    names: list[str],
    site: schema.Site,
    sensing: Sensing,
) -> PtyLine | TcpServer:
    slaves = {name: Slave(site.devices[name].unit_id, {}) for name in names}
    if isinstance(line, schema.TcpLine):
        server = TcpServer(list(slaves.values()), line.port, line.host)
        sensing.slaves |= slaves
        return server
    path = Path(address(line))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() and not path.exists():
        path.unlink()  # what a killed cell left behind
    if path.exists():
        raise FileExistsError(0, "something is plugged in there already")
    if isinstance(line, schema.RtuLine):
        sensing.slaves |= slaves
        return PtyLine(path, RtuBus(list(slaves.values()), line.baudrate))
    profile = sensing.fittings.profiles[names[0]]
    if isinstance(profile, ConditionerProfile):
        conditioner = sensing.conditioners[names[0]] = Conditioner(station=profile.station)
        return PtyLine(path, conditioner)
    inclinometer = sensing.inclinometers[names[0]] = Inclinometer()
    return PtyLine(path, inclinometer)


def tilt_rad(pose: np.ndarray) -> tuple[float, float]:
    """Inclination of the platform's x and y axis at a pose x y z yaw pitch roll (m, rad)."""
    _, _, _, _, pitch, roll = pose
    return float(-pitch), float(np.arcsin(np.cos(pitch) * np.sin(roll)))


def fitted(sensors: list[Fitted], prefix: str) -> dict[str, int]:
    """Names of the sensors of a kind with the index of their leg."""
    return {s.name: int(s.name.rsplit("_", 1)[1]) - 1 for s in sensors if s.name.rsplit("_", 1)[0] == prefix}
