"""A shadow beside another controller: it sees everything and the PLC never notices it."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pyads
from msgspec import structs

from controller.clock import Tick
from controller.mechanism import kinematics
from controller.records import AxisMode, Mode, Output, Request, RequestKind, Timing, Verdict, channels
from controller.schema import Ads, VirtualCell
from controller.service import loop
from controller.service.mailbox import Message, send
from controller.settings import load_site
from controller.state import prepare
from drivers.ads import AdsDriver
from drivers.exchange import COMMAND, LAYOUT_VERSION, SYMBOL_COMMAND, PlcState
from drivers.shadow import ShadowDriver
from drivers.virtual import ams
from drivers.virtual.cx5130 import Cx5130
from drivers.virtual.plant import Plant
from tests.hil.stand import System
from tests.machines import NOTHING, SIMULATION, own_site, without_cell
from tests.shell import pkm, refused

NET_ID = "127.0.0.1.77.1"
CYCLE_S, CYCLES = 0.002, 5  # of the PLC, in a tick
READY_TICK, MOVE_TICK, RAMP_TICK, LAST_WORD_TICK, END_TICK = 40, 60, 70, 170, 200
RAMP_M_S = 0.01  # of every leg, by the other controller


class Rows:
    """A ring that keeps everything."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.kept: list[np.ndarray] = []

    def push(self, row: np.ndarray) -> None:
        self.kept.append(row.copy())


class OtherController:
    """What moves the machine; it writes into the memory of the PLC, so that every write over ADS is the shadow's."""

    def __init__(self, cx: Cx5130) -> None:
        self.symbol = cx.device.symbols[0]
        self.block = np.frombuffer(self.symbol.data, COMMAND)
        self.home_m = cx.plant.position_m.copy()
        self.last_word = bytes(self.symbol.data)

    def command(self, tick: int) -> None:
        if tick > LAST_WORD_TICK:  # it has died
            return
        ramp_s = max(tick - RAMP_TICK, 0) * CYCLE_S * CYCLES
        block = np.zeros(1, COMMAND)
        block["size"], block["version"] = COMMAND.itemsize, LAYOUT_VERSION
        block["seq"], block["mode"] = tick, AxisMode.FOLLOW if tick > 30 else AxisMode.HOLD
        block["host_time_s"], block["period_s"] = tick * CYCLE_S * CYCLES, CYCLE_S * CYCLES
        block["velocity_feedforward"] = 1.0
        block["position_m"] = self.home_m + RAMP_M_S * ramp_s
        block["velocity_m_s"] = RAMP_M_S * (ramp_s > 0.0)
        self.block[0] = block[0]
        self.last_word = block.tobytes()


