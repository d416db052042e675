"""Whether control notices who looks on: viewers, a broker in trouble and a full disk, all in one run.

    python -m benchmarks.viewers [--seconds 12] [--runs 3]

Control lateness and own memory of the gateway, stretch by stretch: quiet; 20 viewers of the operator page, of which 5
never read; then, with these, the broker frozen, flooded, killed, and the disk of the recording full; quiet again. The
viewers run at the lowest priority: as a rule they sit at other computers. At the end of a run the recording is compared
with the ticks. What others on this computer do now and then shows in a run, so the verdict is that of the median over
the runs: exit code 1 if lateness (p99) of a stretch rose by more than 20 % above the worse of the quiet ones, and, in
any run, if the gateway grew by more than 64 MiB or a tick is missing. The full disk needs a tmpfs, which only root can
mount; else it is left out.
"""

import argparse
import asyncio
import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import aiohttp
import numpy as np
import psutil

from controller.errors import DeviceError, RunError
from controller.message import Message, token_path
from controller.recording import read
from controller.records import Mode
from controller.ring import RingReader
from controller.service.mailbox import send
from tests.machines import ROOT, own_site

READERS, FROZEN = 15, 5
GROWTH_MIB = 64.0
RATIO = 1.2
DISK = "600m"  # room for twenty flight recordings, too
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where a service has its ring: no disk holds it up
LOWEST = ("nice", "-n", "19")


class Stretch(NamedTuple):
    """A part of the run."""

    name: str
    begin_s: float  # monotonic
    end_s: float
    memory_mib: float


# ---------------------------------------------------------------- viewers, in a process of their own


async def look_on(url: str, token: str, readers: int, frozen_ones: int) -> None:
    """Viewers until the process ends."""
    headers = {"Authorization": f"Bearer {token}"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, connector=connector, read_bufsize=2**14) as client:

        async def reader() -> None:
            async with client.ws_connect(f"{url}/api/live?history_s=10", max_msg_size=0) as viewer:
                async for _ in viewer:
                    pass

        async def frozen() -> None:
            while True:  # put out after a while, it comes again
                with contextlib.suppress(aiohttp.ClientError):
                    response = await client.get(
                        f"{url}/api/live?history_s=120",
                        headers={
                            "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
                            "Sec-WebSocket-Key": "A" * 22 + "==",
                        },
                    )  # fmt: skip
                    response.connection.transport.pause_reading()
                    await asyncio.sleep(20.0)
                await asyncio.sleep(1.0)

        await asyncio.gather(*(reader() for _ in range(readers)), *(frozen() for _ in range(frozen_ones)))


