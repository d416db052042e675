"""Recordings that broke off: what is lost and whether `pkm runs recover` says so; and what recording costs.

    python -m benchmarks.recording [--cases 200] [--seed 1]     exit code 1 if more than a second is lost or a code lies
    python -m benchmarks.recording --cost                       time a sample, CPU and memory of the gateway

Of the cases a tenth are gateways killed (SIGKILL) that record a ring at 100 Hz, once they have caught up with it, a
fifth processes killed in the middle of writing as fast as they can, and the rest files cut at a random byte, every
third with rubbish behind the cut. Lost is what had been handed over, up to the kill or the cut, and is not in the
recovered recording. After a killed gateway the next one has to find in the ring what is not in the file.
"""

import argparse
import contextlib
import io
import json
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import psutil
from mcap.reader import make_reader
from mcap.writer import CompressionType, Writer

from benchmarks.viewers import viewers
from controller.commands.runs import recover_all
from controller.gateway.events import events
from controller.gateway.mqtt.publisher import Publisher
from controller.gateway.recording.keeper import Keeper
from controller.gateway.recording.recorder import Recorder, recording_path
from controller.gateway.recording.shelf import listing
from controller.message import token_path
from controller.recording import CDR_HEADER, glance, read
from controller.records import Array, Channel, Quality, channels
from controller.ring import RingReader, RingWriter
from tests.gateway.bench import COLUMNS, ROOT, make_meta, make_rows, make_site, start_broker, start_gateway, stop

TARGET_S = 1.0
RATE_HZ = 100.0
WRITTEN_ROWS = 3000
PATIENCE_S = 60.0
WARM_S = 3.0


class Case(NamedTuple):
    """One recording that broke off."""

    how: str
    at: int  # byte of the cut, or row of the kill
    handed: int  # rows
    recovered: int
    lost_s: float
    code: int  # of `pkm runs recover`
    right: bool  # the code is true, the rows are those handed over bit for bit, and strict readers take every part


# ---------------------------------------------------------------- broken off


def break_off(folder: Path, cases: int, seed: int) -> Iterator[Case]:
    """The cases, one after the other."""
    rng = np.random.default_rng(seed)
    gateways, writers = -(-cases // 10), -(-cases // 5)
    for k in range(gateways):
        yield killed_gateway(folder / f"gateway{k}", rng)
    for k in range(writers):
        yield killed_writer(folder / f"writer{k}", rng)
    yield from cut(folder / "cut", cases - gateways - writers, rng)


def judged(how: str, at: int, path: Path, handed: int, rows: Callable[[int], Array], rate_hz: float) -> Case:
    """Recover a recording and compare it with the rows handed to the recorder."""
    said = io.StringIO()
    code = recover_all([path], said)
    recovered, right = 0, code == 2
    if code != 2:
        meta, _, back = read(path)
        recovered = len(back)
        complete = not meta["recording"]["gaps"]
        right = back.tobytes() == rows(recovered).tobytes() and code == (0 if complete else 1)
        right &= f" {recovered} rows, " in said.getvalue()
        for part in meta["recording"]["parts"]:
            with Path(part).open("rb") as file:
                right &= sum(1 for _ in make_reader(file, validate_crcs=True).iter_messages("tick")) > 0
    right &= recovered > 0 or code == 2
    return Case(how, at, handed, recovered, (handed - recovered) / rate_hz, code, right)


def killed_gateway(folder: Path, rng: np.random.Generator) -> Case:
    """A real gateway, killed somewhere in its first seconds of recording; then another goes on."""
    folder.mkdir(parents=True)
    site, meta, rows = make_site(folder), make_meta(), make_rows(4000)
    ring = RingWriter(Path(site.ring.path), len(COLUMNS), 12_000, meta)
    path, gateway = recording_path(site, meta), start_gateway(site)
    due_s = time.monotonic()
    end_s, kill_s = due_s + PATIENCE_S, float("inf")
    while time.monotonic() < min(kill_s, end_s):
        ring.push(rows[ring.written % len(rows)])
        if kill_s == float("inf") and path.exists() and glance(path).rows > ring.written - RATE_HZ:
            kill_s = time.monotonic() + rng.uniform(0.1, 3.0)
        due_s += 1.0 / RATE_HZ
        time.sleep(max(0.0, due_s - time.monotonic()))
    handed = ring.written
    gateway.send_signal(signal.SIGKILL)
    stop(gateway)

    def expected(count: int) -> Array:
        return np.resize(rows, (count, rows.shape[1]))

    case = judged("gateway killed", handed, path, handed, expected, RATE_HZ)
    keeper = Keeper(site, RingReader(Path(site.ring.path)))
    keeper.open()
    keeper.close()
    ring.close()
    return case._replace(right=case.right and read(path)[2].tobytes() == expected(handed).tobytes())


WRITER = """
import sys, pathlib, numpy
from controller.gateway.recording.recorder import Recorder
from tests.gateway.bench import make_meta, make_rows, make_site
folder, rows = pathlib.Path(sys.argv[1]), make_rows(int(sys.argv[2]))
count, made = numpy.memmap(folder / "count", numpy.int64, "r+", shape=1), Recorder(make_site(folder), make_meta())
for k in range(len(rows)):
    made.append(k, rows[k : k + 1])
    count[0] = k + 1
made.close()
"""


def killed_writer(folder: Path, rng: np.random.Generator) -> Case:
    """A process that records as fast as it can, killed at a random row."""
    folder.mkdir(parents=True)
    count = np.memmap(folder / "count", np.int64, "w+", shape=1)
    target = int(rng.integers(1, WRITTEN_ROWS))
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(folder), str(WRITTEN_ROWS)], cwd=ROOT)
    while count[0] < target and child.poll() is None:
        time.sleep(0.0)
    child.send_signal(signal.SIGKILL)
    child.wait()
    handed = int(count[0])
    path = recording_path(make_site(folder), make_meta())
    return judged("writer killed", handed, path, handed, make_rows, RATE_HZ)


