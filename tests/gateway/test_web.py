"""The operator page's server: who gets in, what is told, what viewers see, what hostile clients can do."""

import asyncio
import json
import math
import socket
import ssl
import struct
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import pytest

from controller.gateway.accounts import read_users
from controller.gateway.board import Board
from controller.gateway.web import live, routes, server
from controller.gateway.web.describe import described
from controller.gateway.web.server import serving
from controller.message import socket_path, token_path
from controller.records import RequestKind
from controller.ring import RingReader
from tests.gateway.bench import make_meta
from tests.gateway.house import Control, browser, house, make_site, until
from tests.machines import own_site
from tests.shell import pkm, refused

LOCKED = [
    ("GET", "/api/session"), ("GET", "/api/meta"), ("GET", "/api/events"), ("GET", "/api/live"),
    ("GET", "/api/recordings"), ("GET", "/api/recordings/x"), ("POST", "/api/logout"), ("POST", "/api/request"),
    ("POST", "/api/preview"), ("POST", "/api/acknowledge"), ("PUT", "/api/recordings/x/note"), ("GET", "/api/other"),
]  # fmt: skip


# ---------------------------------------------------------------- getting in


async def test_nothing_is_open_but_the_page_and_the_login(tmp_path: Path) -> None:
    async with house(tmp_path) as made, browser() as client:
        for method, route in LOCKED:
            async with client.request(method, made.url + route, json={} if method != "GET" else None) as answer:
                assert answer.status == 401, route
                assert "Log in" in (await answer.json())["error"]
        async with client.get(made.url + "/api/meta", headers={"Authorization": "Bearer wrong"}) as answer:
            assert answer.status == 401
        assert made.control.kinds == []


async def test_login_by_password_gives_a_cookie_that_scripts_cannot_read(tmp_path: Path) -> None:
    async with house(tmp_path) as made, browser() as client:
        body = {"user": "olaf", "password": "operator's secret"}
        async with client.post(made.url + "/api/login", json=body) as answer:
            told, cookie = await answer.json(), answer.headers["Set-Cookie"]
            assert answer.status == 200 and told["user"] == "olaf" and told["role"] == "operator"
            assert told["expires_s"] > 3600 and "token" not in told
            for word in ("HttpOnly", "SameSite=Strict", "Path=/"):
                assert word in cookie
        assert (await made.get(client, "/api/session"))[1]["user"] == "olaf"
        assert (await made.ask(client, {}, "/api/logout"))[0] == 200
        assert (await made.get(client, "/api/session"))[0] == 401
        assert [(event.kind, event.code, event.who) for event in made.board.events][-1:] == [
            ("login", "ACCEPTED", "olaf")
        ]
        for wrong in ({"user": "olaf", "password": "x"}, {"user": "nobody", "password": "x"}, {"token": "x"}, {}):
            async with client.post(made.url + "/api/login", json=wrong) as answer:
                assert answer.status == 401
        async with client.post(made.url + "/api/login", json={"user": "olaf", "surprise": 1}) as answer:
            assert answer.status == 400


async def test_the_local_token_is_an_engineer_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    async with house(tmp_path) as made, browser() as client:
        requests = Path(made.site.requests.path)
        for path in (token_path(requests), socket_path(requests)):
            assert path.stat().st_mode & 0o077 == 0, path
        async with client.post(made.url + "/api/login", json={"token": made.token, "bearer": True}) as answer:
            told = await answer.json()
            assert told["user"] == "local" and told["role"] == "engineer" and "Set-Cookie" not in answer.headers
        headers = {"Authorization": f"Bearer {told['token']}"}
        async with client.get(made.url + "/api/session", headers=headers) as answer:
            assert answer.status == 200
    assert not token_path(requests).exists() and not socket_path(requests).exists()


async def test_headers_of_every_answer(tmp_path: Path) -> None:
    async with house(tmp_path) as made, browser() as client:
        for route in ("/", "/assets/nothing.js", "/api/meta", "/nowhere"):
            async with client.get(made.url + route) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert "aiohttp" not in answer.headers["Server"]
                if route.startswith("/api/"):
                    assert answer.headers["Cache-Control"] == "no-store"


