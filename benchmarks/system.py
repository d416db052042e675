"""Systems for benchmarks: `pkm run` with its own ports and folders, and a world in one process on a stepped clock."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from controller.cycle import cycle
from controller.mechanism import layout
from controller.mechanism.platform import rotation_matrix
from controller.motion.trajectory import FREE
from controller.recording import read
from controller.records import Array, Command, Link, Output, Request, RequestKind, Sample, Verdict
from controller.service.mailbox import NOTHING
from controller.settings import load_site
from controller.state import Setup, initial_state, prepare
from drivers.exchange import COMMAND, LAYOUT_VERSION, STATUS, DriveStatus, PlcState
from drivers.virtual.cx5130 import Cx5130
from drivers.virtual.plant import Plant
from tests.machines import ROOT, own_site

SITES = {
    name: ROOT / "config" / "sites" / f"simulation{'' if name == '6-upru' else '-' + name}.toml"
    for name in ("6-upru", "6-ups", "6-uhu", "3-ups-s", "2-upr-2-rpu")
}
PATIENCE_TICKS = 2000


class Run(NamedTuple):
    """What a run left behind."""

    summary: dict[str, Any]
    columns: dict[str, np.ndarray]  # of the recording, by channel


def run(
    seconds: float,
    change: Callable[[str], str] = lambda site: site,
    beside: Callable[[subprocess.Popen[str], Path], None] = lambda process, log: None,
    also: tuple[int, ...] = (),
) -> Run:
    """Run the demo; `change` edits the site file's text, `beside` is called while it runs, with its log.

    `also` are exit codes that are no end of all, besides 0.
    """
    with tempfile.TemporaryDirectory(prefix="pkm-bench-") as name:
        folder = Path(name)
        site, log = folder / "site.toml", folder / "log"
        site.write_text(change(own_site(folder)))
        line = [sys.executable, "-m", "controller", "run", str(site), "--demo", "--json", "--duration", str(seconds)]
        with log.open("w") as file, subprocess.Popen(line, stdout=subprocess.PIPE, stderr=file, text=True) as process:
            beside(process, log)
            printed, _ = process.communicate(timeout=seconds + 90)
        if process.returncode not in (0, *also):
            sys.exit(f"the run ended with exit code {process.returncode}:\n{log.read_text()}")
        summary = json.loads(printed)
        _, names, rows = read(Path(summary["recording"]))
        return Run(summary, {column: rows[:, k] for k, column in enumerate(names)})


def until_in_motion(log: Path) -> None:
    """Wait until a run's log says that the demo moves."""
    while "READY → ACTIVE" not in log.read_text():
        time.sleep(0.05)