def test_the_plc_never_notices_a_shadow() -> None:
    files = load_site(SIMULATION)
    setup, n = prepare(files.machine, structs.replace(files.site, sensors={})), len(files.machine.leg)
    cx = Cx5130(Ads(ams_net_id=NET_ID, address=""), files.machine, Plant(files.machine, VirtualCell()), CYCLE_S)
    other, written = OtherController(cx), list[bytes]()
    other.symbol.on_write = written.append

    events = asyncio.new_event_loop()
    thread = threading.Thread(target=events.run_forever)
    thread.start()
    server = ams.Server(cx.device)
    host, port = asyncio.run_coroutine_threadsafe(server.open("127.0.0.1", 0), events).result()
    driver = AdsDriver(Ads(ams_net_id=NET_ID, address=f"{host}:{port}", timeout_s=0.5), n, 0.01)
    shadow = ShadowDriver(driver)
    driver.open()
    outputs, ring = list[Output](), Rows(len(channels(n)))
    states = list[int]()

    async def clock() -> AsyncIterator[Tick]:
        """Stepped: the PLC runs its cycles, then the tick sees them, however long that takes."""
        for number in range(1, END_TICK + 1):
            other.command(number)
            for _ in range(CYCLES):
                cx.cycle()
            states.append(int(cx.twin.state))
            end_s = time.monotonic() + 15.0
            while driver.reading.status is None or driver.reading.status["plc_cycle"] != cx.twin.cycle:
                assert time.monotonic() < end_s, driver.message
                driver.poll()
                await asyncio.sleep(0.001)
            yield Tick(number, time.monotonic(), 0.0, 0)

    def next_request() -> Request:
        tick = len(outputs) + 1
        if tick == READY_TICK:
            return Request(RequestKind.READY, 1, np.zeros(6))
        target = setup.home + np.array([0.0, 0.0, 0.02, 0.0, 0.0, 0.0])
        return Request(RequestKind.MOVE, 2, target) if tick == MOVE_TICK else NOTHING

    def observe(output: Output, timing: Timing) -> bool:
        outputs.append(output)
        assert bytes(other.symbol.data) == other.last_word
        assert timing.dropped == len(outputs)
        return True

    try:
        asyncio.run(loop.control(setup, clock(), shadow, lambda s, _: s, next_request, ring, observe, time.monotonic()))
    finally:
        driver.close()
        asyncio.run_coroutine_threadsafe(server.close(), events).result()
        events.call_soon_threadsafe(events.stop)
        thread.join()
        events.close()

    # nothing reached the PLC, not even the STOP at the end, and nothing fed its watchdog when the other one died
    assert written == []
    assert bytes(other.symbol.data) == other.last_word
    assert shadow.dropped == END_TICK + 1
    assert driver.reading.exchanges == 0
    assert states[LAST_WORD_TICK - 1] == PlcState.FOLLOWING
    assert states[-1] == PlcState.QUICK_STOP

    # what would have been sent is recorded, beside what the other controller made of the machine
    rows = {channel.name: np.array(ring.kept)[:, k] for k, channel in enumerate(channels(n))}
    assert outputs[READY_TICK - 1].verdict is outputs[MOVE_TICK - 1].verdict is Verdict.ACCEPTED
    assert Mode.ACTIVE in rows["mode"]
    assert AxisMode.FOLLOW in rows["command_axis_mode"]
    assert np.array_equal(rows["seq_echo"][:LAST_WORD_TICK], np.arange(1, LAST_WORD_TICK + 1))
    lengths_m = np.array([rows[f"length_{i}_m"] for i in range(1, n + 1)]).T
    moved_m = lengths_m[LAST_WORD_TICK - 1] - other.home_m
    np.testing.assert_allclose(moved_m, RAMP_M_S * (LAST_WORD_TICK - RAMP_TICK) * 0.01, atol=5e-4)
    found = np.empty(n)
    for k in (MOVE_TICK, 120, LAST_WORD_TICK):
        kinematics.leg_lengths(setup.machine, outputs[k - 1].estimate.pose, found)
        np.testing.assert_allclose(found, lengths_m[k - 1], atol=1e-9)
    # the plant of this test is that of the machine file, standing at home: its drives bear what the model says
    at_rest = slice(MOVE_TICK - 11, MOVE_TICK - 1)
    for i in range(1, n + 1):
        np.testing.assert_allclose(rows[f"model_{i}_n"][at_rest], rows[f"drive_{i}_n"][at_rest].mean(), rtol=0.02)


def test_a_whole_run_as_a_shadow_leaves_the_plc_as_it_was(tmp_path: Path) -> None:
    text = own_site(tmp_path)
    plant = System(tmp_path / "plant", command="plant", site=text)
    try:
        plant.said("listens at")
        shadow = System(tmp_path, "--shadow", "--duration", "3", "--json", site=without_cell(text))
        shadow.said("shadow: nothing is sent to the PLC at 127.0.0.1")
        shadow.said("start → OFF")
        assert send(tmp_path / "run" / "simulation.requests", Message(1, "ready")).verdict == "ACCEPTED"
        assert shadow.ends() == 0, shadow.log.read_text()
        files = load_site(tmp_path / "site.toml")
        assert command_block(files.site.ads) == bytes(COMMAND.itemsize)
        assert "PLC:" not in plant.log.read_text()
    finally:
        plant.process.terminate()
        plant.ends()
    meta, columns, rows = shadow.recording()
    assert meta["driver"] == "shadow"
    assert len(rows) == shadow.summary["ticks"]
    assert set(columns["mode"]) == {Mode.OFF, Mode.READY}
    assert AxisMode.HOLD in columns["command_axis_mode"]
    assert not columns["seq_echo"].any()
    assert np.isfinite(columns["z_m"]).all()
    assert np.ptp(columns["z_m"]) < 1e-4
    assert (np.abs(columns["model_1_n"]) > 10.0).all()
    assert shadow.summary["exchange_ms"]["p50"] is None


def command_block(ads: Ads) -> bytes:
    connection = pyads.Connection(ads.ams_net_id, ads.ams_port, ads.address)
    connection.open()
    try:
        return bytes(connection.read_by_name(SYMBOL_COMMAND, pyads.PLCTYPE_USINT * COMMAND.itemsize))
    finally:
        connection.close()


def test_a_shadow_has_no_demo_to_show() -> None:
    refused(pkm("run", SIMULATION, "--demo", "--shadow"), 2, "--shadow", "--demo")
