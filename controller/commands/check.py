"""`pkm check`: validate a file, check the geometry, say what the machine can do, try the devices."""

import math
import statistics
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from controller import schema
from controller.errors import ConfigurationError, DeviceError
from controller.gateway.mqtt import credentials
from controller.gateway.web import tls
from controller.lint.geometry import lint
from controller.lint.homing import walk
from controller.mechanism import posture
from controller.mechanism.drive import build_drives
from controller.mechanism.layout import Mechanism
from controller.mechanism.model import FREEDOMS, build, home_pose
from controller.motion.feedback import inertia_range, margin
from controller.motion.feedforward import leg_demand
from controller.motion.track import duration_s
from controller.motion.trajectory import ZERO
from controller.records import POSE, Array, Quality, Reference
from controller.settings import SiteFiles, load_machine, load_site
from controller.state import Setup, prepare
from drivers.ads import check as check_plc
from drivers.ads_link import LinkError
from drivers.fitting import Fitted, Fittings, address, fit
from drivers.lines import lines_of
from drivers.modbus import ModbusLine
from drivers.profile import ConditionerProfile, InclinometerProfile, ModbusProfile, Profile
from drivers.reading import Reading, judged
from drivers.serial_line import SerialSensor
from drivers.terminal import decode

WATCH_S = 2.0  # the instruments are watched for so long
LOOK_S = 0.001  # less than an exchange with any of them
RECENT_S = 0.5  # one late answer is counted; without a valid value for longer a device does not answer


def report(path: Path, connect: bool, out: TextIO) -> int:
    """Check a machine or site file and print what was found; 0 when all is well.

    Raises:
        ConfigurationError: if the file cannot be used, with the first reason.
        DeviceError: if devices do not answer, after all were tried; names them.
    """
    if _is_site(path):
        files = load_site(path)
        fittings, setup = fit(files), prepare(files.machine, files.site, files.track_texts)
        credentials.check(files.site.mqtt, path)
        tls.check(files.site.web, path)
        print(f"site {files.site.name}: valid", file=out)
        _report_machine(files.machine, files.machine_path, out)
        _report_law(setup, out)
        _report_homing(files.site.homing, files.machine, out)
        _report_fittings(files.site, fittings, out)
        _report_references(files.site, setup, out)
        if connect and (problems := try_devices(files, fittings, out)):
            raise DeviceError("; ".join(f"{name}: {problem}" for name, problem in problems.items()))
    elif connect:
        raise ConfigurationError(f"{path}: --connect needs a site file, this is a machine file")
    else:
        _report_machine(load_machine(path)[0], path, out)
    return 0


def _is_site(path: Path) -> bool:
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # the loader says what is wrong
    return "machine" in data or "ads" in data


def _report_machine(machine: schema.Machine, path: Path, out: TextIO) -> None:
    problems = lint(machine)
    if problems:
        raise ConfigurationError("\n".join(f"{path}: {problem}" for problem in problems))
    model, drives, home = build(machine), build_drives(machine), home_pose(machine)
    demand = leg_demand(model, drives, Reference(home, ZERO, ZERO), np.zeros(len(machine.leg)))
    legs = [schema.effective_leg(machine, i) for i in range(len(machine.leg))]
    mass = machine.platform.mass_kg + sum(link.mass_kg for leg in legs for link in leg.links.values())
    print(f"machine {machine.name}: valid; {machine.title}", file=out)
    kinds = " ".join(f"{n} {kind}" for kind, n in Counter(leg.kind for leg in legs).items())
    print(f"  {kinds} legs, {mass:.1f} kg in motion", file=out)
    print(f"  condition number at home {posture.condition(model, home):.2f}", file=out)
    print("  leg   home m   stroke m        speed m/s  force limit N  static force N  cell N", file=out)
    for i in range(len(machine.leg)):
        limits = legs[i].limits
        low, high = limits.length_m
        cell = f"{demand.cell_n[i]:.2f}" if legs[i].cell else "–"
        print(
            f"  {i + 1:>3}   {demand.position_m[i]:.4f}   {low:.3f} … {high:.3f}   {limits.speed_m_s:9.3f}"
            f"  {limits.force_n:13.1f}  {demand.actuator_n[i]:14.2f}  {cell:>6}",
            file=out,
        )
    for name in POSE:
        low, high = getattr(machine.platform.limits, name)
        print(f"  {name:<10} {low:+.3f} … {high:+.3f}", file=out)
    unused = [str(i + 1) for i, leg in enumerate(machine.leg) if legs[i].kind == "UPS" and leg.platform_axis]
    if unused:
        print(f"  platform_axis of legs {' '.join(unused)} is not used: an S joint has no axis", file=out)
    worst = np.abs(demand.axis_n) / np.array([leg.limits.force_n for leg in legs])
    _report_space(machine, model, home, out)
    print(f"  static load at home uses {100 * worst.max():.0f} % of the force limit", file=out)


