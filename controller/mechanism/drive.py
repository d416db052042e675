"""What the drive adds to the rigid model: rotor inertia and friction of screw and guide."""

import math
from typing import NamedTuple

import numpy as np

from controller import schema
from controller.mechanism.model import effective_leg
from controller.records import Array

STICTION_SPEED_M_S = 2e-3  # below this rate the Coulomb term fades: its sign is not known at rest


class Drives(NamedTuple):
    """The drives of a machine, n legs."""

    rotor_mass_kg: Array  # (n,) rotor inertia as seen along the leg
    coulomb_n: Array  # (n,)
    viscous_n_s_m: Array  # (n,)


def build_drives(machine: schema.Machine) -> Drives:
    """Arrays of the machine file's [legs.drive]."""
    legs = [effective_leg(machine, i) for i in range(len(machine.leg))]
    turns = [2.0 * math.pi * leg.drive.gear_ratio / leg.drive.lead_m for leg in legs]
    return Drives(
        rotor_mass_kg=np.array([leg.drive.rotor_inertia_kg_m2 * t * t for leg, t in zip(legs, turns, strict=True)]),
        coulomb_n=np.array([leg.drive.coulomb_n for leg in legs]),
        viscous_n_s_m=np.array([leg.drive.viscous_n_s_m for leg in legs]),
    )


def axis_force(drives: Drives, f: Array, qd: Array, qdd: Array) -> Array:
    """Force (n,) the drives must put into the axes for actuator forces f at leg rates qd and accelerations qdd."""
    coulomb = drives.coulomb_n * np.tanh(qd / STICTION_SPEED_M_S)
    return f + drives.rotor_mass_kg * qdd + coulomb + drives.viscous_n_s_m * qd
