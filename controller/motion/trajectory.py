"""References: hold, jerk-limited move and stop (ruckig), sine, track. A plan is a value; `at(plan, t)` is pure.

Poses x y z yaw pitch roll (6,) in m and rad; times on the loop's own clock of absolute ticks.
"""

import math
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import ruckig as _ruckig

from controller import schema
from controller.mechanism import layout
from controller.motion import track as tracks
from controller.motion.track import Track
from controller.records import Array, Reference

ruckig: Any = _ruckig  # ships no types

ZERO = np.zeros(6)
ASIDE = 1.0 - 1e-6  # of the jerk: where a way is just so long that ruckig's cases meet, it may find none of them
RAMP_S = 1.0  # a sine grows to its amplitude in this time


class MotionLimits(NamedTuple):
    """What a plan may ask of the six platform coordinates, (6,) each."""

    speed: Array
    acceleration: Array
    jerk: Array


class Hold(NamedTuple):
    """Stand still."""

    pose: Array


class Move(NamedTuple):
    """A planned jerk-limited motion; `trajectory` is never changed after planning."""

    trajectory: Any  # ruckig.Trajectory
    start_s: float
    end_s: float


class Sine(NamedTuple):
    """pose = centre + amplitude * ramp(t) * sin(omega t), all from rest."""

    centre: Array
    amplitude: Array
    omega_rad_s: float
    start_s: float


class Along(NamedTuple):
    """A move to where a track begins, then the track."""

    approach: Move
    track: Track


class Chase(NamedTuple):
    """Behind the poses that a motion-base host sends; `controller.motion.stream` makes the next one every tick."""

    reference: Reference
    stop: Move  # from there to rest, known to stay inside the bounds
    seq: int  # of the newest pose taken
    host_s: float  # the host's time of it
    behind_s: float  # the loop's time of the quickest pose minus the host's
    since_s: float  # between it and the one before, by the host
    target: Array  # (6,) it, as far as it is inside the bounds
    target_rate: Array  # (6,)
    smooth: Reference  # the target, filtered
    limited: bool  # the pose that is followed was brought inside the bounds


Plan = Hold | Move | Sine | Along | Chase

# Coordinates that a platform can change one by one, the straight line in all six never leaving what it is free to do.
# A roll of 2R1T would need y (and with pitch yaw) to follow on a curve.
FREE = {
    layout.FREE: np.ones(6),
    layout.SPHERICAL: np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]),
    layout.PLANE_TILT: np.array([0.0, 0.0, 1.0, 0.0, 1.0, 0.0]),
}


def build_motion_limits(motion: schema.MotionLimits) -> MotionLimits:
    """Per-axis limits from the machine file."""
    return MotionLimits(
        speed=np.repeat([motion.speed_m_s, motion.speed_rad_s], 3),
        acceleration=np.repeat([motion.acceleration_m_s2, motion.acceleration_rad_s2], 3),
        jerk=np.repeat([motion.jerk_m_s3, motion.jerk_rad_s3], 3),
    )


def slower(limits: MotionLimits, pace: float, speed_share: float = 1.0) -> MotionLimits:
    """Limits with which the same path takes 1 / pace of the time; `speed_share` scales the speed alone."""
    return MotionLimits(limits.speed * pace * speed_share, limits.acceleration * pace**2, limits.jerk * pace**3)


def plan_move(limits: MotionLimits, start: Reference, target: Array, now_s: float) -> Move | None:
    """Jerk-limited move from the reference `start` to rest at `target`; straight in the coordinates from rest.

    None when no such motion exists.
    """
    ask = _ask(limits, start)
    ask.max_velocity = np.maximum(limits.speed, np.abs(start.rate)).tolist()
    ask.target_position = target.tolist()
    ask.synchronization = ruckig.Synchronization.Phase
    return _plan(ask, now_s)


def plan_stop(limits: MotionLimits, start: Reference, now_s: float) -> Move | None:
    """The quickest jerk-limited way to rest from the reference `start`, straight in the coordinates if it can be."""
    ask = _ask(limits, start)
    ask.control_interface = ruckig.ControlInterface.Velocity
    ask.target_velocity = ZERO.tolist()
    ask.synchronization = ruckig.Synchronization.Phase
    return _plan(ask, now_s)


