"""Stops from full speed, every machine and motion, beside the least time and way that its limits admit.

    python -m benchmarks.stopping [--figure PATH]

Four causes, in the middle of a move and of a sine, where the platform is fastest: the operator's stop; a fault with
a controlled stop (status block late); a trip (a drive reports a fault); a host that falls silent for good. Times count
from the tick of the cause: until the PLC's set-points stand, and until the axes do; the way is that of the axis that
goes furthest. Least: of a controlled stop the jerk-limited one of the coordinate that needs most, all coordinates on
their straight line, whatever the legs may do; of a trip speed / deceleration of the PLC's ordinary stop, of a silent
host that of its quick stop, all axes together, and half of it times the speed.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.system import SITES, World, arguments, draw, room, show, verdict
from controller.mechanism import kinematics
from controller.motion import trajectory
from controller.records import Array, Mode, Output, Reference, RequestKind, Sample, Verdict
from controller.service.demo import CORNERS, SWAY
from drivers.exchange import PlcState
from drivers.virtual.plc_program import LATE_S, QUICK_STOP_S, STANDSTILL_M_S, axes_of

REACH = 0.7  # of the way from home to the pose limits, less where the legs do not allow it
FASTEST_HZ = 3.0
WATCH_S = 0.8
MOTIONS = ("move", "sine")
OPERATOR, FAULT, TRIP, SILENCE = "operator stop", "fault, controlled stop", "trip", "host silent"
CAUSES = (OPERATOR, FAULT, TRIP, SILENCE)
# Set-points may take so much more: a tick for what was sent before, and of a silent host the 5 ms that the PLC bridges
# and the gentler stop before its quick stop. Likewise the way, besides one tick at full speed.
SLACK_S = {OPERATOR: 0.030, FAULT: 0.030, TRIP: 0.010, SILENCE: 0.030}
SLACK_WAY = {OPERATOR: 0.10, FAULT: 0.10, TRIP: 0.10, SILENCE: 0.30}
STAND_S = 0.5  # every stop, axes at rest
PLC_SLACK_S = 0.010  # watchdog: LATE before 50 ms, quick stop before 110 ms


class Stop(NamedTuple):
    """What came of one stop."""

    speed_m_s: Array  # (n,) of the axes at the cause
    time_s: float  # until the set-points stand
    stand_s: float  # until the axes do
    least_s: float
    way_m: float
    least_m: float
    late_s: float  # when the PLC began to hold, after the last command; NaN if it did not
    quick_s: float
    rates_m_s: Array  # (N, n) true rates of the axes from the cause on, a row a PLC cycle
    mode: Mode
    cycle_s: float


def least_stop_s(v: float, a: float, limit: float, jerk: float) -> tuple[float, float]:
    """Time and way of the quickest stop from speed v and acceleration a with |acceleration| <= limit."""
    if v < 0.0:
        seconds, way = least_stop_s(-v, -a, limit, jerk)
        return seconds, -way
    peak = min(limit, math.sqrt(jerk * v + 0.5 * a * a))
    if peak == 0.0:
        return 0.0, 0.0
    way, phases = 0.0, ((a + peak) / jerk, (v + 0.5 * a * a / jerk - peak * peak / jerk) / peak, peak / jerk)
    for t, j in zip(phases, (-jerk, 0.0, jerk), strict=True):
        way += v * t + a * t * t / 2.0 + j * t**3 / 6.0
        v, a = v + a * t + j * t * t / 2.0, a + j * t
    return sum(phases), way


def axis_positions(world: World, pose: Array) -> Array:
    q, unused, twist = np.empty(len(world.setup.drives)), np.zeros((2, len(world.setup.drives))), world.state.twist_rad
    kinematics.axis_rates(world.setup.machine, pose, np.zeros(6), np.zeros(6), twist.copy(), q, *unused)
    return q


def least_controlled(world: World, reference: Reference) -> tuple[float, float]:
    """Least time, and way of the axis that goes furthest, of a stop in the platform's coordinates."""
    motion = world.setup.motion
    stops = [
        least_stop_s(v, a, limit, jerk)
        for v, a, limit, jerk in zip(
            reference.rate, reference.acceleration, motion.acceleration, motion.jerk, strict=True
        )
    ]
    slowest = max(range(6), key=lambda k: stops[k][0])
    way = reference.rate * (stops[slowest][1] / reference.rate[slowest])
    moved = axis_positions(world, reference.pose + way) - axis_positions(world, reference.pose)
    return stops[slowest][0], float(np.abs(moved).max())


