"""What the gateway says under pkm/<site>/: state, meta, telemetry/live, telemetry/batch, event; and requests it takes.

The ring is the only buffer of samples: a broker that is gone, frozen or slow costs no memory and delays nobody
else; what grew too old meanwhile is dropped, counted, and the count is published.

One gateway speaks for a site. If two use its name, the one whose session began first keeps the topics; the other
says what it has to say below pkm/<site>/<its own name>/ and takes no requests, until the first one is gone.
"""

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import aiomqtt
import msgspec

from controller.errors import ConfigurationError
from controller.gateway.events import Event, now_t, unix_s
from controller.gateway.mqtt import client as connection
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
PAUSE_S = (0.5, 10.0)  # before connecting again: first, longest; shorter by chance, so that not all come at once
LASTED_S = 10.0  # a connection that broke earlier does not shorten the next pause
RETAINED_S = 0.3  # for the state that the broker kept
RIVAL_S = 2.5 * STATE_S  # for a sign of life of the one who left that state
RIVAL_GONE_S = 5.0 * STATE_S
MOST_RIVALS = 16  # that are remembered

# what an operator watches, the most important first; {i} runs over the legs
LIVE = (
    "mode", "link", "faults", "limits", "drives_enabled", "drives_fault", "plc_state", "plc_error",
    *POSE, "length_{i}_m", "following_error_{i}_m", "drive_{i}_n", "cell_{i}_n", "cell_{i}_quality",
    "head_pressure_{i}_pa", "rod_pressure_{i}_pa", "tilt_x_rad", "tilt_y_rad",
    *(f"reference_{name}" for name in POSE), "lateness_s", "cycle_s", "exchange_s", "age_s", "skipped", "dropped",
    "fk_residual_m", "condition", "model_{i}_n", *(f"{name}_s" for name in POSE), "command_{i}_m",
)  # fmt: skip

log = logging.getLogger("pkm.gateway.mqtt")


class Reply(Protocol):
    """The answer to a request; it can be encoded."""

    verdict: str


class Admission(Protocol):
    """Who judges requests: whatever comes gets a reply."""

    async def admit(self, raw: bytes, *, who: str, source: str, retained: bool) -> Reply:
        """The reply to a request as it came."""
        ...


