"""`pkm plot`: what one looks at first in a recording, as one figure.

A long recording is drawn as the envelope of its values, so memory and time for drawing do not grow with it.
"""

from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.errors import ConfigurationError
from controller.gateway.events import code_name
from controller.recording import blocks, description, events, glance, parts
from controller.records import POSE, Array, Mode
from controller.safety.faults import FAULTS, Effect

POINTS = 2500  # along the time axis, about as many as the figure has pixels
MODE_COLOURS = {
    Mode.OFF: "#d9d9d9", Mode.READY: "#a6cee3", Mode.ACTIVE: "#b2df8a", Mode.STOPPING: "#fdd0a2",
    Mode.FAULT: "#ef6548", Mode.HOMING: "#cab2d6",
}  # fmt: skip
LEG_COLOURS = ("#1f77b4", "#d95f02", "#1b9e77", "#984ea3", "#666666", "#e7298a")
MOST_LABELS = 12  # more would cover each other


class Curves(NamedTuple):
    """Columns over time, a bucket of rows a point."""

    t_s: Array  # (k,)
    low: dict[str, Array]  # (k,) smallest of each bucket, NaN left out where there are others
    high: dict[str, Array]  # (k,)
    last: dict[str, Array]  # (k,) of codes, bit sets and counters, of which the extremes mean nothing


def plot(path: Path, target: Path | None = None) -> Path:
    """Draw a recording into `target` (PNG, PDF, SVG by its ending); the file written.

    Raises:
        ConfigurationError: with the sentence for the user.
    """
    target = target or Path(parts(path)[0].with_suffix(".png").name if parts(path) else "recording.png")
    try:
        import_module("matplotlib")
    except ImportError:
        raise ConfigurationError('plots need matplotlib: pip install "pkm-controller[report]"') from None
    if target.suffix not in (".png", ".pdf", ".svg"):
        raise ConfigurationError(f"{target}: found the ending {target.suffix!r}, expected .png, .pdf or .svg")
    try:
        figure = _figure(path)
        figure.savefig(target, dpi=110)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    except OSError as error:
        raise ConfigurationError(str(error) if error.strerror is None else f"{target}: {error.strerror}") from None
    return target


