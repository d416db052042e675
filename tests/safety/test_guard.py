"""The guard: whatever is proposed, what is sent is finite and inside the limits."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.records import AxisMode, Command, Estimate, Fault, Limit, Link, Sample
from controller.safety.faults import TRIPPING
from controller.safety.limits import (
    FORCE_MARGIN,
    POSE_MARGIN,
    SPEED_MARGIN,
    STROKE_MARGIN_M,
    Limits,
    guard,
    judge_motion,
    judge_sample,
)

N, PERIOD_S = 6, 0.01
LIMITS = Limits(
    length_min_m=[0.75] * N,
    length_max_m=[1.10] * N,
    speed_m_s=[0.5] * N,
    acceleration_m_s2=[4.0] * N,
    force_n=[700.0] * N,
    base_swing_rad=[1.0] * N,
    platform_swing_rad=[1.0] * N,
    pose_min=[-0.1, -0.1, 0.7, -0.3, -0.3, -0.3],
    pose_max=[0.1, 0.1, 1.0, 0.3, 0.3, 0.3],
    following_error_m=0.01,
    late_after_s=0.045,
    stale_after_s=0.125,
)
REST = np.zeros(N)
HELD = Command(1, AxisMode.FOLLOW, np.full(N, 0.95), REST, REST)
POSE = np.array([0.0, 0.0, 0.85, 0.0, 0.0, 0.0])
KNOWN = Estimate(POSE, np.zeros(6), 2, 0.0, 3.0)
GOOD = Sample(
    tick=5, t_s=0.05, link=Link.UP, age_s=0.009, plc_cycle=25, seq_echo=1, plc_state=2, plc_error=0,
    plc_stopped=False, drives_enabled=True, drives_fault=False, length_m=np.full(N, 0.95), length_m_s=REST,
    setpoint_m=np.full(N, 0.95), drive_n=REST,
)  # fmt: skip

numbers = st.floats(allow_nan=True, allow_infinity=True)
wild = st.lists(numbers, min_size=N, max_size=N).map(np.array)
near = st.lists(st.floats(0.7, 1.2), min_size=N, max_size=N).map(np.array)
rates = st.lists(st.floats(-0.5, 0.5), min_size=N, max_size=N).map(np.array)


@settings(max_examples=400)
@given(wild | near, wild | rates, wild, rates, st.sampled_from(AxisMode), st.sampled_from([0.01, 0.03]))
def test_what_is_sent_is_finite_and_inside_whatever_was_proposed(
    position: np.ndarray, velocity: np.ndarray, force: np.ndarray, rate: np.ndarray, mode: AxisMode, elapsed_s: float
) -> None:
    proposed = Command(2, mode, position, velocity, force)
    sent, faults, _ = guard(LIMITS, Fault.NONE, HELD, rate, proposed, elapsed_s)
    finite = all(np.isfinite(part).all() for part in (position, velocity, force))
    assert (Fault.PROPOSAL_NOT_FINITE in faults) == (not finite)
    assert all(np.isfinite(part).all() for part in (sent.position_m, sent.velocity_m_s, sent.force_n))
    if not finite:
        assert sent.axis_mode is AxisMode.STOP
    elif mode is AxisMode.FOLLOW:
        tiny = 1e-12
        assert np.all(sent.position_m >= LIMITS.length_min_m)
        assert np.all(sent.position_m <= LIMITS.length_max_m)
        assert np.all(np.abs(sent.velocity_m_s) <= np.array(LIMITS.speed_m_s) + tiny)
        assert np.all(np.abs(sent.force_n) <= LIMITS.force_n)
        step, most = (sent.position_m - HELD.position_m) / elapsed_s, np.maximum(LIMITS.speed_m_s, np.abs(rate))
        assert np.all(np.abs(step) <= most + np.array(LIMITS.acceleration_m_s2) * elapsed_s)
    else:
        assert sent.axis_mode is mode
        assert not sent.velocity_m_s.any()
        assert not sent.force_n.any()


def test_a_proposal_inside_all_limits_passes_untouched() -> None:
    proposed = Command(2, AxisMode.FOLLOW, HELD.position_m + 1e-4, np.full(N, 0.02), np.full(N, 150.0))
    sent, faults, limits = guard(LIMITS, Fault.NONE, HELD, REST, proposed, PERIOD_S)
    assert (faults, limits) == (Fault.NONE, Limit.NONE)
    for found, right in zip(
        (sent.position_m, sent.velocity_m_s, sent.force_n),
        (proposed.position_m, proposed.velocity_m_s, proposed.force_n),
        strict=True,
    ):
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault & TRIPPING])
def test_a_tripping_fault_sends_stop_whatever_was_proposed(fault: Fault) -> None:
    for mode in AxisMode:
        proposed = Command(2, mode, HELD.position_m + 1e-4, np.full(N, 0.01), np.full(N, 100.0))
        sent, _, _ = guard(LIMITS, fault, HELD, REST, proposed, PERIOD_S)
        assert sent.axis_mode is AxisMode.STOP
        assert not sent.force_n.any()


def test_a_step_too_far_is_shortened_for_all_legs_alike() -> None:
    direction = np.array([1.0, -0.5, 0.25, 0.0, 0.1, -0.2])
    proposed = replace(HELD, position_m=HELD.position_m + 0.05 * direction)
    sent, _, limits = guard(LIMITS, Fault.NONE, HELD, REST, proposed, PERIOD_S)
    moved = sent.position_m - HELD.position_m
    assert Limit.ACCELERATION in limits
    np.testing.assert_allclose(moved, moved[0] * direction, rtol=0, atol=1e-15)
    assert moved[0] == pytest.approx(4.0 * PERIOD_S**2)


def test_each_clamp_is_named() -> None:
    def limits_of(**change: np.ndarray) -> Limit:
        return guard(LIMITS, Fault.NONE, HELD, REST, replace(HELD, **change), PERIOD_S)[2]

    assert limits_of(force_n=np.full(N, 700.0)) is Limit.NONE
    assert limits_of(force_n=np.full(N, math.nextafter(700.0, 800.0))) is Limit.FORCE
    assert limits_of(velocity_m_s=np.full(N, 0.5)) is Limit.NONE
    assert limits_of(velocity_m_s=np.full(N, 0.51)) is Limit.SPEED
    assert Limit.STROKE in limits_of(position_m=np.full(N, 1.11))
    assert limits_of(position_m=HELD.position_m + 3.99e-4) is Limit.NONE
    assert limits_of(position_m=HELD.position_m + 4.01e-4) is Limit.ACCELERATION


def test_a_good_sample_has_no_fault() -> None:
    assert judge_sample(GOOD, LIMITS) is Fault.NONE
    assert judge_motion(GOOD, KNOWN, LIMITS, powered=True) is Fault.NONE


@pytest.mark.parametrize("name", ["length_m", "length_m_s", "setpoint_m", "drive_n"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_measured_value_that_is_no_number_is_a_fault(name: str, value: float) -> None:
    values = getattr(GOOD, name).copy()
    values[3] = value
    assert judge_sample(replace(GOOD, **{name: values}), LIMITS) is Fault.SAMPLE_NOT_FINITE


def test_link_and_age() -> None:
    assert judge_sample(replace(GOOD, link=Link.DOWN), LIMITS) is Fault.LINK_LOST
    assert judge_sample(replace(GOOD, link=Link.LATE), LIMITS) is Fault.NONE
    assert judge_sample(replace(GOOD, age_s=0.045), LIMITS) is Fault.NONE
    for age_s in (0.0451, 0.125):
        assert judge_sample(replace(GOOD, age_s=age_s), LIMITS) is Fault.STATUS_LATE
    for age_s in (0.1251, math.inf, math.nan):
        assert judge_sample(replace(GOOD, age_s=age_s), LIMITS) is Fault.STATUS_STALE


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("leg", range(N))
def test_both_sides_of_every_leg_boundary(leg: int, sign: float) -> None:
    def judged(name: str, at: float) -> Fault:
        values = getattr(GOOD, name).copy()
        values[leg] = at
        change = {name: values} | ({"setpoint_m": values} if name == "length_m" else {})
        return judge_motion(replace(GOOD, **change), KNOWN, LIMITS, powered=True)

    edge = 1.10 + STROKE_MARGIN_M if sign > 0 else 0.75 - STROKE_MARGIN_M
    assert judged("length_m", edge - sign * 1e-6) is Fault.NONE
    assert judged("length_m", edge + sign * 1e-6) is Fault.STROKE
    for name, most, fault in (
        ("length_m_s", SPEED_MARGIN * 0.5, Fault.OVERSPEED),
        ("drive_n", FORCE_MARGIN * 700.0, Fault.OVERFORCE),
    ):
        assert judged(name, sign * (most - 1e-6)) is Fault.NONE
        assert judged(name, sign * (most + 1e-6)) is fault
    assert judged("setpoint_m", 0.95 + sign * 0.00999) is Fault.NONE
    assert judged("setpoint_m", 0.95 + sign * 0.01001) is Fault.FOLLOWING_ERROR


def test_a_lag_without_power_is_none() -> None:
    sample = replace(GOOD, setpoint_m=GOOD.setpoint_m + 0.1)
    assert judge_motion(sample, KNOWN, LIMITS, powered=False) is Fault.NONE


@pytest.mark.parametrize("axis", range(6))
def test_both_sides_of_every_pose_boundary(axis: int) -> None:
    for edge, sign in ((np.add(LIMITS.pose_max, POSE_MARGIN), 1.0), (np.subtract(LIMITS.pose_min, POSE_MARGIN), -1.0)):
        for outside in (-1.0, 1.0):
            pose = POSE.copy()
            pose[axis] = edge[axis] + sign * outside * 1e-6
            found = judge_motion(GOOD, replace(KNOWN, pose=pose), LIMITS, powered=True)
            assert found is (Fault.POSE if outside > 0 else Fault.NONE)


def test_an_unknown_pose_is_a_fault() -> None:
    lost = replace(KNOWN, pose=np.full(6, np.nan), iterations=-20)
    assert judge_motion(GOOD, lost, LIMITS, powered=True) is Fault.POSE_UNKNOWN
