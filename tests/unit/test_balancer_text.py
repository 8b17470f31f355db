"""Text out of token ids: whole characters only, stop strings cut and never leaked."""

from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from bootstrap.sampling import FinishReason, SamplingParams
from cluster.balancer.detokenizer import IncrementalDetokenizer
from cluster.balancer.stops import StopStrings, bootstrap_stop_ids
from cluster.balancer.text import ChoiceText, TextRules
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
