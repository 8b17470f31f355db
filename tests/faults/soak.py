"""Faults at random for minutes: `python -m tests.faults.soak --minutes 10 --seed N`.

Two prefill and two decode engines, a load balancer and a bootstrap service as real processes with real
NIXL, replaced when they die. Eight clients ask without pause for things of mixed shapes, and know each
answer: all were asked once before the first fault. Afterwards nothing may be left over: no room, no page
that is neither free nor cached, and no memory that grew with the requests.
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.faults.real_clients import (
    ANSWERED,
    BROKEN_OFF,
    CUT,
    LEFT,
    REFUSED,
    Answer,
    Clients,
    Shape,
)
from tests.faults.real_cluster import RealCluster
from tests.faults.soak_faults import FaultDriver
from tests.support.tiny_model import make_tiny_model

NUM_CLIENTS, NUM_SHAPES = 8, 48
FAULT_EVERY_S = 5.0
MAX_ERROR_RATE = 0.01
MAX_GROWTH_BYTES_PER_MINUTE = 4 << 20  # of any process that lived for long
QUIET_TIMEOUT_S = 60.0
RETRY_AFTER_S = 1.0  # as refusals say
_TEND_S = 0.05
_WARM_S, _MIN_SPAN_S = 60.0, 60.0  # a life's first minute fills caches; then a slope needs one more


@dataclass(slots=True)
class SoakReport:
    """What a soak came to.

    `longest_silence_s` is of streams, the wait for the first token included. `error_rate` is of answers
    that were refused or broken off; `cut_rate` of those that the balancer's own death cut, of which nobody
    is left to tell.
    """

    seed: int
    seconds: float = 0.0
    num_requests: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    error_rate: float = 0.0
    cut_rate: float = 0.0
    num_wrong: int = 0
    longest_silence_s: float = 0.0
    num_processes_replaced: int = 0
    growth_mib_per_minute: dict[str, float] = field(default_factory=dict)
    left_over: str = ""
    problems: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        return not self.problems


class Soak:
    """One run on one cluster."""

    def __init__(self, cluster: RealCluster, seed: int) -> None:
        self._cluster = cluster
        self._dice = random.Random(seed)
        self._driver = FaultDriver(cluster, random.Random(seed + 1))
        self._shapes = [_shape(self._dice) for _ in range(NUM_SHAPES)]
        self._expected: dict[Shape, list[int]] = {}
        self._answers: list[Answer] = []
        self._ending = threading.Event()
        self._memory = MemoryWatch(cluster)
        self.report = SoakReport(seed)

    def run(self, seconds: float) -> SoakReport:
        """Strike for so long, then let everything come to rest and judge."""
        self._learn_answers()
        self._cluster.respawning = True
        threads = [self._client(number) for number in range(NUM_CLIENTS)]
        began = time.monotonic()
        strike_at = began + FAULT_EVERY_S
        num_strikes = int(seconds / FAULT_EVERY_S) - 1  # at least, on however busy a host
        while time.monotonic() - began < seconds or self._driver.num_strikes < num_strikes:
            self._driver.tend()
            if time.monotonic() >= strike_at:
                self._driver.strike()
                strike_at = time.monotonic() + FAULT_EVERY_S  # time to see this one and replace
            self._memory.look()
            time.sleep(_TEND_S)
        self._driver.mend()
        self._ending.set()
        for thread in threads:
            thread.join(120)
            if thread.is_alive():
                self.report.problems.append("a client hangs")
        self.report.seconds = time.monotonic() - began
        self._judge()
        return self.report

    # --- clients -------------------------------------------------------------------------------

    def _learn_answers(self) -> None:
        clients = Clients(self._cluster.url)
        for shape in self._shapes:
            whole = Shape(shape.prompt, shape.max_tokens, shape.temperature, shape.seed)
            answer = clients.ask(whole)
            assert answer.outcome == ANSWERED, answer
            self._expected[shape] = answer.token_ids

    def _client(self, number: int) -> threading.Thread:
        thread = threading.Thread(target=self._ask_on, args=(number,), daemon=True)
        thread.start()
        return thread

    def _ask_on(self, number: int) -> None:
        dice = random.Random(number)
        clients = Clients(self._cluster.url)
        while not self._ending.is_set():
            answer = clients.ask(dice.choice(self._shapes))
            self._answers.append(answer)
            if answer.outcome == REFUSED:
                self._ending.wait(RETRY_AFTER_S)
            elif answer.outcome == CUT:  # whoever comes meanwhile finds nobody, which is one fault
                self._cluster.wait_healthy()

    # --- judgement -----------------------------------------------------------------------------

    def _judge(self) -> None:
        report, cluster = self.report, self._cluster
        outcomes = Counter(a.outcome for a in self._answers)
        errors = [a for a in self._answers if a.outcome in (REFUSED, BROKEN_OFF)]
        report.num_requests, report.outcomes = len(self._answers), dict(outcomes)
        report.faults = dict(self._driver.counts)
        report.num_processes_replaced = len(cluster.deaths)
        report.error_rate = len(errors) / max(1, len(self._answers))
        report.cut_rate = outcomes[CUT] / max(1, len(self._answers))
        report.errors = [f"{a.outcome}: {a.detail[:300]}" for a in errors[:20]]
        silences = [a.longest_silence() for a in self._answers if a.shape.stream]
        report.longest_silence_s = max(silences, default=0.0)
        wrong = [a for a in self._answers if not self._is_right(a)]
        report.num_wrong = len(wrong)
        self._check_outcomes(outcomes, wrong)
        try:
            cluster.wait_members(4, QUIET_TIMEOUT_S)
            cluster.wait_ready(QUIET_TIMEOUT_S)
            cluster.wait_idle(QUIET_TIMEOUT_S)
        except AssertionError as error:
            report.left_over = str(error)
            report.problems.append("something is left over")
        report.growth_mib_per_minute = self._memory.slopes()
        for name, mib in report.growth_mib_per_minute.items():
            if mib * (1 << 20) > MAX_GROWTH_BYTES_PER_MINUTE:
                report.problems.append(f"{name} grows by {mib:.1f} MiB each minute")

    def _check_outcomes(self, outcomes: Counter[str], wrong: Sequence[Answer]) -> None:
        problems = self.report.problems
        for outcome in outcomes.keys() - {ANSWERED, REFUSED, BROKEN_OFF, LEFT, CUT}:
            example = next(a for a in self._answers if a.outcome == outcome)
            problems.append(f"{outcomes[outcome]} answers {outcome}: {example.detail[:500]}")
        num_balancers = sum(name == "lb" for name, _ in self._cluster.deaths)
        if outcomes[CUT] and not num_balancers:
            problems.append("connections ended though no balancer did")
        if self.report.error_rate > MAX_ERROR_RATE:
            problems.append(f"{self.report.error_rate:.2%} of requests failed")
        for answer in wrong[:3]:
            problems.append(f"wrong tokens: {answer}, expected {self._expected[answer.shape]}")

    def _is_right(self, answer: Answer) -> bool:
        return answer.token_ids == self._expected[answer.shape][: len(answer.token_ids)]


class MemoryWatch:
    """Resident memory of each life of each process, once a second."""

    def __init__(self, cluster: RealCluster) -> None:
        self._cluster = cluster
        self._samples: dict[tuple[str, int], list[tuple[float, int]]] = {}
        self._look_at = 0.0

    def look(self) -> None:
        """Note what everybody holds now."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + 1.0
        for name, life in list(self._cluster.processes.items()):
            try:
                pages = int(Path(f"/proc/{life.pid}/statm").read_text().split()[1])
            except (OSError, IndexError):
                continue
            self._samples.setdefault((name, life.pid), []).append((now, pages * 4096))

    def slopes(self) -> dict[str, float]:
        """MiB a minute of each long life, from its second minute on; the steepest of each name."""
        slopes: dict[str, float] = {}
        for (name, _), samples in self._samples.items():
            late = [sample for sample in samples if sample[0] - samples[0][0] >= _WARM_S]
            if late and late[-1][0] - late[0][0] >= _MIN_SPAN_S:
                slope = _slope(late) * 60 / (1 << 20)
                slopes[name] = round(max(slope, slopes.get(name, slope)), 2)
        return slopes


