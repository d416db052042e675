"""What each simplification found in the literature costs in leg force, machine by machine.

    python -m benchmarks.simplifications

Two ways of simplifying, both against the kernel: change the machine's arrays (links without mass, upper links that turn
with the base joint), or leave something out of `forces` below, a second implementation of the leg in base axes by the
leg's moment balance about the base joint (He et al., first form), which with nothing left out agrees with the kernel.
"""

from typing import NamedTuple

import numpy as np

from controller import schema
from controller.mechanism import dynamics, kinematics, layout
from controller.mechanism.layout import Mechanism
from controller.mechanism.leg import STICTION_SPEED_M_S
from controller.mechanism.model import build, home_pose
from controller.records import POSE, Array
from controller.settings import load_machine
from tests.machines import MACHINES

STATES = 4000
NAMES = ("6-upru", "6-upru-unequal-legs", "6-ups", "6-uhu", "3-ups-s", "2-upr-2-rpu")
FAST = "6-ups, twice as fast"
AXISYMMETRIC = "6-ups, axisymmetric legs"
BENT = np.cos(np.deg2rad(70.0))  # no U joint folds further; the unequal legs' pose box holds singular ones
MASSLESS, UPS, SPIN, MOMENT, CENTRE, TWICE = (
    "massless links",
    "UPS, not UPRU",
    "no leg spin",
    "U moment on n",
    "moment centre",
    "joint inertia, com form",
)
NONE = "none"


class States(NamedTuple):
    """Platform coordinates and their derivatives, (N, 6) each."""

    x: Array
    xd: Array
    xdd: Array


class Motion(NamedTuple):
    """Rigid-body motion, base axes; R (N, 3, 3), else (N, 3)."""

    R: Array
    w: Array
    e: Array


class Side(NamedTuple):
    """Parts of a leg that turn with one U joint: leg frame (columns), cross axis q, motion; base axes."""

    frame: Array
    q: Array
    w: Array
    e: Array
    spin: Array  # about n, also where w and e are without it
    spin_d: Array


def dot(a: Array, b: Array) -> Array:
    return np.einsum("...j,...j->...", a, b)


def times(s: Array, a: Array) -> Array:
    return s[:, None] * a


def angular(states: States) -> Motion:
    """R = Rz Ry Rx, w and e from the three angles: w = yaw' z + pitch' Rz y + roll' R x."""
    (ca, cb, cg), (sa, sb, sg) = np.cos(states.x[:, 3:].T), np.sin(states.x[:, 3:].T)
    zero = np.zeros_like(ca)
    R = np.array(
        [
            [ca * cb, ca * sb * sg - sa * cg, ca * sb * cg + sa * sg],
            [sa * cb, sa * sb * sg + ca * cg, sa * sb * cg - ca * sg],
            [-sb, cb * sg, cb * cg],
        ]
    ).transpose(2, 0, 1)
    yaw, pitch, roll = np.array([zero, zero, zero + 1.0]).T, np.array([-sa, ca, zero]).T, R[:, :, 0]
    rate, acc = states.xd[:, 3:, None], states.xdd[:, 3:, None]
    w1 = rate[:, 0] * yaw
    w2 = w1 + rate[:, 1] * pitch
    e = acc[:, 0] * yaw + acc[:, 1] * pitch + acc[:, 2] * roll
    e += rate[:, 1] * np.cross(w1, pitch) + rate[:, 2] * np.cross(w2, roll)
    return Motion(R, w2 + rate[:, 2] * roll, e)


def side(axis: Array, body: Motion, n: Array, nd: Array, swing_d: Array, revolute: bool, spins: bool) -> Side:
    """The U joint whose `axis` is fixed in `body`: no rotation of the leg against the body about q = axis x y."""
    swing = np.cross(n, nd)
    if revolute:  # base R joint: y is the axis, and the leg does not turn about n
        y = axis - times(dot(axis, n), n)
        y /= np.linalg.norm(y, axis=1)[:, None]
        zero = np.zeros(len(n))
        return Side(np.stack([np.cross(y, n), y, n], 2), n, swing, swing_d, zero, zero)
    y = np.cross(axis, n)
    y /= np.linalg.norm(y, axis=1)[:, None]
    q = np.cross(axis, y)
    spin = dot(body.w - swing, q) / dot(n, q)
    w = swing + times(spin, n)
    # (w - body.w) = c1 axis + c2 y; its derivative along q, then solved for the derivative of the spin
    turn = w - body.w
    drift = dot(turn, axis) * dot(np.cross(body.w, axis), q) + dot(turn, y) * dot(np.cross(w, y), q)
    spin_d = (drift + dot(body.e - swing_d - times(spin, nd), q)) / dot(n, q)
    e = swing_d + times(spin_d, n) + times(spin, nd)
    frame = np.stack([np.cross(y, n), y, n], 2)
    return Side(frame, q, w if spins else swing, e if spins else swing_d, spin, spin_d)


