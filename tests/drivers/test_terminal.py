"""Analogue terminals: currents, bridge voltages and status bits against numbers worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.records import Quality
from drivers.exchange import InputStatus
from drivers.profile import load
from drivers.reading import Reading
from drivers.terminal import decode, encode
from tests.drivers.lines import DEVICES

LEGACY = load(DEVICES / "el3xxx-legacy.toml")
EXTENDED = load(DEVICES / "el3xxx-extended.toml")
BRIDGE = load(DEVICES / "el3356.toml")
NONE = Reading()


@pytest.mark.parametrize(
    ("profile", "raw", "current_ma"),
    [
        (LEGACY, 0, 4.0),
        (LEGACY, 32767, 20.0),
        (LEGACY, 16384, 12.00024),  # 4 + 16 * 16384 / 32767
        (LEGACY, -409, 3.80029),
        (EXTENDED, 0, 4.0),
        (EXTENDED, 30518, 20.0),
        (EXTENDED, 15259, 12.0),
        (EXTENDED, 32425, 20.99980),  # 4 + 16 * 32425 / 30518
        # the wrong presentation: 20 mA of an extended terminal taken for legacy, and the other way round
        (LEGACY, 30518, 18.90182),
    ],
)
def test_counts_become_currents(profile, raw, current_ma):
    reading = decode(profile, raw, 0, 3.0, NONE)
    assert reading.value == pytest.approx(1e-3 * current_ma, abs=1e-8)
    assert (reading.unit, reading.stamp_s, reading.quality, reading.message) == ("A", 3.0, Quality.GOOD, "")


@pytest.mark.parametrize("current_ma", [6.0, 12.0, 20.0])
def test_the_two_presentations_mixed_up_are_seven_per_cent_of_the_span(current_ma):
    raw, _ = encode(EXTENDED, 1e-3 * current_ma)
    as_legacy = 1e3 * decode(LEGACY, raw, 0, 0.0, NONE).value
    assert (as_legacy - 4.0) / (current_ma - 4.0) == pytest.approx(0.9314, abs=1e-4)  # 30518 / 32767
    raw, _ = encode(LEGACY, 1e-3 * min(current_ma, 19.0))
    as_extended = 1e3 * decode(EXTENDED, raw, 0, 0.0, NONE).value
    assert (as_extended - 4.0) / (min(current_ma, 19.0) - 4.0) == pytest.approx(1.0737, abs=1e-4)


@pytest.mark.parametrize(
    ("profile", "raw", "quality", "sentence"),
    [
        (LEGACY, -819, Quality.GOOD, ""),  # 3.60008 mA
        (LEGACY, -820, Quality.BAD, "3.6 mA: wire break"),  # 3.59960 mA
        (LEGACY, -8192, Quality.BAD, "-0.0 mA: wire break"),
        (LEGACY, 34814, Quality.GOOD, ""),  # 20.99951 mA
        (LEGACY, 34816, Quality.BAD, "21.0 mA: short circuit"),  # 21.00049 mA
        (EXTENDED, -762, Quality.GOOD, ""),  # 3.60049 mA
        (EXTENDED, -764, Quality.BAD, "3.6 mA: wire break"),  # 3.59944 mA
        (EXTENDED, 32767, Quality.BAD, "21.2 mA: short circuit"),
        (BRIDGE, 1_500_000, Quality.GOOD, ""),
        (BRIDGE, 1_500_001, Quality.BAD, "is outside the plausible -0.003 to 0.003 V/V"),
        (BRIDGE, -1_500_001, Quality.BAD, "is outside the plausible"),
    ],
)
def test_what_no_sensor_sends_is_refused_with_the_reason(profile, raw, quality, sentence):
    before = decode(profile, 1000, 0, 1.0, NONE)
    reading = decode(profile, raw, 0, 2.0, before)
    assert reading.quality is quality and sentence in reading.message
    if quality is Quality.BAD:  # the last valid value stays, with its age
        assert (reading.value, reading.stamp_s) == (before.value, 1.0)


WORDS = {
    InputStatus.UNDERRANGE: "below",
    InputStatus.OVERRANGE: "above",
    InputStatus.ERROR: "wire break, short circuit or supply",
    InputStatus.INVALID: "invalid",
    InputStatus.NO_DATA: "no new data",
}


@pytest.mark.parametrize("profile", [LEGACY, BRIDGE], ids=["current", "bridge"])
@pytest.mark.parametrize("bit", InputStatus)
def test_every_status_bit_makes_the_value_worthless(profile, bit):
    before = decode(profile, 1000, 0, 1.0, NONE)
    reading = decode(profile, 2000, int(bit), 2.0, before)
    assert (reading.value, reading.stamp_s) == (before.value, 1.0)
    if bit is InputStatus.CALIBRATING:
        assert reading.quality is Quality.HELD and "calibrates itself" in reading.message
    else:
        assert reading.quality is Quality.BAD and WORDS[bit] in reading.message
        both = decode(profile, 2000, int(bit | InputStatus.CALIBRATING), 2.0, before)
        assert both.quality is Quality.BAD  # what is wrong goes before what is only late
    assert decode(profile, 2000, 0, 3.0, reading).quality is Quality.GOOD


def test_a_terminal_that_calibrates_itself_from_the_start_has_no_value():
    reading = decode(BRIDGE, 0, int(InputStatus.CALIBRATING), 1.0, NONE)
    assert reading.quality is Quality.NONE and math.isnan(reading.value) and reading.age_s(5.0) == math.inf


def test_the_age_of_a_value_counts_from_before_the_self_calibration():
    reading = decode(BRIDGE, 500_000, 0, 10.0, NONE)
    for now_s in (10.01, 10.02, 10.35):
        reading = decode(BRIDGE, 500_000, int(InputStatus.CALIBRATING), now_s, reading)
        assert reading.age_s(now_s) == pytest.approx(now_s - 10.0)
        assert reading.value == pytest.approx(1e-3)
    assert decode(BRIDGE, 600_000, 0, 10.4, reading).age_s(10.4) == 0.0


@given(st.floats(0.0036, 0.021))
def test_currents_come_back_within_half_a_count(current_a):
    for profile, counts in ((LEGACY, 32767), (EXTENDED, 30518)):
        raw, status = encode(profile, current_a)
        reading = decode(profile, raw, status, 0.0, NONE)
        assert status == 0
        # at the ends rounding may lead just beyond what a terminal takes for a sensor
        if reading.quality is Quality.GOOD:
            assert abs(reading.value - current_a) <= 0.5 * 0.016 / counts + 1e-12
        else:
            assert min(abs(current_a - 0.0036), abs(current_a - 0.021)) <= 0.5 * 0.016 / counts + 1e-12


@given(st.floats(-0.003, 0.003))
def test_bridge_voltages_come_back_within_half_a_count(ratio):
    raw, status = encode(BRIDGE, ratio)
    reading = decode(BRIDGE, raw, status, 0.0, NONE)
    assert status == 0 and abs(reading.value - ratio) <= 1e-9 + 1e-15  # a count is 2 nV/V


@pytest.mark.parametrize(
    ("profile", "value", "raw", "status"),
    [
        (LEGACY, 0.0, -8192, InputStatus.ERROR),  # 4 mA below live zero: -4/16 * 32767
        (LEGACY, -0.001, -8192, InputStatus.UNDERRANGE | InputStatus.ERROR),
        (LEGACY, 0.025, 36863, InputStatus.OVERRANGE | InputStatus.ERROR),  # clamped at 22 mA
        (EXTENDED, 0.003, -1907, InputStatus.ERROR),
        (BRIDGE, 0.01, 1_500_000, InputStatus.OVERRANGE),
        (BRIDGE, -0.01, -1_500_000, InputStatus.UNDERRANGE),
    ],
)
def test_beyond_its_range_a_terminal_clamps_and_says_so(profile, value, raw, status):
    assert encode(profile, value) == (raw, int(status))
    assert decode(profile, raw, int(status), 0.0, NONE).quality is Quality.BAD
