"""Serial instruments: the parsers with whatever bytes may come, the threads against virtual devices on ptys."""

import itertools
import math
import os
import re
import time

import msgspec
import pytest
import serial
from hypothesis import given
from hypothesis import strategies as st

from controller.errors import ConfigurationError
from controller.records import Quality
from drivers import serial_line
from drivers.profile import load
from drivers.reading import Reading
from drivers.serial_line import ConditionerParser, InclinometerParser, SerialSensor, judged_status, tilt
from drivers.virtual.instruments import Conditioner, Inclinometer, PtyLine
from tests.drivers.lines import DEVICES, instrument, until

CELL = load(DEVICES / "dscusb.toml")
TILT = load(DEVICES / "ags-inclinometer.toml")
DEGREE = math.pi / 180.0


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    monkeypatch.setattr(serial_line, "PAUSE_S", 0.05)
    monkeypatch.setattr(serial_line, "DRAIN_S", 0.05)


def quality(driver, expected, channel="value"):
    until(lambda: driver.read(channel).quality is expected, f"{expected.name} of {channel}")
    return driver.read(channel)


# ---------------------------------------------------------------- profiles


KINDS = {
    "dscusb": "conditioner",
    "ags-inclinometer": "inclinometer",
    "laumas-tlb4": "modbus",
    "interface-inf4": "modbus",
    "el3356": "bridge-terminal",
    "el3xxx-legacy": "current-terminal",
    "el3xxx-extended": "current-terminal",
}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_shipped_profiles_claim_nothing_untried(name, kind):
    profile = load(DEVICES / f"{name}.toml")
    assert profile.name == name and not profile.verified and profile.source
    assert profile.__struct_config__.tag == kind


def test_every_profile_is_tested():
    assert {path.stem for path in DEVICES.glob("*.toml")} == set(KINDS)


def test_range_of_a_serial_profile_is_checked(tmp_path):
    path = tmp_path / "cell.toml"
    path.write_text((DEVICES / "dscusb.toml").read_text().replace("[-20000.0, 20000.0]", "[1.0, 1.0]"))
    with pytest.raises(ConfigurationError, match="range: found"):
        load(path)


# ---------------------------------------------------------------- parsers, without a line


def test_conditioner_answers():
    parser = ConditionerParser()
    assert parser.receive(b"+123.4") == []
    assert parser.receive(b"56\r-0.001\r?\r") == [123.456, -0.001, None]


@pytest.mark.parametrize(
    "line", [b"", b"123.456", b"+123", b"+1+123.456", b"+12 3.4", b"+nan", b"+1e5", b"+1.0\n", b"+1_0.0", b"\xff+1.0"]
)
def test_what_is_no_number_is_refused(line):
    assert ConditionerParser().receive(line + b"\r") == [None]


@given(st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([b"+123.456\r", b"?\r", b"+1", b"\r"])), max_size=20))
def test_conditioner_survives_all_bytes(chunks):
    parser = ConditionerParser()
    numbers = [number for chunk in chunks for number in parser.receive(chunk)]
    sent = re.split(rb"\r", b"".join(chunks))[:-1]
    assert len(numbers) == len(sent)
    for number, line in zip(numbers, sent, strict=True):
        if number is not None:
            assert math.isfinite(number) and line[-20:].decode().lstrip("+-").replace(".", "").isdigit()


def test_split_in_any_way_the_conditioner_says_the_same():
    whole = b"+123.456\r?\r-000.500\r"
    for cut in range(len(whole) + 1):
        parser = ConditionerParser()
        assert parser.receive(whole[:cut]) + parser.receive(whole[cut:]) == [123.456, None, -0.5]


@pytest.mark.parametrize(
    ("status", "sentence", "expected"),
    [
        (0.0, "", Quality.GOOD),
        (1.0 + 2.0 + 1024.0, "", Quality.GOOD),
        (256.0, "under range", Quality.BAD),
        (768.0, "under range; over range", Quality.BAD),
        (2048.0, "load cell integrity: cable or cell broken", Quality.BAD),
        (8192.0, "the conditioner repeats an old value", Quality.HELD),
        (0.5, "status 0.5 is no bit pattern", Quality.HELD),
        (-1.0, "status -1 is no bit pattern", Quality.HELD),
        (1e6, "status 1e+06 is no bit pattern", Quality.HELD),
    ],
)
def test_status_of_the_conditioner(status, sentence, expected):
    assert judged_status(CELL, status) == (sentence, expected)


def test_only_complete_pairs_count():
    parser = InclinometerParser(0.03)
    assert parser.receive(b"1.234\r\nY=-02.000\r\n", 1.0) == []  # the first half is lost
    assert parser.receive(b"X=+01.000\r\nY=-02.000\r\n", 1.1) == [(1.0, -2.0, 1.1)]
    assert parser.receive(b"X=+01.500\r\n", 1.2) == []
    assert parser.receive(b"Y=-02.500\r\n", 1.22) == [(1.5, -2.5, 1.2)]
    assert parser.receive(b"Y=-02.500\r\n", 1.23) == []  # one X is good for one Y


