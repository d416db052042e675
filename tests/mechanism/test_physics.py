"""Every machine file against mechanics written down a second time: positions, energy, Lagrange's equations.

Nothing here knows a wrench or a leg formula. From the links of the machine file come positions and rotations as
functions of the independent coordinates u (x y z yaw pitch roll; yaw pitch roll; or z a b). They are analytic, so the
imaginary part of f(u + ih) is h f'(u) without rounding: velocities, inertia matrix and gradients are exact. What
follows from them by time goes by central differences.

M, V     inertia matrix (freedoms, freedoms), kg m2 for angles; potential energy, J
A        rates of the axes by u'   (n, freedoms)
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from controller import schema
from controller.mechanism import dynamics, kinematics, layout, posture
from controller.mechanism.layout import Mechanism
from controller.mechanism.leg import STICTION_SPEED_M_S
from controller.mechanism.model import build, home_pose
from controller.settings import load_machine
from tests.machines import MACHINES

NAMES = ("6-upru", "6-upru-unequal-legs", "6-ups", "6-uhu", "3-ups-s", "2-upr-2-rpu")
STEP = 1e-30  # of the complex step: its square is nothing beside one
# The random states: half ranges of rates, accelerations; and of the wrench, N and N m.
RATE, ACCELERATION, PUSH = 0.8, 4.0, 60.0


# ---------------------------------------------------------------- the second model


class Body(NamedTuple):
    """A rigid body: com (3,) and rotation (3, 3) in base axes, possibly complex; tensor (3, 3) in its own axes."""

    mass: float
    com: np.ndarray
    rotation: np.ndarray
    inertia: np.ndarray


class LegPlace(NamedTuple):
    """Where a leg is. `spin` are cosine and sine (times a length) of the angle from base to platform side."""

    length: complex
    n: np.ndarray
    base: np.ndarray  # (3, 3) frame of the parts that turn with the base joint
    platform: np.ndarray | None  # of those that turn with the platform's U joint
    spin: tuple[complex, complex]


def rotation(axis: int, angle: complex) -> np.ndarray:
    """Rotation about x, y or z."""
    c, s, result = np.cos(angle), np.sin(angle), np.eye(3, dtype=np.result_type(angle, float))
    i, j = (axis + 1) % 3, (axis + 2) % 3
    result[i, i] = result[j, j] = c
    result[i, j], result[j, i] = -s, s
    return result


def unit(a: np.ndarray) -> np.ndarray:
    return a / np.sqrt(a @ a)  # a @ a without conjugation: stays analytic


def leg_frame(y: np.ndarray, n: np.ndarray) -> np.ndarray:
    y = unit(y)
    return np.column_stack([np.cross(y, n), y, n])


@dataclass(frozen=True)
class Model:
    """Positions and energy of a machine file."""

    machine: schema.Machine
    legs: list[schema.Legs] = field(init=False)

    def __post_init__(self) -> None:
        legs = [schema.effective_leg(self.machine, i) for i in range(len(self.machine.leg))]
        object.__setattr__(self, "legs", legs)

    @property
    def kind(self) -> str:
        return self.machine.platform.kind

    def place(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Position and rotation of the platform."""
        if self.kind == "2r1t":
            z, a, b = u
            return rotation(0, a) @ np.array([0.0, 0.0, z]), rotation(0, a) @ rotation(1, b)
        yaw, pitch, roll = u[-3:]
        o = u[:3] if self.kind == "free" else home_pose(self.machine)[:3]
        return o, rotation(2, yaw) @ rotation(1, pitch) @ rotation(0, roll)

    def home(self) -> np.ndarray:
        """Independent coordinates at home."""
        x = home_pose(self.machine)
        return {"free": x, "spherical": x[3:], "2r1t": np.array([x[2], 0.0, 0.0])}[self.kind]

    def leg(self, i: int, u: np.ndarray) -> LegPlace:
        o, R = self.place(u)
        joints, kind = self.machine.leg[i], self.legs[i].kind
        line = o + R @ np.array(joints.platform_joint_m) - np.array(joints.base_joint_m)
        length, n, r_b = np.sqrt(line @ line), unit(line), unit(np.array(joints.base_axis))
        # an R joint's axis is across the leg: y itself
        base = leg_frame(r_b if kind[0] == "R" else np.cross(r_b, n), n)
        if kind not in ("UPRU", "UHU"):
            return LegPlace(length, n, base, None, (1.0, 0.0))
        r_p = R @ unit(np.array(joints.platform_axis))
        x_n, x_m = np.cross(r_b, n), np.cross(r_p, n)
        return LegPlace(length, n, base, leg_frame(x_m, n), (x_n @ x_m, n @ np.cross(x_n, x_m)))

    def bodies(self, u: np.ndarray) -> list[Body]:
        o, R = self.place(u)
        platform = self.machine.platform
        found = [Body(platform.mass_kg, o + R @ np.array(platform.com_m), R, np.array(platform.inertia_kg_m2))]
        for i, leg in enumerate(self.legs):
            place = self.leg(i, u)
            tip = o + R @ np.array(self.machine.leg[i].platform_joint_m)
            for link in leg.links.values():
                frame = place.platform if link.group == "upper" else place.base
                start = np.array(self.machine.leg[i].base_joint_m) if link.group == "lower" else tip
                found.append(
                    Body(link.mass_kg, start + frame @ np.array(link.com_m), frame, np.array(link.inertia_kg_m2))
                )
        return found

    def potential(self, u: np.ndarray) -> float:
        return -sum(body.mass * (np.array(self.machine.gravity_m_s2) @ body.com) for body in self.bodies(u))

    def rows(self, u: np.ndarray, along: np.ndarray) -> list[tuple[Body, np.ndarray, np.ndarray]]:
        """Each body with the rates of com and rotation (its own axes) when u changes at the rate `along`."""
        moved = self.bodies(u + 1j * STEP * along)
        return [
            (body, there.com.imag / STEP, axial(body.rotation.T @ there.rotation.imag / STEP))
            for body, there in zip(self.bodies(u), moved, strict=True)
        ]

    def leg_rates(self, i: int, u: np.ndarray, along: np.ndarray) -> tuple[float, float, np.ndarray, np.ndarray]:
        """Rates of length and twist, and angular velocity (base axes) of base and platform side, along a direction."""
        here, there = self.leg(i, u), self.leg(i, u + 1j * STEP * along)
        (c, s), (cd, sd) = here.spin, (np.imag(value) / STEP for value in there.spin)
        turns = [
            np.zeros(3) if at is None else at @ axial(at.T @ to.imag / STEP)
            for at, to in ((here.base, there.base), (here.platform, there.platform))
        ]
        return there.length.imag / STEP, (c * sd - s * cd) / (c * c + s * s), turns[0], turns[1]

    def axis_rate(self, i: int, u: np.ndarray, along: np.ndarray) -> float:
        """Rate of what the drive moves: of the length, less what the twist of the leg does by itself on a screw."""
        length, twist, _, _ = self.leg_rates(i, u, along)
        leg = self.legs[i]
        return length - (leg.drive.hand * leg.drive.lead_m / (2 * np.pi) * twist if leg.kind == "UHU" else 0.0)

    def rotor_rate(self, i: int, u: np.ndarray, along: np.ndarray) -> float:
        """Spin of the rotor about the leg: seen from the cylinder a right-hand screw that extends it turns about -n."""
        drive = self.legs[i].drive
        motor = self.axis_rate(i, u, along) * 2 * np.pi / drive.lead_m * drive.gear_ratio
        return self.leg_rates(i, u, along)[2] @ self.leg(i, u).n - drive.hand * motor

    def kinetic(self, u: np.ndarray, ud: np.ndarray) -> float:
        energy = sum(0.5 * (b.mass * v @ v + w @ b.inertia @ w) for b, v, w in self.rows(u, ud))
        for i, leg in enumerate(self.legs):
            if leg.kind == "UHU":
                energy += 0.5 * leg.drive.rotor_inertia_kg_m2 * self.rotor_rate(i, u, ud) ** 2
        return energy

    def inertia(self, u: np.ndarray) -> np.ndarray:
        """M (freedoms, freedoms): the kinetic energy is u' M u' / 2."""
        unit_steps = np.eye(len(u))
        M, columns = np.zeros((len(u), len(u))), [self.rows(u, along) for along in unit_steps]
        for k, (body, _, _) in enumerate(columns[0]):
            v, w = (np.column_stack([column[k][j] for column in columns]) for j in (1, 2))
            M += body.mass * v.T @ v + w.T @ body.inertia @ w
        for i, leg in enumerate(self.legs):
            if leg.kind == "UHU":
                row = np.array([self.rotor_rate(i, u, along) for along in unit_steps])
                M += leg.drive.rotor_inertia_kg_m2 * np.outer(row, row)
        return M

    def axes(self, u: np.ndarray) -> np.ndarray:
        """A (n, freedoms)."""
        return np.array([[self.axis_rate(i, u, along) for along in np.eye(len(u))] for i in range(len(self.legs))])

    def dissipation(self, u: np.ndarray, ud: np.ndarray) -> float:
        """Power (W) that the joints turn into heat."""
        o_rate = self.rows(u, ud)[0][2]
        w = self.place(u)[1] @ o_rate
        power = 0.0
        for i, leg in enumerate(self.legs):
            rate, _, w_b, w_p = self.leg_rates(i, u, ud)
            rub = leg.friction
            power += rub.viscous_n_s_m * rate**2 + rub.coulomb_n * rate * np.tanh(rate / STICTION_SPEED_M_S)
            if leg.kind[0] == "U":
                power += rub.universal_nm_s_rad * w_b @ w_b
            if leg.kind == "UPS":
                power += rub.spherical_nm_s_rad * (w_b - w) @ (w_b - w)
            elif leg.kind in ("UPRU", "UHU"):
                power += rub.universal_nm_s_rad * (w_p - w) @ (w_p - w)
            elif leg.kind == "RPU":
                power += rub.universal_nm_s_rad * (w_b - w) @ (w_b - w)
        return power

    def lagrange(self, u: np.ndarray, ud: np.ndarray, udd: np.ndarray) -> np.ndarray:
        """Generalised forces (freedoms,) d/dt dT/du' - dT/du + dV/du of this motion, friction aside."""
        unit_steps, h = np.eye(len(u)), 1e-4
        slope = np.array([differences(lambda s, e=e: self.inertia(u + s * e), h) for e in unit_steps])
        gravity = np.array([np.imag(self.potential(u + 1j * STEP * e)) / STEP for e in unit_steps])
        M_rate = np.tensordot(ud, slope, 1)
        return self.inertia(u) @ udd + M_rate @ ud - 0.5 * np.array([ud @ dM @ ud for dM in slope]) + gravity