def cut(folder: Path, cases: int, rng: np.random.Generator) -> Iterator[Case]:
    """A finished recording, cut at random bytes."""
    rows, made = make_rows(WRITTEN_ROWS), Recorder(make_site(folder), make_meta())
    sizes = []  # of the file when a row had been handed over
    for k in range(len(rows)):
        made.append(k, rows[k : k + 1])
        sizes.append(made.part.stat().st_size)
    made.close()
    whole = made.path.read_bytes()
    for k in range(cases):
        at = int(rng.integers(0, len(whole)))
        path = folder / str(k) / made.path.name
        path.parent.mkdir()
        path.write_bytes(whole[:at] + (rng.bytes(int(rng.integers(1, 5000))) if k % 3 == 0 else b""))
        handed = int(np.searchsorted(sizes, at, "right"))  # a larger file came with the next row
        yield judged("cut", at, path, handed, lambda count: rows[:count], RATE_HZ)


def report(cases: list[Case]) -> int:
    """Print the table; the exit code."""
    print(f"{'broken off':<16}{'cases':>6}{'nothing left':>14}{'lost s median':>15}{'max':>8}{'all true':>10}")
    for how in dict.fromkeys(case.how for case in cases):
        some = [case for case in cases if case.how == how]
        lost = [case.lost_s for case in some]
        print(
            f"{how:<16}{len(some):>6}{sum(case.code == 2 for case in some):>14}{np.median(lost):>15.3f}"
            f"{max(lost):>8.3f}{'yes' if all(case.right for case in some) else 'NO':>10}"
        )
    for case in cases:
        if not case.right or case.lost_s > TARGET_S:
            print(f"  {case}")
    good = all(case.right and case.lost_s <= TARGET_S for case in cases)
    most_s = max(case.lost_s for case in cases)
    print(f"{len(cases)} cases, at most {most_s:.3f} s lost: {'reached' if good else 'MISSED'}")
    return 0 if good else 1


# ---------------------------------------------------------------- cost


