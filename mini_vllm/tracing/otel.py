"""One span a request, sent to an OpenTelemetry collector. Upstream twin: `vllm/tracing/otel.py`; the attributes are
set in upstream/vllm/v1/engine/output_processor.py:712 — `do_tracing`.

The packages of OpenTelemetry (extra `otlp`) are imported when a tracer is made, and not before. Upstream's tracer is
global; here it belongs to an engine's front end.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from mini_vllm.tracing.utils import TRACE_CONTEXT, SpanAttributes

PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
_MAX_KNOWN = 10_000


def init_otel_tracer(instrumenting_module_name: str, otlp_traces_endpoint: str) -> RequestTracer:
    """What sends spans to this endpoint. Raises ValueError without the packages, or for another protocol.

    Upstream: upstream/vllm/tracing/otel.py:60 — `init_otel_tracer`.
    """
    return RequestTracer(instrumenting_module_name, require_otel(otlp_traces_endpoint))


def require_otel(otlp_traces_endpoint: str) -> Any:
    """A processor that sends spans in batches; raises as `init_otel_tracer`."""
    try:
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        return BatchSpanProcessor(get_span_exporter(otlp_traces_endpoint))
    except ImportError as error:
        raise ValueError(
            f"OpenTelemetry is not available ({error}), and --otlp-traces-endpoint needs it: "
            'pip install "mini-vllm-course[otlp]"'
        ) from None


def get_span_exporter(endpoint: str) -> Any:
    """By gRPC, or by HTTP where the environment says so.

    Upstream: upstream/vllm/tracing/otel.py:94 — `get_span_exporter`.
    """
    protocol = os.environ.get(PROTOCOL, "grpc")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(endpoint=endpoint, insecure=True)
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        return HttpExporter(endpoint=endpoint)
    raise ValueError(f"Unsupported OTLP protocol '{protocol}' is configured ({PROTOCOL}): grpc or http/protobuf")


class RequestTracer:
    """Makes a span of each request that ends.

    Args:
        processor: of the SDK; where spans go.
    """

    def __init__(self, instrumenting_module_name: str, processor: Any) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        about = {"vllm.instrumenting_module_name": instrumenting_module_name, "vllm.process_id": str(os.getpid())}
        self.provider = TracerProvider(resource=Resource.create(about))
        self.provider.add_span_processor(processor)
        self.tracer = self.provider.get_tracer(instrumenting_module_name)
        self._known: OrderedDict[str, tuple[str, Mapping[str, str]]] = OrderedDict()

    def remember(self, inside: str, request_id: str) -> None:
        """The engine's request `inside` is the client's `request_id`, and a part of the trace that its headers name.

        Upstream sends the headers to the core and back: upstream/vllm/v1/engine/__init__.py:114 — `trace_headers`.
        """
        self._known[inside] = request_id, TRACE_CONTEXT.get()
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)

    def do_tracing(self, state: Any) -> None:
        """The span of a request that has ended; `state` is the `RequestState`."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        inside = state.parent.request_id if state.parent else state.request_id
        request_id, headers = self._known.get(inside, (inside, {}))
        context = TraceContextTextMapPropagator().extract(headers) if headers else None
        began = int(state.metrics.arrival_time * 1e9)
        span = self.tracer.start_span("llm_request", context=context, kind=SpanKind.SERVER, start_time=began)
        span.set_attributes(_attributes(state, request_id))
        span.end()

    def shutdown(self) -> None:
        """Send what is left."""
        self.provider.shutdown()


def _attributes(state: Any, request_id: str) -> dict[str, Any]:
    names, metrics, params = SpanAttributes, state.metrics, state.processed.params
    found = {
        names.GEN_AI_LATENCY_TIME_TO_FIRST_TOKEN: metrics.first_token_latency,
        names.GEN_AI_LATENCY_E2E: time.time() - metrics.arrival_time,
        names.GEN_AI_LATENCY_TIME_IN_QUEUE: metrics.scheduled_ts - metrics.queued_ts,
        names.GEN_AI_USAGE_PROMPT_TOKENS: len(state.processed.prompt_token_ids),
        names.GEN_AI_USAGE_COMPLETION_TOKENS: metrics.num_generation_tokens,
        names.GEN_AI_LATENCY_TIME_IN_MODEL_PREFILL: metrics.first_token_ts - metrics.scheduled_ts,
        names.GEN_AI_LATENCY_TIME_IN_MODEL_DECODE: metrics.last_token_ts - metrics.first_token_ts,
        names.GEN_AI_LATENCY_TIME_IN_MODEL_INFERENCE: metrics.last_token_ts - metrics.scheduled_ts,
        names.GEN_AI_REQUEST_ID: request_id,
    }
    asked = {
        names.GEN_AI_REQUEST_TOP_P: params.top_p,
        names.GEN_AI_REQUEST_MAX_TOKENS: params.max_tokens,
        names.GEN_AI_REQUEST_TEMPERATURE: params.temperature,
        names.GEN_AI_REQUEST_N: state.parent.n if state.parent else params.n,
    }
    return {**found, **{name: value for name, value in asked.items() if value}}
