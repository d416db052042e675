"""Friction of a spherical platform's cylinders by the procedure of Guo et al., and what their parameters can tell.

Viscous friction first: turns at four constant rates pass the same points, so at each point only what grows with the
rate of a leg changes. Dry friction then: on the sine every leg passes the same lengths up and down, and what changes
with the direction there, viscous friction taken off, is dry. Neither needs masses that are right.

r            measured minus modelled force, the model without friction     (N, n)   N
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from controller import schema
from controller.errors import ConfigurationError
from controller.identification import signals
from controller.identification.base_parameters import States, axis_positions, random_states
from controller.identification.bodies import Parameters, Place, parameters_of, with_parameters
from controller.identification.friction_motion import (
    POINTS,
    RATES_RAD_S,
    SINE,
    STEP_S,
    FrictionMotion,
    friction_motion,
)
from controller.identification.look import RUBBING_M_S
from controller.identification.problem import full_columns
from controller.identification.signals import Counts, Source, Window, independent, signal
from controller.mechanism.model import build
from controller.records import Array

DRY, VISCOUS = ("coulomb_n", "drive_coulomb_n"), ("viscous_n_s_m", "drive_viscous_n_s_m")
NOT_THE_MOTION = 0.1  # of the motion, rms, that a machine may be off it
AROUND = 5  # rows on either side of a point, over whose mean noise fades
FEWEST_ROWS = 100
LENGTH_POWERS = 4  # of a polynomial in the length, which stands for what the model is off at a pose
# Those of the paper, whose table is lost: platform about o, rod's mass and moment, cylinder's moment, and the inertias
# about a leg's joints, of rod and cylinder together since they turn together
NINE = (
    "platform_moment_z_kg_m", "platform_inertia_xx_kg_m2", "platform_inertia_yy_kg_m2", "platform_inertia_zz_kg_m2",
    "rod_mass_kg", "rod_moment_z_kg_m", "cylinder_moment_z_kg_m", "cylinder_inertia_transverse_kg_m2",
    "cylinder_inertia_axial_kg_m2",
)  # fmt: skip
DROPPED = "platform_inertia_zz_kg_m2"


class Friction(NamedTuple):
    """Of a cylinder, the mean of all legs, with standard errors from the differences between them and within."""

    dry_n: float
    dry_error_n: float
    viscous: float  # N s/m
    viscous_error: float


def from_recording(machine: schema.Machine, source: Source, cutoff_hz: float | None = None) -> Friction:
    """Friction from measurements in which the friction motion was played once, with anything before and after.

    Raises:
        ConfigurationError: if the machine has no such motion, or it is not in the measurements whole.
    """
    motion, model = friction_motion(machine), build(machine)
    wanted, best, found = independent(machine, motion.states.x), math.inf, None
    for window in _stretches(machine, source):
        if len(window.u) >= len(wanted):
            begin, off = _begin(window.u, wanted)
            if off < best:
                best, found = off, (window, begin)
    if found is None or best > NOT_THE_MOTION * float(wanted.std(axis=0).max()):
        raise ConfigurationError(
            f"--friction: found no {motion.t_s[-1]:.0f} s without a gap in which the motion of "
            "`pkm excite --friction` was played"
        )
    window, begin = found
    states = signals.motion(model, window, signals.filter_of(window, cutoff_hz))
    rows = slice(begin, begin + len(wanted))
    return procedure(machine, window.force_n[rows], motion._replace(states=States(*(one[rows] for one in states))))


def _stretches(machine: schema.Machine, source: Source) -> Iterator[Window]:
    """Each stretch without a gap as one window, a row every STEP_S."""
    counts, pieces, ended = Counts(), list[Window](), 0
    for window in signals.windows(source(), machine, counts, STEP_S, margin_s=0.0):
        pieces.append(window)
        if counts.stretches > ended:
            yield _whole(pieces)
            pieces, ended = list[Window](), counts.stretches


def _whole(pieces: list[Window]) -> Window:
    u, force, valid = (
        np.concatenate([values[piece.core] for values, piece in zip(every, pieces, strict=True)])
        for every in ([p.u for p in pieces], [p.force_n for p in pieces], [p.valid for p in pieces])
    )
    u[:, :] = np.unwrap(u, axis=0)
    return pieces[0]._replace(u=u, force_n=force, valid=valid, core=slice(0, len(u)))


def _begin(u: Array, wanted: Array) -> tuple[int, float]:
    """The row of u (N, f) at which it is most like what is wanted (M, f), and how far off it is, rms."""
    M = len(wanted)
    total = np.concatenate([[0.0], np.cumsum((u**2).sum(axis=1))])
    alike = sum(signal.fftconvolve(u[:, j], wanted[::-1, j], mode="valid") for j in range(u.shape[1]))
    off = total[M:] - total[:-M] - 2.0 * alike + (wanted**2).sum()
    begin = int(np.argmin(off))
    return begin, math.sqrt(max(float(off[begin]), 0.0) / wanted.size)


def procedure(machine: schema.Machine, force_n: Array, motion: FrictionMotion) -> Friction:
    """Friction from axis forces force_n (M, n) of the friction motion, whose states may be measured ones.

    What rubs besides, seals under load and joints, stays what the machine file says.

    Raises:
        ConfigurationError: at a singular pose.
    """
    parameters, model = parameters_of(machine, cell=False), build(machine)
    columns, known = full_columns(machine, model, parameters, False, motion.states)
    r = force_n - columns @ without_friction(parameters) - known
    length, rate, _ = axis_positions(model, motion.states)
    viscous, viscous_error = _viscous(r, length, rate, motion)
    dry, dry_error = _dry(r - viscous * rate, length, rate, motion)
    return Friction(dry, dry_error, viscous, viscous_error)


def places(parameters: Parameters) -> list[Place]:
    """Where the two numbers stand among the parameters of the axes."""
    return [place for place in parameters.places if place.name in (*DRY, *VISCOUS)]


def without_friction(parameters: Parameters) -> Array:
    """The parameters (m,) without what the procedure finds."""
    values = parameters.values.copy()
    for place in places(parameters):
        values[place.at] = 0.0
    return values


def with_friction(machine: schema.Machine, found: Friction) -> schema.Machine:
    """The machine with it; friction that helps is none."""
    parameters = parameters_of(machine, cell=False)
    values = parameters.values.copy()
    for place in places(parameters):
        values[place.at] = max(found.dry_n if place.name in DRY else found.viscous, 0.0)
    return with_parameters(machine, parameters, values)


def _viscous(r: Array, length: Array, rate: Array, motion: FrictionMotion) -> tuple[float, float]:
    """Slope of the residual over the rate at the points, which are the same for all rates."""
    at, places = np.empty((2, len(RATES_RAD_S), POINTS, r.shape[1])), np.full((POINTS, r.shape[1]), np.inf)
    for segment in range(1, len(RATES_RAD_S) + 1):
        for point in range(1, POINTS + 1):
            k = int(np.flatnonzero((motion.segment == segment) & (motion.point == point))[0])
            if segment == 1:
                places[point - 1] = length[k]
            # every turn begins elsewhere: a point is where the lengths are those of a point of the first turn
            place = int(np.argmin(np.abs(places - length[k]).sum(axis=1)))
            around = slice(k - AROUND, k + AROUND + 1)
            at[:, segment - 1, place] = r[around].mean(axis=0), rate[around].mean(axis=0)
    # where a leg turns round, what rubs depends on how slowly
    slides = np.abs(at[1]).min(axis=0) > RUBBING_M_S
    force, speed = (at - at.mean(axis=1, keepdims=True))[:, :, slides]
    slope = float((force * speed).sum() / (speed**2).sum())
    left = force - slope * speed
    freedoms = left.size - left.shape[1] - 1
    return slope, float(np.sqrt((left**2).sum() / freedoms / (speed**2).sum()))


def _dry(r: Array, length: Array, rate: Array, motion: FrictionMotion) -> tuple[float, float]:
    """What changes with the direction at the same length, of each leg; the mean of the legs."""
    found = list[float]()
    for i in range(r.shape[1]):
        use = (motion.segment == SINE) & (np.abs(rate[:, i]) > RUBBING_M_S)
        if np.count_nonzero(use) < FEWEST_ROWS:
            continue  # a leg whose joint is on the axis of the sine hardly moves
        z = (length[use, i] - length[use, i].mean()) / np.ptp(length[use, i])
        A = np.column_stack([np.sign(rate[use, i]), z[:, None] ** np.arange(LENGTH_POWERS)])
        untyped: Any = np.linalg
        found.append(float(untyped.lstsq(A, r[use, i], rcond=None)[0][0]))
    return float(np.mean(found)), float(np.std(found, ddof=1) / math.sqrt(len(found)))


class Dropped(NamedTuple):
    """What leaving out the platform's inertia about its own axis does."""

    names: tuple[str, ...]
    true: Array  # (9,)
    rank: int  # of the nine columns
    without: Array  # (9,) parameters that explain the same forces; NaN for the one left out
    off_n: float  # how well


