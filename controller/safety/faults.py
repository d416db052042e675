"""The one table of faults: what each means to an operator and what it causes."""

from enum import IntEnum
from typing import NamedTuple

from controller.records import Fault


class Effect(IntEnum):
    """What a fault causes, in rising order."""

    WARN = 0  # told, nothing stops
    STOP = 1  # controlled stop, then hold; a new request may follow
    TRIP = 2  # stop command to the PLC, latched until acknowledged


class Row(NamedTuple):
    """One fault."""

    effect: Effect
    meaning: str


FAULTS: dict[Fault, Row] = {
    Fault.LINK_LOST: Row(Effect.TRIP, "the ADS link to the PLC is down"),
    Fault.STATUS_LATE: Row(Effect.STOP, "no status from the PLC for more than four ticks: I/O late"),
    Fault.STATUS_STALE: Row(Effect.TRIP, "no status from the PLC for more than twelve ticks: the PLC is gone"),
    Fault.PLC_FROZEN: Row(Effect.TRIP, "the PLC answers but its task counter stands still"),
    Fault.PLC_STOPPED: Row(Effect.TRIP, "the PLC stopped the axes by itself: see plc_state and plc_error"),
    Fault.DRIVE: Row(Effect.TRIP, "a drive reports a fault or lost its enable"),
    Fault.ENABLE_TIMEOUT: Row(Effect.TRIP, "the drives did not come on in time"),
    Fault.SAMPLE_NOT_FINITE: Row(Effect.TRIP, "a measured value is not a number"),
    Fault.POSE_UNKNOWN: Row(Effect.TRIP, "the leg lengths belong to no pose near the last one"),
    Fault.FOLLOWING_ERROR: Row(Effect.TRIP, "a leg does not follow its set-point"),
    Fault.STROKE: Row(Effect.TRIP, "a leg is outside its stroke, or could not stop inside it"),
    Fault.POSE: Row(Effect.TRIP, "the platform is outside its pose limits"),
    Fault.OVERSPEED: Row(Effect.TRIP, "a leg is faster than its limit"),
    Fault.OVERFORCE: Row(Effect.TRIP, "a drive force is above its limit"),
    Fault.PROPOSAL_NOT_FINITE: Row(Effect.TRIP, "a computed set-point is not a number"),
    Fault.SENSOR_DEGRADED: Row(Effect.WARN, "a sensor gives no valid value: see the qualities"),
    Fault.SENSOR_LOST: Row(Effect.STOP, "a sensor that the site requires gives no valid value: see the qualities"),
    Fault.HOMING_FAILED: Row(Effect.TRIP, "an axis did not find its reference, or lost it: see plc_error"),
    Fault.STREAM_LOST: Row(Effect.STOP, "no usable pose of the motion-base host for too long"),
    Fault.COLLISION: Row(Effect.TRIP, "something pushes the platform: load cells and drives agree about it"),
    Fault.EXTERNAL_LOAD: Row(Effect.WARN, "something pushes the platform, and the site wants to be told only"),
    Fault.CELL_SUSPECT: Row(Effect.WARN, "a load cell contradicts its drive and the model: cell, cable or amplifier"),
    Fault.DRIVE_SUSPECT: Row(Effect.WARN, "a drive contradicts load cell and model: friction, a stuck joint"),
    Fault.SINGULAR: Row(Effect.TRIP, "the platform is near a pose at which the legs no longer hold it"),
    Fault.JOINT_ANGLE: Row(Effect.TRIP, "a leg swings further than its joint allows"),
    Fault.OVERRUN: Row(Effect.STOP, "too many control ticks came late"),
}


def effect_of(faults: Fault) -> Effect | None:
    """The strongest effect of a set of faults; None when there is none."""
    return max((FAULTS[fault].effect for fault in faults), default=None)


TRIPPING = Fault(sum(fault for fault, row in FAULTS.items() if row.effect is Effect.TRIP))


def describe(faults: Fault) -> str:
    """One plain sentence for a set of faults."""
    return "; ".join(f"{fault.name}: {FAULTS[fault].meaning}" for fault in faults)