def _report_space(machine: schema.Machine, model: Mechanism, home: Array, out: TextIO) -> None:
    """How far the machine can go from home along each axis, and how near it is to losing its hold."""
    strokes = np.array([schema.effective_leg(machine, i).limits.length_m for i in range(len(machine.leg))]).T
    values = np.empty(FREEDOMS[machine.platform.kind])
    posture.singular_values(model, home, values)
    least = values.min()
    print(f"  least axis travel per metre of the platform at home {least:.3f} (0 at a singular pose)", file=out)
    print("  reach along      -        +   until a stroke ends or the hold is lost", file=out)
    for k, (name, unit) in enumerate(zip(POSE, ("m", "m", "m", "rad", "rad", "rad"), strict=True)):
        direction = np.eye(6)[k]
        if machine.platform.kind != "free" and posture.off_free_motion(model, home, direction) > 1e-9:
            continue
        ends = [posture.extent(model, home, sign * direction, (strokes[0], strokes[1]), 2.0) for sign in (-1.0, 1.0)]
        print(f"    {name:<9} {ends[0]:8.3f} {ends[1]:8.3f} {unit}", file=out)


def _report_law(setup: Setup, out: TextIO) -> None:
    """Who closes which loop with what margin, and the inertia it meets."""
    given, limits = setup.control.feedback, setup.limits
    if setup.law:
        found = margin(given, setup.period_s)
        print(
            f"law force: bandwidth {given.bandwidth_1_s:g} 1/s, damping {given.damping:g}, integral time "
            f"{given.integral_time_s:g} s, delay {1e3 * found.delay_s:.1f} ms; phase margin "
            f"{math.degrees(found.phase_rad):.0f}° and largest eigenvalue {found.radius:.3f}, worst where "
            f"the inertia is {found.share:.2f} of the model's (up to {100 * given.model_error:.0f} % off)",
            file=out,
        )
    else:
        print("law position: the drives close the loops, their gains are the drives' own business", file=out)
    least_kg, most_kg = inertia_range(
        setup.machine,
        setup.drives,
        np.array([limits.pose_min, limits.pose_max]),
        np.array([limits.length_min_m, limits.length_max_m]),
    )
    print(f"  leg-space inertia over the workspace {least_kg:.1f} … {most_kg:.1f} kg (rotors included)", file=out)


def _report_homing(homing: schema.Homing, machine: schema.Machine, out: TextIO) -> None:
    """What homing does to the platform; nothing where the encoders are absolute."""
    if homing.method == "absolute":
        return
    ways = walk(machine, homing)
    print(
        f"homing {homing.method}: from {ways.starts} poses the platform is tilted by up to "
        f"{math.degrees(ways.tilt_rad):.1f}°, {math.degrees(ways.more_rad):.1f}° more than at the start",
        file=out,
    )
    for problem in ways.problems:
        print(f"warning: {problem}", file=out)


