"""The limits, what the measurement says about them, and the guard with the last word on every command.

n legs; lengths m, rates m/s, forces N; pose x y z yaw pitch roll.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from controller import schema
from controller.records import POSE, Array, AxisMode, Command, Estimate, Fault, Limit, Link, Sample
from controller.safety.faults import TRIPPING

# The measurement may pass a limit by this much before it is a fault: the set-point stays inside, the loop overshoots.
STROKE_MARGIN_M = 0.002
POSE_MARGIN = (0.005, 0.005, 0.005, 0.01, 0.01, 0.01)
SPEED_MARGIN = 1.25
FORCE_MARGIN = 1.25


class Limits(NamedTuple):
    """Limits of one machine."""

    length_min_m: Sequence[float]  # a number a leg
    length_max_m: Sequence[float]
    speed_m_s: Sequence[float]
    acceleration_m_s2: Sequence[float]
    force_n: Sequence[float]
    base_swing_rad: Sequence[float]  # from home
    platform_swing_rad: Sequence[float]
    pose_min: Sequence[float]  # a number a pose coordinate
    pose_max: Sequence[float]
    following_error_m: float
    late_after_s: float
    stale_after_s: float


def build_limits(machine: schema.Machine, control: schema.Control, period_s: float) -> Limits:
    """The limits of a machine file."""
    legs = [schema.effective_leg(machine, i).limits for i in range(len(machine.leg))]
    pose: list[schema.Range] = [getattr(machine.platform.limits, name) for name in POSE]
    return Limits(
        length_min_m=[leg.length_m[0] for leg in legs],
        length_max_m=[leg.length_m[1] for leg in legs],
        speed_m_s=[leg.speed_m_s for leg in legs],
        acceleration_m_s2=[leg.acceleration_m_s2 for leg in legs],
        force_n=[leg.force_n for leg in legs],
        base_swing_rad=[leg.base_swing_rad for leg in legs],
        platform_swing_rad=[leg.platform_swing_rad for leg in legs],
        pose_min=[low for low, _ in pose],
        pose_max=[high for _, high in pose],
        following_error_m=control.following_error_m,
        late_after_s=4.5 * period_s,
        stale_after_s=12.5 * period_s,
    )


def judge_sample(sample: Sample, limits: Limits) -> Fault:
    """What is wrong with the sample itself: link, age, numbers. Later checks need its numbers to be finite."""
    faults = Fault.NONE
    if sample.link is Link.DOWN:
        faults |= Fault.LINK_LOST
    if not sample.age_s <= limits.stale_after_s:
        faults |= Fault.STATUS_STALE
    elif sample.age_s > limits.late_after_s:
        faults |= Fault.STATUS_LATE
    if not _finite(sample.length_m, sample.length_m_s, sample.setpoint_m, sample.drive_n):
        faults |= Fault.SAMPLE_NOT_FINITE
    return faults


def judge_motion(sample: Sample, estimate: Estimate, limits: Limits, powered: bool) -> Fault:
    """What is wrong with where the machine is and how it moves; `sample` is finite."""
    faults = Fault.NONE
    if estimate.iterations < 0:
        faults |= Fault.POSE_UNKNOWN
    else:
        edges = zip(estimate.pose.tolist(), limits.pose_min, limits.pose_max, POSE_MARGIN, strict=True)
        if any(not low - margin <= value <= high + margin for value, low, high, margin in edges):
            faults |= Fault.POSE
    lengths = sample.length_m.tolist()
    strokes = zip(lengths, limits.length_min_m, limits.length_max_m, strict=True)
    if any(not low - STROKE_MARGIN_M <= length <= high + STROKE_MARGIN_M for length, low, high in strokes):
        faults |= Fault.STROKE
    if _share(sample.length_m_s.tolist(), limits.speed_m_s) < 1.0 / SPEED_MARGIN:
        faults |= Fault.OVERSPEED
    if _share(sample.drive_n.tolist(), limits.force_n) < 1.0 / FORCE_MARGIN:
        faults |= Fault.OVERFORCE
    lags = zip(sample.setpoint_m.tolist(), lengths, strict=True)
    if powered and any(not abs(setpoint - length) <= limits.following_error_m for setpoint, length in lags):
        faults |= Fault.FOLLOWING_ERROR
    return faults


def guard(
    limits: Limits, faults: Fault, last: Command, last_rate_m_s: Array, proposed: Command, elapsed_s: float
) -> tuple[Command, Fault, Limit]:
    """What is really sent, with the faults and limits that the guard itself found.

    `last` is what was sent `elapsed_s` ago, after a step of `last_rate_m_s` (n,). It never asks who proposed.
    Not-finite is checked before any clamp: a fault, never a value. A step that is too fast is shortened for all legs
    together, so the platform stays on its path.
    """
    found = Fault.NONE
    if not _finite(proposed.position_m, proposed.velocity_m_s, proposed.force_n):
        found = Fault.PROPOSAL_NOT_FINITE
    trip = bool((faults | found) & TRIPPING)
    if trip or proposed.axis_mode is not AxisMode.FOLLOW:
        zero = np.zeros_like(last.position_m)
        position_m = last.position_m if found else proposed.position_m
        return (
            Command(proposed.seq, AxisMode.STOP if trip else proposed.axis_mode, position_m, zero, zero),
            found,
            Limit.NONE,
        )

    acted = Limit.NONE
    position, velocity = _clamped(proposed.position_m.tolist(), limits), proposed.velocity_m_s.tolist()
    if position != proposed.position_m.tolist():
        acted |= Limit.STROKE
    if last.axis_mode is AxisMode.FOLLOW:
        before, rate = last.position_m.tolist(), last_rate_m_s.tolist()
        step = [(new - old) / elapsed_s for new, old in zip(position, before, strict=True)]
        share = _share(step, limits.speed_m_s)
        if share < 1.0:
            acted |= Limit.SPEED
        change = [share * value - old for value, old in zip(step, rate, strict=True)]
        gentle = _share(change, [most * elapsed_s for most in limits.acceleration_m_s2])
        if gentle < 1.0:
            acted |= Limit.ACCELERATION
        if acted & (Limit.SPEED | Limit.ACCELERATION):
            velocity = [old + gentle * value for old, value in zip(rate, change, strict=True)]
            moved = [old + value * elapsed_s for old, value in zip(before, velocity, strict=True)]
            position = _clamped(moved, limits)
    share = _share(velocity, limits.speed_m_s)
    if share < 1.0:
        velocity = [share * value for value in velocity]
        acted |= Limit.SPEED
    force = [
        min(max(value, -most), most) for value, most in zip(proposed.force_n.tolist(), limits.force_n, strict=True)
    ]
    if force != proposed.force_n.tolist():
        acted |= Limit.FORCE
    if not acted:
        return proposed, found, acted
    sent = Command(proposed.seq, proposed.axis_mode, np.array(position), np.array(velocity), np.array(force))
    return sent, found, acted


# Six numbers at a time: plain floats are read more easily, and ten times as fast, as arrays.


def _finite(*parts: Array) -> bool:
    return all(all(map(math.isfinite, part.tolist())) for part in parts)


def _clamped(position: list[float], limits: Limits) -> list[float]:
    return list(map(min, map(max, position, limits.length_min_m), limits.length_max_m))


def _share(values: list[float], most: Sequence[float]) -> float:
    """The largest factor up to 1 that brings every |value| within `most`."""
    worst = max(map(float.__truediv__, map(abs, values), most))
    return 1.0 if worst <= 1.0 else 1.0 / worst
