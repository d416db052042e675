"""For all tests: examples are the same in every run, and a loaded machine is no failure."""

import pytest
from hypothesis import HealthCheck, settings

from tests.table import table

settings.register_profile("project", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--table", action="store_true", help="print the table of faults at the end")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--table"):
        for line in table():
            terminalreporter.write_line(line)