@contextlib.contextmanager
def viewers(url: str, token: str, readers: int = READERS, frozen: int = FROZEN) -> Iterator[None]:
    """Viewers of the page in a process of their own, some of which never read."""
    line = [*LOWEST, sys.executable, "-m", "benchmarks.viewers", "--look-on", url, token, str(readers), str(frozen)]
    process = subprocess.Popen(line, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        yield
        if process.poll() is not None:
            raise RuntimeError("the viewers ended")
    finally:
        process.kill()
        process.wait()


# ---------------------------------------------------------------- trouble


@contextlib.contextmanager
def flood(port: int) -> Iterator[None]:
    """A client that sends junk requests as fast as the broker takes them."""
    code = (
        "import sys, paho.mqtt.client as paho\nc = paho.Client(paho.CallbackAPIVersion.VERSION2)\n"
        "c.max_queued_messages_set(100)\nc.connect('127.0.0.1', int(sys.argv[1]))\nc.loop_start()\n"
        "while True: c.publish('pkm/simulation/request/anna', b'x' * 20000, 1)\n"
    )
    process = subprocess.Popen([*LOWEST, sys.executable, "-c", code, str(port)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """A disk without a byte left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 65536)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A tmpfs in the place of a folder; False if there can be none."""
    folder.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder]
    done = subprocess.run(line, check=False, capture_output=True)
    try:
        yield not done.returncode
    finally:
        if not done.returncode:
            subprocess.run(["umount", "--lazy", folder], check=False)


# ---------------------------------------------------------------- the run


def pid_of(name: str, log: Path) -> int:
    found = [line for line in log.read_text().splitlines() if f"{name} started as process" in line or
             (line.find(f" {name} ") > 0 and "started again as process" in line)]  # fmt: skip
    return int(found[-1].rsplit(" ", 1)[1])


def wait_for(log: Path, words: str, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 90.0
    while words not in log.read_text():
        if process.poll() is not None or time.monotonic() > end:
            sys.exit(log.read_text())
        time.sleep(0.1)


@contextlib.contextmanager
def moving(folder: Path) -> Iterator[None]:
    """An operator who keeps the machine in motion, also after a fault of a computer that is too busy."""
    ring, ended = RingReader(folder / "simulation.ring"), threading.Event()
    at = [channel[0] for channel in ring.meta["channels"]].index("mode")
    questions = {
        Mode.FAULT: {"kind": "acknowledge"},
        Mode.OFF: {"kind": "ready"},
        Mode.READY: {"kind": "sine", "pose": {"z_m": 0.01, "pitch_rad": 0.02}, "frequency_hz": 0.5},
    }

    def operate() -> None:
        while not ended.wait(0.5):
            mode = ring.read(ring.written - 1, 1)[1][0, at]
            if mode in questions:
                with contextlib.suppress(DeviceError):
                    send(folder / "simulation.requests", Message(time.time_ns() // 1000, **questions[mode]))

    operator = threading.Thread(target=operate)
    operator.start()
    try:
        time.sleep(6.0)  # until it moves
        yield
    finally:
        ended.set()
        operator.join()


def stretches(folder: Path, seconds: float, disk: bool) -> list[Stretch]:
    log, found = folder / "log", list[Stretch]()
    gateway = psutil.Process(pid_of("gateway", log))
    told = json.loads(token_path(folder / "run" / "simulation.requests").read_text())
    site = (folder / "site.toml").read_text()
    port = int(site.partition("[mqtt]")[2].partition("port = ")[2].split()[0])

    def stretch(name: str) -> None:
        begin = time.monotonic()
        time.sleep(seconds)
        found.append(Stretch(name, begin, time.monotonic(), gateway.memory_full_info().uss / 2**20))

    stretch("quiet")
    with viewers(told["url"], told["token"]):
        time.sleep(4.0)  # they start, and get their history
        stretch(f"{READERS} viewers and {FROZEN} that never read")
        broker = pid_of("broker", log)
        os.kill(broker, signal.SIGSTOP)
        stretch("... broker frozen")
        os.kill(broker, signal.SIGCONT)
        time.sleep(2.0)
        with flood(port):
            stretch("... requests flooding over the broker")
        os.kill(broker, signal.SIGKILL)
        stretch("... broker killed")
        if disk:
            with full(folder / "recordings"):
                stretch("... disk full")
            stretch("... room again")
    time.sleep(2.0)
    stretch("quiet again")
    return found


class Run(NamedTuple):
    """What came of a run."""

    ratio: dict[str, float]  # p99 lateness beside the worse of the quiet stretches, by stretch
    grown_mib: float
    missing: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each stretch")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--look-on", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.look_on:
        url, token, readers, frozen = options.look_on
        asyncio.run(look_on(url, token, int(readers), int(frozen)))
        return 0
    runs = [one(options.seconds) for _ in range(options.runs)]
    print(f"\np99 ratio, median of {len(runs)} runs")
    typical = {name: float(np.median([run.ratio[name] for run in runs])) for name in runs[0].ratio}
    for name, ratio in typical.items():
        print(f"{name:<40} {ratio:8.2f}   ({', '.join(f'{run.ratio[name]:.2f}' for run in runs)})")
    missing, grown = sum(run.missing for run in runs), max(run.grown_mib for run in runs)
    worst = max(typical.values())
    print(f"at most {worst:.2f} (bound {RATIO}), the gateway grew by {grown:.1f} MiB, {missing} ticks missing")
    return int(missing > 0 or grown > GROWTH_MIB or worst > RATIO)


def one(seconds: float) -> Run:
    """A run of the whole system, and its table."""
    with (
        tempfile.TemporaryDirectory(prefix="pkm-viewers-", dir=MEMORY) as name,
        small_disk(Path(name) / "recordings") as disk,
    ):
        folder = Path(name)
        log, site = folder / "log", folder / "site.toml"
        site.write_text(own_site(folder))
        line = [sys.executable, "-m", "controller", "run", str(site), "--json"]
        with log.open("w") as told:
            process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=told, text=True)
        try:
            wait_for(log, "start → OFF", process)
            wait_for(log, "operator page:", process)
            with moving(folder / "run"):
                found = stretches(folder, seconds, disk)
        finally:
            process.send_signal(signal.SIGINT)
            printed, _ = process.communicate(timeout=60)
        if process.returncode not in (0, RunError.exit_code) or not printed:
            raise RuntimeError(f"the service ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        summary = json.loads(printed)
        meta, columns, rows = read(Path(summary["recording"]))
        told = [line for line in log.read_text().splitlines() if " gateway " in line and " INFO " not in line]
        print("\n".join(told[-20:]), file=sys.stderr)
        return show(found, summary, meta, dict(zip(columns, rows.T, strict=True)), disk)


def show(found: list[Stretch], summary: dict, meta: dict, column: dict[str, np.ndarray], disk: bool) -> Run:
    at_s = meta["started_monotonic_s"] + column["t_s"]
    heads = ("p50 ms", "p99 ms", "p99 ratio", "max ms", "skipped", "gateway MiB")
    print(f"{'':<40} " + " ".join(f"{head:>{max(len(head), 8)}}" for head in heads))
    inside = {part.name: (at_s >= part.begin_s) & (at_s < part.end_s) for part in found}
    late = {name: 1e3 * column["lateness_s"][rows] for name, rows in inside.items()}
    p99 = {name: float(np.quantile(values, 0.99)) for name, values in late.items()}
    quiet = max(p99[found[0].name], p99[found[-1].name])
    for part in found:
        name = part.name
        print(
            f"{name:<40} {np.median(late[name]):8.3f} {p99[name]:8.3f} {p99[name] / quiet:9.2f} "
            f"{late[name].max():8.3f} {int(np.ptp(column['skipped'][inside[name]])):8d} {part.memory_mib:11.1f}"
        )
    missing = summary["ticks"] - len(column["t_s"]) + sum(count for _, count in meta["recording"]["gaps"])
    active = int((column["mode"] == Mode.ACTIVE).sum())
    ticks, parts = len(column["t_s"]), len(meta["recording"]["parts"])
    print(f"ticks {summary['ticks']} ({active} in motion), recorded {ticks} in {parts} parts, missing {missing}")
    print(f"faults {summary['faults']}")
    if not disk:
        print("the full disk was left out: no tmpfs can be mounted here")
    grown = max(part.memory_mib for part in found) - found[0].memory_mib
    return Run({name: value / quiet for name, value in p99.items()}, grown, missing)


if __name__ == "__main__":
    sys.exit(main())
