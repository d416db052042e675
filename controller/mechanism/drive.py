"""What the drive adds to the rigid model: rotor inertia and friction of screw and guide."""

import math
from typing import NamedTuple

import numpy as np

from controller import schema
from controller.errors import ConfigurationError
from controller.mechanism.leg import STICTION_SPEED_M_S
from controller.mechanism.model import effective_leg
from controller.records import Array


class Drives(NamedTuple):
    """The drives of a machine, n legs."""

    efficiency: Array  # (n,) of screw and gear
    rotor_mass_kg: Array  # (n,) rotor inertia as seen along the leg
    coulomb_n: Array  # (n,)
    viscous_n_s_m: Array  # (n,)


def build_drives(machine: schema.Machine) -> Drives:
    """Arrays of the machine file's [legs.drive]."""
    legs = [effective_leg(machine, i) for i in range(len(machine.leg))]
    drives = Drives(np.ones(len(legs)), *np.zeros((3, len(legs))))
    for i, leg in enumerate(legs):
        drive = leg.drive
        if isinstance(drive, schema.ScrewDrive):
            turns = 2.0 * math.pi * drive.gear_ratio / drive.lead_m
            # where the screw turns with the leg's twist, the rotor is in the dynamics of the mechanism already
            drives.rotor_mass_kg[i] = 0.0 if leg.kind == "UHU" else drive.rotor_inertia_kg_m2 * turns * turns
            # likewise its efficiency
            drives.efficiency[i] = 1.0 if leg.kind == "UHU" else drive.efficiency
            drives.coulomb_n[i], drives.viscous_n_s_m[i] = drive.coulomb_n, drive.viscous_n_s_m
    return drives


def screw(drive: schema.Drive) -> schema.ScrewDrive:
    """The drive, if it is a screw.

    Raises:
        ConfigurationError: if it is not.
    """
    if not isinstance(drive, schema.ScrewDrive):
        raise ConfigurationError("legs.drive.kind: found hydraulic, the virtual cell can only drive screws so far")
    return drive


def axis_force(drives: Drives, f: Array, qd: Array, qdd: Array) -> Array:
    """Force (n,) the drives must put into the axes for actuator forces f at leg rates qd and accelerations qdd."""
    direction = np.tanh(qd / STICTION_SPEED_M_S)
    up, down = 1.0 / drives.efficiency, drives.efficiency
    put_in = 0.5 * f * (up + down + np.sign(f) * direction * (up - down))  # more when driving, less when driven
    return put_in + drives.rotor_mass_kg * qdd + drives.coulomb_n * direction + drives.viscous_n_s_m * qd
