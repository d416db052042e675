"""Kinematics against finite differences and against itself backwards."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.mechanism import dynamics, kinematics, layout
from controller.mechanism.layout import Mechanism
from controller.mechanism.model import build, home_pose
from controller.mechanism.platform import rotation_matrix
from controller.service.settings import load_machine

MACHINES = Path(__file__).parents[2] / "config" / "machines"
NAMES = ("6-upru", "6-upru-unequal-legs")


@pytest.fixture(params=NAMES)
def model(request: pytest.FixtureRequest) -> Mechanism:
    return build(load_machine(MACHINES / f"{request.param}.toml")[0])


HOME = home_pose(load_machine(MACHINES / "6-upru.toml")[0])
poses = st.tuples(*[st.floats(-0.14, 0.14)] * 3, *[st.floats(-0.35, 0.35)] * 3).map(lambda d: HOME + np.array(d))


def motion(t: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A smooth path with exact derivatives."""
    a = np.array([0.05, 0.07, 0.06, 0.2, 0.15, 0.18])
    w = np.array([2.1, 1.7, 2.6, 1.9, 2.3, 1.4])
    return HOME + a * np.sin(w * t), a * w * np.cos(w * t), -a * w * w * np.sin(w * t)


@pytest.mark.parametrize("t", [0.1, 0.9, 2.2, 3.7])
def test_rates_and_accelerations_are_the_derivatives_of_the_lengths(model: Mechanism, t: float) -> None:
    h = 1e-4
    q = np.empty((3, 6))
    for k, shift in enumerate((-h, 0.0, h)):
        kinematics.leg_lengths(model, motion(t + shift)[0], q[k])
    at, rate, acceleration = np.empty((3, 6))
    kinematics.leg_rates(model, *motion(t), at, rate, acceleration)
    np.testing.assert_allclose(at, q[1], rtol=0, atol=1e-15)
    np.testing.assert_allclose(rate, (q[2] - q[0]) / (2 * h), rtol=0, atol=1e-7)
    np.testing.assert_allclose(acceleration, (q[2] - 2 * q[1] + q[0]) / h**2, rtol=0, atol=1e-6)


def test_jacobian_is_the_derivative_of_the_lengths_by_the_twist(model: Mechanism) -> None:
    x = HOME + np.array([0.03, -0.05, 0.02, 0.2, -0.1, 0.15])
    J = np.empty((6, 6))
    kinematics.jacobian(model, x, J)
    h = 1e-6
    R = np.empty((3, 3))
    rotation_matrix(x, R)
    for k in range(6):
        q = np.empty((2, 6))
        for j, sign in enumerate((-1, 1)):
            step = np.zeros(6)
            step[k] = sign * h
            q[j] = lengths_at(model, x[:3] + step[:3], turn(step[3:]) @ R)
        np.testing.assert_allclose(J[:, k], (q[1] - q[0]) / (2 * h), rtol=0, atol=1e-9)


def lengths_at(model: Mechanism, o: np.ndarray, R: np.ndarray) -> np.ndarray:
    base, platform = model.legs[:, layout.BASE_JOINT :][:, :3], model.legs[:, layout.PLATFORM_JOINT :][:, :3]
    return np.linalg.norm(o + platform @ R.T - base, axis=1)


def turn(v: np.ndarray) -> np.ndarray:
    x, y, z = v
    return np.array([[1, -z, y], [z, 1, -x], [-y, x, 1]])


@settings(max_examples=200)
@given(poses)
def test_forward_kinematics_inverts_the_lengths(x: np.ndarray) -> None:
    model = build(load_machine(MACHINES / "6-upru.toml")[0])
    q, found, rate = np.empty(6), np.full(6, np.nan), np.full(6, np.nan)
    kinematics.leg_lengths(model, x, q)
    iterations = kinematics.forward(model, q, HOME, np.zeros(6), found)
    assert 0 < iterations <= 12
    R, R_found = np.empty((3, 3)), np.empty((3, 3))
    rotation_matrix(x, R)
    rotation_matrix(found, R_found)
    assert np.abs(found[:3] - x[:3]).max() < 1e-12
    # |R - I| measures a small angle better than its cosine does
    assert np.linalg.norm(R.T @ R_found - np.eye(3)) / math.sqrt(2) < 1e-12
    assert kinematics.platform_rate(model, found, np.zeros(6), q, np.zeros(6), rate) < 1e-13


