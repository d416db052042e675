"""The operator page: static files, logins, samples, and requests through the one way in.

It lives in the gateway process, so nothing that a browser does reaches the control loop. The same application
listens at a TCP port and, for the commands of the service's own user, at a Unix socket beside that of the requests.
"""

import asyncio
import contextlib
import errno
import logging
import math
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeVar, cast

import msgspec
from aiohttp import web
from msgspec import Meta

from controller.errors import ConfigurationError
from controller.gateway.accounts import EXPIRY_S, Accounts, Refused, Session, may
from controller.gateway.admission import Admission, Bucket, Refusal, require
from controller.gateway.board import Board
from controller.gateway.events import Event
from controller.gateway.recording import shelf
from controller.gateway.web import live
from controller.gateway.web.describe import described
from controller.records import Request
from controller.ring import RingReader

if TYPE_CHECKING:
    from controller.gateway.web.preview import Consequence, Planner

PAGE = Path(__file__).parent / "page"
BODY_BYTES = 64 * 1024
BODY_S = 5.0  # for a whole body
VIEWERS = 40
PLANS_WAITING = 4
DOWNLOADS = 2
CHUNK_BYTES = 256 * 1024
ROOM_BYTES = 64 * 1024 * 1024  # that a download leaves on the disk
TAKEN_S = 30.0  # for a chunk of a download
VIEWER_BUFFER = 256 * 1024  # bytes that the kernel keeps for one that does not take them
LOGINS_TOLD, LOGINS_TOLD_HZ = 10.0, 0.2  # refused ones, one by one
COOKIE = "pkm_session"
SESSION = web.RequestKey("session", Session)

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}

log = logging.getLogger("pkm.gateway.web")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """Password or local token; `bearer` where the client keeps the token itself."""

    user: Annotated[str, Meta(max_length=64)] = ""
    password: Annotated[str, Meta(max_length=1024)] = ""
    token: Annotated[str, Meta(max_length=256)] = ""
    bearer: bool = False


