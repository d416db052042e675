"""What comes of a service that fails, in an empty Debian with real systemd: table for docs and operators.

    sudo .venv/bin/python -m benchmarks.service_failures [CASE ...]

Needs root, debootstrap, systemd-nspawn and `make wheels`; takes some minutes. Each case fails while the machine follows
a sine. Times count from the failure, on the clock of the virtual cell, which runs outside of the container on its wire:

    PLC acts     it calls the host late, holds the axes, and soon stops them for good
    axes stand   below 2 mm/s until the service is back; they slow down 5 ms after a set-point is missing
    back after   the service ticks again
    mode         the first that it has then; of one that goes on, the last
    –            it did not come to it
    recorded     rows in the recording of the session that failed, of those in the ring

The row "nothing" is what the computer itself does to the control process, for comparison: where it is not ACTIVE at the
end, the other rows say little. A case that is named several times is done as often.
"""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from controller.recording import read
from controller.records import Mode
from controller.ring import RingReader
from controller.service.realtime import CELL_BELOW, priority_of_thread
from controller.settings import load_site
from drivers.exchange import PlcState
from drivers.fitting import fit
from drivers.virtual import cell
from drivers.virtual.plant import Plant
from drivers.virtual.plc_program import STANDSTILL_M_S, PlcTwin
from tests.deploy.debian import Debian, booted, missing, release, site
from tests.machines import ROOT

CONTROL, GATEWAY = "pkm-control@test", "pkm-gateway@test"
SITE = "/etc/pkm/sites/test.toml"
RING = "run/pkm/simulation.ring"
RECORDINGS = "var/lib/pkm/recordings"
PATIENCE_S = 90.0
FAST_M_S = 0.03
WATCH_S = 3.0  # of a failure that restarts nothing
SHORT_S = 10.0  # without new memory
STOPPED = (PlcState.LATE, PlcState.QUICK_STOP, PlcState.OFF)


class Row(NamedTuple):
    """What came of one failure; NaN where it did not come to it."""

    what: str
    acts_ms: float
    stand_ms: float
    back_s: float
    mode: str
    recorded: str
    told: str


# ---------------------------------------------------------------- the virtual cell, with an eye on the axes


def watched_cell(path: Path, seen: Path) -> None:
    """Run the virtual cell of a site; append time (s, monotonic), PLC state and fastest axis (m/s) of each cycle."""
    files = load_site(path)
    assert files.site.virtual_cell
    plant = Plant(files.machine, files.site.virtual_cell)
    priority_of_thread(files.site.realtime.priority - CELL_BELOW)  # as `pkm plant` does
    with seen.open("wb", buffering=0) as file:

        class Eye(cell.Journal):
            def line(self, twin: PlcTwin) -> str:
                file.write(np.array([time.monotonic(), twin.state, np.abs(plant.velocity_m_s).max()]).tobytes())
                return super().line(twin)

        cell.Journal = Eye  # type: ignore[misc]
        asyncio.run(cell.serve(files, fit(files), plant))


