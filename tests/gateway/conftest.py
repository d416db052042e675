"""A broker of the test's own, and clients that listen to it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gateway.bench import CHILDREN, Listener, start_broker, stop
from tests.machines import free_port


@pytest.fixture(autouse=True)
def no_orphans() -> Iterator[None]:
    yield
    while CHILDREN:
        stop(CHILDREN.pop())


@pytest.fixture
def port(tmp_path: Path) -> int:
    number = free_port()
    start_broker(number, tmp_path)
    return number


@pytest.fixture
def listen() -> Iterator[Callable[[int], Listener]]:
    listeners: list[Listener] = []

    def start(number: int) -> Listener:
        listeners.append(Listener(number))
        return listeners[-1]

    yield start
    for listener in listeners:
        listener.close()
