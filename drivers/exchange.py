"""The two structs that the control PC and the CX5130 exchange every tick, byte by byte.

Both sides lay them out naturally aligned with explicit padding (TwinCAT 3 aligns to 8), so that the NumPy
dtype, the Structured Text DUT and the virtual PLC agree; `SIZEOF` is compared at connect.
An axis is a leg: position is the leg length between the joint centres, force is what the drive puts into
the axis along the leg (> 0 extends); a rotary drive makes of it torque = force * lead / (2 pi gear_ratio).
"""

from enum import IntEnum, IntFlag

import numpy as np

from drivers.profile import INPUTS

AXES = 6
LAYOUT_VERSION = 2

SYMBOL_COMMAND = "GVL_Pkm.stCommand"
SYMBOL_STATUS = "GVL_Pkm.stStatus"


class PlcState(IntEnum):
    """What the PLC program does."""

    OFF = 0  # drives without power
    HOLDING = 1  # drives on, set-point constant
    FOLLOWING = 2  # interpolating the host's set-points
    LATE = 3  # no new set-point within the watchdog time: controlled hold
    QUICK_STOP = 4  # no new set-point for too long: quick stop, latched until the host sends STOP, then HOLD
    HOMING = 5  # the axes look for their references


class PlcError(IntFlag):
    """Why the PLC does not simply obey; more than one may stand."""

    NONE = 0
    WATCHDOG = 1  # sequence number stood still: latched
    POSITION = 2  # set-point outside the PLC's own position range: clamped
    VELOCITY = 4  # clamped
    ACCELERATION = 8  # clamped
    JUMP = 16  # set-point further than one host period's travel from the last: refused, latched
    LAYOUT = 32  # size or version of the command block is wrong: ignored
    NOT_FINITE = 64  # a set-point is NaN or infinite: refused, latched
    FOLLOWING = 128  # position lag above the limit; in mode FORCE also speed or position (with their bits): latched
    HOMING = 256  # an axis did not find its reference, or is to follow set-points before it has: latched


class DriveStatus(IntFlag):
    """Bits of `drive_status`, one word a drive."""

    ENABLED = 1
    FAULT = 2
    HOMED = 4  # it knows where it is


class InputStatus(IntFlag):
    """Bits of `input_status`: what the terminals say, each kind in words of its own, the PLC in these."""

    UNDERRANGE = 1
    OVERRANGE = 2
    ERROR = 4  # of the terminal: wire break, short circuit, supply
    INVALID = 8  # TxPDO state: the value means nothing
    CALIBRATING = 16  # self-calibration: the last value is frozen
    NO_DATA = 32  # the terminal does not take part in the bus cycle, or its toggle bit stands still


COMMAND = np.dtype(
    [
        ("size", "<u4"),
        ("version", "<u4"),
        ("seq", "<u4"),  # changes with every command: feeds the PLC's watchdog
        ("mode", "<u4"),  # AxisMode
        ("host_time_s", "<f8"),  # nominal time of the tick (ticks * period): spaces the set-points evenly
        ("period_s", "<f8"),  # time until the next command is due
        ("velocity_feedforward", "<f8"),  # share of the set-point velocity that goes to the drives, 0 ... 1
        ("position_m", "<f8", AXES),
        ("velocity_m_s", "<f8", AXES),  # velocity of the set-point, for interpolation and feed-forward
        ("force_n", "<f8", AXES),  # force feed-forward; in mode FORCE the set-point of force
    ]
)

STATUS = np.dtype(
    [
        ("size", "<u4"),
        ("version", "<u4"),
        ("seq_echo", "<u4"),  # seq of the newest command the PLC task has seen
        ("plc_cycle", "<u4"),  # counts PLC cycles: proves that the task runs
        ("plc_state", "<u4"),  # PlcState
        ("plc_error", "<u4"),  # PlcError
        ("position_m", "<f8", AXES),
        ("velocity_m_s", "<f8", AXES),
        ("setpoint_m", "<f8", AXES),  # interpolated set-point of the same PLC cycle: lag = setpoint - position
        ("force_n", "<f8", AXES),  # what the drive puts into the axis
        ("drive_status", "<u4", AXES),  # DriveStatus
        ("input_raw", "<i4", INPUTS),  # process values of the analogue terminals as they are; scaled by the host
        ("input_status", "<u4", INPUTS),  # InputStatus
    ]
)
