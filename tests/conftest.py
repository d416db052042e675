"""For all tests: examples are the same in every run, and a loaded machine is no failure."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.table import table

settings.register_profile("project", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")

# Whole systems run in real time, one after the other: with `-n 2` one process has these, the other has all the rest.
REAL_TIME = {"hil", "service", "test_page.py", "test_homing.py", "test_force_mode.py"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--table", action="store_true", help="print the table of faults at the end")


@pytest.hookimpl(tryfirst=True)  # before the groups are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if REAL_TIME & set(Path(item.path).parts):
            item.add_marker(pytest.mark.xdist_group("real time"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--table"):
        for line in table():
            terminalreporter.write_line(line)
