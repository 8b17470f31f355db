"""What one `up` is told: its keys, their defaults and help, and where each value came from.

Owns the one table of keys (the fields of `ClusterSettings`): the command line and the config file
are both read from it, so every flag is a key and the reverse. Knows nothing of argparse or Ray.
"""

from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from bootstrap.errors import ConfigError
from cluster.balancer.settings import (
    LOG_LEVELS,
    REASONING_PARSERS,
    TOOL_CALL_PARSERS,
    BalancerSettings,
)
from cluster.logs import FORMATS, LogSettings
from engine.settings import BACKENDS, DEVICES, DTYPES, EngineSettings

MAX_WORKERS_PER_ROLE = 1024

_ENGINE_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(EngineSettings)}
DEFAULT_MODEL_LEN: int = _ENGINE_DEFAULTS["max_model_len"]
_BALANCER_DEFAULTS = {f.name: f.default for f in fields(BalancerSettings)}

# Keys of the endpoint that go to the balancer as they are.
ENDPOINT_HELP = {
    "max_waiting_requests": "most requests that wait for an engine; more are told 429",
    "max_waiting_tokens": "most tokens of their prompts",
    "stream_interval": "least tokens of an event of a stream, the first and the last apart",
    "tool_call_parser": f"how the model writes tool calls: one of {', '.join(TOOL_CALL_PARSERS)}",
    "reasoning_parser": f"how the model writes thoughts: one of {', '.join(REASONING_PARSERS)}",
    "api_key_file": "keys of clients, one on each line, # for comments; read again when it changes"
    " (default: no key is needed)",
    "admin_key_file": "keys for /admin routes, as in the other file (default: no such routes, but beyond"
    " loopback `up` makes a key)",
    "max_request_bytes": "largest request body",
    "allowed_origins": "web origins whose pages may call, parted by commas, or * (default: none)",
    "otlp_traces_endpoint": "send a trace of every request to this OpenTelemetry collector, by OTLP"
    " over HTTP (default: none)",
    "ssl_certfile": "certificate chain in PEM, for HTTPS (default: HTTP)",
    "ssl_keyfile": "its private key in PEM (default: in the certificate's file)",
    "ssl_key_password_file": "file whose first line is the key's password",
}


def _key(default: Any, group: str, text: str, metavar: str = "N", kind: type = str) -> Any:
    """`kind` is the type of a key whose default, None, has none."""
    kind = kind if default is None else type(default)
    metadata = {"group": group, "help": text, "metavar": metavar, "kind": kind}
    return field(default=default, metadata=metadata)


def _engine_key(name: str, group: str, text: str, metavar: str = "N") -> Any:
    return _key(_ENGINE_DEFAULTS[name], group, text, metavar)