def _slope(samples: Sequence[tuple[float, int]]) -> float:
    """Least squares, bytes a second."""
    mean_t = sum(t for t, _ in samples) / len(samples)
    mean_b = sum(b for _, b in samples) / len(samples)
    spread = sum((t - mean_t) ** 2 for t, _ in samples)
    return sum((t - mean_t) * (b - mean_b) for t, b in samples) / spread if spread else 0.0


def _shape(dice: random.Random) -> Shape:
    prompt = tuple(dice.choices(range(3, 300), k=dice.choice((4, 20, 60, 200, 500))))
    max_tokens = dice.choice((1, 2, 16, 64, 200))
    leaves = dice.random() < 0.1 and max_tokens > 4
    return Shape(
        prompt,
        max_tokens,
        temperature=dice.choice((0.0, 1.0)),
        seed=dice.randrange(1 << 20),
        stream=leaves or dice.random() < 0.8,
        leave_after=dice.randint(1, max_tokens // 2) if leaves else None,
    )


def soak(seconds: float, seed: int) -> SoakReport:
    """Run one."""
    with tempfile.TemporaryDirectory(prefix="pdserve-soak-") as name:
        folder = Path(name)
        model_dir = make_tiny_model(folder / "model")
        # Small pools: requests wait for pages, and are retracted, while processes come and go.
        with RealCluster(model_dir, folder, num_blocks=400) as cluster:
            return Soak(cluster, seed).run(seconds)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    report = soak(options.minutes * 60, options.seed)
    print(json.dumps(asdict(report), indent=1))
    print("every promise held" if report.ok else f"{len(report.problems)} problems")
    sys.exit(0 if report.ok else 1)


if __name__ == "__main__":
    main()
