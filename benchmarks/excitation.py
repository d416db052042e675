"""Exciting motions for the 6-UPRU in the setting of Ni et al.: random ones, plain SciPy, and `pkm excite`.

    python -m benchmarks.excitation [--seconds 60]

Five harmonics, 10 s, load cells every 10 ms; legs may go 0.16 m either way from home, at 0.30 m/s and 2 m/s2. The
columns are those of the paper's 17 base parameters, scaled to length 1. Plain SciPy is its SLSQP with default finite
differences on the condition number and the largest value of each channel, with the same compiled kernel, the same
starts and the same processes for the same time; what it found is made to fit into the limits in the same way.
"""

import argparse
import os
import platform
import statistics
import sys
import time
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from scipy.optimize import minimize

from controller import schema
from controller.identification import search
from controller.identification.base_parameters import observations, paper_form, random_states, regroup
from controller.identification.bounds import use
from controller.identification.excitation import (
    SAMPLES_PER_HARMONIC,
    Problem,
    Series,
    basis,
    condition_number,
    fit_to_limits,
    prepare,
    random_coefficients,
    states_at,
    times,
)
from controller.identification.sensitivity import observe
from controller.mechanism import kinematics
from controller.mechanism.model import build, home_pose
from controller.settings import load_machine
from tests.machines import MACHINES

STROKE_M, SPEED_M_S, ACCELERATION_M_S2 = 0.16, 0.30, 2.0
# columns 1, 3, 4, 5, 6, 10, 11, 12, 15 (3), 16 (6) of the paper's Table 1, see its eq. (46)
PAPER_BASE = (0, 2, 3, 4, 5, 9, 10, 11, *range(14, 23))
# wide enough that the strokes end every motion first
BOX = schema.PoseLimits((-0.25, 0.25), (-0.25, 0.25), (0.65, 1.05), (-0.7, 0.7), (-0.45, 0.45), (-0.45, 0.45))
RANDOM = 20
LINE = 329.0
SEED = 0


class Result(NamedTuple):
    name: str
    condition: float
    starts: int
    seconds: float
    excess: float  # largest share of a half range that is used, every millisecond


def setting() -> Problem:
    machine, _ = load_machine(MACHINES / "6-upru.toml")
    model, lengths = build(machine), np.empty(6)
    kinematics.leg_lengths(model, home_pose(machine), lengths)
    limits = replace(
        machine.legs.limits,
        length_m=(float(lengths.max()) - STROKE_M, float(lengths.min()) + STROKE_M),
        speed_m_s=SPEED_M_S,
        acceleration_m_s2=ACCELERATION_M_S2,
    )
    platform_ = replace(machine.platform, limits=BOX)
    machine = replace(machine, legs=replace(machine.legs, limits=limits), platform=platform_)
    form = paper_form(machine)
    base = regroup(observations(model, form, random_states(machine), cell=True), PAPER_BASE)
    return prepare(machine, form, Series(), base=base)


def plain(problem: Problem, first: int, step: int, end_s: float) -> tuple[float, int, np.ndarray]:
    """SLSQP as it comes, start after start until `end_s`: best condition number, starts, coefficients."""
    count = SAMPLES_PER_HARMONIC * problem.series.harmonics
    of_time = basis(problem.series, np.arange(count) * problem.series.period_s / count)
    bounds, b, c = problem.bounds, len(problem.base.columns), len(problem.bounds.names)
    Y, z = np.empty((count, b, 6)), np.empty((count, c))

    def look(theta: np.ndarray) -> None:
        u = of_time @ (theta.reshape(6, -1) * problem.speed[:, None]).T
        observe(
            bounds.machine, problem.sets, 1.0, u[0] + problem.centre, u[1], u[2], bounds.scaling, Y, z
        )  # fmt: skip

    def objective(theta: np.ndarray) -> float:
        look(theta)
        W = Y.transpose(0, 2, 1).reshape(-1, b)
        return float(np.linalg.cond(W / np.linalg.norm(W, axis=0)))

    def room(theta: np.ndarray) -> np.ndarray:
        look(theta)
        return 1.0 - np.abs(z).max(axis=0)

    best, starts = (np.inf, 0, np.empty(0)), 0
    while starts == 0 or time.time() < end_s - search.LAST_FIT_S:
        start = random_coefficients(problem, (SEED, first + starts * step))
        last = (start / problem.speed[:, None]).ravel()

        def after(intermediate_result) -> None:
            nonlocal last
            last = intermediate_result.x.copy()
            if time.time() > end_s - search.LAST_FIT_S:
                raise StopIteration

        constraint = {"type": "ineq", "fun": room}
        minimize(objective, last, method="SLSQP", constraints=constraint, callback=after, options={"maxiter": 1000})
        found = fit_to_limits(problem, last.reshape(start.shape) * problem.speed[:, None])
        starts += 1
        for coefficients in (start, found):
            if np.any(coefficients) and condition_number(problem, coefficients) < best[0]:
                best = condition_number(problem, coefficients), 0, coefficients
    return best[0], starts, best[2]


def excess(problem: Problem, coefficients: np.ndarray) -> float:
    return float(use(problem.bounds, states_at(problem, coefficients, times(problem.series, 0.001))).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="for each method, default 60")
    seconds = parser.parse_args().seconds
    problem = setting()
    random = [random_coefficients(problem, (SEED, k)) for k in range(RANDOM)]
    conditions = sorted(condition_number(problem, coefficients) for coefficients in random)
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, seed {SEED}")
    print(f"{'':<28}{'condition':>10}{'starts':>8}{'s':>7}{'limits used':>13}")
    middle = statistics.median(conditions)
    worst = max(excess(problem, coefficients) for coefficients in random)
    show(Result("random, median", middle, RANDOM, 0.0, worst))
    show(Result("random, best", conditions[0], RANDOM, 0.0, worst))
    with search.local_processes() as (pool, workers):
        begin = time.time()
        tasks = [pool.submit(plain, problem, k, workers, begin + seconds) for k in range(workers)]
        results = [task.result() for task in tasks]
        spent = time.time() - begin
    condition, _, coefficients = min(results, key=lambda result: result[0])
    starts = sum(result[1] for result in results)
    show(Result("plain SciPy SLSQP", condition, starts, spent, excess(problem, coefficients)))
    with search.local_processes() as (pool, workers):
        begin = time.time()
        found = search.search(problem, pool, workers, seconds, SEED)
        spent = time.time() - begin
    own = Result("pkm excite", found.score, found.starts, spent, excess(problem, found.coefficients))
    show(own)
    missed = own.condition > LINE or own.excess > 1.0
    print(f"MISSED: {LINE:.0f} or less, inside the limits" if missed else f"line met: {LINE:.0f} or less")
    sys.exit(1 if missed else 0)


def show(result: Result) -> None:
    print(
        f"{result.name:<28}{result.condition:10.1f}{result.starts:8d}{result.seconds:7.1f}{result.excess:13.4f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
