"""Clock, mailbox, statistics: the small parts around the cycle."""

import itertools
import json
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller import clock
from controller.errors import DeviceError
from controller.records import POSE, RequestKind
from controller.service.mailbox import NOTHING, Mailbox, Message, send
from controller.service.statistics import Histogram, RootMeanSquare
from tests.machines import Bench


async def test_ticks_are_absolute_and_what_was_missed_is_counted() -> None:
    """However late this process is woken, numbers and deadlines agree and nothing is made up for."""
    period_s = 0.005
    seen: list[clock.Tick] = []
    async for tick in clock.ticks(period_s):
        seen.append(tick)
        if len(seen) == 5:
            time.sleep(4.5 * period_s)  # noqa: ASYNC251  an overrun
        if len(seen) == 12:
            break
    numbers = [tick.number for tick in seen]
    assert numbers == sorted(set(numbers))
    assert [b - a - 1 for a, b in itertools.pairwise(numbers)] == [tick.skipped for tick in seen[1:]]
    assert seen[5].skipped >= 3
    starts = [tick.deadline_s - tick.number * period_s for tick in seen]
    assert max(starts) - min(starts) < 1e-9
    assert all(tick.lateness_s > -1e-3 for tick in seen)


async def test_a_period_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="period"):
        async for _ in clock.ticks(0.0):
            pass


def serve(mailbox: Mailbox, bench: Bench, stop: threading.Event) -> None:
    while not stop.wait(0.002):
        request = mailbox.poll()
        mailbox.answer(bench.step(request))


def test_requests_are_answered_with_the_verdict_of_the_cycle(tmp_path: Path) -> None:
    mailbox, stop = Mailbox(tmp_path / "requests"), threading.Event()
    thread = threading.Thread(target=serve, args=(mailbox, Bench(), stop))
    thread.start()
    try:
        assert "x_m" in send(tmp_path / "requests", Message(1, "move", {"z_m": 0.9})).text
        assert send(tmp_path / "requests", Message(1, "move", dict.fromkeys(POSE, 0.0))).verdict == "WRONG_MODE"
        assert send(tmp_path / "requests", Message(2, "ready")).mode == "READY"
        answer = send(tmp_path / "requests", Message(3, "dance"))
        assert (answer.verdict, "dance" in answer.text) == ("REFUSED", True)
        answer = send(tmp_path / "requests", Message(4, "move", {"height": 1.0}))
        assert "height" in answer.text
    finally:
        stop.set()
        thread.join()
        mailbox.close()
    with pytest.raises(DeviceError, match="no controller"):
        send(tmp_path / "requests", Message(5, "ready"))


def test_only_the_owner_may_write_to_the_mailbox(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path / "requests")
    assert (tmp_path / "requests").stat().st_mode & 0o077 == 0
    mailbox.close()


@settings(max_examples=150)
@given(st.binary(max_size=300) | st.dictionaries(st.text(max_size=8), st.floats() | st.text(max_size=5)).map(
    lambda d: json.dumps(d).encode()))  # fmt: skip
def test_whatever_arrives_is_a_request_or_is_counted(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        mailbox = Mailbox(Path(folder) / "requests")
        sender.sendto(data, f"{folder}/requests")
        request = mailbox.poll()
        assert request is NOTHING
        assert mailbox.refused == 1
        mailbox.close()


def test_a_message_becomes_its_request(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path / "requests")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        text = {"id": 9, "kind": "sine", "pose": {"z_m": 0.9, "yaw_rad": -0.1}, "speed_share": 0.25}
        sender.sendto(json.dumps(text).encode(), str(tmp_path / "requests"))
    request = mailbox.poll()
    assert (request.kind, request.id, request.speed_share) == (RequestKind.SINE, 9, 0.25)
    np.testing.assert_array_equal(request.pose, [0.0, 0.0, 0.9, -0.1, 0.0, 0.0])
    assert mailbox.poll() is NOTHING
    mailbox.close()


@settings(max_examples=100)
@given(st.lists(st.floats(0.0, 0.039), min_size=1, max_size=300))
def test_histogram_against_numpy(values: list[float]) -> None:
    histogram = Histogram()
    for value in [*values, float("nan")]:
        histogram.add(value)
    summary = histogram.summary_ms()
    assert summary["max"] == pytest.approx(1e3 * max(values), abs=1e-4)
    for key, share in (("p50", 0.5), ("p99", 0.99)):
        exact = 1e3 * float(np.quantile(values, share, method="inverted_cdf"))
        assert summary[key] == pytest.approx(exact, abs=0.0025)


def test_nothing_counted_is_null() -> None:
    assert Histogram().summary_ms() == {"p50": None, "p99": None, "max": None}
    assert RootMeanSquare().summary() == {"rms": None, "peak": None}


def test_root_mean_square() -> None:
    figure = RootMeanSquare()
    figure.add(np.array([3.0, -4.0]))
    figure.add(np.array([0.0, 0.0]))
    assert figure.summary() == {"rms": 2.5, "peak": 4.0}