class World:
    """Controller and virtual cell of a machine without sockets and clocks: the same run every time.

    The order is that of the real loop: a tick takes the status that was read right after the command of the tick
    before (decision 0009), and the PLC plays a set-point one host period after it came. So at the end of a tick the
    plant should be where the reference of that tick is. Sensors are left out: no control law here uses them.
    """

    def __init__(
        self,
        machine: str,
        control: dict[str, Any] | None = None,
        cell: dict[str, Any] | None = None,
        tables: dict[str, Any] | None = None,
    ) -> None:
        """Take the simulation site of a machine; `control` and `cell` replace keys of these tables, `tables` others."""
        files = load_site(SITES[machine])
        site = files.site
        assert site.virtual_cell is not None
        self.cell = replace(site.virtual_cell, **(cell or {}))
        site = replace(site, sensors={}, devices={}, control=replace(site.control, **(control or {})), **(tables or {}))
        self.machine = files.machine
        self.setup = prepare(files.machine, site)
        self.plant = Plant(files.machine, self.cell)
        self.cx = Cx5130(site.ads, files.machine, self.plant, self.cell.plc_cycle_s, self.cell.hydraulics, site.homing)
        self.state = initial_state(self.setup)
        self.tick = 0
        self.broken: Callable[[Sample], Sample] = lambda sample: sample  # what a fault makes of a sample
        self.watch: Callable[[], None] = lambda: None  # called after every PLC cycle
        self._cycles = round(self.setup.period_s / self.cell.plc_cycle_s)
        command, status = self.cx.device.symbols
        self._command, self._status = np.frombuffer(command.data, COMMAND), np.frombuffer(status.data, STATUS)
        self.read = self._status[0].copy()  # what the host knows

    def step(self, request: Request = NOTHING) -> Output:
        """One tick of both."""
        self.tick += 1
        self.state, output = cycle(self.setup, self.state, self.broken(self._sample()), request)
        self._write(output.command)
        self.read = self._status[0].copy()
        self._play()
        return output

    def silent(self) -> None:
        """One tick without the host."""
        self.tick += 1
        self._play()

    def ask(self, kind: RequestKind, pose: Array | None = None, **numbers: Any) -> Output:
        """One tick with a request."""
        return self.step(Request(kind, self.tick + 1, np.zeros(6) if pose is None else pose, **numbers))

    def order(self, kind: RequestKind, pose: Array | None = None, **numbers: Any) -> Output:
        """One tick with a request that must be accepted."""
        output = self.ask(kind, pose, **numbers)
        if output.verdict is not Verdict.ACCEPTED:
            sys.exit(f"{self.machine.name}: {kind.name} was refused: {output.verdict.name}, faults {output.faults!r}")
        return output

    def until(self, reached: Callable[[Output], bool], step: Callable[[], Output] | None = None) -> Output:
        """Ticks until `reached`; a fault that was not asked for ends the benchmark."""
        output = (step or self.step)()
        for _ in range(PATIENCE_TICKS):
            if reached(output):
                return output
            if output.faults:
                break
            output = (step or self.step)()
        sys.exit(f"{self.machine.name}: {output.mode.name} at tick {self.tick}, faults {output.faults!r}")

    def ready(self) -> None:
        """Drives on, axes at rest at their set-points."""
        self.order(RequestKind.READY)
        self.until(self.settled)

    def settled(self, output: Output) -> bool:
        """The axes are where they should be, well within what a start of a motion asks for."""
        lag_m = np.abs(output.following_error_m).max()
        return self.state.latched and bool(lag_m < 0.5 * self.setup.control.start_tolerance_m)

    def _sample(self) -> Sample:
        status, n, period_s = self.read, len(self.setup.drives), self.setup.period_s
        drives = status["drive_status"][:n]
        return Sample(
            tick=self.tick, t_s=self.tick * period_s, link=Link.UP, age_s=period_s,
            plc_cycle=int(status["plc_cycle"]), seq_echo=int(status["seq_echo"]), plc_state=int(status["plc_state"]),
            plc_error=int(status["plc_error"]), plc_stopped=bool(status["plc_state"] == PlcState.QUICK_STOP),
            drives_enabled=bool((drives & DriveStatus.ENABLED).all()),
            drives_fault=bool((drives & DriveStatus.FAULT).any()),
            length_m=status["position_m"][:n].copy(), length_m_s=status["velocity_m_s"][:n].copy(),
            setpoint_m=status["setpoint_m"][:n].copy(), drive_n=status["force_n"][:n].copy(),
            axes_homed=bool((drives & DriveStatus.HOMED).all()),
        )  # fmt: skip

    def _write(self, command: Command) -> None:
        block, n = self._command[0], len(self.setup.drives)
        block["size"], block["version"] = COMMAND.itemsize, LAYOUT_VERSION
        block["seq"], block["mode"] = command.seq & 0xFFFFFFFF, command.axis_mode
        block["host_time_s"], block["period_s"] = self.tick * self.setup.period_s, self.setup.period_s
        block["velocity_feedforward"] = self.setup.control.velocity_feedforward
        block["position_m"][:n], block["velocity_m_s"][:n] = command.position_m, command.velocity_m_s
        block["force_n"][:n] = command.force_n

    def _play(self) -> None:
        for _ in range(self._cycles):
            self.cx.cycle()
            self.watch()


def room(setup: Setup) -> Array:
    """Way (6,) from home to the nearer pose limit, in the coordinates that the platform can change one by one."""
    way = np.minimum(np.array(setup.limits.pose_max) - setup.home, setup.home - np.array(setup.limits.pose_min))
    return way * FREE[int(setup.machine.platform[layout.KIND])]


def apart(poses: Array, others: Array) -> tuple[Array, Array]:
    """Distance (m) and angle (rad) between poses (N, 6) and others (N, 6), (N,) each."""
    R = np.empty((2, len(poses), 3, 3))
    for k in range(len(poses)):
        rotation_matrix(poses[k], R[0, k])
        rotation_matrix(others[k], R[1, k])
    chord = np.linalg.norm(R[0] - R[1], axis=(1, 2)) / np.sqrt(8.0)  # sin(angle / 2)
    return np.linalg.norm(poses[:, :3] - others[:, :3], axis=1), 2.0 * np.arcsin(np.minimum(chord, 1.0))


def rms(values: Array) -> float:
    """Root of the mean square."""
    return float(np.sqrt(np.mean(values**2)))


# ---------------------------------------------------------------- what the experiments share


def arguments(name: str, text: str | None) -> argparse.ArgumentParser:
    """The command line of an experiment: where its figure goes."""
    parser = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    parser.add_argument("--figure", type=Path, default=Path("run") / f"{name}.svg", help="default: %(default)s")
    return parser


def draw(path: Path, size_in: tuple[float, float], plot: Callable[[Any], None]) -> None:
    """Have `plot` fill a matplotlib figure, and store it; without matplotlib there is none."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        show("no figure: matplotlib is not installed")
        return
    with mpl.rc_context({"svg.hashsalt": path.stem, "font.size": 8, "axes.grid": True, "grid.alpha": 0.3}):
        figure = Figure(figsize=size_in, layout="constrained")
        plot(figure)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    print(f"figure: {path}")


def show(line: str) -> None:
    """Progress, for whoever waits: on stderr, so that a table can be redirected."""
    print(line, file=sys.stderr, flush=True)


def verdict(missed: list[str]) -> None:
    """Say which of the stated lines are missed; exit code 1 if there is one."""
    print("\n".join(f"MISSED: {line}" for line in missed) or "all lines met")
    sys.exit(1 if missed else 0)
