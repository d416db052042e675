"""One leg: how it moves and what it asks of the platform. The same code for every kind of leg.

Two rigid motions: parts that turn with the base joint (w_b, e_b) and parts that turn with the platform joint
(w_p, e_p); both are the swing n x n' plus a spin about n that the U joint dictates. The spin vectors q_b, q_p
are the U joint's cross axes r_bc, r_pc scaled to q.n = 1; they exist while n is not parallel to the fixed axis.

n         unit vector from the base joint to the platform joint     base axes
l ld ldd  leg length, rate, acceleration                            m, m/s, m/s2
e_i       platform joint from o                                     m, base axes
b b_d b_dd  platform joint, velocity, acceleration                  base axes
c         cosine between n and the fixed U axis
Source: Ni et al., eq. (5)-(35) with the errata of docs/conventions.md, by virtual work; exact, nothing left out.
"""

from typing import NamedTuple

from controller.mechanism.compile import inline
from controller.mechanism.model import LOWER, ROD, UPPER, Mechanism
from controller.mechanism.platform import Body
from controller.mechanism.spatial import (
    Mat,
    Vec,
    add,
    apply,
    apply_t,
    axpy,
    cross,
    dot,
    norm,
    scale,
    sub,
    vec,
)  # fmt: skip


class LegMotion(NamedTuple):
    """Motion of one leg, base axes."""

    n: Vec
    l: float  # noqa: E741  the symbol of the papers
    ld: float
    ldd: float
    arm: Vec  # e_i
    b_dd: Vec
    w_b: Vec
    e_b: Vec
    w_p: Vec
    e_p: Vec
    q_b: Vec
    q_p: Vec
    frame_b: Mat  # columns x y n as rows: base axes to the frame that turns with the base joint
    frame_p: Mat


@inline
def leg_frame(axis: Vec, n: Vec) -> Mat:
    """Rows x, y, z of the leg frame: z = n, y = axis x n normalised, x = y x z."""
    y = cross(axis, n)
    y = scale(1.0 / norm(y), y)
    return (cross(y, n), y, n)


@inline
def leg_motion(machine: Mechanism, i: int, body: Body) -> LegMotion:
    """Motion of leg i when the platform moves as `body`."""
    arm = apply(body.R, vec(machine.platform_joint[i]))
    line = sub(add(body.o, arm), vec(machine.base_joint[i]))
    l = norm(line)  # noqa: E741
    n = scale(1.0 / l, line)
    turn = cross(body.w, arm)
    b_d = add(body.v, turn)
    b_dd = add(body.a, add(cross(body.e, arm), cross(body.w, turn)))
    ld = dot(n, b_d)
    n_d = scale(1.0 / l, axpy(-ld, n, b_d))
    ldd = dot(n, b_dd) + dot(n_d, b_d)
    n_dd = scale(1.0 / l, axpy(-2.0 * ld, n_d, axpy(-ldd, n, b_dd)))
    swing, swing_d = cross(n, n_d), cross(n, n_dd)

    # base joint: no rotation about r_bc = r_b1 x r_b2, so spin = c (swing . r_b1) / (1 - c^2)
    axis = vec(machine.base_axis[i])
    c, c_d = dot(axis, n), dot(axis, n_d)
    free = 1.0 / (1.0 - c * c)
    q_b = scale(free, axpy(-c, axis, n))
    s = dot(swing, axis)
    spin = c * s * free
    spin_d = (c_d * s + c * dot(swing_d, axis) + 2.0 * c * c_d * spin) * free
    w_b = axpy(spin, n, swing)
    e_b = add(axpy(spin_d, n, swing_d), scale(spin, n_d))
    frame_b = leg_frame(axis, n)

    # platform joint: no rotation of the leg against the platform about r_pc, whose axis turns with w
    axis = apply(body.R, vec(machine.platform_axis[i]))
    axis_d = cross(body.w, axis)
    c, c_d = dot(axis, n), dot(axis_d, n) + dot(axis, n_d)
    free = 1.0 / (1.0 - c * c)
    q_p = scale(free, axpy(-c, axis, n))
    rest, rest_d = sub(body.w, swing), sub(body.e, swing_d)
    s = dot(rest, axis)
    s_d = dot(rest_d, axis) + dot(rest, axis_d)
    spin = (dot(body.w, n) - c * s) * free
    spin_d = (dot(body.e, n) + dot(body.w, n_d) - c_d * s - c * s_d + 2.0 * c * c_d * spin) * free
    w_p = axpy(spin, n, swing)
    e_p = add(axpy(spin_d, n, swing_d), scale(spin, n_d))
    return LegMotion(n, l, ld, ldd, arm, b_dd, w_b, e_b, w_p, e_p, q_b, q_p, frame_b, leg_frame(axis, n))


@inline
def group_wrench(machine: Mechanism, i: int, group: int, frame: Mat, w: Vec, e: Vec, lift: Vec) -> tuple[Vec, Vec]:
    """Inertial minus gravity force and moment about the joint centre of a rigid group, base axes.

    lift: acceleration of the joint centre minus gravity. Newton-Euler with the inertia about the joint centre
    (He et al., the first of their two forms).
    """
    h = apply_t(frame, vec(machine.moment[i, group]))
    force = add(axpy(machine.mass[i, group], lift, cross(e, h)), cross(w, cross(w, h)))
    J = machine.inertia[i, group]
    w_leg = apply(frame, w)
    moment = add(apply(J, apply(frame, e)), cross(w_leg, apply(J, w_leg)))
    return force, add(apply_t(frame, moment), cross(h, lift))


@inline
def leg_wrench(machine: Mechanism, i: int, leg: LegMotion) -> tuple[Vec, Vec]:
    """Force and moment about o that leg i needs from the platform to move as it does, actuator aside."""
    gravity = vec(machine.gravity)
    lift = sub(leg.b_dd, gravity)
    _, N_lower = group_wrench(machine, i, LOWER, leg.frame_b, leg.w_b, leg.e_b, scale(-1.0, gravity))
    F_rod, N_rod = group_wrench(machine, i, ROD, leg.frame_b, leg.w_b, leg.e_b, lift)
    F_upper, N_p = group_wrench(machine, i, UPPER, leg.frame_p, leg.w_p, leg.e_p, lift)
    N_b = add(N_lower, N_rod)
    along = dot(N_p, leg.n)
    X = axpy(-dot(N_b, leg.n), leg.q_b, axpy(-along, leg.q_p, add(N_b, N_p)))
    force = add(add(F_rod, F_upper), scale(1.0 / leg.l, cross(X, leg.n)))
    return force, axpy(along, leg.q_p, cross(leg.arm, force))


@inline
def below_cell_force(machine: Mechanism, i: int, leg: LegMotion) -> float:
    """Axial inertial minus gravity force of the links between actuator and load cell: f_act - f_cell."""
    h = apply_t(leg.frame_b, vec(machine.below_moment[i]))
    lift = sub(leg.b_dd, vec(machine.gravity))
    force = add(axpy(machine.below_mass[i], lift, cross(leg.e_b, h)), cross(leg.w_b, cross(leg.w_b, h)))
    return dot(force, leg.n)
