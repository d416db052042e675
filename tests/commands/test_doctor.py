"""`pkm doctor`: verdicts on made-up facts, and the command on this computer with the virtual cell."""

import json
import math
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from controller import schema
from controller.commands import doctor
from controller.errors import DeviceError
from controller.records import AxisMode, Link, Sample
from controller.service import computer
from controller.service.app import sole_controller
from controller.service.computer import Facts
from controller.service.realtime import Obtained
from controller.settings import load_site, parse
from drivers.exchange import PlcState
from tests.hil.stand import System
from tests.machines import ROOT, own_site
from tests.shell import pkm, refused

HARDWARE = ROOT / "config" / "sites" / "hardware.toml"
WISHES = schema.RealTime()
GOOD = Facts(
    kernel="Linux 6.1.0-rt", preempt_rt=True, priority=Obtained("SCHED_FIFO priority 50", True, True, ""),
    memory_bytes=None, clock_source="tsc", synchronised=True, governors=frozenset({"performance"}), idle_us=2,
    isolated=frozenset({2, 3}), allowed=frozenset({3}), disk_bytes=500 * 10**9, recorded_bytes_h=5e8,
)  # fmt: skip
REFUSED = Obtained("SCHED_FIFO priority 50", True, False, "Operation not permitted")


def verdicts(facts: Facts, asked: schema.RealTime = WISHES) -> dict[str, str]:
    found = computer.judge(facts, asked)
    assert all(one.mend for one in found if one.verdict != "pass"), "whoever is told of trouble is told the mend"
    return {one.name: one.verdict for one in found}


def test_a_good_computer_passes_in_everything() -> None:
    assert set(verdicts(GOOD).values()) == {"pass"}


@pytest.mark.parametrize(
    ("changes", "name", "verdict"),
    [
        ({"preempt_rt": False}, "kernel", "fail"),
        ({"priority": REFUSED}, "priority", "fail"),
        ({"priority": Obtained("real-time priority", False, False, "not asked for")}, "priority", "warn"),
        ({"memory_bytes": 8 << 20}, "memory", "fail"),
        ({"clock_source": "hpet"}, "clock", "fail"),
        ({"clock_source": ""}, "clock", "fail"),
        ({"clock_source": "kvm-clock"}, "clock", "warn"),
        ({"disk_bytes": 4 * 10**8}, "disk", "fail"),
        ({"disk_bytes": 5 * 10**9}, "disk", "warn"),
        ({"isolated": frozenset()}, "cpu", "warn"),
        ({"allowed": frozenset({0, 3})}, "cpu", "warn"),
        ({"governors": frozenset({"performance", "powersave"})}, "governor", "warn"),
        ({"governors": frozenset()}, "governor", "pass"),
        ({"idle_us": 350}, "idle", "warn"),
        ({"synchronised": False}, "time", "warn"),
    ],
)
def test_one_condition_changes_one_verdict(changes: dict[str, Any], name: str, verdict: str) -> None:
    found = verdicts(GOOD._replace(**changes))
    assert found.pop(name) == verdict
    assert set(found.values()) == {"pass"}


BAD = GOOD._replace(preempt_rt=False, priority=REFUSED, memory_bytes=0, clock_source="jiffies", disk_bytes=0)


def test_what_may_fail_is_what_a_site_may_accept() -> None:
    failing = {name for name, verdict in verdicts(BAD).items() if verdict == "fail"}
    assert failing == set(get_args(schema.Condition))
    asked = msgspec.structs.replace(WISHES, accept=["kernel", "clock"])
    assert {name for name, verdict in verdicts(BAD, asked).items() if verdict == "fail"} == failing - {
        "kernel",
        "clock",
    }


def test_a_hardware_site_does_not_start_on_an_unfit_computer(monkeypatch: pytest.MonkeyPatch) -> None:
    site = load_site(HARDWARE).site
    monkeypatch.setattr(computer, "read", lambda _: BAD)
    with pytest.raises(DeviceError, match=r'"kernel", "priority", "memory", "clock", "disk"') as refusal:
        computer.require(site)
    assert "LimitRTPRIO" in str(refusal.value), "the sentence says what to do"
    assert refusal.value.exit_code == 3
    refused(pkm("run", HARDWARE), 3, "not fit", "realtime.accept")
    monkeypatch.setattr(computer, "read", lambda _: GOOD)
    computer.require(site)


