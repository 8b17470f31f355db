"""Text out of token ids: whole characters only, stop strings cut and never leaked."""

from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from bootstrap.messages import TokenLogprobs
from bootstrap.sampling import FinishReason, SamplingParams
from cluster.balancer.detokenizer import IncrementalDetokenizer
from cluster.balancer.stops import StopStrings, bootstrap_stop_ids
from cluster.balancer.text import ChoiceText, TextDelta, TextRules
from engine.token_bytes import token_bytes
from tests.support.tiny_model import EOS_TOKEN_ID, VOCAB_SIZE, _tokenizer_json


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str(_tokenizer_json())


def decode(ids) -> str:
    return tokenizer().decode(list(ids), skip_special_tokens=True)


def byte_ids(data: bytes) -> list[int]:
    """One id per byte, so that every character is split as far as it goes."""
    return [i for b in data for i in [_id_of_byte()[b]]]


@cache
def _id_of_byte() -> dict[int, int]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {b: tokenizer().token_to_id(c) for b, c in bytes_to_unicode().items()}


texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["👩‍👩‍👧‍👦", "e\u0301a\u0308\u0323", "ﷺ\u200d", "日本語", "🇬🇧🇯🇵", "\ufffd\ufffd", "a\ufffdb"]
)
id_lists = st.lists(st.integers(0, VOCAB_SIZE + 3), max_size=60)
mixed = st.lists(id_lists | texts.map(lambda t: byte_ids(t.encode())), max_size=4).map(
    lambda parts: [i for part in parts for i in part]
)


@given(mixed)
@example(byte_ids(b"\xe2") + [EOS_TOKEN_ID] * 30 + byte_ids(b"\x82\xac"))
@example(byte_ids(b"\xff" * 50))
@example(byte_ids(b"\xf0\x9f\x98" * 20 + "😀".encode()))
@example(byte_ids("€".encode() * 10 + b"\x82" * 40 + "€".encode()))
def test_pieces_join_to_the_whole_decode(ids):
    detokenizer = IncrementalDetokenizer(decode)
    pieces = [detokenizer.push(i) for i in ids]
    assert "".join(pieces) + detokenizer.finish() == decode(ids)


@given(texts)
def test_no_piece_ends_inside_a_character(text):
    detokenizer = IncrementalDetokenizer(decode)
    shown = ""
    for token_id in byte_ids(text.encode()):
        shown += detokenizer.push(token_id)
        assert text.startswith(shown)
    assert shown + detokenizer.finish() == text


def test_characters_that_always_straddle_two_ids_are_shown_and_the_window_stays_short():
    # Ids of three bytes, each ending one euro sign and opening the next.
    straddle = {0: b"\xe2", 1: b"\x82\xac\xe2", 2: b"\x82\xac"}
    longest = 0

    def decode_bytes(ids) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return b"".join(straddle[i] for i in ids).decode(errors="replace")

    detokenizer = IncrementalDetokenizer(decode_bytes)
    detokenizer.push(0)
    assert [detokenizer.push(1) for _ in range(100)] == ["€"] * 100
    assert detokenizer.push(2) == "€"
    assert longest <= 17


def test_special_tokens_without_end_cost_nothing():
    longest = 0

    def counting(ids) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids)

    detokenizer = IncrementalDetokenizer(counting)
    assert all(detokenizer.push(EOS_TOKEN_ID) == "" for _ in range(500))
    assert longest <= 2


def first_completed(text: str, stops: list[str]) -> str | None:
    """The text before whichever stop string is complete first, by trying every end."""
    for end in range(len(text) + 1):
        starts = [end - len(s) for s in stops if text[:end].endswith(s)]
        if starts:
            return text[: min(starts)]
    return None


@given(
    st.lists(st.text("ab\u00e9", max_size=4), max_size=12),
    st.lists(st.text("ab\u00e9", min_size=1, max_size=4), max_size=4),
)
def test_stop_strings_do_not_depend_on_how_text_is_cut(pieces, stops):
    text, search, shown = "".join(pieces), StopStrings(stops), ""
    expected = first_completed(text, stops)
    for piece in pieces:
        shown += search.push(piece)
        assert (text if expected is None else expected).startswith(shown)
        if search.hit:
            break
    assert search.hit == (expected is not None)
    assert shown + search.finish() == (text if expected is None else expected)


