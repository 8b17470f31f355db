"""The files of a Hugging Face model folder, and whether they are all there. No tensors here."""

import os
from pathlib import Path

from bootstrap.errors import ConfigError

CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
WEIGHTS_FILE = "model.safetensors"
WEIGHTS_INDEX_FILE = "model.safetensors.index.json"


def check_folder(folder: Path) -> Path:
    """`folder` itself, if it holds a config, safetensors and a tokenizer to read; else ConfigError."""
    if not os.access(folder, os.R_OK | os.X_OK):
        raise ConfigError(f"model={str(folder)!r}: {_closed()}")
    names = {path.name for path in folder.iterdir()}
    if WEIGHTS_FILE not in names and WEIGHTS_INDEX_FILE not in names:
        raise ConfigError(f"model={str(folder)!r}: {_why_no_weights(names)}")
    for name in (CONFIG_FILE, TOKENIZER_FILE):
        if name not in names:
            raise ConfigError(
                f"model={str(folder)!r}: {name} is missing; save the model and its tokenizer there "
                "with transformers' save_pretrained"
            )
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".json", ".safetensors") or os.access(path, os.R_OK):
            continue
        why = _closed() if path.exists() else f"a link to {os.readlink(path)}, which is not there"
        raise ConfigError(f"model={str(folder)!r}: {path.name}: {why}")
    return folder


def _closed() -> str:
    return f"user {os.getuid()} may not read it: chmod it, or run as its owner"


def _why_no_weights(names: set[str]) -> str:
    if any(name.endswith(".gguf") for name in names):
        return "GGUF weights; allowed is safetensors: fetch the model's original repository"
    if any(name.endswith((".bin", ".pt", ".pth", ".ckpt")) for name in names):
        return (
            "pickled weights, which can run code when loaded; allowed is safetensors: convert them "
            "where you trust them, with transformers' save_pretrained"
        )
    return (
        f"neither {WEIGHTS_FILE} nor {WEIGHTS_INDEX_FILE}; allowed are folders that transformers' "
        "save_pretrained or a download from the Hugging Face hub made"
    )
