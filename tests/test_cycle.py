"""The cycle on a stepped clock: modes, bumpless changes, faults, and that it is a function of its inputs."""

from dataclasses import replace

import numpy as np
import pytest

from controller.records import AxisMode, Fault, Limit, Link, Mode, RequestKind, Sample, Timing, Verdict, channels, pack
from controller.records import unpack_inputs as unpack
from tests.machines import CELLS, Bench, ask

UP = np.array([0.03, -0.04, 0.03, 0.1, 0.05, -0.08])


@pytest.fixture
def bench() -> Bench:
    return Bench()


def steps(bench: Bench) -> np.ndarray:
    """Largest second difference of the set-points that were to be followed, m."""
    sent = [o.command.position_m for o in bench.outputs if o.command.axis_mode is AxisMode.FOLLOW]
    return np.abs(np.diff(np.array(sent), n=2, axis=0)).max()


def test_off_sends_stop_and_moves_nothing(bench: Bench) -> None:
    output = bench.run(20)
    assert output.mode is Mode.OFF
    assert {o.command.axis_mode for o in bench.outputs} == {AxisMode.STOP}
    assert output.faults is Fault.NONE


def test_ready_move_stop_off(bench: Bench) -> None:
    bench.ready()
    assert bench.outputs[-1].mode is Mode.READY
    target = bench.setup.home + UP
    assert bench.step(ask(RequestKind.MOVE, target)).verdict is Verdict.ACCEPTED
    bench.run(400)
    assert bench.outputs[-1].mode is Mode.READY
    np.testing.assert_allclose(bench.outputs[-1].estimate.pose, target, rtol=0, atol=1e-9)
    assert bench.step(ask(RequestKind.SINE, 0.3 * UP, frequency_hz=0.5)).verdict is Verdict.ACCEPTED
    bench.run(300)
    assert bench.outputs[-1].mode is Mode.ACTIVE
    assert bench.step(ask(RequestKind.STOP)).mode is Mode.STOPPING
    bench.run(60)
    assert bench.outputs[-1].mode is Mode.READY
    assert bench.step(ask(RequestKind.OFF)).mode is Mode.OFF
    assert not any(o.limits for o in bench.outputs)
    limit = bench.setup.limits.acceleration_m_s2[0] * bench.setup.period_s**2
    assert steps(bench) <= limit  # no jump in position or speed at any change of mode


def test_off_while_moving_stops_first(bench: Bench) -> None:
    bench.ready()
    bench.step(ask(RequestKind.MOVE, bench.setup.home + UP))
    bench.run(20)
    assert bench.step(ask(RequestKind.OFF)).mode is Mode.STOPPING
    bench.run(100)
    assert bench.outputs[-1].mode is Mode.OFF
    assert bench.outputs[-1].command.axis_mode is AxisMode.STOP


def test_a_move_needs_ready_and_is_refused_with_the_reason(bench: Bench) -> None:
    target = bench.setup.home + UP
    assert bench.step(ask(RequestKind.MOVE, target)).verdict is Verdict.WRONG_MODE
    assert bench.step(ask(RequestKind.READY)).verdict is Verdict.ACCEPTED
    assert bench.step(ask(RequestKind.MOVE, target)).verdict is Verdict.NOT_READY
    bench.run(5)
    far = bench.setup.home + np.array([0.5, 0, 0, 0, 0, 0])
    assert bench.step(ask(RequestKind.MOVE, far)).verdict is Verdict.UNREACHABLE
    nothing = np.full(6, np.nan)
    assert bench.step(ask(RequestKind.MOVE, nothing)).verdict is Verdict.NOT_FINITE
    assert bench.step(ask(RequestKind.MOVE, target, speed_share=0.0)).verdict is Verdict.OUT_OF_RANGE
    assert bench.step(ask(RequestKind.SINE, UP, frequency_hz=0.0)).verdict is Verdict.OUT_OF_RANGE
    assert bench.step(ask(RequestKind.SINE, UP, frequency_hz=4.9)).verdict is Verdict.UNREACHABLE
    assert bench.outputs[-1].mode is Mode.READY
    assert bench.step(ask(RequestKind.MOVE, target)).verdict is Verdict.ACCEPTED


