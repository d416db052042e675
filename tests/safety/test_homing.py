"""Homing as the host sees it, as a whole table: what the PLC says against what may be believed of it."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controller.records import Fault, Mode
from controller.safety.homing import ABOUT_LENGTHS, Search, judge_homing
from tests.safety.bounds import GOOD

TICK_S, MOST_S = 2.0**-7, 8.0  # powers of two: sums are exact
FLAGS = [False, True]
WRAP = 1 << 32  # the PLC's numbers of commands begin anew there
HOMED = replace(GOOD, axes_homed=True)


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.HOMING])
@pytest.mark.parametrize("located", FLAGS)
def test_outside_of_homing_only_a_lost_reference_counts_and_a_search_is_forgotten(mode: Mode, located: bool) -> None:
    for homed, enabled, stopped in product(FLAGS, FLAGS, FLAGS):
        sample = replace(GOOD, axes_homed=homed, drives_enabled=enabled, plc_stopped=stopped)
        search, done, fault = judge_homing(Search(located, 99.0, 7), mode, 9, sample, TICK_S, MOST_S)
        moves = mode in {Mode.READY, Mode.ACTIVE, Mode.STOPPING}
        assert fault is (Fault.HOMING_FAILED if moves and not homed else Fault.NONE)
        assert not done
        assert search == Search(located and homed, 0.0, 0)


@pytest.mark.parametrize("located", FLAGS)
def test_it_is_done_when_all_axes_are_homed_and_hold_in_an_answer_to_the_request(located: bool) -> None:
    for homed, enabled, stopped, late, seen in product(*[FLAGS] * 5):
        echo = 8 if seen else 7
        sample = replace(GOOD, axes_homed=homed, drives_enabled=enabled, plc_stopped=stopped, seq_echo=echo)
        before = Search(located, MOST_S if late else 1.0, 8)
        search, done, fault = judge_homing(before, Mode.HOMING, 11, sample, TICK_S, MOST_S)
        assert done == (homed and enabled and seen)
        assert fault is (Fault.HOMING_FAILED if stopped or late else Fault.NONE)
        assert search == Search(located and homed, before.since_s + TICK_S, 8)


def test_before_the_first_tick_the_pose_is_believed_and_no_time_has_passed() -> None:
    search, _, fault = judge_homing(Search(), Mode.HOMING, 3, HOMED, MOST_S, MOST_S)
    assert (search, fault) == (Search(True, MOST_S, 3), Fault.NONE)
    assert judge_homing(search, Mode.HOMING, 4, HOMED, TICK_S, MOST_S)[2] is Fault.HOMING_FAILED


@pytest.mark.parametrize("ticks", [1, 2, 5])
def test_the_time_allowed_is_counted_in_seconds_however_many_ticks_were_skipped(ticks: int) -> None:
    search, steps = Search(), 0
    while judge_homing(search, Mode.HOMING, 1, GOOD, ticks * TICK_S, MOST_S)[2] is Fault.NONE:
        search = judge_homing(search, Mode.HOMING, 1, GOOD, ticks * TICK_S, MOST_S)[0]
        steps += ticks
    assert steps * TICK_S <= MOST_S < (steps + ticks) * TICK_S


@given(st.integers(1, 3 * WRAP), st.integers(0, 1000), st.integers(-WRAP // 2, WRAP // 2 - 1))
@example(first=1, sent_since=0, answered=0)
@example(first=1, sent_since=1, answered=-1)
@example(first=WRAP, sent_since=3, answered=0)
@example(first=WRAP + 1, sent_since=3, answered=WRAP // 2 - 1)
@example(first=5 * WRAP // 4, sent_since=3, answered=-WRAP // 2)
def test_only_an_answer_to_the_first_command_or_a_later_one_counts_also_where_numbers_begin_anew(
    first: int, sent_since: int, answered: int
) -> None:
    search, _, _ = judge_homing(Search(), Mode.HOMING, first, replace(HOMED, seq_echo=(first - 1) % WRAP), 0.0, MOST_S)
    sample = replace(HOMED, seq_echo=(first + answered) % WRAP)
    _, done, _ = judge_homing(search, Mode.HOMING, first + sent_since, sample, TICK_S, MOST_S)
    assert done == (answered >= 0)


def test_what_follows_from_lengths() -> None:
    names = {"STROKE", "POSE", "POSE_UNKNOWN", "SINGULAR", "JOINT_ANGLE"}
    assert {fault.name for fault in ABOUT_LENGTHS} == names
