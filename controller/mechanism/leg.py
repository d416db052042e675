"""One leg: how it moves and what it asks of the platform. The same code for every kind of leg.

Two rigid motions: parts that turn with the base joint and parts that turn with the platform joint. Both are the
swing n x n' plus a spin about n that the joint dictates. Everything is worked out in the leg frame, z = n,
y = axis x n normalised, x = y x z, with the joint's fixed axis = c n - s x: there the swing has two components,
the U joint's cross axis is q = (k, 0, 1) with k = c / s, and inertias are constant.

n         unit vector from the base joint to the platform joint          base axes
l ld ldd  leg length, rate, acceleration                                m, m/s, m/s2
arm       platform joint from o (the papers' e_i)                       m, base axes
k         cotangent of the angle between n and the fixed U axis
w, e      angular velocity and acceleration of a group                  rad/s, rad/s2, its leg frame
lift      acceleration of the platform joint minus gravity              m/s2, leg frame
Source: Ni et al., eq. (5)-(35) with the errata of docs/conventions.md; for U and S alone He et al., the first of
their two forms; screw rotor: d'Alembert on the rotor's own spin. By virtual work, exact, nothing left out.
"""

import math
from typing import NamedTuple

from controller.mechanism import layout
from controller.mechanism.compile import inline
from controller.mechanism.layout import Mechanism
from controller.mechanism.platform import Body
from controller.mechanism.spatial import Vec, add, apply, axpy, cross, dot, scale, sub, symmetric, triple
from controller.records import Array

# The constants as plain names of this module, so that numba takes them as compile-time numbers.
BASE_JOINT, PLATFORM_JOINT = layout.BASE_JOINT, layout.PLATFORM_JOINT
BASE_AXIS, PLATFORM_AXIS = layout.BASE_AXIS, layout.PLATFORM_AXIS
STICTION_SPEED_M_S = 2e-3  # below this rate Coulomb friction fades: its sign is not known at rest


class Side(NamedTuple):
    """Motion of the parts of a leg that turn with one of its joints, in their leg frame."""

    x: Vec  # base axes
    y: Vec
    k: float
    w: Vec
    e: Vec
    lift: Vec


class LegMotion(NamedTuple):
    """Motion of one leg."""

    n: Vec
    arm: Vec
    l: float  # noqa: E741  the symbol of the papers
    per_l: float
    ld: float
    ldd: float
    nd: tuple[float, float]  # n' in the base-side leg frame
    swing_d: tuple[float, float]  # derivative of the swing, likewise
    base: Side
    down: Vec  # gravity in the base-side leg frame


@inline
def line_of(row: Array, o: Vec, R: tuple[Vec, Vec, Vec]) -> tuple[Vec, Vec, float]:
    """arm, n and l of a leg at position o and rotation R."""
    arm = apply(R, triple(row, PLATFORM_JOINT))
    line = sub(add(o, arm), triple(row, BASE_JOINT))
    length = math.sqrt(dot(line, line))
    return arm, scale(1.0 / length, line), length


@inline
def to_frame(x: Vec, y: Vec, n: Vec, a: Vec) -> Vec:
    """Components of a in the frame x, y, n."""
    return (dot(x, a), dot(y, a), dot(n, a))


@inline
def leg_motion(machine: Mechanism, i: int, body: Body) -> LegMotion:
    """Motion of leg i when the platform moves as `body`."""
    row = machine.legs[i]
    arm, n, l = line_of(row, body.o, body.R)  # noqa: E741
    axis = triple(row, BASE_AXIS)
    if row[layout.BASE_REVOLUTE] != 0.0:  # the R axis is y itself, and there is no spin
        y = axpy(-dot(axis, n), n, axis)
        y = scale(1.0 / math.sqrt(dot(y, y)), y)
        k = 0.0
    else:
        c = dot(axis, n)
        inverse = 1.0 / math.sqrt(1.0 - c * c)
        y = scale(inverse, cross(axis, n))
        k = c * inverse
    x = cross(y, n)

    turn = cross(body.w, arm)
    v = to_frame(x, y, n, add(body.v, turn))
    a = to_frame(x, y, n, add(add(body.a, cross(body.e, arm)), cross(body.w, turn)))
    per_l = 1.0 / l
    ld = v[2]
    nx, ny = v[0] * per_l, v[1] * per_l
    ldd = a[2] + l * (nx * nx + ny * ny)
    # swing n x n' and its derivative n x n''
    wx, wy = -ny, nx
    ex, ey = -(a[1] - 2.0 * ld * ny) * per_l, (a[0] - 2.0 * ld * nx) * per_l
    # no rotation about the cross axis q: w . q = 0
    spin = -k * wx
    spin_d = -k * ex + nx * (wx - 2.0 * k * spin)
    if row[layout.BASE_REVOLUTE] != 0.0:
        spin_d = 0.0
    down = to_frame(x, y, n, triple(machine.platform, layout.GRAVITY))
    lift = sub(a, down)
    base = Side(x, y, k, (wx, wy, spin), (ex + spin * nx, ey + spin * ny, spin_d), lift)

    return LegMotion(n, arm, l, per_l, ld, ldd, (nx, ny), (ex, ey), base, down)


