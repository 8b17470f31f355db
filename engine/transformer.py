"""The decoder-only transformer of Llama, Mistral, Qwen2 and Qwen3, as one function of a flat batch.

It knows neither sequences nor pages: attention over them is the kernel's.
"""

import torch
from torch.nn.functional import embedding, rms_norm, silu

from engine.config import ModelConfig
from engine.kernels.attention import StepAttention
from engine.kernels.small_rows import project
from engine.rope import Rotation, inverse_frequencies
from engine.weights import LayerWeights, Linear, ModelWeights


def _apply(linear: Linear, x: torch.Tensor) -> torch.Tensor:
    return project(x, linear.weight, linear.bias)


class Transformer:
    """Inference only; weights are never written."""

    def __init__(self, config: ModelConfig, weights: ModelWeights) -> None:
        self._config = config
        self._weights = weights
        self._inv_freq, self._rope_factor = inverse_frequencies(config.rope, config.head_dim)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: StepAttention,
    ) -> torch.Tensor:
        """Run [num_tokens] ids at their positions; their last hidden states for `logits`."""
        weights, eps = self._weights, self._config.rms_norm_eps
        x = embedding(token_ids, weights.embedding)  # [num_tokens, hidden]
        rotation = Rotation(positions, self._inv_freq, self._rope_factor, x.dtype)
        for index, layer in enumerate(weights.layers):
            normed = rms_norm(x, x.shape[-1:], layer.attention_norm, eps)
            x = x + self._attend(layer, index, normed, rotation, attention)
            normed = rms_norm(x, x.shape[-1:], layer.mlp_norm, eps)
            gated = silu(_apply(layer.gate, normed)).mul_(_apply(layer.up, normed))
            x = x + _apply(layer.down, gated)
        return x

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [rows, vocab] of the token after each of [rows, hidden], in float32 or float64."""
        weights = self._weights
        x = rms_norm(hidden, hidden.shape[-1:], weights.norm, self._config.rms_norm_eps)
        logits = project(x, weights.head, None)
        return logits if logits.dtype == torch.float64 else logits.float()

    def _attend(
        self,
        layer: LayerWeights,
        index: int,
        x: torch.Tensor,
        rotation: Rotation,
        attention: StepAttention,
    ) -> torch.Tensor:
        config = self._config
        heads = (x.shape[0], -1, config.head_dim)
        query = _apply(layer.query, x).view(heads)  # [num_tokens, heads, head_dim]
        key = _apply(layer.key, x).view(heads)
        value = _apply(layer.value, x).view(heads)
        if layer.query_norm is not None and layer.key_norm is not None:
            query = rms_norm(query, query.shape[-1:], layer.query_norm, config.rms_norm_eps)
            key = rms_norm(key, key.shape[-1:], layer.key_norm, config.rms_norm_eps)
        attention.write(index, rotation.apply(key), value)
        out = attention.attend(index, rotation.apply(query))
        return _apply(layer.output, out.reshape(x.shape[0], -1))
