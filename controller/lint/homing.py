"""Where homing takes the platform: the legs of a parallel machine cannot move alone, so it tilts on the way.

A leg goes on until it has found its reference, the others do not wait. The way is walked from home and from poses all
over the pose limits, where the machine may have been left, in steps of the leg lengths.
"""

import math
from typing import NamedTuple

import numpy as np

from controller import schema
from controller.lint.geometry import reachable_poses
from controller.mechanism import dynamics, kinematics, posture
from controller.mechanism.layout import Mechanism
from controller.mechanism.model import build, home_pose
from controller.mechanism.platform import rotation_matrix
from controller.records import POSE, Array

MOST_STARTS = 120
STEP_M = 0.004
RESIDUAL_M = 2e-3  # where legs outnumber freedoms, more is no pose


class Ways(NamedTuple):
    """What the ways of homing have in common."""

    starts: int
    beyond: int  # starts at which a leg has its mark or stop behind it already
    tilt_rad: float  # the most that the platform is turned against home on a way
    more_rad: float  # the most that a way turns it further than it was at its start
    problems: list[str]  # one sentence each


def walk(machine: schema.Machine, homing: schema.Homing) -> Ways:
    """Walk every way of a homing that is not absolute; legs that miss their reference go to the end of their stroke."""
    model, home = build(machine), home_pose(machine)
    n = len(machine.leg)
    (force_n, cell_n), rest = np.empty((2, n)), np.zeros(6)
    limits = [schema.effective_leg(machine, i).limits for i in range(n)]
    strokes = np.array([limit.length_m for limit in limits]).T
    most_rad = np.array([[limit.base_swing_rad for limit in limits], [limit.platform_swing_rad for limit in limits]])
    way = 1.0 if homing.direction == "extend" else -1.0
    length_m = np.broadcast_to(np.array(homing.length_m, dtype=np.float64), n)
    last_m = strokes[1] if way > 0.0 else strokes[0]
    problems: list[str] = []
    lost: list[Array] = []  # starts whose way leads to no pose
    beyond, tilt, more, over, load_n = 0, 0.0, 0.0, 0.0, 0.0
    starts = reachable_poses(machine)[:MOST_STARTS]
    for start in starts:
        at_start = _axes(model, start)
        missed = way * (length_m - at_start) < 0.0
        beyond += bool(missed.any())
        end = np.where(missed, last_m, length_m)
        tilted = _turn(home, start)
        for pose in _between(model, start, at_start, end, way):
            if pose is None:
                lost.append(start)
                break
            turned = _turn(home, pose)
            tilt, more = max(tilt, turned), max(more, turned - tilted)
            swings = np.empty((2, 1, n))
            posture.joint_swings(model, pose[np.newaxis], swings[0], swings[1])
            over = max(over, float((swings[:, 0] - most_rad).max()))
            dynamics.inverse_dynamics(model, pose, rest, rest, rest, force_n, cell_n)
            load_n = max(load_n, float(np.abs(force_n).max()))
    if lost:
        problems.append(
            f"homing.length_m: from {len(lost)} of {len(starts)} poses, as {_said(lost[0])}, the legs lead to no pose"
        )
    if over > 0.0:
        problems.append(f"homing: a leg swings {math.degrees(over):.1f}° further than its joints allow on the way")
    if load_n >= homing.force_n:
        problems.append(
            f"homing.force_n: a leg bears up to {load_n:.0f} N of weight on the way, {homing.force_n:g} N is no stop"
        )
    if beyond:
        problems.append(
            f"homing.length_m: at {beyond} of {len(starts)} poses a leg stands beyond already, so homing fails there"
        )
    problems += _end(machine, model, home, length_m - way * homing.back_m, strokes)
    return Ways(len(starts), beyond, tilt, more, problems)


def _end(machine: schema.Machine, model: Mechanism, home: Array, q: Array, strokes: Array) -> list[str]:
    """What is wrong with the pose at which homing ends."""
    if (q < strokes[0]).any() or (q > strokes[1]).any():
        return ["homing.length_m: homing ends outside legs.limits.length_m, so `ready` would trip"]
    x = home
    for pose in _between(model, home, _axes(model, home), q, 0.0):
        if pose is None:
            return ["homing.length_m: no pose belongs to the lengths at which homing ends"]
        x = pose
    outside = [
        name
        for name, value in zip(POSE, x.tolist(), strict=True)
        if not (low := getattr(machine.platform.limits, name))[0] <= value <= low[1]
    ]
    return [f"homing.length_m: homing ends outside platform.limits.{name}, so `ready` would trip" for name in outside]


def _axes(model: Mechanism, pose: Array) -> Array:
    q, qd, qdd, twist = np.zeros((4, len(model.legs)))
    kinematics.axis_rates(model, pose, np.zeros(6), np.zeros(6), twist, q, qd, qdd)
    return q


def _between(model: Mechanism, start: Array, at_start: Array, end: Array, way: float) -> list[Array | None]:
    """The poses from `start` until all axes are at their ends, None behind the last one that could be found.

    Each axis moves with the same speed until it is there; with `way` 0 all of them arrive together.
    """
    longest = float(np.abs(end - at_start).max())
    steps = max(math.ceil(longest / STEP_M), 1)
    x, twist, poses = start, np.zeros(len(at_start)), list[Array | None]()
    kinematics.twists(model, start, np.zeros(len(at_start)), twist)
    rate = np.empty(6)
    for step in range(1, steps + 1):
        gone = step / steps * longest
        q = at_start + np.clip(end - at_start, -gone, gone) if way else at_start + step / steps * (end - at_start)
        found = np.empty(6)
        if kinematics.forward(model, q, x, twist, found) < 0:
            return [*poses, None]
        if not kinematics.platform_rate(model, found, twist, q, np.zeros(len(q)), rate) <= RESIDUAL_M:
            return [*poses, None]
        x = found
        poses.append(x)
    return poses


def _turn(home: Array, pose: Array) -> float:
    """Angle (rad) between the platform's normal at home and at a pose."""
    R = np.empty((2, 3, 3))
    rotation_matrix(home, R[0])
    rotation_matrix(pose, R[1])
    return math.acos(min(1.0, max(-1.0, float(R[0, :, 2] @ R[1, :, 2]))))


def _said(pose: Array) -> str:
    return " ".join(f"{name}={value:.3g}" for name, value in zip(POSE, pose, strict=True))
