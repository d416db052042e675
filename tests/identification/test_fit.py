"""The fit itself: the fold, singular directions, standard errors that say what they mean, bodies that can be."""

from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace
from scipy.interpolate import CubicSpline

from controller.identification import feasible, fit, friction, signals
from controller.identification.base_parameters import States, default_form, has_cells, random_states
from controller.identification.bodies import bodies, parameters_of, pseudo_inertia, with_parameters, without
from controller.identification.excitation import Series, prepare, random_coefficients, states_at
from controller.identification.friction_motion import friction_motion
from controller.identification.machine_text import machine_text
from controller.identification.problem import full_columns
from controller.identification.problem import prepare as prepare_fit
from controller.identification.repeats import mean_of_repeats
from controller.mechanism.model import build
from controller.settings import load_machine, parse
from drivers.virtual.plant import deviate
from tests.identification.simulated import DRY_N, SPREAD, VISCOUS_N_S_M, machine_of, of_states
from tests.machines import MACHINES

FILES = sorted(path.stem for path in MACHINES.glob("*.toml"))


@pytest.mark.parametrize("name", FILES)
def test_parameters_of_a_file_are_those_of_the_kernels_and_go_back(name: str) -> None:
    machine = machine_of(name)
    parameters = parameters_of(machine, cell=False)
    for values in (parameters.values, parameters.values * 1.01):
        back = with_parameters(machine, parameters, values)
        again = parameters_of(back, cell=False)
        np.testing.assert_allclose(again.values, values, atol=1e-6 * np.abs(values).max())
    same = build(with_parameters(machine, parameters, parameters.values))
    np.testing.assert_allclose(same.legs, build(machine).legs, atol=1e-7)
    np.testing.assert_allclose(same.platform, build(machine).platform, atol=1e-7)


@pytest.mark.parametrize("name", FILES)
def test_columns_times_parameters_are_the_forces_of_the_oracle(name: str) -> None:
    machine = deviate(machine_of(name), SPREAD)
    states = random_states(machine, 20, seed=3)
    truth = of_states(machine, states, 0.01)
    parameters = parameters_of(machine, cell=False)
    columns, constant = full_columns(machine, build(machine), parameters, False, states)
    force = columns @ parameters.values + constant
    away = np.abs(_rates(machine, states)) > 0.02  # where the step of dry friction is what a handbook has
    np.testing.assert_allclose(force[away], truth.axis_n[away], atol=1e-7 * np.abs(truth.axis_n).max())


def _rates(machine, states: States) -> np.ndarray:
    from controller.identification.base_parameters import axis_positions

    return axis_positions(build(machine), states)[1]


@pytest.mark.parametrize("name", FILES)
def test_a_written_machine_reads_back_the_same(name: str, tmp_path) -> None:
    machine = machine_of(name)
    text = machine_text(machine, ["from nowhere"])
    assert parse(text, type(machine), tmp_path) == machine
    (tmp_path / "m.toml").write_text(text)
    assert load_machine(tmp_path / "m.toml")[0] == machine


@pytest.mark.parametrize("name", FILES)
def test_regrouping_makes_no_large_numbers(name: str) -> None:
    machine = machine_of(name)
    for cell in {False, has_cells(machine)}:
        assert np.abs(prepare_fit(machine, cell).base.B).max() < 1e3


def test_the_fold_is_the_triangle_of_everything() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5000, 9))
    R = np.zeros((0, 9))
    for part in np.array_split(rows, 7):
        R = fit.fold(R, part)
    np.testing.assert_allclose(R.T @ R, rows.T @ rows, rtol=1e-9, atol=1e-9)


def test_what_the_data_do_not_know_stays_at_the_file() -> None:
    """Two parameters whose columns are almost the same: their sum is the data's, their difference the file's."""
    problem = prepare_fit(machine_of("6-upru"), cell=True)
    b = len(problem.prior)
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(4000, b)) / np.sqrt(np.diagonal(problem.open_)) * 10.0
    columns[:, 1] = columns[:, 0] * np.sqrt(problem.open_[0, 0] / problem.open_[1, 1])
    beta = problem.prior + np.sqrt(np.diagonal(problem.open_))
    rows = np.column_stack([columns, np.zeros(4000), columns @ beta])
    found = fit.solve(problem, fit.fold(np.zeros((0, b + 2)), rows))
    assert np.count_nonzero(found.strengths < 1.0) == 2  # the difference, and the delay, of which nothing is known
    both = columns[0, :2]
    assert both @ found.x[:2] == pytest.approx(both @ beta[:2], rel=1e-6)
    np.testing.assert_allclose(found.x[2:b], beta[2:], rtol=1e-6)
    assert np.abs(found.x[:b] - problem.prior).max() < 10.0 * np.sqrt(np.diagonal(problem.open_)).max()