class Acknowledged(msgspec.Struct, forbid_unknown_fields=True):
    """Alarms that somebody has seen."""

    alarms: Annotated[list[Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]{1,64}\Z")]], Meta(min_length=1, max_length=64)]


class Note(msgspec.Struct, forbid_unknown_fields=True):
    """What somebody has to say about a recording."""

    note: Annotated[str, Meta(max_length=shelf.LONGEST_NOTE)]


def problem(status: int, text: str) -> web.Response:
    """An error as the page expects it."""
    return web.json_response({"error": text}, status=status)


class Page:
    """The application; `app()` is what a server runs."""

    def __init__(self, board: Board, accounts: Accounts, admission: Admission, folder: Path, secure: bool) -> None:
        """`folder` holds the recordings; `secure` where the page is served under TLS."""
        self._board, self._accounts, self._admission, self._secure = board, accounts, admission, secure
        self._meta: tuple[str, bytes] = ("", b"")  # of which session
        self._folder, self._downloads = folder, 0
        self._telling = Bucket(LOGINS_TOLD_HZ, LOGINS_TOLD, LOGINS_TOLD)
        self._planning = 0  # previews under way
        self._planner: Planner | None = None  # made when it is first needed
        # of each connection (s, monotonic): since when a request is under way, inf for one that may last; when it ended
        self.busy: dict[asyncio.BaseTransport, float] = {}
        self.idle: dict[asyncio.BaseTransport, float] = {}

    def app(self) -> web.Application:
        """Routes and what surrounds all of them."""
        app = web.Application(middlewares=[self._guarded], client_max_size=BODY_BYTES)
        app.on_response_prepare.append(_harden)
        app.add_routes(
            [
                web.get("/", self._file),
                web.get("/assets/{path:.+}", self._file),
                web.post("/api/login", self._login),
                web.post("/api/logout", self._logout),
                web.get("/api/session", self._session),
                web.get("/api/meta", self._describe),
                web.get("/api/events", self._events),
                web.get("/api/live", self._live),
                web.post("/api/request", self._request),
                web.post("/api/preview", self._preview),
                web.post("/api/acknowledge", self._acknowledge),
                web.get("/api/recordings", self._recordings),
                web.get("/api/recordings/{name}", self._download),
                web.put("/api/recordings/{name}/note", self._note),
            ]
        )
        return app

    # ------------------------------------------------------------ around all

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        if transport is None:
            return problem(400, "The connection is gone.")
        self.busy[transport] = time.monotonic()
        try:
            return await self._answered(request, handler)
        finally:
            del self.busy[transport]
            self.idle[transport] = time.monotonic()

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            answer = self._turned_away(request)
            if answer is None:
                return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            answer = _too_large()
        except TimeoutError:
            answer = problem(408, f"The body did not come within {BODY_S:g} s.")
        except msgspec.DecodeError as error:
            answer = problem(400, f"The body is not as expected: {error}.")
        except web.HTTPException as error:
            answer = problem(error.status, f"{error.reason}.")
        except ConnectionError:
            raise
        except Exception:
            log.exception("%s %s", request.method, request.path)
            answer = problem(500, "This went wrong in the gateway; its log says more.")
        answer.force_close()
        return answer

    def _turned_away(self, request: web.Request) -> web.Response | None:
        """Why a request goes no further, whatever it asks for; else its session is found."""
        if (request.content_length or 0) > BODY_BYTES:
            return _too_large()
        if request.method not in ("GET", "HEAD") and (wrong := _foreign(request)):
            return problem(*wrong)
        if request.path.startswith("/api/") and request.path != "/api/login":
            session = self._user(request)
            if session is None:
                return problem(401, "Log in first: the session is missing or has ended.")
            request[SESSION] = session
        return None

    def _user(self, request: web.Request) -> Session | None:
        return self._accounts.session(_token(request))

    # ------------------------------------------------------------ the page itself

    async def _file(self, request: web.Request) -> web.StreamResponse:
        path = _page_file(request.match_info.get("path", "index.html"))
        if path is None:
            raise web.HTTPNotFound
        headers = {"Cache-Control": "no-cache"}
        if path.suffix in TYPES:
            headers["Content-Type"] = f"{TYPES[path.suffix]}; charset=utf-8"
        return web.FileResponse(path, headers=headers)

    # ------------------------------------------------------------ logins

    async def _login(self, request: web.Request) -> web.StreamResponse:
        asked = await _body(request, Login)
        if asked.token:
            token = self._accounts.login_local(asked.token)
        else:
            token = await self._accounts.login(asked.user, asked.password, request.remote or "local")
        where = request.remote or "the shell"
        if isinstance(token, Refused):
            if token.status == 401 and self._telling.take(time.monotonic()):
                name = ascii(asked.user)[1:-1] or "a token"
                log.warning("login of %s from %s is refused: %s", name, where, token.text)
                self._tell_login("REFUSED", f"The login of {name} from {where} is refused.", name)
            return problem(*token)
        session = cast("Session", self._accounts.session(token))
        log.info("login of %s as %s from %s", session.user, session.role, where)
        if request.remote:
            self._tell_login("ACCEPTED", f"{session.user} logged in as {session.role} from {where}.", session.user)
        answer = web.json_response(self._told(session) | ({"token": token} if asked.bearer else {}))
        if not asked.bearer:
            answer.set_cookie(
                COOKIE, token, httponly=True, samesite="Strict", secure=self._secure, path="/", max_age=int(EXPIRY_S)
            )
        return answer

    def _tell_login(self, code: str, text: str, who: str) -> None:
        self._board.tell_now(Event(time.time(), "login", code, text, {}, who, "page"))

    async def _logout(self, request: web.Request) -> web.StreamResponse:
        self._accounts.logout(_token(request))
        answer = web.json_response({})
        answer.del_cookie(COOKIE, path="/")
        return answer

    async def _session(self, request: web.Request) -> web.StreamResponse:
        session = request[SESSION]
        return web.json_response(self._told(session))

    def _told(self, session: Session) -> dict[str, Any]:
        return {"user": session.user, "role": session.role, "expires_s": round(self._accounts.left_s(session))}

    # ------------------------------------------------------------ looking

    async def _describe(self, _request: web.Request) -> web.StreamResponse:
        ring = self._board.ring
        if ring is None:
            return problem(503, "No control process has been seen yet.")
        session = str(ring.meta["session"])
        if self._meta[0] != session:
            self._meta = session, msgspec.json.encode(described(ring.meta))
        return web.Response(body=self._meta[1], content_type="application/json")

    async def _events(self, request: web.Request) -> web.StreamResponse:
        limit = request.query.get("limit", "200")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 10):
            return problem(400, f"limit: found {limit[:20]!r}, expected a whole number.")
        events = list(self._board.events)
        return _json(events[len(events) - min(int(limit), len(events)) :])

    async def _live(self, request: web.Request) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if origin is not None and not _is_own(origin, request):
            return problem(403, "This page is not the one of this gateway.")
        if self._board.viewers >= VIEWERS:
            return problem(503, f"There are {VIEWERS} viewers already.")
        try:
            history_s = min(max(float(request.query.get("history_s", "0")), 0.0), live.HISTORY_S)
        except ValueError:
            return problem(400, "history_s: expected a number of seconds.")
        transport = cast("asyncio.Transport", request.transport)
        _bound(transport)
        self.busy[transport] = math.inf
        response = web.WebSocketResponse(compress=False, max_msg_size=4096, timeout=1.0)
        await response.prepare(request)
        self._board.viewers += 1
        try:
            await live.follow(response, self._board, history_s, lambda: self._user(request) is not None)
        except (TimeoutError, ConnectionError):
            transport.abort()
        finally:
            self._board.viewers -= 1
        return response

    # ------------------------------------------------------------ asking

    async def _request(self, request: web.Request) -> web.StreamResponse:
        async with asyncio.timeout(BODY_S):
            raw = await request.read()
        source = "page" if request.remote else "shell"
        reply = await self._admission.admit(raw, source=source, token=_token(request))
        told = msgspec.to_builtins(reply)
        return _json(told if reply.status == 200 else {"error": reply.text, **told}, reply.status)

    async def _preview(self, request: web.Request) -> web.StreamResponse:
        session = request[SESSION]
        async with asyncio.timeout(BODY_S):
            raw = await request.read()
        try:
            asked, kind = self._admission.read(raw)
            require(session, kind)
        except Refusal as refusal:
            return problem(refusal.status, refusal.text)
        ring = self._board.ring
        if ring is None or not ring.written or self._board.ended is not None:
            return problem(503, "No control process is running.")
        if self._planning >= PLANS_WAITING:
            return problem(429, "Too many previews at the same time: try again.")
        self._planning += 1
        try:
            text, seconds, verdict = await asyncio.to_thread(self._plan, ring, self._admission.record(asked))
        except ConfigurationError as error:
            return problem(503, f"{error}.")
        finally:
            self._planning -= 1
        return _json({"text": text, "seconds": seconds, "verdict": verdict.name})

    def _plan(self, ring: RingReader, request: Request) -> "Consequence":
        """What a request would do; called in a thread."""
        from controller.gateway.web.preview import Planner  # loads the kernels: not before somebody asks

        self._planner = self._planner or Planner()
        return self._planner.consequence(ring.meta, ring.read(ring.written - 1, 1)[1][-1], request)

    async def _acknowledge(self, request: web.Request) -> web.StreamResponse:
        session = request[SESSION]
        asked = await _body(request, Acknowledged)
        if not may(session.role, "operator"):
            return problem(403, f"Acknowledging needs the role operator, {session.user} is {session.role}.")
        source = "page" if request.remote else "shell"
        for name in dict.fromkeys(asked.alarms):
            text = f"{session.user} has seen {name}."
            self._board.tell_now(Event(time.time(), "acknowledged", name, text, {}, session.user, source))
        return web.json_response({})

    # ------------------------------------------------------------ recordings

    async def _recordings(self, _request: web.Request) -> web.StreamResponse:
        return _json(await asyncio.to_thread(shelf.listing, self._folder))

    async def _note(self, request: web.Request) -> web.StreamResponse:
        session = request[SESSION]
        asked, name = await _body(request, Note), request.match_info["name"]
        if not may(session.role, "operator"):
            return problem(403, f"A note needs the role operator, {session.user} is {session.role}.")
        try:
            await asyncio.to_thread(shelf.set_note, self._folder, name, asked.note)
        except (FileNotFoundError, ValueError):
            return problem(404, "There is no such recording.")
        except OSError as error:
            return problem(507, f"The note cannot be written: {error.strerror}.")
        return web.json_response({})

    async def _download(self, request: web.Request) -> web.StreamResponse:
        if self._downloads >= DOWNLOADS:
            return problem(429, f"There are {DOWNLOADS} downloads already.")
        self._downloads += 1
        self.busy[cast("asyncio.Transport", request.transport)] = math.inf
        try:
            # beside the recordings: what is in memory there may be small
            with tempfile.TemporaryFile(dir=self._folder) as file:
                await asyncio.to_thread(_copied, self._folder, request.match_info["name"], file)
                return await _sent(request, file)
        except (FileNotFoundError, ValueError):
            return problem(404, "There is no such recording.")
        except ConnectionError:
            raise
        except OSError as error:
            return problem(507, f"The recording cannot be made ready: {error.strerror}.")
        finally:
            self._downloads -= 1


