"""`pkm commission`: from a wired machine to an accepted one, step by step, with a record of all of it.

The steps and what they need are data (`controller.commissioning.steps`); here is how each is done. Whatever moves is
asked for at the gateway, as any request is, after the engineer has agreed; Ctrl-C stops the machine and keeps the
record.
"""

import io
import json
import math
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from controller import schema
from controller.commands import check
from controller.commands.request import ask, local_token, login
from controller.commissioning import evidence, moves, record
from controller.commissioning.evidence import Dial, Evidence
from controller.commissioning.record import ACCEPTED, Entry, Said, Trouble
from controller.commissioning.service import PATIENCE_S, Rows, Service
from controller.commissioning.steps import STEPS, Step
from controller.errors import ConfigurationError, DeviceError, PkmError, RunError
from controller.gateway.accounts import Accounts, Refused, may
from controller.identification.identify import write_new
from controller.mechanism.layout import RADIUS
from controller.mechanism.platform import freedoms
from controller.motion import trajectory
from controller.motion.monitor import AXIS
from controller.records import (
    POSE,
    Array,
    Estimate,
    Link,
    Mode,
    Output,
    Quality,
    Reference,
    Request,
    RequestKind,
    unpack_inputs,
)
from controller.records import Verdict as Answer
from controller.requests import plan_stop
from controller.service.check_move import CheckMove
from controller.settings import SiteFiles, load_machine, load_site, text_of
from controller.state import Setup, prepare
from drivers.fitting import fit

FAULT, FINDING = RunError.exit_code, ConfigurationError.exit_code
WATCHED_S = 1.0
REST_S, SETTLE_S = 0.4, 0.2  # averaged, and before, in every pose of the moves
LINK_SHARE = 0.95  # of ticks, with a fresh answer
GOOD_SHARE = 0.95  # of values
OFF_MODEL = 0.30  # share of what a cell should bear, before masses are known
INDEPENDENT = 0.5  # share of the samples of a rest that are no copies of each other
DRIFT_M = 2e-4  # of a leg that holds
STOP_ROOM, STOP_SHARE = 0.4, 0.2  # of room and speed, of the move that is stopped
STOP_S, STOP_WAY, STOP_WAY_M = 0.1, 0.1, 2e-3  # how much later and farther than planned
STANDS_M_S = 2e-3
SWING_ROOM, SWING_HZ, SWING_TURNS = 0.2, 0.4, 2
LEG = ("a lead", "the drives")  # what must be told of every leg, as `unseen` calls it
FOLLOWS = 0.1  # share of control.following_error_m
BEYOND = 0.1  # of its range, how far beyond it the coordinate lies that must be refused


class Declined(PkmError):  # noqa: N818  nothing is in error
    """The engineer did not agree."""


class Outcome(NamedTuple):
    """What came of a step."""

    figures: dict[str, Any]
    findings: list[Trouble]
    waived: bool = False


@dataclass
class Engineer:
    """Who is asked, and what was answered."""

    name: str
    given: dict[str, str]  # answers beforehand, by question
    yes: bool  # to every question that yes answers
    out: TextIO
    said: list[Said] = field(default_factory=list[Said])

    def confirm(self, key: str, text: str) -> None:
        """A question that only yes answers.

        Raises:
            Declined: it was not yes.
        """
        answer = self._answered(key, f"{text} [y/N] ", "yes" if self.yes else None)
        if answer.strip().lower() not in ("y", "yes"):
            raise Declined(f"{key}: not agreed to")

    def tell(self, key: str, text: str) -> str:
        """A question with any answer.

        Raises:
            ConfigurationError: there is none.
        """
        return self._answered(key, text, None)

    def _answered(self, key: str, text: str, otherwise: str | None) -> str:
        answer = self.given.get(key, otherwise)
        if answer is None and not sys.stdin.isatty():
            raise ConfigurationError(f"question {key!r} has no answer: {text.strip()} (--answers FILE, or a terminal)")
        if answer is None:
            answer = input(f"      {text}")
        else:
            print(f"      {text}{answer}", file=self.out)
        if answer:
            self.said.append(Said(text.removesuffix(" [y/N] "), answer, self.name, record.now()))
        return answer


