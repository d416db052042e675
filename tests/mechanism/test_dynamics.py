"""What follows from the inverse dynamics: mass matrix, external wrench, friction, efficiency, preload."""

import numpy as np
import pytest
from msgspec.structs import replace
from numba.core.dispatcher import Dispatcher

from controller import schema
from controller.mechanism import drive, dynamics, kinematics, layout, platform, posture, regressor
from controller.mechanism.drive import axis_force, build_drives
from controller.mechanism.layout import Mechanism
from controller.mechanism.model import build, home_pose
from controller.mechanism.platform import rotation_matrix
from controller.settings import load_machine
from tests.machines import MACHINES

NAMES = ("6-upru", "6-upru-unequal-legs", "6-ups", "6-uhu", "3-ups-s", "2-upr-2-rpu")
ALL = [load_machine(MACHINES / f"{name}.toml")[0] for name in NAMES]


def some_motion(machine: schema.Machine, seed: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A motion the platform can make, near home: z, a, b of 2R1T, angles of a spherical platform, all of a free one."""
    rng = np.random.default_rng(seed)
    a, rate, acceleration = rng.uniform(-0.1, 0.1, 6), rng.normal(0, 0.3, 6), rng.normal(0, 1.0, 6)
    home = home_pose(machine)
    match machine.platform.kind:
        case "free":
            return home + a, rate, acceleration
        case "spherical":
            rotation = np.array([0, 0, 0, 1, 1, 1])
            return home + a * rotation, rate * rotation, acceleration * rotation
        case _:
            return plane_tilt_motion(home[2] + a[0], a[1], a[2], rate[:3], acceleration[:3])


def plane_tilt_motion(z: float, a: float, b: float, rate: np.ndarray, acc: np.ndarray) -> tuple[np.ndarray, ...]:
    """o = z (0, -sin a, cos a), R = Rx(a) Ry(b) along (z, a, b)(t), derivatives by central differences of the path."""

    def pose(t: float) -> np.ndarray:
        zt, at, bt = np.array([z, a, b]) + rate * t + 0.5 * acc * t * t
        sa, ca, sb, cb = np.sin(at), np.cos(at), np.sin(bt), np.cos(bt)
        R = np.array([[cb, 0, sb], [sa * sb, ca, -sa * cb], [-ca * sb, sa, ca * cb]])
        pitch = np.arctan2(-R[2, 0], np.hypot(R[0, 0], R[1, 0]))
        return np.array(
            [0, -zt * sa, zt * ca, np.arctan2(R[1, 0], R[0, 0]), pitch, np.arctan2(R[2, 1], R[2, 2])]
        )  # fmt: skip

    h = 1e-4
    return pose(0.0), (pose(h) - pose(-h)) / (2 * h), (pose(h) - 2 * pose(0.0) + pose(-h)) / h**2


def forces(model: Mechanism, motion: tuple[np.ndarray, ...], wrench: np.ndarray | None = None) -> np.ndarray:
    f, f_cell = np.empty((2, len(model.legs)))
    assert dynamics.inverse_dynamics(model, *motion, np.zeros(6) if wrench is None else wrench, f, f_cell) == 0
    return f


def free_motions(model: Mechanism, x: np.ndarray) -> np.ndarray:
    G = np.empty((6, 6))
    posture.independent_motions(model, x, G)
    return G[:, : 6 if model.platform[layout.KIND] == layout.FREE else 3]


@pytest.mark.parametrize("machine", ALL, ids=NAMES)
def test_equation_of_motion_is_the_inverse_dynamics(machine: schema.Machine) -> None:
    model, (x, xd, xdd) = build(machine), some_motion(machine)
    M, h, J = np.full((6, 6), np.nan), np.full(6, np.nan), np.empty((len(model.legs), 6))
    dynamics.equation_of_motion(model, x, xd, M, h)
    kinematics.jacobian(model, x, J)
    G = free_motions(model, x)
    twist_rate = spatial_acceleration(x, xd, xdd)
    left, right = G.T @ J.T @ forces(model, (x, xd, xdd)), G.T @ (M @ twist_rate + h)
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-9 * np.abs(right).max())
    assert np.linalg.eigvalsh(G.T @ (M + M.T) @ G).min() > 0.0
    np.testing.assert_allclose(M, M.T, rtol=0, atol=1e-9 * np.abs(M).max())


def spatial_acceleration(x: np.ndarray, xd: np.ndarray, xdd: np.ndarray) -> np.ndarray:
    """[a, e] from the coordinates, by differences of rotation matrices."""
    h = 1e-4

    def omega(t: float) -> np.ndarray:
        R = np.empty((3, 3, 3))
        for k, shift in enumerate((-h, 0.0, h)):
            rotation_matrix(x + xd * (t + shift) + 0.5 * xdd * (t + shift) ** 2, R[k])
        S = (R[2] - R[0]) / (2 * h) @ R[1].T
        return np.array([S[2, 1] - S[1, 2], S[0, 2] - S[2, 0], S[1, 0] - S[0, 1]]) / 2

    # exact enough for the comparison: the angular part is Richardson-extrapolated
    def rate(step: float) -> np.ndarray:
        return (omega(step) - omega(-step)) / (2 * step)

    exact = dynamics.body(x, xd, xdd).e
    np.testing.assert_allclose(
        exact, (4 * rate(1e-3) - rate(2e-3)) / 3, rtol=0, atol=1e-5 * max(1.0, np.abs(exact).max())
    )
    return np.concatenate([xdd[:3], exact])


@pytest.mark.parametrize("machine", ALL, ids=NAMES)
def test_external_wrench_is_found_from_axis_forces_and_from_cells(machine: schema.Machine) -> None:
    model, motion = build(machine), some_motion(machine, 5)
    wrench, found = np.array([50.0, -20.0, 80.0, 10.0, -5.0, 3.0]), np.full(6, np.nan)
    f, f_cell = np.empty((2, len(model.legs)))
    dynamics.inverse_dynamics(model, *motion, wrench, f, f_cell)
    G = free_motions(model, motion[0])
    scale = np.abs(f).max()
    dynamics.external_wrench(model, *motion, f, found)
    np.testing.assert_allclose(G.T @ found, G.T @ wrench, rtol=0, atol=1e-9 * scale)
    dynamics.external_wrench_from_cells(model, *motion, f_cell, found)
    np.testing.assert_allclose(G.T @ found, G.T @ wrench, rtol=0, atol=1e-9 * scale)


@pytest.mark.parametrize("machine", ALL, ids=NAMES)
def test_jacobian_rate_is_the_rate_of_the_jacobian_and_gives_the_accelerations(machine: schema.Machine) -> None:
    model, (x, xd, xdd) = build(machine), some_motion(machine, 7)
    n, h = len(model.legs), 1e-5
    J, Jd, q, qd, qdd = np.empty((3, n, 6)), np.full((n, 6), np.nan), *np.empty((3, n))
    for k, shift in enumerate((-h, 0.0, h)):
        kinematics.jacobian(model, x + xd * shift, J[k])
    kinematics.jacobian_rate(model, x, xd, Jd)
    np.testing.assert_allclose(Jd, (J[2] - J[0]) / (2 * h), rtol=0, atol=1e-8)
    kinematics.axis_rates(model, x, xd, xdd, np.zeros(n), q, qd, qdd)
    body = dynamics.body(x, xd, xdd)
    expected = J[1] @ np.concatenate([body.a, body.e]) + Jd @ np.concatenate([body.v, body.w])
    np.testing.assert_allclose(qdd, expected, rtol=0, atol=1e-9)


def with_friction(machine: schema.Machine, **friction: float) -> Mechanism:
    return build(replace(machine, legs=replace(machine.legs, friction=schema.Friction(**friction))))


def test_normal_force_friction_follows_the_seal_load() -> None:
    """3-UPS/S: the paper's (F_t + mu N) sgn(l') + f_v l' on top of the frictionless force, N from own reactions."""
    machine = ALL[4]
    motion = some_motion(machine, 11)
    plain = build(machine)
    force, moment = np.empty((2, 1, 6))
    dynamics.lateral_batch(plain, *(part[None, :] for part in motion), force, moment)
    F, T = force.reshape(3, 2), moment.reshape(3, 2)
    l, ld, ldd = np.empty((3, 3))  # noqa: E741
    kinematics.leg_rates(plain, *motion, l, ld, ldd)
    mu, dry, viscous, gland, piston = 0.02, 30.0, 90.0, 0.30, 0.55
    base = forces(plain, motion)
    single = forces(with_friction(machine, coulomb_n=dry, viscous_n_s_m=viscous, normal=mu), motion)
    load = np.linalg.norm(F, axis=1)
    expected = (dry + mu * load) * np.tanh(ld / 2e-3) + viscous * ld
    np.testing.assert_allclose(single - base, expected, rtol=0, atol=1e-9 * np.abs(base).max())
    couple = forces(with_friction(machine, normal=mu, gland_m=gland, piston_m=piston), motion)
    # two lateral loads at -gland n and -piston n behind the joint with sum F and moment T
    loads = []
    for f, t in zip(F, T, strict=True):
        n_cross_t = np.array([-t[1], t[0]])
        on_gland = (piston * f - n_cross_t) / (piston - gland)
        on_piston = f - on_gland
        arms = -gland * np.array([-on_gland[1], on_gland[0]]) - piston * np.array([-on_piston[1], on_piston[0]])
        np.testing.assert_allclose(arms, t, rtol=0, atol=1e-9)  # z x F times the place along n
        loads.append(np.linalg.norm(on_gland) + np.linalg.norm(on_piston))
    expected = mu * np.array(loads) * np.tanh(ld / 2e-3)
    np.testing.assert_allclose(couple - base, expected, rtol=0, atol=1e-9 * np.abs(base).max())


