"""The KV arena as a tensor over memory that someone else owns."""

import torch

from bootstrap.errors import ConfigError, LocalMisuse
from kv_transfer.layout import KVLayout

TORCH_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of a dtype setting."""
    if name not in TORCH_DTYPES:
        raise ConfigError(f"dtype={name!r}: allowed are {', '.join(TORCH_DTYPES)}")
    return TORCH_DTYPES[name]


def arena_tensor(memory: memoryview, layout: KVLayout, dtype: str) -> torch.Tensor:
    """The first `layout.num_bytes` of writable `memory` as a tensor of `layout.shape`; no copy.

    The tensor keeps `memory` referenced; its owner must not unmap it while the tensor is in use.
    """
    if memory.readonly or memory.nbytes < layout.num_bytes:
        kind = "read-only" if memory.readonly else "writable"
        raise LocalMisuse(f"arena: {memory.nbytes} {kind} bytes for {layout.num_bytes}")
    if torch_dtype(dtype).itemsize != layout.itemsize:
        raise LocalMisuse(f"arena: {dtype} elements in a layout of {layout.itemsize} bytes each")
    flat = torch.frombuffer(memory.cast("B")[: layout.num_bytes], dtype=torch_dtype(dtype))
    return flat.view(layout.shape)
