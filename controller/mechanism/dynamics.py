"""Inverse dynamics: axis and load-cell forces from the motion of the platform, and what follows from it.

x, xd, xdd   platform coordinates and their derivatives              (6,)   m, rad
wrench       external force and moment on the platform about o       (6,)   N, N m, base axes
f            forces along the axes, > 0 extends the leg              (n,)   N; a motor on a screw that turns with the
             twist gives f lead / (2 pi gear_ratio), its rotor included; other drives add their own
             (controller.mechanism.drive)
f_cell       load-cell forces, > 0 compression                       (n,)   N
JT, A        scratch of the solution
Source: Ni et al. eq. (20)-(37); Hao et al. for fewer freedoms than six: (J G)^T f = G^T W with twist = G u.
"""

import math

import numpy as np
from numba import types

from controller.mechanism import layout
from controller.mechanism.compile import i64, inline, kernel, v1, v2
from controller.mechanism.kinematics import twist_row
from controller.mechanism.layout import MECHANISM, Mechanism
from controller.mechanism.leg import (
    STICTION_SPEED_M_S,
    below_cell_force,
    lateral,
    leg_motion,
    leg_wrench,
    sliding_friction,
)  # fmt: skip
from controller.mechanism.platform import Body, body, body_of_row, freedoms, independent
from controller.mechanism.spatial import Vec, add, apply, apply_t, axpy, cross, dot, solve, sub, symmetric, triple
from controller.records import Array


@inline
def platform_wrench(machine: Mechanism, body: Body) -> tuple[Vec, Vec]:
    """Inertial minus gravity force and moment about o of the platform, base axes."""
    platform = machine.platform
    h = apply(body.R, triple(platform, layout.MOMENT))
    lift = sub(body.a, triple(platform, layout.GRAVITY))
    force = add(axpy(platform[layout.MASS], lift, cross(body.e, h)), cross(body.w, cross(body.w, h)))
    w = apply_t(body.R, body.w)
    turning = symmetric(platform, layout.INERTIA, apply_t(body.R, body.e))
    turning = add(turning, cross(w, symmetric(platform, layout.INERTIA, w)))
    return force, add(apply(body.R, turning), cross(h, lift))


@inline
def distribute(machine: Mechanism, body: Body, W: Array, JT: Array, f: Array, scratch: Array) -> bool:
    """Axis forces f (n,) with (J G)^T f = G^T W; JT (6, n) and W (6,) are destroyed. False at a singular pose.

    Legs beyond the freedoms share: the forces nearest to the preload, the least norm when that is 0.
    """
    n, free = JT.shape[1], freedoms(machine.platform)
    if free == 6:
        for i in range(6):
            f[i] = W[i]
        return solve(JT, f, 6) != 0.0
    G, A, N, b = scratch[0], scratch[1], scratch[2], np.zeros(free)
    independent(machine.platform, body.o, body.R, G)
    for j in range(free):
        for k in range(6):
            b[j] += G[k, j] * W[k]
        for i in range(n):
            A[j, i] = 0.0
            for k in range(6):
                A[j, i] += G[k, j] * JT[k, i]
            b[j] -= A[j, i] * machine.legs[i, layout.PRELOAD] * (n > free)
    if n == free:
        ratio = solve(A, b, n)
        for i in range(n):
            f[i] = b[i]
        return ratio != 0.0
    for j in range(free):
        for k in range(free):
            N[j, k] = 0.0
            for i in range(n):
                N[j, k] += A[j, i] * A[k, i]
    ratio = solve(N, b, free)
    for i in range(n):
        f[i] = machine.legs[i, layout.PRELOAD]
        for j in range(free):
            f[i] += A[j, i] * b[j]
    return ratio != 0.0


