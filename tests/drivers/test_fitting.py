"""From the tables of a site to gains and offsets: certificates worked out by hand, and signs."""

import math
from pathlib import Path

import msgspec
import pytest

from controller import schema
from controller.errors import ConfigurationError
from controller.records import Quality
from controller.settings import SiteFiles, load_site
from drivers.fitting import address, fit
from drivers.profile import BridgeTerminalProfile, unit_of
from drivers.reading import Reading
from drivers.terminal import decode
from tests.machines import ROOT, SIMULATION

SITES = ROOT / "config" / "sites"
HYDRAULIC = SITES / "simulation-3-ups-s.toml"


def changed(path: Path, name: str, **keys: object) -> SiteFiles:
    """A shipped site with other keys of one of its sensors."""
    files = load_site(path)
    sensors = files.site.sensors | {name: msgspec.structs.replace(files.site.sensors[name], **keys)}
    return files._replace(site=msgspec.structs.replace(files.site, sensors=sensors))


@pytest.mark.parametrize("path", sorted(SITES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_shipped_site_fits(path):
    fittings = fit(load_site(path))
    assert fittings.sensors
    assert len(fittings.unverified()) == len(fittings.profiles)  # none was tried against a device
    for sentence in fittings.unverified():
        assert "is not verified against the instrument" in sentence
    for sensor in fittings.sensors:
        assert sensor.unit in ("N", "Pa", "rad") and math.isfinite(sensor.gain) and sensor.gain != 0.0


# The cell of leg 1: rated 2224.1 N, 1.9993 mV/V there, 0.004 mV/V without a load; 1 000 000 counts are 2 mV/V.
@pytest.mark.parametrize(
    ("raw", "force_n"),
    [
        (2_000, 0.0),  # 0.004 mV/V
        (1_001_650, 2224.1),  # 1.9993 + 0.004 = 2.0033 mV/V
        (-997_650, -2224.1),
        (451_463, 1000.0),  # 1.9993 * 1000 / 2224.1 = 0.898925 mV/V, and the zero: 0.902925
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_certificate_of_a_load_cell(raw, force_n, sign):
    fittings = fit(changed(SIMULATION, "cell_1", sign=sign))
    sensor = fittings.sensors[0]
    profile = fittings.profiles["terminals"]
    assert isinstance(profile, BridgeTerminalProfile) and unit_of(profile, "1") == "V/V"
    ratio = decode(profile, raw, 0, 0.0, Reading())
    assert ratio.quality is Quality.GOOD
    assert sensor.gain * ratio.value + sensor.offset == pytest.approx(sign * force_n, abs=2e-3)  # a count is 2.2 mN
    assert sensor.plausible == pytest.approx((-3336.15, 3336.15))  # half as much again as rated


@pytest.mark.parametrize(
    ("current_ma", "pressure_pa"), [(4.0, 0.0), (20.0, 25e6), (12.0, 12.5e6), (5.6, 2.5e6), (3.84, -0.25e6)]
)
def test_a_pressure_transmitter(current_ma, pressure_pa):
    sensor = fit(load_site(HYDRAULIC)).sensors[0]
    assert (sensor.name, sensor.unit) == ("head_pressure_1", "Pa")
    assert sensor.gain * 1e-3 * current_ma + sensor.offset == pytest.approx(pressure_pa, abs=1e-6)


def test_a_transmitter_whose_current_falls_with_the_pressure():
    falling = schema.CurrentCalibration(at_4_ma=25e6, at_20_ma=0.0)
    sensor = fit(changed(HYDRAULIC, "head_pressure_1", calibration=falling)).sensors[0]
    assert sensor.gain * 0.008 + sensor.offset == pytest.approx(18.75e6)


def test_a_sensor_in_its_own_unit_needs_no_calibration():
    for sensor in fit(load_site(SITES / "simulation-lines.toml")).sensors:
        assert (sensor.gain, sensor.offset, sensor.plausible) == (1.0, 0.0, (-math.inf, math.inf))


def test_two_instruments_may_share_a_profile_and_a_gateway():
    site = load_site(SITES / "simulation-lines.toml").site
    assert address(site.devices["gateway_1"].line) == address(site.devices["gateway_3"].line) == "127.0.0.1:5020"
    assert address(schema.PlcLine()) == ""


def test_an_input_beyond_the_exchange_is_refused():
    fit(changed(SIMULATION, "cell_1", channel="16"))
    for channel in ("0", "17", "01", " 1", "one", ""):
        with pytest.raises(ConfigurationError, match="has no channel"):
            fit(changed(SIMULATION, "cell_1", channel=channel))