def bring_up(world: World, motion: str) -> Output:
    """The tick after which the platform is fastest."""
    setup = world.setup
    world.ready()
    if motion == "move":
        way, share = CORNERS[0] * room(setup), REACH
        while world.ask(RequestKind.MOVE, setup.home - share * way).verdict is Verdict.UNREACHABLE:
            share *= 0.9
        world.until(lambda output: output.mode is Mode.READY)
        world.until(world.settled)
        while world.ask(RequestKind.MOVE, setup.home + share * way).verdict is Verdict.UNREACHABLE:
            share *= 0.9
        plan = world.state.plan
        assert isinstance(plan, trajectory.Move)
        cause_s = 0.5 * (plan.start_s + plan.end_s)
    else:
        hz = FASTEST_HZ
        while world.ask(RequestKind.SINE, SWAY * room(setup), frequency_hz=hz).verdict is Verdict.UNREACHABLE:
            hz *= 0.9
        plan = world.state.plan
        assert isinstance(plan, trajectory.Sine)
        half_s = math.pi / plan.omega_rad_s
        cause_s = plan.start_s + half_s * math.ceil((trajectory.RAMP_S + 0.1) / half_s)
    return world.until(lambda _: (world.tick + 1) * setup.period_s >= cause_s)


def act(world: World, cause: str) -> Callable[[], Any]:
    """What the world does tick by tick from the cause on."""
    if cause == SILENCE:
        return world.silent

    def late(sample: Sample) -> Sample:
        return replace(sample, age_s=world.setup.limits.late_after_s + 0.001)

    def broken(sample: Sample) -> Sample:
        return replace(sample, drives_fault=True)

    world.broken = {FAULT: late, TRIP: broken}.get(cause, world.broken)
    asked = iter([RequestKind.STOP] if cause == OPERATOR else [])
    return lambda: world.ask(next(asked, RequestKind.NONE))


def stop(name: str, motion: str, cause: str) -> Stop:
    """One run up to standstill."""
    world = World(name)
    output = bring_up(world, motion)
    plant, twin, axes = world.plant, world.cx.twin, axes_of(world.machine, world.cell.hydraulics)
    speed_m_s = plant.velocity_m_s.copy()
    # The plant is where the last reference was, and a controlled stop starts there.
    if cause in (OPERATOR, FAULT):
        least_s, least_m = least_controlled(world, output.reference)
    else:
        deceleration = axes.quick_m_s2 if cause == SILENCE else axes.acceleration_m_s2
        least_s = float((np.abs(twin.v) / deceleration).max())
        least_m = 0.5 * least_s * float(np.abs(twin.v).max())
    positions, rates, wanted, states = [plant.position_m], [speed_m_s], [twin.v], [int(twin.state)]

    def watch() -> None:
        positions.append(plant.position_m)
        rates.append(plant.velocity_m_s.copy())
        wanted.append(twin.v)
        states.append(int(twin.state))

    world.watch = watch
    step = act(world, cause)
    for _ in range(round(WATCH_S / world.setup.period_s)):
        step()
    cycle_s = world.cell.plc_cycle_s

    def last_s(speeds: list[Array]) -> float:
        moving = np.flatnonzero((np.abs(np.array(speeds)) > STANDSTILL_M_S).any(axis=1))
        return cycle_s * (int(moving[-1]) + 1)

    since_s = world.setup.period_s  # the last command was sent a tick before the one that is missing

    def first_s(state: PlcState) -> float:
        found = np.flatnonzero(np.array(states) == state)
        return since_s + cycle_s * (int(found[0]) - 1) if len(found) else math.nan

    return Stop(
        speed_m_s,
        last_s(wanted),
        last_s(rates),
        least_s,
        float(np.abs(np.array(positions) - positions[0]).max()),
        least_m,
        first_s(PlcState.LATE),
        first_s(PlcState.QUICK_STOP),
        np.array(rates),
        world.state.mode,
        cycle_s,
    )


