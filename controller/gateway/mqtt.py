"""What the gateway publishes under pkm/<site>/: state, meta, telemetry/live, telemetry/batch, event.

The ring is the only buffer of samples: a broker that is gone, frozen or slow costs no memory and delays nobody
else; what grew too old meanwhile is dropped, counted, and the count is published.
"""

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any

import aiomqtt
import msgspec

from controller.gateway.events import Event, unix_s
from controller.records import POSE, Array
from controller.ring import RingReader
from controller.schema import Site

PERIOD_S = 0.1  # of live and batch
STATE_S = 1.0  # the state is repeated at least this often
SILENT_S = 1.0  # without a row for this long, control is not online
BACKLOG_S = 10.0  # older samples are dropped
BATCH_ROWS = 25  # in one message, about 4 KB each
EVENTS = 500  # waiting ones
LIVE_BYTES = 3900  # some brokers crawl over WebSocket above 4 KB
PAUSE_S = (0.5, 10.0)  # before connecting again: first, longest

# what an operator watches, the most important first; {i} runs over the legs
LIVE = (
    "mode", "link", "faults", "limits", "drives_enabled", "drives_fault", "plc_state", "plc_error",
    *POSE, "length_{i}_m", "following_error_{i}_m", "drive_{i}_n", "cell_{i}_n", "cell_{i}_quality",
    "head_pressure_{i}_pa", "rod_pressure_{i}_pa", "tilt_x_rad", "tilt_y_rad",
    *(f"reference_{name}" for name in POSE), "lateness_s", "cycle_s", "exchange_s", "age_s", "skipped", "dropped",
    "fk_residual_m", "condition", "model_{i}_n", *(f"{name}_s" for name in POSE), "command_{i}_m",
)  # fmt: skip

log = logging.getLogger("pkm.gateway.mqtt")
_quiet = logging.getLogger("pkm.gateway.mqtt.client")
_quiet.setLevel(logging.CRITICAL)  # one line per unasked message would be another way to be flooded


def live_columns(columns: Sequence[str], legs: int) -> list[int]:
    """Indices of the channels in telemetry/live: as many of LIVE as surely fit into LIVE_BYTES."""
    chosen: list[int] = []
    size = len('{"t":1700000000.123456,"seq":9007199254740992}')
    for name in (pattern.format(i=i) for pattern in LIVE for i in (range(1, legs + 1) if "{i}" in pattern else (0,))):
        size += len(name) + len(',"":-1.234567e-308')
        if name in columns and size < LIVE_BYTES:
            chosen.append(columns.index(name))
    return chosen


def short(value: float) -> float:
    """Seven significant digits."""
    return float(f"{value:.7g}")


