"""Columns times parameters against the kernel, known ranks, and the paper's columns written out from its Table 2."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from controller import schema
from controller.errors import ConfigurationError
from controller.mechanism import dynamics, kinematics, regressor
from controller.mechanism.model import build, home_pose
from controller.mechanism.platform import rotation_matrix
from controller.settings import load_machine
from tests.machines import MACHINES
from tests.oracles.machine import KINDS, OracleMachine, machine_to_toml_dict, random_machine

FILES = sorted(path.stem for path in MACHINES.glob("*.toml"))
GRAVITY = np.array([0.0, 0.0, -9.81])
FRICTION = {"viscous_n_s_m": 40.0, "coulomb_n": 7.0, "universal_nm_s_rad": 0.6, "spherical_nm_s_rad": 0.4}
SEALS = {"normal": 0.02, "gland_m": 0.1, "piston_m": 0.5}
STATES = 200
CLEAR = 1e10  # gap between singular values; measured 4e12 to 2e14


def from_file(name: str) -> schema.Machine:
    return load_machine(MACHINES / f"{name}.toml")[0]


def from_oracle(machine: OracleMachine, **friction: float) -> schema.Machine:
    table = machine_to_toml_dict(machine)
    for leg in table["leg"]:
        leg["friction"] = leg.get("friction", {}) | friction
    return msgspec.convert(table, schema.Machine)


def axisymmetric(rng: np.random.Generator) -> schema.Machine:
    """A random 6-UPRU with the links of its first leg in all legs, turned into bodies of revolution about the leg."""
    machine = random_machine(rng)
    links = tuple(
        replace(
            link,
            com_m=(0.0, 0.0, link.com_m[2]),
            inertia_kg_m2=tuple(map(tuple, np.diag(np.diag(link.inertia_kg_m2)[[0, 0, 2]]).tolist())),
        )
        for link in machine.legs[0].links
    )
    return from_oracle(replace(machine, legs=tuple(replace(leg, links=links) for leg in machine.legs)))


def random_states(machine: schema.Machine, states: int = STATES, seed: int = 0) -> tuple[np.ndarray, ...]:
    """x, xd, xdd, wrench (states, 6); a spherical platform turns about its point, a 2R1T platform is asked for motions
    that it cannot make: the formulas do not mind."""
    rng = np.random.default_rng(seed)
    limits = machine.platform.limits
    low, high = np.array([getattr(limits, name) for name in limits.__struct_fields__]).T
    x = rng.uniform(low, high, (states, 6))
    xd, xdd, wrench = rng.normal(0, 1, (3, states, 6)) * np.repeat([[0.3, 0.8], [1.2, 3.2], [50, 50]], 3, 1)[:, None, :]
    if machine.platform.kind == "spherical":
        x[:, :3], xd[:, :3], xdd[:, :3] = home_pose(machine)[:3], 0.0, 0.0
    return x, xd, xdd, wrench


def columns(machine: schema.Machine, each_leg: bool, *states: np.ndarray) -> tuple[np.ndarray, ...]:
    """Y, Y_cell and known of the states, none of them singular."""
    model = build(machine)
    legs, width = len(machine.leg), len(regressor.names(len(machine.leg), each_leg))
    outputs = [np.full((len(states[0]), legs, *more), np.nan) for more in ((width,), (width,), ())]
    assert regressor.regressor_batch(model, *states, *outputs) == 0
    return tuple(outputs)


def kernel_forces(machine: schema.Machine, *states: np.ndarray) -> np.ndarray:
    """Axis and cell forces (2, states, legs)."""
    forces = np.full((2, len(states[0]), len(machine.leg)), np.nan)
    assert dynamics.inverse_dynamics_batch(build(machine), *states, *forces) == 0
    return forces


def assert_same_forces(found: np.ndarray, right: np.ndarray) -> None:
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-11 * np.abs(right).max())


def cases() -> dict[str, schema.Machine]:
    made = {name: from_file(name) for name in FILES}
    for kind in KINDS:
        for seed in range(2):
            tree = random_machine(np.random.default_rng(seed), kind)
            # R joints and a screw's torque load the seals in ways that are not known
            seals = SEALS if seed and kind not in ("2-upr-2-rpu", "6-uhu") else {}
            friction = FRICTION if kind in ("6-ups", "3-ups-s") else FRICTION | {"spherical_nm_s_rad": 0.0}
            made[f"random-{kind}-{seed}"] = from_oracle(tree, **friction, **seals)
    return made


CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_columns_times_parameters_are_the_forces(name: str) -> None:
    machine = CASES[name]
    states = random_states(machine, 20)
    p = regressor.parameters(build(machine), each_leg=True)
    Y, Y_cell, known = columns(machine, True, *states)
    assert p.size == Y.shape[2]
    f, f_cell = kernel_forces(machine, *states)
    assert_same_forces(Y @ p + known, f)
    assert_same_forces(Y_cell @ p + known, f_cell)


@pytest.mark.parametrize("name", ["6-upru", "6-ups", "6-uhu", "3-ups-s", "2-upr-2-rpu"])
def test_legs_of_the_same_build_share_columns(name: str) -> None:
    machine = from_file(name)
    states = random_states(machine, 20)
    p = regressor.parameters(build(machine))
    assert p.size == len(regressor.names(len(machine.leg)))
    Y, Y_cell, known = columns(machine, False, *states)
    f, f_cell = kernel_forces(machine, *states)
    assert_same_forces(Y @ p + known, f)
    assert_same_forces(Y_cell @ p + known, f_cell)


def test_legs_that_differ_have_no_common_parameters() -> None:
    with pytest.raises(ConfigurationError, match="different"):
        regressor.parameters(build(from_file("6-upru-unequal-legs")))


def test_preload_and_wrench_are_known_forces() -> None:
    """A redundant machine without masses carries the wrench with the forces nearest to the preload."""
    machine = from_file("2-upr-2-rpu")
    machine = msgspec.structs.replace(machine, legs=msgspec.structs.replace(machine.legs, preload_n=30.0))
    states = random_states(machine, 20)
    p = regressor.parameters(build(machine))
    Y, _, known = columns(machine, False, *states)
    assert np.abs(known).max() > 30.0
    assert_same_forces(Y @ p + known, kernel_forces(machine, *states)[0])


def test_a_singular_pose_leaves_no_numbers() -> None:
    machine = from_file("3-ups-s")
    x, *rest = random_states(machine, 2)
    x[1, 3:] = np.nan
    width = len(regressor.names(3))
    outputs = [np.zeros((2, 3, *more)) for more in ((width,), (width,), ())]
    assert regressor.regressor_batch(build(machine), x, *rest, *outputs) == 1
    assert all(np.isfinite(out[0]).all() and np.isnan(out[1]).all() for out in outputs)


def test_outputs_of_the_wrong_width_are_refused() -> None:
    machine = from_file("6-upru")
    with pytest.raises(ValueError, match="columns"):
        regressor.regressor_batch(
            build(machine), *random_states(machine, 1), np.zeros((1, 6, 50)), np.zeros((1, 6, 50)), np.zeros((1, 6))
        )


# ---------------------------------------------------------------- ranks


def inertial(machine: schema.Machine, each_leg: bool) -> tuple[np.ndarray, np.ndarray]:
    """Y and Y_cell without the columns of friction and rotors."""
    Y, Y_cell, _ = columns(machine, each_leg, *random_states(machine))
    legs = len(machine.leg) if each_leg else 1
    of_leg = np.arange(regressor.LEG_WIDTH) < regressor.INERTIAL_WIDTH
    keep = np.concatenate([np.full(regressor.PLATFORM_WIDTH, True), np.tile(of_leg, legs)])
    return Y[:, :, keep], Y_cell[:, :, keep]


@pytest.mark.parametrize(
    ("kind", "each_leg", "axis", "cell"),
    [("6-upru", False, 29, 33), ("6-upru", True, 124, 148), ("6-ups", False, 22, 26), ("3-ups-s", False, 21, 25)],
)
@pytest.mark.parametrize("seed", [None, 1])
def test_rank_of_ten_parameters_a_body(kind: str, each_leg: bool, axis: int, cell: int, seed: int | None) -> None:
    machine = from_file(kind) if seed is None else from_oracle(random_machine(np.random.default_rng(seed), kind))
    for Y, right in zip(inertial(machine, each_leg), (axis, cell), strict=True):
        found = regressor.numerical_rank(Y)
        assert (found.rank, found.gap > CLEAR) == (right, True), found.gap


@pytest.mark.parametrize("seed", [None, 1])
def test_rank_of_the_papers_parameters(seed: int | None) -> None:
    machine = from_file("6-upru") if seed is None else axisymmetric(np.random.default_rng(seed))
    Y, Y_cell, _ = columns(machine, False, *random_states(machine))
    for side, right in ((Y, 15), (Y_cell, 17)):
        found = regressor.numerical_rank(side @ regressor.paper_form())
        assert (found.rank, found.gap > CLEAR) == (right, True), found.gap


def test_rank_ignores_units_and_counts_nothing_twice() -> None:
    Y = np.random.default_rng(0).normal(size=(50, 4, 3))
    Y = np.concatenate([1e-9 * Y, 1e6 * Y[..., :2], np.zeros((50, 4, 1))], axis=2)
    assert regressor.numerical_rank(Y).rank == 3
    assert regressor.numerical_rank(Y[..., :3]).gap > CLEAR
    assert regressor.numerical_rank(0.0 * Y).rank == 0


# ---------------------------------------------------------------- the paper's 29


@pytest.mark.parametrize("seed", [None, 2, 3])
def test_the_papers_form_agrees_with_the_kernel(seed: int | None) -> None:
    machine = from_file("6-upru") if seed is None else axisymmetric(np.random.default_rng(seed))
    p, T = regressor.paper_parameters(machine), regressor.paper_form()
    assert p.size == len(regressor.PAPER_NAMES) == 29
    np.testing.assert_allclose(T @ p, regressor.parameters(build(machine)), rtol=1e-13, atol=1e-15)
    states = random_states(machine, 20)
    Y, Y_cell, known = columns(machine, False, *states)
    for side, f in zip((Y, Y_cell), kernel_forces(machine, *states), strict=True):
        assert_same_forces(side @ T @ p + known, f)


@pytest.mark.parametrize("cell", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_papers_form_is_table_2(seed: int, cell: bool) -> None:
    machine = axisymmetric(np.random.default_rng(seed))
    states = random_states(machine, 5)
    J = np.empty((6, 6))
    Y = columns(machine, False, *states)[int(cell)] @ regressor.paper_form()
    for k in range(len(Y)):
        kinematics.jacobian(build(machine), states[0][k], J)
        right = np.linalg.solve(J.T, table_2(machine, states[0][k], states[1][k], states[2][k], cell))
        np.testing.assert_allclose(Y[k], right, rtol=0, atol=1e-11 * np.abs(right).max())


def test_the_papers_form_is_refused_where_it_does_not_hold() -> None:
    for name, word in (("6-ups", "UPRU"), ("6-upru-unequal-legs", "same links")):
        with pytest.raises(ConfigurationError, match=word):
            regressor.paper_parameters(from_file(name))
    machine = from_file("6-upru")
    bent = msgspec.structs.replace(machine.legs.links["L2"], com_m=(0.01, 0.0, -0.1))
    legs = msgspec.structs.replace(machine.legs, links=machine.legs.links | {"L2": bent})
    with pytest.raises(ConfigurationError, match=r"L2.*axisymmetric"):
        regressor.paper_parameters(msgspec.structs.replace(machine, legs=legs))


def rigid_motion(x: np.ndarray, xd: np.ndarray, xdd: np.ndarray) -> tuple[np.ndarray, ...]:
    """R, w, e of the platform: columns of E are the axes of yaw, pitch and roll."""
    R = np.empty((3, 3))
    rotation_matrix(x, R)
    ca, sa = np.cos(x[3]), np.sin(x[3])
    E = np.column_stack([[0.0, 0.0, 1.0], [-sa, ca, 0.0], R[:, 0]])
    yaw = np.array([0.0, 0.0, xd[3]])
    E_d = np.column_stack([np.zeros(3), np.cross(yaw, E[:, 1]), np.cross(E @ xd[3:], R[:, 0])])
    return R, E @ xd[3:], E @ xdd[3:] + E_d @ xd[3:]


def spin_with(axis: np.ndarray, w: np.ndarray, e: np.ndarray, n: np.ndarray, nd: np.ndarray, ndd: np.ndarray) -> tuple:
    """w and e of parts on the leg that do not turn about the cross axis q against a body with w, e and the U axis
    `axis`; and q / (q . n)."""
    c, axis_d = axis @ n, np.cross(w, axis)
    q, q_d = c * axis - n, (axis_d @ n + axis @ nd) * axis + c * axis_d - nd
    swing, swing_d = np.cross(n, nd), np.cross(n, ndd)
    spin = (w - swing) @ q / (n @ q)
    turn = swing + spin * n
    spin_d = ((e - swing_d - spin * nd) @ q + (w - turn) @ q_d) / (n @ q)
    return turn, swing_d + spin_d * n + spin * nd, q / (n @ q)


def table_2(machine: schema.Machine, x: np.ndarray, xd: np.ndarray, xdd: np.ndarray, cell: bool) -> np.ndarray:
    """Platform wrench a unit of the 29 parameters (6, 29) as the paper's Table 2 has them."""
    R, w, e = rigid_motion(x, xd, xdd)
    zero = np.zeros(3)
    columns = np.zeros((6, 29))
    for leg in machine.leg:
        arm = R @ leg.platform_joint_m
        line = x[:3] + arm - leg.base_joint_m
        b_d = xd[:3] + np.cross(w, arm)
        b_dd = xdd[:3] + np.cross(e, arm) + np.cross(w, np.cross(w, arm))
        l = np.linalg.norm(line)  # noqa: E741
        n = line / l
        nd = (b_d - (n @ b_d) * n) / l
        ndd = (b_dd - (n @ b_dd + l * nd @ nd) * n - 2 * (n @ b_d) * nd) / l
        P, s = np.eye(3) - np.outer(n, n), b_dd - GRAVITY
        unit = [np.array(axis) / np.linalg.norm(axis) for axis in (leg.base_axis, leg.platform_axis)]
        w_b, e_b, q_b = spin_with(unit[0], zero, zero, n, nd, ndd)
        w_p, e_p, q_p = spin_with(R @ unit[1], w, e, n, nd, ndd)
        psi = np.zeros((3, 13))
        psi[:, 0] = -((w_p @ n) * (P @ w_p) + (e_p @ n) * np.cross(q_p, n)) / l
        psi[:, 2] = -((w_b @ n) * (P @ w_b) + (e_b @ n) * np.cross(q_b, n)) / l
        psi[:, [1, 3, 6, 12]] = (P @ ndd / l)[:, None]
        psi[:, [4, 7]] = s[:, None]
        psi[:, [5, 8]] = (-P @ s / l - ndd)[:, None]
        psi[:, 9] = P @ s if cell else s
        psi[:, 10] = -P @ s / l - (P @ ndd if cell else ndd)
        psi[:, 11] = -P @ GRAVITY / l
        columns[:3, :13] += psi
        columns[3:, :13] += np.cross(arm, psi, axisb=0, axisc=0)
        columns[3:, 0] += (e_p @ n) * q_p
    columns[:3, 13] = xdd[:3] - GRAVITY
    w_x, e_x = skew(w), skew(e)
    columns[:3, 14:17] = (e_x + w_x @ w_x) @ R
    columns[3:, 14:17] = -skew(xdd[:3] - GRAVITY) @ R
    for k, (i, j) in enumerate(zip(*np.triu_indices(3), strict=True)):
        unit = np.zeros((3, 3))
        unit[i, j] = unit[j, i] = 1.0
        for at, inertia in ((17 + k, unit), (23 + k, np.trace(unit) * np.eye(3) - unit)):
            J = R @ inertia @ R.T
            columns[3:, at] = J @ e + np.cross(w, J @ w)
    return columns


def skew(a: np.ndarray) -> np.ndarray:
    return np.cross(np.eye(3), a)