@given(st.text("abc", max_size=10), st.text("abc", min_size=1, max_size=4))
def test_text_is_held_no_longer_than_it_could_begin_a_stop(text, stop):
    search, shown = StopStrings([stop]), ""
    for at, character in enumerate(text):
        shown += search.push(character)
        if search.hit:
            return
        held = text[len(shown) : at + 1]
        assert stop.startswith(held)


def sampling(**overrides) -> SamplingParams:
    return SamplingParams(**{"seed": 0, "max_tokens": 100, **overrides})


def run(choice: ChoiceText, ids: list[int]):
    deltas = []
    for at, token_id in enumerate(ids):
        last = at == len(ids) - 1
        deltas.append(choice.push((token_id,), FinishReason.LENGTH if last else None))
        if deltas[-1].finish:
            break
    return "".join(d.text for d in deltas), sum(d.num_tokens for d in deltas), deltas[-1].finish


@pytest.mark.parametrize("stop", ["wor", "o w", "é", "\n", "hello world é\n!"])
def test_a_stop_string_across_tokens_and_characters_is_cut(stop):
    text = "hello world é\n!"
    ids = byte_ids(text.encode())
    shown, num_tokens, finish = run(ChoiceText(decode, sampling(), TextRules(stops=(stop,))), ids)
    assert shown == text[: text.index(stop)]
    assert num_tokens == len(text[: text.index(stop) + len(stop)].encode())
    assert finish is FinishReason.STOP


def test_a_held_tail_is_shown_when_the_text_ends():
    ids = byte_ids(b"abc EN")
    assert run(ChoiceText(decode, sampling(), TextRules(stops=("END",))), ids) == (
        "abc EN",
        6,
        FinishReason.LENGTH,
    )


def test_a_stop_string_is_not_searched_in_the_first_min_tokens():
    ids = byte_ids(b"x.y.z")
    choice = ChoiceText(decode, sampling(min_tokens=2), TextRules(stops=(".",)))
    assert run(choice, ids) == ("x.y", 4, FinishReason.STOP)


def test_the_stop_token_is_counted_and_not_shown():
    (a, b) = byte_ids(b"ab")
    choice = ChoiceText(decode, sampling(stop_token_ids=(b,)), TextRules(stops=()))
    delta = choice.push((a, b), FinishReason.STOP)
    assert (delta.text, delta.num_tokens, delta.finish) == ("a", 2, FinishReason.STOP)


def test_an_incomplete_character_at_the_end_becomes_a_replacement():
    delta = ChoiceText(decode, sampling(), TextRules(stops=())).push(
        tuple(byte_ids(b"a\xe2\x82")), FinishReason.LENGTH
    )
    assert delta.text == "a\ufffd"


def test_bootstrap_stop_ids_hold_a_whole_stop_string_in_their_own_text():
    vocabulary = ["a", "the", " the", "\ufffd", "th"]
    assert bootstrap_stop_ids(vocabulary, ("the",)) == (1, 2)
    assert bootstrap_stop_ids(vocabulary, ("\ufffd",)) == ()
    assert bootstrap_stop_ids(vocabulary, ()) == ()


def pushed(choice: ChoiceText, batches, finish=FinishReason.LENGTH):
    """All deltas; every token's log probability says its place among all tokens."""
    deltas, place = [], 0
    for at, batch in enumerate(batches):
        last = at == len(batches) - 1
        scores = [TokenLogprobs(-float(place + i)) for i in range(len(batch))]
        place += len(batch)
        deltas.append(choice.push(tuple(batch), finish if last else None, scores))
        if deltas[-1].finish:
            break
    return deltas


def cut(ids, sizes):
    """The ids in batches of these sizes, again and again."""
    batches, at = [], 0
    while at < len(ids):
        for size in sizes:
            batches.append(ids[at : at + size])
            at += size
    return [batch for batch in batches if batch] or [[]]


sizes_of_batches = st.lists(st.integers(1, 5), min_size=1, max_size=4)
some_stops = st.lists(st.sampled_from(["a", "\n\n", "é", "👧", "本語", "\ufffd"]), max_size=2)


