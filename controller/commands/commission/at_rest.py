"""The steps for which nothing moves: files, computer, link, sensors, weight, and the identified model."""

import io
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from controller.commands import check
from controller.commands.commission.walk import WATCHED_S, Outcome, Walk, rounded, sensor_of
from controller.commissioning import record
from controller.commissioning.record import Trouble
from controller.errors import ConfigurationError, RunError
from controller.records import Link, Mode, Quality
from controller.settings import load_machine

LINK_SHARE = 0.95  # of ticks, with a fresh answer
GOOD_SHARE = 0.95  # of values
OFF_MODEL = 0.30  # share of what a cell should bear, before masses are known


def files(walk: Walk) -> Outcome:
    """Both files pass `pkm check`."""
    told = io.StringIO()
    try:
        check.report(walk.files.path, False, told)
    except ConfigurationError as error:
        return Outcome({}, [Trouble(str(error), "mend the file; `pkm check` tries it again")])
    return Outcome({"machine": walk.files.machine.name, "site": walk.files.site.name}, [])


def doctor(walk: Walk) -> Outcome:
    """`pkm doctor` finds nothing that fails."""
    # a process of its own: it takes real-time priority to watch the clock, and what computes here must not have it
    line = [
        sys.executable,
        "-m",
        "controller",
        "doctor",
        str(walk.files.path),
        "--seconds",
        str(walk.seconds),
        "--json",
    ]
    told = subprocess.run(line, capture_output=True, text=True, check=False)  # noqa: S603  this very program
    try:
        rows: list[dict[str, str]] = json.loads(told.stdout)
    except ValueError:
        raise RunError(f"`pkm doctor` did not come to an end: {told.stderr.strip()}") from None
    figures = {row["name"]: f"{row['verdict']}: {row['found']}" for row in rows if row["verdict"] != "pass"}
    failed = [Trouble(f"{row['name']}: {row['found']}", row["mend"]) for row in rows if row["verdict"] == "fail"]
    if walk.files.site.virtual_cell and failed:
        walk.say(f"noted only, since the cell is virtual: {'; '.join(trouble.text for trouble in failed)}")
        failed = []
    return Outcome({"examined": len(rows), **figures}, failed)


def link(walk: Walk) -> Outcome:
    """A second of rows: fresh answers, counted cycles, lengths that fit a pose."""
    service, limits = walk.service, walk.setup.limits
    if service.mode() is not Mode.OFF:
        raise RunError(f"the drives have to be off for this: mode {service.mode().name}, `pkm request off`")
    rows = service.watch(WATCHED_S)
    up, fresh = rows["link"] == Link.UP, rows["age_s"] < 4.5 * walk.setup.period_s
    length_m, residual_m = rows.legs("length_{}_m")[-1], float(rows["fk_residual_m"][-1])
    cycles = float(rows["plc_cycle"][-1] - rows["plc_cycle"][0])
    findings: list[Trouble] = []
    if (up & fresh).mean() < LINK_SHARE:
        found = f"only {100 * (up & fresh).mean():.0f} % of the ticks have a fresh answer of the PLC"
        findings.append(Trouble(found, "network, route and cycle time of the PLC: `pkm check --connect`"))
    if not cycles > 0.0:
        findings.append(Trouble("the PLC counts no cycles", "start the PLC program (RUN)"))
    if rows["axes_homed"][-1]:
        outside = (length_m < np.array(limits.length_min_m)) | (length_m > np.array(limits.length_max_m))
        findings += [
            Trouble(f"leg {k + 1} says {length_m[k]:.4f} m, outside its stroke", "its scaling and zero in the PLC")
            for k in np.flatnonzero(outside).tolist()
        ]
        if not outside.any() and not rows["fk_iterations"][-1] > 0:
            mend = "zeros and scaling of the axes in the PLC; joints in the machine file; legs that are exchanged"
            findings.append(Trouble("the leg lengths belong to no pose of this machine", mend))
    figures = {"plc_cycles": cycles, "exchange_ms": 1e3 * float(rows["exchange_s"].max())}
    return Outcome(figures | {"residual_m": residual_m, "length_m": rounded(length_m, 5)}, findings)