FAULTS = {
    Fault.LINK_LOST: lambda s: replace(s, link=Link.DOWN),
    Fault.STATUS_STALE: lambda s: replace(s, age_s=0.13),
    Fault.PLC_STOPPED: lambda s: replace(s, plc_stopped=True),
    Fault.DRIVE: lambda s: replace(s, drives_fault=True),
    Fault.SAMPLE_NOT_FINITE: lambda s: replace(s, drive_n=np.full(6, np.nan)),
    Fault.POSE_UNKNOWN: lambda s: replace(s, length_m=np.array([0.2, 1.5, 0.2, 1.5, 0.2, 1.5])),
    Fault.FOLLOWING_ERROR: lambda s: replace(s, setpoint_m=s.length_m + 0.02),
    Fault.STROKE: lambda s: replace(s, length_m=s.length_m + 0.2, setpoint_m=s.length_m + 0.2),
    Fault.OVERSPEED: lambda s: replace(s, length_m_s=np.full(6, 0.7)),
    Fault.OVERFORCE: lambda s: replace(s, drive_n=np.full(6, -1000.0)),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_tripping_fault_while_moving_stops_in_the_same_tick_latches_and_needs_two_requests(
    bench: Bench, fault: Fault
) -> None:
    bench.ready()
    target = bench.setup.home + UP
    bench.step(ask(RequestKind.MOVE, target))
    bench.run(30)
    bench.broken = FAULTS[fault]
    output = bench.step()
    assert fault in output.faults
    assert output.mode is Mode.FAULT
    assert output.command.axis_mode is AxisMode.STOP
    assert not output.command.velocity_m_s.any()
    if fault is not Fault.FOLLOWING_ERROR:  # without power there is no set-point to lag behind
        assert bench.step(ask(RequestKind.ACKNOWLEDGE)).verdict is Verdict.FAULT_STANDS
    bench.broken = lambda sample: sample
    assert bench.run(50).mode is Mode.FAULT  # the cause is gone, the latch stays
    assert fault in bench.outputs[-1].faults
    assert bench.step(ask(RequestKind.ACKNOWLEDGE)).mode is Mode.OFF
    assert bench.run(50).mode is Mode.OFF  # no motion without a new request: the plan is gone
    where = bench.lengths_m
    bench.ready()
    np.testing.assert_allclose(bench.lengths_m, where, rtol=0, atol=1e-9)


def test_a_frozen_task_counter_trips(bench: Bench) -> None:
    bench.ready()
    bench.broken = lambda sample: replace(sample, plc_cycle=77)
    bench.run(1)
    outputs = [bench.step() for _ in range(5)]
    assert Fault.PLC_FROZEN in outputs[-1].faults
    assert outputs[-1].mode is Mode.FAULT


def test_a_move_that_arrives_in_the_tick_in_which_the_last_one_ends_is_followed(bench: Bench) -> None:
    bench.ready()
    there, back = bench.setup.home + UP, bench.setup.home
    bench.step(ask(RequestKind.MOVE, there))
    while bench.state.tick * bench.setup.period_s < bench.state.plan.end_s - bench.setup.period_s:
        assert bench.step().mode is Mode.ACTIVE
    output = bench.step(ask(RequestKind.MOVE, back))
    assert (output.verdict, output.mode) == (Verdict.ACCEPTED, Mode.ACTIVE)
    np.testing.assert_allclose(bench.run(400).estimate.pose, back, rtol=0, atol=1e-9)


def test_drives_that_do_not_come_on_trip(bench: Bench) -> None:
    bench.broken = lambda sample: replace(sample, drives_enabled=False)
    bench.step(ask(RequestKind.READY))
    assert bench.run(280).mode is Mode.READY
    output = bench.run(40)
    assert output.mode is Mode.FAULT
    assert Fault.ENABLE_TIMEOUT in output.faults


def test_faults_in_off_are_shown_and_latch_nothing(bench: Bench) -> None:
    bench.broken = FAULTS[Fault.LINK_LOST]
    output = bench.run(5)
    assert output.mode is Mode.OFF
    assert Fault.LINK_LOST in output.faults
    assert bench.step(ask(RequestKind.READY)).verdict is Verdict.NO_LINK
    bench.broken = lambda sample: sample
    assert bench.run(1).faults is Fault.NONE


def test_five_late_ticks_in_a_row_stop_the_motion_but_do_not_latch(bench: Bench) -> None:
    bench.ready()
    bench.step(ask(RequestKind.MOVE, bench.setup.home + UP))
    bench.run(20)
    assert bench.step(ticks=2).mode is Mode.ACTIVE
    bench.run(10)
    assert bench.step(ticks=5).mode is Mode.ACTIVE
    output = bench.step(ticks=2)
    assert Fault.OVERRUN in output.faults
    assert output.mode is Mode.STOPPING
    bench.run(100)
    assert bench.outputs[-1].mode is Mode.READY


def test_a_late_status_stops_the_motion_and_a_new_request_goes_on(bench: Bench) -> None:
    bench.ready()
    bench.step(ask(RequestKind.MOVE, bench.setup.home + UP))
    bench.run(20)
    bench.broken = lambda sample: replace(sample, age_s=0.05)
    output = bench.step()
    assert output.faults is Fault.STATUS_LATE
    assert output.mode is Mode.STOPPING
    bench.broken = lambda sample: sample
    bench.run(100)
    assert bench.outputs[-1].mode is Mode.READY
    assert bench.step(ask(RequestKind.MOVE, bench.setup.home + UP)).verdict is Verdict.ACCEPTED


def test_a_skipped_tick_makes_no_speed_above_the_plan(bench: Bench) -> None:
    bench.ready()
    bench.step(ask(RequestKind.MOVE, bench.setup.home + UP))
    bench.run(25)
    before = bench.outputs[-1]
    after = bench.step(ticks=3)
    assert after.limits is Limit.NONE
    step = (after.command.position_m - before.command.position_m) / (3 * bench.setup.period_s)
    np.testing.assert_allclose(step, before.command.velocity_m_s, rtol=0, atol=0.08)


def test_force_feed_forward_switches_off_by_the_site_file(bench: Bench) -> None:
    control = bench.setup.control
    plain = Bench(bench.setup._replace(control=type(control)(force_feedforward=0.0)))
    for each in (bench, plain):
        each.ready()
        each.step(ask(RequestKind.MOVE, each.setup.home + UP))
        each.run(30)
    np.testing.assert_array_equal(bench.outputs[-1].command.position_m, plain.outputs[-1].command.position_m)
    assert not plain.outputs[-1].command.force_n.any()
    assert np.abs(bench.outputs[-1].command.force_n).min() > 10.0


def test_stored_inputs_come_back_bit_for_bit_and_give_the_same_outputs(bench: Bench) -> None:
    row = np.empty(len(channels(6, CELLS)))
    seen: list[tuple[Sample, object]] = []
    bench.broken = lambda sample: seen.append((sample, None)) or sample
    bench.ready()
    request = ask(RequestKind.SINE, 0.3 * UP, frequency_hz=0.7)
    before = bench.state
    output = bench.step(request)
    pack(row, seen[-1][0], request, output, Timing(0.1, 0.2, np.nan, 3, 4))
    sample, again = unpack(row, 6, 6)
    assert (again.kind, again.id, again.frequency_hz) == (request.kind, request.id, request.frequency_hz)
    for name in ("length_m", "length_m_s", "setpoint_m", "drive_n", "sensor", "sensor_age_s", "sensor_quality"):
        np.testing.assert_array_equal(getattr(sample, name), getattr(seen[-1][0], name))
    from controller.cycle import cycle

    _, second = cycle(bench.setup, before, sample, again)
    other = np.empty_like(row)
    pack(other, sample, again, second, Timing(0.1, 0.2, np.nan, 3, 4))
    np.testing.assert_array_equal(other.view(np.uint64), row.view(np.uint64))


def test_nothing_that_is_no_number_reaches_the_wire(bench: Bench) -> None:
    bench.ready()
    bench.step(ask(RequestKind.MOVE, bench.setup.home + UP))
    for name in ("length_m", "length_m_s", "setpoint_m", "drive_n", "sensor", "sensor_age_s"):
        for value in (np.nan, np.inf, 1e308, -0.0):
            bench.broken = lambda s, n=name, v=value: replace(s, **{n: np.full(6, v)})
            command = bench.step().command
            for part in (command.position_m, command.velocity_m_s, command.force_n):
                assert np.isfinite(part).all()