def axial(S: np.ndarray) -> np.ndarray:
    """The vector of a skew matrix; one that is not skew is an error of the rotation it comes from."""
    assert np.abs(S + S.T).max() < 1e-12 * max(1.0, np.abs(S).max())
    return np.array([S[2, 1] - S[1, 2], S[0, 2] - S[2, 0], S[1, 0] - S[0, 1]]) / 2


def differences(function: Callable[[float], np.ndarray], h: float) -> np.ndarray:
    """Derivative at 0 by central differences of order four."""
    return (8 * (function(h) - function(-h)) - (function(2 * h) - function(-2 * h))) / (12 * h)


# ---------------------------------------------------------------- between the two


@cache
def machine_of(name: str) -> schema.Machine:
    return load_machine(MACHINES / f"{name}.toml")[0]


def rubbing(machine: schema.Machine, **coefficients: float) -> schema.Machine:
    """The machine with friction in its joints."""
    legs = msgspec.structs.replace(machine.legs, friction=schema.Friction(**coefficients))
    return msgspec.structs.replace(machine, legs=legs)


def without_friction(machine: schema.Machine) -> schema.Machine:
    return rubbing(machine)


def pose(model: Model, u: np.ndarray) -> np.ndarray:
    """The kernels' six coordinates; scipy's angles, so that they are not what the model made of them."""
    o, R = model.place(u)
    return np.array([*o, *Rotation.from_matrix(R).as_euler("ZYX")])


