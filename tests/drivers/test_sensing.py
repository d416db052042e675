"""The sensors of the virtual cell: what terminals and instruments show of the true quantities, and what they do not."""

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from controller.errors import ConfigurationError
from controller.records import Quality
from controller.settings import SiteFiles, load_site
from drivers.exchange import INPUTS, InputStatus
from drivers.fitting import fit
from drivers.profile import load
from drivers.reading import Reading
from drivers.registers import decode as registers_read
from drivers.terminal import decode
from drivers.virtual.sensing import Input, InputFault, Sensing, build, fitted, tilt_rad
from tests.drivers.lines import DEVICES
from tests.machines import ROOT, SIMULATION, own_site

SITES = ROOT / "config" / "sites"
BRIDGE, LOOP = load(DEVICES / "el3356.toml"), load(DEVICES / "el3xxx-legacy.toml")
FORCES = {f"cell_{i}": 100.0 * i for i in range(1, 7)}


def own(folder: Path, site: Path) -> SiteFiles:
    path = folder / "site.toml"
    path.write_text(own_site(folder, site))
    return load_site(path)


def cell_of(site: Path) -> Sensing:
    files = load_site(site)
    return build(files.site, fit(files))


def shown_n(cell: Sensing, k: int) -> float:
    """What the controller makes of input k of the simulation site."""
    sensor = cell.fittings.sensors[k]
    reading = decode(BRIDGE, int(cell.input_raw[k]), int(cell.input_status[k]), 0.0, Reading())
    assert reading.quality is Quality.GOOD
    return sensor.gain * reading.value + sensor.offset


# ---------------------------------------------------------------- one input


@pytest.mark.parametrize(
    ("profile", "value", "counts"), [(BRIDGE, 1e-3, 500_000), (BRIDGE, -2e-3, -1_000_000), (LOOP, 0.012, 16384)]
)
def test_a_sound_input_shows_counts_without_status(profile, value, counts):
    raw, status = Input(profile).show(value)
    assert abs(raw - counts) <= 0.5 and status == 0


@pytest.mark.parametrize(("profile", "value"), [(BRIDGE, 1e-3), (LOOP, 0.012)], ids=["bridge", "current"])
@pytest.mark.parametrize("fault", [item for item in InputFault if item is not InputFault.NONE])
def test_every_fault_of_an_input_is_seen_by_the_driver_and_ends(profile, value, fault):
    given = Input(profile)
    before = decode(profile, *given.show(value), 1.0, Reading())
    given.fault = fault
    raw, status = given.show(1.1 * value)
    reading = decode(profile, raw, status, 2.0, before)
    assert reading.quality is (Quality.HELD if fault is InputFault.CALIBRATING else Quality.BAD)
    assert (reading.value, reading.stamp_s) == (before.value, 1.0)
    given.fault = InputFault.NONE
    after = decode(profile, *given.show(1.1 * value), 3.0, reading)
    assert after.quality is Quality.GOOD and after.value == pytest.approx(1.1 * value, rel=1e-4)


def test_a_terminal_that_calibrates_itself_freezes_its_counts_and_says_so_by_a_bit_alone():
    given = Input(BRIDGE)
    raw, _ = given.show(1e-3)
    given.fault = InputFault.CALIBRATING
    assert {given.show(value) for value in (1e-3, 0.0, -2e-3)} == {(raw, int(InputStatus.CALIBRATING))}


@pytest.mark.parametrize(
    ("profile", "fault", "bits"),
    [
        (LOOP, InputFault.WIRE_BREAK, InputStatus.ERROR),
        (LOOP, InputFault.SHORT_CIRCUIT, InputStatus.ERROR | InputStatus.OVERRANGE),
        (BRIDGE, InputFault.WIRE_BREAK, InputStatus.ERROR | InputStatus.OVERRANGE),
        (BRIDGE, InputFault.SHORT_CIRCUIT, InputStatus.ERROR | InputStatus.UNDERRANGE),
        (BRIDGE, InputFault.OVERRANGE, InputStatus.OVERRANGE),
    ],
)
def test_what_terminals_say_of_a_broken_wire(profile, fault, bits):
    assert Input(profile, fault).show(1e-3 if profile is BRIDGE else 0.012)[1] == bits


# ---------------------------------------------------------------- a whole cell


def test_true_forces_come_back_through_certificates_and_terminals():
    cell = cell_of(SIMULATION)
    assert (cell.input_status == int(InputStatus.NO_DATA)).all()
    cell.show(FORCES, 0.0)
    for k in range(6):
        assert shown_n(cell, k) == pytest.approx(100.0 * (k + 1), abs=1.2e-3)  # half a count
    assert (cell.input_status[6:] == int(InputStatus.NO_DATA)).all() and len(cell.input_raw) == INPUTS
    # no load on cell 5, whose certificate says 0.012 mV/V without one
    cell.show(FORCES | {"cell_5": 0.0}, 0.0)
    assert cell.input_raw[4] == 6000


