"""Exciting motions: limits judged from the joints alone, gradients by finite differences, ends, seeds, executors."""

import csv
import io
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from controller import schema
from controller.errors import ConfigurationError, DeviceError
from controller.identification import excitation, search
from controller.identification.base_parameters import default_form, inertial_form, observations
from controller.identification.bounds import demands, use
from controller.identification.excitation import Evaluation, Problem, Series, basis, states_at, times
from controller.identification.friction_motion import POINTS, RATES_RAD_S, friction_motion
from controller.identification.sensitivity import observe
from controller.mechanism import regressor
from controller.records import POSE
from controller.settings import load_machine
from tests.machines import MACHINES
from tests.shell import pkm, refused

FILES = sorted(path.stem for path in MACHINES.glob("*.toml") if path.stem != "6-upru-unequal-legs")
QUICK = 8  # iterations: enough to improve on a random start


def machine_of(name: str) -> schema.Machine:
    return load_machine(MACHINES / f"{name}.toml")[0]


@cache
def problem_of(name: str, series: Series = Series(3, 6.0), **more: object) -> Problem:  # noqa: B008
    machine = machine_of(name)
    return excitation.prepare(machine, default_form(machine), series, **more)


@pytest.fixture(scope="module")
def found() -> tuple[Problem, np.ndarray, np.ndarray]:
    """A 6-UPRU problem, a random start, and what a few iterations make of it."""
    problem = problem_of("6-upru", Series(5, 10.0, rest_to_rest=True))
    start = excitation.random_coefficients(problem, 1)
    return problem, start, excitation.optimise(problem, start, lambda: False, QUICK)


# ---------------------------------------------------------------- the series


@settings(max_examples=40)
@given(
    harmonics=st.integers(1, 8), period_s=st.floats(0.5, 60.0), seed=st.integers(0, 100), at_rest=st.booleans(),
)  # fmt: skip
def test_rates_are_derivatives_and_ends_are_at_rest(harmonics: int, period_s: float, seed: int, at_rest: bool) -> None:
    series = Series(harmonics, period_s, at_rest)
    coefficients = np.random.default_rng(seed).normal(size=2 * harmonics)
    h = 1e-4 * period_s / harmonics
    t_s = np.linspace(0.1, 0.9, 7) * period_s
    before, middle, after = (basis(series, t) @ coefficients for t in (t_s - h, t_s, t_s + h))
    for order in (0, 1):
        scale = np.abs(middle[order + 1]).max() + np.abs(middle[order]).max() / period_s
        np.testing.assert_allclose((after - before)[order] / (2 * h), middle[order + 1], atol=1e-5 * scale)
    ends = basis(series, np.array([0.0, period_s])) @ coefficients
    size = np.abs(middle).max(axis=1)
    if at_rest:
        assert np.all(np.abs(ends).max(axis=1) < 1e-9 * (1.0 + size.max()))
    else:
        np.testing.assert_allclose(ends[:, 0], ends[:, 1], atol=1e-9 * (1.0 + size.max()))


def test_the_series_is_that_of_the_paper() -> None:
    w, t = 2.0 * np.pi / 10.0, 1.7
    a, b = np.array([0.1, -0.2]), np.array([0.3, 0.05])
    right = sum(a[j] / ((j + 1) * w) * np.sin((j + 1) * w * t) for j in range(2))
    right -= sum(b[j] / ((j + 1) * w) * np.cos((j + 1) * w * t) for j in range(2))
    assert basis(Series(2, 10.0), np.array([t]))[0, 0] @ [*a, *b] == pytest.approx(right, abs=1e-15)


# ---------------------------------------------------------------- the kernels


