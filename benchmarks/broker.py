"""A broker that is frozen for 15 s: lateness and skipped ticks of the control loop before, meanwhile, after.

    python -m benchmarks.broker

One run, so machine and load are the same; the ratio of two quiet stretches shows the noise.
"""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np

from benchmarks.system import Run, run, until_in_motion
from controller.records import Mode

FREEZE_S, QUIET_S = 15.0, 15.0


def main() -> None:
    def beside(process: subprocess.Popen[str], log: Path) -> None:
        until_in_motion(log)
        time.sleep(2 * QUIET_S)
        broker = int(re.search(r"broker started as process (\d+)", log.read_text())[1])  # type: ignore[index]
        os.kill(broker, signal.SIGSTOP)
        time.sleep(FREEZE_S)
        os.kill(broker, signal.SIGCONT)

    result = run(2 * QUIET_S + FREEZE_S + 10.0, beside=beside)
    first = result.columns["t_s"][np.argmax(result.columns["mode"] == Mode.ACTIVE)]
    windows = {
        "quiet 1": (first, first + QUIET_S),
        "quiet 2": (first + QUIET_S, first + 2 * QUIET_S),
        "broker frozen": (first + 2 * QUIET_S, first + 2 * QUIET_S + FREEZE_S),
    }
    show(result, windows)


def show(result: Run, windows: dict[str, tuple[float, float]]) -> None:
    t, late, skipped = (result.columns[name] for name in ("t_s", "lateness_s", "skipped"))
    floor = 0.0
    print(f"{'':<16} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'skipped':>8} {'p99 / quiet 1':>14}")
    for name, (begin, end) in windows.items():
        inside = (t >= begin) & (t < end)
        part = 1e3 * late[inside]
        p99 = float(np.quantile(part, 0.99))
        floor = floor or p99
        gone = int(np.ptp(skipped[inside]))
        print(f"{name:<16} {np.median(part):8.3f} {p99:8.3f} {part.max():8.3f} {gone:8d} {p99 / floor:14.2f}")
    summary = result.summary
    print(f"ticks {summary['ticks']}, recorded {summary['recorded']}, skipped {summary['skipped']} in the whole run")


if __name__ == "__main__":
    main()
