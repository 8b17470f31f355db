"""What a request may ask of the prefill core beyond a token: log probabilities, a grammar, statistics."""

import pytest

from bootstrap.fields import MAX_PROMPT_LOGPROBS
from bootstrap.identity import Peer
from bootstrap.messages import (
    AbortRoom,
    FailureReason,
    HandoffAccepted,
    HandoffRecord,
    LegFailed,
    Manifest,
    RoomTokens,
    TokenBatch,
    TokenLogprobs,
)
from bootstrap.sampling import FinishReason, GrammarKind, GrammarSpec
from engine.core import CompileGrammar, GrammarCompiled, Received, StepPlan
from engine.step import GrammarFault, NumericalFault, SampledToken, ScoredPrompt
from kv_transfer.prefix import prompt_digest
from prefill.core import PrefillCore
from prefill.handoffs import Handoffs, OpenTransfer, PromptComputed, Submit
from tests.support.cores import (
    BALANCER,
    DECODE,
    DECODE_INFO,
    limits,
    of_type,
    prefill_dispatch,
    prompt,
    room,
    sampling,
    sent,
    step,
)

GRAMMAR = GrammarSpec(GrammarKind.REGEX, "[0-9]+")
BOUND = sampling(8, grammar=GRAMMAR)


def core_with(*dispatches: object, **overrides: object) -> PrefillCore:
    core = PrefillCore(limits(**overrides))
    for each in dispatches:
        core.handle(Received(BALANCER, each), 0.0)
    core.validate()
    return core


def dispatch(number: int, num_tokens: int = 6, **overrides: object):
    """Room `number` with a prompt of its own."""
    return prefill_dispatch(number, prompt(num_tokens, first=10 * number), **overrides)


def scored(chunk, first: int = 0) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(-float(token_id)) for token_id in chunk.scored_token_ids)


def run_scored(core: PrefillCore) -> list[StepPlan]:
    """Step to the end with a model whose log probabilities tell their tokens."""
    plans = []
    while (plan := core.plan(0.0)) is not None:
        results = [
            SampledToken(7, -0.5, prompt_logprobs=scored(c))
            if c.sample
            else ScoredPrompt(scored(c))
            for c in plan.chunks
        ]
        core.complete(plan, results, 0.0)
        core.validate()
        plans.append(plan)
    return plans


def tokens_of(core: PrefillCore) -> list[RoomTokens]:
    return [tokens for batch in sent(core.drain(), TokenBatch, BALANCER) for tokens in batch.rooms]


# --- log probabilities -----------------------------------------------------------------------


@pytest.mark.parametrize("num_logprobs", [None, 0, 2])
def test_token_0_comes_with_its_log_probabilities_if_they_are_wanted(num_logprobs) -> None:
    core = core_with(dispatch(1, sampling=sampling(num_logprobs=num_logprobs)))
    plan = core.plan(0.0)
    top = ((7, -0.5), (8, -1.5))[: num_logprobs or 0]
    core.complete(plan, [SampledToken(7, -0.5, top)], 0.0)
    (tokens,) = tokens_of(core)
    assert tokens.logprobs == (() if num_logprobs is None else (TokenLogprobs(-0.5, top),))


@pytest.mark.parametrize("num_tokens", [1, 4, 8, 9, 16, 17, 20])
def test_every_prompt_token_but_the_first_is_scored_once(num_tokens: int) -> None:
    core = core_with(dispatch(1, num_tokens, num_prompt_logprobs=0))
    run_scored(core)
    (tokens,) = tokens_of(core)
    expected = prompt(num_tokens, first=10)[1:]
    assert [-each.logprob for each in tokens.prompt_logprobs] == list(expected)


