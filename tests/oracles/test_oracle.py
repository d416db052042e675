"""The oracle against reference states with known answers, and against energy, which needs no equations of motion."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pinocchio as pin
import pytest

from .machine import Matrix, Vector
from .pinocchio_tree import (
    FREEDOMS,
    KINDS,
    InverseDynamics,
    Oracle,
    OracleFriction,
    OracleLeg,
    OracleMachine,
    admissible_state,
    build_oracle,
    home_lengths,
    inverse_dynamics,
    machine_from_toml,
    machine_to_toml_dict,
    mechanical_energy,
    random_machine,
    solve_state,
)

ROOT = Path(__file__).resolve().parents[2]
MACHINES = ("6-upru", "6-upru-unequal-legs", "6-ups", "6-uhu", "3-ups-s", "2-upr-2-rpu")
POSE = ("x_m", "y_m", "z_m", "yaw_rad", "pitch_rad", "roll_rad")
WRENCH = ("fx_n", "fy_n", "fz_n", "mx_nm", "my_nm", "mz_nm")
MIRROR = np.array([1.0, -1.0, 1.0])  # y -> -y
ZERO = np.zeros(6)

# Result and its column: at most this part of the largest may differ. Measured: lengths and their derivatives 2e-13,
# motor angles 2e-13, forces 2e-13, for the free UPRU and UPS machines 1e-14.
COLUMNS = {
    "length_m": "length_{}_m", "length_rate_m_s": "length_{}_m_s", "length_acc_m_s2": "length_{}_m_s2",
    "force_n": "force_{}_n", "cell_n": "cell_{}_n", "torque_nm": "torque_{}_nm", "twist_rad": "twist_{}_rad",
    "motor_rad": "motor_{}_rad", "motor_rate_rad_s": "motor_{}_rad_s", "motor_acc_rad_s2": "motor_{}_rad_s2",
}  # fmt: skip
LATERAL_COLUMNS = ("lateral_x_{}_n", "lateral_y_{}_n", "moment_x_{}_nm", "moment_y_{}_nm")
TOLERANCE = 1e-11


def load_machine(name: str) -> OracleMachine:
    return machine_from_toml(tomllib.loads((ROOT / "config" / "machines" / f"{name}.toml").read_text()))


def load_reference(name: str) -> dict[str, np.ndarray]:
    path = ROOT / "tests" / "data" / "reference" / f"{name}.csv"
    header = path.read_text().splitlines()[0].split(",")
    return dict(zip(header, np.loadtxt(path, delimiter=",", skiprows=1).T, strict=True))


@pytest.mark.parametrize("name", MACHINES)
def test_reference_states(name: str) -> None:
    table = load_reference(name)
    blocks = [POSE, [f"{key}_s" for key in POSE], [f"{key}_s2" for key in POSE], WRENCH]
    states = np.array([[table.pop(key, np.zeros(100)) for key in keys] for keys in blocks]).transpose(2, 0, 1)
    assert states.shape == (100, 4, 6)
    machine = load_machine(name)
    oracle = build_oracle(machine, lateral="lateral_x_1_n" in table)
    results = [inverse_dynamics(oracle, *state) for state in states]
    legs = range(1, len(machine.legs) + 1)

    table.pop("t_s")
    for field, column in COLUMNS.items():
        found = np.array([getattr(r, field) for r in results])
        assert found.size == 0 or column.format(1) in table, f"{field} has no column"
        if found.size:
            right = np.array([table.pop(column.format(i)) for i in legs]).T
            assert np.abs(found - right).max() < TOLERANCE * np.abs(right).max(), field
    if oracle.lateral_idx.size:
        lateral = np.array([r.lateral for r in results])
        right = np.array([[table.pop(column.format(i)) for column in LATERAL_COLUMNS] for i in legs])
        assert np.abs(lateral - right.transpose(2, 0, 1)).max() < TOLERANCE * np.abs(right).max()
    assert not table, "columns that nothing was compared with"
    assert max(r.residual for r in results) < 1e-9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_static_forces_are_the_gradient_of_potential_energy(kind: str, seed: int) -> None:
    """At rest sum_i f_i dq_i = dV along every motion; q_i leg length or motor angle, by central differences."""
    oracle, rng = oracle_of(kind, seed)
    pose = random_state(rng, oracle)[0]
    result = inverse_dynamics(oracle, pose, ZERO, ZERO, ZERO)
    effort = efforts(result)[0]
    h = 1e-5
    for direction in tangents(oracle, pose):
        ahead, behind = (admissible_state(oracle, pose + s * direction, ZERO, ZERO)[0] for s in (h, -h))
        rise_j = mechanical_energy(oracle, ahead, ZERO)[1] - mechanical_energy(oracle, behind, ZERO)[1]
        step = actuator_position(oracle, ahead) - actuator_position(oracle, behind)
        assert abs(effort @ step - rise_j) < 1e-6 * np.abs(effort) @ np.abs(step)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_power_is_the_rate_of_mechanical_energy(kind: str, seed: int) -> None:
    """Along x(t) = x + x' t + x'' t^2/2 actuators and external force supply d(T + V)/dt and what friction takes."""
    oracle, rng = oracle_of(kind, 100 + seed)
    pose, rate, acc = random_state(rng, oracle)
    push_n = rng.uniform(-50, 50, 3)
    result = inverse_dynamics(oracle, pose, rate, acc, np.concatenate([push_n, np.zeros(3)]))
    effort, effort_rate = efforts(result)
    supplied_w = effort @ effort_rate + push_n @ rate[:3] - friction_power(oracle, pose, rate)
    h = 1e-4

    def energy(t: float) -> float:
        there, rate_there, _ = admissible_state(oracle, pose + rate * t + acc * t**2 / 2, rate + acc * t, ZERO)
        return sum(mechanical_energy(oracle, there, rate_there))

    scale_w = np.abs(effort) @ np.abs(effort_rate)
    assert abs(supplied_w - (energy(h) - energy(-h)) / (2 * h)) < 1e-5 * scale_w


