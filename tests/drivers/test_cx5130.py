"""The virtual PLC program and its drives, on a stepped clock and a plant of six independent masses."""

import asyncio
import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from controller import clock, schema
from controller.records import AxisMode
from controller.settings import SiteFiles, load_machine
from drivers.exchange import COMMAND, LAYOUT_VERSION, STATUS, DriveStatus, PlcError, PlcState
from drivers.fitting import Fittings
from drivers.virtual import ams, cx5130, servo
from drivers.virtual.cell import Cell as VirtualCell
from drivers.virtual.cell import Journal, run
from drivers.virtual.plc_program import REACHED_M, axes_of
from tests.machines import MACHINES

MACHINE = load_machine(MACHINES / "6-upru.toml")[0]
ADS = schema.Ads(ams_net_id="127.0.0.1.20.1", address="127.0.0.1:48899")
AXES = axes_of(MACHINE)
CYCLE_S = 0.002
PERIOD_S = 0.010
MIDDLE_M = 0.93
LEG = MACHINE.legs.limits


class Masses:
    """Six axes without coupling, each a mass under a constant load; the force acts `delay` steps late."""

    def __init__(self, mass_kg=40.0, load_n=0.0, delay=2):
        self.mass_kg = np.broadcast_to(np.asarray(mass_kg, dtype=float), 6)
        self.load_n = load_n
        self.position_m, self.velocity_m_s = np.full(6, MIDDLE_M), np.zeros(6)
        self.cell_n, self.held_n = np.zeros((2, 6))
        self.time_s = 0.0
        self.late = [np.zeros(6)] * delay

    def step(self, force_n):
        step_s = cx5130.PLANT_STEP_S
        self.time_s += step_s
        if force_n is None:
            self.velocity_m_s = np.zeros(6)
            return
        self.late.append(force_n.copy())
        self.velocity_m_s = self.velocity_m_s + (self.late.pop(0) - self.load_n) / self.mass_kg * step_s
        self.position_m = self.position_m + self.velocity_m_s * step_s


class Rigid(Masses):
    """Follows every set-point exactly: for tests of the PLC program alone."""

    def __init__(self, twin=None):
        super().__init__()
        self.twin = twin

    def step(self, force_n):
        if force_n is not None:
            self.position_m, self.velocity_m_s = self.twin.p, self.twin.v


class Cell:
    """A virtual CX5130 and a host that writes into its command block."""

    def __init__(self, plant=None):
        self.cx = cx5130.Cx5130(ADS, MACHINE, plant or Rigid(), CYCLE_S)
        if plant is None:
            self.cx.plant.twin = self.cx.twin
        self.twin = self.cx.twin
        self.command = np.frombuffer(self.cx.device.symbols[0].data, COMMAND)
        self.status = np.frombuffer(self.cx.device.symbols[1].data, STATUS)
        self.journal = Journal(self.twin)
        self.lines = []
        self.p, self.v = [self.twin.p], [self.twin.v]  # set-points of every cycle

    def send(self, mode, position_m=0.0, velocity_m_s=0.0, force_n=0.0, **others):
        command = {
            "size": COMMAND.itemsize, "version": LAYOUT_VERSION, "seq": self.command["seq"] + 1, "mode": mode,
            "host_time_s": 5000.0 + self.cx.time_s, "period_s": PERIOD_S, "velocity_feedforward": 1.0,
            "position_m": position_m,
            "velocity_m_s": velocity_m_s, "force_n": force_n,
        } | others  # fmt: skip
        for name, value in command.items():
            self.command[name] = value

    def run(self, seconds):
        for _ in range(round(seconds / CYCLE_S)):
            self.cx.cycle()
            self.p.append(self.twin.p)
            self.v.append(self.twin.v)
            if line := self.journal.line(self.twin):
                self.lines.append(line)
        return self

    def tick(self, *command, **others):
        self.send(*command, **others)
        return self.run(PERIOD_S)

    def enable(self):
        for _ in range(17):
            self.tick(AxisMode.HOLD)
        assert self.state == PlcState.HOLDING
        return self

    def follow(self, path, seconds, start_s=0.0):
        """`path(t)` gives position and velocity of all axes, or of each."""
        for tick in range(round(seconds / PERIOD_S)):
            self.tick(AxisMode.FOLLOW, *path(start_s + tick * PERIOD_S))
        return self

    @property
    def state(self):
        return PlcState(int(self.status["plc_state"][0]))

    @property
    def error(self):
        return PlcError(int(self.status["plc_error"][0]))

    @property
    def enabled(self):
        return bool((self.status["drive_status"][0] & DriveStatus.ENABLED).all())

    def assert_inside_limits(self):
        p, v = np.array(self.p), np.array(self.v)
        assert np.isfinite(p).all()
        assert p.min() >= AXES.low_m[0] - 1e-9
        assert p.max() <= AXES.high_m[0] + 1e-9
        assert np.abs(v).max() <= AXES.speed_m_s[0] + 1e-9
        assert np.abs(np.diff(v, axis=0)).max() <= AXES.quick_m_s2[0] * CYCLE_S + 1e-9
        # Position and speed belong together: the drives see no step either.
        assert np.abs(np.diff(p, axis=0) - 0.5 * CYCLE_S * (v[1:] + v[:-1])).max() <= 2.0 * REACHED_M


