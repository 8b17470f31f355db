"""Damaged blocks through real engines and transports: the answer is the solo run's, or none."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bootstrap.messages import FailureReason
from bootstrap.sampling import SamplingParams
from engine.host import EngineHost
from engine.loader import load_model
from engine.solo import SoloEngine
from kv_transfer.backends.faults import Corrupt, Fault, FaultPlan, Reorder, Truncate
from kv_transfer.backends.nixl import NixlBackend
from kv_transfer.backends.port import WriteId, WriteOutcome
from kv_transfer.layout import Run
from tests.support.engine_cluster import EngineCluster
from tests.support.raw_balancer import RawBalancer
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

CHUNK = 12
GREEDY = SamplingParams(seed=0, max_tokens=8, temperature=0.0)
SEEDED = SamplingParams(seed=9, max_tokens=12, temperature=0.9, top_p=0.95)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def solo(model_dir: Path) -> SoloEngine:
    return SoloEngine(load_model(model_dir, "float64", "cpu"), block_size=4)


@pytest.fixture
def balancer() -> Iterator[RawBalancer]:
    with RawBalancer() as balancer:
        yield balancer


def prompt_of(num_tokens: int) -> list[int]:
    return random.Random(num_tokens).choices(range(3, 300), k=num_tokens)


def counters(engine: EngineHost) -> dict[str, int]:
    return {name: n for name, n in engine.load().counters.items() if name.startswith("blocks_")}


def misbehave(engine: EngineHost, faults: dict[int, Fault]) -> None:
    """Let the fake transport of a prefill engine go wrong."""
    engine._pump._backend._plan = FaultPlan(faults)


def knows_pages(engine: EngineHost, room: bytes) -> bool:
    """Whether a prefill engine has heard where to write the room's blocks."""
    role = engine._role
    with role._lock:
        view = role._handoffs.views().get(room)
    return view is not None and view.epoch > 0


class TornNixl:
    """A NIXL whose writes with even numbers damage the last byte of the peer's, and say nothing."""

    def __init__(self, real: NixlBackend, target: memoryview) -> None:
        self._real = real
        self._target = target
        self._damage: dict[WriteId, int] = {}
        self._num_writes = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def write(self, agent_name: str, runs: Sequence[Run]) -> WriteId:
        write_id = self._real.write(agent_name, runs)
        if self._num_writes % 2 == 0:
            self._damage[write_id] = runs[-1].remote_offset + runs[-1].num_bytes - 1
        self._num_writes += 1
        return write_id

    def poll(self) -> list[WriteOutcome]:
        outcomes = self._real.poll()
        for outcome in outcomes:
            at = self._damage.pop(outcome.write_id, None)
            if at is not None:
                self._target[at] ^= 0xFF
        return outcomes


@pytest.mark.parametrize(
    ("faults", "num_damaged"),
    [
        ({0: Corrupt(0)}, 1),
        ({1: Corrupt(100), 2: Corrupt(1)}, 2),
        ({0: Truncate(0)}, 3),
        ({2: Truncate(1)}, 3),
        ({0: Reorder()}, 0),
    ],
    ids=["corrupt", "corrupt twice", "nothing landed", "little landed", "reordered"],
)
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_faults_of_a_transport_that_claims_success_change_no_answer(
    model_dir: Path,
    solo: SoloEngine,
    balancer: RawBalancer,
    faults: dict[int, Fault],
    num_damaged: int,
    sampling: SamplingParams,
) -> None:
    with EngineCluster(model_dir, max_num_batched_tokens=CHUNK, prefix_caching=False) as cluster:
        p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
        misbehave(p0, faults)
        prompt = prompt_of(3 * CHUNK)
        (expected,) = solo.generate([prompt], [sampling], chunk_size=CHUNK)
        with cluster.gate("p0") as gate:  # each chunk is a write of its own
            outcome = balancer.dispatch(p0, d0, prompt, sampling)
            gate.wait_entered()
            wait_for(lambda: knows_pages(p0, outcome.room), what="a manifest")
        wait_for(lambda: outcome.finish or outcome.failures, 60.0, "an answer")
        assert outcome.output == expected
        cluster.wait_idle()
        resent = counters(p0)["blocks_resent"]
        found = counters(d0)
        assert found["blocks_damaged"] == resent
        assert bool(num_damaged) == bool(resent)
        assert found["blocks_verified"] == (18 if num_damaged else 9)


def test_a_damaged_block_over_nixl_is_sent_again(
    model_dir: Path, solo: SoloEngine, balancer: RawBalancer
) -> None:
    with EngineCluster(model_dir, transfer="nixl", prefix_caching=False) as cluster:
        p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
        arena = d0._digester._arena
        p0._pump._backend = TornNixl(p0._pump._backend, arena)
        for length in (4, 37, 61):
            prompt = prompt_of(length)
            (expected,) = solo.generate([prompt], [GREEDY], chunk_size=64)
            assert balancer.generate(p0, d0, prompt, GREEDY) == expected
        cluster.wait_idle()
        assert counters(d0)["blocks_damaged"] == counters(p0)["blocks_resent"] == 3


def test_blocks_damaged_twice_fail_the_room_and_the_next_is_right(
    model_dir: Path, solo: SoloEngine, balancer: RawBalancer
) -> None:
    with EngineCluster(model_dir) as cluster:
        p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
        misbehave(p0, {0: Corrupt(5), 1: Corrupt(7)})
        prompt = prompt_of(10)
        outcome = balancer.dispatch(p0, d0, prompt, GREEDY)
        # The prefill engine tells of it too, and its words may come first.
        wait_for(lambda: "d0" in outcome.failures and outcome.tokens, what="the failure")
        assert outcome.failures["d0"].reason is FailureReason.HANDOFF_REJECTED
        assert list(outcome.tokens) == [0], "only what the prefill engine said itself"
        (expected,) = solo.generate([prompt], [GREEDY], chunk_size=64)
        assert balancer.generate(p0, d0, prompt, GREEDY) == expected
        cluster.wait_idle()


@pytest.mark.parametrize(
    ("prefill", "decode", "num_verified"), [(True, False, 5), (False, True, 0), (False, False, 0)]
)
def test_engines_that_verify_work_with_those_that_do_not(
    model_dir: Path,
    solo: SoloEngine,
    balancer: RawBalancer,
    prefill: bool,
    decode: bool,
    num_verified: int,
) -> None:
    legs = {"prefill": {"verify_handoff": prefill}, "decode": {"verify_handoff": decode}}
    with EngineCluster(model_dir, **legs) as cluster:
        p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
        prompt = prompt_of(18)
        (expected,) = solo.generate([prompt], [GREEDY], chunk_size=64)
        assert balancer.generate(p0, d0, prompt, GREEDY) == expected
        cluster.wait_idle()
        assert counters(d0)["blocks_verified"] == num_verified
