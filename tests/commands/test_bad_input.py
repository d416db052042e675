"""Bad files and bad input: one plain sentence, the right exit code, no traceback, nothing on standard output."""

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.machines import MACHINES, SIMULATION, own_site, without_cell
from tests.shell import pkm, refused

MACHINE = (MACHINES / "6-upru.toml").read_text()
SITE = SIMULATION.read_text()
DEVICES = SIMULATION.parents[1] / "devices"
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


PLC = 'line = { kind = "plc" }'
BRIDGE_3 = '{ kind = "bridge", rated_n = 2224.1, sensitivity_mv_v = 1.9972, zero_mv_v = 0.008 }'
LOOP = '{ kind = "current", at_4_ma = 0.0, at_20_ma = 25.0e6 }'
RTU_2 = 'line = { kind = "rtu", path = "run/tty-inf4-2", baudrate = 115200 }'

# site of config/sites, what is there, what stands there instead, words of the sentence
SITE_MISTAKES = {
    "an inclinometer on RTU": (
        "simulation-lines", "interface-inf4.toml", "ags-inclinometer.toml",
        ["devices.rtu_1.line.kind", "found 'rtu'", 'expected "serial"', "profile ags-inclinometer"],
    ),
    "a transmitter at the terminals": (
        "simulation", "el3356.toml", "laumas-tlb4.toml",
        ["devices.terminals.line.kind", "found 'plc'", 'expected "tcp" or "rtu"'],
    ),
    "a terminal on a line": (
        "simulation-lines", "interface-inf4.toml", "el3356.toml",
        ["devices.rtu_1.line.kind", "found 'rtu'", 'expected "plc"'],
    ),
    "no profile": ("simulation", "el3356.toml", "el3357.toml", ["el3357.toml", "no such file"]),
    "a line of no kind": ("simulation", PLC, PLC.replace("plc", "pcl"), ["devices.terminals.line.kind", "'pcl'"]),
    "a line without its host": (
        "simulation", PLC, PLC.replace("plc", "tcp"), ["devices.terminals.line.host", "missing"],
    ),
    "an address that Modbus does not have": (
        "simulation-lines", "unit_id = 3", "unit_id = 248", ["devices.gateway_3.unit_id", "found 248", "<= 247"],
    ),
    "misspelt sensor": (
        "simulation", "[sensors.cell_3]", "[sensors.cel_3]",
        ["sensors.cel_3", "unknown sensor", "did you mean cell_3?"],
    ),
    "a sensor of a leg that is not there": ("simulation", "[sensors.cell_3]", "[sensors.cell_7]", ["sensors.cell_7"]),
    "a cell where none is": (
        "simulation-6-ups", "[sensors.tilt_x]", "[sensors.cell_2]",
        ["sensors.cell_2", "leg 2 of machine 6-ups has no load cell", "legs.cell"],
    ),
    "a pressure where no cylinder is": (
        "simulation", "[sensors.cell_3]", "[sensors.rod_pressure_3]",
        ["sensors.rod_pressure_3", "leg 3 of machine 6-upru is not driven by a cylinder"],
    ),
    "two sensors on one channel": (
        "simulation", 'channel = "3"', 'channel = "1"',
        ["sensors.cell_3.channel", "channel '1' of terminals is that of sensor cell_1 already"],
    ),
    "unknown device": (
        "simulation", 'device = "terminals"\nchannel = "2"', 'device = "terminal"\nchannel = "2"',
        ["sensors.cell_2.device", "found 'terminal'", "[devices]", "did you mean terminals?"],
    ),
    "unknown channel": ("simulation", 'channel = "3"', 'channel = "17"', ["sensors.cell_3.channel", "el3356", "'17'"]),
    "unknown channel of an instrument": (
        "simulation-lines", 'channel = "x"', 'channel = "z"', ["sensors.tilt_x.channel", "ags-inclinometer", "'z'"],
    ),
    "a bridge without its certificate": (
        "simulation", f"calibration = {BRIDGE_3}", "", ["sensors.cell_3", "is in V/V", "expected N, or a calibration"],
    ),
    "a current at a bridge terminal": (
        "simulation", BRIDGE_3, LOOP, ["sensors.cell_3", "channel '3' of profile el3356 is in V/V", "expected A"],
    ),
    "a bridge at a current terminal": (
        "simulation-3-ups-s", LOOP, BRIDGE_3, ["sensors.head_pressure_1", "el3xxx-legacy is in A", "expected V/V"],
    ),
    "a calibration where the instrument gives newtons": (
        "simulation-lines", 'channel = "force"', f'channel = "force"\ncalibration = {BRIDGE_3}',
        ["sensors.cell_1", "is in N", "expected V/V"],
    ),
    "a force on the inclinometer": (
        "simulation-lines", 'device = "usb"\nchannel = "value"', 'device = "inclinometer"\nchannel = "x"',
        ["sensors.cell_6", "is in rad", "expected N"],
    ),
    "the same at 4 and at 20 mA": (
        "simulation-3-ups-s", "at_20_ma = 25.0e6", "at_20_ma = 0.0",
        ["sensors.head_pressure_1.calibration", "at_4_ma and at_20_ma are the same"],
    ),
    "a cell of no force": (
        "simulation", BRIDGE_3, BRIDGE_3.replace("2224.1", "0.0"),
        ["sensors.cell_3.calibration.rated_n", "found 0.0", "> 0"],
    ),
    "a sign that is none": (
        "simulation", 'channel = "3"', 'channel = "3"\nsign = 0',
        ["sensors.cell_3.sign", "found 0", "config/README.md"],
    ),
    "misspelt key of a sensor": (
        "simulation", 'channel = "3"', 'chanel = "3"',
        ["sensors.cell_3.chanel", "unknown key", "did you mean channel?"],
    ),
    "a sensor with a name like no other": ("simulation", "[sensors.cell_3]", '[sensors."[...]"]\nsign = 0', ["[...]"]),
    "a number for a channel": (
        "simulation", 'channel = "3"', "channel = 3", ["sensors.cell_3.channel", "found 3", "str"],
    ),
    "two devices at one address": (
        "simulation-lines", "unit_id = 3", "unit_id = 2", ["devices.gateway_3.unit_id", "2 at", "is device gateway_2"],
    ),
    "two instruments on one serial line": (
        "simulation-lines", "run/tty-inclinometer", "run/tty-dscusb",
        ["devices.inclinometer.line", "tty-dscusb is the line of device usb already"],
    ),
    "one RTU line in two ways": (
        "simulation-lines", RTU_2, RTU_2.replace("inf4-2", "inf4-1").replace("115200", "9600"),
        ["devices.rtu_2.line", "tty-inf4-1 is the line of device rtu_1 already"],
    ),
    "an RTU line that is a serial one too": (
        "simulation-lines", "run/tty-dscusb", "run/tty-inf4-1",
        ["devices.usb.line", "tty-inf4-1 is the line of device rtu_1 already"],
    ),
}  # fmt: skip


