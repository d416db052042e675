"""Forces as columns: the base parameters of a machine that a fit looks for, and what is not looked for.

f = W beta + known, for load cells or for axes; a cell's reading is off by its zero besides.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from controller import schema
from controller.errors import ConfigurationError
from controller.identification.base_parameters import Base, States, axis_positions, base_parameters, random_states
from controller.identification.bodies import Parameters, parameters_of
from controller.mechanism import layout, regressor
from controller.mechanism.drive import EFFICIENCY, build_drives
from controller.mechanism.layout import Mechanism
from controller.mechanism.leg import STICTION_SPEED_M_S
from controller.mechanism.model import build
from controller.records import Array

ROUNDING = 1e-12  # of what the file leaves open of a parameter
ROWS = 2048  # at once on a core
ROTOR = regressor.LEG_PARAMETERS.index(layout.ROTOR_INERTIA)  # among a leg's columns


class Problem(NamedTuple):
    """What is identified of a machine, and from which forces."""

    machine: schema.Machine
    mechanism: Mechanism
    cell: bool
    parameters: Parameters
    base: Base
    prior: Array  # (b,) base parameters of the machine file
    open_: Array  # (b, b) covariance of what the file leaves open
    zero_n: Array  # (n,) how far the zero of each leg's reading may be off, one standard deviation; (0,): it is right


def prepare(
    machine: schema.Machine, cell: bool, parameters: Parameters | None = None, zero_n: Array | None = None,
    loads_of: schema.Machine | None = None,
) -> Problem:  # fmt: skip
    """Base parameters for load cells (cell) or for axes; `parameters` if others are to be identified than all, `zero_n`
    (n,) how far zeros may be off, `loads_of` another machine that loads the seals.

    Raises:
        ConfigurationError: if hardly any pose is inside the strokes.
    """
    found, mechanism = parameters or parameters_of(machine, cell), build(loads_of or machine)
    W, _ = full_columns(machine, mechanism, found, cell, random_states(machine))
    base = base_parameters(W.reshape(-1, W.shape[2]))
    open_ = (base.B * found.spread**2) @ base.B.T
    prior = base.B @ found.values
    prior = np.where(np.abs(prior) > ROUNDING * np.sqrt(np.diagonal(open_)), prior, 0.0)
    return Problem(machine, mechanism, cell, found, base, prior, open_, np.zeros(0) if zero_n is None else zero_n)


def full_columns(
    machine: schema.Machine, mechanism: Mechanism, parameters: Parameters, cell: bool, states: States
) -> tuple[Array, Array]:
    """Columns (N, n, m) of all parameters and the forces (N, n) that none of them causes.

    Raises:
        ConfigurationError: at a singular pose.
    """
    N, n, sets = len(states.x), len(mechanism.legs), len(mechanism.legs) if parameters.each_leg else 1
    width = regressor.PLATFORM_WIDTH + sets * regressor.LEG_WIDTH
    Y, Y_cell, known = np.empty((N, n, width)), np.empty((N, n, width)), np.empty((N, n))
    if _columns_of_all(mechanism, states, Y, Y_cell, known):
        raise ConfigurationError("the mechanism is singular at one of these poses, no forces exist")
    if cell:
        return Y_cell @ parameters.T[:width], Y_cell @ parameters.held[:width] + known
    _, qd, qdd = axis_positions(mechanism, states)
    # a screw does not pass on what its rotor needs for itself, which is in Y where it turns with the leg's twist; of
    # that is left out what the leg's own spin adds, some thousandths
    turns = np.where(mechanism.legs[:, layout.SCREW] != 0.0, mechanism.legs[:, layout.MOTOR_RAD_M], 0.0)
    own = np.stack([qdd * turns**2, qdd, np.tanh(qd / STICTION_SPEED_M_S), qd], axis=2)
    stride = np.arange(n) if sets > 1 else np.zeros(n, np.intp)
    rotors = regressor.PLATFORM_WIDTH + regressor.LEG_WIDTH * stride + ROTOR
    of_own = np.concatenate([rotors[:, None], width + 3 * stride[:, None] + np.arange(3)], axis=1)
    Y[:, range(n), rotors] -= own[:, :, 0]
    columns, constant = Y @ parameters.T[:width], Y @ parameters.held[:width] + known
    passed = _passed(machine, mechanism, columns @ parameters.values + constant, qd)
    columns, constant = columns * passed[:, :, None], constant * passed
    for i, rows in enumerate(of_own):
        columns[:, i] += own[:, i] @ parameters.T[rows]
        constant[:, i] += own[:, i] @ parameters.held[rows]
    return columns, constant


def _columns_of_all(mechanism: Mechanism, states: States, *out: Array) -> int:
    """The columns, on all cores: nothing in a fit takes so long. Returns the number of singular states."""
    wrench = np.zeros_like(states.x)
    ends = [*range(0, len(wrench), ROWS), len(wrench)]

    def some(begin: int, end: int) -> int:
        return regressor.regressor_batch(
            mechanism, *(values[begin:end] for values in (*states, wrench, *out)),
        )  # fmt: skip

    with ThreadPoolExecutor() as pool:  # the kernel leaves the others to themselves
        return sum(pool.map(some, ends[:-1], ends[1:]))


def _passed(machine: schema.Machine, mechanism: Mechanism, force: Array, rate: Array) -> Array:
    """What the drives must put in for each newton, their efficiency being that of the file: more when they drive."""
    screws = mechanism.legs[:, layout.EFFICIENCY]
    efficiency = build_drives(machine)[:, EFFICIENCY] * np.where(screws > 0.0, screws, 1.0)
    driving = np.tanh(np.sign(force) * rate / STICTION_SPEED_M_S)
    return 0.5 * (1.0 / efficiency + efficiency + driving * (1.0 / efficiency - efficiency))


def columns(problem: Problem, states: States) -> tuple[Array, Array]:
    """Columns W (N, n, b) of the base parameters, and the forces (N, n) that none of them causes."""
    W, constant = full_columns(problem.machine, problem.mechanism, problem.parameters, problem.cell, states)
    return W[:, :, problem.base.columns], constant
