"""What the oracle knows of a machine, its file format, and random machines of every kind.

Poses are x y z yaw pitch roll of the platform in the base frame, R = Rz(yaw) Ry(pitch) Rx(roll). Leg frames have z from
the base joint B_i to the platform joint b_i. A leg kind names its joints from base to platform: first letter the base
joint, last letter the platform joint, P a driven slide, H a driven screw, an R in between is passive.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pinocchio as pin

Array = np.ndarray
Vector = tuple[float, ...]
Matrix = tuple[Vector, ...]

POSE_KEYS = ("x_m", "y_m", "z_m", "yaw_rad", "pitch_rad", "roll_rad")
FREEDOMS = {"free": 6, "spherical": 3, "2r1t": 3}  # by kind of platform
KINDS = ("6-upru", "6-ups", "6-uhu", "3-ups-s", "2-upr-2-rpu")

# Blocks of a machine file that do not enter inverse dynamics but that a complete file must have.
MOTION_BLOCK = {
    "speed_m_s": 0.25, "acceleration_m_s2": 1.5, "jerk_m_s3": 30.0,
    "speed_rad_s": 0.6, "acceleration_rad_s2": 4.0, "jerk_rad_s3": 80.0,
}  # fmt: skip
TORQUE_BLOCK = {"rated_torque_nm": 1.27, "peak_torque_nm": 3.8}
DRIVE_BLOCK = {"kind": "screw", "lead_m": 0.010, "gear_ratio": 1.0, "rotor_inertia_kg_m2": 4.0e-5, **TORQUE_BLOCK}
HYDRAULIC_BLOCK = {"kind": "hydraulic", "piston_diameter_m": 0.040, "rod_diameter_m": 0.025}
CELL_CAPACITY_N = 2200.0
STROKE_M = 0.25  # leg length limits of a written machine: home lengths plus and minus this


@dataclass(frozen=True)
class OracleLink:
    """One rigid body of a leg, in the leg frame of the joint it turns with.

    `group`: "lower", "rod" or "upper". `com_m` (3) is measured from B_i for lower links, from b_i for all others.
    `inertia_kg_m2` (3x3) is about the centre of mass. `below_cell`: a sliding link on the actuator side of the cell.
    """

    name: str
    group: str
    mass_kg: float
    com_m: Vector
    inertia_kg_m2: Matrix
    below_cell: bool = False


@dataclass(frozen=True)
class OracleFriction:
    """Friction of a leg's joints that the actuator has to overcome: slide, each U axis, S joint."""

    viscous_n_s_m: float = 0.0
    coulomb_n: float = 0.0
    universal_nm_s_rad: float = 0.0
    spherical_nm_s_rad: float = 0.0


@dataclass(frozen=True)
class OracleScrew:
    """Drive of a UHU leg: lead/2pi (motor angle/gear + hand twist) = extension since home.

    `rotor_inertia_kg_m2` is the axial inertia of what turns at the motor angle against the lower links.
    """

    lead_m: float
    hand: float
    gear_ratio: float
    rotor_inertia_kg_m2: float


@dataclass(frozen=True)
class OracleLeg:
    """One leg: base joint and axis in the base frame, platform ones in the platform frame.

    The axes are those fixed in base and platform: first axis of a base U, axis of an R, second axis of a platform U;
    a platform S has none. `screw` is set for UHU only. `cell`: a load cell is fitted.
    """

    base_joint_m: Vector
    platform_joint_m: Vector
    base_axis: Vector
    platform_axis: Vector | None
    links: tuple[OracleLink, ...]
    kind: str = "UPRU"
    friction: OracleFriction = field(default_factory=OracleFriction)
    screw: OracleScrew | None = None
    cell: bool = False


@dataclass(frozen=True)
class OracleMachine:
    """A parallel robot. Platform com (3) and tensor about it (3x3) in the platform frame."""

    name: str
    platform_mass_kg: float
    platform_com_m: Vector
    platform_inertia_kg_m2: Matrix
    home_pose: Vector
    pose_limits: Matrix  # (6, 2)
    legs: tuple[OracleLeg, ...]
    platform_kind: str = "free"


