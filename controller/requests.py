"""What an operator asks for: may it be now, and what plan comes of it. Pure."""

import numpy as np

from controller.mechanism import kinematics, posture
from controller.motion import trajectory
from controller.motion.trajectory import Plan
from controller.records import Fault, Link, Mode, Request, RequestKind, Sample, Verdict
from controller.safety.faults import effect_of
from controller.safety.supervisor import Condition, admit
from controller.state import Rest, Setup, State

HIGHEST_HZ = 5.0
PATH_SAMPLES = 60
PLAN_TRIES = 4
TARE_TICKS = 50  # at rest before a tare; the mean is taken over at most four times as many


def take(
    setup: Setup, state: State, sample: Sample, request: Request, faults: Fault
) -> tuple[Verdict, Condition, Plan]:
    """Judge a request: the answer, what it asks of the mode, and the plan that would be followed."""
    if request.kind is RequestKind.NONE:
        return Verdict.NONE, Condition.NONE, state.plan
    lag_m = np.abs(sample.setpoint_m - sample.length_m).max()
    may_move = state.latched and (state.mode is Mode.ACTIVE or bool(lag_m <= setup.control.start_tolerance_m))
    verdict = admit(state.mode, request.kind, effect_of(faults), sample.link is Link.UP, may_move)
    plan, wanted = state.plan, Condition.NONE
    if verdict is Verdict.ACCEPTED:
        match request.kind:
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
            case _:
                verdict, plan = plan_motion(setup, state, request)
                wanted = Condition.MOTION_WANTED if verdict is Verdict.ACCEPTED else Condition.NONE
    return verdict, wanted, plan


def judge_tare(setup: Setup, rest: Rest) -> Verdict:
    """Whether what the load cells read too much at rest may be taken for their zero."""
    fitted = setup.cells >= 0
    error_n = np.abs(rest.cell_error_n[fitted])
    if not fitted.any() or not np.isfinite(error_n).all():
        return Verdict.NO_CELLS
    if rest.ticks < TARE_TICKS:
        return Verdict.NOT_READY
    small = np.all(error_n <= setup.control.tare_limit * setup.cell_capacity_n[fitted])
    return Verdict.ACCEPTED if small else Verdict.TARE_TOO_LARGE


def plan_motion(setup: Setup, state: State, request: Request) -> tuple[Verdict, Plan]:
    """The plan of a MOVE or SINE whose whole path stays inside the limits, or why there is none.

    A move that asks too much of a leg is planned slower; one that leaves the pose box or a stroke is refused.
    """
    if not (np.isfinite(request.pose).all() and np.isfinite([request.speed_share, request.frequency_hz]).all()):
        return Verdict.NOT_FINITE, state.plan
    start_s = state.tick * setup.period_s
    if request.kind is RequestKind.SINE:
        if not 0.0 < request.frequency_hz <= HIGHEST_HZ:
            return Verdict.OUT_OF_RANGE, state.plan
        plan = trajectory.plan_sine(state.reference, request.pose, request.frequency_hz, start_s)
        fits = pace(setup, plan) >= 1.0
        return (Verdict.ACCEPTED, plan) if fits else (Verdict.UNREACHABLE, state.plan)
    if not 0.0 < request.speed_share <= 1.0:
        return Verdict.OUT_OF_RANGE, state.plan
    motion = trajectory.slower(setup.motion, 1.0, request.speed_share)
    for _ in range(PLAN_TRIES):
        plan = trajectory.plan_move(motion, state.reference, request.pose, start_s)
        if plan is None:
            break
        share = pace(setup, plan)
        if share >= 1.0:
            return Verdict.ACCEPTED, plan
        if share == 0.0:
            break
        motion = trajectory.slower(motion, 0.98 * share)
    return Verdict.UNREACHABLE, state.plan


def pace(setup: Setup, plan: Plan) -> float:
    """By how much time along the plan must be stretched for the legs: 1 fits, 0 leaves a limit of space."""
    x, xd, xdd = trajectory.samples(plan, PATH_SAMPLES)
    q, qd, qdd, twist = np.zeros((4, PATH_SAMPLES, len(setup.limits.length_min_m)))
    kinematics.axis_rates_batch(setup.machine, x, xd, xdd, twist, q, qd, qdd)
    base, platform = np.empty_like(q), np.empty_like(q)
    posture.joint_swings(setup.machine, x, base, platform)
    limits = setup.limits
    inside = (
        np.all(x >= np.array(limits.pose_min))
        and np.all(x <= np.array(limits.pose_max))
        and np.all(q >= np.array(limits.length_min_m))
        and np.all(q <= np.array(limits.length_max_m))
        and np.all(base <= np.array(limits.base_swing_rad))
        and np.all(platform <= np.array(limits.platform_swing_rad))
    )
    if not inside:
        return 0.0
    speed = float(np.max(np.abs(qd) / np.array(limits.speed_m_s)))
    acceleration = float(np.max(np.abs(qdd) / np.array(limits.acceleration_m_s2)))
    return 1.0 / max(1.0, speed, acceleration**0.5)
