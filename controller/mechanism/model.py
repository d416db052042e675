"""A machine as flat arrays: what the kernels take.

Links of a leg that turn together are one rigid group: its mass, first moment and inertia about the joint centre
it is measured from stand for all of them, exactly (parallel-axis theorem). So a leg costs the same whatever
the number of its links.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import types

from controller import schema
from controller.mechanism.compile import f64, v1, v2, v3, v4
from controller.records import POSE, Array

LOWER, ROD, UPPER = 0, 1, 2
GROUPS = {"lower": LOWER, "rod": ROD, "upper": UPPER}


class Mechanism(NamedTuple):
    """One machine; n legs; all read-only by convention, SI.

    Groups: LOWER turns with the base joint (moments about it), ROD slides and turns with the base joint, UPPER
    slides and turns with the platform joint (moments of both about the platform joint); leg-frame axes.
    """

    base_joint: Array  # (n, 3) B_i, base axes
    platform_joint: Array  # (n, 3) b_i, platform axes
    base_axis: Array  # (n, 3) unit, U axis fixed in the base, base axes
    platform_axis: Array  # (n, 3) unit, U axis fixed in the platform, platform axes
    mass: Array  # (n, 3) kg, a column a group
    moment: Array  # (n, 3, 3) kg m, first moment of [leg, group]
    inertia: Array  # (n, 3, 3, 3) kg m2 of [leg, group] about the joint centre
    below_mass: Array  # (n,) kg between actuator and load cell
    below_moment: Array  # (n, 3) kg m, their first moment about b_i
    platform_mass: float
    platform_moment: Array  # (3,) kg m about o, platform axes
    platform_inertia: Array  # (3, 3) kg m2 about o, platform axes
    gravity: Array  # (3,) m/s2, base axes
    radius: float  # m, mean distance of the platform joints from o: scales rotations


MECHANISM = types.NamedTuple((v2, v2, v2, v2, v2, v3, v4, v1, v2, f64, v1, v2, v1, f64), Mechanism)


def effective_leg(machine: schema.Machine, index: int) -> schema.Legs:
    """What holds for leg `index` (0-based): the leg's own tables go before those of [legs], links by name."""
    shared, own = machine.legs, machine.leg[index]
    return schema.Legs(
        kind=shared.kind,
        limits=own.limits or shared.limits,
        drive=own.drive or shared.drive,
        cell=own.cell or shared.cell,
        links=shared.links | (own.links or {}),
    )


def home_pose(machine: schema.Machine) -> Array:
    """x y z yaw pitch roll (6,) of the home pose."""
    return np.array([getattr(machine.platform.home, name) for name in POSE])


def about_joint(mass: float, com: Array, inertia: Array) -> Array:
    """Inertia (3, 3) about the point that com (3,) is measured from, from the inertia about the com."""
    return inertia + mass * (np.dot(com, com) * np.eye(3) - np.outer(com, com))


def build(machine: schema.Machine) -> Mechanism:
    """The kernels' arrays of a validated machine file."""
    n = len(machine.leg)
    mass, moment, inertia = np.zeros((n, 3)), np.zeros((n, 3, 3)), np.zeros((n, 3, 3, 3))
    below_mass, below_moment = np.zeros(n), np.zeros((n, 3))
    for i in range(n):
        leg = effective_leg(machine, i)
        for name, link in leg.links.items():
            group, com = GROUPS[link.group], np.array(link.com_m)
            mass[i, group] += link.mass_kg
            moment[i, group] += link.mass_kg * com
            inertia[i, group] += about_joint(link.mass_kg, com, np.array(link.inertia_kg_m2))
            if leg.cell and name in leg.cell.links_below:
                below_mass[i] += link.mass_kg
                below_moment[i] += link.mass_kg * com
    platform = machine.platform
    com = np.array(platform.com_m)
    platform_joint = np.array([leg.platform_joint_m for leg in machine.leg])
    base_axis = np.array([leg.base_axis for leg in machine.leg])
    platform_axis = np.array([leg.platform_axis for leg in machine.leg])
    return Mechanism(
        base_joint=np.array([leg.base_joint_m for leg in machine.leg]),
        platform_joint=platform_joint,
        base_axis=base_axis / np.linalg.norm(base_axis, axis=1, keepdims=True),
        platform_axis=platform_axis / np.linalg.norm(platform_axis, axis=1, keepdims=True),
        mass=mass,
        moment=moment,
        inertia=inertia,
        below_mass=below_mass,
        below_moment=below_moment,
        platform_mass=platform.mass_kg,
        platform_moment=platform.mass_kg * com,
        platform_inertia=about_joint(platform.mass_kg, com, np.array(platform.inertia_kg_m2)),
        gravity=np.array(machine.gravity_m_s2),
        radius=sum(math.hypot(*leg.platform_joint_m) for leg in machine.leg) / n,
    )
