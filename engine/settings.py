"""One engine's settings: read once, checked once, never changed."""

from dataclasses import dataclass

from bootstrap.errors import ConfigError

DTYPES = ("float64", "float32", "bfloat16")
DEVICES = ("cpu",)
BACKENDS = ("nixl", "mooncake", "fake")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What a worker needs to start; small enough to be an actor's constructor argument.

    `max_num_batched_tokens` is the prefill chunk budget of one step; `num_threads` the torch threads
    of the engine's step. `verify_handoff` makes a prefill engine send digests of what it wrote, which a
    decode engine compares with what landed. For `salvage_lease_s` after a handoff a prompt's cached blocks
    outlive others, for a continuation with another decode engine; it needs `prefix_caching`.
    `secret_file` holds the cluster secret that keys the wire's encryption.
    """

    worker_id: str
    model_dir: str
    model_name: str
    bootstrap: str  # endpoint of the bootstrap service, tcp://host:port
    bind_host: str = "127.0.0.1"
    dtype: str = "float32"
    device: str = "cpu"
    block_size: int = 16
    num_blocks: int = 1024
    max_model_len: int = 2048
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    max_queue: int = 256
    prefix_caching: bool = True
    verify_handoff: bool = True
    salvage_lease_s: float = 10.0
    transfer: str = "nixl"
    num_threads: int = 1
    secret_file: str | None = None

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("device", self.device, DEVICES)
        _one_of("transfer", self.transfer, BACKENDS)
        for key, low, high in (
            ("block_size", 1, 1024),
            ("num_blocks", 2, 1 << 24),
            ("max_model_len", 2, 1 << 20),
            ("max_num_seqs", 1, 4096),
            ("max_num_batched_tokens", 1, 1 << 20),
            ("max_queue", 1, 1 << 14),
            ("num_threads", 1, 1024),
            ("salvage_lease_s", 0, 3600),
        ):
            value = getattr(self, key)
            if not low <= value <= high:
                raise ConfigError(f"{key}={value}: allowed are {low} to {high}")


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{key}={value!r}: allowed are {', '.join(allowed)}")
