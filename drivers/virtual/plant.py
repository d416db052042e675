"""The simulated machine: the MuJoCo model of a machine that is off from its file on purpose, and its instruments."""

import math
from typing import Any

import mujoco as untyped  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from controller import schema
from controller.errors import ConfigurationError
from controller.mechanism.drive import screw
from drivers.virtual.plant_model import as_tensor, joint_per_axis, motor_rad_per_m, mujoco_model, vector

mujoco: Any = untyped  # its bindings come without type stubs
Array = NDArray[np.float64]

BRAKE_LOCKS_M_S = 1e-4  # below this rate a slipping brake has caught
STOP_N_M, STOP_N_S_M = 5e6, 5e3  # of a mechanical stop, or of whatever blocks a leg
SETTLE_S = 0.1  # at the start the closure takes up the weight: far longer than its few steps


def deviate(machine: schema.Machine, cell: schema.VirtualCell) -> schema.Machine:
    """The machine as it really is: `machine` with the deviations of `cell`, the same ones for the same seed.

    Masses, inertias (about each com) and rotor inertias are scaled, which leaves tensors physical; the platform's com
    is moved; every coordinate of every joint is off by a uniform error within +-geometry_error_m; friction of the
    drive is the cell's own and replaces what the machine file guesses; that of the joints, [legs.friction], stays, but
    the seals of a cylinder rub by the cell's friction more, as no drive of it could.
    """
    rng = np.random.default_rng(cell.seed)
    error_m = rng.uniform(-cell.geometry_error_m, cell.geometry_error_m, (len(machine.leg), 2, 3))

    def links(given: dict[str, schema.Link]) -> dict[str, schema.Link]:
        return {
            name: replace(
                link,
                mass_kg=link.mass_kg * cell.mass_scale,
                inertia_kg_m2=as_tensor(np.array(link.inertia_kg_m2) * cell.inertia_scale),
            )
            for name, link in given.items()
        }

    def drive(given: schema.Drive) -> schema.Drive:
        motor = screw(given)
        if motor is None:
            return given
        return replace(
            motor,
            rotor_inertia_kg_m2=motor.rotor_inertia_kg_m2 * cell.rotor_inertia_scale,
            coulomb_n=cell.coulomb_n,
            viscous_n_s_m=cell.viscous_n_s_m,
        )

    def friction(given: schema.Friction, driven: schema.Drive) -> schema.Friction:
        if screw(driven) is not None:
            return given
        dry_n, viscous_n_s_m = given.coulomb_n + cell.coulomb_n, given.viscous_n_s_m + cell.viscous_n_s_m
        return replace(given, coulomb_n=dry_n, viscous_n_s_m=viscous_n_s_m)

    platform, legs = machine.platform, machine.legs
    return replace(
        machine,
        platform=replace(
            platform,
            mass_kg=platform.mass_kg * cell.mass_scale,
            com_m=vector(np.add(platform.com_m, cell.com_offset_m)),
            inertia_kg_m2=as_tensor(np.array(platform.inertia_kg_m2) * cell.inertia_scale),
        ),
        legs=replace(
            legs,
            links=links(legs.links),
            drive=drive(legs.drive),
            friction=friction(legs.friction, legs.drive),
        ),
        leg=[
            replace(
                leg,
                base_joint_m=vector(np.add(leg.base_joint_m, base_error_m)),
                platform_joint_m=vector(np.add(leg.platform_joint_m, platform_error_m)),
                links=None if leg.links is None else links(leg.links),
                drive=None if leg.drive is None else drive(leg.drive),
                friction=None if leg.friction is None else friction(leg.friction, leg.drive or legs.drive),
            )
            for leg, (base_error_m, platform_error_m) in zip(machine.leg, error_m, strict=True)
        ],
    )


