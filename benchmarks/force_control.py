"""Set-points of force beside set-points of position, in virtual cells whose plants are not the model.

    python -m benchmarks.force_control [--figure PATH] [MACHINE ...]

The demo's moves and sine with both laws, each machine with friction that the machine file does not know, and with
friction that it knows by 85 %; errors are those of the plant's true pose against the reference. With forces the status
is read once more 2 ms before each tick, as the link does it. Then a step of 50 N on the platform while it stands, and
2-UPR/2-RPU with joints 0.2 mm from where the model has them: how far its four drives wind each other up.
"""

from collections.abc import Callable
from dataclasses import replace as with_
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from benchmarks.system import SITES, World, apart, arguments, draw, rms, show, verdict
from controller import schema
from controller.motion.trajectory import FREE
from controller.records import Array, AxisMode, Mode, Output, RequestKind, Sample, Verdict
from controller.service.demo import CORNERS, REACH, SINE_HZ, SINE_TICKS, SWAY
from controller.settings import load_site
from controller.state import initial_state, prepare

MACHINES = ("6-upru", "6-ups", "3-ups-s", "2-upr-2-rpu")
SPEED_SHARE = 0.6
KNOWN = 0.85  # of the plant's friction, where the machine file knows of it
LEAD_CYCLES = 1  # of the PLC before the next tick: the second reading of the status
STEP_N = 50.0
STEP_TICKS, BACK_TICKS = 150, 150
REDUNDANT, GEOMETRY_ERROR_M = "2-upr-2-rpu", 2e-4
STAND_TICKS = 500
PATIENCE_TICKS = 400
LINE_M, LINE_RAD = 2e-3, 10e-3  # largest error with forces, friction known
RETURN_SHARE = 0.1  # of the deflection that may be left
BOUND_SHARE = 0.1  # by which forces may grow while the redundant machine stands


class Tour(NamedTuple):
    """A row a tick."""

    position_m: Array  # of the true pose against the reference
    rotation_rad: Array
    force_n: Array  # (N, n) of the drives


def world(machine: str, law: str, cell: dict[str, Any] | None = None, friction: bool = False, **feedback: Any) -> World:
    """A world with this law; with `friction` the machine file knows most of the plant's."""
    control = {"law": law, "feedback": schema.Feedback(**feedback)}
    made = World(machine, control, cell)
    if friction:
        files = load_site(SITES[machine])
        site = replace(files.site, sensors={}, devices={}, control=replace(files.site.control, **control))
        made.setup = prepare(knowing(files.machine, made.cell), site)
        made.state = initial_state(made.setup)
    if law == "force":
        read_late(made)
    return made


def read_late(made: World) -> None:
    """Have the status read once more shortly before each tick."""
    status, cycle_s = made.read, made.cell.plc_cycle_s
    block = made.cx.device.symbols[1]
    per_tick, cycles = round(made.setup.period_s / cycle_s), 0

    def watch() -> None:
        nonlocal cycles
        cycles += 1
        if cycles % per_tick == per_tick - LEAD_CYCLES:
            made.read = np.frombuffer(block.data, status.dtype)[0].copy()

    def young(sample: Sample) -> Sample:
        return with_(sample, age_s=LEAD_CYCLES * cycle_s)

    made.watch, made.broken = watch, young


def knowing(machine: schema.Machine, cell: schema.VirtualCell) -> schema.Machine:
    """The machine file with most of the friction that the cell adds: of the drives, or of the seals of cylinders."""
    legs, dry_n, viscous_n_s_m = machine.legs, KNOWN * cell.coulomb_n, KNOWN * cell.viscous_n_s_m
    if isinstance(legs.drive, schema.ScrewDrive):
        drive = replace(legs.drive, coulomb_n=dry_n, viscous_n_s_m=viscous_n_s_m)
        return replace(machine, legs=replace(legs, drive=drive))
    seals = legs.friction
    seals = replace(seals, coulomb_n=seals.coulomb_n + dry_n, viscous_n_s_m=seals.viscous_n_s_m + viscous_n_s_m)
    return replace(machine, legs=replace(legs, friction=seals))


def ready(made: World) -> None:
    """Drives on; with the law of forces, asked for forces."""
    made.ready()
    if made.setup.law:
        made.until(lambda output: output.command.axis_mode is AxisMode.FORCE)


def tour(made: World) -> Tour:
    """The demo's moves and sine."""
    ready(made)
    true: list[Array] = []
    wanted: list[Array] = []
    force: list[Array] = []

    def seen(output: Output) -> Output:
        true.append(made.plant.pose())
        wanted.append(output.reference.pose)
        force.append(made.cx.drives.force_n.copy())
        return output

    def step() -> Output:
        return seen(made.step())

    def patiently(kind: RequestKind, pose: Array, **numbers: float) -> Verdict:
        for _ in range(PATIENCE_TICKS):
            output = seen(made.ask(kind, pose, **numbers))
            if output.verdict is not Verdict.NOT_READY:
                return output.verdict
        return Verdict.NOT_READY

    setup = made.setup
    room = np.minimum(np.array(setup.limits.pose_max) - setup.home, setup.home - np.array(setup.limits.pose_min))
    room = room * FREE[int(setup.machine.platform[0])]
    for corner in CORNERS:
        share = REACH
        while patiently(RequestKind.MOVE, setup.home + share * corner * room, speed_share=SPEED_SHARE) is not (
            Verdict.ACCEPTED
        ):
            share *= 0.7
        made.until(lambda output: output.mode is Mode.READY, step)
    patiently(RequestKind.SINE, SWAY * room, frequency_hz=SINE_HZ)
    for _ in range(SINE_TICKS):
        step()
    seen(made.order(RequestKind.STOP))
    made.until(lambda output: output.mode is Mode.READY, step)
    return Tour(*apart(np.array(true), np.array(wanted)), np.array(force))


