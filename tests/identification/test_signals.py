"""Time bases, gaps, filters, periods: against signals whose values and derivatives are known in closed form."""

import itertools
import math

import numpy as np
import pytest

from controller.identification import signals
from controller.identification.repeats import averaged, period_of
from controller.identification.signals import Counts, Rows, Window, windows
from controller.mechanism import kinematics
from controller.mechanism.model import build, home_pose
from tests.identification.simulated import machine_of

MACHINE = machine_of("6-upru")
MODEL = build(MACHINE)


def pose_at(t: np.ndarray, order: int = 0) -> np.ndarray:
    """A motion of two frequencies in all coordinates, or its derivative (N, 6)."""
    sizes, w = np.array([0.05, 0.04, 0.03, 0.1, 0.08, 0.06]), 2.0 * math.pi * np.array([0.2, 0.3])
    phase = np.arange(6.0)
    x = sum(wk**order * np.sin(wk * t[:, None] + phase * k + order * math.pi / 2.0) for k, wk in enumerate(w, 1))
    return sizes * x + (home_pose(MACHINE) if order == 0 else 0.0)


def axes_at(t: np.ndarray) -> np.ndarray:
    lengths = np.empty((len(t), 6))
    for x, row in zip(pose_at(t), lengths, strict=True):
        kinematics.leg_lengths(MODEL, x, row)
    return lengths


def rows_at(t: np.ndarray, cycle: np.ndarray | None = None, force: np.ndarray | None = None) -> Rows:
    force = np.sin(t)[:, None] * np.ones(6) if force is None else force
    cycle = np.full(len(t), np.nan) if cycle is None else cycle
    return Rows(t, cycle, axes_at(t), force, np.ones(force.shape, np.bool_))


def pieces(rows: Rows, size: int) -> list[Rows]:
    return [signals.taken(rows, slice(k, k + size)) for k in range(0, len(rows.t_s), size)]


def test_motion_by_differences_is_the_true_motion() -> None:
    t = 0.01 * np.arange(1500)
    (window,) = windows([rows_at(t)], MACHINE, Counts())
    states = signals.motion(MODEL, window, signals.filter_of(window, None))
    core, at = window.core, t[window.core]
    np.testing.assert_allclose(states.x[core], pose_at(at), atol=1e-8)
    np.testing.assert_allclose(states.xd[core], pose_at(at, 1), atol=1e-7)
    np.testing.assert_allclose(states.xdd[core], pose_at(at, 2), atol=1e-5)


def test_motion_by_its_fourier_series_is_the_true_motion() -> None:
    t = 0.01 * np.arange(3000)  # three periods of 10 s
    found = period_of(list(windows([rows_at(t)], MACHINE, Counts(), margin_s=0.0)))
    assert found is not None
    assert found[0] == pytest.approx(10.0, abs=1e-6)
    mean = averaged(
        lambda: windows([rows_at(t)], MACHINE, Counts(), margin_s=0.0), 1000, lambda: itertools.count(0, 1000)
    )
    assert mean is not None
    assert mean.periods == 3
    states = signals.motion(MODEL, mean, signals.filter_of(mean, None))
    np.testing.assert_allclose(states.xd, pose_at(t[:1000], 1), atol=1e-7)
    np.testing.assert_allclose(states.xdd, pose_at(t[:1000], 2), atol=1e-5)


def test_the_plc_cycle_counter_is_the_clock() -> None:
    """The host is late by up to 4 ms, and sees one or another of the cycles of 2 ms: the counter knows which."""
    rng = np.random.default_rng(0)
    cycle = np.round((0.01 * np.arange(2000) + rng.uniform(0.0, 0.004, 2000)) / 0.002)
    host_s = 0.002 * cycle + rng.uniform(0.0, 0.004, 2000)
    rows = rows_at(0.002 * cycle, cycle)._replace(t_s=host_s)
    counts = Counts()
    found = list(windows(pieces(rows, 700), MACHINE, counts))
    assert counts.rows == 2000
    states = [signals.motion(MODEL, window, signals.filter_of(window, 10.0)) for window in found]
    xdd = np.concatenate([one.xdd[window.core] for one, window in zip(states, found, strict=True)])
    xd = np.concatenate([one.xd[window.core] for one, window in zip(states, found, strict=True)])
    # which instant the first row is does not matter, the shape does
    speeds, expected = np.abs(xd).max(axis=0), np.abs(pose_at(0.01 * np.arange(60, 1940), 1)).max(axis=0)
    np.testing.assert_allclose(speeds, expected, rtol=1e-3)
    expected = np.abs(pose_at(0.01 * np.arange(60, 1940), 2)).max(axis=0)
    np.testing.assert_allclose(np.abs(xdd).max(axis=0), expected, rtol=5e-3)


