"""A whole run against the broker of deploy/mosquitto: TLS, passwords, list of rights, and requests over it."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from controller.records import Mode
from tests.deploy import guarded
from tests.gateway.bench import ROOT, wait_until
from tests.hil.stand import System
from tests.machines import free_port, own_site

SECRET = "anna's own password"


def site_of(folder: Path, port: int, page: int) -> str:
    secret = folder / "password"
    secret.touch(0o600)
    secret.write_text(guarded.PASSWORDS["gateway-alpha"])
    text = own_site(folder, mqtt=port).replace('name = "simulation"', 'name = "alpha"')
    text = re.sub(r"(?ms)^\[(web|mqtt|broker)\].*?(?=^\[)", "", text)
    return text + (
        f'\n[web]\nport = {page}\nusers = "{folder}/users.toml"\n\n[mqtt]\nhost = "localhost"\nport = {port}\n'
        f'user = "gateway-alpha"\npassword_file = "{secret}"\n\n[mqtt.tls]\nca = "{folder}/ca.crt"\n'
    )


def test_requests_over_the_guarded_broker(tmp_path: Path):
    port, page = free_port(), free_port()
    guarded.make_certificates(tmp_path, "localhost")
    guarded.start(tmp_path, port)
    (tmp_path / "site.toml").write_text(site_of(tmp_path, port, page))
    add = [sys.executable, "-m", "controller", "user", "add", str(tmp_path / "site.toml"), "anna", "--role", "operator"]
    subprocess.run(add, input=f"{SECRET}\n", text=True, check=True, capture_output=True, cwd=ROOT)
    system = System(tmp_path, "--json")
    users = {name: guarded.Client(tmp_path, port, name) for name in ("anna", "bert", "dashboard")}
    try:
        system.said("start → OFF")
        wait_until(lambda: b'"online":true' in b"".join(users["dashboard"].heard))
        login = json.dumps({"user": "anna", "password": SECRET, "bearer": True}).encode()
        at = urllib.request.Request(f"http://127.0.0.1:{page}/api/login", login, {"Content-Type": "application/json"})
        with urllib.request.urlopen(at, timeout=20.0) as answer:
            token = json.load(answer)["token"]
        asked, seen = 0, set[bytes]()

        def ask(of: str, kind: str, retain: bool = False, **changes: Any) -> dict:
            nonlocal asked
            asked += 1
            request = {"id": f"r{asked}", "kind": kind, "deadline_t": time.time() + 5.0, "token": token} | changes
            sent = users[of]._client.publish(f"pkm/alpha/request/{of}", json.dumps(request), 1, retain)
            wait_until(lambda: sent.mid in users[of].answers)
            if users[of].answers[sent.mid] >= 128:
                return {"verdict": "the broker refuses it"}
            # what the broker kept is not even parsed: the answer has no id
            end = b"never retained" if retain else f'"id":"{request["id"]}"'.encode()
            replies = wait_until(
                lambda: [p for p in list(users[of].heard) if end in p and b'"verdict"' in p and p not in seen]
            )
            seen.update(replies)
            return json.loads(replies[0])

        def mode() -> str:
            states = [json.loads(p) for p in list(users["dashboard"].heard) if b'"requests_refused"' in p]
            return max(states, key=lambda state: state["t"])["mode"]

        assert ask("anna", "ready", token="")["verdict"] == "UNKNOWN_USER"
        assert ask("bert", "ready")["verdict"] == "UNKNOWN_USER"  # the token is anna's
        assert ask("dashboard", "ready")["verdict"] == "the broker refuses it"
        assert ask("anna", "ready", deadline_t=time.time() - 1.0)["verdict"] == "EXPIRED"
        assert (
            ask("anna", "ready", retain=True)["text"] == "It was retained by the broker: a request is never retained."
        )
        assert ask("anna", "tare")["verdict"] == "FORBIDDEN"
        assert mode() == Mode.OFF.name
        assert ask("anna", "ready")["verdict"] == "ACCEPTED"
        wait_until(lambda: mode() == Mode.READY.name)
        assert ask("anna", "ready", id="r7")["verdict"] == "DUPLICATE"
        wait_until(lambda: any(b'"requests_refused":6' in payload for payload in list(users["dashboard"].heard)))
        told = [json.loads(p) for p in list(users["dashboard"].heard) if b'"kind":"request"' in p]
        assert {(event["who"], event["source"]) for event in told} >= {("anna", "mqtt"), ("bert", "mqtt")}
        assert token.encode() not in b"".join(users["dashboard"].heard)
    finally:
        for user in users.values():
            user.close()
        system.process.terminate()
        code = system.ends()
    assert code == 0, system.log.read_text()
    log = system.log.read_text()
    assert guarded.PASSWORDS["gateway-alpha"] not in log and SECRET not in log and token not in log
