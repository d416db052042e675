"""The pose of a machine that has just been homed: nothing is known but the leg lengths and how it is built."""

import math

import numpy as np

from controller.mechanism import kinematics
from controller.mechanism.layout import Mechanism
from controller.motion.estimator import UNKNOWN, estimate
from controller.records import Array, Estimate

STEP_SHARE = 0.02  # of the longest leg: from one pose to the next along the way
MOST_STEPS = 100
RESIDUAL_M = 2e-3  # more, where legs outnumber freedoms, and one of them is not where it says


def find_pose(machine: Mechanism, q: Array, qd: Array, home: Array, twist_out: Array) -> Estimate:
    """Pose and rate at axis positions q (n,) and rates qd (n,), UNKNOWN if none is found; twist_out (n,) of that pose.

    Leg lengths alone belong to many poses. From home the legs are led to q in small steps: the pose is the one that
    the machine can reach from home without passing a singular pose.
    """
    at_home, x, between = np.empty(len(q)), home, np.empty(6)
    kinematics.leg_lengths(machine, home, at_home)  # at home the axes are at the leg lengths
    twist_out[:] = 0.0
    steps = math.ceil(float(np.abs(q - at_home).max()) / (STEP_SHARE * float(at_home.max())))
    if steps > MOST_STEPS:
        return UNKNOWN
    for step in range(1, steps):
        if kinematics.forward(machine, at_home + step / steps * (q - at_home), x, twist_out, between) < 0:
            return UNKNOWN
        x = between.copy()
    found = estimate(machine, q, qd, x, twist_out)
    return found if found.residual_m <= RESIDUAL_M else UNKNOWN
