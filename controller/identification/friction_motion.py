"""Motions that tell the friction of a spherical platform's cylinders (Guo et al.).

In tilt and torsion, torsion held at 30 degrees. Viscous friction: tilt held at 10 degrees, the azimuth turns once at
each of four constant rates; 24 points of each turn, 15 degrees apart. Dry friction: tilt = 20 degrees sin(pi t / 2).
The paper has no ways in between: here quintics connect all, so that the whole starts, ends and pauses at rest.

t            times from 0 of a piece            (N,)  s
tilting      azimuth, tilt, torsion and derivatives   (3, N, 3)   rad
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller import schema
from controller.errors import ConfigurationError
from controller.identification.base_parameters import States
from controller.identification.bounds import build_bounds, require_inside
from controller.mechanism.model import home_pose
from controller.mechanism.platform import from_tilt_and_torsion
from controller.records import Array

STEP_S = 0.01
TILT_RAD, TORSION_RAD = math.radians(10.0), math.radians(30.0)
RATES_RAD_S = tuple(math.radians(rate) for rate in (5.0, 10.0, 15.0, 20.0))
POINTS = 24  # of a turn
RAMP_RAD = 2.0 * math.pi / POINTS  # the rate is reached, and left, within one of their distances
SINE_RAD, SINE_RAD_S, SINE_PERIODS = math.radians(20.0), math.pi / 2.0, 3
TILTING_S = 2.0  # from level to the tilt of the turns
SINE = len(RATES_RAD_S) + 1


class FrictionMotion(NamedTuple):
    """The whole motion, a row every 10 ms."""

    t_s: Array
    states: States
    segment: NDArray[np.int64]  # 1 ... 4: turns at the four rates, 5: the sine, 0: ways in between
    point: NDArray[np.int64]  # 1 ... 24: the points of a turn, else 0


Curve = tuple[Array, Array, Array]  # a quantity and its derivatives by time (N,)
Piece = tuple[Array, NDArray[np.int64], NDArray[np.int64]]  # tilting, segment, point


def friction_motion(machine: schema.Machine) -> FrictionMotion:
    """The motion for a machine file.

    Raises:
        ConfigurationError: if its platform is not spherical, or the motion is outside its limits.
    """
    if machine.platform.kind != "spherical":
        raise ConfigurationError(
            f"{machine.name}: the friction motions need a spherical platform, found kind {machine.platform.kind!r}"
        )
    pieces = _pieces()
    tilting = np.concatenate([piece for piece, _, _ in pieces], axis=1)
    home = home_pose(machine)
    states = States(*np.zeros((3, tilting.shape[1], 6)))
    states.x[:, :3] = home[:3]
    for k in range(tilting.shape[1]):
        angles, rates, accelerations = tilting[:, k]
        from_tilt_and_torsion(angles, rates, accelerations, states.x[k], states.xd[k], states.xdd[k])
    require_inside(build_bounds(machine, home), states, f"{machine.name}: the friction motion")
    segment, point = np.concatenate([piece[1] for piece in pieces]), np.concatenate([piece[2] for piece in pieces])
    return FrictionMotion(_ticks(len(segment)), states, segment, point)


def _pieces() -> list[Piece]:
    azimuth, pieces = 0.0, [_piece(TILTING_S, lambda t: _tilted(t, 0.0, 0.0, TILT_RAD))]
    for number, rate in enumerate(RATES_RAD_S, 1):
        ramp_s, turn_s = 2.0 * RAMP_RAD / rate, 2.0 * math.pi / rate
        pieces.append(_piece(ramp_s, lambda t, a=azimuth, r=rate: _turning(_speeding_up(t, r), a)))
        azimuth += RAMP_RAD
        turn = _piece(turn_s, lambda t, a=azimuth, r=rate: _turning((r * t, np.full_like(t, r), 0.0 * t), a))
        rows = len(turn[1])
        turn[1][:] = number
        turn[2][:: rows // POINTS] = np.arange(1, POINTS + 1)
        azimuth += 2.0 * math.pi
        pieces += [turn, _piece(ramp_s, lambda t, a=azimuth, r=rate: _turning(_slowing_down(t, r), a))]
        azimuth += RAMP_RAD
    pieces.append(_piece(TILTING_S, lambda t: _tilted(t, azimuth, TILT_RAD, 0.0)))
    period_s = 2.0 * math.pi / SINE_RAD_S
    sine = _piece((SINE_PERIODS + 2) * period_s, lambda t: _sine(t, period_s))
    rows = round(period_s / STEP_S)
    sine[1][rows:-rows] = SINE
    pieces += [sine, _piece(STEP_S, lambda t: _sine(0.0 * t, period_s))]  # one row at rest ends it
    return pieces


def _ticks(count: int) -> Array:
    return np.arange(float(count)) * STEP_S


def _piece(duration_s: float, motion: Callable[[Array], Array]) -> Piece:
    """Rows of a piece, its end left to the next one."""
    t = _ticks(round(duration_s / STEP_S))
    return motion(t), np.zeros(len(t), np.int64), np.zeros(len(t), np.int64)


def _angles(azimuth: Curve, tilt: Curve) -> Array:
    torsion = (np.full_like(tilt[0], TORSION_RAD), 0.0 * tilt[0], 0.0 * tilt[0])
    return np.ascontiguousarray(np.stack([azimuth, tilt, torsion]).transpose(1, 2, 0))


def _constant(t: Array, value: float) -> Curve:
    return np.full_like(t, value), 0.0 * t, 0.0 * t


def _step(s: Array, duration_s: float) -> Curve:
    """From 0 to 1 for s from 0 to 1, rate and acceleration 0 at both ends."""
    return (
        s**3 * (10.0 - 15.0 * s + 6.0 * s * s),
        30.0 * s * s * (1.0 - s) ** 2 / duration_s,
        60.0 * s * (1.0 - s) * (1.0 - 2.0 * s) / duration_s**2,
    )


def _tilted(t: Array, azimuth: float, tilt_from: float, tilt_to: float) -> Array:
    rise, rise_d, rise_dd = _step(t / TILTING_S, TILTING_S)
    way = tilt_to - tilt_from
    return _angles(_constant(t, azimuth), (tilt_from + way * rise, way * rise_d, way * rise_dd))


def _turning(azimuth: Curve, start: float) -> Array:
    return _angles((start + azimuth[0], azimuth[1], azimuth[2]), _constant(azimuth[0], TILT_RAD))


def _speeding_up(t: Array, rate: float) -> Curve:
    """The rate grows by a quintic; the way is rate T / 2."""
    T = 2.0 * RAMP_RAD / rate
    s = t / T
    way = s**4 * (2.5 - 3.0 * s + s * s)  # integral of the step
    rise, rise_d, _ = _step(s, T)
    return rate * T * way, rate * rise, rate * rise_d


def _slowing_down(t: Array, rate: float) -> Curve:
    T = 2.0 * RAMP_RAD / rate
    way, speed, acceleration = _speeding_up(T - t, rate)  # the same, backwards
    return RAMP_RAD - way, speed, -acceleration


def _sine(t: Array, period_s: float) -> Array:
    """Grows over the first period, fades over the last."""
    end_s = (SINE_PERIODS + 2) * period_s
    up = _step(np.minimum(t / period_s, 1.0), period_s)
    down = _step(np.clip((end_s - t) / period_s, 0.0, 1.0), period_s)
    grown = up[0] * down[0]
    # the two never act at the same time
    grown_d, grown_dd = up[1] - down[1], up[2] + down[2]
    sin, cos, w = np.sin(SINE_RAD_S * t), np.cos(SINE_RAD_S * t), SINE_RAD_S
    tilt = (
        SINE_RAD * grown * sin,
        SINE_RAD * (grown_d * sin + grown * w * cos),
        SINE_RAD * (grown_dd * sin + 2.0 * grown_d * w * cos - grown * w * w * sin),
    )
    return _angles(_constant(t, 0.0), tilt)
