"""Every boundary on both sides: exactly at it nothing happens, one float beyond it does."""

import math
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from controller import schema
from controller.cycle import cycle
from controller.motion import trajectory
from controller.records import (
    NO_REFUSAL,
    RESERVES,
    AxisMode,
    Command,
    Fault,
    Limit,
    Link,
    Mode,
    Obstacle,
    Refusal,
    RequestKind,
    Verdict,
)
from controller.records import POSE as NAMES
from controller.requests import pace
from controller.safety.faults import FAULTS, Effect
from controller.safety.limits import (
    CONDITION_SHARE,
    FORCE_MARGIN,
    POSE_MARGIN,
    RISE_S,
    SPEED_MARGIN,
    STROKE_MARGIN_M,
    SWING_MARGIN_RAD,
    build_limits,
    guard,
    judge_motion,
    judge_sample,
)
from controller.safety.pacing import Trail, at_rest
from controller.safety.supervisor import REASONS, Condition, admit, explain, next_mode
from controller.settings import load_machine, load_site
from tests.machines import MACHINES, SIMULATION, Bench, ask
from tests.safety.bounds import GOOD, HELD, KNOWN, LIMITS, POSE, REST, N

# Powers of two, so that sums and differences are exact and a float beyond is a float beyond.
H = 2.0**-7
EXACT = LIMITS._replace(
    length_min_m=[0.75] * N,
    length_max_m=[1.125] * N,
    speed_m_s=[0.5] * N,
    acceleration_m_s2=[4.0] * N,
    jerk_m_s3=[128.0] * N,
)


def beyond(value: float) -> float:
    return math.nextafter(value, math.copysign(math.inf, value))


def sent(trail: Trail, position: np.ndarray, force: np.ndarray = REST, velocity: np.ndarray = REST) -> Limit:
    return guard(EXACT, Fault.NONE, HELD, trail, Command(2, AxisMode.FOLLOW, position, velocity, force), H)[2]


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("leg", range(N))
def test_jerk_acceleration_and_speed_of_the_set_points(leg: int, sign: float) -> None:
    zero = np.zeros(N)  # where legs have no length differences are exact to the last bit
    limits = EXACT._replace(length_min_m=[-1.0] * N, length_max_m=[1.0] * N)

    def of(rate: float, change: float, asked: float) -> Limit:
        rates, changes, wanted = np.zeros((3, N))
        rates[leg], changes[leg], wanted[leg] = sign * rate, sign * change, sign * asked
        trail = Trail(zero, rates, changes, H, H)
        proposed = Command(2, AxisMode.FOLLOW, H * wanted, zero, zero)
        return guard(limits, Fault.NONE, HELD, trail, proposed, H)[2]

    # from rest, the jerk: 128 m/s³ in one step of 2**-7 s is 1 m/s², that is 2**-7 m/s
    assert of(0.0, 0.0, H) is Limit.NONE
    assert of(0.0, 0.0, beyond(H)) is Limit.JERK
    # the acceleration, once it is there: 4 m/s² are 2**-5 m/s a step
    assert of(0.0, 3.5, 4.0 * H) is Limit.NONE
    assert of(0.0, 3.5, beyond(4.0 * H)) is Limit.ACCELERATION
    # the speed, come upon without acceleration
    assert of(0.5, 0.0, 0.5) is Limit.NONE
    assert of(0.5, 0.0, beyond(0.5)) is Limit.SPEED
    # a change that the jerk could not take back before the limit of speed
    assert of(0.5 - H / 4, 0.0, 0.5) is not Limit.NONE
    # 1 m/s² may rise by as much in this tick, and by half of that again while the jerk takes it back
    below = 0.5 - 1.5 * H
    assert of(below, 0.5, below + H) is Limit.NONE
    assert of(below, 0.5, beyond(below + H)) is not Limit.NONE


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("leg", range(N))
def test_forces_torques_and_velocities_that_are_sent(leg: int, sign: float) -> None:
    trail = at_rest(HELD.position_m, H)

    def of(force_n: float, velocity: float = 0.0, torque_force_n: float = 900.0) -> tuple[Limit, float]:
        force, rate = np.zeros((2, N))
        force[leg], rate[leg] = sign * force_n, sign * velocity
        most = [math.inf] * N
        most[leg] = torque_force_n
        proposed = Command(2, AxisMode.FOLLOW, HELD.position_m, rate, force)
        command, _, acted = guard(EXACT._replace(torque_force_n=most), Fault.NONE, HELD, trail, proposed, H)
        assert np.count_nonzero(command.force_n) <= 1
        return acted, sign * float(command.force_n[leg])

    assert of(700.0) == (Limit.NONE, 700.0)
    assert of(beyond(700.0)) == (Limit.FORCE, 700.0)
    assert of(500.0, torque_force_n=500.0) == (Limit.NONE, 500.0)
    assert of(beyond(500.0), torque_force_n=500.0) == (Limit.TORQUE, 500.0)
    assert of(1e308, torque_force_n=500.0) == (Limit.TORQUE | Limit.FORCE, 500.0)
    assert of(0.0, 0.5)[0] is Limit.NONE
    assert of(0.0, beyond(0.5))[0] is Limit.SPEED