@inline
def required(machine: Mechanism, body: Body, JT: Array, W: Array, own: Array, below: Array, rate: Array) -> None:
    """What the motion asks for: wrench W (6,) that the axes have to put on the platform through J^T (6, n), and of
    each axis (n,) the force it needs for itself (friction, rotor), the force of the links below the cell, its rate."""
    force, moment = platform_wrench(machine, body)
    for i in range(machine.legs.shape[0]):
        row = machine.legs[i]
        leg = leg_motion(machine, i, body)
        leg_force, leg_moment, motor = leg_wrench(machine, i, leg, body)
        force, moment = add(force, leg_force), add(moment, leg_moment)
        line, lever = leg.n, cross(leg.arm, leg.n)
        rate[i] = leg.ld
        if row[layout.SCREW] != 0.0:
            k, t = twist_row(row, body.R, leg.arm, leg.n, leg.l)
            line, lever = axpy(-row[layout.SCREW], k, line), axpy(-row[layout.SCREW], t, lever)
            rate[i] = dot(line, body.v) + dot(lever, body.w)
        for k in range(3):
            JT[k, i] = line[k]
            JT[3 + k, i] = lever[k]
        own[i] = sliding_friction(machine, i, leg, body) + motor * row[layout.MOTOR_RAD_M]
        below[i] = below_cell_force(machine, i, leg)
    for k in range(3):
        W[k], W[3 + k] = force[k], moment[k]


@inline
def transmitted(force: float, rate: float, efficiency: float) -> float:
    """Force a drive puts in to pass `force` on at `rate`: more by 1/efficiency when it drives, less when driven."""
    if efficiency in (0.0, 1.0):  # 0: no such drive
        return force
    driving = math.tanh(math.copysign(1.0, force) * rate / STICTION_SPEED_M_S)
    return 0.5 * force * (1.0 / efficiency + efficiency + driving * (1.0 / efficiency - efficiency))


@inline
def state_forces(machine: Mechanism, body: Body, f: Array, f_cell: Array, W: Array, JT: Array, scratch: Array) -> bool:
    """One state; W (6,) holds the external wrench and is destroyed, JT (6, n) and scratch (4, 6, 6).

    False at a singular pose, with NaN in f and f_cell (n,).
    """
    n = machine.legs.shape[0]
    own, rate, wanted = scratch[3, 0], scratch[3, 1], scratch[3, 2]
    required(machine, body, JT, wanted, own, f_cell, rate)
    for k in range(6):
        W[k] = wanted[k] - W[k]
    if not distribute(machine, body, W, JT, f, scratch):
        f[:] = math.nan
        f_cell[:] = math.nan
        return False
    for i in range(n):
        f_cell[i] = f[i] - f_cell[i]  # what an axis needs for itself does not pass through the cell
        f[i] = transmitted(f[i], rate[i], machine.legs[i, layout.EFFICIENCY]) + own[i]
    return True


@kernel(i64(MECHANISM, v1, v1, v1, v1, v1, v1))
def inverse_dynamics(
    machine: Mechanism, x: Array, xd: Array, xdd: Array, wrench: Array, f_out: Array, f_cell_out: Array
) -> int:
    """Axis and load-cell forces (n,) of one state; 0, or -1 at a singular pose with NaN in the outputs."""
    JT, scratch = np.empty((6, machine.legs.shape[0])), np.empty((4, 6, 6))
    return 0 if state_forces(machine, body(x, xd, xdd), f_out, f_cell_out, wrench.copy(), JT, scratch) else -1


@kernel(i64(MECHANISM, v2, v2, v2, v2, v2, v2))
def inverse_dynamics_batch(
    machine: Mechanism, x: Array, xd: Array, xdd: Array, wrench: Array, f_out: Array, f_cell_out: Array
) -> int:
    """As `inverse_dynamics` for N states, a row a state; returns the number of singular states."""
    n = machine.legs.shape[0]
    JT, scratch, W, f, f_cell = np.empty((6, n)), np.empty((4, 6, 6)), np.empty(6), np.empty(n), np.empty(n)
    singular = 0
    for k in range(x.shape[0]):
        for j in range(6):
            W[j] = wrench[k, j]
        if not state_forces(machine, body_of_row(x, xd, xdd, k), f, f_cell, W, JT, scratch):
            singular += 1
        for i in range(n):
            f_out[k, i], f_cell_out[k, i] = f[i], f_cell[i]
    return singular


