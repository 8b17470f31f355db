"""How hypothesis runs here: time, which is the machine's and not a test's, fails nothing."""

from hypothesis import HealthCheck, settings

settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")
