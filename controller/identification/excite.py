"""`pkm excite`: a motion as CSV on standard output, what it is worth on standard error."""

import csv
import math
from typing import Any, NamedTuple, TextIO

import numpy as np

from controller import schema
from controller.errors import ConfigurationError
from controller.identification import bounds, excitation, friction_motion, search
from controller.identification.base_parameters import States, default_form
from controller.mechanism.model import home_pose
from controller.records import POSE, Array

SUFFIXES = ("", "_s", "_s2")
BAR = 30
# More harmonics move faster than any parallel robot: of 10 s the 50th is 5 Hz
MOST_HARMONICS = 50


class Options(NamedTuple):
    """What the command line asks for."""

    series: excitation.Series
    objective: excitation.Objective
    seconds: float
    seed: int
    starts: int | None
    dask: str  # address of a scheduler, empty: local processes


def excite(machine: schema.Machine, options: Options, out: TextIO, err: TextIO) -> None:
    """Design an exciting motion, write it, and say how good it is and how near to each limit.

    Raises:
        PkmError: see `controller.identification.excitation.prepare` and `controller.identification.search`.
    """
    if not 1 <= options.series.harmonics <= MOST_HARMONICS:
        raise ConfigurationError(
            f"--harmonics: found {options.series.harmonics}, expected a number from 1 to {MOST_HARMONICS}"
        )
    form = default_form(machine)
    problem = excitation.prepare(machine, form, options.series, options.objective)
    pool = search.dask_cluster(options.dask) if options.dask else search.local_processes()
    with pool as (executor, workers):
        bar = _Bar(err, options)
        found = search.search(problem, executor, workers, options.seconds, options.seed, options.starts, tell=bar.show)
        bar.end()
    t_s = excitation.times(options.series)
    states = excitation.states_at(problem, found.coefficients, t_s)
    write(out, t_s, states)
    observed = "load-cell" if problem.cell else "axis"
    base = problem.base
    lines = [
        f"{machine.name}: {len(base.columns)} base parameters of {len(form.names)} from {observed} forces, "
        f"gap of the singular values {base.gap:.1e}",
        f"condition number of the scaled columns {excitation.condition_number(problem, found.coefficients):.1f}, "
        f"log-determinant {excitation.log_determinant(problem, found.coefficients):.2f}",
        f"start {found.start + 1} of {found.starts}, {found.cut} of them cut off by time; seed {options.seed}",
        *bounds.report(problem.bounds, states),
    ]
    print("\n".join(lines), file=err)


def excite_friction(machine: schema.Machine, out: TextIO, err: TextIO) -> None:
    """Write the friction motions, with the columns segment and point; say how near they come to each limit.

    Raises:
        ConfigurationError: see `controller.identification.friction_motion.friction_motion`.
    """
    motion = friction_motion.friction_motion(machine)
    write(out, motion.t_s, motion.states, {"segment": motion.segment, "point": motion.point})
    lines = [
        f"{machine.name}: turns at {', '.join(f'{math.degrees(r):g}' for r in friction_motion.RATES_RAD_S)} deg/s, "
        f"then the sine; {motion.t_s[-1]:.2f} s",
        *bounds.report(bounds.build_bounds(machine, home_pose(machine)), motion.states),
    ]
    print("\n".join(lines), file=err)


def write(out: TextIO, t_s: Array, states: States, more: dict[str, Any] | None = None) -> None:
    """CSV of a motion: t_s, pose, rates, accelerations, in the columns of docs/reference/commands.md; numbers read
    back to the same bits."""
    more = more or {}
    names = ["t_s", *(f"{name}{suffix}" for suffix in SUFFIXES for name in POSE), *more]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    extra = [values.tolist() for values in more.values()]
    # times are ticks: 0.07, not 0.07000000000000001
    for k, row in enumerate(np.hstack(states).tolist()):
        writer.writerow([repr(round(float(t_s[k]), 9)), *map(repr, row), *(values[k] for values in extra)])


class _Bar:
    """Progress on a terminal in one line; elsewhere only whether it goes on, every tenth of the time."""

    def __init__(self, err: TextIO, options: Options) -> None:
        self._err, self._options, self._told = err, options, 0.0

    def show(self, progress: search.Progress) -> None:
        share = min(progress.elapsed_s / self._options.seconds, 1.0)
        if self._options.starts:
            share = max(share, progress.starts / self._options.starts)
        best = "–" if math.isinf(progress.best) else f"{progress.best:.1f}"
        text = f"{progress.elapsed_s:5.0f} s of {self._options.seconds:g}, {progress.starts} starts, best {best}"
        if self._err.isatty():
            bar = "#" * round(BAR * share)
            print(f"\r[{bar:<{BAR}}] {text}   ", end="", file=self._err, flush=True)
        elif share >= self._told + 0.1:
            self._told = share
            print(text, file=self._err, flush=True)

    def end(self) -> None:
        if self._err.isatty():
            print(file=self._err)