@pytest.mark.parametrize("name", FILES)
def test_the_kernel_observes_what_regressor_and_kinematics_say(name: str) -> None:
    problem = problem_of(name)
    coefficients, t_s = excitation.random_coefficients(problem, 0), np.linspace(0.0, 6.0, 9)
    u = basis(problem.series, t_s) @ coefficients.T
    n, b, c = len(problem.bounds.machine.legs), len(problem.base.columns), len(problem.bounds.names)
    Y, z = np.full((9, b, n), np.nan), np.full((9, c), np.nan)
    observe(
        problem.bounds.machine, problem.sets, float(problem.cell), u[0] + problem.centre, u[1], u[2],
        problem.bounds.scaling, Y, z,
    )  # fmt: skip
    states = states_at(problem, coefficients, t_s)
    W = observations(problem.bounds.machine, problem.form, states, problem.cell)[:, problem.base.columns]
    found = Y.transpose(0, 2, 1).reshape(-1, b)
    np.testing.assert_allclose(found, W, rtol=0, atol=1e-10 * np.abs(W).max(axis=0).max())
    values = z * problem.bounds.scaling[1] + problem.bounds.scaling[0]
    right = demands(problem.bounds, states)
    forces = slice(3 * n, 4 * n)  # those of the drives have friction and rotors, which the kernel leaves out
    values[:, forces] = right[:, forces] = 0.0
    np.testing.assert_allclose(values, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "objective"), [*((name, "condition") for name in FILES), ("3-ups-s", "logdet")])
def test_gradients_against_finite_differences(name: str, objective: str) -> None:
    problem = problem_of(name, objective=objective)
    theta = (excitation.random_coefficients(problem, 3) / problem.speed[:, None]).ravel()
    rng, h = np.random.default_rng(0), 1e-5
    slope, room_slope = (
        Evaluation(problem, 8.0, 60.0).value_slope(theta),
        Evaluation(problem, 8.0, 60.0).room_slope(theta),
    )
    for _ in range(2):
        way = rng.normal(size=theta.size)
        up, down = Evaluation(problem, 8.0, 60.0), Evaluation(problem, 8.0, 60.0)
        right = (up.value(theta + h * way) - down.value(theta - h * way)) / (2 * h)
        assert slope @ way == pytest.approx(right, rel=2e-4, abs=2e-4)
        right = (up.room(theta + h * way) - down.room(theta - h * way)) / (2 * h)
        np.testing.assert_allclose(room_slope @ way, right, rtol=1e-3, atol=1e-4 * (1.0 + np.abs(right).max()))


def test_the_smoothed_limit_is_never_too_low() -> None:
    problem = problem_of("6-upru")
    coefficients = excitation.random_coefficients(problem, 4)
    room = Evaluation(problem, 8.0, 60.0).room((coefficients / problem.speed[:, None]).ravel())
    t_s = np.arange(48) * 6.0 / 48
    used = use(problem.bounds, states_at(problem, coefficients, t_s))
    forces = np.array(["force" in name for name in problem.bounds.names])
    assert np.all(1.0 - room[~forces] >= used[~forces] - 1e-9)


# ---------------------------------------------------------------- what is found


def test_a_few_iterations_are_better_than_a_random_motion(found: tuple) -> None:
    problem, start, better = found
    assert excitation.score(problem, better) < 0.7 * excitation.score(problem, start)
    W = observations(problem.bounds.machine, problem.form, states_at(problem, better, times(problem.series)), True)
    W = W[:, problem.base.columns]
    values = np.linalg.svd(W / np.linalg.norm(W, axis=0), compute_uv=False)
    assert excitation.score(problem, better) == pytest.approx(values[0] / values[-1], rel=1e-9)


def test_every_limit_holds_every_millisecond(found: tuple) -> None:
    """Leg lengths from the joints of the machine file, rates and accelerations by differences of the lengths."""
    problem, start, better = found
    machine = machine_of("6-upru")
    base = np.array([leg.base_joint_m for leg in machine.leg])
    platform = np.array([leg.platform_joint_m for leg in machine.leg])
    t_s = times(problem.series, 0.001)
    low, high = machine.legs.limits.length_m
    box = np.array([getattr(machine.platform.limits, name) for name in POSE])
    for coefficients in (start, better):
        x = states_at(problem, coefficients, t_s).x
        joints = x[:, None, :3] + np.einsum("kij,nj->kni", rotations(x), platform)
        length = np.linalg.norm(joints - base, axis=2)
        rate, acceleration = np.diff(length, axis=0) / 1e-3, np.diff(length, 2, axis=0) / 1e-6
        assert length.min() > low
        assert length.max() < high
        assert np.abs(rate).max() < machine.legs.limits.speed_m_s
        assert np.abs(acceleration).max() < machine.legs.limits.acceleration_m_s2
        assert np.all((x > box[:, 0]) & (x < box[:, 1]))
        assert np.abs(x[[0, -1]] - x[0]).max() < 1e-12
        assert np.abs(rate[[0, -1]]).max() < 1e-5  # quintic ends
        assert np.abs(acceleration[[0, -1]]).max() < 0.02
    assert use(problem.bounds, states_at(problem, better, t_s)).max() <= 1.0


