"""`pkm legs`, `pkm pose`, `pkm forces`: CSV in, CSV out, in the columns of docs/reference/commands.md.

Everything is read and computed before the first byte is written: bad input leaves standard output empty.
"""

import csv
import math
import re
import reprlib
from collections.abc import Iterable, Sequence
from typing import TextIO

import numpy as np

from controller import schema
from controller.errors import ConfigurationError
from controller.mechanism import dynamics, kinematics, layout, platform, posture
from controller.mechanism.layout import Mechanism
from controller.mechanism.model import build, home_pose
from controller.records import POSE, Array

RESIDUAL_M = 1e-6  # lengths of more legs than freedoms must agree to this
MANIFOLD = 1e-6  # m or rad, likewise of rates and accelerations
TILT_AND_TORSION = ("azimuth_rad", "tilt_rad", "torsion_rad")
# what Python takes for a number besides, such as 1_0, is none in a table
_FLOAT = r"([+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?|nan))"
# np.float64(0.5) is how NumPy 2 prints a scalar of its own, and so it stands in many a file
_NUMBER = re.compile(rf"{_FLOAT}|np\.float64\({_FLOAT}\)", re.ASCII | re.IGNORECASE)
_SHORT = reprlib.Repr()
_SHORT.maxstring = 60
WRENCH = ("fx_n", "fy_n", "fz_n", "mx_nm", "my_nm", "mz_nm")
RATES = tuple(f"{name}_s" for name in POSE)
ACCELERATIONS = tuple(f"{name}_s2" for name in POSE)


class Table:
    """A CSV file with a header line, columns picked by name.

    Raises:
        ConfigurationError: naming line and column.
    """

    def __init__(self, source: Iterable[str]) -> None:
        reader = csv.reader(source, strict=True)
        try:
            lines = [(reader.line_num, row) for row in reader]
        except csv.Error as error:
            raise ConfigurationError(f"line {reader.line_num}: no line of a CSV file, {error}") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"line {reader.line_num + 1} or later: not text in UTF-8") from None
        self._header = [name.strip() for name in lines[0][1]] if lines else list[str]()
        if not self._header:
            raise ConfigurationError("line 1: empty input, expected a header line with column names")
        for name in self._header:
            if self._header.count(name) > 1:
                raise ConfigurationError(f"line 1: column {_SHORT.repr(name)} stands there twice")
        self._rows = [(line, row) for line, row in lines[1:] if row]
        for line, row in self._rows:
            if len(row) != len(self._header):
                raise ConfigurationError(
                    f"line {line}: found {len(row)} values, expected {len(self._header)} as in the header"
                )

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

    def line(self, row: int) -> int:
        """Line number of a row of the data."""
        return self._rows[row][0]

    def time(self) -> list[tuple[str, list[str]]]:
        """The column t_s as it stands, to be passed through; nothing when it is not there."""
        if "t_s" not in self._header:
            return []
        at = self._header.index("t_s")
        return [("t_s", [row[at] for _, row in self._rows])]


def legs(machine: schema.Machine, source: Iterable[str], target: TextIO) -> None:
    """Poses (rates and accelerations optional) to leg lengths, screw twist and motor coordinates."""
    table, model = Table(source), build(machine)
    motion = _motion(table, model, 0.0)
    shape = (len(motion[0]), len(machine.leg))
    l, ld, ldd = np.empty((3, *shape))  # noqa: E741
    kinematics.leg_rates_batch(model, *motion, l, ld, ldd)
    names = [f"length_{i + 1}_m" for i in range(shape[1])]
    columns = [
        (f"{name}{suffix}", _texts(values[:, i]))
        for i, name in enumerate(names)
        for suffix, values in (("", l), ("_s", ld), ("_s2", ldd))
    ]
    _write(target, table, columns + _motor_columns(machine, model, motion))


