"""Columns of forces and whatever has a limit along a motion, with their derivatives: what an optimiser asks for.

N, n, f      states, legs, freedoms
b, c         columns of the observation matrix, channels that have a limit
u, ud, udd   independent coordinates and derivatives   (N, f)        m, rad: all six; yaw pitch roll of a spherical
             platform; z, a, b of 2R1T, o = z (0, -sin a, cos a), R = Rx(a) Ry(b)
Y            columns                                   (N, b, n)     newtons a unit
z            channels (value - middle) / half range    (N, c)        inside the limits from -1 to 1
s            one state: u, ud, udd as rows             (3, f)
Channels: axis positions, rates, accelerations, forces (n each), swings in the base and platform joints (n each), pose
(6), condition number of the Jacobian (1).

A column is the forces of the machine with one set of parameters; forces are affine in udd and quadratic in ud without
friction, so differences in these are exact whatever the step.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import types

from controller.mechanism import layout
from controller.mechanism.compile import inline, kernel, v2, v3
from controller.mechanism.dynamics import platform_wrench
from controller.mechanism.layout import MECHANISM, Mechanism
from controller.mechanism.leg import below_cell_force, leg_motion, leg_twist, leg_wrench, platform_side
from controller.mechanism.platform import Body, angle_rates, angles, rigid_motion
from controller.mechanism.posture import singular_values
from controller.mechanism.regressor import unit_forces
from controller.mechanism.spatial import add, apply, axpy, cross, dot, norm, scale, sub, triple
from controller.records import Array

POSE_STEP = 1e-5  # m, rad; central: 1e-10 of truncation, 1e-11 of rounding
RATE_STEP, ACCELERATION_STEP = 0.1, 1.0  # m/s, rad/s, m/s2, rad/s2: exact, see above
ZERO = (0.0, 0.0, 0.0)


class ParameterSets(NamedTuple):
    """A machine for each column: its geometry with that column's parameters, the rest 0. The last is the machine
    without friction, whose forces have limits."""

    legs: Array  # (b + 1, n, LEG_COLUMNS)
    platform: Array  # (b + 1, PLATFORM_COLUMNS)
    used: Array  # (b + 1, n + 1): 1 where a leg's, or last the platform's, parameters are not all 0


PARAMETER_SETS = types.NamedTuple((v3, v2, v2), ParameterSets)


@inline
def motion(platform: Array, s: Array) -> Body:
    """Rigid-body motion of the platform from its independent coordinates and their derivatives s (3, f)."""
    if platform[layout.KIND] == layout.FREE:
        return rigid_motion(
            triple(s[0], 0), triple(s[0], 3), triple(s[1], 0), triple(s[1], 3), triple(s[2], 0), triple(s[2], 3)
        )
    if platform[layout.KIND] == layout.SPHERICAL:
        home = triple(platform, layout.HOME)
        return rigid_motion(home, triple(s[0], 0), ZERO, triple(s[1], 0), ZERO, triple(s[2], 0))
    (z, a, b), (zd, ad, bd), (zdd, add_, bdd) = triple(s[0], 0), triple(s[1], 0), triple(s[2], 0)
    sa, ca, sb, cb = math.sin(a), math.cos(a), math.sin(b), math.cos(b)
    out, across, tilt_axis = (0.0, -sa, ca), (0.0, -ca, -sa), (0.0, ca, sa)
    return Body(
        scale(z, out),
        ((cb, 0.0, sb), (sa * sb, ca, -sa * cb), (-ca * sb, sa, ca * cb)),
        axpy(zd, out, scale(z * ad, across)),
        axpy(bd, tilt_axis, (ad, 0.0, 0.0)),
        axpy(zdd - z * ad * ad, out, scale(2.0 * zd * ad + z * add_, across)),
        axpy(bdd, tilt_axis, axpy(ad * bd, out, (add_, 0.0, 0.0))),
    )


@kernel(types.void(MECHANISM, v2, v2, v2, v2, v2, v2))
def platform_coordinates(
    machine: Mechanism, u: Array, ud: Array, udd: Array, x_out: Array, xd_out: Array, xdd_out: Array
) -> None:
    """The six platform coordinates and their derivatives (N, 6)."""
    s = np.empty((3, u.shape[1]))
    for k in range(u.shape[0]):
        s[0], s[1], s[2] = u[k], ud[k], udd[k]
        body = motion(machine.platform, s)
        turn = angles(body.R)
        rates = angle_rates(turn[0], turn[1], body.w)
        still = rigid_motion(ZERO, turn, ZERO, rates, ZERO, ZERO)  # its e is what the rates alone make
        accelerations = angle_rates(turn[0], turn[1], sub(body.e, still.e))
        for j in range(3):
            x_out[k, j], x_out[k, 3 + j] = body.o[j], turn[j]
            xd_out[k, j], xd_out[k, 3 + j] = body.v[j], rates[j]
            xdd_out[k, j], xdd_out[k, 3 + j] = body.a[j], accelerations[j]


@inline
def pose_channels(machine: Mechanism, body: Body, values: Array, z: Array) -> None:
    """Fill the channels that depend on the pose alone: swings, pose, condition number."""
    n = machine.legs.shape[0]
    x = np.empty(6)
    turn = angles(body.R)
    for j in range(3):
        x[j], x[3 + j] = body.o[j], turn[j]
    for i in range(n):
        row = machine.legs[i]
        arm = apply(body.R, triple(row, layout.PLATFORM_JOINT))
        line = sub(add(body.o, arm), triple(row, layout.BASE_JOINT))
        home = triple(row, layout.HOME_LINE)
        z[4 * n + i] = math.atan2(norm(cross(home, line)), dot(home, line))
        home = apply(body.R, triple(row, layout.HOME_PLATFORM_LINE))
        z[5 * n + i] = math.atan2(norm(cross(home, line)), dot(home, line))
    for j in range(6):
        z[6 * n + j] = x[j]
    singular_values(machine, x, values)
    z[6 * n + 6] = values.max() / values.min()


@inline
def motion_channels(
    machine: Mechanism, sets: ParameterSets, body: Body, cell: float, D: Array, Y: Array, z: Array
) -> None:
    """Fill Y (b, n) and the channels that depend on rates and accelerations; D (7, n) of `unit_forces`."""
    n, columns = machine.legs.shape[0], Y.shape[0]
    own = np.empty(n)  # what the last set's axes need for themselves
    W = np.zeros((columns + 1, 6))
    for j in range(columns):
        for i in range(n):
            Y[j, i] = 0.0
    for i in range(n):
        row = machine.legs[i]
        leg = leg_motion(machine, i, body)
        q, qd, qdd = leg.l, leg.ld, leg.ldd
        if row[layout.SCREW] != 0.0:
            side, screw = platform_side(row, leg, body), row[layout.SCREW]
            q -= screw * leg_twist(row, body.R, leg.n, 0.0)
            qd -= screw * (side.w[2] - leg.base.w[2])
            qdd -= screw * (side.e[2] - leg.base.e[2])
        z[i], z[n + i], z[2 * n + i] = q, qd, qdd
        own[i] = 0.0
        for j in range(columns + 1):
            if sets.used[j, i] == 0.0:
                continue
            one = Mechanism(sets.legs[j], sets.platform[j])
            force, moment, motor = leg_wrench(one, i, leg, body)
            for k in range(3):
                W[j, k] += force[k]
                W[j, 3 + k] += moment[k]
            if j == columns:
                own[i] = motor * row[layout.MOTOR_RAD_M]
            elif cell != 0.0:
                Y[j, i] -= below_cell_force(one, i, leg)
            else:
                Y[j, i] += motor * row[layout.MOTOR_RAD_M]
    for j in range(columns + 1):
        if sets.used[j, n] != 0.0:
            force, moment = platform_wrench(Mechanism(sets.legs[j], sets.platform[j]), body)
            for k in range(3):
                W[j, k] += force[k]
                W[j, 3 + k] += moment[k]
        for i in range(n):
            total = 0.0
            for k in range(6):
                total += D[k, i] * W[j, k]
            if j < columns:
                Y[j, i] += total
            else:
                z[3 * n + i] = total + own[i] + D[6, i]


@kernel(types.void(MECHANISM, PARAMETER_SETS, types.float64, v2, v2, v2, v2, v3, v2))
def observe(
    machine: Mechanism,
    sets: ParameterSets,
    cell: float,
    u: Array,
    ud: Array,
    udd: Array,
    scaling: Array,
    Y_out: Array,
    z_out: Array,
) -> None:
    """Columns Y_out (N, b, n) of load-cell forces (cell 1) or axis forces (cell 0), channels z_out (N, c).

    scaling (2, c): middle and half range of each channel. A singular pose has an infinite condition number.
    """
    n, f = machine.legs.shape[0], u.shape[1]
    s, D, values, wrench = np.empty((3, f)), np.empty((7, n)), np.empty(f), np.zeros(6)
    unit = Mechanism(sets.legs[0], sets.platform[0])  # without preload
    for k in range(u.shape[0]):
        s[0], s[1], s[2] = u[k], ud[k], udd[k]
        body = motion(machine.platform, s)
        unit_forces(machine, unit, body, wrench, D)
        pose_channels(machine, body, values, z_out[k])
        motion_channels(machine, sets, body, cell, D, Y_out[k], z_out[k])
        for c in range(z_out.shape[1]):
            z_out[k, c] = (z_out[k, c] - scaling[0, c]) / scaling[1, c]


@kernel(types.void(MECHANISM, PARAMETER_SETS, types.float64, v2, v2, v2, v2, v3, v2, v3))
def differentiate(
    machine: Mechanism,
    sets: ParameterSets,
    cell: float,
    u: Array,
    ud: Array,
    udd: Array,
    scaling: Array,
    weight: Array,
    slope_out: Array,
    z_slope_out: Array,
) -> None:
    """Derivatives by u, ud, udd, one after the other (3 f): of sum(weight Y) to slope_out (N, 3 f), where weight
    (N, b, n) is what an objective's derivative by Y is; of the channels to z_slope_out (N, c, 3 f)."""
    n, f, channels = machine.legs.shape[0], u.shape[1], z_slope_out.shape[1]
    b = weight.shape[1]
    s, D, D_moved, values, wrench = np.empty((3, f)), np.empty((7, n)), np.empty((7, n)), np.empty(f), np.zeros(6)
    Y, z = np.empty((2, b, n)), np.empty((2, channels))
    unit = Mechanism(sets.legs[0], sets.platform[0])  # without preload
    for k in range(u.shape[0]):
        s[0], s[1], s[2] = u[k], ud[k], udd[k]
        unit_forces(machine, unit, motion(machine.platform, s), wrench, D)
        for order in range(3):
            step = POSE_STEP if order == 0 else (RATE_STEP if order == 1 else ACCELERATION_STEP)
            for m in range(f):
                at = s[order, m]
                z[:, :] = 0.0  # the pose channels do not depend on rates
                for side in range(2):
                    s[order, m] = at + (step if side == 0 else -step)
                    body = motion(machine.platform, s)
                    if order == 0:
                        unit_forces(machine, unit, body, wrench, D_moved)
                        pose_channels(machine, body, values, z[side])
                        motion_channels(machine, sets, body, cell, D_moved, Y[side], z[side])
                    else:
                        motion_channels(machine, sets, body, cell, D, Y[side], z[side])
                s[order, m] = at
                total = 0.0
                for j in range(b):
                    for i in range(n):
                        total += weight[k, j, i] * (Y[0, j, i] - Y[1, j, i])
                slope_out[k, order * f + m] = total / (2.0 * step)
                for c in range(channels):
                    z_slope_out[k, c, order * f + m] = (z[0, c] - z[1, c]) / (2.0 * step * scaling[1, c])
