"""Homing in the virtual cell on a stepped clock: the real plant, its drives and the PLC program, without a controller.

Where the axes really are is told by the plant; what the PLC believes is the status block.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from controller import schema
from controller.errors import ConfigurationError
from controller.records import AxisMode
from controller.settings import SiteFiles, load_site
from drivers.exchange import COMMAND, LAYOUT_VERSION, STATUS, DriveStatus, PlcError, PlcState
from drivers.fitting import fit
from drivers.virtual.cell import Cell as WholeCell
from drivers.virtual.cx5130 import Cx5130
from drivers.virtual.faults import catalogue
from drivers.virtual.plant import STOP_N_M, Plant
from drivers.virtual.plc_program import HOMING_FORCE_MARGIN, HOMING_HELD_S
from tests.machines import ROOT, SIMULATION, own_site

FILES = load_site(SIMULATION)
RESOLUTION_M = 1e-6
UNEQUAL_M = [0.922, 0.920, 0.921, 0.919, 0.918, 0.920]  # home is at 0.935
REFERENCE = schema.Homing(
    method="reference", length_m=UNEQUAL_M, speed_m_s=0.02, travel_m=0.03, back_m=0.004, force_n=400.0
)
FORCE = replace(REFERENCE, method="force")
COMPLIANCE_M = 2.0 * FORCE.force_n / STOP_N_M  # what is looked for and what the leg bears, on the springs of the stops
OUTWARDS_M = [1.87 - length for length in UNEQUAL_M]  # as far beyond home


class Cell:
    """A virtual CX5130 with its plant, and a host that says what axis mode it wants every 10 ms."""

    def __init__(self, homing: schema.Homing, files: SiteFiles = FILES) -> None:
        self.homing = homing
        cell = replace(files.site.virtual_cell, homed=False, encoder_offset_m=0.05, encoder_resolution_m=RESOLUTION_M)
        self.plant = Plant(files.machine, cell)
        self.cx = Cx5130(files.site.ads, files.machine, self.plant, 0.002, cell.hydraulics, homing)
        self.command = np.frombuffer(self.cx.device.symbols[0].data, COMMAND)[0]
        self.block = np.frombuffer(self.cx.device.symbols[1].data, STATUS)[0]
        self.n = len(files.machine.leg)
        self.fed_m = self.plant.position_m  # set-point of the drives, in counts of their encoders

    def host(self, mode: AxisMode, seconds: float, silent: bool = False, **fields: object) -> Iterator[PlcState]:
        """PLC cycles of so many seconds; the state after each."""
        for cycle in range(round(seconds / 0.002)):
            if cycle % 5 == 0 and not silent:
                self.command["size"], self.command["version"] = COMMAND.itemsize, LAYOUT_VERSION
                self.command["seq"] += 1
                self.command["mode"], self.command["period_s"] = mode, 0.01
                for name, value in fields.items():
                    self.command[name] = value
            self.cx.cycle()
            yield PlcState(self.block["plc_state"])

    def say(self, mode: AxisMode, seconds: float, **fields: object) -> list[PlcState]:
        return list(self.host(mode, seconds, **fields))

    def home(self, seconds: float = 10.0) -> PlcState:
        """Until all are homed or the PLC has stopped."""
        for state in self.host(AxisMode.HOME, seconds):
            if state == PlcState.QUICK_STOP or (self.homed.all() and state == PlcState.HOLDING):
                return state
        return state

    @property
    def homed(self) -> np.ndarray:
        return (self.block["drive_status"][: self.n] & DriveStatus.HOMED) != 0

    @property
    def faulty(self) -> list[int]:
        return np.flatnonzero(self.block["drive_status"][: self.n] & DriveStatus.FAULT).tolist()

    @property
    def error_m(self) -> np.ndarray:
        """What the PLC believes, minus what is true."""
        return self.block["position_m"][: self.n] - self.plant.axis_m

    @property
    def error(self) -> PlcError:
        return PlcError(int(self.block["plc_error"]))


def test_encoders_that_are_not_homed_are_off_by_less_than_they_may_be_and_by_the_same_for_the_same_seed():
    cell, again = Cell(REFERENCE), Cell(REFERENCE)
    off_m = cell.plant.position_m - cell.plant.axis_m
    assert (np.abs(off_m) > 1e-3).any() and (np.abs(off_m) <= 0.05 + RESOLUTION_M).all()
    assert (again.plant.position_m == cell.plant.position_m).all()
    assert not cell.homed.any()
    homed = Plant(FILES.machine, FILES.site.virtual_cell)
    assert np.abs(homed.position_m - homed.axis_m).max() <= FILES.site.virtual_cell.encoder_resolution_m


@pytest.mark.parametrize("outwards", [False, True])
def test_marks_are_found_to_the_resolution_of_the_encoder(outwards):
    turned = {"direction": "extend", "length_m": OUTWARDS_M} if outwards else {}
    cell = Cell(replace(REFERENCE, **turned))
    assert cell.home() == PlcState.HOLDING
    assert cell.homed.all() and cell.error == PlcError.NONE
    assert np.abs(cell.error_m).max() <= 1.01 * RESOLUTION_M
    beside_m = 0.004 if not outwards else -0.004  # all stand so far before their marks
    cell.say(AxisMode.HOME, 0.5)
    wanted_m = np.array(OUTWARDS_M if outwards else UNEQUAL_M) + beside_m
    assert np.abs(cell.plant.axis_m - wanted_m).max() < 1e-4


@pytest.mark.parametrize("outwards", [False, True])
def test_stops_are_found_to_their_compliance(outwards):
    turned = {"direction": "extend", "length_m": OUTWARDS_M, "force_n": 700.0} if outwards else {}
    cell = Cell(replace(FORCE, **turned))
    forces_n = []
    for state in cell.host(AxisMode.HOME, 10.0):
        if state == PlcState.HOMING:
            forces_n.append(np.abs(cell.block["force_n"]).max())
        elif cell.homed.all():
            break
    assert cell.homed.all() and cell.error == PlcError.NONE
    assert np.abs(cell.error_m).max() <= COMPLIANCE_M * cell.homing.force_n / FORCE.force_n
    assert max(forces_n) <= HOMING_FORCE_MARGIN * cell.homing.force_n


@pytest.mark.parametrize("homing", [REFERENCE, FORCE], ids=["reference", "force"])
def test_homing_again_gives_the_same_position(homing):
    cell = Cell(homing)
    offsets_m = []
    for _ in range(3):
        assert cell.home() == PlcState.HOLDING
        offsets_m.append(cell.cx.twin.offset_m.copy())
        cell.say(AxisMode.STOP, 0.1)
        assert cell.homed.all() and cell.block["plc_state"] == PlcState.OFF
    most_m = 1.01 * RESOLUTION_M if homing is REFERENCE else 0.2 * COMPLIANCE_M
    assert np.abs(np.diff(offsets_m, axis=0)).max() <= most_m


@pytest.mark.parametrize("homing", [REFERENCE, FORCE], ids=["reference", "force"])
def test_the_set_points_of_the_drives_never_step(homing):
    cell = Cell(homing)
    fed_m, rate_m_s = [], []
    for _ in cell.host(AxisMode.HOME, 4.0):
        twin = cell.cx.twin
        if twin.powered:
            fed_m.append(twin.p - twin.offset_m)
            rate_m_s.append(twin.v)
    assert cell.homed.all()
    steps_m, changes = np.abs(np.diff(fed_m, axis=0)), np.abs(np.diff(rate_m_s, axis=0))
    assert steps_m.max() <= homing.speed_m_s * 0.002 + 3e-6
    assert changes.max() <= FILES.machine.legs.limits.acceleration_m_s2 * 0.002 * 1.001


def test_one_reading_of_a_force_is_no_stop_and_no_failure():
    for homing in (FORCE, REFERENCE):
        cell = Cell(homing)
        for cycle, _ in enumerate(cell.host(AxisMode.HOME, 10.0)):
            if cycle % 37 == 0 and cell.cx.twin.seeking:
                cell.cx.references.spike_n[cycle % 6] = -5e4  # pushes inwards, as a stop would make it
            if cell.homed.all():
                break
        assert cell.homed.all()
        assert np.abs(cell.error_m).max() <= (COMPLIANCE_M if homing is FORCE else 1.01 * RESOLUTION_M)


def test_a_force_that_lasts_is_a_stop():
    cell = Cell(FORCE)
    cycles = 0
    for _ in cell.host(AxisMode.HOME, 1.0):
        if cell.cx.twin.seeking and abs(cell.cx.twin.p[2] - cell.cx.twin._start_p[2]) > 0.003:
            cell.cx.references.spike_n[2] = -5e4
            cycles += 1
        if cell.cx.twin._found[2]:
            break
    assert abs(cycles * 0.002 - HOMING_HELD_S) <= 0.004


def failed(cell: Cell, legs: list[int]) -> None:
    """It has failed because of these legs: all stand, none is homed, nothing is kept."""
    assert cell.home() == PlcState.QUICK_STOP
    assert PlcError.HOMING in cell.error
    assert cell.faulty == legs
    cell.say(AxisMode.HOME, 0.5)
    assert np.abs(cell.plant.velocity_m_s).max() < 1e-3
    assert not (cell.block["drive_status"][:6] & DriveStatus.ENABLED).any()
    assert not cell.homed.any()
    assert not cell.cx.twin.offset_m.any()  # nothing of what was found has stayed


def test_a_missing_mark_stops_all_and_homes_none():
    cell = Cell(REFERENCE)
    cell.cx.references.missing[3] = True
    failed(cell, [3])
    assert np.abs(cell.plant.axis_m - 0.935).max() < REFERENCE.travel_m + 0.002
    cell.cx.references.missing[3] = False  # put on again: but the legs have passed their marks
    cell.say(AxisMode.STOP, 0.1)
    failed(cell, [0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize(("homing", "after_m"), [(REFERENCE, 0.0), (REFERENCE, 0.005), (FORCE, 0.0)])
def test_a_blocked_leg_stops_all_and_homes_none(homing, after_m):
    cell = Cell(homing)
    cell.say(AxisMode.HOME, 0.2 + after_m / homing.speed_m_s)
    cell.plant.block(1, True)
    failed(cell, [1])
    cell.plant.block(1, False)


def test_a_drive_without_force_stops_all_and_homes_none():
    cell = Cell(REFERENCE)
    cell.say(AxisMode.HOME, 0.3)
    cell.cx.drive_share[4] = 0.0
    assert cell.home() == PlcState.QUICK_STOP
    assert PlcError.HOMING in cell.error
    assert not cell.homed.any() and not cell.cx.twin.offset_m.any()


def test_a_search_without_end_runs_out_of_time():
    cell = Cell(replace(REFERENCE, timeout_s=0.5))
    failed(cell, [0, 1, 2, 3, 4, 5])
    assert cell.cx.time_s < 2.0


def test_after_a_failure_it_can_be_done_again():
    cell = Cell(replace(REFERENCE, timeout_s=0.2))
    failed(cell, [0, 1, 2, 3, 4, 5])
    cell.cx.twin._homing = cell.cx.twin._homing._replace(timeout_s=20.0)
    cell.say(AxisMode.STOP, 0.1)
    assert cell.error == PlcError.NONE
    assert cell.home() == PlcState.HOLDING
    assert np.abs(cell.error_m).max() <= 1.01 * RESOLUTION_M


def test_stop_while_homing_stops_and_homes_none():
    cell = Cell(REFERENCE)
    for seconds in (0.1, 0.21, 0.4, 0.9):  # while the drives come on, while the legs set off, on the way, some found
        cell.say(AxisMode.HOME, seconds)
        cell.say(AxisMode.STOP, 0.2)
        assert cell.block["plc_state"] == PlcState.OFF
        assert cell.error == PlcError.NONE
        assert not cell.homed.any() and not cell.cx.twin.offset_m.any()
        assert np.abs(cell.plant.velocity_m_s).max() < 1e-3


@pytest.mark.parametrize("mode", [AxisMode.HOLD, AxisMode.FOLLOW, AxisMode.FORCE])
def test_another_mode_while_homing_drops_what_was_found(mode):
    cell = Cell(REFERENCE)
    cell.say(AxisMode.HOME, 0.6)
    states = cell.say(mode, 0.3, position_m=cell.block["setpoint_m"].copy())
    assert states[-1] == (PlcState.HOLDING if mode == AxisMode.HOLD else PlcState.QUICK_STOP)
    assert not cell.homed.any()


def test_set_points_are_refused_until_all_axes_are_homed():
    cell = Cell(REFERENCE)
    cell.say(AxisMode.HOLD, 0.3)
    assert cell.block["plc_state"] == PlcState.HOLDING  # to hold needs no position
    before_m = cell.plant.axis_m
    cell.say(AxisMode.FOLLOW, 0.2, position_m=cell.block["setpoint_m"].copy())
    assert cell.block["plc_state"] == PlcState.QUICK_STOP and cell.error == PlcError.HOMING
    assert np.abs(cell.plant.axis_m - before_m).max() < 1e-3
    cell.say(AxisMode.STOP, 0.1)
    assert cell.home() == PlcState.HOLDING
    cell.say(AxisMode.FOLLOW, 0.2, position_m=cell.block["setpoint_m"].copy())
    assert cell.block["plc_state"] == PlcState.FOLLOWING


def test_a_short_silence_holds_and_a_long_one_ends_it():
    cell = Cell(REFERENCE)
    cell.say(AxisMode.HOME, 0.5)
    assert set(cell.host(AxisMode.HOME, 0.070, silent=True)) == {PlcState.HOMING, PlcState.LATE}
    assert np.abs(cell.cx.twin.v).max() == 0.0
    assert cell.say(AxisMode.HOME, 0.1)[-1] == PlcState.HOMING
    assert list(cell.host(AxisMode.HOME, 0.2, silent=True))[-1] == PlcState.QUICK_STOP
    assert cell.error == PlcError.WATCHDOG | PlcError.HOMING
    cell.say(AxisMode.HOME, 0.2)  # the host is back, but this needs a new beginning
    assert cell.block["plc_state"] == PlcState.QUICK_STOP
    assert not cell.homed.any()
    cell.say(AxisMode.STOP, 0.1)
    assert cell.home() == PlcState.HOLDING


def test_absolute_encoders_are_homed_and_homing_is_to_hold():
    cell = Cell(schema.Homing())
    assert cell.homed.all()
    before_m = cell.plant.axis_m
    assert set(cell.say(AxisMode.HOME, 1.0)) == {PlcState.OFF, PlcState.HOLDING}
    assert cell.homed.all() and np.abs(cell.plant.axis_m - before_m).max() < 1e-3


def test_cylinders_home_by_marks_and_not_by_force():
    files = load_site(ROOT / "config" / "sites" / "simulation-3-ups-s.toml")
    length_m = (Plant(files.machine, files.site.virtual_cell).axis_m - 0.01).tolist()
    marks = replace(REFERENCE, length_m=length_m, force_n=1e5)
    cell = Cell(marks, files)
    assert cell.home() == PlcState.HOLDING
    assert np.abs(cell.error_m).max() <= 1.01 * RESOLUTION_M
    with pytest.raises(ConfigurationError, match=r"homing.method: found \"force\""):
        Cell(replace(marks, method="force"), files)


def test_faults_by_name(tmp_path: Path):
    path = tmp_path / "site.toml"
    path.write_text(own_site(tmp_path) + '\n[homing]\nmethod = "reference"\nlength_m = 0.92\n')
    files = load_site(path)
    cell = WholeCell(files, fit(files), Plant(files.machine, files.site.virtual_cell))
    found = catalogue(cell)
    found["leg.2.no-mark"].switch("")
    found["leg.3.force-spike"].switch("900")
    assert cell.cx.references.missing.tolist() == [False, True, False, False, False, False]
    assert cell.cx.references.spike_n.tolist() == [0.0, 0.0, 900.0, 0.0, 0.0, 0.0]
    found["leg.2.no-mark"].switch("off")
    assert not cell.cx.references.missing.any()
    found["leg.1.blocked"].switch("")
    held_m = cell.plant.axis_m[0]
    for _ in range(200):
        cell.plant.step(np.array([-600.0, 100.0, 100.0, 100.0, 100.0, 100.0]))
    assert abs(cell.plant.axis_m[0] - held_m) < 5e-4
    found["leg.1.blocked"].switch("off")
    for _ in range(200):
        cell.plant.step(np.array([-600.0, 100.0, 100.0, 100.0, 100.0, 100.0]))
    assert abs(cell.plant.axis_m[0] - held_m) > 5e-3
