"""The monitor against the simulated plant, whose pushes, friction and cells are known, and against its own rules."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.system import World
from benchmarks.wrench import Sensed
from controller.motion import monitor
from controller.motion.monitor import AXIS, CELL, Loads
from controller.records import Fault, Mode, RequestKind, Sample
from tests.machines import Bench

SUSPECTS = Fault.CELL_SUSPECT | Fault.DRIVE_SUSPECT


def swaying(machine: str, collision: str = "warn", identified: bool = True, **given: object) -> Sensed:
    world = Sensed(machine, collision, identified and machine != "6-upru", **given)
    world.rest()
    world.order(RequestKind.SINE, 0.15 * world.room * [1, -1, 1, 1, 1, -1], frequency_hz=0.5)
    for _ in range(150):
        world.step()
    return world


# ---------------------------------------------------------------- against the plant


@pytest.mark.parametrize("k", range(6))
def test_cells_see_every_push_on_a_moving_platform_within_100_ms(k: int) -> None:
    world = swaying("6-upru")
    for sign in (1.0, -1.0):
        wrench = np.zeros(6)
        wrench[k] = sign * (50.0 if k < 3 else 25.0)
        for _ in range(60):
            before = world.step()
        assert not before.faults
        world.plant.push(wrench)
        outputs = [world.step() for _ in range(30)]
        assert any(Fault.EXTERNAL_LOAD in output.faults for output in outputs[:10])
        assert not any(output.faults & SUSPECTS for output in outputs)
        mean = np.mean([output.wrench for output in outputs[15:]], axis=0)
        # the plant is 6 % heavier and its centre of mass elsewhere: what acceleration makes of that stays
        np.testing.assert_allclose(mean, wrench, rtol=0.0, atol=12.0)
        world.plant.push(np.zeros(6))


def test_pressures_see_a_moment_and_say_nothing_of_forces_on_the_ball() -> None:
    world = swaying("3-ups-s")
    world.plant.push([0.0, 0.0, 0.0, 40.0, 0.0, 0.0])
    outputs = [world.step() for _ in range(30)]
    assert any(Fault.EXTERNAL_LOAD in output.faults for output in outputs[:12])
    assert np.isnan(outputs[-1].wrench[:3]).all()
    assert outputs[-1].wrench[3] == pytest.approx(40.0, abs=15.0)


def test_the_chamber_pressures_go_before_what_the_drives_report() -> None:
    world = swaying("3-ups-s")
    world.broken = lambda sample: replace(sample, drive_n=sample.drive_n + 700.0)
    assert not world.step().faults
    blind = swaying("3-ups-s")
    blind.broken = lambda sample: replace(sample, drive_n=sample.drive_n + 700.0, sensor_quality=0.0 * sample.sensor)
    assert np.abs(blind.step().residual_n).min() > 100.0


def test_drives_see_a_push_too() -> None:
    world = swaying("6-ups")
    world.plant.push([0.0, 70.0, 0.0, 0.0, 0.0, 0.0])
    outputs = [world.step() for _ in range(30)]
    assert any(Fault.EXTERNAL_LOAD in output.faults for output in outputs[:12])


@pytest.mark.parametrize(("machine", "identified"), [("6-upru", False), ("6-ups", False), ("3-ups-s", False)])
def test_nothing_is_seen_where_nothing_is(machine: str, identified: bool) -> None:
    world = Sensed(machine, "trip", identified)
    world.rest()
    for output in world.wander(np.random.default_rng(11), 1000):
        assert not output.faults, (output.wrench, output.residual_n)


@pytest.mark.parametrize("cycles", [1, 2, 3])
def test_set_points_that_a_busy_network_delivers_late_are_no_push(cycles: int, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver, under_way = World._write, list[list[Any]]()
    monkeypatch.setattr(World, "_write", lambda _, command: under_way.append([cycles, command]))
    world = Sensed("6-upru", "trip")

    def cycle() -> None:
        for waiting in under_way:
            waiting[0] -= 1
        while under_way and under_way[0][0] == 0:
            deliver(world, under_way.pop(0)[1])

    world.watch = cycle
    world.rest()
    for output in world.wander(np.random.default_rng(5), 1500):
        assert not output.faults
        size_n = monitor.size_of(output.wrench / world.setup.monitor.scale)
        assert not size_n > world.bounds_n().sum()  # as large for one tick


@pytest.mark.parametrize(("collision", "fault", "mode"), [
    ("trip", Fault.COLLISION, Mode.FAULT), ("warn", Fault.EXTERNAL_LOAD, Mode.ACTIVE), ("off", Fault.NONE, Mode.ACTIVE),
])  # fmt: skip
def test_the_site_says_what_a_push_does(collision: str, fault: Fault, mode: Mode) -> None:
    world = swaying("6-upru", collision)
    world.plant.push([80.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    outputs = [world.step() for _ in range(15)]
    assert (outputs[-1].faults, outputs[-1].mode) == (fault, mode)


def test_a_cell_that_drifts_is_suspect_and_never_a_push() -> None:
    world = swaying("6-upru")
    seen = Fault.NONE
    for _ in range(300):
        world.offset_n[2] += 0.5  # 50 N/s
        seen |= world.step().faults
    assert seen == Fault.CELL_SUSPECT


def test_a_leg_that_rubs_makes_its_drive_suspect_and_is_no_push() -> None:
    world = swaying("6-upru")
    world.plant.stick(1, 100.0)
    seen = Fault.NONE
    for _ in range(300):
        seen |= world.step().faults
    assert seen == Fault.DRIVE_SUSPECT
    world.plant.stick(1, 0.0)
    world.order(RequestKind.OFF)
    for _ in range(200):
        output = world.step()
    assert not output.faults  # with the drives off nothing is suspect any more


def test_a_tare_is_what_the_cells_are_off() -> None:
    world = Sensed("6-upru", "warn")
    world.offset_n[:] = [30.0, -20.0, 0.0, 10.0, 5.0, -40.0]
    world.rest()
    world.order(RequestKind.TARE)
    np.testing.assert_allclose(world.step().residual_n, 0.0, atol=5.0)


def test_a_cell_above_its_capacity_trips() -> None:
    world = swaying("6-upru")
    world.offset_n[4] = 2500.0
    world.step()
    output = world.step()
    assert Fault.OVERFORCE in output.faults and output.mode is Mode.FAULT


# ---------------------------------------------------------------- its rules


def test_what_is_not_known_is_not_a_number_and_judges_nothing() -> None:
    bench = Bench()
    output = bench.step()
    assert np.isnan(output.wrench).all() and np.isnan(output.residual_n).all()  # drives off: brakes bear what they like
    bench.ready()
    output = bench.run(100)
    assert np.isfinite(output.wrench).all()
    # its cells and drives show 0: no error of a model, so nothing is judged
    assert np.isnan(bench.state.monitor.bias_n).all() and not output.faults

    def late(sample: Sample) -> Sample:
        return replace(sample, age_s=0.048)

    bench.broken = late
    assert np.isnan(bench.step().wrench).all()


def test_a_skipped_tick_is_no_push() -> None:
    bench = Bench()
    bench.ready()
    bench.run(100)
    assert np.isfinite(bench.step().wrench).all()
    assert np.isnan(bench.step(ticks=2).wrench).all() or not bench.outputs[-1].faults


def test_where_legs_outnumber_freedoms_what_no_wrench_explains_is_a_drives() -> None:
    dice = np.random.default_rng(1)
    free = np.zeros((6, 3))
    free[[2, 3, 4], [0, 1, 2]] = 1.0
    JT = dice.normal(size=(6, 4))
    bounds_n = np.full((2, 4), 5.0)
    work = free.T @ JT

    def off(axis_n: np.ndarray) -> np.ndarray:
        unknown = np.full(4, np.nan)
        loads = Loads(np.array([unknown, axis_n]), bounds_n, JT, free, np.ones(4, np.bool_), True)
        found, cell = monitor._contradictions(loads, loads.error_n, np.array([False, True]))
        assert not cell.any()
        return found

    pushed = np.linalg.lstsq(work, np.array([80.0, -20.0, 30.0]), rcond=None)[0]
    assert not off(pushed).any()
    among_themselves = 100.0 * np.linalg.svd(work)[2][-1]
    assert off(pushed + among_themselves).any()


def test_two_sources_of_a_leg_are_told_apart_by_which_is_further_from_the_model() -> None:
    loads = Loads(np.zeros((2, 6)), np.full((2, 6), 10.0), np.eye(6), np.eye(6), np.ones(6, np.bool_), True)
    both = np.array([True, True])
    for row in (CELL, AXIS):
        residual_n = np.zeros((2, 6))
        residual_n[row, 3] = -40.0
        off, cell = monitor._contradictions(loads, residual_n, both)
        assert off.tolist() == [False, False, False, True, False, False]
        assert bool(cell[3]) == (row == CELL)
    residual_n = np.full((2, 6), 40.0)  # a push: they agree
    assert not monitor._contradictions(loads, residual_n, both)[0].any()
