"""The PLC program of the virtual CX5130: set-points and force feed-forward for the drives, cycle by cycle.

Pure and stepped: time is an argument. It trusts nobody: whatever the host says, its set-points stay inside the limits
below, and it stops by itself when the host falls silent.

Legend (arrays have one value an axis; an axis is a leg):
    p, v, a     set-point of position m, velocity m/s, acceleration m/s²
    f           force feed-forward N
    knot        a set-point of the host with the time t at which the axis is to be there
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller import schema
from controller.records import AxisMode
from drivers.exchange import COMMAND, LAYOUT_VERSION, PlcError, PlcState

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

LATCHED = PlcError.WATCHDOG | PlcError.JUMP | PlcError.NOT_FINITE | PlcError.FOLLOWING
_MODES = frozenset(AxisMode)

# Least eigenvalue of the leg-space inertia / platform mass: 2.6 kg of 68 kg, 3.4 kg of 12 kg, 25 kg of 62 kg.
LEAST_LOAD = {"free": 1 / 25, "2r1t": 1 / 4, "spherical": 1 / 3}


class Axes(NamedTuple):
    """What the PLC program and the drives know of the machine, one value an axis."""

    low_m: Array
    high_m: Array
    speed_m_s: Array
    acceleration_m_s2: Array  # of every ordinary stop
    quick_m_s2: Array  # of the quick stop, and the clamp
    peak_force_n: Array  # at the drive's peak torque or its supply pressure
    least_mass_kg: Array  # rotor, and the least load


def axes_of(machine: schema.Machine, hydraulics: schema.Hydraulics | None = None) -> Axes:
    """Collect the limits of a machine; a rotary drive on a screw gives force = torque * 2 pi gear / lead."""
    supply_pa = (hydraulics or schema.Hydraulics()).supply_pa
    legs = [schema.effective_leg(machine, i) for i in range(len(machine.leg))]
    limits = [leg.limits for leg in legs]
    peak_n, rotor_kg = np.array([_peak_and_rotor(leg.drive, supply_pa) for leg in legs]).T
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


def _peak_and_rotor(drive: schema.Drive, supply_pa: float) -> tuple[float, float]:
    """Peak force (N) of a drive and the mass of its rotor as seen along the leg (kg)."""
    if isinstance(drive, schema.HydraulicDrive):
        return 0.25 * math.pi * drive.piston_diameter_m**2 * supply_pa, 0.0
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
            self.error &= LATCHED
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
        """Neither the set-point nor an axis moves; with an axis that does not follow nobody waits for the axes."""
        return not self.v.any() and (bool(self.faulty.any()) or bool(np.abs(velocity_m_s).max() < STANDSTILL_M_S))

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
