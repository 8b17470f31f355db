"""A model's parameters in the order the forward pass uses them, bound to their checkpoint names.

On the CPU, parameters whose stored type is the asked one are the file mapping itself: no second copy.
"""

from dataclasses import dataclass

import torch

from bootstrap.errors import ConfigError
from engine.arena import torch_dtype
from engine.checkpoint import Checkpoint
from engine.config import ModelConfig
from engine.progress import Progress

_FLOAT_TYPES = ("F32", "BF16", "F16")
_IGNORED_SUFFIX = (
    "rotary_emb.inv_freq"  # old Llama checkpoints store it; it follows from the config
)


@dataclass(frozen=True, slots=True)
class Linear:
    """`x @ weight.T + bias`; weight is [out, in]."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer."""

    attention_norm: torch.Tensor
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All parameters. `head` is the embedding itself where the two are tied."""

    embedding: torch.Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor  # [vocab, hidden]


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that the checkpoint must hold, by its Hugging Face name."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (query, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, query, config.o_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.qk_norm:
        norms |= {"self_attn.q_norm": config.head_dim, "self_attn.k_norm": config.head_dim}
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        for name, (rows, columns, bias) in linears.items():
            shapes[f"{prefix}.{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{prefix}.{name}.bias"] = (rows,)
        shapes |= {f"{prefix}.{name}.weight": (size,) for name, size in norms.items()}
    return shapes


def check_tensors(config: ModelConfig, checkpoint: Checkpoint) -> None:
    """Raise ConfigError naming tensors that are missing, unexpected, or of a wrong shape or type."""
    shapes = expected_shapes(config)
    found = checkpoint.entries
    allowed_extra = {"lm_head.weight"} if config.tie_word_embeddings else set()
    problems = [f"{name} is missing" for name in shapes if name not in found]
    for name, entry in found.items():
        if name in shapes:
            if entry.shape != shapes[name]:
                problems.append(f"{name} is {list(entry.shape)}, allowed is {list(shapes[name])}")
            if entry.dtype not in _FLOAT_TYPES:
                allowed = ", ".join(_FLOAT_TYPES)
                problems.append(f"{name} is of type {entry.dtype}, allowed are {allowed}")
        elif name not in allowed_extra and not name.endswith(_IGNORED_SUFFIX):
            problems.append(f"{name} is unexpected")
    if problems:
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ConfigError(f"{config.architecture} checkpoint: {'; '.join(problems[:5])}{more}")


class _Reader:
    """Tensors in the asked type, each read once, with progress."""

    def __init__(
        self, checkpoint: Checkpoint, dtype: torch.dtype, total: int, on_progress: Progress | None
    ) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._total = total
        self._on_progress = on_progress
        self._done = 0

    def tensor(self, name: str) -> torch.Tensor:
        tensor = self._checkpoint.tensor(name).to(self._dtype)  # itself where the type is right
        self._done += 1
        if self._on_progress is not None:
            self._on_progress("weights", self._done, self._total)
        return tensor

    def optional(self, name: str, wanted: bool) -> torch.Tensor | None:
        return self.tensor(name) if wanted else None

    def linear(self, name: str, bias: bool) -> Linear:
        return Linear(self.tensor(f"{name}.weight"), self.optional(f"{name}.bias", bias))

    def layer(self, config: ModelConfig, prefix: str) -> LayerWeights:
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return LayerWeights(
            attention_norm=self.tensor(f"{prefix}.input_layernorm.weight"),
            query=self.linear(f"{attention}.q_proj", config.qkv_bias),
            key=self.linear(f"{attention}.k_proj", config.qkv_bias),
            value=self.linear(f"{attention}.v_proj", config.qkv_bias),
            output=self.linear(f"{attention}.o_proj", config.o_bias),
            query_norm=self.optional(f"{attention}.q_norm.weight", config.qk_norm),
            key_norm=self.optional(f"{attention}.k_norm.weight", config.qk_norm),
            mlp_norm=self.tensor(f"{prefix}.post_attention_layernorm.weight"),
            gate=self.linear(f"{mlp}.gate_proj", config.mlp_bias),
            up=self.linear(f"{mlp}.up_proj", config.mlp_bias),
            down=self.linear(f"{mlp}.down_proj", config.mlp_bias),
        )


def read_weights(
    config: ModelConfig, checkpoint: Checkpoint, dtype: str, on_progress: Progress | None = None
) -> ModelWeights:
    """Check the checkpoint against `config` and bind its tensors, converted where `dtype` differs."""
    check_tensors(config, checkpoint)
    reader = _Reader(checkpoint, torch_dtype(dtype), len(expected_shapes(config)), on_progress)
    embedding = reader.tensor("model.embed_tokens.weight")
    layers = tuple(
        reader.layer(config, f"model.layers.{layer}") for layer in range(config.num_layers)
    )
    norm = reader.tensor("model.norm.weight")
    head = embedding if config.tie_word_embeddings else reader.tensor("lm_head.weight")
    return ModelWeights(embedding, layers, norm, head)
