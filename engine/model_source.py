"""From what a user calls a model to a folder that engines can load."""

import re
from pathlib import Path

from bootstrap.errors import ConfigError
from engine.demo_model import ensure_demo_model
from engine.model_folder import check_folder
from engine.progress import Progress

DEMO = "demo"

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]
_ALLOWED = "allowed are 'demo', a Hugging Face folder, and a Hugging Face id such as owner/name"


def resolve_model(spec: str, on_progress: Progress | None = None) -> Path:
    """The folder of `spec`: 'demo', a local folder, or an id on the Hugging Face hub.

    Fetches what is not there yet. Raises ConfigError that says what to do.
    """
    if spec == DEMO:
        return ensure_demo_model(on_progress)
    path = Path(spec).expanduser()
    if path.is_dir():
        return check_folder(path.resolve())
    if path.exists():
        raise ConfigError(f"model={spec!r}: a file; {_ALLOWED}")
    if not _HUB_ID.fullmatch(spec) or spec.startswith("."):
        raise ConfigError(f"model={spec!r}: no such folder; {_ALLOWED}")
    if on_progress is not None:
        on_progress("download", 0, 1)
    folder = fetch_from_hub(spec)
    if on_progress is not None:
        on_progress("download", 1, 1)
    return check_folder(folder)


def fetch_from_hub(spec: str, revision: str | None = None, folder: Path | None = None) -> Path:
    """The hub's files: in `folder`, or in its cache. Raises ConfigError that says what to do."""
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(
            spec, revision=revision, local_dir=folder, allow_patterns=_HUB_FILES
        )
    except (OSError, ValueError) as error:  # network, authorisation, and names the hub refuses
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ConfigError(
            f"model={spec!r}: cannot be fetched: {reason}; check the name, the network and HF_TOKEN, "
            "or name a local folder"
        ) from error
    return Path(found)
