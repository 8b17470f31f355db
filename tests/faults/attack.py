"""Late writes into pages that others want: `python -m tests.faults.attack --rounds 1000`.

In each round a prefill engine is held with a write of real NIXL just about to go out, its request is
aborted at the decode engine, and others crowd the decode engine's small pool and decode. Then the write
lands, while every page of theirs is watched. A victim is a page that changed under its room, or an answer
that is not the request's own solo run.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootstrap.messages import WriterStopped
from bootstrap.sampling import SamplingParams
from decode.inbound import Inbound
from engine.core import StepPlan, StepResult
from engine.loop import Stepper
from tests.support.engine_cluster import EngineCluster
from tests.support.raw_balancer import Outcome, RawBalancer
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

BLOCK = 4
NUM_BLOCKS = 64  # of the decode engine: 40 are attacked, and three others want more than the rest
ATTACKED_TOKENS, OTHER_TOKENS, OUTPUT_TOKENS = 160, 40, 24
NUM_OTHERS = 3
NUM_PROMPTS = 12  # of others, each with its solo run


@dataclass(slots=True)
class AttackReport:
    """What a run came to. `num_held_back` counts quarantined pages while writes were held.

    In a missed round the others were done before the write came.
    """

    num_rounds: int = 0
    num_missed: int = 0
    num_answers: int = 0
    num_pages_watched: int = 0
    num_changed_pages: int = 0
    num_wrong_answers: int = 0
    num_held_back: int = 0

    @property
    def num_victims(self) -> int:
        """Pages and answers that got another's bytes."""
        return self.num_changed_pages + self.num_wrong_answers


class WriteGate:
    """Holds a prefill engine's writes back while it is closed."""

    def __init__(self, pump: Any) -> None:
        self._begin = pump._begin_write
        self._came, self._opened = threading.Event(), threading.Event()
        self._opened.set()
        pump._begin_write = self._pass

    def close(self) -> None:
        """Hold the next write, and all behind it."""
        self._came.clear()
        self._opened.clear()

    def wait_came(self) -> None:
        """Block until a write stands here."""
        assert self._came.wait(60), "no write came"

    def open(self) -> None:
        """Let them go."""
        self._opened.set()

    def _pass(self, write: Any) -> None:
        self._came.set()
        assert self._opened.wait(60)
        self._begin(write)


class Turnstile:
    """A stepper that stops before a step of at least so many rooms, when it is told to."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self._num_rooms: int | None = None
        self._entered, self._opened = threading.Event(), threading.Event()

    def run(self, plan: StepPlan) -> Sequence[StepResult]:
        """Step, perhaps after a wait."""
        if self._num_rooms is not None and len(plan.rooms) >= self._num_rooms:
            self._entered.set()
            assert self._opened.wait(60)
        return self._stepper.run(plan)

    def close(self, num_rooms: int) -> None:
        """Stop the next such step."""
        self._entered.clear()
        self._opened.clear()
        self._num_rooms = num_rooms

    @property
    def entered(self) -> bool:
        """Whether a step stands here: then the core is at rest until `open`."""
        return self._entered.is_set()

    def open(self) -> None:
        """Go on."""
        self._num_rooms = None
        self._opened.set()


@contextmanager
def no_quarantine() -> Iterator[None]:
    """Give an aborted request's pages to others at once, as if nobody could still write them."""
    ended = Inbound.ended

    def ended_at_once(self: Inbound, request: Any, exposed: bool, now: float) -> list[object]:
        out = ended(self, request, exposed, now)
        return out + self._free(WriterStopped(request.room)) if exposed else out

    Inbound.ended = ended_at_once  # type: ignore[method-assign]
    try:
        yield
    finally:
        Inbound.ended = ended  # type: ignore[method-assign]


