"""The simulated plant against the reference states, conservation laws and the machine file."""

from pathlib import Path
from typing import NamedTuple

import mujoco
import numpy as np
import pytest
from msgspec.structs import replace
from scipy.interpolate import BPoly, CubicSpline
from scipy.spatial.transform import Rotation

from controller import schema
from controller.errors import ConfigurationError
from controller.mechanism.kinematics import axis_rates
from controller.mechanism.model import build, home_pose
from controller.records import POSE, AxisMode
from controller.settings import load_machine, load_site
from drivers.exchange import COMMAND, LAYOUT_VERSION, STATUS, DriveStatus, PlcState
from drivers.virtual import cx5130
from drivers.virtual.plant import Plant, deviate
from drivers.virtual.plc_program import axes_of
from tests.machines import MACHINES, SIMULATION

DATA = Path(__file__).parents[1] / "data" / "reference"
WRENCH = ("fx_n", "fy_n", "fz_n", "mx_nm", "my_nm", "mz_nm")
EXACT = schema.VirtualCell()  # no deviation, no friction, no noise, no delay


@pytest.fixture(scope="module")
def machine() -> schema.Machine:
    return load_machine(MACHINES / "6-upru.toml")[0]


@pytest.fixture(scope="module")
def cell() -> schema.VirtualCell:
    return site_cell(SIX_UPRU)


class Case(NamedTuple):
    """A machine, the weak leg controller that suits its mass, and how far its plant may be off."""

    name: str
    stiffness_n_m: float
    damping_n_s_m: float
    force_n: float  # rms
    closure_m: float
    pose: float  # m, rad
    push_n: float  # moves it by some centimetres within 0.2 s
    cell_n: float = 0.0  # rms


SIX_UPRU = Case("6-upru", 6e4, 3000.0, force_n=0.003, closure_m=5e-7, pose=1e-6, push_n=60.0, cell_n=0.003)
OTHERS = [
    Case("6-ups", 6e4, 4000.0, force_n=0.01, closure_m=5e-7, pose=1e-6, push_n=25.0),
    Case("6-uhu", 1e7, 5e5, force_n=0.3, closure_m=5e-7, pose=1e-6, push_n=5000.0),
    Case("2-upr-2-rpu", 3e4, 2000.0, force_n=0.003, closure_m=5e-7, pose=1e-6, push_n=20.0),
    Case("3-ups-s", 4e5, 3e4, force_n=0.003, closure_m=5e-7, pose=1e-6, push_n=130.0),
]
ALL = [SIX_UPRU, *OTHERS]


def name_of(case: object) -> str | None:
    return case.name if isinstance(case, Case) else None


def read(name: str) -> schema.Machine:
    return load_machine(MACHINES / f"{name}.toml")[0]


def site_cell(case: Case) -> schema.VirtualCell:
    site = SIMULATION if case is SIX_UPRU else SIMULATION.with_name(f"simulation-{case.name}.toml")
    virtual_cell = load_site(site).site.virtual_cell
    assert virtual_cell is not None
    return virtual_cell


def without_rotors(machine: schema.Machine) -> schema.Machine:
    """The reference forces do not contain them, unless they belong to the dynamics as in a screw that twists."""
    drive = machine.legs.drive
    if machine.legs.kind == "UHU" or not isinstance(drive, schema.ScrewDrive):
        return machine
    return replace(machine, legs=replace(machine.legs, drive=replace(drive, rotor_inertia_kg_m2=0.0)))


