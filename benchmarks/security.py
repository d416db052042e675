"""What somebody can do who should not: every way in, tried against a running simulation.

    python -m benchmarks.security [--seconds 20]

A whole system runs with ports, users and a guarded broker (deploy/mosquitto) of its own: TLS, passwords, access list.
For each attempt the table says what came back, whether the control process was asked for anything or the machine moved,
whether a secret came out, and by how much the memory of the gateway grew. The first row is a request that is in order:
it must move the machine, else the others prove nothing. Exit code 1 if anything else moved, leaked or grew.
"""

import argparse
import asyncio
import collections
import contextlib
import functools
import getpass
import json
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import paho.mqtt.client as paho
import psutil

from controller.gateway.accounts import new_account, write_users
from controller.gateway.mqtt import broker
from controller.message import socket_path, token_path
from controller.records import Mode, RequestKind
from controller.ring import RingReader
from tests.deploy import guarded
from tests.machines import ROOT, free_port, own_site

GROWTH_MIB = 64.0  # of the gateway during one attempt: a few bodies and buffers are in order
STILL_M = 2e-4  # of the set-points
PASSWORDS = {"vera": "viewer's secret", "olaf": "operator's secret", "erna": "engineer's secret"}
ROLES = {"vera": "viewer", "olaf": "operator", "erna": "engineer"}
BROKER_PASSWORDS = {"gateway-simulation": "gateway's own", "olaf": "olaf's own", "vera": "vera's own"}
POSE = {"x_m": 0.02, "y_m": 0.0, "z_m": 0.86, "yaw_rad": 0.0, "pitch_rad": 0.0, "roll_rad": 0.0}
ROUTES = [
    ("GET", "/api/session"), ("GET", "/api/meta"), ("GET", "/api/events"), ("GET", "/api/live"),
    ("GET", "/api/recordings"), ("GET", "/api/recordings/x"), ("PUT", "/api/recordings/x/note"),
    ("POST", "/api/logout"), ("POST", "/api/request"), ("POST", "/api/preview"), ("POST", "/api/acknowledge"),
]  # fmt: skip
PATHS = [
    "/assets/../accounts.py", "/assets/..%2f..%2fservice.py", "/assets/%2e%2e/%2e%2e/etc/passwd", "/assets//etc/passwd",
    "/../../etc/passwd", "//etc/passwd", "/assets/..\\..\\etc\\passwd", "/assets/%00", "/assets/.git/config",
    "/api/recordings/..%2f..%2frun%2fsimulation.users", "/api/recordings/%2e%2e%2fsite.toml",
    "/api/recordings/..%2frun%2fsimulation.requests.token", "/assets/%252e%252e/x", "/.env", "/server-status",
]  # fmt: skip

Answers = collections.Counter[str]


