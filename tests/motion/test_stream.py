"""The reference behind a stream: near the host inside the limits, on the host's way beyond them, never outside.

The host's motions are formulas, so where the reference should be is known. Times are ticks, nothing waits.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from controller import schema
from controller.commands.replay import replay
from controller.mechanism import kinematics
from controller.motion import stream as following
from controller.records import Fault, Limit, Mode, Reference, RequestKind, Stream, Timing, Verdict, channels, pack
from controller.settings import load_site
from controller.state import Setup, prepare
from tests.machines import NOTHING, ROOT, SIMULATION, Bench, ask

STREAM = schema.Stream(address="127.0.0.1:0")
BEFORE = Stream(-1, 0.0, math.inf, np.full(6, np.nan))
Motion = Callable[[float], np.ndarray]


def setup_of(path: Path = SIMULATION) -> Setup:
    files = load_site(path)
    return prepare(files.machine, msgspec.structs.replace(files.site, stream=STREAM))


SETUP = setup_of()
HOME = SETUP.home


class Host:
    """A motion-base host: sends `pose_of` its own time; what arrives when is a list."""

    def __init__(self, pose_of: Motion, rate_hz: float = 60.0, late_s: Callable[[int], float] = lambda k: 0.0) -> None:
        self.pose_of, self._rate_hz, self._late_s, self._k = pose_of, rate_hz, late_s, -1
        self.silent_from_s = math.inf
        self.newest = BEFORE

    def at(self, now_s: float) -> Stream:
        while (sent_s := (self._k + 1) / self._rate_hz) + self._late_s(self._k + 1) <= min(now_s, self.silent_from_s):
            self._k += 1
            arrived_s = sent_s + self._late_s(self._k)
            # seen at the first tick after it came
            seen_s = math.ceil(arrived_s / SETUP.period_s - 1e-9) * SETUP.period_s
            self._seen_s = seen_s
            self.newest = Stream(self._k, 5e3 + sent_s, 0.0, self.pose_of(sent_s))
        return self.newest if self.newest is BEFORE else self.newest._replace(age_s=now_s - self._seen_s)


class Followed:
    """The cycle on a bench with a host beside it."""

    def __init__(self, host: Host, setup: Setup = SETUP) -> None:
        self.bench, self.host, self.samples, self.rows = Bench(setup), host, [], []
        self.bench.broken = self._with_stream
        self.change: Callable[[Stream], Stream] = lambda stream: stream

    def _with_stream(self, sample):
        self.samples.append(replace(sample, stream=self.change(self.host.at(sample.tick * SETUP.period_s))))
        return self.samples[-1]

    def begin(self) -> None:
        self.bench.ready()
        output = self.bench.step(ask(RequestKind.STREAM))
        assert (output.verdict, output.mode) == (Verdict.ACCEPTED, Mode.ACTIVE)

    def run(self, seconds: float) -> tuple[np.ndarray, ...]:
        """Time, pose, rate, acceleration of the references, and the limits, from here on."""
        start = len(self.bench.outputs)
        self.bench.run(round(seconds / SETUP.period_s))
        outputs = self.bench.outputs[start:]
        t = np.array([sample.tick for sample in self.samples[start:]]) * SETUP.period_s
        parts = [np.array([getattr(o.reference, name) for o in outputs]) for name in ("pose", "rate", "acceleration")]
        return t, *parts, np.array([o.limits.value for o in outputs])

    def is_inside(self, speed: float = 1.001, leg_speed: float = 1.0) -> None:
        """Every reference so far is smooth and inside all limits of the platform, every leg inside its own."""
        outputs = [o for o in self.bench.outputs if o.mode in (Mode.ACTIVE, Mode.STOPPING)]
        x, v, a = (np.array([getattr(o.reference, n) for o in outputs]) for n in ("pose", "rate", "acceleration"))
        limits, motion, h = self.bench.setup.limits, self.bench.setup.motion, SETUP.period_s
        assert (x <= np.array(limits.pose_max) + 1e-8).all() and (x >= np.array(limits.pose_min) - 1e-8).all()
        assert (np.abs(v) <= speed * motion.speed + 1e-9).all()
        assert (np.abs(a) <= 1.001 * motion.acceleration + 1e-9).all()
        assert (np.abs(np.diff(a, axis=0)) <= 1.001 * h * motion.jerk + 1e-9).all()
        np.testing.assert_allclose(np.diff(x, axis=0), h * (v[:-1] + v[1:]) / 2.0, rtol=0, atol=h * h * h * 20.0)
        q, qd, qdd, twist = np.zeros((4, len(x), len(limits.length_min_m)))
        kinematics.axis_rates_batch(self.bench.setup.machine, x, v, a, twist, q, qd, qdd)
        assert (q <= np.array(limits.length_max_m) + 1e-8).all() and (q >= np.array(limits.length_min_m) - 1e-8).all()
        assert (np.abs(qd) <= leg_speed * np.array(limits.speed_m_s)).all()


def sway(amplitude: np.ndarray, hertz: float) -> Motion:
    return lambda t: HOME + amplitude * min(t / 2.0, 1.0) ** 3 * math.sin(2.0 * math.pi * hertz * t)


GENTLY = np.array([0.05, 0.0, 0.02, 0.0, 0.05, 0.0])


@pytest.mark.parametrize(
    ("rate_hz", "hertz", "late_s", "most_m"),
    [(60, 0.2, 0.0, 0.6e-3), (200, 0.2, 0.0, 5e-4), (60, 0.5, 0.0, 3e-3), (60, 0.2, 0.01, 7e-4), (20, 0.2, 0.0, 2e-3)],
)  # fmt: skip
def test_what_is_inside_the_limits_is_followed_closely(rate_hz, hertz, late_s, most_m) -> None:
    rng = np.random.default_rng(2)
    late = rng.uniform(0.0, late_s, 10_000)
    followed = Followed(Host(sway(GENTLY, hertz), rate_hz, lambda k: late[k]))
    followed.begin()
    t, x, *_, limits = followed.run(12.0)
    settled = t > 4.0
    error = x[settled] - np.array([followed.host.pose_of(s) for s in t[settled]])
    assert np.abs(error[:, :3]).max() < most_m
    assert not (limits & Limit.POSE).any()
    followed.is_inside()


def test_three_times_the_possible_acceleration_lags_along_the_way_and_does_not_leave_it() -> None:
    direction = np.array([0.3, -0.2, 0.4, 0.3, -0.25, 0.2])
    w = 2.0 * math.pi * 1.2
    size = 3.0 * (SETUP.motion.acceleration / np.abs(direction)).min() / w**2
    followed = Followed(Host(lambda t: HOME + size * direction * math.sin(w * t)))
    followed.begin()
    _, x, v, a, _ = followed.run(8.0)
    unit = direction / np.linalg.norm(direction)
    for values in (x - HOME, v, a):
        off = values - np.outer(values @ unit, unit)
        assert np.abs(off).max() < 1e-9
    assert 0.3 < np.abs((x - HOME) @ unit).max() / (size * np.linalg.norm(direction)) < 1.0
    followed.is_inside()


def test_a_thousand_poses_out_of_range_are_one_event_in_and_one_out() -> None:
    def demand(t: float) -> np.ndarray:
        out = 1.0 if 2.0 <= t < 12.0 else 0.0
        return HOME + out * np.array([0.25 + 0.02 * math.sin(9.0 * t), 0, 0, 0, 0.6, 0])

    followed = Followed(Host(demand, 100.0))
    followed.begin()
    _, x, *_, limits = followed.run(16.0)
    told = (limits & Limit.POSE) != 0
    assert np.count_nonzero(np.diff(told)) == 2 and not told[0] and not told[-1]
    assert 0.99 < told.sum() / 1000 < 1.05
    assert x[1150, 0] == pytest.approx(0.15, abs=0.05)
    followed.is_inside()


def test_a_corner_that_the_legs_do_not_reach_is_neared_and_held() -> None:
    corner = np.array([0.14, 0.14, 0.99, 0.38, 0.3, -0.3])
    followed = Followed(Host(lambda t: HOME + min(t / 6.0, 1.0) * (corner - HOME), 60.0))
    followed.begin()
    _, x, v, _, limits = followed.run(12.0)
    assert limits[-1] & Limit.POSE
    assert np.abs(v[-1]).max() < 1e-3
    lengths = np.empty(6)
    kinematics.leg_lengths(SETUP.machine, x[-1], lengths)
    assert lengths.max() == pytest.approx(SETUP.limits.length_max_m[0], abs=1e-3)
    followed.is_inside()


moves = st.lists(st.tuples(*(st.floats(-2.0, 2.0) for _ in range(6))), min_size=1, max_size=8)


@settings(max_examples=12, deadline=None, phases=[Phase.generate])
@given(moves, st.sampled_from([10.0, 60.0, 200.0]), st.integers(0, 2**31))
def test_whatever_is_sent_the_reference_stays_inside(corners, rate_hz, seed) -> None:
    rng = np.random.default_rng(seed)
    late = rng.uniform(0.0, 0.03, 5000)
    width = np.array(SETUP.limits.pose_max) - np.array(SETUP.limits.pose_min)

    def jump(t: float) -> np.ndarray:
        return HOME if t < 0.5 else HOME + 0.5 * width * corners[int(2.0 * t) % len(corners)]

    followed = Followed(Host(jump, rate_hz, lambda k: late[k]))
    followed.begin()
    followed.run(4.0)
    # jumps in all coordinates at once: the jerk that they share lets a speed be passed a little; the guard has its word
    followed.is_inside(speed=1.03, leg_speed=1.1)


@pytest.mark.parametrize("hertz", [0.2, 1.0])
def test_a_lost_stream_is_a_smooth_stop_and_no_motion_without_a_request(hertz: float) -> None:
    followed = Followed(Host(sway(GENTLY, hertz)))
    followed.begin()
    followed.run(4.0)
    followed.host.silent_from_s = followed.bench.tick * SETUP.period_s
    followed.run(STREAM.timeout_s - 0.03)
    assert followed.bench.outputs[-1].mode is Mode.ACTIVE
    lost = followed.bench.run(5)
    assert lost.mode is Mode.STOPPING
    assert any(Fault.STREAM_LOST in o.faults for o in followed.bench.outputs[-5:])
    assert followed.bench.run(100).mode is Mode.READY
    followed.host.silent_from_s = math.inf
    followed.host.pose_of = lambda t: HOME
    where = followed.bench.lengths_m
    assert followed.bench.run(200).mode is Mode.READY
    np.testing.assert_array_equal(followed.bench.lengths_m, where)
    assert followed.bench.step(ask(RequestKind.STREAM)).verdict in (Verdict.ACCEPTED, Verdict.NO_STREAM)
    followed.is_inside()


def test_another_session_of_the_host_is_a_stop() -> None:
    followed = Followed(Host(sway(GENTLY, 0.2)))
    followed.begin()
    followed.run(3.0)
    followed.change = lambda stream: stream._replace(seq=3, host_s=stream.host_s - 100.0)
    output = followed.bench.step()
    assert output.mode is Mode.STOPPING and Fault.STREAM_LOST in output.faults


def test_without_a_fresh_pose_near_by_nothing_begins() -> None:
    far = Followed(Host(lambda t: HOME + np.array([0.06, 0, 0, 0, 0, 0])))
    turned = Followed(Host(lambda t: HOME + np.array([0, 0, 0, 0.11, 0, 0])))
    silent, none = Followed(Host(sway(GENTLY, 0.2), late_s=lambda k: 1e9)), Bench()
    for followed in (far, turned, silent):
        followed.bench.ready()
        assert followed.bench.step(ask(RequestKind.STREAM)).verdict is Verdict.NO_STREAM
    none.ready()
    assert none.step(ask(RequestKind.STREAM)).verdict is Verdict.NO_STREAM
    near = Followed(Host(lambda t: HOME + np.array([0.045, 0, 0, 0.09, 0, 0])))
    near.begin()
    near.run(3.0)
    near.is_inside()
    assert near.bench.outputs[-1].reference.pose[0] == pytest.approx(0.045, abs=1e-4)


def test_a_stop_and_a_move_out_of_the_stream_are_smooth() -> None:
    followed = Followed(Host(sway(GENTLY, 0.5)))
    followed.begin()
    followed.run(5.2)
    assert followed.bench.step(ask(RequestKind.MOVE, HOME)).verdict is Verdict.ACCEPTED
    assert followed.bench.run(300).mode is Mode.READY
    followed.host.pose_of = lambda t: HOME
    followed.bench.run(10)
    assert followed.bench.step(ask(RequestKind.STREAM)).verdict is Verdict.ACCEPTED
    followed.run(0.5)
    assert followed.bench.step(ask(RequestKind.STOP)).mode is Mode.STOPPING
    assert followed.bench.run(50).mode is Mode.READY
    followed.is_inside()


def test_skipped_ticks_are_made_up_for() -> None:
    even, uneven = (Followed(Host(sway(GENTLY, 0.2))) for _ in range(2))
    for followed in (even, uneven):
        followed.begin()
        followed.run(3.0)
    even.run(0.04)
    uneven.bench.step(ticks=4)
    np.testing.assert_allclose(
        uneven.bench.outputs[-1].reference.pose, even.bench.outputs[-1].reference.pose, rtol=0, atol=2e-4
    )
    uneven.run(1.0)
    assert not any(Fault.STREAM_LOST in o.faults for o in uneven.bench.outputs)


@pytest.mark.parametrize("name", ["simulation-6-uhu", "simulation-3-ups-s", "simulation-2-upr-2-rpu"])
def test_other_machines_follow_what_they_are_free_to_do(name: str) -> None:
    setup = setup_of(ROOT / "config" / "sites" / f"{name}.toml")
    law, home = setup.stream, setup.home
    assert law is not None
    plan = following.begin(law, Reference(home, np.zeros(6), np.zeros(6)), Stream(0, 0.0, 0.0, home), 0.0)
    assert plan is not None
    for k in range(1, 600):
        t = k * setup.period_s
        pose = home + 0.03 * min(t, 1.0) * np.sin(1.5 * t + np.array([0, 1, 2, 3, 4, 5])) * min(t, 1.0)
        plan, _ = following.chase(law, plan, Stream(k, t, 0.0, pose), np.zeros(len(law.room.speed_m_s)), t, 1)
        np.testing.assert_array_equal(plan.reference.pose[law.free == 0.0], home[law.free == 0.0])
    np.testing.assert_allclose(law.free * plan.reference.pose, law.free * pose, rtol=0, atol=2e-3)


def test_a_run_with_a_stream_is_replayed_bit_for_bit() -> None:
    files = load_site(SIMULATION)
    text = files.site_text + '\n[stream]\naddress = "127.0.0.1:0"\n'
    rng = np.random.default_rng(3)
    late = rng.uniform(0.0, 0.02, 5000)
    followed = Followed(Host(sway(6.0 * GENTLY, 0.4), 60.0, lambda k: late[k]))
    columns, rows = channels(6, list(files.site.sensors), stream=True), []
    requests = {0: ask(RequestKind.READY), 6: ask(RequestKind.STREAM), 500: ask(RequestKind.STOP)}
    for k in range(600):
        request = requests.get(k, NOTHING)
        output = followed.bench.step(request)
        rows.append(np.empty(len(columns)))
        pack(rows[-1], followed.samples[-1], request, output, Timing(0.0, 0.0, 0.0, 0, 0))
    assert any(o.mode is Mode.ACTIVE and o.limits & Limit.POSE for o in followed.bench.outputs)
    meta = {
        "machine_toml": files.machine_text, "site_toml": text, "tracks": {}, "version": "test",
        "channels": [list(c) for c in columns], "recording": {"first_index": 0, "gaps": []},
    }  # fmt: skip
    assert replay(meta, np.array(rows), Path("bench")) is None
