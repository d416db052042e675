"""The AMS/TCP server: protocol against pyads, the stream against fragmentation, coalescing and noise."""

import asyncio
import ctypes
import itertools
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyads
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.virtual import ams

NET_ID = "5.1.2.3.1.1"
NET_IDS = (f"127.0.0.1.10.{n}" for n in itertools.count(1))  # AdsLib wants another one for every address


class Block(ctypes.Structure):
    _fields_ = [("data", ctypes.c_ubyte * 304)]


def symbols():
    return [
        ams.Symbol("GVL.fSpeed", "LREAL", bytearray(8), comment="m/s"),
        ams.Symbol("GVL.sName", "STRING(80)", bytearray(81)),
        ams.Symbol("GVL.nCount", "UDINT", bytearray(4)),
        ams.Symbol("GVL.stBlock", "ST_Block", bytearray(304)),
    ]


@contextmanager
def served(device: ams.Device, deliver: ams.Deliver = ams.at_once) -> Iterator[str]:
    """The server in a thread of its own, because pyads blocks; gives its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = ams.Server(device, deliver)
    host, port = asyncio.run_coroutine_threadsafe(server.open("127.0.0.1", 0), loop).result()
    try:
        yield f"{host}:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def connected(device: ams.Device) -> Iterator[pyads.Connection]:
    with served(device) as address:
        plc = pyads.Connection(device.net_id, 851, address)
        plc.open()
        plc.set_timeout(2000)
        try:
            yield plc
        finally:
            plc.close()


@pytest.fixture
def device():
    return ams.Device(next(NET_IDS), 851, symbols())


@pytest.fixture
def plc(device):
    with connected(device) as connection:
        yield connection


# ---------------------------------------------------------------- against pyads


def test_values_by_name_ignore_case_and_survive_a_round_trip(plc):
    plc.write_by_name("GVL.fSpeed", 3.25, pyads.PLCTYPE_LREAL)
    assert plc.read_by_name("gvl.FSPEED", pyads.PLCTYPE_LREAL) == 3.25
    plc.write_by_name("GVL.sName", "hexapod", pyads.PLCTYPE_STRING)
    assert plc.read_by_name("GVL.sName", pyads.PLCTYPE_STRING) == "hexapod"
    block = Block((ctypes.c_ubyte * 304)(*range(250)))
    plc.write_by_name("GVL.stBlock", block, Block)
    assert bytes(plc.read_by_name("GVL.stBlock", Block, return_ctypes=True)) == bytes(block)


def test_the_callback_gets_what_was_written(device, plc):
    written = []
    device.symbols[2].on_write = written.append
    plc.write_by_name("GVL.nCount", 7, pyads.PLCTYPE_UDINT)
    assert written == [b"\7\0\0\0"]


def test_symbol_information_upload_and_version(plc):
    found = {symbol.name: (symbol.symbol_type, symbol.comment) for symbol in plc.get_all_symbols()}
    assert found["GVL.fSpeed"] == ("LREAL", "m/s")
    assert list(found) == [symbol.name for symbol in symbols()]
    symbol = plc.get_symbol("GVL.fSpeed")
    assert (symbol.index_group, symbol.symbol_type) == (0x4040, "LREAL")
    short = plc.read_write(0xF007, 0, ctypes.c_uint32 * 3, "GVL.stBlock", pyads.PLCTYPE_STRING)
    assert short[2] == 304
    assert plc.read(0xF00C, 0, ctypes.c_uint32 * 2)[0] == 4
    assert plc.read(0xF008, 0, pyads.PLCTYPE_USINT) == 1


def test_sum_read_and_sum_write(plc):
    values = {"GVL.fSpeed": 1.5, "GVL.nCount": 9, "GVL.sName": "six"}
    assert set(plc.write_list_by_name(values).values()) == {"no error"}
    assert plc.read_list_by_name(list(values)) == values


def test_state_device_and_control(device, plc):
    assert plc.read_state() == (5, 0)
    name, version = plc.read_device_info()
    assert (name, version.version, version.revision, version.build) == ("Plc30 App", 3, 1, 4024)
    plc.write_control(6, 0, 0, pyads.PLCTYPE_UDINT)
    assert device.state == ams.AdsState.STOP
    assert plc.read_state() == (6, 0)


@pytest.mark.parametrize(
    ("code", "request_"),
    [
        (1808, lambda plc: plc.get_handle("GVL.nothing")),
        (1809, lambda plc: plc.read(0xF005, 4711, pyads.PLCTYPE_UDINT)),
        (1809, lambda plc: plc.write(0xF005, 4711, 1, pyads.PLCTYPE_UDINT)),
        (1809, lambda plc: plc.release_handle(4711)),
        (0x705, lambda plc: plc.read_by_name("GVL.stBlock", pyads.PLCTYPE_LREAL)),
        (0x705, lambda plc: plc.read_by_name("GVL.nCount", pyads.PLCTYPE_LREAL)),
        (0x705, lambda plc: plc.write_by_name("GVL.stBlock", 1.0, pyads.PLCTYPE_LREAL)),
        (0x705, lambda plc: plc.write_by_name("GVL.sName", "x" * 100, pyads.PLCTYPE_STRING)),
        (0x702, lambda plc: plc.read(0x1234, 0, pyads.PLCTYPE_UDINT)),
        (0x702, lambda plc: plc.write(0x1234, 0, 1, pyads.PLCTYPE_UDINT)),
        (0x703, lambda plc: plc.read(0x4040, 3, pyads.PLCTYPE_UDINT)),
        (0x701, lambda plc: plc.write_control(15, 0, 0, pyads.PLCTYPE_UDINT)),
        (0x701, lambda plc: plc.add_device_notification("GVL.nCount", pyads.NotificationAttrib(4), lambda *_: None)),
    ],
)
def test_refusals_carry_the_right_code(plc, code, request_):
    with pytest.raises(pyads.ADSError) as refusal:
        request_(plc)
    assert refusal.value.err_code == code
    assert plc.read_state() == (5, 0)  # and the connection goes on


@pytest.mark.parametrize(("own_port", "own_net_id", "code"), [(801, None, 6), (851, NET_ID, 7)])
def test_wrong_addresses(own_port, own_net_id, code):
    asked = next(NET_IDS)
    with served(ams.Device(own_net_id or asked, own_port, symbols())) as address:
        plc = pyads.Connection(asked, 851, address)
        plc.open()
        try:
            with pytest.raises(pyads.ADSError) as refusal:
                plc.read_state()
        finally:
            plc.close()
    assert refusal.value.err_code == code


def test_a_released_handle_is_gone(plc):
    handle = plc.get_handle("GVL.nCount")
    assert plc.read(0xF005, handle, pyads.PLCTYPE_UDINT) == 0
    plc.release_handle(handle)
    with pytest.raises(pyads.ADSError) as refusal:
        plc.read(0xF005, handle, pyads.PLCTYPE_UDINT)
    assert refusal.value.err_code == 1809


def test_an_online_change_kills_handles_moves_variables_and_changes_the_version(device, plc):
    handle = plc.get_handle("GVL.nCount")
    before = plc.get_symbol("GVL.nCount").index_offset
    device.online_change(symbols(), memory_start=0x2000)
    with pytest.raises(pyads.ADSError) as refusal:
        plc.read(0xF005, handle, pyads.PLCTYPE_UDINT)
    assert refusal.value.err_code == 1809
    assert plc.get_symbol("GVL.nCount").index_offset != before
    assert plc.read(0xF008, 0, pyads.PLCTYPE_USINT) == 2


# ---------------------------------------------------------------- the stream


def frame(command, data, invoke=1, net_id=NET_ID, port=851, flags=4, length=None):
    source = bytes([127, 0, 0, 1, 1, 1])
    target = bytes(int(part) for part in net_id.split("."))
    header = target + struct.pack("<H", port) + source
    header += struct.pack("<HHHIII", 40000, command, flags, len(data), 0, invoke)
    return struct.pack("<HI", 0, len(header) + len(data) if length is None else length) + header + data


def ended(tcp):
    """The other side closes the connection, one way or the other."""
    try:
        while tcp.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def conversation():
    """Requests that show any confusion of bytes: a write, its read-back by handle, a sum read and a refusal."""
    return b"".join(
        [
            frame(9, struct.pack("<IIII", 0xF003, 0, 4, 11) + b"GVL.nCount\0", invoke=1),
            frame(3, struct.pack("<III", 0xF005, 0x1001, 4) + b"\1\2\3\4", invoke=2),
            frame(2, struct.pack("<III", 0xF005, 0x1001, 4), invoke=3),
            frame(9, struct.pack("<IIII", 0xF080, 2, 16, 24) + struct.pack("<6I", 0xF005, 0x1001, 4, 0xF008, 0, 1), 4),
            frame(4, b"", invoke=5, port=1),
        ]
    )


def test_answers_byte_by_byte():
    session = ams.Session(ams.Device(NET_ID, 851, symbols()))
    answers = session.receive(conversation())
    assert [struct.unpack_from("<I", answer, 34)[0] for answer in answers] == [1, 2, 3, 4, 5]
    # To the asking address, from the asked one; ReadState, response | ADS command, no data, port not found.
    assert answers[4] == bytes.fromhex(
        "0000 20000000 7f0000010101 409c 050102030101 0100 0400 0500 00000000 06000000 05000000"
    )
    assert answers[2][38:] == struct.pack("<II", 0, 4) + b"\1\2\3\4"
    assert answers[3][38:] == struct.pack("<IIII", 0, 13, 0, 0) + b"\1\2\3\4" + b"\1"


@given(st.lists(st.integers(0, len(conversation())), max_size=20))
def test_answers_do_not_depend_on_how_the_stream_is_cut(cuts):
    stream = conversation()
    whole = ams.Session(ams.Device(NET_ID, 851, symbols())).receive(stream)
    session = ams.Session(ams.Device(NET_ID, 851, symbols()))
    edges = [0, *sorted(cuts), len(stream)]
    parts = [stream[begin:end] for begin, end in itertools.pairwise(edges)]
    assert [answer for part in parts for answer in session.receive(part)] == whole


@given(st.binary(max_size=200))
def test_noise_is_refused_or_waited_for(noise):
    session = ams.Session(ams.Device(NET_ID, 851, symbols()))
    try:
        answers = session.receive(noise)
    except ams.MalformedError:
        return
    assert answers == [] or noise[:2] == b"\0\0"


@given(
    command=st.integers(0, 12),
    data=st.builds(
        lambda words, tail: struct.pack(f"<{len(words)}I", *words) + tail,
        st.lists(
            st.sampled_from([*ams.Group, 0x4040, 0x1000, 0, 1, 2, 4, 12, 24, 0xFFFFFFFF]) | st.integers(0, 2**32 - 1),
            max_size=12,
        ),
        st.binary(max_size=16),
    ),
)
def test_every_request_however_odd_gets_one_answer(command, data):
    session = ams.Session(ams.Device(NET_ID, 851, symbols()))
    answers = session.receive(frame(command, data, invoke=77))
    assert len(answers) == 1
    length, invoke = struct.unpack_from("<I", answers[0], 2)[0], struct.unpack_from("<I", answers[0], 34)[0]
    assert (length, invoke) == (len(answers[0]) - 6, 77)
    assert length <= ams.FRAME_LIMIT + 100


@pytest.mark.parametrize(
    "bad",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<HI", 0, 31) + bytes(31),  # shorter than an AMS header
        struct.pack("<HI", 0, ams.FRAME_LIMIT + 1),  # longer than anything honest
        struct.pack("<HI", 0, 0xFFFFFFFF),
        struct.pack("<HI", 0x1000, 32) + bytes(32),  # a router command
        frame(4, b"1234", length=32),  # the two lengths disagree
    ],
)
def test_a_malformed_stream_costs_its_own_connection_only(bad):
    with served(ams.Device(NET_ID, 851, symbols())) as address:
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as tcp:
            tcp.sendall(bad + conversation())
            assert ended(tcp)
        with socket.create_connection((host, int(port)), timeout=10) as tcp:
            tcp.sendall(frame(4, b""))
            assert tcp.recv(4096)[38:] == struct.pack("<IHH", 0, 5, 0)


def test_responses_sent_to_the_server_are_ignored():
    session = ams.Session(ams.Device(NET_ID, 851, symbols()))
    assert session.receive(frame(4, b"", flags=5)) == []


def test_handles_are_bounded():
    session = ams.Session(ams.Device(NET_ID, 851, symbols()))
    request = frame(9, struct.pack("<IIII", 0xF003, 0, 4, 11) + b"GVL.nCount\0")
    answers = session.receive(request * (ams.HANDLE_LIMIT + 1))
    results = [struct.unpack_from("<I", answer, 38)[0] for answer in answers]
    assert results == [0] * ams.HANDLE_LIMIT + [ams.Error.NO_MEMORY]


def test_a_second_connection_of_the_same_host_closes_the_first():
    with served(ams.Device(NET_ID, 851, symbols())) as address:
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as first:
            first.sendall(frame(4, b""))
            assert first.recv(4096)
            with socket.create_connection((host, int(port)), timeout=10) as second:
                second.sendall(frame(4, b""))
                assert second.recv(4096)
                assert ended(first)
                second.sendall(frame(4, b""))
                assert second.recv(4096)


def test_an_answer_can_be_withheld():
    delivered = []
    with served(ams.Device(NET_ID, 851, symbols()), deliver=lambda _, answer: delivered.append(answer)) as address:
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=0.05) as tcp:
            tcp.sendall(frame(4, b""))
            with pytest.raises(TimeoutError):
                tcp.recv(4096)
            assert len(delivered) <= 1


async def test_a_port_in_use_is_a_plain_os_error():
    first, second = (ams.Server(ams.Device(NET_ID, 851, symbols())) for _ in range(2))
    host, port = await first.open("127.0.0.1", 0)
    with pytest.raises(OSError, match="address already in use"):
        await second.open(host, port)
    await first.close()
