"""What a motion asks of a machine, against the limits of its file.

Worked out with the functions that control and commands use, so it also judges what an optimiser found.
Channels c, for n legs: axis positions, rates, accelerations, drive forces (n each), swings in the base and platform
joints (n each), pose (6), condition number of the Jacobian (1).
"""

from typing import NamedTuple

import numpy as np

from controller import schema
from controller.errors import ConfigurationError
from controller.identification.base_parameters import States, axis_positions, pose_limits, strokes
from controller.mechanism import dynamics, posture
from controller.mechanism.drive import axis_force, build_drives
from controller.mechanism.layout import Mechanism
from controller.mechanism.model import build
from controller.records import POSE, Array

CONDITION_GROWTH = 4.0  # the Jacobian's condition number may become so many times that at the centre
ROUNDING_M = 1e-6  # room in a coordinate that the platform cannot move in
LEG_CHANNELS = ("stroke_m", "speed_m_s", "acceleration_m_s2", "force_n", "base_swing_rad", "platform_swing_rad")


class Bounds(NamedTuple):
    """A machine and its limits."""

    machine: Mechanism
    drives: Array
    names: tuple[str, ...]  # c, with units
    scaling: Array  # (2, c): middle and half of each range


def build_bounds(machine: schema.Machine, centre: Array) -> Bounds:
    """Limits of a machine file for motions about the pose `centre` (6,)."""
    model, n = build(machine), len(machine.leg)
    legs = [schema.effective_leg(machine, i).limits for i in range(n)]
    stroke, box = strokes(machine), pose_limits(machine)
    middle = np.concatenate([stroke.mean(axis=0), np.zeros(5 * n), box.mean(axis=0), [0.0]])
    half = np.concatenate(
        [
            (stroke[1] - stroke[0]) / 2.0,
            *([getattr(leg, name) for leg in legs] for name in LEG_CHANNELS[1:]),
            np.maximum((box[1] - box[0]) / 2.0, ROUNDING_M),
            [CONDITION_GROWTH * posture.condition(model, centre)],
        ]
    )
    names = (*(f"leg_{i + 1}_{name}" for name in LEG_CHANNELS for i in range(n)), *POSE, "condition")
    return Bounds(model, build_drives(machine), names, np.array([middle, half]))


def demands(bounds: Bounds, states: States) -> Array:
    """What the states ask for (N, c), in the units of the limits: forces are those of the drives, friction and rotors
    included. NaN forces and an infinite condition number at a singular pose."""
    machine, shape = bounds.machine, (len(states.x), len(bounds.machine.legs))
    q, qd, qdd = axis_positions(machine, states)
    f, f_cell, axis, base_swing, platform_swing = np.empty((5, *shape))
    dynamics.inverse_dynamics_batch(machine, *states, np.zeros_like(states.x), f, f_cell)
    for k in range(len(f)):
        axis_force(bounds.drives, f[k], qd[k], qdd[k], axis[k])
    posture.joint_swings(machine, states.x, base_swing, platform_swing)
    condition = np.array([[posture.condition(machine, x)] for x in states.x])
    return np.hstack([q, qd, qdd, axis, base_swing, platform_swing, states.x, condition])


def use(bounds: Bounds, states: States) -> Array:
    """Largest |value - middle| / half range of each channel (c,): up to 1 inside the limits, infinite where there is
    no number."""
    middle, half = bounds.scaling
    found: Array = np.abs((demands(bounds, states) - middle) / half).max(axis=0)
    return np.where(np.isfinite(found), found, np.inf)


def require_inside(bounds: Bounds, states: States, what: str) -> None:
    """Refuse states outside a limit.

    Raises:
        ConfigurationError: naming `what` moves and the limits it passes.
    """
    used = use(bounds, states)
    passed = [f"{name} ({100.0 * used[c]:.0f} %)" for c, name in enumerate(bounds.names) if not used[c] <= 1.0]
    if passed:
        raise ConfigurationError(f"{what} is outside these limits: {', '.join(passed)}")


def report(bounds: Bounds, states: States) -> list[str]:
    """A line for each kind of limit: the leg that comes closest, from where to where it goes, the limits, the margin
    in per cent of the half range."""
    values, used = demands(bounds, states), use(bounds, states)
    middle, half = bounds.scaling
    n = len(bounds.machine.legs)
    worst = [n * kind + int(used[n * kind : n * (kind + 1)].argmax()) for kind in range(len(LEG_CHANNELS))]
    lines = [f"{'limit':<27}{'from':>10}{'to':>10}{'lowest':>10}{'highest':>10}{'margin':>9}"]
    for c in (*worst, *range(len(LEG_CHANNELS) * n, len(used))):
        low, high = values[:, c].min(), values[:, c].max()
        lines.append(
            f"{bounds.names[c]:<27}{low:10.4g}{high:10.4g}{middle[c] - half[c]:10.4g}{middle[c] + half[c]:10.4g}"
            f"{100.0 * (1.0 - used[c]):7.2f} %"
        )
    return lines
