"""The one way in: what it refuses, in which order, that nothing of it reaches the control process, and what is told."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.datagram import MOST_BYTES, listen
from controller.errors import ConfigurationError
from controller.gateway import accounts as accounts_module
from controller.gateway.accounts import Account, Accounts, Refused, new_account, read_users, write_users
from controller.gateway.admission import (
    AHEAD_S,
    LEAST,
    RATE_HZ,
    REMEMBERED,
    TOLD_BURST,
    WORDS,
    Admission,
    Bucket,
    ControlLink,
)  # fmt: skip
from controller.gateway.events import Event
from controller.message import Answer, Message
from controller.records import RequestKind
from tests.gateway.house import PASSWORDS, browser, house

NOW_S = 1_700_000_000.0
POSE = dict.fromkeys(("x_m", "y_m", "z_m", "yaw_rad", "pitch_rad", "roll_rad"), 0.0)


class Link:
    """A control process that accepts everything and remembers it."""

    def __init__(self) -> None:
        self.asked: list[Message] = []
        self.error: Exception | None = None

    async def ask(self, message: Message) -> Answer:
        self.asked.append(message)
        if self.error:
            raise self.error
        return Answer(message.id, "ACCEPTED", "READY", "accepted")


class Door:
    """An admission with its clock, its sessions and its link in the hands of the test."""

    def __init__(self) -> None:
        self.unix_s, self.mono_s = NOW_S, 1000.0
        self.link, self.events = Link(), list[Event]()
        self.accounts = Accounts(None, lambda: self.mono_s)
        self.token = self.accounts.local_token
        self.admission = Admission(self.accounts, self.link, self.events.append, now=lambda: self.unix_s)

    def question(self, **changed: Any) -> dict[str, Any]:
        whole = {"id": "a", "kind": "ready", "deadline_t": self.unix_s + 5.0, "token": self.token} | changed
        return {name: value for name, value in whole.items() if value is not None}

    async def ask(self, question: Any = None, **other: Any) -> tuple[str, int]:
        raw = question if isinstance(question, bytes) else json.dumps(question or self.question()).encode()
        reply = await self.admission.admit(raw, **({"source": "mqtt"} | other))
        return reply.verdict, reply.status


@pytest.fixture
def door() -> Door:
    return Door()


def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.gateway.admission.RATE_HZ", 1e9)
    monkeypatch.setattr("controller.gateway.admission.BURST", 1e9)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "ACCEPTED"),
        ({"id": ""}, "MALFORMED"), ({"id": "x" * 65}, "MALFORMED"), ({"id": None}, "MALFORMED"),
        ({"id": 7}, "MALFORMED"),
        ({"kind": "jump"}, "MALFORMED"), ({"kind": "none"}, "MALFORMED"), ({"kind": "ſtop"}, "MALFORMED"),
        ({"kind": "move"}, "MALFORMED"), ({"kind": "move", "pose": {"z_m": 0.9}}, "MALFORMED"),
        ({"kind": "sine", "pose": {"w_m": 0.9}}, "MALFORMED"), ({"surprise": 1}, "MALFORMED"),
        ({"deadline_t": None}, "MALFORMED"), ({"deadline_t": "soon"}, "MALFORMED"),
        ({"token": None}, "UNKNOWN_USER"), ({"token": ""}, "UNKNOWN_USER"), ({"token": "x" * 43}, "UNKNOWN_USER"),
        ({"deadline_t": NOW_S - 0.1}, "EXPIRED"), ({"deadline_t": NOW_S + AHEAD_S + 0.1}, "EXPIRED"),
        ({"deadline_t": -1e300}, "EXPIRED"), ({"deadline_t": 1e300}, "EXPIRED"), ({"deadline_t": NOW_S}, "ACCEPTED"),
        ({"kind": "MOVE", "pose": POSE}, "ACCEPTED"),
    ],
)  # fmt: skip
async def test_form_identity_and_deadline(door: Door, changed: dict[str, Any], verdict: str) -> None:
    assert (await door.ask(door.question(**changed)))[0] == verdict
    assert len(door.link.asked) == (verdict == "ACCEPTED")
    assert [event.code for event in door.events] == ([] if verdict == "ACCEPTED" else [verdict])


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\x00", b"null", b"[]", b"{}", b"[" * 5000, b'{"id":"a","kind":"stop","deadline_t":NaN}',
        b'{"id":"a","kind":"stop","deadline_t":1e999}', b"\xff\xfe", b'{"id":"a"' * 100,
        b'{"id":"a","kind":"sine","pose":{"z_m":NaN},"deadline_t":1700000001}',
    ],
)  # fmt: skip
async def test_what_is_no_request(door: Door, raw: bytes) -> None:
    assert await door.ask(raw) == ("MALFORMED", 400)
    assert not door.link.asked


async def test_the_order_of_the_checks(door: Door) -> None:
    """What has everything wrong is refused for the first, then each mended in turn."""
    question = door.question(id="1", kind="jump", token="", deadline_t=NOW_S - 1.0)
    await door.ask(door.question(id="1"))  # the id is used up
    large = json.dumps({**question, "track": "x" * MOST_BYTES}).encode()
    assert await door.ask(large, retained=True) == ("TOO_LARGE", 413)
    assert await door.ask(question, retained=True) == ("EXPIRED", 410)
    assert await door.ask(question) == ("MALFORMED", 400)
    assert await door.ask(question | {"kind": "ready"}) == ("UNKNOWN_USER", 401)
    assert await door.ask(question | {"kind": "ready", "token": door.token}) == ("EXPIRED", 410)
    assert await door.ask(question | {"kind": "ready", "token": door.token, "deadline_t": NOW_S}) == ("DUPLICATE", 409)
    assert len(door.link.asked) == 1


async def test_a_retained_request_is_refused_though_all_else_is_right(door: Door) -> None:
    assert await door.ask(retained=True) == ("EXPIRED", 410)
    assert "retained" in door.events[0].text
    assert await door.ask() == ("ACCEPTED", 200)  # the id is not used up by it


async def test_the_user_of_the_way_must_be_that_of_the_token(door: Door) -> None:
    assert await door.ask(who="anna") == ("UNKNOWN_USER", 401)
    assert await door.ask(who="local") == ("ACCEPTED", 200)


async def test_each_kind_needs_its_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plenty(monkeypatch)
    door, account = Door(), new_account("anna", "viewer", "long enough")
    for role, rank in (("viewer", 0), ("operator", 1), ("engineer", 2)):
        write_users(tmp_path / "users", {"anna": Account(role, account.hash)})
        door.accounts = Accounts(tmp_path / "users", lambda: door.mono_s)
        door.admission = Admission(door.accounts, door.link, door.events.append, now=lambda: door.unix_s)
        token = await door.accounts.login("anna", "long enough", "test")
        for kind, least in LEAST.items():
            question = door.question(id=f"{role}{kind}", kind=kind.name.lower(), pose=POSE, token=token)
            allowed = rank >= ("viewer", "operator", "engineer").index(least)
            assert await door.ask(question) == (("ACCEPTED", 200) if allowed else ("FORBIDDEN", 403))
    assert set(LEAST.values()) == {"operator", "engineer"}
    assert set(LEAST) == {kind for kind in RequestKind if kind}


async def test_a_copy_does_nothing_even_after_the_clock_was_set_back(door: Door, monkeypatch: Any) -> None:
    plenty(monkeypatch)
    question = door.question()
    assert (await door.ask(question))[0] == "ACCEPTED"
    assert (await door.ask(question))[0] == "DUPLICATE"
    door.unix_s += 3600.0
    assert (await door.ask(question))[0] == "EXPIRED"
    for k in range(REMEMBERED - 1):
        await door.ask(door.question(id=f"b{k}"))
    door.unix_s = NOW_S
    assert (await door.ask(question))[0] == "DUPLICATE"
    assert len(door.admission._ids) <= REMEMBERED


async def test_too_many_requests_but_never_too_many_stops(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.gateway.admission.time.monotonic", lambda: door.mono_s)
    verdicts = [(await door.ask(door.question(id=f"r{k}")))[0] for k in range(100)]
    assert verdicts == ["ACCEPTED"] * 10 + ["TOO_MANY"] * 90
    stops = [(await door.ask(door.question(id=f"s{k}", kind="stop")))[0] for k in range(100)]
    assert stops == ["ACCEPTED"] * 100
    door.mono_s += 1.0
    verdicts = [(await door.ask(door.question(id=f"t{k}")))[0] for k in range(20)]
    assert verdicts.count("ACCEPTED") == int(RATE_HZ)


@given(
    rate=st.floats(0.1, 50.0),
    burst=st.floats(1.0, 50.0),
    waits=st.lists(st.floats(0.0, 2.0), min_size=1, max_size=60),
)
def test_a_bucket_gives_no_more_than_burst_and_rate(rate: float, burst: float, waits: list[float]) -> None:
    bucket, now, taken = Bucket(rate, burst, burst), 0.0, 0
    for wait in waits:
        now += wait
        taken += bucket.take(now)
    assert taken <= burst + rate * now + 1e-6


async def test_refusals_that_come_in_a_flood_are_counted_and_not_told_one_by_one(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.gateway.admission.time.monotonic", lambda: door.mono_s)
    for _ in range(1000):
        await door.ask(b"junk")
    assert len(door.events) == TOLD_BURST
    door.mono_s += 1.0
    await door.ask(b"junk")
    assert door.events[-1].values == {"refusals_not_told": 1000 - TOLD_BURST}
    assert "980 more" in door.events[-1].text


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(raw=st.binary(max_size=300) | st.text(max_size=100).map(str.encode), who=st.text(max_size=70))
async def test_nothing_makes_it_raise_and_events_stay_printable(raw: bytes, who: str) -> None:
    door = Door()
    reply = await door.admission.admit(raw, who=who, source="mqtt")
    assert reply.verdict in WORDS.values() and reply.status >= 400
    (event,) = door.events
    assert len(event.who) <= 64 and event.who.isprintable()
    assert not door.link.asked


# ---------------------------------------------------------------- the way to the control process


@pytest.mark.parametrize("error", [TimeoutError(), FileNotFoundError(), BlockingIOError()])
async def test_no_answer_is_told(door: Door, error: Exception) -> None:
    door.link.error = error
    assert await door.ask() == ("NO_ANSWER", 503)
    assert door.events[0].who == "local"


async def test_answers_find_their_questions_whatever_else_comes(tmp_path: Path) -> None:
    """Over the real socket, with answers in another order, of nobody's question, and junk among them."""
    control = listen(tmp_path / "requests")
    link = ControlLink(tmp_path / "requests")
    try:
        asked = [asyncio.create_task(link.ask(Message(k, "stop"))) for k in (1, 2, 3)]
        await asyncio.sleep(0)
        senders = []
        for _ in asked:
            data, sender = control.recvfrom(MOST_BYTES)
            senders.append((json.loads(data)["id"], sender))
        for number, sender in reversed(senders):
            for junk in (b"junk", b'{"id":99,"verdict":"ACCEPTED","mode":"","text":""}', b""):
                control.sendto(junk, sender)
            answer = {"id": number, "verdict": f"V{number}", "mode": "OFF", "text": ""}
            control.sendto(json.dumps(answer).encode(), sender)
            await asyncio.sleep(0.02)  # a queue of datagrams is short
        assert [answer.verdict for answer in await asyncio.gather(*asked)] == ["V1", "V2", "V3"]
        assert (tmp_path / "requests.ans").stat().st_mode & 0o077 == 0
    finally:
        link.close()
        control.close()
    assert not (tmp_path / "requests.ans").exists()


