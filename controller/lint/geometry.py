"""Is this machine one that can be controlled? Geometry checks that types cannot express.

What can be seen without moving is in `controller.lint.structure`. The rest looks at home and at poses around it:
corners, face centres and seeded random poses of the pose limits, as far as the strokes reach them.
"""

from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller import schema
from controller.errors import ConfigurationError
from controller.lint import structure
from controller.mechanism import layout, posture
from controller.mechanism.layout import Mechanism
from controller.mechanism.model import build, home_pose
from controller.mechanism.platform import rotation_matrix
from controller.records import POSE, Array

SMALLEST_AXIS_ANGLE_DEG = 5.0
NEAR_AXIS_SHARE = 0.02  # of the reachable poses around home: so many may be closer than that
LARGEST_CONDITION = 1e4
LARGEST_CONDITION_IF_SIMILAR = 100.0  # similar hexagons whose coordinates are rounded
SIMILAR = 0.01  # of the platform radius: joints off a similar or affine image of the base joints
CLEARANCE = 0.04  # of the mean leg length at home: centre lines closer than this are legs that touch
SHARED_JOINT = 1e-3  # of the mean leg length at home: joints closer than this are one
NEAR_HOME = 0.1  # of each pose range: this much about home has to be reachable
SHORTER = 0.8  # legs in another order that are together this much shorter are meant in that order
BETTER = 10.0  # or whose condition number is so many times better
SEEDED_POSES = 1000
CONDITION_POSES = 64  # so many of them are enough for what is singular everywhere
MANIFOLD = 1e-6  # m or rad
FREE_COORDINATES = {"free": [0, 1, 2, 3, 4, 5], "spherical": [3, 4, 5], "2r1t": [2, 5, 4]}  # places in POSE


class Scene(NamedTuple):
    """A machine at home and around it; n legs."""

    machine: schema.Machine
    model: Mechanism
    home: Array  # (6,)
    stroke: Array  # (n, 2) m
    boundary: Array  # (k, 6) corners and face centres of the pose limits
    seeded: Array  # (k, 6) random poses inside the pose limits
    reachable: Array  # (k, 6) home, and all of these that lie inside the strokes


class Ends(NamedTuple):
    """Joint centres of all legs at k poses, base axes."""

    base: Array  # (n, 3)
    platform: Array  # (k, n, 3)
    length: Array  # (k, n)
    R: Array  # (k, 3, 3)


def lint(machine: schema.Machine) -> list[str]:
    """What is wrong with a machine; one sentence each, naming the key, the leg and the figure."""
    problems = structure.kinds(machine) or structure.sizes(machine) or _no_length(machine)
    if problems:
        return problems  # nothing that follows would mean anything
    scene = _scene(machine)
    return [problem for check in CHECKS for problem in check(scene)] + structure.inertias(machine)


def require_sound(machine: schema.Machine, path: Path) -> None:
    """Refuse a machine that `lint` finds fault with.

    Raises:
        ConfigurationError: with the first problem.
    """
    problems = lint(machine)
    if problems:
        more = f" (and {len(problems) - 1} more, see `pkm check`)" if len(problems) > 1 else ""
        raise ConfigurationError(f"{path}: {problems[0]}{more}")


# ---------------------------------------------------------------- poses


def reachable_poses(machine: schema.Machine) -> Array:
    """(k, 6): home, and what the strokes reach of corners, face centres and seeded random poses of the pose limits."""
    return _scene(machine).reachable


def _scene(machine: schema.Machine) -> Scene:
    model, home = build(machine), home_pose(machine)
    stroke = np.array([schema.effective_leg(machine, i).limits.length_m for i in range(len(machine.leg))])
    limits = _limits(machine)
    low, high = limits[FREE_COORDINATES[machine.platform.kind]].T
    freedoms = len(low)
    corners = np.array(list(product(*zip(low, high, strict=True))))
    faces = np.tile(0.5 * (low + high), (2 * freedoms, 1))
    np.fill_diagonal(faces[:freedoms], low)
    np.fill_diagonal(faces[freedoms:], high)
    random = np.random.default_rng(0).uniform(low, high, (SEEDED_POSES, freedoms))
    boundary, seeded = (
        _inside(np.array([_pose(machine, home, u) for u in places]), limits)
        for places in (np.vstack([corners, faces]), random)
    )
    around = np.vstack([boundary, seeded])
    reachable = np.vstack([home[None], around[_reached(model, stroke, around)]])
    return Scene(machine, model, home, stroke, boundary, seeded, reachable)


def _limits(machine: schema.Machine) -> Array:
    return np.array([getattr(machine.platform.limits, name) for name in POSE])