def curves(path: Path, names: Sequence[str], whole: Sequence[str], points: int = POINTS) -> Curves:
    """Columns in buckets, about `points` of them; of those in `whole` the last value of each bucket.

    FileNotFoundError; ValueError if it is not a recording, has no rows or no such column.
    """
    size = max(1, sum(glance(part).rows for part in parts(path)) // points)
    wanted = ["t_s", *dict.fromkeys([*names, *whole])]
    low, high, last = list[Array](), list[Array](), list[Array]()
    rest = np.empty((0, len(wanted)))
    for block in blocks(path, wanted):
        rows = np.concatenate([rest, block.rows])
        full = len(rows) // size * size
        if full:
            _reduce(rows[:full].reshape(-1, size, len(wanted)), low, high, last)
        rest = rows[full:]
    if len(rest):
        _reduce(rest[None], low, high, last)
    if not low:
        raise ValueError(f"{path}: there are no rows in this recording")
    found = [np.concatenate(pieces) for pieces in (low, high, last)]
    columns = [{name: table[:, k] for k, name in enumerate(wanted)} for table in found]
    return Curves(columns[2]["t_s"], *columns)


def _reduce(buckets: NDArray[np.float64], low: list[Array], high: list[Array], last: list[Array]) -> None:
    low.append(np.fmin.reduce(buckets, axis=1))
    high.append(np.fmax.reduce(buckets, axis=1))
    last.append(buckets[:, -1])


def _figure(path: Path) -> Any:
    meta = description(path)
    columns = [str(channel[0]) for channel in meta["channels"]]
    legs = range(1, int(meta["legs"]) + 1)
    cells = [f"cell_{i}_n" for i in legs if f"cell_{i}_n" in columns]
    errors = [f"following_error_{i}_m" for i in legs]
    drives, models = [f"drive_{i}_n" for i in legs], [f"model_{i}_n" for i in legs]
    model_cells = [name.replace("cell", "model_cell") for name in cells]
    residuals = [f"residual_{i}_n" for i in legs]
    timing = ["lateness_s", "cycle_s", "exchange_s", "age_s"]
    references = [f"reference_{name}" for name in POSE]
    names = [*POSE, *references, *errors, *drives, *models, *cells, *model_cells, *residuals, *timing]
    found = curves(path, names, ["mode", "faults", "skipped", "dropped", "link"])
    heights = [0.25, 1.3, 1.3, 1.1, 1.6, *([1.6] if cells else []), 1.1, 1.2]
    figure: Any = import_module("matplotlib.figure").Figure(figsize=(13.0, 2.35 + 1.55 * sum(heights)))
    axes = figure.subplots(len(heights), 1, sharex=True, gridspec_kw={"height_ratios": heights, "hspace": 0.12})
    strip, position, angle, lag, *force, residual, health = axes
    _modes(strip, found)
    _poses(position, found, POSE[:3], "position, m")
    _poses(angle, found, POSE[3:], "orientation, rad")
    for i, name in zip(legs, errors, strict=True):
        _curve(lag, found, name, LEG_COLOURS[i - 1], f"leg {i}", scale=1e3)
        _curve(residual, found, f"residual_{i}_n", LEG_COLOURS[i - 1], f"leg {i}")
    lag.set_ylabel("following error, mm")
    residual.set_ylabel("measured - model, N")
    _forces(force[0], found, drives, models, "drive force, N")
    if cells:
        _forces(force[1], found, cells, model_cells, "load cell, N")
    _health(health, found, float(meta["rate_hz"]))
    strip.set_xlim(found.t_s[0], found.t_s[-1] + 1e-3)
    _events(axes, path, float(meta["started_unix_s"]))
    for axis in axes[1:]:
        axis.grid(color="0.9", linewidth=0.6)
        axis.legend(loc="upper left", bbox_to_anchor=(1.005, 1.02), fontsize=8, frameon=False, borderaxespad=0.0)
        axis.yaxis.set_label_coords(-0.062, 0.5)
    axes[-1].set_xlabel("t_s, s")
    figure.suptitle(_title(path, meta), x=0.08, y=0.998, ha="left", va="top", fontsize=10)
    figure.subplots_adjust(left=0.08, right=0.88, bottom=0.045, top=1.0 - 1.3 / figure.get_figheight())
    return figure


def _title(path: Path, meta: dict[str, Any]) -> str:
    told = [glance(part) for part in parts(path)]
    rows = sum(part.rows for part in told)
    flight = f", flight recording: {meta['cause']}" if meta.get("kind") == "flight" else ""
    return f"{path.name}{flight}\n{rows} rows at {meta['rate_hz']:g} Hz, version {meta.get('version', '?')}"


def _curve(
    axis: Any, found: Curves, name: str, colour: str, label: str, scale: float = 1.0, offset: float = 0.0
) -> None:
    """One column: a line, or a band where many rows share a point."""
    low, high = scale * found.low[name] - offset, scale * found.high[name] - offset
    axis.plot(found.t_s, (low + high) / 2.0, color=colour, linewidth=0.9, label=label)
    if not np.array_equal(low, high, equal_nan=True):
        axis.fill_between(found.t_s, low, high, color=colour, alpha=0.35, linewidth=0.0)


def _wanted(axis: Any, found: Curves, name: str, colour: str, offset: float = 0.0) -> None:
    """What a column should be: broad and pale behind it."""
    middle = (found.low[name] + found.high[name]) / 2.0 - offset
    axis.plot(found.t_s, middle, color=colour, linewidth=4.0, alpha=0.3, solid_capstyle="butt")


def _modes(axis: Any, found: Curves) -> None:
    """A strip in the colour of the mode, with its name where there is room."""
    mode, t_s = found.last["mode"], found.t_s
    starts = [0, *(np.flatnonzero(np.diff(mode)) + 1), len(mode) - 1]
    for first, last in pairwise(starts):
        name = code_name(Mode, mode[first])
        colour = {kind.name: colour for kind, colour in MODE_COLOURS.items()}.get(name, "white")
        axis.axvspan(t_s[first], t_s[last], color=colour, linewidth=0.0)
        if t_s[last] - t_s[first] > 0.045 * (t_s[-1] - t_s[0]):
            axis.text((t_s[first] + t_s[last]) / 2.0, 0.5, name, ha="center", va="center", fontsize=8)
    axis.set_yticks([])
    axis.set_ylim(0.0, 1.0)
    axis.set_ylabel("mode", rotation=0, ha="right", va="center")
    axis.tick_params(bottom=False)


def _poses(axis: Any, found: Curves, names: Sequence[str], label: str) -> None:
    """Three coordinates and their references; one far from the others is moved towards them, and says by how much."""
    spans = [(np.nanmin(found.low[name]), np.nanmax(found.high[name])) for name in names]
    widest = max(1e-3, *(high - low for low, high in spans))
    for name, colour, (low, high) in zip(names, LEG_COLOURS, spans, strict=False):
        middle = round((low + high) / 2.0, 2)
        offset = middle if abs(middle) > 2.0 * widest else 0.0
        _wanted(axis, found, f"reference_{name}", colour, offset)
        moved = f" {-offset:+.2f}" if offset else ""
        _curve(axis, found, name, colour, name.rsplit("_", 1)[0] + moved, offset=offset)
    axis.plot([], [], color="0.5", linewidth=4.0, alpha=0.4, label="reference")
    axis.set_ylabel(label)


def _forces(axis: Any, found: Curves, measured: Sequence[str], models: Sequence[str], label: str) -> None:
    for i, (name, model) in enumerate(zip(measured, models, strict=True)):
        number = name.split("_")[1]
        _wanted(axis, found, model, LEG_COLOURS[i])
        _curve(axis, found, name, LEG_COLOURS[i], f"leg {number}")
    axis.plot([], [], color="0.5", linewidth=4.0, alpha=0.4, label="model")
    axis.set_ylabel(label)


def _health(axis: Any, found: Curves, rate_hz: float) -> None:
    """Times of the loop on a logarithmic axis, and marks where deadlines were skipped or commands dropped."""
    for name, colour in zip(("lateness_s", "cycle_s", "exchange_s", "age_s"), LEG_COLOURS, strict=False):
        high = np.where(found.high[name] > 0.0, found.high[name], np.nan)
        axis.plot(found.t_s, 1e3 * np.minimum(high, 10.0), color=colour, linewidth=0.8, label=name.removesuffix("_s"))
    axis.axhline(1e3 / rate_hz, color="0.4", linewidth=0.8, linestyle="--", label="period")
    for name, marker in (("skipped", "v"), ("dropped", "x")):
        at = np.flatnonzero(np.diff(found.last[name], prepend=found.last[name][0]) > 0)
        if len(at):
            axis.plot(found.t_s[at], np.full(len(at), 1e3 / rate_hz), marker, color="#e31a1c", ms=5, label=name)
    axis.set_yscale("log")
    axis.set_ylabel("loop and link, ms")


def _events(axes: Any, path: Path, started_unix_s: float) -> None:
    """Lines through all pictures for faults, thin ones for limits and refused requests; faults by name on top."""
    effects = {str(fault.name): row.effect for fault, row in FAULTS.items()}
    labels = list[tuple[float, str]]()
    for event in events(path):
        t_s, kind, code = float(event["t"]) - started_unix_s, event["kind"], str(event["code"])
        if kind == "fault_set":
            severe = effects.get(code, Effect.TRIP) is not Effect.WARN
            colour, width = ("#e31a1c", 1.1) if severe else ("#ff7f00", 0.9)
            labels.append((t_s, code))
        elif kind == "limit_entered":
            colour, width = "#ff7f00", 0.5
        elif kind == "recording" or (kind == "request" and code not in ("ACCEPTED", "NOT_READY")):
            colour, width = "#6a3d9a", 0.6
            labels.append((t_s, code))
        else:
            continue
        for axis in axes:
            axis.axvline(t_s, color=colour, linewidth=width, alpha=0.7)
    for t_s, code in _apart(labels, axes[0]):
        axes[0].annotate(
            code, (t_s, 1.0), xytext=(0, 3), textcoords="offset points", rotation=25, fontsize=7, ha="left", va="bottom"
        )  # fmt: skip


def _apart(labels: Sequence[tuple[float, str]], axis: Any) -> list[tuple[float, str]]:
    """Labels that do not cover each other: those close together joined, too many counted."""
    low, high = axis.get_xlim()
    joined = list[tuple[float, str]]()
    for t_s, code in labels:
        if joined and t_s - joined[-1][0] < 0.05 * (high - low):
            at_s, names = joined[-1]
            if code not in names and not names.endswith("…"):
                joined[-1] = (at_s, f"{names}, {code}" if len(names) + len(code) < 30 else f"{names} …")
        else:
            joined.append((t_s, code))
    if len(joined) > MOST_LABELS:
        return [*joined[: MOST_LABELS - 1], (joined[-1][0], f"… {len(joined)} events in all")]
    return joined
