"""Plans: derivatives against finite differences, limits kept, ends at rest where asked."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.motion import trajectory
from controller.motion.trajectory import ZERO, Hold, MotionLimits, Plan
from controller.records import Reference

LIMITS = MotionLimits(np.repeat([0.25, 0.6], 3), np.repeat([1.5, 4.0], 3), np.repeat([30.0, 80.0], 3))
HOME = np.array([0.0, 0.0, 0.85, 0.0, 0.0, 0.0])
AT_HOME = Reference(HOME, ZERO, ZERO)
TARGET = HOME + np.array([0.05, -0.08, 0.04, 0.2, -0.1, 0.15])

offsets = st.lists(st.floats(-0.2, 0.2), min_size=6, max_size=6).map(np.array)


def move(target: np.ndarray = TARGET, start: Reference = AT_HOME) -> trajectory.Move:
    plan = trajectory.plan_move(LIMITS, start, target, 3.0)
    assert plan is not None
    return plan


def sine() -> Plan:
    return trajectory.plan_sine(AT_HOME, 0.1 * (TARGET - HOME), 0.7, 3.0)


@pytest.mark.parametrize("make", [move, sine])
def test_rate_and_acceleration_are_derivatives_of_the_pose(make: Callable[[], Plan]) -> None:
    plan, h = make(), 1e-5
    for t in np.arange(3.05, 4.1, 0.083):
        before, now, after = (trajectory.at(plan, t + shift) for shift in (-h, 0.0, h))
        np.testing.assert_allclose(now.rate, (after.pose - before.pose) / (2 * h), rtol=0, atol=1e-7)
        np.testing.assert_allclose(now.acceleration, (after.rate - before.rate) / (2 * h), rtol=0, atol=2e-3)


@settings(max_examples=60)
@given(offsets)
def test_a_move_keeps_its_limits_goes_straight_and_ends_at_rest_at_the_target(offset: np.ndarray) -> None:
    plan = move(HOME + offset)
    x, xd, xdd = trajectory.samples(plan, 200)
    assert np.all(np.abs(xd) <= LIMITS.speed + 1e-9)
    assert np.all(np.abs(xdd) <= LIMITS.acceleration + 1e-9)
    along = (x - HOME) @ offset / max(offset @ offset, 1e-30)
    np.testing.assert_allclose(x - HOME, np.outer(along, offset), rtol=0, atol=1e-6)
    end = trajectory.at(plan, plan.end_s + 1.0)
    np.testing.assert_allclose(end.pose, HOME + offset, rtol=0, atol=1e-9)
    assert not end.rate.any()
    assert not end.acceleration.any()


@settings(max_examples=60)
@given(offsets, st.floats(0.02, 0.98))
def test_a_stop_begins_where_the_move_is_and_comes_to_rest(offset: np.ndarray, share: float) -> None:
    plan = move(HOME + offset)
    t = plan.start_s + share * (plan.end_s - plan.start_s)
    moving = trajectory.at(plan, t)
    stop = trajectory.plan_stop(LIMITS, moving, t)
    assert stop is not None
    begin = trajectory.at(stop, t)
    np.testing.assert_allclose(begin.pose, moving.pose, rtol=0, atol=1e-12)
    np.testing.assert_allclose(begin.rate, moving.rate, rtol=0, atol=1e-12)
    _, _, xdd = trajectory.samples(stop, 100)
    assert np.all(np.abs(xdd) <= LIMITS.acceleration + 1e-9)
    end = trajectory.at(stop, stop.end_s)
    assert not end.rate.any()


def test_a_new_target_while_moving_makes_no_step() -> None:
    first = move()
    t = 0.5 * (first.start_s + first.end_s)
    now = trajectory.at(first, t)
    second = trajectory.plan_move(LIMITS, now, HOME, t)
    assert second is not None
    begin = trajectory.at(second, t)
    for found, right in zip(
        (begin.pose, begin.rate, begin.acceleration), (now.pose, now.rate, now.acceleration), strict=True
    ):
        np.testing.assert_allclose(found, right, rtol=0, atol=1e-9)


def test_a_sine_starts_from_rest_without_a_step() -> None:
    begin = trajectory.at(sine(), 3.0)
    np.testing.assert_array_equal(begin.pose, HOME)
    assert not begin.rate.any()
    assert not begin.acceleration.any()


def test_slower_limits_stretch_the_same_path() -> None:
    full, half = move(), trajectory.plan_move(trajectory.slower(LIMITS, 0.5), AT_HOME, TARGET, 3.0)
    assert half is not None
    assert half.end_s - half.start_s == pytest.approx(2.0 * (full.end_s - full.start_s), rel=1e-9)
    for share in (0.2, 0.5, 0.9):
        a = trajectory.at(full, full.start_s + share * (full.end_s - full.start_s))
        b = trajectory.at(half, half.start_s + share * (half.end_s - half.start_s))
        np.testing.assert_allclose(a.pose, b.pose, rtol=0, atol=1e-9)
        np.testing.assert_allclose(a.rate, 2.0 * b.rate, rtol=0, atol=1e-9)


def test_what_is_not_finite_has_no_plan() -> None:
    assert trajectory.plan_move(LIMITS, AT_HOME, np.full(6, np.nan), 0.0) is None


def test_hold_stands_still() -> None:
    reference = trajectory.at(Hold(HOME), 12.0)
    np.testing.assert_array_equal(reference.pose, HOME)
    assert not reference.rate.any()
