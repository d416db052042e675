"""Frozen records that cross borders, and the one table of channels they are stored under.

A tick is stored, recorded and replayed as one row of float64 numbers, a column a channel: ring, MCAP, CSV and
telemetry all use the names, units and meanings of `channels()`. Integers and flags are exact below 2**53.
Arrays inside records are read-only; `n` is the number of legs, poses are x y z yaw pitch roll (m, rad).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def _none() -> Array:
    return np.empty(0)


POSE = ("x_m", "y_m", "z_m", "yaw_rad", "pitch_rad", "roll_rad")


class Mode(IntEnum):
    """What the controller is doing."""

    OFF = 0  # drives without power
    READY = 1  # drives on, position held
    ACTIVE = 2  # following a reference
    STOPPING = 3  # on the way to standstill inside the limits
    FAULT = 4  # latched: stop sent, waits for acknowledge
    HOMING = 5  # the drives look for their references


class RequestKind(IntEnum):
    """What an operator may ask for."""

    NONE = 0
    READY = 1  # power the drives and hold
    MOVE = 2  # jerk-limited move to `pose`
    SINE = 3  # sine about the present pose, amplitudes `pose`, until stopped
    STOP = 4  # controlled stop, then hold
    OFF = 5  # controlled stop, then drives off
    ACKNOWLEDGE = 6  # clear a latched fault whose cause is gone
    TARE = 7  # make the load cells read what the model says of this pose at rest
    HOME = 8  # let the drives look for their references
    TRACK = 9  # follow a track of the site file
    STREAM = 10  # follow the poses that a motion-base host sends


class Verdict(IntEnum):
    """The answer to a request, given in the tick that took it."""

    NONE = 0
    ACCEPTED = 1
    WRONG_MODE = 2  # not possible in the present mode
    NOT_READY = 3  # drives are not enabled yet
    UNREACHABLE = 4  # target or path outside the limits
    NOT_FINITE = 5  # a number of the request is NaN or infinite
    FAULT_STANDS = 6  # the cause of the fault is still there
    NO_LINK = 7  # no valid sample from the PLC
    OUT_OF_RANGE = 8  # a number of the request makes no sense
    NO_CELLS = 9  # no load cells, or not all of them give valid values
    TARE_TOO_LARGE = 10  # measured and modelled force differ by more than a tare may hide
    NOT_HOMED = 11  # the drives do not know where they are
    NO_TRACK = 12  # the site has no such track
    NO_STREAM = 13  # no poses come, or they start too far from here


class Link(IntEnum):
    """State of the control link to the PLC."""

    DOWN = 0  # no link; reconnecting in the background
    LATE = 1  # the last exchange was not answered in time, the link is kept
    UP = 2  # the last exchange was answered


class Quality(IntEnum):
    """What the value of a sensor is worth."""

    NONE = 0  # there never was a valid value
    BAD = 1  # the device itself, or the plausible range, says that it does not measure now
    HELD = 2  # an old value: the device or the line gives no new one
    GOOD = 3


class Fault(IntFlag):
    """Something is wrong. What each one causes stands in `controller.safety.faults`."""

    NONE = 0
    LINK_LOST = 1 << 0
    STATUS_STALE = 1 << 1
    PLC_FROZEN = 1 << 2
    PLC_STOPPED = 1 << 3
    DRIVE = 1 << 4
    ENABLE_TIMEOUT = 1 << 5
    SAMPLE_NOT_FINITE = 1 << 6
    POSE_UNKNOWN = 1 << 7
    FOLLOWING_ERROR = 1 << 8
    STROKE = 1 << 9
    POSE = 1 << 10
    OVERSPEED = 1 << 11
    OVERFORCE = 1 << 12
    PROPOSAL_NOT_FINITE = 1 << 13
    OVERRUN = 1 << 14
    STATUS_LATE = 1 << 15
    SENSOR_DEGRADED = 1 << 16
    SENSOR_LOST = 1 << 17
    HOMING_FAILED = 1 << 18
    STREAM_LOST = 1 << 19
    COLLISION = 1 << 20
    CELL_SUSPECT = 1 << 21
    DRIVE_SUSPECT = 1 << 22
    SINGULAR = 1 << 23
    JOINT_ANGLE = 1 << 24
    EXTERNAL_LOAD = 1 << 25


class Limit(IntFlag):
    """A clamp acted on what was about to be sent."""

    NONE = 0
    STROKE = 1 << 0
    SPEED = 1 << 1
    ACCELERATION = 1 << 2
    FORCE = 1 << 3
    JERK = 1 << 4
    POSE = 1 << 5
    TORQUE = 1 << 6


class Obstacle(IntEnum):
    """What stands in the way of a motion that is refused as unreachable: of a leg, of a coordinate or of all."""

    NONE = 0
    POSE = 1  # of a coordinate
    STROKE = 2  # this and what follows of a leg
    BASE_SWING = 3
    PLATFORM_SWING = 4
    CONDITION = 5  # of all
    SPEED = 6
    ACCELERATION = 7
    JERK = 8
    NO_PATH = 9  # there is no motion from the present state of motion to the target


class Refusal(NamedTuple):
    """Why a motion is refused as unreachable."""

    obstacle: Obstacle
    which: int  # leg or coordinate, from 1; 0 where there is none
    excess: float  # beyond the limit, in its unit


NO_REFUSAL = Refusal(Obstacle.NONE, 0, 0.0)
# kinds of limits of which a tick tells how much is left
RESERVES = ("stroke", "pose", "swing", "condition", "speed", "force")


class AxisMode(IntEnum):
    """What the PLC is asked to do with the drives."""

    STOP = 0  # controlled stop inside the limits, then drives off
    HOLD = 1  # drives on, stand still where they are
    FOLLOW = 2  # follow the set-points of position
    FORCE = 3  # put the set-points of force into the axes
    HOME = 4  # look for the references


class Stream(NamedTuple):
    """The newest pose that a motion-base host sent."""

    seq: int  # the host's number of it; -1 before the first
    host_s: float  # the host's time of it; 0 before the first
    age_s: float  # since it came; infinite before the first
    pose: Array  # (6,) NaN before the first


@dataclass(frozen=True, slots=True)
class Sample:
    """What the drivers report at a tick, and the tick itself."""

    tick: int  # deadlines since the start, skipped ones included
    t_s: float  # monotonic time since the start of the session
    link: Link
    age_s: float  # age of the PLC's status block; infinite before the first
    plc_cycle: int
    seq_echo: int
    plc_state: int
    plc_error: int
    plc_stopped: bool  # the PLC stopped the axes by itself and ignores set-points
    drives_enabled: bool  # all of them
    drives_fault: bool  # any of them
    length_m: Array  # (n,)
    length_m_s: Array  # (n,)
    setpoint_m: Array  # (n,) interpolated by the PLC at the moment of length_m
    drive_n: Array  # (n,) force the drives put into the axes
    # the k sensors of the site in its order: last valid value (NaN before the first), its age, Quality of now
    sensor: Array = field(default_factory=_none)
    sensor_age_s: Array = field(default_factory=_none)
    sensor_quality: Array = field(default_factory=_none)
    axes_homed: bool = True  # all of them
    stream: Stream | None = None  # None where the site has no stream


@dataclass(frozen=True, slots=True)
class Request:
    """An operator's request; `pose` is a target pose or six amplitudes."""

    kind: RequestKind
    id: int
    pose: Array  # (6,)
    speed_share: float = 1.0  # of the machine's motion limits
    frequency_hz: float = 0.0
    track: int = -1  # which of the site's tracks


