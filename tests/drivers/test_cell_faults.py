"""The faults of the virtual cell: each can be switched on and off by name, does what it says, and a typo is refused."""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from controller.datagram import ask
from controller.errors import ConfigurationError
from controller.settings import load_site
from drivers.exchange import LAYOUT_VERSION, InputStatus
from drivers.fitting import fit
from drivers.virtual.ams import AdsState
from drivers.virtual.cell import Cell
from drivers.virtual.faults import Reply, Switches, Switching, catalogue
from drivers.virtual.instruments import Behaviour
from drivers.virtual.plant import Plant
from drivers.virtual.sensing import InputFault
from tests.machines import CELLS, ROOT, SIMULATION, own_site
from tests.shell import pkm, refused

LINES = ROOT / "config" / "sites" / "simulation-lines.toml"


@contextmanager
def cell_at(folder: Path, site: Path = SIMULATION) -> Iterator[Cell]:
    path = folder / "site.toml"
    path.write_text(own_site(folder, site))
    files = load_site(path)
    assert files.site.virtual_cell is not None
    cell = Cell(files, fit(files), Plant(files.machine, files.site.virtual_cell))
    cell.sensing.open()
    try:
        yield cell
    finally:
        cell.sensing.close()


def switching(cell: Cell, folder: Path, *asked: Switching) -> list[Reply]:
    async def run() -> list[Reply]:
        switches = Switches(cell, folder / "cell")
        try:
            return [await switches.switch(item) for item in asked]
        finally:
            switches.close()
            await cell.server.close()

    return asyncio.run(run())


def example(value: str) -> str:
    """A value that a fault takes."""
    return {"": "", "[N]": "2", "I,J": "1,3", "N": "7", "CODE": "6", "BITS": "1"}.get(value, "0.05")


@pytest.mark.parametrize("site", [SIMULATION, LINES], ids=["terminals", "lines"])
def test_every_fault_can_be_switched_on_and_off_while_the_cell_runs(tmp_path: Path, site: Path) -> None:
    with cell_at(tmp_path, site) as cell:
        faults = catalogue(cell)
        for name, fault in faults.items():
            assert fault.meaning and (name.count(".") >= 1) and not name.startswith(".")
            [on] = switching(cell, tmp_path, Switching(name, example(fault.value)))
            cell.cycle()
            [off] = switching(cell, tmp_path, Switching(name, "off"))
            cell.cycle()
            assert on.done and off.done, (name, on, off)
            assert fault.meaning in on.text and on.text.startswith(name)


def test_switched_off_everything_is_as_it_was(tmp_path: Path) -> None:
    def state(cell: Cell) -> list[object]:
        sensing, cx = cell.sensing, cell.cx
        return [
            {name: given.fault for name, given in sensing.inputs.items()},
            {name: value for name, value in sensing.offset.items() if value}, sensing.turned.copy(),
            cx.frozen, cx.layout_version, cx.drive_share.tolist(), cx.device.state,
            [symbol.name for symbol in cx.device.symbols if not symbol.name.endswith("stNew")],
            {name: getattr(cell.network, name) for name in dir(cell.network) if name.endswith(("answers", "ency_s"))},
        ]  # fmt: skip

    with cell_at(tmp_path) as cell:
        before = state(cell)
        alone = ("net.unplug", "net.router-off")  # one at a time: both stop listening, and listen again
        faults = {name: fault for name, fault in catalogue(cell).items() if name not in alone}
        on = [Switching(name, example(fault.value)) for name, fault in faults.items()]
        off = [Switching(item.name, "off") for item in on]
        switching(cell, tmp_path, *on)
        assert state(cell) != before
        switching(cell, tmp_path, *off)
        assert state(cell) == before


def test_the_catalogue_has_what_the_site_has(tmp_path: Path) -> None:
    with cell_at(tmp_path) as cell:
        names = set(catalogue(cell))
        assert {f"{cell_name}.{word}" for cell_name in CELLS for word in ("offset", "drift", "turned")} <= names
        assert {f"cell_2.{fault.value}" for fault in InputFault if fault is not InputFault.NONE} <= names
        assert {f"drive.{i}.dead" for i in range(1, 7)} <= names and "drive.7.dead" not in names
        assert not any("unplugged" in name or "silent" in name for name in names)


def test_the_catalogue_of_lines_has_every_behaviour_of_every_instrument(tmp_path: Path) -> None:
    with cell_at(tmp_path, LINES) as cell:
        names = set(catalogue(cell))
        words = {b.name.lower().replace("_", "-") for b in Behaviour if b is not Behaviour.HONEST}
        assert {f"gateway_3.{word}" for word in words} <= names
        assert {"usb.silent", "usb.noise", "inclinometer.without-y", "rtu_1.unplugged", "gateway_1.hangs-up"} <= names
        assert not any(name.startswith("cell_1.wire-break") for name in names)  # it is not at a terminal


def test_what_faults_of_sensors_do(tmp_path: Path) -> None:
    with cell_at(tmp_path) as cell:
        sound = cell.cx.input_raw[:6].copy()
        switching(
            cell, tmp_path, Switching("cell_1.turned"), Switching("cell_2.offset", "100"),
            Switching("cell_3.wire-break"), Switching("cell_4.calibrating"), Switching("cell_5.drift", "50"),
        )  # fmt: skip
        for _ in range(50):
            cell.cycle()
        raw, status = cell.cx.input_raw, cell.cx.input_status
        noise = 1500  # three times 0.5 N, a count being 2.2 mN
        zero = 2000  # of cell 1: 0.004 mV/V
        assert raw[0] - zero == pytest.approx(zero - sound[0], abs=2 * noise)
        assert raw[1] - sound[1] == pytest.approx(100.0 * 2.0021 / 2224.1 * 5e5, abs=2 * noise)
        assert status[2] & InputStatus.ERROR and status[3] == InputStatus.CALIBRATING and raw[3] == sound[3]
        assert status[0] == status[1] == status[5] == 0
        assert cell.sensing.offset["cell_5"] == pytest.approx(50.0 * 0.1, rel=0.1)  # 50 PLC cycles of 2 ms


