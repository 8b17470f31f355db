"""A load balancer that leaves: unready first, then refusing, then gone."""

from cluster.balancer.leaving import Leaving, Phase


def test_it_serves_on_for_the_delay_whether_anybody_comes_or_not() -> None:
    leaving = Leaving(began_at=10.0, delay_s=5.0, grace_s=30.0)
    assert leaving.phase(0, 10.0) is Phase.UNREADY
    assert leaving.phase(3, 14.9) is Phase.UNREADY


def test_it_refuses_until_nothing_runs_or_the_grace_is_over() -> None:
    leaving = Leaving(began_at=10.0, delay_s=5.0, grace_s=30.0)
    assert leaving.phase(1, 15.0) is Phase.REFUSING
    assert leaving.phase(0, 15.0) is Phase.OVER
    assert leaving.phase(1, 44.9) is Phase.REFUSING
    assert leaving.phase(1, 45.0) is Phase.OVER


def test_without_delay_or_streams_it_is_gone_at_once() -> None:
    assert Leaving(0.0, 0.0, 0.0).phase(1, 0.0) is Phase.OVER
    assert Leaving(0.0, 0.0, 10.0).phase(0, 0.0) is Phase.OVER
