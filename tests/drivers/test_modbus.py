"""Modbus lines against the project's own slaves, which can be silent, late and wrong."""

import math
import struct
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.errors import ConfigurationError
from controller.records import Quality
from controller.schema import RtuLine, TcpLine
from drivers import modbus
from drivers.modbus import ModbusLine, Unit
from drivers.profile import Expected, Register, StatusBit, StatusWord, block, load
from drivers.reading import Reading
from drivers.registers import decode, encode
from drivers.virtual.instruments import Behaviour, PtyLine, Slave, TcpServer
from tests.drivers.lines import DEVICES, ENDS_S, holding, rtu, tcp, transmitter, unit, until

PATIENCE_S = modbus.FIRST_PAUSE_S


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    monkeypatch.setattr(modbus, "FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr(modbus, "LONGEST_PAUSE_S", 0.1)
    monkeypatch.setattr(modbus, "REFUSED_PAUSE_S", 0.3)


def quality(line, expected, device="a"):
    until(lambda: line.read(device, "force").quality is expected, f"{expected.name} of {device}")
    return line.read(device, "force")


# ---------------------------------------------------------------- decoding, without a line


@pytest.mark.parametrize("order", ["ABCD", "CDAB", "BADC", "DCBA"])
@pytest.mark.parametrize(("kind", "code", "value"), [("int32", "i", -305419896), ("float32", "f", -1234.5)])
def test_four_byte_orders(order, kind, code, value):
    a, b, c, d = struct.pack(f">{code}", value)
    letters = {"A": a, "B": b, "C": c, "D": d}
    wire = bytes(letters[letter] for letter in order)
    register = Register(address=0, type=kind, order=order, scale=1.0, unit="N", range=(-1e9, 1e9))
    reading = decode(transmitter(channels={"x": register}), struct.unpack(">HH", wire), 3.0)["x"]
    assert reading == Reading(value, "N", 3.0, Quality.GOOD, "")


@pytest.mark.parametrize(("order", "words"), [("ABCD", [0xFFFE]), ("CDAB", [0xFFFE]), ("BADC", [0xFEFF])])
def test_sixteen_bits(order, words):
    register = Register(address=0, type="int16", order=order, scale=0.1, offset=1.0, unit="N", range=(-1.0, 1.0))
    assert decode(transmitter(channels={"x": register}), words, 0.0)["x"].value == pytest.approx(0.8)


def with_status():
    net = Register(address=9, type="uint32", scale=2.0, unit="N", range=(-1e6, 1e6), sign_bit=8)
    gross = Register(address=7, type="uint32", scale=2.0, unit="N", range=(-1e6, 1e6), sign_bit=7)
    status = StatusWord(6, [StatusBit(0, "cell broken"), StatusBit(3, "over 110 %")])
    return transmitter(channels={"gross": gross, "net": net}, status=status)


@pytest.mark.parametrize(("status", "signs"), [(0, (1, 1)), (1 << 7, (-1, 1)), (1 << 8, (1, -1)), (3 << 7, (-1, -1))])
def test_sign_in_the_status(status, signs):
    readings = decode(with_status(), [status, 0, 100, 0, 30], 0.0)
    assert block(with_status()) == (6, 5)
    assert (readings["gross"].value, readings["net"].value) == (200 * signs[0], 60 * signs[1])


def test_shipped_transmitter_over_rtu(tmp_path):
    shipped = load(DEVICES / "laumas-tlb4.toml")
    slave = Slave(1, {6: 1 << 8, 7: 0, 8: 0, 9: 1, 10: 0, 11: 0, 12: 0, 13: 9})  # 65536 divisions, sign of the net
    with rtu(tmp_path, [slave], {"a": Unit(1, shipped)}, baudrate=38400) as (line, _):
        bad = quality(line, Quality.BAD)
        assert "-64268.9 N is outside the plausible -20000 to 20000 N" in bad.message
        slave.registers |= {9: 0, 10: 1000}
        assert quality(line, Quality.GOOD).value == pytest.approx(-980.665)
        slave.registers[6] = 1
        assert "load cell error" in quality(line, Quality.BAD).message


def test_status_makes_values_bad():
    reading = decode(with_status(), [0b1001, 0, 100, 0, 30], 0.0)["net"]
    assert reading.quality is Quality.BAD and math.isnan(reading.value)
    assert reading.message == "cell broken; over 110 %"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, 6000.0])