async def test_other_pages_cannot_ask(tmp_path: Path) -> None:
    async with house(tmp_path) as made, browser() as client:
        assert await made.login(client, "olaf") == 200
        question = made.question("ready")
        for headers in (
            {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"},
            {"Sec_Fetch_Site": "same-site"}, {"Origin": made.url.replace("127.0.0.1", "localhost")},
            {"Origin": made.url.replace("http", "ftp")}, {"Origin": made.url + ".evil.example"},
        ):  # fmt: skip
            assert (await made.ask(client, question, **headers))[0] == 403, headers
        async with client.post(made.url + "/api/request", json=question) as answer:
            assert answer.status == 403  # a cookie, and no word from which page
        form = {"Content-Type": "text/plain", "Origin": made.url}
        async with client.post(made.url + "/api/request", data=json.dumps(question), headers=form) as answer:
            assert answer.status == 415
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await client.ws_connect(made.url + "/api/live", origin="http://evil.example")
        assert refused.value.status == 403
        assert made.control.kinds == []
        assert (await made.ask(client, question, Sec_Fetch_Site="same-origin"))[0] == 200
        assert made.control.kinds == [RequestKind.READY]


# ---------------------------------------------------------------- asking


async def test_a_request_goes_to_the_control_process_and_is_told_with_who_asked(tmp_path: Path) -> None:
    async with house(tmp_path) as made, browser() as client:
        assert await made.login(client, "olaf") == 200
        status, told = await made.ask(client, question := made.question("ready"))
        assert (status, told["id"], told["verdict"], told["mode"]) == (200, question["id"], "ACCEPTED", "READY")
        status, told = await made.ask(client, made.question("acknowledge"))
        assert (status, told["verdict"]) == (200, "WRONG_MODE")
        asked = await until(lambda: [e for e in made.board.events if e.kind == "request"][1:] and made.board.events)
        asked = [event for event in asked if event.kind == "request"]
        assert [(event.code, event.who, event.source) for event in asked] == [
            ("ACCEPTED", "olaf", "page"), ("WRONG_MODE", "olaf", "page")
        ]  # fmt: skip
        assert "olaf" in asked[0].text


async def test_viewers_ask_for_nothing(tmp_path: Path) -> None:
    async with house(tmp_path) as made, browser() as client:
        assert await made.login(client, "vera") == 200
        for route in ("/api/request", "/api/preview"):
            for kind in RequestKind:
                if kind:
                    pose = dict.fromkeys(("x_m", "y_m", "z_m", "yaw_rad", "pitch_rad", "roll_rad"), 0.0)
                    question = made.question(kind.name.lower(), pose=pose)
                    assert (await made.ask(client, question, route))[0] == 403
        assert (await made.ask(client, {"alarms": ["POSE"]}, "/api/acknowledge"))[0] == 403
        assert made.control.kinds == []
        # the rest is open to them
        for route in ("/api/meta", "/api/events", "/api/recordings"):
            assert (await made.get(client, route))[0] == 200


async def test_no_control_process_is_told(tmp_path: Path) -> None:
    async with house(tmp_path, control=False) as made, browser() as client:
        assert await made.login(client, "olaf") == 200
        for route in ("/api/request", "/api/preview"):
            assert (await made.ask(client, made.question(), route))[0] == 503
        assert (await made.get(client, "/api/meta"))[0] == 503


async def test_a_preview_tells_what_really_happens(tmp_path: Path) -> None:
    target = {"x_m": 0.02, "y_m": 0.0, "z_m": 0.87, "yaw_rad": 0.1, "pitch_rad": 0.0, "roll_rad": 0.0}
    async with house(tmp_path) as made, browser() as client:
        assert await made.login(client, "erna") == 200
        await made.ask(client, made.question("ready"))
        control = made.control
        await until(lambda: control.bench.state.latched)
        question = made.question("move", pose=target, speed_share=0.1)
        status, told = await made.ask(client, question, "/api/preview")
        assert status == 200 and told["verdict"] == "ACCEPTED"
        assert made.control.kinds == [RequestKind.READY]  # nothing came of it
        assert "28 mm" in told["text"]  # sqrt(20² + 20²)
        first = control.bench.tick
        assert (await made.ask(client, question))[1]["verdict"] == "ACCEPTED"
        await until(lambda: control.bench.outputs[-1].mode.name == "READY")
        modes = [output.mode.name for output in control.bench.outputs[first:]]
        assert modes.count("ACTIVE") * 0.01 == pytest.approx(told["seconds"], abs=0.03)
        for pose, kind, word in (
            (target | {"x_m": 3.0}, "move", "outside"), (target, "track", "no such track"), (target, "home", "OFF")
        ):  # fmt: skip
            question = made.question(kind, pose=pose)
            status, told = await made.ask(client, question, "/api/preview")
            assert status == 200 and word in told["text"] and told["seconds"] is None
            assert (await made.ask(client, question))[1]["verdict"] == told["verdict"]
        # sine, and a stop on the way
        question = made.question("sine", pose={"z_m": 0.01}, frequency_hz=0.5)
        status, told = await made.ask(client, question, "/api/preview")
        assert status == 200 and told["seconds"] is None and "10 mm" in told["text"]
        await made.ask(client, question)
        await asyncio.sleep(0.7)
        status, told = await made.ask(client, made.question("stop"), "/api/preview")
        assert status == 200 and 0.0 < told["seconds"] < 2.0


async def test_alarms_that_somebody_has_seen(tmp_path: Path) -> None:
    async with house(tmp_path) as made, browser() as client:
        assert await made.login(client, "olaf") == 200
        assert (await made.ask(client, {"alarms": ["CELL_SUSPECT"]}, "/api/acknowledge"))[0] == 200
        assert (await made.ask(client, {"alarms": ["<b>"]}, "/api/acknowledge"))[0] == 400
        _, events = await made.get(client, "/api/events?limit=1")
        assert [(event["kind"], event["code"], event["who"]) for event in events] == [
            ("acknowledged", "CELL_SUSPECT", "olaf")
        ]


# ---------------------------------------------------------------- looking


async def test_meta_is_the_machine_in_words(tmp_path: Path) -> None:
    async with house(tmp_path) as made, browser() as client:
        assert await made.login(client, "vera") == 200
        status, meta = await made.get(client, "/api/meta")
        assert status == 200 and meta["session"] == "boot1" and meta["machine"] == "6-upru"
        assert [channel["name"] for channel in meta["channels"]] == [channel.name for channel in made.control.columns]
        assert len(meta["geometry"]["base_m"]) == meta["legs"] == 6
        assert {"kind": "tare", "role": "engineer", "moves": False, "modes": ["READY"]} in meta["requests"]
        assert {entry["name"] for entry in meta["faults"]} >= {"LINK_LOST", "EXTERNAL_LOAD"}


async def test_a_viewer_gets_every_row_bit_for_bit(tmp_path: Path) -> None:
    async with house(tmp_path) as made, browser() as client:
        assert await made.login(client, "vera") == 200
        await until(lambda: made.board.ring.written > 100)
        begun = made.board.ring.written
        rows, hello, state = [], None, None
        async with client.ws_connect(made.url + "/api/live?history_s=0.5") as viewer:
            async for message in viewer:
                if message.type is aiohttp.WSMsgType.TEXT:
                    told = json.loads(message.data)
                    hello, state = (told if told["type"] == kind else old for kind, old in
                                    (("hello", hello), ("state", state)))  # fmt: skip
                else:
                    first = int(struct.unpack_from("<d", message.data)[0])
                    block = np.frombuffer(message.data[8:], "<f8").reshape(-1, len(hello["columns"]))
                    assert len(block) <= 200
                    assert first == (rows[-1][0] + 1 if rows else hello["first"])
                    rows += list(enumerate(block, first))
                if len(rows) > 150 and state:
                    break
            assert made.board.viewers == 1
        assert begun - 60 < rows[0][0] <= begun
        kept = RingReader(made.control.path)
        first, stored = kept.read(rows[0][0], len(rows))
        assert first == rows[0][0]
        assert np.array([row for _, row in rows]).tobytes() == stored[: len(rows)].tobytes()
        assert state["viewers"] == 1
        await until(lambda: made.board.viewers == 0)


async def test_a_viewer_lives_through_a_new_session(tmp_path: Path) -> None:
    async with house(tmp_path) as made, browser() as client:
        assert await made.login(client, "vera") == 200
        async with client.ws_connect(made.url + "/api/live?history_s=9") as viewer:
            hello = await viewer.receive_json()
            assert (hello["type"], hello["session"], hello["first"]) == ("hello", "boot1", 0)
            made.board.ended = "the control process ended"
            made.control.mailbox.close()
            again = Control(made.site, "boot2")
            again.step()
            seen: list[dict[str, Any]] = []
            async for message in viewer:
                if message.type is aiohttp.WSMsgType.TEXT:
                    seen.append(json.loads(message.data))
                    if seen[-1]["type"] == "ended":
                        made.board.ring, made.board.ended = RingReader(again.path), None
                    if seen[-1]["type"] == "hello":
                        break
            assert seen[-1]["session"] == "boot2" and seen[-1]["first"] == 0
            again.close()


async def test_a_viewer_that_takes_nothing_is_put_out_and_costs_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "FROZEN_S", 0.5)
    monkeypatch.setattr(routes, "VIEWER_BUFFER", 4096)
    async with house(tmp_path) as made, browser() as client:
        assert await made.login(client, "vera") == 200
        cookie = "; ".join(f"{c.key}={c.value}" for c in client.cookie_jar)
        address = ("127.0.0.1", int(made.url.rpartition(":")[2]))
        frozen = socket.socket()
        frozen.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        frozen.setblocking(False)
        await asyncio.get_running_loop().sock_connect(frozen, address)
        await asyncio.get_running_loop().sock_sendall(frozen, (
            "GET /api/live?history_s=60 HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\nCookie: {cookie}\r\n\r\n"
        ).encode())  # fmt: skip
        await until(lambda: made.board.viewers == 1)
        async with client.ws_connect(made.url + "/api/live") as other:
            for _ in range(6000):  # a minute of rows, more than any buffer on the way holds
                made.control.repeat()
            await until(lambda: made.board.viewers == 1)
            received = await asyncio.wait_for(other.receive(), 5.0)  # the other one does not notice
            assert received.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY)
        frozen.close()


