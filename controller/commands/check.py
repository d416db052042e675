"""`pkm check`: validate a file, check the geometry, say what the machine can do, try the devices."""

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from controller import schema
from controller.errors import ConfigurationError, DeviceError
from controller.lint.geometry import lint
from controller.mechanism import posture
from controller.mechanism.drive import build_drives
from controller.mechanism.layout import Mechanism
from controller.mechanism.model import FREEDOMS, build, home_pose
from controller.motion.feedforward import leg_demand
from controller.motion.trajectory import ZERO
from controller.records import POSE, Array, Reference
from controller.settings import load_machine, load_site


def report(path: Path, connect: bool, out: TextIO) -> int:
    """Check a machine or site file and print what was found; 0 when all is well.

    Raises:
        ConfigurationError: if the file cannot be used, with the first reason.
        DeviceError: if a device does not answer.
    """
    if _is_site(path):
        files = load_site(path)
        print(f"site {files.site.name}: valid", file=out)
        _report_machine(files.machine, files.machine_path, out)
        if connect:
            _report_plc(files.site, out)
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


def _report_plc(site: schema.Site, out: TextIO) -> None:
    from drivers.ads import LinkError, check

    try:
        found = check(site.ads)
    except LinkError as error:
        raise DeviceError(str(error)) from None
    print(
        f"PLC at {site.ads.address}: answers; symbol version {found.symbol_version}, "
        f"read {1e3 * found.median_s:.2f} ms median, {1e3 * found.p99_s:.2f} ms p99, "
        f"{1e3 * found.worst_s:.2f} ms worst of {found.reads}, {found.timeouts} timeouts",
        file=out,
    )
