"""The guard: whatever is proposed, what is sent is finite, inside the limits and on the path, or it is STOP."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.gateway.events import events
from controller.mechanism import kinematics
from controller.motion import trajectory
from controller.records import (
    AxisMode,
    Command,
    Fault,
    Limit,
    Mode,
    Output,
    RequestKind,
    Sample,
    Timing,
    channels,
    pack,
)
from controller.safety.faults import TRIPPING
from controller.safety.limits import Limits, guard, tell
from controller.safety.pacing import Trail, ahead, at_rest, follow_on
from controller.settings import load_machine, load_site
from controller.state import prepare
from tests.machines import CELLS, MACHINES, NOTHING, SIMULATION, Bench, ask
from tests.safety.bounds import GOOD, HELD, LIMITS, PERIOD_S, REST, N

POSE = 1e-3 * np.array([30.0, -40.0, 30.0, 100.0, 50.0, -80.0])
numbers = st.floats(allow_nan=True, allow_infinity=True)
ODD = [math.nan, math.inf, -math.inf, -0.0, 1e308, -1e308, 5e-324]


def differences(times: list[float], positions: list[np.ndarray]) -> tuple[float, float, float]:
    """Largest speed, acceleration, jerk of a row of positions at uneven times: Newton's divided differences."""
    level, orders = [np.asarray(p) for p in positions], []
    for order in (1, 2, 3):
        spans = np.array(times[order:]) - np.array(times[:-order])
        level = [order * (b - a) / span for a, b, span in zip(level[:-1], level[1:], spans, strict=True)]
        orders.append(float(np.max(np.abs(level))))
    return orders[0], orders[1], orders[2]


