"""The wall clock is stepped while the whole system runs, in a time zone that changes to winter time meanwhile."""

import re
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcap.reader import make_reader

from controller.message import Message
from controller.recording import read
from controller.records import Mode
from controller.service import mailbox
from tests.gateway.bench import ROOT, Listener, accepts, wait_until
from tests.hil.stand import System
from tests.hil.test_run import mqtt_port
from tests.machines import own_site

# what a computer may bring that has no time for the virtual PLC; nothing else may come, and it may not stay
OF_A_BUSY_COMPUTER = {"STATUS_LATE", "STATUS_STALE", "LINK_LOST", "PLC_STOPPED", "OVERRUN", "DRIVE", "ENABLE_TIMEOUT"}


def test_steps_of_an_hour_and_the_end_of_summer_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    site, offset = own_site(tmp_path), tmp_path / "offset"
    library, source = tmp_path / "wall_clock.so", Path(__file__).with_name("wall_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"], check=True)

    def set_clock(shown: datetime) -> None:
        fresh = offset.with_name("fresh")
        fresh.write_text(f"{shown.timestamp() - time.time():.0f}\n")
        fresh.replace(offset)

    change = datetime(2026, 10, 25, 1, 0, 0, tzinfo=UTC)  # Berlin goes back from 03:00 to 02:00
    set_clock(change - timedelta(minutes=10))
    for name, value in {"LD_PRELOAD": library, "WALL_CLOCK": offset, "TZ": "Europe/Berlin"}.items():
        monkeypatch.setenv(name, str(value))
    system = System(tmp_path, "--json", site=site)

    def send(kind: str, **more: Any) -> mailbox.Answer:
        return mailbox.send(tmp_path / "run/simulation.requests", Message(1, kind, **more), 10.0)

    def on() -> bool:
        """Whether the drives hold or move; asks for it where they do not."""
        answer = send("ready")
        if answer.mode == Mode.FAULT.name:
            send("acknowledge")
        return answer.mode in (Mode.READY.name, Mode.ACTIVE.name)

    try:
        system.said("broker started")
        wait_until(lambda: accepts(mqtt_port(site)))
        listener = Listener(mqtt_port(site), "simulation")
        system.said("start → OFF")
        for shown in (
            change - timedelta(seconds=1), change + timedelta(hours=1), change - timedelta(hours=1),
            change + timedelta(hours=1),
        ):  # fmt: skip
            wait_until(on)  # PLC, link and watchdogs work after each step as before
            send("sine", pose={"z_m": 0.01}, frequency_hz=0.5)
            time.sleep(1.0)
            set_clock(shown)
            time.sleep(1.5)
        wait_until(on)
        listener._client.publish("pkm/simulation/request/eve", "no request", 1)
        # with a deadline by the clock as it is now
        ask = ["request", "--site", str(system.site), "--yes", "stop"]
        asked = subprocess.run(
            [sys.executable, "-m", "controller", *ask], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert asked.returncode == 0, asked.stderr
        wait_until(on)
    finally:
        system.process.terminate()
        code = system.ends()
    assert code in (0, 4), system.log.read_text()
    time.sleep(0.3)
    listener.close()

    log, summary = system.log.read_text(), system.summary
    shown = set(re.findall(r"^(\d{4}-\d\d-\d\d \d\d):", log, re.MULTILINE))
    # the log shows local time: 02:59 in summer, 02:00 in winter time, the hours stepped to
    assert {"2026-10-25 02", "2026-10-25 03"} <= shown, shown
    assert set(summary["faults"]) <= OF_A_BUSY_COMPUTER
    assert summary["skipped"] <= 300  # a step of an hour is 360 000 deadlines

    path = Path(summary["recording"])
    meta, names, rows = read(path)
    at = {name: rows[:, k] for k, name in enumerate(names)}
    assert summary["recorded"] == len(rows) == summary["ticks"]
    assert np.all(np.diff(at["tick"]) >= 1)
    assert at["tick"][-1] - at["tick"][0] == len(rows) - 1 + summary["skipped"]
    steps_s = np.diff(at["t_s"])
    assert steps_s.min() > 0.0 and steps_s.max() < 0.5
    assert np.max(np.abs(at["t_s"] - at["tick"] * 0.01 - np.median(at["t_s"] - at["tick"] * 0.01))) < 0.5
    assert {Mode.READY, Mode.ACTIVE} <= set(at["mode"].astype(int))
    with path.open("rb") as file:
        logged = [message.log_time * 1e-9 for *_, message in make_reader(file).iter_messages()]
    assert len(logged) >= len(rows) and np.max(np.abs(np.diff(logged))) < 2.0

    started = meta["started_unix_s"]
    samples = [sample for batch in listener.payloads("telemetry/batch") for sample in batch]
    assert [sample["seq"] for sample in samples] == list(range(samples[0]["seq"], samples[0]["seq"] + len(samples)))
    assert all(abs(sample["t"] - started - sample["t_s"]) < 1e-5 for sample in samples)
    live = [sample["t"] for sample in listener.payloads("telemetry/live")]
    assert np.all(np.diff(live) > 0.0) and np.max(np.diff(live)) < 2.0
    events = listener.payloads("event")
    assert {("mode", "ACTIVE"), ("request", "ACCEPTED"), ("request", "MALFORMED")} <= {
        (event["kind"], event["code"]) for event in events
    }
    for event in events:  # all of them by the clock of the session
        assert started - 1.0 <= event["t"] <= started + at["t_s"][-1] + 5.0, event
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
    assert np.all(np.diff([state["t"] for state in listener.payloads("state")]) >= 0.0)
