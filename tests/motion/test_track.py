"""Tracks: their ends, their smoothness, their fit, and how the cycle follows them; against SciPy and differences."""

import io
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import CubicSpline

from controller import schema
from controller.commands.check import report
from controller.commands.replay import replay
from controller.errors import ConfigurationError
from controller.motion import track as tracks
from controller.motion.track import Track, build_track, duration_s, motion
from controller.records import POSE, AxisMode, Limit, Mode, RequestKind, Timing, Verdict, channels, pack
from controller.settings import load_site
from controller.state import prepare
from tests.machines import NOTHING, Bench, ask, own_site

HOME = np.array([0.0, 0.0, 0.85, 0.0, 0.0, 0.0])
MOST = (np.repeat([1.5, 4.0], 3), np.repeat([30.0, 80.0], 3))
HEADER = ",".join(("t_s", *POSE))
FOURIER = """
[tracks.warm_up]
kind = "fourier"
base_frequency_hz = 0.2
periods = 2
sine = { x_m = [0.03, 0.01], yaw_rad = [0.06] }
cosine = { z_m = [0.0, 0.02], roll_rad = [0.04, 0.0, 0.01] }
"""
TABLE = '\n[tracks.wave]\nkind = "csv"\nfile = "wave.csv"\n'


def fourier(**keys: object) -> schema.FourierTrack:
    return msgspec.convert({"base_frequency_hz": 0.2} | keys, schema.FourierTrack)


def table(t: np.ndarray, x: np.ndarray, *derivatives: np.ndarray) -> str:
    units = ("", "_s", "_s2")[: 1 + len(derivatives)]
    header = ",".join(("t_s", *(f"{name}{unit}" for unit in units for name in POSE)))
    columns = np.column_stack([t, x, *derivatives])
    return "\n".join([header, *(",".join(map(repr, row)) for row in columns.tolist())])


def of_table(text: str) -> Track:
    return build_track(schema.CsvTrack(file="x.csv"), text, HOME, MOST)


def rests_at_both_ends(track: Track) -> None:
    ends = np.array([0.0, duration_s(track)])
    _, rate, acceleration = motion(track, ends)
    np.testing.assert_allclose(rate, 0.0, atol=1e-9)
    np.testing.assert_allclose(acceleration, 0.0, atol=1e-6)


def is_smooth(track: Track, h: float = 1e-4) -> None:
    """Rates and accelerations are the differences of poses and rates, also across the ends of pieces."""
    inner = np.linspace(2 * h, duration_s(track) - 2 * h, 2000)
    t = np.sort(np.concatenate([inner, track.t_s[1:-1]]))
    before, here, after = motion(track, t - h), motion(track, t), motion(track, t + h)
    for k in (0, 1):
        scale = np.abs(here[k + 1]).max() + 1e-6
        np.testing.assert_allclose((after[k] - before[k]) / (2 * h), here[k + 1], rtol=0, atol=2e-3 * scale)
    for k in range(3):  # no jump: what changes in a moment fades with the moment
        jump = motion(track, track.t_s[1:-1] + 1e-9)[k] - motion(track, track.t_s[1:-1] - 1e-9)[k]
        assert np.abs(jump).max() <= 1e-6 * (1.0 + np.abs(here[k]).max())


def test_a_fourier_series_is_the_series_between_its_ways_from_and_to_rest() -> None:
    given_ = fourier(periods=3, sine={"x_m": [0.03, 0.01], "yaw_rad": [0.06]}, cosine={"z_m": [0.0, 0.02]})
    track = build_track(given_, "", HOME, MOST)
    rests_at_both_ends(track)
    is_smooth(track)
    t = np.linspace(0.0, 15.0, 4001)
    x, xd, xdd = motion(track, t + track.zero_s)
    w = 2 * math.pi * 0.2
    np.testing.assert_allclose(x[:, 0], 0.03 * np.sin(w * t) + 0.01 * np.sin(2 * w * t), rtol=0, atol=1e-10)
    np.testing.assert_allclose(x[:, 2], 0.85 + 0.02 * np.cos(2 * w * t), rtol=0, atol=1e-10)
    np.testing.assert_allclose(xd[:, 3], 0.06 * w * np.cos(w * t), rtol=0, atol=1e-8)
    np.testing.assert_allclose(xdd[:, 2], -0.08 * w * w * np.cos(2 * w * t), rtol=0, atol=1e-5)
    assert 0.0 < track.zero_s < 1.0


