"""The simulated machine: a MuJoCo model generated from a machine file, off from it on purpose, and its instruments.

Leg and platform are cut at the passive joint of the leg, so that both sides are plain trees and no body lacks mass:

    base ── U (base_axis, leg y) ── lower links ── slide ── links below the cell ── cell ── links above ─┐
    platform (free) ── U (platform_axis, leg y) ── upper links ─────────── two points in common ─────────┘

The cut is closed by two connect equalities, at the platform joint b_i and at a second point of the leg axis: together
they leave the rotation about the leg, which is the passive R joint of UPRU. A leg without upper links needs the first
one only. Leg frame: z = n from base to platform joint, y along axis x n, x = y x z; `qpos0` is the home pose.
"""

import math
from collections.abc import Iterable
from typing import Any, TypeAlias

import mujoco as untyped  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from controller import schema
from controller.errors import ConfigurationError
from controller.mechanism.drive import screw

mujoco: Any = untyped  # its bindings come without type stubs
MjModel: TypeAlias = Any
MjSpec: TypeAlias = Any
MjBody: TypeAlias = Any
Array = NDArray[np.float64]

SECOND_POINT_M = 0.1  # from b_i down the leg axis to the second common point; the length of a link like L1
HARD = (0.9999, 0.9999, 0.001, 0.5, 2.0)  # solimp: the hardest constraint MuJoCo admits, at every violation
BRAKE_LOCKS_M_S = 1e-4  # below this rate a slipping brake has caught
SETTLE_S = 0.1  # at the start the closure takes up the weight: far longer than its few steps


def deviate(machine: schema.Machine, cell: schema.VirtualCell) -> schema.Machine:
    """The machine as it really is: `machine` with the deviations of `cell`, the same ones for the same seed.

    Masses, inertias (about each com) and rotor inertias are scaled, which leaves tensors physical; the platform's com
    is moved; every coordinate of every joint is off by a uniform error within +-geometry_error_m; friction is the
    cell's own and replaces what the machine file guesses.
    """
    rng = np.random.default_rng(cell.seed)
    error_m = rng.uniform(-cell.geometry_error_m, cell.geometry_error_m, (len(machine.leg), 2, 3))

    def links(given: dict[str, schema.Link]) -> dict[str, schema.Link]:
        return {
            name: replace(
                link,
                mass_kg=link.mass_kg * cell.mass_scale,
                inertia_kg_m2=_tensor(np.array(link.inertia_kg_m2) * cell.inertia_scale),
            )
            for name, link in given.items()
        }

    def drive(given: schema.ScrewDrive) -> schema.ScrewDrive:
        return replace(
            given,
            rotor_inertia_kg_m2=given.rotor_inertia_kg_m2 * cell.rotor_inertia_scale,
            coulomb_n=cell.coulomb_n,
            viscous_n_s_m=cell.viscous_n_s_m,
        )

    platform = machine.platform
    return replace(
        machine,
        platform=replace(
            platform,
            mass_kg=platform.mass_kg * cell.mass_scale,
            com_m=_vector(np.add(platform.com_m, cell.com_offset_m)),
            inertia_kg_m2=_tensor(np.array(platform.inertia_kg_m2) * cell.inertia_scale),
        ),
        legs=replace(
            machine.legs,
            links=links(machine.legs.links),
            drive=drive(screw(machine.legs.drive)),
        ),
        leg=[
            replace(
                leg,
                base_joint_m=_vector(np.add(leg.base_joint_m, base_error_m)),
                platform_joint_m=_vector(np.add(leg.platform_joint_m, platform_error_m)),
                links=None if leg.links is None else links(leg.links),
                drive=None if leg.drive is None else drive(screw(leg.drive)),
            )
            for leg, (base_error_m, platform_error_m) in zip(machine.leg, error_m, strict=True)
        ],
    )