def test_lists_of_cpus_as_the_kernel_writes_them() -> None:
    assert computer.listed_cpus("") == frozenset()
    assert computer.listed_cpus("0,2-4,7\n") == {0, 2, 3, 4, 7}


def test_facts_are_those_that_the_operating_system_tells(tmp_path: Path) -> None:
    site = msgspec.structs.replace(load_site(HARDWARE).site, recording=schema.Recording(str(tmp_path / "a" / "b")))
    facts = computer.read(site)
    assert subprocess.check_output(["uname", "-r"], text=True).strip() in facts.kernel
    assert facts.disk_bytes == pytest.approx(int(subprocess.check_output(["df", "-B1", "--output=avail", tmp_path])
                                                 .split()[-1]), rel=0.2)  # fmt: skip
    assert not list(tmp_path.iterdir()), "looking changes nothing"


# ---------------------------------------------------------------- beyond the operating system

DIRECT = doctor.Route(interface="eth1", speed_mbit_s=1000)


@pytest.mark.parametrize(
    ("route", "verdict"),
    [
        (DIRECT, "pass"),
        (doctor.Route(interface="lo"), "pass"),
        (doctor.Route("no route to 10.0.0.9: unreachable"), "fail"),
        (DIRECT._replace(carrier=False), "fail"),
        (DIRECT._replace(wireless=True), "fail"),
        (DIRECT._replace(gateway="10.0.0.1"), "warn"),
        (DIRECT._replace(interrupts=frozenset({1, 999})), "warn"),
        (DIRECT._replace(interrupts=frozenset({1})), "pass"),
    ],
)
def test_the_way_to_the_plc(monkeypatch: pytest.MonkeyPatch, route: doctor.Route, verdict: str) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert doctor.judge_network(route, frozenset({999})).verdict == verdict


def test_times_of_disk_and_clock() -> None:
    assert doctor.judge_sync([0.002, 0.02]).verdict == "pass"
    assert doctor.judge_sync([0.002, 0.9]).verdict == "warn"
    assert doctor.judge_sync("/var: Read-only file system").verdict == "fail"

    quiet = np.full(1000, 1e-4)
    hiccup, noisy = quiet.copy(), quiet * 20.0
    hiccup[500] = 0.02
    assert doctor.judge_jitter(quiet, quiet, 0.01).verdict == "pass"
    assert doctor.judge_jitter(noisy, quiet, 0.01).verdict == "warn"
    ours, theirs = doctor.judge_jitter(hiccup + noisy, quiet, 0.01), doctor.judge_jitter(hiccup, hiccup, 0.01)
    assert (ours.verdict, theirs.verdict) == ("fail", "fail")
    assert "this process" in ours.mend and "computer" in theirs.mend


def test_how_long_certificates_last() -> None:
    day_s = 86400.0
    for left_days, verdict in ((400, "pass"), (10, "warn"), (-1, "fail")):
        assert doctor.judge_certificate("x.crt", 1e9 + left_days * day_s, "", 1e9).verdict == verdict
    assert doctor.judge_certificate("x.crt", math.nan, "no such file").verdict == "fail"


@pytest.mark.parametrize(
    ("held_s", "stopped_s", "verdict"),
    [(0.045, 0.105, "pass"), (0.2, 0.105, "fail"), (0.045, 0.3, "fail"), (math.inf, math.inf, "fail")],
)
def test_the_plc_has_to_stop_in_time(held_s: float, stopped_s: float, verdict: str) -> None:
    assert doctor.judge_watchdog(held_s, stopped_s).verdict == verdict


class Plc:
    """What the self-test sees of a PLC whose watchdog may be missing; the drives come on with the third HOLD."""

    is_up, message = True, ""

    def __init__(self, state: PlcState = PlcState.OFF, rate_m_s: float = 0.0) -> None:
        self.state, self.rate_m_s = state, rate_m_s
        self.modes: list[AxisMode] = []

    def read(self, tick: int, now_s: float, start_s: float) -> Sample:
        n, on = np.full(6, 0.9), self.state is not PlcState.OFF
        rate = np.full(6, self.rate_m_s)
        return Sample(
            tick,
            now_s - start_s,
            Link.UP,
            0.0,
            tick,
            0,
            self.state,
            0,
            False,
            on,
            False,
            n,
            rate,
            n,
            n,
            axes_homed=True,
        )

    def write(self, command: Any) -> None:
        self.modes.append(command.axis_mode)
        if self.modes[-3:] == [AxisMode.HOLD] * 3:
            self.state = PlcState.HOLDING
        elif command.axis_mode is AxisMode.STOP:
            self.state = PlcState.OFF

    def poll(self) -> None:
        pass


