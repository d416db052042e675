"""The tare of the load cells, in a stepped world whose cells read the model's force, an offset and noise."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from controller.commands.replay import replay
from controller.records import (
    Array,
    Fault,
    Mode,
    Output,
    Quality,
    Request,
    RequestKind,
    Sample,
    Timing,
    Verdict,
    channels,
    pack,
)
from controller.requests import TARE_TICKS
from controller.safety.sensors import Watch
from controller.settings import load_site
from controller.state import Setup
from tests.machines import CELLS, NOTHING, SIMULATION, Bench, ask, simulation_setup

UP = np.array([0.03, -0.04, 0.03, 0.1, 0.05, -0.08])
OFFSETS_N = np.array([12.0, -7.0, 0.0, 55.0, -103.0, 3.5])  # 5 % of the capacity of 2200 N are 110 N


class World:
    """The cycle with cells that read what the model says at the last tick, `offset_n` more, and noise."""

    def __init__(self, offset_n: Array, noise_n: float = 0.5, setup: Setup | None = None) -> None:
        self.offset_n = offset_n.copy()
        self.rows: list[Array] = []
        self.broken: Callable[[Sample], Sample] = lambda sample: sample
        self._noise_n = noise_n
        self._dice = np.random.default_rng(7)
        self._model_n = np.zeros(6)
        self._sample: Sample | None = None
        self.bench = Bench(setup or simulation_setup(), broken=self._sensed)

    def _sensed(self, sample: Sample) -> Sample:
        noise_n = self._noise_n * self._dice.standard_normal(6)
        self._sample = self.broken(replace(sample, sensor=self._model_n + self.offset_n + noise_n))
        return self._sample

    def step(self, request: Request = NOTHING) -> Output:
        output = self.bench.step(request)
        self._model_n = output.model_cell_n
        row = np.empty(len(channels(6, CELLS)))
        assert self._sample is not None
        pack(row, self._sample, request, output, Timing(0.0, 0.0, 0.0, 0, 0))
        self.rows.append(row)
        return output

    def run(self, count: int) -> Output:
        for _ in range(count):
            output = self.step()
        return output

    def ready(self) -> None:
        """Drives on, and long enough at rest for a tare."""
        self.step(ask(RequestKind.READY))
        self.run(5 + 4 * TARE_TICKS)

    def tare(self) -> Output:
        return self.step(ask(RequestKind.TARE))


def optional() -> Setup:
    """Cells that the site does not require: one may be away without a fault that stops."""
    return simulation_setup()._replace(watch=Watch([0.05] * 6, [False] * 6, [True] * 6))


def test_a_tare_finds_the_offset_of_every_cell() -> None:
    world = World(OFFSETS_N)
    world.ready()
    assert not world.bench.outputs[-1].tare_n.any()
    output = world.tare()
    assert (output.verdict, output.mode) == (Verdict.ACCEPTED, Mode.READY)
    # 0.5 N of noise, 200 readings: 0.035 N
    np.testing.assert_allclose(output.tare_n, OFFSETS_N, rtol=0, atol=0.15)
    np.testing.assert_array_equal(world.run(10).tare_n, output.tare_n)  # it stays


def test_a_second_tare_says_the_same_and_not_twice_as_much() -> None:
    world = World(OFFSETS_N, noise_n=0.0)
    world.ready()
    first = world.tare().tare_n
    world.run(20)
    second = world.tare()
    assert second.verdict is Verdict.ACCEPTED
    np.testing.assert_allclose(second.tare_n, first, rtol=0, atol=1e-9)


def test_a_cell_that_drifted_gets_a_new_tare() -> None:
    world = World(OFFSETS_N)
    world.ready()
    world.tare()
    world.offset_n[1] += 30.0
    world.step(ask(RequestKind.MOVE, world.bench.setup.home + UP))
    world.run(200 + 5 * TARE_TICKS)
    output = world.tare()
    assert output.verdict is Verdict.ACCEPTED
    np.testing.assert_allclose(output.tare_n, world.offset_n, rtol=0, atol=0.15)


def test_no_tare_without_rest() -> None:
    world = World(OFFSETS_N)
    assert world.tare().verdict is Verdict.WRONG_MODE  # drives off: the brakes carry what they like
    world.ready()
    world.step(ask(RequestKind.MOVE, world.bench.setup.home + UP))
    while world.step().mode is Mode.ACTIVE:
        assert world.tare().verdict in (Verdict.WRONG_MODE, Verdict.NOT_READY)
    waited = 0
    while (output := world.tare()).verdict is Verdict.NOT_READY:
        assert not output.tare_n.any()
        waited += 1
    assert output.verdict is Verdict.ACCEPTED
    assert abs(waited - TARE_TICKS) <= 2


def test_a_tare_does_not_mix_in_what_was_read_before_the_motion() -> None:
    world = World(OFFSETS_N, noise_n=0.0)
    world.ready()
    world.step(ask(RequestKind.MOVE, world.bench.setup.home + UP))
    world.run(10)
    world.offset_n += 5.0
    world.run(150 + TARE_TICKS)
    np.testing.assert_allclose(world.tare().tare_n, OFFSETS_N + 5.0, rtol=0, atol=0.02)  # the cells lag by a tick


@pytest.mark.parametrize("quality", [Quality.NONE, Quality.BAD, Quality.HELD])
def test_no_tare_with_a_bad_cell(quality: Quality) -> None:
    def without_cell_5(sample: Sample) -> Sample:
        qualities = sample.sensor_quality.copy()
        qualities[4] = quality
        return replace(sample, sensor_quality=qualities)

    world = World(OFFSETS_N, setup=optional())
    world.ready()
    world.broken = without_cell_5
    world.run(10)
    output = world.tare()
    assert output.verdict is Verdict.NO_CELLS and not output.tare_n.any()
    assert output.faults is Fault.SENSOR_DEGRADED
    world.broken = lambda sample: sample
    world.run(4 * TARE_TICKS)
    assert world.tare().verdict is Verdict.ACCEPTED
    required = World(OFFSETS_N)
    required.ready()
    required.broken = without_cell_5
    required.run(10)
    assert required.tare().verdict is Verdict.FAULT_STANDS


def test_no_tare_without_cells() -> None:
    setup = simulation_setup()._replace(cells=np.full(6, -1), cell_capacity_n=np.zeros(6))
    world = World(OFFSETS_N, setup=setup)
    world.ready()
    assert world.tare().verdict is Verdict.NO_CELLS


@pytest.mark.parametrize(("offset_n", "verdict"), [(108.0, Verdict.ACCEPTED), (112.0, Verdict.TARE_TOO_LARGE)])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_tare_takes_away_no_more_than_the_site_allows(offset_n: float, verdict: Verdict, sign: float) -> None:
    world = World(sign * offset_n * np.eye(6)[3])
    world.ready()
    output = world.tare()
    assert output.verdict is verdict
    assert output.tare_n.any() == (verdict is Verdict.ACCEPTED)


def test_a_run_with_sensors_and_a_tare_is_replayed_bit_for_bit() -> None:
    world = World(OFFSETS_N, setup=None)
    world.ready()
    world.tare()
    world.step(ask(RequestKind.SINE, 0.3 * UP, frequency_hz=0.7))
    world.run(60)

    def odd(sample: Sample) -> Sample:
        return replace(
            sample,
            sensor=np.array([np.nan, 1.0, -0.0, 1e308, -5.0, 2.0]),
            sensor_age_s=np.array([np.inf, 0.2, 0.0, 0.01, 0.06, 0.0]),
            sensor_quality=np.array([0.0, 3.0, 1.0, 2.0, 3.0, 3.0]),
        )

    world.broken = odd
    world.run(30)
    files = load_site(SIMULATION)
    columns = channels(6, list(files.site.sensors))
    meta = {
        "machine_toml": files.machine_text, "site_toml": files.site_text, "version": "test",
        "channels": [list(channel) for channel in columns], "recording": {"first_index": 0, "gaps": []},
    }  # fmt: skip
    rows = np.array(world.rows)
    assert replay(meta, rows, SIMULATION) is None
    names = [channel.name for channel in columns]
    tares = rows[:, names.index("tare_4_n")]
    assert tares[0] == 0.0 and tares[-1] == pytest.approx(55.0, abs=0.15)
    for name in ("tare_4_n", "faults"):  # what the sensors caused is compared, too
        changed = rows.copy()
        changed[-1, names.index(name)] += 1.0
        difference = replay(meta, changed, SIMULATION)
        assert difference is not None and (difference.row, difference.channel) == (len(rows) - 1, name)
    changed = rows.copy()
    changed[100, names.index("cell_4_n")] += 1e-9  # a measured value that was not there gives another tare
    difference = replay(meta, changed, SIMULATION)
    assert difference is not None and difference.channel.startswith("wrench")
