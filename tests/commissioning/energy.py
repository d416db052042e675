"""Leg forces of a machine at rest from its potential energy alone, by finite differences: nothing of the controller's
kinematics or dynamics. For legs whose links have their centres of mass on the leg's axis.
"""

import numpy as np
from scipy.optimize import fsolve
from scipy.spatial.transform import Rotation

from controller import schema

STEP = 2e-5  # m, rad


class Machine:
    """Joints and masses of a machine file."""

    def __init__(self, given: schema.Machine) -> None:
        body, legs = given.platform, [schema.effective_leg(given, i) for i in range(len(given.leg))]
        self.base_m = np.array([leg.base_joint_m for leg in given.leg])
        self.points_m = np.array([*(leg.platform_joint_m for leg in given.leg), body.com_m])  # of the platform
        self.gravity = np.array(given.gravity_m_s2)
        self.mass_kg = body.mass_kg
        links = [(i, link, name in (leg.cell.links_below if leg.cell else ()))
                 for i, leg in enumerate(legs) for name, link in leg.links.items()]  # fmt: skip
        assert all(link.com_m[:2] == (0.0, 0.0) for _, link, _ in links)
        self.leg = np.array([i for i, _, _ in links])
        self.link_kg = np.array([link.mass_kg for _, link, _ in links])
        self.com_m = np.array([link.com_m[2] for _, link, _ in links])
        self.slides = np.array([link.group != "lower" for _, link, _ in links])
        self.below = np.array([below for _, _, below in links])

    def points(self, pose: np.ndarray) -> np.ndarray:
        """Platform joints and centre of mass (n + 1, 3) at pose x y z yaw pitch roll."""
        return pose[:3] + Rotation.from_euler("ZYX", pose[3:]).apply(self.points_m)

    def lengths_m(self, pose: np.ndarray) -> np.ndarray:
        return np.linalg.norm(self.points(pose)[:-1] - self.base_m, axis=1)

    def pose(self, lengths_m: np.ndarray, near: np.ndarray) -> np.ndarray:
        found, _, fine, _ = fsolve(lambda x: self.lengths_m(x) - lengths_m, near, xtol=1e-13, full_output=True)
        assert fine == 1
        return found

    def energy_j(self, pose: np.ndarray, grown_m: np.ndarray) -> float:
        """Potential energy of legs that have grown at their cells by so much (n,), ends and platform being where they
        are: what is below a cell stays behind."""
        *ends, com = self.points(pose)
        along = np.array(ends) - self.base_m
        along /= np.linalg.norm(along, axis=1, keepdims=True)
        start = np.where(self.slides[:, None], np.array(ends)[self.leg], self.base_m[self.leg])
        at = start + (self.com_m - self.below * grown_m[self.leg])[:, None] * along[self.leg]
        return float(-self.mass_kg * self.gravity @ com - self.link_kg @ (at @ self.gravity))

    def cells_n(self, lengths_m: np.ndarray, near: np.ndarray) -> np.ndarray:
        """Load-cell forces (n,), > 0 compression, with legs of these lengths."""
        n, pose = len(lengths_m), self.pose(lengths_m, near)
        none, J, by_pose, by_growth = np.zeros(n), np.empty((n, 6)), np.empty(6), np.empty(n)
        for k, step in enumerate(STEP * np.eye(6)):
            J[:, k] = (self.lengths_m(pose + step) - self.lengths_m(pose - step)) / (2.0 * STEP)
            by_pose[k] = (self.energy_j(pose + step, none) - self.energy_j(pose - step, none)) / (2.0 * STEP)
        for k, step in enumerate(STEP * np.eye(n)):
            by_growth[k] = (self.energy_j(pose, step) - self.energy_j(pose, -step)) / (2.0 * STEP)
        return np.linalg.solve(J.T, by_pose) + by_growth
