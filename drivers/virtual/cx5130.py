"""The virtual CX5130: its PLC program and drives, moving a simulated plant in real time.

    command block ──► PlcTwin ──► Drives ──► plant ──► status block         one PLC cycle, `Cx5130.cycle`
    (AMS server)      2 ms        0.5 ms     0.5 ms    (AMS server)

Everything but `serve` is pure and stepped: time is an argument. The PLC program trusts nobody: whatever the host
says, its set-points stay inside the limits below, and it stops by itself when the host falls silent.

Legend (arrays have one value an axis; an axis is a leg):
    p, v, a     set-point of position m, velocity m/s, acceleration m/s²
    f           force feed-forward N
    knot        a set-point of the host with the time t at which the axis is to be there
"""

import asyncio
import contextlib
import logging
import math
import signal
import time
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from controller import schema
from controller.clock import ticks
from controller.records import AxisMode
from drivers.exchange import (
    COMMAND,
    LAYOUT_VERSION,
    STATUS,
    SYMBOL_COMMAND,
    SYMBOL_STATUS,
    DriveStatus,
    PlcError,
    PlcState,
)
from drivers.virtual import ams

log = logging.getLogger(__name__)

Array = NDArray[np.float64]

# The PLC's own limits, relative to what the machine file allows the host (legs.limits): small margins, so that an
# honest host never meets them although both sides round and interpolate.
POSITION_MARGIN_M = 0.002
VELOCITY_MARGIN = 1.1
ACCELERATION_MARGIN = 1.25
JUMP_MARGIN_M = 1e-4

LATE_S = 0.040  # no new seq for so long: controlled hold; at the next cycle, so always before 50 ms
QUICK_STOP_S = 0.100  # beyond: quick stop, latched
ENABLE_S = 0.150  # from HOLD to drives enabled and brakes open; servo drives take 100-200 ms
EXTRAPOLATE_S = 0.005  # a late set-point is bridged at constant velocity for so long, then the axes decelerate
LONGEST_GAP_S = 0.100  # host time between two set-points that still counts as one motion
CLOCK_SHARE = 0.02  # of each deviation of arrival that moves the estimated offset between host and PLC clock
LAG_LIMIT_M = 0.020
STANDSTILL_M_S = 0.002
REACHED_M = 2e-6  # a cubic and a cycle of constant acceleration differ by less for any sane jerk
ROUNDING_S = 1e-9  # when comparing times
PLANT_STEP_S = 0.0005
TCP_PORT = 48898  # where a site names none

_LATCHED = PlcError.WATCHDOG | PlcError.JUMP | PlcError.NOT_FINITE | PlcError.FOLLOWING
_MODES = frozenset(AxisMode)

# Drives: position P, velocity PI; 30-40 1/s is usual for the position loop of a servo.
POSITION_GAIN_1_S = 32.0
VELOCITY_BANDWIDTH_1_S = 480.0  # at the least load an axis can have; the heaviest leaves it 1/9 of that
INTEGRAL_TIME_S = 0.10
# Least eigenvalue of the leg-space inertia / platform mass: 2.6 kg of 68 kg, 3.4 kg of 12 kg, 25 kg of 62 kg.
LEAST_LOAD = {"free": 1 / 25, "2r1t": 1 / 4, "spherical": 1 / 3}

SUPPLY_PA = 210e5  # of a cylinder, until its pressures are simulated

CATCH_UP_S = 0.2  # if the process was away for longer, the plant stood still meanwhile
STOP_WITHIN_S = 2.0  # at the end of the process the machine gets so long to come to rest


class Plant(Protocol):
    """What is moved, in steps of `step_s` of its constructor."""

    def step(self, force_n: Array | None) -> None:
        """Advance with these axis forces, or with the brakes closed."""
        ...

    @property
    def position_m(self) -> Array:
        """What the encoders show."""
        ...

    @property
    def velocity_m_s(self) -> Array:
        """Its rate."""
        ...

    @property
    def cell_n(self) -> Array:
        """Load cells, > 0 in compression."""
        ...