def _pose(machine: schema.Machine, home: Array, u: Array) -> Array:
    """Pose (6,) of the free coordinates u."""
    if machine.platform.kind == "free":
        return u.copy()
    if machine.platform.kind == "spherical":
        return np.concatenate([home[:3], u])
    z, a, b = u  # o = z (0, -sin a, cos a), R = Rx(a) Ry(b)
    ca, sa, cb, sb = np.cos(a), np.sin(a), np.cos(b), np.sin(b)
    return np.array([0.0, -z * sa, z * ca, np.arctan2(sa * sb, cb), np.arcsin(ca * sb), np.arctan2(sa, ca * cb)])


def _coordinates(machine: schema.Machine, pose: Array) -> Array:
    """Free coordinates of a pose, of the nearest one if the platform cannot have it: inverse of `_pose`."""
    if machine.platform.kind == "2r1t":
        R = np.empty((3, 3))
        rotation_matrix(pose, R)
        a = np.arctan2(R[2, 1], R[1, 1])
        return np.array([np.cos(a) * pose[2] - np.sin(a) * pose[1], a, np.arctan2(R[0, 2], R[0, 0])])
    return pose[FREE_COORDINATES[machine.platform.kind]]


def _inside(poses: Array, limits: Array) -> Array:
    return poses[np.all((poses >= limits[:, 0] - 1e-12) & (poses <= limits[:, 1] + 1e-12), axis=1)]


def _ends(model: Mechanism, poses: Array) -> Ends:
    base = model.legs[:, layout.BASE_JOINT : layout.BASE_JOINT + 3]
    own = model.legs[:, layout.PLATFORM_JOINT : layout.PLATFORM_JOINT + 3]
    R = np.empty((len(poses), 3, 3))
    for pose, rotation in zip(poses, R, strict=True):
        rotation_matrix(pose, rotation)
    platform = poses[:, None, :3] + own @ R.transpose(0, 2, 1)
    return Ends(base, platform, np.linalg.norm(platform - base, axis=2), R)


def _reached(model: Mechanism, stroke: Array, poses: Array) -> NDArray[np.bool_]:
    length = _ends(model, poses).length
    return np.all((length >= stroke[:, 0]) & (length <= stroke[:, 1]), axis=1)


def _said(pose: Array) -> str:
    return " ".join(f"{name}={value:.3g}" for name, value in zip(POSE, pose, strict=True))


# ---------------------------------------------------------------- checks


def _no_length(machine: schema.Machine) -> list[str]:
    home, R = home_pose(machine), np.empty((3, 3))
    rotation_matrix(home, R)
    return [
        f"leg[{i}].platform_joint_m: leg {i + 1} is 0 m long at home, expected two joints apart"
        for i, leg in enumerate(machine.leg)
        if np.linalg.norm(home[:3] + R @ leg.platform_joint_m - leg.base_joint_m) < 1e-9
    ]


def _home(scene: Scene) -> Iterator[str]:
    """The platform can have its home pose, and it lies inside the limits."""
    for name, value in zip(POSE, scene.home, strict=True):
        low, high = getattr(scene.machine.platform.limits, name)
        if not low <= value <= high:
            yield f"platform.home.{name}: found {value:g}, expected inside its limits [{low:g}, {high:g}]"
    nearest = _pose(scene.machine, scene.home, _coordinates(scene.machine, scene.home))
    off = float(np.abs(nearest - scene.home).max())
    if off > MANIFOLD:
        yield f"platform.home: {off:.3g} m or rad off what a {scene.machine.platform.kind} platform can do, expected 0"


def _axes(scene: Scene) -> Iterator[str]:
    """No fixed U axis along its leg, at home or around it."""
    ends = _ends(scene.model, scene.reachable)
    n = (ends.platform - ends.base) / ends.length[:, :, None]
    for i, leg in enumerate(scene.machine.leg):
        axes = {"base_axis": np.broadcast_to(leg.base_axis, (len(n), 3))}
        if leg.platform_axis is not None:
            axes["platform_axis"] = ends.R @ leg.platform_axis
        for name, axis in axes.items():
            across = np.linalg.norm(np.cross(n[:, i], axis), axis=1) / np.linalg.norm(axis, axis=1)
            angle_deg = np.degrees(np.arcsin(np.minimum(1.0, across)))
            near, worst = int((angle_deg < SMALLEST_AXIS_ANGLE_DEG).sum()), int(angle_deg.argmin())
            if angle_deg[0] < SMALLEST_AXIS_ANGLE_DEG:
                where, worst = "at home", 0
            elif near > max(2, NEAR_AXIS_SHARE * len(n)):
                where = f"at {near} of {len(n)} reachable poses too close, worst at {_said(scene.reachable[worst])}:"
            else:
                continue
            yield (
                f"leg[{i}].{name}: {where} {angle_deg[worst]:.2f} degrees from the line of leg {i + 1}, expected at "
                f"least {SMALLEST_AXIS_ANGLE_DEG:g}: the U joint is singular there"
            )


