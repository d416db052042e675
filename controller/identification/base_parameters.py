"""Base parameters: the combinations of a machine's parameters that forces can tell, and no others.

A form says in which parameters forces are written: f = Y T p, with Y of `controller.mechanism.regressor`. Columns of
Y T over many states are reduced to independent ones by QR with column pivoting; how the others regroup is a matrix:
base = B p, and forces are (Y T)[:, columns] base.
Source: Ni et al. eq. (41)-(45), with the columns scaled, without which the rank would depend on the units.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg as _linalg  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray

from controller import schema
from controller.errors import ConfigurationError
from controller.identification.sensitivity import platform_coordinates
from controller.mechanism import kinematics, regressor
from controller.mechanism.layout import Mechanism
from controller.mechanism.model import FREEDOMS, build
from controller.mechanism.platform import rotation_matrix
from controller.records import POSE, Array

Columns = NDArray[np.intp]
linalg: Any = _linalg  # ships no types

STATES = 200  # 600 rows and more against at most 208 columns
# Of the largest diagonal element of R: dependent columns come out below 1e-13, independent ones above 1e-5.
RANK_TOLERANCE = 1e-9
NAME_TOLERANCE = 1e-9  # of a scaled coefficient: what is smaller is rounding, and left out of names
# independent coordinates among the pose's: all, the angles, and z, roll (a), pitch (b) of 2R1T
INDEPENDENT = {"free": (0, 1, 2, 3, 4, 5), "spherical": (3, 4, 5), "2r1t": (2, 5, 4)}


class Form(NamedTuple):
    """Parameters that forces are written in: those of the columns of Y are T times these."""

    T: Array  # (p, m)
    names: tuple[str, ...]  # m, with units
    values: Array  # (m,) of the machine file
    each_leg: bool  # Y has columns for each leg


class States(NamedTuple):
    """States of motion, (N, 6) each."""

    x: Array
    xd: Array
    xdd: Array


class Base(NamedTuple):
    """How m parameters regroup into b base parameters."""

    B: Array  # (b, m): base = B p
    columns: Columns  # (b,): the columns that stand for all, in ascending order
    weights: Array  # (b, m): B for columns of length 1, so that coefficients compare
    values: Array  # (m,): singular values of the columns scaled to length 1, largest first
    gap: float  # the last singular value that counts over the first that does not, or over rounding


# ---------------------------------------------------------------- forms


def inertial_form(machine: schema.Machine) -> Form:
    """Ten parameters a body, links that turn together being one; without friction and rotors. Once for all legs
    where these are of the same build, otherwise for each."""
    model = build(machine)
    legs = model.legs[:, list(regressor.LEG_PARAMETERS)]
    each_leg = bool(np.any(legs != legs[0]))
    of_leg = np.arange(regressor.LEG_WIDTH) < regressor.INERTIAL_WIDTH
    count = len(machine.leg) if each_leg else 1
    keep = np.concatenate([np.full(regressor.PLATFORM_WIDTH, True), np.tile(of_leg, count)])
    names = regressor.names(len(machine.leg), each_leg)
    return Form(
        np.eye(len(keep))[:, keep],
        tuple(name for name, kept in zip(names, keep, strict=True) if kept),
        regressor.parameters(model, each_leg)[keep],
        each_leg,
    )


def paper_form(machine: schema.Machine) -> Form:
    """The 29 parameters of Ni et al.

    Raises:
        ConfigurationError: if the machine is no 6-UPRU of equal legs with axisymmetric links.
    """
    return Form(regressor.paper_form(), regressor.PAPER_NAMES, regressor.paper_parameters(machine), False)


def default_form(machine: schema.Machine) -> Form:
    """The form with the fewest parameters that is right for the machine."""
    try:
        return paper_form(machine)
    except ConfigurationError:
        return inertial_form(machine)


def has_cells(machine: schema.Machine) -> bool:
    """Whether every leg has a load cell, so that their forces are what is observed."""
    return all(schema.effective_leg(machine, i).cell is not None for i in range(len(machine.leg)))


# ---------------------------------------------------------------- states and columns


def strokes(machine: schema.Machine) -> Array:
    """Lowest and highest axis position of each leg (2, n), m."""
    return np.array([schema.effective_leg(machine, i).limits.length_m for i in range(len(machine.leg))]).T


def pose_limits(machine: schema.Machine) -> Array:
    """Lowest and highest value of the six coordinates (2, 6)."""
    return np.array([getattr(machine.platform.limits, name) for name in POSE]).T


def independent_coordinates(machine: schema.Machine, x: Array) -> Array:
    """Independent coordinates u (f,) of a pose x (6,) that the platform can have."""
    if machine.platform.kind != "2r1t":
        return x[list(INDEPENDENT[machine.platform.kind])]
    R = np.empty((3, 3))  # Rx(a) Ry(b)
    rotation_matrix(x, R)
    return np.array([math.hypot(x[1], x[2]), math.atan2(-x[1], x[2]), math.atan2(R[0, 2], R[0, 0])])


def coordinates(model: Mechanism, u: Array, ud: Array, udd: Array) -> States:
    """Platform coordinates of independent ones and their derivatives (N, f)."""
    states = States(*np.empty((3, len(u), 6)))
    u, ud, udd = (np.ascontiguousarray(values) for values in (u, ud, udd))
    platform_coordinates(model, u, ud, udd, states.x, states.xd, states.xdd)
    return states


def axis_positions(model: Mechanism, states: States) -> tuple[Array, Array, Array]:
    """Axis positions, rates and accelerations (N, n)."""
    shape = (len(states.x), len(model.legs))
    twist, q, qd, qdd = np.zeros((4, *shape))
    kinematics.axis_rates_batch(model, *states, twist, q, qd, qdd)
    return q, qd, qdd


def random_states(machine: schema.Machine, count: int = STATES, seed: int = 0) -> States:
    """States inside pose limits and strokes, with rates and accelerations of the size the motion limits allow.

    Raises:
        ConfigurationError: if hardly any pose inside the pose limits is inside the strokes.
    """
    rng, model, motion = np.random.default_rng(seed), build(machine), machine.platform.motion
    box, stroke, free = pose_limits(machine), strokes(machine), list(INDEPENDENT[machine.platform.kind])
    speed, acceleration = (
        np.repeat(pair, 3)[free]
        for pair in ((motion.speed_m_s, motion.speed_rad_s), (motion.acceleration_m_s2, motion.acceleration_rad_s2))
    )
    found = States(*np.empty((3, 0, 6)))
    for _ in range(50):
        u = rng.uniform(box[0, free], box[1, free], (count, FREEDOMS[machine.platform.kind]))
        ud, udd = rng.uniform(-1.0, 1.0, (2, *u.shape)) * np.array([speed, acceleration])[:, None]
        drawn = coordinates(model, u, ud, udd)
        q, _, _ = axis_positions(model, drawn)
        inside = ((drawn.x >= box[0] - 1e-9) & (drawn.x <= box[1] + 1e-9)).all(axis=1)
        inside &= ((q >= stroke[0]) & (q <= stroke[1])).all(axis=1)
        found = States(*(np.concatenate([old, new[inside]]) for old, new in zip(found, drawn, strict=True)))
        if len(found.x) >= count:
            return States(*(values[:count] for values in found))
    raise ConfigurationError(
        f"{machine.name}: hardly any pose inside platform.limits is inside the strokes of the legs"
    )


def observations(model: Mechanism, form: Form, states: States, cell: bool) -> Array:
    """Columns of load-cell (cell) or axis forces (N n, m), a row a leg and state.

    Raises:
        ConfigurationError: at a singular pose.
    """
    shape = (len(states.x), len(model.legs))
    Y, Y_cell = np.empty((2, *shape, form.T.shape[0]))
    if regressor.regressor_batch(model, *states, np.zeros_like(states.x), Y, Y_cell, np.empty(shape)):
        raise ConfigurationError("the mechanism is singular at one of these poses, no forces exist")
    return (Y_cell if cell else Y).reshape(-1, form.T.shape[0]) @ form.T


# ---------------------------------------------------------------- regrouping


def base_parameters(W: Array) -> Base:
    """Base parameters from observations W (rows, m); the columns that stand for all are those QR with pivoting picks.

    Raises:
        ConfigurationError: if no column has any effect.
    """
    R, order = linalg.qr(_scaled(W)[0], mode="r", pivoting=True)
    sizes: Array = np.abs(np.diagonal(R))
    if not sizes[0] > 0.0:
        raise ConfigurationError("none of these parameters has any effect on the forces")
    return regroup(W, order[: np.count_nonzero(sizes > RANK_TOLERANCE * sizes[0])].tolist())


def regroup(W: Array, columns: Sequence[int]) -> Base:
    """As `base_parameters` with given columns that stand for all.

    Raises:
        ConfigurationError: if these are not independent, or other columns do not depend on them.
    """
    chosen: Columns = np.array(sorted(columns), np.intp)
    rest: Columns = np.array(sorted(set(range(W.shape[1])) - set(columns)), np.intp)
    b = len(chosen)
    scaled, lengths = _scaled(W)
    R: Array = linalg.qr(scaled[:, np.concatenate([chosen, rest])], mode="r")[0]
    sizes: Array = np.abs(np.diagonal(R)[:b])
    left: Array = np.abs(R[b:, b:])
    if not sizes.min() > RANK_TOLERANCE * sizes.max() or (left.size and left.max() > RANK_TOLERANCE):
        raise ConfigurationError(f"columns {chosen.tolist()} are not independent, or others do not depend on them")
    weights = np.zeros((b, W.shape[1]))
    weights[:, chosen] = np.eye(b)
    weights[:, rest] = linalg.solve_triangular(R[:b, :b], R[:b, b:])
    own = np.where(lengths > 0.0, lengths, 1.0)
    values: Array = linalg.svdvals(R[: W.shape[1]])  # those of the scaled columns
    rounding = float(np.finfo(np.float64).eps * values[0])
    after = max(float(values[b]), rounding) if b < len(values) else rounding
    return Base(weights * own / own[chosen, None], chosen, weights, values, float(values[b - 1]) / after)


def _scaled(W: Array) -> tuple[Array, Array]:
    """W with columns of length 1, or 0, and their lengths."""
    lengths: Array = np.linalg.norm(W, axis=0).astype(np.float64)
    return W / np.where(lengths > 0.0, lengths, 1.0), lengths


def base_names(base: Base, names: Sequence[str], tolerance: float = NAME_TOLERANCE) -> list[str]:
    """Base parameters as sums, such as `m1_kg + m2_kg + 0.166667 mp_kg`, each in the unit of its first term.

    Left out are terms whose columns add less than `tolerance` of the first one's column, of which there are none but
    by rounding.
    """
    return [_sum(base, names, i, tolerance) for i in range(len(base.columns))]


def _sum(base: Base, names: Sequence[str], i: int, tolerance: float) -> str:
    first = int(base.columns[i])
    text = names[first]
    for j, name in enumerate(names):
        if j != first and abs(base.weights[i, j]) > tolerance:
            size = abs(base.B[i, j])
            times = "" if abs(size - 1.0) < 1e-9 else f"{size:.6g} "
            text += f" {'-' if base.B[i, j] < 0.0 else '+'} {times}{name}"
    return text