def sine(amplitude_m=0.05, frequency_hz=0.8, turn=0.7):
    """Starts and goes on smoothly: position and velocity of six axes that move differently."""
    amplitude, rate = amplitude_m * np.cos(turn * np.arange(6)), 2.0 * math.pi * frequency_hz

    def path(t):
        u = min(t, 1.0)
        fade, fade_rate = u * u * (3.0 - 2.0 * u), 6.0 * u * (1.0 - u)
        return (
            MIDDLE_M + amplitude * fade * math.sin(rate * t),
            amplitude * (fade * rate * math.cos(rate * t) + fade_rate * math.sin(rate * t)),
        )

    return path


def ramp(speed_m_s, acceleration_m_s2=2.0):
    """From rest at the middle to a constant speed."""

    def path(t):
        rise_s = abs(speed_m_s) / acceleration_m_s2
        a = math.copysign(acceleration_m_s2, speed_m_s)
        if t < rise_s:
            return MIDDLE_M + 0.5 * a * t * t, a * t
        return MIDDLE_M + 0.5 * a * rise_s**2 + speed_m_s * (t - rise_s), speed_m_s

    return path


# ---------------------------------------------------------------- enabling


def test_drives_take_their_time_to_come_on_and_start_from_where_the_axes_are():
    cell = Cell()
    cell.cx.plant.position_m = MIDDLE_M + 0.01 * np.arange(6)
    cell.run(0.02)
    assert (cell.state, cell.enabled) == (PlcState.OFF, False)
    for _ in range(10):
        cell.tick(AxisMode.HOLD, position_m=0.5)
    assert not cell.enabled  # 100 ms
    for _ in range(10):
        cell.tick(AxisMode.HOLD, position_m=0.5)
    assert cell.enabled  # 200 ms
    assert cell.state == PlcState.HOLDING
    np.testing.assert_array_equal(cell.status["setpoint_m"][0], MIDDLE_M + 0.01 * np.arange(6))


def test_follow_alone_does_not_switch_the_drives_on():
    cell = Cell()
    for _ in range(30):
        cell.tick(AxisMode.FOLLOW, MIDDLE_M)
    assert (cell.state, cell.enabled) == (PlcState.OFF, False)


def test_stop_while_enabling_keeps_the_drives_off():
    cell = Cell().tick(AxisMode.HOLD).tick(AxisMode.STOP)
    for _ in range(30):
        cell.tick(AxisMode.STOP)
    assert (cell.state, cell.enabled) == (PlcState.OFF, False)


def test_a_host_lost_while_enabling_is_not_given_drives():
    cell = Cell().tick(AxisMode.HOLD).run(0.3)
    assert (cell.state, cell.error, cell.enabled) == (PlcState.QUICK_STOP, PlcError.WATCHDOG, False)


def test_stop_ends_at_rest_with_the_drives_off_even_if_the_host_leaves():
    cell = Cell().enable().follow(ramp(0.2), 0.3)
    cell.tick(AxisMode.STOP)
    assert cell.enabled
    cell.run(0.3)
    assert (cell.state, cell.error, cell.enabled) == (PlcState.OFF, PlcError.NONE, False)
    cell.assert_inside_limits()


# ---------------------------------------------------------------- interpolation