def forces(machine: schema.Machine, source: Iterable[str], target: TextIO) -> None:
    """Motion and external wrench (optional) to actuator forces or motor torques, load cells, lateral reactions."""
    table, model, n = Table(source), build(machine), len(machine.leg)
    motion = _motion(table, model, None)
    f, f_cell = np.empty((2, len(motion[0]), n))
    dynamics.inverse_dynamics_batch(model, *motion, table.numbers(WRENCH, 0.0), f, f_cell)
    bad = np.flatnonzero(~np.isfinite(f).all(axis=1))
    if len(bad):
        raise ConfigurationError(f"line {table.line(bad[0])}: the mechanism is singular at this pose, no forces exist")
    columns: list[tuple[str, list[str]]] = []
    for i in range(n):
        per_metre = model.legs[i, layout.MOTOR_RAD_M]
        if per_metre:
            columns.append((f"torque_{i + 1}_nm", _texts(f[:, i] / per_metre)))
        else:
            columns.append((f"force_{i + 1}_n", _texts(f[:, i])))
    columns += [(f"cell_{i + 1}_n", _texts(f_cell[:, i])) for i in range(n) if schema.effective_leg(machine, i).cell]
    if all(schema.effective_leg(machine, i).kind in ("UPS", "UPRU") for i in range(n)):
        columns += _lateral_columns(model, motion)
    _write(target, table, columns)


def pose(machine: schema.Machine, source: Iterable[str], target: TextIO) -> None:
    """Leg lengths or motor angles to pose, iterations, residual and condition number.

    Each row starts from the pose of the last one, and from home if that does not lead to a pose.
    """
    table, model, home = Table(source), build(machine), home_pose(machine)
    q = _axis_positions(table, machine, model)
    n = q.shape[1]
    x, xd, guess, twist = np.empty((len(q), 6)), np.empty(6), home, np.zeros(n)
    extra = np.empty((len(q), 3))
    for k, axes in enumerate(q):
        iterations = kinematics.forward(model, axes, guess, twist, x[k])
        if iterations < 0:
            twist[:] = 0.0
            iterations = kinematics.forward(model, axes, home, twist, x[k])
        if iterations <= -kinematics.WRONG_BRANCH:
            raise ConfigurationError(
                f"line {table.line(k)}: these leg lengths lead to a pose beyond a singular one, in which the machine "
                "would have to be assembled differently"
            )
        if iterations < 0:
            raise ConfigurationError(f"line {table.line(k)}: no pose near home has these leg lengths")
        residual = kinematics.platform_rate(model, x[k], twist, axes, np.zeros(len(machine.leg)), xd)
        if residual > RESIDUAL_M:
            raise ConfigurationError(
                f"line {table.line(k)}: these leg lengths contradict each other by {1e3 * residual:.3g} mm"
            )
        extra[k] = iterations, residual, posture.condition(model, x[k])
        guess = x[k]
    columns = [(name, _texts(x[:, j])) for j, name in enumerate(POSE)]
    columns.append(("iterations", [str(int(count)) for count in extra[:, 0]]))
    columns += [("residual_m", _texts(extra[:, 1])), ("condition", _texts(extra[:, 2]))]
    _write(target, table, columns)


Motion = tuple[Array, Array, Array]


def _motion(table: "Table", model: Mechanism, default: float | None) -> Motion:
    """Pose, rates and accelerations; a spherical platform may give azimuth, tilt and torsion. `default` for a column
    of a derivative that is not there; without it that is an error.

    Raises:
        ConfigurationError: naming the line whose pose the platform cannot have.
    """
    if model.platform[layout.KIND] == layout.SPHERICAL and TILT_AND_TORSION[0] in table:
        given = [
            table.numbers([f"{name}{suffix}" for name in TILT_AND_TORSION], default if suffix else None)
            for suffix in ("", "_s", "_s2")
        ]
        x, xd, xdd = np.zeros((3, len(given[0]), 6))
        x[:, :3] = model.platform[layout.HOME : layout.HOME + 3]
        for k in range(len(x)):
            platform.from_tilt_and_torsion(given[0][k], given[1][k], given[2][k], x[k], xd[k], xdd[k])
        return x, xd, xdd
    x, xd, xdd = table.numbers(POSE), table.numbers(RATES, default), table.numbers(ACCELERATIONS, default)
    for k in range(len(x)):
        off = platform.off_manifold(model.platform, x[k], xd[k], xdd[k])
        if off > MANIFOLD:
            raise ConfigurationError(
                f"line {table.line(k)}: this platform cannot move like this, it is {1e6 * off:.3g} µm or µrad off "
                f"in pose, rate or acceleration; expected at most {1e6 * MANIFOLD:g}"
            )
    return x, xd, xdd


