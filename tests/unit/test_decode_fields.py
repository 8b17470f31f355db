"""What a request may ask of the decode core beyond a token: log probabilities, a grammar, statistics."""

import pytest

from bootstrap.messages import (
    AbortRoom,
    FailureReason,
    LegFailed,
    Manifest,
    PrefillStarted,
    RoomTokens,
    TokenBatch,
    TokenLogprobs,
)
from bootstrap.sampling import FinishReason, GrammarKind, GrammarSpec
from engine.core import CompileGrammar, GrammarCompiled
from engine.step import GrammarFault, NumericalFault, SampledToken
from tests.support.cores import (
    BALANCER,
    PREFILL,
    decode_dispatch,
    of_type,
    prompt,
    room,
    sampling,
    sent,
)
from tests.support.decode_rig import DecodeRig

GRAMMAR = GrammarSpec(GrammarKind.REGEX, "[0-9]+")
BOUND = sampling(8, grammar=GRAMMAR)


def complete(rig: DecodeRig, *results: object) -> list[object]:
    """One step with these results."""
    plan = rig.core.plan(rig.now)
    assert plan is not None
    rig.core.complete(plan, results, rig.now)
    rig.core.validate()
    return rig.core.drain()


def tokens_of(out: list[object]) -> list[RoomTokens]:
    return [tokens for batch in sent(out, TokenBatch, BALANCER) for tokens in batch.rooms]


@pytest.mark.parametrize("num_logprobs", [None, 0, 2])
def test_tokens_come_with_their_log_probabilities_if_they_are_wanted(num_logprobs) -> None:
    rig = DecodeRig()
    rig.run(1, sampling=sampling(num_logprobs=num_logprobs))
    top = ((7, -0.5), (8, -1.5))[: num_logprobs or 0]
    (tokens,) = tokens_of(complete(rig, SampledToken(7, -0.5, top)))
    assert tokens.logprobs == (() if num_logprobs is None else (TokenLogprobs(-0.5, top),))


def test_the_sampler_sees_all_earlier_tokens_and_the_same_memory_each_step() -> None:
    rig = DecodeRig()
    rig.run(1, 6, output_offset=2)
    token_ids = [*prompt(6, first=10), 99]
    memories = []
    for position in (3, 4, 5):
        plan = rig.core.plan(0.0)
        assert plan is not None
        at = plan.chunks[0].sample
        assert at is not None
        assert at.position == position
        assert list(at.token_ids) == token_ids
        assert list(at.prompt_token_ids) == token_ids[:4]
        assert list(at.output_token_ids) == token_ids[4:]
        memories.append(at.memory)
        rig.core.complete(plan, [SampledToken(50 + position, 0.0)], 0.0)
        token_ids.append(50 + position)
    assert memories == [memories[0]] * 3


# --- grammars --------------------------------------------------------------------------------


def test_a_room_takes_no_pages_before_its_grammar_is_compiled() -> None:
    rig = DecodeRig()
    out = rig.dispatch(1, sampling=BOUND)
    assert of_type(out, CompileGrammar) == [CompileGrammar(room(1), GRAMMAR)]
    rig.receive(PrefillStarted(room(1)))
    assert rig.step() == []
    assert rig.pages == {"free": 16}
    rig.event(GrammarCompiled(room(1), "compiled"))
    assert sent(rig.step(), Manifest, PREFILL)
    rig.receive(rig.record(1))
    plan = rig.core.plan(0.0)
    assert plan is not None
    assert plan.chunks[0].sample is not None
    assert plan.chunks[0].sample.grammar == "compiled"


def test_a_grammar_that_is_there_first_delays_nothing() -> None:
    rig = DecodeRig()
    rig.dispatch(1, sampling=BOUND)
    rig.event(GrammarCompiled(room(1), "compiled"))
    rig.receive(PrefillStarted(room(1)))
    assert sent(rig.step(), Manifest, PREFILL)


