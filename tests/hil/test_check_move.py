"""The check move as its user runs it: a load cell wired the wrong way round is named, a sound machine passes."""

import re
from pathlib import Path
from typing import Any

from tests.hil.test_run import System
from tests.machines import CELLS, own_site
from tests.shell import pkm, refused


def test_a_cell_wired_the_wrong_way_round_is_named_and_without_it_all_is_good(tmp_path: Path) -> None:
    own = own_site(tmp_path)
    cell = System(tmp_path / "cell", command="plant", site=own)
    try:
        cell.said("listens at")
        switched = pkm("fault", cell.site, "cell_3.turned")
        assert (switched.code, switched.out) == (0, "cell_3.turned: cell_3 is wired the wrong way round\n")
        pkm("fault", cell.site, "cell_5.offset", "200")
        wrong, findings = _checked(tmp_path / "wrong", own)
        assert wrong.process.returncode == 2
        assert [row["sensor"] for row in findings if row["wrong"]] == ["cell_3", "cell_5"]
        last = wrong.log.read_text().splitlines()[-1]
        assert last.startswith("pkm run: sensor cell_3 has the wrong sign")
        assert "; sensor cell_5 has an offset of" in last
        for name in ("cell_3.turned", "cell_5.offset"):
            assert pkm("fault", cell.site, name, "off").code == 0
        good, findings = _checked(tmp_path / "good", own)
        assert good.process.returncode == 0, good.log.read_text()
        assert [row["sensor"] for row in findings] == CELLS and not any(row["wrong"] for row in findings)
        assert all(0.95 < row["scale"] < 1.15 for row in findings)  # the plant weighs 6 % more
    finally:
        cell.process.terminate()
        cell.ends()
    refused(pkm("fault", cell.site, "cell_3.turned"), 3, "no virtual cell listens")


def _checked(folder: Path, site: str) -> tuple[System, list[dict[str, Any]]]:
    """A run of the check move against the cell that runs already, and what it found."""
    folder.mkdir()
    with_that_cell = re.sub(r"(\[virtual_cell\].*\nstart = )true", r"\1false", site)
    for attempt in range(3):
        system = System(folder / f"{attempt}", "--check-move", "--json", site=with_that_cell)
        system.ends()
        if "STATUS_LATE" not in system.summary["faults"]:  # a machine that others load may be late, and stops then
            break
    summary = system.summary
    assert summary["mode"] == "OFF" and summary["recorded"] == summary["ticks"], system.log.read_text()
    return system, summary["check_move"]