def mujoco_model(machine: schema.Machine, step_s: float) -> MjModel:
    """The machine as a MuJoCo model at its home pose.

    For leg i = 1..n, in this order: joint `slide i`, motor `force i` (N, > 0 extends), sensor `cell i` (N, its third
    component > 0 in compression), sites `tip i` and `joint i` (b_i on leg and platform), equality `brake i` (off).
    """
    kinds = {machine.platform.kind, machine.legs.kind, *(leg.kind for leg in machine.leg)} - {None}
    if kinds != {"free", "UPRU"}:
        raise ConfigurationError(
            f"{machine.name}: the virtual cell knows 6-UPRU only so far, found {sorted(map(str, kinds))}"
        )
    spec = mujoco.MjSpec()
    option = spec.option
    option.timestep = step_s
    option.gravity = machine.gravity_m_s2
    option.integrator = mujoco.mjtIntegrator.mjINT_EULER
    option.solver = mujoco.mjtSolver.mjSOL_NEWTON
    option.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    # No contacts and no limits to look for; a plant that diverges shows it and is not reset behind our back;
    # friction is far from stiff, so the implicit damping of Euler would cost a factorisation for nothing.
    disable = mujoco.mjtDisableBit
    option.disableflags |= (
        disable.mjDSBL_CONTACT | disable.mjDSBL_LIMIT | disable.mjDSBL_AUTORESET | disable.mjDSBL_EULERDAMP
    )

    given = machine.platform
    origin_m, rotation = _home(given)
    platform = spec.worldbody.add_body(name="platform", pos=origin_m, quat=_quaternion(rotation))
    platform.add_freejoint(name="platform")
    _set_inertia(platform, [schema.Link("upper", given.mass_kg, given.com_m, given.inertia_kg_m2)])
    for number in range(1, len(machine.leg) + 1):
        _add_leg(spec, machine, number)
    # After the closures, so that the rows of the closures come first whether or not a brake is on.
    for number in range(1, len(machine.leg) + 1):
        brake = spec.add_equality(name=f"brake {number}", type=mujoco.mjtEq.mjEQ_JOINT, active=False)
        brake.objtype, brake.name1 = mujoco.mjtObj.mjOBJ_JOINT, f"slide {number}"
        brake.solref, brake.solimp = _deadbeat(step_s), HARD
    return spec.compile()


def _add_leg(spec: MjSpec, machine: schema.Machine, number: int) -> None:
    legs, leg, step_s = machine.legs, machine.leg[number - 1], spec.option.timestep
    drive = screw(leg.drive or legs.drive)
    cell = leg.cell or legs.cell
    links = legs.links | (leg.links or {})
    rod = {name: link for name, link in links.items() if link.group == "rod"}
    below = {name: link for name, link in rod.items() if cell is not None and name in cell.links_below}
    upper = [link for link in links.values() if link.group == "upper"]

    origin_m, rotation = _home(machine.platform)
    base_m = np.array(leg.base_joint_m)
    along = origin_m + rotation @ leg.platform_joint_m - base_m
    length_m = float(np.linalg.norm(along))
    frame = _leg_frame(along, np.array(leg.base_axis))

    lower = spec.worldbody.add_body(name=f"lower {number}", pos=base_m, quat=_quaternion(frame))
    _set_inertia(lower, [link for link in links.values() if link.group == "lower"])
    _add_universal(lower, frame.T @ leg.base_axis, f"base {number}")

    # The origins of the sliding bodies are at b_i: where the links' coms are measured from.
    slider = lower.add_body(name=f"slider {number}", pos=(0.0, 0.0, length_m))
    _set_inertia(slider, below.values())
    slide = slider.add_joint(name=f"slide {number}", type=mujoco.mjtJoint.mjJNT_SLIDE, axis=(0.0, 0.0, 1.0))
    slide.armature = drive.rotor_inertia_kg_m2 * _motor_rad_per_m(drive) ** 2
    slide.damping[0] = drive.viscous_n_s_m
    slide.frictionloss = drive.coulomb_n
    slide.solref_friction, slide.solimp_friction = _deadbeat(step_s), HARD
    motor = spec.add_actuator(name=f"force {number}", target=f"slide {number}")
    motor.trntype = mujoco.mjtTrn.mjTRN_JOINT

    above = slider.add_body(name=f"above cell {number}")
    _set_inertia(above, [link for name, link in rod.items() if name not in below])
    above.add_site(name=f"tip {number}")
    spec.add_sensor(
        name=f"cell {number}",
        type=mujoco.mjtSensor.mjSENS_FORCE,
        objtype=mujoco.mjtObj.mjOBJ_SITE,
        objname=f"tip {number}",
    )

    platform = spec.body("platform")
    platform.add_site(name=f"joint {number}", pos=leg.platform_joint_m)
    _connect(spec, above.name, "platform", (0.0, 0.0, 0.0))
    if upper:
        axis = np.array(leg.platform_axis, dtype=np.float64)
        frame = rotation.T @ _leg_frame(along, rotation @ axis)
        body = platform.add_body(name=f"upper {number}", pos=leg.platform_joint_m, quat=_quaternion(frame))
        _set_inertia(body, upper)
        _add_universal(body, frame.T @ axis, f"platform {number}")
        _connect(spec, above.name, body.name, (0.0, 0.0, -SECOND_POINT_M))