@pytest.mark.parametrize("mode", [mode for mode in AxisMode if mode not in (AxisMode.FOLLOW, AxisMode.FORCE)])
def test_where_no_set_point_is_followed_none_is_limited(mode: AxisMode) -> None:
    proposed = Command(2, mode, HELD.position_m + 1.0, np.full(N, 9.0), np.full(N, 1e4))
    command, faults, acted = guard(EXACT, Fault.NONE, HELD, at_rest(HELD.position_m, H), proposed, H)
    assert (command.axis_mode, faults, acted) == (mode, Fault.NONE, Limit.NONE)
    np.testing.assert_array_equal(command.position_m, proposed.position_m)


def test_velocities_that_are_too_high_are_scaled_together() -> None:
    velocity = np.array([1.0, -0.5, 0.25, 0.0, 0.1, -0.2])
    proposed = replace(HELD, velocity_m_s=velocity)
    command, _, _ = guard(LIMITS, Fault.NONE, HELD, at_rest(HELD.position_m, 0.01), proposed, 0.01)
    np.testing.assert_allclose(command.velocity_m_s, 0.5 * velocity, rtol=0, atol=1e-15)
    assert command.position_m is proposed.position_m


@pytest.mark.parametrize("end", [0.75, 1.125])
@pytest.mark.parametrize("leg", range(N))
def test_both_ends_of_every_stroke_as_set_points(leg: int, end: float) -> None:
    position = np.full(N, 0.9375)
    position[leg] = end
    trail = at_rest(position, H)
    assert sent(trail, position) is Limit.NONE
    outside = position.copy()
    outside[leg] = math.nextafter(end, 2.0 if end > 1.0 else 0.0)
    assert sent(trail, outside) is Limit.STROKE
    command = guard(EXACT, Fault.NONE, HELD, trail, replace(HELD, position_m=outside), H)[0]
    np.testing.assert_array_equal(command.position_m, position)


def judged(**change: np.ndarray) -> Fault:
    return motion(replace(GOOD, **change))[0]


def motion(sample=GOOD, estimate=KNOWN, base=REST, platform=REST, limits=LIMITS, powered=True):
    return judge_motion(sample, estimate, base, platform, limits, powered)


def test_a_good_sample_has_no_fault() -> None:
    assert judge_sample(GOOD, LIMITS) is Fault.NONE
    assert motion()[0] is Fault.NONE


@pytest.mark.parametrize("name", ["length_m", "length_m_s", "setpoint_m", "drive_n"])
@pytest.mark.parametrize("leg", range(N))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_measured_value_that_is_no_number_is_a_fault(name: str, leg: int, value: float) -> None:
    values = getattr(GOOD, name).copy()
    values[leg] = value
    assert judge_sample(replace(GOOD, **{name: values}), LIMITS) is Fault.SAMPLE_NOT_FINITE


def test_numbers_that_are_odd_but_finite_are_no_fault_of_the_sample() -> None:
    for value in (-0.0, 1e308, -1e308, 5e-324):
        assert judge_sample(replace(GOOD, drive_n=np.full(N, value)), LIMITS) is Fault.NONE


