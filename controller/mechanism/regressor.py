"""Forces as columns times parameters: f = Y p + known.

Parameters are the numbers of `controller.mechanism.layout` in which the forces are linear, in its order and about its
points: first the platform's ten, then those of the legs, once (legs of the same build) or once a leg. Links that
turn together act as one body, so nothing finer can be told from forces: lower and rod inertia count as one sum and the
lower mass not at all. What stands in the arrays of a `Mechanism` times Y is therefore exactly what
`controller.mechanism.dynamics` says. A column is that very model with one parameter 1 and the others 0.

N, n, p      states, legs, parameters
x, xd, xdd   platform coordinates and their derivatives                       (N, 6)      m, rad
wrench       external force and moment on the platform about o                (N, 6)      N, N m, base axes
Y, Y_cell    columns of axis and load-cell forces: newtons a unit             (N, n, p)   unit: see `names`
known        forces that no parameter causes: of wrench and preload           (N, n)      N, on either side
D            forces that a unit of platform wrench takes                      (7, n)      1, 1/m; last row: known
Gravity acts through the masses: it is in Y. Where legs outnumber freedoms, forces of least norm are linear too. What
drives add to the axis forces (controller.mechanism.drive) is not in it, nor is the efficiency of a screw that turns
with the twist: which side drives depends on the sign of the force, and that is not linear.
Source: Ni et al. eq. (35)-(39), their Tables 1 and 2 rebuilt, since both are lost from the text.
"""

import math
from typing import NamedTuple

import numpy as np

from controller import schema
from controller.errors import ConfigurationError
from controller.mechanism import layout
from controller.mechanism.compile import i64, inline, kernel, v2, v3
from controller.mechanism.dynamics import distribute, platform_wrench
from controller.mechanism.kinematics import axes_and_jacobian
from controller.mechanism.layout import MECHANISM, Mechanism
from controller.mechanism.leg import below_cell_force, leg_motion, leg_wrench, sliding_friction
from controller.mechanism.platform import Body, body
from controller.mechanism.spatial import Vec
from controller.records import Array

PLATFORM_PARAMETERS = tuple(range(layout.MASS, layout.INERTIA + 6))  # columns of the layout
LEG_PARAMETERS = (*range(layout.ROD_MASS, layout.NORMAL_FRICTION + 1), layout.ROTOR_INERTIA)
PLATFORM_WIDTH, LEG_WIDTH = len(PLATFORM_PARAMETERS), len(LEG_PARAMETERS)
INERTIAL_WIDTH = layout.UNIVERSAL_FRICTION - layout.ROD_MASS  # the first of a leg's; friction and rotor follow

_TENSOR = ("xx", "yy", "zz", "xy", "xz", "yz")
_PLATFORM_NAMES = (
    "mass_kg",
    *(f"moment_{axis}_kg_m" for axis in "xyz"),
    *(f"inertia_{axes}_kg_m2" for axes in _TENSOR),
)
_LEG_NAMES = (
    *(f"{group}_mass_kg" for group in ("rod", "upper", "below")),
    *(f"{group}_moment_{axis}_kg_m" for group in ("lower", "rod", "upper", "below") for axis in "xyz"),
    *(f"{group}_inertia_{axes}_kg_m2" for group in ("base", "upper") for axes in _TENSOR),
    "universal_friction_nm_s_rad",
    "spherical_friction_nm_s_rad",
    "viscous_friction_n_s_m",
    "coulomb_friction_n",
    "normal_friction",
    "rotor_inertia_kg_m2",
)


def names(legs: int, each_leg: bool = False) -> list[str]:
    """Names of the columns for reports, legs from 1; once for all legs, or once for each of them."""
    owners = [f"leg_{i + 1}" for i in range(legs)] if each_leg else ["leg"]
    return [f"platform_{name}" for name in _PLATFORM_NAMES] + [
        f"{owner}_{name}" for owner in owners for name in _LEG_NAMES
    ]


