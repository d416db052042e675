"""Tracks: motions that stand in the site file, as a Fourier series or as a table of poses. Pure.

A track is made of quintic pieces in time which share pose, rate and acceleration at their ends. It begins and ends at
rest: where its data do not, a way from rest leads in and a way to rest leads out, each a quartic in time.
Poses x y z yaw pitch roll (6,) in m and rad; time counts from the start of the track.
"""

import csv
import math
from typing import NamedTuple

import numpy as np

from controller import schema
from controller.errors import ConfigurationError
from controller.mechanism import kinematics, platform, posture
from controller.mechanism.layout import Mechanism
from controller.records import POSE, Array, Reference

PIECES = 40  # in the period of the highest harmonic: a quintic is then off by 3e-10 of the amplitude
FEWEST_ROWS = 4
GENTLE = 0.5  # share of the motion limits for the ways in and out
SHORTEST_WAY_S = 0.1  # in and out, so that rounding in the data makes no jerk
OFF_MANIFOLD = 1e-6  # m or rad, likewise of rates and accelerations
RATES = tuple(f"{name}_s" for name in POSE)
ACCELERATIONS = tuple(f"{name}_s2" for name in POSE)


class Track(NamedTuple):
    """A motion from rest to rest."""

    t_s: Array  # (k + 1,) where the pieces begin, and the end
    pieces: Array  # (k, 6, 6) coefficients of the powers of time since the piece began, of the six coordinates
    zero_s: float  # what this track's time is where that of its data is 0


class Room(NamedTuple):
    """What a planned motion has to stay within: of the six coordinates and of n legs."""

    pose_min: Array  # (6,)
    pose_max: Array
    length_min_m: Array  # (n,)
    length_max_m: Array
    base_swing_rad: Array
    platform_swing_rad: Array
    speed_m_s: Array
    acceleration_m_s2: Array
    jerk_m_s3: Array


class Knots(NamedTuple):
    """A motion at k instants."""

    t_s: Array  # (k,)
    pose: Array  # (k, 6)
    rate: Array
    acceleration: Array


def build_track(
    track: schema.FourierTrack | schema.CsvTrack, text: str, home: Array, most: tuple[Array, Array]
) -> Track:
    """The track of a table of the site file; `text` is that of its CSV file.

    `most` is the acceleration and the jerk (6,) of which the ways in and out use a part.

    Raises:
        ConfigurationError: with key, or line and column.
    """
    knots = _fourier(track, home) if isinstance(track, schema.FourierTrack) else _table(text)
    return _joined(_led(knots, *most))


def start_pose(track: Track) -> Array:
    """Where the track begins, at rest (6,)."""
    return track.pieces[0, 0]


def duration_s(track: Track) -> float:
    """How long it takes."""
    return float(track.t_s[-1])


def motion(track: Track, t_s: Array) -> tuple[Array, Array, Array]:
    """Poses, rates and accelerations (N, 6) at the times (N,); at its ends outside the track."""
    piece = np.clip(np.searchsorted(track.t_s, t_s, "right") - 1, 0, len(track.pieces) - 1)
    u = (np.clip(t_s, 0.0, track.t_s[-1]) - track.t_s[piece])[:, None]
    c0, c1, c2, c3, c4, c5 = track.pieces[piece].transpose(1, 0, 2)
    return (
        ((((c5 * u + c4) * u + c3) * u + c2) * u + c1) * u + c0,
        (((5.0 * c5 * u + 4.0 * c4) * u + 3.0 * c3) * u + 2.0 * c2) * u + c1,
        ((20.0 * c5 * u + 12.0 * c4) * u + 6.0 * c3) * u + 2.0 * c2,
    )


def at(track: Track, t_s: float) -> Reference:
    """The reference at one time; at rest at both ends."""
    (pose,), (rate,), (acceleration,) = motion(track, np.array([t_s]))
    rests = not 0.0 < t_s < track.t_s[-1]
    return Reference(pose, np.zeros(6), np.zeros(6)) if rests else Reference(pose, rate, acceleration)


def misfit(machine: Mechanism, room: Room, track: Track, step_s: float) -> str:
    """Where and by what the track leaves the bounds first, looked at every `step_s`; empty when it stays inside.

    The jerk is not looked at: poses of a table may bend it.
    """
    t_s = np.linspace(0.0, duration_s(track), 2 + int(duration_s(track) / step_s))
    x, xd, xdd = motion(track, t_s)
    off = [platform.off_manifold(machine.platform, *state) for state in zip(x, xd, xdd, strict=True)]
    beyond = np.flatnonzero(np.array(off) > OFF_MANIFOLD)
    found = [(int(beyond[0]), f"the platform cannot move so: {off[beyond[0]]:.2g} m or rad off")] if len(beyond) else []
    found += off_room(machine, room, x, xd, xdd)
    if not found:
        return ""
    index, reason = min(found)
    return f"at t_s = {t_s[index] - track.zero_s:.3f}: {reason}"


