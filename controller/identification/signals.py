"""From what was measured to states of motion and forces at equal intervals, through filters without phase.

Positions and forces are what one PLC cycle saw. The counter of these cycles is the clock, where there is one: the
host's own ticks come when they can. Positions are resampled, filtered forward and backward, and differentiated by
central differences; of the mean of repeats (controller.identification.repeats) the same filter and the derivatives
are applied to its Fourier series. Everything works window by window, with margins: memory does not grow with the data.

N, n, f      rows, legs, freedoms
t            seconds from the beginning of a stretch                       (N,)
axes         axis positions                                                (N, n)   m
force        what was measured of the legs                                 (N, n)   N
valid        whether that is a measurement                                 (N, n)
u            independent coordinates of the platform                       (N, f)   m, rad
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.interpolate as _interpolate  # pyright: ignore[reportMissingTypeStubs]
import scipy.signal as _signal  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray

from controller import schema
from controller.errors import ConfigurationError
from controller.identification.base_parameters import INDEPENDENT, States, coordinates
from controller.mechanism import kinematics
from controller.mechanism.compile import i64, kernel, v1, v2
from controller.mechanism.layout import MECHANISM, Mechanism
from controller.mechanism.model import build, home_pose
from controller.records import Array

signal: Any = _signal  # ship no types
interpolate: Any = _interpolate
Flags = NDArray[np.bool_]

CUTOFF_HZ = 30.0  # drives shake the platform at 10 to 20 Hz where dry friction turns round, and cells see it
CUTOFF_SHARE = 0.6  # of half the rate of the rows, if that is less
ORDER = 4  # of the Butterworth filter, once forward and once backward
WINDOW_ROWS = 8192
MARGIN_S = 0.6  # beside a window: the filter has forgotten its beginning to 1e-6 by then
MEASURED = 0.8  # periods from the next row: what is further from any is not measured
ALL = 0.999
SPLINE_ROWS = 16  # beside a window: a cubic spline has forgotten its end to 1e-9 by then
GAP = 6.5  # periods between two rows over which positions are still bridged; forces are not
CLOCK_STEP_S = 0.0005  # PLC cycles are multiples of this
CLOCK_TOLERANCE = 1e-3


class Rows(NamedTuple):
    """Measurements as they came, in order of time."""

    t_s: Array
    cycle: Array  # (N,) PLC cycle counter; NaN where there is none
    axes_m: Array
    force_n: Array
    valid: Flags  # (N, n) of force_n


def taken(rows: Rows, which: Any) -> Rows:
    """Some of the rows."""
    return Rows(rows.t_s[which], rows.cycle[which], rows.axes_m[which], rows.force_n[which], rows.valid[which])


def joined(first: Rows, second: Rows) -> Rows:
    """One after the other."""
    return Rows(
        np.concatenate([first.t_s, second.t_s]), np.concatenate([first.cycle, second.cycle]),
        np.concatenate([first.axes_m, second.axes_m]), np.concatenate([first.force_n, second.force_n]),
        np.concatenate([first.valid, second.valid]),
    )  # fmt: skip


class Window(NamedTuple):
    """A stretch of measurements at equal intervals; `core` is what counts of it, the rest are margins."""

    step_s: float
    u: Array
    force_n: Array
    valid: Flags
    core: slice
    periods: int  # repeats averaged, whose end is their beginning; 0: not such a mean
    scatter_n: Array  # (n,) standard deviation of a single reading about that mean; NaN without such


class Counts:
    """What became of the rows."""

    def __init__(self) -> None:
        self.rows = 0
        self.repeated = 0  # the same PLC cycle again
        self.unreachable = 0  # no pose has these axis positions
        self.edges = 0  # at the ends of stretches, and in stretches too short for the filter
        self.stretches = 0


Source = Callable[[], Iterator[Rows]]  # the same rows every time it is called


# ---------------------------------------------------------------- equal intervals


def cycle_seconds(rows: Rows) -> float:
    """Length of a PLC cycle, from its counter and the host's clock; 0 where there is no counter."""
    known = np.flatnonzero(np.isfinite(rows.cycle))
    if len(known) < 2 or rows.cycle[known[-1]] <= rows.cycle[known[0]]:
        return 0.0
    first, last = known[0], known[-1]
    length = (rows.t_s[last] - rows.t_s[first]) / (rows.cycle[last] - rows.cycle[first])
    return _near(float(length), CLOCK_STEP_S)


def _near(value: float, unit: float) -> float:
    """The multiple of `unit` that a measured time surely means, or the time."""
    whole = round(value / unit) * unit
    return whole if whole and abs(value / whole - 1.0) < CLOCK_TOLERANCE else value