@kernel(types.void(MECHANISM, v2, v2, v2, v2, v2))
def lateral_batch(machine: Mechanism, x: Array, xd: Array, xdd: Array, force_out: Array, moment_out: Array) -> None:
    """Lateral force and moment (N, 2 n) of cylinder on rod about the platform joint, x and y of each leg's frame."""
    for k in range(x.shape[0]):
        platform = body(x[k], xd[k], xdd[k])
        for i in range(machine.legs.shape[0]):
            fx, fy, tx, ty = lateral(machine, i, leg_motion(machine, i, platform), platform)
            force_out[k, 2 * i], force_out[k, 2 * i + 1] = fx, fy
            moment_out[k, 2 * i], moment_out[k, 2 * i + 1] = tx, ty


@kernel(types.void(MECHANISM, v1, v1, v2, v1))
def equation_of_motion(machine: Mechanism, x: Array, xd: Array, M_out: Array, h_out: Array) -> None:
    """Mass matrix M_out (6, 6) and bias h_out (6,) at pose x and rates xd: J^T f + W_e = M [a, e] + h.

    In the twist of the platform about o, base axes; legs, rotors of twisting screws, gravity and friction included.
    For fewer freedoms than six restrict it: G^T M G.
    """
    n = machine.legs.shape[0]
    still = body(x, xd, np.zeros(6))
    JT, W, work = np.empty((6, n)), np.empty(6), np.empty((3, n))
    for column in range(-1, 6):
        a = (1.0 if column == 0 else 0.0, 1.0 if column == 1 else 0.0, 1.0 if column == 2 else 0.0)
        e = (1.0 if column == 3 else 0.0, 1.0 if column == 4 else 0.0, 1.0 if column == 5 else 0.0)
        if column < 0:  # no acceleration at all: the bias
            e = (0.0, 0.0, 0.0)
        moving = Body(still.o, still.R, still.v, still.w, a, e)
        required(machine, moving, JT, W, work[0], work[1], work[2])
        for k in range(6):
            total = W[k]
            for i in range(n):
                total += JT[k, i] * work[0, i]
            if column < 0:
                h_out[k] = total
            else:
                M_out[k, column] = total - h_out[k]


@kernel(types.void(MECHANISM, v1, v1, v1, v1, v1))
def external_wrench(machine: Mechanism, x: Array, xd: Array, xdd: Array, f: Array, wrench_out: Array) -> None:
    """External wrench (6,) on the platform from the axis forces f (n,): the machine as a six-axis force sensor.

    Of a platform with fewer freedoms than six only G^T wrench means anything.
    """
    n = machine.legs.shape[0]
    JT, work = np.empty((6, n)), np.empty((3, n))
    required(machine, body(x, xd, xdd), JT, wrench_out, work[0], work[1], work[2])
    for k in range(6):
        for i in range(n):
            wrench_out[k] -= JT[k, i] * (f[i] - work[0, i])


@kernel(types.void(MECHANISM, v1, v1, v1, v1, v1))
def external_wrench_from_cells(
    machine: Mechanism, x: Array, xd: Array, xdd: Array, f_cell: Array, wrench_out: Array
) -> None:
    """As `external_wrench` from the load-cell forces f_cell (n,), which no friction of the drives disturbs."""
    n = machine.legs.shape[0]
    JT, work = np.empty((6, n)), np.empty((3, n))
    required(machine, body(x, xd, xdd), JT, wrench_out, work[0], work[1], work[2])
    for k in range(6):
        for i in range(n):
            wrench_out[k] -= JT[k, i] * (f_cell[i] + work[1, i])