@dataclass(frozen=True, slots=True)
class Estimate:
    """Where the platform is, from the leg lengths."""

    pose: Array  # (6,)
    rate: Array  # (6,)
    iterations: int  # of the forward kinematics; negative: not converged
    residual_m: float
    condition: float  # of the Jacobian, rotations scaled by the platform radius


@dataclass(frozen=True, slots=True)
class Reference:
    """Where the platform should be."""

    pose: Array  # (6,)
    rate: Array  # (6,)
    acceleration: Array  # (6,)


@dataclass(frozen=True, slots=True)
class Command:
    """What is sent to the PLC."""

    seq: int
    axis_mode: AxisMode
    position_m: Array  # (n,)
    velocity_m_s: Array  # (n,) of the set-point
    force_n: Array  # (n,) feed-forward


@dataclass(frozen=True, slots=True)
class Output:
    """What one cycle decided."""

    mode: Mode
    command: Command
    estimate: Estimate
    reference: Reference
    model_n: Array  # (n,) actuator force of the model at the reference
    model_cell_n: Array  # (n,) load-cell force of the model at the reference
    following_error_m: Array  # (n,) PLC set-point minus length
    wrench: Array  # (6,) external force and moment on the platform about o, base axes; NaN where it is not known
    residual_n: Array  # (n,) measured minus modelled force of each leg, of cell or drive; NaN where not known
    faults: Fault
    limits: Limit
    reserves: Array  # (6,) smallest share left of each kind of RESERVES; NaN where it is not known
    tare_n: Array  # (n,) what the load cells read too much, by the last tare
    request_id: int  # of the request this tick answered, 0 for none
    verdict: Verdict
    refusal: Refusal  # why, with Verdict.UNREACHABLE
    left_s: float = 0.0  # until the motion under way ends; 0 where it has no end


