"""A gateway's page with a control process of the test's own behind it: the real mailbox, cycle and ring, no machine."""

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from controller import schema
from controller.gateway.accounts import Account, new_account, write_users
from controller.gateway.admission import Admission
from controller.gateway.board import Board
from controller.gateway.events import events
from controller.gateway.web.server import serving
from controller.message import token_path
from controller.records import Mode, RequestKind, Sample, Timing, channels, pack
from controller.ring import RingReader, RingWriter
from controller.service.mailbox import NOTHING, Mailbox
from controller.settings import load_site, parse
from controller.state import Setup
from tests.machines import SIMULATION, Bench, own_site, simulation_setup

PASSWORDS = {"vera": "viewer's secret", "olaf": "operator's secret", "erna": "engineer's secret"}
ROLES = {"vera": "viewer", "olaf": "operator", "erna": "engineer"}


@functools.cache
def _setup() -> Setup:
    return simulation_setup()


@functools.cache
def _accounts() -> dict[str, Account]:
    return {name: new_account(name, ROLES[name], word) for name, word in PASSWORDS.items()}


class Control:
    """The control process: a tick every 10 ms, axes that are where they are told to be."""

    def __init__(self, site: schema.Site, session: str = "boot1") -> None:
        self.bench, files = Bench(_setup()), load_site(SIMULATION)
        self.bench.broken = self._seen
        self.columns = channels(6, list(files.site.sensors))
        self._row, self._sample = np.empty(len(self.columns)), None
        meta = {
            "session": session, "site": site.name, "version": "0.1.0", "started_unix_s": time.time(),
            "started_monotonic_s": time.monotonic(), "rate_hz": 100.0, "legs": 6, "sensors": list(files.site.sensors),
            "limits": self.bench.setup.limits.told(), "channels": [list(channel) for channel in self.columns],
            "configuration_sha256": "0" * 64, "machine_toml": files.machine_text, "site_toml": files.site_text,
            "tracks": {}, "driver": "ads",
        }  # fmt: skip
        self.path = Path(site.ring.path)
        self.ring = RingWriter(self.path, len(self.columns), 12000, meta)
        self.mailbox = Mailbox(Path(site.requests.path))
        self.deaf = False  # it runs and answers nobody
        self.kinds: list[RequestKind] = []  # requests that reached the cycle

    def _seen(self, sample: Sample) -> Sample:
        self._sample = sample
        return sample

    def step(self) -> Mode:
        request = NOTHING if self.deaf else self.mailbox.poll()
        output = self.bench.step(request)
        if request.kind:
            self.kinds.append(request.kind)
        pack(self._row, self._sample, request, output, Timing(0.0, 0.0, 0.0, 0, 0))
        self.ring.push(self._row)
        self.mailbox.answer(output)
        return output.mode

    def repeat(self) -> None:
        """The newest row once more."""
        self.ring.push(self._row)

    async def run(self) -> None:
        while True:
            self.step()
            await asyncio.sleep(0.01)

    def close(self) -> None:
        self.mailbox.close()
        self.ring.close()


class House:
    """What a test sees of it."""

    def __init__(self, site: schema.Site, board: Board, admission: Admission, token: str, url: str) -> None:
        self.site, self.board, self.admission, self.token, self.url = site, board, admission, token, url
        self.control: Control | None = None
        self._number = 0

    def question(self, kind: str = "stop", **other: Any) -> dict[str, Any]:
        """A good request."""
        self._number += 1
        return {"id": f"{self._number}", "kind": kind, "deadline_t": time.time() + 5.0, **other}

    async def login(self, client: aiohttp.ClientSession, user: str) -> int:
        body = {"user": user, "password": PASSWORDS[user]}
        async with client.post(self.url + "/api/login", json=body) as answer:
            return answer.status

    async def ask(
        self, client: aiohttp.ClientSession, question: Any, route: str = "/api/request", **headers: str
    ) -> tuple[int, dict[str, Any]]:
        """POST as the page does; headers with _ for -."""
        sent = {"Origin": self.url} | {name.replace("_", "-"): value for name, value in headers.items()}
        async with client.post(self.url + route, json=question, headers=sent) as answer:
            return answer.status, await answer.json()

    async def get(self, client: aiohttp.ClientSession, route: str) -> tuple[int, Any]:
        async with client.get(self.url + route) as answer:
            return answer.status, await answer.json()


def make_site(folder: Path, **web: Any) -> schema.Site:
    folder.mkdir(exist_ok=True)
    users = folder / "users.toml"
    if not users.exists():
        write_users(users, _accounts())
    text = own_site(folder)
    before, _, rest = text.partition("[web]")
    table = {"host": "127.0.0.1", "port": 0, "users": str(users)} | web
    lines = "\n".join(f"{key} = {value!r}" for key, value in table.items())
    return parse(f"{before}[web]\n{lines}\n\n[recording]{rest.partition('[recording]')[2]}", schema.Site, folder)


@contextlib.asynccontextmanager
async def house(folder: Path, control: bool = True, **web: Any) -> AsyncIterator[House]:
    """A served page; with `control` there is a session behind it, whose events are told."""
    site, board = make_site(folder, **web), Board()
    async with contextlib.AsyncExitStack() as stack:
        admission = await stack.enter_async_context(serving(site, board))
        assert admission
        told = json.loads(token_path(Path(site.requests.path)).read_text())
        made = House(site, board, admission, told["token"], told["url"])
        if control:
            made.control = Control(site)
            stack.callback(made.control.close)
            made.control.step()
            board.ring = RingReader(made.control.path)
            for work in (made.control.run(), _tell(board, admission, made.control)):
                task = asyncio.create_task(work)
                stack.push_async_callback(_end, task)
        yield made


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _tell(board: Board, admission: Admission, control: Control) -> None:
    """What the service does with rows: their events."""
    names, previous, index = [channel.name for channel in control.columns], None, 0
    while True:
        index, rows = board.ring.read(index)
        for row in rows:
            for event in events(previous, row, names):
                board.tell(admission.told(event))
            previous = row
        index += len(rows)
        await asyncio.sleep(0.02)


async def until(what: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait until it is true; the limit is only there to fail instead of hanging."""
    end = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < end, f"still not true after {seconds} s"
        await asyncio.sleep(0.02)
    return value


def browser() -> aiohttp.ClientSession:
    """A client that keeps cookies of 127.0.0.1."""
    return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))