def parameters(machine: Mechanism, each_leg: bool = False) -> Array:
    """What Y is multiplied with (p,); its size is the number of columns.

    Raises:
        ConfigurationError: if one set is to stand for all legs and they differ.
    """
    legs = machine.legs[:, list(LEG_PARAMETERS)]
    if not each_leg and np.any(legs != legs[0]):
        raise ConfigurationError("the legs of this machine have different parameters: take columns for each leg")
    return np.concatenate([machine.platform[list(PLATFORM_PARAMETERS)], legs.ravel() if each_leg else legs[0]])


@inline
def without_parameters(machine: Mechanism) -> Mechanism:
    """A copy with the geometry of the machine and all parameters and preloads 0."""
    legs, platform = machine.legs.copy(), machine.platform.copy()
    for at in PLATFORM_PARAMETERS:
        platform[at] = 0.0
    for at in LEG_PARAMETERS:
        legs[:, at] = 0.0
    legs[:, layout.PRELOAD] = 0.0
    return Mechanism(legs, platform)


@inline
def only_seal_friction(machine: Mechanism) -> Mechanism:
    """A copy whose sliding friction is the seal load alone."""
    legs = machine.legs.copy()
    legs[:, layout.COULOMB_FRICTION], legs[:, layout.VISCOUS_FRICTION] = 0.0, 0.0
    legs[:, layout.NORMAL_FRICTION] = 1.0
    return Mechanism(legs, machine.platform)


@inline
def unit_forces(machine: Mechanism, unit: Mechanism, body: Body, wrench: Array, D: Array) -> bool:
    """D (7, n) of one state, known forces in the last row; False at a singular pose."""
    n = machine.legs.shape[0]
    J, JT, scratch, aside = np.empty((n, 6)), np.empty((6, n)), np.empty((4, 6, 6)), np.zeros((3, n))
    W = np.eye(7, 6)
    W[6] = -wrench
    axes_and_jacobian(machine, body.o, body.R, aside[0], aside[1], J, aside[2])
    for k in range(7):
        JT[:, :] = J.T
        if not distribute(unit if k < 6 else machine, body, W[k], JT, D[k], scratch):
            return False
    return True


@inline
def add_forces(D: Array, force: Vec, moment: Vec, column: int, Y: Array, Y_cell: Array) -> None:
    """Add what the legs must give for a force and moment about o to a column of both sides."""
    for r in range(D.shape[1]):
        f = 0.0
        for k in range(3):
            f += D[k, r] * force[k] + D[3 + k, r] * moment[k]
        Y[r, column] += f
        Y_cell[r, column] += f


@inline
def state_columns(unit: Mechanism, seal: Mechanism, body: Body, D: Array, stride: int, Y: Array, Y_cell: Array) -> None:
    """Fill Y and Y_cell (n, p) of one state; a leg's columns are `stride` after those of the leg before."""
    Y[:, :] = 0.0
    Y_cell[:, :] = 0.0
    for j in range(PLATFORM_WIDTH):
        unit.platform[PLATFORM_PARAMETERS[j]] = 1.0
        force, moment = platform_wrench(unit, body)
        unit.platform[PLATFORM_PARAMETERS[j]] = 0.0
        add_forces(D, force, moment, j, Y, Y_cell)
    for i in range(unit.legs.shape[0]):
        leg, row = leg_motion(unit, i, body), unit.legs[i]
        for j in range(LEG_WIDTH):
            at, column = LEG_PARAMETERS[j], PLATFORM_WIDTH + i * stride + j
            if at == layout.ROTOR_INERTIA and row[layout.SCREW] == 0.0:
                continue  # such a rotor is in the drive
            row[at] = 1.0
            force, moment, motor = leg_wrench(unit, i, leg, body)
            add_forces(D, force, moment, column, Y, Y_cell)
            rubbing = seal if at == layout.NORMAL_FRICTION else unit
            Y[i, column] += sliding_friction(rubbing, i, leg, body) + motor * row[layout.MOTOR_RAD_M]
            Y_cell[i, column] -= below_cell_force(unit, i, leg)
            row[at] = 0.0


