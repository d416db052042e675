"""Inverse dynamics beside Pinocchio, MuJoCo and Lagrange's equations; its cost against legs and links. Ratios.

    python -m benchmarks.peers

Within a table the candidates take turns, round by round, so that other load meets all of them; figures are medians
of the process's CPU time. Microseconds differ from machine to machine: read the ratios.
Candidates that yield forces of the closed machine are checked against the kernel.
"""

import math
import statistics
import time
import tomllib
from collections.abc import Callable
from typing import Any

import mujoco
import numba
import numpy as np
import pinocchio as pin
from msgspec.structs import replace
from numba import types

from benchmarks.simplifications import States, plane_tilt, random_states
from controller import schema
from controller.cycle import cycle
from controller.mechanism import dynamics, layout
from controller.mechanism.compile import f64, inline, v2, v3
from controller.mechanism.layout import MECHANISM, Mechanism
from controller.mechanism.model import build
from controller.mechanism.spatial import Vec, add, cross, dot, solve, symmetric, triple
from controller.records import Array, RequestKind, Timing, channels, pack
from controller.settings import load_machine
from tests.machines import CELLS, MACHINES, NOTHING, Bench, ask
from tests.oracles import pinocchio_tree as oracle

ROUNDS = 151
SLICE_S = 1e-3  # of one candidate in one round
BATCH = 500
FEW = 50  # states in the checks and in what is called state by state

Calls = dict[str, tuple[Callable[[], object], int]]  # by name: what to call, states it treats


def microseconds(calls: Calls) -> dict[str, float]:
    """Median time per state of each, µs; the candidates take turns, in a new order each round."""
    shuffle, order = np.random.default_rng(1).shuffle, list(calls.items())
    repeats: dict[str, int] = {}
    for name, (call, _) in calls.items():
        call()
        begin = time.process_time()
        call()
        repeats[name] = max(1, int(SLICE_S / (time.process_time() - begin)))
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        shuffle(order)
        for name, (call, states) in order:
            begin = time.process_time()
            for _ in range(repeats[name]):
                call()
            rounds[name].append((time.process_time() - begin) / repeats[name] / states)
    return {name: 1e6 * statistics.median(times) for name, times in rounds.items()}


def table(title: str, calls: Calls, base: str, notes: dict[str, str] | None = None) -> dict[str, float]:
    """Time the calls and print them beside `base`."""
    figures = microseconds(calls)
    print(f"\n{title}\n{'':<66} {'µs':>8} {'ratio':>8}")
    for name, value in figures.items():
        print(f"{name:<66} {value:8.2f} {value / figures[base]:8.2f}  {(notes or {}).get(name, '')}", flush=True)
    return figures


def batch(machine: Mechanism, states: States) -> tuple[Callable[[], Array], int]:
    """The kernel over all states in one call."""
    wrench, f = np.zeros_like(states.x), np.empty((len(states.x), len(machine.legs)))
    f_cell = np.empty_like(f)

    def call() -> Array:
        dynamics.inverse_dynamics_batch(machine, *states, wrench, f, f_cell)
        return f

    return call, len(states.x)


def one_by_one(machine: Mechanism, states: States) -> tuple[Callable[[], None], int]:
    """The kernel called from Python for every state."""
    wrench, f = np.zeros(6), np.empty((2, len(machine.legs)))

    def call() -> None:
        for x, xd, xdd in zip(*states, strict=True):
            dynamics.inverse_dynamics(machine, x, xd, xdd, wrench, f[0], f[1])

    return call, len(states.x)


def checked(name: str, found: Array, exact: Array, line: float) -> str:
    error = float(np.abs(found - exact).max() / np.abs(exact).max())
    assert error < line, f"{name} is {error:.1e} off the kernel"
    return f"agrees to {error:.0e}"


def first(states: States, count: int) -> States:
    return States(*(part[:count].copy() for part in states))


def load(name: str) -> tuple[schema.Machine, Mechanism]:
    file, _ = load_machine(MACHINES / f"{name}.toml")
    return file, build(file)


