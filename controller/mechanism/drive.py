"""What the drive adds to the rigid model: rotor inertia and friction of screw and guide."""

import math

import numpy as np
from numba import types

from controller import schema
from controller.mechanism.compile import kernel, v1, v2
from controller.mechanism.dynamics import transmitted
from controller.mechanism.leg import STICTION_SPEED_M_S
from controller.records import Array

# Columns of the drives of a machine, a row a leg.
EFFICIENCY = 0  # 1, of screw and gear
ROTOR_MASS = 1  # kg, rotor inertia as seen along the leg
COULOMB = 2  # N
VISCOUS = 3  # N s/m


def build_drives(machine: schema.Machine) -> Array:
    """Drives (n, 4) of the machine file's [legs.drive]."""
    drives = np.zeros((len(machine.leg), 4))
    drives[:, EFFICIENCY] = 1.0
    for i in range(len(machine.leg)):
        leg = schema.effective_leg(machine, i)
        if isinstance(leg.drive, schema.ScrewDrive):
            drives[i, COULOMB], drives[i, VISCOUS] = leg.drive.coulomb_n, leg.drive.viscous_n_s_m
            # where the screw turns with the leg's twist, rotor and losses are in the dynamics of the mechanism already
            if leg.kind != "UHU":
                turns = 2.0 * math.pi * leg.drive.gear_ratio / leg.drive.lead_m
                drives[i, ROTOR_MASS] = leg.drive.rotor_inertia_kg_m2 * turns * turns
                drives[i, EFFICIENCY] = leg.drive.efficiency
    return drives


def screw(drive: schema.Drive) -> schema.ScrewDrive | None:
    """The drive, if it is a screw; a cylinder has no rotor, its force acts on the axis directly."""
    return drive if isinstance(drive, schema.ScrewDrive) else None


@kernel(types.void(v2, v1, v1, v1, v1))
def axis_force(drives: Array, f: Array, qd: Array, qdd: Array, axis_out: Array) -> None:
    """Force axis_out (n,) the drives must put into the axes for forces f (n,) at rates qd and accelerations qdd."""
    for i in range(f.shape[0]):
        axis_out[i] = transmitted(f[i], qd[i], drives[i, EFFICIENCY]) + drives[i, ROTOR_MASS] * qdd[i]
        axis_out[i] += drives[i, COULOMB] * math.tanh(qd[i] / STICTION_SPEED_M_S) + drives[i, VISCOUS] * qd[i]
