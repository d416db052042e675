"""The real ADS driver against every fault of network, router and PLC that the virtual CX5130 can play.

The PLC here counts its cycles and fills every field of the status with a number made of the cycle and the field: a
status put together from two answers, or shifted, contradicts itself. Every field of a command is made of its sequence
number in the same way, and the PLC keeps all commands it has executed.
"""

import asyncio
import itertools
import math
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest

from controller.records import AxisMode, Command, Link
from controller.schema import Ads
from drivers import ads, ads_link
from drivers.exchange import COMMAND, LAYOUT_VERSION, STATUS, SYMBOL_COMMAND, SYMBOL_STATUS
from drivers.virtual import ams
from drivers.virtual.network import Network
from tests.machines import ROOT

NET_IDS = (f"127.0.0.1.31.{n}" for n in itertools.count(1))
TIMEOUT_S = 0.04  # client and server share one interpreter here
PATIENCE_S = 20.0
HICCUP_S = 4.0  # far more than one answer may take, less than the 5 s of a library's default timeout
CLOSE_S = 2.0  # close() promises 1 s; the machine may be busy
PLC_CYCLE_S = 0.002
PERIOD_S = 0.005
HEADER = ("size", "version", "seq_echo", "plc_cycle")


def fill(status, cycle):
    status["plc_cycle"] = cycle
    for k, name in enumerate(name for name in STATUS.names if name not in HEADER):
        status[name] = cycle % 100_000 * 64 + k


def contradictions(status):
    expected = np.zeros(1, STATUS)
    fill(expected, int(status["plc_cycle"]))
    return [name for name in STATUS.names if name not in HEADER and (expected[name][0] != status[name]).any()]


