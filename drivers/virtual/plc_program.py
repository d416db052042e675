"""The PLC program of the virtual CX5130: set-points and force feed-forward for the drives, cycle by cycle.

Pure and stepped: time is an argument. It trusts nobody: whatever the host says, its set-points stay inside the limits
below, and it stops by itself when the host falls silent.

Legend (arrays have one value an axis; an axis is a leg):
    p, v, a     set-point of position m, velocity m/s, acceleration m/s²
    f           force feed-forward N; in mode FORCE the set-point of force
    knot        a set-point of the host with the time t at which the axis is to be there
"""

import math
from enum import IntEnum
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

HOMING_HELD_S = 0.020  # a force counts when it lasts: one odd reading is no stop
HOMING_FREE_M = 0.002  # a leg that meets a force so soon is blocked, or stands at its stop already
HOMING_FORCE_MARGIN = 1.25  # what a drive may give while homing, relative to the force that is looked for

LATCHED = PlcError.WATCHDOG | PlcError.JUMP | PlcError.NOT_FINITE | PlcError.FOLLOWING | PlcError.HOMING
_MODES = frozenset(AxisMode)

# Least eigenvalue of the leg-space inertia / platform mass: 2.6 kg of 68 kg, 3.4 kg of 12 kg, 25 kg of 62 kg.
LEAST_LOAD = {"free": 1 / 25, "2r1t": 1 / 4, "spherical": 1 / 3}


class HomingMethod(IntEnum):
    """How the axes find out where they are."""

    ABSOLUTE = 0  # the encoders know
    MARK = 1  # a mark at a known length, caught by the drive's touch probe
    FORCE = 2  # a stop at a known length


METHODS = {"absolute": HomingMethod.ABSOLUTE, "reference": HomingMethod.MARK, "force": HomingMethod.FORCE}


class Homing(NamedTuple):
    """What the PLC program knows of homing."""

    method: HomingMethod
    length_m: Array  # (n,) at mark or stop
    direction: float  # -1 shorter, +1 longer
    speed_m_s: float
    travel_m: float
    back_m: float
    force_n: float
    timeout_s: float


def homing_of(homing: schema.Homing, n: int) -> Homing:
    """The homing of a site for n axes."""
    return Homing(
        METHODS[homing.method],
        np.broadcast_to(np.array(homing.length_m or 0.0, dtype=np.float64), n),
        1.0 if homing.direction == "extend" else -1.0,
        homing.speed_m_s,
        homing.travel_m,
        homing.back_m,
        homing.force_n,
        homing.timeout_s,
    )


class Found(NamedTuple):
    """What the drives tell while the axes look for their references, (n,) each."""

    force_n: Array  # what they put into the axes
    marked: NDArray[np.bool_]  # the touch probe has seen the mark in the direction of homing
    latch_m: Array  # the axis position at that moment


