"""Inverse dynamics: actuator and load-cell forces from the motion of the platform.

x, xd, xdd   platform coordinates and their derivatives              (6,)   m, rad
wrench       external force and moment on the platform about o       (6,)   N, N m, base axes
f            actuator forces, > 0 extends the leg                    (n,)   N
f_cell       load-cell forces, > 0 compression                       (n,)   N
Source: Ni et al. eq. (20)-(37); what the drive adds is not in f (controller.mechanism.drive).
"""

import math

import numpy as np

from controller.mechanism.compile import i64, inline, kernel, v1, v2
from controller.mechanism.leg import below_cell_force, leg_motion, leg_wrench
from controller.mechanism.model import MECHANISM, Mechanism
from controller.mechanism.platform import Body, body
from controller.mechanism.spatial import Vec, add, apply, apply_t, axpy, cross, solve, sub, vec
from controller.records import Array


@inline
def platform_wrench(machine: Mechanism, body: Body) -> tuple[Vec, Vec]:
    """Inertial minus gravity force and moment about o of the platform, base axes."""
    h = apply(body.R, vec(machine.platform_moment))
    lift = sub(body.a, vec(machine.gravity))
    force = add(axpy(machine.platform_mass, lift, cross(body.e, h)), cross(body.w, cross(body.w, h)))
    w = apply_t(body.R, body.w)
    moment = add(apply(machine.platform_inertia, apply_t(body.R, body.e)), cross(w, apply(machine.platform_inertia, w)))
    return force, add(apply(body.R, moment), cross(h, lift))


@inline
def state_forces(
    machine: Mechanism, x: Array, xd: Array, xdd: Array, wrench: Array, f_out: Array, f_cell_out: Array, JT: Array
) -> bool:
    """One state; JT (6, 6) is scratch. False at a singular pose, with NaN in the outputs."""
    platform = body(x, xd, xdd)
    force, moment = platform_wrench(machine, platform)
    n = machine.base_joint.shape[0]
    for i in range(n):
        leg = leg_motion(machine, i, platform)
        leg_force, leg_moment = leg_wrench(machine, i, leg)
        force, moment = add(force, leg_force), add(moment, leg_moment)
        lever = cross(leg.arm, leg.n)
        for k in range(3):
            JT[k, i] = leg.n[k]
            JT[3 + k, i] = lever[k]
        f_cell_out[i] = -below_cell_force(machine, i, leg)
    for k in range(3):
        f_out[k] = force[k] - wrench[k]
        f_out[3 + k] = moment[k] - wrench[3 + k]
    if solve(JT, f_out, 6) == 0.0:
        f_out[:] = math.nan
        f_cell_out[:] = math.nan
        return False
    for i in range(n):
        f_cell_out[i] += f_out[i]
    return True


@kernel(i64(MECHANISM, v1, v1, v1, v1, v1, v1))
def inverse_dynamics(
    machine: Mechanism, x: Array, xd: Array, xdd: Array, wrench: Array, f_out: Array, f_cell_out: Array
) -> int:
    """Actuator and load-cell forces (n,) of one state; 0, or -1 at a singular pose with NaN in the outputs."""
    return 0 if state_forces(machine, x, xd, xdd, wrench, f_out, f_cell_out, np.empty((6, 6))) else -1


@kernel(i64(MECHANISM, v2, v2, v2, v2, v2, v2))
def inverse_dynamics_batch(
    machine: Mechanism, x: Array, xd: Array, xdd: Array, wrench: Array, f_out: Array, f_cell_out: Array
) -> int:
    """As `inverse_dynamics` for N states, a row a state; returns the number of singular states."""
    JT = np.empty((6, 6))
    singular = 0
    for k in range(x.shape[0]):
        if not state_forces(machine, x[k], xd[k], xdd[k], wrench[k], f_out[k], f_cell_out[k], JT):
            singular += 1
    return singular
