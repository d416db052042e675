"""Measurements for the benchmarks of identification: a machine of the virtual cell plays a track, stepped."""

import csv
import io
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from benchmarks.system import SITES, World
from controller import schema
from controller.identification.base_parameters import States
from controller.identification.excite import write
from controller.identification.measurements import turns_per_m
from controller.mechanism import kinematics
from controller.mechanism.model import build, home_pose
from controller.motion.feedforward import leg_demand
from controller.records import Array, Mode, RequestKind
from controller.settings import load_site
from controller.state import initial_state, prepare

STEP_S = 0.01
REST_TICKS = 30


class Measured(NamedTuple):
    """A row a tick, (N, ...)."""

    t_s: Array
    length_m: Array
    drive_n: Array
    sensors_n: dict[str, Array]  # cells, or chamber pressures in Pa
    pose: Array  # the plant's true one
    reference: Array
    following_error_m: Array
    model_n: Array  # what the controller's model says of the drives at the reference, rotor and friction included


def csv_of(states: States, repeats: int = 1) -> str:
    """A track: a motion from rest to rest every STEP_S, so many times on end."""
    once = States(*(np.tile(values[:-1], (repeats, 1)) for values in states))
    whole = States(*(np.vstack([values, last[-1:]]) for values, last in zip(once, states, strict=True)))
    out = io.StringIO()
    write(out, STEP_S * np.arange(len(whole.x)), whole)
    return out.getvalue()


class Cell(World):
    """The stepped world with one track."""

    def __init__(
        self, name: str, track: str, machine: schema.Machine | None = None, cell: dict[str, Any] | None = None,
        control: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """`machine` is what the controller believes, where it is not the file; the plant always comes from the file."""
        super().__init__(name, control, cell)
        files = load_site(SITES[name])
        site = replace(
            files.site, sensors={}, devices={}, control=replace(files.site.control, **(control or {})),
            tracks={"motion": schema.CsvTrack(file="motion.csv")},
        )  # fmt: skip
        self.believed = machine or files.machine
        self.setup = prepare(self.believed, site, {"motion": track})
        self.state = initial_state(self.setup)

    def play(self) -> Measured:
        """Ready, go to where the track begins, and follow it."""
        rows: list[list[Array]] = []
        untwisted = np.zeros(len(self.setup.drives))
        ticks: list[int] = []

        def step() -> Any:
            output = self.step()
            see(output)
            return output

        def see(output: Any) -> None:
            n = len(self.setup.drives)
            sensors = [*self._sensors]
            rows.append([
                self.read_before["position_m"][:n].copy(), self.read_before["force_n"][:n].copy(), *sensors,
                self.pose_before, output.reference.pose.copy(), output.following_error_m.copy(),
                leg_demand(self.setup.machine, self.setup.drives, output.reference, untwisted).axis_n,
            ])  # fmt: skip
            ticks.append(self.tick)

        self.ready()
        for _ in range(REST_TICKS):
            step()
        see(self.order(RequestKind.TRACK, track=0))
        while (output := step()).mode is not Mode.READY or not self.settled(output):
            if output.faults:
                sys.exit(f"{self.machine.name}: {output.mode.name} at tick {self.tick}, faults {output.faults!r}")
        for _ in range(REST_TICKS):
            step()
        names = list(self._names)
        parts = [np.array(part) for part in zip(*rows, strict=True)]
        return Measured(
            np.array(ticks) * self.setup.period_s, parts[0], parts[1],
            dict(zip(names, parts[2:-4], strict=True)), *parts[-4:],
        )  # fmt: skip

    _names: tuple[str, ...] = ()
    _sensors: tuple[Array, ...] = ()

    def _write(self, command: Any) -> None:
        """As in `World`; now is when the status is read, and with it every sensor."""
        super()._write(command)
        n = len(self.setup.drives)
        self.read_before = self._status[0].copy()
        self.pose_before = self.plant.pose()
        pressures = self.cx.pressures_pa()
        if pressures:
            self._names = ("head_pressure", "rod_pressure")
            self._sensors = (pressures["head"].copy(), pressures["rod"].copy())
        elif self.machine.legs.cell:
            self._names, self._sensors = ("cell",), (self.plant.cell_n[:n].copy(),)


def table(measured: Measured, path: Path, drives: str = "drive_{}_n", machine: schema.Machine | None = None) -> Path:
    """Store what was measured, in the columns of docs/reference/commands.md; of twisting screws the motors' angles."""
    n = measured.length_m.shape[1]
    places, axes = "length_{}_m", measured.length_m
    if machine is not None and machine.legs.kind == "UHU":
        home = np.empty(n)
        kinematics.leg_lengths(build(machine), home_pose(machine), home)
        places, axes = "motor_{}_rad", (axes - home) * turns_per_m(machine.legs.drive)
    columns: dict[str, Array] = {"t_s": measured.t_s}
    patterns = {"cell": "cell_{}_n", "head_pressure": "head_pressure_{}_pa", "rod_pressure": "rod_pressure_{}_pa"}
    for pattern, values in (
        (places, axes),
        (drives, measured.drive_n),
        *((patterns[name], values) for name, values in measured.sensors_n.items()),
    ):
        columns |= {pattern.format(i + 1): values[:, i] for i in range(n)}
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(map(repr, values.tolist()) for values in columns.values()), strict=True))
    return path
