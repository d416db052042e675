"""What repeats itself in a recording, and its mean: whole periods, or plays from rest to rest.

The mean of m repeats has 1/m of the variance of the noise. What the model is off is the same in all of them: rows of
repeats one after the other would count it m times as if it were by chance, and standard errors would come out too
small. So repeats are averaged wherever there are such, aligned by the motion that was measured.

u            independent coordinates of the platform                       (N, f)   m, rad
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from controller.identification.signals import Flags, Window
from controller.records import Array

LEAST_ROWS = 100  # of a period
PERIODIC = 1e-4  # two periods of a periodic motion differ by no more than this share of the motion
LONGEST_LOOK_S = 120.0  # of a recording, in which a period is looked for
MOST_PERIOD_ROWS = 20_000
FAR = 6.0  # times the scatter of readings about the mean of the periods
STILL_S = 1e-4  # m/s or rad/s: slower is at rest
REST_S = 0.2  # before and after a play that are taken with it; twice as much parts two plays
SLACK = 3  # rows by which the beginning of a play, or its length, may be off
CLOSED = 1e-3  # m or rad between the ends of a play
MOST = 0.9  # of the rows that move: so many are plays
MOVING_SHARE = 0.5  # of the rows by which a period is known; rest is the same as ever


class Piece(NamedTuple):
    """Some rows of a window."""

    step_s: float
    u: Array
    force_n: Array
    valid: Flags


Unfiltered = Callable[[float], Iterable[Window]]  # windows without margins, a row every so many s; 0: as they came


def mean_of_repeats(unfiltered: Unfiltered, told_s: float | None = None) -> Window | None:
    """The mean of the periods of a motion (near `told_s` each), or of its plays; None where nothing repeats itself."""
    first, rows, step_s = list[Window](), 0, 0.0
    for window in unfiltered(0.0):
        if first and window.step_s * rows > LONGEST_LOOK_S:
            break
        first.append(window)
        rows, step_s = rows + window.core.stop - window.core.start, window.step_s
    if (found := period_of(first, told_s)) is not None:
        length_s, start = found
        rows = round(length_s / step_s)
        exact_s = length_s / rows
        return averaged(lambda: unfiltered(exact_s), rows, lambda: itertools.count(start, rows))
    begins, rows = ([], 0) if told_s is not None else plays_of(unfiltered(0.0))
    if len(begins) < 2 or rows < LEAST_ROWS:
        return None
    mean = averaged(lambda: unfiltered(0.0), rows, lambda: iter(begins), SLACK)
    alike = mean is not None and mean.periods == len(begins) and np.abs(mean.u[-1] - mean.u[0]).max() < CLOSED
    return mean if alike else None


def period_of(window_list: list[Window], told_s: float | None = None) -> tuple[float, int] | None:
    """Period (s) of a motion, not rounded to rows, and the row at which it is periodic for the first time; `told_s` is
    near the period that is meant."""
    if not window_list:
        return None
    h = window_list[0].step_s
    u = np.concatenate([window.u[window.core] for window in window_list])
    spread = u.std(axis=0)
    u = (u - u.mean(axis=0))[:, spread > 1e-9] / spread[spread > 1e-9]
    rows = len(u)
    if u.shape[1] == 0 or rows < 2 * LEAST_ROWS:
        return None
    moving = np.abs(np.gradient(u, axis=0)).max(axis=1) > 1e-5
    spectrum = np.fft.rfft(u, 2 * rows, axis=0)
    same = np.fft.irfft((np.abs(spectrum) ** 2).sum(axis=1), 2 * rows)[:rows] / np.arange(rows, 0, -1)
    top = rows // 2 + 1
    peaks = np.flatnonzero((same[1 : top - 1] >= same[: top - 2]) & (same[1 : top - 1] > same[2:top])) + 1
    if told_s is not None:
        peaks = np.array([min(max(round(told_s / h), LEAST_ROWS + 1), top - 4)])
    for peak in peaks[(same[peaks] > 0.5 * same[0]) & (peaks > LEAST_ROWS)].tolist():
        # what is not periodic shifts the peak a little
        lag = min(range(peak - 3, peak + 4), key=lambda lag: float(np.median(((u[lag:] - u[:-lag]) ** 2).mean(axis=1))))
        off = ((u[lag:] - u[:-lag]) ** 2).mean(axis=1)
        # half a row beside the period the motion is off by its speed
        speed = ((u[2:] - u[:-2]) ** 2).mean(axis=1).mean() / 4.0
        run, start = _longest_run(off < PERIODIC + 2.0 * speed)
        still = run == 0 or moving[start : start + run].mean() < MOVING_SHARE
        if lag > MOST_PERIOD_ROWS or run < 0.9 * lag or still:
            continue
        a, b = slice(start, start + run), slice(start + lag, start + lag + run)
        shifted = (u[b] - u[a]).ravel()
        slope = np.gradient(u, axis=0)[b].ravel()
        shift = float(shifted @ slope / (slope @ slope))
        left = shifted - shift * slope
        if float(left @ left) / len(left) < PERIODIC:
            return (lag - shift) * h, start
    return None


def _longest_run(flags: Flags) -> tuple[int, int]:
    """Length and beginning of the longest run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    begins, ends = edges[::2], edges[1::2]
    if len(begins) == 0:
        return 0, 0
    longest = int(np.argmax(ends - begins))
    return int(ends[longest] - begins[longest]), int(begins[longest])


