"""Operator requests: whatever arrives is refused with a sentence, or is a request that the cycle can judge."""

import copy
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.records import POSE, AxisMode, RequestKind, Verdict
from controller.service.mailbox import NOTHING, Mailbox
from tests.fuzz.mutations import EDITS, mutated
from tests.machines import Bench

KINDS = {kind.name.lower() for kind in RequestKind if kind}
KEYS = {"id", "kind", "pose", "speed_share", "frequency_hz"}
VALID = b'{"id": 7, "kind": "move", "pose": {"x_m": 0.01, "y_m": 0.0, "z_m": 0.86, "yaw_rad": 0.0, "pitch_rad": 0.02, '
VALID += b'"roll_rad": 0.0}, "speed_share": 0.5}'
NUMBERS = st.floats() | st.floats(-0.05, 0.05) | st.sampled_from([0.5, 1.0, 0.86, 1e308, -1e308, 0, -1, 10**400])
MESSAGES = st.fixed_dictionaries(
    {
        "id": st.integers(-1, 2**60) | st.integers(1, 99),
        "kind": st.sampled_from([*sorted(KINDS), "none", "", "\u017ftop", "dance"]),
    },
    optional={
        "pose": st.dictionaries(st.sampled_from([*POSE, "height"]), NUMBERS)
        | st.fixed_dictionaries(dict.fromkeys(POSE, NUMBERS)),
        "speed_share": NUMBERS,
        "frequency_hz": NUMBERS,
        "also": st.none(),
    },
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5),
    lambda item: st.lists(item, max_size=3)
    | st.dictionaries(st.text(max_size=5) | st.sampled_from(sorted(KEYS)), item, max_size=4),
)  # fmt: skip
DATAGRAMS = (
    MESSAGES.map(lambda value: json.dumps(value).encode())
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.builds(mutated, st.just(VALID), EDITS)
    | st.binary(max_size=100)
    | st.sampled_from([b"[" * 4000, b'{"pose":' * 400, VALID + b" " * 9000, VALID + b" " * 9000 + b"}", b"\xff" * 60])
)


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[Mailbox]:
    made = Mailbox(tmp_path / "requests")
    yield made
    made.close()


def meant(data: bytes) -> dict | None:
    """The request in a datagram, by the standard library and docs/reference/commands.md; None if it is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not {"id", "kind"} <= set(found) <= KEYS or not isinstance(found["kind"], str):
        return None
    known = found["kind"].isascii() and found["kind"].lower() in KINDS
    return found | {"kind": found["kind"].lower()} if known else None


def test_a_datagram_is_refused_or_is_the_request_that_it_says(tmp_path: Path, mailbox: Mailbox) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.bind(str(tmp_path / "answers"))
        sender.settimeout(5.0)

        @settings(max_examples=400)
        @given(DATAGRAMS)
        def check(data: bytes) -> None:
            refused = mailbox.refused
            sender.sendto(data, str(tmp_path / "requests"))
            request = mailbox.poll()
            assert mailbox.poll() is NOTHING
            if request is NOTHING:
                assert mailbox.refused == refused + 1
                answer = json.loads(sender.recv(65536))
                assert answer["verdict"] == "REFUSED" and answer["text"]
                return
            found = meant(data)
            assert found is not None
            assert (request.kind.name.lower(), request.id) == (found["kind"], found["id"])
            given_pose = found.get("pose", {})
            assert set(given_pose) <= set(POSE)
            assert request.pose.tolist() == [given_pose.get(name, 0.0) for name in POSE]
            assert request.speed_share == found.get("speed_share", 1.0)
            assert request.frequency_hz == found.get("frequency_hz", 0.0)
            assert np.isfinite([*request.pose, request.speed_share, request.frequency_hz]).all()

        check()


def at_rest() -> Bench:
    bench = Bench()
    bench.ready()
    return bench


READY = at_rest()
SMALL = st.lists(st.floats(-0.04, 0.04), min_size=6, max_size=6)
POSES = SMALL | st.lists(st.floats() | st.sampled_from([0.86, 1e308, -1e308]), min_size=6, max_size=6)


@settings(max_examples=150)
@given(
    st.sampled_from([*RequestKind]),
    POSES,
    st.floats() | st.floats(0.0, 1.0),
    st.floats() | st.floats(0.0, 5.0),
    st.booleans(),
)
def test_the_cycle_judges_any_request_and_stays_inside_the_limits(
    kind: RequestKind, pose: list[float], share: float, hz: float, near_home: bool
) -> None:
    bench = copy.copy(READY)
    bench.outputs = []
    limits = bench.setup.limits
    target = np.array(pose, float) + (bench.setup.home if near_home and kind is RequestKind.MOVE else 0.0)
    request = replace(NOTHING, kind=kind, id=5, pose=target, speed_share=share, frequency_hz=hz)
    first = bench.step(request)
    assert (first.verdict is Verdict.NONE) == (kind is RequestKind.NONE)
    if kind in (RequestKind.MOVE, RequestKind.SINE) and not np.isfinite([*target, share, hz]).all():
        assert first.verdict is Verdict.NOT_FINITE
    before = READY.outputs[-1].command.position_m
    for output in [first, *(bench.step() for _ in range(15))]:
        sent = output.command
        assert np.isfinite([sent.position_m, sent.velocity_m_s, sent.force_n]).all()
        if sent.axis_mode is AxisMode.FOLLOW:
            assert np.all(sent.position_m >= limits.length_min_m) and np.all(sent.position_m <= limits.length_max_m)
            assert np.all(np.abs(sent.velocity_m_s) <= np.array(limits.speed_m_s) * (1.0 + 1e-9))
            most_m = np.array(limits.speed_m_s) * bench.setup.period_s
            assert np.all(np.abs(sent.position_m - before) <= most_m * (1.0 + 1e-9))
        before = sent.position_m
