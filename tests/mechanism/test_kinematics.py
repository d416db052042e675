"""Kinematics against itself backwards, along continuous motions, and in other units; every machine file."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from controller.mechanism import dynamics, kinematics, layout, posture
from controller.mechanism.layout import Mechanism
from controller.mechanism.model import build, home_pose
from controller.records import POSE
from tests.mechanism.test_physics import NAMES, Model, axis_motion, machine_of, pose, state, without_friction

FREE = tuple(name for name in NAMES if machine_of(name).platform.kind == "free")
RESIDUAL_M = 1e-6  # where legs outnumber freedoms, a converged pose may still contradict the lengths
ZERO = np.zeros(6)
MILLIMETRES = np.array([1000.0] * 3 + [1.0] * 3)  # of a pose in metres
# Half ranges of the independent coordinates about home, in which every machine is far from singular.
REACH = {
    "free": np.array([0.14] * 3 + [0.35] * 3), "spherical": np.array([0.3] * 3), "2r1t": np.array([0.08, 0.4, 0.4]),
}  # fmt: skip


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def kernels_of(name: str) -> Mechanism:
    return build(machine_of(name))


def home_of(name: str) -> np.ndarray:
    return home_pose(machine_of(name))


def positions(kernels: Mechanism, x: np.ndarray) -> np.ndarray:
    """Axis positions, the twist on its branch at home."""
    return axis_motion(kernels, x, ZERO, ZERO)[0]


def solve(kernels: Mechanism, q: np.ndarray, guess: np.ndarray, twist: np.ndarray | None = None) -> tuple:
    """Iterations and pose (6,)."""
    x = np.full(6, np.nan)
    return kinematics.forward(kernels, q, guess, np.zeros(len(q)) if twist is None else twist, x), x


def apart(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Distance and angle between two poses. |R - 1| measures a small angle better than its cosine does."""
    turn = Rotation.from_euler("ZYX", x[3:]).as_matrix().T @ Rotation.from_euler("ZYX", y[3:]).as_matrix()
    return float(np.linalg.norm(x[:3] - y[:3])), float(np.linalg.norm(turn - np.eye(3)) / math.sqrt(2))


def tilted(name: str, tilt: float, azimuth: float, shift: np.ndarray | float = 0.0) -> np.ndarray:
    """Home tilted by an angle about a horizontal axis; 2R1T platforms tilt by a and b instead."""
    model, home = Model(machine_of(name)), home_of(name)
    axis = np.array([math.cos(azimuth), math.sin(azimuth), 0.0])
    if model.kind == "2r1t":
        return pose(model, model.home() + tilt * np.array([0.0, axis[0], axis[1]]))
    turned = Rotation.from_rotvec(tilt * axis) * Rotation.from_euler("ZYX", home[3:])
    return np.array([*(home[:3] + shift * (model.kind == "free")), *turned.as_euler("ZYX")])


# ---------------------------------------------------------------- round trips


def round_trip(name: str, share: np.ndarray, most: int) -> None:
    model = Model(machine_of(name))
    kernels, reach = build(model.machine), REACH[model.kind]
    x = pose(model, model.home() + reach * share[: len(reach)])
    q = positions(kernels, x)
    iterations, found = solve(kernels, q, home_of(name))
    assert 0 < iterations <= most
    distance, angle = apart(x, found)
    assert distance < 1e-12
    assert angle < 1e-12
    twist, rate = np.zeros(len(q)), np.full(6, np.nan)
    assert kinematics.platform_rate(kernels, found, twist, q, np.zeros(len(q)), rate) < 1e-12
    assert (rate == 0.0).all()


@settings(max_examples=200)
@given(st.sampled_from(NAMES), st.tuples(*[st.floats(-1.0, 1.0)] * 6).map(np.array))
def test_forward_kinematics_inverts_the_axis_positions(name: str, share: np.ndarray) -> None:
    """Corners and edges of the box included: hypothesis likes them."""
    round_trip(name, share, most=12)


def test_forward_kinematics_inverts_a_thousand_random_poses(name: str) -> None:
    for share in np.random.default_rng(1).uniform(-1, 1, (1000, 6)):
        round_trip(name, share, most=8)


@pytest.mark.parametrize("name", FREE)
def test_from_home_to_fifty_degrees_of_tilt(name: str) -> None:
    kernels, home = kernels_of(name), home_of(name)
    counts = []
    for azimuth in np.radians(np.arange(0.0, 360.0, 3.0)):
        x = tilted(name, math.radians(50.0), azimuth)
        iterations, found = solve(kernels, positions(kernels, x), home)
        assert max(apart(x, found)) < 1e-12
        counts.append(iterations)
    assert min(counts) > 0
    assert np.median(counts) <= 8
    assert max(counts) <= 12


