"""The whole system as its user starts it: real processes, real ADS/TCP, a real broker; kills and frozen parts."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyads
import pytest

from controller.commands.replay import replay
from controller.recording import parts
from controller.records import Mode
from controller.service.mailbox import Message, send
from drivers.exchange import STATUS, PlcState
from tests.gateway.bench import Listener, accepts, wait_until
from tests.hil.stand import System
from tests.machines import SIMULATION, own_site, without_cell


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    systems: list[System] = []

    def _start(*arguments: str, **keywords: Any) -> System:
        systems.append(System(tmp_path, *arguments, **keywords))
        return systems[-1]

    yield _start
    for system in systems:
        if system.process.poll() is None:
            system.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                system.process.communicate(timeout=10)
        if system.process.poll() is None:
            system.process.kill()
        system.process.communicate()


def mqtt_port(text: str) -> int:
    return int(re.search(r"port = (\d+)", text.split("[mqtt]")[1])[1])  # type: ignore[index]


def test_demo_moves_publishes_records_and_replays_bit_for_bit(start: Any, tmp_path: Path) -> None:
    site = own_site(tmp_path)
    system = start("--demo", "--duration", "9", "--json", site=site)
    system.said("broker started")
    wait_until(lambda: accepts(mqtt_port(site)))
    listener = Listener(mqtt_port(site), "simulation")
    assert system.ends() == 0, system.log.read_text()
    time.sleep(0.3)
    listener.close()

    summary = system.summary
    assert summary["ticks"] == summary["recorded"] == 900
    assert summary["mode"] == "OFF"
    assert set(summary["faults"]) <= {"STATUS_LATE", "OVERRUN"}  # a machine that others load may be late, and says so
    assert summary["following_error_m"]["peak"] > 0.0
    assert " ".join(summary) == (
        "ticks skipped lateness_ms exchange_ms following_error_m faults mode recorded recording"
    )

    meta, columns, rows = system.recording()
    assert len(rows) == 900
    assert np.nanmax(columns["z_m"]) - np.nanmin(columns["z_m"]) > 0.02
    assert set(columns["mode"]) >= {Mode.OFF, Mode.READY, Mode.ACTIVE}
    assert replay(meta, rows, Path(summary["recording"])) is None
    changed = rows.copy()
    at = meta["channels"].index(next(c for c in meta["channels"] if c[0] == "command_3_m"))
    changed[600, at] = np.nextafter(changed[600, at], 2.0)
    difference = replay(meta, changed, Path(summary["recording"]))
    assert difference is not None
    assert (difference.row, difference.channel) == (600, "command_3_m")

    states = listener.payloads("state")
    assert states[0]["online"] is True
    assert states[-1]["online"] is False
    assert {state["session"] for state in states} == {meta["session"]}
    assert [channel["name"] for channel in listener.payloads("meta")[0]["channels"]] == list(columns)
    assert listener.longest["telemetry/live"] < 4000
    live = listener.payloads("telemetry/live")
    assert all(isinstance(value, (int, float)) or value is None for data in live for value in data.values())
    seen = listener.sequence()
    assert seen == list(range(seen[0], 900))  # no gap, none twice
    assert any(event["kind"] == "mode" for event in listener.payloads("event"))


@pytest.mark.parametrize("machine", ["6-upru-unequal-legs", "6-ups", "6-uhu", "3-ups-s", "2-upr-2-rpu"])
def test_every_mechanism_moves_in_its_own_cell(start: Any, tmp_path: Path, machine: str) -> None:
    site = own_site(tmp_path, SIMULATION.with_name(f"simulation-{machine}.toml"))
    system = start("--demo", "--duration", "5", "--json", site=site)
    assert system.ends() == 0, system.log.read_text()
    assert system.summary["recorded"] == system.summary["ticks"] == 500
    meta, columns, rows = system.recording()
    assert Mode.ACTIVE in columns["mode"]
    lengths = np.array([columns[f"length_{i}_m"] for i in range(1, meta["legs"] + 1)])
    assert np.ptp(lengths, axis=1).max() > 0.01
    assert replay(meta, rows, Path(system.summary["recording"])) is None


def test_killed_gateway_leaves_control_alone_and_no_sample_is_lost(start: Any, tmp_path: Path) -> None:
    system = start("--demo", "--duration", "9", "--json", site=own_site(tmp_path))
    system.said("READY → ACTIVE")
    time.sleep(2.0)
    os.kill(system.pid("gateway"), signal.SIGKILL)
    assert system.ends() == 0, system.log.read_text()
    assert "gateway was ended by SIGKILL; started again" in system.log.read_text()
    summary = system.summary
    meta, columns, rows = system.recording()
    assert len(parts(Path(summary["recording"]))) == 2
    assert len(rows) == summary["ticks"] == summary["recorded"] == 900
    assert meta["recording"]["gaps"] == []
    assert meta["recording"]["duplicates"] == 0
    assert Mode.FAULT not in columns["mode"]
    assert replay(meta, rows, Path(summary["recording"])) is None


def test_killed_virtual_cell_ends_in_a_fault_within_five_ticks(start: Any, tmp_path: Path) -> None:
    system = start("--demo", "--json", site=own_site(tmp_path))
    system.said("request SINE: accepted")  # five seconds of motion without a pause
    time.sleep(1.0)
    os.kill(system.pid("plant"), signal.SIGKILL)
    assert system.ends() == 4
    text = system.log.read_text()
    assert "Traceback" not in text
    assert re.search(r"FAULT: .*the ADS link to the PLC is down", text)
    assert system.summary["mode"] == "FAULT"
    assert system.summary["recorded"] == system.summary["ticks"]
    _, columns, _ = system.recording()
    tripped = int(np.argmax(columns["mode"] == Mode.FAULT))
    last_answer = int(np.flatnonzero(np.diff(columns["plc_cycle"]))[-1]) + 1
    assert columns["tick"][tripped] - columns["tick"][last_answer] <= 5
    assert columns["mode"][tripped - 1] == Mode.ACTIVE
    assert not columns["command_axis_mode"][tripped:].any()


class Peek:
    """A second ADS client that looks at what the PLC does."""

    def __init__(self, address: str) -> None:
        self.plc = pyads.Connection("127.0.0.1.1.1", 851, address)
        self.plc.open()

    def status(self) -> np.void:
        data = self.plc.read_by_name("GVL_Pkm.stStatus", pyads.PLCTYPE_USINT * STATUS.itemsize)
        return np.frombuffer(bytes(data), STATUS)[0]


def test_killed_controller_is_held_by_the_plc_which_then_stands_still(start: Any, tmp_path: Path) -> None:
    site = own_site(tmp_path)
    plant = start(command="plant", site=site)
    address = plant.said(r"listens at ([\d.:]+)")[1].rstrip(",")
    text = without_cell(site)
    system = start("--demo", site=text)
    system.said("request SINE: accepted")  # five seconds of motion without a pause
    time.sleep(1.5)
    system.process.kill()
    held = plant.said(r"no new set-point for (\d+) ms: controlled hold")
    assert int(held[1]) <= 50
    plant.said(r"quick stop")
    plant.said(r"standstill")
    peek = Peek(address)
    before = peek.status()
    time.sleep(0.2)
    after = peek.status()
    peek.plc.close()
    assert after["plc_state"] == PlcState.QUICK_STOP
    assert after["plc_cycle"] != before["plc_cycle"]
    assert np.abs(after["position_m"] - before["position_m"]).max() < 1e-5
    plant.process.send_signal(signal.SIGTERM)
    assert plant.ends() == 0


def test_operator_by_the_shell_and_an_orderly_end_by_ctrl_c(start: Any, tmp_path: Path) -> None:
    site = own_site(tmp_path)
    system = start("--json", site=site)
    system.said("start → OFF")
    second = System(tmp_path / "second", "--demo", site=site)
    assert second.ends() == 2
    assert f"process {system.process.pid}, drives the PLC" in second.log.read_text()
    requests = tmp_path / "run" / "simulation.requests"

    def ask(kind: str, **pose: float) -> str:
        return send(requests, Message(time.time_ns() // 1000, kind, pose, speed_share=0.2)).verdict

    assert ask("move", z_m=0.9) == "REFUSED"  # a move needs all six coordinates
    assert ask("sine", z_m=0.01) == "WRONG_MODE"
    assert ask("ready") == "ACCEPTED"
    system.said("following the host's set-points")
    time.sleep(0.3)
    level = {"x_m": 0.03, "y_m": 0.0, "z_m": 0.88, "yaw_rad": 0.2, "pitch_rad": 0.0, "roll_rad": 0.0}
    assert ask("move", **(level | {"x_m": 9.0})) == "UNREACHABLE"
    assert ask("move", **level) == "ACCEPTED"
    system.said("READY → ACTIVE")
    system.process.send_signal(signal.SIGINT)
    assert system.ends() == 0, system.log.read_text()
    assert system.summary["mode"] == "OFF"
    assert system.summary["recorded"] == system.summary["ticks"]
    assert "ACTIVE → STOPPING" in system.log.read_text()


def test_frozen_and_killed_broker_does_not_touch_control(start: Any, tmp_path: Path) -> None:
    system = start("--demo", "--duration", "9", "--json", site=own_site(tmp_path))
    system.said("READY → ACTIVE")
    broker = system.pid("broker")
    os.kill(broker, signal.SIGSTOP)
    time.sleep(3.0)
    os.kill(broker, signal.SIGCONT)
    time.sleep(1.0)
    os.kill(broker, signal.SIGKILL)
    assert system.ends() == 0, system.log.read_text()
    assert system.summary["recorded"] == system.summary["ticks"] == 900
    assert "broker was ended by SIGKILL; started again" in system.log.read_text()


def test_a_required_sensor_that_is_not_there_refuses_the_start(start: Any, tmp_path: Path) -> None:
    text = own_site(tmp_path)
    plant = start(command="plant", site=text)
    plant.said("listens at")
    usb = f"""