@dataclass(frozen=True, slots=True)
class Timing:
    """How the loop did, measured outside the cycle."""

    lateness_s: float  # wake-up after the deadline
    cycle_s: float  # time spent in the previous cycle
    exchange_s: float  # last write + read with the PLC
    skipped: int  # deadlines skipped so far
    dropped: int  # commands the link never sent


class Channel(NamedTuple):
    """One column of a stored tick."""

    name: str
    unit: str  # SI symbol, "1" for numbers, "code" for enumerations, "flags" for bit sets
    meaning: str


_HEAD = 12  # scalars at the start of a Sample


def _pose_channels(prefix: str, suffix: str, meaning: str) -> list[Channel]:
    return [
        Channel(
            f"{prefix}{name}{suffix}", name.rsplit("_", 1)[1] + suffix.replace("_", "/", 1).replace("s2", "s²"), meaning
        )
        for name in POSE
    ]


def _leg_channels(n: int, name: str, unit: str, meaning: str) -> list[Channel]:
    return [Channel(name.format(i=i), unit, f"leg {i}: {meaning}") for i in range(1, n + 1)]


SENSORS: dict[str, tuple[str, str]] = {  # what a site may measure beside the PLC's axes; {i} is the number of a leg
    "cell_{i}": ("N", "load cell, > 0 compression"),
    "head_pressure_{i}": ("Pa", "pressure in the chamber of the cylinder without the rod"),
    "rod_pressure_{i}": ("Pa", "pressure in the chamber of the cylinder with the rod"),
    "tilt_x": ("rad", "inclination of the platform's x axis, > 0 when it points up"),
    "tilt_y": ("rad", "inclination of the platform's y axis, > 0 when it points up"),
}


def sensors_of(n: int) -> dict[str, tuple[str, str]]:
    """Name, unit and meaning of every sensor that a machine with n legs can have."""
    return {
        name.format(i=i): (unit, f"leg {i}: {meaning}" if "{i}" in name else meaning)
        for name, (unit, meaning) in SENSORS.items()
        for i in (range(1, n + 1) if "{i}" in name else (0,))
    }


def _sensor_channels(n: int, names: Sequence[str]) -> list[Channel]:
    known = {name: known for name, known in sensors_of(n).items() if name in names}
    codes = ", ".join(f"{v.value} {v.name}" for v in Quality)
    return [
        *(Channel(f"{name}_{known[name][0].lower()}", *known[name]) for name in names),
        *(Channel(f"{name}_age_s", "s", "age of that value") for name in names),
        *(Channel(f"{name}_quality", "code", f"what it is worth: {codes}") for name in names),
    ]


_STREAM = (
    Channel("stream_seq", "1", "number of the newest pose of the stream"),
    Channel("stream_host_s", "s", "the host's time of it"),
    Channel("stream_age_s", "s", "since it came"),
    *_pose_channels("stream_", "", "pose of the stream"),
)


