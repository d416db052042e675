"""`pkm check`: what stands in the files, and what every device of a site answers."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.schema import Site
from controller.settings import parse
from tests.hil.stand import System, switch
from tests.machines import SIMULATION, own_site
from tests.shell import Result, pkm, refused

LINES = SIMULATION.with_name("simulation-lines.toml")
DEVICES = ["rtu_1", "rtu_2", "gateway_1", "gateway_2", "gateway_3", "usb", "inclinometer"]


class Cell:
    """A virtual cell in a process of its own, and a site file to check it with."""

    def __init__(self, folder: Path, site: Path) -> None:
        self.text = own_site(folder, site)
        self.folder = folder
        self.system = System(folder, command="plant", site=self.text)
        self.system.said("listens at")
        found = parse(self.text, Site, folder).virtual_cell
        self.control = Path(found.control)

    def check(self, text: str = "") -> Result:
        path = self.folder / "checked.toml"
        path.write_text(text or self.text)
        return pkm("check", path, "--connect")

    def end(self) -> None:
        self.system.process.terminate()
        self.system.ends()


@pytest.fixture
def cell(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cell]:
    started = Cell(tmp_path, request.param)
    yield started
    started.end()


def line_of(result: Result, start: str) -> str:
    """The last line that begins like this: what the device answered stands after what the file says of it."""
    return [line for line in result.out.splitlines() if line.startswith(start)][-1]


def test_a_site_is_put_together_line_by_line() -> None:
    result = pkm("check", LINES)
    assert (result.code, result.err) == (0, "")
    assert "unit 3, not verified" in line_of(result, "device gateway_3: laumas-tlb4 at tcp 127.0.0.1:5020")
    assert line_of(result, "device usb: dscusb at serial run/tty-dscusb, not verified")
    assert line_of(result, "sensor cell_6: N from usb channel value, required, calibrated in the device")
    assert line_of(result, "sensor tilt_y: rad from inclinometer channel y, not required")
    assert "PLC" not in result.out
    result = pkm("check", SIMULATION)
    assert line_of(result, "device terminals: el3356 at plc, not verified")
    assert line_of(result, "sensor cell_2: N from terminals channel 2, required, 2224.1 N at 2.0021 mV/V, zero -0.008")


def test_a_site_that_does_not_fit_is_refused_before_anything_is_said(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(own_site(tmp_path, LINES).replace('device = "usb"', 'device = "usd"'))
    refused(pkm("check", path), 2, "sensors.cell_6.device", "'usd'", "did you mean usb")


@pytest.mark.parametrize("cell", [LINES], indirect=True)
def test_every_device_says_what_it_is_worth(cell: Cell) -> None:
    result = cell.check()
    assert result.code == 0, result.out + result.err
    assert result.err == ""
    assert "answers; symbol version" in line_of(result, "PLC: ")
    for name in DEVICES:
        line = line_of(result, f"device {name}: ")
        found = re.search(r"answers; ([\d.]+) ms (an exchange|between pairs) median, ([\d.]+) ms worst of (\d+)", line)
        assert found, line
        assert 0.0 < float(found[1]) <= float(found[3])
        assert int(found[4]) >= 5
        assert (found[2] == "between pairs") is (name == "inclinometer")
    force = re.search(r"cell_1 ([\d.]+) N", line_of(result, "device rtu_1: "))
    assert 50.0 < float(force[1]) < 400.0  # a sixth of the platform and more: its legs are inclined

    # everything that can be wrong at once: all are tried, each says its own
    for name, value in {
        "net.ignore": "", "rtu_1.unplugged": "", "gateway_1.silent": "", "gateway_2.exception": "2", "usb.refuses": "",
        "inclinometer.unplugged": "",
    }.items():  # fmt: skip
        switch(cell.control, name, value)
    result = cell.check(cell.text.replace("unit_id = 3", "unit_id = 9"))
    wrong = {
        "PLC: ": "accepts the connection, but does not answer ADS requests",
        "device rtu_1: ": "tty-inf4-1 cannot be opened",
        "device gateway_1: ": "unit 1: no answer within 100 ms",
        "device gateway_2: ": "unit 2: has no registers",
        "device gateway_3: ": "unit 9: no answer within 100 ms",
        "device usb: ": "bytes that are no number or a refusal to STAT of station 1",
        "device inclinometer: ": "tty-inclinometer cannot be opened",
    }
    assert result.code == 3
    for start, words in wrong.items():
        assert words in line_of(result, start)
        assert words in result.err
    assert "answers" in line_of(result, "device rtu_2: ")
    assert "rtu_2" not in result.err


@pytest.mark.parametrize("cell", [SIMULATION], indirect=True)
def test_terminals_are_seen_through_the_plc(cell: Cell) -> None:
    switch(cell.control, "cell_2.wire-break")
    result = cell.check()
    assert result.code == 3
    assert "device terminals: cell_2: " in result.err
    assert "wire break" in result.err
    values = dict(re.findall(r"^  (cell_\d): input \d raw -?\d+ status \d+: ([\d.]+) N$", result.out, re.MULTILINE))
    assert values.keys() == {"cell_1", "cell_3", "cell_4", "cell_5", "cell_6"}
    assert all(50.0 < float(value) < 400.0 for value in values.values())
    switch(cell.control, "cell_2.wire-break", "off")
    assert cell.check().code == 0
    switch(cell.control, "net.router-off")
    result = cell.check()
    assert result.code == 3
    assert "nothing listens" in result.err
    assert "device terminals: its terminals are seen through the PLC, which does not answer" in result.out


@pytest.mark.parametrize("cell", [LINES], indirect=True)
def test_a_wrong_profile_is_told_by_the_device(cell: Cell, tmp_path: Path) -> None:
    switch(cell.control, "net.router-off")
    profile = tmp_path / "other.toml"
    text = (LINES.parents[1] / "devices" / "interface-inf4.toml").read_text()
    profile.write_text(text.replace("address = 9\n", "address = 40\n").replace("interface-inf4", "other"))
    site = cell.text.replace(f"{LINES.parents[2]}/config/devices/interface-inf4.toml", str(profile), 1)
    assert site != cell.text
    result = cell.check(site)
    assert result.code == 3
    assert "has no registers" in line_of(result, "device rtu_1: ")
    assert "answers" in line_of(result, "device rtu_2: ")