class Target:
    """The system under attack, and an eye on what it does."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.secrets = folder, list[str]()
        self._number = 0

    def attach(self) -> None:
        """Once it runs."""
        requests = self.folder / "run" / "simulation.requests"
        told = json.loads(token_path(requests).read_text())
        self.url, self.token, self.requests = told["url"], told["token"], requests
        self.address = ("127.0.0.1", int(self.url.rpartition(":")[2]))
        self.ring = RingReader(self.folder / "run" / "simulation.ring")
        names = [channel[0] for channel in self.ring.meta["channels"]]
        self._asked, self._mode = names.index("request_kind"), names.index("mode")
        self._set = [names.index(f"command_{i}_m") for i in range(1, 7)]
        self.secrets += [self.token, "$argon2id$", "root:x:0", *PASSWORDS.values()]

    def rows(self, since: int) -> np.ndarray:
        """Requests, mode and set-points of the ticks since then."""
        found = [self.ring.read(since)]
        while len(found[-1][1]):
            found.append(self.ring.read(found[-1][0] + len(found[-1][1])))
        return np.concatenate([rows for _, rows in found])

    def mode(self) -> Mode:
        """Of the newest tick."""
        return Mode(int(self.ring.read(self.ring.written - 1, 1)[1][0, self._mode]))

    def moved(self, since: int) -> str:
        """What the control process was asked for and did since row `since`; empty for nothing."""
        rows = self.rows(since)
        kinds = sorted({RequestKind(int(kind)).name for kind in rows[:, self._asked] if kind})
        way = np.ptp(rows[:, self._set], axis=0).max() if (rows[:, self._mode] != Mode.OFF).any() else 0.0
        return " ".join([*kinds, *([f"{1e3 * way:.1f} mm"] if way > STILL_M else [])])

    def question(self, kind: str = "move", **changed: Any) -> dict[str, Any]:
        """A request that is in order; a move by default."""
        self._number += 1
        whole = {"id": f"q{self._number}", "kind": kind, "deadline_t": time.time() + 5.0}
        whole |= {"pose": POSE} if kind == "move" else {}
        return whole | changed


@contextlib.asynccontextmanager
async def visitor(target: Target, user: str = "") -> AsyncIterator[aiohttp.ClientSession]:
    """A browser, logged in if there is a user."""
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar, headers={"Origin": target.url}) as client:
        if user:
            body = {"user": user, "password": PASSWORDS[user]}
            async with client.post(target.url + "/api/login", json=body) as answer:
                assert answer.status == 200, await answer.text()
        yield client


def cookie_of(client: aiohttp.ClientSession) -> str:
    """The header of a visitor who logged in, for requests over a bare socket."""
    return "; ".join(f"{morsel.key}={morsel.value}" for morsel in client.cookie_jar)


async def said(target: Target, answer: aiohttp.ClientResponse, answers: Answers) -> None:
    """Count the status of an answer; a secret in it is a leak."""
    text = await answer.text(errors="replace") + str(answer.headers)
    leaked = [secret for secret in target.secrets if secret in text]
    answers["LEAK" if leaked else str(answer.status)] += 1


# ---------------------------------------------------------------- attempts over HTTP


async def without_login(target: Target, answers: Answers) -> None:
    async with visitor(target) as client:
        for method, route in ROUTES:
            body = None if method == "GET" else target.question()
            for headers in ({}, {"Authorization": "Bearer x"}, {"Cookie": "pkm_session=x"}):
                async with client.request(method, target.url + route, json=body, headers=headers) as answer:
                    await said(target, answer, answers)


async def as_viewer(target: Target, answers: Answers) -> None:
    async with visitor(target, "vera") as client:
        for kind in RequestKind:
            if kind:
                question = target.question(kind.name.lower(), pose=POSE)
                for route in ("/api/request", "/api/preview"):
                    async with client.post(target.url + route, json=question) as answer:
                        await said(target, answer, answers)


async def operator_tares(target: Target, answers: Answers) -> None:
    question = target.question("tare")
    async with visitor(target, "olaf") as client, client.post(target.url + "/api/request", json=question) as answer:
        await said(target, answer, answers)


async def other_pages(target: Target, answers: Answers) -> None:
    async with visitor(target, "olaf") as client:
        for headers in (
            {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"}, {"Origin": target.url + ".evil.example"},
        ):  # fmt: skip
            async with client.post(target.url + "/api/request", json=target.question(), headers=headers) as answer:
                await said(target, answer, answers)
        form = {"Content-Type": "text/plain", "Origin": "http://evil.example"}
        data = json.dumps(target.question())
        async with client.post(target.url + "/api/request", data=data, headers=form) as answer:
            await said(target, answer, answers)
        try:
            async with client.ws_connect(target.url + "/api/live", origin="http://evil.example"):
                answers["LEAK"] += 1
        except aiohttp.WSServerHandshakeError as refused:
            answers[str(refused.status)] += 1


def replayed(earlier: dict[str, Any]) -> Callable[[Target, Answers], Awaitable[None]]:
    """Copies of a request that was accepted."""

    async def attempt(target: Target, answers: Answers) -> None:
        async with visitor(target, "olaf") as client:
            for changed in ({}, {"deadline_t": time.time() + 5.0}, {"pose": POSE | {"x_m": 0.03}}) * 3:
                async with client.post(target.url + "/api/request", json=earlier | changed) as answer:
                    await said(target, answer, answers)

    return attempt


async def too_late(target: Target, answers: Answers) -> None:
    async with visitor(target, "olaf") as client:
        for ahead_s in (-3600.0, -0.01, 10.5, 3600.0, 1e300):
            question = target.question(deadline_t=time.time() + ahead_s)
            async with client.post(target.url + "/api/request", json=question) as answer:
                await said(target, answer, answers)


async def malformed(target: Target, answers: Answers) -> None:
    chance = random.Random(1)
    async with visitor(target, "erna") as client:
        headers = {"Content-Type": "application/json"}
        for _ in range(500):
            text = bytearray(json.dumps(target.question(deadline_t=0.0)).encode())
            for _ in range(chance.randint(1, 6)):
                text[chance.randrange(len(text))] = chance.randrange(256)
            async with client.post(target.url + "/api/request", data=bytes(text), headers=headers) as answer:
                await said(target, answer, answers)


async def oversized(target: Target, answers: Answers) -> None:
    async with visitor(target, "erna") as client:

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(50):
                yield b" " * 2**20

        for data in (b" " * (50 * 2**20), chunks(), json.dumps(target.question(track="x" * 60_000)).encode()):
            for route in ("/api/login", "/api/request"):
                if isinstance(data, bytes) or route == "/api/request":
                    try:
                        headers = {"Content-Type": "application/json"}
                        async with client.post(target.url + route, data=data, headers=headers) as answer:
                            await said(target, answer, answers)
                    except aiohttp.ClientError:
                        answers["cut"] += 1


async def slow(target: Target, answers: Answers, seconds: float) -> None:
    """300 connections that send a byte now and then; meanwhile the shell must get in."""
    head = b"POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n"
    held = list[socket.socket]()
    for k in range(300):
        with contextlib.suppress(OSError):
            connection = socket.create_connection(target.address, 2.0)
            connection.setblocking(False)
            connection.sendall((b"", head[:20], head + b"\r\n{")[k % 3])
            held.append(connection)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for connection in held:
            with contextlib.suppress(OSError):
                connection.send(b"x")
        path = str(socket_path(target.requests))
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=path)) as shell:
            headers = {"Authorization": f"Bearer {target.token}"}
            async with shell.get("http://pkm/api/session", headers=headers) as answer:
                answers[f"shell {answer.status}"] += 1
        await asyncio.sleep(1.0)
    for connection in held:
        answers["still open" if _open(connection) else "cut"] += 1
        connection.close()


def _open(connection: socket.socket) -> bool:
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


async def paths(target: Target, answers: Answers) -> None:
    for user in ("", "vera"):
        async with visitor(target, user) as client:
            cookie = cookie_of(client)
        for path in PATHS:
            sent = f"GET {path} HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n".encode()
            got = await asyncio.to_thread(_exchange, target.address, sent)
            leaked = any(secret.encode() in got for secret in target.secrets)
            answers["LEAK" if leaked else got.split()[1].decode() if got else "cut"] += 1


def _exchange(address: tuple[str, int], data: bytes) -> bytes:
    got = b""
    with contextlib.suppress(OSError), socket.create_connection(address, 10.0) as connection:
        connection.sendall(data)
        while chunk := connection.recv(65536):
            got += chunk
    return got


async def guessing(target: Target, answers: Answers) -> None:
    async with visitor(target) as client:
        words = [f"password{k}" for k in range(100)] + [PASSWORDS["erna"][::-1]] * 20
        bodies = [{"user": "erna", "password": word} for word in words]
        bodies += [{"user": f"user{k}", "password": "password"} for k in range(50)]
        bodies += [{"token": "x" * 43}] * 20
        for body in bodies:
            async with client.post(target.url + "/api/login", json=body) as answer:
                await said(target, answer, answers)


async def frozen(target: Target, answers: Answers, seconds: float) -> None:
    """Viewers that never read, and more of them than there may be."""
    async with visitor(target, "vera") as client:
        cookie = cookie_of(client)
    held = list[socket.socket]()
    for _ in range(60):
        connection = socket.create_connection(target.address, 2.0)
        connection.sendall(
            f"GET /api/live?history_s=120 HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\nCookie: {cookie}\r\n\r\n".encode()
        )
        held.append(connection)
    await asyncio.sleep(seconds)
    for connection in held:
        with contextlib.suppress(OSError):
            answers[connection.recv(12)[9:12].decode() or "cut"] += 1
        connection.close()


async def unread(target: Target, answers: Answers, seconds: float) -> None:
    """Request after request on one connection, and no answer read; ten times."""
    async with visitor(target, "vera") as client:
        cookie = cookie_of(client)
    asked = b"".join(
        f"{line} HTTP/1.1\r\nHost: {target.address[0]}\r\nCookie: {cookie}\r\n\r\n".encode()
        for line in ("GET /api/meta", "GET /api/events", "GET /", "GET /api/recordings")
    )
    held = [socket.create_connection(target.address, 2.0) for _ in range(10)]
    for connection in held:
        connection.setblocking(False)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for connection in held:
            with contextlib.suppress(OSError):
                connection.send(100 * asked)
        await asyncio.sleep(0.01)
    for connection in held:
        answers["still open" if _open(connection) else "cut"] += 1
        connection.close()


async def flood(target: Target, answers: Answers) -> None:
    """Requests of a viewer and copies of one, as fast as they go."""
    async with visitor(target, "vera") as client:
        question = target.question("stop")
        for _ in range(1000):
            async with client.post(target.url + "/api/request", json=question) as answer:
                await said(target, answer, answers)


# ---------------------------------------------------------------- other ways in


async def other_users(target: Target, answers: Answers) -> None:
    """Another user of the same computer, at the sockets and files."""
    code = (
        "import socket, sys\n"
        "for path, kind in ((sys.argv[1], socket.SOCK_DGRAM), (sys.argv[2], socket.SOCK_STREAM)):\n"
        "    try: socket.socket(socket.AF_UNIX, kind).connect(path); print('open')\n"
        "    except OSError as error: print(type(error).__name__)\n"
        "for path in sys.argv[3:]:\n"
        "    try: open(path).read(); print('LEAK')\n"
        "    except OSError as error: print(type(error).__name__)\n"
    )
    users = target.folder / "run" / "simulation.users"
    paths = (target.requests, socket_path(target.requests), token_path(target.requests), users)
    line = ["/usr/bin/env", "python3", "-c", code, *map(str, paths)]
    run = functools.partial(subprocess.run, check=False, capture_output=True, text=True, user=65534, group=65534)
    done = await asyncio.to_thread(run, line)
    answers.update(done.stdout.split() or [done.stderr[-60:]])


def _broker(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """mosquitto with the files of deploy/mosquitto, at a port of its own."""
    guarded.make_certificates(folder, "localhost")
    guarded.make_users(folder / "users", BROKER_PASSWORDS)
    (folder / "pkm.acl").write_text((guarded.DEPLOY / "pkm.acl").read_text())
    (folder / "pkm.acl").chmod(0o600)
    text = (guarded.DEPLOY / "pkm.conf").read_text().replace("/etc/mosquitto/pkm", str(folder))
    text = text.replace("user mosquitto", f"user {getpass.getuser()}")
    text = text.replace("listener 8883", f"listener {port} 127.0.0.1")
    (folder / "pkm.conf").write_text(text)
    program = broker.mosquitto()
    if program is None:
        sys.exit("mosquitto is not installed")
    with (folder / "broker.log").open("w") as log:
        return subprocess.Popen([program, "-c", str(folder / "pkm.conf")], stderr=log)


def _client(folder: Path, port: int, user: str | None, answers: Answers, password: str = "") -> paho.Client:
    """A client of the broker that counts what it is told."""

    def heard(_client: object, _data: object, message: paho.MQTTMessage) -> None:
        with contextlib.suppress(ValueError):
            answers[json.loads(message.payload).get("verdict", "?")] += 1

    def connected(client: paho.Client, _data: object, _flags: object, code: Any, _more: object) -> None:
        if code.is_failure:
            answers[str(code)] += 1
            client.disconnect()
        else:
            client.subscribe("pkm/+/response/#", 1)

    def published(_client: object, _data: object, _mid: int, code: Any, _more: object) -> None:
        if code.is_failure:
            answers[f"broker: {code}"] += 1

    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.tls_set(str(folder / "ca.crt"), tls_version=ssl.PROTOCOL_TLS_CLIENT)
    if user:
        client.username_pw_set(user, password or BROKER_PASSWORDS[user])
    client.on_message, client.on_connect, client.on_publish = heard, connected, published
    client.connect("localhost", port)
    client.loop_start()
    time.sleep(0.5)
    return client


def over_mqtt(
    folder: Path, port: int, questions: Callable[[Target], list[tuple[str, str, bytes, bool]]]
) -> Callable[[Target, Answers], Awaitable[None]]:
    """Messages (user, topic, payload, retained); what broker and gateway reply are the answers."""

    async def attempt(target: Target, answers: Answers) -> None:
        clients = {user: _client(folder, port, user, answers) for user in ("olaf", "vera")}
        await asyncio.sleep(1.0)
        for user, topic, payload, retained in questions(target):
            clients[user].publish(topic, payload, 1, retained)
            await asyncio.sleep(0.1)
        await asyncio.sleep(2.0)
        for user in (None, "olaf"):  # nobody, and somebody with a wrong password
            _client(folder, port, user, answers, "wrong").loop_stop()
        for client in clients.values():
            client.disconnect()
            client.loop_stop()

    return attempt


# ---------------------------------------------------------------- the table


async def get_ready(target: Target) -> None:
    """Drives on, from whatever mode."""
    async with visitor(target, "olaf") as client:
        for _ in range(20):
            for kind in ("acknowledge", "ready"):
                async with client.post(target.url + "/api/request", json=target.question(kind)) as answer:
                    mode = (await answer.json())["mode"]
            await asyncio.sleep(1.0)
            if mode == Mode.READY.name and target.mode() is Mode.READY:
                return


async def attack(folder: Path, port: int, target: Target, gateway: psutil.Process, seconds: float) -> bool:
    """Try everything; whether all of it came to nothing."""
    tokens = dict[str, str]()
    for user in ROLES:
        async with visitor(target) as client:
            body = {"user": user, "password": PASSWORDS[user], "bearer": True}
            async with client.post(target.url + "/api/login", json=body) as answer:
                tokens[user] = (await answer.json())["token"]
    target.secrets += tokens.values()
    await get_ready(target)
    before = target.question("move")

    async def once(target: Target, answers: Answers) -> None:
        for _ in range(5):  # a computer that is too busy may have ended in a fault
            async with visitor(target, "olaf") as client:
                before.update(target.question("move"))
                async with client.post(target.url + "/api/request", json=before) as answer:
                    verdict = (await answer.json()).get("verdict", str(answer.status))
                await asyncio.sleep(1.5)
            answers[verdict] += 1
            if verdict == "ACCEPTED":
                return
            await get_ready(target)

    def stranger(target: Target) -> list[tuple[str, str, bytes, bool]]:
        topic = "pkm/simulation/request/{}"
        q, own = target.question, "olaf"
        good = q(token=tokens["olaf"])
        as_json = [
            (own, topic.format(own), q(), False), (own, topic.format(own), q(token="x"), False),
            (own, topic.format(own), q(token=tokens["erna"]), False),
            (own, topic.format(own), q("tare", token=tokens["olaf"]), False),
            ("vera", topic.format("vera"), q(token=tokens["vera"]), False),
            ("vera", topic.format("olaf"), q(token=tokens["olaf"]), False),
            (own, topic.format(own), q(token=tokens["olaf"], deadline_t=time.time() - 1.0), False),
            (own, topic.format(own), q(token=tokens["olaf"], deadline_t=time.time() + 60.0), False),
            (own, topic.format(own), before | {"token": tokens["olaf"], "deadline_t": time.time() + 5.0}, False),
            (own, topic.format(own), good, True),
            ("vera", "pkm/simulation/state", {"online": False}, True),
            ("vera", "pkm/simulation/response/olaf", {"verdict": "ACCEPTED"}, False),
        ]  # fmt: skip
        messages = [(user, where, json.dumps(body).encode(), kept) for user, where, body, kept in as_json]
        junk = [(own, topic.format(own), data, False) for data in (b"", b"\0" * 100, b"[" * 9000, b" " * 200_000)]
        return messages + junk

    rows: list[tuple[str, Callable[[Target, Answers], Awaitable[None]], bool]] = [
        ("a request that is in order", once, True),
        ("every endpoint without a login", without_login, False),
        ("everything as viewer", as_viewer, False),
        ("tare as operator", operator_tares, False),
        ("from another page (origin, form, WebSocket)", other_pages, False),
        ("copies of an accepted request", replayed(before), False),
        ("expired, and too far ahead", too_late, False),
        ("500 damaged requests of an engineer", malformed, False),
        ("bodies of 50 MB and 60 KB", oversized, False),
        ("300 slow connections", lambda target, answers: slow(target, answers, seconds), False),
        ("paths beside the page", paths, False),
        ("60 viewers that never read", lambda target, answers: frozen(target, answers, seconds), False),
        (
            "10 connections that ask on and on and never read",
            lambda target, answers: unread(target, answers, seconds),
            False,
        ),
        ("1000 requests of a viewer", flood, False),
        ("another user of this computer", other_users, False),
        ("MQTT: tokens, topics, retained, late, copies, junk", over_mqtt(folder, port, stranger), False),
        ("guessing 170 passwords and 20 tokens", guessing, False),
    ]
    print(f"{'what':<70} {'asked for, moved':<22} {'MiB':>6}  answers")
    good = True
    for name, attempt, expected in rows:
        answers, since, level = Answers(), target.ring.written, gateway.memory_full_info().uss
        try:
            await attempt(target, answers)
        except Exception as error:
            answers[f"{type(error).__name__}: {error}"[:80]] += 1
            good = False
        await asyncio.sleep(0.3)
        moved, grown = target.moved(since), (gateway.memory_full_info().uss - level) / 2**20
        right = answers["ACCEPTED"] > 0 and "mm" in moved if expected else not moved
        right = right and grown < GROWTH_MIB and not answers["LEAK"] and not answers["open"]
        good &= right
        shown = ", ".join(f"{count}x {what}" for what, count in sorted(answers.items()) if count)
        shown += "" if right else "   <-- NOT AS IT SHOULD BE"
        print(f"{name:<70} {moved or 'nothing':<22} {grown:>6.1f}  {shown}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each attempt that takes its time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pkm-security-") as name, contextlib.ExitStack() as stack:
        folder, port = Path(name), free_port()
        folder.chmod(0o755)
        serving = _broker(folder, port)
        stack.callback(serving.wait)
        stack.callback(serving.terminate)
        (folder / "run").mkdir()
        accounts = {user: new_account(user, ROLES[user], word) for user, word in PASSWORDS.items()}
        write_users(folder / "run" / "simulation.users", accounts)
        secret = folder / "gateway.password"
        secret.write_text(BROKER_PASSWORDS["gateway-simulation"])
        secret.chmod(0o600)
        text = own_site(folder).replace("[broker]\nstart = true\n", "")
        before, _, after = text.partition("[mqtt]")
        table = (
            f'[mqtt]\nhost = "localhost"\nport = {port}\nuser = "gateway-simulation"\npassword_file = "{secret}"\n\n'
            f'[mqtt.tls]\nca = "{folder}/ca.crt"\n\n[web]'
        )
        site = folder / "site.toml"
        site.write_text(before + table + after.partition("[web]")[2])
        log = stack.enter_context((folder / "log").open("w+"))
        line = [sys.executable, "-m", "controller", "run", str(site), "--json"]
        process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=log)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        target = Target(folder)
        end = time.monotonic() + 90.0
        while "start → OFF" not in (told := (folder / "log").read_text()) or "operator page:" not in told:
            if process.poll() is not None or time.monotonic() > end:
                print(told, file=sys.stderr)
                return 1
            time.sleep(0.2)
        target.attach()
        children = psutil.Process(process.pid).children()
        gateway = next(child for child in children if "gateway" in child.cmdline())
        good = asyncio.run(attack(folder, port, target, gateway, options.seconds))
        alive = gateway.is_running() and process.poll() is None
        print("nothing moved, leaked or grew" if good and alive else "NOT ALL OF IT CAME TO NOTHING")
        if not alive:
            print("the gateway or the control process ended", file=sys.stderr)
    return 0 if good and alive else 1


if __name__ == "__main__":
    sys.exit(main())
