"""The sensors of a site in one place: opens their lines, and makes of every tick's readings three rows of numbers."""

import logging
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from controller import schema
from controller.records import Link, Quality, Sample
from controller.settings import SiteFiles
from drivers.ads import AdsReading
from drivers.fitting import Fitted, Fittings
from drivers.lines import lines_of
from drivers.profile import ConditionerProfile, InclinometerProfile, ModbusProfile, TerminalProfile
from drivers.reading import Reading, judged, newest
from drivers.serial_line import SerialSensor
from drivers.terminal import decode

log = logging.getLogger(__name__)

TELL_EVERY_S = 1.0  # at most, about one sensor: a flickering one must not fill the log


class Sensors:
    """Every sensor of a site. No call waits for a line, except `close`, for at most 1 s a line."""

    def __init__(self, files: SiteFiles, fittings: Fittings, plc: Callable[[], AdsReading]) -> None:
        """Prepare the lines; `plc` gives the newest status of the PLC, whose terminals are sensors too."""
        self._sensors = fittings.sensors
        self._plc = plc
        self._status: np.void | None = None
        self._inputs: dict[str, tuple[int, TerminalProfile]] = {}  # by sensor: index of the input
        self._raw = {sensor.name: Reading() for sensor in fittings.sensors}
        self._sources: dict[str, Callable[[], Reading]] = {}
        self._readings = {sensor.name: Reading(unit=sensor.unit) for sensor in fittings.sensors}
        self._told = {sensor.name: (Quality.GOOD, -math.inf) for sensor in fittings.sensors}
        self.lines = lines_of(files.site, fittings.profiles)  # by device
        for sensor in self._sensors:
            self._connect(sensor, fittings)

    def _connect(self, sensor: Fitted, fittings: Fittings) -> None:
        line, profile = self.lines.get(sensor.device), fittings.profiles[sensor.device]
        if line is None:
            if not isinstance(profile, ModbusProfile | ConditionerProfile | InclinometerProfile):
                self._inputs[sensor.name] = int(sensor.channel) - 1, profile
            self._sources[sensor.name] = lambda: self._raw[sensor.name]
        elif isinstance(line, SerialSensor):
            self._sources[sensor.name] = lambda: line.read(sensor.channel)
        else:
            self._sources[sensor.name] = lambda: line.read(sensor.device, sensor.channel)

    def open(self) -> None:
        """Start connecting in the background."""
        for line in set(self.lines.values()):
            line.open()

    def close(self) -> None:
        """Close all lines."""
        for line in set(self.lines.values()):
            line.close()

    def read(self, sample: Sample, now_s: float) -> Sample:
        """The sample with the newest readings as seen at monotonic time now_s."""
        if not self._sensors:
            return sample
        self._read_terminals()
        rows = np.empty((3, len(self._sensors)))
        for k, sensor in enumerate(self._sensors):
            reading = self._converted(sensor)
            if reading.quality is not self._told[sensor.name][0]:
                self._tell(sensor.name, reading, now_s)
            rows[:, k] = reading.value, now_s - reading.stamp_s, reading.quality
        return replace(sample, sensor=rows[0], sensor_age_s=rows[1], sensor_quality=rows[2])

    def complaints(self, now_s: float, site: schema.Site) -> list[str]:
        """A sentence for each required sensor that has no valid value at monotonic time now_s."""
        self._read_terminals()
        found: list[str] = []
        for sensor in self._sensors:
            reading, demands = self._converted(sensor), site.sensors[sensor.name]
            message = reading.message or f"its value is {reading.age_s(now_s):.2f} s old"
            valid = reading.quality is Quality.GOOD and reading.age_s(now_s) <= demands.max_age_s
            if demands.required and not valid:
                found.append(f"sensor {sensor.name} ({sensor.device}, channel {sensor.channel}): {message}")
        return found

    def reading(self, name: str) -> Reading:
        """The newest reading of a sensor in its own unit, as of the last `read` or `complaints`."""
        return self._readings[name]

    def _read_terminals(self) -> None:
        """Take over the inputs of a status that is new, or that there is none."""
        plc = self._plc()
        if plc.link is Link.DOWN:
            for name in self._inputs:
                if self._raw[name].message != plc.message:
                    self._raw[name] = self._raw[name].held(plc.message)
            self._status = None
        elif plc.status is not None and plc.status is not self._status:
            self._status = plc.status
            raw, status = plc.status["input_raw"].tolist(), plc.status["input_status"].tolist()
            for name, (index, profile) in self._inputs.items():
                self._raw[name] = decode(profile, raw[index], status[index], plc.stamp_s, self._raw[name])

    def _converted(self, sensor: Fitted) -> Reading:
        """The reading of a sensor's channel in the unit of the sensor."""
        raw, before = self._sources[sensor.name](), self._readings[sensor.name]
        if raw.quality is Quality.GOOD:
            if raw.stamp_s != before.stamp_s or before.quality is not Quality.GOOD:
                value = sensor.gain * raw.value + sensor.offset
                before = newest(before, judged(value, sensor.unit, sensor.plausible, raw.stamp_s))
        elif before.message != raw.message or before.quality is not raw.quality:
            before = before.bad(raw.message) if raw.quality is Quality.BAD else before.held(raw.message)
        self._readings[sensor.name] = before
        return before

    def _tell(self, name: str, reading: Reading, now_s: float) -> None:
        if now_s - self._told[name][1] < TELL_EVERY_S:
            return
        self._told[name] = reading.quality, now_s
        if reading.quality is Quality.GOOD:
            log.info("sensor %s: valid again", name)
        else:
            log.warning("sensor %s: %s: %s", name, reading.quality.name, reading.message)