def _motor_columns(machine: schema.Machine, model: Mechanism, motion: Motion) -> list[tuple[str, list[str]]]:
    """Twist and motor coordinates of the legs whose screw turns with the twist; the twist goes on from row to row."""
    n = len(machine.leg)
    coupled = [i for i in range(n) if model.legs[i, layout.SCREW]]
    if not coupled:
        return []
    x, xd, xdd = motion
    q, qd, qdd, twist = np.zeros((4, len(x), n))
    for k in range(len(q)):
        twist[k] = twist[k - 1] if k else 0.0
        kinematics.axis_rates(model, x[k], xd[k], xdd[k], twist[k], q[k], qd[k], qdd[k])
    home = _home_lengths(machine, model)
    columns: list[tuple[str, list[str]]] = []
    for i in coupled:
        per_metre = model.legs[i, layout.MOTOR_RAD_M]
        name = f"motor_{i + 1}_rad"
        columns.append((f"twist_{i + 1}_rad", _texts(twist[:, i])))
        columns.append((name, _texts((q[:, i] - home[i]) * per_metre)))
        columns += [(f"{name}_s", _texts(qd[:, i] * per_metre)), (f"{name}_s2", _texts(qdd[:, i] * per_metre))]
    return columns


def _lateral_columns(model: Mechanism, motion: Motion) -> list[tuple[str, list[str]]]:
    n = len(model.legs)
    force, moment = np.empty((2, len(motion[0]), 2 * n))
    dynamics.lateral_batch(model, *motion, force, moment)
    return [
        (f"{what}_{axis}_{i + 1}_{unit}", _texts(values[:, 2 * i + k]))
        for i in range(n)
        for what, unit, values in (("lateral", "n", force), ("moment", "nm", moment))
        for k, axis in enumerate("xy")
    ]


def _axis_positions(table: "Table", machine: schema.Machine, model: Mechanism) -> Array:
    """Axis positions from motor angles where the table has them and a screw makes the difference, else from lengths."""
    n = len(machine.leg)
    motors = [f"motor_{i + 1}_rad" for i in range(n)]
    if model.legs[0, layout.SCREW] and motors[0] in table:
        return _home_lengths(machine, model) + table.numbers(motors) / model.legs[:, layout.MOTOR_RAD_M]
    if model.legs[0, layout.SCREW]:
        model.legs[:, layout.SCREW] = 0.0  # lengths are given: the axis that is solved for is the length itself
    return table.numbers([f"length_{i + 1}_m" for i in range(n)])


def _home_lengths(machine: schema.Machine, model: Mechanism) -> Array:
    lengths = np.empty(len(machine.leg))
    kinematics.leg_lengths(model, home_pose(machine), lengths)
    return lengths


def _number(text: str, line: int, column: str) -> float:
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(f"line {line}, column {column}: found {_SHORT.repr(text)}, expected a number")
    value = float(found[1] or found[2])
    if not math.isfinite(value):
        raise ConfigurationError(f"line {line}, column {column}: found {text.strip()[:60]}, expected a finite number")
    return value


def _texts(values: Array) -> list[str]:
    return [repr(value) for value in values.tolist()]  # the shortest text that reads back to the same bits


def _write(target: TextIO, table: Table, columns: list[tuple[str, list[str]]]) -> None:
    for name, values in columns:
        for row, text in enumerate(values):
            if text in ("nan", "inf", "-inf"):
                raise ConfigurationError(
                    f"line {table.line(row)}: {name} comes out as {text}, the numbers are too large"
                )
    columns = table.time() + columns
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(name for name, _ in columns)
    writer.writerows(zip(*(values for _, values in columns), strict=True))