def test_a_scored_prompt_reuses_nothing_and_leaves_its_blocks_for_others() -> None:
    core = core_with(dispatch(1, 9))
    step(core)
    step(core)
    core.handle(Received(DECODE, AbortRoom(room(1), FailureReason.PEER_ABORTED)), 0.0)
    again = prompt(9, first=10)
    for number, num_prompt_logprobs in ((2, 1), (3, None)):
        overrides = {"num_prompt_logprobs": num_prompt_logprobs}
        core.handle(Received(BALANCER, prefill_dispatch(number, again, **overrides)), 0.0)
    plans = run_scored(core)
    starts = {r: c.start for p in reversed(plans) for r, c in zip(p.rooms, p.chunks, strict=True)}
    assert starts == {room(2): 0, room(3): 8}
    assert plans[0].chunks[0].num_prompt_logprobs == 1


def test_what_earlier_attempts_delivered_is_no_prompt() -> None:
    core = core_with(dispatch(1, 9, output_offset=3, num_prompt_logprobs=0))
    run_scored(core)
    (tokens,) = tokens_of(core)
    assert [-each.logprob for each in tokens.prompt_logprobs] == list(prompt(9, first=10)[1:6])


def test_more_prompt_logprobs_than_a_frame_holds_are_refused() -> None:
    num_tokens = MAX_PROMPT_LOGPROBS // 21 + 1
    roomy = {"max_model_len": 1 << 20, "num_blocks": 1 << 16}
    too_many = dispatch(1, num_tokens, num_prompt_logprobs=20)
    core = core_with(too_many, dispatch(2, num_tokens, num_prompt_logprobs=10), **roomy)
    (failed,) = sent(core.drain(), LegFailed, BALANCER)
    assert (failed.room, failed.reason) == (room(1), FailureReason.TOO_LARGE)


def test_a_prompt_that_cannot_be_scored_fails_before_its_token() -> None:
    core = core_with(dispatch(1, 12, num_prompt_logprobs=0))
    core.complete(core.plan(0.0), [NumericalFault("NaN")], 0.0)
    (failed,) = sent(core.drain(), LegFailed, BALANCER)
    assert failed.reason is FailureReason.NUMERICAL


# --- grammars --------------------------------------------------------------------------------


def test_all_but_the_last_token_is_computed_while_the_grammar_compiles() -> None:
    core = core_with(dispatch(1, 12, sampling=BOUND))
    assert of_type(core.drain(), CompileGrammar) == [CompileGrammar(room(1), GRAMMAR)]
    first = step(core)
    core.handle(Received(BALANCER, dispatch(2, 3)), 0.0)
    second = step(core)
    assert first is not None
    assert second is not None
    assert [len(c.token_ids) for c in (*first.chunks, *second.chunks)] == [8, 3, 3]
    assert second.rooms == (room(1), room(2)), "nobody waits for another's grammar"
    assert core.plan(0.0) is None
    core.handle(GrammarCompiled(room(1), "compiled"), 0.0)
    last = step(core)
    assert last is not None
    (chunk,) = last.chunks
    assert (chunk.start, len(chunk.token_ids)) == (11, 1)
    assert chunk.sample is not None
    assert chunk.sample.grammar == "compiled"


def test_a_grammar_that_is_there_in_time_costs_no_step() -> None:
    core = core_with(dispatch(1, 6, sampling=BOUND))
    core.handle(GrammarCompiled(room(1), "compiled"), 0.0)
    plan = step(core)
    assert plan is not None
    assert plan.chunks[0].sample is not None


@pytest.mark.parametrize("num_steps", [0, 1])
def test_a_bad_grammar_is_a_bad_request(num_steps: int) -> None:
    core = core_with(dispatch(1, 12, sampling=BOUND))
    for _ in range(num_steps):
        step(core)
    core.drain()
    core.handle(GrammarCompiled(room(1), None, "unclosed group"), 0.0)
    out = core.drain()
    (failed,) = sent(out, LegFailed, BALANCER)
    assert (failed.reason, failed.detail) == (FailureReason.BAD_REQUEST, "unclosed group")
    assert sent(out, AbortRoom, DECODE)
    core.validate()