def _add_universal(body: MjBody, axis: Array, name: str) -> None:
    """A U joint at the origin of `body`: `axis` (body frame) fixed in the parent, then the leg's own y."""
    body.add_joint(name=f"{name} axis", type=mujoco.mjtJoint.mjJNT_HINGE, axis=axis)
    body.add_joint(name=f"{name} y", type=mujoco.mjtJoint.mjJNT_HINGE, axis=(0.0, 1.0, 0.0))


def _connect(spec: MjSpec, body1: str, body2: str, point_m: ArrayLike) -> None:
    """`point_m` of body1 (its own frame) stays where it is in body2 at the home pose."""
    equality = spec.add_equality(type=mujoco.mjtEq.mjEQ_CONNECT, name1=body1, name2=body2)
    equality.objtype = mujoco.mjtObj.mjOBJ_BODY
    equality.data[:3] = point_m
    equality.solref, equality.solimp = _deadbeat(spec.option.timestep), HARD


def _set_inertia(body: MjBody, links: Iterable[schema.Link]) -> None:
    """Give `body` the mass, com and tensor of its links together, all in its own axes."""
    links = list(links)
    mass_kg = sum(link.mass_kg for link in links)
    if mass_kg == 0.0:
        return
    com_m = sum(link.mass_kg * np.array(link.com_m) for link in links) / mass_kg
    tensor = np.zeros((3, 3))
    for link in links:
        r_m = np.array(link.com_m) - com_m
        tensor += np.array(link.inertia_kg_m2) + link.mass_kg * (r_m @ r_m * np.eye(3) - np.outer(r_m, r_m))
    body.explicitinertial = True
    body.mass = mass_kg
    body.ipos = com_m
    body.fullinertia = (tensor[0, 0], tensor[1, 1], tensor[2, 2], tensor[0, 1], tensor[0, 2], tensor[1, 2])