def plays_of(window_list: Iterable[Window]) -> tuple[list[int], int]:
    """Where the plays of a recording begin, at rest, and their rows, rest at both ends included; none if most of what
    moves is no such. Takes a byte a row."""
    moves, edge, last = [np.zeros(0, np.bool_)], 0, None
    for window in window_list:
        u, edge = window.u[window.core], round(REST_S / window.step_s)
        steps = np.abs(np.diff(u, axis=0, prepend=u[:1] if last is None else last)).max(axis=1)
        moves.append(steps > STILL_S * window.step_s)
        last = u[-1:]
    moving, total = np.flatnonzero(np.concatenate(moves)), sum(map(len, moves))
    if len(moving) == 0:
        return [], 0
    rests = np.flatnonzero(np.diff(moving) > 2 * edge)
    first, end = moving[np.concatenate([[0], rests + 1])], moving[np.concatenate([rests, [-1]])]
    length = end - first
    plays = (length.max() - length <= SLACK) & (first >= edge + SLACK) & (end + edge + SLACK < total)
    if length[plays].sum() < MOST * length.sum():
        return [], 0
    return (first[plays] - edge).tolist(), int(length.max()) + 2 * edge


def averaged(
    parts: Callable[[], Iterable[Window]], rows: int, begins: Callable[[], Iterator[int]], slack: int = 0
) -> Window | None:
    """The mean of the repeats of so many rows that begin at these rows, give or take `slack`, as long as they repeat;
    None without two.

    Readings far from the mean of the others are left out: a second look at them finds the mean without these.
    """
    first = _mean(_cut(parts(), rows, begins(), slack), None)
    if first is None:
        return None
    most = FAR * np.sqrt(np.median(first.scatter_n**2, axis=0))
    again = _mean(_cut(parts(), rows, begins(), slack), (first.force_n, most))
    if again is None:
        return None
    enough = again.valid
    mean_square = np.where(enough, again.scatter_n**2, 0.0).sum(axis=0) / np.maximum(enough.sum(axis=0), 1)
    return again._replace(scatter_n=np.sqrt(mean_square))


def _mean(repeats: Iterable[Piece], near: tuple[Array, Array] | None) -> Window | None:
    """Means of repeats, with the scatter (rows, n) of readings about them; only readings `near` some."""
    first: Piece | None = None
    u_sum = f_sum = squares = good = np.zeros((0, 0))
    count = 0
    for one in repeats:
        if first is None:
            first = one
            u_sum, (f_sum, squares, good) = np.zeros(one.u.shape), np.zeros((3, *one.force_n.shape))
        ok = one.valid if near is None else one.valid & (np.abs(one.force_n - near[0]) <= near[1])
        force = np.where(ok, one.force_n, 0.0)
        count, u_sum, f_sum, squares, good = count + 1, u_sum + one.u, f_sum + force, squares + force**2, good + ok
    if first is None or count < 2:
        return None
    times = np.maximum(good, 1.0)
    mean = f_sum / times
    variance = np.maximum(squares / times - mean**2, 0.0) * times / np.maximum(times - 1.0, 1.0)
    enough: Flags = np.greater(good, 0.5 * count)
    return Window(first.step_s, u_sum / count, mean, enough, slice(0, len(u_sum)), count, np.sqrt(variance))


def _cut(parts: Iterable[Window], rows: int, begins: Iterator[int], slack: int) -> Iterator[Piece]:
    """The repeats of so many rows, until one is another motion than the first; where each begins, it is most alike."""
    held, first = Piece(0.0, np.zeros((0, 0)), np.zeros((0, 0)), np.zeros((0, 0), np.bool_)), np.zeros((0, 0))
    at, begin = 0, next(begins, None)  # row at which `held` begins, and the next repeat
    for window in parts:
        new = Piece(window.step_s, window.u[window.core], window.force_n[window.core], window.valid[window.core])
        held = new if len(held.u) == 0 else Piece(new.step_s, *map(_joined, held[1:], new[1:]))
        while begin is not None and begin + rows + slack <= at + len(held.u):
            k = begin - at
            if len(first) == 0:
                first = held.u[k : k + rows]
            off = [float(((held.u[j : j + rows] - first) ** 2).mean()) for j in range(k - slack, k + slack + 1)]
            if min(off) > 10.0 * PERIODIC * first.var(axis=0).mean():
                return
            k += int(np.argmin(off)) - slack
            yield _rows(held, slice(k, k + rows))
            begin = next(begins, None)
        if begin is None:
            return
        past = min(max(begin - slack - at, 0), len(held.u))
        held, at = _rows(held, slice(past, None)), at + past


def _joined(first: Any, second: Any) -> Any:
    return np.concatenate([first, second])


def _rows(piece: Piece, which: slice) -> Piece:
    return Piece(piece.step_s, piece.u[which], piece.force_n[which], piece.valid[which])
