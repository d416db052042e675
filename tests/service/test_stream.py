"""The datagrams of a motion-base host: what is taken, what is refused and counted; and the whole system behind one."""

import math
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller import schema
from controller.errors import ConfigurationError
from controller.records import POSE, Mode, RequestKind
from controller.ring import RingReader
from controller.safety.limits import build_limits
from controller.service.mailbox import Message, request_of, send
from controller.service.stream import MOST_A_TICK, StreamReceiver
from controller.settings import load_machine, parse
from tests.hil.stand import System
from tests.machines import MACHINES, free_port, own_site

HOME = (0.0, 0.0, 0.85, 0.0, 0.0, 0.0)
LIMITS = build_limits(load_machine(MACHINES / "6-upru.toml")[0], schema.Control(), 0.01, 5.0)


def datagram(seq: int = 1, host_s: float = 1.0, pose=HOME, magic: bytes = b"PKMS", version: int = 1) -> bytes:
    """As docs/reference/tracks-and-stream.md has it, written down once more."""
    return magic + struct.pack("<HHII", version, 0, seq, 0) + struct.pack("<7d", host_s, *pose)


class Wire:
    """A receiver and a sender on loopback."""

    def __init__(self) -> None:
        self.receiver = StreamReceiver(schema.Stream(address="127.0.0.1:0", timeout_s=0.25), LIMITS)
        self.now_s = 100.0
        self.senders = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]

    def send(self, *datagrams: bytes, later_s: float = 0.01, sender: int = 0):
        for data in datagrams:
            self.senders[sender].sendto(data, self.receiver.address)
        self.now_s += later_s
        return self.receiver.read(self.now_s)

    def close(self) -> None:
        for each in (self.receiver, *self.senders):
            each.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


def test_before_the_first_there_is_nothing_and_nothing_is_waited_for(wire: Wire) -> None:
    nothing = wire.send()
    assert (nothing.seq, nothing.age_s) == (-1, math.inf)
    assert np.isnan(nothing.pose).all()
    assert wire.receiver.told() == {"accepted": 0}


def test_the_newest_wins_and_ages(wire: Wire) -> None:
    newest = wire.send(*(datagram(k, k / 60.0, (0.001 * k, *HOME[1:])) for k in range(1, 6)))
    assert (newest.seq, newest.host_s, newest.age_s) == (5, 5 / 60.0, 0.0)
    assert newest.pose.tolist() == [0.005, *HOME[1:]]
    assert wire.send(later_s=0.07).age_s == pytest.approx(0.07)
    assert wire.receiver.told() == {"accepted": 5}


BAD = {
    "empty": (b"", "size"),
    "short": (datagram(9, 9.0)[:-1], "size"),
    "long": (datagram(9, 9.0) + b"x", "size"),
    "huge": (b"x" * 9000, "size"),
    "other magic": (datagram(9, 9.0, magic=b"XKMS"), "magic"),
    "other version": (datagram(9, 9.0, version=2), "magic"),
    "nan pose": (datagram(9, 9.0, (math.nan, *HOME[1:])), "not_finite"),
    "infinite pose": (datagram(9, 9.0, (*HOME[:5], -math.inf)), "not_finite"),
    "nan time": (datagram(9, math.nan), "not_finite"),
    "degrees": (datagram(9, 9.0, (*HOME[:3], 5.0, 0.0, 0.0)), "far"),
    "millimetres": (datagram(9, 9.0, (0.0, 0.0, 850.0, 0.0, 0.0, 0.0)), "far"),
    "doubled": (datagram(5, 5.0), "sequence"),
    "older": (datagram(4, 9.0), "sequence"),
    "time stands": (datagram(6, 5.0), "host_time"),
    "time goes back": (datagram(6, 4.0), "host_time"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_pose_is_refused_counted_and_changes_nothing(wire: Wire, name: str) -> None:
    data, reason = BAD[name]
    good = wire.send(datagram(5, 5.0))
    after = wire.send(data)
    assert (after.seq, after.host_s, after.pose.tolist()) == (good.seq, good.host_s, good.pose.tolist())
    assert after.age_s == pytest.approx(0.01)
    assert wire.receiver.told() == {"accepted": 1, reason: 1}
    assert wire.send(datagram(10, 10.0)).seq == 10  # and the next good one is taken


def test_another_sender_waits_until_the_first_was_silent(wire: Wire) -> None:
    wire.send(datagram(5, 5.0))
    assert wire.send(datagram(6, 6.0), sender=1).seq == 5
    assert wire.receiver.told()["other_sender"] == 1
    wire.send(later_s=0.6)  # more than twice the time-out
    taken = wire.send(datagram(1, 0.5), sender=1)
    assert (taken.seq, taken.host_s) == (1, 0.5)


def test_the_sequence_number_begins_anew_after_its_last(wire: Wire) -> None:
    wire.send(datagram(2**32 - 1, 1.0))
    assert wire.send(datagram(0, 2.0)).seq == 0
    assert wire.send(datagram(2**32 - 1, 3.0)).seq == 0


def test_a_flood_is_drained_over_several_ticks(wire: Wire) -> None:
    for k in range(2 * MOST_A_TICK):
        wire.senders[0].sendto(datagram(k + 1, 1.0 + k), wire.receiver.address)
    first = wire.send().seq
    assert first <= MOST_A_TICK
    while wire.send().seq > first:
        first = wire.receiver.read(wire.now_s).seq
    assert wire.receiver.told() == {"accepted": first}


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=100) | st.binary(min_size=64, max_size=64).map(lambda rest: datagram()[:8] + rest))
def test_no_bytes_do_any_harm(data: bytes) -> None:
    receiver = StreamReceiver(schema.Stream(address="127.0.0.1:0"), LIMITS)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(data, receiver.address)
        newest = receiver.read(1.0)
    receiver.close()
    assert sum(receiver.counts.values()) == 1
    assert newest.seq == -1 or np.isfinite(newest.pose).all()


