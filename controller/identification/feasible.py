"""Parameters of bodies that can be, nearest to what was identified.

A body can have a mass, first moment and inertia if its pseudo-inertia is positive definite (Wensing et al. 2018). Here
it is L L^T, so whatever L is found, the body can be; friction and rotor inertia are not negative.

    minimise  (B p - beta)^T C^-1 (B p - beta) + (p - file)^T P^-1 (p - file)

with C the covariance of beta and P that of what the file leaves open, which decides where forces tell nothing.
"""

from typing import Any, NamedTuple

import numpy as np
import scipy.optimize as _optimize  # pyright: ignore[reportMissingTypeStubs]

from controller.identification.bodies import Place, bodies, from_pseudo_inertia, pseudo_inertia
from controller.identification.fit import Fit
from controller.identification.problem import Problem
from controller.records import Array

optimize: Any = _optimize  # ships no types
LEAST = 0.02  # of what the file has for the root of a body's own diagonal: so thin a body may become
MOST_STEPS = 200
ROUNDING = 1e-9  # of the largest eigenvalue: a body at the border is still one


class Physical(NamedTuple):
    """Parameters of the machine file (m,) that explain the forces."""

    values: Array
    moved: float  # by how many standard errors, of the parameter that had to give way most; 0: none had to
    bodies: list[str]  # whose identified numbers no body has


def physical(problem: Problem, fit: Fit) -> Physical:
    """What goes into a machine file: nearest to the file, with exactly the identified base parameters; where no body
    has such numbers, nearest to these."""
    parameters, B = problem.parameters, problem.base.B
    P = parameters.spread**2
    nearest = parameters.values + P * (B.T @ np.linalg.solve(problem.open_, fit.beta - problem.prior))
    odd = [place for place in bodies(parameters) if not _can_be(nearest[place.at])]
    negative = [
        place
        for place in parameters.places
        if not place.body and nearest[place.at][0] < -1e-9 * parameters.spread[place.at][0]
    ]
    if not odd and not negative:
        return Physical(nearest, 0.0, [])
    values = _constrained(problem, fit, nearest)
    moved = float(np.max(np.abs(B @ values - fit.beta) / fit.error))
    return Physical(values, moved, [_title(place) for place in odd])


def _title(place: Place) -> str:
    name = place.name or "platform"
    return name if place.leg is None else f"{name} of leg {place.leg + 1}"


def _can_be(values: Array) -> bool:
    eigenvalues = np.linalg.eigvalsh(pseudo_inertia(values))
    return bool(eigenvalues[0] >= -ROUNDING * abs(eigenvalues[-1]))


class _Shape(NamedTuple):
    """How a body's L is stored: which elements (k,), and the scale of its rows (4,)."""

    place: Place
    elements: list[tuple[int, int]]
    scale: Array
    width: int  # of the body's parameters


# L is lower triangular; of a body that is symmetric about the leg three of its rows are bare but for the diagonal
TEN = [(i, j) for i in range(4) for j in range(i + 1)]
FOUR = [(0, 0), (2, 2), (3, 2), (3, 3)]  # and (1, 1) the same as (0, 0)


def _factor(shape: _Shape, theta: Array) -> Array:
    L = np.zeros((4, 4))
    for (row, column), value in zip(shape.elements, theta.tolist(), strict=True):
        L[row, column] = value
    if shape.width == 4:
        L[1, 1] = L[0, 0]
    return L * shape.scale[:, None]


def _constrained(problem: Problem, fit: Fit, start: Array) -> Array:
    parameters, B = problem.parameters, problem.base.B
    shapes, theta, low = list[_Shape](), list[float](), list[float]()
    numbers = [place for place in parameters.places if not place.body]
    for place in bodies(parameters):
        file = pseudo_inertia(parameters.values[place.at])
        scale = np.sqrt(np.maximum(np.diagonal(file), 1e-6 * np.trace(file)))
        width = place.at.stop - place.at.start
        shapes.append(_Shape(place, FOUR if width == 4 else TEN, scale, width))
        L = np.linalg.cholesky(_definite(pseudo_inertia(start[place.at]) / np.outer(scale, scale)))
        theta += [float(L[at]) for at in shapes[-1].elements]
        low += [LEAST if row == column else -np.inf for row, column in shapes[-1].elements]
    for place in numbers:
        theta.append(float(start[place.at][0] / parameters.spread[place.at][0]))
        low.append(-1e-12)

    def split(theta: Array) -> list[Array]:
        ends = np.cumsum([len(shape.elements) for shape in shapes])
        return np.split(theta, ends)

    def values_of(theta: Array) -> Array:
        values, parts = np.empty(len(parameters.values)), split(theta)
        for shape, part in zip(shapes, parts[:-1], strict=True):
            L = _factor(shape, part)
            values[shape.place.at] = from_pseudo_inertia(L @ L.T, shape.width)
        for place, value in zip(numbers, parts[-1].tolist(), strict=True):
            values[place.at] = value * parameters.spread[place.at]
        return values

    def slopes(theta: Array) -> Array:
        slope, parts, k = np.zeros((len(parameters.values), len(theta))), split(theta), 0
        for shape, part in zip(shapes, parts[:-1], strict=True):
            L = _factor(shape, part)
            for element in range(len(part)):
                dL = _factor(shape, np.eye(len(part))[element])
                slope[shape.place.at, k] = from_pseudo_inertia(dL @ L.T + L @ dL.T, shape.width)
                k += 1
        for place in numbers:
            slope[place.at, k] = parameters.spread[place.at]
            k += 1
        return slope

    eigenvalues, V = np.linalg.eigh(fit.covariance / np.outer(fit.error, fit.error))
    whiten = (V / np.sqrt(np.maximum(eigenvalues, 1e-9))).T / fit.error

    def residual(theta: Array) -> Array:
        values = values_of(theta)
        off = (values - parameters.values) / parameters.spread
        return np.concatenate([whiten @ (B @ values - fit.beta), off])

    def jacobian(theta: Array) -> Array:
        slope = slopes(theta)
        return np.vstack([whiten @ B @ slope, slope / parameters.spread[:, None]])

    begin = np.maximum(np.array(theta), np.array(low) + 1e-9)
    found = optimize.least_squares(
        residual, begin, jac=jacobian, bounds=(low, np.inf), x_scale="jac", max_nfev=MOST_STEPS
    )  # fmt: skip
    return values_of(found.x)


def _definite(J: Array) -> Array:
    """The nearest matrix that is clearly positive definite."""
    eigenvalues, V = np.linalg.eigh(J)
    return (V * np.maximum(eigenvalues, 1e-4 * max(eigenvalues[-1], 1e-12))) @ V.T
