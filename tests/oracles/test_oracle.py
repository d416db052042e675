"""The oracle against reference states with known answers, and against energy, which needs no equations of motion."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from .pinocchio_tree import (
    OracleMachine,
    build_oracle,
    inverse_dynamics,
    machine_from_toml,
    machine_to_toml_dict,
    mechanical_energy,
    random_machine,
)

ROOT = Path(__file__).resolve().parents[2]
MACHINES = ("6-upru", "6-upru-unequal-legs")


def load_machine(name: str) -> OracleMachine:
    return machine_from_toml(tomllib.loads((ROOT / "config" / "machines" / f"{name}.toml").read_text()))


@pytest.mark.parametrize("name", MACHINES)
def test_reference_states(name: str) -> None:
    """Columns: time, pose, rates, accelerations and wrench (6 each), length with rates per leg, forces, cells."""
    rows = np.loadtxt(ROOT / "tests" / "data" / "reference" / f"{name}.csv", delimiter=",", skiprows=1)
    assert rows.shape == (100, 55)
    oracle = build_oracle(load_machine(name))
    results = [inverse_dynamics(oracle, *np.split(row[1:25], 4)) for row in rows]
    motion = rows[:, 25:43].reshape(100, 6, 3)
    force_n, cell_n = rows[:, 43:49], rows[:, 49:55]
    tolerance_n = 1e-11 * np.abs(force_n).max()  # measured: 4e-13 N of 280 N
    assert np.abs(np.array([r.force_n for r in results]) - force_n).max() < tolerance_n
    assert np.abs(np.array([r.cell_n for r in results]) - cell_n).max() < tolerance_n
    assert np.abs(np.array([r.length_m for r in results]) - motion[:, :, 0]).max() < 1e-14
    assert np.abs(np.array([r.length_rate_m_s for r in results]) - motion[:, :, 1]).max() < 1e-14
    assert np.abs(np.array([r.length_acc_m_s2 for r in results]) - motion[:, :, 2]).max() < 1e-13
    assert max(r.residual for r in results) < 1e-11


@pytest.mark.parametrize("seed", range(6))
def test_static_forces_are_the_gradient_of_potential_energy(seed: int) -> None:
    """At rest sum_i f_i dl_i/dx = dV/dx, both gradients by central differences over the pose."""
    rng = np.random.default_rng(seed)
    machine = random_machine(rng)
    oracle, pose, zero = build_oracle(machine), random_pose(rng, machine), np.zeros(6)
    h = 1e-5
    energy_slope, length_slope = np.empty(6), np.empty((6, 6))
    for k, step in enumerate(h * np.eye(6)):
        energy_slope[k] = (
            mechanical_energy(oracle, pose + step, zero)[1] - mechanical_energy(oracle, pose - step, zero)[1]
        ) / (2 * h)
        ahead = inverse_dynamics(oracle, pose + step, zero, zero, zero).length_m
        length_slope[k] = (ahead - inverse_dynamics(oracle, pose - step, zero, zero, zero).length_m) / (2 * h)
    expected_n = np.linalg.solve(length_slope, energy_slope)
    force_n = inverse_dynamics(oracle, pose, zero, zero, zero).force_n
    assert np.abs(force_n - expected_n).max() < 1e-6 * np.abs(force_n).max()


@pytest.mark.parametrize("seed", range(6))
def test_power_is_the_rate_of_mechanical_energy(seed: int) -> None:
    """Along x(t) = x + x' t + x'' t^2/2 actuators and external force supply d(T + V)/dt."""
    rng = np.random.default_rng(100 + seed)
    machine = random_machine(rng)
    oracle, pose = build_oracle(machine), random_pose(rng, machine)
    rate, acc = rng.uniform(-1, 1, 6), rng.uniform(-5, 5, 6)
    push_n = rng.uniform(-50, 50, 3)
    result = inverse_dynamics(oracle, pose, rate, acc, np.concatenate([push_n, np.zeros(3)]))
    supplied_w = result.force_n @ result.length_rate_m_s + push_n @ rate[:3]
    h = 1e-4
    ahead, behind = (sum(mechanical_energy(oracle, pose + rate * t + acc * t**2 / 2, rate + acc * t)) for t in (h, -h))
    scale_w = np.abs(result.force_n) @ np.abs(result.length_rate_m_s)
    assert abs(supplied_w - (ahead - behind) / (2 * h)) < 1e-6 * scale_w


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


@pytest.mark.parametrize("seed", range(3))
def test_random_machine_survives_the_file_format_and_is_physical(seed: int) -> None:
    machine = random_machine(np.random.default_rng(seed))
    assert machine_from_toml(machine_to_toml_dict(machine)) == machine
    tensors = [link.inertia_kg_m2 for leg in machine.legs for link in leg.links] + [machine.platform_inertia_kg_m2]
    moments = np.linalg.eigvalsh(np.array(tensors))
    assert (moments[:, 0] > 0.0).all()
    assert (moments[:, 0] + moments[:, 1] > moments[:, 2]).all()


def test_reference_machine_survives_the_file_format() -> None:
    machine = load_machine("6-upru")
    assert machine_from_toml(machine_to_toml_dict(machine)) == machine


def random_pose(rng: np.random.Generator, machine: OracleMachine) -> np.ndarray:
    return rng.uniform(*np.array(machine.pose_limits).T)
