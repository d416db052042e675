"""Modes and what changes them: one table, read top to bottom; the first condition that holds decides."""

from enum import IntFlag

from controller.records import POSE, Mode, Obstacle, Refusal, RequestKind, Verdict
from controller.safety.faults import Effect


class Condition(IntFlag):
    """What the transition table looks at; a request counts only when it was accepted."""

    NONE = 0
    TRIP = 1 << 0  # a fault with effect TRIP stands
    STOP = 1 << 1  # a fault with effect STOP stands
    READY_WANTED = 1 << 2
    MOTION_WANTED = 1 << 3
    STOP_WANTED = 1 << 4
    OFF_WANTED = 1 << 5  # stays until OFF is reached
    ACKNOWLEDGED = 1 << 6
    STANDSTILL = 1 << 7  # the reference stands still
    DONE = 1 << 8  # the motion has reached its end
    HOME_WANTED = 1 << 9
    HOMED = 1 << 10  # every axis has found its reference


C = Condition
TRANSITIONS: dict[Mode, tuple[tuple[Condition, Mode], ...]] = {
    # nothing is powered in OFF: what is wrong there is shown and refuses READY, it latches nothing
    Mode.OFF: ((C.READY_WANTED, Mode.READY), (C.HOME_WANTED, Mode.HOMING)),
    Mode.READY: ((C.TRIP, Mode.FAULT), (C.OFF_WANTED, Mode.OFF), (C.STOP, Mode.READY), (C.MOTION_WANTED, Mode.ACTIVE)),
    Mode.ACTIVE: (
        (C.TRIP, Mode.FAULT),
        (C.STOP, Mode.STOPPING),
        (C.OFF_WANTED, Mode.STOPPING),
        (C.STOP_WANTED, Mode.STOPPING),
        (C.MOTION_WANTED, Mode.ACTIVE),  # before DONE: a new plan may arrive in the tick in which the old one ends
        (C.DONE, Mode.READY),
    ),
    Mode.STOPPING: (
        (C.TRIP, Mode.FAULT),
        (C.STANDSTILL | C.OFF_WANTED, Mode.OFF),
        (C.STANDSTILL, Mode.READY),
    ),
    Mode.FAULT: ((C.ACKNOWLEDGED, Mode.OFF),),
    Mode.HOMING: (
        (C.TRIP, Mode.FAULT),
        (C.OFF_WANTED, Mode.OFF),
        (C.STOP_WANTED, Mode.OFF),
        (C.STOP, Mode.OFF),
        (C.HOMED, Mode.READY),
    ),
}


# the same in plain integers, which are ten times as fast as flags
_ROWS = {mode: tuple((needed.value, target) for needed, target in rows) for mode, rows in TRANSITIONS.items()}


def next_mode(mode: Mode, conditions: Condition) -> Mode:
    """The mode of this tick from the last one's and the conditions that hold."""
    bits = conditions.value
    for needed, target in _ROWS[mode]:
        if bits & needed == needed:
            return target
    return mode


REASONS: dict[Verdict, str] = {
    Verdict.NONE: "not looked at",
    Verdict.ACCEPTED: "accepted",
    Verdict.WRONG_MODE: "not possible in the present mode",
    Verdict.NOT_READY: "the drives are not on yet, or the legs are not at their set-points",
    Verdict.UNREACHABLE: "the target or the way to it is outside the limits",
    Verdict.NOT_FINITE: "one of its numbers is not finite",
    Verdict.FAULT_STANDS: "the cause of a fault is still there",
    Verdict.NO_LINK: "no valid measurement from the PLC",
    Verdict.OUT_OF_RANGE: "one of its numbers makes no sense",
    Verdict.NO_CELLS: "there are no load cells, or one of them gives no valid value",
    Verdict.NOT_HOMED: "the drives do not know where they are: home first",
    Verdict.NO_TRACK: "the site has no such track",
    Verdict.NO_STREAM: "no poses come from the motion-base host, or they begin too far from where the machine is",
    Verdict.TARE_TOO_LARGE: "measured and modelled force differ by more than control.tare_limit allows: "
    "another load than in the machine file, a wrong cell or a wrong calibration",
}

