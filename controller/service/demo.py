"""An operator made of code: readies the machine, moves it until told to end, stops, switches off."""

from collections.abc import Generator
from itertools import count, cycle

import numpy as np

from controller.errors import RunError
from controller.mechanism import layout
from controller.motion.trajectory import FREE
from controller.records import Array, Mode, Output, Request, RequestKind, Verdict
from controller.safety.supervisor import REASONS
from controller.service.mailbox import NOTHING
from controller.state import Setup

REACH = 0.35  # of the way from home to the pose limits; less where the legs do not allow it
SINE_HZ, SINE_TICKS = 0.4, 500
PATIENCE_TICKS = 300  # for legs that have not come to rest at their set-points yet

# signs of the corners visited: x y z yaw pitch roll
CORNERS = np.array([[1, 1, 1, 1, 1, -1], [-1, 1, -1, -1, 1, 1], [1, -1, 0, 0, -1, 1], [0, 0, 0, 0, 0, 0]], dtype=float)
SWAY = np.array([0.25, 0.18, 0.15, 0.12, 0.15, 0.20])  # amplitudes of the sine, of the room to the limits

Operator = Generator[Request, Output, None]


def patiently(request: Request) -> Generator[Request, Output, Verdict]:
    """Ask every tick until it is no longer too early: drives come on, a PLC leaves its last stop. The last answer."""
    verdict = Verdict.NOT_READY
    for _ in range(PATIENCE_TICKS):
        output = yield request
        verdict = output.verdict
        if verdict not in (Verdict.NOT_READY, Verdict.FAULT_STANDS):
            break
    return verdict


def demonstrate(setup: Setup) -> Operator:
    """Yields what to ask for and is sent what came of it; goes on for ever, the caller switches off.

    Raises:
        RunError: when a request is refused.
    """
    room = np.minimum(np.array(setup.limits.pose_max) - setup.home, setup.home - np.array(setup.limits.pose_min))
    room *= FREE[int(setup.machine.platform[layout.KIND])]
    ids = count(1)

    def ask(
        kind: RequestKind, pose: Array = setup.home, frequency_hz: float = 0.0
    ) -> Generator[Request, Output, Verdict]:
        return patiently(Request(kind, next(ids), pose, 1.0, frequency_hz))

    def until_ready() -> Operator:
        output = yield NOTHING
        while output.mode is not Mode.READY:
            output = yield NOTHING

    yield NOTHING
    _expect((yield from ask(RequestKind.READY)), "ready")
    for corner in cycle([*CORNERS, None]):
        if corner is None:
            _expect((yield from ask(RequestKind.SINE, SWAY * room, SINE_HZ)), "sine")
            for _ in range(SINE_TICKS):
                yield NOTHING
            _expect((yield from ask(RequestKind.STOP)), "stop")
        else:
            share, verdict = REACH, Verdict.UNREACHABLE
            while verdict is Verdict.UNREACHABLE and share > 0.05:
                verdict = yield from ask(RequestKind.MOVE, setup.home + share * corner * room)
                share *= 0.7
            _expect(verdict, "move")
        yield from until_ready()


def _expect(verdict: Verdict, what: str) -> None:
    if verdict is not Verdict.ACCEPTED:
        raise RunError(f"demo: {what} was refused: {REASONS[verdict]}")
