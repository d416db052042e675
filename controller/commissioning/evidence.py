"""Which mistakes of wiring and data explain what the sensors show at rest in several poses. Pure.

Leg by leg the machine is moved a little and left at rest. As built, the forces of its legs there are those of the
model. A load cell that is turned, cells that are exchanged, legs that are exchanged, a leg that goes further than its
axis says: each makes other forces of the same set-points. A hypothesis is any set of these mistakes. Its score is the
logarithm of its probability, up to a constant: -chi2 / 2, less `PRICE` for every mistake. Whatever a new machine file
has wrong by nature (the scale of all masses, mass and centre of mass of the platform, the zeros of the sensors) is
integrated out, so that it can neither hide a mistake nor pass for one.

P poses, n legs; the first pose is where the moves begin.

told       (P, n)  m   where the axes say they are
shown      (P, n)  N   forces of the legs as the sensors show them, as the model counts them
turned     (P, n)  N   what they would show with their sensors turned round
serves     (n,)        which sensor serves a leg
axis_of    (n,)        which axis moves a leg
factor     (n,)    1   how far a leg goes when its axis says 1
A          nuisances: columns of the forces' derivatives, each times the standard deviation of what it stands for
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.mechanism import dynamics, kinematics, layout
from controller.mechanism.layout import Mechanism
from controller.records import Array

# What a machine file is off before anything was identified, standard deviations.
SCALE = 0.10  # of all masses together
MASS = 0.08  # of the platform's
CENTRE_M = 0.02  # of its centre
MODEL_SHARE = 0.02  # of a sensor's changes over the poses: joints are not where the drawing has them

PRICE = 10.0  # of a mistake: it is named when it explains what lies 4.5 standard deviations off without it
SURE = 5.0  # by so much an explanation must be better than one without that mistake: e^5 = 150 times as probable
WRONG_LEAD = 0.9  # the factor of one leg that the moves must be able to tell from 1
ALL_WRONG = 0.5  # the same of all legs: a wrong mass looks much like it, so only what is far off can be told
DIAL_M, DIAL_SHARE = 1e-4, 0.01  # standard deviation of a dial gauge as one reads it, and of how straight it stands
FITS = 4.0  # chi2 of a degree of freedom above which nothing explains the readings
STUCK = 0.05  # factor below which a leg does not move at all
DEAD = 0.1  # share of the expected changes below which a sensor does not react
BEAM, MOST = 3, 6  # explanations followed at the same time, mistakes in one
STEPS, ROUGH, STEP = 8, 2, 1e-3  # of Gauss-Newton's method for the factors, and of its differences
NEAR = 1e-3  # of a factor: a tenth of the best standard error there is
EDGE = 3.0  # factors are looked for between -EDGE and EDGE
FACTOR_OFF = 0.05  # from that of most legs: looked at alone
FACTOR_KNOWN = 0.15  # standard error, and share, above which a factor is not told


Mask = NDArray[np.bool_]


class Dial(NamedTuple):
    """A leg's own way from the first pose to another one, from a dial gauge."""

    pose: int
    leg: int
    moved_m: float


class Evidence(NamedTuple):
    """What was seen."""

    machine: Mechanism
    start: Array  # (6,) platform pose that belongs to the first row of told
    told_m: Array
    shown_n: Array  # NaN throughout where a leg has no sensor
    turned_n: Array
    noise_n: Array  # (n,) standard deviation of a value
    offset_n: Array  # (n,) largest zero that a sensor may have
    at_cells: bool  # the sensors are load cells; else they show actuator forces
    dials: tuple[Dial, ...] = ()


