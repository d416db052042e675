"""The whole way of a release on an empty Debian: installed offline, run by systemd, upgraded, rolled back, removed.

Not collected by itself, because it takes minutes: `make deploy-test`.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.deploy.debian import Debian, booted, missing, release, site
from tests.machines import ROOT

pytestmark = pytest.mark.timeout(900)
SITE = "/etc/pkm/sites/test.toml"
INSTALL = "deploy/install/install.sh"
CONTROL, GATEWAY = "pkm-control@test", "pkm-gateway@test"
PROGRAM = "/opt/pkm/current/bin/pkm"
OTHER = """

_same = cycle


def cycle(setup, state, sample, request):
    state, output = _same(setup, state, sample, request)
    return state, replace(output, left_s=output.left_s + 1e-6)
"""


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Debian]:
    if why := missing():
        pytest.fail(why)
    folder = tmp_path_factory.mktemp("releases")
    first, second = release(folder / "first"), release(folder / "second", "0.9.0")
    third = release(folder / "third", "0.9.1", OTHER)
    mounts = [(path, f"/release/{path.name}") for path in (first, second, third)]
    with booted(*mounts) as machine:
        yield machine


@pytest.fixture(scope="module")
def cell(debian: Debian, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The virtual cell on the wire of the container, but not in it."""
    folder = tmp_path_factory.mktemp("cell")
    path = folder / "site.toml"
    path.write_text(site().replace('"../', f'"{ROOT}/config/').replace("/run/pkm/", f"{folder}/"))
    line = [*debian.network, sys.executable, "-m", "controller", "plant", str(path)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(line, cwd=ROOT, stderr=log)
    while "listens at" not in (folder / "log").read_text():
        assert process.poll() is None, (folder / "log").read_text()
        time.sleep(0.1)
    yield
    process.terminate()
    process.wait()


def pkm(debian: Debian, *arguments: str, code: int | None = 0) -> str:
    return debian.run("runuser", "-u", "pkm", "--", PROGRAM, *arguments, code=code)


def mode(debian: Debian) -> str:
    """What a request that changes nothing tells of the mode."""
    told = pkm(debian, "request", "stop", "--site", SITE, code=None)
    return told.partition("(mode ")[2].partition(")")[0]


before: set[str] = set()
accounts = ""
ACCOUNTS = "cat /etc/passwd /etc/group"


def test_it_installs_without_network_and_twice_is_once(debian: Debian) -> None:
    global accounts  # noqa: PLW0603
    before.update(debian.files())
    accounts = debian.sh(ACCOUNTS)
    assert "found no wheel" in debian.run(f"/release/first/{INSTALL}", "--wheels", "/release/first", code=2)
    told = debian.run(f"/release/first/{INSTALL}", "--wheels", "/release/first/wheels")
    assert "is in place" in told
    once = debian.files()
    told = debian.run(f"/release/first/{INSTALL}", "--wheels", "/release/first/wheels")
    assert "installed already" in told
    assert debian.files() == once
    assert debian.sh("stat -c '%U %a' /var/lib/pkm/recordings /opt/pkm/current/bin/pkm").split() == [
        "pkm", "2750", "root", "755",
    ]  # fmt: skip
    assert debian.run("pkm", "--version").split() == ["pkm", debian.run("readlink", "/opt/pkm/current").strip()]


def test_systemd_finds_nothing_to_complain_of(debian: Debian) -> None:
    told = debian.sh("systemd-analyze verify /etc/systemd/system/pkm-*@.service")
    assert told.strip() == ""


def test_doctor_prints_its_table(debian: Debian, cell: None) -> None:
    debian.write(SITE, site())
    table = pkm(debian, "doctor", SITE, "--seconds", "1", code=None)
    print(table)  # noqa: T201  pytest -rP shows it
    names = [row.split()[1] for row in table.splitlines() if row[:4].strip() in ("PASS", "WARN", "FAIL")]
    assert names[:9] == ["kernel", "priority", "memory", "clock", "disk", "cpu", "governor", "idle", "time"]
    assert {"network", "broker", "PLC", "jitter"} < set(names)
    assert "127.0.0.1:48899 answers" in table


def test_services_start_take_requests_record_and_stop_in_order(debian: Debian, cell: None) -> None:
    debian.run("systemctl", "enable", "--now", GATEWAY, CONTROL)  # returns when the loop ticks
    assert debian.property(CONTROL, "SubState") == "running"
    assert debian.property(CONTROL, "WatchdogTimestampMonotonic") != "0", "ticks feed the watchdog"
    assert "ACCEPTED" in pkm(debian, "request", "ready", "--site", SITE)
    assert debian.sh(f"stat -c %U /proc/$(systemctl show -P MainPID {CONTROL})").strip() == "pkm"
    page = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/').read().decode())"
    assert "<html" in debian.run("/opt/pkm/current/bin/python", "-c", page), "the operator page is part of the wheel"
    debian.run("systemctl", "stop", CONTROL)
    assert debian.property(CONTROL, "Result") == "success"
    told = debian.run("journalctl", "-u", CONTROL, "-o", "cat")
    summary = json.loads(next(line for line in told.splitlines() if line.startswith("{")))
    assert summary["mode"] == "OFF" and not set(summary["faults"]) - {"STATUS_LATE", "OVERRUN"}
    assert debian.property(GATEWAY, "SubState") == "running", "the gateway outlives the session"
    debian.wait_for("ls /var/lib/pkm/recordings | grep mcap")


@pytest.mark.parametrize(("signal", "result"), [("KILL", "signal"), ("STOP", "watchdog")])
def test_killed_or_hung_it_comes_back_disarmed(debian: Debian, cell: None, signal: str, result: str) -> None:
    debian.run("systemctl", "start", CONTROL)
    pid, restarts = debian.property(CONTROL, "MainPID"), int(debian.property(CONTROL, "NRestarts"))
    pkm(debian, "request", "ready", "--site", SITE)
    debian.sh(f"kill -{signal} {pid}")
    debian.wait_for(f"test $(systemctl show -P NRestarts {CONTROL}) -gt {restarts}")
    debian.wait(CONTROL, "running")
    assert debian.property(CONTROL, "MainPID") != pid
    assert f"result '{result}'" in debian.run("journalctl", "-u", CONTROL, "-o", "cat")
    assert mode(debian) == "OFF"


def test_a_wrong_file_is_not_tried_again_and_again(debian: Debian, cell: None) -> None:
    debian.run("systemctl", "stop", CONTROL)
    debian.write("/etc/pkm/sites/wrong.toml", "name = 3\n")
    debian.run("systemctl", "start", "pkm-control@wrong", code=None)
    debian.wait("pkm-control@wrong", "failed")
    assert debian.property("pkm-control@wrong", "ExecMainStatus") == "2"
    debian.sh("systemctl reset-failed; rm /etc/pkm/sites/wrong.toml")


def test_upgrade_and_rollback_keep_what_was_changed_here(debian: Debian, cell: None) -> None:
    first = debian.run("readlink", "/opt/pkm/current").strip()
    debian.sh("echo '# changed here' >>/etc/pkm/sites/hardware.toml")
    debian.run("systemctl", "start", CONTROL)
    debian.sh("mkdir -p /opt/pkm/0.9.0 && touch /opt/pkm/0.9.0/half")  # an interrupted installation
    told = debian.run(f"/release/second/{INSTALL}", "--wheels", "/release/second/wheels")
    assert f"systemctl restart {CONTROL}.service" in told
    assert f"with version {first} and version 0.9.0" in told and "no difference, " in told
    assert debian.property(CONTROL, "SubState") == "running", "nothing that moves is touched"
    assert debian.run("pkm", "--version").split() == ["pkm", "0.9.0"]
    assert debian.run("readlink", "/opt/pkm/previous").strip() == first
    debian.sh("test ! -e /opt/pkm/0.9.0/half && grep -q 'changed here' /etc/pkm/sites/hardware.toml")
    debian.run("systemctl", "restart", CONTROL)
    assert mode(debian) == "OFF"

    assert first in debian.run("/opt/pkm/current/share/deploy/install/install.sh", "rollback")
    assert debian.run("pkm", "--version").split() == ["pkm", first]
    debian.run("systemctl", "restart", CONTROL)
    assert mode(debian) == "OFF"
    assert "0.9.0" in debian.run(f"/opt/pkm/current/share/{INSTALL}", "rollback"), "and forth again"


def test_a_release_that_decides_otherwise_comes_only_when_told(debian: Debian) -> None:
    debian.run("systemctl", "stop", CONTROL)
    told = debian.run(f"/release/third/{INSTALL}", "--wheels", "/release/third/wheels", code=2)
    assert "they differ" in told and "left_s: " in told and "by up to 1e-06" in told
    assert "version 0.9.1 decides otherwise than the one in use, which stays" in told
    assert debian.run("pkm", "--version").split() == ["pkm", "0.9.0"]
    told = debian.run(f"/release/third/{INSTALL}", "--wheels", "/release/third/wheels", "--accept-differences")
    assert "The differences are accepted." in told
    assert debian.run("pkm", "--version").split() == ["pkm", "0.9.1"]


def test_a_backup_brings_a_site_back_with_its_owners(debian: Debian) -> None:
    debian.sh("sed -i 's|^users = .*|users = \"/var/lib/pkm/users.toml\"|' " + SITE)
    debian.sh(f"echo 'a long password' | runuser -u pkm -- {PROGRAM} user add {SITE} anna")
    archive = "/var/lib/pkm/test.tar.gz"
    assert "pkm restore /var/lib/pkm/test.tar.gz /\n" in pkm(debian, "backup", SITE, archive)
    look = f"stat -c '%U %G %a' {SITE} /var/lib/pkm/users.toml; stat -c '%U %G' /var/lib/pkm/recordings/configurations"
    before_loss = debian.sh(look)
    debian.sh(f"rm -r {SITE} /var/lib/pkm/users.toml /var/lib/pkm/recordings/configurations")
    debian.run("pkm", "restore", archive, "/")
    assert debian.sh(look) == before_loss and "pkm pkm 600\npkm pkm\n" in before_loss


def test_uninstall_leaves_data_unless_told_and_then_nothing(debian: Debian) -> None:
    debian.run(f"/release/second/{INSTALL}", "uninstall")
    left = debian.files() - before
    assert left and all(path.startswith(("/etc/pkm", "/var/lib/pkm")) for path in left), sorted(left)[:20]
    debian.run(f"/release/second/{INSTALL}", "uninstall", "--purge")
    assert debian.files() == before
    assert debian.sh(ACCOUNTS) == accounts
    assert debian.sh("systemctl list-units --all --plain --no-legend 'pkm-*' | grep -v slice", code=None).strip() == ""
    debian.run(f"/release/second/{INSTALL}", "rollback", code=2)