class Axes(NamedTuple):
    """What the PLC program and the drives know of the machine, one value an axis."""

    low_m: Array
    high_m: Array
    speed_m_s: Array
    acceleration_m_s2: Array  # of every ordinary stop
    quick_m_s2: Array  # of the quick stop, and the clamp
    peak_force_n: Array  # at the drive's peak torque
    least_mass_kg: Array  # rotor, and the least load


def axes_of(machine: schema.Machine) -> Axes:
    """Collect the limits of a machine; a rotary drive on a screw gives force = torque * 2 pi gear / lead."""
    legs = [schema.effective_leg(machine, i) for i in range(len(machine.leg))]
    limits = [leg.limits for leg in legs]
    peak_n, rotor_kg = np.array([_peak_and_rotor(leg.drive) for leg in legs]).T
    acceleration = np.array([limit.acceleration_m_s2 for limit in limits])
    return Axes(
        low_m=np.array([limit.length_m[0] for limit in limits]) - POSITION_MARGIN_M,
        high_m=np.array([limit.length_m[1] for limit in limits]) + POSITION_MARGIN_M,
        speed_m_s=np.array([limit.speed_m_s for limit in limits]) * VELOCITY_MARGIN,
        acceleration_m_s2=acceleration,
        quick_m_s2=acceleration * ACCELERATION_MARGIN,
        peak_force_n=peak_n,
        least_mass_kg=rotor_kg + LEAST_LOAD[machine.platform.kind] * machine.platform.mass_kg,
    )


def _peak_and_rotor(drive: schema.Drive) -> tuple[float, float]:
    """Peak force (N) of a drive and the mass of its rotor as seen along the leg (kg)."""
    if isinstance(drive, schema.HydraulicDrive):
        return 0.25 * math.pi * drive.piston_diameter_m**2 * SUPPLY_PA, 0.0
    turns_1_m = 2.0 * math.pi * drive.gear_ratio / drive.lead_m
    return drive.peak_torque_nm * turns_1_m, drive.rotor_inertia_kg_m2 * turns_1_m**2


class Knot(NamedTuple):
    """A set-point of the host, and when the axes are to be there."""

    time_s: float
    p: Array
    v: Array
    f: Array