def rotations(x: np.ndarray) -> np.ndarray:
    from scipy.spatial.transform import Rotation

    return Rotation.from_euler("ZYX", x[:, 3:]).as_matrix()


def test_a_tight_limit_is_kept(found: tuple) -> None:
    """Joint swing, condition number and force, when each is what ends the motion."""
    machine, series = machine_of("6-upru"), Series(1, 4.0)
    still = demands(found[0].bounds, states_at(found[0], 0.0 * found[1], np.zeros(1)))[0]
    force = float(np.abs(still[18:24]).max())
    for name, value in (("base_swing_rad", 0.03), ("platform_swing_rad", 0.05), ("force_n", force + 40.0)):
        limits = replace(machine.legs.limits, **{name: value})
        tight = replace(machine, legs=replace(machine.legs, limits=limits))
        problem = excitation.prepare(tight, default_form(tight), series)
        start = excitation.random_coefficients(problem, 0)
        for coefficients in (start, excitation.optimise(problem, start, lambda: False, 3)):
            used = use(problem.bounds, states_at(problem, coefficients, times(series, 0.004)))
            assert 0.8 < max(u for u, channel in zip(used, problem.bounds.names, strict=True) if name in channel) <= 1.0


def test_no_room_at_home_is_told() -> None:
    machine = machine_of("6-upru")
    limits = replace(machine.legs.limits, force_n=50.0)
    tight = replace(machine, legs=replace(machine.legs, limits=limits))
    with pytest.raises(ConfigurationError, match=r"home pose.*leg_1_force_n"):
        excitation.prepare(tight, default_form(tight))


def test_ten_parameters_a_body_for_each_leg() -> None:
    """Columns for each leg: a start ends, inside the limits, with a finite condition number."""
    machine = machine_of("6-upru-unequal-legs")
    problem = excitation.prepare(machine, inertial_form(machine), Series(1, 4.0))
    assert problem.form.T.shape[0] == regressor.PLATFORM_WIDTH + 6 * regressor.LEG_WIDTH
    start = excitation.random_coefficients(problem, 0)
    slope = Evaluation(problem, 8.0, 60.0).value_slope((start / problem.speed[:, None]).ravel())
    assert np.all(np.isfinite(slope))
    assert np.any(slope)


# ---------------------------------------------------------------- many starts


def quick_search(problem: Problem, pool: Executor, workers: int, seed: int) -> search.Found:
    return search.search(problem, pool, workers, 300.0, seed, starts=2, iterations=2)


def test_a_seed_gives_the_same_motion_whatever_the_workers() -> None:
    problem = problem_of("3-ups-s", Series(2, 4.0))
    with ThreadPoolExecutor(2) as pool:
        one, two, other = (quick_search(problem, pool, *how) for how in ((1, 7), (2, 7), (2, 8)))
    assert (one.starts, one.cut, one.start) == (two.starts, two.cut, two.start)
    np.testing.assert_array_equal(one.coefficients, two.coefficients)
    assert not np.array_equal(one.coefficients, other.coefficients)


def test_the_best_start_is_kept_when_time_runs_out() -> None:
    problem = problem_of("3-ups-s", Series(2, 4.0))
    told = []
    with ThreadPoolExecutor(1) as pool:
        found = search.search(problem, pool, 1, 0.01, tell=told.append)
    assert (found.starts, found.cut) == (1, 1)
    assert np.isfinite(found.score)
    assert told[-1].best == found.score


def test_a_dask_cluster_finds_the_same() -> None:
    distributed = pytest.importorskip("distributed")
    problem = problem_of("3-ups-s", Series(2, 4.0))
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None, protocol="tcp", host="127.0.0.1"
    )
    with cluster, search.dask_cluster(cluster.scheduler_address) as (pool, workers):
        assert workers == 2
        found = quick_search(problem, pool, workers, 7)
    with ThreadPoolExecutor(1) as local:
        np.testing.assert_array_equal(found.coefficients, quick_search(problem, local, 1, 7).coefficients)


