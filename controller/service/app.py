"""The composition root of `pkm run`: starts what the site asks for, runs the loop, ends everything in order."""

import asyncio
import json
import logging
import math
import secrets
import signal
import socket
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from controller import __version__, clock, schema
from controller.errors import ConfigurationError, DeviceError, RunError
from controller.lint.geometry import require_sound
from controller.ports import LegDriver, SensorReader
from controller.records import Array, Fault, Mode, Output, Request, RequestKind, Sample, Timing, Verdict, channels
from controller.ring import RingWriter
from controller.safety.faults import describe
from controller.safety.supervisor import explain
from controller.service import computer, history, loop, realtime
from controller.service.check_move import CheckError, CheckMove
from controller.service.children import Child, how_it_ended
from controller.service.demo import demonstrate
from controller.service.mailbox import NOTHING, Mailbox
from controller.service.notify import Notifier
from controller.service.operator import Operator
from controller.service.sensors import Sensors
from controller.service.sole import sole_controller
from controller.service.statistics import Histogram, RootMeanSquare
from controller.service.stream import StreamReceiver
from controller.settings import SiteFiles
from controller.state import Setup, prepare
from drivers.ads import AdsDriver
from drivers.ads_link import HANGS, split_address
from drivers.fitting import Fittings, fit
from drivers.replayed import ReplayedDriver, require_known
from drivers.shadow import ShadowDriver

log = logging.getLogger(__name__)

PATIENCE_S = 5.0  # for a PLC that should be there
CELL_PATIENCE_S = 60.0  # for a virtual cell that is starting
WIND_DOWN_TICKS = 200  # before the end of a run of given length: stop, drives off
LONGEST_END_TICKS = 1000  # then the run ends whatever the mode
HUNG_TICKS = 20  # a computer that was asleep looks like a library that hangs, until the call has returned
FAULT_TICKS = 20  # a demo goes on this long in FAULT, so that the recording shows what followed
STATUS_EVERY_TICKS = 500


class Recording(NamedTuple):
    """A recording to run from in place of the machine."""

    path: Path
    meta: dict[str, Any]
    rows: Array  # (ticks, channels)


class World(NamedTuple):
    """What a run is connected to."""

    driver: LegDriver
    sensed: SensorReader
    asked: Callable[[], Request] = lambda: NOTHING  # requests that come with the samples
    hung: Callable[[], bool] = lambda: False  # the link is gone until this program is started again
    stream: StreamReceiver | None = None


def run(
    files: SiteFiles,
    demo: bool,
    duration_s: float,
    shadow: bool = False,
    recording: Recording | None = None,
    check_move: bool = False,
    alone: bool = False,
) -> dict[str, Any]:
    """Run a site until the duration is over or a signal ends it; returns the summary.

    With `shadow` nothing is sent to the PLC; with a recording there is no PLC, and the run ends with the recording.
    With `check_move` it ends with the check move, whose findings are in the summary. With `alone` gateway, broker and
    virtual cell are left to others.

    Raises:
        PkmError: with the sentence for the user; a RunError carries the summary.
    """
    require_sound(files.machine, files.machine_path)
    if recording:
        _require_match(recording, files)
        files = files._replace(site=msgspec.structs.replace(files.site, virtual_cell=None))
    fittings = fit(files)
    for sentence in fittings.unverified():
        log.warning(sentence)
    if files.site.virtual_cell is None and not (shadow or recording):
        computer.require(files.site)
    with sole_controller(files.site.ads):
        if not alone:
            _require_free_ports(files.site)
        return _run(files, fittings, demo, duration_s, shadow, recording, check_move, alone)


