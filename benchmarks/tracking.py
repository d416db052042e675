"""Following error of the legs with and without feed-forward, the same demo motion against the same virtual cell.

    python -m benchmarks.tracking [SECONDS]

The plant's masses, inertias, friction and geometry differ from the model's (config/sites/simulation.toml).
"""

import sys

from benchmarks.system import run

CASES = {
    "velocity and force": (1.0, 1.0),
    "velocity only": (1.0, 0.0),
    "force only": (0.0, 1.0),
    "none": (0.0, 0.0),
}


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    print(f"{'feed-forward':<20} {'rms mm':>8} {'peak mm':>8} {'rms / none':>11}")
    figures: dict[str, tuple[float, float]] = {}
    for name, (velocity, force) in reversed(CASES.items()):

        def change(site: str, velocity: float = velocity, force: float = force) -> str:
            site = site.replace("velocity_feedforward = 1.0", f"velocity_feedforward = {velocity}")
            return site.replace("force_feedforward = 1.0", f"force_feedforward = {force}")

        error = run(seconds, change).summary["following_error_m"]
        figures[name] = (error["rms"], error["peak"])
        ratio = error["rms"] / figures["none"][0]
        print(f"{name:<20} {1e3 * error['rms']:8.4f} {1e3 * error['peak']:8.4f} {ratio:11.4f}", flush=True)


if __name__ == "__main__":
    main()
