"""Base parameters from measured forces: weighted, robust, with honest standard errors; memory does not grow with data.

Measured forces and the columns of the model pass the same filter without phase, and of what comes out every row that
still says something new is taken. Each pass over the data goes on from the parameters of the one before:

* What is missing, at the end of its range, at a reversal of dry friction, or further from the model than OUTLIER times
  the usual is replaced by the model; where the filter would see much of that, no row is taken.
* Every leg is weighted by its noise and the error of the model, which is taken for the same in all legs but such as
  are far worse than the others.
* Rows are folded into one triangular matrix (QR); the delay of forces behind positions is one more column.
* Solved is by singular values, in units of what the machine file leaves open: a direction in which the data know less
  than the file stays at the file, all others are the data's alone.
* Standard errors are those of residuals that remember (an autoregression of each leg) and that legs share (covariance
  of what the autoregressions leave).

b            base parameters          W  columns (N, n, b)     r  measured minus modelled force (N, n)
beta         values of them           R  triangular, of weighted [W, delays of n legs, forces]
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg as _linalg  # pyright: ignore[reportMissingTypeStubs]
import scipy.ndimage as _ndimage  # pyright: ignore[reportMissingTypeStubs]
import scipy.signal as _signal  # pyright: ignore[reportMissingTypeStubs]

from controller import schema
from controller.errors import ConfigurationError
from controller.identification import signals
from controller.identification.base_parameters import (
    Base,
    States,
    axis_positions,
    base_parameters,
    coordinates,
    random_states,
)
from controller.identification.bodies import Parameters, parameters_of
from controller.identification.signals import Flags, Window
from controller.mechanism import regressor
from controller.mechanism.drive import EFFICIENCY, build_drives
from controller.mechanism.layout import EFFICIENCY as SCREW_EFFICIENCY
from controller.mechanism.layout import Mechanism
from controller.mechanism.leg import STICTION_SPEED_M_S
from controller.mechanism.model import build
from controller.records import Array

linalg: Any = _linalg  # ship no types
signal: Any = _signal
ndimage: Any = _ndimage

ROUNDING = 1e-12  # of what the file leaves open of a parameter
OUTLIER = 6.0  # robust standard deviations of the unfiltered residual
TRUST = 0.7  # share of what the filter sees that must be measured
RUBBING_M_S = 2.0 * STICTION_SPEED_M_S  # below it, dry friction of a real leg is not what the model's smooth step says
SMEARED = 0.5  # periods of the cut-off beside a reversal in which the filter still sees it
MOVING_M_S = 1e-3  # a row counts if a leg is faster
DELAY_S = 5e-3  # spread of what is not known of the delay
MOST_DELAY_S = 0.05
# Rows are taken so seldom that half their rate is the cut-off over this: filtered noise is white again then, and
# nothing that is slow is lost
WHITE = 1.15
MEMORY = 6  # rows back that the autoregression of a residual looks
FEWEST, MOST = 5, 12  # passes; the first of them without autoregression
COLOURED_FROM = 3  # pass
ALIKE = 3.0  # a leg whose residual is larger than so many times that of the middle one is worse than the others
DONE = 0.02  # of a standard error, that no parameter changes any more
PILOT_NUMBERS = 8_000_000  # of the columns of the first windows, which are kept; of longer data all passes but the
# last two see these alone
SAMPLE = 50_000  # unfiltered residuals kept for their median
MAD = 1.4826  # standard deviation over the median of the absolute values, of a normal distribution
FOLD_ROWS = 256  # at once: so few stay in the cache, and are not worth threads that wait for each other
DETERMINED = 0.5  # of what the file leaves open: a smaller standard error means that the data determine it

Windows = Callable[[], Iterator[Window]]


class NothingToldError(ConfigurationError):
    """No data are left that tell anything."""


class Problem(NamedTuple):
    """What is identified of a machine, and from which forces."""

    machine: schema.Machine
    mechanism: Mechanism
    cell: bool
    parameters: Parameters
    base: Base
    prior: Array  # (b,) base parameters of the machine file
    open_: Array  # (b, b) covariance of what the file leaves open


class Fit(NamedTuple):
    """What the data say."""

    beta: Array  # (b,)
    covariance: Array  # (b, b)
    error: Array  # (b,) standard errors
    determined: Flags  # (b,)
    strengths: Array  # (b + 1,) singular values: how much better than the file the data know each direction, and delay
    delay_s: float
    delay_error_s: float
    coefficients: Array  # (n, MEMORY) autoregression of the filtered residuals
    sigma_n: Array  # (n,) standard deviation of the filtered residual
    noise_n: Array  # (n,) of a single reading, without what the filter lets through
    usual_n: Array  # (n,) robust standard deviation of the unfiltered residual
    taken: int  # rows, of all legs together
    instants: int
    outliers: int
    resting: int  # rows at rest
    passes: int


def prepare(
    machine: schema.Machine, cell: bool, parameters: Parameters | None = None, loads_of: schema.Machine | None = None
) -> Problem:
    """Base parameters for load cells (cell) or for axes; `parameters` if others are to be identified than all,
    `loads_of` another machine that loads the seals.

    Raises:
        ConfigurationError: if hardly any pose is inside the strokes.
    """
    found, mechanism = parameters or parameters_of(machine, cell), build(loads_of or machine)
    W, _ = full_columns(machine, mechanism, found, cell, random_states(machine))
    base = base_parameters(W.reshape(-1, W.shape[2]))
    open_ = (base.B * found.spread**2) @ base.B.T
    prior = base.B @ found.values
    prior = np.where(np.abs(prior) > ROUNDING * np.sqrt(np.diagonal(open_)), prior, 0.0)
    return Problem(machine, mechanism, cell, found, base, prior, open_)


# ---------------------------------------------------------------- columns


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
    if regressor.regressor_batch(mechanism, *states, np.zeros_like(states.x), Y, Y_cell, known):
        raise ConfigurationError("the mechanism is singular at one of these poses, no forces exist")
    if cell:
        return Y_cell @ parameters.T[:width], Y_cell @ parameters.held[:width] + known
    columns, constant = Y @ parameters.T[:width], Y @ parameters.held[:width] + known
    _, qd, qdd = axis_positions(mechanism, states)
    passed = _passed(machine, mechanism, columns @ parameters.values + constant, qd)
    columns, constant = columns * passed[:, :, None], constant * passed
    own = np.stack([qdd, np.tanh(qd / STICTION_SPEED_M_S), qd], axis=2)
    for i in range(n):
        rows = slice(width + 3 * i, width + 3 * i + 3) if sets > 1 else slice(width, width + 3)
        columns[:, i] += own[:, i] @ parameters.T[rows]
        constant[:, i] += own[:, i] @ parameters.held[rows]
    return columns, constant


def _passed(machine: schema.Machine, mechanism: Mechanism, force: Array, rate: Array) -> Array:
    """What the drives must put in for each newton, their efficiency being that of the file: more when they drive."""
    efficiency = build_drives(machine)[:, EFFICIENCY] * np.where(
        mechanism.legs[:, SCREW_EFFICIENCY] > 0.0, mechanism.legs[:, SCREW_EFFICIENCY], 1.0
    )
    driving = np.tanh(np.sign(force) * rate / STICTION_SPEED_M_S)
    return 0.5 * (1.0 / efficiency + efficiency + driving * (1.0 / efficiency - efficiency))


def columns(problem: Problem, states: States) -> tuple[Array, Array]:
    """Columns W (N, n, b) of the base parameters, and the forces (N, n) that none of them causes."""
    W, constant = full_columns(problem.machine, problem.mechanism, problem.parameters, problem.cell, states)
    return W[:, :, problem.base.columns], constant


# ---------------------------------------------------------------- one pass


class Prepared(NamedTuple):
    """A window with all of it that no parameter changes."""

    window: Window
    filter_: signals.Filter
    W: Array  # (N, n, b)
    constant: Array  # (N, n)
    filtered: Array  # (k, n, b) of W, the rows taken
    taken: slice  # of the core
    moving: Flags  # (N,)
    rubs: Flags  # (N, n) dry friction may have any sign
    shared: Array | None  # (N, n, n) what of axis forces moves the platform, where legs outnumber freedoms


class Look(NamedTuple):
    """A window as a pass sees it, every so many rows of its core."""

    W: Array  # (k, n, b) filtered
    slope: Array  # (k, n) minus the rate of the modelled force, filtered: a unit of delay
    r: Array  # (k, n) filtered residual
    use: Flags  # (k, n)
    raw: Array  # (core, n) residual as measured, NaN where it is none
    high: Array  # (core, n) of it, what the filter takes away
    outliers: int
    resting: int


def prepare_window(problem: Problem, window: Window, cutoff_hz: float | None) -> Prepared:
    """Motion and columns of a window."""
    filter_ = signals.filter_of(window, cutoff_hz)
    cutoff_hz = filter_.cutoff_hz
    states = signals.motion(problem.mechanism, window, filter_)
    W, constant = columns(problem, states)
    _, qd, _ = axis_positions(problem.mechanism, states)
    rubs = np.zeros(qd.shape, np.bool_) if problem.cell else _near_reversals(qd, window, cutoff_hz)
    shared = _shared(problem.mechanism, window.u) if qd.shape[1] > window.u.shape[1] else None
    if shared is not None:
        W, constant = shared @ W, (shared @ constant[:, :, None])[:, :, 0]
        rubs = np.repeat(rubs.any(axis=1, keepdims=True), qd.shape[1], axis=1)
    stride = math.ceil(WHITE / (2.0 * cutoff_hz * window.step_s))
    taken = slice(window.core.start, window.core.stop, stride)
    moving = np.abs(qd).max(axis=1) > MOVING_M_S
    return Prepared(window, filter_, W, constant, filter_(W)[taken], taken, moving, rubs, shared)


def _near_reversals(qd: Array, window: Window, cutoff_hz: float) -> Flags:
    """Where a leg (N, n) turns round, as wide as the filter smears it."""
    slow = np.abs(qd) < RUBBING_M_S
    slow[1:] |= np.signbit(qd[1:]) != np.signbit(qd[:-1])
    rows = 2 * round(SMEARED / (cutoff_hz * window.step_s)) + 1
    mode = "wrap" if window.periods else "nearest"
    return ndimage.maximum_filter1d(slow, rows, axis=0, mode=mode)


def _shared(mechanism: Mechanism, u: Array) -> Array:
    """Projection (N, n, n) of axis forces to those of least norm that move the platform in the same way: what legs do
    against each other no model knows."""
    rates = np.zeros((len(u), len(mechanism.legs), u.shape[1]))
    for j in range(u.shape[1]):
        unit = np.zeros_like(u)
        unit[:, j] = 1.0
        _, rates[:, :, j], _ = axis_positions(mechanism, coordinates(mechanism, u, unit, np.zeros_like(u)))
    return rates @ np.linalg.pinv(rates)


def modelled(given: Prepared, beta: Array) -> Array:
    """Forces (N, n) of these parameters."""
    return given.W @ beta + given.constant


def measured(given: Prepared, delay_s: float) -> Array:
    """Forces (N, n) as far as a model can know them, at the time of the positions."""
    force = signals.delayed(given.window, delay_s)
    return force if given.shared is None else (given.shared @ force[:, :, None])[:, :, 0]


def valid(given: Prepared) -> Flags:
    """Whether these are measurements (N, n)."""
    flags = given.window.valid
    return flags if given.shared is None else np.repeat(flags.all(axis=1, keepdims=True), flags.shape[1], axis=1)


def look(given: Prepared, beta: Array, delay_s: float, most_n: Array) -> Look:
    """Residuals and columns of a window at these parameters; residuals above most_n (n,) are outliers."""
    window, filter_, taken = given.window, given.filter_, given.taken
    force = modelled(given, beta)
    r = measured(given, delay_s) - force
    known = valid(given) & ~given.rubs
    outlier = known & (np.abs(r) > most_n)
    good = known & ~outlier
    raw = np.where(good, r, math.nan)[window.core]
    r = np.where(good, r, 0.0)
    smooth, h = filter_(r), window.step_s
    wrapped = np.concatenate([force[-1:], force, force[:1]]) if window.periods else force
    slope = -np.gradient(wrapped, h, axis=0)
    slope = filter_(slope[1:-1] if window.periods else slope)
    use = (filter_(good.astype(np.float64)) > TRUST) & given.moving[:, None]
    return Look(
        given.filtered, slope[taken], smooth[taken], use[taken], raw, (r - smooth)[window.core],
        int(np.count_nonzero(outlier[window.core])), int(np.count_nonzero(~given.moving[window.core])),
    )  # fmt: skip


class Noise(NamedTuple):
    """What a pass takes residuals for; from the pass before."""

    sigma: Array  # (n,) standard deviation of a filtered residual: what legs are weighted by
    coefficients: Array  # (n, MEMORY) autoregression
    innovations: Array  # (n, n) covariance of what that leaves


class Sums:
    """What a pass adds up; its size does not depend on the number of rows."""

    def __init__(self, b: int, noise: Noise) -> None:
        n = len(noise.sigma)
        self.R = np.zeros((0, b + n + 1))
        self.meat = np.zeros((b + 1, b + 1))  # covariance of W^T r
        self.taken = self.instants = self.outliers = self.resting = 0
        self.lagged = np.zeros((2, n, MEMORY + 1))  # sums of products of residuals so many rows apart; their number
        self.products = np.zeros((2, n, n))  # likewise of innovations
        self.noise = np.zeros((2, n))  # squares of what a single reading is off, besides the model; their number
        self.passed = np.zeros((2, n))  # likewise what of it passes the filter
        self.sample: list[Array] = []
        self._noise, self._sampled = noise, 0

    def add(self, given: Prepared, seen: Look, beta: Array) -> None:
        """One more window."""
        n, b = seen.r.shape[1], len(beta)
        self.outliers, self.resting = self.outliers + seen.outliers, self.resting + seen.resting
        self.taken += int(seen.use.sum())
        self.instants += int(seen.use.any(axis=1).sum())
        self._residuals(given, seen)
        columns_ = np.concatenate([seen.W, seen.slope[:, :, None]], axis=2)
        columns_ = np.where(seen.use[:, :, None], columns_ / self._noise.sigma[:, None] ** 2, 0.0)
        coloured = np.stack(
            [signal.lfilter([1.0], [1.0, *-self._noise.coefficients[i]], columns_[:, i], axis=0) for i in range(n)], 1
        )
        self.meat += np.einsum("kib,ij,kjc->bc", coloured, self._noise.innovations, coloured, optimize=True)
        A = np.concatenate([seen.W, np.zeros((len(seen.r), n, n)), (seen.r + seen.W @ beta)[:, :, None]], axis=2)
        A[:, range(n), range(b, b + n)] = seen.slope
        self.R = fold(self.R, (A / self._noise.sigma[:, None])[seen.use])

    def _residuals(self, given: Prepared, seen: Look) -> None:
        window = given.window
        for lag in range(MEMORY + 1):
            both = seen.use[lag:] & seen.use[: len(seen.use) - lag]
            product = seen.r[lag:] * seen.r[: len(seen.r) - lag]
            self.lagged[:, :, lag] += np.where(both, product, 0.0).sum(axis=0), both.sum(axis=0)
        white, use = _whitened(seen.r, seen.use, self._noise.coefficients)
        white = np.where(use, white, 0.0)
        self.products += white.T @ white, use.T.astype(np.float64) @ use
        gain = given.filter_.gain(4096)
        if window.periods:
            rows = np.full(len(window.scatter_n), float(len(window.u)))
            square = rows * window.scatter_n**2
            self.passed += square * np.mean(gain**2) / window.periods, rows
        else:
            there = np.isfinite(seen.raw)
            rows = there.sum(axis=0).astype(np.float64)
            square = np.where(there, seen.high**2, 0.0).sum(axis=0) / np.mean((1.0 - gain) ** 2)
            self.passed += square * np.mean(gain**2), rows
        self.noise += square, rows
        if self._sampled < SAMPLE:
            self.sample.append(seen.raw[:: 1 + len(seen.raw) // 4096])
            self._sampled += len(self.sample[-1])


def fold(R: Array, rows: Array) -> Array:
    """The triangular matrix with R^T R grown by rows^T rows."""
    width = rows.shape[1]
    pace = max(FOLD_ROWS, 2 * width)
    for k in range(0, len(rows), pace):
        stacked = np.vstack([R, rows[k : k + pace]])
        R = linalg.qr(stacked, mode="r", overwrite_a=True, check_finite=False)[0][:width]
    return R


def _whitened(r: Array, use: Flags, coefficients: Array) -> tuple[Array, Flags]:
    """Residuals (k, n) less what those before lead to expect; usable where all of these are."""
    lags = coefficients.shape[1]
    if len(r) <= lags:
        return r[:0], use[:0]
    white, all_ = r[lags:].copy(), use[lags:].copy()
    for lag in range(1, lags + 1):
        white -= coefficients[:, lag - 1] * r[lags - lag : -lag]
        all_ &= use[lags - lag : -lag]
    return white, all_


def autoregression(lagged: Array) -> Array:
    """Coefficients (n, MEMORY) from the sums of products (2, n, MEMORY + 1), by the equations of Yule and Walker."""
    covariance = lagged[0] / np.maximum(lagged[1], 1.0)
    found = np.zeros((len(covariance), MEMORY))
    for i, row in enumerate(covariance):
        if row[0] > 0.0:
            # tapered, so that the matrix is positive whatever gaps there are
            tapered = row * (1.0 - np.arange(MEMORY + 1) / (8.0 * MEMORY)) ** 0.5
            found[i] = linalg.solve_toeplitz(tapered[:-1], tapered[1:])
    return found


# ---------------------------------------------------------------- solution


class Solution(NamedTuple):
    """Of one pass; the last parameter is the delay."""

    x: Array  # (b + 1,)
    inverse: Array  # (b + 1, b + 1) what changes of W^T r make of x
    left: Array  # (b + 1, b + 1) covariance of what stays at the file
    strengths: Array


def solve(problem: Problem, R: Array, inflation: float = 1.0) -> Solution:
    """Least squares in the directions that the data know better than the file, the file in the others.

    `inflation` is how many rows that remember each other are worth one that does not.
    """
    b = len(problem.prior)
    A = np.column_stack([R[:, :b], R[:, b:-1].sum(axis=1)])
    scale = np.zeros((b + 1, b + 1))
    scale[:b, :b] = np.linalg.cholesky(problem.open_)
    scale[b, b] = DELAY_S
    prior = np.append(problem.prior, 0.0)
    U, S, Vt = np.linalg.svd(A @ scale, full_matrices=False)
    told = math.sqrt(inflation) < S
    inner, outer = scale @ Vt[told].T, scale @ Vt[~told].T
    x = prior + (inner / S[told]) @ (U[:, told].T @ (R[:, -1] - A @ prior))
    return Solution(x, (inner / S[told] ** 2) @ inner.T, outer @ outer.T, S / math.sqrt(inflation))


def fit(problem: Problem, windows: Iterable[Windows], cutoff_hz: float | None = None) -> Fit:
    """Identify from windows, which are asked for once a pass.

    Raises:
        NothingToldError: if no row is left that tells anything.
        ConfigurationError: if the cut-off is too high for the rows.
    """
    parts = list(windows)
    b, n = len(problem.prior), len(problem.mechanism.legs)
    beta, delay_s = problem.prior, 0.0
    noise, most_n = Noise(np.ones(n), np.zeros((n, MEMORY)), np.eye(n)), np.full(n, np.inf)
    stream = itertools.chain.from_iterable(part() for part in parts)
    pilot, kept, more = list[Prepared](), 0, False
    for window in stream:
        pilot.append(prepare_window(problem, window, cutoff_hz))
        kept += pilot[-1].W.size
        if kept > PILOT_NUMBERS:
            more = True
            break
    whole = 0  # passes over everything
    number = 0
    while True:
        number += 1
        sums = Sums(b, noise)
        rest: Iterator[Window] = iter(())
        if whole and more:
            stream = itertools.chain.from_iterable(part() for part in parts)
            rest = itertools.islice(stream, len(pilot), None)
        for given in itertools.chain(pilot, (prepare_window(problem, window, cutoff_hz) for window in rest)):
            sums.add(given, look(given, beta, delay_s, most_n), beta)
        if sums.taken < 4 * b:
            raise NothingToldError(
                f"{sums.taken} values are left of all legs together, of which {b} parameters cannot be told: "
                f"{sums.resting} rows are at rest, {sums.outliers} values are outliers"
            )
        solution = solve(problem, sums.R, _inflation(noise))
        spread = solution.inverse @ sums.meat @ solution.inverse * sums.instants / max(sums.instants - b, 1)
        covariance = (spread + solution.left)[:b, :b]
        error = np.sqrt(np.diagonal(covariance))
        moved = float(np.max(np.abs(solution.x[:b] - beta) / np.maximum(error, 1e-300)))
        beta = solution.x[:b]
        delay_s = float(np.clip(delay_s + solution.x[b], -MOST_DELAY_S, MOST_DELAY_S))
        usual_n = _usual(sums)
        settled = (number >= FEWEST and moved < DONE) or number >= MOST
        if whole == 2 or (settled and not more):
            break
        whole += bool(settled or whole)
        most_n = OUTLIER * np.maximum(usual_n, 1e-9)
        noise = _noise(sums, number >= COLOURED_FROM)
    delay_error_s = math.sqrt(float((spread + solution.left)[b, b]))
    determined = error < DETERMINED * np.sqrt(np.diagonal(problem.open_))
    per_row = np.sqrt(sums.lagged[0, :, 0] / np.maximum(sums.lagged[1, :, 0], 1.0))
    return Fit(
        beta, covariance, error, determined, solution.strengths, delay_s, delay_error_s, noise.coefficients, per_row,
        np.sqrt(sums.noise[0] / np.maximum(sums.noise[1], 1.0)), usual_n, sums.taken, sums.instants, sums.outliers,
        sums.resting, number,
    )  # fmt: skip


def _usual(sums: Sums) -> Array:
    """Robust standard deviation (n,) of the unfiltered residual."""
    sample = np.concatenate(sums.sample)
    empty = ~np.isfinite(sample).any(axis=0)
    sample[:, empty] = 0.0
    return MAD * np.nanmedian(np.abs(sample), axis=0)


def _noise(sums: Sums, coloured: bool) -> Noise:
    """What the next pass takes residuals for."""
    square = sums.lagged[0, :, 0] / np.maximum(sums.lagged[1, :, 0], 1.0)
    own = sums.passed[0] / np.maximum(sums.passed[1], 1.0)
    own = np.minimum(own, square)
    model = square - own
    alike = square <= ALIKE**2 * np.median(square)
    sigma2 = own + np.where(alike, model[alike].mean(), model)
    coefficients = autoregression(sums.lagged) if coloured else np.zeros((len(square), MEMORY))
    innovations = sums.products[0] / np.maximum(sums.products[1], 1.0)
    return Noise(np.sqrt(np.maximum(sigma2, 1e-12)), coefficients, innovations)


def _inflation(noise: Noise) -> float:
    """Slow over mean variance of the residuals, of the mean leg."""
    slow: Array = np.diagonal(noise.innovations) / (1.0 - np.minimum(noise.coefficients.sum(axis=1), 0.95)) ** 2
    return max(float(np.mean(slow / noise.sigma**2)), 1.0) if noise.coefficients.any() else 1.0
