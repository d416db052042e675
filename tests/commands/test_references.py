"""The reference states of every machine file through the command line, and the poses that it refuses."""

import csv
import io
import re
from collections.abc import Callable

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from controller.mechanism import layout
from controller.mechanism.model import build
from controller.mechanism.platform import from_tilt_and_torsion
from controller.records import POSE
from controller.settings import load_machine
from tests.machines import MACHINES, ROOT
from tests.shell import pkm, refused

NAMES = ("6-upru", "6-upru-unequal-legs", "6-ups", "6-uhu", "3-ups-s", "2-upr-2-rpu")
TILT = ("azimuth_rad", "tilt_rad", "torsion_rad")
SUFFIXES = ("", "_s", "_s2")
MOTION = [f"{name}{suffix}" for name in POSE for suffix in SUFFIXES]
WRENCH = ["fx_n", "fy_n", "fz_n", "mx_nm", "my_nm", "mz_nm"]

Columns = dict[str, np.ndarray]


def read(text: str) -> Columns:
    header, *rows = csv.reader(io.StringIO(text))
    return dict(zip(header, np.array(rows, dtype=float).T, strict=True))


def written(columns: Columns) -> str:
    """A CSV whose numbers read back to the same bits."""
    lines = [",".join(map(repr, row)) for row in np.column_stack(list(columns.values())).tolist()]
    return "\n".join([",".join(columns), *lines]) + "\n"


def reference(name: str) -> Columns:
    return read((ROOT / "tests" / "data" / "reference" / f"{name}.csv").read_text())


def pick(table: Columns, names: list[str]) -> Columns:
    return {name: table[name] for name in names if name in table}


def run(command: str, name: str, given: Columns) -> Columns:
    result = pkm(command, MACHINES / f"{name}.toml", given=written(given))
    assert (result.code, result.err) == (0, "")
    answer = read(result.out)
    assert all(len(values) == len(next(iter(given.values()))) for values in answer.values())
    return answer


def kind_of(column: str) -> str:
    """length_3_m_s -> length_#_m_s: columns that share a scale. Poses stand for themselves."""
    return re.sub(r"_\d+_", "_#_", column)


def compare(found: Columns, right: Columns) -> None:
    """Lengths and their derivatives to 1e-10, everything else to 1e-9 of the largest in its kind of column."""
    largest: dict[str, float] = {}
    for name, values in right.items():
        largest[kind_of(name)] = max(largest.get(kind_of(name), 0.0), float(np.abs(values).max()))
    for name, values in right.items():
        part = 1e-10 if name.startswith("length") else 1e-9
        # a coordinate that the platform does not have is 0 throughout: compared with 1 m or 1 rad
        scale = largest[kind_of(name)] or 1.0
        np.testing.assert_allclose(found[name], values, rtol=0, atol=part * scale, err_msg=name)


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_of_the_reference_comes_out_of_the_command_line(name: str) -> None:
    table = reference(name)
    assert len(table["t_s"]) == 100
    given = pick(table, ["t_s", *MOTION, *WRENCH])
    lengths, forces = run("legs", name, given), run("forces", name, given)
    assert (lengths["t_s"] == table["t_s"]).all()
    assert (forces["t_s"] == table["t_s"]).all()
    answers = {column: values for column, values in table.items() if column not in given}
    assert len(answers) >= 4 * len(load_machine(MACHINES / f"{name}.toml")[0].leg)
    assert answers.keys() <= lengths.keys() | forces.keys()
    assert not (lengths.keys() & forces.keys()) - {"t_s"}
    compare(lengths | forces, answers)


@pytest.mark.parametrize(
    ("name", "column"), [*((name, "length_{}_m") for name in NAMES), ("6-uhu", "motor_{}_rad")]
)  # fmt: skip
def test_pose_of_every_reference_state(name: str, column: str) -> None:
    table = reference(name)
    legs = len(load_machine(MACHINES / f"{name}.toml")[0].leg)
    found = run("pose", name, pick(table, ["t_s", *(column.format(i + 1) for i in range(legs))]))
    compare(found, pick(table, list(POSE)))
    assert found["iterations"].max() <= 8
    assert found["residual_m"].max() < 1e-12
    assert (found["condition"] >= 1.0).all()
    assert np.isfinite(found["condition"]).all()