class Hypothesis(NamedTuple):
    """A set of mistakes."""

    turned: frozenset[int]  # sensors
    serves: tuple[int, ...]
    axis_of: tuple[int, ...]
    leads: frozenset[int]  # legs whose factor is not that of the others
    all_leads: bool = False  # the factor of all of them is not 1

    def mistakes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Kind and legs of each, from 0. What all legs have in common is one mistake."""
        return [
            *(("turned", which) for which in self._turned()),
            *(("sensors", ring) for ring in rings(self.serves)),
            *(("legs", ring) for ring in rings(self.axis_of)),
            *([("lead", tuple(range(len(self.serves))))] if self.all_leads else []),
            *(("lead", (k,)) for k in sorted(self.leads)),
        ]

    def price(self) -> float:
        """What the mistakes cost; a ring of k exchanged things is made by k - 1 exchanges."""
        return PRICE * sum(len(which) - 1 if kind in ("sensors", "legs") else 1 for kind, which in self.mistakes())

    def _turned(self) -> list[tuple[int, ...]]:
        every = tuple(sorted(self.turned))
        return [every] if len(every) == len(self.serves) else [(k,) for k in every]


def as_built(n: int) -> Hypothesis:
    """No mistake."""
    return Hypothesis(frozenset(), tuple(range(n)), tuple(range(n)), frozenset())


def rings(order: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The rings of two or more of a permutation."""
    found: list[tuple[int, ...]] = []
    for first in range(len(order)):
        ring, at = [first], order[first]
        while at != first:
            ring.append(at)
            at = order[at]
        if len(ring) > 1 and first == min(ring):
            found.append(tuple(ring))
    return found


class Fit(NamedTuple):
    """A hypothesis and how well it explains the evidence."""

    hypothesis: Hypothesis
    score: float
    factor: Array  # (n,)
    factor_error: Array  # (n,) standard errors, NaN where the factor is taken for 1
    offset_n: Array  # (n,) most probable zeros of the sensors
    remainder: Array  # (P, n) what is left, in standard deviations; empty where no forces are looked at


class Finding(NamedTuple):
    """One mistake, in words; what else it might be stands in the text."""

    kind: str  # turned, sensors, legs, lead, sign, stuck, dead, offset or unexplained
    which: tuple[int, ...]  # legs, from 1
    text: str
    mend: str


class Verdict(NamedTuple):
    """What the evidence says."""

    findings: list[Finding]
    unseen: list[str]  # mistakes that these poses and sensors could not have shown
    factor: Array  # (n,) of every leg, NaN where nothing tells it
    factor_error: Array  # (n,)
    remainder_n: float  # root mean square of what is left; NaN where no forces are looked at


