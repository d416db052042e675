"""A machine as two flat arrays: what the kernels take. A row a leg, its columns named here.

Links of a leg that turn together are one rigid group: its mass, first moment and inertia about the joint centre
it is measured from stand for all of them, exactly (parallel-axis theorem). So a leg costs the same whatever
the number of its links.
"""

from typing import NamedTuple

from numba import types

from controller.mechanism.compile import v1, v2
from controller.records import Array

# Columns of a leg. Vectors take three columns, symmetric tensors six: xx yy zz xy xz yz.
BASE_JOINT = 0  # m, B_i, base axes
PLATFORM_JOINT = 3  # m, b_i, platform axes
BASE_AXIS = 6  # unit, fixed axis of the base U, or the base R axis; base axes
PLATFORM_AXIS = 9  # unit, axis of the platform U fixed in the platform; platform axes
BASE_REVOLUTE = 12  # 1: the base joint is an R joint
PLATFORM_UNIVERSAL = 13  # 1: parts of the leg turn with a U joint in the platform
ROD_MASS = 14  # kg, slides and turns with the base joint
UPPER_MASS = 15  # kg, slides and turns with the platform joint
BELOW_MASS = 16  # kg, part of the rod between actuator and load cell
LOWER_MOMENT = 17  # kg m about the base joint, leg frame
ROD_MOMENT = 20  # kg m about the platform joint, leg frame; likewise the next two
UPPER_MOMENT = 23
BELOW_MOMENT = 26
BASE_INERTIA = 29  # kg m2: lower links about the base joint plus rod links about the platform joint, leg frame
UPPER_INERTIA = 35  # kg m2 about the platform joint, frame of the platform-side joint
UNIVERSAL_FRICTION = 41  # N m s/rad, each axis of every U joint
SPHERICAL_FRICTION = 42  # N m s/rad, at the platform's S joint (or the U joint of an RPU leg)
VISCOUS_FRICTION = 43  # N s/m, sliding joint; likewise the next two
COULOMB_FRICTION = 44  # N
NORMAL_FRICTION = 45  # 1, of the seal load
GLAND, PISTON = 46, 47  # m behind the platform joint; equal when the seal load is the single lateral resultant
SCREW = 48  # m/rad: hand * lead / 2 pi of a screw that turns with the leg's twist, else 0
MOTOR_RAD_M = 49  # rad of the motor per m of axis travel, of such a screw, else 0
ROTOR_INERTIA = 50  # kg m2 at the motor shaft, of such a screw, else 0
HAND = 51  # +1 right-hand thread, -1 left-hand
HOME_TWIST = 52  # rad, twist angle at the home pose, before it is called 0
PRELOAD = 53  # N, actuator force a redundant machine stays close to
ROD_INERTIA = 54  # kg m2, the rod's part of BASE_INERTIA
HOME_LINE = 60  # unit, n at home, base axes
HOME_PLATFORM_LINE = 63  # unit, n at home, platform axes
EFFICIENCY = 66  # 1, of a screw that turns with the leg's twist
LEG_COLUMNS = 67

# The platform.
KIND = 0  # FREE, SPHERICAL or PLANE_TILT
MASS = 1  # kg
MOMENT = 2  # kg m about o, platform axes
INERTIA = 5  # kg m2 about o, platform axes
GRAVITY = 11  # m/s2, base axes
HOME = 14  # m, o at home, the fixed point of a spherical platform
RADIUS = 17  # m, mean distance of the platform joints from o: scales rotations
BRANCH = 18  # sign of the determinant of J G at home; 0 where legs outnumber freedoms
PLATFORM_COLUMNS = 19

FREE, SPHERICAL, PLANE_TILT = 0, 1, 2  # PLANE_TILT: o = z (0, -sin a, cos a), R = Rx(a) Ry(b)


class Mechanism(NamedTuple):
    """One machine, SI, read-only by convention."""

    legs: Array  # (n, LEG_COLUMNS)
    platform: Array  # (PLATFORM_COLUMNS,)


MECHANISM = types.NamedTuple((v2, v1), Mechanism)
