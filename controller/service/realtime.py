"""What the control process asks of the operating system, and a report of what it got."""

import ctypes
import gc
import os
import resource
import sys
from typing import NamedTuple

from controller import schema

MCL_CURRENT, MCL_FUTURE = 1, 2
LINK_BELOW, CELL_BELOW = 5, 10  # of the control thread's priority


class Obtained(NamedTuple):
    """One wish and what became of it."""

    wish: str
    asked: bool  # the site file asks for it
    granted: bool
    detail: str


def apply(settings: schema.RealTime) -> list[Obtained]:
    """Ask for real-time priority of the calling thread, locked memory and a quiet garbage collector."""
    return [priority_of_thread(settings.priority), _memory(settings.lock_memory), _collector()]


def priority_of_thread(priority: int, handed_on: bool = False) -> Obtained:
    """Ask for SCHED_FIFO for the calling thread, and for those that it starts if `handed_on`; 0 or less: do not."""
    wish = f"SCHED_FIFO priority {priority}"
    if priority <= 0:
        return Obtained("real-time priority", False, False, "not asked for (realtime.priority = 0)")
    try:
        # reset on fork: threads and children of this one must not starve the machine
        policy = os.SCHED_FIFO | (0 if handed_on else os.SCHED_RESET_ON_FORK)
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    except OSError as error:
        return Obtained(wish, True, False, f"{error.strerror}: needs CAP_SYS_NICE or an rtprio limit")
    return Obtained(wish, True, True, f"for the control thread, {LINK_BELOW} less for the link to the PLC")


def _memory(wanted: bool) -> Obtained:
    if not wanted:
        return Obtained("locked memory", False, False, "not asked for (realtime.lock_memory = false)")
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        # with a finite limit a later allocation, not this call, would fail
        return Obtained("locked memory", True, False, f"limit of {soft} bytes: needs LimitMEMLOCK=infinity")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(MCL_CURRENT | MCL_FUTURE) != 0:
        return Obtained("locked memory", True, False, os.strerror(ctypes.get_errno()))
    return Obtained("locked memory", True, True, "mlockall, present and future pages")


def _collector() -> Obtained:
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(0.0005)  # a thread that holds the GIL hands it over sooner
    return Obtained(
        "garbage collector",
        True,
        True,
        f"{gc.get_freeze_count()} objects frozen, collector off while the drives are on",
    )
