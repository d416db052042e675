"""The reference behind the poses that a motion-base host sends: one tick, state in, state out. Pure.

    newest pose -> inside the bounds -> on to now with the host's rate -> third-order filter -> limits -> reference

Speed, acceleration and jerk are each shortened as whole vectors, never one coordinate alone: a demand beyond them
makes the reference lag along the host's way, it does not bend it. (A generator that plans each coordinate by itself,
as ruckig does from any state but rest, leaves a straight demand by half its amplitude.) From every reference a
planned stop is known that stays inside the bounds; where a step would end that, the stop is followed instead.
"""

import math
from typing import NamedTuple

import numpy as np

from controller import schema
from controller.mechanism import kinematics, posture
from controller.mechanism.layout import Mechanism
from controller.motion import trajectory
from controller.motion.track import Room
from controller.motion.trajectory import ZERO, Chase, MotionLimits, Move
from controller.records import Array, Limit, Reference, Stream

LOOK_AHEAD_S = 0.1  # a pose is carried on with the host's rate for no longer than a period at 10 Hz
HOST_SHARE = 1 / 6  # of the host's rate: a quicker filter would follow every step of a slow host
QUICK = 0.7  # of jerk / acceleration: how fast (1/s) a rate is corrected, so that the jerk is not what limits it
QUICKEST = 0.4  # of a tick's rate, for machines with any amount of jerk
BRAKING = 0.4  # of the acceleration with which a gap is closed: the rest is for the jerk to build it up
SPEED = 0.95  # of the platform's speed: the jerk of all coordinates together may let one pass it a little
FADING = 1.0  # of twice the jerk, for the same reason
LEGS = 0.93  # of speed, acceleration and jerk of the legs
DRIFT = 1e-3  # s/s by which the clocks of host and loop may part
MOST_TICKS = 20  # of skipped ones made up for; more are a stop anyway
BISECTIONS = 12  # of the way from home to a pose that the legs do not reach
STOP_SAMPLES = 4  # on the way of a stop, both ends included
ROUNDING = 1e-9  # m, rad


class Law(NamedTuple):
    """All that does not change while the stream is followed."""

    machine: Mechanism
    motion: MotionLimits
    room: Room
    home: Array  # (6,)
    free: Array  # (6,) 1 where a coordinate follows, 0 where it stays at home
    near: Array  # (6,) of where the machine is: the pose with which following may begin
    period_s: float
    timeout_s: float
    filter_hz: float
    rate_gain: float  # 1/s
    pose_gain: float  # 1/s


def build_law(stream: schema.Stream, machine: Mechanism, motion: MotionLimits, room: Room, home: Array, free: Array,
              period_s: float) -> Law:  # fmt: skip
    """The law of a site's stream on a machine."""
    rate_gain = min(QUICK * float((motion.jerk / motion.acceleration).min()), QUICKEST / period_s)
    near = np.repeat([stream.start_within_m, stream.start_within_rad], 3)
    return Law(
        machine, motion, room, home, free, near, period_s, stream.timeout_s, stream.filter_hz,
        rate_gain, rate_gain / 4.0,  # both poles of the gap on one place: it closes without swinging
    )  # fmt: skip


def begin(law: Law, reference: Reference, stream: Stream | None, now_s: float) -> Chase | None:
    """The plan that begins at the reference, which is at rest; None without a fresh pose near it."""
    if stream is None or not stream.age_s <= law.timeout_s:
        return None
    stop = trajectory.plan_stop(law.motion, reference, now_s)
    if stop is None or not (law.free * np.abs(stream.pose - reference.pose) <= law.near).all():
        return None
    target, limited = _allowed(law, stream.pose)
    behind_s = now_s - stream.age_s - stream.host_s
    return Chase(reference, stop, stream.seq, stream.host_s, behind_s, law.timeout_s, target, ZERO, reference, limited)