def _strokes(scene: Scene) -> Iterator[str]:
    """Home lies inside the strokes."""
    for i, length in enumerate(_ends(scene.model, scene.home[None]).length[0]):
        low, high = scene.stroke[i]
        if not low <= length <= high:
            yield (
                f"legs.limits.length_m: leg {i + 1} has {length:.4f} m at home, expected inside its stroke "
                f"[{low:g}, {high:g}] m"
            )


def _workspace(scene: Scene) -> Iterator[str]:
    """The strokes reach some way from home along each coordinate; said of the coordinate that is worst."""
    machine, model = scene.machine, scene.model
    if not _reached(model, scene.stroke, scene.home[None]).all():
        return  # said already
    free = FREE_COORDINATES[machine.platform.kind]
    centre, limits = _coordinates(machine, scene.home), _limits(machine)[free]
    worst = (0.0, "", 0.0, 0, 0.0)
    for j, (low, high) in enumerate(limits):
        for sign in (-1.0, 1.0):
            u = centre.copy()
            u[j] = np.clip(u[j] + sign * NEAR_HOME * (high - low), low, high)
            length = _ends(model, _pose(machine, scene.home, u)[None]).length[0]
            missing = np.maximum(scene.stroke[:, 0] - length, length - scene.stroke[:, 1])
            i = int(missing.argmax())
            worst = max(worst, (float(missing[i]), POSE[free[j]], float(u[j]), i, float(length[i])))
    missing, name, value, i, length = worst
    if missing > 0.0:
        reached = int(_reached(model, scene.stroke, scene.boundary).sum())
        low, high = scene.stroke[i]
        yield (
            f"legs.limits.length_m: {name}={value:.4g}, {100 * NEAR_HOME:g} % of its range from home, needs "
            f"{length:.4f} m of leg {i + 1}, expected inside its stroke [{low:g}, {high:g}] m; of the "
            f"{len(scene.boundary)} corners and face centres of the pose limits {reached} are reachable"
        )


def _singular(scene: Scene) -> Iterator[str]:
    """The legs can hold the platform at home; if not, whether anywhere, and why."""
    at_home = _condition(scene.model, scene.home)
    around = np.array([_condition(scene.model, pose) for pose in scene.seeded[:CONDITION_POSES]])
    image = _image_of_base(scene)
    limit = LARGEST_CONDITION_IF_SIMILAR if image else LARGEST_CONDITION
    if at_home <= limit:
        return
    said = f"leg: condition number of the Jacobian at home is {at_home:.3g}, expected below {limit:.0e}"
    regular = int((around <= limit).sum())
    if regular or not len(around):
        yield (
            f"{said}: singular at home, but not at {regular} of {len(around)} poses around it: the legs cannot hold "
            "the platform where it starts"
        )
    else:
        yield (
            f"{said}, and no less than {around.min():.3g} at {len(around)} poses around it, architecturally singular"
            f"{': ' + image if image else ''}: the legs cannot hold the platform anywhere"
        )


def _condition(model: Mechanism, pose: Array) -> float:
    try:
        return posture.condition(model, pose)
    except np.linalg.LinAlgError:  # not a number where an axis lies along its leg
        return float("inf")


def _image_of_base(scene: Scene) -> str:
    """Whether the platform joints are a similar or an affine image of the base joints, leg by leg."""
    if scene.machine.platform.kind != "free":
        return ""
    base = np.array([leg.base_joint_m for leg in scene.machine.leg])
    platform = np.array([leg.platform_joint_m for leg in scene.machine.leg])
    base, platform = base - base.mean(axis=0), platform - platform.mean(axis=0)
    radius = np.linalg.norm(platform, axis=1).max()
    U, stretch, V = np.linalg.svd(base.T @ platform)
    scale = stretch.sum() / (base**2).sum()
    off = np.linalg.norm(scale * base @ U @ V - platform, axis=1).max() / radius
    if off < SIMILAR:
        return f"similar base and platform hexagons (scale {scale:.3g}, joints within {100 * off:.2g} % of the radius)"
    W, size, _ = np.linalg.svd(base, full_matrices=False)
    span = W[:, size > 1e-6 * size[0]]  # every affine image of the base joints is in it
    affine = span @ (span.T @ platform)
    off = np.linalg.norm(affine - platform, axis=1).max() / radius
    if off < SIMILAR:
        return f"affine base and platform hexagons (joints within {100 * off:.2g} % of the radius)"
    return ""


