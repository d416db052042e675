"""The check move: an operator made of code that drives slowly through poses which load the legs differently, and
compares what load cells and inclinometer show at rest with what the model says there. It is for commissioning.

measured = offset + scale * model, by least squares over the poses. The mass of the machine file may be wrong by some
per cent: that is the same for all cells, so the scale of one of them is compared with that of the others.
"""

import logging
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from controller.errors import ConfigurationError, RunError
from controller.ports import SensorReader
from controller.records import Array, Output, Quality, Request, RequestKind, Sample
from controller.service.mailbox import NOTHING
from controller.service.operator import Asking, Operator, until_ready
from controller.settings import SiteFiles
from controller.state import Setup
from drivers.fitting import Fittings
from drivers.profile import CurrentTerminalProfile

log = logging.getLogger(__name__)

SPEED_SHARE = 0.3
REACH = 0.5  # of the way from home to the pose limits; less where the legs do not allow it
SETTLE_S, AVERAGED_S = 0.3, 0.5  # at rest in each pose
# signs of the poses visited: x y z yaw pitch roll; home last
POSES = np.array(
    [[1, 0, 0, 0, 1, 0], [0, 1, 0, 0, 0, -1], [-1, 0, 0, 0, -1, 0], [0, -1, 0, 0, 0, 1], [-1, 0, 0, 1, 1, 0],
     [0, -1, 0, 1, 0, -1], [0, 0, 0, 0, 0, 0]], dtype=float,
)  # fmt: skip

FEWEST_SHARING = 3  # sensors that have a scale in common
MOVED = 0.05  # share of the largest spread in the model: a sensor that the poses change less cannot be judged
FEWEST_POSES = 3  # with a valid value: two numbers are fitted, and one shows whether they fit
STILL = 0.1  # share of the model's spread: what changes less does not react
FOLLOWS = 0.97  # correlation with the model: geometry and mass slightly off leave more than 0.99
BETTER = 0.2  # another leg's model is better when it leaves less than this share unexplained of what its own leaves
SCALE = 0.05  # a scale further off than this is wrong: the two presentations of 4-20 mA differ by 7 %
SHARED_SCALE = 0.12  # by which all cells together may differ from the model, whose masses are not weighed yet
TILT_LIMIT_RAD = 0.02  # offset of an inclinometer: how it is screwed on
FITS = 0.012  # a factor this near to a known one is taken for it
_PRESENTATION = "terminal and profile disagree about legacy or extended presentation"
_KNOWN = {
    "N": {
        32767 / 30518: _PRESENTATION,
        30518 / 32767: _PRESENTATION,
        **dict.fromkeys((2.0, 3.0, 4.0, 5.0, 10.0), "a cell of a smaller capacity than in its calibration"),
        **dict.fromkeys((1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 10), "a cell of a larger capacity than in its calibration"),
        9.80665: "N taken for kgf",
        1 / 9.80665: "kgf taken for N",
        4.44822: "N taken for lbf",
        1 / 4.44822: "lbf taken for N",
        1e3: "N taken for kN",
        1e-3: "kN taken for N",
    },
    "rad": {180.0 / math.pi: "degrees taken for radians", math.pi / 180.0: "radians taken for degrees"},
}


class Finding(NamedTuple):
    """What the check says of one sensor."""

    sensor: str
    offset: float  # in the unit of the sensor
    scale: float
    correlation: float  # with its own model
    wrong: str  # empty when it is good, or could not be judged
    remark: str = ""


class CheckError(RunError):
    """A sensor is not what the site file says."""

    exit_code = ConfigurationError.exit_code


def compare(
    names: Sequence[str], measured: Array, model: Array, offset_limits: Array, unit: str, shared_scale: float
) -> list[Finding]:
    """Judge k sensors from P poses: `measured` and `model` (P, k) in `unit`, NaN where there was no valid value.

    `offset_limits` (k,) is the largest offset of each, `shared_scale` by how much all scales may be off together.
    """
    found = [_judge(k, names, measured[:, k], model) for k in range(len(names))]
    sound = [finding.scale for finding in found if not finding.wrong and not finding.remark]
    together = shared_scale > 0.0 and len(sound) >= FEWEST_SHARING
    shared, tolerance = (float(np.median(sound)), SCALE) if together else (1.0, max(SCALE, shared_scale))
    common = together and abs(shared - 1.0) > shared_scale
    return [
        finding if finding.wrong or finding.remark else _judge_numbers(finding, limit, unit, shared, common, tolerance)
        for finding, limit in zip(found, offset_limits.tolist(), strict=True)
    ]


