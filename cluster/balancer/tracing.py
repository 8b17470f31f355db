"""Requests as OpenTelemetry traces, sent by OTLP over HTTP.

Owns the exporter and the way from the balancer's clock to the world's. What a trace holds is
`cluster.balancer.spans`'s. The library comes with the extra `traces`, and `OTEL_*` variables of its
specification hold where no setting of ours speaks.
"""

import time
from typing import Any

from bootstrap.errors import ConfigError
from cluster.balancer.spans import Span, spans_of
from cluster.balancer.stories import Story

_SERVICE = "pdserve"
_PATH = "/v1/traces"


class Traces:
    """Sends requests that ended; without an endpoint it sends nothing."""

    def __init__(self, endpoint: str | None, model_name: str) -> None:
        """Raises ConfigError when `endpoint` is given and the library is not installed."""
        self._model_name = model_name
        self._provider = None if endpoint is None else _provider(endpoint)

    def ended(self, story: Story) -> None:
        """A request's outcome is decided: queue its trace."""
        if self._provider is not None:
            assert story.ended_at is not None
            spans = spans_of(story, self._model_name, story.ended_at)
            _send(self._provider, story.spec.traceparent, spans)

    def close(self) -> None:
        """Send what waits; blocks for some seconds at most."""
        if self._provider is not None:
            self._provider.shutdown()


def _provider(endpoint: str) -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            f"otlp_traces_endpoint={endpoint!r}: install `pdserve[traces]` for it: {error}"
        ) from error
    url = endpoint if endpoint.endswith(_PATH) else endpoint.rstrip("/") + _PATH
    resource = Resource.create({"service.name": _SERVICE})  # OTEL_SERVICE_NAME wins over it
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return provider


def _send(provider: Any, traceparent: str, spans: list[Span]) -> None:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    tracer = provider.get_tracer(_SERVICE)
    carrier = {"traceparent": traceparent} if traceparent else {}
    outside = TraceContextTextMapPropagator().extract(carrier)
    offset_s = time.time() - time.monotonic()

    def nanoseconds(at: float) -> int:
        return int((at + offset_s) * 1e9)

    made: list[Any] = []
    for span in spans:
        parent = span.parent
        context = outside if parent is None else trace.set_span_in_context(made[parent])
        kind = trace.SpanKind.SERVER if parent is None else trace.SpanKind.INTERNAL
        made.append(
            tracer.start_span(
                span.name,
                context=context,
                kind=kind,
                attributes=span.attributes,
                start_time=nanoseconds(span.started_at),
            )
        )
        if span.error:
            made[-1].set_status(trace.StatusCode.ERROR, span.error)
    for span, one in zip(spans, made, strict=True):
        one.end(end_time=nanoseconds(span.ended_at))