@pytest.mark.parametrize("kind", KINDS)
def test_mirrored_machine(kind: str) -> None:
    """A machine and its mirror image, threads included, need the same efforts: senses of rotation are consistent."""
    oracle, rng = oracle_of(kind, 11)
    image = build_oracle(mirrored(oracle.machine), lateral=bool(oracle.lateral_idx.size))
    flip = np.concatenate([MIRROR, -MIRROR[::-1]])
    for _ in range(3):
        state, wrench = random_state(rng, oracle), rng.uniform(-50, 50, 6)
        here = inverse_dynamics(oracle, *state, wrench)
        there = inverse_dynamics(image, *(flip * x for x in state), np.concatenate([MIRROR, -MIRROR]) * wrench)
        for field in COLUMNS:
            sign = -1.0 if field == "twist_rad" else 1.0
            right = getattr(here, field)
            assert np.abs(getattr(there, field) - sign * right).max(initial=0.0) < 1e-9 * np.abs(right).max(initial=1.0)
        signs = np.array([1.0, -1.0, -1.0, 1.0])
        largest = np.abs(here.lateral).max(initial=1.0)
        assert np.abs(there.lateral - signs * here.lateral).max(initial=0.0) < 1e-9 * largest


def test_massless_links_below_leave_nothing_between_cell_and_actuator() -> None:
    rng = np.random.default_rng(7)
    machine = random_machine(rng)
    legs = tuple(replace(g, links=tuple(k for k in g.links if not k.below_cell)) for g in machine.legs)
    state = (random_pose(rng, machine), rng.uniform(-1, 1, 6), rng.uniform(-5, 5, 6), rng.uniform(-50, 50, 6))
    light = inverse_dynamics(build_oracle(replace(machine, legs=legs)), *state)
    assert np.allclose(light.cell_n, light.force_n, rtol=0.0, atol=1e-10)
    full = inverse_dynamics(build_oracle(machine), *state)
    assert np.abs(full.cell_n - full.force_n).min() > 1.0
    uncut = inverse_dynamics(build_oracle(machine, cells=False), *state)
    assert np.allclose(uncut.force_n, full.force_n, rtol=0.0, atol=1e-10)
    assert uncut.cell_n.size == 0