class Publisher:
    """Publishes the rows of a ring. `run` ends after `finish`; nothing that a broker does ends it."""

    def __init__(self, site: Site, ring: RingReader) -> None:
        """Create it inside the event loop that runs it."""
        meta = ring.meta
        self.cursor = 0  # next row to publish
        self.published = 0  # samples the broker acknowledged
        self.dropped = 0  # samples that grew too old
        self.events_dropped = 0
        self.lost = 0  # rows that the gateway came too late for; set by the service like the next three
        self.recording: str | None = None  # name of the file while it records
        self.mode: str | None = None
        self.since: float | None = None  # s, Unix time
        self._site, self._ring, self._told = site, ring, (0, 0)
        self._columns = [channel[0] for channel in meta["channels"]]
        self._live = live_columns(self._columns, meta["legs"])
        self._t_column = self._columns.index("t_s")
        self._backlog = max(BATCH_ROWS, int(BACKLOG_S * meta["rate_hz"]))
        self._events = deque[Event]()
        self._cause: str | None = None
        self._ending = asyncio.Event()
        self._answered = False  # the broker acknowledged something on this connection

    def event(self, event: Event) -> None:
        """Queue an event; the oldest gives way."""
        if event.kind == "mode":
            self.mode, self.since = event.code, event.t
        if len(self._events) >= EVENTS:
            self._events.popleft()
            self.events_dropped += 1
        self._events.append(event)

    def finish(self, cause: str) -> None:
        """Publish what is left, then the offline state with its cause."""
        self._cause = cause
        self._ending.set()

    async def run(self) -> None:
        """Publish until `finish`, through every loss of the broker."""
        pause = PAUSE_S[0]
        try:
            while True:
                last, self._answered = self._ending.is_set(), False
                try:
                    async with self._client() as client:
                        await self._serve(client)
                        return
                except aiomqtt.MqttError as error:
                    if self._answered or pause == PAUSE_S[0]:
                        log.warning("MQTT broker %s:%d: %s", self._site.mqtt.host, self._site.mqtt.port, error)
                except Exception:  # a bug in a message must not end all others
                    log.exception("MQTT connection is given up and made anew")
                if last:
                    return
                pause = PAUSE_S[0] if self._answered else min(2.0 * pause, PAUSE_S[1])
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), pause)
        finally:
            self.dropped += self._ring.written - self.cursor
            self.cursor = self._ring.written

    def _client(self) -> aiomqtt.Client:
        """A client for one connection; the same name makes the broker forget the last one and its will first."""
        will = msgspec.json.encode(self._state(False, "the connection to the gateway broke"))
        return aiomqtt.Client(
            self._site.mqtt.host, self._site.mqtt.port, identifier=f"pkm-{self._site.name}-gateway", timeout=2.0,
            keepalive=5, will=aiomqtt.Will(self._topic("state"), will, 1, True), logger=_quiet,
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],  # else each message waits for a delayed ACK
            max_queued_incoming_messages=1,  # nothing is subscribed: what comes all the same is thrown away
        )  # fmt: skip

    def _topic(self, name: str) -> str:
        return f"pkm/{self._site.name}/{name}"

    async def _publish(
        self,
        client: aiomqtt.Client,
        name: str,
        value: Any,
        *,
        qos: int = 1,
        retain: bool = False,
        timeout_s: float = 2.0,
    ) -> None:
        # msgspec makes null of what is not finite
        await client.publish(self._topic(name), msgspec.json.encode(value), qos, retain, timeout=timeout_s)
        self._answered |= qos > 0
        await asyncio.sleep(0)  # a publish that succeeds at once does not give way by itself

    async def _serve(self, client: aiomqtt.Client) -> None:
        """Publish on one connection until it breaks (MqttError) or all is said after `finish`."""
        now = asyncio.get_running_loop().time
        due = heard = stated = now()
        written, state = 0, None
        try:
            await self._publish(client, "meta", self._meta(), retain=True)
            while True:
                if self._ring.written != written:
                    written, heard = self._ring.written, now()
                    await self._publish(client, "telemetry/live", self._newest(), qos=0)
                silent = now() - heard > SILENT_S
                key = (silent, self.mode, self.since, self.recording)
                if key != state or now() - stated > STATE_S:
                    state, stated = key, now()
                    self._tell_drops()
                    cause = "the control process sends no samples" if silent else None
                    await self._publish(client, "state", self._state(not silent, cause), retain=True)
                # both bounded, so that live and state do not wait while a backlog is sent
                for _ in range(min(20, len(self._events))):
                    await self._publish_event(client)
                for _ in range(10):
                    rows = self._next_rows()
                    if len(rows):
                        await self._publish(client, "telemetry/batch", self._samples(self.cursor, rows))
                    self.cursor += len(rows)
                    self.published += len(rows)
                    if len(rows) < BATCH_ROWS:
                        break
                if self._cause is not None and self.cursor >= self._ring.written and not self._events:
                    return
                due = max(due + PERIOD_S, now() - PERIOD_S)
                await asyncio.sleep(due - now())
        finally:  # leaving through an exception sends no will
            offline = self._state(False, self._cause or "the gateway connects anew")
            with contextlib.suppress(aiomqtt.MqttError):
                await self._publish(client, "state", offline, retain=True, timeout_s=1.0)

    async def _publish_event(self, client: aiomqtt.Client) -> None:
        event = self._events.popleft()
        try:
            message = {"session": self._ring.meta["session"], **msgspec.structs.asdict(event)}
            await self._publish(client, "event", message)
        except aiomqtt.MqttError:
            self._events.appendleft(event)
            raise

    def _next_rows(self) -> Array:
        """The rows from the cursor on, after dropping those that are too old."""
        first, rows = self._ring.read(max(self.cursor, self._ring.written - self._backlog), BATCH_ROWS)
        self.dropped += first - self.cursor
        self.cursor = first
        return rows

    def _time(self, row: Array) -> float:
        return round(unix_s(self._ring.meta["started_unix_s"], float(row[self._t_column])), 6)

    def _newest(self) -> dict[str, float]:
        first, rows = self._ring.read(self._ring.written - 1, 1)
        row = rows[-1]
        values = {self._columns[k]: short(float(row[k])) for k in self._live}
        return {"t": self._time(row), "seq": first, **values}

    def _samples(self, first: int, rows: Array) -> list[dict[str, float]]:
        return [
            {"t": self._time(row), "seq": seq, **dict(zip(self._columns, row.tolist(), strict=True))}
            for seq, row in enumerate(rows, first)
        ]

    def _state(self, online: bool, cause: str | None) -> dict[str, Any]:
        _, rows = self._ring.read(max(0, self._ring.written - 1), 1)
        return {
            "online": online, "session": self._ring.meta["session"], "mode": self.mode, "since": self.since,
            "t": self._time(rows[-1]) if len(rows) else self._ring.meta["started_unix_s"], "cause": cause,
            "recording": self.recording, "lost": self.lost, "dropped": self.dropped,
            "events_dropped": self.events_dropped,
        }  # fmt: skip

    def _meta(self) -> dict[str, Any]:
        meta = self._ring.meta
        names = ("session", "site", "version", "started_unix_s", "rate_hz", "legs", "limits", "configuration_sha256")
        channels = [{"name": name, "unit": unit, "meaning": meaning} for name, unit, meaning in meta["channels"]]
        return {**{name: meta[name] for name in names}, "channels": channels}

    def _tell_drops(self) -> None:
        samples, events = self.dropped - self._told[0], self.events_dropped - self._told[1]
        if samples or events:
            self._told = (self.dropped, self.events_dropped)
            text = f"{samples} samples and {events} events could not be published: the broker was away or too slow."
            t = self._state(True, None)["t"]
            self.event(Event(t, "publishing", "dropped", text, {"samples": samples, "events": events}))
