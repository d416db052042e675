"""The one way in: every request of page, MQTT and shell is judged here, forwarded to the control process, and told.

In this order: size, retained, form, who asks and with which role, deadline, repetition, rate. What passes goes over
the Unix socket of the control process, which judges it once more by what the machine can do; its answer is waited
for, but not long, and not by anybody else.
"""

import asyncio
import itertools
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from controller.datagram import MOST_BYTES, listen
from controller.errors import ConfigurationError
from controller.gateway.accounts import Accounts, Session, may
from controller.gateway.events import Event
from controller.message import Answer, Message, request_of
from controller.records import Request, RequestKind

ANSWER_S = 1.0  # the control process answers within a tick
AHEAD_S = 10.0  # a deadline is not further away
REMEMBERED = 4096  # ids, so that a copy of a request does nothing, not even after the clock was set back
RATE_HZ, BURST = 5.0, 10.0  # requests of one user
TOLD_HZ, TOLD_BURST = 5.0, 20.0  # refusals told one by one

# the least role that may ask for it
LEAST: dict[RequestKind, str] = {
    kind: "engineer" if kind is RequestKind.TARE else "operator" for kind in RequestKind if kind
}
MOVING = frozenset(
    {RequestKind.HOME, RequestKind.MOVE, RequestKind.SINE, RequestKind.TRACK, RequestKind.STREAM}
)  # fmt: skip
# never refused for coming too often
ALWAYS = frozenset({RequestKind.STOP})

MALFORMED, UNKNOWN, FORBIDDEN, DUPLICATE, EXPIRED, TOO_LARGE, TOO_MANY, NO_ANSWER = (
    400, 401, 403, 409, 410, 413, 429, 503,
)  # fmt: skip
# what the reply calls them
WORDS = {
    MALFORMED: "MALFORMED", UNKNOWN: "UNKNOWN_USER", FORBIDDEN: "FORBIDDEN", DUPLICATE: "DUPLICATE",
    EXPIRED: "EXPIRED", TOO_LARGE: "TOO_LARGE", TOO_MANY: "TOO_MANY", NO_ANSWER: "NO_ANSWER",
}  # fmt: skip

log = logging.getLogger("pkm.gateway.admission")


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """A request as it comes from outside."""

    id: Annotated[str, Meta(min_length=1, max_length=64)]
    kind: Annotated[str, Meta(max_length=32)]
    deadline_t: float  # s, Unix time
    pose: dict[str, float] = {}
    speed_share: float = 1.0
    frequency_hz: float = 0.0
    track: Annotated[str, Meta(max_length=256)] = ""
    token: Annotated[str, Meta(max_length=256)] = ""  # where the way it came has no other place for it


class Reply(msgspec.Struct):
    """The answer: the verdict of the control process or of this module, its mode, and a sentence."""

    id: str
    verdict: str
    mode: str
    text: str
    status: int = 200  # as over HTTP


class Refusal(Exception):  # noqa: N818  not an error of the program
    """Why a request goes no further."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


def require(session: Session, kind: RequestKind) -> None:
    """Refuse what the role of a session is too little for."""
    if not may(session.role, LEAST[kind]):
        text = f"{kind.name.lower()} needs the role {LEAST[kind]}, {session.user} is {session.role}."
        raise Refusal(FORBIDDEN, text)


def _require_fresh(raw: bytes, retained: bool) -> None:
    """Refuse what need not be looked into."""
    if len(raw) > MOST_BYTES:
        raise Refusal(TOO_LARGE, f"Found {len(raw)} bytes, expected at most {MOST_BYTES}.")
    if retained:
        raise Refusal(EXPIRED, "It was retained by the broker: a request is never retained.")


class Bucket(msgspec.Struct):
    """Tokens that come with time: `take` is False when there is none."""

    rate_hz: float
    burst: float
    level: float
    at_s: float = -math.inf

    def take(self, now_s: float) -> bool:
        """One token, if there is one at `now_s`."""
        self.level = min(self.burst, self.level + self.rate_hz * max(0.0, now_s - self.at_s))
        self.at_s = now_s
        if self.level < 1.0:
            return False
        self.level -= 1.0
        return True


class ControlLink:
    """Questions to the control process over Unix datagrams; nothing here waits but `ask`."""

    def __init__(self, path: Path) -> None:
        """Inside the event loop.

        Raises:
            ConfigurationError: there can be no socket for the answers.
        """
        own = path.with_name(path.name + ".ans")
        try:
            self._socket = listen(own)  # only this user may send an answer
        except OSError as error:
            raise ConfigurationError(f"requests.path: cannot listen at {own}: {error.strerror or error}") from None
        self._path, self._own = path, own
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        asyncio.get_running_loop().add_reader(self._socket, self._receive)

    async def ask(self, message: Message) -> Answer:
        """The answer of the control process.

        Raises:
            TimeoutError: there is none in time.
            OSError: nobody listens, or its queue is full.
        """
        answer = asyncio.get_running_loop().create_future()
        self._waiting[message.id] = answer
        try:
            self._socket.sendto(msgspec.json.encode(message), str(self._path))
            async with asyncio.timeout(ANSWER_S):
                return await answer
        finally:
            del self._waiting[message.id]

    def close(self) -> None:
        """No more answers."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._own.unlink(missing_ok=True)

    def _receive(self) -> None:
        try:
            answer = msgspec.json.decode(self._socket.recv(MOST_BYTES), type=Answer)
        except (OSError, msgspec.DecodeError):
            return
        waiting = self._waiting.get(answer.id)
        if waiting and not waiting.done():
            waiting.set_result(answer)


