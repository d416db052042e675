"""Servo drives of the virtual cell: what turns set-points into axis forces. Arrays are (n,), one value an axis."""

import numpy as np
from numpy.typing import NDArray

from drivers.virtual.plc_program import Axes

Array = NDArray[np.float64]

# Position P, velocity PI; 30-40 1/s is usual for the position loop of a servo.
POSITION_GAIN_1_S = 32.0
VELOCITY_BANDWIDTH_1_S = 480.0  # at the least load an axis can have; the heaviest leaves it 1/9 of that
INTEGRAL_TIME_S = 0.10


class Drives:
    """Servo drives: position P, velocity PI, feed-forward of velocity and force; or, `forcing`, the force alone.

    Every axis has the same gains per kilogram of its least load, so the closed chain does not couple them: its
    leg-space inertia has eigenvalues from 3 to 150 kg, and each of its eigenmodes sees these gains (a tuning on the
    mean was unstable). Without velocity feed-forward the lag is speed / position gain. When the loops take over from
    the force alone, their integral is set so that the force goes on where it was.
    """

    def __init__(self, axes: Axes, step_s: float) -> None:
        """Tune for these axes; `step_s` is the time between two steps."""
        n = len(axes.low_m)
        self.force_n = np.zeros(n)
        self.velocity_feedforward = 1.0  # share of the set-point velocity
        self.forcing = False  # no position loop
        self._preset = False  # the loops have to take over from the force
        self._gain = VELOCITY_BANDWIDTH_1_S * axes.least_mass_kg
        self._integral_gain = self._gain * step_s / INTEGRAL_TIME_S
        self._rated_peak_n = axes.peak_force_n
        self._peak_n, self._least_n = axes.peak_force_n, -axes.peak_force_n
        self._integral_n = np.zeros(n)
        self._error, self._wanted = np.zeros(n), np.zeros(n)

    def limit(self, force_n: float) -> None:
        """Give at most this force from now on, and never more than the peak."""
        self._peak_n = np.minimum(self._rated_peak_n, force_n)
        self._least_n = -self._peak_n

    def reset(self, held_n: Array) -> None:
        """As after switching on: whatever the brakes hold, `held_n` (n,), a motor bears nothing until they open."""
        self.force_n[:] = 0.0
        self._integral_n[:] = 0.0
        self._preset = False

    def step(self, p: Array, v: Array, f: Array, position_m: Array, velocity_m_s: Array) -> Array:
        """Axis forces (N) for the next plant step; the array is reused."""
        error, wanted, force = self._error, self._wanted, self.force_n
        if self.forcing:
            self._preset = True
            return np.minimum(np.maximum(f, self._least_n, out=force), self._peak_n, out=force)
        np.subtract(p, position_m, out=error)
        error *= POSITION_GAIN_1_S
        error += self.velocity_feedforward * v
        error -= velocity_m_s
        np.multiply(self._gain, error, out=wanted)
        if self._preset:
            self._integral_n[:] = force - wanted - f
            self._preset = False
        wanted += self._integral_n
        wanted += f
        np.minimum(np.maximum(wanted, self._least_n, out=force), self._peak_n, out=force)
        error *= self._integral_gain
        error *= force == wanted  # at the limit the integral stands still
        self._integral_n += error
        return force
