"""Against a real broker and an independent client: what is published, and that no broker can do harm."""

import asyncio
import contextlib
import json
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from controller.gateway.mqtt.publisher import LIVE_BYTES, Publisher, live_columns
from controller.recording import parts, read
from controller.ring import RingReader, RingWriter
from tests.gateway.bench import (
    AT,
    COLUMNS,
    LEGS,
    ROOT,
    STARTED_UNIX_S,
    Listener,
    accepts,
    make_meta,
    make_rows,
    make_site,
    start_broker,
    start_gateway,
    stop,
    wait_until,
)
from tests.machines import free_port

Listen = Callable[[int], Listener]


def make_ring(folder: Path, session: str = "boot1") -> RingWriter:
    return RingWriter(folder / "ring", len(COLUMNS), 12_000, make_meta(session))


def push(ring: RingWriter, rows: np.ndarray) -> None:
    for row in rows:
        ring.push(row)


def summary(gateway: subprocess.Popen[str]) -> dict:
    out, _ = gateway.communicate(timeout=30)
    assert gateway.returncode == 0
    return json.loads(out)


def recorded(folder: Path) -> int:
    path = folder / "recordings/bench-boot1.mcap"
    with contextlib.suppress(FileNotFoundError, ValueError):
        return len(read(path)[2])
    return 0


def test_live_fits_whatever_the_numbers_are(tmp_path: Path):
    ring = make_ring(tmp_path)
    rng = np.random.default_rng(1)
    columns = live_columns(COLUMNS, LEGS)
    names = {COLUMNS[k] for k in columns}
    assert {"mode", "faults", "limits", "x_m", "roll_rad", "length_6_m", "following_error_6_m", "cell_6_n"} <= names

    async def sizes() -> None:
        publisher = Publisher(make_site(tmp_path), RingReader(tmp_path / "ring"))
        for exponent in (-308, -300, -10, -5, -4, 0, 5, 15, 17, 300):
            ring.push(-rng.uniform(1, 1.7, len(COLUMNS)) * 10.0**exponent)
            message = msgspec.json.encode(publisher._newest())
            assert len(message) < LIVE_BYTES < 4000
            values = json.loads(message)
            assert values.keys() == {"t", "seq"} | names
            row = publisher._ring.read(values["seq"], 1)[1][0]
            for k in columns:
                assert values[COLUMNS[k]] == pytest.approx(row[k], rel=1e-6, abs=0)
        ring.push(np.full(len(COLUMNS), np.nan))
        ring.push(np.full(len(COLUMNS), np.inf))
        for first in (10, 11):
            batch = json.loads(msgspec.json.encode(publisher._samples(first, publisher._ring.read(first, 1)[1])))
            assert batch[0]["seq"] == first
            assert all(batch[0][name] is None for name in COLUMNS)
        assert json.loads(msgspec.json.encode(publisher._newest()))["x_m"] is None

    asyncio.run(sizes())


def test_topics(tmp_path: Path, port: int, listen: Listen):
    client, rows = listen(port), make_rows(700)
    rows[:100, AT["mode"]] = 1
    rows[200:300, AT["faults"]] = 1 << 12
    rows[400:, AT["cell_3_n"]] = np.nan
    gateway = start_gateway(make_site(tmp_path, port))
    ring = make_ring(tmp_path)
    push(ring, rows[:300])
    wait_until(lambda: 299 in client.sequence())
    late = listen(port)
    wait_until(lambda: late.payloads("meta") and late.payloads("state"))
    push(ring, rows[300:])
    ring.close()
    told = summary(gateway)
    assert told == {
        "recorded": 700, "recording": str(tmp_path / "recordings/bench-boot1.mcap"), "published": 700, "dropped": 0,
        "lost": 0,
    }  # fmt: skip
    wait_until(lambda: client.payloads("state") and not client.payloads("state")[-1]["online"])
    assert {topic for topic, *_ in client.heard} == {"state", "meta", "telemetry/live", "telemetry/batch", "event"}
    assert not any(isinstance(payload, Exception) for _, payload, *_ in client.heard)  # no NaN, all JSON

    [(meta, retained, qos)] = [(payload, *more) for topic, payload, *more in late.heard if topic == "meta"]
    assert (retained, qos) == (True, 1)
    assert [channel["name"] for channel in meta["channels"]] == COLUMNS
    assert {"name", "unit", "meaning"} == meta["channels"][0].keys()
    assert (meta["configuration_sha256"], meta["version"], meta["session"]) == ("0" * 64, "0.1.0", "boot1")

    state, retained, qos = next((payload, *more) for topic, payload, *more in late.heard if topic == "state")
    assert (retained, qos) == (True, 1)
    assert (state["online"], state["session"], state["mode"]) == (True, "boot1", "ACTIVE")
    assert state["since"] == STARTED_UNIX_S + 1.0
    assert STARTED_UNIX_S + 1.0 <= state["t"] <= STARTED_UNIX_S + 3.0
    last = client.payloads("state")[-1]
    assert (last["online"], last["cause"]) == (False, "the control process ended")

    assert client.sequence() == list(range(700))
    samples = [sample for batch in client.payloads("telemetry/batch") for sample in batch]
    for seq in (0, 299, 300, 650):
        assert samples[seq]["t"] == round(STARTED_UNIX_S + rows[seq, AT["t_s"]], 6)
        values = [samples[seq][name] for name in COLUMNS]
        assert np.array_equal(np.array(values, float), rows[seq], equal_nan=True)  # null stands for what is not finite
    assert client.longest["telemetry/live"] < 4000
    assert all(isinstance(value, float | int | None) for value in client.payloads("telemetry/live")[-1].values())

    assert client.codes("mode") == ["READY", "ACTIVE"]
    assert (client.codes("fault_set"), client.codes("fault_cleared")) == (["OVERFORCE"], ["OVERFORCE"])
    assert client.codes("not_finite") == ["cell_3_n"]
    assert all(qos == 1 and not retained for topic, _, retained, qos in client.heard if topic == "event")