def test_a_plc_without_a_watchdog_is_found_and_left_with_the_drives_off() -> None:
    plc = Plc()
    test = doctor.SelfTest(plc, 0.001, 1.0)  # type: ignore[arg-type]
    assert test.run() == ""
    assert doctor.judge_watchdog(test.held_s, test.stopped_s).verdict == "fail"
    assert (plc.state, plc.modes[-1]) == (PlcState.OFF, AxisMode.STOP)


@pytest.mark.parametrize("plc", [Plc(PlcState.HOLDING), Plc(rate_m_s=0.1)])
def test_no_self_test_unless_the_machine_is_off_and_at_rest(plc: Plc) -> None:
    assert doctor.SelfTest(plc, 0.001, 1.0).run()  # type: ignore[arg-type]
    assert not plc.modes, "nothing was commanded"


# ---------------------------------------------------------------- broker and certificates


def certificate(folder: Path, days: int) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    crt, key = folder / f"{days}.crt", folder / f"{days}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", crt, "-days", str(days),
         "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True,
    )  # fmt: skip
    return crt, key


def test_the_broker_is_asked_for_its_certificate(tmp_path: Path) -> None:
    crt, key = certificate(tmp_path, 9)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, key)
    site = load_site(HARDWARE).site
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for _ in range(2):
                plain, _ = listening.accept()
                # the examiner may hang up without a handshake or a goodbye
                with plain, suppress(OSError), context.wrap_socket(plain, server_side=True) as secured:
                    secured.recv(1)

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        at = {"host": "127.0.0.1", "port": listening.getsockname()[1]}
        trusted = msgspec.structs.replace(site, mqtt=schema.Mqtt(**at, tls=schema.MqttTls(ca=str(crt))))
        found = doctor._broker(trusted)
        assert (found.verdict, "TLS" in found.found, "days" in found.found) == ("warn", True, True)
        assert doctor.certificates(trusted) == [str(crt)]
        assert doctor.judge_certificate("", *doctor._ends(crt)).verdict == "warn"
        assert doctor.judge_certificate("", *doctor._ends(key)).verdict == "fail"
        missing = schema.Mqtt(**at, tls=schema.MqttTls(ca=str(tmp_path / "none")))
        assert doctor._broker(msgspec.structs.replace(site, mqtt=missing)).verdict == "fail"
        serving.join(10.0)  # what still waits for a connection would take the next one, closed or not
    silent = schema.Mqtt(host="127.0.0.1", port=at["port"])
    assert doctor._broker(msgspec.structs.replace(site, mqtt=silent)).verdict == "warn"


# ---------------------------------------------------------------- the command


def examined(site: Path, *arguments: str) -> dict[str, dict[str, str]]:
    """The command in a process of its own: it asks for priority and locked memory."""
    line = [sys.executable, "-m", "controller", "doctor", str(site), "--seconds", "0.3", "--json", *arguments]
    told = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60, cwd=ROOT)
    found = {one["name"]: one for one in json.loads(told.stdout)}
    assert told.returncode == any(one["verdict"] == "fail" for one in found.values()), told.stderr
    return found


def test_the_virtual_cell_passes_the_self_test_and_is_left_alone_while_another_controls_it(tmp_path: Path) -> None:
    text = own_site(tmp_path).replace("[broker]\nstart = true\n", "")
    cell = System(tmp_path, command="plant", site=text)
    try:
        cell.said("listens at")
        found = examined(cell.site, "--self-test")
        assert [found[name]["verdict"] for name in ("PLC", "device terminals", "watchdog", "network")] == ["pass"] * 4
        assert "clock_nanosleep" in found["jitter"]["found"]
        with sole_controller(parse(text, schema.Site, tmp_path).ads):
            found = examined(cell.site, "--self-test")
        assert found["PLC"]["verdict"] == "warn" and "another controller" in found["PLC"]["found"]
        assert "watchdog" not in found
    finally:
        cell.process.terminate()
        cell.ends()


def test_the_table_tells_the_mend_below(tmp_path: Path) -> None:
    row = doctor.line(computer.Finding("kernel", "fail", "no PREEMPT_RT", "install one"))
    assert [part.strip() for part in row.splitlines()] == ["FAIL  kernel           no PREEMPT_RT", "→ install one"]
    refused(pkm("doctor", tmp_path / "none.toml"), 2, "no such file")