def each_us(work: Callable[[int], object], count: int, repeats: int = 5) -> float:
    """Least CPU time of one call, called with 0, 1, …: others on this computer do not count."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        for k in range(count):
            work(k)
        best = min(best, time.process_time() - start)
    return 1e6 * best / count


def cost(folder: Path) -> None:
    """The tables of what a sample costs."""
    rows = make_rows(4000)
    width = rows.shape[1]
    lines = [*_ring_costs(folder, rows), *_recording_costs(folder, rows), *_publishing_costs(folder, rows)]
    print(f"a sample of {width} channels, {8 * width} bytes; CPU time, best of several\n")
    print(f"{'':<52}{'µs':>8}{'of its floor':>14}")
    for name, us, floor in lines:
        print(f"{name:<52}{us:>8.2f}" + (f"{us / floor:>13.1f}×" if floor else f"{'floor':>14}"))
    print(f"\n{'gateway, all channels recorded and published':<52}{'CPU %':>8}{'own MiB':>10}{'after':>8}{'lost':>6}")
    for rate_hz, pages in ((100.0, 0), (100.0, 1), (1000.0, 0), (1000.0, 1)):
        percent, early, late, lost = gateway_cost(folder / f"{rate_hz:.0f}-{pages}", rate_hz, pages)
        name = f"{rate_hz:.0f} Hz{', looked on by a page' if pages else ''}"
        print(f"{name:<52}{percent:>8.1f}{early:>10.0f}{late:>8.0f}{lost:>6}")


Line = tuple[str, float, float]


def _ring_costs(folder: Path, rows: Array) -> list[Line]:
    ring = RingWriter(folder / "ring", rows.shape[1], 4000, make_meta())
    target, pack = np.empty((4000, rows.shape[1])), struct.Struct(f"<{rows.shape[1]}d")
    packed, values = bytearray(pack.size), [row.tolist() for row in rows]
    copied = each_us(lambda k: target.__setitem__(k, rows[k]), 4000)
    try:
        return [
            ("copy of a row (NumPy)", copied, 0.0),
            ("struct.pack of a row", each_us(lambda k: pack.pack_into(packed, 0, *values[k]), 4000), copied),
            ("ring: push", each_us(lambda k: ring.push(rows[k]), 4000), copied),
        ]
    finally:
        ring.close()


def _recording_costs(folder: Path, rows: Array) -> list[Line]:
    data = [CDR_HEADER + row.tobytes() for row in rows]
    names = (folder / f"bare{k}.mcap" for k in range(100))

    def bare(compression: CompressionType) -> float:
        def all_rows(_: int) -> None:
            with next(names).open("wb") as file:
                writer = Writer(file, 64 * 1024, compression)
                writer.start()
                channel = writer.register_channel("tick", "cdr", writer.register_schema("x", "ros2msg", b""))
                for k, message in enumerate(data):
                    writer.add_message(channel, k, message, k, k)
                writer.finish()

        return each_us(all_rows, 1, 3) / len(rows)

    made = Recorder(make_site(folder), make_meta())
    step = 2

    def append(k: int) -> None:
        at = step * (k % (len(rows) // step))
        made.append(made.next_index, rows[at : at + step])

    floor = bare(CompressionType.ZSTD)
    lines = [
        ("mcap writer alone, zstd", floor, 0.0),
        ("mcap writer alone, no compression", bare(CompressionType.NONE), floor),
        ("recorder: append, two rows at a time", each_us(append, len(rows) // step, 3) / step, floor),
    ]
    made.close()
    if fast := _foxglove(folder, data):
        lines.append(("foxglove-sdk writer alone, zstd", fast, floor))
    return lines


def _foxglove(folder: Path, data: list[bytes]) -> float:
    """The writer of foxglove-sdk, where it is installed; 0 otherwise."""
    try:
        import foxglove
        from foxglove import Channel as Topic
        from foxglove import Schema
    except ImportError:
        return 0.0
    topic = Topic("/tick", schema=Schema(name="x", encoding="ros2msg", data=b""), message_encoding="cdr")
    best = float("inf")
    for k in range(3):
        start = time.process_time()
        with foxglove.open_mcap(str(folder / f"foxglove{k}.mcap"), allow_overwrite=True):
            for t_ns, message in enumerate(data):
                topic.log(message, log_time=t_ns)
        best = min(best, time.process_time() - start)
    return 1e6 * best / len(data)


def _publishing_costs(folder: Path, rows: Array) -> list[Line]:
    meta = make_meta()
    ring = RingWriter(folder / "ring2", rows.shape[1], 4000, meta)
    publisher = Publisher(make_site(folder), RingReader(folder / "ring2"))
    plain = [row.tolist() for row in rows]
    named = [dict(zip(COLUMNS, row, strict=True)) for row in plain]
    floor = each_us(lambda k: msgspec.json.encode(named[k]), len(rows))
    size = 20

    def batch(k: int) -> None:
        at = size * (k % (len(rows) // size))
        msgspec.json.encode(publisher._samples(at, rows[at : at + size]))

    busy = [row.copy() for row in rows]  # sensors of any quality, another one every row
    rows[:, [k for k, name in enumerate(COLUMNS) if name.endswith("_quality")]] = Quality.GOOD
    quiet = [row.copy() for row in rows]
    started = float(meta["started_unix_s"])
    try:
        return [
            ("msgspec alone, JSON of numbers", each_us(lambda k: msgspec.json.encode(plain[k]), len(rows)), floor),
            ("msgspec alone, JSON of a sample with names", floor, 0.0),
            (f"MQTT: a batch of {size} encoded, a sample", each_us(batch, len(rows) // size) / size, floor),
            *(
                (
                    f"events: two rows compared, {what}",
                    each_us(lambda k, of=of: events(of[k - 1], of[k], COLUMNS, started_unix_s=started), len(rows)),
                    floor,
                )
                for what, of in (("nothing happened", quiet), ("sensors flicker", busy))
            ),
        ]
    finally:
        ring.close()


def all_channels() -> list[Channel]:
    """Every channel that a machine with six legs can have."""
    names = [f"{kind}_{i}" for kind in ("cell", "head_pressure", "rod_pressure") for i in range(1, 7)]
    return channels(6, [*names, "tilt_x", "tilt_y"], stream=True)


def gateway_cost(folder: Path, rate_hz: float, pages: int, seconds: float = 12.0) -> tuple[float, ...]:
    """CPU (%) of a real gateway with a broker and pages, its memory (MiB) at first and at last, and rows lost."""
    folder.mkdir(parents=True)
    table = all_channels()
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(2000, len(table)))
    names = [channel.name for channel in table]
    for name in ("link", "mode", "faults", "limits", "answer_id", "verdict", "request_kind", "skipped"):
        rows[:, names.index(name)] = {"link": 2.0, "mode": 2.0}.get(name, 0.0)
    rows[:, [k for k, name in enumerate(names) if name.endswith("_quality")]] = 3.0
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    broker = start_broker(port, folder)
    site, meta = make_site(folder, port), make_meta(table=table) | {"rate_hz": rate_hz}
    ring = RingWriter(Path(site.ring.path), len(table), round(60 * rate_hz), meta)
    gateway = start_gateway(site)
    ending = threading.Event()
    times = names.index("t_s")

    def feed() -> None:
        begin_s, row = time.monotonic(), np.empty(len(table))
        while not ending.is_set():
            while ring.written < (time.monotonic() - begin_s) * rate_hz:
                row[:] = rows[ring.written % len(rows)]
                row[times] = ring.written / rate_hz
                ring.push(row)
            time.sleep(0.005)

    feeder = threading.Thread(target=feed)
    feeder.start()
    looking = contextlib.ExitStack()
    try:
        end_s = time.monotonic() + PATIENCE_S
        while not recording_path(site, meta).exists() and time.monotonic() < end_s:
            time.sleep(0.05)
        if pages:
            told = json.loads(token_path(Path(site.requests.path)).read_text())
            looking.enter_context(viewers(told["url"], told["token"], pages, 0))
        time.sleep(WARM_S)
        process = psutil.Process(gateway.pid)
        early, before, start_s = _own_bytes(process), process.cpu_times(), time.monotonic()
        time.sleep(seconds)
        late, after, wall_s = _own_bytes(process), process.cpu_times(), time.monotonic() - start_s
    finally:
        looking.close()
        ending.set()
        feeder.join()
        ring.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        gateway.wait(30)
    stop(gateway)
    stop(broker)
    [recorded] = listing(Path(site.recording.folder))
    used_s = after.user + after.system - before.user - before.system
    return 100.0 * used_s / wall_s, early / 2**20, late / 2**20, ring.written - recorded.rows


def _own_bytes(process: psutil.Process) -> int:
    """Memory without what is shared: pages of the ring that were read count as resident, too."""
    memory = process.memory_info()
    return memory.rss - memory.shared


# ---------------------------------------------------------------- command


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cost", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.cost:
            cost(Path(folder))
            return 0
        cases = []
        for case in break_off(Path(folder), options.cases, options.seed):
            cases.append(case)
            print(f"\r{len(cases)} of {options.cases}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return report(cases)


if __name__ == "__main__":
    sys.exit(main())
