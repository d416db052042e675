"""Platform coordinates x y z yaw pitch roll, what they mean for the rigid body, and which motions it is free to make.

R = Rz(yaw) Ry(pitch) Rx(roll) (Ni et al., text before eq. (1)); twist [v, w] and acceleration [a, e] of the
platform origin o in base axes. The coordinates are singular at a pitch of 90 degrees, and nowhere else: a
spherical platform is regular at the level pose, where tilt and torsion are not.

x, xd, xdd   pose, rate, acceleration of the six coordinates   (6,)   m, rad
R            platform axes to base axes                          3x3
v, w, a, e   velocity, angular velocity and their derivatives    (3,)   base axes
G            twist = G u, u the independent speeds              (6, freedoms)
"""

import math
from typing import NamedTuple

import numpy as np
from numba import types

from controller.mechanism import layout
from controller.mechanism.compile import f64, inline, kernel, v1, v2
from controller.mechanism.spatial import (
    Mat,
    Vec,
    add,
    axpy,
    cross,
    dot,
    exponential,
    multiply,
    norm,
    scale,
    sub,
    triple,
)  # fmt: skip
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
    ca, sa, cb, sb = math.cos(yaw), math.sin(yaw), math.cos(pitch), math.sin(pitch)
    cg, sg = math.cos(roll), math.sin(roll)
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
def rigid_motion(o: Vec, angles: Vec, v: Vec, rates: Vec, a: Vec, accelerations: Vec) -> Body:
    """Rigid-body motion from position, yaw pitch roll, and the derivatives of both (Ni et al. eq. (2)-(4))."""
    ca, sa, cb, sb = math.cos(angles[0]), math.sin(angles[0]), math.cos(angles[1]), math.sin(angles[1])
    cg, sg = math.cos(angles[2]), math.sin(angles[2])
    R = (
        (ca * cb, ca * sb * sg - sa * cg, ca * sb * cg + sa * sg),
        (sa * cb, sa * sb * sg + ca * cg, sa * sb * cg - ca * sg),
        (-sb, cb * sg, cb * cg),
    )
    pitch_axis = (-sa, ca, 0.0)
    roll_axis = (ca * cb, sa * cb, -sb)
    yaw_rate = (0.0, 0.0, rates[0])
    pitch_axis_rate = (-rates[0] * ca, -rates[0] * sa, 0.0)
    roll_axis_rate = cross(axpy(rates[1], pitch_axis, yaw_rate), roll_axis)
    w = add(axpy(rates[1], pitch_axis, yaw_rate), scale(rates[2], roll_axis))
    e = axpy(accelerations[1], pitch_axis, axpy(accelerations[2], roll_axis, (0.0, 0.0, accelerations[0])))
    e = add(e, axpy(rates[1], pitch_axis_rate, scale(rates[2], roll_axis_rate)))
    return Body(o, R, v, w, a, e)


@inline
def body(x: Array, xd: Array, xdd: Array) -> Body:
    """Rigid-body motion from the six coordinates and their derivatives."""
    return rigid_motion(triple(x, 0), triple(x, 3), triple(xd, 0), triple(xd, 3), triple(xdd, 0), triple(xdd, 3))


@inline
def body_of_row(x: Array, xd: Array, xdd: Array, k: int) -> Body:
    """As `body` for row k of (N, 6): without a view of the row, which costs as much as a leg."""
    return rigid_motion(
        (x[k, 0], x[k, 1], x[k, 2]), (x[k, 3], x[k, 4], x[k, 5]),
        (xd[k, 0], xd[k, 1], xd[k, 2]), (xd[k, 3], xd[k, 4], xd[k, 5]),
        (xdd[k, 0], xdd[k, 1], xdd[k, 2]), (xdd[k, 3], xdd[k, 4], xdd[k, 5]),
    )  # fmt: skip


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


@inline
def freedoms(platform: Array) -> int:
    """How many independent speeds the platform has."""
    return 6 if platform[layout.KIND] == layout.FREE else 3


@inline
def plane_tilt(o: Vec, R: Mat) -> Vec:
    """z, a, b of the platform of 2-UPR/2-RPU: o = z (0, -sin a, cos a), R = Rx(a) Ry(b) (Hao et al. eq. (1)-(7))."""
    a = math.atan2(R[2][1], R[1][1])
    return (math.cos(a) * o[2] - math.sin(a) * o[1], a, math.atan2(R[0][2], R[0][0]))


@inline
def independent(platform: Array, o: Vec, R: Mat, G: Array) -> None:
    """G (6, freedoms) at position o and rotation R."""
    G[:, :] = 0.0
    if platform[layout.KIND] == layout.FREE:
        for k in range(6):
            G[k, k] = 1.0
    elif platform[layout.KIND] == layout.SPHERICAL:
        for k in range(3):
            G[3 + k, k] = 1.0
    else:
        z, a, _ = plane_tilt(o, R)
        ca, sa = math.cos(a), math.sin(a)
        G[1, 0], G[2, 0] = -sa, ca
        G[1, 1], G[2, 1], G[3, 1] = -z * ca, -z * sa, 1.0
        G[4, 2], G[5, 2] = ca, sa