class Plant:
    """The deviated machine with its drives, brakes, encoders and load cells, advanced in steps of `step_s`.

    It starts at its home pose, at rest, with the brakes closed. Arrays are (n,), one value a leg. `machine` is the
    machine as it really is; `model` and `data` are MuJoCo's, for tests and pictures.

    Raises ConfigurationError where MuJoCo cannot have such a machine, or a cylinder a motor's delay.
    """

    def __init__(self, machine: schema.Machine, cell: schema.VirtualCell, step_s: float = 0.0005) -> None:
        """Deviate the machine by the settings of the cell, assemble it and let it come to rest."""
        self.machine = machine = deviate(machine, cell)
        self.model = model = mujoco_model(machine, step_s)
        self.data = data = mujoco.MjData(model)
        numbers = range(1, len(machine.leg) + 1)
        axes = [model.joint(f"axis {i}") for i in numbers]
        legs = [schema.effective_leg(machine, i) for i in range(len(machine.leg))]
        if cell.force_delay_s and any(screw(leg.drive) is None for leg in legs):
            raise ConfigurationError(
                f"virtual_cell.force_delay_s = {cell.force_delay_s:g}, expected 0: {machine.name} has cylinders, whose "
                "force follows from their pressures; what delays it is virtual_cell.hydraulics.valve_time_s"
            )
        brakes = [model.equality(f"brake {i}").id for i in numbers]
        self._axis_q = np.array([joint.qposadr[0] for joint in axes])
        self._axis_v = np.array([joint.dofadr[0] for joint in axes])
        self._per_axis = np.array([joint_per_axis(leg) for leg in legs])
        # A machine may have load cells in some legs only; the others show nothing.
        self._celled = np.array([i for i, leg in enumerate(legs) if leg.cell is not None], dtype=np.intp)
        cells_at = [model.sensor(f"cell {i}").adr[0] + 2 for i, leg in zip(numbers, legs, strict=True) if leg.cell]
        self._cell_at = np.array(cells_at, dtype=np.intp)
        rods = [i for i, leg in enumerate(legs) if screw(leg.drive) is None or leg.friction.normal > 0.0]
        rods_at = np.array([model.sensor(f"pushed {i + 1}").adr[0] for i in rods], dtype=np.intp)
        self._held, self._held_at = np.array(rods, dtype=np.intp), rods_at + 2
        self._sealed = [i for i, leg in enumerate(legs) if leg.friction.normal > 0.0]
        self._seals_at = (rods_at[[rods.index(i) for i in self._sealed], None] + (0, 1, 3, 4)).T
        self._seals = np.array([_seal(legs[i].friction) for i in self._sealed]).T
        self._platform = model.body("platform").id
        self._brakes = slice(brakes[0], brakes[-1] + 1)
        self._tips = np.array([model.site(f"tip {i}").id for i in numbers])
        self._joints = np.array([model.site(f"joint {i}").id for i in numbers])
        # Views into MuJoCo's memory, so that a step looks nothing up.
        self._ctrl, self._qpos, self._qvel, self._sensors = data.ctrl, data.qpos, data.qvel, data.sensordata
        self._joint_friction = np.array([[_spherical_friction(leg)] for leg in legs])
        self._ends = np.array([model.site_bodyid[tip] for tip in self._tips])
        self._advance = self._rubbing_step if self._joint_friction.any() else mujoco.mj_step

        mujoco.mj_kinematics(model, data)
        base_m = np.array([leg.base_joint_m for leg in machine.leg])
        self._home_m = np.linalg.norm(data.site_xpos[self._joints] - base_m, axis=1)
        # Of the joints that stand for the axes: N, or N m of a rotor.
        self._friction = model.dof_frictionloss[self._axis_v]
        self._brake_force = np.array([_brake_n(leg) for leg in legs]) / np.abs(self._per_axis)
        self._stuck = np.zeros(len(legs))  # of them, too
        self._push = np.zeros(6)

        delay = round(cell.force_delay_s / step_s)
        self._delay_line = np.zeros((delay + 1, len(machine.leg)))
        self._at = 0
        self._braked = False
        self._locked = False
        self._resolution_m = cell.encoder_resolution_m
        most_m = 0.0 if cell.homed else cell.encoder_offset_m
        self._offset_m = np.random.default_rng((cell.seed, 2)).uniform(-most_m, most_m, len(machine.leg))
        self._leg_of = np.arange(len(machine.leg))  # which leg the drive of each axis is wired to
        self._travel = np.ones(len(machine.leg))  # how far each leg goes per metre of its axis
        self._miswired = False
        self._low_m, self._high_m = np.array([[-np.inf], [np.inf]]) * np.ones(len(machine.leg))
        self._bounded = False
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
        """What the encoders count, homed without error: leg lengths between the joint centres; of UHU legs the axis
        coordinate, which is the leg length at home. Of encoders that are not homed, off by an unknown offset."""
        return self.encoder_m(self.axis_m)

    @property
    def axis_m(self) -> Array:
        """Where the axes really are: the legs that their drives move."""
        return self._leg_m[self._leg_of] if self._miswired else self._leg_m

    @property
    def _leg_m(self) -> Array:
        return self._home_m + self._qpos[self._axis_q] / self._per_axis

    def encoder_m(self, axis_m: Array) -> Array:
        """What the encoders show when the axes are there."""
        if self._miswired:
            home_m = self._home_m[self._leg_of]
            axis_m = home_m + (axis_m - home_m) / self._travel[self._leg_of]
        return _quantised(axis_m + self._offset_m, self._resolution_m)

    def swap(self, legs: tuple[int, int] | None) -> None:
        """Plug power and encoder of two legs (from 0) into each other's drives; None: every leg into its own. Load
        cells stay where they are. For drives that are off."""
        self._leg_of = np.arange(len(self._leg_of))
        if legs:
            self._leg_of[list(legs)] = legs[::-1]
        self._wired_again()

    def mislead(self, leg: int, travel: float) -> None:
        """Fit a screw with which a leg (from 0) goes `travel` times what its axis says, counted from home."""
        self._travel[leg] = travel
        self._wired_again()

    def _wired_again(self) -> None:
        self._miswired = bool((self._leg_of != np.arange(len(self._leg_of))).any() or (self._travel != 1.0).any())

    def _on_legs(self, force_n: Array) -> Array:
        """Forces on the legs from those on the axes: what a screw takes from the way it gives to the force."""
        legs_n = np.empty_like(force_n)
        legs_n[self._leg_of] = force_n
        return legs_n / self._travel

    def stop_at(self, length_m: Array, direction: float) -> None:
        """A mechanical stop for axes that move in this direction."""
        self._bounded = True
        if direction < 0.0:
            self._low_m[:] = length_m
        else:
            self._high_m[:] = length_m

    def block(self, leg: int, blocked: bool) -> None:
        """Hold a leg (from 0) where it is, whatever its drive does; it is free again without its stop."""
        self._bounded = True
        here_m = self._leg_m[leg]
        self._low_m[leg], self._high_m[leg] = (here_m, here_m) if blocked else (-np.inf, np.inf)

    def push(self, wrench: ArrayLike) -> None:
        """From now on something outside pushes the platform: force (N) and moment about o (N m), (6,) in base axes."""
        self._push[:] = wrench
        if not self._push.any():
            self.data.xfrc_applied[self._platform] = 0.0

    def stick(self, leg: int, more_n: float) -> None:
        """From now on the axis of a leg (from 0) has so much more dry friction than it was built with."""
        more = more_n / abs(self._per_axis[leg]) - self._stuck[leg]
        self._stuck[leg] += more
        self._friction[leg] += more
        self.model.dof_frictionloss[self._axis_v[leg]] += more

    @property
    def velocity_m_s(self) -> Array:
        """Rates of the axes, not quantised: a drive works on a far finer grid than it reports."""
        return (self._leg_m_s / self._travel)[self._leg_of] if self._miswired else self._leg_m_s

    @property
    def _leg_m_s(self) -> Array:
        return self._qvel[self._axis_v] / self._per_axis

    @property
    def cell_n(self) -> Array:
        """Load cells during the last step, > 0 in compression, 0 without one; every reading has noise of its own."""
        noise_n = self._cell_noise_n * self._noise.standard_normal(len(self._cell_at))
        reading_n = np.zeros(len(self._axis_v))
        reading_n[self._celled] = _quantised(self._sensors[self._cell_at] + noise_n, self._cell_resolution_n)
        return reading_n

    @property
    def held_n(self) -> Array:
        """What held each rod along its axis during the last step, > 0 extends: its cylinder, friction included, or the
        closed brake in its place; 0 where nobody asks."""
        held_n = np.zeros(len(self._axis_v))
        held_n[self._held] = self._sensors[self._held_at]
        return (held_n * self._travel)[self._leg_of] if self._miswired else held_n

    def pose(self) -> Array:
        """True platform pose x, y, z (m), yaw, pitch, roll (rad) in the base frame."""
        mujoco.mj_kinematics(self.model, self.data)
        body = self.data.body("platform")
        w, x, y, z = (float(value) for value in body.xquat)
        yaw = math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
        pitch = math.asin(max(-1.0, min(1.0, 2.0 * (w * y - x * z))))
        roll = math.atan2(2.0 * (w * x + y * z), 1.0 - 2.0 * (x * x + y * y))
        return np.array([*body.xpos, yaw, pitch, roll])

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
            if self._miswired:
                force_n = self._on_legs(force_n)
            if self._braked:
                self._release(force_n)
            line = self._delay_line
            line[self._at] = force_n
            self._at = (self._at + 1) % len(line)
            self._ctrl[:] = line[self._at]
        if self._bounded:
            self._push_back()
        if self._push.any():
            self._apply_push()
        self._advance(self.model, self.data)
        if self._sealed:
            self._load_seals()

    def balance(self) -> Array:
        """Axis forces that hold the plant without friction at rest at its present pose, in N.

        Exact statics of the closed chain: the gravity of every joint coordinate is borne by axis and closure forces.
        Where axes outnumber freedoms, one of many answers.
        """
        model, at_rest = self.model, mujoco.MjData(self.model)
        at_rest.qpos[:] = self._qpos
        mujoco.mj_forward(model, at_rest)
        closure: Array = at_rest.efc_J.reshape(-1, model.nv)[: at_rest.ne]  # a fresh MjData has its brakes off
        gravity: Array = at_rest.qfrc_bias  # generalised forces, N and Nm
        axes = np.zeros((len(self._axis_v), model.nv))
        axes[np.arange(len(axes)), self._axis_v] = 1.0 / self._per_axis
        borne = np.linalg.lstsq(np.vstack((axes, closure)).T, gravity, rcond=1e-10)[0]
        return np.asarray(borne[: len(axes)], dtype=np.float64)

    def _rubbing_step(self, model: Any, data: Any) -> None:
        """mj_step, with viscous friction between legs and platform in the joints where the model is cut."""
        mujoco.mj_step1(model, data)
        turning: Array = data.cvel[self._ends, :3] - data.cvel[self._platform, :3]  # base axes, rad/s
        moment_nm: Array = self._joint_friction * turning
        data.xfrc_applied[self._ends, 3:] = -moment_nm
        data.xfrc_applied[self._platform, 3:] = moment_nm.sum(axis=0) + self._moment_about_com()
        mujoco.mj_step2(model, data)

    def _apply_push(self) -> None:
        self.data.xfrc_applied[self._platform, :3] = self._push[:3]
        self.data.xfrc_applied[self._platform, 3:] = self._moment_about_com()

    def _moment_about_com(self) -> Array:
        """Moment of the push about the centre of mass, where MuJoCo applies what comes from outside."""
        arm_m: Array = self.data.xpos[self._platform] - self.data.xipos[self._platform]
        return self._push[3:] + np.cross(arm_m, self._push[:3])

    def _push_back(self) -> None:
        """Stops are stiff springs with dampers, which push only."""
        leg_m = self._leg_m
        beyond_m = np.minimum(leg_m - self._low_m, 0.0) + np.maximum(leg_m - self._high_m, 0.0)
        push_n: Array = -STOP_N_M * beyond_m - STOP_N_S_M * self._leg_m_s * (beyond_m != 0.0)
        only_n: Array = np.where(beyond_m < 0.0, np.maximum(push_n, 0.0), np.minimum(push_n, 0.0))
        self.data.qfrc_applied[self._axis_v] = only_n / self._per_axis

    def _load_seals(self) -> None:
        """Dry friction of the next step from the load on the seals in the last one: it changes little in a step, and
        hardly depends on the friction itself."""
        dry_n, normal, per_m, at_gland, at_piston = self._seals
        fx, fy, tx, ty = self._sensors[self._seals_at]  # of the cylinder on the rod about b_i, N and N m
        load_n = np.hypot(at_gland * fx + per_m * ty, at_gland * fy - per_m * tx)
        load_n += np.hypot(at_piston * fx + per_m * ty, at_piston * fy - per_m * tx)
        friction_n = dry_n + normal * load_n + self._stuck[self._sealed]
        self._friction[self._sealed] = friction_n
        self.model.dof_frictionloss[self._axis_v[self._sealed]] = (
            friction_n + self._brake_force[self._sealed] if self._braked else friction_n
        )

    def _brake(self) -> None:
        """Drives off; each brake slips at its holding force until its axis stands, then all of them lock."""
        if self._locked:
            return
        if not self._braked:
            self._braked = True
            self._ctrl[:] = 0.0
            self.model.dof_frictionloss[self._axis_v] = self._friction + self._brake_force
        if np.abs(self._leg_m_s).max() < BRAKE_LOCKS_M_S:
            self._locked = True
            self.model.eq_data[self._brakes, 0] = self._qpos[self._axis_q]
            self.data.eq_active[self._brakes] = 1

    def _release(self, force_n: Array) -> None:
        """Brakes open once the drives have built up `force_n`, as drives with a holding brake do."""
        self._braked = self._locked = False
        self.model.dof_frictionloss[self._axis_v] = self._friction
        self.data.eq_active[self._brakes] = 0
        self._delay_line[:] = force_n