def test_implausible_values_are_bad(value):
    register = Register(address=0, type="float32", scale=1.0, unit="N", range=(-5000.0, 5000.0))
    words = struct.unpack(">HH", struct.pack(">f", value))
    reading = decode(transmitter(channels={"x": register}), words, 0.0)["x"]
    assert reading.quality is Quality.BAD and "outside the plausible" in reading.message


@given(
    st.lists(st.integers(0, 0xFFFF), min_size=5, max_size=5),
    st.sampled_from(["int32", "uint32", "float32"]),
    st.sampled_from(["ABCD", "CDAB", "BADC", "DCBA"]),
    st.floats(-1e12, 1e12).filter(bool),
)
def test_whatever_comes_only_plausible_values_are_good(words, kind, order, scale):
    register = Register(address=9, type=kind, order=order, scale=scale, unit="N", range=(-100.0, 100.0))
    readings = decode(msgspec.structs.replace(with_status(), channels={"x": register}), words, 1.0)
    reading = readings["x"]
    if reading.quality is Quality.GOOD:
        assert -100.0 <= reading.value <= 100.0 and not words[0] & 0b1001
    else:
        assert reading.quality is Quality.BAD and math.isnan(reading.value) and reading.message


RAW = {
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "float32": (-1e9, 1e9),
}


@pytest.mark.parametrize("order", ["ABCD", "CDAB", "BADC", "DCBA"])
@pytest.mark.parametrize("kind", RAW)
@settings(max_examples=30)
@given(share=st.floats(0.0, 1.0), scale=st.sampled_from([1.0, -0.5, 1e-3, 980.665]), offset=st.floats(-1e3, 1e3))
def test_what_is_encoded_is_decoded_within_half_a_count(kind, order, share, scale, offset):
    low, high = RAW[kind]
    raw = low + share * (high - low)
    register = Register(address=4, type=kind, order=order, scale=scale, offset=offset, unit="N", range=(-1e15, 1e15))
    device = transmitter(channels={"x": register}, expect=(Expected(2, 7, "set"),))
    registers = encode(device, {"x": raw * scale + offset})
    assert registers[2] == 7 and all(0 <= word <= 0xFFFF for word in registers.values())
    first, count = block(device)
    reading = decode(device, [registers[address] for address in range(first, first + count)], 1.0)["x"]
    step = abs(raw) * 2.0**-23 if kind == "float32" else 1.0  # float32: half a unit of its 24 bit mantissa
    rounding = 1e-12 * (abs(raw * scale) + abs(offset))
    assert abs(reading.value - (raw * scale + offset)) <= 0.5 * step * abs(scale) + rounding


@given(st.floats(-2e9, 2e9), st.floats(-2e9, 2e9))
def test_a_magnitude_and_its_sign_make_the_same_round_trip(gross, net):
    device = with_status()
    wide = {name: msgspec.structs.replace(r, range=(-1e12, 1e12)) for name, r in device.channels.items()}
    device = msgspec.structs.replace(device, channels=wide)
    registers = encode(device, {"gross": gross, "net": net})
    readings = decode(device, [registers[address] for address in range(6, 11)], 1.0)
    assert readings["gross"].value == pytest.approx(gross, abs=1.0)  # half a count of 2 N
    assert readings["net"].value == pytest.approx(net, abs=1.0)


@pytest.mark.parametrize(("value", "raw"), [(1e9, 2**15 - 1), (-1e9, -(2**15)), (3.2, 3), (-3.2, -3)])
def test_a_value_that_does_not_fit_becomes_the_nearest_that_does(value, raw):
    register = Register(address=0, type="int16", scale=1.0, unit="N", range=(-1e6, 1e6))
    assert encode(transmitter(channels={"x": register}), {"x": value}) == {0: raw & 0xFFFF}


# ---------------------------------------------------------------- profiles


