"""From a validated machine file to the kernels' arrays."""

import math

import numpy as np

from controller import schema
from controller.mechanism import layout
from controller.mechanism.kinematics import branch, twists
from controller.mechanism.layout import Mechanism
from controller.mechanism.platform import rotation_matrix
from controller.records import POSE, Array

PLATFORM_KINDS = {"free": layout.FREE, "spherical": layout.SPHERICAL, "2r1t": layout.PLANE_TILT}
FREEDOMS = {"free": 6, "spherical": 3, "2r1t": 3}
GROUP_MOMENT = {"lower": layout.LOWER_MOMENT, "rod": layout.ROD_MOMENT, "upper": layout.UPPER_MOMENT}


def home_pose(machine: schema.Machine) -> Array:
    """x y z yaw pitch roll (6,) of the home pose."""
    return np.array([getattr(machine.platform.home, name) for name in POSE])


def about_joint(mass: float, com: Array, inertia: Array) -> Array:
    """Inertia (3, 3) about the point that com (3,) is measured from, from the inertia about the com."""
    return inertia + mass * (np.dot(com, com) * np.eye(3) - np.outer(com, com))


def six(tensor: Array) -> list[float]:
    """The six columns of a symmetric tensor (3, 3)."""
    return [tensor[0, 0], tensor[1, 1], tensor[2, 2], tensor[0, 1], tensor[0, 2], tensor[1, 2]]


def build(machine: schema.Machine) -> Mechanism:
    """The kernels' arrays of a validated machine file."""
    legs = np.array([_leg_row(machine.leg[i], schema.effective_leg(machine, i)) for i in range(len(machine.leg))])
    body = machine.platform
    com, home = np.array(body.com_m), home_pose(machine)
    platform = np.zeros(layout.PLATFORM_COLUMNS)
    platform[layout.KIND] = PLATFORM_KINDS[body.kind]
    platform[layout.MASS] = body.mass_kg
    platform[layout.MOMENT : layout.MOMENT + 3] = body.mass_kg * com
    platform[layout.INERTIA : layout.INERTIA + 6] = six(about_joint(body.mass_kg, com, np.array(body.inertia_kg_m2)))
    platform[layout.GRAVITY : layout.GRAVITY + 3] = machine.gravity_m_s2
    platform[layout.HOME : layout.HOME + 3] = home[:3]
    platform[layout.RADIUS] = sum(math.hypot(*leg.platform_joint_m) for leg in machine.leg) / len(machine.leg)
    model = Mechanism(legs, platform)
    _remember_home(model, home)
    return model


def _leg_row(joints: schema.Leg, leg: schema.Legs) -> Array:
    row = np.zeros(layout.LEG_COLUMNS)
    row[layout.BASE_JOINT : layout.BASE_JOINT + 3] = joints.base_joint_m
    row[layout.PLATFORM_JOINT : layout.PLATFORM_JOINT + 3] = joints.platform_joint_m
    row[layout.BASE_AXIS : layout.BASE_AXIS + 3] = np.array(joints.base_axis) / np.linalg.norm(joints.base_axis)
    if joints.platform_axis is not None:
        row[layout.PLATFORM_AXIS : layout.PLATFORM_AXIS + 3] = np.array(joints.platform_axis) / np.linalg.norm(
            joints.platform_axis
        )
    row[layout.BASE_REVOLUTE] = leg.kind == "RPU"
    row[layout.PLATFORM_UNIVERSAL] = leg.kind in ("UPRU", "UHU")
    for name, link in leg.links.items():
        com, inertia = np.array(link.com_m), np.array(link.inertia_kg_m2)
        at = GROUP_MOMENT[link.group]
        row[at : at + 3] += link.mass_kg * com
        at = layout.UPPER_INERTIA if link.group == "upper" else layout.BASE_INERTIA
        row[at : at + 6] += six(about_joint(link.mass_kg, com, inertia))
        if link.group == "rod":
            at = layout.ROD_INERTIA
            row[at : at + 6] += six(about_joint(link.mass_kg, com, inertia))
        row[layout.ROD_MASS] += link.mass_kg * (link.group == "rod")
        row[layout.UPPER_MASS] += link.mass_kg * (link.group == "upper")
        if leg.cell and name in leg.cell.links_below:
            row[layout.BELOW_MASS] += link.mass_kg
            row[layout.BELOW_MOMENT : layout.BELOW_MOMENT + 3] += link.mass_kg * com
    friction = leg.friction
    # an RPU leg turns freely about both axes of its platform's U joint, as another leg does in an S joint
    row[layout.UNIVERSAL_FRICTION] = 0.0 if leg.kind == "RPU" else friction.universal_nm_s_rad
    if leg.kind in ("UPS", "RPU"):
        at_platform = friction.universal_nm_s_rad if leg.kind == "RPU" else friction.spherical_nm_s_rad
        row[layout.SPHERICAL_FRICTION] = at_platform
    row[layout.VISCOUS_FRICTION], row[layout.COULOMB_FRICTION] = friction.viscous_n_s_m, friction.coulomb_n
    row[layout.NORMAL_FRICTION] = friction.normal
    row[layout.GLAND], row[layout.PISTON] = friction.gland_m, friction.piston_m
    if leg.kind == "UHU" and isinstance(leg.drive, schema.ScrewDrive):
        row[layout.SCREW] = leg.drive.hand * leg.drive.lead_m / (2.0 * math.pi)
        row[layout.MOTOR_RAD_M] = leg.drive.gear_ratio * 2.0 * math.pi / leg.drive.lead_m
        row[layout.ROTOR_INERTIA], row[layout.HAND] = leg.drive.rotor_inertia_kg_m2, leg.drive.hand
        row[layout.EFFICIENCY] = leg.drive.efficiency
    row[layout.PRELOAD] = leg.preload_n
    return row


def _remember_home(machine: Mechanism, home: Array) -> None:
    """Twist 0, leg directions and the sign of the determinant are what they are at home."""
    n = len(machine.legs)
    twist, R = np.zeros(n), np.empty((3, 3))
    twists(machine, home, np.zeros(n), twist)
    rotation_matrix(home, R)
    base = machine.legs[:, layout.BASE_JOINT : layout.BASE_JOINT + 3]
    platform = machine.legs[:, layout.PLATFORM_JOINT : layout.PLATFORM_JOINT + 3]
    lines = home[:3] + platform @ R.T - base
    lines /= np.linalg.norm(lines, axis=1, keepdims=True)
    machine.legs[:, layout.HOME_TWIST] = twist
    machine.legs[:, layout.HOME_LINE : layout.HOME_LINE + 3] = lines
    machine.legs[:, layout.HOME_PLATFORM_LINE : layout.HOME_PLATFORM_LINE + 3] = lines @ R
    machine.platform[layout.BRANCH] = branch(machine, home)
