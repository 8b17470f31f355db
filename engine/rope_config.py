"""The rotary embedding a checkpoint asks for, read from config.json. No tensors here.

Two spellings exist: `rope_theta` with `rope_scaling`, and the `rope_parameters` of transformers 5,
which holds both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bootstrap.errors import ConfigError

_DEFAULT_THETA = 10000.0

# Scaling parameters by type: (those that must be there, those that may be).
ROPE_TYPES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "llama3": (
        ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        (),
    ),
    "yarn": (
        ("factor", "original_max_position_embeddings"),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding over a whole head. `scaling` holds only parameters that `rope_type` reads."""

    rope_type: str
    theta: float
    scaling: tuple[tuple[str, float], ...] = ()  # sorted by name

    def get(self, name: str, default: float) -> float:
        """A scaling parameter, or `default` where the checkpoint names none."""
        return dict(self.scaling).get(name, default)

    @property
    def canonical(self) -> str:
        """Equal strings mean equal rotations; part of the KV contract."""
        values = ",".join(f"{name}={value!r}" for name, value in self.scaling)
        return f"{self.rope_type}(theta={self.theta!r}{',' if values else ''}{values})"


def read_rope(config: Mapping[str, Any]) -> RopeConfig:
    """The rotary embedding of a parsed config.json; ConfigError for what is not supported."""
    key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    raw: Mapping[str, Any] = config.get(key) or {}
    if any(isinstance(value, Mapping) for value in raw.values()):
        raise ConfigError(f"{key}={raw!r}: allowed is one rotary embedding for all layers")
    rope_type = raw.get("rope_type", raw.get("type", "default"))
    if rope_type not in ROPE_TYPES:
        raise ConfigError(f"{key}.rope_type={rope_type!r}: allowed are {', '.join(ROPE_TYPES)}")
    partial = raw.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if partial not in (None, 1.0):
        raise ConfigError(f"partial_rotary_factor={partial!r}: allowed is 1.0")
    theta = raw.get("rope_theta", config.get("rope_theta"))
    theta = _DEFAULT_THETA if theta is None else _number(f"{key}.rope_theta", theta)
    return RopeConfig(rope_type, theta, _scaling(key, rope_type, raw, config))


def _scaling(
    key: str, rope_type: str, raw: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[tuple[str, float], ...]:
    required, optional = ROPE_TYPES[rope_type]
    values = {name: raw.get(name) for name in (*required, *optional)}
    if "original_max_position_embeddings" in values:
        outer = config.get("original_max_position_embeddings")  # transformers lets this one win
        inner = values["original_max_position_embeddings"]
        fallback = inner if inner is not None else config.get("max_position_embeddings")
        values["original_max_position_embeddings"] = outer if outer is not None else fallback
    for name in required:
        if values[name] is None:
            raise ConfigError(f"{key}.{name} is missing: rope_type {rope_type!r} needs a number")
    found = {k: _number(f"{key}.{k}", v) for k, v in values.items() if v is not None}
    return tuple(sorted(found.items()))


def _number(key: str, value: object) -> float:
    if not isinstance(value, (int, float)) or value != value or value < 0:
        raise ConfigError(f"{key}={value!r}: allowed are numbers of at least 0")
    return float(value)