@kernel(i64(MECHANISM, v2, v2, v2, v2, v3, v3, v2))
def regressor_batch(
    machine: Mechanism,
    x: Array,
    xd: Array,
    xdd: Array,
    wrench: Array,
    Y_out: Array,
    Y_cell_out: Array,
    known_out: Array,
) -> int:
    """Columns of axis and cell forces and what no parameter causes, for N states; returns the number of singular ones.

    f = Y p + known, f_cell = Y_cell p + known, p = `parameters`. Y_out tells by its width whether columns stand for
    all legs or for each. Of the parameters of `machine` only the normal friction's column makes use: seal loads are
    those of the machine as it is, since their product with that coefficient is not linear. Singular states are NaN.
    """
    n, width = machine.legs.shape[0], Y_out.shape[2]
    stride = 0 if width == PLATFORM_WIDTH + LEG_WIDTH else LEG_WIDTH
    if width != Y_cell_out.shape[2] or (stride != 0 and width != PLATFORM_WIDTH + n * LEG_WIDTH):
        raise ValueError("outputs must have as many columns as there are parameters")
    unit, seal, D = without_parameters(machine), only_seal_friction(machine), np.empty((7, n))
    singular = 0
    for k in range(x.shape[0]):
        platform = body(x[k], xd[k], xdd[k])
        if unit_forces(machine, unit, platform, wrench[k], D):
            state_columns(unit, seal, platform, D, stride, Y_out[k], Y_cell_out[k])
            known_out[k] = D[6]
        else:
            Y_out[k], Y_cell_out[k], known_out[k] = math.nan, math.nan, math.nan
            singular += 1
    return singular


# ---------------------------------------------------------------- the 29 parameters of Ni et al.

PAPER_NAMES = (
    "Ia1_kg_m2", "In1_kg_m2", "Ia2+Ia3+Ia4_kg_m2", "In2+In3+In4_kg_m2",
    "m1_kg", "m1*lc1_kg_m", "m1*lc1^2_kg_m2", "m2_kg", "m2*lc2_kg_m", "m3_kg", "m3*lc3_kg_m", "m4*lc4_kg_m",
    "m2*lc2^2+m3*lc3^2+m4*lc4^2_kg_m2", "mp_kg", *(f"mp*rc_{axis}_kg_m" for axis in "xyz"),
    *(f"Ic_{axes}_kg_m2" for axes in ("xx", "xy", "xz", "yy", "yz", "zz")),
    *(f"mp*rc*rc^T_{axes}_kg_m2" for axes in ("xx", "xy", "xz", "yy", "yz", "zz")),
)  # fmt: skip
_UPPER_TRIANGLE = (0, 3, 4, 1, 5, 2)  # the paper's 11 12 13 22 23 33 among the layout's xx yy zz xy xz yz
_PAPER_PLATFORM = 13  # from here on they are the platform's

# A leg's column of the layout, number in Table 1, factor. lc1 to lc3 count from the platform joint down the leg.
_PAPER_LEG = (
    (layout.UPPER_INERTIA + 2, 1, 1.0), (layout.UPPER_INERTIA, 2, 1.0), (layout.UPPER_INERTIA + 1, 2, 1.0),
    (layout.BASE_INERTIA + 2, 3, 1.0), (layout.BASE_INERTIA, 4, 1.0), (layout.BASE_INERTIA + 1, 4, 1.0),
    (layout.UPPER_MASS, 5, 1.0), (layout.UPPER_MOMENT + 2, 6, -1.0),
    (layout.UPPER_INERTIA, 7, 1.0), (layout.UPPER_INERTIA + 1, 7, 1.0),
    (layout.ROD_MASS, 8, 1.0), (layout.ROD_MOMENT + 2, 9, -1.0),
    (layout.ROD_MASS, 10, 1.0), (layout.BELOW_MASS, 10, 1.0),
    (layout.ROD_MOMENT + 2, 11, -1.0), (layout.BELOW_MOMENT + 2, 11, -1.0),
    (layout.LOWER_MOMENT + 2, 12, 1.0), (layout.BASE_INERTIA, 13, 1.0), (layout.BASE_INERTIA + 1, 13, 1.0),
)  # fmt: skip


