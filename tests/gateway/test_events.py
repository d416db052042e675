"""Every change an operator must hear of becomes an event, once, in words, and no number breaks it."""

import json

import msgspec
import numpy as np
import pytest

from controller.gateway.events import CHANNELS, LIMITS, Event, Flickering, events
from controller.records import Fault, Limit, Link, Mode, Obstacle, Quality, RequestKind, Verdict, channels, sensors_of
from controller.safety.faults import FAULTS
from controller.safety.supervisor import REASONS

COLUMNS = tuple(channel.name for channel in channels(6, list(sensors_of(6)), stream=True))
AT = {name: k for k, name in enumerate(COLUMNS)}


def row(**values: float) -> np.ndarray:
    made = np.zeros(len(COLUMNS))
    for name, value in {"t_s": 2.5, "link": 2, "mode": Mode.ACTIVE, **values}.items():
        made[AT[name]] = value
    return made


def changes(before: np.ndarray | None, after: np.ndarray, **more: float) -> list[tuple[str, str]]:
    return [(event.kind, event.code) for event in events(before, after, COLUMNS, **more)]


def test_every_limit_has_words():
    assert set(LIMITS) == set(Limit)


def test_every_fault_has_words():
    for fault in Fault:
        [event] = events(row(), row(faults=fault), COLUMNS)
        assert event.text == f"Fault {fault.name} is set ({FAULTS[fault].meaning})."


def test_channels_that_explain_exist():
    for names in [*CHANNELS.values(), *(names for _, names in LIMITS.values())]:
        assert {name.format(i=6) for name in names} <= set(COLUMNS)


def test_the_link_is_told_when_it_goes_and_comes_but_not_each_late_answer():
    down, late, up = row(link=Link.DOWN), row(link=Link.LATE), row(link=Link.UP)
    assert changes(up, late) == changes(late, up) == []
    assert changes(late, down) == [("link", "DOWN")]
    assert changes(down, up) == [("link", "UP")]


def test_nothing_new_is_no_event():
    assert events(row(faults=5, limits=3), row(faults=5, limits=3, x_m=1.0), COLUMNS) == []


def test_the_first_row_tells_what_stands():
    first = row(mode=Mode.FAULT, faults=Fault.DRIVE | Fault.OVERRUN, limits=Limit.FORCE)
    assert changes(None, first) == [
        ("link", "UP"), ("mode", "FAULT"), ("fault_set", "DRIVE"), ("fault_set", "OVERRUN"), ("limit_entered", "FORCE"),
    ]  # fmt: skip


def test_mode_time_and_text():
    [event] = events(row(mode=Mode.READY), row(mode=Mode.ACTIVE), COLUMNS, started_unix_s=1000.0)
    assert event == Event(1002.5, "mode", "ACTIVE", "The mode is ACTIVE after READY.", {"mode": 2.0})


@pytest.mark.parametrize("fault", Fault)
def test_each_fault_is_told_when_set_and_when_cleared(fault: Fault):
    assert changes(row(), row(faults=fault)) == [("fault_set", fault.name)]
    others = ~Fault(0) & ~fault
    assert changes(row(faults=fault | others), row(faults=others)) == [("fault_cleared", fault.name)]


@pytest.mark.parametrize("limit", Limit)
def test_each_limit_is_told_when_entered_and_when_left(limit: Limit):
    assert changes(row(), row(limits=limit)) == [("limit_entered", limit.name)]
    assert changes(row(limits=limit), row()) == [("limit_left", limit.name)]


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict])
def test_each_request_is_answered_with_its_verdict(verdict: Verdict):
    answered = row(answer_id=17, request_id=17, request_kind=RequestKind.MOVE, verdict=verdict)
    [event] = events(row(), answered, COLUMNS)
    assert (event.kind, event.code) == ("request", verdict.name)
    needs = ": move needs READY or ACTIVE" if verdict is Verdict.WRONG_MODE else ""
    answer = "is accepted" if verdict is Verdict.ACCEPTED else f"is refused ({REASONS[verdict]}{needs})"
    assert event.text == f"Request 17 (MOVE) {answer}."
    assert changes(answered, row(answer_id=18, verdict=verdict)) == [("request", verdict.name)]


def test_what_makes_a_pose_unreachable_is_told_with_the_amount():
    answered = row(
        answer_id=17, request_kind=RequestKind.MOVE, verdict=Verdict.UNREACHABLE,
        refusal=Obstacle.STROKE, refusal_which=4, refusal_excess=0.0123,
    )  # fmt: skip
    [event] = events(row(), answered, COLUMNS)
    assert event.text.endswith(
        "(the target or the way to it is outside the limits: leg 4 would leave its stroke by 0.0123 m)."
    )
    assert event.values["refusal_which"] == 4
    for odd in (np.nan, np.inf, 99.0):
        answered[AT["refusal"]] = answered[AT["refusal_which"]] = odd
        assert events(row(), answered, COLUMNS)[0].code == "UNREACHABLE"