def is_lost(law: Law, plan: Chase, stream: Stream | None) -> bool:
    """Whether no usable pose came for too long, or another session of the host has begun."""
    return stream is None or not stream.age_s <= law.timeout_s or stream.host_s < plan.host_s


def chase(law: Law, plan: Chase, stream: Stream | None, twist: Array, now_s: float, ticks: int) -> tuple[Chase, Limit]:
    """The plan `ticks` ticks later, at `now_s`, and whether the bounds acted; `twist` (n,): screw twists near by."""
    if stream is not None and stream.seq != plan.seq and stream.host_s > plan.host_s:
        plan = _received(law, plan, stream, now_s)
    acted = plan.limited
    for before in reversed(range(min(ticks, MOST_TICKS))):
        plan, stopping = _step(law, plan, twist, now_s - before * law.period_s)
        acted |= stopping
    return plan, Limit.POSE if acted else Limit.NONE


def _received(law: Law, plan: Chase, stream: Stream, now_s: float) -> Chase:
    """With a new pose, and the rate since the one before by the host's own clock."""
    target, limited = _allowed(law, stream.pose)
    since_s = stream.host_s - plan.host_s
    rate = (target - plan.target) / since_s if since_s <= law.timeout_s else ZERO
    # what came quickest tells the two clocks apart best: network and ticks only ever make it later
    behind_s = min(now_s - stream.age_s - stream.host_s, plan.behind_s + DRIFT * since_s)
    return plan._replace(
        seq=stream.seq, host_s=stream.host_s, behind_s=behind_s, since_s=since_s, target=target, target_rate=rate,
        limited=limited,
    )  # fmt: skip


def _allowed(law: Law, pose: Array) -> tuple[Array, bool]:
    """The pose inside the pose box, and from there on the way home until legs reach it; and whether that changed it."""
    wanted = np.where(law.free > 0.0, pose, law.home)
    target = np.clip(wanted, law.room.pose_min, law.room.pose_max)
    limited = bool((target != wanted).any())
    if _reached(law, target[np.newaxis]):
        return target, limited
    least, most = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = 0.5 * (least + most)
        reached = _reached(law, (law.home + middle * (target - law.home))[np.newaxis])
        least, most = (middle, most) if reached else (least, middle)
    return law.home + least * (target - law.home), True


def _reached(law: Law, poses: Array) -> bool:
    """Whether strokes and joints allow all poses (N, 6)."""
    q, qd, qdd, twist, base, platform = np.zeros((6, len(poses), len(law.room.length_min_m)))
    rest = np.zeros_like(poses)
    kinematics.axis_rates_batch(law.machine, poses, rest, rest, twist, q, qd, qdd)
    posture.joint_swings(law.machine, poses, base, platform)
    room = law.room
    return bool(
        (q >= room.length_min_m - ROUNDING).all()
        and (q <= room.length_max_m + ROUNDING).all()
        and (base <= room.base_swing_rad).all()
        and (platform <= room.platform_swing_rad).all()
    )


