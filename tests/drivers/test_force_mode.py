"""Set-points of force: what PLC and drives make of them, and the whole loop with plants that are not the model."""

import math

import numpy as np
import pytest

from benchmarks import force_control
from benchmarks.system import World, rms, run
from controller import schema
from controller.records import AxisMode, Mode, RequestKind, Verdict
from controller.settings import load_machine
from drivers.exchange import COMMAND, LAYOUT_VERSION, PlcError, PlcState
from drivers.virtual.plc_program import PlcTwin, axes_of
from drivers.virtual.servo import Drives
from tests.machines import MACHINES

MACHINE = load_machine(MACHINES / "6-upru.toml")[0]
AXES = axes_of(MACHINE)
CYCLE_S, TICK_CYCLES = 0.002, 5


class Axes6:
    """The PLC program with axes that this test moves by hand."""

    def __init__(self):
        self.twin = PlcTwin(AXES, CYCLE_S)
        self.command = np.zeros(1, COMMAND)
        self.command["size"], self.command["version"], self.command["period_s"] = COMMAND.itemsize, LAYOUT_VERSION, 0.01
        self.command["velocity_feedforward"] = 1.0
        self.position_m, self.velocity_m_s = np.full(6, 0.93), np.zeros(6)
        self.force_n = np.array([80.0, -30.0, 20.0, 60.0, 0.0, -5.0])
        self.cycles = 0

    def send(self, mode, position_m=None, velocity_m_s=0.0, force_n=0.0):
        self.command["seq"] += 1
        self.command["mode"], self.command["host_time_s"] = mode, self.cycles * CYCLE_S
        self.command["position_m"] = self.position_m if position_m is None else position_m
        self.command["velocity_m_s"], self.command["force_n"] = velocity_m_s, force_n

    def cycle(self, count=1):
        for _ in range(count):
            now_s = self.cycles * CYCLE_S
            self.cycles += 1
            self.twin.step(now_s, self.command[0].copy(), self.position_m, self.velocity_m_s, force_n=self.force_n)
        return self.twin

    def force(self, force_n=0.0, ticks=1, **more):
        for _ in range(ticks):
            self.send(AxisMode.FORCE, force_n=force_n, **more)
            self.cycle(TICK_CYCLES)
        return self.twin


@pytest.fixture
def axes():
    made = Axes6()
    while not made.twin.powered:
        made.send(AxisMode.HOLD)
        made.cycle(TICK_CYCLES)
    return made


# ---------------------------------------------------------------- the PLC program


def test_the_first_force_is_the_one_at_hand_and_goes_on_straight(axes):
    wanted = np.array([100.0, 100.0, -100.0, 0.0, 50.0, 10.0])
    axes.send(AxisMode.FORCE, force_n=wanted)
    seen = [axes.cycle().f.copy() for _ in range(TICK_CYCLES)]
    assert axes.twin.forcing and axes.twin.state is PlcState.FOLLOWING
    for share, force_n in zip(np.linspace(0.2, 1.0, TICK_CYCLES), seen, strict=True):
        assert force_n == pytest.approx(axes.force_n + share * (wanted - axes.force_n), abs=1e-9)


def test_force_is_clamped_to_peak_and_to_what_the_leg_may_bear(axes):
    twin = axes.force(1e5, ticks=3)
    assert twin.f == pytest.approx(np.minimum(AXES.peak_force_n, 700.0))
    assert AXES.force_n == pytest.approx(np.minimum(AXES.peak_force_n, MACHINE.legs.limits.force_n))


@pytest.mark.parametrize(
    ("change", "bits"),
    [
        (lambda a: a.velocity_m_s.__setitem__(2, 1.02 * AXES.speed_m_s[2]), PlcError.FOLLOWING | PlcError.VELOCITY),
        (lambda a: a.position_m.__setitem__(4, AXES.high_m[4] + 1e-4), PlcError.FOLLOWING),
        (lambda a: a.position_m.__setitem__(1, 0.93 + 0.021), PlcError.FOLLOWING),
    ],
)
def test_what_no_position_loop_looks_after_stops_in_position_mode(axes, change, bits):
    axes.force(30.0, ticks=5)
    sent = axes.position_m.copy()
    change(axes)
    twin = axes.cycle()
    assert twin.state is PlcState.QUICK_STOP and not twin.forcing
    assert twin.error & bits == bits
    assert np.abs(twin.p_before - axes.position_m).max() < 1e-12  # from where the axes are
    twin = axes.force(30.0, ticks=3, position_m=sent)
    assert twin.state is PlcState.QUICK_STOP and not twin.forcing  # latched
    assert twin.error & PlcError.FOLLOWING


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["position_m", "velocity_m_s", "force_n"])
def test_what_is_not_finite_never_becomes_a_force(axes, field, value):
    axes.force(30.0, ticks=5)
    axes.velocity_m_s[:] = 0.05
    bad = axes.command[field][0].copy()
    bad[3] = value
    twin = axes.force(**{"force_n": 30.0, field: bad})
    assert twin.state is PlcState.QUICK_STOP and twin.error & PlcError.NOT_FINITE and not twin.forcing
    assert np.isfinite(twin.f).all() and np.abs(twin.f).max() <= 80.0


