"""The transition table: every mode with every set of conditions, and the rules that must hold whatever else does."""

from itertools import product

import pytest

from controller.records import Fault, Mode, RequestKind, Verdict
from controller.safety.faults import FAULTS, TRIPPING, Effect, describe, effect_of
from controller.safety.supervisor import MODES_FOR, REASONS, TRANSITIONS, Condition, admit, next_mode

ALL = [Condition(bits) for bits in range(1 << len(Condition))]
POWERED = (Mode.READY, Mode.ACTIVE, Mode.STOPPING, Mode.HOMING)


def test_every_fault_has_an_effect_and_a_meaning_and_no_other_stands_in_the_table() -> None:
    assert set(FAULTS) == set(Fault)
    assert all(row.meaning for row in FAULTS.values())
    assert effect_of(Fault.NONE) is None
    for fault in Fault:
        assert (effect_of(fault) is Effect.TRIP) == bool(fault & TRIPPING)
        assert fault.name in describe(fault)
    assert effect_of(Fault.OVERRUN | Fault.DRIVE) is Effect.TRIP


def test_every_mode_and_every_request_has_its_row() -> None:
    assert set(TRANSITIONS) == set(Mode)
    assert set(MODES_FOR) == set(RequestKind) - {RequestKind.NONE}
    assert set(REASONS) == set(Verdict)


@pytest.mark.parametrize("mode", Mode)
def test_rules_over_all_conditions(mode: Mode) -> None:
    for conditions in ALL:
        after = next_mode(mode, conditions)
        trip = Condition.TRIP in conditions
        # a trip always wins where power is on, and nothing else leads to FAULT
        assert (after is Mode.FAULT) == (mode is Mode.FAULT and Condition.ACKNOWLEDGED not in conditions) or (
            after is Mode.FAULT and trip and mode in POWERED
        )
        # motion begins only from READY, by a request, and not against a stop
        if after is Mode.ACTIVE and mode is not Mode.ACTIVE:
            assert mode is Mode.READY
            assert Condition.MOTION_WANTED in conditions
            assert not conditions & (Condition.STOP | Condition.OFF_WANTED)
        # power comes on only by a request
        if mode in (Mode.OFF, Mode.FAULT) and after in POWERED:
            assert mode is Mode.OFF
            assert conditions & (Condition.READY_WANTED | Condition.HOME_WANTED)
        # drives go off from standstill or by a fault, never while moving
        if after is Mode.OFF and mode is Mode.STOPPING:
            assert Condition.STANDSTILL in conditions
        if mode is Mode.ACTIVE:
            assert after is not Mode.OFF
        # FAULT is left by acknowledge alone, and only to OFF
        if mode is Mode.FAULT and after is not Mode.FAULT:
            assert after is Mode.OFF
            assert Condition.ACKNOWLEDGED in conditions


def test_nothing_happens_without_a_condition() -> None:
    assert all(next_mode(mode, Condition.NONE) is mode for mode in Mode)


def test_admission_over_all_modes_kinds_and_flags() -> None:
    kinds = [kind for kind in RequestKind if kind]
    for mode, kind, effect, link, may_move in product(Mode, kinds, (None, *Effect), *[(False, True)] * 2):
        verdict = admit(mode, kind, effect, link, may_move)
        if kind is RequestKind.STOP:
            assert verdict is Verdict.ACCEPTED  # a stop is never refused
        if mode not in MODES_FOR[kind]:
            assert verdict is Verdict.WRONG_MODE
        if verdict is Verdict.ACCEPTED and kind in (RequestKind.MOVE, RequestKind.SINE, RequestKind.TARE):
            assert may_move
            assert effect in (None, Effect.WARN)
            assert mode in (Mode.READY, Mode.ACTIVE)
        if verdict is Verdict.ACCEPTED and kind is RequestKind.READY:
            assert link
            assert effect in (None, Effect.WARN)
        if verdict is Verdict.ACCEPTED and kind is RequestKind.ACKNOWLEDGE:
            assert mode is Mode.FAULT
            assert effect is not Effect.TRIP
