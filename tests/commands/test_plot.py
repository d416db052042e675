"""The figure of a recording: what is drawn is what was recorded, of every kind of machine; trouble is one sentence."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from controller.commands import plot
from controller.commands.plot import curves
from controller.gateway.events import Event
from controller.gateway.recording.recorder import Recorder
from controller.records import Fault, Mode, channels
from tests.gateway.bench import AT, STARTED_UNIX_S, make_meta, make_rows, make_site
from tests.machines import SIMULATION
from tests.shell import pkm, refused

PNG = b"\x89PNG\r\n\x1a\n"


def record(folder: Path, rows: np.ndarray, events: list[Event] = [], meta: dict | None = None) -> Path:  # noqa: B006
    made = Recorder(make_site(folder), meta or make_meta())
    made.append(0, rows, events)
    made.close()
    return made.path


def told(k: int, kind: str, code: str) -> Event:
    return Event(STARTED_UNIX_S + 0.01 * k, kind, code, "x", {})


def test_a_point_is_the_extremes_of_its_rows_and_the_last_of_codes(tmp_path: Path):
    rows = make_rows(1003)
    rows[500, AT["x_m"]] = np.nan
    rows[700:, AT["mode"]] = Mode.FAULT
    found = curves(record(tmp_path, rows), ["x_m", "drive_2_n"], ["mode"], points=100)
    buckets = [rows[k : k + 10] for k in range(0, 1003, 10)]
    for name in ("x_m", "drive_2_n"):
        np.testing.assert_array_equal(found.low[name], [np.nanmin(bucket[:, AT[name]]) for bucket in buckets])
        np.testing.assert_array_equal(found.high[name], [np.nanmax(bucket[:, AT[name]]) for bucket in buckets])
    np.testing.assert_array_equal(found.last["mode"], [bucket[-1, AT["mode"]] for bucket in buckets])
    np.testing.assert_array_equal(found.t_s, [bucket[-1, AT["t_s"]] for bucket in buckets])
    few = curves(record(tmp_path / "few", rows[:50]), ["x_m"], [])
    np.testing.assert_array_equal(few.low["x_m"], rows[:50, AT["x_m"]])


def test_what_is_drawn_is_what_was_recorded(tmp_path: Path):
    rows = make_rows(400)
    rows[200:, AT["mode"]], rows[300:310, AT["skipped"]] = Mode.STOPPING, 3
    path = record(tmp_path, rows, [told(150, "fault_set", "OVERRUN"), told(160, "limit_entered", "SPEED")])
    figure = plot._figure(path)
    strip, position, _, lag, *_ = figure.axes
    by_label = {line.get_label(): line for line in lag.lines}
    np.testing.assert_allclose(by_label["leg 3"].get_ydata(), 1e3 * rows[:, AT["following_error_3_m"]])
    np.testing.assert_allclose(position.lines[1].get_ydata(), rows[:, AT["x_m"]])
    np.testing.assert_allclose(position.lines[0].get_ydata(), rows[:, AT["reference_x_m"]])
    assert {text.get_text() for text in strip.texts} == {"ACTIVE", "STOPPING", "OVERRUN"}
    marks = sorted(line.get_xdata()[0] for line in strip.lines)
    np.testing.assert_allclose(marks, [1.5, 1.6], atol=1e-6)


@pytest.mark.parametrize(("legs", "cells"), [(3, 0), (4, 0), (6, 6)])
def test_every_machine_has_its_picture(tmp_path: Path, legs: int, cells: int):
    table = channels(legs, [f"cell_{i}" for i in range(1, cells + 1)])
    names = [channel.name for channel in table]
    rows = np.random.default_rng(3).normal(size=(300, len(names)))
    rows[:, names.index("t_s")] = 0.01 * np.arange(300)
    rows[:, names.index("mode")] = Mode.READY
    rows[:, names.index("residual_1_n")] = np.nan  # never known
    many = [told(k, "fault_set", str(fault.name)) for k, fault in enumerate([*Fault, *Fault])]
    path = record(tmp_path, rows, many, make_meta(table=table) | {"legs": legs})
    result = pkm("plot", path, "-o", tmp_path / "out.png")
    assert (result.code, result.out) == (0, f"{tmp_path}/out.png\n"), result.err
    assert (tmp_path / "out.png").read_bytes().startswith(PNG)


def test_a_page_to_print(tmp_path: Path):
    path = record(tmp_path, make_rows(100))
    assert pkm("plot", path, "-o", tmp_path / "out.pdf").code == 0
    assert (tmp_path / "out.pdf").read_bytes().startswith(b"%PDF")


def test_what_cannot_be_drawn_is_one_sentence(tmp_path: Path):
    path = record(tmp_path, make_rows(100))
    refused(pkm("plot", path, "-o", tmp_path / "out.bmp"), 2, "'.bmp', expected .png, .pdf or .svg")
    refused(pkm("plot", path, "-o", tmp_path / "no" / "out.png"), 2, "No such file or directory")
    refused(pkm("plot", tmp_path / "none.mcap"), 2, "none.mcap: no such recording")
    empty = record(tmp_path / "empty", make_rows(0))
    refused(pkm("plot", empty, "-o", tmp_path / "out.png"), 2, "no rows")
    other = tmp_path / "other.mcap"
    other.write_bytes(SIMULATION.read_bytes())
    refused(pkm("plot", other, "-o", tmp_path / "out.png"), 2, "not a recording")
    with mock.patch.object(plot, "import_module", side_effect=ImportError):
        refused(pkm("plot", path, "-o", tmp_path / "out.png"), 2, "matplotlib")
    assert not (tmp_path / "out.png").exists()
