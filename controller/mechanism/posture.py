"""How far a pose is from where the machine loses its hold or its joints their room.

x   platform coordinates   (6,)   m, rad
"""

import math

import numpy as np
from numba import types

from controller.mechanism import layout
from controller.mechanism.compile import kernel, v1, v2
from controller.mechanism.kinematics import axes_and_jacobian, branch, leg_lengths
from controller.mechanism.layout import MECHANISM, Mechanism
from controller.mechanism.leg import line_of
from controller.mechanism.platform import body, independent, rotation
from controller.mechanism.spatial import apply, column_norms, cross, dot, norm, triple
from controller.records import Array


@kernel(types.void(MECHANISM, v1, v2))
def independent_motions(machine: Mechanism, x: Array, G_out: Array) -> None:
    """G_out (6, 6) at pose x: twist = G u; columns beyond the freedoms are 0."""
    independent(machine.platform, (x[0], x[1], x[2]), rotation(x[3], x[4], x[5]), G_out)


@kernel(types.void(MECHANISM, v2, v2, v2))
def joint_swings(machine: Mechanism, x: Array, base_out: Array, platform_out: Array) -> None:
    """By how much (rad) each leg has swung in its base joint and in its platform joint since home: (N, n) for N poses
    x (N, 6)."""
    for k in range(x.shape[0]):
        o, R = (x[k, 0], x[k, 1], x[k, 2]), rotation(x[k, 3], x[k, 4], x[k, 5])
        for i in range(machine.legs.shape[0]):
            row = machine.legs[i]
            _, n, _ = line_of(row, o, R)
            home = triple(row, layout.HOME_LINE)
            base_out[k, i] = math.atan2(norm(cross(home, n)), dot(home, n))
            home = apply(R, triple(row, layout.HOME_PLATFORM_LINE))
            platform_out[k, i] = math.atan2(norm(cross(home, n)), dot(home, n))


@kernel(types.void(MECHANISM, v1, v1))
def singular_values(machine: Mechanism, x: Array, values_out: Array) -> None:
    """Singular values (freedoms,) of the Jacobian at x over the free motions, in no order.

    Rotations are scaled by the platform radius: the smallest is the least axis travel per metre of the platform, 0 at
    a singular pose, and the same in any unit of length.
    """
    n, free, radius = machine.legs.shape[0], values_out.shape[0], machine.platform[layout.RADIUS]
    J, G, A, aside = np.empty((n, 6)), np.empty((6, 6)), np.zeros((n, free)), np.zeros((3, n))
    o, R = (x[0], x[1], x[2]), rotation(x[3], x[4], x[5])
    axes_and_jacobian(machine, o, R, aside[0], aside[1], J, aside[2])
    independent(machine.platform, o, R, G)
    for j in range(free):
        size = 0.0
        for k in range(6):
            size += (G[k, j] * (1.0 if k < 3 else radius)) ** 2
        size = math.sqrt(size)
        for i in range(n):
            for k in range(6):
                A[i, j] += J[i, k] * G[k, j] / size
    column_norms(A, values_out)


def off_free_motion(machine: Mechanism, x: Array, xd: Array) -> float:
    """How far rates xd (6,) at x are from a motion the platform is free to make: norm of the rest of the twist."""
    G, move = np.empty((6, 6)), body(x, xd, np.zeros(6))
    independent_motions(machine, x, G)
    twist = np.array([*move.v, *move.w])
    return float(np.linalg.norm(twist - G @ np.linalg.lstsq(G, twist, rcond=None)[0]))


def condition(machine: Mechanism, x: Array) -> float:
    """Condition number of the Jacobian, see `singular_values`; infinite at a singular pose."""
    values = np.empty(6 if machine.platform[layout.KIND] == layout.FREE else 3)
    singular_values(machine, x, values)
    least, most = min(values.tolist()), max(values.tolist())
    return most / least if least > 1e-14 * most else math.inf


def extent(
    machine: Mechanism, x: Array, direction: Array, length_range_m: tuple[Array, Array], most: float, steps: int = 200
) -> float:
    """How far the platform can go from x along `direction` (6,), in units of it, up to `most`.

    Until a leg leaves its range (lowest, highest) (n,), the determinant changes its sign or the condition number
    passes 1e4. Resolved to most / steps.
    """
    low, high = length_range_m
    lengths = np.empty(len(machine.legs))
    reached = 0.0
    for share in np.linspace(0.0, most, steps + 1)[1:]:
        pose = x + share * direction
        leg_lengths(machine, pose, lengths)
        off_stroke = (lengths < low).any() or (lengths > high).any()
        if off_stroke or branch(machine, pose) != branch(machine, x) or not condition(machine, pose) < 1e4:
            break
        reached = float(share)
    return reached