amplitudes = st.lists(st.floats(-0.05, 0.05), max_size=5)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.05, 1.0),
    st.integers(1, 4),
    st.fixed_dictionaries({}, optional=dict.fromkeys(POSE, amplitudes)),
    st.fixed_dictionaries({}, optional=dict.fromkeys(POSE, amplitudes)),
)
def test_every_fourier_series_rests_at_its_ends_and_is_smooth(frequency, periods, sine, cosine) -> None:
    if not any(map(len, [*sine.values(), *cosine.values()])):
        return
    given_ = fourier(base_frequency_hz=frequency, periods=periods, sine=sine, cosine=cosine)
    square = (2 * math.pi * frequency) ** 2
    begins = [sum(square * (h + 1) ** 2 * c for h, c in enumerate(cosine.get(name, []))) for name in POSE]
    if (np.abs(begins) > 0.999 * MOST[0]).any():
        with pytest.raises(ConfigurationError, match="where the data begin"):
            build_track(given_, "", HOME, 0.99 * np.array(MOST))
        return
    track = build_track(given_, "", HOME, MOST)
    rests_at_both_ends(track)
    is_smooth(track)
    lead = motion(track, np.linspace(0.0, track.zero_s, 200))
    assert (np.abs(lead[2]).max(0) <= np.maximum(MOST[0], 1.01 * np.abs(lead[2][-1]))).all()


def test_a_table_without_rates_is_as_near_to_the_motion_as_a_cubic_spline_and_goes_through_its_poses() -> None:
    rng = np.random.default_rng(5)
    t = np.concatenate([[0.0], np.cumsum(rng.uniform(0.02, 0.06, 200))])
    x = HOME + 0.05 * np.sin(np.outer(t, [1.0, 2.0, 3.0, 1.5, 2.5, 0.5]) + rng.uniform(0, 6, 6))
    track = of_table(table(t, x))
    rests_at_both_ends(track)
    is_smooth(track)
    shown = motion(track, t - t[0] + track.zero_s)[0]
    np.testing.assert_allclose(shown, x, rtol=0, atol=1e-12)
    fine = np.linspace(t[2], t[-3], 5000)
    np.testing.assert_allclose(motion(track, fine + track.zero_s)[0], CubicSpline(t, x)(fine), rtol=0, atol=2e-6)


def test_the_slopes_are_those_of_scipys_spline() -> None:
    rng = np.random.default_rng(6)
    t = np.cumsum(rng.uniform(0.01, 0.1, 50))
    x = rng.normal(size=(50, 6))
    slopes = tracks._slopes(t, x)
    spline = CubicSpline(t, x, bc_type=((1, slopes[0]), (1, slopes[-1])))
    np.testing.assert_allclose(slopes, spline(t, 1), rtol=0, atol=1e-9)


@pytest.mark.parametrize("accelerated", [False, True])
def test_given_rates_and_accelerations_are_kept(accelerated: bool) -> None:
    t = np.linspace(10.0, 14.0, 81)
    w = np.array([1.0, 2.0, 1.5, 0.5, 1.2, 0.7])
    x, rate = HOME + 0.05 * np.sin(np.outer(t, w)), 0.05 * w * np.cos(np.outer(t, w))
    acceleration = -0.05 * w**2 * np.sin(np.outer(t, w))
    track = of_table(table(t, x, rate, acceleration) if accelerated else table(t, x, rate))
    rests_at_both_ends(track)
    is_smooth(track)
    fine = np.linspace(10.0, 14.0, 999)
    shown = motion(track, fine + track.zero_s)
    np.testing.assert_allclose(shown[0], HOME + 0.05 * np.sin(np.outer(fine, w)), rtol=0, atol=5e-8)
    np.testing.assert_allclose(motion(track, t + track.zero_s)[1], rate, rtol=0, atol=1e-12)
    # without its own the ends of a spline are off
    atol = 1e-12 if accelerated else 2e-3
    np.testing.assert_allclose(motion(track, t + track.zero_s)[2], acceleration, rtol=0, atol=atol)


