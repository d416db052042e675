"""What an operator asks for: may it be now, and what plan comes of it. Pure."""

import numpy as np

from controller.mechanism import kinematics, posture
from controller.motion import stream, trajectory
from controller.motion.track import start_pose
from controller.motion.trajectory import Along, Hold, Plan
from controller.records import (
    NO_REFUSAL,
    Array,
    Fault,
    Link,
    Mode,
    Obstacle,
    Reference,
    Refusal,
    Request,
    RequestKind,
    Sample,
    Verdict,
)  # fmt: skip
from controller.safety.faults import effect_of
from controller.safety.supervisor import Condition, admit
from controller.state import Rest, Setup, State

HIGHEST_HZ = 5.0
PATH_SAMPLES = 60
PLAN_TRIES = 4
PLANNED = 0.97  # of the legs' speed, acceleration and jerk: the highest may lie between two samples
TARE_TICKS = 50  # at rest before a tare; the mean is taken over at most four times as many


def take(
    setup: Setup, state: State, sample: Sample, request: Request, faults: Fault
) -> tuple[Verdict, Condition, Plan, Refusal]:
    """Judge a request: the answer, what it asks of the mode, the plan that would be followed, and what it would hit."""
    refusal = NO_REFUSAL
    if request.kind is RequestKind.NONE:
        return Verdict.NONE, Condition.NONE, state.plan, refusal
    lag_m = np.abs(sample.setpoint_m - sample.length_m).max()
    may_move = state.latched and (state.mode is Mode.ACTIVE or bool(lag_m <= setup.control.start_tolerance_m))
    may_move = may_move and (setup.law is None or state.feedback.forcing)
    verdict = admit(state.mode, request.kind, effect_of(faults), sample.link is Link.UP, may_move)
    plan, wanted = state.plan, Condition.NONE
    if verdict is Verdict.ACCEPTED:
        match request.kind:
            case RequestKind.READY if not sample.axes_homed:
                verdict = Verdict.NOT_HOMED
            case RequestKind.READY:
                wanted = Condition.READY_WANTED
            case RequestKind.STOP:
                wanted = Condition.STOP_WANTED
            case RequestKind.OFF:
                wanted = Condition.OFF_WANTED
            case RequestKind.ACKNOWLEDGE:
                wanted = Condition.ACKNOWLEDGED
            case RequestKind.HOME:
                wanted = Condition.HOME_WANTED
            case RequestKind.TARE:
                verdict = judge_tare(setup, state.rest)
            case RequestKind.TRACK if not 0 <= request.track < len(setup.tracks):
                verdict = Verdict.NO_TRACK
            case RequestKind.STREAM:
                begun = setup.stream and stream.begin(
                    setup.stream, state.reference, sample.stream, state.tick * setup.period_s
                )
                verdict, plan = (Verdict.ACCEPTED, begun) if begun else (Verdict.NO_STREAM, state.plan)
                wanted = Condition.MOTION_WANTED if begun else Condition.NONE
            case _:
                verdict, plan, refusal = plan_motion(setup, state, request)
                wanted = Condition.MOTION_WANTED if verdict is Verdict.ACCEPTED else Condition.NONE
    return verdict, wanted, plan, refusal


def judge_tare(setup: Setup, rest: Rest) -> Verdict:
    """Whether what the load cells read too much at rest may be taken for their zero."""
    fitted = setup.cells >= 0
    error_n = np.abs(rest.error_n[fitted])
    if not fitted.any() or not np.isfinite(error_n).all():
        return Verdict.NO_CELLS
    if rest.ticks < TARE_TICKS:
        return Verdict.NOT_READY
    small = np.all(error_n <= setup.control.tare_limit * setup.cell_capacity_n[fitted])
    return Verdict.ACCEPTED if small else Verdict.TARE_TOO_LARGE


