"""Inverse and forward kinematics.

x, xd, xdd   platform coordinates and their derivatives   (6,)   m, rad (controller.mechanism.platform)
l, ld, ldd   leg lengths and their derivatives            (n,)   m
twist        screw twist angles psi                       (n,)   rad; 0 at home and for legs without such a screw
q, qd, qdd   axis positions and their derivatives         (n,)   m: l, or l - hand lead/2pi psi for a screw that
             turns with the leg's twist (Cong et al.): what the drive moves. They are l at home.
J            q' = J [v, w]                                (n, 6) base axes, about o
"""

import math

import numpy as np
from numba import types

from controller.mechanism import layout
from controller.mechanism.compile import f64, i64, inline, kernel, v1, v2
from controller.mechanism.layout import MECHANISM, Mechanism
from controller.mechanism.leg import leg_motion, leg_twist, line_of
from controller.mechanism.platform import advance, angle_rates, angles, body, freedoms, independent, rotation
from controller.mechanism.spatial import Mat, Vec, add, apply, axpy, cross, dot, norm, scale, solve, triple
from controller.records import Array

MAX_ITERATIONS = 20


@inline
def twist_row(row: Array, R: Mat, arm: Vec, n: Vec, length: float) -> tuple[Vec, Vec]:
    """Force and moment part of the row of J_psi: psi' = row [v, w] (Cong et al.; checked by finite differences)."""
    axis = triple(row, layout.BASE_AXIS)
    c = dot(axis, n)
    q_b = scale(1.0 / (1.0 - c * c), axpy(-c, axis, n))
    axis = apply(R, triple(row, layout.PLATFORM_AXIS))
    c = dot(axis, n)
    q_p = scale(1.0 / (1.0 - c * c), axpy(-c, axis, n))
    difference = (q_b[0] - q_p[0], q_b[1] - q_p[1], q_b[2] - q_p[2])
    k = scale(1.0 / length, cross(difference, n))
    return k, add(cross(arm, k), q_p)


@inline
def axes_and_jacobian(machine: Mechanism, o: Vec, R: Mat, near: Array, q: Array, J: Array, twist: Array) -> None:
    """Axis positions, Jacobian and twists at position o and rotation R; twists on the branch nearest to `near`."""
    for i in range(machine.legs.shape[0]):
        row = machine.legs[i]
        arm, n, length = line_of(row, o, R)
        m = cross(arm, n)
        q[i], twist[i] = length, 0.0
        if row[layout.SCREW] != 0.0:
            twist[i] = leg_twist(row, R, n, near[i])
            q[i] -= row[layout.SCREW] * twist[i]
            k, t = twist_row(row, R, arm, n, length)
            n, m = axpy(-row[layout.SCREW], k, n), axpy(-row[layout.SCREW], t, m)
        for j in range(3):
            J[i, j] = n[j]
            J[i, 3 + j] = m[j]


@kernel(types.void(MECHANISM, v1, v1))
def leg_lengths(machine: Mechanism, x: Array, l_out: Array) -> None:
    """Leg lengths l_out (n,) at pose x (Ni et al. eq. (5))."""
    R = rotation(x[3], x[4], x[5])
    for i in range(machine.legs.shape[0]):
        _, _, l_out[i] = line_of(machine.legs[i], (x[0], x[1], x[2]), R)


@kernel(types.void(MECHANISM, v1, v1, v1))
def twists(machine: Mechanism, x: Array, near: Array, twist_out: Array) -> None:
    """Twist angles (n,) of all legs with a U joint in the platform, on the branch nearest to `near`; else 0."""
    R = rotation(x[3], x[4], x[5])
    for i in range(machine.legs.shape[0]):
        row = machine.legs[i]
        _, n, _ = line_of(row, (x[0], x[1], x[2]), R)
        twist_out[i] = leg_twist(row, R, n, near[i]) if row[layout.PLATFORM_UNIVERSAL] != 0.0 else 0.0


@kernel(types.void(MECHANISM, v1, v1, v1, v1, v1, v1))
def leg_rates(machine: Mechanism, x: Array, xd: Array, xdd: Array, l_out: Array, ld_out: Array, ldd_out: Array) -> None:
    """Leg lengths, rates and accelerations (n,) (Ni et al. eq. (5)-(12))."""
    platform = body(x, xd, xdd)
    for i in range(machine.legs.shape[0]):
        leg = leg_motion(machine, i, platform)
        l_out[i], ld_out[i], ldd_out[i] = leg.l, leg.ld, leg.ldd