BAD = {
    "t_s,x_m\n0,0": "line 1: column y_m: found 0 of it, expected one",
    f"{HEADER}\n" + "0,0,0,0.85,0,0,0\n" * 2: "line 3: column t_s: found 0, expected more than 0",
    f"{HEADER}\n0,0,0,0.85,0,0,0\n1,0,nan,0.85,0,0,0": "line 3: column y_m: found 'nan', expected a finite number",
    f"{HEADER}\n0,0,0,0.85,0,0,0\n1,0,0,1_0,0,0,0": "line 3: column z_m: found '1_0', expected a finite number",
    f"{HEADER}\n0,0,0,0.85,0,0,0\n1,0,0,0.85": "line 3: column yaw_rad: found '', expected a finite number",
    f"{HEADER}\n0,0,0,0.85,0,0,0": "found 1 rows, expected at least 4",
    f"{HEADER},x_m_s\n0,0,0,0.85,0,0,0,0": "line 1: column y_m_s: found 0 of it",
    "": "line 1: column t_s",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_a_table_that_cannot_be_is_refused_with_line_and_column(text: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        of_table(text)
    assert BAD[text] in str(refusal.value)


def test_a_table_that_begins_with_a_jolt_is_refused() -> None:
    t, x = np.arange(20) * 0.02, np.tile(HOME, (20, 1))
    x[::2, 0] += 0.002
    with pytest.raises(ConfigurationError, match=r"at t_s = 0.000, where the data begin: x_m accelerates with"):
        of_table(table(t, x))


def site_with(folder: Path, tables: str, text: str = "") -> Path:
    path = folder / "site.toml"
    path.write_text(own_site(folder) + tables)
    (folder / "wave.csv").write_text(text)
    return path


def wave(amplitude: float, axis: int = 0) -> str:
    t = np.linspace(0.0, 6.0, 121)
    x = np.tile(HOME, (121, 1))
    x[:, axis] += amplitude * np.sin(math.pi * t / 6.0) ** 4
    return table(t, x)


@pytest.mark.parametrize(
    ("amplitude", "axis", "found"),
    [
        (0.2, 0, r"tracks.wave \(wave.csv\): at t_s = 2.\d+: x_m 0.15\d+, allowed -0.15 … 0.15"),
        (0.35, 3, r"at t_s = \d\.\d+: leg \d length 1\.1\d+ m, allowed 0.755 … 1.115 m"),
        (None, 0, r"at t_s = \d\.\d+: leg \d acceleration "),
    ],
)  # fmt: skip
def test_a_track_that_leaves_the_limits_is_refused_with_the_place(tmp_path: Path, amplitude, axis, found) -> None:
    text = wave(amplitude or 0.1, axis)
    if amplitude is None:
        x = np.tile(HOME, (40, 1))
        x[10:30:2, 0] += 0.002
        text = table(np.arange(40) * 0.02, x)
    if axis == 3:  # yaw alone stays inside: raised, the legs do not reach it
        rows = [line.split(",") for line in text.splitlines()[1:]]
        values = np.array(rows, float)
        text = table(values[:, 0], values[:, 1:] + [0, 0, 0.14, 0, 0, 0])
    path = site_with(tmp_path, TABLE, text)
    with pytest.raises(ConfigurationError, match=found):
        report(path, False, io.StringIO())


def test_check_tells_of_tracks_that_fit(tmp_path: Path) -> None:
    out = io.StringIO()
    assert report(site_with(tmp_path, FOURIER + TABLE, wave(0.1)), False, out) == 0
    assert "track warm_up: fourier, 10." in out.getvalue()
    assert "track wave: csv, 6." in out.getvalue()


def test_a_track_is_approached_followed_held_and_replayed_bit_for_bit(tmp_path: Path) -> None:
    files = load_site(site_with(tmp_path, FOURIER + TABLE, wave(0.1)))
    setup = prepare(files.machine, files.site, files.track_texts)
    bench, rows = Bench(setup), []
    columns = channels(6, list(files.site.sensors))

    def step(request=NOTHING):
        samples = []
        bench.broken = lambda sample: samples.append(sample) or sample
        output = bench.step(request)
        row = np.empty(len(columns))
        pack(row, samples[0], request, output, Timing(0.0, 0.0, 0.0, 0, 0))
        rows.append(row)
        return output

    step(ask(RequestKind.READY))
    for _ in range(5):
        step()
    assert step(ask(RequestKind.TRACK, track=2)).verdict is Verdict.NO_TRACK
    assert step(ask(RequestKind.TRACK)).verdict is Verdict.NO_TRACK
    for track, axis in ((0, 3), (1, 0)):
        output = step(ask(RequestKind.TRACK, track=track))
        assert (output.verdict, output.mode) == (Verdict.ACCEPTED, Mode.ACTIVE)
        total_s, left_s, seen = output.left_s, math.inf, [output.reference]
        assert total_s > duration_s(setup.tracks[track])
        while output.mode is Mode.ACTIVE:
            assert output.left_s < left_s
            left_s = output.left_s
            output = step()
            seen.append(output.reference)
        assert output.mode is Mode.READY and output.left_s == 0.0
        peak = max(abs(reference.pose[axis]) for reference in seen)
        assert peak == pytest.approx(0.06 if track == 0 else 0.1, rel=1e-3)
        end = motion(setup.tracks[track], np.array([duration_s(setup.tracks[track])]))[0][0]
        np.testing.assert_allclose(output.reference.pose, end, rtol=0, atol=1e-12)
        assert not any(o.limits & ~Limit.JERK for o in bench.outputs)
    sent = np.array([o.command.position_m for o in bench.outputs if o.command.axis_mode is AxisMode.FOLLOW])
    assert np.abs(np.diff(sent, n=2, axis=0)).max() <= setup.limits.acceleration_m_s2[0] * setup.period_s**2

    meta = {
        "machine_toml": files.machine_text, "site_toml": files.site_text, "tracks": files.track_texts,
        "version": "test", "channels": [list(c) for c in columns], "recording": {"first_index": 0, "gaps": []},
    }  # fmt: skip
    assert replay(meta, np.array(rows), Path("bench")) is None


@pytest.mark.parametrize("after", [3, 60, 200, 333, 700])
def test_a_stop_at_any_moment_is_smooth(tmp_path: Path, after: int) -> None:
    files = load_site(site_with(tmp_path, FOURIER))
    bench = Bench(prepare(files.machine, files.site))
    bench.ready()
    bench.step(ask(RequestKind.MOVE, HOME + 0.02))
    bench.run(300)
    bench.step(ask(RequestKind.TRACK, track=0))
    bench.run(after)
    assert bench.step(ask(RequestKind.STOP)).mode is Mode.STOPPING
    assert bench.run(100).mode is Mode.READY
    a = np.array([o.reference.acceleration for o in bench.outputs])
    jerk = np.abs(np.diff(a, axis=0)) / bench.setup.period_s
    assert (jerk <= 1.01 * bench.setup.motion.jerk).all()
    assert (np.abs(a) <= 1.01 * bench.setup.motion.acceleration).all()


def test_a_site_without_its_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(own_site(tmp_path) + TABLE)
    with pytest.raises(ConfigurationError, match=r"wave.csv: no such file"):
        load_site(path)
