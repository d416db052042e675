"""Inverse dynamics of a parallel robot from its joint tree, as an oracle for the product's closed formulas.

Nothing here knows a leg formula. Bodies, joints and axes go into a Pinocchio tree; the loops are closed by constraint
rows; recursive Newton-Euler (`pinocchio.rnea`) gives the generalised forces of the open tree; one linear system gives
actuator forces, cell forces and loop multipliers. The tree of a 6-UPRU, with the coordinates q in their order:

    platform   Translation + SphericalZYX             q = x y z yaw pitch roll, so v and a are the plain derivatives
    each leg   Universal(base axis, y)   at B_i       lower links; at home the body frame is the leg frame
               PZ  slide, q = leg length              rod links below the cell; origin b_i
               PZ  cell, locked at 0                  the other rod links; its "motor force" is what the cell reads
               RZ  passive                            upper links
    closure    tip at b_i (3 rows), second U axis (tip y) perpendicular to the axis fixed in the platform (1 row)

All frame quantities are taken in `LOCAL_WORLD_ALIGNED`: velocity and acceleration of the frame's origin, base axes.
Accelerations are the classical ones (second derivative of position), not Pinocchio's spatial ones.

A further mechanism needs only other joints in `_add_leg` (a base R is one revolute joint, a UPS has no passive joint)
and other rows in `_closure`: three for a platform S joint, five for a platform R joint; a screw makes the slide's motor
act on slide and passive joint together. A platform on a fixed point leaves out the translation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pinocchio as pin

Array = np.ndarray
Vector = tuple[float, ...]
Matrix = tuple[Vector, ...]

GRAVITY_M_S2 = np.array([0.0, 0.0, -9.81])
POSE_KEYS = ("x_m", "y_m", "z_m", "yaw_rad", "pitch_rad", "roll_rad")
CLOSURE_TOLERANCE = 1e-13  # m and 1: two orders above the rounding of coordinates of about 1 m
NEWTON_STEPS = 40

# Blocks of a machine file that do not enter inverse dynamics but that a complete file must have.
MOTION_BLOCK = {
    "speed_m_s": 0.25, "acceleration_m_s2": 1.5, "jerk_m_s3": 30.0,
    "speed_rad_s": 0.6, "acceleration_rad_s2": 4.0, "jerk_rad_s3": 80.0,
}  # fmt: skip
DRIVE_BLOCK = {
    "lead_m": 0.010, "gear_ratio": 1.0, "rotor_inertia_kg_m2": 4.0e-5, "rated_torque_nm": 1.27, "peak_torque_nm": 3.8,
}  # fmt: skip
FRICTION_BLOCK = {"coulomb_n": 12.0, "viscous_n_s_m": 60.0}
CELL_CAPACITY_N = 2200.0
STROKE_M = 0.25  # leg length limits of a written machine: home lengths plus and minus this


@dataclass(frozen=True)
class OracleLink:
    """One rigid body of a leg, in the leg frame of the joint it turns with.

    `group`: "lower", "rod" or "upper". `com_m` (3) is measured from B_i for lower links, from b_i for all others.
    `inertia_kg_m2` (3x3) is about the centre of mass. `below_cell`: a rod link on the actuator side of the load cell.
    """

    name: str
    group: str
    mass_kg: float
    com_m: Vector
    inertia_kg_m2: Matrix
    below_cell: bool = False


@dataclass(frozen=True)
class OracleLeg:
    """Joint points and U axes of one leg: base ones in the base frame, platform ones in the platform frame."""

    base_joint_m: Vector
    platform_joint_m: Vector
    base_axis: Vector
    platform_axis: Vector
    links: tuple[OracleLink, ...]


@dataclass(frozen=True)
class OracleMachine:
    """A 6-UPRU. Platform com (3) and tensor about it (3x3) in the platform frame; poses are x y z yaw pitch roll."""

    name: str
    platform_mass_kg: float
    platform_com_m: Vector
    platform_inertia_kg_m2: Matrix
    home_pose: Vector
    pose_limits: Matrix  # (6, 2)
    legs: tuple[OracleLeg, ...]


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
    cell_idx: Array  # (n_legs,), empty if the tree has no cells
    leg_idx: Array  # (4 n_legs,) coordinates that the closure determines: all but platform and cells
    origin_frame: int  # platform frame at o
    tip_frames: tuple[int, ...]  # end of each leg chain: origin b_i, z = n, y = second U axis
    socket_frames: tuple[int, ...]  # on the platform: origin b_i, x = U axis fixed in the platform


class InverseDynamics(NamedTuple):
    """Result of `inverse_dynamics`, one entry per leg. Force > 0 extends the leg, cell > 0 is compression.

    `residual` is the largest absolute error of the closure in position, velocity and acceleration and of the force
    equation, in mixed SI units.
    """

    length_m: Array
    length_rate_m_s: Array
    length_acc_m_s2: Array
    force_n: Array
    cell_n: Array
    residual: float


# --- machines -------------------------------------------------------------------------------------------------------


def machine_from_toml(data: dict[str, Any]) -> OracleMachine:
    """Machine from a parsed machine file. A `[[leg]]` table overrides `[legs]` key by key, at any depth."""
    platform = data["platform"]
    if platform["kind"] != "free":
        raise ValueError(f"platform kind {platform['kind']!r} is not built")
    return OracleMachine(
        name=data["name"],
        platform_mass_kg=float(platform["mass_kg"]),
        platform_com_m=_vector(platform["com_m"]),
        platform_inertia_kg_m2=_matrix(platform["inertia_kg_m2"]),
        home_pose=_vector(platform["home"][key] for key in POSE_KEYS),
        pose_limits=_matrix(platform["limits"][key] for key in POSE_KEYS),
        legs=tuple(_leg_from_toml(_merged(data["legs"], leg)) for leg in data["leg"]),
    )


def machine_to_toml_dict(machine: OracleMachine) -> dict[str, Any]:
    """Inverse of `machine_from_toml`: a complete machine file as a dict, every leg with its own links.

    Limits of the legs, drive, friction, motion and cell capacity are no part of an `OracleMachine`; they get plausible
    values so that the file is complete.
    """
    lengths = home_lengths(machine)
    return {
        "name": machine.name,
        "title": machine.name,
        "source": "Numbers of this project's own, for tests.",
        "platform": {
            "kind": "free",
            "mass_kg": machine.platform_mass_kg,
            "com_m": list(machine.platform_com_m),
            "inertia_kg_m2": [list(row) for row in machine.platform_inertia_kg_m2],
            "home": dict(zip(POSE_KEYS, machine.home_pose, strict=True)),
            "limits": {key: list(row) for key, row in zip(POSE_KEYS, machine.pose_limits, strict=True)},
            "motion": dict(MOTION_BLOCK),
        },
        "legs": {
            "kind": "UPRU",
            "limits": {
                "length_m": [float(lengths.min()) - STROKE_M, float(lengths.max()) + STROKE_M],
                "speed_m_s": 0.48,
                "acceleration_m_s2": 4.0,
                "force_n": 700.0,
            },
            "drive": dict(DRIVE_BLOCK),
            "friction": dict(FRICTION_BLOCK),
            "cell": {"links_below": [], "capacity_n": CELL_CAPACITY_N},
        },
        "leg": [_leg_to_toml(leg) for leg in machine.legs],
    }


def random_machine(rng: np.random.Generator) -> OracleMachine:
    """A random 6-UPRU of the 6-upru's size and layout whose six legs share nothing.

    Joint points within 3 cm of the usual hexagon, U axes at least 60 degrees off the leg line at home, physically valid
    full tensors, offset centres of mass, one or two links per group and side of the cell.
    """
    home = np.array([0.0, 0.0, 0.85, 0.0, 0.0, 0.0]) + rng.uniform(-0.03, 0.03, 6)
    half_range = np.array([0.15, 0.15, 0.15, 0.40, 0.35, 0.35])
    home_rotation = pin.rpy.rpyToMatrix(home[5], home[4], home[3])
    legs = []
    for i in range(6):
        side = -1.0 if i % 2 == 0 else 1.0
        sector = np.deg2rad(120.0 * (i // 2))
        base = _on_circle(0.65, sector + side * np.deg2rad(12.0)) + rng.uniform(-0.03, 0.03, 3)
        tip = _on_circle(0.45, sector + side * np.deg2rad(48.0)) + rng.uniform(-0.03, 0.03, 3)
        line = home[:3] + home_rotation @ tip - base
        legs.append(
            OracleLeg(
                base_joint_m=_vector(base),
                platform_joint_m=_vector(tip),
                base_axis=_vector(_random_axis(rng, line)),
                platform_axis=_vector(home_rotation.T @ _random_axis(rng, line)),
                links=_random_links(rng),
            )
        )
    return OracleMachine(
        name="random-6-upru",
        platform_mass_kg=float(rng.uniform(40.0, 120.0)),
        platform_com_m=_vector(rng.uniform(-0.1, 0.1, 3)),
        platform_inertia_kg_m2=_random_inertia(rng, mass_kg=80.0, radius_m=0.25),
        home_pose=_vector(home),
        pose_limits=_matrix(np.column_stack([home - half_range, home + half_range])),
        legs=tuple(legs),
    )


def home_lengths(machine: OracleMachine) -> Array:
    """Leg lengths at the home pose, m, (n_legs,)."""
    home = _pose_placement(machine.home_pose)
    return np.array([np.linalg.norm(home.act(_v(g.platform_joint_m)) - _v(g.base_joint_m)) for g in machine.legs])


def _leg_from_toml(leg: dict[str, Any]) -> OracleLeg:
    if leg["kind"] != "UPRU":
        raise ValueError(f"leg kind {leg['kind']!r} is not built")
    below = leg.get("cell", {}).get("links_below", [])
    return OracleLeg(
        base_joint_m=_vector(leg["base_joint_m"]),
        platform_joint_m=_vector(leg["platform_joint_m"]),
        base_axis=_vector(leg["base_axis"]),
        platform_axis=_vector(leg["platform_axis"]),
        links=tuple(
            OracleLink(
                name=name,
                group=link["group"],
                mass_kg=float(link["mass_kg"]),
                com_m=_vector(link["com_m"]),
                inertia_kg_m2=_matrix(link["inertia_kg_m2"]),
                below_cell=name in below,
            )
            for name, link in leg["links"].items()
        ),
    )


def _leg_to_toml(leg: OracleLeg) -> dict[str, Any]:
    return {
        "base_joint_m": list(leg.base_joint_m),
        "platform_joint_m": list(leg.platform_joint_m),
        "base_axis": list(leg.base_axis),
        "platform_axis": list(leg.platform_axis),
        "cell": {"links_below": [link.name for link in leg.links if link.below_cell], "capacity_n": CELL_CAPACITY_N},
        "links": {
            link.name: {
                "group": link.group,
                "mass_kg": link.mass_kg,
                "com_m": list(link.com_m),
                "inertia_kg_m2": [list(row) for row in link.inertia_kg_m2],
            }
            for link in leg.links
        },
    }


def _merged(defaults: dict[str, Any], override: dict[str, Any]) -> dict[str, Any]:
    merged = dict(defaults)
    for key, value in override.items():
        both_tables = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both_tables else value
    return merged


def _random_axis(rng: np.random.Generator, line: Array) -> Array:
    """Unit vector (3) at least 60 degrees off `line`."""
    n = line / np.linalg.norm(line)
    across = np.cross(n, rng.normal(size=3))
    axis = across / np.linalg.norm(across) + rng.uniform(-0.55, 0.55) * n
    return axis / np.linalg.norm(axis)


def _random_links(rng: np.random.Generator) -> tuple[OracleLink, ...]:
    # (group, below the cell, total mass, distance of the com along the leg, radius of gyration)
    parts = [("upper", False, 1.1, -0.055, 0.05), ("rod", False, 0.9, -0.14, 0.06), ("rod", True, 3.4, -0.36, 0.15),
             ("lower", False, 11.5, 0.21, 0.18)]  # fmt: skip
    links: list[OracleLink] = []
    for group, below_cell, mass, along, radius in parts:
        count = int(rng.integers(1, 3))
        for _ in range(count):
            mass_kg = float(mass * rng.uniform(0.7, 1.3) / count)
            links.append(
                OracleLink(
                    name=f"L{len(links) + 1}",
                    group=group,
                    mass_kg=mass_kg,
                    com_m=_vector(np.array([0.0, 0.0, along]) + rng.uniform(-0.03, 0.03, 3)),
                    inertia_kg_m2=_random_inertia(rng, mass_kg, radius),
                    below_cell=below_cell,
                )
            )
    return tuple(links)


def _random_inertia(rng: np.random.Generator, mass_kg: float, radius_m: float) -> Matrix:
    """Full tensor of a mass distribution with a random second-moment matrix S: I = tr(S) 1 - S.

    S positive definite is exactly the condition for a tensor that a body can have (triangle inequality included).
    """
    a = rng.normal(size=(3, 3)) + 0.5 * np.eye(3)
    s = a @ a.T + 0.05 * np.eye(3)
    s *= mass_kg * radius_m**2 / np.trace(s)
    return _matrix(np.trace(s) * np.eye(3) - s)


def _on_circle(radius_m: float, angle_rad: float) -> Array:
    return radius_m * np.array([np.cos(angle_rad), np.sin(angle_rad), 0.0])


def _vector(values: Any) -> Vector:
    return tuple(float(x) for x in values)


def _matrix(rows: Any) -> Matrix:
    return tuple(_vector(row) for row in rows)


def _v(values: Vector) -> Array:
    return np.array(values)


# --- tree -----------------------------------------------------------------------------------------------------------


def build_oracle(machine: OracleMachine, cells: bool = True) -> Oracle:
    """Joint tree of the machine, zero at the home pose except for the platform and slide coordinates.

    Without `cells` the rods are not cut: no cell forces, and the smallest tree of the machine, for timing.
    """
    model = pin.Model()
    model.name = machine.name
    model.gravity.linear = GRAVITY_M_S2
    # SphericalZYX: configuration yaw pitch roll of R = Rz Ry Rx, velocity = their time derivatives.
    moved = model.addJoint(0, pin.JointModelTranslation(), pin.SE3.Identity(), "platform/position")
    platform = model.addJoint(moved, pin.JointModelSphericalZYX(), pin.SE3.Identity(), "platform/orientation")
    model.appendBodyToJoint(
        platform,
        pin.Inertia(machine.platform_mass_kg, _v(machine.platform_com_m), np.array(machine.platform_inertia_kg_m2)),
        pin.SE3.Identity(),
    )
    origin_frame = _add_frame(model, "platform/o", platform, pin.SE3.Identity())

    home = _pose_placement(machine.home_pose)
    tips, sockets = [], []
    for i, leg in enumerate(machine.legs, start=1):
        tips.append(_add_leg(model, f"leg{i}", leg, home, cells))
        # Only the socket's x axis has a meaning: the U axis fixed in the platform.
        turn = pin.Quaternion.FromTwoVectors(np.array([1.0, 0.0, 0.0]), _v(leg.platform_axis)).matrix()
        sockets.append(_add_frame(model, f"leg{i}/socket", platform, pin.SE3(turn, _v(leg.platform_joint_m))))

    def coordinates(suffix: str) -> Array:
        joints = [j for j, name in enumerate(model.names) if name.endswith(suffix)]
        return np.array([model.joints[j].idx_v for j in joints], dtype=int)

    platform_idx, cell_idx = np.arange(6), coordinates("/cell")
    return Oracle(
        machine=machine,
        model=model,
        data=model.createData(),
        platform_idx=platform_idx,
        slide_idx=coordinates("/slide"),
        cell_idx=cell_idx,
        leg_idx=np.setdiff1d(np.arange(model.nv), np.concatenate([platform_idx, cell_idx])),
        origin_frame=origin_frame,
        tip_frames=tuple(tips),
        socket_frames=tuple(sockets),
    )


def _add_leg(model: pin.Model, name: str, leg: OracleLeg, home: pin.SE3, cell: bool) -> int:
    """Append one UPRU chain to the base and return its tip frame."""
    base_joint = _v(leg.base_joint_m)
    line = home.act(_v(leg.platform_joint_m)) - base_joint
    lower_frame = _leg_frame(_v(leg.base_axis), line)
    upper_frame = _leg_frame(home.rotation @ _v(leg.platform_axis), line)
    at_base = pin.SE3(lower_frame, base_joint)
    turned = pin.SE3(lower_frame.T @ upper_frame, np.zeros(3))

    # The first axis lies in the home leg frame's x-z plane, the second is its y; so z follows the leg line, and x, y
    # are those of the convention in every pose.
    first_axis = lower_frame.T @ _v(leg.base_axis)
    base_u = pin.JointModelUniversal(first_axis / np.linalg.norm(first_axis), np.array([0.0, 1.0, 0.0]))
    lower = model.addJoint(0, base_u, at_base, f"{name}/base")
    slide = model.addJoint(lower, pin.JointModelPZ(), pin.SE3.Identity(), f"{name}/slide")
    above = model.addJoint(slide, pin.JointModelPZ(), pin.SE3.Identity(), f"{name}/cell") if cell else slide
    upper = model.addJoint(above, pin.JointModelRZ(), turned, f"{name}/passive")

    for link in leg.links:
        joint = {"lower": lower, "rod": slide if link.below_cell else above, "upper": upper}[link.group]
        inertia = pin.Inertia(link.mass_kg, _v(link.com_m), np.array(link.inertia_kg_m2))
        model.appendBodyToJoint(joint, inertia, pin.SE3.Identity())
    return _add_frame(model, f"{name}/tip", upper, pin.SE3.Identity())


def _add_frame(model: pin.Model, name: str, joint: int, placement: pin.SE3) -> int:
    return model.addFrame(pin.Frame(name, joint, placement, pin.FrameType.OP_FRAME))


def _leg_frame(axis: Array, line: Array) -> Array:
    """Columns x y z: z along the leg, y = axis x z normalised, x = y x z."""
    z = line / np.linalg.norm(line)
    y = np.cross(axis, z)
    y /= np.linalg.norm(y)
    return np.column_stack([np.cross(y, z), y, z])


def _pose_placement(pose: Vector) -> pin.SE3:
    x, y, z, yaw, pitch, roll = pose
    return pin.SE3(pin.rpy.rpyToMatrix(roll, pitch, yaw), np.array([x, y, z]))


# --- closure --------------------------------------------------------------------------------------------------------


def solve_positions(oracle: Oracle, pose: Array) -> Array:
    """Configuration q of the closed machine at a pose (6): Newton on the closure, started at home.

    Newton keeps the assembly mode of home for poses within the workspace. The mirrored modes (an axis turned by 180
    degrees, a negative length) also close the loops, so a jump is an error and not a solution.
    """
    q = np.zeros(oracle.model.nq)
    q[oracle.platform_idx] = pose
    q[oracle.slide_idx] = home_lengths(oracle.machine)
    for _ in range(NEWTON_STEPS):
        pin.computeJointJacobians(oracle.model, oracle.data, q)
        pin.updateFramePlacements(oracle.model, oracle.data)
        gap, jacobian = _closure(oracle)
        if np.abs(gap).max() < CLOSURE_TOLERANCE:
            break
        q[oracle.leg_idx] -= np.linalg.solve(jacobian[:, oracle.leg_idx], gap)
    else:
        raise RuntimeError("the closure did not converge")
    for i, leg in enumerate(oracle.machine.legs):
        tip, socket = oracle.data.oMf[oracle.tip_frames[i]], oracle.data.oMf[oracle.socket_frames[i]]
        second_base_axis = oracle.data.oMi[oracle.model.getJointId(f"leg{i + 1}/base")].rotation[:, 1]
        n = tip.rotation[:, 2]
        same_mode = (
            q[oracle.slide_idx[i]] > 0.0
            and second_base_axis @ np.cross(leg.base_axis, n) > 0.0
            and tip.rotation[:, 1] @ np.cross(socket.rotation[:, 0], n) > 0.0
        )
        if not same_mode:
            raise RuntimeError(f"leg {i + 1} jumped to another assembly mode")
    return q


def solve_state(oracle: Oracle, pose: Array, pose_rate: Array, pose_acc: Array) -> tuple[Array, Array, Array]:
    """q, v, a of the whole tree from pose and its first two derivatives, (6) each."""
    model, data, legs = oracle.model, oracle.data, oracle.leg_idx
    q = solve_positions(oracle, pose)
    v, a = np.zeros(model.nv), np.zeros(model.nv)
    v[oracle.platform_idx], a[oracle.platform_idx] = pose_rate, pose_acc
    pin.computeJointJacobians(model, data, q)
    pin.updateFramePlacements(model, data)
    jacobian = _closure(oracle)[1]
    v[legs] = -np.linalg.solve(jacobian[:, legs], jacobian @ v)
    # With the leg accelerations still zero, what is left is the platform's part plus the drift.
    a[legs] = -np.linalg.solve(jacobian[:, legs], _closure_acceleration(oracle, q, v, a))
    return q, v, a


def _closure(oracle: Oracle) -> tuple[Array, Array]:
    """Gap (4 n_legs) and its Jacobian (4 n_legs, nv). Needs joint Jacobians and frame placements in `data`."""
    gaps, rows = [], []
    for tip, socket in zip(oracle.tip_frames, oracle.socket_frames, strict=True):
        at_tip, at_socket = oracle.data.oMf[tip], oracle.data.oMf[socket]
        y, p = at_tip.rotation[:, 1], at_socket.rotation[:, 0]
        relative = _frame_jacobian(oracle, tip) - _frame_jacobian(oracle, socket)
        gaps += [at_tip.translation - at_socket.translation, [y @ p]]
        rows += [relative[:3], [np.cross(y, p) @ relative[3:]]]
    return np.concatenate(gaps), np.vstack(rows)


def _closure_acceleration(oracle: Oracle, q: Array, v: Array, a: Array) -> Array:
    """Second time derivative of the gap, (4 n_legs)."""
    model, data, axes = oracle.model, oracle.data, pin.LOCAL_WORLD_ALIGNED
    pin.forwardKinematics(model, data, q, v, a)
    pin.updateFramePlacements(model, data)
    rows = []
    for tip, socket in zip(oracle.tip_frames, oracle.socket_frames, strict=True):
        y, p = data.oMf[tip].rotation[:, 1], data.oMf[socket].rotation[:, 0]
        w_tip = pin.getFrameVelocity(model, data, tip, axes).angular
        w_socket = pin.getFrameVelocity(model, data, socket, axes).angular
        acc_tip = pin.getFrameClassicalAcceleration(model, data, tip, axes)
        acc_socket = pin.getFrameClassicalAcceleration(model, data, socket, axes)
        across_rate = np.cross(np.cross(w_tip, y), p) + np.cross(y, np.cross(w_socket, p))
        rows += [
            acc_tip.linear - acc_socket.linear,
            [np.cross(y, p) @ (acc_tip.angular - acc_socket.angular) + across_rate @ (w_tip - w_socket)],
        ]
    return np.concatenate(rows)


def _frame_jacobian(oracle: Oracle, frame: int) -> Array:
    return pin.getFrameJacobian(oracle.model, oracle.data, frame, pin.LOCAL_WORLD_ALIGNED)


# --- dynamics -------------------------------------------------------------------------------------------------------


def inverse_dynamics(oracle: Oracle, pose: Array, pose_rate: Array, pose_acc: Array, wrench: Array) -> InverseDynamics:
    """Leg motion, actuator and cell forces of one state.

    `pose` (6): x y z yaw pitch roll, R = Rz(yaw) Ry(pitch) Rx(roll); `pose_rate` and `pose_acc` are its derivatives.
    `wrench` (6): external force (N) and moment about o (Nm) on the platform, base axes.

    The generalised forces of the open tree must come from the slides, the locked cells, the loop multipliers and the
    wrench; every passive joint and the platform itself contribute nothing:  [S_slide S_cell Jc^T] x = rnea - Jo^T W.
    """
    q, v, a = solve_state(oracle, pose, pose_rate, pose_acc)
    model, data, count = oracle.model, oracle.data, len(oracle.slide_idx)
    acceleration_gap = _closure_acceleration(oracle, q, v, a)
    pin.computeJointJacobians(model, data, q)
    pin.updateFramePlacements(model, data)
    gap, jacobian = _closure(oracle)
    needed = rnea_only(oracle, q, v, a) - _frame_jacobian(oracle, oracle.origin_frame).T @ wrench
    unit = np.eye(model.nv)
    sources = np.hstack([unit[:, oracle.slide_idx], unit[:, oracle.cell_idx], jacobian.T])
    x = np.linalg.solve(sources, needed)
    errors = (gap, jacobian @ v, acceleration_gap, sources @ x - needed)
    return InverseDynamics(
        length_m=q[oracle.slide_idx],
        length_rate_m_s=v[oracle.slide_idx],
        length_acc_m_s2=a[oracle.slide_idx],
        force_n=x[:count],
        cell_n=x[count : count + len(oracle.cell_idx)],
        residual=max(float(np.abs(e).max()) for e in errors),
    )


def rnea_only(oracle: Oracle, q: Array, v: Array, a: Array) -> Array:
    """Generalised forces (nv) of the open tree, N and Nm: bare `pinocchio.rnea`. To time it, build without cells."""
    return pin.rnea(oracle.model, oracle.data, q, v, a)


def mechanical_energy(oracle: Oracle, pose: Array, pose_rate: Array) -> tuple[float, float]:
    """Kinetic and potential energy (J) of the closed machine."""
    q, v, _ = solve_state(oracle, pose, pose_rate, np.zeros(6))
    kinetic = pin.computeKineticEnergy(oracle.model, oracle.data, q, v)
    return float(kinetic), float(pin.computePotentialEnergy(oracle.model, oracle.data, q))
