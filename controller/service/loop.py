"""The loop around the cycle: tick, sample, cycle, command, ring. Nothing else belongs here."""

import gc
import time
from collections.abc import AsyncIterator, Callable

import numpy as np

from controller.clock import Tick
from controller.cycle import cycle
from controller.ports import LegDriver, SensorReader
from controller.records import AxisMode, Command, Mode, Output, Request, Timing, pack
from controller.ring import RingWriter
from controller.state import Setup, initial_state

Observer = Callable[[Output, Timing], bool]


async def control(
    setup: Setup,
    clock: AsyncIterator[Tick],
    driver: LegDriver,
    sensed: SensorReader,
    next_request: Callable[[], Request],
    ring: RingWriter,
    observe: Observer,
    start_s: float,
) -> None:
    """Run until `observe` returns False; on every way out the last word to the PLC is STOP.

    Times of samples count from `start_s` on the monotonic clock.
    """
    state = initial_state(setup)
    n = len(setup.limits.length_min_m)
    row = np.empty(ring.columns)
    skipped, cycle_s = 0, 0.0
    try:
        async for tick in clock:
            begin_s = tick.deadline_s + tick.lateness_s
            skipped += tick.skipped
            sample = sensed(driver.read(tick.number, begin_s, start_s), begin_s)
            request = next_request()
            last_mode = state.mode
            state, output = cycle(setup, state, sample, request)
            driver.write(output.command)
            timing = Timing(tick.lateness_s, cycle_s, driver.exchange_s, skipped, driver.dropped)
            pack(row, sample, request, output, timing)
            ring.push(row)
            go_on = observe(output, timing)
            if state.mode is not last_mode:
                _collect(state.mode)
            cycle_s = time.monotonic() - begin_s
            if not go_on:
                return
    finally:
        gc.enable()
        zero = np.zeros(n)
        driver.write(Command(state.command.seq + 1, AxisMode.STOP, state.command.position_m, zero, zero))


def _collect(mode: Mode) -> None:
    """Garbage is collected only while the drives are off: a collection may take longer than a tick."""
    if mode is Mode.OFF:
        gc.enable()
    else:
        gc.disable()