def plan_sine(start: Reference, amplitude: Array, frequency_hz: float, now_s: float) -> Sine:
    """Sine about the pose of `start`, which is at rest."""
    return Sine(start.pose, amplitude, 2.0 * math.pi * frequency_hz, now_s)


def _ask(limits: MotionLimits, start: Reference) -> Any:
    ask = ruckig.InputParameter(6)
    ask.current_position = start.pose.tolist()
    ask.current_velocity = start.rate.tolist()
    ask.current_acceleration = start.acceleration.tolist()
    ask.max_velocity = limits.speed.tolist()
    ask.max_acceleration = limits.acceleration.tolist()
    ask.max_jerk = limits.jerk.tolist()
    return ask


def _plan(ask: Any, now_s: float) -> Move | None:
    jerk = np.array(ask.max_jerk)
    for share in (1.0, ASIDE):
        ask.max_jerk = (share * jerk).tolist()
        trajectory = ruckig.Trajectory(6)
        with suppress(ruckig.RuckigError):
            if ruckig.Ruckig(6).calculate(ask, trajectory) in (ruckig.Result.Working, ruckig.Result.Finished):
                return Move(trajectory, now_s, now_s + float(trajectory.duration))
    return None


def end_s(plan: Plan) -> float:
    """When the plan has reached its end; infinite for what goes on until it is stopped."""
    match plan:
        case Hold():
            return -math.inf
        case Move():
            return plan.end_s
        case Along(approach, track):
            return approach.end_s + tracks.duration_s(track)
        case Sine() | Chase():
            return math.inf


def samples(plan: Plan, count: int) -> tuple[Array, Array, Array]:
    """Poses, rates, accelerations (count, 6) spread over the plan; of a sine over its ramp and one period."""
    match plan:
        case Hold() | Chase():
            times = np.zeros(count)
        case Move():
            times = np.linspace(plan.start_s, plan.end_s, count)
        case Along(approach, _):
            times = np.linspace(approach.start_s, end_s(plan), count)
        case Sine():
            times = plan.start_s + np.linspace(0.0, RAMP_S + 2.0 * math.pi / plan.omega_rad_s, count)
    references = [at(plan, t) for t in times.tolist()]
    return (
        np.array([reference.pose for reference in references]),
        np.array([reference.rate for reference in references]),
        np.array([reference.acceleration for reference in references]),
    )


def at(plan: Plan, now_s: float) -> Reference:
    """The reference at `now_s`; at rest once the plan has reached its end."""
    match plan:
        case Hold(pose):
            return Reference(pose, ZERO, ZERO)
        case Move(trajectory, start_s, end_s):
            pose, rate, acceleration = np.array(trajectory.at_time(min(now_s, end_s) - start_s), np.float64)
            return Reference(pose, rate, acceleration) if now_s < end_s else Reference(pose, ZERO, ZERO)
        case Sine():
            return _sine(plan, now_s - plan.start_s)
        case Along(approach, track):
            return at(approach, now_s) if now_s < approach.end_s else tracks.at(track, now_s - approach.end_s)
        case Chase(reference):
            return reference


def _sine(plan: Sine, t: float) -> Reference:
    # quintic ramp: position, speed and acceleration start at zero and join the steady sine without a step
    s = min(t / RAMP_S, 1.0)
    r = s**3 * (10.0 - 15.0 * s + 6.0 * s * s)
    rd = 30.0 * s * s * (1.0 - s) ** 2 / RAMP_S
    rdd = 60.0 * s * (1.0 - s) * (1.0 - 2.0 * s) / RAMP_S**2
    w = plan.omega_rad_s
    sin, cos = math.sin(w * t), math.cos(w * t)
    return Reference(
        plan.centre + plan.amplitude * (r * sin),
        plan.amplitude * (rd * sin + r * w * cos),
        plan.amplitude * (rdd * sin + 2.0 * rd * w * cos - r * w * w * sin),
    )
