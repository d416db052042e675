"""Inverse dynamics of a parallel robot from its joint tree, as an oracle for the product's closed formulas.

Nothing here knows a leg formula. Bodies, joints and axes go into a Pinocchio tree; the loops are closed by constraint
rows; recursive Newton-Euler (`pinocchio.rnea`) gives the generalised forces of the open tree; what the closed machine
leaves free is the null space of the rows; one linear system gives actuator forces, one all inner forces.

The tree, with the coordinates q in their order:

    platform   Translation + SphericalZYX             q = x y z yaw pitch roll, so v and a are the plain derivatives
    each leg   base joint at B_i                      lower links; at home the body frame is the leg frame
                   U   Universal(base axis, y)
                   R   RY, y = base axis
               PZ  slide, q = leg length              origin b_i
               PX PY RX RY, locked at 0               if asked for: their "motor forces" are what the cylinder's guide
                                                      does to the rod, at b_i in leg axes
               RZ  passive, UHU                       all sliding links
               (sliding links below the cell)
               PZ  cell, locked at 0                  if fitted: its "motor force" is what the cell reads
               (rod links above the cell)
               RZ  passive, UPRU                      upper links
               R   rotor, UHU, on the lower links      about -hand z, q = motor angle
    closure    tip at b_i (3 rows); platform U: axis on the leg (tip y) perpendicular to the axis on the platform
               (1 row); platform R: tip x and z perpendicular to it (2 rows); S: nothing more
               screw: extension = lead/2pi (motor angle/gear + hand passive) (1 row)
               spherical platform: its origin at the home position (3 rows)

A 2R1T platform has no rows of its own: what its legs leave it is what it can do, and off that manifold the loops do
not close. All frame quantities are taken in `LOCAL_WORLD_ALIGNED`: velocity and acceleration of the frame's origin,
base axes. Accelerations are the classical ones (second derivative of position), not Pinocchio's spatial ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pinocchio as pin

from .machine import (
    FREEDOMS,
    KINDS,
    Array,
    OracleFriction,
    OracleLeg,
    OracleLink,
    OracleMachine,
    OracleScrew,
    home_lengths,
    machine_from_toml,
    machine_to_toml_dict,
    pose_placement,
    random_machine,
)

__all__ = [
    "FREEDOMS",
    "KINDS",
    "InverseDynamics",
    "Oracle",
    "OracleFriction",
    "OracleLeg",
    "OracleLink",
    "OracleMachine",
    "OracleScrew",
    "admissible_state",
    "build_oracle",
    "home_lengths",
    "inverse_dynamics",
    "machine_from_toml",
    "machine_to_toml_dict",
    "mechanical_energy",
    "random_machine",
    "rnea_only",
    "solve_positions",
    "solve_state",
]

GRAVITY_M_S2 = np.array([0.0, 0.0, -9.81])
COULOMB_FADES_M_S = 0.002  # Coulomb friction is coulomb_n tanh(rate/this)
CLOSURE_TOLERANCE = 1e-13  # m and 1: two orders above the rounding of coordinates of about 1 m
NEWTON_STEPS = 40
RANK_GAP = 1e-7  # of the largest: smaller singular values of the closure count as zero, and have to be 1e-4 smaller
ACROSS = {"S": (), "U": (1,), "R": (0, 2)}  # by platform joint: tip axes that stay perpendicular to the platform axis


@dataclass(frozen=True)
class Loop:
    """Two frames whose origins coincide; `across`: columns of the tip frame perpendicular to the socket's x."""

    tip: int
    socket: int
    across: tuple[int, ...]


