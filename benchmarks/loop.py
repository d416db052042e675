"""Lateness of the control loop beside a bare clock_nanosleep loop, in the same run.

    python -m benchmarks.loop [SECONDS]

First the clocks alone, by turns; then the whole system with the bare loop beside it in a process of its own.
"""

import asyncio
import ctypes
import multiprocessing
import os
import sys
import time
from multiprocessing.synchronize import Event

import numpy as np

from benchmarks.system import run
from controller.clock import ticks

PERIOD_S = 0.01
ROUNDS = 3
TIMER_ABSTIME = 1


class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def bare(seconds: float, stop: Event | None = None) -> np.ndarray:
    """Lateness of clock_nanosleep to absolute times, s."""
    libc = ctypes.CDLL(None)
    late: list[float] = []
    start = time.monotonic()
    for k in range(1, round(seconds / PERIOD_S) + 1):
        deadline = start + k * PERIOD_S
        until = Timespec(int(deadline), round(deadline % 1.0 * 1e9))
        libc.clock_nanosleep(time.CLOCK_MONOTONIC, TIMER_ABSTIME, ctypes.byref(until), None)
        late.append(time.monotonic() - deadline)
        if stop is not None and stop.is_set():
            break
    return np.array(late)


async def _timer(seconds: float) -> np.ndarray:
    late: list[float] = []
    async for tick in ticks(PERIOD_S):
        late.append(tick.lateness_s)
        if len(late) * PERIOD_S >= seconds:
            break
    return np.array(late)


async def _sleep(seconds: float) -> np.ndarray:
    late: list[float] = []
    start = time.monotonic()
    for k in range(1, round(seconds / PERIOD_S) + 1):
        deadline = start + k * PERIOD_S
        await asyncio.sleep(deadline - time.monotonic())
        late.append(time.monotonic() - deadline)
    return np.array(late)


def beside(stop: Event, found: "multiprocessing.Queue[np.ndarray]") -> None:
    """The bare loop at the priority of the control thread, until told to stop."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    except OSError:
        print("(no real-time priority here: the control loop has none either)")
    found.put(bare(1e4, stop))


def show(name: str, late: np.ndarray, floor: np.ndarray) -> None:
    figures = [np.quantile(late, 0.5), np.quantile(late, 0.99), late.max()]
    floors = [np.quantile(floor, 0.5), np.quantile(floor, 0.99), floor.max()]
    text = " ".join(f"{1e3 * value:8.3f}" for value in figures)
    ratios = " ".join(f"{value / base:8.2f}" for value, base in zip(figures, floors, strict=True))
    print(f"{name:<44} {text}   {ratios}", flush=True)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    heads = " ".join(f"{name:>8}" for name in ("p50", "p99", "max"))
    print(f"{'lateness, ms, and ratio to the bare loop':<44} {heads}   {heads}")
    parts: dict[str, list[np.ndarray]] = {"bare": [], "timerfd": [], "sleep": []}
    for _ in range(ROUNDS):
        parts["bare"].append(bare(seconds / 10))
        parts["timerfd"].append(asyncio.run(_timer(seconds / 10)))
        parts["sleep"].append(asyncio.run(_sleep(seconds / 10)))
    alone = {name: np.concatenate(rounds) for name, rounds in parts.items()}
    show("clock_nanosleep, alone", alone["bare"], alone["bare"])
    show("asyncio with timerfd (the loop's clock), alone", alone["timerfd"], alone["bare"])
    show("asyncio.sleep, alone", alone["sleep"], alone["bare"])

    context = multiprocessing.get_context("spawn")
    stop, found = context.Event(), context.Queue()
    process = context.Process(target=beside, args=(stop, found))
    process.start()
    result = run(seconds)
    stop.set()
    floor = found.get()
    process.join()
    show("clock_nanosleep beside the whole system", floor, floor)
    show("control loop of the whole system", result.columns["lateness_s"], floor)
    summary = result.summary
    print(
        f"ticks {summary['ticks']}, skipped {summary['skipped']}, exchange with the PLC, ms: {summary['exchange_ms']}"
    )


if __name__ == "__main__":
    main()
