"""Bytes on the wire, whatever they are: what is believed was sent in the valid form, and a broken status stops."""

import itertools
import math
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.cycle import cycle
from controller.records import AxisMode, Fault, Mode, RequestKind, Sample
from controller.schema import Ads, RtuLine, TcpLine
from drivers import ads, ads_link, modbus, serial_line
from drivers.exchange import LAYOUT_VERSION, STATUS, DriveStatus, PlcState
from drivers.modbus import ModbusLine, Unit
from drivers.profile import ConditionerProfile, ModbusProfile, Register, load
from drivers.serial_line import SerialSensor
from drivers.virtual.instruments import PtyLine
from tests.drivers.test_ads import Plc, driven, exchange, listener, served, until
from tests.fuzz.mutations import EDITS, Edit, mutated
from tests.machines import NOTHING, ROOT, Bench, ask

# ---------------------------------------------------------------- ADS: the probe


def state_answer(state: int = 5, result: int = 0, error: int = 0, command: int = 4, flags: int = 5, invoke: int = 1):
    data = struct.pack("<IHH", result, state, 0)
    header = struct.pack(
        "<6sH6sHHHIII", b"\x7f\0\0\1\1\1", 32000, b"\5\1\2\3\1\1", 851, command, flags, len(data), error, invoke
    )
    return struct.pack("<HI", 0, len(header) + len(data)) + header + data


def says_run(data: bytes) -> bool:
    """The AMS answer to ReadState that says RUN, by the layout of Beckhoff's documents."""
    if len(data) < 46 or struct.unpack_from("<HI", data) != (0, 40):
        return False
    command, flags, length, error, invoke, result, state = struct.unpack_from("<HHIIIIH", data, 22)
    return (command, length, error, invoke, result, state) == (4, 8, 0, 1, 0, 5) and bool(flags & 1)


ANSWERS = (
    st.builds(
        state_answer,
        *(st.sampled_from(values) for values in ((5, 6, 99), (0, 0x711), (0, 6, 7, 99), (4, 2), (4, 5, 0), (1, 7))),
    )
    | st.builds(mutated, st.just(state_answer()), EDITS)
    | st.binary(max_size=60)
    | st.binary(max_size=60).map(lambda data: struct.pack("<HI", 0, len(data)) + data)
)


def test_the_probe_believes_a_valid_answer_only() -> None:
    answer = [b""]

    def serve(connection: socket.socket) -> None:
        connection.settimeout(5.0)
        connection.recv(4096)
        connection.sendall(answer[0])

    with listener(serve) as address:
        site = Ads(ams_net_id="5.1.2.3.1.1", address=address)

        @settings(max_examples=300)
        @given(ANSWERS)
        def check(data: bytes) -> None:
            answer[0] = data
            try:
                ads_link.probe(site)
            except ads_link.LinkError as reason:
                assert not says_run(data) and str(reason)
            else:
                assert says_run(data)

        check()


# ---------------------------------------------------------------- ADS: the status block, and what the cycle makes of it

