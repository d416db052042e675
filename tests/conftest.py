"""For all tests: examples are the same in every run, and a loaded machine is no failure."""

from hypothesis import HealthCheck, settings

settings.register_profile("project", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")