def test_tracking_at_100_hz_needs_few_iterations(name: str) -> None:
    """Tilts up to 40 degrees either way at up to 50 degrees a second while the axis of tilt goes round."""
    kernels = kernels_of(name)
    x, twist, q_twist = home_of(name), np.zeros(len(kernels.legs)), np.zeros(len(kernels.legs))
    worst, largest = 0, 0.0
    for t in np.arange(0.0, 10.0, 0.01):
        tilt = math.radians(40.0) * math.sin(1.25 * t)
        target = tilted(name, tilt, 0.5 * t, 0.05 * np.sin(np.array([2.1, 1.7, 2.6]) * t))
        q = np.full((3, len(twist)), np.nan)
        kinematics.axis_rates(kernels, target, ZERO, ZERO, q_twist, *q)
        iterations, x = solve(kernels, q[0], x, twist)
        assert iterations > 0
        assert max(apart(target, x)) < 1e-12
        worst, largest = max(worst, iterations), max(largest, abs(tilt))
    assert worst <= 4
    assert largest > math.radians(39.9)


# ---------------------------------------------------------------- verdicts


def verdict(kernels: Mechanism, q: np.ndarray, home: np.ndarray) -> tuple[int, bool]:
    """Iterations, and whether the pose has these axis positions."""
    iterations, x = solve(kernels, q, home)
    twist, rate = np.zeros(len(q)), np.full(6, np.nan)
    if iterations < 0:
        return iterations, False
    return iterations, kinematics.platform_rate(kernels, x, twist, q, np.zeros(len(q)), rate) <= RESIDUAL_M


UNREACHABLE = {
    "one far too short": lambda q: np.concatenate([[0.1 * q[0]], q[1:]]),
    "one far too long": lambda q: np.concatenate([[4.0 * q[0]], q[1:]]),
    "all far too short": lambda q: 0.1 * q,
    "every other too long": lambda q: q * np.where(np.arange(len(q)) % 2, 3.0, 0.5),
    "one not a number": lambda q: np.concatenate([[math.nan], q[1:]]),
    "one infinite": lambda q: np.concatenate([q[:-1], [math.inf]]),
}


@pytest.mark.parametrize("mistake", UNREACHABLE)
def test_unreachable_lengths_are_not_called_converged(name: str, mistake: str) -> None:
    kernels, home = kernels_of(name), home_of(name)
    kernels.legs[:, layout.SCREW] = 0.0  # of lengths alone: a long axis of a screw may just be a twisted leg
    assert verdict(kernels, positions(kernels, home), home)[1]
    assert not verdict(kernels, UNREACHABLE[mistake](positions(kernels, home)), home)[1]


def scaled(kernels: Mechanism, factor: float) -> Mechanism:
    """The same machine in another unit of length."""
    large = Mechanism(kernels.legs.copy(), kernels.platform.copy())
    large.legs[:, layout.BASE_JOINT : layout.BASE_AXIS] *= factor
    large.legs[:, layout.SCREW] *= factor
    large.platform[layout.HOME : layout.HOME + 3] *= factor
    large.platform[layout.RADIUS] *= factor
    return large


def test_verdict_and_iterations_do_not_depend_on_the_unit_of_length(name: str) -> None:
    """From poses as they come to lengths that no pose has."""
    kernels, home, rng = kernels_of(name), home_of(name), np.random.default_rng(3)
    large, far = scaled(kernels, 1000.0), home * MILLIMETRES
    q = positions(kernels, home)
    found = set()
    for k in range(200):
        wanted = q * rng.uniform(0.97, 1.03, len(q)) if k % 2 else q * rng.uniform(0.1, 0.3, len(q))
        small, big = solve(kernels, wanted, home), solve(large, 1000.0 * wanted, far)
        assert small[0] == big[0]
        found.add(small[0] > 0)
        if small[0] > 0:
            assert max(apart(small[1], big[1] / MILLIMETRES)) < 1e-10
    assert found == {True, False} or name == "2-upr-2-rpu"  # least squares always finds something


def test_condition_does_not_depend_on_the_unit_of_length(name: str) -> None:
    kernels, home = kernels_of(name), home_of(name)
    right = posture.condition(kernels, home)
    assert posture.condition(scaled(kernels, 1000.0), home * MILLIMETRES) == pytest.approx(right, rel=1e-12)


