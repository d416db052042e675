"""Every fault that others met in the field, played to the whole system in motion; `make faults` prints the table."""

import math
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from controller import schema
from controller.records import Link, Mode, Quality
from controller.service.mailbox import Message, send
from controller.settings import parse
from tests.hil.stand import Row, Stand, System, names, switch
from tests.machines import SIMULATION, own_site, without_cell
from tests.table import Line, note

SITES = {
    "terminals": (SIMULATION, {"z_m": 0.01}),
    "lines": (SIMULATION.with_name("simulation-lines.toml"), {"z_m": 0.01}),
    "hydraulic": (SIMULATION.with_name("simulation-3-ups-s.toml"), {"yaw_rad": 0.04}),
}
STANDING_M_S = 2e-3
# Cells against the model, of 2224 N: the plant is heavier, rubs, and a late link jerks it; garbage would be far off.
CELL_TOLERANCE_N = 200.0
PRESSURE_PA = (0.0, 215e5)


@dataclass(frozen=True)
class Case:
    """One fault; `shown` tells from a row that it was seen."""

    site: str
    fault: str
    value: str
    shown: Callable[[Row], bool]
    effect: str
    stops: bool
    within_s: float = 1.0
    before: tuple[str, ...] = ()  # switched at once before
    hold_s: float = 0.15  # from being seen to its end
    recovers_s: float = 8.0
    also: tuple[str, ...] = field(default=())  # further faults that may be set

    @property
    def name(self) -> str:
        return f"{self.fault} {self.value}".strip()


def has(fault: str) -> Callable[[Row], bool]:
    return lambda row: fault in names(row["faults"])


def late(row: Row) -> bool:
    return row["link"] == Link.LATE or row["age_s"] > 0.015


def slow(row: Row) -> bool:
    return row["exchange_s"] > 0.004


def unmoved(row: Row) -> bool:
    return row["mode"] == Mode.ACTIVE


def lost(name: str) -> Callable[[Row], bool]:
    return lambda row: row[f"{name}_quality"] != Quality.GOOD


RENEWED = "by itself, then acknowledge, ready, new motion"
BRIDGED, HELD, TRIPPED, TOLD = "none: bridged", "controlled stop", "trip: fault, latched", "told, motion goes on"


def net(fault: str, value: str = "", **more: object) -> Case:
    return Case("terminals", fault, value, has("LINK_LOST"), TRIPPED, True, **more)


def bridged(fault: str, value: str, shown: Callable[[Row], bool], **more: object) -> Case:
    return Case("terminals", fault, value, shown, BRIDGED, False, **more)


def required(site: str, sensor: str, fault: str, value: str = "", **more: object) -> Case:
    return Case(site, fault, value, lost(sensor), HELD, True, **more)


def optional(fault: str, **more: object) -> Case:
    return Case("lines", f"inclinometer.{fault}", "", lost("tilt_x"), TOLD, False, **more)


