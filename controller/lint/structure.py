"""Do the parts of a machine file fit together: kinds of legs, freedoms, units? Nothing has to move for that."""

import math

import numpy as np

from controller import schema
from controller.mechanism.model import FREEDOMS
from controller.records import POSE

FREE_LEGS = ("UPS", "UPRU", "UHU")
LEG_FREEDOMS = {"UPRU": 6, "UPS": 6, "UHU": 6, "UPU": 5, "UPR": 4, "RPU": 4}
WANTED = {
    "free": "6 legs of the kinds UPS, UPRU and UHU",
    "spherical": "3 legs of the kind UPS",
    "2r1t": "two UPR and two RPU legs",
}
# Components that have to be 0 so that the loops of a 2-UPR/2-RPU close; 0 1 2 for x y z.
PLANES = {
    "UPR": {"base_joint_m": (1, 2), "platform_joint_m": (1,)},
    "RPU": {"base_joint_m": (0,), "platform_joint_m": (0, 2)},
}
CROSSED_AXES = {"base_axis": 0, "platform_axis": 1}  # along x of the base, along y of the platform
OFF_PLANE = 1e-3  # of the platform radius; of an axis of length 1
SIZE_RATIO = 100.0  # lengths of one machine further apart than this are in different units
DETAIL_RATIO = 20.0  # no centre of mass and no pose range is larger, in machine sizes
GYRATION = (1e-3, 20.0)  # radius of gyration of a body in machine sizes


def kinds(machine: schema.Machine) -> list[str]:
    """Number and kinds of legs against the platform, and what each kind of leg must have and must not have."""
    problems = _untwistable(machine) or _legs_for_platform(machine)
    for i, joints in enumerate(machine.leg):
        leg = schema.effective_leg(machine, i)
        if leg.kind != "UPS" and joints.platform_axis is None:
            problems.append(f"leg[{i}].platform_axis: missing, leg {i + 1} of kind {leg.kind} needs this direction")
        if leg.kind == "UHU" and not isinstance(leg.drive, schema.ScrewDrive):
            problems.append(f"legs.drive.kind: leg {i + 1} of kind UHU has a hydraulic drive, expected a screw")
        upper = [name for name, link in leg.links.items() if link.group == "upper"]
        if upper and leg.kind not in ("UPRU", "UHU"):
            problems.append(
                f"legs.links.{upper[0]}.group: found 'upper' in leg {i + 1} of kind {leg.kind}, expected lower or rod: "
                "no part of such a leg turns with the platform joint"
            )
    if machine.platform.kind == "2r1t" and not problems:
        problems = _crossed_layout(machine)
    return problems


def no_freedom(count: int, legs: int, platform: str = "free") -> str:
    """Why `count` UPU legs among `legs` (U joint in the platform, nothing that lets the ends twist) cannot work."""
    extra = 1 if platform == "spherical" else 0  # the ball joint
    bodies, joints = 2 * legs + 2, 3 * legs + extra
    sum_of = 6 * legs - count + 3 * extra
    return (
        f"a UPU leg has 5 freedoms, and {count} of them among {legs} legs leave the platform "
        f"6 ({bodies} - {joints} - 1) + {sum_of} = {6 * (bodies - joints - 1) + sum_of} of its {FREEDOMS[platform]} "
        "freedoms (Kutzbach-Gruebler); it needs a passive R joint (kind UPRU) or a screw that turns with the leg "
        "(kind UHU)"
    )


def freedom(machine: schema.Machine) -> int:
    """Freedoms of the machine by Kutzbach-Gruebler; too few where constraints repeat each other (2-UPR/2-RPU)."""
    taken = sum(6 - LEG_FREEDOMS[schema.effective_leg(machine, i).kind] for i in range(len(machine.leg)))
    return 6 - taken - (3 if machine.platform.kind == "spherical" else 0)


def _legs_for_platform(machine: schema.Machine) -> list[str]:
    found, platform = [schema.effective_leg(machine, i).kind for i in range(len(machine.leg))], machine.platform.kind
    if platform == "free":
        right = len(found) == 6 and set(found) <= set(FREE_LEGS)
    else:
        right = sorted(found) == (["UPS"] * 3 if platform == "spherical" else ["RPU", "RPU", "UPR", "UPR"])
    if right:
        return []
    return [
        f"platform.kind: found {platform!r} with {len(found)} legs {' '.join(found)}, {freedom(machine)} freedoms by "
        f"Kutzbach-Gruebler and {len(found)} drives, expected {WANTED[platform]} for its {FREEDOMS[platform]} freedoms"
    ]


def _untwistable(machine: schema.Machine) -> list[str]:
    at = [i for i in range(len(machine.leg)) if schema.effective_leg(machine, i).kind == "UPU"]
    if not at:
        return []
    return [
        f"leg[{at[0]}].kind: found UPU in legs {' '.join(str(i + 1) for i in at)}: "
        f"{no_freedom(len(at), len(machine.leg), machine.platform.kind)}"
    ]


def _crossed_layout(machine: schema.Machine) -> list[str]:
    """UPR legs in the plane of X and the platform's z, RPU legs in the plane x = 0: else the loops do not close."""
    problems: list[str] = []
    radius = max(math.hypot(*leg.platform_joint_m) for leg in machine.leg)
    for i, leg in enumerate(machine.leg):
        kind = schema.effective_leg(machine, i).kind
        for key, components in PLANES[kind].items():
            for k in components:
                off = getattr(leg, key)[k]
                if abs(off) > OFF_PLANE * radius:
                    problems.append(
                        f"leg[{i}].{key}: {'xyz'[k]} of leg {i + 1} is {off:g} m, expected 0: {kind} legs of a 2r1t "
                        "platform stand in one plane"
                    )
        for key, along in CROSSED_AXES.items():
            axis = np.array(getattr(leg, key))
            off = float(np.degrees(np.arccos(min(1.0, abs(axis[along]) / np.linalg.norm(axis)))))
            if off > np.degrees(OFF_PLANE):
                problems.append(
                    f"leg[{i}].{key}: {off:.2f} degrees off {'xyz'[along]} in leg {i + 1}, expected 0 in a machine "
                    "with a 2r1t platform"
                )
    return problems