def test_link_and_age() -> None:
    assert judge_sample(replace(GOOD, link=Link.DOWN), LIMITS) is Fault.LINK_LOST
    assert judge_sample(replace(GOOD, link=Link.LATE), LIMITS) is Fault.NONE
    assert judge_sample(replace(GOOD, age_s=0.045), LIMITS) is Fault.NONE
    for age_s in (beyond(0.045), 0.125):
        assert judge_sample(replace(GOOD, age_s=age_s), LIMITS) is Fault.STATUS_LATE
    for age_s in (beyond(0.125), math.inf, math.nan):
        assert judge_sample(replace(GOOD, age_s=age_s), LIMITS) is Fault.STATUS_STALE


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("leg", range(N))
def test_both_sides_of_every_leg_boundary(leg: int, sign: float) -> None:
    def of(name: str, at: float, **more: np.ndarray) -> Fault:
        values = getattr(GOOD, name).copy()
        values[leg] = at
        return judged(**{name: values} | more)

    edge = 1.10 + STROKE_MARGIN_M if sign > 0 else 0.75 - STROKE_MARGIN_M
    there = np.full(N, edge)
    assert of("length_m", edge, setpoint_m=np.where(np.arange(N) == leg, there, 0.95)) is Fault.NONE
    outside = math.nextafter(edge, edge + sign)
    assert of("length_m", outside, setpoint_m=np.where(np.arange(N) == leg, there, 0.95)) is Fault.STROKE
    for name, most, fault in (
        ("length_m_s", SPEED_MARGIN * 0.5, Fault.OVERSPEED),
        ("drive_n", FORCE_MARGIN * 700.0, Fault.OVERFORCE),
    ):
        assert of(name, sign * most) is Fault.NONE
        assert of(name, beyond(beyond(sign * most))) is fault
        assert of(name, sign * 1e308) is fault
    lag = LIMITS._replace(following_error_m=0.0078125)
    for away, fault in ((0.0078125, Fault.NONE), (0.0078125 + 2.0**-52, Fault.FOLLOWING_ERROR)):
        setpoint, length = np.full(N, 1.0), np.full(N, 1.0)
        setpoint[leg] += sign * away
        assert motion(replace(GOOD, setpoint_m=setpoint, length_m=length), limits=lag)[0] is fault


def test_a_leg_or_coordinate_too_few_is_an_error_and_is_never_left_out() -> None:
    few = np.zeros(N - 1)
    for change in (
        {"sample": replace(GOOD, length_m=few)},
        {"sample": replace(GOOD, setpoint_m=GOOD.setpoint_m[:-1])},
        {"estimate": replace(KNOWN, pose=POSE[:-1])},
        {"estimate": replace(KNOWN, pose=np.array([*POSE, 0.0])),
         "limits": LIMITS._replace(pose_min=[*LIMITS.pose_min, -1.0], pose_max=[*LIMITS.pose_max, 1.0])},
        {"base": few},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="zip"):
            motion(**change)
    trail = at_rest(HELD.position_m, H)
    for limits, proposed in (
        (LIMITS, replace(HELD, force_n=few)),
        (LIMITS, replace(HELD, position_m=few)),
        (LIMITS._replace(speed_m_s=[0.5] * (N - 1)), HELD),
    ):
        with pytest.raises(ValueError, match="zip"):
            guard(limits, Fault.NONE, HELD, trail, proposed, H)


def test_a_lag_without_power_is_none() -> None:
    assert motion(replace(GOOD, setpoint_m=GOOD.setpoint_m + 0.1), powered=False)[0] is Fault.NONE


@pytest.mark.parametrize("axis", range(6))
def test_both_sides_of_every_pose_boundary(axis: int) -> None:
    for edge, way in ((np.add(LIMITS.pose_max, POSE_MARGIN), 9.0), (np.subtract(LIMITS.pose_min, POSE_MARGIN), -9.0)):
        for value, fault in ((edge[axis], Fault.NONE), (math.nextafter(edge[axis], way), Fault.POSE)):
            pose = POSE.copy()
            pose[axis] = value
            assert motion(estimate=replace(KNOWN, pose=pose))[0] is fault