class Attack:
    """A cluster of two prefill engines, `p0` of which attacks, and one decode engine."""

    def __init__(
        self, cluster: EngineCluster, balancer: RawBalancer, seed: int, num_running: int
    ) -> None:
        """The write lands while `num_running` others decode."""
        self._cluster, self._balancer = cluster, balancer
        self._dice = random.Random(seed)
        self._num_running = num_running
        self._decode = cluster.engines["d0"]
        self._gate = WriteGate(cluster.engines["p0"]._pump)
        loop = self._decode._loop
        loop._stepper = self._steps = Turnstile(loop._stepper)
        self.report = AttackReport()
        dice = random.Random(1)
        self._prompts = [dice.choices(range(3, 300), k=OTHER_TOKENS) for _ in range(NUM_PROMPTS)]
        self._solo = [self._finished(self._begin(i)) for i in range(NUM_PROMPTS)]

    def run_round(self) -> None:
        """One attack."""
        self._gate.close()
        prompt = self._dice.choices(range(3, 300), k=ATTACKED_TOKENS)
        sampling = SamplingParams(seed=0, max_tokens=8)
        attacker = self._cluster.engines["p0"]
        attacked = self._balancer.dispatch(attacker, self._decode, prompt, sampling)
        self._gate.wait_came()
        self._balancer.abort(self._decode, attacked)
        wait_for(lambda: self._decode.load().num_rooms == 0, what="the abort")
        self._steps.close(self._num_running)
        chosen = self._dice.sample(range(NUM_PROMPTS), NUM_OTHERS)
        outcomes = [self._begin(index) for index in chosen]
        wait_for(lambda: self._steps.entered or _all_over(outcomes), 60.0, "others decode")
        if self._steps.entered:
            self._strike()
        else:
            self.report.num_missed += 1
            self._gate.open()
        self._steps.open()
        for index, outcome in zip(chosen, outcomes, strict=True):
            self.report.num_wrong_answers += self._finished(outcome) != self._solo[index]
        self._cluster.wait_idle(60.0)
        self.report.num_rounds += 1
        self.report.num_answers += NUM_OTHERS

    def _begin(self, index: int) -> Outcome:
        sampling = SamplingParams(seed=index, max_tokens=OUTPUT_TOKENS, temperature=index % 2 * 1.0)
        prefill = self._cluster.engines["p1"]
        return self._balancer.dispatch(prefill, self._decode, self._prompts[index], sampling)

    def _finished(self, outcome: Outcome) -> list[int]:
        wait_for(lambda: outcome.finish or outcome.failures, 60.0, "an answer")
        return [] if outcome.failures else outcome.output

    def _strike(self) -> None:
        """Let the write land while the decode core is at rest, and see whose pages it changed."""
        report, attacker = self.report, self._cluster.engines["p0"]
        report.num_held_back += self._cluster.decode_core().load().pages.get("quarantined", 0)
        before = self._watched()
        num_writes = attacker._pump.stats()["num_writes"]
        self._decode._pump.open_inbound()  # as any other room would, that is being received
        self._gate.open()
        wait_for(lambda: attacker._pump.stats()["num_writes"] > num_writes, what="the late write")
        self._decode._pump.close_inbound()
        after = self._watched()
        report.num_pages_watched += len(before)
        report.num_changed_pages += sum(before[page] != after[page] for page in before)

    def _watched(self) -> dict[int, bytes]:
        """Bytes of the prompts' pages of all who decode, by page."""
        scheduler = self._cluster.decode_core().scheduler
        arena, size = self._decode._digester._arena, self._decode._links.block_bytes
        pages = [
            page
            for room in scheduler.running
            for page in scheduler.ledger.pages_of(room)[: OTHER_TOKENS // BLOCK]
        ]
        return {page: bytes(arena[page * size : (page + 1) * size]) for page in pages}


def _all_over(outcomes: Sequence[Outcome]) -> bool:
    return all(outcome.finish or outcome.failures for outcome in outcomes)


def attack(model_dir: Path, seed: int, num_rounds: int, num_running: int = 2) -> AttackReport:
    """Run so many rounds on one cluster."""
    settings = {"block_size": BLOCK, "prefix_caching": False, "transfer": "nixl"}
    decode = {"num_blocks": NUM_BLOCKS, "max_model_len": NUM_BLOCKS * BLOCK}
    with (
        EngineCluster(model_dir, num_prefill=2, decode=decode, **settings) as cluster,
        RawBalancer() as balancer,
    ):
        run = Attack(cluster, balancer, seed, num_running)
        for _ in range(num_rounds):
            run.run_round()
        return run.report


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.attack")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--without-quarantine", action="store_true", help="and see victims")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pdserve-attack-") as name:
        model_dir = make_tiny_model(Path(name) / "model")
        if options.without_quarantine:
            with no_quarantine():
                report = attack(model_dir, options.seed, options.rounds, NUM_OTHERS)
        else:
            report = attack(model_dir, options.seed, options.rounds)
    print(f"{report} in {time.monotonic() - began:.0f} s: {report.num_victims} victims")
    sys.exit(1 if report.num_victims else 0)


if __name__ == "__main__":
    main()
