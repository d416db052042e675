"""The ADS driver against the project's own AMS server, and against everything that may be at its address instead."""

import asyncio
import itertools
import math
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from controller.errors import DeviceError
from controller.records import AxisMode, Command, Link
from controller.schema import Ads
from drivers import ads, ads_link
from drivers.exchange import (
    COMMAND,
    LAYOUT_VERSION,
    STATUS,
    SYMBOL_COMMAND,
    SYMBOL_STATUS,
    DriveStatus,
    PlcState,
)
from drivers.virtual import ams

NET_IDS = (f"127.0.0.1.30.{n}" for n in itertools.count(1))
TIMEOUT_S = 0.2  # generous, because client and server share one interpreter here


class Plc:
    """A device with the two blocks, that keeps every command and echoes its seq."""

    def __init__(self, command_size=COMMAND.itemsize, names=(SYMBOL_COMMAND, SYMBOL_STATUS)):
        self.commands = []
        self.delivers = True
        self.names = names
        self.device = ams.Device(next(NET_IDS), 851, self.symbols(command_size))

    def symbols(self, command_size=COMMAND.itemsize):
        command = ams.Symbol(self.names[0], "ST_PkmCommand", bytearray(command_size), on_write=self.take)
        status = ams.Symbol(self.names[1], "ST_PkmStatus", bytearray(STATUS.itemsize))
        self.status = np.frombuffer(status.data, STATUS)
        self.status["size"], self.status["version"] = STATUS.itemsize, LAYOUT_VERSION
        return [command, status]

    def take(self, data):
        self.commands.append(np.frombuffer(data, COMMAND)[0])
        self.status["seq_echo"] = self.commands[-1]["seq"]
        self.status["plc_cycle"] += 5

    def deliver(self, transport, answer):
        if self.delivers:
            transport.write(answer)


