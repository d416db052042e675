"""One exchange with the PLC through the ADS driver beside bare pyads, in the same run.

    python -m benchmarks.exchange [EXCHANGES]

An exchange writes the command block and reads the status block, both by handle; the driver's figure is its own
`exchange_s`. What that leaves out, the way of a command to the driver's thread, is in the rows "until the write is
answered". Driver and pyads have a device each (a second connection to one would take it from the first) on AMS servers
in one process, and take turns: ratios hold where microseconds do not.
"""

import asyncio
import ctypes
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

import numpy as np
import pyads

from controller.records import AxisMode, Command
from controller.schema import Ads
from drivers.ads import AdsDriver
from drivers.exchange import COMMAND, LAYOUT_VERSION, STATUS, SYMBOL_COMMAND, SYMBOL_STATUS
from drivers.virtual import ams

AMS_PORT = 851
PERIOD_S = 0.01
WARM_UP = 200
POLL_S = 1e-4  # how often the end of an exchange is looked for
TIMEOUT_S = 0.2  # a late answer is to be measured, not to end the link
LINE = 1.3  # the driver's median in medians of bare pyads that shall not be exceeded
VALUE_BY_HANDLE = 0xF005


class _CommandBytes(ctypes.Structure):
    _fields_ = [("data", ctypes.c_ubyte * COMMAND.itemsize)]


class _StatusBytes(ctypes.Structure):
    _fields_ = [("data", ctypes.c_ubyte * STATUS.itemsize)]


def device(net_id: str, command_size: int = COMMAND.itemsize) -> ams.Device:
    """A PLC that takes the command block and echoes its sequence number in the status block."""
    status = ams.Symbol(SYMBOL_STATUS, "ST_PkmStatus", bytearray(STATUS.itemsize))
    fields = np.frombuffer(status.data, STATUS)
    fields["size"], fields["version"] = STATUS.itemsize, LAYOUT_VERSION

    def take(data: bytes) -> None:
        fields["seq_echo"] = np.frombuffer(data, COMMAND)["seq"]

    command = ams.Symbol(SYMBOL_COMMAND, "ST_PkmCommand", bytearray(command_size), on_write=take)
    return ams.Device(net_id, AMS_PORT, [command, status])


def serve(net_ids: Sequence[str], command_size: int, deliver: ams.Deliver, port: int, bound: Connection) -> None:
    """Serve a device for each NetId at a TCP port of its own, for ever; the first at `port`, 0 for a free one."""

    async def run() -> None:
        servers = [ams.Server(device(net_id, command_size), deliver) for net_id in net_ids]
        bound.send([(await server.open("127.0.0.1", port if k == 0 else 0))[1] for k, server in enumerate(servers)])
        await asyncio.Event().wait()

    asyncio.run(run())


@contextmanager
def served(
    *net_ids: str, command_size: int = COMMAND.itemsize, deliver: ams.Deliver = ams.at_once, port: int = 0
) -> Iterator[list[Ads]]:
    """AMS servers in one process of their own; gives the site table to reach each device."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(net_ids, command_size, deliver, port, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield [
            Ads(ams_net_id=net_id, ams_port=AMS_PORT, address=f"127.0.0.1:{found}", timeout_s=TIMEOUT_S)
            for net_id, found in zip(net_ids, ours.recv(), strict=True)
        ]
    finally:
        process.terminate()
        process.join()
        ours.close()


Durations = list[tuple[float, float]]  # of exchanges: the whole, until the write is answered, s


def command(seq: int) -> Command:
    return Command(seq, AxisMode.FOLLOW, np.full(6, 0.9), np.full(6, 0.1), np.full(6, 50.0))


class Bare:
    """The same two requests as a program would make them that has nothing but pyads."""

    def __init__(self, ads: Ads) -> None:
        self._plc = pyads.Connection(ads.ams_net_id, ads.ams_port, ads.address)
        self._plc.open()
        self._handles = [self._plc.get_handle(name) for name in (SYMBOL_COMMAND, SYMBOL_STATUS)]
        self._command = _CommandBytes()

    def exchange(self) -> tuple[float, float]:
        """Durations of the whole and of the write, s."""
        begin_s = time.monotonic()
        self._plc.write(VALUE_BY_HANDLE, self._handles[0], self._command, _CommandBytes)
        written_s = time.monotonic()
        self._plc.read(VALUE_BY_HANDLE, self._handles[1], _StatusBytes, return_ctypes=True)
        return time.monotonic() - begin_s, written_s - begin_s

    def close(self) -> None:
        self._plc.close()


def measure(driver: AdsDriver, bare: Bare, exchanges: int, period_s: float) -> tuple[Durations, Durations]:
    """The driver at the ticks, pyads half-way between them; with a period of 0 one after the other, both from rest."""
    driven: Durations = []
    alone: Durations = []
    start_s = time.monotonic()
    for tick in range(1, exchanges + 1):
        time.sleep(max(start_s + tick * period_s - time.monotonic(), POLL_S))
        before = driver.reading.exchanges
        driver.read(tick, time.monotonic(), start_s)
        begin_s = time.monotonic()
        driver.write(command(tick))
        time.sleep(max(period_s / 2, POLL_S))
        while driver.reading.exchanges == before:  # the longest must not be left out
            time.sleep(POLL_S)
        driven.append((driver.exchange_s, driver.reading.stamp_s - begin_s))
        alone.append(bare.exchange())
    return driven, alone


def show(driven: Durations, alone: Durations, name: str) -> float:
    """Print two rows for the whole and two for the write; the ratio of the medians of the whole."""
    ratios: list[float] = []
    for column, what in enumerate(("exchange", "until the write is answered")):
        floors = np.quantile([times[column] for times in alone], (0.5, 0.99))
        for who, rows in (("pyads", alone), ("driver", driven)):
            figures = np.quantile([times[column] for times in rows], (0.5, 0.99))
            text = " ".join(f"{1e6 * value:8.0f}" for value in figures)
            ratio = " ".join(f"{value:8.2f}" for value in figures / floors)
            print(f"{f'{name}, {what}, {who}':<50} {len(rows):6d} {text}   {ratio}", flush=True)
            ratios.append(figures[0] / floors[0])
    return ratios[1]


def main() -> None:
    exchanges = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    print(f"{'duration, µs, and ratio to bare pyads':<50} {'count':>6} {'p50':>8} {'p99':>8}   {'p50':>8} {'p99':>8}")
    ratios: list[float] = []
    with served("127.0.0.1.40.1", "127.0.0.1.40.2") as (ours, theirs):
        bare, driver = Bare(theirs), AdsDriver(ours, 6, PERIOD_S)
        driver.open()
        while not driver.is_up:
            time.sleep(0.01)
        for name, period_s in (("at 100 Hz", PERIOD_S), ("back to back", 0.0)):
            measure(driver, bare, WARM_UP, period_s)
            ratios.append(show(*measure(driver, bare, exchanges, period_s), name))
        reading = driver.reading
        driver.close()
        bare.close()
    print(f"late answers {reading.timeouts}, reconnects {reading.reconnects}")
    print(f"medians of the driver's exchange up to {LINE} of pyads': {'met' if max(ratios) <= LINE else 'missed'}")


if __name__ == "__main__":
    main()