def test_set_points_are_the_cubic_through_the_hosts_set_points_one_period_late():
    cell = Cell().enable()
    path = sine()
    begin = len(cell.p)
    cell.follow(path, 2.0)
    for index in range(begin + 5, len(cell.p)):
        t = (index - begin + 1) * CYCLE_S - PERIOD_S  # end of that cycle, one period back
        k = math.floor(t / PERIOD_S + 1e-9)
        s = t / PERIOD_S - k
        (p0, v0), (p1, v1) = path(k * PERIOD_S), path((k + 1) * PERIOD_S)
        c1, c2 = PERIOD_S * v0, 3 * (p1 - p0) - PERIOD_S * (2 * v0 + v1)
        c3 = 2 * (p0 - p1) + PERIOD_S * (v0 + v1)
        p, v = p0 + s * (c1 + s * (c2 + s * c3)), (c1 + s * (2 * c2 + s * 3 * c3)) / PERIOD_S
        np.testing.assert_allclose(cell.p[index], p, atol=1e-12)
        np.testing.assert_allclose(cell.v[index], v, atol=1e-10)
    assert cell.error == PlcError.NONE
    cell.assert_inside_limits()


def test_force_feed_forward_is_interpolated_with_the_same_delay_and_limited_to_the_drive():
    cell = Cell().enable()
    for tick in range(5):
        cell.tick(AxisMode.FOLLOW, MIDDLE_M, 0.0, 10.0 * tick)
    assert cell.twin.f == pytest.approx(np.full(6, 40.0))
    cell.send(AxisMode.FOLLOW, MIDDLE_M, 0.0, 50.0)
    cell.run(0.004)
    assert cell.twin.f == pytest.approx(np.full(6, 44.0))
    cell.run(0.006).tick(AxisMode.FOLLOW, MIDDLE_M, 0.0, 1e300)
    assert cell.twin.f == pytest.approx(np.full(6, 3.8 * 2 * math.pi / 0.010))


@pytest.mark.parametrize("seed", range(3))
def test_jitter_of_arrival_does_not_become_jitter_of_speed(seed):
    cell = Cell().enable().follow(ramp(0.1), 0.5)
    path, rng, host_s = ramp(0.1), np.random.default_rng(seed), 5000.0 + cell.cx.time_s
    begin = len(cell.v)
    arrivals = 5 * np.arange(60) + rng.integers(0, 2, 60)  # cycles: in time or 2 ms late
    for tick, wait in enumerate(np.diff(arrivals, prepend=0)):
        cell.run(wait * CYCLE_S)
        cell.send(AxisMode.FOLLOW, *path(0.5 + tick * PERIOD_S), host_time_s=host_s + tick * PERIOD_S)
    speed = np.array(cell.v[begin:])[:, 0]
    assert np.abs(speed - 0.1).max() < 0.002
    assert cell.error == PlcError.NONE


def test_a_missing_set_point_is_bridged_at_constant_speed_then_the_axes_slow_down():
    cell = Cell().enable().follow(ramp(0.2), 0.3).run(0.038)
    # The last 10 ms of the cubic, 4 to 6 ms at constant speed, then legs.limits.acceleration.
    speed = np.array(cell.v[-20 - 19 :])[:, 0]
    falling = np.flatnonzero(speed < 0.2 - 1e-9)
    steps = np.diff(speed[falling])
    np.testing.assert_allclose(steps, -LEG.acceleration_m_s2 * CYCLE_S, rtol=1e-6)
    silent_s = 0.048 - len(falling) * CYCLE_S  # since the last command
    assert 0.014 - 1e-9 <= silent_s <= 0.016 + 1e-9
    cell.assert_inside_limits()


def test_one_missed_set_point_leaves_no_mark():
    cell = Cell().enable()
    path = sine()
    cell.follow(path, 1.5).run(PERIOD_S).follow(path, 0.5, start_s=1.51)
    assert (cell.state, cell.error) == (PlcState.FOLLOWING, PlcError.NONE)
    np.testing.assert_allclose(cell.twin.p, path(2.0)[0], atol=1e-6)
    cell.assert_inside_limits()


# ---------------------------------------------------------------- watchdog


def test_watchdog_times_count_from_the_last_new_sequence_number():
    cell = Cell().enable().follow(ramp(0.2), 0.3)
    seen = {}
    for _ in range(100):
        cell.run(CYCLE_S)
        seen.setdefault(cell.state, cell.twin.age_s)
    assert seen[PlcState.LATE] == pytest.approx(0.040)
    assert seen[PlcState.QUICK_STOP] == pytest.approx(0.102)
    assert cell.error == PlcError.WATCHDOG
    assert not cell.enabled  # at rest, the brakes hold
    cell.assert_inside_limits()
    assert cell.lines[-2:] == [
        "no new set-point for 40 ms: controlled hold",
        "no new set-point for 102 ms: quick stop, at standstill already, brakes closed",
    ]


