"""For all tests: examples are the same in every run, and a loaded machine is no failure."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.table import table

settings.register_profile("project", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")

# Whole systems run in real time: these are for a computer that does nothing else meanwhile (folders and files). Two of
# them at a time are late for each other on two cores, and then take longer than one after the other.
REAL_TIME = {
    "hil", "service", "test_blocks.py", "test_doctor.py", "test_endurance.py", "test_force_mode.py", "test_homing.py",
    "test_network_faults.py", "test_page.py", "test_replayed.py", "test_shadow.py", "test_whole.py",
}  # fmt: skip


# What computes gives the same again; what has sockets, processes and times may meet a computer that stalls, as the
# machine would: such a test may be run again twice, which the summary counts.
PURE = {"identification", "lint", "mechanism", "motion", "oracles", "safety"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--table", action="store_true", help="print the table of faults at the end")


@pytest.hookimpl(tryfirst=True)  # before it is asked which tests are wanted
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        places = set(Path(item.path).parts)
        if places & REAL_TIME:
            item.add_marker("real_time")
        if not places & PURE:
            item.add_marker(pytest.mark.flaky(reruns=2))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--table"):
        for line in table():
            terminalreporter.write_line(line)