def sensors(walk: Walk) -> Outcome:
    """A second of values: valid, and not at their end."""
    rows, findings, figures = walk.service.watch(WATCHED_S), list[Trouble](), dict[str, Any]()
    capacity_n = walk.setup.cell_capacity_n
    for name in walk.files.site.sensors:
        value, quality = sensor_of(rows, name), rows[f"{name}_quality"]
        share = float((quality == Quality.GOOD).mean())
        mean = float(np.nanmean(value)) if np.isfinite(value).any() else math.nan
        figures[name] = f"{mean:.6g} ± {float(np.nanstd(value)) if math.isfinite(mean) else math.nan:.2g}"
        if share < GOOD_SHARE:
            mend = "wires, supply, terminal and calibration: `pkm check --connect` shows the raw value"
            findings.append(Trouble(f"{name} gives a valid value in {100 * share:.0f} % of the ticks only", mend))
        elif name.startswith("cell_") and abs(mean) > 0.98 * capacity_n[int(name.rsplit("_", 1)[1]) - 1] > 0.0:
            findings.append(Trouble(f"{name} is at its end ({mean:.0f} N)", "its zero, its wires, or too small a cell"))
    if any(name.startswith("cell_") for name in walk.files.site.sensors):
        walk.engineer.confirm("pressed", "Press on each load cell: did its value, and no other, rise?")
    return Outcome(figures, findings)


def static(walk: Walk) -> Outcome:
    """What the cells bear at rest beside the model."""
    cells = np.flatnonzero(walk.setup.cells >= 0).tolist()
    if not cells:
        walk.say("no load cells: pressures and drives are compared leg by leg")
        return Outcome({"cells": 0}, [])
    rows, findings, figures = walk.service.watch(WATCHED_S), list[Trouble](), dict[str, Any]()
    model = rows.legs("model_cell_{}_n").mean(0)
    for leg in cells:
        shown = float(sensor_of(rows, f"cell_{leg + 1}").mean())
        most = OFF_MODEL * abs(model[leg]) + walk.files.site.control.tare_limit * walk.setup.cell_capacity_n[leg]
        figures[f"cell_{leg + 1}"] = f"{shown:.1f} N, model {model[leg]:.1f} N"
        if abs(shown - model[leg]) <= most:
            continue
        text = f"cell_{leg + 1} shows {shown:.0f} N where the model says {model[leg]:.0f} N"
        if abs(shown + model[leg]) <= most:
            mend = f"turn its wires round, or sensors.cell_{leg + 1}.sign"
            findings.append(Trouble(f"{text}: cell_{leg + 1} has the wrong sign", mend))
        else:
            findings.append(Trouble(text, "calibration and capacity; what hangs on the platform; the machine file"))
    return Outcome(figures, findings)


def identification(walk: Walk) -> Outcome:
    """The site uses a file that `pkm identify` wrote with a PASS, or says why not."""
    site, machine = walk.files.path, walk.files.machine_path
    for line in (
        f"pkm excite {machine} --rest-to-rest > excitation.csv      (a track of the site file plays it)",
        f"pkm request track excitation --site {site}",
        f"pkm identify {machine} RECORDING --write NEW.toml",
    ):
        walk.say(line)
    answer = walk.engineer.tell("identified", "File that it wrote, or none: REASON: ").strip()
    reason = answer.partition(":")
    if reason[0].strip().lower() == "none" and reason[2].strip():
        return Outcome({"waived": reason[2].strip()}, [], waived=True)
    path = Path(answer)
    found, text = load_machine(path)
    said = next((line.lstrip("# ") for line in text.splitlines() if line.startswith("# PASS:")), "")
    if found.name != walk.files.machine.name or not said:
        mend = "run `pkm identify --write` with a recording of this machine"
        return Outcome(
            {}, [Trouble(f"{path}: is not a file that `pkm identify` wrote for {walk.files.machine.name}", mend)]
        )
    figures = {"verdict": said, "sha256": record.digest(text)}
    if text != walk.files.machine_text:
        trouble = Trouble(
            f"the site does not use {path}", f"machine = {str(path)!r} in {site}; the steps are then due again"
        )
        return Outcome(figures, [trouble])
    return Outcome(figures, [])
