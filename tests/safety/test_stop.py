"""STOP in every mode and in every kind of motion: to rest inside all limits, and nothing moves afterwards.

Once on the bench, at many moments, where what is sent can be judged exactly; once with PLC, drives and plant.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from benchmarks.system import World
from controller import schema
from controller.records import AxisMode, Limit, Mode, Output, Request, RequestKind, Sample, Stream, Verdict
from controller.settings import load_site
from controller.state import prepare
from drivers.exchange import PlcState
from tests.machines import NOTHING, SIMULATION, Bench, ask
from tests.safety.test_guard import differences

STOP = ask(RequestKind.STOP)
WITHIN_TICKS = 50  # half a second, from any speed
LATER_TICKS = 100
TABLES = {
    "stream": schema.Stream(address="127.0.0.1:0"),
    "tracks": {
        "sway": schema.FourierTrack(
            base_frequency_hz=0.7, periods=3, sine=schema.Harmonics(x_m=[0.03], roll_rad=[0.0, 0.05])
        )
    },
}
HOMING = schema.Homing(method="reference", length_m=0.92, speed_m_s=0.02, travel_m=0.03, timeout_s=4.0)
FILES = load_site(SIMULATION)
SETUP = prepare(FILES.machine, msgspec.structs.replace(FILES.site, **TABLES))
FAR = SETUP.home + np.array([0.05, -0.04, 0.06, 0.2, 0.1, -0.1])
AMPLITUDE = np.array([0.03, 0.0, 0.02, 0.1, 0.0, 0.05])
MOTIONS = {
    "MOVE": ask(RequestKind.MOVE, FAR),
    "SINE": ask(RequestKind.SINE, AMPLITUDE, frequency_hz=0.8),
    "TRACK": ask(RequestKind.TRACK, track=0),
    "STREAM": ask(RequestKind.STREAM),
}


def host(sample: Sample) -> Sample:
    """A host that sends a pose every tick and goes on whatever the machine does."""
    t = sample.tick * SETUP.period_s
    way = 0.04 * np.array([1.0, 0.5, -0.5, 0.0, 2.0, 0.0]) * np.sin(3.0 * t)
    return replace(sample, stream=Stream(sample.tick, t, 0.0, SETUP.home + way * min(t / 0.7, 1.0) ** 3))


def moving(motion: str) -> Bench:
    bench = Bench(SETUP)
    bench.broken = host
    bench.ready()
    assert bench.step(MOTIONS[motion]).verdict is Verdict.ACCEPTED
    return bench


def require_stop(outputs: list[Output], stopped: int) -> None:
    """Everything that was sent is inside the limits; `outputs[stopped]` answers STOP, and soon nothing moves."""
    limits = SETUP.limits
    sent = [output.command.position_m for output in outputs if output.command.axis_mode is AxisMode.FOLLOW]
    speed, acceleration, jerk = differences([k * SETUP.period_s for k in range(len(sent))], sent)
    assert speed <= limits.speed_m_s[0]
    assert acceleration <= limits.acceleration_m_s2[0]
    assert jerk <= limits.jerk_m_s3[0] * (1 + 1e-6)
    assert np.all(np.array(sent) >= limits.length_min_m)
    assert np.all(np.array(sent) <= limits.length_max_m)
    assert not any(output.limits & ~Limit.POSE or output.faults for output in outputs)  # of the host's poses it is one
    modes = [output.mode for output in outputs[stopped:]]
    standing = modes.index(Mode.READY)
    assert standing <= WITHIN_TICKS
    assert modes == [Mode.STOPPING] * standing + [Mode.READY] * (len(modes) - standing)
    rest = outputs[stopped + standing].command.position_m
    for output in outputs[stopped + standing :]:
        np.testing.assert_array_equal(output.command.position_m, rest)
        assert not output.command.velocity_m_s.any()


@pytest.mark.parametrize("motion", MOTIONS)
def test_at_any_moment_of_any_motion(motion: str) -> None:
    goes_on, fastest = moving(motion), 0.0
    for ticks in (1, 1, 1, 2, 4, 8, 13, 17, 23, 41):
        goes_on.run(ticks)
        if goes_on.outputs[-1].mode is not Mode.ACTIVE:
            assert motion == "MOVE"  # it has arrived
            continue
        bench = copy.copy(goes_on)
        bench.outputs = [*goes_on.outputs]
        at, before = len(bench.outputs), bench.outputs[-1].command
        fastest = max(fastest, float(np.abs(before.velocity_m_s).max()))
        assert bench.step(STOP).verdict is Verdict.ACCEPTED
        bench.run(WITHIN_TICKS + LATER_TICKS)
        require_stop(bench.outputs, at)
        # in the direction of the motion: nobody goes back first
        way = bench.outputs[-1].command.position_m - before.position_m
        assert np.all(way * before.velocity_m_s >= -1e-3 * np.abs(before.velocity_m_s))
    assert fastest > 0.05


@pytest.mark.parametrize("motion", MOTIONS)
def test_a_second_stop_changes_nothing(motion: str) -> None:
    once, twice = moving(motion), moving(motion)
    for bench, second in ((once, NOTHING), (twice, STOP)):
        bench.run(50)
        bench.step(STOP)
        bench.run(2)
        assert bench.outputs[-1].mode is Mode.STOPPING
        assert bench.step(second).verdict in (Verdict.NONE, Verdict.ACCEPTED)
        bench.run(WITHIN_TICKS)
    for one, other in zip(once.outputs, twice.outputs, strict=True):
        np.testing.assert_array_equal(one.command.position_m, other.command.position_m)


def test_a_motion_asked_for_in_the_tick_after_a_stop_waits_for_standstill() -> None:
    bench = moving("MOVE")
    bench.run(30)
    at = len(bench.outputs)
    bench.step(STOP)
    for _ in range(5):
        assert bench.step(MOTIONS["MOVE"]).verdict is Verdict.WRONG_MODE
    bench.run(WITHIN_TICKS + LATER_TICKS)
    require_stop(bench.outputs, at)
    assert bench.step(MOTIONS["MOVE"]).verdict is Verdict.ACCEPTED
    np.testing.assert_allclose(bench.run(400).command.position_m[0], moving("MOVE").run(400).command.position_m[0])


def test_while_the_drives_come_on_it_is_accepted_and_they_hold_where_they_are() -> None:
    bench = Bench(SETUP)
    where = bench.lengths_m
    bench.broken = lambda sample: replace(sample, drives_enabled=sample.tick > 20)
    bench.step(ask(RequestKind.READY))
    bench.run(5)
    output = bench.step(STOP)
    assert (output.verdict, output.mode, output.command.axis_mode) == (Verdict.ACCEPTED, Mode.READY, AxisMode.HOLD)
    output = bench.run(LATER_TICKS)
    assert (output.mode, output.command.axis_mode) == (Mode.READY, AxisMode.FOLLOW)
    for output in bench.outputs:
        np.testing.assert_allclose(output.command.position_m, where, rtol=0, atol=1e-9)


def test_where_nothing_moves_it_is_accepted_and_changes_nothing() -> None:
    bench = Bench(SETUP)
    where = bench.lengths_m
    stays: list[tuple[Mode, Callable[[], object]]] = [
        (Mode.OFF, lambda: None),
        (Mode.READY, bench.ready),
        (Mode.FAULT, lambda: setattr(bench, "broken", lambda sample: replace(sample, drives_fault=True))),
    ]
    for mode, bring in stays:
        bring()
        bench.run(2)
        before = bench.outputs[-1]
        for request in (STOP, *[NOTHING] * LATER_TICKS):
            output = bench.step(request)
            assert output.verdict is (Verdict.ACCEPTED if request is STOP else Verdict.NONE)
            assert (output.mode, output.command.axis_mode) == (mode, before.command.axis_mode)
            np.testing.assert_allclose(output.command.position_m, where, rtol=0, atol=1e-9)


# ---------------------------------------------------------------- with PLC, drives and plant


def run(world: World, requests: Iterable[Request]) -> list[Output]:
    return [world.step(request) for request in requests]


@pytest.mark.parametrize("motion", MOTIONS)
def test_the_plant_comes_to_rest_and_stays(motion: str) -> None:
    world = World("6-upru", tables=TABLES)
    world.broken = host
    world.ready()
    assert world.step(MOTIONS[motion]).verdict is Verdict.ACCEPTED
    world.until(lambda _: bool(np.abs(world.plant.velocity_m_s).max() > 0.05))
    assert world.step(STOP).verdict is Verdict.ACCEPTED
    outputs = run(world, [NOTHING] * WITHIN_TICKS)
    rest_m = world.plant.position_m
    speeds_m_s = []
    for _ in range(LATER_TICKS):
        outputs.append(world.step())
        speeds_m_s.append(np.abs(world.plant.velocity_m_s).max())
    assert max(speeds_m_s) < 5e-3
    assert np.abs(world.plant.position_m - rest_m).max() < 2e-4
    assert {output.mode for output in outputs} == {Mode.STOPPING, Mode.READY}
    assert not any(output.faults for output in outputs)
    assert world.cx.twin.error == 0
    assert world.cx.twin.state != PlcState.QUICK_STOP


@pytest.mark.parametrize("ticks", [1, 10, 30, 90])
def test_homing_ends_in_off_the_plant_at_rest_and_nothing_is_homed(ticks: int) -> None:
    world = World("6-upru", cell={"homed": False}, tables={"homing": HOMING})
    world.order(RequestKind.HOME)
    run(world, [NOTHING] * ticks)
    output = world.step(STOP)
    assert (output.verdict, output.mode, output.command.axis_mode) == (Verdict.ACCEPTED, Mode.OFF, AxisMode.STOP)
    run(world, [NOTHING] * WITHIN_TICKS)
    rest_m = world.plant.position_m
    outputs = run(world, [NOTHING] * LATER_TICKS)
    assert np.abs(world.plant.position_m - rest_m).max() < 1e-5
    assert all(output.mode is Mode.OFF and not output.faults for output in outputs)
    assert not world.cx.twin.powered
    assert world.ask(RequestKind.READY).verdict is Verdict.NOT_HOMED


def test_while_enabling_the_plant_does_not_move_and_ends_ready() -> None:
    world = World("6-upru", tables=TABLES)
    run(world, [NOTHING] * 5)
    rest_m = world.plant.position_m
    world.order(RequestKind.READY)
    run(world, [NOTHING] * 3)
    assert not world.state.latched
    assert world.step(STOP).verdict is Verdict.ACCEPTED
    outputs = run(world, [NOTHING] * LATER_TICKS)
    assert world.state.latched
    assert {output.mode for output in outputs} == {Mode.READY}
    assert np.abs(world.plant.position_m - rest_m).max() < 1e-3