ODD_NUMBERS = [math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -0.0, 0.0, 1.0, -1.0, 1e3]
PIECES = st.sampled_from([struct.pack("<d", number) for number in ODD_NUMBERS]) | st.binary(min_size=1, max_size=12)
PLACES = st.integers(0, STATUS.itemsize // 4 - 3)
WORDS = st.sampled_from([STATUS.fields[name][1] // 4 - 2 for name in ("plc_state", "plc_error", "drive_status")])
CHANGES = st.lists(
    st.tuples(PLACES, PIECES) | st.tuples(WORDS, st.integers(0, 9).map(lambda word: word.to_bytes(4, "little"))),
    max_size=4,
) | st.binary(min_size=STATUS.itemsize - 8, max_size=STATUS.itemsize - 8).map(lambda data: [(0, data)])
# HOMING too: axes that move by themselves are found by their lag
MOVES = (PlcState.OFF, PlcState.HOLDING, PlcState.FOLLOWING, PlcState.LATE, PlcState.HOMING)


def benches() -> list[tuple[Bench, Sample]]:
    """A machine that holds and one that moves, each with the healthy sample that would come next."""
    found: list[tuple[Bench, Sample]] = []
    for mode in (Mode.READY, Mode.ACTIVE):
        bench, samples = Bench(), list[Sample]()
        bench.ready()
        if mode is Mode.ACTIVE:
            bench.step(ask(RequestKind.MOVE, bench.setup.home + 0.02))
            bench.run(20)
        state, tick = bench.state, bench.tick
        bench.broken = lambda sample, samples=samples: samples.append(sample) or sample
        assert bench.step().mode is mode
        bench.state, bench.tick = state, tick
        found.append((bench, samples[-1]))
    return found


def wrong(block: np.void, bench: Bench) -> bool:
    """What must stop the machine, said of the bytes themselves."""
    n, limits = len(bench.setup.limits.length_min_m), bench.setup.limits
    legs = [block[name][:n] for name in ("position_m", "velocity_m_s", "setpoint_m", "force_n")]
    if not np.isfinite(legs).all():
        return True
    length_m, rate_m_s, setpoint_m, force_n = map(np.ndarray.tolist, legs)
    return (
        any(not low - 0.0021 <= q <= high + 0.0021 for q, low, high in zip(length_m, *limits[:2], strict=True))
        or any(abs(rate) > 1.26 * most for rate, most in zip(rate_m_s, limits.speed_m_s, strict=True))
        or any(abs(force) > 1.26 * most for force, most in zip(force_n, limits.force_n, strict=True))
        or any(abs(a - b) > limits.following_error_m for a, b in zip(setpoint_m, length_m, strict=True))
        or any(int(bits) & 3 != DriveStatus.ENABLED for bits in block["drive_status"][:n])
        or int(block["plc_state"]) not in MOVES
    )


def assert_stands(bench: Bench, healthy: Sample, sample: Sample, block: np.void) -> None:
    """The command after this sample: finite, inside the limits, and STOP if anything was wrong with it."""
    fields = ("plc_cycle", "seq_echo", "plc_state", "plc_error", "plc_stopped", "drives_enabled", "drives_fault")
    legs = ("length_m", "length_m_s", "setpoint_m", "drive_n")
    seen = replace(healthy, **{name: getattr(sample, name) for name in (*fields, *legs)})
    last, limits = bench.state.command, bench.setup.limits
    _, output = cycle(bench.setup, bench.state, seen, NOTHING)
    sent = output.command
    assert np.isfinite([sent.position_m, sent.velocity_m_s, sent.force_n]).all()
    if wrong(block, bench):
        assert output.faults and output.mode is Mode.FAULT and sent.axis_mode is AxisMode.STOP
    if not np.isfinite([getattr(sample, name) for name in legs]).all():
        assert Fault.SAMPLE_NOT_FINITE in output.faults
    if sent.axis_mode is not AxisMode.STOP:
        assert np.all(sent.position_m >= limits.length_min_m) and np.all(sent.position_m <= limits.length_max_m)
        assert np.all(np.abs(sent.velocity_m_s) <= np.array(limits.speed_m_s) * (1.0 + 1e-9))
        assert np.all(np.abs(sent.force_n) <= limits.force_n)
        step_m = np.abs(sent.position_m - last.position_m)
        assert np.all(step_m <= np.array(limits.speed_m_s) * bench.setup.period_s * (1.0 + 1e-9))


def test_any_status_becomes_a_sample_and_a_broken_one_stops_the_machine() -> None:
    plc, worlds = Plc(), benches()
    plc.device.symbols[0].on_write = None  # nothing but the test changes the status
    memory, counter = plc.status.view(np.uint8), itertools.count(1000)
    kept, went_on = bytes(memory), []
    with served(plc) as site, driven(site) as driver:
        until(lambda: driver.is_up)

        @settings(max_examples=250)
        @given(st.sampled_from(range(len(worlds))), CHANGES)
        def check(world: int, changes: list[tuple[int, bytes]]) -> None:
            bench, healthy = worlds[world]
            block = np.frombuffer(bytearray(kept), STATUS)[0]
            n = len(healthy.length_m)
            block["plc_state"] = PlcState.FOLLOWING
            block["drive_status"][:n] = DriveStatus.ENABLED
            block["position_m"][:n], block["setpoint_m"][:n] = healthy.length_m, healthy.setpoint_m
            block["velocity_m_s"][:n] = healthy.length_m_s
            data = block.tobytes()
            for place, piece in changes:
                at = 8 + 4 * place
                data = (data[:at] + piece + data[at + len(piece) :])[: STATUS.itemsize]
            count = next(counter)
            at = STATUS.fields["plc_cycle"][1]  # a counter that goes back ends the link
            data = data[:at] + count.to_bytes(4, "little") + data[at + 4 :]
            memory[:] = np.frombuffer(data, np.uint8)
            exchange(driver, count)
            sample = driver.read(1, time.monotonic(), 0.0)
            block = np.frombuffer(data, STATUS)[0]
            for name, field in (("length_m", "position_m"), ("setpoint_m", "setpoint_m"), ("drive_n", "force_n")):
                assert getattr(sample, name).tobytes() == block[field][:n].tobytes()
            assert (sample.plc_state, sample.plc_error) == (block["plc_state"], block["plc_error"])
            assert_stands(bench, healthy, sample, block)
            if not changes:
                assert not wrong(block, bench)
                went_on.append(world)

        check()
        assert driver.is_up and driver.reading.reconnects == 0
    assert went_on  # the healthy status among them


def test_a_status_of_another_size_or_version_is_never_a_sample() -> None:
    plc = Plc()
    heads = [
        (STATUS.itemsize + 1, LAYOUT_VERSION),
        (STATUS.itemsize, LAYOUT_VERSION + 1),
        (0, 0),
        (2**32 - 1, 2**32 - 1),
    ]
    with served(plc) as site:
        for size, version in heads:
            plc.status["size"], plc.status["version"] = STATUS.itemsize, LAYOUT_VERSION
            plc.status["plc_cycle"] = 1
            with driven(site) as driver:
                until(lambda driver=driver: driver.is_up)
                plc.status["plc_cycle"], plc.status["size"], plc.status["version"] = 2, size, version
                until(lambda driver=driver: not driver.is_up)
                assert driver.read(1, time.monotonic(), 0.0).plc_cycle == 1


# ---------------------------------------------------------------- Modbus

FORCE = Register(address=7, type="int32", scale=1.0, unit="N", range=(-3e9, 3e9))
CELL = ModbusProfile(name="cell", source="test", verified=False, slowest_answer_s=0.02, channels={"force": FORCE})
SCRIPTS = st.lists(st.none() | EDITS, min_size=1, max_size=6)
# inside a frame whose length and checksum are right: edits of function, count of bytes and registers
INNER = st.sampled_from(
    [[(1, "replace", bytes([n])), (1.0, "insert", bytes(k))] for n in range(2, 8) for k in range(1, 4)]
)
MODBUS_SCRIPTS = st.lists(st.tuples(st.none() | INNER | EDITS, st.none() | EDITS), min_size=1, max_size=6)


class Replies:
    """Answers the n-th request as the n-th item of a script spoils the valid answer, then with valid ones."""

    def __init__(self, spoilt: Callable[[bytes, int, Any], bytes]) -> None:
        self.spoilt = spoilt
        self.waiting: list[Any] = []
        self.sent: list[tuple[bytes, bytes]] = []  # request, reply
        self.believed: list[tuple[int, object]] = []  # requests so far, value

    def reply(self, request: bytes) -> bytes:
        answer = self.spoilt(request, 1000 + len(self.sent), self.waiting[0] if self.waiting else None)
        self.sent.append((request, answer))
        del self.waiting[:1]
        return answer

    def play(self, script: list[Any]) -> None:
        self.waiting += script
        until(lambda: not self.waiting)
        done = len(self.believed)
        until(lambda: len(self.believed) > done)  # whatever it was, it does not last


Spoil = tuple[list[Edit] | None, list[Edit] | None] | None  # what is wrong inside the frame, and with the frame


def spoilt_frame(frame: Callable[[bytes, bytes], bytes], request: bytes, value: int, how: Spoil) -> bytes:
    inner, outer = how or (None, None)
    answer = frame(request, mutated(b"\x03\x04" + struct.pack(">i", value), inner or []))
    return mutated(answer, outer or [])


def tcp_frame(request: bytes, pdu: bytes) -> bytes:
    return request[:4] + struct.pack(">H", len(pdu) + 1) + request[6:7] + pdu


def crc16(data: bytes) -> bytes:
    """The checksum of Modbus over serial lines, from its polynomial."""
    crc = 0xFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc.to_bytes(2, "little")


def rtu_frame(request: bytes, pdu: bytes) -> bytes:
    body = request[:1] + pdu
    return body + crc16(body)


def in_tcp(request: bytes, reply: bytes) -> set[tuple[int, ...]]:
    """The registers of all valid answers to this request that are in the reply."""
    form = re.escape(request[:4]) + b"\x00\x07" + re.escape(request[6:7]) + rb"\x03\x04(?=(....))"
    return {struct.unpack(">HH", found[1]) for found in re.finditer(form, reply, re.DOTALL)}


def in_rtu(request: bytes, reply: bytes) -> set[tuple[int, ...]]:
    frames = (reply[k : k + 9] for k in range(len(reply) - 8))
    return {
        struct.unpack(">HH", frame[3:7])
        for frame in frames
        if frame[:3] == request[:1] + b"\x03\x04" and crc16(frame[:7]) == frame[7:]
    }


def serve_tcp(replies: Replies, server: socket.socket) -> None:
    while True:
        try:
            peer, _ = server.accept()
        except OSError:
            return
        with peer:
            while request := peer.recv(12):
                peer.sendall(replies.reply(request))


@pytest.fixture
def unexpected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What only the last resort of a driver's thread caught."""
    found: list[str] = []
    for module in (ads, modbus, serial_line):
        monkeypatch.setattr(module.log, "exception", lambda text, *_: found.append(text))
    monkeypatch.setattr(modbus, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(modbus, "LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr(modbus, "REFUSED_PAUSE_S", 0.001)
    monkeypatch.setattr(serial_line, "PAUSE_S", 0.01)
    monkeypatch.setattr(serial_line, "DRAIN_S", 0.02)
    return found


def watch_modbus(monkeypatch: pytest.MonkeyPatch, replies: Replies) -> None:
    real = modbus.decode

    def decode(profile, registers, stamp_s):
        replies.believed.append((len(replies.sent), tuple(registers)))
        return real(profile, registers, stamp_s)

    monkeypatch.setattr(modbus, "decode", decode)


def test_a_modbus_tcp_value_is_one_of_a_valid_answer_to_this_request(monkeypatch, unexpected) -> None:
    replies = Replies(partial(spoilt_frame, tcp_frame))
    watch_modbus(monkeypatch, replies)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve_tcp, args=(replies, server))
        thread.start()
        place = TcpLine(host="127.0.0.1", port=server.getsockname()[1], timeout_s=0.03)
        line = ModbusLine(place, {"a": Unit(1, CELL)}, 0.001)
        line.open()

        @settings(max_examples=40)
        @given(MODBUS_SCRIPTS)
        def check(script: list[Any]) -> None:
            begin = len(replies.believed)
            replies.play(script)
            for number, registers in list(replies.believed)[begin:]:
                assert registers in in_tcp(*replies.sent[number - 1])

        try:
            check()
        finally:
            line.close()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert unexpected == []


def test_a_modbus_rtu_value_is_one_of_a_valid_frame(tmp_path, monkeypatch, unexpected) -> None:
    """All requests are the same here: a late answer, which only the draining keeps apart, may be of the one before."""
    replies = Replies(partial(spoilt_frame, rtu_frame))
    watch_modbus(monkeypatch, replies)
    bus = PtyLine(tmp_path / "usb", lambda data, now_s: [(now_s, replies.reply(data))] if data else [])
    bus.open()
    line = ModbusLine(RtuLine(path=str(bus.path), timeout_s=0.03), {"a": Unit(1, CELL)}, 0.001)
    line.open()

    @settings(max_examples=25)
    @given(MODBUS_SCRIPTS)
    def check(script: list[Any]) -> None:
        begin = len(replies.believed)
        replies.play(script)
        for number, registers in list(replies.believed)[begin:]:
            assert any(registers in in_rtu(*sent) for sent in replies.sent[max(0, number - 3) : number])

    try:
        check()
    finally:
        line.close()
        bus.close()
    assert unexpected == []


# ---------------------------------------------------------------- serial


def test_a_conditioner_value_stood_in_a_whole_line(tmp_path, monkeypatch, unexpected) -> None:
    """There is no checksum: what was changed into another number is that number."""
    shipped = load(ROOT / "config" / "devices" / "dscusb.toml")
    assert isinstance(shipped, ConditionerProfile)
    profile = msgspec.structs.replace(shipped, timeout_s=0.02, range=(-1e9, 1e9), scale=1.0)

    def spoilt(request: bytes, value: int, edits: list[Edit] | None) -> bytes:
        return mutated(b"+00000.000\r" if b"STAT" in request else b"%+09.3f\r" % value, edits or [])

    replies = Replies(spoilt)
    real = serial_line.judged

    def judged(value, *rest):
        replies.believed.append((len(replies.sent), value))
        return real(value, *rest)

    monkeypatch.setattr(serial_line, "judged", judged)
    monkeypatch.setattr(serial_line, "PERIOD_S", 0.001)
    line = PtyLine(tmp_path / "usb", lambda data, now_s: [(now_s, replies.reply(data))] if data else [])
    line.open()
    sensor = SerialSensor(str(line.path), profile)
    sensor.open()

    @settings(max_examples=25)
    @given(SCRIPTS)
    def check(script: list[Any]) -> None:
        begin = len(replies.believed)
        replies.play(script)
        for number, value in list(replies.believed)[begin:]:
            lines = b"\r".join(reply for _, reply in replies.sent[max(0, number - 3) : number]).split(b"\r")
            numbers = {float(text) for text in lines if re.fullmatch(rb"[+-][0-9]{1,8}\.[0-9]{1,6}", text)}
            assert value in numbers

    try:
        check()
    finally:
        sensor.close()
        line.close()
    assert unexpected == []
