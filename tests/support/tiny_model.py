"""Tiny random models as Hugging Face folders: real formats, a real tokenizer, made in milliseconds.

The weights are large enough that greedy outputs vary with the prompt and seldom fall into a loop.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 300
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2
EOS_TOKEN_ID = 2
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_CONFIG = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": EOS_TOKEN_ID,
    "torch_dtype": "float32",
}
# What a family's configuration class would fill in, said explicitly where it differs.
_FAMILY_CONFIG: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": False, "mlp_bias": False},
    "mistral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"use_sliding_window": False, "attention_bias": False, "head_dim": 32},
}


def make_tiny_model(path: Path, family: str = "llama", *, seed: int = 0, **overrides: Any) -> Path:
    """Write a model folder at `path` and return it.

    `family` is llama, mistral, qwen2 or qwen3; `overrides` are config.json keys, and None removes a
    key. Equal arguments give equal bytes.
    """
    path.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        **_CONFIG,
        **_FAMILY_CONFIG[family],
        **overrides,
    }
    config = {k: v for k, v in config.items() if v is not None or k == "sliding_window"}
    _write_json(path / "config.json", config)
    ids = {"bos_token_id": config.get("bos_token_id"), "eos_token_id": config.get("eos_token_id")}
    _write_json(path / "generation_config.json", ids)
    save_file(_tensors(config, family, seed), path / "model.safetensors", metadata={"format": "pt"})
    (path / "tokenizer.json").write_text(_tokenizer_json())
    _write_json(
        path / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    return path


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def _tensors(config: dict[str, Any], family: str, seed: int) -> dict[str, np.ndarray]:
    """Every tensor under its Hugging Face name; matrices are [out, in]."""
    random = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    query, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    qkv_bias = family == "qwen2" or config.get("attention_bias", False)
    shapes = {
        "self_attn.q_proj": (query, hidden, qkv_bias),
        "self_attn.k_proj": (kv, hidden, qkv_bias),
        "self_attn.v_proj": (kv, hidden, qkv_bias),
        "self_attn.o_proj": (hidden, query, config.get("attention_bias", False)),
        "mlp.gate_proj": (inner, hidden, config.get("mlp_bias", False)),
        "mlp.up_proj": (inner, hidden, config.get("mlp_bias", False)),
        "mlp.down_proj": (hidden, inner, config.get("mlp_bias", False)),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if family == "qwen3":
        norms |= {"self_attn.q_norm": head_dim, "self_attn.k_norm": head_dim}

    def normal(*shape: int, std: float) -> np.ndarray:
        return (random.standard_normal(shape) * std).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": normal(config["vocab_size"], hidden, std=1.0),
        "model.norm.weight": 1 + normal(hidden, std=0.1),
    }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = normal(config["vocab_size"], hidden, std=0.3)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, (rows, columns, bias) in shapes.items():
            tensors[f"{prefix}{name}.weight"] = normal(rows, columns, std=1.5 / columns**0.5)
            if bias:
                tensors[f"{prefix}{name}.bias"] = normal(rows, std=0.3)
        for name, size in norms.items():
            tensors[f"{prefix}{name}.weight"] = 1 + normal(size, std=0.1)
    return tensors


@cache
def _tokenizer_json() -> str:
    """Byte-level BPE: three special tokens, all 256 bytes, and merges up to `VOCAB_SIZE`."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate((*SPECIAL_TOKENS, *letters))}
    pairs = "th er in an on re he at en Ġa Ġt st or it es is ou ar te Ġs Ġw nd al ed to ng"
    merges = [(pair[0], pair[1]) for pair in pairs.split()]
    merges += [("Ġt", "he"), ("in", "g"), ("Ġa", "nd"), ("Ġw", "or"), ("l", "d"), ("l", "o")]
    merges += [
        ("Ġs", "t"),
        ("o", "f"),
        ("Ġ", "of"),
        ("Ġ", "in"),
        ("r", "o"),
        ("c", "h"),
        ("e", "l"),
    ]
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    for i in range(VOCAB_SIZE - len(vocab)):  # whatever is missing: pairs of digits
        left, right = "0123456789"[i // 10], "0123456789"[i % 10]
        merges.append((left, right))
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS]
    )
    return tokenizer.to_str(pretty=True)