def _step(law: Law, plan: Chase, twist: Array, now_s: float) -> tuple[Chase, bool]:
    """One tick further, and whether it is one of the stop, since the bounds leave no other."""
    h, motion = law.period_s, law.motion
    x, xd, xdd = plan.reference.pose, plan.reference.rate, plan.reference.acceleration
    smooth = _filtered(law, plan, now_s - plan.behind_s - plan.host_s)

    gap = smooth.pose - (x + h * xd + h * h / 3.0 * xdd)
    size = np.abs(gap)
    # not faster than a braking way as long as the gap allows
    brake = np.sqrt(2.0 * BRAKING * motion.acceleration / np.maximum(size, ROUNDING)).min()
    wanted = smooth.rate + min(law.pose_gain, float(brake)) * gap
    share = _share(wanted, SPEED * motion.speed)
    share *= _share(_legs(law, x, share * wanted, ZERO, twist)[0], LEGS * law.room.speed_m_s)
    wanted = share * wanted
    bend = smooth.acceleration if share == 1.0 else ZERO  # what is as fast as it may be does not become faster

    # the acceleration at the end of the step with which the rate then is on its way to the one wanted
    k = law.rate_gain
    wanted = (bend + k * (wanted - xd - 0.5 * h * xdd)) / (1.0 + 0.5 * k * h)
    # no more than can fade again before the speed is reached
    below = np.maximum(motion.speed - np.sign(wanted) * xd, 0.0)
    wanted = _within(wanted, np.minimum(motion.acceleration, np.sqrt(FADING * motion.jerk * below) + ROUNDING))
    wanted = wanted * _share(_legs(law, x, xd, wanted, twist)[1], LEGS * law.room.acceleration_m_s2)
    change = _within(wanted - xdd, h * motion.jerk)
    change = change * _share(_legs(law, x, ZERO, change, twist)[1], LEGS * h * law.room.jerk_m_s3)

    reference = Reference(x + h * xd + h * h * (xdd / 2.0 + change / 6.0), xd + h * (xdd + change / 2.0), xdd + change)
    stop = trajectory.plan_stop(motion, reference, now_s)
    if stop is None or not _stays_inside(law, stop, x):
        return plan._replace(reference=trajectory.at(plan.stop, now_s), smooth=smooth), True
    return plan._replace(reference=reference, stop=stop, smooth=smooth), False


def _filtered(law: Law, plan: Chase, age_s: float) -> Reference:
    """The third-order filter one tick on: exact, all poles on one place, no lag behind a steady rate."""
    h, w = law.period_s, 2.0 * math.pi * min(law.filter_hz, HOST_SHARE / plan.since_s)
    moves = plan.target_rate if age_s < LOOK_AHEAD_S else ZERO
    carried_s = min(max(age_s, 0.0), LOOK_AHEAD_S)
    now = np.clip(plan.target + carried_s * plan.target_rate, law.room.pose_min, law.room.pose_max)
    # what it is off the moving target fades as (c0 + c1 t + c2 t²) exp(-w t)
    c0, c1 = plan.smooth.pose - (now - h * moves), plan.smooth.rate - moves
    c2 = 0.5 * (plan.smooth.acceleration + 2.0 * w * c1 + w * w * c0)
    c1 = c1 + w * c0
    fade = math.exp(-w * h)
    off, slope, bend = fade * (c0 + h * (c1 + h * c2)), fade * (c1 + 2.0 * h * c2), fade * 2.0 * c2
    return Reference(now + off, moves + slope - w * off, bend - 2.0 * w * slope + w * w * off)


def _legs(law: Law, x: Array, xd: Array, xdd: Array, twist: Array) -> tuple[Array, Array]:
    """Rates and accelerations (n,) of the axes."""
    q, qd, qdd, branch = np.empty((4, len(twist)))
    branch[:] = twist
    kinematics.axis_rates(law.machine, x, xd, xdd, branch, q, qd, qdd)
    return qd, qdd


def _share(values: Array, most: Array) -> float:
    """The largest factor up to 1 that brings every |value| within `most`."""
    return 1.0 / max(1.0, float((np.abs(values) / most).max()))


def _within(vector: Array, most: Array) -> Array:
    """The vector, shortened so that every coordinate is within `most`."""
    return vector * _share(vector, most)


def _stays_inside(law: Law, stop: Move, x: Array) -> bool:
    """Whether a stop stays inside the pose box, or no farther outside than x, and where the legs reach."""
    # not the extrema of the trajectory: ruckig counts 0, the target position that a stop has none of, among them
    poses = trajectory.samples(stop, STOP_SAMPLES)[0]
    low, high = np.minimum(law.room.pose_min, x) - ROUNDING, np.maximum(law.room.pose_max, x) + ROUNDING
    return bool((poses >= low).all() and (poses <= high).all()) and _reached(law, poses)