def test_autoregression_of_a_known_process() -> None:
    rng = np.random.default_rng(0)
    r = np.zeros((20000, 2))
    for k in range(1, len(r)):
        r[k] = np.array([0.8, -0.4]) * r[k - 1] + rng.normal(size=2)
    lagged = np.array([[[(r[lag:, i] * r[: len(r) - lag, i]).sum() for lag in range(fit.MEMORY + 1)] for i in (0, 1)],
                       [[float(len(r) - lag) for lag in range(fit.MEMORY + 1)]] * 2])  # fmt: skip
    found = fit.autoregression(lagged)
    np.testing.assert_allclose(found[:, 0], [0.8, -0.4], atol=0.05)
    np.testing.assert_allclose(found[:, 1:], 0.0, atol=0.05)


def test_intervals_hold_what_they_promise() -> None:
    """30 fits with noise that remembers 0.9 a row; 200 and more are a benchmark."""
    machine = machine_of("6-upru")
    form = prepare(machine, default_form(machine))
    problem = prepare_fit(machine, cell=True)
    step_s, rows = 0.02, 500
    states = states_at(form, random_coefficients(form, 0), step_s * np.arange(rows))
    truth = of_states(deviate(machine, SPREAD), states, step_s)
    beta = problem.base.B @ parameters_of(truth.machine, cell=True).values
    inside, rng = list[np.ndarray](), np.random.default_rng(0)
    for _ in range(30):
        noise = rng.normal(size=truth.cell_n.shape)
        for k in range(1, rows):
            noise[k] = 0.9 * noise[k - 1] + np.sqrt(1.0 - 0.81) * noise[k]
        window = signals.Window(step_s, states.x, truth.cell_n + 0.5 * noise, np.ones((rows, 6), np.bool_),
                                slice(0, rows), 2, np.full(6, 0.5))  # fmt: skip
        found = fit.fit(problem, [lambda window=window: iter([window])])
        inside.append(np.abs(found.beta - beta)[found.determined] < 1.96 * found.error[found.determined])
    share = np.concatenate(inside).mean()
    assert 0.85 < share < 0.99  # of some 390 intervals that are not independent; white errors would leave 0.4


def test_intervals_of_plays_know_that_what_a_model_is_off_repeats_itself() -> None:
    """Four plays with rests between; what is the same in all of them is no chance that four times as many rows fade."""
    machine = machine_of("6-upru")
    form, problem = prepare(machine, default_form(machine), Series(rest_to_rest=True)), prepare_fit(machine, cell=True)
    step_s, rows, plays = 0.02, 500, 4
    states = states_at(form, random_coefficients(form, 0), step_s * np.arange(rows))
    truth = of_states(deviate(machine, SPREAD), states, step_s)
    beta = problem.base.B @ parameters_of(truth.machine, cell=True).values
    k = np.concatenate([*[np.concatenate([np.zeros(37 + 5 * i, np.intp), np.arange(rows)]) for i in range(plays)],
                        np.zeros(50, np.intp)])  # fmt: skip
    inside, alone, rng = list[np.ndarray](), list[np.ndarray](), np.random.default_rng(0)
    for _ in range(10):
        off = rng.normal(size=truth.cell_n.shape)
        for row in range(1, rows):
            off[row] = 0.9 * off[row - 1] + np.sqrt(1.0 - 0.81) * off[row]
        force = (truth.cell_n + 0.5 * off)[k] + 0.2 * rng.normal(size=(len(k), 6))
        every = signals.Rows(step_s * np.arange(len(k)), np.full(len(k), np.nan), truth.axes_m[k], force,
                             np.ones(force.shape, np.bool_))  # fmt: skip

        def unfiltered(_: float, every=every) -> Iterator[signals.Window]:
            return signals.windows(iter([every]), machine, signals.Counts(), margin_s=0.0)

        mean = mean_of_repeats(unfiltered)
        assert mean is not None
        assert mean.periods == plays
        for shares, windows in (
            (inside, lambda mean=mean: iter([mean])),
            (alone, lambda every=every: signals.windows(iter([every]), machine, signals.Counts())),
        ):
            found = fit.fit(problem, [windows])
            shares.append(np.abs(found.beta - beta)[found.determined] < 1.96 * found.error[found.determined])
    assert 0.85 < np.concatenate(inside).mean() < 0.99
    assert np.concatenate(alone).mean() < 0.8  # row after row, as if each play were another experiment


