"""What pushes the platform, and which load cell or drive contradicts the rest: measured against modelled forces.

A leg has up to two sources of its force: its load cell, and what moves it: the chamber pressures of its cylinder, or
the force that the drive reports. What a source measures more than the model says, less what it was off without a push,
is its residual r. The model says J^T f = what the motion needs, the truth is J^T (f + r) + W_e: so W_e = -J^T r.

The model is taken at the measured pose and rate, and at the acceleration that the reference had when it was played. The
second derivative of a measured length at 100 Hz would be noise of several m/s2; the drives follow the reference within
0.1 m/s2, and a push that they give way to shows in the force long before it shows in the path.

error, residual   (2, n)  N, rows CELL and AXIS; > 0 pushes the platform away from the base
bounds            (2, n)  N, what the model may be off
size of a wrench          N, the larger of force and moment over the platform's radius, as far as the platform is free
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller import schema
from controller.mechanism import dynamics, kinematics, layout, posture
from controller.mechanism.compile import i64, kernel, v1, v2
from controller.mechanism.drive import COULOMB, EFFICIENCY, ROTOR_MASS, VISCOUS
from controller.mechanism.layout import MECHANISM, Mechanism
from controller.mechanism.leg import STICTION_SPEED_M_S
from controller.mechanism.platform import body, freedoms
from controller.records import Array, Command, Estimate, Fault, Quality, Reference, Sample

CELL, AXIS = 0, 1
NET, MODEL, BELOW, RATE, ACCELERATION = range(5)  # rows of what `leg_forces` fills

# What a machine file is off where nobody has identified it, and what follows for the bounds of a site that has none.
WEIGHT_SHARE = 0.025  # of the weight, what changes of its error with the pose: the rest is taken away at rest
INERTIA_SHARE = 0.20
FRICTION_SHARE = 0.05  # of a leg's largest force, its dry friction; as much again at the largest speed
BIAS_SHARE = 0.10  # of a leg's largest force: a larger difference at rest is no error of a drive's model

ASKED = 4  # ticks that are remembered: what is older than three is not looked at
# At rest dry friction bears what it likes. So what drives and pressures were off there is corrected in motion, so
# slowly that a push is told long before it would pass for friction.
RUBBING_M_S = 5.0 * STICTION_SPEED_M_S  # from this rate on dry friction is what the model says
LEARN_S = 5.0  # time constant
FADE = 0.88  # of a bound from tick to tick: what an acceleration excites outlives it, at a stop by some 50 ms
SETTLE_TICKS = 25  # of undisturbed following before anything is judged
SUSPECT_TICKS = 30  # a suspect source must contradict for so long: it is told only, so late is better than wrong
# The PLC plays what it got when it got it: a busy network or host delays that by some ms, and with it the acceleration.
SLOW_M_S = 5e-3  # below this the set-points hardly tell by how much
LATE_S = 5e-3  # so late the PLC bridges, later it brakes
OFF_SETPOINT_M = 3e-4  # further off it plays something else than what it was sent: a hold of its own

Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]


class Monitor(NamedTuple):
    """All that does not change: n legs, k sensors of the site."""

    machine: Mechanism
    drives: Array  # (n, 4)
    period_s: float
    cells: Indices  # (n,) sensor of each leg; -1 none
    capacity_n: Array  # (n,)
    pressures: Indices  # (2, n) sensors of head and rod chamber; -1 none
    areas_m2: Array  # (2, n) of the piston and of the ring around the rod
    max_age_s: Array  # (k,)
    bounds: Array  # (2, 3, n): N, N s/m, N s2/m
    dry_n: Array  # (n,) dry friction of drive and seals, which may be anything up to this at rest
    bias_most_n: Array  # (2, n)
    share: float  # of a change that the filter lets through in a tick
    persistence_ticks: int
    told: Fault  # what a push is told as
    scale: Array  # (6,) 1 and the platform's radius (m): moments over the radius are forces


class Memory(NamedTuple):
    """What one tick hands to the next."""

    asked: tuple[tuple[Array, Array], ...]  # acceleration of the reference, positions sent; newest first
    error_n: Array  # (2, n) filtered; NaN where not known
    bias_n: Array  # (2, n) what the sources are off without a push; NaN until learnt
    bounds_n: Array  # (2, n) they shrink no faster than the filter lets errors go
    steady_ticks: int = 0
    pushed_ticks: int = 0
    cell_ticks: int = 0
    drive_ticks: int = 0
    suspects: Fault = Fault.NONE


class Loads(NamedTuple):
    """What a tick shows, all finite or NaN."""

    error_n: Array  # (2, n) measured minus modelled
    bounds_n: Array  # (2, n)
    JT: Array  # (6, n)
    free: Array  # (6, free) scaled motions of the platform
    rubbing: NDArray[np.bool_]  # (n,) the axis moves fast enough for its friction to be known
    played: bool  # the PLC plays what it was sent


@kernel(i64(MECHANISM, v2, v1, v1, v1, v1, v1, v2, v2))
def leg_forces(
    machine: Mechanism, drives: Array, x: Array, xd: Array, xdd: Array, twist: Array, axis: Array, JT_out: Array,
    legs_out: Array,
) -> int:  # fmt: skip
    """Forces that the legs put on the platform: as the axis forces (n,) have it, and as the motion asks for.

    legs_out (5, n): NET of the axis forces, friction, rotor and losses taken off; MODEL of the same; what of it the
    links BELOW the cell keep; RATE and ACCELERATION of the axes. JT_out (6, n). 0, or -1 at a singular pose with NaN.
    """
    n = machine.legs.shape[0]
    JT, W, own, scratch = np.empty((6, n)), np.empty(6), np.empty((2, n)), np.empty((4, 6, 6))
    kinematics.axis_rates(machine, x, xd, xdd, twist, own[0], own[1], legs_out[ACCELERATION])
    moving = body(x, xd, xdd)
    dynamics.required(machine, moving, JT, W, own[0], legs_out[BELOW], legs_out[RATE])
    JT_out[:, :] = JT
    if not dynamics.distribute(machine, moving, W, JT, legs_out[MODEL], scratch):
        legs_out[:, :] = math.nan
        return -1
    for i in range(n):
        rate, drive = legs_out[RATE, i], drives[i]
        rubbing = drive[COULOMB] * math.tanh(rate / STICTION_SPEED_M_S) + drive[VISCOUS] * rate
        force = axis[i] - own[0, i] - rubbing - drive[ROTOR_MASS] * legs_out[ACCELERATION, i]
        one = math.copysign(1.0, force)  # losses keep the sign, and grow with the force
        put_in = dynamics.transmitted(one, rate, drive[EFFICIENCY])
        put_in = dynamics.transmitted(put_in, rate, machine.legs[i, layout.EFFICIENCY])
        legs_out[NET, i] = abs(force) / put_in
    return 0


def build_monitor(
    machine: schema.Machine, site: schema.Site, mechanism: Mechanism, drives: Array, home: Array
) -> Monitor:
    """The monitor of a machine on a site."""
    given, names, n = site.control.monitor, list(site.sensors), len(machine.leg)
    legs = [schema.effective_leg(machine, i) for i in range(n)]

    def sensors(prefix: str) -> list[int]:
        return [names.index(f"{prefix}_{i}") if f"{prefix}_{i}" in names else -1 for i in range(1, n + 1)]

    scale = np.ones(6)
    scale[3:] = mechanism.platform[layout.RADIUS]
    zero, JT, forces = np.zeros(6), np.empty((6, n)), np.empty((5, n))
    leg_forces(mechanism, drives, home, zero, zero, np.zeros(n), np.zeros(n), JT, forces)
    free = _free(mechanism, home, scale)
    weight_n = size_of(free @ np.linalg.pinv(free) @ (JT @ forces[MODEL] / scale)) / n
    most_n = np.array([leg.limits.force_n for leg in legs])
    inertia_kg = INERTIA_SHARE * weight_n / float(np.linalg.norm(mechanism.platform[layout.GRAVITY :][:3]) or 1.0)
    friction_n = FRICTION_SHARE * most_n
    speeds = np.array([leg.limits.speed_m_s for leg in legs])
    derived = (
        (np.full(n, WEIGHT_SHARE * weight_n), np.zeros(n), np.full(n, inertia_kg)),
        (friction_n, friction_n / speeds, inertia_kg + INERTIA_SHARE * drives[:, ROTOR_MASS]),
    )
    capacity_n = np.array([leg.cell.capacity_n if leg.cell else 0.0 for leg in legs])
    bores = [leg.drive if isinstance(leg.drive, schema.HydraulicDrive) else None for leg in legs]
    areas = [
        (drive.piston_diameter_m**2, drive.piston_diameter_m**2 - drive.rod_diameter_m**2) if drive else (0.0, 0.0)
        for drive in bores
    ]
    return Monitor(
        machine=mechanism,
        drives=drives,
        period_s=1.0 / site.rate_hz,
        cells=np.array(sensors("cell")),
        capacity_n=capacity_n,
        pressures=np.array([sensors("head_pressure"), sensors("rod_pressure")]),
        areas_m2=0.25 * math.pi * np.array(areas).T,
        max_age_s=np.array([sensor.max_age_s for sensor in site.sensors.values()]),
        bounds=np.array([_bounds(given.cells, derived[CELL]), _bounds(given.drives, derived[AXIS])]),
        dry_n=drives[:, COULOMB] + mechanism.legs[:, layout.COULOMB_FRICTION],
        bias_most_n=np.array([site.control.tare_limit * capacity_n, BIAS_SHARE * most_n]),
        share=-math.expm1(-1.0 / (site.rate_hz * given.filter_s)) if given.filter_s else 1.0,
        persistence_ticks=given.persistence_ticks,
        told={"trip": Fault.COLLISION, "warn": Fault.EXTERNAL_LOAD, "off": Fault.NONE}[given.collision],
        scale=scale,
    )


def _bounds(given: schema.Bounds, derived: tuple[Array, Array, Array]) -> Array:
    """(3, n): the numbers of the site where it has them."""
    own = (given.base_n, given.per_speed_n_s_m, given.per_acceleration_n_s2_m)
    return np.array([derived[j] if own[j] is None else np.full_like(derived[j], own[j]) for j in range(3)])


def at_start(n: int) -> Memory:
    """Nothing known yet of n legs."""
    unknown = np.full((2, n), np.nan)
    return Memory((), unknown, unknown, np.zeros((2, n)))


def size_of(scaled: Array) -> float:
    """Size (N) of a scaled wrench (6,)."""
    a, b, c, d, e, f = scaled.tolist()
    return max(math.hypot(a, b, c), math.hypot(d, e, f))


def overforce(monitor: Monitor, sample: Sample) -> bool:
    """A valid load cell shows more than it is made for."""
    fitted = monitor.cells >= 0
    cells = monitor.cells[fitted]
    good = sample.sensor_quality[cells] == Quality.GOOD
    return bool((good & (np.abs(sample.sensor[cells]) > monitor.capacity_n[fitted])).any())


def observe(
    monitor: Monitor, memory: Memory, sample: Sample, estimate: Estimate, twist: Array, forcing: bool
) -> Loads | None:
    """What the sources show; None where the pose is not known, or not what was asked for when the sample was taken."""
    if estimate.iterations < 0:
        return None
    # The newest thing asked for is that of the tick before. The PLC plays set-points of position one host period late,
    # those of force at once.
    ticks_ago = max(sample.age_s / monitor.period_s - forcing, 0.0)
    asked = _asked(memory, ticks_ago)
    if asked is None:
        return None
    if not forcing:
        _, wanted_m, moved_m = asked
        slow_m = SLOW_M_S * monitor.period_s
        late_ticks = float((wanted_m - sample.setpoint_m) @ moved_m) / (float(moved_m @ moved_m) + slow_m**2)
        most = LATE_S / monitor.period_s
        asked = _asked(memory, ticks_ago + min(max(late_ticks, -min(ticks_ago, most)), most)) or asked
    xdd, wanted_m, _ = asked
    n = len(monitor.drives)
    JT, forces = np.empty((6, n)), np.empty((5, n))
    axis_n = _axis_forces(monitor, sample)
    if leg_forces(monitor.machine, monitor.drives, estimate.pose, estimate.rate, xdd, twist.copy(), axis_n, JT, forces):
        return None
    error_n = np.array([_cell_forces(monitor, sample) + forces[BELOW] - forces[MODEL], forces[NET] - forces[MODEL]])
    speed, acceleration = np.abs(forces[RATE]), np.abs(forces[ACCELERATION])
    bounds_n = monitor.bounds[:, 0] + monitor.bounds[:, 1] * speed + monitor.bounds[:, 2] * acceleration
    bounds_n[AXIS] += monitor.dry_n * (1.0 - np.tanh(speed / STICTION_SPEED_M_S))
    played = forcing or bool(np.abs(sample.setpoint_m - wanted_m).max() < OFF_SETPOINT_M)
    free = _free(monitor.machine, estimate.pose, monitor.scale)
    return Loads(error_n, bounds_n, JT, free, speed > RUBBING_M_S, played and bool(np.isfinite(xdd).all()))


def _asked(memory: Memory, ticks_ago: float) -> tuple[Array, Array, Array] | None:
    """Acceleration (6,), positions (n,) and what these moved in a tick; None where it was so long ago or never."""
    ago = int(ticks_ago)
    if not ago + 1 < len(memory.asked):
        return None
    (xdd, position_m), (earlier_xdd, earlier_m) = memory.asked[ago : ago + 2]
    moved_m, between = position_m - earlier_m, ticks_ago - ago
    return xdd + between * (earlier_xdd - xdd), position_m - between * moved_m, moved_m


def judge(
    monitor: Monitor, memory: Memory, loads: Loads | None, tare_n: Array, powered: bool, fresh: bool
) -> tuple[Memory, Fault, Array, Array]:
    """What is wrong, the external wrench (6,), and the residual (n,) it comes from; NaN where not known.

    `powered`: the machine follows its references; what was learnt, and what is suspect, lasts as long. `fresh`: so does
    the sample show it.
    """
    n = len(monitor.drives)
    if not powered:
        memory = at_start(n)._replace(asked=memory.asked)
    if loads is None or not powered or not fresh:
        rest = at_start(n)._replace(asked=memory.asked, bias_n=memory.bias_n, suspects=memory.suspects)
        return rest, memory.suspects, np.full(6, np.nan), np.full(n, np.nan)

    before = np.where(np.isfinite(memory.error_n), memory.error_n, loads.error_n)
    error_n = before + monitor.share * (loads.error_n - before)
    loads = loads._replace(bounds_n=np.fmax(loads.bounds_n, FADE * memory.bounds_n))
    suspects, bias_n = memory.suspects, memory.bias_n.copy()
    if tare_n.any():
        bias_n[CELL] = tare_n
    residual_n = error_n - np.nan_to_num(bias_n)
    source = CELL if np.isfinite(error_n[CELL]).all() else AXIS
    known = [bool(np.isfinite(row).all()) for row in error_n + bias_n]
    wrench = _wrench(monitor, loads, residual_n[source])
    moves = loads.free.any(axis=1)

    steady_ticks = memory.steady_ticks + 1 if loads.played else 0
    pushed = cell_off = drive_off = False
    if steady_ticks > SETTLE_TICKS and known[source]:
        off, cell = _contradictions(loads, residual_n, known)
        cell_off, drive_off = bool((off & cell).any()), bool((off & ~cell).any())
        # cells whose drives are too far off the model to be asked have no second witness
        # a leg that sticks jerks the platform, which then moves otherwise than asked: only what is coarse counts
        jerks = drive_off or memory.drive_ticks > 0 or Fault.DRIVE_SUSPECT in suspects
        most_n = float(loads.bounds_n[AXIS if jerks else source].sum())
        pushed = known[AXIS] and _is_pushed(monitor, loads, residual_n, source, all(known), off & cell, most_n)
    pushed_ticks = _counted(memory.pushed_ticks, pushed, monitor.persistence_ticks)
    cell_ticks = _counted(memory.cell_ticks, cell_off, SUSPECT_TICKS)
    drive_ticks = _counted(memory.drive_ticks, drive_off, SUSPECT_TICKS)
    if cell_ticks == SUSPECT_TICKS:
        suspects |= Fault.CELL_SUSPECT
    if drive_ticks == SUSPECT_TICKS:
        suspects |= Fault.DRIVE_SUSPECT
    faults = suspects | (monitor.told if pushed_ticks == monitor.persistence_ticks else Fault.NONE)
    learnt_n = memory.bias_n.copy()
    if steady_ticks > SETTLE_TICKS and not pushed_ticks and not drive_ticks:
        faster = loads.rubbing * monitor.period_s / LEARN_S
        learnt_n[AXIS] += faster * (error_n[AXIS] - learnt_n[AXIS])
    new = Memory(
        memory.asked, error_n, learnt_n, loads.bounds_n, steady_ticks, pushed_ticks, cell_ticks, drive_ticks, suspects
    )
    return new, faults, np.where(moves, wrench * monitor.scale, np.nan), residual_n[source]


def remember(
    memory: Memory, reference: Reference, sent: Command, asked_m: Array, followed: bool, skipped: bool
) -> Memory:
    """Note what is asked for in this tick, `asked_m` (n,) its axis positions: what comes of it shows ticks later."""
    # where the guard clamped, or nothing is followed, the acceleration is not that of the reference
    sound = followed and bool(np.abs(sent.position_m - asked_m).max() == 0.0)
    acceleration = reference.acceleration if sound else np.full(6, np.nan)
    return memory._replace(asked=((acceleration, sent.position_m), *(() if skipped else memory.asked[: ASKED - 1])))


def learn(monitor: Monitor, memory: Memory, row: int, mean_n: Array) -> Memory:
    """Take what a source is off at the first rest, mean_n (n,), for the error of its model, if it may be that."""
    if not np.isnan(memory.bias_n[row]).all() or not (np.abs(mean_n) <= monitor.bias_most_n[row]).all():
        return memory
    bias_n = memory.bias_n.copy()
    bias_n[row] = mean_n
    return memory._replace(bias_n=bias_n)


def _counted(ticks: int, seen: bool, most: int) -> int:
    return min(ticks + 1, most) if seen else max(ticks - 1, 0)


def _free(machine: Mechanism, x: Array, scale: Array) -> Array:
    """Independent motions of the platform at x (6, free), rotations times the radius."""
    G = np.empty((6, 6))
    posture.independent_motions(machine, x, G)
    return G[:, : freedoms(machine.platform)] * scale[:, np.newaxis]


def _valid(monitor: Monitor, sample: Sample, sensors: Indices) -> NDArray[np.bool_]:
    fresh = sample.sensor_age_s[sensors] <= monitor.max_age_s[sensors]
    return (sensors >= 0) & (sample.sensor_quality[sensors] == Quality.GOOD) & fresh


def _cell_forces(monitor: Monitor, sample: Sample) -> Array:
    """(n,) N, as shown; NaN without a valid cell."""
    if not (monitor.cells >= 0).any():
        return np.full(len(monitor.cells), np.nan)
    return np.where(_valid(monitor, sample, monitor.cells), sample.sensor[monitor.cells], np.nan)


def _axis_forces(monitor: Monitor, sample: Sample) -> Array:
    """(n,) N: from the chamber pressures where all are valid, else what the drives report."""
    if (monitor.pressures >= 0).all() and _valid(monitor, sample, monitor.pressures).all():
        head_n, rod_n = sample.sensor[monitor.pressures] * monitor.areas_m2
        return head_n - rod_n
    return sample.drive_n


def _wrench(monitor: Monitor, loads: Loads, residual_n: Array) -> Array:
    """Scaled external wrench (6,) of these residuals: the least one that does the same work in every free motion."""
    scaled = -(loads.JT @ residual_n) / monitor.scale
    if loads.free.shape[1] == 6:
        return scaled
    return loads.free @ np.linalg.solve(loads.free.T @ loads.free, loads.free.T @ scaled)


def _contradictions(loads: Loads, residual_n: Array, known: Sequence[bool]) -> tuple[Mask, Mask]:
    """Legs (n,) whose forces contradict each other, and whether it is the cell that is further from the model.

    With one source only there is nothing to compare, unless legs outnumber freedoms: what no wrench explains, drives do
    to each other. Where they do not, a stuck leg and a push look the same.
    """
    n = residual_n.shape[1]
    if all(known):
        cell_n: Array = residual_n[CELL]
        axis_n: Array = residual_n[AXIS]
        most_n: Array = loads.bounds_n[CELL] + loads.bounds_n[AXIS]
        return _exceeds(cell_n - axis_n, most_n), _exceeds(cell_n, np.abs(axis_n))
    source = CELL if known[CELL] else AXIS
    if n == loads.free.shape[1]:
        nothing: Mask = np.array([False] * n)
        return nothing, nothing
    work: Array = loads.free.T @ loads.JT
    explained_n: Array = np.linalg.pinv(work) @ (work @ residual_n[source])
    apart_n: Array = np.abs(residual_n[source] - explained_n)
    cell: Mask = np.array([source == CELL] * n)
    return _exceeds(apart_n, loads.bounds_n[source]), cell


def _exceeds(values: Array, most: Array) -> Mask:
    return np.asarray(np.abs(values) > most, dtype=np.bool_)


def _is_pushed(
    monitor: Monitor, loads: Loads, residual_n: Array, source: int, both: bool, cell_off: Mask, most_n: float
) -> bool:
    """Whether something pushes the platform by more than `most_n`. A single cell needs its drive to confirm it."""
    shown_n: Array = residual_n[source]
    if not both:
        return size_of(_wrench(monitor, loads, shown_n)) > most_n
    shown_n = np.where(cell_off, residual_n[AXIS], shown_n)
    if size_of(_wrench(monitor, loads, shown_n)) <= most_n:
        return False
    k = int(np.abs(shown_n).argmax())
    others_n = shown_n.copy()
    others_n[k] = 0.0
    confirmed = math.copysign(1.0, shown_n[k]) * residual_n[AXIS, k] > loads.bounds_n[AXIS, k]
    return confirmed or size_of(_wrench(monitor, loads, others_n)) > most_n