def shipped(name: str) -> str:
    """A site that ships with the project, for any folder."""
    folder = SIMULATION.parent
    return (folder / f"{name}.toml").read_text().replace('"../', f'"{folder.parent}/')


@pytest.mark.parametrize("mistake", SITE_MISTAKES)
def test_mistake_in_the_devices_and_sensors_of_a_site(write: Write, mistake: str) -> None:
    name, good, bad, words = SITE_MISTAKES[mistake]
    text = shipped(name)
    assert good in text
    path = write(text.replace(good, bad, 1), "site.toml")
    for command in ("check", "run"):
        result = pkm(command, path)
        refused(result, 2, "el3357.toml" if mistake == "no profile" else f"pkm {command}: {path}: ", *words)
        assert result.err.count("\n") == 1


# profile of config/devices, what is there, what stands there instead, words of the sentence
PROFILE_MISTAKES = {
    "force in kilograms": (
        "laumas-tlb4", 'unit = "N"', 'unit = "kg"', ["sensors.cell_3", "laumas-tlb4 is in kg", "expected N"],
    ),
    "kind of instrument": ("laumas-tlb4", 'kind = "modbus"', 'kind = "modbos"', ["kind", "found 'modbos'"]),
    "no kind": ("laumas-tlb4", 'kind = "modbus"', "", ["kind", "missing"]),
    "type of a channel": ("laumas-tlb4", '"uint32"', '"uint33"', ["channels.force.type", "found 'uint33'"]),
    "no scale": ("dscusb", "scale = 1.0 ", "scale = 0.0 ", ["scale", "found 0", "not 0"]),
    "range upside down": (
        "laumas-tlb4", "[-20000.0, 20000.0]", "[2.0, 1.0]", ["channels.force.range", "in this order"],
    ),
    "key of another kind": ("dscusb", "station = 1", "unit_id = 1", ["unit_id", "unknown key"]),
}  # fmt: skip


