"""Traces for OpenTelemetry, optional. Upstream twin: `vllm/tracing/__init__.py`."""