def test_x_and_y_of_different_frames_are_no_pair():
    parser = InclinometerParser(0.03)
    assert parser.receive(b"X=+01.000\r\n", 1.0) == []
    assert parser.receive(b"Y=-02.000\r\n", 1.05) == []  # too late: its X was lost
    assert parser.receive(b"X=+01.000\r\nX=+03.000\r\nY=+04.000\r\n", 1.1) == [(3.0, 4.0, 1.1)]
    assert parser.receive(b"X=+01.000\r\n\xff\r\nY=+04.000\r\n", 1.2) == []


@pytest.mark.parametrize(
    "line",
    [b"X=+1.000", b"X=+001.000", b"X= 01.000", b"X=+01.00", b"X=+01.0000", b"x=+01.000", b"X=+01,000", b"XX=+01.000"],
)
def test_lines_of_another_length_or_form_are_refused(line):
    assert InclinometerParser(0.03).receive(line + b"\r\nY=+04.000\r\n", 1.0) == []


PIECES = [b"X=+01.000\r\n", b"Y=-02.000\r\n", b"X=+01.", b"000\r\n", b"\r\n", b"Y="]


@given(
    st.lists(st.tuples(st.one_of(st.binary(max_size=20), st.sampled_from(PIECES)), st.floats(0.0, 0.05)), max_size=30)
)
def test_inclinometer_survives_all_bytes(chunks):
    parser, now_s, heard = InclinometerParser(0.03), 0.0, b""
    for chunk, pause_s in chunks:
        now_s += pause_s
        heard += chunk
        for x, y, stamp_s in parser.receive(chunk, now_s):
            assert abs(x) < 100.0 and abs(y) < 100.0 and 0.0 <= now_s - stamp_s <= 0.03
            assert b"X=%+07.3f\r\nY=%+07.3f\r\n" % (x, y) in heard.replace(b"-00.000", b"+00.000")


def test_a_jump_is_refused_and_a_true_step_believed_later():
    none = {"x": Reading(unit="rad"), "y": Reading(unit="rad")}
    before = tilt(TILT, (1.0, 2.0, 10.0), none)
    assert [before[name].value for name in "xy"] == pytest.approx([DEGREE, 2.0 * DEGREE])
    jumped = tilt(TILT, (1.0, 42.0, 10.05), before)
    assert {jumped[name].quality for name in "xy"} == {Quality.BAD}
    assert jumped["x"].value == before["x"].value and jumped["x"].stamp_s == 10.0
    assert "y jumped from" in jumped["x"].message
    believed = tilt(TILT, (1.0, 42.0, 10.5), jumped)
    assert believed["y"].quality is Quality.GOOD and believed["y"].value == pytest.approx(42.0 * DEGREE)


@given(*[st.floats(-99.999, 99.999)] * 4, st.floats(0.0, 10.0))
def test_good_tilts_are_plausible(x0, y0, x1, y1, pause_s):
    none = {"x": Reading(unit="rad"), "y": Reading(unit="rad")}
    before = tilt(TILT, (x0, y0, 1.0), none)
    after = tilt(TILT, (x1, y1, 1.0 + pause_s), before)
    if after["x"].quality is Quality.GOOD:
        for name in "xy":
            assert TILT.range[0] <= after[name].value <= TILT.range[1]
            if before[name].quality is Quality.GOOD:
                change = abs(after[name].value - before[name].value)
                assert change <= TILT.step + TILT.fastest_per_s * (after[name].stamp_s - before[name].stamp_s)
    else:
        assert after["y"].quality is Quality.BAD


# ---------------------------------------------------------------- conditioner on a line


def test_a_force_and_its_age(tmp_path):
    device = Conditioner(value=123.456)
    with instrument(tmp_path, device, CELL) as (driver, _):
        good = quality(driver, Quality.GOOD)
        assert (good.value, good.unit, good.message) == (123.456, "N", "")
        device.value = -50.0
        until(lambda: driver.read("value").value == -50.0)
    assert driver.read("value").quality is Quality.HELD and driver.read("value").message == "closed"


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [("silent", "no answer to"), ("refuses", "refusal"), ("halves", "no number"), ("noise", "no number")],
)
def test_a_conditioner_that_does_not_answer_keeps_its_value(tmp_path, fault, sentence):
    device = Conditioner(value=10.0)
    with instrument(tmp_path, device, CELL) as (driver, _):
        quality(driver, Quality.GOOD)
        setattr(device, fault, True)
        held = quality(driver, Quality.HELD)
        assert held.value == 10.0 and sentence in held.message
        device.value = 20.0
        time.sleep(0.3)
        assert driver.read("value").value == 10.0
        setattr(device, fault, False)
        assert quality(driver, Quality.GOOD).value == 20.0


