"""Turns in the balancer's queue: fair between tenants, in order within, bounded, and for everybody."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.balancer.queue import SHARE, FairQueue, QueueBounds, Waiting

ROOMY = QueueBounds(max_requests=10_000, max_tokens=1 << 30)


class Rig:
    """A queue whose worker takes `num_places` requests and ends none by itself."""

    def __init__(self, bounds: QueueBounds = ROOMY) -> None:
        self.queue = FairQueue(bounds)
        self.num_places = 0
        self.served: list[int] = []
        self.num_keys = 0
        self.sizes: dict[int, int] = {}

    def add(self, tenant: str, num_tokens: int = 10) -> int:
        self.num_keys += 1
        self.sizes[self.num_keys] = num_tokens
        is_large = num_tokens >= 100
        self.queue.add(Waiting(self.num_keys, tenant, num_tokens, num_tokens, is_large))
        self.queue.validate()
        return self.num_keys

    def offer(self, num_places: int, largest: int = 1 << 30) -> list[int]:
        """Serve up to `num_places` requests of at most `largest` tokens; who they were."""
        self.num_places = num_places
        before = len(self.served)

        def place(key: int) -> bool:
            if self.sizes[key] > largest:
                return False
            self.num_places -= 1
            self.served.append(key)
            return True

        def is_open(is_large: bool) -> bool:
            return self.num_places > 0 and (not is_large or largest >= 100)

        self.queue.serve(place, is_open)
        self.queue.validate()
        return self.served[before:]


def test_one_tenant_is_served_in_order_of_arrival():
    rig = Rig()
    keys = [rig.add("a", 1 + i % 3) for i in range(10)]
    assert rig.offer(4) + rig.offer(100) == keys
    assert len(rig.queue) == 0


def test_a_thousand_requests_of_one_key_do_not_delay_anothers_first():
    rig = Rig()
    for _ in range(1000):
        rig.add("flood")
    rig.offer(20)
    mine = rig.add("light")
    assert mine in rig.offer(2)


def test_turns_follow_tokens_not_requests():
    rig = Rig()
    large = [rig.add("large", 100) for _ in range(20)]
    small = [rig.add("small", 10) for _ in range(200)]
    served = rig.offer(110)
    assert 9 <= len(set(served) & set(large)) <= 11
    assert 99 <= len(set(served) & set(small)) <= 101


def test_having_been_idle_earns_nothing():
    rig = Rig()
    early = rig.add("early")
    rig.offer(1)
    rig.queue.end(early, 10)
    for _ in range(50):
        rig.add("busy")
    rig.offer(40)
    came_back = [rig.add("early") for _ in range(10)]
    served = rig.offer(10)
    assert len(set(served) & set(came_back)) in (5, 6)


def test_what_a_request_took_is_corrected_at_its_end():
    rig = Rig()
    first = rig.add("a", 10)
    rig.add("b", 10)
    assert rig.offer(2)[0] == first
    rig.queue.end(first, 1000)  # it was expected to take 10
    b, a = [rig.add("b") for _ in range(5)], [rig.add("a") for _ in range(5)]
    assert rig.offer(5) == b
    assert rig.offer(5) == a


def test_who_does_not_fit_now_is_passed_and_keeps_its_place():
    rig = Rig()
    large = rig.add("a", 100)
    small = [rig.add("a", 1) for _ in range(5)]
    assert rig.offer(2, largest=50) == small[:2]
    assert rig.offer(2) == [large, small[2]]


def test_who_comes_back_goes_first_and_is_charged_once():
    rig = Rig()
    first = rig.add("a")
    rig.offer(1)
    rig.add("b")
    rig.queue.come_back(first)
    assert first in rig.queue
    assert rig.offer(1) == [first]
    rig.queue.end(first, 10)
    rig.queue.end(first, 10)
    rig.queue.validate()
    assert first not in rig.queue


def test_the_bounds_count_requests_and_their_prompt_tokens():
    rig = Rig(QueueBounds(max_requests=3, max_tokens=100))
    assert rig.queue.refusal("", 5, 500) is None, "one call finds a place where nothing waits"
    rig.add("", 60)
    assert rig.queue.refusal("", 2, 40) is None
    assert rig.queue.refusal("", 3, 3) is not None
    assert rig.queue.refusal("", 1, 41) is not None


def test_no_key_takes_the_places_of_all_others():
    rig = Rig(QueueBounds(max_requests=100, max_tokens=1 << 30))
    while rig.queue.refusal("flood", 1, 10) is None:
        rig.add("flood")
    assert len(rig.queue) == 75
    num_light = 0
    while rig.queue.refusal("light", 1, 10) is None:
        rig.add("light")
        num_light += 1
    assert num_light >= 15
    assert rig.queue.refusal("third", 1, 10) is None


def test_where_there_are_no_keys_everybody_shares_the_whole_queue():
    rig = Rig(QueueBounds(max_requests=100, max_tokens=1 << 30))
    while rig.queue.refusal("", 1, 10) is None:
        rig.add("")
    assert len(rig.queue) == 100


def test_what_stands_before_a_new_request_is_its_fair_part():
    rig = Rig()
    for _ in range(100):
        rig.add("flood", 10)
    for _ in range(3):
        rig.add("light", 10)
    assert rig.queue.cost_ahead("light") == 60
    assert rig.queue.cost_ahead("flood") == 1030
    assert rig.queue.cost_ahead("new") == 0


def test_tenants_that_are_gone_are_forgotten():
    rig = Rig()
    for number in range(500):
        key = rig.add(f"tenant-{number}")
        rig.offer(1)
        rig.queue.end(key, 10)
    assert len(rig.queue._tenants) < 5


TENANTS = st.sampled_from(["a", "b", "c"])
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), TENANTS, st.integers(1, 50)),
        st.tuples(st.just("offer"), st.integers(0, 3), st.integers(1, 60)),
        st.tuples(st.just("end"), st.integers(0, 100), st.integers(1, 80)),
        st.tuples(st.just("back"), st.integers(0, 100), st.just(0)),
    ),
    max_size=80,
)


@settings(max_examples=200, deadline=None)
@given(ACTIONS)
def test_whatever_happens_the_books_agree_bounds_hold_and_everybody_is_served(actions):
    bounds = QueueBounds(max_requests=12, max_tokens=300)
    rig = Rig(bounds)
    added: set[int] = set()
    running: list[int] = []
    for kind, first, second in actions:
        if kind == "add" and rig.queue.refusal(first, 1, second) is None:
            added.add(rig.add(first, second))
        elif kind == "offer":
            waited = set(rig.queue.waiting())
            served = rig.offer(first, second)
            assert set(served) <= waited
            if len(served) < first:  # work conservation: nobody is left whom the worker would take
                left = [key for key in rig.queue.waiting() if rig.sizes[key] <= second]
                assert not left
            running += served
        elif kind == "end" and running:
            rig.queue.end(running.pop(first % len(running)), second)
        elif kind == "back" and running:
            rig.queue.come_back(running.pop(first % len(running)))
        assert rig.queue.num_prompt_tokens <= bounds.max_tokens
        rig.queue.validate()
    rig.offer(1 << 20)
    assert set(rig.served) == added, "somebody starved"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=60, max_size=60), st.integers(1, 5))
def test_two_who_wait_never_differ_by_more_than_one_request(costs, width):
    rig = Rig()
    for index, cost in enumerate(costs):
        rig.add("a" if index % 3 else "b", cost)
    tokens = {"a": 0, "b": 0}
    owner = {key: "a" if (key - 1) % 3 else "b" for key in rig.sizes}
    while {owner[key] for key in rig.queue.waiting()} == {"a", "b"}:
        for key in rig.offer(width):
            tokens[owner[key]] += rig.sizes[key]
        if {owner[key] for key in rig.queue.waiting()} == {"a", "b"}:
            assert abs(tokens["a"] - tokens["b"]) <= max(costs)


@settings(max_examples=60, deadline=None)
@given(st.integers(5, 60), st.integers(1, 4))
def test_a_flood_leaves_places_for_others(max_requests, num_others):
    rig = Rig(QueueBounds(max_requests, 1 << 30))
    while rig.queue.refusal("flood", 1, 1) is None:
        rig.add("flood", 1)
    assert len(rig.queue) <= max(1, SHARE * (max_requests + 1) // (SHARE + 1))
    assert rig.queue.refusal("other", 1, 1) is None or max_requests < 2
