"""The platform's pose and rate from the leg lengths, warm-started with the last estimate."""

import numpy as np

from controller.mechanism import kinematics, posture
from controller.mechanism.layout import Mechanism
from controller.records import Array, Estimate

UNKNOWN = Estimate(np.full(6, np.nan), np.full(6, np.nan), iterations=-1, residual_m=np.nan, condition=np.nan)


def estimate(machine: Mechanism, q: Array, qd: Array, x_guess: Array, twist: Array) -> Estimate:
    """Pose and rate at axis positions q (n,) and rates qd (n,), UNKNOWN if none is found from x_guess.

    `twist` (n,) at x_guess becomes the one at the pose.
    """
    x, xd = np.empty(6), np.empty(6)
    iterations = kinematics.forward(machine, q, x_guess, twist, x)
    if iterations < 0:
        return UNKNOWN
    residual = kinematics.platform_rate(machine, x, twist, q, qd, xd)
    return Estimate(x, xd, iterations, residual, posture.condition(machine, x))
