"""One control tick as one pure function: read it from top to bottom, it is a sample's whole journey.

sample -> estimate -> what is wrong -> request -> mode -> reference -> legs -> guard -> command.
Time comes in with the sample; nothing is read, written, logged or waited for. Same inputs, same bits.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from controller.mechanism import posture
from controller.motion import monitor, stream, trajectory
from controller.motion.estimator import UNKNOWN, estimate
from controller.motion.feedback import OFF, Law, bears, computed_force
from controller.motion.feedforward import leg_demand
from controller.motion.homing import find_pose
from controller.motion.trajectory import Chase, Hold
from controller.records import (
    RESERVES,
    Array,
    AxisMode,
    Command,
    Estimate,
    Fault,
    Limit,
    Link,
    Mode,
    Output,
    Quality,
    Request,
    RequestKind,
    Sample,
    Verdict,
)  # fmt: skip
from controller.requests import TARE_TICKS, plan_stop, take
from controller.safety.faults import TRIPPING, Effect, effect_of
from controller.safety.homing import ABOUT_LENGTHS, judge_homing
from controller.safety.limits import guard, judge_motion, judge_sample, tell
from controller.safety.pacing import at_rest, follow_on
from controller.safety.sensors import judge_sensors
from controller.safety.supervisor import Condition, next_mode
from controller.state import Health, Rest, Setup, State

FROZEN_AFTER = 4  # ticks with fresh answers whose task counter stands still
LATE, TRIP_LEVEL = 2, 10  # leaky bucket: +2 a skipped tick, -1 a tick in time: five skipped in a row trip it

UNUSABLE = Fault.SAMPLE_NOT_FINITE | Fault.STATUS_STALE
SILENT = Fault.LINK_LOST | Fault.STATUS_LATE | Fault.STATUS_STALE
POWERED = (Mode.READY, Mode.ACTIVE, Mode.STOPPING)
FOLLOWING = (AxisMode.FOLLOW, AxisMode.FORCE)


@np.errstate(all="ignore")  # numbers that are not finite become faults, not warnings on a terminal nobody reads
def cycle(setup: Setup, state: State, sample: Sample, request: Request) -> tuple[State, Output]:
    """One tick: what to send now, and what to remember."""
    now_s = sample.tick * setup.period_s  # absolute ticks: a late wake-up does not bend the path
    elapsed_s = max(sample.tick - state.tick, 1) * setup.period_s

    # where is the machine, and what is wrong
    faults = judge_sample(sample, setup.limits)
    measured, twist, reserves, misplaced = locate(setup, state, sample, bool(faults & UNUSABLE))
    faults |= misplaced
    x_guess = measured.pose if measured is not UNKNOWN else state.x_guess if sample.axes_homed else setup.home
    health, unwell = judge_health(setup, state, sample, bool(faults & SILENT))
    faults |= unwell
    search, homed, unfound = judge_homing(
        state.search, state.mode, state.command.seq, sample, elapsed_s, setup.homing_most_s
    )
    search = search._replace(located=search.located or measured is not UNKNOWN)
    faults |= unfound
    if setup.stream and state.mode is Mode.ACTIVE and isinstance(state.plan, Chase):
        faults |= stream.is_lost(setup.stream, state.plan, sample.stream) * Fault.STREAM_LOST

    # what pushes the platform, and which cell or drive contradicts the rest
    followed = state.command.axis_mode in FOLLOWING
    powered, fresh = followed and state.latched, not faults & (UNUSABLE | SILENT) and in_time(setup, state, sample)
    loads = monitor.observe(setup.monitor, state.monitor, sample, measured, twist, state.feedback.forcing)
    memory, pushed, wrench, residual_n = monitor.judge(
        setup.monitor, state.monitor, loads, state.tare_n, powered, fresh
    )
    faults |= pushed | monitor.overforce(setup.monitor, sample) * Fault.OVERFORCE

    # what is asked for, and may it be
    verdict, wanted, plan, refusal = take(setup, state, sample, request, faults)

    # mode
    off_wanted = state.mode is not Mode.OFF and (state.off_wanted or Condition.OFF_WANTED in wanted)
    mode = next_mode(state.mode, wanted | conditions(state, faults, off_wanted, homed, now_s))

    # reference
    latched = state.latched
    if mode is Mode.STOPPING and state.mode is Mode.ACTIVE:
        # a stop starts from the last commanded state, never from the measured one
        start_s = state.tick * setup.period_s
        plan = plan_stop(setup, state.reference, start_s)
    elif mode not in POWERED:
        plan, latched = Hold(x_guess), False  # whatever was planned is dropped
    elif not latched:
        plan, latched = hold_where_it_is(setup, sample, x_guess, twist)
    elif mode is not Mode.ACTIVE:
        plan = state.plan
    limited = Limit.NONE
    if setup.stream and isinstance(plan, Chase):
        ticks = max(sample.tick - state.tick, 1)
        plan, limited = stream.chase(setup.stream, plan, sample.stream, twist, now_s, ticks)
    reference = trajectory.at(plan, now_s)

    # legs, and the guard with the last word
    legs = leg_demand(setup.machine, setup.drives, reference, twist)
    proposed = Command(
        seq=state.command.seq + 1,
        axis_mode=axis_mode_of(mode, latched),
        position_m=legs.position_m,
        velocity_m_s=legs.rate_m_s,
        force_n=setup.control.force_feedforward * legs.axis_n,
    )
    forces = OFF
    if setup.law and latched and (state.feedback.forcing or may_press(setup.law, setup, sample, measured)):
        force_n, forces = computed_force(
            setup.law, state.feedback, measured, sample.age_s, reference, state.reference, elapsed_s, sample.drive_n,
            legs, twist,
        )  # fmt: skip
        proposed = replace(proposed, axis_mode=AxisMode.FORCE, force_n=force_n)
    trail = state.trail if followed else at_rest(sample.setpoint_m, setup.period_s)
    command, found, acted = guard(setup.limits, faults, state.command, trail, proposed, elapsed_s)
    if state.feedback.forcing and (acted or sample.link is not Link.UP):
        forces = forces._replace(integral=state.feedback.integral)  # it would make up for what is not the model's fault
    acted_s, limits = tell(state.acted_s, acted, now_s)
    if found & TRIPPING:
        mode, latched = Mode.FAULT, False
    faults |= found | (state.faults if mode is Mode.FAULT else Fault.NONE)

    tared = verdict is Verdict.ACCEPTED and request.kind is RequestKind.TARE
    tare_n = state.rest.error_n if tared else state.tare_n
    still = mode is Mode.READY and state.latched
    rest, axis_rest, memory = compare_at_rest(setup, state, sample, still, legs.cell_n, loads, memory)
    skipped = sample.tick - state.tick > 1
    memory = monitor.remember(memory, reference, command, legs.position_m, command.axis_mode in FOLLOWING, skipped)
    trail = follow_on(trail, command.position_m, elapsed_s, behind=command.position_m is not proposed.position_m)
    following_error_m = sample.setpoint_m - sample.length_m
    left_s = max(trajectory.end_s(plan) - now_s, 0.0) if mode in (Mode.ACTIVE, Mode.STOPPING) else 0.0
    return (
        State(
            mode, plan, reference, x_guess, twist, command, trail, sample.tick, health, rest, axis_rest, memory,
            tare_n, latched, off_wanted, faults, search, forces, acted_s,
        ),
        Output(
            mode, command, measured, reference, legs.actuator_n, legs.cell_n, following_error_m,
            wrench, residual_n, faults, limits | limited, reserves, tare_n, request.id,
            verdict, refusal, left_s if math.isfinite(left_s) else 0.0,
        ),
    )  # fmt: skip


def locate(setup: Setup, state: State, sample: Sample, unusable: bool) -> tuple[Estimate, Array, Array, Fault]:
    """Pose and screw twists (n,), how far the limits are, and what is wrong with where the machine is and how it moves.

    Before the drives have been homed their lengths mean nothing, and the machine is believed at home.
    """
    measured, twist, reserves, wrong = UNKNOWN, state.twist_rad.copy(), np.full(len(RESERVES), np.nan), Fault.NONE
    if not unusable:
        if sample.axes_homed and state.search.located:
            measured = estimate(setup.machine, sample.length_m, sample.length_m_s, state.x_guess, twist)
        elif sample.axes_homed:
            measured = find_pose(setup.machine, sample.length_m, sample.length_m_s, setup.home, twist)
        base, platform = swings_at(setup, measured)
        wrong, reserves = judge_motion(sample, measured, base, platform, setup.limits, state.latched)
    if not sample.axes_homed:
        reserves[0] = np.nan
        return measured, np.zeros_like(twist), reserves, wrong & ~ABOUT_LENGTHS
    return measured, state.twist_rad if measured is UNKNOWN else twist, reserves, wrong


def in_time(setup: Setup, state: State, sample: Sample) -> bool:
    """The set-points reach the PLC evenly: after a gap the axes brake and catch up, which no model knows of."""
    return sample.age_s < 1.8 * setup.period_s and state.command.seq - sample.seq_echo <= 1


def may_press(law: Law, setup: Setup, sample: Sample, measured: Estimate) -> bool:
    """From set-points of position to forces: once the drives hold the former, with forces that the machine needs."""
    lag_m = np.abs(sample.setpoint_m - sample.length_m).max()
    return bool(lag_m <= setup.control.start_tolerance_m) and bears(law, measured, sample.drive_n)


def axis_mode_of(mode: Mode, latched: bool) -> AxisMode:
    """What the drives are to do in a mode; `latched` when they are on and the reference is what they hold."""
    if mode is Mode.HOMING:
        return AxisMode.HOME
    if mode not in POWERED:
        return AxisMode.STOP
    return AxisMode.FOLLOW if latched else AxisMode.HOLD


def judge_health(setup: Setup, state: State, sample: Sample, plc_silent: bool) -> tuple[Health, Fault]:
    """What the counters over ticks say about PLC task, drives and loop."""
    last, faults = state.health, Fault.NONE
    ticks = max(sample.tick - state.tick, 1)

    fresh = sample.link is Link.UP and sample.age_s < 1.5 * setup.period_s
    frozen_ticks = last.frozen_ticks + ticks if fresh and sample.plc_cycle == last.plc_cycle else 0
    if frozen_ticks >= FROZEN_AFTER:
        faults |= Fault.PLC_FROZEN
    if sample.plc_stopped:
        faults |= Fault.PLC_STOPPED

    waiting = state.mode is Mode.READY and not state.latched
    enabling_s = last.enabling_s + ticks * setup.period_s if waiting else 0.0
    if enabling_s > setup.control.enable_timeout_s:
        faults |= Fault.ENABLE_TIMEOUT
    if sample.drives_fault or (state.latched and not sample.drives_enabled):
        faults |= Fault.DRIVE

    late_bucket = min(max(last.late_bucket + (LATE * (ticks - 1) or -1), 0), TRIP_LEVEL)
    if late_bucket >= TRIP_LEVEL:
        faults |= Fault.OVERRUN
    invalid_ticks, lost = judge_sensors(setup.watch, sample, plc_silent, last.invalid_ticks, ticks)
    return Health(sample.plc_cycle, frozen_ticks, late_bucket, enabling_s, invalid_ticks), faults | lost


def cell_errors(setup: Setup, sample: Sample, model_n: Array) -> Array:
    """What the load cells read more than the model says (n,), NaN without a valid one."""
    if len(sample.sensor) == 0:
        return np.full_like(model_n, np.nan)
    good = (setup.cells >= 0) & (sample.sensor_quality[setup.cells] == Quality.GOOD)
    return np.where(good, sample.sensor[setup.cells], np.nan) - model_n


def compare_at_rest(
    setup: Setup,
    state: State,
    sample: Sample,
    still: bool,
    model_cell_n: Array,
    loads: monitor.Loads | None,
    memory: monitor.Memory,
) -> tuple[Rest, Rest, monitor.Memory]:
    """What cells and drives are off the model while the machine stands; the monitor learns both at the first rest."""
    rest = mean_at_rest(still, state.rest, cell_errors(setup, sample, model_cell_n), setup.cells >= 0)
    axis_n = loads.error_n[monitor.AXIS] if loads else np.full(len(setup.cells), np.nan)
    axis_rest = mean_at_rest(still, state.axis_rest, axis_n, np.ones(len(axis_n), np.bool_))
    for row, mean in ((monitor.CELL, rest), (monitor.AXIS, axis_rest)):
        if mean.ticks >= TARE_TICKS:
            memory = monitor.learn(setup.monitor, memory, row, mean.error_n)
    return rest, axis_rest, memory


def mean_at_rest(still: bool, before: Rest, error_n: Array, fitted: NDArray[np.bool_]) -> Rest:
    """The running mean of what sources show more than the model says; it begins anew with every motion."""
    if not still:
        return before if before.ticks == 0 else Rest(0, np.zeros_like(error_n))
    if before.ticks == 0 or not np.isfinite([error_n[fitted], before.error_n[fitted]]).all():
        return Rest(1, error_n)  # a source that had no valid value makes all begin anew: the mean of a tick is noise
    ticks = before.ticks + 1
    return Rest(ticks, before.error_n + (error_n - before.error_n) / min(ticks, 4 * TARE_TICKS))


def conditions(state: State, faults: Fault, off_wanted: bool, homed: bool, now_s: float) -> Condition:
    """What the transition table must know besides the request."""
    result = Condition.OFF_WANTED if off_wanted else Condition.NONE
    effect = effect_of(faults)
    if effect is Effect.TRIP:
        result |= Condition.TRIP
    elif effect is Effect.STOP:
        result |= Condition.STOP
    if not state.reference.rate.any() and not state.reference.acceleration.any():
        result |= Condition.STANDSTILL
    if now_s >= trajectory.end_s(state.plan):
        result |= Condition.DONE
    if homed:
        result |= Condition.HOMED
    return result


def swings_at(setup: Setup, measured: Estimate) -> tuple[Array, Array]:
    """How far each leg has swung in its base joint and in its platform joint, (n,) each."""
    base, platform = np.empty((2, 1, len(setup.limits.length_min_m)))
    posture.joint_swings(setup.machine, measured.pose[np.newaxis], base, platform)
    return base[0], platform[0]


def hold_where_it_is(setup: Setup, sample: Sample, x_guess: Array, twist: Array) -> tuple[Hold, bool]:
    """Once the drives are on, hold the very set-point they hold: no step when the host takes over."""
    if sample.drives_enabled:
        held = estimate(setup.machine, sample.setpoint_m, sample.length_m_s, x_guess, twist.copy())
        if held is not UNKNOWN:
            return Hold(held.pose), True
    return Hold(x_guess), False