def test_efficiency_takes_more_to_drive_and_less_when_driven() -> None:
    machine = ALL[0]
    worn = replace(machine, legs=replace(machine.legs, drive=replace(machine.legs.drive, efficiency=0.8)))
    drives, clean = build_drives(worn), build_drives(machine)
    f, fast, zero = np.full(6, 100.0), np.full(6, 0.1), np.zeros(6)

    def put_in(drive: np.ndarray, force: np.ndarray, rate: np.ndarray) -> np.ndarray:
        found = np.full(6, np.nan)
        axis_force(drive, force, rate, zero, found)
        return found

    extra = put_in(clean, f, fast) - f
    np.testing.assert_allclose(put_in(drives, f, fast) - extra, f / 0.8)
    np.testing.assert_allclose(put_in(drives, f, -fast) + extra, f * 0.8)
    np.testing.assert_allclose(put_in(drives, -f, fast) - extra, -f * 0.8)

    uhu = ALL[3]
    motion = some_motion(uhu, 2)
    perfect = forces(build(uhu), motion)
    lossy = forces(build(replace(uhu, legs=replace(uhu.legs, drive=replace(uhu.legs.drive, efficiency=0.8)))), motion)
    q, qd, qdd = np.empty((3, 6))
    kinematics.axis_rates(build(uhu), *motion, np.zeros(6), q, qd, qdd)
    assert np.all(np.sign(lossy - perfect) == np.sign(qd))  # along the rate it costs more, against it less


