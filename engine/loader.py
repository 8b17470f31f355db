"""From a model folder to a loaded model: config, weights, and the digest that names them."""

from dataclasses import dataclass, replace
from pathlib import Path

from bootstrap.errors import ConfigError
from engine.checkpoint import Checkpoint
from engine.config import ModelConfig
from engine.progress import Progress
from engine.settings import DEVICES
from engine.weights import ModelWeights, read_weights


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run. Equal digests mean equal shapes and, as far as sampled, equal weights."""

    config: ModelConfig
    digest: str
    dtype: str
    weights: ModelWeights


def load_model(
    model_dir: str | Path, dtype: str, device: str, on_progress: Progress | None = None
) -> LoadedModel:
    """Load a Hugging Face folder; raises ConfigError for whatever cannot work.

    `on_progress("weights", done, total)` counts tensors. The digest covers the model's shape, every
    tensor's name, type and shape, and a bounded sample of its bytes.
    """
    if device not in DEVICES:
        raise ConfigError(f"device={device!r}: allowed are {', '.join(DEVICES)}")
    folder = Path(model_dir)
    config = ModelConfig.from_dir(folder)
    checkpoint = Checkpoint(folder)
    weights = read_weights(config, checkpoint, dtype, on_progress)
    shape = replace(config, eos_token_ids=())  # what ends a text gives no KV page its meaning
    return LoadedModel(config, checkpoint.digest(salt=repr(shape)), dtype, weights)
