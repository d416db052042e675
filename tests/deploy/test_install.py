"""What can be tried of installer and firewall without a computer to install on; the rest is in installation.py."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from controller.settings import load_site
from tests.machines import ROOT

INSTALL = ROOT / "deploy" / "install" / "install.sh"
FIREWALL = ROOT / "deploy" / "firewall" / "pkm.nft"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def install(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([INSTALL, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["frobnicate"], "frobnicate"),
        (["--purge"], "--purge belongs to uninstall"),
        (["uninstall", "--wheels", "x"], "--wheels FOLDER belongs to install"),
        (["--wheels"], "--wheels FOLDER"),
    ],
)
def test_a_wrong_word_is_refused_before_anything_happens(arguments: list[str], word: str) -> None:
    done = install(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert word in done.stderr


def test_it_tells_how_it_is_used() -> None:
    done = install("--help")
    assert done.returncode == 0
    for word in ("--wheels", "rollback", "uninstall", "--purge", "/etc/pkm"):
        assert word in done.stdout


@as_root
@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="no systemd here")
def test_a_folder_without_the_program_is_refused(tmp_path: Path) -> None:
    assert (install("--wheels", tmp_path / "none").returncode, Path("/opt/pkm").exists()) == (2, False)
    done = install("--wheels", tmp_path)
    assert done.returncode == 2 and "make wheels" in done.stderr


def test_the_example_of_a_hardware_site_meets_the_units() -> None:
    site = load_site(ROOT / "config" / "sites" / "hardware.toml").site
    assert site.virtual_cell is None and site.broker is None
    assert site.realtime.required and not site.realtime.accept
    unit = (ROOT / "deploy" / "systemd" / "pkm-control@.service").read_text()
    runtime, state = (re.search(rf"^{key}=(.*)$", unit, re.M) for key in ("RuntimeDirectory", "StateDirectory"))
    assert runtime and state
    assert {Path(site.ring.path).parent, Path(site.requests.path).parent} == {Path("/run", runtime[1])}
    assert Path(site.recording.folder).parent == Path("/var/lib", state[1])
    priority = re.search(r"^LimitRTPRIO=(\d+)$", unit, re.M)
    assert priority and int(priority[1]) >= site.realtime.priority


@as_root
@pytest.mark.skipif(shutil.which("nft") is None, reason="no nft here")
def test_the_firewall_loads_twice_and_lets_out_nothing_but_the_exchange() -> None:
    """In a network of its own, with a wire that ends nowhere."""
    script = f"""
        set -e
        ip link set lo up
        ip link add eth1 type veth peer name wire
        ip link set wire up
        ip addr add 192.168.10.1/24 dev eth1
        ip link set eth1 up
        nft --file {FIREWALL}
        nft --file {FIREWALL}
        python3 - <<'END'
import errno, socket
def attempt(host, port):
    probe = socket.socket()
    probe.settimeout(0.3)
    try:
        probe.connect((host, port))
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)
    return "connected"
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for host, port in (("192.168.10.2", 48898), ("192.168.10.2", 80), ("192.168.10.20", 502), ("192.168.10.9", 48898)):
    attempt(host, port)
try:
    udp.sendto(b"x", ("192.168.10.2", 48899))
except OSError:
    pass
print("loopback", attempt("127.0.0.1", 1))
END
        nft list chain inet pkm output
    """
    done = subprocess.run(["unshare", "--net", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "loopback ECONNREFUSED" in done.stdout, "nothing stands between programs of this computer"
    dropped = re.search(r"counter packets (\d+)", done.stdout)
    assert dropped and int(dropped[1]) >= 3, done.stdout
