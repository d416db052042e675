"""Measurements with known parameters: motions inside the limits, forces of the Pinocchio oracle, tables of both."""

import csv
import math
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from controller import schema
from controller.identification.base_parameters import States, default_form
from controller.identification.excitation import Series, prepare, random_coefficients, states_at
from controller.settings import load_machine
from drivers.virtual.plant import deviate
from tests.machines import MACHINES
from tests.oracles import pinocchio_tree as oracle

DRY_N, VISCOUS_N_S_M = 9.0, 55.0  # of the drives of the true machine
SPREAD = schema.VirtualCell(
    mass_scale=1.06, inertia_scale=1.10, com_offset_m=(0.004, -0.003, 0.005), rotor_inertia_scale=1.08,
    coulomb_n=DRY_N, viscous_n_s_m=VISCOUS_N_S_M,
)  # fmt: skip


class Truth(NamedTuple):
    """One period of a motion of the true machine, a row every `step_s`."""

    machine: schema.Machine
    step_s: float
    x: np.ndarray  # (N, 6)
    axes_m: np.ndarray  # (N, n)
    cell_n: np.ndarray
    axis_n: np.ndarray  # what the drives put in


def machine_of(name: str) -> schema.Machine:
    return load_machine(MACHINES / f"{name}.toml")[0]


def truth_of(
    name: str, seed: int = 0, step_s: float = 0.02, period_s: float = 10.0, rest: bool = False,
    file: schema.Machine | None = None,
) -> Truth:  # fmt: skip
    """A random motion of the machine that is off its file in all parameters; `rest`: from rest to rest."""
    machine = file or machine_of(name)
    problem = prepare(machine, default_form(machine), Series(period_s=period_s, rest_to_rest=rest))
    t = step_s * np.arange(round(period_s / step_s))
    states = states_at(problem, random_coefficients(problem, seed), t)
    return of_states(deviate(machine, SPREAD), states, step_s)


def of_states(machine: schema.Machine, states: States, step_s: float) -> Truth:
    """What the oracle says of a motion; seals, friction, rotors and losses of drives beside it, as a handbook has them.

    A screw puts in F / efficiency where it drives the load F, and F efficiency where the load drives it.
    """
    friction = machine.legs.friction
    plain = replace(machine, legs=replace(machine.legs, friction=replace(friction, coulomb_n=0.0)))
    tree = tree_of(plain)
    reference = oracle.build_oracle(tree, lateral=friction.normal > 0.0)
    rows = [oracle.inverse_dynamics(reference, *state, np.zeros(6)) for state in zip(*states, strict=True)]
    drive, dry_n = machine.legs.drive, friction.coulomb_n
    length, rate, acceleration = (
        np.array([getattr(row, key) for row in rows]) for key in ("length_m", "length_rate_m_s", "length_acc_m_s2")
    )
    if friction.normal:
        dry_n = dry_n + friction.normal * np.array([[seal_load(friction, *one) for one in row.lateral] for row in rows])
    axes, force, rotor = length, np.array([row.force_n for row in rows]), np.zeros_like(rate)
    if isinstance(drive, schema.ScrewDrive):
        per_m = 2.0 * math.pi * drive.gear_ratio / drive.lead_m
        if machine.legs.kind == "UHU":  # the rotor is in the oracle, and so is what the twist does
            home = oracle.home_lengths(tree)
            axes = home + np.array([row.motor_rad for row in rows]) / per_m
            rate = np.array([row.motor_rate_rad_s for row in rows]) / per_m
            rotor = drive.rotor_inertia_kg_m2 * per_m * np.array([row.motor_acc_rad_s2 for row in rows])
            force = np.array([row.torque_nm for row in rows]) * per_m - rotor
        else:
            rotor = drive.rotor_inertia_kg_m2 * per_m**2 * acceleration
        force = force * np.where(force * rate > 0.0, 1.0 / drive.efficiency, drive.efficiency)
        force = force + rotor + drive.viscous_n_s_m * rate
        dry_n = dry_n + drive.coulomb_n
    force = force + dry_n * np.sign(rate)
    cell = np.array([row.cell_n for row in rows]) if tree.legs[0].cell else np.zeros((len(rows), 0))
    return Truth(machine, step_s, states.x, axes, cell, force)


def seal_load(friction: schema.Friction, fx: float, fy: float, tx: float, ty: float) -> float:
    """What gland and piston bear: they hold the force and the moment about b_i of the cylinder on the rod."""
    z = np.array([[friction.gland_m], [friction.piston_m]])
    if not friction.piston_m:
        return math.hypot(fx, fy)
    # forces across the leg at -z: sum F = (fx, fy), sum of (-z n) x F = (tx, ty)
    forces = np.linalg.solve(np.hstack([np.ones_like(z), z]).T, np.array([[fx, fy], [-ty, tx]]))
    return float(np.linalg.norm(forces, axis=1).sum())


def table(path: Path, truth: Truth, columns: dict[str, np.ndarray], repeats: int = 1) -> Path:
    """A table of axis positions and these forces, by pattern of their columns; forces are (repeats N, n)."""
    pattern = "motor_{}_rad" if truth.machine.legs.kind == "UHU" else "length_{}_m"
    axes = truth.axes_m
    if truth.machine.legs.kind == "UHU":
        drive = truth.machine.legs.drive
        assert isinstance(drive, schema.ScrewDrive)
        axes = (axes - home_lengths(truth.machine)) * 2.0 * math.pi * drive.gear_ratio / drive.lead_m
    every = {pattern: np.tile(axes, (repeats, 1)), **columns}
    rows = len(every[pattern])
    names = ["t_s", *(key.format(i + 1) for key, values in every.items() for i in range(values.shape[1]))]
    data = np.hstack([truth.step_s * np.arange(rows)[:, None], *every.values()])
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([["" if math.isnan(v) else repr(v) for v in row] for row in data.tolist()])
    return path


def home_lengths(machine: schema.Machine) -> np.ndarray:
    return oracle.home_lengths(tree_of(machine))


def tree_of(machine: schema.Machine) -> oracle.OracleMachine:
    return oracle.machine_from_toml(_stated(msgspec.to_builtins(machine)))


def _stated(data: Any) -> Any:
    """Without keys that are not set, and those of the seals, which the oracle does not have."""
    if isinstance(data, dict):
        left_out = ("normal", "gland_m", "piston_m")
        return {key: _stated(value) for key, value in data.items() if value is not None and key not in left_out}
    return [_stated(value) for value in data] if isinstance(data, list | tuple) else data


def noisy(force: np.ndarray, repeats: int, sigma_n: float, seed: int, memory: float = 0.0) -> np.ndarray:
    """The forces so many times, with noise that remembers (first-order, `memory` a row)."""
    whole = np.tile(force, (repeats, 1))
    white = np.random.default_rng(seed).normal(size=whole.shape) * sigma_n
    if memory:
        for k in range(1, len(white)):
            white[k] = memory * white[k - 1] + math.sqrt(1.0 - memory**2) * white[k]
    return whole + white