def clocked(blocks: Iterable[Rows], counts: Counts) -> Iterator[tuple[float, Rows]]:
    """The rows with the times of the PLC's clock, each cycle once, and the interval between most of them."""
    cycle_s, step_s, last_t, last_cycle = -1.0, 0.0, 0.0, 0.0
    for block in blocks:
        counts.rows += len(block.t_s)
        if len(block.t_s) < 2:
            continue
        if cycle_s < 0.0:
            cycle_s = cycle_seconds(block)
            last_t, last_cycle = float(block.t_s[0]), float(block.cycle[0])
        t = last_t + (block.cycle - last_cycle) * cycle_s if cycle_s else block.t_s
        usable = np.isfinite(t) & np.isfinite(block.axes_m).all(axis=1)
        t = t[usable]
        before = -math.inf if not step_s else last_t
        new = t > np.maximum.accumulate(np.concatenate([[before], t[:-1]]))
        counts.repeated += int(np.count_nonzero(~new))
        rows = taken(taken(block, usable)._replace(t_s=t), new)
        if len(rows.t_s) == 0:
            continue
        if not step_s:
            if len(rows.t_s) < 2:
                continue
            step_s = _near(float(np.median(np.diff(rows.t_s))), 1e-4)
        last_t, last_cycle = float(rows.t_s[-1]), float(rows.cycle[-1])
        yield step_s, rows


def windows(
    blocks: Iterable[Rows], machine: schema.Machine, counts: Counts, step_s: float = 0.0, margin_s: float = MARGIN_S
) -> Iterator[Window]:
    """Stretches without gaps at equal intervals, in windows whose cores follow each other.

    `step_s` if it is to be another interval than that of the rows; `margin_s` beside each core, 0 where nothing will be
    filtered.
    """
    model, pose = build(machine), home_pose(machine)
    twist = np.zeros(len(model.legs))
    held: Rows | None = None
    origin_s, next_k = 0.0, 0

    def cut(last: bool) -> Iterator[Window]:
        nonlocal held, next_k
        if held is None:
            return
        edge = round(margin_s / step_s)
        margin = max(edge, SPLINE_ROWS)
        first_k = math.ceil((held.t_s[0] - origin_s) / step_s - 1e-6)
        last_k = math.floor((held.t_s[-1] - origin_s) / step_s + 1e-6)
        begin, end = max(next_k, first_k + (edge if next_k == 0 else margin)), last_k + 1 - (edge if last else margin)
        if last:
            counts.stretches += 1
            counts.edges += max(min(last_k + 1 - first_k, last_k + 1 - next_k) - max(end - begin, 0), 0)
        if end > begin:
            grid: Array = origin_s + step_s * np.arange(float(first_k), float(last_k + 1))
            axes, force, valid = _resampled(held, grid)
            yield _window(
                machine, model, pose, twist, step_s, axes, force, valid, slice(begin - first_k, end - first_k)
            )
            next_k = end
        if not last:
            kept = held.t_s >= origin_s + step_s * (next_k - 2 * margin)
            held = taken(held, kept)

    for found_s, rows in clocked(blocks, counts):
        step_s = step_s or found_s
        ends = [*(np.flatnonzero(np.diff(rows.t_s) > GAP * found_s) + 1).tolist(), len(rows.t_s)]
        begin = 0
        for end in ends:
            piece = taken(rows, slice(begin, end))
            if held is not None and (begin > 0 or piece.t_s[0] - held.t_s[-1] > GAP * found_s):
                yield from cut(last=True)
                held = None
            if held is None:
                origin_s, next_k, held = float(piece.t_s[0]), 0, piece
            else:
                held = joined(held, piece)
            begin = end
        if held is not None and len(held.t_s) >= WINDOW_ROWS:
            yield from cut(last=False)
    if held is not None and step_s:
        yield from cut(last=True)


def _resampled(rows: Rows, grid: Array) -> tuple[Array, Array, Flags]:
    """Axes, forces and their validity on the grid; forces that are none are bridged by a line."""
    force = rows.force_n
    if not rows.valid.all():
        force = force.copy()
        for i in range(force.shape[1]):
            good = rows.valid[:, i]
            force[:, i] = np.interp(rows.t_s, rows.t_s[good], force[good, i]) if good.any() else 0.0
    if len(grid) == len(rows.t_s) and np.abs(grid - rows.t_s).max() < 1e-7:
        return rows.axes_m, force, rows.valid
    both = interpolate.CubicSpline(rows.t_s, np.hstack([rows.axes_m, force]))(grid)
    n = force.shape[1]
    share = [np.interp(grid, rows.t_s, rows.valid[:, i].astype(np.float64)) for i in range(n)]
    after = np.clip(np.searchsorted(rows.t_s, grid), 1, len(rows.t_s) - 1)
    near = np.minimum(np.abs(grid - rows.t_s[after]), np.abs(grid - rows.t_s[after - 1])) < MEASURED * (
        grid[1] - grid[0]
    )
    valid = (np.array(share).T > ALL) & near[:, None]
    return both[:, : rows.axes_m.shape[1]], both[:, rows.axes_m.shape[1] :], valid


def _window(
    machine: schema.Machine, model: Mechanism, pose: Array, twist: Array, step_s: float, axes: Array, force: Array,
    valid: Flags, core: slice,
) -> Window:  # fmt: skip
    x = np.empty((len(axes), 6))
    lost = poses(model, np.ascontiguousarray(axes), pose, twist, x)
    if lost:
        raise ConfigurationError(f"{lost} of {len(axes)} rows have axis positions that no pose of {machine.name} has")
    pose[:] = x[-1]
    x[:, 3:] = np.unwrap(x[:, 3:], axis=0)
    return Window(step_s, independent(machine, x), force, valid, core, 0, np.full(force.shape[1], math.nan))