class Admission:
    """Judges requests; one for the life of the gateway."""

    def __init__(
        self,
        accounts: Accounts,
        link: ControlLink,
        tell: Callable[[Event], None],
        tracks: Sequence[str] = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        """`tell` takes the events, `tracks` are the site's, `now` gives Unix time in s."""
        self._accounts, self._link, self._tell, self._tracks, self._now = accounts, link, tell, tracks, now
        self._next_id = itertools.count(time.time_ns() // 1000)  # of this gateway towards control
        self._ids: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._askers: OrderedDict[int, tuple[str, str]] = OrderedDict()  # who and by which way, by id towards control
        self._telling, self._untold = Bucket(TOLD_HZ, TOLD_BURST, TOLD_BURST), 0

    async def admit(
        self, raw: bytes, *, source: str, who: str = "", token: str = "", retained: bool = False
    ) -> Reply:  # fmt: skip
        """Judge one request as it came; the reply says what became of it. Never raises.

        `who` is the user whom the way it came names, `token` that of the session where the payload holds none.
        """
        asked: Asked | None = None
        try:
            _require_fresh(raw, retained)
            asked, kind = self.read(raw)
            session = self._accounts.session(token or asked.token)
            if session is None or (who and session.user != who):
                raise Refusal(UNKNOWN, "The login is missing, of another user, or has ended.")  # noqa: TRY301
            who = session.user
            require(session, kind)
            self._require_once(asked, kind, who)
            answer = await self._forwarded(asked, who, source)
        except Refusal as refusal:
            self._tell_refusal(refusal, asked.kind if asked else "", who, source)
            return Reply(asked.id if asked else "", WORDS[refusal.status], "", refusal.text, refusal.status)
        log.info("request %s of %s (%s) %s: %s", asked.kind, who, source, answer.verdict, answer.text)
        return Reply(asked.id, answer.verdict, answer.mode, answer.text)

    def told(self, event: Event) -> Event:
        """An event of the ring with who asked, where it is the answer to a request that came by here."""
        who, source = self._askers.get(int(event.values.get("answer_id") or 0), ("", ""))
        if event.kind != "request" or not who:
            return event
        return msgspec.structs.replace(event, who=who, source=source, text=f"{event.text[:-1]}, asked by {who}.")

    def read(self, raw: bytes) -> tuple[Asked, RequestKind]:
        """A request as it came, and what it asks for.

        Raises:
            Refusal: it is none.
        """
        try:
            asked = msgspec.json.decode(raw, type=Asked)
            return asked, self.record(asked).kind
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise Refusal(MALFORMED, f"This is no request: {error}.") from None

    def record(self, asked: Asked) -> Request:
        """The record of a request; ValueError if a word or a number of it cannot be."""
        if not math.isfinite(asked.deadline_t):
            raise ValueError("deadline_t: expected a finite number")
        message = Message(1, asked.kind, asked.pose, asked.speed_share, asked.frequency_hz, asked.track)
        return request_of(message, self._tracks)

    def _require_once(self, asked: Asked, kind: RequestKind, user: str) -> None:
        """Refuse what comes too late, once more, or too often."""
        ahead_s = asked.deadline_t - self._now()
        if not ahead_s >= 0.0:
            raise Refusal(EXPIRED, f"Its deadline was {-ahead_s:.1f} s ago.")
        if not ahead_s <= AHEAD_S:
            raise Refusal(EXPIRED, f"Its deadline is {ahead_s:.1f} s ahead, expected at most {AHEAD_S:g} s.")
        key = user, asked.id
        if key in self._ids:
            raise Refusal(DUPLICATE, f"A request with the id {asked.id!r} was taken already.")
        if kind not in ALWAYS and not self._bucket(user).take(time.monotonic()):
            raise Refusal(TOO_MANY, f"Too many requests of {user}: at most {RATE_HZ:g} a second.")
        self._ids[key] = None
        if len(self._ids) > REMEMBERED:
            self._ids.popitem(last=False)

    async def _forwarded(self, asked: Asked, who: str, source: str) -> Answer:
        """What the control process says."""
        number = next(self._next_id)
        message = Message(number, asked.kind, asked.pose, asked.speed_share, asked.frequency_hz, asked.track)
        self._askers[number] = who, source
        if len(self._askers) > REMEMBERED:
            self._askers.popitem(last=False)
        try:
            return await self._link.ask(message)
        except TimeoutError:
            raise Refusal(NO_ANSWER, "The control process does not answer.") from None
        except OSError:
            raise Refusal(NO_ANSWER, "No control process takes requests: it ended, or it is busy.") from None

    def _bucket(self, user: str) -> Bucket:
        bucket = self._buckets.setdefault(user, Bucket(RATE_HZ, BURST, BURST))
        self._buckets.move_to_end(user)
        if len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        return bucket

    def _tell_refusal(self, refusal: Refusal, kind: str, who: str, source: str) -> None:
        """One event, unless there are so many that they would hide all others: then a count with the next."""
        if not self._telling.take(time.monotonic()):
            self._untold += 1
            return
        more = f" {self._untold} more refusals were not told." if self._untold else ""
        values: dict[str, Any] = {"refusals_not_told": self._untold} if self._untold else {}
        self._untold = 0
        name = f"request {kind[:32]}" if kind.isascii() and kind.isprintable() and kind else "a request"
        asker = who if who.isascii() and who.isprintable() else ascii(who)
        text = f"{name[0].upper()}{name[1:]} is refused: {refusal.text}{more}"
        log.warning("%s (%s, %s)", text, asker or "unknown", source)
        self._tell(Event(self._now(), "request", WORDS[refusal.status], text, values, asker[:64], source))