def _clearance(scene: Scene) -> Iterator[str]:
    """No two legs touch, at home or around it."""
    ends = _ends(scene.model, scene.reachable)
    mean = ends.length[0].mean()
    for (i, j), apart in _distances(ends).items():
        worst = 0 if apart[0] < CLEARANCE * mean else int(apart.argmin())
        if apart[worst] < CLEARANCE * mean:
            where = "at home" if worst == 0 else f"at {_said(scene.reachable[worst])}"
            yield (
                f"leg[{i}], leg[{j}]: {where} the centre lines of legs {i + 1} and {j + 1} are {apart[worst]:.4f} m "
                f"apart, expected at least {CLEARANCE * mean:.4f} m, {100 * CLEARANCE:g} % of the leg length: the legs "
                "touch or cross"
            )


def _distances(ends: Ends) -> dict[tuple[int, int], Array]:
    """Smallest distance (k,) between the centre lines of each pair of legs that do not share a joint."""
    found: dict[tuple[int, int], Array] = {}
    shared = SHARED_JOINT * ends.length[0].mean()
    for i, j in combinations(range(len(ends.base)), 2):
        if min(_apart(ends.base, i, j), _apart(ends.platform[0], i, j)) > shared:
            found[i, j] = _between(ends.base[i], ends.platform[:, i], ends.base[j], ends.platform[:, j])
    return found


def _apart(points: Array, i: int, j: int) -> float:
    return float(np.linalg.norm(points[i] - points[j]))


def _between(a: Array, a_end: Array, b: Array, b_end: Array) -> Array:
    """Distance (k,) of the line segments from a to a_end and from b to b_end; starts (3,), ends (k, 3)."""
    u, v, r = a_end - a, b_end - b, a - b
    uu, vv, uv = (u * u).sum(axis=1), (v * v).sum(axis=1), (u * v).sum(axis=1)
    ur, vr = u @ r, v @ r
    det = uu * vv - uv * uv  # 0 for parallel lines: start anywhere
    s = np.clip(np.where(det > 1e-12 * uu * vv, uv * vr - ur * vv, 0.0) / np.maximum(det, 1e-12 * uu * vv), 0.0, 1.0)
    t = np.clip((uv * s + vr) / vv, 0.0, 1.0)
    s = np.clip((uv * t - ur) / uu, 0.0, 1.0)
    return np.linalg.norm(r + s[:, None] * u - t[:, None] * v, axis=1)


def _leg_order(scene: Scene) -> Iterator[str]:
    """Where legs are in trouble or long, another order of the platform joints with shorter sound legs is meant."""
    now = _order_at_home(scene, list(range(len(scene.machine.leg))))
    best, best_order = now, [0]
    for order in _orders(scene):
        tried = _order_at_home(scene, order)
        clearly = tried.length < SHORTER * now.length or BETTER * tried.condition < now.condition
        if tried.sound and tried.length < best.length and (clearly or not now.sound):
            best, best_order = tried, order
    moved = [i for i, k in enumerate(best_order) if i != k]
    if moved:
        yield (
            f"leg[{moved[0]}].platform_joint_m: wrong order of legs {_numbers(moved)}: found {now.length:.3f} m of "
            f"legs in all at home and condition number {now.condition:.3g}, expected {best.length:.3f} m and "
            f"{best.condition:.3g} as with the platform joints of legs {_numbers([best_order[i] for i in moved])} in "
            "their place"
        )


class Order(NamedTuple):
    """A machine at home with its platform joints in some order."""

    length: float  # m, of all legs
    condition: float
    sound: bool  # the legs are inside their strokes, do not touch and can hold the platform


def _order_at_home(scene: Scene, order: list[int]) -> Order:
    legs = scene.model.legs.copy()
    columns = slice(layout.PLATFORM_JOINT, layout.PLATFORM_JOINT + 3)
    legs[:, columns] = scene.model.legs[order, columns]
    model = scene.model._replace(legs=legs)
    ends, condition = _ends(model, scene.home[None]), _condition(model, scene.home)
    clear = all(apart[0] >= CLEARANCE * ends.length.mean() for apart in _distances(ends).values())
    reached = bool(_reached(model, scene.stroke, scene.home[None])[0])
    return Order(float(ends.length.sum()), condition, clear and reached and condition <= LARGEST_CONDITION)


def _numbers(places: list[int]) -> str:
    return " ".join(str(i + 1) for i in places)


def _orders(scene: Scene) -> Iterator[list[int]]:
    """For each leg whose platform joint it gets: two exchanged, or all moved on round the platform."""
    n = len(scene.machine.leg)
    for i, j in combinations(range(n), 2):
        order = list(range(n))
        order[i], order[j] = j, i
        yield order
    joints = np.array([leg.platform_joint_m for leg in scene.machine.leg])
    joints = joints - joints.mean(axis=0)
    around = [int(i) for i in np.argsort(np.arctan2(joints[:, 1], joints[:, 0]))]
    for shift in range(1, n):
        order = list(range(n))
        for k in range(n):
            order[around[k]] = around[(k + shift) % n]
        yield order


CHECKS = (_home, _axes, _strokes, _singular, _clearance, _workspace, _leg_order)