def test_killed_and_restarted(tmp_path: Path, port: int, listen: Listen):
    client, rows = listen(port), make_rows(1500)
    rows[:100, AT["mode"]] = 1
    site, ring = make_site(tmp_path, port), make_ring(tmp_path)
    gateway = start_gateway(site)
    push(ring, rows[:437])
    wait_until(lambda: 436 in client.sequence())
    gateway.send_signal(signal.SIGKILL)
    stop(gateway)
    wait_until(lambda: not client.payloads("state")[-1]["online"])  # the will
    assert client.payloads("state")[-1]["session"] == "boot1"
    assert {"mode", "since", "t"} <= client.payloads("state")[-1].keys()
    push(ring, rows[437:1200])
    again = start_gateway(site)
    wait_until(lambda: 1199 in client.sequence())
    assert client.payloads("state")[-1]["online"]
    assert client.payloads("state")[-1]["since"] == STARTED_UNIX_S + 1.0  # found in the ring
    again.send_signal(signal.SIGINT)  # Ctrl-C reaches everyone; the last rows are still to come
    for end in (1300, 1400, 1500):
        push(ring, rows[end - 100 : end])
        wait_until(lambda end=end: end - 1 in client.sequence())
    ring.close()
    assert summary(again)["recorded"] == 1500
    assert set(client.sequence()) == set(range(1500))
    assert client.codes("mode").count("ACTIVE") == 1
    path = tmp_path / "recordings/bench-boot1.mcap"
    meta, _, back = read(path)
    assert back.tobytes() == rows.tobytes()
    assert (meta["recording"]["gaps"], meta["recording"]["duplicates"], len(parts(path))) == ([], 0, 2)


def test_terminated_in_between_finishes_the_recording(tmp_path: Path, port: int, listen: Listen):
    client, rows = listen(port), make_rows(300)
    site, ring = make_site(tmp_path, port), make_ring(tmp_path)
    push(ring, rows[:200])
    gateway = start_gateway(site)
    wait_until(lambda: 199 in client.sequence())
    gateway.terminate()
    assert summary(gateway)["recorded"] == 200
    wait_until(lambda: client.payloads("state")[-1]["cause"] == "the gateway was stopped")
    push(ring, rows[200:])
    ring.close()
    assert summary(start_gateway(site))["recorded"] == 300  # closed, but not all of it recorded: it is served
    assert read(tmp_path / "recordings/bench-boot1.mcap")[2].tobytes() == rows.tobytes()
    waiting = start_gateway(site)  # now all of it is: a new session is waited for
    ring = make_ring(tmp_path, "boot2")
    push(ring, rows)
    ring.close()
    assert summary(waiting)["recording"] == str(tmp_path / "recordings/bench-boot2.mcap")


@pytest.mark.parametrize("told", [False, True])
def test_death_of_the_control_process(tmp_path: Path, port: int, listen: Listen, told: bool):
    client = listen(port)
    code = (
        "import sys; from pathlib import Path; from tests.gateway.bench import *; from controller.ring import *\n"
        "ring = RingWriter(Path(sys.argv[1]), len(COLUMNS), 12000, make_meta())\n"
        "for row in make_rows(150): ring.push(row)\n"
        "sys.stdin.read()"
    )
    control = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "ring")], cwd=ROOT, stdin=subprocess.PIPE)
    gateway = start_gateway(make_site(tmp_path, port))
    wait_until(lambda: 149 in client.sequence())
    control.kill()  # not waited for: a zombie is dead as well
    if told:
        control.communicate()
        gateway.terminate()
    assert summary(gateway)["recorded"] == 150
    wait_until(lambda: client.payloads("state")[-1]["cause"] == "the control process died")
    assert not client.payloads("state")[-1]["online"]
    control.communicate()


