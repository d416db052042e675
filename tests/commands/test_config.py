"""Configurations of a site over its years: what is kept of them, what is said of a change."""

import functools
import json
import logging
import re
import tomllib
from pathlib import Path

import pytest

from controller import schema
from controller.gateway.recording.recorder import Recorder
from controller.ring import RingReader
from controller.service import history
from controller.settings import SiteFiles, load_site, parse
from controller.units import unit_of
from tests.drivers.test_replayed import recorded, session
from tests.gateway.bench import make_meta, make_rows
from tests.hil.stand import System
from tests.machines import MACHINES, ROOT, SIMULATION, own_site
from tests.shell import pkm, refused

SECRET = "correct horse battery staple"


own = functools.cache(own_site)  # the same ports each time


def site_in(folder: Path, *replacements: tuple[str, str]) -> SiteFiles:
    """A site with a machine file of its own, as it stands after some edits."""
    folder.mkdir(exist_ok=True)
    for name, source in (("site.toml", own(folder)), ("machine.toml", (MACHINES / "6-upru.toml").read_text())):
        text = re.sub(r'machine = "[^"]*"', 'machine = "machine.toml"', source)
        for old, new in replacements:
            text = text.replace(old, new)
        (folder / name).write_text(text)
    return load_site(folder / "site.toml")


def start(files: SiteFiles, unix_s: float = 1.7e9) -> str:
    """What a start does about its configuration; its hash."""
    found = history.texts(files)
    history.keep(files.site, found, unix_s)
    return history.digest(found)


# ---------------------------------------------------------------- what changed


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[a]\nspeed_m_s = 0.5\n", "[a]\nspeed_m_s = 0.25\n", "site a.speed_m_s: 0.5 m/s → 0.25 m/s"),
        ("mass_kg = 2\n", "mass_kg = 3\n", "site mass_kg: 2 kg → 3 kg"),
        ("", "filter_s = 0.1\n", "site filter_s: left out → 0.1 s"),
        ("on = true\n", "on = false\n", "site on: true → false"),
        ('name_m = "x"\n', 'name_m = "y"\n', 'site name_m: "x" → "y"'),
        ("z_m = [0.7, 1.0]\n", "z_m = [0.7, 1.1]\n", "site z_m: [0.7,1.0] m → [0.7,1.1] m"),
        ("[[leg]]\nx_m = 1\n[[leg]]\nx_m = 2\n", "[[leg]]\nx_m = 1\n[[leg]]\nx_m = 3\n", "site leg[1].x_m: 2 m → 3 m"),
        ("at_4_ma = 0.0\n", "at_4_ma = 1.0\n", "site at_4_ma: 0.0 → 1.0"),
        ("gain_1_s = 1\n", "gain_1_s = 2\n", "site gain_1_s: 1 1/s → 2 1/s"),
        ("a = 1  # one\n", "# another\na   = 1\n", "comments or layout only"),
        ("t,x\n0,0\n", "t,x\n0,0\n1,0\n", "site: 2 lines, sha256 "),
        ("a = 1\nb = 2\n", "a = 2\nb = 3\n", "site a: 1 → 2; site b: 2 → 3"),
    ],
)
def test_a_change_is_told_by_file_and_key_with_units(old: str, new: str, told: str) -> None:
    assert history.sentence(history.changes({"site": old}, {"site": new})).startswith(told)


def test_every_value_of_a_machine_file_is_told_alone_and_under_its_own_name() -> None:
    """Each number of the file raised by one: one change, whose key leads to that number."""
    text = (MACHINES / "6-upru.toml").read_text()
    places = list(re.finditer(r"(?m)^(\w+) = (-?\d+\.\d+)(?=\s)", text))
    assert len(places) > 15
    for place in places:
        other = f"{text[: place.start(2)]}{float(place[2]) + 1.0}{text[place.end(2) :]}"
        (change,) = history.changes({"machine": text}, {"machine": other})
        value = tomllib.loads(other)
        for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", change.key):
            value = value[int(index)] if index else value[name]
        assert value == float(place[2]) + 1.0 and change.key.endswith(place[1])
        unit = unit_of(place[1])
        assert change.old == f"{float(place[2])} {unit}".strip(), place[1]


