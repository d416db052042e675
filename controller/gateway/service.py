"""The gateway process: tails the ring, records every row, publishes it, tells events. Control never waits for it."""

import asyncio
import contextlib
import logging
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from controller.gateway.admission import Admission
from controller.gateway.board import Board
from controller.gateway.events import Event, Flickering, code_name, events, now_t, unix_s
from controller.gateway.mqtt.publisher import Publisher
from controller.gateway.recording.keeper import Keeper, alive, is_recorded, salvage_left
from controller.gateway.web.server import serving
from controller.records import Array, Mode
from controller.ring import RingReader
from controller.schema import Site

POLL_S = 0.02
SLICE_ROWS = 200  # handled before the others get their turn
DEAD_S = 1.0  # without a row for this long, it is asked whether the writer lives
GOODBYE_S = 3.0  # for publishing the rest at the end
DIED = "the control process died"

log = logging.getLogger("pkm.gateway")


async def _wait_for_ring(site: Site, path: Path, interrupted: asyncio.Event) -> RingReader | None:
    """The first ring that lives or is not yet recorded; None when interrupted."""
    done: str | None = None  # the session of the last run, whose ring is still there
    while not interrupted.is_set():
        with contextlib.suppress(FileNotFoundError, ValueError):
            ring = RingReader(path)
            found = ring.meta["session"]
            if found != done:
                if (not ring.closed and alive(ring.writer_pid)) or not await asyncio.to_thread(is_recorded, site, ring):
                    return ring
                done = found
            ring.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(interrupted.wait(), 0.1)
    return None


def _writer_gone(ring: RingReader, path: Path) -> str | None:
    """Why no row will come any more, if so."""
    if not alive(ring.writer_pid):
        return DIED
    with contextlib.suppress(OSError, ValueError):
        present = RingReader(path)
        replaced = present.meta["session"] != ring.meta["session"]
        present.close()
        if replaced:  # the number of the dead writer may have been given to another process
            return "another control process took over"
    return None


def _event(ring: RingReader, kind: str, code: str, text: str) -> Event:
    return Event(now_t(ring.meta), kind, code, text, {})


