"""What was measured: from recordings or from tables in the columns of docs/reference/commands.md; and is it any good.

Which forces tell: load cells, chamber pressures, or what the drives say they put into the axes.
"""

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from controller import recording, schema
from controller.errors import ConfigurationError
from controller.identification.signals import Flags, Rows, Source
from controller.mechanism import kinematics
from controller.mechanism.model import build, home_pose
from controller.records import POSE, Array, Link, Quality
from controller.settings import parse

Side = Literal["cells", "pressures", "drives"]
SIDES: tuple[Side, ...] = ("cells", "pressures", "drives")
TABLE_ROWS = 4096  # read at once
AT_LIMIT = 0.999  # of a sensor's range: more than this may be anything
SATURATED = 0.05  # of the rows of a channel that may be at its limit
INVALID = 0.5  # of the rows of a channel that may have no valid value
MOVED_M = 1e-3  # a leg that goes less than this way tells nothing
STEADY = 1e-9  # of its range: a channel that varies less is dead
EQUAL = 1e-9  # likewise of the difference of two channels
# Of a cell's capacity, of a cylinder's largest force, how far its zero may be off, one standard deviation: what a tare
# leaves, what half a per cent of a transmitter's range makes of the force
ZERO_SHARE = 0.01
READINGS: dict[Side, str] = {"cells": "load cell", "pressures": "pressure force", "drives": "drive force"}


# ---------------------------------------------------------------- reading


def side_of(machine: schema.Machine, path: Path, names: set[str], asked: Side | None) -> Side:
    """The forces to use: those asked for, or the first of cells, pressures and drives that are there.

    Raises:
        ConfigurationError: if they are not there.
    """
    n = len(machine.leg)
    there: list[Side] = [side for side in SIDES if any(set(columns) <= names for columns in _forces(machine, side, n))]
    if asked and asked not in there:
        wanted = " or ".join(columns[0] for columns in _forces(machine, asked, n))
        raise ConfigurationError(
            f"{path}: found no columns {wanted} …" if wanted else f"--forces: {machine.name} has no {asked}"
        )
    if not there:
        wanted = [columns[0] for side in SIDES for columns in _forces(machine, side, n)]
        raise ConfigurationError(f"{path}: found no measured forces, expected columns {' or '.join(wanted)} …")
    return asked or there[0]


def _forces(machine: schema.Machine, side: Side, n: int) -> list[list[str]]:
    """Columns that hold these forces, any one list of which will do; none where the machine cannot have them."""
    legs = [schema.effective_leg(machine, i) for i in range(n)]

    def each(*patterns: str) -> list[str]:
        return [pattern.format(i) for pattern in patterns for i in range(1, n + 1)]

    if side == "cells":
        return [each("cell_{}_n")] if all(leg.cell for leg in legs) else []
    if side == "pressures":
        hydraulic = all(isinstance(leg.drive, schema.HydraulicDrive) for leg in legs)
        return [each("head_pressure_{}_pa", "rod_pressure_{}_pa")] if hydraulic else []
    screws = all(isinstance(leg.drive, schema.ScrewDrive) for leg in legs)
    return [each("drive_{}_n"), *([each("torque_{}_nm")] if screws else []), each("force_{}_n")]


def names_of(path: Path) -> set[str]:
    """Names of the columns of a recording or table.

    Raises:
        ConfigurationError: if it is neither.
    """
    return set(_header(path)) if _is_table(path) else {str(channel[0]) for channel in _description(path)["channels"]}


def source(machine: schema.Machine, path: Path, side: Side) -> Source:
    """The rows of a recording or table, as often as they are asked for.

    Raises:
        ConfigurationError: naming file, line or column; or the other machine that a recording is of.
    """
    if not _is_table(path):
        _require_same_machine(machine, path)
    return lambda: _table_rows(machine, path, side) if _is_table(path) else _recording_rows(machine, path, side)