CASES = [
    # the network, with a link that stays
    bridged("net.latency", "0.005", slow),
    bridged("net.jitter", "0.012", slow),
    bridged("net.fragment", "40", unmoved),
    bridged("net.lose", "1", late),
    bridged("net.ignore", "1", late),
    bridged("net.wrong-id", "1", unmoved),
    bridged("net.repeat", "1", unmoved),
    # ... and one that is late for too long
    Case("terminals", "net.lose", "4", has("STATUS_LATE"), HELD, True),
    Case("terminals", "net.late", "1", has("STATUS_LATE"), HELD, True),
    Case("terminals", "net.gather", "2", late, HELD, True, also=("STATUS_LATE", "LINK_LOST")),
    # ... and one that breaks
    net("net.latency", "0.03"),
    net("net.lose"),
    net("net.ignore"),
    net("net.cut"),
    net("net.cut-request", "1"),
    net("net.cut-answer", "1"),
    net("net.garble", "1"),
    net("net.noise", "1"),
    net("net.unplug", hold_s=6.0),
    net("net.router-off", hold_s=1.0),
    net("net.no-route", before=("net.cut",)),
    # the PLC
    net("plc.stop"),
    net("plc.config"),
    net("plc.exception"),
    net("plc.online-change"),
    net("plc.other-program"),
    net("plc.layout"),
    net("plc.refuse", "6"),
    net("plc.refuse", "7"),
    net("plc.refuse-read", "1797"),
    net("plc.refuse-read", "1809"),
    net("plc.refuse-write", "1808"),
    net("plc.refuse-write", "1827"),
    Case("terminals", "plc.frozen", "", has("PLC_FROZEN"), TRIPPED, True),
    Case("terminals", "drive.3.dead", "", has("PLC_STOPPED"), TRIPPED, True),
    # analogue inputs: bridges, 4 to 20 mA
    *(
        required("terminals", "cell_2", f"cell_2.{fault}")
        for fault in ("wire-break", "short-circuit", "overrange", "invalid", "calibrating", "no-data")
    ),
    *(
        required("hydraulic", "head_pressure_2", f"head_pressure_2.{fault}")
        for fault in ("wire-break", "short-circuit", "overrange", "invalid", "no-data")
    ),
    # Modbus TCP
    *(
        required("lines", "cell_3", f"gateway_1.{fault}", value)
        for fault, value in (
            ("silent", ""), ("late", "0.15"), ("short", ""), ("long", ""), ("wrong-function", ""), ("wrong-unit", ""),
            ("wrong-transaction", ""), ("echo", ""), ("noise", ""), ("exception", "1"), ("exception", "2"),
            ("exception", "3"), ("exception", "6"), ("exception", "11"), ("status", "1"), ("status", "2"),
            ("hangs-up", ""),
        )
    ),
    # Modbus RTU
    *(
        required("lines", "cell_1", f"rtu_1.{fault}", value)
        for fault, value in (
            ("silent", ""), ("late", "0.15"), ("short", ""), ("wrong-unit", ""), ("echo", ""), ("noise", ""),
            ("exception", "2"), ("exception", "6"), ("status", "4"), ("unplugged", ""),
        )
    ),
    # serial lines
    *(
        required("lines", "cell_6", f"usb.{fault}", value)
        for fault, value in (
            ("silent", ""), ("refuses", ""), ("halves", ""), ("noise", ""), ("status", "256"), ("status", "2048"),
            ("status", "8192"), ("unplugged", ""),
        )
    ),
    *(optional(fault) for fault in ("silent", "without-y", "halves", "noise", "unplugged")),
]  # fmt: skip


@pytest.fixture(scope="module")
def stands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Stand]]:
    running: dict[str, Stand] = {}

    def get(site: str) -> Stand:
        if site not in running:
            while running:  # one at a time: two would disturb each other's clocks
                finish(running.popitem()[1])
            path, amplitude = SITES[site]
            running[site] = Stand(tmp_path_factory.mktemp(site), path, amplitude)
        return running[site]

    yield get
    for stand in running.values():
        finish(stand)


def finish(stand: Stand) -> None:
    code, text = stand.end(), stand.system.log.read_text()
    assert code == 0, text[-3000:]
    assert "Traceback" not in text


def tell(stand: Stand, injected: str, row: Row, began_s: float, effect: str, recovery: str) -> None:
    """A line of the table for a case of its own test."""
    faults = sorted(set[str]().union(*(names(bits) for bits in set(stand.array("faults")))))
    skipped = int(stand.array("skipped")[-1] - stand.array("skipped")[0])
    note(Line(injected, "terminals", stand.since_ms(row, began_s), effect, True, recovery, skipped, faults))


def test_a_frozen_control_process_is_stopped_by_the_plc(stands: Callable[[str], Stand]) -> None:
    stand = stands("terminals")
    stand.move()
    began_s = stand.mark()
    os.kill(stand.system.process.pid, signal.SIGSTOP)
    time.sleep(0.3)
    os.kill(stand.system.process.pid, signal.SIGCONT)
    # it learns of its sleep from the clock or from the PLC, whichever it looks at first, and switches off either way
    row = stand.wait(lambda row: row["mode"] == Mode.FAULT, 1.0)
    assert names(int(row["faults"])) & {"OVERRUN", "PLC_STOPPED"}
    assert re.search(r"no new set-point for \d+ ms: controlled hold", stand.system.log.read_text())
    stand.watch(0.3)
    check_no_wrong_value(stand)
    assert stand.array("skipped")[-1] - stand.array("skipped")[0] >= 20  # skipped, counted, never caught up
    assert stand.array("mode")[-1] == Mode.FAULT
    tell(
        stand, "control process frozen 300 ms", row, began_s, TRIPPED, "by itself, then acknowledge, ready, new motion"
    )