@kernel(types.void(MECHANISM, v2, v2, v2, v2, v2, v2))
def leg_rates_batch(
    machine: Mechanism, x: Array, xd: Array, xdd: Array, l_out: Array, ld_out: Array, ldd_out: Array
) -> None:
    """As `leg_rates` for N states, a row a state."""
    for k in range(x.shape[0]):
        leg_rates(machine, x[k], xd[k], xdd[k], l_out[k], ld_out[k], ldd_out[k])


@kernel(types.void(MECHANISM, v1, v1, v1, v1, v1, v1, v1))
def axis_rates(
    machine: Mechanism, x: Array, xd: Array, xdd: Array, twist: Array, q_out: Array, qd_out: Array, qdd_out: Array
) -> None:
    """Axis positions, rates and accelerations (n,); `twist` (n,) is the branch to stay near, and becomes the twist."""
    platform = body(x, xd, xdd)
    for i in range(machine.legs.shape[0]):
        row = machine.legs[i]
        leg = leg_motion(machine, i, platform)
        screw = row[layout.SCREW]
        twist[i] = leg_twist(row, platform.R, leg.n, twist[i]) if screw != 0.0 else 0.0
        q_out[i] = leg.l - screw * twist[i]
        qd_out[i] = leg.ld - screw * leg.spin
        qdd_out[i] = leg.ldd - screw * leg.spin_d


@kernel(types.void(MECHANISM, v2, v2, v2, v2, v2, v2, v2))
def axis_rates_batch(
    machine: Mechanism, x: Array, xd: Array, xdd: Array, twist: Array, q_out: Array, qd_out: Array, qdd_out: Array
) -> None:
    """As `axis_rates` for N states, a row a state."""
    for k in range(x.shape[0]):
        axis_rates(machine, x[k], xd[k], xdd[k], twist[k], q_out[k], qd_out[k], qdd_out[k])


@kernel(types.void(MECHANISM, v1, v2))
def jacobian(machine: Mechanism, x: Array, J_out: Array) -> None:
    """J_out (n, 6) at pose x: q' = J [v, w]."""
    scratch = np.zeros((3, machine.legs.shape[0]))
    R = rotation(x[3], x[4], x[5])
    axes_and_jacobian(machine, (x[0], x[1], x[2]), R, scratch[0], scratch[1], J_out, scratch[2])


@inline
def speeds(machine: Mechanism, o: Vec, R: Mat, J: Array, rates: Array, scratch: Array, u: Array) -> float:
    """Independent speeds u (freedoms,) with J G u = rates, least squares where legs outnumber freedoms.

    scratch (3, 6, 6). Returns the pivot ratio of the solution, 0 at a singular pose.
    """
    n, f = J.shape[0], freedoms(machine.platform)
    A, G, N = scratch[0], scratch[1], scratch[2]
    if f == 6:
        for i in range(n):
            u[i] = rates[i]
            for j in range(6):
                A[i, j] = J[i, j]
        return solve(A, u, 6)
    independent(machine.platform, o, R, G)
    for i in range(n):
        for j in range(f):
            A[i, j] = 0.0
            for k in range(6):
                A[i, j] += J[i, k] * G[k, j]
    for j in range(f):
        u[j] = 0.0
        for i in range(n):
            u[j] += A[i, j] * rates[i]
        for k in range(f):
            N[j, k] = 0.0
            for i in range(n):
                N[j, k] += A[i, j] * A[i, k]
    return solve(N, u, f)


