"""Mistakes of wiring and data are named from what a machine shows, whose forces come from its potential energy."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.commissioning import evidence, moves
from controller.commissioning.evidence import Dial, Evidence
from controller.settings import load_site
from controller.state import Setup, prepare
from drivers.virtual.plant import deviate
from tests.commissioning.energy import Machine
from tests.machines import SIMULATION

N = 6
NOISE_N = 0.1
OFFSET_N = np.full(N, 110.0)


@cache
def world() -> tuple[Setup, Machine, moves.Moves]:
    """The controller's machine, the real one (other masses, joints, centre of mass), and the moves."""
    files = load_site(SIMULATION)
    setup = prepare(files.machine, files.site)
    choice = moves.choose(
        setup, setup.home, lambda told: moves.as_told(setup, setup.home, told, np.full(N, NOISE_N), OFFSET_N, True)
    )
    assert choice is not None and not choice.unseen
    plan = choice.moves
    rests = [0, *range(1, len(plan.pose), 2), len(plan.pose) - 1]  # looked at: the start, each leg out, the end
    plan = plan._replace(pose=plan.pose[rests], length_m=plan.length_m[rests])
    return setup, Machine(deviate(files.machine, files.site.virtual_cell)), plan


@dataclass
class Mistakes:
    turned: frozenset[int] = frozenset()
    cells: tuple[int, ...] = tuple(range(N))  # which cell serves a leg
    axes: tuple[int, ...] = tuple(range(N))  # which axis moves a leg
    factor: tuple[float, ...] = (1.0,) * N


def shown(mistakes: Mistakes, seed: int = 1, dials: tuple[Dial, ...] = (), noise_n: float = NOISE_N) -> Evidence:
    """What the real machine with these mistakes shows; zeros of up to 20 N, noise."""
    setup, real, plan = world()
    rng = np.random.default_rng(seed)
    told_m = plan.length_m
    length_m = told_m[:1, mistakes.axes] + np.array(mistakes.factor) * (told_m - told_m[:1])[:, mistakes.axes]
    forces = np.array([real.cells_n(lengths, setup.home) for lengths in length_m])
    seen = np.empty_like(forces)
    seen[:, mistakes.cells] = forces
    seen[:, list(mistakes.turned)] *= -1.0
    seen += rng.uniform(-20.0, 20.0, N) + noise_n * rng.standard_normal(seen.shape)
    return Evidence(
        setup.machine, setup.home, told_m, seen, -seen, np.full(N, noise_n), OFFSET_N, True, dials
    )  # fmt: skip


def named(seen: Evidence) -> set[tuple[str, tuple[int, ...]]]:
    return {(finding.kind, finding.which) for finding in evidence.judge(seen).findings}


def exchanged(i: int, j: int) -> tuple[int, ...]:
    order = list(range(N))
    order[i], order[j] = j, i
    return tuple(order)


def factors(leg: int, factor: float) -> tuple[float, ...]:
    return tuple(factor if k == leg else 1.0 for k in range(N))


def test_the_model_of_the_evidence_is_the_gradient_of_the_potential_energy() -> None:
    setup, _, plan = world()
    machine = Machine(load_site(SIMULATION).machine)
    model = evidence.forces(setup.machine, setup.home, plan.length_m, at_cells=True)
    assert model is not None
    independent = np.array([machine.cells_n(lengths, setup.home) for lengths in plan.length_m])
    np.testing.assert_allclose(model[0], independent, atol=2e-3)
    assert np.ptp(independent, axis=0).min() > 20.0 * NOISE_N  # the poses tell something


@pytest.mark.parametrize("seed", range(4))
def test_a_sound_machine_has_no_finding_though_its_masses_are_not_those_of_the_file(seed: int) -> None:
    verdict = evidence.judge(shown(Mistakes(), seed))
    assert verdict.findings == [] and verdict.unseen == []
    assert (np.abs(verdict.factor - 1.0) < 2.0 * verdict.factor_error).all()
    assert verdict.remainder_n < 2.0 * NOISE_N


def test_three_mistakes_at_once_are_all_named_and_the_lead_has_its_number() -> None:
    seen = shown(Mistakes(frozenset({2}), axes=exchanged(1, 4), factor=factors(3, 0.8)))
    verdict = evidence.judge(seen)
    assert [finding.kind for finding in verdict.findings] == ["turned", "legs", "lead"]
    assert [finding.which for finding in verdict.findings] == [(3,), (2, 5), (4,)]
    turned, legs, lead = verdict.findings
    assert turned.text == "cell_3 has the wrong sign"
    assert legs.text.startswith("the drives of legs 2 and 5 are exchanged")
    factor, error = (float(word) for word in lead.text.split()[3:6:2])
    assert abs(factor - 0.8) < 3.0 * error and error < 0.03


@settings(max_examples=5)
@given(
    st.sampled_from(["", "turned", "cells"]),
    st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda pair: pair[0] < pair[1]),
    st.sampled_from(["", "axes"]),
    st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda pair: pair[0] < pair[1]),
    st.one_of(st.just(1.0), st.floats(0.4, 0.8), st.floats(1.2, 2.0), st.floats(-1.2, -0.8)),
    st.integers(0, 5),
    st.integers(0, 1000),
)
def test_what_is_wrong_is_named_and_nothing_else(
    cell: str, cells: tuple[int, int], axis: str, axes: tuple[int, int], factor: float, leg: int, seed: int
) -> None:
    expected: set[tuple[str, tuple[int, ...]]] = set()
    mistakes = Mistakes(factor=factors(leg, factor))
    if cell == "turned":
        mistakes.turned = frozenset({cells[0]})
        expected.add(("turned", (cells[0] + 1,)))
    if cell == "cells":
        mistakes.cells = exchanged(*cells)
        expected.add(("sensors", (cells[0] + 1, cells[1] + 1)))
    if axis:
        mistakes.axes = exchanged(*axes)
        expected.add(("legs", (axes[0] + 1, axes[1] + 1)))
    if factor != 1.0:
        expected.add(("sign" if factor < 0.0 else "lead", (leg + 1,)))
    assert named(shown(mistakes, seed)) == expected