@pytest.mark.parametrize(
    ("status", "expected"), [(1 << 8, Quality.BAD), (1 << 11, Quality.BAD), (1 << 13, Quality.HELD)]
)
def test_status_stops_belief_until_it_is_clear(tmp_path, status, expected):
    device = Conditioner(value=10.0)
    with instrument(tmp_path, device, CELL) as (driver, _):
        quality(driver, Quality.GOOD)
        device.status = status
        quality(driver, expected)
        device.value = 20.0
        time.sleep(0.1)
        assert driver.read("value").value == 10.0
        device.status = 0
        assert quality(driver, Quality.GOOD).value == 20.0


def test_a_force_out_of_range_is_bad(tmp_path):
    device = Conditioner(value=10.0)
    profile = msgspec.structs.replace(CELL, range=(-100.0, 100.0))
    with instrument(tmp_path, device, profile) as (driver, _):
        quality(driver, Quality.GOOD)
        device.value = 101.0
        bad = quality(driver, Quality.BAD)
        assert bad.value == 10.0 and "outside the plausible" in bad.message


def test_unplugged_and_plugged_again(tmp_path):
    device = Conditioner(value=10.0)
    with instrument(tmp_path, device, CELL) as (driver, line):
        quality(driver, Quality.GOOD)
        before = line.path.readlink()
        line.plugged = False
        held = quality(driver, Quality.HELD)
        assert held.value == 10.0 and str(line.path) in held.message
        until(lambda: "cannot be opened" in driver.read("value").message)
        keepers = [os.openpty()]
        while os.ttyname(keepers[-1][1]) != str(before) and len(keepers) < 50:  # until the old name is taken
            keepers.append(os.openpty())
        line.plugged = True
        quality(driver, Quality.GOOD)
        assert line.path.readlink() != before
        for end in itertools.chain(*keepers):
            os.close(end)


def test_a_line_in_use_is_named(tmp_path):
    line = PtyLine(tmp_path / "usb-instrument", Conditioner())
    line.open()
    other = serial.Serial(str(line.path), exclusive=True)
    driver = SerialSensor(str(line.path), CELL)
    driver.open()
    until(lambda: "in use by another program" in driver.read("value").message)
    other.close()
    quality(driver, Quality.GOOD)
    driver.close()
    line.close()


def test_nothing_there_and_close_of_what_was_never_opened(tmp_path):
    driver = SerialSensor(str(tmp_path / "none"), CELL)
    driver.close()
    driver = SerialSensor(str(tmp_path / "none"), CELL)
    driver.open()
    until(lambda: "cannot be opened" in driver.read("value").message)
    assert driver.read("value").quality is Quality.NONE
    driver.close()
    with pytest.raises(KeyError):
        driver.read("x")


# ---------------------------------------------------------------- inclinometer on a line


def test_both_angles(tmp_path):
    device = Inclinometer(1.5, -2.25)
    with instrument(tmp_path, device, TILT) as (driver, _):
        x = quality(driver, Quality.GOOD, "x")
        y = driver.read("y")
        assert (x.value, y.value) == pytest.approx((1.5 * DEGREE, -2.25 * DEGREE))
        assert x.unit == "rad" and x.stamp_s == y.stamp_s


@pytest.mark.parametrize(
    "fault",
    [{"silent": True}, {"without_y": True}, {"halves": True}, {"noise": True}, {"gap_s": 0.1, "period_s": 0.3}],
)
def test_an_inclinometer_without_pairs_keeps_its_angles(tmp_path, fault):
    device = Inclinometer(1.5, -2.25)
    with instrument(tmp_path, device, TILT) as (driver, _):
        quality(driver, Quality.GOOD, "x")
        usual = {name: getattr(device, name) for name in fault}
        for name, value in fault.items():
            setattr(device, name, value)
        held = quality(driver, Quality.HELD, "x")
        assert held.value == pytest.approx(1.5 * DEGREE) and "no complete pair" in held.message
        device.x_deg = 1.6
        time.sleep(0.2)
        assert driver.read("x").value == pytest.approx(1.5 * DEGREE)
        for name, value in usual.items():
            setattr(device, name, value)
        assert quality(driver, Quality.GOOD, "x").value == pytest.approx(1.6 * DEGREE)


def test_two_seconds_of_noise(tmp_path):
    device = Inclinometer(1.5, -2.25)
    with instrument(tmp_path, device, TILT) as (driver, _):
        quality(driver, Quality.GOOD, "x")
        device.noise = True
        seen = set()
        end_s = time.monotonic() + 2.0
        until(lambda: seen.add((driver.read("x").value, driver.read("y").value)) or time.monotonic() > end_s)
        assert len(seen) == 1 and driver.read("x").quality is Quality.HELD
        device.noise = False
        quality(driver, Quality.GOOD, "x")