class Axes(NamedTuple):
    """What the PLC program and the drives know of the machine, one value an axis."""

    low_m: Array
    high_m: Array
    speed_m_s: Array
    acceleration_m_s2: Array  # of every ordinary stop
    quick_m_s2: Array  # of the quick stop, and the clamp
    peak_force_n: Array  # at the drive's peak torque or its supply pressure
    force_n: Array  # the largest set-point of force: what the leg may bear and the drive can do
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
        force_n=np.minimum(peak_n, [limit.force_n for limit in limits]),
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
    are closed). While `forcing` the drives put `f` into the axes and have no position loop: the set-point only tells
    whether the axes are where the host believes. `age_s` is the time since the last new sequence number.

    An axis position is the encoder plus `offset_m`, which homing finds. Until they are `homed` positions are good
    for differences only: no range holds, and set-points of the host are refused.
    """

    def __init__(self, axes: Axes, cycle_s: float, homing: Homing | None = None) -> None:
        """Start with the drives off; without `homing` the encoders are absolute."""
        n = len(axes.low_m)
        self._homing = homing or homing_of(schema.Homing(), n)
        self.homed = self._homing.method == HomingMethod.ABSOLUTE  # all axes, or none
        self.offset_m = np.zeros(n)
        self.seeking = False  # the axes look for their references
        self._due = False  # they shall, once the drives are on
        self._back = False  # all have found them and go back
        self._begun_s = 0.0
        self._start_p = np.zeros(n)
        self._found: NDArray[np.bool_] = np.zeros(n, dtype=np.bool_)
        self._latch_m = np.zeros(n)  # axis position at mark or stop
        self._goal_p = np.zeros(n)  # where the axes stand at the end
        self._pressed_s = np.zeros(n)  # for how long a force has been felt
        self.state = PlcState.OFF
        self.error = PlcError.NONE
        self.powered = False
        self.faulty: NDArray[np.bool_] = np.zeros(n, dtype=np.bool_)  # axes that did not follow
        self.cycle = 0
        self.seq = 0
        self.age_s = math.inf
        self.p, self.v, self.f = np.zeros(n), np.zeros(n), np.zeros(n)
        self.velocity_feedforward = 1.0
        self.forcing = False
        self.p_before, self.v_before = self.p, self.v
        self._axes = axes
        self._cycle_s = cycle_s
        self._mode = AxisMode.STOP
        self._new_s = -math.inf  # when seq last changed
        self._enable_s: float | None = None  # when the drives will be on, while they are being enabled
        self._knots: list[Knot] = []  # oldest first, at most three: an early set-point does not cut the one before
        self._accepted_p: Array = self.p  # last set-point taken from the host, as it was sent
        self._accepted_s = 0.0  # and when
        self._host_s = 0.0  # host time of it
        self._offset_s = 0.0  # PLC clock minus host clock at arrival, smoothed
        self._measured: tuple[Array, Array, Array] = (
            self.p,
            self.v,
            self.f,
        )  # of this cycle: position, velocity, force of the drives

    def step(
        self,
        now_s: float,
        command: np.void,
        position_m: Array,
        velocity_m_s: Array,
        found: Found | None = None,
        force_n: Array | None = None,
    ) -> None:
        """Run the cycle that starts at `now_s`, with the COMMAND record and the axis positions as they are then.

        `found` is needed by axes that are not absolute, `force_n` (what the drives put in) by the mode FORCE.
        """
        self.cycle = (self.cycle + 1) & 0xFFFFFFFF
        self._measured = position_m, velocity_m_s, self.f if force_n is None else force_n
        seq = int(command["seq"])
        if seq != self.seq:
            self.seq = seq
            self.error &= LATCHED
            self._take(now_s, command)
        self.age_s = now_s - self._new_s
        self._watch(now_s, position_m, velocity_m_s)
        self._hand_over(self.forcing and self.state == PlcState.FOLLOWING)
        if self.state == PlcState.HOMING and found is not None:
            self._seek(now_s, position_m, velocity_m_s, found)

        self.p_before, self.v_before = self.p, self.v
        if self.state == PlcState.FOLLOWING:
            self._follow(now_s + self._cycle_s)
        elif self.state == PlcState.HOMING:
            self._creep()
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
        self.seeking = self._due = False
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
        if mode != AxisMode.HOME:
            self.seeking = self._due = False  # what was found so far is dropped
        elif self._mode != AxisMode.HOME and self._homing.method != HomingMethod.ABSOLUTE:
            self.homed = False
            self._due = True
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
        most_n = self._axes.force_n if self._mode == AxisMode.FORCE else self._axes.peak_force_n
        f = _clip(f, -most_n, most_n)
        if self._mode in (AxisMode.HOLD, AxisMode.HOME):
            self.f = f
            if self.powered:
                self.state = PlcState.HOMING if self.seeking else PlcState.HOLDING
            elif self._enable_s is None:
                self._enable_s = now_s + ENABLE_S
        elif not self.homed:
            self._latch(PlcError.HOMING)
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

        forcing = self._mode == AxisMode.FORCE
        changed = forcing != self.forcing
        self._hand_over(forcing)

        # The host's own clock spaces the set-points: jitter of their arrival does not become jitter of speed.
        deviation_s = now_s - sent.time_s - self._offset_s
        steady = not changed and 0.0 < sent.time_s - self._host_s <= LONGEST_GAP_S and abs(deviation_s) < period_s
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

    def _hand_over(self, forcing: bool) -> None:
        """From position to force the drives go on with the force they have, and back from where the axes are."""
        position_m, velocity_m_s, force_n = self._measured
        if forcing and not self.forcing:
            self.f = force_n.copy()
        elif self.forcing and not forcing:
            self.p, self.v = position_m.copy(), _clip(velocity_m_s, -self._axes.speed_m_s, self._axes.speed_m_s)
        self.forcing = forcing

    def _latch(self, error: PlcError) -> None:
        self.error |= error | (PlcError.HOMING if self.seeking or self._due else PlcError.NONE)
        self.seeking = self._due = False
        self.state = PlcState.QUICK_STOP
        self._enable_s = None

    # -------------------------------------------------------------- what the PLC decides by itself

    def _watch(self, now_s: float, position_m: Array, velocity_m_s: Array) -> None:
        """Enabling, watchdog, lag, standstill, and what no position loop looks after while `forcing`."""
        silent = self.age_s > QUICK_STOP_S + ROUNDING_S
        if not self.powered:
            if self._enable_s is not None and silent:
                self._latch(PlcError.WATCHDOG)
            elif self._enable_s is not None and now_s >= self._enable_s - ROUNDING_S:
                self.state, self.powered, self._enable_s = PlcState.HOLDING, True, None
                self.p, self.v = position_m.copy(), np.zeros_like(self.v)
            return

        if self._due and self.state == PlcState.HOLDING and self.standing(velocity_m_s):
            self.state, self.seeking, self._due, self._back = PlcState.HOMING, True, False, False
            self._begun_s, self._start_p = now_s, self.p
            self._found[:] = False
            self._pressed_s[:] = 0.0
        if self.forcing and self.state != PlcState.QUICK_STOP:
            axes = self._axes
            if (np.abs(velocity_m_s) > axes.speed_m_s).any():
                self._latch(PlcError.FOLLOWING | PlcError.VELOCITY)
            if ((position_m < axes.low_m) | (position_m > axes.high_m)).any():
                self._latch(PlcError.FOLLOWING | PlcError.POSITION)
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

    # -------------------------------------------------------------- homing

    def _seek(self, now_s: float, position_m: Array, velocity_m_s: Array, found: Found) -> None:
        """Which axes have found their references, whether one failed, and the end: all are homed at once, or none."""
        homing = self._homing
        self._pressed_s += self._cycle_s
        self._pressed_s[homing.direction * found.force_n < homing.force_n] = 0.0
        held = self._pressed_s >= HOMING_HELD_S - ROUNDING_S
        way_m = np.abs(self.p - self._start_p)
        overdue = now_s - self._begun_s > homing.timeout_s
        if homing.method == HomingMethod.FORCE:
            at_it, latch_m = held & ~self._found, position_m
            failed = at_it & (np.abs(position_m - self._start_p) < HOMING_FREE_M)
        else:
            at_it, latch_m = found.marked & ~self._found, found.latch_m
            failed = held
        failed = failed | (~self._found & ~at_it & ((way_m > homing.travel_m) | overdue)) | (self._back & overdue)
        if failed.any():
            self.faulty |= failed
            self._latch(PlcError.HOMING)
            return
        self._latch_m = np.where(at_it, latch_m, self._latch_m)
        self._found |= at_it
        self._back = self._back or (bool(self._found.all()) and not self.v.any())
        self._goal_p = self._latch_m - homing.direction * homing.back_m
        if not self._back or (self.p != self._goal_p).any() or np.abs(velocity_m_s).max() >= STANDSTILL_M_S:
            return
        correction_m = homing.length_m - self._latch_m  # the latch has the offset so far in it: none is added twice
        self.offset_m = self.offset_m + correction_m
        self.p = self.p + correction_m
        self.homed = True
        self.seeking = False
        self.state = PlcState.HOLDING

    def _creep(self) -> None:
        """Towards the references, each axis until it has found its own; then all of them back."""
        axes, homing, dt = self._axes, self._homing, self._cycle_s
        step = axes.acceleration_m_s2 * dt
        v = np.where(self._found, 0.0, homing.direction * homing.speed_m_s)
        if self._back:
            e = self._goal_p - self.p - 0.5 * dt * self.v
            far = np.abs(e)
            approach = np.minimum(np.minimum(far / dt, np.sqrt(2.0 * axes.acceleration_m_s2 * far)), homing.speed_m_s)
            v = np.copysign(approach, e)
            reached = (far < REACHED_M) & (np.abs(self.v) <= step)
            self.p = np.where(reached, self._goal_p, self.p)
            self.v = np.where(reached, 0.0, self.v)
            v = np.where(reached, 0.0, v)
        v = _clip(v, self.v - step, self.v + step)
        self.p = self.p + 0.5 * dt * (self.v + v)
        self.v = v

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
        if not self.homed:
            return -axes.speed_m_s, axes.speed_m_s
        double = 2.0 * axes.acceleration_m_s2
        p = self.p + self._cycle_s * self.v
        low = -np.minimum(axes.speed_m_s, np.sqrt(double * np.maximum(p - axes.low_m, 0.0)))
        high = np.minimum(axes.speed_m_s, np.sqrt(double * np.maximum(axes.high_m - p, 0.0)))
        return low, high


def _clip(values: Array, low: Array, high: Array) -> Array:
    """np.clip, three times as fast on six values."""
    return np.minimum(np.maximum(values, low), high)
