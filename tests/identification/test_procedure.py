"""The procedure of Guo et al. by the command, from recordings of the virtual cell, against the plant's own friction."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.identification_world import STEP_S, Cell, Measured, csv_of
from benchmarks.system import SITES
from controller.gateway.recording.recorder import Recorder
from controller.identification import friction, friction_motion
from controller.identification.base_parameters import States, default_form
from controller.identification.excitation import Series, prepare, random_coefficients, states_at, times
from controller.records import Link, Quality, channels
from controller.schema import Monitor
from controller.settings import load_machine, load_site
from tests.gateway.bench import make_meta, make_site
from tests.identification.simulated import machine_of
from tests.machines import MACHINES
from tests.shell import pkm, refused

NAME, FILE = "3-ups-s", MACHINES / "3-ups-s.toml"
SENSORS = [f"{side}_pressure_{i}" for side in ("head", "rod") for i in (1, 2, 3)]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two turns and one period of the sine: a minute in place of 199 s."""
    rates = tuple(math.radians(rate) for rate in (20.0, 30.0))
    monkeypatch.setattr(friction_motion, "RATES_RAD_S", rates)
    monkeypatch.setattr(friction, "RATES_RAD_S", rates)
    monkeypatch.setattr(friction_motion, "SINE_PERIODS", 1)


def recorded(folder: Path, states: States) -> Path:
    """What a recorder writes of the motion, played by the controller in the virtual cell."""
    played = Cell(NAME, csv_of(states), control={"monitor": Monitor(collision="off")}).play()
    table = channels(3, SENSORS)
    rows = np.zeros((len(played.t_s), len(table)))
    for name, values in columns(played).items():
        rows[:, [channel.name for channel in table].index(name)] = values
    meta = make_meta(table=table) | {"machine_toml": FILE.read_text(), "legs": 3}
    folder.mkdir()
    recorder = Recorder(make_site(folder), meta)
    recorder.append(0, rows)
    recorder.close()
    return recorder.path


def columns(played: Measured) -> dict[str, np.ndarray | float]:
    tick = np.round(played.t_s / STEP_S)
    found: dict[str, np.ndarray | float] = {
        "tick": tick, "t_s": played.t_s, "plc_cycle": 5.0 * tick, "link": Link.UP, "drives_enabled": 1.0,
        "axes_homed": 1.0, "mode": 2.0,
    }  # fmt: skip
    for i in range(3):
        found[f"length_{i + 1}_m"] = played.length_m[:, i]
        for side in ("head", "rod"):
            found[f"{side}_pressure_{i + 1}_pa"] = played.sensors_n[f"{side}_pressure"][:, i]
            found[f"{side}_pressure_{i + 1}_quality"] = Quality.GOOD
    return found


def test_friction_by_its_own_motion_then_the_rest(tmp_path: Path) -> None:
    machine, plant = machine_of(NAME), load_site(SITES[NAME]).site.virtual_cell
    assert plant is not None
    problem = prepare(machine, default_form(machine), Series(period_s=6.0, rest_to_rest=True))
    t = times(problem.series)
    excited, fresh = (states_at(problem, random_coefficients(problem, seed), t) for seed in (0, 1))
    slow = recorded(tmp_path / "slow", friction_motion.friction_motion(machine).states)
    exciting = recorded(tmp_path / "exciting", excited)
    new = tmp_path / "new.toml"
    result = pkm("identify", FILE, exciting, "--friction", slow, "--fresh", recorded(tmp_path / "fresh", fresh),
                 "--write", new)  # fmt: skip
    assert result.code == 0, result.out + result.err
    said = re.search(r"Guo et al.*: dry ([\d.]+) ± ([\d.]+) N, viscous ([\d.]+) ± ([\d.]+) N s/m", result.out)
    assert said, result.out
    dry_n, _, viscous, _ = (float(number) for number in said.groups())
    assert dry_n == pytest.approx(plant.coulomb_n, rel=0.02)
    assert viscous == pytest.approx(plant.viscous_n_s_m, rel=0.03)
    # held: the fit has bodies only, and the new file has the friction that was said
    assert not re.search(r"coulomb_n|viscous_n_s_m", result.out)
    written = load_machine(new)[0].legs.friction
    assert (written.coulomb_n, written.viscous_n_s_m) == (
        pytest.approx(dry_n, abs=0.01), pytest.approx(viscous, abs=0.1)
    )  # fmt: skip
    verdict = result.out.splitlines()[-1]
    assert "the machine file with the friction of its own motion was" in verdict
    after_n, before_n = (float(text) for text in re.findall(r"(?:is|was) ([\d.]+) N", verdict))
    assert after_n < 0.5 * before_n
    # what holds none of the motion, or not whole, is refused, and so are cells and other platforms
    refused(pkm("identify", FILE, exciting, "--friction", exciting), 2, "found no", "pkm excite --friction")
    refused(pkm("identify", FILE, slow, "--friction", tmp_path / "none.mcap"), 2, "no such recording")