class Drive:
    """Legs that follow the guard, from rest."""

    def __init__(self, limits: Limits = LIMITS, position_m: np.ndarray = HELD.position_m) -> None:
        self.limits, self.last = limits, replace(HELD, position_m=position_m)
        self.trail: Trail = at_rest(position_m, PERIOD_S)
        self.times = [-3.0 * PERIOD_S, -2.0 * PERIOD_S, -PERIOD_S, 0.0]
        self.sent: list[np.ndarray] = [position_m] * 4
        self.acted: list[Limit] = []

    def ask(self, position_m: np.ndarray, velocity_m_s: np.ndarray = REST, elapsed_s: float = PERIOD_S) -> Command:
        proposed = Command(self.last.seq + 1, AxisMode.FOLLOW, position_m, velocity_m_s, np.zeros_like(position_m))
        sent, faults, acted = guard(self.limits, Fault.NONE, self.last, self.trail, proposed, elapsed_s)
        self.acted.append(acted)
        if sent.axis_mode is AxisMode.FOLLOW:
            assert faults is Fault.NONE
            behind = sent.position_m is not position_m
            self.last, self.trail = sent, follow_on(self.trail, sent.position_m, elapsed_s, behind)
            self.times.append(self.times[-1] + elapsed_s)
            self.sent.append(sent.position_m)
        return sent

    def require_inside(self) -> None:
        speed, acceleration, jerk = differences(self.times, self.sent)
        assert speed <= self.limits.speed_m_s[0] * (1 + 1e-9)
        assert acceleration <= self.limits.acceleration_m_s2[0] * (1 + 1e-9)
        assert jerk <= self.limits.jerk_m_s3[0] * (1 + 1e-6)
        assert np.all(np.array(self.sent) >= np.array(self.limits.length_min_m) - 1e-12)
        assert np.all(np.array(self.sent) <= np.array(self.limits.length_max_m) + 1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_long_wild_demands_keep_every_limit_and_never_end_in_a_stop_on_even_ticks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drive = Drive(position_m=rng.uniform(0.76, 1.09, N))
    position, velocity = drive.sent[-1], REST
    for _ in range(300):
        if rng.random() < (0.02, 0.1, 1.0, 0.04)[seed % 4]:
            position = rng.uniform(0.5, 1.3, N) if seed < 6 else rng.choice([1e308, -1e308, 0.9], N)
            velocity = rng.uniform(-0.7, 0.7, N)
        assert drive.ask(position, velocity).axis_mode is AxisMode.FOLLOW
    drive.require_inside()


@pytest.mark.parametrize("seed", range(4))
def test_skipped_ticks_break_no_limit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drive = Drive(position_m=rng.uniform(0.76, 1.09, N))
    position = drive.sent[-1]
    for _ in range(150):
        if rng.random() < 0.1:
            position = rng.uniform(0.5, 1.3, N)
        if drive.ask(position, elapsed_s=float(rng.choice([0.01, 0.02, 0.03, 0.1]))).axis_mode is AxisMode.STOP:
            break
    drive.require_inside()


@pytest.mark.parametrize("elapsed_s", [1e-3, 0.01, 0.1, 1.0, 1e3, 1e9])
def test_any_elapsed_time(elapsed_s: float) -> None:
    for target in (0.75, 1.10, 1.5, -1e308):
        drive = Drive()
        for _ in range(20):
            drive.ask(np.full(N, target), elapsed_s=elapsed_s)
        drive.require_inside()


@pytest.mark.parametrize("target", [0.9, 1.0, 1.095, 1.10, 1.2])
def test_a_step_is_reached_without_going_past_it_and_then_nothing_acts(target: float) -> None:
    drive = Drive()
    for _ in range(200):
        drive.ask(np.full(N, target))
    end = min(target, 1.10)
    positions = np.array(drive.sent)
    np.testing.assert_allclose(positions[-1], end, rtol=0, atol=1e-9)
    past = (positions - end) * np.sign(end - 0.95)
    assert past.max() < 2e-4
    assert drive.acted[-1] is (Limit.STROKE if target > 1.10 else Limit.NONE)
    drive.require_inside()


def test_the_stop_before_the_end_of_a_stroke_is_as_far_as_braking_takes() -> None:
    # against a fine integration: full jerk to full deceleration, held, then taken back so that both end together
    for v, a in ((0.5, 0.0), (0.3, 2.0), (0.05, -1.0), (0.2, -4.0), (0.4, 4.0), (0.01, 0.0), (-0.1, 4.0)):
        most, jerk, h = 4.0, 100.0, 1e-5
        x, farthest, rate, change = 0.0, 0.0, v, a
        for _ in range(60000):
            # braking harder is possible as long as the rate that taking it back will cost is still there
            harder = rate > 0.5 * change**2 / jerk or change > 0.0
            change = max(change - jerk * h, -most) if harder else min(change + jerk * h, 0.0)
            rate += change * h
            x += rate * h
            farthest = max(farthest, x)
        assert ahead(v, a, most, jerk) == pytest.approx(farthest, abs=2e-5 + 2e-3 * farthest)


def test_a_leg_outside_its_stroke_may_come_back_but_not_go_farther() -> None:
    outside = HELD.position_m.copy()
    outside[2] = 1.101
    drive = Drive(position_m=outside)
    for _ in range(40):
        sent = drive.ask(outside + 0.01)
        assert sent.axis_mode is AxisMode.FOLLOW
        assert sent.position_m[2] <= 1.101
    for _ in range(80):
        drive.ask(HELD.position_m)
    np.testing.assert_allclose(drive.sent[-1], HELD.position_m, rtol=0, atol=1e-9)


def test_where_a_leg_can_no_longer_stop_it_is_stop_and_a_fault() -> None:
    trail = Trail(np.full(N, 1.099), np.full(N, 0.5), REST, PERIOD_S, PERIOD_S)
    sent, faults, limits = guard(LIMITS, Fault.NONE, HELD, trail, HELD, PERIOD_S)
    assert (sent.axis_mode, faults, limits) == (AxisMode.STOP, Fault.STROKE, Limit.STROKE)
    nowhere = Trail(np.full(N, np.nan), REST, REST, PERIOD_S, PERIOD_S)
    assert guard(LIMITS, Fault.NONE, HELD, nowhere, HELD, PERIOD_S)[0].axis_mode is AxisMode.STOP


def test_a_proposal_inside_all_limits_passes_untouched() -> None:
    proposed = Command(2, AxisMode.FOLLOW, HELD.position_m + 5e-5, np.full(N, 0.01), np.full(N, 150.0))
    sent, faults, limits = guard(LIMITS, Fault.NONE, HELD, at_rest(HELD.position_m, PERIOD_S), proposed, PERIOD_S)
    assert (faults, limits) == (Fault.NONE, Limit.NONE)
    assert sent is proposed


def test_a_smooth_motion_at_the_limits_is_never_touched_however_uneven_the_ticks() -> None:
    # jerk of 99 m/s³ up to 3.9 m/s², in closed form, there and back
    rng = np.random.default_rng(5)
    drive, t = Drive(), 0.0

    def position(t: float) -> float:
        # amplitude and frequency with 0.99 of acceleration and jerk: w = jerk / acceleration
        w = 99.0 / 3.96
        ramp = 1.0 - math.exp(-((t / 0.5) ** 4))
        return 0.95 + 3.5 / w**2 * ramp * math.sin(w * t)

    for _ in range(300):
        step = float(rng.choice([0.01, 0.01, 0.01, 0.02, 0.03]))
        t += step
        rate = (position(t + 1e-6) - position(t - 1e-6)) / 2e-6
        drive.ask(np.full(N, position(t)), np.full(N, rate), step)
    assert set(drive.acted) == {Limit.NONE}
    drive.require_inside()


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault & TRIPPING])
def test_a_tripping_fault_sends_stop_whatever_was_proposed(fault: Fault) -> None:
    for mode in AxisMode:
        proposed = Command(2, mode, HELD.position_m + 1e-4, np.full(N, 0.01), np.full(N, 100.0))
        sent, _, _ = guard(LIMITS, fault, HELD, at_rest(HELD.position_m, PERIOD_S), proposed, PERIOD_S)
        assert sent.axis_mode is AxisMode.STOP
        assert sent.seq == 2
        assert not sent.velocity_m_s.any()
        assert not sent.force_n.any()
        np.testing.assert_array_equal(sent.position_m, proposed.position_m)