class PlcTwin:
    """The PLC program: one `step` is one PLC cycle.

    After a step, `p` and `v` are the set-point for the end of that cycle, `p_before` and `v_before` the one for its
    start, `f` the force feed-forward, and `powered` tells whether the drives control their axes (otherwise the brakes
    are closed). `age_s` is the time since the last new sequence number.
    """

    def __init__(self, axes: Axes, cycle_s: float) -> None:
        """Start with the drives off."""
        n = len(axes.low_m)
        self.state = PlcState.OFF
        self.error = PlcError.NONE
        self.powered = False
        self.faulty: NDArray[np.bool_] = np.zeros(n, dtype=np.bool_)  # axes that did not follow
        self.cycle = 0
        self.seq = 0
        self.age_s = math.inf
        self.p, self.v, self.f = np.zeros(n), np.zeros(n), np.zeros(n)
        self.velocity_feedforward = 1.0
        self.p_before, self.v_before = self.p, self.v
        self._axes = axes
        self._cycle_s = cycle_s
        self._mode = AxisMode.STOP
        self._new_s = -math.inf  # when seq last changed
        self._enable_s: float | None = None  # when the drives will be on, while they are being enabled
        self._knots: list[Knot] = []  # oldest first, at most three: an early set-point does not cut the one before
        self._accepted_p = self.p  # last set-point taken from the host, as it was sent
        self._accepted_s = 0.0  # and when
        self._host_s = 0.0  # host time of it
        self._offset_s = 0.0  # PLC clock minus host clock at arrival, smoothed

    def step(self, now_s: float, command: np.void, position_m: Array, velocity_m_s: Array) -> None:
        """Run the cycle that starts at `now_s`, with the COMMAND record and the encoders as they are then."""
        self.cycle = (self.cycle + 1) & 0xFFFFFFFF
        seq = int(command["seq"])
        if seq != self.seq:
            self.seq = seq
            self.error &= _LATCHED
            self._take(now_s, command)
        self.age_s = now_s - self._new_s
        self._watch(now_s, position_m, velocity_m_s)

        self.p_before, self.v_before = self.p, self.v
        if self.state == PlcState.FOLLOWING:
            self._follow(now_s + self._cycle_s)
        elif self.powered:
            axes = self._axes
            self._brake(axes.quick_m_s2 if self.state == PlcState.QUICK_STOP else axes.acceleration_m_s2)
        else:
            self.p, self.v = position_m.copy(), np.zeros_like(self.v)
            self.p_before, self.v_before = self.p, self.v

    def standing(self, velocity_m_s: Array) -> bool:
        """Neither the set-point nor an axis moves."""
        return not self.v.any() and bool(np.abs(velocity_m_s).max() < STANDSTILL_M_S)

    def power_off(self) -> None:
        """Drives off, brakes closed, no error: as after the start of the PLC program."""
        self.state, self.error = PlcState.OFF, PlcError.NONE
        self.powered, self._enable_s = False, None
        self.faulty[:] = False
        self.f = np.zeros_like(self.f)

    # -------------------------------------------------------------- commands

    def _take(self, now_s: float, command: np.void) -> None:
        """Latch a new command."""
        layout = int(command["size"]), int(command["version"])
        mode = int(command["mode"])
        if layout != (COMMAND.itemsize, LAYOUT_VERSION) or mode not in _MODES:
            self.error |= PlcError.LAYOUT
            return  # and the watchdog goes hungry
        self._new_s = now_s
        self._mode = AxisMode(mode)
        if self._mode == AxisMode.STOP:  # always obeyed, whatever the set-points
            if not self.powered:
                self.power_off()
            elif self.state != PlcState.QUICK_STOP:
                self.state = PlcState.HOLDING
            return

        n = len(self.p)
        p, v, f = command["position_m"][:n], command["velocity_m_s"][:n], command["force_n"][:n]
        host_s, period_s = float(command["host_time_s"]), float(command["period_s"])
        share = float(command["velocity_feedforward"])
        if not (math.isfinite(host_s + period_s + share) and all(np.isfinite(values).all() for values in (p, v, f))):
            self._latch(PlcError.NOT_FINITE)
            return
        if self.state == PlcState.QUICK_STOP:
            return
        self.velocity_feedforward = min(max(share, 0.0), 1.0)
        f = _clip(f, -self._axes.peak_force_n, self._axes.peak_force_n)
        if self._mode == AxisMode.HOLD:
            self.f = f
            if self.powered:
                self.state = PlcState.HOLDING
            elif self._enable_s is None:
                self._enable_s = now_s + ENABLE_S
        elif self.powered:
            self._accept(now_s, Knot(host_s, p, v, f), min(max(period_s, self._cycle_s), LONGEST_GAP_S))

    def _accept(self, now_s: float, sent: Knot, period_s: float) -> None:
        """Follow a set-point that bears the host's time, one host period after its nominal arrival."""
        axes = self._axes
        last, silent_s = self._accepted_p, now_s - self._accepted_s
        if self.state == PlcState.HOLDING:
            last, silent_s = self.p, 0.0
        if (np.abs(sent.p - last) > axes.speed_m_s * max(period_s, silent_s) + JUMP_MARGIN_M).any():
            self._latch(PlcError.JUMP)
            return

        # The host's own clock spaces the set-points: jitter of their arrival does not become jitter of speed.
        deviation_s = now_s - sent.time_s - self._offset_s
        steady = 0.0 < sent.time_s - self._host_s <= LONGEST_GAP_S and abs(deviation_s) < period_s
        if self.state == PlcState.FOLLOWING and steady and now_s <= self._knots[-1].time_s + EXTRAPOLATE_S:
            self._offset_s += CLOCK_SHARE * deviation_s
        else:
            self._offset_s = now_s - sent.time_s
            self._knots = [Knot(now_s, self.p, self.v, self.f)]
        self._accepted_p, self._accepted_s, self._host_s = sent.p, now_s, sent.time_s

        p, v = _clip(sent.p, axes.low_m, axes.high_m), _clip(sent.v, -axes.speed_m_s, axes.speed_m_s)
        if (v != sent.v).any():
            self.error |= PlcError.VELOCITY
        outside = p != sent.p
        if outside.any():
            self.error |= PlcError.POSITION
            v[outside] = 0.0
        time_s = max(sent.time_s + self._offset_s + period_s, self._knots[-1].time_s + self._cycle_s)
        self._knots = [*self._knots[-2:], Knot(time_s, p, v, sent.f)]
        self.state = PlcState.FOLLOWING

    def _latch(self, error: PlcError) -> None:
        self.error |= error
        self.state = PlcState.QUICK_STOP
        self._enable_s = None

    # -------------------------------------------------------------- what the PLC decides by itself

    def _watch(self, now_s: float, position_m: Array, velocity_m_s: Array) -> None:
        """Enabling, watchdog, lag and standstill."""
        silent = self.age_s > QUICK_STOP_S + ROUNDING_S
        if not self.powered:
            if self._enable_s is not None and silent:
                self._latch(PlcError.WATCHDOG)
            elif self._enable_s is not None and now_s >= self._enable_s - ROUNDING_S:
                self.state, self.powered, self._enable_s = PlcState.HOLDING, True, None
                self.p, self.v = position_m.copy(), np.zeros_like(self.v)
            return

        if self.state != PlcState.QUICK_STOP:
            lagging = np.abs(self.p - position_m) > LAG_LIMIT_M
            if lagging.any():
                self.faulty |= lagging
                self._latch(PlcError.FOLLOWING)
                self.p, self.v = position_m.copy(), _clip(velocity_m_s, -self._axes.speed_m_s, self._axes.speed_m_s)
            elif self._mode != AxisMode.STOP:  # a host that said STOP may go
                if silent:
                    self._latch(PlcError.WATCHDOG)
                elif self.age_s >= LATE_S - ROUNDING_S:
                    self.state = PlcState.LATE
        stops = self._mode == AxisMode.STOP
        if (stops or self.state == PlcState.QUICK_STOP) and self.standing(velocity_m_s):
            if stops:
                self.power_off()
            else:
                self.powered = False  # the brakes hold from here; state and error stay until the host sends STOP

    # -------------------------------------------------------------- set-points

    def _follow(self, time_s: float) -> None:
        """Set-point at `time_s` on the cubic through the host's set-points, inside the limits."""
        knots = self._knots
        last = knots[-1]
        late_s = time_s - last.time_s
        if late_s > EXTRAPOLATE_S + ROUNDING_S:
            self._brake(self._axes.acceleration_m_s2)
            return
        if late_s >= 0.0:
            self.f = last.f
            self._move(last.p + late_s * last.v, last.v)
            return
        begin, end = (knots[-2], last) if time_s >= knots[-2].time_s else (knots[0], knots[1])
        h = end.time_s - begin.time_s
        s = max((time_s - begin.time_s) / h, 0.0)
        r = 1.0 - s
        self.f = r * begin.f + s * end.f
        p = (1.0 + 2.0 * s) * r * r * begin.p + s * s * (3.0 - 2.0 * s) * end.p + s * r * h * (r * begin.v - s * end.v)
        v = 6.0 * s * r / h * (end.p - begin.p) + r * (1.0 - 3.0 * s) * begin.v + s * (3.0 * s - 2.0) * end.v
        self._move(p, v)

    def _move(self, p: Array, v: Array) -> None:
        """Go to set-point `p`, `v` within this cycle; if a limit forbids it, as near as allowed, and catch up later."""
        axes, dt = self._axes, self._cycle_s
        p = _clip(p, axes.low_m, axes.high_m)
        low, high = self._speed_range()
        step = axes.quick_m_s2 * dt
        e = p - self.p - 0.5 * dt * (self.v + v)
        far = np.abs(e)
        reached = (far < REACHED_M) & (v >= low) & (v <= high) & (np.abs(v - self.v) <= step)
        if reached.all():
            self.p, self.v = p, v
            return
        # The approach speed from which the axis can still brake: no overshoot of the set-point.
        approach = np.minimum(far / dt, np.sqrt(2.0 * axes.acceleration_m_s2 * far))
        wanted = v + np.copysign(approach, e)
        allowed = _clip(wanted, low, high)
        limited = _clip(allowed, self.v - step, self.v + step)
        if (np.abs(wanted) > axes.speed_m_s).any():
            self.error |= PlcError.VELOCITY
        if (allowed != _clip(wanted, -axes.speed_m_s, axes.speed_m_s)).any():
            self.error |= PlcError.POSITION
        if (limited != allowed).any():
            self.error |= PlcError.ACCELERATION
        self.p = np.where(reached, p, self.p + 0.5 * dt * (self.v + limited))
        self.v = np.where(reached, v, limited)

    def _brake(self, deceleration: Array) -> None:
        """Slow all axes down in proportion, so that they stay on their path and stop together."""
        if not self.v.any():
            return
        dt = self._cycle_s
        share = max(1.0 - dt / float((np.abs(self.v) / deceleration).max()), 0.0)
        v = _clip(share * self.v, *self._speed_range())
        self.p = self.p + 0.5 * dt * (self.v + v)
        self.v = v

    def _speed_range(self) -> tuple[Array, Array]:
        """Lowest and highest speed of each axis, from which it can still stop inside its range after this cycle."""
        axes = self._axes
        double = 2.0 * axes.acceleration_m_s2
        p = self.p + self._cycle_s * self.v
        low = -np.minimum(axes.speed_m_s, np.sqrt(double * np.maximum(p - axes.low_m, 0.0)))
        high = np.minimum(axes.speed_m_s, np.sqrt(double * np.maximum(axes.high_m - p, 0.0)))
        return low, high