def turned(frame: Array, columns: Array) -> Array:
    """Tensor (six columns, leg frame) in base axes, (N, 3, 3)."""
    xx, yy, zz, xy, xz, yz = columns
    return frame @ np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]) @ frame.transpose(0, 2, 1)


def shift(mass: float, r: Array) -> Array:
    """m (r r E - r r^T), (N, 3, 3)."""
    return mass * (dot(r, r)[:, None, None] * np.eye(3) - r[:, :, None] * r[:, None, :])


def euler(inertia: Array, w: Array, e: Array) -> Array:
    iw, ie = (inertia @ w[:, :, None])[:, :, 0], (inertia @ e[:, :, None])[:, :, 0]
    return ie + np.cross(w, iw)


def group(
    part: Side,
    mass: float,
    h: Array,
    columns: Array,
    to_joint: Array,
    at_joint: Array,
    g: Array,
    left_out: tuple[str, ...],
) -> tuple[Array, Array]:
    """Inertial minus gravity force, and moment about the base joint B, of a rigid group.

    h and `columns`: first moment and inertia about a joint `to_joint` away from B, whose material point moves with
    `at_joint`. Body-fixed point at B: N = I_B e + w x I_B w + m r x (a_B - g), with the acceleration a_B of the
    group's own material point there, which is not 0 in a sliding group: that is what the moment centre is about.
    """
    c = np.einsum("nij,j->ni", part.frame, h / mass) if mass else np.zeros_like(part.w)
    r = to_joint + c
    inertia = turned(part.frame, columns) - shift(mass, c) + shift(mass, r)
    here = at_joint - np.cross(part.e, to_joint) - np.cross(part.w, np.cross(part.w, to_joint))
    force = mass * (here - g + np.cross(part.e, r) + np.cross(part.w, np.cross(part.w, r)))
    if TWICE in left_out:
        return force, np.cross(r, force) + euler(inertia, part.w, part.e)
    seen = -g if CENTRE in left_out else here - g
    return force, euler(inertia, part.w, part.e) + mass * np.cross(r, np.broadcast_to(seen, r.shape))


