"""What the tables of devices and sensors in a site file come to; whatever does not fit is refused by name."""

import difflib
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from controller import schema
from controller.errors import ConfigurationError
from controller.records import sensors_of
from controller.schema import Range
from controller.settings import SiteFiles
from drivers import profile as profiles
from drivers.profile import (
    BridgeTerminalProfile,
    ConditionerProfile,
    CurrentTerminalProfile,
    InclinometerProfile,
    ModbusProfile,
    Profile,
)

LINES: dict[type[Profile], tuple[str, ...]] = {
    ModbusProfile: ("tcp", "rtu"),
    ConditionerProfile: ("serial",),
    InclinometerProfile: ("serial",),
    CurrentTerminalProfile: ("plc",),
    BridgeTerminalProfile: ("plc",),
}
OVERLOAD = 1.5  # of the rated load: what a cell shows beyond is no force


class Fitted(NamedTuple):
    """A sensor with the way from the channel of its device to its own quantity: value = gain * channel + offset."""

    name: str
    device: str
    channel: str
    gain: float
    offset: float
    unit: str
    plausible: Range


class Fittings(NamedTuple):
    """Everything a site measures with, beside the axes of the PLC."""

    profiles: dict[str, Profile]  # of each device
    sensors: list[Fitted]  # in the order of the site file

    def unverified(self) -> list[str]:
        """A sentence for each device whose profile was never tried against the real thing."""
        return [
            f"device {name}: profile {profile.name} is not verified against the instrument ({profile.source})"
            for name, profile in self.profiles.items()
            if not profile.verified
        ]


def fit(files: SiteFiles) -> Fittings:
    """Load the profiles of a site and bring devices, channels, units and calibrations together.

    Raises:
        ConfigurationError: with the sentence for the user.
    """
    site, where = files.site, str(files.path)
    loaded = {name: profiles.load(files.path.parent / device.profile) for name, device in site.devices.items()}
    _check_lines(site, loaded, where)
    known = sensors_of(len(files.machine.leg))
    taken: dict[tuple[str, str], str] = {}
    fitted: list[Fitted] = []
    for name, sensor in site.sensors.items():
        key = f"{where}: sensors.{name}"
        if name not in known:
            raise ConfigurationError(f"{key}: unknown sensor{_near(name, known)}")
        if reason := _no_place(name, files.machine):
            raise ConfigurationError(f"{key}: {reason}")
        if sensor.device not in loaded:
            raise ConfigurationError(
                f"{key}.device: found {sensor.device!r}, expected the name of a table in [devices]"
                f"{_near(sensor.device, loaded)}"
            )
        other = taken.setdefault((sensor.device, sensor.channel), name)
        if other != name:
            raise ConfigurationError(
                f"{key}.channel: channel {sensor.channel!r} of {sensor.device} is that of sensor {other} already"
            )
        fitted.append(_fitted(name, sensor, loaded[sensor.device], known[name][0], key))
    return Fittings(loaded, fitted)


def _check_lines(site: schema.Site, loaded: Mapping[str, Profile], where: str) -> None:
    """A profile fits its line; devices on one line agree about it and can be told apart."""
    lines: dict[str, tuple[str, object]] = {}
    addresses: dict[tuple[str, int], str] = {}
    for name, device in site.devices.items():
        key, line, profile = f"{where}: devices.{name}", device.line, loaded[name]
        kind = str(line.__struct_config__.tag)
        if kind not in LINES[type(profile)]:
            allowed = " or ".join(f'"{line}"' for line in LINES[type(profile)])
            raise ConfigurationError(
                f"{key}.line.kind: found {kind!r}, expected {allowed}: profile {profile.name} is for "
                f"{profile.__struct_config__.tag} devices"
            )
        at = address(line)
        if not at:
            continue
        first, table = lines.setdefault(at, (name, line))
        if table != line or (first != name and isinstance(line, schema.SerialLine)):
            raise ConfigurationError(f"{key}.line: {at} is the line of device {first} already")
        if isinstance(profile, ModbusProfile):
            other = addresses.setdefault((at, device.unit_id), name)
            if other != name:
                raise ConfigurationError(f"{key}.unit_id: {device.unit_id} at {at} is device {other} already")


def address(line: schema.PlcLine | schema.TcpLine | schema.RtuLine | schema.SerialLine) -> str:
    """Where a line is; empty for the terminals of the PLC."""
    match line:
        case schema.PlcLine():
            return ""
        case schema.TcpLine():
            return f"{line.host}:{line.port}"
        case _:
            return line.path


def _no_place(name: str, machine: schema.Machine) -> str:
    """Why the machine cannot have this sensor; empty if it can."""
    number = re.fullmatch(r"(\w+?)_(\d+)", name)
    if not number:
        return ""
    leg = schema.effective_leg(machine, int(number[2]) - 1)
    if number[1] == "cell" and leg.cell is None:
        return f"leg {number[2]} of machine {machine.name} has no load cell (legs.cell)"
    if number[1] != "cell" and not isinstance(leg.drive, schema.HydraulicDrive):
        return f"leg {number[2]} of machine {machine.name} is not driven by a cylinder"
    return ""


def _fitted(name: str, sensor: schema.Sensor, profile: Profile, unit: str, key: str) -> Fitted:
    found = profiles.unit_of(profile, sensor.channel)
    if found is None:
        raise ConfigurationError(f"{key}.channel: profile {profile.name} has no channel {sensor.channel!r}")
    gain, offset, plausible = 1.0, 0.0, (-math.inf, math.inf)
    match sensor.calibration:
        case schema.BridgeCalibration() as cell:
            needs, gives = "V/V", "N"
            gain = 1e3 * cell.rated_n / cell.sensitivity_mv_v
            offset = -cell.zero_mv_v * cell.rated_n / cell.sensitivity_mv_v
            plausible = (-OVERLOAD * cell.rated_n, OVERLOAD * cell.rated_n)
        case schema.CurrentCalibration() as loop:
            needs, gives = "A", unit
            if loop.at_4_ma == loop.at_20_ma:
                raise ConfigurationError(f"{key}.calibration: at_4_ma and at_20_ma are the same")
            gain = (loop.at_20_ma - loop.at_4_ma) / 0.016
            offset = loop.at_4_ma - 0.004 * gain
        case None:
            needs, gives = unit, unit
    if found != needs:
        raise ConfigurationError(
            f"{key}: channel {sensor.channel!r} of profile {profile.name} is in {found}, expected {needs}"
            + ("" if sensor.calibration else ", or a calibration")
        )
    if gives != unit:
        raise ConfigurationError(f"{key}.calibration: gives {gives}, expected {unit}")
    return Fitted(name, sensor.device, sensor.channel, sensor.sign * gain, sensor.sign * offset, unit, plausible)


def _near(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, 1, 0.5)
    return f", did you mean {near[0]}?" if near else ""