@dataclass(frozen=True)
class Oracle:
    """The Pinocchio tree of a machine, and where its parts are. Index arrays are positions in q, v, a and tau.

    All joints have as many coordinates as degrees of freedom, so the same positions serve all four vectors.
    """

    machine: OracleMachine
    model: pin.Model
    data: pin.Data
    platform_idx: Array  # (6,)
    slide_idx: Array  # (n_legs,)
    passive_idx: Array  # (n_legs,) for UPRU and UHU, else empty
    rotor_idx: Array  # (n_legs,) for UHU, else empty
    lateral_idx: Array  # (4 n_legs,), empty if the tree is not cut there
    cell_idx: Array  # (legs with a cell,), empty if the tree has no cells
    leg_idx: Array  # coordinates that the closure determines: all but platform, lateral and cells
    origin_frame: int  # platform frame at o
    loops: tuple[Loop, ...]  # one per leg, then that of a spherical platform

    @property
    def actuator_idx(self) -> Array:
        """Where the motors act, (n_legs,)."""
        return self.rotor_idx if self.rotor_idx.size else self.slide_idx

    @property
    def moving_idx(self) -> Array:
        """All coordinates that are not locked."""
        return np.concatenate([self.platform_idx, self.leg_idx])


class InverseDynamics(NamedTuple):
    """Result of `inverse_dynamics`, one entry per leg. Force > 0 extends the leg, cell > 0 is compression.

    With screws (UHU) `torque_nm`, `twist_rad`, `motor_*` are filled and `force_n` is empty; otherwise the other way
    round. `cell_n` has an entry per leg with a cell. `lateral` (n_legs, 4): force x y (N) and moment x y (Nm) of the
    cylinder on the rod about b_i, leg axes of the base joint. `residual` is the largest absolute error of the closure
    in position, velocity and acceleration and of the force equation, in mixed SI units.
    """

    length_m: Array
    length_rate_m_s: Array
    length_acc_m_s2: Array
    force_n: Array
    cell_n: Array
    residual: float
    twist_rad: Array
    motor_rad: Array
    motor_rate_rad_s: Array
    motor_acc_rad_s2: Array
    torque_nm: Array
    lateral: Array


# --- tree -----------------------------------------------------------------------------------------------------------


def build_oracle(machine: OracleMachine, cells: bool = True, lateral: bool = False) -> Oracle:
    """Joint tree of the machine, zero at the home pose except for the platform and slide coordinates.

    Without `cells` the rods are not cut: no cell forces, and the smallest tree of the machine, for timing. `lateral`
    cuts them where they leave the cylinder; a machine with redundant constraints does not determine those forces.
    """
    if lateral and machine.platform_kind == "2r1t":
        raise ValueError("lateral forces of an overconstrained machine are not determined")
    model = pin.Model()
    model.name = machine.name
    model.gravity.linear = GRAVITY_M_S2
    # SphericalZYX: configuration yaw pitch roll of R = Rz Ry Rx, velocity = their time derivatives.
    moved = model.addJoint(0, pin.JointModelTranslation(), pin.SE3.Identity(), "platform/position")
    platform = model.addJoint(moved, pin.JointModelSphericalZYX(), pin.SE3.Identity(), "platform/orientation")
    model.appendBodyToJoint(
        platform,
        pin.Inertia(
            machine.platform_mass_kg,
            np.array(machine.platform_com_m),
            np.array(machine.platform_inertia_kg_m2),
        ),
        pin.SE3.Identity(),
    )
    origin_frame = _add_frame(model, "platform/o", platform, pin.SE3.Identity())

    home = pose_placement(machine.home_pose)
    loops = []
    for i, leg in enumerate(machine.legs, start=1):
        tip = _add_leg(model, f"leg{i}", leg, home, cells and leg.cell, lateral)
        # Only the socket's x axis has a meaning: the axis fixed in the platform.
        turn = np.eye(3) if leg.platform_axis is None else _turn(np.eye(3)[0], np.array(leg.platform_axis))
        socket = _add_frame(model, f"leg{i}/socket", platform, pin.SE3(turn, np.array(leg.platform_joint_m)))
        loops.append(Loop(tip, socket, ACROSS[leg.kind[-1]]))
    if machine.platform_kind == "spherical":
        pivot = _add_frame(model, "base/pivot", 0, pin.SE3(np.eye(3), home.translation))
        loops.append(Loop(origin_frame, pivot, ()))

    def coordinates(part: str) -> Array:
        joints = [j for j, name in enumerate(model.names) if f"/{part}" in name]
        return np.array([model.joints[j].idx_v for j in joints], dtype=int)

    platform_idx, lateral_idx, cell_idx = np.arange(6), coordinates("lateral"), coordinates("cell")
    return Oracle(
        machine=machine,
        model=model,
        data=model.createData(),
        platform_idx=platform_idx,
        slide_idx=coordinates("slide"),
        passive_idx=coordinates("passive"),
        rotor_idx=coordinates("rotor"),
        lateral_idx=lateral_idx,
        cell_idx=cell_idx,
        leg_idx=np.setdiff1d(np.arange(model.nv), np.concatenate([platform_idx, lateral_idx, cell_idx])),
        origin_frame=origin_frame,
        loops=tuple(loops),
    )


