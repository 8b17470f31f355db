"""From a model to the shape of its arena and to the KV contract it is paired by."""

from bootstrap.contract import KVContract
from engine.arena import torch_dtype
from engine.config import ModelConfig
from engine.loader import LoadedModel
from kv_transfer.layout import KVLayout


def layout_for(config: ModelConfig, dtype: str, block_size: int, num_blocks: int) -> KVLayout:
    """The arena of one engine; `dtype` is the KV cache's."""
    return KVLayout(
        num_blocks=num_blocks,
        num_kv_heads=config.num_kv_heads,
        num_layers=config.num_layers,
        block_size=block_size,
        head_dim=config.head_dim,
        itemsize=torch_dtype(dtype).itemsize,
    )


def contract_for(loaded: LoadedModel, tokenizer_digest: str, block_size: int) -> KVContract:
    """What another engine must equal to share KV pages with this one."""
    config = loaded.config
    return KVContract(
        model_digest=loaded.digest,
        tokenizer_digest=tokenizer_digest,
        dtype=loaded.dtype,
        block_size=block_size,
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        rope=config.rope.canonical,
    )
