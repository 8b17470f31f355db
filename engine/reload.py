"""Loads other weights of the same model beside those in use.

Owns the thread that loads and the model that waits to be used. Decides nothing: the core says when.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bootstrap.commands import PrepareWeights
from bootstrap.errors import ConfigError
from bootstrap.identity import Peer
from engine.commands import ForgetWeights, UseWeights, WeightsLoaded
from engine.config import ModelConfig
from engine.loader import LoadedModel, load_model
from engine.settings import EngineSettings
from engine.stepper import ModelStepper
from engine.tokenizer import tokenizer_digest

_UNEXPECTED = "the weights cannot be loaded"

log = logging.getLogger(__name__)


class WeightReloader:
    """Keeps one loaded model at most beside the one in use; a later one takes its place."""

    def __init__(
        self, settings: EngineSettings, stepper: ModelStepper, put: Callable[[object], None]
    ) -> None:
        """`put` gives the core its event; it is called on the loading thread."""
        self._settings = settings
        self._stepper = stepper
        self._put = put
        self._tokenizer_digest = tokenizer_digest(settings.model_dir)
        self._lock = threading.Lock()  # guards the next two
        self._loading = False
        self._loaded: tuple[bytes, LoadedModel] | None = None

    def prepare(self, sender: Peer, message: PrepareWeights) -> None:
        """Begin to load; a WeightsLoaded follows. Any thread."""
        with self._lock:
            busy, self._loading = self._loading, True
        if busy:
            refusal = "other weights are being loaded"
            self._put(WeightsLoaded(sender, message.command, refusal=refusal))
            return
        threading.Thread(
            target=self._load, args=(sender, message), name="reload", daemon=True
        ).start()

    def use(self, instruction: UseWeights) -> str:
        """Compute with the loaded model from the next step on; its digest. The loop's thread."""
        with self._lock:
            loaded, self._loaded = self._loaded, None
        assert loaded is not None
        assert loaded[0] == instruction.command
        self._stepper.use(loaded[1])
        return loaded[1].digest

    def forget(self, instruction: ForgetWeights) -> None:
        """Let go of a loaded model. Any thread."""
        with self._lock:
            if self._loaded is not None and self._loaded[0] == instruction.command:
                self._loaded = None

    def _load(self, sender: Peer, message: PrepareWeights) -> None:
        """On a thread of its own; whatever goes wrong is this command's."""
        event = WeightsLoaded(sender, message.command, refusal=_UNEXPECTED)
        try:
            loaded = self._read(Path(message.model_dir))
            event = WeightsLoaded(sender, message.command, model_digest=loaded.digest)
        except ConfigError as error:
            event = replace(event, refusal=str(error)[:1024])
        except Exception:  # an edge: an odd file must not end the engine
            log.exception("%s cannot be loaded", message.model_dir)
        with self._lock:
            self._loading = False
            if not event.refusal:
                self._loaded = message.command, loaded
        self._put(event)

    def _read(self, folder: Path) -> LoadedModel:
        """Raises ConfigError for anything but the same model with other weights."""
        if tokenizer_digest(folder) != self._tokenizer_digest:
            raise ConfigError(f"{folder}: the tokenizer is another one")
        loaded = load_model(folder, self._settings.dtype, self._settings.device)
        if _shape(loaded.config) != _shape(self._stepper.config):
            raise ConfigError(f"{folder}: the model is not of the same shape as the one in use")
        return loaded


def _shape(config: ModelConfig) -> ModelConfig:
    """All of it that gives KV its meaning and size."""
    return replace(config, eos_token_ids=())
