"""Computed force: the axis forces that make the platform's error die away as one linear system in all coordinates.

    reference ─────────────────► acceleration ──► inverse dynamics ──► + friction at the reference ──► axis forces
    measured ─► error, carried ─► + feedback ───────▲
                forward to when the force acts

The model weights the error: whatever the leg-space inertia, one bandwidth and one damping hold for all coordinates.
A pose is measured `age_s` before the tick; the force asked for now rises over one period and reaches the axes
`force_delay_s` late. What the forces already under way will do until then is known, so the error is carried forward.

x, e         platform coordinates and their error, reference - measured      (6,)   m, rad
u            acceleration of feedback without the integral, e'' = -u          (6,)   m/s², rad/s²
H            from the measurement until the force asked for now is complete          s
M            mass matrix in the twist of the platform, rotors included        (6, 6)
T            angular velocity and rate of o from the rates of coordinates     (6, 6)
S            rates of coordinates = S independent speeds                      (6, freedoms)
"""

import math
from typing import NamedTuple

import numpy as np

from controller import schema
from controller.errors import ConfigurationError
from controller.mechanism import dynamics, kinematics, layout, posture
from controller.mechanism.drive import EFFICIENCY, ROTOR_MASS
from controller.mechanism.layout import Mechanism
from controller.motion.feedforward import LegDemand, leg_demand
from controller.records import Array, Estimate, Reference

UNDER_WAY = 4  # forces of past ticks that may still act after the measurement: a delay of three periods
STALE_PERIODS = 2.5  # an older measurement is no ground for feedback: feed-forward and integral go on alone
LONGEST_STEP_PERIODS = 2.0  # what a tick that comes late may add to the integral
PHASE_MARGIN_RAD = math.radians(30.0)  # at every inertia within the model's error
INERTIAS = 9  # of that range are looked at
FREQUENCIES = 600
POSES = 300  # of the workspace, for the range of the leg-space inertia
FRICTION = slice(layout.UNIVERSAL_FRICTION, layout.NORMAL_FRICTION + 1)
REST = np.zeros(6)


class Law(NamedTuple):
    """The law of one machine and site."""

    machine: Mechanism  # without friction
    drives: Array  # (n, 4) without losses
    pose_1_s2: float  # gains of pose, rate and integral, the same for all coordinates
    rate_1_s: float
    integral_1_s3: float
    period_s: float
    force_delay_s: float
    model_error: float


class Feedback(NamedTuple):
    """What one tick hands to the next."""

    forcing: bool  # the drives are asked for forces
    integral: Array  # (6,) acceleration that makes up for what the model lacks
    sent: Array  # (UNDER_WAY, 6) u of the last ticks, newest first


OFF = Feedback(False, REST, np.zeros((UNDER_WAY, 6)))


class Margin(NamedTuple):
    """The closed loop, worst case over the inertia's range."""

    delay_s: float  # from the measurement until the force asked for is complete
    radius: float  # of the closed loop's eigenvalues: below 1 is stable
    phase_rad: float
    share: float  # true over assumed inertia where the phase margin is least


def build_law(machine: Mechanism, drives: Array, control: schema.Control, period_s: float) -> Law | None:
    """The law of a site, None where the drives close the position loop.

    Raises:
        ConfigurationError: the loop is not stable enough at some inertia within the model's error.
    """
    if control.law == "position":
        return None
    given = control.feedback
    require_stable(given, period_s)
    legs, lossless = machine.legs.copy(), drives.copy()
    legs[:, FRICTION] = 0.0
    legs[:, layout.EFFICIENCY] = np.minimum(legs[:, layout.EFFICIENCY], 0.0) + (legs[:, layout.EFFICIENCY] > 0.0)
    lossless[:, :] = 0.0
    lossless[:, EFFICIENCY], lossless[:, ROTOR_MASS] = 1.0, drives[:, ROTOR_MASS]
    return Law(machine._replace(legs=legs), lossless, *gains(given), period_s, given.force_delay_s, given.model_error)


def gains(given: schema.Feedback) -> tuple[float, float, float]:
    """Gains of pose (1/s²), rate (1/s) and integral (1/s³)."""
    pose = given.bandwidth_1_s**2
    return pose, 2.0 * given.damping * given.bandwidth_1_s, pose / given.integral_time_s


