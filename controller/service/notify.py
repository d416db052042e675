"""What the service manager is told: that the loop runs, and with its completed ticks that it still does.

systemd gives a service the address of a datagram socket in NOTIFY_SOCKET, and in WATCHDOG_USEC the time after which it
takes silence for a hang. Only a completed tick feeds that watchdog: no thread, no timer that could outlive the loop.
"""

import contextlib
import math
import os
import socket
import time
from collections.abc import Mapping

FEEDS = 4  # in the time of the watchdog: one that is lost or late does no harm


class Notifier:
    """One run and its service manager; without one nothing is sent."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._socket: socket.socket | None = None
        self._every_s, self._next_s = math.inf, -math.inf
        self._ready = False
        address = environment.get("NOTIFY_SOCKET", "")
        if not address:
            self._next_s = math.inf
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._address = "\0" + address[1:] if address.startswith("@") else address
        if environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
            with contextlib.suppress(KeyError, ValueError):
                self._every_s = int(environment["WATCHDOG_USEC"]) / 1e6 / FEEDS

    def ticked(self) -> None:
        """A tick was completed; called in the loop, never waits."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._send("WATCHDOG=1" if self._ready else "READY=1")
        self._ready, self._next_s = True, now_s + self._every_s

    def close(self) -> None:
        """The loop has ended, what follows is tidying up."""
        self._send("STOPPING=1")
        if self._socket:
            self._socket.close()
        self._socket, self._next_s = None, math.inf

    def _send(self, text: str) -> None:
        if self._socket:
            with contextlib.suppress(OSError):  # a manager that does not take it must not hold up the loop
                self._socket.sendto(text.encode(), self._address)
