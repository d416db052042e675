"""The virtual cell in real time: CX5130 with its plant, instruments on their lines, and the faults of all of them."""

import asyncio
import contextlib
import logging
import math
import signal
import time
from pathlib import Path

from controller import schema
from controller.clock import ticks
from controller.settings import SiteFiles
from drivers.exchange import PlcError, PlcState
from drivers.fitting import Fittings
from drivers.virtual import ams, faults, sensing
from drivers.virtual.cx5130 import Cx5130
from drivers.virtual.network import Network
from drivers.virtual.plant import Plant
from drivers.virtual.plc_program import LATCHED, PlcTwin
from drivers.virtual.sensing import Quantities, tilt_rad

log = logging.getLogger(__name__)

TCP_PORT = 48898  # where a site names none
CATCH_UP_S = 0.2  # if the process was away for longer, the plant stood still meanwhile
STOP_WITHIN_S = 2.0  # at the end of the process the machine gets so long to come to rest
SHOW_S = 0.004  # how often the sensors look at the plant


class Cell:
    """What a controller finds in the control cabinet, with the machine behind it. Stepped: one `cycle` a PLC cycle."""

    def __init__(self, files: SiteFiles, fittings: Fittings, plant: Plant) -> None:
        """Wire everything up; nothing listens yet."""
        site = files.site
        given = site.virtual_cell or schema.VirtualCell()
        self.cycle_s = given.plc_cycle_s
        self.plant = plant
        self.cx = Cx5130(site.ads, files.machine, plant, self.cycle_s, given.hydraulics, site.homing)
        self.server = ams.Server(self.cx.device)
        self.network = Network(self.server)
        self.sensing = sensing.build(site, fittings)
        self._names = [sensor.name for sensor in fittings.sensors]
        self._every = max(1, round(SHOW_S / self.cycle_s))
        self.show()

    def cycle(self) -> None:
        """Advance everything by one PLC cycle."""
        self.cx.cycle()
        if self.cx.twin.cycle % self._every == 0:
            self.show()

    def show(self) -> None:
        """Let terminals and instruments take over what the plant does now."""
        if self._names:
            self.sensing.show(self._quantities(), self._every * self.cycle_s)
            self.cx.input_raw, self.cx.input_status = self.sensing.input_raw, self.sensing.input_status

    def _quantities(self) -> Quantities:
        """The true value of everything the site measures."""
        true: Quantities = {}
        for i, force_n in enumerate(self.plant.cell_n.tolist(), 1):
            true[f"cell_{i}"] = force_n
        for side, pressures in self.cx.pressures_pa().items():
            true |= {f"{side}_pressure_{i}": pressure for i, pressure in enumerate(pressures.tolist(), 1)}
        if self.sensing.tilts:
            true["tilt_x"], true["tilt_y"] = tilt_rad(self.plant.pose())
        return true


async def serve(files: SiteFiles, fittings: Fittings, plant: Plant) -> None:
    """Run the virtual cell of a site until SIGTERM or SIGINT, then until the machine stands.

    Raises:
        OSError: the address of the site is in use or not of this computer.
        ConfigurationError: an instrument cannot be put where the site wants it.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await run(Cell(files, fittings, plant), files.site, stop)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def run(cell: Cell, site: schema.Site, stop: asyncio.Event) -> None:
    """As `serve`, until `stop` is set."""
    cx, cycle_s = cell.cx, cell.cycle_s
    host, _, port = site.ads.address.partition(":")
    host, bound = await cell.server.open(host, int(port or TCP_PORT))
    log.info("virtual CX5130 listens at %s:%d, AMS %s:%d", host, bound, site.ads.ams_net_id, site.ads.ams_port)
    control = site.virtual_cell.control if site.virtual_cell else ""
    switches = faults.Switches(cell, Path(control)) if control else None
    journal = Journal(cx.twin)
    missed = 0
    deadline_s = math.inf
    try:
        cell.sensing.open()
        async with contextlib.aclosing(ticks(cycle_s)) as elapsed:
            async for tick in elapsed:
                cycles = tick.skipped + 1
                missed += tick.skipped
                if cycles * cycle_s > CATCH_UP_S:
                    log.warning("the process was away for %.1f s, the plant stood still meanwhile", cycles * cycle_s)
                for _ in range(min(cycles, round(CATCH_UP_S / cycle_s))):
                    cell.cycle()
                    if line := journal.line(cx.twin):
                        log.info("PLC: %s", line)
                if stop.is_set():
                    deadline_s = min(deadline_s, time.monotonic() + STOP_WITHIN_S)
                    if _at_rest(cx) or time.monotonic() > deadline_s:
                        break
        rest = "the machine stands" if _at_rest(cx) else f"the machine still moves after {STOP_WITHIN_S:.0f} s"
        log.info("virtual CX5130 ends: %s; %d of %d PLC cycles were late", rest, missed, cx.twin.cycle)
    finally:
        if switches:
            switches.close()
        await cell.server.close()
        await asyncio.to_thread(cell.sensing.close)


def _at_rest(cx: Cx5130) -> bool:
    return cx.twin.state != PlcState.FOLLOWING and cx.twin.standing(cx.plant.velocity_m_s)


class Journal:
    """Turns the PLC's changes of state into sentences."""

    def __init__(self, twin: PlcTwin) -> None:
        """Begin with the state as it is."""
        self._state, self._powered, self._silent_s = twin.state, twin.powered, 0.0

    def line(self, twin: PlcTwin) -> str:
        """What changed in the cycle just run; empty when nothing did. Call it after every cycle."""
        before, was_powered, silent_s = self._state, self._powered, self._silent_s
        self._state, self._powered, self._silent_s = twin.state, twin.powered, twin.age_s
        silence = f"no new set-point for {1e3 * twin.age_s:.0f} ms"
        stands = was_powered and not twin.powered
        if twin.state == before:
            return f"standstill, brakes closed; {silence}" if stands and twin.state == PlcState.QUICK_STOP else ""
        match twin.state:
            case PlcState.OFF:
                return "drives off, brakes closed"
            case PlcState.HOMING:
                return "the axes look for their references"
            case PlcState.LATE:
                return f"{silence}: controlled hold"
            case PlcState.QUICK_STOP:
                cause = silence if PlcError.WATCHDOG in twin.error else f"{(twin.error & LATCHED).name}"
                return f"{cause}: quick stop" + (", at standstill already, brakes closed" if stands else "")
            case PlcState.HOLDING | PlcState.FOLLOWING:
                what = "holding" if twin.state == PlcState.HOLDING else "following the host's set-points"
                return what if before != PlcState.LATE else f"set-points again after {1e3 * silent_s:.0f} ms: {what}"
