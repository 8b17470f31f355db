"""The tokenizer against `transformers`, chat templates, and what a client may not do to them."""

import json
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap.errors import ConfigError
from engine.chat_template import BadTemplateInput, ChatTemplate
from engine.tokenizer import Tokenizer, tokenizer_digest
from tests.support.tiny_model import make_tiny_model

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "the <b>ring</b> & 42 Grüße 🙂"},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "  and?\n"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"a": ["<", "ü"]}}}]
TEMPLATES = {
    "loops": (
        "{{ bos_token }}{% for m in messages %}\n"
        "    {% if m.role == 'system' %}{% continue %}{% endif %}\n"
        "{{ m['role'] }}: {{ m.content | trim }}{{ eos_token }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    ),
    "tools": "{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}{{ messages | tojson }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}|{% endfor %}",
    "namespace": (
        "{% set n = namespace(i=0) %}{% for m in messages %}{% set n.i = n.i + 1 %}{% endfor %}{{ n.i }}"
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reference(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer(folder)


@given(st.text(max_size=40))
@settings(deadline=None, max_examples=60)
def test_ids_equal_transformers_and_come_back(tokenizer, reference, text):
    ids = tokenizer.encode(text)
    assert ids == reference(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_rendering_equals_transformers(tokenizer, reference, name, tools):
    for add in (True, False):
        ours = ChatTemplate(TEMPLATES[name], tokenizer.special_tokens).render(
            CONVERSATION, tools=tools, add_generation_prompt=add
        )
        theirs = reference.apply_chat_template(
            CONVERSATION,
            tools=tools,
            chat_template=TEMPLATES[name],
            add_generation_prompt=add,
            tokenize=False,
        )
        assert ours == theirs


def test_a_conversation_becomes_ids_with_special_tokens(tokenizer, reference):
    ids = tokenizer.apply_chat_template(CONVERSATION)
    expected = reference.apply_chat_template(CONVERSATION, add_generation_prompt=True)
    assert ids == expected["input_ids"]
    assert ids.count(1) == 5
    assert tokenizer.apply_chat_template(CONVERSATION, add_generation_prompt=False).count(1) == 4


def test_special_tokens_by_name(tokenizer):
    assert tokenizer.special_token_id("bos_token") == 1
    assert tokenizer.special_token_id("eos_token") == 2
    assert tokenizer.special_token_id("mask_token") is None
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.vocab_size == 300
    assert tokenizer.decode([1, 2, 299_999]) == ""


def test_the_digest_is_the_file_s(tokenizer, folder, tmp_path):
    assert tokenizer.digest == tokenizer_digest(folder)
    other = make_tiny_model(tmp_path)
    assert tokenizer_digest(other) == tokenizer.digest
    (other / "tokenizer.json").write_text((other / "tokenizer.json").read_text() + "\n")
    assert tokenizer_digest(other) != tokenizer.digest


def test_the_tokenizer_s_own_end_of_turn_is_an_eos_too(tmp_path):
    folder = make_tiny_model(tmp_path, eos_token_id=0)
    assert Tokenizer(folder).eos_token_ids == (0, 2)


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        ("{{ raise_exception('roles must alternate') }}", CONVERSATION),
        ("{{ messages[9].content.foo }}", CONVERSATION),
        ("{{ messages[0].content + 1 }}", CONVERSATION),
        ("{{ messages[0]['content'] | length }}", [{"role": "user", "content": 3}]),
    ],
)
def test_what_a_template_refuses_is_the_client_s_mistake(source, messages):
    with pytest.raises(BadTemplateInput, match="chat template refuses"):
        ChatTemplate(source, {}).render(messages)


@pytest.mark.parametrize(
    "escape",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_templates_stay_in_their_sandbox(escape):
    with pytest.raises(BadTemplateInput):
        ChatTemplate(escape, {}).render(CONVERSATION)


def test_absent_and_null_fields_are_the_same():
    template = ChatTemplate("{{ messages[0].content is defined }}", {})
    assert template.render([{"role": "user", "content": None}]) == "False"


def test_a_template_s_own_file_comes_first(tmp_path):
    folder = make_tiny_model(tmp_path)
    (folder / "chat_template.jinja").write_text("A")
    tokenizer = Tokenizer(folder)
    assert tokenizer.apply_chat_template(CONVERSATION) == tokenizer.encode("A")


def test_a_list_of_templates_has_a_default(tmp_path):
    folder = make_tiny_model(tmp_path)
    path = folder / "tokenizer_config.json"
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": named}))
    tokenizer = Tokenizer(folder)
    assert tokenizer.apply_chat_template(CONVERSATION) == tokenizer.encode("D")


def test_a_model_without_a_template_says_so(tmp_path):
    folder = make_tiny_model(tmp_path)
    (folder / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer(folder)
    assert not tokenizer.has_chat_template
    with pytest.raises(BadTemplateInput, match="no chat template"):
        tokenizer.apply_chat_template(CONVERSATION)


def test_broken_folders_are_config_errors(tmp_path):
    folder = make_tiny_model(tmp_path)
    (folder / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json: list"):
        Tokenizer(folder)
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{% if %}"}')
    with pytest.raises(ConfigError, match="chat_template: line 1"):
        Tokenizer(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="not a tokenizer"):
        Tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer\.json: No such file"):
        Tokenizer(folder)
