"""The processes that `pkm run` starts beside itself: broker, virtual cell, gateway."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

PR_SET_PDEATHSIG = 1
PAUSE_S = 1.0  # before a process that ended is started again


def end_with_parent(parent: int) -> None:
    """Called by a child: SIGTERM when the process that started it is gone, even by kill -9."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it went before the call
        os.kill(os.getpid(), signal.SIGTERM)


@dataclass(slots=True)
class Child:
    """One process: `pkm COMMAND SITE --parent PID`, in a session of its own so that Ctrl-C reaches only the parent."""

    command: str
    site: str
    keep: bool  # start it again when it ends
    process: subprocess.Popen[str] | None = None
    starts: int = 0
    _again_at_s: float = field(default=0.0)

    def start(self) -> None:
        """Start the process."""
        line = [sys.executable, "-m", "controller", self.command, self.site, "--parent", str(os.getpid())]
        self.process = subprocess.Popen(  # noqa: S603  our own program
            line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.starts += 1

    @property
    def pid(self) -> int:
        """Process id of the last start."""
        return self.process.pid if self.process else 0

    def ended(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self.process.poll() if self.process else None

    def revive(self) -> bool:
        """Start it again after a pause if it ended and is to be kept; True when it was started. Never waits."""
        if not self.keep or self.ended() is None:
            return False
        now_s = time.monotonic()
        if not self._again_at_s:
            self._again_at_s = now_s + PAUSE_S
        if now_s < self._again_at_s:
            return False
        self._again_at_s = 0.0
        self.start()
        return True

    def finish(self, timeout_s: float, ask: bool) -> str:
        """Wait for its end, asking with SIGTERM if `ask`, killing at last; returns what it printed."""
        if self.process is None:
            return ""
        if ask:
            self.process.terminate()
        try:
            printed, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.communicate(timeout=1.0)
            return ""
        return printed


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