@dataclass
class Judge:
    """Scores hypotheses about one body of evidence; remembers the models of leg lengths it has met."""

    evidence: Evidence
    models: dict[bytes, tuple[Array, Array] | None] = field(default_factory=dict[bytes, "tuple[Array, Array] | None"])
    noise_n: Array = field(init=False)  # (n,) of sensors and model; infinite without a sensor
    weigh: bool = field(init=False)  # the forces are looked at

    def __post_init__(self) -> None:
        """What the readings may be off."""
        seen = self.evidence
        alive = np.isfinite(seen.shown_n).all(0)
        model = self.model(seen.told_m) if alive.any() else None
        self.weigh = model is not None
        spread_n = rms(model[0] - model[0].mean(0)) if model else 0.0
        self.noise_n = np.where(alive, np.hypot(seen.noise_n, MODEL_SHARE * spread_n), np.inf)

    def model(self, lengths_m: Array) -> tuple[Array, Array] | None:
        """As `forces` at these leg lengths (P, n)."""
        key = lengths_m.tobytes()
        if key not in self.models:
            self.models[key] = forces(self.evidence.machine, self.evidence.start, lengths_m, self.evidence.at_cells)
        return self.models[key]

    def lengths_m(self, hypothesis: Hypothesis, factor: Array) -> Array:
        """Where the legs are (P, n)."""
        told = self.evidence.told_m[:, hypothesis.axis_of]
        return told[:1] + factor * (told - told[:1])

    def fit(self, hypothesis: Hypothesis, factor: Array | None = None, most_steps: int = STEPS) -> Fit:
        """The score with these factors (n,), or else with the most probable ones of the legs in `leads`.

        Those are found by Gauss-Newton's method, with the nuisances beside them.
        """
        n, legs = len(self.noise_n), np.arange(len(self.noise_n))
        free = [legs == k for k in sorted(hypothesis.leads)]  # which legs a factor is for
        free += [~_among(n, hypothesis.leads)] if hypothesis.all_leads and len(free) < n else []
        error = np.full(n, np.nan)
        searches = most_steps if factor is None and free else 0
        factor = np.ones(n) if factor is None else factor
        for _ in range(searches):
            J = self._derivatives(hypothesis, factor, free)
            rows = self._residual(hypothesis, factor)
            if J is None or rows is None:
                break
            whole = np.hstack([J, rows[1]])
            covariance = np.linalg.pinv(whole.T @ whole)
            steps = -(covariance @ (whole.T @ rows[0]))[: len(free)]
            for of, step, variance in zip(free, steps, np.diag(covariance), strict=False):
                error[of] = math.sqrt(variance)
                factor[of] = np.clip(factor[of] + step, -EDGE, EDGE)
            if np.abs(steps).max() < NEAR:
                break
        rows = self._residual(hypothesis, factor)
        if rows is None:
            return Fit(hypothesis, -math.inf, factor, error, np.zeros(n), np.zeros((0, n)))
        r, A = rows
        information = A.T @ A
        theta = -np.linalg.solve(information, A.T @ r)
        left = r + A @ theta
        score = -0.5 * (float(left @ left) + float(np.linalg.slogdet(information)[1])) - hypothesis.price()
        remainder = left[: len(self.evidence.told_m) * n if self.weigh else 0].reshape(-1, n)
        return Fit(hypothesis, score, factor, error, -theta[5:] * 0.5 * self.evidence.offset_n, remainder)

    def _derivatives(self, hypothesis: Hypothesis, factor: Array, free: list[Mask]) -> Array | None:
        columns: list[Array] = []
        here = self._residual(hypothesis, factor)
        for of in free:
            near = factor + STEP * of
            moved = self._residual(hypothesis, near)
            if moved is None or here is None:
                return None
            columns.append((moved[0] - here[0]) / STEP)
        return np.array(columns).T

    def _residual(self, hypothesis: Hypothesis, factor: Array) -> tuple[Array, Array] | None:
        """Model minus shown, and what the nuisances change of it, in standard deviations: forces, dial gauges, and
        what is known beforehand of nuisances and factors. None where there is no pose."""
        n, seen = len(factor), self.evidence
        lengths_m = self.lengths_m(hypothesis, factor)
        r, A = list[Array](), list[Array]()
        if self.weigh:
            model = self.model(lengths_m)
            if model is None:
                return None
            round_about = _among(n, hypothesis.turned)
            shown = np.where(round_about, seen.turned_n, seen.shown_n)[:, hypothesis.serves]
            weight = 1.0 / self.noise_n[list(hypothesis.serves)]  # 0 without a sensor
            offsets = np.broadcast_to(np.diag(0.5 * seen.offset_n), (len(shown), n, n))
            r.append((np.nan_to_num(model[0] - shown) * weight).ravel())
            A.append((np.concatenate([model[1], offsets], 2) * weight[:, np.newaxis]).reshape(-1, 5 + n))
        went_m = lengths_m - lengths_m[0]
        dials = [(went_m[d.pose, d.leg] - d.moved_m) / math.hypot(DIAL_M, DIAL_SHARE * d.moved_m) for d in seen.dials]
        r += [np.array(dials), np.zeros(5 + n), factor - 1.0]
        A += [np.zeros((len(dials), 5 + n)), np.eye(5 + n), np.zeros((n, 5 + n))]
        return np.concatenate(r), np.concatenate(A)