def test_motion_that_the_legs_leave_a_2r1t_platform() -> None:
    """The closure alone makes o = (0, -z sin a, z cos a) and R = Rx(a) Ry(b)."""
    oracle, rng = oracle_of("2-upr-2-rpu", 3)
    for pose in [random_state(rng, oracle)[0] for _ in range(5)]:
        rotation = pin.rpy.rpyToMatrix(*pose[:2:-1])
        a, b = np.arctan2(rotation[2, 1], rotation[1, 1]), np.arctan2(rotation[0, 2], rotation[0, 0])
        assert np.abs(rotation - pin.utils.rotate("x", a) @ pin.utils.rotate("y", b)).max() < 1e-12
        assert np.abs(pose[:3] - np.hypot(*pose[1:3]) * np.array([0.0, -np.sin(a), np.cos(a)])).max() < 1e-12
    beside = np.array(oracle.machine.home_pose) + 1e-6 * np.eye(6)[1]
    with pytest.raises(RuntimeError, match="do not close"):
        inverse_dynamics(oracle, beside, ZERO, ZERO, ZERO)


def test_forces_of_a_redundant_machine_have_the_least_norm() -> None:
    oracle, rng = oracle_of("2-upr-2-rpu", 5)
    state = random_state(rng, oracle)
    force_n = inverse_dynamics(oracle, *state, ZERO).force_n
    h = 1e-6
    moved = [admissible_state(oracle, state[0] + h * d, ZERO, ZERO)[0] for d in tangents(oracle, state[0])]
    rows = np.array([actuator_position(oracle, pose) - actuator_position(oracle, state[0]) for pose in moved]) / h
    squeeze = np.linalg.svd(rows)[2][-1]  # set of forces that moves nothing
    assert abs(force_n @ squeeze) < 1e-4 * np.linalg.norm(force_n)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_random_machine_survives_the_file_format_and_is_physical(kind: str, seed: int) -> None:
    machine = random_machine(np.random.default_rng(seed), kind)
    assert machine_from_toml(machine_to_toml_dict(machine)) == machine
    tensors = [link.inertia_kg_m2 for leg in machine.legs for link in leg.links] + [machine.platform_inertia_kg_m2]
    moments = np.linalg.eigvalsh(np.array(tensors))
    assert (moments[:, 0] > 0.0).all()
    assert (moments[:, 0] + moments[:, 1] > moments[:, 2]).all()


@pytest.mark.parametrize("name", MACHINES)
def test_machine_files_survive_the_file_format(name: str) -> None:
    machine = load_machine(name)
    assert machine_from_toml(machine_to_toml_dict(machine)) == machine


@pytest.mark.parametrize("name", MACHINES[2:])
def test_reference_states_are_inside_the_limits_of_their_machine_file(name: str) -> None:
    table = load_reference(name)
    data = tomllib.loads((ROOT / "config" / "machines" / f"{name}.toml").read_text())
    platform, limits = data["platform"], data["legs"]["limits"]
    for key in POSE:
        low, high = platform["limits"][key]
        assert low <= min(platform["home"][key], table[key].min())
        assert high >= max(platform["home"][key], table[key].max())
        unit = key.split("_")[-1]
        assert np.abs(table[f"{key}_s"]).max() <= platform["motion"][f"speed_{unit}_s"]
        assert np.abs(table[f"{key}_s2"]).max() <= platform["motion"][f"acceleration_{unit}_s2"]
    low, high = limits["length_m"]
    assert low < home_lengths(load_machine(name)).min()
    assert high > home_lengths(load_machine(name)).max()
    for i in range(1, len(data["leg"]) + 1):
        assert low <= table[f"length_{i}_m"].min()
        assert high >= table[f"length_{i}_m"].max()
        assert np.abs(table[f"length_{i}_m_s"]).max() <= limits["speed_m_s"]
        assert np.abs(table[f"length_{i}_m_s2"]).max() <= limits["acceleration_m_s2"]
        if f"force_{i}_n" in table:
            assert np.abs(table[f"force_{i}_n"]).max() <= limits["force_n"]
        else:
            assert np.abs(table[f"torque_{i}_nm"]).max() <= data["legs"]["drive"]["peak_torque_nm"]


def oracle_of(kind: str, seed: int) -> tuple[Oracle, np.random.Generator]:
    rng = np.random.default_rng(seed)
    return build_oracle(random_machine(rng, kind), lateral=kind != "2-upr-2-rpu"), rng


