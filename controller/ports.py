"""What the loop needs from the world."""

from collections.abc import Callable
from typing import Protocol

from controller.records import Command, Sample

SensorReader = Callable[[Sample, float], Sample]  # the sample with what the sensors show at that monotonic time


class LegDriver(Protocol):
    """The link to the legs. Neither call ever waits."""

    @property
    def exchange_s(self) -> float:
        """Duration of the last exchange, s; NaN before the first."""
        ...

    @property
    def dropped(self) -> int:
        """Commands that were never sent."""
        ...

    def read(self, tick: int, now_s: float, start_s: float) -> Sample:
        """The newest measurement as seen at monotonic time now_s; sample times count from start_s."""
        ...

    def write(self, command: Command) -> None:
        """Hand over a command; the newest wins."""
        ...
