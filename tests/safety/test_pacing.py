"""The pace of the legs: what a shortened step keeps of the demand, and that it ends where the demand can be met."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.records import AxisMode, Limit
from controller.safety.pacing import Bounds, Trail, ahead, pace
from tests.safety.bounds import HELD, PERIOD_S, N
from tests.safety.test_guard import Drive

BOUNDS = Bounds([0.75] * N, [1.10] * N, [0.5] * N, [4.0] * N, [100.0] * N)
CENTRE = np.full(N, 0.925)
IN_TIME = Limit.SPEED | Limit.ACCELERATION | Limit.JERK


def vectors(most: float) -> st.SearchStrategy[np.ndarray]:
    return st.lists(st.floats(-most, most), min_size=N, max_size=N).map(np.array)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("acceleration", [1.0, 2.5, 3.9])
@pytest.mark.parametrize("room_m", [0.175, 0.06])  # at the end of the latter it speeds up still
def test_a_demand_that_speeds_up_towards_an_end_is_braked_in_time(
    sign: float, acceleration: float, room_m: float
) -> None:
    # inside speed, acceleration and jerk all the way: only the way to stop is in danger
    way = sign * np.array([1.0, 0.5, 0.0, -0.2, 0.9, 1.0])
    begin = CENTRE + (0.175 - room_m) * way
    drive, position, rate, change = Drive(position_m=begin), 0.0, 0.0, 0.0
    for _ in range(80):
        change = min(change + 0.9, acceleration) if rate < 0.49 - 0.5 * change**2 / 90.0 else max(change - 0.9, 0.0)
        rate += change * PERIOD_S
        position += rate * PERIOD_S
        assert drive.ask(begin + position * way, rate * way).axis_mode is AxisMode.FOLLOW
    assert next(acted for acted in drive.acted if acted) is Limit.STROKE
    assert abs(drive.sent[-1][0] - (0.925 + 0.175 * sign)) < 1e-6
    drive.require_inside()


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_demand_that_stops_before_an_end_by_itself_is_never_touched(sign: float) -> None:
    # a polynomial of fifth order: up to 0.48 m/s, 2.3 m/s² and 36 m/s³
    drive, most_s, way_m = Drive(position_m=CENTRE), 0.66, 0.1745
    for k in range(1, 80):
        s = min(k * PERIOD_S / most_s, 1.0)
        position, rate = s**3 * (10 - 15 * s + 6 * s * s), 30 * s * s * (1 - s) ** 2 / most_s
        drive.ask(CENTRE + sign * way_m * position, np.full(N, sign * way_m * rate))
    assert set(drive.acted) == {Limit.NONE}


@pytest.mark.parametrize("v", [1e-4, 0.01, 0.05])
def test_a_brake_that_is_pulled_more_than_a_stop_takes_counts_as_one_that_just_does(v: float) -> None:
    # which is let go at full jerk, and rate and acceleration end together: a third of the way at the rate it has
    seconds = math.sqrt(2.0 * v / 100.0)
    for more in (1.0, 1.01, 1.5, 10.0):
        assert ahead(v, -more * 100.0 * seconds, 4.0, 100.0) == pytest.approx(v * seconds / 3.0, rel=1e-9)


@settings(max_examples=60)
@given(vectors(0.3), vectors(2.0), vectors(0.15) | vectors(0.003))
def test_where_the_way_turns_too_sharply_it_stays_nearer_to_the_demand_than_each_leg_for_itself(
    rates: np.ndarray, changes: np.ndarray, ahead_m: np.ndarray
) -> None:
    trail = Trail(CENTRE, rates, changes, PERIOD_S, PERIOD_S)
    demand = CENTRE + ahead_m
    paced = pace(BOUNDS, trail, demand.tolist(), [0.0] * N, PERIOD_S)
    assert paced is not None
    # what the jerk alone leaves of every leg's step, far from all ends and from the limit of speed
    low, high = (
        PERIOD_S * (rates + PERIOD_S * np.clip(changes + side * 100.0 * PERIOD_S, -4.0, 4.0)) for side in (-1.0, 1.0)
    )
    step = np.array(paced[0]) - CENTRE
    assert np.all(step >= low - 1e-12)
    assert np.all(step <= high + 1e-12)
    size = np.linalg.norm(ahead_m)
    if size > 1e-6:
        line = ahead_m / size

        def beside(step: np.ndarray) -> float:
            return float(np.linalg.norm(step - (step @ line) * line))

        assert beside(step) <= beside(np.clip(ahead_m, low, high)) + 1e-12


@pytest.mark.parametrize(("outside", "wanted"), [(1.101, 1.1005), (0.749, 0.7495)])
def test_a_leg_outside_its_stroke_may_come_back_part_of_the_way(outside: float, wanted: float) -> None:
    begin = np.where(np.arange(N) == 3, outside, CENTRE)
    drive = Drive(position_m=begin)
    for _ in range(60):
        drive.ask(np.where(np.arange(N) == 3, wanted, CENTRE))
    assert drive.sent[-1][3] == pytest.approx(wanted, abs=2e-5)  # what it overshoots it does not go out again


def test_legs_that_move_and_are_told_to_be_where_they_are_come_back_to_it() -> None:
    drive = Drive()
    for k in range(1, 20):
        drive.ask(HELD.position_m + 5e-4 * k * k / 20.0, np.full(N, 5e-3 * k))
    here = drive.sent[-1]
    for _ in range(80):
        drive.ask(here)
    np.testing.assert_allclose(drive.sent[-1], here, rtol=0, atol=1e-9)
    drive.require_inside()


def test_legs_that_are_too_fast_already_and_still_speed_up_cannot_be_kept_and_that_is_said() -> None:
    for rate, change, kept in ((0.5, 0.0, True), (0.5, 1.0, True), (0.5, 3.0, False), (0.6, 4.0, False)):
        trail = Trail(CENTRE, np.full(N, rate), np.full(N, change), PERIOD_S, PERIOD_S)
        paced = pace(BOUNDS, trail, (CENTRE + 0.01).tolist(), [0.0] * N, PERIOD_S)
        assert (paced is not None) == kept


@pytest.mark.parametrize("near_m", [5e-5, 1e-7])
def test_a_demand_within_reach_that_moves_on_too_fast_is_reached_and_not_passed(near_m: float) -> None:
    way = np.array([1.0, 0.5, -1.0, 0.2, 0.0, -0.3])
    trail = Trail(CENTRE, 0.0 * way, 0.0 * way, PERIOD_S, PERIOD_S, behind=True)
    demand = CENTRE + near_m * way
    paced = pace(BOUNDS, trail, demand.tolist(), (0.3 * way).tolist(), PERIOD_S)
    assert paced is not None
    position, rates, acted = paced
    assert rates is not None
    assert acted is Limit.ACCELERATION
    np.testing.assert_allclose(position, demand, rtol=0, atol=1e-12)


def catch_up(offset: np.ndarray, rate: np.ndarray, begin: int) -> Drive:
    """From rest to a demand that moves steadily, up to 20 ticks after it was caught up with."""
    drive = Drive(position_m=CENTRE)
    for k in range(2 * begin):
        drive.ask(CENTRE + offset + rate * (k - begin) * PERIOD_S, rate)
        if k > 20 and not any(drive.acted[-20:]):
            break
    return drive


@settings(max_examples=30)
@given(vectors(0.04), vectors(0.06))
def test_far_from_all_ends_only_speed_acceleration_and_jerk_act_and_a_steady_demand_is_caught_up_with_for_good(
    offset: np.ndarray, rate: np.ndarray
) -> None:
    drive = catch_up(offset, rate, 200)
    acts = [bool(acted) for acted in drive.acted]
    assert not any(acts[-20:])
    assert sum(one is not other for one, other in itertools.pairwise(acts)) <= (1 if acts[0] else 2)
    for acted in drive.acted:
        assert acted & ~IN_TIME is Limit.NONE
    drive.require_inside()


@pytest.mark.parametrize("first", range(N))
def test_a_leg_that_has_arrived_does_not_carry_the_others_away(first: int) -> None:
    later = (first + 1) % N
    drive = catch_up(0.03125 * np.eye(N)[first], 0.125 * np.eye(N)[later], 80)
    assert not any(drive.acted[-20:])
    beside = [sent[later] - 0.925 for sent in drive.sent]
    assert -0.1 <= min(beside) <= max(beside) <= 0.1  # the demand is nowhere else