def rms(values: Array) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(values * values)))


def forces(machine: Mechanism, start: Array, lengths_m: Array, at_cells: bool) -> tuple[Array, Array] | None:
    """Forces (P, n) in N of the machine at rest with axes at `lengths_m` (P, n), near pose `start` (6,), and what one
    standard deviation of scale, mass and centre of mass of the platform adds (P, n, 5). None where there is no pose."""
    P, n = lengths_m.shape
    x, twist = np.empty((P, 6)), np.empty(n)
    for k in range(P):
        twist[:] = 0.0
        if kinematics.forward(machine, np.ascontiguousarray(lengths_m[k]), start, twist, x[k]) < 0:
            return None
    mass_kg = float(machine.platform[layout.MASS])
    changes = [(layout.MASS, MASS * mass_kg), *((layout.MOMENT + j, CENTRE_M * mass_kg) for j in range(3))]
    variants = [machine]
    for column, amount in changes:
        platform = machine.platform.copy()
        platform[column] += amount
        variants.append(Mechanism(machine.legs, platform))
    rest, found = np.zeros((P, 6)), np.empty((len(variants), 2, P, n))
    for variant, out in zip(variants, found, strict=True):
        if dynamics.inverse_dynamics_batch(variant, x, rest, rest, rest, out[0], out[1]):
            return None
    of = found[:, 1 if at_cells else 0]
    return of[0], np.stack([SCALE * of[0], *(of[1:] - of[0])], 2)


# ---------------------------------------------------------------- which explanation


def neighbours(hypothesis: Hypothesis, weigh: list[int], legs: list[int]) -> Iterator[Hypothesis]:
    """With one mistake more or less: of the sensors of the legs in `weigh`, of the drives of `legs`."""
    for k in weigh:
        yield hypothesis._replace(turned=hypothesis.turned ^ {k})
    if weigh:
        yield hypothesis._replace(turned=frozenset(weigh) - hypothesis.turned)
    for pair in combinations(weigh, 2):
        yield hypothesis._replace(serves=exchanged(hypothesis.serves, pair))
    for pair in combinations(legs, 2):
        yield hypothesis._replace(axis_of=exchanged(hypothesis.axis_of, pair))
    for k in legs:
        yield hypothesis._replace(leads=hypothesis.leads ^ {k})
    if legs:
        yield hypothesis._replace(all_leads=not hypothesis.all_leads)


def exchanged(order: tuple[int, ...], pair: tuple[int, int]) -> tuple[int, ...]:
    """The order with two of it exchanged."""
    i, j = pair
    changed = list(order)
    changed[i], changed[j] = order[j], order[i]
    return tuple(changed)


def explain(judge: Judge, weigh: list[int], legs: list[int]) -> list[Fit]:
    """Fits of all hypotheses that were looked at, the most probable first.

    From no mistake and from every order of the cables on, the `BEAM` best are followed, each with one mistake more or
    less, until none gets better. If that explains nothing, or by exchanged sensors and drives both, once more from
    where both are exchanged.
    """
    none = as_built(len(judge.noise_n))
    known = {none: judge.fit(none)}
    for order in permutations(none.serves) if weigh else ():
        for start in (none._replace(serves=order), none._replace(axis_of=order)):
            if start not in known and all(k in weigh or order[k] == k for k in none.serves):
                known[start] = judge.fit(start)
    best = _followed(judge, known, weigh, legs)
    order = best.hypothesis
    # on a machine that is its own mirror image, one exchange of both looks much like another: meet the cheapest
    if weigh and (not explains(best) or (rings(order.serves) and rings(order.axis_of))):
        for start in _both_exchanged(judge, weigh):
            known[start] = judge.fit(start)
        _followed(judge, known, weigh, legs)
    return sorted(known.values(), key=lambda fit: -fit.score)


