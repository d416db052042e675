"""The step that moves leg by leg, and lets the forces at rest tell which mistake was made."""

import math
import sys
from typing import NamedTuple

import numpy as np

from controller import schema
from controller.commands.commission.walk import Outcome, Walk, rounded, sensor_of
from controller.commissioning import evidence, moves
from controller.commissioning.evidence import Dial, Evidence
from controller.commissioning.record import Trouble
from controller.commissioning.service import Rows
from controller.errors import ConfigurationError, RunError
from controller.mechanism.platform import freedoms
from controller.motion.monitor import AXIS
from controller.records import Array
from controller.state import Setup

REST_S, SETTLE_S = 0.4, 0.2  # averaged, and before, in every pose of the moves
INDEPENDENT = 0.5  # share of the samples of a rest that are no copies of each other
LEG = ("a lead", "the drives")  # what must be told of every leg, as `unseen` calls it


def legs(walk: Walk) -> Outcome:
    """Every leg out and back, and what the forces at rest say of it."""
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
            "sensors": first.source, "travel_m": plan.travel_m, "noise_n": rounded(noise_n, 4),
            "remainder_n": verdict.remainder_n, "factor": rounded(verdict.factor, 4),
            "factor_error": rounded(verdict.factor_error, 4), "not_shown": verdict.unseen,
            "dial_m": [dial.moved_m for dial in dials],
        },
        found,
    )  # fmt: skip


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
            values[:, leg] = sensor_of(rows, f"cell_{leg + 1}")
        turned, source, dry_n = -values, "load cells", np.zeros(n)
    elif (setup.monitor.pressures >= 0).all():
        head, rod = (
            np.array([sensor_of(rows, f"{side}_pressure_{k}") for k in range(1, n + 1)]).T for side in ("head", "rod")
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
