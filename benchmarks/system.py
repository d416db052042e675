"""A whole system for benchmarks: `pkm run` on the simulation site with its own ports and folders."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from controller.gateway.recorder import read
from tests.machines import own_site


class Run(NamedTuple):
    """What a run left behind."""

    summary: dict[str, Any]
    columns: dict[str, np.ndarray]  # of the recording, by channel


def run(
    seconds: float,
    change: Callable[[str], str] = lambda site: site,
    beside: Callable[[subprocess.Popen[str], Path], None] = lambda process, log: None,
) -> Run:
    """Run the demo; `change` edits the site file's text, `beside` is called while it runs, with its log."""
    with tempfile.TemporaryDirectory(prefix="pkm-bench-") as name:
        folder = Path(name)
        site, log = folder / "site.toml", folder / "log"
        site.write_text(change(own_site(folder)))
        line = [sys.executable, "-m", "controller", "run", str(site), "--demo", "--json", "--duration", str(seconds)]
        with log.open("w") as file, subprocess.Popen(line, stdout=subprocess.PIPE, stderr=file, text=True) as process:
            beside(process, log)
            printed, _ = process.communicate(timeout=seconds + 90)
        if process.returncode != 0:
            sys.exit(f"the run ended with exit code {process.returncode}:\n{log.read_text()}")
        summary = json.loads(printed)
        _, names, rows = read(Path(summary["recording"]))
        return Run(summary, {column: rows[:, k] for k, column in enumerate(names)})