def _followed(judge: Judge, known: dict[Hypothesis, Fit], weigh: list[int], legs: list[int]) -> Fit:
    """The best fit, after more were added to `known`."""
    beam, best = sorted(known.values(), key=lambda fit: -fit.score)[:BEAM], -math.inf
    while beam[0].score > best and len(beam[0].hypothesis.mistakes()) <= MOST:
        best = beam[0].score
        for fit in beam:
            for near in neighbours(fit.hypothesis, weigh, legs):
                if near not in known:
                    known[near] = judge.fit(near)
        beam = sorted(known.values(), key=lambda fit: -fit.score)[:BEAM]
    return beam[0]


def _both_exchanged(judge: Judge, weigh: list[int]) -> list[Hypothesis]:
    """The best of all pairs of exchanges, of sensors and of drives, with the leads that they leave."""
    n = len(judge.noise_n)
    none, seen, every = as_built(n), judge.evidence, frozenset(range(n))
    model = judge.model(seen.told_m)
    mean_n = np.zeros(n) if model is None else np.nanmean(seen.shown_n[:, weigh], 0) * model[0][:, weigh].mean(0)
    turned = frozenset(k for k, product in zip(weigh, mean_n.tolist(), strict=False) if product < 0.0)
    orders = [none.serves, *(exchanged(none.serves, pair) for pair in combinations(range(n), 2))]
    fits = [
        judge.fit(Hypothesis(turned, serves, axis_of, every), most_steps=ROUGH)
        for serves in orders
        if all(k in weigh or serves[k] == k for k in range(n))
        for axis_of in orders
    ]
    found: list[Hypothesis] = []
    for fit in sorted(fits, key=lambda fit: -fit.score)[: 2 * BEAM]:
        off = np.abs(fit.factor / np.median(fit.factor) - 1.0) > FACTOR_OFF
        found.append(fit.hypothesis._replace(leads=frozenset(np.flatnonzero(off).tolist())))
    return found


def explains(fit: Fit) -> bool:
    """What is left of the forces is not much more than noise."""
    left = fit.remainder[:, fit.remainder.any(0)]
    return float(np.sum(left**2)) <= FITS * max(left.size - 5 - left.shape[1], 1)


def judge(seen: Evidence) -> Verdict:
    """The most probable explanation, in words."""
    n = seen.told_m.shape[1]
    dead = _dead(seen)
    shown_n = seen.shown_n.copy()
    shown_n[:, dead] = np.nan
    court = Judge(seen._replace(shown_n=shown_n))
    alive = [k for k in range(n) if court.weigh and np.isfinite(court.noise_n[k])]
    legs = [k for k in range(n) if court.weigh or any(dial.leg == k for dial in seen.dials)]
    fits = explain(court, alive, legs)
    best = fits[0]
    findings = [Finding("dead", (k + 1,), f"{_sensor(k, seen)} does not react", DEAD_MEND) for k in dead]
    for kind, which in best.hypothesis.mistakes():
        rivals = [fit.hypothesis for fit in fits if fit.score > best.score - SURE]
        others = [h for h in rivals if (kind, which) not in h.mistakes()]
        findings.append(_named(kind, which, best, seen, others))
    limit_n = np.where(np.isfinite(court.noise_n), seen.offset_n, np.inf)
    for k in np.flatnonzero(np.abs(best.offset_n) > limit_n).tolist():
        text = f"{_sensor(k, seen)} shows {best.offset_n[k]:+.0f} N without a load, expected at most {limit_n[k]:.0f} N"
        findings.append(Finding("offset", (k + 1,), text, "read its zero unloaded, and put it into the calibration"))
    left = best.remainder[:, alive]
    if not explains(best):
        worst = int(np.argmax(np.sum(best.remainder**2, 0)))
        times = rms(left)
        guess = ": what else is found may be wrong" if findings else ""
        text = f"the readings fit no explanation: {times:.0f} times the noise is left, most at leg {worst + 1}{guess}"
        mend = "look at that leg: something rubs, is loose or bent; and at the joints' places in the machine file"
        findings.insert(0, Finding("unexplained", (worst + 1,), text, mend))
    whole = court.fit(best.hypothesis._replace(leads=frozenset(legs), all_leads=False)) if legs else best
    told = whole.factor_error < FACTOR_KNOWN * np.maximum(np.abs(whole.factor), 1.0)
    left_n = left * court.noise_n[alive] if left.size else np.full(1, np.nan)
    return Verdict(
        findings, unseen(seen), np.where(told, whole.factor, np.nan), np.where(told, whole.factor_error, np.nan),
        rms(left_n),
    )  # fmt: skip