def _clip(values: Array, low: Array, high: Array) -> Array:
    """np.clip, three times as fast on six values."""
    return np.minimum(np.maximum(values, low), high)


class Drives:
    """Servo drives in position mode: position P, velocity PI, feed-forward of velocity and force.

    Every axis has the same gains per kilogram of its least load, so the closed chain does not couple them: its
    leg-space inertia has eigenvalues from 3 to 150 kg, and each of its eigenmodes sees these gains (a tuning on the
    mean was unstable). Without velocity feed-forward the lag is speed / position gain.
    """

    def __init__(self, axes: Axes, step_s: float) -> None:
        """Tune for these axes; `step_s` is the time between two steps."""
        n = len(axes.low_m)
        self.force_n = np.zeros(n)
        self.velocity_feedforward = 1.0  # share of the set-point velocity
        self._gain = VELOCITY_BANDWIDTH_1_S * axes.least_mass_kg
        self._integral_gain = self._gain * step_s / INTEGRAL_TIME_S
        self._peak_n, self._least_n = axes.peak_force_n, -axes.peak_force_n
        self._integral_n = np.zeros(n)
        self._error, self._wanted = np.zeros(n), np.zeros(n)

    def reset(self) -> None:
        """As after switching on."""
        self.force_n[:] = 0.0
        self._integral_n[:] = 0.0

    def step(self, p: Array, v: Array, f: Array, position_m: Array, velocity_m_s: Array) -> Array:
        """Axis forces (N) for the next plant step; the array is reused."""
        error, wanted, force = self._error, self._wanted, self.force_n
        np.subtract(p, position_m, out=error)
        error *= POSITION_GAIN_1_S
        error += self.velocity_feedforward * v
        error -= velocity_m_s
        np.multiply(self._gain, error, out=wanted)
        wanted += self._integral_n
        wanted += f
        np.minimum(np.maximum(wanted, self._least_n, out=force), self._peak_n, out=force)
        error *= self._integral_gain
        error *= force == wanted  # at the limit the integral stands still
        self._integral_n += error
        return force


