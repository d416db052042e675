"""What `pkm identify` says: tables and one sentence."""

import math
from typing import TextIO

import numpy as np

from controller.identification import measurements
from controller.identification.base_parameters import base_names
from controller.identification.identify import Identification, Step
from controller.records import Array
from controller.units import unit_of

QUIET = 0.02  # of the residual: smaller noise is none
NAME_TOLERANCE = 1e-3  # of a scaled coefficient of a base parameter: what is smaller is left out of its name


def verdict(found: Identification) -> str:
    """One sentence."""
    if not found.passed:
        return f"FAIL: {'; '.join(found.complaints) or 'nothing was identified'}"
    step = found.steps[0]
    after, noise = step.after.all_rms_n, _noise_n(step)
    limit = float(np.mean(measurements.limits_n(step.problem.machine, step.side)))
    of_range = f" ({100.0 * after / limit:.3f} % of the range)" if math.isfinite(limit) else ""
    data = "fresh" if step.fresh else "its own"
    over = f", {after / noise:.2f} times the noise of {noise:.3g} N" if noise > QUIET * after else ""
    return (
        f"PASS: the identified model is {after:.3g} N{of_range} off {data} data{over}; the machine file"
        f"{' with the friction of its own motion' if found.friction else ''} was {step.before.all_rms_n:.3g} N off; "
        f"{np.count_nonzero(step.fit.determined)} of {len(step.fit.beta)} parameters are determined"
    )


def report(found: Identification, out: TextIO) -> None:
    """Tables and the verdict."""
    lines = list[str]()
    for step in found.steps:
        lines += [*_about(step), "", *_parameters(step), "", *_legs(step), ""]
    if (rubs := found.friction) is not None:
        lines.append(
            f"friction by turns at constant rates and a sine (Guo et al.), held: dry {rubs.dry_n:.2f} ± "
            f"{rubs.dry_error_n:.2f} N, viscous {rubs.viscous:.1f} ± {rubs.viscous_error:.1f} N s/m"
        )
    lines += [f"note: {note}" for note in found.notes]
    print("\n".join([*lines, verdict(found)]), file=out)


def _about(step: Step) -> list[str]:
    found, counts = step.fit, step.counts
    repeats = [f"mean of {count} repeats" for count in step.periods if count]
    return [
        f"{step.problem.machine.name}: {len(found.beta)} base parameters of {len(step.problem.parameters.names)} from "
        f"{step.side}; gap of the singular values {step.problem.base.gap:.1e}",
        f"{counts.rows} rows in {counts.stretches} stretches"
        + (f", {', '.join(repeats)}" if repeats else "")
        + f"; {counts.edges} at their ends, {found.resting} at rest left out; {found.taken} filtered values of "
        f"{found.instants} instants taken, {found.passes} passes",
        f"directions that the data know better than the file: {np.count_nonzero(found.strengths > 1.0)} of "
        f"{len(found.strengths)} (delay and zeros included), by factors {_factors(found.strengths)}",
    ]


def _factors(strengths: Array) -> str:
    return " ".join(f"{value:.3g}" for value in strengths)


def parameter_names(step: Step) -> list[str]:
    """Names of the base parameters."""
    return base_names(step.problem.base, step.problem.parameters.names, NAME_TOLERANCE)


def _parameters(step: Step) -> list[str]:
    found, problem, texts = step.fit, step.problem, parameter_names(step)
    lines = [f"{'value':>12}{'std. error':>12}{'file':>12}  {'unit':<12}{'determined':<12}parameter"]
    chosen = [problem.parameters.names[int(column)] for column in problem.base.columns]
    for k, (name, text) in enumerate(zip(chosen, texts, strict=True)):
        lines.append(
            f"{found.beta[k]:12.5g}{found.error[k]:12.2g}{problem.prior[k]:12.5g}  {unit_of(name) or '1':<12}"
            f"{'yes' if found.determined[k] else 'no':<12}{text}"
        )
    scale = found.error[:, None] * found.error
    correlation = np.abs(found.covariance / scale) - np.eye(len(scale))
    i, j = np.unravel_index(int(np.argmax(correlation)), correlation.shape)
    if len(scale) > 1:
        lines.append(f"strongest correlation {correlation[i, j]:.3f}: {chosen[int(i)]} and {chosen[int(j)]}")
    return lines


def _legs(step: Step) -> list[str]:
    limits = measurements.limits_n(step.problem.machine, step.side)
    data = "fresh data" if step.fresh else "the same data"
    lines = [
        f"residual on {data}, {step.after.rows} rows in motion, as measured; noise: the scatter of the repeats, or "
        "what the filter takes away",
        f"{'leg':<5}{'file rms N':>12}{'rms N':>10}{'mean abs N':>12}{'% of range':>12}{'noise N':>10}"
        f"{'rms/noise':>11}{'zero error N':>18}",
    ]
    for i in range(len(limits)):
        rms, noise = step.after.rms_n[i], step.fit.noise_n[i]
        share = f"{100.0 * rms / limits[i]:.3f}" if math.isfinite(limits[i]) else "–"
        lines.append(
            f"{i + 1:<5}{step.before.rms_n[i]:12.3f}{rms:10.3f}{step.after.mean_abs_n[i]:12.3f}{share:>12}{noise:10.3f}"
            f"{_over(rms, noise)}{_zero(step, i):>18}"
        )
    noise = _noise_n(step)
    lines.append(
        f"{'all':<5}{step.before.all_rms_n:12.3f}{step.after.all_rms_n:10.3f}{step.after.all_mean_abs_n:12.3f}{'':>12}"
        f"{noise:10.3f}{_over(step.after.all_rms_n, noise)}"
    )
    return lines


def _noise_n(step: Step) -> float:
    """Of all legs together, rms."""
    return float(np.sqrt(np.mean(step.fit.noise_n**2)))


def _zero(step: Step, i: int) -> str:
    found = step.fit
    return f"{found.zero_n[i]:.2f} ± {found.zero_error_n[i]:.2f}" if len(step.problem.zero_n) else "–"


def _over(rms: float, noise: float) -> str:
    return f"{rms / noise:11.3f}" if noise > QUIET * rms else f"{'–':>11}"
