"""The limits, what the measurement says about them, and the guard with the last word on every command.

n legs; lengths m, rates m/s, forces N; pose x y z yaw pitch roll.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from controller import schema
from controller.records import POSE, Array, AxisMode, Command, Estimate, Fault, Limit, Link, Sample
from controller.safety.faults import TRIPPING

# The measurement may pass a limit by this much before it is a fault: the set-point stays inside, the loop overshoots.
STROKE_MARGIN_M = 0.002
POSE_MARGIN = np.array([0.005, 0.005, 0.005, 0.01, 0.01, 0.01])
SPEED_MARGIN = 1.25
FORCE_MARGIN = 1.25


class Limits(NamedTuple):
    """Limits of one machine."""

    length_min_m: Array  # (n,)
    length_max_m: Array  # (n,)
    speed_m_s: Array  # (n,)
    acceleration_m_s2: Array  # (n,)
    force_n: Array  # (n,)
    base_swing_rad: Array  # (n,) from home
    platform_swing_rad: Array  # (n,)
    pose_min: Array  # (6,)
    pose_max: Array  # (6,)
    following_error_m: float
    late_after_s: float
    stale_after_s: float


def build_limits(machine: schema.Machine, control: schema.Control, period_s: float) -> Limits:
    """Arrays of a machine file's limits."""
    legs = [leg.limits or machine.legs.limits for leg in machine.leg]
    pose = np.array([getattr(machine.platform.limits, name) for name in POSE])
    return Limits(
        length_min_m=np.array([leg.length_m[0] for leg in legs]),
        length_max_m=np.array([leg.length_m[1] for leg in legs]),
        speed_m_s=np.array([leg.speed_m_s for leg in legs]),
        acceleration_m_s2=np.array([leg.acceleration_m_s2 for leg in legs]),
        force_n=np.array([leg.force_n for leg in legs]),
        base_swing_rad=np.array([leg.base_swing_rad for leg in legs]),
        platform_swing_rad=np.array([leg.platform_swing_rad for leg in legs]),
        pose_min=np.ascontiguousarray(pose[:, 0]),
        pose_max=np.ascontiguousarray(pose[:, 1]),
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
    measured = (sample.length_m, sample.length_m_s, sample.setpoint_m, sample.drive_n, sample.cell_n)
    if not all(np.isfinite(values).all() for values in measured):
        faults |= Fault.SAMPLE_NOT_FINITE
    return faults


def judge_motion(sample: Sample, estimate: Estimate, limits: Limits, powered: bool) -> Fault:
    """What is wrong with where the machine is and how it moves; `sample` is finite."""
    faults = Fault.NONE
    if estimate.iterations < 0:
        faults |= Fault.POSE_UNKNOWN
    elif (estimate.pose < limits.pose_min - POSE_MARGIN).any() or (estimate.pose > limits.pose_max + POSE_MARGIN).any():
        faults |= Fault.POSE
    short = sample.length_m < limits.length_min_m - STROKE_MARGIN_M
    long = sample.length_m > limits.length_max_m + STROKE_MARGIN_M
    if short.any() or long.any():
        faults |= Fault.STROKE
    if (np.abs(sample.length_m_s) > SPEED_MARGIN * limits.speed_m_s).any():
        faults |= Fault.OVERSPEED
    if (np.abs(sample.drive_n) > FORCE_MARGIN * limits.force_n).any():
        faults |= Fault.OVERFORCE
    if powered and (np.abs(sample.setpoint_m - sample.length_m) > limits.following_error_m).any():
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
    numbers = (proposed.position_m, proposed.velocity_m_s, proposed.force_n)
    found = Fault.NONE
    if not all(np.isfinite(values).all() for values in numbers):
        found = Fault.PROPOSAL_NOT_FINITE
    if (faults | found) & TRIPPING or proposed.axis_mode is not AxisMode.FOLLOW:
        zero = np.zeros_like(last.position_m)
        mode = AxisMode.STOP if (faults | found) & TRIPPING else proposed.axis_mode
        position = last.position_m if found else proposed.position_m
        return Command(proposed.seq, mode, position, zero, zero), found, Limit.NONE

    acted = Limit.NONE
    position = np.clip(proposed.position_m, limits.length_min_m, limits.length_max_m)
    if (position != proposed.position_m).any():
        acted |= Limit.STROKE
    velocity = proposed.velocity_m_s
    if last.axis_mode is AxisMode.FOLLOW:
        step = (position - last.position_m) / elapsed_s
        share = _share(step, limits.speed_m_s)
        if share < 1.0:
            acted |= Limit.SPEED
        change = share * step - last_rate_m_s
        gentle = _share(change, limits.acceleration_m_s2 * elapsed_s)
        if gentle < 1.0:
            acted |= Limit.ACCELERATION
        if acted & (Limit.SPEED | Limit.ACCELERATION):
            velocity = last_rate_m_s + gentle * change
            position = np.clip(last.position_m + velocity * elapsed_s, limits.length_min_m, limits.length_max_m)
    share = _share(velocity, limits.speed_m_s)
    if share < 1.0:
        velocity = share * velocity
        acted |= Limit.SPEED
    force = np.clip(proposed.force_n, -limits.force_n, limits.force_n)
    if (force != proposed.force_n).any():
        acted |= Limit.FORCE
    return replace(proposed, position_m=position, velocity_m_s=velocity, force_n=force), found, acted


def _share(values: Array, most: Array) -> float:
    """The largest factor up to 1 that brings every |value| within `most`."""
    worst = float(np.max(np.abs(values) / most))
    return 1.0 if worst <= 1.0 else 1.0 / worst
