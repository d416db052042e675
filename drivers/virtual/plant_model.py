"""A machine file as a MuJoCo model: plain trees at the home pose, cut in every leg and closed by equalities.

    base ── base_axis, leg y ── lower links ── slide ── links below the cell ── cell ── links above ─┐ (rod links)
    platform ── platform_axis, leg y ── upper links ────────────────────────────────────── cut ──────┘

* Platform: `free` has a free joint and `spherical` a ball joint at o. `2r1t` is guided by the joints a, z, b of its
  three freedoms. Its legs would impose them five times over; so every leg is cut as if it ended in an S joint, and had
  a U joint at the base: no redundant equation is left, and deviating joint points can be assembled.
* UPS: the cut leaves one connect equality at the platform joint b_i. UPR and RPU, see above, likewise.
* UPRU: a second connect, at another point of the leg axis. Together they leave the rotation about the leg, which is
  the passive R joint. A leg without upper links needs the first one only.
* UHU: the rod slides and turns in the lower links, and a weld joins it to what turns with the platform joint; both
  bear half of the upper links, because a moving body must have mass. The rotor is a body of its own on the lower
  links; the tendon equality `screw i` ties its angle to slide and twist.

Leg frame: z = n from base to platform joint, y along axis x n, x = y x z; `qpos0` is the home pose.
"""

import logging
import math
from collections.abc import Iterable
from typing import Any, TypeAlias

import mujoco as untyped  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
from numpy.typing import ArrayLike, NDArray

from controller import schema
from controller.errors import ConfigurationError
from controller.mechanism.drive import screw

mujoco: Any = untyped  # its bindings come without type stubs
MjModel: TypeAlias = Any
MjSpec: TypeAlias = Any
MjBody: TypeAlias = Any
Array = NDArray[np.float64]

log = logging.getLogger(__name__)

MECHANISMS = {("free", "UPRU"), ("free", "UPS"), ("free", "UHU"), ("2r1t", "RPU UPR"), ("spherical", "UPS")}
SEALED = {"UPRU", "UPS"}  # legs whose statics tell what loads the seals
SECOND_POINT_M = 0.1  # from b_i down the leg axis to the second common point; the length of a link like L1
ROTOR_KG, ROTOR_LEAST_KG_M2 = 1e-9, 1e-9  # no moving body without; the mass of the rotor is in the lower links
HARD = (0.9999, 0.9999, 0.001, 0.5, 2.0)  # solimp: the hardest constraint MuJoCo admits, at every violation