def test_preload_of_the_redundant_machine_changes_the_forces_but_not_what_they_do() -> None:
    machine = ALL[5]
    motion = some_motion(machine, 4)
    plain, loaded = build(machine), build(replace(machine, legs=replace(machine.legs, preload_n=-40.0)))
    f, g = forces(plain, motion), forces(loaded, motion)
    J = np.empty((4, 6))
    kinematics.jacobian(plain, motion[0], J)
    G = free_motions(plain, motion[0])
    np.testing.assert_allclose(G.T @ J.T @ (f - g), 0.0, atol=1e-9)
    null = np.linalg.svd((J @ G).T)[2][-1]
    assert abs(null @ f) < 1e-9  # least norm: nothing in the null space
    np.testing.assert_allclose(null @ g, null @ np.full(4, -40.0), atol=1e-9)


@pytest.mark.parametrize("machine", ALL, ids=NAMES)
def test_other_assembly_branches_are_told(machine: schema.Machine) -> None:
    """Newton from anywhere either fails, or finds the pose, or says that it is another way to assemble the legs."""
    model, home = build(machine), home_pose(machine)
    n, rng = len(model.legs), np.random.default_rng(9)
    x, q, found, other = some_motion(machine, 8)[0], np.empty(n), np.empty(6), 0
    q_at = np.empty(n)
    kinematics.axis_rates(model, x, np.zeros(6), np.zeros(6), np.zeros(n), q, np.empty(n), np.empty(n))
    for _ in range(300):
        guess = home + rng.uniform(-1, 1, 6) * np.array([1, 1, 2, 2, 1.2, 3])
        if machine.platform.kind != "free":
            guess[:3] = home[:3]
        if machine.platform.kind == "2r1t":
            guess[3:] = 0.0, rng.uniform(-1.2, 1.2), 0.0
        iterations = kinematics.forward(model, q, guess, np.zeros(n), found)
        if iterations > 0:
            kinematics.leg_lengths(model, found, q_at)
            assert np.linalg.norm(found[:3] - home[:3]) < 2.0 * np.abs(q).max()
            R, right = np.empty((3, 3)), np.empty((3, 3))
            rotation_matrix(found, R)
            rotation_matrix(x, right)
            if not np.allclose(
                R, right, atol=1e-6
            ):  # same lengths elsewhere, with legs that have swung by < 90 degrees
                assert kinematics.branch(model, found) == kinematics.branch(model, home)
        elif iterations <= -kinematics.WRONG_BRANCH:
            other += 1
    if machine.platform.kind == "free":
        assert other > 0  # the test did meet some