def test_values_explain_a_fault():
    [event] = events(row(), row(faults=Fault.STROKE, length_3_m=0.9, length_4_m=np.nan), COLUMNS)[:1]
    assert event.values["length_3_m"] == 0.9
    assert event.values["length_4_m"] is None
    assert len(event.values) == 6


SENSORS = {"cell_2": "cell_2_n", "rod_pressure_6": "rod_pressure_6_pa", "tilt_y": "tilt_y_rad"}


@pytest.mark.parametrize(("name", "channel"), SENSORS.items())
@pytest.mark.parametrize("quality", [Quality.NONE, Quality.BAD, Quality.HELD])
def test_a_sensor_is_named_when_its_value_goes_and_when_it_is_back(name: str, channel: str, quality: Quality):
    good = row(**{f"{name}_quality": Quality.GOOD, channel: 12.5, f"{name}_age_s": 0.004})
    gone = row(**{f"{name}_quality": quality, channel: 12.5, f"{name}_age_s": 0.3})
    [event] = events(good, gone, COLUMNS)
    assert (event.kind, event.code, event.text) == ("sensor", name, f"The value of {name} is {quality.name}.")
    assert event.values == {channel: 12.5, f"{name}_age_s": 0.3, f"{name}_quality": quality}
    [event] = events(gone, good, COLUMNS)
    assert event.text == f"The value of {name} is GOOD."
    assert events(gone, gone, COLUMNS) == events(good, good, COLUMNS) == events(None, row(), COLUMNS)[2:] == []


def test_a_sensor_that_is_bad_in_another_way_is_told_once():
    bad, held = row(cell_2_quality=Quality.BAD), row(cell_2_quality=Quality.HELD)
    assert changes(bad, held) == changes(held, bad) == []


def test_a_fault_of_the_sensors_shows_all_qualities():
    for fault in (Fault.SENSOR_DEGRADED, Fault.SENSOR_LOST):
        [event] = events(row(), row(faults=fault, cell_3_quality=Quality.BAD), COLUMNS)
        assert event.code == fault.name
        assert event.values["cell_3_quality"] == Quality.BAD
        assert set(event.values) == {f"{name}_quality" for name in sensors_of(6)}
        assert fault.name in event.text and FAULTS[fault].meaning in event.text


def test_lost_rows_and_skipped_deadlines():
    assert changes(row(), row(), lost=12) == [("rows_lost", "12")]
    assert changes(row(skipped=3), row(skipped=5)) == [("deadlines_skipped", "2")]


def test_a_channel_that_is_not_finite_is_named_once_until_it_is_finite_again():
    good, bad = row(), row(cell_2_n=np.nan, x_m=-np.inf)
    [event] = events(good, bad, COLUMNS)
    assert event.kind == "not_finite"
    assert event.values == {"cell_2_n": None, "x_m": None}
    assert "cell_2_n, x_m" in event.text
    assert events(bad, bad, COLUMNS) == []
    assert events(bad, good, COLUMNS) == []
    assert changes(good, bad) == [("not_finite", "cell_2_n")]


def test_unknown_codes_are_told_by_number():
    assert changes(row(), row(mode=99)) == [("mode", "99")]
    assert changes(row(), row(faults=2.0**40)) == [("fault_set", str(2**40))]
    assert changes(row(), row(answer_id=1, verdict=77)) == [("request", "77")]


def test_no_row_breaks_it_and_nothing_it_says_holds_nan():
    rng = np.random.default_rng(3)
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 1e308, -1e308, 5e-324, 2.0**53, -1.0, 0.5])
    before = None
    for _ in range(300):
        after = np.where(
            rng.random(len(COLUMNS)) < 0.3, rng.choice(odd, len(COLUMNS)), rng.integers(0, 40, len(COLUMNS))
        )
        for event in events(before, after, COLUMNS, started_unix_s=1.7e9):
            assert b"NaN" not in msgspec.json.encode(event)
            assert json.loads(msgspec.json.encode(event))["t"] >= 1.7e9
            assert event.text.endswith(".")
        before = after


def test_a_channel_that_flickers_is_told_of_now_and_then_and_the_rest_is_counted():
    flickering = Flickering()

    def at(t: float, code: str = "wrench_fx_n", kind: str = "not_finite") -> Event | None:
        return flickering.calmed(Event(t, kind, code, "No number.", {}))

    first = [at(0.02 * k) for k in range(400)]
    assert [event is not None for event in first] == [True] + 399 * [False]
    assert at(3.0, "wrench_fy_n") is not None  # another channel
    assert at(3.0, kind="mode") is not None and at(3.0, kind="mode") is not None
    again = at(10.5)
    assert again is not None and "399 more times" in again.text
    back = at(2.0)  # the clock of a new session
    assert back is not None and "more times" not in back.text
