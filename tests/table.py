"""What the fault cases found, as the table that `pytest --table` prints at the end."""

import math
from typing import NamedTuple


class Line(NamedTuple):
    """One case."""

    injected: str
    where: str
    detected_ms: float
    effect: str
    stopped: bool
    recovered: str
    lost: int
    faults: list[str]


_LINES: list[Line] = []


def note(line: Line) -> None:
    """Keep a line for the table."""
    _LINES.append(line)


def table() -> list[str]:
    """The lines, as text in columns."""
    rows = [("injected", "at", "detected ms", "effect", "motion stopped", "recovered", "samples lost", "faults")]
    rows += [_cells(line) for line in _LINES]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [text[0], "-" * len(text[0]), *text[1:], f"{len(_LINES)} cases"]


def _cells(line: Line) -> tuple[str, ...]:
    seen = "–" if math.isnan(line.detected_ms) else f"{line.detected_ms:.0f}"
    stopped = "yes" if line.stopped else "no"
    return (
        line.injected, line.where, seen, line.effect, stopped, line.recovered, str(line.lost), " ".join(line.faults),
    )  # fmt: skip
