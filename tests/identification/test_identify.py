"""`pkm identify` against machines whose parameters are known: forces of the Pinocchio oracle, good data and bad."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from controller.gateway.recording.recorder import Recorder
from controller.identification import identify
from controller.identification.bodies import bodies, parameters_of, pseudo_inertia
from controller.identification.fit import Problem
from controller.identification.identify import Identification, Options
from controller.mechanism import dynamics
from controller.mechanism.model import build
from controller.records import Link, Quality
from controller.settings import load_machine
from tests.gateway.bench import AT, COLUMNS, make_meta, make_site
from tests.identification.simulated import DRY_N, VISCOUS_N_S_M, Truth, machine_of, noisy, table, truth_of
from tests.machines import MACHINES
from tests.shell import pkm, refused

REPEATS = 4
NOISE_N = 0.5


@cache
def truth(name: str, seed: int = 0) -> Truth:
    return truth_of(name, seed)


def cells(path: Path, name: str = "6-upru", seed: int = 0, **columns: np.ndarray) -> Path:
    """A table of repeated motion with load cells."""
    one = truth(name, seed)
    force = columns.get("cell_{}_n", noisy(one.cell_n, REPEATS, NOISE_N, seed + 1))
    return table(path / f"{name}-{seed}.csv", one, {"cell_{}_n": force}, len(force) // len(one.axes_m))


def drives(path: Path, name: str, seed: int = 0, noise_n: float = 0.1) -> Path:
    one = truth(name, seed)
    force = noisy(one.axis_n, REPEATS, noise_n, seed + 1)
    return table(path / f"{name}-drives-{seed}.csv", one, {"force_{}_n": force}, REPEATS)


def identified(name: str, recordings: list[Path], fresh: list[Path] | None = None) -> Identification:
    return identify.identify(machine_of(name), Options(recordings, fresh or []))


def true_base(problem: Problem, of: Truth) -> np.ndarray:
    return problem.base.B @ parameters_of(of.machine, problem.cell).values


# ---------------------------------------------------------------- what is right


def test_parameters_of_the_oracle_come_out_within_their_errors(tmp_path: Path) -> None:
    found = identified("6-upru", [cells(tmp_path)], [cells(tmp_path, seed=1)])
    assert found.passed, identify.verdict(found)
    step = found.steps[0]
    assert len(step.fit.beta) == 17
    assert step.periods == [REPEATS]
    off = (step.fit.beta - true_base(step.problem, truth("6-upru"))) / step.fit.error
    assert np.abs(off).max() < 4.0
    assert np.count_nonzero(np.abs(off) < 2.0) >= 14
    assert step.fit.determined[0]  # the weight
    # the file's error is some newtons, the identified one no more than the noise
    assert step.before.all_rms_n > 5.0
    assert step.after.all_rms_n < 1.02 * NOISE_N
    assert step.written.all_rms_n < 1.02 * NOISE_N
    np.testing.assert_allclose(step.fit.noise_n, NOISE_N, rtol=0.1)


@pytest.mark.parametrize("name", ["6-ups", "6-uhu", "3-ups-s", "2-upr-2-rpu"])
def test_friction_and_weight_from_the_drives(tmp_path: Path, name: str) -> None:
    found = identified(name, [drives(tmp_path, name)])
    assert found.passed, identify.verdict(found)
    step = found.steps[0]
    assert step.before.all_rms_n > 5.0
    true, names = truth(name).machine, [step.problem.parameters.names[k] for k in step.problem.base.columns]
    dry, viscous = (next(k for k, n in enumerate(names) if n.endswith(end)) for end in ("coulomb_n", "viscous_n_s_m"))
    assert step.fit.beta[dry] == pytest.approx(DRY_N, abs=max(4.0 * step.fit.error[dry], 0.02 * DRY_N))
    assert step.fit.beta[viscous] == pytest.approx(
        VISCOUS_N_S_M, abs=max(4.0 * step.fit.error[viscous], 0.02 * VISCOUS_N_S_M)
    )
    f, right, cell = np.empty((3, 1, len(true.leg)))
    at_rest = [np.array([[true.platform.home.x_m, true.platform.home.y_m, true.platform.home.z_m, 0.1, 0.1, 0.1]])]
    if name == "2-upr-2-rpu":
        at_rest = [np.array([[0.0, 0.0, true.platform.home.z_m, 0.0, 0.0, 0.0]])]
    at_rest += [np.zeros((1, 6))] * 3
    dynamics.inverse_dynamics_batch(build(found.machine), *at_rest, f, cell)
    dynamics.inverse_dynamics_batch(build(true), *at_rest, right, cell)
    np.testing.assert_allclose(f, right, atol=2e-3 * np.abs(right).max())


def test_a_delay_of_seven_milliseconds_is_found_and_corrected(tmp_path: Path) -> None:
    one = truth("6-upru")
    w = 2.0 * np.pi * np.fft.rfftfreq(len(one.cell_n), one.step_s)[:, None]
    later = np.fft.irfft(np.fft.rfft(one.cell_n, axis=0) * np.exp(-1j * w * 0.007), len(one.cell_n), axis=0)
    found = identified("6-upru", [cells(tmp_path, **{"cell_{}_n": noisy(later, REPEATS, NOISE_N, 5)})])
    step = found.steps[0]
    assert step.fit.delay_s == pytest.approx(0.007, abs=1e-4)
    assert any("7.0" in note and "later" in note for note in found.notes)
    assert found.passed
    off = (step.fit.beta - true_base(step.problem, one)) / step.fit.error
    assert np.abs(off).max() < 4.5


def test_data_without_a_period_are_taken_as_they_are(tmp_path: Path) -> None:
    """One period is none: differences instead of a Fourier series, and the same parameters."""
    one = truth("6-upru")
    found = identified("6-upru", [cells(tmp_path, **{"cell_{}_n": noisy(one.cell_n, 1, NOISE_N, 3)})])
    step = found.steps[0]
    assert step.periods == [0]
    assert found.passed
    off = (step.fit.beta - true_base(step.problem, one)) / step.fit.error
    assert np.abs(off).max() < 4.5


def test_outliers_and_gaps_change_nothing(tmp_path: Path) -> None:
    one = truth("6-upru")
    force = noisy(one.cell_n, REPEATS, NOISE_N, 1)
    rng = np.random.default_rng(9)
    at = rng.choice(force.size, force.size // 200, replace=False)
    force.ravel()[at] += rng.choice([-300.0, 400.0], len(at))
    force[100:180, 2] = np.nan
    found = identified("6-upru", [cells(tmp_path, **{"cell_{}_n": force})])
    step = found.steps[0]
    assert found.passed, identify.verdict(found)
    off = (step.fit.beta - true_base(step.problem, one)) / step.fit.error
    assert np.abs(off).max() < 4.5
    assert any("without a valid value" in note for note in found.notes)


# ---------------------------------------------------------------- bad data, each told in a sentence


def told(tmp_path: Path, force: np.ndarray) -> str:
    """The verdict on cells like these, which must not be good."""
    path = cells(tmp_path, **{"cell_{}_n": force})
    result = pkm("identify", MACHINES / "6-upru.toml", path)
    assert result.code == 1, result.out
    assert result.err == ""
    last = result.out.splitlines()[-1]
    assert last.startswith("FAIL: ")
    return last


def test_two_equal_columns(tmp_path: Path) -> None:
    force = noisy(truth("6-upru").cell_n, 2, NOISE_N, 1)
    force[:, 4] = force[:, 1]
    assert "load cell 2 and load cell 5 show the same numbers" in told(tmp_path, force)


def test_a_dead_channel(tmp_path: Path) -> None:
    force = noisy(truth("6-upru").cell_n, 2, NOISE_N, 1)
    force[:, 3] = 12.5
    assert "load cell 4 is dead: it shows 12.5 N throughout" in told(tmp_path, force)


def test_a_channel_without_values(tmp_path: Path) -> None:
    force = noisy(truth("6-upru").cell_n, 2, NOISE_N, 1)
    force[:, 3] = np.nan
    assert "load cell 4 has no valid value in 100 % of the rows" in told(tmp_path, force)


def test_a_saturated_cell(tmp_path: Path) -> None:
    force = noisy(truth("6-upru").cell_n, 2, NOISE_N, 1)
    force[:300, 5] = 2200.0
    assert "load cell 6 is at the end of its range in 30 % of the rows" in told(tmp_path, force)


def test_a_run_at_rest(tmp_path: Path) -> None:
    one = truth("6-upru")
    still = one._replace(axes_m=np.repeat(one.axes_m[:1], len(one.axes_m), axis=0))
    path = table(tmp_path / "rest.csv", still, {"cell_{}_n": noisy(one.cell_n[:1], len(one.axes_m), NOISE_N, 1)})
    result = pkm("identify", MACHINES / "6-upru.toml", path)
    assert result.code == 1
    assert "the machine is at rest throughout" in result.out


def test_forces_of_another_machine(tmp_path: Path) -> None:
    """The same motion, the legs in another order."""
    force = noisy(truth("6-upru").cell_n[:, [3, 5, 0, 2, 1, 4]], 2, NOISE_N, 1)
    verdict = told(tmp_path, force)
    assert "these are not the forces of this machine" in verdict


def test_no_wild_numbers_whatever_the_data(tmp_path: Path) -> None:
    """Noise for forces: what the data do not tell stays near the file, and the verdict is a failure."""
    rng = np.random.default_rng(0)
    path = cells(tmp_path, **{"cell_{}_n": rng.normal(size=(1000, 6)) * 50.0})
    found = identified("6-upru", [path])
    assert not found.passed
    assert np.abs(found.steps[0].problem.base.B).max() < 1e3
    assert np.all(np.isfinite(found.steps[0].fit.beta))


def test_forces_more_than_the_search_apart(tmp_path: Path) -> None:
    force = np.roll(truth("6-upru").cell_n, 12, axis=0)  # 240 ms
    verdict = told(tmp_path, noisy(force, 2, NOISE_N, 1))
    assert "ms apart" in verdict or "not the forces of this machine" in verdict


# ---------------------------------------------------------------- the command


def test_report_and_a_new_machine_file(tmp_path: Path) -> None:
    new = tmp_path / "new.toml"
    arguments = ["identify", MACHINES / "6-upru.toml", cells(tmp_path), "--fresh", cells(tmp_path, seed=1)]
    result = pkm(*arguments, "--write", new)
    assert result.code == 0, result.out + result.err
    assert result.out.splitlines()[-1].startswith("PASS: ")
    assert "residual on fresh data" in result.out
    machine, text = load_machine(new)
    assert "Identified on" in machine.source
    assert text.startswith("# 6-upru: written by `pkm identify`")
    weight = machine.platform.mass_kg + 6.0 * sum(machine.legs.links[name].mass_kg for name in ("L1", "L2"))
    true = truth("6-upru").machine
    right = true.platform.mass_kg + 6.0 * sum(true.legs.links[name].mass_kg for name in ("L1", "L2"))
    assert weight == pytest.approx(right, rel=2e-3)
    parameters = parameters_of(machine, cell=True)
    for body in bodies(parameters):
        J = pseudo_inertia(parameters.values[body.at])
        assert np.linalg.eigvalsh(J)[0] >= -1e-9 * np.abs(J).max()
    assert pkm("check", new).code == 0
    refused(pkm(*arguments, "--write", new), 2, "nothing is overwritten")
    assert new.read_text() == text


def test_what_the_command_refuses(tmp_path: Path) -> None:
    machine = MACHINES / "6-upru.toml"
    refused(pkm("identify", machine, tmp_path / "none.mcap"), 2, "none.mcap", "no such recording")
    refused(pkm("identify", machine, tmp_path / "none.csv"), 2, "none.csv")
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    refused(pkm("identify", machine, empty), 2, "line 1")
    odd = tmp_path / "odd.csv"
    odd.write_text("t_s,length_1_m\n0,1\n")
    refused(pkm("identify", machine, odd), 2, "cell_1_n")
    good = cells(tmp_path).read_text().splitlines()
    bad = tmp_path / "bad.csv"
    bad.write_text("\n".join([*good[:5], good[5].replace(",", ",x", 1), *good[6:]]))
    refused(pkm("identify", machine, bad), 2, "line 6", "column length_1_m")
    refused(pkm("identify", machine, cells(tmp_path), "--cutoff", "24"), 2, "--cutoff", "22.5 Hz")
    refused(pkm("identify", machine, cells(tmp_path), "--period", "7"), 2, "--period", "7 s")
    far = truth("6-upru")._replace(axes_m=truth("6-upru").axes_m + 5.0)
    refused(
        pkm("identify", machine, table(tmp_path / "far.csv", far, {"cell_{}_n": far.cell_n})), 2, "no pose of 6-upru"
    )


def test_a_recording_says_the_same_as_a_table_and_only_of_its_machine(tmp_path: Path) -> None:
    """The gateway's own recorder writes it; the PLC's counter is the clock, and one cycle stands there twice."""
    one, meta, site = truth("6-upru"), make_meta(), make_site(tmp_path)
    meta |= {"machine_toml": (MACHINES / "6-upru.toml").read_text(), "rate_hz": 50.0}
    count = REPEATS * len(one.axes_m)
    rows, k = np.zeros((count, len(COLUMNS))), np.arange(float(count))
    for name, values in {
        "tick": k, "t_s": k * one.step_s + 0.001 * np.sin(k), "plc_cycle": 10.0 * k, "link": Link.UP,
        "drives_enabled": 1.0, "axes_homed": 1.0, "mode": 2.0,
    }.items():  # fmt: skip
        rows[:, AT[name]] = values
    force = noisy(one.cell_n, REPEATS, NOISE_N, 1)
    for i in range(6):
        rows[:, AT[f"length_{i + 1}_m"]] = np.tile(one.axes_m[:, i], REPEATS)
        rows[:, AT[f"cell_{i + 1}_n"]], rows[:, AT[f"cell_{i + 1}_quality"]] = force[:, i], Quality.GOOD
    rows = np.insert(rows, 50, rows[49], axis=0)
    recorder = Recorder(site, meta)
    recorder.append(0, rows)
    recorder.close()
    found = identified("6-upru", [recorder.path])
    table_ = identified("6-upru", [cells(tmp_path)])
    assert found.passed, identify.verdict(found)
    step, other = found.steps[0], table_.steps[0]
    assert step.side == "cells"
    assert step.periods == [REPEATS]
    np.testing.assert_allclose(step.fit.beta, other.fit.beta, atol=0.2 * other.fit.error.max(), rtol=1e-3)
    assert any("was there before" in note for note in found.notes)
    refused(pkm("identify", MACHINES / "6-ups.toml", recorder.path), 2, "'6-upru'", "'6-ups'")