def off_room(machine: Mechanism, room: Room, x: Array, xd: Array, xdd: Array) -> list[tuple[int, str]]:
    """For each kind of bound that states (N, 6) leave: the first of them that does, and the sentence."""
    q, qd, qdd, twist, base, leg_end = np.zeros((6, len(x), len(room.length_min_m)))
    kinematics.axis_rates_batch(machine, x, xd, xdd, twist, q, qd, qdd)
    posture.joint_swings(machine, x, base, leg_end)
    legs = [f"leg {i + 1}" for i in range(q.shape[1])]
    found: list[tuple[int, str]] = []
    for names, what, unit, values, low, high in (
        (POSE, "", "", x, room.pose_min, room.pose_max),
        (legs, " length", " m", q, room.length_min_m, room.length_max_m),
        (legs, " swing in the base joint", " rad", base, -room.base_swing_rad, room.base_swing_rad),
        (legs, " swing in the platform joint", " rad", leg_end, -room.platform_swing_rad, room.platform_swing_rad),
        (legs, " speed", " m/s", qd, -room.speed_m_s, room.speed_m_s),
        (legs, " acceleration", " m/s²", qdd, -room.acceleration_m_s2, room.acceleration_m_s2),
    ):
        outside = ~((values >= low) & (values <= high))
        if outside.any():
            index = int(np.argmax(outside.any(1)))
            k = int(np.argmax(outside[index]))
            range_ = f"{low[k]:.4g} … {high[k]:.4g}"
            found.append((index, f"{names[k]}{what} {values[index, k]:.4f}{unit}, allowed {range_}{unit}"))
    return found


def _fourier(track: schema.FourierTrack, home: Array) -> Knots:
    """x = centre + sum over h of sine_h sin(h w t) + cosine_h cos(h w t)."""
    parts = [[getattr(part, name) for name in POSE] for part in (track.sine, track.cosine)]
    most = max(len(series) for part in parts for series in part)
    if most == 0:
        raise ConfigurationError("sine, cosine: found no coefficients, expected at least one")
    sine, cosine = (np.array([[*series, *[0.0] * (most - len(series))] for series in part]).T for part in parts)
    centre = np.array([getattr(track.centre, name) for name in POSE]) if track.centre else home
    t_s = np.linspace(0.0, track.periods / track.base_frequency_hz, track.periods * most * PIECES + 1)
    w = 2.0 * math.pi * track.base_frequency_hz * np.arange(1, most + 1)
    sin, cos = np.sin(np.outer(t_s, w)), np.cos(np.outer(t_s, w))
    return Knots(
        t_s, centre + sin @ sine + cos @ cosine, (w * cos) @ sine - (w * sin) @ cosine,
        -((w**2 * sin) @ sine + (w**2 * cos) @ cosine),
    )  # fmt: skip


def _table(text: str) -> Knots:
    """The rows of a CSV file; rates and accelerations that it has not come from cubic splines."""
    reader = csv.DictReader(text.splitlines(), strict=True, restkey="", restval="")
    header = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = header
    rated = any(name in header for name in RATES)
    accelerated = rated and any(name in header for name in ACCELERATIONS)
    wanted = ("t_s", *POSE, *(RATES if rated else ()), *(ACCELERATIONS if accelerated else ()))
    if missing := [name for name in wanted if header.count(name) != 1]:
        raise ConfigurationError(f"line 1: column {missing[0]}: found {header.count(missing[0])} of it, expected one")
    rows: list[list[float]] = []
    try:
        for row in reader:
            rows.append([_number(row[name], reader.line_num, name) for name in wanted])
            if len(rows) > 1 and not rows[-1][0] > rows[-2][0]:
                found, before = rows[-1][0], rows[-2][0]
                raise ConfigurationError(
                    f"line {reader.line_num}: column t_s: found {found:g}, expected more than {before:g}"
                )
    except csv.Error as error:
        raise ConfigurationError(f"line {reader.line_num}: no line of a CSV file, {error}") from None
    if len(rows) < FEWEST_ROWS:
        raise ConfigurationError(f"found {len(rows)} rows, expected at least {FEWEST_ROWS}")
    table = np.array(rows)
    t_s, pose = table[:, 0], table[:, 1:7]
    rate = table[:, 7:13] if rated else _slopes(t_s, pose)
    return Knots(t_s, pose, rate, table[:, 13:] if accelerated else _slopes(t_s, rate))


