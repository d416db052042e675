"""Kinematics and dynamics of parallel mechanisms: a machine as flat arrays, numba kernels, no I/O."""
