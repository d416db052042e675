"""Limits, a command and a sample that break none of them, for the tests of what does."""

import numpy as np

from controller.records import AxisMode, Command, Estimate, Link, Sample
from controller.safety.limits import Limits

N, PERIOD_S = 6, 0.01
LIMITS = Limits(
    length_min_m=[0.75] * N,
    length_max_m=[1.10] * N,
    speed_m_s=[0.5] * N,
    acceleration_m_s2=[4.0] * N,
    jerk_m_s3=[100.0] * N,
    force_n=[700.0] * N,
    torque_force_n=[900.0] * N,
    base_swing_rad=[1.0] * N,
    platform_swing_rad=[1.2] * N,
    pose_min=[-0.1, -0.1, 0.7, -0.3, -0.3, -0.3],
    pose_max=[0.1, 0.1, 1.0, 0.3, 0.3, 0.3],
    condition=60.0,
    following_error_m=0.01,
    late_after_s=0.045,
    stale_after_s=0.125,
)
REST = np.zeros(N)
HELD = Command(1, AxisMode.FOLLOW, np.full(N, 0.95), REST, REST)
POSE = np.array([0.0, 0.0, 0.85, 0.0, 0.0, 0.0])
KNOWN = Estimate(POSE, np.zeros(6), 2, 0.0, 3.0)
GOOD = Sample(
    tick=5, t_s=0.05, link=Link.UP, age_s=0.009, plc_cycle=25, seq_echo=1, plc_state=2, plc_error=0,
    plc_stopped=False, drives_enabled=True, drives_fault=False, length_m=np.full(N, 0.95), length_m_s=REST,
    setpoint_m=np.full(N, 0.95), drive_n=REST,
)  # fmt: skip