def _number(text: str, line: int, name: str) -> float:
    try:
        value = float(text) if "_" not in text else math.nan  # 1_0 is a number in Python only
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigurationError(f"line {line}: column {name}: found {text!r:.60}, expected a finite number")
    return value


def _slopes(t: Array, y: Array) -> Array:
    """Slopes (k, 6) at the instants of the cubic spline through y (k, 6); at the ends those of a parabola."""
    h, d = np.diff(t)[:, None], np.diff(y, axis=0) / np.diff(t)[:, None]
    slope = np.empty_like(y)
    slope[0] = d[0] - h[0] * (d[1] - d[0]) / (h[0] + h[1])
    slope[-1] = d[-1] + h[-1] * (d[-1] - d[-2]) / (h[-2] + h[-1])
    # the second derivative is continuous: h_i m_(i-1) + 2 (h_(i-1) + h_i) m_i + h_(i-1) m_(i+1) = right
    right = 3.0 * (h[1:] * d[:-1] + h[:-1] * d[1:])
    share = np.zeros(len(t))  # elimination downwards, then back up
    for i in range(1, len(t) - 1):
        pivot = 2.0 * (h[i - 1, 0] + h[i, 0]) - h[i, 0] * share[i - 1]
        share[i] = h[i - 1, 0] / pivot
        slope[i] = (right[i - 1] - h[i, 0] * slope[i - 1]) / pivot
    for i in range(len(t) - 2, 0, -1):
        slope[i] -= share[i] * slope[i + 1]
    return slope


def _led(knots: Knots, acceleration: Array, jerk: Array) -> Knots:
    """With a way from rest before and a way to rest behind, where it does not rest there."""
    gentle = GENTLE * acceleration, GENTLE * jerk
    for turned in (False, True):  # a way to rest is one from rest in a time that runs backwards
        sign, end = (-1.0, -1) if turned else (1.0, 0)
        pose, rate, bend = knots.pose[end], sign * knots.rate[end], knots.acceleration[end]
        if not rate.any() and not bend.any():
            continue
        if (too_much := np.abs(bend) > acceleration).any():
            k = int(np.argmax(too_much))
            raise ConfigurationError(
                f"at t_s = {knots.t_s[end]:.3f}, where the data {'end' if turned else 'begin'}: {POSE[k]} accelerates "
                f"with {abs(bend[k]):.3g}, expected at most {acceleration[k]:g} (platform.motion): let it rest there"
            )
        # the rate is a cubic from rest to (rate, bend): its jerk stays below (6 |rate| + 4 |bend| T) / T²
        slow = np.sqrt(16.0 * bend**2 + 24.0 * gentle[1] * np.abs(rate))
        for_jerk_s, for_acceleration_s = (4.0 * np.abs(bend) + slow) / (2.0 * gentle[1]), 1.5 * np.abs(rate) / gentle[0]
        way_s = max(SHORTEST_WAY_S, *for_jerk_s, *for_acceleration_s)
        rest = pose - rate * way_s / 2.0 + bend * way_s**2 / 12.0
        t = knots.t_s[end] - sign * way_s
        knots = Knots(*(
            np.concatenate([part, [add]] if turned else [[add], part])
            for part, add in zip(knots, (t, rest, np.zeros(6), np.zeros(6)), strict=True)
        ))  # fmt: skip
    return knots


def _joined(knots: Knots) -> Track:
    """Quintics between the knots; the time of the knots may begin anywhere."""
    t_s = knots.t_s - knots.t_s[0]
    h = np.diff(t_s)[:, None]
    x, xd, xdd = knots.pose, knots.rate, knots.acceleration
    dx = x[1:] - x[:-1] - xd[:-1] * h - xdd[:-1] * h**2 / 2.0  # what the first three terms leave
    dxd, dxdd = (xd[1:] - xd[:-1] - xdd[:-1] * h) * h, (xdd[1:] - xdd[:-1]) * h**2
    pieces = np.stack(
        [
            x[:-1], xd[:-1], xdd[:-1] / 2.0,
            (10.0 * dx - 4.0 * dxd + 0.5 * dxdd) / h**3,
            (-15.0 * dx + 7.0 * dxd - dxdd) / h**4,
            (6.0 * dx - 3.0 * dxd + 0.5 * dxdd) / h**5,
        ],
        axis=1,
    )  # fmt: skip
    for part in (t_s, pieces):
        part.flags.writeable = False
    return Track(t_s, pieces, float(-knots.t_s[0]))
