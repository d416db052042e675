"""`pkm identify`: parameters of a machine from recordings of its motion, and whether they are any good.

Forces of the load cells where there are such, otherwise chamber pressures, otherwise what the drives say; where both
cells and drives are recorded, the drives' friction and rotors follow in a second step.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from controller import schema
from controller.errors import ConfigurationError
from controller.identification import feasible, fit, friction, look, measurements, signals
from controller.identification.bodies import Parameters, bodies, parameters_of, with_parameters, without
from controller.identification.feasible import Physical
from controller.identification.fit import Fit, Windows
from controller.identification.friction import Friction
from controller.identification.measurements import Side
from controller.identification.problem import Problem, prepare
from controller.identification.repeats import mean_of_repeats
from controller.identification.signals import Counts, Source, Window
from controller.records import Array

NOT_OF_THIS = 0.3  # of what forces change, that a machine does not leave unexplained
OUTLIERS = 0.1  # likewise of the values
WORTH_TELLING_S = 2e-4  # of a delay
WORTH_TELLING = 0.1  # of what a zero error may be
SPIKE, SPIKE_SHARE = 20.0, 0.03  # times the usual residual and of a leg's largest force: nothing a machine does
TRACE_ROWS = 3000  # of the fresh data, for the pictures


class Options(NamedTuple):
    """What the command line asks for."""

    recordings: list[Path]
    fresh: list[Path]
    side: Side | None = None
    period_s: float | None = None  # of a periodic motion; None: is looked for
    cutoff_hz: float | None = None
    friction: Path | None = None  # a recording of the friction motion: the procedure of Guo et al. comes first


class Residual(NamedTuple):
    """Measured minus modelled force of each leg (n,), as measured, unfiltered; rows at rest left out."""

    rms_n: Array
    mean_abs_n: Array
    rows: int
    spikes: int  # values so far off that they are no forces; left out

    @property
    def all_rms_n(self) -> float:
        """Of all legs together."""
        return float(np.sqrt(np.mean(self.rms_n**2)))

    @property
    def all_mean_abs_n(self) -> float:
        """Of all legs together."""
        return float(np.mean(self.mean_abs_n))


class Trace(NamedTuple):
    """The beginning of the judged data, for the pictures: (N,) and (N, n)."""

    t_s: Array
    measured_n: Array
    before_n: Array  # of the machine file
    after_n: Array  # identified


class Step(NamedTuple):
    """One fit and what it is worth."""

    side: Side
    problem: Problem
    fit: Fit
    physical: Physical
    before: Residual  # of the machine file
    after: Residual  # of the base parameters
    written: Residual  # of the machine with the physical parameters
    trace: Trace
    counts: Counts
    periods: list[int]  # repeats averaged, of each recording
    fresh: bool  # judged with other data than it was identified with


class Identification(NamedTuple):
    """The whole answer."""

    machine: schema.Machine  # with what was identified
    steps: list[Step]
    complaints: list[str]  # why it is none
    notes: list[str]
    friction: Friction | None = None  # by the procedure of Guo et al., held in the fit

    @property
    def passed(self) -> bool:
        """Whether the machine may be used."""
        return bool(self.steps) and not self.complaints


def identify(machine: schema.Machine, options: Options) -> Identification:
    """Identify, judge, and say what is wrong where something is.

    Raises:
        ConfigurationError: if a file is no recording, or one of another machine; naming file, line or column.
    """
    shared = measurements.names_of(options.recordings[0])
    for path in (*options.recordings[1:], *options.fresh, *([options.friction] if options.friction else [])):
        shared &= measurements.names_of(path)
    side = measurements.side_of(machine, options.recordings[0], shared, options.side)
    start, parameters, rubs = machine, parameters_of(machine, side == "cells"), None
    if options.friction:
        rubs, complaints = _friction(machine, options, options.friction, side)
        if rubs is None:
            return Identification(machine, [], complaints, [])
        start = friction.with_friction(machine, rubs)
        parameters = parameters_of(start, cell=False)
        parameters = without(parameters, friction.places(parameters))
    first, complaints, notes = _step(start, options, side, parameters)
    if first is None:
        return Identification(machine, [], complaints, notes, rubs)
    found = with_parameters(start, first.problem.parameters, first.physical.values)
    steps = [first]
    if side == "cells" and not options.side and not complaints:
        axes = parameters_of(found, cell=False)
        drives = without(axes, bodies(axes))
        if drives.names and _has_drives(machine, options.recordings[0], shared):
            second, _, more = _step(found, options, "drives", drives)
            notes += [f"drives: {note}" for note in more]
            if second is not None:
                found = with_parameters(found, second.problem.parameters, second.physical.values)
                steps.append(second)
    return Identification(found, steps, complaints, notes, rubs)


def _friction(machine: schema.Machine, options: Options, path: Path, side: Side) -> tuple[Friction | None, list[str]]:
    """What rubs in the axes by its own motion, or why that is not known."""
    if side == "cells":
        raise ConfigurationError("--friction: load cells do not feel what rubs in the axes, expected --forces drives")
    source = measurements.source(machine, path, side)
    complaints = measurements.complaints(measurements.survey(machine, side, [source]), side)
    if complaints:
        return None, [f"{path}: {one}" for one in complaints]
    return friction.from_recording(machine, source, options.cutoff_hz), []


def _has_drives(machine: schema.Machine, path: Path, names: set[str]) -> bool:
    try:
        measurements.side_of(machine, path, names, "drives")
    except ConfigurationError:
        return False
    return True


def _step(
    machine: schema.Machine, options: Options, side: Side, parameters: Parameters
) -> tuple[Step | None, list[str], list[str]]:
    sources = [measurements.source(machine, path, side) for path in options.recordings]
    fresh = [measurements.source(machine, path, side) for path in options.fresh]
    survey = measurements.survey(machine, side, sources)
    complaints = measurements.complaints(survey, side)
    for path, source in zip(options.fresh, fresh, strict=True):
        told = measurements.complaints(measurements.survey(machine, side, [source]), side)
        complaints += [f"{path}: {one}" for one in told]
    if complaints:
        return None, complaints, []
    counts = Counts()
    parts = [_windows(machine, source, options.period_s, counts) for source in sources]
    zero_n = measurements.zeros_n(machine, side)
    problem = prepare(machine, side == "cells", parameters, zero_n)
    try:
        found = fit.fit(problem, [part for part, _ in parts], options.cutoff_hz)
        if problem.parameters.names.count("normal"):
            # seal loads are those of the machine as it is: once more with the one just found
            nearest = with_parameters(machine, parameters, feasible.physical(problem, found).values)
            problem = prepare(machine, side == "cells", parameters, zero_n, loads_of=nearest)
            found = fit.fit(problem, [part for part, _ in parts], options.cutoff_hz)
    except fit.NothingToldError as error:
        return None, [str(error)], []
    physical = feasible.physical(problem, found)
    judged = fresh or sources
    before, after, written, trace = _residuals(problem, found, physical, judged, options.cutoff_hz)
    step = Step(
        side, problem, found, physical, before, after, written, trace, counts, [periods for _, periods in parts],
        bool(fresh),
    )  # fmt: skip
    return step, _doubts(step), _notes(step, survey)


def _windows(machine: schema.Machine, source: Source, period_s: float | None, counts: Counts) -> tuple[Windows, int]:
    """Windows of a recording: the mean of its repeats, where it has such, and how many; otherwise all of it."""
    mean = mean_of_repeats(lambda step_s: signals.windows(source(), machine, Counts(), step_s, 0.0), period_s)
    if mean is not None:
        for _ in signals.windows(source(), machine, counts, margin_s=0.0):
            pass
        return lambda: iter([mean]), mean.periods
    if period_s is not None:
        raise ConfigurationError(f"--period: found no motion that repeats itself every {period_s:g} s")
    counted = False

    def again() -> Iterator[Window]:
        nonlocal counted
        yield from signals.windows(source(), machine, Counts() if counted else counts)
        counted = True

    return again, 0


def _residuals(
    problem: Problem, found: Fit, physical: Physical, sources: list[Source], cutoff_hz: float | None
) -> tuple[Residual, Residual, Residual, Trace]:
    """Before, after, and of the physical parameters, over all rows in motion; and the beginning as a trace."""
    n = len(problem.mechanism.legs)
    betas = [problem.prior, found.beta, problem.base.B @ physical.values]
    sums, rows, spikes = np.zeros((3, 2, n)), np.zeros(n), 0
    force_n = np.array([schema.effective_leg(problem.machine, i).limits.force_n for i in range(n)])
    most_n = np.maximum(SPIKE * found.usual_n, SPIKE_SHARE * force_n)
    traces, length, begin_s = list[tuple[Array, ...]](), 0, 0.0
    for source in sources:
        for window in signals.windows(source(), problem.machine, Counts()):
            given = look.prepare_window(problem, window, cutoff_hz)
            measured, valid = look.measured(given, found.delay_s, found.zero_n), look.valid(given)
            modelled = [look.modelled(given, beta) for beta in betas]
            core = window.core
            use = (valid & given.moving[:, None])[core]
            spike = use & (np.abs(measured - modelled[1])[core] > most_n)
            spikes, use = spikes + int(np.count_nonzero(spike)), use & ~spike
            rows += use.sum(axis=0)
            for k, force in enumerate(modelled):
                r = np.where(use, (measured - force)[core], 0.0)
                sums[k] += (r**2).sum(axis=0), np.abs(r).sum(axis=0)
            if length < TRACE_ROWS:
                shown = np.where(valid, measured, math.nan)
                shown[core][spike] = math.nan
                t: Array = begin_s + window.step_s * np.arange(float(core.stop - core.start))
                traces.append((t, shown[core], modelled[0][core], modelled[1][core]))
                length += len(t)
                begin_s = float(t[-1]) + window.step_s
    many = np.maximum(rows, 1.0)
    before, after, written = (Residual(np.sqrt(one[0] / many), one[1] / many, int(rows.max()), spikes) for one in sums)
    trace = Trace(*(np.concatenate([part[k] for part in traces])[:TRACE_ROWS] for k in range(4)))
    return before, after, written, trace


def _doubts(step: Step) -> list[str]:
    """Why these parameters are not to be used."""
    found, after, told = step.fit, step.after, list[str]()
    with np.errstate(all="ignore"):
        changes = np.nanstd(step.trace.measured_n, axis=0)
    share = after.rms_n / np.maximum(changes, 1e-12)
    if (worst := int(np.argmax(share))) >= 0 and share[worst] > NOT_OF_THIS:
        told.append(
            f"the model leaves {100.0 * share[worst]:.0f} % of what the force of leg {worst + 1} changes unexplained: "
            "these are not the forces of this machine, or something else pushes it"
        )
    values = after.spikes / max(after.rows * len(share), 1)
    if values > OUTLIERS:
        told.append(f"{100.0 * values:.0f} % of the values are outliers")
    if abs(found.delay_s) >= 0.99 * fit.MOST_DELAY_S:
        told.append(f"forces and positions are more than {1e3 * fit.MOST_DELAY_S:g} ms apart")
    if not found.determined.any():
        told.append("the data determine no parameter: the motion excites too little")
    if not after.all_rms_n <= step.before.all_rms_n:
        told.append(
            f"the identified model is further from the forces than the machine file: {after.all_rms_n:.3g} N instead "
            f"of {step.before.all_rms_n:.3g} N"
        )
    return told


def _notes(step: Step, survey: measurements.Survey) -> list[str]:
    """What was done about imperfect data."""
    found, notes = step.fit, list[str]()
    if abs(found.delay_s) > max(WORTH_TELLING_S, 4.0 * found.delay_error_s):
        later = "later" if found.delay_s > 0.0 else "earlier"
        notes.append(
            f"forces are {1e3 * abs(found.delay_s):.2f} ± {1e3 * found.delay_error_s:.2f} ms {later} than positions: "
            "corrected"
        )
    if found.outliers:
        notes.append(f"{found.outliers} outliers replaced by the model")
    for i, expected in enumerate(step.problem.zero_n.tolist()):
        zero, error = float(found.zero_n[i]), float(found.zero_error_n[i])
        if abs(zero) > max(WORTH_TELLING * expected, 4.0 * error):
            notes.append(
                f"{measurements.READINGS[step.side]} {i + 1} reads {abs(zero):.1f} ± {error:.1f} N too "
                f"{'much' if zero > 0.0 else 'little'}: corrected"
            )
    for i in range(len(survey.invalid)):
        for share, what in (
            (survey.invalid[i], "without a valid value"),
            (survey.saturated[i], "at the end of its range"),
        ):
            if share > 0.0:
                notes.append(f"leg {i + 1}: {100.0 * share:.2g} % of the rows {what}, left out")
    if step.counts.repeated:
        notes.append(f"{step.counts.repeated} rows with a PLC cycle that was there before left out")
    if step.physical.bodies:
        notes.append(
            f"no body has the numbers identified for {', '.join(step.physical.bodies)}: the nearest that a body can "
            f"have are {step.physical.moved:.1f} standard errors away"
        )
    return notes
