"""What can be tried of installer and firewall without a computer to install on; the rest is in installation.py."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from controller.gateway.recording.recorder import Recorder
from controller.schema import Site
from controller.settings import load_site, parse
from tests.drivers.test_replayed import COLUMNS, SENSORS, session
from tests.machines import ROOT, SIMULATION, own_site

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
        (["rollback", "--accept-differences"], "--accept-differences belongs to install"),
    ],
)
def test_a_wrong_word_is_refused_before_anything_happens(arguments: list[str], word: str) -> None:
    done = install(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert word in done.stderr


def test_it_tells_how_it_is_used() -> None:
    done = install("--help")
    assert done.returncode == 0
    for word in ("--wheels", "rollback", "uninstall", "--purge", "--accept-differences", "/etc/pkm"):
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


# ---------------------------------------------------------------- do two releases decide the same?

COMPARE = INSTALL.with_name("compare.sh")
PKM = ROOT / ".venv" / "bin" / "pkm"


def compared(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMPARE, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, one that is being written, one that lacks its beginning, and a flight recording."""
    folder = tmp_path_factory.mktemp("recorded")
    rows = session(120)
    files = load_site(SIMULATION)
    text = files.site_text.replace("[realtime]", '[control.monitor]\ncollision = "off"\n\n[realtime]')
    site = parse(own_site(folder), Site, folder)
    meta = {
        "session": "whole", "site": site.name, "version": "0.1.0", "started_unix_s": 1.7e9,
        "started_monotonic_s": 0.0, "rate_hz": 100.0, "legs": 6, "sensors": SENSORS,
        "channels": [list(channel) for channel in COLUMNS], "configuration_sha256": "0" * 64,
        "machine_toml": files.machine_text, "site_toml": text,
    }  # fmt: skip
    for name, first, later_s in (("whole", 0, 0.0), ("late", 50, 100.0)):
        made = Recorder(site, meta | {"session": name, "started_unix_s": 1.7e9 + later_s})
        made.append(first, rows[first:])
        made.close()
    shutil.copy(folder / "recordings" / "simulation-whole.mcap", folder / "recordings" / "simulation-x.flight-7.mcap")
    broken = folder / "recordings" / "simulation-broken.mcap"
    broken.write_bytes((folder / "recordings" / "simulation-whole.mcap").read_bytes()[:-300])
    return folder / "recordings"


def other(folder: Path, change: str) -> Path:
    """The program of another release: whatever `change` makes of a row that comes out."""
    program = folder / "pkm"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from controller.commands import replay\nreal = replay.pack\n"
        f"def pack(row, *rest):\n    real(row, *rest)\n    {change}\n"
        "replay.pack = pack\nfrom controller.__main__ import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    return program


def test_releases_that_decide_the_same_are_found_alike(recordings: Path) -> None:
    done = compared(PKM, PKM, recordings)
    assert (done.returncode, done.stderr) == (0, "")
    assert "simulation-whole: no difference, 120 ticks replayed" in done.stdout
    assert "simulation-late: left out, the old release cannot replay it: " in done.stdout
    assert "ticks are missing at 0" in done.stdout
    assert "flight" not in done.stdout and "broken" not in done.stdout


def test_a_release_that_decides_otherwise_is_found_with_columns_and_amounts(recordings: Path, tmp_path: Path) -> None:
    at = [channel.name for channel in COLUMNS].index("command_1_m")
    done = compared(PKM, other(tmp_path, f"row[{at}] += 1e-9 * (row[1] > 1.0)"), recordings)
    assert done.returncode == 1
    assert "simulation-whole: they differ" in done.stdout
    assert re.search(r"command_1_m: \d+ ticks differ, from t = 1\.010 s on, by up to 1e-09", done.stdout)
    assert "length_1_m" not in done.stdout, "only what differs is named"


def test_a_release_that_cannot_replay_what_the_old_one_can_is_no_better(recordings: Path, tmp_path: Path) -> None:
    from_outside = "from controller.errors import ConfigurationError; raise ConfigurationError('no such channel')"
    done = compared(PKM, other(tmp_path, from_outside), recordings)
    assert done.returncode == 1
    assert "the new release cannot replay it: pkm replay: no such channel" in done.stdout


def test_without_recordings_there_is_nothing_to_compare(tmp_path: Path) -> None:
    done = compared(PKM, PKM, tmp_path)
    assert (done.returncode, done.stdout) == (0, "There is no recording to compare the releases with.\n")
    assert compared(PKM, tmp_path / "none", tmp_path).returncode == 2
    assert compared("--help").returncode == 0


# ---------------------------------------------------------------- the pages


def test_the_page_of_doctor_has_every_row_that_it_can_print() -> None:
    sources = [ROOT / "controller" / name for name in ("commands/doctor.py", "service/computer.py")]
    printed = {name for path in sources for name in re.findall(r'Finding\(\s*"([\w ]+)"', path.read_text())}
    assert {"kernel", "jitter", "watchdog", "disk write"} < printed
    table = re.findall(r"^\| ([\w ]+) \|", (ROOT / "docs" / "how-to" / "doctor.md").read_text(), re.M)
    assert printed == set(table) - {"row", "a sensor or device"}
