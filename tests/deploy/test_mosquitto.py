"""The broker of deploy/mosquitto: every user tries to write and to read every topic."""

import contextlib
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.deploy import guarded
from tests.gateway.bench import wait_until
from tests.machines import free_port

TOLD = ("state", "meta", "event", "telemetry/live", "telemetry/batch")
USERS = ("anna", "bert", "dashboard", "gateway-alpha", "gateway-beta")
TOPICS = [
    *(f"pkm/{site}/{name}" for site in ("alpha", "beta") for name in TOLD),
    *(f"pkm/{site}/{way}/{user}" for site in ("alpha", "beta") for way in ("request", "response") for user in USERS),
    "pkm/alpha/other-name/state", "pkm/alpha/other-name/telemetry/live", "pkm/gamma/state", "pkm/state", "elsewhere",
    "pkm/alpha/request/anna/more", "pkm/alpha/request",
]  # fmt: skip


def may(user: str, topic: str) -> tuple[bool, bool]:
    """Whether a user may write and read a topic: the table of deploy/mosquitto/README.md."""
    parts = topic.split("/")
    if parts[0] != "pkm" or len(parts) < 3:
        return False, False
    own = user == f"gateway-{parts[1]}"
    if own:
        return True, True
    told, last = "/".join(parts[2:]), parts[-1]
    personal = len(parts) == 4 and user == last and user != "dashboard"
    return parts[2] == "request" and personal, told in TOLD or (parts[2] == "response" and personal)


@pytest.fixture
def broker(tmp_path: Path) -> int:
    port = free_port()
    guarded.make_certificates(tmp_path, "localhost")
    guarded.start(tmp_path, port)
    return port


def test_everybody_tries_everything(tmp_path: Path, broker: int):
    clients = {user: guarded.Client(tmp_path, broker, user) for user in USERS}
    wrong = list[str]()
    for user, client in clients.items():
        for topic in TOPICS:
            if client.write(topic) != may(user, topic)[0]:
                wrong.append(f"{user} writes {topic}: {client.answers}")
    expected = {
        reader: {
            f"{id(client)} {topic}".encode()
            for writer, client in clients.items()
            for topic in TOPICS
            if may(writer, topic)[0] and may(reader, topic)[1]
        }
        for reader in USERS
    }
    wait_until(lambda: all(len(clients[user].heard) >= len(expected[user]) for user in USERS))
    time.sleep(0.3)  # for what should not come
    for client in clients.values():
        client.close()
    assert not wrong
    assert {user: client.heard for user, client in clients.items()} == expected
    assert sum(map(len, expected.values())) > 80


@pytest.mark.parametrize(("user", "password"), [(None, None), ("anna", ""), ("anna", "bert's own"), ("eve", "x")])
def test_nobody_else_gets_in(tmp_path: Path, broker: int, user: str | None, password: str | None):
    client = guarded.Client(tmp_path, broker, user, password)
    client.close()
    assert client.code == 135
    assert not client.heard


def test_who_does_not_trust_the_authority_does_not_talk_to_it(tmp_path: Path, broker: int):
    guarded.make_certificates(tmp_path / "other", "localhost")
    for folder, trusted in ((tmp_path, True), (tmp_path / "other", False)):
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        with socket.create_connection(("127.0.0.1", broker)) as plain:
            expected = contextlib.nullcontext() if trusted else pytest.raises(ssl.SSLCertVerificationError)
            with expected, context.wrap_socket(plain, server_hostname="localhost") as line:
                assert line.version() in {"TLSv1.2", "TLSv1.3"}


def test_who_sends_a_large_message_is_thrown_out(tmp_path: Path, broker: int):
    other, gateway = guarded.Client(tmp_path, broker, "anna"), guarded.Client(tmp_path, broker, "gateway-alpha")
    lost = threading.Event()
    gateway._client.on_disconnect = lambda *_: lost.set()
    gateway._client.publish("pkm/alpha/state", bytes(300_000), 1)
    assert lost.wait(20.0)
    gateway.close()
    again = guarded.Client(tmp_path, broker, "gateway-alpha")
    again.write("pkm/alpha/state")
    wait_until(lambda: other.heard)
    for client in (other, again):
        client.close()
    assert other.heard == {f"{id(again)} pkm/alpha/state".encode()}


def test_the_script_keeps_the_authority_and_its_keys_to_itself(tmp_path: Path):
    guarded.make_certificates(tmp_path, "broker.example", "192.168.1.2")
    authority, certificate = (tmp_path / "ca.crt").read_bytes(), (tmp_path / "broker.crt").read_bytes()
    guarded.make_certificates(tmp_path, "broker.example")
    assert (tmp_path / "ca.crt").read_bytes() == authority
    assert (tmp_path / "broker.crt").read_bytes() != certificate
    for name in ("ca.key", "broker.key"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    check = ["openssl", "verify", "-CAfile", "ca.crt", "-verify_hostname", "broker.example", "broker.crt"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    check[5] = "other.example"
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode != 0
    alone = [str(guarded.DEPLOY / "certificates.sh"), str(tmp_path)]
    without = subprocess.run(alone, capture_output=True, text=True, check=False)
    assert (without.returncode, without.stdout) == (2, "")
    assert without.stderr.startswith("usage: ")


def test_what_is_too_large_for_the_gateway_stays_with_the_broker(tmp_path: Path, broker: int):
    properties = Properties(PacketTypes.CONNECT)
    properties.MaximumPacketSize = 1000  # what the gateway asks for: larger packets stay with the broker
    heard = list[bytes]()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.tls_set(str(tmp_path / "ca.crt"))
    client.username_pw_set("gateway-alpha", guarded.PASSWORDS["gateway-alpha"])
    client.on_connect = lambda client, *_: client.subscribe("pkm/alpha/request/+", 1)
    client.on_message = lambda _client, _data, message: heard.append(message.payload)
    subscribed = threading.Event()
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect("localhost", broker, properties=properties)
    client.loop_start()
    assert subscribed.wait(20.0)
    for payload in (bytes(2000), b"small"):
        client.publish("pkm/alpha/request/anna", payload, 1)
    wait_until(lambda: heard)
    client.disconnect()
    client.loop_stop()
    assert heard == [b"small"]
