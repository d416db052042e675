"""Whether anything grows: a PLC that is away for long, failed opens, drivers started and stopped again and again.

    python -m benchmarks.endurance [--real-time] [--opens 500] [--starts 10000]

Resident memory, file descriptors, threads and sockets (ports) of this process, after a warm-up and at the end; all
devices live in other processes. Exit code 1 when something grew, or when a link did not come back by itself. The pauses
and time-outs of the ADS driver are divided by FACTOR where it waits for a PLC that is not there, so that as many
attempts as in 20 minutes happen in one; not with --real-time.
"""

import argparse
import asyncio
import ctypes
import functools
import gc
import itertools
import logging
import math
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol
from unittest import mock

import numpy as np
import psutil

from benchmarks import exchange, lines
from controller.schema import Ads, RtuLine, TcpLine
from drivers import ads, ads_link
from drivers.exchange import COMMAND
from drivers.modbus import ModbusLine, Unit
from drivers.serial_line import SerialSensor
from drivers.virtual.ams import Command

FACTOR = 20.0
AWAY_S = 1200.0
SETTLE_S = 5.0  # for threads that are still on their way out, and an attempt under way
GROWTH_KIB = 100.0  # a 1000 attempts that count as noise of the allocator ...
SLACK_KIB = 768.0  # ... and this much, however few they were: an arena of another thread, a table that doubled
PATIENCE_S = 10.0
NET_IDS = (f"127.0.0.1.41.{k}" for k in itertools.count(1))


# ---------------------------------------------------------------- what may grow


class Level(NamedTuple):
    """What this process holds."""

    memory_kib: float
    descriptors: int
    threads: int
    sockets: int


def level() -> Level:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    process = psutil.Process()
    sockets = len(process.net_connections("inet"))
    return Level(process.memory_info().rss / 1024.0, process.num_fds(), process.num_threads(), sockets)


def settled(early: Level) -> Level:
    """The level once what is on its way out has gone, or SETTLE_S later."""
    end_s = time.monotonic() + SETTLE_S
    while True:
        late = level()
        if all(now <= then for now, then in zip(late[1:], early[1:], strict=True)) or time.monotonic() > end_s:
            return late
        time.sleep(0.05)


def grew(early: Level, late: Level, attempts: int) -> list[str]:
    """The names of what grew."""
    limits = [max(SLACK_KIB, GROWTH_KIB * attempts / 1000.0), 0, 0, 0]
    rises = [now - then for now, then in zip(late, early, strict=True)]
    return [name for name, rise, limit in zip(Level._fields, rises, limits, strict=True) if rise > limit]


def repeat(attempt: Callable[[], None], attempts: int, warm_up: int) -> tuple[Level, Level]:
    """Levels after the warm-up and after the attempts that follow it."""
    for _ in range(warm_up):
        attempt()
    early = level()
    early = settled(early)
    for _ in range(attempts):
        attempt()
    return early, settled(early)


def show(name: str, early: Level, late: Level, attempts: int, note: str = "") -> bool:
    """Print a row; whether something grew."""
    rises = " ".join(f"{1000.0 * (now - then) / attempts:9.1f}" for now, then in zip(late, early, strict=True))
    bad = grew(early, late, attempts)
    verdict = "GREW: " + ", ".join(bad) if bad else "ok"
    print(
        f"{name:<38} {attempts:6d} {early.memory_kib:9.0f} {late.memory_kib:9.0f} {rises}  {verdict}{note}", flush=True
    )
    return bool(bad)


# ---------------------------------------------------------------- a PLC that is not there


@contextmanager
def shortened(factor: float) -> Iterator[None]:
    """The driver's pauses and time-outs, divided."""
    with ExitStack() as stack:
        for module, names in (
            (ads_link, ("PROBE_S", "HANDSHAKE_S")),
            (ads, ("FIRST_PAUSE_S", "LONGEST_PAUSE_S", "STABLE_S")),
        ):
            shorter = {name: getattr(module, name) / factor for name in names}
            stack.enter_context(mock.patch.multiple(module, **shorter))
        yield


@contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """How many attempts to connect were made."""
    with mock.patch.object(ads_link, "_connect", wraps=ads_link._connect) as connect:
        yield lambda: connect.call_count


@contextmanager
def nothing(port: int) -> Iterator[None]:
    yield


@contextmanager
def black_hole(port: int) -> Iterator[None]:
    """A full backlog: the kernel drops what comes, as an unplugged cable does."""
    with socket.create_server(("127.0.0.1", port), backlog=0) as server:
        clients = [socket.socket() for _ in range(4)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        try:
            yield
        finally:
            for client in clients:
                client.close()


def hang_up(transport: asyncio.Transport, answer: bytes) -> None:
    """No route on the CX5130: it accepts and closes."""
    transport.abort()


def only_state(transport: asyncio.Transport, answer: bytes) -> None:
    """Answers the question for the ADS state, then goes away."""
    if struct.unpack_from("<H", answer, 22)[0] == Command.READ_STATE:
        transport.write(answer)
    else:
        transport.abort()


def until(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end_s:
            sys.exit(f"{what}: not within {PATIENCE_S:.0f} s")
        time.sleep(1e-3)


def away(place: Callable[[int], object], seconds: float) -> tuple[Level, Level, int, int]:
    """A PLC with a link goes away and comes back; levels and attempts meanwhile, and reconnects."""
    net_id = next(NET_IDS)
    with counted() as attempts:
        with exchange.served(net_id) as (site,):
            driver = ads.AdsDriver(site, 6, exchange.PERIOD_S)
            driver.open()
            ticks = itertools.count(1)
            until(lambda: driver.is_up, "link")
        port = ads_link.split_address(site.address)[1]

        def run(for_s: float, done: Callable[[], bool] = lambda: False) -> None:
            """The control loop goes on, whether there is a PLC or not."""
            end_s = time.monotonic() + for_s
            while time.monotonic() < end_s and not done():
                tick = next(ticks)
                driver.read(tick, time.monotonic(), 0.0)
                driver.write(exchange.command(tick))
                time.sleep(exchange.PERIOD_S)

        with place(port):  # type: ignore[attr-defined]
            run(0.1 * seconds)
            early, before = level(), attempts()
            run(0.9 * seconds)
            tried = attempts() - before
            late = settled(early)  # between two attempts
        with exchange.served(net_id, port=port):
            run(PATIENCE_S, lambda: driver.is_up)
            done = driver.reading.exchanges
            run(PATIENCE_S, lambda: driver.reading.exchanges > done)
            reconnects = driver.reading.reconnects
            driver.close()
    return early, late, tried, reconnects


@contextmanager
def refusing(reason: str) -> Iterator[Ads]:
    """A site with a PLC to which no link comes about, for this reason."""
    net_id = next(NET_IDS)
    if reason in ("nothing listens", "black hole"):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with (nothing if reason == "nothing listens" else black_hole)(port):
            yield Ads(ams_net_id=net_id, address=f"127.0.0.1:{port}")
        return
    deliver = {"accept, then close": hang_up, "gone after the first answer": only_state}.get(reason)
    size = COMMAND.itemsize + 8 * (reason == "wrong size")
    serve = functools.partial(exchange.served, net_id, command_size=size)
    with serve(deliver=deliver) if deliver else serve() as (site,):
        ams_port = exchange.AMS_PORT + (reason == "wrong AMS port")
        yield Ads(ams_net_id=net_id, ams_port=ams_port, address=site.address)


REASONS = {  # and a part of the sentence that proves it
    "nothing listens": "nothing listens",
    "accept, then close": "closes it at once",
    "black hole": "does not react at all",
    "wrong AMS port": "no AMS port",
    "wrong size": "of different releases",
    "gone after the first answer": "does not answer ADS requests",  # AdsLib calls it a timeout
}


def failed_opens(reason: str, opens: int, factor: float) -> tuple[Level, Level]:
    """Levels around so many opens that fail for one reason; what waits for nothing is shortened."""
    with shortened(factor if reason == "black hole" else 1.0), refusing(reason) as site:

        def attempt() -> None:
            try:
                ads.check(site)
            except ads_link.LinkError as failure:
                assert REASONS[reason] in str(failure), failure
            else:
                sys.exit(f"{reason}: the open did not fail")

        return repeat(attempt, opens, warm_up=max(opens // 10, 10))


# ---------------------------------------------------------------- start and stop


class Driver(Protocol):
    def open(self) -> None: ...
    def close(self) -> None: ...


def starts(make: Callable[[], tuple[Driver, Callable[[], bool]]], count: int) -> tuple[Level, Level]:
    """Levels around so many starts and stops; half of them at a random moment before the first value."""
    dice = np.random.default_rng(1)

    def attempt() -> None:
        driver, ready = make()
        driver.open()
        if dice.random() < 0.5:
            until(ready, "first value")
        else:
            time.sleep(dice.uniform(0.0, 3e-3))
        driver.close()

    return repeat(attempt, count, warm_up=max(count // 10, 10))


@contextmanager
def startable(kind: str, folder: Path) -> Iterator[Callable[[], tuple[Driver, Callable[[], bool]]]]:
    """A device, and how to make a driver for it together with the question whether it has a value."""
    if kind == "ads":
        with exchange.served(next(NET_IDS)) as (site,):

            def make() -> tuple[Driver, Callable[[], bool]]:
                driver = ads.AdsDriver(site, 6, exchange.PERIOD_S)
                return driver, lambda: driver.is_up

            yield make
        return
    path = folder / f"usb-{kind}"
    with lines.served(kind, path, math.inf, 1, time.monotonic()) as port:
        line = TcpLine(host="127.0.0.1", port=port) if kind == "tcp" else RtuLine(path=str(path))
        profile = lines.load(lines.DEVICES / "dscusb.toml")

        def make() -> tuple[Driver, Callable[[], bool]]:
            if kind == "conditioner":
                sensor = SerialSensor(str(path), profile)  # type: ignore[arg-type]
                return sensor, lambda: math.isfinite(sensor.read("value").value)
            driver = ModbusLine(line, {"a": Unit(1, lines.CLOCK)}, exchange.PERIOD_S)
            return driver, lambda: math.isfinite(driver.read("a", "clock").value)

        yield make


DRIVERS = {"ads": "AdsDriver", "tcp": "ModbusLine TCP", "rtu": "ModbusLine RTU", "conditioner": "SerialSensor"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance")
    parser.add_argument("--real-time", action="store_true", help="the driver's own pauses; 40 minutes longer")
    parser.add_argument("--opens", type=int, default=500, help="failed opens for each reason")
    parser.add_argument("--starts", type=int, default=10000, help="starts and stops of drivers, in total")
    wanted = parser.parse_args()
    logging.disable(logging.WARNING)  # thousands of links that come and go
    factor = 1.0 if wanted.real_time else FACTOR
    print(f"pauses and time-outs of the ADS driver divided by {factor:g}")
    heads = " ".join(f"{name:>9}" for name in ("KiB", "files", "threads", "sockets"))
    print(f"{'':<38} {'':>6} {'KiB early':>9} {'KiB late':>9} growth per 1000 attempts of")
    print(f"{'':<38} {'tries':>6} {'':>9} {'':>9} {heads}")
    bad = False
    for name, place in (("nothing listens", nothing), ("black hole", black_hole)):
        with shortened(factor):
            early, late, tried, reconnects = away(place, AWAY_S / factor)
        what = f"PLC away {AWAY_S / factor:.0f} s, {name}"
        bad |= show(what, early, late, tried, f", reconnects {reconnects}") or reconnects != 1
    for reason in REASONS:
        growth = failed_opens(reason, wanted.opens, factor)
        bad |= show(f"failed opens, {reason}", *growth, wanted.opens)
    with tempfile.TemporaryDirectory(prefix="pkm-bench-") as folder:
        for kind, name in DRIVERS.items():
            with startable(kind, Path(folder)) as make:
                count = wanted.starts // len(DRIVERS)
                bad |= show(f"start and stop, {name}", *starts(make, count), count)
    print("something grew, or did not come back" if bad else "nothing grew")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