def _add_leg(model: pin.Model, name: str, leg: OracleLeg, home: pin.SE3, cell: bool, lateral: bool) -> int:
    """Append one leg chain to the base and return its tip frame."""
    base_joint, base_axis = np.array(leg.base_joint_m), np.array(leg.base_axis)
    line = home.act(np.array(leg.platform_joint_m)) - base_joint
    here, tip = pin.SE3.Identity(), pin.SE3.Identity()
    if leg.kind.startswith("R"):
        lower_frame = _plane_leg_frame(base_axis, line)
        joint = pin.JointModelRY()
    else:
        # The first axis lies in the home leg frame's x-z plane, the second is its y; so z follows the leg line, and
        # x, y are those of the convention in every pose.
        lower_frame = _leg_frame(base_axis, line)
        first_axis = lower_frame.T @ base_axis
        joint = pin.JointModelUniversal(first_axis / np.linalg.norm(first_axis), np.array([0.0, 1.0, 0.0]))
    lower = model.addJoint(0, joint, pin.SE3(lower_frame, base_joint), f"{name}/base")
    top = model.addJoint(lower, pin.JointModelPZ(), here, f"{name}/slide")
    if lateral:
        for lock in (pin.JointModelPX(), pin.JointModelPY(), pin.JointModelRX(), pin.JointModelRY()):
            top = model.addJoint(top, lock, here, f"{name}/lateral {lock.shortname()}")

    if leg.kind in {"UHU", "UPRU"}:
        upper_frame = _leg_frame(home.rotation @ np.array(leg.platform_axis), line)
        turned = pin.SE3(lower_frame.T @ upper_frame, np.zeros(3))
    elif leg.kind == "UPR":
        tip.rotation = _turn(np.eye(3)[1], lower_frame.T @ home.rotation @ np.array(leg.platform_axis))
    if leg.kind == "UHU":
        top = model.addJoint(top, pin.JointModelRZ(), turned, f"{name}/passive")
    below = top
    above = top = model.addJoint(top, pin.JointModelPZ(), here, f"{name}/cell") if cell else top
    if leg.kind == "UPRU":
        top = model.addJoint(top, pin.JointModelRZ(), turned, f"{name}/passive")

    for link in leg.links:
        joint_id = below if link.below_cell else {"lower": lower, "rod": above, "upper": top}[link.group]
        inertia = pin.Inertia(link.mass_kg, np.array(link.com_m), np.array(link.inertia_kg_m2))
        model.appendBodyToJoint(joint_id, inertia, here)
    if leg.screw is not None:
        # A nut that turns by +angle about n on a still right-hand screw moves along +n. So with the motor angle counted
        # positive where it extends the leg, the screw of a right-hand thread turns about -n.
        spin_axis = np.array([0.0, 0.0, -leg.screw.hand])
        rotor = model.addJoint(lower, pin.JointModelRevoluteUnaligned(spin_axis), here, f"{name}/rotor")
        spin = pin.Inertia(0.0, np.zeros(3), np.diag([0.0, 0.0, leg.screw.rotor_inertia_kg_m2]))
        model.appendBodyToJoint(rotor, spin, here)
    return _add_frame(model, f"{name}/tip", top, tip)