def test_no_scheduler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(search, "CONNECT_S", 0.5)
    with pytest.raises(DeviceError, match=r"127\.0\.0\.1:9"), search.dask_cluster("127.0.0.1:9"):
        pass


# ---------------------------------------------------------------- the command


def table(text: str) -> dict[str, np.ndarray]:
    header, *rows = csv.reader(io.StringIO(text))
    return dict(zip(header, np.array(rows, dtype=float).T, strict=True))


def test_the_command_writes_a_motion_and_says_what_it_is_worth() -> None:
    path = MACHINES / "3-ups-s.toml"
    result = pkm("excite", path, "--harmonics", "2", "--period", "4", "--starts", "1", "--seconds", "0.5",
                 "--rest-to-rest")  # fmt: skip
    assert result.code == 0, result.err
    motion = table(result.out)
    assert list(motion) == ["t_s", *(f"{name}{suffix}" for suffix in ("", "_s", "_s2") for name in POSE)]
    np.testing.assert_allclose(motion["t_s"], np.arange(401) * 0.01, rtol=0, atol=1e-12)
    for name in POSE:
        assert abs(motion[name][0] - motion[name][-1]) < 1e-12
        for suffix in ("_s", "_s2"):
            assert np.abs(motion[name + suffix][[0, -1]]).max() < 1e-10
    forces = pkm("forces", path, given=result.out)  # the motion is one that the machine can make
    assert forces.code == 0, forces.err
    for words in (
        "21 base parameters of 37 from axis forces",
        "condition number",
        "stroke_m",
        "margin",
        "start 1 of 1",
    ):
        assert words in result.err


def test_the_friction_motions_of_the_paper() -> None:
    motion = friction_motion(machine_of("3-ups-s"))
    x, xd, xdd = motion.states
    h = motion.t_s[1] - motion.t_s[0]
    np.testing.assert_allclose((x[2:] - x[:-2]) / (2 * h), xd[1:-1], atol=2e-4)
    np.testing.assert_allclose((xd[2:] - xd[:-2]) / (2 * h), xdd[1:-1], atol=5e-3)
    assert np.abs(xd[[0, -1]]).max() < 1e-12
    assert np.abs(xdd[[0, -1]]).max() < 1e-12
    R = rotations(x)
    tilt, azimuth = np.arccos(np.clip(R[:, 2, 2], -1, 1)), np.arctan2(R[:, 1, 2], R[:, 0, 2])
    for number, rate in enumerate(RATES_RAD_S, 1):
        turn = motion.segment == number
        np.testing.assert_allclose(tilt[turn], np.radians(10.0), atol=1e-9)
        np.testing.assert_allclose(np.diff(np.unwrap(azimuth[turn])) / h, rate, rtol=1e-6)
        points = np.unwrap(azimuth[turn & (motion.point > 0)])
        assert len(points) == POINTS
        np.testing.assert_allclose(np.diff(points), np.radians(15.0), rtol=1e-9)
    sine = motion.segment == 5
    np.testing.assert_allclose(
        tilt[sine], np.abs(np.radians(20.0) * np.sin(np.pi / 2 * (motion.t_s[sine] - motion.t_s[sine][0]))), atol=1e-7
    )


def test_the_friction_command() -> None:
    result = pkm("excite", MACHINES / "3-ups-s.toml", "--friction")
    assert result.code == 0
    assert set(table(result.out)["segment"].tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}
    refused(pkm("excite", MACHINES / "6-upru.toml", "--friction"), 2, "6-upru", "spherical", "'free'")


def test_mistakes_on_the_command_line() -> None:
    path = MACHINES / "6-upru.toml"
    refused(pkm("excite", path, "--harmonics", "0"), 2, "--harmonics")
    refused(pkm("excite", path, "--harmonics", "51"), 2, "--harmonics", "50")
    refused(pkm("excite", path, "--period", "0"), 2, "--period")
    refused(pkm("excite", path, "--objective", "beauty"), 2, "--objective")
    refused(pkm("excite", "nothing.toml"), 2, "nothing.toml")