async def test_what_a_viewer_says_is_ignored_and_bounded(tmp_path: Path) -> None:
    async with house(tmp_path) as made, browser() as client:
        assert await made.login(client, "vera") == 200
        for words in (["x"] * 10_000, ["x" * 100_000]):
            async with client.ws_connect(made.url + "/api/live") as viewer:
                with pytest.raises((ConnectionError, aiohttp.ClientError, AssertionError)):
                    for word in words:
                        await viewer.send_str(word)
                    async for _ in viewer:
                        pass
                    raise AssertionError("closed, as it should be")
        await until(lambda: made.board.viewers == 0)
        assert made.control.kinds == []


async def test_a_viewer_whose_login_ends_is_put_out(tmp_path: Path) -> None:
    async with house(tmp_path) as made, browser() as client:
        assert await made.login(client, "vera") == 200
        async with client.ws_connect(made.url + "/api/live") as viewer:
            assert (await made.ask(client, {}, "/api/logout"))[0] == 200
            async for _ in viewer:
                pass
            assert viewer.close_code == aiohttp.WSCloseCode.POLICY_VIOLATION


async def test_no_more_viewers_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "VIEWERS", 1)
    async with house(tmp_path) as made, browser() as client:
        assert await made.login(client, "vera") == 200
        async with client.ws_connect(made.url + "/api/live"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await client.ws_connect(made.url + "/api/live")
            assert refused.value.status == 503


# ---------------------------------------------------------------- hostile clients


def raw(url: str, data: bytes, seconds: float = 20.0) -> bytes:
    """What comes back to these bytes until the other side closes."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), seconds) as connection:
        connection.sendall(data)
        got = b""
        while chunk := connection.recv(65536):
            got += chunk
        return got


@pytest.mark.parametrize(
    "target",
    [
        "/assets/../routes.py", "/assets/..%2froutes.py", "/assets/%2e%2e/routes.py", "/assets//etc/passwd",
        "/../routes.py", "/assets/..\\routes.py", "/assets/%00", "/assets/.git", "/assets/vendor/../../routes.py",
        "//etc/passwd",
    ],
)  # fmt: skip
async def test_nothing_beside_the_page_can_be_read(tmp_path: Path, target: str) -> None:
    async with house(tmp_path, control=False) as made:
        sent = f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        got = await asyncio.to_thread(raw, made.url, sent)
        assert int(got.split()[1]) in (400, 404), got[:200]


async def test_a_body_that_is_too_large_is_refused_without_being_kept(tmp_path: Path) -> None:
    async with house(tmp_path) as made, browser() as client:
        assert await made.login(client, "erna") == 200
        for route in ("/api/login", "/api/request"):
            async with client.post(
                made.url + route, data=b" " * 200_000, headers={"Origin": made.url, "Content-Type": "application/json"}
            ) as answer:
                assert answer.status == 413

        async def endless():
            for _ in range(50):
                yield b" " * 10_000

        async with client.post(
            made.url + "/api/request", data=endless(), headers={"Origin": made.url, "Content-Type": "application/json"}
        ) as answer:
            assert answer.status == 413
        # small enough for the server, too large for a request
        assert (await made.ask(client, made.question(track="x" * 20_000)))[0] == 413
        assert made.control.kinds == []


async def test_slow_clients_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEADERS_S", 0.5)
    monkeypatch.setattr(routes, "BODY_S", 0.5)
    async with house(tmp_path, control=False) as made:
        head = b"POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
        assert b" 408 " in await asyncio.to_thread(raw, made.url, head)
        for silent in (b"", b"GET / HTTP/1.1\r\nHost:", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"):
            await asyncio.to_thread(raw, made.url, silent)  # it ends at all


async def test_connections_are_bounded_and_the_shell_gets_in_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS", 3)
    async with house(tmp_path) as made:
        address = ("127.0.0.1", int(made.url.rpartition(":")[2]))
        held = [socket.create_connection(address) for _ in range(3)]
        await asyncio.sleep(0.2)
        late = socket.create_connection(address)
        late.settimeout(5.0)
        assert await asyncio.to_thread(late.recv, 10) == b""
        path = str(socket_path(Path(made.site.requests.path)))
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=path)) as shell:
            headers = {"Authorization": f"Bearer {made.token}"}
            async with shell.post("http://pkm/api/request", json=made.question("stop"), headers=headers) as answer:
                assert answer.status == 200 and (await answer.json())["verdict"] == "ACCEPTED"
        assert [event.source for event in made.board.events if event.who == "local"] in ([], ["shell"])
        for connection in [*held, late]:
            connection.close()


@pytest.mark.parametrize(
    "junk",
    [
        b"\x00" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST /api/login HTTP/1.1\r\nHost: x\r\n"
        b"Content-Length: -1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b"POST /api/login HTTP/1.1\r\nHost: x\r\n"
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"GET /api/session HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer \xff\xfe\r\n\r\n",
        b"GET /api/session HTTP/1.1\r\nHost: x\r\nConnection: close\r\nCookie: pkm_session=\xff\r\n\r\n",
    ],
)  # fmt: skip
async def test_what_is_no_http_is_refused(tmp_path: Path, junk: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEADERS_S", 0.5)
    async with house(tmp_path, control=False) as made, browser() as client:
        try:
            got = await asyncio.to_thread(raw, made.url, junk)
        except ConnectionError:
            got = b""
        assert got == b"" or got.split()[1] in (b"400", b"401"), got[:100]
        async with client.get(made.url + "/api/meta") as answer:
            assert answer.status == 401  # it still answers


# ---------------------------------------------------------------- where it listens


async def test_a_port_in_use_is_one_sentence_and_the_shell_still_gets_in(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        site, board = make_site(tmp_path, port=other.getsockname()[1]), Board()
        async with serving(site, board) as admission:
            assert admission
            (event,) = board.events
            assert (event.kind, event.code) == ("page", "not_served")
            assert f"port {other.getsockname()[1]}" in event.text and "in use" in event.text
            token = json.loads(token_path(Path(site.requests.path)).read_text())
            assert token["url"] is None
            path = str(socket_path(Path(site.requests.path)))
            async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=path)) as shell:
                headers = {"Authorization": f"Bearer {token['token']}"}
                async with shell.get("http://pkm/api/session", headers=headers) as answer:
                    assert answer.status == 200


@pytest.mark.parametrize(
    ("web_table", "words"),
    [
        ({"host": "0.0.0.0"}, ["web.host", "without web.certificate"]),
        ({"certificate": "/nowhere.pem"}, ["web.certificate, web.key", "both or none"]),
        ({"certificate": "/nowhere.pem", "key": "/nowhere.key"}, ["web.key", "/nowhere.key"]),
        ({"host": "192.0.2.1", "certificate": "{pem}", "key": "{open}"}, ["web.key", "chmod 600"]),
        ({"host": "192.0.2.1", "certificate": "{pem}", "key": "{key}"}, ["192.0.2.1", "cannot be used"]),
        ({"certificate": "{pem}", "key": "{pem}"}, ["cannot be used"]),
    ],
)
async def test_what_keeps_the_page_from_being_served(
    tmp_path: Path, web_table: dict[str, str], words: list[str]
) -> None:
    files = certificate(tmp_path)
    table = {key: value.format(**files) for key, value in web_table.items()}
    if "192.0.2.1" not in words:  # that it is not here shows when it is tried only
        text = own_site(tmp_path).replace('host = "127.0.0.1"\nport = 0', "port = 0")
        lines = "\n".join(f"{key} = {value!r}" for key, value in table.items())
        (tmp_path / "site.toml").write_text(text.replace("port = 0\n", f"port = 0\n{lines}\n"))
        for command in ("check", "run"):
            refused(pkm(command, tmp_path / "site.toml"), 2, "site.toml", *words)
    board = Board()
    async with serving(make_site(tmp_path, **table), board) as admission:
        assert admission  # MQTT goes on
        (event,) = board.events
        for word in words:
            assert word in event.text


def certificate(folder: Path) -> dict[str, str]:
    """A self-signed certificate for 127.0.0.1, its key, and a copy of that which others may read."""
    pem, key, readable = folder / "page.pem", folder / "page.key", folder / "open.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", pem],
        check=True, capture_output=True,
    )  # fmt: skip
    key.chmod(0o600)
    pem.chmod(0o600)
    readable.write_text(key.read_text())
    readable.chmod(0o644)
    return {"pem": str(pem), "key": str(key), "open": str(readable)}


async def test_tls(tmp_path: Path) -> None:
    files = certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=files["pem"])
    async with house(tmp_path, certificate=files["pem"], key=files["key"]) as made, browser() as client:
        assert made.url.startswith("https://127.0.0.1:")
        body = {"user": "vera", "password": "viewer's secret"}
        async with client.post(made.url + "/api/login", json=body, ssl=trusting) as answer:
            assert answer.status == 200
            assert "Secure" in answer.headers["Set-Cookie"] and "Strict-Transport-Security" in answer.headers
        async with client.ws_connect(made.url + "/api/live", ssl=trusting, origin=made.url) as viewer:
            assert (await viewer.receive_json())["type"] == "hello"
        with pytest.raises(aiohttp.ClientError):
            await client.get(made.url + "/")  # a client that does not know the certificate


async def test_users_by_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "site.toml"
    path.write_text(own_site(tmp_path))
    assert pkm("user", "add", path, "anna", "--role", "operator", given="long enough\n").code == 0
    assert pkm("user", "add", path, "bert", given="long enough, too\n").code == 0
    assert [line.split() for line in pkm("user", "list", path).out.splitlines()] == [
        ["anna", "operator"], ["bert", "viewer"]
    ]  # fmt: skip
    users = tmp_path / "run" / "simulation.users"
    assert users.stat().st_mode & 0o777 == 0o600 and "long enough" not in users.read_text()
    assert pkm("user", "remove", path, "bert").code == 0
    assert list(read_users(users)) == ["anna"]
    refused(pkm("user", "remove", path, "bert"), 2, "bert")
    refused(pkm("user", "add", path, "carl", given="short\n"), 2, "password", "5 characters")
    refused(pkm("user", "add", path, "../carl", given="long enough\n"), 2, "../carl")
    refused(pkm("user", "add", path, "local", given="long enough\n"), 2, "local")
    users.chmod(0o644)
    refused(pkm("user", "list", path), 2, "chmod 600")


def test_the_command_without_a_gateway(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(own_site(tmp_path))
    refused(pkm("link", path), 3, "no controller")
    refused(pkm("request", "stop", "--site", path), 3, "no controller")


async def test_the_shell_asks_through_the_same_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(tmp_path) as made:
        path = tmp_path / "site.toml"
        path.write_text(own_site(tmp_path))
        result = await asyncio.to_thread(pkm, "request", "ready", "--site", path)
        assert (result.code, result.out) == (0, "ACCEPTED: accepted (mode READY)\n"), result.err
        monkeypatch.setenv("PKM_PASSWORD", "operator's secret")
        result = await asyncio.to_thread(pkm, "request", "tare", "--site", path, "--user", "olaf")
        assert result.code == 1 and result.out.startswith("FORBIDDEN: tare needs the role engineer")
        result = await asyncio.to_thread(pkm, "request", "sine", "z_m=0.01", "--site", path, "--preview")
        assert result.code == 1 and "refused" in result.out
        monkeypatch.setenv("PKM_PASSWORD", "wrong")
        result = await asyncio.to_thread(pkm, "request", "stop", "--site", path, "--user", "olaf")
        assert result.code == 1 and "wrong" in result.err
        assert made.control.kinds == [RequestKind.READY]
        result = await asyncio.to_thread(pkm, "link", path)
        assert result.out == f"{made.url}/#token={made.token}\n"


def test_numbers_in_json_are_never_nan(tmp_path: Path) -> None:
    meta = make_meta() | {"limits": {"speed_m_s": [math.inf]}}
    json.loads(msgspec.json.encode(described(meta)), parse_constant=pytest.fail)