def forces(machine: Mechanism, states: States, lower: list[tuple[float, Array]], *left_out: str) -> Array:
    """Axis forces (N, n) by the leg's moment balance about its base joint, less what `left_out` names.

    TWICE goes before CENTRE. `lower`: mass and centre of mass of each leg's lower links, which the machine's arrays do
    not keep.
    """
    body, still = angular(states), Motion(np.eye(3), *np.zeros((2, *states.x[:, :3].shape)))
    o, v, a = states.x[:, :3], states.xd[:, :3], states.xdd[:, :3]
    g, spins = machine.platform[layout.GRAVITY : layout.GRAVITY + 3], SPIN not in left_out
    platform = machine.platform
    h = body.R @ platform[layout.MOMENT : layout.MOMENT + 3]
    force = platform[layout.MASS] * (a - g) + np.cross(body.e, h) + np.cross(body.w, np.cross(body.w, h))
    inertia = turned(body.R, platform[layout.INERTIA : layout.INERTIA + 6])
    moment = euler(inertia, body.w, body.e) + np.cross(h, a - g)
    own = np.empty((len(o), len(machine.legs)))
    for i, row in enumerate(machine.legs):
        at = {name: row[getattr(layout, name) :] for name in ("BASE_JOINT", "PLATFORM_JOINT", "BASE_AXIS")}
        arm = body.R @ at["PLATFORM_JOINT"][:3]
        line = o + arm - at["BASE_JOINT"][:3]
        length = np.linalg.norm(line, axis=1)
        n = line / length[:, None]
        vb, ab = v + np.cross(body.w, arm), a + np.cross(body.e, arm) + np.cross(body.w, np.cross(body.w, arm))
        ld = dot(n, vb)
        nd = (vb - times(ld, n)) / length[:, None]
        ldd = dot(n, ab) + length * dot(nd, nd)
        swing_d = (np.cross(n, ab) - times(2.0 * ld, np.cross(n, nd))) / length[:, None]
        revolute = bool(row[layout.BASE_REVOLUTE])
        base = side(np.broadcast_to(at["BASE_AXIS"][:3], n.shape), still, n, nd, swing_d, revolute, spins)

        rod_inertia = row[layout.ROD_INERTIA : layout.ROD_INERTIA + 6]
        low_inertia = row[layout.BASE_INERTIA : layout.BASE_INERTIA + 6] - rod_inertia
        low_mass, low_h = lower[i]
        nothing = np.zeros_like(n)
        _, N = group(base, low_mass, low_h, low_inertia, nothing, nothing, g, left_out)
        rod_h = row[layout.ROD_MOMENT : layout.ROD_MOMENT + 3]
        F, N_rod = group(base, row[layout.ROD_MASS], rod_h, rod_inertia, line, ab, g, left_out)
        N, along = N + N_rod, dot(F, n)
        ball = row[layout.SPHERICAL_FRICTION] * (base.w - body.w)
        N += row[layout.UNIVERSAL_FRICTION] * (0.0 if revolute else base.w) + ball
        relative, relative_d, X_p, passed = 0.0, 0.0, nothing, -ball
        if row[layout.PLATFORM_UNIVERSAL]:
            axis = body.R @ row[layout.PLATFORM_AXIS : layout.PLATFORM_AXIS + 3]
            top = side(axis, body, n, nd, swing_d, False, spins)
            relative, relative_d = top.spin - base.spin, top.spin_d - base.spin_d
            upper_h = row[layout.UPPER_MOMENT : layout.UPPER_MOMENT + 3]
            columns = row[layout.UPPER_INERTIA : layout.UPPER_INERTIA + 6]
            F, X_p = group(top, row[layout.UPPER_MASS], upper_h, columns, line, ab, g, left_out)
            rub = row[layout.UNIVERSAL_FRICTION] * (top.w - body.w)
            X_p, along = X_p + rub, along + dot(F, n)
            carrier = n if MOMENT in left_out else top.q
            held = times(dot(X_p, n) / dot(n, carrier), carrier)
            X_p, passed = X_p - held, held - rub
        inertia_r, hand, per_metre = row[layout.ROTOR_INERTIA], row[layout.HAND], row[layout.MOTOR_RAD_M]
        spin, spin_d = dot(base.w, n), dot(base.e, n)
        momentum = inertia_r * (spin - hand * per_metre * (ld - row[layout.SCREW] * relative))
        momentum_d = inertia_r * (spin_d - hand * per_metre * (ldd - row[layout.SCREW] * relative_d))
        N += times(momentum, nd) + times(momentum_d, n)
        own[:, i] = -hand * momentum_d * per_metre + row[layout.VISCOUS_FRICTION] * ld
        own[:, i] += row[layout.COULOMB_FRICTION] * np.tanh(ld / STICTION_SPEED_M_S)
        if revolute:
            X = times(dot(N, base.frame[:, :, 1]), base.frame[:, :, 1])
        else:
            carrier = n if MOMENT in left_out else base.q
            X = N - times(dot(N, n) / dot(n, carrier), carrier)
        leg = times(along, n) + np.cross(X + X_p, n) / length[:, None]
        force, moment = force + leg, moment + np.cross(arm, leg) + passed
    return _shared(machine, states, np.hstack([force, moment])) + own