@kernel(i64(MECHANISM, v2, v1, v1, v2))
def poses(machine: Mechanism, axes: Array, start: Array, twist: Array, x_out: Array) -> int:
    """Poses (N, 6) of axis positions (N, n), each sought from the one before; returns how many were not found."""
    guess, lost = start.copy(), 0
    for k in range(axes.shape[0]):
        if kinematics.forward(machine, axes[k], guess, twist, x_out[k]) < 0:
            lost += 1
            x_out[k] = guess
        else:
            guess[:] = x_out[k]
    return lost


def independent(machine: schema.Machine, x: Array) -> Array:
    """Independent coordinates (N, f) of poses (N, 6)."""
    if machine.platform.kind != "2r1t":
        return x[:, list(INDEPENDENT[machine.platform.kind])]
    yaw, pitch, roll = x[:, 3], x[:, 4], x[:, 5]
    # R = Rx(a) Ry(b): the x component of platform z, and of platform x
    zx = np.cos(yaw) * np.sin(pitch) * np.cos(roll) + np.sin(yaw) * np.sin(roll)
    b = np.arctan2(zx, np.cos(yaw) * np.cos(pitch))
    return np.column_stack([np.hypot(x[:, 1], x[:, 2]), np.arctan2(-x[:, 1], x[:, 2]), b])


# ---------------------------------------------------------------- filters


class Filter(NamedTuple):
    """Butterworth, forward and backward: no phase. Its gain is 1 / (1 + (f / cutoff)^(2 order))."""

    sections: Any
    cutoff_hz: float
    step_s: float
    circular: bool  # of one period of a periodic signal

    def __call__(self, values: Array) -> Array:
        """Filtered along the first axis."""
        if not self.circular:
            return signal.sosfiltfilt(self.sections, values, axis=0)
        spectrum = np.fft.rfft(values, axis=0) * self.gain(len(values)).reshape(-1, *[1] * (values.ndim - 1))
        return np.fft.irfft(spectrum, len(values), axis=0)

    def gain(self, rows: int) -> Array:
        """At the frequencies of the Fourier series of so many rows."""
        f = np.fft.rfftfreq(rows, self.step_s)
        gain: Any = 1.0 / (1.0 + (f / self.cutoff_hz) ** (2 * ORDER))
        return gain


def filter_of(window: Window, cutoff_hz: float | None) -> Filter:
    """The filter for a window; None: the usual cut-off.

    Raises:
        ConfigurationError: if the measurements are too seldom for this cut-off.
    """
    nyquist_hz = 0.5 / window.step_s
    cutoff_hz = cutoff_hz or min(CUTOFF_HZ, CUTOFF_SHARE * nyquist_hz)
    if not 0.0 < cutoff_hz < 0.9 * nyquist_hz:
        raise ConfigurationError(
            f"--cutoff: found {cutoff_hz:g} Hz, expected less than {0.9 * nyquist_hz:g} Hz: a row comes every "
            f"{1e3 * window.step_s:g} ms"
        )
    sections = signal.butter(ORDER, cutoff_hz, fs=1.0 / window.step_s, output="sos")
    return Filter(sections, cutoff_hz, window.step_s, window.periods > 0)


def motion(model: Mechanism, window: Window, filter_: Filter) -> States:
    """States of motion of a window, filtered: differences of fourth order, or derivatives of the Fourier series."""
    h = window.step_s
    if window.periods:
        rows = len(window.u)
        spectrum = np.fft.rfft(window.u, axis=0) * filter_.gain(rows)[:, None]
        jw = 2j * math.pi * np.fft.rfftfreq(rows, h)[:, None]
        u, ud, udd = (np.fft.irfft(spectrum * jw**k, rows, axis=0) for k in range(3))
    else:
        u = filter_(window.u)
        p = np.pad(u, ((2, 2), (0, 0)), mode="edge")
        ud = (p[:-4] - 8.0 * p[1:-3] + 8.0 * p[3:-1] - p[4:]) / (12.0 * h)
        udd = (-p[:-4] + 16.0 * p[1:-3] - 30.0 * p[2:-2] + 16.0 * p[3:-1] - p[4:]) / (12.0 * h * h)
    return coordinates(model, u, ud, udd)


def delayed(window: Window, delay_s: float) -> Array:
    """Forces at the time of the positions, when they are measured so much later."""
    force, h = window.force_n, window.step_s
    if delay_s == 0.0:
        return force
    rows = len(force)
    if window.periods:
        w = 2.0 * math.pi * np.fft.rfftfreq(rows, h)[:, None]
        return np.fft.irfft(np.fft.rfft(force, axis=0) * np.exp(1j * w * delay_s), rows, axis=0)
    t = h * np.arange(rows)
    return interpolate.CubicSpline(t, force)(np.clip(t + delay_s, 0.0, t[-1]))