def home_lengths(machine: OracleMachine) -> Array:
    """Leg lengths at the home pose, m, (n_legs,)."""
    home = pose_placement(machine.home_pose)
    return np.array([np.linalg.norm(home.act(_v(g.platform_joint_m)) - _v(g.base_joint_m)) for g in machine.legs])


def pose_placement(pose: Vector) -> pin.SE3:
    """Placement of the platform frame in the base frame."""
    x, y, z, yaw, pitch, roll = pose
    return pin.SE3(pin.rpy.rpyToMatrix(roll, pitch, yaw), np.array([x, y, z]))


# --- files ----------------------------------------------------------------------------------------------------------


def machine_from_toml(data: dict[str, Any]) -> OracleMachine:
    """Machine from a parsed machine file. A table of a `[[leg]]` goes before that of `[legs]`, links by name."""
    platform = data["platform"]
    if platform["kind"] not in FREEDOMS:
        raise ValueError(f"platform kind {platform['kind']!r} is not built")
    return OracleMachine(
        name=data["name"],
        platform_mass_kg=float(platform["mass_kg"]),
        platform_com_m=_vector(platform["com_m"]),
        platform_inertia_kg_m2=_matrix(platform["inertia_kg_m2"]),
        home_pose=_vector(platform["home"][key] for key in POSE_KEYS),
        pose_limits=_matrix(platform["limits"][key] for key in POSE_KEYS),
        legs=tuple(_leg_from_toml(_effective(data["legs"], leg)) for leg in data["leg"]),
        platform_kind=platform["kind"],
    )


def machine_to_toml_dict(machine: OracleMachine) -> dict[str, Any]:
    """Inverse of `machine_from_toml`: a complete machine file as a dict, every leg with its own links.

    Limits of the legs, most of the drive, motion and cell capacity are no part of an `OracleMachine`; they get
    plausible values so that the file is complete.
    """
    lengths = home_lengths(machine)
    shared_kind = machine.legs[0].kind
    return {
        "name": machine.name,
        "title": machine.name,
        "source": "Numbers of this project's own, for tests.",
        "platform": {
            "kind": machine.platform_kind,
            "mass_kg": machine.platform_mass_kg,
            "com_m": list(machine.platform_com_m),
            "inertia_kg_m2": [list(row) for row in machine.platform_inertia_kg_m2],
            "home": dict(zip(POSE_KEYS, machine.home_pose, strict=True)),
            "limits": {key: list(row) for key, row in zip(POSE_KEYS, machine.pose_limits, strict=True)},
            "motion": dict(MOTION_BLOCK),
        },
        "legs": {
            "kind": shared_kind,
            "limits": {
                "length_m": [float(lengths.min()) - STROKE_M, float(lengths.max()) + STROKE_M],
                "speed_m_s": 0.48,
                "acceleration_m_s2": 4.0,
                "force_n": 700.0,
            },
            "drive": _drive_block(machine),
        },
        "leg": [_leg_to_toml(leg, shared_kind) for leg in machine.legs],
    }


def _drive_block(machine: OracleMachine) -> dict[str, Any]:
    if machine.platform_kind == "spherical":
        return dict(HYDRAULIC_BLOCK)
    return DRIVE_BLOCK | ({"hand": 1} if machine.legs[0].screw else {})


