"""Ranks, gaps and regrouping: against the kernel's forces on fresh states, and matrices whose answer is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from controller import schema
from controller.errors import ConfigurationError
from controller.identification.base_parameters import (
    Base,
    Form,
    base_names,
    base_parameters,
    coordinates,
    default_form,
    has_cells,
    independent_coordinates,
    inertial_form,
    observations,
    paper_form,
    random_states,
    regroup,
)
from controller.mechanism import dynamics
from controller.mechanism.model import build
from controller.mechanism.platform import off_manifold
from controller.settings import load_machine
from tests.machines import MACHINES

FILES = sorted(path.stem for path in MACHINES.glob("*.toml"))
# ten parameters a body, legs of the same build but for the last; axis and cell
RANKS = {
    "6-upru": (29, 33), "6-ups": (22, None), "6-uhu": (29, None), "3-ups-s": (21, None), "2-upr-2-rpu": (20, None),
    "6-upru-unequal-legs": (124, 148),
}  # fmt: skip
CLEAR = 1e10  # gap of the singular values; measured 9e11 to 1e14
MOST = 1e3  # of a coefficient


def machine_of(name: str) -> schema.Machine:
    return load_machine(MACHINES / f"{name}.toml")[0]


def sides(machine: schema.Machine) -> list[bool]:
    return [False, True] if has_cells(machine) else [False]


def inertial_forces(machine: schema.Machine, cell: bool, *states: np.ndarray) -> np.ndarray:
    """The kernel's forces (N n,) of the machine without friction and rotors."""
    drive = machine.legs.drive
    if isinstance(drive, schema.ScrewDrive):
        drive = replace(drive, rotor_inertia_kg_m2=0.0, efficiency=1.0)
    bare = replace(machine, legs=replace(machine.legs, friction=schema.Friction(), drive=drive))
    f = np.empty((2, len(states[0]), len(machine.leg)))
    assert dynamics.inverse_dynamics_batch(build(bare), *states, np.zeros_like(states[0]), f[0], f[1]) == 0
    return f[int(cell)].ravel()


def test_every_machine_has_a_known_rank() -> None:
    assert set(RANKS) == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_base_parameters_of_ten_a_body(name: str) -> None:
    machine = machine_of(name)
    form, model = inertial_form(machine), build(machine)
    for cell in sides(machine):
        base = base_parameters(observations(model, form, random_states(machine), cell))
        assert len(base.columns) == RANKS[name][int(cell)]
        assert base.gap > CLEAR
        assert np.abs(base.B).max() < MOST
        assert_same_forces(machine, form, base, cell)


def assert_same_forces(machine: schema.Machine, form: Form, base: Base, cell: bool) -> None:
    fresh = random_states(machine, 30, seed=99)
    W = observations(build(machine), form, fresh, cell)[:, base.columns]
    right = inertial_forces(machine, cell, *fresh)
    np.testing.assert_allclose(W @ (base.B @ form.values), right, rtol=0, atol=1e-9 * np.abs(right).max())


@pytest.mark.parametrize(("cell", "rank"), [(True, 17), (False, 15)])
def test_base_parameters_of_the_papers_form(cell: bool, rank: int) -> None:
    machine = machine_of("6-upru")
    form = paper_form(machine)
    base = base_parameters(observations(build(machine), form, random_states(machine), cell))
    assert len(base.columns) == rank
    assert base.gap > CLEAR
    assert np.abs(base.B).max() < MOST
    assert_same_forces(machine, form, base, cell)


def test_the_papers_own_choice_of_columns_stands_for_all() -> None:
    machine = machine_of("6-upru")
    form, chosen = paper_form(machine), [0, 2, 3, 4, 5, 9, 10, 11, *range(14, 23)]
    base = regroup(observations(build(machine), form, random_states(machine), cell=True), chosen)
    assert base.columns.tolist() == chosen
    assert_same_forces(machine, form, base, True)
    named = dict(zip(chosen, base_names(base, form.names), strict=True))
    assert named[4] == "m1_kg + m2_kg + 0.166667 mp_kg"
    assert named[9] == "m3_kg"
    assert named[5] == "m1*lc1_kg_m + m2*lc2_kg_m"


@pytest.mark.parametrize("name", ["6-upru", "6-ups"])
def test_default_form(name: str) -> None:
    assert len(default_form(machine_of(name)).names) == {"6-upru": 29, "6-ups": 37}[name]


