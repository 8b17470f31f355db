"""The load balancer's settings: read once, checked once, never changed."""

import re
from dataclasses import dataclass

from bootstrap.errors import ConfigError
from cluster.logs import FORMATS

LOG_LEVELS = ("debug", "info", "warning", "error")
TOOL_CALL_PARSERS = ("auto", "none", "hermes", "qwen", "llama3_json")
REASONING_PARSERS = ("auto", "none", "qwen3", "deepseek_r1")

_ORIGIN = re.compile(r"https?://[^\s/?#]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerSettings:
    """What a balancer needs to start.

    `host` and `port` are where clients connect (port 0: the system picks), `bind_host` where workers
    send tokens to. `model_dir` holds the tokenizer; `model_name` is what clients ask for. A request
    without an answer after `request_timeout_s` fails; `pair_wait_s` bounds the waits for a pair of
    workers in it. Beyond `max_waiting_requests` or `max_waiting_tokens` (of their prompts) in the queue
    new requests are turned away. A stream's second and later events hold at least `stream_interval`
    tokens each.

    At a stop the balancer is unready and serves on for `drain_delay_s`, until those who route to it know;
    then it refuses what is new, and streams may go on for `shutdown_grace_s`.

    Without `api_key_file` everybody may ask; without `admin_key_file` there are no administrators'
    routes. `allowed_origins` are web origins, parted by commas, whose pages may call the API; `*` is
    every one. With `ssl_certfile` the endpoint speaks HTTPS alone.

    Traces of requests go to the OTLP/HTTP collector at `otlp_traces_endpoint`.

    `tool_call_parser` and `reasoning_parser` say how the model writes tool calls and thoughts; `auto`
    goes by its chat template.
    """

    host: str
    port: int
    bootstrap: str  # endpoint of the bootstrap service, tcp://host:port
    model_dir: str
    model_name: str
    bind_host: str = "127.0.0.1"
    secret_file: str | None = None
    request_timeout_s: float = 600.0
    max_attempts: int = 3
    pair_wait_s: float = 2.0
    silence_s: float = 30.0
    max_waiting_requests: int = 1024
    max_waiting_tokens: int = 1 << 20
    drain_delay_s: float = 0.0
    shutdown_grace_s: float = 10.0
    num_text_threads: int = 2
    stream_interval: int = 1
    api_key_file: str | None = None
    admin_key_file: str | None = None
    max_request_bytes: int = 32 << 20
    allowed_origins: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_key_password_file: str | None = None
    otlp_traces_endpoint: str | None = None
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    log_level: str = "info"
    log_format: str = "text"

    def __post_init__(self) -> None:
        for name, values in (
            ("log_level", LOG_LEVELS),
            ("log_format", FORMATS),
            ("tool_call_parser", TOOL_CALL_PARSERS),
            ("reasoning_parser", REASONING_PARSERS),
        ):
            if getattr(self, name) not in values:
                given = getattr(self, name)
                raise ConfigError(f"{name}={given!r}: allowed are {', '.join(values)}")
        for key, low, high in (
            ("port", 0, 65535),
            ("request_timeout_s", 0.1, 86400),
            ("max_attempts", 1, 16),
            ("pair_wait_s", 0, 60),
            ("silence_s", 1, 3600),
            ("max_waiting_requests", 1, 1 << 20),
            ("max_waiting_tokens", 1, 1 << 30),
            ("drain_delay_s", 0, 600),
            ("shutdown_grace_s", 0, 3600),
            ("num_text_threads", 1, 64),
            ("stream_interval", 1, 1024),
            ("max_request_bytes", 1 << 10, 1 << 30),
        ):
            value = getattr(self, key)
            if not low <= value <= high:
                raise ConfigError(f"{key}={value}: allowed are {low} to {high}")
        if self.ssl_certfile is None and (self.ssl_keyfile or self.ssl_key_password_file):
            raise ConfigError("ssl_certfile=None: a key needs its certificate's file")
        traces = self.otlp_traces_endpoint
        if traces is not None and not traces.startswith(("http://", "https://")):
            raise ConfigError(f"otlp_traces_endpoint={traces!r}: http://HOST:PORT is needed")
        for origin in self.origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"allowed_origins={self.allowed_origins!r}: allowed are * and"
                    " http(s)://HOST[:PORT], parted by commas"
                )

    @property
    def origins(self) -> tuple[str, ...]:
        """The allowed origins, one by one."""
        return tuple(o.strip() for o in (self.allowed_origins or "").split(",") if o.strip())