def _run(
    files: SiteFiles,
    fittings: Fittings,
    demo: bool,
    duration_s: float,
    shadow: bool,
    recording: Recording | None,
    check_move: bool,
    alone: bool,
) -> dict[str, Any]:
    site, machine = files.site, files.machine
    setup = prepare(machine, site, files.track_texts)
    check = CheckMove(files, fittings, setup) if check_move else None
    started_s, started_unix_s = time.monotonic(), time.time()
    session = f"{datetime.fromtimestamp(started_unix_s, UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    configuration = history.texts(files)
    history.keep(site, configuration, started_unix_s)
    columns = channels(len(machine.leg), list(site.sensors), site.stream is not None)
    ring = RingWriter(
        Path(site.ring.path),
        len(columns),
        math.ceil(site.ring.seconds * site.rate_hz),
        {
            "session": session,
            "site": site.name,
            "version": __version__,
            "started_unix_s": started_unix_s,
            "started_monotonic_s": started_s,
            "rate_hz": site.rate_hz,
            "driver": "replayed" if recording else "shadow" if shadow else "ads",
            "legs": len(machine.leg),
            "sensors": list(site.sensors),
            "limits": setup.limits.told(),
            "channels": [list(channel) for channel in columns],
            "configuration_sha256": history.digest(configuration),
            "machine_toml": files.machine_text,
            "site_toml": files.site_text,
            "tracks": files.track_texts,
        },
    )
    most_ticks = duration_s * site.rate_hz
    last_tick = min(most_ticks, len(recording.rows)) if recording else most_ticks
    operator = check.operator() if check else demonstrate(setup) if demo else None
    conductor = Conductor(operator, most_ticks - WIND_DOWN_TICKS, last_tick)
    with _children(site, str(files.path), ring, alone) as (children, outcome):
        conductor.children = children
        reached = _recorded(recording, files) if recording else _cabinet(files, fittings, setup, shadow, children)
        with reached as world, closing(Mailbox(Path(site.requests.path), list(site.tracks))) as mailbox:
            for obtained in realtime.apply(site.realtime):
                level = logging.INFO if obtained.granted else logging.WARNING
                log.log(level, "%s: %s (%s)", obtained.wish, "yes" if obtained.granted else "NO", obtained.detail)
                if site.realtime.required and obtained.asked and not obtained.granted:
                    raise DeviceError(f"{obtained.wish} was not granted ({obtained.detail}), the site requires it")
            conductor.mailbox, conductor.asked, conductor.hung = mailbox, world.asked, world.hung
            conductor.stream = world.stream
            if check:
                world = world._replace(sensed=check.watching(world.sensed))  # noqa: PLW2901
            asyncio.run(_control(setup, world, ring, conductor, started_s))
    summary = conductor.summary() | {"recorded": outcome.get("recorded", 0), "recording": outcome.get("recording")}
    summary |= {"check_move": check.summary()} if check else {}
    if conductor.failure:
        raise RunError(conductor.failure, summary)
    if check and (wrong := check.failure()):
        raise CheckError(wrong, summary)
    return summary


@contextmanager
def _cabinet(
    files: SiteFiles, fittings: Fittings, setup: Setup, shadow: bool, children: dict[str, Child]
) -> Generator[World]:
    """PLC and instruments of the site, once they answer."""
    site, legs = files.site, len(files.machine.leg)
    control = site.control
    lead_s = control.feedback.status_lead_s if control.law == "force" else None
    priority = site.realtime.priority - realtime.LINK_BELOW
    # AdsLib's receiver is a thread that the link's own thread starts: it has to come through as well
    first = partial(realtime.priority_of_thread, priority, handed_on=True)
    ads = AdsDriver(site.ads, legs, 1.0 / site.rate_hz, control.velocity_feedforward, lead_s, first)
    sensors = Sensors(files, fittings, lambda: ads.reading)
    with closing(ads), closing(sensors):
        ads.open()
        sensors.open()
        _wait_for_devices(ads, sensors, site, children)
        if shadow:
            log.warning("shadow: nothing is sent to the PLC at %s, what would be sent is recorded", site.ads.address)
        driver = ShadowDriver(ads) if shadow else ads
        with closing(StreamReceiver(site.stream, setup.limits)) if site.stream else nullcontext() as stream:
            sensed = stream.watching(sensors.read) if stream else sensors.read
            yield World(driver, sensed, hung=lambda: ads.hung, stream=stream)


@contextmanager
def _recorded(recording: Recording, files: SiteFiles) -> Generator[World]:
    """A recording in place of PLC and instruments."""
    site = files.site
    driver = ReplayedDriver(recording.rows, len(files.machine.leg), len(site.sensors), site.stream is not None)
    log.warning("replayed: %d ticks of %s take the place of the machine", len(recording.rows), recording.path)
    yield World(driver, _with_its_sensors, driver.request)


def _with_its_sensors(sample: Sample, now_s: float) -> Sample:
    """A recorded sample, which holds the sensors already."""
    del now_s
    return sample


def _require_match(recording: Recording, files: SiteFiles) -> None:
    """Refuse a recording of another kind of machine, of other sensors, at another rate or without ticks."""
    found, site = recording.meta, files.site
    for what, was, now in (
        ("legs", found["legs"], len(files.machine.leg)),
        ("sensors", " ".join(found.get("sensors", ())) or "none", " ".join(site.sensors) or "none"),
        ("rate_hz", found["rate_hz"], site.rate_hz),
    ):
        if was != now:
            raise ConfigurationError(f"{recording.path}: recorded with {what} {was}, {files.path} has {now}")
    columns = channels(len(files.machine.leg), list(site.sensors), site.stream is not None)
    require_known(found, columns, recording.path)
    if not len(recording.rows):
        raise ConfigurationError(f"{recording.path}: found no ticks, expected at least one")