def test_windows_of_any_size_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    t = 0.01 * np.arange(4000)
    force = np.random.default_rng(0).normal(size=(4000, 6))

    def filtered(size: int) -> np.ndarray:
        monkeypatch.setattr(signals, "WINDOW_ROWS", size)
        parts = list(windows(pieces(rows_at(t, force=force), 333), MACHINE, Counts()))
        return np.concatenate([signals.filter_of(w, 10.0)(w.force_n)[w.core] for w in parts])

    whole, split = filtered(100_000), filtered(500)
    assert len(whole) == len(split) == 4000 - 2 * round(signals.MARGIN_S / 0.01)
    np.testing.assert_allclose(split, whole, atol=1e-5)


def test_gaps_part_stretches_and_repeated_cycles_are_counted() -> None:
    t = 0.01 * np.arange(1000)
    t = np.concatenate([t[:400], t[600:]])
    counts = Counts()
    found = list(windows([rows_at(t)], MACHINE, counts))
    assert counts.stretches == len(found) == 2
    assert counts.edges == 4 * round(signals.MARGIN_S / 0.01)
    cycle = np.repeat(5.0 * np.arange(400), 2)
    counts = Counts()
    list(windows([rows_at(0.002 * cycle, cycle)._replace(t_s=0.005 * np.arange(800.0))], MACHINE, counts))
    assert counts.repeated == 400


def test_filter_has_no_phase_and_the_gain_it_says() -> None:
    t = 0.01 * np.arange(4000)
    window = Window(0.01, np.zeros((4000, 6)), np.zeros((4000, 6)), np.ones((4000, 6), np.bool_), slice(0, 4000), 0,
                    np.zeros(6))  # fmt: skip
    filter_ = signals.filter_of(window, 10.0)
    for hz, gain in ((1.0, 1.0), (10.0, 0.5)):
        wave = np.sin(2.0 * math.pi * hz * t)
        np.testing.assert_allclose(filter_(wave)[1000:3000], gain * wave[1000:3000], atol=0.02 * gain + 2e-3)


def test_a_period_that_is_no_number_of_rows_is_found() -> None:
    t = 0.01 * np.arange(3500)
    stretched = rows_at(t * 1.003)._replace(t_s=t)
    found = period_of(list(windows([stretched], MACHINE, Counts(), margin_s=0.0)))
    assert found is not None
    assert found[0] == pytest.approx(10.0 / 1.003, abs=1e-4)


def test_rest_and_a_single_period_are_not_periodic() -> None:
    t = 0.01 * np.arange(1400)
    assert period_of(list(windows([rows_at(t)], MACHINE, Counts(), margin_s=0.0))) is None
    still = rows_at(np.zeros(2000))._replace(t_s=0.01 * np.arange(2000))
    assert period_of(list(windows([still], MACHINE, Counts(), margin_s=0.0))) is None


@pytest.mark.parametrize("periods", [0, 2])
def test_a_delay_is_taken_back(periods: int) -> None:
    t = 0.01 * np.arange(1000)
    force = np.sin(2.0 * math.pi * 0.5 * (t - 0.0034))[:, None] * np.ones(6)
    window = Window(0.01, np.zeros((1000, 6)), force, np.ones((1000, 6), np.bool_), slice(0, 1000), periods,
                    np.zeros(6))  # fmt: skip
    right = np.sin(2.0 * math.pi * 0.5 * t)
    np.testing.assert_allclose(signals.delayed(window, 0.0034)[5:-5, 2], right[5:-5], atol=1e-6)
