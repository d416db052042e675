"""The simulated plant against the reference states, conservation laws and the machine file."""

from pathlib import Path

import mujoco
import numpy as np
import pytest
from msgspec.structs import replace
from scipy.interpolate import BPoly, CubicSpline
from scipy.spatial.transform import Rotation

from controller import schema
from controller.mechanism.model import home_pose
from controller.records import POSE
from controller.settings import load_machine, load_site
from drivers.virtual.plant import Plant, deviate
from tests.machines import MACHINES, SIMULATION

DATA = Path(__file__).parents[1] / "data" / "reference"
WRENCH = ("fx_n", "fy_n", "fz_n", "mx_nm", "my_nm", "mz_nm")
EXACT = schema.VirtualCell()  # no deviation, no friction, no noise, no delay


@pytest.fixture(scope="module")
def machine() -> schema.Machine:
    return load_machine(MACHINES / "6-upru.toml")[0]


@pytest.fixture(scope="module")
def cell() -> schema.VirtualCell:
    virtual_cell = load_site(SIMULATION).site.virtual_cell
    assert virtual_cell is not None
    return virtual_cell


def without_rotors(machine: schema.Machine) -> schema.Machine:
    return replace(machine, legs=replace(machine.legs, drive=replace(machine.legs.drive, rotor_inertia_kg_m2=0.0)))