def state(model: Model, u: np.ndarray, ud: np.ndarray, udd: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coordinates, rates and accelerations for the kernels of u(t) = u + u' t + u'' t^2 / 2."""
    if model.kind == "free":
        return u, ud, udd
    if model.kind == "spherical":
        return tuple(np.concatenate([rest, part]) for rest, part in zip(at_rest(model), (u, ud, udd), strict=True))
    h = 2e-3
    values = np.array([pose(model, u + ud * t + udd * t * t / 2) for t in h * np.arange(-3, 4)])
    rate = np.array([-1, 9, -45, 0, 45, -9, 1]) @ values / (60 * h)
    return values[3], rate, np.array([2, -27, 270, -490, 270, -27, 2]) @ values / (180 * h * h)


def at_rest(model: Model) -> np.ndarray:
    """Position, velocity and acceleration (3, 3) of a point that does not move."""
    return np.array([home_pose(model.machine)[:3], np.zeros(3), np.zeros(3)])


def random_states(model: Model, count: int, seed: int = 1) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Independent coordinates and their derivatives around home."""
    rng = np.random.default_rng(seed)
    reach = {"free": [0.1] * 3 + [0.25] * 3, "spherical": [0.25] * 3, "2r1t": [0.06, 0.25, 0.25]}[model.kind]
    f = len(reach)
    return [
        (
            model.home() + np.array(reach) * rng.uniform(-1, 1, f),
            RATE * rng.uniform(-1, 1, f),
            ACCELERATION * rng.uniform(-1, 1, f),
        )
        for _ in range(count)
    ]


def forces(kernels: Mechanism, x: np.ndarray, xd: np.ndarray, xdd: np.ndarray, wrench: np.ndarray) -> np.ndarray:
    f, f_cell = np.full((2, len(kernels.legs)), np.nan)
    assert dynamics.inverse_dynamics(kernels, x, xd, xdd, wrench, f, f_cell) == 0
    return f


def axis_motion(kernels: Mechanism, x: np.ndarray, xd: np.ndarray, xdd: np.ndarray) -> np.ndarray:
    """Axis positions, rates and accelerations (3, n)."""
    n = len(kernels.legs)
    q = np.full((3, n), np.nan)
    kinematics.axis_rates(kernels, x, xd, xdd, np.zeros(n), *q)
    return q


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


ZERO = np.zeros(6)


# ---------------------------------------------------------------- the tests


def test_static_forces_are_the_gradient_of_potential_energy(name: str) -> None:
    """At rest sum f dq = dV along every independent motion; dq from the kernel's axis positions, not its Jacobian."""
    model = Model(machine_of(name))
    kernels, h = build(model.machine), 1e-3
    for u, _, _ in random_states(model, 5):
        f = forces(kernels, pose(model, u), ZERO, ZERO, ZERO)
        for along in np.eye(len(u)):
            step = differences(lambda s, u=u, e=along: axis_motion(kernels, pose(model, u + s * e), ZERO, ZERO)[0], h)
            rise = differences(lambda s, u=u, e=along: model.potential(u + s * e), h)
            assert abs(f @ step - rise) < 1e-8 * np.abs(f) @ np.abs(step)


def test_actuator_power_is_the_rate_of_energy_and_the_heat(name: str) -> None:
    """With the friction of the machine file, and an external force that brings power of its own."""
    model, rng = Model(machine_of(name)), np.random.default_rng(2)
    kernels = build(model.machine)
    for u, ud, udd in random_states(model, 5, seed=2):
        power_balance(model, kernels, (u, ud, udd), rng.uniform(-PUSH, PUSH, 6))


FRICTION = ("viscous_n_s_m", "coulomb_n", "universal_nm_s_rad", "spherical_nm_s_rad")


@pytest.mark.parametrize("joint", FRICTION)
def test_power_with_friction_in_every_joint(name: str, joint: str) -> None:
    size = {"viscous_n_s_m": 50.0, "coulomb_n": 9.0}.get(joint, 0.8)
    model = Model(rubbing(machine_of(name), **{joint: size}))
    kernels = build(model.machine)
    for u, ud, udd in random_states(model, 3, seed=3):
        power_balance(model, kernels, (u, ud, udd), ZERO)


def power_balance(
    model: Model, kernels: Mechanism, motion: tuple[np.ndarray, np.ndarray, np.ndarray], wrench: np.ndarray
) -> None:
    u, ud, udd = motion
    x, xd, xdd = state(model, *motion)
    f, rate = forces(kernels, x, xd, xdd, wrench), axis_motion(kernels, x, xd, xdd)[1]
    _, v, w = model.rows(u, ud)[0]  # of the platform's com
    R = model.place(u)[1]
    turn = R @ w
    v_o = v - np.cross(turn, R @ np.array(model.machine.platform.com_m))
    supplied = f @ rate + wrench[:3] @ v_o + wrench[3:] @ turn

    def energy(t: float) -> float:
        at, moving = u + ud * t + udd * t * t / 2, ud + udd * t
        return model.kinetic(at, moving) + model.potential(at)

    # the heat counts in full: friction of a tenth of a watt in megawatts of power would otherwise pass unseen
    heat = model.dissipation(u, ud)
    size = np.abs(f) @ np.abs(rate)
    assert size > 1.0
    assert abs(supplied - differences(energy, 1e-3) - heat) < 1e-8 * size
    assert heat == 0.0 or 1e-8 * size < 1e-2 * heat


@pytest.mark.parametrize("name", ["6-ups", "3-ups-s"])
@pytest.mark.parametrize("seals_m", [(0.0, 0.0), (0.62, 0.75)])
def test_friction_of_the_seals_follows_their_load(name: str, seals_m: tuple[float, float]) -> None:
    """Guo et al.: mu N_n sgn(l'), N_n the lateral resultant, or what gland and piston carry with the couple."""
    plain, mu = without_friction(machine_of(name)), 0.02
    rubbed = build(rubbing(plain, coulomb_n=7.0, normal=mu, gland_m=seals_m[0], piston_m=seals_m[1]))
    model, kernels = Model(plain), build(plain)
    n = len(kernels.legs)
    for motion in random_states(model, 5, seed=10):
        x, xd, xdd = state(model, *motion)
        F, T = np.full((2, 1, 2 * n), np.nan)
        dynamics.lateral_batch(kernels, x[None], xd[None], xdd[None], F, T)
        F, T = F.reshape(n, 2), T.reshape(n, 2)
        if seals_m[1]:
            d_g, d_p = seals_m
            couple = np.column_stack([-T[:, 1], T[:, 0]])  # n x T
            gland, piston = (d_p * F - couple) / (d_p - d_g), (couple - d_g * F) / (d_p - d_g)
            np.testing.assert_allclose(gland + piston, F, rtol=0, atol=1e-12)
            load = np.linalg.norm(gland, axis=1) + np.linalg.norm(piston, axis=1)
        else:
            load = np.linalg.norm(F, axis=1)
        right = (7.0 + mu * load) * np.tanh(axis_motion(kernels, x, xd, xdd)[1] / STICTION_SPEED_M_S)
        found = forces(rubbed, x, xd, xdd, ZERO) - forces(kernels, x, xd, xdd, ZERO)
        np.testing.assert_allclose(found, right, rtol=0, atol=1e-10)


def test_lagrange_gives_the_forces_of_the_kernel(name: str) -> None:
    """For 2-UPR/2-RPU as in Hao et al.: T and V of all links as functions of z, a, b; least norm of four forces."""
    model, rng = Model(without_friction(machine_of(name))), np.random.default_rng(4)
    kernels = build(model.machine)
    for u, ud, udd in random_states(model, 3, seed=4):
        x, xd, xdd = state(model, u, ud, udd)
        wrench = rng.uniform(-PUSH, PUSH, 6)
        needed = model.lagrange(u, ud, udd)
        for k, along in enumerate(np.eye(len(u))):
            _, v, w = model.rows(u, along)[0]
            R = model.place(u)[1]
            v_o = v - np.cross(R @ w, R @ np.array(model.machine.platform.com_m))
            needed[k] -= wrench[:3] @ v_o + wrench[3:] @ (R @ w)
        right = np.linalg.pinv(model.axes(u).T) @ needed
        found = forces(kernels, x, xd, xdd, wrench)
        np.testing.assert_allclose(found, right, rtol=0, atol=1e-8 * np.abs(right).max())


def test_preload_is_what_redundant_forces_stay_closest_to() -> None:
    """It moves the forces within those that move nothing, to the nearest of them."""
    model = Model(machine_of("2-upr-2-rpu"))
    loaded = msgspec.structs.replace(model.machine, legs=msgspec.structs.replace(model.machine.legs, preload_n=70.0))
    for u, ud, udd in random_states(model, 5, seed=5):
        motion = state(model, u, ud, udd)
        plain, pressed = (forces(build(machine), *motion, ZERO) for machine in (model.machine, loaded))
        squeeze = np.linalg.svd(model.axes(u))[0][:, -1]
        np.testing.assert_allclose(pressed - plain, squeeze * squeeze.sum() * 70.0, rtol=0, atol=1e-10)


def test_rates_are_the_derivatives_of_positions(name: str) -> None:
    """Lengths, twists, axis positions along a path, by central differences of the kernel's own positions."""
    model = Model(machine_of(name))
    kernels = build(model.machine)
    n, h = len(kernels.legs), 2e-3
    screw = kernels.legs[:, layout.SCREW]
    for u, ud, udd in random_states(model, 10, seed=6):
        x, xd, xdd = state(model, u, ud, udd)
        values = np.full((3, 7, n), np.nan)
        for k in range(7):
            t = (k - 3) * h
            there = pose(model, u + ud * t + udd * t * t / 2)
            kinematics.leg_lengths(kernels, there, values[0, k])
            kinematics.twists(kernels, there, np.zeros(n), values[1, k])
            values[2, k] = axis_motion(kernels, there, ZERO, ZERO)[0]
        rates = np.tensordot(np.array([-1, 9, -45, 0, 45, -9, 1]) / (60 * h), values, (0, 1))
        accelerations = np.tensordot(np.array([2, -27, 270, -490, 270, -27, 2]) / (180 * h * h), values, (0, 1))
        l, ld, ldd = np.full((3, n), np.nan)  # noqa: E741
        kinematics.leg_rates(kernels, x, xd, xdd, l, ld, ldd)
        q, qd, qdd = axis_motion(kernels, x, xd, xdd)
        for found, right, tolerance in (
            (l, values[0, 3], 1e-14), (ld, rates[0], 1e-10), (ldd, accelerations[0], 1e-8),
            (q, values[2, 3], 1e-14), (qd, rates[2], 1e-10), (qdd, accelerations[2], 1e-8),
        ):  # fmt: skip
            np.testing.assert_allclose(found, right, rtol=0, atol=tolerance)
        if screw.any():
            # rates of the twist are in the axes: a thousandth of a metre a radian
            np.testing.assert_allclose((ld - qd) / screw, rates[1], rtol=0, atol=1e-8)
            np.testing.assert_allclose((ldd - qdd) / screw, accelerations[1], rtol=0, atol=1e-6)
        mine = [model.leg_rates(i, u, ud) for i in range(n)]
        np.testing.assert_allclose(ld, [rate for rate, *_ in mine], rtol=0, atol=1e-10)
        np.testing.assert_allclose(rates[1], [rate for _, rate, *_ in mine], rtol=0, atol=1e-9)


def test_jacobian_is_the_derivative_of_the_axis_positions_by_the_twist(name: str) -> None:
    """All six columns, screw rows included: also along motions that the platform is not free to make."""
    model = Model(machine_of(name))
    kernels, h = build(model.machine), 1e-3
    n = len(kernels.legs)
    for u, _, _ in random_states(model, 5, seed=7):
        x, J = pose(model, u), np.full((n, 6), np.nan)
        kinematics.jacobian(kernels, x, J)
        R = Rotation.from_euler("ZYX", x[3:])
        for k, along in enumerate(np.eye(6)):

            def position(s: float, x: np.ndarray = x, R: Rotation = R, along: np.ndarray = along) -> np.ndarray:
                turned = Rotation.from_rotvec(s * along[3:]) * R
                there = np.array([*(x[:3] + s * along[:3]), *turned.as_euler("ZYX")])
                return axis_motion(kernels, there, ZERO, ZERO)[0]

            np.testing.assert_allclose(J[:, k], differences(position, h), rtol=0, atol=1e-9)


def test_rate_of_the_jacobian_is_the_derivative_of_the_jacobian(name: str) -> None:
    """By central differences along a path, screw rows included."""
    model = Model(machine_of(name))
    kernels, h = build(model.machine), 1e-3
    n = len(kernels.legs)

    def jacobian(u: np.ndarray) -> np.ndarray:
        J = np.full((n, 6), np.nan)
        kinematics.jacobian(kernels, pose(model, u), J)
        return J

    for u, ud, udd in random_states(model, 3, seed=11):
        x, xd, _ = state(model, u, ud, udd)
        found = np.full((n, 6), np.nan)
        kinematics.jacobian_rate(kernels, x, xd, found)
        right = differences(lambda t, u=u, ud=ud: jacobian(u + ud * t), h)
        np.testing.assert_allclose(found, right, rtol=0, atol=1e-9)


def test_independent_motions_are_those_of_the_platform(name: str) -> None:
    """G against positions and rotations along u: the same space of twists, and for z, a, b the same columns."""
    model = Model(machine_of(name))
    kernels, G = build(model.machine), np.full((6, 6), np.nan)
    for u, _, _ in random_states(model, 3, seed=8):
        posture.independent_motions(kernels, pose(model, u), G)
        right = []
        for along in np.eye(len(u)):
            o, R = model.place(u + 1j * STEP * along)
            here = model.place(u)[1]
            right.append([*np.imag(o) / STEP, *(here @ axial(here.T @ R.imag / STEP))])
        columns = np.array(right).T
        if model.kind == "2r1t":
            np.testing.assert_allclose(G[:, :3], columns, rtol=0, atol=1e-14)
        coefficients, *_ = np.linalg.lstsq(G[:, : len(u)], columns, rcond=None)
        np.testing.assert_allclose(G[:, : len(u)] @ coefficients, columns, rtol=0, atol=1e-14)
        assert (G[:, len(u) :] == 0.0).all()


def test_rates_of_the_pose_come_back_from_the_rates_of_the_axes(name: str) -> None:
    model = Model(machine_of(name))
    kernels = build(model.machine)
    for motion in random_states(model, 10, seed=9):
        x, xd, xdd = state(model, *motion)
        q, qd, _ = axis_motion(kernels, x, xd, xdd)
        found = np.full(6, np.nan)
        assert kinematics.platform_rate(kernels, x, np.zeros(len(q)), q, qd, found) < 1e-14
        np.testing.assert_allclose(found, xd, rtol=0, atol=1e-10 if model.kind == "2r1t" else 1e-12)
