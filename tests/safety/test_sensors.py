"""What the site demands of its sensors: how long one may be away, and what follows when it is required."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.records import AxisMode, Fault, Link, Mode, Quality, RequestKind, Sample, Verdict
from controller.safety.faults import FAULTS, Effect
from controller.safety.sensors import Watch, judge_sensors
from tests.machines import Bench, ask, simulation_setup

NONE = np.empty(0)
LOST = Fault.SENSOR_DEGRADED | Fault.SENSOR_LOST


def sample(quality: list[float], age_s: list[float]) -> Sample:
    return Sample(
        1, 0.01, Link.UP, 0.009, 1, 1, 0, 0, False, False, False, NONE, NONE, NONE, NONE,
        np.zeros(len(age_s)), np.array(age_s), np.array(quality, dtype=float),
    )  # fmt: skip


def after(ticks: list[int], required: bool, quality: float = Quality.BAD, age_s: float = 0.0) -> Fault:
    """The faults after invalid samples that come so many ticks apart."""
    counts, faults = [0], Fault.NONE
    for elapsed in ticks:
        counts, faults = judge_sensors(
            Watch([0.05], [required], [False]), sample([quality], [age_s]), False, counts, elapsed
        )
    return faults


def test_a_lost_required_sensor_stops_and_a_degraded_one_is_told():
    assert FAULTS[Fault.SENSOR_LOST].effect is Effect.STOP
    assert FAULTS[Fault.SENSOR_DEGRADED].effect is Effect.WARN


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize(("quality", "age_s"), [(0, math.inf), (1, 0.0), (2, 0.0), (3, 0.051), (3, math.nan)])
def test_three_ticks_degrade_and_six_lose_what_is_required(required, quality, age_s):
    found = [after([1] * n, required, quality, age_s) for n in range(9)]
    lost = LOST if required else Fault.SENSOR_DEGRADED
    assert found == [Fault.NONE] * 3 + [Fault.SENSOR_DEGRADED] * 3 + [lost] * 3


def test_skipped_ticks_count():
    assert after([3], True) == Fault.SENSOR_DEGRADED
    assert after([2, 4], True) == LOST
    assert after([6], True) == LOST
    assert after([6], False) == Fault.SENSOR_DEGRADED


def test_an_age_up_to_the_limit_is_valid_and_one_valid_value_begins_anew():
    watch = Watch([0.05, 0.3], [True, True], [False, False])
    counts, faults = judge_sensors(watch, sample([3, 3], [0.05, 0.3]), False, [5, 5], 1)
    assert (counts, faults) == ([0, 0], Fault.NONE)
    counts, faults = judge_sensors(watch, sample([3, 3], [0.06, 0.06]), False, [5, 5], 1)
    assert (counts, faults) == ([6, 0], LOST)


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 2.0, 3.0]), st.floats(0.0, 0.1), st.integers(1, 4)), max_size=30))
def test_a_sensor_is_lost_exactly_when_it_was_away_for_six_ticks(history):
    counts, away = [0], 0
    for quality, age_s, elapsed in history:
        away = 0 if quality == 3.0 and age_s <= 0.05 else away + elapsed
        counts, faults = judge_sensors(
            Watch([0.05], [True], [False]), sample([quality], [age_s]), False, counts, elapsed
        )
        assert (Fault.SENSOR_DEGRADED in faults, Fault.SENSOR_LOST in faults) == (away >= 3, away >= 6)


def test_while_the_plc_is_silent_its_terminals_are_not_judged_for_it():
    """One cause, one fault: the link says it. Sensors on lines of their own go on being judged."""
    watch, gone = Watch([0.05, 0.05], [True, True], [True, False]), sample([2, 2], [0.1, 0.1])
    assert judge_sensors(watch, gone, True, [2, 2], 1) == ([2, 3], Fault.SENSOR_DEGRADED)
    assert judge_sensors(watch, gone, False, [2, 2], 4) == ([6, 6], LOST)
    assert judge_sensors(watch, sample([3, 3], [0.0, 0.0]), True, [2, 2], 1) == ([0, 0], Fault.NONE)


def test_a_site_without_sensors_has_none_to_lose():
    assert judge_sensors(Watch([], [], []), sample([], []), False, [], 1) == ([], Fault.NONE)


# ---------------------------------------------------------------- in the cycle


def cells(required: bool) -> Bench:
    """A machine whose load cells the site requires, or does not; each may be 50 ms old."""
    setup = simulation_setup()
    return Bench(setup._replace(watch=Watch([0.05] * 6, [required] * 6, [True] * 6)))


def without_cell_3(given: Sample) -> Sample:
    quality = given.sensor_quality.copy()
    quality[2] = Quality.BAD
    return replace(given, sensor_quality=quality)


TARGET = np.array([0.03, -0.04, 0.03, 0.1, 0.05, -0.08])


def test_nothing_starts_without_a_required_sensor():
    bench = cells(required=True)
    bench.broken = without_cell_3
    bench.run(10)
    assert bench.step(ask(RequestKind.READY)).verdict is Verdict.FAULT_STANDS
    bench.broken = lambda given: given
    bench.ready()
    bench.broken = without_cell_3
    assert bench.run(6).mode is Mode.READY  # held, with the drives on
    assert bench.step(ask(RequestKind.MOVE, bench.setup.home + TARGET)).verdict is Verdict.FAULT_STANDS
    assert bench.step(ask(RequestKind.TARE)).verdict is Verdict.FAULT_STANDS
    bench.broken = lambda given: given
    bench.run(1)
    assert bench.step(ask(RequestKind.MOVE, bench.setup.home + TARGET)).verdict is Verdict.ACCEPTED


def test_a_required_sensor_lost_in_motion_stops_it_inside_the_limits():
    bench = cells(required=True)
    bench.ready()
    bench.step(ask(RequestKind.MOVE, bench.setup.home + TARGET, speed_share=0.3))
    bench.run(30)
    bench.broken = without_cell_3
    modes = [bench.step().mode for _ in range(6)]
    assert modes == [Mode.ACTIVE] * 5 + [Mode.STOPPING]
    assert bench.outputs[-1].faults == LOST
    bench.run(100)
    assert bench.outputs[-1].mode is Mode.READY  # stopped, not tripped
    stopped = [output for output in bench.outputs[-107:] if output.command.axis_mode is AxisMode.FOLLOW]
    assert len(stopped) == 107
    path = np.array([output.command.position_m for output in stopped])
    assert not any(output.limits for output in stopped)
    accelerations = np.diff(path, 2, axis=0) / bench.setup.period_s**2
    assert np.abs(accelerations).max() <= min(bench.setup.limits.acceleration_m_s2)
    np.testing.assert_array_equal(path[-1], path[-10])
    assert np.abs(bench.outputs[-1].estimate.pose - bench.setup.home - TARGET).max() > 1e-3  # not at its end


def test_an_optional_sensor_lost_in_motion_is_told_and_the_motion_goes_on():
    bench = cells(required=False)
    bench.ready()
    bench.step(ask(RequestKind.MOVE, bench.setup.home + TARGET, speed_share=0.3))
    bench.run(30)
    bench.broken = without_cell_3
    bench.run(400)
    assert {output.mode for output in bench.outputs[-400:]} == {Mode.ACTIVE, Mode.READY}
    assert bench.outputs[-1].faults == Fault.SENSOR_DEGRADED
    np.testing.assert_allclose(bench.outputs[-1].estimate.pose, bench.setup.home + TARGET, rtol=0, atol=1e-9)
    assert bench.step(ask(RequestKind.MOVE, bench.setup.home)).verdict is Verdict.ACCEPTED


def test_a_value_that_ages_is_lost_when_it_is_older_than_the_site_allows():
    """A terminal that froze, or a driver that hangs: the reading stays GOOD, only its age tells."""
    bench = cells(required=True)
    bench.ready()
    bench.step(ask(RequestKind.MOVE, bench.setup.home + TARGET, speed_share=0.3))
    bench.run(30)
    frozen_tick = bench.tick

    def aged(given: Sample) -> Sample:
        return replace(given, sensor_age_s=np.full(6, (given.tick - frozen_tick) * bench.setup.period_s + 1e-9))

    bench.broken = aged
    outputs = [bench.step() for _ in range(12)]
    first = next(k for k, output in enumerate(outputs) if Fault.SENSOR_LOST in output.faults)
    assert first == 9  # 0.05 s are over at the fifth tick, the sixth after it is the tenth
    assert outputs[first].mode is Mode.STOPPING
