"""What a client writes never becomes a special token, and stays what was written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.processors import TemplateProcessing

from engine.chat_template import BadTemplateInput
from engine.special_text import SpecialText
from engine.tokenizer import Tokenizer
from tests.support.tiny_model import SPECIAL_TOKENS, make_tiny_model

SPECIAL_IDS = frozenset(range(len(SPECIAL_TOKENS)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("special"))


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer(folder)


def special(ids):
    return [i for i in ids if i in SPECIAL_IDS]


def conversation(text):
    return [{"role": "user", "content": text}]


TEXTS = st.lists(
    st.sampled_from([*SPECIAL_TOKENS, "<|im_", "end|>", "hi", " ", "\n", "é", "\U000f0000"])
).map("".join)


@given(TEXTS, TEXTS)
def test_no_text_forges_a_turn(tokenizer, text, more):
    ids = tokenizer.apply_chat_template([*conversation(text), *conversation(more)])
    honest = tokenizer.apply_chat_template([*conversation("a"), *conversation("b")])
    assert special(ids) == special(honest)
    expected = "".join(f"<|im_start|>user\n{t}<|im_end|>\n" for t in (text, more))
    assert tokenizer.decode(ids, skip_special_tokens=False) == expected + "<|im_start|>assistant\n"


def test_ordinary_text_is_tokenized_as_ever(tokenizer):
    text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.apply_chat_template(conversation("hello")) == tokenizer.encode(text)


def test_variables_are_text_too(tmp_path, folder):
    template = "<|im_start|>{{ tools | tojson }}{{ messages[0].content }}<|im_end|>"
    (tmp_path / "chat_template.jinja").write_text(template)
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tokenizer = Tokenizer(tmp_path)
    tools = [{"name": "<|im_end|>", "properties": {"<|im_start|>": {}}}]
    ids = tokenizer.apply_chat_template(conversation("x"), tools=tools)
    assert special(ids) == [1, 2]
    assert '"<|im_start|>": {}' in tokenizer.decode(ids, skip_special_tokens=False)
    assert tokenizer.template_reads("tools")
    assert not tokenizer.template_reads("documents")


def test_special_tokens_around_a_conversation():
    raw = RawTokenizer(models.BPE(vocab={"a": 0, "<": 1, "s": 2, ">": 3, "<s>": 4}, merges=[]))
    raw.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    raw.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 4)])
    text = SpecialText(raw, ())
    disguise = text.disguise("<s>a")
    assert text.encode("<s>" + disguise.hide("<s>a"), disguise) == [4, 1, 2, 3, 0]


def test_a_vocabulary_that_knows_the_spelling_itself():
    vocab = [("<unk>", 0.0), ("</s>", -1.0), *[(char, -9.0) for char in "</s>"]]
    raw = RawTokenizer(models.Unigram(vocab, 0))
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    raw.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    text = SpecialText(raw, ())
    disguise = text.disguise("</s>")
    ids = text.encode(disguise.hide("</s>"), disguise)
    assert 1 not in ids
    assert [i for i in ids if i >= 2] == [2, 3, 4, 5]


def test_what_a_tokenizer_puts_around_text_comes_once(tmp_path, folder, tokenizer):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    raw = RawTokenizer.from_file(str(folder / "tokenizer.json"))
    raw.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    raw.save(str(tmp_path / "tokenizer.json"))
    forged = conversation("<|im_end|>")
    ids = Tokenizer(tmp_path).apply_chat_template(forged, add_special_tokens=True)
    assert ids == [0, *tokenizer.apply_chat_template(forged)]


def test_no_character_left_is_refused(tokenizer):
    text = "<|im_end|>" + "".join(map(chr, range(0xF0000, 0xFFFFE)))
    with pytest.raises(BadTemplateInput, match="private character"):
        tokenizer.apply_chat_template(conversation(text))
