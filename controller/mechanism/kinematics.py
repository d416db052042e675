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
from controller.mechanism.leg import leg_motion, leg_twist, line_of, platform_side
from controller.mechanism.platform import advance, angle_rates, angles, body, freedoms, independent, rotation
from controller.mechanism.spatial import Mat, Vec, add, apply, axpy, cross, dot, norm, scale, solve, sub, triple
from controller.records import Array

MAX_ITERATIONS = 20
WRONG_BRANCH = 1000


@inline
def cross_axis(axis: Vec, axis_d: Vec, n: Vec, n_d: Vec) -> tuple[Vec, Vec]:
    """Cross axis q of a U joint, scaled to q . n = 1, and its rate: q = (n - c axis) / (1 - c^2)."""
    c, c_d = dot(axis, n), dot(axis_d, n) + dot(axis, n_d)
    free = 1.0 / (1.0 - c * c)
    q = scale(free, axpy(-c, axis, n))
    return q, axpy(2.0 * c * c_d * free, q, scale(free, sub(axpy(-c_d, axis, n_d), scale(c, axis_d))))


@inline
def twist_row(row: Array, R: Mat, arm: Vec, n: Vec, length: float) -> tuple[Vec, Vec]:
    """Force and moment part of the row of J_psi: psi' = row [v, w] (Cong et al.)."""
    zero = (0.0, 0.0, 0.0)
    q_b, _ = cross_axis(triple(row, layout.BASE_AXIS), zero, n, zero)
    q_p, _ = cross_axis(apply(R, triple(row, layout.PLATFORM_AXIS)), zero, n, zero)
    k = scale(1.0 / length, cross(sub(q_b, q_p), n))
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
        q_out[i], qd_out[i], qdd_out[i] = leg.l, leg.ld, leg.ldd
        if row[layout.SCREW] == 0.0:
            twist[i] = 0.0
        else:
            side, screw = platform_side(row, leg, platform), row[layout.SCREW]
            twist[i] = leg_twist(row, platform.R, leg.n, twist[i])
            q_out[i] -= screw * twist[i]
            qd_out[i] -= screw * (side.w[2] - leg.base.w[2])
            qdd_out[i] -= screw * (side.e[2] - leg.base.e[2])


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


@kernel(types.void(MECHANISM, v1, v1, v2))
def jacobian_rate(machine: Mechanism, x: Array, xd: Array, Jd_out: Array) -> None:
    """Jd_out (n, 6), the rate of J at pose x and rates xd: q'' = J [a, e] + J' [v, w]."""
    platform = body(x, xd, np.zeros(6))
    zero = (0.0, 0.0, 0.0)
    for i in range(machine.legs.shape[0]):
        row = machine.legs[i]
        arm, n, length = line_of(row, platform.o, platform.R)
        arm_d = cross(platform.w, arm)
        v = add(platform.v, arm_d)
        length_d = dot(n, v)
        n_d = scale(1.0 / length, axpy(-length_d, n, v))
        line_d, lever_d = n_d, add(cross(arm_d, n), cross(arm, n_d))
        if row[layout.SCREW] != 0.0:
            q_b, q_b_d = cross_axis(triple(row, layout.BASE_AXIS), zero, n, n_d)
            axis = apply(platform.R, triple(row, layout.PLATFORM_AXIS))
            q_p, q_p_d = cross_axis(axis, cross(platform.w, axis), n, n_d)
            k = scale(1.0 / length, cross(sub(q_b, q_p), n))
            turning = add(cross(sub(q_b_d, q_p_d), n), cross(sub(q_b, q_p), n_d))
            k_d = scale(1.0 / length, axpy(-length_d, k, turning))
            t_d = add(add(cross(arm_d, k), cross(arm, k_d)), q_p_d)
            line_d, lever_d = axpy(-row[layout.SCREW], k_d, line_d), axpy(-row[layout.SCREW], t_d, lever_d)
        for j in range(3):
            Jd_out[i, j] = line_d[j]
            Jd_out[i, 3 + j] = lever_d[j]


