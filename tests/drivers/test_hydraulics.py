"""Cylinders against a fine integration of their equations, balances of force, flow and energy, and the kernels."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace
from scipy.integrate import solve_ivp

from controller import schema
from controller.errors import ConfigurationError
from controller.mechanism.dynamics import inverse_dynamics, inverse_dynamics_batch, lateral_batch
from controller.mechanism.kinematics import axis_rates
from controller.mechanism.model import build, home_pose
from controller.records import AxisMode
from controller.settings import load_machine
from drivers.exchange import COMMAND, LAYOUT_VERSION, STATUS, PlcError, PlcState
from drivers.virtual import hydraulics
from drivers.virtual.cx5130 import PLANT_STEP_S, Cx5130
from drivers.virtual.hydraulics import Cylinders
from drivers.virtual.plant import Plant
from drivers.virtual.plc_program import axes_of
from tests.machines import MACHINES

MACHINE = load_machine(MACHINES / "3-ups-s.toml")[0]
AXES = axes_of(MACHINE)
OIL = schema.Hydraulics()
TIGHT = replace(OIL, null_opening=1e-4, leakage_m3_s_pa=0.0)
HEAD_M2, ROD_M2 = math.pi / 4.0 * 0.040**2, math.pi / 4.0 * 0.025**2
RING_M2 = HEAD_M2 - ROD_M2
LOW_M, HIGH_M = 0.95 - hydraulics.END_M, 1.45 + hydraulics.END_M  # where the piston touches its ends
MIDDLE_M = 1.2
LOADS_KG = np.array([20.7, 55.0, 150.0])  # from the least eigenvalue of the leg-space inertia on


def cylinders(given: schema.Hydraulics = OIL) -> Cylinders:
    return Cylinders(MACHINE, given, AXES, PLANT_STEP_S)


def volumes_m3(given: schema.Hydraulics, length_m: float) -> tuple[float, float]:
    return (
        given.dead_volume_m3 + HEAD_M2 * (length_m - LOW_M),
        given.dead_volume_m3 + RING_M2 * (HIGH_M - length_m),
    )


def stiffness_n_m(given: schema.Hydraulics, length_m: float) -> float:
    head_m3, rod_m3 = volumes_m3(given, length_m)
    return given.bulk_modulus_pa * (HEAD_M2**2 / head_m3 + RING_M2**2 / rod_m3)


def flow(given: schema.Hydraulics, drop_pa: float) -> float:
    """Through a fully open edge of the head side, m³/s."""
    return math.copysign(given.rated_flow_m3_s * math.sqrt(abs(drop_pa) / given.rated_drop_pa), drop_pa)


def edges(given: schema.Hydraulics, u: float, p1: float, p2: float) -> tuple[float, float, float, float]:
    """Flows supply to head, head to tank, supply to rod side, rod side to tank, m³/s."""
    root = math.hypot(u, 2.0 * given.null_opening)
    a, b, share = 0.5 * (root + u), 0.5 * (root - u), RING_M2 / HEAD_M2
    supply, tank = given.supply_pa, given.tank_pa
    return (
        a * flow(given, supply - p1),
        b * flow(given, p1 - tank),
        b * share * flow(given, supply - p2),
        a * share * flow(given, p2 - tank),
    )


class Valve(NamedTuple):
    """Spools and chambers without the position loop."""

    cylinders: Cylinders
    command: np.ndarray
    spool: np.ndarray
    pressures: np.ndarray

    def step(self, position_m: np.ndarray, velocity_m_s: np.ndarray) -> np.ndarray:
        given = self.cylinders
        hydraulics.advance(
            given._cylinders, given._oil, self.command, position_m, velocity_m_s, self.spool, self.pressures
        )
        return HEAD_M2 * self.pressures[::2] - RING_M2 * self.pressures[1::2]


def valve(given: schema.Hydraulics = OIL, command: float = 0.0, load_n: float = 0.0) -> Valve:
    made = cylinders(given)
    made.reset(np.full(3, load_n))
    return Valve(made, np.full(3, command), made._spool.copy(), made._pressures.copy())


# ---------------------------------------------------------------- valve and chambers


@pytest.mark.parametrize("given", [OIL, replace(OIL, valve_time_s=0.008, dead_volume_m3=2e-5, leakage_m3_s_pa=2e-12)])
def test_pressures_are_those_of_a_fine_integration(given: schema.Hydraulics) -> None:
    """Spool steps and a piston that speeds up and stops, against solve_ivp at 1e-9."""
    rng = np.random.default_rng(5)
    device = valve(given, load_n=400.0)
    position_m = np.array([1.0, MIDDLE_M, 1.4])
    state = np.column_stack((device.spool, device.pressures[::2] / 1e5, device.pressures[1::2] / 1e5, position_m))
    speed_m_s, worst = np.zeros(3), 0.0

    def rates(_: float, y: np.ndarray, command: float, v: float) -> list[float]:
        u, p1, p2 = y[0], 1e5 * y[1], 1e5 * y[2]
        s1, t1, s2, t2 = edges(given, u, p1, p2)
        head_m3, rod_m3 = volumes_m3(given, y[3])
        leak = given.leakage_m3_s_pa * (p1 - p2)
        p1_d = given.bulk_modulus_pa / head_m3 * (s1 - t1 - leak - HEAD_M2 * v)
        p2_d = given.bulk_modulus_pa / rod_m3 * (s2 - t2 + leak + RING_M2 * v)
        return [(command - u) / given.valve_time_s, p1_d / 1e5, p2_d / 1e5, v]

    for k in range(120):
        if k % 20 == 0:
            device.command[:] = rng.uniform(-0.25, 0.25, 3)
        # the piston goes about as fast as the valve wants it, or the pressures leave their range
        speed_m_s += 0.2 * (1.1 * device.spool - speed_m_s)
        for i in range(3):
            span, end = (0.0, PLANT_STEP_S), (device.command[i], speed_m_s[i])
            state[i] = solve_ivp(rates, span, state[i], "LSODA", args=end, rtol=1e-9, atol=1e-9).y[:, -1]
        position_m = position_m + PLANT_STEP_S * speed_m_s
        device.step(position_m, speed_m_s)
        assert state[:, 1:3].min() > 6.0  # inside the range, where no valve but the spool is open
        assert state[:, 1:3].max() < 209.0
        worst = max(worst, np.abs(device.pressures.reshape(3, 2) / 1e5 - state[:, 1:3]).max())
    np.testing.assert_allclose(device.spool, state[:, 0], atol=1e-7)
    assert 0.0 < worst < 1.0  # bar of 210


@pytest.mark.parametrize("u", [0.02, 0.2, -0.05, -0.3])
@pytest.mark.parametrize("load_n", [0.0, 4000.0, -3000.0])
def test_steady_speed_satisfies_force_and_flow_balance(u: float, load_n: float) -> None:
    device = valve(TIGHT, u, load_n)
    position_m, velocity_m_s = np.full(3, MIDDLE_M), np.zeros(3)
    for _ in range(1500):
        force_n = device.step(position_m, velocity_m_s)
        velocity_m_s = velocity_m_s + PLANT_STEP_S * (force_n - load_n - 2000.0 * velocity_m_s) / 40.0
    p1, p2 = device.pressures[0], device.pressures[1]
    v = velocity_m_s[0]
    assert HEAD_M2 * p1 - RING_M2 * p2 == pytest.approx(load_n + 2000.0 * v, abs=1.0)
    assert v * u > 0.0
    into_head = u * flow(TIGHT, TIGHT.supply_pa - p1) if u > 0.0 else u * flow(TIGHT, p1 - TIGHT.tank_pa)
    out_of_rod = u * flow(TIGHT, p2 - TIGHT.tank_pa) if u > 0.0 else u * flow(TIGHT, TIGHT.supply_pa - p2)
    assert HEAD_M2 * v == pytest.approx(into_head, rel=2e-3)
    assert RING_M2 * v == pytest.approx(out_of_rod * RING_M2 / HEAD_M2, rel=2e-3)
    assert p1 + p2 == pytest.approx(TIGHT.supply_pa + TIGHT.tank_pa, rel=1e-3)  # so a reversal moves no oil


@pytest.mark.parametrize("length_m", [0.96, MIDDLE_M, 1.44])
def test_a_closed_cylinder_is_the_spring_of_its_oil(length_m: float) -> None:
    device = valve(TIGHT)
    before_n = device.step(np.full(3, length_m), np.zeros(3)).copy()
    moved_m = 2e-5
    after_n = device.step(np.full(3, length_m + moved_m), np.full(3, moved_m / PLANT_STEP_S))
    np.testing.assert_allclose((before_n - after_n) / moved_m, stiffness_n_m(TIGHT, length_m), rtol=0.01)


def test_a_mass_on_closed_cylinders_swings_at_the_oils_frequency_and_gains_nothing() -> None:
    device = valve(TIGHT)
    middle_m = np.full(3, MIDDLE_M)
    position_m, velocity_m_s = middle_m, np.full(3, 0.02)
    energies, crossings = [], 0
    for _ in range(4000):
        force_n = device.step(position_m, velocity_m_s)
        before = velocity_m_s
        velocity_m_s = velocity_m_s + PLANT_STEP_S * force_n / LOADS_KG
        crossings += (before[1] < 0.0) != (velocity_m_s[1] < 0.0)
        position_m = position_m + PLANT_STEP_S * velocity_m_s
        spring_n_m = stiffness_n_m(TIGHT, MIDDLE_M)
        # of the harmonic oscillator whose velocity lies half a step ahead of its position
        energies.append(0.5 * LOADS_KG * before * velocity_m_s + 0.5 * force_n**2 / spring_n_m)
    first_j, last_j = np.max(energies[:200], axis=0), np.max(energies[-200:], axis=0)
    np.testing.assert_allclose(first_j, 0.5 * LOADS_KG * 0.02**2, rtol=0.05)
    assert (last_j < first_j).all()
    assert (last_j > 0.0).all()
    rate_rad_s = math.sqrt(stiffness_n_m(TIGHT, MIDDLE_M) / LOADS_KG[1])
    assert math.pi * crossings / 2.0 == pytest.approx(rate_rad_s, rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_no_more_work_comes_out_than_the_pump_puts_in(seed: int) -> None:
    rng = np.random.default_rng(seed)
    device = valve()
    position_m, velocity_m_s = np.full(3, MIDDLE_M), np.zeros(3)
    given_j, taken_j = np.zeros(3), np.zeros(3)

    def stored_j() -> np.ndarray:
        p1, p2 = device.pressures[::2], device.pressures[1::2]
        volumes = np.array([volumes_m3(OIL, length_m) for length_m in position_m])
        return (volumes[:, 0] * p1**2 + volumes[:, 1] * p2**2) / (2.0 * OIL.bulk_modulus_pa)

    start_j = stored_j()
    for k in range(3000):
        if k % 40 == 0:
            device.command[:] = rng.uniform(-0.2, 0.2, 3) - 2.0 * (position_m - MIDDLE_M)
        force_n = device.step(position_m, velocity_m_s)
        velocity_m_s = velocity_m_s + PLANT_STEP_S * (force_n - 1500.0 - 500.0 * velocity_m_s) / LOADS_KG
        position_m = position_m + PLANT_STEP_S * velocity_m_s
        for i in range(3):
            s1, t1, s2, t2 = edges(OIL, device.spool[i], device.pressures[2 * i], device.pressures[2 * i + 1])
            given_j[i] += PLANT_STEP_S * (OIL.supply_pa * (s1 + s2) - OIL.tank_pa * (t1 + t2))
        taken_j += PLANT_STEP_S * force_n * velocity_m_s
        assert (taken_j + stored_j() - start_j <= given_j + 1.0).all()
    assert (given_j > 500.0).all()


@pytest.mark.parametrize("seed", range(3))
def test_pressures_stay_between_tank_and_supply_whatever_happens(seed: int) -> None:
    rng = np.random.default_rng(seed)
    device = valve(replace(OIL, dead_volume_m3=1e-6, rated_flow_m3_s=5e-3, valve_time_s=1e-4))
    touched = set()
    for k in range(2000):
        if k % 10 == 0:
            device.command[:] = rng.choice([-1.0, 0.0, 1.0], 3)
            speed_m_s = rng.uniform(-2.0, 2.0, 3)
        device.step(rng.uniform(LOW_M - 0.1, HIGH_M + 0.1, 3), speed_m_s)
        assert device.pressures.min() >= OIL.tank_pa
        assert device.pressures.max() <= OIL.supply_pa
        touched |= {device.pressures.min() == OIL.tank_pa, 2.0 + (device.pressures.max() == OIL.supply_pa)}
    assert touched == {False, True, 2.0, 3.0}


@pytest.mark.parametrize("u", [1.0, -1.0, 0.0])
def test_a_wide_open_valve_fills_a_tiny_chamber_without_ringing(u: float) -> None:
    tiny = replace(
        OIL, null_opening=0.1, leakage_m3_s_pa=0.0, dead_volume_m3=1e-7, rated_flow_m3_s=5e-3, valve_time_s=1e-4
    )
    device = valve(tiny, u)
    device.spool[:] = u
    device.pressures[:] = [30e5, 20e5] * 3
    history = []
    for _ in range(400):
        device.step(np.array([LOW_M, MIDDLE_M, HIGH_M]), np.zeros(3))
        history.append(device.pressures.reshape(3, 2).copy())
    last = history[-1]
    middle_pa, range_pa = 0.5 * (tiny.supply_pa + tiny.tank_pa), tiny.supply_pa - tiny.tank_pa
    np.testing.assert_allclose(last, np.tile(middle_pa + u * np.array([0.5, -0.5]) * range_pa, (3, 1)), atol=3e4)
    change = np.diff(history, axis=0) * np.sign(last - history[0])
    assert change.min() > -1.0  # Pa


def test_far_beyond_its_ends_a_piston_still_compresses_what_it_moves_into() -> None:
    device = valve(TIGHT)
    before = device.pressures.copy()
    device.step(np.array([LOW_M - 0.5, MIDDLE_M, HIGH_M + 0.5]), np.array([-1e-4, 0.0, 1e-4]))
    assert device.pressures[0] > before[0]
    assert device.pressures[5] > before[5]
    assert np.isfinite(device.pressures).all()


def test_sums_of_pressure_come_back_to_supply_and_tank_at_rest() -> None:
    device = valve(replace(OIL, leakage_m3_s_pa=0.0))
    device.pressures[:] = [30e5, 20e5, 190e5, 180e5, 60e5, 160e5]
    for _ in range(30_000):
        device.step(np.full(3, MIDDLE_M), np.zeros(3))
    np.testing.assert_allclose(device.pressures[::2] + device.pressures[1::2], OIL.supply_pa + OIL.tank_pa, rtol=1e-3)


# ---------------------------------------------------------------- position loop


class Sled(NamedTuple):
    """Masses on cylinders."""

    cylinders: Cylinders
    position_m: np.ndarray
    velocity_m_s: np.ndarray

    def run(self, p: np.ndarray, v: np.ndarray, load_n: float, seconds: float) -> np.ndarray:
        """Positions (steps, 3) while the set-point goes on from p at v; the load is expected."""
        path = []
        for _ in range(round(seconds / PLANT_STEP_S)):
            p = p + PLANT_STEP_S * v
            f = np.full(3, load_n)
            force_n = self.cylinders.step(p, v, f, self.position_m, self.velocity_m_s)
            self.velocity_m_s[:] += PLANT_STEP_S * (force_n - load_n) / LOADS_KG
            self.position_m[:] += PLANT_STEP_S * self.velocity_m_s
            path.append(self.position_m.copy())
        return np.array(path)


def sled(given: schema.Hydraulics = OIL, length_m: float = MIDDLE_M, load_n: float = 0.0) -> Sled:
    made = cylinders(given)
    made.reset(np.full(3, load_n))
    return Sled(made, np.full(3, length_m), np.zeros(3))


@pytest.mark.parametrize("load_n", [0.0, 2500.0])
@pytest.mark.parametrize("length_m", [0.96, MIDDLE_M, 1.44])
@pytest.mark.parametrize("given", [OIL, replace(OIL, bulk_modulus_pa=0.6e9), replace(OIL, valve_time_s=0.003)])
def test_a_step_of_the_set_point_settles_over_the_whole_range_of_inertia(
    given: schema.Hydraulics, length_m: float, load_n: float
) -> None:
    bench = sled(given, length_m, load_n)
    still = np.zeros(3)
    start_m = bench.run(np.full(3, length_m), still, load_n, 0.5)[-1]
    path = bench.run(np.full(3, length_m + 0.002), still, load_n, 0.5) - start_m
    assert path.max() < 1.15 * 0.002
    assert path.min() > -1e-4
    np.testing.assert_allclose(path[-200:], 0.002, atol=2e-5)
    assert np.abs(bench.velocity_m_s).max() < 1e-4


def test_velocity_feed_forward_takes_the_lag_away() -> None:
    lags_m = []
    for share in (0.0, 1.0):
        bench = sled(load_n=1000.0)
        bench.cylinders.velocity_feedforward = share
        speed_m_s = np.array([0.1, -0.1, 0.1])
        path = bench.run(np.full(3, MIDDLE_M), speed_m_s, 1000.0, 1.0)
        lags_m.append(MIDDLE_M + 1.0 * speed_m_s - path[-1])
    np.testing.assert_allclose(np.abs(lags_m[0]), 0.1 / 32.0, rtol=0.03)
    assert np.abs(lags_m[1]).max() < 0.03 * 0.1 / 32.0


def test_a_load_nobody_expected_is_carried_and_forgotten_by_the_pressure_feedback() -> None:
    bench = sled()
    p, still = np.full(3, MIDDLE_M), np.zeros(3)
    deviation = []
    for _ in range(2000):
        force_n = bench.cylinders.step(p, still, still, bench.position_m, bench.velocity_m_s)
        bench.velocity_m_s[:] += PLANT_STEP_S * (force_n - 500.0) / LOADS_KG
        bench.position_m[:] += PLANT_STEP_S * bench.velocity_m_s
        deviation.append(np.abs(bench.position_m - p).max())
    assert max(deviation) < 2e-3
    assert deviation[-1] < 5e-5
    np.testing.assert_allclose(force_n, 500.0, atol=1.0)


@pytest.mark.parametrize("share", [1.0, -1.0])
def test_a_feed_forward_that_no_pressure_can_give_does_not_take_the_valve_out_of_hand(share: float) -> None:
    bench = sled()
    p, f, still = np.full(3, MIDDLE_M + 0.001), share * AXES.peak_force_n, np.zeros(3)
    for _ in range(1500):
        force_n = bench.cylinders.step(p, still, f, bench.position_m, bench.velocity_m_s)
        bench.velocity_m_s[:] += PLANT_STEP_S * force_n / LOADS_KG
        bench.position_m[:] += PLANT_STEP_S * bench.velocity_m_s
    np.testing.assert_allclose(bench.position_m, p, atol=5e-4)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="supply_pa"):
        cylinders(replace(OIL, supply_pa=1e5))
    screw = load_machine(MACHINES / "6-ups.toml")[0].legs.drive
    mixed = replace(MACHINE, leg=[*MACHINE.leg[:2], replace(MACHINE.leg[2], drive=screw)])
    with pytest.raises(ConfigurationError, match="cylinders in all legs or none"):
        Cylinders(mixed, OIL, AXES, PLANT_STEP_S)
    with pytest.raises(ConfigurationError, match="force_delay_s"):
        Plant(MACHINE, schema.VirtualCell(force_delay_s=0.001))


# ---------------------------------------------------------------- in the virtual cell


class Run(NamedTuple):
    """What a slow motion of the whole cell leaves behind, a row a PLC cycle."""

    pose: np.ndarray
    lag_m: np.ndarray
    velocity_m_s: np.ndarray
    force_n: np.ndarray
    held_n: np.ndarray
    lateral: np.ndarray  # (rows, 4, 3)
    state: list[PlcState]


def drive(machine: schema.Machine, cell: schema.VirtualCell, seconds: float, host_knows: bool = True) -> Run:
    """0.3 s at rest, drives on from 0.15 s, then all three angles together; the host knows the machine or nothing."""
    plant = Plant(machine, cell)
    cx = Cx5130(schema.Ads(ams_net_id="127.0.0.1.23.1", address="127.0.0.1:0"), machine, plant, 0.002, cell.hydraulics)
    command = np.frombuffer(cx.device.symbols[0].data, COMMAND)
    command["size"], command["version"], command["period_s"] = COMMAND.itemsize, LAYOUT_VERSION, 0.010
    command["velocity_feedforward"] = 1.0
    model, home = build(machine), home_pose(machine)
    assert isinstance(cx.drives, Cylinders)

    def pose(t: float) -> np.ndarray:
        u = min(max(t, 0.0), 1.0)
        fade = u * u * u * (10.0 - 15.0 * u + 6.0 * u * u)
        return home + fade * np.array([0.0, 0.0, 0.0, 0.25, 0.2, 0.2]) * np.sin(np.array([0, 0, 0, 0.8, 1.1, 0.9]) * t)

    rows = []
    q, qd, qdd, twist, f, cells = np.zeros((6, 3))
    for tick in range(round((seconds + 0.3) / 0.010)):
        t, h = tick * 0.010 - 0.3, 1e-4
        x, xd = pose(t), (pose(t + h) - pose(t - h)) / (2.0 * h)
        xdd = (pose(t + h) - 2.0 * x + pose(t - h)) / h**2
        axis_rates(model, x, xd, xdd, twist, q, qd, qdd)
        if host_knows:
            inverse_dynamics(model, x, xd, xdd, np.zeros(6), f, cells)
        command["seq"], command["host_time_s"] = tick + 1, tick * 0.010
        command["mode"] = AxisMode.HOLD if t < 0.0 else AxisMode.FOLLOW
        command["position_m"][0, :3], command["velocity_m_s"][0, :3], command["force_n"][0, :3] = q, qd, f
        for _ in range(5):
            cx.cycle()
            seals = plant._sensors[plant._seals_at] if plant._sealed else np.zeros((4, 3))
            rows.append(
                (
                    plant.pose(), cx.twin.p - plant.position_m, plant.velocity_m_s, cx.drives.force_n.copy(),
                    plant.held_n, seals.copy(), cx.twin.state,
                )
            )  # fmt: skip
    assert cx.twin.error == PlcError.NONE
    status = np.frombuffer(cx.device.symbols[1].data, STATUS)
    pressures = cx.pressures_pa()
    expected_n = HEAD_M2 * pressures["head"] - RING_M2 * pressures["rod"]
    np.testing.assert_allclose(status["force_n"][0, :3], expected_n, atol=1e-6)
    *columns, state = zip(*rows, strict=True)
    return Run(*(np.array(column) for column in columns), list(state))


def test_drives_come_on_with_the_pressures_that_carry_the_load() -> None:
    """Nobody tells the cylinders the load beforehand, the plant is heavier on one side, and nothing moves."""
    platform = replace(MACHINE.platform, com_m=(0.2, -0.1, 0.3), mass_kg=300.0)
    run = drive(replace(MACHINE, platform=platform), schema.VirtualCell(), seconds=0.0, host_knows=False)
    on = run.state.index(PlcState.HOLDING)
    assert 0 < on < len(run.state) - 20
    assert np.abs(run.force_n[on - 1]).max() > 200.0
    np.testing.assert_allclose(run.force_n[on - 5 : on], run.held_n[on - 6 : on - 1], atol=1e-3)
    assert np.abs(run.force_n[on] - run.force_n[on - 1]).max() < 10.0
    assert np.abs(run.force_n[on:] - run.force_n[on - 1]).max() < 40.0
    assert np.abs(run.velocity_m_s).max() < 1e-3
    assert np.abs(run.lag_m).max() < 3e-5


@pytest.mark.parametrize(
    "friction",
    [
        schema.Friction(coulomb_n=20.0, viscous_n_s_m=300.0, normal=0.5),
        schema.Friction(coulomb_n=5.0, normal=0.5, gland_m=0.35, piston_m=0.6),
    ],
    ids=["lateral resultant", "gland and piston"],
)
def test_measured_cylinder_force_is_inverse_dynamics_with_seal_friction(friction: schema.Friction) -> None:
    machine = replace(MACHINE, legs=replace(MACHINE.legs, friction=friction))
    run = drive(machine, schema.VirtualCell(), seconds=4.0)
    assert np.abs(run.lag_m).max() < 2e-4

    h, keep = 0.002, slice(300, -2)
    x = run.pose[keep]
    rate = (run.pose[301:-1] - run.pose[299:-3]) / (2.0 * h)
    acceleration = (run.pose[302:] - 2.0 * x + run.pose[298:-4]) / (2.0 * h) ** 2
    model, count = build(machine), len(x)
    force_n, cells_n, none = np.zeros((count, 3)), np.zeros((count, 3)), np.zeros((count, 6))
    assert inverse_dynamics_batch(model, x, rate, acceleration, none, force_n, cells_n) == 0
    smooth_n = np.zeros((count, 3))
    free = build(MACHINE)
    assert inverse_dynamics_batch(free, x, rate, acceleration, none, smooth_n, cells_n) == 0

    moves = (np.abs(run.velocity_m_s[keep]) > 0.008).all(axis=1)  # below, the kernels let dry friction fade
    assert moves.sum() > 500
    error_n = (run.force_n[keep] - force_n)[moves]
    assert np.sqrt(np.mean(error_n**2)) < 0.01 * np.ptp(force_n)
    assert np.abs(error_n).max() < 0.02 * np.ptp(force_n)
    assert np.abs(force_n - smooth_n)[moves].min() > friction.coulomb_n  # so there is something to compare

    lateral_n, moment_nm = np.zeros((count, 6)), np.zeros((count, 6))
    lateral_batch(model, x, rate, acceleration, lateral_n, moment_nm)
    measured = run.lateral[keep]
    for k, (kernel, bound) in enumerate(((lateral_n, 0.05), (moment_nm, 0.3))):
        for axis in range(2):
            # the couple of the plant's rod lacks what no real body has: see plant_model
            np.testing.assert_allclose(measured[:, 2 * k + axis], kernel[:, axis::2], atol=bound)


def test_seal_friction_only_takes_energy() -> None:
    friction = schema.Friction(coulomb_n=2.0, normal=0.5, gland_m=0.35, piston_m=0.6)
    plant = Plant(replace(MACHINE, legs=replace(MACHINE.legs, friction=friction)), schema.VirtualCell(), step_s=1e-4)
    balance = plant.balance()
    work_j, lost_n = 0.0, []
    for k in range(6000):
        force_n = balance + 120.0 * math.sin(2e-4 * math.pi * k * 10.0) * np.array([1.0, -0.8, 0.6])
        before = plant.data.qvel[plant._axis_v].copy()
        plant.step(force_n)
        rubbed_n = plant.data.efc_force[plant.data.efc_type == 1]  # dry friction of the axes, mjCNSTR_FRICTION_DOF
        middle = 0.5 * (before + plant.velocity_m_s)
        work_j += 1e-4 * float(rubbed_n @ middle)
        lost_n.append(np.abs(rubbed_n).max())
        assert work_j <= 1e-6
    assert work_j < -0.5
    assert max(lost_n) > 5.0  # more than coulomb_n: the load on the seals rubs