def test_broker_frozen_then_killed(tmp_path: Path, listen: Listen):
    number = free_port()
    broker = start_broker(number, tmp_path)
    client, rows = listen(number), make_rows(6000)
    ring, log = make_ring(tmp_path), tmp_path / "log"
    gateway = start_gateway(make_site(tmp_path, number), log)
    push(ring, rows[:100])
    wait_until(lambda: 99 in client.sequence())
    process = psutil.Process(gateway.pid)
    memory = process.memory_info().rss
    broker.send_signal(signal.SIGSTOP)
    push(ring, rows[100:4000])
    wait_until(lambda: recorded(tmp_path) > 3900)  # the recorder does not wait for anyone
    wait_until(lambda: "did not answer in time" in log.read_text())  # the gateway gave the connection up
    broker.send_signal(signal.SIGCONT)
    wait_until(lambda: 3999 in client.sequence())
    stop(broker)
    push(ring, rows[4000:5500])
    wait_until(lambda: recorded(tmp_path) > 5400)
    broker = start_broker(number, tmp_path)
    second = listen(number)
    push(ring, rows[5500:])
    wait_until(lambda: 5999 in second.sequence())
    wait_until(lambda: "dropped" in second.codes("publishing"))
    wait_until(lambda: second.payloads("state")[-1]["dropped"])
    assert any(state["online"] for state in second.payloads("state"))
    assert process.memory_info().rss - memory < 40e6
    assert process.num_fds() < 40
    ring.close()
    told = summary(gateway)
    assert told["recorded"] == 6000
    assert told["published"] + told["dropped"] == 6000
    assert told["dropped"] >= 400  # nobody wants what is older than BACKLOG_S
    assert told["dropped"] == second.payloads("state")[-1]["dropped"]
    seen = set(client.sequence()) | set(second.sequence())
    assert len(seen) >= told["published"]
    assert read(tmp_path / "recordings/bench-boot1.mcap")[2].tobytes() == rows.tobytes()


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize("broken", [False, True])
def test_broker_that_floods_and_never_answers(tmp_path: Path, broken: bool, version: str):
    message = b"\x30\xea\x07" + struct.pack(">H", 8) + b"pkm/spam" + bytes(992)  # nobody asked for it
    connected = b"\x20\x03\x00\x00\x00" if version == "5" else b"\x20\x02\x00\x00"
    flood = 100 * (message + b"?" * broken)
    flooded = connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal flooded, connections
        connections += 1
        with contextlib.suppress(OSError):
            await reader.read(1000)
            writer.write(connected)
            while True:
                writer.write(flood)
                await writer.drain()
                flooded += len(flood)
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1000)
        rows, ring = make_rows(2000), make_ring(tmp_path)
        gateway = start_gateway(make_site(tmp_path, server.sockets[0].getsockname()[1], version=version))
        await asyncio.to_thread(wait_until, lambda: flooded)
        memory = psutil.Process(gateway.pid).memory_info().rss
        push(ring, rows)
        await asyncio.to_thread(wait_until, lambda: flooded > 80e6 or connections > 1)
        assert psutil.Process(gateway.pid).memory_info().rss - memory < 30e6
        ring.close()
        told = await asyncio.to_thread(summary, gateway)
        assert (told["recorded"], told["published"], told["dropped"]) == (2000, 0, 2000)
        server.close()

    asyncio.run(scenario())
    assert read(tmp_path / "recordings/bench-boot1.mcap")[2].tobytes() == make_rows(2000).tobytes()


def test_no_broker_and_no_disk(tmp_path: Path):
    (tmp_path / "recordings").write_text("a file where a folder is expected")
    ring = make_ring(tmp_path)
    push(ring, make_rows(100))
    ring.close()
    told = summary(start_gateway(make_site(tmp_path, free_port())))
    assert told == {"recorded": 0, "recording": None, "published": 0, "dropped": 100, "lost": 100}


def test_no_disk_is_told_and_publishing_goes_on(tmp_path: Path, port: int, listen: Listen):
    client = listen(port)
    (tmp_path / "recordings").write_text("a file where a folder is expected")
    ring = make_ring(tmp_path)
    push(ring, make_rows(100))
    gateway = start_gateway(make_site(tmp_path, port))
    wait_until(lambda: client.sequence() == list(range(100)))
    assert client.codes("recording") == ["stopped"]
    assert client.payloads("state")[-1]["recording"] is None
    ring.close()
    assert summary(gateway)["published"] == 100


def test_rows_the_ring_no_longer_has_are_told(tmp_path: Path, port: int, listen: Listen):
    client = listen(port)
    ring = RingWriter(tmp_path / "ring", len(COLUMNS), 300, make_meta())
    push(ring, make_rows(1000))
    ring.close()
    told = summary(start_gateway(make_site(tmp_path, port)))
    assert (told["lost"], told["recorded"]) == (701, 299)
    wait_until(lambda: client.codes("rows_lost") == ["701"])
    assert read(tmp_path / "recordings/bench-boot1.mcap")[0]["recording"]["gaps"] == [[0, 701]]


def test_interrupted_while_waiting(tmp_path: Path):
    gateway = start_gateway(make_site(tmp_path))
    wait_until(lambda: handles_sigint(gateway.pid))
    gateway.send_signal(signal.SIGINT)
    assert summary(gateway)["recording"] is None


def handles_sigint(pid: int) -> bool:
    # asyncio's handler makes SIGTERM caught as well, which plain Python does not
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_free_ports_are_free():
    assert not accepts(free_port())
