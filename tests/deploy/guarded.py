"""mosquitto as deploy/mosquitto sets it up, in a folder and at a port of the test's own."""

import getpass
import os
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho

from controller.gateway.mqtt import broker
from tests.gateway.bench import CHILDREN, ROOT, accepts, wait_until

DEPLOY = ROOT / "deploy" / "mosquitto"
PASSWORDS = {name: f"{name}'s own" for name in ("gateway-alpha", "gateway-beta", "anna", "bert", "dashboard")}


def make_certificates(folder: Path, *hosts: str, days: int = 730) -> None:
    script = [str(DEPLOY / "certificates.sh"), str(folder), *hosts]
    subprocess.run(script, check=True, capture_output=True, env={**os.environ, "DAYS": str(days)})


def make_users(file: Path, passwords: dict[str, str]) -> None:
    file.write_text("".join(f"{name}:{password}\n" for name, password in passwords.items()))
    file.chmod(0o600)
    subprocess.run(["mosquitto_passwd", "-U", str(file)], check=True, capture_output=True)


def start(folder: Path, port: int, replace: dict[str, str] | None = None) -> subprocess.Popen[Any]:
    """The broker of sites alpha and beta; certificates must be in `folder`, the rest is made."""
    rules = (DEPLOY / "pkm.acl").read_text()
    assert rules.count("simulation") == 2
    of_beta = "\nuser gateway-beta\ntopic readwrite pkm/beta/#\n"
    (folder / "pkm.acl").write_text(rules.replace("simulation", "alpha").replace("\n# A dash", f"{of_beta}\n# A dash"))
    make_users(folder / "users", PASSWORDS)
    text = (DEPLOY / "pkm.conf").read_text()
    changes = {
        "/etc/mosquitto/pkm": str(folder),
        "user mosquitto": f"user {getpass.getuser()}",
        "listener 8883": f"listener {port} 127.0.0.1",
    }
    for old, new in (changes | (replace or {})).items():
        assert old in text
        text = text.replace(old, new)
    (folder / "pkm.conf").write_text(text)
    (folder / "pkm.acl").chmod(0o600)
    program = broker.mosquitto()
    assert program
    with (folder / "broker.log").open("a") as log:
        process = subprocess.Popen([program, "-c", str(folder / "pkm.conf")], stderr=log)
    CHILDREN.append(process)
    wait_until(lambda: accepts(port) or process.poll() is not None)
    assert process.poll() is None, (folder / "broker.log").read_text()
    return process


class Client:
    """An independent client that reads all it is given and tries to write."""

    def __init__(self, folder: Path, port: int, user: str | None, password: str | None = None) -> None:
        self.heard: set[bytes] = set()
        self.answers: dict[int, int] = {}
        self.code: int | None = None
        self._ready = threading.Event()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.tls_set(str(folder / "ca.crt"), tls_version=ssl.PROTOCOL_TLS_CLIENT)
        if user:
            self._client.username_pw_set(user, PASSWORDS[user] if password is None else password)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self._ready.set()
        self._client.on_message = lambda _client, _data, message: self.heard.add(message.payload)
        self._client.on_publish = lambda _client, _data, mid, code, _more: self.answers.update({mid: code.value})
        self._client.connect("localhost", port)
        self._client.loop_start()
        assert self._ready.wait(20.0)

    def _on_connect(self, client: paho.Client, _data: object, _flags: object, code: object, _more: object) -> None:
        self.code = code.value
        if self.code == 0:
            client.subscribe([("#", 1), ("$SYS/#", 0)])
        else:
            self._ready.set()

    def write(self, topic: str) -> bool:
        told = self._client.publish(topic, f"{id(self)} {topic}", 1)
        wait_until(lambda: told.mid in self.answers)
        return self.answers[told.mid] < 128

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
