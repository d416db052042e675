"""Drawings of the machine files at home, from the side and from above: what the mechanism pages show."""

import io
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy.spatial import ConvexHull

from controller import schema
from controller.mechanism.model import home_pose
from controller.mechanism.platform import rotation

BASE, PLATFORM, LEG, AXIS, FRAME = "#5b6770", "#1f4e79", "#8a949b", "#b3541e", "#2e7d32"
MARK = {"U": "o", "S": "o", "R": "s"}  # an S joint is filled, U and R joints are not
VIEWS = (("side, from −y", 0, 2), ("top", 0, 1))
LYING = 0.02  # m: a pose of the platform whose joints are flatter than this is drawn as a line in the side view


def drawing(machine: schema.Machine) -> str:
    """Side and top view of a machine at home, as SVG."""
    style = {
        "svg.hashsalt": machine.name,
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.grid": True,
        "grid.alpha": 0.25,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(9.0, 4.4), layout="constrained")
        for axes, (title, across, up) in zip(figure.subplots(1, 2), VIEWS, strict=True):
            _view(axes, machine, across, up)
            axes.set(title=title, xlabel=f"{'xyz'[across]}, m", ylabel=f"{'xyz'[up]}, m", aspect="equal")
            axes.margins(0.12)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _view(axes: Any, machine: schema.Machine, across: int, up: int) -> None:
    home = home_pose(machine)
    o, R = home[:3], np.array(rotation(*home[3:]))
    base = np.array([leg.base_joint_m for leg in machine.leg])
    platform = o + np.array([leg.platform_joint_m for leg in machine.leg]) @ R.T
    size = float(np.ptp(base[:, :2]))
    for points, colour in ((base, BASE), (platform, PLATFORM)):
        _plate(axes, points[:, [across, up]], colour)
    for leg, B, b in zip(machine.leg, base, platform, strict=True):
        kind = leg.kind or machine.legs.kind
        middle = B + 0.58 * (b - B)
        axes.plot(*_flat(across, up, B, middle), color=LEG, lw=5, solid_capstyle="butt", zorder=2)  # cylinder
        axes.plot(*_flat(across, up, middle, b), color=LEG, lw=2, zorder=2)  # rod
        _axis(axes, across, up, B, np.array(leg.base_axis), size)
        _joint(axes, B[across], B[up], kind[0], BASE)
        if leg.platform_axis is not None:
            _axis(axes, across, up, b, R @ np.array(leg.platform_axis), size)
        _joint(
            axes, b[across], b[up], "S" if kind == "UPS" else "U" if kind in ("UPRU", "UHU", "RPU") else "R", PLATFORM
        )
        if kind == "UPRU":  # the passive joint, below the platform's
            r = B + 0.88 * (b - B)
            _joint(axes, r[across], r[up], "R", PLATFORM, size=4)
    if machine.platform.kind == "spherical":  # the column that carries the ball joint
        foot = np.array([o[0], o[1], float(base[:, 2].min())])
        axes.plot(*_flat(across, up, foot, o), color=BASE, lw=7, solid_capstyle="butt", zorder=1)
        axes.plot(o[across], o[up], "o", color=PLATFORM, ms=11, zorder=4)
    _numbers(axes, base[:, [across, up]], size)
    together = np.hypot(o[across], o[up]) < LYING  # seen along the line between them
    _frame(axes, across, up, np.zeros(3), np.eye(3), 0.16 * size, "O, o" if together else "O")
    _frame(axes, across, up, o, R, 0.16 * size, "" if together else "o")


def _numbers(axes: Any, feet: np.ndarray, size: float) -> None:
    """The numbers of the legs outside their feet; legs whose feet are one behind the other share a place."""
    left = list(range(len(feet)))
    while left:
        here = [i for i in left if np.linalg.norm(feet[i] - feet[left[0]]) < 0.05 * size]
        left = [i for i in left if i not in here]
        foot = feet[here].mean(axis=0)
        out = foot - feet.mean(axis=0)
        if np.ptp(feet[:, 1]) < 0.2 * size:  # seen from the side: below
            out = np.array([0.0, -1.0])
        place = foot + 0.10 * size * out / np.linalg.norm(out)
        axes.annotate(", ".join(str(i + 1) for i in here), place, ha="center", va="center", color=BASE)
        axes.plot(*place, alpha=0.0)  # the view makes room for it


def _flat(across: int, up: int, *points: np.ndarray) -> tuple[list[float], list[float]]:
    return [point[across] for point in points], [point[up] for point in points]


def _plate(axes: Any, points: np.ndarray, colour: str) -> None:
    if min(np.ptp(points, axis=0)) < LYING:  # seen from its edge
        ends = points[np.argsort(points[:, 0])][[0, -1]]
        axes.plot(ends[:, 0], ends[:, 1], color=colour, lw=4, solid_capstyle="round", zorder=1)
        return
    hull = points[ConvexHull(points).vertices]
    axes.fill(hull[:, 0], hull[:, 1], facecolor=colour, alpha=0.15, edgecolor=colour, lw=2, zorder=1)


def _joint(axes: Any, x: float, y: float, kind: str, colour: str, size: float = 7) -> None:
    face = colour if kind == "S" else "white"
    axes.plot(x, y, MARK[kind], ms=size, color=colour, markerfacecolor=face, markeredgewidth=1.6, zorder=3)


def _axis(axes: Any, across: int, up: int, at: np.ndarray, axis: np.ndarray, size: float) -> None:
    half = 0.06 * size * axis / np.linalg.norm(axis)
    axes.plot(*_flat(across, up, at - half, at + half), color=AXIS, lw=1.2, ls=(0, (3, 1.5)), zorder=2)


def _frame(axes: Any, across: int, up: int, o: np.ndarray, R: np.ndarray, length: float, name: str) -> None:
    for axis, letter in zip(R.T, "xyz", strict=True):
        tip = o + length * axis
        if np.hypot(tip[across] - o[across], tip[up] - o[up]) > 0.3 * length:
            axes.annotate(
                letter, (o[across], o[up]), (tip[across], tip[up]), color=FRAME, ha="center", va="center",
                arrowprops={"arrowstyle": "<-", "color": FRAME, "shrinkA": 2, "shrinkB": 0}, zorder=5,
            )  # fmt: skip
            axes.plot(tip[across], tip[up], alpha=0.0)
    axes.annotate(name, (o[across], o[up]), xytext=(-9, -9), textcoords="offset points", color=FRAME, zorder=5)
