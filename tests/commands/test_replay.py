"""`pkm replay`: what a recording that was tampered with, cut or prolonged comes out as."""

from pathlib import Path

import numpy as np
import pytest

from controller.commands import replay
from controller.gateway.recording.recorder import Recorder
from controller.records import Array
from controller.schema import Site
from controller.settings import load_site, parse
from tests.drivers.test_replayed import AT, COLUMNS, SENSORS, session
from tests.machines import SIMULATION, own_site
from tests.shell import pkm, refused

TICKS = 150


@pytest.fixture(scope="module")
def rows() -> Array:
    return session(TICKS)


def recording(folder: Path, rows: Array, first: int = 0) -> Path:
    files = load_site(SIMULATION)
    quiet = files.site_text.replace("[realtime]", '[control.monitor]\ncollision = "off"\n\n[realtime]')
    meta = {
        "session": "one", "site": "simulation", "version": "0.1.0", "started_unix_s": 1.7e9,
        "started_monotonic_s": 0.0, "rate_hz": 100.0, "legs": 6, "sensors": SENSORS,
        "channels": [list(channel) for channel in COLUMNS], "configuration_sha256": "0" * 64,
        "machine_toml": files.machine_text, "site_toml": quiet,
    }  # fmt: skip
    made = Recorder(parse(own_site(folder), Site, folder), meta)
    made.append(first, rows[first:])
    made.close()
    return made.path


def test_as_recorded_nothing_differs_also_in_blocks(
    tmp_path: Path, rows: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recording(tmp_path, rows)
    whole = replay.compare(path)
    assert (whole.ticks, whole.first, whole.columns) == (TICKS, None, {})
    monkeypatch.setattr(replay, "blocks", lambda path, last_s: real(path, last_s=last_s, most_rows=7))
    assert replay.compare(path) == whole, "the hash does not depend on how it is read"
    assert pkm("replay", path)[:2] == (0, f"{TICKS} ticks replayed, no differing bit\n")


real = replay.blocks


def test_what_differs_is_counted_by_column_and_what_comes_out_is_not_touched(tmp_path: Path, rows: Array) -> None:
    changed = rows.copy()
    changed[40:60, AT["command_2_m"]] += 1e-6
    changed[50, AT["command_2_m"]] += 1e-3
    changed[70, AT["condition"]] = np.nan
    changed[80, AT["lateness_s"]] = 7.0  # timing is nobody's decision
    path = recording(tmp_path / "changed", changed)
    found = replay.compare(path)
    assert found.sha256 == replay.compare(recording(tmp_path / "as it was", rows)).sha256
    assert found.first is not None
    assert (found.first.row, found.first.channel) == (40, "command_2_m")
    assert set(found.columns) == {"command_2_m", "condition"}
    assert found.columns["condition"] == (1, rows[70, AT["t_s"]], 0.0)
    ticks, first_s, largest = found.columns["command_2_m"]
    assert (ticks, first_s) == (20, rows[40, AT["t_s"]]) and largest == pytest.approx(1.001e-3, rel=1e-6)
    told = pkm("replay", path, "--columns")
    assert told.code == 1 and "command_2_m: 20 ticks differ, from t = 0.410 s on, by up to 0.001\n" in told.out
    assert pkm("replay", path).out.startswith("tick 40 (t = 0.410 s): command_2_m was recorded as ")
    short = pkm("replay", path, "--to", "0.405")
    assert short[:2] == (0, "40 ticks replayed, no differing bit\n")


def test_what_cannot_be_replayed_is_refused(tmp_path: Path, rows: Array) -> None:
    refused(pkm("replay", tmp_path / "none.mcap"), 2, "no such recording")
    (tmp_path / "odd.mcap").write_text("nonsense")
    refused(pkm("replay", tmp_path / "odd.mcap"), 2, "not a recording")
    late = recording(tmp_path, rows, first=20)
    refused(pkm("replay", late, "--columns"), 2, "ticks are missing at 0")