def test_tracking_at_100_hz_needs_few_iterations(model: Mechanism) -> None:
    q, x = np.empty(6), motion(0.0)[0]
    worst = 0
    for t in np.arange(0.0, 5.0, 0.01):
        kinematics.leg_lengths(model, motion(t)[0], q)
        found = np.empty(6)
        iterations = kinematics.forward(model, q, x, np.zeros(6), found)
        assert iterations > 0
        worst, x = max(worst, iterations), found
    assert worst <= 4


def test_unreachable_lengths_are_not_called_converged(model: Mechanism) -> None:
    q, x = np.empty(6), np.empty(6)
    kinematics.leg_lengths(model, HOME, q)
    q[0] *= 0.1
    assert kinematics.forward(model, q, HOME, np.zeros(6), x) < 0
    q[0] = np.nan
    assert kinematics.forward(model, q, HOME, np.zeros(6), x) < 0


def test_platform_rate_is_the_inverse_of_the_leg_rates(model: Mechanism) -> None:
    x, xd, xdd = motion(1.3)
    q, qd, qdd, found = np.full((4, 6), np.nan)
    kinematics.leg_rates(model, x, xd, xdd, q, qd, qdd)
    kinematics.platform_rate(model, x, np.zeros(6), q, qd, found)
    np.testing.assert_allclose(found, xd, rtol=0, atol=1e-13)


def test_condition_does_not_depend_on_the_unit_of_length(model: Mechanism) -> None:
    large = Mechanism(model.legs.copy(), model.platform.copy())
    large.legs[:, layout.BASE_JOINT : layout.BASE_AXIS] *= 1000
    large.platform[layout.RADIUS] *= 1000
    x = HOME * np.array([1000, 1000, 1000, 1, 1, 1])
    assert kinematics.condition(large, x) == pytest.approx(kinematics.condition(model, HOME), rel=1e-12)


def test_actuator_power_is_the_rate_of_energy_plus_the_work_on_the_world(model: Mechanism) -> None:
    """Power through the legs minus that of gravity has no net over a closed loop: energy comes back."""
    period = 2 * math.pi
    a, w = np.array([0.04, 0.05, 0.03, 0.2, 0.15, 0.1]), np.array([1, 2, 1, 3, 2, 1])
    times = np.linspace(0.0, period, 4001)[:-1]
    x = HOME + a * np.sin(np.outer(times, w))
    xd = a * w * np.cos(np.outer(times, w))
    xdd = -a * w * w * np.sin(np.outer(times, w))
    f, f_cell, q, qd, qdd = np.empty((5, len(times), 6))
    dynamics.inverse_dynamics_batch(model, x, xd, xdd, np.zeros_like(x), f, f_cell)
    kinematics.leg_rates_batch(model, x, xd, xdd, q, qd, qdd)
    power = np.sum(f * qd, axis=1)
    assert np.abs(power).max() > 1.0
    assert abs(power.mean()) < 1e-9 * np.abs(power).max()


def test_singular_pose_is_told_and_leaves_no_numbers() -> None:
    flat = build(load_machine(MACHINES / "6-upru.toml")[0])
    joints = slice(layout.PLATFORM_JOINT, layout.PLATFORM_JOINT + 3)
    flat.legs[:, joints] = flat.legs[0, joints]  # all legs meet in one point
    x, zero = np.zeros(6), np.zeros(6)
    f, f_cell = np.zeros((2, 6))
    status = dynamics.inverse_dynamics(flat, x + HOME, zero, zero, zero, f, f_cell)
    assert status == -1 or np.abs(f).max() > 1e12