def _judge(k: int, names: Sequence[str], shown: Array, model: Array) -> Finding:
    """Whether sensor k follows its own model, another one's or none, and the line through its points."""
    name, valid = names[k], np.isfinite(shown) & np.isfinite(model).all(1)
    if valid.sum() < FEWEST_POSES:
        return Finding(name, math.nan, math.nan, math.nan, "gives no valid value")
    shown, model = shown[valid], model[valid]
    moved = model.std(0) > MOVED * model.std(0).max()
    if not moved[k]:
        return Finding(name, math.nan, math.nan, math.nan, "", "not judged: the poses do not change it")
    own = model[:, k]
    scale, offset = np.polyfit(own, shown, 1).tolist()
    centred, others = shown - shown.mean(), model - model.mean(0)
    lengths = np.linalg.norm(centred) * np.linalg.norm(others, axis=0)
    fits = np.divide(centred @ others, lengths, out=np.zeros(len(names)), where=moved & (lengths > 0.0))
    follows = float(fits[k])
    best = int(np.argmax(np.abs(fits)))
    wrong = ""
    if shown.std() < STILL * own.std() and abs(follows) < FOLLOWS:
        wrong = "does not react"
    elif abs(follows) < FOLLOWS and 1.0 - fits[best] ** 2 < BETTER * (1.0 - follows**2):
        turned = ", turned round" if fits[best] < 0.0 else ""
        wrong = f"shows what {names[best]} should{turned}: cables or channels are exchanged"
    elif abs(follows) < FOLLOWS:
        wrong = f"does not follow its model (correlation {follows:.2f})"
    elif scale < 0.0:
        wrong = f"has the wrong sign: turn its wires, or sensors.{name}.sign"
    return Finding(name, offset, scale, follows, wrong)


def _judge_numbers(finding: Finding, limit: float, unit: str, shared: float, common: bool, tolerance: float) -> Finding:
    """Scale and offset of a sensor that follows its own model; `common`: all scales are too far off together."""
    factor = finding.scale / shared
    if common or abs(factor - 1.0) > tolerance:
        seen = shared if common else factor
        known = (words for value, words in _KNOWN[unit].items() if abs(seen / value - 1.0) < FITS)
        reason = next(known, "a wrong mass or calibration" if common else "a wrong calibration or capacity")
        compared = "its model, and so do the others" if common else "what it should"
        return finding._replace(wrong=f"shows {seen:.3f} times {compared}: {reason}")
    if abs(finding.offset) > limit:
        wrong = f"has an offset of {finding.offset:.3g} {unit}, expected at most {limit:.3g} {unit}"
        return finding._replace(wrong=wrong)
    return finding


