"""Checkpoint configurations: both RoPE spellings, and refusals that name key, value and alternatives."""

import json

import pytest

from bootstrap.errors import ConfigError
from engine.config import ModelConfig
from engine.contract import contract_for, layout_for
from engine.loader import load_model
from tests.support.tiny_model import make_tiny_model

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def read(path, family="llama", **overrides):
    return ModelConfig.from_dir(make_tiny_model(path, family, **overrides))


def test_both_rope_spellings_mean_the_same(tmp_path):
    old = read(tmp_path / "old", rope_theta=5e5, rope_scaling=LLAMA3)
    new = read(tmp_path / "new", rope_theta=None, rope_parameters={**LLAMA3, "rope_theta": 5e5})
    assert old.rope == new.rope
    assert old.rope.canonical == (
        "llama3(theta=500000.0,factor=8.0,high_freq_factor=4.0,low_freq_factor=1.0,"
        "original_max_position_embeddings=64.0)"
    )


def test_the_very_old_key_type_is_read(tmp_path):
    config = read(tmp_path, rope_scaling={"type": "linear", "factor": 2})
    assert config.rope.canonical == "linear(theta=10000.0,factor=2.0)"


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("llama", (False, False, False, 16)),
        ("mistral", (False, False, False, 16)),
        ("qwen2", (True, False, False, 16)),
        ("qwen3", (False, False, True, 32)),
    ],
)
def test_families_differ_by_switches(tmp_path, family, expected):
    config = read(tmp_path, family)
    assert (config.qkv_bias, config.o_bias, config.qk_norm, config.head_dim) == expected


@pytest.mark.parametrize(
    ("family", "overrides", "words"),
    [
        (
            "llama",
            {"architectures": ["FooForCausalLM"]},
            ["architectures", "Foo", "Qwen3ForCausal"],
        ),
        ("llama", {"rope_scaling": {"rope_type": "longrope"}}, ["rope_type", "longrope", "yarn"]),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, ["dynamic", "llama3"]),
        ("llama", {"rope_scaling": {"rope_type": "linear"}}, ["rope_scaling.factor", "missing"]),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": "2"}}, ["factor='2'"]),
        ("llama", {"rope_parameters": {"full_attention": {}}}, ["rope_parameters", "all layers"]),
        ("llama", {"partial_rotary_factor": 0.5}, ["partial_rotary_factor=0.5", "1.0"]),
        ("llama", {"hidden_act": "gelu"}, ["hidden_act='gelu'", "silu"]),
        ("llama", {"num_key_value_heads": 3}, ["num_key_value_heads=3", "divisors of 4"]),
        ("llama", {"head_dim": 15}, ["head_dim=15", "even"]),
        ("llama", {"num_hidden_layers": "3"}, ["num_hidden_layers='3'", "whole numbers"]),
        ("llama", {"quantization_config": {"quant_method": "awq"}}, ["quantization_config", "awq"]),
        ("mistral", {"sliding_window": 1024}, ["sliding_window=1024", "null", "2048"]),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16}, ["sliding_window=16"]),
        ("qwen3", {"layer_types": ["sliding_attention"]}, ["layer_types", "full_attention"]),
    ],
)
def test_refusals_name_key_value_and_allowed(tmp_path, family, overrides, words):
    folder = make_tiny_model(tmp_path, family)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | overrides))
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_dir(folder)
    assert all(word in str(caught.value) for word in [*words, "config.json"])


def test_a_window_that_covers_every_position_is_none(tmp_path):
    assert read(tmp_path, "mistral", sliding_window=2048).num_layers == 3


def test_generation_config_outranks_config_for_eos(tmp_path):
    folder = make_tiny_model(tmp_path)
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 2]}')
    assert ModelConfig.from_dir(folder).eos_token_ids == (5, 2)
    (folder / "generation_config.json").unlink()
    assert ModelConfig.from_dir(folder).eos_token_ids == (2,)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_an_unreadable_config_is_a_config_error(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        ModelConfig.from_dir(tmp_path)


def test_contract_and_layout_follow_the_model(tmp_path):
    loaded = load_model(make_tiny_model(tmp_path, "qwen3"), "float32", "cpu")
    layout = layout_for(loaded.config, "bfloat16", block_size=8, num_blocks=5)
    assert layout.shape == (5, 2, 3, 2, 8, 32)
    assert layout.num_bytes == 5 * 2 * 3 * 2 * 8 * 32 * 2
    contract = contract_for(loaded, "t", 8)
    assert contract.differences(contract_for(loaded, "u", 8)) == ("tokenizer_digest: 't' != 'u'",)
    with pytest.raises(ConfigError, match="dtype='float16'"):
        layout_for(loaded.config, "float16", 8, 5)