def without_axial_inertia(machine: schema.Machine, true: schema.Machine) -> Dropped:
    """The nine parameters from forces that they alone cause, with and without I_pz, on random states.

    Raises:
        ConfigurationError: if the machine has no such parameters.
    """
    parameters = parameters_of(machine, cell=False)
    if missing := [name for name in NINE if _name(name, parameters.names) not in parameters.names]:
        raise ConfigurationError(f"{machine.name}: no parameter {missing[0]}, expected a 3-UPS/S with rod and cylinder")
    at = [parameters.names.index(_name(name, parameters.names)) for name in NINE]
    states: States = random_states(machine)
    columns, _ = full_columns(machine, build(machine), parameters, False, states)
    W = columns.reshape(-1, columns.shape[2])[:, at]
    values = parameters_of(true, cell=False).values[at]
    force, scale = W @ values, np.linalg.norm(W, axis=0)
    rank = int(np.linalg.matrix_rank(W / scale, tol=1e-9))
    kept = [k for k, name in enumerate(NINE) if name != DROPPED]
    untyped: Any = np.linalg
    solved = untyped.lstsq(W[:, kept] / scale[kept], force, rcond=None)
    found: Array = solved[0] / scale[kept]
    without = np.full(len(NINE), np.nan)
    without[kept] = found
    return Dropped(NINE, values, rank, without, float(np.abs(W[:, kept] @ found - force).max()))


def _name(name: str, names: tuple[str, ...]) -> str:
    """A transverse inertia is that about x where a body has ten parameters, an axial one that about z."""
    if name in names:
        return name
    return name.replace("transverse", "xx").replace("axial", "zz")