def random_pose(rng: np.random.Generator, machine: OracleMachine) -> np.ndarray:
    return rng.uniform(*np.array(machine.pose_limits).T)


def random_state(rng: np.random.Generator, oracle: Oracle) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pose, rate and acceleration, (6) each, that the machine can have."""
    pose = random_pose(rng, oracle.machine)
    return admissible_state(oracle, pose, rng.uniform(-1, 1, 6), rng.uniform(-5, 5, 6))


def tangents(oracle: Oracle, pose: np.ndarray) -> np.ndarray:
    """Orthonormal pose rates (freedoms, 6) that the machine can have at `pose`."""
    rates = np.array([admissible_state(oracle, pose, unit, ZERO)[1] for unit in np.eye(6)])
    return np.linalg.svd(rates)[2][: FREEDOMS[oracle.machine.platform_kind]]


def actuator_position(oracle: Oracle, pose: np.ndarray) -> np.ndarray:
    return solve_state(oracle, pose, ZERO, ZERO)[0][oracle.actuator_idx]


def efforts(result: InverseDynamics) -> tuple[np.ndarray, np.ndarray]:
    """Motor torques and rates where there are screws, otherwise forces and length rates."""
    if result.torque_nm.size:
        return result.torque_nm, result.motor_rate_rad_s
    return result.force_n, result.length_rate_m_s


def friction_power(oracle: Oracle, pose: np.ndarray, rate: np.ndarray) -> float:
    """What the joints of UPS legs turn into heat (W); legs of other kinds have no friction here."""
    q, v, a = solve_state(oracle, pose, rate, ZERO)
    pin.forwardKinematics(oracle.model, oracle.data, q, v, a)
    power_w = 0.0
    for leg, loop, slide in zip(oracle.machine.legs, oracle.loops, oracle.slide_idx, strict=False):
        friction = leg.friction
        assert leg.kind == "UPS" or friction == OracleFriction()
        axes = pin.LOCAL_WORLD_ALIGNED
        turn = pin.getFrameVelocity(oracle.model, oracle.data, loop.tip, axes).angular
        platform_turn = pin.getFrameVelocity(oracle.model, oracle.data, loop.socket, axes).angular
        power_w += friction.viscous_n_s_m * v[slide] ** 2 + friction.coulomb_n * abs(v[slide])
        power_w += friction.universal_nm_s_rad * turn @ turn
        power_w += friction.spherical_nm_s_rad * (turn - platform_turn) @ (turn - platform_turn)
    return power_w


def mirrored(machine: OracleMachine) -> OracleMachine:
    """The mirror image in the plane y = 0."""

    def vector(values: Vector) -> Vector:
        return tuple(MIRROR * np.array(values))

    def tensor(rows: Matrix) -> Matrix:
        return tuple(tuple(row) for row in np.diag(MIRROR) @ np.array(rows) @ np.diag(MIRROR))

    def leg(g: OracleLeg) -> OracleLeg:
        # x and z of a leg frame are mirrored like any vector, y is turned round. Where y is the base axis itself, the
        # axis has to be turned round.
        side = -1.0 if g.kind.startswith("R") else 1.0
        links = (replace(k, com_m=vector(k.com_m), inertia_kg_m2=tensor(k.inertia_kg_m2)) for k in g.links)
        return replace(
            g,
            base_joint_m=vector(g.base_joint_m),
            platform_joint_m=vector(g.platform_joint_m),
            base_axis=tuple(side * MIRROR * np.array(g.base_axis)),
            platform_axis=None if g.platform_axis is None else vector(g.platform_axis),
            links=tuple(links),
            screw=g.screw and replace(g.screw, hand=-g.screw.hand),
        )

    flip = np.concatenate([MIRROR, -MIRROR[::-1]])
    limits = np.sort(flip[:, None] * np.array(machine.pose_limits), axis=1)
    return replace(
        machine,
        platform_com_m=vector(machine.platform_com_m),
        platform_inertia_kg_m2=tensor(machine.platform_inertia_kg_m2),
        home_pose=tuple(flip * np.array(machine.home_pose)),
        pose_limits=tuple(tuple(row) for row in limits),
        legs=tuple(leg(g) for g in machine.legs),
    )
