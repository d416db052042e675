"""The kernels against Pinocchio, on random machines with different legs, full tensors and offsets."""

import msgspec
import numpy as np
import pytest

from controller import schema
from controller.mechanism import dynamics, kinematics
from controller.mechanism.model import build, effective_leg
from tests.oracles import pinocchio_tree as oracle

STATES = 3


def random_state(machine: oracle.OracleMachine, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    low, high = np.array(machine.pose_limits).T
    pose = rng.uniform(low, high)
    scale = np.repeat([0.3, 0.8], 3)
    return pose, rng.normal(0, 1, 6) * scale, rng.normal(0, 1, 6) * 4 * scale, rng.normal(0, 50, 6)


@pytest.mark.parametrize("seed", range(100))
def test_kinematics_and_forces_of_a_random_machine(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = oracle.random_machine(rng)
    machine = msgspec.convert(oracle.machine_to_toml_dict(tree), schema.Machine)
    model, reference = build(machine), oracle.build_oracle(tree)
    q, qd, qdd, f, f_cell = np.full((5, 6), np.nan)
    for _ in range(STATES):
        pose, rate, acceleration, wrench = random_state(tree, rng)
        expected = oracle.inverse_dynamics(reference, pose, rate, acceleration, wrench)
        kinematics.leg_rates(model, pose, rate, acceleration, q, qd, qdd)
        assert dynamics.inverse_dynamics(model, pose, rate, acceleration, wrench, f, f_cell) == 0
        for found, right in ((q, expected.length_m), (qd, expected.length_rate_m_s), (qdd, expected.length_acc_m_s2)):
            np.testing.assert_allclose(found, right, rtol=0, atol=1e-10 * max(1.0, np.abs(right).max()))
        largest = np.abs(expected.force_n).max()
        np.testing.assert_allclose(f, expected.force_n, rtol=0, atol=1e-9 * largest)
        np.testing.assert_allclose(f_cell, expected.cell_n, rtol=0, atol=1e-9 * largest)


def test_links_of_a_leg_may_be_split_without_changing_anything() -> None:
    rng = np.random.default_rng(7)
    data = oracle.machine_to_toml_dict(oracle.random_machine(rng))
    machine = msgspec.convert(data, schema.Machine)
    names = {name for i in range(6) for name in effective_leg(machine, i).links}
    groups = {link.group for i in range(6) for link in effective_leg(machine, i).links.values()}
    assert len(names) > 4  # the random machines do have several links a group
    assert groups == {"lower", "rod", "upper"}