def _effective(shared: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    return {**shared, **own, "links": {**shared.get("links", {}), **own.get("links", {})}}


def _leg_from_toml(leg: dict[str, Any]) -> OracleLeg:
    below = leg.get("cell", {}).get("links_below", [])
    drive, helical = leg["drive"], leg["kind"] == "UHU"
    return OracleLeg(
        base_joint_m=_vector(leg["base_joint_m"]),
        platform_joint_m=_vector(leg["platform_joint_m"]),
        base_axis=_vector(leg["base_axis"]),
        platform_axis=_vector(leg["platform_axis"]) if "platform_axis" in leg else None,
        links=tuple(
            OracleLink(
                name=name,
                group=link["group"],
                mass_kg=float(link["mass_kg"]),
                com_m=_vector(link["com_m"]),
                inertia_kg_m2=_matrix(link["inertia_kg_m2"]),
                below_cell=name in below,
            )
            for name, link in leg["links"].items()
        ),
        kind=leg["kind"],
        friction=OracleFriction(**leg.get("friction", {})),
        screw=OracleScrew(
            lead_m=float(drive["lead_m"]),
            hand=float(drive["hand"]),
            gear_ratio=float(drive.get("gear_ratio", 1.0)),
            rotor_inertia_kg_m2=float(drive["rotor_inertia_kg_m2"]),
        )
        if helical
        else None,
        cell="cell" in leg,
    )


def _leg_to_toml(leg: OracleLeg, shared_kind: str) -> dict[str, Any]:
    table: dict[str, Any] = {
        "base_joint_m": list(leg.base_joint_m),
        "platform_joint_m": list(leg.platform_joint_m),
        "base_axis": list(leg.base_axis),
        "links": {
            link.name: {
                "group": link.group,
                "mass_kg": link.mass_kg,
                "com_m": list(link.com_m),
                "inertia_kg_m2": [list(row) for row in link.inertia_kg_m2],
            }
            for link in leg.links
        },
    }
    if leg.kind != shared_kind:
        table["kind"] = leg.kind
    if leg.platform_axis is not None:
        table["platform_axis"] = list(leg.platform_axis)
    if leg.friction != OracleFriction():
        table["friction"] = asdict(leg.friction)
    if leg.screw is not None:
        table["drive"] = {"kind": "screw", **asdict(leg.screw), "hand": int(leg.screw.hand), **TORQUE_BLOCK}
    if leg.cell:
        below = [link.name for link in leg.links if link.below_cell]
        table["cell"] = {"links_below": below, "capacity_n": CELL_CAPACITY_N}
    return table


# --- random machines ------------------------------------------------------------------------------------------------

# Group, below the cell, total mass (kg), distance of the com along the leg (m), radius of gyration (m).
Part = tuple[str, bool, float, float, float]


@dataclass(frozen=True)
class _Layout:
    """Size and layout of a kind of machine: joints on two circles, in three sectors of 120 degrees.

    Leg i stands in a sector, turned by its angle to either side where there are six legs.
    """

    leg_kind: str
    legs: int
    base: tuple[float, float, float]  # radius, height (m), angle from the middle of the sector (deg)
    platform: tuple[float, float]  # radius (m), angle (deg)
    home_pose: Vector
    half_range: Vector
    platform_kg: tuple[float, float]
    platform_gyration_m: float
    parts: tuple[Part, ...]
    com_spread_m: float = 0.03
    scatter_m: float = 0.03
    platform_kind: str = "free"
    cell: bool = False


LAYOUTS = {
    "6-upru": _Layout(
        leg_kind="UPRU", legs=6, base=(0.65, 0.0, 12.0), platform=(0.45, 48.0), cell=True,
        home_pose=(0.0, 0.0, 0.85, 0.0, 0.0, 0.0), half_range=(0.15, 0.15, 0.15, 0.40, 0.35, 0.35),
        platform_kg=(40.0, 120.0), platform_gyration_m=0.25,
        parts=(("upper", False, 1.1, -0.055, 0.05), ("rod", False, 0.9, -0.14, 0.06),
               ("rod", True, 3.4, -0.36, 0.15), ("lower", False, 11.5, 0.21, 0.18)),
    ),
    "6-ups": _Layout(
        leg_kind="UPS", legs=6, base=(0.64, 0.0, 18.0), platform=(0.36, 50.0), cell=True, com_spread_m=0.15,
        home_pose=(0.0, 0.0, 0.90, 0.0, 0.0, 0.0), half_range=(0.12, 0.12, 0.12, 0.35, 0.30, 0.30),
        platform_kg=(25.0, 60.0), platform_gyration_m=0.13,
        parts=(("rod", False, 0.7, -0.3, 0.15), ("rod", True, 0.6, -0.6, 0.2), ("lower", False, 3.0, 0.4, 0.18)),
    ),
    "6-uhu": _Layout(
        leg_kind="UHU", legs=6, base=(1.45, 0.0, 9.0), platform=(1.10, 51.0), com_spread_m=0.06, scatter_m=0.06,
        home_pose=(0.0, 0.0, 1.45, 0.0, 0.0, 0.0), half_range=(0.15, 0.15, 0.15, 0.35, 0.25, 0.25),
        platform_kg=(1500.0, 3000.0), platform_gyration_m=0.75,
        parts=(("upper", False, 32.0, -0.55, 0.28), ("lower", False, 85.0, 0.45, 0.33)),
    ),
    # Away from yaw = 0, where three symmetric legs cannot turn the platform about z.
    "3-ups-s": _Layout(
        leg_kind="UPS", legs=3, base=(0.51, -1.15, 0.0), platform=(0.38, 0.0), platform_kind="spherical",
        home_pose=(0.0, 0.0, 0.0, 0.55, 0.0, 0.0), half_range=(0.001, 0.001, 0.001, 0.25, 0.30, 0.30),
        platform_kg=(40.0, 90.0), platform_gyration_m=0.25,
        parts=(("rod", False, 7.0, -0.42, 0.22), ("lower", False, 18.0, 0.3, 0.18)),
    ),
}  # fmt: skip
CROSSED_PARTS: tuple[Part, ...] = (("rod", False, 1.6, -0.17, 0.11), ("lower", False, 3.2, 0.16, 0.10))


def random_machine(rng: np.random.Generator, kind: str = "6-upru") -> OracleMachine:
    """A random machine of one of `KINDS`, of the usual size and layout, whose legs share nothing.

    Joint points within a few cm of the usual places, U axes at least 60 degrees off the leg line at home, physically
    valid full tensors, offset centres of mass, one or two links per group and side of the cell. UPS legs have random
    friction, UHU legs random leads, hands, gears and rotors. A 2-UPR/2-RPU keeps what its mobility needs: axes as
    prescribed (either sense) and joint points on the axes, at distances of their own.
    """
    if kind == "2-upr-2-rpu":
        return _random_crossed_machine(rng)
    layout = LAYOUTS[kind]
    half_range = np.array(layout.half_range)
    home = np.array(layout.home_pose) + rng.uniform(-0.03, 0.03, 6)
    home_rotation = pose_placement(_vector(home)).rotation
    legs = []
    per_sector = layout.legs // 3
    scatter = (-layout.scatter_m, layout.scatter_m, 3)
    for i in range(layout.legs):
        side = -1.0 if i % 2 == 0 else 1.0
        sector = np.deg2rad(120.0 * (i // per_sector))
        radius, height, angle = layout.base
        base = _on_circle(radius, sector + side * np.deg2rad(angle), height) + rng.uniform(*scatter)
        radius, angle = layout.platform
        tip = _on_circle(radius, sector + side * np.deg2rad(angle)) + rng.uniform(*scatter)
        line = home[:3] + home_rotation @ tip - base
        base_axis = _vector(_random_axis(rng, line))
        has_axis = not layout.leg_kind.endswith("S")
        legs.append(
            OracleLeg(
                base_joint_m=_vector(base),
                platform_joint_m=_vector(tip),
                base_axis=base_axis,
                platform_axis=_vector(home_rotation.T @ _random_axis(rng, line)) if has_axis else None,
                links=_random_links(rng, layout.parts, layout.com_spread_m),
                kind=layout.leg_kind,
                friction=_random_friction(rng) if layout.leg_kind == "UPS" else OracleFriction(),
                screw=_random_screw(rng) if layout.leg_kind == "UHU" else None,
                cell=layout.cell,
            )
        )
    platform_kg = float(rng.uniform(*layout.platform_kg))
    return OracleMachine(
        name=f"random-{kind}",
        platform_mass_kg=platform_kg,
        platform_com_m=_vector(rng.uniform(-0.1, 0.1, 3)),
        platform_inertia_kg_m2=_random_inertia(rng, platform_kg, layout.platform_gyration_m),
        home_pose=_vector(home),
        pose_limits=_matrix(np.column_stack([home - half_range, home + half_range])),
        legs=tuple(legs),
        platform_kind=layout.platform_kind,
    )


def _random_crossed_machine(rng: np.random.Generator) -> OracleMachine:
    """A 2-UPR/2-RPU: UPR legs in the plane of X and the platform's z, RPU legs in the plane x = 0."""
    x, y = np.eye(3)[:2]
    height = rng.uniform(0.40, 0.50)
    home = np.array([0.0, 0.0, height, 0.0, 0.0, 0.0])
    half_range = np.array([0.001, 0.25, 0.06, 0.15, 0.30, 0.35])
    return OracleMachine(
        name="random-2-upr-2-rpu",
        platform_mass_kg=float(rng.uniform(8.0, 16.0)),
        platform_com_m=_vector(rng.uniform(-0.05, 0.05, 3)),
        platform_inertia_kg_m2=_random_inertia(rng, mass_kg=12.0, radius_m=0.09),
        home_pose=_vector(home),
        pose_limits=_matrix(np.column_stack([home - half_range, home + half_range])),
        legs=tuple(
            OracleLeg(
                base_joint_m=_vector(rng.uniform(0.24, 0.32) * side),
                platform_joint_m=_vector(rng.uniform(0.14, 0.21) * side),
                base_axis=_vector(rng.choice([-1.0, 1.0]) * x),
                platform_axis=_vector(rng.choice([-1.0, 1.0]) * y),
                links=_random_links(rng, CROSSED_PARTS, com_spread_m=0.03),
                kind=leg_kind,
            )
            for leg_kind, side in (("UPR", x), ("UPR", -x), ("RPU", y), ("RPU", -y))
        ),
        platform_kind="2r1t",
    )


def _random_axis(rng: np.random.Generator, line: Array) -> Array:
    """Unit vector (3) at least 60 degrees off `line`."""
    n = line / np.linalg.norm(line)
    across = np.cross(n, rng.normal(size=3))
    axis = across / np.linalg.norm(across) + rng.uniform(-0.55, 0.55) * n
    return axis / np.linalg.norm(axis)


def _random_friction(rng: np.random.Generator) -> OracleFriction:
    return OracleFriction(*(float(x) for x in rng.uniform([20.0, 2.0, 0.2, 0.1], [60.0, 10.0, 1.0, 0.6])))


def _random_screw(rng: np.random.Generator) -> OracleScrew:
    return OracleScrew(
        lead_m=float(rng.uniform(0.005, 0.020)),
        hand=float(rng.choice([-1.0, 1.0])),
        gear_ratio=float(rng.uniform(1.0, 3.0)),
        rotor_inertia_kg_m2=float(rng.uniform(0.002, 0.020)),
    )


def _random_links(rng: np.random.Generator, parts: tuple[Part, ...], com_spread_m: float) -> tuple[OracleLink, ...]:
    links: list[OracleLink] = []
    for group, below_cell, mass, along, radius in parts:
        count = int(rng.integers(1, 3))
        for _ in range(count):
            mass_kg = float(mass * rng.uniform(0.7, 1.3) / count)
            com = np.array([0.0, 0.0, along]) + rng.uniform(-com_spread_m, com_spread_m, 3)
            links.append(
                OracleLink(
                    name=f"L{len(links) + 1}",
                    group=group,
                    mass_kg=mass_kg,
                    com_m=_vector(com),
                    inertia_kg_m2=_random_inertia(rng, mass_kg, radius),
                    below_cell=below_cell,
                )
            )
    return tuple(links)


def _random_inertia(rng: np.random.Generator, mass_kg: float, radius_m: float) -> Matrix:
    """Full tensor of a mass distribution with a random second-moment matrix S: I = tr(S) 1 - S.

    S positive definite is exactly the condition for a tensor that a body can have (triangle inequality included).
    """
    a = rng.normal(size=(3, 3)) + 0.5 * np.eye(3)
    s = a @ a.T + 0.05 * np.eye(3)
    s *= mass_kg * radius_m**2 / np.trace(s)
    return _matrix(np.trace(s) * np.eye(3) - s)


def _on_circle(radius_m: float, angle_rad: float, height_m: float = 0.0) -> Array:
    return np.array([radius_m * np.cos(angle_rad), radius_m * np.sin(angle_rad), height_m])


def _vector(values: Any) -> Vector:
    return tuple(float(x) for x in values)


def _matrix(rows: Any) -> Matrix:
    return tuple(_vector(row) for row in rows)


def _v(values: Vector) -> Array:
    return np.array(values)