def test_motor_angles_go_before_lengths_which_they_make_superfluous() -> None:
    table = reference("6-uhu")
    motors = pick(table, [f"motor_{i}_rad" for i in range(1, 7)])
    nonsense = {f"length_{i}_m": np.zeros(100) for i in range(1, 7)}
    assert (run("pose", "6-uhu", nonsense | motors)["z_m"] == run("pose", "6-uhu", motors)["z_m"]).all()


# ---------------------------------------------------------------- tilt and torsion


def steady_turn(t: float) -> np.ndarray:
    """Azimuth, tilt, torsion that stay away from zero tilt."""
    return np.array([0.7 + 1.1 * t, 0.25 + 0.1 * np.sin(2.0 * t), 0.5 + 0.2 * np.sin(3.0 * t)])


def through_level(t: float) -> np.ndarray:
    """Tilt changes its sign at t = 0, while azimuth and torsion turn: yaw, pitch and roll have all derivatives."""
    return np.array([0.4 + 0.9 * t + 0.3 * t * t, 0.6 * t + 0.4 * t * t, 0.5 + 0.3 * np.sin(2.0 * t)])


def level(t: float) -> np.ndarray:
    """No tilt at all: azimuth means nothing, whatever its rate."""
    return np.array([2.0 * t, 0.0, 0.55 + 0.2 * np.sin(t)])


def rotation(a: np.ndarray) -> Rotation:
    """R = Rz(azimuth) Ry(tilt) Rz(torsion - azimuth), by scipy."""
    return Rotation.from_euler("ZYZ", [a[0], a[1], a[2] - a[0]])


def derivatives(path: Callable[[float], np.ndarray], t: float, h: float = 5e-3) -> np.ndarray:
    """Value, rate and acceleration (3, n) by central differences of order six."""
    values = np.array([path(t + k * h) for k in range(-3, 4)])
    rate = np.array([-1, 9, -45, 0, 45, -9, 1]) @ values / (60 * h)
    acceleration = np.array([2, -27, 270, -490, 270, -27, 2]) @ values / (180 * h * h)
    return np.array([values[3], rate, acceleration])


TIMES = np.linspace(-0.3, 0.3, 13)  # with t = 0
PATHS = (steady_turn, through_level, level)


@pytest.mark.parametrize("path", PATHS)
def test_tilt_and_torsion_are_the_rotation_they_stand_for(path: Callable[[float], np.ndarray]) -> None:
    for t in TIMES:
        given = derivatives(path, t)
        x, xd, xdd = np.zeros((3, 6))
        from_tilt_and_torsion(*given, x, xd, xdd)
        np.testing.assert_allclose(
            Rotation.from_euler("ZYX", x[3:]).as_matrix(), rotation(given[0]).as_matrix(), rtol=0, atol=1e-15
        )
        # yaw, pitch and roll are smooth on these paths, so their differences are derivatives
        right = derivatives(lambda s: rotation(path(s)).as_euler("ZYX"), t)
        for found, expected, tolerance in zip((x, xd, xdd), right, (1e-14, 1e-10, 1e-8), strict=True):
            np.testing.assert_allclose(found[3:], expected, rtol=0, atol=tolerance)
        assert (np.array([x, xd, xdd])[:, :3] == 0.0).all()