def bears(law: Law, measured: Estimate, drive_n: Array) -> bool:
    """Whether the drives at rest bear the machine, as well as the model knows: not so when brakes have just opened."""
    a = acceleration_at_hand(law, measured.pose, drive_n)
    radius_m, gravity = law.machine.platform[layout.RADIUS], law.machine.platform[layout.GRAVITY : layout.GRAVITY + 3]
    most_m_s2 = law.model_error * np.linalg.norm(gravity)
    return bool(max(np.linalg.norm(a[:3]), radius_m * np.linalg.norm(a[3:])) <= most_m_s2)


def computed_force(
    law: Law,
    last: Feedback,
    measured: Estimate,
    age_s: float,
    reference: Reference,
    reference_before: Reference,
    elapsed_s: float,
    drive_n: Array,
    legs: LegDemand,
    twist: Array,
) -> tuple[Array, Feedback]:
    """Axis forces (n,) for the reference of this tick, and what to remember.

    `measured` is `age_s` old, `reference_before` was that of a tick `elapsed_s` ago, `legs` are asked for by
    `reference`. The first forces after OFF are those that the drives put in, `drive_n` (n,), as far as the platform
    feels them. The plant is to be at the reference one period after the tick, as with set-points of position.
    """
    due = shifted(reference, law.force_delay_s)
    e, e_rate, u = np.zeros((3, 6))
    if age_s <= STALE_PERIODS * law.period_s:
        seen = shifted(reference_before, elapsed_s - law.period_s - age_s)
        e, e_rate = free(law.machine, due.pose, np.array([seen.pose - measured.pose, seen.rate - measured.rate]))
        delay_s = age_s + law.force_delay_s
        way, speed = under_way(law.period_s, delay_s, delay_s + law.period_s)
        later = e + (delay_s + law.period_s) * e_rate - way[1:] @ last.sent
        later_rate = e_rate - speed[1:] @ last.sent
        u = law.pose_1_s2 * later + law.rate_1_s * later_rate
        due = Reference(due.pose - later, due.rate - later_rate, due.acceleration)
    if last.forcing:
        integral = last.integral + law.integral_1_s3 * min(elapsed_s, LONGEST_STEP_PERIODS * law.period_s) * e
    else:
        integral = acceleration_at_hand(law, due.pose, drive_n) - u
    asked = Reference(due.pose, due.rate, due.acceleration + u + integral)
    rigid_n = leg_demand(law.machine, law.drives, asked, twist).axis_n
    friction_n = legs.axis_n - leg_demand(law.machine, law.drives, reference, twist).axis_n
    return rigid_n + friction_n, Feedback(True, integral, np.vstack((u, last.sent[:-1])))


def shifted(reference: Reference, by_s: float) -> Reference:
    """The reference a little later or earlier, at constant acceleration."""
    rate = reference.rate + by_s * reference.acceleration
    return Reference(reference.pose + 0.5 * by_s * (reference.rate + rate), rate, reference.acceleration)


def under_way(period_s: float, delay_s: float, horizon_s: float) -> tuple[Array, Array]:
    """Way and speed (UNDER_WAY + 1,) at `horizon_s` after the measurement per acceleration asked for j ticks ago.

    The PLC joins what is asked for by straight lines: each acts as a triangle two periods wide, whose top comes
    `delay_s` and a period after it was asked for, counted from the measurement of its own tick.
    """
    top = delay_s + period_s * (1.0 - np.arange(UNDER_WAY + 1.0))
    corners = np.array([[-period_s], [0.0], [period_s]]) + top
    weights = np.array([1.0, -2.0, 1.0]) / period_s
    at_end, at_start = np.maximum(horizon_s - corners, 0.0), np.maximum(-corners, 0.0)
    before = weights @ at_start**2 / 2.0  # speed before the measurement, which shows in it
    speed = weights @ at_end**2 / 2.0 - before
    way = weights @ (at_end**3 - at_start**3) / 6.0 - horizon_s * before
    return way, speed


def free(machine: Mechanism, x: Array, errors: Array) -> Array:
    """The part of errors (N, 6) of coordinates that the platform at x is free to make good.

    On a platform with fewer freedoms the rest is asked of nobody: redundant legs do not fight over it.
    """
    if machine.platform[layout.KIND] == layout.FREE:
        return errors
    S = speeds_of(machine, x)
    share: Array = S @ np.linalg.solve(S.T @ S, S.T)
    return errors @ share


def speeds_of(machine: Mechanism, x: Array) -> Array:
    """S (6, freedoms): rates of the coordinates at x per independent speed."""
    G = np.empty((6, 6))
    posture.independent_motions(machine, x, G)
    freedoms = 6 if machine.platform[layout.KIND] == layout.FREE else 3
    return np.asarray(np.linalg.solve(twist_of(x), G[:, :freedoms]), np.float64)