GOOD_PROFILE = """
kind = "modbus"
name = "cell"
source = "test"
verified = false
slowest_answer_s = 0.1
[channels.force]
address = 7
type = "int32"
scale = 1.0
unit = "N"
range = [-1.0, 1.0]
"""


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("scale = 1.0", "scale = 0.0", "channels.force.scale: found 0"),
        ("[-1.0, 1.0]", "[1.0, -1.0]", "channels.force.range: found [1.0, -1.0]"),
        ('"int32"', '"int31"', "type: found"),
        ("scale = 1.0", "scale = 1.0\nsign_bit = 8", "channels.force.sign_bit: found 8, expected an unsigned type"),
        ("scale = 1.0", "scale = 1.0\nsize = 8", "size: unknown key"),
        ("address = 7", "address = 65535", "found registers 65535 to 65536"),
        ('source = "test"', "", "source: this key is missing"),
    ],
)
def test_profiles_are_checked(tmp_path, old, new, sentence):
    path = tmp_path / "cell.toml"
    path.write_text(GOOD_PROFILE)
    assert load(path).channels["force"].type == "int32"
    path.write_text(GOOD_PROFILE.replace(old, new))
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert sentence in str(caught.value)


def test_no_profile(tmp_path):
    with pytest.raises(ConfigurationError, match="no such file"):
        load(tmp_path / "none.toml")


# ---------------------------------------------------------------- lines


def test_a_value_and_its_age():
    with tcp([holding(-2468)], {"a": unit()}) as (line, _):
        reading = quality(line, Quality.GOOD)
        assert (reading.value, reading.unit, reading.message, line.message) == (-1234.0, "N", "", "")
        assert 0.0 <= reading.age_s(time.monotonic()) < ENDS_S
        until(lambda: line.read("a", "force").stamp_s > reading.stamp_s, "a newer value")
    assert line.read("a", "force").quality is Quality.HELD
    assert line.message == "closed"


def test_input_registers_over_rtu(tmp_path):
    with rtu(tmp_path, [holding(2468, 5)], {"a": unit(5, function=4)}, baudrate=115200) as (line, _):
        assert quality(line, Quality.GOOD).value == 1234.0


WRONG = [
    (Behaviour.SILENT, "no answer within"),
    (Behaviour.SHORT, "answered with 1 registers instead of 2"),
    (Behaviour.LONG, "answered with 3 registers instead of 2"),
    (Behaviour.WRONG_FUNCTION, "answered function 4 instead of 3"),
    (Behaviour.WRONG_UNIT, "are no answer"),
    (Behaviour.ECHO, "sends back what is sent to it"),
    (Behaviour.NOISE, "are no answer"),
]


def refuses(line, slave, behaviour, sentence):
    """What is no answer leaves the value as it was, with an age that grows, until the slave is honest again."""
    quality(line, Quality.GOOD)
    slave.behaviour = behaviour
    held = quality(line, Quality.HELD)
    assert held.value == 50.0
    until(lambda: sentence in line.read("a", "force").message, sentence)  # a busy computer is late, too
    slave.registers[8] = 200
    until(lambda: line.counters("a").failed > 2)
    assert line.read("a", "force").value == 50.0
    assert line.read("a", "force").stamp_s == held.stamp_s
    slave.behaviour = Behaviour.HONEST
    assert quality(line, Quality.GOOD).value == 100.0


@pytest.mark.parametrize(("behaviour", "sentence"), [*WRONG, (Behaviour.WRONG_TRANSACTION, "answered transaction 0")])
def test_what_is_no_answer_is_refused_on_tcp(behaviour, sentence):
    slave = holding(100)
    with tcp([slave], {"a": unit()}, timeout_s=0.03) as (line, _):
        refuses(line, slave, behaviour, sentence)


@pytest.mark.parametrize(("behaviour", "sentence"), WRONG)
def test_what_is_no_answer_is_refused_on_rtu(tmp_path, behaviour, sentence):
    slave = holding(100)
    with rtu(tmp_path, [slave], {"a": unit(slowest_answer_s=0.05)}, timeout_s=0.03) as (line, _):
        refuses(line, slave, behaviour, sentence)


