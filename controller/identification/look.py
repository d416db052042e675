"""One window of measurements beside the model: filtered residuals and columns, and which of them may be used."""

import math
from typing import Any, NamedTuple

import numpy as np
import scipy.ndimage as _ndimage  # pyright: ignore[reportMissingTypeStubs]

from controller.identification import signals
from controller.identification.base_parameters import axis_positions, coordinates
from controller.identification.problem import Problem, columns
from controller.identification.signals import Flags, Window
from controller.mechanism.layout import Mechanism
from controller.mechanism.leg import STICTION_SPEED_M_S
from controller.records import Array

ndimage: Any = _ndimage  # ships no types

TRUST = 0.7  # share of what the filter sees that must be measured
RUBBING_M_S = 2.0 * STICTION_SPEED_M_S  # below it, dry friction of a real leg is not what the model's smooth step says
SMEARED = 0.5  # periods of the cut-off beside a reversal in which the filter still sees it
MOVING_M_S = 1e-3  # a row counts if a leg is faster
# Rows are taken so seldom that half their rate is the cut-off over this: filtered noise is white again then, and
# nothing that is slow is lost
WHITE = 1.15


class Prepared(NamedTuple):
    """A window with all of it that no parameter changes."""

    window: Window
    filter_: signals.Filter
    W: Array  # (N, n, b)
    constant: Array  # (N, n)
    filtered: Array  # (k, n, b) of W, the rows taken
    zeros: Array  # (k, n, z) likewise what the zero error of each leg's reading does; z = 0: they are right
    taken: slice  # of the core
    moving: Flags  # (N,)
    rubs: Flags  # (N, n) dry friction may have any sign
    shared: Array | None  # (N, n, n) what of axis forces moves the platform, where legs outnumber freedoms


class Look(NamedTuple):
    """A window as a pass sees it, every so many rows of its core."""

    W: Array  # (k, n, b) filtered
    zeros: Array  # (k, n, z) filtered
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
    zeros = np.broadcast_to(np.eye(qd.shape[1]), (*qd.shape, qd.shape[1])) if shared is None else filter_(shared)
    zeros = zeros[taken, :, : len(problem.zero_n)]
    return Prepared(window, filter_, W, constant, filter_(W)[taken], zeros, taken, moving, rubs, shared)


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


def measured(given: Prepared, delay_s: float, zero_n: Array) -> Array:
    """Forces (N, n) as far as a model can know them, at the time of the positions, without zero errors (n,)."""
    force = signals.delayed(given.window, delay_s) - zero_n
    return force if given.shared is None else (given.shared @ force[:, :, None])[:, :, 0]


def valid(given: Prepared) -> Flags:
    """Whether these are measurements (N, n)."""
    flags = given.window.valid
    return flags if given.shared is None else np.repeat(flags.all(axis=1, keepdims=True), flags.shape[1], axis=1)


def look(given: Prepared, beta: Array, delay_s: float, zero_n: Array, most_n: Array) -> Look:
    """Residuals and columns of a window at these parameters; residuals above most_n (n,) are outliers."""
    window, filter_, taken = given.window, given.filter_, given.taken
    force = modelled(given, beta)
    r = measured(given, delay_s, zero_n) - force
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
        given.filtered, given.zeros, slope[taken], smooth[taken], use[taken], raw, (r - smooth)[window.core],
        int(np.count_nonzero(outlier[window.core])), int(np.count_nonzero(~given.moving[window.core])),
    )  # fmt: skip
