"""`pkm legs`, `pkm pose`, `pkm forces`: CSV in, CSV out, in the columns of docs/commands.md.

Everything is read and computed before the first byte is written: bad input leaves standard output empty.
"""

import csv
import math
from collections.abc import Iterable, Sequence
from typing import TextIO

import numpy as np

from controller import schema
from controller.errors import ConfigurationError
from controller.mechanism import dynamics, kinematics
from controller.mechanism.model import build, home_pose
from controller.records import POSE, Array

WRENCH = ("fx_n", "fy_n", "fz_n", "mx_nm", "my_nm", "mz_nm")
RATES = tuple(f"{name}_s" for name in POSE)
ACCELERATIONS = tuple(f"{name}_s2" for name in POSE)


class Table:
    """A CSV file with a header line, columns picked by name.

    Raises:
        ConfigurationError: naming line and column.
    """

    def __init__(self, source: Iterable[str]) -> None:
        reader = csv.reader(source)
        self._header = [name.strip() for name in next(reader, list[str]())]
        if not self._header:
            raise ConfigurationError("line 1: empty input, expected a header line with column names")
        for name in self._header:
            if self._header.count(name) > 1:
                raise ConfigurationError(f"line 1: column {name} stands there twice")
        self._rows: list[tuple[int, list[str]]] = []
        for row in reader:
            if not row:
                continue
            if len(row) != len(self._header):
                raise ConfigurationError(
                    f"line {reader.line_num}: found {len(row)} values, expected {len(self._header)} as in the header"
                )
            self._rows.append((reader.line_num, row))

    def __contains__(self, name: str) -> bool:
        return name in self._header

    def numbers(self, names: Sequence[str], default: float | None = None) -> Array:
        """The columns as (rows, len(names)); a column that is not there is an error or `default` throughout."""
        result = np.empty((len(self._rows), len(names)))
        for j, name in enumerate(names):
            if name not in self._header:
                if default is None:
                    raise ConfigurationError(f"line 1: column {name} is missing")
                result[:, j] = default
                continue
            at = self._header.index(name)
            for i, (line, row) in enumerate(self._rows):
                result[i, j] = _number(row[at], line, name)
        return result

    def time(self) -> list[tuple[str, list[str]]]:
        """The column t_s as it stands, to be passed through; nothing when it is not there."""
        if "t_s" not in self._header:
            return []
        at = self._header.index("t_s")
        return [("t_s", [row[at] for _, row in self._rows])]


def legs(machine: schema.Machine, source: Iterable[str], target: TextIO) -> None:
    """Poses (rates and accelerations optional) to leg lengths and their derivatives."""
    table = Table(source)
    x = table.numbers(POSE)
    q, qd, qdd = _leg_rates(machine, x, table.numbers(RATES, 0.0), table.numbers(ACCELERATIONS, 0.0))
    columns = [column for i in range(q.shape[1]) for column in _leg_columns(i, q, qd, qdd)]
    _write(target, table.time() + columns)


def forces(machine: schema.Machine, source: Iterable[str], target: TextIO) -> None:
    """Motion and external wrench (optional) to actuator forces and load-cell forces."""
    table = Table(source)
    x, xd, xdd = table.numbers(POSE), table.numbers(RATES), table.numbers(ACCELERATIONS)
    f, f_cell = np.empty((2, len(x), len(machine.leg)))
    dynamics.inverse_dynamics_batch(build(machine), x, xd, xdd, table.numbers(WRENCH, 0.0), f, f_cell)
    bad = np.flatnonzero(~np.isfinite(f).all(axis=1))
    if len(bad):
        raise ConfigurationError(
            f"row {bad[0] + 1} of the data: the mechanism is singular at this pose, no forces exist"
        )
    n = len(machine.leg)
    columns = [(f"force_{i + 1}_n", _texts(f[:, i])) for i in range(n)]
    fitted = [i for i in range(n) if machine.leg[i].cell or machine.legs.cell]
    columns += [(f"cell_{i + 1}_n", _texts(f_cell[:, i])) for i in fitted]
    _write(target, table.time() + columns)


def pose(machine: schema.Machine, source: Iterable[str], target: TextIO) -> None:
    """Leg lengths to pose, iterations, residual and condition number; each row starts from the last one's pose."""
    table = Table(source)
    n = len(machine.leg)
    lengths = table.numbers([f"length_{i + 1}_m" for i in range(n)])
    model, home = build(machine), home_pose(machine)
    x, xd, guess = np.empty((len(lengths), 6)), np.empty(6), home
    extra = np.empty((len(lengths), 3))
    for k, q in enumerate(lengths):
        iterations = kinematics.forward(model, q, guess, x[k])
        if iterations < 0:
            iterations = kinematics.forward(model, q, home, x[k])
        if iterations < 0:
            raise ConfigurationError(f"row {k + 1} of the data: no pose near home has these leg lengths")
        residual = kinematics.platform_rate(model, x[k], q, np.zeros(n), xd)
        extra[k] = iterations, residual, kinematics.condition(model, x[k])
        guess = x[k]
    columns = [(name, _texts(x[:, j])) for j, name in enumerate(POSE)]
    columns.append(("iterations", [str(int(count)) for count in extra[:, 0]]))
    columns += [("residual_m", _texts(extra[:, 1])), ("condition", _texts(extra[:, 2]))]
    _write(target, table.time() + columns)


def _leg_rates(machine: schema.Machine, x: Array, xd: Array, xdd: Array) -> Array:
    result = np.empty((3, len(x), len(machine.leg)))
    kinematics.leg_rates_batch(build(machine), x, xd, xdd, *result)
    return result


def _leg_columns(i: int, q: Array, qd: Array, qdd: Array) -> list[tuple[str, list[str]]]:
    name = f"length_{i + 1}_m"
    return [(name, _texts(q[:, i])), (f"{name}_s", _texts(qd[:, i])), (f"{name}_s2", _texts(qdd[:, i]))]


def _number(text: str, line: int, column: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ConfigurationError(f"line {line}, column {column}: found {text!r}, expected a number") from None
    if not math.isfinite(value):
        raise ConfigurationError(f"line {line}, column {column}: found {text.strip()}, expected a finite number")
    return value


def _texts(values: Array) -> list[str]:
    return [repr(value) for value in values.tolist()]  # the shortest text that reads back to the same bits


def _write(target: TextIO, columns: list[tuple[str, list[str]]]) -> None:
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(name for name, _ in columns)
    writer.writerows(zip(*(values for _, values in columns), strict=True))
