"""A model's shape, read from a Hugging Face folder and checked once. No tensors here.

Llama, Mistral, Qwen2 and Qwen3 are one architecture with switches: biases, norms of queries and keys,
head size and rotary scaling. What a switch cannot express is refused by name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootstrap.errors import ConfigError
from engine.rope_config import RopeConfig, read_rope

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)

_QWEN3_HEAD_DIM = 128  # what Qwen3's configuration class says when config.json does not
_MISTRAL_WINDOW = 4096  # and Mistral's


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything that shapes the computation, and the ids that end a text.

    `num_heads` is a multiple of `num_kv_heads`; every layer attends to the whole context.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_dir(cls, path: str | Path) -> "ModelConfig":
        """Read config.json and, where there is one, generation_config.json.

        Raises ConfigError that names the file, the key, its value and the allowed values.
        """
        folder = Path(path)
        raw = _read_json(folder / "config.json")
        generation_file = folder / "generation_config.json"
        generation = _read_json(generation_file) if generation_file.exists() else {}
        try:
            return _parse(raw, generation)
        except ConfigError as error:
            raise ConfigError(f"{folder / 'config.json'}: {error}") from error

    @property
    def attention_scale(self) -> float:
        """What scores are multiplied with before the softmax."""
        return float(self.head_dim**-0.5)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; allowed is a Hugging Face folder") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {type(value).__name__}; allowed is a JSON object")
    return value


def _parse(raw: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    architecture = (raw.get("architectures") or [None])[0]
    if architecture not in ARCHITECTURES:
        raise ConfigError(f"architectures={architecture!r}: allowed are {', '.join(ARCHITECTURES)}")
    _refuse_unsupported(architecture, raw)
    num_heads, hidden = _count(raw, "num_attention_heads"), _count(raw, "hidden_size")
    num_kv_heads = _count(raw, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ConfigError(
            f"num_key_value_heads={num_kv_heads}: allowed are divisors of {num_heads}"
        )
    default_head_dim = _QWEN3_HEAD_DIM if architecture.startswith("Qwen3") else hidden // num_heads
    head_dim = _count(raw, "head_dim", default_head_dim)
    if head_dim % 2:
        raise ConfigError(f"head_dim={head_dim}: allowed are even numbers")
    attention_bias = bool(raw.get("attention_bias")) and architecture in (
        "LlamaForCausalLM",
        "Qwen3ForCausalLM",
    )
    return ModelConfig(
        architecture=architecture,
        vocab_size=_count(raw, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_count(raw, "intermediate_size"),
        num_layers=_count(raw, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=_count(raw, "max_position_embeddings"),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=read_rope(raw),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias or architecture == "Qwen2ForCausalLM",
        o_bias=attention_bias,
        mlp_bias=bool(raw.get("mlp_bias")) and architecture == "LlamaForCausalLM",
        qk_norm=architecture == "Qwen3ForCausalLM",
        eos_token_ids=_eos_token_ids(raw, generation),
    )


def _refuse_unsupported(architecture: str, raw: Mapping[str, Any]) -> None:
    """What these architectures can also be, and this engine does not compute."""
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(f"hidden_act={activation!r}: allowed is 'silu'")
    quantization = raw.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise ConfigError(f"quantization_config={method!r}: allowed are unquantised checkpoints")
    layer_types = set(raw.get("layer_types") or ())
    if layer_types - {"full_attention"}:
        raise ConfigError(f"layer_types={sorted(layer_types)}: allowed is 'full_attention'")
    window = raw.get("sliding_window", _MISTRAL_WINDOW if "Mistral" in architecture else None)
    if architecture.startswith("Qwen") and not raw.get("use_sliding_window"):
        window = None
    length = raw.get("max_position_embeddings")
    if window is not None and length is not None and window < length:
        raise ConfigError(
            f"sliding_window={window}: allowed are null and at least max_position_embeddings={length}"
        )


def _count(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{key}={value!r}: allowed are whole numbers of at least 1")
    return value


def _eos_token_ids(raw: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[int, ...]:
    """Every id that ends a text; generation_config.json outranks config.json."""
    value = generation.get("eos_token_id")
    if value is None:
        value = raw.get("eos_token_id")
    ids = () if value is None else (value,) if isinstance(value, int) else tuple(value)
    if not all(isinstance(i, int) and i >= 0 for i in ids):
        raise ConfigError(f"eos_token_id={value!r}: allowed are token ids")
    return ids