def test_singular_pose_is_told_and_leaves_no_numbers() -> None:
    flat = kernels_of("6-upru")
    joints = slice(layout.PLATFORM_JOINT, layout.PLATFORM_JOINT + 3)
    flat.legs[:, joints] = flat.legs[0, joints]  # all legs meet in one point
    f, f_cell = np.zeros((2, 6))
    status = dynamics.inverse_dynamics(flat, home_of("6-upru"), ZERO, ZERO, ZERO, f, f_cell)
    assert status == -1 or np.abs(f).max() > 1e12


def test_three_symmetric_legs_cannot_turn_a_spherical_platform_at_zero_yaw() -> None:
    """Why home of the 3-UPS/S is turned: the condition says so, and no step of Newton's is trusted there."""
    kernels, home = kernels_of("3-ups-s"), home_of("3-ups-s")
    assert posture.condition(kernels, home) < 10.0
    level = np.concatenate([home[:3], ZERO[:3]])
    assert posture.condition(kernels, level) > 1e12


# ---------------------------------------------------------------- closed loops


def test_power_through_the_axes_has_no_net_over_a_closed_loop(name: str) -> None:
    """Without friction all energy comes back."""
    model = Model(without_friction(machine_of(name)))
    kernels, f = build(model.machine), len(model.home())
    a = np.array([0.3, 0.2, 0.25, 0.5, 0.4, 0.3])[:f] * REACH[model.kind]
    w = np.array([1, 2, 1, 3, 2, 1])[:f]
    times = np.linspace(0.0, 2 * math.pi, 401)[:-1]  # of a periodic function the mean is exact very soon
    motions = [
        state(model, model.home() + a * np.sin(w * t), a * w * np.cos(w * t), -a * w * w * np.sin(w * t)) for t in times
    ]
    x, xd, xdd = (np.ascontiguousarray(rows) for rows in np.array(motions).transpose(1, 0, 2))
    n = len(kernels.legs)
    force, cell, q, qd, qdd = np.full((5, len(times), n), np.nan)
    assert dynamics.inverse_dynamics_batch(kernels, x, xd, xdd, np.zeros_like(x), force, cell) == 0
    kinematics.axis_rates_batch(kernels, x, xd, xdd, np.zeros((len(times), n)), q, qd, qdd)
    power = np.sum(force * qd, axis=1)
    assert np.abs(power).max() > 1.0
    assert abs(power.mean()) < 1e-9 * np.abs(power).max()


# ---------------------------------------------------------------- twist


def test_twist_and_axes_are_continuous_while_the_platform_turns() -> None:
    """Yaw from 0 to 120 degrees in steps of 0.1: twists pass 90 degrees, where an arcsine would fold."""
    kernels, twist = kernels_of("6-uhu"), np.zeros(6)
    twists, axes = np.full((2, 1201, 6), np.nan)
    for k in range(1201):
        x, rest = home_of("6-uhu"), np.full((2, 6), np.nan)
        x[3] = math.radians(0.1 * k)
        kinematics.axis_rates(kernels, x, ZERO, ZERO, twist, axes[k], *rest)
        twists[k] = twist
    assert (twists[0] == 0.0).all()
    assert np.degrees(twists).max() > 140.0
    for values in (twists, axes):
        steps = np.abs(np.diff(values, axis=0))
        neighbours = np.maximum(steps[:-2], steps[2:])
        # a step may pass through zero, so it is measured against its neighbours and a share of the largest
        assert (steps[1:-1] <= 3.0 * neighbours + 1e-3 * steps.max()).all()
        assert steps.max() < 0.01


def test_twist_goes_on_beyond_half_a_turn() -> None:
    """The platform turned by 300 degrees in all, high above the base: the branch handed on, not a fold, counts."""
    kernels, twist, found = kernels_of("6-uhu"), np.zeros(6), np.full(6, np.nan)
    last = 0.0
    for yaw in np.radians(np.arange(0.0, 300.0, 0.5)):
        x = home_of("6-uhu") + np.array([0.0, 0.0, 8.0, yaw, 0.0, 0.0])
        kinematics.twists(kernels, x, twist, found)
        assert np.abs(found - twist).max() < 0.1 or yaw == 0.0
        twist, last = found.copy(), yaw
    assert np.abs(twist - last).max() < 0.5  # legs nearly upright turn as the platform does
    for turns in (-2, 1, 3):
        kinematics.twists(kernels, x, twist + 2 * math.pi * turns, found)
        np.testing.assert_allclose(found, twist + 2 * math.pi * turns, rtol=0, atol=1e-14)


def angle(x_n: np.ndarray, x_m: np.ndarray, n: np.ndarray) -> float:
    """From x_n to x_m about n, rad."""
    return math.atan2(n @ np.cross(x_n, x_m), x_n @ x_m)