class Axes:
    """What the virtual cell saw."""

    def __init__(self, seen: Path) -> None:
        self._seen = seen

    def since(self, begin_s: float, end_s: float = np.inf) -> np.ndarray:
        """Rows of time after `begin_s` (s), state, speed."""
        data = self._seen.read_bytes()
        rows = np.frombuffer(data[: len(data) // 24 * 24]).reshape(-1, 3)
        return rows[(rows[:, 0] >= begin_s) & (rows[:, 0] < end_s)] - [begin_s, 0.0, 0.0]

    def fast(self) -> bool:
        """Whether the axes move at half of what the sine asks of them, or more."""
        return bool(self.since(time.monotonic() - 0.05)[:, 2].max(initial=0.0) > FAST_M_S)

    def stopped_ms(self, begin_s: float, end_s: float) -> tuple[float, float]:
        """When the PLC acted, and since when all axes stood until the end."""
        rows = self.since(begin_s, end_s)
        acted = np.flatnonzero(np.isin(rows[:, 1], STOPPED))
        if not len(acted):
            return np.nan, np.nan
        moved = np.flatnonzero(rows[:, 2] > STANDSTILL_M_S)
        rest = int(moved[-1]) + 1 if len(moved) else 0
        return 1e3 * rows[acted[0], 0], 1e3 * rows[rest, 0] if rest < len(rows) else np.nan


@contextlib.contextmanager
def running_cell(debian: Debian, folder: Path) -> Iterator[Axes]:
    path, seen, log = folder / "cell.toml", folder / "seen", folder / "cell.log"
    path.write_text(site().replace('"../', f'"{ROOT}/config/').replace("/run/pkm/", f"{folder}/"))
    line = [*debian.network, sys.executable, "-m", "benchmarks.service_failures", "--cell", str(path), str(seen)]
    with log.open("w") as file:
        process = subprocess.Popen(line, cwd=ROOT, stderr=file)
    try:
        wait(lambda: seen.exists() and seen.stat().st_size > 0, log)
        yield Axes(seen)
    finally:
        process.terminate()
        process.wait()


# ---------------------------------------------------------------- the service


class Service:
    """Control and gateway in the container."""

    def __init__(self, debian: Debian) -> None:
        self.debian = debian
        self.pid = ""
        self.ring: RingReader

    def request(self, *words: str) -> str:
        return self.debian.run(
            "runuser", "-u", "pkm", "--", "pkm", "request", *words, "--site", SITE, "--yes", code=None
        )

    def start(self) -> None:
        """Both services, and the machine in motion."""
        self.debian.run("systemctl", "reset-failed", code=None)
        self.debian.run("systemctl", "start", GATEWAY, CONTROL)
        self.pid = self.debian.property(CONTROL, "MainPID")
        # the unit asks for it; a guest that may not raise limits is given it from outside
        self.debian.run("chrt", "--fifo", "--pid", "50", self.pid)
        self.ring = RingReader(self.debian.root / RING)
        wait(self._moves)
        time.sleep(1.0)

    def _moves(self) -> bool:
        told = ""
        match self.mode():
            case Mode.FAULT.name:
                told = self.request("acknowledge")
            case Mode.OFF.name:
                told = self.request("ready")
            case Mode.READY.name:
                told = self.request("sine", "z_m=0.02", "--frequency-hz", "0.5")
            case Mode.ACTIVE.name:
                return True
            case _:
                pass
        time.sleep(0.3)
        if told and "ACCEPTED" not in told:
            print(told.strip(), file=sys.stderr)
        return False

    def mode(self, ring: RingReader | None = None) -> str:
        ring = ring or self.ring
        names = [channel[0] for channel in ring.meta["channels"]]
        _, rows = ring.read(max(ring.written - 1, 0), 1)
        return Mode(int(rows[0, names.index("mode")])).name if len(rows) else ""

    def back(self, begin_s: float) -> tuple[float, str]:
        """When another process ticks, s since `begin_s`, and in which mode."""
        found: list[RingReader] = []

        def ticks() -> bool:
            with contextlib.suppress(OSError, ValueError):
                ring = RingReader(self.debian.root / RING)
                if ring.meta["session"] != self.ring.meta["session"] and ring.written:
                    found.append(ring)
                    return True
                ring.close()
            return False

        wait(ticks)
        names = [channel[0] for channel in found[0].meta["channels"]]
        _, rows = found[0].read(0, 1)
        first_s = found[0].meta["started_monotonic_s"] + rows[0, names.index("t_s")]
        return first_s - begin_s, Mode(int(rows[0, names.index("mode")])).name

    def recorded(self) -> str:
        """Rows of the session in its recording, of those in the ring."""
        session, written = self.ring.meta["session"], self.ring.written
        rows = 0

        def all_there() -> bool:
            nonlocal rows
            for path in (self.debian.root / RECORDINGS).glob(f"*{session}*.mcap"):
                if ".part" not in path.name:
                    with contextlib.suppress(Exception):  # it is still written
                        rows = len(read(path)[2])
            return rows >= written

        with contextlib.suppress(TimeoutError):
            wait(all_there, seconds=8.0)
        return f"{rows} of {written}"

    def journal(self, pattern: str, unit: str = CONTROL) -> str:
        """The last line of the journal that is like this."""
        lines = self.debian.run("journalctl", "-b", "-u", unit, "-o", "cat").splitlines()
        return next((line for line in reversed(lines) if re.search(pattern, line)), "")


def wait(what: Callable[[], bool], log: Path | None = None, seconds: float = PATIENCE_S) -> None:
    end_s = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end_s:
            raise TimeoutError(log.read_text() if log else "it did not come to it")
        time.sleep(0.02)


# ---------------------------------------------------------------- the cases


def restarted(service: Service, axes: Axes, what: str, harm: Callable[[int], object]) -> Row:
    """A failure after which systemd starts the control process again."""
    service.start()
    pid = service.debian.outside(service.pid)
    wait(axes.fast)
    begin_s = time.monotonic()
    harm(pid)
    back_s, mode = service.back(begin_s)
    acts_ms, stand_ms = axes.stopped_ms(begin_s, begin_s + back_s)
    told = service.journal(r"Failed with result|Main process exited")
    return Row(what, acts_ms, stand_ms, back_s, mode, service.recorded(), told.partition(": ")[2])


def killed(service: Service, axes: Axes) -> Row:
    return restarted(service, axes, "control killed (-9)", lambda pid: os.kill(pid, signal.SIGKILL))


def hung(service: Service, axes: Axes) -> Row:
    def harm(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2.0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return restarted(service, axes, "control hung (SIGSTOP, 2 s)", harm)


def out_of_memory(service: Service, axes: Axes) -> Row:
    """The operating system gives no more memory than the process has. Killed by the kernel it is as with -9."""
    what = f"control gets no more memory, {SHORT_S:.0f} s"
    service.start()
    pid = service.debian.outside(service.pid)
    size = re.search(r"VmSize:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert size
    begin_s, most = time.monotonic(), 1024 * int(size[1])
    limit = ["prlimit", f"--as={most}", "--pid", service.pid]
    service.debian.run("runuser", "-u", "pkm", "--", *limit)  # its own user may take away what root of a guest may not
    time.sleep(SHORT_S)
    if service.debian.property(CONTROL, "MainPID") == service.pid:
        mode, back_s = service.mode(), np.nan
        service.debian.run("systemctl", "stop", CONTROL)
    else:
        back_s, mode = service.back(begin_s)
    acts_ms, stand_ms = axes.stopped_ms(begin_s, begin_s + (SHORT_S if np.isnan(back_s) else back_s))
    told = "goes on" if np.isnan(back_s) else service.journal("Failed with result").partition(": ")[2]
    return Row(what, acts_ms, stand_ms, back_s, mode, service.recorded(), told)


def gateway_killed(service: Service, axes: Axes) -> Row:
    service.start()
    begin_s = time.monotonic()
    service.debian.run("systemctl", "kill", "--signal", "KILL", GATEWAY)
    service.debian.wait_for(f"test $(systemctl show -P NRestarts {GATEWAY}) -gt 0")
    service.debian.wait(GATEWAY, "running")
    back_s = time.monotonic() - begin_s
    told = service.journal(r"Failed with result", GATEWAY).partition(": ")[2]
    return _watched(service, axes, "gateway killed (-9)", begin_s, back_s, told)


def undisturbed(service: Service, axes: Axes) -> Row:
    """Nothing fails: what this computer does to the control process by itself."""
    service.start()
    begin_s = time.monotonic()
    time.sleep(2.0)  # as long as a gateway takes to come back
    return _watched(service, axes, "nothing", begin_s, np.nan, "")


def _watched(service: Service, axes: Axes, what: str, begin_s: float, back_s: float, told: str) -> Row:
    """What came of something that must not touch the control process, with how late that was meanwhile."""
    time.sleep(WATCH_S)
    end_s, mode = time.monotonic(), service.mode()
    service.debian.run("systemctl", "stop", CONTROL)
    acts_ms, stand_ms = axes.stopped_ms(begin_s, end_s)
    names = [channel[0] for channel in service.ring.meta["channels"]]
    _, rows = service.ring.read(0, service.ring.capacity)
    at_s = rows[:, names.index("t_s")] + service.ring.meta["started_monotonic_s"]
    rows = rows[(at_s >= begin_s) & (at_s < end_s)]
    late_s, age_s = (rows[:, names.index(name)].max(initial=0.0) for name in ("lateness_s", "age_s"))
    told = f"{told} Ticks up to {1e3 * late_s:.0f} ms late, status up to {1e3 * age_s:.0f} ms old."
    if mode != Mode.ACTIVE.name:
        told += " Control: " + service.journal(f"ACTIVE → |→ {mode}: ").partition("control ")[2]
    return Row(what, acts_ms, stand_ms, back_s, mode, service.recorded(), told.strip())


def disk_full(service: Service, axes: Axes) -> Row:
    folder = f"/{RECORDINGS}"
    service.debian.run("systemctl", "stop", GATEWAY, CONTROL)
    service.debian.sh(f"mount -t tmpfs -o size=24M,uid=pkm,gid=pkm none {folder}")
    try:
        service.start()
        begin_s = time.monotonic()
        service.debian.sh(f"cat /dev/zero >{folder}/full 2>/dev/null || true")
        wait(lambda: bool(service.journal("recording stopped", GATEWAY)))
        time.sleep(WATCH_S)
        mode = service.mode()
        acts_ms, stand_ms = axes.stopped_ms(begin_s, begin_s + WATCH_S)
        service.debian.run("systemctl", "stop", CONTROL)
        told = service.journal("recording stopped", GATEWAY).partition("recording stopped: ")[2]
        return Row("disk full", acts_ms, stand_ms, np.nan, mode, service.recorded(), f"recording stopped: {told}")
    finally:
        service.debian.sh(f"systemctl stop {GATEWAY} {CONTROL}; umount {folder}")


def no_priority(service: Service, axes: Axes) -> Row:
    """A site without a virtual cell in its file, that is of hardware, on a computer that grants no priority."""
    del axes  # nothing moves
    service.debian.run("systemctl", "stop", CONTROL)
    service.debian.write("/etc/pkm/sites/real.toml", site().split("[virtual_cell]", maxsplit=1)[0])
    service.debian.run("systemctl", "start", "pkm-control@real", code=None)
    wait(lambda: bool(service.journal("not fit to move", "pkm-control@real")))
    service.debian.run("systemctl", "stop", "pkm-control@real")
    told = service.journal("not fit to move", "pkm-control@real").partition("machine: ")[2]
    names = ", ".join(re.findall(r"(?:^|; )(\w+): ", told))
    return Row("no priority, no locked memory", np.nan, np.nan, np.nan, "refused", "none", f"not fit: {names}")


CASES = (killed, hung, out_of_memory, gateway_killed, undisturbed, disk_full, no_priority)


def show(rows: list[Row], out: IO[str]) -> None:
    heads = ("what", "PLC acts ms", "axes stand ms", "back after s", "mode", "recorded", "told")
    table = [heads]
    for row in rows:
        numbers = ("–" if np.isnan(value) else f"{value:.0f}" for value in (row.acts_ms, row.stand_ms))
        back = "–" if np.isnan(row.back_s) else f"{row.back_s:.1f}"
        table.append((row.what, *numbers, back, row.mode, row.recorded, row.told))
    widths = [max(len(line[k]) for line in table) for k in range(len(heads))]
    for line in table:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip(), file=out)


def main() -> None:
    if sys.argv[1:2] == ["--cell"]:
        watched_cell(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    if why := missing():
        sys.exit(why)
    cases = {case.__name__: case for case in CASES}
    asked = [cases[name] for name in sys.argv[1:]] or CASES  # a name may stand there several times
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="pkm-bench-", dir="/dev/shm") as name:
        folder = Path(name)
        with booted((release(folder / "release"), "/release")) as debian:
            debian.run("/release/deploy/install/install.sh", "--wheels", "/release/wheels")
            debian.write(SITE, site())
            with running_cell(debian, folder) as axes:
                for case in asked:
                    try:
                        rows.append(case(Service(debian), axes))
                    except (TimeoutError, AssertionError) as error:  # the other cases are worth their time
                        rows.append(Row(case.__name__, np.nan, np.nan, np.nan, "", "", f"not measured: {error}"[:200]))
                    print(rows[-1], file=sys.stderr, flush=True)
                debian.run("systemctl", "stop", CONTROL, GATEWAY)
    show(rows, sys.stdout)


if __name__ == "__main__":
    main()