def test_a_proposal_that_is_no_number_sends_the_last_position_with_stop() -> None:
    for name in ("position_m", "velocity_m_s", "force_n"):
        for value in (math.nan, math.inf, -math.inf):
            values = getattr(HELD, name).copy()
            values[4] = value
            proposed = replace(HELD, seq=9, **{name: values})
            sent, faults, limits = guard(LIMITS, Fault.NONE, HELD, at_rest(REST, 0.01), proposed, PERIOD_S)
            assert (sent.seq, sent.axis_mode, faults) == (9, AxisMode.STOP, Fault.PROPOSAL_NOT_FINITE)
            assert limits is Limit.NONE
            np.testing.assert_array_equal(sent.position_m, HELD.position_m)


def test_a_step_too_far_is_shortened_for_all_legs_alike() -> None:
    direction = np.array([1.0, -0.5, 0.25, 0.0, 0.1, -0.2])
    drive = Drive()
    for _ in range(12):
        drive.ask(HELD.position_m + 0.05 * direction)
        moved = drive.sent[-1] - HELD.position_m
        assert Limit.JERK in drive.acted[0]
        np.testing.assert_allclose(moved, moved[0] * direction, rtol=0, atol=1e-15)
    assert drive.sent[4][0] - 0.95 == pytest.approx(100.0 * PERIOD_S**3)  # the jerk alone, in the first step


def test_a_leg_at_its_end_stops_all_legs_on_the_path_and_they_do_not_bend_round_it() -> None:
    direction = np.array([1.0, 0.4, -0.3, 0.2, 0.0, -0.6])
    drive = Drive(position_m=HELD.position_m + 0.10 * direction)
    for k in range(150):
        drive.ask(HELD.position_m + (0.10 + 0.001 * k) * direction, 0.1 * direction)
        along = (drive.sent[-1] - HELD.position_m)[0]
        np.testing.assert_allclose(drive.sent[-1], HELD.position_m + along * direction, rtol=0, atol=1e-9)
    assert drive.sent[-1][0] == pytest.approx(1.10, abs=1e-6)
    assert Limit.STROKE in drive.acted[-1]
    drive.require_inside()


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("leg", range(N))
def test_a_demand_that_drives_on_towards_an_end_is_braked_in_time_though_it_is_still_inside(
    leg: int, sign: float
) -> None:
    # a smooth run-up to 0.4 m/s, each set-point of which is inside all limits; the other legs go a little the other way
    way = np.full(N, -0.1 * sign)
    way[leg] = sign
    drive, along, rate = Drive(position_m=np.full(N, 0.925)), 0.0, 0.0
    for k in range(80):
        rate = 0.2 * (1.0 - math.cos(math.pi * min(k / 30.0, 1.0)))
        along += rate * PERIOD_S
        if along > 0.174:
            break
        assert drive.ask(0.925 + along * way, rate * way).axis_mode is AxisMode.FOLLOW
    first = next(acted for acted in drive.acted if acted)
    assert first is Limit.STROKE
    for _ in range(60):
        assert drive.ask(0.925 + along * way, rate * way).axis_mode is AxisMode.FOLLOW
    drive.require_inside()
    assert np.all(np.abs(drive.sent[-1] - (0.925 + along * way)) < 1e-3)