def test_a_late_answer_is_never_taken_for_the_next(tmp_path):
    """Two units on one line; the answers of the first come after its time-out, while the second is asked."""
    slow, quick = holding(100, 1), holding(-3000, 2)
    devices = {"a": unit(1, slowest_answer_s=0.1), "b": unit(2)}
    with rtu(tmp_path, [slow, quick], devices, timeout_s=0.03) as (line, _):
        quality(line, Quality.GOOD, "a")
        quality(line, Quality.GOOD, "b")
        slow.behaviour, slow.delay_s = Behaviour.LATE, 0.06
        seen = set()
        until(lambda: seen.add(line.read("b", "force").value) or line.counters("a").failed > 2)
        assert seen == {-1500.0}
        assert line.read("a", "force").value == 50.0
        quality(line, Quality.GOOD, "b")


def test_a_late_answer_is_not_the_newer_value_of_the_same_device(tmp_path):
    slave = holding(100)
    with rtu(tmp_path, [slave], {"a": unit(slowest_answer_s=0.1)}, timeout_s=0.03) as (line, _):
        quality(line, Quality.GOOD)
        slave.behaviour, slave.delay_s = Behaviour.LATE, 0.06
        until(lambda: line.counters("a").failed > 0)  # its answer is under way, with the old value
        slave.behaviour = Behaviour.HONEST
        slave.registers[8] = 300
        assert quality(line, Quality.GOOD).value == 150.0


@pytest.mark.parametrize(
    ("code", "sentence"),
    [(1, "does not know function 3"), (2, "has no registers 7 to 8"), (3, "refuses 2 registers in one request")],
)
def test_exceptions_of_a_wrong_configuration(code, sentence):
    slave = holding(100)
    with tcp([slave], {"a": unit()}) as (line, _):
        quality(line, Quality.GOOD)
        slave.exception, slave.behaviour = code, Behaviour.EXCEPTION
        bad = quality(line, Quality.BAD)
        assert sentence in bad.message and bad.value == 50.0
        asked = slave.requests
        until(lambda: slave.requests > asked + 1)
        assert line.counters("a").refused <= slave.requests  # and not 200 a second
        slave.behaviour = Behaviour.HONEST
        quality(line, Quality.GOOD)


@pytest.mark.parametrize("code", [4, 5, 6, 11, 99])
def test_exceptions_that_pass_are_retried(code):
    slave = holding(100)
    with tcp([slave], {"a": unit()}) as (line, _):
        quality(line, Quality.GOOD)
        slave.exception, slave.behaviour = code, Behaviour.EXCEPTION
        held = quality(line, Quality.HELD)
        assert f"(exception {code})" in held.message and held.value == 50.0
        until(lambda: line.counters("a").refused > 5)
        slave.behaviour = Behaviour.HONEST
        quality(line, Quality.GOOD)


def test_a_device_set_to_something_else_is_refused():
    slave = holding(100)
    rule = Expected(9, 3, "the resolution set in the device is another one")
    with tcp([slave], {"a": unit(expect=(rule,))}) as (line, _):
        bad = quality(line, Quality.BAD)
        assert "register 9 holds 30583, expected 3: the resolution" in bad.message and math.isnan(bad.value)
        slave.registers[9] = 3
        assert quality(line, Quality.GOOD).value == 50.0


