"""Recordings that broke off anywhere are recovered but for half a second, and the exit code says what became of it."""

from pathlib import Path

import numpy as np

from benchmarks.recording import Case, cut, killed_writer
from controller.gateway.recording.recorder import FLUSH_S


def judge(cases: list[Case]) -> None:
    for case in cases:
        assert case.right, case
        assert -0.01 <= case.lost_s <= FLUSH_S + 0.01, case  # a row between its count and the kill is not counted


def test_killed_while_writing(tmp_path: Path):
    rng = np.random.default_rng(7)
    cases = [killed_writer(tmp_path / str(k), rng) for k in range(3)]
    judge(cases)
    assert any(case.recovered > 100 for case in cases)


def test_cut_at_any_byte(tmp_path: Path):
    cases = list(cut(tmp_path, 20, np.random.default_rng(7)))
    judge(cases)
    assert all(case.code == 2 or case.recovered for case in cases)
