"""Nothing grows, in small; `benchmarks/endurance.py` does the same for longer, memory included."""

import os
import pty
from contextlib import closing

import pytest

from benchmarks import endurance
from controller.schema import RtuLine
from drivers.modbus import ModbusLine
from tests.drivers.lines import unit, until

OPENS = 50
STARTS = 50


def counts(growth):
    """Before and after of files, threads and sockets; the memory of one test says nothing."""
    return [tuple(level)[1:] for level in growth]


@pytest.mark.parametrize("reason", endurance.REASONS)
def test_failed_opens_leave_nothing(reason):
    early, late = counts(endurance.failed_opens(reason, OPENS, endurance.FACTOR))
    assert late <= early


@pytest.mark.parametrize("kind", endurance.DRIVERS)
def test_starts_and_stops_leave_nothing(tmp_path, kind):
    with endurance.startable(kind, tmp_path) as make:
        early, late = counts(endurance.starts(make, STARTS))
    assert late <= early


def test_a_plc_that_was_away_for_long_left_nothing_and_is_found_again():
    with endurance.shortened(100.0):
        early, late, attempts, reconnects = endurance.away(endurance.nothing, 1.0)
    assert tuple(late)[1:] <= tuple(early)[1:]
    assert attempts > 20
    assert reconnects == 1


def test_what_leaks_is_seen(tmp_path, monkeypatch):
    """The measure itself: a driver that loses a file at each stop."""
    monkeypatch.setattr(endurance, "SETTLE_S", 0.1)
    lost = []

    def attempt():
        lost.append(os.open(tmp_path, os.O_RDONLY))

    try:
        early, late = endurance.repeat(attempt, attempts=3, warm_up=1)
    finally:
        for file in lost:
            os.close(file)
    assert endurance.grew(early, late, 3) == ["descriptors"]


def test_a_line_that_refuses_its_format_says_so(caplog):
    master, slave = pty.openpty()  # a pty knows no parity
    try:
        with closing(ModbusLine(RtuLine(path=os.ttyname(slave), parity="E"), {"a": unit()}, 0.01)) as line:
            line.open()
            until(lambda: "refuses this speed, parity" in line.message)
    finally:
        os.close(master)
        os.close(slave)
    assert "Traceback" not in caplog.text