def _report_references(site: schema.Site, setup: Setup, out: TextIO) -> None:
    """One line for each track, which fits, and one for the stream."""
    for (name, table), track in zip(site.tracks.items(), setup.tracks, strict=True):
        kind = table.__struct_config__.tag
        print(f"track {name}: {kind}, {duration_s(track):.2f} s, inside all limits", file=out)
    if site.stream:
        print(f"stream: at UDP {site.stream.address}, lost after {site.stream.timeout_s:g} s", file=out)


def _report_fittings(site: schema.Site, fittings: Fittings, out: TextIO) -> None:
    """One line for each device and each sensor: what stands in the files, put together."""
    for name, device in site.devices.items():
        profile, line = fittings.profiles[name], device.line
        where = f"{line.__struct_config__.tag} {address(line)}".rstrip()
        unit = f" unit {device.unit_id}" if isinstance(profile, ModbusProfile) else ""
        known = "verified" if profile.verified else f"not verified against the instrument ({profile.source})"
        print(f"device {name}: {profile.name} at {where}{unit}, {known}", file=out)
    for fitted in fittings.sensors:
        sensor = site.sensors[fitted.name]
        required = "required" if sensor.required else "not required"
        turned = ", turned" if sensor.sign < 0 else ""
        print(
            f"sensor {fitted.name}: {fitted.unit} from {fitted.device} channel {fitted.channel}, {required}, "
            f"{_calibration(sensor, fitted.unit)}{turned}",
            file=out,
        )


def _calibration(sensor: schema.Sensor, unit: str) -> str:
    match sensor.calibration:
        case schema.BridgeCalibration() as cell:
            text = f"{cell.rated_n:g} N at {cell.sensitivity_mv_v:g} mV/V, zero {cell.zero_mv_v:g} mV/V"
        case schema.CurrentCalibration() as loop:
            text = f"{loop.at_4_ma:g} {unit} at 4 mA, {loop.at_20_ma:g} {unit} at 20 mA"
        case None:
            return "calibrated in the device"
    return text + (f" ({sensor.calibration.certificate})" if sensor.calibration.certificate else "")


def try_devices(files: SiteFiles, fittings: Fittings, out: TextIO) -> dict[str, str]:
    """Print what the PLC and every device answers, and how fast; returns the sentences of those that do not."""
    lines = lines_of(files.site, fittings.profiles)
    for line in set(lines.values()):
        line.open()
    try:
        status, problem = _try_plc(files.site, out)
        found = {"PLC": problem}
        times_s = _watch(lines, fittings) if lines else {}
        for name, profile in fittings.profiles.items():
            sensors = [sensor for sensor in fittings.sensors if sensor.device == name]
            if name in lines:
                period_s = files.site.devices[name].period_s
                problem = _report_instrument(name, lines[name], profile, sensors, period_s, times_s[name], out)
            else:
                problem = _report_terminals(name, profile, sensors, status, out)
            found[f"device {name}"] = problem
    finally:
        for line in set(lines.values()):
            line.close()
    return {name: problem for name, problem in found.items() if problem}


def _try_plc(site: schema.Site, out: TextIO) -> tuple[np.void | None, str]:
    """The status of the PLC, or the sentence why there is none."""
    try:
        found = check_plc(site.ads)
    except LinkError as error:
        print(f"PLC: {error}", file=out)
        return None, str(error)
    print(
        f"PLC: {site.ads.address} answers; symbol version {found.symbol_version}, "
        f"read {1e3 * found.median_s:.2f} ms median, {1e3 * found.p99_s:.2f} ms p99, "
        f"{1e3 * found.worst_s:.2f} ms worst of {found.reads}, {found.timeouts} timeouts",
        file=out,
    )
    return found.status, ""


def _channels(profile: Profile) -> list[str]:
    match profile:
        case ModbusProfile():
            return list(profile.channels)
        case InclinometerProfile():
            return ["x", "y"]
        case _:
            return ["value"]


