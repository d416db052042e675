"""An empty Debian with systemd as process 1, in namespaces of its own, and nothing of what happens in it stays.

Needs root, debootstrap and systemd-nspawn. The Debian is unpacked once, into /var/cache/pkm-tests; each boot lays
memory over it.
"""

import re
import shutil
import subprocess
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.machines import ROOT, SIMULATION

SUITE = "bookworm"
BASE = Path("/var/cache/pkm-tests") / SUITE
PACKAGES = ["systemd", "dbus", "python3", "python3-venv", "iproute2", "openssl"]
WHEELS = ROOT / "build" / "wheels"
CELL = "127.0.0.1:48899"  # the network is the container's own
BOOT_S = 60.0


def missing() -> str:
    """What keeps this from working here, or nothing."""
    wanted = [name for name in ("debootstrap", "systemd-nspawn", "nsenter") if shutil.which(name) is None]
    if wanted:
        return f"{' and '.join(wanted)} not installed (apt: debootstrap, systemd-container)"
    return "" if list(WHEELS.glob("pkm_controller-*.whl")) else f"no wheels in {WHEELS}: make wheels"


def unpacked() -> Path:
    """The root folder of the Debian, made when it is not there yet."""
    if not BASE.exists():
        fresh = BASE.with_name(f"{SUITE}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.parent.mkdir(parents=True, exist_ok=True)
        line = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(fresh)]
        subprocess.run(line, check=True, capture_output=True)
        fresh.rename(BASE)
    return BASE


class Debian:
    """A booted container."""

    def __init__(self, leader: int) -> None:
        self._enter = ["nsenter", "--target", str(leader), "--mount", "--uts", "--ipc", "--net", "--pid", "--root",
                       "--wd", "env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                       "HOME=/root", "LANG=C.UTF-8"]  # fmt: skip
        self._numbers = Path(f"/proc/{leader}/ns/pid").readlink()
        self.root = Path(f"/proc/{leader}/root")  # its files, as seen from here
        self.network = ["nsenter", "--target", str(leader), "--net"]  # for what belongs on its wire, but not into it

    def run(self, *line: str, given: str = "", code: int | None = 0) -> str:
        """What a command prints; it ends with `code`, None: with any."""
        done = subprocess.run(  # one stream: sentences and table in the order they came
            [*self._enter, *line], input=given, text=True, timeout=1500, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert code is None or done.returncode == code, f"{line}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def sh(self, script: str, code: int | None = 0) -> str:
        return self.run("sh", "-c", script, code=code)

    def write(self, path: str, text: str) -> None:
        self.run("sh", "-c", f"cat >{path}", given=text)

    def property(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", "--property", name, "--value", unit).strip()

    def outside(self, pid: str) -> int:
        """The number that a process of the container has on this computer."""
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                numbers = re.search(r"^NSpid:\s+\d+\s+(\d+)$", (path / "status").read_text(), re.M)
                if numbers and numbers[1] == pid and (path / "ns/pid").readlink() == self._numbers:
                    return int(path.name)
        raise AssertionError(f"no process {pid} in the container")

    def wait(self, unit: str, state: str, seconds: float = 30.0) -> None:
        end_s = time.monotonic() + seconds
        while (found := self.property(unit, "SubState")) != state:
            assert time.monotonic() < end_s, f"{unit} is {found}\n" + self.run("journalctl", "-b", "-n", "60")
            time.sleep(0.05)

    def wait_for(self, test: str, seconds: float = 30.0) -> None:
        """Until a shell command succeeds."""
        end_s = time.monotonic() + seconds
        while subprocess.run([*self._enter, "sh", "-c", test], capture_output=True, check=False).returncode:
            assert time.monotonic() < end_s, f"{test}: never\n" + self.run("journalctl", "-b", "-n", "60")
            time.sleep(0.05)

    def files(self) -> set[str]:
        """All paths, but for those of the running system itself."""
        found = self.sh("find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /release -o -path /tmp "
                        "-o -path /run -o -path /var/log/journal -o -path /var/tmp \\) -prune -o -print")  # fmt: skip
        return set(found.splitlines())


@contextmanager
def booted(*mounts: tuple[Path, str]) -> Iterator[Debian]:
    """A Debian of its own, with folders of this computer mounted read-only."""
    line = ["systemd-nspawn", "--register=no", "--keep-unit", "--quiet", f"--directory={unpacked()}",
            "--volatile=overlay", "--private-network", "--console=pipe", "--capability=CAP_IPC_LOCK",
            *(f"--bind-ro={path}:{at}" for path, at in mounts), "--boot"]  # fmt: skip
    nspawn = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        debian = Debian(_leader(nspawn))
        end_s = time.monotonic() + BOOT_S
        while debian.run("systemctl", "is-system-running", code=None).strip() not in ("running", "degraded"):
            assert time.monotonic() < end_s, "Debian does not boot"
            time.sleep(0.2)
        debian.run("ip", "link", "set", "lo", "up")
        yield debian
    finally:
        nspawn.terminate()  # an orderly power-off
        try:
            nspawn.wait(30)
        except subprocess.TimeoutExpired:
            nspawn.kill()
            nspawn.wait()


def _leader(nspawn: "subprocess.Popen[bytes]") -> int:
    """The container's process 1, once it runs systemd."""
    children, end_s = Path(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children"), time.monotonic() + BOOT_S
    while time.monotonic() < end_s:
        assert nspawn.poll() is None, "systemd-nspawn ended at once"
        for pid in children.read_text().split():
            if Path(f"/proc/{pid}/comm").read_text().strip() == "systemd":
                return int(pid)
        time.sleep(0.05)
    raise AssertionError("no systemd in the container")


def release(folder: Path, version: str | None = None, more: str = "") -> Path:
    """What is carried to a control PC: config, deploy and wheels; as another version, with more in its cycle."""
    folder.mkdir()
    for name in ("config", "deploy"):
        shutil.copytree(ROOT / name, folder / name)
    wheels = folder / "wheels"
    wheels.mkdir()
    for wheel in WHEELS.glob("*.whl"):
        if version and wheel.name.startswith("pkm_controller-"):
            _as_version(wheel, wheels, version, more)
        else:
            shutil.copy(wheel, wheels)
    return folder


def _as_version(wheel: Path, folder: Path, version: str, more: str) -> None:
    """The same wheel under another version, with something appended to its cycle."""
    old = wheel.name.split("-")[1]
    with zipfile.ZipFile(wheel) as given, zipfile.ZipFile(folder / wheel.name.replace(old, version), "w") as made:
        for item in given.infolist():
            data, name = given.read(item), item.filename.replace(f"-{old}.dist-info", f"-{version}.dist-info")
            if name.endswith("/RECORD"):
                data = re.sub(rb",sha256=[^,]*,\d+", b",,", data).replace(f"-{old}.".encode(), f"-{version}.".encode())
            elif name.endswith("/METADATA") or name == "controller/__init__.py":
                data = data.replace(old.encode(), version.encode())
            elif name == "controller/cycle.py":
                data += more.encode()
            made.writestr(name, data)


def site() -> str:
    """The simulation site as services run it: everything else is started by others."""
    text = SIMULATION.read_text().replace('"run/', '"/run/pkm/').replace("[broker]\nstart = true\n", "")
    text = text.replace('folder = "recordings"', 'folder = "/var/lib/pkm/recordings"')
    return re.sub(r"(\[virtual_cell\].*\nstart = )true", r"\1false", text)
