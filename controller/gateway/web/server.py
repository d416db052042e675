"""Where the operator page listens: ports, TLS, the local token, and what connections may cost."""

import asyncio
import contextlib
import json
import logging
import os
import socket
import ssl
import sys
import time
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from typing import Any, cast

from aiohttp import web

from controller.datagram import private
from controller.errors import ConfigurationError
from controller.gateway.accounts import Accounts
from controller.gateway.admission import Admission, ControlLink
from controller.gateway.board import Board
from controller.gateway.events import Event
from controller.gateway.web.routes import Page
from controller.gateway.web.tls import tls_context
from controller.message import socket_path, token_path
from controller.schema import Site, Web

CONNECTIONS = 128
HEADERS_S = 10.0  # for a request line with its headers, and between two requests of a connection
BUSY_S = 60.0  # for an answer to a client that takes it slowly
GOODBYE_S = 1.0

log = logging.getLogger("pkm.gateway.server")


@contextlib.asynccontextmanager
async def serving(site: Site, board: Board) -> AsyncGenerator[Admission | None]:
    """Serve the page while this lasts; yields the way in for requests, None where there can be none.

    What is wrong with it is told in one sentence; recording and MQTT go on without.
    """
    requests = Path(site.requests.path)
    accounts = Accounts(Path(site.web.users) if site.web.users else None, time.monotonic)
    async with contextlib.AsyncExitStack() as stack:
        admission = None
        try:
            link = ControlLink(requests)
            stack.callback(link.close)
            admission = Admission(accounts, link, board.tell_now, list(site.tracks))
            page = Page(board, accounts, admission, Path(site.recording.folder), bool(site.web.certificate))
            runner = web.AppRunner(
                page.app(), handle_signals=False, access_log=None, shutdown_timeout=GOODBYE_S, lingering_time=1.0,
                auto_decompress=False, keepalive_timeout=HEADERS_S,
            )  # fmt: skip
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            server = cast("web.Server", runner.server)
            _start(stack, _sweep(server, page))
            await _listen_locally(stack, server, requests)
            url = _listen(stack, server, site.web)
            _leave_token(stack, requests, url, accounts.local_token)
            _announce(site, url, accounts.local_token)
        except ConfigurationError as error:
            log.error("%s", error)
            board.tell_now(Event(time.time(), "page", "not_served", f"There is no operator page: {error}.", {}))
            if admission:
                _leave_token(stack, requests, None, accounts.local_token)
        yield admission


def _start(stack: contextlib.AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)


# ---------------------------------------------------------------- listening


async def _listen_locally(stack: contextlib.AsyncExitStack, server: web.Server, requests: Path) -> None:
    """A Unix socket for the commands of the same user: it works whatever happens at the port."""
    path = socket_path(requests)
    try:
        path.unlink(missing_ok=True)
        with private():
            listening = await asyncio.get_running_loop().create_unix_server(server, str(path))
    except OSError as error:
        raise ConfigurationError(f"requests.path: cannot listen at {path}: {error.strerror or error}") from None
    stack.callback(path.unlink, missing_ok=True)
    stack.callback(listening.close)


def _listen(stack: contextlib.AsyncExitStack, server: web.Server, table: Web) -> str:
    """Listen at the port of the site; the address of the page.

    Raises:
        ConfigurationError: it cannot be; says why.
    """
    context, host = tls_context(table), table.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    stack.callback(listening.close)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, table.port))
        listening.listen(64)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no such host"
        raise ConfigurationError(f"web.port: port {table.port} of {table.host} cannot be used: {reason}") from None
    listening.setblocking(False)
    _start(stack, _accept(listening, server, context))
    shown = "127.0.0.1" if host == "0.0.0.0" else f"[{host}]" if ":" in host else host  # noqa: S104  only compared
    return f"{'https' if context else 'http'}://{shown}:{listening.getsockname()[1]}"


async def _accept(listening: socket.socket, server: web.Server, context: ssl.SSLContext | None) -> None:
    """Take connections up to a number, those that still shake hands included: the rest is put out at once."""
    loop, greeted = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    try:
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:  # no more files
                log.warning("no connection to the page is taken: %s", error.strerror)
                await asyncio.sleep(1.0)
                continue
            if len(greeted) + len(server.connections) >= CONNECTIONS:
                connection.close()
                continue
            task = asyncio.create_task(_greet(connection, server, context))
            greeted.add(task)
            task.add_done_callback(greeted.discard)
    finally:
        for task in greeted:
            task.cancel()


async def _greet(connection: socket.socket, server: web.Server, context: ssl.SSLContext | None) -> None:
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            server, connection, ssl=context, ssl_handshake_timeout=HEADERS_S if context else None
        )
    except OSError:  # of the other side; ssl.SSLError, too
        connection.close()


async def _sweep(server: web.Server, page: Page) -> None:
    """Cut connections that send no request, or take no answer."""
    while True:
        await asyncio.sleep(1.0)
        now_s = time.monotonic()
        present = {handler.transport for handler in server.connections if handler.transport}
        for transport in list(page.idle):
            if transport not in present:
                del page.idle[transport]
        for transport in present:
            idle_s = now_s - page.idle.setdefault(transport, now_s)
            busy_s = now_s - page.busy[transport] if transport in page.busy else None
            if busy_s > BUSY_S if busy_s is not None else idle_s > HEADERS_S:
                transport.abort()


# ---------------------------------------------------------------- the local token


def _leave_token(stack: contextlib.AsyncExitStack, requests: Path, url: str | None, token: str) -> None:
    """Write down the token for whoever is the same user; it goes with the gateway that knows it."""
    path = token_path(requests)
    text = json.dumps({"url": url, "token": token})
    try:
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    except OSError as error:
        raise ConfigurationError(f"requests.path: cannot write {path}: {error.strerror}") from None

    def forget() -> None:
        with contextlib.suppress(OSError):
            if path.read_text() == text:  # not that of a gateway that came after this one
                path.unlink()

    stack.callback(forget)


def _announce(site: Site, url: str, token: str) -> None:
    """How to come in; the token itself only where a person reads it."""
    if sys.stderr.isatty():
        log.info("operator page: %s/#token=%s", url, token)
    else:
        log.info("operator page: %s; `pkm link SITE` prints the link to log in for the site %s", url, site.name)
