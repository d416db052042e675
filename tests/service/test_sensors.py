"""The hub of the sensors on real lines: values, ages, qualities and what is said of them."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from controller.records import Fault, Link, Quality, Sample
from controller.safety.sensors import build_watch, judge_sensors
from controller.service import sensors as hub
from controller.service.sensors import Sensors
from controller.settings import SiteFiles, load_site
from drivers import modbus, serial_line
from drivers.ads import AdsReading
from drivers.exchange import STATUS, InputStatus
from drivers.fitting import fit
from drivers.virtual import sensing
from drivers.virtual.instruments import Behaviour
from drivers.virtual.sensing import Sensing
from tests.drivers.lines import until
from tests.machines import CELLS, ROOT, SIMULATION, own_site

LINES = ROOT / "config" / "sites" / "simulation-lines.toml"
EMPTY = Sample(1, 0.01, Link.UP, 0.0, 1, 1, 0, 0, False, True, False, *[np.zeros(6)] * 4)
FORCES = {f"cell_{i}": 100.0 * i for i in range(1, 7)} | {"tilt_x": 0.02, "tilt_y": -0.03}


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modbus, "FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr(modbus, "LONGEST_PAUSE_S", 0.1)
    monkeypatch.setattr(serial_line, "PAUSE_S", 0.05)
    monkeypatch.setattr(serial_line, "DRAIN_S", 0.05)


class Plc:
    """A PLC whose terminals show counts and status bits."""

    def __init__(self) -> None:
        self.status = np.zeros((), STATUS)
        self.reading = AdsReading()

    def answers(self, now_s: float, raw: dict[int, int] | None = None, bits: dict[int, int] | None = None) -> None:
        """A new status, asked for at now_s, with these inputs (from 1) changed."""
        self.status = self.status.copy()
        for place, value in (raw or {}).items():
            self.status["input_raw"][place - 1] = value
        for place, value in (bits or {}).items():
            self.status["input_status"][place - 1] = value
        self.reading = AdsReading(self.status[()], now_s, Link.UP, "")

    def __call__(self) -> AdsReading:
        return self.reading


def terminals(files: SiteFiles | None = None) -> tuple[Sensors, Plc]:
    """The simulation site, its cells at bridge terminals."""
    files, plc = files or load_site(SIMULATION), Plc()
    return Sensors(files, fit(files), plc), plc


def column(sample: Sample, k: int) -> tuple[float, float, Quality]:
    return float(sample.sensor[k]), float(sample.sensor_age_s[k]), Quality(int(sample.sensor_quality[k]))


# ---------------------------------------------------------------- terminals, with time as an argument


def test_before_the_first_status_there_is_no_value() -> None:
    sensors, plc = terminals()
    sample = sensors.read(EMPTY, 10.0)
    assert np.isnan(sample.sensor).all() and np.isinf(sample.sensor_age_s).all() and not sample.sensor_quality.any()
    site = load_site(SIMULATION).site
    [first, *others] = sensors.complaints(10.0, site)
    assert first == "sensor cell_1 (terminals, channel 1): not connected yet" and len(others) == 5
    plc.answers(10.0)
    assert sensors.complaints(10.01, site) == []
    assert sensors.complaints(10.2, site)[0].endswith("its value is 0.20 s old")


def test_terminals_give_forces_with_the_age_of_the_status() -> None:
    sensors, plc = terminals()
    # cell 4: rated 2224.1 N at 2.0000 mV/V, zero -0.004 mV/V; 1 000 000 counts are 2 mV/V
    plc.answers(5.0, {4: 498_000})
    sample = sensors.read(EMPTY, 5.012)
    value, age_s, quality = column(sample, 3)
    assert value == pytest.approx(1112.05, abs=1e-6) and age_s == pytest.approx(0.012) and quality is Quality.GOOD
    assert column(sensors.read(EMPTY, 5.02), 3)[1] == pytest.approx(0.02)  # no new status: the age grows
    assert sensors.reading("cell_4").unit == "N"
    assert sample.length_m is EMPTY.length_m  # the rest of the sample is untouched


def test_a_frozen_terminal_keeps_value_and_stamp_until_it_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    files = load_site(SIMULATION)
    sensors, plc = terminals(files)
    watch, counts, faults = build_watch(files.site), [0] * 6, Fault.NONE
    plc.answers(1.0, {2: 300_000})
    before = column(sensors.read(EMPTY, 1.0), 1)
    seen: list[Fault] = []
    for tick in range(1, 8):
        now_s = 1.0 + 0.01 * tick
        plc.answers(now_s, {2: 300_000}, {2: int(InputStatus.CALIBRATING)})
        sample = sensors.read(EMPTY, now_s)
        value, age_s, quality = column(sample, 1)
        assert (value, quality) == (before[0], Quality.HELD) and age_s == pytest.approx(0.01 * tick)
        assert column(sample, 0)[1] == 0.0  # the others are fresh
        counts, faults = judge_sensors(watch, sample, False, counts, 1)
        seen.append(faults)
    assert seen[1] == Fault.NONE and seen[2] == Fault.SENSOR_DEGRADED and Fault.SENSOR_LOST in seen[5]
    assert [record.getMessage() for record in caplog.records] == [
        "sensor cell_2: HELD: the terminal calibrates itself"
    ]  # fmt: skip
    plc.answers(1.08, {2: 301_000}, {2: 0})
    assert column(sensors.read(EMPTY, 1.08), 1)[2] is Quality.GOOD


def test_a_status_that_does_not_change_grows_old_and_is_invalid_although_its_quality_is_good() -> None:
    """A thread that hangs leaves its last reading standing: GOOD, and older and older."""
    files = load_site(SIMULATION)
    sensors, plc = terminals(files)
    watch, counts = build_watch(files.site), [0] * 6
    plc.answers(1.0, {1: 300_000})
    for tick in range(12):
        now_s = 1.001 + 0.01 * tick
        sample = sensors.read(EMPTY, now_s)
        assert column(sample, 0)[1:] == (pytest.approx(0.001 + 0.01 * tick), Quality.GOOD)
        counts, faults = judge_sensors(watch, sample, False, counts, 1)
        assert (Fault.SENSOR_LOST in faults) == (tick >= 10)  # 0.05 s, and then six ticks
    assert sensors.complaints(1.2, files.site)[0].endswith("its value is 0.20 s old")


def test_a_link_that_is_down_holds_the_values_and_says_why() -> None:
    sensors, plc = terminals()
    plc.answers(1.0, {1: 300_000})
    value = column(sensors.read(EMPTY, 1.0), 0)[0]
    plc.reading = replace(plc.reading, link=Link.DOWN, message="nothing listens")
    assert column(sensors.read(EMPTY, 1.5), 0) == (value, 0.5, Quality.HELD)
    assert sensors.reading("cell_1").message == "nothing listens"
    plc.answers(2.0, {1: 300_000})
    assert column(sensors.read(EMPTY, 2.0), 0) == (value, 0.0, Quality.GOOD)


def test_a_value_beyond_half_as_much_again_as_rated_is_bad_and_the_last_one_stays() -> None:
    files = load_site(SIMULATION)
    weak = msgspec.structs.replace(files.site.sensors["cell_1"].calibration, rated_n=100.0)
    changed = msgspec.structs.replace(files.site.sensors["cell_1"], calibration=weak)
    site = msgspec.structs.replace(files.site, sensors=files.site.sensors | {"cell_1": changed})
    sensors, plc = terminals(files._replace(site=site))
    plc.answers(1.0, {1: 500_000})
    value = column(sensors.read(EMPTY, 1.0), 0)[0]
    plc.answers(1.01, {1: 1_000_000})  # 100 N
    assert column(sensors.read(EMPTY, 1.01), 0)[0] == pytest.approx(99.8, abs=0.1)
    plc.answers(1.02, {1: 1_510_000}, {1: 0})
    assert column(sensors.read(EMPTY, 1.02), 0)[2] is Quality.BAD
    plc.answers(1.03, {1: 1_499_000 + 10_000})
    sample = sensors.read(EMPTY, 1.03)
    assert column(sample, 0)[0] == pytest.approx(99.8, abs=0.1) and column(sample, 0)[2] is Quality.BAD
    assert value < 60.0


def test_a_flickering_sensor_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sensors, plc = terminals()
    for tick in range(1000):  # 10 s, another quality every tick
        now_s = 1.0 + 0.01 * tick
        plc.answers(now_s, bits={3: int(InputStatus.ERROR) * (tick % 2)})
        sensors.read(EMPTY, now_s)
    lines = [record.getMessage() for record in caplog.records]
    assert 2 <= len(lines) <= 10.0 / hub.TELL_EVERY_S + 1
    assert all(line.startswith("sensor cell_3: ") for line in lines)
    assert "BAD: the terminal reports an error: wire break" in lines[0]


def test_what_stands_at_the_end_of_a_flicker_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sensors, plc = terminals()
    for tick in range(300):
        now_s = 1.0 + 0.01 * tick
        plc.answers(now_s, bits={3: int(InputStatus.ERROR) * (tick < 50 and tick % 2)})
        sensors.read(EMPTY, now_s)
    assert caplog.records[-1].getMessage() == "sensor cell_3: valid again"


def test_a_site_without_sensors_leaves_the_sample_alone() -> None:
    files = load_site(SIMULATION)
    bare = files._replace(site=msgspec.structs.replace(files.site, devices={}, sensors={}))
    sensors, _ = terminals(bare)
    sensors.open()
    assert sensors.read(EMPTY, 1.0) is EMPTY and sensors.complaints(1.0, bare.site) == []
    sensors.close()


# ---------------------------------------------------------------- real lines: RTU, a TCP gateway, USB, inclinometer


@contextmanager
def cabinet(folder: Path) -> Iterator[tuple[Sensors, Sensing, SiteFiles]]:
    """Everything of the site on lines, as the virtual cell plugs it in, and the hub that reads it."""
    path = folder / "site.toml"
    path.write_text(own_site(folder, LINES))
    files = load_site(path)
    fittings = fit(files)
    cell = sensing.build(files.site, fittings)
    cell.show(FORCES, 0.0)
    cell.open()
    sensors = Sensors(files, fittings, Plc())
    sensors.open()
    try:
        yield sensors, cell, files
    finally:
        sensors.close()
        cell.close()


def seen(sensors: Sensors) -> dict[str, tuple[float, float, Quality]]:
    sample = sensors.read(EMPTY, time.monotonic())
    return {name: column(sample, k) for k, name in enumerate(FORCES)}


def all_good(sensors: Sensors) -> Callable[[], bool]:
    return lambda: all(quality is Quality.GOOD for _, _, quality in seen(sensors).values())


def test_values_of_all_lines_with_their_ages(tmp_path: Path) -> None:
    with cabinet(tmp_path) as (sensors, cell, files):
        assert len(sensors.lines) == 7 and len(set(sensors.lines.values())) == 5  # the gateway is one line
        until(all_good(sensors))
        # a transmitter counts in 0.1 kg, the conditioner in 1 mN, the inclinometer in 0.001 degrees
        for name, (value, age_s, _) in seen(sensors).items():
            step = 0.5 * 0.980665 if name in CELLS[:5] else 5e-4 if name == "cell_6" else 1e-5
            assert value == pytest.approx(FORCES[name], abs=1.01 * step)
            assert 0.0 <= age_s < 15.0
        until(lambda: sensors.complaints(time.monotonic(), files.site) == [])
        cell.show(dict.fromkeys(FORCES, 0.0) | {"cell_3": -500.0}, 0.01)
        until(lambda: seen(sensors)["cell_3"][0] < -499.0 and abs(seen(sensors)["cell_1"][0]) < 0.5)


@pytest.mark.parametrize(("device", "sensor"), [("rtu_2", "cell_2"), ("gateway_2", "cell_4")])
def test_a_silent_device_is_named_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, device: str, sensor: str
) -> None:
    with cabinet(tmp_path) as (sensors, cell, files):
        until(all_good(sensors))
        cell.slaves[device].behaviour = Behaviour.SILENT
        until(lambda: seen(sensors)[sensor][2] is Quality.HELD)
        value, _, _ = seen(sensors)[sensor]
        assert value == pytest.approx(FORCES[sensor], abs=0.5)
        [complaint] = [text for text in sensors.complaints(time.monotonic(), files.site) if sensor in text]
        assert complaint.startswith(f"sensor {sensor} ({device}, channel force): ") and "no answer within" in complaint
        until(lambda: seen(sensors)["cell_1"][2] is seen(sensors)["cell_3"][2] is Quality.GOOD)
        until(lambda: seen(sensors)[sensor][1] > 0.2)
        told = [record for record in caplog.records if f"sensor {sensor}:" in record.getMessage()]
        assert 1 <= len(told) <= 3
        cell.slaves[device].behaviour = Behaviour.HONEST
        until(all_good(sensors))


def test_a_cell_that_the_transmitter_calls_broken_and_an_adapter_pulled_out(tmp_path: Path) -> None:
    with cabinet(tmp_path) as (sensors, cell, _):
        until(all_good(sensors))
        cell.slaves["gateway_1"].status = 1
        cell.show(FORCES, 0.0)
        until(lambda: seen(sensors)["cell_3"][2] is Quality.BAD)
        assert "load cell error" in sensors.reading("cell_3").message
        cell.conditioners["usb"].status = 1 << 8
        until(lambda: seen(sensors)["cell_6"][2] is Quality.BAD)
        assert "under range" in sensors.reading("cell_6").message
        line = cell.lines["inclinometer"]
        assert isinstance(line, sensing.PtyLine)
        line.plugged = False
        until(lambda: seen(sensors)["tilt_x"][2] is seen(sensors)["tilt_y"][2] is Quality.HELD)
        assert "tty-inclinometer" in sensors.reading("tilt_x").message


def test_a_driver_that_hangs_leaves_a_good_reading_that_ages(tmp_path: Path) -> None:
    """The thread of a line stands still in the middle of everything: only the age tells, and it counts as lost."""
    with cabinet(tmp_path) as (sensors, _, files):
        until(all_good(sensors))
        line = sensors.lines["rtu_1"]
        assert isinstance(line, modbus.ModbusLine)
        let_go = False
        line._loop.call_soon_threadsafe(lambda: until(lambda: let_go))
        until(lambda: seen(sensors)["cell_1"][1] > files.site.sensors["cell_1"].max_age_s)
        value, _, quality = seen(sensors)["cell_1"]
        assert quality is Quality.GOOD and value == pytest.approx(100.0, abs=0.5)
        sample, counts, faults = sensors.read(EMPTY, time.monotonic()), [0] * 8, Fault.NONE
        for _ in range(6):
            counts, faults = judge_sensors(build_watch(files.site), sample, False, counts, 1)
        assert counts[0] == 6 and Fault.SENSOR_LOST in faults
        assert any("cell_1" in text and " s old" in text for text in sensors.complaints(time.monotonic(), files.site))
        let_go = True
        until(lambda: seen(sensors)["cell_1"][1] < 0.2)


def test_nothing_plugged_in_is_a_complaint_for_every_required_sensor(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(own_site(tmp_path, LINES))
    files = load_site(path)
    sensors = Sensors(files, fit(files), Plc())
    sensors.open()
    until(lambda: all("cannot be opened" in text for text in sensors.complaints(time.monotonic(), files.site)))
    complaints = sensors.complaints(time.monotonic(), files.site)
    assert [text.split()[1] for text in complaints] == CELLS  # the inclinometer is not required
    sample = sensors.read(EMPTY, time.monotonic())
    assert not sample.sensor_quality.any() and math.isinf(sample.sensor_age_s[0])
    begin_s = time.monotonic()
    sensors.close()
    assert time.monotonic() - begin_s < 15.0