def mujoco_model(machine: schema.Machine, step_s: float) -> MjModel:
    """The machine as a MuJoCo model at its home pose.

    For leg i = 1..n, in this order: joint `axis i`, `joint_per_axis` times the axis coordinate; motor `force i` (N, > 0
    extends); where there is a load cell sensor `cell i` (N, its third component > 0 in compression); where there is a
    cylinder, or a load on seals rubs, sensors `pushed i` and `turned i` (N, N m: what holds the rod, about b_i, in the
    leg frame); sites `tip i` and `joint i` (b_i on leg and platform); equality `brake i` (off).

    Raises:
        ConfigurationError: for a machine it does not know.
    """
    legs = [schema.effective_leg(machine, i) for i in range(len(machine.leg))]
    cut = [f"{name} of leg {i}" for i, leg in enumerate(legs, 1) for name, link in leg.links.items() if _is_cut(link)]
    if cut:
        log.warning(
            "%s: no body has a principal moment above the sum of the other two: it is cut in %d links, %s ...",
            machine.name, len(cut), cut[0],
        )  # fmt: skip
    kinds = sorted({leg.kind for leg in legs})
    if (machine.platform.kind, " ".join(kinds)) not in MECHANISMS:
        raise ConfigurationError(
            f"{machine.name}: the virtual cell knows 6-UPRU, 6-UPS, 6-UHU, 2-UPR/2-RPU and 3-UPS/S so far, "
            f"found a {machine.platform.kind} platform on {', '.join(kinds)}"
        )
    if any(leg.kind == "UHU" and (leg.cell is not None or screw(leg.drive) is None) for leg in legs):
        raise ConfigurationError(
            f"{machine.name}: the virtual cell knows UHU legs with a screw and without a cell only"
        )
    if any(leg.friction.normal > 0.0 and leg.kind not in SEALED for leg in legs):
        raise ConfigurationError(
            f"{machine.name}: legs.friction.normal: the virtual cell knows the load on the seals of "
            f"{' and '.join(sorted(SEALED))} legs only"
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
    if given.kind == "free":
        platform.add_freejoint(name="platform")
    elif given.kind == "spherical":
        platform.add_joint(name="platform", type=mujoco.mjtJoint.mjJNT_BALL)
    else:  # o = z (0, -sin a, cos a), R = Rx(a) Ry(b)
        hinge, slide = mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE
        platform.add_joint(name="platform a", type=hinge, axis=rotation.T @ (1.0, 0.0, 0.0), pos=-origin_m @ rotation)
        platform.add_joint(name="platform z", type=slide, axis=origin_m @ rotation / np.linalg.norm(origin_m))
        platform.add_joint(name="platform b", type=hinge, axis=(0.0, 1.0, 0.0))
    _set_inertia(platform, [schema.Link("upper", given.mass_kg, given.com_m, given.inertia_kg_m2)])
    for number in range(1, len(machine.leg) + 1):
        _add_leg(spec, machine, number)
    # After the closures, so that the rows of the closures come first whether or not a brake is on.
    for number in range(1, len(machine.leg) + 1):
        brake = spec.add_equality(name=f"brake {number}", type=mujoco.mjtEq.mjEQ_JOINT, active=False)
        brake.objtype, brake.name1 = mujoco.mjtObj.mjOBJ_JOINT, f"axis {number}"
        brake.solref, brake.solimp = _deadbeat(step_s), HARD
    try:
        return spec.compile()
    except ValueError as error:  # such as a tensor that no real body has
        raise ConfigurationError(f"{machine.name}: no MuJoCo model: {' '.join(str(error).split())}") from error


def joint_per_axis(leg: schema.Legs) -> float:
    """What joint `axis i` moves per metre of its axis: 1, the slide itself, or the rotor of a screw that twists (rad).

    docs/reference/conventions.md: the rotor of UHU turns against the lower links at -hand times the motor rate.
    """
    drive = screw(leg.drive)
    return -drive.hand * motor_rad_per_m(drive) if leg.kind == "UHU" and drive else 1.0


def motor_rad_per_m(drive: schema.ScrewDrive) -> float:
    """Motor angle over axis travel, and axis force over motor torque."""
    return 2.0 * math.pi * drive.gear_ratio / drive.lead_m


def _add_leg(spec: MjSpec, machine: schema.Machine, number: int) -> None:
    joints, leg = machine.leg[number - 1], schema.effective_leg(machine, number - 1)
    origin_m, rotation = _home(machine.platform)
    base_m = np.array(joints.base_joint_m)
    along = origin_m + rotation @ joints.platform_joint_m - base_m
    frame = _leg_frame(along, np.array(joints.base_axis))
    cross = (0.0, 1.0, 0.0)
    if leg.kind == "RPU":  # y is the R axis, and x the cross axis of the U joint that stands for the R joint
        frame = np.column_stack((frame[:, 1], -frame[:, 0], frame[:, 2]))
        cross = (1.0, 0.0, 0.0)
    rubs = 0.0 if leg.kind == "RPU" else leg.friction.universal_nm_s_rad  # what rubs in S joints: see the plant

    lower = spec.worldbody.add_body(name=f"lower {number}", pos=base_m, quat=_quaternion(frame))
    links = [link for link in leg.links.values() if link.group == "lower"]
    rod = [link for link in leg.links.values() if link.group == "rod"]
    if leg.kind == "UHU":
        links.append(_add_rotor(lower, leg, number))
    elif leg.cell is None:
        links.extend(_slack(link) for link in rod)
    _set_inertia(lower, links)
    _add_universal(lower, frame.T @ joints.base_axis, cross, rubs, f"base {number}")
    end = _add_rod(spec, lower, leg, number, float(np.linalg.norm(along)))

    platform = spec.body("platform")
    platform.add_site(name=f"joint {number}", pos=joints.platform_joint_m)
    upper = [link for link in leg.links.values() if link.group == "upper"]
    if leg.kind != "UHU":
        _connect(spec, end.name, "platform", (0.0, 0.0, 0.0))
    if upper:
        axis = np.array(joints.platform_axis, dtype=np.float64)
        upper_frame = _leg_frame(along, rotation @ axis)
        body_frame = rotation.T @ upper_frame
        body = platform.add_body(name=f"upper {number}", pos=joints.platform_joint_m, quat=_quaternion(body_frame))
        _add_universal(body, body_frame.T @ axis, (0.0, 1.0, 0.0), rubs, f"platform {number}")
        if leg.kind == "UHU":
            half = [_turned(link, np.eye(3), 0.5) for link in upper]
            _set_inertia(body, half)
            _set_inertia(end, [_turned(link, frame.T @ upper_frame) for link in half])
            weld = spec.add_equality(type=mujoco.mjtEq.mjEQ_WELD, name1=end.name, name2=body.name)
            weld.objtype = mujoco.mjtObj.mjOBJ_BODY
            weld.data[:11] = (*[0.0] * 10, 1.0)  # as at home; rows of rotation count as radians at 1 m
            weld.solref, weld.solimp = _deadbeat(spec.option.timestep), HARD
        else:
            _set_inertia(body, upper)
            _connect(spec, end.name, body.name, (0.0, 0.0, -SECOND_POINT_M))


def _add_rod(spec: MjSpec, lower: MjBody, leg: schema.Legs, number: int, length_m: float) -> MjBody:
    """What slides and turns with the base joint, with its motor; returns the body that meets the platform.

    The origins of the sliding bodies are at b_i: where the links' coms are measured from.
    """
    drive, per_axis, twists = screw(leg.drive), joint_per_axis(leg), leg.kind == "UHU"
    rod = {name: link for name, link in leg.links.items() if link.group == "rod"}
    below = {name: link for name, link in rod.items() if leg.cell is None or name in leg.cell.links_below}

    slider = lower.add_body(name=f"slider {number}", pos=(0.0, 0.0, length_m))
    whole = twists or leg.cell is not None
    _set_inertia(slider, [link if whole else _physical(link) for link in below.values()])
    name = f"slide {number}" if twists else f"axis {number}"
    slide = slider.add_joint(name=name, type=mujoco.mjtJoint.mjJNT_SLIDE, axis=(0.0, 0.0, 1.0))
    slide.damping[0], slide.frictionloss = leg.friction.viscous_n_s_m, leg.friction.coulomb_n
    axis = spec.joint(f"axis {number}")
    if drive is not None:
        axis.armature = 0.0 if twists else drive.rotor_inertia_kg_m2 * motor_rad_per_m(drive) ** 2
        axis.damping[0] += drive.viscous_n_s_m / per_axis**2
        axis.frictionloss += drive.coulomb_n / abs(per_axis)
    for joint in (slide, axis):
        joint.solref_friction, joint.solimp_friction = _deadbeat(spec.option.timestep), HARD
    motor = spec.add_actuator(name=f"force {number}", target=axis.name)
    motor.trntype = mujoco.mjtTrn.mjTRN_JOINT
    motor.gear[0] = 1.0 / per_axis

    if drive is None or leg.friction.normal > 0.0:
        slider.add_site(name=f"rod {number}")
        for what, kind in (("pushed", mujoco.mjtSensor.mjSENS_FORCE), ("turned", mujoco.mjtSensor.mjSENS_TORQUE)):
            site = mujoco.mjtObj.mjOBJ_SITE
            spec.add_sensor(name=f"{what} {number}", type=kind, objtype=site, objname=f"rod {number}")
    end = slider
    if drive is not None and twists:
        end = slider.add_body(name=f"nut {number}") if rod else slider
        end.add_joint(name=f"twist {number}", type=mujoco.mjtJoint.mjJNT_HINGE, axis=(0.0, 0.0, 1.0))
        tendon = spec.add_tendon(name=f"screw {number}")
        tendon.wrap_joint(slide.name, 1.0)
        tendon.wrap_joint(f"twist {number}", -drive.hand * drive.lead_m / (2.0 * math.pi))
        tendon.wrap_joint(axis.name, -1.0 / per_axis)
        thread = spec.add_equality(name=f"screw {number}", type=mujoco.mjtEq.mjEQ_TENDON, name1=f"screw {number}")
        thread.objtype = mujoco.mjtObj.mjOBJ_TENDON
        thread.data[:5] = 0.0
        thread.solref, thread.solimp = _deadbeat(spec.option.timestep), HARD
    elif leg.cell is not None:
        end = slider.add_body(name=f"above cell {number}")
        _set_inertia(end, [link for name, link in rod.items() if name not in below])
    end.add_site(name=f"tip {number}")
    if leg.cell is not None:
        spec.add_sensor(
            name=f"cell {number}",
            type=mujoco.mjtSensor.mjSENS_FORCE,
            objtype=mujoco.mjtObj.mjOBJ_SITE,
            objname=f"tip {number}",
        )
    return end


def _add_rotor(lower: MjBody, leg: schema.Legs, number: int) -> schema.Link:
    """The rotor of a screw that twists; returns what the lower links must give away for it.

    Their links contain its mass and transverse inertia; half the axial one of the latter goes with the rotor, because
    no body has an axial inertia alone.
    """
    drive = screw(leg.drive)
    axial_kg_m2 = max(drive.rotor_inertia_kg_m2 if drive else 0.0, ROTOR_LEAST_KG_M2)
    transverse_kg_m2 = 0.5 * axial_kg_m2
    rotor = lower.add_body(name=f"rotor {number}")
    rotor.add_joint(name=f"axis {number}", type=mujoco.mjtJoint.mjJNT_HINGE, axis=(0.0, 0.0, 1.0))
    rotor.explicitinertial = True
    rotor.mass = ROTOR_KG
    rotor.inertia = (transverse_kg_m2, transverse_kg_m2, axial_kg_m2)
    given = (-transverse_kg_m2, 0.0, 0.0), (0.0, -transverse_kg_m2, 0.0), (0.0, 0.0, 0.0)
    return schema.Link("lower", 0.0, (0.0, 0.0, 0.0), given)


def _physical(link: schema.Link) -> schema.Link:
    """The link as a body can be: of a slender rod, whose largest principal moment may be a little more than the other
    two together, that moment is cut to their sum."""
    moments, axes = np.linalg.eigh(link.inertia_kg_m2)
    moments[2] = min(moments[2], (1.0 - 1e-7) * (moments[0] + moments[1]))  # MuJoCo asks for it, rounding included
    return schema.Link(link.group, link.mass_kg, link.com_m, as_tensor((axes * moments) @ axes.T))


def _is_cut(link: schema.Link) -> bool:
    tensor = np.array(link.inertia_kg_m2)
    return bool(np.abs(tensor - _physical(link).inertia_kg_m2).max() > 0.01 * np.abs(tensor).max())


def _slack(link: schema.Link) -> schema.Link:
    """What a rod link gives to the lower links, which turn as it does: what its physical version lacks."""
    tensor = np.subtract(link.inertia_kg_m2, _physical(link).inertia_kg_m2)
    return schema.Link("lower", 0.0, (0.0, 0.0, 0.0), as_tensor(tensor))


def _turned(link: schema.Link, rotation: Array, share: float = 1.0) -> schema.Link:
    """A share of the link, in axes in which its own are the columns of `rotation`."""
    com_m: Array = rotation @ link.com_m
    tensor: Array = share * rotation @ np.array(link.inertia_kg_m2) @ rotation.T
    return schema.Link(link.group, share * link.mass_kg, vector(com_m), as_tensor(tensor))


def _add_universal(body: MjBody, axis: Array, cross: schema.Vector, rubs_nm_s_rad: float, name: str) -> None:
    """A U joint at the origin of `body`: `axis` (body frame) fixed in the parent, then `cross`, the leg's own."""
    for what, direction in (("axis", axis), ("cross", cross)):
        joint = body.add_joint(name=f"{name} {what}", type=mujoco.mjtJoint.mjJNT_HINGE, axis=direction)
        joint.damping[0] = rubs_nm_s_rad


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
    possible = _physical(schema.Link("upper", mass_kg, (0.0, 0.0, 0.0), as_tensor(tensor)))
    if np.abs(possible.inertia_kg_m2 - tensor).max() > 1e-9 * np.abs(tensor).max():
        tensor = np.array(possible.inertia_kg_m2)
    body.explicitinertial = True
    body.mass = mass_kg
    body.ipos = com_m
    body.fullinertia = (tensor[0, 0], tensor[1, 1], tensor[2, 2], tensor[0, 1], tensor[0, 2], tensor[1, 2])


def _deadbeat(step_s: float) -> tuple[float, float]:
    """solref as (-stiffness, -damping): a violation is gone after one step, h v' = h v - h v - x, x' = x + h v' = 0.

    The time-constant form stops at (2h, 1), the same damping with a quarter of the stiffness: closure 4 times worse.
    """
    return -1.0 / step_s**2, -1.0 / step_s


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


def vector(values: ArrayLike) -> schema.Vector:
    """As machine files hold it."""
    x, y, z = (float(value) for value in np.asarray(values))
    return x, y, z


def as_tensor(values: Array) -> schema.Tensor:
    """As machine files hold it, from (3, 3)."""
    a, b, c = (vector(row) for row in values)
    return a, b, c