def sizes(machine: schema.Machine) -> list[str]:
    """Lengths in metres next to lengths in millimetres."""
    for key in ("base_joint_m", "platform_joint_m"):
        if len({getattr(leg, key) for leg in machine.leg}) == 1:
            return [f"leg[0].{key}: the same in all {len(machine.leg)} legs, expected points apart"]
    lengths = _sizes(machine)
    typical = float(np.median([size for _, size in lengths]))
    key, size = max(lengths, key=lambda item: abs(math.log(item[1] / typical)))
    other, against = max(lengths, key=lambda item: abs(math.log(item[1] / size)))
    if not 1.0 / SIZE_RATIO <= size / against <= SIZE_RATIO:
        ratio = max(size / against, against / size)
        return [
            f"{key}: found a size of {size:g} m where {other} has {against:g} m, a factor of {ratio:.0f}, expected at "
            f"most {SIZE_RATIO:g}: mixed units, metres and millimetres"
        ]
    longest = max(high for _, high in _strokes(machine))
    most = [(name, value, DETAIL_RATIO * typical) for name, value in _details(machine)]
    most += [(name, value, longest) for name, value in _drive_lengths(machine)]
    return [
        f"{name}: found {value:g} m, expected at most {limit:g} m in a machine of {typical:.3g} m: mixed units, metres "
        "and millimetres"
        for name, value, limit in most
        if value > limit
    ]


def inertias(machine: schema.Machine) -> list[str]:
    """Tensors that do not fit mass and size."""
    typical = float(np.median([size for _, size in _sizes(machine)]))
    low, high = (share * typical for share in GYRATION)
    bodies = [("platform", machine.platform.mass_kg, machine.platform.inertia_kg_m2)]
    bodies += [(key, link.mass_kg, link.inertia_kg_m2) for key, link in _links(machine)]
    problems: list[str] = []
    for key, mass, tensor in bodies:
        radius = math.sqrt(0.5 * (tensor[0][0] + tensor[1][1] + tensor[2][2]) / mass) if mass > 0.0 else 0.0
        if radius > 0.0 and not low <= radius <= high:
            problems.append(
                f"{key}.inertia_kg_m2: with a mass of {mass:g} kg found a radius of gyration of {radius:.3g} m, "
                f"expected {low:.3g} to {high:.3g} m in a machine of {typical:.3g} m: mixed units"
            )
    return problems


def _sizes(machine: schema.Machine) -> list[tuple[str, float]]:
    """Lengths that are alike in every machine, with the keys that say them."""
    found: list[tuple[str, float]] = []
    base = np.array([leg.base_joint_m for leg in machine.leg])
    for key, joints in (("base_joint_m", base), ("platform_joint_m", [leg.platform_joint_m for leg in machine.leg])):
        apart = np.linalg.norm(np.array(joints) - np.median(joints, axis=0), axis=1)
        found.append((f"leg[{int(apart.argmax())}].{key}", float(apart.max())))
    if machine.platform.kind != "spherical":  # whose centre may be anywhere between the base joints
        home = machine.platform.home
        origin = np.array([home.x_m, home.y_m, home.z_m])
        across = min(origin, origin - np.median(base, axis=0), key=np.linalg.norm)
        found.append((f"platform.home.{POSE[int(np.abs(across).argmax())]}", float(np.linalg.norm(across))))
    return [(key, size) for key, size in found + _strokes(machine) if size > 0.0]


def _strokes(machine: schema.Machine) -> list[tuple[str, float]]:
    own = [(f"leg[{i}].limits.length_m", leg.limits.length_m[1]) for i, leg in enumerate(machine.leg) if leg.limits]
    return [("legs.limits.length_m", machine.legs.limits.length_m[1]), *own]


def _links(machine: schema.Machine) -> list[tuple[str, schema.Link]]:
    own = [
        (f"leg[{i}].links.{name}", link)
        for i, leg in enumerate(machine.leg)
        for name, link in (leg.links or {}).items()
    ]
    return [(f"legs.links.{name}", link) for name, link in machine.legs.links.items()] + own


def _details(machine: schema.Machine) -> list[tuple[str, float]]:
    """Lengths that may be small, but not large."""
    limits = machine.platform.limits
    found = [(f"platform.limits.{name}", high - low) for name in POSE[:3] for low, high in [getattr(limits, name)]]
    found.append(("platform.com_m", math.hypot(*machine.platform.com_m)))
    return found + [(f"{key}.com_m", math.hypot(*link.com_m)) for key, link in _links(machine)]


def _drive_lengths(machine: schema.Machine) -> list[tuple[str, float]]:
    """Lengths of drives, which are shorter than the longest leg."""
    drives = [("legs.drive", machine.legs.drive)]
    drives += [(f"leg[{i}].drive", leg.drive) for i, leg in enumerate(machine.leg) if leg.drive]
    found: list[tuple[str, float]] = []
    for key, drive in drives:
        if isinstance(drive, schema.ScrewDrive):
            found.append((f"{key}.lead_m", drive.lead_m))
        else:
            found.append((f"{key}.piston_diameter_m", drive.piston_diameter_m))
            found.append((f"{key}.rod_diameter_m", drive.rod_diameter_m))
    return found