def columns(table: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    return np.column_stack([table[name] for name in names])


def legs(table: np.ndarray, name: str) -> np.ndarray:
    return columns(table, tuple(name.format(i) for i in range(1, 7)))


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def leg_lengths(machine: schema.Machine, pose: np.ndarray) -> np.ndarray:
    base = np.array([leg.base_joint_m for leg in machine.leg])
    platform = np.array([leg.platform_joint_m for leg in machine.leg])
    return np.linalg.norm(pose[:3] + Rotation.from_euler("ZYX", pose[3:]).apply(platform) - base, axis=1)


@pytest.mark.parametrize("step_s", [0.001, 0.0005])
def test_forces_cells_and_poses_along_the_reference_trajectory(machine: schema.Machine, step_s: float) -> None:
    """A weak leg controller on top of the reference forces: what it adds is the plant's force error."""
    table = np.genfromtxt(DATA / "6-upru.csv", delimiter=",", names=True)
    plant = Plant(without_rotors(machine), EXACT, step_s)
    home = plant.position_m

    # One second from home to the first state, one second for the controller to settle, then the comparison.
    t_s = np.array([-1.0, *table["t_s"]])
    rest = np.zeros(6)
    length_m = np.vstack((home, legs(table, "length_{}_m")))
    length_m_s = np.vstack((rest, legs(table, "length_{}_m_s")))
    length_m_s2 = np.vstack((rest, legs(table, "length_{}_m_s2")))
    force_n = np.vstack((plant.balance(), legs(table, "force_{}_n")))
    cell_n = np.vstack((rest, legs(table, "cell_{}_n")))
    wrench = np.vstack((rest, columns(table, WRENCH)))
    pose = np.vstack((rest, columns(table, POSE)))

    times_s = np.arange(t_s[0], t_s[-1] + step_s / 2, step_s)
    target_m = BPoly.from_derivatives(t_s, np.stack((length_m, length_m_s, length_m_s2), axis=1))(times_s)
    # The integrator's rates belong to the middle of the last step: so do those of the set-point.
    target_m_s = np.diff(target_m, axis=0, prepend=target_m[:1]) / step_s
    target_n = CubicSpline(t_s, force_n)(times_s)
    wrench_at = CubicSpline(t_s, wrench)(times_s)
    rows = {round((t - t_s[0]) / step_s): row for row, t in enumerate(t_s) if t >= 1.0}
    assert len(rows) == 50

    errors = []
    data, conjugate = plant.data, np.empty(4)
    for k in range(len(times_s)):
        before = plant.pose(), plant.closure_error_m()
        lag_m, lag_m_s = target_m[k] - plant.position_m, target_m_s[k] - plant.velocity_m_s
        force = target_n[k] + 6e4 * lag_m + 3000.0 * lag_m_s
        # The free joint takes forces in base axes and moments about the platform origin in platform axes.
        mujoco.mju_negQuat(conjugate, data.qpos[3:7])
        data.qfrc_applied[:3] = wrench_at[k, :3]
        mujoco.mju_rotVecQuat(data.qfrc_applied[3:6], wrench_at[k, 3:], conjugate)
        plant.step(force)
        if k in rows:
            row = rows[k]
            errors.append((force - force_n[row], plant.cell_n - cell_n[row], before[0] - pose[row], before[1]))
    force_error, cell_error, pose_error, closure_error = (np.array(column) for column in zip(*errors, strict=True))
    assert rms(force_error) < 0.003  # of some 180 N
    assert rms(cell_error) < 0.003
    assert np.abs(pose_error).max() < 1e-6
    assert closure_error.max() < 5e-7


def test_work_of_the_axes_becomes_energy(machine: schema.Machine) -> None:
    plant = Plant(machine, EXACT, step_s=0.0001)  # energy is first order in the step
    force = plant.balance() + np.array([30.0, -20.0, 45.0, 10.0, -35.0, 15.0])

    def energy_j() -> float:
        mujoco.mj_forward(plant.model, plant.data)
        mujoco.mj_energyPos(plant.model, plant.data)
        mujoco.mj_energyVel(plant.model, plant.data)
        return float(plant.data.energy.sum())

    start_j, start_m = energy_j(), plant.position_m
    for _ in range(2000):
        plant.step(force)
    moved_m = plant.position_m - start_m
    assert np.abs(moved_m).max() > 0.01
    assert energy_j() - start_j == pytest.approx(force @ moved_m, rel=2e-4)


def test_encoders_agree_with_the_pose_and_the_legs_with_the_platform(
    machine: schema.Machine, cell: schema.VirtualCell
) -> None:
    plant = Plant(machine, cell)
    force = plant.balance() + np.array([60.0, -50.0, 70.0, 50.0, -60.0, 55.0])
    for k in range(600):
        plant.step(force if k < 400 else None)
        assert plant.closure_error_m() < 1e-6
    home = leg_lengths(plant.machine, home_pose(machine))
    assert np.abs(plant.position_m - home).max() > 0.01
    np.testing.assert_allclose(plant.position_m, leg_lengths(plant.machine, plant.pose()), atol=2e-7)


def test_masses_are_the_machines(machine: schema.Machine) -> None:
    model = Plant(machine, EXACT).model
    expected = machine.platform.mass_kg + 6 * sum(link.mass_kg for link in machine.legs.links.values())
    assert model.body_subtreemass[0] == pytest.approx(expected, rel=1e-14)


def test_the_cell_bears_what_the_axis_bears_but_for_the_links_below(machine: schema.Machine) -> None:
    plant = Plant(machine, EXACT)
    base = np.array([leg.base_joint_m for leg in machine.leg])
    home = machine.platform.home
    platform = np.array([leg.platform_joint_m for leg in machine.leg])
    along = np.add(platform, (home.x_m, home.y_m, home.z_m)) - base
    upwards = along[:, 2] / np.linalg.norm(along, axis=1)
    below_kg = machine.legs.links["L3"].mass_kg
    np.testing.assert_allclose(plant.balance() - plant.cell_n, below_kg * 9.81 * upwards, atol=1e-5)


def test_balance_takes_over_from_the_brakes(machine: schema.Machine) -> None:
    plant = Plant(machine, EXACT)
    start, force = plant.pose(), plant.balance()
    for _ in range(400):
        plant.step(force)
    np.testing.assert_allclose(plant.pose(), start, atol=1e-7)


def test_deviations_are_reproducible_and_physical(machine: schema.Machine, cell: schema.VirtualCell) -> None:
    true = deviate(machine, cell)
    assert true == deviate(machine, cell)
    assert true != deviate(machine, replace(cell, seed=cell.seed + 1))
    assert deviate(machine, EXACT) == replace(
        machine, legs=replace(machine.legs, drive=replace(machine.legs.drive, coulomb_n=0.0, viscous_n_s_m=0.0))
    )

    off_m = np.array([leg.base_joint_m + leg.platform_joint_m for leg in true.leg]) - np.array(
        [leg.base_joint_m + leg.platform_joint_m for leg in machine.leg]
    )
    assert 0.5 * cell.geometry_error_m < np.abs(off_m).max() <= cell.geometry_error_m * (1.0 + 1e-9)
    assert true.platform.mass_kg == pytest.approx(1.06 * machine.platform.mass_kg)
    np.testing.assert_allclose(np.subtract(true.platform.com_m, machine.platform.com_m), cell.com_offset_m)
    assert true.legs.links["L3"].mass_kg == pytest.approx(1.06 * machine.legs.links["L3"].mass_kg)
    assert true.legs.drive.rotor_inertia_kg_m2 == pytest.approx(1.08 * machine.legs.drive.rotor_inertia_kg_m2)
    assert (true.legs.drive.coulomb_n, true.legs.drive.viscous_n_s_m) == (cell.coulomb_n, cell.viscous_n_s_m)
    for link in (true.platform, *true.legs.links.values()):
        a, b, c = np.linalg.eigvalsh(link.inertia_kg_m2)
        assert a > 0.0
        assert a + b >= c


def test_brakes_stop_the_axes_and_hold_them(machine: schema.Machine, cell: schema.VirtualCell) -> None:
    plant = Plant(machine, replace(cell, encoder_resolution_m=0.0))
    start = plant.position_m
    force = plant.balance() + 120.0
    for _ in range(400):
        plant.step(force)
    released = plant.position_m
    assert (released - start > 0.01).all()
    assert (plant.velocity_m_s > 0.1).all()
    for _ in range(200):
        plant.step(None)
    stopped = plant.position_m
    assert (stopped - released < 0.02).all()
    for _ in range(8000):
        plant.step(None)
    np.testing.assert_allclose(plant.position_m, stopped, atol=1e-9)  # so less than 1 um in an hour
    assert np.abs(plant.velocity_m_s).max() < 1e-9


def test_instruments(machine: schema.Machine, cell: schema.VirtualCell) -> None:
    plant, again = Plant(machine, cell), Plant(machine, cell)
    readings = np.array([plant.cell_n for _ in range(2000)])
    np.testing.assert_array_equal(readings[0], again.cell_n)
    np.testing.assert_allclose(readings / cell.cell_resolution_n, np.round(readings / cell.cell_resolution_n))
    np.testing.assert_allclose(readings.std(axis=0), cell.cell_noise_n, rtol=0.1)
    counts = plant.position_m / cell.encoder_resolution_m
    np.testing.assert_allclose(counts, np.round(counts), rtol=0.0, atol=1e-6)


def test_forces_arrive_after_the_delay(machine: schema.Machine) -> None:
    plant = Plant(machine, replace(EXACT, force_delay_s=0.001))
    force = plant.balance()
    plant.step(force)
    for late in (True, True, False):
        plant.step(force + 50.0)
        assert (np.abs(plant.velocity_m_s).max() < 1e-6) == late
    assert plant.time_s == pytest.approx(0.002)
