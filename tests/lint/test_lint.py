"""What `pkm check` finds wrong with a machine: each mistake with its key, leg and figure, and no sound machine."""

import copy
import itertools
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from controller import schema
from controller.lint import geometry, structure
from controller.lint.geometry import lint
from tests.machines import MACHINES
from tests.oracles.machine import KINDS, machine_to_toml_dict, random_machine
from tests.shell import pkm, refused

NAMES = ("6-upru", "6-upru-unequal-legs", "6-ups", "6-uhu", "3-ups-s", "2-upr-2-rpu")
Data = dict[str, Any]


def load(name: str) -> Data:
    return tomllib.loads((MACHINES / f"{name}.toml").read_text())


def machine_of(data: Data) -> schema.Machine:
    return msgspec.convert(data, schema.Machine)


def found(data: Data, *words: str) -> list[str]:
    """The problems; one of them has all the words."""
    problems = lint(machine_of(data))
    assert any(all(word in problem for word in words) for problem in problems), problems
    return problems


def with_joints(name: str, base: np.ndarray, platform: np.ndarray) -> Data:
    data = load(name)
    for leg, B, b in zip(data["leg"], base.tolist(), platform.tolist(), strict=True):
        leg["base_joint_m"], leg["platform_joint_m"] = B, b
    return data


