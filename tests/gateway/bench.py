"""Synthetic sessions, gateways and brokers as children of the test, and an independent MQTT client."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import paho.mqtt.client as paho
import pytest

from controller import schema
from controller.gateway.mqtt import broker
from controller.records import Array, Channel, channels

ROOT = Path(__file__).parents[2]
LEGS = 6
CELLS = [f"cell_{i}" for i in range(1, LEGS + 1)]
COLUMNS = [channel.name for channel in channels(LEGS, CELLS)]
AT = {name: k for k, name in enumerate(COLUMNS)}
CHILDREN: list[subprocess.Popen[Any]] = []  # of the running test
STARTED_UNIX_S = 1_700_000_000.25


def make_meta(session: str = "boot1", table: list[Channel] | None = None) -> dict[str, Any]:
    return {
        "session": session, "site": "bench", "version": "0.1.0", "started_unix_s": STARTED_UNIX_S,
        "started_monotonic_s": time.monotonic(), "rate_hz": 100.0, "legs": LEGS, "limits": {"speed_m_s": [0.5]},
        "channels": [list(channel) for channel in table or channels(LEGS, CELLS)], "configuration_sha256": "0" * 64,
        "machine_toml": 'name = "märchen"\n', "site_toml": 'name = "bench"\n',
    }  # fmt: skip


def make_rows(count: int, first: int = 0) -> Array:
    """A running controller: row k is the same whatever `first` is asked for."""
    k = np.arange(first, first + count)
    noise = np.random.default_rng(7).normal(size=(4000, len(COLUMNS)))
    rows = noise[k % 4000] * np.exp2(k % 40 - 20.0)[:, None]
    rows[:, AT["tick"]] = k
    rows[:, AT["t_s"]] = k * 0.01
    for name, value in {
        "link": 2, "mode": 2, "faults": 0, "limits": 0, "answer_id": 0, "verdict": 0, "request_kind": 0, "skipped": 0
    }.items():  # fmt: skip
        rows[:, AT[name]] = value
    return rows


def make_site(folder: Path, port: int = 1, **mqtt: Any) -> schema.Site:
    site = {
        "name": "bench", "machine": "machine.toml", "ads": {"ams_net_id": "127.0.0.1.1.1", "address": "127.0.0.1:1"},
        "ring": {"path": str(folder / "ring")}, "requests": {"path": str(folder / "requests")}, "web": {"port": 0},
        "mqtt": {"port": port, **mqtt}, "recording": {"folder": str(folder / "recordings")},
    }  # fmt: skip
    return msgspec.convert(site, schema.Site)


def wait_until(what: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Poll until it is true; the limit is only there to fail instead of hanging."""
    limit = time.monotonic() + seconds
    while not (value := what()):
        if time.monotonic() > limit:
            pytest.fail(f"still not true after {seconds} s: {what}")
        time.sleep(0.02)
    return value


def start_gateway(site: schema.Site, log: Path = Path(os.devnull)) -> subprocess.Popen[str]:
    """A gateway in a process of its own; it prints its summary as JSON."""
    code = (
        "import asyncio, json, msgspec, pathlib, sys\nfrom controller import schema\n"
        "from controller.gateway import service\n"
        "site = msgspec.json.decode(sys.argv[1], type=schema.Site)\n"
        "print(json.dumps(asyncio.run(service.run(site, ring_path=pathlib.Path(site.ring.path)))))"
    )
    command = [sys.executable, "-c", code, msgspec.json.encode(site).decode()]
    with log.open("w") as errors:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)
    CHILDREN.append(process)
    return process


def start_broker(port: int, folder: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(broker.command("127.0.0.1", port, folder), cwd=ROOT, stderr=subprocess.DEVNULL)
    CHILDREN.append(process)
    wait_until(lambda: accepts(port))
    return process


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def stop(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()
    if process.stdout:
        process.stdout.close()


class Listener:
    """An independent MQTT client that keeps everything it hears, topics without their prefix pkm/<site>/."""

    def __init__(self, number: int, site: str = "bench") -> None:
        self._prefix = f"pkm/{site}/"
        self.heard: list[tuple[str, Any, bool, int]] = []  # topic, payload, retained, QoS
        self.longest: dict[str, int] = {}
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2)
        self._client.reconnect_delay_set(0.1, 0.1)
        self._client.on_connect = lambda client, *_: client.subscribe("pkm/#", 1)
        self._client.on_message = self._on_message
        self.subscribed = threading.Event()
        self._client.on_subscribe = lambda *_: self.subscribed.set()
        self._client.connect("127.0.0.1", number)
        self._client.loop_start()
        assert self.subscribed.wait(10.0)

    def _on_message(self, _client: Any, _data: Any, message: Any) -> None:
        topic = message.topic.removeprefix(self._prefix)

        def no_nan(constant: str) -> None:
            raise AssertionError(f"{constant} in {topic}")

        self.longest[topic] = max(self.longest.get(topic, 0), len(message.payload))
        try:
            payload = json.loads(message.payload, parse_constant=no_nan)
        except (AssertionError, ValueError, RecursionError) as error:
            payload = error
        self.heard.append((topic, payload, message.retain, message.qos))

    def payloads(self, topic: str) -> list[Any]:
        return [payload for name, payload, _, _ in list(self.heard) if name == topic]

    def sequence(self) -> list[int]:
        return [sample["seq"] for batch in self.payloads("telemetry/batch") for sample in batch]

    def codes(self, kind: str) -> list[str]:
        return [event["code"] for event in self.payloads("event") if event["kind"] == kind]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