def push(made: World, force_n: float, along: int = 0) -> None:
    """From now on this force acts on the platform's centre of mass, along a base axis; 0 ends it."""
    platform = made.plant.model.body("platform").id
    made.plant.data.xfrc_applied[platform, along] = force_n


def deflection(made: World) -> tuple[float, float]:
    """Largest way of a leg (m) under a step on the standing platform, and what is left of it after it ended."""
    ready(made)
    for _ in range(STEP_TICKS):
        made.step()
    before = made.plant.position_m.copy()
    push(made, STEP_N)
    most_m = max(_away(made, before) for _ in range(STEP_TICKS))
    push(made, 0.0)
    for _ in range(BACK_TICKS):
        made.step()
    return most_m, float(np.abs(made.plant.position_m - before).max())


def _away(made: World, before: Array) -> float:
    made.step()
    return float(np.abs(made.plant.position_m - before).max())


def standing(made: World) -> tuple[float, float, Output]:
    """Largest force of a drive (N) while a machine stands, half-way and at the end of the time or at a fault, with what
    came of it: redundant drives that believe in a wrong geometry fight."""
    output = made.order(RequestKind.READY)
    force = [0.0]
    while len(force) < STAND_TICKS and output.mode is not Mode.FAULT:
        output = made.step()
        force.append(float(np.abs(made.cx.drives.force_n).max()))
    return force[len(force) // 2], force[-1], output


def table(names: list[str]) -> tuple[dict[str, dict[str, Tour]], list[str]]:
    """All tours and pushes, printed as they come, and the lines that are missed."""
    print(
        f"{'machine':<13}{'law':<26}{'position mm':>17}{'rotation mrad':>18}{'50 N: mm':>12}{'left mm':>10}\n"
        f"{'':<39}{'rms':>8} {'peak':>8} {'rms':>8} {'peak':>8}"
    )
    cases: dict[str, Callable[[str], World]] = {
        "position": lambda name: world(name, "position"),
        "force, friction unknown": lambda name: world(name, "force"),
        "force, friction known": lambda name: world(name, "force", friction=True),
    }
    found: dict[str, dict[str, Tour]] = {}
    missed: list[str] = []
    for name in names:
        found[name] = {}
        for case, make in cases.items():
            show(f"{name}, {case} ...")
            errors = found[name][case] = tour(make(name))
            most_m, left_m = deflection(make(name))
            print(
                f"{name:<13}{case:<26}{1e3 * rms(errors.position_m):8.3f} {1e3 * errors.position_m.max():8.3f} "
                f"{1e3 * rms(errors.rotation_rad):8.3f} {1e3 * errors.rotation_rad.max():8.3f}"
                f"{1e3 * most_m:13.3f}{1e3 * left_m:10.3f}",
                flush=True,
            )
            if case.endswith(" known") and (errors.position_m.max() > LINE_M or errors.rotation_rad.max() > LINE_RAD):
                missed.append(f"{name}: error above {1e3 * LINE_M:.0f} mm or {1e3 * LINE_RAD:.0f} mrad with forces")
            if case != "position" and left_m > max(RETURN_SHARE * most_m, 3e-4):
                missed.append(f"{name}, {case}: {1e3 * left_m:.2f} mm left of {1e3 * most_m:.2f} mm")
    return found, missed


def redundant() -> list[str]:
    """The drives of the redundant machine with joints that are not where the model has them."""
    missed: list[str] = []
    for law in ("position", "force"):
        made = world(REDUNDANT, law, {"geometry_error_m": GEOMETRY_ERROR_M})
        half_n, end_n, output = standing(made)
        print(
            f"{REDUNDANT}, joints {1e3 * GEOMETRY_ERROR_M:.1f} mm off, standing, {law}: largest force {half_n:.1f} N "
            f"half-way, {end_n:.1f} N at the end after {made.tick / 100:.1f} s, {output.mode.name} {output.faults!r}"
        )
        if law == "force" and (output.faults or end_n > (1.0 + BOUND_SHARE) * half_n):
            missed.append(f"{REDUNDANT}: forces grow")
    return missed


def plot(figure: Any, found: dict[str, dict[str, Tour]]) -> None:
    """A row a machine: distance and angle between true pose and reference."""
    axes = figure.subplots(len(found), 2, sharex="col", squeeze=False)
    for row, (name, tours) in zip(axes, found.items(), strict=True):
        for case, errors in tours.items():
            for ax, values in zip(row, (errors.position_m, errors.rotation_rad), strict=True):
                ax.plot(0.01 * np.arange(len(values)), 1e3 * values, lw=0.8, label=case)
        row[0].set_ylabel(f"{name}\nposition error, mm")
        row[1].set_ylabel("rotation error, mrad")
    for ax in axes[-1]:
        ax.set_xlabel("time, s")
    axes[0][1].legend(loc="upper right")


def main() -> None:
    parser = arguments("force_control", __doc__)
    parser.add_argument("machines", nargs="*", metavar="MACHINE", help=f"default: {' '.join(MACHINES)}")
    given = parser.parse_args()
    found, missed = table(given.machines or list(MACHINES))
    missed += redundant()
    draw(given.figure, (9.0, 9.0), lambda figure: plot(figure, found))
    verdict(missed)


if __name__ == "__main__":
    main()