async def test_a_deaf_control_process_costs_one_second_and_nobody_else_waits(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        made.control.deaf = True
        begun = time.monotonic()
        question = json.dumps(made.question("stop") | {"token": made.token}).encode()
        asking = asyncio.create_task(made.admission.admit(question, source="mqtt"))
        turns = 0
        while not asking.done():
            await asyncio.sleep(0.01)
            turns += 1
        reply = await asking
        assert (reply.verdict, reply.status) == ("NO_ANSWER", 503)
        assert turns > 10 and time.monotonic() - begun < 10.0


async def test_a_request_over_mqtt_with_the_token_of_a_login(tmp_path: Path) -> None:
    async with house(tmp_path) as made, browser() as client:
        body = {"user": "olaf", "password": PASSWORDS["olaf"], "bearer": True}
        async with client.post(made.url + "/api/login", json=body) as answer:
            token = (await answer.json())["token"]
        question = json.dumps(made.question("ready") | {"token": token}).encode()
        assert (await made.admission.admit(question, who="erna", source="mqtt")).verdict == "UNKNOWN_USER"
        assert (await made.admission.admit(question, who="olaf", source="mqtt")).verdict == "ACCEPTED"
        assert (await made.admission.admit(question, who="olaf", source="mqtt")).verdict == "DUPLICATE"
        await asyncio.sleep(0.3)
        told = [(e.code, e.who, e.source) for e in made.board.events if e.kind == "request"]
        assert ("ACCEPTED", "olaf", "mqtt") in told and ("DUPLICATE", "olaf", "mqtt") in told
        assert made.control.kinds == [RequestKind.READY]


# ---------------------------------------------------------------- accounts


async def accounts_of(folder: Path, **roles: str) -> tuple[Accounts, list[float]]:
    write_users(folder / "users", {name: new_account(name, role, "long enough") for name, role in roles.items()})
    clock = [1000.0]
    return Accounts(folder / "users", lambda: clock[0]), clock


async def test_sessions_end_by_time_by_idleness_and_with_the_account(tmp_path: Path) -> None:
    accounts, clock = await accounts_of(tmp_path, anna="operator", bert="operator")

    async def session() -> str:
        token = await accounts.login("anna", "long enough", "here")
        assert isinstance(token, str)
        assert accounts.session(token)
        return token

    token = await session()
    clock[0] += accounts_module.IDLE_S + 1.0
    assert accounts.session(token) is None
    token = await session()
    for _ in range(100):
        clock[0] += accounts_module.EXPIRY_S / 99.0
        accounts.session(token)
    assert accounts.session(token) is None
    for change in ({"bert": "operator"}, {"anna": "viewer"}):
        token = await session()
        write_users(tmp_path / "users", {name: new_account(name, role, "long enough") for name, role in change.items()})
        clock[0] += 2.0
        assert accounts.session(token) is None
        write_users(tmp_path / "users", {"anna": new_account("anna", "operator", "long enough")})
        clock[0] += 2.0
    # readable by others: nobody of it is known any more
    token = await session()
    (tmp_path / "users").chmod(0o644)
    clock[0] += 2.0
    assert accounts.session(token) is None
    assert isinstance(await accounts.login("anna", "long enough", "there"), Refused)


async def test_tokens_are_not_kept_and_sessions_are_bounded(tmp_path: Path) -> None:
    accounts, _ = await accounts_of(tmp_path, anna="viewer")
    tokens = [str(accounts.login_local(accounts.local_token)) for _ in range(500)]
    assert len(set(tokens)) == 500
    assert len(accounts._sessions) <= accounts_module.MOST_OF_USER
    assert accounts.session(tokens[-1]) and not accounts.session(tokens[0])
    assert not any(token in repr(accounts._sessions) for token in tokens)


async def test_wrong_passwords_are_slowed_for_that_user_and_address(tmp_path: Path) -> None:
    accounts, clock = await accounts_of(tmp_path, anna="viewer", bert="viewer")

    async def status(user: str, password: str, address: str = "here") -> int:
        outcome = await accounts.login(user, password, address)
        return outcome.status if isinstance(outcome, Refused) else 200

    assert [await status("anna", "wrong") for _ in range(5)] == [401, 401, 401, 429, 429]
    assert await status("anna", "long enough") == 429  # the right one has to wait, too
    assert await status("anna", "long enough", "elsewhere") == 200
    assert await status("bert", "long enough") == 200
    clock[0] += 1.1
    assert await status("anna", "wrong") == 401
    clock[0] += 1.1
    assert await status("anna", "wrong") == 429  # the wait doubles
    clock[0] += 60.0
    assert await status("anna", "long enough") == 200
    assert await status("anna", "wrong") == 401  # counted anew
    # one address with many names
    found = [await status(f"user{k}", "wrong", "spray") for k in range(25)]
    assert found[:20] == [401] * 20 and found[20:] == [429] * 5
    assert len(accounts._failures) <= accounts_module.MOST_FAILURES


async def test_a_login_does_not_hold_up_the_loop_and_few_wait_for_it(tmp_path: Path) -> None:
    accounts, _ = await accounts_of(tmp_path, anna="viewer")
    logins = [asyncio.create_task(accounts.login("anna", "long enough", f"{k}")) for k in range(40)]
    turns = 0
    while not all(login.done() for login in logins):
        await asyncio.sleep(0)
        turns += 1
    outcomes = [login.result() for login in logins]
    assert sum(isinstance(outcome, str) for outcome in outcomes) == accounts_module.HASHES_WAITING
    assert all(outcome.status == 429 for outcome in outcomes if isinstance(outcome, Refused))
    assert turns > 20


async def test_an_unknown_user_costs_as_much_hashing_as_a_known_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts, _ = await accounts_of(tmp_path, anna="viewer")
    verified: list[str] = []
    real = accounts_module._hasher.verify

    class Counting:
        def verify(self, known: str, password: str) -> bool:
            verified.append(known.split("$")[3])  # the cost parameters
            return real(known, password)

        hash = accounts_module._hasher.hash

    monkeypatch.setattr(accounts_module, "_hasher", Counting())
    for user in ("anna", "nobody", "x" * 64):
        assert isinstance(await accounts.login(user, "wrong", user), Refused)
    assert isinstance(await accounts.login("anna", "x" * 100_000, "long"), Refused)
    assert len(verified) == 4 and len(set(verified)) == 1


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("[users.anna]\nrole = 'king'\nhash = ''", 0o600, "role"),
        ("[users.anna]\nrole = 'viewer'\nhash = 'plain'", 0o600, "hash"),
        ("[users.anna]\nrole = 'viewer'", 0o600, "hash"),
        ("users = 3", 0o600, "users"),
        ("not toml", 0o600, "TOML"),
        ("", 0o640, "chmod 600"),
        ("", 0o602, "chmod 600"),
    ],
)
def test_a_users_file_that_is_wrong_says_where(tmp_path: Path, text: str, mode: int, words: str) -> None:
    path = tmp_path / "users"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=words) as refused:
        read_users(path)
    assert str(path) in str(refused.value)
    assert read_users(tmp_path / "none") == {}