def _brake_n(leg: schema.Legs) -> float:
    """A holding brake is sized for the rated torque of its motor, a cylinder's closed valves for what its leg may bear;
    what moves when it closes, slips."""
    drive = screw(leg.drive)
    return leg.limits.force_n if drive is None else drive.rated_torque_nm * motor_rad_per_m(drive)


def _seal(friction: schema.Friction) -> tuple[float, float, float, float, float]:
    """Dry friction (N) and its share of the seal load, and how much of moment (1/m) and lateral force gland and piston
    bear: as controller.mechanism.leg.rubbing, or as one seal that takes the force."""
    apart_m = friction.piston_m - friction.gland_m
    if apart_m == 0.0:
        return friction.coulomb_n, friction.normal, 0.0, 1.0, 0.0
    per_m = 1.0 / apart_m
    return friction.coulomb_n, friction.normal, per_m, friction.piston_m * per_m, friction.gland_m * per_m


def _spherical_friction(leg: schema.Legs) -> float:
    """N m s/rad, about every axis through b_i; an RPU leg's U joint turns as freely as an S joint."""
    if leg.kind == "RPU":
        return leg.friction.universal_nm_s_rad
    return leg.friction.spherical_nm_s_rad if leg.kind == "UPS" else 0.0


def _quantised(value: Array, resolution: float) -> Array:
    return np.round(value / resolution) * resolution if resolution > 0.0 else value
