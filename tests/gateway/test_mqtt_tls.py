"""Credentials and TLS against a real broker: what is right works, what is wrong is one plain sentence."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller import schema
from controller.errors import ConfigurationError
from controller.gateway.mqtt.credentials import check
from controller.ring import RingWriter
from tests.deploy import guarded
from tests.gateway.bench import (
    CHILDREN,
    COLUMNS,
    ROOT,
    make_meta,
    make_rows,
    make_site,
    start_broker,
    start_gateway,
    wait_until,
)
from tests.machines import free_port, own_site

USER = "gateway-alpha"


@pytest.fixture
def port(tmp_path: Path) -> int:
    number = free_port()
    guarded.make_certificates(tmp_path, "localhost")
    guarded.start(tmp_path, number)
    return number


@pytest.fixture
def deaf() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def secret(file: Path, text: str) -> str:
    file.touch(0o600)
    file.write_text(text)
    return str(file)


def site_of(folder: Path, port: int, tls: dict[str, str] | None, user: str = USER, password: str = "") -> schema.Site:
    """A site alpha in a folder of its own, with a ring that waits to be read."""
    folder.mkdir(exist_ok=True)
    file = secret(folder / "password", f"{password or guarded.PASSWORDS[user]}\nnot this line\n")
    site = make_site(folder, port, host="localhost", user=user, password_file=file, tls=tls)
    ring = RingWriter(Path(site.ring.path), len(COLUMNS), 1000, make_meta())
    for row in make_rows(100):
        ring.push(row)
    return msgspec.structs.replace(site, name="alpha")


def test_a_gateway_with_password_and_tls(tmp_path: Path, port: int):
    reader = guarded.Client(tmp_path, port, "dashboard")
    gateway = start_gateway(site_of(tmp_path / "site", port, {"ca": str(tmp_path / "ca.crt")}))
    wait_until(lambda: any(b'"seq":99,' in payload for payload in list(reader.heard)))
    gateway.kill()
    wait_until(lambda: any(b"the connection to the gateway broke" in payload for payload in list(reader.heard)))
    reader.close()


def test_the_name_in_the_certificate_may_be_another_than_the_host(tmp_path: Path):
    port = free_port()
    guarded.make_certificates(tmp_path, "broker.example")
    guarded.start(tmp_path, port)
    tls = {"ca": str(tmp_path / "ca.crt"), "server_name": "broker.example"}
    log = tmp_path / "broker.log"
    start_gateway(site_of(tmp_path / "right", port, tls))
    wait_until(lambda: "as pkm-alpha-boot1" in log.read_text())


def test_a_broker_that_asks_for_certificates(tmp_path: Path):
    port = free_port()
    guarded.make_certificates(tmp_path, "localhost")
    guarded.start(tmp_path, port, {"allow_anonymous false": "allow_anonymous false\nrequire_certificate true"})
    own = tmp_path / "own"
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "own.key", "-subj", "/CN=x"]
    by = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"]
    for line in (["req", "-new", *key, "-out", "own.csr"], ["x509", "-req", "-in", "own.csr", *by, "-out", "own.crt"]):
        subprocess.run(["openssl", *line], cwd=tmp_path, check=True, capture_output=True)
    tls = {"ca": str(tmp_path / "ca.crt"), "certificate": f"{own}.crt", "key": f"{own}.key"}
    log = tmp_path / "broker.log"
    start_gateway(site_of(tmp_path / "right", port, tls))
    wait_until(lambda: "as pkm-alpha-boot1" in log.read_text())
    log = tmp_path / "log"
    start_gateway(site_of(tmp_path / "without", port, {"ca": tls["ca"]}), log)
    wait_until(lambda: "and does it want no certificate?" in log.read_text())


def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, port: int, deaf: socket.socket):
    guarded.make_certificates(tmp_path / "other", "localhost")
    guarded.make_certificates(tmp_path / "expired", "localhost", days=-1)
    guarded.make_certificates(tmp_path / "host", "broker.example")
    plain, expired, host = free_port(), free_port(), free_port()
    start_broker(plain, tmp_path)
    guarded.start(tmp_path / "expired", expired)
    guarded.start(tmp_path / "host", host)

    def ca(folder: str = "") -> dict[str, str]:
        return {"ca": str(tmp_path / folder / "ca.crt")}

    own = f"MQTT broker localhost:{port}: "
    cases: dict[str, tuple[schema.Site, str]] = {
        "another authority": (
            site_of(tmp_path / "1", port, ca("other")),
            own + "its certificate is not signed by an authority that mqtt.tls.ca names",
        ),
        "authorities of the system": (
            site_of(tmp_path / "2", port, {}),
            own + "its certificate is not signed by an authority that mqtt.tls.ca names",
        ),
        "expired": (
            site_of(tmp_path / "3", expired, ca("expired")),
            "its certificate has expired, or the clock here is wrong",
        ),
        "another host": (
            site_of(tmp_path / "4", host, ca("host")),
            "its certificate is that of another host: see mqtt.host and mqtt.tls.server_name",
        ),
        "wrong password": (
            site_of(tmp_path / "5", port, ca(), password="not the one"),
            own + "this user may not connect, or user or password is wrong",
        ),
        "TLS to a plain port": (
            site_of(tmp_path / "6", plain, ca()),
            ": is this a port with TLS, and does it want no certificate?",
        ),
        "plain to a TLS port": (
            site_of(tmp_path / "7", port, None),
            own + "it did not answer in time: is this a port without TLS?",
        ),
        "never answers": (
            site_of(tmp_path / "8", deaf.getsockname()[1], ca()),
            "it did not answer in time: is this a port with TLS",
        ),
        "nobody there": (site_of(tmp_path / "9", free_port(), None), "nothing listens there"),
        "may not publish": (
            site_of(tmp_path / "10", port, ca(), "anna"),
            "The MQTT broker takes messages of user anna but does not pass them on: may it publish?",
        ),
    }
    told = {name: tmp_path / f"told {name}" for name in cases}
    code = (
        "import asyncio, msgspec, pathlib, sys\nfrom controller import schema\n"
        "from controller.gateway.mqtt.publisher import Publisher\nfrom controller.ring import RingReader\n"
        "def writer(name): return lambda event: print(event.text, file=pathlib.Path(name).open('a'), flush=True)\n"
        "async def run():\n"
        "    publishers = []\n"
        "    for site, name in msgspec.json.decode(sys.argv[1], type=list[tuple[schema.Site, str]]):\n"
        "        publisher = Publisher(site, RingReader(pathlib.Path(site.ring.path)))\n"
        "        publisher.tell = writer(name)\n"
        "        publishers.append(publisher)\n"
        "    await asyncio.gather(*(publisher.run() for publisher in publishers))\n"
        "asyncio.run(run())"
    )
    sites = msgspec.json.encode([(cases[name][0], str(told[name])) for name in cases])
    log = tmp_path / "log"
    with log.open("w") as errors:
        process = subprocess.Popen([sys.executable, "-c", code, sites], cwd=ROOT, stderr=errors)
    CHILDREN.append(process)

    def said(name: str) -> str:
        return told[name].read_text() if told[name].exists() else ""

    for name, (_, sentence) in cases.items():
        wait_until(lambda name=name, sentence=sentence: sentence in said(name), 60.0)
    wait_until(lambda: log.read_text().count("\n") >= len(cases))
    for name in cases:
        assert len(said(name).splitlines()) == 1, said(name)  # not once more each time
    everything = log.read_text() + "".join(map(said, cases))
    assert "Traceback" not in everything
    assert "'s own" not in everything and "not the one" not in everything  # no password


KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "no user": ({"password_file": "right"}, "mqtt.user: found none"),
    "no file": ({"user": "u", "password_file": "none"}, "mqtt.password_file: {}/none: No such file"),
    "a folder": ({"user": "u", "password_file": "."}, "mqtt.password_file: {}"),
    "open to others": ({"user": "u", "password_file": "open"}, "(mode 0644), expected one for its owner only: chmod"),
    "empty": ({"user": "u", "password_file": "empty"}, "found nothing in its first line"),
    "no text": ({"user": "u", "password_file": "binary"}, "not a text file"),
    "no CA": ({"tls": {"ca": "none"}}, "mqtt.tls.ca: {}/none: No such file"),
    "no PEM": ({"tls": {"ca": "right"}}, "mqtt.tls.ca: {}/right: found no such thing"),
    "no key": ({"tls": {"certificate": "broker.crt"}}, "mqtt.tls: found one of certificate and key"),
    "key open": ({"tls": {"certificate": "broker.crt", "key": "open"}}, "mqtt.tls.key: {}/open: found a file that"),
    "no certificate": ({"tls": {"certificate": "none", "key": "broker.key"}}, "mqtt.tls.certificate: {}/none: No such"),
    "another key": ({"tls": {"certificate": "broker.crt", "key": "ca.key"}}, "mqtt.tls.certificate: {}/broker.crt: "),
    "key with a password": ({"tls": {"certificate": "broker.crt", "key": "locked.key"}}, "its key without a password"),
}


@pytest.mark.parametrize("case", KEYS)
def test_wrong_keys_are_refused_before_anything_starts(tmp_path: Path, case: str):
    guarded.make_certificates(tmp_path, "localhost")
    lock = ["openssl", "ec", "-aes256", "-passout", "pass:x", "-in", "broker.key", "-out", "locked.key"]
    subprocess.run(lock, cwd=tmp_path, check=True, capture_output=True)
    for name, text in {"right": "secret\n", "open": "secret\n", "empty": "\nsecret\n", "locked.key": None}.items():
        if text is not None:
            (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o644 if name == "open" else 0o600)
    (tmp_path / "binary").touch(0o600)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    keys, sentence = KEYS[case]

    def place(value: Any, key: str) -> Any:
        files = key in {"password_file", "ca", "certificate", "key"}
        return {k: place(v, k) for k, v in value.items()} if isinstance(value, dict) else (
            str(tmp_path / value) if files else value
        )  # fmt: skip

    mqtt = msgspec.convert(place(keys, ""), schema.Mqtt)
    with pytest.raises(ConfigurationError) as refused:
        check(mqtt, Path("site.toml"))
    assert str(refused.value).startswith("site.toml: mqtt.")
    assert sentence.format(tmp_path) in str(refused.value)
    assert "secret" not in str(refused.value)


def test_right_keys_are_not_refused(tmp_path: Path):
    guarded.make_certificates(tmp_path, "localhost")
    tls = {"ca": str(tmp_path / "ca.crt"), "certificate": f"{tmp_path}/broker.crt", "key": f"{tmp_path}/broker.key"}
    mqtt = {"user": "u", "password_file": secret(tmp_path / "password", "p"), "tls": tls}
    check(msgspec.convert(mqtt, schema.Mqtt), Path("site.toml"))
    check(schema.Mqtt(), Path("site.toml"))


def test_a_run_is_refused_with_the_sentence(tmp_path: Path):
    site = tmp_path / "site.toml"
    site.write_text(own_site(tmp_path).replace("[mqtt]\n", '[mqtt]\nuser = "u"\npassword_file = "nowhere"\n'))
    command = [sys.executable, "-m", "controller", "run", str(site), "--duration", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{site}: mqtt.password_file: nowhere: No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr
