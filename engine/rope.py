"""Rotary position embedding: inverse frequencies for every supported scaling, and the rotation.

Formulas follow `modeling_rope_utils.py` of transformers, operation by operation, so that float32
results agree with it.
"""

import math

import torch

from engine.rope_config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[torch.Tensor, float]:
    """Radians per position, [head_dim / 2] in float32, and the factor on cosine and sine."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    base = rope.theta**exponents  # [head_dim / 2]
    if rope.rope_type == "linear":
        return 1.0 / base / rope.get("factor", 1.0), 1.0
    if rope.rope_type == "llama3":
        return _llama3(1.0 / base, rope), 1.0
    if rope.rope_type == "yarn":
        return _yarn(base, rope, head_dim), _yarn_attention_factor(rope)
    return 1.0 / base, 1.0


def _llama3(inv_freq: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Llama 3.1: long waves are stretched, short ones kept, the ones between interpolated."""
    factor = rope.get("factor", 1.0)
    low, high = rope.get("low_freq_factor", 1.0), rope.get("high_freq_factor", 4.0)
    old_length = rope.get("original_max_position_embeddings", 8192.0)
    wavelength = 2 * math.pi / inv_freq
    is_long, is_short = wavelength > old_length / low, wavelength < old_length / high
    scaled = torch.where(is_long, inv_freq / factor, inv_freq)
    smooth = (old_length / wavelength - low) / (high - low)
    smoothed = (1 - smooth) * scaled / factor + smooth * scaled
    return torch.where(~is_short & ~is_long, smoothed, scaled)


def _yarn(base: torch.Tensor, rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """YaRN (arXiv 2309.00071): a ramp over dimensions from extrapolation to interpolation."""
    length = rope.get("original_max_position_embeddings", 0.0)

    def dimension_of(num_rotations: float) -> float:
        turns = math.log(length / (num_rotations * 2 * math.pi))
        return head_dim * turns / (2 * math.log(rope.theta))

    low = dimension_of(rope.get("beta_fast", 0.0) or 32.0)
    high = dimension_of(rope.get("beta_slow", 0.0) or 1.0)
    if rope.get("truncate", 1.0):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # the ramp has no width
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)
    extrapolated = 1 - ramp.clamp(0, 1)
    stretched = 1.0 / (rope.get("factor", 1.0) * base)
    return stretched * (1 - extrapolated) + 1.0 / base * extrapolated


def _yarn_attention_factor(rope: RopeConfig) -> float:
    factor = rope.get("factor", 1.0)
    mscale, mscale_all_dim = rope.get("mscale", 0.0), rope.get("mscale_all_dim", 0.0)

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    inferred = magnitude(mscale) / magnitude(mscale_all_dim)
    return rope.get("attention_factor", inferred if mscale and mscale_all_dim else magnitude(1.0))


class Rotation:
    """Cosines and sines of one step's positions, shared by all layers."""

    def __init__(
        self, positions: torch.Tensor, inv_freq: torch.Tensor, factor: float, dtype: torch.dtype
    ) -> None:
        angles = positions.float()[:, None] * inv_freq  # [num_tokens, head_dim / 2]
        cos, sin = angles.cos() * factor, angles.sin() * factor
        # One head axis to broadcast over; the sine carries the sign of the half-turned pairs.
        self._cos = torch.cat((cos, cos), dim=-1).to(dtype)[:, None]
        self._sin = torch.cat((-sin, sin), dim=-1).to(dtype)[:, None]

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate [num_tokens, heads, head_dim]: dimension i pairs with i + head_dim / 2."""
        half = x.shape[-1] // 2
        swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
        return torch.addcmul(x * self._cos, swapped, self._sin)