def _watch(lines: dict[str, ModbusLine | SerialSensor], fittings: Fittings) -> dict[str, list[float]]:
    """Durations of the exchanges that brought valid values, s, by device; of an inclinometer, times between pairs."""
    found: dict[str, list[float]] = {name: [] for name in lines}
    last_s = dict.fromkeys(lines, -math.inf)
    end_s = time.monotonic() + WATCH_S
    while time.monotonic() < end_s:
        for name, line in lines.items():
            newest_s = max(_read(line, name, channel).stamp_s for channel in _channels(fittings.profiles[name]))
            if newest_s > last_s[name]:
                found[name].append(_duration_s(line, name, newest_s - last_s[name]))
                last_s[name] = newest_s
        time.sleep(LOOK_S)
    return found


def _read(line: ModbusLine | SerialSensor, name: str, channel: str) -> Reading:
    return line.read(name, channel) if isinstance(line, ModbusLine) else line.read(channel)


def _duration_s(line: ModbusLine | SerialSensor, name: str, since_last_s: float) -> float:
    duration_s = line.exchange_s(name) if isinstance(line, ModbusLine) else line.exchange_s
    return since_last_s if math.isnan(duration_s) else duration_s


def _report_instrument(
    name: str,
    line: ModbusLine | SerialSensor,
    profile: Profile,
    sensors: list[Fitted],
    period_s: float,
    times_s: list[float],
    out: TextIO,
) -> str:
    """Print the line of an instrument; returns the sentence why it is of no use, empty if all is well."""
    raw = {channel: _read(line, name, channel) for channel in _channels(profile)}
    readings = {sensor.name: _in_unit(sensor, raw[sensor.channel]) for sensor in sensors} or raw
    for reading in readings.values():
        if reading.quality is Quality.BAD or reading.age_s(time.monotonic()) > RECENT_S + period_s:
            problem = reading.message or "hangs: no new value comes"
            print(f"device {name}: {problem}", file=out)
            return problem
    values = ", ".join(f"{name} {reading.value:.6g} {reading.unit}" for name, reading in readings.items())
    finite_s = [value for value in times_s if math.isfinite(value)] or [math.nan]  # the first pair has none before it
    what = "between pairs" if isinstance(profile, InclinometerProfile) else "an exchange"
    failed = ""
    if isinstance(line, ModbusLine):
        counters = line.counters(name)
        failed = f", {counters.failed} failed, {counters.refused} refused"
    print(
        f"device {name}: answers; {1e3 * statistics.median(finite_s):.2f} ms {what} median, "
        f"{1e3 * max(finite_s):.2f} ms worst of {len(finite_s)}{failed}; {values}",
        file=out,
    )
    return ""


def _report_terminals(name: str, profile: Profile, sensors: list[Fitted], status: np.void | None, out: TextIO) -> str:
    """Print the inputs of terminals as the PLC has them; returns the sentence why they are of no use, or nothing."""
    if status is None or isinstance(profile, ModbusProfile | ConditionerProfile | InclinometerProfile):
        problem = "its terminals are seen through the PLC, which does not answer"
        print(f"device {name}: {problem}", file=out)
        return problem
    problems: list[str] = []
    print(f"device {name}: answers with the status of the PLC", file=out)
    for sensor in sensors:
        index = int(sensor.channel) - 1
        counts, bits = int(status["input_raw"][index]), int(status["input_status"][index])
        reading = _in_unit(sensor, decode(profile, counts, bits, time.monotonic(), Reading()))
        text = reading.message or f"{reading.value:.6g} {reading.unit}"
        print(f"  {sensor.name}: input {sensor.channel} raw {counts} status {bits}: {text}", file=out)
        if reading.message:
            problems.append(f"{sensor.name}: {reading.message}")
    return ", ".join(problems)


def _in_unit(sensor: Fitted, raw: Reading) -> Reading:
    """The reading of a channel as that of its sensor."""
    if raw.quality is not Quality.GOOD:
        return raw
    return judged(sensor.gain * raw.value + sensor.offset, sensor.unit, sensor.plausible, raw.stamp_s)