# ---------------------------------------------------------------- Pinocchio


WORLD_AXES = pin.LOCAL_WORLD_ALIGNED


def crossed(a: Array, b: Array) -> Array:
    """a x b of arrays (..., 3), several times faster than NumPy's for small ones."""
    x, y, z, u, v, w = a[..., 0], a[..., 1], a[..., 2], b[..., 0], b[..., 1], b[..., 2]
    out = np.empty(np.broadcast_shapes(a.shape, b.shape))
    out[..., 0], out[..., 1], out[..., 2] = y * w - z * v, z * u - x * w, x * v - y * u
    return out


def closed_upru(tree: oracle.Oracle) -> Callable[[Array, Array, Array], Array]:
    """What a user of Pinocchio adds for a 6-UPRU: (q, platform rate, platform acceleration) to leg forces.

    The positions of the tree are given. All legs at once from Pinocchio's joint Jacobians (world axes, at the world's
    origin); forces on the motions that the closure leaves (coordinate partitioning).
    """
    model, data = tree.model, tree.data
    bases = [model.joints[model.getJointId(f"leg{i}/base")].idx_v for i in range(1, 7)]
    columns = np.array([[at, at + 1, s, p] for at, s, p in zip(bases, tree.slide_idx, tree.passive_idx, strict=True)])
    tips = [model.getJointId(f"leg{i}/passive") for i in range(1, 7)]
    platform = model.getJointId("platform/orientation")
    joints = np.array([leg.platform_joint_m for leg in tree.machine.legs])
    axes = np.array([leg.platform_axis for leg in tree.machine.legs])
    v, a = np.zeros(model.nv), np.zeros(model.nv)

    def call(q: Array, xd: Array, xdd: Array) -> Array:
        pin.computeJointJacobians(model, data, q)
        J = data.J
        place = data.oMi[platform]
        R = place.rotation
        b, p = joints @ R.T + place.translation, axes @ R.T
        y = np.array([data.oMi[tip].rotation[:, 1] for tip in tips])
        c = crossed(y, p)

        lever = np.zeros((6, 3, 3))
        lever[:, 0, 1], lever[:, 0, 2], lever[:, 1, 2] = -b[:, 2], b[:, 1], -b[:, 0]
        lever -= lever.transpose(0, 2, 1)

        def rows(J: Array) -> Array:  # of columns (6, ..., k): point b and c . angular, (6 legs, 4, k)
            point = J[:, :3] - lever @ J[:, 3:]
            return np.concatenate([point, c[:, None] @ J[:, 3:]], 1)

        legs = rows(J[:, columns].transpose(1, 0, 2))
        body = rows(np.broadcast_to(J[:, :6], (6, 6, 6)))
        inverse = np.linalg.inv(legs)
        motion = inverse @ body  # (6, 4, 6): leg coordinates from platform coordinates
        v[:6], a[:6] = xd, xdd
        v[columns] = motion @ xd
        a[columns] = 0.0  # then what the tips lack is what the legs have to accelerate
        pin.forwardKinematics(model, data, q, v, a)
        acc = [pin.getClassicalAcceleration(model, data, joint, WORLD_AXES).vector for joint in (platform, *tips)]
        acc = np.array(acc)
        w, wl = J[3:, :6] @ xd, np.einsum("jlk,lk->lj", J[3:, columns], v[columns])
        arm = b - place.translation
        lacking = np.empty((6, 4))
        lacking[:, :3] = acc[0, :3] - acc[1:, :3] + crossed(acc[0, 3:], arm) + crossed(w, crossed(w, arm))
        turning = crossed(crossed(wl, y), p) + crossed(y, crossed(w, p))
        lacking[:, 3] = (c * (acc[0, 3:] - acc[1:, 3:]) - turning * (wl - w)).sum(1)
        a[columns] = (inverse @ lacking[:, :, None])[:, :, 0]
        tau = pin.rnea(model, data, q, v, a)
        needed = tau[:6] + (motion.transpose(0, 2, 1) @ tau[columns][:, :, None])[:, :, 0].sum(0)
        return np.linalg.solve(motion[:, 2].T, needed)

    return call


