"""What one load test is told, and its command-line flags, which are made from the same table."""

from dataclasses import dataclass, field, fields
from typing import Any

from bootstrap.errors import ConfigError

EXAMPLES = """\
examples:
  pdserve bench --rate 2 --num-requests 100 --slo ttft=500ms,tpot=50ms
  pdserve bench --concurrency 8 --input-tokens 200:400 --output-tokens 64 --html report.html
  pdserve bench --workload mooncake_trace.jsonl --length-scale 0.02 --rate-scale 0.5 --skip-too-long
  pdserve bench --workload azure_2023_conv.csv --num-requests 500 --rate 3 --json result.json

Times count from when a request was due, so a client that falls behind does not flatter the server.
Goodput is the share of all offered requests, failed ones included, within every objective of --slo.
The endpoint must serve /v1/models, /tokenize and /v1/completions with token ids, as vLLM's does too.
"""

_OF_SYNTHETIC = ("input_tokens", "output_tokens", "shared_prefix_tokens")
_OF_TRACES = ("rate_scale", "length_scale", "skip_too_long")


def _key(default: Any, text: str, metavar: str = "N", kind: type = str) -> Any:
    kind = kind if default is None else type(default)
    return field(default=default, metadata={"help": text, "metavar": metavar, "kind": kind})


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """Checked when made; raises ConfigError."""

    workload: str = _key(
        "synthetic",
        "`synthetic`, a trace of Mooncake's (*.jsonl) or of Azure's (*.csv)",
        "synthetic|FILE",
    )
    num_requests: int = _key(100, "requests to offer; of a trace, its first ones")
    rate: float | None = _key(
        None, "requests per second on average (default: a trace's own times)", "R", float
    )
    burstiness: float = _key(
        1.0, "with --rate: 1 arrives as a Poisson process, 0 evenly, more in bursts", "B"
    )
    concurrency: int | None = _key(
        None, "clients that ask one request after another, instead of a rate", kind=int
    )
    input_tokens: str = _key("256", "synthetic: tokens of a prompt", "N|LOW:HIGH")
    output_tokens: str = _key("64", "synthetic: tokens of an answer", "N|LOW:HIGH")
    shared_prefix_tokens: int = _key(0, "synthetic: first tokens that all prompts share")
    rate_scale: float = _key(1.0, "trace: how many times as fast it arrives", "F")
    length_scale: float = _key(
        1.0, "trace: how many times as long its prompts and answers are", "F"
    )
    skip_too_long: bool = _key(False, "leave out requests that the model cannot take")
    warmup: int = _key(2, "requests sent before, whose times do not count")
    slo: str = _key("", "objectives, such as ttft=500ms,tpot=50ms,e2e=10s", "LIST")
    timeout_s: float = _key(600.0, "a request silent for so long failed", "S")
    seed: int = _key(0, "of lengths, texts and arrivals")
    json: str | None = _key(None, "write every figure and request to this file", "FILE")
    html: str | None = _key(None, "write a page with plots to this file", "FILE")
    url: str | None = _key(None, "the endpoint (default: the running `up`)", "URL")
    model: str | None = _key(None, "the model's name (default: the first one served)", "NAME")

    def __post_init__(self) -> None:
        for key, low, high in (
            ("num_requests", 1, 1_000_000),
            ("rate", 1e-6, 1e6),
            ("burstiness", 0.0, 1e3),
            ("concurrency", 1, 10_000),
            ("shared_prefix_tokens", 0, 1 << 24),
            ("rate_scale", 1e-6, 1e6),
            ("length_scale", 1e-6, 1e3),
            ("warmup", 0, 1000),
            ("timeout_s", 0.1, 86400.0),
        ):
            value = getattr(self, key)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{key}={value}: allowed are {low} to {high}")
        if self.rate is not None and self.concurrency is not None:
            raise ConfigError(
                f"rate={self.rate} concurrency={self.concurrency}: choose one of them"
            )
        if self.is_synthetic and self.rate is None and self.concurrency is None:
            raise ConfigError("rate=None concurrency=None: a synthetic workload needs one of them")
        self._refuse_idle_keys()

    @property
    def is_synthetic(self) -> bool:
        """Whether the requests are made up."""
        return self.workload == "synthetic"

    def _refuse_idle_keys(self) -> None:
        """What would change nothing was meant to change something."""
        other = _OF_TRACES if self.is_synthetic else _OF_SYNTHETIC
        defaults = {entry.name: entry.default for entry in fields(self)}
        for key in other:
            if getattr(self, key) != defaults[key]:
                value = getattr(self, key)
                raise ConfigError(f"{key}={value}: changes nothing with workload={self.workload!r}")
        if self.burstiness != defaults["burstiness"] and self.rate is None:
            raise ConfigError(f"burstiness={self.burstiness}: changes nothing without a rate")