def test_many_changes_are_one_short_line() -> None:
    old, new = ("".join(f"key_{k} = {k + offset}\n" for k in range(100)) for offset in (0, 1))
    line = history.sentence(history.changes({"site": old}, {"site": new}))
    assert "\n" not in line and len(line) < 500 and line.endswith("and 92 more")
    long = history.sentence(history.changes({"site": f'a = "{"x" * 5000}"'}, {"site": f'a = "{"x" * 5001}"'}))
    assert len(long) < 300 and len(set(re.findall("sha256 [0-9a-f]{8}", long))) == 2


def test_the_hash_is_of_site_machine_profiles_and_tracks() -> None:
    files = load_site(SIMULATION.with_name("simulation-lines.toml"))
    found = history.texts(files)
    assert set(found) == {"site", "machine", *(f"devices.{name}" for name in files.site.devices)}
    hashes = {history.digest(found)} | {history.digest(found | {name: found[name] + "#"}) for name in found}
    assert len(hashes) == len(found) + 1
    assert history.digest(dict(reversed(found.items()))) == history.digest(found)
    with_track = history.texts(files._replace(track_texts={"up": "t_s,z_m\n"}))
    assert with_track["tracks.up"] == "t_s,z_m\n"


# ---------------------------------------------------------------- what is kept


def test_only_a_change_is_kept_and_it_is_one_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    first = start(site_in(tmp_path))
    assert "is the first one kept" in caplog.records[-1].getMessage()
    caplog.clear()
    assert start(site_in(tmp_path), 1.7e9 + 1.0) == first and not caplog.records
    second = start(site_in(tmp_path, ("mass_kg = 68.0", "mass_kg = 70.0"), ("priority = 50", "priority = 40")))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"configuration {first[:12]} → {second[:12]}, changed in site, machine: "
        "site realtime.priority: 50 → 40; machine platform.mass_kg: 68.0 kg → 70.0 kg"
    )
    assert start(site_in(tmp_path)) == first, "back again is another step"
    kept = history.kept(history.folder_of(site_in(tmp_path).site))
    assert [one.sha256 for one in kept] == [first, second, first]
    assert kept[1].texts["machine"] == (MACHINES / "6-upru.toml").read_text().replace(
        "mass_kg = 68.0", "mass_kg = 70.0"
    )


def test_a_clock_that_was_set_back_changes_no_order(tmp_path: Path) -> None:
    hashes = [start(site_in(tmp_path, ("priority = 50", f"priority = {k}")), 1.7e9 - 3600.0 * k) for k in range(12)]
    assert [one.sha256 for one in history.kept(history.folder_of(site_in(tmp_path).site))] == hashes


def test_damaged_files_and_a_folder_that_cannot_be_written_stop_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = start(site_in(tmp_path)), start(site_in(tmp_path, ("priority = 50", "priority = 1")))
    folder = history.folder_of(site_in(tmp_path).site)
    newest = sorted(folder.iterdir())[-1]
    for data in (b"", newest.read_bytes()[:-40], b"\xff\xfe{}", b"[1]", b'{"unix_s": "x"}'):
        newest.write_bytes(data)
        assert [one.sha256 for one in history.kept(folder)] == [first]
    assert start(site_in(tmp_path, ("priority = 50", "priority = 1"))) == second
    assert [one.sha256 for one in history.kept(folder)] == [first, second]
    assert len(list(folder.iterdir())) == 3, "numbers are not given twice"
    other = site_in(tmp_path / "other")
    Path(other.site.recording.folder).mkdir()
    (Path(other.site.recording.folder) / "configurations").write_text("no folder")
    start(other)
    assert "could not be kept" in caplog.records[-1].getMessage()


def test_number_and_size_are_bounded_and_the_newest_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST", 5)
    hashes = [start(site_in(tmp_path, ("priority = 50", f"priority = {k}"))) for k in range(8)]
    folder = history.folder_of(site_in(tmp_path).site)
    assert [one.sha256 for one in history.kept(folder)] == hashes[-5:]
    monkeypatch.setattr(history, "MOST_BYTES", 10)
    last = start(site_in(tmp_path))
    assert [one.sha256 for one in history.kept(folder)] == [last]
    assert sorted(folder.iterdir())[0].name.startswith("000009-")