def hexagon(radius: float, angle_deg: float, turned_deg: float = 0.0) -> np.ndarray:
    at = [120.0 * (i // 2) + (-angle_deg if i % 2 == 0 else angle_deg) + turned_deg for i in range(6)]
    return np.array([[radius * np.cos(a), radius * np.sin(a), 0.0] for a in np.deg2rad(at)])


def exchanged(data: Data, i: int, j: int) -> Data:
    data = copy.deepcopy(data)
    a, b = data["leg"][i], data["leg"][j]
    a["platform_joint_m"], b["platform_joint_m"] = b["platform_joint_m"], a["platform_joint_m"]
    return data


def write(tmp_path: Path, data: Data) -> Path:
    """A machine file. What a mistake needs of TOML is also JSON: tables become inline tables."""

    def text(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key} = {text(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(text(item) for item in value) + "]"
        return json.dumps(value)

    path = tmp_path / "machine.toml"
    path.write_text("".join(f"{key} = {text(value)}\n" for key, value in data.items()))
    return path


# ---------------------------------------------------------------- sound machines


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wrong_with_the_machines_of_the_project(name: str) -> None:
    assert lint(machine_of(load(name))) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_written_machine_is_checked_as_it_stands(name: str, tmp_path: Path) -> None:
    """The writer of these tests loses nothing: a file without a mistake passes."""
    assert pkm("check", write(tmp_path, load(name))).code == 0


def apart_by_brute_force(a: np.ndarray, a_end: np.ndarray, b: np.ndarray, b_end: np.ndarray) -> float:
    """Smallest distance of a fine row of points on one segment from the other segment."""
    points = a + np.linspace(0.0, 1.0, 2001)[:, None] * (a_end - a)
    line = b_end - b
    share = np.clip((points - b) @ line / (line @ line), 0.0, 1.0)
    return float(np.linalg.norm(points - b - share[:, None] * line, axis=1).min())


def closest_legs_at_home(machine: schema.Machine) -> float:
    """Smallest distance of two legs in mean leg lengths; independent of the code under test."""
    home = machine.platform.home
    R = Rotation.from_euler("ZYX", [home.yaw_rad, home.pitch_rad, home.roll_rad]).as_matrix()
    o = np.array([home.x_m, home.y_m, home.z_m])
    ends = [(np.array(leg.base_joint_m), o + R @ leg.platform_joint_m) for leg in machine.leg]
    mean = np.mean([np.linalg.norm(b - B) for B, b in ends])
    return min(apart_by_brute_force(*p, *q) for p, q in itertools.combinations(ends, 2)) / float(mean)


def random_data(rng: np.random.Generator, kind: str) -> Data:
    data = machine_to_toml_dict(random_machine(rng, kind))
    for leg in data["leg"]:
        if "drive" in leg:
            leg["drive"].setdefault("kind", "screw")
    return data


@pytest.mark.parametrize("kind", KINDS)
def test_random_machines_pass(kind: str) -> None:
    rng, passed, count = np.random.default_rng(1), 0, 60
    for _ in range(count):
        machine = machine_of(random_data(rng, kind))
        problems = lint(machine)
        passed += not problems
        assert not any("mixed units" in problem or "wrong order" in problem for problem in problems), problems
        crossing = any("at home the centre lines" in problem for problem in problems)
        assert crossing == (closest_legs_at_home(machine) < geometry.CLEARANCE)
    assert passed >= 0.95 * count


@pytest.mark.parametrize("kind", ["6-upru", "6-ups", "6-uhu"])
def test_legs_touch_exactly_where_they_do(kind: str) -> None:
    """Scrambled platform joints: some machines have legs that touch, and just those are named so."""
    rng, seen = np.random.default_rng(2), set[bool]()
    for _ in range(40):
        data = random_data(rng, kind)
        order = rng.permutation(len(data["leg"]))
        joints = [leg["platform_joint_m"] for leg in data["leg"]]
        for leg, k in zip(data["leg"], order, strict=True):
            leg["platform_joint_m"] = joints[k]
        machine = machine_of(data)
        touch = closest_legs_at_home(machine) < geometry.CLEARANCE
        assert any("at home the centre lines" in problem for problem in lint(machine)) == touch
        seen.add(touch)
    assert True in seen


# ---------------------------------------------------------------- singular layouts


@pytest.mark.parametrize("name", ["6-upru", "6-ups", "6-uhu"])
@pytest.mark.parametrize("angle_deg", [12.0, 30.0])
@pytest.mark.parametrize("turned_deg", [0.0, 60.0])
def test_similar_hexagons(name: str, angle_deg: float, turned_deg: float) -> None:
    data = with_joints(name, hexagon(0.65, angle_deg), hexagon(0.45, angle_deg, turned_deg))
    found(data, "condition number", "architecturally singular: similar base and platform hexagons", "scale 0.692")


def test_similar_hexagons_in_rounded_numbers() -> None:
    data = with_joints("6-upru", hexagon(0.65, 12.0).round(3), hexagon(0.45, 12.0, 60.0).round(3))
    found(data, "architecturally singular: similar base and platform hexagons", "0.14 % of the radius")


def test_affine_hexagons() -> None:
    sheared = hexagon(0.65, 12.0) @ np.array([[0.6, -0.1, 0.0], [0.2, 0.8, 0.0], [0.0, 0.0, 1.0]])
    found(with_joints("6-upru", hexagon(0.65, 12.0), sheared), "architecturally singular: affine base and platform")


def test_singular_without_similarity() -> None:
    """Platform joints in one line: nothing holds the platform against turning about it."""
    line = np.array([[x, 0.0, 0.0] for x in (0.45, 0.3, -0.1, -0.45, -0.3, 0.1)])
    problems = found(with_joints("6-ups", hexagon(0.65, 12.0), line), "architecturally singular: the legs")
    assert not any("hexagons" in problem for problem in problems)


def test_singular_at_home_only() -> None:
    """Three symmetric legs cannot turn a spherical platform about z where they stand in planes through it."""
    data = load("3-ups-s")
    data["platform"]["home"]["yaw_rad"] = 0.0
    data["platform"]["limits"]["yaw_rad"] = [-0.5, 0.5]
    problems = found(data, "singular at home, but not at 64 of 64 poses")
    assert not any("architecturally" in problem for problem in problems)


# ---------------------------------------------------------------- U axes


def test_axis_along_the_leg_around_home() -> None:
    """Six degrees off the leg at home is enough there, and too little around it."""
    data = load("6-upru")
    leg = data["leg"][3]
    line = np.array([0.0, 0.0, 0.85]) + leg["platform_joint_m"] - np.array(leg["base_joint_m"])
    across = np.cross(line, [0.0, 0.0, 1.0])
    turn = np.deg2rad(6.0) * across / np.linalg.norm(across)
    leg["platform_axis"] = Rotation.from_rotvec(turn).apply(line / np.linalg.norm(line)).tolist()
    found(data, "leg[3].platform_axis", "reachable poses too close", "degrees from the line of leg 4", "at least 5")
    leg["platform_axis"] = (line / np.linalg.norm(line)).tolist()
    found(data, "leg[3].platform_axis", "at home 0.00 degrees")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("key", ["base_axis", "platform_axis"])
def test_axis_along_a_leg_whose_screw_turns_with_it(key: str) -> None:
    data = load("6-uhu")
    leg = data["leg"][1]
    line = np.array([0.0, 0.0, 1.45]) + leg["platform_joint_m"] - np.array(leg["base_joint_m"])
    leg[key] = (line / np.linalg.norm(line)).tolist()
    found(data, f"leg[1].{key}", "at home 0.00 degrees", "leg 2")


# ---------------------------------------------------------------- kinds


def set_kind(kind: str) -> Callable[[Data], None]:
    return lambda data: data["legs"].update(kind=kind)


def drop(data: Data) -> None:
    del data["leg"][2]["platform_axis"]


def turn_upper(data: Data) -> None:
    data["legs"]["links"]["rod"]["group"] = "upper"


KIND_MISTAKES: dict[str, tuple[str, Callable[[Data], None], tuple[str, ...]]] = {
    "five legs": ("6-ups", lambda d: d["leg"].pop(), ("platform.kind", "5 legs", "6 freedoms", "5 drives", "6 legs")),
    "UPR under a free platform": ("6-uhu", set_kind("UPR"), ("platform.kind", "-6 freedoms", "UPS, UPRU and UHU")),
    "four legs, spherical": (
        "3-ups-s", lambda d: d["leg"].append(d["leg"][0]), ("platform.kind", "4 legs", "3 legs of the kind UPS"),
    ),
    "UHU, spherical": ("3-ups-s", set_kind("UHU"), ("platform.kind", "UHU UHU UHU", "UPS")),
    "three UPR": ("2-upr-2-rpu", lambda d: d["leg"][2].pop("kind"), ("UPR UPR UPR RPU", "-2 freedoms", "two UPR")),
    "spherical with six legs": (
        "6-ups", lambda d: d["platform"].update(kind="spherical"), ("platform.kind", "3 freedoms", "6 drives"),
    ),
    "nothing that lets the legs twist": (
        "6-uhu", set_kind("UPU"), ("leg[0].kind", "legs 1 2 3 4 5 6", "6 (14 - 18 - 1) + 30 = 0", "UPRU", "UHU"),
    ),
    "nothing that lets one leg twist": (
        "6-uhu", lambda d: d["leg"][4].update(kind="UPU"), ("leg[4].kind", "+ 35 = 5"),
    ),
    "UPRU without an axis": ("6-upru", drop, ("leg[2].platform_axis", "missing", "leg 3", "UPRU")),
    "UHU without an axis": ("6-uhu", drop, ("leg[2].platform_axis", "missing", "UHU")),
    "RPU without an axis": ("2-upr-2-rpu", drop, ("leg[2].platform_axis", "missing", "RPU")),
    "UHU without a screw": (
        "6-uhu", lambda d: d["legs"].update(drive=load("3-ups-s")["legs"]["drive"]),
        ("legs.drive.kind", "screw", "leg 1"),
    ),
    "upper link in a UPS leg": ("6-ups", turn_upper, ("legs.links.rod.group", "upper", "leg 1", "UPS")),
    "upper link in a UPR leg": ("2-upr-2-rpu", turn_upper, ("legs.links.rod.group", "upper", "UPR")),
    "a leg out of its plane": (
        "2-upr-2-rpu", lambda d: d["leg"][1].update(base_joint_m=[-0.28, 0.02, 0.0]),
        ("leg[1].base_joint_m", "y of leg 2 is 0.02 m", "expected 0"),
    ),
    "an axis askew": (
        "2-upr-2-rpu", lambda d: d["leg"][3].update(base_axis=[1.0, 0.1, 0.0]), ("leg[3].base_axis", "5.71 degrees"),
    ),
    "a home off the manifold": (
        "2-upr-2-rpu", lambda d: d["platform"]["home"].update(y_m=0.01), ("platform.home", "0.01", "2r1t"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", KIND_MISTAKES)
def test_kinds_that_do_not_fit(mistake: str, tmp_path: Path) -> None:
    name, spoil, words = KIND_MISTAKES[mistake]
    data = load(name)
    spoil(data)
    found(data, *words)
    refused(pkm("check", write(tmp_path, data)), 2, "machine.toml", *words)


def test_freedoms_by_kutzbach_gruebler() -> None:
    expected = {"free": 6, "spherical": 3, "2r1t": -2}  # five of the constraints of the last repeat others
    for name in NAMES:
        machine = machine_of(load(name))
        assert structure.freedom(machine) == expected[machine.platform.kind]
    assert "= 0 of its 6 freedoms" in structure.no_freedom(6, 6)
    assert "= 0 of its 3 freedoms" in structure.no_freedom(3, 3, "spherical")


# ---------------------------------------------------------------- legs that touch, order


def test_legs_that_touch() -> None:
    data = load("6-upru")
    data["leg"][1]["base_joint_m"] = [x + 0.02 for x in data["leg"][0]["base_joint_m"]]
    found(data, "leg[0], leg[1]", "legs 1 and 2", "0.0", "expected at least 0.0")


def test_legs_may_share_a_joint() -> None:
    data = with_joints("6-upru", hexagon(0.65, 12.0), hexagon(0.45, 60.0))
    assert lint(machine_of(data)) == []


def test_two_exchanged_joints_are_named() -> None:
    for name in ("6-upru", "6-ups", "6-uhu", "3-ups-s"):
        data = load(name)
        for i, j in itertools.combinations(range(len(data["leg"])), 2):
            found(exchanged(data, i, j), f"leg[{i}].platform_joint_m", f"wrong order of legs {i + 1} {j + 1}")


@pytest.mark.parametrize("name", ["6-upru", "6-ups", "6-uhu"])
@pytest.mark.parametrize("shift", [1, 2, 3, 4, 5])
def test_joints_moved_on_round_the_platform(name: str, shift: int) -> None:
    data = load(name)
    total = len(data["leg"])
    joints = [leg["platform_joint_m"] for leg in data["leg"]]
    for i, leg in enumerate(data["leg"]):
        leg["platform_joint_m"] = joints[(i + shift) % total]
    back = " ".join(str((i - shift) % total + 1) for i in range(total))
    found(data, "wrong order of legs 1 2 3 4 5 6", f"the platform joints of legs {back}")


# ---------------------------------------------------------------- stroke, units


def test_stroke_against_workspace() -> None:
    data = load("6-upru")
    data["legs"]["limits"]["length_m"] = [0.930, 0.940]
    found(data, "legs.limits.length_m", "10 % of its range from home", "[0.93, 0.94]", "of the 76 corners", "0 are")
    data = load("3-ups-s")
    data["legs"]["limits"]["length_m"] = [1.16, 1.20]
    found(data, "pitch_rad=", "of the 14 corners and face centres")


def times(values: Any, factor: float) -> Any:
    return [factor * x for x in values]


def in_mm(data: Data, *what: str) -> Data:
    """Some of the lengths of a machine in millimetres."""
    for key in ("base_joint_m", "platform_joint_m"):
        for leg in data["leg"] if key in what else ():
            leg[key] = times(leg[key], 1e3)
    if "home" in what:
        for key in ("x_m", "y_m", "z_m"):
            data["platform"]["home"][key] *= 1e3
            data["platform"]["limits"][key] = times(data["platform"]["limits"][key], 1e3)
    if "length_m" in what:
        data["legs"]["limits"]["length_m"] = times(data["legs"]["limits"]["length_m"], 1e3)
    return data


@pytest.mark.parametrize("name", ["6-upru", "6-ups", "6-uhu", "2-upr-2-rpu"])
@pytest.mark.parametrize("what", ["base_joint_m", "platform_joint_m", "home", "length_m"])
def test_millimetres_in_a_file_of_metres(name: str, what: str) -> None:
    (problem,) = found(in_mm(load(name), what), "mixed units", "expected at most 100")
    assert what in problem.split(":")[0]


@pytest.mark.parametrize("what", ["base_joint_m", "platform_joint_m", "home", "length_m"])
def test_metres_in_a_file_of_millimetres(what: str) -> None:
    every = {"base_joint_m", "platform_joint_m", "home", "length_m"}
    (problem,) = found(in_mm(load("6-upru"), *(every - {what})), "mixed units")
    assert what in problem.split(":")[0]


def test_one_joint_in_millimetres() -> None:
    data = load("6-ups")
    data["leg"][4]["platform_joint_m"] = times(data["leg"][4]["platform_joint_m"], 1e3)
    found(data, "leg[4].platform_joint_m", "mixed units")


@pytest.mark.parametrize(
    ("name", "spoil", "key"),
    [
        ("6-upru", lambda d: d["legs"]["drive"].update(lead_m=10.0), "legs.drive.lead_m: found 10 m"),
        ("3-ups-s", lambda d: d["legs"]["drive"].update(piston_diameter_m=40.0), "legs.drive.piston_diameter_m"),
        ("6-upru", lambda d: d["platform"].update(com_m=[0.0, 0.0, 83.0]), "platform.com_m: found 83 m"),
        ("6-upru", lambda d: d["legs"]["links"]["L4"].update(com_m=[0.0, 0.0, 210.0]), "legs.links.L4.com_m"),
        ("6-upru", lambda d: d["platform"]["limits"].update(x_m=[-150.0, 150.0]), "platform.limits.x_m: found 300 m"),
    ],
)
def test_other_lengths_in_millimetres(name: str, spoil: Callable[[Data], None], key: str) -> None:
    data = load(name)
    spoil(data)
    found(data, key, "mixed units")


def test_inertias_that_do_not_fit() -> None:
    data = load("6-upru")
    tensor = data["platform"]["inertia_kg_m2"]
    data["platform"]["inertia_kg_m2"] = [times(row, 1e6) for row in tensor]  # kg mm2
    found(data, "platform.inertia_kg_m2", "68 kg", "gyration of 296 m", "mixed units")
    data["platform"]["inertia_kg_m2"] = [times(row, 1e-6) for row in tensor]
    found(data, "platform.inertia_kg_m2", "gyration of 0.000296 m")
    found(in_mm(load("6-upru"), "base_joint_m", "platform_joint_m", "home", "length_m"), "platform.inertia_kg_m2")


def test_joints_in_one_point() -> None:
    data = load("6-ups")
    for leg in data["leg"]:
        leg["platform_joint_m"] = [0.1, 0.0, 0.0]
    found(data, "leg[0].platform_joint_m", "the same in all 6 legs")
    data = load("6-ups")
    data["leg"][3]["base_joint_m"] = [
        a + b for a, b in zip(data["leg"][3]["platform_joint_m"], (0, 0, 0.9), strict=True)
    ]
    found(data, "leg[3].platform_joint_m", "leg 4 is 0 m long at home")


# ---------------------------------------------------------------- through the command


SPOILT: dict[str, tuple[Callable[[], Data], tuple[str, ...]]] = {
    "similar": (lambda: with_joints("6-ups", hexagon(0.64, 18.0), hexagon(0.36, 18.0)), ("similar base and platform",)),
    "touching": (lambda: exchanged(load("6-upru"), 0, 1), ("legs 1 and 2", "touch", "wrong order of legs 1 2")),
    "units": (lambda: in_mm(load("6-uhu"), "length_m"), ("legs.limits.length_m", "2300 m", "mixed units")),
}  # fmt: skip


@pytest.mark.parametrize("mistake", SPOILT)
def test_the_command_refuses(mistake: str, tmp_path: Path) -> None:
    spoilt, words = SPOILT[mistake]
    refused(pkm("check", write(tmp_path, spoilt())), 2, "machine.toml", *words)