def judge(found: Stop, cause: str) -> list[str]:
    """Which lines this stop misses."""
    fastest_m_s = float(np.abs(found.speed_m_s).max())
    most_s = found.least_s + SLACK_S[cause]
    most_m = (1.0 + SLACK_WAY[cause]) * found.least_m + 0.01 * fastest_m_s
    missed: list[str] = []
    if found.time_s > most_s:
        missed.append(f"set-points stand after {1e3 * found.time_s:.0f} ms, expected at most {1e3 * most_s:.0f} ms")
    if found.stand_s > STAND_S:
        missed.append(f"axes stand after {1e3 * found.stand_s:.0f} ms, expected at most {1e3 * STAND_S:.0f} ms")
    if found.way_m > most_m:
        missed.append(f"{1e3 * found.way_m:.1f} mm, expected at most {1e3 * most_m:.1f} mm")
    if cause == SILENCE:
        for what, at_s, due_s in (("hold", found.late_s, LATE_S), ("quick stop", found.quick_s, QUICK_STOP_S)):
            if not at_s <= due_s + PLC_SLACK_S:
                missed.append(f"{what} of the PLC after {1e3 * at_s:.0f} ms, expected {1e3 * due_s:.0f} ms")
    wanted = {OPERATOR: Mode.READY, FAULT: Mode.READY, TRIP: Mode.FAULT}
    if cause in wanted and found.mode is not wanted[cause]:
        missed.append(f"ended in {found.mode.name}, expected {wanted[cause].name}")
    return missed


def plot(figure: Any, runs: dict[tuple[str, str, str], Stop]) -> None:
    """A row a machine, a column a motion: the axis that was fastest."""
    axes = figure.subplots(len(SITES), len(MOTIONS), sharex=True)
    for row, name in zip(axes, SITES, strict=True):
        for ax, motion in zip(row, MOTIONS, strict=True):
            for cause in CAUSES:
                found = runs[name, motion, cause]
                rate = np.abs(found.rates_m_s[:, int(np.abs(found.speed_m_s).argmax())])
                style = "--" if cause == FAULT else "-"  # it lies upon the operator's stop
                ax.plot(1e3 * found.cycle_s * np.arange(len(rate)), 1e3 * rate, style, lw=0.9, label=cause)
            ax.set_title(f"{name}, {motion}", fontsize=8)
            ax.set_xlim(0.0, 450.0)
        row[0].set_ylabel("fastest axis, mm/s")
    for ax in axes[-1]:
        ax.set_xlabel("time from the cause, ms")
    axes[0][1].legend()


def main() -> None:
    given = arguments("stopping", __doc__).parse_args()
    print(
        f"{'machine':<13}{'motion':<7}{'cause':<25}{'axis mm/s':>9} {'set-point ms':>13} {'least':>6} {'more':>5}"
        f" {'axes ms':>8} {'way mm':>9} {'least':>7} {'ratio':>6} {'hold ms':>9} {'quick ms':>9}"
    )
    runs: dict[tuple[str, str, str], Stop] = {}
    missed: list[str] = []
    for name in SITES:
        for motion in MOTIONS:
            for cause in CAUSES:
                show(f"{name}, {motion}, {cause} ...")
                runs[name, motion, cause] = found = stop(name, motion, cause)
                marks = (f"{1e3 * s:9.0f}" if math.isfinite(s) else f"{'–':>9}" for s in (found.late_s, found.quick_s))
                print(
                    f"{name:<13}{motion:<7}{cause:<25}{1e3 * np.abs(found.speed_m_s).max():9.0f} "
                    f"{1e3 * found.time_s:13.0f} {1e3 * found.least_s:6.0f} "
                    f"{1e3 * (found.time_s - found.least_s):5.0f} {1e3 * found.stand_s:8.0f} "
                    f"{1e3 * found.way_m:9.2f} {1e3 * found.least_m:7.2f} {found.way_m / found.least_m:6.2f} "
                    f"{' '.join(marks)}",
                    flush=True,
                )
                missed += [f"{name}, {motion}, {cause}: {line}" for line in judge(found, cause)]
    slacks = ", ".join(f"{cause} {1e3 * seconds:.0f}" for cause, seconds in SLACK_S.items())
    print(
        f"lines: set-points stand so many ms after the least time: {slacks};\n"
        f"every axis is below {1e3 * STANDSTILL_M_S:.0f} mm/s for good after {1e3 * STAND_S:.0f} ms;\n"
        f"way at most {1.0 + SLACK_WAY[OPERATOR]:.2f} of the least ({1.0 + SLACK_WAY[SILENCE]:.2f}) plus 10 ms at full "
        f"speed; a silent host's axes are held {1e3 * (LATE_S + PLC_SLACK_S):.0f} ms and stopped quickly "
        f"{1e3 * (QUICK_STOP_S + PLC_SLACK_S):.0f} ms\nafter the last command at the latest"
    )
    draw(given.figure, (8.0, 10.0), lambda figure: plot(figure, runs))
    verdict(missed)


if __name__ == "__main__":
    main()