@inline
def advance(platform: Array, o: Vec, R: Mat, step: Array) -> tuple[Vec, Mat]:
    """Position and rotation after a finite step of the independent coordinates; stays on the platform's manifold."""
    if platform[layout.KIND] == layout.FREE:
        return (
            (o[0] + step[0], o[1] + step[1], o[2] + step[2]),
            multiply(exponential((step[3], step[4], step[5])), R),
        )
    if platform[layout.KIND] == layout.SPHERICAL:
        return o, multiply(exponential((step[0], step[1], step[2])), R)
    z, a, b = plane_tilt(o, R)
    z, a, b = z + step[0], a + step[1], b + step[2]
    ca, sa, cb, sb = math.cos(a), math.sin(a), math.cos(b), math.sin(b)
    return (0.0, -z * sa, z * ca), ((cb, 0.0, sb), (sa * sb, ca, -sa * cb), (-ca * sb, sa, ca * cb))


@kernel(f64(v1, v1, v1, v1))
def off_manifold(platform: Array, x: Array, xd: Array, xdd: Array) -> float:
    """How far a motion (6,) is from the nearest one the platform can make: in pose, rate or acceleration, m or rad,
    whichever is largest. A spherical platform must not move o; of 2R1T the motion is rebuilt from z, a, b."""
    if platform[layout.KIND] == layout.FREE:
        return 0.0
    move = body(x, xd, xdd)
    if platform[layout.KIND] == layout.SPHERICAL:
        return max(norm(sub(move.o, triple(platform, layout.HOME))), norm(move.v), norm(move.a))
    o, R = advance(platform, move.o, move.R, np.zeros(3))
    z, a, _ = plane_tilt(o, R)
    ca, sa = math.cos(a), math.sin(a)
    out, across, tilt_axis = (0.0, -sa, ca), (0.0, -ca, -sa), (0.0, ca, sa)
    ad, add_, bd, bdd = move.w[0], move.e[0], dot(tilt_axis, move.w), dot(tilt_axis, move.e)
    zd, zdd = dot(out, move.v), dot(out, move.a) + z * ad * ad
    v = axpy(zd, out, scale(z * ad, across))
    acc = axpy(zdd - z * ad * ad, out, scale(2.0 * zd * ad + z * add_, across))
    w = axpy(bd, tilt_axis, (ad, 0.0, 0.0))
    e = axpy(bdd, tilt_axis, axpy(bd * ad, (0.0, -sa, ca), (add_, 0.0, 0.0)))
    off = max(norm(sub(o, move.o)), norm(sub(v, move.v)), norm(sub(acc, move.a)))
    off = max(off, norm(sub(w, move.w)), norm(sub(e, move.e)))
    for i in range(3):
        off = max(off, norm(sub(R[i], move.R[i])))
    return off


@kernel(types.void(v1, v1, v1, v1, v1, v1))
def from_tilt_and_torsion(a: Array, ad: Array, add_: Array, x_out: Array, xd_out: Array, xdd_out: Array) -> None:
    """Angles of the six coordinates and their derivatives from azimuth, tilt, torsion (3,) and theirs.

    R = Rz(azimuth) Ry(tilt) Rz(torsion - azimuth) (Guo et al.); fills the last three of each output. The other way
    round it is undefined at zero tilt: this direction never is.
    """
    spin, spin_d, spin_dd = a[2] - a[0], ad[2] - ad[0], add_[2] - add_[0]
    half = rotation(a[0], a[1], 0.0)
    R = multiply(half, rotation(spin, 0.0, 0.0))
    tilt_axis = (-math.sin(a[0]), math.cos(a[0]), 0.0)
    spin_axis = (half[0][2], half[1][2], half[2][2])
    azimuth_rate = (0.0, 0.0, ad[0])
    w = add(axpy(ad[1], tilt_axis, azimuth_rate), scale(spin_d, spin_axis))
    e = axpy(add_[1], tilt_axis, axpy(spin_dd, spin_axis, (0.0, 0.0, add_[0])))
    turning = cross(axpy(ad[1], tilt_axis, azimuth_rate), spin_axis)
    e = add(e, axpy(ad[1], cross(azimuth_rate, tilt_axis), scale(spin_d, turning)))
    x_out[3], x_out[4], x_out[5] = angles(R)
    xd_out[3], xd_out[4], xd_out[5] = angle_rates(x_out[3], x_out[4], w)
    rest = sub(e, body(x_out, xd_out, np.zeros(6)).e)
    xdd_out[3], xdd_out[4], xdd_out[5] = angle_rates(x_out[3], x_out[4], rest)
