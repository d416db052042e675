"""What the monitor sees of pushes: how soon, how exactly, from which speed on, and what it sees where nothing is.

    python -m benchmarks.wrench [--minutes M]

The same run every time: the real plant, off its file in mass, inertia, geometry and friction, on a stepped clock. The
sources: load cells on 6-upru, drives on 6-ups, chamber pressures on 3-ups-s, which see a push through friction. "as
shipped": the machine file knows nothing of the friction. "identified": of what the plant is off in mass, inertia and
friction, an identification has left a tenth; then the bounds of the monitor may be tighter, too.
On 3-ups-s, which bears every force at o, forces act at the first platform joint.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from benchmarks.system import SITES, World, show, verdict
from controller import schema
from controller.motion.monitor import AXIS, CELL, observe, size_of
from controller.motion.trajectory import FREE
from controller.records import Array, Command, Fault, Mode, Output, Quality, Request, RequestKind, Sample, Verdict
from controller.service.mailbox import NOTHING
from controller.settings import load_site
from controller.state import initial_state, prepare

LEFT = 0.1  # of what the machine file was off, after an identification
PUSH_N, PUSH_NM = 50.0, 10.0
SEEN_MS = 100.0
PUSHES = (f"{PUSH_N:g} N", f"{PUSH_NM:g} N m")
SHOWN = 0.63  # of a push: a time constant
SPEEDS_M_S = (0.0, 0.02, 0.1, 0.2)  # of the fastest leg, at the top of a sine
SINE_HZ = 0.4
SHARES = np.array([0.7, -0.5, 0.9, 0.6, 0.8, -1.0])  # of the room in each coordinate, all of them in motion
SETTLE_TICKS, LEARN_TICKS, PUSH_TICKS, APART_TICKS = (
    80,
    1000,
    25,
    41,
)  # the last is no divisor of the period: other phases every time

# Bounds of sites that are identified: of a leg, above what the model of friction itself leaves open.
TIGHT = {
    "6-upru": {"cells": schema.Bounds(base_n=1.5, per_speed_n_s_m=1.0, per_acceleration_n_s2_m=2.0)},
    "6-ups": {"drives": schema.Bounds(base_n=3.5, per_speed_n_s_m=8.0)},
    "3-ups-s": {"drives": schema.Bounds(base_n=12.0, per_speed_n_s_m=60.0)},
}


class Case(NamedTuple):
    """A machine, what it is measured with, and whether its friction is known."""

    machine: str
    source: str
    identified: bool


CASES = (
    Case("6-upru", "cells", False),
    Case("6-upru", "cells", True),
    Case("6-ups", "drives", True),
    Case("3-ups-s", "pressures", True),
    Case("6-ups", "drives", False),
    Case("3-ups-s", "pressures", False),
)


def with_friction(machine: schema.Machine, cell: schema.VirtualCell) -> schema.Machine:
    """The machine file with the friction of the plant, but for what an identification leaves."""
    legs, change = machine.legs, msgspec.structs.replace
    known = {"coulomb_n": (1.0 - LEFT) * cell.coulomb_n, "viscous_n_s_m": (1.0 - LEFT) * cell.viscous_n_s_m}
    if isinstance(legs.drive, schema.ScrewDrive):
        return change(machine, legs=change(legs, drive=change(legs.drive, **known)))
    return change(machine, legs=change(legs, friction=change(legs.friction, **known)))


def remaining(cell: schema.VirtualCell | None) -> dict[str, Any]:
    """How the plant differs from a machine file that was identified with it."""
    assert cell is not None
    scales = ("mass_scale", "inertia_scale", "rotor_inertia_scale")
    left = {name: 1.0 + LEFT * (getattr(cell, name) - 1.0) for name in scales}
    return left | {"com_offset_m": tuple(LEFT * offset for offset in cell.com_offset_m)}


class Sensed(World):
    """The stepped world with the load cells and pressures of its site, read together with the status."""

    def __init__(self, machine: str, collision: str, identified: bool = False, **monitor: Any) -> None:
        """As `World`; `monitor` has further keys of [control.monitor]."""
        if identified and machine in TIGHT:
            monitor = TIGHT[machine] | monitor
        control = {"monitor": schema.Monitor(collision=collision, **monitor)}
        files = load_site(SITES[machine])
        super().__init__(machine, control, remaining(files.site.virtual_cell) if identified else None)
        sensors = {name: sensor for name, sensor in files.site.sensors.items() if not name.startswith("tilt")}
        given = msgspec.structs.replace(files.site.control, **control)
        site = msgspec.structs.replace(files.site, sensors=sensors, control=given)
        self.setup = prepare(with_friction(files.machine, self.cell) if identified else files.machine, site)
        self.state = initial_state(self.setup)
        self._names = list(sensors)
        self.offset_n = np.zeros(len(sensors))  # what the sensors show too much
        self._shown = np.zeros(len(sensors))

    def step(self, request: Request = NOTHING) -> Output:
        """As `World.step`; what the monitor was given is kept."""
        memory, sample = self.state.monitor, self.broken(self._sample())
        output = super().step(request)
        self._last = memory, replace(sample, tick=self.tick), output
        return output

    def _write(self, command: Command) -> None:
        super()._write(command)
        true = {f"cell_{i}": force for i, force in enumerate(self.plant.cell_n, 1)}
        for side, pressures in self.cx.pressures_pa().items():
            true |= {f"{side}_pressure_{i}": pressure for i, pressure in enumerate(pressures, 1)}
        self._shown = np.array([true[name] for name in self._names]) + self.offset_n

    def _sample(self) -> Sample:
        k = len(self._names)
        age_s, quality = np.full(k, self.setup.period_s), np.full(k, float(Quality.GOOD))
        return replace(super()._sample(), sensor=self._shown, sensor_age_s=age_s, sensor_quality=quality)

    def rest(self) -> None:
        """Ready, and at rest for as long as the monitor wants to know what is off."""
        self.ready()
        for _ in range(2 * SETTLE_TICKS):
            self.step()

    def bounds_n(self) -> Array:
        """What the monitor allowed each leg (n,) in the tick just run; NaN where it saw nothing."""
        memory, sample, output = self._last
        loads = observe(self.setup.monitor, memory, sample, output.estimate, self.state.twist_rad, False)
        if loads is None:
            return np.full(len(self.setup.drives), np.nan)
        return loads.bounds_n[CELL if np.isfinite(loads.error_n[CELL]).all() else AXIS]

    @property
    def room(self) -> Array:
        """How far the platform may go from home in both senses, in each free coordinate (6,)."""
        home = self.setup.home
        room = np.minimum(np.array(self.setup.limits.pose_max) - home, home - np.array(self.setup.limits.pose_min))
        return room * FREE[int(self.setup.machine.platform[0])]

    def sway(self, speed_m_s: float) -> None:
        """A sine in all coordinates whose fastest leg is so fast at its top."""
        if speed_m_s == 0.0:
            return
        fastest, amplitude = 0.0, 0.05 * SHARES * self.room
        self.order(RequestKind.SINE, amplitude, frequency_hz=SINE_HZ)
        for _ in range(round(1.0 / SINE_HZ / self.setup.period_s) + 50):
            fastest = max(fastest, np.abs(self.step().command.velocity_m_s).max())
        self.order(RequestKind.STOP)
        self.until(lambda output: output.mode is Mode.READY)
        self.until(self.settled)
        self.order(RequestKind.SINE, amplitude * speed_m_s / fastest, frequency_hz=SINE_HZ)
        for _ in range(LEARN_TICKS):
            self.step()

    def wander(self, dice: np.random.Generator, ticks: int) -> Iterator[Output]:
        """Moves at random, one after the other, anywhere in half the room."""
        for _ in range(ticks):
            output = self.step()
            if output.mode is Mode.READY and self.settled(output):
                pose = self.setup.home + 0.6 * dice.uniform(-1.0, 1.0, 6) * self.room
                output = self.ask(RequestKind.MOVE, pose, speed_share=dice.uniform(0.2, 1.0))
                assert output.verdict in (Verdict.ACCEPTED, Verdict.UNREACHABLE)
            yield output


def pushes(machine: str) -> list[tuple[str, Array]]:
    """Steps of force along, and moment about, every axis in which the platform is free: wrenches about o."""
    found: list[tuple[str, Array]] = []
    for k in range(6):
        wrench = np.zeros(6)
        wrench[k] = PUSH_N if k < 3 else PUSH_NM
        if machine == "3-ups-s" and k < 3:
            joint_m = np.array(load_site(SITES[machine]).machine.leg[0].platform_joint_m)
            wrench[3:] = np.cross(joint_m, wrench[:3])
            if np.linalg.norm(wrench[3:]) < PUSH_NM:
                continue  # towards o
        found.append(("force" if k < 3 else "moment", wrench))
    return found


class Push(NamedTuple):
    """What came of a push."""

    kind: str
    shown_ms: float  # until the wrench shows SHOWN of it, and goes on to
    told_ms: float  # until it is told as a fault; infinite: not within PUSH_TICKS
    error: float  # of the estimate between 100 and 250 ms, N or N m
    bound_n: float  # above which a size is told, when it began


def push_all(case: Case, speed_m_s: float, phases: int) -> list[Push]:
    """Every push at several phases of the motion."""
    world = Sensed(case.machine, "warn", case.identified)
    world.rest()
    world.sway(speed_m_s)
    found, period_ms = list[Push](), 1e3 * world.setup.period_s
    for kind, wrench in phases * pushes(case.machine):
        for _ in range(APART_TICKS):
            before = world.step()
        bound_n = float(world.bounds_n().sum())
        world.plant.push(wrench)
        outputs = [world.step() for _ in range(PUSH_TICKS)]
        world.plant.push(np.zeros(6))
        told = [k for k, output in enumerate(outputs, 1) if Fault.EXTERNAL_LOAD in output.faults]
        if Fault.EXTERNAL_LOAD in before.faults:
            told = []  # it was told of already, so this shows nothing
        part = slice(0, 3) if kind == "force" and case.machine != "3-ups-s" else slice(3, 6)
        seen, push = np.array([output.wrench[part] for output in outputs]), wrench[part]
        hidden = np.flatnonzero((seen - before.wrench[part]) @ push < SHOWN * push @ push)
        shown = hidden[-1] + 2 if len(hidden) else 1
        found.append(
            Push(
                kind,
                period_ms * shown if shown <= PUSH_TICKS else np.inf,
                period_ms * told[0] if told else np.inf,
                float(np.sqrt(np.mean(np.sum((seen[10:] - push) ** 2, axis=1)))),
                bound_n,
            )
        )
    return found


def false_alarms(case: Case, minutes: float) -> tuple[set[str], float, float]:
    """What is told in random motion without a push, the largest size of a wrench and share of its bound."""
    world = Sensed(case.machine, "trip", case.identified)
    world.rest()
    told, size_n, share = set[str](), 0.0, 0.0
    for output in world.wander(np.random.default_rng(5), round(60.0 * minutes / world.setup.period_s)):
        told |= {str(fault.name) for fault in output.faults}
        if np.isfinite(output.wrench[3:]).all():
            now_n = size_of(np.nan_to_num(output.wrench) / world.setup.monitor.scale)
            size_n, share = max(size_n, now_n), np.fmax(share, now_n / world.bounds_n().sum())
        if output.mode is Mode.FAULT:
            break
    return told, size_n, share


def known(case: Case) -> str:
    """What is known of the friction, in words."""
    return "identified" if case.identified else "as shipped"


def must(case: Case, speed_m_s: float, kind: str, what: str) -> bool:
    """Whether a push must be seen in time: not where dry friction at rest, or friction that nobody knows, bears it.

    What is shown in time is told in time only where the bounds are tight enough for it.
    """
    if not (case.source == "cells" or (case.identified and speed_m_s)):
        return False
    return (
        what == "shown"
        or (kind == "force" and case.machine != "3-ups-s")
        or (case.source == "cells" and case.identified)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of random motion, default: %(default)s")
    given = parser.parse_args()
    missed: list[str] = []
    print(
        f"pushes of {PUSH_N:g} N and {PUSH_NM:g} N m, in time: within {SEEN_MS:g} ms; m/s: the fastest leg; "
        f"shown: the wrench shows {SHOWN:.0%} of the push for good; told: as a fault, above the bound\n"
        f"{'machine':<9}{'source':<11}{'friction':<12}{'m/s':>5}{'bound N':>9}"
        + "".join(
            f"   {push:<7}{'shown':>10}{'max ms':>8}{'told':>10}{'max ms':>8}{'rms error':>11}" for push in PUSHES
        )
    )
    for case in CASES:
        for speed_m_s in SPEEDS_M_S:
            show(f"{case.machine}, {speed_m_s} m/s ...")
            found = push_all(case, speed_m_s, 4)
            bound_n = np.median([push.bound_n for push in found])
            cells = [f"{case.machine:<9}{case.source:<11}{known(case):<12}{speed_m_s:5.2f}{bound_n:9.1f}"]
            for kind in ("force", "moment"):
                some = [push for push in found if push.kind == kind]
                cells.append(" " * 10)
                for what, column in (
                    ("shown", [push.shown_ms for push in some]),
                    ("told", [push.told_ms for push in some]),
                ):
                    ms = np.array(column)
                    seen = int((ms <= SEEN_MS).sum())
                    cells.append(f"{f'{seen} of {len(some)}':>10}{ms.max():8.0f}")
                    if seen < len(some) and must(case, speed_m_s, kind, what):
                        missed.append(
                            f"{case.machine}, {kind} at {speed_m_s:g} m/s: {seen} of {len(some)} {what} in time"
                        )
                error = np.sqrt(np.mean([push.error**2 for push in some]))
                unit = "N" if kind == "force" and case.machine != "3-ups-s" else "N m"
                cells.append(f"{error:7.1f} {unit:<3}")
            print("".join(cells), flush=True)
    print(f"\n{given.minutes:g} minutes of random motion each, nothing pushes")
    for case in CASES:
        show(f"{case.machine}, {given.minutes:g} minutes ...")
        told, size_n, share = false_alarms(case, given.minutes)
        said = ", ".join(sorted(told)) or "nothing"
        source = f"{case.machine:<9}{case.source:<11}{known(case):<12}"
        print(f"{source}{size_n:5.1f} N, {share:.2f} of its bound; told: {said}", flush=True)
        if told:
            missed.append(f"{case.machine}, {known(case)}: {said} without a push")
    verdict(missed)


if __name__ == "__main__":
    main()