[devices.usb]
profile = "{SIMULATION.parents[1]}/devices/dscusb.toml"
line = {{ kind = "serial", path = "{tmp_path}/tty-nothing" }}

[sensors.cell_1]
device = "usb"
channel = "value"

[sensors.cell_2]"""
    cell_1 = text[text.index("[sensors.cell_1]") : text.index("[sensors.cell_2]")]
    text = without_cell(text).replace(cell_1, "").replace("\n[sensors.cell_2]", usb)
    system = start("--json", site=text)
    assert system.ends() == 3, system.log.read_text()
    assert "Traceback" not in system.log.read_text()
    assert system.out == ""
    words = r"pkm run: sensor cell_1 \(usb, channel value\): .*tty-nothing cannot be opened"
    assert re.search(words, system.log.read_text()), system.log.read_text()
    assert "cell_2 (" not in system.log.read_text()
    assert "PLC:" not in plant.log.read_text()  # it was never asked for anything


def test_two_cells_cannot_have_one_port(start: Any, tmp_path: Path) -> None:
    plant = start(command="plant", site=own_site(tmp_path))
    plant.said("listens at")
    second = start(command="plant")
    assert second.ends() == 2
    assert "ads.address" in second.log.read_text()
    assert "Traceback" not in second.log.read_text()