def paper_form() -> Array:
    """T (p, 29): columns for all legs times T are the paper's (Tables 1 and 2, rebuilt), on the side of Y or Y_cell.

    6-UPRU with axisymmetric links, the same in all legs: `parameters` = T `paper_parameters`, friction aside.
    """
    T = np.zeros((PLATFORM_WIDTH + LEG_WIDTH, len(PAPER_NAMES)))
    for at, number, factor in _PAPER_LEG:
        T[PLATFORM_WIDTH + LEG_PARAMETERS.index(at), number - 1] = factor
    T[range(4), range(_PAPER_PLATFORM, _PAPER_PLATFORM + 4)] = 1.0  # mass and first moment
    inertia = layout.INERTIA - layout.MASS
    for k, tensor in enumerate(_UPPER_TRIANGLE):
        about_com, product = _PAPER_PLATFORM + 4 + k, _PAPER_PLATFORM + 10 + k
        T[inertia + tensor, about_com] = 1.0
        # inertia about o from that about the centre of mass: + tr(S) E - S with S = mp rc rc^T
        T[inertia + tensor, product] = -1.0
        if tensor < 3:
            T[inertia : inertia + 3, product] += 1.0
    return T


def paper_parameters(machine: schema.Machine) -> Array:
    """The 29 parameters of a machine file (Table 1): what `paper_form` is multiplied with.

    L1 is the upper group, L2 and L3 the rod above and below the load cell, L4 the lower group.

    Raises:
        ConfigurationError: if the machine is no 6-UPRU of equal legs with axisymmetric links.
    """
    legs = [schema.effective_leg(machine, i) for i in range(len(machine.leg))]
    first = legs[0]
    if any(leg.kind != "UPRU" or leg.links != first.links or leg.cell != first.cell for leg in legs):
        raise ConfigurationError(f"{machine.name}: the paper's parameters need UPRU legs with the same links")
    leg = np.zeros(_PAPER_PLATFORM)
    for name, link in first.links.items():
        mass, com, inertia = link.mass_kg, np.array(link.com_m), np.array(link.inertia_kg_m2)
        if np.any(com[:2]) or np.any(inertia != np.diag([inertia[0, 0], inertia[0, 0], inertia[2, 2]])):
            raise ConfigurationError(f"legs.links.{name}: the paper's parameters need axisymmetric links")
        along = com[2] if link.group == "lower" else -com[2]
        axial, transverse, moment, spread = inertia[2, 2], inertia[0, 0], mass * along, mass * along**2
        # places are the numbers of Table 1 less one
        if link.group == "upper":
            leg[[0, 1, 4, 5, 6]] += axial, transverse, mass, moment, spread
        elif link.group == "lower":
            leg[[2, 3, 11, 12]] += axial, transverse, moment, spread
        else:
            at = 9 if first.cell and name in first.cell.links_below else 7
            leg[[2, 3, at, at + 1, 12]] += axial, transverse, mass, moment, spread
    mass, com = machine.platform.mass_kg, np.array(machine.platform.com_m)
    upper = np.triu_indices(3)
    Ic, product = np.array(machine.platform.inertia_kg_m2)[upper], mass * np.outer(com, com)[upper]
    return np.concatenate([leg, [mass], mass * com, Ic, product])


# ---------------------------------------------------------------- rank


class Rank(NamedTuple):
    """How many combinations of the columns are independent."""

    rank: int
    gap: float  # last singular value that counts over the first that does not, or over rounding
    values: Array  # singular values of the columns scaled to length 1, largest first


def numerical_rank(Y: Array) -> Rank:
    """Rank of the columns of Y (..., p), each scaled to length 1: unscaled it would depend on the units.

    The rank is where singular values fall most, and `gap` says how clearly; any below the rounding of the largest
    counts as that rounding. Columns of zeros count for nothing.
    """
    columns = Y.reshape(-1, Y.shape[-1])
    lengths = np.linalg.norm(columns, axis=0)
    scaled = columns[:, lengths > 0.0] / lengths[lengths > 0.0]
    if scaled.size == 0:
        return Rank(0, math.inf, np.zeros(0))
    values: Array = np.linalg.svd(scaled, compute_uv=False).astype(np.float64)
    rounding = np.finfo(np.float64).eps * values[0]
    falls = np.maximum(values, rounding) / np.maximum(np.append(values[1:], 0.0), rounding)
    rank = int(np.argmax(falls)) + 1
    return Rank(rank, float(falls[rank - 1]), values)