def test_writing_the_same_sequence_number_again_does_not_feed_the_watchdog():
    cell = Cell().enable()
    seq = int(cell.command["seq"][0])
    for _ in range(30):
        cell.tick(AxisMode.HOLD, seq=seq)
    assert cell.state == PlcState.QUICK_STOP


def test_a_host_back_within_100_ms_catches_up_inside_the_limits():
    cell = Cell().enable()
    path = ramp(0.2)
    cell.follow(path, 0.3).run(0.06)
    assert cell.state == PlcState.LATE
    cell.follow(path, 0.5, start_s=0.36)
    assert cell.state == PlcState.FOLLOWING
    np.testing.assert_allclose(cell.twin.p, path(0.85)[0], atol=1e-6)
    assert cell.error == PlcError.NONE
    cell.assert_inside_limits()
    assert any(line.startswith("set-points again after") for line in cell.lines)


def test_quick_stop_is_latched_until_stop_then_hold():
    cell = Cell().enable().follow(ramp(0.2), 0.3).run(0.5)
    position = cell.twin.p.copy()
    for mode in (AxisMode.HOLD, AxisMode.FOLLOW):
        for _ in range(30):
            cell.tick(mode, position)
        assert (cell.state, cell.error, cell.enabled) == (PlcState.QUICK_STOP, PlcError.WATCHDOG, False)
    cell.tick(AxisMode.STOP)
    assert (cell.state, cell.error) == (PlcState.OFF, PlcError.NONE)
    cell.enable()
    cell.tick(AxisMode.FOLLOW, position)
    assert cell.state == PlcState.FOLLOWING
    np.testing.assert_allclose(cell.twin.p, position, atol=1e-12)


# ---------------------------------------------------------------- refusals and clamps


