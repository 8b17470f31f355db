"""Half a minute of faults at random; more by `python -m tests.faults.soak --minutes 10`."""

from tests.faults.soak import soak

SECONDS = 25.0


def test_every_promise_holds() -> None:
    report = soak(SECONDS, seed=5)
    assert report.ok, report
    assert report.num_requests > 20
    assert sum(report.faults.values()) >= 4
