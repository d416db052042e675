"""Run a recording through the cycle again and find the first bit that differs."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from controller import schema
from controller.cycle import cycle
from controller.errors import ConfigurationError
from controller.records import Array, Timing, channels, pack, timing_width, unpack_inputs
from controller.settings import parse
from controller.state import initial_state, prepare
from drivers.replayed import require_known


class Difference(NamedTuple):
    """The first value that came out otherwise."""

    row: int
    t_s: float
    channel: str
    recorded: float
    replayed: float


def replay(meta: dict[str, Any], rows: Array, source: Path) -> Difference | None:
    """Replay all rows of a recording from its start; None when every bit is the same.

    Raises:
        ConfigurationError: if the recording cannot be replayed by this version.
    """
    machine = parse(meta["machine_toml"], schema.Machine, source)
    site = parse(meta["site_toml"], schema.Site, source)
    sensors = list(site.sensors)
    columns = channels(len(machine.leg), sensors, site.stream is not None)
    require_known(meta, columns, source)
    found = meta["recording"]
    if found["first_index"] or found["gaps"]:
        at = found["first_index"] or found["gaps"][0][0]
        raise ConfigurationError(f"{source}: ticks are missing at {at}, so it cannot be replayed from its first tick")
    setup = prepare(machine, site, meta.get("tracks"))
    state = initial_state(setup)
    again = np.empty(len(columns))
    unused = Timing(0.0, 0.0, 0.0, 0, 0)
    produced = slice(0, len(columns) - timing_width())
    for index, row in enumerate(rows):
        sample, request = unpack_inputs(row, len(machine.leg), len(sensors), site.stream is not None)
        state, output = cycle(setup, state, sample, request)
        pack(again, sample, request, output, unused)
        # compared as bits: NaN equals itself, 0.0 and -0.0 differ
        same = again[produced].view(np.uint64) == row[produced].view(np.uint64)
        if not same.all():
            at = int(np.argmin(same))
            return Difference(index, float(row[1]), columns[at].name, float(row[at]), float(again[at]))
    return None