def _is_table(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


def _description(path: Path) -> dict[str, Any]:
    try:
        return recording.description(path)
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such recording") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(str(error)) from None


def _require_same_machine(machine: schema.Machine, path: Path) -> None:
    text = str(_description(path).get("machine_toml", ""))
    other = parse(text, schema.Machine, path) if text else machine
    if other.name != machine.name or len(other.leg) != len(machine.leg):
        raise ConfigurationError(
            f"{path}: this is a recording of the machine {other.name!r}, expected one of {machine.name!r}"
        )


def _recording_rows(machine: schema.Machine, path: Path, side: Side) -> Iterator[Rows]:
    n, names = len(machine.leg), names_of(path)
    forces = next(columns for columns in _forces(machine, side, n) if set(columns) <= names)
    axes = [f"length_{i}_m" for i in range(1, n + 1)]
    quality = [f"{name.rsplit('_', 1)[0]}_quality" for name in forces] if side != "drives" else []
    columns = ["t_s", "age_s", "plc_cycle", "link", "drives_enabled", "axes_homed", *axes, *forces, *quality]
    width = len(forces)
    for block in recording.blocks(path, columns):
        rows = block.rows
        running = (rows[:, 3] == Link.UP) & (rows[:, 4] == 1.0) & (rows[:, 5] == 1.0)
        good = rows[:, 6 + n + width :] == Quality.GOOD if quality else np.full((len(rows), width), True)
        yield _rows(
            machine, side, forces, rows[running, 0] - rows[running, 1], rows[running, 2],
            np.ascontiguousarray(rows[running, 6 : 6 + n]), rows[running, 6 + n : 6 + n + width], good[running],
        )  # fmt: skip


def _rows(
    machine: schema.Machine, side: Side, names: list[str], t_s: Array, cycle: Array, axes: Array, raw: Array,
    good: Flags,
) -> Rows:  # fmt: skip
    """Forces of the legs from what the columns hold; what is at the end of its range is not valid."""
    n = len(machine.leg)
    legs = [schema.effective_leg(machine, i) for i in range(n)]
    valid = good & np.isfinite(raw)
    if side == "pressures":
        head, ring = np.array([_areas(leg.drive) for leg in legs]).T
        force, valid = raw[:, :n] * head - raw[:, n:] * ring, valid[:, :n] & valid[:, n:]
    elif names[0] == "torque_1_nm":
        force = raw * np.array([turns_per_m(leg.drive) for leg in legs])
    else:
        force = raw
    return Rows(t_s, cycle, axes, force, valid & (np.abs(force) < AT_LIMIT * limits_n(machine, side)))


def limits_n(machine: schema.Machine, side: Side) -> Array:
    """Largest force that each leg's cell, cylinder or motor shows (n,)."""
    legs = [schema.effective_leg(machine, i) for i in range(len(machine.leg))]
    if side == "cells":
        return np.array([leg.cell.capacity_n if leg.cell else math.inf for leg in legs])
    if side == "drives":
        return np.array([
            leg.drive.peak_torque_nm * turns_per_m(leg.drive) if isinstance(leg.drive, schema.ScrewDrive) else math.inf
            for leg in legs
        ])  # fmt: skip
    return np.full(len(legs), math.inf)


def zeros_n(machine: schema.Machine, side: Side) -> Array | None:
    """How far each leg's zero may be off (n,); None: drives compute their forces, and have no zero."""
    if side == "drives":
        return None
    legs = [schema.effective_leg(machine, i) for i in range(len(machine.leg))]
    return ZERO_SHARE * (limits_n(machine, side) if side == "cells" else np.array([leg.limits.force_n for leg in legs]))


def turns_per_m(drive: schema.Drive) -> float:
    """Motor angle (rad) over axis travel (m), and axis force over motor torque."""
    return 2.0 * math.pi * drive.gear_ratio / drive.lead_m if isinstance(drive, schema.ScrewDrive) else 1.0


def _areas(drive: schema.Drive) -> tuple[float, float]:
    """Areas of piston and ring, m2."""
    if not isinstance(drive, schema.HydraulicDrive):
        return 0.0, 0.0
    head = 0.25 * math.pi * drive.piston_diameter_m**2
    return head, head - 0.25 * math.pi * drive.rod_diameter_m**2


def _header(path: Path) -> list[str]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            names = [name.strip() for name in next(csv.reader(file), list[str]())]
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise ConfigurationError(f"{path}: not a table in UTF-8") from None
    if not names:
        raise ConfigurationError(f"{path}: line 1: empty input, expected a header line with column names")
    return names


def _table_rows(machine: schema.Machine, path: Path, side: Side) -> Iterator[Rows]:
    n, header = len(machine.leg), _header(path)
    forces = next(columns for columns in _forces(machine, side, n) if set(columns) <= set(header))
    lengths, motors = [f"length_{i}_m" for i in range(1, n + 1)], [f"motor_{i}_rad" for i in range(1, n + 1)]
    model = build(machine)
    twisting = schema.effective_leg(machine, 0).kind == "UHU"
    places = motors if set(motors) <= set(header) else lengths if not twisting else list(POSE)
    if not set(places) <= set(header):
        places = list(POSE)
    home, twist = np.empty(n), np.zeros(n)
    kinematics.leg_lengths(model, home_pose(machine), home)
    for table in _numbers(path, header, ["t_s", *places, *forces], optional=set(forces)):
        given = np.ascontiguousarray(table[:, 1 : 1 + len(places)])
        if places == motors:
            axes = home + given / np.array([turns_per_m(schema.effective_leg(machine, i).drive) for i in range(n)])
        elif places == lengths:
            axes = given
        else:
            axes, rates, still = np.empty((len(given), n)), np.empty((2, n)), np.zeros(6)
            for k, x in enumerate(given):
                kinematics.axis_rates(model, x, still, still, twist, axes[k], rates[0], rates[1])
        raw = table[:, 1 + len(places) :]
        nothing = np.full(len(table), math.nan)
        yield _rows(machine, side, forces, table[:, 0], nothing, axes, raw, np.isfinite(raw))


def _numbers(path: Path, header: list[str], names: list[str], optional: set[str]) -> Iterator[Array]:
    """The columns of a table in pieces of TABLE_ROWS; an empty field of `optional` columns is NaN.

    Raises:
        ConfigurationError: naming line and column.
    """
    if missing := [name for name in names if header.count(name) != 1]:
        raise ConfigurationError(
            f"{path}: line 1: column {missing[0]}: found {header.count(missing[0])} of it, expected one"
        )
    at, rows = [(header.index(name), name) for name in names], list[list[float]]()
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file, strict=True)
        next(reader)
        try:
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise ConfigurationError(
                        f"{path}: line {reader.line_num}: found {len(row)} values, expected {len(header)}"
                    )
                rows.append([_number(row[k], path, reader.line_num, name, name in optional) for k, name in at])
                if len(rows) == TABLE_ROWS:
                    yield np.array(rows)
                    rows = []
        except (csv.Error, UnicodeDecodeError):
            raise ConfigurationError(f"{path}: line {reader.line_num + 1}: no line of a CSV file") from None
    if rows:
        yield np.array(rows)


