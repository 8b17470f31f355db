"""The test suite's own kubelet judges probes as Kubernetes does."""

from tests.support.kubelet_health import Health

STARTUP = {"periodSeconds": 2, "failureThreshold": 3}
MANIFEST = {
    "startupProbe": STARTUP,
    "livenessProbe": {"periodSeconds": 10, "failureThreshold": 2},
    "readinessProbe": {"periodSeconds": 5, "failureThreshold": 2, "successThreshold": 2},
}


def kinds(health: Health, now: float) -> set[str]:
    return {kind for kind, _ in health.due(now)}


def test_nothing_else_is_asked_before_the_start() -> None:
    health = Health(MANIFEST, 0.0)
    assert kinds(health, 0.0) == {"startupProbe"}
    health.probed("startupProbe", False, 0.0)
    assert kinds(health, 1.9) == set()
    health.probed("startupProbe", True, 2.0)
    assert health.started
    assert not health.ready
    assert kinds(health, 2.0) == {"livenessProbe", "readinessProbe"}


def test_a_start_that_takes_too_long_fails() -> None:
    health = Health(MANIFEST, 0.0)
    for now in (0.0, 2.0, 4.0):
        assert not health.failed
        health.probed("startupProbe", False, now)
    assert health.failed == "startupProbe"


def test_readiness_comes_and_goes_and_kills_nobody() -> None:
    health = Health(MANIFEST, 0.0)
    health.probed("startupProbe", True, 0.0)
    seen = []
    for good in (True, True, False, True, False, False):
        health.probed("readinessProbe", good, 1.0)
        seen.append(health.ready)
    assert seen == [False, True, True, True, True, False]
    assert not health.failed


def test_liveness_must_fail_in_a_row() -> None:
    health = Health(MANIFEST, 0.0)
    health.probed("startupProbe", True, 0.0)
    for good in (False, True, False):
        health.probed("livenessProbe", good, 1.0)
    assert not health.failed
    health.probed("livenessProbe", False, 2.0)
    assert health.failed == "livenessProbe"


def test_without_probes_a_container_is_ready_at_once() -> None:
    assert Health({}, 0.0).ready
