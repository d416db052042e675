"""What every step of a commissioning works with: the engineer, the service, and what came of it."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TextIO

import numpy as np

from controller.commissioning import record
from controller.commissioning.record import Said, Trouble
from controller.commissioning.service import Rows, Service
from controller.errors import ConfigurationError, PkmError
from controller.records import Array, Quality
from controller.settings import SiteFiles
from controller.state import Setup

WATCHED_S = 1.0  # of rows, for a look at the service


class Declined(PkmError):  # noqa: N818  nothing is in error
    """The engineer did not agree."""


class Outcome(NamedTuple):
    """What came of a step."""

    figures: dict[str, Any]
    findings: list[Trouble]
    waived: bool = False


@dataclass
class Engineer:
    """Who is asked, and what was answered."""

    name: str
    given: dict[str, str]  # answers beforehand, by question
    yes: bool  # to every question that yes answers
    out: TextIO
    said: list[Said] = field(default_factory=list[Said])

    def confirm(self, key: str, text: str) -> None:
        """A question that only yes answers.

        Raises:
            Declined: it was not yes.
        """
        answer = self._answered(key, f"{text} [y/N] ", "yes" if self.yes else None)
        if answer.strip().lower() not in ("y", "yes"):
            raise Declined(f"{key}: not agreed to")

    def tell(self, key: str, text: str) -> str:
        """A question with any answer.

        Raises:
            ConfigurationError: there is none.
        """
        return self._answered(key, text, None)

    def _answered(self, key: str, text: str, otherwise: str | None) -> str:
        answer = self.given.get(key, otherwise)
        if answer is None and not sys.stdin.isatty():
            raise ConfigurationError(f"question {key!r} has no answer: {text.strip()} (--answers FILE, or a terminal)")
        if answer is None:
            answer = input(f"      {text}")
        else:
            print(f"      {text}{answer}", file=self.out)
        if answer:
            self.said.append(Said(text.removesuffix(" [y/N] "), answer, self.name, record.now()))
        return answer


@dataclass
class Walk:
    """What the steps work with."""

    files: SiteFiles
    setup: Setup
    engineer: Engineer
    seconds: float
    connect: Callable[[], Service]
    out: TextIO
    found: Service | None = None

    @property
    def service(self) -> Service:
        """The running one, looked for when it is needed first."""
        if self.found is None:
            self.found = self.connect()
        return self.found

    def say(self, text: str) -> None:
        """A line below the step's own."""
        print(f"      {text}", file=self.out, flush=True)


def sensor_of(rows: Rows, name: str) -> Array:
    """Values of a sensor, NaN where they are not valid."""
    unit = next(column for column in rows.columns if column.startswith(f"{name}_") and column.removeprefix(f"{name}_")
                in ("n", "pa", "rad"))  # fmt: skip
    return np.where(rows[f"{name}_quality"] == Quality.GOOD, rows[unit], np.nan)


def rounded(values: Array, digits: int) -> list[float | None]:
    """For the record: finite, and no longer than they are worth."""
    return [round(value, digits) if math.isfinite(value) else None for value in values.tolist()]