def _add_frame(model: pin.Model, name: str, joint: int, placement: pin.SE3) -> int:
    return model.addFrame(pin.Frame(name, joint, placement, pin.FrameType.OP_FRAME))


def _turn(start: Array, end: Array) -> Array:
    """A rotation (3x3) that takes `start` to the direction of `end`."""
    return pin.Quaternion.FromTwoVectors(start, end).matrix()


def _leg_frame(axis: Array, line: Array) -> Array:
    """Columns x y z: z along the leg, y = axis x z normalised, x = y x z."""
    z = line / np.linalg.norm(line)
    y = np.cross(axis, z)
    y /= np.linalg.norm(y)
    return np.column_stack([np.cross(y, z), y, z])


def _plane_leg_frame(axis: Array, line: Array) -> Array:
    """Columns x y z of a leg that turns about `axis`, its y: z along the leg, x = y x z."""
    y, z = axis / np.linalg.norm(axis), line / np.linalg.norm(line)
    if abs(y @ z) > 1e-12:
        raise ValueError("the leg line is not perpendicular to the base R axis")
    return np.column_stack([np.cross(y, z), y, z])


# --- closure --------------------------------------------------------------------------------------------------------


def solve_positions(oracle: Oracle, pose: Array) -> Array:
    """Configuration q of the closed machine at a pose (6): Newton on the closure, started at home.

    Newton keeps the assembly mode of home for poses within the workspace. The mirrored modes (an axis turned by 180
    degrees, a negative length) also close the loops, so a jump is an error and not a solution. So is a pose that the
    platform cannot have.
    """
    q = _fit_legs(oracle, pose)
    if np.abs(_closure_at(oracle, q)[0]).max() > CLOSURE_TOLERANCE:
        raise RuntimeError("the loops do not close")
    _refuse_other_mode(oracle, q)
    return q


def solve_state(oracle: Oracle, pose: Array, pose_rate: Array, pose_acc: Array) -> tuple[Array, Array, Array]:
    """q, v, a of the whole tree from pose and its first two derivatives, (6) each."""
    model, legs = oracle.model, oracle.leg_idx
    q = solve_positions(oracle, pose)
    v, a = np.zeros(model.nv), np.zeros(model.nv)
    v[oracle.platform_idx], a[oracle.platform_idx] = pose_rate, pose_acc
    jacobian = _closure_at(oracle, q)[1]
    v[legs] = -_solve(jacobian[:, legs], jacobian @ v)
    # With the leg accelerations still zero, what is left is the platform's part plus the drift.
    a[legs] = -_solve(jacobian[:, legs], _closure_acceleration(oracle, q, v, a))
    return q, v, a


def admissible_state(oracle: Oracle, pose: Array, pose_rate: Array, pose_acc: Array) -> tuple[Array, Array, Array]:
    """The state, (6) each, that the machine can have nearest to the wanted one; a free platform can have any.

    Newton on the closure with platform and legs, by the smallest steps of the platform; rate and acceleration lose
    what the closure forbids.
    """
    q = _fit_legs(oracle, pose)
    platform, legs = oracle.platform_idx, oracle.leg_idx
    for _ in range(NEWTON_STEPS):
        gap, jacobian = _closure_at(oracle, q)
        if np.abs(gap).max() < CLOSURE_TOLERANCE:
            break
        forbid, inverse = _platform_rows(oracle, jacobian)
        step = inverse @ (forbid @ gap)
        q[platform] -= step
        q[legs] -= _solve(jacobian[:, legs], gap - jacobian[:, platform] @ step)
    else:
        raise RuntimeError("no admissible pose found")
    pose, rate, acc = q[platform], np.array(pose_rate, dtype=float), np.array(pose_acc, dtype=float)
    q = solve_positions(oracle, pose)
    jacobian = _closure_at(oracle, q)[1]
    forbid, inverse = _platform_rows(oracle, jacobian)
    rate -= inverse @ (forbid @ (jacobian[:, platform] @ rate))
    _, v, a = solve_state(oracle, pose, rate, acc)
    a[legs] = 0.0
    acc -= inverse @ (forbid @ _closure_acceleration(oracle, q, v, a))
    return pose, rate, acc