def test_a_second_ads_program_on_this_computer_costs_the_link_once_and_is_named(stands: Callable[[str], Stand]) -> None:
    stand = stands("terminals")
    stand.move()
    began_s = stand.mark()
    with socket.create_connection(stand.address):
        row = stand.wait(has("LINK_LOST"), 1.0)
        stand.wait(stand.healthy, 3.0)
        assert "another program on this computer has opened one" in stand.system.log.read_text()
        stand.watch(0.5)
        assert Mode.ACTIVE not in set(stand.array("mode")[-20:])
        assert np.sum(np.diff(stand.array("link") == Link.DOWN)) == 2  # down once, up once
    tell(stand, "second ADS program here", row, began_s, TRIPPED, "one reconnect, then acknowledge, ready, new motion")


def test_a_second_hiccup_after_a_reconnect_costs_no_five_seconds(stands: Callable[[str], Stand]) -> None:
    stand = stands("terminals")
    stand.move()
    stand.mark()
    stand.fault("net.cut")
    stand.wait(has("LINK_LOST"), 1.0)
    stand.wait(stand.healthy, 3.0)
    stand.watch(0.3)
    began_s = stand.mark()
    stand.fault("net.ignore", "1")
    row = stand.wait(late, 0.5)
    stand.wait(stand.healthy, 0.5)
    stand.fault("net.ignore", "off")
    tell(stand, "hiccup after a reconnect", row, began_s, "none: the fault before stands", "by itself")


def test_a_controller_whose_plc_has_gone_still_ends_in_order(tmp_path: Path) -> None:
    stand = Stand(tmp_path, *SITES["terminals"])
    stand.mark()
    stand.fault("net.router-off")
    stand.wait(has("LINK_LOST"), 1.0)
    finish(stand)


def test_a_black_hole_at_the_start_leaves_the_program_responsive(tmp_path: Path) -> None:
    text = own_site(tmp_path)
    plant = System(tmp_path, command="plant", site=text)
    try:
        plant.said("listens at")
        switch(Path(parse(text, schema.Site, tmp_path).virtual_cell.control), "net.unplug")
        control = System(tmp_path, site=without_cell(text))
        control.said("does not react at all")
        control.process.send_signal(signal.SIGINT)
        began_s = time.monotonic()
        assert control.ends() == 130
        assert time.monotonic() - began_s < 3.0
    finally:
        plant.process.terminate()
        plant.ends()


def test_a_library_that_hangs_is_named_and_ends_the_run_in_order(tmp_path: Path) -> None:
    stand = Stand(tmp_path, *SITES["terminals"])
    stand.move()
    stand.watch(0.15)
    began_s = stand.mark()
    stand.fault("net.truncate", "1")
    row = stand.wait(has("STATUS_STALE"), 1.0)
    assert stand.system.ends() == 4
    assert time.monotonic() - began_s < 20.0
    *_, last = stand.dicts(), *stand.rows()
    assert (last["mode"], last["link"]) == (Mode.FAULT, Link.DOWN)
    check_no_wrong_value(stand)
    text = stand.system.log.read_text()
    assert re.search(r"no new set-point for \d+ ms: controlled hold", text)
    assert re.search(r"pkm run: the ADS library does not return .* must be started again", text)
    assert "Traceback" not in text
    assert stand.system.summary["recorded"] == stand.system.summary["ticks"]
    tell(stand, "net.truncate 1", row, began_s, TRIPPED, "the program ends and is started again")