@pytest.mark.parametrize("mistake", PROFILE_MISTAKES)
def test_mistake_in_a_profile(write: Write, mistake: str) -> None:
    name, good, bad, words = PROFILE_MISTAKES[mistake]
    profile = (DEVICES / f"{name}.toml").read_text()
    assert good in profile
    write(profile.replace(good, bad, 1), "own.toml")
    text = shipped("simulation-lines").replace(f"{DEVICES}/{name}.toml", "own.toml")
    refused(pkm("check", write(text, "site.toml")), 2, "site.toml: " if "sensors" in words[0] else "own.toml: ", *words)


def test_pressure_in_bar_for_pascal(write: Write) -> None:
    """A Modbus transmitter whose profile gives bar: the machine counts in Pa."""
    profile = (DEVICES / "laumas-tlb4.toml").read_text()
    write(profile.replace('unit = "N"', 'unit = "bar"').replace("channels.force", "channels.pressure"), "bar.toml")
    text = shipped("simulation-3-ups-s").replace(f"{DEVICES}/el3xxx-legacy.toml", "bar.toml")
    text = text.replace(PLC, 'line = { kind = "tcp", host = "127.0.0.1" }')
    text = text.replace(f'channel = "1"\nmax_age_s = 0.05\ncalibration = {LOOP}', 'channel = "pressure"', 1)
    refused(
        pkm("check", write(text, "site.toml")), 2, "sensors.head_pressure_1", "laumas-tlb4 is in bar", "expected Pa"
    )


def test_a_check_move_with_nothing_to_check(write: Write, tmp_path: Path) -> None:
    path = write(own_site(tmp_path, SIMULATION.parent / "simulation-3-ups-s.toml"), "site.toml")
    refused(pkm("run", path, "--check-move"), 2, "site.toml", "sensors", "there is nothing to check")
    refused(pkm("run", path, "--check-move", "--demo"), 2, "--check-move", "--demo")


def test_singular_geometry_is_named(write: Write) -> None:
    """Every platform joint straight above its base joint: the legs are parallel, the platform is free to shift."""
    joints = re.compile(r"base_joint_m = (.*)\nplatform_joint_m = .*\n")
    text = joints.sub(r"base_joint_m = \1\nplatform_joint_m = \1\n", MACHINE)
    refused(pkm("check", write(text)), 2, "condition number", "singular")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    refused(pkm("check", tmp_path / "nothing.toml"), 2, "nothing.toml", "no such file")
    refused(pkm("check", tmp_path), 2, str(tmp_path))


@pytest.mark.parametrize(
    "net_id", ["127.0.0.256.1.1", "127.0.0.999.1.1", "127.0.0.1.1", "127.0.0.1.1.1.1", "127.0.0.1.1."]
)
def test_an_ams_net_id_has_six_parts_up_to_255(write: Write, net_id: str) -> None:
    path = write(SITE.replace("127.0.0.1.1.1", net_id), "site.toml")
    refused(pkm("check", path), 2, "site.toml", "ads.ams_net_id", f"found '{net_id}'", "expected")


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
    text = without_cell(own_site(tmp_path))  # neither broker nor virtual cell
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