def _fit_legs(oracle: Oracle, pose: Array) -> Array:
    """Configuration with the platform at `pose` and the legs where they close the loops best."""
    q = np.zeros(oracle.model.nq)
    q[oracle.platform_idx] = pose
    q[oracle.slide_idx] = home_lengths(oracle.machine)
    for _ in range(NEWTON_STEPS):
        gap, jacobian = _closure_at(oracle, q)
        if np.abs(gap).max() < CLOSURE_TOLERANCE:
            break
        step = _solve(jacobian[:, oracle.leg_idx], gap)
        q[oracle.leg_idx] -= step
        if np.abs(step).max() < CLOSURE_TOLERANCE:
            break
    return q


def _solve(matrix: Array, right: Array) -> Array:
    """Solution of consistent equations of full column rank."""
    if matrix.shape[0] == matrix.shape[1]:
        return np.linalg.solve(matrix, right)
    return np.linalg.lstsq(matrix, right, rcond=None)[0]


def _platform_rows(oracle: Oracle, jacobian: Array) -> tuple[Array, Array]:
    """Combinations of closure rows that no leg coordinate enters (k, rows), and the pseudo-inverse (6, k) of what they
    say of the platform's coordinates."""
    legs = np.linalg.svd(jacobian[:, oracle.leg_idx])[0]
    forbid = legs[:, len(oracle.leg_idx) :].T
    u, s, vt = np.linalg.svd(forbid @ jacobian[:, oracle.platform_idx], full_matrices=False)
    rank = 6 - FREEDOMS[oracle.machine.platform_kind]
    return forbid, vt[:rank].T / s[:rank] @ u[:, :rank].T


def _refuse_other_mode(oracle: Oracle, q: Array) -> None:
    placements = oracle.data.oMf
    for i, (leg, loop) in enumerate(zip(oracle.machine.legs, oracle.loops, strict=False)):
        base = oracle.data.oMi[oracle.model.getJointId(f"leg{i + 1}/base")].rotation
        n, axis = base[:, 2], placements[loop.socket].rotation[:, 0]
        tip_y = placements[loop.tip].rotation[:, 1]
        same_mode = q[oracle.slide_idx[i]] > 0.0
        if leg.kind.startswith("U"):
            same_mode &= base[:, 1] @ _cross(np.array(leg.base_axis), n) > 0.0
        if leg.kind in {"UPRU", "UHU"}:
            same_mode &= tip_y @ _cross(axis, n) > 0.0 and abs(q[oracle.passive_idx[i]]) < np.pi
        if leg.kind.endswith("R"):
            same_mode &= tip_y @ axis > 0.0
        if not same_mode:
            raise RuntimeError(f"leg {i + 1} jumped to another assembly mode")


def _closure_at(oracle: Oracle, q: Array) -> tuple[Array, Array]:
    """Gap (rows) and its Jacobian (rows, nv) at q."""
    model, data = oracle.model, oracle.data
    pin.computeJointJacobians(model, data, q)
    pin.updateFramePlacements(model, data)
    gaps, rows = [], []
    for loop in oracle.loops:
        at_tip, at_socket = data.oMf[loop.tip], data.oMf[loop.socket]
        relative = _frame_jacobian(oracle, loop.tip) - _frame_jacobian(oracle, loop.socket)
        gaps.append(at_tip.translation - at_socket.translation)
        rows.append(relative[:3])
        p = at_socket.rotation[:, 0]
        for y in at_tip.rotation.T[list(loop.across)]:
            gaps.append([y @ p])
            rows.append(_cross(y, p) @ relative[3:])
    screws = _screw_rows(oracle)
    extension = np.zeros(model.nv)
    if oracle.rotor_idx.size:
        extension[oracle.slide_idx] = home_lengths(oracle.machine)
    return np.concatenate([*gaps, screws @ (q - extension)]), np.vstack([*rows, screws])


