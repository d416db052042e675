"""Platform coordinates x y z yaw pitch roll and what they mean for the rigid body.

R = Rz(yaw) Ry(pitch) Rx(roll) (Ni et al., text before eq. (1)); twist [v, w] and acceleration [a, e] of the
platform origin o in base axes. The coordinates are singular at a pitch of 90 degrees, and nowhere else.

x, xd, xdd   pose, rate, acceleration of the six coordinates   (6,)   m, rad
R            platform axes to base axes                          3x3
v, w, a, e   velocity, angular velocity and their derivatives    (3,)   base axes
"""

import math
from typing import NamedTuple

from numba import types

from controller.mechanism.compile import inline, kernel, v1, v2
from controller.mechanism.spatial import Mat, Vec, add, axpy, cross, scale
from controller.records import Array


class Body(NamedTuple):
    """Motion of the platform as a rigid body, base axes, about o."""

    o: Vec
    R: Mat
    v: Vec
    w: Vec
    a: Vec
    e: Vec


@inline
def rotation(yaw: float, pitch: float, roll: float) -> Mat:
    """R = Rz(yaw) Ry(pitch) Rx(roll)."""
    ca, sa, cb, sb, cg, sg = (
        math.cos(yaw),
        math.sin(yaw),
        math.cos(pitch),
        math.sin(pitch),
        math.cos(roll),
        math.sin(roll),
    )
    return (
        (ca * cb, ca * sb * sg - sa * cg, ca * sb * cg + sa * sg),
        (sa * cb, sa * sb * sg + ca * cg, sa * sb * cg - ca * sg),
        (-sb, cb * sg, cb * cg),
    )


@kernel(types.void(v1, v2))
def rotation_matrix(x: Array, R_out: Array) -> None:
    """R_out (3, 3) of the pose x (6,)."""
    R = rotation(x[3], x[4], x[5])
    for i in range(3):
        for j in range(3):
            R_out[i, j] = R[i][j]


@inline
def body(x: Array, xd: Array, xdd: Array) -> Body:
    """Rigid-body motion from the six coordinates (Ni et al. eq. (2)-(4))."""
    ca, sa, cb, sb = math.cos(x[3]), math.sin(x[3]), math.cos(x[4]), math.sin(x[4])
    pitch_axis = (-sa, ca, 0.0)
    roll_axis = (ca * cb, sa * cb, -sb)
    yaw_rate = (0.0, 0.0, xd[3])
    pitch_axis_rate = cross(yaw_rate, pitch_axis)
    roll_axis_rate = cross(axpy(xd[4], pitch_axis, yaw_rate), roll_axis)
    w = add(axpy(xd[4], pitch_axis, yaw_rate), scale(xd[5], roll_axis))
    e = axpy(xdd[4], pitch_axis, axpy(xdd[5], roll_axis, (0.0, 0.0, xdd[3])))
    e = add(e, axpy(xd[4], pitch_axis_rate, scale(xd[5], roll_axis_rate)))
    return Body((x[0], x[1], x[2]), rotation(x[3], x[4], x[5]), (xd[0], xd[1], xd[2]), w, (xdd[0], xdd[1], xdd[2]), e)


@inline
def angles(R: Mat) -> Vec:
    """Yaw, pitch, roll of R, pitch in [-90, 90] degrees."""
    return (
        math.atan2(R[1][0], R[0][0]),
        math.atan2(-R[2][0], math.hypot(R[0][0], R[1][0])),
        math.atan2(R[2][1], R[2][2]),
    )


@inline
def angle_rates(yaw: float, pitch: float, w: Vec) -> Vec:
    """Rates of yaw, pitch, roll from the angular velocity; infinite at a pitch of 90 degrees."""
    ca, sa, cb, sb = math.cos(yaw), math.sin(yaw), math.cos(pitch), math.sin(pitch)
    roll_rate = (ca * w[0] + sa * w[1]) / cb
    return (w[2] + roll_rate * sb, ca * w[1] - sa * w[0], roll_rate)
