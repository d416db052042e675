"""What axes that do not know where they are find in the virtual machine: marks and stops at known lengths.

Arrays are (n,), one value an axis. The drive of each axis has a touch probe: it keeps the count of the encoder at the
moment at which the axis passes its mark in the direction of homing, not that of the next PLC cycle.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from controller.errors import ConfigurationError
from drivers.virtual.hydraulics import Cylinders
from drivers.virtual.plc_program import HOMING_FORCE_MARGIN, Found, Homing, HomingMethod
from drivers.virtual.servo import Drives

Array = NDArray[np.float64]


class Referenced(Protocol):
    """A machine with encoders whose zero may be anywhere."""

    @property
    def axis_m(self) -> Array:
        """Where the axes really are."""
        ...

    def encoder_m(self, axis_m: Array) -> Array:
        """What the encoders show there."""
        ...

    def stop_at(self, length_m: Array, direction: float) -> None:
        """Put a stop there, for axes that move in this direction."""
        ...


class References:
    """The marks or stops of all axes, and what the drives tell of them."""

    def __init__(self, homing: Homing, plant: Referenced, drives: Drives | Cylinders) -> None:
        """Fit the machine with what its method needs.

        Raises:
            ConfigurationError: cylinders are to home by force.
        """
        n = len(homing.length_m)
        self.missing: NDArray[np.bool_] = np.zeros(n, dtype=np.bool_)  # marks that came off
        self.spike_n = np.zeros(n)  # by how much the next reading of the force is wrong
        self._homing, self._plant, self._drives = homing, plant, drives
        self._seeking = False
        self._before_m = np.zeros(n)
        self._marked: NDArray[np.bool_] = np.zeros(n, dtype=np.bool_)
        self._latch_m = np.zeros(n)
        if homing.method == HomingMethod.FORCE:
            if isinstance(drives, Cylinders):
                raise ConfigurationError(
                    'homing.method: found "force", expected "absolute" or "reference": the force of a cylinder cannot '
                    "be limited by its drive"
                )
            plant.stop_at(homing.length_m, homing.direction)

    def watch(self, seeking: bool) -> None:
        """Arm the touch probes and limit the forces when a search begins; end both with it."""
        if seeking == self._seeking:
            return
        self._seeking = seeking
        if isinstance(self._drives, Drives):
            self._drives.limit(HOMING_FORCE_MARGIN * self._homing.force_n if seeking else np.inf)
        if seeking:
            self._marked[:] = False
            self._before_m = self._plant.axis_m

    def look(self) -> None:
        """After every step of the plant: has an axis passed its mark?"""
        homing, axis_m = self._homing, self._plant.axis_m
        short_of = homing.direction * (homing.length_m - self._before_m) > 0.0
        passed = short_of & (homing.direction * (homing.length_m - axis_m) <= 0.0) & ~self._marked & ~self.missing
        if passed.any():
            self._latch_m[passed] = self._plant.encoder_m(homing.length_m)[passed]
            self._marked |= passed
        self._before_m = axis_m

    def found(self, offset_m: Array) -> Found:
        """What the drives tell now, in axis positions: counts of the encoder plus `offset_m`."""
        force_n = self._drives.force_n + self.spike_n
        self.spike_n[:] = 0.0
        return Found(force_n, self._marked.copy(), self._latch_m + offset_m)
