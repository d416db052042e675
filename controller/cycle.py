"""One control tick as one pure function: read it from top to bottom, it is a sample's whole journey.

sample -> estimate -> what is wrong -> request -> mode -> reference -> legs -> guard -> command.
Time comes in with the sample; nothing is read, written, logged or waited for. Same inputs, same bits.
"""

import numpy as np

from controller.motion import trajectory
from controller.motion.estimator import UNKNOWN, estimate
from controller.motion.feedforward import leg_demand
from controller.motion.trajectory import Hold
from controller.records import (
    Array,
    AxisMode,
    Command,
    Fault,
    Link,
    Mode,
    Output,
    Quality,
    Request,
    RequestKind,
    Sample,
    Verdict,
)  # fmt: skip
from controller.requests import TARE_TICKS, take
from controller.safety.faults import TRIPPING, Effect, effect_of
from controller.safety.limits import guard, judge_motion, judge_sample
from controller.safety.sensors import judge_sensors
from controller.safety.supervisor import Condition, next_mode
from controller.state import Health, Rest, Setup, State

FROZEN_AFTER = 4  # ticks with fresh answers whose task counter stands still
LATE, TRIP_LEVEL = 2, 10  # leaky bucket: +2 a skipped tick, -1 a tick in time: five skipped in a row trip it

UNUSABLE = Fault.SAMPLE_NOT_FINITE | Fault.STATUS_STALE
SILENT = Fault.LINK_LOST | Fault.STATUS_LATE | Fault.STATUS_STALE
POWERED = (Mode.READY, Mode.ACTIVE, Mode.STOPPING)


@np.errstate(all="ignore")  # numbers that are not finite become faults, not warnings on a terminal nobody reads
def cycle(setup: Setup, state: State, sample: Sample, request: Request) -> tuple[State, Output]:
    """One tick: what to send now, and what to remember."""
    now_s = sample.tick * setup.period_s  # absolute ticks: a late wake-up does not bend the path
    elapsed_s = max(sample.tick - state.tick, 1) * setup.period_s

    # where is the machine, and what is wrong
    faults = judge_sample(sample, setup.limits)
    measured, twist = UNKNOWN, state.twist_rad.copy()
    if not faults & UNUSABLE:
        measured = estimate(setup.machine, sample.length_m, sample.length_m_s, state.x_guess, twist)
        faults |= judge_motion(sample, measured, setup.limits, state.latched)
    x_guess, twist = (state.x_guess, state.twist_rad) if measured is UNKNOWN else (measured.pose, twist)
    health, unwell = judge_health(setup, state, sample, bool(faults & SILENT))
    faults |= unwell

    # what is asked for, and may it be
    verdict, wanted, plan = take(setup, state, sample, request, faults)

    # mode
    off_wanted = state.mode is not Mode.OFF and (state.off_wanted or Condition.OFF_WANTED in wanted)
    mode = next_mode(state.mode, wanted | conditions(state, faults, off_wanted, sample.axes_homed, now_s))

    # reference
    latched = state.latched
    if mode is Mode.STOPPING and state.mode is Mode.ACTIVE:
        # a stop starts from the last commanded state, never from the measured one
        start_s = state.tick * setup.period_s
        plan = trajectory.plan_stop(setup.motion, state.reference, start_s) or Hold(state.reference.pose)
    elif mode not in POWERED:
        plan, latched = Hold(x_guess), False  # whatever was planned is dropped
    elif not latched:
        plan, latched = hold_where_it_is(setup, sample, x_guess, twist)
    elif mode is not Mode.ACTIVE:
        plan = state.plan
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
    command, found, acted = guard(setup.limits, faults, state.command, state.step_m_s, proposed, elapsed_s)
    if found & TRIPPING:
        mode, latched = Mode.FAULT, False
    faults |= found | (state.faults if mode is Mode.FAULT else Fault.NONE)

    tared = verdict is Verdict.ACCEPTED and request.kind is RequestKind.TARE
    tare_n = state.rest.cell_error_n if tared else state.tare_n
    rest = compare_at_rest(setup, state, sample, mode, legs.cell_n)
    both_follow = command.axis_mode is AxisMode.FOLLOW and state.command.axis_mode is AxisMode.FOLLOW
    step_m_s = both_follow * (command.position_m - state.command.position_m) / elapsed_s
    following_error_m = sample.setpoint_m - sample.length_m
    return (
        State(
            mode, plan, reference, x_guess, twist, command, step_m_s, sample.tick, health, rest, tare_n, latched,
            off_wanted, faults,
        ),
        Output(
            mode, command, measured, reference, legs.actuator_n, legs.cell_n, following_error_m,
            np.full(6, np.nan), np.full_like(following_error_m, np.nan), faults, acted, tare_n, request.id, verdict,
        ),
    )  # fmt: skip


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


def compare_at_rest(setup: Setup, state: State, sample: Sample, mode: Mode, model_cell_n: Array) -> Rest:
    """The running mean of what the load cells read more than the model says; it begins anew with every motion."""
    if not (mode is Mode.READY and state.latched) or len(sample.sensor) == 0:
        return state.rest if state.rest.ticks == 0 else Rest(0, np.zeros_like(model_cell_n))
    good = (setup.cells >= 0) & (sample.sensor_quality[setup.cells] == Quality.GOOD)
    error_n = np.where(good, sample.sensor[setup.cells], np.nan) - model_cell_n
    fitted, before = setup.cells >= 0, state.rest.cell_error_n
    if state.rest.ticks == 0 or not np.isfinite([error_n[fitted], before[fitted]]).all():
        return Rest(1, error_n)  # a cell that had no valid value makes all begin anew: the mean of a tick is noise
    ticks = state.rest.ticks + 1
    return Rest(ticks, before + (error_n - before) / min(ticks, 4 * TARE_TICKS))


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


def hold_where_it_is(setup: Setup, sample: Sample, x_guess: Array, twist: Array) -> tuple[Hold, bool]:
    """Once the drives are on, hold the very set-point they hold: no step when the host takes over."""
    if sample.drives_enabled:
        held = estimate(setup.machine, sample.setpoint_m, sample.length_m_s, x_guess, twist.copy())
        if held is not UNKNOWN:
            return Hold(held.pose), True
    return Hold(x_guess), False