def test_no_secret_is_kept(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.touch(0o600)
    secret.write_text(SECRET)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "simulation.users").write_text(f'[users.anna]\nrole = "viewer"\nhash = "{SECRET}"\n')
    files = site_in(tmp_path, ("[mqtt]\n", f'[mqtt]\nuser = "a"\npassword_file = "{secret}"\n'))
    assert files.site.mqtt.password_file and files.site.web.users
    start(files)
    (kept,) = history.folder_of(files.site).iterdir()
    assert SECRET not in kept.read_text() and str(secret) in kept.read_text()


# ---------------------------------------------------------------- the command


def test_history_tells_when_which_how_often_and_what(tmp_path: Path) -> None:
    files = site_in(tmp_path)
    first = start(files, 1_700_000_000.0)
    for k in range(2):
        made = Recorder(files.site, make_meta(f"boot{k}") | {"configuration_sha256": first})
        made.append(0, make_rows(10))
        made.close()
    second = start(site_in(tmp_path, ("mass_kg = 68.0", "mass_kg = 70.0")), 1_700_086_400.0)
    heads, one, two = pkm("config", tmp_path / "site.toml", "history").out.splitlines()
    assert heads.split() == ["since", "(UTC)", "hash", "version", "runs", "changed"]
    assert re.split(r"\s{2,}", one) == ["2023-11-14 22:13:20", first[:12], "0.1.0", "2", "the first one"]
    assert re.split(r"\s{2,}", two) == [
        "2023-11-15 22:13:20", second[:12], "0.1.0", "0", "machine platform.mass_kg: 68.0 kg → 70.0 kg",
    ]  # fmt: skip
    told = json.loads(pkm("config", tmp_path / "site.toml", "history", "--json").out)
    assert [(row["sha256"], row["runs"]) for row in told] == [(first, 2), (second, 0)]
    assert told[0]["changes"] is None
    assert told[1]["changes"] == [
        {"file": "machine", "key": "platform.mass_kg", "old": "68.0 kg", "new": "70.0 kg"}
    ]  # fmt: skip


def test_diff_of_what_is_kept_and_of_what_is_there_now(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    site_in(tmp_path)
    refused(pkm("config", path, "diff"), 2, "no configuration of this site is kept yet")
    assert pkm("config", path, "history").out.count("\n") == 1
    first = start(site_in(tmp_path))
    assert pkm("config", path, "diff")[:2] == (0, "the same\n")
    second = start(site_in(tmp_path, ("priority = 50", "priority = 40")))
    site_in(tmp_path, ("priority = 50", "priority = 30"))
    assert pkm("config", path, "diff")[:2] == (1, "site realtime.priority: 40 → 30\n")
    assert pkm("config", path, "diff", first[:8])[:2] == (1, "site realtime.priority: 50 → 30\n")
    assert pkm("config", path, "diff", second[:5].upper(), first)[:2] == (1, "site realtime.priority: 40 → 50\n")
    assert pkm("config", path, "diff", first, first)[:2] == (0, "the same\n")
    site_in(tmp_path, ("priority = 50", "priority = 40  # less"))
    assert pkm("config", path, "diff")[:2] == (1, "no key differs: comments or layout only\n")
    for wrong in ("", "abc", "zzzz", "0" * 64):
        refused(pkm("config", path, "diff", wrong or "x"), 2, "characters of a hash")
    refused(pkm("config", tmp_path / "none.toml", "history"), 2, "no such file")


# ---------------------------------------------------------------- the service


def test_a_start_of_the_service_keeps_it_and_the_next_says_what_changed(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "source", session(5))
    hashes: list[str] = []
    for priority in (50, 0):
        text = own(tmp_path).replace("priority = 50", f"priority = {priority}")
        system = System(tmp_path, "--replayed", str(recording), "--alone", "--json", site=text)
        system.ends()
        log = system.log.read_text()
        ring = RingReader(Path(parse(text, schema.Site, tmp_path).ring.path))
        hashes.append(ring.meta["configuration_sha256"])
        ring.close()
    assert f"configuration {hashes[0][:12]} → {hashes[1][:12]}, changed in site: site realtime.priority: 50 → 0" in log
    kept = history.kept(tmp_path / "recordings" / "configurations" / "simulation")
    assert [one.sha256 for one in kept] == hashes
    assert kept[0].texts["machine"] == (ROOT / "config" / "machines" / "6-upru.toml").read_text()