@pytest.mark.parametrize("leg", range(N))
def test_both_sides_of_every_joint_and_of_the_condition_number(leg: int) -> None:
    for name, most in (("base", 1.0 + SWING_MARGIN_RAD), ("platform", 1.2 + SWING_MARGIN_RAD)):
        for swing, fault in ((most, Fault.NONE), (beyond(most), Fault.JOINT_ANGLE), (math.nan, Fault.JOINT_ANGLE)):
            swings = np.zeros(N)
            swings[leg] = swing
            assert motion(**{name: swings})[0] is fault
    for condition, fault in ((60.0, Fault.NONE), (beyond(60.0), Fault.SINGULAR), (math.inf, Fault.SINGULAR)):
        assert motion(estimate=replace(KNOWN, condition=condition))[0] is fault
    assert motion(estimate=replace(KNOWN, condition=math.nan))[0] is Fault.SINGULAR


def test_an_unknown_pose_is_a_fault_and_says_nothing_of_pose_and_joints() -> None:
    lost = replace(KNOWN, pose=np.full(6, np.nan), iterations=-1, condition=math.nan)
    faults, reserves = motion(estimate=lost, base=np.full(N, np.nan), platform=np.full(N, np.nan))
    assert faults is Fault.POSE_UNKNOWN
    np.testing.assert_array_equal(np.isnan(reserves), [False, True, True, True, False, False])
    assert motion(estimate=replace(KNOWN, iterations=0))[0] is Fault.NONE


def test_reserves_tell_how_near_each_kind_of_limit_is() -> None:
    sample = replace(
        GOOD,
        length_m=np.array([0.925, 0.95, 1.05625, 0.925, 0.9, 0.9]),  # the third has a quarter of its half stroke left
        length_m_s=np.array([0.1, -0.4, 0, 0, 0, 0]),
        drive_n=np.array([0, 0, 0, 0, 70.0, -630.0]),
    )
    pose = np.array([0.0, 0.05, 0.85, 0.0, 0.27, 0.0])
    base, platform = np.full(N, 0.5), np.full(N, 0.3)
    _, reserves = motion(sample, replace(KNOWN, pose=pose, condition=15.0), base, platform)
    np.testing.assert_allclose(reserves, [0.25, 0.1, 0.5, 0.75, 0.2, 0.1], rtol=0, atol=1e-12)
    assert len(reserves) == len(RESERVES)
    _, reserves = motion(base=np.full(N, 0.2), platform=np.full(N, 0.9))
    assert reserves[2] == pytest.approx(0.25)
    fixed = LIMITS._replace(pose_min=[0.0, *LIMITS.pose_min[1:]], pose_max=[0.0, *LIMITS.pose_max[1:]])
    assert motion(limits=fixed)[1][1] == 1.0  # a coordinate without freedom is near nothing
    assert motion(limits=LIMITS._replace(pose_min=POSE.tolist(), pose_max=POSE.tolist()))[1][1] == 1.0


def test_limits_of_a_machine_file() -> None:
    machine, _ = load_machine(MACHINES / "6-upru.toml")
    control = load_site(SIMULATION).site.control
    limits = build_limits(machine, control, 0.01, 3.0)
    leg, drive = machine.legs.limits, machine.legs.drive
    assert isinstance(drive, schema.ScrewDrive)
    assert limits.jerk_m_s3 == [leg.acceleration_m_s2 / RISE_S] * 6
    assert limits.condition == 3.0 * CONDITION_SHARE
    assert (limits.late_after_s, limits.stale_after_s) == pytest.approx((0.045, 0.125))
    # work of one turn of the motor: torque times 2 pi is force times way
    way = drive.lead_m / drive.gear_ratio
    assert limits.torque_force_n[0] * way == pytest.approx(drive.peak_torque_nm * 2 * math.pi)
    assert [limits.pose_min[2], limits.pose_max[2]] == list(machine.platform.limits.z_m)
    assert limits.told()["torque_force_n"] == limits.torque_force_n
    hydraulic, _ = load_machine(MACHINES / "3-ups-s.toml")
    others = build_limits(hydraulic, type(control)(condition_limit=7.0), 0.01, 3.0)
    assert others.condition == 7.0
    assert others.told()["torque_force_n"] == [None] * 3  # a cylinder has no motor
    assert others.torque_force_n == [math.inf] * 3