def test_a_silent_host_is_held_and_then_stopped_in_position_mode(axes):
    axes.force(30.0, ticks=5)
    states, forcing = [], []
    for _ in range(60):
        twin = axes.cycle()
        states.append(twin.state.name)
        forcing.append(twin.forcing)
    late, stop = states.index("LATE"), states.index("QUICK_STOP")
    # the last command is five cycles old already
    assert (late + TICK_CYCLES) * CYCLE_S == pytest.approx(0.040, abs=CYCLE_S)
    assert 0.100 < (stop + TICK_CYCLES) * CYCLE_S <= 0.104
    assert all(forcing[:late]) and not any(forcing[late:])


def test_a_host_that_returns_in_time_goes_on_with_the_force_at_hand(axes):
    axes.force(30.0, ticks=5)
    axes.cycle(25)
    assert axes.twin.state is PlcState.LATE
    axes.force_n = np.full(6, 44.0)
    axes.send(AxisMode.FORCE, force_n=30.0)
    twin = axes.cycle()
    assert twin.forcing and twin.f == pytest.approx(44.0 - 0.2 * 14.0)


@pytest.mark.parametrize("mode", [AxisMode.HOLD, AxisMode.STOP, AxisMode.FOLLOW])
def test_another_mode_takes_over_from_where_the_axes_are(axes, mode):
    axes.force(30.0, ticks=5)
    axes.position_m, axes.velocity_m_s = axes.position_m + 0.003, np.full(6, 0.1)
    axes.send(mode)
    twin = axes.cycle()
    assert not twin.forcing
    assert twin.p_before == pytest.approx(axes.position_m, abs=1e-12)
    assert twin.v_before == pytest.approx(axes.velocity_m_s, abs=1e-12)


# ---------------------------------------------------------------- drives and cylinders


@pytest.mark.parametrize("feedforward", [0.0, 0.5, 1.0])
def test_the_loops_of_a_drive_take_over_without_a_step(feedforward):
    drives = Drives(AXES, 0.0005)
    drives.velocity_feedforward = feedforward
    position_m, velocity_m_s, zero = np.full(6, 0.93), np.full(6, 0.2), np.zeros(6)
    wanted = np.array([100.0, -50.0, 3.0, 0.0, 250.0, -1e6])
    drives.forcing = True
    force_n = drives.step(position_m, zero, wanted, position_m + 0.01, velocity_m_s).copy()
    assert force_n == pytest.approx(np.maximum(wanted, -AXES.peak_force_n))
    drives.forcing = False
    after_n = drives.step(position_m, velocity_m_s, zero, position_m, velocity_m_s).copy()
    assert after_n == pytest.approx(force_n)
    assert drives.step(position_m, velocity_m_s, zero, position_m, velocity_m_s) == pytest.approx(
        force_n, abs=0.1 * AXES.peak_force_n.max()
    )


@pytest.mark.parametrize("machine", ["6-ups", "3-ups-s"])
def test_no_step_of_force_into_and_out_of_the_mode(machine):
    """The cycle of the change looks like those of the braking that it begins, with motors and with cylinders."""
    world = force_control.world(machine, "force")
    force, forcing = [], []
    watch = world.watch

    def look():
        watch()
        force.append(world.cx.drives.force_n.copy())
        forcing.append(world.cx.twin.forcing)

    force_control.ready(world)
    world.watch = look
    for _ in range(30):
        world.step()
    target = world.setup.home + np.array([0.0, 0.0, 0.0, 0.08, 0.05, 0.0])
    assert world.ask(RequestKind.MOVE, target).verdict is Verdict.ACCEPTED
    for _ in range(25):
        world.step()
    left = len(force)
    assert np.abs(world.plant.velocity_m_s).max() > 0.01
    for _ in range(8):
        world.silent()  # held in position mode after 40 ms
    change = np.abs(np.diff(np.array(force), axis=0)).max(axis=1)
    leave = forcing.index(False)
    assert leave >= left
    assert change[leave - 1] <= 1.2 * change[leave : leave + 10].max()  # of the braking that follows
    assert world.cx.twin.state is PlcState.LATE
    assert np.abs(world.plant.velocity_m_s).max() < 0.01