def beside_pinocchio() -> None:
    file, model = load("6-upru")
    states = random_states(file, model, BATCH)
    data = tomllib.loads((MACHINES / "6-upru.toml").read_text())
    calls: Calls = {"kernel, batch": batch(model, states)}
    calls["kernel, called from Python"] = one_by_one(model, first(states, FEW))
    notes: dict[str, str] = {}
    exact = calls["kernel, batch"][0]()
    for cells in (False, True):
        tree = oracle.build_oracle(oracle.machine_from_toml(data), cells=cells)
        rows = [oracle.solve_state(tree, *(part[k] for part in states)) for k in range(FEW)]
        Q, V, A = (np.array([row[j] for row in rows]) for j in range(3))
        name = f"rnea, {tree.model.nv} coordinates{' (with cells)' if cells else ''}"

        def called(tree: oracle.Oracle = tree, rows: list[Any] = rows) -> None:
            for q, v, a in rows:
                pin.rnea(tree.model, tree.data, q, v, a)

        calls[f"{name}, called from Python"] = (called, FEW)
        pool, tau = pin.ModelPool(tree.model, 1), np.empty((tree.model.nv, BATCH), order="F")
        many = [np.asfortranarray(np.tile(part.T, BATCH // FEW)) for part in (Q, V, A)]
        calls[f"{name}, batch in C++, 1 thread"] = (
            lambda pool=pool, many=many, tau=tau: pin.rneaInParallel(1, pool, *many, tau), BATCH,
        )  # fmt: skip
        if cells:
            continue

        def calls_alone(tree: oracle.Oracle = tree, rows: list[Any] = rows) -> None:
            for q, v, a in rows:
                pin.computeJointJacobians(tree.model, tree.data, q)
                pin.forwardKinematics(tree.model, tree.data, q, v, a)
                pin.rnea(tree.model, tree.data, q, v, a)

        close = closed_upru(tree)

        def closed(rows: list[Any] = rows, close: Callable[[Array, Array, Array], Array] = close) -> Array:
            return np.array([close(row[0], states.xd[k], states.xdd[k]) for k, row in enumerate(rows)])

        name = "rnea and closure, positions given, NumPy called from Python"
        notes[name] = checked(name, closed(), exact[:FEW], 1e-9)
        calls["the Pinocchio calls of the next line alone"] = (calls_alone, FEW)
        calls[name] = (closed, FEW)
    table(
        "6-UPRU, a state: the kernel (leg and cell forces of the closed machine) beside Pinocchio's rnea (generalised\n"
        "forces of the open tree only) and beside rnea with the closure solved; ratio to the batch",
        calls,
        "kernel, batch",
        notes,
    )


# ---------------------------------------------------------------- MuJoCo


def mujoco_ups(file: schema.Machine) -> mujoco.MjModel:
    """The open tree of a 6-UPS with the oracle's coordinates. No equalities: mj_inverse means nothing with them."""
    spec, home = mujoco.MjSpec(), file.platform.home
    spec.compiler.degree = False
    friction, slide, hinge = file.legs.friction, mujoco.mjtJoint.mjJNT_SLIDE, mujoco.mjtJoint.mjJNT_HINGE
    unit = np.eye(3)

    def inertial(body: Any, link: schema.Link | schema.Platform) -> None:
        body.explicitinertial, body.mass, body.ipos = True, link.mass_kg, link.com_m
        tensor = np.array(link.inertia_kg_m2)
        body.fullinertia = [*np.diag(tensor), tensor[0, 1], tensor[0, 2], tensor[1, 2]]

    platform = spec.worldbody.add_body(name="platform")
    inertial(platform, file.platform)
    for axis in unit:
        platform.add_joint(type=slide, axis=axis)
    for axis in unit[::-1]:
        platform.add_joint(type=hinge, axis=axis)
    place = oracle.pose_placement((home.x_m, home.y_m, home.z_m, home.yaw_rad, home.pitch_rad, home.roll_rad))
    for leg in file.leg:
        line = place.act(np.array(leg.platform_joint_m)) - leg.base_joint_m
        axis = np.array(leg.base_axis) / np.linalg.norm(leg.base_axis)
        n = line / np.linalg.norm(line)
        y = np.cross(axis, n) / np.linalg.norm(np.cross(axis, n))
        frame = np.column_stack([np.cross(y, n), y, n])
        quat = np.empty(4)
        mujoco.mju_mat2Quat(quat, frame.ravel())
        lower = spec.worldbody.add_body(pos=leg.base_joint_m, quat=quat)
        inertial(lower, file.legs.links["cylinder"])
        for turn in (frame.T @ axis, unit[1]):
            lower.add_joint(type=hinge, axis=turn, damping=friction.universal_nm_s_rad)
        rod = lower.add_body()
        inertial(rod, file.legs.links["rod"])
        rod.add_joint(type=slide, axis=unit[2], damping=friction.viscous_n_s_m)
    return spec.compile()


def beside_mujoco() -> None:
    file, model = load("6-ups")
    model.legs[:, layout.SPHERICAL_FRICTION] = 0.0  # a tree has no S joint that could rub
    states = random_states(file, model, BATCH)
    data = tomllib.loads((MACHINES / "6-ups.toml").read_text())
    tree = oracle.build_oracle(oracle.machine_from_toml(data), cells=False)
    rows = [oracle.solve_state(tree, *(part[k] for part in states)) for k in range(FEW)]
    m = mujoco_ups(file)
    d = mujoco.MjData(m)
    arms = np.array([leg.platform_joint_m for leg in file.leg])
    platform, forces = m.body("platform").id, np.empty((FEW, 6))

    def inverse() -> None:
        for row in rows:
            d.qpos, d.qvel, d.qacc = row
            mujoco.mj_inverse(m, d)

    def projected() -> Array:
        for k, row in enumerate(rows):
            d.qpos, d.qvel, d.qacc = row
            mujoco.mj_inverse(m, d)
            b = arms @ d.xmat[platform].reshape(3, 3).T + d.xpos[platform]
            axes, anchors = d.xaxis, d.xanchor
            legs = axes[6:].reshape(6, 3, 3).copy()  # (leg, joint, xyz)
            legs[:, :2] = crossed(legs[:, :2], b[:, None] - anchors[6:].reshape(6, 3, 3)[:, :2])
            body = np.empty((6, 6, 3))
            body[:, :3], body[:, 3:] = axes[:3], crossed(axes[3:6], b[:, None] - anchors[3:6])
            motion = np.linalg.solve(legs.transpose(0, 2, 1), body.transpose(0, 2, 1))  # leg from platform coordinates
            tau = d.qfrc_inverse
            needed = tau[:6] + np.einsum("lkj,lk->j", motion, tau[6:].reshape(6, 3))
            forces[k] = np.linalg.solve(motion[:, 2].T, needed)
        return forces

    whole = batch(model, states)
    name = "mj_inverse and projection, motion of the tree given, NumPy"
    notes = {name: checked(name, projected(), whole[0]()[:FEW], 1e-6)}
    table(
        "6-UPS, a state: the kernel beside MuJoCo's mj_inverse (open tree without equalities, called from Python)\n"
        "and beside mj_inverse projected with the closure's Jacobian; ratio to the batch",
        {
            "kernel, batch": whole,
            "kernel, called from Python": one_by_one(model, first(states, FEW)),
            "mj_inverse": (inverse, FEW),
            name: (projected, FEW),
        },
        "kernel, batch",
        notes,
    )


# ---------------------------------------------------------------- one cycle


def whole_cycle() -> None:
    bench = Bench()
    bench.ready()
    bench.step(ask(RequestKind.SINE, 0.05 * np.ones(6), frequency_hz=0.3))
    bench.run(150)
    samples: list[Any] = []
    bench.broken = lambda sample: samples.append(sample) or sample
    bench.run(1)
    row, state, sample = np.empty(len(channels(6, CELLS))), bench.state, samples[-1]

    def call() -> None:
        _, output = cycle(bench.setup, state, sample, NOTHING)
        pack(row, sample, NOTHING, output, Timing(0.0, 0.0, 0.0, 0, 0))

    file, model = load("6-upru")  # the machine of the simulation site
    name = "cycle() and packing its row"
    states = random_states(file, model, FEW)
    figures = table(
        "One tick of the control law beside its own inverse dynamics, both called from Python",
        {"kernel, called from Python": one_by_one(model, states), name: (call, 1)},
        "kernel, called from Python",
    )
    print(f"cycle() takes {figures[name] / 100.0:.2f} % of a 10 ms tick")


# ---------------------------------------------------------------- legs and links


def against_legs() -> None:
    calls: Calls = {}
    for name in ("3-ups-s", "2-upr-2-rpu", "6-ups"):
        file, model = load(name)
        model.legs[:, layout.UNIVERSAL_FRICTION : layout.NORMAL_FRICTION + 1] = 0.0
        calls[f"{len(model.legs)} legs ({name})"] = batch(model, random_states(file, model, BATCH))
    base = next(iter(calls))
    figures = table("The same kernel in batches on 3, 4 and 6 legs, friction off; ratio to 3 legs", calls, base)
    print("µs a leg: " + ", ".join(f"{name}: {figures[name] / int(name[0]):.3f}" for name in calls))


def split(machine: schema.Machine, parts: int) -> schema.Machine:
    """The same machine with its rods cut into `parts` links of the same total mass, first moment and inertia."""
    rod = machine.legs.links["rod"]
    along = np.linspace(-0.1, 0.1, parts) if parts > 1 else np.zeros(1)
    inertia = np.array(rod.inertia_kg_m2) / parts
    inertia -= rod.mass_kg / parts * np.mean(along**2) * np.diag([1.0, 1.0, 0.0])
    links = {"cylinder": machine.legs.links["cylinder"]}
    for k, z in enumerate(along):
        com = (rod.com_m[0], rod.com_m[1], rod.com_m[2] + float(z))
        tensor: Any = tuple(tuple(float(x) for x in line) for line in inertia)
        links[f"rod {k}"] = schema.Link("rod", rod.mass_kg / parts, com, tensor)
    return replace(machine, legs=replace(machine.legs, links=links))


def against_links() -> None:
    file, model = load("6-ups")
    states = random_states(file, model, BATCH)
    exact = batch(model, states)[0]().copy()
    calls: Calls = {}
    notes: dict[str, str] = {}
    for parts in (1, 2, 3, 5, 10):
        name = f"rod of {parts} link{'s' * (parts > 1)}"
        machine = build(split(file, parts))
        calls[name] = batch(machine, states)
        notes[name] = checked(name, calls[name][0](), exact, 1e-12)
    table(
        "6-UPS, the same rod cut into 1 to 10 links (beside the cylinder): the kernel in batches; ratio to 1 link.\n"
        "Links that turn together are one rigid group once the machine is built, so the ratio has to be 1",
        calls,
        "rod of 1 link",
        notes,
    )


# ---------------------------------------------------------------- Lagrange


@inline
def put_body(M: Array, force: Array, mass: float, h: Vec, turning: Array, hg: Vec, g: Vec, v: Any, w: Any) -> None:
    """Add a rigid body to M (3, 3) and to the gradient of its potential; v, w: its velocities per coordinate, own axes.

    h and `turning` (six columns): first moment and inertia about the point that v is the velocity of; hg: first moment
    for gravity, about which links that do not move along count as well.
    """
    for i in range(3):
        force[i] -= mass * dot(v[i], g) + dot(w[i], cross(hg, g))
        for j in range(3):
            M[i, j] += (
                mass * dot(v[i], v[j])
                + dot(v[i], cross(w[j], h))
                + dot(v[j], cross(w[i], h))
                + dot(w[i], symmetric(turning, 0, w[j]))
            )


@inline
def kinetic(machine: Mechanism, z: float, a: float, b: float, M: Array, force: Array, L: Array) -> None:
    """M (3, 3), gradient of the potential (3,) and L = dl/du (4, 3) of a 2-UPR/2-RPU; u = z, a, b."""
    M[:, :], force[:] = 0.0, 0.0
    platform = machine.platform
    ca, sa, cb, sb = math.cos(a), math.sin(a), math.cos(b), math.sin(b)
    down = platform[layout.GRAVITY + 2]
    gy, gz = sa * down, ca * down  # gravity in the plane that turns with a
    zero = (0.0, 0.0, 0.0)
    h = triple(platform, layout.MOMENT)
    v = ((-sb, 0.0, cb), (0.0, -z, 0.0), zero)
    w = (zero, (cb, 0.0, sb), (0.0, 1.0, 0.0))
    turning = platform[layout.INERTIA : layout.INERTIA + 6]
    put_body(M, force, platform[layout.MASS], h, turning, h, (-sb * gz, gy, cb * gz), v, w)
    for i in range(machine.legs.shape[0]):
        row = machine.legs[i]
        if row[layout.BASE_REVOLUTE] == 0.0:  # in the plane that turns with a
            p, s = row[layout.PLATFORM_JOINT], row[layout.BASE_JOINT]
            height = z - p * sb
            dx, dz = p * cb - s, height
            length = math.sqrt(dx * dx + dz * dz)
            st, ct = dx / length, dz / length
            rate_z, rate_b = ct, -st * p * sb - ct * p * cb
            turn_z, turn_b = -st / length, (-ct * p * sb + st * p * cb) / length
            v = ((-length * turn_z, 0.0, rate_z), (0.0, height, 0.0), (-length * turn_b, 0.0, rate_b))
            w = ((0.0, -turn_z, 0.0), (-ct, 0.0, st), (0.0, -turn_b, 0.0))
            g = (st * gz, -gy, ct * gz)
            L[i, 0], L[i, 1], L[i, 2] = rate_z, 0.0, rate_b
        else:  # in the plane x = 0
            p, s = row[layout.PLATFORM_JOINT + 1], row[layout.BASE_JOINT + 1]
            y, height = p * ca - z * sa, p * sa + z * ca
            dy = y - s
            length = math.sqrt(dy * dy + height * height)
            ny, nz = dy / length, height / length
            rate_z, rate_a = -sa * ny + ca * nz, -height * ny + y * nz
            across_z, across_a = sa * nz + ca * ny, height * nz + y * ny
            v = ((across_z, 0.0, rate_z), (across_a, 0.0, rate_a), zero)
            w = ((0.0, across_z / length, 0.0), (0.0, across_a / length, 0.0), zero)
            g = (ny * down, 0.0, nz * down)
            L[i, 0], L[i, 1], L[i, 2] = rate_z, rate_a, 0.0
        h = triple(row, layout.ROD_MOMENT)
        hg = add(h, triple(row, layout.LOWER_MOMENT))
        put_body(M, force, row[layout.ROD_MASS], h, row[layout.BASE_INERTIA : layout.BASE_INERTIA + 6], hg, g, v, w)


STEP = 1e-5  # m, rad


# Compiled like the kernels, but not cached: a cache would not notice a change of the columns.
@numba.njit(types.void(MECHANISM, v2, v2, v2, v2, v3, v2), nogil=True, error_model="numpy")
def lagrange_batch(machine: Mechanism, u: Array, ud: Array, udd: Array, f: Array, D: Array, work: Array) -> None:
    """Leg forces f (N, 4) by Lagrange's equations; scratch D (4, 3, 3), work (8, 3)."""
    M, force, L, idle, N = D[3], work[0], work[1:5], work[5], work[6]
    A, tau = np.empty((3, 3)), N
    other = np.empty((4, 3))
    for k in range(u.shape[0]):
        at = (u[k, 0], u[k, 1], u[k, 2])
        for j in range(3):
            step = (STEP * (j == 0), STEP * (j == 1), STEP * (j == 2))
            kinetic(machine, at[0] - step[0], at[1] - step[1], at[2] - step[2], M, idle, other)
            D[j, :, :] = M
            kinetic(machine, at[0] + step[0], at[1] + step[1], at[2] + step[2], M, idle, other)
            for i in range(3):
                for l in range(3):  # noqa: E741
                    D[j, i, l] = (M[i, l] - D[j, i, l]) / (2.0 * STEP)
        kinetic(machine, at[0], at[1], at[2], M, force, L)
        for i in range(3):  # M u'' + M' u' - 1/2 d(u' M u')/du + dV/du
            tau[i] = force[i]
            for j in range(3):
                tau[i] += M[i, j] * udd[k, j]
                for l in range(3):  # noqa: E741
                    tau[i] += (D[l, i, j] - 0.5 * D[i, j, l]) * ud[k, j] * ud[k, l]
        for i in range(3):
            for j in range(3):
                A[i, j] = 0.0
                for l in range(4):  # noqa: E741
                    A[i, j] += L[l, i] * L[l, j]
        solve(A, tau, 3)
        for l in range(4):  # noqa: E741
            f[k, l] = L[l, 0] * tau[0] + L[l, 1] * tau[1] + L[l, 2] * tau[2]


@numba.njit(f64(MECHANISM, v2, v3, v2), nogil=True, error_model="numpy")
def kinetic_batch(machine: Mechanism, u: Array, D: Array, work: Array) -> float:
    """M and the potential's gradient alone: what no Lagrange form can do without."""
    total = 0.0
    for k in range(u.shape[0]):
        kinetic(machine, u[k, 0], u[k, 1], u[k, 2], D[0], work[0], work[1:5])
        total += D[0, 0, 0]
    return total


def two_formulations() -> None:
    file, model = load("2-upr-2-rpu")
    rng, limits, motion = np.random.default_rng(1), file.platform.limits, file.platform.motion
    box = np.array([limits.z_m, limits.roll_rad, limits.pitch_rad])
    speed = [motion.speed_m_s, motion.speed_rad_s, motion.speed_rad_s]
    acceleration = [motion.acceleration_m_s2, motion.acceleration_rad_s2, motion.acceleration_rad_s2]
    u = rng.uniform(box[:, 0], box[:, 1], (BATCH, 3))
    ud, udd = rng.uniform(-1, 1, u.shape) * speed, rng.uniform(-1, 1, u.shape) * acceleration
    states = States(*(np.ascontiguousarray(part) for part in plane_tilt(u, ud, udd)))
    f, D, work = np.empty((BATCH, 4)), np.empty((4, 3, 3)), np.empty((8, 3))

    def lagrange() -> Array:
        lagrange_batch(model, u, ud, udd, f, D, work)
        return f

    kernel_call = batch(model, states)
    name = "Lagrange: M(u), Coriolis by central differences of M"
    notes = {name: checked(name, lagrange(), kernel_call[0](), 1e-8)}
    table(
        "2-UPR/2-RPU, a state in a batch: virtual work (the kernel) beside Lagrange's equations, compiled alike,\n"
        "M(u) in closed form for this machine alone, its derivatives by central differences; ratio to the kernel.\n"
        "With derivatives in closed form Lagrange should come to lie between its two lines",
        {
            "kernel": kernel_call,
            name: (lagrange, BATCH),
            "M(u) and gravity alone, no Coriolis, no solution": (lambda: kinetic_batch(model, u, D, work), BATCH),
        },
        "kernel",
        notes,
    )


def main() -> None:
    print(f"CPU time, medians of {ROUNDS} rounds, candidates by turns")
    beside_pinocchio()
    beside_mujoco()
    whole_cycle()
    against_legs()
    against_links()
    two_formulations()


if __name__ == "__main__":
    main()
