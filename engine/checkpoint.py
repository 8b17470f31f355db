"""A folder of safetensors files: which tensors it holds, their bytes, and a digest of both.

Format: https://huggingface.co/docs/safetensors (8 bytes of little-endian header length, a JSON header,
data). Tensors are views of a private file mapping, so engines on one host share the page cache.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from bootstrap.errors import ConfigError
from engine.model_folder import WEIGHTS_FILE, WEIGHTS_INDEX_FILE

_MAX_HEADER_BYTES = 100 << 20  # the format's own limit
_NUM_SAMPLES = 4  # per tensor, for the digest
_SAMPLE_BYTES = 128


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor as a header describes it; `begin` and `end` count from the start of the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Checkpoint:
    """Every tensor name maps to one entry in one file. Files stay open while this lives."""

    def __init__(self, folder: Path) -> None:
        """Reads headers only; raises ConfigError for missing or malformed files."""
        self.entries: dict[str, TensorEntry] = {}
        for file in _weight_files(folder):
            for name, entry in _read_header(file).items():
                if name in self.entries:
                    raise ConfigError(
                        f"{file}: tensor {name!r} is in {self.entries[name].file} too"
                    )
                self.entries[name] = entry
        self._open: dict[Path, Any] = {}

    def tensor(self, name: str) -> torch.Tensor:
        """The named tensor, without a copy: its storage is the mapped file."""
        entry = self.entries[name]
        try:
            if entry.file not in self._open:
                self._open[entry.file] = safe_open(str(entry.file), framework="pt", device="cpu")
            tensor: torch.Tensor = self._open[entry.file].get_tensor(name)
        except SafetensorError as error:
            raise ConfigError(f"{entry.file}: {error}") from error
        return tensor

    def digest(self, salt: str) -> str:
        """Names `salt`, every tensor's name, type and shape, and a few bytes from all over each.

        It tells checkpoints apart at the price of a few page reads per tensor; it does not depend on
        how the tensors are spread over files.
        """
        hasher = hashlib.blake2b(salt.encode(), digest_size=16)
        descriptors: dict[Path, int] = {}
        try:
            for name, entry in sorted(self.entries.items()):
                if entry.file not in descriptors:
                    descriptors[entry.file] = os.open(entry.file, os.O_RDONLY)
                hasher.update(f"{name}:{entry.dtype}:{entry.shape};".encode())
                for offset in _sample_offsets(entry):
                    num_bytes = min(_SAMPLE_BYTES, entry.end - offset)
                    hasher.update(os.pread(descriptors[entry.file], num_bytes, offset))
        finally:
            for descriptor in descriptors.values():
                os.close(descriptor)
        return hasher.hexdigest()


def _sample_offsets(entry: TensorEntry) -> list[int]:
    span = max(entry.end - entry.begin - _SAMPLE_BYTES, 0)
    return [entry.begin + span * i // (_NUM_SAMPLES - 1) for i in range(_NUM_SAMPLES)]


def _weight_files(folder: Path) -> list[Path]:
    index = folder / WEIGHTS_INDEX_FILE
    if not index.exists():
        if not (folder / WEIGHTS_FILE).exists():
            raise ConfigError(
                f"{folder}: allowed are folders with {WEIGHTS_FILE} or {WEIGHTS_INDEX_FILE}"
            )
        return [folder / WEIGHTS_FILE]
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{index}: not a safetensors index: {error!r}") from error
    files = [folder / name for name in sorted(names)]
    for file in files:
        if not file.exists():
            raise ConfigError(f"{index}: names {file.name}, which is missing")
    return files


def _read_header(file: Path) -> dict[str, TensorEntry]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        header_bytes = int.from_bytes(stream.read(8), "little")
        if not 2 <= header_bytes <= min(_MAX_HEADER_BYTES, size - 8):
            raise ConfigError(
                f"{file}: header of {header_bytes} bytes: truncated or no safetensors"
            )
        raw = stream.read(header_bytes)
    try:
        header: dict[str, Any] = json.loads(raw)
        header.pop("__metadata__", None)
        entries = {
            name: TensorEntry(
                file=file,
                dtype=item["dtype"],
                shape=tuple(item["shape"]),
                begin=8 + header_bytes + item["data_offsets"][0],
                end=8 + header_bytes + item["data_offsets"][1],
            )
            for name, item in header.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ConfigError(f"{file}: not a safetensors header: {error!r}") from error
    last = max((entry.end for entry in entries.values()), default=0)
    if last > size:
        raise ConfigError(f"{file}: {size} bytes, but its header speaks of {last}: truncated")
    return entries
