"""Kill the decode engine at each output position of a stream: `python -m tests.faults.every_position`.

A real engine process is held just after it sent the token of that position and killed there; position 0 is
the bootstrap token, so the engine dies holding the handoff and having said nothing. The client must get
every token once, and the very ones of the unbroken run: sampling is keyed by (seed, position), and the
model computes in float64, so that it does not matter that a continuation computes the delivered tokens in
one chunk where the unbroken run computed them one by one.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.faults.real_child import Hold
from tests.faults.real_clients import ANSWERED, Answer, Clients, Shape
from tests.faults.real_cluster import RealCluster, RealProcess
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

NUM_TOKENS = 64
ARRIVAL_S = 0.3
PROMPT = (7, *range(20, 53))
KINDS = {
    "greedy": Shape(PROMPT, NUM_TOKENS),
    "seeded": Shape(PROMPT, NUM_TOKENS, temperature=1.0, seed=11),
}


@dataclass(frozen=True, slots=True)
class PositionResult:
    """One kill. `gap_s` is the client's wait for the next token."""

    kind: str
    position: int
    gap_s: float
    problem: str = ""


def kill_at(positions: Iterable[int], kinds: Iterable[str] = KINDS) -> Iterator[PositionResult]:
    """Run both kinds of stream on one prefill and three decode engines, one kill for each."""
    with tempfile.TemporaryDirectory(prefix="pdserve-positions-") as name:
        folder = Path(name)
        model_dir = make_tiny_model(folder / "model")
        with RealCluster(model_dir, folder, num_prefill=1, num_decode=3) as cluster:
            cluster.respawning = True
            clients = Clients(cluster.url)
            unbroken = {kind: clients.ask(KINDS[kind]) for kind in kinds}
            assert all(len(a.token_ids) == NUM_TOKENS for a in unbroken.values()), unbroken
            for position in positions:
                for kind in kinds:
                    yield _kill_once(cluster, kind, position, unbroken[kind])


def _kill_once(cluster: RealCluster, kind: str, position: int, unbroken: Answer) -> PositionResult:
    wait_for(lambda: _enough_decode(cluster), 120.0, "two decode engines")
    hold = Hold("TokenBatch", after=position > 0, position=max(1, position))
    # One that is about to join may be given the request too.
    lives = _decode_lives(cluster)
    for life in lives:
        life.hold(hold)
    answer = Clients(cluster.url).begin(KINDS[kind])
    wait_for(lambda: any(life.held.is_set() for life in lives), 60.0, "the position")
    victim = next(life for life in lives if life.held.is_set())
    _let_arrive(answer, position + 1)
    killed_at = cluster.kill(victim.name)
    for life in lives:
        life.let_go()
    wait_for(lambda: answer.ended_at, 90.0, "the end of the answer")
    return PositionResult(
        kind, position, answer.silence_after(killed_at), _problem(answer, unbroken, position)
    )


def _let_arrive(answer: Answer, num_tokens: int) -> None:
    """Give what was sent a moment to reach the client; half a character's tokens wait for the rest."""
    until = time.monotonic() + ARRIVAL_S
    while len(answer.token_ids) < num_tokens and time.monotonic() < until:
        time.sleep(0.005)


def _decode_lives(cluster: RealCluster) -> list[RealProcess]:
    return [life for name, life in cluster.processes.items() if name.startswith("d")]


def _enough_decode(cluster: RealCluster) -> bool:
    """Whether the balancer knows two decode engines, and the dead have been replaced."""
    lives, known = _decode_lives(cluster), cluster.members()
    return all(life.process.is_alive() for life in lives) and (
        sum(known.get(life.name) == life.incarnation for life in lives) >= 2
    )


def _problem(answer: Answer, unbroken: Answer, position: int) -> str:
    if answer.outcome != ANSWERED:
        return f"{answer.outcome}: {answer.detail}"
    if len(answer.token_ids) != NUM_TOKENS:
        return f"{len(answer.token_ids)} tokens"
    differ = [i for i in range(NUM_TOKENS) if answer.token_ids[i] != unbroken.token_ids[i]]
    if differ:
        which = "before the kill" if differ[0] <= position else "after it"
        return f"other tokens from position {differ[0]} on, {which}"
    return "" if answer.text == unbroken.text else "equal tokens, another text"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.every_position")
    parser.add_argument("--step", type=int, default=1, help="kill at every STEP-th position")
    options = parser.parse_args()
    began, results = time.monotonic(), []
    for result in kill_at(range(0, NUM_TOKENS - 1, options.step)):
        results.append(result)
        if result.problem:
            print(f"{result.kind} {result.position}: {result.problem}", flush=True)
    gaps = sorted(result.gap_s for result in results)
    bad = [result for result in results if result.problem]
    print(
        f"{len(results)} kills in {time.monotonic() - began:.0f} s: {len(bad)} streams with a lost,"
        f" repeated or other token; the next token came after {gaps[len(gaps) // 2]:.2f} s"
        f" (median), {gaps[-1]:.2f} s at most"
    )
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
