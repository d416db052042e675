"""Base parameters from measured forces: weighted, robust, with honest standard errors; memory does not grow with data.

Measured forces and the columns of the model pass the same filter without phase, and of what comes out every row that
still says something new is taken. Each pass over the data goes on from the parameters of the one before:

* What is missing, at the end of its range, at a reversal of dry friction, or further from the model than OUTLIER times
  the usual is replaced by the model; where the filter would see much of that, no row is taken.
* Every leg is weighted by its noise and the error of the model, which is taken for the same in all legs but such as
  are far worse than the others.
* Rows are folded into one triangular matrix (QR); the delay of forces behind positions, and the zero error of each
  load cell, are columns beside those of the model.
* Solved is by singular values, in units of what the machine file leaves open: a direction in which the data know less
  than the file stays at the file, all others are the data's alone.
* Standard errors are those of residuals that remember (an autoregression of each leg) and that legs share (covariance
  of what the autoregressions leave).

b            base parameters          W  columns (N, n, b)     r  measured minus modelled force (N, n)
beta         values of them           R  triangular, of weighted [W, delay, z zeros, forces]
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg as _linalg  # pyright: ignore[reportMissingTypeStubs]
import scipy.signal as _signal  # pyright: ignore[reportMissingTypeStubs]

from controller.errors import ConfigurationError
from controller.identification.look import Look, Prepared, look, prepare_window
from controller.identification.problem import Problem
from controller.identification.signals import Flags, Window
from controller.records import Array

linalg: Any = _linalg  # ship no types
signal: Any = _signal

OUTLIER = 6.0  # robust standard deviations of the unfiltered residual
DELAY_S = 5e-3  # spread of what is not known of the delay
MOST_DELAY_S = 0.05
STABLE = 0.98  # largest root of an autoregression: more would be no noise that fades
MEMORY = 6  # rows back that the autoregression of a residual looks
FEWEST, MOST = 5, 12  # passes; the first of them without autoregression
COLOURED_FROM = 3  # pass
ALIKE = 3.0  # a leg whose residual is larger than so many times that of the middle one is worse than the others
DONE = 0.02  # of a standard error, that no parameter changes any more
# Of the columns of the first windows, which are kept. Of longer data all passes but the last see these alone: what is
# not linear (delay, outliers, weights, memory of the noise) a quarter of an hour tells well enough
PILOT_NUMBERS = 8_000_000
SAMPLE = 50_000  # unfiltered residuals kept for their median
MAD = 1.4826  # standard deviation over the median of the absolute values, of a normal distribution
FOLD_ROWS = 256  # at once: so few stay in the cache, and are not worth threads that wait for each other
DETERMINED = 0.5  # of what the file leaves open: a smaller standard error means that the data determine it

Windows = Callable[[], Iterator[Window]]


class NothingToldError(ConfigurationError):
    """No data are left that tell anything."""


class Fit(NamedTuple):
    """What the data say."""

    beta: Array  # (b,)
    covariance: Array  # (b, b)
    error: Array  # (b,) standard errors
    determined: Flags  # (b,)
    strengths: Array  # (b + 1 + z,) singular values: how much better than the file the data know each direction
    delay_s: float
    delay_error_s: float
    zero_n: Array  # (n,) what each leg's reading is too much; 0 where it is not looked for
    zero_error_n: Array  # (n,)
    coefficients: Array  # (n, MEMORY) autoregression of the filtered residuals
    sigma_n: Array  # (n,) standard deviation of the filtered residual
    noise_n: Array  # (n,) of a single reading, without what the filter lets through
    usual_n: Array  # (n,) robust standard deviation of the unfiltered residual
    taken: int  # rows, of all legs together
    instants: int
    outliers: int
    resting: int  # rows at rest
    passes: int


class Noise(NamedTuple):
    """What a pass takes residuals for; from the pass before."""

    sigma: Array  # (n,) standard deviation of a filtered residual: what legs are weighted by
    coefficients: Array  # (n, MEMORY) autoregression
    innovations: Array  # (n, n) covariance of what that leaves


class Sums:
    """What a pass adds up; its size does not depend on the number of rows."""

    def __init__(self, width: int, noise: Noise) -> None:
        """Width of [W, delay, zeros]."""
        n = len(noise.sigma)
        self.R = np.zeros((0, width + 1))
        self.meat = np.zeros((width, width))  # covariance of [W, delay, zeros]^T r
        self.taken = self.instants = self.outliers = self.resting = 0
        self.lagged = np.zeros((2, n, MEMORY + 1))  # sums of products of residuals so many rows apart; their number
        self.products = np.zeros((2, n, n))  # likewise of innovations
        self.noise = np.zeros((2, n))  # squares of what a single reading is off, besides the model; their number
        self.passed = np.zeros((2, n))  # likewise what of it passes the filter
        self.sample: list[Array] = []
        self._noise, self._sampled = noise, 0

    def add(self, given: Prepared, seen: Look, beta: Array, zero_n: Array) -> None:
        """One more window, seen at these parameters."""
        self.outliers, self.resting = self.outliers + seen.outliers, self.resting + seen.resting
        self.taken += int(seen.use.sum())
        self.instants += int(seen.use.any(axis=1).sum())
        self._residuals(given, seen)
        A = np.concatenate([seen.W, seen.slope[:, :, None], seen.zeros], axis=2)
        weighted = np.where(seen.use[:, :, None], A / self._noise.sigma[:, None] ** 2, 0.0)
        coloured = np.stack([
            signal.lfilter([1.0], [1.0, *-coefficients], weighted[:, i], axis=0)
            for i, coefficients in enumerate(self._noise.coefficients)
        ], 1)  # fmt: skip
        self.meat += np.einsum("kib,ij,kjc->bc", coloured, self._noise.innovations, coloured, optimize=True)
        force = seen.r + seen.W @ beta + seen.zeros @ zero_n[: seen.zeros.shape[2]]
        whole = np.concatenate([A, force[:, :, None]], axis=2)
        self.R = fold(self.R, (whole / self._noise.sigma[:, None])[seen.use])

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
    found = np.zeros((lagged.shape[1], MEMORY))
    taper = (1.0 - np.arange(MEMORY + 1) / (8.0 * MEMORY)) ** 0.5
    for i, (product, number) in enumerate(zip(*lagged, strict=True)):
        # means over what pairs there are need not be those of any process where gaps are many; sums with zeros in the
        # gaps always are, but remember less
        for row in (product / np.maximum(number, 1.0), product):
            if row[0] > 0.0:
                found[i] = linalg.solve_toeplitz((taper * row)[:-1], (taper * row)[1:])
            if np.abs(np.roots([1.0, *-found[i]])).max(initial=0.0) < STABLE:
                break
    return found


# ---------------------------------------------------------------- solution


class Solution(NamedTuple):
    """Of one pass."""

    x: Array  # (b + 1 + z,) base parameters, delay (more than so far), zero errors
    inverse: Array  # (b + 1 + z, b + 1 + z) what changes of [W, delay, zeros]^T r make of x
    left: Array  # (b + 1 + z, b + 1 + z) covariance of what stays at the file
    strengths: Array  # (b + 1 + z,)


def solve(problem: Problem, R: Array, inflation: float = 1.0) -> Solution:
    """Least squares in the directions that the data know better than the file, the file in the others.

    `inflation` is how many rows that remember each other are worth one that does not.
    """
    b, A = len(problem.prior), R[:, :-1]
    scale = np.diag(np.concatenate([np.zeros(b), [DELAY_S], problem.zero_n]))
    scale[:b, :b] = np.linalg.cholesky(problem.open_)
    prior = np.concatenate([problem.prior, np.zeros(1 + len(problem.zero_n))])
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
    beta, delay_s, zero_n, z = problem.prior, 0.0, np.zeros(n), len(problem.zero_n)
    noise, most_n = Noise(np.ones(n), np.zeros((n, MEMORY)), np.eye(n)), np.full(n, np.inf)
    stream = itertools.chain.from_iterable(part() for part in parts)
    pilot, kept, more = list[Prepared](), 0, False
    for window in stream:
        pilot.append(prepare_window(problem, window, cutoff_hz))
        kept += pilot[-1].W.size
        if kept > PILOT_NUMBERS:
            more = True
            break
    whole = not more  # the pass is one over everything
    number = 0
    while True:
        number += 1
        sums = Sums(b + 1 + z, noise)
        rest: Iterator[Window] = iter(())
        if more and whole:
            stream = itertools.chain.from_iterable(part() for part in parts)
            rest = itertools.islice(stream, len(pilot), None)
        for given in itertools.chain(pilot, (prepare_window(problem, window, cutoff_hz) for window in rest)):
            sums.add(given, look(given, beta, delay_s, zero_n, most_n), beta, zero_n)
        if sums.taken < 4 * b:
            raise NothingToldError(
                f"{sums.taken} values are left of all legs together, of which {b} parameters cannot be told: "
                f"{sums.resting} rows are at rest, {sums.outliers} values are outliers"
            )
        solution = solve(problem, sums.R, _inflation(noise))
        spread = solution.inverse @ sums.meat @ solution.inverse * sums.instants / max(sums.instants - b, 1)
        whole_covariance = spread + solution.left
        covariance, every_error = whole_covariance[:b, :b], np.sqrt(np.diagonal(whole_covariance))
        error = every_error[:b]
        moved = float(np.max(np.abs(solution.x[:b] - beta) / np.maximum(error, 1e-300)))
        beta, zero_n[:z] = solution.x[:b], solution.x[b + 1 :]
        delay_s = float(np.clip(delay_s + solution.x[b], -MOST_DELAY_S, MOST_DELAY_S))
        usual_n = _usual(sums)
        settled = (number >= FEWEST and moved < DONE) or number >= MOST
        if whole and (more or settled):
            break
        whole = whole or settled
        most_n = OUTLIER * np.maximum(usual_n, 1e-9)
        noise = _noise(sums, number >= COLOURED_FROM)
    determined = error < DETERMINED * np.sqrt(np.diagonal(problem.open_))
    per_row = np.sqrt(sums.lagged[0, :, 0] / np.maximum(sums.lagged[1, :, 0], 1.0))
    return Fit(
        beta, covariance, error, determined, solution.strengths, delay_s, float(every_error[b]), zero_n,
        np.append(every_error[b + 1 :], np.zeros(n - z)), noise.coefficients, per_row,
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