@inline
def platform_side(row: Array, leg: LegMotion, body: Body) -> Side:
    """Motion of the parts that turn with a U joint in the platform, in the platform-side leg frame.

    Its spin w[2] less that of the base side is the rate of the passive R joint, or of the screw's twist.
    """
    n, base = leg.n, leg.base
    axis = apply(body.R, triple(row, PLATFORM_AXIS))
    c = dot(axis, n)
    s = math.sqrt(1.0 - c * c)
    per_s = 1.0 / s
    y = scale(per_s, cross(axis, n))
    x = cross(y, n)
    k = c * per_s
    # the two frames differ by a turn about n
    co, si = dot(x, base.x), dot(x, base.y)
    nx, ny = co * leg.nd[0] + si * leg.nd[1], co * leg.nd[1] - si * leg.nd[0]
    wx, wy = -ny, nx
    ex, ey = co * leg.swing_d[0] + si * leg.swing_d[1], co * leg.swing_d[1] - si * leg.swing_d[0]
    # no rotation of the leg against the platform about q: (w - w_platform) . q = 0
    px, py, pz = to_frame(x, y, n, body.w)
    qx, _, qz = to_frame(x, y, n, body.e)
    rx, ry = px - wx, py - wy
    spin = k * rx + pz
    # derivative of spin = (w . n - c r . axis) / s^2 with r = w - swing, axis = c n - s x, axis' = w x axis
    along = c * pz - s * rx
    axis_d = (c * py, -s * pz - c * px, s * py)
    c_d = axis_d[2] - s * nx
    along_d = c * qz - s * (qx - ex) + rx * axis_d[0] + ry * axis_d[1] + pz * axis_d[2]
    spin_d = (qz + px * nx + py * ny - c_d * along - c * along_d + 2.0 * c * c_d * spin) * per_s * per_s
    lift = base.lift
    return Side(
        x,
        y,
        k,
        (wx, wy, spin),
        (ex + spin * nx, ey + spin * ny, spin_d),
        (co * lift[0] + si * lift[1], co * lift[1] - si * lift[0], lift[2]),
    )


@inline
def group_force(mass: float, h: Vec, w: Vec, e: Vec, lift: Vec) -> Vec:
    """Inertial minus gravity force of a rigid group with first moment h."""
    return add(axpy(mass, lift, cross(e, h)), cross(w, cross(w, h)))


@inline
def joint_moment(row: Array, at: int, side: Side, h: Vec, lift: Vec) -> Vec:
    """Inertial minus gravity moment of a rigid group about its joint; inertia in the columns from `at` on."""
    turning = add(symmetric(row, at, side.e), cross(side.w, symmetric(row, at, side.w)))
    return add(turning, cross(h, lift))


@inline
def spherical_friction(row: Array, leg: LegMotion, body: Body) -> Vec:
    """Moment that friction in the S joint takes from the leg, base-side leg frame."""
    side = leg.base
    return scale(row[layout.SPHERICAL_FRICTION], sub(side.w, to_frame(side.x, side.y, leg.n, body.w)))


