"""Names of a span's attributes, and the headers that a trace comes in. Upstream twin: `vllm/tracing/utils.py`."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

TRACE_CONTEXT: ContextVar[Mapping[str, str]] = ContextVar("trace_headers", default={})  # noqa: B039
"""Of the request that is answered in this task."""
TRACE_HEADERS = ("traceparent", "tracestate")


class SpanAttributes:
    """Upstream: upstream/vllm/tracing/utils.py:15 — `SpanAttributes`; those that are set."""

    GEN_AI_USAGE_COMPLETION_TOKENS = "gen_ai.usage.completion_tokens"
    GEN_AI_USAGE_PROMPT_TOKENS = "gen_ai.usage.prompt_tokens"
    GEN_AI_REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
    GEN_AI_REQUEST_TOP_P = "gen_ai.request.top_p"
    GEN_AI_REQUEST_TEMPERATURE = "gen_ai.request.temperature"
    GEN_AI_REQUEST_ID = "gen_ai.request.id"
    GEN_AI_REQUEST_N = "gen_ai.request.n"
    GEN_AI_LATENCY_TIME_IN_QUEUE = "gen_ai.latency.time_in_queue"
    GEN_AI_LATENCY_TIME_TO_FIRST_TOKEN = "gen_ai.latency.time_to_first_token"
    GEN_AI_LATENCY_E2E = "gen_ai.latency.e2e"
    GEN_AI_LATENCY_TIME_IN_MODEL_PREFILL = "gen_ai.latency.time_in_model_prefill"
    GEN_AI_LATENCY_TIME_IN_MODEL_DECODE = "gen_ai.latency.time_in_model_decode"
    GEN_AI_LATENCY_TIME_IN_MODEL_INFERENCE = "gen_ai.latency.time_in_model_inference"


def extract_trace_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Those of them that say of which trace a request is a part.

    Upstream: upstream/vllm/tracing/utils.py:62 — `extract_trace_headers`.
    """
    return {name: headers[name] for name in TRACE_HEADERS if name in headers}