MODES_FOR: dict[RequestKind, frozenset[Mode]] = {
    RequestKind.READY: frozenset({Mode.OFF}),
    RequestKind.MOVE: frozenset({Mode.READY, Mode.ACTIVE}),
    RequestKind.SINE: frozenset({Mode.READY}),
    RequestKind.STOP: frozenset(Mode),
    RequestKind.OFF: frozenset({Mode.OFF, Mode.READY, Mode.ACTIVE, Mode.STOPPING, Mode.HOMING}),
    RequestKind.ACKNOWLEDGE: frozenset({Mode.FAULT}),
    RequestKind.TARE: frozenset({Mode.READY}),
    RequestKind.HOME: frozenset({Mode.OFF}),
    RequestKind.TRACK: frozenset({Mode.READY}),
    RequestKind.STREAM: frozenset({Mode.READY}),
}


# what would be passed, and in which unit by how much; {leg} and {pose} say whose it is
OBSTACLES: dict[Obstacle, tuple[str, str]] = {
    Obstacle.NONE: ("", ""),
    Obstacle.POSE: ("{pose} would leave its range in platform.limits", ""),  # the unit is that of the coordinate
    Obstacle.STROKE: ("leg {leg} would leave its stroke", "m"),
    Obstacle.BASE_SWING: ("leg {leg} would swing too far in its base joint", "rad"),
    Obstacle.PLATFORM_SWING: ("leg {leg} would swing too far in its platform joint", "rad"),
    Obstacle.CONDITION: ("it comes too near a singular pose: the condition number would pass its limit", "1"),
    Obstacle.SPEED: ("leg {leg} would be too fast", "m/s"),
    Obstacle.ACCELERATION: ("leg {leg} would accelerate too much", "m/s²"),
    Obstacle.JERK: ("leg {leg} would change its acceleration too fast", "m/s³"),
    Obstacle.NO_PATH: ("no motion leads there from the present state of motion", ""),
}


def explain(verdict: Verdict, kind: RequestKind, refusal: Refusal) -> str:
    """The answer to a request, in words: with the modes it needs, or what would be passed and by how much."""
    if verdict is Verdict.WRONG_MODE and kind in MODES_FOR:
        needed = " or ".join(mode.name for mode in sorted(MODES_FOR[kind]))
        return f"{REASONS[verdict]}: {kind.name.lower()} needs {needed}"
    if verdict is not Verdict.UNREACHABLE or refusal.obstacle is Obstacle.NONE:
        return REASONS[verdict]
    what, unit = OBSTACLES[refusal.obstacle]
    coordinate = POSE[refusal.which - 1] if refusal.obstacle is Obstacle.POSE else ""
    amount = f" by {refusal.excess:.3g} {unit or coordinate.rsplit('_')[-1]}" if unit or coordinate else ""
    return f"{REASONS[verdict]}: {what.format(leg=refusal.which, pose=coordinate)}{amount}"


NEED_REST = (RequestKind.MOVE, RequestKind.SINE, RequestKind.TARE, RequestKind.TRACK, RequestKind.STREAM)
# the worst effect of a fault with which a request is still possible; WARN where nothing is said
BEARABLE = {RequestKind.STOP: Effect.TRIP, RequestKind.OFF: Effect.TRIP, RequestKind.ACKNOWLEDGE: Effect.STOP}


def admit(mode: Mode, kind: RequestKind, effect: Effect | None, link_up: bool, may_move: bool) -> Verdict:
    """Whether a request fits the present mode and the effect of the faults that stand; not whether its numbers do."""
    needs_rest = kind in NEED_REST
    worst = Effect.WARN if effect is None else effect
    if mode not in MODES_FOR[kind]:
        return Verdict.WRONG_MODE
    if kind in (RequestKind.READY, RequestKind.HOME) and not link_up:
        return Verdict.NO_LINK
    if worst > BEARABLE.get(kind, Effect.WARN):
        return Verdict.FAULT_STANDS
    return Verdict.NOT_READY if needs_rest and not may_move else Verdict.ACCEPTED
