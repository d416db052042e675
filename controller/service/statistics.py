"""Figures of a run in constant memory."""

import math

import numpy as np


class Histogram:
    """Durations in seconds, resolved to 2 µs up to 40 ms; the largest is exact."""

    STEP_S = 2e-6

    def __init__(self) -> None:
        self._counts = np.zeros(20_001, np.int64)
        self._largest_s = 0.0

    def add(self, value_s: float) -> None:
        """Count one value; NaN is passed over."""
        if not math.isnan(value_s):
            self._counts[min(max(int(value_s / self.STEP_S), 0), 20_000)] += 1
            self._largest_s = max(self._largest_s, value_s)

    def summary_ms(self) -> dict[str, float | None]:
        """p50, p99 and max in milliseconds; null when nothing was counted."""
        total = int(self._counts.sum())
        if total == 0:
            return {"p50": None, "p99": None, "max": None}
        cumulated = np.cumsum(self._counts)
        levels = (np.searchsorted(cumulated, share * total) for share in (0.50, 0.99))
        p50, p99 = (round(min(1e3 * self.STEP_S * (float(at) + 1), 1e3 * self._largest_s), 4) for at in levels)
        return {"p50": p50, "p99": p99, "max": round(1e3 * self._largest_s, 4)}


class RootMeanSquare:
    """Root mean square and peak of arrays."""

    def __init__(self) -> None:
        self._squares, self._count, self._peak = 0.0, 0, 0.0

    def add(self, values: np.ndarray) -> None:
        """Take an array in."""
        self._squares += float(np.dot(values, values))
        self._count += len(values)
        self._peak = max(self._peak, float(np.abs(values).max()))

    def summary(self) -> dict[str, float | None]:
        """rms and peak, in the unit of the values; null when nothing was taken in."""
        if self._count == 0:
            return {"rms": None, "peak": None}
        return {"rms": math.sqrt(self._squares / self._count), "peak": self._peak}
