"""What the cycle is given once (Setup) and what one tick hands to the next (State)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller import schema
from controller.errors import ConfigurationError
from controller.mechanism import kinematics, layout, posture
from controller.mechanism.drive import build_drives
from controller.mechanism.layout import Mechanism
from controller.mechanism.model import build, home_pose
from controller.motion import feedback, monitor, stream
from controller.motion.track import Room, Track, build_track, misfit
from controller.motion.trajectory import FREE, ZERO, Hold, MotionLimits, Plan, build_motion_limits
from controller.records import Array, AxisMode, Command, Fault, Limit, Mode, Reference
from controller.safety.homing import Search
from controller.safety.limits import Limits, build_limits
from controller.safety.pacing import Trail, at_rest
from controller.safety.sensors import Watch, build_watch


class Setup(NamedTuple):
    """All that does not change while the controller runs."""

    machine: Mechanism
    drives: Array  # (n, 4), see controller.mechanism.drive
    limits: Limits
    motion: MotionLimits
    control: schema.Control
    home: Array  # (6,)
    homing_most_s: float  # from the request to the end, drives included
    period_s: float
    watch: Watch
    cells: NDArray[np.intp]  # (n,) which sensor of the site is the load cell of a leg, -1 where there is none
    cell_capacity_n: Array  # (n,) 0 where there is none
    tracks: tuple[Track, ...]  # of the site, in its order
    stream: stream.Law | None
    monitor: monitor.Monitor
    law: feedback.Law | None  # of forces; None where the drives close the position loop


class Health(NamedTuple):
    """What is counted over ticks to judge the PLC, the drives and the loop."""

    plc_cycle: int = -1  # the last task counter seen
    frozen_ticks: int = 0  # fresh answers with the same counter
    late_bucket: int = 0  # leaky bucket of late ticks
    enabling_s: float = 0.0  # since the drives were asked to come on
    invalid_ticks: Sequence[int] = ()  # of each sensor, in a row


class Rest(NamedTuple):
    """What a kind of source of the leg forces shows while the machine stands, compared with the model."""

    ticks: int  # since it stands
    error_n: Array  # (n,) mean of measured minus model, NaN without a valid value


@dataclass(frozen=True, slots=True)
class State:
    """All that one tick hands to the next."""

    mode: Mode
    plan: Plan
    reference: Reference
    x_guess: Array  # (6,) the last pose found, where the next search starts
    twist_rad: Array  # (n,) screw twists there: which turn the screws are in
    command: Command
    trail: Trail  # the motion of the set-points up to that
    tick: int
    health: Health
    rest: Rest  # of the load cells
    axis_rest: Rest  # of drives or pressures
    monitor: monitor.Memory
    tare_n: Array  # (n,)
    latched: bool  # the drives are on and the reference is the set-point they hold
    off_wanted: bool
    faults: Fault  # kept while in FAULT
    search: Search
    feedback: feedback.Feedback
    acted_s: Mapping[Limit, float]  # when the limits that are told acted last


def prepare(machine: schema.Machine, site: schema.Site, texts: Mapping[str, str] | None = None) -> Setup:
    """The setup of a validated machine and site; `texts` are those of the site's CSV tracks, by name of the track.

    Raises:
        ConfigurationError: a track cannot be read, or leaves the limits; gains leave too little margin; says where.
    """
    period_s, n, names = 1.0 / site.rate_hz, len(machine.leg), list(site.sensors)
    legs = [schema.effective_leg(machine, i) for i in range(n)]
    mechanism, home = build(machine), home_pose(machine)
    if not site.control.screw_compensation:
        mechanism.legs[:, layout.SCREW] = 0.0  # axis positions, rates and forces become those of the lengths
    drives = build_drives(machine)
    limits = build_limits(machine, site.control, period_s, posture.condition(mechanism, home))
    motion, room = build_motion_limits(machine.platform.motion), _room(limits)
    return Setup(
        machine=mechanism,
        drives=drives,
        limits=limits,
        motion=motion,
        control=site.control,
        home=home,
        homing_most_s=site.homing.timeout_s + site.control.enable_timeout_s,
        period_s=period_s,
        watch=build_watch(site),
        cells=np.array([names.index(f"cell_{i}") if f"cell_{i}" in names else -1 for i in range(1, n + 1)]),
        cell_capacity_n=np.array([leg.cell.capacity_n if leg.cell else 0.0 for leg in legs]),
        tracks=tuple(
            _track(name, track, (texts or {}).get(name, ""), mechanism, motion, room, home, period_s)
            for name, track in site.tracks.items()
        ),
        monitor=monitor.build_monitor(machine, site, mechanism, drives, home),
        stream=site.stream
        and stream.build_law(
            site.stream, mechanism, motion, room, home, FREE[int(mechanism.platform[layout.KIND])], period_s
        ),
        law=feedback.build_law(mechanism, drives, site.control, period_s),
    )


def _room(limits: Limits) -> Room:
    """The limits that hold for planned motions, as arrays."""
    return Room(
        *map(
            np.array,
            (
                limits.pose_min, limits.pose_max, limits.length_min_m, limits.length_max_m, limits.base_swing_rad,
                limits.platform_swing_rad, limits.speed_m_s, limits.acceleration_m_s2, limits.jerk_m_s3,
            ),
        )
    )  # fmt: skip


def _track(
    name: str, table: schema.Track, text: str, machine: Mechanism, motion: MotionLimits, room: Room, home: Array,
    period_s: float,
) -> Track:  # fmt: skip
    """A track that stays inside the limits in every tick."""
    where = f"tracks.{name}" + (f" ({table.file})" if isinstance(table, schema.CsvTrack) else "")
    try:
        track = build_track(table, text, home, (motion.acceleration, motion.jerk))
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    if reason := misfit(machine, room, track, period_s):
        raise ConfigurationError(f"{where}: {reason}")
    return track


def initial_state(setup: Setup) -> State:
    """The state before the first tick: everything off, the platform believed at home."""
    n = len(setup.limits.length_min_m)
    q = np.empty(n)
    kinematics.leg_lengths(setup.machine, setup.home, q)  # at home the axes are at the leg lengths
    return State(
        mode=Mode.OFF,
        plan=Hold(setup.home),
        reference=Reference(setup.home, ZERO, ZERO),
        x_guess=setup.home,
        twist_rad=np.zeros(n),
        command=Command(0, AxisMode.STOP, q, np.zeros(n), np.zeros(n)),
        trail=at_rest(q, setup.period_s),
        tick=0,
        health=Health(invalid_ticks=[0] * len(setup.watch.required)),
        rest=Rest(0, np.zeros(n)),
        axis_rest=Rest(0, np.zeros(n)),
        monitor=monitor.at_start(n),
        tare_n=np.zeros(n),
        latched=False,
        off_wanted=False,
        faults=Fault.NONE,
        search=Search(),
        feedback=feedback.OFF,
        acted_s={},
    )