# ---------------------------------------------------------------- parts of requests and answers


def _copied(folder: Path, name: str, target: IO[bytes]) -> None:
    """A recording as one file, where the disk has room for more than that: the one under way goes first."""
    known = {recorded.name: recorded.bytes for recorded in shelf.listing(folder)}
    if shutil.disk_usage(folder).free < known.get(name.removesuffix(".mcap"), 0) + ROOM_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    shelf.snapshot(folder, name, target)


async def _sent(request: web.Request, file: IO[bytes]) -> web.StreamResponse:
    """A recording, as fast as it is taken; who takes nothing for too long is cut off."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", request.match_info["name"].removesuffix(".mcap"))
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    headers = {"Content-Disposition": f'attachment; filename="{name}.mcap"', "Content-Length": str(size)}
    answer = web.StreamResponse(headers=headers)
    answer.content_type = "application/octet-stream"
    await answer.prepare(request)
    try:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            async with asyncio.timeout(TAKEN_S):
                await answer.write(chunk)
        await answer.write_eof()
    except TimeoutError:
        if request.transport:
            request.transport.abort()
    return answer


def _page_file(name: str) -> Path | None:
    """A file of the page, nothing beside it."""
    parts = name.split("/")
    if any(not part or part.startswith(".") or "\\" in part or "\0" in part for part in parts):
        return None
    path = PAGE.joinpath(*parts)
    return path if path.is_file() and path.resolve().is_relative_to(PAGE.resolve()) else None


def _too_large() -> web.Response:
    return problem(413, f"Found a body of more than {BODY_BYTES} bytes, expected a short one.")


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


async def _body(request: web.Request, kind: type[T]) -> T:
    async with asyncio.timeout(BODY_S):
        return msgspec.json.decode(await request.read(), type=kind)


def _token(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else request.cookies.get(COOKIE, "")


def _is_own(origin: str, request: web.Request) -> bool:
    # the scheme may be that of a proxy on this computer, which has the certificate
    scheme, _, host = origin.partition("://")
    return scheme in ("http", "https") and host == request.host


def _foreign(request: web.Request) -> tuple[int, str] | None:
    """Why a request that changes something is not of this page: a browser says where it comes from."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if (site is not None and site != "same-origin") or (origin is not None and not _is_own(origin, request)):
        return 403, "This request comes from another page."
    if site is None and origin is None and COOKIE in request.cookies:
        return 403, "This request does not say from which page it comes."
    # a form of another page cannot send this type without asking first, and is never answered then
    if request.body_exists and request.content_type != "application/json":
        return 415, f"Found the type {request.content_type[:64]!r}, expected application/json."
    return None


async def _harden(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
    response.headers["Server"] = "pkm"
    if "Cache-Control" not in response.headers:
        response.headers["Cache-Control"] = "no-store"
    if request.secure:
        response.headers["Strict-Transport-Security"] = "max-age=31536000"


def _bound(transport: asyncio.Transport) -> None:
    """The kernel keeps little for a viewer, so that one who takes nothing is noticed soon."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, VIEWER_BUFFER)
