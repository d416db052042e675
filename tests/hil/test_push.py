"""Pushes, a drifting cell and a leg that sticks, played to the whole system in motion: what is told of them."""

from collections.abc import Iterator

import pytest

from controller.gateway.events import events
from controller.records import Mode
from tests.hil.stand import Row, Stand, names
from tests.hil.test_faults import SITES, finish, has

DRIFT_N_S = 60.0
SUSPECT_WITHIN_S = 4.0  # a cell that drifts so fast is further off than its drive may be after some 1.5 s
STUCK_N = 100.0  # far more stops the leg with a jolt, which is a push


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    running = Stand(tmp_path_factory.mktemp("push"), *SITES["terminals"])
    yield running
    finish(running)


def moving(stand: Stand) -> None:
    """In motion, after a rest that is long enough to learn what the model is off."""
    if stand.latest()["mode"] == Mode.ACTIVE:
        stand.ask("stop")
        stand.wait(lambda row: row["mode"] == Mode.READY, 3.0)
    if stand.latest()["mode"] == Mode.FAULT:
        stand.ask("acknowledge")
        stand.wait(lambda row: row["mode"] == Mode.OFF, 3.0)
    if stand.latest()["mode"] == Mode.OFF:
        stand.ask("ready")
    stand.wait(lambda row: row["mode"] == Mode.READY and row["command_axis_mode"] == 2, 3.0)
    stand.watch(1.0)
    stand.move()
    stand.watch(0.5)


def told(stand: Stand, code: str) -> list[dict[str, float | None]]:
    """The values of the events of a fault, from the rows seen."""
    found = [
        event for before, row in zip(stand.seen, stand.seen[1:], strict=False)
        for event in events(before, row, stand.columns)
    ]  # fmt: skip
    return [event.values for event in found if event.kind == "fault_set" and event.code == code]


def goes_on(stand: Stand) -> bool:
    """In motion all the time, unless this computer was too busy for it."""
    late = any(names(bits) & {"STATUS_LATE", "OVERRUN"} for bits in stand.array("faults"))
    return late or set(stand.array("mode")) == {Mode.ACTIVE}


def unpushed(row: Row) -> bool:
    return not names(row["faults"]) & {"COLLISION", "CELL_SUSPECT", "DRIVE_SUSPECT"}


def test_a_push_in_motion_trips_and_is_told_as_what_it_is(stand: Stand) -> None:
    moving(stand)
    began_s = stand.mark()
    stand.fault("plant.push", "0,80,-60")
    row = stand.wait(has("COLLISION"), 1.0, "told")
    assert row["mode"] == Mode.FAULT
    assert stand.since_ms(row, began_s) < 600.0  # the command to the virtual cell included
    assert (row["wrench_fy_n"], row["wrench_fz_n"]) == (pytest.approx(80.0, abs=40.0), pytest.approx(-60.0, abs=40.0))
    [values] = told(stand, "COLLISION")
    assert values["wrench_fy_n"] == row["wrench_fy_n"]
    assert not names(row["faults"]) & {"CELL_SUSPECT", "DRIVE_SUSPECT"}
    stand.fault("plant.push", "off")


def test_a_drifting_cell_is_suspect_and_no_push(stand: Stand) -> None:
    moving(stand)
    began_s = stand.mark()
    stand.fault("cell_3.drift", str(DRIFT_N_S))
    row = stand.wait(has("CELL_SUSPECT"), SUSPECT_WITHIN_S, "told")
    stand.fault("cell_3.drift", "0")
    stand.watch(0.3)
    assert stand.since_ms(row, began_s) > 300.0  # not before it is off
    assert goes_on(stand)  # it is told only
    assert len(told(stand, "CELL_SUSPECT")) == 1
    assert not any(names(bits) & {"COLLISION", "DRIVE_SUSPECT"} for bits in stand.array("faults"))
    stand.fault("cell_3.offset", "0")


def test_a_stuck_leg_is_a_suspect_drive_and_no_push(stand: Stand) -> None:
    stand.ask("off")
    stand.wait(lambda row: row["mode"] == Mode.OFF, 3.0)
    moving(stand)
    assert unpushed(stand.latest())
    stand.mark()
    stand.fault("leg.2.stuck", str(STUCK_N))
    stand.wait(has("DRIVE_SUSPECT"), 6.0, "told")
    stand.watch(0.3)
    assert goes_on(stand)
    assert len(told(stand, "DRIVE_SUSPECT")) == 1
    assert not any(names(bits) & {"COLLISION", "CELL_SUSPECT"} for bits in stand.array("faults"))
    stand.fault("leg.2.stuck", "off")
