"""Hydraulic cylinders of the virtual cell, each with its servo valve and position loop: set-points into axis forces.

    p, v, f ──► position loop ──► spool ──► control edges ──► chambers ──► F
                 ▲ position, pressures                          ▲ velocity

Double-acting, one rod on the side of the platform. The spool is made for the cylinder: the edges of its rod side are
narrower by A2 / A1, so that a reversal leaves the pressures alone.

A1, A2   area of the piston, and of the ring around the rod                            m²
p1, p2   pressures of head and rod chamber; ps, pt of supply and tank                  Pa
V1, V2   volumes of oil that these pressures compress, lines included                  m³
u        spool, share of its full stroke, > 0 extends
a(u)     opening of the edges that u opens, (u + sqrt(u² + 4 u0²)) / 2: u0 at rest, and a(u) a(-u) = u0²
g(d)     flow through an open edge over the rated flow: sqrt(d / rated drop), odd, laminar below LAMINAR_PA
F        p1 A1 - p2 A2, > 0 extends, before seal friction                              N

    Q1 = Qn (a(u) g(ps - p1) - a(-u) g(p1 - pt))              V1 p1' = E (Q1 - A1 l' - leakage (p1 - p2))
    Q2 = Qn (a(-u) g(ps - p2) - a(u) g(p2 - pt)) A2 / A1      V2 p2' = E (Q2 + A2 l' + leakage (p1 - p2))

Anti-cavitation and shock valves keep the pressures between tank and supply. Without flow p1 + p2 = ps + pt at any load.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from controller import schema
from controller.errors import ConfigurationError
from controller.mechanism.compile import f64, inline, kernel, v1, v2
from drivers.virtual.plc_program import LAG_LIMIT_M, Axes
from drivers.virtual.servo import POSITION_GAIN_1_S

Array = NDArray[np.float64]

SUBSTEPS = 10  # of valve and chambers between two steps
LAMINAR_PA = 1e5
END_M = LAG_LIMIT_M  # of way that the piston has beyond the lengths a host may ask for
DAMPING = 0.25  # of the least load on the oil's spring, by pressure feedback
RELAX_S = 0.05  # a steady pressure is a load, not an oscillation: the feedback forgets it in so long
FORCE_GAIN_1_S = 180.0  # of the force loop; the valve is 500 1/s fast
FORCE_INTEGRAL_S = 0.05  # for leakage, which is small and slow
RESERVE = 0.05  # of the pressure range that the loop expects at every edge, whatever the load


class Oil(NamedTuple):
    """Supply, oil and valve."""

    ps: float
    pt: float
    E: float
    Qn: float
    drop: float  # the rated one of an edge
    u0: float
    leakage: float  # m³/(s Pa)
    step_s: float
    follow: float  # what of its deviation the spool catches up within a sub-step
    relax: float  # likewise the memory of the pressure feedback, a step


# Columns of a cylinder: A1, A2, the lengths m at which V1 and V2 would be zero, pressure feedback / sqrt(stiffness).
A1, A2, EMPTY1, EMPTY2, FEEDBACK = range(5)
OIL = types.NamedUniTuple(f64, len(Oil._fields), Oil)


@inline
def conductance(drop: float, d: float) -> float:
    """g(d) / d, 1/Pa."""
    return 1.0 / math.sqrt(drop * math.sqrt(d * d + LAMINAR_PA * LAMINAR_PA))


@inline
def opening(oil: Oil, area: float, p1: float, speed_m_s: float) -> float:
    """Spool u at which pressure p1 and piston speed last: the positive root of a g(ps - p1) - u0² / a g(p1 - pt)."""
    reserve = RESERVE * (oil.ps - oil.pt)
    p1 = min(max(p1, oil.pt + reserve), oil.ps - reserve)
    inflow = (oil.ps - p1) * conductance(oil.drop, oil.ps - p1)
    outflow = (p1 - oil.pt) * conductance(oil.drop, p1 - oil.pt)
    q = area * speed_m_s / oil.Qn
    a = (q + math.sqrt(q * q + 4.0 * oil.u0 * oil.u0 * inflow * outflow)) / (2.0 * inflow)
    return min(max(a - oil.u0 * oil.u0 / a, -1.0), 1.0)


@inline
def columns(cylinder: Array, position: float) -> tuple[float, float]:
    """Heights of oil V1 / A1 and V2 / A2, m; far beyond the ends a rest that keeps numbers finite."""
    return max(position - cylinder[EMPTY1], 0.01 * END_M), max(cylinder[EMPTY2] - position, 0.01 * END_M)


@kernel(types.void(v2, OIL, v1, v1, v1, v1, v1))
def advance(
    cylinders: Array, oil: Oil, command: Array, position: Array, velocity: Array, spool: Array, pressures: Array
) -> None:
    """Spools (n,) and pressures (2 n,), p1 and p2 by turns, over a step that ended at these positions and velocities.

    Implicit in each pressure, with the conductance of its edges as it was: however small the chamber and wide the edge,
    a pressure does not overshoot the line it is open to.
    """
    for i in range(cylinders.shape[0]):
        head, ring = cylinders[i, A1], cylinders[i, A2]
        height1, height2 = columns(cylinders[i], position[i])
        stiffness1, stiffness2 = oil.step_s * oil.E / (head * height1), oil.step_s * oil.E / (ring * height2)
        u, p1, p2 = spool[i], pressures[2 * i], pressures[2 * i + 1]
        for _ in range(SUBSTEPS):
            u += oil.follow * (command[i] - u)
            root = math.sqrt(u * u + 4.0 * oil.u0 * oil.u0)
            extend, retract = 0.5 * oil.Qn * (root + u), 0.5 * oil.Qn * (root - u)
            supply1 = extend * conductance(oil.drop, oil.ps - p1)
            tank1 = retract * conductance(oil.drop, p1 - oil.pt)
            supply2 = retract * conductance(oil.drop, oil.ps - p2) * ring / head
            tank2 = extend * conductance(oil.drop, p2 - oil.pt) * ring / head
            leak = oil.leakage * (p1 - p2)
            into1 = supply1 * (oil.ps - p1) - tank1 * (p1 - oil.pt) - leak - head * velocity[i]
            into2 = supply2 * (oil.ps - p2) - tank2 * (p2 - oil.pt) + leak + ring * velocity[i]
            p1 += stiffness1 * into1 / (1.0 + stiffness1 * (supply1 + tank1 + oil.leakage))
            p2 += stiffness2 * into2 / (1.0 + stiffness2 * (supply2 + tank2 + oil.leakage))
            p1 = min(max(p1, oil.pt), oil.ps)
            p2 = min(max(p2, oil.pt), oil.ps)
        spool[i], pressures[2 * i], pressures[2 * i + 1] = u, p1, p2


@kernel(types.void(v2, OIL, f64, v1, v1, v1, v1, v1, v1, v1))
def position_loop(
    cylinders: Array,
    oil: Oil,
    velocity_feedforward: float,
    p: Array,
    v: Array,
    f: Array,
    position: Array,
    force: Array,
    steady: Array,
    command: Array,
) -> None:
    """Where the spools are to go, command (n,); the steady part of force - f (n,), NaN at first, is carried on.

    The expected load f sets the pressures at which the spool lets the wanted flow through; what the pressures show
    beyond it and its steady part is an oscillation, which a piston that gives way damps.
    """
    for i in range(cylinders.shape[0]):
        head, ring = cylinders[i, A1], cylinders[i, A2]
        excess = force[i] - f[i]
        if math.isnan(steady[i]):
            steady[i] = excess
        steady[i] += oil.relax * (excess - steady[i])
        speed = velocity_feedforward * v[i] + POSITION_GAIN_1_S * (p[i] - position[i])
        height1, height2 = columns(cylinders[i], position[i])
        stiffness = oil.E * (head / height1 + ring / height2)
        speed -= cylinders[i, FEEDBACK] / math.sqrt(stiffness) * (excess - steady[i])
        p1 = (f[i] + ring * (oil.ps + oil.pt)) / (head + ring)
        command[i] = opening(oil, head, p1, speed)


@kernel(types.void(v2, OIL, f64, v1, v1, v1, v1, v1, v1, v1, v1))
def force_loop(
    cylinders: Array,
    oil: Oil,
    lead: float,
    f: Array,
    position: Array,
    velocity: Array,
    before: Array,
    integral: Array,
    force: Array,
    steady: Array,
    command: Array,
) -> None:
    """Where the spools are to go, command (n,), for the force f (n,) whatever the pistons do.

    The flow of the moving piston is let through `lead` steps ahead, the valve's lag, from its velocity now and before:
    without that the oil between valve and piston would feel like tens of kilograms more on every leg. The position
    loop will begin anew: steady (n,) becomes NaN.
    """
    for i in range(cylinders.shape[0]):
        head, ring = cylinders[i, A1], cylinders[i, A2]
        height1, height2 = columns(cylinders[i], position[i])
        stiffness = oil.E * (head / height1 + ring / height2)
        wanted = FORCE_GAIN_1_S * (f[i] - force[i]) / stiffness
        integral[i] += SUBSTEPS * oil.step_s / FORCE_INTEGRAL_S * wanted
        speed = velocity[i] + lead * (velocity[i] - before[i]) + wanted + integral[i]
        p1 = (f[i] + ring * (oil.ps + oil.pt)) / (head + ring)
        command[i] = opening(oil, head, p1, speed)
        steady[i] = math.nan


class Cylinders:
    """Valves, chambers and position or force loops of all axes; called like `Drives`.

    `head_pa` and `rod_pa` (n,) are the chamber pressures, `force_n` (n,) what they put into the axes.
    """

    def __init__(self, machine: schema.Machine, hydraulics: schema.Hydraulics, axes: Axes, step_s: float) -> None:
        """Size and tune the cylinders of a machine; `step_s` is the time between two steps.

        Raises:
            ConfigurationError: where a leg has another drive, or the supply no pressure above the tank.
        """
        given = hydraulics
        if given.supply_pa <= given.tank_pa:
            raise ConfigurationError(
                f"virtual_cell.hydraulics: supply_pa = {given.supply_pa:g} must be above tank_pa = {given.tank_pa:g}"
            )
        substep_s = step_s / SUBSTEPS
        self._oil = Oil(
            ps=given.supply_pa,
            pt=given.tank_pa,
            E=given.bulk_modulus_pa,
            Qn=given.rated_flow_m3_s,
            drop=given.rated_drop_pa,
            u0=given.null_opening,
            leakage=given.leakage_m3_s_pa,
            step_s=substep_s,
            follow=-math.expm1(-substep_s / given.valve_time_s),
            relax=-math.expm1(-step_s / RELAX_S),
        )
        legs = [schema.effective_leg(machine, i) for i in range(len(machine.leg))]
        self._cylinders = np.array([_cylinder(machine, leg, given) for leg in legs])
        n = len(legs)
        self._cylinders[:, FEEDBACK] = 2.0 * DAMPING / np.sqrt(axes.least_mass_kg)
        self.velocity_feedforward = 1.0  # share of the set-point velocity
        self.forcing = False  # no position loop
        self._lead = 1.0 + given.valve_time_s / step_s  # a step until the command is there
        self._before_m_s, self._integral_m_s = np.zeros((2, n))
        self.force_n = np.zeros(n)
        self._pressures = np.zeros(2 * n)
        self.head_pa, self.rod_pa = self._pressures[::2], self._pressures[1::2]
        self._command, self._spool, self._steady_n = np.zeros((3, n))
        self.reset(np.zeros(n))

    def reset(self, held_n: Array) -> None:
        """Closed valves, and pressures that carry `held_n` (n,): what the holding valves hold instead."""
        oil, head, ring = self._oil, self._cylinders[:, A1], self._cylinders[:, A2]
        both_pa = oil.ps + oil.pt
        self.head_pa[:] = np.clip((held_n + ring * both_pa) / (head + ring), oil.pt, oil.ps)
        self.rod_pa[:] = both_pa - self.head_pa
        np.subtract(head * self.head_pa, ring * self.rod_pa, out=self.force_n)
        self._spool[:] = [opening(oil, a, p1, 0.0) for a, p1 in zip(head, self.head_pa, strict=True)]
        self._command[:] = self._spool
        self._steady_n[:] = math.nan

    def step(self, p: Array, v: Array, f: Array, position_m: Array, velocity_m_s: Array) -> Array:
        """Axis forces (N) for the next plant step; the array is reused.

        The pressures follow the step that ended here, in which the plant moved at this velocity: force and position
        belong to the same instant, without which the oil's spring would gain energy.
        """
        cylinders, oil, force = self._cylinders, self._oil, self.force_n
        advance(cylinders, oil, self._command, position_m, velocity_m_s, self._spool, self._pressures)
        np.subtract(cylinders[:, A1] * self.head_pa, cylinders[:, A2] * self.rod_pa, out=force)
        if self.forcing:
            force_loop(
                cylinders, oil, self._lead, f, position_m, velocity_m_s, self._before_m_s,
                self._integral_m_s, force, self._steady_n, self._command,
            )  # fmt: skip
        else:
            self._integral_m_s[:] = 0.0
            position_loop(
                cylinders, oil, self.velocity_feedforward, p, v, f, position_m, force, self._steady_n, self._command
            )
        self._before_m_s[:] = velocity_m_s
        return force


def _cylinder(machine: schema.Machine, leg: schema.Legs, given: schema.Hydraulics) -> tuple[float, ...]:
    """The columns of a cylinder but the last, which waits for the others."""
    drive = leg.drive
    if not isinstance(drive, schema.HydraulicDrive):
        raise ConfigurationError(f"{machine.name}: the virtual cell knows machines with cylinders in all legs or none")
    head = 0.25 * math.pi * drive.piston_diameter_m**2
    ring = head - 0.25 * math.pi * drive.rod_diameter_m**2
    low_m, high_m = leg.limits.length_m
    dead_m3 = given.dead_volume_m3
    return head, ring, low_m - END_M - dead_m3 / head, high_m + END_M + dead_m3 / ring, 0.0
