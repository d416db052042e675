"""The kernels against Pinocchio, on random machines of every kind with different legs, full tensors and offsets."""

from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from controller import schema
from controller.mechanism import dynamics, kinematics, layout
from controller.mechanism.layout import Mechanism
from controller.mechanism.model import build
from tests.oracles import pinocchio_tree as oracle

MACHINES, STATES = 100, 2  # of each kind; of each machine
KINEMATICS, FORCES = 1e-10, 1e-9  # of the largest of its kind and state


class Answers(NamedTuple):
    """What the kernels say of one state, per leg."""

    length: np.ndarray
    length_rate: np.ndarray
    length_acceleration: np.ndarray
    twist: np.ndarray
    axis: np.ndarray
    axis_rate: np.ndarray
    axis_acceleration: np.ndarray
    force: np.ndarray
    cell: np.ndarray
    lateral: np.ndarray


def machine_of(tree: oracle.OracleMachine) -> schema.Machine:
    return msgspec.convert(oracle.machine_to_toml_dict(tree), schema.Machine)


def answers(model: Mechanism, state: tuple[np.ndarray, ...], wrench: np.ndarray) -> Answers:
    n = len(model.legs)
    l, ld, ldd, q, qd, qdd, f, f_cell = np.full((8, n), np.nan)  # noqa: E741
    twist, force, moment = np.zeros(n), np.full((1, 2 * n), np.nan), np.full((1, 2 * n), np.nan)
    kinematics.leg_rates(model, *state, l, ld, ldd)
    kinematics.axis_rates(model, *state, twist, q, qd, qdd)
    assert dynamics.inverse_dynamics(model, *state, wrench, f, f_cell) == 0
    dynamics.lateral_batch(model, *(row[None] for row in state), force, moment)
    lateral = np.hstack([force.reshape(n, 2), moment.reshape(n, 2)])
    return Answers(l, ld, ldd, twist, q, qd, qdd, f, f_cell, lateral)


def close(found: np.ndarray, right: np.ndarray, tolerance: float) -> None:
    assert right.size
    np.testing.assert_allclose(found, right, rtol=0, atol=tolerance * np.abs(right).max())


@pytest.mark.parametrize("kind", oracle.KINDS)
@pytest.mark.parametrize("seed", range(MACHINES))
def test_kinematics_and_forces_of_a_random_machine(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = oracle.random_machine(rng, kind)
    model, reference = build(machine_of(tree)), oracle.build_oracle(tree, lateral=kind != "2-upr-2-rpu")
    home, per_metre = oracle.home_lengths(tree), model.legs[:, layout.MOTOR_RAD_M]
    for _ in range(STATES):
        pose = rng.uniform(*np.array(tree.pose_limits).T)
        rate, acceleration = rng.uniform(-1, 1, 6), rng.uniform(-5, 5, 6)
        state, wrench = oracle.admissible_state(reference, pose, rate, acceleration), rng.normal(0, 50, 6)
        expected = oracle.inverse_dynamics(reference, *state, wrench)
        found = answers(model, state, wrench)
        close(found.length, expected.length_m, KINEMATICS)
        close(found.length_rate, expected.length_rate_m_s, KINEMATICS)
        close(found.length_acceleration, expected.length_acc_m_s2, KINEMATICS)
        if kind == "6-uhu":
            close(found.force / per_metre, expected.torque_nm, FORCES)
            close(found.twist, expected.twist_rad, FORCES)
            close((found.axis - home) * per_metre, expected.motor_rad, FORCES)
            close(found.axis_rate * per_metre, expected.motor_rate_rad_s, FORCES)
            close(found.axis_acceleration * per_metre, expected.motor_acc_rad_s2, FORCES)
        else:
            close(found.force, expected.force_n, FORCES)
            assert (found.twist == 0.0).all()
            assert (found.axis == found.length).all()
        if tree.legs[0].cell:
            close(found.cell, expected.cell_n, FORCES)
        # a screw's torque loads the guide of a UHU leg too: it has no lateral answer
        if reference.lateral_idx.size and kind != "6-uhu":
            close(found.lateral[:, :2], expected.lateral[:, :2], FORCES)
            close(found.lateral[:, 2:], expected.lateral[:, 2:], FORCES)


def test_random_machines_are_what_the_comparison_needs() -> None:
    """Several links in every group, cells with links on both sides, both hands, kinds mixed within a machine."""
    rng = np.random.default_rng(7)
    kinds, groups, hands, several = set(), set(), set(), 0
    for kind in oracle.KINDS:
        machine = machine_of(oracle.random_machine(rng, kind))
        for leg in (schema.effective_leg(machine, i) for i in range(len(machine.leg))):
            kinds.add(leg.kind)
            groups |= {(leg.kind, link.group) for link in leg.links.values()}
            several += len(leg.links) > len({link.group for link in leg.links.values()})
            if leg.cell:
                assert 0 < len(leg.cell.links_below) < sum(link.group != "lower" for link in leg.links.values())
            if leg.kind == "UHU":
                hands.add(leg.drive.hand)
    assert kinds == {"UPRU", "UPS", "UHU", "UPR", "RPU"}
    assert len(groups) == 3 + 4 * 2
    assert hands == {-1, 1}
    assert several > 10
