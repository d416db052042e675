"""Is this machine one that can be controlled? Geometry checks that types cannot express."""

from pathlib import Path

import numpy as np

from controller import schema
from controller.errors import ConfigurationError
from controller.mechanism import kinematics, posture
from controller.mechanism.model import build, home_pose
from controller.mechanism.platform import rotation_matrix
from controller.records import POSE

SMALLEST_AXIS_ANGLE_DEG = 5.0
LARGEST_CONDITION = 1e4


def lint(machine: schema.Machine) -> list[str]:
    """What is wrong with a machine at its home pose; one sentence each, naming the leg and the figure."""
    model, home = build(machine), home_pose(machine)
    q = np.empty(len(machine.leg))
    kinematics.leg_lengths(model, home, q)
    R = np.empty((3, 3))
    rotation_matrix(home, R)
    problems: list[str] = []
    for name, value in zip(POSE, home, strict=True):
        low, high = getattr(machine.platform.limits, name)
        if not low <= value <= high:
            problems.append(f"platform.home.{name}: found {value:g}, expected inside its limits [{low:g}, {high:g}]")
    for i, leg in enumerate(machine.leg):
        n = (home[:3] + R @ leg.platform_joint_m - leg.base_joint_m) / q[i]
        axes = {"base_axis": np.array(leg.base_axis)}
        if leg.platform_axis is not None:
            axes["platform_axis"] = R @ leg.platform_axis
        for name, axis in axes.items():
            angle_deg = float(np.degrees(np.arcsin(min(1.0, np.linalg.norm(np.cross(n, axis / np.linalg.norm(axis)))))))
            if not angle_deg >= SMALLEST_AXIS_ANGLE_DEG:
                problems.append(
                    f"leg[{i}].{name}: at home {angle_deg:.2f} degrees from the line of leg {i + 1}, expected at least "
                    f"{SMALLEST_AXIS_ANGLE_DEG:g}: the U joint is singular there"
                )
        low, high = (leg.limits or machine.legs.limits).length_m
        if not low <= q[i] <= high:
            problems.append(
                f"legs.limits.length_m: leg {i + 1} has {q[i]:.4f} m at home, expected inside its stroke "
                f"[{low:g}, {high:g}] m"
            )
    condition = posture.condition(model, home)
    if not condition <= LARGEST_CONDITION:
        problems.append(
            f"leg: condition number of the Jacobian at home is {condition:.3g}, expected below "
            f"{LARGEST_CONDITION:.0e}: singular geometry, the legs cannot hold the platform"
        )
    return problems


def require_sound(machine: schema.Machine, path: Path) -> None:
    """Refuse a machine that `lint` finds fault with.

    Raises:
        ConfigurationError: with the first problem.
    """
    problems = lint(machine)
    if problems:
        more = f" (and {len(problems) - 1} more, see `pkm check`)" if len(problems) > 1 else ""
        raise ConfigurationError(f"{path}: {problems[0]}{more}")