def channels(n: int, sensors: Sequence[str] = (), stream: bool = False) -> list[Channel]:
    """The columns of a stored tick of a machine with n legs and these sensors: inputs, outputs, timing in this order.

    `sensors` are names of `sensors_of(n)`; `stream` where the site has one.
    """
    return [
        # Sample
        Channel("tick", "1", "deadlines since the start, skipped ones included"),
        Channel("t_s", "s", "monotonic time since the start of the session"),
        Channel("link", "code", "control link: " + ", ".join(f"{v.value} {v.name}" for v in Link)),
        Channel("age_s", "s", "age of the PLC's status block"),
        Channel("plc_cycle", "1", "PLC task cycle counter"),
        Channel("seq_echo", "1", "newest command seen by the PLC task"),
        Channel("plc_state", "code", "state of the PLC program"),
        Channel("plc_error", "flags", "error bits of the PLC program"),
        Channel("plc_stopped", "1", "1 when the PLC stopped the axes by itself"),
        Channel("drives_enabled", "1", "1 when all drives are enabled"),
        Channel("drives_fault", "1", "1 when any drive reports a fault"),
        Channel("axes_homed", "1", "1 when all drives know where they are"),
        *_leg_channels(n, "length_{i}_m", "m", "measured length between the joint centres"),
        *_leg_channels(n, "length_{i}_m_s", "m/s", "measured rate"),
        *_leg_channels(n, "setpoint_{i}_m", "m", "set-point interpolated by the PLC"),
        *_leg_channels(n, "drive_{i}_n", "N", "force the drive puts into the axis, > 0 extends"),
        *_sensor_channels(n, sensors),
        *(_STREAM if stream else ()),
        # Request
        Channel(
            "request_kind",
            "code",
            "request taken in this tick: " + ", ".join(f"{v.value} {v.name}" for v in RequestKind),
        ),
        Channel("request_id", "1", "its id"),
        *_pose_channels("request_", "", "target or amplitude of the request"),
        Channel("request_speed_share", "1", "share of the motion limits"),
        Channel("request_frequency_hz", "Hz", "frequency of a sine"),
        Channel("request_track", "1", "number of a track, in the order of the site file"),
        # Output
        Channel("mode", "code", ", ".join(f"{v.value} {v.name}" for v in Mode)),
        Channel("command_seq", "1", "sequence number of the command"),
        Channel("command_axis_mode", "code", ", ".join(f"{v.value} {v.name}" for v in AxisMode)),
        *_leg_channels(n, "command_{i}_m", "m", "position set-point sent"),
        *_leg_channels(n, "command_{i}_m_s", "m/s", "velocity of the set-point sent"),
        *_leg_channels(n, "command_{i}_n", "N", "force feed-forward sent"),
        *_pose_channels("", "", "estimated platform pose"),
        *_pose_channels("", "_s", "estimated platform rate"),
        Channel("fk_iterations", "1", "forward kinematics iterations, negative when not converged"),
        Channel("fk_residual_m", "m", "forward kinematics residual"),
        Channel("condition", "1", "condition number of the scaled Jacobian"),
        *_pose_channels("reference_", "", "reference pose"),
        *_pose_channels("reference_", "_s", "reference rate"),
        *_pose_channels("reference_", "_s2", "reference acceleration"),
        *_leg_channels(n, "model_{i}_n", "N", "model actuator force at the reference"),
        *_leg_channels(n, "model_cell_{i}_n", "N", "model load-cell force at the reference"),
        *_leg_channels(n, "following_error_{i}_m", "m", "PLC set-point minus measured length"),
        *(Channel(f"wrench_{axis}_n", "N", f"external force on the platform, {axis}") for axis in ("fx", "fy", "fz")),
        *(Channel(f"wrench_{axis}_nm", "N m", f"external moment about o, {axis}") for axis in ("mx", "my", "mz")),
        *_leg_channels(n, "residual_{i}_n", "N", "measured minus modelled force, of cell or drive"),
        Channel("faults", "flags", ", ".join(f"{v.value} {v.name}" for v in Fault if v)),
        Channel("limits", "flags", ", ".join(f"{v.value} {v.name}" for v in Limit if v)),
        *(
            Channel(f"reserve_{kind}", "1", f"smallest share left of any limit of {kind}: 1 far, 0 at it, < 0 beyond")
            for kind in RESERVES
        ),
        *_leg_channels(n, "tare_{i}_n", "N", "what the load cell reads too much, by the last tare"),
        Channel("answer_id", "1", "id of the request answered in this tick, 0 for none"),
        Channel("verdict", "code", ", ".join(f"{v.value} {v.name}" for v in Verdict)),
        Channel("left_s", "s", "until the motion under way ends, 0 where it has no end"),
        Channel("refusal", "code", "what makes it unreachable: " + ", ".join(f"{v.value} {v.name}" for v in Obstacle)),
        Channel("refusal_which", "1", "leg or pose coordinate of that, from 1"),
        Channel("refusal_excess", "1", "by how much beyond the limit, in its unit"),
        # Timing
        Channel("lateness_s", "s", "wake-up after the deadline"),
        Channel("cycle_s", "s", "time spent in the previous cycle"),
        Channel("exchange_s", "s", "last write and read with the PLC"),
        Channel("skipped", "1", "deadlines skipped so far"),
        Channel("dropped", "1", "commands the link never sent"),
    ]


