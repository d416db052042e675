"""The limits, what the measurement says about them, and the guard with the last word on every command.

n legs; lengths m, rates m/s, forces N; pose x y z yaw pitch roll.
"""

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from controller import schema
from controller.records import POSE, RESERVES, Array, AxisMode, Command, Estimate, Fault, Limit, Link, Sample
from controller.safety.faults import TRIPPING
from controller.safety.pacing import Bounds, Trail, pace

# The measurement may pass a limit by this much before it is a fault: the set-point stays inside, the loop overshoots.
STROKE_MARGIN_M = 0.002
POSE_MARGIN = (0.005, 0.005, 0.005, 0.01, 0.01, 0.01)
SWING_MARGIN_RAD = 0.01
SPEED_MARGIN = 1.25
FORCE_MARGIN = 1.25
RISE_S = 0.04  # an acceleration may come and go in this time, where the machine file gives no jerk
CONDITION_SHARE = 20.0  # of the condition number at home, where the site file gives no limit
TOLD_S = 0.5  # a limit is told for so long after it acted: a demand that sways across it is one event, not hundreds


class Limits(NamedTuple):
    """Limits of one machine."""

    length_min_m: Sequence[float]  # a number a leg
    length_max_m: Sequence[float]
    speed_m_s: Sequence[float]
    acceleration_m_s2: Sequence[float]
    jerk_m_s3: Sequence[float]
    force_n: Sequence[float]
    torque_force_n: Sequence[float]  # axis force at the peak torque of the motor; infinite without a motor
    base_swing_rad: Sequence[float]  # from home
    platform_swing_rad: Sequence[float]
    pose_min: Sequence[float]  # a number a pose coordinate
    pose_max: Sequence[float]
    condition: float  # number of the Jacobian
    following_error_m: float
    late_after_s: float
    stale_after_s: float

    @property
    def bounds(self) -> Bounds:
        """What holds for the set-points of position."""
        return Bounds(self.length_min_m, self.length_max_m, self.speed_m_s, self.acceleration_m_s2, self.jerk_m_s3)

    def told(self) -> dict[str, Any]:
        """All of them by name, for those who look on; None where there is no limit."""
        torque = [most if math.isfinite(most) else None for most in self.torque_force_n]
        return self._asdict() | {"torque_force_n": torque}


def build_limits(machine: schema.Machine, control: schema.Control, period_s: float, condition_at_home: float) -> Limits:
    """The limits of a machine file and of the control law."""
    drives = [schema.effective_leg(machine, i).drive for i in range(len(machine.leg))]
    legs = [schema.effective_leg(machine, i).limits for i in range(len(machine.leg))]
    pose: list[schema.Range] = [getattr(machine.platform.limits, name) for name in POSE]
    return Limits(
        length_min_m=[leg.length_m[0] for leg in legs],
        length_max_m=[leg.length_m[1] for leg in legs],
        speed_m_s=[leg.speed_m_s for leg in legs],
        acceleration_m_s2=[leg.acceleration_m_s2 for leg in legs],
        jerk_m_s3=[leg.jerk_m_s3 or leg.acceleration_m_s2 / RISE_S for leg in legs],
        force_n=[leg.force_n for leg in legs],
        torque_force_n=[_force_at_peak_torque(drive) for drive in drives],
        base_swing_rad=[leg.base_swing_rad for leg in legs],
        platform_swing_rad=[leg.platform_swing_rad for leg in legs],
        pose_min=[low for low, _ in pose],
        pose_max=[high for _, high in pose],
        condition=control.condition_limit or CONDITION_SHARE * condition_at_home,
        following_error_m=control.following_error_m,
        late_after_s=4.5 * period_s,
        stale_after_s=12.5 * period_s,
    )


def _force_at_peak_torque(drive: schema.Drive) -> float:
    # Axis forces are meant at the motor's side of screw and gear: what gets lost there is in them already.
    if isinstance(drive, schema.HydraulicDrive):
        return math.inf
    return drive.peak_torque_nm * 2.0 * math.pi * drive.gear_ratio / drive.lead_m


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


def judge_motion(
    sample: Sample, estimate: Estimate, base_swing_rad: Array, platform_swing_rad: Array, limits: Limits, powered: bool
) -> tuple[Fault, Array]:
    """What is wrong with where the machine is and how it moves, and what is left of each kind of limit.

    `sample` is finite; swings (n,) belong to the estimate. The reserves (6,) follow `records.RESERVES`: 1 is far from
    the limit, 0 at it, < 0 beyond; NaN where it is not known.
    """
    faults = Fault.NONE
    reserves = np.full(len(RESERVES), np.nan)
    lengths = sample.length_m.tolist()
    strokes = list(zip(lengths, limits.length_min_m, limits.length_max_m, strict=True))
    if any(not low - STROKE_MARGIN_M <= length <= high + STROKE_MARGIN_M for length, low, high in strokes):
        faults |= Fault.STROKE
    reserves[0] = _nearest_end(strokes)
    if estimate.iterations < 0:
        faults |= Fault.POSE_UNKNOWN
    else:
        ranges = list(zip(estimate.pose.tolist(), limits.pose_min, limits.pose_max, strict=True))
        if any(
            not low - margin <= value <= high + margin
            for (value, low, high), margin in zip(ranges, POSE_MARGIN, strict=True)
        ):
            faults |= Fault.POSE
        swings = (*base_swing_rad.tolist(), *platform_swing_rad.tolist())
        most_rad = (*limits.base_swing_rad, *limits.platform_swing_rad)
        if any(not swing <= most + SWING_MARGIN_RAD for swing, most in zip(swings, most_rad, strict=True)):
            faults |= Fault.JOINT_ANGLE
        if not estimate.condition <= limits.condition:
            faults |= Fault.SINGULAR
        reserves[1:4] = _nearest_end(ranges), 1.0 - _used(swings, most_rad), 1.0 - estimate.condition / limits.condition
    speed, force = _used(sample.length_m_s.tolist(), limits.speed_m_s), _used(sample.drive_n.tolist(), limits.force_n)
    if not speed <= SPEED_MARGIN:
        faults |= Fault.OVERSPEED
    if not force <= FORCE_MARGIN:
        faults |= Fault.OVERFORCE
    reserves[4:] = 1.0 - speed, 1.0 - force
    lags = zip(sample.setpoint_m.tolist(), lengths, strict=True)
    if powered and any(not abs(setpoint - length) <= limits.following_error_m for setpoint, length in lags):
        faults |= Fault.FOLLOWING_ERROR
    return faults, reserves