def test_a_grammar_that_nobody_had_time_for_may_be_asked_about_again() -> None:
    core = core_with(dispatch(1, 12, sampling=BOUND))
    core.handle(GrammarCompiled(room(1), None, "busy", FailureReason.QUEUE_FULL), 0.0)
    (failed,) = sent(core.drain(), LegFailed, BALANCER)
    assert failed.reason is FailureReason.QUEUE_FULL


def test_a_grammar_for_a_room_that_ended_changes_nothing() -> None:
    core = core_with(dispatch(1, 6, sampling=BOUND))
    core.handle(Received(BALANCER, AbortRoom(room(1), FailureReason.CANCELLED)), 0.0)
    core.drain()
    core.handle(GrammarCompiled(room(1), "compiled"), 0.0)
    core.handle(GrammarCompiled(room(1), None, "bad"), 0.0)
    assert core.drain() == []


def test_a_token_that_completes_the_grammar_ends_the_request_here() -> None:
    core = core_with(dispatch(1, 6, sampling=BOUND))
    core.handle(GrammarCompiled(room(1), "compiled"), 0.0)
    core.complete(core.plan(0.0), [SampledToken(7, 0.0, completes_grammar=True)], 0.0)
    out = core.drain()
    (batch,) = sent(out, TokenBatch, BALANCER)
    assert batch.rooms[0].finish is FinishReason.STOP
    assert [m.reason for m in sent(out, AbortRoom, DECODE)] == [FailureReason.FINISHED]


# --- faults ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (NumericalFault("NaN"), FailureReason.NUMERICAL),
        (GrammarFault("no"), FailureReason.BAD_REQUEST),
        (SampledToken(100, 0.0), FailureReason.NUMERICAL),  # the vocabulary ends at 99
    ],
)
def test_a_faulty_row_ends_alone_and_none_of_its_blocks_is_found(result, reason) -> None:
    core = core_with(dispatch(1, 4), dispatch(2, 4))
    core.complete(core.plan(0.0), [result, SampledToken(7, 0.0)], 0.0)
    out = core.drain()
    assert [(m.room, m.reason) for m in sent(out, LegFailed)] == [(room(1), reason)]
    assert [m.rooms[0].room for m in sent(out, TokenBatch)] == [room(2)]
    core.handle(Received(BALANCER, prefill_dispatch(3, (*prompt(4, first=10), 5))), 0.0)
    core.handle(Received(BALANCER, prefill_dispatch(4, (*prompt(4, first=20), 5))), 0.0)
    plan = core.plan(0.0)
    assert plan is not None
    assert [chunk.start for chunk in plan.chunks] == [0, 4]


# --- statistics ------------------------------------------------------------------------------


def test_the_record_tells_how_long_writes_were_under_way() -> None:
    handoffs = Handoffs(block_bytes=1000)
    handoffs.decode_joined(DECODE_INFO)
    handoffs.open(OpenTransfer(room(1), DECODE, (1, 2, 3)))
    sender: Peer = DECODE
    handoffs.pass_time(10.0)
    handoffs.manifest(sender, Manifest(room(1), 5, 1, (7, 8)))
    record = HandoffRecord(room(1), 1, 7, 0, 9, prompt_digest((1,)))
    handoffs.pass_time(11.0)
    handoffs.prompt_computed(PromptComputed(room(1), record))
    writes = of_type(handoffs.drain(), Submit)
    for write, now in zip(writes, (13.0, 13.5), strict=False):
        handoffs.pass_time(now)
        handoffs.written(room(1), write.write, None)
    (committed,) = sent(handoffs.drain(), HandoffRecord, DECODE)
    assert committed.transfer_bytes == 2000
    assert committed.transfer_s == pytest.approx(2.0)
    handoffs.accepted(sender, HandoffAccepted(room(1), 5))
    assert len(handoffs) == 0