def timing_width() -> int:
    """How many trailing columns of a row are timing, which no cycle produces."""
    return 5


def pack(row: Array, sample: Sample, request: Request, output: Output, timing: Timing) -> None:
    """Write one tick into `row` (len(channels(n, sensors)),), in the order of `channels`."""
    command, estimate, reference, stream = output.command, output.estimate, output.reference, sample.stream
    parts: tuple[tuple[float, ...] | Array, ...] = (
        (sample.tick, sample.t_s, sample.link, sample.age_s, sample.plc_cycle, sample.seq_echo,
         sample.plc_state, sample.plc_error, sample.plc_stopped, sample.drives_enabled, sample.drives_fault,
         sample.axes_homed),
        sample.length_m, sample.length_m_s, sample.setpoint_m, sample.drive_n,
        sample.sensor, sample.sensor_age_s, sample.sensor_quality,
        *(((stream.seq, stream.host_s, stream.age_s), stream.pose) if stream else ()),
        (request.kind, request.id), request.pose, (request.speed_share, request.frequency_hz, request.track),
        (output.mode, command.seq, command.axis_mode),
        command.position_m, command.velocity_m_s, command.force_n,
        estimate.pose, estimate.rate, (estimate.iterations, estimate.residual_m, estimate.condition),
        reference.pose, reference.rate, reference.acceleration,
        output.model_n, output.model_cell_n, output.following_error_m,
        output.wrench, output.residual_n,
        (output.faults, output.limits), output.reserves, output.tare_n,
        (output.request_id, output.verdict, output.left_s), output.refusal,
        (timing.lateness_s, timing.cycle_s, timing.exchange_s, timing.skipped, timing.dropped),
    )  # fmt: skip
    at = 0
    for part in parts:
        end = at + len(part)
        row[at:end] = part
        at = end


def unpack_inputs(row: Array, n: int, k: int = 0, stream: bool = False) -> tuple[Sample, Request]:
    """The inputs of the cycle from a row of n legs, k sensors, perhaps a stream: what `pack` wrote, bit for bit."""
    head, at = row[:_HEAD].tolist(), _HEAD + 4 * n
    legs, sensors = row[_HEAD:at].reshape(4, n), row[at : at + 3 * k].reshape(3, k)
    at += 3 * k
    streamed = Stream(int(row[at]), float(row[at + 1]), float(row[at + 2]), row[at + 3 : at + 9]) if stream else None
    tail = row[at + 9 * stream :]
    sample = Sample(
        tick=int(head[0]), t_s=head[1], link=Link(int(head[2])), age_s=head[3], plc_cycle=int(head[4]),
        seq_echo=int(head[5]), plc_state=int(head[6]), plc_error=int(head[7]),
        plc_stopped=bool(head[8]), drives_enabled=bool(head[9]), drives_fault=bool(head[10]),
        axes_homed=bool(head[11]), stream=streamed,
        length_m=legs[0], length_m_s=legs[1], setpoint_m=legs[2], drive_n=legs[3],
        sensor=sensors[0], sensor_age_s=sensors[1], sensor_quality=sensors[2],
    )  # fmt: skip
    request = Request(
        kind=RequestKind(int(tail[0])), id=int(tail[1]), pose=tail[2:8],
        speed_share=float(tail[8]), frequency_hz=float(tail[9]), track=int(tail[10]),
    )  # fmt: skip
    return sample, request
