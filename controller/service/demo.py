"""An operator made of code: readies the machine, moves it until told to end, stops, switches off."""

from itertools import cycle

import numpy as np

from controller.records import RequestKind
from controller.service.mailbox import NOTHING
from controller.service.operator import Asking, Operator, until_ready
from controller.state import Setup

REACH = 0.35  # of the way from home to the pose limits; less where the legs do not allow it
SINE_HZ, SINE_TICKS = 0.4, 500

# signs of the corners visited: x y z yaw pitch roll
CORNERS = np.array([[1, 1, 1, 1, 1, -1], [-1, 1, -1, -1, 1, 1], [1, -1, 0, 0, -1, 1], [0, 0, 0, 0, 0, 0]], dtype=float)
SWAY = np.array([0.25, 0.18, 0.15, 0.12, 0.15, 0.20])  # amplitudes of the sine, of the room to the limits


def demonstrate(setup: Setup) -> Operator:
    """Yields what to ask for and is sent what came of it; goes on for ever, the caller switches off.

    Raises:
        RunError: when a request is refused.
    """
    asking = Asking(setup, "demo")
    yield NOTHING
    yield from asking.ask(RequestKind.READY)
    for corner in cycle([*CORNERS, None]):
        if corner is None:
            yield from asking.ask(RequestKind.SINE, SWAY * asking.room, SINE_HZ)
            for _ in range(SINE_TICKS):
                yield NOTHING
            yield from asking.ask(RequestKind.STOP)
        else:
            yield from asking.move_towards(corner, REACH)
        yield from until_ready()