@dataclass(slots=True)
class CheckMove:
    """The operator of a check move, and what it found."""

    files: SiteFiles
    fittings: Fittings
    setup: Setup
    findings: list[Finding] = field(default_factory=list[Finding])
    _sample: Sample | None = None

    def __post_init__(self) -> None:
        """Refuse a site without anything to check."""
        if not (self._cells or self._tilts):
            raise ConfigurationError(
                f"{self.files.path}: sensors: found neither load cells nor an inclinometer: there is nothing to check"
            )

    @property
    def _cells(self) -> list[int]:
        """Legs with a cell."""
        return [leg for leg, sensor in enumerate(self.setup.cells.tolist()) if sensor >= 0]

    @property
    def _tilts(self) -> list[str]:
        return [name for name in ("tilt_x", "tilt_y") if name in self.files.site.sensors]

    def watching(self, sensed: SensorReader) -> SensorReader:
        """`sensed`, seen by the check."""

        def read(sample: Sample, now_s: float) -> Sample:
            self._sample = sensed(sample, now_s)
            return self._sample

        return read

    def failure(self) -> str:
        """One sentence for everything that is wrong; empty when all is well."""
        if not self.findings:
            return "the check move was not finished: nothing was compared"
        return "; ".join(f"sensor {finding.sensor} {finding.wrong}" for finding in self.findings if finding.wrong)

    def summary(self) -> list[dict[str, Any]]:
        """The findings for JSON, null where there is no number."""
        return [
            {name: value if isinstance(value, str) or math.isfinite(value) else None for name, value in items}
            for items in (finding._asdict().items() for finding in self.findings)
        ]

    def operator(self) -> Operator:
        """Yields what to ask for and is sent what came of it; returns when the check is done.

        Raises:
            RunError: when a request is refused.
        """
        setup, asking = self.setup, Asking(self.setup, "check move", SPEED_SHARE)
        yield NOTHING
        yield from asking.ask(RequestKind.READY)
        seen: list[tuple[Array, Array, Array]] = []
        visited = {tuple((signs * (asking.room > 0.0)).tolist()): None for signs in POSES}  # fewer where less is free
        for signs in visited:
            yield from asking.move_towards(np.array(signs), REACH)
            yield from until_ready()
            for _ in range(round(SETTLE_S / setup.period_s)):
                yield NOTHING
            seen.append((yield from self._averaged()))
        self._conclude(*(np.array(part) for part in zip(*seen, strict=True)))

    def _averaged(self) -> Generator[Request, Output, tuple[Array, Array, Array]]:
        """Means over a while at rest: sensors (k,), NaN without a valid value, model of the cells (n,), pose (6,)."""
        sums, valid = np.zeros((2, len(self.files.site.sensors)))
        model_n, pose, ticks = np.zeros(len(self.setup.cells)), np.zeros(6), round(AVERAGED_S / self.setup.period_s)
        for _ in range(ticks):
            output = yield NOTHING
            if self._sample is not None:
                good = (self._sample.sensor_quality == Quality.GOOD) & (
                    self._sample.sensor_age_s <= np.array(self.setup.watch.max_age_s)
                )
                sums += np.where(good, self._sample.sensor, 0.0)
                valid += good
            model_n += output.model_cell_n
            pose += output.estimate.pose
        return np.divide(sums, valid, out=np.full_like(sums, np.nan), where=valid > 0), model_n / ticks, pose / ticks

    def _conclude(self, sensors: Array, model_n: Array, poses: Array) -> None:
        site, names = self.files.site, list(self.files.site.sensors)
        if legs := self._cells:
            profiles = [self.fittings.profiles[site.sensors[f"cell_{leg + 1}"].device] for leg in legs]
            # where the two presentations can be mixed up, a scale that all have in common is no matter of mass alone
            loops = any(isinstance(profile, CurrentTerminalProfile) for profile in profiles)
            limits_n = self.setup.control.tare_limit * self.setup.cell_capacity_n[legs]
            shown_n, shared_scale = sensors[:, self.setup.cells[legs]], SCALE if loops else SHARED_SCALE
            named = [f"cell_{leg + 1}" for leg in legs]
            self.findings += compare(named, shown_n, model_n[:, legs], limits_n, "N", shared_scale)
        if tilts := self._tilts:
            model_rad = inclinations(poses)[:, [("tilt_x", "tilt_y").index(name) for name in tilts]]
            shown_rad = sensors[:, [names.index(name) for name in tilts]]
            self.findings += compare(tilts, shown_rad, model_rad, np.full(len(tilts), TILT_LIMIT_RAD), "rad", 0.0)
        log.info("check move: %-8s %12s %8s %12s", "sensor", "offset", "scale", "correlation")
        for finding in self.findings:
            level = logging.ERROR if finding.wrong else logging.INFO
            log.log(
                level, "check move: %-8s %12.4g %8.4f %12.4f  %s", finding.sensor, finding.offset, finding.scale,
                finding.correlation, finding.wrong or finding.remark or "good",
            )  # fmt: skip


def inclinations(poses: Array) -> Array:
    """By how much the platform's x and y axis point up (rad): (P, 2) for poses (P, 6)."""
    pitch, roll = poses[:, 4], poses[:, 5]
    return np.stack([-pitch, np.arcsin(np.cos(pitch) * np.sin(roll))], 1)  # z of the columns of Rz Ry Rx
