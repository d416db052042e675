"""Bad files and bad input: one plain sentence, the right exit code, no traceback, nothing on standard output."""

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.machines import MACHINES, SIMULATION, own_site
from tests.shell import pkm, refused

MACHINE = (MACHINES / "6-upru.toml").read_text()
SITE = SIMULATION.read_text()
HEADER = "x_m,y_m,z_m,yaw_rad,pitch_rad,roll_rad"


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str, name: str = "machine.toml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return _write


MACHINE_MISTAKES = {
    "syntax": ("mass_kg = 68.0", "mass_kg = = 68.0", ["line 12", "TOML"]),
    "unknown key": ("mass_kg = 68.0", "mass_kg = 68.0\ncolour = 3", ["platform.colour", "unknown key"]),
    "misspelt key": ("mass_kg = 68.0", "mas_kg = 68.0", ["platform.mas_kg", "mass_kg"]),
    "wrong unit": ("mass_kg = 68.0", "mass_g = 68000.0", ["platform.mass_g", "mass_kg"]),
    "wrong unit of a length": ("lead_m = 0.010", "lead_mm = 10.0", ["legs.drive.lead_mm", "lead_m"]),
    "missing key": ("mass_kg = 68.0", "", ["platform.mass_kg", "missing"]),
    "nan": ("mass_kg = 68.0", "mass_kg = nan", ["platform.mass_kg", "nan", "finite"]),
    "inf": ("force_n = 700.0", "force_n = inf", ["legs.limits.force_n", "inf", "finite"]),
    "a word for a number": ("mass_kg = 68.0", 'mass_kg = "heavy"', ["platform.mass_kg", "'heavy'", "float"]),
    "negative mass": ("mass_kg = 68.0", "mass_kg = -68.0", ["platform.mass_kg", "-68.0", "> 0"]),
    "four numbers for a vector": (
        "com_m = [0.021, -0.034, 0.083]", "com_m = [0.021, -0.034, 0.083, 1.0]", ["platform.com_m", "3"],
    ),
    "range upside down": ("length_m = [0.755, 1.115]", "length_m = [1.115, 0.755]", ["legs.limits.length_m", "order"]),
    "crooked tensor": ("[0.12, 3.6, 0.17]", "[0.10, 3.6, 0.17]", ["platform.inertia_kg_m2", "symmetric"]),
    "impossible tensor": ("[0.0, 0.062, 0.0]", "[0.0, -0.062, 0.0]", ["legs.links.L3.inertia_kg_m2", "negative"]),
    "cell above nothing": ('links_below = ["L3"]', 'links_below = ["L9"]', ["links_below", "L9", "L3"]),
    "unknown kind of leg": ('kind = "UPRU"', 'kind = "UPX"', ["legs.kind", "UPX"]),
    "axis of length zero": (
        "base_axis = [0.20791169081775934, 0.9781476007338057, 0.0]", "base_axis = [0.0, 0.0, 0.0]",
        ["leg[0].base_axis", "direction"],
    ),
    "axis along the leg": (
        "base_axis = [0.20791169081775934, 0.9781476007338057, 0.0]", "base_axis = [-0.358, -0.2132, 0.9091]",
        ["leg[0].base_axis", "leg 1", "degrees"],
    ),
    "home outside the stroke": ("length_m = [0.755, 1.115]", "length_m = [0.955, 1.115]", ["leg 1", "0.9350"]),
    "home outside the pose limits": ("z_m = [0.70, 1.00]", "z_m = [0.90, 1.00]", ["platform.home.z_m", "0.85"]),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MACHINE_MISTAKES)
@pytest.mark.parametrize("command", ["check", "legs"])
def test_mistake_in_a_machine_file(write: Write, mistake: str, command: str) -> None:
    good, bad, words = MACHINE_MISTAKES[mistake]
    assert good in MACHINE
    path = write(MACHINE.replace(good, bad, 1))
    refused(pkm(command, path, given=f"{HEADER}\n0,0,0.85,0,0,0\n"), 2, path.name, *words)


def test_singular_geometry_is_named(write: Write) -> None:
    """Every platform joint straight above its base joint: the legs are parallel, the platform is free to shift."""
    joints = re.compile(r"base_joint_m = (.*)\nplatform_joint_m = .*\n")
    text = joints.sub(r"base_joint_m = \1\nplatform_joint_m = \1\n", MACHINE)
    refused(pkm("check", write(text)), 2, "condition number", "singular")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    refused(pkm("check", tmp_path / "nothing.toml"), 2, "nothing.toml", "no such file")
    refused(pkm("check", tmp_path), 2, str(tmp_path))