class _State(msgspec.Struct):
    """What matters in the state of a gateway, perhaps of another one."""

    gateway: str = ""
    connected: bool = False


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
    """Publishes the rows of a ring, takes requests. `run` ends after `finish`; nothing that a broker does ends it."""

    def __init__(self, site: Site, ring: RingReader, admission: Admission | None = None) -> None:
        """Create it inside the event loop that runs it. Without `admission` there are no requests over MQTT."""
        meta = ring.meta
        self.cursor = 0  # next row to publish
        self.published = 0  # samples the broker acknowledged
        self.dropped = 0  # samples that grew too old
        self.events_dropped = 0
        self.requests_refused = 0
        self.requests_dropped = 0  # too large or too many: thrown away unread
        self.requests_poison = 0  # what could not even be judged
        self.lost = 0  # rows that the gateway came too late for; set by the service like the next three
        self.recording: str | None = None  # name of the file while it records
        self.mode: str | None = None
        self.since: float | None = None  # s, Unix time
        self.tell: Callable[[Event], None] = self.event  # where own events go
        self.connected = False  # the broker answered on the present connection
        self.trouble: str | None = None  # why there is none
        self._known = False  # the broker has answered before
        self.name = f"{meta['session']}-{secrets.token_hex(2)}"  # among the gateways that use the name of the site
        self.rival: str | None = None  # another one of these
        self._site, self._ring, self._admission = site, ring, admission
        self._told, self._events_told = (0, 0, 0), 0
        self._columns = [channel[0] for channel in meta["channels"]]
        self._live = live_columns(self._columns, meta["legs"])
        self._t_column = self._columns.index("t_s")
        self._backlog = max(BATCH_ROWS, int(BACKLOG_S * meta["rate_hz"]))
        self._events = deque[tuple[int, Event]]()
        self._cause: str | None = None
        self._ending = asyncio.Event()
        self._version = connection.version(site)
        self._rivals: dict[str, float] = {}  # when each was last heard, s
        self._aside = False  # another one keeps the topics of the site
        self._kept, self._heard = asyncio.Event(), asyncio.Event()  # a state the broker kept, a rival that lives
        self._suspect = False  # the state the broker kept says that another one is connected
        self._echo_s: float | None = None  # when the own state came back

    def event(self, event: Event) -> None:
        """Queue an event; the oldest gives way."""
        if event.kind == "mode":
            self.mode, self.since = event.code, event.t
        if len(self._events) >= EVENTS:
            self._events.popleft()
            self.events_dropped += 1
        self._events_told += 1
        self._events.append((self._events_told, event))

    def finish(self, cause: str) -> None:
        """Publish what is left, then the offline state with its cause."""
        self._cause = cause
        self._ending.set()

    async def run(self) -> None:
        """Publish until `finish`, through every loss of the broker."""
        pause = PAUSE_S[0]
        try:
            while True:
                last, started = self._ending.is_set(), time.monotonic()
                try:
                    if await self._connection():
                        return
                    continue  # with other topics
                except (aiomqtt.MqttError, ConfigurationError, OSError) as error:
                    self._complain(connection.in_words(error, self._site.mqtt.tls is not None, self._known))
                except Exception:  # a bug in a message must not end all others
                    log.exception("MQTT connection is given up and made anew")
                if last:
                    return
                lasted = self.connected and time.monotonic() - started > LASTED_S
                self.connected = False
                pause = PAUSE_S[0] if lasted else min(2.0 * pause, PAUSE_S[1])
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), pause * random.uniform(0.5, 1.0))  # noqa: S311
        finally:
            self.connected = False
            self.dropped += self._ring.written - self.cursor
            self.cursor = self._ring.written

    def _complain(self, why: str) -> None:
        mqtt = self._site.mqtt
        why = f"MQTT broker {mqtt.host}:{mqtt.port}: {why}"
        if why != self.trouble:
            self.trouble = why
            self._tell("unreachable", f"{why}. Samples wait for {BACKLOG_S:g} s.")
            log.warning(why)

    def _tell(self, code: str, text: str, values: dict[str, float | None] | None = None) -> None:
        self.tell(Event(self._now(), "publishing", code, text, values or {}))

    def _now(self) -> float:
        return round(now_t(self._ring.meta), 6)

    async def _connection(self) -> bool:
        """One connection to its end; False if the next one is to use other topics."""
        will = msgspec.json.encode(self._state(False, "the connection to the gateway broke", False))
        will = aiomqtt.Will(self._topic("state"), will, 1, not self._aside)
        # the same name each time: the broker forgets the last connection and its will first
        name = f"pkm-{self._site.name}-{self.name}"
        async with connection.client(self._site, name, will, self._count_dropped) as client:
            listening = asyncio.create_task(self._listen(client))
            try:
                await self._find_place(client)
                return await self._serve(client)
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    def _topic(self, name: str) -> str:
        return f"pkm/{self._site.name}/{self.name + '/' if self._aside else ''}{name}"

    async def _publish(
        self,
        client: aiomqtt.Client,
        name: str,
        value: Any,
        *,
        qos: int = 1,
        retain: bool = False,
        timeout_s: float = connection.TIMEOUT_S,
    ) -> None:
        # msgspec makes null of what is not finite; whoever stands aside leaves nothing behind
        payload = msgspec.json.encode(value)
        await client.publish(self._topic(name), payload, qos, retain and not self._aside, timeout=timeout_s)
        if qos and not self.connected:
            self.connected = self._known = True
            if self.trouble:
                self._tell("connected", "The MQTT broker is there again.")
                self.trouble = None
        await asyncio.sleep(0)  # a publish that succeeds at once does not give way by itself

    async def _find_place(self, client: aiomqtt.Client) -> None:
        """Find out whether another gateway speaks for this site before a word is said, then take requests if none."""
        site = f"pkm/{self._site.name}"
        self._kept.clear()
        self._heard.clear()
        self._suspect, self._echo_s = False, None
        may_read = [await connection.subscribe(client, self._version, f"{site}/{at}state") for at in ("", "+/")]
        if not all(may_read):
            log.warning("MQTT broker: it does not let us read %s/state: who else uses this name stays unknown", site)
            self._echo_s = time.monotonic()
        elif not self._ending.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._kept.wait(), RETAINED_S)
            if self._suspect:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._heard.wait(), RIVAL_S)
        self._look_for_rivals()
        if self._admission is None or self._aside or self._first_rival():
            return
        if not await connection.subscribe(client, self._version, f"{site}/request/+", qos=1, as_published=True):
            log.warning("MQTT broker: it does not let us read %s/request/+: there are no requests over MQTT", site)

    def _first_rival(self) -> str | None:
        """Whoever goes before this one, if anybody does."""
        first = min(self._rivals, default=None)
        return first if first and first < self.name else None

    def _look_for_rivals(self) -> None:
        """Forget who is silent, tell what is new."""
        now = time.monotonic()
        self._rivals = {name: heard for name, heard in self._rivals.items() if now - heard < RIVAL_GONE_S}
        rival = min(self._rivals, default=None)
        if rival == self.rival:
            return
        self.rival = rival
        site = f"pkm/{self._site.name}"
        if rival is None:
            self._tell("alone", f"No other controller uses {site} any more.")
            return
        aside = self.name if rival < self.name else rival
        which = "this one" if aside == self.name else "the other one"
        text = f"Another controller uses {site}, too: {rival}. Give each site a name of its own. For now "
        self._tell("rival", text + f"{which} publishes below {site}/{aside} and takes no requests over MQTT.")
        log.error("another controller, %s, publishes under %s, too: give each site a name of its own", rival, site)

    def _must_move(self) -> bool:
        """Whether the topics of the present connection are no longer the right ones."""
        aside, self._aside = self._aside, self._first_rival() is not None
        return aside != self._aside

    async def _listen(self, client: aiomqtt.Client) -> None:
        """Take what comes, one after the other, until the connection breaks (MqttError); nothing in it ends this."""
        async for message in client.messages:
            try:
                *_, before, last = message.topic.value.split("/")
                if last == "state":
                    self._hear(message)
                elif before == "request" and last and self._admission:
                    await self._answer(client, message, last, self._admission)
            except Exception as error:
                self.requests_poison += 1
                if self.requests_poison.bit_count() == 1:  # not a line each
                    log.error("message %d over MQTT that could not be judged: %r", self.requests_poison, error)

    def _hear(self, message: aiomqtt.Message) -> None:
        """The state of a gateway: of this one, or of a rival; one that the broker kept may be as old as you like."""
        state = msgspec.json.decode(message.payload, type=_State)
        other = bool(state.gateway) and state.gateway != self.name
        if message.retain:
            self._suspect = other and state.connected
            self._kept.set()
        elif not other:
            self._echo_s = time.monotonic()
        elif not state.connected:
            self._rivals.pop(state.gateway, None)
        elif state.gateway in self._rivals or len(self._rivals) < MOST_RIVALS:
            self._rivals[state.gateway] = time.monotonic()
            self._heard.set()

    async def _answer(self, client: aiomqtt.Client, message: aiomqtt.Message, who: str, admission: Admission) -> None:
        reply = await admission.admit(message.payload, who=who, source="mqtt", retained=message.retain)
        self.requests_refused += reply.verdict != "ACCEPTED"
        with contextlib.suppress(aiomqtt.MqttError):  # then the one who asked gets no reply
            await client.publish(f"pkm/{self._site.name}/response/{who}", msgspec.json.encode(reply), 1)

    def _count_dropped(self) -> None:
        self.requests_dropped += 1

    async def _serve(self, client: aiomqtt.Client) -> bool:
        """Publish on one connection until it breaks (MqttError), or all is said after `finish`.

        False if this gateway has to go on with other topics.
        """
        now = asyncio.get_running_loop().time
        began = due = heard = stated = now()
        written, state, rival = 0, None, self.rival
        moved = False
        try:
            if self._must_move():
                moved = True
                return False
            await self._publish(client, "state", self._state(True, None), retain=True)
            await self._publish(client, "meta", self._meta(), retain=True)
            while True:
                if self._ring.written != written:
                    written, heard = self._ring.written, now()
                    await self._publish(client, "telemetry/live", self._newest(), qos=0)
                silent = now() - heard > SILENT_S
                key = (silent, self.mode, self.since, self.recording, self.rival)
                if key != state or now() - stated > STATE_S:
                    if self.rival != rival and not self._aside:  # a newcomer may have overwritten what was kept
                        await self._publish(client, "meta", self._meta(), retain=True)
                    state, stated, rival = key, now(), self.rival
                    self._tell_drops()
                    cause = "the control process sends no samples" if silent else None
                    await self._publish(client, "state", self._state(not silent, cause), retain=True)
                    self._require_echo(now() - began)
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
                    return True
                self._look_for_rivals()
                if self._must_move():
                    moved = True
                    return False
                due = max(due + PERIOD_S, now() - PERIOD_S)
                await asyncio.sleep(due - now())
        finally:  # leaving through an exception sends no will
            if not moved:
                offline = self._state(False, self._cause or "the gateway connects anew", False)
                with contextlib.suppress(aiomqtt.MqttError):
                    await self._publish(client, "state", offline, retain=True, timeout_s=1.0)

    async def _publish_event(self, client: aiomqtt.Client) -> None:
        number, event = self._events.popleft()
        try:
            names = {"session": self._ring.meta["session"], "gateway": self.name, "seq": number}
            await self._publish(client, "event", {**names, **msgspec.structs.asdict(event)})
        except aiomqtt.MqttError:
            self._events.appendleft((number, event))
            raise

    def _require_echo(self, connected_s: float) -> None:
        """Complain, once a connection, if the own state does not come back."""
        if self._echo_s is None and connected_s > RIVAL_GONE_S:
            self._echo_s = time.monotonic()
            user = self._site.mqtt.user or "without a name"
            text = f"The MQTT broker takes messages of user {user} but does not pass them on: may it publish?"
            self._tell("not_passed_on", text)
            log.error(text)

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

    def _state(self, online: bool, cause: str | None, connected: bool = True) -> dict[str, Any]:
        _, rows = self._ring.read(max(0, self._ring.written - 1), 1)
        return {
            "online": online, "session": self._ring.meta["session"], "mode": self.mode, "since": self.since,
            "t": self._time(rows[-1]) if len(rows) else self._ring.meta["started_unix_s"], "cause": cause,
            "recording": self.recording, "lost": self.lost, "dropped": self.dropped,
            "events_dropped": self.events_dropped, "requests_refused": self.requests_refused,
            "requests_dropped": self.requests_dropped, "requests_poison": self.requests_poison,
            "gateway": self.name, "connected": connected, "rival": self.rival,
        }  # fmt: skip

    def _meta(self) -> dict[str, Any]:
        meta = self._ring.meta
        names = ("session", "site", "version", "started_unix_s", "rate_hz", "legs", "limits", "configuration_sha256")
        channels = [{"name": name, "unit": unit, "meaning": meaning} for name, unit, meaning in meta["channels"]]
        return {**{name: meta[name] for name in names}, "channels": channels}

    def _tell_drops(self) -> None:
        counts = (self.dropped, self.events_dropped, self.requests_dropped)
        samples, events, requests = (now - told for now, told in zip(counts, self._told, strict=True))
        self._told = counts
        if samples or events:
            text = f"{samples} samples and {events} events could not be published: the broker was away or too slow."
            self._tell("dropped", text, {"samples": samples, "events": events})
        if requests:
            text = f"{requests} requests over MQTT were thrown away unread: too large, or too many at a time."
            self._tell("requests_dropped", text, {"requests": requests})