def test_margins_and_defaults_are_those_that_are_documented() -> None:
    assert STROKE_MARGIN_M == 0.002
    assert POSE_MARGIN == (0.005, 0.005, 0.005, 0.01, 0.01, 0.01)
    assert SWING_MARGIN_RAD == 0.01
    assert (SPEED_MARGIN, FORCE_MARGIN) == (1.25, 1.25)
    assert (RISE_S, CONDITION_SHARE) == (0.04, 20.0)


def test_a_gear_multiplies_the_force_of_the_motor() -> None:
    machine, _ = load_machine(MACHINES / "6-upru.toml")
    assert isinstance(machine.legs.drive, schema.ScrewDrive)
    geared = msgspec.structs.replace(machine.legs.drive, gear_ratio=3.0)
    other = msgspec.structs.replace(machine, legs=msgspec.structs.replace(machine.legs, drive=geared))
    plain, threefold = (build_limits(each, schema.Control(), 0.01, 3.0).torque_force_n for each in (machine, other))
    np.testing.assert_allclose(threefold, 3.0 * np.array(plain), rtol=1e-12)


def test_the_rates_of_a_shortened_step_are_scaled_together_to_the_limit_of_speed() -> None:
    # the leg at its highest speed would be faster half a step later, with the acceleration it still has
    rates = 0.499 * np.array([1.0, 0.5, 0.0, 0.0, 0.0, -0.25])
    trail = Trail(HELD.position_m, rates, 0.4 * np.array([1.0, 0.5, 0, 0, 0, -0.25]), 0.01, 0.01)
    far = replace(HELD, position_m=HELD.position_m + 0.1 * rates, velocity_m_s=rates)
    command, _, acted = guard(LIMITS, Fault.NONE, HELD, trail, far, 0.01)
    assert acted
    assert np.abs(command.velocity_m_s).max() <= 0.5 + 1e-12
    np.testing.assert_allclose(command.velocity_m_s, command.velocity_m_s[0] * rates / rates[0], rtol=0, atol=1e-9)


def test_the_guard_stands_behind_the_cycle_from_the_first_set_point_on() -> None:
    bench = Bench()
    bench.ready()
    away = replace(bench.state, plan=trajectory.Hold(bench.setup.home + np.array([0, 0, 0.05, 0, 0, 0])))
    sample = replace(
        GOOD, tick=bench.tick + 1, plc_cycle=999, length_m=bench.lengths_m, setpoint_m=bench.lengths_m, **bench.sensors
    )
    _, output = cycle(bench.setup, away, sample, ask(RequestKind.NONE))
    most = bench.setup.limits.jerk_m_s3[0] * bench.setup.period_s**3
    assert np.abs(output.command.position_m - bench.lengths_m).max() <= most * (1 + 1e-9)
    assert Limit.JERK in output.limits


def refused(bench: Bench, change: Callable[[np.ndarray], None]) -> str:
    pose = bench.setup.home.copy()
    change(pose)
    output = bench.step(ask(RequestKind.MOVE, pose))
    assert output.verdict is Verdict.UNREACHABLE
    assert output.mode is Mode.READY
    return explain(output.verdict, RequestKind.MOVE, output.refusal)


def test_an_unreachable_pose_is_refused_with_limit_coordinate_and_amount_and_the_next_request_goes_on() -> None:
    bench = Bench()
    bench.ready()

    def far(pose: np.ndarray) -> None:
        pose[0] = bench.setup.limits.pose_max[0] + 0.125

    assert refused(bench, far).endswith("x_m would leave its range in platform.limits by 0.125 m")

    def turned(pose: np.ndarray) -> None:
        pose[5] = bench.setup.limits.pose_min[5] - 0.25

    assert refused(bench, turned).endswith("roll_rad would leave its range in platform.limits by 0.25 rad")
    assert bench.step(ask(RequestKind.MOVE, bench.setup.home)).verdict is Verdict.ACCEPTED
    assert bench.outputs[-1].refusal.obstacle is Obstacle.NONE


