"""The systemd units by systemd's own judgement, and what the service tells its manager."""

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.records import Mode
from controller.service.notify import Notifier
from tests.hil.stand import System
from tests.machines import ROOT, own_site

UNITS = ROOT / "deploy" / "systemd"
CONTROL, GATEWAY = UNITS / "pkm-control@.service", UNITS / "pkm-gateway@.service"
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")


def section(unit: Path, name: str) -> dict[str, list[str]]:
    """Keys of a section, each with all its values."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().partition(f"[{name}]")[2].partition("\n[")[0].splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@needs_systemd
@pytest.mark.parametrize("unit", [CONTROL, GATEWAY])
def test_systemd_understands_the_units(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text().replace("/opt/pkm/current/bin/pkm", "/bin/true")  # it has to exist
    (tmp_path / unit.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", tmp_path / unit.name],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize(("unit", "most"), [(CONTROL, 2.5), (GATEWAY, 2.0)])
def test_what_the_services_may_do_is_little(unit: Path, most: float) -> None:
    told = subprocess.check_output(["systemd-analyze", "security", "--no-pager", "--offline=yes", unit], text=True)
    print(told)  # noqa: T201  pytest -rP shows it
    level = re.search(r"exposure level .*: ([0-9.]+)", told)
    assert level and float(level[1]) <= most


def test_the_program_is_given_the_time_it_takes_to_stop() -> None:
    from controller.service.app import LONGEST_END_TICKS

    control = section(CONTROL, "Service")
    assert float(control["TimeoutStopSec"][0].removesuffix("s")) > LONGEST_END_TICKS / 100.0 + 2.0
    assert control["RestartPreventExitStatus"] == ["2"]
    assert "MemoryDenyWriteExecute" not in control, "numba could not be imported"
    for key in ("User", "RuntimeDirectory", "StateDirectory", "WorkingDirectory", "Slice"):
        assert control[key] == section(GATEWAY, "Service")[key], "both processes meet in these"


def test_the_control_process_goes_ahead_of_its_gateway_and_of_everything_else() -> None:
    control, gateway = section(CONTROL, "Service"), section(GATEWAY, "Service")
    usual = 100  # of units and slices that say nothing
    for weight in ("CPUWeight", "IOWeight"):
        assert int(control[weight][0]) > usual > int(gateway[weight][0])
    assert control["Slice"] == ["system.slice"], "in the slice of a template weights count among its instances alone"
    assert int(control["Nice"][0]) < 0 < int(gateway["Nice"][0])


# ---------------------------------------------------------------- what the manager hears


class Manager:
    """The socket that systemd would have."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.settimeout(60.0)

    def environment(self, watchdog_s: float) -> dict[str, str]:
        return {"NOTIFY_SOCKET": str(self.path), "WATCHDOG_USEC": str(round(1e6 * watchdog_s))}

    def heard(self) -> str:
        return self.socket.recv(4096).decode()

    def silent(self) -> bool:
        return not select.select([self.socket], [], [], 0.0)[0]

    def drain(self) -> None:
        while not self.silent():
            self.heard()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    listening = Manager(tmp_path)
    yield listening
    listening.socket.close()


def test_only_ticks_feed_the_watchdog(manager: Manager) -> None:
    notifier = Notifier(manager.environment(2.0))
    assert manager.silent(), "not ready before the first tick"
    notifier.ticked()
    assert manager.heard() == "READY=1"
    notifier.ticked()
    assert manager.silent(), "not every tick is a message"
    time.sleep(0.6)
    assert manager.silent(), "time alone is none either"
    notifier.ticked()
    assert manager.heard() == "WATCHDOG=1"
    notifier.close()
    assert manager.heard() == "STOPPING=1"
    notifier.ticked()
    assert manager.silent()


def test_a_manager_that_does_not_listen_holds_nothing_up(manager: Manager, tmp_path: Path) -> None:
    notifier = Notifier(manager.environment(1e-6))
    begin_s = time.monotonic()
    for _ in range(5000):  # more than any socket buffers
        notifier.ticked()
    assert time.monotonic() - begin_s < 30.0, "it waited for somebody"
    notifier.close()
    gone = Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    gone.ticked()
    gone.close()
    alone = Notifier({})
    alone.ticked()
    alone.close()


def test_the_watchdog_of_another_process_is_not_fed(manager: Manager) -> None:
    notifier = Notifier(manager.environment(1e-6) | {"WATCHDOG_PID": str(os.getpid() + 1)})
    notifier.ticked()
    assert manager.heard() == "READY=1"
    notifier.ticked()
    assert manager.silent()
    notifier.close()


def test_control_alone_is_ready_with_its_first_tick_and_silent_when_it_hangs(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the unit starts it: nothing but the control process; the virtual cell is another's."""
    text = own_site(tmp_path)
    cell = System(tmp_path / "cell", command="plant", site=text)
    try:
        cell.said("listens at")
        for name, value in manager.environment(0.4).items():
            monkeypatch.setenv(name, value)
        control = System(tmp_path / "control", "--alone", "--json", site=text)
        try:
            assert manager.heard() == "READY=1"
            assert control.said("start → OFF")
            assert manager.heard() == "WATCHDOG=1"
            assert not Path(f"/proc/{control.process.pid}/task/{control.process.pid}/children").read_text()
            control.process.send_signal(signal.SIGSTOP)
            time.sleep(0.1)
            manager.drain()
            time.sleep(1.0)
            assert manager.silent()
            control.process.send_signal(signal.SIGCONT)
            assert manager.heard() == "WATCHDOG=1"
            control.process.terminate()
            while (word := manager.heard()) != "STOPPING=1":
                assert word == "WATCHDOG=1"
            assert control.ends() == 0
            assert control.summary["mode"] == Mode.OFF.name
            assert control.summary["recorded"] == 0, "recording is the gateway's business"
        finally:
            control.process.kill()
            control.process.communicate()
    finally:
        cell.process.terminate()
        cell.ends()
