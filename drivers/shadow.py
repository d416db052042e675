"""A link to the legs that only looks: for a controller beside another one that moves the machine."""

from controller.records import Command, Sample
from drivers.ads import AdsDriver


class ShadowDriver:
    """Reads the PLC through an ADS driver, which it neither opens nor closes, and never sends it anything."""

    def __init__(self, ads: AdsDriver) -> None:
        self._ads = ads
        self._kept = 0

    @property
    def exchange_s(self) -> float:
        """NaN: there is no exchange without a command."""
        return self._ads.exchange_s

    @property
    def dropped(self) -> int:
        """Commands that were never sent: all of them."""
        return self._kept

    def read(self, tick: int, now_s: float, start_s: float) -> Sample:
        """The newest measurement as seen at monotonic time now_s; sample times count from start_s."""
        return self._ads.read(tick, now_s, start_s)

    def write(self, command: Command) -> None:
        """Keep the command; in its place the status is read, so that samples are as old as with an exchange."""
        del command
        self._kept += 1
        self._ads.poll()