def _dead(seen: Evidence) -> list[int]:
    """Sensors that stand still while the model says that they should not."""
    model = forces(seen.machine, seen.start, seen.told_m, seen.at_cells)
    if model is None:
        return []
    spread_n, own_n = model[0].std(0), np.std(seen.shown_n, 0)
    still = (own_n < DEAD * spread_n) & (spread_n * DEAD > 2.0 * seen.noise_n)
    return np.flatnonzero(still).tolist()


def unseen(seen: Evidence) -> list[str]:
    """Single mistakes that evidence of this kind (poses, noise, dial gauges) could not show, in words.

    For each the readings are made that it would give. It must then be more probable than no mistake, and than every
    other single one.
    """
    n, model = seen.told_m.shape[1], forces(seen.machine, seen.start, seen.told_m, seen.at_cells)
    alive = [k for k in range(n) if model and np.isfinite(seen.shown_n[:, k]).all()]
    singles = list(neighbours(as_built(n), alive, list(range(n))))
    models: dict[bytes, tuple[Array, Array] | None] = {}
    told: list[str] = []
    for truth in singles:
        court = Judge(_made(seen, truth), models)
        own = court.fit(truth, _factors(truth, n)).score
        if not math.isfinite(own):
            continue  # not a machine that could be moved so
        nothing = court.fit(as_built(n)).score
        if own - nothing < SURE:
            told.append(f"{_called(truth, seen)}: too small a change")
            continue
        others = [court.fit(other, _factors(other, n)) for other in singles if other != truth]
        rival = max(others, key=lambda fit: fit.score)
        if own - rival.score < SURE:
            told.append(f"{_called(truth, seen)}: looks like {_called(rival.hypothesis, seen)}")
    return told


def _among(n: int, legs: frozenset[int]) -> Mask:
    """(n,) which legs are these."""
    return np.array([k in legs for k in range(n)])


def _factors(hypothesis: Hypothesis, n: int) -> Array:
    others = ALL_WRONG if hypothesis.all_leads else 1.0
    return np.where(_among(n, hypothesis.leads), WRONG_LEAD, others)


def _made(seen: Evidence, truth: Hypothesis) -> Evidence:
    """The evidence that a machine with these mistakes would give, without noise."""
    n = seen.told_m.shape[1]
    court = Judge(seen)
    lengths_m = court.lengths_m(truth, _factors(truth, n))
    model = forces(seen.machine, seen.start, lengths_m, seen.at_cells)
    dials = tuple(
        dial._replace(moved_m=float(lengths_m[dial.pose, dial.leg] - lengths_m[0, dial.leg])) for dial in seen.dials
    )
    if model is None:
        return seen._replace(dials=dials)
    shown_n = np.empty_like(model[0])
    shown_n[:, truth.serves] = model[0]
    sign = np.where(_among(n, truth.turned), -1.0, 1.0)
    shown_n = np.where(np.isfinite(seen.shown_n), sign * shown_n, np.nan)
    return seen._replace(shown_n=shown_n, turned_n=-shown_n, dials=dials)


# ---------------------------------------------------------------- in words

DEAD_MEND = "look at its plug, its supply and its terminal"