def test_cylinders_put_in_what_they_are_asked_for():
    world = force_control.world("3-ups-s", "force")
    force_control.ready(world)
    errors = []
    watch = world.watch

    def look():
        watch()
        errors.append(world.cx.drives.force_n - world.cx.twin.f)

    world.watch = look
    world.order(RequestKind.SINE, np.array([0.0, 0.0, 0.0, 0.08, 0.08, 0.08]), frequency_hz=0.6)
    for _ in range(200):
        world.step()
    assert rms(np.array(errors)) < 6.0  # of some 200 N, with pistons at 0.2 m/s and valves of 2 ms
    assert abs(np.mean(errors)) < 1.0


# ---------------------------------------------------------------- the whole loop


def sine_errors(world: World, ticks=250):
    force_control.ready(world)
    room = np.array([0.03, 0.03, 0.02, 0.08, 0.06, 0.06]) * force_control.FREE[int(world.setup.machine.platform[0])]
    world.order(RequestKind.SINE, room, frequency_hz=0.5)
    true, wanted = [], []
    for _ in range(ticks):
        output = world.step()
        assert not output.faults
        true.append(world.plant.pose())
        wanted.append(output.reference.pose)
    return np.abs(np.array(true) - np.array(wanted))


@pytest.mark.parametrize(("machine", "most_m", "most_rad"), [("6-upru", 1.5e-3, 3e-3), ("6-ups", 2e-3, 12e-3)])
def test_a_plant_that_is_not_the_model_is_tracked(machine, most_m, most_rad):
    errors = sine_errors(force_control.world(machine, "force"))
    assert errors[:, :3].max() < most_m
    assert errors[:, 3:].max() < most_rad


def test_friction_compensation_helps_cylinders():
    unknown = sine_errors(force_control.world("3-ups-s", "force"))
    known = sine_errors(force_control.world("3-ups-s", "force", friction=True))
    assert rms(known[50:]) < 0.5 * rms(unknown[50:])


def test_a_push_is_borne_and_forgotten():
    most_m, left_m = force_control.deflection(force_control.world("6-ups", "force"))
    assert 1e-4 < most_m < 2e-3
    assert left_m < 0.25 * most_m


def test_redundant_drives_do_not_fight_over_a_wrong_geometry():
    cell = {"geometry_error_m": 2e-4}
    half_n, end_n, output = force_control.standing(force_control.world("2-upr-2-rpu", "force", cell))
    assert output.mode is Mode.READY and not output.faults
    assert end_n < 1.1 * half_n < 100.0
    _, wound_n, _ = force_control.standing(force_control.world("2-upr-2-rpu", "position", cell))
    assert wound_n > 3.0 * end_n


def test_the_processes_run_the_demo_with_set_points_of_force():
    def change(site: str) -> str:
        return site.replace("[control]\n", '[control]\nlaw = "force"\nstart_tolerance_m = 1e-3\n')

    made = run(7.0, change)
    assert made.summary["faults"] == []
    modes = made.columns["command_axis_mode"]
    assert np.sum(modes == AxisMode.FORCE) > 300
    moving = made.columns["mode"] == Mode.ACTIVE
    assert moving.sum() > 100 and (modes[moving] == AxisMode.FORCE).all()
    # read once more before the tick, where the computer is not late with it; else no age is below 7 ms
    assert np.quantile(made.columns["age_s"][modes == AxisMode.FORCE], 0.1) < 0.006


def test_cylinders_are_told_apart_from_motors():
    axes = axes_of(load_machine(MACHINES / "3-ups-s.toml")[0], schema.Hydraulics(supply_pa=15e5))
    assert (axes.force_n == axes.peak_force_n).all() and (axes.peak_force_n < 3000.0).all()