def _shared(machine: Mechanism, states: States, wrench: Array) -> Array:
    """Least-norm f with (J G)^T f = G^T W; J is the kernel's, kinematics is not what is simplified here."""
    J = np.empty((len(states.x), len(machine.legs), 6))
    for k, x in enumerate(states.x):
        kinematics.jacobian(machine, x, J[k])
    G = np.broadcast_to(np.eye(6), (len(J), 6, 6))
    if machine.platform[layout.KIND] == layout.SPHERICAL:
        G = G[:, :, 3:]
    elif machine.platform[layout.KIND] == layout.PLANE_TILT:  # along o, about X, about the turned y axis
        o, zero = states.x[:, :3], np.zeros(len(J))
        z = np.linalg.norm(o, axis=1)
        sa, ca = -o[:, 1] / z, o[:, 2] / z
        G = np.array(
            [
                [zero, -sa, ca, zero, zero, zero],
                [zero, -o[:, 2], o[:, 1], zero + 1.0, zero, zero],
                [zero, zero, zero, zero, ca, sa],
            ]
        ).transpose(2, 1, 0)
    A = (J @ G).transpose(0, 2, 1)
    return (np.linalg.pinv(A) @ G.transpose(0, 2, 1) @ wrench[:, :, None])[:, :, 0]


def exact(machine: Mechanism, states: States) -> Array:
    """Axis forces (N, n) of the kernel."""
    f = np.empty((len(states.x), len(machine.legs)))
    dynamics.inverse_dynamics_batch(machine, *states, np.zeros_like(states.x), f, np.empty_like(f))
    return f


def massless(machine: Mechanism) -> Mechanism:
    """Links without mass and inertia; joints and drive stay, a screw's rotor too."""
    legs = machine.legs.copy()
    legs[:, layout.ROD_MASS : layout.UNIVERSAL_FRICTION] = 0.0
    legs[:, layout.ROD_INERTIA : layout.ROD_INERTIA + 6] = 0.0
    return machine._replace(legs=legs)


def upper_as_rod(machine: Mechanism) -> Mechanism:
    """Upper links become part of the rod, placed as they are at home: they turn with the base joint."""
    legs = machine.legs.copy()
    for row in legs:
        c, s = np.cos(row[layout.HOME_TWIST]), np.sin(row[layout.HOME_TWIST])
        turn = np.array([[[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]]])
        upper_h, columns = row[layout.UPPER_MOMENT :][:3], row[layout.UPPER_INERTIA :][:6]
        (xx, xy, xz), (_, yy, yz), (_, _, zz) = turned(turn, columns)[0]
        row[layout.ROD_MASS] += row[layout.UPPER_MASS]
        row[layout.ROD_MOMENT :][:3] += turn[0] @ upper_h
        for at in (layout.BASE_INERTIA, layout.ROD_INERTIA):
            row[at : at + 6] += [xx, yy, zz, xy, xz, yz]
        row[layout.UPPER_MASS], upper_h[:], columns[:] = 0.0, 0.0, 0.0
    return machine._replace(legs=legs)


def lower_links(machine: schema.Machine) -> list[tuple[float, Array]]:
    """Mass and first moment of each leg's lower links."""
    found: list[tuple[float, Array]] = []
    for leg in machine.leg:
        links = [link for link in (machine.legs.links | (leg.links or {})).values() if link.group == "lower"]
        moment = sum((link.mass_kg * np.array(link.com_m) for link in links), np.zeros(3))
        found.append((sum(link.mass_kg for link in links), moment))
    return found


def axisymmetric(machine: Mechanism, lower: list[tuple[float, Array]]) -> tuple[Mechanism, list[tuple[float, Array]]]:
    """The same legs with centres of mass on the leg axis and tensors of a body of revolution, no friction."""
    legs = machine.legs.copy()
    legs[:, layout.UNIVERSAL_FRICTION : layout.NORMAL_FRICTION + 1] = 0.0
    straight = [(mass, h * [0.0, 0.0, 1.0]) for mass, h in lower]
    for row, (low_mass, low_h) in zip(legs, straight, strict=True):
        rod = _upright(row[layout.ROD_INERTIA :][:6], row[layout.ROD_MASS], row[layout.ROD_MOMENT :][:3])
        cylinder = row[layout.BASE_INERTIA :][:6] - row[layout.ROD_INERTIA :][:6]
        cylinder = _upright(cylinder, low_mass, row[layout.LOWER_MOMENT :][:3])
        row[layout.ROD_INERTIA :][:6], row[layout.BASE_INERTIA :][:6] = rod, rod + cylinder
        row[layout.ROD_MOMENT :][:2], row[layout.LOWER_MOMENT :][:3] = 0.0, low_h
    return machine._replace(legs=legs), straight