@dataclass
class Walk:
    """What the steps work with."""

    files: SiteFiles
    setup: Setup
    engineer: Engineer
    seconds: float
    connect: Callable[[], Service]
    out: TextIO
    found: Service | None = None

    @property
    def service(self) -> Service:
        """The running one, looked for when it is needed first."""
        if self.found is None:
            self.found = self.connect()
        return self.found

    def say(self, text: str) -> None:
        """A line below the step's own."""
        print(f"      {text}", file=self.out, flush=True)


# ---------------------------------------------------------------- the steps


def _files(walk: Walk) -> Outcome:
    told = io.StringIO()
    try:
        check.report(walk.files.path, False, told)
    except ConfigurationError as error:
        return Outcome({}, [Trouble(str(error), "mend the file; `pkm check` tries it again")])
    return Outcome({"machine": walk.files.machine.name, "site": walk.files.site.name}, [])


def _doctor(walk: Walk) -> Outcome:
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


def _link(walk: Walk) -> Outcome:
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
    return Outcome(figures | {"residual_m": residual_m, "length_m": _rounded(length_m, 5)}, findings)


def _sensors(walk: Walk) -> Outcome:
    rows, findings, figures = walk.service.watch(WATCHED_S), list[Trouble](), dict[str, Any]()
    capacity_n = walk.setup.cell_capacity_n
    for name in walk.files.site.sensors:
        value, quality = _sensor(rows, name), rows[f"{name}_quality"]
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


def _static(walk: Walk) -> Outcome:
    cells = np.flatnonzero(walk.setup.cells >= 0).tolist()
    if not cells:
        walk.say("no load cells: pressures and drives are compared leg by leg")
        return Outcome({"cells": 0}, [])
    rows, findings, figures = walk.service.watch(WATCHED_S), list[Trouble](), dict[str, Any]()
    model = rows.legs("model_cell_{}_n").mean(0)
    for leg in cells:
        shown = float(_sensor(rows, f"cell_{leg + 1}").mean())
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


def _homing(walk: Walk) -> Outcome:
    homing = walk.files.site.homing
    if homing.method == "absolute":
        walk.say("the encoders are absolute: nothing to look for")
        return Outcome({"method": homing.method}, [])
    most_s, moved_m = walk.setup.homing_most_s + 5.0, np.zeros(0)
    service = walk.service
    for _ in range(2):
        service.powered = True
        if service.mode() is not Mode.OFF:
            service.off()
        since = service.since()
        service.insist("home")
        service.until(lambda row: row["mode"][0] == Mode.HOMING, 5.0, "homing does not begin")
        service.until(lambda row: row["mode"][0] in (Mode.READY, Mode.OFF), most_s, "homing does not end")
        rows = since()
        found = np.flatnonzero(np.diff(rows["axes_homed"]) > 0.0)
        if not len(found):
            raise RunError("homing ended without its references")
        length_m = rows.legs("length_{}_m")
        moved_m = length_m[found[-1] + 1] - length_m[found[-1]]
    worst, limit_m = int(np.argmax(np.abs(moved_m))), walk.setup.control.start_tolerance_m
    findings = [
        Trouble(f"leg {k + 1} found its reference {1e3 * moved_m[k]:.2f} mm from the first time", "its mark or stop")
        for k in np.flatnonzero(np.abs(moved_m) > limit_m).tolist()
    ]
    return Outcome({"method": homing.method, "worst_leg": worst + 1, "repeats_m": float(moved_m[worst])}, findings)


def _hold(walk: Walk) -> Outcome:
    service = walk.service
    service.ready()
    service.watch(WATCHED_S)  # a wrong model is off by what the drives take a moment to make up for
    rows = service.watch(WATCHED_S)
    length_m = rows.legs("length_{}_m")
    moved_m, lag_m = np.ptp(length_m, axis=0), np.abs(rows.legs("following_error_{}_m")).max(0)
    limit_m = walk.setup.control.start_tolerance_m
    findings = [
        Trouble(f"leg {k + 1} does not hold still: {1e3 * moved_m[k]:.2f} mm", "gains and brake of its drive")
        for k in np.flatnonzero(moved_m > DRIFT_M).tolist()
    ]
    findings += [
        Trouble(
            f"leg {k + 1} is {1e3 * lag_m[k]:.2f} mm off its set-point", "position loop and feed-forward of its drive"
        )
        for k in np.flatnonzero(lag_m > limit_m).tolist()
    ]
    return Outcome({"moved_m": float(moved_m.max()), "lag_m": float(lag_m.max())}, findings)