@pytest.mark.parametrize("kind", ["tcp", "rtu"])
def test_one_of_three_silent_leaves_the_others_their_rate(tmp_path, monkeypatch, kind):
    """Counted in requests, not in seconds: while the silent one costs a time, the others cannot be asked."""
    slaves = [holding(100 * n, n) for n in (1, 2, 3)]
    devices = {name: unit(n, slowest_answer_s=0.02) for n, name in enumerate("abc", 1)}
    lines = {"tcp": lambda: tcp(slaves, devices, 0.02), "rtu": lambda: rtu(tmp_path, slaves, devices, 0.02, 0.005)}
    costs = []
    real = modbus.ModbusLine._poll

    async def timed(self, client, device):
        begin_s = time.monotonic()
        await real(self, client, device)
        if device.name == "b":
            costs.append((begin_s, time.monotonic()))

    monkeypatch.setattr(modbus.ModbusLine, "_poll", timed)
    with lines[kind]() as (line, _):
        for name in "abc":
            quality(line, Quality.GOOD, name)
        slaves[1].behaviour = Behaviour.SILENT
        quality(line, Quality.HELD, "b")
        until(lambda: line.counters("b").failed >= 2)
        costs.clear()
        before = line.counters("a").valid
        until(lambda: len(costs) >= 3)
        spent_s = sum(end - begin for begin, end in costs[:-1])
        assert spent_s < 0.1 * (costs[-1][0] - costs[0][0])
        assert line.counters("a").valid > before + 50
        quality(line, Quality.GOOD, "a")
        quality(line, Quality.GOOD, "c")
        slaves[1].behaviour = Behaviour.HONEST
        quality(line, Quality.GOOD, "b")


def test_switched_on_later_connects_by_itself():
    first = TcpServer([])
    first.open()
    first.close()
    line = ModbusLine(TcpLine(host="127.0.0.1", port=first.port), {"a": unit()}, 0.005)
    line.open()
    until(lambda: "cannot be opened" in line.message)
    assert line.read("a", "force").quality is Quality.NONE
    server = TcpServer([holding(100)], first.port)
    server.open()
    quality(line, Quality.GOOD)
    server.close()
    held = quality(line, Quality.HELD)
    assert held.value == 50.0 and held.message
    line.close()


def test_accept_and_close_is_met_with_patience():
    with tcp([holding(100)], {"a": unit()}) as (line, server):
        assert PATIENCE_S >= 1.0
        quality(line, Quality.GOOD)
        server.hangs_up = True
        until(lambda: line.connects >= 2)
        begin_s, before = time.monotonic(), server.connections
        until(lambda: server.connections >= before + 5)
        assert time.monotonic() - begin_s > (server.connections - before - 1) * modbus.FIRST_PAUSE_S
        assert line.read("a", "force").quality is Quality.HELD
        server.hangs_up = False
        quality(line, Quality.GOOD)


def test_unplugged_and_plugged_again(tmp_path):
    with rtu(tmp_path, [holding(100)], {"a": unit()}) as (line, bus):
        quality(line, Quality.GOOD)
        bus.plugged = False
        assert quality(line, Quality.HELD).value == 50.0
        until(lambda: "cannot be opened" in line.message or "closed the connection" in line.message)
        bus.plugged = True
        quality(line, Quality.GOOD)


def test_close_ends_at_any_moment(tmp_path):
    silent = holding(1)
    silent.behaviour = Behaviour.SILENT
    with rtu(tmp_path, [silent], {"a": unit(slowest_answer_s=2.0)}, timeout_s=0.01) as (line, _):
        until(lambda: line.counters("a").failed > 0)
        line.close()  # in the middle of draining
        assert line.message == "closed"
    never_opened = ModbusLine(TcpLine(host="127.0.0.1"), {"a": unit()}, 0.01)
    never_opened.close()


def test_lines_need_devices_that_can_be_told_apart():
    for devices in ({}, {"a": unit(), "b": unit()}):
        with pytest.raises(ValueError, match="address of its own"):
            ModbusLine(TcpLine(host="127.0.0.1"), devices, 0.01)


@settings(max_examples=40)
@given(st.binary(min_size=1, max_size=60))
def test_nothing_that_an_rtu_line_brings_passes_as_a_value(tmp_path_factory, garbage):
    """The chance of a valid checksum is 1 in 65536 a frame; the right function, unit and count on top."""
    path = tmp_path_factory.mktemp("line") / "usb"
    bus = PtyLine(path, lambda data, now_s: [(now_s, garbage)] if data else [])
    bus.open()
    line = ModbusLine(RtuLine(path=str(path), timeout_s=0.004), {"a": unit(slowest_answer_s=0.001)}, 0.001)
    line.open()
    try:
        until(lambda: line.counters("a").failed > 0)
        assert line.read("a", "force").quality is Quality.NONE
    finally:
        line.close()
        bus.close()
