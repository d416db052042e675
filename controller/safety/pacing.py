"""How far the legs may go in one tick: inside stroke, speed, acceleration and jerk, all on one path, able to stop.

n legs; p length m, v its rate m/s, a its acceleration m/s², all of the set-points sent, as differences of these over
the time h between them. The derivatives of a smooth motion inside the limits have such differences inside the limits
too, however uneven the ticks are: whoever plans inside the limits is never touched here.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from controller.records import Array, Limit

# With how much of acceleration and jerk a leg is sure to stop in time: the rest covers that ticks are not infinitely
# short.
SURE = 0.8
LANDING_M = 1e-6  # so near its end a leg that creeps has arrived: one more tick ends what rate it has left
BISECTIONS = 14  # of the range of accelerations: 1e-4 of it
# A leg that is to go slower than this share of the range of rates it could have does not hold up the others: a share of
# so small a rate, found with so many bisections, would be of any size and sign.
CREEP = 1e-3
ROUNDING_M = 1e-12
ROUNDING = 1e-6  # share of the acceleration by which the two sides of a leg's range may cross


class Trail(NamedTuple):
    """The motion of the set-points up to the last one, (n,) each; the next one has to follow on from it."""

    position_m: Array
    rate_m_s: Array
    acceleration_m_s2: Array
    step_s: float  # of the last step, which the rate belongs to
    before_s: float  # of the step before
    behind: bool = False  # the last set-point was not yet the one asked for


class Bounds(NamedTuple):
    """What the legs may do, a number a leg."""

    low_m: Sequence[float]
    high_m: Sequence[float]
    speed_m_s: Sequence[float]
    acceleration_m_s2: Sequence[float]
    jerk_m_s3: Sequence[float]


def at_rest(position_m: Array, period_s: float) -> Trail:
    """The trail of legs that stand."""
    return Trail(position_m, np.zeros_like(position_m), np.zeros_like(position_m), period_s, period_s)


def follow_on(trail: Trail, position_m: Array, elapsed_s: float, behind: bool) -> Trail:
    """The trail once `position_m` (n,) is sent, `elapsed_s` after the last set-point; `behind` what was asked for."""
    rate = (position_m - trail.position_m) / elapsed_s
    acceleration = (rate - trail.rate_m_s) / (0.5 * (elapsed_s + trail.step_s))
    return Trail(position_m, rate, acceleration, elapsed_s, trail.step_s, behind)


def pace(
    bounds: Bounds, trail: Trail, position_m: list[float], velocity_m_s: list[float], elapsed_s: float
) -> tuple[list[float], list[float] | None, Limit] | None:
    """Where the legs are to be after `elapsed_s`, with what rates, and what kept them from `position_m`.

    Untouched, with None for the rates, where nothing does. Otherwise they go the straight way there, as far as the
    leg that is worst off allows: the platform stays on its path. Where the path turns too sharply for one share of the
    way to suit all of them, each keeps to its own bounds. None where a leg can no longer stop inside its stroke.
    """
    before, rates, accelerations = trail.position_m.tolist(), trail.rate_m_s.tolist(), trail.acceleration_m_s2.tolist()
    target, acted = _inside_stroke(bounds, before, position_m)
    # the end of a stroke does not move, whatever the demand beyond it does
    moving = [0.0] * len(before) if acted else velocity_m_s
    step = [(p - p0) / elapsed_s for p, p0 in zip(target, before, strict=True)]
    near_s, long_s = 0.5 * (elapsed_s + trail.step_s), (elapsed_s + trail.step_s + trail.before_s) / 3.0
    passes = arrives = True
    spans: list[tuple[float, float, float, float]] = []  # of accelerations: what the jerk leaves, what the speed too
    for v, v0, a0, end, speed, acceleration, jerk in zip(step, rates, accelerations, moving, *bounds[2:], strict=True):
        change = (v - v0) / near_s
        if abs(v) > speed:
            acted |= Limit.SPEED
        if abs(change) > acceleration:
            acted |= Limit.ACCELERATION
        if abs(change - a0) > jerk * long_s:
            acted |= Limit.JERK
        least, most = max(-acceleration, a0 - jerk * long_s), min(acceleration, a0 + jerk * long_s)
        slowest = max(least, -_before_speed(speed + v0, jerk, near_s))
        fastest = min(most, _before_speed(speed - v0, jerk, near_s))
        spans.append((least, most, slowest, fastest))
        passes &= v0 + near_s * slowest <= v <= v0 + near_s * fastest
        onward = (end - v) / elapsed_s  # the next change, if the set-point goes on at the rate it has
        arrives &= abs(onward) <= jerk * elapsed_s and abs(onward - change) <= jerk * elapsed_s
    legs = list(
        zip(step, before, rates, moving, bounds.low_m, bounds.high_m, bounds.acceleration_m_s2, bounds.jerk_m_s3,
            strict=True)
    )  # fmt: skip
    if passes and (arrives or not trail.behind):
        for v, p0, v0, _, low, high, acceleration, jerk in legs:
            change, brake = (v - v0) / near_s, (SURE * acceleration, SURE * jerk, elapsed_s)
            up, down = max(high, p0) - p0, p0 - min(low, p0)
            passes &= _stops(up, v, change, *brake) and _stops(down, -v, -change, *brake)
        if passes:
            return target, None if target is position_m else step, acted
    hard: list[tuple[float, float]] = []
    shares: list[float] = []
    for (v, p0, v0, end, low, high, acceleration, jerk), (least, most, slowest, fastest) in zip(
        legs, spans, strict=True
    ):
        # the lower end is the upper one turned round
        brake = SURE * acceleration, SURE * jerk, elapsed_s
        top = _highest(max(high, p0) - p0, v0, least, fastest, near_s, *brake)
        bottom = -_highest(p0 - min(low, p0), -v0, -most, -slowest, near_s, *brake)
        if not bottom <= top + ROUNDING * acceleration:  # also with a number that is none
            return None
        slow, fast = v0 + near_s * min(bottom, top), v0 + near_s * top
        hard.append((slow, fast))
        if abs(v) > CREEP * (fast - slow):
            shares.append(_soft_share(v, v0, end, near_s, *brake, slow, fast))
    if not acted:  # nothing but the way to stop, before the end of a stroke or where the set-point stands
        acted = Limit.ACCELERATION if trail.behind else Limit.STROKE
    v = _on_one_line(step, min(shares, default=1.0), hard)
    moved = [p0 + elapsed_s * rate for p0, rate in zip(before, v, strict=True)]
    # the rate in the middle of the step, and half a step later
    ends = [rate + 0.5 * elapsed_s * (rate - v0) / near_s for rate, v0 in zip(v, rates, strict=True)]
    return moved, ends, acted


def _inside_stroke(bounds: Bounds, before: list[float], wanted: list[float]) -> tuple[list[float], Limit]:
    """The farthest point inside all strokes on the straight way from `before` to `wanted`; a leg outside may return."""
    share = 1.0
    for p0, p, low, high in zip(before, wanted, bounds.low_m, bounds.high_m, strict=True):
        if p > max(high, p0):
            share = min(share, (max(high, p0) - p0) / (p - p0))
        elif p < min(low, p0):
            share = min(share, (min(low, p0) - p0) / (p - p0))
    if share == 1.0:
        return wanted, Limit.NONE
    return [p0 + share * (p - p0) for p, p0 in zip(wanted, before, strict=True)], Limit.STROKE


def _before_speed(left_m_s: float, jerk: float, near_s: float) -> float:
    """The largest acceleration from which a rate rises by no more than `left_m_s` until the jerk has ended it."""
    return jerk * (math.sqrt(near_s * near_s + 2.0 * max(left_m_s, 0.0) / jerk) - near_s)


def _stops(room_m: float, v: float, a: float, acceleration: float, jerk: float, elapsed_s: float) -> bool:
    """Whether a leg that makes this step at rate v, having come to it by a, can still stop within `room_m`."""
    left_m = room_m - elapsed_s * v
    return left_m >= -ROUNDING_M and ahead(v, a, acceleration, jerk) <= left_m + LANDING_M


def _highest(
    room_m: float, v: float, least: float, most: float, near_s: float,
    acceleration: float, jerk: float, elapsed_s: float,
) -> float:  # fmt: skip
    """The largest acceleration from `least` to `most` for this tick from which a leg at rate `v` can still stop within
    `room_m`; NaN where there is none."""

    def fits(a: float) -> bool:
        return _stops(room_m, v + near_s * a, a, acceleration, jerk, elapsed_s)

    if fits(most):
        return most
    if not fits(least):
        return math.nan
    for _ in range(BISECTIONS):
        middle = 0.5 * (least + most)
        least, most = (middle, most) if fits(middle) else (least, middle)
    return least


def ahead(v: float, a: float, acceleration: float, jerk: float) -> float:
    """How much farther (m, >= 0) a leg at rate v and acceleration a gets while it brakes as hard as it may."""
    # a brake already pulled counts for no more than what the limits allow, and than what the stop takes
    a = max(a, -acceleration, -math.sqrt(2.0 * jerk * max(v, 0.0)))
    fastest = v + 0.5 * a * a / jerk  # the rate when a has come to 0, or from which it would have come to this a
    if fastest <= 0.0:
        return 0.0
    if fastest < acceleration * acceleration / jerk:
        stop = fastest * math.sqrt(fastest / jerk)
    else:
        stop = 0.5 * fastest * (fastest / acceleration + acceleration / jerk)
    return max(stop + v * a / jerk + a * a * a / (3.0 * jerk * jerk), 0.0)


def _soft_share(
    v: float, v0: float, end: float, near_s: float, acceleration: float, jerk: float, elapsed_s: float,
    low: float, high: float,
) -> float:  # fmt: skip
    """The share of rate `v`, not 0, up to 1 with which a leg gets no farther than the set-point would, if it stopped as
    a leg does from its rate `end`; as far as the range from low to high allows."""
    # everything as seen in the direction of v
    side = math.copysign(1.0, v)
    least, most = sorted((side * (low - v0) / near_s, side * (high - v0) / near_s))
    room_m = elapsed_s * abs(v) + ahead(side * end, 0.0, acceleration, jerk)
    a = _highest(room_m, side * v0, least, most, near_s, acceleration, jerk, elapsed_s)
    return min((side * v0 + near_s * (least if math.isnan(a) else a)) / abs(v), 1.0)


def _on_one_line(wanted: list[float], share: float, ranges: list[tuple[float, float]]) -> list[float]:
    """The share of `wanted` within all ranges that is nearest to `share`; none: the nearest for each leg alone."""
    least, most = _shares(wanted, ranges)
    share = max(min(share, most), least)
    if not least <= most:
        nearest = [min(max(v, low), high) for v, (low, high) in zip(wanted, ranges, strict=True)]
        size = sum(v * v for v in wanted) or 1.0  # any share of nothing is nothing
        share = sum(v * w for v, w in zip(wanted, nearest, strict=True)) / size
    return [min(max(share * v, low), high) for v, (low, high) in zip(wanted, ranges, strict=True)]


def _shares(wanted: list[float], ranges: list[tuple[float, float]]) -> tuple[float, float]:
    """The least and the largest share of `wanted` within the ranges of all that is to move."""
    least, most = -math.inf, math.inf
    for v, (low, high) in zip(wanted, ranges, strict=True):
        if v != 0.0:
            ends = low / v, high / v
            least, most = max(least, min(ends)), min(most, max(ends))
    return least, most