class Cell:
    """A PLC with its server and network in a thread of their own, and the driver under test."""

    def __init__(self):
        self.executed, self.cycles_s = [], []  # commands; monotonic time at the end of each PLC cycle
        self.cycle = 0
        self.device = ams.Device(next(NET_IDS), 851, self.symbols())
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.server = ams.Server(self.device)
        self.network = Network(self.server, seed=1)
        host, port = self.run(self.server.open("127.0.0.1", 0))
        self.task = asyncio.run_coroutine_threadsafe(self.count(), self.loop)
        self.site = Ads(ams_net_id=self.device.net_id, address=f"{host}:{port}", timeout_s=TIMEOUT_S)
        self.driver = ads.AdsDriver(self.site, 6, PERIOD_S)
        self.seq = 0
        self.readings, self.messages, self.links = [], set(), set()

    def symbols(self):
        command = ams.Symbol(SYMBOL_COMMAND, "ST_PkmCommand", bytearray(COMMAND.itemsize), on_write=self.take)
        status = ams.Symbol(SYMBOL_STATUS, "ST_PkmStatus", bytearray(STATUS.itemsize))
        self.status = np.frombuffer(status.data, STATUS)
        self.status["size"], self.status["version"] = STATUS.itemsize, LAYOUT_VERSION
        fill(self.status[0], self.cycle)
        return [command, status]

    def take(self, data):
        self.executed.append(np.frombuffer(data, COMMAND)[0])
        self.status["seq_echo"] = self.executed[-1]["seq"]

    async def count(self):
        while True:
            await asyncio.sleep(PLC_CYCLE_S)
            self.cycle += 1
            fill(self.status[0], self.cycle)
            self.cycles_s.append((self.cycle, time.monotonic()))

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10.0)

    def do(self, act: Callable[["Cell"], object]):
        """In the event loop, as a catalogue of faults would."""

        async def acting():
            done = act(self)
            if isinstance(done, Awaitable):
                await done

        self.run(acting())

    def step(self):
        """One tick of the host."""
        sample = self.driver.read(self.seq, time.monotonic(), 0.0)
        reading = self.driver.reading
        if reading.status is not None and (not self.readings or reading.stamp_s != self.readings[-1].stamp_s):
            self.readings.append(reading)
        self.messages.add(reading.message)
        self.links.add(sample.link)
        self.seq += 1
        value = np.full(6, float(self.seq))
        self.driver.write(Command(self.seq, AxisMode.HOLD, value, value + 0.25, value + 0.5))
        time.sleep(PERIOD_S)

    def until(self, condition, seconds=PATIENCE_S):
        end_s = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end_s, f"it never happened; seen: {self.messages}"
            self.step()

    def exchanges(self, count, seconds=PATIENCE_S):
        wanted = self.driver.reading.exchanges + count
        self.until(lambda: self.driver.reading.exchanges >= wanted, seconds)

    def healthy(self):
        """Up, and the newest commands arrive."""
        before = self.seq
        self.until(lambda: self.driver.is_up and self.driver.reading.link is Link.UP)
        self.until(lambda: self.driver.read(0, time.monotonic(), 0.0).seq_echo > before)
        self.exchanges(3)

    def close(self):
        begin_s = time.monotonic()
        self.driver.close()
        took_s = time.monotonic() - begin_s
        self.run(self.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
        return took_s

    async def stop(self):
        await self.network.power_off()
        self.task.cancel()
        await asyncio.sleep(0)


@pytest.fixture
def cell():
    cell = Cell()
    cell.driver.open()
    try:
        yield cell
    finally:
        assert cell.close() < CLOSE_S


# ---------------------------------------------------------------- the table


def network(**faults):
    """Set these faults of the network."""
    return lambda cell: [setattr(cell.network, name, value) for name, value in faults.items()]


def refuse(what, error, requests=math.inf):
    return lambda cell: cell.device.refuse(what, error, requests)


def admit(what):
    return refuse(what, 0, 0)


def state(value):
    return lambda cell: setattr(cell.device, "state", value)


def version(value):
    return lambda cell: cell.status.__setitem__("version", value)


def online_change(cell):
    cell.neighbour = ams.Symbol("GVL_Other.stNew", "ST_Other", bytearray(COMMAND.itemsize))
    cell.old = cell.device.symbols[0]
    cell.old_data = bytes(cell.old.data)
    cell.device.online_change([cell.neighbour, *cell.symbols()])


def online_change_of_size(cell):
    status = ams.Symbol(SYMBOL_STATUS, "ST_PkmStatus", bytearray(STATUS.itemsize + 8))
    cell.device.online_change([cell.device.symbols[0], status])


def restart(cell):
    cell.cycle = 0
    fill(cell.status[0], 0)


def second_client(cell):
    with socket.create_connection(cell.server.address, timeout=5.0):
        cell.until(lambda: cell.driver.reading.reconnects >= 1)


def both(*acts):
    return lambda cell: [act(cell) for act in acts]


WRITES, READS = frozenset({ams.Command.WRITE}), frozenset({ams.Command.READ})
KEPT, LATE, LOST = "kept", "late", "lost"  # what becomes of the link
ALL, HANDLE, READ, WRITE = ams.Refusable
INF = math.inf


class Case(NamedTuple):
    on: Callable[[Cell], object]
    off: Callable[[Cell], object]
    link: str
    sentence: str = ""
    fresh: bool = True  # a status is never older than the time stamp that it gets


CASES = {
    "latency and jitter": Case(
        network(latency_s=0.002, jitter_s=0.006), network(latency_s=0.0, jitter_s=0.0), KEPT,
    ),
    "jitter beyond the timeout": Case(network(jitter_s=3 * TIMEOUT_S), network(jitter_s=0.0), LATE),
    "every third answer lost": Case(network(lose_every=3), network(lose_every=0), LATE),
    "three answers lost": Case(network(lost_answers=3), network(), LATE),
    "all answers lost": Case(network(lost_answers=INF), network(lost_answers=0), LOST, "times in a row"),
    "answers to writes lost": Case(
        network(commands=WRITES, lost_answers=INF), network(lost_answers=0, commands=frozenset()), LOST, "in a row",
    ),
    "answers to writes late": Case(
        network(commands=WRITES, late_answers=4, late_s=2 * TIMEOUT_S), network(commands=frozenset()), LATE
    ),
    "answers to reads late": Case(
        network(commands=READS, late_answers=4, late_s=2 * TIMEOUT_S), network(commands=frozenset()), LATE
    ),
    "reset before execution": Case(network(cut_requests=1), network(), LOST, "broke"),
    "reset after execution": Case(network(cut_answers=1), network(), LOST, "broke"),
    "reset at once": Case(lambda cell: cell.network.cut(), network(), LOST, "broke"),
    "reset again and again": Case(network(cut_answers=2), network(), LOST, "closes it at once"),
    "no route": Case(
        both(network(closed_connections=INF), lambda cell: cell.network.cut()), network(closed_connections=0), LOST,
        "no ADS route",
    ),
    "silent": Case(network(ignored_requests=INF), network(ignored_requests=0), LOST, "does not answer ADS requests"),
    "unplugged": Case(
        lambda cell: cell.network.unplug(), lambda cell: cell.network.plug_in(), LOST, "does not react at all",
    ),
    "router off": Case(
        lambda cell: cell.network.power_off(), lambda cell: cell.network.power_on(), LOST, "nothing listens",
    ),
    "a second client of this host": Case(lambda cell: None, second_client, KEPT),
    "no AMS port": Case(refuse(ALL, 6), admit(ALL), LOST, "no AMS port 851"),
    "another AMS NetId": Case(refuse(ALL, 7), admit(ALL), LOST, "ads.ams_net_id is wrong"),
    "size of the status refused": Case(refuse(READ, 0x705), admit(READ), LOST, f"the size of {SYMBOL_STATUS}"),
    "status unknown": Case(refuse(READ, 0x710), admit(READ), LOST, f"no variable {SYMBOL_STATUS}"),
    "old handle of the status": Case(refuse(READ, 0x711, 1), network(), LOST, "the PLC program was changed"),
    "status denied": Case(refuse(READ, 0x723), admit(READ), LOST, f"denies access to {SYMBOL_STATUS}"),
    "size of the command refused": Case(refuse(WRITE, 0x705), admit(WRITE), LOST, f"the size of {SYMBOL_COMMAND}"),
    "command unknown": Case(refuse(WRITE, 0x710), admit(WRITE), LOST, f"no variable {SYMBOL_COMMAND}"),
    "old handle of the command": Case(refuse(WRITE, 0x711, 1), network(), LOST, "the PLC program was changed"),
    "command denied": Case(refuse(WRITE, 0x723), admit(WRITE), LOST, f"denies access to {SYMBOL_COMMAND}"),
    "an error code nobody knows": Case(refuse(READ, 0x7FE), admit(READ), LOST, "with ADS error 2046"),
    "no handles": Case(
        both(refuse(HANDLE, 0x710), lambda cell: cell.network.cut()), admit(HANDLE), LOST, "no variable",
    ),
    "online change": Case(online_change, network(), LOST, "the PLC program was changed"),
    "online change of the status": Case(
        online_change_of_size, lambda cell: cell.device.online_change(cell.symbols()), LOST, "bytes in the PLC and",
    ),
    "layout of another release": Case(version(LAYOUT_VERSION + 1), version(LAYOUT_VERSION), LOST, "layout version"),
    "PLC program started again": Case(restart, network(), LOST, "went back"),
    "STOP": Case(state(ams.AdsState.STOP), state(ams.AdsState.RUN), LOST, "is in STOP, not in RUN"),
    "CONFIG": Case(state(ams.AdsState.CONFIG), state(ams.AdsState.RUN), LOST, "is in CONFIG, not in RUN"),
    "EXCEPTION": Case(state(ams.AdsState.EXCEPTION), state(ams.AdsState.RUN), LOST, "is in EXCEPTION, not in RUN"),
    "byte by byte": Case(network(piece_bytes=1), network(piece_bytes=0), KEPT),
    "in pieces over time": Case(
        network(piece_bytes=50, piece_pause_s=0.001), network(piece_bytes=0, piece_pause_s=0.0), KEPT,
    ),
    "the last piece after the timeout": Case(
        network(piece_bytes=300, piece_pause_s=1.5 * TIMEOUT_S), network(piece_bytes=0, piece_pause_s=0.0), LOST,
        "in a row",  # AdsLib has lost the stream
    ),
    "two answers together": Case(network(gather=2), network(gather=1), LATE),
    "too much data": Case(network(long_answers=1), network(), LOST, "refuses the size of"),
    "too little data": Case(network(commands=READS, short_answers=1), network(commands=frozenset()), LOST, "unusable"),
    "no data at all": Case(network(commands=WRITES, short_answers=1), network(commands=frozenset()), LATE),
    "wrong invoke id": Case(network(wrong_ids=3), network(), LATE),
    "only wrong invoke ids": Case(network(wrong_ids=INF), network(wrong_ids=0), LOST, "in a row"),
    "wrong invoke id, late": Case(
        network(wrong_ids=INF, latency_s=0.03), network(wrong_ids=0, latency_s=0.0), LOST, "",
    ),
    "data of an earlier answer": Case(
        network(stale_answers=INF), network(stale_answers=0), LOST, "refuses the size of", fresh=False,
    ),
    "an earlier answer once more": Case(network(repeated_answers=INF), network(repeated_answers=0), KEPT),
    "garbage instead of an answer": Case(network(garbled_answers=1), network(), LOST, "in a row"),
    "garbage before an answer": Case(network(noisy_answers=1), network(), LOST, "in a row"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_link_survives(cell, case):
    cell.healthy()
    cell.messages.clear()
    cell.links.clear()
    reconnects, timeouts = cell.driver.reading.reconnects, cell.driver.reading.timeouts

    cell.do(case.on)
    if case.link == LOST:
        cell.until(lambda: any(case.sentence in message for message in cell.messages) and Link.DOWN in cell.links)
    elif case.link == LATE:
        cell.until(lambda: cell.driver.reading.timeouts > timeouts)  # LATE may last less than a tick
    else:
        cell.exchanges(15)
    if case.off is second_client:
        case.off(cell)
    else:
        cell.do(case.off)
    cell.healthy()
    if case.link != LOST and case.off is not second_client:
        assert cell.driver.reading.reconnects == reconnects

    # A second hiccup, right after the link is back.
    cell.do(network(lost_answers=1))
    timeouts = cell.driver.reading.timeouts
    cell.until(lambda: cell.driver.reading.timeouts > timeouts, HICCUP_S)
    cell.exchanges(3, HICCUP_S)

    assert not [found for reading in cell.readings if (found := contradictions(reading.status))]
    if case.fresh and case.on is not restart:
        assert not [reading for reading in cell.readings if older_than_its_stamp(cell, reading)]
    seqs = [int(command["seq"]) for command in cell.executed]
    assert seqs == sorted(set(seqs))  # none twice, none after a newer one
    for command in cell.executed:
        whole = {float(command["seq"])}
        assert {*command["position_m"]} == {*(command["velocity_m_s"] - 0.25)} == {*(command["force_n"] - 0.5)} == whole
    if case.on is online_change:
        assert bytes(cell.old.data) == cell.old_data
        assert not any(cell.neighbour.data)


def older_than_its_stamp(cell, reading):
    """Whether the PLC had finished a later cycle already when that status was asked for."""
    return any(
        cycle > int(reading.status["plc_cycle"]) and at_s < reading.stamp_s for cycle, at_s in cell.cycles_s[-20_000:]
    )


# ---------------------------------------------------------------- closing at any moment


@pytest.mark.parametrize("wait_s", [0.0, 0.1])
@pytest.mark.parametrize(
    "fault",
    [
        network(),
        network(latency_s=0.2),
        network(ignored_requests=INF),
        lambda cell: cell.network.unplug(),
    ],
    ids=["none", "latency", "silent", "unplugged"],
)
def test_close_returns_at_any_moment(fault, wait_s):
    cell = Cell()
    if wait_s:  # the fault meets a link that is up, or one that begins
        cell.driver.open()
        cell.healthy()
        cell.do(fault)
    else:
        cell.do(fault)
        cell.driver.open()
    end_s = time.monotonic() + wait_s
    cell.until(lambda: time.monotonic() >= end_s)
    assert cell.close() < CLOSE_S


# ---------------------------------------------------------------- the call that never returns


def meet_a_hang():
    """An answer breaks off behind its header: AdsLib then holds the calling thread for ever, and the process too."""
    cell = Cell()
    cell.driver.open()
    cell.healthy()
    assert not cell.driver.hung
    cell.do(network(truncated_answers=1))
    cell.until(lambda: cell.driver.hung)
    assert cell.driver.read(0, time.monotonic(), 0.0).link is Link.DOWN
    assert not cell.driver.is_up
    assert "must be started again" in cell.driver.message
    assert not [found for reading in cell.readings if (found := contradictions(reading.status))]
    assert cell.close() < CLOSE_S
    assert cell.driver.hung
    assert ads_link.hanging()
    os._exit(0)  # any other end would never come


def close_amid_an_answer():
    """The answer comes byte by byte, and the connection ends before its last byte: a hang or none, as it happens."""
    cell = Cell()
    cell.driver.open()
    cell.healthy()
    cell.do(network(piece_bytes=1, piece_pause_s=0.002))
    end_s = time.monotonic() + 0.1
    cell.until(lambda: time.monotonic() >= end_s)
    assert cell.close() < CLOSE_S
    ads_link.hanging()  # returns
    os._exit(0)


def connect_to_torn_answers():
    """The handshake hangs: a check then ends with a sentence like any other."""
    cell = Cell()
    cell.do(network(commands=READS, truncated_answers=INF))
    with pytest.raises(ads_link.LinkError, match="must be started again"):
        ads.check(cell.site)
    assert ads_link.hanging()
    os._exit(0)


@pytest.mark.parametrize(
    "play", [meet_a_hang, close_amid_an_answer, connect_to_torn_answers], ids=lambda play: play.__name__
)
def test_a_call_that_never_returns_is_noticed_and_the_process_can_end(play):
    line = [sys.executable, "-c", f"from {play.__module__} import {play.__name__}; {play.__name__}()"]
    done = subprocess.run(line, cwd=ROOT, timeout=60.0, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_hangs_while_calls_return(cell):
    cell.healthy()
    cell.do(network(lost_answers=INF))  # each call takes its whole timeout
    cell.until(lambda: cell.driver.reading.timeouts > 3)
    assert not cell.driver.hung
    assert not ads_link.hanging()


# ---------------------------------------------------------------- the network by itself


def test_without_a_fault_the_network_changes_nothing(cell):
    cell.healthy()
    cell.exchanges(50)
    assert cell.driver.reading.reconnects == 0
    assert not [reading for reading in cell.readings if contradictions(reading.status)]


def test_a_counted_fault_ends_by_itself_and_counts_only_the_commands_meant(cell):
    cell.healthy()
    cell.do(network(commands=READS, lost_answers=2))
    cell.until(lambda: cell.network.lost_answers == 0)
    cell.exchanges(5)
    assert cell.network.lost_answers == 0


def test_garbage_is_the_same_for_the_same_seed():
    def sent(seed):
        server = ams.Server(ams.Device(next(NET_IDS), 851, []))
        network = Network(server, seed=seed, garbled_answers=INF)
        transport = mock.Mock(asyncio.Transport, is_closing=lambda: False)
        loop = mock.Mock(time=lambda: 0.0)
        with mock.patch("asyncio.get_running_loop", return_value=loop):
            server.deliver(transport, bytes(60))
        assert network.garbled_answers == INF
        return transport.write.call_args.args[0]

    assert len(sent(3)) == 60
    assert sent(3) == sent(3) != sent(4)


async def test_a_pulled_cable_keeps_what_was_sent_and_lets_nobody_in():
    device = ams.Device("5.1.2.3.1.1", 851, [])
    server = ams.Server(device)
    network = Network(server)
    address = await server.open("127.0.0.1", 0)
    request = struct.pack(
        "<HI6sH6sHHHIII", 0, 32, device.net_id_bytes, 851, bytes(6), 1, ams.Command.READ_STATE, 4, 0, 0, 1
    )
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    assert len(await asyncio.wait_for(reader.readexactly(46), 10.0)) == 46
    network.unplug()
    writer.write(request)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.open_connection(*address), 0.1)
    await network.plug_in()
    assert len(await asyncio.wait_for(reader.readexactly(46), 10.0)) == 46
    writer.close()
    await network.power_off()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)
    await network.power_on()
    assert server.address == address
    _, writer = await asyncio.open_connection(*address)
    writer.close()
    await server.close()