class Cx5130:
    """PLC program, drives and plant behind an ADS device; every `cycle` is one PLC cycle of all of them."""

    def __init__(self, ads: schema.Ads, machine: schema.Machine, plant: Plant, cycle_s: float) -> None:
        """Put the two blocks into an ADS device at the address of `ads`."""
        axes = axes_of(machine)
        self.twin = PlcTwin(axes, cycle_s)
        self.twin.p = plant.position_m.copy()
        self.drives = Drives(axes, PLANT_STEP_S)
        self.plant = plant
        self.time_s = 0.0
        command = ams.Symbol(SYMBOL_COMMAND, "ST_PkmCommand", bytearray(COMMAND.itemsize))
        status = ams.Symbol(SYMBOL_STATUS, "ST_PkmStatus", bytearray(STATUS.itemsize))
        self.device = ams.Device(ads.ams_net_id, ads.ams_port, [command, status])
        self._cycle_s = cycle_s
        self._tau = PLANT_STEP_S * np.arange(1, round(cycle_s / PLANT_STEP_S) + 1)[:, None]
        self._command = np.frombuffer(command.data, COMMAND)
        self._status = np.frombuffer(status.data, STATUS)
        self._status["size"], self._status["version"] = STATUS.itemsize, LAYOUT_VERSION
        self._tell()

    def cycle(self) -> None:
        """Advance everything by one PLC cycle."""
        twin, drives, plant = self.twin, self.drives, self.plant
        running = self.device.state == ams.AdsState.RUN
        if running:
            twin.step(self.time_s, self._command[0].copy(), plant.position_m, plant.velocity_m_s)
        else:
            twin.power_off()  # TwinCAT zeroes the outputs of a PLC that leaves RUN
        self.time_s += self._cycle_s
        if twin.powered:
            drives.velocity_feedforward = twin.velocity_feedforward
            # The drives interpolate within the cycle, as in cyclic synchronous position mode.
            slope = (twin.v - twin.v_before) / self._cycle_s
            v = twin.v_before + self._tau * slope
            p = twin.p_before + self._tau * (0.5 * (twin.v_before + v))
            for p_now, v_now in zip(p, v, strict=True):
                plant.step(drives.step(p_now, v_now, twin.f, plant.position_m, plant.velocity_m_s))
        else:
            drives.reset()
            for _ in self._tau:
                plant.step(None)
        if running:
            self._tell()

    def _tell(self) -> None:
        """Fill the status block as of the end of the cycle."""
        twin, plant, status = self.twin, self.plant, self._status
        status["seq_echo"], status["plc_cycle"] = twin.seq, twin.cycle
        status["plc_state"], status["plc_error"] = twin.state, twin.error
        for name, values in (  # a machine may have fewer axes than the struct
            ("position_m", plant.position_m),
            ("velocity_m_s", plant.velocity_m_s),
            ("setpoint_m", twin.p),
            ("force_n", self.drives.force_n),
            ("cell_n", plant.cell_n),
            ("drive_status", DriveStatus.ENABLED * twin.powered | DriveStatus.FAULT * twin.faulty),
        ):
            status[name][0, : len(twin.p)] = values