@pytest.mark.parametrize("field", ["position_m", "velocity_m_s", "force_n", "host_time_s", "period_s"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", [AxisMode.HOLD, AxisMode.FOLLOW])
def test_what_is_not_finite_is_refused_and_latched(field, value, mode):
    cell = Cell().enable().follow(ramp(0.1), 0.2)
    values = {"position_m": cell.twin.p, field: np.where(np.arange(6) == 4, value, 0.0)}
    if field.endswith("_s") and "velocity" not in field:
        values[field] = value
    cell.tick(mode, **values)
    for _ in range(20):
        cell.tick(AxisMode.HOLD)
    assert (cell.state, cell.error) == (PlcState.QUICK_STOP, PlcError.NOT_FINITE)
    cell.assert_inside_limits()


def test_stop_is_obeyed_whatever_the_set_points():
    cell = Cell().enable().tick(AxisMode.STOP, math.nan, math.inf, math.nan).run(0.1)
    assert (cell.state, cell.error) == (PlcState.OFF, PlcError.NONE)


@pytest.mark.parametrize("jump_m", [0.006, -0.006, 1.0, 1e308])
def test_a_jump_is_refused_and_latched(jump_m):
    cell = Cell().enable().follow(ramp(0.1), 0.2)
    before = ramp(0.1)(0.19)[0]
    cell.tick(AxisMode.FOLLOW, before + np.where(np.arange(6) == 2, jump_m, 0.0)).run(0.2)
    assert (cell.state, cell.error & PlcError.JUMP) == (PlcState.QUICK_STOP, PlcError.JUMP)
    cell.assert_inside_limits()


def test_the_first_set_point_must_be_where_the_axis_stands():
    cell = Cell().enable().tick(AxisMode.FOLLOW, MIDDLE_M + 0.01)
    assert (cell.state, cell.error) == (PlcState.QUICK_STOP, PlcError.JUMP)
    np.testing.assert_array_equal(cell.twin.p, np.full(6, MIDDLE_M))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_host_that_drives_on_over_the_end_is_stopped_at_it(sign):
    cell = Cell().enable().follow(ramp(0.4 * sign), 1.0)
    assert cell.error & PlcError.POSITION
    assert cell.state in (PlcState.FOLLOWING, PlcState.QUICK_STOP)
    cell.assert_inside_limits()
    edge = AXES.high_m[0] if sign > 0.0 else AXES.low_m[0]
    np.testing.assert_allclose(cell.twin.p, edge, atol=1e-4)


def test_speed_and_acceleration_are_clamped_and_said_so_until_the_next_command():
    cell = Cell().enable().tick(AxisMode.FOLLOW, MIDDLE_M).tick(AxisMode.FOLLOW, MIDDLE_M + 0.005, 1e308)
    assert cell.error == PlcError.VELOCITY | PlcError.ACCELERATION
    for _ in range(40):
        cell.tick(AxisMode.FOLLOW, MIDDLE_M + 0.005)
    assert (cell.state, cell.error) == (PlcState.FOLLOWING, PlcError.NONE)
    np.testing.assert_allclose(cell.twin.p, MIDDLE_M + 0.005, atol=1e-6)
    cell.assert_inside_limits()


@pytest.mark.parametrize("seed", range(3))
def test_no_command_at_all_gets_the_set_points_out_of_the_limits(seed):
    rng, cell = np.random.default_rng(seed), Cell().enable()
    target = np.full(6, MIDDLE_M)
    for _ in range(300):
        target = target + rng.uniform(-0.005, 0.005, 6) + 0.002 * np.sign(rng.standard_normal())
        speed = rng.choice([0.0, 0.3, -0.5, 1e6, -1e308]) * rng.uniform(-1.0, 1.0, 6)
        mode = rng.choice([AxisMode.FOLLOW] * 20 + [AxisMode.HOLD])
        cell.send(mode, target, speed, period_s=rng.choice([PERIOD_S, 0.0, -1.0, 1e300]))
        cell.run(CYCLE_S * rng.choice([1, 5, 5, 5, 12, 25]))
        if cell.state == PlcState.QUICK_STOP:
            cell.run(0.3).tick(AxisMode.STOP).run(0.1).enable()
        target = np.where(rng.random() < 0.1, cell.twin.p, target)
    cell.assert_inside_limits()


@pytest.mark.parametrize("others", [{"size": 8}, {"version": LAYOUT_VERSION + 1}, {"mode": 7}])
def test_another_layout_is_ignored_and_starves_the_watchdog(others):
    cell = Cell().enable().follow(ramp(0.1), 0.2)
    command = {"mode": AxisMode.FOLLOW, "position_m": MIDDLE_M} | others
    cell.tick(**command)
    assert (cell.state, cell.error) == (PlcState.FOLLOWING, PlcError.LAYOUT)
    for _ in range(12):
        cell.tick(**command)
    assert (cell.state, cell.error) == (PlcState.QUICK_STOP, PlcError.LAYOUT | PlcError.WATCHDOG)


def test_an_axis_that_does_not_follow_latches_and_is_named():
    plant = Masses()
    cell = Cell(plant).enable()
    plant.mass_kg = np.array([40.0, 40.0, 1e6, 40.0, 40.0, 40.0])
    cell.follow(ramp(0.3), 0.5)
    assert (cell.state, cell.error) == (PlcState.QUICK_STOP, PlcError.FOLLOWING)
    np.testing.assert_array_equal(
        cell.status["drive_status"][0] & DriveStatus.FAULT, np.where(np.arange(6) == 2, DriveStatus.FAULT, 0)
    )


# ---------------------------------------------------------------- drives


INERTIAS_KG = np.array([19.0, 25.0, 40.0, 70.0, 110.0, 170.0])


@pytest.mark.parametrize("delay", [0, 2, 3])
def test_drives_are_stable_over_the_whole_range_of_inertia(delay):
    """A step of load of 150 N is answered by a movement that dies out, without ringing on and without limits."""
    plant = Masses(INERTIAS_KG, delay=delay)
    cell = Cell(plant).enable()
    plant.load_n = 150.0
    largest = []
    for _ in range(30):
        deviation = []
        for _ in range(10):
            cell.tick(AxisMode.HOLD)
            deviation.append(np.abs(plant.position_m - cell.twin.p))
        largest.append(np.max(deviation, axis=0))
    assert np.max(largest[0]) < 1.5e-3
    assert np.max(largest[-1]) < 1e-6
    assert np.abs(plant.velocity_m_s).max() < 1e-6
    assert cell.state == PlcState.HOLDING


def lag_at_constant_speed(velocity_feedforward):
    plant = Masses(INERTIAS_KG)
    cell = Cell(plant)
    cell.enable()
    for tick in range(120):
        cell.tick(AxisMode.FOLLOW, *ramp(0.1)(tick * PERIOD_S), velocity_feedforward=velocity_feedforward)
    assert cell.state == PlcState.FOLLOWING
    return cell.status["setpoint_m"][0] - cell.status["position_m"][0]


def test_lag_without_velocity_feed_forward_is_speed_over_gain_and_far_below_with_it():
    np.testing.assert_allclose(lag_at_constant_speed(0.0), 0.1 / servo.POSITION_GAIN_1_S, rtol=0.02)
    assert np.abs(lag_at_constant_speed(1.0)).max() < 0.02 * 0.1 / servo.POSITION_GAIN_1_S


def test_force_feed_forward_takes_the_lag_of_acceleration_away():
    lags = []
    for share in (0.0, 1.0):
        plant = Masses(INERTIAS_KG)
        cell = Cell(plant).enable()
        path, rate = sine(), 2.0 * math.pi * 0.8
        for tick in range(200):
            p, v = path(tick * PERIOD_S)
            force = -share * INERTIAS_KG * rate**2 * (p - MIDDLE_M) * (tick > 100)
            cell.tick(AxisMode.FOLLOW, p, v, force)
        lags.append(np.abs(np.array(cell.status["setpoint_m"][0] - plant.position_m)).max())
    assert lags[1] < 0.3 * lags[0]


def test_forces_end_at_the_peak_torque_and_the_integral_does_not_wind_up():
    drives = servo.Drives(AXES, cx5130.PLANT_STEP_S)
    zeros = np.zeros(6)
    for _ in range(10_000):
        force = drives.step(zeros + 1.0, zeros, zeros, zeros, zeros)
    np.testing.assert_allclose(force, AXES.peak_force_n)
    assert AXES.peak_force_n[0] == pytest.approx(3.8 * 2.0 * math.pi / 0.010)
    assert np.abs(drives.step(zeros, zeros, zeros, zeros, zeros)).max() < 1e-9


# ---------------------------------------------------------------- ADS device and real time


def test_status_tells_that_the_task_runs_and_freezes_with_the_plc():
    cell = Cell().enable()
    before = int(cell.status["plc_cycle"][0])
    cell.run(0.02)
    assert int(cell.status["plc_cycle"][0]) == before + 10
    assert int(cell.status["seq_echo"][0]) == int(cell.command["seq"][0])
    cell.cx.device.state = ams.AdsState.STOP
    cell.run(0.02)
    assert int(cell.status["plc_cycle"][0]) == before + 10
    assert not cell.twin.powered


def site(address="127.0.0.1:0"):
    return schema.Site(
        name="test", machine="", ads=schema.Ads(ams_net_id="127.0.0.1.20.2", address=address),
        ring=schema.Ring("ring"), requests=schema.Requests("requests"), recording=schema.Recording("recordings"),
        virtual_cell=schema.VirtualCell(),
    )  # fmt: skip


def virtual_cell(given, plant):
    files = SiteFiles(given, MACHINE, "", "", Path(), Path())
    return VirtualCell(files, Fittings({}, []), plant)


async def test_run_serves_in_real_time_and_ends_at_rest(caplog):
    caplog.set_level("INFO")
    plant, stop = Masses(), asyncio.Event()
    task = asyncio.create_task(run(virtual_cell(site(), plant), site(), stop))
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    await asyncio.sleep(0.3)
    stop.set()
    await asyncio.wait_for(task, 10.0)
    assert 0.0 < plant.time_s <= loop.time() - begin_s  # follows the clock, never ahead of it
    assert "virtual CX5130 listens at 127.0.0.1:" in caplog.text
    assert "the machine stands" in caplog.text


async def test_run_on_a_port_in_use_is_a_plain_os_error():
    server = ams.Server(ams.Device("127.0.0.1.20.3", 851, []))
    host, port = await server.open("127.0.0.1", 0)
    with pytest.raises(OSError, match="address already in use"):
        at_port = site(f"{host}:{port}")
        await run(virtual_cell(at_port, Masses()), at_port, asyncio.Event())
    await server.close()


async def test_ticks_lose_no_period():
    ticks = clock.ticks(0.001)
    counts = [tick.skipped + 1 async for tick in _first(ticks, 50)]
    await ticks.aclose()
    assert min(counts) >= 1


async def _first(ticks, number):
    for _ in range(number):
        yield await anext(ticks)


def test_every_state_has_a_sentence():
    cell = Cell()
    for before, after in itertools.permutations(PlcState, 2):
        cell.twin.state = before
        journal = Journal(cell.twin)
        cell.twin.state, cell.twin.error, cell.twin.age_s = after, PlcError.JUMP, 0.05
        assert journal.line(cell.twin)
        assert journal.line(cell.twin) == ""
