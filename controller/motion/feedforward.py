"""What the legs must do for a reference: lengths, rates, and the forces of the model."""

from typing import NamedTuple

import numpy as np

from controller.mechanism import dynamics, kinematics
from controller.mechanism.drive import axis_force
from controller.mechanism.layout import Mechanism
from controller.records import Array, Reference

NO_WRENCH = np.zeros(6)


class LegDemand(NamedTuple):
    """What a reference asks of the legs, (n,) each."""

    position_m: Array
    rate_m_s: Array
    axis_n: Array  # force of the drives: rigid model, rotor inertia, friction
    actuator_n: Array  # force of the rigid model
    cell_n: Array  # load-cell force of the rigid model


def leg_demand(machine: Mechanism, drives: Array, reference: Reference, twist: Array) -> LegDemand:
    """Axis positions, rates and forces at the reference, NaN forces at a singular pose; twist (n,) near the pose."""
    q, qd, qdd, f, f_cell, f_axis, branch = np.empty((7, len(machine.legs)))
    branch[:] = twist
    x, xd, xdd = reference.pose, reference.rate, reference.acceleration
    kinematics.axis_rates(machine, x, xd, xdd, branch, q, qd, qdd)
    dynamics.inverse_dynamics(machine, x, xd, xdd, NO_WRENCH, f, f_cell)
    axis_force(drives, f, qd, qdd, f_axis)
    return LegDemand(q, qd, f_axis, f, f_cell)