def test_a_bad_grammar_is_a_bad_request() -> None:
    rig = DecodeRig()
    rig.dispatch(1, sampling=BOUND)
    out = rig.event(GrammarCompiled(room(1), None, "unclosed group"))
    (failed,) = sent(out, LegFailed, BALANCER)
    assert (failed.reason, failed.detail) == (FailureReason.BAD_REQUEST, "unclosed group")
    assert sent(out, AbortRoom, PREFILL)


def test_a_grammar_that_nobody_had_time_for_may_be_asked_about_again() -> None:
    rig = DecodeRig()
    rig.dispatch(1, sampling=BOUND)
    out = rig.event(GrammarCompiled(room(1), None, "busy", FailureReason.QUEUE_FULL))
    (failed,) = sent(out, LegFailed, BALANCER)
    assert failed.reason is FailureReason.QUEUE_FULL


def test_a_grammar_for_a_room_that_ended_changes_nothing() -> None:
    rig = DecodeRig()
    rig.dispatch(1, sampling=BOUND)
    rig.receive(AbortRoom(room(1), FailureReason.CANCELLED), BALANCER)
    assert rig.event(GrammarCompiled(room(1), "compiled")) == []
    assert rig.event(GrammarCompiled(room(1), None, "bad")) == []


def test_a_token_that_completes_the_grammar_ends_the_request() -> None:
    rig = DecodeRig()
    rig.run(1)
    (tokens,) = tokens_of(complete(rig, SampledToken(7, 0.0, completes_grammar=True)))
    assert tokens.finish is FinishReason.STOP


# --- faults ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (NumericalFault("NaN"), FailureReason.NUMERICAL),
        (GrammarFault("no"), FailureReason.BAD_REQUEST),
        (SampledToken(100, 0.0), FailureReason.NUMERICAL),  # the vocabulary ends at 99
    ],
)
@pytest.mark.parametrize("num_good", [0, 1, 3])
def test_a_faulty_row_ends_alone_and_names_no_block_that_it_computed(
    result, reason, num_good: int
) -> None:
    rig = DecodeRig()
    rig.run(2, 6, sampling=sampling(16))
    rig.run(1, 6)
    for _ in range(num_good):
        complete(rig, SampledToken(7, 0.0), SampledToken(60, 0.0))
    out = complete(rig, SampledToken(7, 0.0), result)
    assert [(m.room, m.reason) for m in sent(out, LegFailed)] == [(room(1), reason)]
    assert [tokens.room for tokens in tokens_of(out)] == [room(2)]
    # The second block is full with the first token after 99, and named with the second.
    again = (*prompt(6, first=10), 99, *[60] * num_good)
    rig.receive(decode_dispatch(3, (*again, 5)), BALANCER)
    rig.receive(PrefillStarted(room(3)))
    (manifest,) = sent(rig.step(), Manifest)
    assert manifest.first_block == min(num_good, 1) + (num_good >= 2)


# --- statistics ------------------------------------------------------------------------------


def test_the_last_token_tells_of_the_transfer_and_of_the_longest_gap() -> None:
    rig = DecodeRig()
    rig.admit(1, sampling=sampling(4))
    rig.receive(rig.record(1, transfer_s=0.25, transfer_bytes=4096))
    for gap in (0.5, 2.0, 1.0):
        rig.now += gap
        out = complete(rig, SampledToken(7, 0.0))
    (tokens,) = tokens_of(out)
    assert tokens.stats is not None
    assert tokens.stats.transfer_s == 0.25
    assert tokens.stats.transfer_bytes == 4096
    assert tokens.stats.max_gap_s == 2.0


def test_a_record_may_hold_guesses_that_nobody_uses() -> None:
    rig = DecodeRig()
    rig.admit(1)
    rig.receive(rig.record(1, draft_token_ids=(5, 6)))
    (tokens,) = tokens_of(complete(rig, SampledToken(7, 0.0)))
    assert (tokens.position, tokens.token_ids) == (1, (7,))