def _upright(columns: Array, mass: float, h: Array) -> Array:
    c = h / mass
    across = 0.5 * (columns[0] + columns[1] - mass * (c[0] ** 2 + c[1] ** 2))
    return np.array([across, across, columns[2] - mass * (c[0] ** 2 + c[1] ** 2), 0.0, 0.0, 0.0])


def random_states(machine: schema.Machine, model: Mechanism, count: int, seed: int = 1) -> States:
    """Random states within the limits of pose, of platform speed and acceleration, and of the legs."""
    rng = np.random.default_rng(seed)
    limits, motion, kind = machine.platform.limits, machine.platform.motion, machine.platform.kind
    box = np.array([getattr(limits, name) for name in POSE])
    speed = np.repeat([motion.speed_m_s, motion.speed_rad_s], 3)
    acceleration = np.repeat([motion.acceleration_m_s2, motion.acceleration_rad_s2], 3)
    x = rng.uniform(box[:, 0], box[:, 1], (8 * count, 6))
    xd, xdd = rng.uniform(-1, 1, x.shape) * speed, rng.uniform(-1, 1, x.shape) * acceleration
    if kind == "spherical":
        x[:, :3], xd[:, :3], xdd[:, :3] = home_pose(machine)[:3], 0.0, 0.0
    if kind == "2r1t":  # z, roll and pitch of the draw are the independent ones, and the others follow
        pick = [2, 5, 4]
        x, xd, xdd = (np.ascontiguousarray(part) for part in plane_tilt(x[:, pick], xd[:, pick], xdd[:, pick]))
    l, ld, ldd = np.empty((3, len(x), len(model.legs)))  # noqa: E741
    kinematics.leg_rates_batch(model, x, xd, xdd, l, ld, ldd)
    low, high = machine.legs.limits.length_m
    inside = ((x >= box[:, 0]) & (x <= box[:, 1])).all(1) & ((l > low) & (l < high)).all(1)
    inside &= (np.abs(ld) < machine.legs.limits.speed_m_s).all(1)
    inside &= (np.abs(ldd) < machine.legs.limits.acceleration_m_s2).all(1)
    inside &= _straightest(model, States(x, xd, xdd)) > BENT
    return States(*(np.ascontiguousarray(part[inside][:count]) for part in (x, xd, xdd)))


def _straightest(machine: Mechanism, states: States) -> Array:
    """Smallest |n x U axis| of a machine's U joints, (N,): 0 is the joint's singular pose."""
    R, smallest = angular(states).R, np.ones(len(states.x))
    for row in machine.legs:
        line = states.x[:, :3] + R @ row[layout.PLATFORM_JOINT :][:3] - row[layout.BASE_JOINT :][:3]
        axes = [np.broadcast_to(row[layout.BASE_AXIS :][:3], line.shape)]
        if row[layout.PLATFORM_UNIVERSAL]:
            axes.append(R @ row[layout.PLATFORM_AXIS :][:3])
        for axis in axes:
            sine = np.linalg.norm(np.cross(line, axis), axis=1) / np.linalg.norm(line, axis=1)
            smallest = np.minimum(smallest, sine)
    return smallest


def plane_tilt(u: Array, ud: Array, udd: Array) -> States:
    """The six coordinates of a 2-UPR/2-RPU from its own, z a b (N, 3): o = z (0, -sin a, cos a), R = Rx(a) Ry(b)."""
    z, a, b = u.T
    ca, sa, cb, sb, zero = np.cos(a), np.sin(a), np.cos(b), np.sin(b), np.zeros_like(z)
    up, across, x_axis = np.array([zero, -sa, ca]).T, np.array([zero, ca, sa]).T, np.array([zero + 1, zero, zero]).T
    o = times(z, up)
    v = times(ud[:, 0], up) - times(z * ud[:, 1], across)
    acc = times(udd[:, 0] - z * ud[:, 1] ** 2, up) - times(z * udd[:, 1] + 2 * ud[:, 0] * ud[:, 1], across)
    w = times(ud[:, 1], x_axis) + times(ud[:, 2], across)
    e = times(udd[:, 1], x_axis) + times(udd[:, 2], across) + times(ud[:, 1] * ud[:, 2], up)
    # R = Rx(a) Ry(b) has the rows (cb, 0, sb), (sa sb, ca, -sa cb), (-ca sb, sa, ca cb)
    angles = np.array([np.arctan2(sa * sb, cb), np.arcsin(ca * sb), np.arctan2(sa, ca * cb)]).T
    x = np.hstack([o, angles])
    xd = np.hstack([v, _angle_rates(angles, w)])
    rest = e - angular(States(x, xd, np.zeros_like(x))).e
    return States(x, xd, np.hstack([acc, _angle_rates(angles, rest)]))


