"""Friction of a spherical platform's cylinders by the procedure of Guo et al., and what their parameters can tell.

Viscous friction first: turns at four constant rates pass the same points, so at each point only what grows with the
rate of a leg changes. Dry friction then: on the sine every leg passes the same lengths up and down, and what changes
with the direction there, viscous friction taken off, is dry. Neither needs masses that are right.

r            measured minus modelled force, the model without friction     (N, n)   N
"""

import math
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from controller import schema
from controller.errors import ConfigurationError
from controller.identification.base_parameters import States, axis_positions, random_states
from controller.identification.bodies import parameters_of
from controller.identification.fit import RUBBING_M_S, full_columns
from controller.identification.friction_motion import POINTS, RATES_RAD_S, SINE, FrictionMotion
from controller.mechanism import dynamics
from controller.mechanism.model import build
from controller.records import Array

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


def procedure(machine: schema.Machine, force_n: Array, motion: FrictionMotion, begin: int) -> Friction:
    """Friction from the friction motion; row `begin` of force_n (M, n) is the motion's first.

    Raises:
        ConfigurationError: if there are not as many rows as the motion has.
    """
    rows = len(motion.t_s)
    if begin < 0 or begin + rows > len(force_n):
        raise ConfigurationError(f"found {len(force_n)} rows from row {begin} on, expected the {rows} of the motion")
    legs = replace(machine.legs, friction=schema.Friction())
    model = build(replace(machine, legs=legs, leg=[replace(leg, friction=None) for leg in machine.leg]))
    f, f_cell = np.empty((2, rows, len(machine.leg)))
    dynamics.inverse_dynamics_batch(model, *motion.states, np.zeros_like(motion.states.x), f, f_cell)
    length, rate, _ = axis_positions(model, motion.states)
    r = force_n[begin : begin + rows] - f
    viscous, viscous_error = _viscous(r, length, rate, motion)
    dry, dry_error = _dry(r - viscous * rate, length, rate, motion)
    return Friction(dry, dry_error, viscous, viscous_error)


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
