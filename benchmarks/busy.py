"""A computer that others keep busy: what the loop and the link to the PLC get of it, with and without priority.

    python -m benchmarks.busy [--seconds 20] [--hogs 4]

The demo with its virtual cell, quiet and beside processes that compute without end, at ordinary priority; each with
`realtime.priority` as shipped and with none. The age of a status counts from when it was asked for to the tick that
uses it: 10 ms less the exchange as a rule, and one tick more for each that came too late for its own.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np

from benchmarks.system import run, until_in_motion
from controller.errors import RunError
from controller.records import Mode
from controller.schema import RealTime

LATE_S = 0.0145  # older than a status that came in time ever is


@contextmanager
def hogs(count: int) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    with ExitStack() as stack:
        for _ in range(count):
            hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(hog.wait)
            stack.callback(hog.kill)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--hogs", type=int, default=4)
    options = parser.parse_args()
    heads = ("late p99 ms", "age p50 ms", "age p99 ms", "age max ms", "late statuses %", "skipped", "ticks", "faults")
    print(f"{'':<28}" + "".join(f"{head:>17}" for head in heads[:-1]) + "  " + heads[-1])
    for priority in (RealTime().priority, 0):
        for count in (0, options.hogs):

            def beside(process: subprocess.Popen[str], log: Path, count: int = count) -> None:
                until_in_motion(log)
                with hogs(count), suppress(subprocess.TimeoutExpired):
                    process.wait(options.seconds)

            found = run(
                options.seconds + 6.0,
                lambda site, p=priority: site.replace("priority = 50", f"priority = {p}"),
                beside,
                also=(RunError.exit_code,),
            )
            mode = found.columns["mode"]
            first = int(np.argmax(mode == Mode.ACTIVE))
            part = slice(first, first + round(100 * options.seconds))
            age_s, late_s = found.columns["age_s"][part], found.columns["lateness_s"][part]
            figures = (
                f"{1e3 * np.quantile(late_s, 0.99):.3f}",
                *(f"{1e3 * np.quantile(age_s, q):.2f}" for q in (0.5, 0.99, 1.0)),
                f"{100 * (age_s > LATE_S).mean():.2f}",
                f"{np.ptp(found.columns['skipped'][part]):.0f}",
                f"{len(age_s)}",
            )  # fmt: skip
            print(f"{f'priority {priority}, {count} hogs':<28}" + "".join(f"{one:>17}" for one in figures), end="  ")
            print(", ".join(found.summary["faults"]) or "none", flush=True)


if __name__ == "__main__":
    main()