@contextmanager
def served(plc: Plc, port: int = 0) -> Iterator[Ads]:
    """The server in a thread of its own; gives the site table to reach it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = ams.Server(plc.device, plc.deliver)
    host, bound = asyncio.run_coroutine_threadsafe(server.open("127.0.0.1", port), loop).result()
    try:
        yield Ads(ams_net_id=plc.device.net_id, address=f"{host}:{bound}", timeout_s=TIMEOUT_S)
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def driven(site: Ads) -> Iterator[ads.AdsDriver]:
    driver = ads.AdsDriver(site, 6, 0.01)
    driver.open()
    try:
        yield driver
    finally:
        driver.close()


def until(condition, seconds=15.0):
    """Wait for something that must happen; fails only if it never does."""
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, "it never happened"
        time.sleep(0.002)


def command(seq, mode=AxisMode.HOLD):
    return Command(seq, mode, np.full(6, 0.9), np.full(6, 0.1), np.full(6, 50.0))


def exchange(driver, seq):
    """Hand over one command and wait for the status after it."""
    done = driver.reading.exchanges
    driver.write(command(seq))
    until(lambda: driver.reading.exchanges > done)


# ---------------------------------------------------------------- exchange


def test_commands_arrive_whole_and_the_status_comes_back():
    plc = Plc()
    plc.status["plc_state"] = PlcState.FOLLOWING
    plc.status["position_m"], plc.status["drive_status"] = np.arange(6), [DriveStatus.ENABLED] * 6
    with served(plc) as site, driven(site) as driver:
        until(lambda: driver.is_up)
        for tick in range(1, 51):
            driver.read(tick, time.monotonic(), 0.0)
            exchange(driver, tick)
        sample = driver.read(51, time.monotonic(), 0.0)
        assert driver.message == ""
        assert math.isfinite(driver.exchange_s)
    assert [int(sent["seq"]) for sent in plc.commands] == list(range(1, 51))
    sent = plc.commands[-1]
    assert (sent["size"], sent["version"], sent["mode"]) == (COMMAND.itemsize, LAYOUT_VERSION, AxisMode.HOLD)
    assert (sent["host_time_s"], sent["period_s"]) == (0.5, 0.01)  # nominal time of tick 50
    np.testing.assert_array_equal(sent["force_n"], np.full(6, 50.0))
    assert (sample.tick, sample.link, sample.seq_echo, sample.plc_cycle) == (51, Link.UP, 50, 250)
    assert (sample.drives_enabled, sample.drives_fault, sample.plc_stopped) == (True, False, False)
    assert 0.0 <= sample.age_s < 10.0
    np.testing.assert_array_equal(sample.length_m, np.arange(6))
    assert sample.length_m.flags.writeable  # compiled kernels refuse arrays on read-only memory


def test_before_the_first_status_a_sample_says_that_nothing_is_known():
    sample = ads.AdsDriver(Ads(ams_net_id="1.2.3.4.1.1", address="127.0.0.1:1"), 6, 0.01).read(0, 5.0, 2.0)
    assert (sample.link, sample.age_s, sample.t_s, sample.drives_enabled) == (Link.DOWN, math.inf, 3.0, False)
    assert np.isnan(sample.length_m).all()


def test_the_status_stays_fresh_without_commands():
    plc = Plc()
    with served(plc) as site, driven(site) as driver:
        until(lambda: driver.is_up)
        stamp_s = driver.reading.stamp_s
        until(lambda: driver.reading.stamp_s > stamp_s + 0.1)
    assert plc.commands == []


def test_what_was_commanded_before_there_was_a_link_is_never_sent():
    plc = Plc()
    with served(plc) as site:
        driver = ads.AdsDriver(site, 6, 0.01)
        for seq in range(1, 4):
            driver.write(command(seq))
        driver.open()
        until(lambda: driver.is_up)
        exchange(driver, 4)
        driver.close()
        assert [int(sent["seq"]) for sent in plc.commands] == [4]
        assert driver.dropped == 3


def test_the_newest_command_wins_while_the_link_is_busy():
    plc = Plc()
    with served(plc) as site, driven(site) as driver:
        until(lambda: driver.is_up)
        plc.delivers = False
        driver.write(command(1))
        until(lambda: plc.commands)
        for seq in range(2, 12):  # while the thread waits for the answer to the first
            driver.write(command(seq))
        plc.delivers = True
        until(lambda: len(plc.commands) > 1)
        until(lambda: driver.reading.exchanges > 0)
    assert int(plc.commands[-1]["seq"]) == 11
    assert len(plc.commands) + driver.dropped == 11


def test_close_sends_the_last_command():
    plc = Plc()
    with served(plc) as site:
        for _ in range(5):
            with driven(site) as driver:
                until(lambda driver=driver: driver.is_up)
                exchange(driver, 1)
                driver.write(command(2, AxisMode.STOP))
            assert plc.commands[-1]["mode"] == AxisMode.STOP
            assert not driver.is_up


def test_a_late_answer_makes_the_link_late_not_down():
    plc = Plc()
    with served(plc) as site, driven(site) as driver:
        until(lambda: driver.is_up)
        plc.delivers = False
        driver.write(command(1))
        until(lambda: driver.reading.link is Link.LATE)
        assert driver.is_up
        plc.delivers = True
        exchange(driver, 2)
        assert driver.reading.link is Link.UP
        assert driver.reading.timeouts >= 1
        assert driver.reading.reconnects == 0


# ---------------------------------------------------------------- the link breaks and comes back


def test_a_plc_that_dies_and_returns_is_found_again():
    plc = Plc()
    with served(plc) as site:
        driver = ads.AdsDriver(site, 6, 0.01)
        driver.open()
        until(lambda: driver.is_up)
        exchange(driver, 1)
    until(lambda: "nothing listens" in driver.message)
    assert driver.read(1, time.monotonic(), 0.0).link is Link.DOWN
    with served(plc, port=int(site.address.split(":")[1])):
        until(lambda: driver.is_up)
        exchange(driver, 2)
        assert driver.reading.reconnects == 1
        driver.close()
    assert [int(sent["seq"]) for sent in plc.commands] == [1, 2]


def test_a_second_program_on_this_computer_is_named_and_costs_one_reconnect(caplog):
    plc = Plc()
    with served(plc) as site, driven(site) as driver:
        until(lambda: driver.is_up)
        with socket.create_connection(ads_link.split_address(site.address)):
            until(lambda: driver.reading.reconnects == 1)
        exchange(driver, 1)
        assert driver.reading.reconnects == 1
    assert "another program on this computer" in caplog.text


def test_an_online_change_never_writes_through_an_old_handle():
    plc = Plc()
    with served(plc) as site, driven(site) as driver:
        until(lambda: driver.is_up)
        exchange(driver, 1)
        old = plc.device.symbols[0]
        before = bytes(old.data)
        plc.device.online_change(plc.symbols(), memory_start=0x3000)
        driver.write(command(2))
        until(lambda: driver.reading.reconnects == 1)
        exchange(driver, 3)
    assert bytes(old.data) == before
    assert int(plc.commands[-1]["seq"]) == 3


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda plc: plc.status.__setitem__("version", 7), "layout version 7"),
        (lambda plc: setattr(plc.device, "state", ams.AdsState.STOP), "is in STOP, not in RUN"),
    ],
)
def test_a_plc_that_changes_under_the_link_is_left(spoil, sentence):
    plc = Plc()
    with served(plc) as site, driven(site) as driver:
        until(lambda: driver.is_up)
        spoil(plc)
        until(lambda: sentence in driver.message)
        assert not driver.is_up


def test_eight_late_answers_in_a_row_give_the_link_up():
    plc = Plc()
    with served(plc) as site, driven(site) as driver:
        until(lambda: driver.is_up)
        plc.delivers = False
        until(lambda: "in a row" in driver.message)
        assert driver.reading.timeouts == ads.TIMEOUTS_TO_GIVE_UP
        plc.delivers = True
        until(lambda: driver.is_up)


# ---------------------------------------------------------------- what may be there instead


@contextmanager
def listener(serve) -> Iterator[str]:
    """A TCP server that does `serve(connection)` with every client."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def at(address, port=851):
    return Ads(ams_net_id=next(NET_IDS), ams_port=port, address=address, timeout_s=TIMEOUT_S)