def _endpoint_key(name: str, metavar: str = "FILE") -> Any:
    return _key(_BALANCER_DEFAULTS[name], "endpoint", ENDPOINT_HELP[name], metavar)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """All of one `up`. A value that cannot work never gets past construction (ConfigError)."""

    model: str = _key(
        "demo",
        "model",
        "a folder, a Hugging Face id, or `demo` (SmolLM2-135M-Instruct, made on first use)",
        "DIR|HF-ID|demo",
    )
    served_model_name: str | None = _key(
        None, "model", "the name clients ask for (default: the model's own name)", "NAME"
    )
    dtype: str = _engine_key(
        "dtype", "model", f"one of {', '.join(DTYPES)}; in float64 no batch changes a text", "DTYPE"
    )
    device: str = _engine_key("device", "model", f"one of {', '.join(DEVICES)}", "DEVICE")
    max_model_len: int | None = _key(
        None,
        "model",
        "most tokens of one request, prompt and output together (default: the smaller of"
        f" {DEFAULT_MODEL_LEN} and the model's own limit)",
        kind=int,
    )

    prefill: int = _key(1, "engines", "number of prefill engines")
    decode: int = _key(1, "engines", "number of decode engines")
    num_threads: int = _engine_key("num_threads", "engines", "compute threads per engine")
    max_num_seqs: int = _engine_key("max_num_seqs", "engines", "most requests running per engine")
    max_num_batched_tokens: int = _engine_key(
        "max_num_batched_tokens", "engines", "most prompt tokens of one prefill step"
    )
    max_queue: int = _engine_key("max_queue", "engines", "most requests waiting per engine")
    drain_s: int = _key(
        30, "engines", "what an engine that leaves has for its requests; the rest go on elsewhere"
    )

    transfer: str = _engine_key(
        "transfer", "KV cache", f"how pages move: one of {', '.join(BACKENDS)}", "BACKEND"
    )
    block_size: int = _engine_key("block_size", "KV cache", "tokens per block")
    num_blocks: int = _engine_key("num_blocks", "KV cache", "blocks per engine")
    prefix_caching: bool = _engine_key(
        "prefix_caching", "KV cache", "reuse blocks of equal prefixes"
    )
    verify_handoff: bool = _engine_key(
        "verify_handoff", "KV cache", "prove by digests that pages arrived as they were sent"
    )
    salvage_lease_s: float = _engine_key(
        "salvage_lease_s",
        "KV cache",
        "seconds for which a handed-off prompt's cached blocks outlive others, for a continuation",
        "S",
    )

    endpoint: bool = _key(
        True, "endpoint", "run the load balancer; else start `pdserve balancer` beside it"
    )
    host: str = _key("127.0.0.1", "endpoint", "address that clients connect to", "ADDR")
    port: int = _key(8000, "endpoint", "port that clients connect to")
    max_attempts: int = _key(3, "endpoint", "most engine pairs tried for one request")
    max_waiting_requests: int = _endpoint_key("max_waiting_requests", "N")
    max_waiting_tokens: int = _endpoint_key("max_waiting_tokens", "N")
    stream_interval: int = _endpoint_key("stream_interval", "N")
    tool_call_parser: str = _endpoint_key("tool_call_parser", "PARSER")
    reasoning_parser: str = _endpoint_key("reasoning_parser", "PARSER")
    api_key_file: str | None = _endpoint_key("api_key_file")
    admin_key_file: str | None = _endpoint_key("admin_key_file")
    max_request_bytes: int = _endpoint_key("max_request_bytes", "N")
    allowed_origins: str | None = _endpoint_key("allowed_origins", "ORIGINS")
    otlp_traces_endpoint: str | None = _endpoint_key("otlp_traces_endpoint", "URL")
    ssl_certfile: str | None = _endpoint_key("ssl_certfile")
    ssl_keyfile: str | None = _endpoint_key("ssl_keyfile")
    ssl_key_password_file: str | None = _endpoint_key("ssl_key_password_file")

    ray_address: str = _key(
        "local",
        "cluster",
        "`local` starts a private Ray that ends with this command; `auto` and ADDR join a running one",
        "ADDR|local|auto",
    )
    secret_file: str | None = _key(
        None,
        "cluster",
        "the cluster secret, at the same path on every host (default: a new one per start, which"
        " serves one machine)",
        "FILE",
    )
    bootstrap_port: int = _key(
        0,
        "cluster",
        "port of the bootstrap service, which other load balancers are told; 0: any that is free",
    )
    start_timeout_s: int = _key(300, "cluster", "give up when not ready after so long")
    log_level: str = _key("info", "cluster", f"one of {', '.join(LOG_LEVELS)}", "LEVEL")
    log_format: str = _key("text", "cluster", f"one of {', '.join(FORMATS)}", "FORMAT")

    def __post_init__(self) -> None:
        for entry in fields(self):
            _check_type(entry, getattr(self, entry.name))
        _check_allowed("log_level", self.log_level, LOG_LEVELS)
        _check_allowed("log_format", self.log_format, FORMATS)
        for key, low, high in (
            ("prefill", 1, MAX_WORKERS_PER_ROLE),
            ("decode", 1, MAX_WORKERS_PER_ROLE),
            ("port", 1, 65535),
            ("max_attempts", 1, 16),
            ("start_timeout_s", 1, 86400),
            ("drain_s", 0, 3600),
        ):
            value = getattr(self, key)
            if not low <= value <= high:
                raise ConfigError(f"{key}={value}: allowed are {low} to {high}")
        if self.bootstrap_port and not 1024 <= self.bootstrap_port <= 65535:
            raise ConfigError(
                f"bootstrap_port={self.bootstrap_port}: allowed are 0 and 1024 to 65535"
            )
        for key in ("model", "host", "ray_address"):
            if not getattr(self, key):
                raise ConfigError(f"{key}='': a value is needed")
        if not self.owns_ray and self.secret_file is None:
            raise ConfigError(
                f"secret_file=None: with ray_address={self.ray_address!r} the name of a file is"
                " needed that holds the same secret on every host"
            )
        self.engine(_ANY_ENGINE)
        self.balancer(_ANY_BALANCER)

    @property
    def owns_ray(self) -> bool:
        """Whether `up` starts Ray itself and ends it; then everything is on this machine."""
        return self.ray_address == "local"

    @property
    def log(self) -> LogSettings:
        """How every process logs."""
        return LogSettings(self.log_level, self.log_format)

    @property
    def num_engines(self) -> int:
        """Engines of both roles."""
        return self.prefill + self.decode

    def for_model(self, longest: int) -> "ClusterSettings":
        """With `max_model_len` settled for a model whose positions end at `longest`."""
        if self.max_model_len is not None:
            return self
        return replace(self, max_model_len=min(DEFAULT_MODEL_LEN, longest))

    def engine(self, identity: "EngineIdentity") -> EngineSettings:
        """The settings of one engine, of a model that `for_model` was told of."""
        own = {f.name for f in fields(EngineIdentity)}
        shared = {name: getattr(self, name) for name in _ENGINE_DEFAULTS if name in _KEYS}
        chosen = {
            name: value for name, value in shared.items() if name not in own and value is not None
        }
        return EngineSettings(**asdict(identity), **chosen)

    def balancer(self, identity: "BalancerIdentity") -> BalancerSettings:
        """The settings of the load balancer."""
        own = {f.name for f in fields(BalancerIdentity)}
        shared = [name for name in _BALANCER_DEFAULTS if name in _KEYS and name not in own]
        return BalancerSettings(
            **asdict(identity), **{name: getattr(self, name) for name in shared}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineIdentity:
    """What makes one engine's settings its own; the rest is the cluster's."""

    worker_id: str
    model_dir: str
    model_name: str
    bootstrap: str
    bind_host: str
    secret_file: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerIdentity:
    """What a load balancer is told beside the cluster's keys."""

    model_dir: str
    model_name: str
    bootstrap: str
    bind_host: str
    secret_file: str | None
    admin_key_file: str | None
    shutdown_grace_s: float


_KEYS: dict[str, Field[Any]] = {entry.name: entry for entry in fields(ClusterSettings)}

_ANY_ENGINE = EngineIdentity(
    worker_id="any",
    model_dir="any",
    model_name="any",
    bootstrap="tcp://127.0.0.1:1",
    bind_host="127.0.0.1",
    secret_file=None,
)


_ANY_BALANCER = BalancerIdentity(
    model_dir="any",
    model_name="any",
    bootstrap="tcp://127.0.0.1:1",
    bind_host="127.0.0.1",
    secret_file=None,
    admin_key_file=None,
    shutdown_grace_s=0.0,
)


def load(flags: Mapping[str, Any], config_file: str | None) -> ClusterSettings:
    """Merge `flags` (only those given) over `config_file` over the defaults; raises ConfigError."""
    values = {} if config_file is None else read_config(Path(config_file))
    return ClusterSettings(**{**values, **flags})


def read_config(path: Path) -> dict[str, Any]:
    """The keys of a YAML file; raises ConfigError for unreadable text and for unknown keys."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config={str(path)!r}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"config={str(path)!r}: not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"config={str(path)!r}: a mapping of keys to values is needed")
    unknown = [key for key in content if key not in _KEYS]
    if unknown:
        raise ConfigError(
            f"config={str(path)!r}: unknown key {unknown[0]!r}={content[unknown[0]]!r}:"
            f" allowed are {', '.join(_KEYS)}"
        )
    return content


def _check_type(entry: "Field[Any]", value: Any) -> None:
    if value is None and entry.default is None:
        return
    wanted = entry.metadata["kind"]
    if type(value) is not wanted and not (wanted is float and type(value) is int):
        names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
        raise ConfigError(f"{entry.name}={value!r}: {names[wanted]} is needed")


def _check_allowed(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{key}={value!r}: allowed are {', '.join(allowed)}")