def test_swing_since_home_is_the_angle_between_the_leg_lines() -> None:
    machine = ALL[0]
    model, home = build(machine), home_pose(machine)
    base, platform = np.empty((2, 2, 6))
    posture.joint_swings(model, home + np.array([[0.0] * 6, [0.05, 0.02, 0.0, 0.3, 0.0, 0.0]]), base, platform)
    np.testing.assert_allclose(base[0], 0.0, atol=1e-7)
    np.testing.assert_allclose(platform[0], 0.0, atol=1e-7)
    B = np.array([leg.base_joint_m for leg in machine.leg])
    b = np.array([leg.platform_joint_m for leg in machine.leg])
    c, s = np.cos(0.3), np.sin(0.3)
    Rz = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    before, after = home[:3] + b - B, home[:3] + [0.05, 0.02, 0.0] + b @ Rz.T - B
    for turned, found in ((after, base[1]), (after @ Rz, platform[1])):
        cosine = np.sum(before * turned, axis=1) / np.linalg.norm(before, axis=1) / np.linalg.norm(turned, axis=1)
        np.testing.assert_allclose(found, np.arccos(cosine), atol=1e-9)


def test_extent_ends_at_the_stroke() -> None:
    machine = ALL[0]
    model, home = build(machine), home_pose(machine)
    low, high = np.full(6, 0.755), np.full(6, 1.115)
    up = np.array([0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    reach = posture.extent(model, home, up, (low, high), 1.0, 1000)
    across = np.linalg.norm(np.subtract(machine.leg[0].platform_joint_m, machine.leg[0].base_joint_m)[:2])
    assert reach == pytest.approx(np.sqrt(1.115**2 - across**2) - home[2], abs=1.1e-3)


def kernels() -> dict[str, object]:
    modules = (dynamics, kinematics, posture, platform, drive, regressor)
    return {
        f"{module.__name__}.{name}": member
        for module in modules
        for name, member in vars(module).items()
        if isinstance(member, Dispatcher) and not member.targetoptions.get("forceinline")
    }


def test_no_kernel_compiles_after_import() -> None:
    """A dtype, layout or stride that is not the declared one is refused; nothing is compiled in the loop for it."""
    found = kernels()
    assert len(found) > 15
    model = build(ALL[0])
    x = home_pose(ALL[0])
    for wrong in (x.astype(np.float32), np.zeros(12)[::2], [0.0] * 6):
        with pytest.raises(TypeError):
            kinematics.leg_lengths(model, wrong, np.empty(6))
    for name, kernel in found.items():
        assert len(kernel.nopython_signatures) == 1, name
        assert not kernel._can_compile, name