def test_every_obstacle_is_found_and_named() -> None:
    bench = Bench()
    setup, home = bench.setup, bench.setup.home
    target = home + np.array([0.02, 0.01, 0.03, 0.05, 0.02, -0.03])
    plan = trajectory.plan_move(setup.motion, bench.state.reference, target, 0.0)
    assert plan is not None
    assert pace(setup, plan)[0] == 1.0
    for obstacle, words, change in (
        (Obstacle.STROKE, "leg 4 would leave its stroke by", {"length_max_m": [2.0, 2, 2, 0.5, 2, 2]}),
        (Obstacle.BASE_SWING, "leg 2 would swing too far in its base joint by",
         {"base_swing_rad": [1, 1e-4, 1, 1, 1, 1]}),
        (Obstacle.PLATFORM_SWING, "leg 6 would swing too far in its platform joint by",
         {"platform_swing_rad": [1, 1, 1, 1, 1, 1e-4]}),
        (Obstacle.CONDITION, "too near a singular pose", {"condition": 1.0}),
        (Obstacle.SPEED, "leg 3 would be too fast by", {"speed_m_s": [9, 9, 1e-3, 9, 9, 9]}),
        (Obstacle.ACCELERATION, "leg 1 would accelerate too much by", {"acceleration_m_s2": [1e-3, 9, 9, 9, 9, 9]}),
        (Obstacle.JERK, "leg 5 would change its acceleration too fast by",
         {"jerk_m_s3": [999, 999, 999, 999, 1e-3, 999]}),
    ):  # fmt: skip
        share, refusal = pace(setup._replace(limits=setup.limits._replace(**change)), plan)
        assert share < 1.0
        assert refusal.obstacle is obstacle
        assert words in explain(Verdict.UNREACHABLE, RequestKind.MOVE, refusal)


@pytest.mark.parametrize(
    ("kind", "needs"),
    [
        (RequestKind.MOVE, "move needs READY or ACTIVE"),
        (RequestKind.SINE, "sine needs READY"),
        (RequestKind.ACKNOWLEDGE, "acknowledge needs FAULT"),
        (RequestKind.TARE, "tare needs READY"),
    ],
)
def test_a_request_in_the_wrong_mode_is_refused_with_the_mode_it_needs(kind: RequestKind, needs: str) -> None:
    bench = Bench()
    output = bench.step(ask(kind, bench.setup.home))
    assert output.verdict is Verdict.WRONG_MODE
    assert explain(output.verdict, kind, output.refusal).endswith(needs)


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.WRONG_MODE])
def test_other_answers_are_the_plain_reason_whatever_the_refusal(verdict: Verdict) -> None:
    assert explain(verdict, RequestKind.MOVE, NO_REFUSAL) == REASONS[verdict]
    if verdict is not Verdict.UNREACHABLE:
        assert explain(verdict, RequestKind.MOVE, Refusal(Obstacle.STROKE, 3, 0.1)) == REASONS[verdict]


def test_every_coordinate_of_the_pose_has_its_name_in_a_refusal() -> None:
    for which, name in enumerate(NAMES, start=1):
        text = explain(Verdict.UNREACHABLE, RequestKind.MOVE, Refusal(Obstacle.POSE, which, 0.5))
        assert f"{name} would leave" in text
        assert text.endswith(f"0.5 {name.rsplit('_', 1)[1]}")
    assert "no motion leads there" in explain(Verdict.UNREACHABLE, RequestKind.MOVE, Refusal(Obstacle.NO_PATH, 0, 0.0))


def test_conditions_are_bits_of_their_own_and_effects_rise() -> None:
    assert [condition.value for condition in Condition] == [1 << k for k in range(11)]
    assert Effect.WARN < Effect.STOP < Effect.TRIP


