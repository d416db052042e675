"""The machine and its words for the operator page, from what the ring says of itself. Pure."""

from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any

from controller import schema
from controller.errors import ConfigurationError
from controller.gateway.admission import LEAST, MOVING
from controller.gateway.events import LIMITS
from controller.records import POSE, Link, Mode, Quality, Verdict
from controller.safety.faults import FAULTS
from controller.safety.supervisor import MODES_FOR
from controller.settings import parse


def described(meta: dict[str, Any]) -> dict[str, Any]:
    """What GET /api/meta tells of a session; `geometry` is None where the machine file is of another version."""
    names = ("session", "site", "version", "configuration_sha256", "rate_hz", "legs", "started_unix_s", "limits")
    machine = _machine(meta)
    return {
        **{name: meta.get(name) for name in names},
        "machine": machine.name if machine else None,
        "title": machine.title if machine else None,
        "driver": meta.get("driver"),
        "sensors": meta.get("sensors", []),
        "channels": [{"name": name, "unit": unit, "meaning": meaning} for name, unit, meaning in meta["channels"]],
        "pose": POSE,
        "home": [getattr(machine.platform.home, name) for name in POSE] if machine else None,
        "pose_limits": [getattr(machine.platform.limits, name) for name in POSE] if machine else None,
        "geometry": _geometry(machine) if machine else None,
        "modes": _codes(Mode),
        "links": _codes(Link),
        "qualities": _codes(Quality),
        "verdicts": _codes(Verdict),
        "faults": [
            {"bit": fault.value.bit_length() - 1, "name": fault.name, "meaning": row.meaning, "effect": row.effect.name}
            for fault, row in FAULTS.items()
        ],
        "limit_bits": [
            {"bit": limit.value.bit_length() - 1, "name": limit.name, "meaning": what}
            for limit, (what, _) in LIMITS.items()
        ],
        "tracks": _tracks(meta),
        "requests": [
            {
                "kind": kind.name.lower(),
                "role": role,
                "moves": kind in MOVING,
                "modes": [mode.name for mode in sorted(MODES_FOR[kind])],
            }
            for kind, role in LEAST.items()
        ],
    }


def _codes(kind: type[IntEnum] | type[IntFlag]) -> dict[str, str]:
    return {str(member.value): str(member.name) for member in kind}


def _machine(meta: dict[str, Any]) -> schema.Machine | None:
    try:
        return parse(str(meta.get("machine_toml", "")), schema.Machine, Path("machine"))
    except ConfigurationError:
        return None


def _tracks(meta: dict[str, Any]) -> list[str]:
    """Names in the order of the site file."""
    try:
        return list(parse(str(meta.get("site_toml", "")), schema.Site, Path("site")).tracks)
    except ConfigurationError:
        return []


def _geometry(machine: schema.Machine) -> dict[str, Any]:
    """Joints in the frames of the machine file, a row a leg; the spherical joint is at o of the platform."""
    legs = [schema.effective_leg(machine, i) for i in range(len(machine.leg))]
    home = machine.platform.home
    return {
        "platform_kind": machine.platform.kind,
        "leg_kind": [leg.kind for leg in legs],
        "base_m": [leg.base_joint_m for leg in machine.leg],
        "platform_m": [leg.platform_joint_m for leg in machine.leg],
        "base_axis": [leg.base_axis for leg in machine.leg],
        "platform_axis": [leg.platform_axis for leg in machine.leg],
        "length_min_m": [leg.limits.length_m[0] for leg in legs],
        "length_max_m": [leg.limits.length_m[1] for leg in legs],
        "drive": ["screw" if isinstance(leg.drive, schema.ScrewDrive) else "hydraulic" for leg in legs],
        "piston_diameter_m": [getattr(leg.drive, "piston_diameter_m", None) for leg in legs],
        "rod_diameter_m": [getattr(leg.drive, "rod_diameter_m", None) for leg in legs],
        "cell_capacity_n": [leg.cell.capacity_n if leg.cell else None for leg in legs],
        "platform_com_m": machine.platform.com_m,
        "spherical_centre_m": [home.x_m, home.y_m, home.z_m] if machine.platform.kind == "spherical" else None,
    }