@kernel(i64(MECHANISM, v1, v1, v1, v1))
def forward(machine: Mechanism, q: Array, x_guess: Array, twist: Array, x_out: Array) -> int:
    """Pose x_out (6,) with axis positions q (n,), by Newton's method on the platform's manifold from x_guess.

    Rotations are updated by the exponential map: no Euler singularity on the way. `twist` (n,) is the branch at
    x_guess and becomes the one at x_out. Returns the iterations used; negative when not converged (unreachable, or
    a start too far away): x_out is then the last iterate. Converged means that a step was so small (1e-8 of the
    leg length) that the quadratic method ends at rounding; where legs outnumber freedoms the residual is left over.
    """
    o: Vec = (x_guess[0], x_guess[1], x_guess[2])
    R = rotation(x_guess[3], x_guess[4], x_guess[5])
    n = machine.legs.shape[0]
    rest, found, J, u, scratch = np.empty(n), np.empty(n), np.empty((n, 6)), np.empty(6), np.empty((3, 6, 6))
    length, radius = q.max(), machine.platform[layout.RADIUS]
    iterations = -MAX_ITERATIONS
    for iteration in range(1, MAX_ITERATIONS + 1):
        axes_and_jacobian(machine, o, R, twist, rest, J, found)
        for i in range(n):
            rest[i] = q[i] - rest[i]
            twist[i] = found[i]
        if speeds(machine, o, R, J, rest, scratch, u) == 0.0:
            break
        before = o
        o, R = advance(machine.platform, o, R, u)
        if freedoms(machine.platform) == 6:
            turn = norm((u[3], u[4], u[5]))
        elif machine.platform[layout.KIND] == layout.SPHERICAL:
            turn = norm((u[0], u[1], u[2]))
        else:
            turn = math.hypot(u[1], u[2])
        size = max(norm((o[0] - before[0], o[1] - before[1], o[2] - before[2])), radius * turn)
        if not size < 1e3 * length:  # diverged, or not a number
            break
        if size <= 1e-8 * length:
            iterations = iteration
            break
    yaw, pitch, roll = angles(R)
    x_out[0], x_out[1], x_out[2], x_out[3], x_out[4], x_out[5] = o[0], o[1], o[2], yaw, pitch, roll
    return iterations


@kernel(f64(MECHANISM, v1, v1, v1, v1, v1))
def platform_rate(machine: Mechanism, x: Array, twist: Array, q: Array, qd: Array, xd_out: Array) -> float:
    """Rates xd_out (6,) of the platform coordinates from axis rates qd (n,), NaN at a singular pose.

    Returns max |q(x) - q|, the residual of the pose.
    """
    n = machine.legs.shape[0]
    at, found, J, u, scratch = np.empty(n), np.empty(n), np.empty((n, 6)), np.empty(6), np.empty((3, 6, 6))
    o, R = (x[0], x[1], x[2]), rotation(x[3], x[4], x[5])
    axes_and_jacobian(machine, o, R, twist, at, J, found)
    residual = 0.0
    for i in range(n):
        residual = max(residual, abs(at[i] - q[i]))
    if speeds(machine, o, R, J, qd, scratch, u) == 0.0:
        u[:] = math.nan
    f, G = freedoms(machine.platform), scratch[1]
    if f == 6:
        for j in range(6):
            xd_out[j] = u[j]
    else:
        for k in range(6):
            xd_out[k] = 0.0
            for j in range(f):
                xd_out[k] += G[k, j] * u[j]
    rates = angle_rates(x[3], x[4], (xd_out[3], xd_out[4], xd_out[5]))
    xd_out[3], xd_out[4], xd_out[5] = rates
    return residual


@kernel(types.void(MECHANISM, v1, v2))
def independent_motions(machine: Mechanism, x: Array, G_out: Array) -> None:
    """G_out (6, 6) at pose x: twist = G u; columns beyond the freedoms are 0."""
    independent(machine.platform, (x[0], x[1], x[2]), rotation(x[3], x[4], x[5]), G_out)


def condition(machine: Mechanism, x: Array) -> float:
    """Condition number of the Jacobian at x over the free motions, rotations scaled by the platform radius: the
    same in any unit of length."""
    J, G = np.empty((len(machine.legs), 6)), np.empty((6, 6))
    jacobian(machine, x, J)
    if machine.platform[layout.KIND] != layout.FREE:
        independent_motions(machine, x, G)
        scaled = G[:, :3].copy()
        scaled[3:] *= machine.platform[layout.RADIUS]
        J = J @ (G[:, :3] / np.linalg.norm(scaled, axis=0))
    else:
        J[:, 3:] /= machine.platform[layout.RADIUS]
    values = np.linalg.svd(J, compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] > 0.0 else math.inf
