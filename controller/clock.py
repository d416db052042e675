"""Absolute ticks on a timerfd in the event loop: no drift, no bursts, skipped deadlines counted.

asyncio.sleep wakes a millisecond late because epoll rounds up; the timerfd's wake-up comes through epoll at once
(benchmarks/loop.py prints both beside a bare clock_nanosleep).
"""

import asyncio
import ctypes
import os
import struct
import time
from collections.abc import AsyncGenerator
from typing import NamedTuple

CLOCK_MONOTONIC = 1
TFD_TIMER_ABSTIME = 1


class Tick(NamedTuple):
    """One wake-up."""

    number: int  # deadlines since the start, skipped ones included
    deadline_s: float  # monotonic
    lateness_s: float
    skipped: int  # deadlines missed since the last tick


async def ticks(period_s: float) -> AsyncGenerator[Tick]:
    """Wake at start + k * period for ever; after an overrun go on at the next deadline, never catch up."""
    loop = asyncio.get_running_loop()
    timer = _timerfd(period_s)
    try:
        start_s = time.monotonic()
        _arm(timer, start_s + period_s, period_s)
        expired = asyncio.Event()
        elapsed = 0

        def expire() -> None:
            nonlocal elapsed
            elapsed += struct.unpack("Q", os.read(timer, 8))[0]
            expired.set()

        loop.add_reader(timer, expire)
        number = 0
        while True:
            await expired.wait()
            expired.clear()
            skipped = elapsed - number - 1
            number = elapsed
            deadline_s = start_s + number * period_s
            yield Tick(number, deadline_s, time.monotonic() - deadline_s, skipped)
    finally:
        loop.remove_reader(timer)
        os.close(timer)


def _timerfd(period_s: float) -> int:
    if period_s <= 0.0:
        raise ValueError(f"period of {period_s} s, expected a positive one")
    libc = ctypes.CDLL(None, use_errno=True)
    timer = libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if timer < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    return timer


def _arm(timer: int, first_s: float, period_s: float) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def timespec(seconds: float) -> tuple[int, int]:
        nanoseconds = round(seconds * 1e9)
        return nanoseconds // 10**9, nanoseconds % 10**9

    spec = struct.pack("qqqq", *timespec(period_s), *timespec(first_s))
    if libc.timerfd_settime(timer, TFD_TIMER_ABSTIME, spec, None) < 0:
        raise OSError(ctypes.get_errno(), "timerfd_settime")