def _complain(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # the MQTT library's callbacks may meet a socket that is closed already: one line, not a page
    log.warning("%s: %r", context["message"], context.get("exception"))


async def run(site: Site, *, ring_path: Path, stay: bool = False) -> dict[str, Any]:
    """Serve one session to its end, SIGTERM, or the death of the control process; with `stay` the next ones, too.

    It is the first session that lives or is not completely recorded. The operator page is there all the time.
    SIGINT, which Ctrl-C sends to all processes of a terminal, ends only the waiting: the last rows are still to
    come. Returns {"recorded": rows in all parts, "recording": path of the first part or None, "published",
    "dropped": samples over MQTT, "lost": rows the ring no longer had} of the last session.
    """
    loop = asyncio.get_running_loop()
    interrupted, terminated = asyncio.Event(), asyncio.Event()

    def terminate() -> None:
        interrupted.set()
        terminated.set()

    loop.set_exception_handler(_complain)
    loop.add_signal_handler(signal.SIGINT, interrupted.set)
    loop.add_signal_handler(signal.SIGTERM, terminate)
    outcome: dict[str, Any] = {"recorded": 0, "recording": None, "published": 0, "dropped": 0, "lost": 0}
    board = Board()
    try:
        async with serving(site, board) as admission:
            await asyncio.to_thread(salvage_left, site)
            while (ring := await _wait_for_ring(site, ring_path, interrupted)) is not None:
                outcome = await _serve(site, ring, ring_path, terminated, board, admission)
                if not stay or interrupted.is_set():
                    break
        return outcome
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


def _state(ring: RingReader, publisher: Publisher, keeper: Keeper) -> dict[str, Any]:
    """What is true now, for the operator page."""
    _, rows = ring.read(max(0, ring.written - 1), 1)
    t_s = float(rows[-1, [channel[0] for channel in ring.meta["channels"]].index("t_s")]) if len(rows) else 0.0
    silent = time.monotonic() - ring.meta["started_monotonic_s"] - t_s > DEAD_S
    return {
        "online": not silent and not ring.closed, "session": ring.meta["session"], "mode": publisher.mode,
        "since": publisher.since, "t": unix_s(ring.meta["started_unix_s"], t_s),
        "cause": "the control process sends no samples" if silent else None,
        "recording": keeper.name, "recorded": keeper.recorded, "lost": max(publisher.lost, keeper.lost),
        "published": publisher.published, "dropped": publisher.dropped, "events_dropped": publisher.events_dropped,
        "mqtt": publisher.connected, "mqtt_trouble": publisher.trouble,
    }  # fmt: skip


async def _serve(
    site: Site,
    ring: RingReader,
    path: Path,
    terminated: asyncio.Event,
    board: Board,
    admission: Admission | None,
) -> dict[str, Any]:
    publisher, keeper = Publisher(site, ring, admission), Keeper(site, ring)
    publisher.tell, board.publish = board.tell, publisher.event
    board.ring, board.ended, board.state = ring, None, lambda: _state(ring, publisher, keeper)
    index = await asyncio.to_thread(keeper.open)  # may have to salvage half a gigabyte first
    # what is recorded was published by the gateway that recorded it, but for the last moment before a kill
    publisher.cursor = max(0, index - int(ring.meta["rate_hz"]))
    publishing = asyncio.create_task(publisher.run())
    cause = "the gateway was stopped"
    try:
        cause = await _tail(
            ring, path, terminated, index=index, publisher=publisher, keeper=keeper, board=board, admission=admission
        )
    finally:
        ended = _event(ring, "gateway", "ended", f"{cause[0].upper()}{cause[1:]}.")
        board.tell(ended)
        for event in await asyncio.to_thread(keeper.close, board.to_record(), cause == DIED):
            board.tell(event, recorded=True)
        board.ended, board.publish = cause, None
        publisher.finish(cause)
        await asyncio.wait({publishing}, timeout=GOODBYE_S)
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
    return {
        "recorded": keeper.recorded,
        "recording": str(keeper.path) if keeper.recorded else None,
        "published": publisher.published,
        "dropped": publisher.dropped,
        "lost": max(publisher.lost, keeper.lost),
    }


async def _tail(
    ring: RingReader,
    path: Path,
    terminated: asyncio.Event,
    *,
    index: int,
    publisher: Publisher,
    keeper: Keeper,
    board: Board,
    admission: Admission | None,
) -> str:
    """Follow the ring from row `index` to its end; returns why it ended."""
    now = asyncio.get_running_loop().time
    columns = tuple(str(channel[0]) for channel in ring.meta["channels"])
    started_unix_s: float = ring.meta["started_unix_s"]
    previous, heard, flickering = _look_back(ring, index, publisher), now(), Flickering()
    while True:
        closed, stop = ring.closed, terminated.is_set()  # asked before reading: nothing follows these rows then
        first, rows = ring.read(index, SLICE_ROWS)
        if len(rows):
            lost = first - index
            publisher.lost += lost
            for row in rows:
                for found in events(previous, row, columns, started_unix_s=started_unix_s, lost=lost):
                    if event := flickering.calmed(found):
                        board.tell(admission.told(event) if admission else event)
                previous, lost = row, 0
            index, heard = first + len(rows), now()
        for event in keeper.step(index, board.to_record()):
            board.tell(event, recorded=True)
        publisher.recording = keeper.name
        if len(rows) == SLICE_ROWS:
            await asyncio.sleep(0.0)
            continue
        if closed:
            return "the control process ended"
        if stop:  # possibly because the control process died
            return _writer_gone(ring, path) or "the gateway was stopped"
        if now() - heard > DEAD_S and (gone := _writer_gone(ring, path)):
            return gone
        await asyncio.sleep(POLL_S)


def _look_back(ring: RingReader, index: int, publisher: Publisher) -> Array | None:
    """The row before `index`, from which the next events are told; since when its mode holds goes to `publisher`."""
    names = [channel[0] for channel in ring.meta["channels"]]
    mode, previous, since = names.index("mode"), None, None
    while index > 0:
        start = max(0, index - SLICE_ROWS)
        first, rows = ring.read(start, index - start)
        rows = rows[: max(0, index - first)]
        if not len(rows):
            break
        if previous is None:
            previous = since = rows[-1]
        other = np.flatnonzero(rows[:, mode] != previous[mode])
        if not len(other):
            since = rows[0]
        elif other[-1] + 1 < len(rows):
            since = rows[other[-1] + 1]
        if len(other) or first > start:
            break
        index = first
    if previous is not None and since is not None:
        publisher.mode = code_name(Mode, previous[mode])
        publisher.since = unix_s(ring.meta["started_unix_s"], float(since[names.index("t_s")]))
    return previous
