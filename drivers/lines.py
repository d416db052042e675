"""The lines of a site: which devices share one, and the driver for each."""

from collections.abc import Mapping

from controller import schema
from drivers.fitting import address
from drivers.modbus import ModbusLine, Unit
from drivers.profile import ConditionerProfile, InclinometerProfile, ModbusProfile, Profile
from drivers.serial_line import SerialSensor


def lines_of(site: schema.Site, profiles: Mapping[str, Profile]) -> dict[str, ModbusLine | SerialSensor]:
    """By device, not opened; Modbus devices on one line share its driver. The terminals of the PLC have none."""
    lines: dict[str, ModbusLine | SerialSensor] = {}
    units: dict[str, dict[str, Unit]] = {}  # by line
    for name, profile in profiles.items():
        device = site.devices[name]
        if isinstance(profile, ModbusProfile):
            units.setdefault(address(device.line), {})[name] = Unit(device.unit_id, profile)
        elif isinstance(profile, ConditionerProfile | InclinometerProfile):
            lines[name] = SerialSensor(address(device.line), profile)
    for members in units.values():
        devices = [site.devices[name] for name in members]
        line = devices[0].line
        if isinstance(line, schema.TcpLine | schema.RtuLine):
            shared = ModbusLine(line, members, min(device.period_s for device in devices))
            lines |= dict.fromkeys(members, shared)
    return lines