# ---------------------------------------------------------------- bodies that can be


def test_a_body_that_cannot_be_gives_way_to_the_nearest_that_can() -> None:
    machine = machine_of("6-ups")
    problem = prepare_fit(machine, cell=False)
    parameters = problem.parameters
    wrong = parameters.values.copy()
    wrong[parameters.names.index("platform_inertia_zz_kg_m2")] = -2.0
    b = len(problem.prior)
    found = fit.Fit(
        problem.base.B @ wrong, np.diag((0.1 * np.sqrt(np.diagonal(problem.open_))) ** 2),
        0.1 * np.sqrt(np.diagonal(problem.open_)), np.ones(b, np.bool_), np.full(b + 1, 10.0), 0.0, 1e-4,
        np.zeros(6), np.zeros(6), np.zeros((6, fit.MEMORY)), np.ones(6), np.ones(6), np.ones(6), 1000, 200, 0, 0, 5,
    )  # fmt: skip
    physical = feasible.physical(problem, found)
    assert "platform" in physical.bodies
    assert physical.moved > 1.0
    for body in bodies(parameters):
        assert np.linalg.eigvalsh(pseudo_inertia(physical.values[body.at]))[0] > -1e-12
    # what can be is left as it is
    right = found._replace(beta=problem.base.B @ (parameters.values * 1.02))
    assert feasible.physical(problem, right).moved == 0.0


def test_friction_alone_leaves_the_bodies() -> None:
    machine = machine_of("6-ups")
    every = parameters_of(machine, cell=False)
    alone = without(every, bodies(every))
    assert not any(place.body for place in alone.places)
    changed = with_parameters(machine, alone, alone.values + 1.0)
    assert changed.platform == machine.platform
    assert changed.legs.links == machine.legs.links
    assert changed.legs.friction.universal_nm_s_rad == machine.legs.friction.universal_nm_s_rad + 1.0


# ---------------------------------------------------------------- the procedure of Guo et al.


def test_the_procedure_finds_friction_with_wrong_masses() -> None:
    """Forces of the oracle for masses and inertias that the model does not have."""
    machine = machine_of("3-ups-s")
    motion = friction_motion(machine)
    true = deviate(machine, SPREAD)
    force, every = np.zeros((len(motion.t_s), 3)), np.arange(0, len(motion.t_s), 10)
    some = of_states(true, States(*(values[every] for values in motion.states)), 0.1)
    rate = _rates(true, motion.states)
    for i in range(3):  # forces are smooth in between but for the direction: dry friction is laid on afterwards
        smooth = CubicSpline(every, some.axis_n[:, i] - DRY_N * np.sign(rate[every, i]))(np.arange(len(force)))
        force[:, i] = smooth + DRY_N * np.sign(rate[:, i])
    found = friction.procedure(machine, force, motion)
    assert found.viscous == pytest.approx(VISCOUS_N_S_M, rel=0.1)
    assert found.dry_n == pytest.approx(DRY_N, rel=0.1)


def test_the_platforms_inertia_about_its_axis_hides_in_others() -> None:
    machine = machine_of("3-ups-s")
    rod = replace(machine.legs.links["rod"], inertia_kg_m2=((0.35, 0.0, 0.0), (0.0, 0.35, 0.0), (0.0, 0.0, 0.004)))
    machine = replace(machine, legs=replace(machine.legs, links=machine.legs.links | {"rod": rod}))
    found = friction.without_axial_inertia(machine, machine)
    assert found.rank == 8
    assert found.off_n < 1e-6
    I_pz, radius = found.true[3], 0.38
    gained = found.without[found.names.index("rod_mass_kg")] - machine.legs.links["rod"].mass_kg
    assert gained == pytest.approx(I_pz / (3.0 * radius**2), rel=1e-6)  # three rods on the joints' circle
    assert found.without[1] - found.true[1] == pytest.approx(-I_pz / 2.0, rel=1e-6)