def twist_of(x: Array) -> Array:
    """T (6, 6): twist per rate of the coordinates at x."""
    ca, sa, cb, sb = math.cos(x[3]), math.sin(x[3]), math.cos(x[4]), math.sin(x[4])
    T = np.eye(6)
    T[3:, 3:] = np.array([[0.0, 0.0, 1.0], [-sa, ca, 0.0], [ca * cb, sa * cb, -sb]]).T
    return T


def mass_matrix(machine: Mechanism, drives: Array, x: Array) -> Array:
    """M (6, 6) at x: platform, legs and all rotors."""
    M, h, J = np.empty((6, 6)), np.empty(6), np.empty((len(machine.legs), 6))
    dynamics.equation_of_motion(machine, x, REST, M, h)
    kinematics.jacobian(machine, x, J)
    return M + J.T @ (drives[:, ROTOR_MASS, None] * J)


def acceleration_at_hand(law: Law, x: Array, drive_n: Array) -> Array:
    """Acceleration (6,) of the coordinates that the model makes of the forces of the drives at rest at x."""
    S, T, wrench = speeds_of(law.machine, x), twist_of(x), np.empty(6)
    dynamics.external_wrench(law.machine, x, REST, REST, drive_n, wrench)
    A = T @ S
    return -S @ np.linalg.solve(A.T @ mass_matrix(law.machine, law.drives, x) @ A, A.T @ wrench)


# ---------------------------------------------------------------- is the loop stable


def margin(given: schema.Feedback, period_s: float) -> Margin:
    """The sampled loop, worst case over the inertia's range.

    The true inertia may be off by the share `model_error` in any direction, so the eigenvalues of (true)^-1 (assumed)
    lie within 1 / (1 + error) ... 1 / (1 - error); the loop is looked at at each of them, not at the mean.
    """
    delay_s = given.status_lead_s + given.force_delay_s
    inertias = np.linspace(1.0 - given.model_error, 1.0 + given.model_error, INERTIAS)
    radius = max(_radius(given, period_s, delay_s, share) for share in inertias)
    phases = [_phase_margin(given, period_s, delay_s, share) for share in inertias]
    least = int(np.argmin(phases))
    return Margin(delay_s + period_s, radius, phases[least], float(inertias[least]))


def require_stable(given: schema.Feedback, period_s: float) -> None:
    """Refuse gains that leave too little margin.

    Raises:
        ConfigurationError: with the figures.
    """
    delay_s = given.status_lead_s + given.force_delay_s
    if delay_s > (UNDER_WAY - 1) * period_s:
        raise ConfigurationError(
            f"control.feedback: status_lead_s + force_delay_s = {1e3 * delay_s:.1f} ms, "
            f"expected at most {1e3 * (UNDER_WAY - 1) * period_s:.1f} ms, three periods"
        )
    found = margin(given, period_s)
    if found.radius < 1.0 and found.phase_rad >= PHASE_MARGIN_RAD:
        return
    raise ConfigurationError(
        f"control.feedback: bandwidth_1_s = {given.bandwidth_1_s:g} with damping = {given.damping:g} and "
        f"integral_time_s = {given.integral_time_s:g} leaves a phase margin of {math.degrees(found.phase_rad):.0f}° "
        f"(largest eigenvalue {found.radius:.3f}) where the inertia is {found.share:.2f} of the model's; expected at "
        f"least {math.degrees(PHASE_MARGIN_RAD):.0f}° with a delay of {1e3 * found.delay_s:.1f} ms and an inertia "
        f"within {100 * given.model_error:.0f} % of the model's"
    )


def _controller(given: schema.Feedback, period_s: float, delay_s: float) -> tuple[Array, Array, Array, Array]:
    """A, B, C, D of the law in one coordinate: input e and its rate, state integral and u sent, output acceleration."""
    pose, rate, integral = gains(given)
    horizon_s = delay_s + period_s
    way, speed = under_way(period_s, delay_s, horizon_s)
    u_of_input = np.array([pose, pose * horizon_s + rate])
    u_of_state = np.concatenate(([0.0], -pose * way[1:] - rate * speed[1:]))
    A, B = np.zeros((UNDER_WAY + 1, UNDER_WAY + 1)), np.zeros((UNDER_WAY + 1, 2))
    A[0, 0], B[0, 0] = 1.0, integral * period_s
    A[1], B[1] = u_of_state, u_of_input
    A[2:, 1:-1] = np.eye(UNDER_WAY - 1)
    return A, B, u_of_state + A[0], u_of_input + B[0]


