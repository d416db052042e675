"""The gateway process: tails the ring, records every row, publishes it, tells events. Control never waits for it."""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np

from controller.gateway.events import Event, code_name, events, unix_s
from controller.gateway.mqtt import Publisher
from controller.gateway.recorder import Recorder, parts, recording_path, survey
from controller.records import Array, Mode
from controller.ring import RingReader
from controller.schema import Site

POLL_S = 0.02
SLICE_ROWS = 200  # handled before the others get their turn
DEAD_S = 1.0  # without a row for this long, it is asked whether the writer lives
GOODBYE_S = 3.0  # for publishing the rest at the end

log = logging.getLogger("pkm.gateway")


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _recorded(site: Site, ring: RingReader) -> bool:
    """Whether an earlier gateway finished with this ring."""
    files = parts(recording_path(site, ring.meta))
    holds = survey(files[-1]) if files else None
    return holds is not None and holds.finished and holds.next_index >= ring.written


async def _wait_for_ring(site: Site, path: Path, interrupted: asyncio.Event) -> RingReader | None:
    """The first ring that lives or is not yet recorded; None when interrupted."""
    done: str | None = None  # the session of the last run, whose ring is still there
    while not interrupted.is_set():
        with contextlib.suppress(FileNotFoundError, ValueError):
            ring = RingReader(path)
            found = ring.meta["session"]
            if found != done:
                if (not ring.closed and _alive(ring.writer_pid)) or not await asyncio.to_thread(_recorded, site, ring):
                    return ring
                done = found
            ring.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(interrupted.wait(), 0.1)
    return None


def _writer_gone(ring: RingReader, path: Path) -> str | None:
    """Why no row will come any more, if so."""
    if not _alive(ring.writer_pid):
        return "the control process died"
    with contextlib.suppress(OSError, ValueError):
        present = RingReader(path)
        replaced = present.meta["session"] != ring.meta["session"]
        present.close()
        if replaced:  # the number of the dead writer may have been given to another process
            return "another control process took over"
    return None


def _event(ring: RingReader, kind: str, code: str, text: str) -> Event:
    # the clock pair of the session: a step of the wall clock does not tear events and samples apart
    t = unix_s(ring.meta["started_unix_s"], time.monotonic() - ring.meta["started_monotonic_s"])
    return Event(t, kind, code, text, {})


def _complain(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # the MQTT library's callbacks may meet a socket that is closed already: one line, not a page
    log.warning("%s: %r", context["message"], context.get("exception"))


async def run(site: Site, *, ring_path: Path) -> dict[str, Any]:
    """Serve one session to its end, SIGTERM, or the death of the control process.

    It is the first session that lives or is not completely recorded.
    SIGINT, which Ctrl-C sends to all processes of a terminal, ends only the waiting: the last rows are still to
    come. Returns {"recorded": rows in all parts, "recording": path of the first part or None, "published",
    "dropped": samples over MQTT, "lost": rows the ring no longer had}.
    """
    loop = asyncio.get_running_loop()
    interrupted, terminated = asyncio.Event(), asyncio.Event()

    def terminate() -> None:
        interrupted.set()
        terminated.set()

    loop.set_exception_handler(_complain)
    loop.add_signal_handler(signal.SIGINT, interrupted.set)
    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        ring = await _wait_for_ring(site, ring_path, interrupted)
        if ring is None:
            return {"recorded": 0, "recording": None, "published": 0, "dropped": 0, "lost": 0}
        return await _serve(site, ring, ring_path, terminated)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


@contextlib.contextmanager
def _recording_may_fail(publisher: Publisher, ring: RingReader) -> Generator[None]:
    """Trouble with the recording ends it and is told; publishing goes on."""
    try:
        yield
    except Exception as error:
        log.error("recording stopped: %s", error, exc_info=not isinstance(error, OSError))
        publisher.recording = None
        publisher.event(_event(ring, "recording", "stopped", f"Recording stopped: {error}. All else goes on."))


async def _serve(site: Site, ring: RingReader, path: Path, terminated: asyncio.Event) -> dict[str, Any]:
    publisher, recorder, index = Publisher(site, ring), None, 0
    with _recording_may_fail(publisher, ring):
        recorder = await asyncio.to_thread(Recorder, site, ring.meta)  # may have to salvage half a gigabyte first
        publisher.recording, index = recorder.path.name, recorder.next_index
    # what is recorded was published by the gateway that recorded it, but for the last moment before a kill
    publisher.cursor = max(0, index - int(ring.meta["rate_hz"]))
    publishing = asyncio.create_task(publisher.run())
    cause = "the gateway was stopped"
    try:
        cause = await _tail(ring, path, terminated, index=index, publisher=publisher, recorder=recorder)
    finally:
        ended = _event(ring, "gateway", "ended", f"{cause[0].upper()}{cause[1:]}.")
        publisher.event(ended)
        if recorder and publisher.recording:
            with _recording_may_fail(publisher, ring):
                recorder.append(recorder.next_index, np.empty((0, len(ring.meta["channels"]))), [ended])
                recorder.close()
        publisher.finish(cause)
        await asyncio.wait({publishing}, timeout=GOODBYE_S)
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
    return {
        "recorded": recorder.recorded if recorder else 0,
        "recording": str(recorder.path) if recorder else None,
        "published": publisher.published,
        "dropped": publisher.dropped,
        "lost": publisher.lost,
    }


async def _tail(
    ring: RingReader,
    path: Path,
    terminated: asyncio.Event,
    *,
    index: int,
    publisher: Publisher,
    recorder: Recorder | None,
) -> str:
    """Follow the ring from row `index` to its end; returns why it ended."""
    now = asyncio.get_running_loop().time
    columns = tuple(str(channel[0]) for channel in ring.meta["channels"])
    started_unix_s: float = ring.meta["started_unix_s"]
    previous, heard = _look_back(ring, index, publisher), now()
    while True:
        closed, stop = ring.closed, terminated.is_set()  # asked before reading: nothing follows these rows then
        first, rows = ring.read(index, SLICE_ROWS)
        if len(rows):
            lost, found = first - index, list[Event]()
            for row in rows:
                found += events(previous, row, columns, started_unix_s=started_unix_s, lost=lost)
                previous, lost = row, 0
            if recorder and publisher.recording:
                with _recording_may_fail(publisher, ring):
                    recorder.append(first, rows, found)
            for event in found:
                publisher.event(event)
            publisher.lost += first - index
            index, heard = first + len(rows), now()
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