def columns(table: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    return np.column_stack([table[name] for name in names])


def legs(table: np.ndarray, name: str) -> np.ndarray:
    return columns(table, tuple(name.format(i) for i in range(1, 7) if name.format(i) in table.dtype.names))


def axes(table: np.ndarray, drive: schema.Drive, home_m: np.ndarray) -> tuple[np.ndarray, ...]:
    """Axis positions, rates, accelerations and forces."""
    if "motor_1_rad" not in table.dtype.names:
        return tuple(legs(table, name) for name in ("length_{}_m", "length_{}_m_s", "length_{}_m_s2", "force_{}_n"))
    assert isinstance(drive, schema.ScrewDrive)
    k = 2.0 * np.pi * drive.gear_ratio / drive.lead_m
    moved = tuple(legs(table, name) / k for name in ("motor_{}_rad", "motor_{}_rad_s", "motor_{}_rad_s2"))
    return home_m + moved[0], *moved[1:], legs(table, "torque_{}_nm") * k


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def leg_lengths(machine: schema.Machine, pose: np.ndarray) -> np.ndarray:
    base = np.array([leg.base_joint_m for leg in machine.leg])
    platform = np.array([leg.platform_joint_m for leg in machine.leg])
    return np.linalg.norm(pose[:3] + Rotation.from_euler("ZYX", pose[3:]).apply(platform) - base, axis=1)


@pytest.mark.parametrize(("case", "step_s"), [(SIX_UPRU, 0.001), *((case, 0.0005) for case in ALL)], ids=name_of)
def test_forces_cells_and_poses_along_the_reference_trajectory(case: Case, step_s: float) -> None:
    """A weak leg controller on top of the reference forces: what it adds is the plant's force error."""
    table = np.genfromtxt(DATA / f"{case.name}.csv", delimiter=",", names=True)
    machine = read(case.name)
    plant = Plant(without_rotors(machine), EXACT, step_s)
    home = plant.position_m
    n = len(home)

    # One second from home to the first state, one second for the controller to settle, then the comparison.
    t_s = np.array([-1.0, *table["t_s"]])
    length_m, length_m_s, length_m_s2, force_n = (
        np.vstack(pair)
        for pair in zip(
            (home, np.zeros(n), np.zeros(n), plant.balance()), axes(table, machine.legs.drive, home), strict=True
        )
    )
    cell_n = np.vstack((np.zeros(n), legs(table, "cell_{}_n"))) if case.cell_n else np.zeros((len(t_s), n))
    wrench = np.zeros((len(t_s), 6))
    if "fx_n" in table.dtype.names:
        wrench[1:] = columns(table, WRENCH)
    pose = np.vstack((np.zeros(6), columns(table, POSE)))

    times_s = np.arange(t_s[0], t_s[-1] + step_s / 2, step_s)
    target_m = BPoly.from_derivatives(t_s, np.stack((length_m, length_m_s, length_m_s2), axis=1))(times_s)
    # The integrator's rates belong to the middle of the last step: so do those of the set-point.
    target_m_s = np.diff(target_m, axis=0, prepend=target_m[:1]) / step_s
    target_n = CubicSpline(t_s, force_n)(times_s)
    wrench_at = CubicSpline(t_s, wrench)(times_s)
    rows = {round((t - t_s[0]) / step_s): row for row, t in enumerate(t_s) if t >= 1.0}
    assert len(rows) > 30

    errors = []
    data, conjugate = plant.data, np.empty(4)
    for k in range(len(times_s)):
        before = plant.pose(), plant.closure_error_m()
        lag_m, lag_m_s = target_m[k] - plant.position_m, target_m_s[k] - plant.velocity_m_s
        force = target_n[k] + case.stiffness_n_m * lag_m + case.damping_n_s_m * lag_m_s
        if machine.platform.kind == "free":
            # The free joint takes forces in base axes and moments about the platform origin in platform axes.
            mujoco.mju_negQuat(conjugate, data.qpos[3:7])
            data.qfrc_applied[:3] = wrench_at[k, :3]
            mujoco.mju_rotVecQuat(data.qfrc_applied[3:6], wrench_at[k, 3:], conjugate)
        plant.step(force)
        if k in rows:
            row = rows[k]
            errors.append((force - force_n[row], plant.cell_n - cell_n[row], before[0] - pose[row], before[1]))
    force_error, cell_error, pose_error, closure_error = (np.array(column) for column in zip(*errors, strict=True))
    assert rms(force_error) < case.force_n
    assert rms(cell_error) <= case.cell_n
    assert np.abs(pose_error).max() < case.pose
    assert closure_error.max() < case.closure_m


@pytest.mark.parametrize("case", ALL, ids=name_of)
def test_work_of_the_axes_becomes_energy(case: Case) -> None:
    machine = read(case.name)
    machine = replace(machine, legs=replace(machine.legs, friction=schema.Friction()))
    plant = Plant(machine, EXACT, step_s=0.0001)  # energy is first order in the step
    n = len(machine.leg)
    force = plant.balance() + case.push_n * np.array([0.5, -0.33, 0.75, 0.17, -0.58, 0.25])[:n]

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
    assert energy_j() - start_j == pytest.approx(force @ moved_m, rel=2e-4 if case is SIX_UPRU else 7e-4)


@pytest.mark.parametrize("case", ALL, ids=name_of)
def test_encoders_agree_with_the_pose_and_the_legs_with_the_platform(case: Case) -> None:
    """As the controller's kinematics of the machine as it really is; in particular the twist of UHU legs."""
    machine = read(case.name)
    plant = Plant(machine, site_cell(case))
    n = len(machine.leg)
    force = plant.balance() + case.push_n * np.array([1.0, -0.83, 1.17, 0.83, -1.0, 0.92])[:n]
    for k in range(600):
        plant.step(force if k < 400 else None)
        assert plant.closure_error_m() < 1e-6
    home = leg_lengths(plant.machine, home_pose(machine))
    assert np.abs(plant.position_m - home).max() > 0.01
    axis_m, axis_m_s, none = np.zeros((3, n))
    twist_rad = np.zeros(n)
    axis_rates(build(plant.machine), plant.pose(), np.zeros(6), np.zeros(6), twist_rad, axis_m, axis_m_s, none)
    np.testing.assert_allclose(plant.position_m, axis_m, atol=2e-7)
    if machine.legs.kind == "UHU":
        assert np.abs(twist_rad).max() > 1e-3  # 1.6 um of axis travel: more than the bound
    else:
        np.testing.assert_allclose(axis_m, leg_lengths(plant.machine, plant.pose()), atol=1e-12)


@pytest.mark.parametrize("case", ALL, ids=name_of)
def test_masses_are_the_machines(case: Case) -> None:
    machine = read(case.name)
    model = Plant(machine, EXACT).model
    expected = machine.platform.mass_kg + len(machine.leg) * sum(link.mass_kg for link in machine.legs.links.values())
    rounding = 1e-11 if machine.legs.kind == "UHU" else 1e-14  # rotors of 1e-9 kg
    assert model.body_subtreemass[0] == pytest.approx(expected, rel=rounding)


def test_the_cell_bears_what_the_axis_bears_but_for_the_links_below(machine: schema.Machine) -> None:
    plant = Plant(machine, EXACT)
    base = np.array([leg.base_joint_m for leg in machine.leg])
    home = machine.platform.home
    platform = np.array([leg.platform_joint_m for leg in machine.leg])
    along = np.add(platform, (home.x_m, home.y_m, home.z_m)) - base
    upwards = along[:, 2] / np.linalg.norm(along, axis=1)
    below_kg = machine.legs.links["L3"].mass_kg
    np.testing.assert_allclose(plant.balance() - plant.cell_n, below_kg * 9.81 * upwards, atol=1e-5)


@pytest.mark.parametrize("case", ALL, ids=name_of)
def test_balance_takes_over_from_the_brakes(case: Case) -> None:
    plant = Plant(read(case.name), EXACT)
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


@pytest.mark.parametrize("case", ALL, ids=name_of)
def test_brakes_stop_the_axes_and_hold_them(case: Case) -> None:
    plant = Plant(read(case.name), replace(site_cell(case), encoder_resolution_m=0.0))
    start = plant.position_m
    force = plant.balance() + 2.0 * case.push_n
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
    cell = replace(cell, cell_noise_n=0.5, cell_resolution_n=0.1)
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


@pytest.mark.parametrize("case", OTHERS[2:], ids=name_of)
def test_the_plc_serves_machines_with_fewer_axes_than_its_structs(case: Case) -> None:
    machine = read(case.name)
    n = len(machine.leg)
    ads = schema.Ads(ams_net_id="127.0.0.1.20.1", address="127.0.0.1:48899")
    cx = cx5130.Cx5130(ads, machine, Plant(machine, site_cell(case)), 0.002)
    command = np.frombuffer(cx.device.symbols[0].data, COMMAND)
    status = np.frombuffer(cx.device.symbols[1].data, STATUS)
    command["size"], command["version"], command["mode"] = COMMAND.itemsize, LAYOUT_VERSION, AxisMode.HOLD
    command["period_s"] = 0.01
    home_m = status["position_m"][0, :n].copy()
    assert (home_m > 0.1).all()
    for tick in range(100):
        command["seq"], command["host_time_s"] = tick + 1, 0.01 * tick
        for _ in range(5):
            cx.cycle()
    assert status["plc_state"][0] == PlcState.HOLDING
    assert (status["drive_status"][0, :n] == DriveStatus.ENABLED | DriveStatus.HOMED).all()
    np.testing.assert_allclose(status["position_m"][0, :n], home_m, atol=1e-4)
    assert np.abs(status["force_n"][0, :n]).max() > 1.0
    for name in ("position_m", "setpoint_m", "force_n", "drive_status"):
        assert not status[name][0, n:].any()


def test_a_cylinder_presses_with_the_pressure_of_its_supply() -> None:
    axes = axes_of(read("3-ups-s"), schema.Hydraulics(supply_pa=150e5))
    np.testing.assert_allclose(axes.peak_force_n, np.pi / 4.0 * 0.040**2 * 150e5)


def test_what_it_does_not_know_is_refused(machine: schema.Machine) -> None:
    spherical = replace(machine, platform=replace(machine.platform, kind="spherical"))
    with pytest.raises(ConfigurationError, match=r"the virtual cell knows .* found a spherical platform on UPRU"):
        Plant(spherical, EXACT)
    twisting = read("6-uhu")
    seals = replace(twisting, legs=replace(twisting.legs, friction=schema.Friction(normal=0.1)))
    with pytest.raises(ConfigurationError, match=r"legs\.friction\.normal: .* UPRU and UPS legs only"):
        Plant(seals, EXACT)


def test_a_machine_with_tensors_that_no_body_has_gets_the_nearest_that_can_be(caplog: pytest.LogCaptureFixture) -> None:
    machine = read("6-upru-unequal-legs")
    plant = Plant(machine, EXACT)
    assert "it is cut in 22 links" in caplog.text
    weight_n = 9.81 * (machine.platform.mass_kg + sum(
        link.mass_kg for i in range(6) for link in schema.effective_leg(machine, i).links.values()
    ))  # fmt: skip
    assert plant.closure_error_m() < 1e-6
    assert 0.0 < np.abs(plant.balance()).sum() < 4.0 * weight_n
    np.testing.assert_allclose(plant.model.body_subtreemass[0], weight_n / 9.81, rtol=1e-6)
