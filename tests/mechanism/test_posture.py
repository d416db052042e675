"""Singular values and condition against NumPy."""

import numpy as np
import pytest

from controller.mechanism import kinematics, layout, posture
from controller.mechanism.model import build, home_pose
from controller.settings import load_machine
from tests.machines import MACHINES


@pytest.mark.parametrize("name", ["6-upru", "6-ups", "6-uhu", "3-ups-s", "2-upr-2-rpu"])
def test_singular_values_are_those_of_the_scaled_jacobian(name: str) -> None:
    machine = load_machine(MACHINES / f"{name}.toml")[0]
    model, rng = build(machine), np.random.default_rng(5)
    radius, free = model.platform[layout.RADIUS], 6 if machine.platform.kind == "free" else 3
    J, G, found = np.empty((len(model.legs), 6)), np.empty((6, 6)), np.full(free, np.nan)
    for _ in range(50):
        x = home_pose(machine) + rng.uniform(-0.2, 0.2, 6)
        kinematics.jacobian(model, x, J)
        posture.independent_motions(model, x, G)
        scaled = np.diag([1, 1, 1, radius, radius, radius]) @ G[:, :free]
        right = np.linalg.svd(J @ G[:, :free] / np.linalg.norm(scaled, axis=0), compute_uv=False)
        posture.singular_values(model, x, found)
        np.testing.assert_allclose(np.sort(found)[::-1], right, rtol=1e-12, atol=1e-13 * right[0])
        assert posture.condition(model, x) == pytest.approx(right[0] / right[-1], rel=1e-9)


def test_a_singular_pose_has_no_condition_number() -> None:
    machine = load_machine(MACHINES / "3-ups-s.toml")[0]
    level = np.zeros(6)  # all legs radial: nothing turns the platform about z
    assert posture.condition(build(machine), level) == np.inf