@given(mixed, sizes_of_batches, some_stops, st.booleans())
def test_text_and_tokens_do_not_depend_on_batches_and_tokens_stay_with_their_text(
    ids, sizes, stops, include
):
    rules = TextRules(stops=tuple(stops), include_stop=include)
    one_by_one = pushed(ChoiceText(decode, sampling(), rules), cut(ids, [1]))
    batched = pushed(ChoiceText(decode, sampling(), rules), cut(ids, sizes))

    def joined(deltas):
        text = "".join(d.text for d in deltas)
        return text, sum(d.num_tokens for d in deltas), [t for d in deltas for t in d.tokens]

    assert joined(batched) == joined(one_by_one)
    text, num_tokens, tokens = joined(batched)
    assert [t.token_id for t in tokens] == list(ids[:num_tokens])
    assert [t.logprobs.logprob for t in tokens] == [-float(i) for i in range(num_tokens)]
    assert [t.offset for t in tokens] == sorted(t.offset for t in tokens)
    assert text == (first_completed_or_all(decode(ids), stops, include))
    shown = ""
    for delta in batched:
        shown += delta.text
        for token in delta.tokens:
            assert token.offset <= len(text)
            assert token.shown == (token.offset < len(text))
            assert token.offset < len(shown) or delta.finish


def first_completed_or_all(text: str, stops: list[str], include: bool) -> str:
    for end in range(len(text) + 1):
        starts = [end - len(s) for s in stops if text[:end].endswith(s)]
        if starts:
            return text[: end if include else min(starts)]
    return text


@given(mixed)
@example([*byte_ids(b"\xff\xe2A\xf0\x9f"), EOS_TOKEN_ID, *byte_ids(b"\x98\x80B\xe2")])
@example(byte_ids("\ufffd0".encode()))
@example(byte_ids(b"\xff" * 50 + b"\xf0\x9f\x98" * 20 + b"a"))
def test_offsets_point_at_the_characters_that_tokens_spell(ids):
    tokens = [
        t for d in pushed(ChoiceText(decode, sampling(), TextRules()), [ids]) for t in d.tokens
    ]
    raw = b"".join(vocabulary_bytes()[i] for i in ids if 2 < i < VOCAB_SIZE)
    at = 0
    for token in tokens:
        if 2 < token.token_id < VOCAB_SIZE:  # below are special tokens, above none
            assert token.offset == start_of(raw, at)
            at += len(vocabulary_bytes()[token.token_id])
    assert at == len(raw)


def start_of(raw: bytes, at: int) -> int:
    """The character of the whole text that byte `at` is in: how many there are up to it, less one."""
    num = len(raw[: at + 1].decode(errors="replace"))
    return num - 1


@cache
def vocabulary_bytes() -> tuple[bytes, ...]:
    return token_bytes(tokenizer())


def test_a_stop_token_is_shown_where_the_rules_include_it():
    (a, b) = byte_ids(b"ab")
    rules = TextRules(include_stop=True)
    delta = ChoiceText(decode, sampling(stop_token_ids=(b,)), rules).push((a, b), FinishReason.STOP)
    assert (delta.text, [t.shown for t in delta.tokens]) == ("ab", [True, True])


def test_a_hidden_stop_token_comes_last_and_is_marked():
    (a, b) = byte_ids(b"ab")
    choice = ChoiceText(decode, sampling(stop_token_ids=(b,)), TextRules())
    delta = choice.push((a, b), FinishReason.STOP)
    assert [(t.token_id, t.offset, t.shown) for t in delta.tokens] == [(a, 0, True), (b, 1, False)]


def test_special_tokens_are_shown_where_they_are_not_skipped():
    def whole(ids):
        return tokenizer().decode(list(ids), skip_special_tokens=False)

    a, end = byte_ids(b"a")[0], EOS_TOKEN_ID
    rules = TextRules(include_stop=True, skip_special_tokens=False)
    choice = ChoiceText(whole, sampling(stop_token_ids=(end,)), rules)
    assert choice.push((a, end), FinishReason.STOP).text == "a<|im_end|>"


def test_tokens_of_a_held_stop_string_wait_for_its_text():
    a, b, c = byte_ids(b"abc")
    choice = ChoiceText(decode, sampling(), TextRules(stops=("bcd",)))
    assert [t.token_id for t in choice.push((a,), None).tokens] == [a]
    assert choice.push((b,), None) == TextDelta("", 1)
    released = choice.push((c, a), None)
    assert released.text == "bca"
    assert [t.token_id for t in released.tokens] == [b, c, a]


def test_of_a_prompt_alone_nothing_is_shown_or_counted():
    choice = ChoiceText(decode, sampling(), TextRules(prompt_only=True))
    delta = choice.push(tuple(byte_ids(b"a")), FinishReason.STOP)
    assert delta == TextDelta("", 0, FinishReason.LENGTH)
    assert choice.num_tokens == 0