async def _control(setup: Setup, world: World, ring: RingWriter, conductor: "Conductor", start_s: float) -> None:
    events = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        events.add_signal_handler(number, conductor.end)
    ticks = clock.ticks(setup.period_s)
    driver, sensed = world.driver, world.sensed
    with closing(Notifier()) as manager:

        def observe(output: Output, timing: Timing) -> bool:
            manager.ticked()
            return conductor.observe(output, timing)

        await loop.control(setup, ticks, driver, sensed, conductor.next_request, ring, observe, start_s)


class Conductor:
    """Decides what is asked for and when the run ends, and keeps its figures."""

    mailbox: Mailbox
    asked: Callable[[], Request]
    hung: Callable[[], bool]
    stream: StreamReceiver | None = None

    def __init__(self, operator: Operator | None, wind_down_tick: float, last_tick: float) -> None:
        self.children: dict[str, Child] = {}
        self.failure = ""
        self._motion_s = 0.0  # what the motion asked for last takes
        self._operator, self._alone = operator, operator is not None
        if self._operator:
            next(self._operator)
        self._wind_down_tick, self._last_tick = wind_down_tick, last_tick
        self._ending = self._at_once = False
        self._ending_ticks = 0
        self._asked = NOTHING
        self._output: Output | None = None
        self._faults: Fault = Fault.NONE
        self._fault_ticks = 0
        self._hung_ticks = 0
        self._ticks = 0
        self._skipped = 0
        self._lateness, self._exchange = Histogram(), Histogram()
        self._following = RootMeanSquare()

    def end(self) -> None:
        """Begin an orderly end; called by signals too, and a second time to end at once."""
        if self._ending:
            log.warning("asked to end again: stopping at once")
        self._at_once, self._ending = self._ending, True

    def next_request(self) -> Request:
        """What is asked for in this tick."""
        self._asked = self.asked()
        if not self._asked.kind:
            self._asked = self.mailbox.poll()
        if self._asked.kind and self._operator:
            log.warning("an operator took over: the built-in one ends")
            self._operator = None
        if self._ending or self._ticks >= self._wind_down_tick:
            self._ending_ticks += 1
            if self._output and self._output.mode in (Mode.READY, Mode.ACTIVE):
                self._asked = Request(RequestKind.OFF, 0, NOTHING.pose)
        elif self._operator and self._output and self._output.mode is not Mode.FAULT:
            try:
                self._asked = self._operator.send(self._output)
            except StopIteration:  # it has done all it wanted
                self.end()
            except RunError as refusal:
                self.failure = str(refusal)
                self.end()
        return self._asked

    def observe(self, output: Output, timing: Timing) -> bool:
        """Take one tick into account; False ends the run."""
        last, self._output = self._output, output
        self._ticks += 1
        self._skipped = timing.skipped
        self._lateness.add(timing.lateness_s)
        self._exchange.add(timing.exchange_s)
        if output.faults and output.mode is not Mode.OFF:
            self._faults |= output.faults
        if output.mode in (Mode.ACTIVE, Mode.STOPPING):
            self._following.add(output.following_error_m)
        self.mailbox.answer(output)
        if self._asked.kind and output.verdict is not Verdict.NOT_READY:
            text = explain(output.verdict, self._asked.kind, output.refusal)
            log.info("request %s: %s", self._asked.kind.name, text)
        if output.verdict is Verdict.ACCEPTED:
            self._motion_s = output.left_s
        if last is None or output.mode is not last.mode:
            self._announce(last, output)
        if self._ticks % STATUS_EVERY_TICKS == 0:
            self._report(output)
        if self._ticks % 10 == 0:
            self._look_after_children()
        return self._goes_on(output)

    def summary(self) -> dict[str, Any]:
        """The figures of the run, as documented in docs/reference/commands.md."""
        return {
            "ticks": self._ticks,
            "skipped": self._skipped,
            "lateness_ms": self._lateness.summary_ms(),
            "exchange_ms": self._exchange.summary_ms(),
            "following_error_m": self._following.summary(),
            "faults": [fault.name for fault in self._faults],
            "mode": self._output.mode.name if self._output else Mode.OFF.name,
            **({"stream": self.stream.told()} if self.stream else {}),
        }

    def _goes_on(self, output: Output) -> bool:
        over = self._ending or self._ticks >= self._last_tick
        self._hung_ticks = self._hung_ticks + 1 if self.hung() else 0
        if self._hung_ticks >= HUNG_TICKS:
            self.failure = f"{HANGS} (mode {output.mode.name})"
            log.error(self.failure)
            return False
        if output.mode is Mode.FAULT:
            self._fault_ticks += 1
            cell = self.children.get("plant")
            hopeless = self._alone or (cell is not None and cell.ended() is not None)
            if over or (hopeless and self._fault_ticks >= FAULT_TICKS):
                self.failure = f"the run ended in a fault: {describe(output.faults)}"
                return False
            return True
        self._fault_ticks = 0
        if self._at_once or self._ending_ticks >= LONGEST_END_TICKS:
            self.failure = f"the run ended in {output.mode.name}, before the drives were off"
            return False
        return not (over and output.mode is Mode.OFF)

    def _announce(self, last: Output | None, output: Output) -> None:
        was = last.mode.name if last else "start"
        if output.mode is Mode.OFF or not output.faults:
            log.info("%s → %s", was, output.mode.name)
        else:
            level = logging.ERROR if output.mode is Mode.FAULT else logging.WARNING
            log.log(level, "%s → %s: %s", was, output.mode.name, describe(output.faults))

    def _report(self, output: Output) -> None:
        figures, following = self._lateness.summary_ms(), self._following.summary()
        pose = " ".join(f"{value:+.4f}" for value in output.estimate.pose)
        error = "" if following["rms"] is None else f", following error {1e3 * following['rms']:.3f} mm rms"
        if output.left_s > 0.0:
            done = 1.0 - output.left_s / max(self._motion_s, output.left_s)
            error += f", {100.0 * done:.0f} % of the motion done, {output.left_s:.0f} s left"
        if self.stream and self.stream.counts:
            error += f", stream {self.stream.told()}"
        log.info(
            "%s, tick %d, pose %s, lateness %s/%s ms p50/p99, skipped %d%s",
            output.mode.name, self._ticks, pose, figures["p50"], figures["p99"], self._skipped, error,
        )  # fmt: skip

    def _look_after_children(self) -> None:
        for name, child in self.children.items():
            code = child.ended()
            if code is not None and child.revive():
                log.warning("%s %s; started again as process %d", name, how_it_ended(code), child.pid)


