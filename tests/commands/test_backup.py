"""Back-up and restore: everything comes back bit for bit, or nothing is touched and a sentence says why."""

import errno
import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.commands import backup as module
from controller.gateway.accounts import Account, read_users, write_users
from controller.gateway.recording.recorder import Recorder
from controller.gateway.recording.shelf import set_note
from controller.service import history
from controller.service.sole import sole_controller
from controller.settings import load_site
from tests.gateway.bench import make_meta, make_rows
from tests.machines import ROOT, free_port
from tests.shell import pkm, refused

SITE = "config/sites/simulation.toml"
SECRET = b"correct horse battery staple"
HASH = "$argon2id$v=19$m=19456,t=2,p=1$c29tZXNhbHRzb21lc2FsdA$" + "A" * 43
TRACK = "t_s,x_m,y_m,z_m,yaw_rad,pitch_rad,roll_rad\n" + "".join(f"{k},0,0,0.85,0,0,0\n" for k in range(6))


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a site in use: files, users, a password, history, recordings; ports of its own."""
    folder = tmp_path / "house"
    shutil.copytree(ROOT / "config", folder / "config")
    path = folder / SITE
    text = path.read_text().replace("127.0.0.1:48899", f"127.0.0.1:{free_port()}")
    text = text.replace("port = 1883", f'port = {free_port()}\nuser = "pkm"\npassword_file = "run/password"')
    path.write_text(text.replace("port = 8080", "port = 0") + '\n[tracks.up]\nkind = "csv"\nfile = "up.csv"\n')
    path.with_name("up.csv").write_text(TRACK)
    (folder / "run").mkdir()
    write_users(folder / "run" / "simulation.users", {"anna": Account("operator", HASH)})
    (folder / "run" / "password").touch(0o600)
    (folder / "run" / "password").write_bytes(SECRET)
    monkeypatch.setattr("tests.shell.ROOT", folder)  # where commands run
    monkeypatch.chdir(folder)
    files = load_site(Path(SITE))
    history.keep(files.site, history.texts(files), 1.7e9)
    made = Recorder(files.site, make_meta())
    made.append(0, make_rows(300))
    made.close()
    set_note(Path("recordings"), made.path.name, "keep")
    (folder / "recordings" / "commissioning").mkdir()
    (folder / "recordings" / "commissioning" / "simulation.jsonl").write_text("{}\n")
    for other in ("commissioning/simulation-lines.jsonl", "configurations/other/000001-abc.json"):
        (folder / "recordings" / other).parent.mkdir(exist_ok=True)
        (folder / "recordings" / other).write_text("of another site")
    return folder


@pytest.fixture
def archive(house: Path, tmp_path: Path) -> Path:
    target = tmp_path / "site.tar.gz"
    assert pkm("backup", SITE, target).code == 0
    return target


def below(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and mode of every file; folders too."""
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else b"", path.stat().st_mode)
        for path in folder.rglob("*")
    }


