"""A broker of the test's own, and clients that listen to it."""

from collections.abc import Callable, Iterator

import pytest

from tests.gateway.bench import CHILDREN, Listener, free_port, start_broker, stop


@pytest.fixture(autouse=True)
def no_orphans() -> Iterator[None]:
    yield
    while CHILDREN:
        stop(CHILDREN.pop())


@pytest.fixture
def port() -> int:
    number = free_port()
    start_broker(number)
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