# ---------------------------------------------------------------- real time


async def serve(site: schema.Site, machine: schema.Machine, plant: Plant, deliver: ams.Deliver = ams.at_once) -> None:
    """Run the virtual CX5130 of a site until SIGTERM or SIGINT, then until the machine stands.

    Raises:
        OSError: the address of the site is in use or not of this computer.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await run(site, machine, plant, stop, deliver)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def run(
    site: schema.Site, machine: schema.Machine, plant: Plant, stop: asyncio.Event, deliver: ams.Deliver = ams.at_once
) -> None:
    """As `serve`, until `stop` is set."""
    cycle_s = (site.virtual_cell or schema.VirtualCell()).plc_cycle_s
    cx = Cx5130(site.ads, machine, plant, cycle_s)
    server = ams.Server(cx.device, deliver)
    host, _, port = site.ads.address.partition(":")
    host, bound = await server.open(host, int(port or TCP_PORT))
    log.info("virtual CX5130 listens at %s:%d, AMS %s:%d", host, bound, site.ads.ams_net_id, site.ads.ams_port)
    journal = Journal(cx.twin)
    missed = 0
    deadline_s = math.inf
    try:
        async with contextlib.aclosing(ticks(cycle_s)) as elapsed:
            async for tick in elapsed:
                cycles = tick.skipped + 1
                missed += tick.skipped
                if cycles * cycle_s > CATCH_UP_S:
                    log.warning("the process was away for %.1f s, the plant stood still meanwhile", cycles * cycle_s)
                for _ in range(min(cycles, round(CATCH_UP_S / cycle_s))):
                    cx.cycle()
                    if line := journal.line(cx.twin):
                        log.info("PLC: %s", line)
                if stop.is_set():
                    deadline_s = min(deadline_s, time.monotonic() + STOP_WITHIN_S)
                    if _at_rest(cx) or time.monotonic() > deadline_s:
                        break
        rest = "the machine stands" if _at_rest(cx) else f"the machine still moves after {STOP_WITHIN_S:.0f} s"
        log.info("virtual CX5130 ends: %s; %d of %d PLC cycles were late", rest, missed, cx.twin.cycle)
    finally:
        await server.close()


def _at_rest(cx: Cx5130) -> bool:
    return cx.twin.state != PlcState.FOLLOWING and cx.twin.standing(cx.plant.velocity_m_s)


class Journal:
    """Turns the PLC's changes of state into sentences."""

    def __init__(self, twin: PlcTwin) -> None:
        """Begin with the state as it is."""
        self._state, self._powered, self._silent_s = twin.state, twin.powered, 0.0

    def line(self, twin: PlcTwin) -> str:
        """What changed in the cycle just run; empty when nothing did. Call it after every cycle."""
        before, was_powered, silent_s = self._state, self._powered, self._silent_s
        self._state, self._powered, self._silent_s = twin.state, twin.powered, twin.age_s
        silence = f"no new set-point for {1e3 * twin.age_s:.0f} ms"
        stands = was_powered and not twin.powered
        if twin.state == before:
            return f"standstill, brakes closed; {silence}" if stands and twin.state == PlcState.QUICK_STOP else ""
        match twin.state:
            case PlcState.OFF:
                return "drives off, brakes closed"
            case PlcState.LATE:
                return f"{silence}: controlled hold"
            case PlcState.QUICK_STOP:
                cause = silence if PlcError.WATCHDOG in twin.error else f"{(twin.error & _LATCHED).name}"
                return f"{cause}: quick stop" + (", at standstill already, brakes closed" if stands else "")
            case PlcState.HOLDING | PlcState.FOLLOWING:
                what = "holding" if twin.state == PlcState.HOLDING else "following the host's set-points"
                return what if before != PlcState.LATE else f"set-points again after {1e3 * silent_s:.0f} ms: {what}"