def _closure_acceleration(oracle: Oracle, q: Array, v: Array, a: Array) -> Array:
    """Second time derivative of the gap, (rows,)."""
    model, data, axes = oracle.model, oracle.data, pin.LOCAL_WORLD_ALIGNED
    pin.forwardKinematics(model, data, q, v, a)
    pin.updateFramePlacements(model, data)
    rows = []
    for loop in oracle.loops:
        p = data.oMf[loop.socket].rotation[:, 0]
        w_tip = pin.getFrameVelocity(model, data, loop.tip, axes).angular
        w_socket = pin.getFrameVelocity(model, data, loop.socket, axes).angular
        acc_tip = pin.getFrameClassicalAcceleration(model, data, loop.tip, axes)
        acc_socket = pin.getFrameClassicalAcceleration(model, data, loop.socket, axes)
        rows.append(acc_tip.linear - acc_socket.linear)
        for y in data.oMf[loop.tip].rotation.T[list(loop.across)]:
            across_rate = _cross(_cross(w_tip, y), p) + _cross(y, _cross(w_socket, p))
            across = _cross(y, p) @ (acc_tip.angular - acc_socket.angular) + across_rate @ (w_tip - w_socket)
            rows.append([across])
    return np.concatenate([*rows, _screw_rows(oracle) @ a])


def _screw_rows(oracle: Oracle) -> Array:
    """Rows (screws, nv) of slide - lead/2pi (rotor/gear + hand passive)."""
    rows = np.zeros((len(oracle.rotor_idx), oracle.model.nv))
    screws = (leg.screw for leg in oracle.machine.legs if leg.screw is not None)
    for row, screw, slide, passive, rotor in zip(
        rows, screws, oracle.slide_idx, oracle.passive_idx, oracle.rotor_idx, strict=False
    ):
        travel = screw.lead_m / (2 * np.pi)
        row[[slide, rotor, passive]] = 1.0, -travel / screw.gear_ratio, -travel * screw.hand
    return rows


def _cross(a: Array, b: Array) -> Array:
    return pin.skew(a) @ b  # many times faster than numpy's


def _frame_jacobian(oracle: Oracle, frame: int) -> Array:
    return pin.getFrameJacobian(oracle.model, oracle.data, frame, pin.LOCAL_WORLD_ALIGNED)


# --- dynamics -------------------------------------------------------------------------------------------------------


def inverse_dynamics(oracle: Oracle, pose: Array, pose_rate: Array, pose_acc: Array, wrench: Array) -> InverseDynamics:
    """Leg motion, actuator forces or motor torques, and inner forces of one state.

    `pose` (6): x y z yaw pitch roll, R = Rz(yaw) Ry(pitch) Rx(roll); `pose_rate` and `pose_acc` are its derivatives.
    `wrench` (6): external force (N) and moment about o (Nm) on the platform, base axes.

    The generalised forces of the open tree and of friction must come from the actuators, the locked coordinates, the
    loop multipliers and the wrench:  S f + [S_locked Jc^T] x = rnea + friction - Jo^T W = h. On the motions N that the
    closed machine has, N^T S f = N^T h; of the solutions of a redundant machine the one of least norm is taken.
    """
    q, v, a = solve_state(oracle, pose, pose_rate, pose_acc)
    model, moving = oracle.model, oracle.moving_idx
    acceleration_gap = _closure_acceleration(oracle, q, v, a)
    gap, jacobian = _closure_at(oracle, q)
    needed = rnea_only(oracle, q, v, a) + _friction(oracle, v)
    needed -= _frame_jacobian(oracle, oracle.origin_frame).T @ wrench

    motions = np.zeros((model.nv, FREEDOMS[oracle.machine.platform_kind]))
    motions[moving] = _null_space(jacobian[:, moving], motions.shape[1])
    actuation = np.linalg.lstsq(motions[oracle.actuator_idx].T, motions.T @ needed, rcond=None)[0]

    unit = np.eye(model.nv)
    sources = np.hstack([unit[:, oracle.lateral_idx], unit[:, oracle.cell_idx], jacobian.T])
    rest = needed - unit[:, oracle.actuator_idx] @ actuation
    inner = np.linalg.lstsq(sources, rest, rcond=None)[0]
    errors = (gap, jacobian @ v, acceleration_gap, sources @ inner - rest)

    n_lateral, n_cells = len(oracle.lateral_idx), len(oracle.cell_idx)
    has_screws = bool(oracle.rotor_idx.size)
    nothing = np.empty(0)
    return InverseDynamics(
        length_m=q[oracle.slide_idx],
        length_rate_m_s=v[oracle.slide_idx],
        length_acc_m_s2=a[oracle.slide_idx],
        force_n=nothing if has_screws else actuation,
        cell_n=inner[n_lateral : n_lateral + n_cells],
        residual=max(float(np.abs(e).max()) for e in errors),
        twist_rad=q[oracle.passive_idx] if has_screws else nothing,
        motor_rad=q[oracle.rotor_idx],
        motor_rate_rad_s=v[oracle.rotor_idx],
        motor_acc_rad_s2=a[oracle.rotor_idx],
        torque_nm=actuation if has_screws else nothing,
        lateral=inner[:n_lateral].reshape(-1, 4),
    )