@inline
def base_moment(row: Array, leg: LegMotion, body: Body, spin: float, spin_d: float) -> tuple[Vec, float]:
    """Moment of lower links about B_i plus rod links about b_i, friction included (base-side leg frame), and the
    moment a motor needs for its own rotor.

    `spin` and `spin_d` are those of the platform side. A screw's rotor turns against the lower links at -hand times
    the motor rate about n; its axial momentum enters the lower links' moment, and its rate is what the motor needs
    for itself.
    """
    side = leg.base
    total = joint_moment(row, layout.BASE_INERTIA, side, triple(row, layout.ROD_MOMENT), side.lift)
    total = sub(total, cross(triple(row, layout.LOWER_MOMENT), leg.down))
    motor = 0.0
    if row[layout.ROTOR_INERTIA] != 0.0:
        inertia, hand, per_metre = row[layout.ROTOR_INERTIA], row[layout.HAND], row[layout.MOTOR_RAD_M]
        rate = leg.ld - row[layout.SCREW] * (spin - side.w[2])
        rate_d = leg.ldd - row[layout.SCREW] * (spin_d - side.e[2])
        momentum = inertia * (side.w[2] - hand * per_metre * rate)
        momentum_d = inertia * (side.e[2] - hand * per_metre * rate_d)
        total = add(total, (momentum * leg.nd[0], momentum * leg.nd[1], momentum_d))
        motor = -hand * momentum_d
    if row[layout.UNIVERSAL_FRICTION] != 0.0:
        total = axpy(row[layout.UNIVERSAL_FRICTION], side.w, total)
    if row[layout.SPHERICAL_FRICTION] != 0.0:
        total = add(total, spherical_friction(row, leg, body))
    return total, motor


@inline
def platform_moment(row: Array, leg: LegMotion, side: Side, body: Body) -> tuple[Vec, Vec]:
    """Moment of the upper links about b_i, friction of the platform's U joint included, and that friction alone;
    platform-side leg frame."""
    total = joint_moment(row, layout.UPPER_INERTIA, side, triple(row, layout.UPPER_MOMENT), side.lift)
    relative = sub(side.w, to_frame(side.x, side.y, leg.n, body.w))
    rub = scale(row[layout.UNIVERSAL_FRICTION], relative)
    return add(total, rub), rub


@inline
def across(row: Array, k: float, N: Vec) -> tuple[float, float]:
    """x and y of a moment without what the base joint carries: along r_bc for a U joint, all but y for an R joint."""
    return (0.0 if row[layout.BASE_REVOLUTE] != 0.0 else N[0] - k * N[2]), N[1]


@inline
def base_wrench(row: Array, leg: LegMotion, body: Body, spin: float, spin_d: float) -> tuple[Vec, Vec, float]:
    """`leg_wrench` of the parts that turn with the base joint; the moment without that of the force about o."""
    side, per_l = leg.base, leg.per_l
    N, motor = base_moment(row, leg, body, spin, spin_d)
    mx, my = across(row, side.k, N)
    F = group_force(row[layout.ROD_MASS], triple(row, layout.ROD_MOMENT), side.w, side.e, side.lift)
    # force = F + X x n / l
    force = axpy(F[0] + my * per_l, side.x, axpy(F[1] - mx * per_l, side.y, scale(F[2], leg.n)))
    moment = (0.0, 0.0, 0.0)
    if row[layout.SPHERICAL_FRICTION] != 0.0:
        rub = spherical_friction(row, leg, body)
        moment = axpy(-rub[0], side.x, axpy(-rub[1], side.y, scale(-rub[2], leg.n)))
    return force, moment, motor


@inline
def leg_wrench(machine: Mechanism, i: int, leg: LegMotion, body: Body) -> tuple[Vec, Vec, float]:
    """Force and moment about o (base axes) that leg i needs from the platform to move as it does, actuator aside;
    and the moment its motor needs for its own rotor."""
    row = machine.legs[i]
    if row[layout.PLATFORM_UNIVERSAL] == 0.0:
        force, moment, motor = base_wrench(row, leg, body, 0.0, 0.0)
        return force, add(moment, cross(leg.arm, force)), motor
    side, per_l = platform_side(row, leg, body), leg.per_l
    force, moment, motor = base_wrench(row, leg, body, side.w[2], side.e[2])
    N, rub = platform_moment(row, leg, side, body)
    F = group_force(row[layout.UPPER_MASS], triple(row, layout.UPPER_MOMENT), side.w, side.e, side.lift)
    fx, fy = F[0] + N[1] * per_l, F[1] - (N[0] - side.k * N[2]) * per_l
    force = add(force, axpy(fx, side.x, axpy(fy, side.y, scale(F[2], leg.n))))
    # the U joint passes the moment along its cross axis q = n + k x; friction acts back on the platform
    moment = axpy(N[2] * side.k - rub[0], side.x, axpy(-rub[1], side.y, axpy(N[2] - rub[2], leg.n, moment)))
    if row[layout.SCREW] != 0.0:
        # the nut slides at l', not at the rate of the axis: its friction acts along the leg
        force = axpy(rubbing(machine, i, leg, body), leg.n, force)
    return force, add(moment, cross(leg.arm, force)), motor