def plan_motion(setup: Setup, state: State, request: Request) -> tuple[Verdict, Plan, Refusal]:
    """The plan of a MOVE, SINE or TRACK whose whole path stays inside the limits, or why there is none.

    A move that asks too much of a leg is planned slower; one that leaves the pose box or a stroke is refused.
    Of a track that is said of the way to its start: the track itself was found to fit when it was read.
    """
    if not (np.isfinite(request.pose).all() and np.isfinite([request.speed_share, request.frequency_hz]).all()):
        return Verdict.NOT_FINITE, state.plan, NO_REFUSAL
    start_s = state.tick * setup.period_s
    if request.kind is RequestKind.SINE:
        if not 0.0 < request.frequency_hz <= HIGHEST_HZ:
            return Verdict.OUT_OF_RANGE, state.plan, NO_REFUSAL
        plan = trajectory.plan_sine(state.reference, request.pose, request.frequency_hz, start_s)
        share, refusal = pace(setup, plan)
        return (Verdict.ACCEPTED, plan, NO_REFUSAL) if share >= 1.0 else (Verdict.UNREACHABLE, state.plan, refusal)
    if not 0.0 < request.speed_share <= 1.0:
        return Verdict.OUT_OF_RANGE, state.plan, NO_REFUSAL
    track = setup.tracks[request.track] if request.kind is RequestKind.TRACK else None
    target = start_pose(track) if track else request.pose
    motion = trajectory.slower(setup.motion, 1.0, request.speed_share)
    refusal = Refusal(Obstacle.NO_PATH, 0, 0.0)
    for _ in range(PLAN_TRIES):
        plan = trajectory.plan_move(motion, state.reference, target, start_s)
        if plan is None:
            break
        share, refusal = pace(setup, plan)
        if share >= 1.0:
            return Verdict.ACCEPTED, Along(plan, track) if track else plan, NO_REFUSAL
        if share == 0.0:
            break
        motion = trajectory.slower(motion, 0.98 * share)
    return Verdict.UNREACHABLE, state.plan, refusal


def plan_stop(setup: Setup, start: Reference, now_s: float) -> Plan:
    """The way to rest that the legs can go too: without it the guard would bend what the platform's limits allow."""
    motion, plan = setup.motion, trajectory.plan_stop(setup.motion, start, now_s)
    for _ in range(PLAN_TRIES):
        share = pace(setup, plan)[0] if plan else 1.0
        if share in (0.0, 1.0):  # a limit of space is not met by stopping more gently
            break
        motion = trajectory.slower(motion, 0.98 * share)
        plan = trajectory.plan_stop(motion, start, now_s) or plan
    return plan or Hold(start.pose)


def pace(setup: Setup, plan: Plan) -> tuple[float, Refusal]:
    """By how much time along the plan must be stretched for the legs: 1 fits, 0 leaves a limit of space. And what is
    then in its way."""
    x, xd, xdd = trajectory.samples(plan, PATH_SAMPLES)
    q, qd, qdd, twist = np.zeros((4, PATH_SAMPLES, len(setup.limits.length_min_m)))
    kinematics.axis_rates_batch(setup.machine, x, xd, xdd, twist, q, qd, qdd)
    base, platform = np.empty_like(q), np.empty_like(q)
    posture.joint_swings(setup.machine, x, base, platform)
    limits = setup.limits
    for obstacle, values, low, high in (
        (Obstacle.POSE, x, limits.pose_min, limits.pose_max),
        (Obstacle.STROKE, q, limits.length_min_m, limits.length_max_m),
        (Obstacle.BASE_SWING, base, 0.0, limits.base_swing_rad),
        (Obstacle.PLATFORM_SWING, platform, 0.0, limits.platform_swing_rad),
    ):
        outside = np.maximum(np.array(low) - values, values - np.array(high)).max(0)
        if not outside.max() <= 0.0:
            worst = int(np.argmax(outside))
            return 0.0, Refusal(obstacle, worst + 1, float(outside[worst]))
    conditions = [posture.condition(setup.machine, pose) for pose in x]
    if not max(conditions) <= limits.condition:
        return 0.0, Refusal(Obstacle.CONDITION, 0, max(conditions) - limits.condition)
    qddd = np.diff(qdd, axis=0) / (_sampled_s(plan) / (PATH_SAMPLES - 1))
    worst_share, refusal = 1.0, NO_REFUSAL
    for order, (obstacle, values, most) in enumerate(
        (
            (Obstacle.SPEED, qd, limits.speed_m_s),
            (Obstacle.ACCELERATION, qdd, limits.acceleration_m_s2),
            (Obstacle.JERK, qddd, limits.jerk_m_s3),
        ),
        start=1,
    ):
        highest: Array = np.abs(values).max(0)
        shares = highest / (PLANNED * np.array(most))
        leg = int(np.argmax(shares))
        share = float(shares[leg]) ** (1.0 / order)
        if not share <= worst_share:
            worst_share = share
            refusal = Refusal(obstacle, leg + 1, float(highest[leg]) - PLANNED * most[leg])
    return 1.0 / worst_share, refusal


def _sampled_s(plan: Plan) -> float:
    """How long a stretch of the plan its samples are spread over."""
    match plan:
        case trajectory.Move(_, start_s, end_s) if end_s > start_s:
            return end_s - start_s
        case trajectory.Sine(omega_rad_s=omega_rad_s):
            return trajectory.RAMP_S + 2.0 * np.pi / omega_rad_s
        case _:
            return np.inf  # it stands