def rnea_only(oracle: Oracle, q: Array, v: Array, a: Array) -> Array:
    """Generalised forces (nv) of the open tree, N and Nm: bare `pinocchio.rnea`. To time it, build without cells."""
    return pin.rnea(oracle.model, oracle.data, q, v, a)


def mechanical_energy(oracle: Oracle, pose: Array, pose_rate: Array) -> tuple[float, float]:
    """Kinetic and potential energy (J) of the closed machine."""
    q, v, _ = solve_state(oracle, pose, pose_rate, np.zeros(6))
    kinetic = pin.computeKineticEnergy(oracle.model, oracle.data, q, v)
    return float(kinetic), float(pin.computePotentialEnergy(oracle.model, oracle.data, q))


def _friction(oracle: Oracle, v: Array) -> Array:
    """Generalised forces (nv) that overcome friction. Needs joint Jacobians and frame placements in `data`."""
    force = np.zeros(oracle.model.nv)
    for i, (leg, loop) in enumerate(zip(oracle.machine.legs, oracle.loops, strict=False)):
        friction, slide = leg.friction, oracle.slide_idx[i]
        force[slide] += friction.viscous_n_s_m * v[slide] + friction.coulomb_n * np.tanh(v[slide] / COULOMB_FADES_M_S)
        if leg.kind.startswith("U"):
            axes = oracle.model.joints[oracle.model.getJointId(f"leg{i + 1}/base")].idx_v + np.arange(2)
            force[axes] += friction.universal_nm_s_rad * v[axes]
        # The two axes of a U are perpendicular and the joint turns about nothing else, so U and S look alike here.
        damping = {"U": friction.universal_nm_s_rad, "S": friction.spherical_nm_s_rad, "R": 0.0}[leg.kind[-1]]
        relative = (_frame_jacobian(oracle, loop.tip) - _frame_jacobian(oracle, loop.socket))[3:]
        force += damping * relative.T @ (relative @ v)
    return force


def _null_space(jacobian: Array, freedoms: int) -> Array:
    """Orthonormal motions (columns, freedoms) that a closure Jacobian allows; another number of them is an error."""
    _, s, vt = np.linalg.svd(jacobian)
    s = np.concatenate([s, np.zeros(len(vt) - len(s))]) if len(s) < len(vt) else s
    found = int((s < RANK_GAP * s[0]).sum())
    if found != freedoms or s[-freedoms:].max() > 1e-4 * RANK_GAP * s[0]:
        raise RuntimeError(f"the closed machine has {found} freedoms, expected {freedoms}")
    return vt[-freedoms:].T