def test_after_a_library_that_hung_the_next_start_works(tmp_path: Path) -> None:
    """A demo ends with its fault, before the hang is certain: the process must end all the same."""
    text = own_site(tmp_path)
    plant = System(tmp_path, command="plant", site=text)
    try:
        plant.said("listens at")
        control = System(tmp_path, "--demo", site=without_cell(text))
        control.said("request SINE: accepted")
        switch(Path(parse(text, schema.Site, tmp_path).virtual_cell.control), "net.truncate", "1")
        assert control.ends() == 4
        plant.said("quick stop")
        plant.said("standstill")
        again = System(tmp_path, "--json")
        again.said("start → OFF")
        requests, end_s = Path(parse(text, schema.Site, tmp_path).requests.path), time.monotonic() + 10.0
        while send(requests, Message(time.time_ns() // 1000, "ready")).verdict != "ACCEPTED":
            assert time.monotonic() < end_s, again.log.read_text()
            time.sleep(0.05)
        again.said("READY")
        again.process.terminate()
        assert again.ends() == 0, again.log.read_text()
    finally:
        plant.process.terminate()
        plant.ends()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.site}: {case.name}")
def test_fault(stands: Callable[[str], Stand], case: Case) -> None:
    for _ in range(3):  # others on this machine may disturb: what the loop itself was late for proves nothing
        line = play(stands(case.site), case)
        if "OVERRUN" not in line.faults:
            break
    note(line)
    tripped = line.recovered.startswith(RENEWED)
    assert tripped == (case.effect is TRIPPED) or set(case.also) & set(line.faults), line


def play(stand: Stand, case: Case) -> Line:
    """Inject the fault in motion, see it, end it, see that nothing moves by itself and that no wrong value was used."""
    stand.move()
    stand.watch(0.15)
    began_s = stand.mark()
    for fault in case.before:
        stand.fault(fault)
    stand.fault(case.fault, case.value)
    stand.wait(case.shown, case.within_s, "seen")
    detected_ms = math.nan
    if case.shown is not unmoved:
        first = next(row for row in stand.dicts() if case.shown(row) or row["faults"])
        detected_ms = stand.since_ms(first, began_s)
    if case.stops:
        stand.wait(lambda row: row["mode"] != Mode.ACTIVE, 0.5, "no longer in motion")
    stand.watch(case.hold_s)
    stand.fault(case.fault, "off")
    stand.watch(0.05)
    stand.wait(stand.healthy, case.recovers_s, "healthy again")
    after = stand.watch(0.15)
    check_no_wrong_value(stand)

    modes, faults = stand.array("mode"), set[str]().union(*(names(bits) for bits in set(stand.array("faults"))))
    if case.stops:
        assert Mode.ACTIVE not in {row["mode"] for row in after}  # nothing moves without a new request
        legs = [name for name in stand.columns if re.fullmatch(r"length_\d_m_s", name)]
        assert max(abs(row[leg]) for row in after for leg in legs) < STANDING_M_S
    elif "OVERRUN" not in faults:
        assert set(modes) == {Mode.ACTIVE}
    recovery = RENEWED if Mode.FAULT in modes else "by itself, then new motion" if case.stops else "by itself"
    skipped = int(stand.array("skipped")[-1] - stand.array("skipped")[0])
    return Line(case.name, case.site, detected_ms, case.effect, case.stops, recovery, skipped, sorted(faults))


def check_no_wrong_value(stand: Stand) -> None:
    """Whatever was called good was right: lengths follow the set-points, counters rise, sensors fit the model."""
    fresh = (stand.array("link") == Link.UP) & (stand.array("age_s") < 0.045)
    assert np.isfinite(stand.array("length_{}_m")[fresh]).all()
    assert np.abs(stand.array("following_error_{}_m")[fresh]).max(initial=0.0) < 0.05
    assert (np.diff(stand.array("plc_cycle")[fresh]) >= 0).all()
    for name in stand.sensors:
        good = (stand.array(f"{name}_quality") == Quality.GOOD) & (stand.array(f"{name}_age_s") < 0.1)
        column = next(c for c in stand.columns if c.startswith(f"{name}_") and not c.endswith(("_quality", "_age_s")))
        value = stand.array(column)[good]
        if name.startswith("cell"):
            still = good & (stand.array("plc_state") == 2)  # following: the model is the reference's
            model = stand.array(f"model_cell_{name[-1]}_n")
            assert np.abs(stand.array(column)[still] - model[still]).max(initial=0.0) < CELL_TOLERANCE_N, name
        elif "pressure" in name:
            assert ((value >= PRESSURE_PA[0]) & (value <= PRESSURE_PA[1])).all(), name
        else:
            assert np.abs(value).max(initial=0.0) < 0.05, name