def read_for_ever(connection):
    connection.settimeout(5.0)
    while connection.recv(4096):
        pass


@contextmanager
def nothing():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    yield at(address)


@contextmanager
def black_hole():
    """A full backlog: the kernel drops what comes, as an unplugged cable does."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        clients = [socket.socket() for _ in range(4)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        try:
            yield at(f"127.0.0.1:{server.getsockname()[1]}")
        finally:
            for client in clients:
                client.close()


@contextmanager
def no_route():
    with listener(lambda connection: connection.recv(6)) as address:
        yield at(address)


@contextmanager
def silent():
    with listener(read_for_ever) as address:
        yield at(address)


@contextmanager
def web_server():
    with listener(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4)) as address:
        yield at(address)


@contextmanager
def wrong_port():
    with served(Plc()) as site:
        yield Ads(ams_net_id=site.ams_net_id, ams_port=801, address=site.address)


@contextmanager
def wrong_net_id():
    with served(Plc()) as site:
        yield at(site.address)


@contextmanager
def stopped():
    plc = Plc()
    plc.device.state = ams.AdsState.CONFIG
    with served(plc) as site:
        yield site


@contextmanager
def other_program():
    with served(Plc(names=("GVL.stOther", SYMBOL_STATUS))) as site:
        yield site


@contextmanager
def other_size():
    with served(Plc(command_size=COMMAND.itemsize + 8)) as site:
        yield site


@contextmanager
def other_version():
    plc = Plc()
    plc.status["version"] = LAYOUT_VERSION + 1
    with served(plc) as site:
        yield site


SENTENCES = {
    nothing: "nothing listens at 127.0.0.1:",
    black_hole: "does not react at all",
    no_route: "closes it at once: the CX5130 has no ADS route to this computer (127.0.0.1, AMS NetId 127.0.0.1.1.1)",
    silent: "accepts the connection, but does not answer ADS requests",
    web_server: "does not speak AMS/TCP",
    wrong_port: "no AMS port 801",
    wrong_net_id: "ads.ams_net_id is wrong",
    stopped: "is in CONFIG, not in RUN",
    other_program: "no variable GVL_Pkm.stCommand",
    other_size: f"GVL_Pkm.stCommand has {COMMAND.itemsize + 8} bytes in the PLC and {COMMAND.itemsize} here",
    other_version: f"layout version {LAYOUT_VERSION + 1}",
}


@pytest.mark.parametrize("place", SENTENCES, ids=lambda place: place.__name__)
def test_every_failure_has_a_sentence_of_its_own(place):
    with place() as site:
        with pytest.raises(DeviceError) as failure:
            ads.check(site)
        with driven(site) as driver:
            until(lambda: SENTENCES[place] in driver.message)
            assert not driver.is_up
    text = str(failure.value)
    assert [other for other, sentence in SENTENCES.items() if sentence in text] == [place]


@pytest.mark.parametrize("place", [black_hole, silent, nothing])
def test_no_call_waits_for_a_plc_that_does_not_answer(place):
    with place() as site:
        driver = ads.AdsDriver(site, 6, 0.01)
        driver.open()
        time.sleep(0.05)
        for tick in range(100):
            driver.read(tick, time.monotonic(), 0.0)
            driver.write(command(tick))
        begin_s = time.monotonic()
        driver.close()
        assert time.monotonic() - begin_s < 5.0  # ends at all
    assert driver.dropped >= 98


def test_an_unknown_host_is_named(monkeypatch):
    def unknown(*_):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket.socket, "connect", unknown)
    with pytest.raises(DeviceError, match="knows no address for 'cx5130'"):
        ads.check(at("cx5130"))


@pytest.mark.parametrize("place", [nothing, no_route, wrong_port, other_size])
def test_failed_attempts_leak_nothing(place):
    def descriptors():
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    def attempt():
        with pytest.raises(DeviceError):
            ads.check(site)

    with place() as site:
        attempt()
        before = descriptors(), threading.active_count(), len(list(Path("/proc/self/task").iterdir()))
        for _ in range(50):
            attempt()
        time.sleep(0.05)
        assert (descriptors(), threading.active_count(), len(list(Path("/proc/self/task").iterdir()))) <= before


def test_split_address():
    assert ads_link.split_address("10.0.0.5") == ("10.0.0.5", 48898)
    assert ads_link.split_address("cx:1234") == ("cx", 1234)


def test_check_measures_and_commands_nothing():
    plc = Plc()
    plc.status["plc_state"] = PlcState.HOLDING
    with served(plc) as site:
        report = ads.check(site, reads=50)
    assert report.reads + report.timeouts == 50
    assert 0.0 < report.median_s <= report.p99_s <= report.worst_s
    assert (report.symbol_version, report.status["plc_state"]) == (1, PlcState.HOLDING)
    assert plc.commands == []


def test_an_answer_cut_into_pieces_is_put_together_by_the_probe():
    plc = Plc()
    plc.deliver = lambda transport, answer: [transport.write(answer[i : i + 1]) for i in range(len(answer))]
    with served(plc) as site:
        ads_link.probe(site)


def test_the_probe_reads_an_error_in_the_header():
    header = struct.pack("<6sH6sHHHIII", b"", 0, b"", 0, 4, 5, 0, 0x506, 1)
    with (
        listener(lambda connection: connection.sendall(struct.pack("<HI", 0, len(header)) + header)) as address,
        pytest.raises(DeviceError, match="already in use"),
    ):
        ads_link.probe(at(address))