@inline
def speeds(machine: Mechanism, o: Vec, R: Mat, J: Array, rates: Array, scratch: Array, u: Array) -> float:
    """Independent speeds u (freedoms,) with J G u = rates, least squares where legs outnumber freedoms.

    scratch (3, 6, 6). Returns the pivot ratio of the solution: 0 at a singular pose, its sign tells the branch.
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
    if n == f:
        for i in range(n):
            u[i] = rates[i]
        return solve(A, u, n)
    for j in range(f):
        u[j] = 0.0
        for i in range(n):
            u[j] += A[i, j] * rates[i]
        for k in range(f):
            N[j, k] = 0.0
            for i in range(n):
                N[j, k] += A[i, j] * A[i, k]
    return abs(solve(N, u, f))


@inline
def on_home_branch(machine: Mechanism, o: Vec, R: Mat, ratio: float) -> bool:
    """Whether a pose can be reached from home without dismantling: no leg has swung through 90 degrees against base
    or platform, and the determinant has the sign it has at home (between the signs lies a singular pose)."""
    for i in range(machine.legs.shape[0]):
        row = machine.legs[i]
        _, n, _ = line_of(row, o, R)
        if dot(n, triple(row, layout.HOME_LINE)) <= 0.0:
            return False
        if dot(n, apply(R, triple(row, layout.HOME_PLATFORM_LINE))) <= 0.0:
            return False
    return machine.platform[layout.BRANCH] * ratio >= 0.0


@kernel(i64(MECHANISM, v1, v1, v1, v1))
def forward(machine: Mechanism, q: Array, x_guess: Array, twist: Array, x_out: Array) -> int:
    """Pose x_out (6,) with axis positions q (n,), by Newton's method on the platform's manifold from x_guess.

    Rotations are updated by the exponential map: no Euler singularity on the way. `twist` (n,) is the branch of the
    screws at x_guess and becomes the one at x_out. Returns the iterations used. Negative: not converged
    (unreachable, or a start too far away), x_out is then the last iterate; at or below -WRONG_BRANCH: converged to a
    pose in which the machine cannot be assembled as it is at home. Converged means that a step was so small (1e-8 of
    the leg length) that the quadratic method ends at rounding; where legs outnumber freedoms a residual is left over.
    """
    o: Vec = (x_guess[0], x_guess[1], x_guess[2])
    R = rotation(x_guess[3], x_guess[4], x_guess[5])
    n = machine.legs.shape[0]
    rest, found, J, u, scratch = np.empty(n), np.empty(n), np.empty((n, 6)), np.empty(6), np.empty((3, 6, 6))
    length, radius = q.max(), machine.platform[layout.RADIUS]
    iterations, ratio = -MAX_ITERATIONS, 0.0
    for iteration in range(1, MAX_ITERATIONS + 1):
        axes_and_jacobian(machine, o, R, twist, rest, J, found)
        for i in range(n):
            rest[i] = q[i] - rest[i]
            twist[i] = found[i]
        ratio = speeds(machine, o, R, J, rest, scratch, u)
        if ratio == 0.0:
            break
        before = o
        o, R = advance(machine.platform, o, R, u)
        if freedoms(machine.platform) == 6:
            turn = norm((u[3], u[4], u[5]))
        elif machine.platform[layout.KIND] == layout.SPHERICAL:
            turn = norm((u[0], u[1], u[2]))
        else:
            turn = math.hypot(u[1], u[2])
        size = norm((o[0] - before[0], o[1] - before[1], o[2] - before[2])) + radius * turn
        if not size < 1e3 * length:  # diverged, or not a number
            break
        if size <= 1e-8 * length:
            iterations = iteration if on_home_branch(machine, o, R, ratio) else -WRONG_BRANCH - iteration
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
        gap = abs(at[i] - q[i])
        if not gap <= residual:  # NaN, too, must not pass for agreement
            residual = gap
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


@kernel(f64(MECHANISM, v1))
def branch(machine: Mechanism, x: Array) -> float:
    """Sign of the determinant of J G at x: changes only through a singular pose. 0 where legs outnumber freedoms."""
    n = machine.legs.shape[0]
    J, zero, scratch, u = np.empty((n, 6)), np.zeros((3, n)), np.empty((3, 6, 6)), np.empty(6)
    o, R = (x[0], x[1], x[2]), rotation(x[3], x[4], x[5])
    axes_and_jacobian(machine, o, R, zero[0], zero[1], J, zero[2])
    if n != freedoms(machine.platform):
        return 0.0
    zero[0, :] = 0.0
    ratio = speeds(machine, o, R, J, zero[0], scratch, u)
    return 0.0 if ratio == 0.0 else math.copysign(1.0, ratio)
