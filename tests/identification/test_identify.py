"""`pkm identify` against machines whose parameters are known: forces of the Pinocchio oracle, good data and bad."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from controller import schema
from controller.gateway.recording.recorder import Recorder
from controller.identification import identify, summary
from controller.identification.base_parameters import States
from controller.identification.bodies import Parameters, bodies, parameters_of, pseudo_inertia
from controller.identification.identify import Identification, Options
from controller.identification.problem import Problem, full_columns
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
    assert found.passed, summary.verdict(found)
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
    assert found.passed, summary.verdict(found)
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
    path = cells(tmp_path, **{"cell_{}_n": noisy(later, REPEATS, NOISE_N, 5)})
    result = pkm("identify", MACHINES / "6-upru.toml", path)
    assert result.code == 0, result.out + result.err
    said = re.search(r"note: forces are (\d\.\d\d) ± 0\.\d\d ms later than positions: corrected", result.out)
    assert said
    assert float(said[1]) == pytest.approx(7.0, abs=0.1)
    step = identified("6-upru", [path]).steps[0]
    assert step.fit.delay_s == pytest.approx(0.007, abs=1e-4)
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


def test_the_last_pass_alone_sees_all_of_long_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = truth("6-upru")
    path = cells(tmp_path, **{"cell_{}_n": noisy(one.cell_n, 1, NOISE_N, 3)})
    options = Options([path, path, path], [])
    whole = identify.identify(machine_of("6-upru"), options).steps[0].fit
    monkeypatch.setattr("controller.identification.fit.PILOT_NUMBERS", 1)
    piece = identify.identify(machine_of("6-upru"), options).steps[0].fit
    assert piece.taken == pytest.approx(whole.taken, rel=0.01)
    assert np.abs((piece.beta - whole.beta) / whole.error).max() < 0.3
    np.testing.assert_allclose(piece.error, whole.error, rtol=0.1)


def test_outliers_and_gaps_change_nothing(tmp_path: Path) -> None:
    one = truth("6-upru")
    force = noisy(one.cell_n, REPEATS, NOISE_N, 1)
    rng = np.random.default_rng(9)
    at = rng.choice(force.size, force.size // 200, replace=False)
    force.ravel()[at] += rng.choice([-300.0, 400.0], len(at))
    force[100:180, 2] = np.nan
    found = identified("6-upru", [cells(tmp_path, **{"cell_{}_n": force})])
    step = found.steps[0]
    assert found.passed, summary.verdict(found)
    off = (step.fit.beta - true_base(step.problem, one)) / step.fit.error
    assert np.abs(off).max() < 4.5
    assert any("without a valid value" in note for note in found.notes)


def test_zero_errors_of_cells_are_found_and_corrected(tmp_path: Path) -> None:
    one, zero_n = truth("6-upru"), np.array([30.0, 0.0, -12.0, 0.0, 0.0, 5.0])
    path = cells(tmp_path, **{"cell_{}_n": noisy(one.cell_n, REPEATS, NOISE_N, 1) + zero_n})
    found = identified("6-upru", [path])
    step = found.steps[0]
    assert found.passed, summary.verdict(found)
    assert np.abs((step.fit.zero_n - zero_n) / step.fit.zero_error_n).max() < 4.0
    assert np.abs((step.fit.beta - true_base(step.problem, one)) / step.fit.error).max() < 4.5
    assert step.fit.determined[0]  # the weight
    assert step.after.all_rms_n < 1.02 * NOISE_N
    # the file is judged without the zero errors, too: what is better is the model
    assert step.before.all_rms_n == pytest.approx(
        identified("6-upru", [cells(tmp_path)]).steps[0].before.all_rms_n, rel=0.05
    )
    notes = "; ".join(found.notes)
    assert "load cell 1 reads 30." in notes or "load cell 1 reads 29." in notes
    assert "too little" in notes
    assert not any(f"load cell {i} reads" in notes for i in (2, 4, 5))


def test_repeats_from_rest_to_rest_are_averaged_whatever_the_rests(tmp_path: Path) -> None:
    one = truth_of("6-upru", rest=True)
    rests = [35, 40, 61, 52, 47]  # rows before and after each play
    k = np.concatenate([
        np.concatenate([np.zeros(rest, np.intp), np.arange(len(one.axes_m)) if last else []]).astype(np.intp)
        for rest, last in zip(rests, [True] * REPEATS + [False], strict=True)
    ])  # fmt: skip
    played = one._replace(axes_m=one.axes_m[k], cell_n=one.cell_n[k])
    noise = np.random.default_rng(3).normal(size=played.cell_n.shape) * NOISE_N
    found = identified("6-upru", [table(tmp_path / "plays.csv", played, {"cell_{}_n": played.cell_n + noise})])
    step = found.steps[0]
    assert found.passed, summary.verdict(found)
    assert step.periods == [REPEATS]
    np.testing.assert_allclose(step.fit.noise_n, NOISE_N, rtol=0.1)
    assert np.abs((step.fit.beta - true_base(step.problem, one)) / step.fit.error).max() < 4.5
    # one play among them that is another motion: nothing is left out, all are taken as they are
    played.axes_m[rests[0] + 100 : rests[0] + 200] += 1e-2
    found = identified("6-upru", [table(tmp_path / "other.csv", played, {"cell_{}_n": played.cell_n + noise})])
    assert found.steps[0].periods == [0]


@pytest.mark.parametrize("name", ["6-ups", "6-uhu"])
def test_losses_of_the_drives_are_those_of_the_file(tmp_path: Path, name: str) -> None:
    """Screws of which a fifth is lost: 1 / 0.8 of the load where they drive it, 0.8 of it where it drives them."""
    file = machine_of(name)
    file = replace(file, legs=replace(file.legs, drive=replace(file.legs.drive, efficiency=0.8)))
    one = truth_of(name, file=file)
    path = table(tmp_path / "lossy.csv", one, {"force_{}_n": noisy(one.axis_n, 2, 0.1, 1)}, 2)
    step = identify.identify(file, Options([path], [])).steps[0]
    friction_is(step, DRY_N, VISCOUS_N_S_M)
    assert weight_off(step.problem.parameters, step.physical.values, one) < 2e-3
    # a file that does not know of the losses is not told so, but the verdict says how far off its model stays
    step = identify.identify(machine_of(name), Options([path], [])).steps[0]
    assert step.after.all_rms_n > 20.0 * 0.1


@pytest.mark.parametrize("seals_m", [(0.0, 0.0), (0.1, 0.5)])
def test_friction_that_grows_with_the_load_on_the_seals(tmp_path: Path, seals_m: tuple[float, float]) -> None:
    """Loads of the oracle; the file has less than half of the true coefficient."""
    file = machine_of("3-ups-s")

    def rubbing(normal: float) -> schema.Machine:
        friction = replace(file.legs.friction, normal=normal, gland_m=seals_m[0], piston_m=seals_m[1])
        return replace(file, legs=replace(file.legs, friction=friction))

    one = truth_of("3-ups-s", file=rubbing(0.05))
    path = table(tmp_path / "seals.csv", one, {"force_{}_n": noisy(one.axis_n, REPEATS, 0.1, 1)}, REPEATS)
    step = identify.identify(rubbing(0.02), Options([path], [])).steps[0]
    friction_is(step, DRY_N, VISCOUS_N_S_M)
    names = [step.problem.parameters.names[k] for k in step.problem.base.columns]
    at = names.index("normal")
    assert step.fit.determined[at]
    # the load is that of bodies near the file, 6 % too light, as far as forces of the axes do not tell them
    assert step.fit.beta[at] == pytest.approx(0.05, rel=0.05)


def friction_is(step: identify.Step, dry_n: float, viscous_n_s_m: float) -> None:
    names = [step.problem.parameters.names[k] for k in step.problem.base.columns]
    for end, right in (("coulomb_n", dry_n), ("viscous_n_s_m", viscous_n_s_m)):
        k = next(k for k, name in enumerate(names) if name.endswith(end))
        assert step.fit.beta[k] == pytest.approx(right, abs=max(4.0 * step.fit.error[k], 0.02 * right))


def weight_off(parameters: Parameters, values: np.ndarray, of: Truth) -> float:
    """How far the forces at rest are off, over the largest of them."""
    true = parameters_of(of.machine, cell=False)
    home = of.machine.platform.home
    x = np.array([[home.x_m, home.y_m, home.z_m, 0.05, 0.05, 0.05]])
    still = States(x, np.zeros((1, 6)), np.zeros((1, 6)))
    force, right = (
        columns @ p + known
        for p, (columns, known) in (
            (values, full_columns(of.machine, build(of.machine), parameters, False, still)),
            (true.values, full_columns(of.machine, build(of.machine), true, False, still)),
        )
    )
    return float(np.abs(force - right).max() / np.abs(right).max())


# ---------------------------------------------------------------- bad data, each told in a sentence


def told(tmp_path: Path, force: np.ndarray) -> str:
    """The verdict on cells like these, which must not be good."""
    path = cells(tmp_path, **{"cell_{}_n": force})
    result = pkm("identify", MACHINES / "6-upru.toml", path)
    assert result.code == 1, result.out
    assert all(float(factor) < 1e3 for factor in re.findall(r"[+-] ([\d.e+]+) (?:leg|platform|L\d)_", result.out))
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
    assert result.out.splitlines()[-1].startswith(
        "FAIL: the machine is at rest throughout: no axis goes further than 0 mm"
    )


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
    assert weight == pytest.approx(right, rel=0.01)  # standard error 0.25 %: the zeros of the cells are not known
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
    assert found.passed, summary.verdict(found)
    step, other = found.steps[0], table_.steps[0]
    assert step.side == "cells"
    assert step.periods == [REPEATS]
    np.testing.assert_allclose(step.fit.beta, other.fit.beta, atol=0.2 * other.fit.error.max(), rtol=1e-3)
    assert any("was there before" in note for note in found.notes)
    refused(pkm("identify", MACHINES / "6-ups.toml", recorder.path), 2, "'6-upru'", "'6-ups'")