def test_site_names_a_machine_that_is_not_there(write: Write) -> None:
    path = write(SITE.replace("../machines/6-upru.toml", "elsewhere.toml"), "site.toml")
    refused(pkm("run", path), 2, "elsewhere.toml", "no such file")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", ["line 1", "empty"]),
        ("x_m,y_m\n0,0\n", ["line 1", "z_m", "missing"]),
        (f"{HEADER}\n0,0,0.85,0,0,0\n0,0,zero,0,0,0\n", ["line 3", "z_m", "'zero'"]),
        (f"{HEADER}\n0,0,nan,0,0,0\n", ["line 2", "z_m", "nan", "finite"]),
        (f"{HEADER}\n0,0,inf,0,0,0\n", ["line 2", "z_m", "inf", "finite"]),
        (f"{HEADER}\n0,0,0.85,0,0\n", ["line 2", "5", "6"]),
        (f"{HEADER},x_m\n0,0,0.85,0,0,0,0\n", ["line 1", "x_m", "twice"]),
        (f"{HEADER}\n0,0,,0,0,0\n", ["line 2", "z_m", "''"]),
    ],
)
def test_mistake_in_a_table(given: str, words: list[str]) -> None:
    refused(pkm("legs", MACHINES / "6-upru.toml", given=given), 2, *words)


def test_rates_are_required_for_forces() -> None:
    refused(pkm("forces", MACHINES / "6-upru.toml", given=f"{HEADER}\n0,0,0.85,0,0,0\n"), 2, "x_m_s", "missing")


def test_unreachable_lengths_name_the_line() -> None:
    header = ",".join(f"length_{i}_m" for i in range(1, 7))
    rows = "0.935,0.935,0.935,0.935,0.935,0.935\n0.1,2.0,0.1,2.0,0.1,2.0\n"
    refused(pkm("pose", MACHINES / "6-upru.toml", given=f"{header}\n{rows}"), 2, "line 3")


def test_lengths_of_another_assembly_branch_are_told() -> None:
    header = ",".join(f"length_{i}_m" for i in range(1, 7))
    row = "1.2161,1.0333,1.3919,0.8004,0.9098,1.1416"
    refused(pkm("pose", MACHINES / "6-upru.toml", given=f"{header}\n{row}\n"), 2, "line 2", "assembled differently")


def test_unknown_command_and_argument() -> None:
    refused(pkm("fly"), 2, "fly")
    refused(pkm("run", SIMULATION, "--duration", "-3"), 2, "--duration")


@pytest.mark.parametrize("name", ["ads", "mqtt"])
def test_port_in_use(write: Write, tmp_path: Path, name: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        path = write(own_site(tmp_path, **{name: port}), "site.toml")
        key = {"ads": "ads.address", "mqtt": "mqtt.port"}[name]
        refused(pkm("run", path), 2, key, str(port))
        if name == "ads":
            refused(pkm("plant", path), 2, key, str(port))


def test_no_plc(write: Write, tmp_path: Path) -> None:
    text = own_site(tmp_path).split("[broker]")[0]  # neither broker nor virtual cell
    refused(pkm("run", write(text, "site.toml"), "--demo", "--duration", "5"), 3, "nothing listens")
    checked = pkm("check", tmp_path / "site.toml", "--connect")
    assert "site simulation: valid" in checked.out
    assert checked.code == 3
    assert "nothing listens" in checked.err


def test_no_controller_to_ask(write: Write, tmp_path: Path) -> None:
    path = write(own_site(tmp_path), "site.toml")
    refused(pkm("request", "ready", "--site", path), 3, "no controller")
    refused(pkm("request", "move", "z_m=high", "--site", path), 2, "z_m=high")


def test_a_plant_needs_its_table(write: Write, tmp_path: Path) -> None:
    path = write(own_site(tmp_path).split("[virtual_cell]")[0], "site.toml")
    refused(pkm("plant", path), 2, "virtual_cell", "missing")


def test_a_recording_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    refused(pkm("replay", path), 2, "run.mcap")
    path.write_bytes(b"this is not a recording")
    refused(pkm("replay", path), 2, "run.mcap")
