"""The report of an identification: one HTML file with tables and pictures, which needs nothing else."""

import base64
import html
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from controller.errors import ConfigurationError
from controller.identification import measurements, signals
from controller.identification.identify import Identification, Options, Step
from controller.identification.new_file import write_new
from controller.identification.summary import parameter_names, report, verdict
from controller.records import Array

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1c2330 }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
.verdict { padding: .8rem 1rem; border-left: .4rem solid; background: #f4f6f8 }
.pass { border-color: #2e7d32 } .fail { border-color: #c62828 }
pre { font: 12px/1.45 ui-monospace, monospace; background: #f4f6f8; padding: 1rem; overflow-x: auto }
img { max-width: 100% } figcaption { color: #55606e; margin-bottom: 1rem }
"""
MEASURED, BEFORE, AFTER = "#1c2330", "#d9822b", "#1f6fb2"  # apart in lightness too, for whoever sees no colours
SHOWN_S = 12.0  # of force over time
NOT_TOLD = "#b9c1cb"


def write_report(found: Identification, options: Options, target: Path) -> None:
    """Write it.

    Raises:
        ConfigurationError: if matplotlib is not installed, there is such a file already, or it cannot be written.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError("--report needs matplotlib: pip install 'pkm-controller[report]'") from None
    untyped: Any = mpl
    parts = list[str]()
    with untyped.rc_context({"font.size": 8, "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True}):
        for step in found.steps:
            parts.append(f"<h2>{html.escape(step.problem.machine.name)}: {step.side}</h2>")
            for draw, size, caption in PICTURES:
                figure = Figure(figsize=size, layout="constrained")
                draw(figure, step)
                parts.append(_figure(figure, caption.format(data="fresh data" if step.fresh else "the same data")))
    text = io.StringIO()
    report(found, text)
    state = "pass" if found.passed else "fail"
    files = ", ".join(path.name for path in options.recordings)
    judged = f"; judged with {', '.join(path.name for path in options.fresh)}" if options.fresh else ""
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(found.machine.name)}: identification</title><style>{STYLE}</style></head><body>"
        f"<h1>{html.escape(found.machine.name)}: identification</h1>"
        f'<p class="verdict {state}">{html.escape(verdict(found))}</p>'
        f"<p>From {html.escape(files + judged)}.</p>"
        f"{''.join(parts)}<h2>Tables</h2><pre>{html.escape(text.getvalue())}</pre></body></html>\n"
    )
    write_new(target, page)


def _figure(figure: Any, caption: str) -> str:
    store = io.BytesIO()
    figure.savefig(store, format="png", dpi=130)
    picture = base64.b64encode(store.getvalue()).decode()
    return (
        f'<figure><img src="data:image/png;base64,{picture}" alt="{html.escape(caption)}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def _grid(figure: Any, n: int) -> Any:
    return figure.subplots(-(-n // 2), 2, sharex=True, squeeze=False).ravel()[:n]


def _forces(figure: Any, step: Step) -> None:
    trace, n = step.trace, step.trace.measured_n.shape[1]
    shown = trace.t_s <= trace.t_s[0] + SHOWN_S
    axes = _grid(figure, n)
    for i, ax in enumerate(axes):
        for values, colour, width, label in (
            (trace.measured_n, MEASURED, 1.8, "measured"),
            (trace.before_n, BEFORE, 0.9, "machine file"),
            (trace.after_n, AFTER, 0.9, "identified"),
        ):
            ax.plot(trace.t_s[shown], values[shown, i], color=colour, lw=width, label=label)
        ax.set_ylabel(f"leg {i + 1}, N")
    for ax in axes[-2:]:
        ax.set_xlabel("time, s")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)


def _residuals(figure: Any, step: Step) -> None:
    trace, n = step.trace, step.trace.measured_n.shape[1]
    axes = _grid(figure, n)
    for i, ax in enumerate(axes):
        ax.plot(trace.t_s, trace.measured_n[:, i] - trace.before_n[:, i], color=BEFORE, lw=0.6, label="machine file")
        ax.plot(trace.t_s, trace.measured_n[:, i] - trace.after_n[:, i], color=AFTER, lw=0.6, label="identified")
        ax.set_ylabel(f"leg {i + 1}, N")
    for ax in axes[-2:]:
        ax.set_xlabel("time, s")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)


def _spectrum(figure: Any, step: Step) -> None:
    trace = step.trace
    ax = figure.subplots()
    pace_s = float(np.median(np.diff(trace.t_s)))
    for values, colour, label in (
        (trace.measured_n, MEASURED, "measured force"),
        (trace.measured_n - trace.before_n, BEFORE, "residual of the machine file"),
        (trace.measured_n - trace.after_n, AFTER, "residual of the identified model"),
    ):
        f, density = _density(values, pace_s)
        ax.loglog(f[1:], density[1:], color=colour, lw=1.0, label=label)
    noise = float(np.mean(step.fit.noise_n**2)) * 2.0 * pace_s
    if noise > 0.0:
        ax.axhline(np.sqrt(noise), color=NOT_TOLD, ls="--", lw=1.0, label="noise of a single reading")
    ax.set_xlabel("frequency, Hz")
    ax.set_ylabel("N/√Hz, mean of the legs")
    ax.legend()


def _density(values: Array, pace_s: float) -> tuple[Array, Array]:
    """Amplitude density of the columns' mean power, by overlapping pieces."""
    filled = np.where(np.isfinite(values), values, np.nanmean(values, axis=0))
    f, power = signals.signal.welch(filled, 1.0 / pace_s, nperseg=min(1024, len(filled)), axis=0)
    return f, np.sqrt(power.mean(axis=1))


def _parameters(figure: Any, step: Step) -> None:
    """What the data changed, in units of what the file leaves open, with the interval of 95 %."""
    fit, problem = step.fit, step.problem
    ax = figure.subplots()
    open_ = np.sqrt(np.diagonal(problem.open_))
    change, error = (fit.beta - problem.prior) / open_, 1.96 * fit.error / open_
    rows = np.arange(len(change))[::-1]
    for told, colour, label in ((True, AFTER, "determined"), (False, NOT_TOLD, "not determined by the data")):
        at = fit.determined == told
        if at.any():
            ax.errorbar(change[at], rows[at], xerr=error[at], fmt="o", ms=3.5, lw=1.4, color=colour, label=label)
    ax.axvline(0.0, color=BEFORE, lw=1.0, label="machine file")
    ax.set_yticks(rows, [_short(name) for name in parameter_names(step)])
    ax.set_xlabel("change against the file, over the standard deviation of what the file leaves open; bars: 95 %")
    if np.abs(change).max() > 5.0:
        ax.set_xscale("symlog", linthresh=1.0)
        ax.xaxis.set_major_formatter("{x:g}")
    ax.legend(loc="best")


def _short(name: str) -> str:
    return name if len(name) <= 46 else f"{name[:44].rsplit(' ', 1)[0].rstrip(' +-')} …"


def _before_after(figure: Any, step: Step) -> None:
    n = len(step.after.rms_n)
    ax = figure.subplots()
    x = np.arange(n)
    for k, (values, colour, label) in enumerate(
        (
            (step.before.rms_n, BEFORE, "machine file"),
            (step.after.rms_n, AFTER, "identified"),
            (step.written.rms_n, MEASURED, "new machine file"),
        )
    ):
        bars = ax.bar(x + 0.27 * (k - 1), values, 0.25, color=colour, label=label)
        ax.bar_label(bars, fmt="%.3g", fontsize=6)
    noise = step.fit.noise_n
    if noise.max() > 0.02 * step.after.rms_n.max():
        ax.plot(x, noise, "_", ms=22, color="#c62828", label="noise")
    limits = measurements.limits_n(step.problem.machine, step.side)
    ax.set_xticks(x, [f"leg {i + 1}" for i in range(n)])
    ax.set_yscale("log")
    ax.set_ylabel("rms of the residual, N" + (f" (range {limits[0]:.0f} N)" if np.isfinite(limits[0]) else ""))
    ax.legend()


def _correlation(figure: Any, step: Step) -> None:
    fit = step.fit
    ax = figure.subplots()
    shown = ax.imshow(fit.covariance / np.outer(fit.error, fit.error), vmin=-1.0, vmax=1.0, cmap="RdBu_r")
    names = [_short(name) for name in parameter_names(step)]
    ax.set_xticks(range(len(names)), [str(k + 1) for k in range(len(names))])
    ax.set_yticks(range(len(names)), [f"{name}  {k + 1}" for k, name in enumerate(names)])
    ax.grid(visible=False)
    figure.colorbar(shown, ax=ax, shrink=0.7)


PICTURES: tuple[tuple[Callable[[Any, Step], None], tuple[float, float], str], ...] = (
    (_before_after, (7.5, 3.2), "Residual of each leg on {data}, before and after."),
    (_forces, (9.0, 5.5), "Forces on {data}."),
    (_residuals, (9.0, 5.5), "Measured minus modelled force on {data}."),
    (_spectrum, (7.5, 3.6), "Spectrum on {data}."),
    (_parameters, (9.0, 5.5), "Parameters and their errors."),
    (_correlation, (8.0, 5.5), "Correlation of the parameters' errors."),
)
