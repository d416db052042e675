"""Exciting motions: Fourier series whose observations tell the base parameters apart, inside every limit.

Each independent coordinate is u(t) = centre + sum over j of a_j sin(j w t) / (j w) - b_j cos(j w t) / (j w)  (Ni et al.
eq. (42) with the erratum), so coefficients are speeds. From rest to rest a quintic is taken away that has the series'
position, rate and acceleration at both ends (Guo et al. eq. (26)): the motion is linear in the coefficients all the
same. Either the condition number of the observation matrix with columns scaled to length 1 is made small, or the
log-determinant of its normal matrix large, the columns scaled by constants.

Both are smoothed for the optimiser: the largest eigenvalue by a norm of all of them, the largest value of a channel
along the motion by a log-sum-exp, which is never too low. What is returned is then fitted to the limits as
they are, with the functions that everything else uses.

H, N         harmonics, samples        coefficients (f, 2 H) m/s, rad/s: a_1 ... a_H, b_1 ... b_H
C            normal matrix of the scaled columns, (b, b)
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.optimize as _optimize  # pyright: ignore[reportMissingTypeStubs]

from controller import schema
from controller.identification.base_parameters import (
    INDEPENDENT,
    Base,
    Form,
    States,
    base_parameters,
    coordinates,
    has_cells,
    independent_coordinates,
    observations,
    random_states,
)
from controller.identification.bounds import Bounds, build_bounds, require_inside, use
from controller.identification.sensitivity import ParameterSets, differentiate, observe
from controller.mechanism import layout, regressor
from controller.mechanism.layout import Mechanism
from controller.mechanism.model import build, home_pose
from controller.records import Array

optimize: Any = _optimize  # ships no types
Objective = Literal["condition", "logdet"]

SAMPLE_S = 0.01  # of what is measured and written: a tick of the controller
SAMPLES_PER_HARMONIC = 16  # of the optimiser: enough for 7 digits of the condition number, measured
# Powers of the eigenvalue norm and sharpness of the largest value, one after the other
STAGES = ((8.0, 60.0), (32.0, 400.0))
ITERATIONS = 150  # of each stage
INSIDE = 1.0 - 1e-4  # of each half range: room for what lies between two samples
COARSE_S = 0.025  # step of the first look at the limits


class Series(NamedTuple):
    """The shape of the motion."""

    harmonics: int = 5
    period_s: float = 10.0
    rest_to_rest: bool = False


FIVE_HARMONICS = Series()


class Problem(NamedTuple):
    """What is optimised; can be sent to another process."""

    bounds: Bounds
    form: Form
    base: Base
    sets: ParameterSets
    cell: bool  # load-cell forces are observed, otherwise axis forces
    series: Series
    centre: Array  # (f,)
    speed: Array  # (f,) the motion limits: scale of the coefficients
    lengths: Array  # (b,) rms of the columns over random states, by which logdet scales
    objective: Objective


# ---------------------------------------------------------------- the motion


def basis(series: Series, t_s: Array) -> Array:
    """Position, rate, acceleration (3, N, 2 H) a unit of each coefficient."""
    w: Array = 2.0 * math.pi / series.period_s * np.arange(1.0, series.harmonics + 1.0)
    result = _fourier(w, t_s)
    if series.rest_to_rest:
        T = series.period_s
        powers = np.arange(6)
        s = t_s[:, None] / T
        quintic = np.stack(
            [
                s**powers,
                powers * s ** np.maximum(powers - 1, 0) / T,
                powers * (powers - 1) * s ** np.maximum(powers - 2, 0) / T**2,
            ]
        )
        ends = np.array([np.ones(6), powers / T, powers * (powers - 1) / T**2])  # at s = 1
        at_0 = np.diag([1.0, 1.0 / T, 2.0 / T**2])
        A = np.vstack([np.hstack([at_0, np.zeros((3, 3))]), ends])
        edge = _fourier(w, np.zeros(1))[:, 0]
        result -= quintic @ np.linalg.solve(A, np.vstack([edge, edge]))
    return result


def _fourier(w: Array, t_s: Array) -> Array:
    angle = t_s[:, None] * w
    sin, cos = np.sin(angle), np.cos(angle)
    return np.stack([np.hstack([sin / w, -cos / w]), np.hstack([cos, sin]), np.hstack([-w * sin, w * cos])])


def states_at(problem: Problem, coefficients: Array, t_s: Array) -> States:
    """The motion at times t_s (N,): platform coordinates and their derivatives (N, 6)."""
    return coordinates(problem.bounds.machine, *_independent(problem, coefficients, basis(problem.series, t_s)))


def _independent(problem: Problem, coefficients: Array, of_time: Array) -> Array:
    """u, ud, udd (3, N, f)."""
    u = of_time @ coefficients.T
    u[0] += problem.centre
    return u


def times(series: Series, step_s: float = SAMPLE_S) -> Array:
    """From 0 to the end of the period."""
    return np.linspace(0.0, series.period_s, round(series.period_s / step_s) + 1)


# ---------------------------------------------------------------- the problem


def prepare(
    machine: schema.Machine,
    form: Form,
    series: Series = FIVE_HARMONICS,
    objective: Objective = "condition",
    base: Base | None = None,
) -> Problem:
    """The problem for a machine file, about its home pose; `base` if other columns are to stand for all.

    Raises:
        ConfigurationError: if the home pose is at a limit.
    """
    model, cell, motion = build(machine), has_cells(machine), machine.platform.motion
    W = observations(model, form, random_states(machine), cell)
    base = base or base_parameters(W)
    home, free = home_pose(machine), list(INDEPENDENT[machine.platform.kind])
    bounds = build_bounds(machine, home)
    at_rest = States(home[None], *np.zeros((2, 1, 6)))
    require_inside(bounds, at_rest, f"{machine.name}: the home pose, about which the motion is to be,")
    return Problem(
        bounds, form, base, _parameter_sets(model, form, base), cell, series,
        independent_coordinates(machine, home), np.repeat([motion.speed_m_s, motion.speed_rad_s], 3)[free],
        np.linalg.norm(W[:, base.columns], axis=0) / math.sqrt(len(W)), objective,
    )  # fmt: skip


def _parameter_sets(model: Mechanism, form: Form, base: Base) -> ParameterSets:
    b, n = len(base.columns), len(model.legs)
    platform_at, leg_at = list(regressor.PLATFORM_PARAMETERS), list(regressor.LEG_PARAMETERS)
    legs, platform = np.repeat(model.legs[None], b + 1, axis=0), np.repeat(model.platform[None], b + 1, axis=0)
    legs[b, :, layout.UNIVERSAL_FRICTION : layout.NORMAL_FRICTION + 1] = 0.0
    legs[:b, :, layout.PRELOAD] = 0.0
    chosen = form.T[:, base.columns].T
    platform[:b, platform_at] = chosen[:, : regressor.PLATFORM_WIDTH]
    # one set for all legs is repeated, a set for each is not
    legs[:b, :, leg_at] = chosen[:, regressor.PLATFORM_WIDTH :].reshape(b, -1, regressor.LEG_WIDTH)
    used = np.ones((b + 1, n + 1))
    used[:b, :n] = np.any(legs[:b][:, :, leg_at] != 0.0, axis=2)
    used[:b, n] = np.any(platform[:b, platform_at] != 0.0, axis=1)
    return ParameterSets(legs, platform, used)


def _observations(problem: Problem, states: States) -> Array:
    columns = observations(problem.bounds.machine, problem.form, states, problem.cell)
    return columns[:, problem.base.columns]


def condition_number(problem: Problem, coefficients: Array) -> float:
    """Condition number of the observation matrix of one period with its columns scaled to length 1."""
    W = _observations(problem, states_at(problem, coefficients, times(problem.series)))
    return float(np.linalg.cond(W / np.linalg.norm(W, axis=0)))


def log_determinant(problem: Problem, coefficients: Array) -> float:
    """Half the log-determinant of the mean normal matrix of one period, its columns scaled by `Problem.lengths`."""
    W = _observations(problem, states_at(problem, coefficients, times(problem.series))) / problem.lengths
    return float(np.linalg.slogdet(W.T @ W / len(W))[1]) / 2.0


def score(problem: Problem, coefficients: Array) -> float:
    """What is to be small: the condition number, or the negative log-determinant; infinite without motion."""
    if not np.any(coefficients):
        return math.inf
    if problem.objective == "condition":
        return condition_number(problem, coefficients)
    return -log_determinant(problem, coefficients)


# ---------------------------------------------------------------- value and gradient


class Evaluation:
    """Values and gradients at the last point asked for: the optimiser asks for them one by one."""

    def __init__(self, problem: Problem, power: float, sharpness: float) -> None:
        """`power` of the eigenvalue norm, `sharpness` of the log-sum-exp: larger is nearer to the truth."""
        self._problem, self._power, self._sharpness = problem, power, sharpness
        series = problem.series
        count = SAMPLES_PER_HARMONIC * series.harmonics
        t_s = np.arange(count) * series.period_s / count + (series.period_s / count / 2.0) * series.rest_to_rest
        self._basis = basis(series, t_s)
        self._values: tuple[bytes, Any] = (b"", None)
        self._slopes: tuple[bytes, Any] = (b"", None)

    def value(self, theta: Array) -> float:
        """The smoothed objective, to be made small."""
        return self._observed(theta)[0]

    def room(self, theta: Array) -> Array:
        """How far each channel stays inside its limit (c,), negative outside."""
        return self._observed(theta)[1]

    def value_slope(self, theta: Array) -> Array:
        """Gradient of `value`."""
        return self._differentiated(theta)[0]

    def room_slope(self, theta: Array) -> Array:
        """Jacobian of `room` (c, f 2 H)."""
        return self._differentiated(theta)[1]

    def _coefficients(self, theta: Array) -> Array:
        return theta.reshape(len(self._problem.centre), -1) * self._problem.speed[:, None]

    def _observed(self, theta: Array) -> Any:
        key = theta.tobytes()
        if self._values[0] != key:
            p = self._problem
            u = _independent(p, self._coefficients(theta), self._basis)
            N, n, b, c = u.shape[1], len(p.bounds.machine.legs), len(p.base.columns), len(p.bounds.names)
            Y, z = np.empty((N, b, n)), np.empty((N, c))
            observe(p.bounds.machine, p.sets, float(p.cell), u[0], u[1], u[2], p.bounds.scaling, Y, z)
            np.nan_to_num(z, copy=False, nan=1e6, posinf=1e6, neginf=-1e6)
            np.nan_to_num(Y, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
            value, M = self._objective(np.einsum("kbn,kdn->bd", Y, Y) / (N * n))
            top, share = _log_sum_exp(z, self._sharpness)
            weight = 2.0 / (N * n) * np.einsum("bd,kdn->kbn", M, Y)
            self._values = key, (value, 1.0 - top, u, weight, share)
        return self._values[1]

    def _differentiated(self, theta: Array) -> Any:
        key = theta.tobytes()
        if self._slopes[0] != key:
            p = self._problem
            _, _, u, weight, share = self._observed(theta)
            N, f, c = u.shape[1], len(p.centre), len(p.bounds.names)
            slope, z_slope = np.empty((N, 3 * f)), np.empty((N, c, 3 * f))
            weight = np.ascontiguousarray(weight)
            differentiate(
                p.bounds.machine, p.sets, float(p.cell), u[0], u[1], u[2], p.bounds.scaling, weight, slope, z_slope
            )
            np.nan_to_num(z_slope, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
            np.nan_to_num(slope, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
            by_channel = (share[:, :, None] * z_slope).reshape(N, c, 3, f)
            value_slope = np.einsum("kof,okh->fh", slope.reshape(N, 3, f), self._basis)
            room_slope = -np.einsum("kcof,okh->cfh", by_channel, self._basis, optimize=True)
            value_slope *= p.speed[:, None]
            room_slope *= p.speed[None, :, None]
            self._slopes = key, (value_slope.ravel(), room_slope.reshape(c, -1))
        return self._slopes[1]

    def _objective(self, G: Array) -> tuple[float, Array]:
        """Value of the normal matrix G (b, b), and its derivative by G."""
        if self._problem.objective == "logdet":
            scale = np.outer(self._problem.lengths, self._problem.lengths)
            eigenvalues, V = np.linalg.eigh(G / scale)
            eigenvalues = np.maximum(eigenvalues, 1e-300)
            return -0.5 * float(np.log(eigenvalues).sum()), -0.5 * (V / eigenvalues) @ V.T / scale
        lengths = np.sqrt(np.diagonal(G))
        lengths = np.where(lengths > 0.0, lengths, 1.0)
        C = G / np.outer(lengths, lengths)
        eigenvalues, V = np.linalg.eigh(C)
        eigenvalues = np.maximum(eigenvalues, 1e-15 * eigenvalues[-1])
        low, high = eigenvalues[0] / eigenvalues, eigenvalues / eigenvalues[-1]
        p = self._power
        small, large = low**p, high**p
        value = 0.5 * (math.log(eigenvalues[-1] / eigenvalues[0]) + math.log(small.sum() * large.sum()) / p)
        slope = 0.5 * (large / large.sum() - small / small.sum()) / eigenvalues
        S = (V * slope) @ V.T
        return value, S / np.outer(lengths, lengths) - np.diag((S * C).sum(axis=1) / lengths**2)


def _log_sum_exp(z: Array, sharpness: float) -> tuple[Array, Array]:
    """Largest |z| over the samples, smoothed, (c,); and its derivative by z (N, c)."""
    most = np.abs(z).max(axis=0)
    up, down = np.exp(sharpness * (z - most)), np.exp(sharpness * (-z - most))
    total = (up + down).sum(axis=0)
    return most + np.log(total) / sharpness, (up - down) / total


# ---------------------------------------------------------------- one start


def random_coefficients(problem: Problem, seed: int | tuple[int, ...]) -> Array:
    """Random coefficients (f, 2 H), as large as the limits allow; 0 if they allow none."""
    rng = np.random.default_rng(seed)
    shape = (len(problem.centre), 2 * problem.series.harmonics)
    return fit_to_limits(problem, rng.normal(size=shape) * problem.speed[:, None])


def fit_to_limits(problem: Problem, coefficients: Array) -> Array:
    """The same shape as large as the limits allow, at most twice as large as it is."""
    coarse, fine = times(problem.series, COARSE_S), times(problem.series)
    low, high = 0.0, 2.0
    while high - low > 1e-3 * high and high > 1e-6:
        share = (low + high) / 2.0
        inside = use(problem.bounds, states_at(problem, share * coefficients, coarse)).max() <= INSIDE
        low, high = (share, high) if inside else (low, share)
    while low > 0.0 and use(problem.bounds, states_at(problem, low * coefficients, fine)).max() > INSIDE:
        low *= 0.999
    return low * coefficients


def optimise(problem: Problem, coefficients: Array, stop: Callable[[], bool], iterations: int = ITERATIONS) -> Array:
    """Better coefficients than the given ones, inside the limits; ends early when `stop` says so.

    The same numbers for the same input, unless it was stopped.
    """
    theta = (coefficients / problem.speed[:, None]).ravel()
    for power, sharpness in STAGES:
        theta = _descend(Evaluation(problem, power, sharpness), theta, stop, iterations)
    better = fit_to_limits(problem, theta.reshape(coefficients.shape) * problem.speed[:, None])
    return min(coefficients, better, key=lambda found: score(problem, found))


def _descend(evaluation: Evaluation, theta: Array, stop: Callable[[], bool], iterations: int) -> Array:
    last = theta

    def after(intermediate_result: Any) -> None:
        nonlocal last
        last = intermediate_result.x.copy()
        if stop():
            raise StopIteration

    optimize.minimize(
        evaluation.value, theta, jac=evaluation.value_slope, method="SLSQP", callback=after,
        constraints={"type": "ineq", "fun": evaluation.room, "jac": evaluation.room_slope},
        options={"maxiter": iterations, "ftol": 1e-5},
    )  # fmt: skip
    return last
