"""What the cycle is given once (Setup) and what one tick hands to the next (State)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from controller import schema
from controller.mechanism import kinematics
from controller.mechanism.drive import build_drives
from controller.mechanism.layout import Mechanism
from controller.mechanism.model import build, home_pose
from controller.motion.trajectory import ZERO, Hold, MotionLimits, Plan, build_motion_limits
from controller.records import Array, AxisMode, Command, Fault, Mode, Reference
from controller.safety.limits import Limits, build_limits


class Setup(NamedTuple):
    """All that does not change while the controller runs."""

    machine: Mechanism
    drives: Array  # (n, 4), see controller.mechanism.drive
    limits: Limits
    motion: MotionLimits
    control: schema.Control
    home: Array  # (6,)
    period_s: float


class Health(NamedTuple):
    """What is counted over ticks to judge the PLC, the drives and the loop."""

    plc_cycle: int = -1  # the last task counter seen
    frozen_ticks: int = 0  # fresh answers with the same counter
    late_bucket: int = 0  # leaky bucket of late ticks
    enabling_s: float = 0.0  # since the drives were asked to come on


@dataclass(frozen=True, slots=True)
class State:
    """All that one tick hands to the next."""

    mode: Mode
    plan: Plan
    reference: Reference
    x_guess: Array  # (6,) the last pose found, where the next search starts
    twist_rad: Array  # (n,) screw twists there: which turn the screws are in
    command: Command
    step_m_s: Array  # (n,) leg rate that the last two commands make
    tick: int
    health: Health
    latched: bool  # the drives are on and the reference is the set-point they hold
    off_wanted: bool
    faults: Fault  # kept while in FAULT


def prepare(machine: schema.Machine, site: schema.Site) -> Setup:
    """The setup of a validated machine and site."""
    period_s = 1.0 / site.rate_hz
    return Setup(
        machine=build(machine),
        drives=build_drives(machine),
        limits=build_limits(machine, site.control, period_s),
        motion=build_motion_limits(machine.platform.motion),
        control=site.control,
        home=home_pose(machine),
        period_s=period_s,
    )


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
        step_m_s=np.zeros(n),
        tick=0,
        health=Health(),
        latched=False,
        off_wanted=False,
        faults=Fault.NONE,
    )