def files_in(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as found:
        return {member.name: found.extractfile(member).read() for member in found}  # type: ignore[union-attr]


ALWAYS = {
    SITE, "config/sites/up.csv", "config/machines/6-upru.toml", "config/devices/el3356.toml", "run/simulation.users",
    "recordings/commissioning/simulation.jsonl",
}  # fmt: skip


def test_what_is_in_it_by_an_independent_reader(house: Path, archive: Path) -> None:
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    found = files_in(archive)
    manifest = json.loads(found.pop("manifest.json"))
    names = {name.removeprefix("files/") for name in found}
    kept = {name for name in names if name.startswith("recordings/configurations/simulation/000001-")}
    assert names == ALWAYS | kept and len(kept) == 1
    for entry in manifest["files"]:
        data = found[f"files/{entry['name']}"]
        assert data == (house / entry["name"]).read_bytes()
        assert (entry["sha256"], entry["bytes"]) == (hashlib.sha256(data).hexdigest(), len(data))
        assert entry["mode"] == stat.S_IMODE((house / entry["name"]).stat().st_mode)
    assert {entry["name"]: entry["mode"] for entry in manifest["files"]}["run/simulation.users"] == 0o600
    assert (manifest["version"], manifest["site"], manifest["base"]) == ("0.1.0", SITE, str(house))
    assert SECRET not in b"".join(found.values())


def test_secrets_and_recordings_only_when_asked_for(house: Path, tmp_path: Path) -> None:
    told = pkm("backup", SITE, tmp_path / "little.tar.gz").out
    assert "not in it: certificates, keys and passwords (--secrets)" in told
    assert "not in it: recordings (--recordings)" in told
    running = Recorder(load_site(Path(SITE)).site, make_meta("boot2"))
    running.append(0, make_rows(50))
    told = pkm("backup", SITE, tmp_path / "all.tar.gz", "--secrets", "--recordings").out
    running.close()
    assert "bench-boot2" not in told and "simulation-boot2: it is being recorded" in told
    found = files_in(tmp_path / "all.tar.gz")
    assert found["files/run/password"] == SECRET
    assert found["files/recordings/simulation-boot1.mcap"] == Path("recordings/simulation-boot1.mcap").read_bytes()
    assert found["files/recordings/simulation-boot1.note.txt"] == b"keep"
    assert pkm("restore", tmp_path / "all.tar.gz", tmp_path / "new").code == 0
    assert below(tmp_path / "new")["run/password"] == below(house)["run/password"]


def test_files_outside_of_the_working_directory_lead_from_the_root(house: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.shell.ROOT", tmp_path)  # the site's own files lie below, its users do not
        path = house / SITE
        path.write_text(path.read_text().replace('"run/', f'"{house}/run/').replace('"recordings"', f'"{house}/rec"'))
        patch.setattr("tests.shell.ROOT", house / "config")
        told = pkm("backup", path, tmp_path / "site.tar.gz").out
    assert f"pkm restore {tmp_path}/site.tar.gz /\n" in told
    assert f"files{house}/{SITE}" in files_in(tmp_path / "site.tar.gz")
    assert pkm("restore", tmp_path / "site.tar.gz", "/").out.count("the same") == len(ALWAYS) - 1


def test_it_comes_back_bit_for_bit_with_its_modes_and_twice_is_once(house: Path, archive: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "new"
    told = pkm("restore", archive, target)
    assert told.code == 0 and f"the site file is {target / SITE}" in told.out
    before, after = below(house), below(target)
    assert set(after) > ALWAYS and all(after[name] == before[name] for name in after)
    assert read_users(target / "run" / "simulation.users")["anna"].hash == HASH
    again = pkm("restore", archive, target)
    assert again.code == 0 and "0 of" in again.out
    assert below(target) == after


def test_nothing_is_overwritten_unless_told(archive: Path, tmp_path: Path) -> None:
    target = tmp_path / "new"
    pkm("restore", archive, target)
    (target / SITE).write_text("mine")
    (target / "config" / "sites" / "up.csv").unlink()
    before = below(target)
    refused(pkm("restore", archive, target), 2, str(target / SITE), "1 other files", "--over")
    assert below(target) == before
    told = pkm("restore", archive, target, "--over")
    assert told.code == 0 and f"replaced  {target / SITE}" in told.out and f"restored  {target}/config" in told.out
    assert (target / SITE).read_bytes() == files_in(archive)[f"files/{SITE}"]
    refused(pkm("backup", SITE, archive), 2, "nothing is overwritten")


def test_a_site_that_runs_is_left_alone(house: Path, archive: Path, tmp_path: Path) -> None:
    with sole_controller(load_site(house / SITE).site.ads):
        refused(pkm("restore", archive, tmp_path / "new", "--over"), 2, "runs, stop it first", f"process {os.getpid()}")
    assert not (tmp_path / "new").exists()
    path = house / SITE  # it was given another PLC since the back-up, and runs with that
    path.write_text(
        path.read_text().replace("ams_port = 851", "ams_port = 851\n").replace("127.0.0.1.1.1", "9.9.9.9.1.1")
    )
    with sole_controller(load_site(path).site.ads):
        refused(pkm("restore", archive, house, "--over"), 2, "runs, stop it first")
    assert pkm("restore", archive, house, "--over").code == 0


# ---------------------------------------------------------------- damaged, foreign, hostile


def test_truncated_anywhere_it_is_refused_and_nothing_is_written(archive: Path, tmp_path: Path) -> None:
    data, target = archive.read_bytes(), tmp_path / "new"
    for length in sorted({*np.random.default_rng(1).integers(0, len(data), 40).tolist(), 0, 1, 10, len(data) - 1}):
        (tmp_path / "cut.tar.gz").write_bytes(data[:length])
        refused(pkm("restore", tmp_path / "cut.tar.gz", target), 2, "cut.tar.gz")
        assert not target.exists(), length


def test_a_changed_byte_is_refused_or_changes_nothing(archive: Path, tmp_path: Path) -> None:
    """Only a few bytes of the head of the gzip file mean nothing."""
    rng, data, accepted = np.random.default_rng(2), archive.read_bytes(), 0
    for at in [*range(24), *rng.integers(24, len(data), 120).tolist()]:
        other = bytearray(data)
        other[at] ^= int(rng.integers(1, 256))
        (tmp_path / "other.tar.gz").write_bytes(other)
        told, target = pkm("restore", tmp_path / "other.tar.gz", tmp_path / "new"), tmp_path / "new"
        if told.code == 0:
            accepted += 1
            assert at < 24 and (target / SITE).read_bytes() == files_in(archive)[f"files/{SITE}"]
            shutil.rmtree(target)
        else:
            refused(told, 2, "other.tar.gz")
            assert not target.exists(), at
    assert accepted < 20


def packed(members: list[tuple[Any, bytes]]) -> bytes:
    made = io.BytesIO()
    with gzip.open(made, "wb") as plain, tarfile.open(fileobj=plain, mode="w") as tar:
        for what, data in members:
            info = what if isinstance(what, tarfile.TarInfo) else tarfile.TarInfo(what)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


def forged(archive: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> bytes:
    """An archive whose manifest fits to what is in it, after some change to both."""
    found = files_in(archive)
    manifest = json.loads(found.pop("manifest.json"))
    change(manifest, found)
    return packed([*found.items(), ("manifest.json", json.dumps(manifest).encode())])


def renamed(name: str) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    def change(manifest: dict[str, Any], found: dict[str, bytes]) -> None:
        entry = next(entry for entry in manifest["files"] if entry["name"].endswith("up.csv"))
        found[f"files/{name}"] = found.pop(f"files/{entry['name']}")
        entry["name"] = name

    return change


@pytest.mark.parametrize("name", ["../out", "/tmp/pkm-out", "a/../../out", "a/./b", "a//b", "..", ".", "a\nb", "out/x"])
def test_a_path_that_leaves_the_folder_is_refused(archive: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "in" / "new"
    target.mkdir(parents=True)
    (target / "out").symlink_to(tmp_path)
    archive.write_bytes(forged(archive, renamed(name)))
    before = below(tmp_path)
    refused(pkm("restore", archive, target, "--over"), 2)
    assert below(tmp_path) == before and not Path("/tmp/pkm-out").exists()


def test_what_is_no_file_is_refused(archive: Path, tmp_path: Path) -> None:
    found = list(files_in(archive).items())
    link, device, hard = (tarfile.TarInfo("files/link") for _ in range(3))
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    device.type, device.devmajor, device.devminor = tarfile.CHRTYPE, 1, 3
    hard.type, hard.linkname = tarfile.LNKTYPE, f"files/{SITE}"
    for odd in (link, device, hard):
        archive.write_bytes(packed([*found[:-1], (odd, b""), found[-1]]))
        refused(pkm("restore", archive, tmp_path / "new"), 2, "not a whole backup")
    assert not (tmp_path / "new").exists()
    archive.write_bytes(packed(found))
    (tmp_path / "new" / SITE).mkdir(parents=True)
    refused(pkm("restore", archive, tmp_path / "new", "--over"), 2, "no file")


def test_what_does_not_fit_its_manifest_is_refused_by_name(archive: Path, tmp_path: Path) -> None:
    found = files_in(archive)
    manifest = ("manifest.json", found.pop("manifest.json"))
    members = list(found.items())
    name, data = members[1]
    for other, word in (
        ([members[0], (name, data + b"#"), *members[2:], manifest], name.removeprefix("files/")),
        ([*members[:1], *members[2:], manifest], name.removeprefix("files/")),
        ([*members, ("files/more", b""), manifest], "more"),
        ([*members, members[0], manifest], "not a whole backup"),
        ([*members, manifest, ("files/more", b"")], "not a whole backup"),
        ([*members, manifest, manifest], "not a whole backup"),
        (members, "not a whole backup"),
        ([*members, ("manifest.json", b"{}")], "not a whole backup"),
        ([*members, ("manifest.json", b"\xff" * 100)], "not a whole backup"),
    ):
        archive.write_bytes(packed(other))
        refused(pkm("restore", archive, tmp_path / "new"), 2, word)
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [("kind", "other"), ("format", 2), ("site", "config/none.toml"), ("files", []), ("made_unix_s", "yesterday")],
)
def test_a_manifest_of_another_kind_is_refused(archive: Path, tmp_path: Path, key: str, value: Any) -> None:
    archive.write_bytes(forged(archive, lambda manifest, _: manifest.update({key: value})))
    refused(pkm("restore", archive, tmp_path / "new"), 2, str(archive))
    assert not (tmp_path / "new").exists()


def test_a_site_file_of_another_version_is_refused_with_the_version_that_takes_it(
    archive: Path, tmp_path: Path
) -> None:
    def change(manifest: dict[str, Any], found: dict[str, bytes]) -> None:
        data = found[f"files/{SITE}"] = found[f"files/{SITE}"] + b"\n[key_of_the_future]\n"
        entry = next(entry for entry in manifest["files"] if entry["name"] == SITE)
        entry |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        manifest["version"] = "7.0.0"

    archive.write_bytes(forged(archive, change))
    refused(pkm("restore", archive, tmp_path / "new"), 2, "install version 7.0.0", "key_of_the_future")


def test_foreign_files_are_refused(house: Path, tmp_path: Path) -> None:
    for data in (b"", b"hello", b"PK\x03\x04" + bytes(100), gzip.compress(b"hello" * 1000), packed([("a", b"b")])):
        (tmp_path / "foreign").write_bytes(data)
        refused(pkm("restore", tmp_path / "foreign", tmp_path / "new"), 2, "not a whole backup")
    refused(pkm("restore", tmp_path / "none", tmp_path / "new"), 2, "no such file")
    refused(pkm("restore", tmp_path, tmp_path / "new"), 2, "directory")
    assert not (tmp_path / "new").exists()


def test_a_disk_that_is_full_leaves_nothing_half_done(
    house: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "new"
    pkm("restore", archive, target)
    (target / SITE).write_text("mine")
    shutil.rmtree(target / "config" / "devices")
    (target / "run" / "simulation.users").unlink()
    before, left = below(target), 1

    def full(_number: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module.os, "fsync", full)
    refused(pkm("restore", archive, target, "--over"), 2, "No space left")
    assert below(target) == before
    refused(pkm("backup", SITE, tmp_path / "second.tar.gz"), 2, "No space left")
    assert not list(tmp_path.glob("second*"))


def test_a_site_that_cannot_be_read_is_no_backup(house: Path, tmp_path: Path) -> None:
    (house / "config" / "devices" / "el3356.toml").unlink()
    refused(pkm("backup", SITE, tmp_path / "site.tar.gz"), 2, "el3356.toml: No such file")
    (house / SITE).write_text("nonsense")
    refused(pkm("backup", SITE, tmp_path / "other.tar.gz"), 2, "not valid TOML")
    assert not list(tmp_path.glob("*.tar.gz*"))


def test_without_users_there_is_a_backup_that_says_so(house: Path, tmp_path: Path) -> None:
    (house / "run" / "simulation.users").unlink()
    told = pkm("backup", SITE, tmp_path / "site.tar.gz")
    assert told.code == 0 and "run/simulation.users: no such file" in told.out


# ---------------------------------------------------------------- and it runs


def test_a_recovered_site_starts_as_the_same_configuration(house: Path, tmp_path: Path) -> None:
    path = house / SITE  # the broker of the run has no users
    path.write_text(path.read_text().replace('\nuser = "pkm"\npassword_file = "run/password"', ""))
    files = load_site(path)
    history.keep(files.site, history.texts(files), 1.7e9)
    assert pkm("backup", SITE, tmp_path / "site.tar.gz").code == 0
    shutil.move(house, tmp_path / "lost")
    target = tmp_path / "recovered"
    target.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.shell.ROOT", target)
        assert pkm("restore", tmp_path / "site.tar.gz", ".").code == 0
    line = [sys.executable, "-m", "controller", "run", SITE, "--duration", "3", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=target, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["recorded"] > 100
    assert "could not be kept" not in done.stderr and " → " in done.stderr
    assert "changed in" not in done.stderr and "is the first one kept" not in done.stderr
