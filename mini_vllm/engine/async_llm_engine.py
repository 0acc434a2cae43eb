"""The asynchronous engine under its name before V1. Upstream twin: `vllm/engine/async_llm_engine.py`."""

from mini_vllm.engine.async_llm import AsyncLLM

AsyncLLMEngine = AsyncLLM
"""Upstream: upstream/vllm/engine/async_llm_engine.py:6 — "AsyncLLMEngine = AsyncLLM"."""
