"""The rows of a recording in place of the machine: one row a tick, whatever is commanded."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from controller.errors import ConfigurationError
from controller.records import Array, Channel, Command, Link, Request, RequestKind, Sample, unpack_inputs


def require_known(meta: dict[str, Any], columns: Sequence[Channel], source: Path) -> None:
    """Refuse a recording whose channels are not these.

    Raises:
        ConfigurationError: with the sentence for the user.
    """
    if [list(channel) for channel in columns] != [list(channel) for channel in meta["channels"]]:
        raise ConfigurationError(
            f"{source}: recorded by version {meta['version']}, whose channels this version does not know"
        )


class ReplayedDriver:
    """Gives sample and request of the next row at every tick; after the last row the link is down."""

    def __init__(self, rows: Array, legs: int, sensors: int, stream: bool = False) -> None:
        """Prepare rows (any number above 0, columns) in the order of `records.channels` of that many legs and sensors;
        `stream` where they have one.

        Raises:
            ValueError: there are no rows.
        """
        if len(rows) == 0:
            raise ValueError("found no rows, expected at least one")
        self._rows, self._shape = rows, (legs, sensors, stream)
        self._next = 0
        self._sample, self._request = unpack_inputs(rows[0], *self._shape)

    @property
    def exchange_s(self) -> float:
        """NaN: there is nobody to exchange anything with."""
        return math.nan

    @property
    def dropped(self) -> int:
        """None: no command was meant to be sent."""
        return 0

    def read(self, tick: int, now_s: float, start_s: float) -> Sample:
        """The sample of the next row, in this tick and at this time; then the last one without a link."""
        if self._next < len(self._rows):
            self._sample, self._request = unpack_inputs(self._rows[self._next], *self._shape)
            self._next += 1
        else:
            self._sample = replace(self._sample, link=Link.DOWN)
            self._request = replace(self._request, kind=RequestKind.NONE)
        return replace(self._sample, tick=tick, t_s=now_s - start_s)

    def request(self) -> Request:
        """What was asked for in the row that was read last."""
        return self._request

    def write(self, command: Command) -> None:
        """Nothing listens."""