class Plant:
    """The deviated machine with its drives, brakes, encoders and load cells, advanced in steps of `step_s`.

    It starts at its home pose, at rest, with the brakes closed. Arrays are (n,), one value a leg. `machine` is the
    machine as it really is; `model` and `data` are MuJoCo's, for tests and pictures.
    """

    def __init__(self, machine: schema.Machine, cell: schema.VirtualCell, step_s: float = 0.0005) -> None:
        """Deviate the machine by the settings of the cell, assemble it and let it come to rest."""
        self.machine = machine = deviate(machine, cell)
        self.model = model = mujoco_model(machine, step_s)
        self.data = data = mujoco.MjData(model)
        numbers = range(1, len(machine.leg) + 1)
        slides = [model.joint(f"slide {i}") for i in numbers]
        brakes = [model.equality(f"brake {i}").id for i in numbers]
        self._slide_q = np.array([joint.qposadr[0] for joint in slides])
        self._slide_v = np.array([joint.dofadr[0] for joint in slides])
        self._cell_at = np.array([model.sensor(f"cell {i}").adr[0] + 2 for i in numbers])
        self._brakes = slice(brakes[0], brakes[-1] + 1)
        self._tips = np.array([model.site(f"tip {i}").id for i in numbers])
        self._joints = np.array([model.site(f"joint {i}").id for i in numbers])
        # Views into MuJoCo's memory, so that a step looks nothing up.
        self._ctrl, self._qpos, self._qvel, self._sensors = data.ctrl, data.qpos, data.qvel, data.sensordata
        self._advance = mujoco.mj_step

        mujoco.mj_kinematics(model, data)
        base_m = np.array([leg.base_joint_m for leg in machine.leg])
        self._home_m = np.linalg.norm(data.site_xpos[self._joints] - base_m, axis=1)
        self._friction_n = model.dof_frictionloss[self._slide_v]
        drives = [screw(leg.drive or machine.legs.drive) for leg in machine.leg]
        # A holding brake is sized for the rated torque of its motor; what moves when it closes, slips.
        self._brake_n = np.array([drive.rated_torque_nm * _motor_rad_per_m(drive) for drive in drives])

        delay = round(cell.force_delay_s / step_s)
        self._delay_line = np.zeros((delay + 1, len(machine.leg)))
        self._at = 0
        self._braked = False
        self._locked = False
        self._resolution_m = cell.encoder_resolution_m
        self._cell_noise_n = cell.cell_noise_n
        self._cell_resolution_n = cell.cell_resolution_n
        self._noise = np.random.default_rng((cell.seed, 1))

        for _ in range(round(SETTLE_S / step_s)):
            self.step(None)
        data.time = 0.0

    @property
    def time_s(self) -> float:
        """Simulated time since the start."""
        return self.data.time

    @property
    def position_m(self) -> Array:
        """What the encoders count: leg lengths between the joint centres, homed without error."""
        length_m = self._home_m + self._qpos[self._slide_q]
        return _quantised(length_m, self._resolution_m)

    @property
    def velocity_m_s(self) -> Array:
        """Rates of the leg lengths, not quantised: a drive works on a far finer grid than it reports."""
        return self._qvel[self._slide_v]

    @property
    def cell_n(self) -> Array:
        """Load cells during the last step, > 0 in compression; every reading has noise of its own."""
        noise_n = self._cell_noise_n * self._noise.standard_normal(len(self._cell_at))
        return _quantised(self._sensors[self._cell_at] + noise_n, self._cell_resolution_n)

    def pose(self) -> Array:
        """True platform pose x, y, z (m), yaw, pitch, roll (rad) in the base frame."""
        w, x, y, z = (float(value) for value in self._qpos[3:7])
        yaw = math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
        pitch = math.asin(max(-1.0, min(1.0, 2.0 * (w * y - x * z))))
        roll = math.atan2(2.0 * (w * x + y * z), 1.0 - 2.0 * (x * x + y * y))
        return np.array([*self._qpos[:3], yaw, pitch, roll])

    def closure_error_m(self) -> float:
        """The largest distance between a platform joint and the leg that belongs there."""
        mujoco.mj_kinematics(self.model, self.data)
        points_m = self.data.site_xpos
        return float(np.linalg.norm(points_m[self._tips] - points_m[self._joints], axis=1).max())

    def step(self, force_n: Array | None) -> None:
        """Advance by one step with these axis forces (> 0 extends), or with the drives off and the brakes closed."""
        if force_n is None:
            self._brake()
        else:
            if self._braked:
                self._release(force_n)
            line = self._delay_line
            line[self._at] = force_n
            self._at = (self._at + 1) % len(line)
            self._ctrl[:] = line[self._at]
        self._advance(self.model, self.data)

    def balance(self) -> Array:
        """Axis forces that hold the plant without friction at rest at its present pose, in N.

        Exact statics of the closed chain: the gravity of every joint coordinate is borne by axis and closure forces.
        """
        model, at_rest = self.model, mujoco.MjData(self.model)
        at_rest.qpos[:] = self._qpos
        mujoco.mj_forward(model, at_rest)
        closure: Array = at_rest.efc_J.reshape(-1, model.nv)[: at_rest.ne]  # a fresh MjData has its brakes off
        gravity: Array = at_rest.qfrc_bias  # generalised forces, N and Nm
        axes = np.zeros((len(self._slide_v), model.nv))
        axes[np.arange(len(axes)), self._slide_v] = 1.0
        borne = np.linalg.lstsq(np.vstack((axes, closure)).T, gravity, rcond=1e-10)[0]
        return np.asarray(borne[: len(axes)], dtype=np.float64)

    def _brake(self) -> None:
        """Drives off; each brake slips at its holding force until its axis stands, then all of them lock."""
        if self._locked:
            return
        if not self._braked:
            self._braked = True
            self._ctrl[:] = 0.0
            self.model.dof_frictionloss[self._slide_v] = self._friction_n + self._brake_n
        if np.abs(self._qvel[self._slide_v]).max() < BRAKE_LOCKS_M_S:
            self._locked = True
            self.model.eq_data[self._brakes, 0] = self._qpos[self._slide_q]
            self.data.eq_active[self._brakes] = 1

    def _release(self, force_n: Array) -> None:
        """Brakes open once the drives have built up `force_n`, as drives with a holding brake do."""
        self._braked = self._locked = False
        self.model.dof_frictionloss[self._slide_v] = self._friction_n
        self.data.eq_active[self._brakes] = 0
        self._delay_line[:] = force_n