@contextmanager
def _children(
    site: schema.Site, site_path: str, ring: RingWriter, alone: bool
) -> Generator[tuple[dict[str, Child], dict[str, Any]]]:
    """Start broker, virtual cell and gateway as the site asks; end them in order, gateway after the ring is closed.

    None of them with `alone`.

    Yields them by name, and a dictionary that holds what the gateway said once all have ended.
    """
    children: dict[str, Child] = {}
    outcome: dict[str, Any] = {}
    if site.broker and site.broker.start and not alone:
        children["broker"] = Child("broker", site_path, keep=True)
    if site.virtual_cell and site.virtual_cell.start and not alone:
        children["plant"] = Child("plant", site_path, keep=False)
    if not alone:
        children["gateway"] = Child("gateway", site_path, keep=True)
    try:
        for name, child in children.items():
            child.start()
            log.info("%s started as process %d", name, child.pid)
        yield children, outcome
    finally:
        ring.close()
        if gateway := children.get("gateway"):
            printed = gateway.finish(20.0, ask=False)
            try:
                outcome.update(json.loads(printed))
            except ValueError:
                log.error("the gateway ended without a report: the recording may be unfinished")
        for name in ("plant", "broker"):
            if name in children:
                children[name].finish(5.0, ask=True)


def _wait_for_devices(driver: AdsDriver, sensors: Sensors, site: schema.Site, children: dict[str, Child]) -> None:
    """Until the PLC answers and every required sensor has a valid value.

    Raises:
        DeviceError: one of them does not in time, with its sentence.
    """
    plant, missing = children.get("plant"), list[str]()
    end_s = time.monotonic() + (CELL_PATIENCE_S if plant else PATIENCE_S)
    while not driver.is_up or (missing := sensors.complaints(time.monotonic(), site)):
        if plant and (code := plant.ended()) is not None:
            reason = f"the virtual cell {how_it_ended(code)} before it answered"
            raise ConfigurationError(reason) if code == ConfigurationError.exit_code else DeviceError(reason)
        if driver.hung or time.monotonic() > end_s:
            raise DeviceError("; ".join(missing) if driver.is_up else driver.message)
        time.sleep(0.02)


def _require_free_ports(site: schema.Site) -> None:
    wanted: list[tuple[str, str, int]] = []
    if site.virtual_cell and site.virtual_cell.start:
        wanted.append(("ads.address", *split_address(site.ads.address)))
    if site.broker and site.broker.start:
        wanted.append(("mqtt.port", site.mqtt.host, site.mqtt.port))
    for key, host, port in wanted:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise ConfigurationError(
                    f"{key}: port {port} of {host} cannot be used: {error.strerror}; end the program that has it, "
                    f"or set another port in the site file"
                ) from None