class Forces(NamedTuple):
    """What the legs' sensors show at a rest, (n,) each; NaN without a sensor."""

    shown_n: Array
    turned_n: Array
    noise_n: Array  # standard error of a mean
    source: str


def _forces(setup: Setup, rows: Rows, sensors: list[str]) -> Forces:
    """From load cells where there is one, else from pressures, else from drives. Of redundant legs they tell nothing:
    how these share the load is not the model's to say."""
    n = len(setup.cells)
    nothing = np.full(n, np.nan)
    if freedoms(setup.machine.platform) != n:
        return Forces(nothing, nothing, np.full(n, np.inf), "none: legs outnumber freedoms")
    # what may rub: as the machine file says, and no less than where nobody has identified it
    dry_n = np.maximum(setup.monitor.dry_n, setup.monitor.bounds[AXIS, 0])
    if (setup.cells >= 0).any():
        values = np.full((len(rows.rows), n), np.nan)
        for leg in np.flatnonzero(setup.cells >= 0).tolist():
            values[:, leg] = _sensor(rows, f"cell_{leg + 1}")
        turned, source, dry_n = -values, "load cells", np.zeros(n)
    elif (setup.monitor.pressures >= 0).all():
        head, rod = (
            np.array([_sensor(rows, f"{side}_pressure_{k}") for k in range(1, n + 1)]).T for side in ("head", "rod")
        )
        areas = setup.monitor.areas_m2
        values, turned = head * areas[0] - rod * areas[1], rod * areas[0] - head * areas[1]
        source = "chamber pressures"
    else:
        values = rows.legs("drive_{}_n")
        turned, source = -values, "forces of the drives"
    # at rest dry friction bears whatever it likes, up to its own size
    scatter = values.std(0) / math.sqrt(max(INDEPENDENT * len(values), 1.0))
    noise = np.hypot(scatter, dry_n / math.sqrt(3.0))
    return Forces(values.mean(0), turned.mean(0), np.where(np.isfinite(noise), noise, np.inf), source)


def _legs(walk: Walk) -> Outcome:
    service, setup, sensors = walk.service, walk.setup, list(walk.files.site.sensors)
    service.ready()
    service.watch(SETTLE_S)
    rest = service.watch(REST_S)
    start, first = rest.pose()[-1], _forces(setup, rest, sensors)
    n, at_cells = len(setup.cells), first.source == "load cells"
    offset_n = np.where(setup.cells >= 0, setup.control.tare_limit * setup.cell_capacity_n, 0.0)
    offset_n = offset_n if at_cells else 0.1 * np.array([schema.effective_leg(walk.files.machine, k).limits.force_n
                                                         for k in range(n)])  # fmt: skip
    choice = moves.choose(
        setup, start, lambda told: moves.as_told(setup, start, told, first.noise_n, offset_n, at_cells)
    )
    if choice is None:
        raise RunError("no leg can be moved by even 3 mm from here inside the limits: move nearer to home")
    plan = choice.moves
    walk.say(f"{first.source}; {len(plan.pose) // 2} moves of {1e3 * plan.travel_m:.0f} mm out and back")
    share = min(moves.SPEED_M_S / max(setup.motion.speed[0], 1e-9), 1.0)
    seen, dials = [(rest.legs("length_{}_m").mean(0), first)], list[Dial]()
    for k in range(1, len(plan.pose)):
        if reason := service.move(plan.pose[k], share):
            raise RunError(f"the move of leg {k // 2 + 1} is refused: {reason}")
        if k % 2 or k == len(plan.pose) - 1:  # in between it has been at the start already
            service.watch(SETTLE_S)
            rest = service.watch(REST_S)
            seen.append((rest.legs("length_{}_m").mean(0), _forces(setup, rest, sensors)))
        if k % 2:
            dials += _dials(walk, len(seen) - 1, k, plan.length_m)
    told = np.array([lengths for lengths, _ in seen])
    noise_n = np.sqrt(np.mean([forces.noise_n**2 for _, forces in seen], 0))
    collected = Evidence(
        setup.machine, start, told, np.array([f.shown_n for _, f in seen]), np.array([f.turned_n for _, f in seen]),
        noise_n, offset_n, at_cells, tuple(dials),
    )  # fmt: skip
    verdict = evidence.judge(collected)
    found = [Trouble(finding.text, finding.mend) for finding in verdict.findings]
    if verdict.unseen:
        walk.say(f"this could not have shown: {'; '.join(verdict.unseen[:6])}")
    untold = [text for text in verdict.unseen if text.startswith(LEG)]
    if freedoms(setup.machine.platform) != n and any(text.startswith("the drives") for text in untold):
        # the legs go together, so nothing that is measured tells one from another
        walk.engineer.confirm("cables", "Power and encoder cable of every drive: did you follow each to its own leg?")
        untold = [text for text in untold if not text.startswith("the drives")]
    if untold:
        text = f"the evidence is too weak for a verdict on the legs: {untold[0]}, and {len(untold) - 1} more"
        found.append(Trouble(text, "set a dial gauge to each leg, and give its readings"))
    return Outcome(
        {
            "sensors": first.source, "travel_m": plan.travel_m, "noise_n": _rounded(noise_n, 4),
            "remainder_n": verdict.remainder_n, "factor": _rounded(verdict.factor, 4),
            "factor_error": _rounded(verdict.factor_error, 4), "not_shown": verdict.unseen,
            "dial_m": [dial.moved_m for dial in dials],
        },
        found,
    )  # fmt: skip