def _angle_rates(angles: Array, w: Array) -> Array:
    ca, sa, cb, sb = np.cos(angles[:, 0]), np.sin(angles[:, 0]), np.cos(angles[:, 1]), np.sin(angles[:, 1])
    roll = (ca * w[:, 0] + sa * w[:, 1]) / cb
    return np.array([w[:, 2] + roll * sb, ca * w[:, 1] - sa * w[:, 0], roll]).T


def errors(machine: Mechanism, lower: list[tuple[float, Array]], states: States) -> dict[str, tuple[float, float]]:
    """Peak error in % of the largest leg force of its own state, and of the largest of all states."""
    f = exact(machine, states)
    largest = np.abs(f).max(1)
    off = np.abs(forces(machine, states, lower) - f).max() / largest.max()
    assert off < 1e-9, f"the second implementation is {off:.1e} off the kernel"
    found = {NONE: (off, off)}

    def put(name: str, simplified: Array) -> None:
        error = np.abs(simplified - f).max(1)
        found[name] = 100.0 * (error / largest).max(), 100.0 * error.max() / largest.max()

    put(MASSLESS, exact(massless(machine), states))
    if machine.legs[:, layout.UPPER_MASS].any():
        put(UPS, exact(upper_as_rod(machine), states))
    for name in (SPIN, MOMENT, CENTRE, TWICE):
        put(name, forces(machine, states, lower, name))
    return found


def main() -> None:
    print(
        f"Axis forces, simplified against exact: peak error over {STATES} random states within each machine's limits,\n"
        "in % of the largest axis force of the same state / in % of the largest of all states.\n"
        "U joints bent by 70° at most.\n"
    )
    columns = (MASSLESS, UPS, SPIN, MOMENT, CENTRE, TWICE)
    print(f"{'':<26}" + "".join(f"{name:>{max(16, len(name) + 2)}}" for name in columns) + f"{'agreement':>11}")
    for name in (*NAMES, FAST, AXISYMMETRIC):
        file, _ = load_machine(MACHINES / f"{name.split(',')[0]}.toml")
        model, lower = build(file), lower_links(file)
        if name == AXISYMMETRIC:
            model, lower = axisymmetric(model, lower)
        states = random_states(file, model, STATES)
        if name == FAST:
            states = States(states.x, 2.0 * states.xd, 4.0 * states.xdd)
        found = errors(model, lower, states)
        cells = (f"{found[c][0]:.2f} / {found[c][1]:.2f}" if c in found else "–" for c in columns)
        line = "".join(f"{cell:>{max(16, len(c) + 2)}}" for cell, c in zip(cells, columns, strict=True))
        print(f"{name:<26}{line}{found[NONE][0]:11.0e}", flush=True)
    print(
        f"\n{MASSLESS}: all links of the legs without mass and inertia\n"
        f"{UPS}: the links above the passive R joint (UHU: the rod) turn with the base joint\n"
        f"{SPIN}: w n = 0 and e n = 0 of the links; a screw's own twist stays\n"
        f"{MOMENT}: the U joints carry a moment along the leg, not along their cross axis\n"
        f"{CENTRE}: moments of the sliding links about the base joint as if it were one of their own points\n"
        f"{TWICE}: inertia about the base joint together with the moment of the force at the com (m r2 twice)\n"
        f"{FAST}: rates doubled, accelerations fourfold; {AXISYMMETRIC}: joints without friction as well\n"
        "3-ups-s: its ball joint bears the weight, so that all forces can vanish at once: read the second figure\n"
        "agreement: the second implementation with nothing left out against the kernel, of the largest force"
    )


if __name__ == "__main__":
    main()
