"""An operator made of code: readies the machine, moves it until told to end, stops, switches off."""

from collections.abc import Generator

import numpy as np

from controller.errors import RunError
from controller.records import Array, AxisMode, Mode, Output, Request, RequestKind, Verdict
from controller.service.mailbox import NOTHING, TEXTS
from controller.state import Setup

REACH = 0.45  # of the way from home to the pose limits
SINE_TICKS = 500
LEAST_SHARE = 0.1

# signs of the corners visited: x y z yaw pitch roll
CORNERS = np.array([[1, 1, 1, 1, 1, -1], [-1, 1, -1, -1, 1, 1], [1, -1, 0, 0, -1, 1], [0, 0, 0, 0, 0, 0]], dtype=float)

Operator = Generator[Request, Output, None]


def demonstrate(setup: Setup) -> Operator:
    """Yields what to ask for and is sent what came of it; goes on for ever, the caller switches off.

    Raises:
        RunError: when a request is refused.
    """
    ids = iter(range(1, 1 << 31))
    room = np.minimum(setup.limits.pose_max - setup.home, setup.home - setup.limits.pose_min)
    output = yield NOTHING

    def ask(kind: RequestKind, pose: Array, frequency_hz: float = 0.0) -> Generator[Request, Output, Output]:
        result = yield Request(kind, next(ids), pose, 1.0, frequency_hz)
        return result

    def until_held() -> Generator[Request, Output, Output]:
        result = yield NOTHING
        while result.mode is not Mode.READY or result.command.axis_mode is not AxisMode.FOLLOW:
            result = yield NOTHING
        for _ in range(30):  # let the legs settle at their set-points
            result = yield NOTHING
        return result

    output = yield from ask(RequestKind.READY, setup.home)
    _expect(output, "ready")
    output = yield from until_held()
    while True:
        for corner in CORNERS:
            share = REACH
            while (output := (yield from ask(RequestKind.MOVE, setup.home + share * corner * room))).verdict:
                if output.verdict is Verdict.ACCEPTED or share < LEAST_SHARE:
                    break
                share *= 0.7
            _expect(output, "move")
            while output.mode is Mode.ACTIVE:
                output = yield NOTHING
        output = yield from until_held()
        amplitude = 0.25 * room * np.array([1.0, 0.7, 0.6, 0.5, 0.6, 0.8])
        output = yield from ask(RequestKind.SINE, amplitude, 0.4)
        _expect(output, "sine")
        for _ in range(SINE_TICKS):
            output = yield NOTHING
        output = yield from ask(RequestKind.STOP, setup.home)
        _expect(output, "stop")
        output = yield from until_held()


def _expect(output: Output, what: str) -> None:
    if output.verdict is not Verdict.ACCEPTED:
        raise RunError(f"demo: {what} was refused: {TEXTS[output.verdict]}")