@inline
def below_cell_force(machine: Mechanism, i: int, leg: LegMotion) -> float:
    """Axial inertial minus gravity force of the links between actuator and load cell: f_act - f_cell."""
    row, side = machine.legs[i], leg.base
    return group_force(row[layout.BELOW_MASS], triple(row, layout.BELOW_MOMENT), side.w, side.e, side.lift)[2]


@inline
def lateral(machine: Mechanism, i: int, leg: LegMotion, body: Body) -> tuple[float, float, float, float]:
    """Lateral force (x, y) and moment about b_i (x, y) of the cylinder on the rod, base-side leg frame.

    They load gland and piston (Guo et al.). Rod and upper links take the moment they need about b_i, less what the
    platform's U joint brings; the lower links need the rest of X from a force across the leg at b_i. For UPS and
    UPRU: legs with R joints pass loads through the cylinder that statics alone cannot tell, and a screw its torque.
    """
    row, side = machine.legs[i], leg.base
    N, _ = base_moment(row, leg, body, 0.0, 0.0)
    mx, my = across(row, side.k, N)
    T = joint_moment(row, layout.ROD_INERTIA, side, triple(row, layout.ROD_MOMENT), side.lift)
    if row[layout.SPHERICAL_FRICTION] != 0.0:
        T = add(T, spherical_friction(row, leg, body))
    tx, ty = T[0], T[1]
    if row[layout.PLATFORM_UNIVERSAL] != 0.0:
        side = platform_side(row, leg, body)
        N, _ = platform_moment(row, leg, side, body)
        co, si = dot(side.x, leg.base.x), dot(side.x, leg.base.y)
        px, py = N[0] - side.k * N[2], N[1]
        px, py = co * px - si * py, si * px + co * py
        mx, my, tx, ty = mx + px, my + py, tx + px, ty + py
    return -my * leg.per_l, mx * leg.per_l, tx, ty


@inline
def rubbing(machine: Mechanism, i: int, leg: LegMotion, body: Body) -> float:
    """Friction force of the sliding joint against its rate: (F_t + mu N_n) sgn(l') + f_v l'.

    Guo et al. eq. (13)-(16). The seal load N_n is the lateral resultant, or, where gland and piston have places,
    the sum of the loads on both, which also carry the couple.
    """
    row = machine.legs[i]
    dry = row[layout.COULOMB_FRICTION]
    if row[layout.NORMAL_FRICTION] != 0.0:
        fx, fy, tx, ty = lateral(machine, i, leg, body)
        apart = row[layout.PISTON] - row[layout.GLAND]
        if apart == 0.0:
            load = math.hypot(fx, fy)
        else:  # moments about the piston and the gland; n x T = (-T_y, T_x)
            d_g, d_p = row[layout.GLAND], row[layout.PISTON]
            gland = math.hypot((d_p * fx + ty) / apart, (d_p * fy - tx) / apart)
            piston = math.hypot((-ty - d_g * fx) / apart, (tx - d_g * fy) / apart)
            load = gland + piston
        dry += row[layout.NORMAL_FRICTION] * load
    if dry != 0.0:  # tanh is the dearest of all here
        dry *= math.tanh(leg.ld / STICTION_SPEED_M_S)
    return dry + row[layout.VISCOUS_FRICTION] * leg.ld


@inline
def sliding_friction(machine: Mechanism, i: int, leg: LegMotion, body: Body) -> float:
    """What of `rubbing` the axis has to overcome by itself; a twisting screw's is in `leg_wrench`."""
    return rubbing(machine, i, leg, body) if machine.legs[i, layout.SCREW] == 0.0 else 0.0


@inline
def leg_twist(row: Array, R: tuple[Vec, Vec, Vec], n: Vec, near: float) -> float:
    """Twist angle of the platform side against the base side, 0 at home, the branch nearest to `near` (Cong et al.).

    The angle between x_n = r_b1 x n and x_m = R r_p1 x n about n; atan2, so it does not fold at 90 degrees.
    """
    x_n = cross(triple(row, BASE_AXIS), n)
    x_m = cross(apply(R, triple(row, PLATFORM_AXIS)), n)
    angle = math.atan2(dot(n, cross(x_n, x_m)), dot(x_n, x_m)) - row[layout.HOME_TWIST]
    return angle - 2.0 * math.pi * math.floor((angle - near) / (2.0 * math.pi) + 0.5)
