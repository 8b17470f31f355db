"""One trace per request, as an OpenTelemetry collector receives it."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support import conformance_cluster
from tests.support.engine_cluster import MODEL_NAME, EngineCluster
from tests.support.http_balancer import HttpBalancer

model_dir = conformance_cluster.model_dir

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
LEGS = {"prefill queue", "prefill", "decode admission", "transfer", "decode"}


class Collector:
    """Keeps every span that is sent to `url`."""

    def __init__(self) -> None:
        spans = self.spans = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        spans.extend(scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def collected(model_dir) -> Iterator[dict[str, list]]:
    """The spans of three calls by trace id, once the balancer has ended."""
    collector = Collector()
    # Sampled anew each time: one answer in some hundreds would end early.
    body = {"model": MODEL_NAME, "prompt": "The tea of the north", "max_tokens": 5}
    body["ignore_eos"] = True
    try:
        with (
            EngineCluster(model_dir) as engines,
            HttpBalancer(
                engines.bootstrap, model_dir, MODEL_NAME, otlp_traces_endpoint=collector.url
            ) as balancer,
        ):
            balancer.wait_ready()
            with httpx.Client(base_url=balancer.url, timeout=60) as client:
                for header in (f"00-{TRACE_ID}-{SPAN_ID}-01", "not-a-trace", None):
                    headers = {"traceparent": header} if header else {}
                    answer = client.post("/v1/completions", json=body, headers=headers)
                    assert answer.status_code == 200
                too_many = {**body, "max_tokens": 1 << 19}
                assert client.post("/v1/completions", json=too_many).status_code == 400
    finally:
        collector.close()
    traces: dict[str, list] = {}
    for span in collector.spans:
        traces.setdefault(span.trace_id.hex(), []).append(span)
    return traces


def test_each_request_is_one_trace_and_probes_and_refusals_are_none(collected):
    assert len(collected) == 3
    for spans in collected.values():
        names = [span.name for span in spans]
        assert sorted(names) == sorted(["request", "wait", "attempt", *LEGS])


def test_a_trace_hangs_together(collected):
    for spans in collected.values():
        by_name = {span.name: span for span in spans}
        request, attempt = by_name["request"], by_name["attempt"]
        assert by_name["wait"].parent_span_id == attempt.parent_span_id == request.span_id
        assert {by_name[name].parent_span_id for name in LEGS} == {attempt.span_id}
        for span in spans:
            assert request.start_time_unix_nano <= span.start_time_unix_nano
            assert span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= request.end_time_unix_nano
        assert by_name["prefill"].end_time_unix_nano <= by_name["decode"].end_time_unix_nano


def test_a_trace_tells_who_and_how_much(collected):
    for spans in collected.values():
        by_name = {span.name: {a.key: a.value for a in span.attributes} for span in spans}
        request = by_name["request"]
        assert request["gen_ai.request.model"].string_value == MODEL_NAME
        assert request["gen_ai.usage.output_tokens"].int_value == 5
        assert request["gen_ai.response.finish_reasons"].array_value.values[0].string_value
        workers = [v.string_value for v in by_name["attempt"]["pdserve.workers"].array_value.values]
        assert len(workers) == 2
        assert by_name["transfer"]["pdserve.bytes"].int_value >= 0


def test_the_clients_own_trace_goes_on(collected):
    (request,) = (span for span in collected[TRACE_ID] if span.name == "request")
    assert request.parent_span_id.hex() == SPAN_ID
    others = [spans for trace_id, spans in collected.items() if trace_id != TRACE_ID]
    for spans in others:
        assert next(span for span in spans if span.name == "request").parent_span_id == b""