def test_an_address_that_is_taken_is_refused(wire: Wire) -> None:
    host, port = wire.receiver.address
    with pytest.raises(ConfigurationError, match=rf"stream.address: cannot listen at {host}:{port}: "):
        StreamReceiver(schema.Stream(address=f"{host}:{port}"), LIMITS)


def test_a_track_is_asked_for_by_its_name() -> None:
    message = Message(1, "track", track="b")
    assert (request_of(message, ["a", "b"]).kind, request_of(message, ["a", "b"]).track) == (RequestKind.TRACK, 1)
    assert request_of(message, ["a"]).track == -1


SENDER = """
import math, socket, struct, sys, time
port, hertz, x = int(sys.argv[1]), 60.0, 0.04
wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
start = time.monotonic()
for k in range(100000):
    t = k / hertz
    time.sleep(max(start + t - time.monotonic(), 0.0))
    pose = (x * min(t / 4.0, 1.0) * math.sin(2.0 * math.pi * 0.25 * t), 0.0, 0.85, 0.0, 0.0, 0.0)
    wire.sendto(struct.pack("<4sHHII7d", b"PKMS", 1, 0, k, 0, start + t, *pose), ("127.0.0.1", port))
"""


def followed_until_the_host_dies(folder: Path) -> tuple[System, int, dict[str, int], np.ndarray, int]:
    """A run that a host moves for eight seconds: system, exit code, columns, rows from the request on, when it died."""
    port = free_port()
    folder.mkdir()
    text = own_site(folder).replace("[broker]\nstart = true\n", "")
    system = System(folder, "--json", site=text + f'\n[stream]\naddress = "127.0.0.1:{port}"\ntimeout_s = 0.5\n')
    host = None
    try:
        system.said("start → OFF")
        site = parse(system.site.read_text(), schema.Site, system.site)
        ring = RingReader(Path(site.ring.path))
        columns = {channel[0]: k for k, channel in enumerate(ring.meta["channels"])}

        def wait(what: Callable[[np.ndarray], bool]) -> np.ndarray:
            end_s = time.monotonic() + 30.0
            while time.monotonic() < end_s:
                row = ring.read(ring.written - 1, 1)[1][0]
                if what(row) or row[columns["mode"]] == Mode.FAULT:
                    return row
                time.sleep(0.02)
            raise AssertionError(system.log.read_text())

        def asked(kind: str) -> str:
            return send(Path(site.requests.path), Message(time.time_ns() // 1000, kind), 5.0).verdict

        assert asked("ready") == "ACCEPTED"
        wait(lambda row: row[columns["mode"]] == Mode.READY and row[columns["drives_enabled"]])
        host = subprocess.Popen([sys.executable, "-c", SENDER, str(port)])
        wait(lambda row: row[columns["stream_seq"]] > 5)
        end_s = time.monotonic() + 10.0
        while asked("stream") != "ACCEPTED" and time.monotonic() < end_s:  # the legs may not have come to rest yet
            time.sleep(0.1)
        first = ring.written
        wait(lambda row: row[columns["stream_seq"]] > 60 * 8)
        followed = ring.written
        host.kill()
        host.wait()
        wait(lambda row: row[columns["mode"]] == Mode.READY)
        rows = ring.read(first, ring.written - first)[1]
    finally:
        if host is not None:
            host.kill()
        system.process.terminate()
        code = system.ends()
    return system, code, columns, rows, followed - first


@pytest.mark.timeout(300)
def test_the_whole_system_follows_a_host_and_stops_when_it_is_killed(tmp_path: Path) -> None:
    for attempt in range(3):
        system, code, columns, rows, died = followed_until_the_host_dies(tmp_path / f"{attempt}")
        if not {"STATUS_LATE", "STATUS_STALE", "OVERRUN"} & set(system.summary["faults"]):
            break  # a computer that others load may be late, and then the machine stops
    assert code == 0, system.log.read_text()
    assert "STREAM_LOST" in system.summary["faults"]
    assert system.summary["stream"]["accepted"] > 400
    x = rows[:, columns["reference_x_m"]]
    v = rows[:, [columns[f"reference_{name}_s"] for name in POSE]]
    a = rows[:, [columns[f"reference_{name}_s2"] for name in POSE]]
    sent = rows[:, columns["stream_x_m"]] - HOME[0]
    late = slice(400, died)
    lags = [np.abs(x[late][k:] - sent[late][: len(sent[late]) - k]).max() for k in range(12)]
    assert min(lags) < 3e-3, lags  # a few ticks behind the newest pose, and near it
    motion = load_machine(MACHINES / "6-upru.toml")[0].platform.motion
    ticks = np.diff(rows[:, columns["tick"]])[:, None]
    assert (np.abs(a[:, :3]) <= 1.001 * motion.acceleration_m_s2).all()
    assert (np.abs(np.diff(a, axis=0))[:, :3] <= 1.001 * ticks * 0.01 * motion.jerk_m_s3).all()
    assert np.abs(v[-1]).max() == 0.0 and rows[-1, columns["mode"]] == Mode.READY