def _plant(period_s: float, delay_s: float, share: float) -> tuple[Array, Array]:
    """A, B of one coordinate with this share of the assumed inertia: e, its rate, and what was asked for before."""
    way, speed = under_way(period_s, delay_s, period_s)
    A, B = np.zeros((UNDER_WAY + 2, UNDER_WAY + 2)), np.zeros(UNDER_WAY + 2)
    A[0, :2], A[1, 1] = (1.0, period_s), 1.0
    A[0, 2:], A[1, 2:] = -way[1:] / share, -speed[1:] / share
    A[3:, 2:-1] = np.eye(UNDER_WAY - 1)
    B[:3] = -way[0] / share, -speed[0] / share, 1.0
    return A, B


def _radius(given: schema.Feedback, period_s: float, delay_s: float, share: float) -> float:
    Ac, Bc, Cc, Dc = _controller(given, period_s, delay_s)
    Ap, Bp = _plant(period_s, delay_s, share)
    closed = np.block(
        [[Ap + np.outer(Bp, np.pad(Dc, (0, UNDER_WAY))), np.outer(Bp, Cc)], [np.pad(Bc, ((0, 0), (0, UNDER_WAY))), Ac]]
    )
    return float(np.abs(np.linalg.eigvals(closed)).max())


def _phase_margin(given: schema.Feedback, period_s: float, delay_s: float, share: float) -> float:
    """The least phase (rad) that may get lost where the loop's gain is 1, up to half the sampling rate."""
    Ac, Bc, Cc, Dc = _controller(given, period_s, delay_s)
    Ap, Bp = _plant(period_s, delay_s, share)
    z = np.exp(1j * np.geomspace(1e-3 * given.bandwidth_1_s * period_s, math.pi, FREQUENCIES))[:, None, None]
    seen = np.linalg.solve(z * np.eye(len(Ap)) - Ap, Bp[:, None])[:, :2, 0]
    law = Cc @ np.linalg.solve(z * np.eye(len(Ac)) - Ac, Bc) + Dc
    loop = -np.sum(law * seen, axis=1)  # a positive u makes e smaller
    beyond = np.abs(loop) < 1.0
    crossings = loop[:-1][beyond[1:] != beyond[:-1]]
    return float(np.abs(np.angle(-crossings)).min()) if len(crossings) else 0.0


# ---------------------------------------------------------------- what the legs feel


def inertia_range(machine: Mechanism, drives: Array, poses: Array, lengths_m: Array) -> tuple[float, float]:
    """Least and greatest eigenvalue (kg) of the leg-space inertia over the workspace: what a drive alone would meet.

    Drawn between two corners `poses` (2, 6), as far as the legs are inside their strokes `lengths_m` (2, n); NaN where
    none is.
    """
    rng = np.random.default_rng(1)
    found: list[float] = []
    q, J = np.empty(len(machine.legs)), np.empty((len(machine.legs), 6))
    for x in rng.uniform(poses[0], poses[1], (POSES, 6)):
        pose = on_platform(machine, x)
        kinematics.leg_lengths(machine, pose, q)
        if (q < lengths_m[0]).any() or (q > lengths_m[1]).any():
            continue
        kinematics.jacobian(machine, pose, J)
        A = twist_of(pose) @ speeds_of(machine, pose)
        M = mass_matrix(machine, drives, pose)
        mobility = np.linalg.eigvalsh(J @ A @ np.linalg.solve(A.T @ M @ A, (J @ A).T))[-A.shape[1] :]
        found += [1.0 / mobility[0], 1.0 / mobility[-1]]
    return min(found, default=math.nan), max(found, default=math.nan)


def on_platform(machine: Mechanism, x: Array) -> Array:
    """The pose near x (6,) that a platform with fewer freedoms can have."""
    kind = machine.platform[layout.KIND]
    if kind == layout.FREE:
        return x
    if kind == layout.SPHERICAL:
        return np.array([*machine.platform[layout.HOME : layout.HOME + 3], *x[3:]])
    z, a, b = x[2], x[5], x[4]
    ca, sa, cb, sb = math.cos(a), math.sin(a), math.cos(b), math.sin(b)
    return np.array([0.0, -z * sa, z * ca, math.atan2(sa * sb, cb), math.asin(ca * sb), math.atan2(sa, ca * cb)])
