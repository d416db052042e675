"""Each channel in turn is NaN or infinite: what goes out is JSON with null, and one event names the channel."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from controller.gateway.events import Event, events
from controller.gateway.mqtt.publisher import Publisher
from controller.records import Fault, Limit, Link, Mode, Quality, channels, sensors_of
from controller.ring import RingReader, RingWriter
from tests.gateway.bench import make_meta, make_site

TABLE = channels(6, list(sensors_of(6)), stream=True)
COLUMNS = tuple(channel.name for channel in TABLE)
AT = {name: k for k, name in enumerate(COLUMNS)}


def row() -> np.ndarray:
    made = np.random.default_rng(5).uniform(0.1, 0.9, len(COLUMNS))
    for name, value in {
        "link": Link.UP, "mode": Mode.ACTIVE, "faults": Fault.OVERRUN | Fault.STROKE, "limits": Limit.SPEED,
        "answer_id": 0, "verdict": 0, "skipped": 3, "t_s": 12.5, "tick": 1250,
    }.items():  # fmt: skip
        made[AT[name]] = value
    for name in COLUMNS:
        if name.endswith("_quality"):
            made[AT[name]] = Quality.GOOD
    return made


def strict(text: bytes) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def told(before: np.ndarray | None, after: np.ndarray) -> list[Event]:
    found = events(before, after, COLUMNS, started_unix_s=1.7e9)
    strict(msgspec.json.encode(found))
    return found


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_event_names_the_channel_and_says_nothing_else(value: float):
    for name in COLUMNS:
        bad = row()
        bad[AT[name]] = value
        [event] = told(row(), bad)
        assert (event.kind, event.code, event.values) == ("not_finite", name, {name: None})
        assert name in event.text
        assert told(bad, bad) == []  # once
        again = {event.kind for event in told(bad, row())}
        # what a code says when it is back is told anew: nobody knows what it said meanwhile
        assert again <= {"link": {"link"}, "mode": {"mode"}, "faults": {"fault_set"}, "limits": {"limit_entered"}}.get(
            name, set()
        ), name


def test_what_changes_at_the_same_time_is_told_all_the_same():
    bad = row()
    bad[AT["x_m"]], bad[AT["mode"]], bad[AT["cell_1_quality"]] = np.nan, Mode.FAULT, Quality.BAD
    assert [(event.kind, event.code) for event in told(row(), bad)] == [
        ("mode", "FAULT"), ("sensor", "cell_1"), ("not_finite", "x_m"),
    ]  # fmt: skip


def test_from_the_first_row_on():
    for name in COLUMNS:
        bad = row()
        bad[AT[name]] = np.nan
        assert [event.code for event in told(None, bad) if event.kind == "not_finite"] == [name]
        assert len(told(None, bad)) <= len(told(None, row())) + 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_published_has_null_in_that_place_alone(tmp_path: Path, value: float):
    ring = RingWriter(tmp_path / "ring", len(COLUMNS), 1000, make_meta(table=TABLE))
    publisher = Publisher(make_site(tmp_path), RingReader(tmp_path / "ring"))
    ring.push(row())
    good = strict(msgspec.json.encode(publisher._newest()))
    for k, name in enumerate(COLUMNS, 1):
        bad = row()
        bad[AT[name]] = value
        ring.push(bad)
        live = strict(msgspec.json.encode(publisher._newest()))
        assert {key for key, number in live.items() if number is None} == ({name} & set(good))
        assert {key for key in good if live[key] != good[key]} <= {name, "seq", "t"}
        assert isinstance(live["t"], float)
        [sample] = strict(msgspec.json.encode(publisher._samples(k, publisher._ring.read(k, 1)[1])))
        assert [key for key, number in sample.items() if number is None] == [name]
        assert np.array_equal(np.array([sample[key] for key in COLUMNS], float)[bad == row()], bad[bad == row()])
        state = strict(msgspec.json.encode(publisher._state(True, None)))
        assert isinstance(state["t"], float)
    ring.close()