def _dials(walk: Walk, pose: int, k: int, told_m: Array) -> list[Dial]:
    """Readings of dial gauges at move k, of the legs that go farthest in it; `pose` counts the rests."""
    way_m = np.abs(told_m[1::2] - told_m[0])
    legs = np.flatnonzero(np.argmax(way_m, 0) == k // 2).tolist()
    found: list[Dial] = []
    for leg in legs:
        key, said = f"dial_{leg + 1}", 1e3 * float(told_m[k, leg] - told_m[0, leg])
        if key not in walk.engineer.given and (walk.engineer.yes or not sys.stdin.isatty()):
            continue
        text = f"Leg {leg + 1} was told {said:+.2f} mm. Dial gauge, mm (> 0: longer; Enter: none): "
        if answer := walk.engineer.tell(key, text).strip():
            try:
                found.append(Dial(pose, leg, 1e-3 * float(answer)))
            except ValueError:
                raise ConfigurationError(f"{key}: found {answer!r}, expected a number of millimetres") from None
    return found


def _check(walk: Walk) -> Outcome:
    if not any(name.startswith(("cell_", "tilt_")) for name in walk.files.site.sensors):
        walk.say("neither load cells nor an inclinometer: nothing to compare")
        return Outcome({"sensors": 0}, [])
    service, setup = walk.service, walk.setup
    if service.mode() is Mode.READY:
        service.powered = True
        service.off()
    move = CheckMove(walk.files, fit(walk.files), setup)
    reader = move.watching(lambda sample, _: sample)
    operator, n, k = move.operator(), len(setup.cells), len(walk.files.site.sensors)
    service.powered = True
    request, verdict, asked_s = next(operator), Answer.NONE, 0.0
    while True:
        rows = service.latest()
        if Mode(int(rows["mode"][-1])) is Mode.FAULT:
            service.until(lambda _: True, 1.0, "the check move")
        reader(unpack_inputs(rows.rows[-1], n, k, walk.files.site.stream is not None)[0], 0.0)
        verdict = Answer.NONE
        if request.kind is not RequestKind.NONE:
            time.sleep(max(asked_s + 0.3 - time.monotonic(), 0.0))
            asked_s, verdict = time.monotonic(), _asked(service, request)
            rows = service.latest()
        try:
            request = operator.send(_output(rows, verdict))
        except StopIteration:
            break
    found = [
        Trouble(f"{item.sensor} {item.wrong}", "docs/how-to/calibrate-a-cell.md")
        for item in move.findings
        if item.wrong
    ]
    return Outcome(
        {item.sensor: f"offset {item.offset:.3g}, scale {item.scale:.4f}, {item.remark or 'correlation'}"
         f" {item.correlation:.4f}" for item in move.findings}, found
    )  # fmt: skip


def _asked(service: Service, request: Request) -> Answer:
    numbers: dict[str, Any] = {}
    if request.kind is RequestKind.MOVE:
        numbers = {"pose": dict(zip(POSE, request.pose.tolist(), strict=True)), "speed_share": request.speed_share}
    word, _ = service.request(request.kind.name.lower(), **numbers)
    return Answer[word] if word in Answer.__members__ else Answer.NOT_READY


def _output(rows: Rows, verdict: Answer) -> Output:
    """As much of what a tick decided as an operator made of code looks at."""
    legs = rows.legs("model_cell_{}_n")[-1]
    estimate = Estimate(rows.pose()[-1], rows.pose("", "_s")[-1], 1, 0.0, 1.0)
    blank: Any = None
    return Output(
        Mode(int(rows["mode"][-1])), blank, estimate, blank, legs, legs, legs, blank, legs, blank, blank, blank, legs,
        0, verdict, blank,
    )  # fmt: skip


def _limits(walk: Walk) -> Outcome:
    service, limits, free = walk.service, walk.setup.limits, _free(walk.setup)
    walk.say("platform  " + "  ".join(
        f"{POSE[k]} {limits.pose_min[k]:.3g} … {limits.pose_max[k]:.3g}" for k in free
    ))  # fmt: skip
    for k in range(len(limits.length_min_m)):
        walk.say(
            f"leg {k + 1}     {limits.length_min_m[k]:.4f} … {limits.length_max_m[k]:.4f} m, "
            f"{limits.speed_m_s[k]:.3g} m/s, {limits.acceleration_m_s2[k]:.3g} m/s²"
        )
    walk.engineer.confirm("limits", "Are these the limits of this machine, with its mechanical ends outside of them?")
    service.ready()
    before, pose = service.latest().legs("setpoint_{}_m")[-1], service.latest().pose("reference_")[-1]
    pose[free[0]] = limits.pose_max[free[0]] + BEYOND * (limits.pose_max[free[0]] - limits.pose_min[free[0]])
    verdict, text = service.request("move", pose=dict(zip(POSE, pose.tolist(), strict=True)), speed_share=0.05)
    moved_m = float(np.abs(service.watch(0.3).legs("setpoint_{}_m")[-1] - before).max())
    findings: list[Trouble] = []
    if verdict != "UNREACHABLE" or moved_m > DRIFT_M:
        service.stop()
        found = f"a pose beyond the limits got the answer {verdict}, and {1e3 * moved_m:.1f} mm of motion"
        findings.append(Trouble(found, "do not move this machine; tell whoever maintains the program"))
    return Outcome({"answer": f"{verdict}: {text}", "moved_m": moved_m}, findings)


def _stop(walk: Walk) -> Outcome:
    service, setup = walk.service, walk.setup
    service.ready()
    k, room = _roomiest(setup)
    start = service.latest().pose("reference_")[-1]
    target = start.copy()
    away = STOP_ROOM * room
    target[k] += away if target[k] + away < setup.home[k] + room else -away
    since = service.since()
    service.insist("move", pose=dict(zip(POSE, target.tolist(), strict=True)), speed_share=STOP_SHARE)
    service.until(
        lambda row: abs(row.pose("reference_")[0, k] - start[k]) > 0.4 * away,
        PATIENCE_S,
        "the move does not get under way",
    )
    service.request("stop")
    service.at_rest()
    service.watch(0.2)
    rows = since()
    asked = np.flatnonzero(rows["request_kind"] == RequestKind.STOP)
    if not len(asked):
        raise RunError("the stop never reached the control process")
    at = int(asked[-1]) - 1  # the last reference before
    begun = Reference(
        rows.pose("reference_")[at], rows.pose("reference_", "_s")[at], rows.pose("reference_", "_s2")[at]
    )
    plan = plan_stop(setup, begun, 0.0)
    planned_s = trajectory.end_s(plan)
    planned = float(trajectory.at(plan, planned_s).pose[k] - begun.pose[k])
    moving = np.abs(rows.legs("length_{}_m_s")).max(1) > STANDS_M_S
    last = int(np.flatnonzero(moving)[-1]) if moving.any() else at
    took_s = float(rows["t_s"][last] - rows["t_s"][at])
    went = float(rows.pose()[-1, k] - rows.pose()[at, k])
    arm_m = 1.0 if k < 3 else float(setup.machine.platform[RADIUS])
    findings: list[Trouble] = []
    if took_s > planned_s + STOP_S:
        findings.append(Trouble(f"the stop took {took_s:.2f} s, planned {planned_s:.2f} s", "drives' gains; the link"))
    if abs(abs(went) - abs(planned)) * arm_m > STOP_WAY * abs(planned) * arm_m + STOP_WAY_M:
        found = f"the stop took {1e3 * abs(went) * arm_m:.1f} mm, planned {1e3 * abs(planned) * arm_m:.1f} mm"
        findings.append(Trouble(found, "drives' gains, and their velocity feed-forward"))
    figures = {"coordinate": POSE[k], "took_s": took_s, "planned_s": planned_s, "way": went, "planned_way": planned}
    walk.engineer.confirm(
        "estop", "The drives hold. Press the emergency stop, and release it: did all drives go off by wire?"
    )
    if service.mode() is Mode.FAULT:
        service.request("acknowledge")
    return Outcome(figures, findings)


def _tracking(walk: Walk) -> Outcome:
    service, setup = walk.service, walk.setup
    service.ready()
    k, room = _roomiest(setup)
    if reason := service.move(setup.home, STOP_SHARE):
        raise RunError(f"the move home is refused: {reason}")
    service.insist("sine", pose={POSE[k]: SWING_ROOM * room}, frequency_hz=SWING_HZ)
    service.watch(trajectory.RAMP_S)
    rows = service.watch(SWING_TURNS / SWING_HZ)
    service.insist("stop")
    service.at_rest()
    if (rows["mode"] != Mode.ACTIVE).any():
        raise RunError("the sine was stopped on its way: see the faults of the service")
    lag_m = rows.legs("following_error_{}_m")
    peak_m, rms_m = np.abs(lag_m).max(0), np.sqrt(np.mean(lag_m**2, 0))
    limit_m = FOLLOWS * setup.control.following_error_m
    findings = [
        Trouble(f"leg {leg + 1} lags up to {1e3 * peak_m[leg]:.2f} mm in a slow sine, expected {1e3 * limit_m:.2f} mm",
                "gains and feed-forward of its drive: docs/how-to/tune.md")
        for leg in np.flatnonzero(peak_m > limit_m).tolist()
    ]  # fmt: skip
    return Outcome({"coordinate": POSE[k], "peak_m": _rounded(peak_m, 6), "rms_m": _rounded(rms_m, 6)}, findings)


def _identification(walk: Walk) -> Outcome:
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


DONE_BY: dict[str, Callable[[Walk], Outcome]] = {
    "files": _files, "doctor": _doctor, "link": _link, "sensors": _sensors, "static": _static, "homing": _homing,
    "hold": _hold, "legs": _legs, "check": _check, "limits": _limits, "stop": _stop, "tracking": _tracking,
    "identification": _identification,
}  # fmt: skip


def _sensor(rows: Rows, name: str) -> Array:
    """Values of a sensor, NaN where they are not valid."""
    unit = next(column for column in rows.columns if column.startswith(f"{name}_") and column.removeprefix(f"{name}_")
                in ("n", "pa", "rad"))  # fmt: skip
    return np.where(rows[f"{name}_quality"] == Quality.GOOD, rows[unit], np.nan)


def _free(setup: Setup) -> list[int]:
    return np.flatnonzero(trajectory.FREE[int(setup.machine.platform[0])]).tolist()


def _roomiest(setup: Setup) -> tuple[int, float]:
    """The free coordinate with most room about home, a length where there is one, and that room."""
    limits, free = setup.limits, _free(setup)
    free = [k for k in free if k < 3] or free
    room = [min(limits.pose_max[k] - setup.home[k], setup.home[k] - limits.pose_min[k]) for k in free]
    best = int(np.argmax(room))
    return free[best], room[best]


def _rounded(values: Array, digits: int) -> list[float | None]:
    return [round(value, digits) if math.isfinite(value) else None for value in values.tolist()]


# ---------------------------------------------------------------- the walk


class Options(NamedTuple):
    """What the command line says."""

    site: Path
    engineer: str = ""
    answers: Path | None = None
    yes: bool = False
    again: tuple[str, ...] = ()
    last: str = ""  # the last step to be done; empty: all
    seconds: float = 10.0
    record: Path | None = None
    user: str = ""
    show: bool = False


def commission(options: Options, password: Callable[[str], str], out: TextIO) -> int:
    """Walk through the steps that are due; the exit code.

    Raises:
        PkmError: a file or an answer is wrong, or nobody answers.
    """
    files = load_site(options.site)
    names = [step.name for step in STEPS]
    for given, key in ((options.again, "--again"), ((options.last,) if options.last else (), "--to")):
        if unknown := set(given) - set(names):
            raise ConfigurationError(f"{key}: found {min(unknown)!r}, expected a step: {', '.join(names)}")
    path = options.record or record_path(files)
    hashes = record.digest(files.machine_text), record.digest(files.site_text)
    done = record.standing(record.read(path), *hashes)
    if options.show:
        _show(done, path, out)
        return 0
    given = _answers(options.answers)
    name = (options.engineer or given.pop("engineer", "")).strip() or (input("Name: ") if sys.stdin.isatty() else "")
    if not name:
        raise ConfigurationError("--engineer: found no name, expected that of who is responsible")
    if options.yes and files.site.virtual_cell is None:
        raise ConfigurationError("--yes: a real machine is not moved by it: somebody has to look, and to answer")
    requests = Path(files.site.requests.path)

    def connect() -> Service:
        user = options.user
        token = login(requests, user, password(user)) if user else local_token(requests)[1]
        return Service(files, lambda route, question: ask(requests, route, question, token))

    engineer = Engineer(name, given, options.yes, out)
    walk = Walk(files, prepare(files.machine, files.site, files.track_texts), engineer, options.seconds, connect, out)
    worst = 0
    try:
        for step in STEPS:
            known = done.get(step.name)
            if known and known.verdict in record.GOOD and step.name not in options.again:
                print(f"done  {step.name:<15} {known.t[:16]} by {known.engineer}", file=out)
                if step.name == options.last:
                    break
                continue
            due = [need for need in step.needs if need not in done or done[need].verdict not in record.GOOD]
            if due:
                print(f"wait  {step.name:<15} needs {', '.join(due)}", file=out)
                continue
            entry, code = _one(walk, step, hashes, path)
            done[step.name], worst = entry, max(worst, code)
            if entry.verdict == "fault" or step.name == options.last:
                break
    finally:
        if walk.found:
            walk.found.off()
    due = record.missing(done)
    print(f"record: {path}", file=out)
    if due:
        print(f"not passed: {', '.join(due)}", file=out)
        so_far = names[: names.index(options.last) + 1] if options.last else names
        return worst or (FINDING if set(due) & set(so_far) else 0)
    print("all steps have passed: --protocol FILE.html --user NAME accepts the machine", file=out)
    return worst


def _one(walk: Walk, step: Step, hashes: tuple[str, str], path: Path) -> tuple[Entry, int]:
    """One step, into the record; its entry and exit code."""
    print(f"step  {step.name:<15} {step.shows}", file=walk.out, flush=True)
    engineer = walk.engineer
    engineer.said = []
    blank = Entry(step.name, "stopped", engineer.name, *hashes, record.now())
    code = 0
    try:
        if step.moves and not (step.name == "homing" and walk.files.site.homing.method == "absolute"):
            walk.service  # noqa: B018  nobody is asked before there is something to move
            engineer.confirm(step.name, f"{step.moves}. Nobody within reach, emergency stop at hand. Go ahead?")
        outcome = DONE_BY[step.name](walk)
        word = "finding" if outcome.findings else "waived" if outcome.waived else "pass"
        entry = _filled(blank, word, outcome, engineer.said)
        code = FINDING if outcome.findings else 0
    except RunError as error:
        if walk.found:
            walk.found.stop()
        entry = _filled(blank, "fault", Outcome({}, [Trouble(str(error))]), engineer.said)
        code = FAULT
    except Declined as error:
        entry = _filled(blank, "stopped", Outcome({"why": str(error)}, []), engineer.said)
        code = FINDING
    except BaseException as error:
        if walk.found:
            walk.found.stop()
        if not isinstance(error, DeviceError) or walk.found:
            why = str(error) or type(error).__name__
            record.append(path, _filled(blank, "stopped", Outcome({"why": why}, []), engineer.said))
        raise
    record.append(path, entry)
    print(f"{entry.verdict:<5} {step.name}", file=walk.out)
    for trouble in entry.findings:
        print(f"      {trouble.text}" + (f"\n      → {trouble.mend}" if trouble.mend else ""), file=walk.out)
    return entry, code


def _filled(blank: Entry, verdict: record.Word, outcome: Outcome, said: list[Said]) -> Entry:
    """The entry of a step that was begun with `blank`."""
    figures = {key: None if isinstance(value, float) and not math.isfinite(value) else value
               for key, value in outcome.figures.items()}  # fmt: skip
    return Entry(
        blank.step, verdict, blank.engineer, blank.machine_sha256, blank.site_sha256, blank.t, figures,
        outcome.findings, list(said),
    )  # fmt: skip


def record_path(files: SiteFiles) -> Path:
    """Where the record of a site is, beside its recordings."""
    return Path(files.site.recording.folder) / "commissioning" / f"{files.site.name}.jsonl"


def _answers(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        return {key: str(value) for key, value in tomllib.loads(text_of(path)).items()}
    except ValueError as error:
        raise ConfigurationError(f"{path}: not valid TOML: {error}") from None


def _show(done: dict[str, Entry], path: Path, out: TextIO) -> None:
    for step in STEPS:
        entry = done.get(step.name)
        state = f"{entry.verdict}, {entry.t[:16]} by {entry.engineer}" if entry else "due"
        print(f"{step.name:<15} {state}\n{'':15} shows: {step.shows}\n{'':15} how: {step.how}", file=out)
        print(f"{'':15} passes: {step.passes}" + (f"\n{'':15} moves: {step.moves}" if step.moves else ""), file=out)
    print(f"record: {path}", file=out)


def accept(options: Options, target: Path, password: Callable[[str], str], out: TextIO) -> int:
    """Sign the record of a site by a user of it, and write the protocol.

    Raises:
        ConfigurationError: a step has not passed; the user is none, or no engineer; there is such a file already.
    """
    import asyncio

    files = load_site(options.site)
    path = options.record or record_path(files)
    entries = record.read(path)
    hashes = record.digest(files.machine_text), record.digest(files.site_text)
    done = record.standing(entries, *hashes)
    if due := record.missing(done):
        raise ConfigurationError(f"{path}: not passed with these files: {', '.join(due)}")
    if target.exists():
        raise ConfigurationError(f"{target}: there is such a file already, nothing is overwritten")
    if not (options.user and files.site.web.users):
        raise ConfigurationError("--user: found nobody, expected an engineer of web.users (`pkm user add`)")
    accounts = Accounts(Path(files.site.web.users), time.monotonic)
    token = asyncio.run(accounts.login(options.user, password(options.user), "shell"))
    session = None if isinstance(token, Refused) else accounts.session(token)
    if session is None or not may(session.role, "engineer"):
        why = token.text if isinstance(token, Refused) else "the role engineer is needed."
        raise ConfigurationError(f"--user: {options.user} cannot accept a machine: {why}")
    accepted = Entry(ACCEPTED, "pass", options.user, *hashes, record.now(), {"steps": [step.name for step in STEPS]})
    accepted = record.append(path, accepted)
    text = record.protocol(
        files.site.name, [*entries, accepted], done | {ACCEPTED: accepted}, record.digest(path.read_bytes())
    )
    write_new(target, text)
    print(f"{target}: accepted by {options.user}; record {path}, SHA-256 {record.digest(path.read_bytes())}", file=out)
    return 0