def test_legs_that_must_go_different_ways_still_keep_every_limit() -> None:
    drive = Drive()
    for _ in range(12):
        drive.ask(HELD.position_m + 0.1 * np.array([1.0, 0, 0, 0, 0, 0]), 0.3 * np.array([1.0, 0, 0, 0, 0, 0]))
    for _ in range(150):
        drive.ask(HELD.position_m + 0.05 * np.array([0.0, 1, 0, -1, 0, 0]))
    drive.require_inside()
    np.testing.assert_allclose(drive.sent[-1], HELD.position_m + np.array([0, 0.05, 0, -0.05, 0, 0]), rtol=0, atol=1e-9)


def test_the_rates_sent_with_a_shortened_step_are_those_of_the_set_points() -> None:
    drive = Drive()
    rates = [drive.ask(np.full(N, 1.05)).velocity_m_s[0] for _ in range(60)]
    between = np.gradient(np.array(drive.sent[4:])[:, 0], PERIOD_S)
    np.testing.assert_allclose(rates[1:-1], between[1:-1], rtol=0, atol=0.5 * 100.0 * PERIOD_S**2)


@pytest.mark.parametrize("name", ["6-upru", "6-ups", "6-uhu"])
def test_a_demand_of_three_times_the_possible_acceleration_keeps_the_platform_on_its_line(name: str) -> None:
    """Tolerance: 0.5 mm and 1 mrad beside a line of 60 mm, at most 5 mm past its end."""
    setup = prepare(load_machine(MACHINES / f"{name}.toml")[0], load_site(SIMULATION).site)
    n, limits, period_s = N, setup.limits, setup.period_s

    def legs(x: np.ndarray, xd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        q, qd, qdd, twist = np.zeros((4, n))
        kinematics.axis_rates(setup.machine, x, xd, np.zeros(6), twist, q, qd, qdd)
        return q, qd

    for direction in ([1.0, 0.5, 0.3, 0, 0, 0], [0.6, 0.5, 0.3, 1.0, 0.5, -0.7], [0, 0, 1.0, 0, 0, 0]):
        line = np.array(direction) / np.linalg.norm(direction[:3])
        most = 3.0 * np.min(np.array(limits.acceleration_m_s2) / np.abs(legs(setup.home, line)[1]).max())
        half_s, drive = math.sqrt(0.06 / most), Drive(limits, legs(setup.home, 0.0 * line)[0])
        x, beside, along = setup.home.copy(), [], []
        for k in range(1, 120):
            t, left = k * period_s, max(2.0 * half_s - k * period_s, 0.0)
            way = 0.5 * most * t * t if t < half_s else 0.06 - 0.5 * most * left * left
            drive.ask(*legs(setup.home + way * line, most * min(t, left) * line))
            found, twist = np.empty(6), np.zeros(n)
            assert kinematics.forward(setup.machine, drive.sent[-1], x, twist, found) >= 0
            x = found
            along.append(float((x - setup.home) @ line / (line @ line)))
            beside.append(x - setup.home - along[-1] * line)
        assert Limit.ACCELERATION in drive.acted[1]
        assert np.abs(np.array(beside)[:, :3]).max() < 5e-4
        assert np.abs(np.array(beside)[:, 3:]).max() < 1e-3
        assert max(along) < 0.065
        assert along[-1] == pytest.approx(0.06, abs=1e-9)
        assert drive.acted[-1] is Limit.NONE
        acts = [bool(acted) for acted in drive.acted]
        changes = sum(one is not other for one, other in itertools.pairwise(acts))
        assert changes <= 2  # it begins and it ends, it does not chatter
        drive.require_inside()


def entries(outputs: list[Output], sample: Sample) -> list[tuple[str, str]]:
    """What an operator is told of limits, through rows of the recording."""
    names = [channel.name for channel in channels(6, CELLS)]
    rows = []
    for output in outputs:
        rows.append(np.empty(len(names)))
        pack(rows[-1], sample, NOTHING, output, Timing(0.0, 0.0, 0.0, 0, 0))
    found = [event for before, row in itertools.pairwise(rows) for event in events(before, row, names)]
    return [(event.kind, event.code) for event in found if event.kind.startswith("limit")]


def test_a_thousand_set_points_out_of_range_are_one_event_in_and_one_out() -> None:
    bench = Bench()
    bench.ready()
    beyond = bench.lengths_m + np.array([0.0, 0.5, 0, 0, 0, 0])
    drive, acted_s, outputs = Drive(bench.setup.limits, bench.lengths_m), {}, []
    for k in range(1200):
        command = drive.ask(beyond if 0 < k <= 1000 else bench.lengths_m)
        acted_s, limits = tell(acted_s, drive.acted[-1], k * PERIOD_S)
        outputs.append(replace(bench.outputs[-1], command=command, limits=limits))
    found = entries(outputs, replace(GOOD, **bench.sensors))
    assert found.count(("limit_entered", "STROKE")) == found.count(("limit_left", "STROKE")) == 1
    for limit in (Limit.SPEED, Limit.ACCELERATION, Limit.JERK):  # on the way there, and on the way back
        assert found.count(("limit_entered", limit.name)) == found.count(("limit_left", limit.name)) == 2


# narrower limits, each of which this sine and no other limit crosses again and again
SINE = trajectory.Sine(Bench().setup.home, np.array([0, 0, 0.02, 0, 0, 0]), 2.0 * math.pi * 2.0, 0.0)
NARROW: dict[Limit, dict[str, float]] = {
    Limit.STROKE: {"length_max_m": float(Bench().lengths_m.max()) + 0.008},
    Limit.SPEED: {"speed_m_s": 0.1},
    Limit.ACCELERATION: {"acceleration_m_s2": 1.2},
    Limit.JERK: {"jerk_m_s3": 20.0},
    Limit.FORCE: {"force_n": 240.0},
    Limit.TORQUE: {"torque_force_n": 240.0},
}


@pytest.mark.parametrize("limit", NARROW, ids=lambda limit: limit.name)
@pytest.mark.parametrize("noise_m", [0.0, 1e-4])
def test_a_motion_that_sways_across_a_limit_is_one_event_in_and_one_out(limit: Limit, noise_m: float) -> None:
    setup = Bench().setup
    wide = {name: [1e9] * N for name in ("speed_m_s", "acceleration_m_s2", "jerk_m_s3", "force_n", "torque_force_n")}
    narrow = {name: [value] * N for name, value in NARROW[limit].items()}
    bench = Bench(setup._replace(limits=setup.limits._replace(**wide | narrow)))
    bench.ready()
    rng = np.random.default_rng(3)
    bench.state = replace(bench.state, mode=Mode.ACTIVE)
    for k in range(300):
        centre = SINE.centre + noise_m * rng.uniform(-1.0, 1.0) * (k < 200) * np.array([1.0, 0, 1, 0, 0, 0])
        ebb = SINE.amplitude * max(1.0 - k / 200.0, 0.0)
        bench.state = replace(bench.state, plan=SINE._replace(centre=centre, amplitude=ebb))
        bench.step()
    assert bench.outputs[-1].mode is Mode.ACTIVE
    found = entries(bench.outputs, replace(GOOD, **bench.sensors))
    assert found.count(("limit_entered", limit.name)) == found.count(("limit_left", limit.name)) == 1
    assert bench.outputs[-1].limits is Limit.NONE


def test_a_limit_is_told_for_half_a_second_after_it_acted_last() -> None:
    acted_s: dict[Limit, float] = {}
    for at_s, acted, expected in (
        (1.0, Limit.NONE, Limit.NONE),
        (2.0, Limit.SPEED | Limit.STROKE, Limit.SPEED | Limit.STROKE),
        (2.25, Limit.SPEED, Limit.SPEED | Limit.STROKE),
        (2.5, Limit.NONE, Limit.SPEED | Limit.STROKE),
        (math.nextafter(2.5, 3.0), Limit.FORCE, Limit.SPEED | Limit.FORCE),
        (2.75, Limit.NONE, Limit.SPEED | Limit.FORCE),
        (2.875, Limit.NONE, Limit.FORCE),
        (4.0, Limit.NONE, Limit.NONE),
        (4.25, Limit.STROKE, Limit.STROKE),
    ):
        acted_s, limits = tell(acted_s, acted, at_s)
        assert limits is expected
    assert set(acted_s) == {Limit.STROKE}  # nothing is remembered for ever


def test_no_change_of_mode_makes_a_step_of_more_than_a_hundredth_of_the_range() -> None:
    bench = Bench()
    bench.ready()
    bench.step(ask(RequestKind.MOVE, bench.setup.home + POSE))
    bench.run(40)
    bench.step(ask(RequestKind.STOP))
    bench.run(80)
    bench.step(ask(RequestKind.SINE, 0.2 * POSE, frequency_hz=0.5))
    bench.run(130)
    bench.step(ask(RequestKind.OFF))
    bench.run(80)
    bench.ready()
    limits = bench.setup.limits
    stroke = np.array(limits.length_max_m) - np.array(limits.length_min_m)
    changes = 0
    for before, after in zip(bench.outputs, bench.outputs[1:], strict=False):
        if before.mode is after.mode:
            continue
        changes += 1
        assert np.all(np.abs(after.command.position_m - before.command.position_m) < 0.01 * stroke)
        if Mode.OFF in (before.mode, after.mode):
            continue
        speed = np.abs(after.command.velocity_m_s - before.command.velocity_m_s)
        assert np.all(speed <= np.array(limits.acceleration_m_s2) * bench.setup.period_s)
    assert changes >= 6


def wild(low: float, high: float) -> st.SearchStrategy[np.ndarray]:
    return st.lists(numbers | st.sampled_from(ODD) | st.floats(low, high), min_size=N, max_size=N).map(np.array)


asked = st.tuples(wild(0.7, 1.2), wild(-0.6, 0.6), wild(-800.0, 800.0), st.sampled_from([0.01, 0.01, 0.02, 0.5]))


@settings(max_examples=150, deadline=None)
@given(st.lists(asked, min_size=1, max_size=12), st.sampled_from(AxisMode))
def test_what_is_sent_is_finite_and_inside_whatever_was_proposed(rows: list, mode: AxisMode) -> None:
    drive = Drive()
    for position, velocity, force, elapsed_s in rows:
        proposed = Command(2, mode, position, velocity, force)
        sent, faults, _ = guard(LIMITS, Fault.NONE, drive.last, drive.trail, proposed, elapsed_s)
        finite = all(np.isfinite(part).all() for part in (position, velocity, force))
        assert (Fault.PROPOSAL_NOT_FINITE in faults) == (not finite)
        assert all(np.isfinite(part).all() for part in (sent.position_m, sent.velocity_m_s, sent.force_n))
        assert np.all(np.abs(sent.force_n) <= LIMITS.force_n)
        assert np.all(np.abs(sent.velocity_m_s) <= np.array(LIMITS.speed_m_s) + 1e-12)
        if not finite:
            assert sent.axis_mode is AxisMode.STOP
        elif mode not in (AxisMode.FOLLOW, AxisMode.FORCE):
            assert sent.axis_mode is mode
            assert not sent.velocity_m_s.any()
            assert not sent.force_n.any()
        elif sent.axis_mode is AxisMode.STOP:
            assert faults is Fault.STROKE
        else:
            assert sent.axis_mode is mode
            drive.trail = follow_on(drive.trail, sent.position_m, elapsed_s, sent.position_m is not position)
            drive.times.append(drive.times[-1] + elapsed_s)
            drive.sent.append(sent.position_m)
    drive.require_inside()
