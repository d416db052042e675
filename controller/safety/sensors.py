"""What the sensors of a site are worth, tick by tick: k sensors in the order of the site file."""

from collections.abc import Sequence
from typing import NamedTuple

from controller import schema
from controller.records import Fault, Quality, Sample

# Ticks in a row without a valid value: after three a sensor is invalid, then a required one stops the motion.
DEGRADED_AFTER = 3
LOST_AFTER = 6

_GOOD = float(Quality.GOOD)


class Watch(NamedTuple):
    """What the site demands of each sensor."""

    max_age_s: Sequence[float]
    required: Sequence[bool]
    through_plc: Sequence[bool]  # at terminals: without news from the PLC it is the link that is judged, not they


def build_watch(site: schema.Site) -> Watch:
    """The demands of a site file."""
    sensors = site.sensors.values()
    return Watch(
        [sensor.max_age_s for sensor in sensors],
        [sensor.required for sensor in sensors],
        [isinstance(site.devices[sensor.device].line, schema.PlcLine) for sensor in sensors],
    )


def judge_sensors(
    watch: Watch, sample: Sample, plc_silent: bool, invalid_ticks: Sequence[int], ticks: int
) -> tuple[list[int], Fault]:
    """For how many ticks in a row each sensor has had no valid value, after `ticks` more, and what that means."""
    counts: list[int] = []
    faults = Fault.NONE
    ages, qualities = sample.sensor_age_s.tolist(), sample.sensor_quality.tolist()
    for age_s, quality, count, most_s, required, through_plc in zip(
        ages, qualities, invalid_ticks, *watch, strict=True
    ):
        valid = quality == _GOOD and age_s <= most_s
        invalid = count + (0 if plc_silent and through_plc else ticks)
        invalid *= not valid
        counts.append(invalid)
        if invalid >= DEGRADED_AFTER:
            faults |= Fault.SENSOR_DEGRADED
            if required and invalid >= LOST_AFTER:
                faults |= Fault.SENSOR_LOST
    return counts, faults