@pytest.mark.parametrize("name", FILES)
def test_random_states_are_motions_that_the_machine_can_make(name: str) -> None:
    machine = machine_of(name)
    model, states = build(machine), random_states(machine, 40, seed=5)
    limits = np.array([getattr(machine.platform.limits, field) for field in schema.PoseLimits.__struct_fields__])
    assert np.all((states.x >= limits[:, 0] - 1e-9) & (states.x <= limits[:, 1] + 1e-9))
    for x, xd, xdd in zip(*states, strict=True):
        assert off_manifold(model.platform, x, xd, xdd) < 1e-12


@pytest.mark.parametrize("name", FILES)
def test_rates_are_the_derivatives_of_the_pose(name: str) -> None:
    machine = machine_of(name)
    model = build(machine)
    u0 = independent_coordinates(machine, random_states(machine, 1, seed=1).x[0])
    (rate, acceleration), h = np.random.default_rng(0).normal(size=(2, len(u0))), 1e-4
    t = np.array([-h, 0.0, h])[:, None]
    u, ud = u0 + rate * t + acceleration * t**2 / 2, rate + acceleration * t
    x, xd, xdd = coordinates(model, u, ud, np.repeat(acceleration[None], 3, 0))
    np.testing.assert_allclose((x[2] - x[0]) / (2 * h), xd[1], atol=1e-6)
    np.testing.assert_allclose((xd[2] - xd[0]) / (2 * h), xdd[1], atol=1e-6)
    np.testing.assert_allclose(independent_coordinates(machine, x[1]), u0, atol=1e-12)


def test_a_stroke_out_of_reach_is_told() -> None:
    machine = machine_of("6-ups")
    limits = replace(machine.legs.limits, length_m=(0.1, 0.2))
    with pytest.raises(ConfigurationError, match="strokes"):
        random_states(replace(machine, legs=replace(machine.legs, limits=limits)))


# ---------------------------------------------------------------- matrices with known answers


@given(
    independent=st.integers(1, 6), dependent=st.integers(0, 4), dead=st.integers(0, 2),
    units=st.integers(-8, 8), seed=st.integers(0, 1000),
)  # fmt: skip
def test_planted_dependencies_are_found(independent: int, dependent: int, dead: int, units: int, seed: int) -> None:
    """Any rank, any units, dead columns anywhere: the same products, and B regroups what was planted."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(40, independent))
    W = np.hstack([W, W @ rng.uniform(0.5, 2.0, (independent, dependent)), np.zeros((40, dead))])
    W = W[:, rng.permutation(W.shape[1])] * 10.0 ** rng.uniform(-abs(units), abs(units), W.shape[1])
    base = base_parameters(W)
    assert len(base.columns) == independent
    p = rng.normal(size=W.shape[1]) / np.maximum(np.linalg.norm(W, axis=0), 1e-30)
    np.testing.assert_allclose(W[:, base.columns] @ (base.B @ p), W @ p, atol=1e-8)
    assert not np.any(base.B[:, np.linalg.norm(W, axis=0) == 0.0])


def test_two_equal_columns_and_a_dead_one() -> None:
    W = np.random.default_rng(0).normal(size=(20, 2))
    W = np.column_stack([W[:, 0], W[:, 1], W[:, 0], np.zeros(20)])
    base = base_parameters(W)
    assert len(base.columns) == 2
    assert sorted(base_names(base, ["a", "b", "c", "d"])) in (["a + c", "b"], ["b", "c + a"])
    assert base.gap > CLEAR


def test_a_small_coefficient_is_no_rounding() -> None:
    """A coefficient of 1e-6 stays in the name; rounding does not."""
    W = np.random.default_rng(0).normal(size=(20, 3))
    W = np.column_stack([W[:, :2], W[:, 0] + 1e-6 * W[:, 1]])
    base = regroup(W, [0, 1])
    assert base_names(base, ["a", "b", "c"]) == ["a + c", "b + 1e-06 c"]
    assert base_names(base, ["a", "b", "c"], tolerance=1e-5) == ["a + c", "b"]


def test_wrong_columns_are_refused() -> None:
    W = np.random.default_rng(0).normal(size=(20, 3))
    W = np.column_stack([W, W[:, 0]])
    with pytest.raises(ConfigurationError, match="not independent"):
        regroup(W, [0, 1, 3])
    with pytest.raises(ConfigurationError, match="not independent"):
        regroup(W, [0, 1])
    with pytest.raises(ConfigurationError, match="any effect"):
        base_parameters(np.zeros((20, 3)))