def turned_by(a: float, b: float) -> float:
    """a - b in [-pi, pi)."""
    return (a - b + math.pi) % (2 * math.pi) - math.pi


def random_poses(name: str, count: int) -> np.ndarray:
    model = Model(machine_of(name))
    reach = REACH[model.kind]
    shares = np.random.default_rng(4).uniform(-1, 1, (count, len(reach)))
    return np.array([pose(model, model.home() + reach * share) for share in shares])


@pytest.mark.parametrize("name", ["6-uhu", "6-upru", "6-upru-unequal-legs"])
def test_direction_of_the_leg_is_a_convention(name: str) -> None:
    """What reversing n does to the twist, own formula against the kernel's angles.

    In one of the two directions x = axis x n it adds half a turn, a constant that home takes away; in both it does
    nothing; in the axis of the angle it changes the sign. Reversed everywhere, and base and platform side exchanged,
    as if the leg were described from its other end, the twist is the same.
    """
    machine, kernels = machine_of(name), kernels_of(name)

    def forms(x: np.ndarray, i: int) -> np.ndarray:
        R, leg = Rotation.from_euler("ZYX", x[3:]).as_matrix(), machine.leg[i]
        n = x[:3] + R @ np.array(leg.platform_joint_m) - np.array(leg.base_joint_m)
        n /= np.linalg.norm(n)
        x_n, x_m = np.cross(leg.base_axis, n), np.cross(R @ np.array(leg.platform_axis), n)
        return np.array([angle(x_n, x_m, n), angle(-x_n, x_m, n), angle(-x_n, -x_m, n), angle(-x_n, -x_m, -n),
                         angle(-x_m, -x_n, -n)])  # fmt: skip

    found = np.full(6, np.nan)
    for x in random_poses(name, 50):
        kinematics.twists(kernels, x, np.zeros(6), found)
        for i in range(6):
            plain, one, both, all_three, exchanged = (
                turned_by(now, before) for now, before in zip(forms(x, i), forms(home_of(name), i), strict=True)
            )
            for value in (plain, one, both, -all_three, exchanged):
                assert abs(turned_by(value, found[i])) < 1e-13
            assert abs(abs(turned_by(forms(x, i)[1], forms(x, i)[0])) - math.pi) < 1e-13


def test_sense_of_a_joint_axis_does_not_change_the_twist() -> None:
    """Each axis reversed by itself: half a turn, which is not there at home either."""
    machine = machine_of("6-uhu")
    for axes in (("base_axis",), ("platform_axis",), ("base_axis", "platform_axis")):
        legs = [
            msgspec.structs.replace(leg, **{axis: tuple(-c for c in getattr(leg, axis)) for axis in axes})
            for leg in machine.leg
        ]
        other = build(msgspec.structs.replace(machine, leg=legs))
        for x in random_poses("6-uhu", 20):
            one, two = np.full((2, 6), np.nan)
            kinematics.twists(kernels_of("6-uhu"), x, np.zeros(6), one)
            kinematics.twists(other, x, np.zeros(6), two)
            np.testing.assert_allclose(two, one, rtol=0, atol=1e-13)


def test_machine_seen_from_its_platform_has_the_same_twists_and_axes() -> None:
    """Base and platform exchanged, the pose inverted, every n reversed: nothing that a screw knows has changed."""
    machine = machine_of("6-uhu")

    def inverse(x: np.ndarray) -> np.ndarray:
        back = Rotation.from_euler("ZYX", x[3:]).inv()
        return np.array([*(-back.apply(x[:3])), *back.as_euler("ZYX")])

    legs = [
        msgspec.structs.replace(
            leg, base_joint_m=leg.platform_joint_m, platform_joint_m=leg.base_joint_m,
            base_axis=leg.platform_axis, platform_axis=leg.base_axis,
        )
        for leg in machine.leg
    ]  # fmt: skip
    home = dict(zip(POSE, inverse(home_of("6-uhu")).tolist(), strict=True))
    platform = msgspec.structs.replace(machine.platform, home=type(machine.platform.home)(**home))
    other = build(msgspec.structs.replace(machine, platform=platform, leg=legs))
    for x in random_poses("6-uhu", 50):
        one, two = np.full((2, 6), np.nan)
        kinematics.twists(kernels_of("6-uhu"), x, np.zeros(6), one)
        kinematics.twists(other, inverse(x), np.zeros(6), two)
        assert np.abs(one).max() > 0.01
        np.testing.assert_allclose(two, one, rtol=0, atol=1e-13)
        np.testing.assert_allclose(positions(other, inverse(x)), positions(kernels_of("6-uhu"), x), rtol=0, atol=1e-14)
