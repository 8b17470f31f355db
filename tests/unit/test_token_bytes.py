"""Every id's bytes, for each way in which vocabularies spell them."""

from tokenizers import AddedToken, Tokenizer, decoders, models

from engine.token_bytes import token_bytes
from tests.support.tiny_model import SPECIAL_TOKENS, _tokenizer_json


def test_byte_level_letters_are_bytes_and_special_tokens_their_text():
    tokenizer = Tokenizer.from_str(_tokenizer_json())
    table = token_bytes(tokenizer)
    assert [table[i].decode() for i in range(3)] == list(SPECIAL_TOKENS)
    assert sorted(raw for raw in table if len(raw) == 1) == [bytes([b]) for b in range(256)]
    ids = tokenizer.encode("naïve 日本 👩‍👩‍👧 of the\n").ids
    assert b"".join(table[i] for i in ids).decode() == "naïve 日本 👩‍👩‍👧 of the\n"


def test_sentencepiece_bytes_and_spaces():
    vocab = {"<unk>": 0, "<0xE2>": 1, "▁the": 2, "é": 3, "<0x0A>": 4, "gap": 6}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken("<unk>", special=True)])
    table = token_bytes(tokenizer)
    assert table[:5] == (b"<unk>", b"\xe2", b" the", "é".encode(), b"\n")


def test_metaspace_and_no_decoder_at_all():
    tokenizer = Tokenizer(models.WordLevel({"▁a": 0, "<0x41>": 1}, unk_token="▁a"))
    assert token_bytes(tokenizer) == ("▁a".encode(), b"<0x41>")
    tokenizer.decoder = decoders.Metaspace()
    assert token_bytes(tokenizer) == (b" a", b"<0x41>")