def guard(
    limits: Limits, faults: Fault, last: Command, trail: Trail, proposed: Command, elapsed_s: float
) -> tuple[Command, Fault, Limit]:
    """What is really sent, with the faults and limits that the guard itself found.

    `last` is what was sent `elapsed_s` ago, at the end of `trail`; where that was nothing to follow, `trail` stands
    where the drives hold. It never asks who proposed. Not-finite is checked before any clamp: a fault, never a value.
    A demand that is too far, too fast or too sudden is shortened for all legs together, so the platform stays on its
    path; where a leg can no longer stop inside its stroke, STOP is sent. A position that is
    passed on is the proposed array itself.
    """
    found = Fault.NONE
    if not _finite(proposed.position_m, proposed.velocity_m_s, proposed.force_n):
        found = Fault.PROPOSAL_NOT_FINITE
    if (faults | found) & TRIPPING:
        return _standing(proposed, AxisMode.STOP, last if found else proposed), found, Limit.NONE
    force, acted = _within_force(proposed.force_n.tolist(), limits)
    if proposed.axis_mode not in (AxisMode.FOLLOW, AxisMode.FORCE):  # with forces, too, goes where the axes are to be
        return _standing(proposed, proposed.axis_mode, proposed), found, Limit.NONE

    asked = proposed.velocity_m_s.tolist()
    velocity = _within_speed(asked, limits)
    if velocity is not asked:
        acted |= Limit.SPEED
    paced = pace(limits.bounds, trail, proposed.position_m.tolist(), velocity, elapsed_s)
    if paced is None:
        return _standing(proposed, AxisMode.STOP, last), Fault.STROKE, Limit.STROKE
    position, rates, kept = paced
    acted |= kept
    if not acted:
        return proposed, found, acted
    where = proposed.position_m
    if rates is not None:
        velocity, where = _within_speed(rates, limits), np.array(position)
    return Command(proposed.seq, proposed.axis_mode, where, np.array(velocity), np.array(force)), found, acted


def tell(acted_s: Mapping[Limit, float], acted: Limit, now_s: float) -> tuple[Mapping[Limit, float], Limit]:
    """The limits to be told: those that act now and those that did up to TOLD_S ago; and when each of them last did."""
    last_s = {**acted_s, **dict.fromkeys(acted, now_s)}
    kept_s = {limit: at_s for limit, at_s in last_s.items() if now_s - at_s <= TOLD_S}
    return kept_s, reduce(Limit.__or__, kept_s, Limit.NONE)


def _standing(proposed: Command, axis_mode: AxisMode, where: Command) -> Command:
    zero = np.zeros_like(where.position_m)
    return Command(proposed.seq, axis_mode, where.position_m, zero, zero)


def _within_speed(rate_m_s: list[float], limits: Limits) -> list[float]:
    """Rates (n), where one is too high all slowed down together."""
    used = _used(rate_m_s, limits.speed_m_s)
    return rate_m_s if used <= 1.0 else [value / used for value in rate_m_s]


def _within_force(force_n: list[float], limits: Limits) -> tuple[list[float], Limit]:
    """Forces (n) within what the legs bear and what the motors can give, each on its own."""
    acted = Limit.NONE
    if _used(force_n, limits.force_n) > 1.0:
        acted |= Limit.FORCE
    if _used(force_n, limits.torque_force_n) > 1.0:
        acted |= Limit.TORQUE
    most = list(map(min, limits.force_n, limits.torque_force_n))
    return [min(max(value, -bound), bound) for value, bound in zip(force_n, most, strict=True)], acted


# Six numbers at a time: plain floats are read more easily, and ten times as fast, as arrays.


def _finite(*parts: Array) -> bool:
    return all(all(map(math.isfinite, part.tolist())) for part in parts)


def _used(values: Sequence[float], most: Sequence[float]) -> float:
    """The largest share of its limit that any |value| takes; NaN is never less than a limit."""
    return max(map(float.__truediv__, map(abs, values), most))


def _nearest_end(ranges: list[tuple[float, float, float]]) -> float:
    """How far the value that is nearest to an end of its range is from there: 1 in the middle, 0 at the end."""
    return min(1.0 - abs(2.0 * value - low - high) / (high - low) if high > low else 1.0 for value, low, high in ranges)