@pytest.mark.parametrize(
    ("mistakes", "finding"),
    [
        (Mistakes(axes=(1, 2, 3, 4, 5, 0)), ("legs", (1, 2, 3, 4, 5, 6))),
        (Mistakes(turned=frozenset(range(6))), ("turned", (1, 2, 3, 4, 5, 6))),
        (Mistakes(factor=(0.5,) * 6), ("lead", (1, 2, 3, 4, 5, 6))),
        (Mistakes(factor=factors(1, 0.0)), ("stuck", (2,))),
    ],
    ids=["cables in a ring", "all signs", "all leads", "a leg that stands still"],
)
def test_what_all_legs_have_in_common(mistakes: Mistakes, finding: tuple[str, tuple[int, ...]]) -> None:
    assert named(shown(mistakes)) == {finding}


def test_a_cell_that_does_not_react_is_named_and_the_others_still_tell() -> None:
    seen = shown(Mistakes(axes=exchanged(1, 4)))
    seen.shown_n[:, 0] = 3.0
    assert named(seen._replace(turned_n=-seen.shown_n)) == {("dead", (1,)), ("legs", (2, 5))}


def test_readings_that_nothing_explains_are_told_to_be_so() -> None:
    seen = shown(Mistakes())
    seen.shown_n[:] += 5.0 * np.random.default_rng(3).standard_normal(seen.shown_n.shape)
    found = evidence.judge(seen._replace(turned_n=-seen.shown_n)).findings
    assert found[0].kind == "unexplained"


def test_with_too_much_noise_nothing_is_named_and_what_could_not_be_seen_is_told() -> None:
    verdict = evidence.judge(shown(Mistakes(factor=factors(3, 0.9)), noise_n=5.0))
    assert verdict.findings == []
    assert any(text.startswith("a lead of leg 4") for text in verdict.unseen)
    assert np.isnan(verdict.factor).all()


@pytest.mark.parametrize(
    ("mistakes", "finding"),
    [
        (Mistakes(factor=factors(3, 0.8)), ("lead", (4,))),
        (Mistakes(factor=factors(3, -1.0)), ("sign", (4,))),
        (Mistakes(axes=exchanged(1, 4)), ("legs", (2, 5))),
        (Mistakes(), None),
    ],
    ids=["lead", "sign", "exchanged", "sound"],
)
def test_dial_gauges_alone_tell_of_a_machine_without_sensors(
    mistakes: Mistakes, finding: tuple[str, tuple[int, ...]] | None
) -> None:
    setup, _, _ = world()
    plan = moves.of_legs(setup, setup.home, 0.03)
    assert plan is not None
    way_m = np.array(mistakes.factor) * (plan.length_m - plan.length_m[:1])[:, mistakes.axes]
    rng = np.random.default_rng(5)
    dials = tuple(Dial(2 * k + 1, k, way_m[2 * k + 1, k] + 5e-5 * rng.standard_normal()) for k in range(N))
    nothing = np.full(plan.length_m.shape, np.nan)
    none_n = np.full(N, np.inf)
    blind = Evidence(setup.machine, setup.home, plan.length_m, nothing, nothing, none_n, OFFSET_N, False)
    assert any(text.startswith("a lead") for text in evidence.judge(blind).unseen)
    seen = blind._replace(dials=dials)
    assert named(seen) == ({finding} if finding else set())
    assert not any(text.startswith(("a lead", "the drives")) for text in evidence.judge(seen).unseen)


def test_the_moves_stay_inside_stroke_and_pose_limits_and_change_one_leg_each() -> None:
    setup, _, plan = world()
    np.testing.assert_allclose(np.abs(plan.length_m[1:-1] - plan.length_m[0]), plan.travel_m * np.eye(N), atol=1e-9)
    whole = moves.of_legs(setup, setup.home, plan.travel_m)
    assert whole is not None
    np.testing.assert_array_equal(whole.pose[::2], np.tile(setup.home, (N + 1, 1)))
    high = np.array(setup.limits.pose_max)
    edge = setup.home.copy()
    edge[2] = high[2] - 1e-3
    inward = moves.of_legs(setup, edge, 0.01)
    assert inward is None or (inward.pose <= high).all()


def test_where_legs_outnumber_freedoms_a_dial_gauge_tells_the_lead_of_every_leg() -> None:
    files = load_site(SIMULATION.with_name("simulation-2-upr-2-rpu.toml"))
    setup, n = prepare(files.machine, files.site), len(files.machine.leg)
    plan = moves.of_legs(setup, setup.home, 0.03)
    assert plan is not None
    way_m = plan.length_m - plan.length_m[0]
    farthest = np.argmax(np.abs(way_m), 0)
    dials = tuple(
        Dial(int(pose), leg, (0.9 if leg == 2 else 1.0) * way_m[pose, leg]) for leg, pose in enumerate(farthest)
    )
    blind = moves.as_told(setup, setup.home, plan.length_m, np.full(n, np.inf), np.zeros(n), False)
    assert named(blind._replace(dials=dials)) == {("lead", (3,))}
    assert any(text.startswith("a lead") for text in evidence.judge(blind).unseen)
    assert not any(text.startswith("a lead") for text in evidence.judge(blind._replace(dials=dials)).unseen)