def test_offset_drift_and_a_cell_wired_the_wrong_way_round():
    cell = cell_of(SIMULATION)
    cell.offset["cell_1"], cell.drift_per_s["cell_2"] = 12.5, 2.0
    cell.turned.add("cell_3")
    for _ in range(10):
        cell.show(FORCES, 0.5)
    assert shown_n(cell, 0) == pytest.approx(112.5, abs=2e-3)
    assert shown_n(cell, 1) == pytest.approx(210.0, abs=2e-3)  # 5 s at 2 N/s
    assert shown_n(cell, 2) == pytest.approx(-300.0, abs=2e-3)
    cell.drift_per_s["cell_2"] = 0.0
    cell.show(FORCES, 100.0)
    assert shown_n(cell, 1) == pytest.approx(210.0, abs=2e-3)


def test_pressures_at_current_terminals():
    cell = cell_of(SITES / "simulation-3-ups-s.toml")
    names = [sensor.name for sensor in cell.fittings.sensors]
    cell.show(dict.fromkeys(names, 0.0) | {"head_pressure_1": 12.5e6, "rod_pressure_1": 30e6}, 0.0)
    assert cell.input_raw[0] in (16383, 16384) and cell.input_status[0] == 0  # 12 mA
    assert cell.input_status[1] & int(InputStatus.ERROR)  # 23.2 mA: more than the transmitter can say
    assert cell.input_raw[2] == 0 and not cell.tilts
    assert fitted(cell.fittings.sensors, "rod_pressure") == {f"rod_pressure_{i}": i - 1 for i in (1, 2, 3)}


def test_instruments_on_lines_show_the_same(tmp_path):
    files = own(tmp_path, SITES / "simulation-lines.toml")
    cell = build(files.site, fit(files))
    try:
        cell.open()
        cell.turned.add("cell_6")
        cell.show(FORCES | {"tilt_x": 0.1, "tilt_y": -0.2}, 0.0)
        assert cell.conditioners["usb"].value == -600.0
        tilts = cell.inclinometers["inclinometer"]
        assert (tilts.x_deg, tilts.y_deg) == pytest.approx((5.72958, -11.45916), abs=1e-4)
        assert cell.tilts
        registers = cell.slaves["gateway_2"].registers
        # 400 N are 407.886 divisions of 0.980665 N; the sign is in the status
        assert (registers[9], registers[10], registers[6], registers[13]) == (0, 408, 0, 9)
        cell.show(FORCES | {"cell_4": -400.0, "tilt_x": 0.0, "tilt_y": 0.0}, 0.0)
        registers = cell.slaves["gateway_2"].registers
        assert (registers[10], registers[6]) == (408, 1 << 8)
        cell.slaves["gateway_2"].status = 1
        cell.show(FORCES | {"tilt_x": 0.0, "tilt_y": 0.0}, 0.0)
        profile = cell.fittings.profiles["gateway_2"]
        words = cell.slaves["gateway_2"].registers
        reading = registers_read(profile, [words[address] for address in range(6, 11)], 0.0)["force"]
        assert reading.quality is Quality.BAD and "load cell error" in reading.message
        for name in ("inf4-1", "inf4-2", "dscusb", "inclinometer"):
            assert (tmp_path / "run" / f"tty-{name}").is_symlink()
    finally:
        cell.close()
    assert not list((tmp_path / "run").iterdir())


def test_what_a_killed_cell_left_behind_is_replaced_and_a_real_adapter_is_not(tmp_path):
    files = own(tmp_path, SITES / "simulation-6-ups.toml")
    path = tmp_path / "run" / "tty-6-ups-inclinometer"
    path.parent.mkdir()
    path.symlink_to("/dev/pts/no-such")
    cell = build(files.site, fit(files))
    cell.open()
    assert path.exists()
    with pytest.raises(ConfigurationError, match=r"devices\.inclinometer\.line: the virtual cell cannot put"):
        build(files.site, fit(files))
    cell.close()


def test_tilt_is_how_far_the_axes_of_the_platform_point_up():
    rng = np.random.default_rng(3)
    for yaw, pitch, roll in rng.uniform(-0.5, 0.5, (20, 3)):
        axes = Rotation.from_euler("ZYX", [yaw, pitch, roll]).as_matrix()
        x, y = tilt_rad(np.array([0.1, 0.2, 0.9, yaw, pitch, roll]))
        assert (np.sin(x), np.sin(y)) == pytest.approx((axes[2, 0], axes[2, 1]), abs=1e-12)
