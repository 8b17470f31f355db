"""Made-up workers for tests of the ground floor."""

from bootstrap.contract import KVContract
from bootstrap.identity import Peer, Role, WorkerRef, new_incarnation
from bootstrap.membership import TransferMetadata, WorkerInfo, WorkerLimits


def make_ref(worker_id: str = "w", incarnation: int | None = None) -> WorkerRef:
    """A ref whose incarnation is random or the given number."""
    drawn = new_incarnation() if incarnation is None else f"{incarnation:016x}"
    return WorkerRef(worker_id, drawn)


def make_peer(ref: WorkerRef, endpoint: str = "tcp://127.0.0.1:1") -> Peer:
    """A peer that listens nowhere."""
    return Peer(ref, endpoint)


def make_contract(model_digest: str = "m") -> KVContract:
    """The contract of some model."""
    return KVContract(model_digest, "t", "float32", 16, 2, 2, 8, "rope")


def make_info(
    peer: Peer, role: Role = Role.PREFILL, backend: str = "fake", blob: bytes = b""
) -> WorkerInfo:
    """The registration of `peer`."""
    return WorkerInfo(
        peer=peer,
        role=role,
        model="demo",
        contract=make_contract(),
        limits=WorkerLimits(128, 16, 4, 8),
        transfer=TransferMetadata(backend, "memfd", peer.ref.incarnation, 0, 1 << 20, blob),
    )
