"""What every sensor driver leaves in its mailbox."""

import math
from dataclasses import dataclass

from controller.records import Quality
from controller.schema import Range


@dataclass(frozen=True, slots=True)
class Reading:
    """The newest valid value of a channel and when it was asked for; quality and message are of now.

    A driver that hangs leaves GOOD standing: whoever uses the value looks at `age_s` too.
    """

    value: float = math.nan
    unit: str = ""
    stamp_s: float = -math.inf  # host monotonic time
    quality: Quality = Quality.NONE
    message: str = "not read yet"  # why the quality is not GOOD, for the operator; empty when it is

    def age_s(self, now_s: float) -> float:
        """Age of the value at monotonic time now_s, s; infinite when there is none."""
        return now_s - self.stamp_s

    def held(self, message: str) -> "Reading":
        """The same value when no new one came."""
        quality = Quality.HELD if math.isfinite(self.value) else Quality.NONE
        return Reading(self.value, self.unit, self.stamp_s, quality, message)

    def bad(self, message: str) -> "Reading":
        """The same value when the device says that it does not measure."""
        return Reading(self.value, self.unit, self.stamp_s, Quality.BAD, message)


def judged(value: float, unit: str, plausible: Range, stamp_s: float, complaint: str = "") -> Reading:
    """A reading of a fresh value, BAD with NaN when the device complains or the value cannot be true."""
    low, high = plausible
    if not complaint and not low <= value <= high:  # also when it is NaN
        complaint = f"{value:g} {unit} is outside the plausible {low:g} to {high:g} {unit}"
    if complaint:
        return Reading(math.nan, unit, stamp_s, Quality.BAD, complaint)
    return Reading(value, unit, stamp_s, Quality.GOOD, "")


def newest(before: Reading, fresh: Reading) -> Reading:
    """What to keep after `fresh` came: a bad one changes the quality, not the last valid value."""
    return fresh if fresh.quality is Quality.GOOD else before.bad(fresh.message)