@pytest.mark.parametrize("command", ["legs", "forces"])
@pytest.mark.parametrize("path", PATHS)
def test_tilt_and_torsion_give_what_yaw_pitch_and_roll_give(path: Callable[[float], np.ndarray], command: str) -> None:
    """The other columns by finite differences of scipy's angles: to their accuracy the same answers."""
    tilts = np.array([derivatives(path, t) for t in TIMES])
    euler = np.array([derivatives(lambda s: rotation(path(s)).as_euler("ZYX"), t) for t in TIMES])
    one, other, load = {}, {}, {name: np.linspace(-40.0, 60.0, len(TIMES)) for name in WRENCH[3:]}
    for k, suffix in enumerate(SUFFIXES):
        one |= {f"{name}{suffix}": tilts[:, k, j] for j, name in enumerate(TILT)}
        other |= {f"{name}{suffix}": np.zeros(len(TIMES)) for name in POSE[:3]}
        other |= {f"{name}{suffix}": euler[:, k, j] for j, name in enumerate(POSE[3:])}
    left, right = run(command, "3-ups-s", one | load), run(command, "3-ups-s", other | load)
    assert left.keys() == right.keys()
    for name, values in right.items():
        np.testing.assert_allclose(left[name], values, rtol=0, atol=1e-8 * max(1.0, np.abs(values).max()))


def test_tilt_and_torsion_without_derivatives_are_at_rest() -> None:
    angles = {name: np.array([0.3, -0.2]) for name in TILT}
    zero = {f"{name}{suffix}": np.zeros(2) for name in TILT for suffix in SUFFIXES[1:]}
    found = run("legs", "3-ups-s", angles)
    assert all((found[name] == values).all() for name, values in run("legs", "3-ups-s", angles | zero).items())
    assert all((found[f"length_{i}_m_s"] == 0.0).all() for i in (1, 2, 3))
    refused(pkm("forces", MACHINES / "3-ups-s.toml", given=written(angles)), 2, "azimuth_rad_s", "missing")


# ---------------------------------------------------------------- off the manifold


def pose_of(name: str) -> np.ndarray:
    """A pose the platform can have, away from home: no rotation at all would hide much."""
    if name == "3-ups-s":
        return np.array([0.0, 0.0, 0.0, 0.5, 0.2, -0.1])
    z, a, b = 0.46, 0.15, -0.2
    turn = Rotation.from_euler("XY", [a, b])
    return np.array([0.0, -z * np.sin(a), z * np.cos(a), *turn.as_euler("ZYX")])


# what the fixed point, or o = (0, -z sin a, z cos a) and R = Rx(a) Ry(b), does not leave free; y alone it does in part
FORBIDDEN = [("3-ups-s", column) for column in POSE[:3]] + [("2-upr-2-rpu", column) for column in ("x_m", "y_m")]


@pytest.mark.parametrize("command", ["legs", "forces"])
@pytest.mark.parametrize(("name", "column"), [*FORBIDDEN, ("2-upr-2-rpu", "yaw_rad")])
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_pose_the_platform_cannot_have(name: str, column: str, side: float, command: str) -> None:
    """2 µm or µrad off is refused with the line, 0.5 is taken for rounding of what wrote the file."""
    for off, accepted in ((2e-6, False), (0.5e-6, True)):
        rows = np.tile(pose_of(name), (4, 1))
        rows[2, POSE.index(column)] += side * off
        table = {key: np.zeros(4) for key in MOTION} | dict(zip(POSE, rows.T, strict=True))
        result = pkm(command, MACHINES / f"{name}.toml", given=written(table))
        if accepted:
            assert result.code == 0, result.err
        else:
            refused(result, 2, "line 4", "cannot move like this", "expected at most 1")


def test_redundant_lengths_that_contradict_each_other_are_refused_with_their_line() -> None:
    table = pick(reference("2-upr-2-rpu"), [f"length_{i}_m" for i in (1, 2, 3, 4)])
    table["length_2_m"][56] += 1e-4
    refused(pkm("pose", MACHINES / "2-upr-2-rpu.toml", given=written(table)), 2, "line 58", "contradict")


def test_all_kinds_of_platform_are_here() -> None:
    kinds = {build(load_machine(MACHINES / f"{name}.toml")[0]).platform[layout.KIND] for name in NAMES}
    assert kinds == {layout.FREE, layout.SPHERICAL, layout.PLANE_TILT}
