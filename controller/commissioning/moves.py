"""Where the legs are sent one by one, and how far: no farther than it takes to tell the mistakes apart. Pure.

P poses, n legs. Between two moves the machine is back at its start, so every second pose is that one.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from controller.commissioning.evidence import Evidence, forces, unseen
from controller.mechanism import kinematics
from controller.mechanism.platform import freedoms
from controller.motion.trajectory import FREE
from controller.records import Array
from controller.state import Setup

TRAVELS_M = (0.003, 0.005, 0.008, 0.012, 0.02, 0.03)
SPEED_M_S = 0.015  # of the platform, about that of a leg: who sees it go wrong can still stop it
INSIDE = 0.98  # of the limits


class Moves(NamedTuple):
    """A way out and back for every leg, or for every freedom where legs outnumber freedoms."""

    pose: Array  # (P, 6)
    length_m: Array  # (P, n) that the axes are told
    travel_m: float


class Choice(NamedTuple):
    """The moves, and what they could not show."""

    moves: Moves
    unseen: list[str]


def of_legs(setup: Setup, start: Array, travel_m: float) -> Moves | None:
    """The moves about pose `start` (6,), each leg out by `travel_m`, in where it cannot go out; None: neither."""
    limits, machine = setup.limits, setup.machine
    n = len(machine.legs)
    home, at, twist, there = np.empty(n), np.empty(n), np.zeros(n), np.empty(6)
    rate = np.empty((2, n))
    kinematics.axis_rates(machine, start, np.zeros(6), np.zeros(6), twist, home, rate[0], rate[1])
    low, high = np.array(limits.length_min_m), np.array(limits.length_max_m)
    box = np.array(limits.pose_min), np.array(limits.pose_max)
    one_by_one = freedoms(machine.platform) == n
    free = np.flatnonzero(FREE[int(machine.platform[0])])
    poses, lengths = [start], [home]
    for k in range(n if one_by_one else len(free)):
        for travel in (travel_m, -travel_m):
            if one_by_one:
                at[:] = home
                at[k] += travel
                if kinematics.forward(machine, at, start, np.zeros(n), there) < 0:
                    continue
            else:
                there[:] = start
                radius = float(np.linalg.norm(machine.legs[:, 3:6], axis=1).mean())
                there[free[k]] += travel if free[k] < 3 else travel / radius
                kinematics.axis_rates(machine, there, np.zeros(6), np.zeros(6), np.zeros(n), at, rate[0], rate[1])
            middle, half = 0.5 * (box[0] + box[1]), 0.5 * INSIDE * (box[1] - box[0])
            if (np.abs(there - middle) <= half).all() and (low < at).all() and (at < high).all():
                break
        else:
            return None
        poses += [there.copy(), start]
        lengths += [at.copy(), home]
    return Moves(np.array(poses), np.array(lengths), travel_m)


def choose(setup: Setup, start: Array, evidence_of: Callable[[Array], Evidence]) -> Choice | None:
    """The shortest of `TRAVELS_M` that tells every mistake, else the longest; None where none is possible.

    `evidence_of(told_m (P, n))` is what a sound machine would show at such lengths.
    """
    best: Choice | None = None
    for travel_m in TRAVELS_M:
        moves = of_legs(setup, start, travel_m)
        if moves is None:
            break
        best = Choice(moves, unseen(evidence_of(moves.length_m)))
        if not best.unseen:
            break
    return best


def as_told(setup: Setup, start: Array, told_m: Array, noise_n: Array, offset_n: Array, at_cells: bool) -> Evidence:
    """What a machine that is as its file would show, without noise; no forces for sensors with infinite noise.

    told_m (P, n), noise_n and offset_n (n,).
    """
    model = forces(setup.machine, start, told_m, at_cells) if np.isfinite(noise_n).any() else None
    shown_n = np.full(told_m.shape, np.nan) if model is None else np.where(np.isfinite(noise_n), model[0], np.nan)
    return Evidence(setup.machine, start, told_m, shown_n, -shown_n, noise_n, offset_n, at_cells)
