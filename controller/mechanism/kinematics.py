"""Inverse and forward kinematics.

x, xd, xdd   platform coordinates and their derivatives   (6,)   m, rad (controller.mechanism.platform)
q, qd, qdd   leg lengths and their derivatives            (n,)   m
J            q' = J [v, w]                                (n, 6) base axes, about o
"""

import math

import numpy as np
from numba import types

from controller.mechanism.compile import f64, i64, inline, kernel, v1, v2
from controller.mechanism.leg import leg_motion
from controller.mechanism.model import MECHANISM, Mechanism
from controller.mechanism.platform import angle_rates, angles, body, rotation
from controller.mechanism.spatial import (
    Mat,
    Vec,
    add,
    apply,
    cross,
    exponential,
    multiply,
    norm,
    scale,
    solve,
    sub,
    vec,
)
from controller.records import Array

MAX_ITERATIONS = 20


@inline
def lengths_and_jacobian(machine: Mechanism, o: Vec, R: Mat, q_out: Array, J_out: Array) -> None:
    """Leg lengths and the Jacobian rows [n, e x n] at position o and rotation R."""
    for i in range(machine.base_joint.shape[0]):
        arm = apply(R, vec(machine.platform_joint[i]))
        line = sub(add(o, arm), vec(machine.base_joint[i]))
        q_out[i] = norm(line)
        n = scale(1.0 / q_out[i], line)
        m = cross(arm, n)
        for k in range(3):
            J_out[i, k] = n[k]
            J_out[i, 3 + k] = m[k]


@kernel(types.void(MECHANISM, v1, v1))
def leg_lengths(machine: Mechanism, x: Array, q_out: Array) -> None:
    """Leg lengths q_out (n,) at pose x (Ni et al. eq. (5))."""
    R = rotation(x[3], x[4], x[5])
    for i in range(machine.base_joint.shape[0]):
        arm = apply(R, vec(machine.platform_joint[i]))
        q_out[i] = norm(sub(add((x[0], x[1], x[2]), arm), vec(machine.base_joint[i])))


@kernel(types.void(MECHANISM, v1, v1, v1, v1, v1, v1))
def leg_rates(machine: Mechanism, x: Array, xd: Array, xdd: Array, q_out: Array, qd_out: Array, qdd_out: Array) -> None:
    """Leg lengths, rates and accelerations (n,) (Ni et al. eq. (5)-(12))."""
    platform = body(x, xd, xdd)
    for i in range(machine.base_joint.shape[0]):
        leg = leg_motion(machine, i, platform)
        q_out[i], qd_out[i], qdd_out[i] = leg.l, leg.ld, leg.ldd


@kernel(types.void(MECHANISM, v2, v2, v2, v2, v2, v2))
def leg_rates_batch(
    machine: Mechanism, x: Array, xd: Array, xdd: Array, q_out: Array, qd_out: Array, qdd_out: Array
) -> None:
    """As `leg_rates` for N states, a row a state."""
    for k in range(x.shape[0]):
        platform = body(x[k], xd[k], xdd[k])
        for i in range(machine.base_joint.shape[0]):
            leg = leg_motion(machine, i, platform)
            q_out[k, i], qd_out[k, i], qdd_out[k, i] = leg.l, leg.ld, leg.ldd


@kernel(types.void(MECHANISM, v1, v2))
def jacobian(machine: Mechanism, x: Array, J_out: Array) -> None:
    """J_out (n, 6) at pose x: q' = J [v, w]."""
    q = np.empty(machine.base_joint.shape[0])
    lengths_and_jacobian(machine, (x[0], x[1], x[2]), rotation(x[3], x[4], x[5]), q, J_out)


@kernel(i64(MECHANISM, v1, v1, v1))
def forward(machine: Mechanism, q: Array, x_guess: Array, x_out: Array) -> int:
    """Pose x_out (6,) with leg lengths q (n,), by Newton's method on position and rotation from x_guess.

    Rotations are updated by the exponential map: no Euler singularity on the way. Returns the iterations used;
    negative when not converged (unreachable lengths, or a start too far away): x_out is then the last iterate.
    Converged means that a step was so small (1e-8 of the leg length) that the quadratic method ends at rounding.
    """
    o: Vec = (x_guess[0], x_guess[1], x_guess[2])
    R = rotation(x_guess[3], x_guess[4], x_guess[5])
    n = machine.base_joint.shape[0]
    step, J = np.empty(n), np.empty((n, 6))
    scale_m = q.max()
    iterations = -MAX_ITERATIONS
    for iteration in range(1, MAX_ITERATIONS + 1):
        lengths_and_jacobian(machine, o, R, step, J)
        for i in range(n):
            step[i] = q[i] - step[i]
        if solve(J, step, 6) == 0.0:
            break
        o = add(o, (step[0], step[1], step[2]))
        turn = (step[3], step[4], step[5])
        R = multiply(exponential(turn), R)  # pyright: ignore[reportConstantRedefinition]
        size = max(math.sqrt(step[0] ** 2 + step[1] ** 2 + step[2] ** 2), machine.radius * norm(turn))
        if not size < 1e3 * scale_m:  # diverged, or not a number
            break
        if size <= 1e-8 * scale_m:
            iterations = iteration
            break
    yaw, pitch, roll = angles(R)
    x_out[0], x_out[1], x_out[2], x_out[3], x_out[4], x_out[5] = o[0], o[1], o[2], yaw, pitch, roll
    return iterations


@kernel(f64(MECHANISM, v1, v1, v1, v1))
def platform_rate(machine: Mechanism, x: Array, q: Array, qd: Array, xd_out: Array) -> float:
    """Rates xd_out (6,) of the platform coordinates from leg rates qd (n,); returns max |q(x) - q|, the residual."""
    n = machine.base_joint.shape[0]
    at, J = np.empty(n), np.empty((n, 6))
    lengths_and_jacobian(machine, (x[0], x[1], x[2]), rotation(x[3], x[4], x[5]), at, J)
    residual = 0.0
    for i in range(n):
        residual = max(residual, abs(at[i] - q[i]))
        xd_out[i] = qd[i]
    if solve(J, xd_out, 6) == 0.0:
        xd_out[:] = math.nan
    rates = angle_rates(x[3], x[4], (xd_out[3], xd_out[4], xd_out[5]))
    xd_out[3], xd_out[4], xd_out[5] = rates
    return residual


def condition(machine: Mechanism, x: Array) -> float:
    """Condition number of the Jacobian at x, rotations scaled by the platform radius: the same in any unit."""
    J = np.empty((machine.base_joint.shape[0], 6))
    jacobian(machine, x, J)
    J[:, 3:] /= machine.radius
    values = np.linalg.svd(J, compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] > 0.0 else math.inf
