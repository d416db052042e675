"""A recording in place of the machine: the run it feeds decides what the recorded one decided."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from controller.clock import Tick
from controller.gateway.recording.recorder import Recorder
from controller.records import (
    Array,
    Fault,
    Link,
    Mode,
    Output,
    Quality,
    RequestKind,
    Sample,
    Timing,
    channels,
    pack,
    timing_width,
)
from controller.schema import Site
from controller.service import loop
from controller.settings import load_site, parse
from controller.state import Setup
from drivers.replayed import ReplayedDriver
from tests.hil.stand import System
from tests.machines import NOTHING, SIMULATION, Bench, ask, own_site, simulation_setup
from tests.shell import pkm, refused

SENSORS = [f"cell_{i}" for i in range(1, 7)]
COLUMNS = channels(6, SENSORS)
AT = {channel.name: k for k, channel in enumerate(COLUMNS)}
# what a run decides: everything but the time of its ticks and how the loop did
DECIDED = [k for k in range(len(COLUMNS) - timing_width()) if k != AT["t_s"]]


def setup() -> Setup:
    """That of the simulation site; what noise does to forces is no push."""
    given = simulation_setup()
    return given._replace(monitor=given.monitor._replace(told=Fault.NONE))


def session(ticks: int) -> Array:
    """A recorded session: ready, moves, a stop in mid-motion, off, and again; noise on what is measured."""
    rng = np.random.default_rng(5)
    seen = list[Sample]()

    def shaken(sample: Sample) -> Sample:
        sample.length_m_s[:] += 1e-4 * rng.standard_normal(6)
        sample.drive_n[:] = rng.normal(150.0, 20.0, 6)
        sample.sensor[:] = rng.normal(160.0, 5.0, 6)
        seen.append(sample)
        return sample

    cells = {
        "sensor": np.zeros(6),
        "sensor_age_s": np.full(6, 0.008),
        "sensor_quality": np.full(6, float(Quality.GOOD)),
    }
    bench = Bench(setup(), sensors=cells, broken=shaken)
    up = bench.setup.home + np.array([0.01, 0.0, 0.02, 0.05, 0.0, 0.0])
    script = {
        5: ask(RequestKind.READY), 20: ask(RequestKind.MOVE, up), 35: ask(RequestKind.STOP),
        150: ask(RequestKind.MOVE, bench.setup.home, speed_share=0.5), 250: ask(RequestKind.OFF),
    }  # fmt: skip
    rows = np.empty((ticks, len(COLUMNS)))
    for k, row in enumerate(rows):
        request = script.get((k + 1) % 300, NOTHING)
        output = bench.step(request)
        pack(row, seen[-1], request, output, Timing(0.0, 0.001, 0.002, 0, 0))
    return rows


def fed(driver: ReplayedDriver, ticks: int) -> tuple[Array, list[Output]]:
    """The loop on a stepped clock, on what the driver gives."""
    outputs, kept = list[Output](), list[Array]()

    class Ring:
        columns = len(COLUMNS)

        def push(self, row: Array) -> None:
            kept.append(row.copy())

    async def clock() -> AsyncIterator[Tick]:
        for number in range(1, ticks + 1):
            yield Tick(number, time.monotonic(), 0.0, 0)

    def observe(output: Output, timing: Timing) -> bool:
        outputs.append(output)
        return True

    coming = loop.control(
        setup(), clock(), driver, lambda sample, _: sample, driver.request, Ring(), observe, time.monotonic()
    )
    asyncio.run(coming)
    return np.array(kept), outputs


def test_what_was_decided_is_decided_again_bit_for_bit() -> None:
    rows = session(700)
    assert set(rows[:, AT["mode"]]) == {Mode.OFF, Mode.READY, Mode.ACTIVE, Mode.STOPPING}
    again, _ = fed(ReplayedDriver(rows, 6, 6), len(rows))
    assert again[:, DECIDED].tobytes() == rows[:, DECIDED].tobytes()
    assert (np.diff(again[:, AT["t_s"]]) >= 0.0).all()  # of now, not of then
    assert again[-1, AT["t_s"]] < rows[-1, AT["t_s"]]


def test_after_the_last_row_the_link_is_down() -> None:
    rows = session(33)
    assert rows[-1, AT["mode"]] == Mode.ACTIVE
    again, outputs = fed(ReplayedDriver(rows, 6, 6), len(rows) + 3)
    assert again[: len(rows), DECIDED].tobytes() == rows[:, DECIDED].tobytes()
    assert list(again[-4:, AT["link"]]) == [Link.UP, Link.DOWN, Link.DOWN, Link.DOWN]
    assert not again[-3:, AT["request_kind"]].any()
    assert [output.mode for output in outputs[-3:]] == [Mode.FAULT] * 3
    assert outputs[-1].faults & Fault.LINK_LOST


def test_a_row_a_tick_with_the_present_tick_and_time() -> None:
    rows = session(4)
    driver = ReplayedDriver(rows, 6, 6)
    assert (math.isnan(driver.exchange_s), driver.dropped) == (True, 0)
    for k in range(4):
        sample = driver.read(100 + 2 * k, 7.0 + k, 5.0)
        assert (sample.tick, sample.t_s) == (100 + 2 * k, 2.0 + k)
        assert sample.plc_cycle == rows[k, AT["plc_cycle"]]
        np.testing.assert_array_equal(sample.sensor, rows[k, [AT[f"{name}_n"] for name in SENSORS]])
    with pytest.raises(ValueError, match="no rows"):
        ReplayedDriver(rows[:0], 6, 6)


# ---------------------------------------------------------------- the whole service


def recorded(folder: Path, rows: Array) -> Path:
    """A recording of these rows on the simulation site."""
    files = load_site(SIMULATION)
    site = parse(own_site(folder).replace(f"{folder}/recordings", f"{folder}/before"), Site, folder)
    meta = {
        "session": "before", "site": site.name, "version": "0.1.0", "started_unix_s": 1.7e9,
        "started_monotonic_s": 0.0, "rate_hz": 100.0, "legs": 6, "sensors": SENSORS,
        "channels": [list(channel) for channel in COLUMNS], "configuration_sha256": "0" * 64,
        "machine_toml": files.machine_text, "site_toml": files.site_text,
    }  # fmt: skip
    recorder = Recorder(site, meta)
    recorder.append(0, rows)
    recorder.close()
    return recorder.path


def replayed(folder: Path, recording: Path) -> System:
    site = own_site(folder).replace("[broker]\nstart = true\n", "")
    site = site.replace("[realtime]", '[control.monitor]\ncollision = "off"\n\n[realtime]')
    return System(folder, "--replayed", str(recording), "--json", site=site)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Array]:
    rows = session(299)
    return recorded(tmp_path_factory.mktemp("recorded"), rows), rows


def test_a_whole_run_from_a_recording(tmp_path: Path, before: tuple[Path, Array]) -> None:
    path, rows = before
    system = replayed(tmp_path, path)
    assert system.ends() == 0, system.log.read_text()
    text = system.log.read_text()
    assert f"replayed: {len(rows)} ticks of {path} take the place of the machine" in text
    assert "plant started" not in text
    assert system.summary["ticks"] == system.summary["recorded"] == len(rows)
    assert system.summary["mode"] == "OFF"
    meta, columns, again = system.recording()
    assert meta["driver"] == "replayed"
    # a machine that others load may skip a tick, and from then on time has passed otherwise
    same = int(np.count_nonzero(columns["skipped"] == 0))
    assert again[:same, DECIDED].tobytes() == rows[:same, DECIDED].tobytes()
    assert Mode.ACTIVE in columns["mode"]


def test_a_recording_that_ends_in_motion_ends_in_a_fault(tmp_path: Path) -> None:
    path = recorded(tmp_path, session(33))
    system = replayed(tmp_path, path)
    assert system.ends() == 4, system.log.read_text()
    assert "Traceback" not in system.log.read_text()
    assert system.summary["ticks"] == 34
    assert "LINK_LOST" in system.summary["faults"]


def test_what_cannot_be_replayed_is_refused(tmp_path: Path, before: tuple[Path, Array]) -> None:
    path, _ = before
    refused(pkm("run", SIMULATION, "--replayed", tmp_path / "none.mcap"), 2, "none.mcap", "no such recording")
    refused(pkm("run", SIMULATION, "--replayed", path, "--demo"), 2, "--replayed", "--demo")
    three = SIMULATION.with_name("simulation-3-ups-s.toml")
    refused(pkm("run", three, "--replayed", path), 2, str(path), "legs 6", "simulation-3-ups-s.toml has 3")
    site = tmp_path / "site.toml"
    text = own_site(tmp_path)
    site.write_text(text.replace("rate_hz = 100.0", "rate_hz = 50.0"))
    refused(pkm("run", site, "--replayed", path), 2, "rate_hz 100.0", "50.0")
    start = text.index("[sensors.cell_6]")
    site.write_text(text[:start] + text[text.index("[control]") :])
    refused(pkm("run", site, "--replayed", path), 2, "sensors cell_1", "cell_6")
    empty = recorded(tmp_path / "empty", session(1)[:0])
    refused(pkm("run", SIMULATION, "--replayed", empty), 2, "no ticks")
