"""Requests over a real broker: all that comes reaches the judgement as it came, nothing that comes does harm."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import paho.mqtt.client as paho
import psutil
import pytest

from controller.gateway.mqtt.client import MOST_BYTES, PACKET_BYTES, WAITING_OF_TOPIC
from controller.gateway.mqtt.publisher import Publisher
from controller.ring import RingReader, RingWriter
from tests.gateway.bench import COLUMNS, Listener, make_meta, make_rows, make_site

Listen = Callable[[int], Listener]


class Reply(msgspec.Struct):
    verdict: str
    heard: str


class Came(NamedTuple):
    raw: bytes
    who: str
    source: str
    retained: bool


class Judge:
    """Accepts what is JSON; chokes on "poison"."""

    def __init__(self) -> None:
        self.came: list[Came] = []
        self.open = asyncio.Event()
        self.open.set()

    async def admit(self, raw: bytes, *, who: str, source: str, retained: bool) -> Reply:
        self.came.append(Came(raw, who, source, retained))
        await self.open.wait()
        if raw == b"poison":
            raise RuntimeError("what nobody thought of")
        return Reply("ACCEPTED" if raw.startswith(b"{") else "MALFORMED", raw[:20].decode(errors="replace"))


async def until(what: Callable[[], Any]) -> Any:
    end_s = time.monotonic() + 30.0
    while not (value := what()):
        assert time.monotonic() < end_s, "still not true"
        await asyncio.sleep(0.02)
    return value


@asynccontextmanager
async def published(folder: Path, port: int, session: str = "boot1", **mqtt: Any) -> AsyncIterator[Any]:
    ring = RingWriter(folder / "ring", len(COLUMNS), 12_000, make_meta(session))
    for row in make_rows(50):
        ring.push(row)
    judge = Judge()
    publisher = Publisher(make_site(folder, port, **mqtt), RingReader(folder / "ring"), judge)
    running = asyncio.create_task(publisher.run())
    try:
        yield publisher, judge, ring
    finally:
        publisher.finish("the test is over")
        await asyncio.wait_for(running, 20.0)
        ring.close()


def client(port: int, **options: Any) -> paho.Client:
    made = paho.Client(paho.CallbackAPIVersion.VERSION2, **options)
    made.connect("127.0.0.1", port)
    made.loop_start()
    return made


@pytest.fixture
def send(port: int) -> Any:
    made = client(port)

    def send(who: str, payload: bytes, retain: bool = False) -> None:
        made.publish(f"pkm/bench/request/{who}", payload, 1, retain).wait_for_publish(20.0)

    yield send
    made.disconnect()
    made.loop_stop()


Send = Callable[..., None]


async def test_a_request_and_its_reply(tmp_path: Path, port: int, send: Send, listen: Listen):
    ear = listen(port)
    async with published(tmp_path, port) as (publisher, judge, _):
        await until(lambda: publisher.connected)
        payloads = [b'{"id": 1}', b"", b"no JSON", b"\xff\x00", b"[" * MOST_BYTES]
        for payload in payloads:
            await asyncio.to_thread(send, "anna", payload)
        await asyncio.to_thread(send, "bert", b'{"id": 2}')
        for odd in ("", "anna/more"):  # nobody, and another topic
            await asyncio.to_thread(send, odd, b"{}")
        await until(lambda: ear.payloads("response/bert"))
        assert [came.raw for came in judge.came] == [*payloads, b'{"id": 2}']
        assert [came.who for came in judge.came] == ["anna"] * 5 + ["bert"]
        assert all(came.source == "mqtt" and not came.retained for came in judge.came)
        replies = [message for message in ear.heard if message[0].startswith("response/")]
        assert [topic for topic, *_ in replies] == ["response/anna"] * 5 + ["response/bert"]
        assert all(not retained and qos == 1 for *_, retained, qos in replies)
        assert replies[0][1] == {"verdict": "ACCEPTED", "heard": '{"id": 1}'}
        assert (publisher.requests_refused, publisher.requests_poison, publisher.requests_dropped) == (4, 0, 0)


async def test_a_retained_request_is_seen_as_one_whenever_it_comes(tmp_path: Path, port: int, send: Send):
    send("anna", b'{"old": 1}', retain=True)  # before there is a gateway
    async with published(tmp_path, port) as (publisher, judge, _):
        await until(lambda: publisher.connected and judge.came)
        await asyncio.to_thread(send, "bert", b'{"new": 1}', retain=True)
        await asyncio.to_thread(send, "carl", b'{"right": 1}')
        await until(lambda: len(judge.came) == 3)
        assert [(came.who, came.retained) for came in judge.came] == [("anna", True), ("bert", True), ("carl", False)]


async def test_an_old_broker_cannot_tell_but_does_at_the_next_connection(tmp_path: Path, port: int, send: Send):
    async with published(tmp_path, port, version="3.1.1") as (publisher, judge, _):
        await until(lambda: publisher.connected)
        await asyncio.to_thread(send, "anna", b"{}", retain=True)
        assert [came.retained for came in await until(lambda: judge.came)] == [False]
    async with published(tmp_path, port, version="3.1.1") as (_, judge, _ring):
        assert [came.retained for came in await until(lambda: judge.came)] == [True]


async def test_what_is_too_large_or_poison_is_counted_and_the_next_one_answered(
    tmp_path: Path, port: int, send: Send, listen: Listen
):
    ear = listen(port)
    async with published(tmp_path, port) as (publisher, judge, _):
        await until(lambda: publisher.connected)
        for payload in (bytes(MOST_BYTES + 1), bytes(PACKET_BYTES), bytes(200_000), b"poison", b"poison", b'{"id": 3}'):
            await asyncio.to_thread(send, "anna", payload)
        await until(lambda: ear.payloads("response/anna"))
        assert [came.raw for came in judge.came] == [b"poison", b"poison", b'{"id": 3}']
        assert publisher.requests_poison == 2
        assert publisher.requests_dropped == 1  # the broker keeps the larger ones: the gateway asked it to
        state = await until(lambda: [s for s in ear.payloads("state") if s["requests_poison"] == 2])
        assert (state[-1]["requests_dropped"], state[-1]["requests_refused"]) == (1, 0)


async def test_a_flood_of_one_user_costs_no_memory_and_leaves_room_for_others(
    tmp_path: Path, port: int, listen: Listen
):
    ear, flooding = listen(port), client(port)
    async with published(tmp_path, port) as (publisher, judge, ring):
        await until(lambda: publisher.connected)
        judge.open.clear()  # nobody judges: everything piles up
        before = psutil.Process().memory_info().rss
        flooding.publish("pkm/bench/request/eve", b"{}", 1)
        await until(lambda: judge.came)
        for _ in range(500):
            flooding.publish("pkm/bench/request/eve", b"{" + bytes(8000), 0)
            await asyncio.sleep(0)
        flooding.publish("pkm/bench/request/anna", b'{"kind": "stop"}', 1)
        await until(lambda: publisher.requests_dropped > 100)
        ring.push(make_rows(1)[0])  # telemetry goes on
        await until(lambda: 50 in ear.sequence())
        judge.open.set()
        await until(lambda: ear.payloads("response/anna"))
        assert psutil.Process().memory_info().rss - before < 30e6
        assert len(judge.came) < 50
        await until(lambda: "requests_dropped" in ear.codes("publishing"))
    flooding.disconnect()
    flooding.loop_stop()


def test_one_user_takes_no_more_than_a_few_places():
    assert WAITING_OF_TOPIC * 8 < 100


async def test_without_a_judge_nothing_is_subscribed(tmp_path: Path, port: int, send: Send):
    ring = RingWriter(tmp_path / "ring", len(COLUMNS), 1000, make_meta())
    ring.push(make_rows(1)[0])
    publisher = Publisher(make_site(tmp_path, port), RingReader(tmp_path / "ring"))
    running = asyncio.create_task(publisher.run())
    await until(lambda: publisher.connected)
    await asyncio.to_thread(send, "anna", bytes(MOST_BYTES + 1))
    await asyncio.to_thread(send, "anna", b"poison")
    publisher.finish("over")
    await asyncio.wait_for(running, 20.0)
    assert (publisher.requests_dropped, publisher.requests_poison) == (0, 0)
    ring.close()


# ------------------------------------------------------------------ two controllers with one name


async def test_of_two_controllers_the_later_one_steps_aside(tmp_path: Path, port: int, send: Send, listen: Listen):
    ear = listen(port)
    async with published(tmp_path / "a", port, "20260101T000000Z-aaaa") as (first, judge, _):
        await until(lambda: ear.payloads("meta"))
        async with published(tmp_path / "b", port, "20260102T000000Z-bbbb") as (second, other_judge, ring):
            await until(lambda: ear.payloads(f"{second.name}/state"))
            await until(lambda: any(s["rival"] == second.name for s in ear.payloads("state")))
            await until(lambda: any(s["rival"] == first.name for s in ear.payloads(f"{second.name}/state")))
            for row in make_rows(20, 50):
                ring.push(row)
            there = f"{second.name}/telemetry/batch"
            await until(lambda: any(sample["seq"] == 69 for batch in ear.payloads(there) for sample in batch))
            # what was said under the site's name is the first one's alone
            assert {state["gateway"] for state in ear.payloads("state")} == {first.name}
            assert {meta["session"] for meta in ear.payloads("meta")} == {"20260101T000000Z-aaaa"}
            assert ear.sequence() == list(range(50))
            # both are told, in the recording and the page, too
            assert await until(lambda: "rival" in ear.codes("publishing"))
            aside = await until(lambda: [e for e in ear.payloads(f"{second.name}/event") if e["code"] == "rival"])
            assert f"this one publishes below pkm/bench/{second.name} and takes no requests" in aside[0]["text"]
            await asyncio.to_thread(send, "anna", b"{}")
            await until(lambda: judge.came)
            assert not other_judge.came
            # whoever steps aside leaves nothing behind at the broker
            late = listen(port)
            await until(lambda: late.payloads("state") and late.payloads("meta"))
            assert {topic for topic, _, retained, _ in late.heard if retained} == {"state", "meta"}
        await until(lambda: "alone" in ear.codes("publishing"))
        assert ear.payloads("state")[-1]["connected"]


async def test_when_the_first_one_is_gone_the_other_takes_its_place(
    tmp_path: Path, port: int, send: Send, listen: Listen
):
    ear = listen(port)
    async with published(tmp_path / "b", port, "20260102T000000Z-bbbb") as (second, judge, _):
        async with published(tmp_path / "a", port, "20260101T000000Z-aaaa") as (first, *_):
            await until(lambda: second.rival == first.name)
            await until(lambda: ear.payloads(f"{second.name}/state"))
        await until(lambda: ear.payloads("state")[-1]["gateway"] == second.name)
        await until(lambda: ear.payloads("state")[-1]["connected"])
        await until(lambda: ear.payloads("meta")[-1]["session"] == "20260102T000000Z-bbbb")
        await until(lambda: second.connected and not second.rival)
        await asyncio.sleep(1.0)
        await asyncio.to_thread(send, "anna", b"{}")
        await until(lambda: judge.came)


async def test_an_old_state_of_a_gateway_that_vanished_does_not_keep_the_next_one_away(
    tmp_path: Path, port: int, listen: Listen
):
    left = client(port)
    state = {"online": True, "connected": True, "gateway": "20200101T000000Z-0000-ffff"}
    left.publish("pkm/bench/state", json.dumps(state), 1, True).wait_for_publish(20.0)
    left.disconnect()
    left.loop_stop()
    ear = listen(port)
    async with published(tmp_path, port) as (publisher, *_):
        await until(lambda: any(state["gateway"] == publisher.name for state in ear.payloads("state")[-1:]))
        assert publisher.rival is None


async def test_states_that_are_no_states_do_nothing(tmp_path: Path, port: int):
    odd = client(port)
    async with published(tmp_path, port) as (publisher, *_):
        await until(lambda: publisher.connected)
        for payload in (b"", b"null", b"[" * 5000, b'{"gateway": 7}', b'{"connected": "yes"}', b"\xff", b"{}"):
            odd.publish("pkm/bench/state", payload, 1)
        for k in range(100):  # more names than anybody remembers
            odd.publish(f"pkm/bench/z{k}/state", json.dumps({"gateway": f"z{k}", "connected": True}), 1)
        await until(lambda: publisher.requests_poison >= 5)
        await until(lambda: publisher.rival)
        assert len(publisher._rivals) <= 16
        assert not publisher._aside
    odd.disconnect()
    odd.loop_stop()


async def test_a_stranger_with_the_same_client_name_starts_no_war(tmp_path: Path, port: int):
    async with published(tmp_path, port) as (publisher, *_):
        await until(lambda: publisher.connected)
        came: list[float] = []
        stranger = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=f"pkm-bench-{publisher.name}")
        stranger.reconnect_delay_set(0.05, 0.05)
        stranger.on_connect = lambda *_: came.append(time.monotonic())
        stranger.connect("127.0.0.1", port)
        stranger.loop_start()
        await asyncio.sleep(5.0)
        assert 1 <= len(came) < 12  # 100 and more if each came back at once
        stranger.disconnect()
        stranger.loop_stop()
        await until(lambda: publisher.connected)
