"""The page as part of the gateway: before there is a session, through several, with recordings and requests in them."""

import asyncio
import contextlib
import io
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
import numpy as np
import pytest

from controller.__main__ import main
from controller.gateway import service
from controller.message import token_path
from controller.recording import events, read
from controller.records import RequestKind
from controller.schema import Site
from tests.gateway.house import Board, Control, House, browser, house, make_site, until
from tests.machines import own_site


@contextlib.asynccontextmanager
async def gateway(site: Site) -> AsyncIterator[tuple[House, "asyncio.Task[dict[str, Any]]"]]:
    """The whole service in this process, ended by SIGTERM."""
    running = asyncio.create_task(service.run(site, ring_path=Path(site.ring.path), stay=True))
    try:
        path = token_path(Path(site.requests.path))
        await until(lambda: path.exists() and path.read_text())
        told = json.loads(path.read_text())
        yield House(site, Board(), None, told["token"], told["url"]), running
    finally:
        if not running.done():
            signal.raise_signal(signal.SIGTERM)
        await asyncio.wait({running}, timeout=30.0)


async def reached(made: House, client: aiohttp.ClientSession, session: str) -> None:
    end = time.monotonic() + 30.0
    while (await made.get(client, "/api/meta"))[1].get("session") != session:
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def test_the_page_is_there_before_and_between_sessions_and_tells_all_of_them(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    async with gateway(site) as (made, running), browser() as olaf, browser() as vera:
        assert await made.login(olaf, "olaf") == await made.login(vera, "vera") == 200
        assert (await made.get(olaf, "/api/meta"))[0] == 503
        assert (await made.ask(olaf, made.question("ready")))[0] == 503
        for session in ("boot1", "boot2"):
            control = Control(site, session)
            ticking = asyncio.create_task(control.run())
            await reached(made, olaf, session)
            async with olaf.ws_connect(made.url + "/api/live") as viewer:
                assert (await viewer.receive_json())["session"] == session
                assert (await made.ask(olaf, made.question("ready")))[1]["verdict"] == "ACCEPTED"
                assert (await made.ask(vera, made.question("off")))[0] == 403
                assert (await made.ask(olaf, {"alarms": ["POSE"]}, "/api/acknowledge"))[0] == 200
                await asyncio.sleep(0.3)
                ticking.cancel()
                control.close()
                words: list[dict[str, Any]] = []
                async for message in viewer:
                    if message.type is aiohttp.WSMsgType.TEXT:
                        words.append(json.loads(message.data))
                        if words[-1]["type"] == "ended":
                            break
            assert control.kinds == [RequestKind.READY]
            assert words[-1]["cause"] == "the control process ended"
            found = [word["event"] for word in words if word["type"] == "event"]
            told = [(event["code"], event["who"]) for event in found]
            assert ("ACCEPTED", "olaf") in told and ("FORBIDDEN", "vera") in told and ("POSE", "olaf") in told
    assert (await running)["recorded"] == control.ring.written
    for path in sorted((tmp_path / "recordings").glob("*.mcap")):
        recorded = [(event["kind"], event["code"], event.get("who")) for event in events(path)]
        assert ("request", "ACCEPTED", "olaf") in recorded
        assert ("request", "FORBIDDEN", "vera") in recorded
        assert ("acknowledged", "POSE", "olaf") in recorded
        # told before there was a session, recorded with the first
        assert (("request", "NO_ANSWER", "olaf") in recorded) == ("boot1" in path.name)


async def test_recordings_are_listed_noted_and_taken_away_while_they_are_written(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    async with gateway(site) as (made, _), browser() as olaf, browser() as vera:
        assert await made.login(olaf, "olaf") == await made.login(vera, "vera") == 200
        control = Control(site)
        ticking = asyncio.create_task(control.run())
        await reached(made, olaf, "boot1")
        await until(lambda: control.ring.written > 150)
        status, (entry,) = await made.get(vera, "/api/recordings")
        assert status == 200 and entry["running"] and entry["kind"] == "run"
        name = entry["name"]
        for client, expected in ((vera, 403), (olaf, 200)):
            headers = {"Origin": made.url}
            route = f"{made.url}/api/recordings/{name}/note"
            async with client.put(route, json={"note": "keep: grüße"}, headers=headers) as answer:
                assert answer.status == expected
        assert (await made.get(vera, "/api/recordings"))[1][0]["note"] == "keep: grüße"
        async with olaf.put(f"{made.url}/api/recordings/none/note", json={"note": ""}, headers=headers) as answer:
            assert answer.status == 404
        async with olaf.put(route, json={"note": "x" * 2001}, headers=headers) as answer:
            assert answer.status == 400
        async with vera.get(f"{made.url}/api/recordings/{name}") as answer:
            assert answer.status == 200 and "attachment" in answer.headers["Content-Disposition"]
            (tmp_path / "taken.mcap").write_bytes(await answer.read())
        _, columns, rows = read(tmp_path / "taken.mcap")
        assert len(rows) > 50 and columns == [channel.name for channel in control.columns]
        assert np.array_equal(rows[:, 0], np.arange(1, len(rows) + 1))
        for bad in ("none", "..%2fusers.toml", "%2e%2e%2fsite", "x%00"):
            async with vera.get(f"{made.url}/api/recordings/{bad}") as answer:
                assert answer.status == 404, bad
        ticking.cancel()
        control.close()


@pytest.mark.parametrize(("answer", "code", "kinds"), [("y\n", 0, 2), ("n\n", 1, 1), ("\n", 1, 1)])
async def test_at_a_terminal_the_shell_says_what_would_happen_and_asks(
    tmp_path: Path, answer: str, code: int, kinds: int
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    site = tmp_path / "site.toml"
    site.write_text(own_site(tmp_path))
    async with house(tmp_path) as made:
        out = io.StringIO()

        def ask(*arguments: str) -> int:
            with mock.patch("sys.stdin", Terminal(answer)), contextlib.redirect_stdout(out):
                return main(["request", *arguments, "--site", str(site)])

        assert await asyncio.to_thread(ask, "ready") == 0  # nothing moves: not asked
        await until(lambda: made.control.bench.state.latched)
        assert await asyncio.to_thread(ask, "sine", "z_m=0.01", "--frequency-hz", "0.5") == code
        assert "swings about where it is, by z 10 mm" in out.getvalue() and "[y/N]" in out.getvalue()
        assert len(made.control.kinds) == kinds
