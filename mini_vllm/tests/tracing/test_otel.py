"""A span a request: by a stub for the packages of OpenTelemetry, and by a collector where the packages are there."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import ClassVar

import pytest

from mini_vllm.entrypoints.cli.serve import parse_serve_args
from mini_vllm.tests.entrypoints.openai.servers import Server
from mini_vllm.tracing.otel import get_span_exporter
from mini_vllm.tracing.utils import TRACE_CONTEXT, SpanAttributes, extract_trace_headers

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_without_the_packages_the_flag_is_refused_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(ValueError, match=r"OpenTelemetry is not available .*--otlp-traces-endpoint .*otlp"):
        parse_serve_args(["toy", "--otlp-traces-endpoint", "http://127.0.0.1:1"])


def test_another_protocol_is_refused(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "smoke")
    with pytest.raises(ValueError, match="Unsupported OTLP protocol 'smoke'"):
        get_span_exporter("http://127.0.0.1:1")


def test_the_engine_imports_none_of_them():
    words = "import mini_vllm, mini_vllm.tracing.otel, sys; print([m for m in sys.modules if 'opentelemetry' in m])"
    assert subprocess.run([sys.executable, "-c", words], capture_output=True, text=True).stdout.strip() == "[]"


def test_headers_of_a_trace_alone():
    assert extract_trace_headers({"traceparent": "a", "authorization": "b"}) == {"traceparent": "a"}


def test_names_are_upstreams():
    names = [value for name, value in vars(SpanAttributes).items() if name.startswith("GEN_AI")]
    assert len(names) == 13 and all(name.startswith("gen_ai.") for name in names)


class Remembered:
    """In the place of a `RequestTracer`: what it is told."""

    def __init__(self):
        self.known, self.ended = {}, []

    def remember(self, inside, request_id):
        self.known[inside] = request_id, TRACE_CONTEXT.get()

    def do_tracing(self, state):
        self.ended.append(state.parent.request_id if state.parent else state.request_id)

    def shutdown(self):
        self.over = True


def test_each_request_is_known_by_the_clients_id_and_trace():
    with Server("toy") as server, server.client() as client:
        tracer = server.engine.output_processor.tracer = Remembered()
        headers = {"traceparent": PARENT, "X-Request-Id": "mine"}
        client.post("/v1/completions", json={"prompt": ["a", "b"], "max_tokens": 2, "n": 2}, headers=headers)
        client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
    first, second, third = tracer.known.values()
    assert [first, second] == [(f"cmpl-mine-{i}", {"traceparent": PARENT}) for i in (0, 1)]
    assert third[1] == {} and len(tracer.ended) == 5 and set(tracer.ended) == set(tracer.known) and tracer.over


def state(**params):
    metrics = SimpleNamespace(arrival_time=100.0, first_token_latency=0.5, scheduled_ts=3.0, queued_ts=1.0,
                              first_token_ts=7.0, last_token_ts=15.0, num_generation_tokens=9)  # fmt: skip
    given = {"top_p": 0.9, "max_tokens": 9, "temperature": 0.0, "n": 1, **params}
    processed = SimpleNamespace(params=SimpleNamespace(**given), prompt_token_ids=[1, 2, 3])
    return SimpleNamespace(metrics=metrics, processed=processed, parent=None, request_id="inside")


def test_a_span_has_the_times_and_the_parameters():
    pytest.importorskip("opentelemetry.sdk", reason="needs the extra otlp")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from mini_vllm.tracing.otel import RequestTracer

    exporter = InMemorySpanExporter()
    tracer = RequestTracer("vllm.llm_engine", SimpleSpanProcessor(exporter))
    TRACE_CONTEXT.set({"traceparent": PARENT})
    tracer.remember("inside", "cmpl-1")
    tracer.do_tracing(state())
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind.name, span.start_time) == ("llm_request", "SERVER", 100_000_000_000)
    assert format(span.context.trace_id, "032x") == PARENT.split("-")[1]
    assert format(span.parent.span_id, "016x") == PARENT.split("-")[2]
    assert span.resource.attributes["vllm.instrumenting_module_name"] == "vllm.llm_engine"
    seen = dict(span.attributes)
    assert seen.pop("gen_ai.latency.e2e") > 0
    assert seen == {
        "gen_ai.latency.time_to_first_token": 0.5, "gen_ai.latency.time_in_queue": 2.0,
        "gen_ai.latency.time_in_model_prefill": 4.0, "gen_ai.latency.time_in_model_decode": 8.0,
        "gen_ai.latency.time_in_model_inference": 12.0, "gen_ai.usage.prompt_tokens": 3,
        "gen_ai.usage.completion_tokens": 9, "gen_ai.request.id": "cmpl-1", "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 9, "gen_ai.request.n": 1,
    }  # fmt: skip


class Collector(BaseHTTPRequestHandler):
    bodies: ClassVar[list[bytes]] = []

    def do_POST(self):
        Collector.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        """Nothing."""


def test_a_collector_gets_the_spans_of_a_server(monkeypatch):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otlp")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    collector = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    with Server("toy", "--otlp-traces-endpoint", endpoint) as server, server.client() as client:
        body = {"prompt": "ab", "max_tokens": 3}
        assert client.post("/v1/completions", json=body, headers={"traceparent": PARENT}).status_code == 200
    collector.shutdown()
    requests = map(ExportTraceServiceRequest.FromString, Collector.bodies)
    (spans,) = [scope.spans for each in requests for found in each.resource_spans for scope in found.scope_spans]
    assert [(span.name, span.trace_id.hex()) for span in spans] == [("llm_request", PARENT.split("-")[1])]