def _numbers(which: tuple[int, ...]) -> str:
    *first, last = (str(k + 1) for k in which)
    return f"{', '.join(first)} and {last}" if first else last


def _sensor(leg: int, seen: Evidence) -> str:
    return f"cell_{leg + 1}" if seen.at_cells else f"the force of leg {leg + 1}"


def _called(hypothesis: Hypothesis, seen: Evidence) -> str:
    """One mistake, short."""
    ((kind, which),) = hypothesis.mistakes()
    first, numbers = which[0], _numbers(which)
    match kind:
        case "turned" if len(which) > 1:
            return "all sensors turned round"
        case "turned":
            return f"{_sensor(first, seen)} turned round"
        case "sensors":
            return f"the sensors of legs {numbers} exchanged"
        case "legs":
            return f"the drives of legs {numbers} exchanged"
        case _ if len(which) > 1:
            return f"all leads {100 * (1 - ALL_WRONG):.0f} % off"
        case _:
            return f"a lead of leg {numbers} that is {100 * (1 - WRONG_LEAD):.0f} % off"


def _named(kind: str, which: tuple[int, ...], fit: Fit, seen: Evidence, others: list[Hypothesis]) -> Finding:
    """A mistake of the best explanation; `others` explain the evidence nearly as well without it."""
    leg = which[0]
    numbers, ring = _numbers(which), " in a ring" if len(which) > 2 else ""
    match kind:
        case "turned" if len(which) > 1:
            text = "all sensors of the forces have the wrong sign"
            mend = "> 0 is compression: turn sign in the table of every sensor"
        case "lead" if len(which) > 1:
            factor = float(np.median(fit.factor))
            text = f"all legs go {factor:.2f} times what their axes say: lead or gear ratio is wrong in the PLC"
            mend = (
                f"multiply the scaling of every axis in the PLC by about {factor:.2f}: look at the plate of the screws"
            )
        case "turned" if seen.at_cells:
            text = f"cell_{leg + 1} has the wrong sign"
            mend = f"turn its wires round, or sensors.cell_{leg + 1}.sign"
        case "turned":
            text = f"the force of leg {leg + 1} has the wrong sign: its pressures or its drive are the wrong way round"
            mend = "exchange the two pressure sensors, or turn the sign of the drive's force in the PLC"
        case "sensors":
            text = f"the sensors of legs {numbers} are exchanged{ring}"
            mend = "put each on its own channel, in the cabinet or in the site file"
        case "legs":
            text = f"the drives of legs {numbers} are exchanged{ring}: told to move the one, another leg moves"
            mend = "put power and encoder cable of each drive back on its own leg, or link the axes the other way round"
        case _:
            factor, error = float(fit.factor[leg]), float(fit.factor_error[leg])
            figures = f"{factor:.3f} ± {error:.3f} times what its axis says"
            if abs(factor) < STUCK:
                kind, text = "stuck", f"leg {leg + 1} does not move with its axis ({figures})"
                mend = "look at coupling, belt and brake, and whether the encoder sits on this leg"
            elif factor < 0.0:
                kind, text = "sign", f"leg {leg + 1} moves the wrong way: {figures}"
                mend = "turn the counting direction of its axis in the PLC, encoder and motor together"
            else:
                kind, text = "lead", f"leg {leg + 1} goes {figures}: its lead or gear ratio is wrong in the PLC"
                mend = f"multiply the scaling of its axis in the PLC by {factor:.3f}; the plate of the screw says more"
    if others:
        said = sorted({"; ".join(_short(*mistake) for mistake in h.mistakes()) or "no mistake" for h in others[:3]})
        text += f" (the readings would also fit: {', or '.join(said)})"
    return Finding(kind, tuple(k + 1 for k in which), text, mend)


def _short(kind: str, which: tuple[int, ...]) -> str:
    return f"{kind} {'-'.join(str(k + 1) for k in which)}"
