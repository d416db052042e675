"""What the cycle is given once (Setup) and what one tick hands to the next (State)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller import schema
from controller.mechanism import kinematics, layout
from controller.mechanism.drive import build_drives
from controller.mechanism.layout import Mechanism
from controller.mechanism.model import build, home_pose
from controller.motion.trajectory import ZERO, Hold, MotionLimits, Plan, build_motion_limits
from controller.records import Array, AxisMode, Command, Fault, Mode, Reference
from controller.safety.limits import Limits, build_limits
from controller.safety.sensors import Watch, build_watch


class Setup(NamedTuple):
    """All that does not change while the controller runs."""

    machine: Mechanism
    drives: Array  # (n, 4), see controller.mechanism.drive
    limits: Limits
    motion: MotionLimits
    control: schema.Control
    home: Array  # (6,)
    period_s: float
    watch: Watch
    cells: NDArray[np.intp]  # (n,) which sensor of the site is the load cell of a leg, -1 where there is none
    cell_capacity_n: Array  # (n,) 0 where there is none


class Health(NamedTuple):
    """What is counted over ticks to judge the PLC, the drives and the loop."""

    plc_cycle: int = -1  # the last task counter seen
    frozen_ticks: int = 0  # fresh answers with the same counter
    late_bucket: int = 0  # leaky bucket of late ticks
    enabling_s: float = 0.0  # since the drives were asked to come on
    invalid_ticks: Sequence[int] = ()  # of each sensor, in a row


class Rest(NamedTuple):
    """What the load cells show while the machine stands, compared with the model."""

    ticks: int  # since it stands
    cell_error_n: Array  # (n,) mean of measured minus model, NaN without a valid cell


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
    rest: Rest
    tare_n: Array  # (n,)
    latched: bool  # the drives are on and the reference is the set-point they hold
    off_wanted: bool
    faults: Fault  # kept while in FAULT


def prepare(machine: schema.Machine, site: schema.Site) -> Setup:
    """The setup of a validated machine and site."""
    period_s, n, names = 1.0 / site.rate_hz, len(machine.leg), list(site.sensors)
    legs = [schema.effective_leg(machine, i) for i in range(n)]
    mechanism = build(machine)
    if not site.control.screw_compensation:
        mechanism.legs[:, layout.SCREW] = 0.0  # axis positions, rates and forces become those of the lengths
    return Setup(
        machine=mechanism,
        drives=build_drives(machine),
        limits=build_limits(machine, site.control, period_s),
        motion=build_motion_limits(machine.platform.motion),
        control=site.control,
        home=home_pose(machine),
        period_s=period_s,
        watch=build_watch(site),
        cells=np.array([names.index(f"cell_{i}") if f"cell_{i}" in names else -1 for i in range(1, n + 1)]),
        cell_capacity_n=np.array([leg.cell.capacity_n if leg.cell else 0.0 for leg in legs]),
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
        health=Health(invalid_ticks=[0] * len(setup.watch.required)),
        rest=Rest(0, np.zeros(n)),
        tare_n=np.zeros(n),
        latched=False,
        off_wanted=False,
        faults=Fault.NONE,
    )