def _number(text: str, path: Path, line: int, name: str, optional: bool) -> float:
    text = text.strip()
    if optional and text.lower() in ("", "nan"):
        return math.nan
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigurationError(f"{path}: line {line}, column {name}: found {text[:60]!r}, expected a finite number")
    return value


# ---------------------------------------------------------------- is it any good


class Survey(NamedTuple):
    """What a look at all rows finds, (n,) each."""

    rows: int
    low_n: Array
    high_n: Array
    invalid: Array  # share of rows
    saturated: Array  # share of rows
    twins: list[tuple[int, int]]  # legs, from 0, whose forces are the same numbers
    way_m: Array  # between the ends of what each axis did


def survey(machine: schema.Machine, side: Side, sources: list[Source]) -> Survey:
    """Look at all rows once."""
    n, limit = len(machine.leg), limits_n(machine, side)
    low, high, short, long = np.full(n, np.inf), np.full(n, -np.inf), np.full(n, np.inf), np.full(n, -np.inf)
    invalid, saturated, rows = np.zeros(n), np.zeros(n), 0
    apart = np.zeros((n, n))
    for one in sources:
        for block in one():
            if len(block.t_s) == 0:
                continue
            rows += len(block.t_s)
            at_limit = np.abs(block.force_n) >= AT_LIMIT * limit
            saturated += at_limit.sum(axis=0)
            invalid += (~block.valid & ~at_limit).sum(axis=0)
            force = np.where(block.valid | at_limit, block.force_n, np.nan)
            with np.errstate(invalid="ignore"):
                low, high = np.fmin(low, np.fmin.reduce(force)), np.fmax(high, np.fmax.reduce(force))
            for i in range(n):
                gap = np.abs(force - force[:, i : i + 1])
                apart[i] = np.fmax(apart[i], np.fmax.reduce(np.where(np.isfinite(gap), gap, 0.0)))
            short = np.fmin(short, np.fmin.reduce(block.axes_m))
            long = np.fmax(long, np.fmax.reduce(block.axes_m))
    scale = max(float(np.nanmax(np.where(np.isfinite(high - low), high - low, 0.0))), 1e-12) if rows else 1.0
    live = (high - low) > STEADY * scale
    twins = [(i, j) for i in range(n) for j in range(i) if live[i] and live[j] and apart[i, j] <= EQUAL * scale]
    count = max(rows, 1)
    return Survey(rows, low, high, invalid / count, saturated / count, twins, np.where(rows, long - short, 0.0))


def complaints(found: Survey, side: Side) -> list[str]:
    """What makes these measurements useless, a sentence each."""
    what = READINGS[side]
    if found.rows == 0:
        return ["there is no row with the drives on and the link up"]
    told = [
        f"{what} {j + 1} and {what} {i + 1} show the same numbers: one of them is connected twice"
        for i, j in found.twins
    ]
    for i in range(len(found.low_n)):
        name = f"{what} {i + 1}"
        if found.invalid[i] > INVALID:
            told.append(f"{name} has no valid value in {100.0 * found.invalid[i]:.0f} % of the rows")
        elif found.saturated[i] > SATURATED:
            told.append(f"{name} is at the end of its range in {100.0 * found.saturated[i]:.0f} % of the rows")
        elif not found.high_n[i] - found.low_n[i] > 0.0:
            told.append(f"{name} is dead: it shows {found.low_n[i]:.6g} N throughout")
    if not found.way_m.max() > MOVED_M:
        told.append(
            f"the machine is at rest throughout: no axis goes further than {1e3 * found.way_m.max():.2g} mm, and "
            "forces at rest do not tell masses from zero errors"
        )
    return told
