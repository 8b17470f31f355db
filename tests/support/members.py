"""Registrations of workers that do not exist, for tests of whoever reads them."""

from bootstrap.contract import KVContract
from bootstrap.identity import Peer, Role, WorkerRef
from bootstrap.membership import Member, TransferMetadata, WorkerInfo, WorkerLimits, WorkerLoad

CONTRACT = KVContract(
    model_digest="m",
    tokenizer_digest="t",
    dtype="float32",
    block_size=16,
    num_layers=2,
    num_kv_heads=2,
    head_dim=8,
    rope="{}",
)
LIMITS = WorkerLimits(max_model_len=256, num_blocks=64, max_num_seqs=8, max_queue=16)


def worker_info(
    worker_id: str,
    role: Role,
    *,
    incarnation: str = "0" * 16,
    endpoint: str = "tcp://127.0.0.1:1",
    contract: KVContract = CONTRACT,
    limits: WorkerLimits = LIMITS,
    model: str = "tiny",
) -> WorkerInfo:
    """A registration with a transport that nobody connects to."""
    transfer = TransferMetadata("fake", "memfd", f"{worker_id}-{incarnation}", 0, 0, b"")
    peer = Peer(WorkerRef(worker_id, incarnation), endpoint)
    return WorkerInfo(peer, role, model, contract, limits, transfer, host="localhost", pid=1)


def member(worker_id: str, role: Role, load: WorkerLoad | None = None, **overrides) -> Member:
    """`worker_info` with a load."""
    return Member(worker_info(worker_id, role, **overrides), load or WorkerLoad())