def _motor_rad_per_m(drive: schema.ScrewDrive) -> float:
    return 2.0 * math.pi * drive.gear_ratio / drive.lead_m


def _deadbeat(step_s: float) -> tuple[float, float]:
    """solref as (-stiffness, -damping): a violation is gone after one step, h v' = h v - h v - x, x' = x + h v' = 0.

    The time-constant form stops at (2h, 1), the same damping with a quarter of the stiffness: closure 4 times worse.
    """
    return -1.0 / step_s**2, -1.0 / step_s


def _quantised(value: Array, resolution: float) -> Array:
    return np.round(value / resolution) * resolution if resolution > 0.0 else value


def _home(platform: schema.Platform) -> tuple[Array, Array]:
    """Origin (m) and rotation matrix Rz(yaw) Ry(pitch) Rx(roll) of the platform at its home pose."""
    home = platform.home
    angles = (home.yaw_rad, home.pitch_rad, home.roll_rad)
    (ca, cb, cg), (sa, sb, sg) = np.cos(angles), np.sin(angles)
    rotation = np.array(
        [
            [ca * cb, ca * sb * sg - sa * cg, ca * sb * cg + sa * sg],
            [sa * cb, sa * sb * sg + ca * cg, sa * sb * cg - ca * sg],
            [-sb, cb * sg, cb * cg],
        ]
    )
    return np.array([home.x_m, home.y_m, home.z_m]), rotation


def _leg_frame(along: Array, axis: Array) -> Array:
    """Columns x, y, z of the frame with z along the leg and y along axis x z; all in the same axes."""
    z = along / np.linalg.norm(along)
    y = np.cross(axis, z)
    y /= np.linalg.norm(y)
    return np.column_stack((np.cross(y, z), y, z))


def _quaternion(rotation: Array) -> Array:
    quat = np.empty(4)
    mujoco.mju_mat2Quat(quat, rotation.ravel())
    return quat


def _vector(values: ArrayLike) -> schema.Vector:
    x, y, z = (float(value) for value in np.asarray(values))
    return x, y, z


def _tensor(values: Array) -> schema.Tensor:
    a, b, c = (_vector(row) for row in values)
    return a, b, c
