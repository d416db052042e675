"""Both brokers start from their command line, on loopback only, and do what the gateway needs."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from controller.gateway.mqtt import broker
from controller.ring import RingWriter
from tests.gateway.bench import (
    COLUMNS,
    Listener,
    make_meta,
    make_rows,
    make_site,
    start_broker,
    start_gateway,
    stop,
    wait_until,
)
from tests.machines import free_port


@pytest.fixture(params=["mosquitto", "amqtt"])
def started(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[subprocess.Popen, int]]:
    if request.param == "amqtt" or broker.mosquitto() is None:
        monkeypatch.setattr(broker, "mosquitto", lambda: None)
        assert broker.command("127.0.0.1", 1, Path())[1:] == ["-m", "controller.gateway.mqtt.embedded_broker", "1"]
    port = free_port()
    process = start_broker(port, tmp_path)
    yield process, port
    stop(process)


def test_serves_a_gateway_on_loopback_only(
    started: tuple[subprocess.Popen, int], tmp_path: Path, listen: Callable[[int], Listener]
):
    process, port = started
    sockets = psutil.Process(process.pid).net_connections("inet")
    assert {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN} == {"127.0.0.1"}
    client = listen(port)
    ring = RingWriter(tmp_path / "ring", len(COLUMNS), 1000, make_meta())
    version = "5" if "mosquitto" in process.args[0] else "3.1.1"
    gateway = start_gateway(make_site(tmp_path, port, version=version))
    for row in make_rows(100):
        ring.push(row)
    wait_until(lambda: client.sequence() == list(range(100)))
    gateway.kill()
    stop(gateway)
    wait_until(lambda: not client.payloads("state")[-1]["online"])
    late = listen(port)
    wait_until(lambda: late.payloads("meta") and late.payloads("state"))
    ring.close()
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=30)


def test_elsewhere_than_on_loopback_is_refused(tmp_path: Path):
    for wrong in ("0.0.0.0", "broker.example", ""):
        with pytest.raises(ValueError, match="loopback only"):
            broker.command(wrong, 1883, tmp_path)


def test_the_configuration_of_mosquitto_is_bounded(tmp_path: Path):
    command = broker.command("127.0.0.1", 18830, tmp_path)
    if broker.mosquitto():
        text = Path(command[2]).read_text()
        assert "listener 18830 127.0.0.1\n" in text
        assert "persistence false\n" in text
        assert "max_queued_messages 1000\n" in text