def test_what_faults_of_the_plc_do(tmp_path: Path) -> None:
    with cell_at(tmp_path) as cell:
        cell.cycle()
        at = cell.cx.twin.cycle
        switching(cell, tmp_path, Switching("plc.frozen"), Switching("drive.3.dead"), Switching("plc.layout"))
        cell.cycle()
        assert cell.cx.twin.cycle == at
        assert cell.cx.drive_share.tolist() == [1, 1, 0, 1, 1, 1] and cell.cx.layout_version == LAYOUT_VERSION + 1
        switching(cell, tmp_path, Switching("plc.frozen", "off"), Switching("plc.stop"))
        cell.cycle()
        assert cell.cx.device.state is AdsState.STOP
        assert np.isfinite(cell.plant.position_m).all()


def test_what_faults_of_lines_do(tmp_path: Path) -> None:
    with cell_at(tmp_path, LINES) as cell:
        switching(
            cell, tmp_path, Switching("gateway_2.exception", "6"), Switching("gateway_1.late", "0.3"),
            Switching("rtu_1.short"), Switching("usb.status", "256"), Switching("inclinometer.halves"),
            Switching("rtu_2.unplugged"), Switching("gateway_3.status", "2"),
        )  # fmt: skip
        sensing = cell.sensing
        slave = sensing.slaves["gateway_2"]
        assert (slave.behaviour, slave.exception) == (Behaviour.EXCEPTION, 6)
        assert (sensing.slaves["gateway_1"].behaviour, sensing.slaves["gateway_1"].delay_s) == (Behaviour.LATE, 0.3)
        assert sensing.slaves["rtu_1"].behaviour is Behaviour.SHORT
        assert sensing.conditioners["usb"].status == 256 and sensing.inclinometers["inclinometer"].halves
        assert not sensing.lines["rtu_2"].plugged and sensing.slaves["gateway_3"].status == 2


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Switching("cell_9.offset", "3"), "found 'cell_9.offset', `pkm fault SITE.toml` lists"),
        (Switching("cell_1.offset", "much"), "cell_1.offset: found 'much', expected a number (N) or off"),
        (Switching("cell_1.offset", "nan"), "expected a number (N) or off"),
        (Switching("cell_1.offset"), "cell_1.offset: found '', expected a number (N) or off"),
        (Switching("cell_1.turned", "5"), "cell_1.turned: found '5', expected nothing or off"),
        (Switching("net.latency", "inf"), "expected a number (S) or off"),
        (Switching("plc.refuse", "six"), "expected a number (CODE) or off"),
    ],
)
def test_a_typo_is_refused_with_what_is_expected_and_changes_nothing(
    tmp_path: Path, asked: Switching, words: str
) -> None:
    with cell_at(tmp_path) as cell:
        [reply] = switching(cell, tmp_path, asked)
        assert not reply.done and words in reply.text
        assert not cell.sensing.turned and not any(cell.sensing.offset.values())


def test_a_fault_for_a_time_ends_by_itself_and_the_socket_survives_nonsense(tmp_path: Path) -> None:
    async def run(cell: Cell) -> list[Reply]:
        path = tmp_path / "cell"
        switches = Switches(cell, path)

        async def asked(question: bytes) -> Reply:
            answer: Awaitable[bytes] = asyncio.to_thread(ask, path, question, 10.0)
            return msgspec.json.decode(await answer, type=Reply)

        try:
            replies = [await asked(b"\xff\x00"), await asked(b'{"name": 3}'), await asked(b'{"naame": "x"}')]
            replies.append(await asked(msgspec.json.encode(Switching("cell_1.offset", "7", 0.05))))
            assert cell.sensing.offset == {"cell_1": 7.0}
            for _ in range(1000):
                await asyncio.sleep(0.01)
                if not cell.sensing.offset["cell_1"]:
                    break
            assert cell.sensing.offset == {"cell_1": 0.0}
            replies.append(await asked(msgspec.json.encode(Switching())))
            return replies
        finally:
            switches.close()
            await cell.server.close()

    with cell_at(tmp_path) as cell:
        *nonsense, timed, listed = asyncio.run(run(cell))
        assert not any(reply.done for reply in nonsense)
        assert timed == Reply(True, "cell_1.offset 7, for 0.05 s: cell_1 shows so much too much")
        lines = listed.text.splitlines()
        assert "cell_1.offset N" in lines and "plc.frozen" in lines and len(lines) == len(catalogue(cell))
        assert not (tmp_path / "cell").exists()


def test_no_socket_no_cell(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")

    async def run(cell: Cell) -> None:
        with pytest.raises(ConfigurationError, match=r"virtual_cell\.control: cannot listen at"):
            Switches(cell, tmp_path / "a file" / "cell")

    with cell_at(tmp_path) as cell:
        asyncio.run(run(cell))


def test_the_command_without_a_cell_to_ask(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    text = own_site(tmp_path)
    path.write_text(text)
    refused(pkm("fault", path, "plc.frozen"), 3, "no virtual cell listens at", "pkm plant")
    path.write_text(text.replace(f'control = "{tmp_path}/run/simulation.cell"', ""))
    refused(pkm("fault", path, "plc.frozen"), 2, "site.toml", "virtual_cell.control", "missing")
