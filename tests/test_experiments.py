"""The worlds and yardsticks of the experiments in `benchmarks/`, and the switch that two of them use."""

import numpy as np
import pytest
import ruckig
from msgspec.structs import replace

from benchmarks.stopping import least_stop_s
from benchmarks.system import SITES, World, apart
from controller.mechanism import kinematics
from controller.motion.feedforward import leg_demand
from controller.records import Mode, Reference, RequestKind
from controller.settings import load_site
from controller.state import prepare


@pytest.mark.parametrize("seed", range(20))
def test_least_stop_is_that_of_an_optimal_planner(seed):
    rng = np.random.default_rng(seed)
    limit, jerk = rng.uniform(0.5, 5.0), rng.uniform(10.0, 80.0)
    a = rng.uniform(-1.0, 1.0) * limit
    v = rng.choice([-1.0, 1.0]) * (rng.uniform(0.0, 1.0) + 0.5 * a * a / jerk)
    ask = ruckig.InputParameter(1)
    ask.control_interface = ruckig.ControlInterface.Velocity
    ask.current_velocity, ask.current_acceleration = [v], [a]
    ask.max_acceleration, ask.max_jerk = [limit], [jerk]
    plan = ruckig.Trajectory(1)
    ruckig.Ruckig(1).calculate(ask, plan)
    seconds, way = least_stop_s(v, a, limit, jerk)
    assert seconds == pytest.approx(plan.duration, abs=1e-9)
    assert way == pytest.approx(plan.at_time(plan.duration)[0][0], abs=1e-9)


def test_without_screw_compensation_the_axes_are_the_leg_lengths():
    files = load_site(SITES["6-uhu"])
    site = replace(files.site, control=replace(files.site.control, screw_compensation=False))
    with_, without = prepare(files.machine, files.site), prepare(files.machine, site)
    pose, rate = with_.home + np.array([0.02, -0.03, 0.04, 0.4, -0.1, 0.1]), np.array([0.1, 0.2, -0.1, 0.5, 0.3, -0.4])
    moving, resting = Reference(pose, rate, np.zeros(6)), Reference(pose, np.zeros(6), np.zeros(6))

    def demand(setup, reference):
        return leg_demand(setup.machine, setup.drives, reference, np.zeros(6))

    lengths, step_s = np.empty((3, 6)), 1e-6
    for k in (-1, 0, 1):
        kinematics.leg_lengths(with_.machine, pose + k * step_s * rate, lengths[k])
    told = demand(without, moving)
    np.testing.assert_allclose(told.position_m, lengths[0], atol=1e-12)
    np.testing.assert_allclose(told.rate_m_s, (lengths[1] - lengths[-1]) / (2 * step_s), atol=1e-8)
    assert np.abs(demand(with_, moving).position_m - lengths[0]).max() > 1e-4

    def gradient(setup):  # of the axis positions along the six coordinates
        columns = []
        for unit in np.eye(6):
            ends = [
                demand(setup, Reference(pose + s * unit, np.zeros(6), np.zeros(6))).position_m for s in (-1e-6, 1e-6)
            ]
            columns.append((ends[1] - ends[0]) / 2e-6)
        return np.array(columns)

    # either way the same weight is borne: virtual work of the axis forces along each coordinate
    weight = gradient(with_) @ demand(with_, resting).axis_n
    np.testing.assert_allclose(gradient(without) @ demand(without, resting).axis_n, weight, rtol=1e-6, atol=1e-2)


def test_a_stepped_world_moves_the_plant_to_where_it_is_told_and_repeats_itself():
    def moved():
        world = World("6-upru")
        world.ready()
        target = world.setup.home + np.array([0.01, -0.02, 0.03, 0.05, 0.0, -0.04])
        world.order(RequestKind.MOVE, target)
        world.until(lambda output: output.mode is Mode.READY)
        world.until(world.settled)
        return target, world.plant.pose()

    (target, pose), (_, again) = moved(), moved()
    assert pose.tolist() == again.tolist()
    distance_m, angle_rad = apart(pose[None], target[None])
    assert distance_m[0] < 1e-3 and angle_rad[0] < 2e-3  # the joints of the plant are up to 0.2 mm off


def test_a_silent_host_ends_in_standstill():
    world = World("2-upr-2-rpu")
    world.ready()
    world.order(RequestKind.MOVE, world.setup.home + np.array([0.0, 0.0, 0.05, 0.0, 0.0, 0.0]))
    world.until(lambda _: np.abs(world.plant.velocity_m_s).max() > 0.1)
    for _ in range(60):
        world.silent()
    assert np.abs(world.plant.velocity_m_s).max() < 1e-4
    assert not world.cx.twin.powered
