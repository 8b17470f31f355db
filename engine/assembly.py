"""From settings to the parts of one engine: model, arena, transport, stepper, limits, contract."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from bootstrap.contract import KVContract
from bootstrap.errors import ConfigError
from bootstrap.membership import WorkerLimits
from engine.arena import arena_tensor
from engine.contract import contract_for, layout_for
from engine.grammar_compiler import GrammarCompiler
from engine.limits import EngineLimits
from engine.loader import load_model
from engine.runner import ModelRunner
from engine.settings import EngineSettings
from engine.stepper import ModelStepper
from engine.swap import SwapSpace
from engine.tokenizer import tokenizer_digest
from kv_transfer.backends.port import TransferBackend
from kv_transfer.backends.registry import make_backend
from kv_transfer.layout import KVLayout

OnStage = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Ready to run; `backend` holds the arena's memory, and it and `grammars` are the holder's to close."""

    stepper: ModelStepper
    backend: TransferBackend
    arena: memoryview
    layout: KVLayout
    limits: EngineLimits
    contract: KVContract
    grammars: GrammarCompiler


def build_engine(settings: EngineSettings, agent_name: str, say: OnStage) -> EngineParts:
    """Load the model and take the arena's memory from the transport.

    Raises ConfigError for what the settings cannot do, TransferError when the transport refuses.
    """
    torch.set_num_threads(settings.num_threads)
    say("loading model")
    loaded = load_model(settings.model_dir, settings.dtype, settings.device)
    longest = loaded.config.max_position_embeddings
    if settings.max_model_len > longest:
        raise ConfigError(
            f"max_model_len={settings.max_model_len}: the model allows 2 to {longest}"
        )
    layout = layout_for(loaded.config, settings.dtype, settings.block_size, settings.num_blocks)
    contract = contract_for(loaded, tokenizer_digest(settings.model_dir), settings.block_size)
    with ExitStack() as undo:
        backend = make_backend(settings.transfer, agent_name, settings.bind_host)
        undo.callback(backend.close)
        say(f"allocating {layout.num_bytes >> 20} MiB for KV pages ({settings.transfer})")
        memory = backend.allocate(layout.num_bytes)
        arena = arena_tensor(memory, layout, settings.dtype)
        stepper = ModelStepper(ModelRunner(loaded, layout, arena), SwapSpace(arena))
        undo.pop_all()
    limits = _limits(settings, loaded.config.vocab_size, layout.block_bytes)
    grammars = GrammarCompiler(Path(settings.model_dir))
    return EngineParts(stepper, backend, memory, layout, limits, contract, grammars)


def _limits(settings: EngineSettings, vocab_size: int, block_bytes: int) -> EngineLimits:
    return EngineLimits(
        num_blocks=settings.num_blocks,
        block_size=settings.block_size,
        block_bytes=block_bytes,
        vocab_size=vocab_size,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_queue=settings.max_queue,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        prefix_caching=settings.prefix_caching,
        verify_handoff=settings.verify_handoff,
        salvage_lease_s=settings.salvage_lease_s,
    )


def published_limits(limits: EngineLimits) -> WorkerLimits:
    """What balancers are told, to refuse before dispatch."""
    return WorkerLimits(
        max_model_len=limits.max_model_len,
        num_blocks=limits.num_blocks,
        max_num_seqs=limits.max_num_seqs,
        max_queue=limits.max_queue,
        max_num_batched_tokens=limits.max_num_batched_tokens,
    )