C = Condition
LEADS_TO = {
    Mode.OFF: {C.READY_WANTED: Mode.READY, C.HOME_WANTED: Mode.HOMING},
    Mode.READY: {C.TRIP: Mode.FAULT, C.OFF_WANTED: Mode.OFF, C.MOTION_WANTED: Mode.ACTIVE},
    Mode.ACTIVE: {
        C.TRIP: Mode.FAULT, C.STOP: Mode.STOPPING, C.OFF_WANTED: Mode.STOPPING, C.STOP_WANTED: Mode.STOPPING,
        C.DONE: Mode.READY,
    },
    Mode.STOPPING: {C.TRIP: Mode.FAULT, C.STANDSTILL: Mode.READY},
    Mode.FAULT: {C.ACKNOWLEDGED: Mode.OFF},
    Mode.HOMING: {
        C.TRIP: Mode.FAULT, C.OFF_WANTED: Mode.OFF, C.STOP_WANTED: Mode.OFF, C.STOP: Mode.OFF, C.HOMED: Mode.READY,
    },
}  # fmt: skip


@pytest.mark.parametrize("mode", Mode)
def test_what_each_condition_leads_to_on_its_own_and_which_one_goes_before(mode: Mode) -> None:
    for condition in Condition:
        assert next_mode(mode, condition) is LEADS_TO[mode].get(condition, mode)
    assert next_mode(Mode.STOPPING, C.STANDSTILL | C.OFF_WANTED) is Mode.OFF
    assert next_mode(Mode.ACTIVE, C.MOTION_WANTED | C.DONE) is Mode.ACTIVE
    assert next_mode(Mode.READY, C.STOP | C.MOTION_WANTED) is Mode.READY
    assert next_mode(Mode.READY, C.STOP | C.OFF_WANTED) is Mode.OFF


ANY = frozenset(Mode)
NEEDED = {
    RequestKind.READY: {Mode.OFF},
    RequestKind.MOVE: {Mode.READY, Mode.ACTIVE},
    RequestKind.SINE: {Mode.READY},
    RequestKind.STOP: ANY,
    RequestKind.OFF: ANY - {Mode.FAULT},
    RequestKind.ACKNOWLEDGE: {Mode.FAULT},
    RequestKind.TARE: {Mode.READY},
    RequestKind.HOME: {Mode.OFF},
    RequestKind.TRACK: {Mode.READY},
    RequestKind.STREAM: {Mode.READY},
}
# the strongest effect of a standing fault that a request bears; those that move or switch on bear a warning only
BEARS = {RequestKind.STOP: Effect.TRIP, RequestKind.OFF: Effect.TRIP, RequestKind.ACKNOWLEDGE: Effect.STOP}
STANDING = {RequestKind.MOVE, RequestKind.SINE, RequestKind.TARE, RequestKind.TRACK, RequestKind.STREAM}


@pytest.mark.parametrize("kind", NEEDED)
def test_which_request_is_admitted_where_and_under_which_faults(kind: RequestKind) -> None:
    for mode in Mode:
        verdict = admit(mode, kind, None, link_up=True, may_move=True)
        assert verdict is (Verdict.ACCEPTED if mode in NEEDED[kind] else Verdict.WRONG_MODE)
    mode = min(NEEDED[kind])
    for effect in Effect:
        bears = effect <= BEARS.get(kind, Effect.WARN)
        assert admit(mode, kind, effect, link_up=True, may_move=True) is (
            Verdict.ACCEPTED if bears else Verdict.FAULT_STANDS
        )
    resting = admit(mode, kind, None, link_up=True, may_move=False)
    assert resting is (Verdict.NOT_READY if kind in STANDING else Verdict.ACCEPTED)
    unlinked = admit(mode, kind, None, link_up=False, may_move=True)
    assert unlinked is (Verdict.NO_LINK if kind in (RequestKind.READY, RequestKind.HOME) else Verdict.ACCEPTED)


EFFECTS = {
    Effect.WARN: {"SENSOR_DEGRADED", "CELL_SUSPECT", "DRIVE_SUSPECT", "EXTERNAL_LOAD"},
    Effect.STOP: {"STATUS_LATE", "SENSOR_LOST", "STREAM_LOST", "OVERRUN"},
}


def test_what_each_fault_causes() -> None:
    for fault in Fault:
        right = next((effect for effect, names in EFFECTS.items() if fault.name in names), Effect.TRIP)
        assert FAULTS[fault].effect is right, fault
