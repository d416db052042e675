"""What operators made of code have in common: generators that yield what to ask for and are sent what came of it."""

from collections.abc import Generator
from itertools import count

import numpy as np

from controller.errors import RunError
from controller.mechanism import layout
from controller.motion.trajectory import FREE
from controller.records import Array, Mode, Output, Request, RequestKind, Verdict
from controller.safety.supervisor import REASONS
from controller.service.mailbox import NOTHING
from controller.state import Setup

PATIENCE_TICKS = 300  # for drives that come on, legs that come to rest, a PLC that leaves its last stop
LEAST_SHARE, LESS = 0.05, 0.7  # a way that the legs do not allow is tried shorter, down to this share

Operator = Generator[Request, Output, None]


class Asking:
    """Asks patiently and with numbers of its own; a refusal ends the operator.

    Every method is a generator of the operator's kind.
    """

    def __init__(self, setup: Setup, who: str, speed_share: float = 1.0) -> None:
        """Ask in the name of `who`, moving with a share of the motion limits."""
        limits = setup.limits
        self._setup, self._who, self._speed_share, self._ids = setup, who, speed_share, count(1)
        # (6,) from home to the nearer pose limit, 0 in what the platform is not free to do
        self.room = np.minimum(np.array(limits.pose_max) - setup.home, setup.home - np.array(limits.pose_min))
        self.room *= FREE[int(setup.machine.platform[layout.KIND])]

    def ask(self, kind: RequestKind, pose: Array | None = None, frequency_hz: float = 0.0) -> Operator:
        """Ask for it until it is no longer too early.

        Raises:
            RunError: it is refused.
        """
        self._expect((yield from self._patiently(kind, pose, frequency_hz)), kind)

    def move_towards(self, signs: Array, share: float) -> Operator:
        """Move this share of the room from home, less where the legs do not allow it.

        Raises:
            RunError: it is refused.
        """
        verdict = Verdict.UNREACHABLE
        while verdict is Verdict.UNREACHABLE and share > LEAST_SHARE:
            pose = self._setup.home + share * signs * self.room
            verdict = yield from self._patiently(RequestKind.MOVE, pose)
            share *= LESS
        self._expect(verdict, RequestKind.MOVE)

    def _patiently(
        self, kind: RequestKind, pose: Array | None, frequency_hz: float = 0.0
    ) -> Generator[Request, Output, Verdict]:
        pose = self._setup.home if pose is None else pose
        request, verdict = Request(kind, next(self._ids), pose, self._speed_share, frequency_hz), Verdict.NOT_READY
        for _ in range(PATIENCE_TICKS):
            output = yield request
            verdict = output.verdict
            if verdict not in (Verdict.NOT_READY, Verdict.FAULT_STANDS):
                break
        return verdict

    def _expect(self, verdict: Verdict, kind: RequestKind) -> None:
        if verdict is not Verdict.ACCEPTED:
            raise RunError(f"{self._who}: {kind.name.lower()} was refused: {REASONS[verdict]}")


def until_ready() -> Operator:
    """Wait for the end of a motion."""
    output = yield NOTHING
    while output.mode is not Mode.READY:
        output = yield NOTHING
