"""Aborts that come before their request."""

from cluster.balancer.early_aborts import MAX_REMEMBERED, TTL_S, EarlyAborts


def test_an_abort_waits_for_its_request_and_counts_once() -> None:
    aborts = EarlyAborts()
    aborts.add("a", 10.0)
    assert not aborts.take("b", 11.0)
    assert aborts.take("a", 10.0 + TTL_S - 1)
    assert not aborts.take("a", 10.0 + TTL_S - 1)


def test_it_is_forgotten_in_time() -> None:
    aborts = EarlyAborts()
    aborts.add("a", 10.0)
    assert not aborts.take("a", 10.0 + TTL_S)


def test_a_repeat_is_remembered_from_then_on() -> None:
    aborts = EarlyAborts()
    aborts.add("a", 0.0)
    aborts.add("b", 1.0)
    aborts.add("a", 200.0)
    aborts.add("c", 301.5)  # drops what is over, from the front
    assert len(aborts) == 2
    assert aborts.take("a", 499.0)


def test_it_is_bounded_and_the_oldest_go_first() -> None:
    aborts = EarlyAborts()
    for number in range(MAX_REMEMBERED + 10):
        aborts.add(str(number), 0.0)
    assert len(aborts) == MAX_REMEMBERED
    assert not aborts.take("9", 1.0)
    assert aborts.take("10", 1.0)
